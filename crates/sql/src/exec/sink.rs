//! Where result rows go: to the client's buffer, to memory, or into COPY lines.

use crate::error::Result;
use crate::expr::{Env, Expr, Input};
use crate::hook::Rows;
use crate::output::{Field, Format, Formats, Output};
use crate::settings::Settings;
use crate::types::is_string;
use crate::types::wire::{put_bytes, put_datum};
use cenote_engine::{Account, Charge, Datum, DatumRef};
use std::sync::Arc;

/// Rows given by one execution, and whether the end was reached.
pub struct Progress {
    /// Rows given.
    pub rows: u64,
    /// Whether there are no more.
    pub done: bool,
}

/// Takes result rows.
pub trait Sink {
    /// A row computed from an input row.
    fn row(&mut self, outputs: &[Expr], env: &Env<'_>) -> Result<()>;
    /// A row that was gathered.
    fn values(&mut self, row: &[Datum]) -> Result<()>;
    /// A row of one text column.
    fn text(&mut self, text: Option<&[u8]>) -> Result<()> {
        let owned = |bytes| String::from_utf8_lossy(bytes).into_owned();
        self.values(&[text.map_or(Datum::Null, |bytes| Datum::Text(owned(bytes)))])
    }
    /// The current row of another planner's query.
    fn foreign(&mut self, rows: &dyn Rows) -> Result<()>;
}

/// The client.
pub struct ClientSink<'a> {
    /// Its buffer.
    pub out: &'a mut dyn Output,
    /// How it wants the columns.
    pub formats: Formats<'a>,
    /// For the time zone.
    pub settings: &'a Settings,
    /// Columns to describe before the first row. Not earlier: until then the statement may still be planned again.
    pub describe: Option<&'a [Field]>,
}

impl ClientSink<'_> {
    /// RowDescription, where it is wanted and has not gone yet.
    ///
    /// # Errors
    /// The connection is lost.
    #[inline]
    pub fn announce(&mut self) -> Result<()> {
        match self.describe.take() {
            None => Ok(()),
            Some(fields) => self.out.row_description(fields, self.formats),
        }
    }
}

impl Sink for ClientSink<'_> {
    fn row(&mut self, outputs: &[Expr], env: &Env<'_>) -> Result<()> {
        self.announce()?;
        let (formats, zone) = (self.formats, self.settings.zone());
        self.out.row(outputs.len() as u16, &mut |buffer| {
            for (i, output) in outputs.iter().enumerate() {
                if let (Expr::Column(column), Input::Stored(layout, row)) = (output, &env.input)
                    && is_string(layout.column_type(usize::from(*column)))
                {
                    // Text goes out as it lies in the row.
                    match layout.column_bytes(row, usize::from(*column))? {
                        Some(bytes) => put_bytes(bytes, buffer),
                        None => put_datum(&DatumRef::Null, Format::Text, zone, buffer),
                    }
                    continue;
                }
                put_datum(&output.value(env)?.get(), formats.of(i), zone, buffer);
            }
            Ok(())
        })
    }

    fn values(&mut self, row: &[Datum]) -> Result<()> {
        self.announce()?;
        let (formats, zone) = (self.formats, self.settings.zone());
        self.out.row(row.len() as u16, &mut |buffer| {
            row.iter()
                .enumerate()
                .for_each(|(i, value)| put_datum(&value.as_ref(), formats.of(i), zone, buffer));
            Ok(())
        })
    }

    fn text(&mut self, text: Option<&[u8]>) -> Result<()> {
        self.announce()?;
        let zone = self.settings.zone();
        self.out.row(1, &mut |buffer| {
            match text {
                Some(bytes) => put_bytes(bytes, buffer),
                None => put_datum(&DatumRef::Null, Format::Text, zone, buffer),
            }
            Ok(())
        })
    }

    fn foreign(&mut self, rows: &dyn Rows) -> Result<()> {
        self.announce()?;
        let (formats, settings) = (self.formats, self.settings);
        self.out.row(rows.fields().len() as u16, &mut |buffer| {
            rows.encode(formats, settings, buffer)
        })
    }
}

/// Memory, charged to the session.
pub struct Gather(pub Vec<Vec<Datum>>, Charge);

impl Gather {
    /// Empty.
    pub fn new(account: &Arc<Account>) -> Gather {
        Gather(Vec::new(), Charge::new(account))
    }

    fn push(&mut self, row: Vec<Datum>) -> Result<()> {
        self.1.grow(size_of_row(&row))?;
        self.0.push(row);
        Ok(())
    }
}

/// Bytes of a row that was gathered.
pub fn size_of_row(row: &[Datum]) -> usize {
    let inner = |d: &Datum| match d {
        Datum::Text(s) => s.len(),
        Datum::Bytes(b) => b.len(),
        _ => 0,
    };
    // The list that it lies in doubles as it grows.
    48 + row.iter().map(|d| size_of::<Datum>() + inner(d)).sum::<usize>()
}

impl Sink for Gather {
    fn row(&mut self, outputs: &[Expr], env: &Env<'_>) -> Result<()> {
        self.push(outputs.iter().map(|e| e.eval(env)).collect::<Result<_>>()?)
    }

    fn values(&mut self, row: &[Datum]) -> Result<()> {
        self.push(row.to_vec())
    }

    fn foreign(&mut self, rows: &dyn Rows) -> Result<()> {
        self.push(rows.datums()?)
    }
}

/// Nowhere: EXPLAIN ANALYZE only counts.
pub struct Count;

impl Sink for Count {
    fn row(&mut self, outputs: &[Expr], env: &Env<'_>) -> Result<()> {
        outputs.iter().try_for_each(|e| e.value(env).map(drop))
    }
    fn values(&mut self, _row: &[Datum]) -> Result<()> {
        Ok(())
    }
    fn foreign(&mut self, _rows: &dyn Rows) -> Result<()> {
        Ok(())
    }
}
