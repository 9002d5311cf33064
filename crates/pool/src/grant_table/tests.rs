use super::*;
use crate::key::Key;
use crate::settings::DEFAULT_TENANT;
use crate::store::{self, RecordSet, Stored};
use crate::wire::SpaceRequest;
use cenote_base::crc::crc32c;
use proptest::prelude::*;
use std::collections::BTreeMap;

mod coming;
mod hearing;
mod journals;
mod remote;

const LEASE: Nanos = Nanos::from_secs(10);

fn requested(label: &str, extents: u64) -> OpenRequest {
    OpenRequest {
        label: label.into(),
        description: String::new(),
        bytes: extents * EXTENT,
        pod: None,
        keep: None,
        machine: 0,
        mirror: false,
        host: None,
        reach: Reach::default(),
    }
}

fn hello(id: u64, pod: &str, extents: u64) -> NodeHello {
    NodeHello {
        id: NodeId(id),
        pool: None,
        pod: pod.into(),
        bytes: extents * EXTENT,
        directory: format!("/dev/shm/{id}"),
        machine: 0,
        members: format!("127.0.0.1:{id}"),
        calls: None,
        last: GrantId::default(),
    }
}

fn tenants() -> Tenants {
    let text = "secret = \"s\"\n[[tenant]]\nname = \"a\"\nsecret = \"x\"\nquota = \"12MiB\"\n\
                [[tenant]]\nname = \"b\"\nsecret = \"y\"\npriority = 5\n";
    Tenants::parse(text).expect("a good file")
}

fn grant_table() -> GrantTable {
    let mut grant_table = GrantTable::new(7, tenants());
    grant_table.join(&hello(1, "left", 8)).expect("joined");
    grant_table.join(&hello(2, "right", 4)).expect("joined");
    grant_table
}

/// All records.
pub(super) fn book(grant_table: &GrantTable) -> RecordSet {
    let mut book = RecordSet::new();
    store::apply(&mut book, &grant_table.clone().whole());
    book
}

/// All but `meta`, which counts changes.
fn records(grant_table: &GrantTable) -> RecordSet {
    let mut book = book(grant_table);
    book.remove("meta");
    book
}

fn read(book: &RecordSet) -> Result<GrantTable> {
    GrantTable::read(&Stored::Records(book.clone()), tenants(), Nanos(5), LEASE)
}

fn admit(opening: Result<Opening>) -> (GrantId, u64) {
    match opening.expect("granted") {
        Opening::Admit(id, epoch) => (id, epoch),
        other => panic!("{other:?}"),
    }
}

fn open(grant_table: &mut GrantTable, tenant: &str, label: &str, extents: u64, now: u64) -> Result<Opening> {
    grant_table.open(tenant, &requested(label, extents), Nanos(now), LEASE)
}

#[test]
fn the_same_label_is_the_same_memory_with_another_epoch() {
    let mut grant_table = grant_table();
    let (id, first) = admit(open(&mut grant_table, "a", "db", 2, 0));
    assert_eq!(
        open(&mut grant_table, "a", "db", 2, 1).expect("asked"),
        Opening::Ask(id, first)
    );
    grant_table.release("a", id, first, false, Nanos(2)).expect("released");
    assert_eq!(open(&mut grant_table, "a", "db", 2, 3).expect("asked"), Opening::Wait);
    let epoch = grant_table.grant(id).expect("there").epoch;
    grant_table.confirmed(id, epoch, Nanos(4));
    let (again, second) = admit(open(&mut grant_table, "a", "db", 2, 5));
    assert!(again == id && second > first, "{second}");
    let stale = grant_table.renew("a", id, first, Nanos(6), LEASE);
    assert!(matches!(stale, Err(Error::Revoked(_))), "{stale:?}");
    assert!(matches!(
        grant_table.renew("b", id, second, Nanos(6), LEASE),
        Err(Error::Revoked(_))
    ));
    grant_table.renew("a", id, second, Nanos(6), LEASE).expect("the holder");
}

/// A holder that was slow to begin mapped its memory when its node had just been asked which processes map it, sent a
/// heartbeat, and lost it to the next holder.
#[test]
fn a_holder_that_has_renewed_meanwhile_is_not_taken_over() {
    let mut grant_table = grant_table();
    let (id, epoch) = admit(open(&mut grant_table, "a", "db", 2, 0));
    let seen = grant_table.grant(id).expect("there").renewals;
    grant_table.renew("a", id, epoch, Nanos(1), LEASE).expect("the holder");
    let taken = grant_table.take_over((id, epoch, seen), None, Nanos(2), LEASE);
    assert!(matches!(taken, Err(Error::Busy(_))), "{taken:?}");
    let seen = grant_table.grant(id).expect("there").renewals;
    // The manager was held up: all leases are longer for it, which no message has said.
    grant_table.no_holder_was_heard(Nanos(1));
    let (again, next) = admit(grant_table.take_over((id, epoch, seen), None, Nanos(3), LEASE));
    assert!(again == id && next > epoch, "{next}");
    grant_table.free(id).expect("freed");
    grant_table.confirmed(id, grant_table.grant(id).expect("there").epoch, Nanos(4));
    let gone = grant_table.take_over((id, next, seen), None, Nanos(5), LEASE);
    assert!(matches!(gone, Err(Error::Busy(_))), "it is asked for anew: {gone:?}");
}

/// Memory counts until its node has confirmed that no process has it.
#[test]
fn what_is_being_freed_is_in_quarantine() {
    let mut grant_table = grant_table();
    let (id, epoch) = admit(open(&mut grant_table, "b", "all", 8, 0));
    grant_table.release("b", id, epoch, true, Nanos(1)).expect("released");
    assert!(matches!(open(&mut grant_table, "b", "next", 8, 2), Ok(Opening::Wait)));
    assert_eq!(grant_table.work_of(NodeId(1)), [id]);
    grant_table.confirmed(id, epoch, Nanos(3));
    assert!(
        grant_table.grant(id).is_ok(),
        "a confirmation of an older epoch says nothing"
    );
    let epoch = grant_table.grant(id).expect("there").epoch;
    grant_table.confirmed(id, epoch, Nanos(3));
    let (next, _) = admit(open(&mut grant_table, "b", "next", 8, 4));
    assert_ne!(next, id);
}

#[test]
fn a_lapsed_lease_is_fenced_and_what_is_kept_too_long_goes() {
    let mut grant_table = grant_table();
    let kept = OpenRequest {
        keep: Some(1),
        ..requested("db", 1)
    };
    let (id, _) = admit(grant_table.open("a", &kept, Nanos(0), LEASE));
    assert!(!grant_table.is_due(LEASE));
    grant_table.tick(Nanos(LEASE.raw() + 1));
    assert_eq!(grant_table.grant(id).expect("there").phase, Phase::Fencing);
    let now = Nanos::from_secs(20);
    grant_table.confirmed(id, grant_table.grant(id).expect("there").epoch, now);
    assert_eq!(grant_table.grant(id).expect("there").phase, Phase::Idle);
    assert!(!grant_table.is_due(Nanos::from_secs(21)));
    grant_table.tick(Nanos::from_secs(22));
    assert_eq!(grant_table.grant(id).expect("there").phase, Phase::Freeing);
}

#[test]
fn limits_are_kept_and_said() {
    let mut grant_table = grant_table();
    let says = |error: Result<Opening>, what: &str| {
        let text = error.expect_err("refused").to_string();
        assert!(text.contains(what), "{text}");
    };
    admit(open(&mut grant_table, "a", "one", 4, 0));
    says(open(&mut grant_table, "a", "two", 3, 0), "quota of 12MiB");
    says(open(&mut grant_table, "a", "one", 5, 0), "has 8MiB and 10MiB");
    says(open(&mut grant_table, "b", "big", 9, 0), "no memory node");
    says(open(&mut grant_table, "c", "x", 1, 0), "no tenant");
    says(open(&mut grant_table, "b", "", 1, 0), "label");
    says(open(&mut grant_table, "b", "x", 0, 0), "0 bytes");
    says(open(&mut grant_table, "b", "x", u64::MAX / EXTENT, 0), "free");
    let elsewhere = OpenRequest {
        pod: Some("moon".into()),
        ..requested("x", 1)
    };
    says(grant_table.open("b", &elsewhere, Nanos(0), LEASE), "pod moon");
    // A holder on another machine than its memory node's could not be fenced.
    let far = |label: &str, extents: u64| OpenRequest {
        machine: 9,
        ..requested(label, extents)
    };
    says(grant_table.open("b", &far("y", 1), Nanos(0), LEASE), "on this machine");
    says(
        grant_table.open("a", &far("one", 4), Nanos(0), LEASE),
        "another machine",
    );
    grant_table.leave(NodeId(1));
    says(open(&mut grant_table, "a", "one", 4, 1), "is not there");
    grant_table.forget(NodeId(1)).expect("forgotten");
    assert_eq!(grant_table.grants().count(), 0);
}

/// An idle grant goes where a tenant with more priority needs its memory, and a held one never does.
#[test]
fn priority_reclaims_what_is_idle() {
    let mut grant_table = grant_table();
    let (idle, epoch) = admit(open(&mut grant_table, "a", "idle", 4, 0));
    grant_table
        .release("a", idle, epoch, false, Nanos(1))
        .expect("released");
    grant_table.confirmed(idle, epoch + 1, Nanos(1));
    admit(open(&mut grant_table, "b", "held", 4, 2));
    admit(open(&mut grant_table, "b", "right", 4, 2));
    let more = open(&mut grant_table, "b", "more", 3, 3);
    assert!(matches!(more, Ok(Opening::Wait)), "{more:?}");
    assert_eq!(grant_table.grant(idle).expect("there").phase, Phase::Freeing);
    let (phase, epoch) = grant_table.grant(idle).map(|g| (g.phase, g.epoch)).expect("there");
    assert_eq!(phase, Phase::Freeing);
    grant_table.confirmed(idle, epoch, Nanos(4));
    admit(open(&mut grant_table, "b", "more", 3, 5));
    let low = open(&mut grant_table, "a", "low", 2, 6);
    assert!(matches!(low, Err(Error::Full(_))), "{low:?}");
}

#[test]
fn memory_nodes_of_other_pools_and_twins_are_refused() {
    let mut grant_table = grant_table();
    assert!(matches!(grant_table.join(&hello(1, "left", 8)), Err(Error::Busy(_))));
    let foreign = NodeHello {
        pool: Some(8),
        ..hello(3, "left", 8)
    };
    assert!(matches!(grant_table.join(&foreign), Err(Error::Mismatch(_))));
    admit(open(&mut grant_table, "b", "x", 6, 0));
    grant_table.leave(NodeId(1));
    let smaller = NodeHello {
        pool: Some(7),
        ..hello(1, "left", 5)
    };
    assert!(matches!(grant_table.join(&smaller), Err(Error::Full(_))));
    grant_table.forget(NodeId(1)).expect("not connected");
    let forgotten = NodeHello {
        pool: Some(7),
        ..hello(1, "left", 8)
    };
    assert!(matches!(grant_table.join(&forgotten), Err(Error::Mismatch(_))));
}

#[test]
fn the_file_is_checked() {
    let mut grant_table = grant_table();
    admit(open(&mut grant_table, "a", "db", 2, 0));
    let good = book(&grant_table);
    let mut same = read(&good).expect("read");
    for id in [1, 2] {
        assert!(!same.node(NodeId(id)).expect("there").connected);
        same.nodes.get_mut(&NodeId(id)).expect("there").connected = true;
    }
    assert_eq!(records(&same), records(&grant_table));
    assert_eq!(same.grant(GrantId(1)).expect("there").time, Nanos(5 + LEASE.raw()));
    for (name, record) in &good {
        let with = |change: &dyn Fn(&mut RecordSet)| {
            let mut bad = good.clone();
            change(&mut bad);
            read(&bad)
        };
        let gone = with(&|book| _ = book.remove(name));
        assert!(matches!(gone, Err(Error::Corrupt(_))), "{name} is missing: {gone:?}");
        let twice = with(&|book| _ = book.insert(format!("{name}9"), record.clone()));
        assert!(twice.is_err(), "{name} is there twice");
        for at in (0..record.len()).step_by(3) {
            let mut bytes = record.clone().into_bytes();
            bytes[at] ^= 4;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let bad = with(&|book| _ = book.insert(name.clone(), text.clone()));
            assert!(bad.is_err() || name == "meta", "{name}, byte {at}: {text}");
        }
    }
}

/// Invariant 3 of docs/pool.md: a grant table in which a holder has no epoch was taken for whole.
#[test]
fn a_holder_without_an_epoch_is_a_problem() {
    let mut grant_table = grant_table();
    let (id, _) = admit(open(&mut grant_table, "a", "db", 2, 0));
    assert_eq!(grant_table.problems(), Vec::<String>::new());
    for phase in [Phase::Held, Phase::Fencing, Phase::Idle] {
        let grant = grant_table.grants.get_mut(&id).expect("there");
        (grant.epoch, grant.phase) = (0, phase);
        assert_eq!(grant_table.problems().len(), 1, "{phase}: {:?}", grant_table.problems());
    }
    let read = read(&book(&grant_table));
    assert!(matches!(read, Err(Error::Corrupt(_))), "{read:?}");
}

/// Invariant 7 of docs/pool.md: a grant table that gives a lost part's number to another part was taken for whole.
#[test]
fn a_part_with_a_number_that_was_lost_is_a_problem() {
    let mut grant_table = grant_table();
    let parts = begun(create(&mut grant_table, "b", "heap", 4, 9));
    parts.iter().for_each(|id| confirm(&mut grant_table, *id));
    assert_eq!(grant_table.problems(), Vec::<String>::new());
    let id = *grant_table.spaces.keys().next().expect("there is one");
    let lose = |grant_table: &mut GrantTable, lost| grant_table.spaces.get_mut(&id).expect("there").lost = lost;
    for lost in [1, 9, 0] {
        lose(&mut grant_table, vec![lost]);
        assert_eq!(grant_table.problems().len(), 1, "{:?}", grant_table.problems());
    }
    lose(&mut grant_table, Vec::new());
    let mut twin = grant_table.spaces[&id].clone();
    twin.name = "twin".into();
    grant_table.spaces.insert(SpaceId(id.0 + 1), twin);
    assert!(
        grant_table
            .problems()
            .iter()
            .any(|problem| problem.contains("says that it is"))
    );
}

/// The time in which the manager could hear no holder is not counted.
#[test]
fn a_manager_that_was_away_gives_the_time_back() {
    let mut grant_table = grant_table();
    let (id, _) = admit(open(&mut grant_table, "a", "db", 2, 0));
    let (idle, epoch) = admit(open(&mut grant_table, "a", "idle", 2, 0));
    grant_table
        .release("a", idle, epoch, false, Nanos(1))
        .expect("released");
    let away = Nanos::from_secs(100);
    grant_table.no_holder_was_heard(away);
    assert!(!grant_table.is_due(Nanos(LEASE.raw() + away.raw())));
    grant_table.tick(Nanos(LEASE.raw() + away.raw() + 1));
    assert_eq!(grant_table.grant(id).expect("there").phase, Phase::Fencing);
    assert_eq!(grant_table.grant(idle).expect("there").time, Nanos(1));
}

#[test]
fn terms_rise_and_are_kept() {
    let mut grant_table = grant_table();
    assert_eq!((grant_table.begin_term(), grant_table.begin_term()), (1, 2));
    let mut next = read(&book(&grant_table)).expect("read");
    assert_eq!(next.begin_term(), 3);
}

/// A grant table of before there were spaces is read, and written as it is now.
#[test]
fn an_older_book_is_taken_over() {
    let mut grant_table = grant_table();
    let (id, _) = admit(open(&mut grant_table, "a", "db", 2, 0));
    let of_kind = |kind: &str| -> serde_json::Value {
        let records = records(&grant_table).into_iter();
        let its = records.filter_map(|(name, record)| {
            let number = name.strip_prefix(kind)?.strip_prefix('/')?.to_owned();
            Some((number, serde_json::from_str(&record).expect("JSON")))
        });
        serde_json::Value::Object(its.collect())
    };
    let body = serde_json::json!({"pool": 7, "next": 2, "nodes": of_kind("node"), "grants": of_kind("grant")});
    let body = serde_json::to_string_pretty(&body).expect("JSON");
    let former = |head: String| {
        let stored = Stored::Former(format!("{head}\n{body}\n").into_bytes());
        GrantTable::read(&stored, tenants(), Nanos(5), LEASE)
    };
    for format in 1..=3 {
        let now = former(format!("cenote-pool {format} {:08x}", crc32c(body.as_bytes()))).expect("read");
        assert_eq!(now.grant(id).expect("there").bytes, 2 * EXTENT);
        assert_eq!(records(&now), records(&grant_table));
    }
    let later = former(format!("cenote-pool 5 {:08x}", crc32c(body.as_bytes())));
    assert!(matches!(later, Err(Error::Mismatch(_))), "{later:?}");
    let damaged = former("cenote-pool 3 00000000".into());
    assert!(matches!(damaged, Err(Error::Corrupt(_))), "{damaged:?}");
}

fn space(name: &str, extents: u64) -> SpaceRequest {
    SpaceRequest {
        name: name.into(),
        bytes: extents * EXTENT,
        pods: None,
        mirrored: false,
    }
}

fn create(grant_table: &mut GrantTable, tenant: &str, name: &str, extents: u64, id: u128) -> Result<Making> {
    let new = (SpaceId(id), Key::of(id));
    grant_table.create_space(tenant, &space(name, extents), new, Nanos(0))
}

fn begun(making: Result<Making>) -> Vec<GrantId> {
    match making.expect("granted") {
        Making::Begun(parts) => parts,
        Making::Wait => panic!("it waits"),
    }
}

fn confirm(grant_table: &mut GrantTable, id: GrantId) {
    let epoch = grant_table.grant(id).expect("there").epoch;
    grant_table.confirmed(id, epoch, Nanos(1));
}

/// No client hears of a space before all of its nodes keep their parts; its name and memory are taken until all are
/// confirmed free.
#[test]
fn a_space_is_ready_when_its_parts_are_kept_and_gone_when_they_are_freed() {
    let mut grant_table = grant_table();
    let parts = begun(create(&mut grant_table, "b", "heap", 8, 1));
    let sizes: Vec<_> = parts
        .iter()
        .map(|id| {
            grant_table
                .grant(*id)
                .map(|g| (g.node, g.bytes / EXTENT))
                .expect("there")
        })
        .collect();
    assert_eq!(sizes, [(NodeId(1), 4), (NodeId(2), 4)]);
    assert_eq!(grant_table.work_of(NodeId(1)), [parts[0]]);
    assert!(matches!(grant_table.space_view("b", "heap"), Err(Error::Busy(_))));
    confirm(&mut grant_table, parts[0]);
    assert!(matches!(grant_table.space_view("b", "heap"), Err(Error::Busy(_))));
    confirm(&mut grant_table, parts[1]);
    let view = grant_table.space_view("b", "heap").expect("ready");
    let numbers: Vec<_> = view
        .parts
        .iter()
        .map(|part| (part.number, part.members.as_deref()))
        .collect();
    assert_eq!(numbers, [(1, Some("127.0.0.1:1")), (2, Some("127.0.0.1:2"))]);
    assert!(
        matches!(grant_table.space_view("a", "heap"), Err(Error::Invalid(_))),
        "another tenant's"
    );
    assert!(matches!(
        create(&mut grant_table, "b", "heap", 2, 2),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(grant_table.free(parts[0]), Err(Error::Invalid(text)) if text.contains("heap")));
    let last = begun(grant_table.grow_space("b", &space("heap", 4), Nanos(2)));
    assert_eq!(
        last.iter()
            .map(|id| grant_table.part_order(*id).expect("a part").part)
            .collect::<Vec<_>>(),
        [3]
    );
    assert_eq!(
        grant_table.space_view("b", "heap").expect("ready").parts.len(),
        2,
        "no client hears of what is not kept"
    );
    confirm(&mut grant_table, last[0]);
    assert_eq!(grant_table.space_view("b", "heap").expect("ready").parts.len(), 3);
    grant_table.drop_space("b", "heap").expect("dropped");
    assert!(matches!(create(&mut grant_table, "b", "heap", 2, 3), Ok(Making::Wait)));
    [parts[0], parts[1], last[0]]
        .into_iter()
        .for_each(|id| confirm(&mut grant_table, id));
    begun(create(&mut grant_table, "b", "heap", 2, 3));
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// A node without calls told no other which members it had fenced, and was told by none: a member that one had fenced
/// wrote on at the other.
#[test]
fn a_space_lies_on_nodes_with_calls_or_on_nodes_without() {
    let mut grant_table = grant_table();
    let called = NodeHello {
        calls: Some("a".into()),
        ..hello(3, "far", 8)
    };
    grant_table.join(&called).expect("joined");
    let in_pods = |name: &str, pods: &[&str]| SpaceRequest {
        pods: Some(pods.iter().map(|pod| (*pod).to_owned()).collect()),
        ..space(name, 2)
    };
    let mut create = |name: &str, pods: &[&str], id| {
        let new = (SpaceId(id), Key::of(id));
        let made = grant_table.create_space("b", &in_pods(name, pods), new, Nanos(0));
        made.map(|_| grant_table.work_of(NodeId(3)))
    };
    let refused = create("both", &["left", "far"], 1);
    assert!(
        matches!(&refused, Err(Error::Invalid(text)) if text.contains("left") && text.contains("far")),
        "{refused:?}"
    );
    create("without", &["left", "right"], 2).expect("granted");
    let parts = create("with", &["far"], 3).expect("granted");
    confirm(&mut grant_table, parts[0]);
    let grown = grant_table.grow_space("b", &in_pods("with", &["left"]), Nanos(1));
    assert!(matches!(grown, Err(Error::Invalid(_))), "{grown:?}");
    begun(grant_table.grow_space("b", &in_pods("with", &["far"]), Nanos(1)));
}

/// What was being made when the manager died is undone: the client that asked for it has heard nothing.
#[test]
fn what_no_client_heard_of_is_undone() {
    let mut grant_table = grant_table();
    let ready = begun(create(&mut grant_table, "b", "ready", 4, 1));
    ready.iter().for_each(|id| confirm(&mut grant_table, *id));
    let grown = begun(grant_table.grow_space("b", &space("ready", 2), Nanos(2)));
    let made = begun(create(&mut grant_table, "b", "made", 4, 2));
    confirm(&mut grant_table, made[0]);
    let mut next = read(&book(&grant_table)).expect("read");
    for id in made.iter().chain(&grown) {
        assert_eq!(next.grant(*id).expect("there").phase, Phase::Freeing);
        confirm(&mut next, *id);
    }
    let names: Vec<_> = next
        .space_summaries(None)
        .into_iter()
        .map(|s| (s.name, s.phase, s.parts.len()))
        .collect();
    assert_eq!(names, [("ready".into(), SpacePhase::Ready, 2)]);
    // The same when a node cannot.
    let made = begun(create(&mut grant_table, "b", "failed", 2, 3));
    grant_table.not_kept(made[0]);
    assert!(matches!(
        create(&mut grant_table, "b", "failed", 2, 4),
        Ok(Making::Wait)
    ));
    made.iter().for_each(|id| confirm(&mut grant_table, *id));
    begun(create(&mut grant_table, "b", "failed", 2, 4));
}

#[test]
fn limits_of_spaces_are_kept_and_said() {
    let mut grant_table = grant_table();
    let says = |error: Result<Making>, what: &str| {
        let text = error.expect_err("refused").to_string();
        assert!(text.contains(what), "{text}");
    };
    says(create(&mut grant_table, "a", "x", 7, 1), "quota of 12MiB");
    says(create(&mut grant_table, "b", "x", 13, 1), "24MiB free");
    says(create(&mut grant_table, "b", "x", 0, 1), "0 bytes");
    says(create(&mut grant_table, "b", "x", u64::MAX / EXTENT, 1), "free");
    says(create(&mut grant_table, "b", "x/y", 1, 1), "slashes");
    says(create(&mut grant_table, "c", "x", 1, 1), "no tenant");
    let moon = SpaceRequest {
        pods: Some(vec!["left".into(), "moon".into()]),
        ..space("x", 2)
    };
    says(
        grant_table.create_space("b", &moon, (SpaceId(1), Key::of(1)), Nanos(0)),
        "pod moon",
    );
    // Idle memory of tenants with less priority is reclaimed, and what a space has never is.
    let (idle, epoch) = admit(open(&mut grant_table, "a", "idle", 4, 0));
    grant_table
        .release("a", idle, epoch, false, Nanos(1))
        .expect("released");
    grant_table.confirmed(idle, epoch + 1, Nanos(1));
    assert!(matches!(
        create(&mut grant_table, "b", "all", 8, 1).expect("room"),
        Making::Begun(_)
    ));
    assert!(
        matches!(open(&mut grant_table, "b", "db", 4, 1), Ok(Opening::Wait)),
        "the idle one goes"
    );
    confirm(&mut grant_table, idle);
    admit(open(&mut grant_table, "b", "db", 4, 1));
    says(create(&mut grant_table, "b", "x", 2, 2), "0B free");
    grant_table.tick(Nanos::from_secs(1_000_000));
    assert!(
        grant_table
            .grants()
            .all(|(_, grant)| grant.part.is_none() || grant.phase == Phase::Keeping),
        "no lease lapses"
    );
}

/// Idle memory goes where it has to, and stays where the space has room without it: also where nodes have unlike much.
#[test]
fn no_more_is_reclaimed_for_a_space_than_it_needs() {
    let mut grant_table = GrantTable::new(7, tenants());
    grant_table.join(&hello(1, "pod", 4)).expect("joined");
    grant_table.join(&hello(2, "pod", 3)).expect("joined");
    let idle = |grant_table: &mut GrantTable, label: &str, extents: u64| {
        let (id, epoch) = admit(open(grant_table, "a", label, extents, 0));
        grant_table.release("a", id, epoch, false, Nanos(1)).expect("released");
        grant_table.confirmed(id, epoch + 1, Nanos(1));
        id
    };
    let [one, other] = ["one", "other"].map(|label| idle(&mut grant_table, label, 3));
    assert!(matches!(create(&mut grant_table, "b", "small", 2, 1), Ok(Making::Wait)));
    let phases = [one, other].map(|id| grant_table.grant(id).expect("there").phase);
    let reclaimed = phases.iter().filter(|phase| **phase == Phase::Freeing).count();
    assert_eq!(reclaimed, 1, "{phases:?}");
    // Not half of it on each: one of them has less than that.
    assert!(matches!(create(&mut grant_table, "b", "all", 7, 2), Ok(Making::Wait)));
    [one, other].into_iter().for_each(|id| confirm(&mut grant_table, id));
    begun(create(&mut grant_table, "b", "all", 7, 2));
}

/// The story: an older copy of the grant table is put back. Memory that was granted since is there, and in no grant
/// table. Its number was given anew, and the next tenant found the bytes of another.
#[test]
fn a_number_that_a_node_has_seen_is_not_given_anew() {
    let mut grant_table = grant_table();
    let copy = book(&grant_table);
    let (since, _) = admit(open(&mut grant_table, "a", "since", 2, 0));
    let mut grant_table = read(&copy).expect("read");
    let seen = |last: GrantId| NodeHello {
        pool: Some(7),
        last,
        ..hello(1, "left", 8)
    };
    let lie = grant_table.join(&seen(GrantId(u64::MAX)));
    assert!(matches!(lie, Err(Error::Corrupt(_))), "{lie:?}");
    grant_table.join(&seen(since)).expect("joined");
    let (next, _) = admit(open(&mut grant_table, "b", "next", 2, 6));
    assert!(next > since, "{next}");
}

/// Shares are even as far as there is room, whole extents, and the smallest part there can be at least.
#[test]
fn memory_is_spread_over_nodes() {
    let nodes = |free: &[u64]| {
        (1..)
            .map(NodeId)
            .zip(free.iter().map(|n| n * EXTENT))
            .collect::<Vec<_>>()
    };
    let spread = |extents: u64, free: &[u64]| {
        let shares = spaces::spread(extents * EXTENT, nodes(free))?;
        Some(
            shares
                .iter()
                .map(|(id, bytes)| (id.0, bytes / EXTENT))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(spread(9, &[8, 8, 8]), Some(vec![(1, 3), (2, 3), (3, 3)]));
    assert_eq!(spread(10, &[8, 2, 8]), Some(vec![(1, 4), (2, 2), (3, 4)]));
    assert_eq!(spread(10, &[8, 1, 8]), Some(vec![(1, 5), (3, 5)]));
    assert_eq!(spread(3, &[8, 9, 8]), Some(vec![(2, 2), (3, 2)]));
    assert_eq!(spread(18, &[8, 1, 8]), None);
    assert_eq!(spread(2, &[]), None);
}

/// Nodes knew of a part when members did, or later: one that was cut off in between fenced members at too few nodes.
#[test]
fn nodes_know_of_a_part_before_it_is_there() {
    let mut grant_table = grant_table();
    let parts = begun(create(&mut grant_table, "b", "heap", 4, 1));
    let told = |grant_table: &GrantTable, node| {
        let spaces = grant_table.spaces_at(NodeId(node));
        let numbers = |(parts, _, coming): &PartsOf| (parts.iter().map(|part| part.number).collect(), coming.clone());
        spaces.values().map(numbers).next().unwrap_or((Vec::new(), Vec::new()))
    };
    let node = grant_table.grant(parts[0]).expect("there").node.0;
    assert_eq!(
        told(&grant_table, node),
        (vec![], (1..=parts.len() as u8).collect::<Vec<_>>())
    );
    parts.iter().for_each(|id| confirm(&mut grant_table, *id));
    let before: Vec<u8> = (1..=parts.len() as u8).collect();
    assert_eq!(told(&grant_table, node), (before.clone(), vec![]));
    let grown = begun(grant_table.grow_space("b", &space("heap", 2), Nanos(2)));
    let coming: Vec<u8> = (1..=grown.len() as u8).map(|n| before.len() as u8 + n).collect();
    assert_eq!(told(&grant_table, node), (before.clone(), coming.clone()));
    grown.iter().for_each(|id| grant_table.not_kept(*id));
    assert_eq!(told(&grant_table, node), (before, vec![]), "taken back");
}

#[test]
fn a_lost_node_takes_its_parts_and_nothing_else() {
    let mut grant_table = grant_table();
    let parts = begun(create(&mut grant_table, "b", "heap", 8, 1));
    parts.iter().for_each(|id| confirm(&mut grant_table, *id));
    let made = begun(create(&mut grant_table, "b", "made", 4, 2));
    assert_eq!(made.len(), 1, "the other node is full");
    grant_table.leave(NodeId(1));
    assert_eq!(
        grant_table.space_view("b", "heap").expect("ready").parts[0].members,
        None
    );
    let told = |grant_table: &GrantTable| {
        grant_table
            .spaces_at(NodeId(2))
            .into_values()
            .find(|(parts, ..)| !parts.is_empty())
            .expect("its space")
    };
    assert_eq!(
        (told(&grant_table).0.len(), told(&grant_table).1),
        (2, vec![]),
        "it is away, and a part still"
    );
    grant_table.forget(NodeId(1)).expect("forgotten");
    assert_eq!(
        (told(&grant_table).0.len(), told(&grant_table).1),
        (1, vec![1]),
        "the others are told"
    );
    let summaries = grant_table.space_summaries(None);
    assert_eq!(summaries.len(), 1, "what no client heard of is gone with it");
    assert_eq!((summaries[0].lost.clone(), summaries[0].parts.len()), (vec![1], 1));
    assert_eq!(grant_table.problems(), Vec::<String>::new());
    grant_table.drop_space("b", "heap").expect("dropped");
    confirm(&mut grant_table, parts[1]);
    assert_eq!(
        (grant_table.grants().count(), grant_table.space_summaries(None).len()),
        (0, 0)
    );
}

#[derive(Debug, Clone)]
enum Step {
    Create(bool, u8, u8),
    Grow(bool, u8, u8),
    Drop(bool, u8),
    Fail(u8),
    Forget(bool),
    Open(bool, u8, u8, bool),
    Write(u8),
    Mirror(u8, Say),
    LoseMemory(u8),
    Release(u8, bool),
    Renew(u8),
    Confirm(u8),
    Free(u8),
    Tick(u8),
    Leave(bool),
    Join(bool),
    Restart,
}

/// What a holder does about its mirror.
#[derive(Debug, Clone, Copy)]
enum Say {
    Seek,
    Fill,
    Void,
    Lost,
    FailOver,
}

fn says() -> impl Strategy<Value = Say> {
    prop_oneof![
        2 => Just(Say::Seek),
        4 => Just(Say::Fill),
        1 => Just(Say::Void),
        1 => Just(Say::Lost),
        1 => Just(Say::FailOver),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<bool>(), 0..5u8, 0..6u8, any::<bool>()).prop_map(|(a, l, n, m)| Step::Open(a, l, n, m)),
        3 => any::<u8>().prop_map(Step::Write),
        6 => (any::<u8>(), says()).prop_map(|(g, say)| Step::Mirror(g, say)),
        2 => any::<u8>().prop_map(Step::LoseMemory),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(g, b)| Step::Release(g, b)),
        1 => any::<u8>().prop_map(Step::Renew),
        4 => any::<u8>().prop_map(Step::Confirm),
        1 => any::<u8>().prop_map(Step::Free),
        2 => any::<u8>().prop_map(Step::Tick),
        1 => any::<bool>().prop_map(Step::Leave),
        2 => any::<bool>().prop_map(Step::Join),
        1 => Just(Step::Restart),
        3 => (any::<bool>(), 0..3u8, 0..7u8).prop_map(|(a, l, n)| Step::Create(a, l, n)),
        1 => (any::<bool>(), 0..3u8, 0..4u8).prop_map(|(a, l, n)| Step::Grow(a, l, n)),
        2 => (any::<bool>(), 0..3u8).prop_map(|(a, l)| Step::Drop(a, l)),
        1 => any::<u8>().prop_map(Step::Fail),
        1 => any::<bool>().prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 1..80)
}

/// What runs beside the grant table: the processes that were told they hold a grant, with its epoch, and may be using
/// it; which parts nodes keep; and which spaces tenants were told to be there, with the numbers of their parts. What
/// was flushed last into the memory of each grant, and of each mirror; and into which mirrors holders copy.
#[derive(Default)]
struct World {
    now: u64,
    writes: u64,
    content: BTreeMap<GrantId, u64>,
    attached: BTreeMap<GrantId, GrantId>,
    holders: BTreeMap<GrantId, (String, u64)>,
    kept: BTreeMap<GrantId, (SpaceId, u8)>,
    told: BTreeMap<(String, String), (SpaceId, BTreeMap<u8, GrantId>)>,
    numbers: BTreeMap<(SpaceId, u8), GrantId>,
}

impl World {
    fn pick(&self, grant_table: &GrantTable, n: u8) -> Option<GrantId> {
        let ids: Vec<GrantId> = grant_table.grants().map(|(id, _)| id).collect();
        (!ids.is_empty()).then(|| ids[n as usize % ids.len()])
    }

    /// Memory that is not there any more, or is another's: no process copies into it, and it has no holder.
    fn forget(&mut self, id: GrantId) {
        self.holders.remove(&id);
        self.content.remove(&id);
        self.attached.retain(|of, mirror| *of != id && *mirror != id);
    }

    /// Each whole mirror has what its grant's memory has.
    fn compare_mirrors(&self, grant_table: &GrantTable) {
        for (id, grant) in grant_table.grants().filter(|(_, grant)| grant.phase == Phase::Whole) {
            let of = grant.mirror_of.expect("a mirror");
            assert_eq!(
                self.content.get(&id),
                self.content.get(&of),
                "grant {id}, the whole mirror of {of}"
            );
        }
    }

    /// Its process has ended: it copies nothing more.
    fn end(&mut self, id: GrantId) {
        self.holders.remove(&id);
        self.attached.remove(&id);
    }

    fn say(&mut self, grant_table: &mut GrantTable, id: GrantId, say: Say) {
        let Some((tenant, epoch)) = self.holders.get(&id).cloned() else {
            return;
        };
        let now = Nanos(self.now);
        let mirror = grant_table.mirror_for(&tenant, id, epoch).ok().flatten();
        match say {
            Say::Seek => {
                if let Ok(sought) = grant_table.seek_mirror(&tenant, id, epoch, now) {
                    assert!(mirror.is_none_or(|mirror| mirror == sought), "it has one");
                }
            }
            Say::Fill => {
                let Some(mirror) = mirror else { return };
                // From here on what is flushed is copied; what was before is, now.
                self.attached.insert(id, mirror);
                let content = self.content.get(&id).copied().unwrap_or(0);
                self.content.insert(id, content);
                self.content.insert(mirror, content);
                grant_table
                    .mirror_is_whole(&tenant, id, epoch, mirror)
                    .expect("it is the mirror");
            }
            Say::Void => {
                let Some(mirror) = mirror else { return };
                grant_table
                    .mirror_is_void(&tenant, id, epoch, mirror)
                    .expect("it is the mirror");
                self.attached.remove(&id);
                self.content.insert(id, 0);
            }
            Say::Lost => {
                let Some(mirror) = mirror else { return };
                grant_table
                    .mirror_is_lost(&tenant, id, epoch, mirror)
                    .expect("it is the holder");
                self.attached.remove(&id);
            }
            Say::FailOver => {
                let had = self.content.get(&id).copied();
                let is_whole =
                    mirror.filter(|mirror| grant_table.grant(*mirror).is_ok_and(|m| m.phase == Phase::Whole));
                assert_eq!(grant_table.fail_over(&tenant, id, epoch).is_ok(), is_whole.is_some());
                if let Some(mirror) = is_whole {
                    assert_eq!(self.content.get(&mirror).copied(), had, "what was flushed is there");
                    self.forget(id);
                }
            }
        }
    }

    /// What tenants hear when they ask for their spaces: what they heard before is there, and parts are what they were.
    fn ask(&mut self, grant_table: &GrantTable) {
        for tenant in ["a", "b"] {
            for summary in grant_table.space_summaries(Some(tenant)) {
                let Ok(view) = grant_table.space_view(tenant, &summary.name) else {
                    continue;
                };
                let (id, parts) = self
                    .told
                    .entry((tenant.into(), summary.name))
                    .or_insert((view.id, BTreeMap::new()));
                assert_eq!(*id, view.id, "another space under the name");
                for part in &view.parts {
                    assert!(
                        self.kept.contains_key(&part.grant),
                        "part {} is kept by no node",
                        part.number
                    );
                    parts.insert(part.number, part.grant);
                }
                let there: BTreeMap<u8, GrantId> = view.parts.iter().map(|part| (part.number, part.grant)).collect();
                assert_eq!(*parts, there, "parts went or changed");
            }
        }
        for (tenant, name) in self.told.keys() {
            assert!(
                grant_table.open_space(tenant, name).is_ok(),
                "space {name} of {tenant} is gone"
            );
        }
    }

    fn apply(&mut self, grant_table: &mut GrantTable, step: &Step) {
        self.now += 1_000_000;
        let now = Nanos(self.now);
        match *step {
            Step::Create(which, name, extents) => {
                let tenant = if which { "a" } else { "b" };
                let requested = space(&format!("s{name}"), extents.into());
                let new = (SpaceId(self.now.into()), Key::of(7));
                grant_table.create_space(tenant, &requested, new, now).ok();
            }
            Step::Grow(which, name, extents) => {
                let tenant = if which { "a" } else { "b" };
                let requested = space(&format!("s{name}"), extents.into());
                grant_table.grow_space(tenant, &requested, now).ok();
            }
            Step::Drop(which, name) => {
                let (tenant, name) = (if which { "a" } else { "b" }, format!("s{name}"));
                let is_there = grant_table.space_summaries(Some(tenant)).iter().any(|s| s.name == name);
                assert_eq!(grant_table.drop_space(tenant, &name).is_ok(), is_there);
                self.told.remove(&(tenant.into(), name));
            }
            Step::Fail(n) => {
                if let Some(id) = self.pick(grant_table, n) {
                    grant_table.not_kept(id);
                }
            }
            Step::Forget(which) => self.forget_node(grant_table, NodeId(1 + u64::from(which))),
            Step::Open(which, label, extents, mirror) => self.open(grant_table, which, label, extents, mirror),
            Step::Write(n) => self.write(grant_table, n),
            Step::Mirror(n, say) => {
                if let Some(id) = self.pick(grant_table, n) {
                    self.say(grant_table, id, say);
                }
            }
            Step::LoseMemory(n) => self.lose_memory(grant_table, n),
            Step::Release(n, back) => {
                let Some(id) = self.pick(grant_table, n) else { return };
                if let Some((tenant, epoch)) = self.holders.get(&id).cloned()
                    && grant_table.release(&tenant, id, epoch, back, now).is_ok()
                {
                    self.holders.remove(&id);
                    self.attached.remove(&id);
                }
            }
            Step::Renew(n) => {
                let Some(id) = self.pick(grant_table, n) else { return };
                let Some((tenant, epoch)) = self.holders.get(&id).cloned() else {
                    return;
                };
                let held = grant_table.grant(id).is_ok_and(|g| g.phase == Phase::Held);
                assert_eq!(grant_table.renew(&tenant, id, epoch, now, LEASE).is_ok(), held);
            }
            Step::Confirm(n) => self.confirm(grant_table, n),
            Step::Free(n) => self.free(grant_table, n),
            Step::Tick(seconds) => {
                self.now += u64::from(seconds % 16) * 1_000_000_000;
                grant_table.tick(Nanos(self.now));
                assert!(!grant_table.is_due(Nanos(self.now)));
            }
            Step::Leave(which) => grant_table.leave(NodeId(1 + u64::from(which))),
            Step::Join(which) => {
                let (id, pod, extents) = if which { (2, "right", 4) } else { (1, "left", 8) };
                let forgotten = grant_table.node(NodeId(id)).is_err();
                let hello = NodeHello {
                    pool: (!forgotten).then_some(7),
                    ..hello(id, pod, extents)
                };
                grant_table.join(&hello).ok();
            }
            Step::Restart => {
                let stored = Stored::Records(book(grant_table));
                *grant_table = GrantTable::read(&stored, tenants(), now, LEASE).expect("what was written is read");
            }
        }
    }

    fn forget_node(&mut self, grant_table: &mut GrantTable, node: NodeId) {
        let lost: Vec<GrantId> = grant_table
            .grants()
            .filter(|(_, g)| g.node == node)
            .map(|(id, _)| id)
            .collect();
        let mirrored = |id: &GrantId| {
            let grant = grant_table
                .grant(*id)
                .ok()
                .filter(|grant| grant.phase != Phase::Freeing)?;
            let (mirror, is) = grant_table.mirror_of(*id).filter(|(_, is)| is.phase == Phase::Whole)?;
            Some((grant.label.clone(), mirror, is.node, self.content.get(id).copied()))
        };
        let mirrored: Vec<_> = lost.iter().filter_map(mirrored).collect();
        if grant_table.forget(node).is_ok() {
            for (label, mirror, at, content) in mirrored {
                let grant = grant_table.grant(mirror).expect("the mirror is the grant");
                assert_eq!((&grant.label, grant.node, grant.phase), (&label, at, Phase::Fencing));
                assert_eq!(self.content.get(&mirror).copied(), content, "what was flushed is there");
            }
            for id in lost {
                self.forget(id);
                self.kept.remove(&id);
                self.told
                    .values_mut()
                    .for_each(|(_, parts)| parts.retain(|_, part| *part != id));
            }
        }
    }

    fn open(&mut self, grant_table: &mut GrantTable, which: bool, label: u8, extents: u8, mirror: bool) {
        let now = Nanos(self.now);
        let tenant = if which { "a" } else { "b" };
        if let Ok(Opening::Admit(id, epoch)) = grant_table.open(
            tenant,
            &OpenRequest {
                mirror,
                ..requested(&format!("l{label}"), extents.into())
            },
            now,
            LEASE,
        ) {
            let before = self.holders.insert(id, (tenant.into(), epoch));
            assert!(before.is_none(), "grant {id} has two holders");
            if !mirror {
                grant_table.drop_mirror(id);
            }
            // The next holder copies into a whole mirror before it flushes anything.
            if let Some((mirror, _)) = grant_table.mirror_of(id).filter(|(_, is)| is.phase == Phase::Whole) {
                self.attached.insert(id, mirror);
            }
        }
    }

    fn write(&mut self, grant_table: &GrantTable, n: u8) {
        // Each process that maps it writes, also when it is the holder no more and has not been ended yet.
        let Some(id) = self.pick(grant_table, n).filter(|id| self.holders.contains_key(id)) else {
            return;
        };
        self.writes += 1;
        self.content.insert(id, self.writes);
        if let Some(mirror) = self.attached.get(&id) {
            self.content.insert(*mirror, self.writes);
        }
    }

    fn lose_memory(&mut self, grant_table: &mut GrantTable, n: u8) {
        // Found when the next holder is admitted: it has the grant, and its file is not there.
        let Some(id) = self.pick(grant_table, n) else { return };
        let Some((_, epoch)) = self.holders.get(&id).cloned() else {
            return;
        };
        let had = self.content.get(&id).copied();
        let mirror = grant_table
            .mirror_of(id)
            .filter(|(_, is)| is.phase == Phase::Whole)
            .map(|(mirror, _)| mirror);
        if grant_table.memory_was_lost(id, epoch) {
            let mirror = mirror.expect("only a whole one takes its place");
            assert_eq!(self.content.get(&mirror).copied(), had, "what was flushed is there");
            self.forget(id);
        }
    }

    fn free(&mut self, grant_table: &mut GrantTable, n: u8) {
        if let Some(id) = self.pick(grant_table, n) {
            let grant = grant_table.grant(id).expect("picked");
            let is_alone = grant.part.is_none() && grant.mirror_of.is_none();
            assert_eq!(grant_table.free(id).is_ok(), is_alone);
        }
    }

    fn confirm(&mut self, grant_table: &mut GrantTable, n: u8) {
        let now = Nanos(self.now);
        let Some(id) = self.pick(grant_table, n) else { return };
        let grant = grant_table.grant(id).expect("picked").clone();
        if let Some(order) = grant_table.part_order(id).filter(|order| order.make) {
            let of = self.numbers.insert((order.space, order.part), id);
            assert!(of.is_none_or(|of| of == id), "a part's number was used again");
            self.kept.insert(id, (order.space, order.part));
            grant_table.confirmed(id, grant.epoch, now);
        }
        if matches!(grant.phase, Phase::Fencing | Phase::Freeing) {
            // The node has ended the holder, and members.
            if grant.phase == Phase::Freeing {
                self.content.remove(&id);
                let of = self.attached.iter().find(|(_, mirror)| **mirror == id);
                // The process that copies into it maps it, and was ended.
                of.map(|(of, _)| *of).into_iter().for_each(|of| self.end(of));
            }
            self.end(id);
            self.kept.remove(&id);
            grant_table.confirmed(id, grant.epoch, now);
        }
    }
}

proptest! {
    /// However requests, lapses, confirmations and restarts come: no byte is granted twice, no grant has two holders,
    /// quotas and nodes are not exceeded, and what a process may be using is not free.
    #[test]
    fn nothing_is_granted_twice(steps in steps()) {
        let (mut grant_table, mut world) = (grant_table(), World::default());
        for step in &steps {
            world.apply(&mut grant_table, step);
            prop_assert_eq!(grant_table.problems(), Vec::<String>::new());
            prop_assert!(grant_table.granted_to("a") <= 12 << 20);
            for (id, (tenant, epoch)) in &world.holders {
                let grant = grant_table.grant(*id).expect("memory in use is in the book");
                prop_assert!(grant.tenant == *tenant && grant.epoch >= *epoch && grant.phase != Phase::Idle);
            }
            for id in world.kept.keys() {
                let is_part = grant_table.grant(*id).expect("memory in use is in the book").part.is_some();
                prop_assert!(is_part, "grant {id} is a part");
            }
            world.ask(&grant_table);
            world.compare_mirrors(&grant_table);
        }
    }
}

proptest! {
    /// What a change writes is what it changed: with it the store has the table as it is. And it can be undone.
    #[test]
    fn changes_are_written_and_undone(steps in steps()) {
        let (mut grant_table, mut world) = (grant_table(), World::default());
        let mut kept = RecordSet::new();
        store::apply(&mut kept, &grant_table.whole());
        grant_table.keep();
        for step in &steps {
            let before = grant_table.clone();
            world.apply(&mut grant_table, step);
            if matches!(step, Step::Restart) {
                kept = book(&grant_table);
                grant_table.whole();
                grant_table.keep();
                continue;
            }
            let mut undone = grant_table.clone();
            undone.changes();
            undone.undo();
            prop_assert_eq!(&undone, &before);
            store::apply(&mut kept, &grant_table.changes());
            grant_table.keep();
            for node in [1, 2].map(NodeId) {
                let its = grant_table.grants.values().filter(|grant| grant.node == node);
                prop_assert_eq!(grant_table.granted(node), its.map(|grant| grant.bytes).sum::<u64>());
            }
            let mut as_kept = kept.clone();
            as_kept.remove("meta");
            prop_assert_eq!(as_kept, records(&grant_table));
            prop_assert!(read(&kept).is_ok());
        }
    }
}

fn mirrored(label: &str, extents: u64) -> OpenRequest {
    OpenRequest {
        mirror: true,
        ..requested(label, extents)
    }
}

/// A grant with a mirror on the other node, which its holder has filled.
fn open_whole(grant_table: &mut GrantTable, label: &str) -> (GrantId, u64, GrantId) {
    let (id, epoch) = admit(grant_table.open("b", &mirrored(label, 2), Nanos(0), LEASE));
    let (mirror, grant) = grant_table.mirror_of(id).expect("a mirror");
    assert_eq!(grant.phase, Phase::Filling);
    grant_table.mirror_is_whole("b", id, epoch, mirror).expect("its holder");
    (id, epoch, mirror)
}

#[test]
fn a_mirror_lies_elsewhere_and_counts() {
    let mut grant_table = grant_table();
    let (id, _, mirror) = open_whole(&mut grant_table, "db");
    let nodes = [id, mirror].map(|id| grant_table.grant(id).expect("there").node);
    assert_ne!(nodes[0], nodes[1]);
    assert_eq!(
        (grant_table.granted_to("b"), grant_table.granted(nodes[1])),
        (4 * EXTENT, 2 * EXTENT)
    );
    let text = grant_table.free(mirror).expect_err("not by itself").to_string();
    assert!(text.contains(&format!("mirror of grant {id}")), "{text}");
    let says = |error: Result<Opening>, what: &str| {
        let text = error.expect_err("refused").to_string();
        assert!(text.contains(what), "{text}");
    };
    says(
        grant_table.open("b", &mirrored("big", 5), Nanos(0), LEASE),
        "of the 1 others",
    );
    says(
        grant_table.open("a", &mirrored("much", 4), Nanos(0), LEASE),
        "quota of 12MiB",
    );
    grant_table.free(id).expect("freed");
    [id, mirror].into_iter().for_each(|id| confirm(&mut grant_table, id));
    assert_eq!(grant_table.grants().count(), 0);
    let mut alone = GrantTable::new(7, tenants());
    alone.join(&hello(1, "left", 8)).expect("joined");
    says(alone.open("b", &mirrored("db", 2), Nanos(0), LEASE), "of the 0 others");
    assert_eq!(alone.grants().count(), 0);
}

/// The node is lost: the mirror is the grant, with another epoch, and it has no holder before its node has ended the
/// processes that map it.
#[test]
fn a_whole_mirror_takes_the_place_of_what_is_lost() {
    let mut grant_table = grant_table();
    let (id, epoch, mirror) = open_whole(&mut grant_table, "db");
    let node = grant_table.grant(id).expect("there").node;
    grant_table.leave(node);
    grant_table.forget(node).expect("forgotten");
    assert!(matches!(
        grant_table.renew("b", id, epoch, Nanos(1), LEASE),
        Err(Error::Revoked(_))
    ));
    assert!(matches!(
        grant_table.open("b", &mirrored("db", 2), Nanos(1), LEASE),
        Ok(Opening::Wait)
    ));
    assert_eq!(
        grant_table.work_of(grant_table.grant(mirror).expect("there").node),
        [mirror]
    );
    confirm(&mut grant_table, mirror);
    let (now, next) = admit(grant_table.open("b", &mirrored("db", 2), Nanos(2), LEASE));
    assert!(now == mirror && next > epoch, "{now} {next}");
    let none = grant_table.seek_mirror("b", now, next, Nanos(3));
    assert!(matches!(none, Err(Error::Full(_))), "{none:?}");
    grant_table.join(&hello(3, "new", 8)).expect("joined");
    let another = grant_table.seek_mirror("b", now, next, Nanos(3)).expect("room");
    assert_eq!(grant_table.grant(another).expect("there").node, NodeId(3));
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// What lacks something is not promoted: the memory is lost then, and the label's next one is new.
#[test]
fn a_mirror_that_is_not_whole_takes_no_place() {
    let mut grant_table = grant_table();
    let (id, epoch, mirror) = open_whole(&mut grant_table, "db");
    grant_table.mirror_is_void("b", id, epoch, mirror).expect("its holder");
    assert!(!grant_table.memory_was_lost(id, epoch));
    assert!(matches!(grant_table.fail_over("b", id, epoch), Err(Error::Lost(_))));
    let node = grant_table.grant(id).expect("there").node;
    grant_table.leave(node);
    grant_table.forget(node).expect("forgotten");
    assert_eq!(grant_table.grant(mirror).expect("there").phase, Phase::Freeing);
    let (next, _) = admit(open(&mut grant_table, "b", "db", 2, 1));
    assert!(next > mirror, "{next}");
}

/// A mirror that is lost is another's concern only: the holder says so, and seeks another.
#[test]
fn what_holders_say_of_mirrors_is_checked() {
    let mut grant_table = grant_table();
    let (id, epoch, mirror) = open_whole(&mut grant_table, "db");
    for (tenant, epoch) in [("a", epoch), ("b", epoch + 1)] {
        let said = [
            grant_table.mirror_is_void(tenant, id, epoch, mirror),
            grant_table.mirror_is_lost(tenant, id, epoch, mirror),
            grant_table.fail_over(tenant, id, epoch),
            grant_table.seek_mirror(tenant, id, epoch, Nanos(1)).map(drop),
        ];
        assert!(
            said.iter().all(|said| matches!(said, Err(Error::Revoked(_)))),
            "{said:?}"
        );
    }
    let other = grant_table.mirror_is_whole("b", id, epoch, GrantId(77));
    assert!(matches!(other, Err(Error::Lost(_))), "{other:?}");
    grant_table.mirror_is_lost("b", id, epoch, mirror).expect("its holder");
    grant_table.mirror_is_lost("b", id, epoch, mirror).expect("as before");
    assert_eq!(grant_table.grant(mirror).expect("there").phase, Phase::Freeing);
    let late = grant_table.mirror_is_whole("b", id, epoch, mirror);
    assert!(matches!(late, Err(Error::Lost(_))), "{late:?}");
    let another = grant_table.seek_mirror("b", id, epoch, Nanos(1)).expect("room");
    assert_ne!(another, mirror);
    // A holder that does without has none, and an idle grant's mirror goes where memory is short.
    grant_table.release("b", id, epoch, false, Nanos(2)).expect("released");
    confirm(&mut grant_table, id);
    grant_table.drop_mirror(id);
    assert_eq!(grant_table.grant(another).expect("there").phase, Phase::Freeing);
}

/// A mirror of idle memory is reclaimed, and what it mirrors stays.
#[test]
fn mirrors_of_idle_grants_are_reclaimed() {
    let mut grant_table = grant_table();
    let (id, epoch) = admit(grant_table.open("a", &mirrored("db", 2), Nanos(0), LEASE));
    let (mirror, node) = grant_table
        .mirror_of(id)
        .map(|(mirror, grant)| (mirror, grant.node))
        .expect("a mirror");
    assert_eq!(node, NodeId(2));
    admit(open(&mut grant_table, "b", "left", 6, 0));
    let held = open(&mut grant_table, "b", "right", 3, 0);
    assert!(matches!(held, Err(Error::Full(_))), "{held:?}");
    grant_table.release("a", id, epoch, false, Nanos(1)).expect("released");
    confirm(&mut grant_table, id);
    assert!(matches!(open(&mut grant_table, "b", "right", 3, 2), Ok(Opening::Wait)));
    assert_eq!(grant_table.grant(mirror).expect("there").phase, Phase::Freeing);
    assert_eq!(grant_table.grant(id).expect("there").phase, Phase::Idle);
    confirm(&mut grant_table, mirror);
    admit(open(&mut grant_table, "b", "right", 3, 3));
}

#[test]
fn without_a_file_there_is_one_tenant() {
    let mut grant_table = GrantTable::new(1, Tenants::default());
    grant_table.join(&hello(1, "pod", 2)).expect("joined");
    admit(open(&mut grant_table, DEFAULT_TENANT, "x", 2, 0));
}

/// So many nodes, and grants and spaces.
const NODES: u64 = 1000;
const EACH: u64 = 10_000;

fn large_table() -> GrantTable {
    let mut grant_table = GrantTable::new(7, Tenants::default());
    for id in 1..=NODES {
        let joined = grant_table.join(&hello(id, &format!("pod{}", id % 20), 60));
        joined.expect("joined");
    }
    for n in 0..EACH {
        admit(open(&mut grant_table, DEFAULT_TENANT, &format!("db{n}"), 1, 0));
    }
    grant_table.keep();
    for n in 0..EACH {
        let pods = [format!("pod{}", n % 20)];
        let requested = SpaceRequest {
            pods: Some(pods.to_vec()),
            ..space(&format!("s{n}"), 2)
        };
        let new = (SpaceId(n.into()), Key::of(7));
        let made = grant_table.create_space(DEFAULT_TENANT, &requested, new, Nanos(1));
        begun(made).iter().for_each(|id| confirm_kept(&mut grant_table, *id));
    }
    grant_table.keep();
    grant_table
}

/// The table was one value of 1.4 MB at most, some 3,500 grants, copied and written as a whole for each change. What a
/// change writes does not grow with the table. (What it takes is printed: run it with `--nocapture`.)
#[test]
fn changes_of_a_large_table_are_small() {
    let mut grant_table = large_table();
    let took = |what: &str, work: &mut dyn FnMut()| {
        let began = cenote_base::rt::now();
        work();
        println!("{what}: {} us", cenote_base::rt::now().since(began).raw() / 1000);
    };
    let mut stored = RecordSet::new();
    took("all written", &mut || store::apply(&mut stored, &grant_table.whole()));
    grant_table.keep();
    println!(
        "{} records, {} bytes",
        stored.len(),
        stored.values().map(String::len).sum::<usize>()
    );
    assert_eq!(stored.len() as u64, NODES + 3 * EACH + 1);
    took("all read", &mut || {
        drop(GrantTable::read(&Stored::Records(stored.clone()), Tenants::default(), Nanos(5), LEASE).expect("read"))
    });
    let mut change = |what: &str, work: &mut dyn FnMut(&mut GrantTable)| {
        let mut records = 0;
        took(what, &mut || {
            work(&mut grant_table);
            records = grant_table.changes().len();
            grant_table.keep();
        });
        records
    };
    let id = GrantId(77);
    assert_eq!(
        change("renew", &mut |t| t
            .renew(DEFAULT_TENANT, id, 1, Nanos(2), LEASE)
            .expect("held")),
        0
    );
    assert_eq!(
        change("release", &mut |t| t
            .release(DEFAULT_TENANT, id, 1, false, Nanos(3))
            .expect("held")),
        2
    );
    assert_eq!(change("confirm", &mut |t| t.confirmed(id, 2, Nanos(4))), 2);
    assert_eq!(
        change("open", &mut |t| _ = admit(open(t, DEFAULT_TENANT, "db76", 1, 5))),
        2
    );
    assert_eq!(
        change("open another", &mut |t| _ = admit(open(t, DEFAULT_TENANT, "new", 1, 5))),
        2
    );
    assert_eq!(
        change("drop a space", &mut |t| t
            .drop_space(DEFAULT_TENANT, "s5")
            .expect("there")),
        3
    );
    assert_eq!(
        change("look at a space", &mut |t| drop(
            t.space_view(DEFAULT_TENANT, "s6").expect("there")
        )),
        0
    );
    assert_eq!(change("what a node keeps", &mut |t| drop(t.spaces_at(NodeId(5)))), 0);
}

/// As its node does.
fn confirm_kept(grant_table: &mut GrantTable, id: GrantId) {
    let grant = grant_table.grants.get_mut(&id).expect("there");
    grant.enter(Phase::Kept);
    let space = grant.part.expect("a part").space;
    grant_table.spaces.get_mut(&space).expect("there").phase = SpacePhase::Ready;
}
