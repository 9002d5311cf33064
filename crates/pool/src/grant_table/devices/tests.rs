mod known;
mod refusals;

use super::super::{HostLoss, Opening, SpaceId};
use super::*;
use crate::settings::Tenants;
use crate::store::Stored;
use crate::wire::{HostHello, HostWelcome, Reach};
use cenote_base::rt::Nanos;
use proptest::prelude::*;
use std::collections::BTreeSet;

const LEASE: Nanos = Nanos::from_secs(10);
const DEVICE: NodeId = NodeId(9);
const EXTENTS: u64 = 6;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// As a store has it.
fn stored(table: &GrantTable) -> Stored {
    Stored::Records(super::super::tests::book(table))
}

fn tenants() -> Tenants {
    let text = "secret = \"s\"\n[[tenant]]\nname = \"low\"\nsecret = \"x\"\n[[tenant]]\nname = \"high\"\nsecret = \"y\"\npriority = 5\n";
    Tenants::parse(text).expect("a good file")
}

fn hello(host: &str, process_space: u64) -> HostHello {
    HostHello {
        device: DEVICE,
        pool: 7,
        pod: "rack".into(),
        host: host.into(),
        epoch: 0,
        path: format!("/dev/{host}"),
        start: EXTENT,
        bytes: EXTENTS * EXTENT,
        granule: EXTENT,
        devdax: false,
        sight: Sight {
            boot: 1,
            processes: process_space,
        },
        last: GrantId(0),
        used: false,
    }
}

fn join(table: &mut GrantTable, hello: &HostHello) -> Result<HostWelcome> {
    let welcome = table.join_host(hello)?;
    table.host_is_clear(hello, welcome.epoch);
    Ok(welcome)
}

/// With hosts a and b, of which each sees processes of its own.
fn table() -> GrantTable {
    let mut table = GrantTable::new(7, tenants());
    join(&mut table, &hello("a", 1)).expect("joined");
    join(&mut table, &hello("b", 2)).expect("joined");
    table
}

fn requested(label: &str, extents: u64, host: &str) -> OpenRequest {
    OpenRequest {
        label: label.into(),
        description: String::new(),
        bytes: extents * EXTENT,
        pod: None,
        keep: None,
        machine: 0,
        mirror: false,
        host: Some(host.into()),
        reach: Reach::default(),
    }
}

fn open(table: &mut GrantTable, label: &str, extents: u64, host: &str) -> Result<Opening> {
    table.open("low", &requested(label, extents, host), Nanos(1), LEASE)
}

fn admit(opening: Result<Opening>) -> (GrantId, u64) {
    match opening.expect("granted") {
        Opening::Admit(id, epoch) => (id, epoch),
        other => panic!("{other:?}"),
    }
}

fn confirm(table: &mut GrantTable, id: GrantId) {
    let epoch = table.grant(id).expect("there").epoch;
    table.confirmed(id, epoch, Nanos(2));
}

fn refused<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    let text = result.expect_err("refused").to_string();
    assert!(text.contains(what), "{what}: {text}");
}

#[test]
fn a_grant_moves_when_its_former_host_has_confirmed() {
    let mut table = table();
    let (id, epoch) = admit(open(&mut table, "db", 2, "a"));
    let grant = table.grant(id).expect("there");
    assert_eq!((grant.node, grant.host()), (DEVICE, Some("a")));
    table.release("low", id, epoch, false, Nanos(2)).expect("released");
    assert_eq!(open(&mut table, "db", 2, "b").expect("asked"), Opening::Wait);
    assert_eq!(
        (table.work_of_host(DEVICE, "a"), table.work_of_host(DEVICE, "b")),
        (vec![id], vec![])
    );
    confirm(&mut table, id);
    let (again, next) = admit(open(&mut table, "db", 2, "b"));
    assert!(again == id && next > epoch && table.grant(id).expect("there").host() == Some("b"));
    assert_eq!(table.problems(), Vec::<String>::new());
}

/// Nothing but its agent's word, or the loss of the host, tells that no process there uses the memory.
#[test]
fn what_a_silent_host_holds_is_in_quarantine_until_the_host_is_lost() {
    let mut table = table();
    let (id, epoch) = admit(open(&mut table, "db", 2, "a"));
    refused(table.lose_host("a", None, Nanos(2)), "stop it first");
    table.leave_host(DEVICE, "a");
    table.tick(Nanos(LEASE.raw() * 2));
    assert_eq!(table.grant(id).expect("there").phase, Phase::Fencing);
    refused(open(&mut table, "db", 2, "b"), "quarantine");
    refused(table.lose_host("x", None, Nanos(2)), "no device has a host");
    table.lose_host("a", None, Nanos(3)).expect("lost");
    let (again, next) = admit(open(&mut table, "db", 2, "b"));
    assert!(again == id && next > epoch, "{next}");
    // It comes back, with what it held: it ends all of it, and has another epoch.
    let welcome = table.join_host(&hello("a", 1)).expect("heard");
    assert_eq!((welcome.epoch, welcome.clear), (2, true));
    refused(open(&mut table, "other", 1, "a"), "no device that this host has joined");
    table.host_is_clear(&hello("a", 1), welcome.epoch);
    admit(open(&mut table, "other", 1, "a"));
    refused(table.renew("low", id, epoch, Nanos(4), LEASE), "not held with epoch");
    assert_eq!(table.problems(), Vec::<String>::new());
}

/// An agent whose join is cut off after it has noted the epoch on the device joins again, whatever manager leads.
#[test]
fn an_agent_that_was_cut_off_over_its_join_joins_again() {
    for restarts in [false, true] {
        let mut table = table();
        table.leave_host(DEVICE, "a");
        table.lose_host("a", None, Nanos(2)).expect("lost");
        let first = table.join_host(&hello("a", 1)).expect("heard");
        assert!(first.clear, "it ends all");
        table.leave_host(DEVICE, "a");
        if restarts {
            table = GrantTable::read(&stored(&table), tenants(), Nanos(3), LEASE).expect("read");
        }
        refused(open(&mut table, "db", 2, "a"), "no device that this host has joined");
        let noted = HostHello {
            epoch: first.epoch,
            ..hello("a", 1)
        };
        let again = join(&mut table, &noted).expect("joined");
        assert!(again.clear && again.epoch > first.epoch, "{again:?}");
        admit(open(&mut table, "db", 2, "a"));
    }
}

/// To a manager that has just begun to lead no agent is connected, and no host is lost.
#[test]
fn a_host_is_not_lost_while_its_agent_may_be_on_its_way() {
    let mut table = table();
    let (id, _) = admit(open(&mut table, "db", 2, "a"));
    let begun = Nanos::from_secs(50);
    let mut table = GrantTable::read(&stored(&table), tenants(), begun, LEASE).expect("read");
    let said = table.lose_host("a", None, begun + Nanos::from_secs(12)).expect("heard");
    assert_eq!(said, HostLoss::TooEarly(Nanos::from_secs(8)));
    assert_eq!(table.grant(id).expect("there").host(), Some("a"));
    let said = table.lose_host("a", None, begun + Nanos::from_secs(21)).expect("heard");
    assert_eq!(said, HostLoss::Closed);
    // One that has come and gone has no such time.
    join(&mut table, &hello("b", 2)).expect("joined");
    table.leave_host(DEVICE, "b");
    table.lose_host("b", None, begun).expect("lost");
}

#[test]
fn an_agent_that_starts_again_takes_up() {
    let mut table = table();
    let (id, epoch) = admit(open(&mut table, "db", 2, "a"));
    refused(table.join_host(&hello("a", 1)), "connected already");
    table.leave_host(DEVICE, "a");
    let mut table = GrantTable::read(&stored(&table), tenants(), Nanos(3), LEASE).expect("read");
    let welcome = join(&mut table, &hello("a", 1)).expect("joined");
    assert_eq!((welcome.number, welcome.epoch, welcome.clear), (0, 1, false));
    table
        .renew("low", id, epoch, Nanos(4), LEASE)
        .expect("the holder goes on");
}

/// A name that another machine takes, or another PID namespace, would confirm that processes are over which it does
/// not see.
#[test]
fn a_name_is_one_hosts() {
    let mut table = table();
    refused(join(&mut table, &hello("c", 1)), "host \"a\" of the device already");
    table.leave_host(DEVICE, "a");
    refused(join(&mut table, &hello("a", 3)), "host-lost a");
    table.lose_host("a", Some("rack"), Nanos(2)).expect("lost");
    let welcome = join(&mut table, &hello("a", 3)).expect("it ends all there");
    assert_eq!((welcome.epoch, welcome.clear), (2, true));
    // The former one wakes up, and hears that its epoch is closed.
    table.leave_host(DEVICE, "a");
    let woken = HostHello {
        epoch: 1,
        ..hello("a", 1)
    };
    let closed = table.join_host(&woken);
    assert!(matches!(closed, Err(Error::Revoked(_))), "{closed:?}");
}

#[test]
fn foreign_devices_and_bad_hellos_are_refused() {
    let mut table = table();
    let says = |table: &mut GrantTable, hello: HostHello, what: &str| refused(table.join_host(&hello), what);
    let c = || hello("c", 3);
    says(&mut table, HostHello { pool: 8, ..c() }, "another pool");
    says(
        &mut table,
        HostHello {
            pod: "moon".into(),
            ..c()
        },
        "is of pod rack",
    );
    says(&mut table, HostHello { bytes: EXTENT, ..c() }, "and had");
    says(&mut table, HostHello { granule: 0, ..c() }, "says of its device");
    says(
        &mut table,
        HostHello {
            last: GrantId(u64::MAX),
            ..c()
        },
        "says of its device",
    );
    says(
        &mut table,
        HostHello {
            host: "x".repeat(65),
            ..c()
        },
        "64 bytes at most",
    );
    says(
        &mut table,
        HostHello {
            host: "a/b".into(),
            ..c()
        },
        "slashes",
    );
    says(
        &mut table,
        HostHello {
            device: NodeId(5),
            used: true,
            ..c()
        },
        "does not know",
    );
    table.leave_host(DEVICE, "a");
    says(
        &mut table,
        HostHello {
            epoch: 5,
            ..hello("a", 1)
        },
        "an old copy",
    );
    refused(table.forget(DEVICE), "host-lost a");
    table.leave_host(DEVICE, "b");
    for host in ["a", "b"] {
        table.lose_host(host, None, Nanos(1)).expect("lost");
    }
    table.forget(DEVICE).expect("forgotten");
    assert!(table.device(DEVICE).is_err());
}

/// Which agent frees a range is written down first: one that was stopped in the middle of it goes on when it wakes up.
#[test]
fn a_range_is_freed_by_one_host() {
    let mut table = table();
    let (id, epoch) = admit(open(&mut table, "db", 2, "a"));
    table.release("low", id, epoch, false, Nanos(2)).expect("released");
    confirm(&mut table, id);
    table.free(id).expect("freed");
    assert_eq!(
        (table.work_of_host(DEVICE, "a"), table.work_of_host(DEVICE, "b")),
        (vec![id], vec![id])
    );
    assert!(table.claim_freeing(id, "b") && !table.claim_freeing(id, "a"));
    assert_eq!(
        (table.work_of_host(DEVICE, "a"), table.work_of_host(DEVICE, "b")),
        (vec![], vec![id])
    );
    table.leave_host(DEVICE, "b");
    assert!(!table.claim_freeing(id, "a"));
    refused(open(&mut table, "db", 2, "a"), "quarantine");
    table.lose_host("b", None, Nanos(3)).expect("lost");
    assert!(table.claim_freeing(id, "a"));
    confirm(&mut table, id);
    assert!(table.grant(id).is_err());
}

/// A range is one piece: what is reclaimed for it lies in a row, and no more goes than is needed.
#[test]
fn room_is_made_in_one_piece() {
    let mut table = table();
    let all: Vec<_> = (0..6)
        .map(|n| admit(open(&mut table, &format!("l{n}"), 1, "a")))
        .collect();
    for (id, epoch) in [all[0], all[2], all[4], all[5]] {
        table.release("low", id, epoch, false, Nanos(2)).expect("released");
        confirm(&mut table, id);
    }
    let high = |table: &mut GrantTable| table.open("high", &requested("big", 2, "b"), Nanos(3), LEASE);
    assert_eq!(high(&mut table).expect("soon"), Opening::Wait);
    let going: Vec<_> = table
        .grants()
        .filter(|(_, grant)| grant.phase == Phase::Freeing)
        .map(|(id, _)| id)
        .collect();
    assert_eq!(going, [all[4].0, all[5].0]);
    for id in going {
        assert!(table.claim_freeing(id, "b"));
        confirm(&mut table, id);
    }
    let (id, _) = admit(high(&mut table));
    let offset = table.grant(id).expect("there").range.as_ref().map(|range| range.offset);
    assert_eq!(offset, Some(5 * EXTENT));
    refused(table.open("high", &requested("more", 3, "b"), Nanos(4), LEASE), "2MiB");
    assert_eq!(table.problems(), Vec::<String>::new());
}

#[test]
fn extents_of_a_device_may_be_larger() {
    let mut table = GrantTable::new(7, tenants());
    let large = HostHello {
        start: 8 * EXTENT,
        granule: 4 * EXTENT,
        bytes: 8 * EXTENT,
        ..hello("a", 1)
    };
    join(&mut table, &large).expect("joined");
    let (id, epoch) = admit(open(&mut table, "db", 3, "a"));
    assert_eq!(table.grant(id).expect("there").bytes, 4 * EXTENT);
    assert_eq!(
        open(&mut table, "db", 3, "a").expect("the same"),
        Opening::Ask(id, epoch)
    );
    refused(open(&mut table, "other", 5, "a"), "free");
    assert_eq!(table.problems(), Vec::<String>::new());
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Open(u8, u8, u8),
    Free(u8),
    Release(u8, bool),
    Die(u8),
    Work(u8, bool),
    Tick(u8),
    Leave(u8),
    Join(u8),
    Lose(u8),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..5u8, 1..4u8, 0..3u8).prop_map(|(label, extents, host)| Step::Open(label, extents, host)),
        1 => any::<u8>().prop_map(Step::Free),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(n, back)| Step::Release(n, back)),
        2 => any::<u8>().prop_map(Step::Die),
        6 => (0..3u8, any::<bool>()).prop_map(|(host, answers)| Step::Work(host, answers)),
        2 => any::<u8>().prop_map(Step::Tick),
        2 => (0..3u8).prop_map(Step::Leave),
        3 => (0..3u8).prop_map(Step::Join),
        1 => (0..3u8).prop_map(Step::Lose),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..100)
}

/// What runs beside the grant table: processes that map a range, on their hosts, whether they are holders still or not;
/// and what agents have begun at ranges and may go on with.
#[derive(Default)]
struct World {
    now: u64,
    users: BTreeSet<(usize, GrantId, u64)>,
    under_way: BTreeSet<(usize, GrantId)>,
}

impl World {
    fn pick(&self, table: &GrantTable, n: u8) -> Option<GrantId> {
        let ids: Vec<GrantId> = table.grants().map(|(id, _)| id).collect();
        (!ids.is_empty()).then(|| ids[n as usize % ids.len()])
    }

    fn open(&mut self, table: &mut GrantTable, label: u8, extents: u8, host: usize) {
        let now = Nanos(self.now);
        let tenant = if label.is_multiple_of(2) { "low" } else { "high" };
        let requested = requested(&format!("l{label}"), extents.into(), NAMES[host]);
        let opening = match table.open(tenant, &requested, now, LEASE) {
            // The agent of its host looks whether a process maps it.
            Ok(Opening::Ask(id, epoch)) => {
                let grant = table.grant(id).expect("there").clone();
                if self
                    .users
                    .iter()
                    .any(|(at, of, _)| (Some(NAMES[*at]), *of) == (grant.host(), id))
                {
                    return;
                }
                table.take_over((id, epoch, grant.renewals), Some(NAMES[host]), now, LEASE)
            }
            opening => opening,
        };
        if let Ok(Opening::Admit(id, epoch)) = opening {
            self.users.insert((host, id, epoch));
        }
    }

    /// The agent of a host does what grants wait for, or dies before it has answered.
    fn work(&mut self, table: &mut GrantTable, host: usize, answers: bool) {
        if !table.is_host_there(DEVICE, NAMES[host]) {
            return;
        }
        for id in table.work_of_host(DEVICE, NAMES[host]) {
            let grant = table.grant(id).expect("there").clone();
            if grant.phase == Phase::Freeing && !table.claim_freeing(id, NAMES[host]) {
                continue;
            }
            self.under_way.insert((host, id));
            if answers {
                self.users.retain(|(at, of, _)| (*at, *of) != (host, id));
                self.under_way.remove(&(host, id));
                table.confirmed(id, grant.epoch, Nanos(self.now));
            }
        }
    }

    fn apply(&mut self, table: &mut GrantTable, step: Step) {
        self.now += 1_000_000;
        match step {
            Step::Open(label, extents, host) => self.open(table, label, extents, host.into()),
            Step::Free(n) => {
                if let Some(id) = self.pick(table, n) {
                    table.free(id).expect("freed");
                }
            }
            Step::Release(n, back) => {
                let Some((_, id, epoch)) = self.users.iter().nth(n.into()).copied() else {
                    return;
                };
                let tenant = table.grant(id).expect("in use").tenant.clone();
                table.release(&tenant, id, epoch, back, Nanos(self.now)).ok();
            }
            Step::Die(n) => {
                let found = self.users.iter().nth(n.into()).copied();
                found.into_iter().for_each(|user| _ = self.users.remove(&user));
            }
            Step::Work(host, answers) => self.work(table, host.into(), answers),
            Step::Tick(seconds) => {
                self.now += u64::from(seconds % 16) * 1_000_000_000;
                table.tick(Nanos(self.now));
            }
            Step::Leave(host) => table.leave_host(DEVICE, NAMES[host as usize]),
            Step::Join(host) => {
                let hello = hello(NAMES[host as usize], 1 + u64::from(host));
                let Ok(welcome) = table.join_host(&hello) else { return };
                if welcome.clear {
                    self.users.retain(|(at, ..)| *at != host as usize);
                }
                table.host_is_clear(&hello, welcome.epoch);
            }
            // An operator says so when it is so.
            Step::Lose(host) => {
                if table.lose_host(NAMES[host as usize], None, Nanos(self.now)).is_ok() {
                    self.users.retain(|(at, ..)| *at != host as usize);
                    self.under_way.retain(|(at, _)| *at != host as usize);
                }
            }
            Step::Restart => {
                let stored = stored(table);
                *table = GrantTable::read(&stored, tenants(), Nanos(self.now), LEASE).expect("read");
            }
        }
    }
}

proptest! {
    /// However hosts come and go, and whatever their agents answer or not: a range that a process maps, or an agent
    /// works at, is of that host alone, and no byte of it is granted to another.
    #[test]
    fn a_range_is_one_hosts_at_a_time(steps in steps()) {
        let (mut table, mut world) = (table(), World::default());
        for step in &steps {
            world.apply(&mut table, *step);
            prop_assert_eq!(table.problems(), Vec::<String>::new());
            let users = world.users.iter().map(|(host, id, _)| (host, id));
            for (host, id) in users.chain(world.under_way.iter().map(|(host, id)| (host, id))) {
                let grant = table.grant(*id).expect("memory in use is in the table");
                prop_assert_eq!(grant.host(), Some(NAMES[*host]), "grant {}", id);
            }
            for (_, id, _) in &world.users {
                prop_assert!(table.grant(*id).is_ok_and(|grant| grant.phase != Phase::Idle));
                let holders = world.users.iter().filter(|(_, of, _)| of == id);
                prop_assert_eq!(holders.count(), 1, "grant {}", id);
            }
        }
    }
}
