//! Fields in a row, little-endian.

use cenote_base::bytes::LittleEndian;
use cenote_base::{Error, Lsn, Result};

/// Writes fields.
#[derive(Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn lsn(&mut self, value: Lsn) -> &mut Self {
        self.u64(value.raw())
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes behind their number.
    pub fn counted(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).expect("a field is shorter than 4 GiB");
        self.u32(length).bytes(bytes)
    }
}

/// Reads them: what is not there is an error that names the file or object.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    of: &'a str,
}

impl<'a> Reader<'a> {
    /// The fields of the file or object `of`.
    pub fn new(bytes: &'a [u8], of: &'a str) -> Reader<'a> {
        Reader { rest: bytes, of }
    }

    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| Error::corrupt(format!("{} ends too early", self.of)))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<T: LittleEndian>(&mut self) -> Result<T> {
        let bytes = self.bytes(size_of::<T>())?;
        Ok(T::first(bytes).expect("the length was checked"))
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.number()
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.number()
    }

    pub fn lsn(&mut self) -> Result<Lsn> {
        Ok(Lsn::from_raw(self.u64()?))
    }

    pub fn counted(&mut self) -> Result<&'a [u8]> {
        let length = self.u32()?;
        self.bytes(length as usize)
    }

    /// Fields that repeat, behind their number.
    pub fn many<T>(&mut self, one: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()?;
        (0..count).map(|_| one(self)).collect()
    }

    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// That there is no more.
    pub fn end(self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(Error::corrupt(format!("{} has {n} bytes too many", self.of))),
        }
    }
}
