//! The sessions there are: what `cenote_sessions` shows, what a CancelRequest looks for, and what a shutdown ends.
//!
//! The list's lock is taken when a session begins or ends and when the list is read. A statement takes no lock that
//! another statement takes: each session publishes its state in its own [`Entry`].

use super::socket::Socket;
use cenote_sql::CancelHandle;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How often it is looked whether a block has ended that is waited for.
const BLOCK_POLL: Duration = Duration::from_millis(5);
/// Bytes of a statement's text that are kept to be shown.
const QUERY_BYTES_SHOWN: usize = 1024;

/// The beginning of a statement's text, as long as it is shown.
pub fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(QUERY_BYTES_SHOWN)]
}

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Waits for the client, outside of a transaction.
    Idle = 0,
    /// Executes a statement.
    Active = 1,
    /// Waits for the client, inside a transaction.
    InTransaction = 2,
    /// Waits for the client, inside a transaction that failed.
    InFailedTransaction = 3,
}

impl State {
    fn from_raw(raw: u8) -> Self {
        match raw {
            1 => State::Active,
            2 => State::InTransaction,
            3 => State::InFailedTransaction,
            _ => State::Idle,
        }
    }

    /// The word that PostgreSQL's `pg_stat_activity` uses.
    pub fn word(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Active => "active",
            State::InTransaction => "idle in transaction",
            State::InFailedTransaction => "idle in transaction (aborted)",
        }
    }
}

/// A session as others see it.
#[derive(Debug)]
pub struct Entry {
    /// Number that clients know it by (`pg_backend_pid()`).
    pub id: i32,
    /// What a CancelRequest must know besides the number.
    secret: i32,
    /// Role name.
    pub user: String,
    /// Client address.
    pub client: String,
    /// When it began.
    pub connected: SystemTime,
    /// Whether a proxy has it: its client has another session when this one ends.
    has_proxy: bool,
    application_name: Mutex<String>,
    query: Mutex<String>,
    state: AtomicU8,
    statements: AtomicU64,
    stream: Arc<Socket>,
    cancel: Mutex<Option<CancelHandle>>,
    ending: Arc<AtomicBool>,
    /// It has what no other session can be given.
    holds: AtomicBool,
    /// Whether it has a block that cannot be left to the next server, and why.
    stays: AtomicBool,
    stays_because: Mutex<Option<&'static str>>,
    /// The statement, by its number, that was cancelled because the server has no thread left; 0: none.
    stopped: AtomicU64,
    /// Without a thread: a COPY in which the client pauses.
    parked: AtomicBool,
}

impl Entry {
    /// Publishes that a statement runs. Only the session's own thread calls it.
    pub fn started(&self) {
        self.state.store(State::Active as u8, Ordering::Relaxed);
        let statements = self.statements.load(Ordering::Relaxed);
        self.statements.store(statements + 1, Ordering::Relaxed);
    }

    /// Publishes that the session waits for its client, with the transaction status of ReadyForQuery.
    pub fn waits(&self, status: u8) {
        let state = match status {
            b'T' => State::InTransaction,
            b'E' => State::InFailedTransaction,
            _ => State::Idle,
        };
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Publishes whether it has what no other session can be given, and what keeps its open block from being left to the
    /// next server. Before [`waits`](Self::waits).
    pub fn set_holds(&self, holds: bool, stays_because: Option<&'static str>) {
        self.holds.store(holds, Ordering::Relaxed);
        let stays = self.has_proxy && stays_because.is_some();
        // Its own thread alone writes it.
        if stays || self.stays.load(Ordering::Relaxed) {
            *lock(&self.stays_because) = stays_because.filter(|_| stays);
            self.stays.store(stays, Ordering::Relaxed);
        }
    }

    /// Why its open block cannot be left to the next server, if it cannot, and would be else.
    fn stays_because(&self) -> Option<&'static str> {
        match self.stays.load(Ordering::Relaxed) {
            true => *lock(&self.stays_because),
            false => None,
        }
    }

    /// Whether a proxy gives its client another session when this one ends, and the client sees nothing of it.
    fn has_nothing_to_lose(&self) -> bool {
        self.has_proxy && self.state() == State::Idle && !self.holds.load(Ordering::Relaxed)
    }

    /// Publishes the beginning of a statement's text.
    pub fn set_query(&self, text: &str) {
        let mut query = lock(&self.query);
        query.clear();
        query.push_str(shown(text));
    }

    /// The statement that runs, or the one before.
    pub fn query(&self) -> String {
        lock(&self.query).clone()
    }

    /// Follows the session's setting.
    pub fn set_application_name(&self, name: &str) {
        name.clone_into(&mut lock(&self.application_name));
    }

    /// What the client calls itself.
    pub fn application_name(&self) -> String {
        lock(&self.application_name).clone()
    }

    /// What it does now.
    pub fn state(&self) -> State {
        State::from_raw(self.state.load(Ordering::Relaxed))
    }

    /// Statements since it began.
    pub fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// What a CancelRequest must know, told to the client in BackendKeyData.
    pub fn secret(&self) -> i32 {
        self.secret
    }

    /// Names what stops the session's running statement.
    pub fn set_cancel(&self, handle: CancelHandle) {
        *lock(&self.cancel) = Some(handle);
        if self.is_ending() {
            self.cancel();
        }
    }

    /// Asks the running statement to give up.
    pub fn cancel(&self) {
        if let Some(handle) = lock(&self.cancel).as_ref() {
            handle.cancel();
        }
    }

    /// As [`cancel`](Self::cancel), for want of threads.
    pub fn stop_for_thread(&self) {
        self.stopped.store(self.statements(), Ordering::Release);
        self.cancel();
    }

    /// Whether that stopped the statement that runs.
    pub fn was_stopped_for_thread(&self) -> bool {
        self.stopped.load(Ordering::Acquire) == self.statements()
    }

    /// Publishes whether the session has a thread.
    pub fn set_parked(&self, parked: bool) {
        self.parked.store(parked, Ordering::Relaxed);
    }

    /// Whether it executes a statement, and keeps a thread for it.
    pub fn keeps_thread(&self) -> bool {
        self.state() == State::Active && !self.parked.load(Ordering::Relaxed)
    }

    /// What is set when the server wants the session to end.
    pub fn ending(&self) -> Arc<AtomicBool> {
        self.ending.clone()
    }

    /// Whether the server wants the session to end.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.cancel();
        // The session's read returns as if the client had left; what it still writes goes out.
        self.stream.shutdown(Shutdown::Read).ok();
    }

    /// As `end`, and lets what it does be done.
    fn end_softly(&self) {
        self.ending.store(true, Ordering::Release);
        self.stream.shutdown(Shutdown::Read).ok();
    }

    /// For a session that has not ended by itself: what it writes fails, too.
    fn cut_off(&self) {
        self.stream.shutdown(Shutdown::Both).ok();
    }

    /// Whether the client has closed its side. Sees it only where the client has sent nothing that is not read yet.
    pub fn client_left(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&*self.stream, &mut byte, flags) {
            Ok((0, _)) => true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }
}

type Sessions<'a> = MutexGuard<'a, BTreeMap<i32, Arc<Entry>>>;

/// All sessions.
#[derive(Debug, Default)]
pub struct Registry {
    sessions: Mutex<BTreeMap<i32, Arc<Entry>>>,
    left: Condvar,
    last_id: AtomicI32,
    closing: AtomicBool,
    /// Statements of sessions that have ended.
    statements: AtomicU64,
}

/// How a server is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InUse {
    /// Sessions.
    pub sessions: usize,
    /// Those that no proxy has.
    pub direct: usize,
    /// Statements that were begun, by these and by those before.
    pub statements: u64,
}

/// What a session is registered with.
#[derive(Debug)]
pub struct Arrival {
    /// Role name.
    pub user: String,
    /// Client address.
    pub client: String,
    /// What the client calls itself.
    pub application_name: String,
    /// Whether the client is a proxy.
    pub has_proxy: bool,
    /// The connection.
    pub stream: Arc<Socket>,
}

/// Why no session could be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// As many sessions as allowed are there.
    Full,
    /// The server shuts down.
    Closing,
}

impl Registry {
    /// Registers a session, of `max` at most, until the guard is dropped.
    ///
    /// # Errors
    /// [`Refused`]: the server closes, or has as many sessions as it may.
    pub fn enter(self: &Arc<Self>, arrival: Arrival, max: usize) -> Result<Registered, Refused> {
        let mut sessions = lock(&self.sessions);
        if self.closing.load(Ordering::Acquire) {
            return Err(Refused::Closing);
        }
        if sessions.len() >= max {
            return Err(Refused::Full);
        }
        let id = self.free_id(&sessions);
        let entry = Arc::new(Entry {
            id,
            secret: random_secret(),
            user: arrival.user,
            client: arrival.client,
            connected: SystemTime::now(),
            has_proxy: arrival.has_proxy,
            application_name: Mutex::new(arrival.application_name),
            query: Mutex::default(),
            state: AtomicU8::new(State::Idle as u8),
            statements: AtomicU64::new(0),
            stream: arrival.stream,
            cancel: Mutex::default(),
            ending: Arc::default(),
            holds: AtomicBool::new(false),
            stays: AtomicBool::new(false),
            stays_because: Mutex::default(),
            stopped: AtomicU64::new(0),
            parked: AtomicBool::new(false),
        });
        sessions.insert(id, entry.clone());
        Ok(Registered {
            registry: self.clone(),
            entry,
        })
    }

    fn free_id(&self, sessions: &BTreeMap<i32, Arc<Entry>>) -> i32 {
        loop {
            let id = self.last_id.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if id > 0 && !sessions.contains_key(&id) {
                return id;
            }
            if id < 0 {
                self.last_id.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Cancels the running statement of session `id` if `secret` is its secret.
    pub fn cancel(&self, id: i32, secret: i32) -> bool {
        let entry = lock(&self.sessions)
            .get(&id)
            .filter(|entry| entry.secret == secret)
            .cloned();
        entry.inspect(|entry| entry.cancel()).is_some()
    }

    /// How many sessions there are.
    pub fn count(&self) -> usize {
        lock(&self.sessions).len()
    }

    /// How the server is used.
    pub fn in_use(&self) -> InUse {
        let sessions = lock(&self.sessions);
        let begun: u64 = sessions.values().map(|entry| entry.statements()).sum();
        InUse {
            sessions: sessions.len(),
            direct: sessions.values().filter(|entry| !entry.has_proxy).count(),
            statements: begun + self.statements.load(Ordering::Relaxed),
        }
    }

    /// All sessions in the order of their numbers.
    pub fn sessions(&self) -> Vec<Arc<Entry>> {
        lock(&self.sessions).values().cloned().collect()
    }

    /// Those that execute a statement.
    pub fn active(&self) -> Vec<Arc<Entry>> {
        let sessions = lock(&self.sessions);
        let active = sessions.values().filter(|entry| entry.state() == State::Active);
        active.cloned().collect()
    }

    /// Lets no session in any more, if none has anything to lose by its end: there is none, or, where `may_end`, they
    /// are proxies', which have no transaction, no statement, and nothing that PREPARE made. Else nothing changes.
    pub fn close_if_unused(&self, may_end: bool) -> bool {
        let sessions = lock(&self.sessions);
        let closes = sessions.values().all(|entry| may_end && entry.has_nothing_to_lose());
        if closes {
            self.closing.store(true, Ordering::Release);
            // What comes from here on is told as not begun: its proxy sends it elsewhere.
            sessions.values().for_each(|entry| entry.end_softly());
        }
        closes
    }

    /// Before an end that is planned: waits until no proxy's client has a block that cannot go with it, `most` at most.
    /// Sessions go on meanwhile. `tell` is told whom it waits for, and why.
    pub fn wait_for_blocks(&self, most: Duration, mut tell: impl FnMut(i32, &'static str)) {
        let deadline = Instant::now() + most;
        let mut told = BTreeSet::new();
        loop {
            let sessions = self.sessions();
            let staying: Vec<_> = sessions
                .iter()
                .filter_map(|entry| Some((entry.id, entry.stays_because()?)))
                .collect();
            for (id, reason) in &staying {
                if told.insert(*id) {
                    tell(*id, reason);
                }
            }
            if staying.is_empty() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(BLOCK_POLL);
        }
    }

    /// Ends all sessions and lets no new one in; returns how many are still there after `timeout`. After half of it,
    /// those that are left, whose clients do not read what they are sent, are cut off.
    pub fn end_all(&self, timeout: Duration) -> usize {
        let sessions = lock(&self.sessions);
        self.closing.store(true, Ordering::Release);
        sessions.values().for_each(|entry| entry.end());
        let sessions = self.wait_empty(sessions, timeout / 2);
        sessions.values().for_each(|entry| entry.cut_off());
        self.wait_empty(sessions, timeout / 2).len()
    }

    /// Ends the sessions once their statements are done, for `grace` at most; [`Registry::end_all`] ends the others.
    pub fn end_softly(&self, grace: Duration) {
        let sessions = lock(&self.sessions);
        self.closing.store(true, Ordering::Release);
        sessions.values().for_each(|entry| entry.end_softly());
        drop(self.wait_empty(sessions, grace));
    }

    fn wait_empty<'a>(&self, mut sessions: Sessions<'a>, timeout: Duration) -> Sessions<'a> {
        let deadline = Instant::now() + timeout;
        while !sessions.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            sessions = self
                .left
                .wait_timeout(sessions, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        sessions
    }
}

/// A registered session; dropping it takes it off the list.
#[derive(Debug)]
pub struct Registered {
    registry: Arc<Registry>,
    /// What others see.
    pub entry: Arc<Entry>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut sessions = lock(&self.registry.sessions);
        sessions.remove(&self.entry.id);
        let statements = self.entry.statements();
        self.registry.statements.fetch_add(statements, Ordering::Relaxed);
        drop(sessions);
        self.registry.left.notify_all();
    }
}

/// No state behind these locks is ever half-changed, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random_secret() -> i32 {
    let mut bytes = [0; 4];
    super::auth::fill_random(&mut bytes);
    i32::from_ne_bytes(bytes)
}
