//! A space: a heap that many clients of one tenant share. Objects of 64 bytes up are reached by [`GlobalAddress`].
//!
//! A space is made of *parts*: its memory on one memory node, which is one grant's file, mapped whole by each client. A part is cut into *extents*
//! of 2 MiB. An extent is free, or cut into objects of one [`Class`] (a slab), or one of a *run*, which is an object larger than that.
//!
//! ```text
//!   client ── session ──alloc, free──► slabs that the session owns: a bit an object, changed by compare-and-swap
//!     │          │
//!     │          └─ extents, runs ───► keeper of the part: the process that hands out extents
//!     └──── read, write, load, … ────► memory: checked against slot and live bit, then copied; nobody else takes part
//! ```
//!
//! ```
//! use cenote_pool::space::{Space, SpaceOptions};
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
mod address;
mod audit;
mod books;
mod class;
mod free;
mod keeper;
mod layout;
mod local;
mod objects;
mod part;
mod session;
mod slot;
mod stats;

pub use access::{Read, Write};
pub use address::GlobalAddress;
pub use class::{Class, GRAIN, SLAB_OBJECT_MAX};
pub use keeper::{Extent, Keeper, Lifetime, Run, SessionId};
pub use local::LocalKeeper;
pub use part::{Part, PartOptions};
pub use session::Session;
pub use stats::{ClassStats, PartStats, SpaceStats};

use cenote_base::rt;
use cenote_base::rt::atomic::Ordering;
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
            region: self.region,
        }
    }
}

/// A heap shared by many clients. See the module. A clone is another handle on the same.
#[derive(Clone)]
pub struct Space(Arc<Inner>);

struct Inner {
    id: u128,
    /// By number.
    parts: [OnceLock<Attached>; 256],
}

/// A part, and who hands out its extents.
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
        let parts = [const { OnceLock::new() }; 256];
        Self(Arc::new(Inner { id, parts }))
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

    /// Opens a space of one part. This process keeps it, and all former sessions end: their processes must be gone. (Where they may not be, attach a
    /// [`LocalKeeper`], and end the sessions that are.)
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
        let attached = self.0.parts[usize::from(number)].set(Attached { part, keeper });
        attached.map_err(|_| Error::Invalid(format!("the space has a part {number} already")))
    }

    /// Its id.
    pub fn id(&self) -> u128 {
        self.0.id
    }

    /// Its parts, by number.
    pub fn parts(&self) -> impl Iterator<Item = &Arc<Part>> {
        self.attached().map(|attached| &attached.part)
    }

    /// The keeper of a part: to serve other processes with, or to end sessions.
    pub fn keeper(&self, part: u8) -> Option<Arc<dyn Keeper>> {
        self.keeper_of(part).ok().cloned()
    }

    /// A new allocator. It begins in a part with its first allocation there.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The address that what lies in the space is found by; null if none was set. It lies in the part with the lowest number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the space has no part.
    pub fn root(&self) -> Result<GlobalAddress> {
        let word = self.first_part()?.root().load(Ordering::Acquire);
        Ok(GlobalAddress::from_raw(word))
    }

    /// Sets it, at once: what lies behind the address must be in order before.
    ///
    /// # Errors
    /// As [`Space::root`].
    pub fn set_root(&self, root: GlobalAddress) -> Result<()> {
        self.first_part()?.root().store(root.raw(), Ordering::Release);
        Ok(())
    }

    fn first_part(&self) -> Result<&Arc<Part>> {
        let first = self.parts().next();
        first.ok_or_else(|| Error::Invalid("the space has no part".into()))
    }

    /// What lies where, at this moment.
    ///
    /// # Errors
    /// [`Error::Corrupt`] is not among them: what is broken is counted.
    pub fn stats(&self) -> SpaceStats {
        SpaceStats {
            parts: self.parts().map(|part| stats::of(part)).collect(),
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
        self.0.parts.iter().filter_map(OnceLock::get)
    }

    #[inline(always)]
    fn part_numbered(&self, number: u8) -> Option<&Part> {
        let attached = self.0.parts[usize::from(number)].get()?;
        Some(&attached.part)
    }

    fn keeper_of(&self, part: u8) -> Result<&Arc<dyn Keeper>> {
        let attached = self.0.parts[usize::from(part)].get();
        let keeper = attached.map(|attached| &attached.keeper);
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
