use super::*;
use cenote_testkit::faulty::MemFs;

fn change(all: &[(&str, Option<&str>)]) -> Change {
    let owned = |(name, record): &(&str, Option<&str>)| ((*name).to_owned(), record.map(str::to_owned));
    all.iter().map(owned).collect()
}

fn lead() -> Arc<dyn Leadership> {
    match FileStore::new("/pool").lead("one").expect("it is free") {
        Lead::Here(leadership) => leadership,
        Lead::Elsewhere(_) => panic!("there is no other"),
    }
}

fn read(leadership: &dyn Leadership) -> Option<RecordSet> {
    match leadership.read().expect("read")? {
        Stored::Records(book) => Some(book),
        Stored::Former(_) => panic!("it is not of before"),
    }
}

fn book(n: u32) -> RecordSet {
    let mut book = RecordSet::new();
    (0..=n).for_each(|n| apply(&mut book, &nth(n)));
    book
}

/// Changes that put, change and remove.
fn nth(n: u32) -> Change {
    change(&[
        ("meta", Some(&format!("{{\"change\":{n}}}"))),
        (
            &format!("grant/{}", n % 7),
            (!n.is_multiple_of(5)).then_some("{\"label\":\"a\\tb\"}"),
        ),
        (&format!("grant/{n}"), Some(&format!("{n}"))),
    ])
}

#[test]
fn what_was_written_is_read() {
    fs::with(Arc::new(MemFs::new()), || {
        let leadership = lead();
        assert_eq!(read(&*leadership), None);
        for n in 0..40 {
            leadership.write(&nth(n)).expect("written");
            if n.is_multiple_of(10) {
                assert_eq!(read(&*leadership), Some(book(n)));
            }
        }
        drop(leadership);
        assert_eq!(read(&*lead()), Some(book(39)));
    });
}

/// The book is all changes that were acknowledged, and may be the one that was not, wherever the machine stops.
#[test]
fn a_crash_anywhere_loses_nothing_that_was_acknowledged() {
    for stop in 1..200 {
        let files = Arc::new(MemFs::new());
        files.halt_after(stop);
        let written = fs::with(Arc::clone(&files) as _, || {
            let leadership = match FileStore::new("/pool").lead("one") {
                Ok(Lead::Here(leadership)) => leadership,
                _ => return None,
            };
            leadership.read().ok()?;
            let mut last = None;
            for n in 0..20 {
                match leadership.write(&nth(n)) {
                    Ok(()) => last = Some(n),
                    Err(_) => break,
                }
            }
            last
        });
        for seed in 0..4 {
            let after = Arc::new(files.crash_clone_torn(seed));
            let found = fs::with(after, || read(&*lead()));
            let fits = match written {
                Some(n) => found == Some(book(n)) || found == Some(book(n + 1)),
                None => found.is_none() || found == Some(book(0)),
            };
            assert!(fits, "stop {stop}, seed {seed}: {written:?}, then {found:?}");
        }
    }
}

/// A bit that flips anywhere is found: a grant would be another tenant's.
#[test]
fn damage_is_refused() {
    fs::with(Arc::new(MemFs::new()), || {
        let leadership = lead();
        leadership.read().expect("read");
        (0..3).for_each(|n| leadership.write(&nth(n)).expect("written"));
        let good = fs::read("/pool/pool.records").expect("read");
        let before = book(1);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match parse(&bad) {
                Err(Error::Corrupt(_) | Error::Mismatch(_)) => {}
                // The last change's end is none any more: as if it had been cut off.
                Ok((found, _)) => assert_eq!(found, before, "bit {bit}"),
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    });
}

/// A change that failed is not there after the next one.
#[test]
fn a_change_that_failed_is_not_there() {
    let files = Arc::new(MemFs::new());
    fs::with(Arc::clone(&files) as _, || {
        let leadership = lead();
        leadership.read().expect("read");
        leadership.write(&nth(0)).expect("written");
        files.fail_syncs(0, 1);
        assert!(leadership.write(&change(&[("grant/99", Some("99"))])).is_err());
        leadership.write(&nth(1)).expect("written");
        assert_eq!(read(&*leadership), Some(book(1)));
    });
}

#[test]
fn a_table_of_before_is_taken_over() {
    fs::with(Arc::new(MemFs::new()), || {
        fs::create_dir_all("/pool").expect("made");
        fs::replace("/pool/pool.json", b"cenote-pool 3 00000000\n{}\n").expect("written");
        let leadership = lead();
        let Some(Stored::Former(bytes)) = leadership.read().expect("read") else {
            panic!("it is of before");
        };
        assert!(bytes.starts_with(b"cenote-pool 3"));
        leadership.write(&nth(0)).expect("written");
        assert_eq!(read(&*leadership), Some(book(0)));
        let told = fs::read("/pool/pool.json").expect("read");
        assert!(told.starts_with(b"cenote-pool 4"), "a former program refuses that");
    });
}

/// The file does not grow for ever.
#[test]
fn changes_are_put_together() {
    fs::with(Arc::new(MemFs::new()), || {
        let leadership = lead();
        leadership.read().expect("read");
        let long = "x".repeat(100_000);
        for _ in 0..40 {
            leadership.write(&change(&[("grant/1", Some(&long))])).expect("written");
        }
        let length = fs::read("/pool/pool.records").expect("read").len();
        assert!(length < 2_000_000, "{length} bytes");
        assert_eq!(read(&*leadership).expect("a book")["grant/1"], long);
    });
}
