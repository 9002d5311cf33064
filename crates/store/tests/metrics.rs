//! What Prometheus is told, of all processes.

use cenote_space::{Space, SpaceOptions};
use cenote_store::{Options, PutOptions, Store};
use std::collections::BTreeMap;

/// By name, labels included; what Prometheus would refuse fails.
fn parsed(text: &str) -> BTreeMap<String, u64> {
    let (mut values, mut known) = (BTreeMap::new(), None);
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["#", "HELP", name, ..] => known = Some((name, false)),
            ["#", "TYPE", name, kind] => {
                assert_eq!(known, Some((name, false)), "HELP comes first");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                known = Some((name, true));
            }
            [name, value] => {
                let (metric, is_typed) = known.expect("a head comes first");
                assert!(is_typed && name.split('{').next() == Some(metric), "{line}");
                let before = values.insert(name.to_owned(), value.parse().expect("a number"));
                assert_eq!(before, None, "{line} twice");
            }
            _ => panic!("{line}"),
        }
    }
    values
}

#[test]
fn what_all_processes_did_is_told_also_of_those_that_have_ended() {
    let space = SpaceOptions {
        bytes: 64 << 20,
        ..SpaceOptions::default()
    };
    let space = Space::dram(&space).expect("memory");
    let options = Options {
        bound: 1 << 20,
        sweeps: false,
        ..Options::default()
    };
    let first = Store::create(&space, options).expect("a store");
    let of_seven = PutOptions {
        tenant: 7,
        ..PutOptions::default()
    };
    for round in 1..=3_u64 {
        let other = Store::open(&space, options).expect("opened");
        other.put(&round.to_be_bytes(), b"value", of_seven).expect("put");
        assert!(other.get(&round.to_be_bytes()).expect("asked").is_some());
        assert!(other.get(b"none").expect("asked").is_none());
        let borrow = other.borrow(&round.to_be_bytes()).expect("asked").expect("there");
        let text = parsed(&first.metrics().expect("told"));
        let of = |name: &str| text[&format!("cenote_store_{name}")];
        assert_eq!((of("sessions"), of("pins"), of("items")), (2, 1, round));
        // The other one adds what it did with its sweep, or at its end.
        assert_eq!((of("puts_total"), of("gets_total")), (round - 1, 2 * (round - 1)));
        other.sweep().expect("swept");
        let text = parsed(&first.metrics().expect("told"));
        let of = |name: &str| text[&format!("cenote_store_{name}")];
        assert_eq!(
            (of("puts_total"), of("put_bytes_total"), of("borrows_total")),
            (round, 5 * round, round)
        );
        assert_eq!(
            (of("hits_total"), of("misses_total"), of("read_bytes_total")),
            (round, round, 5 * round)
        );
        assert!(of("tenant_used_bytes{tenant=\"7\"}") > 0 && of("bound_bytes") == 1 << 20);
        drop(borrow);
    }
    (100..400_u64).for_each(|n| _ = first.put(&n.to_be_bytes(), &[1; 10_000], of_seven).expect("put"));
    assert!(first.remove(&399_u64.to_be_bytes()).expect("removed"));
    let text = parsed(&first.metrics().expect("told"));
    let of = |name: &str| text[&format!("cenote_store_{name}")];
    assert!(of("evictions_total") > 100 && of("used_bytes") <= 1 << 20);
    assert_eq!((of("puts_total"), of("removed_total"), of("sessions")), (303, 1, 1));
}
