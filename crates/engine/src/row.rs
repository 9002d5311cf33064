//! A row as bytes: one column can be read without the others.
//!
//! ```text
//! +-------+-------------------+------------------+-------------------------+-----------+
//! | flags | null bitmap       | fixed part       | ends of variable values | values    |
//! | u8    | ceil(n/8) bytes   | by column order  | u32 each                | bytes     |
//! +-------+-------------------+------------------+-------------------------+-----------+
//! ```
//! Invariants: a fixed-length column has its place even where it is NULL (zeros); ends are relative to the start of the
//! values and never fall; the top bit of an end says that the value lies on overflow pages (flag bit 0 of the row says
//! that there is one; with flag bit 1 the row is a handle to all its bytes, which may have values outside in turn).
//! Rows that leave the engine are whole, but for columns that their reader has said not to read (`api::Columns`). Text
//! is checked UTF-8 when it is encoded and again when it is read. Numbers are little endian.

mod build;

use crate::error::{Error, Result};
use crate::types::{ColumnType, Datum, DatumRef, Numeric};

/// Row flag: at least one value lies on overflow pages.
pub(crate) const FLAG_EXTERNAL: u8 = 1;
/// Row flag, beside [`FLAG_EXTERNAL`]: the whole row lies there; a handle follows the flags, and nothing else.
pub(crate) const FLAG_WHOLE: u8 = 2;
/// Bit of a variable value's end: the value is a handle to overflow pages.
pub(crate) const END_EXTERNAL: u32 = 1 << 31;
/// Longest row, in bytes, before large values are moved out.
pub const MAX_ROW_BYTES: usize = 1 << 30;
const _: () = {
    assert!(FLAG_EXTERNAL & FLAG_WHOLE == 0, "each flag is a bit of its own");
    assert!(
        MAX_ROW_BYTES <= END_EXTERNAL as usize,
        "an end within a row leaves its top bit free"
    );
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Fixed(u32),
    Variable(u32),
}

/// Where the columns of a table lie in its rows.
#[derive(Debug, Clone)]
pub struct RowLayout {
    types: Vec<ColumnType>,
    places: Vec<Place>,
    ends_at: usize,
    values_at: usize,
    variables: usize,
}

impl RowLayout {
    /// The layout of rows with these columns.
    pub fn new(types: &[ColumnType]) -> RowLayout {
        let mut fixed = 1 + types.len().div_ceil(8);
        let mut variables = 0;
        let mut places = Vec::with_capacity(types.len());
        for ty in types {
            match ty.fixed_len() {
                Some(len) => {
                    places.push(Place::Fixed(fixed as u32));
                    fixed += len;
                }
                None => {
                    places.push(Place::Variable(variables as u32));
                    variables += 1;
                }
            }
        }
        RowLayout {
            types: types.to_vec(),
            places,
            ends_at: fixed,
            values_at: fixed + 4 * variables,
            variables,
        }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.types.len()
    }

    /// Type of a column.
    pub fn column_type(&self, column: usize) -> ColumnType {
        self.types[column]
    }

    /// Appends the row of `values` to `out` (cleared first).
    ///
    /// # Errors
    /// [`Error::Internal`]: wrong count or type of values. The row, or a value, is too long.
    pub fn encode(&self, values: &[Datum], out: &mut Vec<u8>) -> Result<()> {
        self.encode_with(values.len(), |i| values[i].as_ref(), out)
    }

    /// As `encode`, asking for each value.
    ///
    /// # Errors
    /// As [`RowLayout::encode`].
    pub fn encode_with<'v>(
        &self,
        count: usize,
        value: impl Fn(usize) -> DatumRef<'v>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if count != self.types.len() {
            return Err(Error::Internal(format!(
                "row of {count} values for {} columns",
                self.types.len()
            )));
        }
        out.clear();
        out.resize(self.values_at, 0);
        for column in 0..count {
            self.put_checked(column, &value(column), out)?;
        }
        Ok(())
    }

    fn put_checked(&self, column: usize, datum: &DatumRef<'_>, out: &mut Vec<u8>) -> Result<()> {
        if !self.types[column].admits(datum) {
            return Err(Error::Internal(format!(
                "value {datum:?} in a column of type {}",
                self.types[column]
            )));
        }
        self.put(column, datum, out)
    }

    /// Notes that the value of a variable column ends here.
    fn put_end(&self, index: u32, external: bool, out: &mut [u8]) -> Result<()> {
        let end = out.len() - self.values_at;
        if end > MAX_ROW_BYTES {
            return Err(too_big());
        }
        let at = self.ends_at + 4 * index as usize;
        let end = end as u32 | if external { END_EXTERNAL } else { 0 };
        out[at..at + 4].copy_from_slice(&end.to_le_bytes());
        Ok(())
    }

    fn put(&self, column: usize, datum: &DatumRef<'_>, out: &mut Vec<u8>) -> Result<()> {
        match self.places[column] {
            Place::Fixed(at) => match datum {
                DatumRef::Null => set_null(out, column),
                other => put_fixed(other, &mut out[at as usize..]),
            },
            Place::Variable(index) => {
                match datum {
                    DatumRef::Null => set_null(out, column),
                    DatumRef::Text(text) => out.extend_from_slice(text.as_bytes()),
                    DatumRef::Bytes(bytes) => out.extend_from_slice(bytes),
                    DatumRef::Numeric(number) => number.write_wire(out),
                    _ => {}
                }
                self.put_end(index, false, out)?;
            }
        }
        Ok(())
    }

    /// Begins a row behind what is in `out`: all columns are NULL that are not put.
    pub(crate) fn begin_sparse<'r>(&'r self, out: &'r mut Vec<u8>) -> RowBegun<'r> {
        let start = out.len();
        out.resize(start + self.values_at, 0);
        let columns = self.types.len();
        let nulls = &mut out[start + 1..][..columns.div_ceil(8)];
        nulls.fill(0xFF);
        if let (Some(last), left @ 1..) = (nulls.last_mut(), columns % 8) {
            *last = (1 << left) - 1;
        }
        RowBegun {
            layout: self,
            out,
            start,
            next: 0,
        }
    }

    /// Whether a column is NULL.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: bytes that are no row of this layout.
    pub fn is_null(&self, row: &[u8], column: usize) -> Result<bool> {
        let byte = row.get(1 + column / 8).ok_or_else(truncated)?;
        Ok(byte & (1 << (column % 8)) != 0)
    }

    /// One column of a row, without decoding the others.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: bytes that are no row of this layout.
    pub fn column<'r>(&self, row: &'r [u8], column: usize) -> Result<DatumRef<'r>> {
        if self.is_null(row, column)? {
            return Ok(DatumRef::Null);
        }
        let ty = self.types[column];
        match self.places[column] {
            Place::Fixed(at) => read_fixed(ty, row.get(at as usize..).ok_or_else(truncated)?),
            Place::Variable(_) => read_variable(ty, self.inline(row, column)?),
        }
    }

    /// The raw bytes of a column: its fixed bytes (little endian), or its text, bytea or numeric wire form; None for
    /// NULL.
    ///
    /// # Errors
    /// As [`RowLayout::column`].
    pub fn column_bytes<'r>(&self, row: &'r [u8], column: usize) -> Result<Option<&'r [u8]>> {
        if self.is_null(row, column)? {
            return Ok(None);
        }
        match self.places[column] {
            Place::Fixed(at) => {
                let len = self.types[column].fixed_len().unwrap_or(0);
                row.get(at as usize..at as usize + len).map(Some).ok_or_else(truncated)
            }
            Place::Variable(_) => self.inline(row, column).map(Some),
        }
    }

    /// Reads one column of many rows.
    pub fn reader(&self, column: usize) -> ColumnReader {
        let place = match self.places[column] {
            Place::Fixed(at) => (at as usize, self.types[column].fixed_len()),
            Place::Variable(index) => (self.ends_at + 4 * index as usize, None),
        };
        ColumnReader {
            null_at: 1 + column / 8,
            null_bit: 1 << (column % 8),
            at: place.0,
            fixed: place.1,
            first: place.0 == self.ends_at,
            values_at: self.values_at,
        }
    }

    /// Appends to `out` (cleared first) the row `old` with other values in some columns. The others are copied as they
    /// are, those on overflow pages too.
    ///
    /// # Errors
    /// A value of the wrong type, a row too large, bytes that are no row of this layout.
    pub fn with<'v>(
        &self,
        old: &[u8],
        changed: impl Fn(usize) -> Option<DatumRef<'v>>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.clear();
        out.resize(self.values_at, 0);
        for column in 0..self.types.len() {
            match changed(column) {
                Some(datum) => self.put_checked(column, &datum, out)?,
                None => self.copy(column, old, out)?,
            }
        }
        Ok(())
    }

    fn copy(&self, column: usize, old: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let is_null = self.is_null(old, column)?;
        if is_null {
            set_null(out, column);
        }
        match self.places[column] {
            Place::Fixed(at) => {
                let range = at as usize..at as usize + self.types[column].fixed_len().unwrap_or(0);
                let bytes = old.get(range.clone()).ok_or_else(truncated)?;
                out[range].copy_from_slice(bytes);
                Ok(())
            }
            Place::Variable(index) => {
                let (bytes, external) = self.variable(old, column)?;
                out.extend_from_slice(bytes);
                if external && !is_null {
                    out[0] |= FLAG_EXTERNAL;
                }
                self.put_end(index, external && !is_null, out)
            }
        }
    }

    /// All columns, owned.
    ///
    /// # Errors
    /// As [`RowLayout::column`].
    pub fn decode(&self, row: &[u8]) -> Result<Vec<Datum>> {
        (0..self.types.len())
            .map(|i| self.column(row, i).map(|d| d.to_owned()))
            .collect()
    }

    /// Bytes of a variable column and whether they are a handle to overflow pages.
    pub(crate) fn variable<'r>(&self, row: &'r [u8], column: usize) -> Result<(&'r [u8], bool)> {
        let Place::Variable(index) = self.places[column] else {
            return Err(Error::Internal("column has a fixed length".into()));
        };
        let start = if index == 0 {
            0
        } else {
            self.end(row, index - 1)? & !END_EXTERNAL
        };
        let end = self.end(row, index)?;
        let external = end & END_EXTERNAL != 0;
        let range = self.values_at + start as usize..self.values_at + (end & !END_EXTERNAL) as usize;
        row.get(range).map(|bytes| (bytes, external)).ok_or_else(truncated)
    }

    /// Bytes of a variable column. Errors: they lie on overflow pages, and were not asked for; the handle is no value.
    fn inline<'r>(&self, row: &'r [u8], column: usize) -> Result<&'r [u8]> {
        match self.variable(row, column)? {
            (bytes, false) => Ok(bytes),
            (_, true) => Err(left_outside()),
        }
    }

    fn end(&self, row: &[u8], index: u32) -> Result<u32> {
        let at = self.ends_at + 4 * index as usize;
        let bytes = row.get(at..at + 4).ok_or_else(truncated)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Whether the column's value was left on overflow pages.
    ///
    /// # Errors
    /// As [`RowLayout::column`].
    pub fn is_external(&self, row: &[u8], column: usize) -> Result<bool> {
        match self.places[column] {
            Place::Fixed(_) => Ok(false),
            Place::Variable(_) => Ok(self.variable(row, column)?.1 && !self.is_null(row, column)?),
        }
    }

    /// Columns of variable length, in order.
    pub(crate) fn variable_columns(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.types.len()).filter(|c| matches!(self.places[*c], Place::Variable(_)))
    }

    /// Rewrites the variable values of `row`: `replace` gives, for each column, its new bytes and whether they are a
    /// handle. Errors: those of `replace`, a row too large.
    pub(crate) fn rewrite_variables(
        &self,
        row: &[u8],
        mut replace: impl FnMut(usize, &[u8], bool, &mut Vec<u8>) -> Result<bool>,
    ) -> Result<Vec<u8>> {
        let mut out = row.get(..self.values_at).ok_or_else(truncated)?.to_vec();
        let mut any = false;
        let mut value = Vec::new();
        let columns: Vec<usize> = self.variable_columns().collect();
        assert_eq!(columns.len(), self.variables, "each variable column has its place");
        for (index, column) in columns.into_iter().enumerate() {
            let (bytes, external) = self.variable(row, column)?;
            value.clear();
            let now_external = replace(column, bytes, external, &mut value)?;
            out.extend_from_slice(&value);
            any |= now_external;
            self.put_end(index as u32, now_external, &mut out)?;
        }
        out[0] = if any {
            row[0] | FLAG_EXTERNAL
        } else {
            row[0] & !FLAG_EXTERNAL
        };
        Ok(out)
    }
}

/// Where a column lies in rows, worked out once for many of them.
#[derive(Debug, Clone, Copy)]
pub struct ColumnReader {
    null_at: usize,
    null_bit: u8,
    /// Of a fixed column its bytes; else the end of its value.
    at: usize,
    fixed: Option<usize>,
    /// Whether no variable column is before it.
    first: bool,
    values_at: usize,
}

impl ColumnReader {
    /// The raw bytes of the column, as [`RowLayout::column_bytes`] gives them; None for NULL.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: bytes that are no row of the layout. The value was left on overflow pages.
    #[inline(always)]
    pub fn bytes<'r>(&self, row: &'r [u8]) -> Result<Option<&'r [u8]>> {
        match row.get(self.null_at) {
            Some(byte) if byte & self.null_bit != 0 => return Ok(None),
            Some(_) => {}
            None => return Err(truncated()),
        }
        if let Some(len) = self.fixed {
            return row.get(self.at..self.at + len).map(Some).ok_or_else(truncated);
        }
        let end = |at: usize| match row.get(at..at + 4) {
            Some(bytes) => Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            None => Err(truncated()),
        };
        let start = if self.first {
            0
        } else {
            end(self.at - 4)? & !END_EXTERNAL
        };
        let end = end(self.at)?;
        if end & END_EXTERNAL != 0 {
            return Err(left_outside());
        }
        let range = self.values_at + start as usize..self.values_at + end as usize;
        row.get(range).map(Some).ok_or_else(truncated)
    }
}

/// A row under way, at the end of other bytes.
pub(crate) struct RowBegun<'r> {
    layout: &'r RowLayout,
    out: &'r mut Vec<u8>,
    start: usize,
    /// The first variable column whose end is not noted.
    next: usize,
}

impl RowBegun<'_> {
    /// Puts the bytes of a column's value (`RowLayout::column_bytes`). Columns are put in their order.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: bytes of another length than the type's. [`Error::TooLarge`]: the row is too long.
    pub(crate) fn put(&mut self, column: usize, value: &[u8]) -> Result<()> {
        match self.layout.places[column] {
            Place::Fixed(at) => {
                let at = self.start + at as usize;
                if self.layout.types[column].fixed_len() != Some(value.len()) {
                    return Err(truncated());
                }
                self.out[at..at + value.len()].copy_from_slice(value);
            }
            Place::Variable(index) => {
                assert!(index as usize >= self.next, "columns are put in their order");
                self.note_ends(index as usize)?;
                self.out.extend_from_slice(value);
                self.note_ends(index as usize + 1)?;
            }
        }
        self.out[self.start + 1 + column / 8] &= !(1 << (column % 8));
        Ok(())
    }

    /// Notes that the variable columns before `to` end here.
    fn note_ends(&mut self, to: usize) -> Result<()> {
        let end = self.out.len() - self.start - self.layout.values_at;
        if end > MAX_ROW_BYTES {
            return Err(too_big());
        }
        for index in self.next..to {
            let at = self.start + self.layout.ends_at + 4 * index;
            self.out[at..at + 4].copy_from_slice(&(end as u32).to_le_bytes());
        }
        self.next = to;
        Ok(())
    }

    /// The row is whole.
    ///
    /// # Errors
    /// [`Error::TooLarge`]: the row is too long.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.note_ends(self.layout.variables)
    }
}

fn set_null(row: &mut [u8], column: usize) {
    row[1 + column / 8] |= 1 << (column % 8);
}

fn put_fixed(datum: &DatumRef<'_>, out: &mut [u8]) {
    match datum {
        DatumRef::Bool(v) => out[0] = u8::from(*v),
        DatumRef::Int2(v) => out[..2].copy_from_slice(&v.to_le_bytes()),
        DatumRef::Int4(v) | DatumRef::Date(v) => out[..4].copy_from_slice(&v.to_le_bytes()),
        DatumRef::Int8(v) | DatumRef::Timestamp(v) | DatumRef::TimestampTz(v) => {
            out[..8].copy_from_slice(&v.to_le_bytes())
        }
        DatumRef::Float4(v) => out[..4].copy_from_slice(&v.to_bits().to_le_bytes()),
        DatumRef::Float8(v) => out[..8].copy_from_slice(&v.to_bits().to_le_bytes()),
        _ => {}
    }
}

fn read_fixed(ty: ColumnType, bytes: &[u8]) -> Result<DatumRef<'static>> {
    Ok(match ty {
        ColumnType::Bool => DatumRef::Bool(array::<1>(bytes)?[0] != 0),
        ColumnType::Int2 => DatumRef::Int2(i16::from_le_bytes(array(bytes)?)),
        ColumnType::Int4 => DatumRef::Int4(i32::from_le_bytes(array(bytes)?)),
        ColumnType::Int8 => DatumRef::Int8(i64::from_le_bytes(array(bytes)?)),
        ColumnType::Float4 => DatumRef::Float4(f32::from_le_bytes(array(bytes)?)),
        ColumnType::Float8 => DatumRef::Float8(f64::from_le_bytes(array(bytes)?)),
        ColumnType::Date => DatumRef::Date(i32::from_le_bytes(array(bytes)?)),
        ColumnType::Timestamp => DatumRef::Timestamp(i64::from_le_bytes(array(bytes)?)),
        ColumnType::TimestampTz => DatumRef::TimestampTz(i64::from_le_bytes(array(bytes)?)),
        _ => return Err(truncated()),
    })
}

fn read_variable(ty: ColumnType, bytes: &[u8]) -> Result<DatumRef<'_>> {
    Ok(match ty {
        ColumnType::Numeric(_) => DatumRef::Numeric(Numeric::read_wire(bytes)?),
        ColumnType::Bytes => DatumRef::Bytes(bytes),
        _ => DatumRef::Text(std::str::from_utf8(bytes).map_err(|_| Error::Corrupt("text that is not UTF-8".into()))?),
    })
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.get(..N).and_then(|b| b.try_into().ok()).ok_or_else(truncated)
}

/// 54000 for a row longer than [`MAX_ROW_BYTES`].
pub(crate) fn too_big() -> Error {
    Error::TooLarge(format!("row is too big: more than {MAX_ROW_BYTES} bytes"))
}

#[cold]
fn left_outside() -> Error {
    Error::Internal("a value on overflow pages was read from the row".into())
}

#[cold]
fn truncated() -> Error {
    Error::Corrupt("a row shorter than its table's layout".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_one_by_one() {
        let layout = RowLayout::new(&[
            ColumnType::Int4,
            ColumnType::Text,
            ColumnType::Numeric(None),
            ColumnType::Bool,
            ColumnType::Bytes,
        ]);
        let values = vec![
            Datum::Int4(-7),
            Datum::Text("héllo".into()),
            Datum::Numeric(Numeric::parse("12.50").unwrap()),
            Datum::Null,
            Datum::Bytes(vec![0, 1, 2]),
        ];
        let mut row = Vec::new();
        layout.encode(&values, &mut row).unwrap();
        for i in (0..5).rev() {
            assert_eq!(layout.column(&row, i).unwrap().to_owned(), values[i]);
        }
        assert_eq!(layout.decode(&row).unwrap(), values);
        for cut in 0..row.len() {
            let _ = layout.decode(&row[..cut]);
        }
        let moved = layout
            .rewrite_variables(&row, |c, b, _, out| {
                out.extend_from_slice(if c == 1 { b"handle" } else { b });
                Ok(c == 1)
            })
            .unwrap();
        assert_eq!(layout.variable(&moved, 1).unwrap(), (&b"handle"[..], true));
        assert!(layout.column(&moved, 1).is_err() && layout.column_bytes(&moved, 1).is_err());
        assert_eq!(layout.column(&moved, 4).unwrap(), DatumRef::Bytes(&[0, 1, 2]));
        assert_eq!(moved[0] & FLAG_EXTERNAL, 1);
    }

    #[test]
    fn wrong_types_are_refused() {
        let layout = RowLayout::new(&[ColumnType::Int4]);
        assert!(layout.encode(&[Datum::Int8(1)], &mut Vec::new()).is_err());
        assert!(layout.encode(&[], &mut Vec::new()).is_err());
    }
}
