//! Writing: an item is filled, then linked.

use super::core::{Core, Key, now_micros};
use super::fill::Filling;
use super::find::Found;
use super::item::Header;
use super::link::{Linked, OnEntry};
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;
use cenote_base::{Error, Result};
use std::cell::RefCell;

/// How often a put begins anew, as what no get gives out was replaced by others.
const TURNS: u32 = 100;

/// How a value is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PutOptions {
    /// Whose it is; each tenant may have a bound.
    pub tenant: u32,
    /// After how long it is there no more.
    pub time_to_live: Option<Nanos>,
    /// Whether it takes the place of a value that is there. Otherwise the first writer wins.
    pub replaces: bool,
    /// How many copies of it lie in other parts, that is, on other memory nodes: up to [`REPLICAS_MAX`](super::REPLICAS_MAX). If its own
    /// part is away, one of them is read. A put that finds no room for some has fewer.
    pub replicas: u8,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is there, as this version.
    Stored(u64),
    /// Another value was there before, and stays.
    Exists,
}

impl PutOptions {
    pub(super) fn expires(&self) -> u64 {
        let micros = |ttl: Nanos| now_micros().saturating_add(ttl.raw().div_ceil(1000)).max(1);
        self.time_to_live.map_or(0, micros)
    }
}

fn put(stored: Option<Header>) -> Put {
    stored.map_or(Put::Exists, |header| Put::Stored(header.version))
}

impl Core {
    pub(super) fn put(&self, key: &[u8], value: &[u8], options: &PutOptions) -> Result<Put> {
        let key = self.key(key)?;
        let until = options.expires();
        self.put_if(&key, value, (options, until), options.on_entry()).map(put)
    }

    /// Puts, until the time that is said, where the key's entry allows it: the item's header, or `None` where it does
    /// not.
    pub(super) fn put_if(
        &self,
        key: &Key<'_>,
        value: &[u8],
        (options, until): (&PutOptions, u64),
        on_entry: OnEntry,
    ) -> Result<Option<Header>> {
        self.check_replicas(options)?;
        for _ in 0..TURNS {
            let allowed = self.or_recovered(key, || self.allowed(key, on_entry))?;
            let Some(allowed) = allowed else { return Ok(None) };
            let stored = self.or_recovered(key, || self.put_once(key, value, (options, until), allowed))?;
            // Another has replaced what no get gives out: it may be a value.
            if stored.is_some() || allowed == on_entry {
                return Ok(stored);
            }
        }
        Err(Error::Busy("others put the same key all the time".into()))
    }

    /// What may be replaced, where the key's entry allows a put now.
    fn allowed(&self, key: &Key<'_>, on_entry: OnEntry) -> Result<Option<OnEntry>> {
        if on_entry == OnEntry::Replace {
            return Ok(Some(on_entry));
        }
        let found = self.find(key)?.filter(|found| !found.header.has_expired(now_micros));
        match found {
            // No get gives it out: the first that replaces this one is the first.
            Some(found) if on_entry == OnEntry::Keep && !self.is_intact(&found, key)? => {
                Ok(Some(OnEntry::Sequence(found.header.control.sequence())))
            }
            found => Ok(on_entry.allows(found.as_ref()).then_some(on_entry)),
        }
    }

    fn put_once(
        &self,
        key: &Key<'_>,
        value: &[u8],
        (options, until): (&PutOptions, u64),
        on_entry: OnEntry,
    ) -> Result<Option<Header>> {
        let mut filling = self.begin(key, value.len() as u64, options.tenant, until)?;
        match self.fill(&mut filling, value) {
            Ok(()) => self.publish_if(filling, options, on_entry),
            Err(error) => self.abandon(filling).and(Err(error)),
        }
    }

    /// Links what was filled, or gives it back.
    pub(super) fn publish(&self, filling: Filling, options: &PutOptions) -> Result<Put> {
        self.publish_if(filling, options, options.on_entry()).map(put)
    }

    fn publish_if(&self, mut filling: Filling, options: &PutOptions, on_entry: OnEntry) -> Result<Option<Header>> {
        filling.header.set_replicas(options.replicas);
        if let Err(error) = self.check_replicas(options).and_then(|()| self.finish(&mut filling)) {
            return self.abandon(filling).and(Err(error));
        }
        let (item, bytes) = (filling.item, filling.key.clone());
        let key = self.key(&bytes)?;
        if let Err(error) = self.drop_replicas_if(&key, on_entry) {
            return self.abandon(filling).and(Err(error));
        }
        // Its replicas are copied from it: it must not be freed meanwhile, whatever takes it out.
        let pin = match options.replicas {
            0 => None,
            _ => Some(self.member.pin_own(&self.heap, item)),
        };
        let pin = match pin.transpose() {
            Ok(pin) => pin,
            Err(error) => return self.abandon(filling).and(Err(error)),
        };
        let filling = RefCell::new(filling);
        let version_after = |before: u64| {
            let (mut filling, version) = (filling.borrow_mut(), before.wrapping_add(1).max(1));
            if filling.header.version == version {
                return Ok(());
            }
            self.set_version(&mut filling, version)
        };
        let linked = self.link(&key, item, on_entry, version_after);
        let put = self.after_link(&key, filling.into_inner(), linked);
        if let Some(pin) = pin {
            // A pin that stays is freed with the member.
            let _ = self.member.unpin(&self.heap, pin);
        }
        put
    }

    fn after_link(&self, key: &Key<'_>, filling: Filling, linked: Result<Linked>) -> Result<Option<Header>> {
        match linked {
            Ok(Linked::In(replaced)) => self.stored(key, &filling, replaced).map(Some),
            Ok(Linked::Before) => self.abandon(filling).map(|()| None),
            Ok(Linked::Unknown(replaced, error)) => match self.was_linked(&filling) {
                Ok(true) => self.stored(key, &filling, replaced).map(Some),
                // Where that is not known either, it stays noted until this member ends.
                _ => Err(error),
            },
            Err(error) => self.abandon(filling).and(Err(error)),
        }
    }

    pub(super) fn stored(&self, key: &Key<'_>, filling: &Filling, replaced: Option<Found>) -> Result<Header> {
        // It is linked: what is not replicated is no reason to leave what it has replaced to none.
        // Each of these is done, whatever becomes of the others.
        let replicated = self.replicate_in_place(key, filling, replaced.as_ref());
        let forgotten = self.has_linked(filling);
        let header = &filling.header;
        let items = self.count_in(header);
        self.counters.puts.fetch_add(1, Ordering::Relaxed);
        let done = match (replaced, &items) {
            // Long ones to the pool: what comes from the space is filled with zeros first.
            (Some(found), _) => self.retire(found.place.entry.item(), found.header, found.header.chunks > 0),
            (None, Ok(items)) => self.grow_if_full(*items),
            (None, Err(_)) => Ok(()),
        };
        let all = replicated.and(forgotten).and(items.map(drop)).and(done);
        all.map(|()| *header)
    }

    fn replicate_in_place(&self, key: &Key<'_>, filling: &Filling, replaced: Option<&Found>) -> Result<()> {
        // Of one that has won after this put had taken replicas out, and before it was linked.
        if let Some(found) = replaced.filter(|found| found.header.replicas() > 0) {
            self.drop_up_to(key, &found.header)?;
        }
        match filling.header.replicas() {
            0 => Ok(()),
            _ => self.replicate(key, filling),
        }
    }

    pub(super) fn remove(&self, key: &[u8]) -> Result<bool> {
        self.remove_if(&self.key(key)?, OnEntry::Replace)
    }

    /// Takes out what the key has, where that is allowed: whether there was something that had not expired.
    pub(super) fn remove_if(&self, key: &Key<'_>, on_entry: OnEntry) -> Result<bool> {
        self.or_recovered(key, || self.drop_replicas_if(key, on_entry))?;
        let Some(found) = self.or_recovered(key, || self.unlink_key_if(key, on_entry))? else {
            return Ok(false);
        };
        // One may have come to be since.
        let dropped = self.drop_up_to(key, &found.header);
        let retired = self.retire(found.place.entry.item(), found.header, false);
        self.counters.removed.fetch_add(1, Ordering::Relaxed);
        dropped.and(retired)?;
        Ok(!found.header.has_expired(now_micros))
    }
}
