//! The space as the store uses it: words, lines and bytes, with what incoherent memory needs.
//!
//! Words go through the space's word operations always: near they are atomics, far they are calls to the part's host.
//! Bytes are written before the word that publishes them and read after the word that names them; in the mode *flush*
//! they are written back and fenced before the one, and invalidated after the other.

use super::item::Control;
use super::layout::{LINE, WORD};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Mutex, atomic};
use cenote_base::{Error, Result};
use cenote_space::{GRAIN, GlobalAddress, Read, Session, Space};
use std::collections::BTreeSet;

/// How bytes come from one host's caches to another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Visibility {
    /// All users of a part see each other's stores: one host, or hardware that keeps caches coherent.
    #[default]
    Coherent,
    /// Written back and fenced when published, invalidated before they are read, and every value has a checksum.
    Flush,
}

/// Sessions of a process at most: threads that allocate at once seldom wait for each other. (Each has extents of its own
/// for each size: not more than processors.)
const SESSIONS_MAX: usize = 8;

/// See the module.
pub(super) struct Heap {
    sessions: Vec<Session>,
    pub(super) visibility: Visibility,
    /// Parts that were not attached when something of them was asked for.
    pub(super) missed: Mutex<BTreeSet<u8>>,
}

/// A bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub at: GlobalAddress,
    pub words: [u64; 8],
}

impl Heap {
    pub(super) fn new(space: &Space, visibility: Visibility) -> Self {
        Self {
            sessions: (0..rt::cores().clamp(1, SESSIONS_MAX))
                .map(|_| space.session())
                .collect(),
            visibility,
            missed: Mutex::default(),
        }
    }

    pub(super) fn space(&self) -> &Space {
        self.sessions[0].space()
    }

    /// The session that stands for this process.
    pub(super) fn first(&self) -> &Session {
        &self.sessions[0]
    }

    /// An object, with zeros in it.
    pub(super) fn alloc(&self, len: u64) -> Result<GlobalAddress> {
        let address = self.sessions[rt::thread_slot() % self.sessions.len()].alloc(len)?;
        assert!(address.raw() % GRAIN == 0, "{address}: objects are aligned");
        Ok(address)
    }

    /// An object in one part, with zeros in it.
    pub(super) fn alloc_at(&self, part: u8, len: u64) -> Result<GlobalAddress> {
        self.sessions[rt::thread_slot() % self.sessions.len()].alloc_at(part, len)
    }

    /// The parts that there are, by number.
    pub(super) fn parts(&self) -> Vec<u8> {
        let near = self.space().parts().map(|part| part.number());
        let mut parts: Vec<_> = near.chain(self.space().far_parts().map(|part| part.number)).collect();
        parts.sort_unstable();
        parts
    }

    /// What failed of an access: that an object's part is not attached says nothing of the object. What is mirrored comes
    /// back, so it is not lost while its part is away.
    pub(super) fn failure_at(&self, address: GlobalAddress, error: Error) -> Error {
        match self.failure_there(address, error) {
            Error::Lost(why) if self.space().is_mirrored() => Error::Timeout(why),
            error => error,
        }
    }

    /// Whether an error of [`failure_at`](Self::failure_at) says that a part is away.
    pub(super) fn is_away(&self, error: &Error) -> bool {
        match error {
            Error::Lost(_) => true,
            Error::Timeout(_) => self.space().is_mirrored(),
            _ => false,
        }
    }

    fn failure_there(&self, address: GlobalAddress, error: Error) -> Error {
        let part = address.part();
        match error {
            Error::Invalid(_) if part > 0 && !self.space().has_part(part) => {
                self.missed.lock().insert(part);
                Error::Lost(format!("{address} lies in part {part}, which is not attached"))
            }
            error => error,
        }
    }

    /// Gives back what this process has of the space and nothing lies in.
    pub(super) fn give_back_empty(&self) -> Result<()> {
        self.sessions.iter().try_for_each(Session::give_back_empty)
    }

    pub(super) fn free(&self, address: GlobalAddress) -> Result<()> {
        self.space().free(address)
    }

    #[inline]
    pub(super) fn load(&self, address: GlobalAddress) -> Result<u64> {
        self.space().load(address)
    }

    pub(super) fn store(&self, address: GlobalAddress, value: u64) -> Result<()> {
        self.space().store(address, value)
    }

    /// Whether the word was `expected`, and is `new` now.
    #[inline]
    pub(super) fn swap(&self, address: GlobalAddress, expected: u64, new: u64) -> Result<bool> {
        Ok(self.space().compare_and_swap(address, expected, new)? == expected)
    }

    /// What was there.
    pub(super) fn add(&self, address: GlobalAddress, n: u64) -> Result<u64> {
        self.space().fetch_add(address, n)
    }

    /// A bucket's words as they are after all that this thread has swapped before.
    pub(super) fn line(&self, at: GlobalAddress) -> Result<Line> {
        let mut words = [0; 8];
        if self.visibility == Visibility::Flush && self.space().is_near(at) {
            for (n, word) in words.iter_mut().enumerate() {
                *word = self.load(offset(at, n as u64 * WORD)?)?;
            }
            return Ok(Line { at, words });
        }
        let mut bytes = [0; LINE as usize];
        atomic::fence(atomic::Ordering::SeqCst);
        self.space().read(at, &mut bytes)?;
        atomic::fence(atomic::Ordering::Acquire);
        let (found, _) = bytes.as_chunks::<8>();
        for (word, bytes) in words.iter_mut().zip(found) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(Line { at, words })
    }

    /// Buckets, all of them under way at once.
    pub(super) fn lines(&self, at: &[GlobalAddress]) -> Result<Vec<Line>> {
        self.space().prefetch(at.iter().map(|at| (*at, LINE as usize)));
        if self.visibility == Visibility::Flush && at.iter().any(|at| self.space().is_near(*at)) {
            return at.iter().map(|at| self.line(*at)).collect();
        }
        let mut bytes = vec![[0; LINE as usize]; at.len()];
        let reads = at.iter().zip(&mut bytes).map(|(at, into)| Read { address: *at, into });
        atomic::fence(atomic::Ordering::SeqCst);
        self.space().read_many(&mut reads.collect::<Vec<_>>())?;
        atomic::fence(atomic::Ordering::Acquire);
        let words = |bytes: &[u8; LINE as usize]| {
            let (words, _) = bytes.as_chunks::<8>();
            core::array::from_fn(|n| u64::from_le_bytes(words[n]))
        };
        let lines = at.iter().zip(&bytes);
        Ok(lines
            .map(|(at, bytes)| Line {
                at: *at,
                words: words(bytes),
            })
            .collect())
    }

    /// Words, all of them under way at once: after all that was read before.
    pub(super) fn words(&self, at: &[GlobalAddress]) -> Result<Vec<u64>> {
        atomic::fence(atomic::Ordering::Acquire);
        self.read_with_words(Vec::new(), at)
    }

    /// As [`read_all`](Self::read_all), with words in no order with the bytes.
    pub(super) fn read_with_words(&self, bytes: Vec<Read<'_>>, at: &[GlobalAddress]) -> Result<Vec<u64>> {
        let mut words = vec![[0; WORD as usize]; at.len()];
        let mut reads: Vec<Read<'_>> = bytes;
        for (at, into) in at.iter().zip(&mut words) {
            match self.space().is_near(*at) {
                true => *into = self.load(*at)?.to_le_bytes(),
                false => reads.push(Read { address: *at, into }),
            }
        }
        self.read_all(&mut reads)?;
        Ok(words.into_iter().map(u64::from_le_bytes).collect())
    }

    /// As [`read`](Self::read), all of them under way at once.
    pub(super) fn read_all(&self, reads: &mut [Read<'_>]) -> Result<()> {
        if self.visibility == Visibility::Flush {
            for read in reads.iter() {
                self.space().invalidate(read.address, read.into.len())?;
            }
        }
        self.space().read_many(reads)
    }

    /// Bytes that a word has named.
    pub(super) fn read(&self, at: GlobalAddress, into: &mut [u8]) -> Result<()> {
        if self.visibility == Visibility::Flush {
            self.space().invalidate(at, into.len())?;
        }
        self.space().read(at, into)
    }

    /// Bytes of a value, in a chunk or behind its key. Chunks are whole lines without words: where other hosts of a pod
    /// map their part they read them there ([`Space::read_bytes`]).
    pub(super) fn read_value(&self, at: GlobalAddress, into: &mut [u8], is_chunk: bool) -> Result<()> {
        if self.visibility == Visibility::Flush && !planted(Fault::StoreInvalidate) {
            self.space().invalidate(at, into.len())?;
        }
        self.read_own(at, into, is_chunk)
    }

    /// The same, as this process has written or invalidated them.
    pub(super) fn read_own(&self, at: GlobalAddress, into: &mut [u8], is_chunk: bool) -> Result<()> {
        match is_chunk {
            true => self.space().read_bytes(at, into),
            false => self.space().read(at, into),
        }
    }

    pub(super) fn write_value(&self, at: GlobalAddress, from: &[u8], is_chunk: bool) -> Result<()> {
        match is_chunk {
            true => self.space().write_bytes(at, from),
            false => self.space().write(at, from),
        }
    }

    /// Bytes that a word will name, after [`publish`](Self::publish).
    pub(super) fn write(&self, at: GlobalAddress, from: &[u8]) -> Result<()> {
        self.space().write(at, from)
    }

    /// Makes bytes seen by whoever comes by a word that is written from now on.
    pub(super) fn publish(&self, at: GlobalAddress, len: u64) -> Result<()> {
        match self.visibility {
            Visibility::Coherent => Ok(()),
            Visibility::Flush if planted(Fault::StoreFlush) => Ok(()),
            Visibility::Flush => self.space().write_back(at, len as usize),
        }
    }

    /// An item's control word, after all that was read of the item.
    pub(super) fn control(&self, item: GlobalAddress) -> Result<Control> {
        atomic::fence(atomic::Ordering::Acquire);
        self.load(item).map(Control)
    }
}

/// The address so many bytes on.
pub(super) fn offset(at: GlobalAddress, bytes: u64) -> Result<GlobalAddress> {
    at.checked_add(bytes)
        .ok_or_else(|| Error::corrupt(format!("{bytes} bytes after {at} is no address")))
}
