//! Names in statements: how identifiers fold, and where in the text a thing stands.

use crate::error::{Result, SqlError, code};
use sqlparser::ast::{Ident, ObjectName, ObjectNamePart};
use sqlparser::tokenizer::{Location, Span};

/// Longest identifier in bytes, as in PostgreSQL.
const MAX_IDENTIFIER: usize = 63;

/// An identifier as the catalog knows it: lower case unless quoted, at most 63 bytes.
pub fn fold(ident: &Ident) -> String {
    let mut name = if ident.quote_style.is_some() {
        ident.value.clone()
    } else {
        ident.value.to_lowercase()
    };
    if name.len() > MAX_IDENTIFIER {
        let mut end = MAX_IDENTIFIER;
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
    }
    name
}

/// The parts of a dotted name, folded.
pub fn parts(name: &ObjectName) -> Vec<String> {
    name.0.iter().filter_map(ObjectNamePart::as_ident).map(fold).collect()
}

/// A dotted name as schema (if given) and name. A database part is admitted where it is `cenote`.
///
/// # Errors
/// 0A000: the name is of another database. 42601: it has no part that is a name.
pub fn qualified(name: &ObjectName) -> Result<(Option<String>, String)> {
    let mut parts = parts(name);
    let last = parts
        .pop()
        .ok_or_else(|| SqlError::new(code::SYNTAX_ERROR, "improper qualified name"))?;
    let schema = parts.pop();
    match parts.pop() {
        Some(database) if database != "cenote" => {
            let text = format!("cross-database references are not implemented: {name}");
            Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, text))
        }
        _ => Ok((schema, last)),
    }
}

/// Where the name begins.
pub fn span_of(name: &ObjectName) -> Span {
    name.0
        .first()
        .and_then(ObjectNamePart::as_ident)
        .map_or(Span::empty(), |i| i.span)
}

/// Finds places in a statement's text.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a>(pub &'a str);

impl Places<'_> {
    /// Characters from the start, counted from 1; 0 where unknown.
    pub fn of(self, span: Span) -> u32 {
        self.at(span.start)
    }

    /// As `of`, for a line and column.
    pub fn at(self, place: Location) -> u32 {
        if place.line == 0 {
            return 0;
        }
        let mut seen = 0;
        for (number, line) in self.0.split('\n').enumerate() {
            if number as u64 + 1 == place.line {
                return seen + place.column as u32;
            }
            seen += line.chars().count() as u32 + 1;
        }
        0
    }
}
