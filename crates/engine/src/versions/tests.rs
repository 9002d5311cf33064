//! The store against a list of all versions.

use super::*;
use cenote_base::random::Random;

const SPACES: u32 = 3;

/// A version as it was given: space, key, row, interval.
type Known = (u32, Vec<u8>, Option<Vec<u8>>, Interval);

fn cts(at: u64) -> Cts {
    Cts::from_raw(at)
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for i in (1..items.len()).rev() {
        items.swap(i, random.index(i + 1));
    }
}

/// Keys that are alike in their first bytes, some of them wholly within another.
fn key_of(n: u64) -> Vec<u8> {
    match n % 3 {
        0 => vec![1, (n / 3) as u8],
        1 => [&[1; 9][..], &[(n / 3) as u8]].concat(),
        _ => [&[1; 9][..], &[(n / 3) as u8, 0]].concat(),
    }
}

/// Versions of all keys, each from where the one before ends, or a little later.
fn versions(random: &mut Random) -> Vec<Known> {
    let mut all = Vec::new();
    for (space, n) in (0..SPACES).flat_map(|space| (0..60).map(move |n| (space, n))) {
        let mut from = 1 + random.below(20);
        while from < 100 {
            let to = from + 1 + random.below(40);
            let interval = Interval {
                from: cts(from),
                to: cts(to),
            };
            let row = random.below(5) > 0;
            let row = row.then(|| format!("{space} {n} {from}").into_bytes());
            all.push((space, key_of(n), row, interval));
            from = to + random.below(2) * random.below(30);
        }
    }
    shuffle(&mut all, random);
    all
}

/// What the store says of all keys, asked in one order or another, is what the list says.
fn assert_same(store: &VersionStore, known: &[Known], random: &mut Random) {
    for space in 0..SPACES {
        let mut keys: Vec<_> = (0..63).map(key_of).collect();
        match random.below(3) {
            0 => keys.sort(),
            1 => keys.sort_by(|a, b| b.cmp(a)),
            _ => shuffle(&mut keys, random),
        }
        let (snapshot, mut finger) = (cts(random.below(150)), Finger::default());
        for key in keys {
            let is_it = |version: &&Known| {
                version.0 == space && version.1 == key && (version.3.from..version.3.to).contains(&snapshot)
            };
            let expected = known.iter().find(is_it).map(|version| version.2.clone());
            let mut row = b"left".to_vec();
            let found = finger.get(store, space, &key, snapshot, &mut row);
            assert_eq!(
                found.map(|is_row| is_row.then_some(row)),
                expected,
                "{key:?} at {snapshot:?}"
            );
            if random.below(50) == 0 {
                finger.let_go();
            }
        }
    }
}

fn gathered(store: &VersionStore, versions: &[Known]) -> Gathered {
    let mut gathered = Gathered::default();
    for (space, key, row, interval) in versions {
        gathered.add(store, *space, key, row.as_deref(), *interval);
    }
    gathered
}

#[test]
fn a_version_is_found_by_the_snapshots_of_its_interval_and_no_others() {
    for seed in 0..20 {
        let (mut random, store) = (Random(seed), VersionStore::new(1 << 20));
        let all = versions(&mut random);
        let mut taken = 0;
        while taken < all.len() {
            let next = (taken + 1 + random.below(60) as usize).min(all.len());
            store.take(gathered(&store, &all[taken..next]), &[], &|_| true);
            taken = next;
            assert_same(&store, &all[..taken], &mut random);
        }
        let runs = store.runs(0).expect("versions").len();
        assert!(runs <= 5, "{runs} runs");
    }
}

#[test]
fn versions_go_when_no_snapshot_needs_them() {
    let (mut random, store) = (Random(7), VersionStore::new(1 << 20));
    let all = versions(&mut random);
    store.take(gathered(&store, &all), &[cts(30), cts(60)], &|_| true);
    let sees = |snapshot: u64, interval: Interval| (interval.from..interval.to).contains(&cts(snapshot));
    store.take(Gathered::default(), &[cts(60)], &|interval| sees(60, interval));
    let left: Vec<Known> = all.iter().filter(|version| sees(60, version.3)).cloned().collect();
    assert!(!left.is_empty() && left.len() < all.len());
    assert_same(&store, &left, &mut random);
    store.forget_past(cts(60));
    assert_same(&store, &left, &mut random);
    store.forget_past(cts(200));
    assert_same(&store, &[], &mut random);
    assert_eq!(store.bytes(), 0);
}

/// A full store was copied in each round beside which sessions came and went.
#[test]
fn a_full_store_is_trimmed_only_when_a_snapshot_that_may_ask_has_gone() {
    let (mut random, store) = (Random(9), VersionStore::new(4_000));
    let all = versions(&mut random);
    let round = |snapshots: &[Cts]| {
        let new = gathered(&store, &all);
        assert!(new.overflowed);
        store.take(new, snapshots, &|_| true);
        store.runs(0).expect("versions")
    };
    let [first, second, third] = [
        round(&[cts(30), cts(60), cts(200)]),
        round(&[cts(30), cts(60), cts(201)]),
        round(&[cts(30), cts(202)]),
    ];
    assert!(Arc::ptr_eq(&first, &second), "the young ones see nothing here");
    assert!(!Arc::ptr_eq(&second, &third), "one that may ask has gone");
}

#[test]
fn no_more_is_kept_than_there_is_room_for() {
    let (mut random, store) = (Random(9), VersionStore::new(4_000));
    let all = versions(&mut random);
    let mut known = Vec::new();
    for some in all.chunks(10) {
        let new = gathered(&store, some);
        if !new.overflowed {
            known.extend_from_slice(some);
            store.take(new, &[], &|_| true);
        }
        assert!(store.bytes() <= 4_000, "{} bytes", store.bytes());
    }
    assert!(store.bytes() > 2_000, "{} bytes", store.bytes());
    assert_same(&store, &known, &mut random);
}
