//! What lies where in a file system's objects.
//!
//! ```text
//!  space's root ──► superblock (512 B)
//!       0 magic   8 version   16 hash key (2)   32 next inode number   40 root directory   48 first orphan   56 journal
//!     128 the tree's lock
//!     256 mounts (32): a record each, an object of the mount's session: gone with it
//!
//!  inode (512 B)
//!       0 lock of the content (128 B)
//!     128 number        136 mode 32 | device 32   144 user 32 | group 32   152 links         160 bytes
//!     168 read at       176 changed at            184 inode changed at     192 root of content or of entries
//!     200 bytes that its blocks take; a directory: entries                 208 a directory: the one above
//!     216 next orphan   256 the first 256 bytes of content, if 192 is null
//!
//!  entry of a directory (64 B up)
//!       0 next of the chain   8 hash of the name   16 inode   24 its number   32 length of the name 32 | type 32   40 name
//!
//!  mount (4 KiB)      0 magic   16 tables of what it has open: 4 KiB each, a word for each inode
//!  journal (8 KiB)    of one step: see `cenote_space::journal`
//! ```
//!
//! All words are of 8 bytes, in the machine's order; times are nanoseconds since 1970. The space
//! checks each address at each access.

use cenote_space::{GlobalAddress, LOCK_BYTES};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"CENOTEFS");
pub(super) const VERSION: u64 = 1;

/// Fields of the superblock.
pub(super) const SUPERBLOCK: u64 = 512;
pub(super) const SUPER_KEY: u64 = 16;
pub(super) const SUPER_NUMBER: u64 = 32;
pub(super) const SUPER_ROOT: u64 = 40;
pub(super) const SUPER_ORPHANS: u64 = 48;
pub(super) const SUPER_JOURNAL: u64 = 56;
pub(super) const SUPER_LOCK: u64 = 128;
pub(super) const SUPER_MOUNTS: u64 = 256;
/// Processes that can have it mounted at a time.
pub const MOUNTS_MAX: u64 = 32;

/// Fields of an inode.
pub(super) const INODE: u64 = 512;
pub(super) const NUMBER: u64 = 128;
pub(super) const MODE: u64 = 136;
pub(super) const OWNER: u64 = 144;
pub(super) const LINKS: u64 = 152;
pub(super) const SIZE: u64 = 160;
pub(super) const READ_AT: u64 = 168;
pub(super) const CHANGED_AT: u64 = 176;
pub(super) const INODE_CHANGED_AT: u64 = 184;
pub(super) const CONTENT: u64 = 192;
/// Of a file: bytes that its blocks take.
pub(super) const TAKEN: u64 = 200;
/// Of a directory: its entries.
pub(super) const ENTRIES: u64 = 200;
pub(super) const ABOVE: u64 = 208;
pub(super) const NEXT_ORPHAN: u64 = 216;
pub(super) const INLINE: u64 = 256;
/// Bytes of content that an inode holds itself.
pub(super) const INLINE_BYTES: u64 = INODE - INLINE;

/// Fields of an entry.
pub(super) const ENTRY_NEXT: u64 = 0;
pub(super) const ENTRY_INODE: u64 = 16;
pub(super) const ENTRY_NUMBER: u64 = 24;
pub(super) const ENTRY_KIND: u64 = 32;
pub(super) const ENTRY_NAME: u64 = 40;
/// Bytes of the longest name.
pub const NAME_MAX: usize = 255;

/// A mount's record, and each table of what it has open.
pub(super) const MOUNT: u64 = 4096;
pub(super) const MOUNT_MAGIC: u64 = u64::from_le_bytes(*b"CENOTEMO");
pub(super) const MOUNT_TABLES: u64 = 16;
pub(super) const TABLES_MAX: u64 = (MOUNT - MOUNT_TABLES) / 8;
pub(super) const TABLE_WORDS: u64 = MOUNT / 8;

/// Bytes of the journal.
pub(super) const JOURNAL: u64 = 8192;

/// Content lies in blocks of so many bytes; an object that holds one may be smaller, and what is missing is zero.
pub const BLOCK: u64 = 64 << 10;
/// Words of a node in the tree of blocks.
pub(super) const FANOUT: u64 = 512;
/// Its greatest height.
pub(super) const HEIGHT_MAX: u64 = 3;
/// Bytes of the longest file.
pub const FILE_MAX: u64 = BLOCK * FANOUT * FANOUT * FANOUT;

const _: () = {
    assert!(SUPER_JOURNAL + 8 <= SUPER_LOCK && SUPER_LOCK + LOCK_BYTES <= SUPER_MOUNTS);
    assert!(SUPER_MOUNTS + 8 * MOUNTS_MAX == SUPERBLOCK);
    assert!(LOCK_BYTES == NUMBER && NEXT_ORPHAN + 8 <= INLINE && INLINE_BYTES == 256);
    assert!(FILE_MAX == 8 << 40 && FILE_MAX == BLOCK * FANOUT.pow(HEIGHT_MAX as u32));
    assert!(CONTENT + 8 <= TAKEN && TAKEN + 8 <= ABOVE && ABOVE + 8 <= NEXT_ORPHAN);
    assert!(TAKEN == ENTRIES, "a file's and a directory's use of one word");
    assert!(ENTRY_NEXT + 16 <= ENTRY_INODE && ENTRY_INODE + 8 <= ENTRY_NUMBER);
    assert!(ENTRY_NUMBER + 8 <= ENTRY_KIND && ENTRY_KIND + 8 <= ENTRY_NAME);
    assert!(MOUNT_TABLES >= 8 && MOUNT_TABLES + 8 * TABLES_MAX <= MOUNT);
};

/// The word `field` bytes inside of an object; where none can be, an address of nothing.
#[inline]
pub(super) fn at(object: GlobalAddress, field: u64) -> GlobalAddress {
    object.checked_add(field).unwrap_or(GlobalAddress::NULL)
}
