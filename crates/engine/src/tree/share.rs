//! Where keys lie in a tree, as shares of its entries: how much a range holds, and where it is cut.
//!
//! A descent adds up the slots that it passes, each page taken for as full as its neighbours. That costs as much as
//! reading a row, needs no statistics, and is never out of date.

use super::layout::{Header, copy_key};
use super::pages::{Hint, Pool};
use super::search::{child_slot, lower_bound};
use super::{Attempt, BTree, Result, until_done};
use cenote_fabric::observe::Asks;
use std::cell::Cell;

impl BTree {
    /// About which share (0 to 1) of the entries has keys below `key`.
    ///
    /// # Errors
    /// Those of reading pages.
    pub fn share_below(&self, pool: &Pool, key: &[u8]) -> Result<f64> {
        until_done(|| self.try_share_below(pool, key))
    }

    fn try_share_below(&self, pool: &Pool, key: &[u8]) -> Attempt<f64> {
        let (below, width) = (Cell::new(0.0), Cell::new(1.0));
        let path = self.descend(pool, Asks, (0, Hint::Warm), |page| {
            let slot = child_slot(page, key);
            width.set(width.get() / Header::read(page).count().max(1) as f64);
            below.set(below.get() + width.get() * slot as f64);
            slot
        })?;
        let Some(path) = path else { return Ok(None) };
        let page = path.node.view;
        let count = Header::read(page).count().max(1);
        let at = lower_bound(page, key).slot.min(count);
        let share = below.get() + width.get() * at as f64 / count as f64;
        Ok(path.node.guard.valid().then_some(share))
    }

    /// The key below which about this share (0 to 1) of the entries lies; None where a leaf there is empty.
    ///
    /// # Errors
    /// Those of reading pages.
    pub fn key_at(&self, pool: &Pool, share: f64) -> Result<Option<Vec<u8>>> {
        until_done(|| self.try_key_at(pool, share.clamp(0.0, 1.0)))
    }

    fn try_key_at(&self, pool: &Pool, share: f64) -> Attempt<Option<Vec<u8>>> {
        let rest = Cell::new(share);
        let place = |count: usize| {
            let at = rest.get() * count as f64;
            let slot = (at as usize).min(count.saturating_sub(1));
            rest.set((at - slot as f64).clamp(0.0, 1.0));
            slot
        };
        let path = self.descend(pool, Asks, (0, Hint::Warm), |page| place(Header::read(page).count()));
        let Some(path) = path? else { return Ok(None) };
        let page = path.node.view;
        let header = Header::read(page);
        let mut key = Vec::new();
        if header.count() > 0 {
            copy_key(page, &header, place(header.count()), &mut key);
        }
        let found = if header.count() > 0 { Some(key) } else { None };
        Ok(path.node.guard.valid().then_some(found))
    }
}
