//! A host's cache, as plain state: which lines are in it, which hold changes, which are on their way to memory.
//!
//! A line of any view is a number (its *id*): each view has a range of ids, and each id two bytes of tag. They are all
//! that a hit looks at. Beside it, the ways of each set say which lines take up its room: they are looked at on a miss
//! only.
//!
//! ```text
//!            fetch                    touch, write             write_back (noted with its bytes)
//!  absent ──────────▶ PRESENT ──────────────────────▶ DIRTY ─────────────────────────▶ PENDING
//!    ▲                   │ dropped                      │ evicted: to memory             │ fence: the noted bytes
//!    └───────────────────┴──────────────────────────────┴────────────────────────────────┘ to memory; PRESENT
//! ```
//!
//! Invariants:
//! - a line is in the cache if and only if its tag says PRESENT; a way may name a line that no longer is;
//! - PENDING lines are named by a note of at least one thread; notes name PENDING lines only;
//! - memory never goes back: bytes noted earlier than what memory holds by this host are void.

use super::maps::{Map, Window};
use std::io;

/// A line number among all lines of a host's views.
pub(crate) type Id = u32;

/// The bytes of a line.
pub(crate) type Bytes = [u8; 64];

/// In the cache.
pub(crate) const PRESENT: Tag = 1;
/// With changes that memory has not.
pub(crate) const DIRTY: Tag = 2;
/// Used since the victim's hand passed.
pub(crate) const USED: Tag = 4;
/// Being written back: a note has its bytes.
pub(crate) const PENDING: Tag = 8;
/// Memory has changed since it was fetched.
pub(crate) const STALE: Tag = 16;
/// Which cores have the line: see [`super::state`], `sharing`.
pub(crate) const OWNER: Tag = !31;
/// In place of an owner: cores that the table of shared lines names.
pub(crate) const SOME: Tag = OWNER;
const OWNER_BITS: u32 = 5;
const CORES: u32 = 2046;

/// The state of a line in a host's cache.
pub(crate) type Tag = u16;

/// The bits of [`OWNER`] that name a core, which has the line to itself; no bits: any core may have it. 2046 cores are
/// told apart.
pub(crate) const fn owner(core: u32) -> Tag {
    ((core % CORES + 1) as Tag) << OWNER_BITS
}

/// The core that an owner is, as one of the bits of a set.
pub(crate) fn core_bit(owner: Tag) -> u128 {
    1 << (u32::from(owner >> OWNER_BITS).saturating_sub(1) % u128::BITS)
}

const TAG_BYTES: usize = size_of::<Tag>();

/// The tags of a view's lines, for the view to look at.
#[derive(Debug)]
pub(crate) struct Tags(Window<TAG_BYTES>);

impl Tags {
    /// Whether the tags of all lines pass, from line `first` of the view to line `last`.
    #[inline(always)]
    pub(crate) fn all(&self, first: u64, last: u64, pass: impl Fn(Tag) -> bool) -> bool {
        self.0
            .all(first as usize, last as usize, |bytes| pass(Tag::from_ne_bytes(bytes)))
    }
}

/// Ids are given in multiples of this, so that a table of them tells the view.
const CHUNK: u32 = 1 << 14;

/// A line on its way to memory.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    pub id: Id,
    /// When it was noted, counted by the host.
    pub at: u64,
    pub bytes: Bytes,
}

fn within((first, last): (Id, Id), id: Id) -> bool {
    (first..=last).contains(&id)
}

/// The cache of one host.
#[derive(Debug)]
pub(crate) struct Cache {
    /// By id.
    tags: Map,
    /// Lines by set and way, plus one; 0: free.
    ways: Vec<u32>,
    /// By set: the way that is looked at next.
    hands: Vec<u16>,
    ways_each: u32,
    set_bits: u32,
    /// Lines for which no way was free, since the access under way needs all of them.
    beyond: Vec<Id>,
    /// The view of each chunk of ids.
    owners: Vec<u32>,
    /// Ranges of ids that are free again: first, count.
    free: Vec<(Id, u32)>,
    /// By thread slot.
    notes: Vec<Vec<Note>>,
    noted: u64,
}

impl Cache {
    /// An empty cache of `lines` lines.
    pub(crate) fn new(lines: u64, ways: u32) -> io::Result<Self> {
        let sets = (lines / u64::from(ways)) as u32;
        Ok(Self {
            tags: Map::wide_zeros((1 << Id::BITS) * TAG_BYTES)?,
            ways: vec![0; (sets * ways) as usize],
            hands: vec![0; sets as usize],
            ways_each: ways,
            set_bits: sets.trailing_zeros(),
            beyond: Vec::new(),
            owners: Vec::new(),
            free: Vec::new(),
            notes: Vec::new(),
            noted: 0,
        })
    }

    // ---- ids ----

    /// Ids for a view of `lines` lines.
    pub(crate) fn take_ids(&mut self, lines: u64, view: u32) -> io::Result<Id> {
        let count = u32::try_from(lines.next_multiple_of(u64::from(CHUNK))).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let free = self.free.iter().position(|(_, n)| *n >= count);
        let first = match free {
            Some(at) => {
                let (first, n) = self.free[at];
                self.free[at] = (first + count, n - count);
                first
            }
            None => {
                let first = self.owners.len() as u64 * u64::from(CHUNK);
                if first + u64::from(count) > 1 << 32 {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                let chunks = (count / CHUNK) as usize;
                self.owners.extend(std::iter::repeat_n(u32::MAX, chunks));
                first as Id
            }
        };
        self.owners[(first / CHUNK) as usize..][..(count / CHUNK) as usize].fill(view);
        Ok(first)
    }

    /// The view is gone, and none of its lines is in the cache.
    pub(crate) fn give_ids(&mut self, first: Id, lines: u64) {
        let count = lines.next_multiple_of(u64::from(CHUNK)) as u32;
        self.owners[(first / CHUNK) as usize..][..(count / CHUNK) as usize].fill(u32::MAX);
        self.free.push((first, count));
    }

    /// The view that a line is of.
    pub(crate) fn view_of(&self, id: Id) -> u32 {
        self.owners[(id / CHUNK) as usize]
    }

    // ---- tags ----

    /// The tags of `lines` lines, for as long as the cache lives.
    pub(crate) fn tags(&self, first: Id, lines: u64) -> Tags {
        Tags(self.tags.window(first as usize, lines as usize))
    }

    pub(crate) fn tag(&self, id: Id) -> Tag {
        Tag::from_ne_bytes(self.tags.read(id as usize * TAG_BYTES))
    }

    pub(crate) fn set_tag(&mut self, id: Id, tag: Tag) {
        self.tags.write(id as usize * TAG_BYTES, tag.to_ne_bytes());
    }

    pub(crate) fn has(&self, id: Id, bits: Tag) -> bool {
        self.tag(id) & bits != 0
    }

    // ---- room ----

    /// Neighbours fall into different sets.
    fn set_of(&self, id: Id) -> usize {
        let upper = (u64::from(id) >> self.set_bits) as u32;
        (id.wrapping_add(upper.wrapping_mul(7)) & ((1 << self.set_bits) - 1)) as usize
    }

    /// A line comes in: which line must leave for it, if one must. Lines `keep` are not asked to. (A line that left and
    /// comes again may be named by two ways: the one that is met first frees it, the other is found free then.)
    pub(crate) fn make_room(&mut self, id: Id, keep: (Id, Id)) -> Option<Id> {
        let set = self.set_of(id);
        let Some(way) = self.way_for(set, keep) else {
            self.beyond.push(id);
            return None;
        };
        let at = set * self.ways_each as usize + way;
        let before = std::mem::replace(&mut self.ways[at], id + 1);
        before.checked_sub(1).filter(|victim| self.has(*victim, PRESENT))
    }

    /// A free way, or the one whose line was not used for longest, about: the hand passes those that were, and takes
    /// their mark.
    fn way_for(&mut self, set: usize, keep: (Id, Id)) -> Option<usize> {
        let (at, each) = (set * self.ways_each as usize, self.ways_each as usize);
        let mut first = None;
        for _ in 0..=each {
            let way = self.hands[set] as usize;
            self.hands[set] = if way + 1 == each { 0 } else { way as u16 + 1 };
            let Some(id) = self.ways[at + way].checked_sub(1) else {
                return Some(way);
            };
            let tag = self.tag(id);
            if tag & PRESENT == 0 {
                return Some(way);
            }
            if within(keep, id) {
                continue;
            }
            if tag & USED == 0 {
                return Some(way);
            }
            self.set_tag(id, tag & !USED);
            first = first.or(Some(way));
        }
        first
    }

    /// A line beyond the ways, which must leave now.
    pub(crate) fn overdue(&mut self) -> Option<Id> {
        self.beyond.pop()
    }

    /// A line of the cache, drawn by a random word.
    pub(crate) fn any(&self, draw: u64) -> Option<Id> {
        let id = self.ways[(draw % self.ways.len() as u64) as usize].checked_sub(1)?;
        self.has(id, PRESENT).then_some(id)
    }

    /// Every line in the cache.
    pub(crate) fn present(&self) -> Vec<Id> {
        let ways = self.ways.iter().filter_map(|way| way.checked_sub(1));
        let mut ids: Vec<Id> = ways
            .chain(self.beyond.iter().copied())
            .filter(|id| self.has(*id, PRESENT))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The cache is empty, and nothing is on its way.
    pub(crate) fn clear(&mut self) {
        for id in self.present() {
            self.set_tag(id, 0);
        }
        self.ways.fill(0);
        self.beyond.clear();
        self.notes.clear();
    }

    // ---- notes ----

    /// A thread writes a line back.
    pub(crate) fn note(&mut self, thread: usize, id: Id, bytes: Bytes) {
        if self.notes.len() <= thread {
            self.notes.resize_with(thread + 1, Vec::new);
        }
        self.noted += 1;
        let at = self.noted;
        self.notes[thread].push(Note { id, at, bytes });
        let tag = self.tag(id);
        self.set_tag(id, tag & !DIRTY | PENDING);
    }

    /// What a thread has noted, oldest first; of a line noted more than once the newest bytes, which are those that
    /// count.
    pub(crate) fn take_notes(&mut self, thread: usize) -> Vec<Note> {
        let mut notes = self.notes.get_mut(thread).map(std::mem::take).unwrap_or_default();
        // Most often lines are noted in their order, once.
        if !notes.is_sorted_by_key(|n| n.id) || notes.windows(2).any(|two| two[0].id == two[1].id) {
            notes.sort_by_key(|n| (n.id, std::cmp::Reverse(n.at)));
            notes.dedup_by_key(|n| n.id);
        }
        notes
    }

    /// Gives an emptied list back, for its room.
    pub(crate) fn keep_room(&mut self, thread: usize, mut notes: Vec<Note>) {
        notes.clear();
        self.notes[thread] = notes;
    }

    /// A note has reached memory: those of its line that are older are void.
    pub(crate) fn reached(&mut self, id: Id, at: u64) {
        let mut left = false;
        for notes in self.notes.iter_mut().filter(|n| !n.is_empty()) {
            notes.retain(|n| n.id != id || n.at > at);
            left |= notes.iter().any(|n| n.id == id);
        }
        if !left {
            let tag = self.tag(id);
            self.set_tag(id, tag & !PENDING);
        }
    }

    /// The newest note of each line, in the order of ids: what may be on its way when the host is lost.
    pub(crate) fn under_way(&self) -> Vec<Note> {
        let mut notes: Vec<Note> = self.notes.iter().flatten().cloned().collect();
        notes.sort_unstable_by_key(|n| (n.id, n.at));
        notes
    }
}
