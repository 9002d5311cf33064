//! Processes of machines with holders, and the files and ranges of the device that they map.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cenote_base::rt::Nanos;
use cenote_fabric::FileRange;

use crate::{Process, clock};

/// Processes and their mappings.
#[derive(Debug, Default)]
pub(super) struct Machines {
    processes: BTreeMap<u32, Process>,
    maps: Vec<(PathBuf, u32)>,
    /// Of the device that hosts share.
    ranges: Vec<(FileRange, u32)>,
    /// Until when a signal has no effect.
    hanging: BTreeMap<u32, Nanos>,
}

impl Machines {
    pub fn began(&mut self, process: &Process) {
        self.processes.insert(process.id(), process.clone());
    }

    pub fn is_running(&self, process: u32) -> bool {
        self.processes.get(&process).is_some_and(Process::is_running)
    }

    /// The calling process maps a file from here on.
    pub fn map(&mut self, file: &Path) {
        self.maps.push((file.into(), clock::process()));
    }

    pub fn unmap(&mut self, file: &Path) {
        let this = clock::process();
        self.maps.retain(|(of, by)| of != file || *by != this);
    }

    /// The host of the calling process.
    pub fn host(&self) -> Option<usize> {
        self.processes.get(&clock::process()).map(Process::host)
    }

    /// The calling process maps a range of the device from here on.
    pub fn map_range(&mut self, range: FileRange) {
        self.ranges.push((range, clock::process()));
    }

    pub fn unmap_range(&mut self, range: FileRange) {
        let this = clock::process();
        self.ranges.retain(|(of, by)| *of != range || *by != this);
    }

    /// What processes of a host map of the device.
    pub fn ranges_on(&self, host: usize) -> Vec<(u32, FileRange)> {
        let is_there = |process: &Process| process.host() == host && process.is_running();
        let of_host = |by: &u32| self.processes.get(by).is_some_and(is_there);
        self.ranges
            .iter()
            .filter(|(_, by)| of_host(by))
            .map(|(range, by)| (*by, *range))
            .collect()
    }

    /// For so long a process is not ended by a signal.
    pub fn hang(&mut self, process: u32, until: Nanos) {
        self.hanging.insert(process, until);
    }

    pub fn calm_down(&mut self) {
        self.hanging.clear();
    }

    /// Processes that map a file.
    pub(super) fn mapping(&self, file: &Path) -> Vec<u32> {
        let of_file = self.maps.iter().filter(|(of, _)| of == file);
        of_file.map(|(_, by)| *by).filter(|by| self.is_running(*by)).collect()
    }

    pub(super) fn is_mapped_by(&self, file: &Path, process: u32) -> bool {
        self.mapping(file).contains(&process)
    }

    /// Whom a signal ends now, if it is one of these.
    pub(super) fn ends(&self, processes: &[u32], now: Nanos) -> Vec<Process> {
        let hangs = |process: &&u32| self.hanging.get(process).is_some_and(|until| *until > now);
        let ends = processes.iter().filter(|process| !hangs(process));
        ends.filter_map(|process| self.processes.get(process).cloned())
            .collect()
    }
}
