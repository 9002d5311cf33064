//! The bytes of files: reading, writing, making shorter or longer.
//!
//! Content of up to 256 bytes lies in the inode; more of it in [`blocks`](super::blocks) of 64 KiB, each an object that
//! is as large as what was written needs, and is replaced by a larger one when it grows. A word of the tree of blocks
//! is stored when what it leads to is whole, the size after the bytes.
//!
//! Invariant, where no mount has the lock: what lies behind the size is zero, and no block lies there wholly. So a file
//! grows by one store. A mount that shortens it stores the size first.

use super::blocks::{Blocks, decode, pieces};
use super::inode::{gone, kind};
use super::layout::{
    BLOCK, CHANGED_AT, FILE_MAX, INLINE, INLINE_BYTES, INODE, INODE_CHANGED_AT, MODE, NUMBER, SIZE, TAKEN, at,
};
use super::{Failure, FileSystem, Inode, Result, now};
use cenote_base::Error;
use cenote_space::{GlobalAddress, Mode};

/// The least object for a block. It is of another class than an inode: a file that is gone is known by its address and
/// number for a while, and no object whose bytes programs choose may come to lie there and say that it is that file.
const BLOCK_MIN: u64 = 1024;
const _: () = assert!(BLOCK_MIN.is_power_of_two() && BLOCK_MIN >= 2 * INODE);
/// From this block on a file counts as long: its blocks are whole ones from the start.
const LONG_FROM: u64 = 4;
/// Nanoseconds that a time of change may be later than the clock because of changes that came faster than it ticks.
const CLOCK_MAX: u64 = 1_000_000_000;

impl FileSystem {
    /// Fills `into` with the bytes from `offset` on: how many there were. The file must be [open](Self::open), here and
    /// for all that follow.
    ///
    /// # Errors
    /// [`Failure::IsDirectory`], [`Failure::Invalid`] for what has no content; [`Failure::Gone`].
    pub fn read(&self, inode: Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.with_content(inode, Mode::Read, || {
            let size = self.size(inode.address)?;
            let len = size.saturating_sub(offset).min(into.len() as u64) as usize;
            self.read_content(inode.address, offset, &mut into[..len])?;
            Ok(len)
        })
    }

    /// Writes the bytes from `offset` on: how many of them, less than all if there is no room for more.
    ///
    /// # Errors
    /// [`Failure::TooLarge`]; [`Error::Full`] if there is no room for any; as [`FileSystem::read`].
    pub fn write(&self, inode: Inode, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.with_content(inode, Mode::Write, || {
            let written = self.write_content(inode.address, offset, bytes)?;
            self.note_change(inode.address)?;
            Ok(written)
        })
    }

    /// Makes a file shorter, or longer by zeros.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn truncate(&self, inode: Inode, size: u64) -> Result<()> {
        if size > FILE_MAX {
            return Err(Failure::TooLarge);
        }
        self.with_content(inode, Mode::Write, || {
            let was = self.size(inode.address)?;
            self.session.store(at(inode.address, SIZE), size)?;
            if size < was {
                self.clear_behind(inode.address, size)?;
            }
            self.note_change(inode.address)
        })
    }

    /// Sees to it that the bytes from `offset` on have their room, and (`grows`) the file is as long.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; [`Failure::Invalid`] for what lies behind the end, if the file is not to grow.
    pub fn allocate(&self, inode: Inode, offset: u64, len: u64, grows: bool) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= FILE_MAX);
        let end = end.ok_or(Failure::TooLarge)?;
        self.with_content(inode, Mode::Write, || {
            let size = self.size(inode.address)?;
            if end > size && !grows {
                return Err(Failure::Invalid);
            }
            self.leave_inode(inode.address, size)?;
            for (index, inside, bytes) in pieces(offset, len) {
                self.make_block(inode.address, index, inside + bytes, &[], 0)?;
            }
            if end > size {
                self.session.store(at(inode.address, SIZE), end)?;
            }
            self.note_change(inode.address)
        })
    }

    /// Makes the bytes from `offset` on zero, and gives their room back. The file is as long as before.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn punch(&self, inode: Inode, offset: u64, len: u64) -> Result<()> {
        self.with_content(inode, Mode::Write, || {
            let size = self.size(inode.address)?;
            let len = len.min(size.saturating_sub(offset));
            self.zero(inode.address, offset, len)?;
            self.note_change(inode.address)
        })
    }

    /// Does something with the lock of a file's content. What a dead owner, or one that failed, left is cleared up
    /// first.
    pub(super) fn with_content<T>(&self, inode: Inode, mode: Mode, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let guard = self.session.lock(inode.address, mode).map_err(gone)?;
        let ready = match guard.owner_died() {
            true => self.clear_up(inode.address),
            false => Ok(()),
        };
        let is_ready = ready.is_ok();
        let answer = ready.and_then(|()| self.check_content(inode)).and_then(|()| work());
        match (is_ready, &answer) {
            (true, Ok(_)) => guard.unlock()?,
            _ if guard.mode() == Mode::Write => guard.leave_broken()?,
            _ => guard.unlock()?,
        }
        answer
    }

    fn check_content(&self, inode: Inode) -> Result<()> {
        if self.session.load(at(inode.address, NUMBER)).map_err(gone)? != inode.number {
            return Err(Failure::Gone);
        }
        match self.session.load(at(inode.address, MODE))? as u32 & kind::MASK {
            kind::FILE | kind::SYMLINK => Ok(()),
            kind::DIRECTORY => Err(Failure::IsDirectory),
            _ => Err(Failure::Invalid),
        }
    }

    fn blocks(&self, inode: GlobalAddress) -> Blocks<'_> {
        Blocks {
            session: &self.session,
            inode,
        }
    }

    pub(super) fn size(&self, inode: GlobalAddress) -> Result<u64> {
        match self.session.load(at(inode, SIZE))? {
            size @ 0..=FILE_MAX => Ok(size),
            size => Err(Error::Corrupt(format!("the inode at {inode}: {size} bytes")).into()),
        }
    }

    /// Bytes within the size.
    pub(super) fn read_content(&self, inode: GlobalAddress, offset: u64, into: &mut [u8]) -> Result<()> {
        let blocks = self.blocks(inode);
        if blocks.is_empty()? {
            let here = INLINE_BYTES.saturating_sub(offset).min(into.len() as u64) as usize;
            let (held, zeros) = into.split_at_mut(here);
            zeros.fill(0);
            return match held {
                [] => Ok(()),
                held => Ok(self.session.read(at(inode, INLINE + offset), held)?),
            };
        }
        let mut rest = into;
        for (index, inside, bytes) in pieces(offset, rest.len() as u64) {
            let (piece, behind) = rest.split_at_mut(bytes as usize);
            self.read_block(blocks.find(index)?, inside, piece)?;
            rest = behind;
        }
        Ok(())
    }

    fn read_block(&self, block: GlobalAddress, inside: u64, into: &mut [u8]) -> Result<()> {
        if block.is_null() {
            into.fill(0);
            return Ok(());
        }
        match self.session.read(at(block, inside), into) {
            Err(Error::OutOfBounds(_) | Error::Invalid(_)) => {}
            answer => return Ok(answer?),
        }
        // The object is smaller than its block.
        let held = self
            .session
            .size_of(block)?
            .saturating_sub(inside)
            .min(into.len() as u64);
        let (held, zeros) = into.split_at_mut(held as usize);
        zeros.fill(0);
        match held {
            [] => Ok(()),
            held => Ok(self.session.read(at(block, inside), held)?),
        }
    }

    /// Writes bytes, then the size if it grows: how many.
    pub(super) fn write_content(&self, inode: GlobalAddress, offset: u64, bytes: &[u8]) -> Result<usize> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_MAX);
        let end = end.ok_or(Failure::TooLarge)?;
        let size = self.size(inode)?;
        let written = if end <= INLINE_BYTES && self.blocks(inode).is_empty()? {
            self.session.write(at(inode, INLINE + offset), bytes)?;
            bytes.len()
        } else {
            self.write_blocks(inode, offset, bytes, size)?
        };
        let end = offset + written as u64;
        if end > size && written > 0 {
            self.session.store(at(inode, SIZE), end)?;
        }
        Ok(written)
    }

    fn write_blocks(&self, inode: GlobalAddress, offset: u64, bytes: &[u8], size: u64) -> Result<usize> {
        self.leave_inode(inode, size)?;
        let mut written = 0;
        for (index, inside, len) in pieces(offset, bytes.len() as u64) {
            let piece = &bytes[written..written + len as usize];
            match self.make_block(inode, index, inside + len, piece, inside) {
                Ok(()) => written += piece.len(),
                Err(Failure::Memory(Error::Full(_))) if written > 0 => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(written)
    }

    /// Content that lies in the inode gets a block.
    fn leave_inode(&self, inode: GlobalAddress, size: u64) -> Result<()> {
        let blocks = self.blocks(inode);
        if size == 0 || !blocks.is_empty()? {
            return Ok(());
        }
        let mut held = [0; INLINE_BYTES as usize];
        self.session.read(at(inode, INLINE), &mut held)?;
        self.make_block(inode, 0, INLINE_BYTES, &held, 0)
    }

    /// A block that holds at least so many bytes, with some of them written.
    fn make_block(&self, inode: GlobalAddress, index: u64, needed: u64, bytes: &[u8], inside: u64) -> Result<()> {
        let word = self.blocks(inode).make_word(index)?;
        // The root's height is in its word; a block there has none.
        let block = GlobalAddress::from_raw(self.session.load(word)?);
        let has = if block.is_null() {
            0
        } else {
            self.session.size_of(block)?
        };
        if has >= needed {
            return Ok(self.session.write(at(block, inside), bytes)?);
        }
        let larger = self.session.alloc(room(index, needed, has))?;
        if let Err(error) = self
            .copy_block(block, has, larger)
            .and_then(|()| Ok(self.session.write(at(larger, inside), bytes)?))
        {
            self.session.free(larger)?;
            return Err(error);
        }
        self.session.store(word, larger.raw())?;
        self.add_taken(inode, self.session.size_of(larger)?, has)?;
        if !block.is_null() {
            self.session.free(block)?;
        }
        Ok(())
    }

    fn copy_block(&self, from: GlobalAddress, len: u64, to: GlobalAddress) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let mut held = vec![0; len.min(BLOCK) as usize];
        self.session.read(from, &mut held)?;
        Ok(self.session.write(to, &held)?)
    }

    fn add_taken(&self, inode: GlobalAddress, more: u64, less: u64) -> Result<()> {
        let word = at(inode, TAKEN);
        let taken = self.session.load(word)?;
        Ok(self
            .session
            .store(word, taken.wrapping_add(more).saturating_sub(less))?)
    }

    /// Makes all bytes behind `size` zero, and gives back the blocks there.
    fn clear_behind(&self, inode: GlobalAddress, size: u64) -> Result<()> {
        let blocks = self.blocks(inode);
        if size == 0 || blocks.is_empty()? {
            self.zero_inline(inode, size)?;
        }
        self.add_taken(inode, 0, blocks.cut(size.div_ceil(BLOCK))?)?;
        let (last, inside) = (size / BLOCK, size % BLOCK);
        if inside > 0 && !blocks.is_empty()? {
            self.zero_block(blocks.find(last)?, inside, BLOCK - inside)?;
        }
        Ok(())
    }

    fn zero_inline(&self, inode: GlobalAddress, from: u64) -> Result<()> {
        let zeros = [0; INLINE_BYTES as usize];
        match zeros.get(from as usize..) {
            None | Some([]) => Ok(()),
            Some(zeros) => Ok(self.session.write(at(inode, INLINE + from), zeros)?),
        }
    }

    fn zero_block(&self, block: GlobalAddress, inside: u64, len: u64) -> Result<()> {
        if block.is_null() {
            return Ok(());
        }
        let len = self.session.size_of(block)?.saturating_sub(inside).min(len);
        match len {
            0 => Ok(()),
            _ => Ok(self.session.write(at(block, inside), &vec![0; len as usize])?),
        }
    }

    /// Makes bytes within the size zero.
    fn zero(&self, inode: GlobalAddress, offset: u64, len: u64) -> Result<()> {
        let blocks = self.blocks(inode);
        if blocks.is_empty()? {
            let len = INLINE_BYTES.saturating_sub(offset).min(len);
            let zeros = [0; INLINE_BYTES as usize];
            return match len {
                0 => Ok(()),
                _ => Ok(self.session.write(at(inode, INLINE + offset), &zeros[..len as usize])?),
            };
        }
        let (mut from, end) = (offset, offset + len);
        while from < end {
            let (index, inside) = (from / BLOCK, from % BLOCK);
            let bytes = (BLOCK - inside).min(end - from);
            let gap = blocks.gap(index)?;
            if gap > 0 {
                from = index.saturating_add(gap).saturating_mul(BLOCK);
                continue;
            }
            if bytes == BLOCK {
                self.add_taken(inode, 0, blocks.remove(index)?)?;
            } else {
                self.zero_block(blocks.find(index)?, inside, bytes)?;
            }
            from += bytes;
        }
        Ok(())
    }

    /// After a writer has died or failed: the invariant holds again, what the blocks take is counted, and others learn
    /// that bytes may have changed.
    fn clear_up(&self, inode: GlobalAddress) -> Result<()> {
        match self.session.load(at(inode, MODE)).map_err(gone)? as u32 & kind::MASK {
            kind::FILE | kind::SYMLINK => {}
            _ => return Ok(()),
        }
        self.clear_behind(inode, self.size(inode)?)?;
        let mut taken = 0;
        self.blocks(inode).each(&mut |block, index| {
            if index.is_some() {
                taken += self.session.size_of(block)?;
            }
            Ok(true)
        })?;
        self.session.store(at(inode, TAKEN), taken)?;
        self.note_change(inode)
    }

    /// Another time of change than the last one: by it others know that what they hold is out of date.
    fn note_change(&self, inode: GlobalAddress) -> Result<()> {
        let last = self.session.load(at(inode, CHANGED_AT))?;
        let now = now();
        // A clock that stands still; not a time of the future that a program has set.
        let stands_still = last >= now && last - now < CLOCK_MAX;
        let now = if stands_still { last + 1 } else { now };
        self.session.store(at(inode, CHANGED_AT), now)?;
        Ok(self.session.store(at(inode, INODE_CHANGED_AT), now)?)
    }

    /// Frees what an inode that nothing leads to any more has.
    pub(super) fn free_content(&self, inode: GlobalAddress) -> Result<()> {
        match self.session.load(at(inode, MODE))? as u32 & kind::MASK {
            kind::FILE | kind::SYMLINK => self.blocks(inode).cut(0).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether the tree of blocks of an inode can be believed so far.
    pub(super) fn tree_of(&self, inode: GlobalAddress) -> Result<Blocks<'_>> {
        let blocks = self.blocks(inode);
        decode(self.session.load(blocks.root_word())?)?;
        Ok(blocks)
    }
}

/// Bytes for a block of which so many are needed, and that has so many: twice as many, so that a file that grows by
/// little is not copied each time. Powers of two, as each session has extents of its own for each size.
fn room(index: u64, needed: u64, has: u64) -> u64 {
    match index {
        0..LONG_FROM => needed.max(2 * has).clamp(BLOCK_MIN, BLOCK).next_power_of_two(),
        _ => BLOCK,
    }
}
