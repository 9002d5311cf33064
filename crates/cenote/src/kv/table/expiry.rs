//! Times: milliseconds since 1970 in the protocol, microseconds in the store.

use cenote_base::rt;
use cenote_store::Value;

/// Microseconds of a time in milliseconds; 0, never, stays so.
pub fn micros(millis: u64) -> u64 {
    millis.saturating_mul(1000)
}

/// Milliseconds that a value has left, if it expires.
pub fn left(value: &Value) -> Option<u64> {
    (value.expires > 0).then(|| value.expires.saturating_sub(now()).div_ceil(1000))
}

/// Microseconds since 1970.
fn now() -> u64 {
    rt::wall_micros().max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::super::Table;
    use super::*;
    use cenote_space::{Space, SpaceOptions};
    use cenote_store::{Expected, Options, PutOptions, Store};

    #[test]
    fn a_value_is_there_until_the_very_time_that_is_said() {
        let options = SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        };
        let space = Space::dram(&options).expect("memory");
        let store = Store::create(&space, Options::default()).expect("a store");
        let (table, at) = (Table::new(store.clone(), PutOptions::default()), 33_177_117_420_123);
        table.set(b"set", b"v", micros(at)).map_err(|_| ()).expect("set");
        let new = table.put_if(b"new", b"v", Expected::Absent, micros(at));
        assert!(new.is_ok_and(|is_set| is_set));
        for key in [&b"set"[..], b"new"] {
            let value = store.value_of(key).expect("read").expect("there");
            assert_eq!(value.expires, at * 1000);
        }
    }
}
