//! Changing one leaf.

use cenote_fabric::observe::{self, Asks, Observer, Off, On};

use super::layout::{Header, MAX_KEY, MAX_VALUE, PageRead, ROOT, SLOT, Slot, copy_value, covers, level_of};
use super::pages::{Hint, Mtr, PageH, Pool, latched};
use super::search::search;
use super::{Attempt, BTree, Error, Result, edit, until_done};
use crate::space;

/// A place in a leaf that is latched exclusively in a mini-transaction: valid until that leaf is changed
/// through another position.
#[derive(Debug, Clone, Copy)]
pub struct LeafPos {
    /// The leaf.
    pub h: PageH,
    /// Slot of the key, or where it would be.
    pub slot: usize,
    /// Whether the key is there.
    pub found: bool,
}

/// Outcome of one try to reach the leaf.
enum Reached {
    At(LeafPos),
    Full,
}

impl BTree {
    /// Makes the empty tree of a space whose file exists and is empty.
    ///
    /// # Errors
    /// Those of making the space's first pages.
    pub fn create(pool: &Pool, space: u32) -> Result<BTree> {
        space::format(pool, space)?;
        Ok(BTree { space })
    }

    /// Latches the leaf of `key` exclusively in `m`, with at least `room` bytes free for key and value (0: the
    /// caller only changes or removes what is there). Splits that this takes are mini-transactions of their own,
    /// done before. So `m` must hold no page of this tree yet, nor a page that is latched after a tree's.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`]; those of reading and making pages.
    pub fn seek_write(&self, m: &mut Mtr<'_>, key: &[u8], room: usize) -> Result<LeafPos> {
        if key.len() > MAX_KEY {
            return Err(Error::KeyTooLong(key.len()));
        }
        if room > MAX_KEY + MAX_VALUE {
            return Err(Error::ValueTooLong(room - key.len()));
        }
        loop {
            let reached = if observe::active() {
                self.reach(m, On, key, room)?
            } else {
                self.reach(m, Off, key, room)?
            };
            match reached {
                Reached::At(pos) => return Ok(pos),
                Reached::Full => self.make_room(m.pool(), key, 0, room)?,
            }
        }
    }

    #[inline(always)]
    fn reach<O: Observer>(&self, m: &mut Mtr<'_>, o: O, key: &[u8], room: usize) -> Result<Reached> {
        match self.try_upgrade(m, o, key, room)? {
            Some(reached) => Ok(reached),
            None => until_done(|| self.try_latch(m, o, key, room)),
        }
    }

    /// The common way: the leaf's guard becomes its latch, if no thread changed the leaf meanwhile.
    #[inline(always)]
    fn try_upgrade<O: Observer>(&self, m: &mut Mtr<'_>, o: O, key: &[u8], room: usize) -> Attempt<Reached> {
        let Some(leaf) = self.leaf_of(m.pool(), o, key)? else {
            return Ok(None);
        };
        if lacks(leaf.view, room) {
            return Ok(leaf.guard.valid().then_some(Reached::Full));
        }
        match m.upgrade(leaf.guard)? {
            Some(h) => self.position(m, h, key).map(Some),
            None => Ok(None),
        }
    }

    /// The way under contention: waits for the latch, then asks the leaf itself whether the key is still its own.
    fn try_latch<O: Observer>(&self, m: &mut Mtr<'_>, o: O, key: &[u8], room: usize) -> Attempt<Reached> {
        let Some(leaf) = self.leaf_of(m.pool(), o, key)? else {
            return Ok(None);
        };
        let h = m.exclusive(self.page(leaf.no))?;
        let view = m.view(h);
        let is_right = level_of(view) == Some(0) && covers(view, key);
        let is_full = lacks(view, room);
        if is_right && !is_full {
            return self.position(m, h, key).map(Some);
        }
        m.release(h);
        Ok(is_right.then_some(Reached::Full))
    }

    /// Finds the key in the latched leaf; refuses a leaf that could not be changed safely.
    #[inline(always)]
    fn position(&self, m: &mut Mtr<'_>, h: PageH, key: &[u8]) -> Result<Reached> {
        let view = m.view(h);
        let header = Header::read(view);
        let found = search(view, key);
        let entry = Slot::read(view, found.slot);
        let entry_fits = !found.exact || header.reaches(entry.off, entry.entry_len(0));
        if header.is_sound() && entry_fits {
            return Ok(Reached::At(LeafPos {
                h,
                slot: found.slot,
                found: found.exact,
            }));
        }
        let page = m.page(h);
        m.release(h);
        Err(Error::corrupt(page, "slots or entries leave the page"))
    }

    /// Before a change that may compact the page: its entries are where they should be.
    fn ready(&self, m: &Mtr<'_>, h: PageH, bytes: usize) -> Result<()> {
        let has_gap = Header::read(m.view(h)).gap() >= bytes + SLOT;
        if has_gap { Ok(()) } else { self.sound(m, h) }
    }

    /// Copies the value at `pos`, which must be found, into `out` (cleared first).
    pub fn value(&self, m: &Mtr<'_>, pos: &LeafPos, out: &mut Vec<u8>) {
        out.clear();
        copy_value(m.view(pos.h), pos.slot, out);
    }

    /// Inserts `key` at `pos`, where it was looked for and not found.
    ///
    /// # Errors
    /// The key or value is too long, or longer than the room that was asked for. Nothing has changed then.
    pub fn insert_at(&self, m: &mut Mtr<'_>, pos: &LeafPos, key: &[u8], value: &[u8]) -> Result<()> {
        assert!(!pos.found, "a key is inserted where it was looked for and not found");
        fits(key.len(), value.len())?;
        self.ready(m, pos.h, key.len() + value.len())?;
        let done = edit::insert(&mut latched(m, pos.h), pos.slot, key, value, value.len() as u32);
        if done { Ok(()) } else { Err(Error::NoRoom) }
    }

    /// Gives the key at `pos` another value; the redo holds only the bytes that differ where the length stays.
    ///
    /// # Errors
    /// The value is too long, or longer than the room that was asked for. Nothing has changed then.
    pub fn replace_at(&self, m: &mut Mtr<'_>, pos: &LeafPos, value: &[u8]) -> Result<()> {
        assert!(pos.found, "a value is replaced where its key was found");
        fits(0, value.len())?;
        let entry = Slot::read(m.view(pos.h), pos.slot);
        // A value that is no longer lies where the old one did; nothing else of the page moves.
        if value.len() > entry.value_len(0) {
            self.ready(m, pos.h, entry.len as usize + value.len())?;
        }
        let done = edit::replace(&mut latched(m, pos.h), pos.slot, value);
        if done { Ok(()) } else { Err(Error::NoRoom) }
    }

    /// Overwrites bytes `off..` of the value at `pos`; the length stays.
    pub fn write_value_bytes_at(&self, m: &mut Mtr<'_>, pos: &LeafPos, off: usize, bytes: &[u8]) {
        let entry = Slot::read(m.view(pos.h), pos.slot);
        assert!(off + bytes.len() <= entry.value_len(0), "a write beyond the value");
        m.write(pos.h, entry.off as usize + entry.len as usize + off, bytes);
    }

    /// Removes the entry at `pos`; `true` when the leaf is now so empty that [`BTree::compact`] may merge it.
    pub fn remove_at(&self, m: &mut Mtr<'_>, pos: &LeafPos) -> bool {
        assert!(pos.found, "an entry is removed where it was found");
        edit::remove(&mut latched(m, pos.h), pos.slot);
        edit::used(&Header::read(m.view(pos.h))) < super::merge::UNDERFULL
    }

    /// Rows in the tree, estimated from a few leaves.
    ///
    /// # Errors
    /// Those of reading pages.
    pub fn estimate_rows(&self, pool: &Pool) -> Result<u64> {
        let free = space::header(pool, self.space)?.free_count;
        let in_use = space::pages(pool, self.space)?.saturating_sub(free + 1);
        let (level, count) = until_done(|| self.try_count(pool))?;
        let leaves = if level == 0 {
            1
        } else {
            u64::from(in_use.saturating_sub(ROOT))
        };
        Ok(count * leaves)
    }

    fn try_count(&self, pool: &Pool) -> Attempt<(u8, u64)> {
        let Some(path) = self.descend(pool, Asks, (0, Hint::Warm), |page| Header::read(page).count() / 2)? else {
            return Ok(None);
        };
        let count = Header::read(path.node.view).count() as u64;
        let level = u8::from(path.parent.is_some());
        Ok(path.node.guard.valid().then_some((level, count)))
    }
}

/// Whether the leaf has less than `room` (0: none wanted) free for a new entry.
#[inline(always)]
fn lacks(page: impl PageRead, room: usize) -> bool {
    room > 0 && Header::read(page).free() < room + SLOT
}

pub(super) fn fits(key: usize, value: usize) -> Result<()> {
    if key > MAX_KEY {
        return Err(Error::KeyTooLong(key));
    }
    if value > MAX_VALUE {
        Err(Error::ValueTooLong(value))
    } else {
        Ok(())
    }
}
