//! Hash tables whose order does not depend on the process: same inputs, same run.

use std::collections;
use std::hash::{BuildHasher, Hasher};

/// A hash map with the fixed hasher; make one with `HashMap::default()`.
pub type HashMap<K, V> = collections::HashMap<K, V, FixedState>;
/// A hash set with the fixed hasher; make one with `HashSet::default()`.
pub type HashSet<T> = collections::HashSet<T, FixedState>;

/// Makes [`FixedHasher`]s.
#[derive(Debug, Clone, Copy, Default)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;
    #[inline]
    fn build_hasher(&self) -> FixedHasher {
        FixedHasher(0x243F_6A88_85A3_08D3)
    }
}

/// A multiply-and-fold hasher without a random key. Fast; no defence against chosen keys.
#[derive(Debug, Clone, Copy)]
pub struct FixedHasher(u64);

impl FixedHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word) * u128::from(0xF39C_C060_5CED_C835_u64);
        self.0 = (wide as u64) ^ (wide >> 64) as u64 ^ 0xA409_3822_299F_31D0;
    }
}

impl Hasher for FixedHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(last) ^ (rest.len() as u64) << 56);
        }
    }

    #[inline]
    fn write_u8(&mut self, v: u8) {
        self.mix(u64::from(v));
    }

    #[inline]
    fn write_u32(&mut self, v: u32) {
        self.mix(u64::from(v));
    }

    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.mix(v);
    }

    #[inline]
    fn write_usize(&mut self, v: usize) {
        self.mix(v as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
