//! Rows made of an index's entries, for readers of nothing but its columns.
//!
//! An entry is the index's columns and behind them the primary key, each part as `key` writes it. A part gives its
//! column where that form keeps the value as it is: integers, booleans, times, text, varchar, bytea, and numeric of a
//! declared scale (all of a column's values have it; NaN and the infinities have forms of their own). It does not for
//! floats (-0 and NaNs are folded), numeric without a scale (1.0 and 1.00 are one key) and char(n) (its blanks are
//! cut). Such parts are passed over.
//!
//! The row that is made has the layout of the table's rows, so readers know no difference; the columns that the index
//! has not are NULL in it, whatever they are declared to be.

use crate::error::{Error, Result};
use crate::key;
use crate::row::RowLayout;
use crate::types::{ColumnType, Numeric};

/// How the entries of one index are read.
#[derive(Debug)]
pub(crate) struct EntryRows {
    /// Of each part of an entry its column, and whether the part gives it.
    parts: Box<[(usize, bool)]>,
    /// Columns that entries give, rising, each with its part.
    columns: Box<[(usize, usize)]>,
    /// Those columns alone.
    covered: Box<[usize]>,
}

/// Memory to read an entry with.
#[derive(Debug, Default)]
pub(crate) struct EntryScratch {
    /// Where the parts lie.
    places: Vec<(usize, usize)>,
    value: Vec<u8>,
}

impl EntryRows {
    /// Of the entries of an index of these columns, of a table whose primary key has those (none: it is hidden).
    pub(crate) fn new(layout: &RowLayout, index: &[usize], primary: &[usize]) -> EntryRows {
        let gives = |column: &usize| (*column, keeps(layout.column_type(*column)));
        let parts: Box<[(usize, bool)]> = index.iter().chain(primary).map(gives).collect();
        let mut columns: Vec<(usize, usize)> = Vec::new();
        for (part, (column, keeps)) in parts.iter().enumerate() {
            if *keeps && !columns.iter().any(|(known, _)| known == column) {
                columns.push((*column, part));
            }
        }
        columns.sort_unstable();
        EntryRows {
            parts,
            covered: columns.iter().map(|(column, _)| *column).collect(),
            columns: columns.into(),
        }
    }

    /// Columns that entries give, rising.
    pub(crate) fn covered(&self) -> &[usize] {
        &self.covered
    }

    /// Appends the row of an entry to `out`.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the bytes are no entry of the index.
    pub(crate) fn push(
        &self,
        layout: &RowLayout,
        entry: &[u8],
        scratch: &mut EntryScratch,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let EntryScratch { places, value } = scratch;
        places.clear();
        let mut at = 0;
        for (column, _) in &self.parts {
            let end = at + len_of(layout.column_type(*column), entry.get(at..).ok_or_else(cut_short)?)?;
            places.push((at, end));
            at = end;
        }
        let mut row = layout.begin_sparse(out);
        for (column, part) in &self.columns {
            let (from, to) = places[*part];
            let Some((&marker, part)) = entry[from..to].split_first() else {
                return Err(cut_short());
            };
            if marker == key::NULL {
                continue;
            }
            value.clear();
            read(layout.column_type(*column), part, value)?;
            row.put(*column, value)?;
        }
        row.finish()
    }
}

/// Whether a key part of this type gives the value back.
fn keeps(ty: ColumnType) -> bool {
    match ty {
        ColumnType::Float4 | ColumnType::Float8 | ColumnType::Char(_) => false,
        ColumnType::Numeric(declared) => scale_of(declared).is_some(),
        _ => true,
    }
}

/// The scale of all values of a numeric column, where it is declared.
fn scale_of(declared: Option<(u16, i16)>) -> Option<u16> {
    declared.and_then(|(_, scale)| u16::try_from(scale).ok())
}

/// Length of the part that `bytes` begin with, its marker included.
fn len_of(ty: ColumnType, bytes: &[u8]) -> Result<usize> {
    let value = match *bytes.first().ok_or_else(cut_short)? {
        key::NULL => return Ok(1),
        key::PRESENT => &bytes[1..],
        _ => return Err(cut_short()),
    };
    let len = match ty {
        ColumnType::Numeric(_) => Numeric::key_len(value).ok_or_else(cut_short)?,
        _ => match ty.fixed_len() {
            Some(len) => len,
            None => escaped_len(value)?,
        },
    };
    match len <= value.len() {
        true => Ok(1 + len),
        false => Err(cut_short()),
    }
}

/// Length of escaped bytes with their end.
fn escaped_len(bytes: &[u8]) -> Result<usize> {
    let mut at = 0;
    loop {
        at += bytes[at..].iter().position(|b| *b == 0).ok_or_else(cut_short)?;
        match bytes.get(at + 1) {
            Some(0) => return Ok(at + 2),
            Some(0xFF) => at += 2,
            _ => return Err(cut_short()),
        }
    }
}

/// Appends the bytes that a row has for the value of a part (without its marker).
fn read(ty: ColumnType, part: &[u8], out: &mut Vec<u8>) -> Result<()> {
    match ty {
        ColumnType::Bool => out.extend_from_slice(part),
        ColumnType::Numeric(declared) => {
            Numeric::read_key(part, scale_of(declared).unwrap_or(0))?.write_wire(out);
        }
        _ if ty.fixed_len().is_some() => {
            out.extend(part.iter().rev());
            if let Some(sign) = out.last_mut() {
                *sign ^= 0x80;
            }
        }
        _ => unescape(part, out),
    }
    Ok(())
}

/// The bytes of escaped ones, whose end was looked for before.
fn unescape(part: &[u8], out: &mut Vec<u8>) {
    let mut rest = &part[..part.len() - 2];
    while let Some(zero) = rest.iter().position(|b| *b == 0) {
        out.extend_from_slice(&rest[..=zero]);
        rest = &rest[zero + 2..];
    }
    out.extend_from_slice(rest);
}

fn cut_short() -> Error {
    Error::Corrupt("an index entry that is none of its columns".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Datum;
    use proptest::prelude::*;

    const TYPES: [ColumnType; 14] = [
        ColumnType::Bool,
        ColumnType::Int2,
        ColumnType::Int4,
        ColumnType::Int8,
        ColumnType::Float4,
        ColumnType::Float8,
        ColumnType::Numeric(None),
        ColumnType::Numeric(Some((12, 3))),
        ColumnType::Text,
        ColumnType::Varchar(Some(9)),
        ColumnType::Char(4),
        ColumnType::Bytes,
        ColumnType::Date,
        ColumnType::TimestampTz,
    ];

    fn value(ty: ColumnType) -> BoxedStrategy<Datum> {
        let number = |scale: u16| {
            let digits = prop::collection::vec(0u16..10_000, 0..4);
            (any::<bool>(), -2i16..3, digits, 0..6u8).prop_map(move |(negative, weight, digits, special)| match special
            {
                0 => Numeric::special(crate::types::Sign::NaN),
                1 => Numeric::special(crate::types::Sign::NegativeInfinity),
                _ => {
                    let sign = if negative {
                        crate::types::Sign::Negative
                    } else {
                        crate::types::Sign::Positive
                    };
                    Numeric::from_parts(sign, weight, scale, &digits).expect("a number")
                }
            })
        };
        let some = match ty {
            ColumnType::Bool => any::<bool>().prop_map(Datum::Bool).boxed(),
            ColumnType::Int2 => any::<i16>().prop_map(Datum::Int2).boxed(),
            ColumnType::Int4 => any::<i32>().prop_map(Datum::Int4).boxed(),
            ColumnType::Int8 => any::<i64>().prop_map(Datum::Int8).boxed(),
            ColumnType::Float4 => any::<f32>().prop_map(Datum::Float4).boxed(),
            ColumnType::Float8 => any::<f64>().prop_map(Datum::Float8).boxed(),
            ColumnType::Numeric(declared) => number(declared.map_or(2, |d| d.1 as u16))
                .prop_map(Datum::Numeric)
                .boxed(),
            ColumnType::Bytes => prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..6)
                .prop_map(Datum::Bytes)
                .boxed(),
            ColumnType::Date => any::<i32>().prop_map(Datum::Date).boxed(),
            ColumnType::Timestamp => any::<i64>().prop_map(Datum::Timestamp).boxed(),
            ColumnType::TimestampTz => any::<i64>().prop_map(Datum::TimestampTz).boxed(),
            _ => "[\\x00ab\u{e9} ]{0,5}".prop_map(Datum::Text).boxed(),
        };
        prop_oneof![5 => some, 1 => Just(Datum::Null)].boxed()
    }

    fn values() -> impl Strategy<Value = Vec<Datum>> {
        TYPES.map(value).prop_map(Vec::from)
    }

    fn entry(columns: &[usize], row: &[Datum]) -> Vec<u8> {
        let mut entry = Vec::new();
        columns
            .iter()
            .for_each(|c| key::push_datum(TYPES[*c], &row[*c], &mut entry));
        entry
    }

    proptest! {
        /// Whatever the columns of an index and of the primary key, an entry gives back what the row has in those of
        /// them that are covered, bit by bit, and nothing else.
        #[test]
        fn an_entry_gives_what_its_row_has(
            row in values(),
            index in prop::sample::subsequence((0..TYPES.len()).collect::<Vec<_>>(), 1..6).prop_shuffle(),
            primary in prop::sample::subsequence((0..TYPES.len()).collect::<Vec<_>>(), 0..3).prop_shuffle(),
        ) {
            let layout = RowLayout::new(&TYPES);
            let rows = EntryRows::new(&layout, &index, &primary);
            let mut bytes = entry(&index, &row);
            bytes.extend(entry(&primary, &row));
            let (mut scratch, mut made, mut stored) = (EntryScratch::default(), b"before".to_vec(), Vec::new());
            rows.push(&layout, &bytes, &mut scratch, &mut made).expect("an entry");
            layout.encode(&row, &mut stored).expect("a row");
            for column in 0..TYPES.len() {
                let expected = match rows.covered().contains(&column) {
                    true => layout.column_bytes(&stored, column).expect("a row"),
                    false => None,
                };
                prop_assert_eq!(layout.column_bytes(&made[6..], column).expect("a row"), expected, "column {}", column);
            }
            for cut in 0..bytes.len() {
                prop_assert!(rows.push(&layout, &bytes[..cut], &mut scratch, &mut Vec::new()).is_err());
            }
        }
    }

    #[test]
    fn what_keys_fold_is_not_covered() {
        let layout = RowLayout::new(&TYPES);
        let all: Vec<usize> = (0..TYPES.len()).collect();
        let rows = EntryRows::new(&layout, &all, &[]);
        let left_out: Vec<ColumnType> = all
            .iter()
            .filter(|c| !rows.covered().contains(c))
            .map(|c| TYPES[*c])
            .collect();
        let expected = [
            ColumnType::Float4,
            ColumnType::Float8,
            ColumnType::Numeric(None),
            ColumnType::Char(4),
        ];
        assert_eq!(left_out, expected);
    }
}
