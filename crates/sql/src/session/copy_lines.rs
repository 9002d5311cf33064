//! Lines of COPY data, and their columns.
//!
//! Text: a line a row, columns between delimiters, NULL as a word, backslash escapes (of line ends, too). Csv: values
//! in quotes may hold delimiters, line ends and (escaped) quotes; an unquoted NULL word is NULL.
//!
//! `\.` is the end-of-copy marker. In csv it is one as a line of its own, and data elsewhere. In text it is one at the
//! end of a line, whose other bytes are a last row, and an error elsewhere. Its line has to end as the first one does.

use crate::error::{Result, SqlError, code};
use crate::parse::CopyFormat;
use cenote_engine::Charge;
use std::io::BufRead;

/// Longest line of COPY data, in bytes.
const MAX_LINE: usize = 1 << 30;

/// Bytes of a buffer that a COPY keeps between two messages.
const BUFFER_BYTES_KEPT: usize = 64 << 10;

/// Lines in the data received so far.
pub struct Lines {
    buffer: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    /// Up to where its end was looked for, and whether quotes are open there, or the next byte is escaped.
    searched: usize,
    quoted: bool,
    escaped: bool,
    finished: bool,
    /// Whether the first line ended in a carriage return and a newline.
    crlf: Option<bool>,
    memory: Charge,
}

impl Lines {
    /// No data yet; what is kept between two messages is charged to `memory`.
    pub fn new(memory: Charge) -> Lines {
        Lines {
            buffer: Vec::new(),
            at: 0,
            searched: 0,
            quoted: false,
            escaped: false,
            finished: false,
            crlf: None,
            memory,
        }
    }

    /// Takes data of the client.
    pub fn push(&mut self, data: &[u8]) {
        if !self.finished {
            self.buffer.extend_from_slice(data);
        }
    }

    /// The next line that is whole (`last`: what is left is one), without its end, up to the end-of-copy marker.
    ///
    /// # Errors
    /// 54000: the line is too long. 22P04: the end-of-copy marker is wrong.
    pub fn next(&mut self, format: &CopyFormat, last: bool) -> Result<Option<&[u8]>> {
        let whole = self.buffer.len();
        if self.finished || self.at == whole {
            return Ok(None);
        }
        let found = match format.csv {
            true => self.csv_end(format),
            false => self.text_end(),
        };
        let (end, next) = match found {
            Some(end) => (end, end + 1),
            None if last => (whole, whole),
            None if whole - self.at > MAX_LINE => {
                return Err(SqlError::new(
                    code::PROGRAM_LIMIT,
                    "a line of COPY data is longer than 1 GiB",
                ));
            }
            None => {
                self.searched = whole;
                return Ok(None);
            }
        };
        let start = std::mem::replace(&mut self.at, next);
        (self.searched, self.quoted, self.escaped) = (next, false, false);
        let line = &self.buffer[start..end];
        let (line, has_return) = match line.strip_suffix(b"\r") {
            Some(line) => (line, true),
            None => (line, false),
        };
        let has_marker = match format.csv {
            true => line == b"\\.",
            false => ends_in_marker(line),
        };
        if has_marker && self.is_end(format.csv, has_return, found.is_some())? {
            self.finished = true;
            let row = &line[..line.len() - 2];
            return Ok((!row.is_empty()).then_some(row));
        }
        if found.is_some() {
            self.crlf.get_or_insert(has_return);
        }
        Ok(Some(line))
    }

    /// Whether a line that ends in the marker ends the data: of csv it may be a row. `is_whole`: a newline follows.
    fn is_end(&self, csv: bool, has_return: bool, is_whole: bool) -> Result<bool> {
        let refuse = |text| Err(SqlError::new(code::BAD_COPY_FORMAT, text));
        match (self.crlf, has_return) {
            (Some(false), true) => refuse("end-of-copy marker does not match previous newline style"),
            (Some(true), false) if is_whole && csv => refuse("unquoted newline found in data"),
            (Some(true), false) if is_whole => refuse("end-of-copy marker does not match previous newline style"),
            _ if is_whole => Ok(true),
            _ if csv => Ok(false),
            _ => Err(corrupt_marker()),
        }
    }

    /// The first line end before which no backslash makes it a part of a value.
    fn text_end(&self) -> Option<usize> {
        let mut from = self.searched;
        loop {
            let end = from + line_end(&self.buffer[from..])?;
            let before = self.buffer[self.at..end].iter().rev();
            if before.take_while(|byte| **byte == b'\\').count() % 2 == 0 {
                return Some(end);
            }
            from = end + 1;
        }
    }

    /// The first line end outside quotes.
    fn csv_end(&mut self, format: &CopyFormat) -> Option<usize> {
        for at in self.searched..self.buffer.len() {
            let byte = self.buffer[at];
            if std::mem::take(&mut self.escaped) {
                continue;
            }
            if self.quoted && byte == format.escape && format.escape != format.quote {
                self.escaped = true;
            } else if byte == format.quote {
                self.quoted = !self.quoted;
            } else if byte == b'\n' && !self.quoted {
                return Some(at);
            }
        }
        None
    }

    /// Gives back what was read, and accounts for what was not: the beginning of a line.
    ///
    /// # Errors
    /// 53200: the session may hold no more.
    pub fn compact(&mut self) -> Result<()> {
        if self.finished {
            self.at = self.buffer.len();
        }
        self.buffer.drain(..self.at);
        self.searched = self.searched.saturating_sub(self.at);
        self.at = 0;
        self.memory.clear();
        if self.buffer.is_empty() {
            self.buffer.shrink_to(BUFFER_BYTES_KEPT);
            return Ok(());
        }
        Ok(self.memory.grow(self.buffer.capacity())?)
    }
}

/// Whether a line of the text format ends in `\.`, whose backslash no other one escapes.
fn ends_in_marker(line: &[u8]) -> bool {
    let Some(before) = line.strip_suffix(b".") else {
        return false;
    };
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

#[cold]
fn corrupt_marker() -> SqlError {
    SqlError::new(code::BAD_COPY_FORMAT, "end-of-copy marker corrupt")
}

/// Refuses a line of the text format with `\.` in it.
///
/// # Errors
/// 22P04: it has one.
pub fn check_marker(line: &[u8]) -> Result<()> {
    let mut rest = line;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        match rest.get(at + 1) {
            Some(b'.') => return Err(corrupt_marker()),
            Some(_) => rest = &rest[at + 2..],
            None => break,
        }
    }
    Ok(())
}

/// The first line end.
fn line_end(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let skipped = rest.skip_until(b'\n').ok()?;
    let last = skipped.checked_sub(1)?;
    (bytes[last] == b'\n').then_some(last)
}

/// Where the first delimiter or backslash is; the length where there is none. Eight bytes at a time.
fn special_byte(bytes: &[u8], delimiter: u8) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // The lowest bit that is set belongs to the first byte of zero.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = zeros(word ^ (ONES * u64::from(delimiter))) | zeros(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return 8 * at + found.trailing_zeros() as usize / 8;
        }
    }
    let found = rest.iter().position(|byte| *byte == delimiter || *byte == b'\\');
    8 * words.len() + found.unwrap_or(rest.len())
}

/// A column of a line.
pub enum CopyField<'a> {
    Null,
    Value(&'a str),
}

/// Columns of a line.
pub struct Fields<'a> {
    /// What is left of the line.
    pub rest: Option<&'a str>,
    format: &'a CopyFormat,
    scratch: String,
}

impl<'a> Fields<'a> {
    /// The columns of this line.
    pub fn of(line: &'a str, format: &'a CopyFormat) -> Fields<'a> {
        Fields {
            rest: Some(line),
            format,
            scratch: String::new(),
        }
    }

    /// The next column; None: the line is at its end.
    ///
    /// # Errors
    /// 22P04: quotes are not closed; an end-of-copy marker. 22021: an escape makes the text invalid UTF-8.
    pub fn next(&mut self) -> Result<Option<CopyField<'_>>> {
        let Some(rest) = self.rest else { return Ok(None) };
        if self.format.csv {
            self.next_csv(rest).map(Some)
        } else {
            self.next_text(rest).map(Some)
        }
    }

    fn next_text(&mut self, rest: &'a str) -> Result<CopyField<'_>> {
        let bytes = rest.as_bytes();
        let mut end = special_byte(bytes, self.format.delimiter);
        let mut escaped = false;
        while bytes.get(end) == Some(&b'\\') {
            escaped = true;
            if bytes.get(end + 1) == Some(&b'.') {
                return Err(corrupt_marker());
            }
            // The byte behind it is a part of the value.
            let next = (end + 2).min(bytes.len());
            end = next + special_byte(&bytes[next..], self.format.delimiter);
        }
        let raw = &rest[..end];
        self.rest = (end < bytes.len()).then(|| &rest[end + 1..]);
        if raw == self.format.null {
            return Ok(CopyField::Null);
        }
        if !escaped {
            return Ok(CopyField::Value(raw));
        }
        self.scratch = unescape(raw)?;
        Ok(CopyField::Value(&self.scratch))
    }

    fn next_csv(&mut self, rest: &'a str) -> Result<CopyField<'_>> {
        let (quote, escape, delimiter) = (self.format.quote, self.format.escape, self.format.delimiter);
        let bytes = rest.as_bytes();
        self.scratch.clear();
        let (mut at, mut start, mut was_quoted, mut quoted) = (0, 0, false, false);
        while at < bytes.len() {
            let byte = bytes[at];
            if quoted && byte == escape && bytes.get(at + 1).is_some_and(|next| *next == quote || *next == escape) {
                self.scratch.push_str(&rest[start..at]);
                start = at + 1;
                at += 2;
                continue;
            }
            if byte == quote {
                self.scratch.push_str(&rest[start..at]);
                start = at + 1;
                quoted = !quoted;
                was_quoted = true;
            } else if byte == delimiter && !quoted {
                break;
            }
            at += 1;
        }
        if quoted {
            return Err(SqlError::new(code::BAD_COPY_FORMAT, "unterminated CSV quoted field"));
        }
        self.scratch.push_str(&rest[start..at]);
        self.rest = (at < bytes.len()).then(|| &rest[at + 1..]);
        if !was_quoted && self.scratch == self.format.null {
            return Ok(CopyField::Null);
        }
        Ok(CopyField::Value(&self.scratch))
    }
}

/// Backslash sequences of the text format.
fn unescape(raw: &str) -> Result<String> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let digits = |bytes: &mut std::iter::Peekable<std::str::Bytes<'_>>, radix: u32, most: usize, first: u32| {
            let mut value = first;
            for _ in 0..most {
                let Some(digit) = bytes.peek().and_then(|b| (*b as char).to_digit(radix)) else {
                    break;
                };
                value = value * radix + digit;
                bytes.next();
            }
            value as u8
        };
        out.push(match bytes.next() {
            None => b'\\',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'v') => 11,
            Some(b'x') if bytes.peek().is_some_and(u8::is_ascii_hexdigit) => digits(&mut bytes, 16, 2, 0),
            Some(octal @ b'0'..=b'7') => digits(&mut bytes, 8, 2, u32::from(octal - b'0')),
            Some(other) => other,
        });
    }
    crate::types::wire::utf8(&out).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What PostgreSQL 15 makes of data: rows, or the number of a line and why it is refused.
    fn rows_of(data: &[u8], csv: bool, piece: usize) -> std::result::Result<Vec<String>, (usize, String)> {
        let format = CopyFormat {
            csv,
            delimiter: b'\t',
            null: "NULL".into(),
            header: false,
            header_match: false,
            quote: b'"',
            escape: b'"',
            force_quote: None,
        };
        let memory = cenote_engine::Memory::new(1 << 20, 1);
        let mut lines = Lines::new(Charge::new(&memory.account("a test")));
        let (mut rows, mut pieces) = (Vec::new(), data.chunks(piece).peekable());
        while let Some(piece) = pieces.next() {
            lines.push(piece);
            let last = pieces.peek().is_none();
            loop {
                let number = rows.len() + 1;
                let refused = |error: SqlError| (number, error.message().to_string());
                let Some(line) = lines.next(&format, last).map_err(refused)? else {
                    break;
                };
                if !csv {
                    check_marker(line).map_err(refused)?;
                }
                rows.push(String::from_utf8(line.to_vec()).expect("UTF-8"));
            }
            lines.compact().expect("room");
        }
        Ok(rows)
    }

    /// COPY took `\.x` for data, and `\.` at the end of a line or of the data.
    #[test]
    fn the_end_of_copy_marker() {
        let style = "end-of-copy marker does not match previous newline style";
        let corrupt = "end-of-copy marker corrupt";
        let newline = "unquoted newline found in data";
        type Case = (
            &'static str,
            bool,
            std::result::Result<&'static [&'static str], (usize, &'static str)>,
        );
        let cases: &[Case] = &[
            ("\\.x\n", false, Err((1, corrupt))),
            ("a\n\\.x\n", false, Err((2, corrupt))),
            ("a\n\\.\nb\n", false, Ok(&["a"])),
            ("a\n\\.", false, Err((2, corrupt))),
            ("a\\.b\n", false, Err((1, corrupt))),
            ("a\\.\nb\n", false, Ok(&["a"])),
            ("a\n\\.\r\n", false, Err((2, style))),
            ("a\r\n\\.\r\nb\r\n", false, Ok(&["a"])),
            ("a\r\n\\.\n", false, Err((2, style))),
            ("a\r\n\\.x\r\n", false, Err((2, corrupt))),
            ("a\n\\. \n", false, Err((2, corrupt))),
            ("\\.\n", false, Ok(&[])),
            ("\\.\r\n", false, Ok(&[])),
            ("\\..\n", false, Err((1, corrupt))),
            ("\\\\.\n", false, Ok(&["\\\\."])),
            ("\\.x\n", true, Ok(&["\\.x"])),
            ("a\n\\.\nb\n", true, Ok(&["a"])),
            ("a\n\\.x\nb\n", true, Ok(&["a", "\\.x", "b"])),
            ("a\n\"\\.\"\n", true, Ok(&["a", "\"\\.\""])),
            ("a\n\\.", true, Ok(&["a", "\\."])),
            ("\"x\n\\.\ny\"\n", true, Ok(&["\"x\n\\.\ny\""])),
            ("a\r\n\\.\n", true, Err((2, newline))),
            ("a\n\\.\r\n", true, Err((2, style))),
        ];
        for (data, csv, expected) in cases {
            for piece in [1, 2, 3, 100] {
                let found = rows_of(data.as_bytes(), *csv, piece);
                let expected = (*expected).map(|rows| rows.iter().map(|row| row.to_string()).collect());
                assert_eq!(
                    found,
                    expected.map_err(|(n, why)| (n, why.into())),
                    "{data:?}, csv {csv}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn the_first_special_byte(bytes in proptest::collection::vec(prop_oneof![Just(b'\t'), Just(b'\\'), 0..=255u8], 0..40)) {
            for from in 0..bytes.len() {
                let bytes = &bytes[from..];
                let want = bytes.iter().position(|byte| *byte == b'\t' || *byte == b'\\').unwrap_or(bytes.len());
                prop_assert_eq!(special_byte(bytes, b'\t'), want);
            }
        }
    }
}
