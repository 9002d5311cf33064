//! Growing: a table of four times as many buckets takes over, bucket by bucket, while all go on.
//!
//! ```text
//! former   bucket b:  │ c0 │ c1 │  0 │ c3 │ …        freeze: committed → frozen, free and tentative → FORWARDED
//!                        │    │         │            copy:   word j of b → word j of one of b, b+n, b+2n, b+3n
//! current  bucket b:  │ c0 │  0 │  0 │  0 │ …        forward: frozen → FORWARDED
//!          b+n:       │  0 │ c1 │  0 │ c3 │ …
//! ```
//!
//! 1. An entry has one place to go to, the word of its own number, which nobody else writes: entries of the current
//!    table's bucket are linked only when the former's bucket is forwarded as a whole. So any number of processes may
//!    move the same bucket, and each step is a compare-and-swap that is done once.
//! 2. The copy is written where the word is 0, that is, was never used: a word that was used is *gone* when it is free
//!    again. So one that comes late writes nothing.
//! 3. Frozen entries are read and not changed. Who wants to change one forwards its bucket first.
//! 4. Former tables are kept, a third of the current one together: a process that knows an old one finds its words
//!    forwarded, never another object.

use super::chains::{ENTRIES, Placed, Table, placed, segment_bytes, segments};
use super::core::{Core, View};
use super::entry::{Entry, State};
use super::heap::{Heap, Line, offset};
use super::item::{Header, Life};
use super::layout::{WORD, root, table};
use super::members::session_of;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;
use std::sync::Arc;

/// Buckets that each link moves while a table grows.
const MOVED_BY_LINK: u64 = 4;
/// How often a bucket's lines are forwarded, as others may have been added meanwhile.
const TURNS: usize = 100;
/// The part of its part's memory that a table may take for which values are evicted.
const WORTH: u64 = 4;
/// How long none is tried to be made that way after one that failed.
const PAUSE: Nanos = Nanos::from_secs(60);
/// Between two looks whether parts are there that were away.
const AWAY: Nanos = Nanos::from_secs(1);
/// A table grows when it has so many entries of its words, in tenths.
const FULL_TENTHS: u64 = 6;

impl Core {
    /// The tables, with the bucket of this hash in the current one.
    pub(super) fn settled_view(&self, hash: u64) -> Result<Arc<View>> {
        let view = self.view();
        if let Some((former, bucket)) = view.former(hash) {
            self.forward(&view.table, former, bucket)?;
            match self.move_some(&view, MOVED_BY_LINK) {
                // Other keys' buckets wait for a part, and this one's does not.
                Err(Error::Lost(_) | Error::Timeout(_)) => {}
                moved => drop(moved?),
            }
        }
        Ok(view)
    }

    /// Moves the next few buckets; whether all are moved.
    pub(super) fn move_some(&self, view: &View, buckets: u64) -> Result<bool> {
        let Some(former) = &view.previous else { return Ok(true) };
        let moved = offset(view.table.address, table::MOVED)?;
        for _ in 0..buckets {
            let next = self.heap.load(moved)?;
            view.has_moved(next);
            if next >= former.buckets() {
                return Ok(true);
            }
            self.forward(&view.table, former, next)?;
            if self.heap.swap(moved, next, next + 1)? {
                view.has_moved(next + 1);
            }
        }
        Ok(false)
    }

    /// Forwards a bucket of the former table as a whole.
    fn forward(&self, to: &Table, former: &Table, bucket: u64) -> Result<()> {
        for _ in 0..TURNS {
            if self.forward_lines(to, former, bucket)? {
                return Ok(());
            }
        }
        Err(Error::corrupt(format!(
            "bucket {bucket} of the table at {} is not forwarded",
            former.address
        )))
    }

    /// Forwards the lines that a bucket has; whether no word is left.
    fn forward_lines(&self, to: &Table, former: &Table, bucket: u64) -> Result<bool> {
        let mut number = 0;
        former.each_line(&self.heap, bucket, |line| {
            for (word, placed) in placed(line).enumerate() {
                let placed = placed?;
                self.forward_word(to, former, placed, (bucket, number, word))?;
            }
            self.close_line(line)?;
            number += 1;
            Ok(true)
        })?;
        // A line that was added meanwhile: it is there before its bucket's last word says that there is none.
        let last = former.entries(&self.heap, bucket)?;
        Ok(last.iter().all(|placed| placed.entry.state() == State::Forwarded))
    }

    /// No line is added behind this one from now on.
    fn close_line(&self, line: &Line) -> Result<()> {
        let at = offset(line.at, ENTRIES as u64 * WORD)?;
        match line.words[ENTRIES] {
            0 => self.heap.swap(at, 0, Entry::FORWARDED.raw()).map(drop),
            _ => Ok(()),
        }
    }

    fn forward_word(&self, to: &Table, former: &Table, placed: Placed, place: (u64, usize, usize)) -> Result<()> {
        let mut entry = placed.entry;
        loop {
            let wanted = match entry.state() {
                State::Forwarded => return Ok(()),
                State::Free | State::Tentative => Entry::FORWARDED,
                State::Committed => entry.frozen(),
                State::Frozen => {
                    self.copy_entry(to, former, Placed { entry, ..placed }, place)?;
                    Entry::FORWARDED
                }
            };
            self.heap.swap(placed.at, entry.raw(), wanted.raw())?;
            entry = Entry::from_raw(self.heap.load(placed.at)?);
        }
    }

    /// Writes a frozen entry to its place in the current table. One whose item cannot be read is no more: it is lost,
    /// if only to the process that moves it, or it is damaged.
    fn copy_entry(&self, to: &Table, former: &Table, placed: Placed, place: (u64, usize, usize)) -> Result<()> {
        let ((bucket, line, word), entry) = (place, placed.entry.plain());
        let (header, dropped) = match self.header_at(entry.item()) {
            Ok(header) => (header, &self.counters.damaged),
            Err(Error::Lost(_)) => (None, &self.counters.lost),
            Err(error) => return Err(error),
        };
        // While it is frozen its item is not freed. Afterwards another may lie there, whose place is not this one's.
        if self.heap.load(placed.at)? != placed.entry.raw() {
            return Ok(());
        }
        let is_its = |header: &Header| {
            let is_live = header.control.life() == Life::Live && entry.may_be(header.hash);
            is_live && former.bucket_of(header.hash) == bucket
        };
        let Some(header) = header.filter(is_its) else {
            dropped.fetch_add(1, Ordering::Relaxed);
            return self.close_targets(to, former, place);
        };
        let target = self.line_of((to, former), to.bucket_of(header.hash), line)?;
        self.heap
            .swap(offset(target, word as u64 * WORD)?, Entry::NEVER.raw(), entry.raw())
            .map(drop)
    }

    /// An entry is dropped: so that no process that still can read its item copies it later, when its key may have
    /// another.
    fn close_targets(&self, to: &Table, former: &Table, (bucket, line, word): (u64, usize, usize)) -> Result<()> {
        self.note_forgotten()?;
        for n in 0..to.buckets() / former.buckets() {
            let target = self.line_of((to, former), bucket + n * former.buckets(), line)?;
            self.heap.swap(
                offset(target, word as u64 * WORD)?,
                Entry::NEVER.raw(),
                Entry::GONE.raw(),
            )?;
        }
        Ok(())
    }

    /// The line with this number in a bucket of the current table, which gets it if it has fewer.
    fn line_of(&self, (to, former): (&Table, &Table), bucket: u64, number: usize) -> Result<GlobalAddress> {
        loop {
            let (mut n, mut found) = (0, None);
            to.each_line(&self.heap, bucket, |line| {
                found = (n == number).then_some(line.at);
                n += 1;
                Ok(found.is_none())
            })?;
            match found {
                Some(at) => return Ok(at),
                None => match to.add_line(&self.heap, bucket) {
                    Err(Error::Full(why)) => self.squeeze_for_line(to, former, why)?,
                    added => added?,
                },
            }
        }
    }

    /// Grows, if there are too many items for the table, and it does not grow already. Where there is no room the next
    /// sweep makes some: a put does not wait for that.
    pub(super) fn grow_if_full(&self, items: u64) -> Result<()> {
        if !is_full(&self.view().table, items) || self.lacks_table.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.grow(items) {
            // What was put is there; the table grows with a later put.
            Err(Error::Lost(_) | Error::Timeout(_)) => Ok(()),
            grown => grown,
        }
    }

    fn grow(&self, items: u64) -> Result<()> {
        let view = self.refresh()?;
        if !is_full(&view.table, items) || !self.move_some(&view, MOVED_BY_LINK)? {
            return Ok(());
        }
        if self.waits_to_grow(&view.table, items) {
            return Ok(());
        }
        match self.build(&view, |part, len| self.heap.alloc_at(part, len)) {
            Err(Error::Full(_)) => {
                self.lacks_table.store(true, Ordering::Relaxed);
                Ok(())
            }
            built => built,
        }
    }

    /// Whether a larger table waits for parts that are away: which of four buckets an entry goes to is said by its
    /// item. What is mirrored comes back. For other parts a table waits until it has four times as many entries as it
    /// should.
    fn waits_to_grow(&self, table: &Table, items: u64) -> bool {
        if !self.heap.space().is_mirrored() && is_full(table, items >> table::GROWTH_LOG2) {
            return false;
        }
        // Other threads do not wait while this one looks.
        let (now, mut until) = (rt::now(), self.table_waits_until.lock());
        if *until > now {
            return true;
        }
        *until = now + AWAY;
        drop(until);
        let waits = self.heap.has_part_away();
        if !waits {
            *self.table_waits_until.lock() = Nanos::ZERO;
        }
        waits
    }

    /// Grows by eviction, if there was no room for a larger table and it would take a small part of the memory.
    pub(super) fn grow_by_squeezing(&self) -> Result<()> {
        if !self.lacks_table.load(Ordering::Relaxed) || *self.no_table_until.lock() > rt::now() {
            return Ok(());
        }
        self.lacks_table.store(false, Ordering::Relaxed);
        let view = self.refresh()?;
        let items = self.heap.load(self.word(root::ITEMS)?)?;
        if !is_full(&view.table, items) || !self.move_some(&view, u64::MAX)? {
            return Ok(());
        }
        if self.waits_to_grow(&view.table, items) {
            self.lacks_table.store(true, Ordering::Relaxed);
            return Ok(());
        }
        if !self.is_worth(&view.table)? {
            self.pause_table();
            return Ok(());
        }
        match self.build(&view, |part, len| self.alloc_by_squeezing(len, Some(part))) {
            Err(Error::Full(_)) => {
                self.pause_table();
                Ok(())
            }
            built => built,
        }
    }

    /// No larger table for a while: neither puts nor sweeps try to make one.
    fn pause_table(&self) {
        *self.no_table_until.lock() = rt::now() + PAUSE;
        self.lacks_table.store(true, Ordering::Relaxed);
    }

    /// Whether the next table takes so little of its part that values may go for it.
    fn is_worth(&self, table: &Table) -> Result<bool> {
        let log2 = table.log2 + table::GROWTH_LOG2;
        let bytes: u64 = (0..segments(log2)).map(|n| segment_bytes(log2, n)).sum();
        Ok(bytes <= self.capacity_there()? / WORTH)
    }

    /// Bytes of the root's part. Those of another pod's are not known here: there was no room, so the memory is full, and
    /// the part has its share of what lies in all.
    pub(super) fn capacity_there(&self) -> Result<u64> {
        let part = self.at.part();
        if let Some(near) = self.heap.space().parts().find(|of| of.number() == part) {
            return Ok(near.capacity());
        }
        let used = self.heap.load(self.word(root::USED)?)? as i64;
        Ok(used.max(0) as u64 / self.heap.parts().len().max(1) as u64)
    }

    /// Makes the next table and lets it take over.
    pub(super) fn build(&self, view: &View, alloc: impl Fn(u8, u64) -> Result<GlobalAddress>) -> Result<()> {
        let log2 = view.table.log2 + table::GROWTH_LOG2;
        let building = self.word(root::BUILDING)?;
        let before = self.heap.load(building)?;
        if before != 0 && !self.is_abandoned(GlobalAddress::from_raw(before))? {
            return Ok(());
        }
        let bytes = table::HEADER + 8 * segments(log2);
        let header = alloc(self.at.part(), bytes)?;
        self.heap.store(offset(header, table::BUILDER)?, self.member.tag)?;
        if !self.heap.swap(building, before, header.raw())? {
            return self.heap.free(header);
        }
        if before != 0 {
            free_table(&self.heap, GlobalAddress::from_raw(before))?;
        }
        let made = make_table(&self.heap, header, (log2, Some(view.table.address)), alloc);
        let current = self.word(root::TABLE)?;
        let took_over = match &made {
            Ok(()) => self.heap.swap(current, view.table.address.raw(), header.raw())?,
            Err(_) => false,
        };
        self.heap.swap(building, header.raw(), 0)?;
        if !took_over {
            free_table(&self.heap, header)?;
        }
        self.refresh()?;
        made
    }

    /// Whether a table is built by a member that is gone. (If it has taken over already, nothing is left to build.)
    fn is_abandoned(&self, header: GlobalAddress) -> Result<bool> {
        if self.heap.load(self.word(root::TABLE)?)? == header.raw() {
            self.heap.swap(self.word(root::BUILDING)?, header.raw(), 0)?;
            return Ok(false);
        }
        let (part, session) = session_of(self.heap.load(offset(header, table::BUILDER)?)?);
        match self.heap.space().keeper(part) {
            Some(keeper) => Ok(!keeper.is_alive(session)?),
            None => Ok(false),
        }
    }
}

/// Whether a table should grow. (The count is of many processes, some of which were killed before they had counted: it
/// may be below zero.) However full it is: there may have been no room for a larger one for long.
fn is_full(table: &Table, items: u64) -> bool {
    let words = table.buckets() * ENTRIES as u64;
    let is_possible = items as i64 > 0 && table.log2 + table::GROWTH_LOG2 <= table::LOG2_MAX;
    is_possible && items.saturating_mul(10) >= words * FULL_TENTHS
}

/// Makes a table in an object of zeros, all of it in the part of that object: the root's, so that the store is whole as
/// long as that part is there. Segments are noted one by one, so that what a killed builder leaves is found.
pub(super) fn make_table(
    heap: &Heap,
    header: GlobalAddress,
    (log2, former): (u32, Option<GlobalAddress>),
    alloc: impl Fn(u8, u64) -> Result<GlobalAddress>,
) -> Result<()> {
    heap.store(offset(header, table::LOG2)?, u64::from(log2))?;
    heap.store(offset(header, table::PREVIOUS)?, former.unwrap_or_default().raw())?;
    for n in 0..segments(log2) {
        let segment = alloc(header.part(), segment_bytes(log2, n))?;
        heap.publish(segment, segment_bytes(log2, n))?;
        heap.store(offset(header, table::HEADER + WORD * n)?, segment.raw())?;
        heap.store(offset(header, table::SEGMENTS)?, n + 1)?;
    }
    heap.store(offset(header, table::MAGIC)?, table::MAGIC_VALUE)?;
    heap.publish(header, table::HEADER + WORD * segments(log2))
}

/// Frees a table that never took over.
pub(super) fn free_table(heap: &Heap, header: GlobalAddress) -> Result<()> {
    let made = heap.load(offset(header, table::SEGMENTS)?)?;
    for n in 0..made {
        let segment = heap.load(offset(header, table::HEADER + WORD * n)?)?;
        heap.free(GlobalAddress::from_raw(segment))?;
    }
    heap.free(header)
}

#[cfg(test)]
mod tests;
