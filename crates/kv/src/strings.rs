//! Strings, and integers among them.

use super::entry::{Draft, Kind, LARGE_AT, VALUE, Value, integer, large};
use super::heap::offset;
use super::{Entry, Failure, Keep, Place, Result, STRING_MAX, Store, check_len};
use cenote_space::GlobalAddress;

/// Room that a string gets beyond what it needs when it grows, at most.
const GROWTH_MAX: usize = 1 << 20;

impl Store {
    /// Bytes of a string.
    ///
    /// # Errors
    /// [`Failure::WrongKind`] if it is a hash.
    #[inline]
    pub fn len_of(&self, entry: &Entry) -> Result<usize> {
        match entry.is_hash() {
            true => Err(Failure::WrongKind),
            false => Ok(entry.len(&self.heap)?),
        }
    }

    /// Appends `len` bytes of a string from `from` on: no more than [`Store::len_of`] says.
    ///
    /// # Errors
    /// As [`Store::len_of`].
    #[inline]
    pub fn append_value(&self, entry: &Entry, from: usize, len: usize, out: &mut Vec<u8>) -> Result<()> {
        match entry.is_hash() {
            true => Err(Failure::WrongKind),
            false => Ok(entry.append_value(&self.heap, from, len, out)?),
        }
    }

    /// Sets a key to a string, whatever it was.
    ///
    /// # Errors
    /// [`Failure::TooLong`].
    #[inline]
    pub fn set(&mut self, key: &[u8], value: &[u8], keep: Keep, now: u64) -> Result<()> {
        check_len(value.len())?;
        let hash = self.hash(key);
        let place = self.place(hash, key, now)?;
        let expiry = kept(&place, keep);
        let value = Value::Bytes(value);
        self.put(
            place,
            &Draft {
                hash,
                key,
                expiry,
                value,
            },
        )
    }

    /// Adds to the integer that a key holds; one that is not there is 0. The sum.
    ///
    /// # Errors
    /// [`Failure::WrongKind`], [`Failure::NotInteger`], [`Failure::Overflow`].
    pub fn add(&mut self, key: &[u8], n: i64, now: u64) -> Result<i64> {
        let hash = self.hash(key);
        let place = self.place(hash, key, now)?;
        let sum = self.sum(&place, n)?;
        if let Place::Found(entry) = &place
            && entry.kind() == Kind::Integer
        {
            self.heap.put(offset(entry.at, VALUE)?, sum as u64)?;
            return Ok(sum);
        }
        let draft = Draft {
            hash,
            key,
            expiry: kept(&place, Keep::Expiry),
            value: Value::Integer(sum),
        };
        self.put(place, &draft)?;
        Ok(sum)
    }

    /// What a place holds, and `n` more.
    pub(super) fn sum(&mut self, place: &Place, n: i64) -> Result<i64> {
        let held = match place {
            Place::Found(entry) => self.integer_of(entry)?,
            Place::Missing(_) => 0,
        };
        held.checked_add(n).ok_or(Failure::Overflow)
    }

    fn integer_of(&self, entry: &Entry) -> Result<i64> {
        if entry.kind() == Kind::Integer {
            return Ok(entry.value() as i64);
        }
        let len = self.len_of(entry)?;
        if len > 20 {
            return Err(Failure::NotInteger);
        }
        let mut text = Vec::with_capacity(20);
        self.append_value(entry, 0, len, &mut text)?;
        integer(&text).ok_or(Failure::NotInteger)
    }

    /// Appends to a string; one that is not there is empty. Its length from now on.
    ///
    /// # Errors
    /// [`Failure::WrongKind`], [`Failure::TooLong`].
    pub fn append(&mut self, key: &[u8], more: &[u8], now: u64) -> Result<usize> {
        let Some(entry) = self.find(key, now)? else {
            self.set(key, more, Keep::At(0), now)?;
            return Ok(more.len());
        };
        let len = self.len_of(&entry)?;
        check_len(len + more.len())?;
        match entry.kind() {
            Kind::Large => self.append_large(&entry, len, more)?,
            _ => {
                let mut whole = Vec::with_capacity(len + more.len());
                self.append_value(&entry, 0, len, &mut whole)?;
                whole.extend_from_slice(more);
                self.set(key, &whole, Keep::Expiry, now)?;
            }
        }
        Ok(len + more.len())
    }

    /// Behind the bytes that count, if there is room: then the length says that they do. Else in another object with
    /// more room.
    fn append_large(&mut self, entry: &Entry, len: usize, more: &[u8]) -> Result<()> {
        let value = GlobalAddress::from_raw(entry.value());
        let whole = len + more.len();
        if LARGE_AT + whole as u64 <= self.heap.size_of(value)? {
            self.heap.write(offset(value, LARGE_AT + len as u64)?, more)?;
            return Ok(self.heap.put(value, whole as u64)?);
        }
        let mut bytes = Vec::with_capacity(whole);
        self.append_value(entry, 0, len, &mut bytes)?;
        bytes.extend_from_slice(more);
        let room = (whole + whole.min(GROWTH_MAX)).min(STRING_MAX as usize);
        let larger = large(&mut self.heap, &bytes, room)?;
        self.heap.put(offset(entry.at, VALUE)?, larger.raw())?;
        Ok(self.heap.free(value)?)
    }
}

/// The expiry that a key has from now on.
#[inline]
pub(super) fn kept(place: &Place, keep: Keep) -> u64 {
    match (keep, place) {
        (Keep::At(expiry), _) => expiry,
        (Keep::Expiry, Place::Found(entry)) => entry.expiry(),
        (Keep::Expiry, Place::Missing(_)) => 0,
    }
}
