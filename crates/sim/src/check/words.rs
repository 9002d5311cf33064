//! Words that many change at once: what each operation was told has to fit one order of all of them, in which none
//! comes before one that had ended when it began (linearizability).
//!
//! Each change makes a value that no other makes, so a value tells its place in the order, and there is nothing to
//! search for:
//!
//! | word | changed by | the order |
//! |---|---|---|
//! | [`Kind::Counter`] | adding 1 | a change that was told `n` is number `n` |
//! | [`Kind::Chain`] | compare-and-swap to a new value | each change names the one before |
//! | [`Kind::Register`] | storing a new value | zones of values (Gibbons and Korach, *Testing shared memories*, 1997) |
//!
//! Of an operation without an answer it is not known whether it was done, nor when: it may be done at any time after it
//! began.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How a word is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By adding 1.
    Counter,
    /// By compare-and-swap to a value that no other writes.
    Chain,
    /// By storing a value that no other writes.
    Register,
}

/// What was done to a word. All words begin as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Read it.
    Load,
    /// Added 1.
    Add,
    /// Wrote `new` in place of `expected`, if that was there.
    Swap {
        /// What was to be there.
        expected: u64,
        /// What was to come in its place.
        new: u64,
    },
    /// Wrote it.
    Store(u64),
}

/// One operation. Events rise over all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The client.
    pub session: usize,
    /// What.
    pub what: What,
    /// The event of its beginning.
    pub begun: u64,
    /// That of its end, and the word that it was told; nothing where no answer came.
    pub ended: Option<(u64, u64)>,
}

impl Op {
    fn end(&self) -> u64 {
        self.ended.map_or(u64::MAX, |(at, _)| at)
    }

    fn saw(&self) -> Option<u64> {
        self.ended.map(|(_, saw)| saw)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "session {}, from event {}: {:?}, ",
            self.session, self.begun, self.what
        )?;
        match self.ended {
            Some((at, saw)) => write!(f, "told {saw} at event {at}"),
            None => f.write_str("not answered"),
        }
    }
}

/// An operation's place: the number of changes before it, and after it.
struct Placed<'a> {
    op: &'a Op,
    before: u64,
    after: u64,
}

/// What is wrong with the operations of one word.
pub fn check(kind: Kind, ops: &[Op]) -> Vec<String> {
    match kind {
        Kind::Counter => counter(ops),
        Kind::Chain => chain(ops),
        Kind::Register => register(ops),
    }
}

fn counter(ops: &[Op]) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut placed, mut seen) = (Vec::new(), BTreeMap::new());
    for op in ops {
        let Some(saw) = op.saw() else { continue };
        let changes = u64::from(op.what == What::Add);
        if changes == 1
            && let Some(other) = seen.insert(saw, op)
        {
            problems.push(format!("two additions were told {saw}: {other}; {op}"));
        }
        let (before, after) = (saw, saw.saturating_add(changes));
        placed.push(Placed { op, before, after });
    }
    let most = placed.iter().map(|p| p.after).max().unwrap_or(0);
    let unanswered = ops.iter().filter(|op| op.what == What::Add && op.ended.is_none());
    let made = (seen.len() + unanswered.count()) as u64;
    if most > made {
        problems.push(format!("it came to {most}, by {made} additions at most"));
    }
    problems.extend(out_of_order(placed));
    problems
}

fn chain(ops: &[Op]) -> Vec<String> {
    let mut problems = Vec::new();
    let told: BTreeSet<u64> = ops.iter().filter_map(Op::saw).collect();
    let mut next: BTreeMap<u64, (u64, &Op)> = BTreeMap::new();
    for op in ops {
        let What::Swap { expected, new } = op.what else {
            continue;
        };
        let is_done = match op.saw() {
            Some(saw) => saw == expected,
            // Whether it was done is seen by its value.
            None => told.contains(&new),
        };
        if is_done && let Some((_, other)) = next.insert(expected, (new, op)) {
            problems.push(format!("both took the place of {expected}: {other}; {op}"));
        }
    }
    let (mut stage, mut value) = (BTreeMap::from([(0u64, 0u64)]), 0);
    while let Some((new, _)) = next.get(&value) {
        value = *new;
        if stage.insert(value, stage.len() as u64).is_some() {
            break;
        }
    }
    let lost = next.iter().filter(|(expected, _)| !stage.contains_key(expected));
    problems.extend(lost.map(|(_, (_, op))| format!("nothing leads to it, or it was lost: {op}")));
    let mut placed = Vec::new();
    for op in ops {
        let Some(saw) = op.saw() else { continue };
        let Some(before) = stage.get(&saw).copied() else {
            problems.push(format!("no client has written what it was told: {op}"));
            continue;
        };
        let is_change = matches!(op.what, What::Swap { expected, .. } if expected == saw);
        let after = before + u64::from(is_change);
        placed.push(Placed { op, before, after });
    }
    problems.extend(out_of_order(placed));
    problems
}

/// Whether one had ended before another began, which has its place before it.
fn out_of_order(placed: Vec<Placed<'_>>) -> Option<String> {
    let mut by_end: Vec<&Placed<'_>> = placed.iter().collect();
    by_end.sort_by_key(|p| p.op.end());
    let mut by_begin: Vec<&Placed<'_>> = placed.iter().collect();
    by_begin.sort_by_key(|p| p.op.begun);
    let mut ended = by_end.into_iter().peekable();
    let mut furthest: Option<&Placed<'_>> = None;
    for later in by_begin {
        while let Some(earlier) = ended.next_if(|p| p.op.end() < later.op.begun) {
            if furthest.is_none_or(|f| earlier.after > f.after) {
                furthest = Some(earlier);
            }
        }
        if let Some(earlier) = furthest.filter(|f| f.after > later.before) {
            return Some(format!("it goes back: {}; and after that {}", earlier.op, later.op));
        }
    }
    None
}

/// From when to when a value is the word's, at least: it has to be there between `first_end` and `last_begin`, or at
/// one moment between the two.
struct Zone {
    value: u64,
    first_end: u64,
    last_begin: u64,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

fn register(ops: &[Op]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut writes = BTreeMap::from([(0u64, (0u64, 0u64))]);
    for op in ops {
        if let What::Store(value) = op.what {
            writes.insert(value, (op.begun, op.end()));
        }
    }
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    let mut enter = |value, begun: u64, end: u64| {
        let zone = zones.entry(value).or_insert(Zone {
            value,
            first_end: end,
            last_begin: begun,
        });
        zone.first_end = zone.first_end.min(end);
        zone.last_begin = zone.last_begin.max(begun);
    };
    for op in ops.iter().filter(|op| op.what == What::Load) {
        let Some(saw) = op.saw() else { continue };
        match writes.get(&saw) {
            None => problems.push(format!("no client has written what it was told: {op}")),
            Some((begun, _)) if op.end() < *begun => problems.push(format!("it was told before it was written: {op}")),
            Some(_) => enter(saw, op.begun, op.end()),
        }
    }
    for (value, (begun, end)) in &writes {
        // One that was not answered, and whose effect no client saw, need not have been done.
        if *end != u64::MAX || ops.iter().any(|op| op.what == What::Load && op.saw() == Some(*value)) {
            enter(*value, *begun, *end);
        }
    }
    problems.extend(zones_that_clash(zones.into_values().collect()));
    problems
}

fn zones_that_clash(zones: Vec<Zone>) -> Option<String> {
    let (mut forward, backward): (Vec<Zone>, Vec<Zone>) = zones.into_iter().partition(Zone::is_forward);
    forward.sort_by_key(|zone| zone.first_end);
    let told = |zone: &Zone| format!("{} from event {} to {}", zone.value, zone.first_end, zone.last_begin);
    let twice = forward.windows(2).find(|two| two[1].first_end < two[0].last_begin);
    if let Some(two) = twice {
        return Some(format!(
            "two values at once, or one that came back: {}; {}",
            told(&two[0]),
            told(&two[1])
        ));
    }
    let lost = backward.iter().find_map(|inner| {
        let around = |outer: &&Zone| outer.first_end < inner.last_begin && inner.first_end < outer.last_begin;
        Some((inner, forward.iter().find(around)?))
    });
    lost.map(|(inner, outer)| {
        format!(
            "{} was lost, or came back: it was to be there between events {} and {}, and {} was",
            inner.value,
            inner.last_begin,
            inner.first_end,
            told(outer)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client, its operation, from when to when, and its answer.
    fn op(what: What, begun: u64, ended: Option<(u64, u64)>) -> Op {
        Op {
            session: 1,
            what,
            begun,
            ended,
        }
    }

    fn swap(expected: u64, new: u64, begun: u64, ended: Option<(u64, u64)>) -> Op {
        op(What::Swap { expected, new }, begun, ended)
    }

    #[test]
    fn counters() {
        let good = [
            op(What::Add, 1, Some((4, 1))),
            op(What::Add, 2, Some((3, 0))),
            op(What::Add, 5, None),
            op(What::Load, 6, Some((7, 3))),
        ];
        assert_eq!(check(Kind::Counter, &good), Vec::<String>::new());
        let lost = [op(What::Add, 1, Some((2, 0))), op(What::Load, 3, Some((4, 0)))];
        assert_eq!(check(Kind::Counter, &lost).len(), 1);
        let twice = [op(What::Add, 1, Some((4, 0))), op(What::Add, 2, Some((3, 0)))];
        assert_eq!(check(Kind::Counter, &twice).len(), 1);
        let too_many = [op(What::Add, 1, Some((2, 0))), op(What::Load, 3, Some((4, 2)))];
        assert_eq!(check(Kind::Counter, &too_many).len(), 1);
    }

    #[test]
    fn chains() {
        let good = [
            swap(0, 10, 1, Some((2, 0))),
            swap(10, 20, 3, None),
            swap(10, 30, 4, Some((6, 20))),
            op(What::Load, 7, Some((8, 20))),
        ];
        assert_eq!(check(Kind::Chain, &good), Vec::<String>::new());
        let both = [swap(0, 10, 1, Some((2, 0))), swap(0, 20, 3, Some((4, 0)))];
        assert!(!check(Kind::Chain, &both).is_empty());
        let back = [swap(0, 10, 1, Some((2, 0))), op(What::Load, 3, Some((4, 0)))];
        assert_eq!(check(Kind::Chain, &back).len(), 1);
        let nobody = [op(What::Load, 3, Some((4, 5)))];
        assert_eq!(check(Kind::Chain, &nobody).len(), 1);
        let lost = [swap(0, 10, 1, Some((2, 0))), swap(7, 20, 3, Some((4, 7)))];
        assert!(!check(Kind::Chain, &lost).is_empty());
    }

    #[test]
    fn registers() {
        let good = [
            op(What::Store(1), 1, Some((6, 0))),
            op(What::Load, 2, Some((3, 0))),
            op(What::Load, 4, Some((5, 1))),
            op(What::Store(2), 7, None),
            op(What::Load, 8, Some((9, 1))),
            op(What::Load, 10, Some((11, 2))),
        ];
        assert_eq!(check(Kind::Register, &good), Vec::<String>::new());
        let stale = [op(What::Store(1), 1, Some((2, 0))), op(What::Load, 3, Some((4, 0)))];
        assert_eq!(check(Kind::Register, &stale).len(), 1);
        // One store, done twice.
        let came_back = [
            op(What::Store(1), 1, Some((12, 0))),
            op(What::Load, 2, Some((3, 1))),
            op(What::Store(2), 4, Some((5, 0))),
            op(What::Load, 6, Some((7, 2))),
            op(What::Load, 8, Some((9, 1))),
        ];
        assert_eq!(check(Kind::Register, &came_back).len(), 1);
        let early = [op(What::Load, 1, Some((2, 1))), op(What::Store(1), 3, Some((4, 0)))];
        assert_eq!(check(Kind::Register, &early).len(), 1);
    }
}
