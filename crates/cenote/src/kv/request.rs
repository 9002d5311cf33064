//! What a client asks: commands out of the bytes of a connection, as RESP arrays of strings or as lines.
//!
//! Bytes come in pieces. A parsed part of a command stays parsed, so that no byte is parsed twice, whatever the cuts.
//! Positions are counted from the command's first byte: the buffer may move the bytes.

use cenote_kv::{STRING_MAX, integer};
use std::ops::Index;

/// The longest line: an inline command, or a count.
const LINE_MAX: usize = 64 << 10;
/// Strings of a command.
const STRINGS_MAX: i64 = 1 << 20;
/// Bytes of a command with all its strings.
pub const REQUEST_MAX: usize = 1 << 30;
/// Room for spans that is kept between commands.
const SPANS_KEPT: usize = 1024;

/// Bytes that are no command; the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    at: usize,
    len: usize,
}

/// A command that is being read.
#[derive(Debug, Default)]
pub struct Request {
    spans: Vec<Span>,
    /// Bytes that are understood.
    at: usize,
    /// Strings that are still to come, if the command has begun.
    left: Option<usize>,
    /// The length of the next one, if it is known.
    string: Option<usize>,
    /// The strings of a line, their quotes taken away.
    line: Option<Vec<u8>>,
}

/// The strings of a command, its name the first.
#[derive(Debug, Clone, Copy)]
pub struct Strings<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Strings<'a> {
    /// How many they are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The one with this number.
    #[inline]
    pub fn get(&self, n: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(n)?;
        self.bytes.get(span.at..span.at + span.len)
    }

    /// All from this one on.
    pub fn from(&self, n: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, spans) = (self.bytes, &self.spans[n.min(self.spans.len())..]);
        spans.iter().map(|span| &bytes[span.at..span.at + span.len])
    }
}

impl Index<usize> for Strings<'_> {
    type Output = [u8];
    #[inline]
    fn index(&self, n: usize) -> &[u8] {
        let span = self.spans[n];
        &self.bytes[span.at..span.at + span.len]
    }
}

impl Request {
    /// Understands a command of the usual form at once, if all of it is there and nothing of it is understood yet. If
    /// not, nothing is, and it is [`Request::read`]'s turn.
    #[inline]
    pub fn read_at_once(&mut self, bytes: &[u8]) -> bool {
        match self.whole(bytes) {
            Some(len) => {
                self.at = len;
                true
            }
            None => {
                self.spans.clear();
                false
            }
        }
    }

    /// The length of a command that is there with all of its strings, which are noted.
    #[inline(always)]
    fn whole(&mut self, bytes: &[u8]) -> Option<usize> {
        let (count, mut at) = brief(bytes, 0, b'*')?;
        if count == 0 {
            return None;
        }
        for _ in 0..count {
            let (len, begin) = brief(bytes, at, b'$')?;
            at = begin + len + 2;
            if at > bytes.len() {
                return None;
            }
            self.spans.push(Span { at: begin, len });
        }
        Some(at)
    }

    /// Goes on with a command whose first byte is that of `bytes`. Whether it is complete: then [`Request::strings`]
    /// are its own, until [`Request::next`].
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are no command of the protocol, or longer than one may be.
    #[inline]
    pub fn read(&mut self, bytes: &[u8]) -> Result<bool, Malformed> {
        if self.left.is_none() {
            match bytes.first() {
                None => return Ok(false),
                Some(b'*') => {
                    let Some(count) = self.count(bytes, "invalid multibulk length", "too big mbulk count string")?
                    else {
                        return Ok(false);
                    };
                    if count > STRINGS_MAX {
                        return Err(Malformed("invalid multibulk length"));
                    }
                    self.left = Some(count.max(0) as usize);
                }
                Some(_) => return self.read_line(bytes),
            }
        }
        while self.left != Some(0) {
            if !self.read_string(bytes)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One more string. Whether it is there.
    #[inline]
    fn read_string(&mut self, bytes: &[u8]) -> Result<bool, Malformed> {
        let len = match self.string {
            Some(len) => len,
            None => match bytes.get(self.at) {
                None => return Ok(false),
                Some(b'$') => {
                    let Some(len) = self.count(bytes, "invalid bulk length", "too big bulk count string")? else {
                        return Ok(false);
                    };
                    if !(0..=STRING_MAX as i64).contains(&len) {
                        return Err(Malformed("invalid bulk length"));
                    }
                    if self.at + len as usize > REQUEST_MAX {
                        return Err(Malformed("the command is too long"));
                    }
                    *self.string.insert(len as usize)
                }
                Some(_) => return Err(Malformed("expected '$', got something else")),
            },
        };
        if bytes.len() < self.at + len + 2 {
            return Ok(false);
        }
        self.spans.push(Span { at: self.at, len });
        self.at += len + 2;
        self.string = None;
        self.left = self.left.map(|left| left - 1);
        Ok(true)
    }

    /// The number in a line behind its first byte; `None` if the line has not ended.
    #[inline]
    fn count(&mut self, bytes: &[u8], wrong: &'static str, long: &'static str) -> Result<Option<i64>, Malformed> {
        let rest = &bytes[self.at + 1..];
        let Some(end) = rest.iter().take(LINE_MAX).position(|byte| *byte == b'\r') else {
            return match rest.len() >= LINE_MAX {
                true => Err(Malformed(long)),
                false => Ok(None),
            };
        };
        if rest.len() < end + 2 {
            return Ok(None);
        }
        let number = short(&rest[..end]).or_else(|| integer(&rest[..end]));
        self.at += end + 3;
        number.map(Some).ok_or(Malformed(wrong))
    }

    fn read_line(&mut self, bytes: &[u8]) -> Result<bool, Malformed> {
        let Some(end) = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\n') else {
            return match bytes.len() >= LINE_MAX {
                true => Err(Malformed("too big inline request")),
                false => Ok(false),
            };
        };
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        let mut words = Vec::new();
        split(line, &mut words, &mut self.spans).ok_or(Malformed("unbalanced quotes in request"))?;
        (self.line, self.left, self.at) = (Some(words), Some(0), end + 1);
        Ok(true)
    }

    /// The strings of a command that is complete.
    #[inline]
    pub fn strings<'a>(&'a self, bytes: &'a [u8]) -> Strings<'a> {
        Strings {
            bytes: self.line.as_deref().unwrap_or(bytes),
            spans: &self.spans,
        }
    }

    /// Bytes of a command that is complete, or that are understood of one that is not.
    #[inline]
    pub fn len(&self) -> usize {
        self.at
    }

    /// Bytes that the command has at least, as far as is known.
    pub fn wanted(&self) -> usize {
        self.at + self.string.map_or(0, |len| len + 2)
    }

    /// Whether nothing of a command is understood.
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Makes ready for the next command.
    #[inline]
    pub fn next(&mut self) {
        self.spans.clear();
        if self.spans.capacity() > SPANS_KEPT {
            self.spans = Vec::new();
        }
        (self.at, self.left, self.string) = (0, None, None);
        if self.line.is_some() {
            self.line = None;
        }
    }
}

/// A number of up to three digits behind `kind`, which most are, and where the bytes behind its line begin.
#[inline(always)]
fn brief(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let line = bytes.get(at..at + 6)?;
    let digit = |n: usize| usize::from(line[n].wrapping_sub(b'0'));
    let (one, two, three) = (digit(1), digit(2), digit(3));
    let number = match () {
        _ if line[0] != kind || one > 9 => return None,
        _ if line[2] == b'\r' => (one, 4),
        _ if two > 9 || one == 0 => return None,
        _ if line[3] == b'\r' => (10 * one + two, 5),
        _ if three > 9 || line[4] != b'\r' => return None,
        _ => (100 * one + 10 * two + three, 6),
    };
    Some((number.0, at + number.1))
}

/// A number of a few digits.
#[inline]
fn short(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 6 || digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    digits.iter().try_fold(0, |n, digit| {
        digit.is_ascii_digit().then(|| n * 10 + i64::from(digit - b'0'))
    })
}

/// A command that waits for EXEC: its bytes, and where its strings are in them.
#[derive(Debug)]
pub struct Queued {
    bytes: Box<[u8]>,
    spans: Box<[Span]>,
}

impl Queued {
    /// A copy of a command's strings.
    pub fn of(strings: Strings<'_>) -> Self {
        let (mut bytes, mut spans) = (Vec::new(), Vec::with_capacity(strings.len()));
        for string in strings.from(0) {
            let at = bytes.len();
            bytes.extend_from_slice(string);
            spans.push(Span { at, len: string.len() });
        }
        Self {
            bytes: bytes.into(),
            spans: spans.into(),
        }
    }

    /// Its strings.
    pub fn strings(&self) -> Strings<'_> {
        Strings {
            bytes: &self.bytes,
            spans: &self.spans,
        }
    }

    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>() + size_of::<Self>()
    }
}

/// The words of a line: separated by blanks, or in quotes with escapes. `None` if a quote is not closed.
fn split(line: &[u8], words: &mut Vec<u8>, spans: &mut Vec<Span>) -> Option<()> {
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let at = words.len();
        rest = match rest[0] {
            b'"' => double_quoted(&rest[1..], words)?,
            b'\'' => single_quoted(&rest[1..], words)?,
            _ => bare(rest, words)?,
        };
        spans.push(Span {
            at,
            len: words.len() - at,
        });
        rest = rest.trim_ascii_start();
    }
    Some(())
}

fn bare<'a>(word: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    let end = word.iter().position(u8::is_ascii_whitespace).unwrap_or(word.len());
    let (word, rest) = word.split_at(end);
    words.extend_from_slice(word);
    Some(rest)
}

/// Behind the closing quote comes a blank, or nothing.
fn closed(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(u8::is_ascii_whitespace).then_some(rest)
}

fn single_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'\'', rest @ ..] => {
                words.push(b'\'');
                rest
            }
            [b'\'', rest @ ..] => return closed(rest),
            [byte, rest @ ..] => {
                words.push(*byte);
                rest
            }
            [] => return None,
        };
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                words.push(digit(*high) << 4 | digit(*low));
                rest
            }
            [b'\\', byte, rest @ ..] => {
                words.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    byte => *byte,
                });
                rest
            }
            [b'"', rest @ ..] => return closed(rest),
            [byte, rest @ ..] => {
                words.push(*byte);
                rest
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::random::Random;

    fn words(request: &Request, bytes: &[u8]) -> Vec<Vec<u8>> {
        request.strings(bytes).from(0).map(<[u8]>::to_vec).collect()
    }

    /// What comes of bytes that arrive in pieces of `piece`: commands, and how it ended.
    fn all(bytes: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
        let (mut request, mut found, mut begin, mut have) = (Request::default(), Vec::new(), 0, 0);
        loop {
            let whole = request.is_empty() && request.read_at_once(&bytes[begin..have]);
            match if whole {
                Ok(true)
            } else {
                request.read(&bytes[begin..have])
            } {
                Ok(true) => {
                    found.push(words(&request, &bytes[begin..have]));
                    begin += request.len();
                    request.next();
                }
                Ok(false) if have == bytes.len() => return (found, None),
                Ok(false) => have = bytes.len().min(have + piece),
                Err(malformed) => return (found, Some(malformed)),
            }
        }
    }

    #[test]
    fn commands_are_the_same_however_they_are_cut() {
        let bytes =
            b"*2\r\n$3\r\nGET\r\n$5\r\na\r\nbc\r\nPING \"a b\\x41\" 'c\\'d'\r\n*0\r\n\r\n*1\r\n$0\r\n\r\n*-1\r\nQUIT\n";
        let whole = all(bytes, bytes.len());
        assert_eq!(whole.0[0], [b"GET".to_vec(), b"a\r\nbc".to_vec()]);
        assert_eq!(whole.0[1], [b"PING".to_vec(), b"a bA".to_vec(), b"c'd".to_vec()]);
        assert_eq!((whole.0.len(), whole.1), (7, None));
        (1..bytes.len()).for_each(|piece| assert_eq!(all(bytes, piece), whole, "{piece}"));
    }

    #[test]
    fn what_is_no_command_is_refused() {
        let long = [b'a'; LINE_MAX + 1];
        for (bytes, wanted) in [
            (&b"*1048577\r\n"[..], "invalid multibulk length"),
            (b"*x\r\n", "invalid multibulk length"),
            (b"*1\r\nx", "expected '$', got something else"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*3\r\n$536870912\r\n", ""),
            (b"PING \"a\r\n", "unbalanced quotes in request"),
            (b"PING 'a'b\r\n", "unbalanced quotes in request"),
            (&long, "too big inline request"),
        ] {
            let refused = all(bytes, 7).1.map_or("", |malformed| malformed.0);
            assert_eq!(refused, wanted, "{:?}", &bytes[..bytes.len().min(20)]);
        }
    }

    /// Any bytes at all: commands or a refusal, the same however they are cut, and never a panic.
    #[test]
    fn garbage_is_understood_or_refused() {
        let pieces: [&[u8]; 16] = [
            b"*", b"$", b"\r\n", b"1", b"2", b"3", b"-", b"GET", b"\"", b"'", b" ", b"\n", b"\r", b"\\x4", b"9999999",
            b"\0\xff",
        ];
        let mut random = Random(1);
        for _ in 0..20_000 {
            let parts = random.below(30);
            let bytes: Vec<u8> = (0..parts).flat_map(|_| random.pick(&pieces)).copied().collect();
            let whole = all(&bytes, usize::MAX / 2);
            assert_eq!(all(&bytes, 1), whole);
            assert_eq!(all(&bytes, 3), whole);
        }
    }
}
