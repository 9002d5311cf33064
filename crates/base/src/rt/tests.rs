use super::atomic::{AtomicU64, Ordering};
use super::*;

#[test]
fn mutex_counts_what_threads_add() {
    let counter = Arc::new(Mutex::new(0u64));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let counter = Arc::clone(&counter);
            spawn("adder", move || {
                for _ in 0..10_000 {
                    *counter.lock() += 1;
                }
            })
        })
        .collect();
    for t in threads {
        t.join().expect("no panic");
    }
    assert_eq!(*counter.lock(), 40_000);
}

#[test]
fn condvar_hands_over_and_times_out() {
    let pair = Arc::new((Mutex::new(false), Condvar::new()));
    let theirs = Arc::clone(&pair);
    let t = spawn("setter", move || {
        *theirs.0.lock() = true;
        theirs.1.notify_all();
    });
    let guard = pair.1.wait_while(pair.0.lock(), |set| !*set);
    assert!(*guard);
    let (_guard, timed_out) = pair.1.wait_timeout(guard, Nanos::from_millis(5));
    assert!(timed_out);
    t.join().expect("no panic");
}

#[test]
fn event_wakes_and_times_out() {
    let event = Arc::new(Event::new());
    assert!(!event.wait_timeout(Nanos::from_millis(2)));
    let theirs = Arc::clone(&event);
    let t = spawn("waiter", move || theirs.wait());
    event.set();
    t.join().expect("no panic");
    assert!(event.reset() && !event.is_set());
}

#[test]
fn join_hands_back_values_and_panics() {
    assert_eq!(spawn("seven", || 7).join().expect("no panic"), 7);
    let panic = spawn("panics", || panic!("on purpose")).join().expect_err("it panics");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
}

#[test]
fn slots_are_distinct_dense_and_recycled() {
    let here = thread_slot();
    for _ in 0..2 * 1024 {
        let slot = spawn("short", thread_slot).join().expect("no panic");
        assert_ne!(slot, here);
        assert!(slot < 64, "slots stay dense: {slot}");
    }
}

/// Turns that were given away were as many as fit into the time.
#[test]
fn a_long_wait_naps() {
    let (end, mut spin, mut turns) = (now() + Nanos::from_millis(40), Spin::new(), 0);
    while now() < end {
        spin.wait();
        turns += 1;
    }
    // 6 pauses, 64 turns given away, 6 naps that double, and then one in 1.28 ms.
    assert!(turns <= 6 + 64 + 6 + 33, "{turns} turns");
}

#[test]
fn locals_are_kept_by_slot() {
    let local: Arc<Local<AtomicU64>> = Arc::default();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let local = Arc::clone(&local);
            spawn("counts", move || local.get().fetch_add(5, Ordering::Relaxed))
        })
        .collect();
    for t in threads {
        t.join().expect("no panic");
    }
    local.with(|l| l.fetch_add(1, Ordering::Relaxed));
    assert_eq!(local.iter().map(|v| v.load(Ordering::Relaxed)).sum::<u64>(), 16);
}

#[test]
fn sleeping_takes_its_time() {
    let start = now();
    sleep(Nanos::from_millis(3));
    assert!(now().since(start) >= Nanos::from_millis(3));
}

#[test]
fn random_words_differ() {
    assert_ne!(random(), random());
    assert_ne!(random_u128(), random_u128());
}

#[test]
fn hashes_are_the_same_in_every_process() {
    use std::hash::BuildHasher;
    assert_eq!(FixedState.hash_one(17u64), FixedState.hash_one(17u64));
    let mut map = HashMap::default();
    for i in 0..1000u64 {
        map.insert(i, i);
    }
    assert_eq!(map.len(), 1000);
}

#[test]
fn files_do_what_they_say() {
    let dir = std::env::temp_dir().join(format!("cenote-fs-{:x}", random()));
    fs::create_dir_all(&dir).expect("made");
    let path = dir.join("a");
    let file = fs::open(&path, fs::OpenOptions::CREATE).expect("opened");
    file.write_vectored_at(&[b"hello ", b"", b"world"], 3).expect("written");
    file.sync_data().expect("synced");
    assert_eq!(file.len().expect("known"), 14);
    let mut buf = [0; 11];
    file.read_exact_at(&mut buf, 3).expect("read");
    assert_eq!(&buf, b"hello world");
    assert!(file.read_exact_at(&mut buf, 4).is_err());
    file.allocate(0, 1 << 20).expect("allocated");
    assert_eq!(file.len().expect("known"), 1 << 20);
    file.punch(0, 8192).expect("punched");
    file.read_exact_at(&mut buf, 3).expect("read");
    assert_eq!(buf, [0; 11]);
    assert!(file.lock_exclusive().expect("asked"));
    let other = fs::open(&path, fs::OpenOptions::WRITE).expect("opened");
    assert!(!other.lock_exclusive().expect("asked"));
    fs::replace(dir.join("b"), b"new").expect("replaced");
    let again = fs::open(dir.join("b"), fs::OpenOptions::NEW).expect_err("it is there");
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    fs::rename(&path, dir.join("c")).expect("renamed");
    assert_eq!(fs::list(&dir).expect("listed"), ["b", "c"]);
    assert_eq!(fs::read(dir.join("b")).expect("read"), b"new");
    assert!(fs::free_bytes(&dir).expect("known") > 0);
    fs::remove(dir.join("b")).expect("removed");
    assert!(!fs::exists(dir.join("b")).expect("asked"));
    fs::sync_dir(&dir).expect("synced");
    fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn batches_complete_whole() {
    let path = std::env::temp_dir().join(format!("cenote-batch-{:x}", random()));
    let file = fs::open(&path, fs::OpenOptions::CREATE).expect("opened");
    let writes = (0..64u64)
        .map(|i| fs::IoRequest::write(file.clone(), i * 512, vec![vec![i as u8; 512].into()], i))
        .collect();
    assert!(
        fs::submit(writes)
            .complete()
            .iter()
            .all(|r| matches!(r.result, Ok(512)))
    );
    let reads = (0..64u64)
        .map(|i| fs::IoRequest::read(file.clone(), i * 512, vec![0; 512].into(), i))
        .collect();
    for done in fs::submit(reads).complete() {
        let fs::IoOp::Read(buf) = done.op else {
            panic!("a read came back as a write")
        };
        assert!(buf.iter().all(|b| u64::from(*b) == done.tag));
    }
    assert!(fs::submit(Vec::new()).complete().is_empty());
    fs::remove(&path).expect("removed");
}
