//! An entry: a key and its value, or a field and its value, as one object.
//!
//! ```text
//!    0 u64 next: the entry behind it in its bucket, or null
//!    8 u64 hash 32 | length of the key 30 | kind 2
//!   16 u64 when it expires, in milliseconds since 1970; 0: never
//!   24 u64 value        inline: its length, and it lies behind the key
//!                       integer: it is this number
//!                       large: the address of an object: 0 u64 length, 8 the bytes, room for more
//!                       hash: the address of its fields: of a table whose entries they are, or of a packed hash
//!   32     key, value
//! ```
//!
//! What an entry says of lengths is compared with what there can be; that they end inside of the object is the space's
//! to check.

use super::heap::{Heap, offset};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Bytes before the key.
pub(super) const HEADER: usize = 32;
/// Each object has at least these: an entry's beginning is read at once.
const LINE: usize = 64;
/// Bytes of an entry that are prefetched: most have no more.
pub(super) const EXPECTED: usize = 2 * LINE;
/// The longest key or string.
pub const STRING_MAX: u64 = 512 << 20;
/// The longest value that lies in its entry.
pub(super) const INLINE_MAX: usize = 1024;
pub(super) const NEXT: u64 = 0;
pub(super) const EXPIRY: u64 = 16;
pub(super) const VALUE: u64 = 24;
/// Where the bytes of a large value begin.
pub(super) const LARGE_AT: u64 = 8;

const KIND_BITS: u32 = 2;
const KEY_BITS: u32 = 30;
const _: () = assert!(STRING_MAX < 1 << KEY_BITS && KIND_BITS + KEY_BITS == 32);
const _: () = {
    assert!(
        NEXT + 8 <= EXPIRY && EXPIRY + 8 <= VALUE,
        "an entry's words do not overlap"
    );
    assert!(VALUE + 8 <= HEADER as u64, "an entry's words lie before its key");
    assert!(
        HEADER <= LINE && LINE <= EXPECTED,
        "an entry's beginning has its header"
    );
};

/// How the value lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Inline,
    Integer,
    Large,
    Hash,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Inline, Self::Integer, Self::Large, Self::Hash];

    /// That of an entry with this second word.
    #[inline(always)]
    pub(super) fn of(word: u64) -> Self {
        Self::ALL[word as usize % Self::ALL.len()]
    }
}

/// An entry that was found.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Where it lies.
    pub(super) at: GlobalAddress,
    /// The word that leads to it.
    pub(super) link: GlobalAddress,
    line: [u8; LINE],
}

/// What an entry is made of.
#[derive(Clone, Copy)]
pub(super) struct Draft<'a> {
    pub(super) hash: u32,
    pub(super) key: &'a [u8],
    pub(super) expiry: u64,
    pub(super) value: Value<'a>,
}

/// A value as it is given.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Bytes(&'a [u8]),
    Integer(i64),
    /// The word of a large value or of a hash that is there already.
    There(Kind, u64),
}

impl Entry {
    #[inline]
    pub(super) fn read(heap: &Heap, at: GlobalAddress, link: GlobalAddress) -> Result<Self> {
        let mut line = [0; LINE];
        heap.read(at, &mut line)?;
        Ok(Self { at, link, line })
    }

    /// One that lies at `at` in a larger object, of which nothing refers to it.
    pub(super) fn within(at: GlobalAddress, bytes: &[u8]) -> Self {
        let (mut line, len) = ([0; LINE], bytes.len().min(LINE));
        line[..len].copy_from_slice(&bytes[..len]);
        let link = GlobalAddress::NULL;
        Self { at, link, line }
    }

    #[inline(always)]
    fn word(&self, at: u64) -> u64 {
        let at = at as usize;
        u64::from_ne_bytes(self.line[at..at + 8].try_into().expect("8 bytes"))
    }

    #[inline(always)]
    pub(super) fn next(&self) -> GlobalAddress {
        GlobalAddress::from_raw(self.word(NEXT))
    }

    #[inline(always)]
    pub(super) fn hash(&self) -> u32 {
        (self.word(8) >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn key_len(&self) -> usize {
        (self.word(8) as u32 >> KIND_BITS) as usize
    }

    #[inline(always)]
    pub(super) fn kind(&self) -> Kind {
        Kind::of(self.word(8))
    }

    /// When it expires, in milliseconds since 1970; 0: never.
    #[inline(always)]
    pub fn expiry(&self) -> u64 {
        self.word(EXPIRY)
    }

    /// Whether its value is a hash, and no string.
    #[inline(always)]
    pub fn is_hash(&self) -> bool {
        self.kind() == Kind::Hash
    }

    #[inline(always)]
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.expiry() != 0 && self.expiry() <= now
    }

    /// The word of its value.
    #[inline(always)]
    pub(super) fn value(&self) -> u64 {
        self.word(VALUE)
    }

    /// Bytes of the entry itself, as far as it is to be believed.
    #[inline(always)]
    pub(super) fn bytes(&self) -> u64 {
        let inline = if self.kind() == Kind::Inline { self.value() } else { 0 };
        (HEADER as u64 + self.key_len() as u64).saturating_add(inline)
    }

    /// The object that its value refers to, if it does.
    pub(super) fn referred(&self) -> Option<GlobalAddress> {
        matches!(self.kind(), Kind::Large | Kind::Hash).then(|| GlobalAddress::from_raw(self.value()))
    }

    /// Whether it is that of a key.
    #[inline]
    pub(super) fn is_of(&self, heap: &Heap, hash: u32, key: &[u8]) -> Result<bool> {
        let tag = u64::from(hash) << 32 | (key.len() as u64) << KIND_BITS;
        if self.word(8) >> KIND_BITS != tag >> KIND_BITS {
            return Ok(false);
        }
        match self.line[HEADER..].get(..key.len()) {
            Some(own) => Ok(own == key),
            None => is_equal(heap, offset(self.at, HEADER as u64)?, key),
        }
    }

    /// Appends its key.
    pub(super) fn append_key(&self, heap: &Heap, out: &mut Vec<u8>) -> Result<()> {
        self.append(heap, HEADER, self.key_len(), out)
    }

    /// Bytes of its value as a string.
    #[inline]
    pub(super) fn len(&self, heap: &Heap) -> Result<usize> {
        let len = match self.kind() {
            Kind::Inline => self.value(),
            Kind::Integer => decimal(self.value() as i64, &mut [0; 20]).len() as u64,
            Kind::Large => heap.load(GlobalAddress::from_raw(self.value()))?,
            Kind::Hash => return Err(Error::Invalid("a hash is no string".into())),
        };
        match len <= STRING_MAX {
            true => Ok(len as usize),
            false => Err(Error::Corrupt(format!("a string of {len} bytes at {}", self.at))),
        }
    }

    /// Appends `len` bytes of its value as a string, from `from` on; they must be there.
    #[inline]
    pub(super) fn append_value(&self, heap: &Heap, from: usize, len: usize, out: &mut Vec<u8>) -> Result<()> {
        match self.kind() {
            Kind::Inline => self.append(heap, HEADER + self.key_len() + from, len, out),
            Kind::Integer => {
                let mut digits = [0; 20];
                out.extend_from_slice(&decimal(self.value() as i64, &mut digits)[from..from + len]);
                Ok(())
            }
            Kind::Large | Kind::Hash => {
                let bytes = GlobalAddress::from_raw(self.value());
                heap.append_to(offset(bytes, LARGE_AT + from as u64)?, len, out)
            }
        }
    }

    /// Appends bytes of the entry itself.
    #[inline]
    fn append(&self, heap: &Heap, from: usize, len: usize, out: &mut Vec<u8>) -> Result<()> {
        if let Some(bytes) = self.line.get(from..from + len) {
            out.extend_from_slice(bytes);
            return Ok(());
        }
        heap.append_to(offset(self.at, from as u64)?, len, out)
    }
}

/// The entry behind the one at `at`, if that is not of this hash; null if there is none, or it is.
#[inline]
pub(super) fn behind(heap: &Heap, at: GlobalAddress, hash: u32) -> Result<GlobalAddress> {
    if at.is_null() {
        return Ok(at);
    }
    let mut words = [[0; 8]; 2];
    heap.read(at, words.as_flattened_mut())?;
    let [next, tag] = words.map(u64::from_ne_bytes);
    let is_of = (tag >> 32) as u32 == hash;
    Ok(GlobalAddress::from_raw(if is_of { 0 } else { next }))
}

/// Compares without taking all of it at once: keys may be long.
fn is_equal(heap: &Heap, at: GlobalAddress, key: &[u8]) -> Result<bool> {
    let mut own = [0; 4096];
    for (n, part) in key.chunks(own.len()).enumerate() {
        let own = &mut own[..part.len()];
        heap.read(offset(at, (n * 4096) as u64)?, own)?;
        if own != part {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Draft<'_> {
    /// A new entry that nothing leads to yet. `next` is what lies behind it.
    pub(super) fn make(&self, heap: &mut Heap, next: GlobalAddress, scratch: &mut Vec<u8>) -> Result<GlobalAddress> {
        let (kind, word, inline) = self.value(heap)?;
        let header = header(next, self, kind, word);
        scratch.clear();
        scratch.reserve(HEADER + self.key.len() + inline.len());
        scratch.extend_from_slice(header.as_flattened());
        scratch.extend_from_slice(self.key);
        scratch.extend_from_slice(inline);
        let made = heap.alloc_any(scratch.len() as u64);
        let at = match (made, self.value) {
            (Err(error), Value::Bytes(_)) if kind == Kind::Large => {
                heap.free(GlobalAddress::from_raw(word))?;
                return Err(error);
            }
            (made, _) => made?,
        };
        heap.write(at, scratch)?;
        Ok(at)
    }

    fn value(&self, heap: &mut Heap) -> Result<(Kind, u64, &[u8])> {
        match self.value {
            Value::Integer(number) => Ok((Kind::Integer, number as u64, &[])),
            Value::There(kind, word) => Ok((kind, word, &[])),
            Value::Bytes(bytes) if bytes.len() <= INLINE_MAX => Ok((Kind::Inline, bytes.len() as u64, bytes)),
            Value::Bytes(bytes) => Ok((Kind::Large, large(heap, bytes, bytes.len())?.raw(), &[])),
        }
    }
}

/// The words before an entry's key.
#[inline(always)]
pub(super) fn header(next: GlobalAddress, draft: &Draft<'_>, kind: Kind, word: u64) -> [[u8; 8]; 4] {
    let tag = u64::from(draft.hash) << 32 | (draft.key.len() as u64) << KIND_BITS | kind as u64;
    [next.raw(), tag, draft.expiry, word].map(u64::to_ne_bytes)
}

/// A large value with room for so many bytes.
pub(super) fn large(heap: &mut Heap, bytes: &[u8], room: usize) -> Result<GlobalAddress> {
    let at = heap.alloc(LARGE_AT + room.max(bytes.len()) as u64)?;
    heap.write(offset(at, LARGE_AT)?, bytes)?;
    heap.write(at, &(bytes.len() as u64).to_ne_bytes())?;
    Ok(at)
}

/// A number's digits, at the end of `room`.
#[inline]
pub fn decimal(number: i64, room: &mut [u8; 20]) -> &[u8] {
    let (mut rest, mut at) = (number.unsigned_abs(), room.len());
    loop {
        at -= 1;
        room[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        room[at] = b'-';
    }
    &room[at..]
}

/// The number that a string is, written as [`decimal`] writes it.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let is_canonical = matches!(digits, [b'1'..=b'9', ..]) || text == b"0";
    if !is_canonical || digits.len() > 19 {
        return None;
    }
    let mut number = 0i64;
    for digit in digits {
        let digit = i64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        let step = |n: i64| match is_negative {
            true => n.checked_sub(digit),
            false => n.checked_add(digit),
        };
        number = number.checked_mul(10).and_then(step)?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_and_read_in_one_way() {
        for number in [0, 1, -1, 9, 10, -10, 1234567890, i64::MAX, i64::MIN] {
            let mut room = [0; 20];
            let text = decimal(number, &mut room);
            assert_eq!(text, number.to_string().as_bytes());
            assert_eq!(integer(text), Some(number));
        }
        for text in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            " 1",
            "1 ",
            "1.0",
            "9223372036854775808",
            "-9223372036854775809",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }
}
