//! Durability: what a recovery found, against what was acknowledged.
//!
//! 1. Every acknowledged commit is there, whole.
//! 2. One that was asked for and not answered is there whole, or not at all; what it built on is there if it is.
//! 3. All others are gone.
//!
//! Which of the open ones are there is read off the rows: each bears its writer's tag. Where others have written over
//! all of its rows, it is there if its place in the log is before one that was acknowledged. So nothing that the engine
//! says about itself is believed here, but the order of commits.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{show, writer};
use super::{End, History, Key, Tag};

/// Rows by their places.
pub type Rows = BTreeMap<Key, Tag>;

/// All rows after the committed transactions, in the order of their timestamps.
pub fn rows(history: &History) -> Rows {
    rows_after(history, history.committed())
}

/// All rows after the committed transactions with timestamps up to `lsn`.
pub fn rows_at(history: &History, lsn: u64) -> Rows {
    let mut txns = history.committed();
    txns.retain(|t| history.txns[*t].cts <= lsn);
    rows_after(history, txns)
}

fn rows_after(history: &History, txns: Vec<usize>) -> Rows {
    let mut rows = Rows::new();
    for txn in txns {
        for (key, (_, after)) in history.txns[txn].writes() {
            match after {
                0 => rows.remove(&key),
                tag => rows.insert(key, tag),
            };
        }
    }
    rows
}

fn at(rows: &Rows, key: &Key) -> Tag {
    rows.get(key).copied().unwrap_or(0)
}

/// Decides the ends of the open transactions by what recovery `found`; what is wrong with it.
pub fn settle(history: &mut History, found: &Rows) -> Vec<String> {
    let kept = kept(history, found);
    let open: Vec<usize> = (history.settled..history.txns.len())
        .filter(|t| history.txns[*t].end == End::Open)
        .collect();
    let mut problems = Vec::new();
    for t in open {
        let txn = &mut history.txns[t];
        txn.lost = !kept.contains(&t);
        txn.end = if txn.lost { End::Aborted } else { End::Committed };
        if kept.contains(&t) && txn.cts == 0 {
            problems.push(format!(
                "a commit that had no place in the log is there:\n  {}",
                history.describe(t)
            ));
        }
    }
    problems.extend(differences(history, found));
    problems
}

/// The open transactions that are there: those that left a row or lie before an acknowledged one, those that they built
/// on, and those that removed what these left.
fn kept(history: &History, found: &Rows) -> BTreeSet<usize> {
    let open: Vec<usize> = (history.settled..history.txns.len())
        .filter(|t| history.txns[*t].end == End::Open)
        .collect();
    let is_durable = |t: &usize| (1..=history.acknowledged).contains(&history.txns[*t].cts);
    let left_a_row = |t: &usize| {
        let writes = history.txns[*t].writes();
        writes.iter().any(|(key, (_, tag))| *tag != 0 && at(found, key) == *tag)
    };
    let is_there = |t: &usize| is_durable(t) || left_a_row(t);
    let mut kept: BTreeSet<usize> = open.iter().copied().filter(is_there).collect();
    loop {
        add_below(history, &open, &mut kept);
        let mut more = removers(history, &open, &kept, found);
        if more.is_empty() {
            return kept;
        }
        kept.append(&mut more);
    }
}

/// Adds the open ones that those in `kept` built on.
fn add_below(history: &History, open: &[usize], kept: &mut BTreeSet<usize>) {
    let base = rows(history);
    let cts = |t: usize| history.txns[t].cts;
    let mut todo: Vec<usize> = kept.iter().copied().collect();
    while let Some(t) = todo.pop() {
        for (key, (before, _)) in history.txns[t].writes() {
            let deleted = |o: &usize| {
                let writes = history.txns[*o].writes();
                cts(*o) < cts(t) && matches!(writes.get(&key), Some((_, 0)))
            };
            let below = match writer(before) {
                Some(below) => Some(below),
                None if at(&base, &key) != 0 => open.iter().copied().filter(deleted).max_by_key(|o| cts(*o)),
                None => None,
            };
            if let Some(below) = below
                && open.contains(&below)
                && kept.insert(below)
            {
                todo.push(below);
            }
        }
    }
}

/// For each row that would be there after those in `kept`, and is not: the open one that deleted it, or the first of
/// those that deleted what other open ones had made of it.
fn removers(history: &History, open: &[usize], kept: &BTreeSet<usize>, found: &Rows) -> BTreeSet<usize> {
    let mut order = history.committed();
    order.extend(kept);
    order.sort_by_key(|t| history.txns[*t].cts);
    let mut removers = BTreeSet::new();
    for (key, tag) in rows_after(history, order) {
        if at(found, &key) != 0 {
            continue;
        }
        let deletes = |t: &usize| match history.txns[*t].writes().get(&key) {
            Some((before, 0)) if *before != 0 && !kept.contains(t) => Some((*before != tag, history.txns[*t].cts, *t)),
            _ => None,
        };
        removers.extend(open.iter().filter_map(deletes).min().map(|(_, _, t)| t));
    }
    removers
}

fn differences(history: &History, found: &Rows) -> Vec<String> {
    let expected = rows(history);
    let keys: BTreeSet<&Key> = expected.keys().chain(found.keys()).collect();
    let mut problems = Vec::new();
    for key in keys {
        let (found, expected) = (found.get(key).copied(), expected.get(key).copied());
        if found == expected {
            continue;
        }
        let (found, expected) = (found.unwrap_or(0), expected.unwrap_or(0));
        let mut text = format!("{key:?}: recovery left {}, expected {}", show(found), show(expected));
        for t in [writer(found), writer(expected)].into_iter().flatten() {
            if t < history.txns.len() {
                text += &format!("\n  {}", history.describe(t));
            }
        }
        problems.push(text);
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::What;
    use super::super::history::tag;
    use super::*;
    use cenote_base::rt::atomic::{AtomicU64, Ordering};
    use cenote_engine::Isolation;
    use std::sync::Arc;

    const A: Key = Key { table: 0, id: 1 };
    const B: Key = Key { table: 0, id: 2 };

    fn write(history: &mut History, cts: u64, writes: &[(Key, Tag)], end: Option<bool>) -> usize {
        let t = history.begin(0, 0, Isolation::ReadCommitted);
        for (n, (key, before)) in writes.iter().enumerate() {
            let what = What::Write {
                key: *key,
                before: *before,
                after: tag(t, n),
            };
            history.note(t, 0, 0, what);
        }
        let note = Arc::new(AtomicU64::new(0));
        history.ask(t, note.clone());
        note.store(cts, Ordering::Relaxed);
        if let Some(acknowledged) = end {
            history.answer(t, acknowledged);
        }
        t
    }

    /// Makes a deletion of the only write of `t`.
    fn forget_row(history: &mut History, t: usize) {
        if let Some(What::Write { after, .. }) = history.txns[t].ops.first_mut().map(|op| &mut op.what) {
            *after = 0;
        }
    }

    #[test]
    fn losses_halves_and_orphans_are_found() {
        let cases: [(&[(Key, Tag)], usize); 5] = [
            (&[(A, tag(0, 0)), (B, tag(0, 1))], 0),
            (&[(A, tag(1, 0)), (B, tag(1, 1))], 0),
            // Half of the second.
            (&[(A, tag(1, 0)), (B, tag(0, 1))], 1),
            // The acknowledged one is gone.
            (&[], 2),
            // The third without the second that it is built on.
            (&[(A, tag(2, 0)), (B, tag(0, 1))], 1),
        ];
        for (found, problems) in cases {
            let mut history = History::default();
            write(&mut history, 10, &[(A, 0), (B, 0)], Some(true));
            write(&mut history, 20, &[(A, tag(0, 0)), (B, tag(0, 1))], None);
            write(&mut history, 30, &[(A, tag(1, 0))], None);
            history.died();
            let seen = settle(&mut history, &found.iter().copied().collect());
            assert_eq!(seen.len(), problems, "{found:?}: {seen:#?}");
        }
    }

    /// Found in world `host-loss` (seed 20000793): an unanswered deletion of the row that an acknowledged insert then
    /// wrote left no trace.
    #[test]
    fn what_lies_before_an_acknowledged_commit_is_there() {
        let mut history = History::default();
        write(&mut history, 10, &[(A, 0)], Some(true));
        let deleter = write(&mut history, 20, &[(A, tag(0, 0))], None);
        forget_row(&mut history, deleter);
        write(&mut history, 30, &[(A, 0)], Some(true));
        let behind = write(&mut history, 40, &[(B, 0)], None);
        history.died();
        let found = [(A, tag(2, 0))].into_iter().collect();
        assert_eq!(settle(&mut history, &found), Vec::<String>::new());
        let ends = [deleter, behind].map(|t| history.txns[t].end);
        assert_eq!(ends, [End::Committed, End::Aborted]);
    }

    /// Found in world `host-loss` (seed 20001483): one unanswered transaction deletes a row of another, and both
    /// survive, the one by what it has written elsewhere, or neither by anything but the missing row.
    #[test]
    fn the_deleter_of_an_open_transactions_row_is_there() {
        for elsewhere in [Some((B, tag(1, 0))), None] {
            let mut history = History::default();
            write(&mut history, 10, &[(A, 0)], Some(true));
            let writes = [(B, 0), (A, tag(0, 0))];
            let maker = write(&mut history, 20, &writes[usize::from(elsewhere.is_none())..], None);
            let before = tag(maker, usize::from(elsewhere.is_some()));
            let deleter = write(&mut history, 30, &[(A, before)], None);
            forget_row(&mut history, deleter);
            history.died();
            let found = elsewhere.into_iter().collect();
            assert_eq!(settle(&mut history, &found), Vec::<String>::new());
            let ends = [maker, deleter].map(|t| history.txns[t].end);
            assert_eq!(ends, [End::Committed, End::Committed]);
        }
    }
}
