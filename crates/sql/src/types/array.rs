//! Arrays as text. The engine has no array columns; an array parameter goes to its function as `{a,b,NULL}`.

use super::cast::{self, Context};
use super::text::TextContext;
use crate::error::{Result, SqlError, code};
use cenote_engine::{ColumnType, Datum, DatumRef};

/// The elements of an array that is held as text; none where it is NULL.
///
/// # Errors
/// 22P02: the text is no array of one dimension, or an element is no value of the type.
pub fn values(array: &DatumRef<'_>, element: ColumnType, cx: TextContext<'_>) -> Result<Vec<Datum>> {
    let text = match array {
        DatumRef::Null => return Ok(Vec::new()),
        DatumRef::Text(text) => text,
        _ => return Err(SqlError::internal("an array that is not held as text")),
    };
    let value = |item: Option<String>| match item {
        None => Ok(Datum::Null),
        Some(item) => cast::cast(Datum::Text(item), element, Context::Explicit, cx),
    };
    items(text)?.into_iter().map(value).collect()
}

/// The items of `{a,"b c",NULL}`.
///
/// # Errors
/// 22P02: the text is no array of one dimension.
pub fn items(text: &str) -> Result<Vec<Option<String>>> {
    let malformed = || SqlError::new(code::INVALID_TEXT, format!("malformed array literal: \"{text}\""));
    let inner = text
        .trim()
        .strip_prefix('{')
        .and_then(|t| t.strip_suffix('}'))
        .ok_or_else(malformed)?;
    let mut items = Vec::new();
    let mut chars = inner.chars().peekable();
    while chars.peek().is_some() {
        let (mut item, mut quoted) = (String::new(), false);
        let mut inside = false;
        loop {
            match chars.next() {
                None if inside => return Err(malformed()),
                None => break,
                Some('"') => {
                    inside = !inside;
                    quoted = true;
                }
                Some('\\') => item.push(chars.next().ok_or_else(malformed)?),
                Some(',') if !inside => break,
                Some('{' | '}') if !inside => return Err(malformed()),
                Some(c) if inside || !c.is_whitespace() => item.push(c),
                Some(_) => {}
            }
        }
        if item.is_empty() && !quoted {
            return Err(malformed());
        }
        items.push(if !quoted && item.eq_ignore_ascii_case("null") {
            None
        } else {
            Some(item)
        });
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_arrays() {
        let some = |list: &[&str]| list.iter().map(|s| Some(s.to_string())).collect::<Vec<_>>();
        assert_eq!(items("{}").expect("empty"), some(&[]));
        assert_eq!(items("{1, 2}").expect("numbers"), some(&["1", "2"]));
        assert_eq!(
            items(r#"{"a,b","c\"d",""}"#).expect("quoted"),
            some(&["a,b", "c\"d", ""])
        );
        assert_eq!(
            items("{NULL,\"NULL\"}").expect("nulls"),
            vec![None, Some("NULL".to_string())]
        );
        for wrong in ["", "1", "{", "{1", "{a,\"b}", "{{1}}", "{,}"] {
            assert_eq!(items(wrong).expect_err(wrong).code(), code::INVALID_TEXT);
        }
    }
}
