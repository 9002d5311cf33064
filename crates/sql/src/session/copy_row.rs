//! A line of COPY data straight into a row's bytes: no list of values in between.
//!
//! Numbers, dates and texts in their usual spelling are read here; other values go by the type's input function. What is
//! wrong is not told from here: the answer is then that the line is no row, and the way by a list of values, which knows
//! each error and its place, goes over the line again.

use super::copy_lines::{CopyField, Fields};
use crate::error::Result;
use crate::parse::CopyFormat;
use crate::types::cast::{self, Context};
use crate::types::datetime;
use crate::types::text::{TextContext, parse_datum};
use cenote_engine::types::write_decimal;
use cenote_engine::{ColumnType, DatumRef, RowLayout, Table};

/// Makes of a line with a field for each column a row in `row` (cleared first). False: it is none.
///
/// # Errors
/// The row is too long.
pub fn encode(table: &Table, line: &str, format: &CopyFormat, cx: TextContext<'_>, row: &mut Vec<u8>) -> Result<bool> {
    let layout = table.layout();
    let mut fields = Fields::of(line, format);
    layout.begin(row);
    for (at, column) in table.columns.iter().enumerate() {
        let is_added = match fields.next() {
            Ok(Some(CopyField::Value(text))) => add(layout, at, text, cx, row)?,
            Ok(Some(CopyField::Null)) if !column.not_null => {
                layout.add(at, &DatumRef::Null, row)?;
                true
            }
            _ => false,
        };
        if !is_added {
            return Ok(false);
        }
    }
    Ok(fields.rest.is_none())
}

fn add(layout: &RowLayout, at: usize, text: &str, cx: TextContext<'_>, row: &mut Vec<u8>) -> Result<bool> {
    let ty = layout.column_type(at);
    let plain = match ty {
        ColumnType::Int2 => integer(text).and_then(|v| v.try_into().ok()).map(DatumRef::Int2),
        ColumnType::Int4 => integer(text).and_then(|v| v.try_into().ok()).map(DatumRef::Int4),
        ColumnType::Int8 => integer(text).map(DatumRef::Int8),
        ColumnType::Date => datetime::plain_date(text.as_bytes()).map(DatumRef::Date),
        ColumnType::Timestamp => datetime::plain_timestamp(text.as_bytes()).map(DatumRef::Timestamp),
        ColumnType::Text | ColumnType::Varchar(None) => Some(DatumRef::Text(text)),
        ColumnType::Varchar(Some(limit)) if text.len() <= limit as usize => Some(DatumRef::Text(text)),
        ColumnType::Char(limit) if text.len() <= limit as usize && text.is_ascii() => {
            let blanks = limit as usize - text.len();
            let padded = |out: &mut Vec<u8>| {
                out.extend_from_slice(text.as_bytes());
                out.resize(out.len() + blanks, b' ');
                true
            };
            return Ok(layout.add_bytes(at, row, padded)?);
        }
        ColumnType::Numeric(fit) => {
            let is_plain = layout.add_bytes(at, row, |out| write_decimal(text.as_bytes(), fit, out))?;
            if is_plain {
                return Ok(true);
            }
            None
        }
        _ => None,
    };
    if let Some(datum) = plain {
        layout.add(at, &datum, row)?;
        return Ok(true);
    }
    let parsed = parse_datum(text, ty, cx).and_then(|datum| cast::fit(datum, ty, Context::Assignment));
    match parsed {
        Ok(datum) => layout.add(at, &datum.as_ref(), row).map(|()| true).map_err(Into::into),
        Err(_) => Ok(false),
    }
}

/// An integer of up to 18 digits without blanks.
fn integer(text: &str) -> Option<i64> {
    let (is_negative, digits) = match text.as_bytes() {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if !(1..=18).contains(&digits.len()) {
        return None;
    }
    let mut value = 0_i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if is_negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::zone::Zone;
    use cenote_engine::Datum;
    use proptest::prelude::*;

    #[test]
    fn integers() {
        assert_eq!(integer("-12"), Some(-12));
        assert_eq!(integer("000000000000000007"), Some(7));
        for other in ["", "-", "+1", " 1", "1 ", "1.0", "1234567890123456789", "--1", "1:"] {
            assert_eq!(integer(other), None, "{other}");
        }
    }

    fn slow(text: &str, ty: ColumnType, cx: TextContext<'_>) -> Option<Datum> {
        let parsed = parse_datum(text, ty, cx).and_then(|datum| cast::fit(datum, ty, Context::Assignment));
        parsed.ok()
    }

    fn types() -> Vec<ColumnType> {
        vec![
            ColumnType::Int2,
            ColumnType::Int4,
            ColumnType::Int8,
            ColumnType::Date,
            ColumnType::Timestamp,
            ColumnType::Numeric(None),
            ColumnType::Numeric(Some((5, 2))),
            ColumnType::Varchar(Some(4)),
            ColumnType::Char(4),
            ColumnType::Bool,
            ColumnType::Float8,
        ]
    }

    proptest! {
        /// A value that is read here is the one of the type's input function, and what that one refuses is refused.
        #[test]
        fn values_are_those_of_the_input_functions(
            text in "[-+]?[0-9]{0,7}[.]?[0-9]{0,4}|[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{3,5}-[01][0-9]-[0-3][0-9]( [0-2][0-9]:[0-6][0-9](:[0-6][0-9](.[0-9]{0,7})?)?)?|[a-zé ]{0,6}|[-+ 0-9.:aeNTZ]{0,12}",
        ) {
            let cx = TextContext { zone: &Zone::Utc, now: 0 };
            for ty in types() {
                let (layout, mut row) = (RowLayout::new(&[ty]), Vec::new());
                layout.begin(&mut row);
                let is_added = add(&layout, 0, &text, cx, &mut row).unwrap();
                let want = slow(&text, ty, cx);
                prop_assert_eq!(is_added, want.is_some(), "{} {}", ty, text);
                if let Some(want) = want {
                    let mut encoded = Vec::new();
                    layout.encode(&[want], &mut encoded).unwrap();
                    prop_assert_eq!(&row, &encoded, "{} {}", ty, text);
                }
            }
        }
    }
}
