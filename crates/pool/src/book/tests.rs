use super::*;
use crate::settings::DEFAULT_TENANT;
use proptest::prelude::*;

const LEASE: Nanos = Nanos::from_secs(10);

fn wish(label: &str, extents: u64) -> OpenRequest {
    OpenRequest {
        label: label.into(),
        description: String::new(),
        bytes: extents * EXTENT,
        pod: None,
        keep: None,
        machine: 0,
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
    }
}

fn tenants() -> Tenants {
    let text = "secret = \"s\"\n[[tenant]]\nname = \"a\"\nsecret = \"x\"\nquota = \"12MiB\"\n\
                [[tenant]]\nname = \"b\"\nsecret = \"y\"\npriority = 5\n";
    Tenants::parse(text).expect("a good file")
}

fn book() -> Book {
    let mut book = Book::new(7, tenants());
    book.join(&hello(1, "left", 8)).expect("joined");
    book.join(&hello(2, "right", 4)).expect("joined");
    book
}

fn admit(opening: Result<Opening>) -> (GrantId, u64) {
    match opening.expect("granted") {
        Opening::Admit(id, epoch) => (id, epoch),
        other => panic!("{other:?}"),
    }
}

fn open(book: &mut Book, tenant: &str, label: &str, extents: u64, now: u64) -> Result<Opening> {
    book.open(tenant, &wish(label, extents), Nanos(now), LEASE)
}

#[test]
fn the_same_label_is_the_same_memory_with_another_epoch() {
    let mut book = book();
    let (id, first) = admit(open(&mut book, "a", "db", 2, 0));
    assert_eq!(
        open(&mut book, "a", "db", 2, 1).expect("asked"),
        Opening::Ask(id, first)
    );
    book.release("a", id, first, false, Nanos(2)).expect("released");
    assert_eq!(open(&mut book, "a", "db", 2, 3).expect("asked"), Opening::Wait);
    let epoch = book.grant(id).expect("there").epoch;
    book.confirmed(id, epoch, Nanos(4));
    let (again, second) = admit(open(&mut book, "a", "db", 2, 5));
    assert!(again == id && second > first, "{second}");
    let stale = book.renew("a", id, first, Nanos(6), LEASE);
    assert!(matches!(stale, Err(Error::Revoked(_))), "{stale:?}");
    assert!(matches!(
        book.renew("b", id, second, Nanos(6), LEASE),
        Err(Error::Revoked(_))
    ));
    book.renew("a", id, second, Nanos(6), LEASE).expect("the holder");
}

/// Memory counts until its node has confirmed that nobody has it.
#[test]
fn what_is_being_freed_is_in_quarantine() {
    let mut book = book();
    let (id, epoch) = admit(open(&mut book, "b", "all", 8, 0));
    book.release("b", id, epoch, true, Nanos(1)).expect("released");
    assert!(matches!(open(&mut book, "b", "next", 8, 2), Ok(Opening::Wait)));
    assert_eq!(book.work_of(NodeId(1)), [id]);
    book.confirmed(id, epoch, Nanos(3));
    assert!(book.grant(id).is_ok(), "a confirmation of an older epoch says nothing");
    let epoch = book.grant(id).expect("there").epoch;
    book.confirmed(id, epoch, Nanos(3));
    let (next, _) = admit(open(&mut book, "b", "next", 8, 4));
    assert_ne!(next, id);
}

#[test]
fn a_lapsed_lease_is_fenced_and_what_is_kept_too_long_goes() {
    let mut book = book();
    let kept = OpenRequest {
        keep: Some(1),
        ..wish("db", 1)
    };
    let (id, _) = admit(book.open("a", &kept, Nanos(0), LEASE));
    assert!(!book.is_due(LEASE));
    book.tick(Nanos(LEASE.raw() + 1));
    assert_eq!(book.grant(id).expect("there").phase, Phase::Fencing);
    let now = Nanos::from_secs(20);
    book.confirmed(id, book.grant(id).expect("there").epoch, now);
    assert_eq!(book.grant(id).expect("there").phase, Phase::Idle);
    assert!(!book.is_due(Nanos::from_secs(21)));
    book.tick(Nanos::from_secs(22));
    assert_eq!(book.grant(id).expect("there").phase, Phase::Freeing);
}

#[test]
fn limits_are_kept_and_said() {
    let mut book = book();
    let says = |error: Result<Opening>, what: &str| {
        let text = error.expect_err("refused").to_string();
        assert!(text.contains(what), "{text}");
    };
    admit(open(&mut book, "a", "one", 4, 0));
    says(open(&mut book, "a", "two", 3, 0), "quota of 12MiB");
    says(open(&mut book, "a", "one", 5, 0), "has 8MiB and 10MiB");
    says(open(&mut book, "b", "big", 9, 0), "no memory node");
    says(open(&mut book, "c", "x", 1, 0), "no tenant");
    says(open(&mut book, "b", "", 1, 0), "label");
    says(open(&mut book, "b", "x", 0, 0), "0 bytes");
    says(open(&mut book, "b", "x", u64::MAX / EXTENT, 0), "free");
    let elsewhere = OpenRequest {
        pod: Some("moon".into()),
        ..wish("x", 1)
    };
    says(book.open("b", &elsewhere, Nanos(0), LEASE), "pod moon");
    // A holder on another machine than its memory node's could not be fenced.
    let far = |label: &str, extents: u64| OpenRequest {
        machine: 9,
        ..wish(label, extents)
    };
    says(book.open("b", &far("y", 1), Nanos(0), LEASE), "on this machine");
    says(book.open("a", &far("one", 4), Nanos(0), LEASE), "another machine");
    book.leave(NodeId(1));
    says(open(&mut book, "a", "one", 4, 1), "is not there");
    book.forget(NodeId(1)).expect("forgotten");
    assert_eq!(book.grants().count(), 0);
}

/// What nobody holds goes where a tenant with more priority needs it, and what is held never does.
#[test]
fn priority_reclaims_what_is_idle() {
    let mut book = book();
    let (idle, epoch) = admit(open(&mut book, "a", "idle", 4, 0));
    book.release("a", idle, epoch, false, Nanos(1)).expect("released");
    book.confirmed(idle, epoch + 1, Nanos(1));
    admit(open(&mut book, "b", "held", 4, 2));
    admit(open(&mut book, "b", "right", 4, 2));
    let more = open(&mut book, "b", "more", 3, 3);
    assert!(matches!(more, Ok(Opening::Wait)), "{more:?}");
    assert_eq!(book.grant(idle).expect("there").phase, Phase::Freeing);
    let (phase, epoch) = book.grant(idle).map(|g| (g.phase, g.epoch)).expect("there");
    assert_eq!(phase, Phase::Freeing);
    book.confirmed(idle, epoch, Nanos(4));
    admit(open(&mut book, "b", "more", 3, 5));
    let low = open(&mut book, "a", "low", 2, 6);
    assert!(matches!(low, Err(Error::Full(_))), "{low:?}");
}

#[test]
fn memory_nodes_of_other_pools_and_twins_are_refused() {
    let mut book = book();
    assert!(matches!(book.join(&hello(1, "left", 8)), Err(Error::Busy(_))));
    let foreign = NodeHello {
        pool: Some(8),
        ..hello(3, "left", 8)
    };
    assert!(matches!(book.join(&foreign), Err(Error::Mismatch(_))));
    admit(open(&mut book, "b", "x", 6, 0));
    book.leave(NodeId(1));
    let smaller = NodeHello {
        pool: Some(7),
        ..hello(1, "left", 5)
    };
    assert!(matches!(book.join(&smaller), Err(Error::Full(_))));
    book.forget(NodeId(1)).expect("not connected");
    let forgotten = NodeHello {
        pool: Some(7),
        ..hello(1, "left", 8)
    };
    assert!(matches!(book.join(&forgotten), Err(Error::Mismatch(_))));
}

#[test]
fn the_file_is_checked() {
    let mut book = book();
    admit(open(&mut book, "a", "db", 2, 0));
    let bytes = book.to_bytes();
    let read = |bytes: &[u8]| Book::from_bytes(bytes, tenants(), Nanos(5), LEASE);
    let mut same = read(&bytes).expect("read");
    for id in [1, 2] {
        assert!(!same.node(NodeId(id)).expect("there").connected);
        same.nodes.get_mut(&NodeId(id)).expect("there").connected = true;
    }
    assert_eq!(same.to_bytes(), bytes);
    assert_eq!(same.grant(GrantId(1)).expect("there").time, Nanos(5 + LEASE.raw()));
    for at in (0..bytes.len() - 1).step_by(7) {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        assert!(read(&bad).is_err(), "byte {at}");
        assert!(read(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Open(bool, u8, u8),
    Release(u8, bool),
    Renew(u8),
    Confirm(u8),
    Free(u8),
    Tick(u8),
    Leave(bool),
    Join(bool),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<bool>(), 0..5u8, 0..6u8).prop_map(|(a, l, n)| Step::Open(a, l, n)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(g, b)| Step::Release(g, b)),
        1 => any::<u8>().prop_map(Step::Renew),
        4 => any::<u8>().prop_map(Step::Confirm),
        1 => any::<u8>().prop_map(Step::Free),
        2 => any::<u8>().prop_map(Step::Tick),
        1 => any::<bool>().prop_map(Step::Leave),
        2 => any::<bool>().prop_map(Step::Join),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..80)
}

/// What runs beside the book: who was told that he holds which grant with which epoch, and may be using it.
#[derive(Default)]
struct World {
    now: u64,
    holders: BTreeMap<GrantId, (String, u64)>,
}

impl World {
    fn pick(&self, book: &Book, n: u8) -> Option<GrantId> {
        let ids: Vec<GrantId> = book.grants().map(|(id, _)| id).collect();
        (!ids.is_empty()).then(|| ids[n as usize % ids.len()])
    }

    fn apply(&mut self, book: &mut Book, step: &Step) {
        self.now += 1_000_000;
        let now = Nanos(self.now);
        match *step {
            Step::Open(which, label, extents) => {
                let tenant = if which { "a" } else { "b" };
                if let Ok(Opening::Admit(id, epoch)) =
                    open(book, tenant, &format!("l{label}"), extents.into(), self.now)
                {
                    let before = self.holders.insert(id, (tenant.into(), epoch));
                    assert!(before.is_none(), "grant {id} has two holders");
                }
            }
            Step::Release(n, back) => {
                let Some(id) = self.pick(book, n) else { return };
                if let Some((tenant, epoch)) = self.holders.get(&id).cloned()
                    && book.release(&tenant, id, epoch, back, now).is_ok()
                {
                    self.holders.remove(&id);
                }
            }
            Step::Renew(n) => {
                let Some(id) = self.pick(book, n) else { return };
                let Some((tenant, epoch)) = self.holders.get(&id).cloned() else {
                    return;
                };
                let held = book.grant(id).is_ok_and(|g| g.phase == Phase::Held);
                assert_eq!(book.renew(&tenant, id, epoch, now, LEASE).is_ok(), held);
            }
            Step::Confirm(n) => {
                let Some(id) = self.pick(book, n) else { return };
                let grant = book.grant(id).expect("picked").clone();
                if matches!(grant.phase, Phase::Fencing | Phase::Freeing) {
                    // The node has ended the holder.
                    self.holders.remove(&id);
                    book.confirmed(id, grant.epoch, now);
                }
            }
            Step::Free(n) => {
                if let Some(id) = self.pick(book, n) {
                    book.free(id).expect("there");
                }
            }
            Step::Tick(seconds) => {
                self.now += u64::from(seconds % 16) * 1_000_000_000;
                book.tick(Nanos(self.now));
                assert!(!book.is_due(Nanos(self.now)));
            }
            Step::Leave(which) => book.leave(NodeId(1 + u64::from(which))),
            Step::Join(which) => {
                let (id, pod, extents) = if which { (2, "right", 4) } else { (1, "left", 8) };
                let hello = NodeHello {
                    pool: Some(7),
                    ..hello(id, pod, extents)
                };
                book.join(&hello).ok();
            }
            Step::Restart => {
                *book = Book::from_bytes(&book.to_bytes(), tenants(), now, LEASE).expect("what was written is read");
            }
        }
    }
}

proptest! {
    /// However requests, lapses, confirmations and restarts come: no byte is granted twice, no grant has two holders, quotas and nodes are
    /// not exceeded, and what somebody may be using is not free.
    #[test]
    fn nothing_is_granted_twice(steps in steps()) {
        let (mut book, mut world) = (book(), World::default());
        for step in &steps {
            world.apply(&mut book, step);
            prop_assert_eq!(book.problems(), Vec::<String>::new());
            prop_assert!(book.granted_to("a") <= 12 << 20);
            for (id, (tenant, epoch)) in &world.holders {
                let grant = book.grant(*id).expect("memory in use is in the book");
                prop_assert!(grant.tenant == *tenant && grant.epoch >= *epoch && grant.phase != Phase::Idle);
            }
        }
    }
}

#[test]
fn without_a_file_there_is_one_tenant() {
    let mut book = Book::new(1, Tenants::default());
    book.join(&hello(1, "pod", 2)).expect("joined");
    admit(open(&mut book, DEFAULT_TENANT, "x", 2, 0));
}
