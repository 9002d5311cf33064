//! Looking up many keys that rise, each from where the last one was found.
//!
//! 1. The leaf of the last key is kept, with its parent. The next key is looked for in that leaf, if it lies below the
//!    leaf's upper fence; else the parent says which leaf is next; only a key beyond the parent costs a descent.
//! 2. Keys that lie apart meet pages that no cache has. So some keys go ahead together: each to its leaf, whose slots
//!    are asked for, and only then are they looked for there, one after the other. (Chen, Ailamaki, Gibbons and Mowry,
//!    Improving Hash Join Performance through Prefetching, ICDE 2004)
//! 3. Each value is validated when it is copied, as in a single lookup. A page that has changed meanwhile is given up,
//!    and the key descended to anew. Nothing is held.
//!
//! Invariant: a key that is asked of a kept page is not below the last one, which the page covers. So as long as the
//! page's version stands its upper fence alone says whether it covers the key.

use cenote_fabric::observe::{self, Observer, Off, On, Still};

use super::descend::Node;
use super::layout::{AT_COUNT, MAX_SLOTS, PageRead, copy_value, slot_at};
use super::pages::{Hint, PageView, Pool};
use super::prepare::Prepared;
use super::search::{child_slot, is_below_end, search};
use super::{Attempt, BTree, Result};

/// Where a key and its value lie in the bytes that a lookup appended to: begin and end of the key, end of the value.
pub(crate) type Place = (u32, u32, u32);

/// Keys that go ahead together: about as many lines as a processor can wait for.
pub(super) const GROUP: usize = 8;

/// The leaf of the last key, and its parent; none where the leaf is the root.
#[derive(Clone, Copy)]
pub(super) struct Near<'p, O: Observer> {
    pub leaf: Node<'p, O>,
    parent: Option<Node<'p, O>>,
}

/// The parent of the last key's leaf.
pub(super) fn above<'p, O: Observer>(near: &Option<Near<'p, O>>) -> Option<Node<'p, O>> {
    near.as_ref().and_then(|near| near.parent)
}

impl BTree {
    /// Appends each key that is there, and its value, to `bytes`, and notes where at the key's place in `places`.
    /// `order` names the keys so that they rise.
    ///
    /// # Errors
    /// Those of reading pages; [`super::Error::Corrupt`] if a page is none of a tree.
    pub(crate) fn get_many<'k>(
        &self,
        pool: &Pool,
        (key, order): (impl Fn(usize) -> &'k [u8], &[(u64, u32)]),
        bytes: &mut Vec<u8>,
        places: &mut [Option<Place>],
    ) -> Result<()> {
        // Asked once for all of them.
        if observe::still() {
            return self.get_each(pool, Still, (key, order), bytes, places);
        }
        if observe::active() {
            return self.get_each(pool, On, (key, order), bytes, places);
        }
        self.get_each(pool, Off, (key, order), bytes, places)
    }

    fn get_each<'k, O: Observer>(
        &self,
        pool: &Pool,
        o: O,
        (key, order): (impl Fn(usize) -> &'k [u8], &[(u64, u32)]),
        bytes: &mut Vec<u8>,
        places: &mut [Option<Place>],
    ) -> Result<()> {
        let (mut near, mut prepared) = (None, Prepared::default());
        for (n, group) in order.chunks(GROUP).enumerate() {
            let rest = order[n * GROUP..].iter().map(|(_, at)| key(*at as usize));
            prepared.go_on((self, pool, o), above(&near), n * GROUP, rest);
            let keys = group.iter().map(|(_, at)| key(*at as usize));
            let mut ahead = self.go_ahead(pool, o, &mut near, keys)?;
            for ((_, at), ahead) in group.iter().zip(&mut ahead) {
                let (key, start) = (key(*at as usize), bytes.len());
                bytes.extend_from_slice(key);
                let key_end = bytes.len();
                let found = loop {
                    if let Some(found) = self.find(pool, o, ahead, key, bytes)? {
                        break found;
                    }
                    bytes.truncate(key_end);
                    cenote_base::rt::relax();
                };
                places[*at as usize] = found.then_some((start as u32, key_end as u32, bytes.len() as u32));
            }
        }
        Ok(())
    }

    /// Goes to the leaves of some keys that rise, from where the last one was found, and asks the processor for what a
    /// search reads of them. Where another thread spoils that, a key goes its way later.
    #[inline(always)]
    pub(super) fn go_ahead<'p, 'k, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        near: &mut Option<Near<'p, O>>,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<[Option<Near<'p, O>>; GROUP]> {
        let mut ahead = [const { None }; GROUP];
        // A page that has changed may be any other by now: what is asked of it would be asked in vain, key after key.
        if near.as_ref().is_some_and(|near| !near.leaf.guard.valid_by(o.seam())) {
            *near = None;
        }
        for (place, key) in ahead.iter_mut().zip(keys) {
            let before = near.as_ref().map(|near| near.leaf.no);
            *near = self.go(pool, o, near.take(), key)?;
            if let Some(near) = near
                && before != Some(near.leaf.no)
            {
                prefetch_slots(near.leaf.view);
            }
            *place = *near;
        }
        Ok(ahead)
    }

    /// Appends the key's value; false where there is none. `ahead`: its leaf, if it is known; nothing is kept of it
    /// when the attempt was spoiled.
    #[inline(always)]
    fn find<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        ahead: &mut Option<Near<'p, O>>,
        key: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Attempt<bool> {
        let Some(at) = self.arrive(pool, o, ahead.take(), key)? else {
            return Ok(None);
        };
        let found = search(at.leaf.view, key);
        if found.exact {
            copy_value(at.leaf.view, found.slot, bytes);
        }
        Ok(at.leaf.guard.valid_by(o.seam()).then_some(found.exact))
    }

    /// The key's leaf: the one to which it has gone ahead, or by a descent.
    #[inline(always)]
    pub(super) fn arrive<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        ahead: Option<Near<'p, O>>,
        key: &[u8],
    ) -> Attempt<Near<'p, O>> {
        match ahead {
            Some(at) => Ok(Some(at)),
            None => self.go(pool, o, None, key),
        }
    }

    /// The key's leaf, from where the last one was found.
    #[inline(always)]
    pub(super) fn go<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        near: Option<Near<'p, O>>,
        key: &[u8],
    ) -> Attempt<Near<'p, O>> {
        match near {
            Some(near) if is_below_end(near.leaf.view, key) => return Ok(Some(near)),
            Some(Near {
                parent: Some(parent), ..
            }) if is_below_end(parent.view, key) => {
                let leaf = self.child(pool, &parent, child_slot(parent.view, key), Hint::Warm)?;
                let parent = Some(parent);
                return Ok(leaf.map(|leaf| Near { leaf, parent }));
            }
            _ => {}
        }
        let path = self.descend_to(pool, o, 0, key)?;
        Ok(path.map(|path| Near {
            leaf: path.node,
            parent: path.parent.map(|(parent, _)| parent),
        }))
    }
}

/// Asks for the lines that a search meets in the slots of a leaf: all of few, of many those of its first steps.
#[inline(always)]
fn prefetch_slots<O: Observer>(page: PageView<'_, O>) {
    const LINE: usize = 64;
    const LINES: usize = 16;
    let end = slot_at(usize::from(page.u16(AT_COUNT)).min(MAX_SLOTS));
    let step = (end / LINES).next_multiple_of(LINE).max(LINE);
    // The first line has been read with the header.
    (step..end).step_by(step).for_each(|at| page.prefetch(at));
}
