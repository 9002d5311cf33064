//! What is not judged any more: what hosts had that were called lost, and were not.
//!
//! The word has to be true: what such a host's processes store until their agent ends them, and what its caches hold
//! until it is booted, may come over what others have. So ranges that it has, or had, are never judged again.

use std::collections::BTreeMap;

use cenote_fabric::FileRange;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// By host: it is being called lost, or was; and what it has had since, or has still.
    hosts: BTreeMap<usize, Vec<FileRange>>,
    ranges: Vec<FileRange>,
}

impl Doubts {
    /// It is about to be called lost. `has` is what it has, or had last.
    pub fn begin(&mut self, host: usize, has: impl Iterator<Item = FileRange>) {
        self.hosts.entry(host).or_default().extend(has);
    }

    /// It was not believed: there was an agent to be heard.
    pub fn refute(&mut self, host: usize) {
        self.hosts.remove(&host);
    }

    /// All its processes have ended, and its caches are empty.
    pub fn settle(&mut self, host: usize) {
        self.ranges.extend(self.hosts.remove(&host).unwrap_or_default());
    }

    /// A process of the host has a range.
    pub fn has(&mut self, host: usize, range: FileRange) {
        if let Some(ranges) = self.hosts.get_mut(&host) {
            ranges.push(range);
        }
    }

    pub fn excuse(&self, range: Option<FileRange>) -> bool {
        let all = || self.hosts.values().flatten().chain(&self.ranges);
        range.is_some_and(|range| all().any(|doubted| doubted.overlaps(&range)))
    }
}
