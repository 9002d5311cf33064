//! One-sided verbs: reading and writing the memory of another machine without its processor.
//!
//! A *memory node* registers a part of its memory and hands the descriptor out ([`Remote`]: key, base, length). A
//! holder of it reaches the memory over an [`Endpoint`]: works ([`Work`]) are posted in batches with one doorbell, go
//! on by themselves, and come back complete with their buffers and results ([`Posted`]). There are three
//! implementations: memory of this process ([`loopback`], for tests), the simulator's network cards (crate `sim`), and
//! libfabric (crate `libfabric`).
//!
//! ```text
//!   Work::read(..)  ─┐               doorbell                      one-sided: no code of the node runs
//!   Work::write(..) ─┼─ post(batch) ────────► Posted ···· NIC ···· link ···· NIC ···· registered memory
//!   Work::fetch_add ─┘                          │ poll, wait
//!                                               ▼
//!                              the works again: buffers, results
//! ```
//!
//! # Duties of an endpoint
//! - Every posted work completes, within the endpoint's timeout, with a result or an error. Dropping a [`Posted`] takes
//!   nothing back.
//! - A work is done once or, if it fails, at most once; an error other than those below says nothing about whether it
//!   was.
//! - Ranges and keys are checked at the far side: [`Error::OutOfBounds`] and [`Error::Revoked`] mean that nothing of
//!   this work was done. After a revocation has returned at the node, nothing under that key reads or changes memory.
//! - Works of a batch, and batches, may be done in any order and side by side, except that a work marked
//!   [`Work::fenced`] begins after all earlier works of its batch are done. If one of those failed, it is
//!   not done and fails likewise.
//! - An aligned word of 8 bytes is read and written whole. Larger transfers may be seen in part, in any order of words.
//! - Atomics ([`Op::CompareAndSwap`], [`Op::FetchAdd`]) are atomic among all atomics of all endpoints on that word.
//! - A read that was posted after a write's completion was seen (by any thread, over any endpoint) sees that write.
//! - [`Error::Timeout`]: no answer in time. [`Error::Lost`]: the node is gone, or the path to it; the endpoint is
//!   broken for good and says so to all further work. A new one is needed ([`Fabric::connect`]).
//!
//! # Duties of a user
//! - Words that atomics change are changed by atomics alone, never by a plain write at the same time, nor by the
//!   memory node's processor.
//! - Atomics are at multiples of 8; buffers are not empty.
//! - A user that dies with writes in flight may have left any part of each of them: data that must be whole carries a
//!   checksum, a version, or a commit word that a later, fenced work writes.
//! - Nothing is posted inside a destructor: [`Endpoint::post`] may block, and [`Posted::wait`] does, through `rt`.
//!
//! Words are little-endian.

use crate::map::Mapping;
use cenote_base::{Error, Result};
use core::fmt;
use std::sync::Arc;

pub mod call;
pub mod loopback;

/// Names a registration at its memory node; never used again after it was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A range of a memory node's registered memory: what is handed from node to user, as plain data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Remote {
    /// The registration.
    pub key: Key,
    /// Where the range begins in it, as the provider counts: from 0, or by the node's own addresses.
    pub base: u64,
    /// Bytes in the range.
    pub len: u64,
}

impl Remote {
    /// The `len` bytes from `at` on, as a range of its own.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if they are not all inside.
    pub fn slice(self, at: u64, len: u64) -> Result<Remote> {
        self.check(at, len)?;
        Ok(Remote {
            base: self.base + at,
            len,
            ..self
        })
    }

    /// Says whether `len` bytes at `at` are inside.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if they are not all inside.
    pub fn check(self, at: u64, len: u64) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::OutOfBounds(format!(
                "{len} bytes at {at} of remote memory of {} bytes",
                self.len
            ))),
        }
    }
}

/// What a work does. Buffers are the endpoint's while it is under way, and come back with it.
#[derive(Debug)]
pub enum Op {
    /// Fills the buffer.
    Read(Box<[u8]>),
    /// Writes the buffer.
    Write(Box<[u8]>),
    /// Puts `new` in the word's place if it is `expected`; the result is the word before.
    CompareAndSwap {
        /// What the word must hold.
        expected: u64,
        /// What it holds then.
        new: u64,
    },
    /// Adds to the word, wrapping; the result is the word before.
    FetchAdd(u64),
}

impl Op {
    /// Bytes of remote memory that it touches.
    pub fn bytes(&self) -> u64 {
        match self {
            Op::Read(b) | Op::Write(b) => b.len() as u64,
            Op::CompareAndSwap { .. } | Op::FetchAdd(_) => 8,
        }
    }

    /// Whether it is an atomic.
    pub fn is_atomic(&self) -> bool {
        matches!(self, Op::CompareAndSwap { .. } | Op::FetchAdd(_))
    }
}

/// One operation of a batch.
#[derive(Debug)]
pub struct Work {
    /// The memory.
    pub memory: Remote,
    /// Where in it, in bytes.
    pub at: u64,
    /// What to do.
    pub op: Op,
    /// Begins only when all earlier works of its batch are done.
    pub fenced: bool,
    /// The user's mark, to know it again.
    pub tag: u64,
    /// How it went, once complete: bytes read or written, or the word before.
    pub result: Result<u64>,
}

impl Work {
    fn new(memory: Remote, at: u64, op: Op) -> Self {
        Self {
            memory,
            at,
            op,
            fenced: false,
            tag: 0,
            result: Ok(0),
        }
    }

    /// Reads `into.len()` bytes.
    pub fn read(memory: Remote, at: u64, into: Box<[u8]>) -> Self {
        Self::new(memory, at, Op::Read(into))
    }

    /// Writes `bytes`.
    pub fn write(memory: Remote, at: u64, bytes: Box<[u8]>) -> Self {
        Self::new(memory, at, Op::Write(bytes))
    }

    /// Exchanges the word if it is `expected`.
    pub fn compare_and_swap(memory: Remote, at: u64, expected: u64, new: u64) -> Self {
        Self::new(memory, at, Op::CompareAndSwap { expected, new })
    }

    /// Adds to the word.
    pub fn fetch_add(memory: Remote, at: u64, add: u64) -> Self {
        Self::new(memory, at, Op::FetchAdd(add))
    }

    /// After all earlier works of its batch.
    pub fn fenced(self) -> Self {
        Self { fenced: true, ..self }
    }

    /// With the user's mark.
    pub fn tagged(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// What can be known to be wrong before it is posted: range, alignment, an empty buffer.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] or [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        self.memory.check(self.at, self.op.bytes())?;
        if self.op.bytes() == 0 {
            return Err(Error::Invalid("an empty remote transfer".into()));
        }
        if self.op.is_atomic() && !(self.memory.base + self.at).is_multiple_of(8) {
            return Err(Error::Invalid(format!(
                "a remote atomic at {}, no multiple of 8",
                self.at
            )));
        }
        Ok(())
    }

    /// The bytes read, or the buffer written, and how it went.
    ///
    /// # Errors
    /// That of the work; [`Error::Invalid`] if it was an atomic.
    pub fn into_bytes(self) -> Result<Box<[u8]>> {
        self.result?;
        match self.op {
            Op::Read(bytes) | Op::Write(bytes) => Ok(bytes),
            _ => Err(Error::Invalid("an atomic has no buffer".into())),
        }
    }
}

/// Works under way, as an implementation sees them.
pub trait InFlight: Send {
    /// Whether all are complete. Never blocks.
    fn poll(&mut self) -> bool;
    /// Blocks through `rt` until all are complete; the works, in the order of posting.
    fn wait(self: Box<Self>) -> Vec<Work>;
    /// As [`InFlight::wait`], and leaves the processor to other threads from the beginning.
    fn wait_asleep(self: Box<Self>) -> Vec<Work> {
        self.wait()
    }
}

/// Works under way. Dropping it does not stop them.
#[must_use = "works come back with wait"]
pub struct Posted(Box<dyn InFlight>);

impl Posted {
    /// Around what an endpoint has started.
    pub fn new(works: Box<dyn InFlight>) -> Self {
        Self(works)
    }

    /// Around works that are complete.
    pub fn done(works: Vec<Work>) -> Self {
        Self(Box::new(Done(works)))
    }

    /// Whether all are complete. Never blocks.
    pub fn poll(&mut self) -> bool {
        self.0.poll()
    }

    /// Returns when all are complete: the works, in the order of posting.
    pub fn wait(self) -> Vec<Work> {
        self.0.wait()
    }

    /// As [`Posted::wait`], for one that waits beside much slower things: it does not spin. A thread that spins for an
    /// answer keeps the processor from others, and costs as much of it as the answer takes.
    pub fn wait_asleep(self) -> Vec<Work> {
        self.0.wait_asleep()
    }
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Posted")
    }
}

struct Done(Vec<Work>);

impl InFlight for Done {
    fn poll(&mut self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Vec<Work> {
        self.0
    }
}

/// What an endpoint can do at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Works that may be under way; `post` waits for room beyond.
    pub depth: usize,
    /// Bytes of one transfer.
    pub transfer: u64,
}

/// A connection to a memory node, for any number of threads. See the module for both sides' duties.
pub trait Endpoint: fmt::Debug + Send + Sync {
    /// The node's name, for messages.
    fn peer(&self) -> &str;

    /// What it can do at once.
    fn limits(&self) -> Limits;

    /// Whether a fence costs no trip: works are carried out in turn at their node anyway.
    fn fences_are_free(&self) -> bool {
        false
    }

    /// Starts works with one doorbell. Blocks only while too many are under way. What cannot be started comes back
    /// complete, with its error.
    fn post(&self, works: Vec<Work>) -> Posted;
}

/// Finds memory nodes by name.
pub trait Fabric: fmt::Debug + Send + Sync {
    /// A new endpoint towards the node called `peer`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is none of that name, [`Error::Lost`] when it cannot be reached.
    fn connect(&self, peer: &str) -> Result<Arc<dyn Endpoint>>;
}

/// A memory node's side: registers what it maps, and takes that back.
pub trait Registrar: fmt::Debug + Send + Sync {
    /// Where the node is reached, as [`Fabric::connect`] takes it.
    fn address(&self) -> String;

    /// Registers memory that others of this machine may use meanwhile, under a key that was never used and cannot be
    /// guessed. It stays mapped until the key is revoked.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be registered.
    fn register(&self, memory: Mapping) -> Result<Remote>;

    /// Registers the first `len` bytes of memory to be read, and no more, under a key as those of
    /// [`Registrar::register`]. The same memory may have many: each ends by itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes, or more than there are; [`Error::Io`] if it cannot be registered.
    fn register_to_read(&self, memory: &Arc<Mapping>, len: u64) -> Result<Remote>;

    /// Takes a key back. Once this has returned, nothing under it reads or changes memory. Says whether there was one.
    ///
    /// # Errors
    /// [`Error::Io`] if the provider did not end it: it may be in use, and is to be taken back again.
    fn revoke(&self, key: Key) -> Result<bool>;
}

/// Remote memory with the endpoint that reaches it: plain blocking operations, each a batch of one.
///
/// Ranges are checked here too, so that a wrong one costs no trip.
#[derive(Debug, Clone)]
pub struct RemoteMemory {
    endpoint: Arc<dyn Endpoint>,
    memory: Remote,
}

impl RemoteMemory {
    /// `memory` over `endpoint`.
    pub fn new(endpoint: Arc<dyn Endpoint>, memory: Remote) -> Self {
        Self { endpoint, memory }
    }

    /// The endpoint that reaches it.
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// The memory.
    pub fn memory(&self) -> Remote {
        self.memory
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "memory, not a collection")]
    pub fn len(&self) -> u64 {
        self.memory.len
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn slice(&self, at: u64, len: u64) -> Result<Self> {
        Ok(Self::new(Arc::clone(&self.endpoint), self.memory.slice(at, len)?))
    }

    fn one(&self, work: Work) -> Result<Work> {
        work.check()?;
        let mut works = self.endpoint.post(vec![work]).wait();
        works
            .pop()
            .ok_or_else(|| Error::Invalid("an endpoint lost a work".into()))
    }

    /// Reads into `into`.
    ///
    /// # Errors
    /// Those of [`Work::check`], before anything is sent, and of the endpoint: [`Error::Revoked`], [`Error::Timeout`],
    /// [`Error::Lost`].
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let bytes = self.read_boxed(at, vec![0; into.len()].into())?;
        into.copy_from_slice(&bytes);
        Ok(())
    }

    /// Reads into a buffer and returns it: no copy.
    ///
    /// # Errors
    /// Those of [`Work::check`], before anything is sent, and of the endpoint: [`Error::Revoked`], [`Error::Timeout`],
    /// [`Error::Lost`].
    pub fn read_boxed(&self, at: u64, into: Box<[u8]>) -> Result<Box<[u8]>> {
        self.one(Work::read(self.memory, at, into))?.into_bytes()
    }

    /// Writes `bytes`.
    ///
    /// # Errors
    /// Those of [`Work::check`], before anything is sent, and of the endpoint: [`Error::Revoked`], [`Error::Timeout`],
    /// [`Error::Lost`].
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write_boxed(at, bytes.into()).map(|_| ())
    }

    /// Writes a buffer and returns it: no copy.
    ///
    /// # Errors
    /// Those of [`Work::check`], before anything is sent, and of the endpoint: [`Error::Revoked`], [`Error::Timeout`],
    /// [`Error::Lost`].
    pub fn write_boxed(&self, at: u64, bytes: Box<[u8]>) -> Result<Box<[u8]>> {
        self.one(Work::write(self.memory, at, bytes))?.into_bytes()
    }

    /// Exchanges the word at `at` if it is `expected`; the word before.
    ///
    /// # Errors
    /// Those of [`Work::check`], before anything is sent, and of the endpoint: [`Error::Revoked`], [`Error::Timeout`],
    /// [`Error::Lost`].
    pub fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64> {
        self.one(Work::compare_and_swap(self.memory, at, expected, new))?.result
    }

    /// Adds to the word at `at`; the word before.
    ///
    /// # Errors
    /// Those of [`Work::check`], before anything is sent, and of the endpoint: [`Error::Revoked`], [`Error::Timeout`],
    /// [`Error::Lost`].
    pub fn fetch_add(&self, at: u64, add: u64) -> Result<u64> {
        self.one(Work::fetch_add(self.memory, at, add))?.result
    }

    /// The word at `at`.
    ///
    /// # Errors
    /// Those of [`Work::check`], before anything is sent, and of the endpoint: [`Error::Revoked`], [`Error::Timeout`],
    /// [`Error::Lost`].
    pub fn load(&self, at: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Reads `len` bytes at each position, all with one doorbell; in the order of `at`.
    ///
    /// # Errors
    /// The first that failed, as of [`RemoteMemory::read`].
    pub fn read_many(&self, at: &[u64], len: usize) -> Result<Vec<Box<[u8]>>> {
        let work = |at: &u64| Work::read(self.memory, *at, vec![0; len].into());
        let works = self.endpoint.post(at.iter().map(work).collect()).wait();
        works.into_iter().map(Work::into_bytes).collect()
    }

    /// Writes all, side by side, with one doorbell. On an error any of them may have been done.
    ///
    /// # Errors
    /// The first that failed, as of [`RemoteMemory::write`].
    pub fn write_many(&self, writes: Vec<(u64, Box<[u8]>)>) -> Result<()> {
        let work = |(at, bytes)| Work::write(self.memory, at, bytes);
        let works = self.endpoint.post(writes.into_iter().map(work).collect()).wait();
        works.into_iter().try_for_each(|w| w.result.map(|_| ()))
    }
}
