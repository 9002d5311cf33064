//! A user of the space: a process with some threads, each with a session, that allocate, write, read, change words,
//! lock and free.
//!
//! Faults excuse what cannot be reached: errors of the kinds that [`is_trouble`] names, after which it is unknown
//! whether something was done. They never excuse that an object is not there, or holds something else.

use cenote_base::random::Random;
use std::cell::Cell;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Guard, Lifetime, Mode, Read, Session, Space, Write};

use super::keeper_service;
use super::members::Mark;
use super::model::{Own, bytes_of};
use super::role::EXTENT;
use super::stage::{Stage, pod_of};
use crate::check::words::{Kind, What};

/// How long a lock is waited for before something else is done.
const LOCK_TIMEOUT: Nanos = Nanos::from_millis(250);
/// A member that was fenced gives up after so many refusals.
const REFUSED_MOST: u32 = 8;
/// Objects that a thread has of its own, at most.
const OWN_MOST: usize = 12;
/// Bytes of a write that its lock collects; longer ones are written at once.
const COLLECTED_MOST: usize = 256;
/// Addresses that a thread remembers to have freed.
const FREED_MOST: usize = 32;

/// Errors of a member that cannot be reached, or not in time.
pub(super) fn is_trouble(error: &Error) -> bool {
    matches!(error, Error::Lost(_) | Error::Timeout(_) | Error::Busy(_))
}

/// The body of a user's process.
pub(super) fn run(stage: &Arc<Stage>, pod: usize, mark: Mark, threads: usize) {
    let space = match keeper_service::open(stage, pod, mark) {
        Ok(space) => space,
        Err(error) => return stage.shared.fail(format!("a user in pod {pod}: {error}")),
    };
    let start = |_| {
        let (stage, space) = (Arc::clone(stage), space.clone());
        rt::spawn("user", move || Thread::new(&stage, &space, (pod, mark)).work())
    };
    let threads: Vec<_> = (0..threads).map(start).collect();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

struct Thread<'s> {
    stage: &'s Stage,
    pod: usize,
    mark: Mark,
    /// Answers that said that this member was fenced.
    refused: Cell<u32>,
    space: &'s Space,
    session: Session,
    number: usize,
    draw: Random,
    own: Vec<GlobalAddress>,
    freed: Vec<GlobalAddress>,
}

impl<'s> Thread<'s> {
    fn new(stage: &'s Stage, space: &'s Space, (pod, mark): (usize, Mark)) -> Self {
        Self {
            stage,
            pod,
            mark,
            refused: Cell::new(0),
            space,
            session: space.session(),
            number: stage.new_thread(),
            draw: Random(rt::random()),
            own: Vec::new(),
            freed: Vec::new(),
        }
    }

    fn work(&mut self) {
        while self.refused.get() < REFUSED_MOST && self.stage.take_turn() {
            match self.draw.below(100) {
                0..34 => self.change_word(),
                34..58 => self.use_text(),
                58..66 => self.allocate(),
                66..78 => self.write_own(),
                78..86 => self.read_own(),
                86..90 => self.many_of_own(),
                90..95 => self.free_own(),
                95..97 => self.scratch(),
                _ => self.look_at_freed(),
            }
        }
    }

    fn fail(&self, what: &str, at: GlobalAddress, why: impl std::fmt::Display) {
        self.stage
            .shared
            .fail(format!("session {}: {what} at {at}: {why}", self.number));
    }

    /// What came of it; an error that nothing excuses is a failure.
    fn told<T>(&self, what: &str, at: GlobalAddress, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if !self.is_excused(&error) {
                    self.fail(what, at, error);
                }
                None
            }
        }
    }

    /// Whether an error is of what befell this process.
    fn is_excused(&self, error: &Error) -> bool {
        if is_trouble(error) {
            self.stage.shared.count("operations without an answer");
            return true;
        }
        let is_refused = matches!(error, Error::Revoked(_)) && self.stage.members().lock().is_fenced(self.mark);
        if is_refused {
            self.stage.shared.count("operations of the fenced, refused");
            self.refused.set(self.refused.get() + 1);
        }
        is_refused
    }

    /// A new session, which knows nothing of what the old one may hold.
    fn renew(&mut self) {
        self.stage.shared.count("sessions given up");
        let old = std::mem::replace(&mut self.session, self.space.session());
        // If it is not heard of the keeper is told later.
        let _ = old.close();
    }

    // ---- words ----

    fn change_word(&mut self) {
        let (count, n) = (self.stage.model.lock().words.len(), self.draw.word());
        let Some(word) = n.checked_rem(count as u64).map(|n| n as usize) else {
            return;
        };
        let (at, kind) = {
            let model = self.stage.model.lock();
            (model.words[word].at, model.words[word].kind)
        };
        let is_load = self.draw.one_in(3);
        let saw = self.on_word(word, at, if is_load { What::Load } else { self.change(kind, 0) });
        // What was there is likely to be there still.
        if let (Kind::Chain, Some(saw)) = (kind, saw) {
            self.on_word(word, at, self.change(kind, saw));
        }
    }

    fn change(&self, kind: Kind, expected: u64) -> What {
        match kind {
            Kind::Counter => What::Add,
            Kind::Register => What::Store(self.stage.new_value()),
            Kind::Chain => What::Swap {
                expected,
                new: self.stage.new_value(),
            },
        }
    }

    fn on_word(&self, word: usize, at: GlobalAddress, what: What) -> Option<u64> {
        let op = self.stage.model.lock().begin_op(word, self.number, what);
        let saw = match what {
            What::Load => self.space.load(at),
            What::Add => self.space.fetch_add(at, 1),
            What::Swap { expected, new } => self.space.compare_and_swap(at, expected, new),
            What::Store(value) => self.space.store(at, value).map(|()| 0),
        };
        let saw = self.told("a word", at, saw)?;
        self.stage.model.lock().end_op(word, op, saw);
        Some(saw)
    }

    // ---- what locks protect ----

    fn use_text(&mut self) {
        let (count, n) = (self.stage.model.lock().texts.len(), self.draw.word());
        let Some(text) = n.checked_rem(count as u64).map(|n| n as usize) else {
            return;
        };
        let mode = if self.draw.one_in(2) { Mode::Write } else { Mode::Read };
        let is_whole = self.under_lock(text, mode);
        if !is_whole {
            // Its number may stand in the lock.
            self.renew();
        }
    }

    /// Whether all of it was answered.
    fn under_lock(&mut self, text: usize, mode: Mode) -> bool {
        let lock = self.stage.model.lock().texts[text].lock;
        // Half of them by what hangs on the lock: pages that are kept, writes that are collected.
        let by_lock = self.draw.one_in(2);
        let pieces = 1 + self.draw.below(3) as usize;
        let guard = self.session.lock_within(lock, mode, LOCK_TIMEOUT);
        let Some(guard) = self.told("a lock", lock, guard) else {
            return false;
        };
        let is_writer = guard.mode() == Mode::Write;
        let channel = by_lock.then_some(&guard);
        if guard.owner_died() {
            self.stage.shared.count("locks of the dead");
        }
        let mut is_right = guard.owner_died() || self.read_text(text, channel);
        if is_writer && is_right {
            let version = self.stage.new_value();
            is_right = self.write_text(text, version, pieces, channel);
        }
        let left = match is_right || !is_writer {
            true => guard.unlock(),
            false => guard.leave_broken(),
        };
        self.told("unlocking", lock, left).is_some() && is_right
    }

    fn read_text(&self, text: usize, by: Option<&Guard<'_>>) -> bool {
        let known = self.stage.model.lock().texts[text];
        let mut found = vec![0; known.len];
        let read = match by {
            Some(guard) => guard.read(known.at, &mut found),
            None => self.space.read(known.at, &mut found),
        };
        if self.told("reading a text", known.at, read).is_none() {
            return false;
        }
        // What it has of the pages of a lock that it has lost is of no version that others know.
        if found != bytes_of(known.version, known.len) && !self.has_lost_all() {
            let lock = known.lock;
            self.fail(
                &format!("under the lock {lock}: a text"),
                known.at,
                format!("it is not version {}", known.version),
            );
        }
        true
    }

    /// Whether the locks that this process had are others' by now: it cannot know.
    fn has_lost_all(&self) -> bool {
        self.stage.is_over(self.mark)
    }

    fn write_text(&self, text: usize, version: u64, pieces: usize, by: Option<&Guard<'_>>) -> bool {
        let known = self.stage.model.lock().texts[text];
        let bytes = bytes_of(version, known.len);
        let step = match by {
            Some(_) => bytes.len().div_ceil(pieces).min(COLLECTED_MOST),
            None => bytes.len().div_ceil(pieces),
        };
        for (n, piece) in bytes.chunks(step).enumerate() {
            let at = known.at.checked_add((n * step) as u64).unwrap_or(GlobalAddress::NULL);
            let written = match by {
                Some(guard) => guard.write(at, piece),
                None => self.space.write(at, piece),
            };
            if self.told("writing a text", at, written).is_none() {
                return false;
            }
        }
        if !self.has_lost_all() {
            self.stage.model.lock().texts[text].version = version;
        }
        true
    }

    // ---- objects of its own ----

    fn allocate(&mut self) {
        if self.own.len() >= OWN_MOST {
            return;
        }
        let len = match self.draw.below(24) {
            0 => EXTENT / 2 + self.draw.below(EXTENT),
            1..4 => 1 + self.draw.below(150_000),
            4..12 => 1 + self.draw.below(4096),
            _ => 1 + self.draw.below(200),
        };
        let Some(at) = self.alloc_in(len, Lifetime::Space) else {
            return;
        };
        let own = Own {
            at,
            bytes: vec![0; len as usize],
            pending: Vec::new(),
        };
        self.stage.model.lock().own.insert(at, own);
        self.own.push(at);
        self.check_own(at);
    }

    fn alloc_in(&self, len: u64, lifetime: Lifetime) -> Option<GlobalAddress> {
        self.stage.model.lock().begin_alloc();
        match self.session.alloc_in(len, lifetime) {
            Ok(at) => {
                let wrong = match lifetime {
                    Lifetime::Space => self.stage.model.lock().allocated(at, len),
                    // It goes with the session, whatever becomes of its user.
                    Lifetime::Session => self.stage.model.lock().allocated_for_a_while(at, len),
                };
                wrong.into_iter().for_each(|wrong| self.fail("allocating", at, wrong));
                if lifetime == Lifetime::Space {
                    self.stage.model.lock().unknown += self.asked_before(pod_of(at.part()));
                }
                Some(at)
            }
            Err(Error::Full(_)) => {
                self.stage.shared.count("allocations without room");
                self.stage.model.lock().not_allocated();
                None
            }
            Err(error) if self.is_excused(&error) => None,
            Err(error) => {
                self.fail("allocating", GlobalAddress::NULL, error);
                None
            }
        }
    }

    /// Other far pods that are asked for room before this one. One whose answer was lost may have left an object.
    fn asked_before(&self, answered: usize) -> u64 {
        match answered == self.pod {
            true => 0,
            false => (0..answered).filter(|pod| *pod != self.pod).count() as u64,
        }
    }

    fn any_own(&mut self) -> Option<GlobalAddress> {
        let n = self.draw.word().checked_rem(self.own.len() as u64)?;
        Some(self.own[n as usize])
    }

    fn read_own(&mut self) {
        if let Some(at) = self.any_own() {
            self.check_own(at);
        }
    }

    fn check_own(&self, at: GlobalAddress) {
        let len = self.stage.model.lock().own.get(&at).map_or(0, |own| own.bytes.len());
        let mut found = vec![0; len];
        let read = self.space.read(at, &mut found);
        if self.told("reading", at, read).is_some() {
            self.compare(at, &found);
        }
    }

    fn compare(&self, at: GlobalAddress, found: &[u8]) {
        let wrong = {
            let model = self.stage.model.lock();
            let own = model.own.get(&at).filter(|own| !own.fits(found));
            own.map(|own| own.first_wrong(found))
        };
        wrong.into_iter().for_each(|wrong| self.fail("reading", at, wrong));
    }

    fn piece_of(&mut self, at: GlobalAddress) -> (usize, Vec<u8>) {
        let len = self.stage.model.lock().own.get(&at).map_or(1, |own| own.bytes.len());
        let place = self.draw.below(len as u64) as usize;
        let most = (len - place).min(if self.draw.one_in(8) { 200_000 } else { 600 });
        let bytes = bytes_of(self.stage.new_value(), 1 + self.draw.below(most as u64) as usize);
        (place, bytes)
    }

    fn write_own(&mut self) {
        let Some(at) = self.any_own() else { return };
        let (place, bytes) = self.piece_of(at);
        self.stage.model.lock().begin_write(at, place, &bytes);
        let to = at.checked_add(place as u64).unwrap_or(GlobalAddress::NULL);
        let written = self.space.write(to, &bytes);
        if self.told("writing", to, written).is_some() {
            self.stage.model.lock().end_write(at);
        }
    }

    /// Several of them, with one message to each part.
    fn many_of_own(&mut self) {
        let some: Vec<GlobalAddress> = self.own.iter().copied().take(6).collect();
        if self.draw.one_in(2) {
            let len = |at: &GlobalAddress| self.stage.model.lock().own.get(at).map_or(0, |own| own.bytes.len());
            let mut found: Vec<Vec<u8>> = some.iter().map(|at| vec![0; len(at)]).collect();
            let place = |(at, into): (&GlobalAddress, _)| Read { address: *at, into };
            let mut reads: Vec<Read<'_>> = some
                .iter()
                .zip(found.iter_mut().map(Vec::as_mut_slice))
                .map(place)
                .collect();
            let read = self.space.read_many(&mut reads);
            if self
                .told("reading several, the first", GlobalAddress::NULL, read)
                .is_some()
            {
                (some.iter().zip(&found)).for_each(|(at, found)| self.compare(*at, found));
            }
            return;
        }
        let pieces: Vec<(usize, Vec<u8>)> = some.iter().map(|at| self.piece_of(*at)).collect();
        for (at, (place, bytes)) in some.iter().zip(&pieces) {
            self.stage.model.lock().begin_write(*at, *place, bytes);
        }
        let write = |(at, (place, from)): (&GlobalAddress, &'_ (usize, Vec<u8>))| {
            (
                at.checked_add(*place as u64).unwrap_or(GlobalAddress::NULL),
                from.clone(),
            )
        };
        let places: Vec<_> = some.iter().zip(&pieces).map(write).collect();
        let writes: Vec<Write<'_>> = places
            .iter()
            .map(|(address, from)| Write {
                address: *address,
                from,
            })
            .collect();
        let written = self.space.write_many(&writes);
        if self
            .told("writing several, the first", GlobalAddress::NULL, written)
            .is_some()
        {
            some.iter().for_each(|at| self.stage.model.lock().end_write(*at));
        }
    }

    fn free_own(&mut self) {
        let Some(at) = self.any_own() else { return };
        self.own.retain(|other| *other != at);
        self.free(at);
    }

    fn free(&mut self, at: GlobalAddress) {
        {
            let mut model = self.stage.model.lock();
            model.begin_free(at);
            // Until the answer comes.
            model.unknown += 1;
        }
        let freed = self.session.free(at);
        if self.told("freeing", at, freed).is_some() {
            self.stage.model.lock().unknown -= 1;
            self.freed.truncate(FREED_MOST);
            self.freed.insert(0, at);
        }
    }

    /// An object of the session, which goes with it if it is not freed.
    fn scratch(&mut self) {
        let Some(at) = self.alloc_in(64 + self.draw.clone().below(200), Lifetime::Session) else {
            return;
        };
        let stored = self.space.store(at, at.raw());
        self.told("scratch", at, stored);
        if self.draw.one_in(2) {
            let freed = self.session.free(at);
            self.told("freeing scratch", at, freed);
        } else {
            self.renew();
        }
    }

    /// What was freed is refused, unless another object may have got its place in the same extent, of the same
    /// generation.
    fn look_at_freed(&mut self) {
        let Some(n) = self.draw.word().checked_rem(self.freed.len() as u64) else {
            return;
        };
        let at = self.freed[n as usize];
        let quiet = |at| {
            let model = self.stage.model.lock();
            model.quiet().filter(|_| !model.is_allocated(at))
        };
        let is_past = self.stage.model.lock().is_past(at);
        let before = quiet(at);
        let found = self.space.load(at);
        let is_certain = is_past || before.is_some() && quiet(at) == before;
        self.stage
            .shared
            .add("freed objects of former generations", u64::from(is_past));
        match found {
            Ok(_) if is_certain => self.fail("what was freed", at, "it is still there"),
            Ok(_) => {}
            Err(Error::Invalid(_)) => self.stage.shared.count("freed objects refused"),
            Err(error) => _ = self.told("what was freed", at, Err::<(), _>(error)),
        }
    }
}
