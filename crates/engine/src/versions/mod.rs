//! Versions that old snapshots see, in DRAM and in the order of keys: a scan by an old snapshot reads them here, not
//! record by record from undo.
//!
//! 1. Purge's look at undo records (`purge::cut`) meets each record once, in the order of its segment. A record whose
//!    change committed behind a snapshot in use, and which holds a version committed before it, holds what that
//!    snapshot sees of the row. The version is copied here, with the *interval* of snapshots that see it.
//! 2. A round's versions become a *run*: sorted by key, and not changed any more. Runs of like length are merged, so a
//!    space has few.
//! 3. A reader that does not see a row's newest version asks the runs of its space for the key. It remembers where each
//!    run's last key was (a `Finger`), so a scan goes through the runs as it goes through the rows. What is not here is
//!    found by the walk through undo, as before.
//!
//! Invariants:
//! - A version is here with the interval [commit that made it, commit that ended it). Both are final: commits are not
//!   taken back, and a row's versions commit in their order. So a snapshot sees the version whose interval it lies in
//!   and that ends first, whichever snapshots were in use when it was copied. (Of a commit that all snapshots in use
//!   see, the time is not known: such an interval begins too early, for snapshots that are gone.)
//! - A snapshot in use keeps purge from the record of each version that it sees, so large values that a version here
//!   names are there for as long as a reader may find it.
//! - Nothing has to be here. What finds no room, or was not looked at yet, is read from undo.
//! - One thread adds and trims: the one that has the round of purge. Readers hold the runs that they ask.

mod run;
#[cfg(test)]
mod tests;

use cenote_base::Cts;
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use run::Run;
pub(crate) use run::{Builder, Interval};
use std::sync::Arc;

/// A run is merged with the one before it if that is at most so many times as long.
const RATIO: usize = 4;

/// Runs of a space, the oldest and longest first.
type Runs = Arc<Vec<Arc<Run>>>;

/// See the module.
pub(crate) struct VersionStore {
    /// Bytes that versions may take. While runs are merged, as much again is needed for them.
    limit: usize,
    /// Bytes that they take.
    bytes: AtomicU64,
    /// The greatest end of an interval: snapshots from here on find nothing. Zero: there is no version.
    until: AtomicU64,
    spaces: rt::Mutex<HashMap<u32, Runs>>,
    /// Snapshots that were in use when versions were last dropped.
    trimmed_by: rt::Mutex<Vec<Cts>>,
}

/// Versions that a round of purge has met.
#[derive(Default)]
pub(crate) struct Gathered {
    spaces: HashMap<u32, Builder>,
    bytes: usize,
    /// Some found no room.
    overflowed: bool,
}

impl Gathered {
    /// Copies a version of the row under `key` of a table.
    pub(crate) fn add(&mut self, store: &VersionStore, space: u32, key: &[u8], row: Option<&[u8]>, interval: Interval) {
        let bytes = Builder::bytes_of(key, row);
        if store.bytes() + self.bytes + bytes > store.limit {
            self.overflowed = true;
            return;
        }
        self.bytes += bytes;
        self.spaces.entry(space).or_default().push(key, row, interval);
    }
}

impl VersionStore {
    /// For so many bytes.
    pub(crate) fn new(limit: usize) -> VersionStore {
        VersionStore {
            limit,
            bytes: AtomicU64::new(0),
            until: AtomicU64::new(0),
            spaces: rt::Mutex::default(),
            trimmed_by: rt::Mutex::default(),
        }
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    /// Whether a version may be here that this snapshot sees.
    #[inline]
    fn reaches(&self, snapshot: Cts) -> bool {
        snapshot.raw() < self.until.load(Ordering::Acquire)
    }

    fn runs(&self, space: u32) -> Option<Runs> {
        self.spaces.lock().get(&space).cloned()
    }

    /// What a snapshot sees of one row: false: no row; None: not known here.
    #[cfg(test)]
    pub(crate) fn get(&self, space: u32, key: &[u8], snapshot: Cts, row: &mut Vec<u8>) -> Option<bool> {
        Finger::default().get(self, space, key, snapshot, row)
    }

    /// Takes over what a round has met. `snapshots` are those in use, rising; `is_needed` says of an interval whether
    /// one may be in it.
    pub(crate) fn take(&self, gathered: Gathered, snapshots: &[Cts], is_needed: &dyn Fn(Interval) -> bool) {
        for (space, new) in gathered.spaces {
            let mut runs = self.runs(space).map_or_else(Vec::new, |runs| runs.to_vec());
            runs.push(Arc::new(new.finish()));
            while let [.., older, newer] = &runs[..]
                && older.len() <= RATIO * newer.len()
            {
                let merged = Run::merge(older, newer, is_needed);
                runs.truncate(runs.len() - 2);
                runs.push(Arc::new(merged));
            }
            self.publish(space, runs);
        }
        self.note_size(&self.spaces.lock());
        // Those from `until` on see nothing here, and change with each round.
        let asking = &snapshots[..snapshots.partition_point(|snapshot| self.reaches(*snapshot))];
        let mut trimmed_by = self.trimmed_by.lock();
        let went = trimmed_by.first() != asking.first();
        if (went || gathered.overflowed) && trimmed_by[..] != *asking {
            self.trim(is_needed);
            self.note_size(&self.spaces.lock());
            trimmed_by.clear();
            trimmed_by.extend_from_slice(asking);
        }
    }

    /// Drops the versions that are not needed any more.
    fn trim(&self, is_needed: &dyn Fn(Interval) -> bool) {
        let all: Vec<(u32, Runs)> = self
            .spaces
            .lock()
            .iter()
            .map(|(space, runs)| (*space, runs.clone()))
            .collect();
        for (space, runs) in all {
            let merged = runs
                .iter()
                .rev()
                .fold(Run::default(), |newer, older| Run::merge(older, &newer, is_needed));
            self.publish(space, vec![Arc::new(merged)]);
        }
    }

    /// No snapshot in use, or to come, is older than `horizon`.
    pub(crate) fn forget_past(&self, horizon: Cts) {
        let until = self.until.load(Ordering::Acquire);
        if until == 0 || horizon.raw() < until {
            return;
        }
        let past = std::mem::take(&mut *self.spaces.lock());
        self.note_size(&HashMap::default());
        drop(past);
    }

    /// Readers find these runs from now on; the store's size is to be noted behind it.
    fn publish(&self, space: u32, mut runs: Vec<Arc<Run>>) {
        runs.retain(|run| run.len() > 0);
        let mut spaces = self.spaces.lock();
        let before = match runs.is_empty() {
            true => spaces.remove(&space),
            false => spaces.insert(space, Arc::new(runs)),
        };
        drop(spaces);
        drop(before);
    }

    fn note_size(&self, spaces: &HashMap<u32, Runs>) {
        let runs = || spaces.values().flat_map(|runs| runs.iter());
        let bytes: usize = runs().map(|run| run.bytes()).sum();
        self.bytes.store(bytes as u64, Ordering::Relaxed);
        let until = runs().map(|run| run.until()).max().unwrap_or_default();
        self.until.store(until.raw(), Ordering::Release);
    }
}

/// Where a reader's last key was in the runs of a space. It makes look-ups in the order of keys cheap; of other orders
/// each costs a search.
#[derive(Default)]
pub(crate) struct Finger {
    /// The runs, from the first look-up since `let_go` on.
    runs: Option<Runs>,
    places: Vec<usize>,
}

impl Finger {
    /// The runs may be dropped, or merged, before the next look-up.
    #[inline]
    pub(crate) fn let_go(&mut self) {
        self.runs = None;
    }

    /// Puts into `row` what the snapshot sees of the row under `key`, of the same space at each call; false: no row;
    /// None: not known here.
    pub(crate) fn get(
        &mut self,
        store: &VersionStore,
        space: u32,
        key: &[u8],
        snapshot: Cts,
        row: &mut Vec<u8>,
    ) -> Option<bool> {
        if self.runs.is_none() {
            if !store.reaches(snapshot) {
                return None;
            }
            self.runs = Some(store.runs(space)?);
        }
        let runs = self.runs.as_ref()?;
        self.places.resize(runs.len(), 0);
        let probe = run::Probe::new(key, snapshot);
        let found = runs
            .iter()
            .zip(&mut self.places)
            .find_map(|(run, place)| run.find(&probe, place))?;
        row.clear();
        row.extend_from_slice(found.unwrap_or_default());
        Some(found.is_some())
    }
}
