//! Little-endian numbers in byte slices.
//!
//! [`get_le`] is for bytes that come from a disk, a network or another process: what is not there is `None`. [`read_le`]
//! is for bytes whose length the caller has checked: what is not there is a panic.

/// A number that is kept as its bytes, the lowest first.
pub trait LittleEndian: Sized {
    /// The number at the beginning of `bytes`; `None` if they end before it does.
    fn first(bytes: &[u8]) -> Option<Self>;
}

macro_rules! little_endian {
    ($($number:ty),*) => {$(
        impl LittleEndian for $number {
            #[inline(always)]
            fn first(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(|bytes| Self::from_le_bytes(*bytes))
            }
        }
    )*};
}

little_endian!(u16, u32, u64, u128);

/// The number at `at`; `None` if the bytes end before it does.
#[inline(always)]
pub fn get_le<T: LittleEndian>(bytes: &[u8], at: usize) -> Option<T> {
    T::first(bytes.get(at..)?)
}

/// The number at `at`.
///
/// # Panics
/// If the bytes end before it does: the caller has checked their length.
#[inline(always)]
pub fn read_le<T: LittleEndian>(bytes: &[u8], at: usize) -> T {
    get_le(bytes, at).expect("the caller has checked the length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_where_they_are_whole() {
        let bytes: Vec<u8> = (1..=17).collect();
        assert_eq!(get_le::<u16>(&bytes, 15), Some(0x1110));
        assert_eq!(get_le::<u16>(&bytes, 16), None);
        assert_eq!(get_le::<u32>(&bytes, usize::MAX), None);
        assert_eq!(read_le::<u32>(&bytes, 0), 0x0403_0201);
        assert_eq!(read_le::<u64>(&bytes, 9), 0x1110_0F0E_0D0C_0B0A);
        assert_eq!(read_le::<u128>(&bytes, 1) as u64, 0x0908_0706_0504_0302);
    }
}
