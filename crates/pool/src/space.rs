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
//! ```no_run
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

#![allow(dead_code, reason = "bodies follow")]

mod access;
mod address;
mod class;
mod keeper;
mod layout;
mod session;
mod stats;

pub use access::{Read, Space, SpaceOptions, Write};
pub use address::GlobalAddress;
pub use class::{Class, GRAIN, SLAB_OBJECT_MAX};
pub use keeper::{Extent, Keeper, Lifetime, LocalKeeper, Run, SessionId};
pub use layout::{Part, PartOptions};
pub use session::Session;
pub use stats::{ClassStats, PartStats, SpaceStats};
