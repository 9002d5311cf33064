//! Groups, records and operations as they are found in the log: bounds checked, nothing copied.

use cenote_base::bytes::get_le;
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, RecordAddr, Result, crc};

use super::{
    FLAG_BASE, GROUP_HEADER, KIND_GROUP, KIND_VOID, LAG_AT, MAX_GROUP, OFFSET_MASK, OP_INIT, OP_MOVE, OP_SHIFT,
    OP_WRITE, RECORD_HEADER, seal,
};

/// What a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// A mini-transaction's redo.
    Redo,
    /// The place of a mini-transaction that died before its redo was complete.
    Void,
}

/// A group's header, its kind, length and position believed, its checksum not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    pub kind: GroupKind,
    pub length: usize,
    pub lsn: Lsn,
    pub checksum: u32,
    pub state: u32,
    pub records: u16,
    pub lag: u32,
}

impl GroupHeader {
    /// The header at position `at`, unless the bytes cannot be one.
    pub fn parse(bytes: &[u8], at: Lsn) -> Option<GroupHeader> {
        let kind = match get_le::<u32>(bytes, 0)? {
            KIND_GROUP => GroupKind::Redo,
            KIND_VOID => GroupKind::Void,
            _ => return None,
        };
        let header = GroupHeader {
            kind,
            length: get_le::<u32>(bytes, 4)? as usize,
            lsn: Lsn::from_raw(get_le::<u64>(bytes, 8)?),
            checksum: get_le::<u32>(bytes, 16)?,
            state: get_le::<u32>(bytes, 20)?,
            records: get_le::<u16>(bytes, 24)?,
            lag: get_le::<u32>(bytes, LAG_AT)?,
        };
        header.plausible(at).then_some(header)
    }

    fn plausible(&self, at: Lsn) -> bool {
        self.lsn == at && self.length.is_multiple_of(8) && (GROUP_HEADER..=MAX_GROUP).contains(&self.length)
    }

    pub fn end(&self) -> Lsn {
        self.lsn.advance(self.length as u64)
    }
}

/// One whole group whose checksum has been verified.
#[derive(Debug, Clone, Copy)]
pub struct GroupRef<'a> {
    header: GroupHeader,
    bytes: &'a [u8],
}

impl<'a> GroupRef<'a> {
    /// The group that begins at position `at` with `bytes` (which may go on behind it).
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or its checksum does not fit.
    pub fn parse(bytes: &'a [u8], at: Lsn) -> Result<GroupRef<'a>> {
        let header = GroupHeader::parse(bytes, at).ok_or_else(|| Error::corrupt(format!("no redo group at {at}")))?;
        let bytes = bytes
            .get(..header.length)
            .ok_or_else(|| Error::corrupt(format!("redo group at {at} is cut short")))?;
        let group = GroupRef { header, bytes };
        if group.computed_checksum() != header.checksum {
            return Err(Error::corrupt(format!(
                "redo group at {at} ({} bytes) fails its checksum",
                header.length
            )));
        }
        Ok(group)
    }

    fn computed_checksum(&self) -> u32 {
        let header = self.bytes[..GROUP_HEADER].try_into().expect("length checked");
        match self.header.kind {
            GroupKind::Redo => seal(crc::crc32c(&self.bytes[GROUP_HEADER..]), header),
            GroupKind::Void => seal(0, header),
        }
    }

    /// Whether it holds redo or is void.
    pub fn kind(&self) -> GroupKind {
        self.header.kind
    }

    /// Position of its first byte.
    pub fn start(&self) -> Lsn {
        self.header.lsn
    }

    /// Position behind it: the LSN of the pages that it changed.
    pub fn end(&self) -> Lsn {
        self.header.end()
    }

    /// Its checksum.
    pub fn checksum(&self) -> u32 {
        self.header.checksum
    }

    /// How far the log was durable when the group was reserved, at least. Void ones of earlier versions say nothing of
    /// it, nor does one that is too far from there.
    pub fn durable_when_reserved(&self) -> Lsn {
        if self.header.kind == GroupKind::Void && self.header.lag == 0 || self.header.lag == u32::MAX {
            return Lsn::ZERO;
        }
        Lsn::from_raw(self.header.lsn.raw().saturating_sub(self.header.lag.into()))
    }

    /// Its page records, in order; none if it is void.
    pub fn records(&self) -> Records<'a> {
        let left = if self.header.kind == GroupKind::Void {
            0
        } else {
            self.header.records
        };
        Records {
            group: *self,
            at: GROUP_HEADER,
            left,
        }
    }

    /// The record that begins `offset` bytes into the group.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if none does.
    pub fn record_at(&self, offset: usize) -> Result<PageRecordRef<'a>> {
        self.parse_record(offset).ok_or_else(|| {
            Error::corrupt(format!(
                "no page record {offset} bytes into the redo group at {}",
                self.start()
            ))
        })
    }

    fn parse_record(&self, offset: usize) -> Option<PageRecordRef<'a>> {
        let rest = self.bytes.get(offset..)?;
        let length = get_le::<u16>(rest, 16)? as usize * 8;
        let place = get_le::<u32>(rest, 20)?;
        if length < RECORD_HEADER || (place & OFFSET_MASK) as usize != offset {
            return None;
        }
        let bytes = rest.get(..length)?;
        Some(PageRecordRef {
            page: PageId::from_bytes(bytes[..8].try_into().ok()?),
            prev: RecordAddr::from_raw(get_le::<u64>(bytes, 8)?),
            address: RecordAddr::checked(0, Lsn::from_raw(self.start().raw().checked_add(offset as u64)?))?,
            lsn: self.end(),
            is_base: place & FLAG_BASE != 0,
            count: get_le::<u16>(bytes, 18)?,
            bytes,
        })
    }
}

/// The page records of a group.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    group: GroupRef<'a>,
    at: usize,
    left: u16,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<PageRecordRef<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let record = self.group.record_at(self.at);
        match &record {
            Ok(r) => (self.at, self.left) = (self.at + r.bytes.len(), self.left - 1),
            Err(_) => self.left = 0,
        }
        Some(record)
    }
}

/// What one mini-transaction did to one page.
#[derive(Debug, Clone, Copy)]
pub struct PageRecordRef<'a> {
    /// The page.
    pub page: PageId,
    /// The page's record before this one, if it is needed.
    pub prev: RecordAddr,
    /// Where this record lies.
    pub address: RecordAddr,
    /// The page's LSN once this is applied: the end of the record's group.
    pub lsn: Lsn,
    /// Whether the record builds the page from nothing.
    pub is_base: bool,
    count: u16,
    bytes: &'a [u8],
}

impl<'a> PageRecordRef<'a> {
    /// Bytes of the record in the log.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never: a record has a header.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Its operations, in order.
    pub fn ops(&self) -> Ops<'a> {
        Ops {
            bytes: self.bytes,
            at: RECORD_HEADER,
            left: self.count,
        }
    }

    /// The record as it lies in the log.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Where in the record the bytes lie that the page's range holds after it, if one operation
    /// gives them all.
    pub(crate) fn locate(&self, offset: usize, length: usize) -> Option<usize> {
        let range = offset..offset + length;
        let covers = |start: usize, len: usize| start <= range.start && range.end <= start + len;
        let touches = |start: usize, len: usize| start < range.end && range.start < start + len;
        let (mut found, mut ops) = (None, self.ops());
        while let Some(op) = ops.next() {
            let end = ops.at;
            found = match op.ok()? {
                Op::Write { offset: start, bytes } if covers(start, bytes.len()) => {
                    Some(end - bytes.len() + offset - start)
                }
                Op::Write { offset: start, bytes } if touches(start, bytes.len()) => None,
                Op::Move {
                    destination, length, ..
                } if touches(destination, length) => None,
                Op::Write { .. } | Op::Move { .. } => found,
                Op::Init { .. } => None,
                Op::Image { head, tail } if covers(0, head.len()) => Some(end - tail.len() - head.len() + offset),
                Op::Image { tail, .. } if covers(PAGE_SIZE - tail.len(), tail.len()) => {
                    Some(end - (PAGE_SIZE - offset))
                }
                Op::Image { .. } => None,
            };
        }
        found
    }

    /// A record that was copied out of its group.
    pub(crate) fn from_copy(bytes: &'a [u8], address: RecordAddr, lsn: Lsn) -> Option<Self> {
        Some(PageRecordRef {
            page: PageId::from_bytes(bytes.get(..8)?.try_into().ok()?),
            prev: RecordAddr::from_raw(get_le::<u64>(bytes, 8)?),
            address,
            lsn,
            is_base: get_le::<u32>(bytes, 20)? & FLAG_BASE != 0,
            count: get_le::<u16>(bytes, 18)?,
            bytes,
        })
    }
}

/// One change of a page. Ranges are inside the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// Bytes at an offset.
    Write {
        /// Where.
        offset: usize,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Bytes move within the page.
    Move {
        /// From.
        source: usize,
        /// To.
        destination: usize,
        /// How many.
        length: usize,
    },
    /// An empty page of a kind and level.
    Init {
        /// What the page holds.
        kind: u8,
        /// Its level.
        level: u8,
    },
    /// The whole page: `head`, zeros, `tail`.
    Image {
        /// Bytes before the hole.
        head: &'a [u8],
        /// Bytes behind the hole, up to the page's end.
        tail: &'a [u8],
    },
}

/// The operations of a record.
#[derive(Debug, Clone)]
pub struct Ops<'a> {
    bytes: &'a [u8],
    at: usize,
    left: u16,
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let op = self.parse();
        if op.is_none() {
            self.left = 0;
        }
        Some(op.ok_or_else(|| Error::corrupt("a redo operation reaches outside its record or page")))
    }
}

impl<'a> Ops<'a> {
    fn u16(&mut self) -> Option<usize> {
        let value = get_le::<u16>(self.bytes, self.at)?;
        self.at += 2;
        Some(value as usize)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at + length)?;
        self.at += length;
        Some(taken)
    }

    fn parse(&mut self) -> Option<Op<'a>> {
        let tag = self.u16()?;
        let offset = tag & (PAGE_SIZE - 1);
        match (tag >> OP_SHIFT) as u16 {
            OP_WRITE => {
                let length = self.u16()?;
                let bytes = self.take(length)?;
                (offset + length <= PAGE_SIZE).then_some(Op::Write { offset, bytes })
            }
            OP_MOVE => {
                let (destination, length) = (self.u16()?, self.u16()?);
                (offset.max(destination) + length <= PAGE_SIZE).then_some(Op::Move {
                    source: offset,
                    destination,
                    length,
                })
            }
            OP_INIT => {
                let kind = self.take(2)?;
                Some(Op::Init {
                    kind: kind[0],
                    level: kind[1],
                })
            }
            _ => self.parse_image(),
        }
    }

    fn parse_image(&mut self) -> Option<Op<'a>> {
        let (start, hole) = (self.u16()?, self.u16()?);
        let tail = PAGE_SIZE.checked_sub(start + hole)?;
        Some(Op::Image {
            head: self.take(start)?,
            tail: self.take(tail)?,
        })
    }
}
