//! Redo: the changes of a mini-transaction to pages, as bytes of the log.
//!
//! Redo is page-physical. A record says which bytes of which page change, so that one function
//! ([`apply`]) can redo it without knowing rows, trees or catalogs. The redo of one
//! mini-transaction is one *group*; a group is in the log whole, or it is void.
//!
//! ```text
//! group    0 u32 kind        b"Cgrp", or b"Cvod": its mini-transaction never happened
//!          4 u32 length      of the whole group in bytes, a multiple of 8
//!          8 u64 lsn         position of this byte 0 in the stream (so old bytes never fit)
//!         16 u32 checksum    crc32c of the body followed by bytes 0..16 and 24..32;
//!                            of a void group without the body
//!         20 u32 state       0 reserved, 1 complete; one word with the checksum, so that
//!                            both become visible in one store
//!         24 u16 records     28 u32 lag: bytes between the durable position and `lsn`
//!                            when the group was reserved (see `log::recover`)
//!         32 page records, one a page, each a multiple of 8
//! record   0 u32 space  4 u32 page   8 u64 prev: address of the page's previous record, or 0
//!         16 u16 length / 8   18 u16 operations
//!         20 u32 bytes from the group's byte 0 to this record (28 bits) and flags (4 bits)
//!         24 operations, padded with zeros to a multiple of 8
//! op       0 u16 tag: 2 bits kind, 14 bits offset in the page
//!   write    2 u16 length, bytes
//!   move     2 u16 destination  4 u16 length
//!   init     2 u8 page kind  3 u8 level
//!   image    2 u16 hole start  4 u16 hole length, the page without its hole of zeros
//! ```
//!
//! Invariants:
//! - the LSN of a page is the end of the last group with a record of it;
//! - a record whose flags say *base* begins with `init` or `image`: it needs no earlier record;
//! - positions of one page's records grow along the stream, and `prev` points backwards;
//! - bytes that are read here are untrusted: each length is checked before it is believed.

mod apply;
mod group;
mod read;

pub use apply::{apply, page_id, page_lsn, set_page_checksum, set_page_lsn, verify_page};
pub use group::GroupBuilder;
pub use read::{GroupKind, GroupRef, Op, Ops, PageRecordRef, Records};

pub(crate) use read::GroupHeader;

use cenote_base::{Lsn, PAGE_SIZE};

/// Bytes of a group's header.
pub const GROUP_HEADER: usize = 32;
/// Bytes of a page record's header.
pub const RECORD_HEADER: usize = 24;
/// The longest group that the log takes, in bytes: far below any ring, and room for the images
/// of 64 pages.
pub const MAX_GROUP: usize = (1 << 20) + (64 << 10);
/// The longest record of one page, in bytes (its length is kept in 16 bits, in units of 8).
pub const MAX_RECORD: usize = (u16::MAX as usize) * 8;

pub(crate) const KIND_GROUP: u32 = u32::from_le_bytes(*b"Cgrp");
pub(crate) const KIND_VOID: u32 = u32::from_le_bytes(*b"Cvod");
pub(crate) const STATE_COMPLETE: u32 = 1;

/// The record begins with `init` or `image`: nothing before it is needed to build the page.
pub(crate) const FLAG_BASE: u32 = 1 << 28;
pub(crate) const OFFSET_MASK: u32 = FLAG_BASE - 1;

pub(crate) const OP_WRITE: u16 = 0;
pub(crate) const OP_MOVE: u16 = 1;
pub(crate) const OP_INIT: u16 = 2;
pub(crate) const OP_IMAGE: u16 = 3;
pub(crate) const OP_SHIFT: u32 = 14;

const _: () = assert!(PAGE_SIZE == 1 << OP_SHIFT, "an offset in a page takes 14 bits");
const _: () = assert!(MAX_GROUP < OFFSET_MASK as usize, "an offset in a group takes 28 bits");
const _: () = assert!(
    GROUP_HEADER.is_multiple_of(8) && RECORD_HEADER.is_multiple_of(8) && MAX_GROUP.is_multiple_of(8),
    "groups and records lie at multiples of 8, as their addresses say"
);
const _: () = assert!(LAG_AT + 4 <= GROUP_HEADER, "the header holds the lag");
const _: () = assert!(
    page_header::LSN + 8 <= page_header::SIZE,
    "the page header holds its fields"
);

/// The page header's fields that redo itself writes; the rest belongs to what the page holds.
pub mod page_header {
    /// u32: crc32c of bytes 4 to the end, as the page lies in storage.
    pub const CHECKSUM: usize = 0;
    /// u32: the page's space.
    pub const SPACE: usize = 4;
    /// u32: the page's number.
    pub const PAGE: usize = 8;
    /// u8: what the page holds.
    pub const KIND: usize = 12;
    /// u8: its level in a tree, or flags.
    pub const LEVEL: usize = 13;
    /// u16: version of the page format.
    pub const VERSION: usize = 14;
    /// u64: end of the mini-transaction that changed the page last.
    pub const LSN: usize = 16;
    /// Bytes of the header in all.
    pub const SIZE: usize = 32;
    /// The page format that this program writes.
    pub const FORMAT: u16 = 1;
}

/// Where a group says how far the log was durable when it was reserved.
pub(crate) const LAG_AT: usize = 28;

/// The lag of a group: bytes from the durable position to its start; at most as many as the word holds.
pub(crate) fn lag(start: Lsn, durable: Lsn) -> u32 {
    start.since(durable).min(u32::MAX.into()) as u32
}

/// The checksum of a group: body first, so that it can be computed before the position is known.
pub(crate) fn seal(body_crc: u32, header: &[u8; GROUP_HEADER]) -> u32 {
    let mut covered = [0; 24];
    covered[..16].copy_from_slice(&header[..16]);
    covered[16..].copy_from_slice(&header[24..]);
    cenote_base::crc::append(body_crc, &covered)
}

#[cfg(test)]
mod tests;
