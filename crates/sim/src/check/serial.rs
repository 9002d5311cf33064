//! The serial model: committed transactions one after the other by commit timestamp, and what each snapshot then saw.
//!
//! 1. Versions of each row, in the order of timestamps: each must have replaced the one before it.
//! 2. A commit that was answered before another one was asked for has the smaller timestamp.
//! 3. A statement's snapshot is not below what had been acknowledged when it began; at repeatable read it stays.
//! 4. What a statement read is its transaction's own version, else the newest at or below its snapshot.
//! 5. At repeatable read no transaction replaces a version that its snapshot does not see.
//! 6. At read committed a statement's snapshot is not below a version that its transaction has replaced or locked
//!    before.
//! 7. A version that was lost with a crash was replaced, in the last statement, by transactions that were lost, too; no
//!    transaction was given it with a lock.
//! 8. A row that was locked is written by no other transaction until the transaction ends.
//! 9. A statement that leaves a row alone has met a version of it that was committed, or no row.
//! 10. A statement that asks for a row by its key meets the row that its snapshot has there, under whatever key that is
//!     by now. Where no row is met, that one was deleted behind the snapshot.

use std::collections::{BTreeMap, HashMap};

use cenote_engine::Isolation;

use super::history::{Overlay, color, show, writer};
use super::{End, History, Key, Op, Tag, Txn, What};

/// A version of a row: when it was committed, and by whom.
#[derive(Debug, Clone, Copy)]
struct Version {
    cts: u64,
    tag: Tag,
    txn: usize,
}

/// Versions of all rows, by timestamp.
#[derive(Debug, Default)]
struct Versions(BTreeMap<Key, Vec<Version>>);

impl Versions {
    fn of(history: &History) -> Versions {
        let mut versions = Versions::default();
        for txn in history.committed() {
            let t = &history.txns[txn];
            if t.defines {
                continue;
            }
            for (key, (_, tag)) in t.writes() {
                let version = Version { cts: t.cts, tag, txn };
                versions.0.entry(key).or_default().push(version);
            }
        }
        versions
    }

    fn at(&self, key: Key, snapshot: u64) -> Tag {
        self.0.get(&key).map_or(0, |all| newest(all, snapshot))
    }

    fn range(&self, table: u8, from: i32, to: i32) -> impl Iterator<Item = (Key, &Vec<Version>)> {
        let key = |id| Key { table, id };
        self.0.range(key(from)..key(to.max(from))).map(|(key, all)| (*key, all))
    }
}

/// Which versions are of one row, whatever its key: those that follow from one insert.
#[derive(Debug, Default)]
struct Lines {
    /// The version that a version has replaced.
    before: HashMap<Tag, Tag>,
    /// Transactions that deleted a row, by its first version. What they took back to a savepoint counts, too.
    ends: HashMap<Tag, Vec<usize>>,
}

impl Lines {
    fn of(history: &History) -> Lines {
        let mut lines = Lines::default();
        let mut deleted = Vec::new();
        for (number, txn) in history.txns.iter().enumerate() {
            for op in &txn.ops {
                match op.what {
                    What::Write { before, after: 0, .. } => deleted.push((number, before)),
                    What::Write { before, after, .. } if before != 0 => drop(lines.before.insert(after, before)),
                    What::Rekeyed { before, after } => {
                        lines.before.insert(after, before);
                        if let Some(at) = deleted.iter().rposition(|d| *d == (number, before)) {
                            deleted.remove(at);
                        }
                    }
                    _ => {}
                }
            }
        }
        for (number, tag) in deleted {
            lines.ends.entry(lines.first(tag)).or_default().push(number);
        }
        lines
    }

    /// The first version of the row that has this one; 0 of none.
    fn first(&self, mut tag: Tag) -> Tag {
        while let Some(before) = self.before.get(&tag) {
            tag = *before;
        }
        tag
    }
}

fn newest(all: &[Version], snapshot: u64) -> Tag {
    let seen = all.partition_point(|v| v.cts <= snapshot);
    seen.checked_sub(1).map_or(0, |i| all[i].tag)
}

/// What is wrong with the transactions that are not settled yet. All their ends must be known.
pub fn check(history: &History) -> Vec<String> {
    let (versions, lines) = (Versions::of(history), Lines::of(history));
    let mut problems = order(history);
    for (number, txn) in history.txns.iter().enumerate().skip(history.settled) {
        if txn.defines {
            continue;
        }
        let checked = Checked {
            history,
            versions: &versions,
            lines: &lines,
            txn,
            number,
        };
        if let Err(problem) = checked.all() {
            problems.push(format!("{problem}\n  {}", history.describe(number)));
        }
    }
    problems
}

/// Rule 2, and timestamps are used once.
fn order(history: &History) -> Vec<String> {
    let mut problems = Vec::new();
    let committed = history.committed();
    for pair in committed.windows(2) {
        let cts = history.txns[pair[0]].cts;
        if cts == history.txns[pair[1]].cts {
            problems.push(format!("T{} and T{} have timestamp {cts}", pair[0], pair[1]));
        }
    }
    let mut greatest = (0, 0);
    let mut events: Vec<(u64, usize, bool)> = Vec::new();
    for t in &committed {
        let txn = &history.txns[*t];
        events.push((txn.asked, *t, false));
        if txn.answered != 0 {
            events.push((txn.answered, *t, true));
        }
    }
    events.sort_unstable();
    for (_, t, answered) in events {
        let cts = history.txns[t].cts;
        if answered {
            greatest = greatest.max((cts, t));
        } else if cts < greatest.0 && t >= history.settled {
            problems.push(format!(
                "T{t} asked for its commit after T{} was answered, and has timestamp {cts}, below {}\n  {}",
                greatest.1,
                greatest.0,
                history.describe(t)
            ));
        }
    }
    problems
}

struct Checked<'h> {
    history: &'h History,
    versions: &'h Versions,
    lines: &'h Lines,
    txn: &'h Txn,
    number: usize,
}

impl Checked<'_> {
    fn all(&self) -> Result<(), String> {
        let mut own = Overlay::default();
        let (mut fixed, mut base) = (None, Base::default());
        for op in &self.txn.ops {
            self.snapshot(op, &mut fixed)?;
            self.builds(op, &mut base)?;
            self.op(op, &own)?;
            own.apply(&op.what);
        }
        if self.txn.end == End::Committed && self.txn.cts != 0 {
            self.replaced(&own)?;
        }
        Ok(())
    }

    fn snapshot(&self, op: &Op, fixed: &mut Option<u64>) -> Result<(), String> {
        if op.what.is_between_statements() {
            return Ok(());
        }
        if op.snapshot < op.floor {
            return Err(format!(
                "event {}: snapshot {} is older than the commit {} that was acknowledged before it",
                op.at, op.snapshot, op.floor
            ));
        }
        if self.txn.level == Isolation::RepeatableRead && *fixed.get_or_insert(op.snapshot) != op.snapshot {
            return Err(format!("event {}: another snapshot at repeatable read", op.at));
        }
        Ok(())
    }

    /// Rule 6.
    fn builds(&self, op: &Op, base: &mut Base) -> Result<(), String> {
        if self.history.may_lose_log || op.what.is_between_statements() {
            return Ok(());
        }
        if op.statement > base.statement {
            (base.statement, base.before) = (op.statement, base.before.max(base.now));
        }
        if self.txn.level == Isolation::ReadCommitted && op.snapshot < base.before {
            return Err(format!(
                "event {}: snapshot {} is older than the commit {} that its transaction has built on",
                op.at, op.snapshot, base.before
            ));
        }
        if let What::Write { key, before: tag, .. } | What::Lock { key, saw: tag, .. } = op.what {
            let all = self.versions.0.get(&key).map_or(&[][..], |all| all);
            let met = all.iter().find(|v| tag != 0 && v.tag == tag && v.txn != self.number);
            base.now = base.now.max(met.map_or(0, |v| v.cts));
        }
        Ok(())
    }

    fn op(&self, op: &Op, own: &Overlay) -> Result<(), String> {
        match &op.what {
            What::Read { key, saw } => {
                let expected = own.get(*key).unwrap_or_else(|| self.versions.at(*key, op.snapshot));
                same(op, *key, *saw, expected)
            }
            What::Scan {
                table,
                from,
                to,
                saw,
                color,
            } => self.scan(op, own, (*table, *from, *to), *color, saw),
            What::Lock { key, saw, alone } => self.locked(op, own, *key, *saw, *alone),
            What::Met { key, saw } => self.met(op, own, *key, *saw),
            What::Write { key, before, .. } => self.wrote(op, own, *key, *before),
            What::Wanted { key, saw } => self.wanted(op, own, *key, *saw),
            What::Rekeyed { .. } | What::Savepoint | What::RolledBack | What::Left => Ok(()),
        }
    }

    fn scan(
        &self,
        op: &Op,
        own: &Overlay,
        (table, from, to): (u8, i32, i32),
        only: Option<i32>,
        saw: &[(i32, Tag)],
    ) -> Result<(), String> {
        let mut expected: BTreeMap<i32, Tag> = BTreeMap::new();
        for (key, all) in self.versions.range(table, from, to) {
            expected.insert(key.id, newest(all, op.snapshot));
        }
        expected.extend(own.range(table, from, to));
        expected.retain(|_, tag| *tag != 0 && only.is_none_or(|c| c == color(*tag)));
        let seen: BTreeMap<i32, Tag> = saw.iter().copied().collect();
        if seen.len() != saw.len() {
            return Err(format!("event {}: a row was delivered twice: {saw:?}", op.at));
        }
        let ids = expected.keys().chain(seen.keys());
        for id in ids {
            let (saw, expected) = (seen.get(id).copied(), expected.get(id).copied());
            same(op, Key { table, id: *id }, saw.unwrap_or(0), expected.unwrap_or(0))?;
        }
        Ok(())
    }

    /// A lock gives the newest version: one that its snapshot sees, or a later one.
    fn locked(&self, op: &Op, own: &Overlay, key: Key, saw: Tag, alone: bool) -> Result<(), String> {
        if let Some(expected) = own.get(key) {
            return same(op, key, saw, expected);
        }
        self.is_known(op, key, saw)?;
        let Some(all) = self.versions.0.get(&key) else {
            return Ok(());
        };
        let Some(at) = all.iter().position(|v| v.tag == saw) else {
            return Ok(());
        };
        let (Some(next), true) = (all.get(at + 1), alone) else {
            return Ok(());
        };
        let other = &self.history.txns[next.txn];
        let written = other
            .ops
            .iter()
            .find(|o| matches!(o.what, What::Write { key: k, .. } if k == key));
        match written {
            Some(write) if next.txn != self.number && write.at < self.txn.asked && write.at > op.at => Err(format!(
                "event {}: {key:?} is locked, and T{} writes it at event {}, before the lock's end",
                op.at, next.txn, write.at
            )),
            _ => Ok(()),
        }
    }

    /// Rule 9. Which of several times without a row was met is not known.
    fn met(&self, op: &Op, own: &Overlay, key: Key, saw: Tag) -> Result<(), String> {
        match own.get(key) {
            Some(expected) => same(op, key, saw, expected),
            None => self.is_known(op, key, saw),
        }
    }

    /// Rule 10.
    fn wanted(&self, op: &Op, own: &Overlay, key: Key, saw: Tag) -> Result<(), String> {
        let there = own.get(key).unwrap_or_else(|| self.versions.at(key, op.snapshot));
        let (wanted, met) = (self.lines.first(there), self.lines.first(saw));
        if wanted == met || there == 0 && saw != 0 && self.could_not_know(op) {
            return Ok(());
        }
        if saw == 0 && there != 0 {
            let ended = |txn: &usize| {
                let other = &self.history.txns[*txn];
                let committed = other.end == End::Committed && other.cts > op.snapshot && other.asked < op.at;
                *txn == self.number || committed || other.lost && self.txn.end != End::Committed
            };
            if self.lines.ends.get(&wanted).is_some_and(|by| by.iter().any(ended)) {
                return Ok(());
            }
        }
        Err(format!(
            "event {}: {key:?}: wanted the row that was {}, met {}, which is not that row",
            op.at,
            show(there),
            show(saw)
        ))
    }

    /// A write replaces its transaction's own version, or one that was committed.
    fn wrote(&self, op: &Op, own: &Overlay, key: Key, before: Tag) -> Result<(), String> {
        if let Some(expected) = own.get(key) {
            return same(op, key, before, expected);
        }
        self.is_known(op, key, before)?;
        if self.txn.level == Isolation::RepeatableRead
            && before != 0
            && let Some(all) = self.versions.0.get(&key)
            && let Some(version) = all.iter().find(|v| v.tag == before)
            && version.cts > op.snapshot
        {
            return Err(format!(
                "event {}: {key:?}: replaces {}, committed at {}, behind its snapshot",
                op.at,
                show(before),
                version.cts
            ));
        }
        Ok(())
    }

    fn is_known(&self, op: &Op, key: Key, tag: Tag) -> Result<(), String> {
        let lost = writer(tag).is_some_and(|w| self.history.txns.get(w).is_some_and(|t| t.lost));
        let known = tag == 0
            || (lost && self.could_not_know(op))
            || self
                .versions
                .0
                .get(&key)
                .is_some_and(|all| all.iter().any(|v| v.tag == tag));
        if known {
            return Ok(());
        }
        Err(format!("event {}: {key:?}: {} was never committed", op.at, show(tag)))
    }

    /// Whether the version that `op` met may have been lost with a crash: its transaction was, too, and had not waited
    /// for it. It waits before it gives out a row with a lock, and before its next statement.
    fn could_not_know(&self, op: &Op) -> bool {
        let is_last = self.txn.statements <= op.statement || self.history.may_lose_log;
        let is_lock = matches!(op.what, What::Lock { .. });
        self.txn.end != End::Committed && is_last && !is_lock
    }

    /// Rule 1.
    fn replaced(&self, own: &Overlay) -> Result<(), String> {
        for (key, (before, _)) in own.writes() {
            let all = self.versions.0.get(&key).map_or(&[][..], |all| all);
            let at = all.iter().position(|v| v.txn == self.number).unwrap_or(0);
            let expected = at.checked_sub(1).map_or(0, |i| all[i].tag);
            if before != expected {
                return Err(format!(
                    "{key:?}: replaced {}, but the version before it is {}",
                    show(before),
                    show(expected)
                ));
            }
        }
        Ok(())
    }
}

/// The greatest timestamp of a version that a transaction has replaced or locked.
#[derive(Default)]
struct Base {
    /// Which statement it is at.
    statement: u32,
    /// In statements before this one.
    before: u64,
    /// In all, this one included.
    now: u64,
}

fn same(op: &Op, key: Key, saw: Tag, expected: Tag) -> Result<(), String> {
    if saw == expected {
        return Ok(());
    }
    Err(format!(
        "event {}: {key:?}: saw {}, the serial model has {}",
        op.at,
        show(saw),
        show(expected)
    ))
}
