//! Access to objects: the hot path.
//!
//! 1. the address names part and slot: the slot's state word must be of the address's generation;
//! 2. a slab: the class gives the object's number, by a multiplication; its live word must be of the same generation,
//!    and its bit set. A run: its first slot tells how many bytes it has;
//! 3. the bytes asked for must end within the object;
//! 4. they are copied, announced as all region memory is ([`cenote_fabric::observe`]).
//!
//! In a part whose extents can move all of that happens *inside*: see [`super::presence`]. An extent that lies
//! elsewhere has another state, which no check of 1 and 2 lets pass: then it is looked for ([`super::act`]).
//!
//! Three lines of memory are read: the slot's descriptor, the live word, the object; none depends on another's arrival
//! but for the check. If a check fails, what is wrong is found out at leisure ([`super::act`]).
//!
//! The checks are of the moment: if an object is freed while a client uses it, the client's next access is an error.
//! The bytes of a freed object are undefined: its place may belong to another object of the same class by then, until
//! the extent is handed out anew.

use super::act::{Act, swap};
use super::class::{divide, live_bit};
use super::layout::LIVE_AT;
use super::part::{Part, PartRows, SlotRow};
use super::presence::{Inside, SAMPLE};
use super::slot::code_of;
use super::{GlobalAddress, Space};
use crate::extent::EXTENT;
use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::seam::Plain;
use cenote_fabric::{HostAtomicU64, LINE};

/// Accesses of a batch whose memory is prefetched together.
pub(super) const PREFETCHED: usize = 16;
/// Bytes of each of them; the processor goes on by itself.
const PREFETCH: u64 = 512;

/// One of many reads.
#[derive(Debug)]
pub struct Read<'a> {
    /// From where.
    pub address: GlobalAddress,
    /// Into what; its length is what is read.
    pub into: &'a mut [u8],
}

/// One of many writes.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// To where.
    pub address: GlobalAddress,
    /// What.
    pub from: &'a [u8],
}

/// The slot where the `len` bytes at `address` are, if they are an object's in a slab. (If not they may be a run's.)
///
/// The state's generation is not looked at. A slab's live words were made before its state said that it is one, and it
/// has all that its class numbers objects by: so the live word is not of an earlier use of the extent. (What its class
/// numbers last is the rest behind the objects, which ends behind the extent.)
#[inline(always)]
fn locate(rows: &PartRows, address: GlobalAddress, len: usize) -> Option<SlotRow<'_>> {
    let row = rows.get(address.slot() as usize)?;
    let state = row.word().load_by(Plain, Ordering::Acquire);
    let (index, end) = divide(code_of(state), address.offset());
    let wanted = u64::from(address.offset()) + len as u64;
    if end > EXTENT || wanted > end {
        return None;
    }
    let (word, bit) = live_bit(index);
    let live = row.map(LIVE_AT + word as usize)?.load_by(Plain, Ordering::Acquire);
    (address.is_of(live) && live >> bit & 1 != 0).then_some(row)
}

impl Part {
    /// Asks the processor for what an access will need: the live word, and the first bytes.
    #[inline(always)]
    pub(super) fn prefetch(&self, address: GlobalAddress, len: u64) {
        let at = self.at(address.place());
        (0..len.min(PREFETCH))
            .step_by(LINE)
            .for_each(|line| self.region().prefetch(at + line));
        if let Some(state) = self.state_of(address.slot()) {
            let (index, _) = divide(code_of(state.load_by(Plain, Ordering::Relaxed)), address.offset());
            self.prefetch_live(address.slot(), live_bit(index).0);
        }
    }
}

/// An access that is under way, where the short way suffices: in a slab, and in a region that is not observed.
/// (Simulated memory always is.) A value and no closure: those become calls.
struct Entered<'a> {
    inside: Option<Inside<'a>>,
    row: SlotRow<'a>,
}

impl<'a> Entered<'a> {
    /// At an object's `len` bytes at `address`, if they are there. Nothing moves in their part until it is left. `None`
    /// also if that takes a line of the thread's own, and it has none yet.
    #[inline(always)]
    fn at(space: &'a Space, address: GlobalAddress, len: usize) -> Option<Self> {
        let rows = space.rows_of(address.part());
        let Some(lines) = rows.lines() else {
            let row = locate(rows, address, len)?;
            return Some(Self { inside: None, row });
        };
        let inside = Inside::enter(Plain, lines, true)?;
        match locate(rows, address, len) {
            Some(row) => Some(Self {
                inside: Some(inside),
                row,
            }),
            None => {
                inside.leave(Plain);
                None
            }
        }
    }

    /// The end of the access; it is counted now and then.
    #[inline(always)]
    fn leave(self, space: &Space, address: GlobalAddress, is_write: bool) {
        if self.inside.is_some_and(|inside| inside.leave(Plain)) {
            space.count_sample(address, is_write);
        }
    }
}

impl Space {
    #[cold]
    #[inline(never)]
    fn count_sample(&self, address: GlobalAddress, is_write: bool) {
        if let Some(part) = self.part_numbered(address.part()) {
            part.count(address.slot(), is_write, SAMPLE);
        }
    }

    /// Does something with a word, where the short way suffices.
    #[inline(always)]
    fn word_at_once<R>(
        &self,
        address: GlobalAddress,
        is_write: bool,
        f: impl FnOnce(&HostAtomicU64) -> R,
    ) -> Option<R> {
        let entered = Entered::at(self, address, 8)?;
        let done = entered.row.atomic(address.offset()).map(f);
        entered.leave(self, address, is_write);
        done
    }

    #[inline(always)]
    pub(super) fn read_at_once(&self, read: Read<'_>) -> Option<()> {
        let entered = Entered::at(self, read.address, read.into.len())?;
        let is_done = entered.row.copy_out(read.address.offset(), read.into);
        entered.leave(self, read.address, false);
        is_done.then_some(())
    }

    #[inline(always)]
    pub(super) fn write_at_once(&self, write: Write<'_>) -> Option<()> {
        let entered = Entered::at(self, write.address, write.from.len())?;
        let is_done = entered.row.copy_in(write.address.offset(), write.from);
        entered.leave(self, write.address, true);
        is_done.then_some(())
    }

    #[inline(always)]
    pub(super) fn load_at_once(&self, address: GlobalAddress) -> Option<u64> {
        self.word_at_once(address, false, |word| word.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn store_at_once(&self, address: GlobalAddress, value: u64) -> Option<()> {
        self.word_at_once(address, true, |word| word.store(value, Ordering::Release))
    }

    #[inline(always)]
    pub(super) fn swap_at_once(&self, address: GlobalAddress, expected: u64, new: u64) -> Option<u64> {
        self.word_at_once(address, true, |word| swap(word, expected, new))
    }

    #[inline(always)]
    pub(super) fn add_at_once(&self, address: GlobalAddress, n: u64) -> Option<u64> {
        self.word_at_once(address, true, |word| word.fetch_add(n, Ordering::AcqRel))
    }

    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no object is there (it was freed, was never allocated, is of a former use of its extent or of another space);
    /// [`Error::OutOfBounds`]: it ends before; [`Error::Corrupt`]: the part's own data are broken. The same for all accesses.
    #[inline]
    pub fn read(&self, address: GlobalAddress, into: &mut [u8]) -> Result<()> {
        match self.read_at_once(Read { address, into }) {
            Some(()) => Ok(()),
            None => self.act(address, &mut Act::Read(into)).map(drop),
        }
    }

    /// Writes `from` to the bytes from `address` on. A concurrent read may see a part of it.
    ///
    /// # Errors
    /// As [`Space::read`].
    #[inline]
    pub fn write(&self, address: GlobalAddress, from: &[u8]) -> Result<()> {
        match self.write_at_once(Write { address, from }) {
            Some(()) => Ok(()),
            None => self.act(address, &mut Act::Write(from)).map(drop),
        }
    }

    /// The word at `address`, at once, with acquire order.
    ///
    /// # Errors
    /// As [`Space::read`]; [`Error::Invalid`] if it is not aligned to 8.
    #[inline]
    pub fn load(&self, address: GlobalAddress) -> Result<u64> {
        match self.load_at_once(address) {
            Some(value) => Ok(value),
            None => self.act(address, &mut Act::Load),
        }
    }

    /// Writes the word at `address`, at once, with release order.
    ///
    /// # Errors
    /// As [`Space::load`].
    #[inline]
    pub fn store(&self, address: GlobalAddress, value: u64) -> Result<()> {
        match self.store_at_once(address, value) {
            Some(()) => Ok(()),
            None => self.act(address, &mut Act::Store(value)).map(drop),
        }
    }

    /// Writes `new` to the word at `address` if it is `expected`, in one step. The word that was there: it was done if
    /// that is `expected`.
    ///
    /// # Errors
    /// As [`Space::load`].
    #[inline]
    pub fn compare_and_swap(&self, address: GlobalAddress, expected: u64, new: u64) -> Result<u64> {
        match self.swap_at_once(address, expected, new) {
            Some(found) => Ok(found),
            None => self.act(address, &mut Act::Swap { expected, new }),
        }
    }

    /// Adds to the word at `address`, wrapping, in one step. The word that was there.
    ///
    /// # Errors
    /// As [`Space::load`].
    #[inline]
    pub fn fetch_add(&self, address: GlobalAddress, n: u64) -> Result<u64> {
        match self.add_at_once(address, n) {
            Some(found) => Ok(found),
            None => self.act(address, &mut Act::Add(n)),
        }
    }

    /// Reads in turn. The first that fails ends it: those before it are done, those after it not begun. Memory is
    /// prefetched: where the bytes are in no cache, many reads at once take a fraction of their time one by one. What
    /// lies in other pods is read after the rest, with one message to each.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn read_many(&self, reads: &mut [Read<'_>]) -> Result<()> {
        let mut far = Vec::new();
        for some in reads.chunks_mut(PREFETCHED) {
            self.prefetch(some.iter().map(|read| (read.address, read.into.len())));
            for read in some {
                if self.is_far(read.address) {
                    far.push((read.address, Act::Read(read.into)));
                } else {
                    self.read(read.address, read.into)?;
                }
            }
        }
        self.act_far(far)
    }

    /// Writes in turn. The first that fails ends it: those before it are done, those after it not begun. As
    /// [`Space::read_many`]. That holds for memory of this pod. Writes to other pods come after those, in no order
    /// among each other; if one of them fails, any of the others may be done.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn write_many(&self, writes: &[Write<'_>]) -> Result<()> {
        let mut far = Vec::new();
        for some in writes.chunks(PREFETCHED) {
            self.prefetch(some.iter().map(|write| (write.address, write.from.len())));
            for write in some {
                if self.is_far(write.address) {
                    far.push((write.address, Act::Write(write.from)));
                } else {
                    self.write(write.address, write.from)?;
                }
            }
        }
        self.act_far(far)
    }

    /// Asks the processor for what accesses to these bytes will need. A hint: an address may be anything.
    #[inline(always)]
    pub fn prefetch(&self, accesses: impl Iterator<Item = (GlobalAddress, usize)>) {
        for (address, len) in accesses {
            if let Some(part) = self.part_numbered(address.part()) {
                part.prefetch(address, len as u64);
            }
        }
    }

    /// Bytes that the object at `address` can hold: at least those that were asked for. `address` may lie inside of it.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn size_of(&self, address: GlobalAddress) -> Result<u64> {
        self.act(address, &mut Act::Size)
    }

    /// Frees the object that begins at `address`; any session may have allocated it.
    ///
    /// # Errors
    /// As [`Space::read`]; [`Error::Invalid`] if it does not begin there. Of a run: those of the way to the keeper.
    pub fn free(&self, address: GlobalAddress) -> Result<()> {
        match self.act(address, &mut Act::Free)? {
            0 => Ok(()),
            pieces => self.free_pieces(address, pieces),
        }
    }
}
