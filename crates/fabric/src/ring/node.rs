//! The node's side: threads that take requests from a ring, give them to a program, and put its answers back.

use super::layout::{self, Layout};
use super::message::{self, Memory};
use super::polls::{Found, Head};
use super::seat_state::{self, Asked, Phase, SeatState, Ticket};
use super::servers::{Server, Servers};
use super::{LOOK, Seat};
use crate::rdma::call::{Answer, Answered, Answering, CallerId, LIMIT, Serve, status};
use crate::{Region, RegionOptions};
use cenote_base::rt::atomic::{AtomicBool, AtomicU32, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Requests between two looks at the time.
const STREAK: u32 = 64;
/// Of a look when answers wait for room.
const ROOM: Nanos = Nanos::from_millis(1);
/// Of a look while the ring has no user.
const IDLE: Nanos = Nanos::from_secs(10);

/// Whether a user that a node let in is still there.
pub type IsThere = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// What a ring is made with.
#[derive(Clone)]
pub struct Options {
    /// Users at a time.
    pub seats: u32,
    /// Calls of each that may be under way; a power of two.
    pub slots: u32,
    /// Threads that take requests.
    pub consumers: u32,
    /// How long they look for the next one before they sleep.
    pub spin: Nanos,
    /// Asked each 100 ms of each user, by what [`Node::admit`] was told.
    pub is_there: IsThere,
    /// Whose region it is, for its header.
    pub tenant: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seats: 64,
            slots: 128,
            consumers: 1,
            spin: Nanos::from_micros(20),
            is_there: Arc::new(|_| true),
            tenant: 0,
        }
    }
}

impl core::fmt::Debug for Options {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} seats with {} slots", self.seats, self.slots)
    }
}

/// A ring that is served. Dropping it ends that, and all connections.
pub struct Node {
    inner: Arc<Inner>,
    threads: Vec<rt::JoinHandle<()>>,
}

pub(super) struct Inner {
    memory: Memory,
    options: Options,
    program: Arc<dyn Serve>,
    incarnation: u64,
    seat_states: Vec<Mutex<SeatState>>,
    /// Seats that are not free.
    users: AtomicU32,
    /// The thread that serves it, if it shares that with other rings.
    server: OnceLock<Arc<Server>>,
    head: Head,
    /// Of the next user.
    epoch: AtomicU32,
    stop: AtomicBool,
    /// Nonsense was found: what was posted may have no entry.
    search: AtomicBool,
    /// Answers wait for room, at some seat state.
    wants_room: AtomicBool,
    /// When to look after all users again. Held by the thread that does.
    look: Mutex<Nanos>,
}

impl Node {
    /// Makes a ring in a file, in place of one of before, and serves it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a ring that cannot be; [`Error::Busy`] if another process has the file; [`Error::Full`]
    /// if there is no memory for it.
    pub fn start(path: &Path, options: Options, program: Arc<dyn Serve>) -> Result<Self> {
        let (region, layout) = Self::file(path, &options)?;
        Self::on(region, layout, options, program)?.consumed()
    }

    /// As [`Node::start`], served by threads that it shares with other rings.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with(path: &Path, options: Options, program: Arc<dyn Serve>, servers: &Servers) -> Result<Self> {
        let (region, layout) = Self::file(path, &options)?;
        Ok(Self::on(region, layout, options, program)?.shared(servers))
    }

    fn file(path: &Path, options: &Options) -> Result<(Arc<Region>, Layout)> {
        let layout = Layout::new(options.seats, options.slots)?;
        match crate::remove(path) {
            Err(Error::Io {
                kind: std::io::ErrorKind::NotFound,
                ..
            }) => {}
            removed => removed?,
        }
        let region = RegionOptions {
            small_pages: true,
            ..RegionOptions::default()
        };
        let region = Region::create(path, layout.len(), layout.identity(options.tenant), region)?;
        Ok((Arc::new(region), layout))
    }

    /// A ring in memory of this process.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_here(options: Options, program: Arc<dyn Serve>) -> Result<Self> {
        let (region, layout) = Self::here(&options)?;
        Self::on(region, layout, options, program)?.consumed()
    }

    /// As [`Node::start_here`], served by threads that it shares with other rings.
    ///
    /// # Errors
    /// As [`Node::start_here`].
    pub fn start_here_with(options: Options, program: Arc<dyn Serve>, servers: &Servers) -> Result<Self> {
        let (region, layout) = Self::here(&options)?;
        Ok(Self::on(region, layout, options, program)?.shared(servers))
    }

    fn here(options: &Options) -> Result<(Arc<Region>, Layout)> {
        let layout = Layout::new(options.seats, options.slots)?;
        let region = RegionOptions {
            small_pages: true,
            ..RegionOptions::default()
        };
        let region = Region::dram(layout.len(), layout.identity(options.tenant), region)?;
        Ok((Arc::new(region), layout))
    }

    fn shared(self, servers: &Servers) -> Self {
        // A ring has one.
        self.inner.server.set(servers.attach(&self.inner)).ok();
        self
    }

    fn on(region: Arc<Region>, layout: Layout, options: Options, program: Arc<dyn Serve>) -> Result<Self> {
        region.reserve_to(layout.seats_at())?;
        let incarnation = rt::random() | 1;
        region.update_state(|state| state.incarnation = incarnation.into());
        let memory = Memory { region, layout };
        (layout::TAIL..layout.seats_at())
            .step_by(8)
            .for_each(|off| memory.store(off, 0));
        memory.store(layout::OPEN, incarnation);
        let inner = Arc::new(Inner {
            seat_states: (0..options.seats).map(|_| Mutex::default()).collect(),
            users: AtomicU32::new(0),
            server: OnceLock::new(),
            memory,
            program,
            incarnation,
            head: Head::default(),
            epoch: AtomicU32::new(rt::random() as u32 >> 1),
            stop: AtomicBool::new(false),
            search: AtomicBool::new(false),
            wants_room: AtomicBool::new(false),
            look: Mutex::default(),
            options,
        });
        Ok(Self {
            inner,
            threads: Vec::new(),
        })
    }

    /// With threads of its own.
    fn consumed(mut self) -> Result<Self> {
        for _ in 0..self.inner.options.consumers.max(1) {
            let inner = Arc::clone(&self.inner);
            let thread = rt::try_spawn("ring", move || inner.consume());
            self.threads
                .push(thread.map_err(|error| Error::io("starting a thread", error))?);
        }
        Ok(self)
    }

    /// Gives a user a seat; the node knows the user as `who`.
    ///
    /// # Errors
    /// [`Error::Busy`] if there is no free seat, [`Error::Full`] if there is no memory for one more.
    pub fn admit(&self, who: u64) -> Result<Seat> {
        let inner = &*self.inner;
        let find = |(number, seat_state): (u32, &Mutex<SeatState>)| {
            let mut seat_state = seat_state.lock();
            (seat_state.phase == Phase::Free).then(|| {
                let epoch = inner.next_epoch();
                let caller = seat_state.admit(&inner.memory, number, epoch, who)?;
                Ok(Seat {
                    number,
                    epoch,
                    caller: caller.0,
                    incarnation: inner.incarnation,
                })
            })
        };
        let seat = (0..).zip(&inner.seat_states).find_map(find);
        if matches!(seat, Some(Ok(_))) {
            inner.users.fetch_add(1, Ordering::SeqCst);
        }
        inner.ring();
        seat.unwrap_or_else(|| Err(seat_state::none_free(inner.options.seats)))
    }

    /// Ends a connection: no request of it is begun to be served from here on.
    pub fn dismiss(&self, caller: CallerId) {
        for (number, seat_state) in (0..).zip(&self.inner.seat_states) {
            let is_it = {
                let seat_state = seat_state.lock();
                seat_state.phase == Phase::Open && seat_state.caller() == caller
            };
            if is_it {
                self.inner.end(number, caller);
            }
        }
    }

    /// Whether the program is being given a request of a connection at this moment.
    pub fn is_serving(&self, caller: CallerId) -> bool {
        let serves = |seat_state: &Mutex<SeatState>| {
            let seat_state = seat_state.lock();
            seat_state.caller() == caller && !seat_state.is_quiet()
        };
        self.inner.seat_states.iter().any(serves)
    }

    /// What users of this process join.
    pub fn region(&self) -> &Arc<Region> {
        &self.inner.memory.region
    }

    /// Ends all connections. What was asked is not answered any more.
    pub fn close(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.inner.memory.store(layout::OPEN, 0);
        if let Some(server) = self.inner.server.get() {
            server.detach(&self.inner);
        }
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            self.inner.ring();
            rt::sleep(Nanos::from_micros(100));
        }
        self.threads.drain(..).for_each(|thread| _ = thread.join());
        for (number, seat_state) in (0..).zip(&self.inner.seat_states) {
            let caller = seat_state.lock().caller();
            self.inner.end(number, caller);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.close();
    }
}

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the ring in {}", self.inner.memory.region.name())
    }
}

/// Where the answers to a request go.
struct Reply {
    inner: Arc<Inner>,
    ticket: Ticket,
}

impl Answering for Reply {
    fn answered(&self, _: CallerId, _: u64, answer: Result<Answered>) {
        let (answer, filled) = match answer.map(Answered::settle) {
            Ok((bytes, filled)) => (Ok(bytes), filled),
            Err(error) => (Err(error), Vec::new()),
        };
        let (status, mut bytes) = status::encode(answer);
        let status = message::with_filled(status, filled.len());
        bytes.extend_from_slice(&filled);
        let waits = {
            let mut seat_state = self.inner.seat_states[self.ticket.seat as usize].lock();
            seat_state.answer(&self.inner.memory, self.ticket, status, bytes);
            seat_state.has_waiting()
        };
        if waits && !self.inner.wants_room.swap(true, Ordering::SeqCst) {
            self.inner.ring();
        }
    }
}

impl Inner {
    fn next_epoch(&self) -> u32 {
        self.epoch.fetch_add(1, Ordering::SeqCst) & (u32::MAX >> 1) | 1 << 31
    }

    fn region(&self) -> &Region {
        &self.memory.region
    }

    /// Wakes the consumers.
    fn ring(&self) {
        let doorbell = self.region().atomic_u32(layout::DOORBELL);
        doorbell.fetch_add(1, Ordering::SeqCst);
        rt::wake_shared(doorbell, usize::MAX);
        if let Some(server) = self.server.get() {
            server.ring();
        }
    }

    // ---- a consumer ----

    fn consume(self: &Arc<Self>) {
        let mut buffer = Vec::with_capacity(LIMIT);
        let (mut idle, mut streak) = (None, 0);
        while !self.stop.load(Ordering::SeqCst) {
            if self.serve_next(&mut buffer) {
                (idle, streak) = (None, streak + 1);
                if streak < STREAK {
                    continue;
                }
            }
            streak = 0;
            let now = rt::now();
            self.look_after(now, &mut buffer);
            self.put_waiting();
            if now.since(*idle.get_or_insert(now)) < self.options.spin {
                rt::relax();
            } else {
                self.sleep();
                idle = None;
            }
        }
    }

    /// Answers what waits for room, as far as there is any.
    pub(super) fn put_waiting(&self) {
        if !self.wants_room() || !self.wants_room.swap(false, Ordering::SeqCst) {
            return;
        }
        for (seat, seat_state) in (0..).zip(&self.seat_states) {
            let mut seat_state = seat_state.lock();
            seat_state.put_waiting(&self.memory, seat);
            if seat_state.has_waiting() {
                self.wants_room.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Whether no user has a seat.
    fn is_empty(&self) -> bool {
        !self.has_users()
    }

    // ---- for a thread that serves several rings ----

    pub(super) fn has_users(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    pub(super) fn wants_room(&self) -> bool {
        self.wants_room.load(Ordering::SeqCst)
    }

    pub(super) fn is_searched(&self) -> bool {
        self.search.load(Ordering::SeqCst)
    }

    /// Whether an entry waits to be taken.
    pub(super) fn has_more(&self) -> bool {
        !self.head.is_empty(self.region(), &self.memory.layout)
    }

    pub(super) fn doorbell(&self) -> &AtomicU32 {
        self.region().atomic_u32(layout::DOORBELL)
    }

    pub(super) fn asleep(&self) -> &AtomicU32 {
        self.region().atomic_u32(layout::ASLEEP)
    }

    /// Until something is posted, or it is time to look after all users.
    fn sleep(&self) {
        let doorbell = self.region().atomic_u32(layout::DOORBELL);
        let asleep = self.region().atomic_u32(layout::ASLEEP);
        let seen = doorbell.load(Ordering::SeqCst);
        asleep.fetch_add(1, Ordering::SeqCst);
        // A user that has put something since has seen that a thread sleeps.
        if self.head.is_empty(self.region(), &self.memory.layout) && !self.stop.load(Ordering::SeqCst) {
            let timeout = match self.wants_room.load(Ordering::SeqCst) {
                true => ROOM,
                false if self.is_empty() => IDLE,
                false => LOOK,
            };
            rt::wait_shared(doorbell, seen, Some(timeout));
        }
        asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Serves a request, or does away with nonsense. False: there is nothing.
    pub(super) fn serve_next(self: &Arc<Self>, buffer: &mut Vec<u8>) -> bool {
        match self.head.take(self.region(), &self.memory.layout) {
            Found::Slot(slot) => {
                self.serve_slot(slot / self.options.slots, slot % self.options.slots, buffer);
                true
            }
            Found::Nothing => false,
            Found::Broken => {
                self.search.store(true, Ordering::SeqCst);
                true
            }
        }
    }

    /// Serves what a slot asks for. False: it asks for nothing new.
    fn serve_slot(self: &Arc<Self>, seat: u32, slot: u32, buffer: &mut Vec<u8>) -> bool {
        let Some(seat_state) = self
            .seat_states
            .get(seat as usize)
            .filter(|_| slot < self.options.slots)
        else {
            return false;
        };
        let (asked, caller) = {
            let mut seat_state = seat_state.lock();
            match seat_state.phase {
                Phase::Open => (seat_state.look(&self.memory, seat, slot), seat_state.caller()),
                _ => (Asked::Nothing, seat_state.caller()),
            }
        };
        match asked {
            Asked::New(ticket) => self.serve(ticket, buffer),
            Asked::Nothing => return false,
            Asked::Nonsense => self.end(seat, caller),
        }
        true
    }

    fn serve(self: &Arc<Self>, ticket: Ticket, buffer: &mut Vec<u8>) {
        buffer.clear();
        let read = self.memory.read(self.memory.request(ticket.seat, ticket.slot), buffer);
        let is_whole = read.is_ok();
        if let Ok((room, _)) = read {
            let reply = Reply {
                inner: Arc::clone(self),
                ticket,
            };
            let answer = Answer::new(ticket.caller, ticket.turn.into(), Arc::new(reply)).with_room(room as usize);
            self.program.serve(ticket.caller, buffer, answer);
        }
        self.seat_states[ticket.seat as usize].lock().served();
        match is_whole {
            true => self.tell_end(ticket.seat),
            false => self.end(ticket.seat, ticket.caller),
        }
    }

    // ---- ends ----

    /// Ends a connection, if it is that one's still.
    fn end(&self, seat: u32, caller: CallerId) {
        {
            let mut seat_state = self.seat_states[seat as usize].lock();
            if seat_state.caller() != caller {
                return;
            }
            seat_state.end(&self.memory, seat);
        }
        self.tell_end(seat);
    }

    fn tell_end(&self, seat: u32) {
        let (ends, caller) = {
            let mut seat_state = self.seat_states[seat as usize].lock();
            (seat_state.ends_now(), seat_state.caller())
        };
        if ends {
            self.program.ended(caller);
        }
    }

    /// Each 100 ms: finds users that have left or died, answers that wait for room, and requests without an entry.
    fn look_after(self: &Arc<Self>, now: Nanos, buffer: &mut Vec<u8>) {
        let search = self.search.load(Ordering::SeqCst);
        let Some(mut look) = self.look.try_lock().filter(|look| search || **look <= now) else {
            return;
        };
        *look = now + LOOK;
        self.look_after_all(buffer, true);
    }

    /// Looks after all users, and, if it searches, for requests without an entry.
    pub(super) fn look_after_all(self: &Arc<Self>, buffer: &mut Vec<u8>, searches: bool) {
        let searches = self.search.swap(false, Ordering::SeqCst) || searches;
        self.head.mend_tail(self.region(), &self.memory.layout);
        for seat in 0..self.options.seats {
            self.look_after_seat(seat, searches, buffer);
        }
    }

    fn look_after_seat(self: &Arc<Self>, seat: u32, searches: bool, buffer: &mut Vec<u8>) {
        let (phase, who, caller, has_left) = {
            let mut seat_state = self.seat_states[seat as usize].lock();
            if seat_state.phase == Phase::Free {
                return;
            }
            seat_state.put_waiting(&self.memory, seat);
            (
                seat_state.phase,
                seat_state.who,
                seat_state.caller(),
                seat_state.has_left(&self.memory, seat),
            )
        };
        if has_left || !(self.options.is_there)(who) {
            self.end(seat, caller);
            if self.seat_states[seat as usize].lock().free() {
                self.users.fetch_sub(1, Ordering::SeqCst);
            }
        } else if phase == Phase::Open && searches {
            (0..self.options.slots).for_each(|slot| _ = self.serve_slot(seat, slot, buffer));
        }
    }
}
