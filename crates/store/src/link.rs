//! Linking an item: one committed entry a key, whoever comes first.
//!
//! 1. Of a key that has an entry: a compare-and-swap of that word replaces it, or the newcomer has lost.
//! 2. Otherwise a free word becomes *tentative*: seen by others that link, by no reader.
//! 3. Then the whole bucket is read again. An entry of the key that is committed has won. Other tentative ones of it are
//!    aborted, and the bucket is read again.
//! 4. The word becomes committed, unless another has aborted it: then from the beginning.
//!
//! Of two that link the same key, the one whose word was written later sees the other's in step 3. So it aborts that
//! one, whose step 4 fails, or it loses: never are both committed. A process that is killed leaves a tentative entry,
//! which the next one that links this key aborts, and which goes with what the dead member answers for.

use super::chains::{Placed, Table, is_leaving, placed};
use super::core::{Core, Key};
use super::entry::{Entry, State};
use super::find::{Found, Seen};
use super::item::Header;
use cenote_base::rt::Spin;
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// How often an item is tried to be linked.
const TURNS: u32 = 2_000;

/// Which entry of the key may be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnEntry {
    /// None.
    Keep,
    /// Any, or none.
    Replace,
    /// Any.
    Present,
    /// That of the item with this sequence.
    Sequence(u64),
    /// The same, also if it has expired.
    Item(u64),
    /// None, or one of this version or one before.
    UpTo(u64),
}

impl OnEntry {
    /// Of the key's entry, where it has one that has not expired.
    pub(super) fn allows(self, found: Option<&Found>) -> bool {
        match self {
            Self::Keep => found.is_none(),
            Self::Replace => true,
            Self::Present => found.is_some(),
            Self::UpTo(version) => found.is_none_or(|found| found.header.version <= version),
            Self::Sequence(sequence) | Self::Item(sequence) => {
                found.is_some_and(|found| found.header.control.sequence() == sequence)
            }
        }
    }

    /// The same of an entry that may have expired.
    pub(super) fn allows_now(self, found: &Found) -> bool {
        let is_fresh = matches!(self, Self::Item(_)) || !found.header.has_expired(super::core::now_micros);
        self.allows(is_fresh.then_some(found))
    }
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Linked {
    /// Linked, in the place of an item that is the caller's now.
    In(Option<Found>),
    /// An entry of the key was there before.
    Before,
    /// A swap has failed of which it is not known whether it was done; if it was, this is the item that it replaced.
    Unknown(Option<Found>, Error),
}

/// What a bucket says to one that links.
enum Bucket {
    Key(Found),
    /// A free word, if there is one.
    Room(Option<Placed>),
    /// An entry changed while it was read.
    Again,
    Stale,
}

/// What the bucket says after a tentative entry stands there.
enum Settled {
    Alone,
    /// Not now: another one has won, or the bucket is about to be forwarded.
    No,
    /// Others have been aborted, or have changed.
    Again,
}

impl Core {
    /// Links an item whose bytes are in order. `version_after` writes the item's version anew, before each attempt that
    /// replaces another's.
    pub(super) fn link(
        &self,
        key: &Key<'_>,
        item: GlobalAddress,
        on_entry: OnEntry,
        mut version_after: impl FnMut(u64) -> Result<()>,
    ) -> Result<Linked> {
        let (entry, mut spin) = (Entry::committed(item, key.hash), Spin::new());
        for _ in 0..TURNS {
            let view = self.settled_view(key.hash)?;
            let bucket = view.table.bucket_of(key.hash);
            match self.survey(&view.table, bucket, key)? {
                Bucket::Key(found) => {
                    if !on_entry.allows_now(&found) {
                        return Ok(Linked::Before);
                    }
                    if let Some(linked) = self.replace(found, entry, &mut version_after)? {
                        return Ok(linked);
                    }
                }
                Bucket::Room(_) if !on_entry.allows(None) => return Ok(Linked::Before),
                Bucket::Room(Some(free)) => {
                    version_after(0)?;
                    match self.insert(&view.table, bucket, key, free, entry) {
                        Ok(true) => return Ok(Linked::In(None)),
                        Ok(false) => {}
                        Err(error) => return Ok(Linked::Unknown(None, error)),
                    }
                }
                Bucket::Room(None) => match view.table.add_line(&self.heap, bucket) {
                    Err(Error::Full(why)) => self.evict_from(&view.table, bucket, why)?,
                    added => added?,
                },
                Bucket::Again => {}
                Bucket::Stale => drop(self.refresh_from(&view)?),
            }
            spin.turn();
        }
        Err(Error::Busy("others link the same key all the time".into()))
    }

    /// Puts an entry in the place of one that was found, if that is there still. The item is pinned meanwhile:
    /// otherwise its word might come to name another key's item that lies there by then.
    fn replace(
        &self,
        found: Found,
        entry: Entry,
        version_after: &mut impl FnMut(u64) -> Result<()>,
    ) -> Result<Option<Linked>> {
        let slot = self.member.pin_own(&self.heap, found.place.entry.item())?;
        let replaced = self.replace_pinned(found, entry, version_after);
        // A pin that stays is freed with the member.
        let _ = self.member.unpin(&self.heap, slot);
        replaced
    }

    fn replace_pinned(
        &self,
        found: Found,
        entry: Entry,
        version_after: &mut impl FnMut(u64) -> Result<()>,
    ) -> Result<Option<Linked>> {
        let Placed { at, entry: before } = found.place;
        if self.heap.load(at)? != before.raw() || !self.is_still(before.item(), &found.header)? {
            return Ok(None);
        }
        version_after(found.header.version)?;
        match self.heap.swap(at, before.raw(), entry.raw()) {
            Ok(is_in) => Ok(is_in.then_some(Linked::In(Some(found)))),
            Err(error) => Ok(Some(Linked::Unknown(Some(found), error))),
        }
    }

    /// What is in the bucket, before the item is.
    fn survey(&self, table: &Table, bucket: u64, key: &Key<'_>) -> Result<Bucket> {
        let (mut free, mut end, mut lost) = (None, None, None);
        table.each_line(&self.heap, bucket, |line| {
            if is_leaving(line) {
                end = Some(Bucket::Stale);
                return Ok(false);
            }
            for placed in placed(line) {
                let placed = placed?;
                match placed.entry.state() {
                    State::Free if free.is_none() => free = Some(placed),
                    State::Committed => match self.see(placed, key) {
                        Ok(Seen::It(header)) => end = Some(Bucket::Key(Found { place: placed, header })),
                        Ok(Seen::Changed) => end = Some(Bucket::Again),
                        Ok(Seen::Other) => {}
                        // It may be another key's, and the key's own stand behind it.
                        Err(Error::Lost(why)) => lost = Some(why),
                        Err(error) => return Err(error),
                    },
                    _ => {}
                }
                if end.is_some() {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        match (end, lost) {
            (Some(end), _) => Ok(end),
            (None, Some(why)) => Err(Error::Lost(why)),
            (None, None) => Ok(Bucket::Room(free)),
        }
    }

    /// Steps 2 to 4: whether the entry is committed.
    fn insert(&self, table: &Table, bucket: u64, key: &Key<'_>, free: Placed, entry: Entry) -> Result<bool> {
        let (tentative, mut spin) = (entry.tentative(), Spin::new());
        if !self.heap.swap(free.at, free.entry.raw(), tentative.raw())? {
            return Ok(false);
        }
        for _ in 0..TURNS {
            match self.settle(table, bucket, key, free.at)? {
                Settled::Alone => return self.heap.swap(free.at, tentative.raw(), entry.raw()),
                Settled::Again => spin.turn(),
                Settled::No => break,
            }
        }
        // Or another has aborted it, or forwarded the word.
        self.heap.swap(free.at, tentative.raw(), Entry::GONE.raw())?;
        Ok(false)
    }

    /// Step 3.
    fn settle(&self, table: &Table, bucket: u64, key: &Key<'_>, own: GlobalAddress) -> Result<Settled> {
        let mut settled = Settled::Alone;
        table.each_line(&self.heap, bucket, |line| {
            if is_leaving(line) {
                settled = Settled::No;
            }
            for placed in placed(line) {
                let placed = placed?;
                if placed.at == own || matches!(settled, Settled::No) {
                    continue;
                }
                match (self.see(placed, key)?, placed.entry.state()) {
                    (Seen::Other, _) => {}
                    (Seen::It(_), State::Tentative) => {
                        self.heap.swap(placed.at, placed.entry.raw(), Entry::GONE.raw())?;
                        settled = Settled::Again;
                    }
                    (Seen::It(_), _) => settled = Settled::No,
                    (Seen::Changed, _) => settled = Settled::Again,
                }
            }
            Ok(!matches!(settled, Settled::No))
        })?;
        Ok(settled)
    }

    /// Takes an item's entry out, if it is still the same: then the item is the caller's.
    pub(super) fn unlink(&self, place: Placed) -> Result<bool> {
        assert!(
            place.entry.state() == State::Committed,
            "only what is committed is taken out"
        );
        self.heap.swap(place.at, place.entry.raw(), Entry::GONE.raw())
    }

    /// As [`unlink`](Self::unlink), of an item that was read: never another that has come to lie there. So it is pinned
    /// meanwhile, as where it is [replaced](Self::replace). Not while its entry goes to another place.
    pub(super) fn unlink_found(&self, found: &Found) -> Result<bool> {
        if found.place.entry.state() != State::Committed {
            return Ok(false);
        }
        let slot = self.member.pin_own(&self.heap, found.place.entry.item())?;
        let unlinked = self.unlink_pinned(found);
        // A pin that stays is freed with the member.
        let _ = self.member.unpin(&self.heap, slot);
        unlinked
    }

    fn unlink_pinned(&self, Found { place, header }: &Found) -> Result<bool> {
        let is_there = self.heap.load(place.at)? == place.entry.raw() && self.is_still(place.entry.item(), header)?;
        Ok(is_there && self.unlink(*place)?)
    }

    /// The header of an item that was unlinked just now: its word may have come to name another item, at the same
    /// address, since the header was read.
    pub(super) fn header_after(&self, place: Placed, before: Header) -> Header {
        match self.header_at(place.entry.item()) {
            Ok(Some(header)) => header,
            // It is not there: nothing will be freed.
            _ => before,
        }
    }

    /// Takes out whatever the key has: its item is the caller's.
    pub(super) fn unlink_key(&self, key: &Key<'_>) -> Result<Option<Found>> {
        self.unlink_key_if(key, OnEntry::Replace)
    }

    /// Takes out what the key has, where that is allowed.
    pub(super) fn unlink_key_if(&self, key: &Key<'_>, on_entry: OnEntry) -> Result<Option<Found>> {
        for _ in 0..TURNS {
            let view = self.settled_view(key.hash)?;
            match self.survey(&view.table, view.table.bucket_of(key.hash), key)? {
                Bucket::Key(found) if !on_entry.allows_now(&found) => return Ok(None),
                Bucket::Key(found) if self.unlink_found(&found)? => return Ok(Some(found)),
                Bucket::Key(_) | Bucket::Again => {}
                Bucket::Room(_) => return Ok(None),
                Bucket::Stale => drop(self.refresh_from(&view)?),
            }
        }
        Err(Error::Busy("others link the same key all the time".into()))
    }

    /// Whether an item is linked, by an entry of any state but tentative; one that is tentative is aborted.
    pub(super) fn is_linked(&self, item: GlobalAddress, header: &Header) -> Result<bool> {
        for _ in 0..TURNS {
            let view = self.settled_view(header.hash)?;
            let entries = view.table.entries(&self.heap, view.table.bucket_of(header.hash))?;
            if entries
                .iter()
                .any(|placed| matches!(placed.entry.state(), State::Forwarded | State::Frozen))
            {
                self.refresh_from(&view)?;
                continue;
            }
            let Some(placed) = entries.iter().find(|placed| placed.entry.item() == item) else {
                return Ok(false);
            };
            if placed.entry.state() == State::Committed {
                return Ok(true);
            }
            self.heap.swap(placed.at, placed.entry.raw(), Entry::GONE.raw())?;
        }
        Err(Error::Busy("the store's table changes faster than it is read".into()))
    }
}

#[cfg(test)]
mod tests;
