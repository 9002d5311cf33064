//! Databases that are archived: any state since the first base comes back, whatever fails meanwhile, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_base::random::Random;
use cenote_base::rt::Mutex;
use cenote_base::rt::fs::with;
use cenote_base::{Error, Lsn, PageId, Result};
use cenote_testkit::faulty::MemFs;

use super::super::nodes_tests::{Kept, start as start_on};
use super::{Known, Toy, assert_known, start};
use crate::archive::{
    Archiver, Began, ObjectSeen, Objects, RestoreFrom, RestoreReport, Target, Times, restore_archive, survey,
};
use crate::testing::region;

/// An object store that fails as it is told: of so many calls one is not carried out, and one not answered.
#[derive(Default)]
struct FakeStore {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    trouble: Mutex<Option<(u64, Random)>>,
}

impl FakeStore {
    fn trouble(&self, one_in: u64, seed: u64) {
        *self.trouble.lock() = (one_in > 0).then_some((one_in, Random(seed)));
    }

    fn fails(&self) -> Result<()> {
        let mut trouble = self.trouble.lock();
        match trouble.as_mut().is_some_and(|(one_in, random)| random.one_in(*one_in)) {
            true => Err(Error::Timeout("no answer came".into())),
            false => Ok(()),
        }
    }

    fn does<T>(&self, does: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> Result<T> {
        self.fails()?;
        let done = does(&mut self.objects.lock());
        self.fails().map(|()| done)
    }

    fn names(&self, part: &str) -> Vec<String> {
        self.objects
            .lock()
            .keys()
            .filter(|name| name.contains(part))
            .cloned()
            .collect()
    }
}

impl Objects for FakeStore {
    fn place(&self) -> String {
        "the store".into()
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.does(|objects| match objects.contains_key(name) {
            true => false,
            false => objects.insert(name.into(), bytes.to_vec()).is_none(),
        })
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.does(|objects| objects.get(name).cloned())
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectSeen>> {
        let seen = |(name, bytes): (&String, &Vec<u8>)| ObjectSeen {
            name: name.clone(),
            bytes: bytes.len() as u64,
        };
        let prefix = format!("{folder}/");
        self.does(|objects| {
            objects
                .iter()
                .filter(|(name, _)| name.starts_with(&prefix))
                .map(seen)
                .collect()
        })
    }

    fn folders(&self) -> Result<Vec<String>> {
        let top = |name: &String| name.split('/').next().map(str::to_owned);
        self.does(|objects| {
            objects
                .keys()
                .filter_map(top)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.does(|objects| drop(objects.remove(name)))
    }
}

/// What happened to the database: at which position of the log, at which time.
enum Event {
    Set(PageId, u64),
    Dropped(u32),
}

/// A database that is archived while it is used.
struct World {
    toy: Toy,
    store: Arc<FakeStore>,
    archiver: Archiver,
    events: Vec<(Lsn, u64, Event)>,
    now: Arc<AtomicU64>,
    times: Arc<Times>,
    random: Random,
    next_space: u32,
}

fn store_of(store: &Arc<FakeStore>) -> Arc<dyn Objects> {
    Arc::clone(store) as _
}

fn times_of(now: &Arc<AtomicU64>) -> Arc<Times> {
    let now = Arc::clone(now);
    Arc::new(Times::new(Box::new(move || now.load(Ordering::SeqCst))))
}

/// Tries until it is answered.
fn persist<T>(mut does: impl FnMut() -> Result<T>) -> T {
    loop {
        match does() {
            Ok(done) => return done,
            Err(Error::Timeout(_) | Error::Busy(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

impl World {
    fn new(toy: Toy, store: Arc<FakeStore>, seed: u64) -> (World, Began) {
        toy.storage.log().keep_most(1 << 40);
        let now = Arc::new(AtomicU64::new(1000));
        let times = times_of(&now);
        let begun = persist(|| Archiver::begin(toy.storage.clone(), store_of(&store), Arc::clone(&times), None));
        let world = World {
            toy,
            store,
            archiver: begun.0,
            events: Vec::new(),
            now,
            times,
            random: Random(seed),
            next_space: 1,
        };
        (world, begun.1)
    }

    fn known_at(&self, is_before: impl Fn(Lsn, u64) -> bool) -> Known {
        let mut known = Known::new();
        for (_, _, event) in self.events.iter().filter(|(lsn, micros, _)| is_before(*lsn, *micros)) {
            match event {
                Event::Set(id, value) => drop(known.insert(*id, *value)),
                Event::Dropped(space) => known.retain(|id, _| id.space != *space),
            }
        }
        known
    }

    fn note(&mut self, event: Event) {
        self.events
            .push((self.toy.storage.log().durable(), self.times.now(), event));
    }

    fn make_space(&mut self) {
        self.toy.storage.pages().create_space(self.next_space).expect("made");
        self.next_space += 1;
    }

    fn set(&mut self) {
        let spaces = self.toy.storage.pages().spaces();
        let space = spaces[self.random.index(spaces.len())];
        let (id, value) = (PageId::new(space, self.random.index(700) as u32), self.random.word());
        self.toy.set(id, value);
        self.note(Event::Set(id, value));
    }

    /// One step of what an engine, its clients and its archiver do.
    fn step(&mut self) {
        self.now.fetch_add(1 + self.random.below(100), Ordering::SeqCst);
        match self.random.below(40) {
            0 => self.make_space(),
            1 if self.toy.storage.pages().spaces().len() > 2 => {
                let space = self.toy.storage.pages().spaces()[0];
                self.toy.frames.lock().retain(|id, _| id.space != space);
                self.toy.storage.pages().drop_space(space).expect("dropped");
                self.note(Event::Dropped(space));
            }
            2 => self.toy.checkpoint(),
            3 => {
                let _ = self.archiver.base(&|_| Ok(true));
            }
            4..8 => {
                let _ = self.archiver.ship();
            }
            8..12 => drop(self.times.note(self.toy.storage.log())),
            _ => self.set(),
        }
    }

    /// All that is durable is archived.
    fn ship_all(&mut self) {
        let archiver = &mut self.archiver;
        while persist(|| archiver.ship()).is_some() {}
        assert_eq!(self.archiver.waiting(), 0);
    }

    fn restored(&self, target: Target) -> Result<(Toy, RestoreReport)> {
        let path = Path::new("/restored");
        if cenote_base::rt::fs::exists(path).expect("looked") {
            cenote_base::rt::fs::remove_dir_all(path).expect("removed");
        }
        let from = RestoreFrom {
            database: None,
            timeline: None,
            target,
        };
        let report = restore_archive(&store_of(&self.store), from, path, &|_, _| {})?;
        let (toy, _) = start(path, &region());
        let damage = toy.storage.check(&|_| false).expect("checked").damage;
        assert_eq!(damage, Vec::<String>::new());
        Ok((toy, report))
    }

    /// States at positions and times, chosen at random, are as they were.
    fn look_back(&mut self, times: usize, hint: &str) {
        let bases = survey(&*self.store)
            .expect("looked")
            .into_iter()
            .flat_map(|seen| seen.bases);
        let first = bases.min_by_key(|base| base.end).expect("there is one");
        for _ in 0..times {
            let (lsn, micros, _) = self.events[self.random.index(self.events.len())];
            if lsn >= first.end {
                let (toy, report) = self.restored(Target::Position(lsn)).expect("restored");
                assert_eq!(report.lsn, lsn, "{hint}");
                assert_known(&toy, &self.known_at(|at, _| at <= lsn), &format!("{hint}, at {lsn}"));
            }
            if micros > first.ended {
                let (toy, report) = self.restored(Target::Time(micros)).expect("restored");
                let at = report.at.map_or(report.lsn, |sample| sample.lsn);
                assert!(
                    report.at.is_none_or(|sample| sample.micros <= micros),
                    "{hint}: {report:?}"
                );
                let known = self.known_at(|lsn, _| lsn <= report.lsn);
                assert_known(&toy, &known, &format!("{hint}, at {micros} us, {at}"));
                let later = self
                    .events
                    .iter()
                    .filter(|(at, when, _)| *at <= report.lsn && *when > micros);
                assert_eq!(later.count(), 0, "{hint}: something later than {micros} us is there");
            }
        }
        let (toy, report) = self.restored(Target::Latest).expect("restored");
        assert!(
            report.is_end && report.lsn == self.toy.storage.log().durable(),
            "{hint}: {report:?}"
        );
        assert_known(&toy, &self.known_at(|_, _| true), hint);
    }
}

fn first_base(world: &mut World) {
    (0..3).for_each(|_| world.make_space());
    (0..20).for_each(|_| world.set());
    world.archiver.base(&|_| Ok(true)).expect("taken");
}

#[test]
fn any_state_since_the_first_base_comes_back() {
    for seed in 0..6 {
        for is_on_nodes in [false, true] {
            with(Arc::new(MemFs::new()), || {
                let kept: Arc<Mutex<Kept>> = Arc::default();
                let toy = match is_on_nodes {
                    true => Toy::of(start_on(&kept, &region(), false).expect("opened").0),
                    false => start(Path::new("/data"), &region()).0,
                };
                let store = Arc::new(FakeStore::default());
                let (mut world, began) = World::new(toy, Arc::clone(&store), seed);
                assert!(matches!(began, Began::Anew(_)));
                first_base(&mut world);
                // Calls fail, and some are carried out all the same.
                store.trouble(8, seed);
                (0..400).for_each(|_| world.step());
                world.ship_all();
                store.trouble(0, 0);
                world.look_back(4, &format!("seed {seed}, nodes {is_on_nodes}"));
                assert_eq!(store.names("/timelines/").len(), 1);
            });
        }
    }
}

/// Each next process, behind a kill or an end in order, goes on where the archive ends.
#[test]
fn a_start_goes_on_with_its_timeline() {
    for seed in 0..4 {
        let store = Arc::new(FakeStore::default());
        let (mut files, mut events, mut random) = (MemFs::new(), Vec::new(), Random(seed));
        let mut now = 0;
        for round in 0..4 {
            let next = files.kill_clone();
            with(Arc::new(next.clone()), || {
                let toy = start(Path::new("/data"), &region()).0;
                let (mut world, began) = World::new(toy, Arc::clone(&store), random.word());
                assert_eq!(
                    began == Began::GoesOn,
                    round > 0,
                    "seed {seed}, round {round}: {began:?}"
                );
                world.events = std::mem::take(&mut events);
                world.next_space = 100 * (round + 1);
                world.now.fetch_max(now, Ordering::SeqCst);
                if round == 0 {
                    first_base(&mut world);
                }
                (0..150).for_each(|_| world.step());
                if random.one_in(2) {
                    world.ship_all();
                    world.look_back(1, &format!("seed {seed}, round {round}"));
                }
                (events, now) = (world.events, world.times.now());
            });
            files = next;
        }
        assert_eq!(store.names("/timelines/").len(), 1);
    }
}

/// A directory was copied, or put back, and both are used: each has a log of its own from there on.
#[test]
fn a_database_that_was_put_back_begins_another_timeline() {
    let (files, store) = (MemFs::new(), Arc::new(FakeStore::default()));
    let copied = with(Arc::new(files.clone()), || {
        let (mut world, _) = World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), 1);
        first_base(&mut world);
        let copied = files.kill_clone();
        world.set();
        world.ship_all();
        copied
    });
    with(Arc::new(copied.clone()), || {
        let (mut world, began) = World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), 2);
        assert!(
            matches!(&began, Began::Anew(why) if why.contains("earlier state")),
            "{began:?}"
        );
        world.set();
        world.next_space = 50;
        first_base(&mut world);
        (0..50).for_each(|_| world.set());
        world.ship_all();
        let known = world.known_at(|_, _| true);
        assert_known(
            &world.restored(Target::Latest).expect("restored").0,
            &known,
            "the newest timeline",
        );
    });
    // The first goes on, longer than the second: it is of another log.
    with(Arc::new(files.kill_clone()), || {
        let toy = start(Path::new("/data"), &region()).0;
        (0..200).for_each(|n| toy.set(PageId::new(1, n), 3));
        let (world, began) = World::new(toy, Arc::clone(&store), 3);
        assert!(
            matches!(&began, Began::Anew(why) if why.contains("another log")),
            "{began:?}"
        );
        assert_eq!(world.archiver.timeline(), 3);
    });
}

/// Two servers that both believe to have the database: of one history one goes on from the other's piece, of two each
/// finds out.
#[test]
fn of_two_archivers_one_finds_what_the_other_put_there() {
    with(Arc::new(MemFs::new()), || {
        let store = Arc::new(FakeStore::default());
        let (mut world, _) = World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), 1);
        first_base(&mut world);
        let storage = world.toy.storage.clone();
        let (mut other, began) =
            Archiver::begin(storage, store_of(&store), Arc::clone(&world.times), None).expect("begun");
        assert_eq!(began, Began::GoesOn);
        world.set();
        let first = world.archiver.ship().expect("shipped").expect("there is something");
        world.set();
        let found = other.ship().expect("found").expect("there is something");
        assert_eq!((found.log_bytes, found.object_bytes), (first.log_bytes, 0));
        assert!(other.ship().expect("shipped").expect("there is something").object_bytes > 0);
        let again = world.archiver.ship().expect("found").expect("there is something");
        assert_eq!(again.object_bytes, 0);
        assert_eq!(world.archiver.archived(), other.archived());
        world.ship_all();
        // What is there is of another log.
        let at = world.archiver.archived();
        world.set();
        let name = format!("{:016x}", at.raw());
        let piece = store.names("/log/").pop().expect("there is one");
        let other = store.objects.lock()[&piece].clone();
        store
            .objects
            .lock()
            .insert(format!("{}/{name}", piece.rsplit_once('/').expect("a path").0), other);
        let refused = world.archiver.ship().expect_err("refused");
        assert!(
            matches!(&refused, Error::Mismatch(why) if why.contains(&name)),
            "{refused}"
        );
        let (_, began) = Archiver::begin(
            world.toy.storage.clone(),
            store_of(&store),
            Arc::clone(&world.times),
            None,
        )
        .expect("begun");
        assert!(matches!(&began, Began::Anew(why) if why.contains(&name)), "{began:?}");
    });
}

/// The log is kept while it is not archived; where that was given up, a new timeline with a base of its own begins.
#[test]
fn what_was_not_archived_is_kept_until_that_is_given_up() {
    with(Arc::new(MemFs::new()), || {
        let store = Arc::new(FakeStore::default());
        let (mut world, _) = World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), 1);
        first_base(&mut world);
        let fill = |world: &mut World| {
            for _ in 0..3000 {
                world.set();
            }
            world.toy.checkpoint();
        };
        fill(&mut world);
        world.ship_all();
        fill(&mut world);
        let first = world.archiver.archived();
        assert!(
            world.toy.storage.log().read_durable(first, &mut [0; 8]).expect("read") == 8,
            "it is kept"
        );
        assert!(!world.toy.storage.log().is_recyclable());
        world.toy.storage.log().keep_most(0);
        assert!(world.toy.storage.log().is_recyclable());
        world.toy.storage.recycle().expect("recycled");
        let refused = world.archiver.ship().expect_err("gone");
        assert!(matches!(refused, Error::Past(_)), "{refused}");
        let (mut next, began) = World::new(Toy::of(world.toy.storage.clone()), Arc::clone(&store), 2);
        assert!(
            matches!(&began, Began::Anew(why) if why.contains("is gone")),
            "{began:?}"
        );
        assert!(next.archiver.last_base().is_none());
        next.archiver.base(&|_| Ok(true)).expect("taken");
        next.ship_all();
        let known = world.known_at(|_, _| true);
        assert_known(
            &next.restored(Target::Latest).expect("restored").0,
            &known,
            "behind the gap",
        );
    });
}

#[test]
fn what_no_kept_moment_needs_is_removed_and_everything_else_stays() {
    for seed in 0..4 {
        with(Arc::new(MemFs::new()), || {
            let store = Arc::new(FakeStore::default());
            let (mut world, _) = World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), seed);
            first_base(&mut world);
            for _ in 0..5 {
                (0..60).for_each(|_| world.step());
                world.archiver.base(&|_| Ok(true)).expect("taken");
            }
            let bases = survey(&*store).expect("looked").remove(0).bases;
            let kept = bases[bases.len() / 2].clone();
            store.trouble(5, seed);
            let (archiver, micros) = (&mut world.archiver, kept.ended + 1);
            persist(|| archiver.prune(Some(micros), &|_| Ok(true)));
            store.trouble(0, 0);
            let left = survey(&*store).expect("looked").remove(0);
            assert!(left.bases.len() < bases.len() && left.bases[0].ended <= micros);
            world.ship_all();
            world.look_back(3, &format!("seed {seed}"));
            let refused = world.restored(Target::Position(bases[0].end)).err().expect("removed");
            assert!(
                refused.to_string().contains("first state that can be restored"),
                "{refused}"
            );
            // Nothing needs to be removed twice, and nothing that is needed ever is.
            assert_eq!(archiver_prunes(&mut world, micros), 0);
        });
    }
}

/// Of a copy that goes on by itself the removal leaves the other alone, as long as that has moments to be kept; then it
/// goes as a whole.
#[test]
fn a_fork_is_kept_while_it_has_moments_to_be_kept() {
    let (files, store) = (MemFs::new(), Arc::new(FakeStore::default()));
    let begin = |seed| World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), seed);
    let mut other = with(Arc::new(files.clone()), || {
        let (mut world, _) = begin(1);
        first_base(&mut world);
        world
    });
    let copied = files.kill_clone();
    with(Arc::new(files.clone()), || {
        other.set();
        other.ship_all();
    });
    with(Arc::new(copied), || {
        let (mut fork, _) = begin(2);
        assert_eq!(fork.archiver.timeline(), 2);
        fork.next_space = 50;
        fork.now.store(10_000, Ordering::SeqCst);
        first_base(&mut fork);
        fork.ship_all();
        with(Arc::new(files.clone()), || {
            other.now.store(30_000, Ordering::SeqCst);
            other.set();
            other.ship_all();
        });
        let timelines = || {
            survey(&*store)
                .expect("looked")
                .iter()
                .map(|seen| seen.number)
                .collect::<Vec<_>>()
        };
        fork.now.store(40_000, Ordering::SeqCst);
        fork.archiver.base(&|_| Ok(true)).expect("taken");
        fork.archiver.prune(Some(20_000), &|_| Ok(true)).expect("pruned");
        assert_eq!(timelines(), [1, 2]);
        assert_eq!(survey(&*store).expect("looked")[0].bases.len(), 1);
        fork.archiver.prune(Some(35_000), &|_| Ok(true)).expect("pruned");
        assert_eq!(timelines(), [2]);
        assert!(store.names("/00000001/").is_empty(), "{:?}", store.names("/00000001/"));
    });
    // It finds out with its next base.
    with(Arc::new(files), || {
        let gone = other.archiver.base(&|_| Ok(true)).expect_err("gone");
        assert!(matches!(gone, Error::Mismatch(_)), "{gone}");
    });
}

/// The piece that an archive ends with may be as small, and as like another history's, as can be.
#[test]
fn an_end_that_looks_alike_does_not_hide_another_history() {
    let (files, store) = (MemFs::new(), Arc::new(FakeStore::default()));
    let begin = || World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), 1);
    let (id, alike) = (PageId::new(1, 1), PageId::new(1, 2));
    let copied = with(Arc::new(files.clone()), || {
        let (mut world, _) = begin();
        first_base(&mut world);
        [id, alike].iter().for_each(|id| world.toy.set(*id, 1));
        world.ship_all();
        let copied = files.kill_clone();
        for (id, value) in [(id, 2), (alike, 3)] {
            world.toy.set(id, value);
            world.ship_all();
        }
        copied
    });
    with(Arc::new(copied), || {
        let toy = start(Path::new("/data"), &region()).0;
        toy.set(id, 9);
        toy.set(alike, 3);
        let (_, began) = World::new(toy, Arc::clone(&store), 2);
        assert!(
            matches!(&began, Began::Anew(why) if why.contains("another log")),
            "{began:?}"
        );
    });
}

/// What becomes durable between two readings belongs to the later one: a sample never says of something that it was
/// there before it was.
#[test]
fn a_time_is_read_after_the_position() {
    with(Arc::new(MemFs::new()), || {
        let toy = Arc::new(start(Path::new("/data"), &region()).0);
        toy.storage.pages().create_space(1).expect("made");
        toy.set(PageId::new(1, 0), 1);
        let (late, before) = (Arc::clone(&toy), toy.storage.log().durable());
        // The clock takes long, and something happens meanwhile.
        let times = Times::new(Box::new(move || {
            late.set(PageId::new(1, 1), 2);
            7
        }));
        let sample = times.note(toy.storage.log());
        assert_eq!((sample.lsn, sample.micros), (before, 7));
    });
}

fn archiver_prunes(world: &mut World, micros: u64) -> u64 {
    world
        .archiver
        .prune(Some(micros), &|_| Ok(true))
        .expect("pruned")
        .objects
}

/// Every object that a restore needs: damaged, gone, or another's in its place.
#[test]
fn what_is_damaged_is_named_and_not_restored() {
    with(Arc::new(MemFs::new()), || {
        let store = Arc::new(FakeStore::default());
        let (mut world, _) = World::new(start(Path::new("/data"), &region()).0, Arc::clone(&store), 4);
        first_base(&mut world);
        for _ in 0..3 {
            (0..10).for_each(|_| world.set());
            world.ship_all();
        }
        let known = world.known_at(|_, _| true);
        assert_known(&world.restored(Target::Latest).expect("restored").0, &known, "whole");
        let names = store.names("");
        assert!(names.len() > 6, "{names:?}");
        let mut refused = 0;
        for (n, name) in names.iter().enumerate() {
            let whole = store.objects.lock()[name].clone();
            let mut flipped = whole.clone();
            let middle = flipped.len() / 2;
            flipped[middle] ^= 1;
            let another = store.objects.lock()[&names[(n + 1) % names.len()]].clone();
            for damaged in [Some(flipped), Some(another), None] {
                match damaged {
                    Some(bytes) => drop(store.objects.lock().insert(name.clone(), bytes)),
                    None => drop(store.objects.lock().remove(name)),
                }
                match world.restored(Target::Latest) {
                    // What is not needed, or the last piece, of which nothing says that it was there.
                    Ok((toy, report)) => {
                        assert_known(&toy, &world.known_at(|lsn, _| lsn <= report.lsn), name);
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(
                            matches!(error, Error::Corrupt(_) | Error::Invalid(_)),
                            "{name}: {error}"
                        );
                    }
                }
            }
            store.objects.lock().insert(name.clone(), whole);
        }
        assert!(
            refused > 2 * names.len(),
            "{refused} refusals of {} objects",
            names.len()
        );
    });
}
