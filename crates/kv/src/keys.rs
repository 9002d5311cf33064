//! Keys, whatever they hold: removing, renaming, expiry, finding all of them.

use super::entry::{Draft, EXPIRY, Kind, Value};
use super::heap::offset;
use super::{Entry, Failure, Result, Store, TABLE, Table};
use cenote_base::rt;

/// Buckets that are looked at for a key by chance before they are looked at one after the other.
const TRIES: usize = 64;

impl Store {
    /// Removes a key. Whether it was there.
    ///
    /// # Errors
    /// Those of memory.
    pub fn remove(&mut self, key: &[u8], now: u64) -> Result<bool> {
        match self.find(key, now)? {
            Some(entry) => self.remove_entry(&entry).map(|()| true),
            None => Ok(false),
        }
    }

    /// Sets when a key expires, in milliseconds since 1970; 0: never. Whether it is there. (A time that has passed
    /// removes it when it is met.)
    ///
    /// # Errors
    /// Those of memory.
    pub fn expire(&mut self, key: &[u8], at: u64, now: u64) -> Result<bool> {
        let Some(entry) = self.find(key, now)? else {
            return Ok(false);
        };
        self.heap.put(offset(entry.at, EXPIRY)?, at)?;
        self.count_expiry(entry.expiry() != 0, at != 0);
        Ok(true)
    }

    /// Gives what a key holds another name, with its expiry; what had that name is removed.
    ///
    /// # Errors
    /// [`Failure::Missing`].
    pub fn rename(&mut self, from: &[u8], to: &[u8], now: u64) -> Result<()> {
        let entry = self.find(from, now)?.ok_or(Failure::Missing)?;
        match from == to {
            true => Ok(()),
            false => self.at_once(|store| store.move_entry(&entry, to, now)),
        }
    }

    fn move_entry(&mut self, entry: &Entry, to: &[u8], now: u64) -> Result<()> {
        let mut bytes = Vec::new();
        let value = match entry.kind() {
            Kind::Inline => {
                self.append_value(entry, 0, self.len_of(entry)?, &mut bytes)?;
                Value::Bytes(&bytes)
            }
            kind => Value::There(kind, entry.value()),
        };
        self.table.unlink(&mut self.heap, entry)?;
        self.count_expiry(entry.expiry() != 0, false);
        // What it refers to goes on.
        self.heap.free(entry.at)?;
        let hash = self.hash(to);
        let place = self.place(hash, to, now)?;
        let draft = Draft {
            hash,
            key: to,
            expiry: entry.expiry(),
            value,
        };
        self.put(place, &draft)
    }

    /// Appends the key of an entry, or the name of a field.
    ///
    /// # Errors
    /// Those of memory.
    pub fn append_key(&self, entry: &Entry, out: &mut Vec<u8>) -> Result<()> {
        Ok(entry.append_key(&self.heap, out)?)
    }

    /// Tells of the keys behind a cursor, a bucket's: the next cursor, 0 at the end. From 0 to 0, each key that is
    /// there all the time is told of at least once, however many come and go meanwhile. Of those that have expired
    /// nothing is told.
    ///
    /// # Errors
    /// Those of memory.
    pub fn scan(&self, cursor: u32, now: u64, mut each: impl FnMut(&Entry)) -> Result<u32> {
        Ok(self.table.scan(&self.heap, cursor, |entry| {
            if !entry.is_expired(now) {
                each(entry);
            }
            Ok(())
        })?)
    }

    /// Some key, if there is one.
    ///
    /// # Errors
    /// Those of memory.
    pub fn any(&self, now: u64) -> Result<Option<Entry>> {
        let buckets = self.table.buckets();
        let by_chance = (0..TRIES).map(|_| rt::random() % buckets);
        for index in by_chance.chain(0..buckets) {
            let mut there = Vec::new();
            self.table.each_in(&self.heap, index, |entry| {
                if !entry.is_expired(now) {
                    there.push(*entry);
                }
                Ok(())
            })?;
            if !there.is_empty() {
                return Ok(Some(there[rt::random() as usize % there.len()]));
            }
        }
        Ok(None)
    }

    /// Removes all keys: at once, in one store; then their memory is freed. The empty table is the one in reserve: so
    /// it needs no memory.
    ///
    /// # Errors
    /// Those of memory. [`Full`](cenote_base::Error::Full) is among them only if there was no room for a reserve since
    /// it was used last.
    pub fn clear(&mut self) -> Result<()> {
        let empty = match self.reserve.take() {
            Some(empty) => empty.adopted(&mut self.heap)?,
            None => Table::make(&mut self.heap)?,
        };
        self.heap.put(offset(self.root, TABLE)?, empty.at().raw())?;
        let former = core::mem::replace(&mut self.table, empty);
        (self.expiring, self.swept) = (0, 0);
        self.free_table(&former, true)?;
        self.refill()
    }

    /// Removes keys that have expired, in so many buckets behind those that were looked at last. How many they were.
    ///
    /// # Errors
    /// Those of memory.
    pub fn sweep(&mut self, now: u64, buckets: u64) -> Result<u64> {
        let mut removed = 0;
        for _ in 0..buckets.min(self.table.buckets()) {
            if self.expiring == 0 {
                break;
            }
            self.swept = (self.swept + 1) % self.table.buckets();
            while let Some(entry) = self.expired_in(self.swept, now)? {
                self.remove_entry(&entry)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn expired_in(&self, index: u64, now: u64) -> Result<Option<Entry>> {
        let mut found = None;
        self.table.each_in(&self.heap, index, |entry| {
            if entry.is_expired(now) {
                found = Some(*entry);
            }
            Ok(())
        })?;
        Ok(found)
    }
}
