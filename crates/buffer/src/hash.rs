//! The page hash: from a page's id to its frame.
//!
//! Buckets hold the first frame of a chain; descriptors hold the next. Lookups take no lock: whatever they meet is
//! validated by the caller, which looks at the descriptor's key again once it has the latch's version. A lookup that
//! races with a change may miss; the slow path asks again under the bucket's lock, which insert and remove hold.
//!
//! Invariants:
//! - insertion and removal are each published by one store, so a process that dies at any moment
//!   leaves every chain whole;
//! - a frame is inserted after its key is stored and removed before its key is cleared, both under
//!   its exclusive latch;
//! - a chain is never followed for longer than [`STEPS_MAX`], nor out of the descriptors.
//!
//! The locks are in local memory: they protect the threads of one process from each other.

use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::seam::{Points, Seam};
use cenote_base::rt::{Mutex, MutexGuard};
use cenote_base::{Error, Result};

use crate::frame::Frames;
use crate::index::FrameIndex;

const LOCKS: usize = 512;
/// Frames in a chain that could be honest: buckets are as many as frames.
const STEPS_MAX: u32 = 1024;

const _: () = assert!(LOCKS.is_power_of_two(), "buckets are spread evenly over the locks");

/// The key of a page in the hash and in descriptors: never 0 for a page that can be.
#[inline(always)]
pub fn key_of(page: cenote_base::PageId) -> u64 {
    !page.raw()
}

/// The page of a key.
#[inline(always)]
pub fn page_of(key: u64) -> cenote_base::PageId {
    cenote_base::PageId::from_raw(!key)
}

/// What picks one of `buckets` (a power of two, more than one).
pub fn shift_of(buckets: u32) -> u32 {
    64 - buckets.trailing_zeros()
}

/// Which bucket a key falls into.
#[inline(always)]
pub fn bucket_by(shift: u32, key: u64) -> usize {
    // Fibonacci hashing: neighbours in a space are spread evenly.
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize
}

/// Locks of the buckets, and the shift that picks a bucket.
pub struct PageHash {
    locks: Box<[Mutex<()>]>,
    shift: u32,
    /// Whether changes are written back: other hosts look for pages here.
    writes_back: AtomicBool,
}

/// The lock of a key's bucket, held.
pub struct Bucket<'p> {
    frames: &'p Frames,
    index: usize,
    writes_back: bool,
    _lock: Option<MutexGuard<'p, ()>>,
}

impl PageHash {
    /// For `buckets` (a power of two) buckets.
    pub fn new(buckets: u32) -> Self {
        assert!(
            buckets.is_power_of_two() && buckets > 1,
            "a key's upper bits pick one of {buckets} buckets"
        );
        Self {
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            shift: shift_of(buckets),
            writes_back: AtomicBool::new(false),
        }
    }

    /// Changes are written back from here on.
    pub fn write_back_from_now(&self) {
        self.writes_back.as_raw().store(true, Ordering::Relaxed);
    }

    /// Whether its changes are written back.
    pub fn writes_back(&self) -> bool {
        self.writes_back.as_raw().load(Ordering::Relaxed)
    }

    /// Which bucket a key falls into.
    #[inline(always)]
    pub fn bucket(&self, key: u64) -> usize {
        bucket_by(self.shift, key)
    }

    /// The frame that seems to hold `key`, without any lock.
    pub fn find(&self, frames: &Frames, key: u64) -> Option<FrameIndex> {
        self.find_by(Points, frames, key)
    }

    /// As [`PageHash::find`], within an operation that has asked whether its points are points.
    #[inline(always)]
    pub fn find_by<S: Seam>(&self, seam: S, frames: &Frames, key: u64) -> Option<FrameIndex> {
        let mut frame = frames.buckets()[self.bucket(key)].load_unchecked_by(seam, Ordering::Acquire);
        let mut steps = 0;
        loop {
            let d = frames.find(frame)?;
            if d.key.load_by(seam, Ordering::Relaxed) == key {
                return Some(frame);
            }
            frame = d.hash_next.load_unchecked_by(seam, Ordering::Acquire);
            steps += 1;
            if steps > STEPS_MAX {
                return None;
            }
        }
    }

    /// Takes the lock of `key`'s bucket.
    pub fn lock<'p>(&'p self, frames: &'p Frames, key: u64) -> Bucket<'p> {
        let index = self.bucket(key);
        Bucket {
            frames,
            index,
            writes_back: self.writes_back(),
            _lock: Some(self.locks[index % LOCKS].lock()),
        }
    }

    /// The bucket of `key` in recovery, when no other thread is about.
    pub fn alone<'p>(&self, frames: &'p Frames, key: u64) -> Bucket<'p> {
        Bucket {
            frames,
            index: self.bucket(key),
            // All of it is, once recovery is done.
            writes_back: false,
            _lock: None,
        }
    }
}

impl Bucket<'_> {
    /// The frame that holds `key`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the chain leads nowhere.
    pub fn find(&self, key: u64) -> Result<Option<FrameIndex>> {
        let mut found = None;
        self.walk(|frame, d_key, _| {
            if d_key == key {
                found = Some(frame);
            }
            d_key == key
        })?;
        Ok(found)
    }

    /// Adds `frame`, whose key is stored.
    pub fn insert(&self, frame: FrameIndex) {
        let head = &self.frames.buckets()[self.index];
        self.frames
            .descriptor(frame)
            .hash_next
            .store(head.load(Ordering::Relaxed), Ordering::Release);
        head.store(Some(frame), Ordering::Release);
        self.write_head_back();
    }

    fn write_head_back(&self) {
        if self.writes_back {
            self.frames.write_back(&self.frames.buckets()[self.index]);
        }
    }

    /// Takes `frame` out; nothing happens if it is not in.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the chain leads nowhere.
    pub fn remove(&self, frame: FrameIndex) -> Result<()> {
        let mut before = None;
        let mut found = false;
        self.walk(|at, _, previous| {
            if at == frame {
                (before, found) = (previous, true);
            }
            found
        })?;
        if found {
            let next = self.frames.descriptor(frame).hash_next.load(Ordering::Relaxed);
            match before {
                Some(b) => {
                    self.frames.descriptor(b).hash_next.store(next, Ordering::Release);
                    if self.writes_back {
                        self.frames.write_back(self.frames.descriptor(b));
                    }
                }
                None => {
                    self.frames.buckets()[self.index].store(next, Ordering::Release);
                    self.write_head_back();
                }
            }
        }
        Ok(())
    }

    /// Calls `stop(frame, key, frame before)` along the chain until it says so.
    fn walk(&self, mut stop: impl FnMut(FrameIndex, u64, Option<FrameIndex>) -> bool) -> Result<()> {
        let mut next = self.frames.buckets()[self.index].load(Ordering::Acquire);
        let mut before = None;
        for _ in 0..STEPS_MAX {
            let Some(frame) = next else {
                return Ok(());
            };
            let d = self.frames.find(frame).ok_or_else(|| self.broken())?;
            if stop(frame, d.key.load(Ordering::Relaxed), before) {
                return Ok(());
            }
            before = Some(frame);
            next = d.hash_next.load(Ordering::Acquire);
        }
        Err(self.broken())
    }

    fn broken(&self) -> Error {
        Error::corrupt(format!(
            "chain {} of the page hash in the region leads nowhere; restart the database: recovery rebuilds it",
            self.index
        ))
    }
}
