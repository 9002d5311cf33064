//! A member of the store: a process with some threads that do with it what there is to do, and check what they are
//! told.
//!
//! Faults excuse what they can have caused: that nothing is answered ([`is_trouble`]) where ways are cut, that there is
//! no room where it is short, that a fenced member is refused. They excuse no value.

use cenote_base::random::Random;
use std::cell::Cell;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;
use cenote_store::{Borrow, Completion, Outcome, Put, Queue, Request, Store};

use super::keys::{name, value};
use super::stage::Stage;
use crate::clock;
use crate::worlds::pool::keeper_service;
use crate::worlds::pool::members::Mark;
use crate::worlds::pool::processes::Processes;

/// A member that was fenced gives up after so many refusals.
const REFUSED_MOST: u32 = 4;
/// How long a borrower keeps a value, and a filler its room.
const HOLDS: Nanos = Nanos::from_micros(300);
/// How long a batch that was submitted is waited for.
const BATCH_MOST: Nanos = Nanos::from_secs(60);
/// A member that cannot come to be one tries again so often.
const TRIES: u32 = 20;

/// Makes the store, from pod 0, where nothing goes wrong yet.
pub(super) fn found(stage: &Arc<Stage>, cast: &mut Processes<'_>) -> bool {
    let theirs = Arc::clone(stage);
    cast.start(0, "founder", move |pool, mark| {
        let made = keeper_service::open(pool, 0, mark).and_then(|space| Store::create(&space, theirs.options));
        match made {
            Ok(store) => _ = theirs.root.set(store.address()),
            Err(error) => theirs.fail(format!("making the store: {error}")),
        }
    });
    cast.await_users("the store is made", Nanos::from_secs(60)) && !stage.pool.shared.has_failed()
}

/// Errors of what cannot be reached, or not in time.
pub(super) fn is_trouble(error: &Error) -> bool {
    matches!(error, Error::Lost(_) | Error::Timeout(_) | Error::Busy(_))
}

/// The store as a process on a host has it.
pub(super) fn open(stage: &Arc<Stage>, host: usize, mark: Mark) -> Result<Store> {
    let space = keeper_service::open(&stage.pool, host, mark)?;
    let root = stage.root.get().copied().unwrap_or(GlobalAddress::NULL);
    Store::open_at(&space, root, stage.options)
}

/// The body of a member's process.
pub(super) fn run(stage: &Arc<Stage>, host: usize, mark: Mark, threads: usize) {
    let Some(store) = join(stage, host, mark) else { return };
    let start = |_| {
        let (stage, store) = (Arc::clone(stage), store.clone());
        rt::spawn("member", move || Thread::new(&stage, &store, mark).work())
    };
    let threads: Vec<_> = (0..threads).map(start).collect();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn join(stage: &Arc<Stage>, host: usize, mark: Mark) -> Option<Store> {
    for _ in 0..TRIES {
        match open(stage, host, mark) {
            Ok(store) => return Some(store),
            Err(error) if stage.wild && is_trouble(&error) => {}
            Err(Error::Revoked(_)) if stage.pool.members().lock().is_fenced(mark) => return None,
            Err(error) => {
                stage.fail(format!("a member on host {host}: {error}"));
                return None;
            }
        }
        rt::sleep(Nanos::from_millis(1));
    }
    None
}

struct Thread<'s> {
    stage: &'s Stage,
    store: &'s Store,
    mark: Mark,
    draw: Random,
    /// Answers that said that this member was fenced.
    refused: Cell<u32>,
}

impl<'s> Thread<'s> {
    fn new(stage: &'s Stage, store: &'s Store, mark: Mark) -> Self {
        Self {
            stage,
            store,
            mark,
            draw: Random(rt::random()),
            refused: Cell::new(0),
        }
    }

    fn work(&mut self) {
        while self.refused.get() < REFUSED_MOST && self.stage.pool.take_turn() {
            let key = self.any_key();
            match self.draw.below(26) {
                0..5 => self.put(key),
                5 => self.put_several(),
                6 | 7 => self.fill_in_place(key),
                8..14 => self.get(key),
                14 | 15 => self.get_several(),
                16..20 => self.lend(key),
                20 | 21 => self.look(),
                22 if self.draw.one_in(2) => self.remove(key),
                23 => self.submit(),
                24 if self.draw.one_in(4) => _ = self.told("a sweep", self.store.sweep()),
                _ => rt::sleep(Nanos(self.draw.below(30_000))),
            }
        }
    }

    fn any_key(&mut self) -> usize {
        let keys = self.stage.model.lock().keys();
        self.draw.below(keys as u64) as usize
    }

    fn any_length(&mut self) -> usize {
        self.draw.pick(&self.stage.lengths)
    }

    // ---- what is told ----

    fn wrong(&self, wrong: impl IntoIterator<Item = String>) {
        wrong.into_iter().for_each(|wrong| self.stage.fail(wrong));
    }

    /// The answer; `None` if there was none, which faults may excuse.
    fn told<T>(&self, what: &str, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let is_excused = match &error {
            Error::Busy(_) => true,
            error if is_trouble(error) => self.stage.wild,
            Error::Full(_) => self.stage.tight,
            Error::Revoked(_) if self.stage.pool.members().lock().is_fenced(self.mark) => {
                self.refused.set(self.refused.get() + 1);
                true
            }
            _ => false,
        };
        match is_excused {
            true => self.stage.count("operations without an answer"),
            false => self.stage.fail(format!("{what}: {error}")),
        }
        None
    }

    // ---- puts and removals ----

    fn begin_put(&mut self, key: usize) -> (u64, Vec<u8>) {
        let len = self.any_length();
        let stamp = self.stage.model.lock().begin_put(key, len);
        (stamp, value(stamp, len))
    }

    fn end_put(&self, stamp: u64, put: Result<Put>) {
        if let Some(put) = self.told("a put", put) {
            let wrong = self.stage.model.lock().end_put(stamp, put);
            self.wrong(wrong);
        }
    }

    fn put(&mut self, key: usize) {
        let (stamp, value) = self.begin_put(key);
        let options = self.stage.model.lock().kind(key).options();
        self.end_put(stamp, self.store.put(&name(key), &value, options));
    }

    /// A batch, of keys that are put alike.
    fn put_several(&mut self) {
        let options = Default::default();
        let keys: Vec<usize> = (0..3).map(|_| self.any_key()).collect();
        let is_alike = |key: &usize| self.stage.model.lock().kind(*key).options() == options;
        let keys: Vec<usize> = keys.into_iter().filter(is_alike).collect();
        let values: Vec<_> = keys.iter().map(|key| self.begin_put(*key)).collect();
        let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
        let pairs = names
            .iter()
            .zip(&values)
            .map(|(name, (_, value))| (&name[..], &value[..]));
        let puts = self.store.put_many(pairs, options);
        (values.into_iter().zip(puts)).for_each(|((stamp, _), put)| self.end_put(stamp, put));
    }

    /// Room that is filled where it lies, in pieces, and published; or given back.
    fn fill_in_place(&mut self, key: usize) {
        let (stamp, value) = self.begin_put(key);
        let options = self.stage.model.lock().kind(key).options();
        let room = self.store.alloc(&name(key), value.len() as u64, options);
        let Some(room) = self.told("room", room) else { return };
        for (n, piece) in value.chunks(9_000).enumerate() {
            if self.told("filling", room.write(n as u64 * 9_000, piece)).is_none() {
                return;
            }
        }
        rt::sleep(Nanos(self.draw.below(HOLDS.raw())));
        if self.draw.one_in(6) {
            self.stage.count("values given back, not published");
            return;
        }
        self.end_put(stamp, room.publish());
    }

    fn remove(&self, key: usize) {
        let removal = self.stage.model.lock().begin_remove(key);
        if self.told("a removal", self.store.remove(&name(key))).is_some() {
            self.stage.model.lock().end_remove(key, removal);
        }
    }

    // ---- reads ----

    fn get(&self, key: usize) {
        let look = Look::begin(self, key);
        let got = self.store.get_versioned(&name(key));
        if let Some(got) = self.told("a get", got) {
            look.end(got.as_ref().map(|(bytes, version)| (&bytes[..], *version)));
        }
    }

    fn get_several(&mut self) {
        let keys: Vec<usize> = (0..4).map(|_| self.any_key()).collect();
        let looks: Vec<_> = keys.iter().map(|key| Look::begin(self, *key)).collect();
        let most = self.stage.lengths.into_iter().max().unwrap_or(0);
        let (mut rooms, names) = (vec![vec![0; most]; keys.len()], keys.iter().map(|key| name(*key)));
        let names: Vec<_> = names.collect();
        let pairs = names
            .iter()
            .zip(&mut rooms)
            .map(|(name, room)| (&name[..], &mut room[..]));
        let got = self.store.get_many_into(pairs);
        for ((look, got), room) in looks.into_iter().zip(got).zip(&rooms) {
            if let Some(got) = self.told("a get", got) {
                look.end(got.map(|value| (&room[..value.len as usize], value.version)));
            }
        }
    }

    /// A value in place: its bytes hold to the end, or the end says that they did not.
    fn lend(&mut self, key: usize) {
        let time = Nanos(self.draw.below(HOLDS.raw()));
        let look = Look::begin(self, key);
        let lent = self.store.borrow(&name(key));
        let Some(lent) = self.told("a borrow", lent) else {
            return;
        };
        let Some(lent) = lent else { return look.end(None) };
        let version = lent.pin().value().version;
        let first = self.bytes_of(&lent);
        rt::sleep(time);
        let last = self.bytes_of(&lent);
        let Some(true) = self.told("the end of a borrow", lent.end()) else {
            self.stage.count("borrows that did not hold");
            return;
        };
        self.stage.count("borrows that held");
        // As it was when it began: it may have been replaced meanwhile.
        if let Some(first) = first {
            look.end(Some((&first, version)));
            if last.is_some_and(|last| last != first) {
                self.stage.fail(format!(
                    "key {key}: a lent value has changed, and its end says that it held"
                ));
            }
        }
    }

    fn bytes_of(&self, lent: &Borrow) -> Option<Vec<u8>> {
        let mut bytes = vec![0; lent.pin().value().len as usize];
        let read = lent.read(0, &mut bytes);
        // Of one whose pin another has ended anything may have come to lie there.
        if matches!(read, Err(Error::Invalid(_) | Error::OutOfBounds(_))) {
            return None;
        }
        self.told("reading what is lent", read).map(|()| bytes)
    }

    fn look(&mut self) {
        let keys: Vec<usize> = (0..5).map(|_| self.any_key()).collect();
        let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
        let pins = self.draw.one_in(2);
        let looks: Vec<_> = keys.iter().map(|key| Look::begin(self, *key)).collect();
        let presence = self.store.exists(names.iter().map(|name| &name[..]), pins);
        let Some(presence) = self.told("a look", presence) else {
            return;
        };
        for (look, found) in looks.into_iter().zip(&presence.found) {
            look.end_of(*found);
        }
        let prefix = presence.found.iter().take_while(|found| **found).count();
        if prefix != presence.prefix || pins && presence.pins.len() != presence.found.iter().filter(|f| **f).count() {
            self.stage.fail(format!(
                "of {:?} a prefix of {} is said to be there, with {} pins",
                presence.found,
                presence.prefix,
                presence.pins.len()
            ));
        }
        rt::sleep(Nanos(self.draw.below(HOLDS.raw())));
    }

    // ---- without waiting ----

    /// A batch by the copy threads.
    fn submit(&mut self) {
        let queue = match Queue::<Vec<u8>>::new(self.store, 2) {
            Ok(queue) => queue,
            Err(error) => return self.stage.fail(format!("a queue: {error}")),
        };
        let (key, other) = (self.any_key(), self.any_key());
        let (stamp, value) = self.begin_put(key);
        let options = self.stage.model.lock().kind(key).options();
        let look = Look::begin(self, other);
        let most = self.stage.lengths.into_iter().max().unwrap_or(0);
        let requests = vec![
            (name(key), Request::Put(value, options)),
            (name(other), Request::Get(vec![0; most])),
            (name(other), Request::Exists(false)),
        ];
        let Some(id) = self.told("a batch", queue.submit(requests)) else {
            return;
        };
        let (until, mut done) = (rt::now() + BATCH_MOST, Vec::new());
        while done.is_empty() && rt::now() < until {
            rt::sleep(Nanos::from_micros(20));
            done = queue.drain();
        }
        match done.pop() {
            Some(completion) if completion.id == id => self.completed(stamp, &look, completion),
            _ => self.stage.fail(format!("batch {id} is not done within {BATCH_MOST}")),
        }
    }

    fn completed(&self, stamp: u64, look: &Look<'_, '_>, completion: Completion) {
        for (_, outcome) in completion.outcomes {
            match outcome {
                Outcome::Put(put) => self.end_put(stamp, Ok(put)),
                // The buffer went with it: that it is there, and how long, is told.
                Outcome::Got(got) => look.end_of(got.is_some()),
                Outcome::Exists(found, _) => look.end_of(found),
                Outcome::Removed(_) => {}
                Outcome::Failed(error) => _ = self.told("of a batch", Err::<(), _>(error)),
            }
        }
    }
}

/// A look at a key, from its beginning on.
struct Look<'t, 's> {
    thread: &'t Thread<'s>,
    key: usize,
    begun: u64,
    at: Nanos,
    /// What this process had missed as it was lost or damaged.
    lost: (u64, u64),
}

impl<'t, 's> Look<'t, 's> {
    fn begin(thread: &'t Thread<'s>, key: usize) -> Self {
        // Its lock is not held while counters are read, which are preemption points.
        let begun = thread.stage.model.lock().event();
        Self {
            thread,
            key,
            begun,
            at: clock::now(),
            lost: missed(thread.store),
        }
    }

    /// What was there, if anything.
    fn end(&self, found: Option<(&[u8], u64)>) {
        let stage = self.thread.stage;
        self.end_of(found.is_some());
        let Some((bytes, version)) = found else { return };
        let (wrong, is_late) = {
            let mut model = stage.model.lock();
            let wrong = model.saw(self.key, self.begun, bytes, version);
            (wrong, model.has_lapsed(bytes, self.at))
        };
        self.thread.wrong(wrong);
        if is_late {
            stage.fail(format!("key {}: a value was read that had lapsed", self.key));
        }
    }

    /// Whether something was there.
    fn end_of(&self, found: bool) {
        let (stage, key) = (self.thread.stage, self.key);
        let (must, may) = {
            let model = stage.model.lock();
            (model.must_be_there(key, self.begun), model.may_be_there(key))
        };
        if found && !may {
            stage.fail(format!("key {key} is there, and was never put"));
        }
        if must {
            stage.count("looks at what should be there");
            stage.count(if found {
                "hits of what should be there"
            } else {
                "misses of what should be there"
            });
        }
        let (_, damaged) = missed(self.thread.store);
        if damaged != self.lost.1 {
            stage.fail(format!("key {key}: a linked value is not what its checksum says"));
        }
        if must && !found && stage.is_sure() && !self.has_evicted() {
            stage.fail(format!("key {key} is not there, and nothing has removed it"));
        }
    }

    /// A space without extents for a size takes what it needs.
    fn has_evicted(&self) -> bool {
        self.thread.store.stats().map_or(true, |stats| stats.evicted > 0)
    }
}

/// Lost and damaged values that this process has met.
fn missed(store: &Store) -> (u64, u64) {
    store.missed()
}
