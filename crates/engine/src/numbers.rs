//! Numbers of spaces, and of objects (tables, indexes, sequences): each given out once as long as there are new ones,
//! then those again that nothing names any more.
//!
//! 1. The meta page holds the next number and how often the range has been gone through. In the first round numbers are
//!    new.
//! 2. From the second on they come in *batches*. A batch is chosen from numbers that nothing has, and is *settled* when
//!    - the checkpoint has passed the log's end of that moment: no replay meets a former space of that number, and none
//!      of its frames is left (they hold checkpoints back);
//!    - every transaction that had a number by then is over and purged: no undo record, and no former version of a
//!      definition, leads to it;
//!    - no backup runs, which would take the new space for the former one that it has copied.
//! 3. The next batch is chosen while half of one is left. If it is not settled when it is needed, a checkpoint is taken
//!    and purge goes round once; then the definition is refused, and says why.
//! 4. A space is there from the moment of its creation. An object is named when its transaction has committed, so a
//!    settled batch is looked through once more: whatever was in progress when it was chosen is over.
//!
//! A crash forgets batches: their numbers come again in the next round.

use crate::catalog::state::Catalog;
use crate::engine::Engine;
use crate::error::{Error, Result};
use cenote_base::rt;
use cenote_base::rt::HashSet;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use std::ops::Range;

/// Numbers in a batch, at most.
const BATCH: u32 = 4096;

/// What numbers are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// Spaces: trees with their files.
    Space,
    /// Tables, primary keys, indexes and sequences.
    Object,
}

/// The numbers of a database's spaces or objects.
pub(crate) struct Numbers {
    of: Numbered,
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

/// Numbers that nothing had at a moment.
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

impl Numbers {
    /// Of the numbers in `range`.
    pub(crate) fn new(of: Numbered, range: Range<u32>) -> Numbers {
        Numbers {
            of,
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

    fn none_free(&self) -> Error {
        let of = match self.of {
            Numbered::Space => "no number of a former table or index",
            Numbered::Object => "no id of a former table, index or sequence",
        };
        Error::Limit(format!(
            "{of} can be used again yet: a transaction or snapshot that is older than its end, or a backup, is in progress; \
             end it, and try again"
        ))
    }
}

/// Numbers in use at a moment.
enum Used<'a> {
    Spaces(&'a Engine),
    Objects(HashSet<u32>),
}

impl Used<'_> {
    fn has(&self, number: u32) -> bool {
        match self {
            Used::Spaces(engine) => engine.storage.0.pages().has_space(number),
            Used::Objects(ids) => ids.contains(&number),
        }
    }
}

/// The ids of all objects of a catalog.
fn objects(catalog: &Catalog) -> HashSet<u32> {
    let mut ids: HashSet<u32> = catalog.sequences.values().into_iter().map(|s| s.id).collect();
    for table in catalog.tables.values() {
        ids.insert(table.id);
        ids.extend(table.primary_key.iter().map(|p| p.id));
        ids.extend(table.indexes.iter().map(|i| i.id));
    }
    ids
}

impl Engine {
    /// A number that no space has, and nothing names. Errors: there is none at present.
    pub(crate) fn next_space(&self) -> Result<u32> {
        self.next_number(&self.space_numbers)
    }

    /// An id for a table, index or sequence, that none has, and nothing names. Errors: there is none at present.
    pub(crate) fn next_object(&self) -> Result<u32> {
        self.next_number(&self.object_numbers)
    }

    fn next_number(&self, numbers: &Numbers) -> Result<u32> {
        let mut batches = numbers.batches.lock();
        let cursor = self.cursor(numbers.of)?;
        if cursor.round == 0 && cursor.next < numbers.range.end {
            let next = cursor.next + 1;
            self.set_cursor(numbers.of, Cursor { next, ..cursor })?;
            self.look_ahead(numbers, &mut batches, cursor);
            return Ok(cursor.next);
        }
        if cursor.round == 0 {
            let first = numbers.first_again();
            self.set_cursor(numbers.of, batches.behind.take().unwrap_or(first))?;
        }
        self.refill(numbers, &mut batches)?;
        let number = batches.ready.pop().ok_or_else(|| numbers.none_free())?;
        mark::pass(match numbers.of {
            Numbered::Space => Mark::SpaceAgain,
            Numbered::Object => Mark::ObjectAgain,
        });
        Ok(number)
    }

    /// After a start: numbers that will be used again are chosen before any transaction begins.
    pub(crate) fn choose_numbers(&self) -> Result<()> {
        for numbers in [&self.space_numbers, &self.object_numbers] {
            let mut batches = numbers.batches.lock();
            let cursor = self.cursor(numbers.of)?;
            match cursor.round {
                0 => self.look_ahead(numbers, &mut batches, cursor),
                _ => self.choose_on(numbers, &mut batches)?,
            }
        }
        Ok(())
    }

    /// Where new numbers are about to end, the first batch of used ones is chosen: it is settled when it is needed.
    fn look_ahead(&self, numbers: &Numbers, batches: &mut Batches, cursor: Cursor) {
        if batches.next.is_none() && numbers.range.end - cursor.next <= numbers.batch() {
            let first = numbers.first_again();
            batches.behind = Some(self.choose(numbers, batches, first, cursor.next));
        }
    }

    /// Has numbers ready, if any can be had. Errors: those of storage.
    fn refill(&self, numbers: &Numbers, batches: &mut Batches) -> Result<()> {
        if batches.next.is_none() && batches.ready.len() as u32 <= numbers.batch() / 2 {
            self.choose_on(numbers, batches)?;
        }
        let settled = batches.next.as_ref().is_some_and(|next| self.is_settled(next));
        if !settled && batches.ready.is_empty() {
            self.pool.flush_all()?;
            self.pool.checkpoint()?;
            self.vacuum()?;
        }
        if let Some(next) = batches.next.take_if(|next| self.is_settled(next)) {
            let used = self.used(numbers.of);
            // Used from the end: the lowest first, behind those that are left.
            let mut ready: Vec<u32> = next.numbers.into_iter().rev().filter(|n| !used.has(*n)).collect();
            ready.append(&mut batches.ready);
            batches.ready = ready;
        }
        Ok(())
    }

    /// Chooses the next batch from the cursor on. Errors: the meta page cannot be changed.
    fn choose_on(&self, numbers: &Numbers, batches: &mut Batches) -> Result<()> {
        let behind = self.choose(numbers, batches, self.cursor(numbers.of)?, numbers.range.end);
        self.set_cursor(numbers.of, behind)
    }

    fn used(&self, of: Numbered) -> Used<'_> {
        match of {
            Numbered::Space => Used::Spaces(self),
            Numbered::Object => Used::Objects(objects(&self.catalog.current())),
        }
    }

    /// Chooses a batch of numbers that nothing has, from `cursor` on, below `end`; where the search ended.
    fn choose(&self, numbers: &Numbers, batches: &mut Batches, mut cursor: Cursor, end: u32) -> Cursor {
        let (range, used) = (&numbers.range, self.used(numbers.of));
        let mut chosen = Vec::new();
        for _ in range.start..end {
            if chosen.len() == numbers.batch() as usize {
                break;
            }
            if cursor.next >= end {
                cursor = Cursor {
                    next: range.start,
                    round: cursor.round.saturating_add(1),
                };
            }
            if !used.has(cursor.next) && !batches.ready.contains(&cursor.next) {
                chosen.push(cursor.next);
            }
            cursor.next += 1;
        }
        batches.next = (!chosen.is_empty()).then(|| Batch {
            numbers: chosen,
            lsn: self.storage.0.log().tail().raw(),
            tx: self.txs.next(),
        });
        cursor
    }

    fn is_settled(&self, batch: &Batch) -> bool {
        let storage = &self.storage.0;
        if planted(Fault::SpaceAgain) {
            return true;
        }
        storage.control().get().checkpoint.raw() >= batch.lsn
            && !storage.log().is_held()
            && self.slots.oldest_tx(batch.tx) >= batch.tx
            && self.oldest_unpurged(batch.tx) >= batch.tx
    }

    /// The least number of a transaction that has ended and that purge has not passed; `none` if there is none below
    /// it.
    fn oldest_unpurged(&self, none: u64) -> u64 {
        let segments = self.segments.read();
        let fronts = segments.iter().filter_map(|s| Some(s.ended.lock().front()?.tx));
        fronts.fold(none, u64::min)
    }
}
