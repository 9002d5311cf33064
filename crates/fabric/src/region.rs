//! Regions: spans of pool memory with a header, mapped at any address.
//!
//! A region's life: [`Region::create`] (or [`Region::dram`]) → reserve and use → dropped (unmapped
//! and unlocked; a file stays) → [`Region::open`] by the next process, or [`crate::remove`].
//!
//! Invariants:
//! - a region's file is locked by the one process that has it open (a lock that ends with it);
//! - **only reserved bytes are used**: [`Region::reserve`] takes the space in the file system
//!   first, so a full one is an error there and never a SIGBUS later. How far it has come is in
//!   the header, so that after a restart nothing is reserved twice;
//! - memory is reached only through [`Span`]s and atomics, which borrow the region.

use crate::backing::{Backing, RESERVE_STEP};
use crate::header::{self, HEADER_SIZE, Identity, State};
use crate::host::{HostAtomicU32, HostAtomicU64};
use crate::map::Mapping;
use crate::record::Recorder;
use crate::{Block, Span, coherence};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Mutex};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Memory that is left to the machine when a region is reserved.
const LEFT_OVER: u64 = 256 << 20;

/// What a region's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file: in shared memory, or on an fsdax file system.
    File,
    /// A devdax device.
    Devdax,
    /// Anonymous memory of this process; gone with it.
    Dram,
}

/// How a region is mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionOptions {
    /// Bind its memory to this NUMA node.
    pub numa_node: Option<u32>,
    /// Do not ask for huge pages.
    pub small_pages: bool,
}

/// A span of pool memory. See the module.
pub struct Region {
    mapping: Mapping,
    backing: Option<Backing>,
    identity: Identity,
    state: Mutex<(u64, State)>,
    reserving: Mutex<()>,
    recorder: OnceLock<Arc<Recorder>>,
}

impl Region {
    /// Makes a region of `len` bytes in a file or device, and writes its header. What was there
    /// is lost: whether it may be is the caller's to know ([`Region::open`] tells what is there).
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it; [`Error::Full`] if there is no space.
    pub fn create(path: &Path, len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        let backing = Backing::open(path, true)?;
        let len = aligned_len(len, backing.align)?;
        backing.resize(len as u64)?;
        backing.reserve(0, HEADER_SIZE as u64)?;
        let mapping = map(&backing, len)?;
        Self::format(mapping, Some(backing), identity, options)
    }

    /// A region of `len` bytes of anonymous memory: gone with the process.
    pub fn dram(len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        let len = aligned_len(len, crate::map::page_size())?;
        let mapping =
            Mapping::anonymous(len).map_err(|e| Error::io(format!("mapping {} of memory", ByteSize(len as u64)), e))?;
        Self::format(mapping, None, identity, options)
    }

    /// Opens what is in a file or device.
    ///
    /// # Errors
    /// [`Error::Mismatch`] or [`Error::Corrupt`] naming the header's field that does not fit;
    /// [`Error::Busy`] if another process has it open. Nothing is changed then.
    pub fn open(path: &Path, options: RegionOptions) -> Result<Self> {
        let backing = Backing::open(path, false)?;
        let len = backing.len()?;
        if len < HEADER_SIZE as u64 || backing.allocated()? == 0 {
            return Err(Error::Mismatch(format!(
                "{}: length: {len} bytes hold no header",
                backing.named()
            )));
        }
        let mapping = map(&backing, len as usize)?;
        Self::attach(mapping, Some(backing), options)
    }

    /// A region of anonymous memory that holds `image`, the bytes of another one: for tests that
    /// lose a host.
    pub fn from_image(image: &[u8]) -> Result<Self> {
        let mapping = Mapping::anonymous(image.len()).map_err(|e| Error::io("mapping", e))?;
        let region = Self::bare(mapping, None);
        region.span(0, region.len()).copy_in(0, image);
        let Self { mapping, .. } = region;
        Self::attach(mapping, None, RegionOptions::default())
    }

    fn bare(mapping: Mapping, backing: Option<Backing>) -> Self {
        Self {
            mapping,
            backing,
            identity: Identity::default(),
            state: Mutex::new((0, State::default())),
            reserving: Mutex::new(()),
            recorder: OnceLock::new(),
        }
    }

    fn format(
        mapping: Mapping,
        backing: Option<Backing>,
        mut identity: Identity,
        options: RegionOptions,
    ) -> Result<Self> {
        identity.length = mapping.len() as u64;
        identity.made_micros = rt::wall_micros();
        let mut region = Self::bare(mapping, backing);
        region.apply(options)?;
        let header = region.header();
        header.zero(0, HEADER_SIZE);
        header.copy_in(0, &identity.encode());
        region.identity = Identity::decode(&identity.encode())?;
        region.reserved_word().store(HEADER_SIZE as u64, Ordering::Release);
        region.set_state(State::default());
        coherence::flush(&region, 0, HEADER_SIZE);
        Ok(region)
    }

    fn attach(mapping: Mapping, backing: Option<Backing>, options: RegionOptions) -> Result<Self> {
        let mut region = Self::bare(mapping, backing);
        let header = region.header().to_vec();
        let named = |e: Error| match e {
            Error::Mismatch(m) => Error::Mismatch(format!("{}: {m}", region.name())),
            Error::Corrupt(m) => Error::Corrupt(format!("{}: {m}", region.name())),
            other => other,
        };
        let identity = Identity::decode(&header).map_err(named)?;
        let have = region.len();
        let enough = match region.kind() {
            Kind::Devdax => identity.length <= have,
            _ => identity.length == have,
        };
        if !enough {
            return Err(Error::Mismatch(format!(
                "{}: length: the header says {}, the file has {}",
                region.name(),
                ByteSize(identity.length),
                ByteSize(have)
            )));
        }
        let state =
            State::newest(&header).ok_or_else(|| Error::Corrupt(format!("{}: both state slots", region.name())))?;
        region.identity = identity;
        region.state = Mutex::new(state);
        region.apply(options)?;
        region.distrust_reserved()?;
        Ok(region)
    }

    fn apply(&self, options: RegionOptions) -> Result<()> {
        if let Some(node) = options.numa_node {
            self.mapping
                .bind(node)
                .map_err(|e| Error::io(format!("binding {} to NUMA node {node}", self.name()), e))?;
        }
        if !options.small_pages {
            self.mapping.advise_huge();
        }
        Ok(())
    }

    /// A count of reserved bytes that the file's blocks do not bear out is not believed.
    fn distrust_reserved(&self) -> Result<()> {
        let Some(backing) = &self.backing else {
            return Ok(());
        };
        let word = self.reserved_word();
        let said = word.load(Ordering::Acquire);
        if said > self.len() || backing.allocated()? < said {
            word.store(HEADER_SIZE as u64, Ordering::Release);
        }
        Ok(())
    }

    /// What it is and whose.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its number within the database.
    #[inline]
    pub fn id(&self) -> u32 {
        self.identity.region
    }

    /// What its memory is.
    pub fn kind(&self) -> Kind {
        self.backing.as_ref().map_or(Kind::Dram, |b| b.kind)
    }

    /// Its file or device.
    pub fn path(&self) -> Option<&Path> {
        self.backing.as_ref().map(|b| &*b.path)
    }

    /// What it is called in messages.
    pub fn name(&self) -> String {
        self.backing
            .as_ref()
            .map_or_else(|| "region in memory".into(), Backing::named)
    }

    /// Its length in bytes, header included.
    #[inline]
    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Never: a region has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its first byte, for those whose unsafe code has an address of its own.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.mapping.base().as_ptr()
    }

    #[inline]
    pub(crate) fn base_address(&self) -> usize {
        self.base() as usize
    }

    /// The part of `len` bytes at `off`; panics if it is not all inside.
    #[inline(always)]
    pub fn span(&self, off: u64, len: u64) -> Span<'_> {
        let inside = off.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(inside, "a span outside its region");
        // SAFETY: inside the mapping, by the check, and the mapping lives while `self` is borrowed.
        unsafe { Span::new(self.mapping.base().add(off as usize), len as usize, self) }
    }

    /// The part of `N` bytes at `off`; panics if it is not all inside.
    #[inline(always)]
    pub fn block<const N: usize>(&self, off: u64) -> Block<'_, N> {
        self.span(off, N as u64).block(0)
    }

    /// The atomic at `off`; panics if it is outside or not aligned.
    #[inline(always)]
    pub fn atomic_u64(&self, off: u64) -> &HostAtomicU64 {
        self.span(off, 8).atomic_u64(0)
    }

    /// The atomic at `off`; panics if it is outside or not aligned.
    #[inline(always)]
    pub fn atomic_u32(&self, off: u64) -> &HostAtomicU32 {
        self.span(off, 4).atomic_u32(0)
    }

    fn header(&self) -> Span<'_> {
        self.span(0, HEADER_SIZE as u64)
    }

    fn reserved_word(&self) -> &HostAtomicU64 {
        self.atomic_u64(header::RESERVED as u64)
    }

    /// Bytes from the start on that are reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved_word().load(Ordering::Acquire)
    }

    /// Reserves all bytes below `end`, in steps, so that using them cannot fail; returns at once
    /// for those that are. Others may use the reserved part meanwhile.
    ///
    /// # Errors
    /// [`Error::Full`], which says how to get more; what was reserved stays so.
    pub fn reserve_to(&self, end: u64) -> Result<()> {
        assert!(end <= self.len(), "reserving beyond the region");
        while self.reserved() < end {
            self.reserve_step(end)?;
        }
        Ok(())
    }

    /// Reserves the next bytes below `end`, at most 64 MiB of them; the new [`Region::reserved`].
    /// For a background thread that hands out what it gets.
    pub fn reserve_step(&self, end: u64) -> Result<u64> {
        let _one = self.reserving.lock();
        let from = self.reserved();
        let to = end.min(from + RESERVE_STEP).min(self.len());
        if to <= from {
            return Ok(from);
        }
        if self.backing.as_ref().is_none_or(Backing::is_memory) {
            self.leave_some(to - from)?;
        }
        match &self.backing {
            Some(backing) => backing.reserve(from, to - from)?,
            None => self.populate(from, to - from)?,
        }
        self.reserved_word().store(to, Ordering::Release);
        Ok(to)
    }

    /// Memory is not taken down to the last byte: before shared memory says that it is full, the system ends processes, and not only
    /// this one.
    fn leave_some(&self, wanted: u64) -> Result<()> {
        match crate::backing::available_memory() {
            Some(available) if available < wanted + LEFT_OVER => Err(Error::Full(format!(
                "{}: the machine has {} of memory left; use less (--memory-size)",
                self.name(),
                ByteSize(available)
            ))),
            _ => Ok(()),
        }
    }

    /// Reserves a range wherever it lies; it counts for [`Region::reserved`] only if it continues
    /// what is.
    pub fn reserve(&self, off: u64, len: u64) -> Result<()> {
        let end = off
            .checked_add(len)
            .ok_or_else(|| Error::Invalid("range wraps".into()))?;
        if off <= self.reserved() {
            return self.reserve_to(end);
        }
        match &self.backing {
            Some(backing) => backing.reserve(off, len),
            None => self.populate(off, len),
        }
    }

    /// Maps the pages of a reserved range now, so that their first use does not fault. Slow: about
    /// a second for 4 GiB. Kernels that cannot are excused.
    pub fn populate(&self, off: u64, len: u64) -> Result<()> {
        let page = crate::map::page_size() as u64;
        let start = off / page * page;
        let end = (off + len).next_multiple_of(page).min(self.len());
        match self.mapping.populate(start as usize, (end - start) as usize) {
            Err(e) if e.kind() == std::io::ErrorKind::OutOfMemory => Err(Error::Full(format!(
                "{}: the machine has no memory for bytes {start} to {end}",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    /// How far it can be believed, as last written.
    pub fn state(&self) -> State {
        self.state.lock().1
    }

    /// Writes and flushes a new state. If the process or host dies in it, the old one counts.
    pub fn set_state(&self, state: State) {
        self.update_state(|s| *s = state);
    }

    /// Changes the state in one step among threads; as [`Region::set_state`].
    pub fn update_state(&self, change: impl FnOnce(&mut State)) {
        let mut current = self.state.lock();
        change(&mut current.1);
        current.0 += 1;
        let (at, len) = current.1.write(self.header(), current.0);
        coherence::flush(self, at as u64, len);
    }

    /// Starts recording stores, flushes and fences, for tests that lose a host: see
    /// [`crate::record`]. What the region holds now counts as flushed. Once only.
    pub fn record(&self, seed: u64) -> Arc<Recorder> {
        let recorder = self
            .recorder
            .get_or_init(|| Arc::new(Recorder::new(self.span(0, self.len()).to_vec(), seed)));
        Arc::clone(recorder)
    }

    #[inline]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get().map(|r| &**r)
    }
}

impl core::fmt::Debug for Region {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({:?}, {})", self.name(), self.kind(), ByteSize(self.len()))
    }
}

fn map(backing: &Backing, len: usize) -> Result<Mapping> {
    Mapping::shared(backing.fd(), len, backing.align).map_err(|e| Error::io(format!("mapping {}", backing.named()), e))
}

/// `len` made a multiple of the alignment, and enough for a header.
fn aligned_len(len: u64, align: usize) -> Result<usize> {
    let bytes = usize::try_from(len)
        .ok()
        .and_then(|l| l.checked_next_multiple_of(align));
    match bytes {
        Some(b) if b >= 2 * HEADER_SIZE => Ok(b),
        Some(_) => Err(Error::Invalid(format!("a region of {} is too small", ByteSize(len)))),
        None => Err(Error::Invalid(format!("a region of {len} bytes cannot be"))),
    }
}
