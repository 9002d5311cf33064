//! Keys as bytes whose order is the order of the values: what the B+trees sort.
//!
//! Each part is a marker byte (`PRESENT`, or `NULL` which sorts after every value, as PostgreSQL's default does) and
//! the value: integers and times big endian with the sign bit flipped; floats by their bits, folded so that order holds
//! (NaN greatest, -0 as 0); text and bytea with each 0x00 written 0x00 0xFF and ended by 0x00 0x00; char(n) without its
//! trailing blanks; numeric as `Numeric::write_key` says. A key of the first k columns is a prefix of the key of all of
//! them, so a prefix range is `[prefix, successor(prefix))`.

use crate::error::{Error, Result};
use crate::types::{ColumnType, Datum, DatumRef};
use std::ops::Bound;

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 2048;
/// Marker of a value.
pub const PRESENT: u8 = 1;
/// Marker of NULL.
pub const NULL: u8 = 2;

/// Appends one part of a key. `ty` is the column's type (char is compared without trailing blanks).
pub fn push(ty: ColumnType, datum: &DatumRef<'_>, out: &mut Vec<u8>) {
    if datum.is_null() {
        return out.push(NULL);
    }
    out.push(PRESENT);
    match datum {
        DatumRef::Null => {}
        DatumRef::Bool(v) => out.push(u8::from(*v)),
        DatumRef::Int2(v) => out.extend_from_slice(&((*v as u16) ^ (1 << 15)).to_be_bytes()),
        DatumRef::Int4(v) | DatumRef::Date(v) => out.extend_from_slice(&((*v as u32) ^ (1 << 31)).to_be_bytes()),
        DatumRef::Int8(v) | DatumRef::Timestamp(v) | DatumRef::TimestampTz(v) => {
            out.extend_from_slice(&((*v as u64) ^ (1 << 63)).to_be_bytes());
        }
        DatumRef::Float4(v) => {
            let bits = if v.is_nan() {
                f32::NAN.to_bits() & !(1 << 31)
            } else {
                (v + 0.0).to_bits()
            };
            let folded = if bits >> 31 == 1 { !bits } else { bits ^ (1 << 31) };
            out.extend_from_slice(&folded.to_be_bytes());
        }
        DatumRef::Float8(v) => {
            let bits = if v.is_nan() {
                f64::NAN.to_bits() & !(1 << 63)
            } else {
                (v + 0.0).to_bits()
            };
            let folded = if bits >> 63 == 1 { !bits } else { bits ^ (1 << 63) };
            out.extend_from_slice(&folded.to_be_bytes());
        }
        DatumRef::Numeric(v) => v.write_key(out),
        DatumRef::Text(v) if matches!(ty, ColumnType::Char(_)) => push_bytes(v.trim_end_matches(' ').as_bytes(), out),
        DatumRef::Text(v) => push_bytes(v.as_bytes(), out),
        DatumRef::Bytes(v) => push_bytes(v, out),
    }
}

/// As `push`, for an owned value.
pub fn push_datum(ty: ColumnType, datum: &Datum, out: &mut Vec<u8>) {
    push(ty, &datum.as_ref(), out);
}

/// Appends what the key parts of all texts that begin with `prefix` begin with (text and varchar).
pub fn push_text_prefix(prefix: &str, out: &mut Vec<u8>) {
    out.push(PRESENT);
    push_escaped(prefix.as_bytes(), out);
}

fn push_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    push_escaped(bytes, out);
    out.extend_from_slice(&[0, 0]);
}

fn push_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xFF);
        }
    }
}

/// Refuses a key that is longer than a tree admits.
///
/// # Errors
/// [`Error::TooLarge`]: the key exceeds [`MAX_KEY_BYTES`].
pub fn check_len(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        Err(too_long(key.len()))
    } else {
        Ok(())
    }
}

/// The refusal of a key of `len` bytes.
pub(crate) fn too_long(len: usize) -> Error {
    Error::TooLarge(format!(
        "index row requires {len} bytes, maximum size is {MAX_KEY_BYTES}"
    ))
}

/// The least key above all keys that begin with `prefix`; None where there is none.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != 0xFF)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

/// Keys between two bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// Least key.
    pub lower: Bound<Vec<u8>>,
    /// Greatest key.
    pub upper: Bound<Vec<u8>>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> KeyRange {
        KeyRange {
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
        }
    }

    /// All keys that begin with `prefix` (a key itself included).
    pub fn prefix(prefix: &[u8]) -> KeyRange {
        KeyRange::of_prefix(prefix.to_vec())
    }

    /// As [`prefix`](Self::prefix), of a prefix that is not needed any more.
    pub fn of_prefix(prefix: Vec<u8>) -> KeyRange {
        let upper = successor(&prefix).map_or(Bound::Unbounded, Bound::Excluded);
        let lower = Bound::Included(prefix);
        KeyRange { lower, upper }
    }

    /// Keys whose first parts lie between two prefixes; inclusive bounds take in all keys that begin with them.
    pub fn between(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> KeyRange {
        let lower = match lower {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(prefix) => Bound::Included(prefix.to_vec()),
            Bound::Excluded(prefix) => match successor(prefix) {
                Some(next) => Bound::Included(next),
                None => Bound::Excluded(vec![0xFF; MAX_KEY_BYTES]),
            },
        };
        let upper = match upper {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Excluded(prefix) => Bound::Excluded(prefix.to_vec()),
            Bound::Included(prefix) => successor(prefix).map_or(Bound::Unbounded, Bound::Excluded),
        };
        KeyRange { lower, upper }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        let above = match &self.lower {
            Bound::Unbounded => true,
            Bound::Included(b) => key >= b.as_slice(),
            Bound::Excluded(b) => key > b.as_slice(),
        };
        above
            && match &self.upper {
                Bound::Unbounded => true,
                Bound::Included(b) => key <= b.as_slice(),
                Bound::Excluded(b) => key < b.as_slice(),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(ty: ColumnType, d: &Datum) -> Vec<u8> {
        let mut out = Vec::new();
        push_datum(ty, d, &mut out);
        out
    }

    proptest! {
        #[test]
        fn order_of_integers(a: i64, b: i64) {
            prop_assert_eq!(one(ColumnType::Int8, &Datum::Int8(a)).cmp(&one(ColumnType::Int8, &Datum::Int8(b))), a.cmp(&b));
            let (c, d) = (a as i32, b as i32);
            prop_assert_eq!(one(ColumnType::Int4, &Datum::Int4(c)).cmp(&one(ColumnType::Int4, &Datum::Int4(d))), c.cmp(&d));
        }

        #[test]
        fn order_of_bytes_also_as_a_prefix(a: Vec<u8>, b: Vec<u8>, x: i32, y: i32) {
            let key = |v: &Vec<u8>, n| {
                let mut out = one(ColumnType::Bytes, &Datum::Bytes(v.clone()));
                push_datum(ColumnType::Int4, &Datum::Int4(n), &mut out);
                out
            };
            prop_assert_eq!(key(&a, x).cmp(&key(&b, y)), (a, x).cmp(&(b, y)));
        }

        #[test]
        fn order_of_doubles(a: f64, b: f64) {
            let (x, y) = (Datum::Float8(a), Datum::Float8(b));
            prop_assert_eq!(Some(one(ColumnType::Float8, &x).cmp(&one(ColumnType::Float8, &y))), x.compare(&y));
        }
    }

    #[test]
    fn nulls_sort_last_and_ranges_hold() {
        assert!(one(ColumnType::Int4, &Datum::Null) > one(ColumnType::Int4, &Datum::Int4(i32::MAX)));
        assert_eq!(
            one(ColumnType::Float8, &Datum::Float8(-0.0)),
            one(ColumnType::Float8, &Datum::Float8(0.0))
        );
        let five = one(ColumnType::Int4, &Datum::Int4(5));
        let mut longer = five.clone();
        push_datum(ColumnType::Text, &Datum::Text("x".into()), &mut longer);
        assert!(KeyRange::prefix(&five).contains(&longer));
        assert!(!KeyRange::between(Bound::Excluded(&five), Bound::Unbounded).contains(&longer));
        assert!(KeyRange::between(Bound::Unbounded, Bound::Included(&five)).contains(&longer));
        assert_eq!(
            one(ColumnType::Char(5), &Datum::Text("ab   ".into())),
            one(ColumnType::Char(5), &Datum::Text("ab".into()))
        );
    }
}
