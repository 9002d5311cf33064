//! The users of the space, and which sessions are whose: what members tell their memory nodes, and what these find out
//! about the dead.
//!
//! Outlives every process. Its lock is the machine's own: no preemption point is passed while it is held.

use std::collections::{BTreeMap, BTreeSet};

use cenote_base::rt::Nanos;
use cenote_space::SessionId;

/// What a user's threads are known by in the parts that it maps.
pub(super) type Mark = u64;

/// From a death until memory nodes act on it: more than any message of the dead is under way.
const NOTICE: Nanos = Nanos::from_millis(100);

/// A session of a part.
pub(super) type Place = (u8, SessionId);

#[derive(Debug, Default)]
pub(super) struct Members {
    /// And since when nodes know it.
    dead: BTreeMap<Mark, Nanos>,
    sessions: BTreeMap<Place, Mark>,
    /// Given up by users that could not say so.
    abandoned: BTreeSet<Place>,
}

impl Members {
    /// A session has begun.
    pub fn began(&mut self, mark: Mark, place: Place) {
        self.sessions.insert(place, mark);
    }

    /// A session has ended.
    pub fn ended(&mut self, place: Place) {
        self.sessions.remove(&place);
        self.abandoned.remove(&place);
    }

    /// Its user needs it no more.
    pub fn abandon(&mut self, place: Place) {
        self.abandoned.insert(place);
    }

    /// The process is gone.
    pub fn died(&mut self, mark: Mark, now: Nanos) {
        self.dead.insert(mark, now + NOTICE);
    }

    /// Marks that are known to be of processes that are gone.
    pub fn dead(&self, now: Nanos) -> BTreeSet<Mark> {
        let known = self.dead.iter().filter(|(_, since)| **since <= now);
        known.map(|(mark, _)| *mark).collect()
    }

    /// Sessions of a part that are to be ended.
    pub fn over(&self, part: u8, now: Nanos) -> Vec<SessionId> {
        let is_over = |place: &Place, mark: &Mark| {
            self.abandoned.contains(place) || self.dead.get(mark).is_some_and(|since| *since <= now)
        };
        let of_part = self.sessions.iter().filter(|((of, _), _)| *of == part);
        let over = of_part.filter(|(place, mark)| is_over(place, mark));
        over.map(|((_, session), _)| *session).collect()
    }

    /// Sessions of a part that may still be in use: a keeper that begins is told of them.
    pub fn going_on(&self, part: u8) -> Vec<SessionId> {
        let of_part = self.sessions.keys().filter(|(of, _)| *of == part);
        of_part.map(|(_, session)| *session).collect()
    }
}
