//! Raw accesses to memory that other threads may be writing.
//!
//! A plain Rust read that races with a write is undefined, and so is a volatile one. What is
//! defined is an atomic access, and code the compiler cannot see into. So aligned single bytes go
//! through relaxed atomics, and everything else, at any alignment, through one `mov` each in
//! inline assembly (x86-64), or byte by byte (other targets). A racing read may be torn at any
//! byte; it is never anything worse. Readers validate afterwards; writers hold a latch.
//!
//! Every function requires: the whole range lies in mapped memory that stays mapped during the
//! call, and the other side (`dst` of an out-copy, `src` of an in-copy) is private to the caller.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicU8};

/// # Safety
/// `p` is mapped for the length of the value; see the module.
#[inline(always)]
pub unsafe fn load_u8(p: *const u8) -> u8 {
    // SAFETY: mapped by the caller's promise; AtomicU8 has no alignment and no niche.
    unsafe { AtomicU8::from_ptr(p.cast_mut()) }.load(Relaxed)
}

/// # Safety
/// As [`load_u8`], and mapped writable.
#[inline(always)]
pub unsafe fn store_u8(p: *mut u8, v: u8) {
    // SAFETY: as in `load_u8`.
    unsafe { AtomicU8::from_ptr(p) }.store(v, Relaxed);
}

/// A place for a reference to a value that is never freed, since a thread may be using the one before.
pub struct Leaked<T>(AtomicPtr<T>);

impl<T: Send + Sync> Leaked<T> {
    /// With nothing in it.
    pub const fn empty() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// What is in it.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or from a reference that lives for good.
        unsafe { self.0.load(Acquire).as_ref() }
    }

    /// Puts `value` in, in place of the one before; whether there was one.
    pub fn set(&self, value: &'static T) -> bool {
        !self.0.swap(core::ptr::from_ref(value).cast_mut(), AcqRel).is_null()
    }

    /// Puts `value` in if there is none; whether there was none.
    pub fn set_first(&self, value: &'static T) -> bool {
        let value = core::ptr::from_ref(value).cast_mut();
        self.0
            .compare_exchange(core::ptr::null_mut(), value, AcqRel, Relaxed)
            .is_ok()
    }

    /// Takes `value` out, if it is what is in it; whether it was.
    pub fn clear_if(&self, value: &'static T) -> bool {
        let value = core::ptr::from_ref(value).cast_mut();
        self.0
            .compare_exchange(value, core::ptr::null_mut(), AcqRel, Relaxed)
            .is_ok()
    }

    /// Takes out what is in it; whether there was something.
    pub fn clear(&self) -> bool {
        !self.0.swap(core::ptr::null_mut(), AcqRel).is_null()
    }
}

/// Asks the processor for a line. Any address may be asked for.
#[inline(always)]
pub fn prefetch(p: *const u8) {
    // SAFETY: a hint, that accesses nothing as far as the program can tell.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

#[cfg(target_arch = "x86_64")]
mod target {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    macro_rules! access {
        ($load:ident, $store:ident, $t:ty, $wide:ty, $load_asm:literal, $store_asm:literal) => {
            /// # Safety
            /// See the module.
            #[inline(always)]
            pub unsafe fn $load(p: *const u8) -> $t {
                let v: $wide;
                // SAFETY: one load of mapped bytes into a register.
                unsafe {
                    asm!($load_asm, v = out(reg) v, p = in(reg) p,
                        options(nostack, readonly, preserves_flags));
                }
                v as $t
            }

            /// # Safety
            /// See the module.
            #[inline(always)]
            pub unsafe fn $store(p: *mut u8, v: $t) {
                // SAFETY: one store of a register to mapped bytes.
                unsafe {
                    asm!($store_asm, v = in(reg) v, p = in(reg) p,
                        options(nostack, preserves_flags));
                }
            }
        };
    }

    access!(
        load_u16,
        store_u16,
        u16,
        u32,
        "movzx {v:e}, word ptr [{p}]",
        "mov word ptr [{p}], {v:x}"
    );
    access!(
        load_u32,
        store_u32,
        u32,
        u32,
        "mov {v:e}, dword ptr [{p}]",
        "mov dword ptr [{p}], {v:e}"
    );
    access!(
        load_u64,
        store_u64,
        u64,
        u64,
        "mov {v}, qword ptr [{p}]",
        "mov qword ptr [{p}], {v}"
    );

    /// # Safety
    /// See the module.
    #[inline(always)]
    unsafe fn load_16(p: *const u8) -> __m128i {
        let v: __m128i;
        // SAFETY: one load of mapped bytes into a register.
        unsafe {
            asm!("movdqu {v}, xmmword ptr [{p}]", v = out(xmm_reg) v, p = in(reg) p,
                options(nostack, readonly, preserves_flags));
        }
        v
    }

    /// # Safety
    /// See the module.
    #[inline(always)]
    unsafe fn store_16(p: *mut u8, v: __m128i) {
        // SAFETY: one store of a register to mapped bytes.
        unsafe {
            asm!("movdqu xmmword ptr [{p}], {v}", v = in(xmm_reg) v, p = in(reg) p,
                options(nostack, preserves_flags));
        }
    }

    /// From here on `rep movsb` beats a loop of 16-byte moves. Neither beats one of 32-byte moves, where the processor
    /// has them.
    const REP_FROM: usize = 800;

    /// Copies `len` bytes that do not overlap.
    ///
    /// # Safety
    /// See the module; both ranges are mapped, `dst` writable.
    #[inline(always)]
    pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: each branch stays within `len` bytes of both.
        unsafe {
            match len {
                0..16 => copy_small(src, dst, len),
                16..=32 => copy_two(src, dst, len),
                33..=64 => copy_four(src, dst, len),
                _ if is_x86_feature_detected!("avx") => copy_wide(src, dst, len),
                65..REP_FROM => copy_16s(src, dst, len),
                _ => copy_rep(src, dst, len),
            }
        }
    }

    /// Fewer than 16 bytes: two accesses that overlap in the middle.
    #[inline(always)]
    unsafe fn copy_small(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: each pair covers exactly `len` bytes.
        unsafe {
            if len >= 8 {
                let (head, tail) = (load_u64(src), load_u64(src.add(len - 8)));
                store_u64(dst, head);
                store_u64(dst.add(len - 8), tail);
            } else if len >= 4 {
                let (head, tail) = (load_u32(src), load_u32(src.add(len - 4)));
                store_u32(dst, head);
                store_u32(dst.add(len - 4), tail);
            } else if len >= 2 {
                let (head, tail) = (load_u16(src), load_u16(src.add(len - 2)));
                store_u16(dst, head);
                store_u16(dst.add(len - 2), tail);
            } else if len == 1 {
                super::store_u8(dst, super::load_u8(src));
            }
        }
    }

    /// 16 to 32 bytes: an access from the start, one from the end. Addresses are computed by the accesses themselves: the
    /// copy takes no register for them.
    #[inline(always)]
    unsafe fn copy_two(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: each lies within `len`, which is at least 16.
        unsafe {
            asm!(
                "movdqu {a}, xmmword ptr [{src}]",
                "movdqu {b}, xmmword ptr [{src} + {len} - 16]",
                "movdqu xmmword ptr [{dst}], {a}",
                "movdqu xmmword ptr [{dst} + {len} - 16], {b}",
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// 33 to 64 bytes: two accesses from the start, two from the end; otherwise as `copy_two`.
    #[inline(always)]
    unsafe fn copy_four(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: each lies within `len`, which is at least 32.
        unsafe {
            asm!(
                "movdqu {a}, xmmword ptr [{src}]",
                "movdqu {b}, xmmword ptr [{src} + 16]",
                "movdqu {c}, xmmword ptr [{src} + {len} - 32]",
                "movdqu {d}, xmmword ptr [{src} + {len} - 16]",
                "movdqu xmmword ptr [{dst}], {a}",
                "movdqu xmmword ptr [{dst} + 16], {b}",
                "movdqu xmmword ptr [{dst} + {len} - 32], {c}",
                "movdqu xmmword ptr [{dst} + {len} - 16], {d}",
                src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// 64 bytes: all are read before any is written.
    #[inline(always)]
    unsafe fn move_64(src: *const u8, dst: *mut u8) {
        // SAFETY: 64 bytes of both, by the caller.
        unsafe {
            let v = [
                load_16(src),
                load_16(src.add(16)),
                load_16(src.add(32)),
                load_16(src.add(48)),
            ];
            for (i, part) in v.into_iter().enumerate() {
                store_16(dst.add(16 * i), part);
            }
        }
    }

    /// At least 16 bytes: 64 or 16 at a time, the last ones overlapping.
    #[inline]
    unsafe fn copy_16s(src: *const u8, dst: *mut u8, len: usize) {
        let last = len - 16;
        let mut at = 0;
        // SAFETY: `at + 64 <= len` in the first loop, `at + 16 <= len` in the second, and
        // `last + 16 == len` after them.
        unsafe {
            while at + 64 <= len {
                move_64(src.add(at), dst.add(at));
                at += 64;
            }
            while at < last {
                store_16(dst.add(at), load_16(src.add(at)));
                at += 16;
            }
            store_16(dst.add(last), load_16(src.add(last)));
        }
    }

    /// At least 64 bytes, by a processor with AVX: 128 at a time, the last ones overlapping. `vzeroupper` changes the
    /// upper halves of all of these registers, so all are named: the caller may be compiled with AVX.
    #[inline]
    unsafe fn copy_wide(src: *const u8, dst: *mut u8, len: usize) {
        if len < 128 {
            // SAFETY: two moves from the start and two that end with the last byte, of at least 64.
            unsafe {
                asm!(
                    "vmovdqu ymm0, ymmword ptr [{src}]",
                    "vmovdqu ymm1, ymmword ptr [{src} + 32]",
                    "vmovdqu ymm2, ymmword ptr [{src} + {len} - 64]",
                    "vmovdqu ymm3, ymmword ptr [{src} + {len} - 32]",
                    "vmovdqu ymmword ptr [{dst}], ymm0",
                    "vmovdqu ymmword ptr [{dst} + 32], ymm1",
                    "vmovdqu ymmword ptr [{dst} + {len} - 64], ymm2",
                    "vmovdqu ymmword ptr [{dst} + {len} - 32], ymm3",
                    "vzeroupper",
                    src = in(reg) src, dst = in(reg) dst, len = in(reg) len,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack, preserves_flags),
                );
            }
            return;
        }
        // SAFETY: steps of 128 bytes that begin before `last`, then one there: `last + 128 == len`.
        unsafe {
            asm!(
                "jmp 3f",
                "2:",
                "vmovdqu ymm0, ymmword ptr [{src} + {at}]",
                "vmovdqu ymm1, ymmword ptr [{src} + {at} + 32]",
                "vmovdqu ymm2, ymmword ptr [{src} + {at} + 64]",
                "vmovdqu ymm3, ymmword ptr [{src} + {at} + 96]",
                "vmovdqu ymmword ptr [{dst} + {at}], ymm0",
                "vmovdqu ymmword ptr [{dst} + {at} + 32], ymm1",
                "vmovdqu ymmword ptr [{dst} + {at} + 64], ymm2",
                "vmovdqu ymmword ptr [{dst} + {at} + 96], ymm3",
                "add {at}, 128",
                "3:",
                "cmp {at}, {last}",
                "jb 2b",
                "vmovdqu ymm0, ymmword ptr [{src} + {last}]",
                "vmovdqu ymm1, ymmword ptr [{src} + {last} + 32]",
                "vmovdqu ymm2, ymmword ptr [{src} + {last} + 64]",
                "vmovdqu ymm3, ymmword ptr [{src} + {last} + 96]",
                "vmovdqu ymmword ptr [{dst} + {last}], ymm0",
                "vmovdqu ymmword ptr [{dst} + {last} + 32], ymm1",
                "vmovdqu ymmword ptr [{dst} + {last} + 64], ymm2",
                "vmovdqu ymmword ptr [{dst} + {last} + 96], ymm3",
                "vzeroupper",
                src = in(reg) src, dst = in(reg) dst, last = in(reg) len - 128, at = inout(reg) 0usize => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack),
            );
        }
    }

    #[inline]
    unsafe fn copy_rep(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: moves `len` bytes; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") src => _, inout("rdi") dst => _,
                options(nostack, preserves_flags));
        }
    }

    /// Zeros `len` bytes.
    ///
    /// # Safety
    /// See the module.
    #[inline]
    pub unsafe fn zero(dst: *mut u8, len: usize) {
        // SAFETY: stores `len` bytes; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") dst => _, in("al") 0u8,
                options(nostack, preserves_flags));
        }
    }

    /// Copies `len` bytes that may overlap.
    ///
    /// # Safety
    /// See the module; both ranges are mapped writable.
    pub unsafe fn move_bytes(src: *const u8, dst: *mut u8, len: usize) {
        // A step reads all of its bytes before it writes. Ascending (`dst` below `src`) it
        // overwrites only what was read before or in this step; descending likewise.
        let wide = len / 64 * 64;
        let words = len / 8 * 8;
        // SAFETY: each step lies within `len` bytes of both.
        unsafe {
            let word = |at: usize| store_u64(dst.add(at), load_u64(src.add(at)));
            let byte = |at: usize| super::store_u8(dst.add(at), super::load_u8(src.add(at)));
            let block = |at: usize| move_64(src.add(at), dst.add(at));
            if (dst as usize) < src as usize {
                (0..wide).step_by(64).for_each(block);
                (wide..words).step_by(8).for_each(word);
                (words..len).for_each(byte);
            } else {
                (words..len).rev().for_each(byte);
                (wide..words).step_by(8).rev().for_each(word);
                (0..wide).step_by(64).rev().for_each(block);
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod target {
    use super::{load_u8, store_u8};

    macro_rules! access {
        ($load:ident, $store:ident, $t:ty) => {
            /// # Safety
            /// See the module.
            #[inline(always)]
            pub unsafe fn $load(p: *const u8) -> $t {
                let mut bytes = [0; size_of::<$t>()];
                for (i, byte) in bytes.iter_mut().enumerate() {
                    // SAFETY: within the value's length.
                    *byte = unsafe { load_u8(p.add(i)) };
                }
                <$t>::from_le_bytes(bytes)
            }

            /// # Safety
            /// See the module.
            #[inline(always)]
            pub unsafe fn $store(p: *mut u8, v: $t) {
                for (i, byte) in v.to_le_bytes().into_iter().enumerate() {
                    // SAFETY: within the value's length.
                    unsafe { store_u8(p.add(i), byte) };
                }
            }
        };
    }

    access!(load_u16, store_u16, u16);
    access!(load_u32, store_u32, u32);
    access!(load_u64, store_u64, u64);

    /// Copies `len` bytes that do not overlap.
    ///
    /// # Safety
    /// See the module; both ranges are mapped, `dst` writable.
    pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        for at in 0..len {
            // SAFETY: within `len`.
            unsafe { store_u8(dst.add(at), load_u8(src.add(at))) };
        }
    }

    /// Zeros `len` bytes.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn zero(dst: *mut u8, len: usize) {
        for at in 0..len {
            // SAFETY: within `len`.
            unsafe { store_u8(dst.add(at), 0) };
        }
    }

    /// Copies `len` bytes that may overlap.
    ///
    /// # Safety
    /// See the module; both ranges are mapped writable.
    pub unsafe fn move_bytes(src: *const u8, dst: *mut u8, len: usize) {
        let step = |at: usize| {
            // SAFETY: within `len`; the order keeps unread bytes unwritten.
            unsafe { store_u8(dst.add(at), load_u8(src.add(at))) }
        };
        if (dst as usize) < src as usize {
            (0..len).for_each(step);
        } else {
            (0..len).rev().for_each(step);
        }
    }
}

pub use target::{copy, load_u16, load_u32, load_u64, move_bytes, store_u16, store_u32, store_u64, zero};

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes around a copy, which must stay as they are.
    const AROUND: usize = 70;

    fn copied(len: usize, from: usize, to: usize) {
        let source: Vec<u8> = (0..len + from).map(|i| (i * 7 + i / 251) as u8 | 1).collect();
        let mut target = vec![0; AROUND + to + len + AROUND];
        let begin = AROUND + to;
        // SAFETY: both ranges lie in vectors of this function.
        unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(begin), len) };
        assert_eq!(
            target[begin..][..len],
            source[from..],
            "{len} bytes from {from} to {to}"
        );
        let around = target[..begin].iter().chain(&target[begin + len..]);
        assert!(around.copied().all(|byte| byte == 0), "{len} bytes from {from} to {to}");
    }

    #[test]
    fn copies_of_all_lengths_are_whole_and_touch_nothing_else() {
        for len in (0..900).chain([1023, 1024, 4096, 4097, 16 << 10, (1 << 20) + 3]) {
            for (from, to) in [(0, 0), (1, 0), (0, 15), (31, 33), (8, 64)] {
                copied(len, from, to);
            }
        }
    }
}
