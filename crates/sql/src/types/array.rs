//! Arrays as text. The engine has no array columns; an array parameter goes to its function as `{a,b,NULL}`.

use super::cast::{self, Context};
use super::text::TextContext;
use crate::error::{Result, SqlError, code};
use cenote_engine::{ColumnType, Datum, DatumRef};
use std::iter::Peekable;
use std::str::Chars;

/// The elements of an array that is held as text; none where it is NULL.
///
/// # Errors
/// 22P02: the text is no array, or an element is no value of the type.
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
    elements(text)?.into_iter().map(value).collect()
}

/// Dimensions of an array, at most: PostgreSQL's limit.
const DIMENSIONS_MAX: usize = 6;

/// The items of `{a,"b c",NULL}`.
///
/// # Errors
/// 22P02: the text is no array of one dimension.
pub fn items(text: &str) -> Result<Vec<Option<String>>> {
    let read = read(text).filter(|reader| reader.leaves.is_none_or(|depth| depth == 0));
    read.map(|reader| reader.items).ok_or_else(|| malformed(text))
}

/// The items of an array of any dimensions, one after the other.
///
/// # Errors
/// 22P02: the text is no array.
pub fn elements(text: &str) -> Result<Vec<Option<String>>> {
    read(text).map(|reader| reader.items).ok_or_else(|| malformed(text))
}

#[cold]
fn malformed(text: &str) -> SqlError {
    SqlError::new(code::INVALID_TEXT, format!("malformed array literal: \"{text}\""))
}

fn read(text: &str) -> Option<Reader<'_>> {
    let mut reader = Reader {
        chars: text.trim().chars().peekable(),
        items: Vec::new(),
        sizes: [None; DIMENSIONS_MAX],
        leaves: None,
    };
    reader.array(0)?;
    reader.chars.next().is_none().then_some(reader)
}

/// Reads an array's text; None of its functions: the text is none.
struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    items: Vec<Option<String>>,
    /// Of each dimension, once an array of it has ended.
    sizes: [Option<usize>; DIMENSIONS_MAX],
    /// The depth at which items are.
    leaves: Option<usize>,
}

impl Reader<'_> {
    fn skip_blanks(&mut self) {
        while self.chars.next_if(|c| c.is_whitespace()).is_some() {}
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.chars.next_if_eq(&'{').filter(|_| depth < DIMENSIONS_MAX)?;
        self.skip_blanks();
        if depth == 0 && self.chars.next_if_eq(&'}').is_some() {
            return Some(());
        }
        let mut count = 0;
        loop {
            self.skip_blanks();
            match self.chars.peek()? {
                '{' => self.array(depth + 1)?,
                _ => self.item(depth)?,
            }
            count += 1;
            self.skip_blanks();
            match self.chars.next()? {
                ',' => {}
                '}' => break,
                _ => return None,
            }
        }
        // Arrays of one depth are of one size.
        (*self.sizes[depth].get_or_insert(count) == count).then_some(())
    }

    fn item(&mut self, depth: usize) -> Option<()> {
        if *self.leaves.get_or_insert(depth) != depth {
            return None;
        }
        let item = match self.chars.next_if_eq(&'"') {
            Some(_) => Some(self.quoted()?),
            None => self.bare()?,
        };
        self.items.push(item);
        Some(())
    }

    fn quoted(&mut self) -> Option<String> {
        let mut item = String::new();
        loop {
            match self.chars.next()? {
                '"' => return Some(item),
                '\\' => item.push(self.chars.next()?),
                c => item.push(c),
            }
        }
    }

    /// Up to a comma or the end, without the blanks there; Some(None): NULL.
    fn bare(&mut self) -> Option<Option<String>> {
        let (mut item, mut length, mut escaped) = (String::new(), 0, false);
        while let Some(c) = self.chars.next_if(|c| !matches!(c, ',' | '}')) {
            match c {
                '{' | '"' => return None,
                '\\' => {
                    item.push(self.chars.next()?);
                    escaped = true;
                    length = item.len();
                }
                c => {
                    item.push(c);
                    length = if c.is_whitespace() { length } else { item.len() };
                }
            }
        }
        item.truncate(length);
        match item.is_empty() {
            true => None,
            false if !escaped && item.eq_ignore_ascii_case("null") => Some(None),
            false => Some(Some(item)),
        }
    }
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
        assert_eq!(items("{ a b , c }").expect("blanks"), some(&["a b", "c"]));
        assert_eq!(items(r"{nul\l,a\ }").expect("escapes"), some(&["null", "a "]));
        for wrong in [
            "", "1", "{", "{1", "{a,\"b}", "{{1}}", "{,}", "{1}{2}", "{\"a\"b}", "{a\"b\"}", "{1,}",
        ] {
            assert_eq!(items(wrong).expect_err(wrong).code(), code::INVALID_TEXT);
        }
    }

    #[test]
    fn elements_of_all_dimensions() {
        let some = |list: &[&str]| list.iter().map(|s| Some(s.to_string())).collect::<Vec<_>>();
        assert_eq!(elements("{1,2}").expect("one"), some(&["1", "2"]));
        assert_eq!(
            elements("{ {1,2} , {\"}\",4} }").expect("two"),
            some(&["1", "2", "}", "4"])
        );
        assert_eq!(elements("{{{1}},{{2}}}").expect("three"), some(&["1", "2"]));
        for wrong in ["{{1,2},{3}}", "{{1},2}", "{1,{2}}", "{{}}", "{{1}}}", "{{{{{{{1}}}}}}}"] {
            assert_eq!(elements(wrong).expect_err(wrong).code(), code::INVALID_TEXT);
        }
    }
}
