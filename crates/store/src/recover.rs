//! Changes of a key whose first item is lost. A get reads a replica then, so a change must see the same value: the
//! replica's bytes take the lost entry's place first, by one swap, and the change is made to them.
//!
//! Where no replica can be read the key has nothing: the entry is forgotten, and what replicas are left go before it.
//! Of entries that may be the key's some are other keys' (one in sixteen of the bucket): those are forgotten with it,
//! and their replicas have no first item any more. A word in the root says that there may be such, and the next put of
//! their key takes them out, so that they are never read as what it has.

use super::chains::Placed;
use super::core::{Core, Key, now_micros};
use super::entry::Entry;
use super::fill::Filling;
use super::find::Found;
use super::layout::root;
use super::read::Attempt;
use super::replicate::{REPLICAS_MAX, replica_keys};
use cenote_base::{Error, Result};

/// How often a step is done again.
const TURNS: u32 = 20;

impl Core {
    /// Does something with a key; again, after the key was recovered or forgotten, where its item is lost.
    pub(super) fn or_recovered<T>(&self, key: &Key<'_>, mut step: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..TURNS {
            match step() {
                Err(Error::Lost(_)) if self.recover(key)? => {}
                answer => return answer,
            }
        }
        step()
    }

    /// Whether the step may go otherwise now.
    fn recover(&self, key: &Key<'_>) -> Result<bool> {
        // What is mirrored comes back: no entry goes, and no replica takes its place.
        if self.heap.space().is_mirrored() {
            return Ok(false);
        }
        if !self.has_replicas()? {
            return self.forget(&self.lost_entries(key)?);
        }
        if let Some((found, value)) = self.readable_replica(key)? {
            return self.promote(key, &found, &value);
        }
        let lost = self.lost_entries(key)?;
        if lost.is_empty() {
            return Ok(matches!(self.find(key), Ok(Some(_))));
        }
        self.note_forgotten()?;
        self.drop_numbered(key, REPLICAS_MAX.into())?;
        self.forget(&lost)
    }

    /// An entry goes whose key is not known: its replicas, if it has some or gets some meanwhile, lose their first
    /// item.
    pub(super) fn note_forgotten(&self) -> Result<()> {
        self.heap.store(self.word(root::FORGOTTEN)?, 1)
    }

    /// The first replica that a get would give out, and its bytes.
    fn readable_replica(&self, key: &Key<'_>) -> Result<Option<(Found, Vec<u8>)>> {
        for key in replica_keys(key, REPLICAS_MAX.into()).skip(1) {
            let found = match self.find(&key) {
                Err(Error::Lost(_)) => continue,
                found => found?,
            };
            let Some(found) = found.filter(|found| found.header.is_sane() && !found.header.has_expired(now_micros))
            else {
                continue;
            };
            let mut bytes = vec![0; found.header.value_len as usize];
            match self.read_found(&found, &key, &mut bytes) {
                Ok(Attempt::Done(true)) => return Ok(Some((found, bytes))),
                Ok(_) | Err(Error::Lost(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Puts a replica's bytes in the place of the lost entry, as the same version.
    fn promote(&self, key: &Key<'_>, replica: &Found, value: &[u8]) -> Result<bool> {
        // After the replica was read: a first item that can be read was linked before its replicas.
        if !matches!(self.find(key), Err(Error::Lost(_))) {
            return Ok(true);
        }
        let lost = self.lost_entries(key)?;
        let Some((first, others)) = lost.split_first() else {
            return Ok(true);
        };
        let header = &replica.header;
        let mut filling = self.begin(key, value.len() as u64, header.tenant, header.expires)?;
        // How many of them there are is not known.
        filling.header.set_replicas(REPLICAS_MAX);
        let filled = self
            .fill(&mut filling, value)
            .and_then(|()| self.finish_as(&mut filling, header.version));
        match filled {
            Ok(()) => self.link_promoted(first, others, filling),
            Err(error) => self.abandon(filling).and(Err(error)),
        }
    }

    /// While the lost item is pinned: so its entry's word names no other that came to lie there.
    fn link_promoted(&self, first: &Placed, others: &[Placed], filling: Filling) -> Result<bool> {
        let slot = match self.member.pin_own(&self.heap, first.entry.item()) {
            Ok(slot) => slot,
            Err(error) => return self.abandon(filling).and(Err(error)),
        };
        let entry = Entry::committed(filling.item, filling.header.hash);
        let note = || {
            if others.is_empty() {
                Ok(())
            } else {
                self.note_forgotten()
            }
        };
        let is_lost = matches!(self.header_at(first.entry.item()), Err(Error::Lost(_)));
        let swapped = match is_lost {
            true => note()
                .and_then(|()| self.forget(others))
                .and_then(|_| self.heap.swap(first.at, first.entry.raw(), entry.raw())),
            false => Ok(false),
        };
        // A pin that stays is freed with the member.
        let _ = self.member.unpin(&self.heap, slot);
        match swapped {
            Ok(false) => return self.abandon(filling).map(|()| true),
            Err(error) if !matches!(self.was_linked(&filling), Ok(true)) => return Err(error),
            _ => {}
        }
        self.has_linked(&filling)?;
        // It stands for the lost item, which is of its size, and is counted.
        Ok(true)
    }
}
