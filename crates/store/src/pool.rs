//! Pools: objects that were freed, for whichever process needs one of the class next. In a space a slab's objects are
//! allocated by its owner alone; without pools what an evictor frees of another's slabs would be of no use to it.
//!
//! An object is in a pool while its address stands in one of the pool's words; who swaps it out has it. The count is a
//! hint.

use super::away::Asked;
use super::core::Core;
use super::heap::offset;
use super::layout::{WORD, free_pool, root};
use cenote_base::Result;
use cenote_base::rt;
use cenote_space::{Class, GlobalAddress};

impl Core {
    /// An object of the class for `len` bytes, in a part or in any, that was freed before; its bytes may be any.
    pub(super) fn take_pooled(&self, len: u64, part: Option<u8>) -> Result<Option<GlobalAddress>> {
        let Some(pool) = self.pool_of(len)? else {
            return Ok(None);
        };
        let count = offset(pool, free_pool::COUNT)?;
        let counted = self.heap.load(count)?;
        if counted as i64 <= 0 {
            // Taken more often than counted, as a count was set to 0 in between.
            if counted != 0 {
                self.heap.swap(count, counted, 0)?;
            }
            return Ok(None);
        }
        let space = self.heap.space();
        let start = own_start();
        for n in 0..free_pool::PLACES_MAX {
            let place = place(pool, start + n)?;
            let object = self.heap.load(place)?;
            let of = GlobalAddress::from_raw(object).part();
            let is_there = part.is_none_or(|part| of == part) && space.has_part(of);
            if object != 0 && is_there && self.heap.swap(place, object, 0)? {
                self.heap.add(count, u64::MAX)?;
                return Ok(Some(GlobalAddress::from_raw(object)));
            }
        }
        if part.is_none() {
            self.heap.swap(count, counted, 0)?;
        }
        Ok(None)
    }

    /// Frees an object to its pool, or, if that is full, to the space.
    pub(super) fn give_pooled(&self, object: GlobalAddress) -> Result<()> {
        let len = self.heap.space().size_of(object)?;
        let Some(pool) = self.pool_of(len)? else {
            return self.heap.free(object);
        };
        let count = offset(pool, free_pool::COUNT)?;
        if (self.heap.load(count)? as i64) < free_pool::PLACES_MAX as i64 {
            let start = own_start();
            for n in 0..16 {
                let place = place(pool, start + n)?;
                if self.heap.load(place)? == 0 && self.heap.swap(place, 0, object.raw())? {
                    return self.heap.add(count, 1).map(drop);
                }
            }
        }
        self.heap.free(object)
    }

    /// Frees what lies in all pools; what waits for a part of a mirrored space stays.
    pub(super) fn drain_pools(&self) -> Result<()> {
        let mut asked = Asked::default();
        for class in Class::all() {
            let Some(pool) = self.pool_of(class.size())? else {
                continue;
            };
            for n in 0..free_pool::PLACES_MAX {
                let place = place(pool, n)?;
                let object = GlobalAddress::from_raw(self.heap.load(place)?);
                let stays = object.is_null() || self.heap.waits(object, &mut asked);
                if !stays && self.heap.swap(place, object.raw(), 0)? {
                    self.free_objects([object].into_iter(), false)?;
                }
            }
            self.heap.store(offset(pool, free_pool::COUNT)?, 0)?;
        }
        Ok(())
    }

    fn pool_of(&self, len: u64) -> Result<Option<GlobalAddress>> {
        let number = Class::of(len).map(|class| u64::from(class.number()));
        let number = number.filter(|number| *number < root::POOLS_MAX);
        number
            .map(|number| self.word(root::POOLS + free_pool::BYTES * number))
            .transpose()
    }
}

/// Where the calling thread looks first: what it gave it finds again at once, and threads seldom meet.
fn own_start() -> u64 {
    (rt::thread_slot() as u64).wrapping_mul(16)
}

fn place(pool: GlobalAddress, n: u64) -> Result<GlobalAddress> {
    offset(pool, free_pool::PLACES + WORD * (n % free_pool::PLACES_MAX))
}
