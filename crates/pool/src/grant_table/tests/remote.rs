//! Grants that are reached over the fabric: where they lie, and who takes them.

use super::hearing::called;
use super::*;

/// A node that is called over the fabric, on another machine than holders, and a larger one that is not.
fn two() -> GrantTable {
    let mut grant_table = GrantTable::new(7, tenants());
    grant_table.join(&called(1, 4)).expect("joined");
    grant_table.join(&hello(2, "near", 8)).expect("joined");
    grant_table
}

fn remote(label: &str, extents: u64, takes: bool) -> OpenRequest {
    OpenRequest {
        reach: Reach::Remote { takes },
        ..requested(label, extents)
    }
}

fn open(grant_table: &mut GrantTable, takes: bool) -> Result<Opening> {
    grant_table.open("b", &remote("db", 2, takes), Nanos(0), LEASE)
}

#[test]
fn it_lies_where_the_fabric_reaches() {
    let mut grant_table = two();
    let (id, epoch) = admit(open(&mut grant_table, false));
    assert_eq!(
        grant_table.lendable("b", id, epoch).expect("its own"),
        (NodeId(1), 2 * EXTENT)
    );
    let more = grant_table.open("b", &remote("other", 3, false), Nanos(0), LEASE);
    assert!(
        matches!(more, Err(Error::Full(_))),
        "the near one does not count: {more:?}"
    );
    let mapped = grant_table.open("b", &requested("mapped", 1), Nanos(0), LEASE);
    let (mapped, epoch) = admit(mapped);
    assert!(grant_table.lendable("b", mapped, epoch).is_err(), "it is mapped");
    grant_table.leave(NodeId(1));
    let none = grant_table.open("b", &remote("third", 1, false), Nanos(0), LEASE);
    assert!(
        matches!(&none, Err(Error::Full(text)) if text.contains("--rdma")),
        "{none:?}"
    );
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// Its keys can end whether the former holder lives or not: one that takes it waits for that, and for no lease.
#[test]
fn the_next_start_takes_it() {
    let mut grant_table = two();
    let (id, first) = admit(open(&mut grant_table, true));
    let refused = open(&mut grant_table, false);
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    grant_table
        .renew("b", id, first, Nanos(0), LEASE)
        .expect("it is not taken");
    assert_eq!(open(&mut grant_table, true).expect("soon"), Opening::Wait);
    assert_eq!(grant_table.grant(id).expect("there").phase, Phase::Fencing);
    for gone in [
        grant_table.renew("b", id, first, Nanos(0), LEASE),
        grant_table.lendable("b", id, first).map(drop),
    ] {
        assert!(matches!(gone, Err(Error::Revoked(_))), "{gone:?}");
    }
    assert_eq!(
        open(&mut grant_table, true).expect("soon"),
        Opening::Wait,
        "its keys have not ended"
    );
    let fencing = grant_table.grant(id).expect("there").epoch;
    grant_table.confirmed(id, fencing, Nanos(0));
    let (again, second) = admit(open(&mut grant_table, true));
    assert!(again == id && second > first, "the same memory");
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// The holder of the first grant has its slabs, whichever process held them before; a former holder has none.
#[test]
fn slabs_follow_the_first_part() {
    let mut grant_table = two();
    let open_slab = |grant_table: &mut GrantTable, label: &str, (first, epoch)| {
        let asked = OpenRequest {
            reach: Reach::Slab { first, epoch },
            ..requested(label, 1)
        };
        grant_table.open("b", &asked, Nanos(0), LEASE)
    };
    let former = admit(open(&mut grant_table, true));
    let (slab, slab_epoch) = admit(open_slab(&mut grant_table, "db-slab-0", former));
    assert_eq!(open(&mut grant_table, true).expect("soon"), Opening::Wait);
    confirm(&mut grant_table, former.0);
    let now = admit(open(&mut grant_table, true));

    for gone in [
        open_slab(&mut grant_table, "db-slab-0", former).map(drop),
        open_slab(&mut grant_table, "db-slab-1", former).map(drop),
        grant_table.free_slab("b", "db-slab-0", former.0, former.1),
        grant_table.free_slab("a", "db-slab-0", now.0, now.1),
    ] {
        assert!(matches!(gone, Err(Error::Revoked(_))), "{gone:?}");
    }
    grant_table
        .renew("b", slab, slab_epoch, Nanos(0), LEASE)
        .expect("it is not taken yet");
    let taken = open_slab(&mut grant_table, "db-slab-0", now).expect("soon");
    assert_eq!(taken, Opening::Wait, "the former holder's keys have not ended");
    confirm(&mut grant_table, slab);
    let (again, _) = admit(open_slab(&mut grant_table, "db-slab-0", now));
    assert_eq!(again, slab, "the same memory");
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// By name, held or not: a start may not hold what it gives back.
#[test]
fn slabs_are_given_back_by_name() {
    let mut grant_table = two();
    let (first, epoch) = admit(open(&mut grant_table, true));
    let asked = OpenRequest {
        reach: Reach::Slab { first, epoch },
        ..requested("db-slab-0", 1)
    };
    let (slab, _) = admit(grant_table.open("b", &asked, Nanos(0), LEASE));
    admit(grant_table.open("b", &requested("mapped", 1), Nanos(0), LEASE));
    for wrong in ["mapped", "db"] {
        let refused = grant_table.free_slab("b", wrong, first, epoch);
        assert!(matches!(refused, Err(Error::Mismatch(_))), "{wrong}: {refused:?}");
    }
    for _ in 0..2 {
        grant_table
            .free_slab("b", "db-slab-0", first, epoch)
            .expect("given back");
        let freeing = grant_table.grant(slab).expect("there");
        assert_eq!(freeing.phase, Phase::Freeing);
        let again = grant_table.open("b", &asked, Nanos(0), LEASE).expect("soon");
        assert_eq!(again, Opening::Wait);
    }
    let freeing = grant_table.grant(slab).expect("there").epoch;
    grant_table.confirmed(slab, freeing, Nanos(0));
    let count = grant_table.grants().count();
    grant_table
        .free_slab("b", "db-slab-0", first, epoch)
        .expect("there is none");
    assert_eq!(grant_table.grants().count(), count, "and none is made");
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

#[test]
fn it_stays_what_it_is() {
    let mut grant_table = two();
    admit(open(&mut grant_table, true));
    let mapped = grant_table.open("b", &requested("db", 2), Nanos(0), LEASE);
    assert!(
        matches!(&mapped, Err(Error::Mismatch(text)) if text.contains("over the fabric")),
        "{mapped:?}"
    );
    let (id, epoch) = admit(open(&mut two(), true));
    let mut other = two();
    assert_eq!(admit(open(&mut other, true)), (id, epoch));
    let mirror = other.seek_mirror("b", id, epoch, Nanos(0));
    assert!(matches!(mirror, Err(Error::Invalid(_))), "{mirror:?}");
    admit(grant_table.open("b", &requested("near", 1), Nanos(0), LEASE));
    let remote_now = grant_table.open("b", &remote("near", 1, true), Nanos(0), LEASE);
    assert!(matches!(remote_now, Err(Error::Mismatch(_))), "{remote_now:?}");
    let mirrored = OpenRequest {
        mirror: true,
        ..remote("new", 1, true)
    };
    let refused = grant_table.open("b", &mirrored, Nanos(0), LEASE);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    // The node comes again, and is not called over the fabric any more.
    grant_table.leave(NodeId(1));
    let again = NodeHello {
        calls: None,
        ..called(1, 4)
    };
    grant_table.join(&again).expect("joined");
    let refused = open(&mut grant_table, true);
    assert!(
        matches!(&refused, Err(Error::Invalid(text)) if text.contains("--rdma")),
        "{refused:?}"
    );
}

/// It is found by its tenant and name, with a holder or without, but not while its keys are about to end.
#[test]
fn it_is_read_by_name() {
    let mut grant_table = two();
    let (id, epoch) = admit(open(&mut grant_table, true));
    admit(grant_table.open("b", &requested("mapped", 1), Nanos(0), LEASE));
    let found = (id, NodeId(1), 2 * EXTENT);
    assert_eq!(grant_table.readable("b", "db").expect("held"), found);
    for (tenant, label) in [("a", "db"), ("b", "other"), ("c", "db")] {
        let none = grant_table.readable(tenant, label);
        assert!(matches!(none, Err(Error::Invalid(_))), "{none:?}");
    }
    let mapped = grant_table.readable("b", "mapped");
    assert!(matches!(mapped, Err(Error::Mismatch(_))), "{mapped:?}");

    grant_table.release("b", id, epoch, false, Nanos(0)).expect("released");
    let fencing = grant_table.readable("b", "db");
    assert!(matches!(fencing, Err(Error::Busy(_))), "{fencing:?}");
    let epoch = grant_table.grant(id).expect("there").epoch;
    grant_table.confirmed(id, epoch, Nanos(0));
    assert_eq!(grant_table.readable("b", "db").expect("idle"), found);
    let (_, epoch) = admit(open(&mut grant_table, false));
    assert_eq!(grant_table.readable("b", "db").expect("held again"), found);

    grant_table.release("b", id, epoch, true, Nanos(0)).expect("given back");
    let freeing = grant_table.readable("b", "db");
    assert!(matches!(freeing, Err(Error::Busy(_))), "{freeing:?}");
    let epoch = grant_table.grant(id).expect("there").epoch;
    grant_table.confirmed(id, epoch, Nanos(0));
    assert!(grant_table.readable("b", "db").is_err(), "it is freed");
}
