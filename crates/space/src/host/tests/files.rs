//! A part in a file of a disk is where cold extents go: the pod's memory is full, and what is hot in the file changes
//! places with what is cold in memory.

use super::super::super::{GlobalAddress, Part, PartOptions, Placement, Session, Space, audit_placements};
use super::super::HostOptions;
use super::{EXTENT, Pods, SPACE, eventually, lively, read};
use cenote_base::Error;
use cenote_base::rt::Nanos;
use cenote_fabric::RegionOptions;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Extents in memory, one of them spare, and in the file.
const MEMORY: u64 = 9;
const FILE: u64 = 17;

fn options(extents: u64) -> PartOptions {
    PartOptions {
        space: SPACE,
        part: 2,
        tenant: 0,
        bytes: (extents + 1) * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    }
}

/// East's memory, and a file in the place of west's.
fn pods(file: &Path, options_of_hosts: HostOptions) -> Pods {
    let mut pods = Pods::new(MEMORY, options_of_hosts);
    pods.users.clear();
    pods.hosts.clear();
    pods.nodes = Arc::default();
    pods.parts[1] = Arc::new(Part::create(file, &options(FILE)).expect("a file"));
    pods.start();
    pods
}

/// As after the loss of the process that kept the file: what was not in it is gone.
fn open_again(pods: &mut Pods, file: &Path) {
    pods.users.clear();
    // Hosts know the way to each other, and so keep each other.
    pods.hosts.iter().for_each(|host| host.inner.peers.lock().clear());
    pods.hosts.clear();
    pods.nodes = Arc::default();
    pods.parts.truncate(1);
    let part = Part::open(file, RegionOptions::default()).expect("the file");
    pods.parts.push(Arc::new(part));
    pods.start();
    pods.ask_homes();
}

/// One object in each extent that there is, each with its address in it.
fn fill(session: &Session, space: &Space) -> Vec<GlobalAddress> {
    let all: Vec<_> = core::iter::from_fn(|| session.alloc(EXTENT / 2).ok()).collect();
    for address in &all {
        space.write(*address, &address.raw().to_le_bytes()).expect("written");
    }
    all
}

fn check(space: &Space, all: &[GlobalAddress]) {
    for address in all {
        let found = read(space, *address, 8).expect("read");
        assert_eq!(found, address.raw().to_le_bytes(), "{address}");
    }
}

fn placements(pods: &Pods) -> BTreeMap<u8, Placement> {
    let of = |n: usize| (n as u8 + 1, pods.hosts[n].keeper().placement());
    (0..2).map(of).collect()
}

/// What is hot in the file comes to memory that is full, and what is cold there goes to the file; all of it is found
/// after the file's process was killed, and where both are full an allocation says so.
#[test]
fn cold_extents_go_to_a_file_and_come_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("part-2");
    let mut pods = pods(&file, lively());
    let all = {
        let (east, session) = (&pods.users[0], pods.users[0].session());
        let all = fill(&session, east);
        let full = session.alloc(64);
        assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
        let in_file = |address: &&GlobalAddress| address.part() == 2;
        let hot: Vec<_> = all.iter().filter(in_file).copied().take(4).collect();
        assert_eq!(hot.len(), 4, "the rest lies in the file");
        let came = |pods: &Pods| {
            hot.iter()
                .all(|address| placements(pods)[&2].away.contains_key(&address.extent()))
        };
        eventually(|| {
            hot.iter()
                .for_each(|address| _ = east.fetch_add(*address + 64, 1).expect("added"));
            came(&pods)
        });
        check(east, &all);
        all
    };
    let cold = placements(&pods)[&1].away.len();
    assert!(cold >= 1, "{cold} extents of memory lie in the file");
    pods.options.every = Nanos::ZERO;
    open_again(&mut pods, &file);
    check(&pods.users[0], &all);
    pods.audit();
    assert_eq!(audit_placements(&placements(&pods)), Vec::<String>::new());
}
