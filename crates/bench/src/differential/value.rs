//! Values of prepared statements: given as text, read in the binary format.

use bytes::BytesMut;
use postgres::types::{Format, FromSql, IsNull, ToSql, Type};
use std::error::Error;
use std::fmt::Write;

/// A parameter in the text format, of whatever type the server takes it for.
#[derive(Debug)]
pub struct Given<'a>(pub Option<&'a str>);

impl ToSql for Given<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(text) = self.0 else {
            return Ok(IsNull::Yes);
        };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.to_sql(ty, out)
    }
}

/// A result in the binary format: numbers and texts in words, other types as their bytes.
#[derive(Debug)]
pub struct Shown(pub Option<String>);

impl<'a> FromSql<'a> for Shown {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Shown(Some(match *ty {
            Type::BOOL => bool::from_sql(ty, raw)?.to_string(),
            Type::INT2 => i16::from_sql(ty, raw)?.to_string(),
            Type::INT4 => i32::from_sql(ty, raw)?.to_string(),
            Type::INT8 => i64::from_sql(ty, raw)?.to_string(),
            Type::TEXT | Type::VARCHAR | Type::BPCHAR => String::from_sql(ty, raw)?,
            _ => bytes_of(raw),
        })))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Shown(None))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn bytes_of(raw: &[u8]) -> String {
    raw.iter().fold(String::from("\\x"), |mut text, byte| {
        // A string takes all that is written.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_in_words_and_other_types_as_bytes() {
        let shown = |ty, raw: &[u8]| Shown::from_sql(&ty, raw).expect("a value of its type").0;
        assert_eq!(shown(Type::INT4, &[0xff, 0xff, 0xff, 0xfe]).as_deref(), Some("-2"));
        assert_eq!(shown(Type::BOOL, &[1]).as_deref(), Some("true"));
        assert_eq!(shown(Type::DATE, &[0, 0, 1, 0xab]).as_deref(), Some("\\x000001ab"));
    }
}
