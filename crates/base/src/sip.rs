//! SipHash-1-3: a hash with a key, so that a program that chooses the hashed bytes cannot choose the hash.

/// SipHash-1-3.
#[inline]
pub fn sip(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut sip = Sip::new(key);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| sip.word(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    sip.word(u64::from_le_bytes(last));
    sip.finish()
}

struct Sip([u64; 4]);

impl Sip {
    fn new([k0, k1]: [u64; 2]) -> Self {
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline(always)]
    fn word(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    #[inline(always)]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32).wrapping_add(*v3);
        *v2 = v2.wrapping_add(*v1);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    }

    #[inline(always)]
    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        (0..3).for_each(|_| self.round());
        self.0.into_iter().fold(0, |all, word| all ^ word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    #[test]
    fn it_is_that_of_the_standard_library_with_a_key_of_zero() {
        for len in 0..70 {
            let bytes: Vec<u8> = (0..len).map(|n| n * 7).collect();
            let mut known = std::hash::DefaultHasher::new();
            known.write(&bytes);
            let known = known.finish();
            assert_eq!(sip([0; 2], &bytes), known, "{len}");
        }
    }
}
