//! A small hash: its fields side by side in one object.
//!
//! ```text
//!   0 u64 mark 1 | fields 31 | bytes 32: where the last one ends
//!   8     fields, each at a multiple of 8 as an entry (see `entry`) whose next and expiry are 0; its value is inline, or an integer
//! ```
//!
//! It is read at once, and changed by being written anew: the hash's word leads to the one or to the other. An
//! integer's word is changed as that of any entry. When it would be longer than [`PACKED_MAX`] it becomes a table. (The
//! mark is where a table has its number of buckets, which is less.)

use super::entry::{Draft, Entry, HEADER, INLINE_MAX, Kind, Value, header};
use super::heap::{Heap, offset};
use super::spares::PACKED_MAX;
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

const BEGIN: usize = 8;
const MARK: u64 = 1 << 63;

/// A copy of one.
pub(super) struct Packed {
    /// Where it lies, and in how many bytes; nowhere if it is new.
    at: GlobalAddress,
    held: u64,
    fields: u32,
    end: usize,
    /// At least up to `end`.
    room: Vec<u8>,
}

/// One of its fields.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    begin: usize,
    /// The entry.
    bytes: &'a [u8],
}

impl Packed {
    /// Whether the first word of what a hash's word leads to is that of a packed one.
    pub(super) fn is_marked(word: u64) -> bool {
        word & MARK != 0
    }

    /// Its number of fields by its first word.
    pub(super) fn fields_in(word: u64) -> u64 {
        (word & !MARK) >> 32
    }

    /// Bytes by its first word.
    fn end_in(word: u64) -> usize {
        word as u32 as usize
    }

    /// One without fields, that lies nowhere.
    pub(super) fn empty(room: Vec<u8>) -> Self {
        Self {
            at: GlobalAddress::NULL,
            held: 0,
            fields: 0,
            end: BEGIN,
            room,
        }
    }

    /// Reads the one that lies at `at` and has this first word.
    pub(super) fn read(heap: &Heap, at: GlobalAddress, word: u64, mut room: Vec<u8>) -> Result<Self> {
        let end = Self::end_in(word);
        // Fields are at multiples of 8, and so is the end of the last: what is moved about below relies on it.
        if !(BEGIN..=PACKED_MAX).contains(&end) || !end.is_multiple_of(8) {
            return Err(Error::Corrupt(format!("a packed hash of {end} bytes at {at}")));
        }
        if room.len() < end {
            room.resize(end, 0);
        }
        heap.read(at, &mut room[..end])?;
        Ok(Self {
            at,
            held: end as u64,
            fields: Self::fields_in(word) as u32,
            end,
            room,
        })
    }

    /// Its room, for the next one.
    pub(super) fn into_room(self) -> Vec<u8> {
        self.room
    }

    /// The object that it was read from, and the bytes of that.
    pub(super) fn object(&self) -> Option<(GlobalAddress, u64)> {
        (!self.at.is_null()).then_some((self.at, self.held))
    }

    pub(super) fn fields(&self) -> u64 {
        u64::from(self.fields)
    }

    /// Tells of each field.
    #[inline]
    pub(super) fn each(&self, mut each: impl FnMut(Field<'_>)) -> Result<()> {
        let mut at = BEGIN;
        for _ in 0..self.fields {
            let field = self.field_at(at)?;
            at += field.bytes.len().next_multiple_of(8);
            each(field);
        }
        Ok(())
    }

    /// All fields.
    pub(super) fn all(&self) -> Result<Vec<Field<'_>>> {
        let (mut all, mut at) = (Vec::with_capacity(self.fields.min(64) as usize), BEGIN);
        for _ in 0..self.fields {
            let field = self.field_at(at)?;
            at += field.bytes.len().next_multiple_of(8);
            all.push(field);
        }
        Ok(all)
    }

    /// What lies there is checked: lengths, and that they end inside.
    #[inline]
    fn field_at(&self, at: usize) -> Result<Field<'_>> {
        let rest = self.room.get(at..self.end).unwrap_or(&[]);
        let whole = || {
            let head = Field {
                begin: at,
                bytes: rest.get(..HEADER)?,
            };
            let inline = match head.kind() {
                Kind::Inline => usize::try_from(head.word(24)).ok()?,
                Kind::Integer => 0,
                Kind::Large | Kind::Hash => return None,
            };
            rest.get(..(HEADER + head.name_len()).checked_add(inline)?)
        };
        match whole() {
            Some(bytes) => Ok(Field { begin: at, bytes }),
            None => Err(Error::Corrupt(format!(
                "a field at byte {at} of the packed hash at {}",
                self.at
            ))),
        }
    }

    /// The field of a name.
    #[inline]
    pub(super) fn find(&self, hash: u32, name: &[u8]) -> Result<Option<Field<'_>>> {
        let (tag, mut at) = (tag_of(hash, name), BEGIN);
        for _ in 0..self.fields {
            let field = self.field_at(at)?;
            if field.tag() == tag && field.name() == name {
                return Ok(Some(field));
            }
            at += field.bytes.len().next_multiple_of(8);
        }
        Ok(None)
    }

    /// The field as an entry of its own.
    pub(super) fn entry(&self, field: Field<'_>) -> Result<Entry> {
        Ok(Entry::within(offset(self.at, field.begin as u64)?, field.bytes))
    }

    /// Sets a field in this copy. Whether it is new; none if it does not fit, and nothing has changed then.
    pub(super) fn set(&mut self, draft: &Draft<'_>) -> Result<Option<bool>> {
        let (kind, word, inline) = match draft.value {
            Value::Bytes(bytes) if bytes.len() <= INLINE_MAX => (Kind::Inline, bytes.len() as u64, bytes),
            Value::Integer(number) => (Kind::Integer, number as u64, &[][..]),
            Value::Bytes(_) | Value::There(..) => return Ok(None),
        };
        let (begin, former) = match self.find(draft.hash, draft.key)? {
            Some(field) => (field.begin, field.bytes.len().next_multiple_of(8)),
            None => (self.end, 0),
        };
        let len = HEADER + draft.key.len() + inline.len();
        let (whole, end) = (len.next_multiple_of(8), self.end - former);
        if end + whole > PACKED_MAX {
            return Ok(None);
        }
        if self.room.len() < PACKED_MAX {
            self.room.resize(PACKED_MAX, 0);
        }
        self.room.copy_within(begin + former..self.end, begin + whole);
        let place = &mut self.room[begin..begin + whole];
        let header = header(GlobalAddress::NULL, draft, kind, word);
        let (head, rest) = place.split_at_mut(HEADER);
        head.copy_from_slice(header.as_flattened());
        let (name, value) = rest.split_at_mut(draft.key.len());
        name.copy_from_slice(draft.key);
        value[..inline.len()].copy_from_slice(inline);
        value[inline.len()..].fill(0);
        self.end = end + whole;
        self.fields += u32::from(former == 0);
        Ok(Some(former == 0))
    }

    /// Takes a field out of this copy. Whether it was there.
    pub(super) fn remove(&mut self, hash: u32, name: &[u8]) -> Result<bool> {
        let Some(field) = self.find(hash, name)? else {
            return Ok(false);
        };
        let (begin, len) = (field.begin, field.bytes.len().next_multiple_of(8));
        self.room.copy_within(begin + len..self.end, begin);
        self.end -= len;
        self.fields -= 1;
        Ok(true)
    }

    /// Writes this copy into an object of its own, that nothing leads to yet.
    pub(super) fn write(&mut self, heap: &mut Heap) -> Result<GlobalAddress> {
        let word = MARK | u64::from(self.fields) << 32 | self.end as u64;
        self.room[..BEGIN].copy_from_slice(&word.to_ne_bytes());
        let at = heap.alloc_any(self.end as u64)?;
        heap.write(at, &self.room[..self.end])?;
        Ok(at)
    }
}

impl<'a> Field<'a> {
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    /// Hash and length of the name.
    #[inline(always)]
    fn tag(&self) -> u64 {
        self.word(8) >> 2
    }

    #[inline(always)]
    pub(super) fn kind(&self) -> Kind {
        Kind::of(self.word(8))
    }

    #[inline(always)]
    fn name_len(&self) -> usize {
        (self.word(8) as u32 >> 2) as usize
    }

    /// Its name.
    #[inline(always)]
    pub(super) fn name(&self) -> &'a [u8] {
        &self.bytes[HEADER..HEADER + self.name_len()]
    }

    /// Its value.
    #[inline(always)]
    pub(super) fn value(&self) -> Value<'a> {
        match self.kind() {
            Kind::Integer => Value::Integer(self.word(24) as i64),
            _ => Value::Bytes(&self.bytes[HEADER + self.name_len()..]),
        }
    }
}

#[inline(always)]
fn tag_of(hash: u32, name: &[u8]) -> u64 {
    u64::from(hash) << 30 | name.len() as u64
}
