//! What is known of snapshots: which there are, and the pages that they have.
//!
//! ```text
//!   asked for ── answered, or listed ──▶ kept ── a drop begins ──▶ leaving ── answered ──▶ gone
//!       └── it may be there, or come later, as of a later position
//! ```
//!
//! One that was answered to the start that has the database is as of where that one's log ends. One that was not
//! answered is as of its end, if that tells its pages: no space was made or dropped there since it was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_base::crc::crc32c;
use cenote_base::page_io::PageRead;
use cenote_base::random::Random;
use cenote_base::{Error, Lsn, PageId};
use cenote_storage::nodes::PageAnswer;
use cenote_storage_node::Snapshot;

/// Snapshots at a time.
const MOST: usize = 4;

/// The database as of a position.
#[derive(Debug)]
pub(super) struct State {
    pub spaces: BTreeSet<u32>,
    /// Checksums of the pages.
    pub pages: BTreeMap<PageId, u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    Asked,
    Kept,
    Leaving,
    Gone,
}

#[derive(Debug)]
struct Known {
    stand: Stand,
    /// Once it is known to be there.
    number: u64,
    end: Lsn,
    /// `None`: its pages are not known.
    state: Option<Arc<State>>,
    /// How many have begun to drop it.
    leavers: u32,
}

/// All that were ever asked for, by name, and where a space was made or dropped last.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    known: BTreeMap<String, Known>,
    spaces_changed: Lsn,
}

/// What was known before a look at all.
#[derive(Debug)]
pub(super) struct Before {
    kept: Vec<String>,
    gone: Vec<String>,
}

/// Pages of a snapshot that are to be read.
#[derive(Debug, Clone)]
pub(super) struct Look {
    name: String,
    pub number: u64,
    pub pages: Vec<PageId>,
    state: Arc<State>,
}

impl Look {
    pub fn spaces(&self) -> &BTreeSet<u32> {
        &self.state.spaces
    }
}

impl Snapshots {
    // ---- they come ----

    /// Whether there are as many as are wanted.
    pub fn are_enough(&self) -> bool {
        let is_there = |known: &&Known| matches!(known.stand, Stand::Kept | Stand::Leaving);
        self.known.values().filter(is_there).count() >= MOST
    }

    /// One is asked for, where the log ends at `end`.
    pub fn ask(&mut self, name: &str, end: Lsn, state: State) {
        let known = Known {
            stand: Stand::Asked,
            number: 0,
            end,
            state: Some(Arc::new(state)),
            leavers: 0,
        };
        let before = self.known.insert(name.to_owned(), known);
        assert!(before.is_none(), "each has a name of its own");
    }

    /// A space is made or dropped where the log ends.
    pub fn leave_spaces(&mut self, end: Lsn) {
        self.spaces_changed = end;
        let asked = |known: &&mut Known| known.stand == Stand::Asked && known.end == end;
        for known in self.known.values_mut().filter(asked) {
            known.state = None;
        }
    }

    /// Whether the pages as of `end` are those of the spaces that there are.
    pub fn tells(&self, end: Lsn) -> bool {
        end > self.spaces_changed
    }

    /// A snapshot is there, and the log ends at `log_end`. `state`: as of the snapshot's end, if that tells.
    pub fn found(&mut self, found: &Snapshot, log_end: Lsn, state: Option<State>) -> Option<String> {
        let Some(known) = self.known.get_mut(&found.name) else {
            return Some(format!("snapshot {} is there, for which none has asked", found.name));
        };
        if found.end < known.end || found.end > log_end {
            return Some(format!(
                "snapshot {} is as of {}: it was asked for at {}, and the log ends at {log_end}",
                found.name, found.end, known.end
            ));
        }
        if known.stand == Stand::Asked {
            if found.end > known.end || known.state.is_none() {
                known.state = state.map(Arc::new);
            }
            (known.stand, known.number, known.end) = (Stand::Kept, found.number, found.end);
        }
        ((known.number, known.end) != (found.number, found.end)).then(|| {
            format!(
                "snapshot {} is number {} as of {}, it was {} as of {}",
                found.name, found.number, found.end, known.number, known.end
            )
        })
    }

    // ---- which there are ----

    pub fn before(&self) -> Before {
        let of = |stand: Stand| {
            let all = self.known.iter();
            all.filter(|(_, known)| known.stand == stand)
                .map(|(name, _)| name.clone())
                .collect()
        };
        Before {
            kept: of(Stand::Kept),
            gone: of(Stand::Gone),
        }
    }

    /// Whether one that is there must not be.
    pub fn came_back(&self, before: &Before, found: &Snapshot) -> Option<String> {
        let name = &found.name;
        before
            .gone
            .contains(name)
            .then(|| format!("snapshot {name} is there, and was dropped"))
    }

    /// What is missing where all that there are were told, behind `before`.
    pub fn missing(&self, before: &Before, found: &[Snapshot]) -> Vec<String> {
        let is_kept = |name: &&String| self.known[*name].stand == Stand::Kept;
        let is_there = |name: &&String| found.iter().any(|snapshot| snapshot.name == **name);
        let missing = before.kept.iter().filter(is_kept).filter(|name| !is_there(name));
        missing
            .map(|name| format!("snapshot {name} is not there, and none has dropped it"))
            .collect()
    }

    // ---- they go ----

    /// Somebody drops one of them.
    pub fn begin_leaving(&mut self, draw: &mut Random) -> Option<String> {
        let is_there = |known: &Known| matches!(known.stand, Stand::Kept | Stand::Leaving);
        let all = self.known.iter_mut();
        let mut there: Vec<_> = all.filter(|(_, known)| is_there(known)).collect();
        if there.is_empty() {
            return None;
        }
        let (name, known) = there.swap_remove(draw.index(there.len()));
        known.stand = Stand::Leaving;
        known.leavers += 1;
        Some(name.clone())
    }

    /// Whether more than one have begun to drop it.
    pub fn has_leavers(&self, name: &str) -> bool {
        self.known[name].leavers > 1
    }

    pub fn end_leaving(&mut self, name: &str) {
        if let Some(known) = self.known.get_mut(name) {
            known.stand = Stand::Gone;
        }
    }

    // ---- their pages ----

    /// Whether a snapshot has the space.
    pub fn have(&self, space: u32) -> bool {
        let has = |known: &Known| {
            known.stand == Stand::Kept && known.state.as_ref().is_some_and(|state| state.spaces.contains(&space))
        };
        self.known.values().any(has)
    }

    fn looks(&self) -> impl Iterator<Item = Look> + '_ {
        let kept = |known: &&(&String, &Known)| known.1.stand == Stand::Kept;
        self.known
            .iter()
            .filter(move |known| kept(&known))
            .filter_map(|(name, known)| {
                Some(Look {
                    name: name.clone(),
                    number: known.number,
                    pages: Vec::new(),
                    state: Arc::clone(known.state.as_ref()?),
                })
            })
    }

    /// Some pages of one, of `pages` in a space, also of the spaces up to `spaces` that it does not have.
    pub fn any_look(&self, spaces: u32, pages: u64, draw: &mut Random) -> Option<Look> {
        let mut looks: Vec<Look> = self.looks().collect();
        if looks.is_empty() {
            return None;
        }
        let mut look = looks.swap_remove(draw.index(looks.len()));
        for _ in 0..draw.pick(&[1, 4, 10, 30]) {
            let space = match draw.one_in(10) || look.state.spaces.is_empty() {
                true => 7 + draw.below(u64::from(spaces)) as u32,
                false => draw.pick(&look.state.spaces.iter().copied().collect::<Vec<u32>>()),
            };
            let page = draw.below(pages + 1) as u32;
            look.pages.push(PageId::new(space, page));
        }
        Some(look)
    }

    /// Every page of each, and one in each space that is never written.
    pub fn all_looks(&self, pages: u64) -> Vec<Look> {
        let mut looks: Vec<Look> = self.looks().collect();
        for look in &mut looks {
            let spaces = look.state.spaces.iter();
            let all = spaces.flat_map(|space| (0..=pages).map(|page| PageId::new(*space, page as u32)));
            look.pages = all.collect();
        }
        looks
    }

    /// Whether it may be gone.
    pub fn is_leaving(&self, look: &Look) -> bool {
        self.known[&look.name].stand != Stand::Kept
    }

    /// What is wrong with an answer.
    pub fn saw(&self, look: &Look, n: usize, answer: &PageAnswer) -> Option<String> {
        let id = look.pages[n];
        let wrong = |what: &str| Some(format!("page {id} of snapshot {} ({}): {what}", look.name, look.number));
        let sum = look.state.pages.get(&id);
        let has_space = look.state.spaces.contains(&id.space);
        match (answer, sum) {
            (Err(Error::Invalid(_)), None) if !has_space => None,
            (Err(error), _) => wrong(&error.to_string()),
            (Ok(_), _) if !has_space => wrong("it has no such space"),
            (Ok((_, PageRead::NeverWritten)), None) => None,
            (Ok((_, PageRead::NeverWritten)), Some(_)) => wrong("it is said not to be written"),
            (Ok((bytes, _)), Some(sum)) if crc32c(bytes) == *sum => None,
            (Ok((bytes, _)), _) => wrong(&format!(
                "it is not what it was: as of {}",
                cenote_storage::redo::page_lsn(bytes)
            )),
        }
    }
}
