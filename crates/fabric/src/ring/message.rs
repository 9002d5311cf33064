//! The second layer: what is asked and answered, in slots and in the chunks beside them; and words that say so.
//!
//! Each line has one writer. Bytes are there before the word that says so, by the order of stores.

use super::layout::{self, CHUNK, Layout};
use crate::Region;
use crate::rdma::call::LIMIT;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use std::sync::Arc;

/// Bytes of the longest answer, with what goes into the caller's memory. All chunks of a seat together take it.
const ANSWER_MOST: usize = 2 * LIMIT;

const _: () = assert!(ANSWER_MOST <= 64 * CHUNK);

/// A ring's region, as either side sees it.
#[derive(Debug, Clone)]
pub struct Memory {
    pub region: Arc<Region>,
    pub layout: Layout,
}

/// Where one side writes a message of a slot, and the other reads it.
#[derive(Debug, Clone, Copy)]
pub struct Half {
    at: u64,
    /// Where its bytes are if they fit, and how many do.
    inline: u64,
    room: usize,
    chunks: u64,
    /// Bytes of the longest message.
    most: usize,
}

/// Two numbers in a word: whose turn it is.
pub fn turn_of(epoch: u32, turn: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(turn)
}

/// The turn in a word, if it is of this epoch.
pub fn turn_in(word: u64, epoch: u32) -> Option<u32> {
    ((word >> 32) as u32 == epoch).then_some(word as u32)
}

/// The status of an answer, the last bytes of which go into the caller's memory.
pub fn with_filled(status: u32, filled: usize) -> u32 {
    status | (filled as u32) << STATUS_BITS
}

/// Status, and how many bytes go into the caller's memory.
pub fn filled_in(word: u32) -> (u32, usize) {
    (word & ((1 << STATUS_BITS) - 1), (word >> STATUS_BITS) as usize)
}

/// Bits of a status; above them is how many bytes of an answer go into memory.
const STATUS_BITS: u32 = 8;

const _: () = assert!(LIMIT < 1 << (32 - STATUS_BITS));

impl Memory {
    pub fn request(&self, seat: u32, slot: u32) -> Half {
        let at = self.layout.slot(seat, slot);
        Half {
            at,
            inline: at + layout::REQUEST,
            room: layout::REQUEST_ROOM,
            chunks: self.layout.request_chunks(seat),
            most: LIMIT,
        }
    }

    pub fn answer(&self, seat: u32, slot: u32) -> Half {
        let slot = self.layout.slot(seat, slot);
        Half {
            at: slot + layout::ANSWERED,
            inline: slot + layout::ANSWER,
            room: layout::ANSWER_ROOM,
            chunks: self.layout.answer_chunks(seat),
            most: ANSWER_MOST,
        }
    }

    /// A word that the other side writes.
    pub fn load(&self, off: u64) -> u64 {
        self.region.atomic_u64(off).load(Ordering::SeqCst)
    }

    /// A word that the other side reads.
    pub fn store(&self, off: u64, value: u64) {
        self.region.atomic_u64(off).store(value, Ordering::SeqCst);
    }

    /// Puts a message there, in these chunks if it needs any. It is not to be seen before its word is stored.
    pub fn write(&self, half: Half, bytes: &[u8], status: u32, mask: u64) {
        let head = self.region.span(half.at, half.inline - half.at);
        head.set_u32(layout::LEN as usize, bytes.len() as u32);
        head.set_u32(layout::STATUS as usize, status);
        head.set_u64(layout::MASK as usize, mask);
        if mask == 0 {
            return self.region.span(half.inline, half.room as u64).copy_in(0, bytes);
        }
        for (chunk, part) in bits(mask).zip(bytes.chunks(CHUNK)) {
            let at = half.chunks + chunk * CHUNK as u64;
            self.region.span(at, part.len() as u64).copy_in(0, part);
        }
    }

    /// Appends a message to `into`; its status and chunks. Its writer may write it again meanwhile: what is looked at
    /// is looked at once.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: it says of itself what cannot be.
    pub fn read(&self, half: Half, into: &mut Vec<u8>) -> Result<(u32, u64)> {
        let head = self.region.span(half.at, half.inline - half.at);
        let (len, status) = (
            head.u32(layout::LEN as usize) as usize,
            head.u32(layout::STATUS as usize),
        );
        let mask = head.u64(layout::MASK as usize);
        if len > half.most || mask.count_ones() as usize != half.chunks_for(len) {
            return Err(Error::corrupt(format!("a message of {len} bytes in chunks {mask:#x}")));
        }
        into.reserve(len);
        if mask == 0 {
            self.region.span(half.inline, half.room as u64).append_to(0, len, into);
        }
        let mut left = len;
        for chunk in bits(mask) {
            let (at, part) = (half.chunks + chunk * CHUNK as u64, left.min(CHUNK));
            self.region.span(at, CHUNK as u64).append_to(0, part, into);
            left -= part;
        }
        Ok((status, mask))
    }
}

impl Half {
    /// Where the word is that says whose turn it is.
    pub fn word(&self) -> u64 {
        self.at
    }

    /// How many chunks so many bytes need.
    pub fn chunks_for(&self, len: usize) -> usize {
        if len <= self.room { 0 } else { len.div_ceil(CHUNK) }
    }
}

fn bits(mut mask: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros().into());
        mask &= mask.wrapping_sub(1);
        bit
    })
}

/// So many of the free chunks; `None` if there are not so many.
pub fn take_chunks(free: &mut u64, count: usize) -> Option<u64> {
    if (free.count_ones() as usize) < count {
        return None;
    }
    let taken = bits(*free).take(count).fold(0, |mask, bit| mask | 1 << bit);
    *free &= !taken;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let layout = Layout::new(2, 2).expect("it can be");
        let region = Region::dram(layout.len(), layout.identity(0), Default::default()).expect("memory");
        Memory {
            region: Arc::new(region),
            layout,
        }
    }

    #[test]
    fn messages_of_all_lengths_come_as_they_went() {
        let memory = memory();
        for half in [memory.request(1, 1), memory.answer(0, 1)] {
            for len in [0, 1, 215, 216, 217, 232, 233, 4096, 4097, 100_000, LIMIT] {
                let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                let mut free = 0xaaaa_aaaa_aaaa_aaaa;
                let mask = take_chunks(&mut free, half.chunks_for(len)).expect("enough");
                memory.write(half, &bytes, 3, mask);
                let mut read = vec![9];
                assert_eq!(memory.read(half, &mut read).expect("whole"), (3, mask));
                assert!(read[1..] == bytes, "{len}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let memory = memory();
        let half = memory.request(0, 0);
        let head = memory.region.span(half.at, 64);
        for (len, mask) in [
            (0, 1),
            (LIMIT + 1, u64::MAX >> 31),
            (u32::MAX as usize, 0),
            (4097, 1),
            (216, 1),
            (217, 0),
            (8192, 7),
        ] {
            head.set_u32(layout::LEN as usize, len as u32);
            head.set_u64(layout::MASK as usize, mask);
            let mut into = Vec::new();
            assert!(
                matches!(memory.read(half, &mut into), Err(Error::Corrupt(_))),
                "{len} {mask}"
            );
            assert!(into.is_empty());
        }
    }

    #[test]
    fn chunks_are_taken_whole_or_not_at_all() {
        let mut free = 0b1011;
        assert_eq!(take_chunks(&mut free, 4), None);
        assert_eq!(take_chunks(&mut free, 2), Some(0b11));
        assert_eq!((free, take_chunks(&mut free, 0)), (0b1000, Some(0)));
    }
}
