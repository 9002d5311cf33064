//! What records are made of: keys, names of fields, values.

use super::choose::{Random, disperse};

/// Bytes that values are cut from.
const TEXT: usize = 1 << 20;

/// How a record lies in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// A hash of its fields: read as a whole, updated by one field, as YCSB does it.
    Hash,
    /// One value of as many bytes as all fields: read and written as a whole.
    Value,
}

/// The shape of all records.
#[derive(Debug, Clone)]
pub struct Records {
    /// How they lie there.
    pub layout: Layout,
    /// Names of the fields.
    pub names: Vec<Vec<u8>>,
    /// Bytes of a field.
    pub field_bytes: usize,
    text: Vec<u8>,
}

/// A record's key.
pub struct Key {
    bytes: [u8; 24],
    begin: usize,
}

impl Key {
    /// `user` and the record's dispersed number, as YCSB has it.
    #[inline]
    pub fn new(record: u64) -> Self {
        let (mut bytes, mut begin, mut rest) = ([b'0'; 24], 24, disperse(record));
        while rest >= 100 {
            let pair = (rest % 100) as u8;
            (rest, begin) = (rest / 100, begin - 2);
            (bytes[begin], bytes[begin + 1]) = (b'0' + pair / 10, b'0' + pair % 10);
        }
        begin -= 1;
        bytes[begin] += (rest % 10) as u8;
        if rest >= 10 {
            begin -= 1;
            bytes[begin] += (rest / 10) as u8;
        }
        begin -= 4;
        bytes[begin..begin + 4].copy_from_slice(b"user");
        Self { bytes, begin }
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

impl Records {
    /// So many fields of so many bytes.
    pub fn new(layout: Layout, fields: usize, field_bytes: usize) -> Self {
        let mut random = Random::new(1);
        let mut printed = || b' ' + random.below(95) as u8;
        Self {
            layout,
            names: (0..fields).map(|n| format!("field{n}").into_bytes()).collect(),
            field_bytes,
            text: (0..TEXT + fields * field_bytes).map(|_| printed()).collect(),
        }
    }

    /// Bytes of all values of a record.
    pub fn bytes(&self) -> usize {
        self.names.len() * self.field_bytes
    }

    /// The values of a whole record, one after the other.
    #[inline]
    pub fn whole(&self, bits: u64) -> &[u8] {
        let begin = bits as usize % TEXT;
        &self.text[begin..begin + self.bytes()]
    }

    /// The field that is updated, and its value.
    #[inline]
    pub fn one(&self, bits: u64) -> (&[u8], &[u8]) {
        let (begin, field) = (bits as usize % TEXT, (bits >> 32) as usize % self.names.len());
        (&self.names[field], &self.text[begin..begin + self.field_bytes])
    }

    /// All names with their values.
    #[inline]
    pub fn pairs(&self, bits: u64) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        let values = self.whole(bits).chunks(self.field_bytes);
        self.names.iter().map(Vec::as_slice).zip(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_ycsb() {
        for record in [0, 1, 999, u64::MAX] {
            let wanted = format!("user{}", disperse(record));
            assert_eq!(Key::new(record).bytes(), wanted.as_bytes());
        }
    }

    #[test]
    fn values_have_their_sizes_wherever_they_are_cut() {
        let records = Records::new(Layout::Hash, 10, 100);
        for bits in [0, TEXT as u64 - 1, u64::MAX, 12345 << 32 | 77] {
            assert_eq!(records.whole(bits).len(), 1000);
            assert_eq!(records.one(bits).1.len(), 100);
            let pairs: Vec<_> = records.pairs(bits).collect();
            assert!(pairs.len() == 10 && pairs.iter().all(|(_, value)| value.len() == 100));
            assert_eq!(pairs[3].0, b"field3");
        }
    }
}
