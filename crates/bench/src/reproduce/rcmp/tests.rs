//! Each system is a memory: what one pod has written, another reads, and at once. And the same seed runs the same way.

use super::load::{Load, Mix, Pick};
use super::pool;
use super::rig::{Measured, Shape};
use super::run::{Kind, Run};
use super::store::{SEGMENT, Store, UNIT};
use crate::ycsb::choose::Random;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Clients of a pod.
const CLIENTS: usize = 3;

/// Knows what was written: to each item by one client alone, in rising numbers. Threads of a world take turns, so that
/// the witness sees them in order.
#[derive(Debug)]
pub struct Witness {
    /// Where items are; neighbours share lines and pages.
    items: u64,
    begun: Vec<AtomicU64>,
    done: Vec<AtomicU64>,
    reads: AtomicU64,
}

impl Witness {
    fn new(items: u64) -> Arc<Self> {
        let zeros = || (0..items).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            items,
            begun: zeros(),
            done: zeros(),
            reads: AtomicU64::new(0),
        })
    }

    /// The first half of the items are neighbours, so that pods take lines from each other; the others are far apart,
    /// so that caches have to make room.
    fn at(&self, item: u64, bytes: u64) -> u64 {
        match item < self.items / 2 {
            true => item * UNIT,
            false => item * (bytes / self.items) / UNIT * UNIT,
        }
    }

    /// One operation of a client.
    pub fn operate(&self, store: &dyn Store, who: (usize, usize), dice: &mut Random) -> Result<()> {
        let (me, clients) = ((who.0 * CLIENTS + who.1) as u64, 2 * CLIENTS as u64);
        if dice.below(2) == 0 {
            return self.write(store, dice.below(self.items / clients) * clients + me);
        }
        self.read(store, dice.below(self.items))
    }

    fn write(&self, store: &dyn Store, item: u64) -> Result<()> {
        let next = self.begun[item as usize].fetch_add(1, Relaxed) + 1;
        let mut bytes = [0; UNIT as usize];
        // Both ends: half a write would be seen.
        bytes[..8].copy_from_slice(&next.to_le_bytes());
        bytes[56..].copy_from_slice(&next.to_le_bytes());
        store.write(self.at(item, BYTES), &bytes)?;
        self.done[item as usize].store(next, Relaxed);
        Ok(())
    }

    fn read(&self, store: &dyn Store, item: u64) -> Result<()> {
        let least = self.done[item as usize].load(Relaxed);
        let mut bytes = [0; UNIT as usize];
        store.read(self.at(item, BYTES), &mut bytes)?;
        let most = self.begun[item as usize].load(Relaxed);
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        // Not written yet: the unit's number is there, and zeros.
        let found = if word(56) == 0 { 0 } else { word(0) };
        self.reads.fetch_add(1, Relaxed);
        let is_right = (least..=most).contains(&found) && (found == 0 || word(56) == found);
        let wrong = || {
            Error::corrupt(format!(
                "item {item}: {found} and {}, where {least} to {most} were written",
                word(56)
            ))
        };
        if is_right { Ok(()) } else { Err(wrong()) }
    }
}

const BYTES: u64 = 4 * SEGMENT;

fn run(kind: Kind, load: Load, seed: u64) -> Run {
    let mut shape = Shape::of(2, CLIENTS, 1);
    shape.layout.bytes = BYTES;
    // Two lines a shard: lines that others want are sent home all the time.
    shape.local = 16 << 10;
    Run {
        kind,
        shape,
        load,
        settle: Nanos::ZERO,
        window: Nanos::from_millis(1),
        late: Nanos::ZERO,
        seed,
    }
}

fn judge(kind: Kind, pods: usize, late: Nanos, seed: u64) {
    let mut run = run(kind, Load::Witnessed(Witness::new(240)), seed);
    run.late = late;
    run.shape.layout.pods = pods;
    judge_run(&run);
}

/// What came of a run whose witness found nothing wrong.
fn judge_run(run: &Run) -> Measured {
    let (name, seed, late) = (run.kind.name(), run.seed, run.late);
    let measured = run.go();
    let measured = measured.unwrap_or_else(|error| panic!("{name}, seed {seed}, late {late}: {error}"));
    let Load::Witnessed(witness) = &run.load else {
        panic!("the load has no witness");
    };
    let writes = witness.done.iter().map(|n| n.load(Relaxed)).sum::<u64>();
    assert!(
        writes > 50 && witness.reads.load(Relaxed) > 50,
        "{name}: it did nothing"
    );
    measured
}

#[test]
fn no_read_is_stale_in_any_system_that_pods_share() {
    for kind in Kind::all().into_iter().filter(|kind| *kind != Kind::Swap) {
        for (late, seed) in cenote_sim::seeds(12).map(|seed| (Nanos(seed % 4 * 2000), seed)) {
            judge(kind, 2, late, seed);
        }
    }
}

#[test]
fn no_read_is_stale_while_extents_are_snatched() {
    let snatching = pool::Options {
        moves: true,
        hot: 1.0,
        margin: 1.0,
        doubt: 0.0,
        every: Nanos::from_millis(1),
        stay: Nanos::ZERO,
        ..pool::Options::default()
    };
    let moved = cenote_sim::seeds(6).map(|seed| {
        let mut run = run(Kind::Pool(snatching), Load::Witnessed(Witness::new(240)), seed);
        (run.late, run.window) = (Nanos(seed % 4 * 2000), Nanos::from_millis(8));
        judge_run(&run).told("moved")
    });
    let moved: u64 = moved.sum();
    assert!(moved > 2, "only {moved} extents have moved in all runs");
}

/// Of page swapping each pod has a memory of its own.
#[test]
fn what_page_swapping_has_written_back_comes_again() {
    cenote_sim::seeds(20).for_each(|seed| judge(Kind::Swap, 1, Nanos(seed % 9 * 1500), seed));
}

#[test]
fn coherent_caches_survive_messages_that_overtake_each_other() {
    cenote_sim::seeds(60).for_each(|seed| judge(Kind::Coherent, 2, Nanos(seed % 9 * 1500), seed));
}

/// A write that needs the room of a changed line waited for that line's way home, and then for its own: two trips.
#[test]
fn a_changed_line_makes_room_without_being_waited_for() {
    let load = Load::Random {
        size: UNIT,
        writes: 100,
        pick: Pick::Uniform,
    };
    let mut run = run(Kind::Coherent, load, 4);
    run.shape.clients = 1;
    run.settle = Nanos::from_micros(200);
    let measured = run.go().expect("a run");
    assert!((2.0..3.9).contains(&measured.mean_us), "{measured:?}");
}

#[test]
fn every_system_runs_every_mix_and_the_same_seed_runs_the_same() {
    for kind in Kind::all() {
        for mix in Mix::ALL {
            let load = Load::Ycsb {
                mix,
                pick: Pick::Uniform,
            };
            let run = run(kind, load, 3);
            let once = run.go().expect("a run");
            assert!(once.rate > 1000.0, "{}: {mix:?}: {once:?}", kind.name());
            println!("{}: {mix:?}: {once:?}", kind.name());
            assert_eq!(once, run.go().expect("a run"), "{}: {mix:?}", kind.name());
        }
    }
}

/// Simulations of one process share nothing: what each does is its seed's, down to the last choice, whichever others
/// run at the time, and wherever their memory lies.
#[test]
fn runs_beside_each_other_are_the_same_as_alone() {
    let moving = pool::Options {
        hot: 1.0,
        margin: 1.0,
        doubt: 0.0,
        every: Nanos::from_micros(200),
        stay: Nanos::ZERO,
        ..pool::Options::default()
    };
    let load = Load::Random {
        size: 4096,
        writes: 20,
        pick: Pick::Uniform,
    };
    let kinds = [Kind::Pool(moving), Kind::Pool(pool::Options::default()), Kind::Coherent];
    let runs: Vec<Run> = cenote_sim::seeds(2)
        .flat_map(|seed| kinds.map(|kind| run(kind, load.clone(), seed)))
        .collect();
    let alone: Vec<_> = runs.iter().map(|run| run.digested().expect("a run")).collect();
    let beside = |of: &Run| -> Vec<_> { (0..2).map(|_| of.digested().expect("a run")).collect() };
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = runs.iter().map(|run| scope.spawn(|| beside(run))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    for ((run, alone), together) in runs.iter().zip(&alone).zip(together) {
        let is_same = together.iter().all(|one| one == alone);
        assert!(
            is_same,
            "{}, seed {}: {alone:?}, beside others {together:?}",
            run.kind.name(),
            run.seed
        );
    }
}
