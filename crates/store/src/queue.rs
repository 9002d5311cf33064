//! Batches that are submitted without waiting: a fixed number of threads copies, and an eventfd tells when a batch is
//! done.
//!
//! ```text
//! submit ──► jobs ──► thread: put, get, ... key by key ──► the batch's last key: completions, eventfd ──► drain
//! ```
//!
//! A batch's buffers are the queue's from `submit` until `drain` gives the batch back, or the queue is dropped.

use super::Store;
use super::borrow::Pin;
use super::put::{Put, PutOptions};
use super::read::Value;
use cenote_base::error::IoContext;
use cenote_base::rt::atomic::{AtomicU64, AtomicUsize, Ordering};
use cenote_base::rt::{self, Condvar, JoinHandle, Mutex};
use cenote_base::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Keys that wait at most.
const WAITING_MAX: usize = 1 << 17;
/// Keys that a thread takes at once where they are many.
const TOGETHER: usize = 32;

/// Memory of a caller's, for as long as a batch takes.
pub trait Buffer: Send {
    /// All of it, for a value to be copied from.
    fn bytes(&self) -> &[u8];

    /// All of it, for a value to be copied to.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Buffer for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// What is to be done with one key.
pub enum Request<B> {
    /// [`Store::put`] of the buffer's bytes.
    Put(B, PutOptions),
    /// [`Store::get_into`] the buffer.
    Get(B),
    /// [`Store::exists`], pinned or not.
    Exists(bool),
    /// [`Store::remove`].
    Remove,
}

/// What came of it.
pub enum Outcome {
    /// Of a put.
    Put(Put),
    /// Of a get; `None`: the key is not there.
    Got(Option<Value>),
    /// Whether it is there; a pin where that was asked for.
    Exists(bool, Option<Pin>),
    /// Whether it was there.
    Removed(bool),
    /// Neither.
    Failed(Error),
}

/// A key, and what came of it.
pub type Keyed = (Vec<u8>, Outcome);

/// A batch that is done: its number, and what came of each key, in their order.
pub struct Completion {
    /// As `submit` gave it.
    pub id: u64,
    /// Each key with its outcome.
    pub outcomes: Vec<Keyed>,
}

/// See the module.
pub struct Queue<B: Buffer + 'static> {
    shared: Arc<Shared<B>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    count: usize,
}

/// What came of a key whose step has panicked.
fn bug() -> Outcome {
    Outcome::Failed(Error::Poisoned(
        "a bug in the store: this key's step ended in a panic".into(),
    ))
}

struct Shared<B> {
    store: Store,
    jobs: Mutex<Jobs<B>>,
    wake: Condvar,
    done: Mutex<VecDeque<Completion>>,
    event: OwnedFd,
    next: AtomicU64,
}

struct Jobs<B> {
    waiting: VecDeque<Job<B>>,
    keys: usize,
    ends: bool,
}

struct Job<B> {
    batch: Arc<Batch>,
    first: usize,
    requests: Vec<(Vec<u8>, Request<B>)>,
}

struct Batch {
    id: u64,
    left: AtomicUsize,
    outcomes: Mutex<Vec<Option<Keyed>>>,
}

impl<B: Buffer + 'static> Queue<B> {
    /// With so many threads; 0: as many as there are processors, four at most.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no threads or descriptors to give.
    pub fn new(store: &Store, threads: usize) -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event
            .map_err(std::io::Error::from)
            .doing(|| "making an eventfd for the store's completions".into())?;
        let shared = Arc::new(Shared {
            store: store.clone(),
            jobs: Mutex::new(Jobs {
                waiting: VecDeque::new(),
                keys: 0,
                ends: false,
            }),
            wake: Condvar::new(),
            done: Mutex::default(),
            event,
            next: AtomicU64::new(1),
        });
        let n = if threads == 0 { rt::cores().min(4) } else { threads };
        let mut queue = Self {
            shared,
            threads: Mutex::default(),
            count: n,
        };
        for _ in 0..n {
            let shared = Arc::clone(&queue.shared);
            let thread = rt::try_spawn("store-copy", move || shared.work());
            queue
                .threads
                .get_mut()
                .push(thread.doing(|| "starting a copy thread of the store".into())?);
        }
        Ok(queue)
    }

    /// Readable when batches are done.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Begins a batch: its number.
    ///
    /// # Errors
    /// [`Error::Full`] if too many keys wait: then none of these was begun.
    pub fn submit(&self, requests: Vec<(Vec<u8>, Request<B>)>) -> Result<u64> {
        let (shared, n) = (&self.shared, requests.len());
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        if n == 0 {
            shared.complete(Completion {
                id,
                outcomes: Vec::new(),
            });
            return Ok(id);
        }
        let outcomes = Mutex::new((0..n).map(|_| None).collect());
        let batch = Arc::new(Batch {
            id,
            left: AtomicUsize::new(n),
            outcomes,
        });
        let together = n.div_ceil(self.count).min(TOGETHER);
        let mut jobs = shared.jobs.lock();
        if jobs.keys + n > WAITING_MAX {
            return Err(Error::Full(format!(
                "{} keys wait for the store's copy threads: drain first",
                jobs.keys
            )));
        }
        jobs.keys += n;
        let (mut requests, mut first) = (requests.into_iter().peekable(), 0);
        while requests.peek().is_some() {
            let some: Vec<_> = requests.by_ref().take(together).collect();
            let count = some.len();
            jobs.waiting.push_back(Job {
                batch: Arc::clone(&batch),
                first,
                requests: some,
            });
            first += count;
        }
        drop(jobs);
        shared.wake.notify_all();
        Ok(id)
    }

    /// The batches that are done, and were not drained before.
    pub fn drain(&self) -> Vec<Completion> {
        // Before they are taken: one that is done in between makes it readable again.
        let _ = rustix::io::read(&self.shared.event, &mut [0; 8]);
        self.shared.done.lock().drain(..).collect()
    }
}

impl<B: Buffer + 'static> Drop for Queue<B> {
    /// Returns when no thread uses a buffer any more: what waits is not begun.
    fn drop(&mut self) {
        let mut jobs = self.shared.jobs.lock();
        jobs.ends = true;
        jobs.waiting.clear();
        drop(jobs);
        self.shared.wake.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            let _ = thread.join();
        }
    }
}

impl<B: Buffer> Shared<B> {
    fn work(&self) {
        while let Some(job) = self.next_job() {
            let (batch, first, count) = (job.batch, job.first, job.requests.len());
            let are_gets = job.requests.iter().all(|(_, what)| matches!(what, Request::Get(_)));
            if are_gets && count > 1 {
                let done = self.get_together(job.requests);
                let mut outcomes = batch.outcomes.lock();
                outcomes[first..]
                    .iter_mut()
                    .zip(done)
                    .for_each(|(place, one)| *place = Some(one));
            } else {
                for (n, (key, request)) in job.requests.into_iter().enumerate() {
                    // A panic is this key's failure, and not the end of the thread.
                    let outcome = catch_unwind(AssertUnwindSafe(|| self.outcome(&key, request)));
                    batch.outcomes.lock()[first + n] = Some((key, outcome.unwrap_or_else(|_| bug())));
                }
            }
            if batch.left.fetch_sub(count, Ordering::AcqRel) == count {
                let outcomes = core::mem::take(&mut *batch.outcomes.lock());
                let outcomes = outcomes.into_iter().flatten().collect();
                self.complete(Completion { id: batch.id, outcomes });
            }
        }
    }

    /// Gets alone take a few trips, however many they are.
    fn get_together(&self, requests: Vec<(Vec<u8>, Request<B>)>) -> Vec<Keyed> {
        let get = |(key, request)| match request {
            Request::Get(into) => Some((key, into)),
            _ => None,
        };
        let mut gets: Vec<(Vec<u8>, B)> = requests.into_iter().filter_map(get).collect();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let pairs = gets.iter_mut().map(|(key, into)| (&key[..], into.bytes_mut()));
            self.store.get_many_into(pairs)
        }));
        let keys = gets.into_iter().map(|(key, _)| key);
        match read {
            Ok(values) => {
                let outcomes = values
                    .into_iter()
                    .map(|value| value.map_or_else(Outcome::Failed, Outcome::Got));
                keys.zip(outcomes).collect()
            }
            Err(_) => keys.map(|key| (key, bug())).collect(),
        }
    }

    fn next_job(&self) -> Option<Job<B>> {
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.ends {
                return None;
            }
            if let Some(job) = jobs.waiting.pop_front() {
                jobs.keys -= job.requests.len();
                return Some(job);
            }
            jobs = self.wake.wait(jobs);
        }
    }

    fn outcome(&self, key: &[u8], request: Request<B>) -> Outcome {
        let store = &self.store;
        let outcome = match request {
            Request::Put(from, options) => store.put(key, from.bytes(), options).map(Outcome::Put),
            Request::Get(mut into) => store.get_into(key, into.bytes_mut()).map(Outcome::Got),
            Request::Remove => store.remove(key).map(Outcome::Removed),
            Request::Exists(pins) => store.exists([key], pins).map(|mut presence| {
                let is_there = presence.prefix == 1;
                Outcome::Exists(is_there, presence.pins.pop())
            }),
        };
        outcome.unwrap_or_else(Outcome::Failed)
    }

    fn complete(&self, completion: Completion) {
        self.done.lock().push_back(completion);
        // It fails only where the counter is full: then it is readable anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}
