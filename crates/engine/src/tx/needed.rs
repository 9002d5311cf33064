//! Which index entries of a row's version its other versions need. Purge asks it of a version that was replaced,
//! rollback of the newest one.
//!
//! 1. Only versions that some snapshot may see count: from the newest one back to the first that every snapshot sees.
//!    The ones below have records of their own in what is purged: they take their entries with them. So a record costs
//!    the versions behind the horizon, not all that wait to be purged; of most rows that is the newest one.
//! 2. A look under the latch of the row's leaf comes to [`STEPS`] versions at most. Usually one or two decide.
//! 3. A row that was changed often behind an old snapshot, or by one transaction, has many more. Its latch is given up,
//!    and a walk without it counts how many versions have each entry (a *memo*). Then the row is latched and looked at
//!    again, until a look comes to the version that the memo begins with: that one answers for the rest. What lies
//!    below a version does not change, so a memo that is come to holds.
//! 4. A walk that comes to a former memo takes its counts over, and rollback takes each version that it takes back off
//!    the counts. So each version is walked once a round of purge, and once a rollback.
//!
//! Invariants: an entry of a memo has as many holders as counted versions have it. A memo that was cut, since its row
//! has more versions than it may count, lets no entry go but those of its counted versions, and of those none that a
//! version below them has.
//!
//! A memo knows entries by *fingerprints*: 128 bits under a key that is drawn at random. An entry that was kept for
//! another one's sake would be stale for ever, and a reader of the index alone (`unsettled`) would believe it. No
//! client can choose two entries with one fingerprint; by chance a million entries have two with a probability of
//! 2^-89.

use super::locks::row_name;
use crate::catalog::Table;
use crate::engine::Engine;
use crate::error::Result;
use crate::large;
use crate::tree::BTree;
use crate::undo::UndoPointer;
use crate::undo::record::{TRAILER, Trailer};
use cenote_base::Cts;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, HashMap};
use cenote_base::sip::sip;

/// Versions that are looked at under a latch at most.
const STEPS: usize = 16;
/// Fingerprints that the memos of a round or a rollback hold together, before all but the one in work are forgotten. 24
/// bytes each, about.
const FINGERPRINTS_MAX: usize = 1 << 20;

/// Index entries: (index space, entry key).
pub(crate) type Entries = Vec<(u32, Vec<u8>)>;

/// A version: its trailer, and the row as it is stored.
pub(crate) type Version = (Trailer, Vec<u8>);

/// Index entries of a stored row version.
pub(crate) fn entries_of(engine: &Engine, table: &Table, key: &[u8], stored: &[u8]) -> Result<Entries> {
    if table.indexes.is_empty() {
        return Ok(Vec::new());
    }
    let row = large::bring_in_keys(&engine.pool, table, stored)?;
    let mut entries = Vec::with_capacity(table.indexes.len());
    for index in &table.indexes {
        if large::too_long_for(table, index, &row)?.is_some() {
            continue;
        }
        let mut entry = Vec::new();
        table.index_key_of_row(index, &row, &mut entry)?;
        entry.extend_from_slice(key);
        entries.push((index.space, entry));
    }
    Ok(entries)
}

/// What a memo knows of an entry.
pub(crate) type Fingerprint = [u64; 2];

/// The keys under which a round or a rollback makes fingerprints.
#[derive(Clone, Copy, Default)]
struct Secret([[u64; 2]; 2]);

impl Secret {
    fn draw() -> Secret {
        Secret([[rt::random(), rt::random()], [rt::random(), rt::random()]])
    }

    fn fingerprint(&self, space: u32, entry: &[u8]) -> Fingerprint {
        let bytes = [&space.to_le_bytes(), entry].concat();
        self.0.map(|key| sip(key, &bytes))
    }

    fn fingerprints(&self, entries: &Entries) -> impl Iterator<Item = Fingerprint> {
        entries.iter().map(|(space, entry)| self.fingerprint(*space, entry))
    }
}

/// A row whose versions are compared.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    engine: &'a Engine,
    table: &'a Table,
    key: &'a [u8],
}

impl<'a> Row<'a> {
    pub(crate) fn new(engine: &'a Engine, table: &'a Table, key: &'a [u8]) -> Row<'a> {
        Row { engine, table, key }
    }

    /// Index entries of a version of it.
    ///
    /// # Errors
    /// Those of reading large values.
    pub(crate) fn entries(self, trailer: Trailer, stored: &[u8]) -> Result<Entries> {
        match trailer.deleted() {
            true => Ok(Entries::new()),
            false => entries_of(self.engine, self.table, self.key, stored),
        }
    }

    fn name(self) -> Vec<u8> {
        row_name(self.table.space, self.key)
    }

    fn newest(self) -> Result<Option<Version>> {
        let (tree, mut row) = (
            BTree {
                space: self.table.space,
            },
            Vec::new(),
        );
        if !tree.get(&self.engine.pool, self.key, &mut row)? {
            return Ok(None);
        }
        let trailer = Trailer::of(&row)?;
        row.truncate(row.len() - TRAILER);
        Ok(Some((trailer, row)))
    }

    /// Entries of a version that a look or a walk has come to.
    fn walk(self, (trailer, stored): &Version) -> Result<Entries> {
        self.engine.purge.walked.fetch_add(1, Ordering::Relaxed);
        self.entries(*trailer, stored)
    }
}

/// What a thread of purge or a rollback remembers of rows.
pub(crate) struct Memos {
    /// No version counts below the first that every snapshot of this sees.
    pub horizon: Cts,
    /// Versions that a memo counts at most.
    counted_max: usize,
    rows: HashMap<Vec<u8>, Memo>,
    fingerprints: usize,
    /// Drawn for the first memo.
    secret: Option<Secret>,
}

impl Memos {
    pub(crate) fn new(horizon: Cts, counted_max: usize) -> Memos {
        Memos {
            horizon,
            counted_max,
            rows: HashMap::default(),
            fingerprints: 0,
            secret: None,
        }
    }

    fn of(&self, row: Row<'_>) -> Option<&Memo> {
        if self.rows.is_empty() {
            return None;
        }
        let memo = self.rows.get(&row.name())?;
        (memo.definition == row.table.version).then_some(memo)
    }

    /// Leaves in `entries`, those of the row's newest version, the ones that only this version has. False: no memo
    /// begins with it.
    pub(crate) fn keep_last(&self, row: Row<'_>, newest: Trailer, entries: &mut Entries) -> bool {
        let memo = self.of(row).filter(|memo| memo.newest == newest);
        memo.inspect(|memo| memo.keep(entries, 1)).is_some()
    }

    /// Leaves in `entries` those that no version from `version` on needs; none counts below the one made by the change
    /// of record `until`. False: that takes more steps than are made under a latch. The row's leaf is latched.
    ///
    /// # Errors
    /// Those of reading versions.
    pub(crate) fn keep_needed(
        &self,
        row: Row<'_>,
        mut version: Option<Version>,
        until: UndoPointer,
        entries: &mut Entries,
    ) -> Result<bool> {
        let (memo, mut steps) = (self.of(row), 0);
        while let Some(found) = version {
            let trailer = found.0;
            if entries.is_empty() || planted(Fault::EntryNeeded) {
                break;
            }
            if let Some(memo) = memo.filter(|memo| memo.newest == trailer) {
                memo.keep(entries, 0);
                break;
            }
            if steps == STEPS {
                return Ok(false);
            }
            steps += 1;
            let needed = row.walk(&found)?;
            entries.retain(|entry| !needed.contains(entry));
            version = match trailer.undo == until {
                true => None,
                false => row.engine.older_version(trailer, self.horizon)?,
            };
        }
        Ok(true)
    }

    /// Walks the row's versions without a latch, and remembers their entries.
    ///
    /// # Errors
    /// Those of reading versions: nothing is remembered of the row then.
    pub(crate) fn learn(&mut self, row: Row<'_>) -> Result<()> {
        let name = row.name();
        let former = self.rows.remove(&name);
        self.fingerprints -= former.as_ref().map_or(0, |memo| memo.entries.len());
        if self.fingerprints > FINGERPRINTS_MAX {
            (self.rows, self.fingerprints) = (HashMap::default(), 0);
        }
        let secret = *self.secret.get_or_insert_with(Secret::draw);
        let former = former.filter(|memo| memo.definition == row.table.version);
        if let Some(memo) = Memo::learn(row, (self.horizon, self.counted_max), secret, former)? {
            self.fingerprints += memo.entries.len();
            self.rows.insert(name, memo);
        }
        Ok(())
    }

    /// Fingerprints of the entries of a version that may be taken back, where a memo could know them.
    pub(crate) fn fingerprints(&self, entries: &Entries) -> Vec<Fingerprint> {
        let known = self.secret.filter(|_| !self.rows.is_empty());
        known.map_or(Vec::new(), |secret| secret.fingerprints(entries).collect())
    }

    /// The newest version of the row, with entries of these fingerprints, was taken back; now it is the one with
    /// trailer `now`.
    pub(crate) fn took_back(&mut self, row: Row<'_>, entries: &[Fingerprint], now: Trailer) {
        if self.rows.is_empty() {
            return;
        }
        let name = row.name();
        let Some(memo) = self.rows.get_mut(&name) else { return };
        self.fingerprints -= memo.entries.len();
        // A memo of another definition has counted entries of other indexes.
        if memo.definition == row.table.version && memo.take_off(entries, now) {
            self.fingerprints += memo.entries.len();
        } else {
            self.rows.remove(&name);
        }
    }
}

/// Entries of a row's versions, from `newest` on.
#[derive(Default)]
struct Memo {
    newest: Trailer,
    /// Version of the table's definition: another one has other indexes.
    definition: u64,
    /// How many versions are counted.
    counted: usize,
    /// Whether there are more below those.
    is_cut: bool,
    secret: Secret,
    entries: HashMap<Fingerprint, Holders>,
}

/// Which versions have an entry.
#[derive(Default)]
struct Holders {
    /// How many of those that are counted.
    counted: u32,
    /// Whether one below those has it.
    below: bool,
}
const _: () = assert!(
    size_of::<(Fingerprint, Holders)>() == 24,
    "what a fingerprint takes, as FINGERPRINTS_MAX says"
);

impl Memo {
    /// Of a row's versions; none where the row is gone. `former` was learnt of the row by the same definition.
    fn learn(
        row: Row<'_>,
        (horizon, counted_max): (Cts, usize),
        secret: Secret,
        mut former: Option<Memo>,
    ) -> Result<Option<Memo>> {
        let mut version = row.newest()?;
        let Some(&(newest, _)) = version.as_ref() else {
            return Ok(None);
        };
        let definition = row.table.version;
        let mut memo = Memo {
            newest,
            definition,
            secret,
            ..Memo::default()
        };
        while let Some(found) = version {
            let whole = |former: &mut Memo| former.newest == found.0 && !former.is_cut;
            if !memo.is_cut
                && let Some(former) = former.take_if(whole)
            {
                return Ok(Some(former.grown_by(memo)));
            }
            memo.count(&row.walk(&found)?, counted_max);
            version = row.engine.older_version(found.0, horizon)?;
        }
        Ok(Some(memo))
    }

    /// Counts the next version below, as long as there is room; then it is only noted which of the entries counted are
    /// needed there.
    fn count(&mut self, entries: &Entries, counted_max: usize) {
        self.is_cut = self.counted == counted_max;
        if !self.is_cut {
            self.counted += 1;
            for fingerprint in self.secret.fingerprints(entries) {
                self.entries.entry(fingerprint).or_default().add(1);
            }
            return;
        }
        for fingerprint in self.secret.fingerprints(entries) {
            if let Some(holders) = self.entries.get_mut(&fingerprint) {
                holders.below = true;
            }
        }
    }

    /// With the versions counted by `above`, which lie above its own. Neither is cut.
    fn grown_by(mut self, above: Memo) -> Memo {
        assert!(!self.is_cut && !above.is_cut, "all versions of both are counted");
        (self.newest, self.counted) = (above.newest, self.counted + above.counted);
        for (fingerprint, holders) in above.entries {
            self.entries.entry(fingerprint).or_default().add(holders.counted);
        }
        self
    }

    /// Leaves in `entries` those that `own` of its versions have at most, and is known of the others that none has.
    fn keep(&self, entries: &mut Entries, own: u32) {
        let holders = |space, entry: &[u8]| self.entries.get(&self.secret.fingerprint(space, entry));
        entries.retain(|(space, entry)| match holders(*space, entry) {
            Some(holders) => holders.counted <= own && !holders.below,
            None => !self.is_cut,
        });
    }

    /// The newest version, with these entries, is gone. Says whether any is left that is counted.
    fn take_off(&mut self, entries: &[Fingerprint], now: Trailer) -> bool {
        self.newest = now;
        assert!(self.counted > 0, "a memo goes with its last version");
        self.counted -= 1;
        for fingerprint in entries {
            if let Some(holders) = self.entries.get_mut(fingerprint) {
                holders.counted -= 1;
                if holders.counted == 0 && !holders.below {
                    self.entries.remove(fingerprint);
                }
            }
        }
        self.counted > 0
    }
}

impl Holders {
    fn add(&mut self, versions: u32) {
        self.counted = self.counted.saturating_add(versions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions of a row, the newest first, with the entries of each; `undo` of its trailer tells which one it is.
    fn versions(count: u64) -> Vec<(Trailer, Entries)> {
        let entry = |n: u64| (7, vec![n as u8]);
        let version = |i| {
            let undo = UndoPointer::from_raw(i + 1);
            let trailer = Trailer {
                undo,
                ..Trailer::default()
            };
            (trailer, vec![entry(i * i % 11), entry(100 + i % 3)])
        };
        (0..count).map(version).collect()
    }

    fn memo(versions: &[(Trailer, Entries)], counted_max: usize) -> Memo {
        let mut memo = Memo {
            newest: versions[0].0,
            ..Memo::default()
        };
        versions
            .iter()
            .for_each(|(_, entries)| memo.count(entries, counted_max));
        memo
    }

    fn last_of(versions: &[(Trailer, Entries)], older: usize) -> Entries {
        let is_needed = |entry| versions[older..].iter().any(|(_, entries)| entries.contains(entry));
        versions[0]
            .1
            .iter()
            .filter(|entry| !is_needed(entry))
            .cloned()
            .collect()
    }

    /// Each version is taken back in turn: what goes with it is what none below has, those too that were not counted.
    #[test]
    fn a_cut_memo_lets_go_what_no_version_below_has() {
        let all = versions(40);
        for counted_max in [1, 2, 5, 39, 40, usize::MAX] {
            let mut memo = memo(&all, counted_max);
            assert_eq!(memo.is_cut, counted_max < all.len());
            for at in 0..counted_max.min(all.len()) {
                let mut entries = all[at].1.clone();
                memo.keep(&mut entries, 1);
                assert_eq!(
                    entries,
                    last_of(&all[at..], 1),
                    "version {at} of a memo of {counted_max}"
                );
                let taken: Vec<_> = memo.secret.fingerprints(&all[at].1).collect();
                let now = all.get(at + 1).map_or(Trailer::default(), |(trailer, _)| *trailer);
                assert_eq!(memo.take_off(&taken, now), at + 1 < counted_max.min(all.len()));
            }
        }
    }

    /// A cut memo does not know what the versions have that it did not count: it lets nothing go for their sake.
    #[test]
    fn a_cut_memo_does_not_answer_for_what_it_did_not_count() {
        let all = versions(40);
        let unknown = vec![(9, b"of none that is counted".to_vec())];
        for (counted_max, left) in [(5, 0), (40, 1)] {
            let mut entries = unknown.clone();
            memo(&all, counted_max).keep(&mut entries, 0);
            assert_eq!(entries.len(), left);
        }
    }

    /// A memo that has grown by newer versions knows what one of all of them knows.
    #[test]
    fn a_memo_grows_by_the_versions_above() {
        let all = versions(40);
        let (mut grown, mut whole) = (
            memo(&all[25..], usize::MAX).grown_by(memo(&all[..25], usize::MAX)),
            memo(&all, 40),
        );
        assert_eq!((grown.newest, grown.counted), (whole.newest, whole.counted));
        for (trailer, entries) in &all {
            let (mut by_grown, mut by_whole) = (entries.clone(), entries.clone());
            grown.keep(&mut by_grown, 1);
            whole.keep(&mut by_whole, 1);
            assert_eq!(by_grown, by_whole);
            let taken: Vec<_> = grown.secret.fingerprints(entries).collect();
            assert_eq!(grown.take_off(&taken, *trailer), whole.take_off(&taken, *trailer));
        }
    }
}
