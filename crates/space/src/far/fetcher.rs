//! Reads of a far part's objects by the user's own card: no code of the part's host runs.
//!
//! ```text
//!   look    the slot's count of freezings F ─► then its state S                       once, for as long as F stays
//!   fetch   the object's live word L and the bytes ─► then the slot's F and S          one doorbell; for several, two
//!                                                                                    where a fence takes a trip
//! ```
//!
//! The bytes are the object's if L has the address's generation and the object's bit, S is still a slab of that
//! generation and class, and F is what it was at the look. For:
//!
//! 1. at the look the extent lay in its slot, as S was read after F and said so;
//! 2. an extent leaves a slot only when it was frozen there, and F counts that *before*; F was read after the bytes. So
//!    until then it did not leave, and what leaves and comes back in between is counted, too;
//! 3. an extent that ends has another generation afterwards, or none: S was read after the bytes as well.
//!
//! Whatever is otherwise is no error: the host is asked by a call, which says what is wrong. A concurrent write may be
//! seen in part, as by any read. Extents away from home, runs, words and writes always go by calls.
//!
//! The host gives a key for what the part has reserved by then. When objects lie behind that it is asked for another
//! one, now and then. A key that has ended is not used again: the connection has no fetcher from there on.

use super::wire::Window;
use crate::GlobalAddress;
use crate::class::{Class, divide, live_bit};
use crate::extent::EXTENT;
use crate::layout::{DESCRIPTOR, DESCRIPTORS_AT, FREEZINGS, LIVE_AT, Layout, MAP_WORDS, STATE};
use crate::slot::code_of;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::{Endpoint, Key, Posted, Remote, Work};
use std::sync::Arc;

/// Slots of a part that are known from a look; another one takes the place of the one before.
const SEEN: usize = 4096;

/// So many reads of a slot are told to its host at once, which has not seen them: heat moves extents.
pub const FETCHES_TOLD: u32 = 64;

/// How long a key is used, though objects lie behind what it is for.
const RENEW_AFTER: Nanos = Nanos::from_millis(100);

/// What was found at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    slot: u32,
    freezings: u64,
    /// 0: nothing was seen. (A slab's has a class.)
    state: u64,
    /// Reads since some were told to the host.
    fetched: u32,
}

/// A part's memory, as the user's card reads it.
pub struct Fetcher {
    endpoint: Arc<dyn Endpoint>,
    memory: Remote,
    layout: Layout,
    part: u8,
    seen: Arc<Mutex<Box<[Seen]>>>,
    since: Nanos,
    /// An object was asked for that lies behind the memory.
    is_outgrown: AtomicBool,
    /// The key has ended.
    is_over: AtomicBool,
}

/// A read that can be fetched.
#[derive(Debug, Clone, Copy)]
pub struct Fetch {
    address: GlobalAddress,
    seen: Seen,
    /// The object's live word, and its bit there.
    live: (u32, u32),
}

/// Reads that are under way.
pub struct FetchesInFlight {
    fetches: Vec<Fetch>,
    bytes: Posted,
    /// The second looks go with the bytes: of a single one, and where a fence costs nothing.
    is_whole: bool,
    look: Option<Posted>,
}

/// What was fetched; nothing where the host has to be asked.
pub type Bytes = Option<Box<[u8]>>;

/// What a work has read.
type Read = Result<Box<[u8]>>;

/// Looks that are under way.
pub struct LooksInFlight {
    slots: Vec<u32>,
    posted: Posted,
}

impl Fetcher {
    /// Of the memory that a part's host offers.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: no part has such memory.
    pub fn new(endpoint: Arc<dyn Endpoint>, window: &Window, part: u8) -> Result<Self> {
        let layout = Layout::movable(window.slots).filter(|layout| layout.extents_at <= window.len);
        let layout = layout.ok_or_else(|| Error::corrupt("the memory that a host offers"))?;
        let memory = Remote {
            key: Key(window.key),
            base: window.base,
            len: window.len,
        };
        Ok(Self {
            endpoint,
            memory,
            layout,
            part,
            seen: Arc::new(Mutex::new(vec![Seen::default(); SEEN].into())),
            since: rt::now(),
            is_outgrown: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    /// The same, with what the one before it has seen.
    pub fn after(self, former: &Self) -> Self {
        let seen = Arc::clone(&former.seen);
        Self { seen, ..self }
    }

    /// Its endpoint.
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// Whether nothing can be fetched any more.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether the host is to be asked for a key to more. It says so once.
    pub fn take_outgrown(&self) -> bool {
        let is_due = self.is_outgrown.load(Ordering::Relaxed) && rt::now().since(self.since) >= RENEW_AFTER;
        is_due && self.is_outgrown.swap(false, Ordering::Relaxed)
    }

    /// Looks whether a work failed because the key has ended.
    fn judge(&self, work: Work) -> Read {
        let bytes = work.into_bytes();
        if matches!(bytes, Err(Error::Revoked(_))) {
            self.is_over.store(true, Ordering::Relaxed);
        }
        bytes
    }

    // ---- looks ----

    /// Whether a look would help to fetch what is at an address.
    pub fn is_unseen(&self, address: GlobalAddress) -> bool {
        let slot = address.slot();
        let is_its = address.part() == self.part && slot < self.layout.slots;
        is_its && !address.is_of(self.seen_of(slot).map_or(0, |seen| seen.state))
    }

    fn seen_of(&self, slot: u32) -> Option<Seen> {
        let seen = self.seen.lock()[slot as usize % SEEN];
        (seen.slot == slot && seen.state != 0).then_some(seen)
    }

    fn forget(&self, slot: u32) {
        let mut all = self.seen.lock();
        let seen = &mut all[slot as usize % SEEN];
        if seen.slot == slot {
            *seen = Seen::default();
        }
    }

    /// Looks at slots, and waits for nothing.
    pub fn look(&self, slots: Vec<u32>) -> LooksInFlight {
        let counts = slots.iter().map(|slot| self.descriptor(*slot));
        // All counts come first: the first of the second ones waits for them, and so do those behind it.
        let states = slots.iter().map(|slot| self.descriptor(*slot).fenced());
        let posted = self.endpoint.post(counts.chain(states).collect());
        LooksInFlight { slots, posted }
    }

    pub fn end_look(&self, looks: LooksInFlight) {
        let LooksInFlight { slots, posted } = looks;
        let works: Vec<_> = posted.wait().into_iter().map(|work| self.judge(work)).collect();
        let (counts, states) = works.split_at(works.len() / 2);
        for (slot, (count, state)) in slots.into_iter().zip(counts.iter().zip(states)) {
            let (Ok(count), Ok(state)) = (count, state) else {
                continue;
            };
            let (freezings, state) = (word(count, FREEZINGS), word(state, STATE));
            if Class::of_code(code_of(state)).is_some() {
                let fetched = 0;
                let seen = Seen {
                    slot,
                    freezings,
                    state,
                    fetched,
                };
                self.seen.lock()[slot as usize % SEEN] = seen;
            }
        }
    }

    /// Counts a read: whether so many are to be told to the host now.
    fn is_due(&self, slot: u32) -> bool {
        let mut all = self.seen.lock();
        let seen = &mut all[slot as usize % SEEN];
        if seen.slot != slot {
            return false;
        }
        seen.fetched += 1;
        let is_due = seen.fetched >= FETCHES_TOLD;
        if is_due {
            seen.fetched = 0;
        }
        is_due
    }

    fn descriptor(&self, slot: u32) -> Work {
        let at = DESCRIPTORS_AT + u64::from(slot) * DESCRIPTOR;
        Work::read(self.memory, at, vec![0; DESCRIPTOR as usize].into())
    }

    // ---- fetches ----

    /// How a read is fetched, if its slot was looked at and all bytes are an object's in a slab.
    pub fn plan(&self, address: GlobalAddress, len: usize) -> Option<Fetch> {
        let is_its = address.part() == self.part && address.slot() < self.layout.slots && len > 0;
        let is_short = len as u64 <= self.endpoint.limits().transfer.min(EXTENT);
        let seen = self.seen_of(address.slot()).filter(|_| is_its && is_short)?;
        let (index, end) = divide(code_of(seen.state), address.offset());
        let is_inside = end <= EXTENT && u64::from(address.offset()) + len as u64 <= end;
        let is_reserved = self.layout.extents_at + address.place() + len as u64 <= self.memory.len;
        if !is_reserved {
            self.is_outgrown.store(true, Ordering::Relaxed);
        }
        (is_inside && is_reserved && address.is_of(seen.state)).then(|| Fetch {
            address,
            seen,
            live: live_bit(index),
        })
    }

    fn live_word(&self, fetch: &Fetch) -> Work {
        let map = u64::from(fetch.seen.slot) * MAP_WORDS as u64;
        let at = self.layout.maps_at + (map + LIVE_AT as u64 + u64::from(fetch.live.0)) * 8;
        Work::read(self.memory, at, vec![0; 8].into())
    }

    fn bytes(&self, fetch: &Fetch, len: usize) -> Work {
        let at = self.layout.extents_at + fetch.address.place();
        Work::read(self.memory, at, vec![0; len].into())
    }

    /// Fetches reads of these lengths, and waits for nothing.
    pub fn begin(&self, fetches: Vec<(Fetch, usize)>) -> FetchesInFlight {
        let both = fetches
            .iter()
            .flat_map(|(fetch, len)| [self.live_word(fetch), self.bytes(fetch, *len)]);
        let mut works: Vec<_> = both.collect();
        let is_whole = fetches.len() < 2 || self.endpoint.fences_are_free();
        if is_whole {
            let looks = fetches.iter().map(|(fetch, _)| self.descriptor(fetch.seen.slot));
            works.extend(looks.map(Work::fenced));
        }
        FetchesInFlight {
            fetches: fetches.into_iter().map(|(fetch, _)| fetch).collect(),
            bytes: self.endpoint.post(works),
            is_whole,
            look: None,
        }
    }

    /// Waits for the bytes of several, and looks again, which is waited for later.
    pub fn look_again(&self, in_flight: FetchesInFlight) -> FetchesInFlight {
        if in_flight.is_whole || in_flight.look.is_some() {
            return in_flight;
        }
        let bytes = in_flight.bytes.wait();
        let looks = in_flight.fetches.iter().map(|fetch| self.descriptor(fetch.seen.slot));
        FetchesInFlight {
            look: Some(self.endpoint.post(looks.collect())),
            bytes: Posted::done(bytes),
            ..in_flight
        }
    }

    /// Reads so many bytes, as a fetch does, to see how long that takes; whether it could. (Of a part's first ones,
    /// which are there before it has objects.)
    pub fn probe(&self, len: usize) -> bool {
        let bytes = Work::read(self.memory, 0, vec![0; len].into());
        let works = vec![self.descriptor(0), bytes, self.descriptor(0).fenced()];
        self.endpoint.post(works).wait().iter().all(|work| work.result.is_ok())
    }

    /// The bytes of each; nothing where the host has to be asked. And the slots of which the host is to be told.
    pub fn end(&self, in_flight: FetchesInFlight) -> (Vec<Bytes>, Vec<u32>) {
        let FetchesInFlight {
            fetches, bytes, look, ..
        } = self.look_again(in_flight);
        let mut works = bytes.wait().into_iter().map(|work| self.judge(work));
        let mut read = Vec::with_capacity(fetches.len());
        for _ in &fetches {
            read.push(works.next().zip(works.next()));
        }
        let look = look.into_iter().flat_map(Posted::wait).map(|work| self.judge(work));
        let looks = works.chain(look);
        let mut told = Vec::new();
        let all = fetches.into_iter().zip(read.into_iter().zip(looks));
        let found = all.map(|(fetch, (read, look))| {
            if !is_there(&fetch, look) {
                self.forget(fetch.seen.slot);
                return None;
            }
            let bytes = live_bytes(&fetch, read?)?;
            told.extend(self.is_due(fetch.seen.slot).then_some(fetch.seen.slot));
            Some(bytes)
        });
        let found = found.collect();
        (found, told)
    }
}

/// Whether the extent was in its slot from the first look to this one.
fn is_there(fetch: &Fetch, look: Read) -> bool {
    let is_same = |look: Box<[u8]>| {
        let (freezings, state) = (word(&look, FREEZINGS), word(&look, STATE));
        freezings == fetch.seen.freezings && state == fetch.seen.state
    };
    look.is_ok_and(is_same)
}

/// The bytes, if they are a live object's.
fn live_bytes(fetch: &Fetch, (live, bytes): (Read, Read)) -> Option<Box<[u8]>> {
    let live = word(&live.ok()?, 0);
    let is_live = fetch.address.is_of(live) && live >> fetch.live.1 & 1 != 0;
    bytes.ok().filter(|_| is_live)
}

fn word(bytes: &[u8], at: u64) -> u64 {
    let bytes = bytes.get(at as usize..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
