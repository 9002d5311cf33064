//! Statistics as bytes, for the catalog's `definition` column.
//!
//! ```text
//! u8 format │ u64 serial │ i64 time │ f64 rows
//!   u32 columns, each: u8 analyzed │ u32 kind, u32 modifier of its type │ f64 share of NULLs, width, distinct
//!                      u32 n │ values (a row of n such columns) │ n f64 shares       common values
//!                      u32 n │ values                                                bounds
//!                      u8 known │ f64 correlation
//!   u32 keys, each:    u32 id │ u32 n │ n f64 distinct
//! u32 CRC-32C of all before
//! ```
//! Numbers are little endian. What is read is checked: the sum, the format, each count, each share; bounds rise. Values
//! are rows of the engine's format, whose reader checks them. What does not pass is no statistics.

use super::{ColumnStatistics, KeyStatistics, MAX_TARGET, Statistics};
use crate::error::{Error, Result};
use crate::key;
use crate::row::RowLayout;
use crate::types::{ColumnType, Datum};
use cenote_base::crc::crc32c;

const FORMAT: u8 = 1;
/// Columns of a table, at most.
const COLUMNS_MAX: usize = 1600;
/// Indexes of a table, at most, whose keys are kept; columns of one.
const KEYS_MAX: usize = 4096;
const SUM_BYTES: usize = 4;

fn bad() -> Error {
    Error::Corrupt("statistics in the catalog".into())
}

/// The bytes of statistics.
pub(crate) fn encode(statistics: &Statistics) -> Result<Vec<u8>> {
    let mut out = vec![FORMAT];
    out.extend_from_slice(&statistics.serial.to_le_bytes());
    out.extend_from_slice(&statistics.at_micros.to_le_bytes());
    put_number(statistics.rows, &mut out);
    put_count(statistics.columns.len(), &mut out);
    for column in &statistics.columns {
        out.push(u8::from(column.is_some()));
        if let Some(column) = column {
            put_column(column, &mut out)?;
        }
    }
    let keys = &statistics.keys[..statistics.keys.len().min(KEYS_MAX)];
    put_count(keys.len(), &mut out);
    for key in keys {
        out.extend_from_slice(&key.id.to_le_bytes());
        put_count(key.distinct.len(), &mut out);
        key.distinct.iter().for_each(|n| put_number(*n, &mut out));
    }
    let sum = crc32c(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    Ok(out)
}

fn put_column(column: &ColumnStatistics, out: &mut Vec<u8>) -> Result<()> {
    let (kind, modifier) = column.ty.to_words();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&modifier.to_le_bytes());
    for number in [column.null_fraction, column.width, column.distinct] {
        put_number(number, out);
    }
    let (values, shares): (Vec<Datum>, Vec<f64>) = column.common.iter().cloned().unzip();
    put_values(column.ty, &values, out)?;
    shares.iter().for_each(|share| put_number(*share, out));
    put_values(column.ty, &column.bounds, out)?;
    out.push(u8::from(column.correlation.is_some()));
    put_number(column.correlation.unwrap_or_default(), out);
    Ok(())
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_number(number: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn layout(ty: ColumnType, count: usize) -> RowLayout {
    RowLayout::new(&vec![ty; count])
}

fn put_values(ty: ColumnType, values: &[Datum], out: &mut Vec<u8>) -> Result<()> {
    put_count(values.len(), out);
    if values.is_empty() {
        return Ok(());
    }
    let mut row = Vec::new();
    layout(ty, values.len()).encode(values, &mut row)?;
    put_count(row.len(), out);
    out.extend_from_slice(&row);
    Ok(())
}

/// The statistics that `encode` wrote.
pub(crate) fn decode(bytes: &[u8]) -> Result<Statistics> {
    let at = bytes.len().checked_sub(SUM_BYTES).ok_or_else(bad)?;
    let (content, sum) = bytes.split_at(at);
    if crc32c(content).to_le_bytes() != sum {
        return Err(bad());
    }
    let mut r = Reader(content);
    if r.u8()? != FORMAT {
        return Err(bad());
    }
    let (serial, at_micros) = (r.u64()?, r.u64()? as i64);
    let rows = r.number(0.0, f64::MAX)?;
    let columns = r.list(COLUMNS_MAX, |r| match r.u8()? {
        0 => Ok(None),
        1 => read_column(r).map(Some),
        _ => Err(bad()),
    })?;
    let keys = r.list(KEYS_MAX, |r| {
        Ok(KeyStatistics {
            id: r.u32()?,
            distinct: r.list(KEYS_MAX, |r| r.number(-1.0, f64::MAX))?,
        })
    })?;
    match r.0 {
        [] => Ok(Statistics {
            serial,
            at_micros,
            rows,
            columns,
            keys,
        }),
        _ => Err(bad()),
    }
}

fn read_column(r: &mut Reader<'_>) -> Result<ColumnStatistics> {
    let ty = ColumnType::from_words(r.u32()?, r.u32()?).ok_or_else(bad)?;
    let null_fraction = r.number(0.0, 1.0)?;
    let (width, distinct) = (r.number(0.0, f64::MAX)?, r.number(-1.0, f64::MAX)?);
    let values = r.values(ty)?;
    let common = values
        .into_iter()
        .map(|value| Ok((value, r.number(0.0, 1.0)?)))
        .collect::<Result<Vec<_>>>()?;
    let bounds = r.values(ty)?;
    if !bounds.is_sorted_by_key(|bound| key_of(ty, bound)) || bounds.len() == 1 {
        return Err(bad());
    }
    let known = r.u8()?;
    let correlation = r.number(-1.0, 1.0)?;
    Ok(ColumnStatistics {
        ty,
        null_fraction,
        width,
        distinct,
        common,
        bounds,
        correlation: (known == 1).then_some(correlation),
    })
}

fn key_of(ty: ColumnType, value: &Datum) -> Vec<u8> {
    let mut key = Vec::new();
    key::push_datum(ty, value, &mut key);
    key
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(bad)?;
        self.0 = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| bad())
    }

    fn u64(&mut self) -> Result<u64> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| bad())
    }

    fn number(&mut self, least: f64, most: f64) -> Result<f64> {
        let number = f64::from_bits(self.u64()?);
        // Not a number is in no range.
        match (least..=most).contains(&number) {
            true => Ok(number),
            false => Err(bad()),
        }
    }

    fn list<T>(&mut self, most: usize, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()? as usize;
        if count > most {
            return Err(bad());
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn values(&mut self, ty: ColumnType) -> Result<Vec<Datum>> {
        let count = self.u32()? as usize;
        if count > MAX_TARGET as usize + 1 {
            return Err(bad());
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let len = self.u32()? as usize;
        let values = layout(ty, count).decode(self.take(len)?)?;
        match values.iter().any(Datum::is_null) {
            true => Err(bad()),
            false => Ok(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Numeric;

    fn some() -> Statistics {
        let column = |ty, common: Vec<Datum>, bounds: Vec<Datum>| ColumnStatistics {
            ty,
            null_fraction: 0.25,
            width: 4.5,
            distinct: -0.5,
            common: common.into_iter().map(|value| (value, 0.125)).collect(),
            bounds,
            correlation: Some(-0.5),
        };
        let text = |s: &str| Datum::Text(s.into());
        let number = |s: &str| Datum::Numeric(Numeric::parse(s).expect("a number"));
        Statistics {
            serial: 77,
            at_micros: -5,
            rows: 12345.0,
            columns: vec![
                Some(column(
                    ColumnType::Text,
                    vec![text("a"), text("")],
                    vec![text("b"), text("ü")],
                )),
                None,
                Some(column(ColumnType::Numeric(Some((9, 2))), vec![number("1.50")], vec![])),
                Some(column(
                    ColumnType::Float8,
                    vec![],
                    vec![Datum::Float8(-1.0), Datum::Float8(f64::NAN)],
                )),
            ],
            keys: vec![KeyStatistics {
                id: 16400,
                distinct: vec![3.0, -1.0],
            }],
        }
    }

    /// NaN among the bounds is compared as the trees do.
    fn text_of(statistics: &Statistics) -> String {
        format!("{statistics:?}")
    }

    #[test]
    fn statistics_round_trip() {
        let bytes = encode(&some()).expect("encoded");
        assert_eq!(text_of(&decode(&bytes).expect("read")), text_of(&some()));
    }

    #[test]
    fn damaged_bytes_are_refused_and_never_panic() {
        let bytes = encode(&some()).expect("encoded");
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err());
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode(&damaged).is_err(), "bit {bit} of byte {at}");
                // The same with a sum that fits: refused, or statistics in all their limits.
                let end = damaged.len() - SUM_BYTES;
                let sum = crc32c(&damaged[..end]).to_le_bytes();
                damaged[end..].copy_from_slice(&sum);
                if let Ok(read) = decode(&damaged) {
                    encode(&read).expect("what was read is statistics");
                }
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let with = |change: &dyn Fn(&mut ColumnStatistics)| {
            let mut statistics = some();
            change(statistics.columns[0].as_mut().expect("analyzed"));
            decode(&encode(&statistics).expect("encoded"))
        };
        assert!(with(&|_| {}).is_ok());
        assert!(with(&|c| c.bounds.reverse()).is_err(), "bounds fall");
        assert!(with(&|c| c.bounds.truncate(1)).is_err(), "a bucket has two bounds");
        assert!(with(&|c| c.null_fraction = 1.5).is_err(), "a share above one");
        assert!(with(&|c| c.width = f64::NAN).is_err(), "not a number");
        assert!(with(&|c| c.distinct = -2.0).is_err(), "more distinct values than rows");
        assert!(with(&|c| c.common[0].0 = Datum::Null).is_err(), "NULL is no value");
    }
}
