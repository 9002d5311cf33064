//! Mirrors on another machine: whichever byte of the stream is the last that arrives, and in whatever order bytes of
//! works under way do, what is recovered is the memory as it was at one of the fences, and no earlier one than the last
//! that returned. `CENOTE_SEED` repeats the choices.

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::mirror::{JOURNAL, RemoteMirror, RemoteOptions, Replayed, Side, replay};
use cenote_fabric::rdma::loopback::{Memory, Node};
use cenote_fabric::rdma::{Endpoint, InFlight, Key, Limits, Op, Posted, RemoteMemory, Work};
use cenote_fabric::{Identity, LINE, Region, RegionOptions, coherence};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const LEN: u64 = 2 << 20;
const PATIENCE: Nanos = Nanos::from_secs(5);

fn seed() -> u64 {
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rt::random() >> 16);
    println!("CENOTE_SEED={seed}");
    seed
}

/// A way to a node on which works are done when they are waited for, or later ones are, one of them at a time and in any
/// order; and that is cut after so many bytes: of each work under way any words have arrived then.
#[derive(Debug)]
struct CutEndpoint {
    node: Node,
    shared: Arc<Mutex<Cut>>,
}

#[derive(Debug)]
struct Cut {
    left: u64,
    random: Random,
    /// Posted and not done.
    waiting: Vec<(u64, Work)>,
    done: Vec<(u64, Work)>,
    next: u64,
}

impl Cut {
    /// Does one of the works that wait.
    fn step(&mut self, memory: &mut Memory) {
        let which = self.random.below(self.waiting.len() as u64) as usize;
        let (id, mut work) = self.waiting.swap_remove(which);
        let bytes = work.op.bytes();
        if self.left < bytes {
            self.waiting.push((id, work));
            return self.cut(memory);
        }
        self.left -= bytes;
        memory.carry_out(&mut work);
        self.done.push((id, work));
    }

    fn cut(&mut self, memory: &mut Memory) {
        self.left = 0;
        for (id, mut work) in std::mem::take(&mut self.waiting) {
            for word in 0..work.op.bytes() / 8 {
                if self.random.below(2) == 0 {
                    _ = memory.carry_out_part(&mut work, word * 8..word * 8 + 8);
                }
            }
            work.result = Err(Error::Lost("cut".into()));
            self.done.push((id, work));
        }
    }
}

struct Under {
    endpoint: Arc<CutEndpoint>,
    ids: Vec<u64>,
}

impl InFlight for Under {
    fn poll(&mut self) -> bool {
        let mut cut = self.endpoint.shared.lock().expect("no panic");
        if !cut.waiting.is_empty() && cut.random.below(2) == 0 {
            cut.step(&mut self.endpoint.node.memory());
        }
        self.ids.iter().all(|id| cut.done.iter().any(|(done, _)| done == id))
    }

    fn wait(mut self: Box<Self>) -> Vec<Work> {
        while !self.poll() {}
        let mut cut = self.endpoint.shared.lock().expect("no panic");
        let mut works = Vec::new();
        for id in &self.ids {
            let at = cut.done.iter().position(|(done, _)| done == id).expect("done");
            works.push(cut.done.swap_remove(at).1);
        }
        works
    }
}

#[derive(Debug, Clone)]
struct CutHandle(Arc<CutEndpoint>);

impl Endpoint for CutHandle {
    fn peer(&self) -> &str {
        "another machine"
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: 1024,
            transfer: 1 << 30,
        }
    }

    fn post(&self, works: Vec<Work>) -> Posted {
        let mut cut = self.0.shared.lock().expect("no panic");
        let mut ids = Vec::new();
        for work in works {
            assert!(matches!(work.op, Op::Write(_)) && work.check().is_ok(), "{work:?}");
            ids.push(cut.next);
            let next = cut.next;
            cut.next += 1;
            cut.waiting.push((next, work));
        }
        if cut.left == 0 {
            cut.cut(&mut self.0.node.memory());
        }
        Posted::new(Box::new(Under {
            endpoint: Arc::clone(&self.0),
            ids,
        }))
    }
}

/// A region, its mirror, and the node that has that.
struct Setting {
    region: Arc<Region>,
    mirror: Arc<RemoteMirror>,
    node: Node,
    keys: [Key; 2],
    cut: Arc<Mutex<Cut>>,
    lost: Arc<AtomicBool>,
}

fn setting(seed: u64, left: u64, believed: bool) -> Setting {
    let node = Node::new("another machine");
    let memory = node.memory().register(LEN);
    let journal = node.memory().register(JOURNAL);
    let cut = Arc::new(Mutex::new(Cut {
        left: u64::MAX,
        random: Random(seed),
        waiting: Vec::new(),
        done: Vec::new(),
        next: 0,
    }));
    let way: Arc<dyn Endpoint> = Arc::new(CutHandle(Arc::new(CutEndpoint {
        node: node.clone(),
        shared: Arc::clone(&cut),
    })));
    let lost = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&lost);
    let options = RemoteOptions {
        believed,
        patience: PATIENCE,
        on_lost: Box::new(move |_| assert!(!told.swap(true, Ordering::SeqCst), "told once")),
    };
    let (to_memory, to_journal) = (
        RemoteMemory::new(Arc::clone(&way), memory),
        RemoteMemory::new(way, journal),
    );
    let mirror = Arc::new(RemoteMirror::begin(to_memory, to_journal, options).expect("begun"));
    let region = Region::dram(LEN, Identity::default(), RegionOptions::default()).expect("memory");
    region.reserve_to(LEN).expect("room");
    if believed {
        // What a former process left there.
        let image = region.span(0, LEN).to_vec();
        let mut memory_there = node.memory();
        memory_there.inspect(memory.key).expect("there").copy_from_slice(&image);
    }
    region.attach_mirror(Arc::clone(&mirror) as _).expect("room");
    cut.lock().expect("no panic").left = left;
    Setting {
        region: Arc::new(region),
        mirror,
        keys: [memory.key, journal.key],
        node,
        cut,
        lost,
    }
}

impl Setting {
    /// What a start from the mirror would find.
    fn recovered(&self) -> (Vec<u8>, Replayed) {
        let mut memory = self.node.memory();
        let journal = memory.inspect(self.keys[1]).expect("there").to_vec();
        let image = memory.inspect(self.keys[0]).expect("there");
        let replayed = replay(&journal, LEN, |at, bytes| {
            image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        });
        let replayed = replayed.expect("a sound journal");
        (image.to_vec(), replayed)
    }

    fn fill(&self) {
        let mut at = 0;
        loop {
            let next = self.region.fill_mirror_step(at);
            if next == at {
                return;
            }
            at = next;
        }
    }

    /// Stores to a few ranges, none of them twice, and flushes them with one fence; what memory behind the caches holds
    /// then.
    fn change(&self, random: &mut Random, flushed: &mut [u8]) {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for _ in 0..=random.below(3) {
            let most = if random.one_in(4) { 512 } else { 4 };
            let lines = 1 + random.below(most);
            let at = 4096 + random.below((LEN - 4096) / LINE as u64 - lines) * LINE as u64;
            let len = lines as usize * LINE;
            let range = at..at + len as u64;
            if ranges
                .iter()
                .any(|other| other.start < range.end && range.start < other.end)
            {
                continue;
            }
            ranges.push(range);
            for word in (0..len).step_by(8) {
                self.region.span(at, len as u64).set_u64(word, random.word());
            }
            coherence::write_back(&self.region, at, len);
            flushed[at as usize..at as usize + len].copy_from_slice(&self.region.span(at, len as u64).to_vec());
        }
        coherence::fence(&self.region);
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

/// The story's end for one seed: the mirror is as it was after the last fence that returned, or as it would have been
/// after the one that did not.
fn cut_anywhere(seed: u64, believed: bool) -> Replayed {
    let mut random = Random(seed);
    let left = random.below(24 << 20);
    let setting = setting(seed ^ 1, if believed { left } else { u64::MAX }, believed);
    let mut flushed = setting.region.span(0, LEN).to_vec();
    let filling = believed.then(|| {
        let (region, stop) = (Arc::clone(&setting.region), Arc::clone(&setting.lost));
        std::thread::spawn(move || {
            let mut at = 0;
            while !stop.load(Ordering::SeqCst) {
                let next = region.fill_mirror_step(at);
                at = if next == at { 0 } else { next };
            }
        })
    });
    if !believed {
        setting.fill();
        setting.mirror.set_whole();
        setting.cut.lock().expect("no panic").left = left;
    }
    let mut before = flushed.clone();
    // A fence that waits for a mirror that is lost waits for this.
    let giving_up = {
        let (mirror, lost) = (Arc::clone(&setting.mirror), Arc::clone(&setting.lost));
        std::thread::spawn(move || {
            while !lost.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            mirror.give_up();
        })
    };
    while !setting.is_lost() {
        before.copy_from_slice(&flushed);
        setting.change(&mut random, &mut flushed);
    }
    giving_up.join().expect("no panic");
    if let Some(filling) = filling {
        filling.join().expect("no panic");
    }
    let (image, replayed) = setting.recovered();
    if !believed {
        assert!(image == before || image == flushed, "seed {seed}: neither fence");
    } else {
        each_word_is_of(&image, &before, &flushed, seed);
    }
    replayed
}

/// Beside a filling, what was stored and not flushed yet may be there as well, also of a line that was just being
/// stored to: a processor may write a line back at any time. But no word is of a former change.
fn each_word_is_of(image: &[u8], before: &[u8], flushed: &[u8], seed: u64) {
    let words = image.chunks(8).zip(before.chunks(8).zip(flushed.chunks(8)));
    for (i, (word, (before, after))) in words.enumerate().skip(4096 / 8) {
        assert!(
            word == before || word == after,
            "seed {seed}: word {i} is neither as before nor as after"
        );
    }
}

#[test]
fn a_stream_that_is_cut_anywhere_leaves_the_memory_of_a_fence() {
    let first = seed();
    let replayed: Vec<Replayed> = (0..60).map(|i| cut_anywhere(first + i, false)).collect();
    assert!(replayed.iter().any(|done| done.records > 3), "{replayed:?}");
}

/// A mirror that counts as whole while it is filled once more.
#[test]
fn a_whole_mirror_that_is_filled_again_stays_one() {
    let first = seed();
    for i in 0..30 {
        cut_anywhere(first + i, true);
    }
}

/// Lines are filled in place beside threads that flush them, and no line goes back: what was flushed last is there.
#[test]
fn filling_beside_flushes_loses_none() {
    let first = seed();
    for i in 0..10 {
        let mut random = Random(first + i);
        let setting = setting(first + i, u64::MAX, false);
        let mut flushed = setting.region.span(0, LEN).to_vec();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..6).for_each(|_| setting.fill()));
            (0..300).for_each(|_| setting.change(&mut random, &mut flushed));
        });
        assert!(setting.recovered().0[4096..] == flushed[4096..], "seed {}", first + i);
        assert!(!setting.is_lost());
    }
}

/// Threads that fence at once share records, adjacent lines go together, and a line that is flushed often is placed
/// seldom.
#[test]
fn records_and_placing_are_shared() {
    let setting = setting(1, u64::MAX, false);
    setting.fill();
    let before = setting.mirror.traffic();
    assert_eq!(
        (before.records, before.placed_bytes),
        (0, LEN),
        "it was filled past the journal"
    );
    for i in 0..20_000u64 {
        setting.region.span(8192, 128).set_u64(8, i);
        coherence::flush(&setting.region, 8192, 128);
    }
    let traffic = setting.mirror.traffic();
    assert_eq!((traffic.records, traffic.lines), (20_000, 40_000));
    assert_eq!(
        traffic.journal_bytes,
        20_000 * (64 + 64 + 128),
        "a head, a run, two lines"
    );
    let placed = traffic.placed_bytes - before.placed_bytes;
    assert_eq!(placed, 0, "each record's lines are in a later one too");
    setting.region.span(4096, 65536).copy_in(0, &[7; 65536]);
    coherence::flush(&setting.region, 4096, 65536);
    let whole = setting.mirror.traffic();
    assert_eq!(
        (whole.records - traffic.records, whole.lines - traffic.lines),
        (1, 1024)
    );
    assert_eq!(setting.recovered().0[4096..4096 + 65536], [7; 65536]);
}

/// A holder goes on without its mirror when it is told that the book knows, or after its patience.
#[test]
fn a_lost_mirror_holds_fences_up_until_it_is_given_up() {
    let setting = setting(1, 1 << 20, false);
    setting.mirror.set_whole();
    holds_fences_up(&setting);
}

/// The key of the memory is over and the journal's is not: records arrive, and the loss is found while lines are
/// placed.
#[test]
fn a_loss_that_is_found_by_placing_holds_fences_up() {
    let setting = setting(1, u64::MAX, true);
    assert!(setting.node.memory().revoke(setting.keys[0]));
    holds_fences_up(&setting);
}

/// The thread that fills is the one that tells the book of a loss: it does not wait until it has, and others do.
#[test]
fn who_fills_does_not_wait_for_itself() {
    let setting = setting(1, 1 << 20, true);
    setting.fill();
    assert!(setting.is_lost() && setting.region.mirror_behind().is_none());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            coherence::flush(&setting.region, 8192, LINE);
            is_done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!is_done.load(Ordering::SeqCst), "it waits");
        setting.mirror.give_up();
    });
    assert_eq!(setting.region.mirror_behind(), None, "the book knows");
}

/// A mirror that the book does not call whole holds nothing up.
#[test]
fn a_mirror_that_counts_for_nothing_is_given_up_at_once() {
    let setting = setting(1, 1 << 20, false);
    for _ in 0..100_000 {
        coherence::flush(&setting.region, 8192, LINE);
    }
    assert!(setting.is_lost());
    assert_eq!(setting.region.mirror_behind(), None, "no fence waited for its patience");
}

/// That fences went on before the book knew is said until the mirror is left.
#[test]
fn a_mirror_that_was_given_up_by_patience_is_behind() {
    let setting = setting(1, 1 << 20, true);
    assert_eq!(setting.region.mirror_behind(), None);
    while !setting.is_lost() {
        coherence::flush(&setting.region, 8192, LINE);
    }
    coherence::flush(&setting.region, 8192, LINE);
    assert!(setting.region.mirror_behind().is_some());
    setting.region.detach_mirror();
    assert_eq!(setting.region.mirror_behind(), None);
}

fn holds_fences_up(setting: &Setting) {
    let fences = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed());
            while fences.load(Ordering::SeqCst) < 100_000 {
                // Some lines have to rest, to be placed.
                let at = 8192 + random.below(30_000) * LINE as u64;
                setting.region.span(at, 64).set_u64(0, 1);
                coherence::flush(&setting.region, at, 64);
                fences.fetch_add(1, Ordering::SeqCst);
            }
        });
        while !setting.is_lost() {
            std::thread::yield_now();
        }
        let held = fences.load(Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(fences.load(Ordering::SeqCst) <= held + 1, "it waits");
        assert!(setting.mirror.lost().is_some());
        setting.mirror.give_up();
    });
    assert_eq!(fences.load(Ordering::SeqCst), 100_000);
}

/// What is no journal is refused before anything is written.
#[test]
fn a_journal_has_its_length() {
    let node = Node::new("n");
    let memory = node.memory().register(LEN);
    let journal = node.memory().register(4096);
    let to = |remote| RemoteMemory::new(node.endpoint(), remote);
    let options = RemoteOptions {
        believed: false,
        patience: PATIENCE,
        on_lost: Box::new(|_| ()),
    };
    let refused: Result<RemoteMirror> = RemoteMirror::begin(to(memory), to(journal), options);
    assert!(matches!(refused.err(), Some(Error::Mismatch(_))));
    let short = Side::reserve_to(&*setting(1, u64::MAX, false).mirror, LEN + 1);
    assert!(matches!(short, Err(Error::Mismatch(_))));
}
