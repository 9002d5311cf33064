//! The time in the protocol: milliseconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_millis() as u64)
}
