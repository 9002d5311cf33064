//! A user of the space: it allocates, writes, changes words, locks and frees, and compares what it reads.
//!
//! Errors of a keeper that does not answer leave it unknown whether something was done; nothing excuses that what was
//! acknowledged is not there.

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Guard, LOCK_BYTES, Mode, Session, Space};

use super::service;
use super::stage::Stage;
use crate::check::words::{Kind, What};
use crate::worlds::pool::model::{Own, Text, Word, bytes_of};

/// How long a lock is waited for before something else is done.
const LOCK_TIMEOUT: Nanos = Nanos::from_millis(50);
/// Microseconds of a user's rest, at most: time passes while a mirror is sought.
const REST_MOST: u64 = 20_000;
/// Objects that a user has of its own, at most.
const OWN_MOST: usize = 8;
/// Bytes of a write that its lock collects; longer ones are written at once.
const COLLECTED_MOST: usize = 256;
/// Of few classes: each session has an extent for each.
const SIZES: [u64; 2] = [64, 3_000];
const TEXT_SIZES: [usize; 2] = [64, 3_000];
const WORDS: usize = 4;
const TEXTS: usize = 3;
/// Tries of what has to be done, where nothing goes wrong but that answers are late.
const TRIES: u32 = 100;
/// Tries to have it settled what a session has given up, before it ends.
const SETTLES: u32 = 50;

/// Lays out what all users share; nothing goes wrong meanwhile.
pub(super) fn found(stage: &Arc<Stage>, mut draw: Random) {
    let mut lay_out = || -> Result<()> {
        let space = service::open(stage)?;
        let session = space.session();
        let alloc = |len: u64| -> Result<GlobalAddress> {
            let at = again(|| {
                stage.model.lock().begin_alloc();
                session.alloc(len)
            })?;
            let wrong = stage.model.lock().allocated(at, len);
            wrong.into_iter().for_each(|wrong| stage.shared.fail(wrong));
            Ok(at)
        };
        for _ in 0..WORDS {
            let kind = draw.pick(&[Kind::Counter, Kind::Chain, Kind::Register]);
            let (at, ops) = (alloc(64)?, Vec::new());
            stage.model.lock().words.push(Word { at, kind, ops });
        }
        for _ in 0..TEXTS {
            let (lock, len) = (alloc(LOCK_BYTES)?, draw.pick(&TEXT_SIZES));
            again(|| session.make_lock(lock))?;
            let (at, version) = (alloc(len as u64)?, stage.new_value());
            again(|| space.write(at, &bytes_of(version, len)))?;
            stage.model.lock().texts.push(Text { lock, at, len, version });
        }
        // A keeper that does not hear of it does so by itself.
        session.close().or(Ok(()))
    };
    if let Err(error) = lay_out() {
        stage.shared.fail(format!("laying out: {error}"));
    }
}

/// That a keeper does not answer, or not in time.
fn is_trouble(error: &Error) -> bool {
    matches!(error, Error::Lost(_) | Error::Timeout(_) | Error::Busy(_))
}

/// Does it until a keeper answers: time may jump, and a call be over before it is served.
pub(super) fn again<T>(mut act: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        match act() {
            Err(error) if is_trouble(&error) && tries < TRIES => tries += 1,
            result => return result,
        }
        // One that was not reached is not tried again for a second.
        rt::sleep(Nanos::from_millis(50));
    }
}

/// The body of a process of users.
pub(super) fn run(stage: &Arc<Stage>, threads: usize) {
    let space = match service::open(stage) {
        Ok(space) => space,
        Err(error) => return stage.shared.fail(format!("a user: {error}")),
    };
    let start = |_| {
        let (stage, space) = (Arc::clone(stage), space.clone());
        rt::spawn("user", move || User::new(&stage, &space).work())
    };
    let users: Vec<_> = (0..threads).map(start).collect();
    for user in users {
        if let Err(panic) = user.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

struct User<'s> {
    stage: &'s Stage,
    space: &'s Space,
    session: Session,
    number: usize,
    draw: Random,
    own: Vec<GlobalAddress>,
}

impl<'s> User<'s> {
    fn new(stage: &'s Stage, space: &'s Space) -> Self {
        Self {
            stage,
            space,
            session: space.session(),
            number: stage.new_thread(),
            draw: Random(rt::random()),
            own: Vec::new(),
        }
    }

    fn work(&mut self) {
        while self.stage.take_turn() {
            match self.draw.below(100) {
                0..25 => self.change_word(),
                25..55 => self.use_text(),
                55..65 => self.allocate(),
                65..83 => self.write_own(),
                83..93 => self.read_own(),
                _ => self.free_own(),
            }
            if self.draw.one_in(16) {
                rt::sleep(Nanos::from_micros(self.draw.below(REST_MOST)));
            }
        }
        self.renew();
    }

    fn fail(&self, what: &str, at: GlobalAddress, why: impl std::fmt::Display) {
        let number = self.number;
        self.stage.shared.fail(format!("user {number}: {what} at {at}: {why}"));
    }

    /// What came of it; an error that nothing excuses is a failure.
    fn told<T>(&self, what: &str, at: GlobalAddress, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.stage.shared.count("operations with an answer");
                Some(value)
            }
            Err(error) if is_trouble(&error) => {
                self.stage.shared.count("operations without an answer");
                // A keeper that was not reached is not tried again for a second.
                rt::sleep(Nanos::from_millis(5));
                None
            }
            Err(error) => {
                self.fail(what, at, error);
                None
            }
        }
    }

    /// A new session, which knows nothing of what the old one may hold.
    fn renew(&mut self) {
        self.stage.shared.count("sessions given up");
        let old = std::mem::replace(&mut self.session, self.space.session());
        let is_settled = || self.space.far_parts().all(|far| far.channel.settle().is_ok());
        for _ in 0..SETTLES {
            if is_settled() {
                break;
            }
            rt::sleep(Nanos::from_millis(1));
        }
        if old.close().is_err() {
            // What it has given up may come yet: its locks stay.
            self.stage.shared.count("sessions that could not end");
        }
    }

    // ---- words ----

    fn change_word(&mut self) {
        let word = self.draw.below(WORDS as u64) as usize;
        let (at, kind) = {
            let model = self.stage.model.lock();
            (model.words[word].at, model.words[word].kind)
        };
        let saw = self.on_word(word, at, self.change(kind, 0));
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
        let text = self.draw.below(TEXTS as u64) as usize;
        let mode = if self.draw.one_in(3) { Mode::Read } else { Mode::Write };
        if !self.under_lock(text, mode) {
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
        let guard = match self.session.lock_within(lock, mode, LOCK_TIMEOUT) {
            // Another has it.
            Err(Error::Busy(_)) => return true,
            guard => self.told("a lock", lock, guard),
        };
        let Some(guard) = guard else { return false };
        let channel = by_lock.then_some(&guard);
        if guard.owner_died() {
            self.stage.shared.count("locks of sessions that were given up");
        }
        let mut is_right = guard.owner_died() || self.read_text(text, channel);
        let is_writer = guard.mode() == Mode::Write;
        if is_writer && is_right {
            is_right = self.write_text(text, pieces, channel);
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
        self.stage.shared.count("texts compared under their locks");
        if found != bytes_of(known.version, known.len) {
            let what = format!("under the lock {}: a text", known.lock);
            self.fail(&what, known.at, format!("it is not version {}", known.version));
        }
        true
    }

    fn write_text(&self, text: usize, pieces: usize, by: Option<&Guard<'_>>) -> bool {
        let (known, version) = (self.stage.model.lock().texts[text], self.stage.new_value());
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
        self.stage.model.lock().texts[text].version = version;
        true
    }

    // ---- objects of its own ----

    fn allocate(&mut self) {
        if self.own.len() >= OWN_MOST {
            return;
        }
        let len = self.draw.pick(&SIZES);
        self.stage.model.lock().begin_alloc();
        let at = match self.session.alloc(len) {
            Err(Error::Full(_)) => {
                self.stage.shared.count("allocations without room");
                return self.stage.model.lock().not_allocated();
            }
            allocated => match self.told("allocating", GlobalAddress::NULL, allocated) {
                Some(at) => at,
                None => return,
            },
        };
        let wrong = self.stage.model.lock().allocated(at, len);
        wrong.into_iter().for_each(|wrong| self.fail("allocating", at, wrong));
        let own = Own {
            at,
            bytes: vec![0; len as usize],
            pending: Vec::new(),
        };
        self.stage.model.lock().own.insert(at, own);
        self.own.push(at);
        self.check_own(at);
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
            let wrong = {
                let model = self.stage.model.lock();
                let own = model.own.get(&at).filter(|own| !own.fits(&found));
                own.map(|own| own.first_wrong(&found))
            };
            wrong.into_iter().for_each(|wrong| self.fail("reading", at, wrong));
        }
    }

    fn write_own(&mut self) {
        let Some(at) = self.any_own() else { return };
        let len = self.stage.model.lock().own.get(&at).map_or(1, |own| own.bytes.len());
        let place = self.draw.below(len as u64) as usize;
        let bytes = bytes_of(
            self.stage.new_value(),
            1 + self.draw.below((len - place) as u64) as usize,
        );
        self.stage.model.lock().begin_write(at, place, &bytes);
        let to = at.checked_add(place as u64).unwrap_or(GlobalAddress::NULL);
        let written = self.space.write(to, &bytes);
        if self.told("writing", to, written).is_some() {
            self.stage.model.lock().end_write(at);
        }
    }

    fn free_own(&mut self) {
        let Some(at) = self.any_own() else { return };
        self.own.retain(|other| *other != at);
        {
            let mut model = self.stage.model.lock();
            model.begin_free(at);
            // Until the answer comes.
            model.unknown += 1;
        }
        let freed = self.session.free(at);
        if self.told("freeing", at, freed).is_some() {
            self.stage.model.lock().unknown -= 1;
        }
    }
}
