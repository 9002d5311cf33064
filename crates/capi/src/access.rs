//! Access to objects: bytes, words, and many at once.

use super::Handle;
use super::arguments::{array, buffer, bytes, place};
use super::error::{Report, Status, answer};
use super::space::SpaceHandle;
use cenote_base::Result;
use cenote_space::{GlobalAddress, Read, Space, Write};
use core::ffi::c_void;

/// Reads or writes that are handed on together: as many as are prefetched.
const TOGETHER: usize = 16;

/// `cenote_read_op`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ReadOp {
    address: u64,
    into: *mut c_void,
    len: usize,
}

/// `cenote_write_op`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WriteOp {
    address: u64,
    from: *const c_void,
    len: usize,
}

fn at(address: u64) -> GlobalAddress {
    GlobalAddress::from_raw(address)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_read(
    space: *const SpaceHandle,
    address: u64,
    into: *mut c_void,
    len: usize,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe { answer(error, || Handle::get(space)?.read(at(address), buffer(into, len)?)) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_write(
    space: *const SpaceHandle,
    address: u64,
    from: *const c_void,
    len: usize,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe { answer(error, || Handle::get(space)?.write(at(address), bytes(from, len)?)) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_read_many(
    space: *const SpaceHandle,
    reads: *const ReadOp,
    n: usize,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let space = Handle::get(space)?;
            array(reads, n)?
                .chunks(TOGETHER)
                .try_for_each(|some| read_some(space, some))
        })
    }
}

/// Those before one that names no memory are done, as those before one that fails otherwise.
///
/// # Safety
/// As [`buffer`], for each of them.
unsafe fn read_some(space: &Space, some: &[ReadOp]) -> Result<()> {
    let none = |_| Read {
        address: GlobalAddress::NULL,
        into: &mut [],
    };
    let (mut reads, mut n): ([Read<'_>; TOGETHER], _) = (core::array::from_fn(none), 0);
    let filled = some.iter().zip(&mut reads).try_for_each(|(op, read)| {
        // SAFETY: the same duty.
        let into = unsafe { buffer(op.into, op.len)? };
        let address = at(op.address);
        *read = Read { address, into };
        n += 1;
        Ok(())
    });
    space.read_many(&mut reads[..n])?;
    filled
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_write_many(
    space: *const SpaceHandle,
    writes: *const WriteOp,
    n: usize,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let space = Handle::get(space)?;
            array(writes, n)?
                .chunks(TOGETHER)
                .try_for_each(|some| write_some(space, some))
        })
    }
}

/// # Safety
/// As [`bytes`], for each of them.
unsafe fn write_some(space: &Space, some: &[WriteOp]) -> Result<()> {
    let none = Write {
        address: GlobalAddress::NULL,
        from: &[],
    };
    let (mut writes, mut n) = ([none; TOGETHER], 0);
    let filled = some.iter().zip(&mut writes).try_for_each(|(op, write)| {
        // SAFETY: the same duty.
        let from = unsafe { bytes(op.from, op.len)? };
        let address = at(op.address);
        *write = Write { address, from };
        n += 1;
        Ok(())
    });
    space.write_many(&writes[..n])?;
    filled
}

/// A step on a word; what it answers goes to `value`, if that is wanted.
///
/// # Safety
/// `space` as [`Handle::get`] asks; `value` and `error` are null or the call's to write.
#[inline(always)]
unsafe fn word(
    space: *const SpaceHandle,
    value: *mut u64,
    error: *mut Report,
    step: impl FnOnce(&Space) -> Result<u64>,
) -> Status {
    // SAFETY: the same duty.
    unsafe {
        answer(error, || {
            let found = step(Handle::get(space)?)?;
            if !value.is_null() {
                value.write_unaligned(found);
            }
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_load(
    space: *const SpaceHandle,
    address: u64,
    value: *mut u64,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            place(value, "the word")?.write(Handle::get(space)?.load(at(address))?);
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_store(
    space: *const SpaceHandle,
    address: u64,
    value: u64,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe { answer(error, || Handle::get(space)?.store(at(address), value)) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cas(
    space: *const SpaceHandle,
    address: u64,
    expected: u64,
    desired: u64,
    found: *mut u64,
    error: *mut Report,
) -> Status {
    let step = |space: &Space| space.compare_and_swap(at(address), expected, desired);
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe { word(space, found, error, step) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_fetch_add(
    space: *const SpaceHandle,
    address: u64,
    n: u64,
    found: *mut u64,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe { word(space, found, error, |space| space.fetch_add(at(address), n)) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_size_of(
    space: *const SpaceHandle,
    address: u64,
    bytes: *mut u64,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            place(bytes, "the size")?.write(Handle::get(space)?.size_of(at(address))?);
            Ok(())
        })
    }
}
