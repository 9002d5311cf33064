//! Adya's anomalies in a history ("Weak Consistency", Adya 1999): cycles of dependencies between transactions.
//!
//! | edge | from | to |
//! |---|---|---|
//! | write-write | the writer of a version | the writer of the next version of that row |
//! | write-read | the writer of a version | its reader |
//! | read-write | the reader of a version | the writer of the next one |
//!
//! | anomaly | what | forbidden at |
//! |---|---|---|
//! | G0 | a cycle of write-write | both levels |
//! | G1a | a read of a version that was taken back | both |
//! | G1b | a read of a version that its transaction wrote over | both |
//! | G1c | a cycle of write-write and write-read | both |
//! | G-single | a cycle with one read-write: lost update, read skew | repeatable read |
//!
//! Nothing is believed but what sessions read and wrote, and the order of a row's versions. That order comes from the
//! writes themselves: each says which version it replaced. (Where a row was deleted and made again, timestamps say it.)
//! Write skew, a cycle with two read-writes, is what repeatable read admits: it is not looked for.

use std::collections::{BTreeMap, BTreeSet};

use cenote_engine::Isolation;

use super::history::{Overlay, show, writer};
use super::{End, History, Key, Tag, Txn, What};

/// The graph of direct dependencies.
#[derive(Debug, Default)]
struct Graph {
    /// For each transaction: on whom it depends by write-write.
    overwrote: BTreeMap<usize, BTreeSet<usize>>,
    /// For each transaction: on whom it depends by write-read.
    read_from: BTreeMap<usize, BTreeSet<usize>>,
    /// The reader of a version, the writer of the next, and where.
    antis: Vec<(usize, usize, Key)>,
}

/// The anomalies among the transactions that are not settled yet.
pub fn check(history: &History) -> Vec<String> {
    let mut problems = Vec::new();
    let orders = orders(history);
    let graph = graph(history, &orders, &mut problems);
    let overwrote = |t: usize| {
        graph
            .overwrote
            .get(&t)
            .into_iter()
            .flatten()
            .copied()
            .collect::<Vec<_>>()
    };
    let depends = |t: usize| {
        let read = graph.read_from.get(&t).into_iter().flatten().copied();
        overwrote(t).into_iter().chain(read).collect::<Vec<_>>()
    };
    let nodes: Vec<usize> = (history.settled..history.txns.len()).collect();
    if let Some(cycle) = cycle(&nodes, &overwrote) {
        problems.push(tell(history, "G0, a cycle of overwritten versions", &cycle));
    } else if let Some(cycle) = cycle(&nodes, &depends) {
        problems.push(tell(history, "G1c, a cycle of what was overwritten and read", &cycle));
    } else {
        problems.extend(singles(history, &graph, &depends));
    }
    problems
}

/// For each row: its versions, in order.
fn orders(history: &History) -> BTreeMap<Key, Vec<Tag>> {
    let mut orders: BTreeMap<Key, Vec<Tag>> = BTreeMap::new();
    for t in history.committed() {
        if history.txns[t].defines {
            continue;
        }
        for (key, (before, after)) in history.txns[t].writes() {
            let order = orders.entry(key).or_default();
            // Behind the version that it says it replaced; at the end, where that says nothing.
            let at = order.iter().rposition(|v| *v == before && before != 0);
            order.insert(at.map_or(order.len(), |at| at + 1), after);
        }
    }
    orders
}

fn graph(history: &History, orders: &BTreeMap<Key, Vec<Tag>>, problems: &mut Vec<String>) -> Graph {
    let mut graph = Graph::default();
    for t in history.settled..history.txns.len() {
        let txn = &history.txns[t];
        if txn.defines {
            continue;
        }
        let committed = txn.end == End::Committed;
        if committed && txn.cts != 0 {
            for (_, (before, _)) in txn.writes() {
                if let Some(other) = writer(before).filter(|o| *o != t) {
                    graph.overwrote.entry(t).or_default().insert(other);
                }
            }
        }
        for (key, saw) in reads(txn) {
            if let Err(problem) = is_whole(history, t, key, saw) {
                problems.push(format!("{problem}\n  {}", history.describe(t)));
            } else if committed {
                graph.read(t, key, saw, orders.get(&key));
            }
        }
    }
    graph
}

impl Graph {
    fn read(&mut self, t: usize, key: Key, saw: Tag, order: Option<&Vec<Tag>>) {
        let Some(order) = order else { return };
        // Of several times without a row it is not known which was seen.
        let at = match saw {
            0 if order.contains(&0) => return,
            0 => None,
            tag => match order.iter().position(|v| *v == tag) {
                Some(at) => Some(at),
                None => return,
            },
        };
        if let Some(other) = writer(saw).filter(|o| *o != t) {
            self.read_from.entry(t).or_default().insert(other);
        }
        let next = order.get(at.map_or(0, |at| at + 1)).and_then(|v| writer(*v));
        if let Some(next) = next.filter(|n| *n != t) {
            self.antis.push((t, next, key));
        }
    }
}

/// What a transaction read of others' versions, or was given with a lock.
fn reads(txn: &Txn) -> Vec<(Key, Tag)> {
    let (mut own, mut reads) = (Overlay::default(), Vec::new());
    for op in &txn.ops {
        match &op.what {
            What::Read { key, saw } | What::Lock { key, saw, .. } if own.get(*key).is_none() => {
                reads.push((*key, *saw))
            }
            What::Scan { table, saw, .. } => {
                let keyed = saw.iter().map(|(id, tag)| (Key { table: *table, id: *id }, *tag));
                reads.extend(keyed.filter(|(key, _)| own.get(*key).is_none()));
            }
            _ => {}
        }
        own.apply(&op.what);
    }
    reads
}

/// G1a and G1b.
fn is_whole(history: &History, t: usize, key: Key, saw: Tag) -> Result<(), String> {
    let Some(other) = writer(saw).filter(|o| *o != t) else {
        return Ok(());
    };
    let Some(txn) = history.txns.get(other) else {
        return Err(format!("{key:?} was read with tag {saw:x}, which no transaction wrote"));
    };
    if txn.end != End::Committed {
        return Err(format!("G1a: {key:?} was read as {}, which was taken back", show(saw)));
    }
    let last = txn.writes().get(&key).map(|w| w.1);
    if last != Some(saw) {
        return Err(format!(
            "G1b: {key:?} was read as {}, which its transaction did not leave",
            show(saw)
        ));
    }
    Ok(())
}

/// A cycle among `nodes`, if there is one: each depends on the next.
fn cycle(nodes: &[usize], edges: &dyn Fn(usize) -> Vec<usize>) -> Option<Vec<usize>> {
    let mut done = BTreeSet::new();
    for start in nodes {
        let (mut path, mut on_path) = (vec![(*start, edges(*start))], BTreeSet::from([*start]));
        if done.contains(start) {
            continue;
        }
        while let Some((at, rest)) = path.last_mut() {
            let at = *at;
            match rest.pop() {
                Some(next) if on_path.contains(&next) => {
                    let from = path.iter().position(|p| p.0 == next).unwrap_or(0);
                    return Some(path[from..].iter().map(|p| p.0).collect());
                }
                Some(next) if !done.contains(&next) => {
                    on_path.insert(next);
                    path.push((next, edges(next)));
                }
                Some(_) => {}
                None => {
                    done.insert(at);
                    on_path.remove(&at);
                    path.pop();
                }
            }
        }
    }
    None
}

/// G-single: a transaction at repeatable read has missed a version of which it sees a consequence.
fn singles(history: &History, graph: &Graph, depends: &dyn Fn(usize) -> Vec<usize>) -> Vec<String> {
    let mut antis: BTreeMap<usize, Vec<(usize, Key)>> = BTreeMap::new();
    for (reader, next, key) in &graph.antis {
        if history.txns[*reader].level == Isolation::RepeatableRead {
            antis.entry(*reader).or_default().push((*next, *key));
        }
    }
    let mut problems = Vec::new();
    for (reader, missed) in antis {
        let below = all_below(reader, depends, history.settled);
        if let Some((next, key)) = missed.iter().find(|(next, _)| below.contains(next)) {
            let what = format!("G-single at {key:?}: one has missed the other's version and depends on it");
            problems.push(tell(history, &what, &[reader, *next]));
        }
    }
    problems
}

fn all_below(from: usize, depends: &dyn Fn(usize) -> Vec<usize>, settled: usize) -> BTreeSet<usize> {
    let (mut below, mut todo) = (BTreeSet::new(), depends(from));
    while let Some(t) = todo.pop() {
        if t >= settled && below.insert(t) {
            todo.extend(depends(t));
        }
    }
    below
}

fn tell(history: &History, what: &str, cycle: &[usize]) -> String {
    let mut text = what.to_owned();
    for t in cycle {
        text += &format!("\n  {}", history.describe(*t));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::history::tag;
    use super::*;
    use cenote_base::rt::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;

    const X: Key = Key { table: 0, id: 1 };
    const Y: Key = Key { table: 0, id: 2 };

    /// A textbook history: transactions by number, `r` and `w` of rows with the version read or replaced.
    struct GrantTable(History);

    impl GrantTable {
        /// Transactions at repeatable read, and one before them that makes both rows.
        fn new(transactions: usize) -> GrantTable {
            let mut history = History::default();
            for _ in 0..=transactions {
                history.begin(0, 0, Isolation::RepeatableRead);
            }
            GrantTable(history).w(0, X, 0, 1).w(0, Y, 0, 2).c(0)
        }

        fn w(mut self, t: usize, key: Key, before: Tag, n: usize) -> GrantTable {
            let after = tag(t, n);
            self.0.note(t, 0, 0, What::Write { key, before, after });
            self
        }

        fn r(mut self, t: usize, key: Key, saw: Tag) -> GrantTable {
            self.0.note(t, 0, 0, What::Read { key, saw });
            self
        }

        fn c(mut self, t: usize) -> GrantTable {
            let note = Arc::new(AtomicU64::new(0));
            self.0.ask(t, note.clone());
            note.store(10 + self.0.event(), Ordering::Relaxed);
            self.0.answer(t, true);
            self
        }

        fn a(mut self, t: usize) -> GrantTable {
            self.0.abort(t);
            self
        }

        fn finds(self, what: &str) {
            let found = check(&self.0);
            match what {
                "" => assert!(found.is_empty(), "{found:#?}"),
                _ => assert!(found.iter().any(|p| p.starts_with(what)), "no {what}: {found:#?}"),
            }
        }
    }

    #[test]
    fn serial_histories_are_clean() {
        let (x0, y0) = (tag(0, 1), tag(0, 2));
        GrantTable::new(2)
            .r(1, X, x0)
            .w(1, X, x0, 1)
            .c(1)
            .r(2, X, tag(1, 1))
            .w(2, Y, y0, 1)
            .c(2)
            .finds("");
    }

    #[test]
    fn each_anomaly_is_named() {
        let (x0, y0) = (tag(0, 1), tag(0, 2));
        // Dirty write: each overwrites the other.
        let g0 = GrantTable::new(2).w(1, X, x0, 1).w(2, X, tag(1, 1), 1);
        g0.w(2, Y, y0, 2).w(1, Y, tag(2, 2), 2).c(1).c(2).finds("G0");
        // Dirty read of what is taken back.
        GrantTable::new(2)
            .w(1, X, x0, 1)
            .r(2, X, tag(1, 1))
            .a(1)
            .c(2)
            .finds("G1a");
        // Read of what its writer wrote over.
        let g1b = GrantTable::new(2).w(1, X, x0, 1).r(2, X, tag(1, 1));
        g1b.w(1, X, tag(1, 1), 2).c(1).c(2).finds("G1b");
        // Each reads the other's write.
        let g1c = GrantTable::new(2).w(1, X, x0, 1).w(2, Y, y0, 1).r(1, Y, tag(2, 1));
        g1c.r(2, X, tag(1, 1)).c(1).c(2).finds("G1c");
        // Lost update: both read the first version, and the second overwrites the first's.
        let lost = GrantTable::new(2).r(1, X, x0).r(2, X, x0).w(1, X, x0, 1).c(1);
        lost.w(2, X, tag(1, 1), 1).c(2).finds("G-single");
        // Read skew: old version of one row, new one of the other.
        let skew = GrantTable::new(2).r(1, X, x0).w(2, X, x0, 1).w(2, Y, y0, 2).c(2);
        skew.r(1, Y, tag(2, 2)).c(1).finds("G-single");
    }

    #[test]
    fn write_skew_is_admitted() {
        let (x0, y0) = (tag(0, 1), tag(0, 2));
        let skew = GrantTable::new(2).r(1, X, x0).r(1, Y, y0).r(2, X, x0).r(2, Y, y0);
        skew.w(1, X, x0, 1).w(2, Y, y0, 1).c(1).c(2).finds("");
    }
}
