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
    /// The host that a holder has named as its own, which may be another.
    named: BTreeMap<u32, usize>,
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

    /// The calling process names this host as its own from here on.
    pub fn name_host(&mut self, host: Option<usize>) {
        match host {
            Some(host) => self.named.insert(clock::process(), host),
            None => self.named.remove(&clock::process()),
        };
    }

    /// Whether processes that have named a host map a byte of the range, and all of them run there.
    pub fn is_named_by_its_own(&self, host: usize, range: FileRange) -> bool {
        let users = self.ranges.iter().filter(|(mapped, _)| mapped.overlaps(&range));
        let naming = users.filter(|(_, by)| self.named.get(by) == Some(&host) && self.is_running(*by));
        let mut hosts = naming.map(|(_, by)| self.processes[by].host()).peekable();
        hosts.peek().is_some() && hosts.all(|on| on == host)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pace, Topology, World};
    use cenote_base::rt;
    use std::sync::{Arc, Mutex};

    const RANGE: FileRange = FileRange {
        offset: 2 << 20,
        bytes: 2 << 20,
    };

    /// A holder that had named another host was confirmed there, since a process of that host mapped the range too: and
    /// no agent could have fenced it.
    #[test]
    fn a_process_of_the_named_host_is_not_taken_for_the_holder() {
        let world = World::new(1, Pace::Explore, Topology::hosts(2, 1)).expect("a possible topology");
        world.run(|world| {
            let machines = Arc::new(Mutex::new(Machines::default()));
            let is_seen = |host| machines.lock().expect("whole").is_named_by_its_own(host, RANGE);
            let map = |on: usize, named: usize| {
                let theirs = Arc::clone(&machines);
                let process = world.process(on, "holder", move || {
                    let mut machines = theirs.lock().expect("whole");
                    machines.name_host(Some(named));
                    machines.map_range(RANGE);
                    drop(machines);
                    rt::sleep(Nanos::from_secs(1));
                });
                machines.lock().expect("whole").began(&process);
                rt::sleep(Nanos::from_millis(10));
                process
            };
            let honest = map(1, 1);
            assert!(is_seen(1) && !is_seen(0));
            let other = map(0, 1);
            assert!(!is_seen(1) && !is_seen(0), "which of them asks is not known");
            other.join();
            honest.join();
            assert!(!is_seen(1), "a process that has ended maps nothing");
        });
    }
}
