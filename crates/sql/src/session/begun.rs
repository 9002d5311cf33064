//! Rows of analytics whose first one is there: a query that analytics takes over may still turn out not to be for it.

use crate::error::Result;
use crate::hook::Rows;
use crate::output::{Field, Formats};
use crate::settings::Settings;
use bytes::BytesMut;
use cenote_engine::{Datum, Reader};

/// The rows, which stand on the first or at the end until `next` is called first.
pub(super) struct Begun {
    rows: Box<dyn Rows>,
    /// Whether there is a first row; None once that was told.
    has_first: Option<bool>,
}

impl Begun {
    /// Goes to the first row.
    ///
    /// # Errors
    /// As [`Rows::next`].
    pub fn start(mut rows: Box<dyn Rows>) -> Result<Box<dyn Rows>> {
        let has_first = Some(rows.next()?);
        Ok(Box::new(Begun { rows, has_first }))
    }
}

impl Rows for Begun {
    fn fields(&self) -> &[Field] {
        self.rows.fields()
    }

    fn next(&mut self) -> Result<bool> {
        match self.has_first.take() {
            Some(has_first) => Ok(has_first),
            None => self.rows.next(),
        }
    }

    fn encode(&self, formats: Formats<'_>, settings: &Settings, out: &mut BytesMut) -> Result<()> {
        self.rows.encode(formats, settings, out)
    }

    fn datums(&self) -> Result<Vec<Datum>> {
        self.rows.datums()
    }

    fn held_bytes(&self) -> usize {
        self.rows.held_bytes()
    }

    fn tables(&self) -> &[u32] {
        self.rows.tables()
    }

    fn again(&mut self, reader: Reader, row: &[u8]) -> Result<()> {
        self.has_first = None;
        self.rows.again(reader, row)
    }
}
