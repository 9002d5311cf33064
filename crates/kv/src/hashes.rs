//! Hashes: a key's fields, each with a string. A hash without fields is not there. A small one is [`Packed`], a large
//! one a [`Table`].

use super::entry::{Draft, Kind, VALUE, Value};
use super::failure::{Failure, Result, check_len};
use super::fields::Fields;
use super::heap::offset;
use super::packed::Packed;
use super::table::{Place, Table};
use super::{Entry, Store};
use cenote_base::Error;
use cenote_space::GlobalAddress;

/// The fields of a hash are strings: one that says that it is a hash itself, which might be this very one, is broken.
pub(super) fn check_field(field: &Entry) -> Result<(), Error> {
    match field.is_hash() {
        false => Ok(()),
        true => Err(Error::Corrupt(format!("a field at {} that is a hash", field.at))),
    }
}

impl Store {
    #[inline]
    fn fields(&self, hash: &Entry) -> Result<Fields> {
        match hash.is_hash() {
            true => Ok(Fields::read(&self.heap, GlobalAddress::from_raw(hash.value()))?),
            false => Err(Failure::WrongKind),
        }
    }

    /// The copy of a packed hash, in the room that is kept for it.
    #[inline]
    fn unpacked(&mut self, at: GlobalAddress, word: u64) -> Result<Packed> {
        let room = core::mem::take(&mut self.room);
        Ok(Packed::read(&self.heap, at, word, room)?)
    }

    /// Fields of a hash.
    ///
    /// # Errors
    /// [`Failure::WrongKind`] if it is a string, here and below.
    pub fn fields_of(&self, hash: &Entry) -> Result<u64> {
        Ok(match self.fields(hash)? {
            Fields::Table(table) => table.entries,
            Fields::Packed(_, word) => Packed::fields_in(word),
        })
    }

    /// A field of a hash: its value is as that of a string.
    ///
    /// # Errors
    /// As [`Store::fields_of`].
    pub fn field(&mut self, hash: &Entry, name: &[u8]) -> Result<Option<Entry>> {
        let name_hash = self.hash(name);
        match self.fields(hash)? {
            Fields::Table(table) => match table.find(&self.heap, name_hash, name)? {
                Place::Found(entry) => Ok(Some(entry)),
                Place::Missing(_) => Ok(None),
            },
            Fields::Packed(at, word) => {
                let packed = self.unpacked(at, word)?;
                let found = packed
                    .find(name_hash, name)?
                    .map(|field| packed.entry(field))
                    .transpose()?;
                self.room = packed.into_room();
                Ok(found)
            }
        }
    }

    fn each_packed(&self, at: GlobalAddress, word: u64, mut each: impl FnMut(&Entry)) -> Result<()> {
        let packed = Packed::read(&self.heap, at, word, Vec::new())?;
        for field in packed.all()? {
            each(&packed.entry(field)?);
        }
        Ok(())
    }

    /// Tells of each field: its name and its value as a string. What is told of is a copy: it costs less than
    /// [`Store::scan_fields`] where both are wanted.
    ///
    /// # Errors
    /// As [`Store::fields_of`].
    #[inline]
    pub fn each_pair(&mut self, hash: &Entry, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        match self.fields(hash)? {
            Fields::Table(fields) => {
                let (heap, mut pair) = (&self.heap, Vec::new());
                Ok(fields.each(heap, |entry| {
                    pair.clear();
                    entry.append_key(heap, &mut pair)?;
                    entry.append_value(heap, 0, entry.len(heap)?, &mut pair)?;
                    let (name, value) = pair.split_at(entry.key_len());
                    each(name, value);
                    Ok(())
                })?)
            }
            Fields::Packed(at, word) => {
                let packed = self.unpacked(at, word)?;
                packed.each(|field| match field.value() {
                    Value::Integer(number) => each(field.name(), super::decimal(number, &mut [0; 20])),
                    Value::Bytes(value) => each(field.name(), value),
                    Value::There(..) => {}
                })?;
                self.room = packed.into_room();
                Ok(())
            }
        }
    }

    /// Tells of the fields behind a cursor: see [`Store::scan`]. Of a small hash it tells at once.
    ///
    /// # Errors
    /// As [`Store::fields_of`].
    pub fn scan_fields(&self, hash: &Entry, cursor: u32, mut each: impl FnMut(&Entry)) -> Result<u32> {
        match self.fields(hash)? {
            Fields::Table(fields) => Ok(fields.scan(&self.heap, cursor, |entry| {
                each(entry);
                Ok(())
            })?),
            Fields::Packed(at, word) => self.each_packed(at, word, each).map(|()| 0),
        }
    }

    /// Sets a field, and makes the hash if it is not there. Whether the field is new.
    ///
    /// # Errors
    /// As [`Store::fields_of`]; [`Failure::TooLong`].
    pub fn set_field(&mut self, key: &[u8], name: &[u8], value: &[u8], now: u64) -> Result<bool> {
        Ok(self.set_fields(key, core::iter::once((name, value)), now)? == 1)
    }

    /// Sets fields, all or none, and makes the hash if it is not there. How many of them are new.
    ///
    /// # Errors
    /// As [`Store::set_field`].
    #[inline]
    pub fn set_fields<'v>(
        &mut self,
        key: &[u8],
        pairs: impl ExactSizeIterator<Item = (&'v [u8], &'v [u8])> + Clone,
        now: u64,
    ) -> Result<u64> {
        for (name, value) in pairs.clone() {
            check_len(name.len().max(value.len()))?;
        }
        self.put_fields(key, pairs.map(|(name, value)| (name, Value::Bytes(value))), now)
    }

    fn put_fields<'v>(
        &mut self,
        key: &[u8],
        mut pairs: impl ExactSizeIterator<Item = (&'v [u8], Value<'v>)>,
        now: u64,
    ) -> Result<u64> {
        let found = self.find(key, now)?;
        let mut packed = match &found {
            None => Packed::empty(core::mem::take(&mut self.room)),
            Some(hash) => match self.fields(hash)? {
                Fields::Packed(at, word) => self.unpacked(at, word)?,
                Fields::Table(mut table) if pairs.len() <= 1 => return self.put_all(&mut table, pairs),
                Fields::Table(mut table) => return self.at_once(|store| store.put_all(&mut table, pairs)),
            },
        };
        let mut added = 0;
        while let Some((name, value)) = pairs.next() {
            let draft = self.draft(name, value);
            match packed.set(&draft)? {
                Some(is_new) => added += u64::from(is_new),
                None => {
                    let rest = core::iter::once((name, value)).chain(pairs);
                    return self.at_once(|store| Ok(added + store.spread(key, found, &packed, rest, now)?));
                }
            }
        }
        self.put_packed(key, found, packed, now)?;
        Ok(added)
    }

    fn draft<'d>(&self, key: &'d [u8], value: Value<'d>) -> Draft<'d> {
        Draft {
            hash: self.hash(key),
            key,
            expiry: 0,
            value,
        }
    }

    /// The changed copy of a packed hash becomes the key's, in one store.
    fn put_packed(&mut self, key: &[u8], found: Option<Entry>, mut packed: Packed, now: u64) -> Result<()> {
        if packed.fields() > 0 {
            let at = packed.write(&mut self.heap)?;
            if let Err(failure) = self.put_hash(key, found, at, now) {
                self.heap.free(at)?;
                return Err(failure);
            }
            if let Some((former, bytes)) = packed.object() {
                self.heap.free_or_keep(former, bytes)?;
            }
        }
        self.room = packed.into_room();
        Ok(())
    }

    /// From now on the key's hash has the fields that lie there. What it had is not freed.
    fn put_hash(&mut self, key: &[u8], found: Option<Entry>, fields: GlobalAddress, now: u64) -> Result<()> {
        if let Some(hash) = found {
            return Ok(self.heap.put(offset(hash.at, VALUE)?, fields.raw())?);
        }
        let draft = self.draft(key, Value::There(Kind::Hash, fields.raw()));
        let place = self.place(draft.hash, key, now)?;
        self.put(place, &draft)
    }

    /// A packed hash becomes a table, with more fields. How many of those are new. Part of a step.
    fn spread<'v>(
        &mut self,
        key: &[u8],
        found: Option<Entry>,
        packed: &Packed,
        more: impl Iterator<Item = (&'v [u8], Value<'v>)>,
        now: u64,
    ) -> Result<u64> {
        let mut table = Table::make(&mut self.heap)?;
        let fields = packed.all()?;
        self.put_all(&mut table, fields.iter().map(|field| (field.name(), field.value())))?;
        let added = self.put_all(&mut table, more)?;
        self.put_hash(key, found, table.at(), now)?;
        if let Some((former, _)) = packed.object() {
            self.heap.free(former)?;
        }
        Ok(added)
    }

    fn put_all<'v>(&mut self, table: &mut Table, pairs: impl Iterator<Item = (&'v [u8], Value<'v>)>) -> Result<u64> {
        let mut added = 0;
        for (name, value) in pairs {
            added += u64::from(self.put_in(table, &self.draft(name, value))?);
        }
        self.trim();
        Ok(added)
    }

    fn put_in(&mut self, fields: &mut Table, draft: &Draft<'_>) -> Result<bool> {
        match fields.find(&self.heap, draft.hash, draft.key)? {
            Place::Found(former) => {
                check_field(&former)?;
                fields.replace(&mut self.heap, &former, draft, &mut self.scratch)?;
                self.free_replaced(&former)?;
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
        match self.fields(&hash)? {
            Fields::Table(table) => self.remove_from_table(&hash, table, name),
            Fields::Packed(at, word) => {
                let mut packed = self.unpacked(at, word)?;
                let is_there = packed.remove(self.hash(name), name)?;
                match packed.fields() {
                    0 => self.remove_entry(&hash)?,
                    _ if is_there => self.put_packed(key, Some(hash), packed, now)?,
                    _ => self.room = packed.into_room(),
                }
                Ok(is_there)
            }
        }
    }

    fn remove_from_table(&mut self, hash: &Entry, mut fields: Table, name: &[u8]) -> Result<bool> {
        let Place::Found(entry) = fields.find(&self.heap, self.hash(name), name)? else {
            return Ok(false);
        };
        check_field(&entry)?;
        if fields.entries <= 1 {
            self.remove_entry(hash)?;
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
            self.put_fields(key, core::iter::once((name, Value::Integer(n))), now)?;
            return Ok(n);
        };
        let sum = self.sum(&Place::Found(entry), n)?;
        match entry.kind() {
            Kind::Integer => self.heap.put(offset(entry.at, VALUE)?, sum as u64)?,
            _ => _ = self.put_fields(key, core::iter::once((name, Value::Integer(sum))), now)?,
        }
        Ok(sum)
    }
}
