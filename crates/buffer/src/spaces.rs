//! The frames of each space: what a space that goes away has in memory is found without a walk over all descriptors.
//!
//! Frames are divided into blocks of 16,384. Within a block the frames with a page of the same space are a list, linked
//! both ways by 16-bit indices in memory of the process.
//!
//! ```text
//!  block 0   space 7: 3 ⇄ 90 ⇄ 14        block 1   space 7: 16400 ⇄ 16385
//!            space 9: 4
//! ```
//!
//! Invariants:
//! - a frame is on the list of its page's space from when its key is stored until its key is cleared, give or take the
//!   moment in between: it is entered after the one and taken off after the other, both under its exclusive latch;
//! - so a thread that enters a frame that it found, without the latch, reads the key under the block's lock: what it
//!   enters is taken off again by the thread that clears that key.
//!
//! Cost: 4 bytes a frame that was ever used (256 MiB for 64 M frames, 1 TiB of pages); a lock and two or three stores
//! when a page comes into a frame or leaves it. A space's frames are met in the order of blocks: one lock and one look
//! in a table for each block.
//!
//! Lock order: a block is locked under anything, and nothing under it.

use cenote_base::rt::{HashMap, Mutex};

use crate::hash::page_of;
use crate::index::FrameIndex;

/// Frames of a block.
const FRAMES: u32 = 1 << 14;
/// No frame: the end of a list.
const NONE: u16 = u16::MAX;
/// In place of the one before: the frame is on no list.
const OFF: u16 = u16::MAX - 1;

const _: () = assert!(FRAMES < OFF as u32, "an index in a block is told from both marks");

#[derive(Debug, Clone, Copy)]
struct Link {
    next: u16,
    prev: u16,
}

/// The frames of a space in a block.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u16,
    count: u16,
}

#[derive(Default)]
struct Block {
    /// By space; those that have frames here.
    lists: HashMap<u32, List>,
    /// As long as the highest frame that was ever on a list asked for.
    links: Vec<Link>,
}

/// See the module.
pub struct SpaceFrames {
    blocks: Box<[Mutex<Block>]>,
}

impl SpaceFrames {
    /// For so many frames.
    pub fn new(frames: u32) -> Self {
        let blocks = (0..frames.div_ceil(FRAMES)).map(|_| Mutex::default());
        Self {
            blocks: blocks.collect(),
        }
    }

    fn block(&self, frame: FrameIndex) -> (&Mutex<Block>, u16) {
        let frame = frame.raw();
        (&self.blocks[(frame / FRAMES) as usize], (frame % FRAMES) as u16)
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Enters `frame` by the key that `key` reads; nothing happens if there is none, or if it is entered.
    pub fn enter(&self, frame: FrameIndex, key: impl Fn() -> u64) {
        let (block, at) = self.block(frame);
        let mut block = block.lock();
        match key() {
            0 => {}
            key => block.enter(at, page_of(key).space),
        }
    }

    /// Takes `frame`, whose page was one of `space`, off its list; nothing happens if it is on none.
    pub fn leave(&self, frame: FrameIndex, space: u32) {
        let (block, at) = self.block(frame);
        block.lock().leave(at, space);
    }

    /// How many frames `space` has in a block.
    pub fn count(&self, block: usize, space: u32) -> usize {
        let block = self.blocks[block].lock();
        block.lists.get(&space).map_or(0, |list| list.count as usize)
    }

    /// The frames of `space` in a block.
    pub fn of_block(&self, block: usize, space: u32) -> Vec<FrameIndex> {
        let from = block as u32 * FRAMES;
        let block = self.blocks[block].lock();
        let first = block.lists.get(&space).map(|list| list.first);
        let next = |at: &u16| Some(block.links[*at as usize].next).filter(|next| *next != NONE);
        std::iter::successors(first, next)
            .map(|at| FrameIndex::new(from + u32::from(at)))
            .collect()
    }

    /// Forgets all; at a start.
    pub fn clear(&self) {
        self.blocks.iter().for_each(|block| *block.lock() = Block::default());
    }
}

impl Block {
    fn enter(&mut self, at: u16, space: u32) {
        assert!(u32::from(at) < FRAMES, "frame {at} is in its block");
        if self.links.len() <= at as usize {
            self.links.resize(at as usize + 1, Link { next: NONE, prev: OFF });
        }
        if self.links[at as usize].prev != OFF {
            return;
        }
        let list = self.lists.entry(space).or_insert(List { first: NONE, count: 0 });
        let next = std::mem::replace(&mut list.first, at);
        list.count += 1;
        self.links[at as usize] = Link { next, prev: NONE };
        if next != NONE {
            let second = &mut self.links[next as usize];
            assert!(second.prev == NONE, "no frame is before the first of a space's list");
            second.prev = at;
        }
    }

    fn leave(&mut self, at: u16, space: u32) {
        let Some(link) = self.links.get(at as usize).copied().filter(|link| link.prev != OFF) else {
            return;
        };
        if let Some(list) = self.lists.get_mut(&space) {
            list.count = list.count.saturating_sub(1);
        }
        if link.next != NONE {
            let next = &mut self.links[link.next as usize];
            assert!(
                next.prev == at,
                "the next frame of a space's list names the one before it"
            );
            next.prev = link.prev;
        }
        match link.prev {
            NONE => self.begin_at(space, at, link.next),
            prev => {
                let prev = &mut self.links[prev as usize];
                assert!(prev.next == at, "the frame before names the next one of a space's list");
                prev.next = link.next;
            }
        }
        self.links[at as usize] = Link { next: NONE, prev: OFF };
    }

    /// The list of `space` that began at `was` begins at `next`. Should a descriptor have been damaged since, its key
    /// names another space: then the list is searched for.
    fn begin_at(&mut self, space: u32, was: u16, next: u16) {
        let begins = |list: &List| list.first == was;
        let owner = match self.lists.get(&space).is_some_and(begins) {
            true => Some(space),
            false => self
                .lists
                .iter()
                .find(|(_, list)| begins(list))
                .map(|(space, _)| *space),
        };
        let owner = owner.expect("a frame with none before it begins a space's list");
        match next {
            NONE => drop(self.lists.remove(&owner)),
            next => {
                if let Some(list) = self.lists.get_mut(&owner) {
                    list.first = next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_base::PageId;

    use super::*;
    use crate::hash::key_of;
    use cenote_base::random::Random;

    #[test]
    fn frames_are_found_by_space() {
        let (seed, frames) = (99u64, 3 * FRAMES);
        let (lists, mut random) = (SpaceFrames::new(frames), Random(seed));
        let mut held: HashMap<FrameIndex, u32> = HashMap::default();
        let mut draw = |below: u32| random.below(u64::from(below)) as u32;
        for step in 0..200_000 {
            // Few frames, so that they come and go; the first and the last of each block among them.
            let frame = FrameIndex::new(draw(3) * FRAMES + [draw(40), FRAMES - 1 - draw(40)][draw(2) as usize]);
            match held.remove(&frame) {
                Some(space) => lists.leave(frame, space),
                None => {
                    let space = draw(5);
                    lists.enter(frame, || key_of(PageId::new(space, step)));
                    lists.enter(frame, || key_of(PageId::new(space, step)));
                    held.insert(frame, space);
                }
            }
            if step % 1000 == 0 {
                let space = draw(5);
                let mut found: Vec<FrameIndex> = (0..lists.blocks()).flat_map(|b| lists.of_block(b, space)).collect();
                found.sort_unstable();
                let mut expected: Vec<FrameIndex> =
                    held.iter().filter(|(_, s)| **s == space).map(|(f, _)| *f).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "seed {seed}, step {step}, space {space}");
            }
        }
        lists.enter(FrameIndex::new(1), || 0);
        lists.leave(FrameIndex::new(2 * FRAMES), 77);
    }
}
