//! Spaces, and clients that allocate and free in them for good: what they have stands in *tables*, so that a later look
//! can tell what there must be.

use super::{Random, say};
use cenote_base::Error;
use cenote_fabric::RegionOptions;
use cenote_space::EXTENT;
use cenote_space::{GlobalAddress, Lifetime, Neighbour, Service, Session, Space, SpaceOptions};
use std::path::Path;
use std::sync::Arc;

/// Words of a worker's table of objects.
const TABLE: u64 = 64;
/// Steps of a worker between two reports.
const REPORT: u64 = 20;

/// A space of one part in a directory, kept by this process: others can [join](join) it.
pub fn keep(directory: &Path, extents: u64) -> (Space, Service) {
    let options = SpaceOptions {
        bytes: extents * EXTENT,
        ..SpaceOptions::default()
    };
    let space = Space::create(&directory.join("part"), &options).expect("made");
    let keeper = space.keeper(1).expect("kept here");
    let service = Service::start(&directory.join("keeper"), keeper).expect("a socket");
    (space, service)
}

/// What another process [keeps](keep).
pub fn join(directory: &Path) -> Space {
    let keeper = Neighbour::connect(&directory.join("keeper")).expect("a keeper");
    Space::join(&directory.join("part"), RegionOptions::default(), Arc::new(keeper)).expect("a space")
}

/// So many tables.
pub fn tables(space: &Space, n: usize) -> Vec<GlobalAddress> {
    let session = space.session();
    let tables = (0..n).map(|_| session.alloc(8 * TABLE).expect("room")).collect();
    session.close().expect("closed");
    tables
}

/// Allocates and frees for good. An object is in the table once it is whole, and no longer when it is about to be
/// freed.
pub fn work(space: &Space, table: GlobalAddress, seed: u64) {
    let mut random = Random(seed);
    let mut session = space.session();
    for step in 1.. {
        let place = table.checked_add(8 * random.below(TABLE)).expect("inside");
        let former = GlobalAddress::from_raw(space.load(place).expect("the table"));
        if former.is_null() {
            if let Some(address) = allocate(&session, &mut random) {
                space.store(place, address.raw()).expect("the table");
            }
        } else {
            assert_eq!(space.load(former).expect("there"), former.raw());
            space.store(place, 0).expect("the table");
            session.free(former).expect("freed");
        }
        if random.below(100) == 0 {
            session.close().expect("closed");
            session = space.session();
        }
        if step % REPORT == 0 {
            say("working");
        }
    }
}

/// An object that holds its own address; sometimes one more for the session, which no table lists.
fn allocate(session: &Session, random: &mut Random) -> Option<GlobalAddress> {
    let size = match random.below(20) {
        0 => EXTENT + random.below(2 * EXTENT),
        1..4 => 200_000,
        4..10 => 3_000,
        _ => 1 + random.below(300),
    };
    let full = |error: &Error| assert!(matches!(error, Error::Full(_)), "{error}");
    if random.below(3) == 0 {
        let kept = session.alloc_in(size, Lifetime::Session).inspect_err(full).ok()?;
        session.write(kept, &[1]).expect("there");
    }
    let address = session.alloc(size).inspect_err(full).ok()?;
    assert_eq!(session.load(address).expect("there"), 0, "{address} is zero");
    session.store(address, address.raw()).expect("there");
    Some(address)
}

/// Checks everything, and takes all objects out of the tables.
pub fn take_out(space: &Space, tables: &[GlobalAddress]) {
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
    for table in tables {
        for n in 0..TABLE {
            let place = table.checked_add(8 * n).expect("inside");
            let address = GlobalAddress::from_raw(space.load(place).expect("the table"));
            if !address.is_null() {
                assert_eq!(space.load(address).expect("there"), address.raw());
                space.free(address).expect("freed");
                space.store(place, 0).expect("the table");
            }
        }
    }
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
}

/// Objects that there are beside the tables.
pub fn objects_beside(space: &Space, tables: &[GlobalAddress]) -> u64 {
    space.stats().objects() - tables.len() as u64
}
