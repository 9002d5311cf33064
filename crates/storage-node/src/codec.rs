//! Fields in a row, little-endian: how commands, states and messages are written.
//!
//! Bytes that are read may come from anywhere: what is cut short or too long is an error.

use cenote_base::bytes::{LittleEndian, get_le};
use cenote_base::{Error, Lsn, Result};

/// Puts fields in a row.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// A message or command of this kind.
    pub fn of(kind: u8) -> Writer {
        Writer(vec![kind])
    }

    pub fn u8(mut self, value: u8) -> Writer {
        self.0.push(value);
        self
    }

    pub fn u32(mut self, value: u32) -> Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u128(mut self, value: u128) -> Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn lsn(self, value: Lsn) -> Writer {
        self.u64(value.raw())
    }

    /// With their length before them.
    pub fn bytes(self, value: &[u8]) -> Writer {
        let mut writer = self.u32(u32::try_from(value.len()).expect("a field is shorter than 4 GiB"));
        writer.0.extend_from_slice(value);
        writer
    }

    pub fn text(self, value: &str) -> Writer {
        self.bytes(value.as_bytes())
    }

    /// Each in turn, with their number before them.
    pub fn each<T>(self, items: &[T], put: impl Fn(Writer, &T) -> Writer) -> Writer {
        let number = u32::try_from(items.len()).expect("a list is shorter than 4 Gi");
        items.iter().fold(self.u32(number), put)
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Takes fields from the front.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Of `what`, for messages.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    pub fn wrong(&self, how: &str) -> Error {
        Error::corrupt(format!("{}: {how}", self.what))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(length) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.wrong("it is cut short")),
        }
    }

    fn number<T: LittleEndian>(&mut self) -> Result<T> {
        let bytes = self.take(size_of::<T>())?;
        get_le(bytes, 0).ok_or_else(|| self.wrong("it is cut short"))
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.number()
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.number()
    }

    pub fn u128(&mut self) -> Result<u128> {
        self.number()
    }

    pub fn lsn(&mut self) -> Result<Lsn> {
        Ok(Lsn::from_raw(self.u64()?))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    pub fn text(&mut self) -> Result<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// A list; each item takes a byte at least, so that no number makes it longer than what was read.
    pub fn each<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let number = self.u32()? as usize;
        if number > self.rest.len() {
            return Err(self.wrong("a list is longer than the rest"));
        }
        (0..number).map(|_| item(self)).collect()
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<()> {
        match self.rest {
            [] => Ok(()),
            _ => Err(self.wrong("bytes are left behind it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_bad_bytes_are_errors() {
        let bytes = Writer::of(7)
            .u32(8)
            .u128(9)
            .text("ten")
            .each(&[1u64, 2], |w, n| w.u64(*n))
            .done();
        let mut reader = Reader::new(&bytes, "a test");
        assert_eq!(
            (reader.u8().unwrap(), reader.u32().unwrap(), reader.u128().unwrap()),
            (7, 8, 9)
        );
        assert_eq!(reader.text().unwrap(), "ten");
        assert_eq!(reader.each(|r| r.u64()).unwrap(), [1, 2]);
        reader.end().unwrap();
        for cut in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..cut], "a test");
            let read = (|| {
                let head = (reader.u8()?, reader.u32()?, reader.u128()?, reader.text()?);
                Ok::<_, Error>((head, reader.each(|r| r.u64())?))
            })();
            assert!(read.is_err(), "cut at {cut}");
        }
        let huge = [u32::MAX.to_le_bytes(), [0; 4]].concat();
        assert!(Reader::new(&huge, "a test").each(|r| r.u8()).is_err());
        assert!(Reader::new(&huge, "a test").bytes().is_err());
    }
}
