//! Rows from values that come one by one, in the order of the columns: without a list of values before.

use super::RowLayout;
use crate::error::{Error, Result};
use crate::types::DatumRef;

impl RowLayout {
    /// Begins a row in `out` (cleared first): a value of each column is to follow, in their order.
    pub fn begin(&self, out: &mut Vec<u8>) {
        out.clear();
        out.resize(self.values_at, 0);
    }

    /// Adds the value of a column.
    ///
    /// # Errors
    /// [`Error::Internal`]: it is of another type. The row is too long.
    pub fn add(&self, column: usize, datum: &DatumRef<'_>, out: &mut Vec<u8>) -> Result<()> {
        self.put_checked(column, datum, out)
    }

    /// Adds to a column of variable length what `write` appends: bytes of a text or bytea, or the wire form of a
    /// numeric. False, as `write` answers: there is no such value, and the row is of no use.
    ///
    /// # Errors
    /// [`Error::Internal`]: the column is of another kind. The row is too long.
    pub fn add_bytes(
        &self,
        column: usize,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> Result<bool> {
        let super::Place::Variable(index) = self.places[column] else {
            return Err(Error::Internal("column has a fixed length".into()));
        };
        if !write(out) {
            return Ok(false);
        }
        self.put_end(index, false, out)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ColumnType, Datum};

    #[test]
    fn it_is_the_row_that_a_list_of_values_makes() {
        let layout = RowLayout::new(&[ColumnType::Text, ColumnType::Int4, ColumnType::Bytes, ColumnType::Text]);
        let values = [
            Datum::Text("one".into()),
            Datum::Int4(2),
            Datum::Null,
            Datum::Text("four".into()),
        ];
        let (mut want, mut row) = (Vec::new(), vec![7; 3]);
        layout.encode(&values, &mut want).unwrap();
        layout.begin(&mut row);
        let text = |text: &'static str| {
            move |out: &mut Vec<u8>| {
                out.extend_from_slice(text.as_bytes());
                true
            }
        };
        assert!(layout.add_bytes(0, &mut row, text("one")).unwrap());
        layout.add(1, &DatumRef::Int4(2), &mut row).unwrap();
        layout.add(2, &DatumRef::Null, &mut row).unwrap();
        assert!(layout.add_bytes(3, &mut row, text("four")).unwrap());
        assert_eq!(row, want);
        assert!(!layout.add_bytes(3, &mut row, |_| false).unwrap());
        assert!(layout.add_bytes(1, &mut row, |_| true).is_err());
        assert!(layout.add(1, &DatumRef::Int8(2), &mut row).is_err());
    }
}
