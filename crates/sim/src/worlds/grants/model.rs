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
use cenote_fabric::FileRange;
use cenote_pool::holder::GrantedMemory;
use cenote_pool::{GrantId, Phase, PoolStatus};

use super::doubts::Doubts;
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
    /// The host that shares the device with others, and what it is of the device.
    pub host: Option<usize>,
    pub range: Option<FileRange>,
}

impl Use {
    pub fn of(label: Label, memory: &GrantedMemory, asked: Nanos, host: Option<usize>) -> Use {
        Use {
            label,
            grant: memory.id(),
            epoch: memory.epoch(),
            process: crate::clock::process(),
            asked,
            host,
            range: memory.range(),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Word {
    value: u64,
    /// What is being written.
    coming: Option<u64>,
    /// What it was since it was flushed last: memory may hold that still, behind a cache.
    older: Vec<u64>,
    /// The cache was lost.
    is_lossy: bool,
}

impl Word {
    fn may_be(&self, found: u64) -> bool {
        found == self.value || self.coming == Some(found) || (self.is_lossy && self.older.contains(&found))
    }

    /// It was read, and is that from here on.
    fn is(&mut self, found: u64) {
        match self.is_lossy {
            // It came from memory.
            true => self.older.clear(),
            false if found != self.value => self.older.push(self.value),
            false => {}
        }
        (self.value, self.coming, self.is_lossy) = (found, None, false);
    }

    fn was_written(&mut self) {
        if let Some(value) = self.coming.take() {
            self.older.push(std::mem::replace(&mut self.value, value));
        }
    }
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
    doubts: Doubts,
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
        if let (Some(host), Some(range)) = (new.host, new.range) {
            self.doubts.has(host, range);
        }
        let known = self.labels.entry(new.label).or_default();
        if let Some(last) = known.last {
            let is_used = known.in_use && last.process != new.process && is_running(last.process);
            if is_used && !self.doubts.excuse(last.range) {
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
    fn check(&self, user: Use) -> Result<(), String> {
        let last = self.labels.get(&user.label).and_then(|known| known.last);
        match last == Some(user) || self.doubts.excuse(user.range) {
            true => Ok(()),
            false => Err(format!("{user:?} uses what {last:?} has")),
        }
    }

    /// A word is about to be written.
    ///
    /// # Errors
    /// Another process uses the memory.
    pub fn writes(&mut self, user: Use, word: usize, value: u64) -> Result<(), String> {
        self.check(user)?;
        self.known(user.label).words[word].coming = Some(value);
        Ok(())
    }

    /// It was written.
    ///
    /// # Errors
    /// Another process uses the memory.
    pub fn wrote(&mut self, user: Use, word: usize) -> Result<(), String> {
        self.check(user)?;
        self.known(user.label).words[word].was_written();
        Ok(())
    }

    /// It was flushed: it survives the host.
    pub fn flushed(&mut self, user: Use, word: usize) {
        if self.check(user).is_ok() {
            self.known(user.label).words[word].older.clear();
        }
    }

    /// A word was read.
    ///
    /// # Errors
    /// Another process uses the memory, or the word holds another value than was written last.
    pub fn read(&mut self, user: Use, word: usize, found: u64) -> Result<(), String> {
        let is_excused = self.doubts.excuse(user.range);
        let expected = &mut self.known(user.label).words[word];
        if !expected.may_be(found) && !is_excused {
            return Err(format!("{user:?} finds {found:#x} in word {word}, not {expected:x?}"));
        }
        expected.is(found);
        self.check(user)
    }

    // ---- hosts that share the device ----

    /// A host is about to be lost, with what its caches hold and its processes.
    pub fn host_lost(&mut self, host: usize) {
        let of_host = self.labels.values_mut();
        let of_host = of_host.filter(|known| known.last.is_some_and(|last| last.host == Some(host)));
        of_host
            .flat_map(|known| &mut known.words)
            .for_each(|word| word.is_lossy = true);
        self.doubts.settle(host);
    }

    /// A host is about to be called lost that is not.
    pub fn doubt(&mut self, host: usize) {
        let last = self.labels.values().filter_map(|known| known.last);
        let of_host = last.filter(|last| last.host == Some(host));
        self.doubts.begin(host, of_host.filter_map(|last| last.range));
    }

    /// It was not believed.
    pub fn trust(&mut self, host: usize) {
        self.doubts.refute(host);
    }

    /// Whether a range may hold what no model knows.
    pub fn is_doubted(&self, range: FileRange) -> bool {
        self.doubts.excuse(Some(range))
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
