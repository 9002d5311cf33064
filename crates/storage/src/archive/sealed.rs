//! How an object is kept: compressed, behind a header that says what it is, with a checksum of both.
//!
//! ```text
//!  0 u64 magic   8 u32 version   12 u32 kind   16 u128 database   32 u64 bytes of the contents   40 u32 zero
//! 44 u32 crc32c of 0..44 and of what follows   48 the contents, compressed (Zstandard)
//! ```

use cenote_base::bytes::get_le;
use cenote_base::{Error, Result, crc};

const MAGIC: u64 = u64::from_le_bytes(*b"CenArch\0");
const VERSION: u32 = 1;
const HEADER: usize = 48;
const SUM: usize = 44;
/// The fastest of the usual ones: the processor is the clients'. Of sysbench's log it leaves half.
const LEVEL: i32 = 1;
/// The most that the contents of an object may have.
pub(super) const CONTENTS_MAX: usize = 64 << 20;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Timeline = 1,
    Log = 2,
    Pages = 3,
    Base = 4,
}

/// The bytes of an object of a database.
pub(super) fn seal(kind: Kind, database: u128, contents: &[u8]) -> Result<Vec<u8>> {
    assert!(contents.len() <= CONTENTS_MAX, "an object is small");
    let mut bytes = Vec::with_capacity(HEADER + contents.len() / 2);
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(kind as u32).to_le_bytes());
    bytes.extend_from_slice(&database.to_le_bytes());
    bytes.extend_from_slice(&(contents.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&[0; HEADER - 40]);
    let compressed = zstd::bulk::compress(contents, LEVEL).map_err(|error| Error::io("compressing", error))?;
    bytes.extend_from_slice(&compressed);
    let sum = sum_of(&bytes);
    bytes[SUM..HEADER].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

/// The contents of the object `name`, which has to be one of this kind, and of this database.
///
/// # Errors
/// [`Error::Corrupt`] if it is damaged or another one; [`Error::Mismatch`] if its version is a later one.
pub(super) fn unseal(kind: Kind, database: u128, name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let corrupt = |what: &str| Error::corrupt(format!("the object {name} {what}"));
    if bytes.len() < HEADER || get_le::<u64>(bytes, 0) != Some(MAGIC) {
        return Err(corrupt("is not one of an archive"));
    }
    match get_le::<u32>(bytes, 8) {
        Some(VERSION) => {}
        version => {
            return Err(Error::Mismatch(format!(
                "the object {name} has format version {}, and this program reads {VERSION}",
                version.unwrap_or(0)
            )));
        }
    }
    if get_le::<u32>(bytes, SUM) != Some(sum_of(bytes)) {
        return Err(corrupt("fails its checksum"));
    }
    if get_le::<u32>(bytes, 12) != Some(kind as u32) || get_le::<u128>(bytes, 16) != Some(database) {
        return Err(corrupt("is not what its name says"));
    }
    let length = get_le::<u64>(bytes, 32).unwrap_or(u64::MAX);
    let length = usize::try_from(length).ok().filter(|length| *length <= CONTENTS_MAX);
    let length = length.ok_or_else(|| corrupt("is too long"))?;
    let contents = zstd::bulk::decompress(&bytes[HEADER..], length).map_err(|_| corrupt("cannot be decompressed"))?;
    match contents.len() == length {
        true => Ok(contents),
        false => Err(corrupt("is cut short")),
    }
}

fn sum_of(bytes: &[u8]) -> u32 {
    crc::append(crc::crc32c(&bytes[..SUM]), &bytes[HEADER..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_what_it_says_or_an_error() {
        let contents: Vec<u8> = (0..5000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let sealed = seal(Kind::Log, 7, &contents).expect("sealed");
        assert!(sealed.len() < contents.len());
        assert_eq!(unseal(Kind::Log, 7, "a", &sealed).expect("whole"), contents);
        for (kind, database) in [(Kind::Base, 7), (Kind::Log, 8)] {
            assert!(unseal(kind, database, "a", &sealed).is_err());
        }
        for at in (0..sealed.len()).step_by(3) {
            let mut damaged = sealed.clone();
            damaged[at] ^= 0x10;
            unseal(Kind::Log, 7, "a", &damaged).expect_err("damaged");
            unseal(Kind::Log, 7, "a", &sealed[..at]).expect_err("cut short");
        }
    }

    /// A header with a good checksum may say anything.
    #[test]
    fn what_is_too_long_is_not_decompressed() {
        let mut sealed = seal(Kind::Log, 7, &[0; 1000]).expect("sealed");
        for length in [999_u64, 1001, u64::MAX] {
            sealed[32..40].copy_from_slice(&length.to_le_bytes());
            let sum = sum_of(&sealed);
            sealed[SUM..HEADER].copy_from_slice(&sum.to_le_bytes());
            unseal(Kind::Log, 7, "a", &sealed).expect_err("of another length");
        }
    }
}
