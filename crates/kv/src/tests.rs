//! The store against a model; what growth, scans, expiry, steps and a full space do.

use super::*;
use cenote_base::random::Random;
use cenote_space::journal::Journal;
use cenote_space::{Class, Extent, Keeper, Lifetime, Run, SessionId, SpaceOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn space(bytes: u64) -> Space {
    let options = SpaceOptions {
        bytes,
        ..SpaceOptions::default()
    };
    Space::dram(&options).expect("memory")
}

fn random_bytes(random: &mut Random) -> Vec<u8> {
    let len = match random.below(20) {
        0 => 3000,
        1..3 => 900,
        _ => 30,
    };
    let (len, first) = (random.below(len), random.below(256) as u8);
    (0..len).map(|n| first.wrapping_add(n as u8)).collect()
}

fn text(store: &Store, entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    let len = store.len_of(entry).expect("a string");
    store.append_value(entry, 0, len, &mut out).expect("there");
    out
}

fn key_of(store: &Store, entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    store.append_key(entry, &mut out).expect("there");
    out
}

#[derive(Debug, Clone, PartialEq)]
enum Held {
    Text(Vec<u8>),
    Fields(BTreeMap<Vec<u8>, Vec<u8>>),
}

/// What the store should be.
type Model = BTreeMap<Vec<u8>, (Held, u64)>;

/// All that the store holds.
fn contents(store: &Store, now: u64) -> Model {
    let (mut found, mut cursor) = (Model::new(), 0);
    loop {
        let mut entries = Vec::new();
        cursor = store.scan(cursor, now, |entry| entries.push(*entry)).expect("scanned");
        for entry in entries {
            let held = match entry.is_hash() {
                false => Held::Text(text(store, &entry)),
                true => Held::Fields(fields(store, &entry)),
            };
            let former = found.insert(key_of(store, &entry), (held, entry.expiry()));
            assert!(former.is_none(), "told of twice");
        }
        if cursor == 0 {
            return found;
        }
    }
}

fn fields(store: &Store, hash: &Entry) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = Vec::new();
    let mut cursor = 0;
    loop {
        cursor = store
            .scan_fields(hash, cursor, |field| found.push(*field))
            .expect("a hash");
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(store.fields_of(hash).expect("a hash"), found.len() as u64);
    found.iter().map(|f| (key_of(store, f), text(store, f))).collect()
}

fn live(model: &mut Model, now: u64) {
    model.retain(|_, (_, expiry)| *expiry == 0 || *expiry > now);
}

/// One random operation, on both.
fn step(store: &mut Store, model: &mut Model, random: &mut Random, now: u64) {
    live(model, now);
    let key = format!("key{}", random.below(60)).into_bytes();
    let other = format!("key{}", random.below(60)).into_bytes();
    let value = random_bytes(random);
    let held = model.get(&key).cloned();
    match random.below(14) {
        12 => add_to_field(store, model, &key, random, now),
        13 => set_fields(store, model, key, random, now),
        0..3 => {
            let expiry = if random.below(3) == 0 {
                now + random.below(50) + 1
            } else {
                0
            };
            let (keep, expiry) = match random.below(4) {
                0 => (Keep::Expiry, held.as_ref().map_or(0, |h| h.1)),
                _ => (Keep::At(expiry), expiry),
            };
            store.set(&key, &value, keep, now).expect("set");
            model.insert(key, (Held::Text(value), expiry));
        }
        3 => assert_eq!(store.remove(&key, now).expect("removed"), model.remove(&key).is_some()),
        4 => add(store, model, &key, random.below(1000) as i64 - 500, now),
        5..7 => {
            let appended = store.append(&key, &value, now);
            match held {
                Some((Held::Fields(_), _)) => assert!(matches!(appended, Err(Failure::WrongKind))),
                _ => {
                    let entry = model.entry(key).or_insert((Held::Text(Vec::new()), 0));
                    let Held::Text(text) = &mut entry.0 else { unreachable!() };
                    text.extend(value);
                    assert_eq!(appended.expect("appended"), text.len());
                }
            }
        }
        7..9 => {
            let name = random.below(40).to_string().into_bytes();
            let set = store.set_field(&key, &name, &value, now);
            match held {
                Some((Held::Text(_), _)) => assert!(matches!(set, Err(Failure::WrongKind))),
                _ => {
                    let entry = model.entry(key).or_insert((Held::Fields(BTreeMap::new()), 0));
                    let Held::Fields(fields) = &mut entry.0 else {
                        unreachable!()
                    };
                    assert_eq!(set.expect("set"), fields.insert(name, value).is_none());
                }
            }
        }
        9 => {
            let name = random.below(40).to_string().into_bytes();
            let removed = store.remove_field(&key, &name, now);
            let Some((Held::Fields(mut fields), expiry)) = held else {
                return;
            };
            assert_eq!(removed.expect("removed"), fields.remove(&name).is_some());
            match fields.is_empty() {
                true => _ = model.remove(&key),
                false => _ = model.insert(key, (Held::Fields(fields), expiry)),
            }
        }
        10 => {
            let at = now + random.below(60);
            assert_eq!(store.expire(&key, at, now).expect("expire"), held.is_some());
            if let Some(entry) = model.get_mut(&key) {
                entry.1 = at;
            }
        }
        _ => match store.rename(&key, &other, now) {
            Ok(()) => {
                let moved = model.remove(&key).expect("there");
                model.insert(other, moved);
            }
            Err(failure) => assert!(matches!(failure, Failure::Missing) && held.is_none()),
        },
    }
}

fn add(store: &mut Store, model: &mut Model, key: &[u8], n: i64, now: u64) {
    let sum = store.add(key, n, now);
    let held = match model.get(key) {
        None => Some(0),
        Some((Held::Text(text), _)) => integer(text),
        Some(_) => None,
    };
    match held {
        Some(held) => {
            assert_eq!(sum.expect("a sum"), held + n);
            let expiry = model.get(key).map_or(0, |h| h.1);
            let text = (held + n).to_string().into_bytes();
            model.insert(key.to_vec(), (Held::Text(text), expiry));
        }
        None => assert!(matches!(sum, Err(Failure::NotInteger | Failure::WrongKind))),
    }
}

fn add_to_field(store: &mut Store, model: &mut Model, key: &[u8], random: &mut Random, now: u64) {
    let (name, n) = (
        random.below(40).to_string().into_bytes(),
        random.below(1000) as i64 - 500,
    );
    let sum = store.add_to_field(key, &name, n, now);
    let entry = (Held::Fields(BTreeMap::new()), 0);
    match model.get_mut(key) {
        Some((Held::Text(_), _)) => assert!(matches!(sum, Err(Failure::WrongKind))),
        Some((Held::Fields(fields), _)) => match fields.get(&name).map_or(Some(0), |text| integer(text)) {
            None => assert!(matches!(sum, Err(Failure::NotInteger))),
            Some(held) => {
                assert_eq!(sum.expect("a sum"), held + n);
                fields.insert(name, (held + n).to_string().into_bytes());
            }
        },
        None => {
            assert_eq!(sum.expect("a sum"), n);
            let entry = model.entry(key.to_vec()).or_insert(entry);
            let Held::Fields(fields) = &mut entry.0 else {
                unreachable!()
            };
            fields.insert(name, n.to_string().into_bytes());
        }
    }
}

/// Several fields at once, some of them twice.
fn set_fields(store: &mut Store, model: &mut Model, key: Vec<u8>, random: &mut Random, now: u64) {
    let count = random.below(8);
    let pairs: Vec<_> = (0..count)
        .map(|_| (random.below(40).to_string().into_bytes(), random_bytes(random)))
        .collect();
    let given = pairs.iter().map(|(name, value)| (&name[..], &value[..]));
    let set = store.set_fields(&key, given, now);
    if let Some((Held::Text(_), _)) = model.get(&key) {
        assert!(matches!(set, Err(Failure::WrongKind)));
    } else if !pairs.is_empty() {
        let entry = model.entry(key).or_insert((Held::Fields(BTreeMap::new()), 0));
        let Held::Fields(fields) = &mut entry.0 else {
            unreachable!()
        };
        let new = |(name, value)| fields.insert(name, value).is_none();
        let added = pairs.into_iter().map(new).filter(|is_new| *is_new).count();
        assert_eq!(set.expect("set"), added as u64);
    }
}

#[test]
fn it_does_what_a_model_does() {
    for seed in 0..12 {
        let (space, mut model, mut random) = (space(64 << 20), Model::new(), Random(seed));
        let mut store = Store::open(&space).expect("opened");
        for n in 0..3000 {
            let now = 1000 + n / 10;
            match random.below(20) {
                // Taken back: nothing has happened.
                0 => {
                    let taken_back = store.begin();
                    let mut other = model.clone();
                    (0..5).for_each(|_| step(&mut store, &mut other, &mut random, now));
                    store.roll_back(taken_back).expect("taken back");
                }
                1 => {
                    let all = store.begin();
                    (0..5).for_each(|_| step(&mut store, &mut model, &mut random, now));
                    store.commit(all).expect("done");
                }
                2 => _ = store.sweep(now, 20).expect("swept"),
                3 if random.below(100) == 0 => {
                    store.clear().expect("cleared");
                    model.clear();
                }
                _ => step(&mut store, &mut model, &mut random, now),
            }
            if n % 300 == 299 {
                store = opened_again(store, &space, random.below(2) == 0);
                live(&mut model, now);
                assert_eq!(contents(&store, now), model, "seed {seed}, step {n}");
            }
        }
        assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
    }
}

/// After a close, or as if killed: no object is left that nothing refers to, but for those that were kept for the next
/// entries.
fn opened_again(store: Store, space: &Space, closes: bool) -> Store {
    let (keys, expiring) = (store.len(), store.expiring());
    // Spares, and the two objects of the empty table in reserve.
    let reserve = store.reserve.map_or(0, |_| 2);
    let left = if closes {
        0
    } else {
        store.heap.spares() as u64 + reserve
    };
    match closes {
        true => store.close().expect("closed"),
        false => drop(store),
    }
    let (store, found) = Store::open_reporting(space).expect("opened");
    assert_eq!((found.keys, found.is_closed, found.freed), (keys, closes, left));
    assert_eq!((store.len(), store.expiring()), (keys, expiring));
    store
}

#[test]
fn a_table_grows_and_a_scan_tells_of_all_that_was_there() {
    let space = space(128 << 20);
    let mut store = Store::open(&space).expect("opened");
    let (mut random, mut next) = (Random(7), 0u64);
    for round in 0..6 {
        let there: BTreeSet<Vec<u8>> = (0..next).map(|n| n.to_string().into_bytes()).collect();
        let (mut told, mut cursor) = (BTreeSet::new(), 0);
        loop {
            let mut entries = Vec::new();
            cursor = store.scan(cursor, 1, |entry| entries.push(*entry)).expect("scanned");
            told.extend(entries.iter().map(|entry| key_of(&store, entry)));
            for _ in 0..random.below(40) {
                if next < 20_000 * (round + 1) {
                    store
                        .set(next.to_string().as_bytes(), b"1", Keep::At(0), 1)
                        .expect("set");
                    next += 1;
                }
            }
            if cursor == 0 {
                break;
            }
        }
        assert!(there.is_subset(&told), "round {round}");
        while next < 3000 * (round + 1) {
            store
                .set(next.to_string().as_bytes(), b"1", Keep::At(0), 1)
                .expect("set");
            next += 1;
        }
    }
    assert!(
        store.buckets() > 2 * 8192 && store.buckets().abs_diff(store.len()) < 16,
        "{}",
        store.len()
    );
    let stats = space.stats();
    store.clear().expect("cleared");
    assert!(store.is_empty() && stats.objects() > 20_000 && space.stats().objects() < 10);
}

#[test]
fn a_large_hash_and_a_large_string_are_as_small_ones() {
    let space = space(96 << 20);
    let mut store = Store::open(&space).expect("opened");
    for n in 0..20_000u64 {
        let name = n.to_string();
        assert!(store.set_field(b"hash", name.as_bytes(), b"v", 1).expect("set"));
    }
    let hash = store.find(b"hash", 1).expect("found").expect("there");
    assert_eq!(fields(&store, &hash).len(), 20_000);
    let large = vec![7; 9 << 20];
    store.set(b"large", &large, Keep::At(0), 1).expect("set");
    assert_eq!(store.append(b"large", b"end", 1).expect("appended"), large.len() + 3);
    let entry = store.find(b"large", 1).expect("found").expect("there");
    assert!(text(&store, &entry).ends_with(b"\x07\x07end"));
    let store = opened_again(store, &space, false);
    drop(store);
}

/// Fields, as copies and as entries, are the same before and after a small hash has become a table.
#[test]
fn a_hash_that_grows_becomes_a_table_and_keeps_its_fields() {
    let space = space(16 << 20);
    let mut store = Store::open(&space).expect("opened");
    let (mut wanted, mut was_table) = (BTreeMap::new(), false);
    for n in 0..100u8 {
        let (name, value) = (format!("field{n}").into_bytes(), vec![n; 20]);
        assert!(store.set_field(b"hash", &name, &value, 1).expect("set"));
        wanted.insert(name, value);
        let sum = store.add_to_field(b"hash", b"count", 1, 1).expect("added");
        wanted.insert(b"count".to_vec(), sum.to_string().into_bytes());
        let hash = store.find(b"hash", 1).expect("found").expect("there");
        let is_table = matches!(
            fields::Fields::read(&store.heap, GlobalAddress::from_raw(hash.value())).expect("read"),
            fields::Fields::Table(_)
        );
        assert!(is_table || !was_table);
        was_table = is_table;
        let mut pairs = BTreeMap::new();
        let each = |name: &[u8], value: &[u8]| assert!(pairs.insert(name.to_vec(), value.to_vec()).is_none());
        store.each_pair(&hash, each).expect("read");
        assert_eq!((&pairs, fields(&store, &hash)), (&wanted, wanted.clone()), "{n}");
        let field = store.field(&hash, b"field0").expect("read").expect("there");
        assert_eq!(text(&store, &field), vec![0; 20]);
    }
    assert!(was_table);
    let store = opened_again(store, &space, false);
    drop(opened_again(store, &space, true));
}

/// Whatever lies where a small hash was: an error, or something; never a panic, and never an access outside of the
/// object.
#[test]
fn a_broken_small_hash_is_an_error() {
    let (space, mut random) = (space(16 << 20), Random(5));
    let mut store = Store::open(&space).expect("opened");
    for round in 0..3000 {
        let names: Vec<_> = (0..10u8).map(|n| vec![b'a' + n; 5]).collect();
        let pairs = names.iter().map(|name| (&name[..], &[7u8; 30][..]));
        store.set_fields(b"hash", pairs, 1).expect("set");
        let hash = store.find(b"hash", 1).expect("found").expect("there");
        let at = GlobalAddress::from_raw(hash.value());
        for _ in 0..=random.below(4) {
            let word = match random.below(3) {
                0 => 1 << random.below(64),
                1 => random.below(5000),
                _ => 1 << 63 | random.below(1 << 40),
            };
            let place = if round % 3 == 0 { 0 } else { 8 * random.below(80) };
            space.store(offset(at, place).expect("inside"), word).expect("there");
        }
        let _ = store.each_pair(&hash, |_, _| ());
        let _ = store.scan_fields(&hash, 0, |_| ());
        if let Ok(Some(field)) = store.field(&hash, &names[3]) {
            let _ = store
                .len_of(&field)
                .and_then(|len| store.append_value(&field, 0, len, &mut Vec::new()));
        }
        let _ = store.add_to_field(b"hash", b"n", 1, 1);
        let _ = store.set_field(b"hash", &names[4], &[1; 500], 1);
        let _ = store.remove_field(b"hash", &names[5], 1);
        store.clear().ok();
        if !store.is_empty() || store.find(b"hash", 1).is_err() {
            store = Store::open(&self::space(16 << 20)).expect("opened");
        }
    }
}

/// One that ends in the middle of a field's room: what is moved about behind that field ended before it began, and that
/// was a panic.
#[test]
fn a_small_hash_that_ends_anywhere_is_an_error() {
    let space = space(16 << 20);
    let mut store = Store::open(&space).expect("opened");
    let names: Vec<_> = (0..10u8).map(|n| vec![b'a' + n; 5]).collect();
    for (end, name) in (0..1000u64).flat_map(|end| names.iter().map(move |name| (end, name))) {
        let pairs = names.iter().map(|name| (&name[..], &[7u8; 30][..]));
        store.set_fields(b"hash", pairs, 1).expect("set");
        let hash = store.find(b"hash", 1).expect("found").expect("there");
        let at = GlobalAddress::from_raw(hash.value());
        let word = space.load(at).expect("there") & !0xffff_ffff;
        space.store(at, word | end).expect("there");
        if !end.is_multiple_of(8) {
            assert!(store.field(&hash, name).is_err(), "{end}");
        }
        _ = store.set_field(b"hash", name, &[1; 100], 1);
        _ = store.remove_field(b"hash", name, 1);
        store.clear().expect("cleared");
    }
}

/// Where the words of the keys' table lie: of its buckets, while they are few.
fn first_segment(space: &Space) -> GlobalAddress {
    let word = |at| GlobalAddress::from_raw(space.load(at).expect("there"));
    let table = word(offset(space.root().expect("a root"), TABLE).expect("inside"));
    word(offset(table, 16).expect("inside"))
}

/// A bucket that leads nowhere keeps the table from growing. The key that would have made it grow is refused, and not
/// there half; what the table has allocated for its growth is not used once it is freed.
#[test]
fn a_table_that_cannot_grow_is_what_it_was() {
    let space = space(16 << 20);
    let mut store = Store::open(&space).expect("opened");
    let key = |n: u32| format!("key{n}").into_bytes();
    (0..8).for_each(|n| store.set(&key(n), b"value", Keep::At(0), 1).expect("set"));
    let bucket = first_segment(&space);
    let former = space.load(bucket).expect("there");
    space
        .store(bucket, GlobalAddress::new(1, 7, 64, 99).expect("fits").raw())
        .expect("there");
    let there: Vec<u32> = (0..8)
        .filter(|n| store.find(&key(*n), 1).is_ok_and(|found| found.is_some()))
        .collect();
    let mut new = (8..100).filter(|n| store.find(&key(*n), 1).is_ok());
    for n in [new.next(), new.next()].map(|n| n.expect("one of another bucket")) {
        store.set(&key(n), b"value", Keep::At(0), 1).expect_err("no growth");
        store.set_field(&key(n), b"name", b"value", 1).expect_err("no growth");
        assert_eq!(store.len(), 8);
        assert!(store.find(&key(n), 1).expect("its bucket is whole").is_none());
        for n in &there {
            assert!(store.find(&key(*n), 1).expect("its bucket is whole").is_some());
        }
    }
    space.store(bucket, former).expect("there");
    (8..100).for_each(|n| store.set(&key(n), b"value", Keep::At(0), 1).expect("set"));
    let store = opened_again(store, &space, false);
    assert_eq!(contents(&store, 1).len(), 100);
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

/// A hash among the fields of a hash, that is that hash: freeing it never came to an end.
#[test]
fn a_field_that_is_a_hash_is_an_error() {
    let space = space(64 << 20);
    let mut store = Store::open(&space).expect("opened");
    for n in 0..100u32 {
        store
            .set_field(b"hash", n.to_string().as_bytes(), b"value", 1)
            .expect("set");
    }
    let hash = store.find(b"hash", 1).expect("found").expect("there");
    let field = store.field(&hash, b"50").expect("read").expect("there");
    let kind = offset(field.at, 8).expect("inside");
    space
        .store(kind, space.load(kind).expect("there") | entry::Kind::Hash as u64)
        .expect("there");
    space
        .store(offset(field.at, entry::VALUE).expect("inside"), hash.value())
        .expect("there");
    let is_corrupt = |failure| matches!(failure, Failure::Memory(Error::Corrupt(_)));
    assert!(is_corrupt(
        store.set_field(b"hash", b"50", b"other", 1).expect_err("no string")
    ));
    assert!(is_corrupt(
        store.remove_field(b"hash", b"50", 1).expect_err("no string")
    ));
    assert!(is_corrupt(store.remove(b"hash", 1).expect_err("not to be freed")));
    assert!(store.find(b"hash", 1).expect("found").is_none());
}

#[test]
fn a_circle_is_found_at_once() {
    let space = space(16 << 20);
    let mut store = Store::open(&space).expect("opened");
    (0..8u32).for_each(|n| store.set(&n.to_le_bytes(), b"value", Keep::At(0), 1).expect("set"));
    let entry = store.find(&3u32.to_le_bytes(), 1).expect("found").expect("there");
    let table = store.table;
    for behind in [entry.at.raw(), space.load(entry.link).expect("there")] {
        space.store(entry.at, behind).expect("there");
        let mut told = 0;
        let all = table.each(&store.heap, |_| {
            told += 1;
            Ok(())
        });
        assert!(matches!(all, Err(Error::Corrupt(_))) && told < 40, "{told}");
    }
}

#[test]
fn a_count_beyond_all_memory_is_an_error() {
    let space = space(64 << 20);
    let mut store = Store::open(&space).expect("opened");
    for n in 0..100u32 {
        store
            .set_field(b"hash", n.to_string().as_bytes(), b"value", 1)
            .expect("set");
    }
    let hash = store.find(b"hash", 1).expect("found").expect("there");
    let count = GlobalAddress::from_raw(hash.value()).checked_add(8).expect("inside");
    space.store(count, u64::MAX).expect("there");
    assert!(store.fields_of(&hash).is_err() && store.set_field(b"hash", b"new", b"value", 1).is_err());
}

/// What was answered behind a step that could not be taken back was taken back with it, by the next start.
#[test]
fn a_step_that_cannot_be_taken_back_ends_all_changes() {
    let space = space(16 << 20);
    let mut store = Store::open(&space).expect("opened");
    store.set(b"key", b"before", Keep::At(0), 1).expect("set");
    let step = store.begin();
    store.set(b"key", b"within", Keep::At(0), 1).expect("set");
    let pair = offset(store.heap.journal(), 16).expect("inside");
    let word = space.load(pair).expect("there");
    space
        .store(pair, GlobalAddress::new(1, 7, 64, 99).expect("fits").raw())
        .expect("there");
    store.roll_back(step).expect_err("a word that is nowhere");
    let is_poisoned = |failure| matches!(failure, Failure::Memory(Error::Poisoned(_)));
    assert!(is_poisoned(store.check().expect_err("broken")));
    assert!(is_poisoned(
        store.set(b"key", b"after", Keep::At(0), 1).expect_err("broken")
    ));
    assert!(is_poisoned(
        store.at_once(|store| store.remove(b"key", 1)).expect_err("broken")
    ));
    assert!(is_poisoned(store.close().expect_err("broken")));
    space.store(pair, word).expect("there");
    let (mut store, found) = Store::open_reporting(&space).expect("opened");
    let entry = store.find(b"key", 1).expect("found").expect("there");
    assert_eq!((text(&store, &entry), found.is_closed), (b"before".to_vec(), false));
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn a_store_of_the_first_format_is_taken_up() {
    let space = space(16 << 20);
    let mut store = Store::open(&space).expect("opened");
    store.set(b"key", b"value", Keep::At(0), 1).expect("set");
    drop(store);
    let root = space.root().expect("a root");
    space.store(root, MAGIC_FIRST).expect("there");
    let mut store = Store::open(&space).expect("opened");
    assert!(store.find(b"key", 1).expect("found").is_some());
    assert_eq!(space.load(root).expect("there"), MAGIC);
}

#[test]
fn a_full_space_refuses_and_changes_nothing() {
    let space = space(10 << 20);
    let mut store = Store::open(&space).expect("opened");
    let value = vec![1; 700];
    let mut n = 0u64;
    let full = loop {
        match store.set(n.to_string().as_bytes(), &value, Keep::At(0), 1) {
            Ok(()) => n += 1,
            Err(failure) => break failure,
        }
    };
    assert!(matches!(full, Failure::Memory(Error::Full(_))), "{full}");
    assert_eq!(store.len(), n);
    let failed = store.at_once(|store| {
        store.remove(b"0", 1)?;
        store.set(b"large", &vec![1; 8 << 20], Keep::At(0), 1)
    });
    assert!(failed.is_err() && store.find(b"0", 1).expect("found").is_some());
    let mut store = opened_again(store, &space, false);
    assert!(store.remove(b"0", 1).expect("removed"));
    store.set(b"new", &value, Keep::At(0), 1).expect("there is room again");
    assert_eq!(contents(&store, 1).len() as u64, n);
}

/// Fills the space with keys, numbers from one on; to the last object, after so many that the table has grown. The
/// number behind the last.
fn fill(store: &mut Store, from: u64) -> u64 {
    let mut n = from;
    let mut set = |len: usize| {
        n += 1;
        store
            .set((n - 1).to_string().as_bytes(), &vec![1; len], Keep::At(0), 1)
            .is_ok()
    };
    assert!((0..20_000).all(|_| set(1)), "there is room");
    for len in [200_000, 10_000, 700, 1] {
        while set(len) {}
    }
    n
}

/// Removing more than 255 keys in a step took a larger journal, and removing all took an empty table: without memory
/// neither could be had, and a caller that wanted to make room was told that there is none.
#[test]
fn removing_needs_no_memory() {
    let space = space(40 << 20);
    let mut store = Store::open(&space).expect("opened");
    let mut end = fill(&mut store, 0);
    let keys = store.len();
    // All or nothing.
    let remove = |store: &mut Store, keys: core::ops::Range<u64>| -> Result<u64> {
        keys.map(|n| store.remove(n.to_string().as_bytes(), 1).map(u64::from))
            .sum()
    };
    let failed = store.at_once(|store| {
        remove(store, 0..4000)?;
        Err::<(), _>(Failure::Missing)
    });
    assert!(matches!(failed, Err(Failure::Missing)), "{failed:?}");
    assert_eq!(store.len(), keys);
    let removed = store.at_once(|store| remove(store, 0..4000)).expect("removed");
    assert_eq!((removed, store.len()), (4000, keys - 4000));
    // All keys, again and again, within a step and without one, taken back and not.
    for in_step in [false, true, false] {
        let taken_back = store.at_once(|store| store.clear().and(Err::<(), _>(Failure::Missing)));
        assert!(matches!(taken_back, Err(Failure::Missing)), "{taken_back:?}");
        assert!(
            store
                .find((end - 20_000).to_string().as_bytes(), 1)
                .expect("found")
                .is_some()
        );
        match in_step {
            false => store.clear().expect("cleared"),
            true => store.at_once(Store::clear).expect("cleared"),
        }
        assert_eq!((store.len(), contents(&store, 1).len()), (0, 0));
        end = fill(&mut store, end);
    }
    store.clear().expect("cleared");
    // What was kept in reserve is not left behind.
    let store = opened_again(store, &space, true);
    store.close().expect("closed");
    let mut objects = 0;
    space.each_object(|_, _| objects += 1).expect("looked at");
    assert_eq!(objects, 4, "root, journal, and the empty table");
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

/// A journal of before, which had room for 255 words.
#[test]
fn a_small_journal_is_enlarged_by_the_next_start() {
    let space = space(10 << 20);
    let store = Store::open(&space).expect("opened");
    let (word, journal) = (offset(store.root, JOURNAL).expect("inside"), store.heap.journal());
    store.close().expect("closed");
    let session = space.session();
    let small = session.alloc(4096).expect("room");
    space.store(word, small.raw()).expect("there");
    session.free(journal).expect("freed");
    let store = Store::open(&space).expect("opened");
    let journal = store.heap.journal();
    assert!(journal != small && space.size_of(journal).expect("there") >= 64 << 10);
    assert!(space.load(small).is_err(), "the small one is freed");
}

/// A keeper that frees no run while it is told so.
struct FreesNone(Arc<dyn Keeper>, AtomicBool);

impl Keeper for FreesNone {
    fn begin(&self) -> cenote_base::Result<SessionId> {
        self.0.begin()
    }
    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> cenote_base::Result<Extent> {
        self.0.take(session, class, lifetime)
    }
    fn give_back(&self, session: SessionId, extents: &[Extent]) -> cenote_base::Result<()> {
        self.0.give_back(session, extents)
    }
    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> cenote_base::Result<Run> {
        self.0.take_run(session, bytes, lifetime)
    }
    fn free_run(&self, address: GlobalAddress) -> cenote_base::Result<()> {
        match self.1.load(Ordering::Relaxed) {
            true => Err(Error::Lost("the keeper is away".into())),
            false => self.0.free_run(address),
        }
    }
    fn end(&self, session: SessionId) -> cenote_base::Result<()> {
        self.0.end(session)
    }
    fn is_alive(&self, session: SessionId) -> cenote_base::Result<bool> {
        self.0.is_alive(session)
    }
    fn audit(&self) -> cenote_base::Result<Vec<String>> {
        self.0.audit()
    }
}

/// A change was made, and answered with the error of the former journal, which could not be freed.
#[test]
fn a_journal_that_cannot_be_freed_fails_no_change() {
    let whole = space(64 << 20);
    let (part, inner) = (whole.parts().next().expect("one"), whole.keeper(1).expect("one"));
    let keeper = Arc::new(FreesNone(inner, AtomicBool::new(false)));
    let space = Space::new(whole.id());
    space
        .attach(Arc::clone(part), Arc::clone(&keeper) as Arc<dyn Keeper>)
        .expect("attached");
    let mut store = Store::open(&space).expect("opened");
    let object = store.heap.alloc(64).expect("room");
    let step = store.begin();
    store.heap.enlarge_to(2 << 20).expect("room");
    keeper.1.store(true, Ordering::Relaxed);
    let pairs = Journal::room_of(2 << 20);
    (1..=pairs + 1).for_each(|n| store.heap.put(object, n).expect("changed"));
    store.roll_back(step).expect("taken back");
    assert_eq!(space.load(object).expect("there"), 0);
    keeper.1.store(false, Ordering::Relaxed);
    drop(store);
    let (_, found) = Store::open_reporting(&space).expect("opened");
    assert!(found.freed > 0, "the former journal is freed by the next start");
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn what_expires_goes_when_it_is_met_and_by_the_sweep() {
    let space = space(16 << 20);
    let mut store = Store::open(&space).expect("opened");
    for n in 0..100u64 {
        store
            .set(n.to_string().as_bytes(), b"v", Keep::At(100 + n), 1)
            .expect("set");
    }
    assert!(store.find(b"0", 99).expect("found").is_some());
    assert!(store.find(b"0", 100).expect("found").is_none());
    assert_eq!((store.len(), store.expiring()), (99, 99));
    assert_eq!(store.sweep(149, 1 << 20).expect("swept"), 49);
    assert_eq!((store.len(), contents(&store, 189).len()), (50, 10));
    assert!(store.expire(b"99", 0, 189).expect("kept"));
    store.sweep(1000, 1 << 20).expect("swept");
    assert_eq!((store.len(), store.expiring()), (1, 0));
}

#[test]
fn another_thing_in_the_space_is_left_alone() {
    let space = space(8 << 20);
    let other = space.session().alloc(64).expect("room");
    space.set_root(other).expect("a part");
    assert!(matches!(Store::open(&space), Err(Failure::Memory(Error::Mismatch(_)))));
}
