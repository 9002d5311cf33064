//! Regions: spans of pool memory with a header, mapped at any address.
//!
//! A region's life: [`Region::create`] (or [`Region::dram`]) → reserve and use → dropped (unmapped
//! and unlocked; a file stays) → [`Region::open`] by the next process, or [`crate::remove`].
//!
//! Invariants:
//! - a region's file is locked by the one process that has it open (a lock that ends with it). Others may
//!   [`Region::join`] it: what they do there is between them;
//! - **only reserved bytes are used**: [`Region::reserve`] takes the space in the file system
//!   first, so a full one is an error there and never a SIGBUS later. How far it has come is in
//!   the header, so that after a restart nothing is reserved twice;
//! - memory is reached only through [`Span`]s and atomics, which borrow the region;
//! - **lines of a former use are never believed**: a host that had the region open before another one did may still
//!   hold its lines. Opening reads the header from memory, and where it names another host as the last user, drops all
//!   lines before anything else is read. The first change of the state writes this host's name there.

use crate::backing::{Backing, RESERVE_STEP};
use crate::coherence::FlushSink;
use crate::header::{self, HEADER_SIZE, Identity, State};
use crate::host::{HostAtomicU32, HostAtomicU64};
use crate::map::Mapping;
use crate::mirror::Mirroring;
use crate::{Block, LINE, Span, Window, coherence, observe};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::Fault;
use cenote_base::rt::memory::{Access, Device};
use cenote_base::rt::{self, Mutex};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Memory that is left to the machine when a region is reserved.
const LEFT_OVER: u64 = 256 << 20;

/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;

/// Bytes that are mapped ahead at once. While the system does it, nobody else in the process can map anything, such as
/// a new thread's stack: a start of which each such step waited for 64 MiB took a second.
const POPULATE_STEP: u64 = 2 << 20;

/// What a region's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file: in shared memory, or on an fsdax file system.
    File,
    /// A devdax device.
    Devdax,
    /// Anonymous memory of this process; gone with it.
    Dram,
    /// A device of the simulator.
    Simulated,
}

/// How a region is mapped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionOptions {
    /// Bind its memory to this NUMA node.
    pub numa_node: Option<u32>,
    /// Do not ask for huge pages.
    pub small_pages: bool,
    /// Bytes from the start on that hardware keeps coherent among all hosts that map it. A simulated device knows
    /// by itself.
    pub window: u64,
}

/// A span of pool memory. See the module.
pub struct Region {
    mapping: Mapping,
    backing: Option<Backing>,
    identity: Identity,
    state: Mutex<(u64, State)>,
    /// Bytes that may hold something: what was reserved when it was opened, whether or not the file's blocks bear it
    /// out.
    pub(crate) found: u64,
    /// Held while space is taken, here and in the mirror.
    pub(crate) reserving: Mutex<()>,
    pub(crate) mirroring: OnceLock<Box<Mirroring>>,
    flush_sink: OnceLock<Arc<dyn FlushSink>>,
    /// Accessors announce themselves: it lies on a simulated device, or somebody observed when it was made.
    watched: bool,
    window: u64,
}

/// Refuses memory beyond the caches of a processor that can neither write lines back nor drop them.
fn check_caches(backing: &Backing) -> Result<()> {
    if !backing.is_beyond_caches() || rt::simulated() {
        return Ok(());
    }
    coherence::require(coherence::write_back_kind(), &backing.named())
}

impl Region {
    /// Makes a region of `len` bytes in a file or device, and writes its header. What was there
    /// is lost: whether it may be is the caller's to know ([`Region::open`] tells what is there).
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it; [`Error::Full`] if there is no space.
    pub fn create(path: &Path, len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        Self::create_on(Backing::open(path, true)?, len, identity, options)
    }

    /// As [`Region::create`], where [nothing](crate::is_blank) is: that is looked at when it is locked, so of two who
    /// make one at once one fails.
    ///
    /// # Errors
    /// [`Error::Invalid`] if something is there, also where it is in use; those of [`Region::create`].
    pub fn create_new(path: &Path, len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        let backing = match Backing::open(path, true) {
            // Who has it has made it: another try would not help.
            Err(Error::Busy(why)) => return Err(check_blank(path).err().unwrap_or(Error::Busy(why))),
            backing => backing?,
        };
        check_blank(path)?;
        Self::create_on(backing, len, identity, options)
    }

    fn create_on(backing: Backing, len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        check_caches(&backing)?;
        let len = aligned_len(len, backing.align)?;
        backing.resize(len as u64)?;
        backing.reserve(0, HEADER_SIZE as u64)?;
        let mapping = backing.map(len)?;
        if backing.is_beyond_caches() {
            // What was there is void, and so is what this host remembers of it. Of a file, which was emptied, nothing
            // is there but what was reserved just now.
            let old = if backing.kind == Kind::File { HEADER_SIZE } else { len };
            let region = Self::bare(mapping, None);
            coherence::invalidate(&region, 0, old);
            return Self::format(region.mapping, Some(backing), identity, options);
        }
        Self::format(mapping, Some(backing), identity, options)
    }

    /// A region of `len` bytes of anonymous memory: gone with the process.
    pub fn dram(len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        let len = aligned_len(len, crate::map::page_size())?;
        let mapping = match rt::local_memory(len as u64) {
            Some(memory) => Mapping::view(memory, len),
            None => Mapping::anonymous(len)
                .map_err(|e| Error::io(format!("mapping {} of memory", ByteSize(len as u64)), e))?,
        };
        Self::format(mapping, None, identity, options)
    }

    /// Opens what is in a file or device.
    ///
    /// # Errors
    /// [`Error::Mismatch`] or [`Error::Corrupt`] naming the header's field that does not fit;
    /// [`Error::Busy`] if another process has it open. Nothing is changed then.
    pub fn open(path: &Path, options: RegionOptions) -> Result<Self> {
        let mut region = Self::validated(Backing::open(path, false)?, options)?;
        region.distrust_reserved()?;
        region.forget_lines();
        Ok(region)
    }

    /// Maps what another process of this host has open, beside it. Which bytes may be used, and for what, is between
    /// the two: nothing here takes the lock, reserves anything or changes the header, and whoever joined must not
    /// either.
    ///
    /// # Errors
    /// As [`Region::open`], without [`Error::Busy`].
    pub fn join(path: &Path, options: RegionOptions) -> Result<Self> {
        Self::validated(Backing::beside(path)?, options)
    }

    /// Maps it, if its header is in order.
    fn validated(backing: Backing, options: RegionOptions) -> Result<Self> {
        check_caches(&backing)?;
        let len = backing.len()?;
        if len < HEADER_SIZE as u64 || backing.allocated()? == 0 {
            return Err(Error::Mismatch(format!(
                "{}: length: {len} bytes hold no header",
                backing.named()
            )));
        }
        let mut mapping = backing.map(len as usize)?;
        if backing.is_beyond_caches() {
            // A device may be longer than what was made on it.
            let region = Self::bare(mapping, None);
            // Beside a user of this host the cache is as it should be.
            if backing.locked {
                coherence::invalidate(&region, 0, HEADER_SIZE);
            }
            let said = Identity::decode(&region.header().to_vec()).map_or(len, |identity| identity.length);
            mapping = if said < len && said >= 2 * HEADER_SIZE as u64 {
                backing.map(said as usize)?
            } else {
                region.mapping
            };
        }
        Self::attach(mapping, Some(backing), options)
    }

    /// A region of anonymous memory that holds `image`, the bytes of another one: for tests that
    /// lose a host.
    pub fn from_image(image: &[u8]) -> Result<Self> {
        let mapping = Mapping::anonymous(image.len()).map_err(|e| Error::io("mapping", e))?;
        let region = Self::bare(mapping, None);
        region.span(0, region.len()).copy_in(0, image);
        let Self { mapping, .. } = region;
        let mut region = Self::attach(mapping, None, RegionOptions::default())?;
        region.distrust_reserved()?;
        Ok(region)
    }

    /// Maps a file or device that has no header of its own: a mirror. `anew`: it is emptied.
    pub(crate) fn without_header(path: &Path, len: u64, anew: bool) -> Result<Self> {
        let backing = Backing::open(path, anew)?;
        if anew {
            backing.resize(len)?;
        }
        let have = backing.len()?;
        if have < len || (have != len && backing.kind == Kind::File) {
            return Err(Error::Mismatch(format!(
                "{}: length: the file has {}, the region that it is to mirror {}",
                backing.named(),
                ByteSize(have),
                ByteSize(len)
            )));
        }
        let mapping = backing.map(len as usize)?;
        let region = Self::bare(mapping, Some(backing));
        region.apply(RegionOptions::default())?;
        Ok(region)
    }

    /// Whether its file can be found by a name.
    pub(crate) fn has_name(&self) -> bool {
        self.backing.as_ref().is_some_and(Backing::has_name)
    }

    /// Takes the space of a range, in steps.
    pub(crate) fn take_space(&self, off: u64, len: u64) -> Result<()> {
        let Some(backing) = &self.backing else {
            return Ok(());
        };
        for from in (off..off + len).step_by(RESERVE_STEP as usize) {
            backing.reserve(from, RESERVE_STEP.min(off + len - from))?;
        }
        Ok(())
    }

    fn bare(mapping: Mapping, backing: Option<Backing>) -> Self {
        Self {
            watched: mapping.device().is_some() || observe::has_sink(),
            window: mapping.device().map_or(0, Device::window),
            mapping,
            backing,
            identity: Identity::default(),
            state: Mutex::new((0, State::default())),
            found: 0,
            reserving: Mutex::new(()),
            mirroring: OnceLock::new(),
            flush_sink: OnceLock::new(),
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
        region.window = region.window.max(options.window).min(region.len());
        // Until all of it is in memory the first line says that it is being made: whoever finds that begins again.
        let (header, bytes) = (region.header(), identity.encode());
        header.copy_in(0, &header::making());
        coherence::flush(&region, 0, LINE);
        header.zero(LINE, HEADER_SIZE - LINE);
        header.copy_in(LINE, &bytes[LINE..]);
        region.identity = Identity::decode(&bytes)?;
        region.reserved_word().store(HEADER_SIZE as u64, Ordering::Release);
        region.set_state(State::default());
        coherence::flush(&region, 0, HEADER_SIZE);
        region.header().copy_in(0, &bytes[..LINE]);
        coherence::flush(&region, 0, LINE);
        Ok(region)
    }

    fn attach(mapping: Mapping, backing: Option<Backing>, options: RegionOptions) -> Result<Self> {
        let mut region = Self::bare(mapping, backing);
        region.window = region.window.max(options.window).min(region.len());
        let header = region.header().to_vec();
        let named = |e: Error| match e {
            Error::Mismatch(m) => Error::Mismatch(format!("{}: {m}", region.name())),
            Error::Corrupt(m) => Error::Corrupt(format!("{}: {m}", region.name())),
            other => other,
        };
        let identity = Identity::decode(&header).map_err(named)?;
        let have = region.len();
        let enough = match region.kind() {
            Kind::Devdax | Kind::Simulated => identity.length <= have,
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
        Ok(region)
    }

    /// If another host used it last, what this one's cache holds of it is stale.
    fn forget_lines(&self) {
        let last = self.host_word().load(Ordering::Acquire);
        let ours = last == self.host() && last != 0;
        if ours || !self.is_beyond_caches() {
            return;
        }
        if rt::fault::planted(Fault::Invalidate) {
            return;
        }
        let end = self.reserved().clamp(HEADER_SIZE as u64, self.len());
        coherence::invalidate(self, HEADER_SIZE as u64, (end - HEADER_SIZE as u64) as usize);
    }

    /// Writes every line back that this host may hold, so that another host, or the mirror's next user, can go on from
    /// here.
    pub fn write_back_all(&self) {
        if self.is_beyond_caches() || self.is_mirrored() {
            coherence::flush(self, 0, self.reserved().min(self.len()) as usize);
        }
    }

    /// Whether other hosts can reach its memory, so that this host's caches are not all there is to it.
    pub fn is_beyond_caches(&self) -> bool {
        self.backing.as_ref().is_some_and(Backing::is_beyond_caches)
    }

    fn apply(&self, options: RegionOptions) -> Result<()> {
        if self.device().is_some() {
            return Ok(());
        }
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
    fn distrust_reserved(&mut self) -> Result<()> {
        let word = self.reserved_word();
        let said = word.load(Ordering::Acquire);
        let Some(backing) = &self.backing else {
            return Ok(());
        };
        if said > self.len() || backing.allocated()? < said {
            word.store(HEADER_SIZE as u64, Ordering::Release);
        }
        self.found = said.min(self.len());
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

    /// Whether its accessors announce themselves: see [`observe`].
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// Whether it lies on a simulated device.
    #[inline]
    pub fn is_simulated(&self) -> bool {
        self.device().is_some()
    }

    /// The simulated device that it lies on.
    #[inline(always)]
    pub(crate) fn device(&self) -> Option<&dyn Device> {
        self.mapping.device()
    }

    /// Tells the simulated device, if there is one, of an access, and nobody else; no preemption point. For atomics
    /// that are used raw because they are used in destructors; everything else announces by itself.
    #[inline(always)]
    pub fn touch_device(&self, off: u64, len: u32, access: Access) {
        if self.watched {
            self.touch_device_watched(off, len, access);
        }
    }

    #[cold]
    #[inline(never)]
    fn touch_device_watched(&self, off: u64, len: u32, access: Access) {
        if let Some(device) = self.device() {
            device.touch(off, len, access);
        }
    }

    /// Says what lies where, for tables of traffic: name, offset, length.
    pub fn describe(&self, parts: &[(&'static str, u64, u64)]) {
        if let Some(device) = self.device() {
            device.describe(parts);
        }
    }

    /// Which boot of which host this process runs on; 0 if nothing tells.
    pub fn host(&self) -> u64 {
        self.device().map_or_else(crate::backing::boot, Device::host)
    }

    /// The bytes that hardware keeps coherent among hosts: the only place for atomics that hold among them.
    pub fn window(&self) -> Window<'_> {
        Window::new(self.span(0, self.window))
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

    /// Asks the processor for the line at `off`, which will be used soon, if there is one; or the simulated device. No
    /// access, and not announced.
    #[inline(always)]
    pub fn prefetch(&self, off: u64) {
        if off >= self.len() {
            return;
        }
        match self.watched {
            false => crate::raw::prefetch(self.base().wrapping_add(off as usize)),
            true => self.prefetch_device(off),
        }
    }

    #[cold]
    #[inline(never)]
    fn prefetch_device(&self, off: u64) {
        if let Some(device) = self.device() {
            device.prefetch(off);
        }
    }

    /// The bytes of the header on a simulated device.
    /// The first bytes of what can be mapped, whatever they are.
    pub(crate) fn head_of(path: &Path) -> Result<Vec<u8>> {
        let backing = Backing::open(path, false)?;
        let region = Self::bare(backing.map(HEADER_SIZE.next_multiple_of(backing.align))?, None);
        coherence::invalidate(&region, 0, HEADER_SIZE);
        Ok(region.header().to_vec())
    }

    pub(crate) fn header_of(device: Arc<dyn Device>) -> Vec<u8> {
        let region = Self::bare(Mapping::view(device, HEADER_SIZE), None);
        region.header().to_vec()
    }

    fn header(&self) -> Span<'_> {
        self.span(0, HEADER_SIZE as u64)
    }

    fn host_word(&self) -> &HostAtomicU64 {
        self.atomic_u64(header::HOST as u64)
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
    /// [`Error::Full`], which says how to get more; what was reserved stays so. If it is the mirror that has no room
    /// ([`Region::has_mirror_failed`]), there may be some when that was detached.
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
        if self.device().is_none() && self.backing.as_ref().is_none_or(Backing::is_memory) {
            self.leave_some(to - from)?;
        }
        if let Some(mirroring) = self.mirroring() {
            mirroring.reserve_to(to)?;
        }
        match &self.backing {
            Some(backing) => backing.reserve(from, to - from)?,
            None => self.populate(from, to - from)?,
        }
        // Past the cache, here and in `note_host`: a process that is killed between a store and its flush would leave
        // the line changed in this host's cache, and it could be written over what another host has put there since.
        coherence::store_uncached(self, header::RESERVED as u64, to);
        Ok(to)
    }

    /// Memory is not taken down to the last byte: before shared memory says that it is full, the system ends processes,
    /// and not only this one.
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

    /// Gathers the next small pages of a reserved range below `end` into huge ones, at most 2 MiB of them: where it
    /// came to. 1.4 ms where there is something to copy, 50 us where there is not. Without huge pages the processor's
    /// address cache misses at nearly each page of a large region: a point lookup took a sixth longer.
    ///
    /// # Errors
    /// The machine has no huge page to give, or its kernel does not do this: it works without.
    pub fn collapse_step(&self, from: u64, end: u64) -> std::io::Result<u64> {
        let end = end.min(self.len());
        let to = (from / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE).min(end);
        if matches!(self.kind(), Kind::File | Kind::Dram) && to.is_multiple_of(HUGE_PAGE) {
            self.mapping.collapse((to - HUGE_PAGE) as usize, HUGE_PAGE as usize)?;
        }
        Ok(to)
    }

    /// Maps the pages of a reserved range now, so that their first use does not fault. Slow: about
    /// a second for 4 GiB. Kernels that cannot are excused.
    pub fn populate(&self, off: u64, len: u64) -> Result<()> {
        if self.device().is_some() {
            return Ok(());
        }
        let page = crate::map::page_size() as u64;
        let (start, end) = (off / page * page, (off + len).next_multiple_of(page).min(self.len()));
        for from in (start..end).step_by(POPULATE_STEP as usize) {
            let to = end.min(from + POPULATE_STEP);
            match self.mapping.populate(from as usize, (to - from) as usize) {
                Err(e) if e.kind() == std::io::ErrorKind::OutOfMemory => {
                    let name = self.name();
                    return Err(Error::Full(format!(
                        "{name}: the machine has no memory for bytes {from} to {to}"
                    )));
                }
                _ => {}
            }
        }
        Ok(())
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
        self.note_host();
        change(&mut current.1);
        current.0 += 1;
        let (at, len) = current.1.write(self.header(), current.0);
        coherence::flush(self, at as u64, len);
    }

    /// From the first change on, this host is the one that used it last. In memory before the change is.
    fn note_host(&self) {
        let host = self.host();
        if self.host_word().load(Ordering::Relaxed) != host {
            coherence::store_uncached(self, header::HOST as u64, host);
        }
    }

    /// From here on `sink` is told of write-backs and fences: false if another one is told already. For tests that lose a
    /// host.
    pub fn tell_flushes(&self, sink: Arc<dyn FlushSink>) -> bool {
        self.flush_sink.set(sink).is_ok()
    }

    #[inline]
    pub(crate) fn mirroring(&self) -> Option<&Mirroring> {
        self.mirroring.get().map(|mirroring| &**mirroring)
    }

    #[inline]
    pub(crate) fn flush_sink(&self) -> Option<&dyn FlushSink> {
        self.flush_sink.get().map(|sink| &**sink)
    }
}

impl core::fmt::Debug for Region {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({:?}, {})", self.name(), self.kind(), ByteSize(self.len()))
    }
}

fn check_blank(path: &Path) -> Result<()> {
    if crate::is_blank(path) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{} holds something: nothing is made over it",
        path.display()
    )))
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
