//! CRC-32C, the one checksum of pages, records and headers (hardware instructions where the
//! processor has them).

/// The checksum of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// The checksum of what `crc` stands for followed by `bytes`: `append(crc32c(a), b)` is the
/// checksum of `a` and `b` in a row.
#[inline]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_value_and_composition() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(super::append(super::crc32c(b"1234"), b"56789"), 0xE306_9283);
    }
}
