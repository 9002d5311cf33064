//! How the engine gives out the [numbers](crate::numbers) of spaces and objects.

use crate::catalog::state::Catalog;
use crate::engine::Engine;
use crate::error::Result;
use crate::numbers::{Batch, Batches, Cursor, Numbered, Numbers};
use cenote_base::rt::HashSet;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};

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
        assert!(
            chosen.len() <= numbers.batch() as usize,
            "a batch is no longer than one"
        );
        batches.next = (!chosen.is_empty()).then(|| Batch {
            numbers: chosen,
            lsn: self.storage.0.log().tail(),
            tx: self.txs.next(),
        });
        cursor
    }

    fn is_settled(&self, batch: &Batch) -> bool {
        let storage = &self.storage.0;
        if planted(Fault::SpaceAgain) {
            return true;
        }
        storage.control().get().checkpoint >= batch.lsn
            && !storage.log().is_held()
            && self.slots.oldest_tx(batch.tx) >= batch.tx
            && self.segments.oldest_unpurged(batch.tx) >= batch.tx
    }
}
