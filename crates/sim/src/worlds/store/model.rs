//! What is known of keys, whichever process has put them.
//!
//! Outlives every process. Its lock is the machine's own: no preemption point is passed while it is held. An operation
//! is noted when it begins and when it is answered; one that is not answered may be done, now or later, or not.
//!
//! A key is a register: nothing, or the value of a put. It may become nothing by itself (evicted, lapsed, lost), but no
//! value comes back that has once been seen to be gone: another one was there, or a removal was answered, all of that
//! after its put was answered.

use cenote_store::Put;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::keys::{Kind, LAPSES, stamp_of, value};
use crate::clock;
use cenote_base::rt::Nanos;

/// A put.
#[derive(Debug, Clone)]
struct Written {
    key: usize,
    len: usize,
    begun: u64,
    /// When it was answered that it is there, and as which version.
    stored: Option<(u64, u64)>,
    /// The world's time then.
    at: Nanos,
}

/// A removal; `None`: not answered.
#[derive(Debug, Clone, Copy)]
struct Removal {
    begun: u64,
    ended: Option<u64>,
}

#[derive(Debug, Default)]
struct Key {
    puts: Vec<u64>,
    removals: Vec<Removal>,
    /// Puts that have gone, by when that was known.
    gone: BTreeMap<u64, u64>,
    /// Puts and removals that are under way, or were not answered.
    open: u64,
}

#[derive(Debug)]
pub(super) struct State {
    events: u64,
    parts: usize,
    /// By stamp, from 1 on.
    puts: Vec<Written>,
    keys: Vec<Key>,
}

#[derive(Debug)]
pub(super) struct Model(Mutex<State>);

/// Clocks are read some time before.
const LATE: Nanos = Nanos::from_millis(1);

impl Model {
    pub fn new(keys: usize, parts: usize) -> Model {
        Model(Mutex::new(State {
            events: 0,
            parts,
            puts: Vec::new(),
            keys: (0..keys.max(1)).map(|_| Key::default()).collect(),
        }))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    pub fn kind(&self, key: usize) -> Kind {
        Kind::of(key, self.parts)
    }

    /// Something begins, or ends.
    pub fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// A put begins: the stamp of its value.
    pub fn begin_put(&mut self, key: usize, len: usize) -> u64 {
        let begun = self.event();
        self.puts.push(Written {
            key,
            len,
            begun,
            stored: None,
            at: Nanos::ZERO,
        });
        let stamp = self.puts.len() as u64;
        self.keys[key].puts.push(stamp);
        self.keys[key].open += 1;
        stamp
    }

    /// A put is answered: what is wrong with that.
    pub fn end_put(&mut self, stamp: u64, put: Put) -> Option<String> {
        let (now, put_of) = (self.event(), stamp as usize - 1);
        let (key, begun) = (self.puts[put_of].key, self.puts[put_of].begun);
        self.keys[key].open -= 1;
        match put {
            Put::Stored(version) => {
                self.puts[put_of].stored = Some((now, version));
                self.puts[put_of].at = clock::now();
                self.show(key, begun, Some(stamp));
                None
            }
            Put::Exists if self.kind(key).options().replaces => {
                Some(format!("key {key}: a put that replaces says that another was there"))
            }
            Put::Exists => {
                let others = self.keys[key].puts.iter().any(|other| *other != stamp);
                (!others).then(|| format!("key {key}: the first put ever says that another was there"))
            }
        }
    }

    pub fn begin_remove(&mut self, key: usize) -> usize {
        let begun = self.event();
        let of = &mut self.keys[key];
        of.open += 1;
        of.removals.push(Removal { begun, ended: None });
        of.removals.len() - 1
    }

    pub fn end_remove(&mut self, key: usize, number: usize) {
        let now = self.event();
        let removal = &mut self.keys[key].removals[number];
        removal.ended = Some(now);
        let begun = removal.begun;
        self.keys[key].open -= 1;
        self.show(key, begun, None);
    }

    /// What was there after `begun`: all that had been answered before and is not it is gone.
    fn show(&mut self, key: usize, begun: u64, there: Option<u64>) {
        let now = self.events;
        let before = |stamp: &u64| self.puts[*stamp as usize - 1].stored.is_some_and(|(at, _)| at < begun);
        let over: Vec<u64> = (self.keys[key].puts.iter().copied())
            .filter(|stamp| Some(*stamp) != there && before(stamp))
            .collect();
        for stamp in over {
            self.keys[key].gone.entry(stamp).or_insert(now);
        }
    }

    /// A put that is not answered may be done again: what it had linked was lost, and taken out. So its version is
    /// known when it is answered, to what begins afterwards.
    fn wrong_version(&self, stamp: u64, begun: u64, version: u64) -> Option<String> {
        let put = &self.puts[stamp as usize - 1];
        let (_, stored) = put.stored.filter(|(at, _)| *at < begun)?;
        let key = put.key;
        (stored != version)
            .then(|| format!("key {key}: the value of put {stamp} is version {version}, and was {stored}"))
    }

    /// A value was read, by something that began then: what is wrong with it.
    pub fn saw(&mut self, key: usize, begun: u64, bytes: &[u8], version: u64) -> Option<String> {
        self.event();
        let stamp = stamp_of(bytes).filter(|stamp| (1..=self.puts.len() as u64).contains(stamp));
        let Some(stamp) = stamp else {
            return Some(format!("key {key}: {} bytes that no put has written", bytes.len()));
        };
        let put = self.puts[stamp as usize - 1].clone();
        if put.key != key {
            return Some(format!(
                "key {key}: the value of put {stamp}, which is key {}'s",
                put.key
            ));
        }
        if bytes != value(stamp, put.len) {
            return Some(format!("key {key}: not all bytes are of put {stamp}"));
        }
        let has_come_back = self.keys[key].gone.get(&stamp).is_some_and(|gone| *gone < begun);
        // What a copy says is its key's but where a put or a removal was cut off (docs/store.md).
        let is_doubtful = self.kind(key) == Kind::Copied && self.keys[key].open > 0;
        if has_come_back && !is_doubtful {
            return Some(format!(
                "key {key}: the value of put {stamp} was gone, and is there again"
            ));
        }
        if !is_doubtful {
            self.show(key, begun, Some(stamp));
        }
        self.wrong_version(stamp, begun, version)
    }

    /// Whether something that has lapsed was read by what began at that time.
    pub fn has_lapsed(&self, bytes: &[u8], began: Nanos) -> bool {
        // Two clocks, each a hundredth off since the world began.
        let drift = Nanos(began.raw() / 40);
        let put = stamp_of(bytes).and_then(|stamp| self.puts.get((stamp as usize).checked_sub(1)?));
        put.is_some_and(|put| {
            self.kind(put.key) == Kind::Lapsing && put.stored.is_some() && began > put.at + LAPSES + LATE + drift
        })
    }

    /// Whether a key must be there for what began then and is not over yet, if nothing goes by itself.
    pub fn must_be_there(&self, key: usize, begun: u64) -> bool {
        let of = &self.keys[key];
        let has_come = |stamp: &u64| {
            let put = &self.puts[*stamp as usize - 1];
            let may_have_gone = |removal: &Removal| removal.ended.is_none_or(|ended| ended > put.begun);
            put.stored.is_some_and(|(at, _)| at < begun) && !of.removals.iter().any(may_have_gone)
        };
        self.kind(key) != Kind::Lapsing && of.puts.iter().any(has_come)
    }

    /// Whether any put of a key has begun.
    pub fn may_be_there(&self, key: usize) -> bool {
        !self.keys[key].puts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(state: &mut State, key: usize, version: u64) -> u64 {
        let stamp = state.begin_put(key, 40);
        assert_eq!(state.end_put(stamp, Put::Stored(version)), None);
        stamp
    }

    #[test]
    fn what_was_replaced_does_not_come_back() {
        let model = Model::new(8, 1);
        let mut state = model.lock();
        let one = stored(&mut state, 3, 1);
        let early = state.event();
        let two = stored(&mut state, 3, 2);
        let begun = state.event();
        assert_eq!(
            state.saw(3, early, &value(one, 40), 1),
            None,
            "it may have been read before"
        );
        assert!(
            state
                .saw(3, begun, &value(one, 40), 1)
                .is_some_and(|wrong| wrong.contains("again"))
        );
        assert_eq!(state.saw(3, begun, &value(two, 40), 2), None);
        assert!(state.saw(3, begun, &value(two, 40), 3).is_some(), "another version");
        assert!(state.saw(4, begun, &value(two, 40), 2).is_some(), "another key's");
        assert!(state.saw(3, begun, &value(two, 41), 2).is_some(), "another length");
    }

    #[test]
    fn a_key_is_there_until_a_removal_begins() {
        let model = Model::new(8, 1);
        let mut state = model.lock();
        let unanswered = state.begin_put(0, 40);
        let begun = state.event();
        assert!(!state.must_be_there(0, begun) && state.may_be_there(0) && !state.may_be_there(1));
        assert_eq!(state.end_put(unanswered, Put::Stored(1)), None);
        let begun = state.event();
        assert!(state.must_be_there(0, begun));
        let removal = state.begin_remove(0);
        assert!(!state.must_be_there(0, begun));
        state.end_remove(0, removal);
        let begun = state.event();
        assert!(state.saw(0, begun, &value(unanswered, 40), 1).is_some());
        stored(&mut state, 0, 1);
        let begun = state.event();
        assert!(state.must_be_there(0, begun));
    }
}
