//! What has to be so, whatever befalls the pool: the user of each memory, what is in it, and what may be gone.
//!
//! A grant is *used* from when its file is mapped until it is not, or its process has ended.
//!
//! - One process at a time uses a label's memory, and epochs rise from one to the next: a fenced one does not come
//!   back.
//! - Memory has what was written last, or zeros if it is new. A write under way when its process died is there or not.
//! - A label keeps its grant, unless it was given back or freed, or it had no holder and is one that may go then.
//! - Numbers of grants rise, and what was freed is given to no later process.

use std::collections::{BTreeMap, BTreeSet};

use cenote_base::rt::Nanos;

use cenote_pool::holder::GrantedMemory;
use cenote_pool::{GrantId, Phase, PoolStatus};

use super::label::Label;
use crate::clock;

/// Words of a grant that are looked at.
pub(super) const WORDS: usize = 16;

/// A word's bytes in the file: somewhere in each grant of one extent or more.
pub(super) fn offset(word: usize) -> u64 {
    word as u64 * (128 << 10) + 8 * (word as u64 % 5)
}

/// The user of memory, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    pub label: Label,
    pub grant: GrantId,
    pub epoch: u64,
    pub process: u32,
    /// When it was asked for.
    pub asked: Nanos,
}

impl Use {
    pub fn of(label: Label, memory: &GrantedMemory, asked: Nanos) -> Use {
        Use {
            label,
            grant: memory.id(),
            epoch: memory.epoch(),
            process: crate::clock::process(),
            asked,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Word {
    value: u64,
    /// What is being written.
    coming: Option<u64>,
}

/// A label's memory.
#[derive(Debug, Default)]
struct Memory {
    /// Its last user.
    last: Option<Use>,
    in_use: bool,
    words: [Word; WORDS],
}

/// What was acknowledged at some time.
#[derive(Debug)]
pub(super) struct Known {
    expected: Vec<(Label, GrantId)>,
    freed: BTreeSet<GrantId>,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    labels: BTreeMap<Label, Memory>,
    /// A process has asked for their end: an answer may be lost, and what was asked come late.
    may_go: BTreeSet<GrantId>,
    /// Freed, and when that was answered.
    freed: BTreeMap<GrantId, Nanos>,
}

impl Model {
    fn known(&mut self, label: Label) -> &mut Memory {
        self.labels.entry(label).or_default()
    }

    /// A label's memory is mapped.
    ///
    /// # Errors
    /// Another process uses the memory, or what it is given contradicts what was given before.
    pub fn begin(&mut self, new: Use, is_running: impl Fn(u32) -> bool) -> Result<(), String> {
        // A former holder may come late: until its node has freed it, and ended the processes that map it, it is no one
        // else's.
        if self.freed.get(&new.grant).is_some_and(|freed| *freed < new.asked) {
            return Err(format!("{new:?}: its grant was freed before it was asked for"));
        }
        let known = self.labels.entry(new.label).or_default();
        if let Some(last) = known.last {
            if known.in_use && last.process != new.process && is_running(last.process) {
                return Err(format!("two use it: {last:?}, and now {new:?}"));
            }
            if last.grant == new.grant && new.epoch <= last.epoch {
                return Err(format!(
                    "{new:?} was fenced before {last:?} used it, and uses it all the same"
                ));
            }
            if new.grant < last.grant {
                return Err(format!("{new:?} comes after {last:?}: numbers rise"));
            }
            if new.grant != last.grant {
                if !self.may_go.contains(&last.grant) && !new.label.is_fleeting() {
                    return Err(format!(
                        "{new:?} is new memory: that of {last:?} is lost, and was not given back"
                    ));
                }
                known.words = Default::default();
            }
        }
        (known.last, known.in_use) = (Some(new), true);
        Ok(())
    }

    /// It is mapped no more.
    pub fn end(&mut self, label: Label) {
        self.known(label).in_use = false;
    }

    /// Still its user's, as far as the model knows.
    fn check(known: &Memory, user: Use) -> Result<(), String> {
        match known.last == Some(user) {
            true => Ok(()),
            false => Err(format!("{user:?} uses what {:?} has", known.last)),
        }
    }

    /// A word is about to be written.
    ///
    /// # Errors
    /// Another process uses the memory.
    pub fn writes(&mut self, user: Use, word: usize, value: u64) -> Result<(), String> {
        let known = self.known(user.label);
        known.words[word].coming = Some(value);
        Self::check(known, user)
    }

    /// It was written.
    ///
    /// # Errors
    /// Another process uses the memory.
    pub fn wrote(&mut self, user: Use, word: usize) -> Result<(), String> {
        let known = self.known(user.label);
        let word = &mut known.words[word];
        word.value = word.coming.take().unwrap_or(word.value);
        Self::check(known, user)
    }

    /// A word was read.
    ///
    /// # Errors
    /// Another process uses the memory, or the word holds another value than was written last.
    pub fn read(&mut self, user: Use, word: usize, found: u64) -> Result<(), String> {
        let known = self.known(user.label);
        let expected = &mut known.words[word];
        if found != expected.value && Some(found) != expected.coming {
            return Err(format!("{user:?} finds {found:#x} in word {word}, not {expected:x?}"));
        }
        *expected = Word {
            value: found,
            coming: None,
        };
        Self::check(known, user)
    }

    /// A process asks for a grant's end.
    pub fn may_go(&mut self, grant: GrantId) {
        self.may_go.insert(grant);
    }

    /// And was told that it has come.
    pub fn is_freed(&mut self, grant: GrantId) {
        self.freed.insert(grant, clock::now());
    }

    /// What a manager that is asked from now on has to know: a later one too, if it takes over.
    pub fn known_now(&self) -> Known {
        Known {
            expected: self.expected(),
            freed: self.freed.keys().copied().collect(),
        }
    }

    /// What is wrong with a status that was asked for when so much was known.
    pub fn contradicts(&self, known: &Known, status: &PoolStatus) -> Vec<String> {
        let (lasting, mut problems) = (self.expected(), Vec::new());
        let is_there = |id: GrantId| status.grants.iter().any(|grant| grant.id == id);
        for (label, id) in known.expected.iter().filter(|known| lasting.contains(known)) {
            if !is_there(*id) {
                problems.push(format!("{label:?} has grant {id}, and a manager does not know it"));
            }
        }
        for grant in status.grants.iter().filter(|grant| known.freed.contains(&grant.id)) {
            if matches!(grant.phase, Phase::Held | Phase::Idle) {
                problems.push(format!(
                    "grant {} was freed, and a manager has it as {}",
                    grant.id, grant.phase
                ));
            }
        }
        problems
    }

    /// What has to be in the grant table in the end, by label.
    pub fn expected(&self) -> Vec<(Label, GrantId)> {
        let lasting = self.labels.iter().filter(|(label, _)| !label.is_fleeting());
        let grants = lasting.filter_map(|(label, known)| Some((*label, known.last?.grant)));
        grants.filter(|(_, grant)| !self.may_go.contains(grant)).collect()
    }
}
