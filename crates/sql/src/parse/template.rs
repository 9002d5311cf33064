//! Texts that differ in their literals only are one statement: the literals are taken out and become parameters.
//!
//! A number becomes a parameter of the type that the literal has, a string one whose type is open, as the literal's is.
//! So the statement means the same. Texts in which a literal may mean something else (a position in ORDER BY, part of a
//! type, the name of a sequence), and everything that this simple reader does not know, are left alone.

use crate::types::oid;

/// Longest text that is looked at, in bytes.
const MAX_TEXT: usize = 4096;
/// Most literals that are taken out.
const MAX_LITERALS: usize = 64;

/// Words beside which a literal is more than a value.
const EXCLUDED: &[&str] = &[
    "fetch",
    "interval",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "cast",
    "union",
    "intersect",
    "except",
    "with",
    "over",
    "nextval",
    "currval",
    "setval",
    "extract",
    "returning",
    "pg_sleep",
    "any",
    "all",
    "filter",
];

/// Words behind which a literal may be the position of a result, or part of what has to be written twice alike; and
/// those that end that.
const SORTED: &[&str] = &["order", "group"];
const SORTED_NO_MORE: &[&str] = &["having", "limit", "offset", "for"];

/// Where the reader is among clauses.
#[derive(Default)]
struct Place {
    /// Open parentheses.
    depth: u32,
    /// Those around the ORDER BY or GROUP BY that the reader is in.
    sorted: Option<u32>,
}

impl Place {
    fn word(&mut self, word: &str) {
        if is_one_of(word, SORTED) {
            self.sorted = Some(self.sorted.map_or(self.depth, |outer| outer.min(self.depth)));
        } else if self.sorted == Some(self.depth) && is_one_of(word, SORTED_NO_MORE) {
            self.sorted = None;
        }
    }

    /// None: a parenthesis closes that was not opened.
    fn mark(&mut self, byte: u8) -> Option<()> {
        match byte {
            b'(' => self.depth += 1,
            b')' => self.depth = self.depth.checked_sub(1)?,
            _ => {}
        }
        self.sorted = self.sorted.filter(|outer| *outer <= self.depth);
        Some(())
    }
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|w| w.eq_ignore_ascii_case(word))
}

/// A text without its literals.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The text with `$n` in the places of literals, then a zero byte and a letter a literal: what statements are known
    /// by.
    pub key: String,
    /// Length of the text in `key`.
    pub text_len: usize,
    /// Type ids (0: open) and texts of the literals.
    pub literals: Vec<(u32, String)>,
}

impl Template {
    /// The text with parameters.
    pub fn text(&self) -> &str {
        &self.key[..self.text_len]
    }
}

/// Takes the literals out of a text; None where it is left alone.
pub fn template(text: &str) -> Option<Template> {
    if text.len() > MAX_TEXT || !begins_plainly(text) {
        return None;
    }
    let mut out = Template {
        key: String::with_capacity(text.len() + 32),
        ..Template::default()
    };
    let bytes = text.as_bytes();
    let (mut at, mut place) = (0, Place::default());
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 128.. => {
                at = end_of(bytes, at, |b| b.is_ascii_alphanumeric() || b == b'_' || b >= 128);
                let word = &text[start..at];
                if bytes.get(at) == Some(&b'\'') || is_one_of(word, EXCLUDED) {
                    return None;
                }
                place.word(word);
                out.key.push_str(word);
            }
            b'0'..=b'9' | b'\'' if place.sorted.is_some() => return None,
            b'0'..=b'9' => {
                at = end_of(bytes, at, |b| b.is_ascii_digit());
                if bytes.get(at) == Some(&b'.') {
                    at = end_of(bytes, at + 1, |b| b.is_ascii_digit());
                }
                if bytes
                    .get(at)
                    .is_some_and(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'.'))
                {
                    return None;
                }
                out.take(number_type(&text[start..at]), text[start..at].to_string())?;
            }
            b'\'' => {
                at = end_of_quoted(bytes, at, b'\'')?;
                out.take(0, text[start + 1..at - 1].replace("''", "'"))?;
            }
            b'"' => {
                at = end_of_quoted(bytes, at, b'"')?;
                out.key.push_str(&text[start..at]);
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => return None,
            b'/' if bytes.get(at + 1) == Some(&b'*') => return None,
            b'.' if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => return None,
            b';' if text[at + 1..].trim().is_empty() => break,
            b';' | b':' | b'$' | b'?' | b'@' | b'[' | b'\\' | 0 => return None,
            other => {
                place.mark(other)?;
                out.key.push(other as char);
                at += 1;
            }
        }
    }
    if out.literals.is_empty() {
        return None;
    }
    out.text_len = out.key.len();
    out.key.push('\0');
    for (ty, _) in &out.literals {
        out.key.push(match *ty {
            oid::INT4 => 'i',
            oid::INT8 => 'l',
            oid::NUMERIC => 'n',
            _ => 's',
        });
    }
    Some(out)
}

impl Template {
    fn take(&mut self, ty: u32, literal: String) -> Option<()> {
        self.literals.push((ty, literal));
        if self.literals.len() > MAX_LITERALS {
            return None;
        }
        // Blanks keep the parameter apart from what stands beside it.
        use std::fmt::Write;
        write!(self.key, " ${} ", self.literals.len()).ok()
    }
}

fn begins_plainly(text: &str) -> bool {
    let trimmed = text.trim_start();
    ["select", "insert", "update", "delete"]
        .iter()
        .any(|w| trimmed.get(..6).is_some_and(|head| head.eq_ignore_ascii_case(w)))
}

fn end_of(bytes: &[u8], from: usize, inside: impl Fn(u8) -> bool) -> usize {
    bytes[from..]
        .iter()
        .position(|b| !inside(*b))
        .map_or(bytes.len(), |n| from + n)
}

/// After the closing quote; a doubled quote is inside.
fn end_of_quoted(bytes: &[u8], from: usize, quote: u8) -> Option<usize> {
    let mut at = from + 1;
    loop {
        at += bytes.get(at..)?.iter().position(|b| *b == quote)? + 1;
        if bytes.get(at) != Some(&quote) {
            return Some(at);
        }
        at += 1;
    }
}

fn number_type(digits: &str) -> u32 {
    if digits.parse::<i32>().is_ok() {
        oid::INT4
    } else if digits.parse::<i64>().is_ok() {
        oid::INT8
    } else {
        oid::NUMERIC
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_parameters() {
        let found = template("UPDATE t SET v = v + -12, s = 'it''s' WHERE \"a'b1\" = 3000000000;").expect("plain");
        assert_eq!(
            found.text(),
            "UPDATE t SET v = v + - $1 , s =  $2  WHERE \"a'b1\" =  $3 "
        );
        assert_eq!(
            found.literals,
            [(23, "12".into()), (0, "it's".into()), (20, "3000000000".into())]
        );
        assert!(found.key.ends_with("\0isl"));
    }

    #[test]
    fn literals_outside_of_orders_become_parameters() {
        let found =
            template("SELECT a FROM (SELECT b FROM t JOIN u ON b = 1 ORDER BY b) WHERE a > 2 ORDER BY a LIMIT 3");
        assert_eq!(
            found.expect("plain").text(),
            "SELECT a FROM (SELECT b FROM t JOIN u ON b =  $1  ORDER BY b) WHERE a >  $2  ORDER BY a LIMIT  $3 "
        );
        let found = template("SELECT a FROM t GROUP BY a HAVING count(*) > 5 ORDER BY a");
        assert_eq!(found.expect("plain").literals, [(23, "5".into())]);
    }

    #[test]
    fn what_is_not_plain_is_left_alone() {
        for text in [
            "SELECT a FROM t ORDER BY 1",
            "SELECT a FROM t WHERE a = 5 ORDER BY b, 1 LIMIT 5",
            "SELECT a + 1 FROM t GROUP BY a + 1",
            "SELECT a FROM t WHERE a = 5 GROUP BY (SELECT b FROM u HAVING true), 1",
            "SELECT a FROM t WHERE a = 5)",
            "SELECT 1::int",
            "SELECT E'\\n'",
            "SELECT 1 -- x",
            "SELECT 1; SELECT 2",
            "SELECT $1, 2",
            "SELECT a FROM t",
            "SELECT date '2026-01-01'",
            "SELECT 1e5",
            "SELECT 'open",
            "SELECT .5",
            "SHOW x",
            "SELECT nextval('s')",
            "SELECT 0x1F",
            "SELECT 1.5.2",
        ] {
            assert_eq!(template(text), None, "{text}");
        }
    }
}
