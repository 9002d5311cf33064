//! What several sessions of two pods read and write under locks, against a model; and whether the model notices rules
//! that are broken on purpose.

use crate::pods::{Pods, at, bytes_of};
use crate::seed;
use cenote_base::Error;
use cenote_base::random::Random;
use cenote_base::rt::fault::{self, Fault};
use cenote_base::rt::memory::Access;
use cenote_base::rt::{self, Join, Nanos, Runtime, Wait};
use cenote_space::{GlobalAddress, Keeper, Mode, Session, Space, Timeout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// An object, and its bytes as the holder of its lock knows them.
struct Thing {
    address: GlobalAddress,
    bytes: Vec<u8>,
}

/// A lock, what it protects, and its holders.
struct Ward {
    lock: GlobalAddress,
    things: Vec<Thing>,
    readers: Vec<usize>,
    writer: Option<usize>,
    is_broken: bool,
    /// What the writer has written and may be missing if it dies: which thing, from where on, what, what was there.
    unsure: Vec<(usize, usize, Vec<u8>, Vec<u8>)>,
}

struct Model {
    pods: Pods,
    sessions: Vec<Session>,
    wards: Vec<Ward>,
    dice: Random,
}

impl Model {
    fn new(seed: u64) -> Self {
        let (pods, mut dice) = (Pods::new(12), Random(seed));
        let owners: Vec<_> = pods.users.iter().map(Space::session).collect();
        let mut ward = |n: usize| {
            let sizes = [64, 300, 5000, 20_000].into_iter().take(2 + dice.index(3));
            let things = sizes.map(|len| Thing {
                address: owners[dice.index(2)].alloc(len).expect("room"),
                bytes: vec![0; len as usize],
            });
            Ward {
                lock: owners[n % 2].new_lock().expect("room"),
                things: things.collect(),
                readers: Vec::new(),
                writer: None,
                is_broken: false,
                unsure: Vec::new(),
            }
        };
        let wards = (0..4).map(&mut ward).collect();
        let sessions = (0..4).map(|n| pods.users[n % 2].session()).collect();
        Self {
            pods,
            sessions,
            wards,
            dice,
        }
    }

    fn step(&mut self) {
        let (n, session_index) = (self.dice.index(4), self.dice.index(4));
        match self.dice.index(32) {
            0..8 => self.take(n, session_index),
            8..16 => self.read(n),
            16..24 => self.write(n),
            24..29 => self.leave(n),
            29 => self.sync(n),
            30 => self.move_something(n),
            _ if self.dice.index(4) == 0 => self.kill(session_index),
            _ => {
                let bytes = [0, 10_000, 1 << 20][self.dice.index(3)];
                self.pods.users[session_index % 2].limit_cache(bytes);
            }
        }
    }

    fn take(&mut self, n: usize, session_index: usize) {
        let ward = &mut self.wards[n];
        if ward.writer == Some(session_index) || ward.readers.contains(&session_index) {
            return;
        }
        let mode = [Mode::Read, Mode::Read, Mode::Write][self.dice.index(3)];
        let is_free = ward.writer.is_none() && (ward.readers.is_empty() || mode == Mode::Read && !ward.is_broken);
        match self.sessions[session_index].acquire(ward.lock, mode, Timeout::None) {
            Ok(held) => {
                assert!(is_free, "{mode:?}: it is not free");
                assert_eq!(held.owner_died, ward.is_broken);
                assert_eq!(held.mode, if ward.is_broken { Mode::Write } else { mode });
                match held.mode {
                    Mode::Read => ward.readers.push(session_index),
                    Mode::Write => ward.writer = Some(session_index),
                }
                if held.owner_died {
                    self.repair(n, session_index);
                }
            }
            Err(Error::Timeout(_)) => assert!(!is_free, "{mode:?}: it is free"),
            Err(error) => panic!("{error}"),
        }
    }

    /// What the dead writer left is what it was after some of its writes, in their order.
    fn repair(&mut self, n: usize, session_index: usize) {
        let ward = &mut self.wards[n];
        let there: Vec<Vec<u8>> = ward
            .things
            .iter()
            .map(|thing| {
                let mut bytes = vec![0; thing.bytes.len()];
                self.sessions[session_index]
                    .read_locked(ward.lock, thing.address, &mut bytes)
                    .expect("read");
                bytes
            })
            .collect();
        let is_it = |ward: &Ward| {
            ward.things
                .iter()
                .zip(&there)
                .all(|(thing, bytes)| thing.bytes == *bytes)
        };
        while !is_it(ward) {
            let last = ward.unsure.pop();
            let (which, from, _, before) = last.expect("some beginning of what was written is there");
            ward.things[which].bytes[from..from + before.len()].copy_from_slice(&before);
        }
        ward.unsure.clear();
        ward.is_broken = false;
    }

    fn holder(&mut self, n: usize) -> Option<usize> {
        let ward = &self.wards[n];
        let readers = ward.readers.len();
        match ward.writer {
            None if readers > 0 => Some(ward.readers[self.dice.index(readers)]),
            writer => writer,
        }
    }

    fn read(&mut self, n: usize) {
        let Some(session_index) = self.holder(n) else { return };
        let ward = &self.wards[n];
        let thing = &ward.things[self.dice.index(ward.things.len())];
        let from = self.dice.index(thing.bytes.len());
        let len = (1 + self.dice.index(6000)).min(thing.bytes.len() - from);
        let mut bytes = vec![0; len];
        self.sessions[session_index]
            .read_locked(ward.lock, at(thing.address, from), &mut bytes)
            .expect("read");
        assert!(bytes == thing.bytes[from..from + len], "lock {n}: not what it protects");
    }

    fn write(&mut self, n: usize) {
        let Some(session_index) = self.wards[n].writer else {
            return;
        };
        for _ in 0..1 + self.dice.index(40) {
            let ward = &mut self.wards[n];
            let which = self.dice.index(ward.things.len());
            let thing = &mut ward.things[which];
            let from = self.dice.index(thing.bytes.len());
            let len = [1, 8, 64, 256, 257, 3000][self.dice.index(6)].min(thing.bytes.len() - from);
            let text = vec![self.dice.index(256) as u8; len];
            self.sessions[session_index]
                .write_locked(ward.lock, at(thing.address, from), &text)
                .expect("written");
            let before = thing.bytes[from..from + len].to_vec();
            thing.bytes[from..from + len].copy_from_slice(&text);
            ward.unsure.push((which, from, text, before));
        }
    }

    fn sync(&mut self, n: usize) {
        let ward = &mut self.wards[n];
        if let Some(session_index) = ward.writer {
            self.sessions[session_index].sync_locked(ward.lock).expect("written");
            ward.unsure.clear();
        }
    }

    fn leave(&mut self, n: usize) {
        let Some(session_index) = self.holder(n) else { return };
        let (ward, session) = (&mut self.wards[n], &self.sessions[session_index]);
        if ward.writer.is_none() {
            session.unlock(ward.lock, Mode::Read).expect("held");
            ward.readers.retain(|reader| *reader != session_index);
            return;
        }
        ward.writer = None;
        if self.dice.index(8) == 0 {
            session.leave_broken(ward.lock).expect("held");
            ward.is_broken = true;
        } else {
            session.unlock(ward.lock, Mode::Write).expect("held");
            ward.unsure.clear();
        }
    }

    fn move_something(&mut self, n: usize) {
        let ward = &self.wards[n];
        let which = self.dice.index(1 + ward.things.len());
        let address = ward.things.get(which).map_or(ward.lock, |thing| thing.address);
        let _ = self.pods.relocate(address, 1 + self.dice.index(2) as u8);
    }

    fn kill(&mut self, session_index: usize) {
        self.pods.kill(&self.sessions[session_index]);
        self.sessions[session_index] = self.pods.users[session_index % 2].session();
        for ward in &mut self.wards {
            ward.readers.retain(|reader| *reader != session_index);
            if ward.writer == Some(session_index) {
                (ward.writer, ward.is_broken) = (None, true);
            }
        }
    }

    fn end(mut self) {
        for n in 0..self.wards.len() {
            while self.wards[n].writer.is_some() || !self.wards[n].readers.is_empty() {
                self.leave(n);
            }
            if self.wards[n].is_broken {
                self.take(n, 0);
                self.leave(n);
            }
            if self.wards[n].is_broken {
                continue;
            }
            for (thing, user) in self.wards[n].things.iter().flat_map(|thing| [(thing, 0), (thing, 1)]) {
                let bytes = bytes_of(&self.pods.users[user], thing.address, thing.bytes.len());
                assert!(bytes == thing.bytes, "lock {n}: at the end");
            }
        }
        for host in &self.pods.hosts {
            assert_eq!(host.keeper().audit().expect("an audit"), Vec::<String>::new());
        }
    }
}

fn random_life(seed: u64, steps: usize) {
    let mut model = Model::new(seed);
    (0..steps).for_each(|_| model.step());
    model.end();
}

/// Everything at random, against a model.
#[test]
fn what_is_read_and_written_under_locks_is_what_they_protect() {
    let seed = seed();
    for round in 0..40 {
        random_life(seed.wrapping_add(round), 600);
    }
}

/// The system's runtime, but one under which faults can be planted.
struct Planting;

impl Runtime for Planting {
    fn access(&self, _: usize, _: u32, _: Access) {}
    fn now(&self) -> Nanos {
        rt::os::now()
    }
    fn wall_micros(&self) -> i64 {
        rt::os::wall_micros()
    }
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Join>> {
        rt::os::spawn(name, body)
    }
    /// The hosts' threads run under the system's runtime and wake no thread of this one, so a sleep is short, and a
    /// waker is made up.
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
        let turn = Nanos::from_millis(1);
        match timeout {
            Some(timeout) if timeout <= turn => rt::os::wait(word, expected, Some(timeout)),
            _ => match rt::os::wait(word, expected, Some(turn)) {
                Wait::TimedOut => Wait::Woken,
                other => other,
            },
        }
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

/// Rules broken on purpose: the model notices.
#[test]
fn planted_faults_are_found() {
    let seed = seed();
    let goes_wrong =
        |round: u64| catch_unwind(AssertUnwindSafe(|| random_life(seed.wrapping_add(round), 600))).is_err();
    rt::enter(&Planting, || {
        assert!(!goes_wrong(0), "nothing is broken");
        for fault in [Fault::StaleCache, Fault::LostFlush] {
            let _planted = fault::plant(fault);
            assert!((0..20).any(goes_wrong), "{}: not found", fault.name());
        }
    });
}
