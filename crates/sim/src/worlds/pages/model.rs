//! What pages may hold: every state that each has had since the last start, and what was promised of which change.
//!
//! ```text
//!  page 7:  settled ─ change 3 ─ change 8 ─ change 9      found: the state after 8
//!                     └────── there ──────┘ └ gone         so 3 and 8 are there on each of their pages, and 9 on none
//! ```
//!
//! A change is *there* if one of its pages has it. Then all of its pages have it. What was promised is there: where
//! memory was kept whatever was committed, and where it was lost, at any time since pages were compared last, what was
//! durable; and there no change is there without those before it in the log.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_base::random::mix;
use cenote_base::{Lsn, PAGE_SIZE};

/// Parts of a page that are written by themselves; the one before them has the page's header and the last change.
pub const PARTS: usize = 15;
/// Bytes of a part.
pub const PART: usize = PAGE_SIZE / (PARTS + 1);
/// Where a page names its last change.
pub const LAST: usize = 64;

/// Which change a page was last part of, and which one each part of it stems from; 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Image {
    pub last: u64,
    pub parts: [u64; PARTS],
}

/// A page as it is read.
pub struct Bytes(pub Box<[u8]>);

impl Default for Bytes {
    fn default() -> Self {
        Self(vec![0; PAGE_SIZE].into())
    }
}

/// What `change` writes in a part of a page.
pub fn part(page: u32, part: usize, change: u64) -> [u8; PART] {
    let mut bytes = [0; PART];
    let mut word = change;
    for eight in bytes.chunks_exact_mut(8) {
        eight.copy_from_slice(&word.to_le_bytes());
        word = mix(word ^ u64::from(page) << 32 ^ part as u64);
    }
    bytes
}

impl Bytes {
    /// What the page says that it is.
    ///
    /// # Errors
    /// A part is none that a change writes.
    pub fn image(&self, page: u32) -> Result<Image, String> {
        let word = |at: usize| {
            self.0[at..at + 8]
                .iter()
                .rev()
                .fold(0u64, |w, b| w << 8 | u64::from(*b))
        };
        let mut image = Image {
            last: word(LAST),
            ..Image::default()
        };
        for (n, stamp) in image.parts.iter_mut().enumerate() {
            let at = (n + 1) * PART;
            *stamp = word(at);
            let wanted = if *stamp == 0 { [0; PART] } else { part(page, n, *stamp) };
            if self.0[at..at + PART] != wanted {
                return Err(format!("page {page}, part {n}: half of it is not of change {stamp}"));
            }
        }
        Ok(image)
    }
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Begun,
    Committed,
}

/// A mini-transaction.
#[derive(Debug)]
struct Change {
    pages: Vec<u32>,
    /// Where its redo ends; zero: it has no place.
    end: Lsn,
    told: Told,
}

/// A page's states since it was settled.
#[derive(Debug, Default)]
struct Past {
    settled: Option<Image>,
    states: Vec<Image>,
    /// So many of them are committed.
    committed: usize,
}

/// A page that a change is to write.
#[derive(Debug, Clone)]
pub struct Part {
    pub page: u32,
    /// It is made anew, empty.
    pub anew: bool,
    /// These parts are written.
    pub parts: Range<usize>,
}

/// All pages.
#[derive(Debug, Default)]
pub struct Model {
    next: u64,
    /// Since the last start, by number.
    changes: BTreeMap<u64, Change>,
    pasts: BTreeMap<u32, Past>,
    durable: Lsn,
    lost_memory: bool,
    /// How often the space beside was made.
    spare: u64,
}

impl Model {
    /// Pages that may be there, and whether they have to be.
    pub fn touched(&self) -> Vec<(u32, bool)> {
        let of = |(page, past): (&u32, &Past)| (*page, past.settled.is_some());
        self.pasts.iter().map(of).collect()
    }

    /// Whether the page can be read: it was made, and that is committed.
    pub fn is_made(&self, page: u32) -> bool {
        self.pasts
            .get(&page)
            .is_some_and(|past| past.settled.is_some() || past.committed > 0)
    }

    /// The space beside is about to be made; for which time.
    pub fn make_spare(&mut self) -> u64 {
        self.spare += 1;
        self.spare
    }

    /// How often it was made.
    pub fn spare(&self) -> u64 {
        self.spare
    }

    /// A change begins, with its pages latched; its number.
    pub fn begin(&mut self, parts: &[Part]) -> u64 {
        self.next += 1;
        let number = self.next;
        for Part { page, anew, parts } in parts {
            let past = self.pasts.entry(*page).or_default();
            let mut image = past.newest().filter(|_| !anew).unwrap_or_default();
            image.last = number;
            image.parts[parts.clone()].fill(number);
            past.states.push(image);
        }
        let change = Change {
            pages: parts.iter().map(|part| part.page).collect(),
            end: Lsn::ZERO,
            told: Told::Begun,
        };
        self.changes.insert(number, change);
        number
    }

    /// It has its place in the log.
    pub fn placed(&mut self, number: u64, end: Lsn) {
        self.changes.entry(number).and_modify(|change| change.end = end);
    }

    /// It is committed, and its pages' latches are released.
    pub fn committed(&mut self, number: u64) {
        let Some(change) = self.changes.get_mut(&number) else {
            return;
        };
        change.told = Told::Committed;
        for page in &change.pages {
            let past = self.pasts.entry(*page).or_default();
            let index = past.states.iter().position(|state| state.last == number);
            past.committed = past.committed.max(index.map_or(0, |index| index + 1));
        }
    }

    /// All redo up to there is durable.
    pub fn durable(&mut self, end: Lsn) {
        self.durable = self.durable.max(end);
    }

    /// Memory is gone, and what it had that was not durable.
    pub fn loses_memory(&mut self) {
        self.lost_memory = true;
    }

    /// States of a page that a reader who begins now may not see any more.
    pub fn committed_of(&self, page: u32) -> usize {
        self.pasts.get(&page).map_or(0, |past| past.committed)
    }

    /// Whether a reader who began when `committed` states were committed may see this.
    ///
    /// # Errors
    /// He may not.
    pub fn judge(&self, page: u32, committed: usize, image: &Image) -> Result<(), String> {
        let past = self.pasts.get(&page).ok_or(format!("page {page} was never made"))?;
        match past.find(image) {
            Some(index) if index >= committed => Ok(()),
            Some(index) => Err(format!(
                "page {page}: a reader sees its state {index}, when {committed} were committed: {image:?}"
            )),
            None => Err(format!("page {page} is in no state that it had: {image:?}")),
        }
    }

    /// Compares what a start has found, and goes on from there. What is wrong.
    pub fn settle(&mut self, found: &[(u32, Image)]) -> Vec<String> {
        let found: BTreeMap<u32, Image> = found.iter().copied().collect();
        let mut problems = Vec::new();
        let mut there = BTreeMap::new();
        for (page, past) in &self.pasts {
            let image = found.get(page).copied().unwrap_or_default();
            match past.find(&image) {
                Some(index) => past.mark(index, &mut there, *page),
                None => problems.push(format!(
                    "page {page} is in no state that it had: {image:?}, of {past:?}"
                )),
            }
        }
        if problems.is_empty() {
            problems = self.compare(&there);
        }
        for (page, past) in &mut self.pasts {
            let image = found.get(page).copied().filter(|image| image.last != 0);
            *past = Past {
                settled: image,
                ..Past::default()
            };
        }
        self.changes.clear();
        (self.durable, self.lost_memory) = (Lsn::ZERO, false);
        problems
    }

    /// `there`: the changes that were found, each with its pages that have it.
    fn compare(&self, there: &BTreeMap<u64, Vec<u32>>) -> Vec<String> {
        let mut problems = Vec::new();
        let last = there
            .keys()
            .filter_map(|n| self.changes.get(n))
            .map(|change| change.end)
            .max();
        for (number, change) in &self.changes {
            let is_there = there.get(number);
            if is_there.is_some_and(|pages| pages.len() < change.pages.len()) {
                problems.push(format!("change {number} is on {is_there:?} alone: {change:?}"));
            }
            // One that was void may lie between others.
            let is_committed = change.told == Told::Committed;
            let is_durable = change.end != Lsn::ZERO && change.end <= self.durable;
            let is_promised = is_durable || is_committed && (!self.lost_memory || Some(change.end) < last);
            if is_promised && is_there.is_none() {
                let (lost, durable) = (self.lost_memory, self.durable);
                problems.push(format!(
                    "change {number} is lost: {change:?}; memory was lost: {lost}, durable up to {durable}, there up to {last:?}"
                ));
            }
        }
        problems
    }
}

impl Past {
    fn newest(&self) -> Option<Image> {
        self.states.last().copied().or(self.settled)
    }

    /// Which state that is, from 1 on; 0: the settled one.
    fn find(&self, image: &Image) -> Option<usize> {
        if *image == self.settled.unwrap_or_default() {
            return Some(0);
        }
        self.states
            .iter()
            .position(|state| state == image)
            .map(|index| index + 1)
    }

    /// The changes up to state `index` are there, on this page.
    fn mark(&self, index: usize, there: &mut BTreeMap<u64, Vec<u32>>, page: u32) {
        for state in &self.states[..index] {
            there.entry(state.last).or_default().push(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(page: u32, parts: Range<usize>) -> Part {
        Part {
            page,
            anew: false,
            parts,
        }
    }

    /// Two changes of pages 1 and 2, of which the first is durable.
    fn two() -> (Model, Vec<Vec<(u32, Image)>>) {
        let mut model = Model::default();
        let mut seen = vec![Vec::new()];
        for (n, end) in [(0usize, 100), (1, 200)] {
            let number = model.begin(&[over(1, n..n + 1), over(2, 0..15)]);
            model.placed(number, Lsn::from_raw(end));
            model.committed(number);
            seen.push(
                [1, 2]
                    .map(|page| (page, model.pasts[&page].newest().expect("begun")))
                    .to_vec(),
            );
        }
        model.durable(Lsn::from_raw(100));
        (model, seen)
    }

    #[test]
    fn what_was_promised_has_to_be_there() {
        let problems = |state: usize, lost_memory: bool| {
            let (mut model, seen) = two();
            model.lost_memory = lost_memory;
            model.settle(&seen[state]).len()
        };
        assert_eq!(problems(2, false), 0);
        assert_eq!(problems(1, false), 1, "the second was committed");
        assert_eq!(problems(1, true), 0);
        assert_eq!(problems(0, true), 1, "the first was durable");
    }

    #[test]
    fn a_change_is_on_all_of_its_pages() {
        let (mut model, seen) = two();
        let problems = model.settle(&[seen[2][0], seen[1][1]]);
        assert!(problems[0].contains("alone"), "{problems:?}");
    }

    #[test]
    fn a_reader_sees_what_was_committed_before() {
        let (model, seen) = two();
        assert_eq!(model.judge(1, 2, &seen[2][0].1), Ok(()));
        assert!(model.judge(1, 2, &seen[1][0].1).is_err());
        let mixed = Image {
            last: 2,
            ..seen[1][0].1
        };
        assert!(model.judge(1, 0, &mixed).is_err());
    }

    #[test]
    fn a_page_says_what_it_holds() {
        let mut bytes = Bytes::default();
        bytes.0[PART..2 * PART].copy_from_slice(&part(3, 0, 9));
        assert_eq!(bytes.image(3).map(|image| image.parts[0]), Ok(9));
        assert!(bytes.image(4).is_err(), "it is page 3's");
        bytes.0[PART + 800] ^= 1;
        assert!(bytes.image(3).is_err());
    }
}
