//! What a memory node has registered, and works carried out on it: aligned words whole, ranges and keys checked.
//!
//! Memory is reached by atomic accesses alone, a word at a time where it is aligned: processes that map the same region
//! may use it meanwhile, and see each aligned word before or after. Atomics are the processor's, so they are atomic
//! among those as well.

use super::fabric_endpoint::{Access, Registration};
use super::protocol::{Ask, Item, Status};
use super::shim::Target;
use cenote_base::rt::{self, HashMap};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::Mapping;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::Arc;

/// Memory of the node that stays mapped while this lives, and to which there are no references.
#[derive(Clone)]
pub struct RegisteredMemory {
    mapping: Arc<Mapping>,
    len: usize,
}

impl RegisteredMemory {
    /// `len` bytes of zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a length of 0, [`Error::Io`] if it cannot be mapped.
    pub fn own(len: u64) -> Result<Self> {
        let size = usize::try_from(len).ok().filter(|l| *l > 0);
        let size = size.ok_or_else(|| Error::Invalid(format!("{len} bytes of memory to register")))?;
        let doing = || format!("mapping {} to register", ByteSize(len));
        let whole = size.checked_next_multiple_of(8).unwrap_or(usize::MAX - 7);
        let mapping = Mapping::anonymous(whole).map_err(|e| Error::io(doing(), e))?;
        Ok(Self {
            mapping: Arc::new(mapping),
            len: size,
        })
    }

    /// All of what a node maps; others may use it meanwhile, by atomic accesses or as a span does.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that is nothing, or no multiple of 8.
    pub fn of(mapping: Mapping) -> Result<Self> {
        let len = mapping.len();
        if len == 0 || !len.is_multiple_of(8) {
            return Err(Error::Invalid(format!("{len} bytes of memory to register")));
        }
        Ok(Self {
            mapping: Arc::new(mapping),
            len,
        })
    }

    /// The first `len` bytes of what a node maps, as [`RegisteredMemory::of`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if that is nothing, more than there is, or no multiple of 8.
    pub fn first(mapping: &Arc<Mapping>, len: u64) -> Result<Self> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len == 0 || len > mapping.len() || !len.is_multiple_of(8) {
            return Err(Error::Invalid(format!("{len} bytes of {} to register", mapping.len())));
        }
        let mapping = Arc::clone(mapping);
        Ok(Self { mapping, len })
    }

    /// What keeps it mapped.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Where it lies in this process.
    fn base(&self) -> *mut u8 {
        self.mapping.base().as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    fn holds(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len() as u64)
    }

    /// Copies out; the range was checked.
    pub fn read(&self, at: u64, into: &mut [u8]) {
        assert!(self.holds(at, into.len() as u64), "a checked range");
        // SAFETY: inside of memory that stays mapped, and is reached by atomics only.
        unsafe { copy_out(self.base().add(at as usize), into) };
    }

    /// Copies in; the range was checked.
    pub fn write(&self, at: u64, from: &[u8]) {
        assert!(self.holds(at, from.len() as u64), "a checked range");
        // SAFETY: as in `read`.
        unsafe { copy_in(from, self.base().add(at as usize)) };
    }

    /// The word at a multiple of 8; the range was checked.
    pub fn word(&self, at: u64) -> &AtomicU64 {
        assert!(self.holds(at, 8) && at.is_multiple_of(8), "a checked word");
        // SAFETY: inside, aligned (bases are), mapped as long as `self`, reached by atomics only.
        unsafe { AtomicU64::from_ptr(self.base().add(at as usize).cast()) }
    }
}

/// Memory that calls lend: its user looks at it while no call lends it, a node writes to it meanwhile. It is not
/// cloned, so one buffer has it, at rest, at its user or on loan.
pub struct LentMemory(Arc<Mapping>);

impl LentMemory {
    /// `len` bytes of zeros.
    ///
    /// # Errors
    /// That of `mmap`.
    pub fn map(len: usize) -> std::io::Result<Self> {
        Mapping::anonymous(len).map(|mapping| Self(Arc::new(mapping)))
    }

    /// What keeps it mapped.
    pub fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.0)
    }

    /// Its first bytes, for its user while no call lends it.
    pub fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.0.len(), "{len} bytes of memory that is lent");
        // SAFETY: inside, and mapped while `self` is. Other holders of the mapping reach none of its bytes; a buffer
        // at its user is on loan to no call, so its node does not write to it (rule 2 of `client::lender`).
        unsafe { core::slice::from_raw_parts(self.0.base().as_ptr(), len) }
    }

    /// As [`LentMemory::bytes`], to be written to.
    pub fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.0.len(), "{len} bytes of memory that is lent");
        // SAFETY: as in `bytes`, and borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.0.base().as_ptr(), len) }
    }
}

/// Bytes until the next word.
fn head(p: *const u8, len: usize) -> usize {
    (p as usize).next_multiple_of(8).wrapping_sub(p as usize).min(len)
}

/// # Safety
/// `from` is mapped for the whole length and reached by atomics only.
unsafe fn copy_out(from: *mut u8, into: &mut [u8]) {
    let split = head(from, into.len());
    let (first, rest) = into.split_at_mut(split);
    let (words, last) = rest.as_chunks_mut::<8>();
    let (middle, end) = (split, split + words.len() * 8);
    // SAFETY: all offsets are inside; words are aligned by `head`.
    unsafe {
        for (i, byte) in first.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed);
        }
        for (i, word) in words.iter_mut().enumerate() {
            *word = AtomicU64::from_ptr(from.add(middle + i * 8).cast())
                .load(Ordering::Relaxed)
                .to_ne_bytes();
        }
        for (i, byte) in last.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(from.add(end + i)).load(Ordering::Relaxed);
        }
    }
    core::sync::atomic::fence(Ordering::Acquire);
}

/// # Safety
/// `to` is mapped for the whole length and reached by atomics only.
unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let split = head(to, from.len());
    let (first, rest) = from.split_at(split);
    let (words, last) = rest.as_chunks::<8>();
    let (middle, end) = (split, split + words.len() * 8);
    core::sync::atomic::fence(Ordering::Release);
    // SAFETY: all offsets are inside; words are aligned by `head`.
    unsafe {
        for (i, byte) in first.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*byte, Ordering::Relaxed);
        }
        for (i, word) in words.iter().enumerate() {
            AtomicU64::from_ptr(to.add(middle + i * 8).cast()).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        for (i, byte) in last.iter().enumerate() {
            AtomicU8::from_ptr(to.add(end + i)).store(*byte, Ordering::Relaxed);
        }
    }
}

/// Memory under a key. The registration with the provider ends before the memory does.
pub struct Holding {
    /// With the provider, where it moves bytes by itself.
    pub registered: Option<(Registration, Target)>,
    /// The memory.
    pub registered_memory: RegisteredMemory,
    /// What may be done with it.
    pub access: Access,
}

/// All that a node has registered. Keys are drawn at random, so that they cannot be guessed.
#[derive(Default)]
pub struct Registry {
    by_key: HashMap<u64, Holding>,
}

impl Registry {
    /// A key that none has.
    pub fn new_key(&self) -> u64 {
        loop {
            let key = rt::random();
            if key != 0 && key != u64::MAX && !self.by_key.contains_key(&key) {
                return key;
            }
        }
    }

    /// Puts memory under a key.
    pub fn insert(&mut self, key: u64, holding: Holding) {
        let former = self.by_key.insert(key, holding);
        assert!(former.is_none(), "a key names one registration");
    }

    /// Takes it out; its registration ends as it is dropped.
    pub fn remove(&mut self, key: u64) -> Option<Holding> {
        self.by_key.remove(&key)
    }

    /// All keys end.
    pub fn clear(&mut self) {
        self.by_key.clear();
    }

    /// Registrations.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The memory under a key.
    pub fn registered_memory(&self, key: u64) -> Option<&RegisteredMemory> {
        self.by_key.get(&key).map(|h| &h.registered_memory)
    }

    /// The memory that an item is about, or why not, with the answer's value.
    ///
    /// # Errors
    /// [`Status::Revoked`] for a key that nothing is registered under, [`Status::OutOfBounds`] with the length of the
    /// memory, [`Status::Invalid`] for an atomic that is not aligned, and for what changes memory that is only read.
    pub fn find(&self, item: &Item<'_>) -> Result<&Holding, (Status, u64)> {
        let holding = self.by_key.get(&item.key).ok_or((Status::Revoked, 0))?;
        if !holding.registered_memory.holds(item.at, u64::from(item.len)) {
            return Err((Status::OutOfBounds, holding.registered_memory.len() as u64));
        }
        let atomic = matches!(item.ask, Ask::CompareAndSwap | Ask::FetchAdd);
        let changes = atomic || item.ask == Ask::Write;
        if (atomic && !item.at.is_multiple_of(8)) || (changes && holding.access == Access::Read) {
            return Err((Status::Invalid, 0));
        }
        Ok(holding)
    }
}

/// Does an atomic; the word before.
pub fn exchange(registered_memory: &RegisteredMemory, item: &Item<'_>) -> u64 {
    let word = registered_memory.word(item.at);
    if item.ask == Ask::FetchAdd {
        return word.fetch_add(item.operand, Ordering::AcqRel);
    }
    match word.compare_exchange(item.operand, item.new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(before) | Err(before) => before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_right_at_any_alignment() {
        let registered_memory = RegisteredMemory::own(4096).expect("mapped");
        let bytes: Vec<u8> = (0..200u32).map(|i| i as u8 + 1).collect();
        for at in 0..17 {
            for len in 0..70 {
                registered_memory.write(0, &[0; 256]);
                registered_memory.write(at, &bytes[..len]);
                let mut back = [9; 256];
                registered_memory.read(0, &mut back);
                let (from, to) = (at as usize, at as usize + len);
                assert_eq!(&back[from..to], &bytes[..len], "{len} at {at}");
                assert!(back[..from].iter().chain(&back[to..]).all(|b| *b == 0));
                let mut part = vec![0; len];
                registered_memory.read(at, &mut part);
                assert_eq!(part, bytes[..len]);
            }
        }
    }
}
