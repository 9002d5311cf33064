//! What hosts did last to the lines of devices: kept always, told when something is wrong.
//!
//! A step is noted where a line changes its state, never at a plain hit, so that it costs a store beside a miss. Steps
//! of one thread along neighbouring lines are one.

use super::host::Id;
use cenote_base::rt::Nanos;
use std::fmt;

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Fetched,
    Changed,
    WritesBack,
    Flushed,
    Evicted,
    Invalidated,
    StoredPast,
    ReadStale,
    WroteStale,
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Deed::Fetched => "fetches",
            Deed::Changed => "makes dirty",
            Deed::WritesBack => "begins to write back",
            Deed::Flushed => "has flushed",
            Deed::Evicted => "evicts, dirty,",
            Deed::Invalidated => "drops",
            Deed::StoredPast => "stores past the cache",
            Deed::ReadStale => "reads, stale,",
            Deed::WroteStale => "changes, stale,",
        })
    }
}

/// A step of a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub time: Nanos,
    pub host: u32,
    /// The view among those of the host.
    pub view: u32,
    pub thread: u32,
    pub deed: Deed,
    pub first: Id,
    pub lines: u32,
}

impl Step {
    pub(crate) fn concerns(&self, host: u32, line: Id) -> bool {
        self.host == host && (self.first..self.first + self.lines).contains(&line)
    }

    /// Whether `next` goes on where this one ended.
    fn is_followed_by(&self, next: &Step) -> bool {
        let who = |s: &Step| (s.host, s.view, s.thread, s.deed);
        who(self) == who(next) && next.first == self.first + self.lines
    }
}

/// Steps that are kept.
const ROOM: usize = 1 << 14;

/// The last steps.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    ring: Vec<Step>,
    /// Where the next one goes.
    next: usize,
}

impl Steps {
    pub(crate) fn add(&mut self, step: Step) {
        let last = self.next.checked_sub(1).unwrap_or(ROOM - 1);
        match self.ring.get_mut(last) {
            Some(last) if last.is_followed_by(&step) => {
                last.lines += step.lines;
                return;
            }
            _ => {}
        }
        if self.ring.len() < ROOM {
            self.ring.push(step);
        } else {
            self.ring[self.next] = step;
        }
        self.next = (self.next + 1) % ROOM;
    }

    /// Newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Step> {
        let (newer, older) = self.ring.split_at(self.next.min(self.ring.len()));
        newer.iter().rev().chain(older.iter().rev())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(first: Id) -> Step {
        Step {
            time: Nanos(u64::from(first)),
            host: 0,
            view: 0,
            thread: 1,
            deed: Deed::Fetched,
            first,
            lines: 1,
        }
    }

    #[test]
    fn the_newest_are_kept_and_neighbours_are_one() {
        let mut steps = Steps::default();
        (0..3).for_each(|line| steps.add(step(line)));
        assert_eq!(steps.newest().count(), 1);
        assert!(steps.newest().all(|s| s.concerns(0, 2) && !s.concerns(0, 3)));
        (0..ROOM as Id + 5).for_each(|i| steps.add(step(10 + 2 * i)));
        assert_eq!(steps.newest().count(), ROOM);
        let firsts: Vec<Id> = steps.newest().take(2).map(|s| s.first).collect();
        assert_eq!(firsts, [10 + 2 * (ROOM as Id + 4), 10 + 2 * (ROOM as Id + 3)]);
    }
}
