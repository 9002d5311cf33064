//! Making room: one split of one page, in one mini-transaction.
//!
//! 1. find the page optimistically, with its parent;
//! 2. if the parent has no room for a separator, make room there first (its own mini-transaction), start again;
//! 3. latch parent, page, space header, new page;
//! 4. the upper part of the page moves to the new page, to its right; the parent gets the separator.
//!
//! Where to split: among ascending inserts, at the place of the insert, so that the left page stays full; else
//! where both sides, the coming entry included, come out about even. The separator of leaves is the
//! shortest key that tells both sides apart.

use cenote_fabric::observe::Asks;

use super::edit::{self, room_for};
use super::image::Image;
use super::layout::{
    Header, KIND_TREE, PAGE_SIZE, PageWrite, SLOT, SLOTS, Slot, copy_key, is_sound, level_of, lower_fence, upper_fence,
};
use super::pages::{Mtr, PageH, Pool, latched};
use super::search::search;
use super::{Attempt, BTree, Error, Result, descend::Path, until_done};
use crate::space;

impl BTree {
    /// Splits until the page of `level` that covers `key` has `bytes` free beside a slot, or is another.
    #[cold]
    pub(crate) fn make_room(&self, pool: &Pool, key: &[u8], level: u8, bytes: usize) -> Result<()> {
        until_done(|| self.try_make_room(pool, key, level, bytes))
    }

    fn try_make_room(&self, pool: &Pool, key: &[u8], level: u8, bytes: usize) -> Attempt<()> {
        let Some(path) = self.descend_to(pool, Asks, level, key)? else {
            return Ok(None);
        };
        let enough = path.node.level < level || Header::read(path.node.view).free() >= bytes + SLOT;
        if enough {
            return Ok(path.node.guard.valid().then_some(()));
        }
        if path.parent.is_none() {
            self.split_root(pool, path, key, bytes)
        } else {
            self.split_child(pool, path, key, bytes)
        }
    }

    /// Moves the root's contents out into two new children; the root stays where it is, a level higher.
    fn split_root(&self, pool: &Pool, path: Path<'_, Asks>, key: &[u8], bytes: usize) -> Attempt<()> {
        let mut m = pool.mtr();
        let Some(root) = m.upgrade(path.node.guard)? else {
            return Ok(None);
        };
        let old = self.image(&m, root)?;
        let Some((plan, right)) = divide(&old, key, bytes) else {
            return Err(self.indivisible(&m, root));
        };
        let Some(left) = left_half(&old, &plan) else {
            return Err(self.indivisible(&m, root));
        };
        let count = |page: &Image| Header::read(page.view()).count();
        assert_eq!(
            count(&left) + count(&right),
            count(&old),
            "a split keeps each entry on one side"
        );
        let mut header = space::latch(&mut m, self.space)?;
        let (mut m, pages) = header.allocate(m, 2, KIND_TREE)?;
        header.store(&mut m);
        let mut top = Image::new(path.node.level + 1, &[], None);
        top.push(&[], &[], pages[0].0);
        top.push(&plan.separator, &[], pages[1].0);
        left.install(&mut latched(&mut m, pages[0].1));
        right.install(&mut latched(&mut m, pages[1].1));
        top.install(&mut latched(&mut m, root));
        m.commit();
        Ok(None)
    }

    fn split_child(&self, pool: &Pool, path: Path<'_, Asks>, key: &[u8], bytes: usize) -> Attempt<()> {
        let Some((parent, slot)) = path.parent else {
            return Ok(None);
        };
        let mut m = pool.mtr();
        let Some(parent) = m.upgrade(parent.guard)? else {
            return Ok(None);
        };
        let child = m.exclusive(self.page(path.node.no))?;
        if Header::read(m.view(child)).free() >= bytes + SLOT {
            return Ok(Some(()));
        }
        let old = self.image(&m, child)?;
        let Some((plan, right)) = divide(&old, key, bytes) else {
            return Err(self.indivisible(&m, child));
        };
        self.sound(&m, parent)?;
        let above = Header::read(m.view(parent));
        if above.free() < room_for(&above, plan.separator.len(), 0) {
            drop(m);
            self.make_room(pool, key, path.node.level + 1, plan.separator.len())?;
            return Ok(None);
        }
        let mut header = space::latch(&mut m, self.space)?;
        let (mut m, pages) = header.allocate(m, 1, KIND_TREE)?;
        header.store(&mut m);
        right.install(&mut latched(&mut m, pages[0].1));
        edit::truncate(&mut latched(&mut m, child), plan.keep, &plan.separator);
        let linked = edit::insert(&mut latched(&mut m, parent), slot + 1, &plan.separator, &[], pages[0].0);
        assert!(linked, "the parent had room for the separator");
        m.commit();
        Ok(None)
    }

    /// A private copy of a latched page, checked before it is worked on.
    pub(crate) fn image(&self, m: &Mtr<'_>, h: PageH) -> Result<Image> {
        self.sound(m, h)?;
        Ok(Image::copy_of(m.view(h)))
    }

    /// An error if the numbers of a latched page contradict each other.
    pub(crate) fn sound(&self, m: &Mtr<'_>, h: PageH) -> Result<()> {
        if is_sound(m.view(h)) {
            return Ok(());
        }
        Err(Error::corrupt(
            m.page(h),
            "its slots and entries do not add up to a page",
        ))
    }

    #[cold]
    fn indivisible(&self, m: &Mtr<'_>, h: PageH) -> Error {
        Error::corrupt(
            m.page(h),
            "it is full, and its entries cannot be divided over two pages",
        )
    }
}

/// The plan of a split and the new right page; `None` if the page contradicts itself: one without room has at least
/// two entries, and its halves fit.
fn divide(old: &Image, key: &[u8], bytes: usize) -> Option<(Plan, Image)> {
    if Header::read(old.view()).count() < 2 {
        return None;
    }
    let plan = plan(old, key, bytes);
    let right = right_half(old, &plan)?;
    fits(old, &plan).then_some((plan, right))
}

/// How to split a page: how many entries stay, and the key that divides.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    keep: usize,
    separator: Vec<u8>,
}

/// Plans the split of a page that lacks room for `bytes` (key and value) at `key`.
fn plan(page: &Image, key: &[u8], bytes: usize) -> Plan {
    let header = Header::read(page.view());
    let found = search(page.view(), key);
    let ascending = ascending(&header, found.slot);
    if level_of(page.view()) != Some(0) {
        return plan_inner(page, &header, ascending);
    }
    let coming = (!found.exact).then_some((found.slot, key));
    let wanted = match coming {
        Some((slot, key)) if ascending => Some(plan_at(page, slot, key_of(page, slot - 1), key.to_vec())),
        Some((slot, key)) => plan_balanced(page, slot, key, bytes),
        None => None,
    };
    wanted
        .filter(|plan| fits(page, plan))
        .unwrap_or_else(|| plan_existing(page))
}

/// Whether inserts have been coming one behind the other and this is the next; at the right edge of the tree
/// a place near the end is enough, because several writers' keys arrive a little out of order.
fn ascending(header: &Header, slot: usize) -> bool {
    let count = header.count();
    let next = slot == header.last as usize + 1 && header.run >= 3;
    slot > 0 && (next || (!header.has_upper() && slot + count / 16 >= count))
}

/// Inner pages divide at a child's key; the right edge stays behind alone when children come in order.
fn plan_inner(page: &Image, header: &Header, ascending: bool) -> Plan {
    let keep = if ascending {
        header.count() - 1
    } else {
        even_split(&sizes(page))
    };
    Plan {
        keep,
        separator: key_of(page, keep),
    }
}

fn plan_at(_page: &Image, keep: usize, below: Vec<u8>, above: Vec<u8>) -> Plan {
    Plan {
        keep,
        separator: shortest_between(&below, above),
    }
}

/// Splits evenly with the coming entry counted in; `None` when that leaves no choice.
fn plan_balanced(page: &Image, slot: usize, key: &[u8], bytes: usize) -> Option<Plan> {
    let mut sizes = sizes(page);
    sizes.insert(slot, bytes + SLOT);
    if sizes.len() < 2 {
        return None;
    }
    let at = even_split(&sizes);
    let key_of_item = |item: usize| match item.cmp(&slot) {
        std::cmp::Ordering::Less => key_of(page, item),
        std::cmp::Ordering::Equal => key.to_vec(),
        std::cmp::Ordering::Greater => key_of(page, item - 1),
    };
    assert!((1..sizes.len()).contains(&at), "both sides get an item");
    let keep = if at <= slot { at } else { at - 1 };
    Some(plan_at(page, keep, key_of_item(at - 1), key_of_item(at)))
}

/// Splits evenly what is there. Two entries of greatest size and two fences fit in a page, so a page without room
/// for one more has at least two.
fn plan_existing(page: &Image) -> Plan {
    let keep = even_split(&sizes(page));
    plan_at(page, keep, key_of(page, keep - 1), key_of(page, keep))
}

fn sizes(page: &Image) -> Vec<usize> {
    let view = page.view();
    let level = level_of(view).unwrap_or(0);
    let count = Header::read(view).count();
    (0..count)
        .map(|slot| Slot::read(view, slot).entry_len(level) + SLOT)
        .collect()
}

/// Where to cut so that both sides' sums are closest; both sides get at least one item.
fn even_split(sizes: &[usize]) -> usize {
    assert!(sizes.len() > 1, "a page that is split has an entry for each side");
    let total: usize = sizes.iter().sum();
    let mut below = 0;
    let mut best = (usize::MAX, 1);
    for (item, size) in sizes.iter().enumerate().take(sizes.len() - 1) {
        below += size;
        best = best.min((below.abs_diff(total - below), item + 1));
    }
    best.1
}

fn key_of(page: &Image, slot: usize) -> Vec<u8> {
    let mut key = Vec::new();
    copy_key(page.view(), &Header::read(page.view()), slot, &mut key);
    key
}

/// The shortest key above `below` and at most `above`.
fn shortest_between(below: &[u8], mut above: Vec<u8>) -> Vec<u8> {
    let same = below.iter().zip(&above).take_while(|(a, b)| a == b).count();
    above.truncate(same + 1);
    above
}

/// Whether both sides hold their entries and fences after the split.
fn fits(page: &Image, plan: &Plan) -> bool {
    let header = Header::read(page.view());
    let sizes = sizes(page);
    let (left, right) = sizes.split_at(plan.keep);
    let side = |entries: &[usize], fences: usize| SLOTS + entries.iter().sum::<usize>() + fences <= PAGE_SIZE;
    side(left, header.lower.1 as usize + plan.separator.len()) && side(right, header.upper_len() + plan.separator.len())
}

fn left_half(old: &Image, plan: &Plan) -> Option<Image> {
    part(old, (0, plan.keep), &lower_fence(old.view()), Some(&plan.separator))
}

fn right_half(old: &Image, plan: &Plan) -> Option<Image> {
    let count = Header::read(old.view()).count();
    part(
        old,
        (plan.keep, count),
        &plan.separator,
        upper_fence(old.view()).as_deref(),
    )
}

/// A page of slots `from..to` of `old` between new fences.
fn part(old: &Image, (from, to): (usize, usize), lower: &[u8], upper: Option<&[u8]>) -> Option<Image> {
    let mut page = Image::new(level_of(old.view())?, lower, upper);
    let all = page.push_all(old, from, to);
    page.forget_run();
    all.then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(keys: &[&[u8]], value: usize) -> Image {
        let mut page = Image::new(0, &[], None);
        for key in keys {
            assert!(page.push(key, &vec![7; value], value as u32));
        }
        page
    }

    #[test]
    fn separators_are_as_short_as_they_can_be() {
        assert_eq!(shortest_between(b"apple", b"banana".to_vec()), b"b");
        assert_eq!(shortest_between(b"bar", b"bark".to_vec()), b"bark");
        assert_eq!(shortest_between(b"", b"x".to_vec()), b"x");
    }

    #[test]
    fn appending_at_the_right_edge_keeps_the_left_page_full() {
        let page = leaf(&[b"a", b"b", b"c", b"d"], 3000);
        assert_eq!(
            plan(&page, b"e", 3001),
            Plan {
                keep: 4,
                separator: b"e".to_vec()
            }
        );
    }

    #[test]
    fn an_insert_in_the_middle_splits_evenly() {
        let page = leaf(&[b"a", b"b", b"d", b"e"], 3000);
        let plan = plan(&page, b"c", 3001);
        assert!(plan.keep == 2 || plan.keep == 3, "{plan:?}");
    }

    #[test]
    fn a_key_that_is_there_splits_between_entries() {
        let page = leaf(&[b"aa", b"ab", b"c"], 3900);
        let plan = plan(&page, b"ab", 4000);
        assert!((1..=2).contains(&plan.keep));
    }
}
