//! Orders that come late, homes that are away, answers that are none.

use super::super::{Hosts, Order, Ordered};
use super::*;
use cenote_base::rt::Mutex;
use cenote_fabric::rdma::call::{Answer, CallerId};

impl Pods {
    fn obey(&self, part: u8, order: Order) -> Result<Ordered> {
        self.hosts[usize::from(part) - 1].inner.obey(&order)
    }

    /// An extent of the first pod with a word of 42 in it: the word's address.
    fn word(&self) -> GlobalAddress {
        let address = self.users[0].session().alloc(64).expect("room");
        self.users[0].store(address, 42).expect("stored");
        address
    }

    fn expect_word(&self, address: GlobalAddress) {
        for user in &self.users {
            assert_eq!(user.load(address).expect("a word"), 42);
        }
        self.audit();
    }

    /// How many migrated extents have no news of their move.
    fn unsettled(&self) -> usize {
        let of = |host: &Host| host.inner.keeper.unsettled(Nanos::ZERO).len();
        self.hosts.iter().map(of).sum()
    }
}

/// An order that was not answered in time was carried out later, in the middle of the next move or after it: `LetGo`
/// gave a migrated extent's memory away that was in use by then, `Receive` wrote over it, `Thaw` let an extent be used
/// where it did not lie any more.
#[test]
fn orders_of_a_former_move_do_nothing() {
    let pods = Pods::still(4);
    let address = pods.word();
    let extent = address.extent();
    let late = |part: u8, state: u64| {
        let (freeze, from) = (1, 3 - part);
        let _ = pods.obey(part, Order::Settle { extent, freeze });
        let _ = pods.obey(part, Order::Thaw { extent, freeze });
        let _ = pods.obey(part, Order::LetGo { extent, freeze });
        let receive = Order::Receive {
            extent,
            state,
            from,
            freeze,
        };
        assert!(pods.obey(part, receive).is_err(), "it lies there, or not for that");
    };
    steps(&pods, extent, (1, 2), 1, 2);
    let state = pods.parts[1]
        .saved(pods.parts[1].migrated_slot(extent).expect("it comes"))
        .load(Ordering::Acquire);
    pods.obey(2, Order::LetGo { extent, freeze: 1 }).expect("undone");
    pods.obey(1, Order::Thaw { extent, freeze: 1 }).expect("undone");
    pods.expect_word(address);
    // Of the next move, there and back, each step in turn.
    for (from, to, freeze) in [(1, 2, 2), (2, 1, 3)] {
        for cut in 1..=5 {
            one_step(&pods, extent, (from, to), freeze, cut);
            late(1, state);
            late(2, state);
            let again = pods.obey(from, Order::Freeze { extent, freeze: 9 });
            assert!(again.is_err(), "it is frozen, or away");
        }
        pods.expect_word(address);
    }
    assert_eq!(pods.unsettled(), 0);
}

/// One step of a move the former ones of which are done.
fn one_step(pods: &Pods, extent: GlobalAddress, (from, to): (u8, u8), freeze: u64, step: u32) {
    let home = &pods.hosts[usize::from(extent.part()) - 1].inner;
    let of_frozen = |part: &Arc<Part>| match part.migrated_slot(extent) {
        Some(slot) => part.saved(slot).load(Ordering::Acquire),
        None => part.saved(extent.slot()).load(Ordering::Acquire),
    };
    let order = match step {
        1 => Order::Freeze { extent, freeze },
        2 => Order::Receive {
            extent,
            state: of_frozen(&pods.parts[usize::from(from) - 1]),
            from,
            freeze,
        },
        3 => {
            let slot = pods.parts[usize::from(to) - 1]
                .migrated_slot(extent)
                .expect("it has come");
            return home.keeper.commit(extent, to, slot).expect("committed");
        }
        4 => Order::Settle { extent, freeze },
        _ => Order::LetGo { extent, freeze },
    };
    let at = if matches!(step, 1 | 5) { from } else { to };
    pods.obey(at, order).expect("obeyed");
}

/// Hosts that start anew and cannot ask took the error for an answer, and gave up what lay with them.
#[test]
fn a_host_without_news_keeps_its_migrated_extents() {
    for cut in 0..6 {
        let mut pods = Pods::still(4);
        let address = pods.word();
        // To the other pod and half of the way back.
        pods.relocate(address.extent(), 2).expect("moved");
        cut_off(&pods, address.extent(), 2, 1, cut);
        // The new hosts do not know where the others are.
        pods.restart_hosts();
        let of_west = |pods: &Pods| pods.hosts[1].keeper().unsettled(Nanos::ZERO).len();
        let unsettled = of_west(&pods);
        assert_eq!(unsettled > 0, (1..5).contains(&cut), "it is frozen there");
        pods.ask_homes();
        // The others do not have their parts open yet.
        pods.introduce();
        let at = |n: usize| pods.nodes.add(PODS[n]);
        at(0).serve(Arc::new(Hosts::default()));
        pods.hosts[1].inner.ask_homes(Nanos::ZERO);
        assert_eq!(of_west(&pods), unsettled, "cut {cut}");
        // All is as it should be.
        pods.restart();
        pods.expect_word(address);
        assert_eq!(pods.unsettled(), 0);
    }
}

/// A host lets a migrated extent go when its home has ended it, and not before the home says so.
#[test]
fn a_migrated_extent_that_its_home_has_ended_is_let_go() {
    let mut pods = Pods::still(4);
    let address = pods.word();
    let extent = address.extent();
    pods.relocate(extent, 2).expect("moved");
    pods.users[0].free(address).expect("freed");
    pods.obey(2, Order::Freeze { extent, freeze: 1 }).expect("frozen");
    pods.hosts[0].keeper().end_extent(extent).expect("ended");
    assert_eq!(pods.obey(1, Order::Where { extent }).expect("an answer"), Ordered::Gone);
    let never = GlobalAddress::new(1, extent.slot(), 0, extent.generation() + 1).expect("an address");
    assert!(pods.obey(1, Order::Where { extent: never }).is_err());
    assert!(pods.obey(2, Order::Where { extent }).is_err(), "it is not its home");
    pods.restart();
    assert_eq!(pods.users[1].stats().parts[0].migrated_extents, 0);
    pods.audit();
}

/// A migrated extent that is in use is not let go, whatever the order says.
#[test]
fn a_migrated_extent_in_use_stays() {
    let pods = Pods::still(4);
    let address = pods.word();
    pods.relocate(address.extent(), 2).expect("moved");
    assert!(pods.hosts[1].keeper().let_go(address.extent()).is_err());
    let state = pods.parts[1].saved(0).load(Ordering::Acquire);
    assert!(pods.hosts[1].keeper().receive(address.extent(), state).is_err());
    pods.expect_word(address);
}

/// An extent that lies in its own part as a migrated extent, since its slot was lent meanwhile, was never reclaimed.
#[test]
fn what_lies_at_home_in_another_slot_ends_too() {
    let pods = Pods::still(4);
    let (one, other) = (pods.word(), pods.users[1].session().alloc(64).expect("room"));
    assert_eq!((one.part(), other.part()), (1, 2));
    for (extent, to) in [(one, 2), (other, 1), (one, 1)] {
        pods.relocate(extent.extent(), to).expect("moved");
    }
    assert_eq!(pods.parts[0].migrated_slot(other.extent()), Some(one.slot()));
    pods.expect_word(one);
    pods.users[1].free(one).expect("freed");
    pods.hosts[0].inner.requested(one.extent(), None).expect("it ends");
    assert!(pods.users[0].load(one).is_err());
    let stats = &pods.users[0].stats().parts[0];
    assert_eq!((stats.away, stats.migrated_extents), (0, 1));
    pods.audit();
}

/// Keeps one order in four back, and lets it through later.
struct Tardy {
    hosts: Hosts,
    dice: Mutex<Random>,
    kept: Mutex<Vec<(CallerId, Vec<u8>, Answer)>>,
    is_on: AtomicBool,
}

impl Serve for Tardy {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        let is_order = request.first() == Some(&super::super::wire::ORDER);
        let is_late = is_order && self.is_on.load(Ordering::Acquire) && self.dice.lock().index(4) == 0;
        match is_late {
            true => self.kept.lock().push((caller, request.to_vec(), answer)),
            false => self.hosts.serve(caller, request, answer),
        }
    }

    fn ended(&self, caller: CallerId) {
        self.hosts.ended(caller);
    }
}

impl Tardy {
    fn release(&self, n: usize) {
        let (caller, request, answer) = self.kept.lock().remove(n);
        self.hosts.serve(caller, &request, answer);
    }
}

type Doors = Arc<Mutex<Vec<Arc<Tardy>>>>;

fn tardy_pods(seed: u64) -> (Pods, Doors) {
    let every = Nanos::ZERO;
    let timeout = Nanos::from_millis(20);
    let options = HostOptions {
        every,
        timeout,
        ..HostOptions::default()
    };
    let (mut pods, doors) = (Pods::new(6, options), Doors::default());
    let made = Arc::clone(&doors);
    pods.door = Box::new(move |n, hosts| {
        let tardy = Arc::new(Tardy {
            hosts,
            dice: Mutex::new(Random(seed.wrapping_add(n as u64))),
            kept: Mutex::default(),
            is_on: AtomicBool::new(true),
        });
        made.lock().push(Arc::clone(&tardy));
        tardy
    });
    pods.restart();
    (pods, doors)
}

/// Lets through what was kept back, one at a time, and at last all that is left.
fn deliver(doors: &Doors, done: &AtomicBool, mut dice: Random) {
    while !done.load(Ordering::Acquire) {
        rt::sleep(Nanos::from_micros(300));
        let door = Arc::clone(&doors.lock()[dice.index(2)]);
        let kept = door.kept.lock().len();
        if kept > 1 {
            door.release(dice.index(kept));
        }
    }
    for door in doors.lock().iter() {
        door.is_on.store(false, Ordering::Release);
        while !door.kept.lock().is_empty() {
            door.release(0);
        }
    }
}

/// Words that are added to from both pods while extents move, orders come late, and migrated extents ask their homes.
#[test]
fn nothing_is_lost_by_orders_that_come_late() {
    let seed = seed();
    let (pods, doors) = tardy_pods(seed);
    let sessions = [pods.users[0].session(), pods.users[1].session()];
    let words: Vec<_> = (0..4)
        .map(|n| sessions[n % 2].alloc(64 << (2 * n)).expect("room"))
        .collect();
    let done = Arc::new(AtomicBool::new(false));
    let worker = |n: usize| {
        let (space, words, done) = (pods.users[n].clone(), words.clone(), Arc::clone(&done));
        rt::spawn("worker", move || {
            let mut added = 0u64;
            while !done.load(Ordering::Acquire) {
                space.fetch_add(words[added as usize % 4], 1).expect("added");
                added += 1;
            }
            added
        })
    };
    let workers = [worker(0), worker(1)];
    let postman = {
        let (doors, done) = (Arc::clone(&doors), Arc::clone(&done));
        rt::spawn("postman", move || deliver(&doors, &done, Random(seed)))
    };
    let mut dice = Random(seed);
    let mut moved = 0;
    for _ in 0..250 {
        let extent = words[dice.index(4)].extent();
        moved += u32::from(pods.relocate(extent, 1 + dice.index(2) as u8).is_ok());
    }
    done.store(true, Ordering::Release);
    let added: u64 = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
    super::eventually(|| {
        pods.ask_homes();
        pods.unsettled() == 0
    });
    postman.join().expect("no panic");
    let load = |address: &GlobalAddress| pods.users[0].load(*address).expect("a word");
    assert_eq!(words.iter().map(load).sum::<u64>(), added, "{moved} moves");
    assert!(moved > 0);
    pods.audit();
}
