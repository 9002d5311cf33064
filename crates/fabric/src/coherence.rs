//! The vocabulary of software coherence, explicit at each use (design, section 4).
//!
//! | function | instructions (x86-64) | for |
//! |---|---|---|
//! | [`write_back`] | clwb, else clflushopt, else clflush, per line | what a later [`fence`] completes |
//! | [`fence`] | sfence | write-backs before it are in memory |
//! | [`order`] | sfence | likewise; a mirror on another machine has them before later ones, and is not waited for |
//! | [`flush`] | write_back, fence | what must survive the loss of the host, or be seen by another |
//! | [`invalidate`] | clflushopt per line, **mfence** | loads after it come from memory; sfence would not order them |
//! | [`load_uncached`] | clflushopt, mfence, load | a flag that another host sets |
//! | [`store_uncached`] | movnti, sfence | a flag that another host reads |
//!
//! A user program cannot discard a dirty line, only write it back: invalidating one is a hazard. Ranges are given as
//! (region, offset, length) and widened to whole lines. Each call is told to the memory's
//! [`FlushSink`](crate::FlushSink), if it has one; asking is one load beside instructions that cost a hundred times as
//! much. A simulated device carries them out instead of the processor; each is a preemption point then. When the region
//! has a [mirror](crate::mirror), what is written back is copied there too.

pub use crate::instructions::WriteBack;

use crate::memory::RegionMemory;
use crate::span::Span;
use crate::{LINE, instructions};
use cenote_base::rt::{self, memory::Device};
use cenote_base::{Error, Result};

/// How this processor writes lines back.
pub fn write_back_kind() -> WriteBack {
    instructions::write_back_kind()
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
    each_line(memory, off, len, instructions::write_back_lines);
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
    fence_here(memory);
}

/// A [`fence`] after which nothing is promised to anybody outside of this memory: a file, a client. A mirror on another
/// machine gets what was written back before it no later than what is after, but is not waited for. The next [`fence`]
/// waits for both.
#[inline]
pub fn order(memory: &RegionMemory) {
    if let Some(mirror) = memory.mirror() {
        mirror.order();
    }
    fence_here(memory);
}

fn fence_here(memory: &RegionMemory) {
    if let Some(device) = simulated(memory) {
        return device.fence();
    }
    instructions::store_fence();
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

/// As [`flush`], with an [`order`].
#[inline]
pub fn flush_in_order(memory: &RegionMemory, off: u64, len: usize) {
    write_back(memory, off, len);
    order(memory);
}

/// Drops the lines of a range from this host's cache: later loads come from memory. No line of it
/// may be dirty.
pub fn invalidate(memory: &RegionMemory, off: u64, len: usize) {
    if let Some(device) = simulated(memory) {
        return device.invalidate(off, len as u64);
    }
    each_line(memory, off, len, instructions::drop_lines);
    instructions::full_fence();
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
        instructions::store_past_cache(span, value);
        instructions::store_fence();
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

/// Calls `f` with the lines of a range.
#[inline]
fn each_line(memory: &RegionMemory, off: u64, len: usize, f: impl FnOnce(Span<'_>)) {
    if len == 0 {
        return;
    }
    let first = off / LINE as u64 * LINE as u64;
    let end = (off + len as u64).next_multiple_of(LINE as u64);
    f(memory.span(first, end - first));
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
