//! Grants that are reached over the fabric: where they lie, and who takes them.

use super::hearing::called;
use super::*;
use crate::wire::{Moves, SLABS_AT_ONCE, SlabsRequest};

/// A node that is called over the fabric, on another machine than holders, and a larger one that is not.
fn two() -> GrantTable {
    let mut grant_table = GrantTable::new(7, tenants());
    grant_table.join(&called(1, 4)).expect("joined");
    grant_table.join(&hello(2, "near", 8)).expect("joined");
    grant_table
}

fn remote(label: &str, extents: u64, takes: bool) -> OpenRequest {
    OpenRequest {
        reach: Reach::Remote { takes, moves: None },
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

/// Its keys end when it is lent to the next holder, whether the former one lives or not: one that takes it waits for
/// no node, and for no lease.
#[test]
fn the_next_start_takes_it() {
    let mut grant_table = two();
    let (id, first) = admit(open(&mut grant_table, true));
    let refused = open(&mut grant_table, false);
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    grant_table
        .renew("b", id, first, Nanos(0), LEASE)
        .expect("it is not taken");
    let (again, second) = admit(open(&mut grant_table, true));
    assert!(again == id && second > first, "the same memory");
    assert_eq!(grant_table.grant(id).expect("there").phase, Phase::Held);
    for gone in [
        grant_table.renew("b", id, first, Nanos(0), LEASE),
        grant_table.lendable("b", id, first).map(drop),
        grant_table.release("b", id, first, true, Nanos(0)),
    ] {
        assert!(matches!(gone, Err(Error::Revoked(_))), "{gone:?}");
    }
    grant_table.lendable("b", id, second).expect("its own");
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// One that lapsed is fenced, and its node is waited for.
#[test]
fn a_lapsed_holder_is_fenced() {
    let mut grant_table = two();
    let (id, _) = admit(open(&mut grant_table, true));
    grant_table.tick(Nanos(LEASE.raw() + 1));
    assert_eq!(open(&mut grant_table, true).expect("soon"), Opening::Wait);
    confirm(&mut grant_table, id);
    assert_eq!(admit(open(&mut grant_table, true)).0, id);
}

/// Slabs of a grant, by its number and epoch.
fn slabs((first, epoch): (GrantId, u64), slabs: &[u32]) -> SlabsRequest {
    SlabsRequest {
        first,
        epoch,
        slabs: slabs.to_vec(),
        bytes: EXTENT,
        description: "slabs".into(),
        pod: None,
        within: 0,
    }
}

fn open_slabs(grant_table: &mut GrantTable, of: (GrantId, u64), numbers: &[u32]) -> Result<Vec<Result<Opening>>> {
    grant_table.open_slabs("b", &slabs(of, numbers), Nanos(0), LEASE)
}

/// Slabs that all of them are opened.
fn opened(answers: Result<Vec<Result<Opening>>>) -> Vec<(GrantId, u64)> {
    answers.expect("its own").into_iter().map(admit).collect()
}

/// The holder of the first grant has its slabs, whichever process held them before; a former holder has none.
#[test]
fn slabs_follow_the_first_part() {
    let mut grant_table = two();
    let former = admit(open(&mut grant_table, true));
    let held = opened(open_slabs(&mut grant_table, former, &[0, 7]));
    let now = admit(open(&mut grant_table, true));
    for gone in [
        open_slabs(&mut grant_table, former, &[0]).map(drop),
        open_slabs(&mut grant_table, former, &[1]).map(drop),
        grant_table.free_slab("b", former, 0),
        grant_table.free_slab("a", now, 0),
        grant_table
            .open_slabs("a", &slabs(now, &[0]), Nanos(0), LEASE)
            .map(drop),
    ] {
        assert!(matches!(gone, Err(Error::Revoked(_))), "{gone:?}");
    }
    for (slab, epoch) in &held {
        let kept = grant_table.renew("b", *slab, *epoch, Nanos(0), LEASE);
        kept.expect("it is not taken yet");
    }
    let taken = opened(open_slabs(&mut grant_table, now, &[0, 7]));
    for ((slab, epoch), (former, before)) in taken.iter().zip(&held) {
        assert!(slab == former && epoch > before, "the same memory");
        let gone = grant_table.lendable("b", *slab, *before);
        assert!(matches!(gone, Err(Error::Revoked(_))), "{gone:?}");
    }
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// What one slab comes to is no other's matter, and is not undone with it.
#[test]
fn each_slab_comes_to_what_it_can() {
    let mut grant_table = two();
    grant_table.join(&called(3, 2)).expect("joined");
    let first = admit(open(&mut grant_table, true));
    let held = opened(open_slabs(&mut grant_table, first, &[0, 1, 2]));
    let lies: Vec<NodeId> = held
        .iter()
        .map(|(id, _)| grant_table.grant(*id).expect("there").node)
        .collect();
    assert!(lies.contains(&NodeId(1)) && lies.contains(&NodeId(3)), "{lies:?}");
    grant_table.leave(NodeId(3));
    let answers = open_slabs(&mut grant_table, first, &[0, 1, 2, 3, 4]).expect("its own");
    for ((answer, (id, _)), node) in answers.iter().zip(&held).zip(&lies) {
        match answer {
            Ok(Opening::Admit(taken, _)) => assert!(taken == id && *node == NodeId(1)),
            Err(Error::Lost(_)) => assert_eq!(*node, NodeId(3)),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        matches!(answers[3..], [Ok(Opening::Admit(..)), Err(Error::Full(_))]),
        "{answers:?}"
    );
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// By number, held or not: a start may not hold what it gives back.
#[test]
fn slabs_are_given_back_by_number() {
    let mut grant_table = two();
    let first = admit(open(&mut grant_table, true));
    let slab = opened(open_slabs(&mut grant_table, first, &[0]))[0].0;
    for _ in 0..2 {
        grant_table.free_slab("b", first, 0).expect("given back");
        let freeing = grant_table.grant(slab).expect("there");
        assert_eq!(freeing.phase, Phase::Freeing);
        let again = open_slabs(&mut grant_table, first, &[0]).expect("its own");
        assert!(matches!(again[..], [Ok(Opening::Wait)]), "{again:?}");
    }
    confirm(&mut grant_table, slab);
    let count = grant_table.grants().count();
    grant_table.free_slab("b", first, 0).expect("there is none");
    assert_eq!(grant_table.grants().count(), count, "and none is made");
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// One that is being freed is waited for where its node is there to free it. A request went on for all of its patience.
#[test]
fn a_slab_that_is_freed_on_a_lost_node_is_lost() {
    let mut grant_table = two();
    let first = admit(open(&mut grant_table, true));
    opened(open_slabs(&mut grant_table, first, &[0, 1]));
    grant_table.free_slab("b", first, 0).expect("given back");
    grant_table.leave(NodeId(1));
    let answers = open_slabs(&mut grant_table, first, &[0, 1]).expect("its own");
    assert!(
        matches!(answers[..], [Err(Error::Lost(_)), Err(Error::Lost(_))]),
        "{answers:?}"
    );
    grant_table.join(&called(1, 4)).expect("joined");
    let answers = open_slabs(&mut grant_table, first, &[0]).expect("its own");
    assert!(matches!(answers[..], [Ok(Opening::Wait)]), "{answers:?}");
}

/// A holder names no grant but slabs of its own, and those in no other way: any grant of its tenant could be freed by
/// its label, or taken.
#[test]
fn a_holder_has_slabs_of_its_own_alone() {
    let mut grant_table = two();
    let first = admit(open(&mut grant_table, true));
    let other = admit(grant_table.open("b", &remote("db-2", 1, true), Nanos(0), LEASE));
    let slab = opened(open_slabs(&mut grant_table, first, &[0]))[0];
    assert_eq!(grant_table.grant(slab.0).expect("there").label, "db-slab-0");
    grant_table.free_slab("b", other, 0).expect("it has none");
    assert_eq!(grant_table.grant(slab.0).expect("there").phase, Phase::Held);
    for refused in [
        grant_table
            .open("b", &remote("db-slab-0", 1, true), Nanos(0), LEASE)
            .map(drop),
        grant_table
            .open("b", &remote("new-slab-3", 1, false), Nanos(0), LEASE)
            .map(drop),
        open_slabs(&mut grant_table, slab, &[0]).map(drop),
        grant_table.free_slab("b", slab, 0),
    ] {
        assert!(
            matches!(&refused, Err(Error::Invalid(text)) if text.contains("-slab-")),
            "{refused:?}"
        );
    }
    // A grant that is mapped may be called so.
    let mapped = admit(grant_table.open("b", &requested("db-slab-1", 1), Nanos(0), LEASE)).0;
    let refused = grant_table.free_slab("b", first, 1);
    assert!(
        matches!(&refused, Err(Error::Mismatch(text)) if text.contains("db-slab-1")),
        "{refused:?}"
    );
    let refused = open_slabs(&mut grant_table, first, &[1]).expect("its own");
    assert!(matches!(refused[..], [Err(Error::Mismatch(_))]), "{refused:?}");
    let epoch = grant_table.grant(mapped).expect("there").epoch;
    let refused = open_slabs(&mut grant_table, (mapped, epoch), &[0]);
    assert!(matches!(refused, Err(Error::Invalid(_))), "it is mapped: {refused:?}");
}

#[test]
fn slabs_are_asked_for_by_rising_numbers() {
    let mut grant_table = two();
    let first = admit(open(&mut grant_table, true));
    let many: Vec<u32> = (0..=SLABS_AT_ONCE as u32).collect();
    for wrong in [&[1, 1][..], &[2, 1], &many] {
        let refused = open_slabs(&mut grant_table, first, wrong);
        let Err(Error::Invalid(text)) = &refused else {
            panic!("{refused:?}")
        };
        assert!(text.contains(&wrong.len().to_string()) && text.len() < 100, "{text}");
    }
    assert_eq!(grant_table.grants().count(), 1);
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

/// One whose node is away may be made anew on another. The former one has another label, and goes when its node is
/// back.
#[test]
fn a_label_moves_from_a_node_that_is_away() {
    let moving = |grant_table: &mut GrantTable, takes, held| {
        let requested = OpenRequest {
            reach: Reach::Remote {
                takes,
                moves: Some(Moves { held }),
            },
            ..requested("db", 2)
        };
        grant_table.open("b", &requested, Nanos(0), LEASE)
    };
    let mut grant_table = two();
    let (id, epoch) = admit(moving(&mut grant_table, true, None));
    let slab = opened(open_slabs(&mut grant_table, (id, epoch), &[2]))[0];
    let again = admit(moving(&mut grant_table, true, None));
    assert_eq!(again.0, id, "its node is there");
    let full = moving(&mut grant_table, false, Some(again));
    assert!(
        matches!(&full, Err(Error::Lost(text)) if text.contains("no other takes its place")),
        "there is no other: {full:?}"
    );
    grant_table.leave(NodeId(1));
    let full = moving(&mut grant_table, true, None);
    assert!(
        matches!(&full, Err(Error::Lost(text)) if text.contains("no other takes its place")),
        "{full:?}"
    );
    grant_table.lendable("b", id, again.1).expect("nothing was changed");
    grant_table.join(&called(3, 4)).expect("joined");
    for held in [None, Some((id, epoch)), Some((slab.0, again.1))] {
        let busy = moving(&mut grant_table, false, held);
        assert!(matches!(busy, Err(Error::Busy(_))), "it has another holder: {busy:?}");
    }
    let stays = open(&mut grant_table, true);
    assert!(matches!(stays, Err(Error::Lost(_))), "that is not asked for: {stays:?}");

    let moved = admit(moving(&mut grant_table, false, Some(again)));
    assert!(moved.0 != id);
    assert_eq!(
        grant_table.lendable("b", moved.0, moved.1).expect("its own").0,
        NodeId(3)
    );
    let gone = grant_table.renew("b", id, again.1, Nanos(0), LEASE);
    assert!(matches!(gone, Err(Error::Revoked(_))), "{gone:?}");
    let former = grant_table.grant(id).expect("it counts still");
    assert_eq!((former.phase, &*former.label), (Phase::Freeing, "db/lost-1"));
    assert_eq!(grant_table.readable("b", "db").expect("it is there").0, moved.0);
    // The slab of the same number lies where it lay, on the lost node: it is not made anew.
    let away = open_slabs(&mut grant_table, moved, &[2]).expect("its own").remove(0);
    assert!(matches!(away, Err(Error::Lost(_))), "{away:?}");
    assert_eq!(grant_table.problems(), Vec::<String>::new());

    grant_table.join(&called(1, 4)).expect("joined");
    assert_eq!(grant_table.work_of(NodeId(1)), [id]);
    confirm(&mut grant_table, id);
    assert!(grant_table.grant(id).is_err());
    assert_eq!(opened(open_slabs(&mut grant_table, moved, &[2]))[0].0, slab.0);
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// Given back by its holder, as the node is away, it does not keep the label.
#[test]
fn a_label_moves_from_what_is_being_freed() {
    let mut grant_table = two();
    let (id, epoch) = admit(open(&mut grant_table, true));
    grant_table.join(&called(3, 4)).expect("joined");
    grant_table.leave(NodeId(1));
    let released = grant_table.release("b", id, epoch, true, Nanos(0));
    released.expect("its own");
    let requested = OpenRequest {
        reach: Reach::Remote {
            takes: false,
            moves: Some(Moves { held: None }),
        },
        ..requested("db", 2)
    };
    let moved = admit(grant_table.open("b", &requested, Nanos(0), LEASE));
    assert!(moved.0 != id);
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// A holder that does not reach its memory moves it, though the manager hears its node: that frees what lay there.
#[test]
fn a_holder_moves_its_own_from_a_node_that_is_there() {
    let mut grant_table = two();
    let first = admit(open(&mut grant_table, true));
    grant_table.join(&called(3, 3)).expect("joined");
    let requested = |held| OpenRequest {
        reach: Reach::Remote {
            takes: false,
            moves: Some(Moves { held: Some(held) }),
        },
        ..requested("db", 2)
    };
    let former = grant_table.open("b", &requested((first.0, first.1 + 1)), Nanos(0), LEASE);
    assert!(matches!(former, Err(Error::Busy(_))), "not another's: {former:?}");
    let moved = admit(grant_table.open("b", &requested(first), Nanos(0), LEASE));
    assert_eq!(
        grant_table.lendable("b", moved.0, moved.1).expect("its own").0,
        NodeId(3),
        "the emptier one is the one that it leaves"
    );
    assert_eq!(grant_table.work_of(NodeId(1)), [first.0]);
    confirm(&mut grant_table, first.0);
    assert_eq!(grant_table.grants().count(), 1);
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// A slab that its holder has freed, as its node is away, is made anew elsewhere; one that is held stays.
#[test]
fn a_freed_slab_keeps_no_number_on_a_node_that_is_away() {
    let mut grant_table = two();
    let first = admit(open(&mut grant_table, true));
    grant_table.join(&called(3, 8)).expect("joined");
    let slab = opened(open_slabs(&mut grant_table, first, &[4]))[0].0;
    assert_eq!(grant_table.grant(slab).expect("there").node, NodeId(3));
    grant_table.leave(NodeId(3));
    let away = open_slabs(&mut grant_table, first, &[4]).expect("its own").remove(0);
    assert!(matches!(away, Err(Error::Lost(_))), "{away:?}");
    grant_table.free_slab("b", first, 4).expect("freed");
    let again = opened(open_slabs(&mut grant_table, first, &[4]))[0].0;
    assert_eq!(grant_table.grant(again).expect("there").node, NodeId(1));
    assert_eq!(grant_table.problems(), Vec::<String>::new());
    grant_table.join(&called(3, 8)).expect("joined");
    confirm(&mut grant_table, slab);
    assert!(grant_table.grant(slab).is_err() && grant_table.grant(again).is_ok());
}
