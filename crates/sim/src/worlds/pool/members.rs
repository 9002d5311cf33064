//! The users of the space, and which sessions are whose: what members tell their memory nodes, and what these find out
//! about the dead.
//!
//! Outlives every process. Its lock is the machine's own: no preemption point is passed while it is held.

use std::collections::{BTreeMap, BTreeSet};

use cenote_base::rt::Nanos;
use cenote_space::SessionId;

/// What a user's threads are known by in the parts that it maps.
pub(in crate::worlds) type Mark = u64;

/// From a death until memory nodes act on it.
const NOTICE: Nanos = Nanos::from_millis(5);

/// A session of a part.
pub(in crate::worlds) type Place = (u8, SessionId);

#[derive(Debug, Default)]
pub(in crate::worlds) struct Members {
    /// And since when nodes know it.
    dead: BTreeMap<Mark, Nanos>,
    /// Those that were silent for too long, and live: they map nothing.
    fenced: BTreeSet<Mark>,
    /// By pod: the dead and the fenced of which nothing can land there any more.
    closed: BTreeSet<(usize, Mark)>,
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

    /// The process is silent for too long.
    pub fn fence(&mut self, mark: Mark) {
        self.fenced.insert(mark);
    }

    /// Whether the process is told so.
    pub fn is_fenced(&self, mark: Mark) -> bool {
        self.fenced.contains(&mark)
    }

    /// Whether a pod admits the process.
    pub fn is_gone(&self, mark: Mark) -> bool {
        self.fenced.contains(&mark) || self.dead.contains_key(&mark)
    }

    /// Those whose calls a pod is to refuse.
    pub fn to_close(&self, pod: usize, now: Nanos) -> Vec<Mark> {
        let gone = self.dead(now).into_iter().chain(self.fenced.iter().copied());
        gone.filter(|mark| !self.closed.contains(&(pod, *mark))).collect()
    }

    /// Nothing of it can land there any more.
    pub fn close(&mut self, pod: usize, mark: Mark) {
        self.closed.insert((pod, mark));
    }

    /// Whether nothing of it can land in any of these pods: what it had is others'.
    pub fn is_over(&self, mark: Mark, pods: &[usize]) -> bool {
        self.is_gone(mark) && pods.iter().all(|pod| self.closed.contains(&(*pod, mark)))
    }

    /// Marks that are known to be of processes that are gone.
    pub fn dead(&self, now: Nanos) -> BTreeSet<Mark> {
        let known = self.dead.iter().filter(|(_, since)| **since <= now);
        known.map(|(mark, _)| *mark).collect()
    }

    /// Sessions of a part that are to be ended.
    pub fn over(&self, part: u8, pods: &[usize]) -> Vec<SessionId> {
        let is_over = |place: &Place, mark: &Mark| self.abandoned.contains(place) || self.is_over(*mark, pods);
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
