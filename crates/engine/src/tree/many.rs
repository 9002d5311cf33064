//! Looking up many keys that rise, each from where the last one was found.
//!
//! 1. The leaf of the last key is kept, with its parent. The next key is looked for in that leaf, if it lies below the
//!    leaf's upper fence; else the parent says which leaf is next; only a key beyond the parent costs a descent.
//! 2. Each value is validated when it is copied, as in a single lookup. A page that has changed meanwhile is given up,
//!    and the key descended to anew. Nothing is held.
//!
//! Invariant: a key that is asked of a kept page is not below the last one, which the page covers. So as long as the
//! page's version stands its upper fence alone says whether it covers the key.

use std::cmp::Ordering;

use cenote_fabric::observe::{self, Observer, Off, On, Still};

use super::descend::Node;
use super::layout::{Header, PageRead, copy_value};
use super::pages::{Hint, Pool};
use super::search::{child_slot, search};
use super::{Attempt, BTree, Result};

/// Where a key and its value lie in the bytes that a lookup appended to: begin and end of the key, end of the value.
pub(crate) type Place = (u32, u32, u32);

/// The leaf of the last key, and its parent; none where the leaf is the root.
struct Near<'p, O: Observer> {
    leaf: Node<'p, O>,
    parent: Option<Node<'p, O>>,
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
        let mut near = None;
        for (_, at) in order {
            let (key, start) = (key(*at as usize), bytes.len());
            bytes.extend_from_slice(key);
            let key_end = bytes.len();
            let found = loop {
                if let Some(found) = self.find(pool, o, &mut near, key, bytes)? {
                    break found;
                }
                bytes.truncate(key_end);
                cenote_base::rt::relax();
            };
            places[*at as usize] = found.then_some((start as u32, key_end as u32, bytes.len() as u32));
        }
        Ok(())
    }

    /// Appends the key's value; false where there is none. Nothing is kept of an attempt that was spoiled.
    #[inline(always)]
    fn find<'p, O: Observer>(
        &self,
        pool: &'p Pool,
        o: O,
        near: &mut Option<Near<'p, O>>,
        key: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Attempt<bool> {
        let Some(at) = self.go(pool, o, near.take(), key)? else {
            return Ok(None);
        };
        let found = search(at.leaf.view, key);
        if found.exact {
            copy_value(at.leaf.view, found.slot, bytes);
        }
        if !at.leaf.guard.valid_by(o.seam()) {
            return Ok(None);
        }
        *near = Some(at);
        Ok(Some(found.exact))
    }

    /// The key's leaf, from where the last one was found.
    #[inline(always)]
    fn go<'p, O: Observer>(&self, pool: &'p Pool, o: O, near: Option<Near<'p, O>>, key: &[u8]) -> Attempt<Near<'p, O>> {
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

/// Whether a key lies below the page's upper fence.
#[inline(always)]
fn is_below_end(page: impl PageRead, key: &[u8]) -> bool {
    let header = Header::read(page);
    !header.has_upper() || page.compare(header.upper.0 as usize, header.upper_len(), key) == Ordering::Greater
}
