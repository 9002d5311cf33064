//! What is said of a file: kind, rights, owner, links, size, times.

use super::layout::{
    CHANGED_AT, CONTENT, INODE_CHANGED_AT, LINKS, MODE, NUMBER, OWNER, READ_AT, SIZE, SUPER_NUMBER, TAKEN, at,
};
use super::step::Step;
use super::{Failure, FileSystem, Result, now};
use cenote_base::Error;
use cenote_space::{GlobalAddress, Space};

/// The kinds of files: the upper bits of a mode.
pub mod kind {
    /// All of them.
    pub const MASK: u32 = 0o170_000;
    /// A directory.
    pub const DIRECTORY: u32 = 0o040_000;
    /// An ordinary file.
    pub const FILE: u32 = 0o100_000;
    /// A symbolic link.
    pub const SYMLINK: u32 = 0o120_000;
    /// A pipe with a name.
    pub const PIPE: u32 = 0o010_000;
    /// A socket's name.
    pub const SOCKET: u32 = 0o140_000;
    /// A character device.
    pub const CHARACTERS: u32 = 0o020_000;
    /// A block device.
    pub const BLOCKS: u32 = 0o060_000;
}

/// A file as a process knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Where it lies.
    pub address: GlobalAddress,
    /// Its number, never used again.
    pub number: u64,
}

impl Inode {
    pub(super) const ROOT_NUMBER: u64 = 1;
}

/// Whose a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// The user's number.
    pub user: u32,
    /// The group's.
    pub group: u32,
}

impl Owner {
    fn word(self) -> u64 {
        u64::from(self.user) << 32 | u64::from(self.group)
    }

    fn of(word: u64) -> Self {
        Self {
            user: (word >> 32) as u32,
            group: word as u32,
        }
    }
}

/// What is said of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Which.
    pub inode: Inode,
    /// [Kind](kind) and rights.
    pub mode: u32,
    /// Of a device: which.
    pub device: u32,
    /// Whose.
    pub owner: Owner,
    /// Names; of a directory also those within it, and in those below.
    pub links: u32,
    /// Bytes of content; of a directory its entries.
    pub size: u64,
    /// Bytes that the content takes.
    pub taken: u64,
    /// Nanoseconds since 1970, like the others: when it was last said to be read. Reading does not change it.
    pub read_at: i64,
    /// When the content last changed.
    pub changed_at: i64,
    /// When anything last changed.
    pub inode_changed_at: i64,
}

impl Attributes {
    /// Its [kind].
    pub fn kind(&self) -> u32 {
        self.mode & kind::MASK
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == kind::DIRECTORY
    }
}

/// What is to be said of a file from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Rights: the lower 12 bits.
    pub rights: Option<u32>,
    /// The user.
    pub user: Option<u32>,
    /// The group.
    pub group: Option<u32>,
    /// Nanoseconds since 1970.
    pub read_at: Option<i64>,
    /// The same.
    pub changed_at: Option<i64>,
}

/// Writes an inode where nothing refers to yet.
pub(super) fn write(space: &Space, to: GlobalAddress, number: u64, mode: u32, owner: Owner, device: u32) -> Result<()> {
    space.make_lock(to)?;
    let now = now();
    let fields = [
        (NUMBER, number),
        (MODE, u64::from(mode) | u64::from(device) << 32),
        (OWNER, owner.word()),
        (LINKS, 1),
        (READ_AT, now),
        (CHANGED_AT, now),
        (INODE_CHANGED_AT, now),
    ];
    let mut writes = fields.iter();
    Ok(writes.try_for_each(|(field, value)| space.store(at(to, *field), *value))?)
}

/// An error of an access to an inode: if nothing is there any more, it is gone.
pub(super) fn gone(error: Error) -> Failure {
    match error {
        Error::Invalid(_) | Error::OutOfBounds(_) => Failure::Gone,
        other => Failure::Memory(other),
    }
}

impl FileSystem {
    /// What is said of a file.
    ///
    /// # Errors
    /// [`Failure::Gone`]; those of memory, here and everywhere.
    pub fn attributes(&self, inode: Inode) -> Result<Attributes> {
        self.look(|| self.attributes_of(inode))
    }

    /// The same, with the tree's lock held.
    pub(super) fn attributes_of(&self, inode: Inode) -> Result<Attributes> {
        let mut bytes = [[0; 8]; ((CONTENT - NUMBER) / 8 + 2) as usize];
        let read = self.session.read(at(inode.address, NUMBER), bytes.as_flattened_mut());
        read.map_err(gone)?;
        let word = |field: u64| u64::from_ne_bytes(bytes[((field - NUMBER) / 8) as usize]);
        if word(NUMBER) != inode.number {
            return Err(Failure::Gone);
        }
        let mode = word(MODE) as u32;
        let is_directory = mode & kind::MASK == kind::DIRECTORY;
        Ok(Attributes {
            inode,
            mode,
            device: (word(MODE) >> 32) as u32,
            owner: Owner::of(word(OWNER)),
            links: word(LINKS).min(u32::MAX.into()) as u32,
            size: word(if is_directory { TAKEN } else { SIZE }),
            taken: if is_directory { 0 } else { word(TAKEN) },
            read_at: word(READ_AT) as i64,
            changed_at: word(CHANGED_AT) as i64,
            inode_changed_at: word(INODE_CHANGED_AT) as i64,
        })
    }

    /// Says something else of a file.
    ///
    /// # Errors
    /// [`Failure::Gone`].
    pub fn set_attributes(&self, inode: Inode, change: &Change) -> Result<Attributes> {
        self.change(|step| {
            let was = self.attributes_of(inode)?;
            let word = |field| at(inode.address, field);
            if let Some(rights) = change.rights {
                let mode = was.kind() | rights & 0o7777;
                step.put(word(MODE), u64::from(mode) | u64::from(was.device) << 32)?;
            }
            let owner = Owner {
                user: change.user.unwrap_or(was.owner.user),
                group: change.group.unwrap_or(was.owner.group),
            };
            step.put(word(OWNER), owner.word())?;
            if let Some(time) = change.read_at {
                step.put(word(READ_AT), time as u64)?;
            }
            if let Some(time) = change.changed_at {
                step.put(word(CHANGED_AT), time as u64)?;
            }
            step.put(word(INODE_CHANGED_AT), now())?;
            self.attributes_of(inode)
        })
    }

    /// A number that no inode had.
    pub(super) fn next_number(&self) -> Result<u64> {
        Ok(self.session.fetch_add(at(self.superblock, SUPER_NUMBER), 1)?)
    }

    /// The content of the directory or its inode's own has changed: now.
    pub(super) fn stamp(&self, step: &mut Step<'_>, inode: GlobalAddress, is_content: bool) -> Result<()> {
        let now = now();
        if is_content {
            step.put(at(inode, CHANGED_AT), now)?;
        }
        step.put(at(inode, INODE_CHANGED_AT), now)
    }
}
