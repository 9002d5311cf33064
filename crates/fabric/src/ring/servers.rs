//! Threads that serve rings: a fixed number of them, for any number of rings.
//!
//! ```text
//!            a user comes                       no room among the hot ones
//!   idle ─────────────────▶ hot ─────────────────────────────────────────────▶ cold
//!     ▲                     │ ▲  served: it takes the place of the hot ring       │
//!     └── no user is left ──┘ └──────────── that was not used for longest ────────┘
//! ```
//!
//! Each ring is one thread's. A thread sleeps on the doorbells of all its *hot* rings at once (`futex_waitv`), of which
//! there may be so many as the system lets it wait on, [`HOT_MAX`]; so a request of one of them is served as soon as by
//! a thread of its own. Rings beyond those are *cold*: it looks at them each [`COLD_EVERY`]. A ring without users is
//! looked at when somebody is let in.
//!
//! Invariants, beside those of the [module above](super):
//! 1. a hot ring is *announced* (it counts in the region's sleepers) before its thread looks at it for the last time
//!    and sleeps. It stays so until something of it is served: a ring that is not used costs nothing between two sleeps;
//! 2. the doorbell's value that the thread sleeps on was read before that last look;
//! 3. after [`Server::detach`] the thread has nothing of a ring.

use super::LOOK;
use super::node::Inner;
use crate::rdma::call::LIMIT;
use cenote_base::rt::atomic::{AtomicBool, AtomicU32, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rings that a thread sleeps on; one more word is its own.
const HOT_MAX: usize = rt::WORDS_MAX - 1;
/// Between two looks at rings beyond those.
const COLD_EVERY: Nanos = Nanos::from_millis(10);
/// Requests of a ring that are served before the next ring has its turn.
const STREAK: u32 = 64;
/// A ring that was not used for so long is looked after ten times as seldom.
const USED: Nanos = Nanos::from_secs(1);
/// Of those looks, one in so many looks for requests without an entry.
const SEARCH_EVERY: u32 = 5;
/// Of a look when answers wait for room.
const ROOM: Nanos = Nanos::from_millis(1);
const IDLE: Nanos = Nanos::from_secs(10);

/// Threads for rings. Dropping it ends them, when no ring has one any more.
pub struct Servers {
    each: Vec<Arc<Server>>,
    threads: Mutex<Vec<rt::JoinHandle<()>>>,
}

/// One of the threads, as its rings know it.
pub(super) struct Server {
    rings: Mutex<Vec<Arc<Inner>>>,
    /// Rises with each ring that comes or goes; and the last one that the thread has seen.
    version: AtomicU32,
    seen: AtomicU32,
    /// Rises when the thread shall look.
    bell: AtomicU32,
    stop: AtomicBool,
}

impl Servers {
    /// So many threads, one at least, which look for the next request for so long before they sleep.
    ///
    /// # Errors
    /// Those of starting threads.
    pub fn new(threads: usize, spin: Nanos) -> Result<Self> {
        let each: Vec<_> = (0..threads.max(1)).map(|_| Arc::new(Server::default())).collect();
        let servers = Self {
            each,
            threads: Mutex::default(),
        };
        for server in &servers.each {
            let theirs = Arc::clone(server);
            let thread = rt::try_spawn("rings", move || Rounds::new(theirs, spin).run());
            let thread = thread.map_err(|error| Error::io("starting a thread of rings", error))?;
            servers.threads.lock().push(thread);
        }
        Ok(servers)
    }

    /// The thread with the fewest rings gets another.
    pub(super) fn attach(&self, ring: &Arc<Inner>) -> Arc<Server> {
        let fewest = self.each.iter().min_by_key(|server| server.rings.lock().len());
        let server = fewest.expect("there is a thread");
        server.rings.lock().push(Arc::clone(ring));
        server.version.fetch_add(1, Ordering::SeqCst);
        server.ring();
        Arc::clone(server)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &self.each {
            server.stop.store(true, Ordering::SeqCst);
            server.ring();
        }
        let threads = core::mem::take(&mut *self.threads.lock());
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl core::fmt::Debug for Servers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} threads for rings", self.each.len())
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            rings: Mutex::default(),
            version: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        }
    }
}

impl Server {
    /// Wakes the thread.
    pub(super) fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        rt::wake_shared(&self.bell, usize::MAX);
    }

    /// Waits until the thread has nothing of a ring any more.
    pub(super) fn detach(&self, ring: &Arc<Inner>) {
        self.rings.lock().retain(|other| !Arc::ptr_eq(other, ring));
        let version = self.version.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        self.ring();
        let is_seen = || (self.seen.load(Ordering::SeqCst).wrapping_sub(version) as i32) >= 0;
        while !is_seen() && !self.stop.load(Ordering::SeqCst) {
            rt::sleep(Nanos::from_micros(100));
        }
    }
}

/// A ring, as its thread knows it.
struct Watch {
    ring: Arc<Inner>,
    /// It is announced that a thread sleeps; its doorbell as it was before the last look.
    announced: Option<u32>,
    used: Nanos,
    /// When it is looked after, and how often it was since it was used.
    look: Nanos,
    looks: u32,
}

impl Watch {
    fn new(ring: Arc<Inner>, now: Nanos) -> Self {
        Self {
            ring,
            announced: None,
            used: now,
            look: now + LOOK,
            looks: 0,
        }
    }

    /// Serves what is there, up to a streak; whether that was anything.
    fn serve(&mut self, buffer: &mut Vec<u8>) -> bool {
        let served = (0..STREAK).take_while(|_| self.ring.serve_next(buffer)).count() > 0;
        if served {
            self.withdraw();
            self.looks = 0;
        }
        served
    }

    fn announce(&mut self) {
        let doorbell = self.ring.doorbell().load(Ordering::SeqCst);
        if self.announced.replace(doorbell).is_none() {
            self.ring.asleep().fetch_add(1, Ordering::SeqCst);
        }
    }

    fn withdraw(&mut self) {
        if self.announced.take().is_some() {
            self.ring.asleep().fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn look_after(&mut self, now: Nanos, buffer: &mut Vec<u8>) {
        let is_used = now.since(self.used) < USED;
        self.looks += 1;
        self.ring
            .look_after_all(buffer, is_used || self.looks.is_multiple_of(SEARCH_EVERY));
        let every = if is_used { LOOK } else { Nanos(LOOK.raw() * 10) };
        // The looks of many rings come together.
        self.look = Nanos((now + every).raw().next_multiple_of(LOOK.raw()));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// What a thread does.
struct Rounds {
    server: Arc<Server>,
    spin: Nanos,
    hot: Vec<Watch>,
    cold: Vec<Watch>,
    idle: Vec<Watch>,
    version: u32,
    /// The bell, when the rings were last sorted.
    heard: u32,
    cold_due: Nanos,
    buffer: Vec<u8>,
}

impl Rounds {
    fn new(server: Arc<Server>, spin: Nanos) -> Self {
        Self {
            server,
            spin,
            hot: Vec::new(),
            cold: Vec::new(),
            idle: Vec::new(),
            version: 0,
            heard: u32::MAX,
            cold_due: Nanos::ZERO,
            buffer: Vec::with_capacity(LIMIT),
        }
    }

    fn run(mut self) {
        let (mut idle_since, mut streak) = (None, 0);
        while !self.server.stop.load(Ordering::SeqCst) {
            self.listen();
            if self.serve_hot() {
                (idle_since, streak) = (None, streak + 1);
                if streak < STREAK {
                    continue;
                }
            }
            streak = 0;
            let now = rt::now();
            self.serve_cold(now);
            self.look_after(now);
            if now.since(*idle_since.get_or_insert(now)) < self.spin {
                rt::relax();
            } else {
                self.sleep(now);
                idle_since = None;
            }
        }
    }

    /// Takes over rings that have come, forgets those that have gone, and finds those that have users now.
    fn listen(&mut self) {
        let bell = self.server.bell.load(Ordering::SeqCst);
        if bell == self.heard {
            return;
        }
        self.heard = bell;
        let version = self.server.version.load(Ordering::SeqCst);
        if version != self.version {
            self.take_over();
            self.version = version;
            self.server.seen.store(version, Ordering::SeqCst);
        }
        let now = rt::now();
        let (used, idle) = core::mem::take(&mut self.idle).into_iter().partition(has_users);
        self.idle = idle;
        let used: Vec<Watch> = used;
        for mut watch in used {
            (watch.used, watch.look) = (now, now + LOOK);
            self.warm(watch);
        }
    }

    fn take_over(&mut self) {
        let rings = self.server.rings.lock().clone();
        let now = rt::now();
        let mut known: BTreeMap<usize, Watch> = BTreeMap::new();
        for list in [&mut self.hot, &mut self.cold, &mut self.idle] {
            known.extend(list.drain(..).map(|watch| (address(&watch.ring), watch)));
        }
        for ring in rings {
            let found = known.remove(&address(&ring));
            match found.unwrap_or_else(|| Watch::new(ring, now)) {
                watch if has_users(&watch) => self.warm(watch),
                watch => self.idle.push(watch),
            }
        }
    }

    /// A ring with users.
    fn warm(&mut self, mut watch: Watch) {
        if self.hot.len() < HOT_MAX {
            return self.hot.push(watch);
        }
        watch.withdraw();
        self.cold.push(watch);
    }

    fn serve_hot(&mut self) -> bool {
        let mut any = false;
        for watch in &mut self.hot {
            any |= watch.serve(&mut self.buffer);
        }
        any
    }

    /// Rings on whose doorbells the thread does not sleep.
    fn serve_cold(&mut self, now: Nanos) {
        if self.cold.is_empty() || now < self.cold_due {
            return;
        }
        self.cold_due = now + COLD_EVERY;
        for at in 0..self.cold.len() {
            self.cold[at].ring.put_waiting();
            if !self.cold[at].serve(&mut self.buffer) {
                continue;
            }
            self.cold[at].used = now;
            let coldest = self.hot.iter_mut().min_by_key(|watch| watch.used);
            if let Some(coldest) = coldest.filter(|watch| now.since(watch.used) > COLD_EVERY) {
                coldest.withdraw();
                core::mem::swap(coldest, &mut self.cold[at]);
            }
        }
    }

    fn look_after(&mut self, now: Nanos) {
        for watch in &mut self.hot {
            if watch.looks == 0 {
                watch.used = now;
            }
            watch.ring.put_waiting();
        }
        for watch in self.hot.iter_mut().chain(&mut self.cold) {
            if watch.look <= now || watch.ring.is_searched() {
                watch.look_after(now, &mut self.buffer);
            }
        }
        let mut left = Vec::new();
        for list in [&mut self.hot, &mut self.cold] {
            left.extend(list.extract_if(.., |watch| !has_users(watch)));
        }
        left.iter_mut().for_each(Watch::withdraw);
        self.idle.append(&mut left);
        while self.hot.len() < HOT_MAX
            && let Some(watch) = self.cold.pop()
        {
            self.hot.push(watch);
        }
    }

    /// Until something is posted at a hot ring, or it is time to look.
    fn sleep(&mut self, now: Nanos) {
        self.hot.iter_mut().for_each(Watch::announce);
        // A user that has put something since has seen that a thread sleeps.
        if self.hot.iter().any(|watch| watch.ring.has_more()) {
            return;
        }
        let words = self.hot.iter().filter_map(|watch| {
            let doorbell = watch.announced?;
            Some((watch.ring.doorbell(), doorbell))
        });
        let words: Vec<_> = core::iter::once((&self.server.bell, self.heard)).chain(words).collect();
        rt::wait_any_shared(&words, self.timeout(now));
    }

    fn timeout(&self, now: Nanos) -> Nanos {
        if self.hot.iter().any(|watch| watch.ring.wants_room()) {
            return ROOM;
        }
        let looks = self.hot.iter().chain(&self.cold).map(|watch| watch.look.since(now));
        let cold = (!self.cold.is_empty()).then(|| self.cold_due.since(now));
        looks.chain(cold).min().unwrap_or(IDLE).max(Nanos::from_micros(50))
    }
}

fn has_users(watch: &Watch) -> bool {
    watch.ring.has_users()
}

fn address(ring: &Arc<Inner>) -> usize {
    Arc::as_ptr(ring) as usize
}
