//! The processor's instructions for cache lines and time: each as a function that is safe to call.

use std::sync::OnceLock;

pub(crate) use target::*;

/// How a line is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBack {
    /// clwb: the line stays in the cache.
    Clwb,
    /// clflushopt: it leaves the cache.
    Clflushopt,
    /// clflush: it leaves the cache, one after another.
    Clflush,
    /// The target has none that is known here; the fence alone is done.
    None,
}

/// How this processor writes lines back.
pub(crate) fn write_back_kind() -> WriteBack {
    static KIND: OnceLock<WriteBack> = OnceLock::new();
    *KIND.get_or_init(target::detect)
}

#[cfg(target_arch = "x86_64")]
mod target {
    use super::WriteBack;
    use crate::LINE;
    use crate::span::Span;
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_lfence, _rdtsc};

    /// CPUID leaf 7: EBX bit 24 is clwb, bit 23 clflushopt.
    pub(super) fn detect() -> WriteBack {
        let highest = __cpuid(0).eax;
        let features = if highest >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        match (features >> 24 & 1, features >> 23 & 1) {
            (1, _) => WriteBack::Clwb,
            (_, 1) => WriteBack::Clflushopt,
            _ => WriteBack::Clflush,
        }
    }

    fn each(lines: Span<'_>, f: impl Fn(*mut u8)) {
        for at in (0..lines.len()).step_by(LINE) {
            f(lines.as_ptr().wrapping_add(at));
        }
    }

    /// Begins to write the lines of a span back.
    pub(crate) fn write_back_lines(lines: Span<'_>) {
        match super::write_back_kind() {
            WriteBack::Clwb => each(lines, |p| {
                // SAFETY: a line of a span, so mapped; the processor has clwb.
                unsafe { asm!("clwb [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
            }),
            _ => drop_lines(lines),
        }
    }

    /// Begins to drop the lines of a span from the cache.
    pub(crate) fn drop_lines(lines: Span<'_>) {
        match super::write_back_kind() {
            WriteBack::Clflush | WriteBack::None => each(lines, |p| {
                // SAFETY: a line of a span, so mapped; every x86-64 processor has clflush.
                unsafe { asm!("clflush [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
            }),
            // Processors with clwb have clflushopt.
            _ => each(lines, |p| {
                // SAFETY: a line of a span, so mapped; the processor has clflushopt.
                unsafe { asm!("clflushopt [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
            }),
        }
    }

    #[inline]
    /// All write-backs and stores of this thread before it are in memory, in order.
    pub(crate) fn store_fence() {
        // SAFETY: orders stores, touches nothing.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) }
    }

    /// Loads after it come after all loads, stores and drops before it.
    pub(crate) fn full_fence() {
        // SAFETY: orders loads and stores, touches nothing.
        unsafe { asm!("mfence", options(nostack, preserves_flags)) }
    }

    /// Stores a word to the eight bytes of a span, past the cache.
    pub(crate) fn store_past_cache(span: Span<'_>, value: u64) {
        assert_eq!(span.len(), 8);
        // SAFETY: eight mapped, writable bytes.
        unsafe {
            asm!("movnti [{p}], {v}", p = in(reg) span.as_ptr(), v = in(reg) value,
                options(nostack, preserves_flags));
        }
    }

    /// The processor's counter of time.
    #[inline(always)]
    pub(crate) fn read_counter() -> u64 {
        // SAFETY: the instruction exists on every x86-64 processor, and Linux lets programs use it.
        unsafe { _rdtsc() }
    }

    /// What was loaded before it has arrived.
    #[inline(always)]
    pub(crate) fn finish_loads() {
        // SAFETY: part of SSE2, which every x86-64 processor has.
        unsafe { _mm_lfence() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod target {
    use super::WriteBack;
    use crate::span::Span;
    use core::sync::atomic::{Ordering, fence};

    pub(super) fn detect() -> WriteBack {
        WriteBack::None
    }

    pub(crate) fn write_back_lines(_: Span<'_>) {}

    pub(crate) fn drop_lines(_: Span<'_>) {}

    /// All write-backs and stores of this thread before it are in memory, in order.
    pub(crate) fn store_fence() {
        fence(Ordering::SeqCst);
    }

    /// Loads after it come after all loads, stores and drops before it.
    pub(crate) fn full_fence() {
        fence(Ordering::SeqCst);
    }

    /// Stores a word to the eight bytes of a span, past the cache.
    pub(crate) fn store_past_cache(span: Span<'_>, value: u64) {
        span.atomic_u64(0).store(value, Ordering::Release);
    }
}
