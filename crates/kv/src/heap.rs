//! The space as the store uses it: objects, and words that are changed in one step, alone or several together.
//!
//! Outside of a step that takes several words ([`Heap::begin`] … [`Heap::commit`]) a change is its store. Within, it is
//! undone if the process is killed before the end: by the store's [journal](cenote_space::journal), which lies in the
//! space. What a step freed is freed when it has ended, and what a step that was taken back has allocated is freed when
//! the words are as they were.
//!
//! Taking something away must not need memory: so the journal has room for [`JOURNAL_BYTES`] from the beginning, which
//! is some 4,000 words that a step changes. It is enlarged when a step changes more.
//!
//! A start takes back the step that it finds in the journal.
//!
//! A step that can neither be ended nor taken back, since memory answers with errors, is half done for good: from then
//! on the heap is *broken*, and refuses all changes. The next start takes the step back. (Were it to go on, that start
//! would take back what was done since, too.)

use super::spares::Spares;
use cenote_base::{Error, Result};
use cenote_space::journal::{self, Journal};
use cenote_space::{GlobalAddress, Session};

/// Bytes of a journal that is made first.
const JOURNAL_BYTES: u64 = 64 << 10;

/// Where a step, or a part of one, began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    words: journal::Mark,
    allocated: usize,
    freed: usize,
}

/// See the module.
pub(super) struct Heap {
    session: Session,
    /// The word that holds the journal's address.
    journal_word: GlobalAddress,
    journal: Journal,
    /// Steps that have begun and not ended: an inner one is a part of the outer.
    depth: u32,
    /// See the module. `depth` is above 0 then, so that it costs nothing to look.
    is_broken: bool,
    allocated: Vec<GlobalAddress>,
    freed: Vec<Freed>,
    spares: Spares,
}

/// An object that goes when the step has ended.
#[derive(Debug, Clone, Copy)]
struct Freed {
    at: GlobalAddress,
    /// For how many it was allocated, if it may be kept for others; else 0.
    bytes: u64,
}

impl Heap {
    /// Takes up the journal that a word refers to, and takes back the step that was cut off. A journal is made if there
    /// is none.
    pub(super) fn new(session: Session, journal_word: GlobalAddress) -> Result<Self> {
        let mut at = GlobalAddress::from_raw(session.load(journal_word)?);
        if at.is_null() {
            at = session.alloc(JOURNAL_BYTES)?;
            session.store(journal_word, at.raw())?;
        }
        let mut journal = Journal::new(at, session.size_of(at)?);
        journal.recover(&session)?;
        let mut heap = Self {
            session,
            journal_word,
            journal,
            depth: 0,
            is_broken: false,
            allocated: Vec::new(),
            freed: Vec::new(),
            spares: Spares::default(),
        };
        heap.enlarge_at_first()?;
        Ok(heap)
    }

    /// A journal that was made when they were smaller gets the room that they have now, if there is any.
    fn enlarge_at_first(&mut self) -> Result<()> {
        if self.journal.bytes() >= JOURNAL_BYTES {
            return Ok(());
        }
        match self.enlarge_to(JOURNAL_BYTES) {
            Err(Error::Full(_)) => Ok(()),
            enlarged => enlarged,
        }
    }

    /// Its space.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Where the journal lies.
    pub(super) fn journal(&self) -> GlobalAddress {
        self.journal.at()
    }

    /// A word. No other process changes it: it need not be read as one that others do.
    #[inline]
    pub(super) fn load(&self, at: GlobalAddress) -> Result<u64> {
        let mut word = [0; 8];
        self.session.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// An address that lies at `at`.
    #[inline]
    pub(super) fn word(&self, at: GlobalAddress) -> Result<GlobalAddress> {
        Ok(GlobalAddress::from_raw(self.load(at)?))
    }

    /// Asks the processor for so many bytes, if something is there.
    #[inline(always)]
    pub(super) fn expect(&self, at: GlobalAddress, len: usize) {
        if !at.is_null() {
            self.session.prefetch(core::iter::once((at, len)));
        }
    }

    #[inline]
    pub(super) fn read(&self, at: GlobalAddress, into: &mut [u8]) -> Result<()> {
        self.session.read(at, into)
    }

    /// Writes to an object that nothing refers to yet, or behind the bytes that count in one.
    #[inline]
    pub(super) fn write(&self, at: GlobalAddress, from: &[u8]) -> Result<()> {
        self.session.write(at, from)
    }

    /// Appends `len` bytes at `at` to `out`.
    pub(super) fn append_to(&self, at: GlobalAddress, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let end = out.len();
        out.resize(end + len, 0);
        let answer = self.session.read(at, &mut out[end..]);
        if answer.is_err() {
            out.truncate(end);
        }
        answer
    }

    /// Bytes that an object can hold.
    pub(super) fn size_of(&self, at: GlobalAddress) -> Result<u64> {
        self.session.size_of(at)
    }

    /// A new object of zeros.
    #[inline]
    pub(super) fn alloc(&mut self, len: u64) -> Result<GlobalAddress> {
        let at = self.alloc_for_good(len)?;
        self.adopt(at);
        Ok(at)
    }

    /// The same, whatever becomes of the step.
    fn alloc_for_good(&mut self, len: u64) -> Result<GlobalAddress> {
        match self.session.alloc(len) {
            Err(Error::Full(_)) if self.free_spares()? > 0 => self.session.alloc(len),
            made => made,
        }
    }

    /// The step uses an object as if it had allocated it: if it is taken back, the object is freed.
    pub(super) fn adopt(&mut self, at: GlobalAddress) {
        if self.depth > 0 {
            self.allocated.push(at);
        }
    }

    /// Whether a step is under way.
    pub(super) fn is_in_step(&self) -> bool {
        self.depth > 0
    }

    /// An object that is about to be written, from its first byte to `len`: behind them it holds anything.
    #[inline]
    pub(super) fn alloc_any(&mut self, len: u64) -> Result<GlobalAddress> {
        let Some(at) = self.spares.take(len) else {
            return self.alloc(len);
        };
        self.adopt(at);
        Ok(at)
    }

    /// Frees an object that nothing refers to any more: now, or when the step has ended.
    #[inline]
    pub(super) fn free(&mut self, at: GlobalAddress) -> Result<()> {
        self.free_or_keep(at, 0)
    }

    /// As [`Heap::free`], of an object that was allocated for so many bytes: it may be kept for [`Heap::alloc_any`].
    #[inline]
    pub(super) fn free_or_keep(&mut self, at: GlobalAddress, bytes: u64) -> Result<()> {
        if self.depth > 0 {
            self.freed.push(Freed { at, bytes });
            return Ok(());
        }
        match self.spares.keep(at, bytes) {
            true => Ok(()),
            false => self.session.free(at),
        }
    }

    /// Frees what was kept: how many objects.
    pub(super) fn free_spares(&mut self) -> Result<usize> {
        let mut count = 0;
        for at in self.spares.drain() {
            self.session.free(at)?;
            count += 1;
        }
        Ok(count)
    }

    /// Objects that are kept.
    #[cfg(test)]
    pub(super) fn spares(&self) -> usize {
        self.spares.len()
    }

    /// Changes a word that something refers to.
    #[inline]
    pub(super) fn put(&mut self, at: GlobalAddress, value: u64) -> Result<()> {
        match self.depth {
            0 => self.session.store(at, value),
            _ => self.put_in_step(at, value),
        }
    }

    /// # Errors
    /// [`Error::Poisoned`], if it is broken.
    pub(super) fn check(&self) -> Result<()> {
        match self.is_broken {
            false => Ok(()),
            true => Err(Error::Poisoned(
                "a change could be neither ended nor taken back: the next start takes it back".into(),
            )),
        }
    }

    /// From here on it refuses all changes.
    pub(super) fn give_up(&mut self) {
        (self.is_broken, self.depth) = (true, self.depth.max(1));
    }

    /// What must not fail in the middle.
    fn or_give_up(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let answer = act(self);
        if answer.is_err() {
            self.give_up();
        }
        answer
    }

    fn put_in_step(&mut self, at: GlobalAddress, value: u64) -> Result<()> {
        self.check()?;
        if self.journal.is_full() {
            self.enlarge_to(2 * self.journal.bytes())?;
        }
        self.journal.put(&self.session, at, value)
    }

    /// A journal of another size, published by one store. If that fails, which of the two the next start takes up is
    /// open.
    pub(super) fn enlarge_to(&mut self, bytes: u64) -> Result<()> {
        let larger = self.alloc_for_good(bytes)?;
        let mut former = GlobalAddress::NULL;
        self.or_give_up(|heap| {
            former = heap.journal.move_to(&heap.session, larger, bytes, heap.journal_word)?;
            Ok(())
        })?;
        // Nothing refers to it: if it is not freed now, the next start frees it.
        let _ = self.session.free(former);
        Ok(())
    }

    /// From here on changes belong together.
    pub(super) fn begin(&mut self) -> Mark {
        self.depth = self.depth.saturating_add(1);
        Mark {
            words: self.journal.mark(),
            allocated: self.allocated.len(),
            freed: self.freed.len(),
        }
    }

    /// The end of a step. That of an inner one is nothing: the outer one decides.
    pub(super) fn commit(&mut self) -> Result<()> {
        self.check()?;
        if self.depth > 1 {
            self.depth -= 1;
            return Ok(());
        }
        self.or_give_up(|heap| heap.journal.end(&heap.session))?;
        self.depth = 0;
        self.allocated.clear();
        let mut freed = core::mem::take(&mut self.freed);
        let frees = freed.drain(..).map(|freed| self.free_or_keep(freed.at, freed.bytes));
        let answer = frees.fold(Ok(()), Result::and);
        self.freed = freed;
        answer
    }

    /// Takes back what was done since the mark.
    pub(super) fn roll_back(&mut self, mark: Mark) -> Result<()> {
        self.check()?;
        self.or_give_up(|heap| heap.journal.undo(&heap.session, mark.words))?;
        self.freed.truncate(mark.freed);
        let allocated = self.allocated.split_off(mark.allocated);
        let frees = allocated.into_iter().map(|at| self.session.free(at));
        let freed = frees.fold(Ok(()), Result::and);
        self.commit().and(freed)
    }
}

/// The address `bytes` behind another one of the same object.
#[inline(always)]
pub(super) fn offset(at: GlobalAddress, bytes: u64) -> Result<GlobalAddress> {
    at.checked_add(bytes)
        .ok_or_else(|| Error::Corrupt(format!("{bytes} bytes behind {at} there is nothing")))
}
