//! Regions: spans of pool memory with a header, mapped at any address.
//!
//! A region's life: [`Region::create`] (or [`Region::dram`]) → reserve and use → dropped (unmapped
//! and unlocked; a file stays) → [`Region::open`] by the next process, or [`crate::remove`].
//!
//! Invariants:
//! - the one process that has a region open locks its file; the lock ends with the process. Other processes may
//!   [`Region::join`] it, and agree with the first on what they do there;
//! - **only reserved bytes are used**: [`Region::reserve`] takes the space in the file system
//!   first, so a full one is an error there and never a SIGBUS later. How far it has come is in
//!   the header, so that after a restart nothing is reserved twice;
//! - memory is reached only through [`Span`]s and atomics, which borrow the region;
//! - **lines of a former use are never believed**: a host that had the region open before another host may still hold
//!   its lines. Opening reads the header from memory. Where that names another host as the last user, opening drops all
//!   lines before it reads anything else. The first change of the state writes this host's name there.

use crate::backing::{Backing, Kind, RESERVE_STEP};
use crate::header::{self, HEADER_SIZE, Identity, State};
use crate::host::HostAtomicU64;
use crate::map::Mapping;
use crate::memory::{FlushSink, RegionMemory};
use crate::mirror::{FILL_STEP, Mirroring, Side};
use crate::range::FileRange;
use crate::span::Span;
use crate::window::Window;
use crate::{LINE, coherence, observe};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::Fault;
use cenote_base::rt::memory::Device;
use cenote_base::rt::{self, Mutex};
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use core::ops::Deref;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Memory that is left to the machine when a region is reserved.
const LEFT_OVER: u64 = 256 << 20;

/// What a region of anonymous memory is called in messages.
const IN_MEMORY: &str = "region in memory";

/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;

/// Bytes that are mapped in advance at once. While the system does it, no other thread of the process can map anything,
/// such as a new thread's stack: a start of which each such step waited for 64 MiB took a second.
const POPULATE_STEP: u64 = 2 << 20;
const _: () = assert!(
    POPULATE_STEP.is_multiple_of(HUGE_PAGE),
    "a step populates whole huge pages"
);

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
    /// Where it is a part of a file or device that holds others too: which. The lock is of that part then.
    pub range: Option<FileRange>,
}

/// A span of pool memory. See the module.
pub struct Region {
    memory: RegionMemory,
    backing: Option<Backing>,
    identity: Identity,
    state: Mutex<(u64, State)>,
    /// Bytes that may hold something: what was reserved when it was opened, whether or not the file's blocks bear it
    /// out.
    found: u64,
    /// Held while space is taken, here and in the mirror.
    reserving: Mutex<()>,
    mirroring: OnceLock<Arc<Mirroring>>,
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
        Self::create_on(Backing::open_at(path, true, options.range)?, len, identity, options)
    }

    /// As [`Region::create`], where [nothing](crate::is_blank) is: that is looked at when it is locked, so of two
    /// processes that make one at once one fails.
    ///
    /// # Errors
    /// [`Error::Invalid`] if something is there, also where it is in use; those of [`Region::create`].
    pub fn create_new(path: &Path, len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        let backing = match Backing::open_at(path, true, options.range) {
            // The process that has it has made it: another try would not help.
            Err(Error::Busy(why)) => return Err(check_blank(path, options).err().unwrap_or(Error::Busy(why))),
            backing => backing?,
        };
        check_blank(path, options)?;
        Self::create_on(backing, len, identity, options)
    }

    fn create_on(backing: Backing, len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        check_caches(&backing)?;
        let len = aligned_len(len, backing.align)?;
        backing.resize(len as u64)?;
        backing.reserve(0, HEADER_SIZE as u64)?;
        let memory = observe::memory(backing.map(len)?, backing.named());
        if backing.is_beyond_caches() {
            // What was there is void, and so is what this host remembers of it. Of a file, which was emptied, nothing
            // is there but what was reserved just now.
            let is_new = backing.kind == Kind::File && !backing.is_range();
            let old = if is_new { HEADER_SIZE } else { len };
            coherence::invalidate(&memory, 0, old);
        }
        Self::format(memory, Some(backing), identity, options)
    }

    /// A region of `len` bytes of anonymous memory: gone with the process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the length is too small or too great, [`Error::Io`] if it cannot be mapped.
    pub fn dram(len: u64, identity: Identity, options: RegionOptions) -> Result<Self> {
        let len = aligned_len(len, crate::map::page_size())?;
        let mapping = match rt::local_memory(len as u64) {
            Some(memory) => Mapping::view(memory, len),
            None => Mapping::anonymous(len)
                .map_err(|e| Error::io(format!("mapping {} of memory", ByteSize(len as u64)), e))?,
        };
        Self::format(observe::memory(mapping, IN_MEMORY.to_owned()), None, identity, options)
    }

    /// Opens what is in a file or device.
    ///
    /// # Errors
    /// [`Error::Mismatch`] or [`Error::Corrupt`] naming the header's field that does not fit;
    /// [`Error::Busy`] if another process has it open. Nothing is changed then.
    pub fn open(path: &Path, options: RegionOptions) -> Result<Self> {
        let mut region = Self::validated(Backing::open_at(path, false, options.range)?, options)?;
        region.distrust_reserved()?;
        region.forget_lines();
        Ok(region)
    }

    /// Maps what another process of this host has open, beside it. The two agree on which bytes may be
    /// used, and for what: nothing here takes the lock, reserves anything or changes the header, and the joined process
    /// must not either.
    ///
    /// # Errors
    /// As [`Region::open`], without [`Error::Busy`].
    pub fn join(path: &Path, options: RegionOptions) -> Result<Self> {
        Self::validated(Backing::beside_at(path, options.range)?, options)
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
        let mut memory = observe::memory(backing.map(len as usize)?, backing.named());
        // Beside a user of this host the cache is as it should be.
        if backing.is_beyond_caches() && backing.locked {
            coherence::invalidate(&memory, 0, HEADER_SIZE);
        }
        if backing.is_beyond_caches() || backing.is_range() {
            // A device, or a range of one, may be longer than what was made on it.
            let header = memory.span(0, HEADER_SIZE as u64).to_vec();
            let said = Identity::decode(&header).map_or(len, |identity| identity.length);
            if said < len && said >= 2 * HEADER_SIZE as u64 {
                memory = observe::memory(backing.map(said as usize)?, backing.named());
            }
        }
        Self::attach(memory, Some(backing), options)
    }

    /// A region of anonymous memory that holds `image`, the bytes of another one: for tests that
    /// lose a host.
    ///
    /// # Errors
    /// [`Error::Mismatch`] or [`Error::Corrupt`] if the image has no header in order, [`Error::Io`] if it cannot be
    /// mapped.
    pub fn from_image(image: &[u8]) -> Result<Self> {
        let mapping = Mapping::anonymous(image.len()).map_err(|e| Error::io("mapping", e))?;
        let memory = observe::memory(mapping, IN_MEMORY.to_owned());
        memory.span(0, memory.len()).copy_in(0, image);
        let mut region = Self::attach(memory, None, RegionOptions::default())?;
        region.distrust_reserved()?;
        Ok(region)
    }

    fn bare(memory: RegionMemory, backing: Option<Backing>) -> Self {
        Self {
            window: memory.device().map_or(0, Device::window),
            memory,
            backing,
            identity: Identity::default(),
            state: Mutex::new((0, State::default())),
            found: 0,
            reserving: Mutex::new(()),
            mirroring: OnceLock::new(),
        }
    }

    fn format(
        memory: RegionMemory,
        backing: Option<Backing>,
        mut identity: Identity,
        options: RegionOptions,
    ) -> Result<Self> {
        assert!(
            memory.len() >= 2 * HEADER_SIZE as u64,
            "a region has room behind its header"
        );
        identity.length = memory.len();
        identity.made_micros = rt::wall_micros();
        let mut region = Self::bare(memory, backing);
        region.apply(options)?;
        region.window = region.window.max(options.window).min(region.len());
        // Until all of it is in memory the first line says that it is being made: a start that finds that begins again.
        let (header, bytes) = (region.header(), identity.encode());
        header.copy_in(0, &header::making());
        coherence::flush(&region, 0, LINE);
        header.zero(LINE, HEADER_SIZE - LINE);
        header.copy_in(LINE, &bytes[LINE..]);
        region.set_identity(Identity::decode(&bytes)?);
        region.reserved_word().store(HEADER_SIZE as u64, Ordering::Release);
        region.set_state(State::default());
        coherence::flush(&region, 0, HEADER_SIZE);
        region.header().copy_in(0, &bytes[..LINE]);
        coherence::flush(&region, 0, LINE);
        Ok(region)
    }

    fn attach(memory: RegionMemory, backing: Option<Backing>, options: RegionOptions) -> Result<Self> {
        let mut region = Self::bare(memory, backing);
        region.window = region.window.max(options.window).min(region.len());
        let header = region.header().to_vec();
        let named = |e: Error| match e {
            Error::Mismatch(m) => Error::Mismatch(format!("{}: {m}", region.name())),
            Error::Corrupt(m) => Error::Corrupt(format!("{}: {m}", region.name())),
            other => other,
        };
        let identity = Identity::decode(&header).map_err(named)?;
        let have = region.len();
        let is_range = region.backing.as_ref().is_some_and(Backing::is_range);
        let enough = match region.kind() {
            _ if is_range => identity.length <= have,
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
        region.set_identity(identity);
        region.state = Mutex::new(state);
        region.apply(options)?;
        Ok(region)
    }

    fn set_identity(&mut self, identity: Identity) {
        self.memory.set_id(identity.region);
        self.identity = identity;
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
            self.memory
                .mapping()
                .bind(node)
                .map_err(|e| Error::io(format!("binding {} to NUMA node {node}", self.name()), e))?;
        }
        if !options.small_pages {
            self.memory.mapping().advise_huge();
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

    /// What its memory is.
    pub fn kind(&self) -> Kind {
        self.backing.as_ref().map_or(Kind::Dram, |b| b.kind)
    }

    /// Its file or device.
    pub fn path(&self) -> Option<&Path> {
        self.backing.as_ref().map(|b| &*b.path)
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

    /// Reserves the next bytes below `end`, at most 16 MiB of them; the new [`Region::reserved`].
    /// For a background thread that hands out what it gets.
    ///
    /// # Errors
    /// [`Error::Full`] if the file system, the machine or the mirror has no room for it; [`Error::Io`] for any other
    /// failure.
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
    ///
    /// # Errors
    /// As [`Region::reserve_to`]; [`Error::Invalid`] if the range wraps.
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

    /// Maps it once more, for a fabric that reads it. `None`: it is memory of this process alone.
    ///
    /// # Errors
    /// That of `mmap`.
    pub fn map_again(&self) -> Result<Option<Mapping>> {
        let len = usize::try_from(self.len()).map_err(|_| Error::Invalid(format!("{} bytes to map", self.len())))?;
        self.backing.as_ref().map(|backing| backing.map(len)).transpose()
    }

    /// Gathers the next small pages of a reserved range below `end` into huge ones, at most 2 MiB of them: where it
    /// came to. 1.4 ms where there is something to copy, 50 us where there is not. Without huge pages the processor's
    /// address cache misses at nearly each page of a large region: a point lookup took a sixth longer. Memory of this
    /// process alone has huge pages from its first use on, and is passed over: on a busy machine a call takes seconds,
    /// whatever it finds.
    ///
    /// # Errors
    /// The machine has no huge page to give, or its kernel does not do this: it works without.
    pub fn collapse_step(&self, from: u64, end: u64) -> std::io::Result<u64> {
        let end = end.min(self.len());
        let to = (from / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE).min(end);
        let backing = self.backing.as_ref();
        if backing.is_some_and(|b| matches!(b.kind, Kind::File | Kind::Dram)) && to.is_multiple_of(HUGE_PAGE) {
            self.memory
                .mapping()
                .collapse((to - HUGE_PAGE) as usize, HUGE_PAGE as usize)?;
        }
        Ok(to)
    }

    /// Maps the pages of a reserved range now, so that their first use does not fault. Slow: about
    /// a second for 4 GiB. Kernels that cannot are excused.
    ///
    /// # Errors
    /// [`Error::Full`] if the machine has no memory for the range.
    pub fn populate(&self, off: u64, len: u64) -> Result<()> {
        if self.device().is_some() {
            return Ok(());
        }
        let page = crate::map::page_size() as u64;
        let (start, end) = (off / page * page, (off + len).next_multiple_of(page).min(self.len()));
        for from in (start..end).step_by(POPULATE_STEP as usize) {
            let to = end.min(from + POPULATE_STEP);
            match self.memory.mapping().populate(from as usize, (to - from) as usize) {
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
        current.0 = header::after(current.0);
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

    /// Notes which host uses it, for people. Nothing is decided by that.
    pub fn note_user(&self, name: &str) {
        let mut bytes = [0; header::HOST_NAME_MAX];
        let name = header::truncated(name, bytes.len());
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        self.header().copy_in(header::HOST_NAME, &bytes);
        coherence::flush(self, header::HOST_NAME as u64, bytes.len());
    }

    /// The name that was noted last, as far as it can be shown; empty if there is none.
    pub fn user(&self) -> String {
        let mut bytes = [0; header::HOST_NAME_MAX];
        self.header().copy_out(header::HOST_NAME, &mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.chars()
            .take_while(|c| *c != '\0')
            .filter(|c| !c.is_control())
            .collect()
    }

    #[inline]
    fn mirroring(&self) -> Option<&Mirroring> {
        self.mirroring.get().map(|mirroring| &**mirroring)
    }

    /// The place of a mirror, which coherence asks from here on.
    fn mirrorable(&self) -> &Mirroring {
        self.mirroring.get_or_init(|| {
            let mirroring = Arc::new(Mirroring::default());
            self.memory.set_mirror(Arc::clone(&mirroring) as Arc<dyn FlushSink>);
            mirroring
        })
    }
}

impl Region {
    /// There may be a mirror later. Said before other threads write, it has every write-back take its stripe's lock
    /// from the first on: else one that sees no mirror yet may have its stores in its processor's store buffer still
    /// when they are to be filled.
    pub fn expect_mirror(&self) {
        self.mirrorable();
    }

    /// From here on `side` gets every line that is written back. What it lacks is copied by
    /// [`Region::fill_mirror_step`]. It takes the place of a former one.
    ///
    /// # Errors
    /// [`Error::Full`] if it has no room for what is reserved; then it is not attached.
    pub fn attach_mirror(&self, side: Arc<dyn Side>) -> Result<()> {
        // What was in use when the region was opened is in use: it is to be filled, and only what is reserved can be
        // read.
        self.reserve_to(self.found)?;
        let _one = self.reserving.lock();
        side.reserve_to(self.reserved())?;
        let mirroring = self.mirrorable();
        mirroring.forget_failure();
        mirroring.set(Some(side));
        Ok(())
    }

    /// No more lines are copied. The keeper must have noted before that the mirror is not to be believed.
    pub fn detach_mirror(&self) {
        if let Some(mirroring) = self.mirroring() {
            let _one = self.reserving.lock();
            mirroring.set(None);
        }
    }

    /// Whether the mirror had no room for what was to be reserved last: the region cannot grow before it is detached.
    pub fn has_mirror_failed(&self) -> bool {
        self.mirroring().is_some_and(Mirroring::has_failed)
    }

    /// The mirror, by a number of its own, if fences returned without it while it may count as whole.
    pub fn mirror_behind(&self) -> Option<u64> {
        self.mirroring().and_then(Mirroring::side)?.behind()
    }

    /// Whether all that was written back is in the mirror too, as far as there is one: a fence would not wait.
    pub fn is_mirror_settled(&self) -> bool {
        let side = self.mirroring().and_then(Mirroring::side);
        side.is_none_or(|side| side.is_settled())
    }

    /// Whether there is a mirror.
    pub fn is_mirrored(&self) -> bool {
        self.mirroring().is_some_and(|mirroring| mirroring.side().is_some())
    }

    /// Copies the lines from `from` on, at most [`FILL_STEP`] bytes of what is reserved, while other threads use the
    /// region: where it came to. There is no more to copy when that is `from`.
    pub fn fill_mirror_step(&self, from: u64) -> u64 {
        let to = self.reserved().min(self.len()).min(from + FILL_STEP);
        match self.mirroring() {
            Some(mirroring) if from < to && mirroring.side().is_some() => {
                // No fence of the region: that waits until a lost mirror is given up, which may be this thread's to do.
                mirroring.fill(self, from, (to - from) as usize);
                to
            }
            _ => from,
        }
    }
}

impl Deref for Region {
    type Target = RegionMemory;

    #[inline(always)]
    fn deref(&self) -> &RegionMemory {
        &self.memory
    }
}

impl core::fmt::Debug for Region {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({:?}, {})", self.name(), self.kind(), ByteSize(self.len()))
    }
}

fn check_blank(path: &Path, options: RegionOptions) -> Result<()> {
    if crate::is_blank_at(path, options.range) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Wrapped, the next state would have sequence 0, which is no state, and the former one would count for good.
    #[test]
    #[should_panic(expected = "does not wrap")]
    fn the_sequence_of_a_state_does_not_wrap() {
        let region = Region::dram(65536, Identity::default(), RegionOptions::default()).expect("memory");
        State::default().write(region.header(), u64::MAX);
        let image = region.span(0, region.len()).to_vec();
        let last = Region::from_image(&image).expect("a state at the end of its sequences is a state");
        last.update_state(|state| state.epoch = 1);
    }
}
