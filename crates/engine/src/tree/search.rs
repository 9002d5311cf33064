//! Finding a key inside a page.
//!
//! 1. cut the page's prefix from the key (a key that belongs here has it);
//! 2. guess where its four-byte head stands among those in the slots, as if they rose evenly (numbers that were counted
//!    up do), and look on both sides of the guess: a page that is not in the processor's cache is asked for four lines
//!    at once, instead of for one after the other;
//! 3. binary search over the heads between, one conditional move a step, touching no entry;
//! 4. only where heads are equal look at the entry.

use std::cmp::Ordering;

use super::layout::{AT_COUNT, AT_PREFIX, Header, MAX_SLOTS, PageRead, head_at, head_of, slot_at};

/// Where a key is or would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub slot: usize,
    pub exact: bool,
}

/// First slot whose key is at or above `key`, which must lie between the page's fences.
#[inline(always)]
pub(crate) fn search(page: impl PageRead, key: &[u8]) -> Found {
    let count = (page.u16(AT_COUNT) as usize).min(MAX_SLOTS);
    let prefix = page.u16(AT_PREFIX) as usize;
    search_suffix(page, count, key.get(prefix..).unwrap_or(&[]))
}

#[inline(always)]
fn search_suffix(page: impl PageRead, count: usize, suffix: &[u8]) -> Found {
    let head = head_of(suffix);
    let slot = first_head_at_or_above(page, count, head);
    if slot == count || page.u32(slot_at(slot)) != head {
        return Found { slot, exact: false };
    }
    among_ties(page, (slot, count), head, suffix)
}

/// Slots from which on a guess is made: what lies in a few lines is searched as fast.
const GUESS_FROM: usize = 32;
/// Slots beside the guess that are looked at: what lies between them is of two lines or three.
const GUESS_WIDTH: usize = 4;

#[inline(always)]
fn first_head_at_or_above(page: impl PageRead, count: usize, head: u32) -> usize {
    match count < GUESS_FROM {
        true => among_heads(page, (0, count), head),
        false => among_heads(page, guessed(page, count, head), head),
    }
}

/// Where the first head at or above `head` is: the first slot that it may be, and how many slots are below it at most.
#[inline(always)]
fn guessed(page: impl PageRead, count: usize, head: u32) -> (usize, usize) {
    let at = |slot: usize| page.u32(slot_at(slot));
    let (first, last) = (at(0), at(count - 1));
    if head <= first {
        return (0, 0);
    }
    if head > last {
        return (count, 0);
    }
    let guess = (u64::from(head - first) * (count - 1) as u64 / u64::from(last - first)) as usize;
    let low = guess.saturating_sub(GUESS_WIDTH).min(count - 1);
    let high = (guess + GUESS_WIDTH).min(count - 1);
    // What an optimistic reader sees may not rise.
    match (at(low) < head, at(high) < head) {
        (false, _) => (0, low),
        (true, false) => (low + 1, high.saturating_sub(low + 1)),
        (true, true) => (high + 1, count - 1 - high),
    }
}

/// Binary search without branches on data: the answer is always within `base ..= base + len`.
#[inline(always)]
fn among_heads(page: impl PageRead, (mut base, mut len): (usize, usize), head: u32) -> usize {
    while len > 1 {
        let half = len / 2;
        let is_below = page.u32(slot_at(base + half - 1)) < head;
        base = core::hint::select_unpredictable(is_below, base + half, base);
        len -= half;
    }
    base + usize::from(len == 1 && page.u32(slot_at(base)) < head)
}

/// Slots from `slot` on begin with the key's head. Mostly few do: they are tried one by one.
#[inline(always)]
fn among_ties(page: impl PageRead, (mut slot, count): (usize, usize), head: u32, suffix: &[u8]) -> Found {
    for _ in 0..4 {
        match compare_entry(page, slot, suffix) {
            Ordering::Equal => return Found { slot, exact: true },
            Ordering::Greater => return Found { slot, exact: false },
            Ordering::Less => slot += 1,
        }
        if slot == count || page.u32(slot_at(slot)) != head {
            return Found { slot, exact: false };
        }
    }
    search_entries(page, (slot, count), head, suffix)
}

/// Binary search over entries, for many whose heads tie.
#[inline(never)]
fn search_entries(page: impl PageRead, (from, to): (usize, usize), head: u32, suffix: &[u8]) -> Found {
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = (low + high) / 2;
        let order = match page.u32(slot_at(middle)).cmp(&head) {
            Ordering::Equal => compare_entry(page, middle, suffix),
            heads => heads,
        };
        match order {
            Ordering::Equal => {
                return Found {
                    slot: middle,
                    exact: true,
                };
            }
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    Found {
        slot: low,
        exact: false,
    }
}

/// Compares the entry with `suffix`, their heads being equal: by the next four bytes, as heads are compared, and only
/// where these tie too byte by byte.
#[inline(always)]
fn compare_entry(page: impl PageRead, slot: usize, suffix: &[u8]) -> Ordering {
    let at = slot_at(slot);
    let len = page.u16(at + 6) as usize;
    if len <= 4 || suffix.len() <= 4 {
        return len.cmp(&suffix.len());
    }
    let off = page.u16(at + 4) as usize;
    let (ours, theirs) = (head_at(page, off + 4, len - 4), head_of(&suffix[4..]));
    match ours.cmp(&theirs) {
        Ordering::Equal if len <= 8 || suffix.len() <= 8 => len.cmp(&suffix.len()),
        Ordering::Equal => page.compare(off + 8, len - 8, &suffix[8..]),
        decided => decided,
    }
}

/// Slot of the child that covers `key`; the page must not be empty.
#[inline(always)]
pub(crate) fn child_slot(page: impl PageRead, key: &[u8]) -> usize {
    let found = search(page, key);
    if found.exact {
        found.slot
    } else {
        found.slot.saturating_sub(1)
    }
}

/// Slot of the child that covers the keys just below `key` (`None`: below the end of the tree).
pub(crate) fn child_slot_below(page: impl PageRead, key: Option<&[u8]>) -> usize {
    let count = Header::read(page).count();
    let above = key.map_or(count, |key| lower_bound(page, key).slot);
    above.saturating_sub(1)
}

/// Like `search` for a key that may lie outside the page's fences.
pub(crate) fn lower_bound(page: impl PageRead, key: &[u8]) -> Found {
    let header = Header::read(page);
    let prefix = header.prefix as usize;
    let start = &key[..prefix.min(key.len())];
    match page.compare(header.lower.0 as usize, prefix, start) {
        Ordering::Equal => search(page, key),
        Ordering::Less => Found {
            slot: header.count(),
            exact: false,
        },
        Ordering::Greater => Found { slot: 0, exact: false },
    }
}

/// Whether a key lies below the page's upper fence.
#[inline(always)]
pub(super) fn is_below_end(page: impl PageRead, key: &[u8]) -> bool {
    let header = Header::read(page);
    !header.has_upper() || page.compare(header.upper.0 as usize, header.upper_len(), key) == Ordering::Greater
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::random::Random;
    use std::hint::black_box;

    use crate::tree::image::Image;
    use crate::tree::layout::{PAGE_SIZE, PageWrite, copy_key, copy_value, covers, is_sound, lower_fence, upper_fence};

    fn leaf(keys: &[&[u8]]) -> Image {
        let mut page = Image::new(0, b"", None);
        keys.iter().for_each(|key| assert!(page.push(key, b"", 0)));
        page
    }

    #[test]
    fn heads_that_tie_are_told_apart() {
        let keys: [&[u8]; 8] = [b"", b"\0", b"a", b"a\0", b"a\0\0\0", b"a\0\0\0\0", b"aaaa", b"aaaab"];
        let page = leaf(&keys);
        for (slot, key) in keys.iter().enumerate() {
            assert_eq!(search(page.view(), key), Found { slot, exact: true });
        }
        assert_eq!(search(page.view(), b"aaaaa"), Found { slot: 7, exact: false });
        assert_eq!(search(page.view(), b"b"), Found { slot: 8, exact: false });
        assert_eq!(search(page.view(), b"a\0\0"), Found { slot: 4, exact: false });
    }

    /// All short keys over a few bytes, in one page: every pair of neighbours must be told apart, whatever its bytes
    /// beyond the head and wherever its entry lies.
    #[test]
    fn every_key_is_found_where_order_puts_it() {
        let mut random = Random(0x1234_5678_9abc);
        for _ in 0..60 {
            let mut keys: Vec<Vec<u8>> = (0..120)
                .map(|_| {
                    let len = random.below(14);
                    (0..len)
                        .map(|_| random.pick(&[0, 1, 0xff]) * u8::from(random.one_in(3)))
                        .collect()
                })
                .collect();
            keys.sort();
            keys.dedup();
            let (there, absent): (Vec<_>, Vec<_>) = keys.iter().enumerate().partition(|(i, _)| i % 2 == 0);
            let page = leaf(&there.iter().map(|(_, key)| &key[..]).collect::<Vec<_>>());
            for (i, key) in there {
                assert_eq!(
                    search(page.view(), key),
                    Found {
                        slot: i / 2,
                        exact: true
                    }
                );
            }
            for (i, key) in absent {
                assert_eq!(
                    search(page.view(), key),
                    Found {
                        slot: i / 2 + 1,
                        exact: false
                    },
                    "{key:?}"
                );
            }
        }
    }

    #[test]
    fn bounds_outside_the_fences_lead_to_the_edges() {
        let mut page = Image::new(0, b"abc1", Some(b"abc9"));
        assert!(page.push(b"abc5", b"", 0));
        assert_eq!(lower_bound(page.view(), b"ab").slot, 0);
        assert_eq!(lower_bound(page.view(), b"abc").slot, 0);
        assert_eq!(lower_bound(page.view(), b"abd").slot, 1);
        assert!(lower_bound(page.view(), b"abc5").exact);
        assert!(covers(page.view(), b"abc1") && !covers(page.view(), b"abc9") && !covers(page.view(), b"abc0"));
    }

    /// What an optimistic reader may see of a page that is just being changed is any bytes at all.
    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut random = Random(0x5eed);
        let mut out = Vec::new();
        for round in 0..400 {
            let mut page = leaf(&[b"alpha", b"beta", b"gamma"]);
            let garbage = if round % 2 == 0 { PAGE_SIZE } else { 120 };
            (12..garbage).for_each(|at| page.write(at, &[random.word() as u8]));
            let view = page.view();
            let header = Header::read(view);
            for key in [&b""[..], b"beta", &[0xff; 300]] {
                black_box((search(view, key), lower_bound(view, key), child_slot(view, key)));
                black_box((child_slot_below(view, Some(key)), covers(view, key)));
            }
            for slot in [0, 1, header.count(), header.count().saturating_sub(1)] {
                out.clear();
                copy_key(view, &header, slot, &mut out);
                copy_value(view, slot, &mut out);
            }
            black_box((is_sound(view), lower_fence(view), upper_fence(view), header.free()));
        }
    }
}
