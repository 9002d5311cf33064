//! Rows as lines of COPY TO STDOUT.

use crate::error::Result;
use crate::exec::sink::Sink;
use crate::expr::{Env, Expr};
use crate::hook::Rows;
use crate::output::Output;
use crate::parse::CopyFormat;
use crate::settings::Settings;
use crate::types::text::write_datum;
use crate::types::zone::Zone;
use bytes::{BufMut, BytesMut};
use cenote_engine::{Datum, DatumRef};

/// Writes rows as COPY data.
pub struct CopySink<'a> {
    /// The client.
    pub out: &'a mut dyn Output,
    /// The format.
    pub format: &'a CopyFormat,
    /// Columns whose values are always in quotes.
    pub forced: Vec<bool>,
    /// The session's settings.
    pub settings: &'a Settings,
}

impl Sink for CopySink<'_> {
    fn row(&mut self, outputs: &[Expr], env: &Env<'_>) -> Result<()> {
        let values = outputs.iter().map(|e| e.eval(env)).collect::<Result<Vec<_>>>()?;
        self.values(&values)
    }

    fn values(&mut self, row: &[Datum]) -> Result<()> {
        let (format, forced, zone) = (self.format, &self.forced, self.settings.zone());
        self.out.copy_row(&mut |buffer| {
            put_line(row.iter().map(Datum::as_ref), format, forced, zone, buffer);
            Ok(())
        })
    }

    fn foreign(&mut self, rows: &dyn Rows) -> Result<()> {
        self.values(&rows.datums()?)
    }
}

/// Writes a row as a line.
pub fn put_line<'d>(
    values: impl Iterator<Item = DatumRef<'d>>,
    format: &CopyFormat,
    forced: &[bool],
    zone: &Zone,
    out: &mut BytesMut,
) {
    let mut text = String::new();
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.put_u8(format.delimiter);
        }
        if value.is_null() {
            out.put_slice(format.null.as_bytes());
            continue;
        }
        text.clear();
        write_datum(&value, zone, &mut text);
        if format.csv {
            put_csv(&text, format, forced.get(i) == Some(&true), out);
        } else {
            put_text(&text, format.delimiter, out);
        }
    }
    out.put_u8(b'\n');
}

fn put_text(text: &str, delimiter: u8, out: &mut BytesMut) {
    for byte in text.bytes() {
        let escape = match byte {
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            b'\\' => b'\\',
            other if other == delimiter => other,
            other => {
                out.put_u8(other);
                continue;
            }
        };
        out.put_slice(&[b'\\', escape]);
    }
}

fn put_csv(text: &str, format: &CopyFormat, forced: bool, out: &mut BytesMut) {
    let special = |b: u8| b == format.delimiter || b == format.quote || b == b'\n' || b == b'\r';
    let quoted = forced || text == format.null || text == "\\." || text.bytes().any(special);
    if !quoted {
        return out.put_slice(text.as_bytes());
    }
    out.put_u8(format.quote);
    for byte in text.bytes() {
        if byte == format.quote || byte == format.escape {
            out.put_u8(format.escape);
        }
        out.put_u8(byte);
    }
    out.put_u8(format.quote);
}
