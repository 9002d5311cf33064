//! What the lead of a group commit works with: the buffer between ring and file, and the last group that it wrote.

use cenote_base::Lsn;

use super::ring::{BLOCK, Ring, block_of};

/// The buffer between ring and file, and the last group that was written.
pub(crate) struct Flusher {
    staging: Vec<u8>,
    /// The durable bytes of the block in which the durable log ends. The lead does not take them from the ring again:
    /// the ring may have been damaged since, and must not overwrite what is durable.
    pub block: [u8; BLOCK as usize],
    /// The newest group that is durable.
    pub last_start: Lsn,
    pub last_checksum: u32,
    /// Counts flushes, for the ring's two marks.
    pub turn: u64,
    /// A mirror that fences went on without, and how many flushes were noted since.
    pub alone: (u64, u32),
}

const _: () = assert!(
    Flusher::STAGING.is_multiple_of(BLOCK as usize),
    "whole blocks are staged"
);

impl Flusher {
    pub const STAGING: usize = 1 << 20;

    pub fn new() -> Flusher {
        Flusher {
            staging: vec![0; Self::STAGING],
            block: [0; BLOCK as usize],
            last_start: Lsn::ZERO,
            last_checksum: 0,
            turn: 0,
            alone: (0, 0),
        }
    }

    /// The `length` bytes at `at`, a block's start, padded with zeros to whole blocks. Those from `from` on are new,
    /// and come from the ring.
    pub fn stage(&mut self, at: Lsn, from: Lsn, length: usize, ring: &Ring) -> &[u8] {
        assert!(
            at == block_of(at),
            "a flush is staged from a block's start on, not from {at}"
        );
        assert!(
            (1..=Self::STAGING).contains(&length),
            "{length} bytes are staged at a time"
        );
        let known = from.since(at) as usize;
        assert!(
            known < length.min(BLOCK as usize),
            "only bytes of the block in which the durable log ends are kept: {known}"
        );
        let blocks = &mut self.staging[..length.next_multiple_of(BLOCK as usize)];
        blocks[..known].copy_from_slice(&self.block[..known]);
        ring.read(at.advance(known as u64), &mut blocks[known..length]);
        blocks[length..].fill(0);
        blocks
    }

    /// Remembers the block of `to`, if it is in what was staged from `at` on.
    pub fn keep_block(&mut self, at: Lsn, to: Lsn) {
        let offset = block_of(to).since(at) as usize;
        if block_of(to) >= at && offset < Self::STAGING {
            self.block
                .copy_from_slice(&self.staging[offset..offset + BLOCK as usize]);
        }
    }
}
