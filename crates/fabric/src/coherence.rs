//! The vocabulary of software coherence, explicit at each use (design, section 4).
//!
//! | function | instructions (x86-64) | for |
//! |---|---|---|
//! | [`write_back`] | clwb, else clflushopt, else clflush, per line | what a later [`fence`] completes |
//! | [`fence`] | sfence | write-backs before it are in memory |
//! | [`flush`] | write_back, fence | what must survive the loss of the host, or be seen by another |
//! | [`invalidate`] | clflushopt per line, **mfence** | loads after it come from memory; sfence would not order them |
//! | [`load_uncached`] | clflushopt, mfence, load | a flag that another host sets |
//! | [`store_uncached`] | movnti, sfence | a flag that another host reads |
//!
//! A user program cannot discard a dirty line, only write it back: invalidating one is a hazard. Ranges are given as
//! (region, offset, length) and widened to whole lines. Each call is told to the
//! memory's [`FlushSink`](crate::FlushSink), if it has one; asking is one load beside instructions that cost a hundred times as much. A simulated device
//! carries them out instead of the processor; each is a preemption point then. When the region has a
//! [mirror](crate::mirror), what is written back is copied there too.

use crate::LINE;
use crate::memory::RegionMemory;
use cenote_base::rt::{self, memory::Device};
use cenote_base::{Error, Result};
use std::sync::OnceLock;

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
pub fn write_back_kind() -> WriteBack {
    static KIND: OnceLock<WriteBack> = OnceLock::new();
    *KIND.get_or_init(target::detect)
}

/// Whether memory beyond the caches of a processor of this `kind` can be kept right at all: without an instruction that
/// writes lines back, nothing reaches it when it should, and nothing stale is ever dropped. `what` names the memory.
///
/// # Errors
/// [`Error::Invalid`] if the kind is [`WriteBack::None`].
pub fn require(kind: WriteBack, what: &str) -> Result<()> {
    if kind != WriteBack::None {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{what} needs cache lines written back to memory, and this program knows no instruction of this processor that does \
         so: use a processor with clwb, clflushopt or clflush, or a region in shared memory with --survive process"
    )))
}

/// Begins writing the lines of a range back to memory. Ordered only by a [`fence`].
#[inline]
pub fn write_back(memory: &RegionMemory, off: u64, len: usize) {
    // Before the line may leave the cache.
    if let Some(mirror) = memory.mirror() {
        mirror.write_back(memory, off, len);
    }
    if let Some(device) = simulated(memory) {
        return device.write_back(off, len as u64);
    }
    each_line(memory, off, len, target::write_back_lines);
    if let Some(sink) = memory.flush_sink() {
        sink.write_back(memory, off, len);
    }
}

/// All write-backs of this thread before it are in memory.
#[inline]
pub fn fence(memory: &RegionMemory) {
    if let Some(mirror) = memory.mirror() {
        mirror.fence();
    }
    if let Some(device) = simulated(memory) {
        return device.fence();
    }
    target::store_fence();
    if let Some(sink) = memory.flush_sink() {
        sink.fence();
    }
}

/// Writes the lines of a range back to memory and waits for it.
#[inline]
pub fn flush(memory: &RegionMemory, off: u64, len: usize) {
    write_back(memory, off, len);
    fence(memory);
}

/// Drops the lines of a range from this host's cache: later loads come from memory. No line of it
/// may be dirty.
pub fn invalidate(memory: &RegionMemory, off: u64, len: usize) {
    if let Some(device) = simulated(memory) {
        return device.invalidate(off, len as u64);
    }
    each_line(memory, off, len, target::drop_lines);
    target::full_fence();
    if let Some(sink) = memory.flush_sink() {
        sink.write_back(memory, off, len);
        sink.fence();
    }
}

/// Loads the aligned word at `off` from memory, not from the cache.
pub fn load_uncached(memory: &RegionMemory, off: u64) -> u64 {
    invalidate(memory, off, 8);
    memory.atomic_u64(off).load(cenote_base::rt::atomic::Ordering::Acquire)
}

/// Stores the aligned word at `off` to memory, past the cache.
pub fn store_uncached(memory: &RegionMemory, off: u64, value: u64) {
    let span = memory.span(off, 8);
    assert!(off.is_multiple_of(8), "an uncached word must be aligned");
    if let Some(device) = simulated(memory) {
        device.store_uncached(off, value);
    } else {
        target::store_past_cache(span, value);
        target::store_fence();
    }
    if let Some(sink) = memory.flush_sink() {
        sink.write_back(memory, off, 8);
        sink.fence();
    }
    if let Some(mirror) = memory.mirror() {
        mirror.write_back(memory, off, 8);
        fence(memory);
    }
}

/// The region's simulated device; a preemption point if there is one.
#[inline(always)]
fn simulated(memory: &RegionMemory) -> Option<&dyn Device> {
    let device = memory.device()?;
    rt::preempt();
    Some(device)
}

/// Calls `f` with the address of the first line of a range and the number of lines.
#[inline]
fn each_line(memory: &RegionMemory, off: u64, len: usize, f: impl FnOnce(*mut u8, usize)) {
    if len == 0 {
        return;
    }
    let first = off / LINE as u64 * LINE as u64;
    let end = (off + len as u64).next_multiple_of(LINE as u64);
    let span = memory.span(first, end - first);
    f(span.as_ptr(), span.len() / LINE);
}

#[cfg(target_arch = "x86_64")]
mod target {
    use super::WriteBack;
    use crate::LINE;
    use crate::span::Span;
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count};

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

    fn lines(base: *mut u8, count: usize, each: impl Fn(*mut u8)) {
        for i in 0..count {
            each(base.wrapping_add(i * LINE));
        }
    }

    /// The caller gives `count` lines of a span.
    pub(super) fn write_back_lines(base: *mut u8, count: usize) {
        match super::write_back_kind() {
            WriteBack::Clwb => lines(base, count, |p| {
                // SAFETY: a line of a span, so mapped; the processor has clwb.
                unsafe { asm!("clwb [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
            }),
            _ => drop_lines(base, count),
        }
    }

    /// The caller gives `count` lines of a span.
    pub(super) fn drop_lines(base: *mut u8, count: usize) {
        match super::write_back_kind() {
            WriteBack::Clflush | WriteBack::None => lines(base, count, |p| {
                // SAFETY: a line of a span, so mapped; every x86-64 processor has clflush.
                unsafe { asm!("clflush [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
            }),
            // Processors with clwb have clflushopt.
            _ => lines(base, count, |p| {
                // SAFETY: a line of a span, so mapped; the processor has clflushopt.
                unsafe { asm!("clflushopt [{p}]", p = in(reg) p, options(nostack, preserves_flags)) }
            }),
        }
    }

    #[inline]
    pub(super) fn store_fence() {
        // SAFETY: orders stores, touches nothing.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) }
    }

    pub(super) fn full_fence() {
        // SAFETY: orders loads and stores, touches nothing.
        unsafe { asm!("mfence", options(nostack, preserves_flags)) }
    }

    pub(super) fn store_past_cache(span: Span<'_>, value: u64) {
        assert_eq!(span.len(), 8);
        // SAFETY: eight mapped, writable bytes.
        unsafe {
            asm!("movnti [{p}], {v}", p = in(reg) span.as_ptr(), v = in(reg) value,
                options(nostack, preserves_flags));
        }
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

    pub(super) fn write_back_lines(_: *mut u8, _: usize) {}

    pub(super) fn drop_lines(_: *mut u8, _: usize) {}

    pub(super) fn store_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn full_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn store_past_cache(span: Span<'_>, value: u64) {
        span.atomic_u64(0).store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A build for a processor whose instructions are not known here flushed nothing, fenced, and said that all was in
    /// memory.
    #[test]
    fn without_an_instruction_nothing_is_promised() {
        let refused = require(WriteBack::None, "device X").expect_err("refused").to_string();
        assert!(
            refused.contains("device X") && refused.contains("--survive process"),
            "{refused}"
        );
        require(WriteBack::Clflush, "device X").expect("every x86-64 processor has it");
    }
}
