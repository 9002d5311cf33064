//! Values on the wire: i32 length and bytes, text or binary, appended to the socket's buffer.

use super::text::{TextContext, parse_datum, write_datum};
use super::zone::Zone;
use super::{oid, type_of_oid};
use crate::error::{Result, SqlError, code};
use crate::output::Format;
use bytes::{BufMut, BytesMut};
use cenote_engine::types::{ColumnType, Datum, DatumRef, Numeric};

/// Appends length and bytes of a value; -1 for NULL.
pub fn put_datum(datum: &DatumRef<'_>, format: Format, zone: &Zone, out: &mut BytesMut) {
    match (datum, format) {
        (DatumRef::Null, _) => out.put_i32(-1),
        (DatumRef::Text(text), _) => put_bytes(text.as_bytes(), out),
        (_, Format::Text) => put_text(datum, zone, out),
        (_, Format::Binary) => put_binary(datum, out),
    }
}

/// Appends length and bytes.
pub fn put_bytes(bytes: &[u8], out: &mut BytesMut) {
    out.reserve(4 + bytes.len());
    out.put_i32(bytes.len() as i32);
    out.put_slice(bytes);
}

fn put_text(datum: &DatumRef<'_>, zone: &Zone, out: &mut BytesMut) {
    let at = out.len();
    out.put_i32(0);
    write_datum(datum, zone, out);
    let len = (out.len() - at - 4) as i32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

fn put_binary(datum: &DatumRef<'_>, out: &mut BytesMut) {
    match datum {
        DatumRef::Null => out.put_i32(-1),
        DatumRef::Bool(v) => put_bytes(&[u8::from(*v)], out),
        DatumRef::Int2(v) => put_bytes(&v.to_be_bytes(), out),
        DatumRef::Int4(v) | DatumRef::Date(v) => put_bytes(&v.to_be_bytes(), out),
        DatumRef::Int8(v) | DatumRef::Timestamp(v) | DatumRef::TimestampTz(v) => put_bytes(&v.to_be_bytes(), out),
        DatumRef::Float4(v) => put_bytes(&v.to_be_bytes(), out),
        DatumRef::Float8(v) => put_bytes(&v.to_be_bytes(), out),
        DatumRef::Numeric(v) => {
            let mut bytes = Vec::new();
            v.write_wire(&mut bytes);
            put_bytes(&bytes, out);
        }
        DatumRef::Text(v) => put_bytes(v.as_bytes(), out),
        DatumRef::Bytes(v) => put_bytes(v, out),
    }
}

/// Reads a parameter.
///
/// # Errors
/// 22P03: the bytes are no value of the type in binary. 22021: a text is not UTF-8. Else as [`parse_datum`].
pub fn read_param(bytes: Option<&[u8]>, format: Format, ty: ColumnType, cx: TextContext<'_>) -> Result<Datum> {
    match (bytes, format) {
        (None, _) => Ok(Datum::Null),
        (Some(bytes), Format::Text) => parse_datum(utf8(bytes)?, ty, cx),
        (Some(bytes), Format::Binary) => read_binary(bytes, ty),
    }
}

/// Checked UTF-8 without zero bytes, as PostgreSQL admits it in text.
///
/// # Errors
/// 22021: the bytes are not UTF-8, or one is zero.
pub fn utf8(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let bad: Vec<String> = bytes[e.valid_up_to()..]
            .iter()
            .take(e.error_len().unwrap_or(1))
            .map(|b| format!("0x{b:02x}"))
            .collect();
        SqlError::new(
            code::BAD_ENCODING,
            format!("invalid byte sequence for encoding \"UTF8\": {}", bad.join(" ")),
        )
    })?;
    if text.as_bytes().contains(&0) {
        return Err(SqlError::new(
            code::BAD_ENCODING,
            "invalid byte sequence for encoding \"UTF8\": 0x00",
        ));
    }
    Ok(text)
}

fn read_binary(bytes: &[u8], ty: ColumnType) -> Result<Datum> {
    Ok(match ty {
        ColumnType::Bool => Datum::Bool(array::<1>(bytes)?[0] != 0),
        ColumnType::Int2 => Datum::Int2(i16::from_be_bytes(array(bytes)?)),
        ColumnType::Int4 => Datum::Int4(i32::from_be_bytes(array(bytes)?)),
        ColumnType::Int8 => Datum::Int8(i64::from_be_bytes(array(bytes)?)),
        ColumnType::Float4 => Datum::Float4(f32::from_be_bytes(array(bytes)?)),
        ColumnType::Float8 => Datum::Float8(f64::from_be_bytes(array(bytes)?)),
        ColumnType::Numeric(_) => Datum::Numeric(Numeric::read_wire(bytes).map_err(|_| bad_binary())?),
        ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Char(_) => Datum::Text(utf8(bytes)?.to_string()),
        ColumnType::Bytes => Datum::Bytes(bytes.to_vec()),
        ColumnType::Date => Datum::Date(i32::from_be_bytes(array(bytes)?)),
        ColumnType::Timestamp => Datum::Timestamp(i64::from_be_bytes(array(bytes)?)),
        ColumnType::TimestampTz => Datum::TimestampTz(i64::from_be_bytes(array(bytes)?)),
    })
}

/// Reads a binary array of one dimension (or none) as its text, `{1,2,NULL}`: dimensions, whether NULLs occur, element
/// type, then length and lower bound, then the elements.
///
/// # Errors
/// 22P03: the bytes are no array. 0A000: it has several dimensions.
pub fn read_binary_array(bytes: &[u8], cx: TextContext<'_>) -> Result<Datum> {
    let word = |at: usize| {
        bytes
            .get(4 * at..4 * at + 4)
            .map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]))
            .ok_or_else(bad_binary)
    };
    let (dimensions, id) = (word(0)?, word(2)? as u32);
    let element = type_of_oid(id).ok_or_else(bad_binary)?;
    let mut text = String::from("{");
    let mut rest = bytes.get(20..).unwrap_or_default();
    let count = match dimensions {
        0 => 0,
        1 => word(3)?,
        _ => return Err(SqlError::unsupported("an array of several dimensions")),
    };
    for i in 0..count {
        let (head, tail) = rest.split_at_checked(4).ok_or_else(bad_binary)?;
        let len = i32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let (value, tail) = tail.split_at_checked(len.max(0) as usize).ok_or_else(bad_binary)?;
        rest = tail;
        if i > 0 {
            text.push(',');
        }
        if len < 0 {
            text.push_str("NULL");
            continue;
        }
        let datum = match (id, <[u8; 4]>::try_from(value)) {
            (oid::OID, Ok(four)) => Datum::Int8(u32::from_be_bytes(four).into()),
            (oid::OID, Err(_)) => return Err(bad_binary()),
            _ => read_binary(value, element)?,
        };
        let shown = super::text::datum_text(&datum.as_ref(), cx.zone);
        push_element(&shown, &mut text);
    }
    text.push('}');
    Ok(Datum::Text(text))
}

/// Appends an element, in quotes where it would be read as something else.
fn push_element(element: &str, out: &mut String) {
    let special = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',' | '"' | '\\');
    if !element.is_empty() && !element.contains(special) && !element.eq_ignore_ascii_case("null") {
        return out.push_str(element);
    }
    out.push('"');
    for c in element.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| bad_binary())
}

#[cold]
fn bad_binary() -> SqlError {
    SqlError::new(code::INVALID_BINARY, "incorrect binary data format in bind parameter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_arrays_become_text() {
        let zone = Zone::Utc;
        let cx = TextContext { zone: &zone, now: 0 };
        let mut bytes = Vec::new();
        for word in [1i32, 1, 25, 4, 1] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        for element in ["a", "b c", ""] {
            bytes.extend_from_slice(&(element.len() as i32).to_be_bytes());
            bytes.extend_from_slice(element.as_bytes());
        }
        bytes.extend_from_slice(&(-1i32).to_be_bytes());
        let text = read_binary_array(&bytes, cx).expect("well formed");
        assert_eq!(text, Datum::Text("{a,\"b c\",\"\",NULL}".into()));
        for cut in 0..bytes.len() {
            assert!(read_binary_array(&bytes[..cut], cx).is_err(), "cut at {cut}");
        }
    }
}
