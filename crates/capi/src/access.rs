//! Access to objects: bytes, words, and many at once.

use super::arguments::{ArrayArg, BufferArg, BytesArg, OutArg};
use super::error::{ReportArg, Status, answer};
use super::handle::HandleArg;
use cenote_base::Result;
use cenote_space::{GlobalAddress, Read, Space, Write};

/// Reads or writes that are handed on together: as many as are prefetched.
const TOGETHER: usize = 16;

/// `cenote_read_op`.
#[repr(C)]
pub struct ReadOp<'a> {
    address: u64,
    into: BufferArg<'a>,
    len: usize,
}

/// `cenote_write_op`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WriteOp<'a> {
    address: u64,
    from: BytesArg<'a>,
    len: usize,
}

fn at(address: u64) -> GlobalAddress {
    GlobalAddress::from_raw(address)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_read(
    space: HandleArg<'_, Space>,
    address: u64,
    into: BufferArg<'_>,
    len: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || space.get()?.read(at(address), into.bytes(len)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_write(
    space: HandleArg<'_, Space>,
    address: u64,
    from: BytesArg<'_>,
    len: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || space.get()?.write(at(address), from.bytes(len)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_read_many(
    space: HandleArg<'_, Space>,
    reads: ArrayArg<'_, ReadOp<'_>>,
    n: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let (space, mut reads) = (space.get()?, reads.elements(n)?);
        while reads.len() > 0 {
            read_some(space, &mut reads)?;
        }
        Ok(())
    })
}

/// The next [`TOGETHER`] reads. If one names no memory, those before it are done, as with any other failure.
fn read_some<'a>(space: &Space, ops: &mut impl Iterator<Item = ReadOp<'a>>) -> Result<()> {
    let none = |_| Read {
        address: GlobalAddress::NULL,
        into: &mut [],
    };
    let (mut reads, mut n): ([Read<'_>; TOGETHER], _) = (core::array::from_fn(none), 0);
    let filled = ops.take(TOGETHER).zip(&mut reads).try_for_each(|(op, read)| {
        let into = op.into.bytes(op.len)?;
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
pub extern "C" fn cenote_write_many(
    space: HandleArg<'_, Space>,
    writes: ArrayArg<'_, WriteOp<'_>>,
    n: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let (space, mut writes) = (space.get()?, writes.elements(n)?);
        while writes.len() > 0 {
            write_some(space, &mut writes)?;
        }
        Ok(())
    })
}

/// The next [`TOGETHER`] writes, as [`read_some`].
fn write_some<'a>(space: &Space, ops: &mut impl Iterator<Item = WriteOp<'a>>) -> Result<()> {
    let none = Write {
        address: GlobalAddress::NULL,
        from: &[],
    };
    let (mut writes, mut n) = ([none; TOGETHER], 0);
    let filled = ops.take(TOGETHER).zip(&mut writes).try_for_each(|(op, write)| {
        let from = op.from.bytes(op.len)?;
        let address = at(op.address);
        *write = Write { address, from };
        n += 1;
        Ok(())
    });
    space.write_many(&writes[..n])?;
    filled
}

/// A step on a word; its result goes to `value`, if the caller wants it.
#[inline(always)]
fn word(
    space: HandleArg<'_, Space>,
    value: OutArg<'_, u64>,
    error: ReportArg<'_>,
    step: impl FnOnce(&Space) -> Result<u64>,
) -> Status {
    answer(error, || {
        value.write_if_wanted(step(space.get()?)?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_load(
    space: HandleArg<'_, Space>,
    address: u64,
    value: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        value.place("the word")?.write(space.get()?.load(at(address))?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store(space: HandleArg<'_, Space>, address: u64, value: u64, error: ReportArg<'_>) -> Status {
    answer(error, || space.get()?.store(at(address), value))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_cas(
    space: HandleArg<'_, Space>,
    address: u64,
    expected: u64,
    desired: u64,
    found: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    let step = |space: &Space| space.compare_and_swap(at(address), expected, desired);
    word(space, found, error, step)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_fetch_add(
    space: HandleArg<'_, Space>,
    address: u64,
    n: u64,
    found: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    word(space, found, error, |space| space.fetch_add(at(address), n))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_size_of(
    space: HandleArg<'_, Space>,
    address: u64,
    bytes: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        bytes.place("the size")?.write(space.get()?.size_of(at(address))?);
        Ok(())
    })
}
