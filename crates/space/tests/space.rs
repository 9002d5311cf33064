//! A space of real processes, which are killed at any moment; and what is announced of it.
//!
//! What the processes do is [`another_process`].

mod common;

use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::observe::{self, Counting};
use cenote_fabric::{RegionOptions, observe::Traffic};
use cenote_space::EXTENT;
use cenote_space::{Class, Extent, GlobalAddress, Keeper, Lifetime, Run, SessionId};
use cenote_space::{LocalKeeper, Part, PartOptions, Space, SpaceOptions};
use common::{Process, Random, TIMEOUT, objects_beside, say, tables, take_out, task, work};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A keeper's method as a message.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Begin,
    Take(SessionId, Class, Lifetime),
    GiveBack(SessionId, Vec<Extent>),
    TakeRun(SessionId, u64, Lifetime),
    FreeRun(GlobalAddress),
    End(SessionId),
    IsAlive(SessionId),
}

/// Between two looks whether a process goes on.
const TURN: Nanos = Nanos::from_millis(20);

/// An answer: what was asked for, or an error's text and whether there was no room.
type Answer = std::result::Result<serde_json::Value, (String, bool)>;

/// A keeper that is asked through this process's output and input.
struct Asked(Mutex<()>);

impl Asked {
    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        let _one = self.0.lock();
        say(&format!("ask {}", serde_json::to_string(request).expect("text")));
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("readable");
        let answer: Answer = serde_json::from_str(&line).map_err(|_| Error::Lost("the keeper is gone".into()))?;
        match answer {
            Ok(value) => Ok(serde_json::from_value(value).expect("what was asked for")),
            Err((text, true)) => Err(Error::Full(text)),
            Err((text, false)) => Err(Error::Invalid(text)),
        }
    }
}

impl Keeper for Asked {
    fn begin(&self) -> Result<SessionId> {
        self.ask(&Request::Begin)
    }
    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        self.ask(&Request::Take(session, class, lifetime))
    }
    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        self.ask(&Request::GiveBack(session, extents.to_vec()))
    }
    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        self.ask(&Request::TakeRun(session, bytes, lifetime))
    }
    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        self.ask(&Request::FreeRun(address))
    }
    fn end(&self, session: SessionId) -> Result<()> {
        self.ask(&Request::End(session))
    }
    fn is_alive(&self, session: SessionId) -> Result<bool> {
        self.ask(&Request::IsAlive(session))
    }
    fn audit(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

fn value<T: Serialize>(result: Result<T>) -> Answer {
    match result {
        Ok(value) => Ok(serde_json::to_value(value).expect("a value")),
        Err(error) => Err((error.to_string(), matches!(error, Error::Full(_)))),
    }
}

/// Does what a message asks for; sessions that begin are noted.
fn answer(keeper: &dyn Keeper, request: Request, sessions: &mut Vec<SessionId>) -> Answer {
    match request {
        Request::Begin => value(keeper.begin().inspect(|session| sessions.push(*session))),
        Request::Take(session, class, lifetime) => value(keeper.take(session, class, lifetime)),
        Request::GiveBack(session, extents) => value(keeper.give_back(session, &extents)),
        Request::TakeRun(session, bytes, lifetime) => value(keeper.take_run(session, bytes, lifetime)),
        Request::FreeRun(address) => value(keeper.free_run(address)),
        Request::End(session) => value(keeper.end(session)),
        Request::IsAlive(session) => value(keeper.is_alive(session)),
    }
}

/// What another process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    path: PathBuf,
    /// Whether it keeps the part itself.
    keeps: bool,
    /// A table for each of its workers.
    tables: Vec<GlobalAddress>,
    seed: u64,
}

/// What another process does until it is killed.
#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    let options = RegionOptions::default();
    let space = match task.keeps {
        true => Space::open(&task.path, options),
        false => Space::join(&task.path, options, Arc::new(Asked(Mutex::new(())))),
    };
    let space = space.expect("a space");
    let worker = |(n, table): (usize, &GlobalAddress)| {
        let (space, table, seed) = (space.clone(), *table, task.seed + n as u64);
        rt::spawn("worker", move || work(&space, table, seed))
    };
    let workers: Vec<_> = task.tables.iter().enumerate().map(worker).collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().expect("it is killed, and does not end"));
}

/// A process whose questions this one answers; and the sessions that it began.
struct Asking {
    process: Process,
    sessions: Vec<SessionId>,
}

impl Asking {
    fn start(task: &Task) -> Self {
        Self {
            process: Process::start(task),
            sessions: Vec::new(),
        }
    }

    /// Answers until it has reported so often.
    fn serve(&mut self, keeper: &dyn Keeper, reports: u64) {
        let began = rt::now();
        while self.process.reports() < reports {
            assert!(rt::now().since(began) < TIMEOUT, "it does not go on");
            let Some(said) = self.process.says_within(TURN) else {
                assert!(!self.process.has_ended(), "it ended");
                continue;
            };
            let asked = said
                .strip_prefix("ask ")
                .and_then(|text| serde_json::from_str(text).ok());
            let answer = answer(keeper, asked.expect("a request"), &mut self.sessions);
            self.process.tell(&serde_json::to_string(&answer).expect("text"));
        }
    }
}

/// A space whose extents can move, so that its runs are in pieces; or not.
fn made(directory: &Path, n: usize, movable: bool) -> (Space, Vec<GlobalAddress>) {
    let options = PartOptions {
        space: 5,
        part: 1,
        tenant: 0,
        bytes: 130 * EXTENT,
        movable,
        region: RegionOptions::default(),
    };
    let part = Arc::new(Part::create(&directory.join("part"), &options).expect("made"));
    let keeper = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
    let space = Space::new(options.space);
    space.attach(part, Arc::new(keeper)).expect("its part");
    let tables = tables(&space, n);
    (space, tables)
}

#[test]
fn clients_that_are_killed_leave_one_object_each_at_most() {
    [false, true].into_iter().for_each(kill_clients);
}

fn kill_clients(movable: bool) {
    const ROUNDS: u64 = 4;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (space, tables) = made(directory.path(), 3, movable);
    let keeper = space.keeper(1).expect("kept here");
    let mut random = Random(7);
    for round in 0..ROUNDS {
        let start = |(n, table): (usize, &GlobalAddress)| {
            let seed = round * 100 + n as u64;
            Asking::start(&Task {
                path: directory.path().join("part"),
                keeps: false,
                tables: vec![*table],
                seed,
            })
        };
        let mut others: Vec<_> = tables.iter().enumerate().map(start).collect();
        let reports: Vec<_> = others.iter().map(|_| 1 + random.below(100)).collect();
        let serving = |(other, reports): (&mut Asking, u64)| {
            other.serve(&*keeper, reports);
            other.process.kill();
        };
        std::thread::scope(|scope| {
            for pair in others.iter_mut().zip(reports) {
                scope.spawn(move || serving(pair));
            }
        });
        others
            .iter()
            .flat_map(|other| &other.sessions)
            .for_each(|session| keeper.end(*session).expect("ended"));
        take_out(&space, &tables);
        let left = objects_beside(&space, &tables);
        assert!(left <= (round + 1) * 3, "{left} after round {round}");
    }
}

/// The same with the keeper in the process that is killed, over and over, between any two stores of it.
#[test]
fn a_keeper_that_is_killed_is_followed_by_another() {
    [false, true].into_iter().for_each(kill_keepers);
}

fn kill_keepers(movable: bool) {
    const ROUNDS: u64 = 8;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (space, tables) = made(directory.path(), 2, movable);
    drop(space);
    let path = directory.path().join("part");
    let mut random = Random(8);
    for round in 0..ROUNDS {
        let mut other = Process::start(&Task {
            path: path.clone(),
            keeps: true,
            tables: tables.clone(),
            seed: 1000 + round * 10,
        });
        other.hear(1 + random.below(75));
        let busy = Space::open(&path, RegionOptions::default());
        assert!(matches!(&busy, Err(Error::Busy(_))), "{busy:?}");
        other.kill();
        let space = Space::open(&path, RegionOptions::default()).expect("opened");
        take_out(&space, &tables);
        let left = objects_beside(&space, &tables);
        assert!(left <= (round + 1) * 2, "{left} after round {round}");
    }
}

#[test]
fn what_is_no_part_is_not_opened() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("part");
    let options = SpaceOptions {
        bytes: 8 * EXTENT,
        id: 5,
        ..SpaceOptions::default()
    };
    assert!(
        Space::open(&path, RegionOptions::default()).is_err(),
        "nothing is there"
    );
    std::fs::write(&path, vec![7; 100_000]).expect("written");
    assert!(Space::open(&path, RegionOptions::default()).is_err(), "no region");
    assert!(
        matches!(Space::create(&path, &options), Err(Error::Invalid(_))),
        "something is there"
    );
    std::fs::remove_file(&path).expect("removed");
    let space = Space::create(&path, &options).expect("made");
    assert!(matches!(
        Space::open(&path, RegionOptions::default()),
        Err(Error::Busy(_))
    ));
    drop(space);
    assert!(matches!(Space::create(&path, &options), Err(Error::Invalid(_))));
    let space = Space::open(&path, RegionOptions::default()).expect("opened");
    assert_eq!((space.id(), space.parts().count()), (5, 1));
    drop(space);
    let region = cenote_fabric::Region::create(
        &directory.path().join("other"),
        1 << 20,
        Default::default(),
        Default::default(),
    );
    drop(region.expect("made"));
    let other = Space::open(&directory.path().join("other"), RegionOptions::default());
    assert!(
        matches!(&other, Err(Error::Mismatch(text)) if text.contains("no part")),
        "{other:?}"
    );
}

/// Objects are region memory: an observer hears of each access.
#[test]
fn accesses_are_announced() {
    let counting = Arc::new(Counting::default());
    observe::install(counting.clone());
    let space = Space::dram(&SpaceOptions {
        bytes: 8 * EXTENT,
        ..SpaceOptions::default()
    })
    .expect("memory");
    let session = space.session();
    let objects = [
        session.alloc(5000).expect("room"),
        session.alloc(3 * EXTENT).expect("room"),
    ];
    for object in objects {
        let before = counting.mine();
        space.write(object, &[1; 4500]).expect("there");
        space.read(object, &mut [0; 100]).expect("there");
        let traffic: Traffic = counting.mine().since(before);
        assert_eq!((traffic.bytes_written, traffic.bytes_read), (4500, 100));
    }
    observe::uninstall();
}
