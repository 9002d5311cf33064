//! The user's side: a seat in a ring, for all threads of the process.

use super::layout::{self, Layout};
use super::message::{self, Memory};
use super::{LOOK, Seat, polls};
use crate::rdma::call::{Call, Called, Caller, CallerId, CallsInFlight, Set, TIMEOUT, status};
use crate::{Region, RegionOptions};
use cenote_base::rt::atomic::{AtomicBool, AtomicU32, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// Naps of a thread that waits for a slot or chunks, or for an answer that another thread takes out.
const NAP_MIN: Nanos = Nanos::from_micros(5);
const NAP_MAX: Nanos = Nanos::from_millis(1);

/// How a seat is used.
#[derive(Clone)]
pub struct UserOptions {
    /// How long a call may take, unless it says otherwise.
    pub timeout: Nanos,
    /// How long an answer is looked for before its thread sleeps.
    pub spin: Nanos,
    /// Asked each 100 ms while a user waits: whether the node is there. A node that ends in order says so in the ring,
    /// one that is killed does not.
    pub is_there: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for UserOptions {
    fn default() -> Self {
        Self {
            timeout: TIMEOUT,
            spin: Nanos::from_micros(20),
            is_there: Arc::new(|| true),
        }
    }
}

/// A seat in a ring. Dropping it gives it back.
pub struct User(Arc<Inner>);

struct Inner {
    memory: Memory,
    seat: Seat,
    peer: String,
    options: UserOptions,
    broken: AtomicBool,
    slots: Vec<Slot>,
    /// Slots and chunks that nothing is in.
    free: Mutex<Free>,
}

struct Free {
    slots: Vec<u32>,
    chunks: u64,
}

#[derive(Default)]
struct Slot {
    turn: AtomicU32,
    asked: Mutex<Option<Asked>>,
}

impl Slot {
    /// A new turn begins, for this request.
    fn begin(&self, request: Asked) -> u32 {
        // Together: a thread that harvests takes the last answer for that of no other request.
        let mut asked = self.asked.lock();
        let turn = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(turn, Ordering::Release);
        *asked = Some(request);
        turn
    }
}

/// A request that was not answered yet.
struct Asked {
    set: Arc<Set>,
    index: usize,
    chunks: u64,
}

impl User {
    /// Takes a seat of a ring that another process has made in a file.
    ///
    /// # Errors
    /// [`Error::Lost`] if the node has ended, or given the seat to another; [`Error::Mismatch`] if it is no ring; those
    /// of mapping.
    pub fn join(path: &Path, seat: Seat, mut options: UserOptions) -> Result<Arc<dyn Caller>> {
        let region = RegionOptions {
            small_pages: true,
            ..RegionOptions::default()
        };
        let region = Arc::new(Region::join(path, region)?);
        if !region.is_simulated() {
            let (path, asked) = (path.to_path_buf(), Arc::clone(&options.is_there));
            let is_held = move || is_held(&path, seat.incarnation);
            options.is_there = Arc::new(move || is_held() && asked());
        }
        Self::on(region, seat, options)
    }

    /// Takes a seat of a ring that is mapped.
    ///
    /// # Errors
    /// As [`User::join`].
    pub fn on(region: Arc<Region>, seat: Seat, options: UserOptions) -> Result<Arc<dyn Caller>> {
        let layout = Layout::of(region.identity())?;
        if seat.number >= layout.seats {
            return Err(Error::Invalid(format!("seat {} of {}", seat.number, layout.seats)));
        }
        let inner = Inner {
            peer: region.name().to_owned(),
            memory: Memory { region, layout },
            seat,
            options,
            broken: AtomicBool::new(false),
            slots: (0..layout.slots).map(|_| Slot::default()).collect(),
            free: Mutex::new(Free {
                slots: (0..layout.slots).rev().collect(),
                chunks: u64::MAX,
            }),
        };
        if inner.is_over() {
            return Err(inner.lost());
        }
        Ok(Arc::new(Self(Arc::new(inner))))
    }
}

/// Whether a file is there and is in use by the node that gave the seat. What could not be looked at is there: too many
/// open files, say, end no connection.
fn is_held(path: &Path, incarnation: u64) -> bool {
    match crate::peek(path) {
        Ok(found) => is_of(&found, incarnation),
        Err(Error::Io { kind, .. }) => kind != std::io::ErrorKind::NotFound,
        Err(_) => true,
    }
}

/// Whether a region that was found is in use by the node that gave the seat.
fn is_of(found: &crate::Found, incarnation: u64) -> bool {
    let state = found.content.as_ref().map(|(_, state)| state.incarnation);
    found.in_use && state.is_ok_and(|state| state == incarnation.into())
}

impl core::fmt::Debug for User {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "seat {} of the ring in {}", self.0.seat.number, self.0.peer)
    }
}

impl Caller for User {
    fn peer(&self) -> &str {
        &self.0.peer
    }

    fn id(&self) -> CallerId {
        CallerId(self.0.seat.caller)
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    fn post(&self, calls: Vec<Call>) -> Called {
        let (inner, since) = (Arc::clone(&self.0), rt::now());
        let set = Arc::new(Set::new(calls));
        let mut asked = Vec::with_capacity(set.len());
        let mut unrung = false;
        for index in 0..set.len() {
            match inner.ask(&set, index, since, &mut unrung) {
                Ok(slot) => asked.push((index, slot)),
                Err(error) => _ = set.complete(index, Err(error)),
            }
        }
        if unrung {
            inner.ring();
        }
        Called::new(Box::new(Waiting {
            inner,
            set,
            asked,
            since,
            looked: since,
        }))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Also when the node has ended the connection: it waits for this word before it gives the seat away. No other
        // user has it before, and after a former node no process has the memory.
        let left = self.memory.layout.seat(self.seat.number) + layout::LEFT;
        self.memory.store(left, self.seat.epoch.into());
    }
}

impl Inner {
    fn slot_at(&self, slot: u32) -> u64 {
        self.memory.layout.slot(self.seat.number, slot)
    }

    /// Whether the node has ended, or given this connection up.
    fn is_over(&self) -> bool {
        if self.broken.load(Ordering::Relaxed) {
            return true;
        }
        let seat = self.memory.layout.seat(self.seat.number) + layout::EPOCH;
        let is_open = self.memory.load(layout::OPEN) == self.seat.incarnation
            && self.memory.load(seat) == u64::from(self.seat.epoch);
        if !is_open {
            self.broken.store(true, Ordering::Relaxed);
        }
        !is_open
    }

    /// The same, of a node that may have been killed.
    fn is_lost(&self) -> bool {
        if !self.is_over() && !(self.options.is_there)() {
            self.broken.store(true, Ordering::Relaxed);
        }
        self.is_over()
    }

    fn lost(&self) -> Error {
        Error::Lost(format!(
            "{}: its node has ended, or has given this connection up",
            self.peer
        ))
    }

    fn late(&self) -> Error {
        Error::Timeout(format!("{}: no answer in time", self.peer))
    }

    // ---- asking ----

    /// Posts a call: in which slot. `unrung`: entries were put, and no thread was woken for them.
    fn ask(&self, set: &Arc<Set>, index: usize, since: Nanos, unrung: &mut bool) -> Result<u32> {
        set.with(index, |call| call.check())?;
        if self.is_over() {
            return Err(self.lost());
        }
        let (request, timeout, lent) = set.with(index, |call| {
            let request = core::mem::take(&mut call.request);
            (request, call.timeout, call.memory.len() as u32)
        });
        let until = since + timeout.unwrap_or(self.options.timeout);
        let asked = self.room_for(request.len(), until, unrung).map(|(slot, chunks)| {
            self.put((slot, chunks), &request, lent, (set, index));
            *unrung = true;
            slot
        });
        set.with(index, |call| call.request = request);
        asked
    }

    /// A slot and chunks for a request; waits for answers to others while there are none.
    fn room_for(&self, len: usize, until: Nanos, unrung: &mut bool) -> Result<(u32, u64)> {
        let count = self.memory.request(self.seat.number, 0).chunks_for(len);
        let (mut nap, mut looked) = (NAP_MIN, rt::now());
        loop {
            if let Some(room) = self.take_room(count) {
                return Ok(room);
            }
            if core::mem::take(unrung) {
                self.ring();
            }
            (0..self.memory.layout.slots).for_each(|slot| self.harvest(slot));
            if let Some(room) = self.take_room(count) {
                return Ok(room);
            }
            let now = rt::now();
            if self.is_over() || now.since(looked) > LOOK && self.is_lost() {
                return Err(self.lost());
            }
            if now > until {
                return Err(self.late());
            }
            looked = if now.since(looked) > LOOK { now } else { looked };
            rt::sleep(nap);
            nap = Nanos(nap.raw() * 2).min(NAP_MAX);
        }
    }

    fn take_room(&self, chunks: usize) -> Option<(u32, u64)> {
        let mut free = self.free.lock();
        let slot = free.slots.pop()?;
        match message::take_chunks(&mut free.chunks, chunks) {
            Some(chunks) => Some((slot, chunks)),
            None => {
                free.slots.push(slot);
                None
            }
        }
    }

    /// Puts a request into a slot, and an entry for it.
    fn put(&self, (slot, chunks): (u32, u64), request: &[u8], lent: u32, (set, index): (&Arc<Set>, usize)) {
        let turn = self.slots[slot as usize].begin(Asked {
            set: Arc::clone(set),
            index,
            chunks,
        });
        self.memory
            .write(self.memory.request(self.seat.number, slot), request, lent, chunks);
        self.memory.store(
            self.slot_at(slot) + layout::ASKED,
            message::turn_of(self.seat.epoch, turn),
        );
        self.put_entry(slot);
    }

    fn put_entry(&self, slot: u32) {
        let Memory { region, layout } = &self.memory;
        // If there is no place, the node finds it by itself.
        polls::put(region, layout, self.seat.number * layout.slots + slot);
    }

    /// Wakes a consumer, if one sleeps.
    fn ring(&self) {
        let region = &self.memory.region;
        if region.atomic_u32(layout::ASLEEP).load(Ordering::SeqCst) != 0 {
            let doorbell = region.atomic_u32(layout::DOORBELL);
            doorbell.fetch_add(1, Ordering::SeqCst);
            rt::wake_shared(doorbell, 1);
        }
    }

    // ---- answers ----

    fn is_answered(&self, slot: u32) -> bool {
        let turn = self.slots[slot as usize].turn.load(Ordering::Acquire);
        self.memory.load(self.slot_at(slot) + layout::ANSWERED) == message::turn_of(self.seat.epoch, turn)
    }

    /// Takes the answer out of a slot, if it is there: the slot is free then.
    fn harvest(&self, slot: u32) {
        let home = &self.slots[slot as usize];
        let mut asked = home.asked.lock();
        if asked.is_none() || !self.is_answered(slot) {
            return;
        }
        let Some(Asked { set, index, chunks }) = asked.take() else {
            return;
        };
        let room = set.room(index);
        let answer = room.is_some().then(|| self.read(slot, room.unwrap_or_default()));
        let turn = message::turn_of(self.seat.epoch, home.turn.load(Ordering::Relaxed));
        self.memory.store(self.slot_at(slot) + layout::TAKEN, turn);
        drop(asked);
        {
            let mut free = self.free.lock();
            assert!(
                free.chunks & chunks == 0,
                "chunks of a request are free after it is answered"
            );
            free.slots.push(slot);
            free.chunks |= chunks;
        }
        if let Some(answer) = answer {
            set.answer_filling(index, answer);
            self.wake_waiter(slot);
        }
        let wants_room = self.memory.layout.seat(self.seat.number) + layout::WANTS_ROOM;
        if self.memory.load(wants_room) != 0 {
            self.ring();
        }
    }

    /// An answer, and what goes into the caller's memory.
    fn read(&self, slot: u32, mut room: Vec<u8>) -> Result<(Vec<u8>, Vec<u8>)> {
        room.clear();
        let (status, _) = self
            .memory
            .read(self.memory.answer(self.seat.number, slot), &mut room)?;
        let (status, filled) = message::filled_in(status);
        let answered = room.len().checked_sub(filled);
        let filled = room.split_off(answered.ok_or_else(|| Error::corrupt("an answer that has less than it says"))?);
        status::decode(&self.peer, status, room).map(|bytes| (bytes, filled))
    }

    /// Another thread may have taken the answer out for the one that sleeps for it.
    fn wake_waiter(&self, slot: u32) {
        let region = &self.memory.region;
        let sleeps = region.atomic_u32(self.slot_at(slot) + layout::SLEEPS);
        if sleeps.load(Ordering::SeqCst) != 0 {
            rt::wake_shared(region.atomic_u32(self.slot_at(slot) + layout::ANSWERED), usize::MAX);
        }
    }

    /// Sleeps until a call is answered, for so long at most.
    fn sleep_for(&self, (index, slot): &(usize, u32), set: &Arc<Set>, most: Nanos) {
        let region = &self.memory.region;
        let sleeps = region.atomic_u32(self.slot_at(*slot) + layout::SLEEPS);
        let word = region.atomic_u32(self.slot_at(*slot) + layout::ANSWERED);
        // Counted: another thread may be about to sleep for the next call in the slot.
        sleeps.fetch_add(1, Ordering::SeqCst);
        let seen = word.load(Ordering::SeqCst);
        let is_awaited = is_of_set(self, *slot, set, *index) && !self.is_answered(*slot);
        if is_awaited && !set.is_done() && !self.is_over() {
            rt::wait_shared(word, seen, Some(most));
        }
        sleeps.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls that were posted together.
struct Waiting {
    inner: Arc<Inner>,
    set: Arc<Set>,
    /// By index: in which slot.
    asked: Vec<(usize, u32)>,
    since: Nanos,
    /// When it was last looked whether the node is there.
    looked: Nanos,
}

impl Waiting {
    /// Ends all calls if the node is gone.
    fn judge_node(&mut self, now: Nanos) {
        let is_due = now.since(self.looked) >= LOOK;
        if is_due {
            self.looked = now;
        }
        if self.inner.is_over() || is_due && self.inner.is_lost() {
            // What it answered before it ended counts.
            self.harvest();
            self.set.give_up(|_| Some(self.inner.lost()));
        }
    }

    /// Takes the answers that are there.
    fn harvest(&mut self) {
        let (inner, set) = (&self.inner, &self.set);
        self.asked.retain(|(index, slot)| {
            inner.harvest(*slot);
            is_of_set(inner, *slot, set, *index)
        });
    }

    /// Ends what is late.
    fn judge(&self, now: Nanos) {
        let waited = now.since(self.since);
        let timeout = |call: &Call| call.timeout.unwrap_or(self.inner.options.timeout);
        self.set
            .give_up(|call| (waited > timeout(call)).then(|| self.inner.late()));
    }

    /// How long the one with the least timeout may wait.
    fn left(&self, now: Nanos) -> Nanos {
        let timeout = |index: usize| self.set.with(index, |call| call.timeout);
        let least = self
            .asked
            .iter()
            .map(|(index, _)| timeout(*index).unwrap_or(self.inner.options.timeout));
        let until = self.since + least.min().unwrap_or(Nanos::ZERO);
        until.since(now) + Nanos(1)
    }
}

/// Whether a slot has that call in it still.
fn is_of_set(inner: &Inner, slot: u32, set: &Arc<Set>, index: usize) -> bool {
    let asked = inner.slots[slot as usize].asked.lock();
    asked
        .as_ref()
        .is_some_and(|asked| Arc::ptr_eq(&asked.set, set) && asked.index == index)
}

impl CallsInFlight for Waiting {
    fn poll(&mut self) -> bool {
        self.harvest();
        if !self.set.is_done() {
            let now = rt::now();
            self.judge(now);
            self.judge_node(now);
        }
        self.set.is_done()
    }

    fn wait(mut self: Box<Self>) -> Vec<Call> {
        let (begun, mut nap) = (rt::now(), NAP_MIN);
        loop {
            self.harvest();
            if self.set.is_done() {
                return self.set.take();
            }
            let now = rt::now();
            self.judge(now);
            self.judge_node(now);
            if now.since(begun) < self.inner.options.spin {
                rt::relax();
            } else if let Some(asked) = self.asked.first() {
                self.inner.sleep_for(asked, &self.set, self.left(now).min(LOOK));
            } else if !self.set.is_done() {
                rt::sleep(nap);
                nap = Nanos(nap.raw() * 2).min(NAP_MAX);
            }
        }
    }
}
