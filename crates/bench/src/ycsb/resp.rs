//! Redis's protocol, as far as a load generator needs it.

use crate::{Error, Result};

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A word, such as OK.
    Simple,
    /// An error's text.
    Error(&'a [u8]),
    /// A number.
    Integer(i64),
    /// A string.
    String(&'a [u8]),
    /// Nothing.
    Null,
    /// An array of strings.
    Array {
        /// How many.
        count: usize,
        /// Bytes of all of them.
        bytes: usize,
    },
}

/// Writes a command.
#[inline]
pub fn command(out: &mut Vec<u8>, strings: &[&[u8]]) {
    array(out, strings.len());
    strings.iter().for_each(|bytes| string(out, bytes));
}

/// Writes the head of a command of so many strings.
#[inline]
pub fn array(out: &mut Vec<u8>, count: usize) {
    head(out, b'*', count);
}

/// Writes a string of a command.
#[inline]
pub fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn head(out: &mut Vec<u8>, kind: u8, number: usize) {
    let (mut digits, mut at, mut rest) = ([0; 20], 20, number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

/// The first answer in `bytes` and its length; none if it is not complete.
///
/// # Errors
/// If it is none.
pub fn answer(bytes: &[u8]) -> Result<Option<(usize, Answer<'_>)>> {
    let Some((&kind, _)) = bytes.split_first() else {
        return Ok(None);
    };
    if kind == b'*' {
        return strings(bytes);
    }
    single(bytes)
}

fn strings(bytes: &[u8]) -> Result<Option<(usize, Answer<'_>)>> {
    let Some((mut at, head)) = line(bytes) else {
        return Ok(None);
    };
    let count = number(head)?.max(0) as usize;
    let mut sum = 0;
    for _ in 0..count {
        match single(&bytes[at..])? {
            None => return Ok(None),
            Some((len, Answer::String(string))) => (at, sum) = (at + len, sum + string.len()),
            Some(_) => return Err(strange(bytes)),
        }
    }
    Ok(Some((at, Answer::Array { count, bytes: sum })))
}

fn single(bytes: &[u8]) -> Result<Option<(usize, Answer<'_>)>> {
    let Some((behind, text)) = line(bytes) else {
        return Ok(None);
    };
    let answer = match bytes[0] {
        b'+' => Answer::Simple,
        b'-' => Answer::Error(text),
        b':' => Answer::Integer(number(text)?),
        b'_' => Answer::Null,
        b'$' => match usize::try_from(number(text)?) {
            Err(_) => Answer::Null,
            Ok(len) => {
                let string = bytes.get(behind..behind + len + 2);
                return Ok(string.map(|string| (behind + len + 2, Answer::String(&string[..len]))));
            }
        },
        _ => return Err(strange(bytes)),
    };
    Ok(Some((behind, answer)))
}

/// What stands in the first line behind its kind, and where the next one begins.
#[inline]
fn line(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((end + 1, bytes.get(1..end.checked_sub(1)?)?))
}

#[inline]
fn number(digits: &[u8]) -> Result<i64> {
    let (is_negative, digits) = match digits {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let sum = digits.iter().try_fold(0i64, |sum, digit| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    });
    match sum.filter(|sum| *sum <= 1 << 30 && !digits.is_empty()) {
        Some(sum) => Ok(if is_negative { -sum } else { sum }),
        None => Err(strange(digits)),
    }
}

#[cold]
fn strange(bytes: &[u8]) -> Error {
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
    Error::Refused(format!("the server has answered {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_redis_reads_them() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"key", b"0123456789"]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$10\r\n0123456789\r\n");
    }

    #[test]
    fn answers_are_read_when_they_are_whole() {
        let all: [(&[u8], Answer<'_>); 8] = [
            (b"+OK\r\n", Answer::Simple),
            (b"-ERR no\r\n", Answer::Error(b"ERR no")),
            (b":-12\r\n", Answer::Integer(-12)),
            (b"$3\r\na\nb\r\n", Answer::String(b"a\nb")),
            (b"$-1\r\n", Answer::Null),
            (b"_\r\n", Answer::Null),
            (b"*0\r\n", Answer::Array { count: 0, bytes: 0 }),
            (b"*2\r\n$1\r\na\r\n$2\r\nbc\r\n", Answer::Array { count: 2, bytes: 3 }),
        ];
        for (bytes, wanted) in all {
            for end in 0..bytes.len() {
                assert_eq!(
                    answer(&bytes[..end]).expect("an answer, in part"),
                    None,
                    "{end} of {wanted:?}"
                );
            }
            let more = [bytes, b":1\r\n"].concat();
            assert_eq!(answer(&more).expect("an answer"), Some((bytes.len(), wanted)));
        }
    }

    #[test]
    fn what_is_no_answer_is_said() {
        for bytes in [
            &b"x\r\n"[..],
            b":1x\r\n",
            b":\r\n",
            b"$99999999999\r\n",
            b"*1\r\n:1\r\n",
            b"*1\r\n!\r\n",
        ] {
            assert!(answer(bytes).is_err(), "{bytes:?}");
        }
    }
}
