//! A space: a heap that many clients of one tenant share. Objects of 64 bytes up are reached by [`GlobalAddress`].
//!
//! A space is made of *parts*: its memory on one memory node, which is one grant's file, mapped whole by each client. A
//! part is cut into *extents* of 2 MiB. An extent is free, or cut into objects of one [`Class`] (a slab), or one of a
//! *run*, which is an object larger than that.
//!
//! ```text
//!   client ── session ──alloc, free──► slabs that the session owns: a bit an object, changed by compare-and-swap
//!     │          │
//!     │          └─ extents, runs ───► keeper of the part: the process that hands out extents
//!     └──── read, write, load, … ────► memory: checked against slot and live bit, then copied; no other process takes part
//! ```
//!
//! ```
//! use cenote_space::{Space, SpaceOptions};
//!
//! let space = Space::dram(&SpaceOptions { bytes: 16 << 20, ..SpaceOptions::default() })?;
//! let session = space.session();
//! let greeting = session.alloc(100)?;
//! space.write(greeting, b"hello")?;
//! let mut bytes = [0; 5];
//! space.read(greeting, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! session.free(greeting)?;
//! assert!(space.read(greeting, &mut bytes).is_err());
//! # Ok::<(), cenote_base::Error>(())
//! ```

mod access;
mod act;
mod address;
mod audit;
mod bulk;
mod cache;
mod class;
mod extent;
mod extent_table;
pub mod failure;
mod far;
mod fetch;
mod free;
mod heat;
mod host;
pub mod journal;
mod keeper;
mod layout;
mod local;
mod location_cache;
mod lock;
mod many;
mod migrated_extents;
mod mirror_step;
mod mirrored;
mod neighbour;
mod objects;
mod part;
mod pieces;
mod placement;
mod presence;
mod readmit;
mod route;
mod runs;
mod sequence;
mod session;
mod shared_bytes;
mod slot;
mod spread;
mod stalled;
mod stats;
mod under_lock;

pub use access::{Read, Write};
pub use address::GlobalAddress;
pub use class::{Class, GRAIN, SLAB_OBJECT_MAX};
pub use extent::EXTENT;
pub use far::modes::{FarMode, FarReads, FarStats, Probed};
pub use far::wire::Hello;
pub use far::{Admission, Channel, FarPart, Pass, Resolver};
pub use heat::{Heat, HeatOptions};
pub use host::{Crew, Fencing, Host, HostOptions, Hosts, Moved, Peer};
pub use keeper::{Extent, Keeper, Lifetime, Run, SessionId};
pub use local::LocalKeeper;
pub use lock::{Guard, Held, LOCK_BYTES, Mode, Timeout};
pub use neighbour::{Neighbour, Service};
pub use part::{Part, PartOptions};
pub use placement::{Placement, audit_placements};
pub use session::Session;
pub use shared_bytes::SharedBytes;
pub use stats::{CacheStats, ClassStats, PartStats, SpaceStats};

use cache::PageCache;
use location_cache::LocationCache;
use part::{PartRows, SlotTable};
use stalled::Stalled;

use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{Error, Result};
use cenote_fabric::RegionOptions;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What a space of one part is made with. The default is 1 GiB and a random id.
#[derive(Debug, Clone)]
pub struct SpaceOptions {
    /// Size of its part in bytes, all that it needs for itself included.
    pub bytes: u64,
    /// Its id; 0: a random one.
    pub id: u128,
    /// The tenant whose memory it is, where a pool serves several.
    pub tenant: u32,
    /// How it is mapped.
    pub region: RegionOptions,
}

impl Default for SpaceOptions {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            id: 0,
            tenant: 0,
            region: RegionOptions::default(),
        }
    }
}

impl SpaceOptions {
    fn part(&self) -> PartOptions {
        PartOptions {
            space: if self.id == 0 { rt::random_u128() } else { self.id },
            part: 1,
            tenant: self.tenant,
            bytes: self.bytes,
            movable: false,
            region: self.region,
        }
    }
}

/// A heap shared by many clients. See the module. A clone is another handle on the same.
#[derive(Clone)]
pub struct Space(Arc<SpaceState>);

struct SpaceState {
    id: u128,
    /// By number: those that this process maps, and the others.
    parts: [OnceLock<Attached>; 256],
    /// Of the first ones, what most accesses need.
    rows: SlotTable,
    far: [OnceLock<FarAttached>; 256],
    /// Of those, the ones whose bytes this process reaches on a device.
    bytes: [OnceLock<Box<SharedBytes>>; 256],
    location_cache: LocationCache,
    stalled: Stalled,
    /// Above the numbers of parts that it maps, and of the others.
    near_end: AtomicU64,
    far_end: AtomicU64,
    /// Accesses that went to a part that this process does not map.
    asked: AtomicU64,
    /// What was read under locks of what it does not map.
    cache: PageCache,
    unleft: lock::Unleft,
    /// How long a look at a far lock tells that it is held still, in nanoseconds; 0: for as long as it is not left.
    trust: AtomicU64,
    source: OnceLock<Source>,
}

/// A part that this process does not map, and its keeper.
struct FarAttached {
    part: FarPart,
    keeper: Arc<dyn Keeper>,
}

/// Where parts come from that the space was not made with.
struct Source {
    parts: Box<dyn PartSource>,
    /// The part where the root lies, attached or not.
    root: u8,
}

/// Knows whether a space has more parts than are attached.
pub trait PartSource: Send + Sync {
    /// Attaches parts that there are now and were not before; whether there were any. `full`: the space has no room;
    /// otherwise an access named a part that is not attached.
    fn attach_more(&self, space: &Space, full: bool) -> bool;
}

/// The part where the root lies.
enum First<'a> {
    Here(&'a Part),
    There(&'a FarPart),
}

/// A part, and its keeper.
struct Attached {
    part: Arc<Part>,
    keeper: Arc<dyn Keeper>,
}

impl Attached {
    fn number(&self) -> u8 {
        self.part.number()
    }
}

impl Space {
    /// A space without memory: [attach](Self::attach) parts to it.
    pub fn new(id: u128) -> Self {
        Self(Arc::new(SpaceState {
            id,
            parts: [const { OnceLock::new() }; 256],
            rows: SlotTable::default(),
            far: [const { OnceLock::new() }; 256],
            bytes: [const { OnceLock::new() }; 256],
            location_cache: LocationCache::default(),
            stalled: Stalled::default(),
            near_end: AtomicU64::new(0),
            far_end: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            cache: PageCache::default(),
            unleft: lock::Unleft::default(),
            trust: AtomicU64::new(0),
            source: OnceLock::new(),
        }))
    }

    /// Makes a space of one part in a file or device that holds nothing. This process keeps it.
    ///
    /// # Errors
    /// As [`Part::create`].
    pub fn create(path: &Path, options: &SpaceOptions) -> Result<Self> {
        Self::kept(Part::create(path, &options.part())?)
    }

    /// Makes a space of one part in memory of this process, gone with it.
    ///
    /// # Errors
    /// As [`Part::dram`].
    pub fn dram(options: &SpaceOptions) -> Result<Self> {
        Self::kept(Part::dram(&options.part())?)
    }

    /// Opens a space of one part. This process keeps it, and all former sessions end: their processes must be gone.
    /// (Where they may not be, attach a [`LocalKeeper`], and end the sessions that are.)
    ///
    /// # Errors
    /// As [`Part::open`].
    pub fn open(path: &Path, options: RegionOptions) -> Result<Self> {
        Self::kept(Part::open(path, options)?)
    }

    /// Maps a space of one part that another process of this machine keeps.
    ///
    /// # Errors
    /// As [`Part::join`].
    pub fn join(path: &Path, options: RegionOptions, keeper: Arc<dyn Keeper>) -> Result<Self> {
        let part = Arc::new(Part::join(path, options)?);
        let space = Self::new(part.space());
        space.attach(part, keeper)?;
        Ok(space)
    }

    fn kept(part: Part) -> Result<Self> {
        let part = Arc::new(part);
        let keeper = LocalKeeper::new(Arc::clone(&part))?;
        keeper.end_all()?;
        let space = Self::new(part.space());
        space.attach(part, Arc::new(keeper))?;
        Ok(space)
    }

    /// Adds a part, for good.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it is of another space; [`Error::Invalid`] if the space has one of this number.
    pub fn attach(&self, part: Arc<Part>, keeper: Arc<dyn Keeper>) -> Result<()> {
        if part.space() != self.0.id {
            let (of, this) = (part.space(), self.0.id);
            return Err(Error::Mismatch(format!(
                "{} is of space {of:x}, not of {this:x}",
                part.name()
            )));
        }
        let number = part.number();
        assert!(number > 0, "parts are numbered from 1 on");
        let attached = self.0.parts[usize::from(number)].set(Attached { part, keeper });
        attached.map_err(|_| Error::Invalid(format!("the space has a part {number} already")))?;
        self.0.near_end.fetch_max(u64::from(number) + 1, Ordering::AcqRel);
        if let Some(attached) = self.0.parts[usize::from(number)].get() {
            attached.part.enter_in(&self.0.rows);
        }
        Ok(())
    }

    /// Adds a part that this process does not map, for good.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the space has one of this number.
    pub fn attach_far(&self, part: FarPart, keeper: Arc<dyn Keeper>) -> Result<()> {
        let number = part.number;
        let has_it = || Error::Invalid(format!("the space has a part {number} already"));
        if self.part_numbered(number).is_some() {
            return Err(has_it());
        }
        let attached = self.0.far[usize::from(number)].set(FarAttached { part, keeper });
        attached.map_err(|_| has_it())?;
        self.0.far_end.fetch_max(u64::from(number) + 1, Ordering::AcqRel);
        Ok(())
    }

    /// Says whether it had none.
    fn set_bytes(&self, number: u8, bytes: SharedBytes) -> bool {
        self.0.bytes[usize::from(number)].set(Box::new(bytes)).is_ok()
    }

    fn bytes_of(&self, part: u8) -> Option<&SharedBytes> {
        self.0.bytes[usize::from(part)].get().map(|bytes| &**bytes)
    }

    /// Nothing that was given up is done any more, in any part, once this returns.
    fn settle(&self) -> Result<()> {
        let settled = self.far_attached().map(|far| far.part.channel.settle());
        settled.fold(Ok(()), Result::and)
    }

    /// Its parts that this process does not map, by number.
    pub fn far_parts(&self) -> impl Iterator<Item = &FarPart> {
        self.far_attached().map(|attached| &attached.part)
    }

    /// Whether what its parts have is not lost with their nodes, as it is mirrored: of a space that is, all parts are.
    pub fn is_mirrored(&self) -> bool {
        self.far_parts().any(|part| part.channel.is_mirrored())
    }

    /// Says where more parts come from when they are missed, for good, and which part has the root.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that was said before.
    pub fn set_source(&self, parts: Box<dyn PartSource>, root: u8) -> Result<()> {
        let set = self.0.source.set(Source { parts, root });
        set.map_err(|_| Error::Invalid("the space has a source of parts already".into()))
    }

    /// The space has no room: whether it has more parts since.
    pub(crate) fn has_grown(&self) -> bool {
        let source = self.0.source.get();
        source.is_some_and(|source| source.parts.attach_more(self, true))
    }

    /// Accesses through this handle, and its clones, that another pod was asked for.
    pub fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }

    fn count_asked(&self, n: usize) {
        self.0.asked.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Its id.
    pub fn id(&self) -> u128 {
        self.0.id
    }

    /// Its parts, by number.
    pub fn parts(&self) -> impl Iterator<Item = &Arc<Part>> {
        self.attached().map(|attached| &attached.part)
    }

    /// Whether a part is attached, mapped or not.
    pub fn has_part(&self, number: u8) -> bool {
        let number = usize::from(number);
        self.0.parts[number].get().is_some() || self.0.far[number].get().is_some()
    }

    /// The keeper of a part: to serve other processes with, or to end sessions.
    pub fn keeper(&self, part: u8) -> Option<Arc<dyn Keeper>> {
        self.keeper_of(part).ok().cloned()
    }

    /// A new allocator. It begins in a part with its first allocation there.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The address that what lies in the space is found by; null if none was set. It lies in the part with the lowest
    /// number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the space has no part, or that one is not attached.
    pub fn root(&self) -> Result<GlobalAddress> {
        match self.first_part()? {
            First::Here(part) => Ok(GlobalAddress::from_raw(part.root().load(Ordering::Acquire))),
            First::There(part) => part.root(None),
        }
    }

    /// Sets it, at once: what lies behind the address must be in order before.
    ///
    /// # Errors
    /// As [`Space::root`].
    pub fn set_root(&self, root: GlobalAddress) -> Result<()> {
        match self.first_part()? {
            First::Here(part) => part.set_root(root),
            First::There(part) => _ = part.root(Some(root))?,
        }
        Ok(())
    }

    fn first_part(&self) -> Result<First<'_>> {
        let first = match self.0.source.get() {
            Some(source) => Some(source.root),
            None => self.parts().map(|part| part.number()).min(),
        };
        let number = first.ok_or_else(|| Error::Invalid("the space has no part".into()))?;
        let here = self.0.parts[usize::from(number)]
            .get()
            .map(|attached| First::Here(&attached.part));
        let found = here.or_else(|| self.far_numbered(number).map(First::There));
        let missing = || {
            Error::Invalid(format!(
                "part {number} of the space, where its root lies, is not attached"
            ))
        };
        found.ok_or_else(missing)
    }

    /// What lies where, at this moment.
    ///
    /// # Errors
    /// [`Error::Corrupt`] is not among them: what is broken is counted.
    pub fn stats(&self) -> SpaceStats {
        SpaceStats {
            parts: self.parts().map(|part| stats::of(part)).collect(),
            cache: self.cache_stats(),
            far: self.far_parts().map(|far| far.channel.stats(far.number)).collect(),
        }
    }

    /// Looks at everything: a list of what is wrong, of all parts.
    ///
    /// # Errors
    /// Those of the way to the keepers.
    pub fn audit(&self) -> Result<Vec<String>> {
        let problems: Result<Vec<_>> = self.attached().map(|attached| attached.keeper.audit()).collect();
        Ok(problems?.concat())
    }

    fn attached(&self) -> impl Iterator<Item = &Attached> {
        let end = self.0.near_end.load(Ordering::Acquire) as usize;
        self.0.parts[..end].iter().filter_map(OnceLock::get)
    }

    fn far_attached(&self) -> impl Iterator<Item = &FarAttached> {
        let end = self.0.far_end.load(Ordering::Acquire) as usize;
        self.0.far[..end].iter().filter_map(OnceLock::get)
    }

    fn far_numbered(&self, number: u8) -> Option<&FarPart> {
        Some(&self.0.far[usize::from(number)].get()?.part)
    }

    fn cache(&self) -> &PageCache {
        &self.0.cache
    }

    fn unleft(&self) -> &lock::Unleft {
        &self.0.unleft
    }

    fn location_cache(&self) -> &LocationCache {
        &self.0.location_cache
    }

    fn stalled(&self) -> &Stalled {
        &self.0.stalled
    }

    #[inline(always)]
    fn rows_of(&self, part: u8) -> &PartRows {
        self.0.rows.of(part)
    }

    #[inline(always)]
    fn part_numbered(&self, number: u8) -> Option<&Part> {
        match self.0.parts[usize::from(number)].get() {
            Some(attached) => Some(&attached.part),
            None => self.part_since(number),
        }
    }

    /// A part that an address names, and that was not attached when it was last looked for.
    #[cold]
    #[inline(never)]
    fn part_since(&self, number: u8) -> Option<&Part> {
        if self.far_numbered(number).is_some() {
            return None;
        }
        let source = self.0.source.get().filter(|_| number > 0)?;
        source.parts.attach_more(self, false);
        let attached = self.0.parts[usize::from(number)].get()?;
        Some(&attached.part)
    }

    fn keeper_of(&self, part: u8) -> Result<&Arc<dyn Keeper>> {
        let number = usize::from(part);
        let here = self.0.parts[number].get().map(|attached| &attached.keeper);
        let keeper = here.or_else(|| self.0.far[number].get().map(|attached| &attached.keeper));
        keeper.ok_or_else(|| Error::Invalid(format!("the space has no part {part}")))
    }
}

impl core::fmt::Debug for Space {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "space {:x}, {} parts", self.id(), self.parts().count())
    }
}

#[cfg(test)]
mod tests;
