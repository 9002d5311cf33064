//! The longest values.

use cenote_space::{Space, SpaceOptions};
use cenote_store::{Options, Put, PutOptions, Store, VALUE_MAX};

const STEP: usize = 1 << 20;

/// Bytes of this machine that no process uses.
fn free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Bytes of which each place in the value has its own.
fn bytes_at(at: u64) -> Vec<u8> {
    let mut bytes = vec![at as u8; STEP];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[STEP - 8..].copy_from_slice(&(!at).to_le_bytes());
    bytes
}

#[test]
fn values_of_64_mib_to_1_gib_are_put_and_read() {
    if free_bytes() < 3 << 30 {
        println!("skipped: a value of 1 GiB takes 3 GiB of memory here");
        return;
    }
    let space = SpaceOptions {
        bytes: VALUE_MAX + (160 << 20),
        ..SpaceOptions::default()
    };
    let options = Options {
        sweeps: false,
        ..Options::default()
    };
    let store = Store::create(&Space::dram(&space).expect("memory"), options).expect("a store");
    for len in [(64 << 20) + 5, VALUE_MAX] {
        let room = store.alloc(b"key", len, PutOptions::default()).expect("room");
        for at in (0..len).step_by(STEP) {
            let n = (len - at).min(STEP as u64) as usize;
            room.write(at, &bytes_at(at)[..n]).expect("inside");
        }
        assert_eq!(room.publish().expect("published"), Put::Stored(1));
        let borrow = store.borrow(b"key").expect("asked").expect("there");
        assert_eq!(borrow.pin().value().len, len);
        let mut bytes = vec![0; STEP];
        for at in (0..len).step_by(8 * STEP) {
            let n = (len - at).min(STEP as u64) as usize;
            borrow.read(at, &mut bytes[..n]).expect("inside");
            assert!(bytes[..n] == bytes_at(at)[..n], "{at} of {len}");
        }
        assert!(borrow.end().expect("asked"));
        if len == 64 << 20 {
            assert_eq!(
                store.get(b"key").expect("asked").map(|bytes| bytes.len() as u64),
                Some(len)
            );
        }
        assert!(store.remove(b"key").expect("removed"));
    }
    let stats = store.stats().expect("counted");
    assert_eq!((stats.items, stats.used, stats.damaged), (0, 0, 0));
}
