//! A mirror on another machine, written by one-sided verbs: no code of that machine runs for it, but its provider's.
//!
//! ```text
//!   copy ──▶ gathered ── fence: one record, one doorbell ──▶ journal ── three quarters full: placed ──▶ mirror
//!            each line once        waits until it is there          in the background, then a slot says so
//! ```
//!
//! Threads that fence at once share a record: one of them *leads*, and sends what all have copied; the others wait for
//! it. What a record and its lines may be on their way in, and how a cut is recognised, is the
//! [journal](super::journal)'s business.
//!
//! Invariants:
//! 1. what a fence returned for is in the journal, or in its place, or the mirror was given up;
//! 2. one record is under way at a time, and one step of placing: the older lines are in their places before newer ones
//!    are posted;
//! 3. bounded: what is [gathered](super::gathered) by a record's size, what is not placed by the journal's, works by
//!    the endpoint's depth;
//! 4. an error of a work is the end: nothing more is posted or gathered. A mirror that counts as whole must be *void*
//!    in the book before commits go on, so every fence from then on waits for [`RemoteMirror::give_up`], also one that
//!    has nothing to send, and at most for the patience that the mirror was made with. One that does not count is given
//!    up at once. The thread that fills does not wait: it is the one that tells the book;
//! 5. a mirror that counts for nothing yet is filled in place, past the journal, by the thread that leads, so that
//!    nothing is placed meanwhile; and without lines that were placed since they were read for it, as those may be newer.
//!    One that counts is filled through the journal.

use super::Side;
use super::gathered::{Gathered, Turn};
use super::journal::{CAPACITY, RECORD_MAX, RECORDS_AT, SLOT, Slot, lines_of, place_after, record};
use super::lines::{Lines, bytes_of, latest, sorted, writes};
use crate::memory::RegionMemory;
use crate::rdma::{Posted, RemoteMemory, Work};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Condvar, Mutex, MutexGuard, Nanos};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;

/// Records are placed when so many bytes of the journal are used, as late as leaves room for what comes meanwhile: a
/// line that a later record has too is placed with that one. And so many at once.
const PLACE_FROM: u64 = CAPACITY / 4 * 3;
const PLACE_STEP: u64 = CAPACITY / 8;
// A step that takes no record would be taken again and again.
const _: () = assert!(RECORD_MAX <= PLACE_STEP, "the longest record is placed in one step");

/// What is told of a mirror that is lost.
pub type OnLost = Box<dyn Fn(&Error) + Send + Sync>;

/// How a mirror is used.
pub struct RemoteOptions {
    /// Whether it counts as whole from the beginning: what a former process left.
    pub believed: bool,
    /// How long a fence waits after a loss, until the mirror is given up.
    pub patience: Nanos,
    /// Called once, by the thread that finds out.
    pub on_lost: OnLost,
}

/// What went to a mirror so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteTraffic {
    /// Records.
    pub records: u64,
    /// Lines of them.
    pub lines: u64,
    /// Bytes of them.
    pub journal_bytes: u64,
    /// Bytes that were written in place.
    pub placed_bytes: u64,
}

/// See the module.
pub struct RemoteMirror {
    memory: RemoteMemory,
    journal: RemoteMemory,
    stream: u64,
    options: RemoteOptions,
    /// Copied, and in no record yet.
    gathered: Gathered,
    /// It is neither lost nor given up.
    is_used: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Empty, for what is gathered next.
    spare: Turn,
    /// To be filled in place.
    filling: Option<Lines>,
    /// A thread leads: it sends, or places, what others wait for.
    is_led: bool,
    /// The next record is on its way: what it has has left `gathered`.
    is_sent: bool,
    /// Records up to this one are there.
    there: u64,
    /// Where the next one goes.
    tail: u64,
    /// Those that are not placed, the oldest first.
    kept: VecDeque<Kept>,
    placing: Placing,
    /// Slots that were written: they take turns.
    slots: u64,
    /// The book may say that it is whole.
    counts: bool,
    lost: Option<Error>,
    given_up: bool,
    /// It was given up by patience: the book may call it whole, and it lacks what was flushed since.
    behind: bool,
    traffic: RemoteTraffic,
}

/// A record that is in the journal.
struct Kept {
    place: u64,
    record: Arc<Box<[u8]>>,
}

impl Kept {
    fn len(&self) -> u64 {
        self.record.len() as u64
    }
}

/// How far the oldest records have come, and how many of them.
enum Placing {
    Not,
    Lines(Posted, usize),
    Slot(Posted, usize),
}

impl fmt::Debug for RemoteMirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a mirror of {} at {}",
            ByteSize(self.memory.len()),
            self.memory.endpoint().peer()
        )
    }
}

fn completed(posted: Posted) -> Result<()> {
    posted
        .wait_asleep()
        .into_iter()
        .try_for_each(|work| work.result.map(drop))
}

/// Waits for the write of a record, which comes back.
fn sent(posted: Posted) -> Result<Box<[u8]>> {
    let work = posted.wait_asleep().pop().expect("a record is one write");
    work.into_bytes()
}

impl RemoteMirror {
    /// Begins a stream: `journal` is empty, and nothing else writes to either.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the journal has another length than a journal; those of the endpoint.
    pub fn begin(memory: RemoteMemory, journal: RemoteMemory, options: RemoteOptions) -> Result<Self> {
        if journal.len() != super::JOURNAL {
            let text = format!("a mirror's journal of {}", ByteSize(journal.len()));
            return Err(Error::Mismatch(text));
        }
        let slot = Slot {
            stream: rt::random(),
            number: 1,
            place: 0,
        };
        journal.write(0, &slot.encode())?;
        Ok(Self {
            memory,
            journal,
            stream: slot.stream,
            gathered: Gathered::new(),
            is_used: AtomicBool::new(true),
            state: Mutex::new(State::new(options.believed)),
            options,
            changed: Condvar::new(),
        })
    }

    /// Why it is lost, if it is.
    pub fn lost(&self) -> Option<Error> {
        self.state.lock().lost.clone()
    }

    /// The book is about to say that it is whole. From here on a loss holds fences up; one that is lost already must
    /// not be called whole.
    pub fn set_whole(&self) {
        self.state.lock().counts = true;
    }

    /// The book says that this is no whole mirror: fences do not wait for it any more.
    pub fn give_up(&self) {
        self.state.lock().given_up = true;
        self.is_used.store(false, Ordering::Release);
        self.changed.notify_all();
    }

    /// What went there so far.
    pub fn traffic(&self) -> RemoteTraffic {
        self.state.lock().traffic
    }

    /// The record that the last copied line is in, or will be.
    fn last(&self, state: &State) -> u64 {
        state.there + u64::from(state.is_sent) + u64::from(!self.gathered.is_empty())
    }

    /// Returns when all that was copied before is there, or the mirror is given up.
    fn settle<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let state = self.arrive(state);
        // A loss that was found while something else was sent counts too: this thread's lines may not have been taken.
        match state.lost.is_some() {
            true => self.wait_given_up(state),
            false => state,
        }
    }

    /// Returns when all that was copied before is there, or the mirror is lost.
    fn arrive<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let wanted = self.last(&state);
        while state.there < wanted && state.is_used() {
            state = match state.is_led {
                true => self.changed.wait(state),
                false => self.led(state, Self::send),
            };
        }
        state
    }

    /// Does something that one thread does at a time, without holding up those that copy meanwhile.
    fn led<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        act: impl FnOnce(&'a Self, MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Result<()>),
    ) -> MutexGuard<'a, State> {
        assert!(!state.is_led, "one thread leads");
        state.is_led = true;
        let (mut state, done) = act(self, state);
        state.is_led = false;
        self.changed.notify_all();
        match done {
            Ok(()) => state,
            Err(error) => self.lose(state, error),
        }
    }

    fn lose<'a>(&'a self, mut state: MutexGuard<'a, State>, error: Error) -> MutexGuard<'a, State> {
        if state.lost.is_some() {
            return state;
        }
        state.lost = Some(error.clone());
        state.given_up |= !state.counts;
        self.is_used.store(false, Ordering::Release);
        drop(state);
        (self.options.on_lost)(&error);
        self.changed.notify_all();
        self.state.lock()
    }

    fn wait_given_up<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = rt::now() + self.options.patience;
        while !state.given_up {
            let now = rt::now();
            if now >= until {
                // Others have waited for as long, or shall not.
                (state.given_up, state.behind) = (true, true);
                self.is_used.store(false, Ordering::Release);
                self.changed.notify_all();
                break;
            }
            state = self.changed.wait_timeout(state, until.since(now)).0;
        }
        state
    }

    /// Sends what is gathered as a record, and goes on with placing.
    fn send<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Result<()>) {
        let mut lines = core::mem::take(&mut state.spare);
        // In one step for those that ask which record their lines are in.
        self.gathered.end_turn(&mut lines);
        state.is_sent = true;
        let number = state.there + 1;
        drop(state);
        let record = record(self.stream, number, &sorted(lines.lines()));
        let count = lines.len() as u64;
        lines.clear();
        state = self.state.lock();
        state.spare = lines;
        let (state, place) = self.room(state, record.len() as u64);
        let place = match place {
            Ok(place) => place,
            Err(error) => return (state, Err(error)),
        };
        drop(state);
        let record = match self.append(place, record) {
            Ok(record) => Arc::new(record),
            Err(error) => return (self.state.lock(), Err(error)),
        };
        let mut state = self.state.lock();
        state.traffic.lines += count;
        state.is_there(number, Kept { place, record });
        self.changed.notify_all();
        self.advance(state, false)
    }

    /// Returns when a record is in the journal.
    fn append(&self, place: u64, record: Box<[u8]>) -> Result<Box<[u8]>> {
        if planted(Fault::MirrorUnfenced) {
            drop(self.post(&self.journal, vec![(RECORDS_AT + place, record.clone())]));
            return Ok(record);
        }
        sent(self.post(&self.journal, vec![(RECORDS_AT + place, record)]))
    }

    fn post(&self, to: &RemoteMemory, writes: Vec<(u64, Box<[u8]>)>) -> Posted {
        let works = writes
            .into_iter()
            .map(|(at, bytes)| Work::write(to.memory(), at, bytes));
        to.endpoint().post(works.collect())
    }

    /// Where a record of `len` bytes may go now; records are placed until there is room.
    fn room<'a>(&'a self, mut state: MutexGuard<'a, State>, len: u64) -> (MutexGuard<'a, State>, Result<u64>) {
        loop {
            if let Some(place) = state.free_place(len) {
                return (state, Ok(place));
            }
            let (next, done) = self.advance(state, true);
            state = next;
            if let Err(error) = done {
                return (state, Err(error));
            }
        }
    }

    /// Takes the next step of placing, if it is time for one; waits for it, if that is asked for.
    fn advance<'a>(&'a self, mut state: MutexGuard<'a, State>, wait: bool) -> (MutexGuard<'a, State>, Result<()>) {
        let step = core::mem::replace(&mut state.placing, Placing::Not);
        match step {
            Placing::Not if wait || state.used() >= PLACE_FROM => (self.place(state), Ok(())),
            Placing::Not => (state, Ok(())),
            Placing::Lines(mut posted, count) => match wait || posted.poll() {
                true => self.placed(state, posted, count),
                false => {
                    state.placing = Placing::Lines(posted, count);
                    (state, Ok(()))
                }
            },
            Placing::Slot(mut posted, count) => match wait || posted.poll() {
                true => self.noted(state, posted, count),
                false => {
                    state.placing = Placing::Slot(posted, count);
                    (state, Ok(()))
                }
            },
        }
    }

    /// Posts the lines of the oldest records to their places.
    fn place<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let oldest = state.oldest();
        if oldest == 0 {
            return state;
        }
        let records: Vec<_> = state.kept.iter().map(|kept| Arc::clone(&kept.record)).collect();
        drop(state);
        // What a later record has is recovered from that one, and placed with it.
        let lines = latest(records.iter().rev().map(|record| lines_of(record).into_iter()), oldest);
        let writes = writes(&lines);
        let mut state = self.state.lock();
        if let Some(filling) = &mut state.filling {
            filling.forget(&lines);
        }
        drop(state);
        let posted = self.post(&self.memory, writes);
        state = self.state.lock();
        state.traffic.placed_bytes += bytes_of(&lines) as u64;
        state.placing = Placing::Lines(posted, oldest);
        state
    }

    fn placed<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        posted: Posted,
        count: usize,
    ) -> (MutexGuard<'a, State>, Result<()>) {
        drop(state);
        if let Err(error) = completed(posted) {
            return (self.state.lock(), Err(error));
        }
        let mut state = self.state.lock();
        let (slot, at) = state.next_slot(self.stream, count);
        drop(state);
        let posted = self.post(&self.journal, vec![(at, slot.encode().into())]);
        state = self.state.lock();
        state.placing = Placing::Slot(posted, count);
        (state, Ok(()))
    }

    fn noted<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        posted: Posted,
        count: usize,
    ) -> (MutexGuard<'a, State>, Result<()>) {
        drop(state);
        let done = completed(posted);
        let mut state = self.state.lock();
        if done.is_ok() {
            state.kept.drain(..count);
        }
        (state, done)
    }

    /// Writes what was read for the filling to its place.
    fn fill_in_place<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, Result<()>) {
        while !matches!(state.placing, Placing::Not) {
            let (next, done) = self.advance(state, true);
            state = next;
            if done.is_err() {
                return (state, done);
            }
        }
        // From here on nothing is placed: this thread leads.
        let lines = state.filling.take().unwrap_or_default();
        if lines.is_empty() {
            return (state, Ok(()));
        }
        drop(state);
        let lines = lines.sorted();
        let done = completed(self.post(&self.memory, writes(&lines)));
        let mut state = self.state.lock();
        state.traffic.placed_bytes += bytes_of(&lines) as u64;
        (state, done)
    }
}

impl State {
    fn new(counts: bool) -> Self {
        Self {
            counts,
            behind: false,
            spare: Turn::new(),
            filling: None,
            is_led: false,
            is_sent: false,
            there: 0,
            tail: 0,
            kept: VecDeque::new(),
            placing: Placing::Not,
            slots: 1,
            lost: None,
            given_up: false,
            traffic: RemoteTraffic::default(),
        }
    }

    fn is_used(&self) -> bool {
        self.lost.is_none() && !self.given_up
    }

    fn is_there(&mut self, number: u64, kept: Kept) {
        assert!(number == self.there + 1, "records are numbered without a gap");
        self.there = number;
        self.is_sent = false;
        self.tail = kept.place + kept.len();
        self.traffic.records += 1;
        self.traffic.journal_bytes += kept.len();
        self.kept.push_back(kept);
    }

    /// Bytes of the journal that may not be written over.
    fn used(&self) -> u64 {
        match self.kept.front() {
            None => 0,
            Some(first) if first.place < self.tail => self.tail - first.place,
            Some(first) => CAPACITY - first.place + self.tail,
        }
    }

    /// Where a record may go without touching one that is kept, if anywhere.
    fn free_place(&self, len: u64) -> Option<u64> {
        let place = place_after(self.tail, len);
        let Some(first) = self.kept.front() else {
            return Some(place);
        };
        let is_free = match first.place < self.tail {
            // Kept: first..tail.
            true => place >= self.tail || place + len < first.place,
            // Kept: first..end, 0..tail.
            false => place == self.tail && place + len < first.place,
        };
        is_free.then_some(place)
    }

    /// How many records are placed next.
    fn oldest(&self) -> usize {
        let mut bytes = 0;
        let oldest = self.kept.iter().take_while(|kept| {
            bytes += kept.len();
            bytes <= PLACE_STEP
        });
        oldest.count()
    }

    /// The slot which says that the `count` oldest records are placed, and where it goes.
    fn next_slot(&mut self, stream: u64, count: usize) -> (Slot, u64) {
        let first = self.there + 1 - self.kept.len() as u64;
        let slot = Slot {
            stream,
            number: first + count as u64,
            place: self.kept.get(count).map_or(self.tail % CAPACITY, |next| next.place),
        };
        let at = self.slots % 2 * SLOT as u64;
        self.slots += 1;
        (slot, at)
    }
}

impl Side for RemoteMirror {
    fn reserve_to(&self, end: u64) -> Result<()> {
        // Its node took all of the space when it lent the memory.
        match end <= self.memory.len() {
            true => Ok(()),
            false => Err(Error::Mismatch(format!("{self:?} is too short"))),
        }
    }

    fn copy(&self, memory: &RegionMemory, off: u64, len: usize) {
        // The caller holds the lock of a stripe: the next fence waits for the book, and not this.
        while self.is_used.load(Ordering::Acquire) && !self.gathered.take(memory, off, len) {
            drop(self.arrive(self.state.lock()));
        }
    }

    fn fence(&self) {
        drop(self.settle(self.state.lock()));
    }

    /// What is gathered is in one record, or in an earlier one than what comes later.
    fn is_in_order(&self) -> bool {
        true
    }

    fn is_apart(&self) -> bool {
        true
    }

    fn begin_fill(&self) {
        if !self.options.believed {
            self.state.lock().filling = Some(Lines::default());
        }
    }

    fn fill(&self, memory: &RegionMemory, off: u64, len: usize) {
        let mut state = self.state.lock();
        match state.filling.as_mut() {
            Some(lines) => _ = lines.take(memory, off, len),
            None => {
                drop(state);
                self.copy(memory, off, len);
            }
        }
    }

    fn end_fill(&self) {
        let mut state = self.state.lock();
        while state.is_led {
            state = self.changed.wait(state);
        }
        if state.is_used() && state.filling.is_some() {
            state = self.led(state, Self::fill_in_place);
        }
        drop(self.arrive(state));
    }

    fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.lost.is_none() && state.there >= self.last(&state)
    }

    fn behind(&self) -> Option<u64> {
        self.state.lock().behind.then_some(self.stream)
    }
}
