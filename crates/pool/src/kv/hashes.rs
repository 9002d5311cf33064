//! Hashes: a key's fields, each with a string. A hash without fields is not there.

use super::entry::{Draft, Kind, VALUE, Value};
use super::heap::offset;
use super::{Entry, Failure, Place, Result, Store, Table, check_len};
use crate::space::GlobalAddress;

impl Store {
    fn fields(&self, hash: &Entry) -> Result<Table> {
        match hash.is_hash() {
            true => Ok(Table::read(&self.heap, GlobalAddress::from_raw(hash.value()))?),
            false => Err(Failure::WrongKind),
        }
    }

    /// Fields of a hash.
    ///
    /// # Errors
    /// [`Failure::WrongKind`] if it is a string, here and below.
    pub fn fields_of(&self, hash: &Entry) -> Result<u64> {
        Ok(self.fields(hash)?.entries)
    }

    /// A field of a hash: its value is as that of a string.
    ///
    /// # Errors
    /// As [`Store::fields_of`].
    pub fn field(&self, hash: &Entry, name: &[u8]) -> Result<Option<Entry>> {
        match self.fields(hash)?.find(&self.heap, self.hash(name), name)? {
            Place::Found(entry) => Ok(Some(entry)),
            Place::Missing(_) => Ok(None),
        }
    }

    /// Tells of each field.
    ///
    /// # Errors
    /// As [`Store::fields_of`].
    pub fn each_field(&self, hash: &Entry, mut each: impl FnMut(&Entry)) -> Result<()> {
        let fields = self.fields(hash)?;
        Ok(fields.each(&self.heap, |entry| {
            each(entry);
            Ok(())
        })?)
    }

    /// Tells of the fields behind a cursor: see [`Store::scan`].
    ///
    /// # Errors
    /// As [`Store::fields_of`].
    pub fn scan_fields(&self, hash: &Entry, cursor: u32, mut each: impl FnMut(&Entry)) -> Result<u32> {
        let fields = self.fields(hash)?;
        Ok(fields.scan(&self.heap, cursor, |entry| {
            each(entry);
            Ok(())
        })?)
    }

    /// Sets a field, and makes the hash if it is not there. Whether the field is new.
    ///
    /// # Errors
    /// As [`Store::fields_of`]; [`Failure::TooLong`].
    pub fn set_field(&mut self, key: &[u8], name: &[u8], value: &[u8], now: u64) -> Result<bool> {
        check_len(value.len())?;
        self.put_field(key, name, Value::Bytes(value), now)
    }

    fn put_field(&mut self, key: &[u8], name: &[u8], value: Value<'_>, now: u64) -> Result<bool> {
        check_len(name.len())?;
        let draft = Draft {
            hash: self.hash(name),
            key: name,
            expiry: 0,
            value,
        };
        match self.find(key, now)? {
            Some(hash) => {
                let fields = self.fields(&hash)?;
                self.put_in(fields, &draft)
            }
            None => self.at_once(|store| store.make_hash(key, &draft, now)),
        }
    }

    /// The hash is whole, with its field, when it becomes the key's.
    fn make_hash(&mut self, key: &[u8], draft: &Draft<'_>, now: u64) -> Result<bool> {
        let table = Table::make(&mut self.heap)?;
        self.put_in(table, draft)?;
        let hash = self.hash(key);
        let place = self.place(hash, key, now)?;
        let value = Value::There(Kind::Hash, table.at().raw());
        let draft = Draft {
            hash,
            key,
            expiry: 0,
            value,
        };
        self.put(place, &draft)?;
        Ok(true)
    }

    fn put_in(&mut self, mut fields: Table, draft: &Draft<'_>) -> Result<bool> {
        match fields.find(&self.heap, draft.hash, draft.key)? {
            Place::Found(former) => {
                fields.replace(&mut self.heap, &former, draft, &mut self.scratch)?;
                self.free_entry(&former)?;
                Ok(false)
            }
            Place::Missing(bucket) => {
                fields.insert(&mut self.heap, draft, bucket, &mut self.scratch)?;
                fields.note_entries(&mut self.heap)?;
                Ok(true)
            }
        }
    }

    /// Removes a field, and the hash if it was the last. Whether it was there.
    ///
    /// # Errors
    /// As [`Store::fields_of`].
    pub fn remove_field(&mut self, key: &[u8], name: &[u8], now: u64) -> Result<bool> {
        let Some(hash) = self.find(key, now)? else {
            return Ok(false);
        };
        let mut fields = self.fields(&hash)?;
        let Place::Found(entry) = fields.find(&self.heap, self.hash(name), name)? else {
            return Ok(false);
        };
        if fields.entries <= 1 {
            self.remove_entry(&hash)?;
            return Ok(true);
        }
        fields.unlink(&mut self.heap, &entry)?;
        fields.note_entries(&mut self.heap)?;
        self.free_entry(&entry)?;
        Ok(true)
    }

    /// Adds to the integer in a field; one that is not there is 0. The sum.
    ///
    /// # Errors
    /// As [`Store::fields_of`]; [`Failure::NotInteger`], [`Failure::Overflow`].
    pub fn add_to_field(&mut self, key: &[u8], name: &[u8], n: i64, now: u64) -> Result<i64> {
        let found = match self.find(key, now)? {
            Some(hash) => self.field(&hash, name)?,
            None => None,
        };
        let Some(entry) = found else {
            self.put_field(key, name, Value::Integer(n), now)?;
            return Ok(n);
        };
        let sum = self.sum(&Place::Found(entry), n)?;
        match entry.kind() {
            Kind::Integer => self.heap.put(offset(entry.at, VALUE)?, sum as u64)?,
            _ => _ = self.put_field(key, name, Value::Integer(sum), now)?,
        }
        Ok(sum)
    }
}
