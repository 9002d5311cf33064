//! Times: milliseconds since 1970 in the protocol, microseconds in the store.

use cenote_base::rt::{self, Nanos};
use cenote_store::Value;

/// Microseconds of a time in milliseconds; 0, never, stays so.
pub fn micros(millis: u64) -> u64 {
    millis.saturating_mul(1000)
}

/// How long it is until a time in milliseconds.
pub fn until(millis: u64) -> Nanos {
    Nanos(micros(millis).saturating_sub(now()).saturating_mul(1000))
}

/// Milliseconds that a value has left, if it expires.
pub fn left(value: &Value) -> Option<u64> {
    (value.expires > 0).then(|| value.expires.saturating_sub(now()).div_ceil(1000))
}

/// Microseconds since 1970.
fn now() -> u64 {
    rt::wall_micros().max(0) as u64
}
