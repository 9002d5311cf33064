//! Parameters of a Bind message, read in place.

use crate::error::{Result, SqlError, code};
use crate::output::Format;

/// What follows the two names in a Bind message, validated, not copied:
/// `i16 n, n formats i16 | i16 n, n parameters (i32 length or -1, bytes) | i16 n, n result formats i16`.
#[derive(Debug, Clone, Copy)]
pub struct Bind<'a> {
    formats: &'a [u8],
    params: &'a [u8],
    count: u16,
    results: &'a [u8],
}

impl<'a> Bind<'a> {
    /// Reads the tail of a Bind message.
    ///
    /// # Errors
    /// 08P01: the message is cut short, or its counts contradict each other. 22023: a format code is unknown.
    pub fn from_wire(tail: &'a [u8]) -> Result<Self> {
        let mut rest = tail;
        let formats = take_i16s(&mut rest)?;
        let count = take_u16(&mut rest)?;
        let start = rest;
        for _ in 0..count {
            let len = i32::from_be_bytes(take(&mut rest, 4)?.try_into().expect("four bytes were taken"));
            if len >= 0 {
                take(&mut rest, len as usize)?;
            } else if len != -1 {
                return Err(malformed());
            }
        }
        let params = &start[..start.len() - rest.len()];
        let results = take_i16s(&mut rest)?;
        if !rest.is_empty() {
            return Err(malformed());
        }
        let bind = Bind {
            formats,
            params,
            count,
            results,
        };
        bind.check_formats()?;
        Ok(bind)
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Bytes of the parameters as they came.
    pub fn bytes(&self) -> usize {
        self.params.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The parameters in order with their formats; `None` is null.
    pub fn params(&self) -> impl Iterator<Item = (Format, Option<&'a [u8]>)> + use<'a> {
        let this = *self;
        let mut rest = self.params;
        (0..self.len()).map(move |i| {
            let (head, tail) = rest.split_at(4);
            let len = i32::from_be_bytes(head.try_into().expect("split at four"));
            let value = (len >= 0).then(|| &tail[..len as usize]);
            rest = &tail[len.max(0) as usize..];
            (this.param_format(i), value)
        })
    }

    /// Result formats as asked for.
    pub fn result_formats(&self) -> impl Iterator<Item = Format> + use<'a> {
        self.results.chunks_exact(2).map(format_of)
    }

    fn param_format(&self, i: usize) -> Format {
        match self.formats.len() / 2 {
            0 => Format::Text,
            1 => format_of(self.formats),
            _ => format_of(&self.formats[2 * i..]),
        }
    }

    fn check_formats(&self) -> Result<()> {
        let n = self.formats.len() / 2;
        if n > 1 && n != self.len() {
            let text = format!("bind message has {n} parameter formats but {} parameters", self.count);
            return Err(SqlError::new(code::PROTOCOL_VIOLATION, text));
        }
        for pair in self.formats.chunks_exact(2).chain(self.results.chunks_exact(2)) {
            if pair[0] != 0 || pair[1] > 1 {
                let text = format!("unsupported format code: {}", i16::from_be_bytes([pair[0], pair[1]]));
                return Err(SqlError::new(code::INVALID_ARGUMENT, text));
            }
        }
        Ok(())
    }
}

fn format_of(pair: &[u8]) -> Format {
    if pair[1] == 1 { Format::Binary } else { Format::Text }
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n).ok_or_else(malformed)?;
    *rest = tail;
    Ok(head)
}

fn take_u16(rest: &mut &[u8]) -> Result<u16> {
    let pair = take(rest, 2)?;
    Ok(u16::from_be_bytes([pair[0], pair[1]]))
}

fn take_i16s<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let n = take_u16(rest)? as usize;
    take(rest, 2 * n)
}

#[cold]
fn malformed() -> SqlError {
    SqlError::new(code::PROTOCOL_VIOLATION, "invalid message format")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_parameters_in_place() {
        let wire = [0, 1, 0, 1, 0, 2, 0, 0, 0, 2, 7, 8, 255, 255, 255, 255, 0, 1, 0, 0];
        let bind = Bind::from_wire(&wire).expect("well formed");
        let got: Vec<_> = bind.params().collect();
        assert_eq!(got, vec![(Format::Binary, Some(&[7u8, 8][..])), (Format::Binary, None)]);
        assert_eq!(bind.result_formats().collect::<Vec<_>>(), vec![Format::Text]);
    }

    #[test]
    fn refuses_every_truncation() {
        let wire = [0, 1, 0, 1, 0, 2, 0, 0, 0, 2, 7, 8, 255, 255, 255, 255, 0, 1, 0, 0];
        for cut in 0..wire.len() {
            assert!(Bind::from_wire(&wire[..cut]).is_err(), "cut at {cut}");
        }
    }
}
