//! Replicas: other items with a key's value, each in another part than the first, that is, on another memory node.
//!
//! A replica is an item of the same key under another hash, so it has a bucket of its own. It is looked for only where
//! the first item, or its bucket, is lost. Replicas come after their item is linked, and go before it is unlinked or
//! replaced: so none says what its key has no longer. (Two changes of one key that run at once, of which one is killed
//! just then, may leave one that does, until its part is away too.)
//!
//! Of two puts at once each takes out, and puts its own in the place of, replicas of its version and those before
//! alone: those of the one that wins, which is of a later version, stay.

use super::chains::Placed;
use super::core::{Core, Key};
use super::entry::State;
use super::fill::{Filling, STEP};
use super::find::Found;
use super::heap::offset;
use super::item::{Control, HEADER, HITS_MAX, Header};
use super::layout::root;
use super::link::{Linked, OnEntry};
use super::put::PutOptions;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Copies of a value beside the first, at most.
pub const REPLICAS_MAX: u8 = 3;

/// The key's first item, and so many replicas, by the hash that each has.
pub(super) fn replica_keys<'a>(key: &Key<'a>, replicas: u32) -> impl Iterator<Item = Key<'a>> {
    let key = *key;
    let of = move |n: u64| key.hash ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..=u64::from(replicas)).map(move |n| Key { hash: of(n), ..key })
}

/// A replica as it was read, by its own key.
enum Replica<'a> {
    Found(Key<'a>, Found),
    /// Entries that may be its.
    Lost(Vec<Placed>),
}

/// How often a replica that is in the way is taken out for one that is linked.
const STALE_TURNS: u32 = 8;

impl Core {
    /// # Errors
    /// [`Error::Invalid`] if there are fewer parts than copies.
    pub(super) fn check_replicas(&self, options: &PutOptions) -> Result<()> {
        let replicas = options.replicas;
        if replicas == 0 {
            return Ok(());
        }
        let parts = self.heap.parts().len();
        match replicas <= REPLICAS_MAX && usize::from(replicas) < parts {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "{replicas} replicas, where the space has {parts} parts: one each, and {REPLICAS_MAX} at most"
            ))),
        }
    }

    /// Copies an item that is linked to other parts, the next ones after its own.
    pub(super) fn replicate(&self, key: &Key<'_>, first: &Filling) -> Result<()> {
        self.heap.store(self.word(root::REPLICATED)?, 1)?;
        let mut parts = self.heap.parts();
        let own = parts.iter().position(|part| *part == first.item.part()).unwrap_or(0);
        parts.rotate_left(own);
        let mut left = parts.into_iter().skip(1);
        for key in replica_keys(key, first.header.replicas()).skip(1) {
            let copied = left.by_ref().find_map(|part| self.copy_to(part, &key, first).ok());
            if copied.is_none() {
                self.counters.unreplicated.fetch_add(1, Ordering::Relaxed);
            }
        }
        // A removal that has looked for replicas before these were there is over by now, or sees them.
        if !self.is_linked(first.item, &first.header)? {
            self.drop_up_to(key, &first.header)?;
        }
        Ok(())
    }

    fn copy_to(&self, part: u8, key: &Key<'_>, first: &Filling) -> Result<()> {
        let header = &first.header;
        let mut copy = self.begin_in(Some(part), key, header.value_len, (header.tenant, header.expires))?;
        // What was copied is the item's, if it is the same still: otherwise its memory may be another's by now.
        let filled = self.copy_value(first, &copy).and_then(|()| {
            let is_its = self.is_still(first.item, header)?;
            let gone = || Error::Revoked("the value was taken out while it was copied".into());
            is_its.then_some(()).ok_or_else(gone)
        });
        copy.header
            .set_value_checksum(header.has_checksum().then_some(header.value_crc));
        copy.header.set_is_replica();
        // Nobody reads it, so the clock would take it first.
        copy.header.control = Control(copy.header.control.0).with_hits(HITS_MAX);
        let linked = filled.and_then(|()| self.finish_as(&mut copy, header.version));
        let linked = linked.and_then(|()| self.link_copy(key, &copy, first));
        self.after_copy(copy, linked)
    }

    /// Links a replica in the place of those of its version and before, and of one of a later version that is of a
    /// value before: versions of a key begin anew when it was removed.
    fn link_copy(&self, key: &Key<'_>, copy: &Filling, first: &Filling) -> Result<Linked> {
        let version = first.header.version;
        for _ in 0..STALE_TURNS {
            let linked = self.link(key, copy.item, OnEntry::UpTo(version), |_| Ok(()))?;
            if !matches!(linked, Linked::Before) {
                return Ok(linked);
            }
            let later = self.find(key)?.filter(|found| found.header.version > version);
            // In this order: the replica was there while its first item is linked still, so it is of none that is
            // later.
            if !self.is_linked(first.item, &first.header)? {
                break;
            }
            if let Some(stale) = later {
                self.drop_replica(&Replica::Found(*key, stale))?;
            }
        }
        Ok(Linked::Before)
    }

    fn copy_value(&self, from: &Filling, to: &Filling) -> Result<()> {
        let (mut step, mut done) = (vec![0; STEP], 0);
        for (piece, len) in from.pieces() {
            let piece = piece?;
            for at in (0..len).step_by(STEP) {
                let n = (len - at).min(STEP as u64) as usize;
                self.heap
                    .read_own(offset(piece, at)?, &mut step[..n], from.is_chunked())?;
                self.fill_at(to, done, &step[..n])?;
                done += n as u64;
            }
        }
        Ok(())
    }

    fn after_copy(&self, copy: Filling, linked: Result<Linked>) -> Result<()> {
        match linked {
            Ok(Linked::In(replaced)) => {
                // It is linked: each of these is done, whatever becomes of the others.
                let forgotten = self.has_linked(&copy);
                let counted = self.count(root::REPLICAS, 1);
                let counted_in = self.count_in(&copy.header).map(drop);
                let retired = replaced.map_or(Ok(()), |found| {
                    self.retire(found.place.entry.item(), found.header, false)
                });
                forgotten.and(counted).and(counted_in).and(retired)
            }
            Ok(Linked::Before) => self.abandon(copy),
            Ok(Linked::Unknown(replaced, error)) => match self.was_linked(&copy) {
                Ok(true) => self.after_copy(copy, Ok(Linked::In(replaced))),
                _ => Err(error),
            },
            Err(error) => self.abandon(copy).and(Err(error)),
        }
    }

    /// Whether there were replicas ever.
    pub(super) fn has_replicas(&self) -> Result<bool> {
        Ok(self.heap.load(self.word(root::REPLICATED)?)? != 0)
    }

    /// Takes out the replicas of what the key has, where that may be changed. Another may win at the same moment, whose
    /// replicas stay.
    pub(super) fn drop_replicas_if(&self, key: &Key<'_>, on_entry: OnEntry) -> Result<()> {
        if !self.has_replicas()? {
            return Ok(());
        }
        match self.find(key)? {
            Some(found) if on_entry.allows_now(&found) => self.drop_all(self.replicas_of(key, Some(&found))?),
            // Their first item may have been forgotten.
            None if on_entry.allows(None) && self.heap.load(self.word(root::FORGOTTEN)?)? != 0 => {
                self.drop_all(self.replicas_of(key, None)?)
            }
            _ => Ok(()),
        }
    }

    /// The replicas of an item that was found, or of none, if its key has the same after they were read: those of one
    /// that comes, or takes its place, are linked later. None if it has not.
    fn replicas_of<'k>(&self, key: &Key<'k>, first: Option<&Found>) -> Result<Vec<Replica<'k>>> {
        let most = u32::from(REPLICAS_MAX);
        let number = first.map_or(most, |first| first.header.replicas().min(most));
        let mut replicas = Vec::new();
        for key in replica_keys(key, number).skip(1) {
            replicas.extend(self.replica(&key)?);
        }
        let sequence = |found: &Found| found.header.control.sequence();
        let is_same = self.find(key)?.as_ref().map(sequence) == first.map(sequence);
        Ok(if is_same { replicas } else { Vec::new() })
    }

    fn replica<'k>(&self, key: &Key<'k>) -> Result<Option<Replica<'k>>> {
        match self.find(key) {
            Err(Error::Lost(_)) => self.lost_entries(key).map(|lost| Some(Replica::Lost(lost))),
            found => Ok(found?.map(|found| Replica::Found(*key, found))),
        }
    }

    /// Takes out the replicas of an item, and those of versions before.
    pub(super) fn drop_up_to(&self, key: &Key<'_>, first: &Header) -> Result<()> {
        for key in replica_keys(key, first.replicas().min(REPLICAS_MAX.into())).skip(1) {
            let is_later = |found: &Found| found.header.version > first.version;
            let replica = self.replica(&key)?;
            let dropped = replica.filter(|replica| !matches!(replica, Replica::Found(_, found) if is_later(found)));
            self.drop_all(dropped)?;
        }
        Ok(())
    }

    fn drop_all<'k>(&self, replicas: impl IntoIterator<Item = Replica<'k>>) -> Result<()> {
        replicas.into_iter().try_for_each(|replica| self.drop_replica(&replica))
    }

    /// It may be read in an entry that goes to another place just then, as the table grows: it is taken out there.
    fn drop_replica(&self, replica: &Replica<'_>) -> Result<()> {
        let (key, found) = match replica {
            Replica::Lost(entries) => return self.forget_lost(entries).map(drop),
            Replica::Found(key, found) => (key, found),
        };
        match self.unlink_key_if(key, OnEntry::Item(found.header.control.sequence()))? {
            Some(found) => self.retire(found.place.entry.item(), found.header, false),
            None => Ok(()),
        }
    }

    /// Takes out the replicas of an item that is linked.
    pub(super) fn drop_replicas_of(&self, item: GlobalAddress, header: &Header) -> Result<()> {
        if header.replicas() == 0 || !header.is_sane() {
            return Ok(());
        }
        let mut key = vec![0; header.key_len as usize];
        match self.heap.read(offset(item, HEADER as u64)?, &mut key) {
            // It was freed since it was looked at: its unlinker has taken them out.
            Err(Error::Invalid(_) | Error::OutOfBounds(_)) => return Ok(()),
            read => read?,
        }
        let key = Key {
            bytes: &key,
            hash: header.hash,
        };
        self.drop_up_to(&key, header)
    }

    /// Takes out so many replicas.
    pub(super) fn drop_numbered(&self, key: &Key<'_>, replicas: u32) -> Result<()> {
        for key in replica_keys(key, replicas.min(REPLICAS_MAX.into())).skip(1) {
            let unlinked = self.or_forgotten(&key, || self.unlink_key(&key))?;
            if let Some(found) = unlinked {
                self.retire(found.place.entry.item(), found.header, false)?;
            }
        }
        Ok(())
    }

    /// Does something with a replica's key. If an item that may be the replica is lost, its entry is taken out, and it
    /// is done again.
    fn or_forgotten<T>(&self, key: &Key<'_>, mut step: impl FnMut() -> Result<T>) -> Result<T> {
        match step() {
            Err(Error::Lost(_)) if self.forget_lost(&self.lost_entries(key)?)? => step(),
            answer => answer,
        }
    }

    /// Takes out entries that may be a replica's: by a few bits of the hash, so one may be another key's first item,
    /// whose replicas are looked for from here on.
    fn forget_lost(&self, lost: &[Placed]) -> Result<bool> {
        if !lost.is_empty() {
            self.note_forgotten()?;
        }
        self.forget(lost)
    }

    /// Whether one of these entries was there still, and is not now. What their items were counted as is not known, and
    /// stays counted.
    pub(super) fn forget(&self, lost: &[Placed]) -> Result<bool> {
        let mut any = false;
        for placed in lost {
            if self.unlink(*placed)? {
                self.counters.lost.fetch_add(1, Ordering::Relaxed);
                any = true;
            }
        }
        Ok(any)
    }

    /// Entries that may be the key's, whose items are lost.
    pub(super) fn lost_entries(&self, key: &Key<'_>) -> Result<Vec<Placed>> {
        let view = self.settled_view(key.hash)?;
        let mut entries = view.table.entries(&self.heap, view.table.bucket_of(key.hash))?;
        entries.retain(|placed| {
            let may_be = placed.entry.state() == State::Committed && placed.entry.may_be(key.hash);
            may_be && matches!(self.header_at(placed.entry.item()), Err(Error::Lost(_)))
        });
        Ok(entries)
    }
}

#[cfg(test)]
mod tests;
