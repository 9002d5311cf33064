//! A mirror on another machine has a journal beside it, which counts before it is lent.

use super::hearing::called;
use super::*;

/// Two nodes, each on a machine of its own; the second with so much memory.
fn two(extents: u64) -> GrantTable {
    let mut grant_table = GrantTable::new(7, tenants());
    grant_table.join(&called(1, 32)).expect("joined");
    grant_table.join(&called(2, extents)).expect("joined");
    grant_table
}

fn on_first(mirror: bool, extents: u64) -> OpenRequest {
    OpenRequest {
        machine: 1,
        mirror,
        ..requested("db", extents)
    }
}

/// A grant was accepted whose mirror could never be lent: there was no room for the journal, then.
#[test]
fn a_grant_whose_journal_has_no_room_is_refused() {
    const JOURNALS: u64 = JOURNAL / EXTENT;
    let mut grant_table = two(2 + JOURNALS - 1);
    let refused = grant_table.open("b", &on_first(true, 2), Nanos(0), LEASE);
    assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
    let (id, epoch) = admit(grant_table.open("b", &on_first(false, 2), Nanos(0), LEASE));
    let refused = grant_table.seek_mirror("b", id, epoch, Nanos(0));
    assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");

    let mut grant_table = two(2 + JOURNALS);
    let (id, epoch) = admit(grant_table.open("b", &on_first(true, 2), Nanos(0), LEASE));
    let other = OpenRequest {
        machine: 2,
        ..requested("other", 1)
    };
    let refused = grant_table.open("b", &other, Nanos(0), LEASE);
    assert!(
        matches!(refused, Err(Error::Full(_))),
        "its journal's room: {refused:?}"
    );
    let mirror = grant_table.mirror_of(id).expect("a mirror").0;
    grant_table.lend_mirror("b", id, epoch, mirror).expect("room");
    assert_eq!(grant_table.granted(NodeId(2)), 2 * EXTENT + JOURNAL);
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

#[test]
fn a_quota_holds_for_the_journal_too() {
    let mut grant_table = two(32);
    let refused = grant_table.open("a", &on_first(true, 2), Nanos(0), LEASE);
    assert!(matches!(refused, Err(Error::Full(_))), "16 MiB of 12: {refused:?}");
    admit(grant_table.open("a", &on_first(true, 1), Nanos(0), LEASE));
    assert_eq!(grant_table.granted_to("a"), 2 * EXTENT + JOURNAL);
    let mut grant_table = two(32);
    let (id, epoch) = admit(grant_table.open("a", &on_first(false, 2), Nanos(0), LEASE));
    let refused = grant_table.seek_mirror("a", id, epoch, Nanos(0));
    assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
}

/// A space was accepted that could never be mirrored.
#[test]
fn a_space_whose_journals_have_no_room_is_refused() {
    let requested = SpaceRequest {
        mirrored: true,
        ..space("heap", 4)
    };
    let create = |extents, tenant| {
        let mut grant_table = GrantTable::new(7, tenants());
        (1..=2).for_each(|id| grant_table.join(&called(id, extents)).expect("joined"));
        let made = grant_table.create_space(tenant, &requested, (SpaceId(1), Key::of(1)), Nanos(0));
        (made, grant_table)
    };
    let (refused, _) = create(7, "b");
    assert!(
        matches!(refused, Err(Error::Full(_))),
        "two parts and a journal are 8: {refused:?}"
    );
    let (refused, _) = create(8, "a");
    assert!(matches!(refused, Err(Error::Full(_))), "over its quota: {refused:?}");
    let (made, mut grant_table) = create(8, "b");
    let parts = begun(made);
    parts.iter().for_each(|id| confirm(&mut grant_table, *id));
    for part in parts {
        grant_table.seek_mirror("b", part, 1, Nanos(1)).expect("room");
    }
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// Room was being freed, or could be, and a grant that needed a mirror's journal's was refused: it counted as taken,
/// and not as what comes free.
#[test]
fn a_journal_that_goes_leaves_its_room() {
    const JOURNALS: u64 = JOURNAL / EXTENT;
    let beside = |tenant: &str, grant_table: &mut GrantTable| {
        let all = OpenRequest {
            machine: 2,
            ..requested("all", 2 + JOURNALS)
        };
        grant_table.open(tenant, &all, Nanos(1), LEASE)
    };
    let mut grant_table = two(2 + JOURNALS);
    let (id, epoch) = admit(grant_table.open("b", &on_first(true, 2), Nanos(0), LEASE));
    let full = beside("b", &mut grant_table);
    assert!(matches!(full, Err(Error::Full(_))), "it is in use: {full:?}");
    grant_table.release("b", id, epoch, true, Nanos(1)).expect("its holder");
    assert_eq!(beside("b", &mut grant_table).expect("it is being freed"), Opening::Wait);

    // Idle, and of less priority.
    let mut grant_table = two(2 + JOURNALS);
    let (id, epoch) = admit(grant_table.open("a", &on_first(true, 1), Nanos(0), LEASE));
    grant_table
        .release("a", id, epoch, false, Nanos(1))
        .expect("its holder");
    confirm(&mut grant_table, id);
    assert_eq!(beside("b", &mut grant_table).expect("it may go"), Opening::Wait);
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// A manager that had just begun knew of no node on which machine it is. A mirror beside its grant was taken for one on
/// another machine, and counted with a journal that it never had.
#[test]
fn a_mirror_is_not_sought_before_it_is_known_where_its_grant_is() {
    let here = |id| NodeHello {
        machine: 5,
        ..called(id, 4)
    };
    let mut grant_table = GrantTable::new(7, tenants());
    grant_table.join(&here(1)).expect("joined");
    let request = OpenRequest {
        machine: 5,
        ..requested("db", 2)
    };
    let (id, epoch) = admit(grant_table.open("b", &request, Nanos(0), LEASE));
    let mut grant_table = read(&book(&grant_table)).expect("a good table");
    grant_table.join(&here(2)).expect("joined");
    let waits = grant_table.seek_mirror("b", id, epoch, Nanos(1));
    assert!(matches!(waits, Err(Error::Busy(_))), "{waits:?}");
    grant_table.join(&here(1)).expect("joined");
    // That it is away by now says nothing of where it is.
    grant_table.leave(NodeId(1));
    let mirror = grant_table.seek_mirror("b", id, epoch, Nanos(1)).expect("room");
    assert!(
        !grant_table.grant(mirror).expect("there").lent,
        "it is beside its grant"
    );
}

/// The error named the mirror's bytes, which were free.
#[test]
fn what_a_mirror_lacks_is_named_with_its_journal() {
    let mut grant_table = two(2);
    let refused = grant_table.open("b", &on_first(true, 2), Nanos(0), LEASE);
    let text = refused.expect_err("no room").to_string();
    let needs = "none has 4MiB free, with 8MiB more for its journal on another machine";
    assert!(text.contains(needs), "{text}");
}
