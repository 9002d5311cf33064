//! SipHash-1-3 with a key that each store draws for itself: a client that chooses keys cannot choose their buckets.

use cenote_base::sip::sip;

/// The hash of `bytes`: the upper half of SipHash-1-3's 64 bits, mixed with the lower.
#[inline]
pub(super) fn hash(key: [u64; 2], bytes: &[u8]) -> u32 {
    let hash = sip(key, bytes);
    (hash >> 32) as u32 ^ hash as u32
}
