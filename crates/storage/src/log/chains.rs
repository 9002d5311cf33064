//! Following the chains of pages back through the log.
//!
//! A chain is followed from its newest record to its oldest, each record naming the one before. So one read of the
//! drive has to end before the next begins. Three things make that short:
//!
//! 1. Bytes come in *blocks*, which all chains that are followed together share. A record in a block that is held costs
//!    nothing. Pages that change at one time were often changed by the same groups before.
//! 2. A read brings blocks *below* the wanted one, where the chain leads: 32 KiB at first. If it leads on nearby, the
//!    next read brings twice as many, up to 1 MiB; if it leaps, half as many. So a page that changes all the time has
//!    its chain in a few large reads, and one that changes now and then costs a small read a record.
//! 3. Several threads follow chains by one [`Chains`] at a time.
//!
//! Invariants:
//! - nothing is read that was not durable when the `Chains` was made;
//! - a record is believed when the checksum of its whole group fits;
//! - at most [`BLOCKS_MAX`] blocks are held, each once.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_base::rt::{HashMap, Mutex};
use cenote_base::{Error, Lsn, PageId, RecordAddr, Result};

use super::read::OwnedRecord;
use super::ring::BLOCK;
use super::state::LogState;

/// Blocks of a chain's reads, at least and at most.
const REACH_MIN: u64 = 8;
const REACH_MAX: u64 = 256;
/// Blocks that a chain passes over at most while larger reads are worth it: a drive transfers them during one wait.
const LEAP: u64 = 32;
/// Blocks that are held: 16 MiB.
const BLOCKS_MAX: usize = 4096;
/// Bytes to read behind the start of a record: most groups are shorter.
const BEHIND: u64 = 4096;

const _: () = assert!(
    2 * (REACH_MAX as usize) < BLOCKS_MAX,
    "blocks that a read brought are held while they are looked at"
);

/// Chains that are followed together, and the blocks that they share.
pub struct Chains {
    log: Arc<LogState>,
    /// Nothing at or above this position is read.
    until: Lsn,
    blocks: Mutex<Blocks>,
}

/// Blocks of the stream by number, of which the oldest go first.
#[derive(Default)]
struct Blocks {
    held: HashMap<u64, Arc<[u8]>>,
    order: VecDeque<u64>,
}

/// How one chain has been read so far.
struct Trail {
    /// No block below this one is wanted.
    floor: u64,
    /// The lowest block of the last read, and how many blocks it brought.
    lowest: u64,
    reach: u64,
}

impl Chains {
    pub(super) fn new(log: &Arc<LogState>) -> Chains {
        Chains {
            log: Arc::clone(log),
            until: log.durable(),
            blocks: Mutex::default(),
        }
    }

    /// The records that build `page` from its state at `base_lsn` (zero: from nothing), oldest
    /// first, following the chain back from `head`. They begin with the first record that is
    /// above `base_lsn`, or with the newest that needs none before it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the chain leads to another page, forwards, or to a damaged record.
    pub fn collect(&self, page: PageId, head: RecordAddr, base_lsn: Lsn) -> Result<Vec<OwnedRecord>> {
        let (mut chain, mut at, mut group) = (Vec::new(), head, Vec::new());
        let mut trail = Trail::from(base_lsn);
        // Groups do not overlap: a record that begins before `base_lsn` ends by it.
        while !at.is_none() && at.position() >= base_lsn {
            let mut files = |at, buffer: &mut [u8]| self.read(&mut trail, at, buffer);
            let record = self.log.read_record(at, &mut group, &mut files)?;
            let found = record.get();
            if found.page != page || found.prev.position() >= at.position() {
                return Err(Error::corrupt(format!(
                    "the redo chain of page {page} leads to record {at}, which is of page {} and points to {}",
                    found.page, found.prev
                )));
            }
            at = if found.is_base { RecordAddr::NONE } else { found.prev };
            chain.push(record);
        }
        chain.reverse();
        Ok(chain)
    }

    /// Fills `buffer` from `at` on with what is durable.
    fn read(&self, trail: &mut Trail, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let length = buffer.len().min(self.until.since(at) as usize);
        let mut filled = 0;
        while filled < length {
            let at = at.raw() + filled as u64;
            let block = self.block(trail, at)?;
            let rest = block.get((at % BLOCK) as usize..).unwrap_or_default();
            let n = rest.len().min(length - filled);
            if n == 0 {
                break;
            }
            buffer[filled..filled + n].copy_from_slice(&rest[..n]);
            filled += n;
        }
        Ok(filled)
    }

    /// The block in which `at` lies; short where the durable log ends, empty where its segment is missing.
    fn block(&self, trail: &mut Trail, at: u64) -> Result<Arc<[u8]>> {
        let wanted = at / BLOCK;
        if let Some(block) = self.held(wanted) {
            return Ok(block);
        }
        let (from, to) = trail.reads(at);
        let mut found = None;
        for (start, bytes) in self.fetch(wanted, from, to)? {
            for (number, block) in (start / BLOCK..).zip(bytes.chunks(BLOCK as usize)) {
                let block: Arc<[u8]> = block.into();
                if number == wanted {
                    found = Some(Arc::clone(&block));
                }
                self.blocks.lock().hold(number, block);
            }
        }
        Ok(found.unwrap_or_default())
    }

    fn held(&self, number: u64) -> Option<Arc<[u8]>> {
        self.blocks.lock().held.get(&number).cloned()
    }

    /// Reads those of the blocks `from..to` that are not held and lie where block `near` does: positions and
    /// bytes.
    fn fetch(&self, near: u64, from: u64, to: u64) -> Result<Vec<(u64, Box<[u8]>)>> {
        let position = |block: u64| Lsn::from_raw(block * BLOCK);
        let (from, to) = self.log.medium.within(position(near), position(from), position(to));
        let blocks = from.raw() / BLOCK..to.raw() / BLOCK;
        let missing: Vec<u64> = blocks.filter(|block| self.held(*block).is_none()).collect();
        let mut runs = Vec::new();
        for run in missing.chunk_by(|a, b| a + 1 == *b) {
            let (at, end) = (position(run[0]), position(run[run.len() - 1] + 1));
            runs.push((at, end.min(self.until).raw().saturating_sub(at.raw()) as usize));
        }
        let arrived = self.log.medium.read_runs(&runs)?;
        Ok(arrived.into_iter().map(|(at, bytes)| (at.raw(), bytes)).collect())
    }
}

impl Blocks {
    fn hold(&mut self, number: u64, block: Arc<[u8]>) {
        if self.held.insert(number, block).is_none() {
            self.order.push_back(number);
        }
        if self.order.len() > BLOCKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.held.remove(&oldest);
        }
        assert!(
            self.held.len() == self.order.len() && self.order.len() <= BLOCKS_MAX,
            "each block that is held is once in the order in which they go"
        );
    }
}

impl Trail {
    fn from(base: Lsn) -> Trail {
        Trail {
            floor: base.raw() / BLOCK,
            lowest: 0,
            reach: REACH_MIN,
        }
    }

    /// The blocks to read for a record at `at`, whose block is not held.
    fn reads(&mut self, at: u64) -> (u64, u64) {
        let wanted = at / BLOCK;
        let near = wanted < self.lowest && wanted + LEAP >= self.lowest;
        self.reach = match near {
            true => 2 * self.reach,
            false => self.reach / 2,
        }
        .clamp(REACH_MIN, REACH_MAX);
        self.lowest = (wanted + 1).saturating_sub(self.reach).max(self.floor).min(wanted);
        let end = (at + BEHIND) / BLOCK + 1;
        assert!(
            self.lowest <= wanted && wanted < end,
            "a read of blocks {} to {end} leaves block {wanted} out",
            self.lowest
        );
        (self.lowest, end)
    }
}
