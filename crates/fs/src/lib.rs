//! A file system that lies wholly in a [space](cenote_space), used by several processes at once.
//!
//! ```text
//!   FileSystem (a mount) ── tree: names, links, rename ──► directory: trie of entries ──► inode
//!        │                    └─ journal: several words at once                            │
//!        ├── open: what it has open, and orphans                                           ▼
//!        └── content: read, write, truncate ───────────────────────────────► blocks of 64 KiB
//! ```
//!
//! ```
//! use cenote_fs::{FileSystem, Owner};
//! use cenote_space::{Space, SpaceOptions};
//!
//! let space = Space::dram(&SpaceOptions { bytes: 64 << 20, ..SpaceOptions::default() })?;
//! let files = FileSystem::make(&space, Owner { user: 0, group: 0 })?;
//! let file = files.create(files.root(), b"greeting", 0o644, Owner { user: 0, group: 0 })?;
//! files.open(file.inode)?;
//! files.write(file.inode, 0, b"hello")?;
//! let mut text = [0; 100];
//! assert_eq!(files.read(file.inode, 0, &mut text)?, 5);
//! files.close(file.inode)?;
//! assert_eq!(files.find(files.root(), b"greeting")?.size, 5);
//! # Ok::<(), cenote_fs::Failure>(())
//! ```
//!
//! There are two kinds of locks ([`Session::lock`]): the *tree's*, for names and everything that is said about inodes,
//! and each inode's own, for its content. Lock order: tree → content of one inode → what the process itself has (table
//! of open inodes, session). The content of an inode that is open is reached without the tree's lock.
//!
//! Invariants. A process may be killed between any two stores:
//! 1. what an address refers to is whole *before* the address is stored;
//! 2. words of the tree change in steps that are all there or not at all: a mount that takes the tree's lock over from
//!    a dead one puts an unfinished step back ([`step`]);
//! 3. where no mount has the lock of a content, all bytes behind its size are zero, and it has no block there. A mount
//!    that takes it over from the dead makes it so again. A write that was cut off has written some of its bytes, in
//!    order or not; the size then is the former one, or all is written;
//! 4. an inode is freed when it has no name any more and no mount has it open. A mount says what it has open in an
//!    object of its session: gone with it;
//! 5. an object is freed after the last reference to it is gone. What a kill leaves behind is an object that nothing
//!    refers to: [`FileSystem::check`] finds it.
//!
//! Inode numbers are never used again. What a process knows of an inode is its address and its number: if that is
//! another's by now, or no file's, it is [`Failure::Gone`].

mod blocks;
mod check;
mod content;
mod directory;
mod failure;
mod inode;
mod layout;
mod open;
mod opens;
mod step;
mod tree;

pub use check::Report;
pub use failure::{Failure, Result};
pub use inode::{Attributes, Change, Inode, Owner, kind};
pub use layout::{BLOCK, FILE_MAX, MOUNTS_MAX, NAME_MAX};
pub use tree::{Listed, Rename};

use cenote_base::{Error, rt};
use cenote_space::{GlobalAddress, Guard, Mode, Session, Space};
use layout::{JOURNAL, MAGIC, SUPER_JOURNAL, SUPER_KEY, SUPER_LOCK, SUPER_NUMBER, SUPER_ROOT, SUPERBLOCK, VERSION, at};
use opens::Opens;
use step::Step;

/// A mounted file system. See the module.
pub struct FileSystem {
    session: Session,
    superblock: GlobalAddress,
    journal: GlobalAddress,
    root: Inode,
    hash_key: [u64; 2],
    opens: Opens,
}

impl FileSystem {
    /// Mounts the file system that lies in a space.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is none, or something else; [`Error::Corrupt`]; [`Error::Busy`] if it is mounted
    /// [too often](MOUNTS_MAX).
    pub fn mount(space: &Space) -> Result<Self> {
        let superblock = space.root()?;
        if superblock.is_null() {
            return Err(
                Error::Mismatch("the space holds no file system yet; `cenote mount --make` makes one".into()).into(),
            );
        }
        let word = |field| space.load(at(superblock, field));
        let (magic, version) = (word(0)?, space.load(at(superblock, 8)));
        if magic != MAGIC {
            return Err(Error::Mismatch("the space holds something else than a file system".into()).into());
        }
        if !matches!(version, Ok(VERSION)) {
            let text = format!("a file system of version {version:?}; this program knows version {VERSION}");
            return Err(Error::Mismatch(text).into());
        }
        let root = GlobalAddress::from_raw(word(SUPER_ROOT)?);
        let mut files = Self {
            session: space.session(),
            superblock,
            journal: GlobalAddress::from_raw(word(SUPER_JOURNAL)?),
            root: Inode {
                address: root,
                number: Inode::ROOT_NUMBER,
            },
            hash_key: [word(SUPER_KEY)?, word(SUPER_KEY + 8)?],
            opens: Opens::default(),
        };
        files.attend()?;
        Ok(files)
    }

    /// Makes a file system in a space that holds nothing, and mounts it. Only one process may do so.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the space holds something; [`Error::Full`].
    pub fn make(space: &Space, owner: Owner) -> Result<Self> {
        if !space.root()?.is_null() {
            return Err(Error::Invalid("the space holds something already".into()).into());
        }
        let session = space.session();
        let (superblock, journal) = (session.alloc(SUPERBLOCK)?, session.alloc(JOURNAL)?);
        let root = session.alloc(layout::INODE)?;
        let number = Inode::ROOT_NUMBER;
        inode::write(space, root, number, kind::DIRECTORY | 0o755, owner, 0)?;
        space.store(at(root, layout::LINKS), 2)?;
        space.store(at(root, layout::ABOVE), root.raw())?;
        let secret = rt::random_u128();
        let fields = [
            (0, MAGIC),
            (8, VERSION),
            (SUPER_KEY, secret as u64),
            (SUPER_KEY + 8, (secret >> 64) as u64),
            (SUPER_NUMBER, number + 1),
            (SUPER_ROOT, root.raw()),
            (SUPER_JOURNAL, journal.raw()),
        ];
        fields
            .iter()
            .try_for_each(|(field, value)| space.store(at(superblock, *field), *value))?;
        space.make_lock(at(superblock, SUPER_LOCK))?;
        space.set_root(superblock)?;
        session.close()?;
        Self::mount(space)
    }

    /// Mounts what lies in a space, or makes it in one that holds nothing. Only one process may do so at a time.
    ///
    /// # Errors
    /// As [`FileSystem::mount`] and [`FileSystem::make`].
    pub fn mount_or_make(space: &Space, owner: Owner) -> Result<Self> {
        match space.root()?.is_null() {
            true => Self::make(space, owner),
            false => Self::mount(space),
        }
    }

    /// The directory that all others lie in.
    pub fn root(&self) -> Inode {
        self.root
    }

    /// Its space.
    pub fn space(&self) -> &Space {
        self.session.space()
    }

    /// The tree's lock. What a dead owner left half done is put back.
    fn lock_tree(&self, mode: Mode) -> Result<Guard<'_>> {
        let guard = self.session.lock(at(self.superblock, SUPER_LOCK), mode)?;
        if guard.mode() == Mode::Write
            && let Err(failure) = step::put_back(&self.session, self.journal)
        {
            guard.leave_broken()?;
            return Err(failure);
        }
        Ok(guard)
    }

    /// Looks at the tree, while no mount changes it.
    fn look<T>(&self, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let guard = self.lock_tree(Mode::Read)?;
        let answer = look();
        guard.unlock()?;
        answer
    }

    /// Changes the tree: all of it, or nothing. The lock of a step that did not come to its end is left as if this mount
    /// had died, so that no mount sees a part of the step.
    fn change<T>(&self, change: impl FnOnce(&mut Step<'_>) -> Result<T>) -> Result<T> {
        let guard = self.lock_tree(Mode::Write)?;
        let mut step = Step::begin(&self.session, self.journal);
        let (answer, ended) = match change(&mut step) {
            Ok(done) => match step.commit() {
                Ok(()) => (Ok(done), true),
                Err(failure) => (Err(failure), false),
            },
            Err(failure) => (Err(failure), step.roll_back().is_ok()),
        };
        match ended {
            true => guard.unlock()?,
            false => guard.leave_broken()?,
        }
        answer
    }
}

impl core::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "file system in {:?}", self.space())
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    (rt::wall_micros() as u64).wrapping_mul(1000)
}

#[cfg(test)]
mod tests;
