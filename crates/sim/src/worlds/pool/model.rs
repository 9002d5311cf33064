//! What is known of the objects of the space, whichever process has allocated them: what must be in them, and what was
//! told of their words.
//!
//! Outlives every process. Its lock is the machine's own: no preemption point is passed while it is held. A process
//! that changes something says so before, and says when it is done: one that is killed in between, or gets no answer,
//! leaves what may be or may not be.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_space::GlobalAddress;

use crate::check::words::{self, Kind, Op, What};

/// A word of its own, and all that was done to it.
#[derive(Debug)]
pub(in crate::worlds) struct Word {
    pub at: GlobalAddress,
    pub kind: Kind,
    pub ops: Vec<Op>,
}

/// An object that a lock protects. All of it follows from the number of its version.
#[derive(Debug, Clone, Copy)]
pub(in crate::worlds) struct Text {
    pub lock: GlobalAddress,
    pub at: GlobalAddress,
    pub len: usize,
    /// The last version whose writer was told that it is written.
    pub version: u64,
}

/// An object that one thread uses.
#[derive(Debug, Clone)]
pub(in crate::worlds) struct Own {
    pub at: GlobalAddress,
    pub bytes: Vec<u8>,
    /// What is being written, and where. If its writer does not live, or was not told how it went, it may come at any
    /// time.
    pub pending: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug, Default)]
pub(in crate::worlds) struct State {
    events: u64,
    pub words: Vec<Word>,
    pub texts: Vec<Text>,
    pub own: BTreeMap<GlobalAddress, Own>,
    /// All that is allocated: where it ends.
    spans: BTreeMap<GlobalAddress, u64>,
    /// By part and slot: the newest generation of the extent that any process was given. Addresses of older ones stay
    /// refused, whatever their place holds by now.
    newest: BTreeMap<(u8, u32), u32>,
    /// Allocations that have begun, and those that have ended with an answer.
    begun: u64,
    answered: u64,
    /// Objects that may be left of allocations and frees without an answer.
    pub unknown: u64,
}

#[derive(Debug, Default)]
pub(in crate::worlds) struct Model(Mutex<State>);

/// Bytes of a version of a text.
pub(in crate::worlds) fn bytes_of(version: u64, len: usize) -> Vec<u8> {
    let word = |n: usize| cenote_base::random::mix(version << 20 | n as u64).to_le_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

impl Own {
    /// Whether these may be its bytes: each is what was written last, or what may have been written.
    pub fn fits(&self, found: &[u8]) -> bool {
        let is_pending = |n: usize| {
            let covers = |(at, bytes): &&(usize, Vec<u8>)| (*at..at + bytes.len()).contains(&n);
            let mut over = self.pending.iter().filter(covers);
            over.any(|(at, bytes)| bytes[n - at] == found[n])
        };
        found.len() == self.bytes.len() && (0..found.len()).all(|n| found[n] == self.bytes[n] || is_pending(n))
    }

    /// The first byte that cannot be, for people.
    pub fn first_wrong(&self, found: &[u8]) -> String {
        let one = |n: usize| Own {
            at: self.at,
            bytes: vec![self.bytes[n]],
            pending: (self.pending.iter())
                .filter(|(at, bytes)| (*at..at + bytes.len()).contains(&n))
                .map(|(at, bytes)| (0, vec![bytes[n - at]]))
                .collect(),
        };
        let wrong = (0..found.len().min(self.bytes.len())).find(|n| !one(*n).fits(&found[*n..=*n]));
        match wrong {
            Some(n) => format!("byte {n} of {} is {}, not {}", found.len(), found[n], self.bytes[n]),
            None => format!("{} bytes of {}", found.len(), self.bytes.len()),
        }
    }
}

impl Model {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An extent of a part that holds an object, drawn.
    pub fn any_extent(&self, part: u8, draw: u64) -> Option<GlobalAddress> {
        let extents = self.lock().extents(part);
        let nth = draw.checked_rem(extents.len() as u64)?;
        extents.into_iter().nth(nth as usize)
    }
}

/// The extent of an address.
pub(in crate::worlds) fn extent_of(at: GlobalAddress) -> GlobalAddress {
    GlobalAddress::new(at.part(), at.slot(), 0, at.generation()).unwrap_or(GlobalAddress::NULL)
}

impl State {
    fn extents(&self, part: u8) -> BTreeSet<GlobalAddress> {
        let of_part = self.spans.keys().filter(|at| at.part() == part);
        of_part.map(|at| extent_of(*at)).collect()
    }

    /// The number of the next event.
    pub fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    // ---- allocation ----

    pub fn begin_alloc(&mut self) {
        self.begun += 1;
    }

    /// An object was allocated; what is wrong about it.
    pub fn allocated(&mut self, at: GlobalAddress, len: u64) -> Option<String> {
        let wrong = self.allocated_for_a_while(at, len);
        self.spans.insert(at, at.raw() + len);
        wrong
    }

    /// An object was allocated that goes with its session; what is wrong about it.
    pub fn allocated_for_a_while(&mut self, at: GlobalAddress, len: u64) -> Option<String> {
        self.answered += 1;
        let newest = self.newest.entry((at.part(), at.slot())).or_default();
        *newest = at.generation().max(*newest);
        let before = self.spans.range(..=at).next_back().filter(|(_, end)| **end > at.raw());
        let after = self
            .spans
            .range(at..)
            .next()
            .filter(|(next, _)| next.raw() < at.raw() + len);
        let overlap = before.or(after).map(|(other, _)| *other);
        overlap.map(|other| format!("{len} bytes were allocated at {at}, where an object at {other} lies"))
    }

    /// There was no room.
    pub fn not_allocated(&mut self) {
        self.answered += 1;
    }

    /// An object is about to be freed: others may get its place before the process that frees it hears that it is.
    pub fn begin_free(&mut self, at: GlobalAddress) {
        self.spans.remove(&at);
        self.own.remove(&at);
    }

    /// Objects that may be there though no process knows of them.
    pub fn leaks_most(&self) -> u64 {
        self.unknown + (self.begun - self.answered)
    }

    /// If no process allocates now, and nothing may be there that is unknown: how many allocations there were.
    pub fn quiet(&self) -> Option<u64> {
        (self.leaks_most() == 0).then_some(self.begun)
    }

    /// Whether an object begins or lies there.
    pub fn is_allocated(&self, at: GlobalAddress) -> bool {
        let before = self.spans.range(..=at).next_back();
        before.is_some_and(|(_, end)| *end > at.raw())
    }

    /// Whether the extent of an address was handed out anew since the address was given.
    pub fn is_past(&self, at: GlobalAddress) -> bool {
        let newest = self.newest.get(&(at.part(), at.slot()));
        newest.is_some_and(|newest| *newest > at.generation())
    }

    /// All that is allocated, and how many bytes each has.
    pub fn all(&self) -> Vec<(GlobalAddress, u64)> {
        self.spans.iter().map(|(at, end)| (*at, end - at.raw())).collect()
    }

    // ---- words ----

    pub fn begin_op(&mut self, word: usize, session: usize, what: What) -> usize {
        let begun = self.event();
        let ops = &mut self.words[word].ops;
        ops.push(Op {
            session,
            what,
            begun,
            ended: None,
        });
        ops.len() - 1
    }

    pub fn end_op(&mut self, word: usize, op: usize, saw: u64) {
        let at = self.event();
        self.words[word].ops[op].ended = Some((at, saw));
    }

    /// What is wrong with a word, with what leads to it.
    pub fn check_word(&self, word: usize) -> Option<String> {
        let Word { at, kind, ops } = &self.words[word];
        let problems = words::check(*kind, ops);
        (!problems.is_empty()).then(|| format!("the word at {at}, a {kind:?}: {}", problems.join("\n")))
    }

    // ---- objects of one thread ----

    pub fn begin_write(&mut self, at: GlobalAddress, place: usize, bytes: &[u8]) {
        if let Some(own) = self.own.get_mut(&at) {
            own.pending.push((place, bytes.to_vec()));
        }
    }

    /// The write that began last is done.
    pub fn end_write(&mut self, at: GlobalAddress) {
        if let Some(own) = self.own.get_mut(&at)
            && let Some((place, bytes)) = own.pending.pop()
        {
            let range: Range<usize> = place..place + bytes.len();
            own.bytes[range].copy_from_slice(&bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u32) -> GlobalAddress {
        GlobalAddress::new(1, 0, offset, 1).expect("fits")
    }

    #[test]
    fn what_overlaps_is_seen() {
        let mut state = State::default();
        for (offset, len, is_wrong) in [(0, 64, false), (64, 64, false), (32, 8, true), (120, 100, true)] {
            state.begin_alloc();
            assert_eq!(state.allocated(at(offset), len).is_some(), is_wrong, "{offset}");
        }
        state.begin_free(at(0));
        assert!(!state.is_allocated(at(0)) && state.is_allocated(at(70)));
        assert_eq!(state.quiet(), Some(4));
        state.begin_alloc();
        assert_eq!((state.quiet(), state.leaks_most()), (None, 1));
    }

    /// A stale address was excused where its place was given again: that is when a check of generations is needed.
    #[test]
    fn a_place_that_was_given_again_excuses_no_address_of_before() {
        let mut state = State::default();
        let of = |generation| GlobalAddress::new(1, 3, 64, generation).expect("fits");
        assert!(state.allocated(of(1), 8).is_none() && !state.is_past(of(1)));
        state.begin_free(of(1));
        assert!(state.allocated(of(2), 8).is_none());
        assert_eq!((state.is_past(of(1)), state.is_past(of(2))), (true, false));
    }

    #[test]
    fn what_may_have_been_written_fits() {
        let mut state = State::default();
        let own = Own {
            at: at(0),
            bytes: vec![0; 4],
            pending: Vec::new(),
        };
        state.own.insert(at(0), own);
        state.begin_write(at(0), 1, &[7, 7]);
        let own = &state.own[&at(0)];
        assert!(own.fits(&[0, 0, 0, 0]) && own.fits(&[0, 7, 0, 0]) && !own.fits(&[7, 0, 0, 0]));
        state.end_write(at(0));
        let own = &state.own[&at(0)];
        assert!(own.fits(&[0, 7, 7, 0]) && !own.fits(&[0, 7, 0, 0]));
        assert!(own.first_wrong(&[0, 7, 0, 0]).starts_with("byte 2"));
    }
}
