//! Numbers of spaces: each given out once as long as there are new ones, then those again that nothing names any more.
//!
//! 1. The meta page holds the next number and how often the range has been gone through. In the first round numbers are new.
//! 2. From the second on they come in *batches*. A batch is chosen from numbers that no space has, and is *settled* when
//!    - the checkpoint has passed the log's end of that moment: no replay meets a former space of that number, and none of
//!      its frames is left (they hold checkpoints back);
//!    - every transaction that had a number by then is over and purged: no undo record, and no former version of a
//!      definition, leads to it;
//!    - no backup runs, which would take the new space for the former one that it has copied.
//! 3. The next batch is chosen while half of one is left. If it is not settled when it is needed, a checkpoint is taken and
//!    purge goes round once; then the definition is refused, and says why.
//!
//! A crash forgets batches: their numbers come again in the next round.

use crate::engine::Engine;
use crate::error::{Error, Result};
use cenote_base::rt;
use std::ops::Range;

/// Numbers in a batch, at most.
const BATCH: u32 = 4096;

/// The numbers of a database's spaces.
pub(crate) struct SpaceNumbers {
    range: Range<u32>,
    batches: rt::Mutex<Batches>,
}

#[derive(Default)]
struct Batches {
    /// Used from the end.
    ready: Vec<u32>,
    next: Option<Batch>,
    /// Behind a batch that was chosen before the first round ended.
    behind: Option<Cursor>,
}

/// Numbers that no space had at a moment.
struct Batch {
    numbers: Vec<u32>,
    /// The log's end then.
    lsn: u64,
    /// The next transaction's number then.
    tx: u64,
}

/// Where the meta page stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The next number to be looked at.
    pub next: u32,
    /// How often the range has been gone through.
    pub round: u32,
}

impl SpaceNumbers {
    /// Of the numbers in `range`.
    pub(crate) fn new(range: Range<u32>) -> SpaceNumbers {
        SpaceNumbers {
            range,
            batches: rt::Mutex::default(),
        }
    }

    fn first_again(&self) -> Cursor {
        Cursor {
            next: self.range.start,
            round: 1,
        }
    }

    fn batch(&self) -> u32 {
        (self.range.len() as u32 / 4).clamp(1, BATCH)
    }
}

impl Engine {
    /// A number that no space has, and nothing names. Errors: there is none at present.
    pub(crate) fn next_space(&self) -> Result<u32> {
        let mut batches = self.space_numbers.batches.lock();
        let cursor = self.space_cursor()?;
        if cursor.round == 0 && cursor.next < self.space_numbers.range.end {
            self.set_space_cursor(Cursor {
                next: cursor.next + 1,
                ..cursor
            })?;
            self.look_ahead(&mut batches, cursor);
            return Ok(cursor.next);
        }
        if cursor.round == 0 {
            let first = self.space_numbers.first_again();
            self.set_space_cursor(batches.behind.take().unwrap_or(first))?;
        }
        self.refill(&mut batches)?;
        match batches.ready.pop() {
            Some(space) => Ok(space),
            None => Err(Error::Limit(
                "no number of a former table or index can be used again yet: a transaction or snapshot that is older than its \
                 end, or a backup, is in progress; end it, and try again"
                    .into(),
            )),
        }
    }

    /// After a start: numbers that will be used again are chosen before any transaction begins.
    pub(crate) fn choose_spaces(&self) -> Result<()> {
        let mut batches = self.space_numbers.batches.lock();
        let cursor = self.space_cursor()?;
        match cursor.round {
            0 => self.look_ahead(&mut batches, cursor),
            _ => drop(self.choose_on(&mut batches)),
        }
        Ok(())
    }

    /// Where new numbers are about to end, the first batch of used ones is chosen: it is settled when it is needed.
    fn look_ahead(&self, batches: &mut Batches, cursor: Cursor) {
        let SpaceNumbers { range, .. } = &self.space_numbers;
        if batches.next.is_none() && range.end - cursor.next <= self.space_numbers.batch() {
            let first = self.space_numbers.first_again();
            batches.behind = Some(self.choose(batches, first, cursor.next));
        }
    }

    /// Has numbers ready, if any can be had. Errors: those of storage.
    fn refill(&self, batches: &mut Batches) -> Result<()> {
        if batches.next.is_none() && batches.ready.len() as u32 <= self.space_numbers.batch() / 2 {
            self.choose_on(batches)?;
        }
        let settled = batches.next.as_ref().is_some_and(|next| self.is_settled(next));
        if !settled && batches.ready.is_empty() {
            self.pool.flush_all()?;
            self.pool.checkpoint()?;
            self.vacuum()?;
        }
        if let Some(next) = batches.next.take_if(|next| self.is_settled(next)) {
            // Used from the end: the lowest first, behind those that are left.
            let mut ready: Vec<u32> = next.numbers.into_iter().rev().collect();
            ready.append(&mut batches.ready);
            batches.ready = ready;
        }
        Ok(())
    }

    /// Chooses the next batch from the cursor on. Errors: the meta page cannot be changed.
    fn choose_on(&self, batches: &mut Batches) -> Result<()> {
        let behind = self.choose(batches, self.space_cursor()?, self.space_numbers.range.end);
        self.set_space_cursor(behind)
    }

    /// Chooses a batch of numbers without a space, from `cursor` on, below `end`; where the search ended.
    fn choose(&self, batches: &mut Batches, mut cursor: Cursor, end: u32) -> Cursor {
        let SpaceNumbers { range, .. } = &self.space_numbers;
        let mut numbers = Vec::new();
        for _ in range.start..end {
            if numbers.len() == self.space_numbers.batch() as usize {
                break;
            }
            if cursor.next >= end {
                cursor = Cursor {
                    next: range.start,
                    round: cursor.round.saturating_add(1),
                };
            }
            if !self.storage.0.pages().has_space(cursor.next) && !batches.ready.contains(&cursor.next) {
                numbers.push(cursor.next);
            }
            cursor.next += 1;
        }
        batches.next = (!numbers.is_empty()).then(|| Batch {
            numbers,
            lsn: self.storage.0.log().tail().raw(),
            tx: self.txs.next(),
        });
        cursor
    }

    fn is_settled(&self, batch: &Batch) -> bool {
        let storage = &self.storage.0;
        storage.control().get().checkpoint.raw() >= batch.lsn
            && !storage.log().is_held()
            && self.slots.oldest_tx(batch.tx) >= batch.tx
            && self.oldest_unpurged(batch.tx) >= batch.tx
    }

    /// The least number of a transaction that has ended and that purge has not passed; `none` if there is none below it.
    fn oldest_unpurged(&self, none: u64) -> u64 {
        let segments = self.segments.read();
        let fronts = segments.iter().filter_map(|s| Some(s.ended.lock().front()?.tx));
        fronts.fold(none, u64::min)
    }
}
