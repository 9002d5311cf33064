//! What caches and homes say to each other: kind u8, then words, then bytes of a line.

use super::LINE;
use cenote_base::{Error, Result};

/// A cache asks a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// To have the line shared.
    Read,
    /// To have it alone.
    Own,
}

/// What a home is told.
#[derive(Debug, PartialEq, Eq)]
pub enum ToHome<'a> {
    Ask {
        ask: Ask,
        pod: usize,
        line: u64,
    },
    /// A modified line comes back.
    WriteBack {
        pod: usize,
        line: u64,
        grant: u64,
        bytes: &'a [u8],
    },
}

/// What a cache is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToCache {
    /// Grants of the line up to this one end.
    Invalidate { line: u64, until: u64 },
    /// The line, as it was changed under this grant; it may stay as a shared one.
    Recall { line: u64, grant: u64, keep: bool },
}

const READ: u8 = 1;
const OWN: u8 = 2;
const WRITE_BACK: u8 = 3;
const INVALIDATE: u8 = 4;
const RECALL: u8 = 5;

fn put(kind: u8, words: &[u64], bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(1 + 8 * words.len() + bytes.len());
    message.push(kind);
    words
        .iter()
        .for_each(|word| message.extend_from_slice(&word.to_le_bytes()));
    message.extend_from_slice(bytes);
    message
}

fn take<const N: usize>(bytes: &[u8]) -> Result<([u64; N], &[u8])> {
    let (words, rest) = bytes
        .split_at_checked(8 * N)
        .ok_or_else(|| Error::corrupt("a message ends early"))?;
    let word = |n: usize| words[8 * n..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    Ok((core::array::from_fn(word), rest))
}

impl ToHome<'_> {
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            ToHome::Ask { ask, pod, line } => {
                let kind = if ask == Ask::Read { READ } else { OWN };
                put(kind, &[pod as u64, line], &[])
            }
            ToHome::WriteBack {
                pod,
                line,
                grant,
                bytes,
            } => put(WRITE_BACK, &[pod as u64, line, grant], bytes),
        }
    }

    /// # Errors
    /// [`Error::Corrupt`] if the message is of no kind, or cut short.
    pub fn decode(message: &[u8]) -> Result<ToHome<'_>> {
        let ask = |ask, rest| {
            let ([pod, line], _) = take(rest)?;
            Ok(ToHome::Ask {
                ask,
                pod: pod as usize,
                line,
            })
        };
        match message {
            [READ, rest @ ..] => ask(Ask::Read, rest),
            [OWN, rest @ ..] => ask(Ask::Own, rest),
            [WRITE_BACK, rest @ ..] => {
                let ([pod, line, grant], bytes) = take(rest)?;
                let pod = pod as usize;
                check_line(bytes)?;
                Ok(ToHome::WriteBack {
                    pod,
                    line,
                    grant,
                    bytes,
                })
            }
            _ => Err(Error::corrupt("a message of no kind")),
        }
    }
}

impl ToCache {
    pub fn encode(self) -> Vec<u8> {
        match self {
            ToCache::Invalidate { line, until } => put(INVALIDATE, &[line, until], &[]),
            ToCache::Recall { line, grant, keep } => put(RECALL, &[line, grant, keep.into()], &[]),
        }
    }

    /// # Errors
    /// [`Error::Corrupt`] if the message is of no kind, or cut short.
    pub fn decode(message: &[u8]) -> Result<ToCache> {
        match message {
            [INVALIDATE, rest @ ..] => take(rest).map(|([line, until], _)| ToCache::Invalidate { line, until }),
            [RECALL, rest @ ..] => {
                let ([line, grant, keep], _) = take(rest)?;
                let keep = keep != 0;
                Ok(ToCache::Recall { line, grant, keep })
            }
            _ => Err(Error::corrupt("a message of no kind")),
        }
    }
}

fn check_line(bytes: &[u8]) -> Result<()> {
    if bytes.len() as u64 == LINE {
        Ok(())
    } else {
        Err(Error::corrupt("a line of another length"))
    }
}

/// A grant, and the line with it.
pub fn grant(number: u64, bytes: &[u8]) -> Vec<u8> {
    put(0, &[number], bytes)
}

/// Its number, and the line.
///
/// # Errors
/// [`Error::Corrupt`] if the answer is cut short or has no whole line.
pub fn read_grant(answer: &[u8]) -> Result<(u64, &[u8])> {
    let ([number], bytes) = take(answer.get(1..).unwrap_or_default())?;
    check_line(bytes)?;
    Ok((number, bytes))
}

/// A line that was recalled, if it was there still.
///
/// # Errors
/// [`Error::Corrupt`] if the answer has bytes that are no whole line.
pub fn read_recalled(answer: &[u8]) -> Result<Option<&[u8]>> {
    match answer {
        [] => Ok(None),
        bytes => check_line(bytes).map(|()| Some(bytes)),
    }
}

/// Whether a recall was on its way when a line came back.
pub fn written_back(was_busy: bool) -> [u8; 1] {
    [was_busy.into()]
}

/// The same.
pub fn read_written_back(answer: &[u8]) -> bool {
    answer == [1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let line = [7; LINE as usize];
        let said = [
            ToHome::Ask {
                ask: Ask::Read,
                pod: 3,
                line: 9,
            },
            ToHome::Ask {
                ask: Ask::Own,
                pod: 0,
                line: 1,
            },
            ToHome::WriteBack {
                pod: 1,
                line: 2,
                grant: 3,
                bytes: &line,
            },
        ];
        for message in said {
            assert_eq!(ToHome::decode(&message.encode()).expect("understood"), message);
        }
        for message in [
            ToCache::Invalidate { line: 1, until: 2 },
            ToCache::Recall {
                line: 1,
                grant: 2,
                keep: true,
            },
        ] {
            assert_eq!(ToCache::decode(&message.encode()).expect("understood"), message);
        }
        assert_eq!(read_grant(&grant(5, &line)).expect("a grant"), (5, &line[..]));
        for bad in [&[][..], &[1], &[3, 0], &[9; 30]] {
            assert!(ToHome::decode(bad).is_err() && ToCache::decode(bad).is_err());
        }
    }
}
