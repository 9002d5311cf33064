//! Locks of a space: by threads of one session, by sessions, by processes that are killed.
//!
//! What a lock protects here is an account: two words that are equal while no writer is at work, and that each writer
//! raises by one, one after the other, with time in between. Two at once, a reader beside a writer, or a dead writer
//! that no holder was told of: the words differ, or a count is lost.
//!
//! What the processes do is [`another_process`].

mod common;

use cenote_base::Error;
use cenote_base::rt::memory::Access;
use cenote_base::rt::{self, Join, Nanos, Runtime, Wait};
use cenote_space::EXTENT;
use cenote_space::{GlobalAddress, Mode, Session, Space, SpaceOptions, Timeout};
use common::{Process, Random, join, keep, say, seed, task};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

fn space() -> Space {
    Space::dram(&SpaceOptions {
        bytes: 16 * EXTENT,
        ..SpaceOptions::default()
    })
    .expect("memory")
}

/// Two words, and the lock that protects them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Account {
    lock: GlobalAddress,
    words: GlobalAddress,
}

impl Account {
    fn new(session: &Session) -> Self {
        Self {
            lock: session.new_lock().expect("room"),
            words: session.alloc(64).expect("room"),
        }
    }

    fn second(self) -> GlobalAddress {
        self.words.checked_add(8).expect("inside")
    }

    fn read(self, space: &Space) -> (u64, u64) {
        (
            space.load(self.words).expect("there"),
            space.load(self.second()).expect("there"),
        )
    }

    /// Raises both words by one, or looks at them; after a death makes them equal first.
    fn visit(self, session: &Session, mode: Mode, random: &mut Random) -> bool {
        let guard = session.lock(self.lock, mode).expect("a lock");
        let (first, second) = self.read(session);
        if guard.owner_died() {
            assert_eq!(guard.mode(), Mode::Write);
            assert!(first == second || first == second + 1, "{first} and {second}");
            session.store(self.second(), first).expect("there");
        } else {
            assert_eq!(first, second, "no writer died, and they differ");
        }
        linger(random);
        let writes = guard.mode() == Mode::Write;
        if writes {
            session.store(self.words, first + 1).expect("there");
            linger(random);
            session.store(self.second(), first + 1).expect("there");
        } else {
            assert_eq!(self.read(session), (first, second), "a writer is beside a reader");
        }
        guard.unlock().expect("it is held");
        writes
    }
}

fn linger(random: &mut Random) {
    match random.below(8) {
        0 => rt::sleep(Nanos::from_micros(30)),
        1..4 => rt::yield_now(),
        _ => {}
    }
}

#[test]
fn readers_share_and_writers_do_not() {
    let space = space();
    let (one, other) = (space.session(), space.session());
    let lock = one.new_lock().expect("room");
    let refused = |session: &Session, mode| {
        let answer = session.acquire(lock, mode, Timeout::None);
        assert!(matches!(&answer, Err(Error::Timeout(_))), "{answer:?}");
    };
    let reads = [
        one.lock(lock, Mode::Read).expect("free"),
        one.lock(lock, Mode::Read).expect("shared by the session"),
        other.lock(lock, Mode::Read).expect("shared by sessions"),
    ];
    assert!(
        reads
            .iter()
            .all(|guard| guard.mode() == Mode::Read && !guard.owner_died())
    );
    for session in [&one, &other] {
        refused(session, Mode::Write);
    }
    let [a, b, c] = reads;
    a.unlock().expect("held");
    c.unlock().expect("held");
    refused(&other, Mode::Write);
    drop(b);
    let write = other.try_lock(lock, Mode::Write).expect("a lock").expect("it is free");
    for session in [&one, &other] {
        for mode in [Mode::Read, Mode::Write] {
            refused(session, mode);
        }
    }
    let late = one.lock_within(lock, Mode::Write, Nanos::from_millis(3));
    assert!(matches!(&late, Err(Error::Timeout(_))), "{late:?}");
    write.unlock().expect("held");
    drop(one.lock(lock, Mode::Write).expect("it is free"));
    assert!(one.try_lock(lock, Mode::Read).expect("a lock").is_some());
}

#[test]
fn what_one_does_not_own_is_not_unlocked() {
    let space = space();
    let (one, other) = (space.session(), space.session());
    let lock = one.new_lock().expect("room");
    let refused = |answer: Result<(), Error>| assert!(matches!(&answer, Err(Error::Invalid(_))), "{answer:?}");
    for mode in [Mode::Read, Mode::Write] {
        refused(one.unlock(lock, mode));
        one.acquire(lock, mode, Timeout::Endless).expect("free");
        refused(other.unlock(lock, Mode::Read));
        refused(other.unlock(lock, Mode::Write));
        let another = if mode == Mode::Read { Mode::Write } else { Mode::Read };
        refused(one.unlock(lock, another));
        one.unlock(lock, mode).expect("held");
        refused(one.unlock(lock, mode));
    }
    let object = one.alloc(128).expect("room");
    let freed = one.new_lock().expect("room");
    space.free(freed).expect("freed");
    let far = GlobalAddress::new(9, 1, 0, 1).expect("an address");
    let wrong = [
        object,
        freed,
        far,
        GlobalAddress::NULL,
        lock.checked_add(64).expect("inside"),
        lock.checked_add(1).expect("inside"),
        GlobalAddress::from_raw(u64::MAX),
    ];
    for at in wrong {
        for mode in [Mode::Read, Mode::Write] {
            let answer = one.lock(at, mode);
            assert!(
                matches!(&answer, Err(Error::Invalid(_) | Error::OutOfBounds(_))),
                "{at}: {answer:?}"
            );
        }
    }
}

#[test]
fn a_session_that_ends_is_not_waited_for() {
    let space = space();
    let lock = space.session().new_lock().expect("room");
    let waiter = space.session();
    // A reader: its slot is free.
    let dead = space.session();
    dead.acquire(lock, Mode::Read, Timeout::None).expect("free");
    dead.close().expect("closed");
    let guard = waiter.lock(lock, Mode::Write).expect("free again");
    assert!(!guard.owner_died(), "readers leave nothing behind");
    guard.unlock().expect("held");
    // A writer: the next holder is told, also a reader; once.
    for mode in [Mode::Write, Mode::Read] {
        let dead = space.session();
        dead.acquire(lock, Mode::Write, Timeout::None).expect("free");
        dead.close().expect("closed");
        let guard = waiter.lock(lock, mode).expect("taken over");
        assert_eq!((guard.mode(), guard.owner_died()), (Mode::Write, true));
        guard.leave_broken().expect("held");
        let guard = waiter
            .try_lock(lock, mode)
            .expect("a lock")
            .expect("taken over at once");
        assert_eq!((guard.mode(), guard.owner_died()), (Mode::Write, true));
        guard.unlock().expect("held");
        let guard = waiter.lock(lock, mode).expect("free");
        assert_eq!((guard.mode(), guard.owner_died()), (mode, false));
    }
    // One that lives on, and is ended by its keeper: it has lost the lock, and is told so.
    let fenced = space.session();
    let guard = fenced.lock(lock, Mode::Write).expect("free");
    let (part, id) = fenced.ids()[0];
    space.keeper(part).expect("kept here").end(id).expect("ended");
    let next = waiter.lock(lock, Mode::Read).expect("taken over");
    assert!(next.owner_died());
    let answer = guard.unlock();
    assert!(matches!(&answer, Err(Error::Revoked(_))), "{answer:?}");
    next.unlock().expect("held");
}

/// A keeper ended a session whose process lives: a thread of it read, another waited to write. When a session of
/// others had freed the slot, the waiting thread went on, and what the reader left took its hold along. It could not
/// leave then, and no thread of the session got the lock again.
#[test]
fn a_session_that_is_ended_while_it_reads_and_waits_to_write_leaves_both() {
    let space = space();
    let lock = space.session().new_lock().expect("room");
    let (fenced, other) = (space.session(), space.session());
    let reads = fenced.lock(lock, Mode::Read).expect("free");
    let (part, id) = fenced.ids()[0];
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| fenced.lock(lock, Mode::Write));
        while space.load(lock).expect("there") & 0xffff_ffff_ffff != id.0 {
            rt::sleep(Nanos::from_micros(100));
        }
        space.keeper(part).expect("kept here").end(id).expect("ended");
        let taken = other.lock(lock, Mode::Write).expect("taken over");
        assert!(taken.owner_died());
        let writes = writes.join().expect("no panic").expect("its slot is free");
        assert!(matches!(reads.unlock(), Err(Error::Revoked(_))));
        let answer = writes.unlock();
        assert!(matches!(&answer, Err(Error::Revoked(_))), "{answer:?}");
        taken.unlock().expect("held");
    });
    for mode in [Mode::Write, Mode::Read] {
        let again = fenced.try_lock(lock, mode).expect("a lock");
        again.expect("no thread of it has the lock").unlock().expect("held");
    }
}

/// More readers than slots: those without one wait for one, also for one of the dead.
#[test]
fn slots_of_the_dead_are_found_among_those_of_the_living() {
    let space = space();
    let lock = space.session().new_lock().expect("room");
    let sessions: Vec<_> = (0..14).map(|_| space.session()).collect();
    for session in &sessions {
        session.acquire(lock, Mode::Read, Timeout::None).expect("a slot");
    }
    let late = space.session();
    let answer = late.lock_within(lock, Mode::Read, Nanos::from_millis(2));
    assert!(matches!(&answer, Err(Error::Timeout(_))), "{answer:?}");
    let mut sessions = sessions.into_iter();
    sessions.nth(7).expect("14").close().expect("closed");
    late.lock(lock, Mode::Read)
        .expect("the slot of the dead")
        .unlock()
        .expect("held");
    drop(sessions);
}

/// A stream of readers, each beginning before the former has ended, does not keep a writer out.
#[test]
fn writers_do_not_starve() {
    let space = space();
    let account = Account::new(&space.session());
    let is_done = Arc::new(rt::atomic::AtomicBool::new(false));
    let sessions = [Arc::new(space.session()), Arc::new(space.session())];
    let reader = |n: usize| {
        let (session, is_done) = (Arc::clone(&sessions[n % 2]), Arc::clone(&is_done));
        rt::spawn("reader", move || {
            while !is_done.load(rt::atomic::Ordering::Acquire) {
                let guard = session.lock(account.lock, Mode::Read).expect("a lock");
                rt::sleep(Nanos::from_micros(200));
                guard.unlock().expect("held");
            }
        })
    };
    let readers: Vec<_> = (0..4).map(reader).collect();
    let writer = space.session();
    for _ in 0..20 {
        writer
            .lock(account.lock, Mode::Write)
            .expect("a lock")
            .unlock()
            .expect("held");
    }
    is_done.store(true, rt::atomic::Ordering::Release);
    readers.into_iter().for_each(|reader| reader.join().expect("it ended"));
}

#[test]
fn threads_and_sessions_exclude_each_other() {
    let seed = seed();
    let space = space();
    let accounts: Vec<_> = (0..2).map(|_| Account::new(&space.session())).collect();
    let sessions: Vec<_> = (0..3).map(|_| Arc::new(space.session())).collect();
    let visitor = |n: usize| {
        let (session, accounts) = (Arc::clone(&sessions[n % 3]), accounts.clone());
        rt::spawn("visitor", move || {
            let (mut random, mut written) = (Random(seed.wrapping_add(n as u64)), [0; 2]);
            for _ in 0..1500 {
                let which = random.below(2) as usize;
                let mode = if random.below(3) == 0 { Mode::Write } else { Mode::Read };
                written[which] += u64::from(accounts[which].visit(&session, mode, &mut random));
            }
            written
        })
    };
    let visitors: Vec<_> = (0..6).map(visitor).collect();
    let written: Vec<[u64; 2]> = visitors.into_iter().map(|v| v.join().expect("it ended")).collect();
    for (which, account) in accounts.iter().enumerate() {
        let all = written.iter().map(|counts| counts[which]).sum();
        assert_eq!(account.read(&space), (all, all));
    }
}

/// The system's runtime, which before one of a reader's accesses lets a writer come.
struct Between {
    accesses: AtomicU64,
    at: u64,
    writer: Session,
    lock: GlobalAddress,
    has_it: AtomicBool,
}

impl Runtime for Between {
    fn access(&self, _: usize, bytes: u32, _: Access) {
        // Locks of the process are words of 4 bytes.
        if bytes == 8 && self.accesses.fetch_add(1, Ordering::Relaxed) == self.at {
            let taken = rt::bare(|| self.writer.acquire(self.lock, Mode::Write, Timeout::None));
            self.has_it.store(taken.is_ok(), Ordering::Relaxed);
        }
    }
    fn now(&self) -> Nanos {
        rt::os::now()
    }
    fn wall_micros(&self) -> i64 {
        rt::os::wall_micros()
    }
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Join>> {
        rt::os::spawn(name, body)
    }
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
        rt::os::wait(word, expected, timeout)
    }
    fn wake(&self, word: &AtomicU32, count: usize) -> usize {
        rt::os::wake(word, count)
    }
    fn preempt(&self) {}
    fn relax(&self) {}
    fn yield_now(&self) {}
    fn random(&self) -> u64 {
        rt::os::random()
    }
    fn thread_slot(&self) -> usize {
        rt::os::thread_slot()
    }
    fn fs(&self) -> Arc<dyn rt::fs::FileSystem> {
        rt::os::file_system()
    }
}

/// A writer comes between any two accesses of a reader: never have both the lock.
#[test]
fn a_writer_that_comes_while_a_reader_does_is_seen_or_sees() {
    let (mut both_ways, mut ended) = ([false; 2], false);
    for at in 0..1000 {
        let space = space();
        let (reader, writer) = (space.session(), space.session());
        let lock = reader.new_lock().expect("room");
        let number = |session: &Session| session.begin_in(lock.part()).expect("begun");
        assert_ne!(number(&reader), number(&writer));
        let between: &'static Between = Box::leak(Box::new(Between {
            accesses: AtomicU64::new(0),
            at,
            writer,
            lock,
            has_it: AtomicBool::new(false),
        }));
        let reads = rt::enter(between, || reader.acquire(lock, Mode::Read, Timeout::None)).is_ok();
        let writes = between.has_it.load(Ordering::Relaxed);
        assert!(!(reads && writes), "both have it: the writer came at access {at}");
        if between.accesses.load(Ordering::Relaxed) <= at {
            ended = true;
            break;
        }
        both_ways[usize::from(writes)] = true;
    }
    assert!(ended && both_ways == [true; 2], "{both_ways:?}");
}

/// What another process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    directory: PathBuf,
    accounts: Vec<Account>,
    seed: u64,
}

/// What another process does until it is killed: two threads of one session.
#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    let session = Arc::new(join(&task.directory).session());
    let visitor = |n: u64| {
        let (session, accounts, seed) = (Arc::clone(&session), task.accounts.clone(), task.seed + n);
        rt::spawn("visitor", move || {
            let mut random = Random(seed);
            loop {
                let which = random.below(accounts.len() as u64) as usize;
                let mode = if random.below(2) == 0 { Mode::Write } else { Mode::Read };
                accounts[which].visit(&session, mode, &mut random);
                say("working");
            }
        })
    };
    let visitors: Vec<_> = (0..2).map(visitor).collect();
    for visitor in visitors {
        if visitor.join().is_err() {
            // Its words are on the error output; the starter sees that it ended.
            std::process::exit(1);
        }
    }
}

/// Processes are killed while they hold locks, take them, or leave them; others take over, and this one looks in
/// between.
#[test]
fn the_locks_of_killed_processes_are_taken_over() {
    const PROCESSES: usize = 3;
    const ROUNDS: u64 = 30;
    let mut random = Random(seed());
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (space, _service) = keep(directory.path(), 16);
    let session = space.session();
    let accounts: Vec<_> = (0..2).map(|_| Account::new(&session)).collect();
    let task = |seed| Task {
        directory: directory.path().into(),
        accounts: accounts.clone(),
        seed,
    };
    let mut others: Vec<_> = (0..PROCESSES)
        .map(|_| Process::start(&task(random.below(1 << 30))))
        .collect();
    for _ in 0..ROUNDS {
        let victim = random.below(PROCESSES as u64) as usize;
        others[victim].hear(1 + random.below(60));
        others[victim] = Process::start(&task(random.below(1 << 30)));
        for account in &accounts {
            account.visit(&session, Mode::Read, &mut random);
        }
    }
    drop(others);
    for account in &accounts {
        account.visit(&session, Mode::Write, &mut random);
        let (first, second) = account.read(&space);
        assert_eq!(first, second);
        assert!(first > 0);
    }
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}
