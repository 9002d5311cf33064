//! Tests that every implementation of [`Endpoint`] must pass, whatever stands behind it.
//!
//! An implementation gives a [`Bench`] (a node to try things on) and calls [`all`]. What fails panics, and says what.

use cenote_base::{Error, rt};
use cenote_fabric::rdma::{Endpoint, Remote, RemoteMemory, Work};
use std::sync::Arc;

/// A memory node to be tried, as its implementation provides it.
pub trait Bench: Send + Sync {
    /// A new endpoint towards the node.
    fn connect(&self) -> Arc<dyn Endpoint>;
    /// Registers memory of zeros at the node.
    fn register(&self, len: u64) -> Remote;
    /// Revokes a registration at the node.
    fn revoke(&self, memory: Remote);
    /// The node is lost. Called last.
    fn lose(&self);
}

/// All of them, on one node.
pub fn all(bench: &Arc<dyn Bench>) {
    reads_see_writes(&**bench);
    words_are_exchanged(&**bench);
    batches_come_back_whole_and_in_order(&**bench);
    fenced_works_come_after(&**bench);
    ranges_are_checked(&**bench);
    polling_ends(&**bench);
    more_works_than_the_queue_holds(&**bench);
    atomics_are_atomic_among_endpoints(bench);
    revoked_memory_is_out_of_reach(&**bench);
    a_lost_node_is_reported(&**bench);
}

fn memory(bench: &dyn Bench, len: u64) -> RemoteMemory {
    RemoteMemory::new(bench.connect(), bench.register(len))
}

/// What was written is read, over this endpoint and another, and nothing else was touched.
pub fn reads_see_writes(bench: &dyn Bench) {
    let remote = memory(bench, 65536);
    let bytes: Vec<u8> = (0..16384u32).map(|i| (i * 7 + 1) as u8).collect();
    for at in [0, 1, 16384, 65536 - 16384] {
        remote.write(at, &bytes).expect("written");
        let other = RemoteMemory::new(bench.connect(), remote.memory());
        let mut back = vec![0; bytes.len()];
        other.read(at, &mut back).expect("read");
        assert_eq!(back, bytes, "what was written at {at}");
    }
    let mut gap = [1; 8];
    remote.read(40000, &mut gap).expect("read");
    assert_eq!(gap, [0; 8], "no write went there");
}

/// Compare-and-swap and fetch-add answer with the word before.
pub fn words_are_exchanged(bench: &dyn Bench) {
    let remote = memory(bench, 64);
    assert_eq!(remote.fetch_add(8, 5).expect("added"), 0);
    assert_eq!(remote.fetch_add(8, u64::MAX).expect("added"), 5, "adding wraps");
    assert_eq!(
        remote.compare_and_swap(8, 3, 9).expect("tried"),
        4,
        "not what was expected"
    );
    assert_eq!(remote.compare_and_swap(8, 4, 9).expect("tried"), 4);
    assert_eq!(remote.load(8).expect("loaded"), 9);
    assert_eq!(remote.load(0).expect("loaded"), 0, "the word beside");
    let unaligned = remote.fetch_add(4, 1).expect_err("no multiple of 8");
    assert!(matches!(unaligned, Error::Invalid(_)), "{unaligned}");
}

/// Works come back in the order of posting, with their buffers and marks.
pub fn batches_come_back_whole_and_in_order(bench: &dyn Bench) {
    let remote = memory(bench, 1 << 16);
    let write = |i: u64| Work::write(remote.memory(), i * 512, vec![i as u8 + 1; 512].into()).tagged(i);
    let works = remote.endpoint().post((0..16).map(write).collect()).wait();
    let tags: Vec<u64> = works.iter().map(|w| w.tag).collect();
    assert_eq!(tags, (0..16).collect::<Vec<u64>>());
    assert!(
        works.iter().all(|w| matches!(w.result, Ok(512))),
        "each wrote 512 bytes"
    );
    let positions: Vec<u64> = (0..16).map(|i| i * 512).collect();
    for (i, bytes) in remote.read_many(&positions, 512).expect("read").iter().enumerate() {
        assert!(bytes.iter().all(|b| usize::from(*b) == i + 1), "piece {i}");
    }
    assert!(remote.endpoint().post(Vec::new()).wait().is_empty());
}

/// A fenced work sees what the works before it have done; after a failure it is not done.
pub fn fenced_works_come_after(bench: &dyn Bench) {
    let remote = memory(bench, 32768);
    let all = remote.memory();
    for round in 1..=8u8 {
        let batch = vec![
            Work::write(all, 64, vec![round; 16384].into()),
            Work::fetch_add(all, 0, 1),
            Work::read(all, 64, vec![0; 16384].into()).fenced(),
        ];
        let works = remote.endpoint().post(batch).wait();
        let bytes = works.into_iter().last().expect("three").into_bytes().expect("read");
        assert!(bytes.iter().all(|b| *b == round), "the fenced read of round {round}");
    }
    let batch = vec![
        Work::write(all, 32768, vec![1; 8].into()),
        Work::fetch_add(all, 0, 100).fenced(),
    ];
    let works = remote.endpoint().post(batch).wait();
    assert!(works[1].result.is_err(), "fenced after a failure");
    assert_eq!(remote.load(0).expect("loaded"), 8, "nor was it done");
}

/// What is outside is refused, near and far, and changes nothing.
pub fn ranges_are_checked(bench: &dyn Bench) {
    let remote = memory(bench, 4096);
    let outside = |e: Error| assert!(matches!(e, Error::OutOfBounds(_)), "{e}");
    outside(remote.write(4090, &[1; 8]).expect_err("beyond the end"));
    outside(remote.read(u64::MAX - 3, &mut [0; 8]).expect_err("beyond everything"));
    outside(remote.slice(4000, 100).expect_err("beyond the end"));
    let forged = Remote {
        len: 1 << 20,
        ..remote.memory()
    };
    let forged = RemoteMemory::new(Arc::clone(remote.endpoint()), forged);
    outside(forged.write(4090, &[1; 8]).expect_err("the node knows better"));
    let part = remote.slice(1024, 1024).expect("inside");
    part.write(0, &[7; 1024]).expect("written");
    outside(
        part.write(1020, &[9; 8])
            .expect_err("inside of the memory, outside of the part"),
    );
    let mut back = [0; 1032];
    remote.read(1020, &mut back).expect("read");
    assert!(back[..4].iter().chain(&back[1028..]).all(|b| *b == 0));
    assert!(back[4..1028].iter().all(|b| *b == 7));
}

/// Polling tells completion without blocking, and a dropped batch is done all the same.
pub fn polling_ends(bench: &dyn Bench) {
    let remote = memory(bench, 4096);
    let mut posted = remote.endpoint().post(vec![Work::fetch_add(remote.memory(), 0, 1)]);
    let end = rt::now() + rt::Nanos::from_secs(20);
    while !posted.poll() {
        assert!(rt::now() < end, "a work that never ends");
        rt::sleep(rt::Nanos::from_micros(1));
    }
    assert!(matches!(posted.wait()[0].result, Ok(0)));
    drop(remote.endpoint().post(vec![Work::fetch_add(remote.memory(), 0, 1)]));
    while remote.load(0).expect("loaded") != 2 {
        assert!(rt::now() < end, "a dropped work was taken back");
    }
}

/// A batch larger than the queue is not refused.
pub fn more_works_than_the_queue_holds(bench: &dyn Bench) {
    let remote = memory(bench, 64);
    let count = remote.endpoint().limits().depth as u64 * 2 + 3;
    let batch = (0..count).map(|_| Work::fetch_add(remote.memory(), 0, 1)).collect();
    let mut before: Vec<u64> = remote
        .endpoint()
        .post(batch)
        .wait()
        .into_iter()
        .map(|w| w.result.expect("added"))
        .collect();
    before.sort_unstable();
    assert_eq!(before, (0..count).collect::<Vec<u64>>());
}

/// Threads with an endpoint each, adding and exchanging.
pub fn atomics_are_atomic_among_endpoints(bench: &Arc<dyn Bench>) {
    let shared = memory(&**bench, 64).memory();
    let work = move |bench: Arc<dyn Bench>| {
        let remote = RemoteMemory::new(bench.connect(), shared);
        for _ in 0..50 {
            remote.fetch_add(0, 1).expect("added");
            let mut seen = remote.load(8).expect("loaded");
            loop {
                match remote.compare_and_swap(8, seen, seen + 1).expect("tried") {
                    before if before == seen => break,
                    before => seen = before,
                }
            }
        }
    };
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let bench = Arc::clone(bench);
            rt::spawn("atomics", move || work(bench))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
    let remote = RemoteMemory::new(bench.connect(), shared);
    assert_eq!(
        (remote.load(0).expect("loaded"), remote.load(8).expect("loaded")),
        (200, 200)
    );
}

/// After a revocation its key says so, and others go on.
pub fn revoked_memory_is_out_of_reach(bench: &dyn Bench) {
    let (gone, stays) = (memory(bench, 4096), memory(bench, 4096));
    gone.write(0, &[1; 8]).expect("written");
    bench.revoke(gone.memory());
    for error in [
        gone.write(0, &[2; 8]).err(),
        gone.load(0).err(),
        gone.fetch_add(0, 1).err(),
    ] {
        assert!(matches!(error, Some(Error::Revoked(_))), "{error:?}");
    }
    let posted = gone.endpoint().post(vec![
        Work::fetch_add(gone.memory(), 0, 1),
        Work::fetch_add(stays.memory(), 0, 1),
    ]);
    let results: Vec<bool> = posted.wait().iter().map(|w| w.result.is_ok()).collect();
    assert_eq!(results, [false, true], "works fail one by one");
    assert_eq!(stays.load(0).expect("loaded"), 1);
}

/// A lost node: [`Error::Lost`], in bounded time, for good.
pub fn a_lost_node_is_reported(bench: &dyn Bench) {
    let remote = memory(bench, 4096);
    bench.lose();
    for _ in 0..2 {
        let error = remote.write(0, &[1; 8]).expect_err("there is no node");
        assert!(matches!(error, Error::Lost(_)), "{error}");
    }
}
