//! Migrated extents on their way when their home is gone for good: three parts and more, of which the first is the
//! home.

use super::super::super::act::{Act, Outcome};
use super::super::{HostState, Order, Ordered, wire};
use super::*;
use cenote_fabric::rdma::call::{Answer, CallerId};
use std::collections::BTreeSet;

const NAMES: [&str; 5] = ["home", "one", "other", "third", "fourth"];
const FREEZE: u64 = 7;

struct Several {
    nodes: Arc<Nodes>,
    parts: Vec<Arc<Part>>,
    hosts: Vec<Host>,
}

impl Several {
    fn new() -> Self {
        Self::of(3)
    }

    fn of(count: u8) -> Self {
        let mut several = Self {
            nodes: Arc::new(Nodes::default()),
            parts: (1..=count).map(|number| part(number, 4)).collect(),
            hosts: Vec::new(),
        };
        for n in 0..usize::from(count) {
            let host = several.host(n);
            several.hosts.push(host);
        }
        several
    }

    fn host(&self, n: usize) -> Host {
        let keeper = Arc::new(LocalKeeper::new(Arc::clone(&self.parts[n])).expect("a keeper"));
        let options = HostOptions {
            pod: NAMES[n].into(),
            key: KEY,
            every: Nanos::ZERO,
            ..HostOptions::default()
        };
        let host = Host::start(keeper, options).expect("a host");
        let hosts = Hosts::default();
        hosts.add(&host);
        self.nodes.add(NAMES[n]).serve(Arc::new(hosts));
        let others = (0..self.parts.len()).filter(|other| *other != n);
        let peers = others.map(|other| (other as u8 + 1, self.peer(n, other)));
        host.set_peers(peers.collect(), BTreeSet::new());
        host
    }

    fn peer(&self, from: usize, to: usize) -> Peer {
        let hello = Hello {
            space: SPACE,
            part: to as u8 + 1,
            key: KEY,
            pod: NAMES[from].into(),
        };
        let channel = Channel::new(Arc::clone(&self.nodes) as Arc<dyn Callers>, NAMES[to], hello);
        Peer {
            pod: NAMES[to].into(),
            channel: Arc::new(channel),
        }
    }

    /// A word of 42 of the first part that lies in the second: its address.
    fn word(&self) -> GlobalAddress {
        let home = Space::new(SPACE);
        let keeper = Arc::clone(self.hosts[0].keeper()) as Arc<dyn Keeper>;
        home.attach(Arc::clone(&self.parts[0]), keeper).expect("attached");
        let address = home.session().alloc(64).expect("room");
        home.store(address, 42).expect("stored");
        self.hosts[0].relocate(address.extent(), 2).expect("moved");
        address
    }

    fn obey(&self, part: u8, order: Order) -> Ordered {
        self.hosts[usize::from(part) - 1].inner.obey(&order).expect("obeyed")
    }

    /// From the second part to the third, so many steps of the move that begins with freezing it.
    fn begin_move(&self, extent: GlobalAddress, steps: u32) {
        let freeze = FREEZE;
        let Ordered::Frozen { state, .. } = self.obey(2, Order::Freeze { extent, freeze }) else {
            panic!("it is not frozen");
        };
        if steps > 1 {
            let from = 2;
            let receive = Order::Receive {
                extent,
                state,
                from,
                freeze,
            };
            assert!(matches!(self.obey(3, receive), Ordered::Slot(_)));
        }
        if steps > 2 {
            self.obey(3, Order::Settle { extent, freeze });
        }
    }

    /// Its host is away.
    fn hide(&self, part: u8) {
        let no_hosts = Arc::new(Hosts::default());
        self.nodes.add(NAMES[usize::from(part) - 1]).serve(no_hosts);
    }

    fn shown(&self, part: u8) -> Hosts {
        let hosts = Hosts::default();
        hosts.add(&self.hosts[usize::from(part) - 1]);
        hosts
    }

    /// It is back.
    fn show(&self, part: u8) {
        let hosts = Arc::new(self.shown(part));
        self.nodes.add(NAMES[usize::from(part) - 1]).serve(hosts);
    }

    /// It obeys the next order to give something up, and the answer is lost.
    fn lose_an_answer(&self, part: u8) {
        let door = LosesAnswer {
            hosts: self.shown(part),
            host: Arc::clone(&self.hosts[usize::from(part) - 1].inner),
            is_lost: AtomicBool::new(false),
        };
        self.nodes.add(NAMES[usize::from(part) - 1]).serve(Arc::new(door));
    }

    /// The home is away.
    fn stop_home(&self) {
        self.hosts[0].inner.stop.store(true, Ordering::Release);
    }

    /// The home is gone for good, and the others are told.
    fn lose_home(&self) {
        self.stop_home();
        self.hosts[1..]
            .iter()
            .for_each(|host| host.set_gone(BTreeSet::from([1])));
    }

    fn ask(&self, part: u8) {
        self.hosts[usize::from(part) - 1].inner.ask_homes(Nanos::ZERO);
    }

    fn unsettled(&self) -> [usize; 2] {
        [1, 2].map(|n| self.hosts[n].inner.keeper.unsettled(Nanos::ZERO).len())
    }

    /// What a process in a part's pod reads; nothing if the extent is not used there.
    fn read_in(&self, part: u8, address: GlobalAddress) -> Option<u64> {
        let (space, n) = (Space::new(SPACE), usize::from(part) - 1);
        let keeper = Arc::clone(self.hosts[n].keeper()) as Arc<dyn Keeper>;
        space.attach(Arc::clone(&self.parts[n]), keeper).expect("attached");
        let mut word = [0; 8];
        let read = self.parts[n].act_as_host(address, &mut Act::Read(&mut word));
        match read.expect("an outcome") {
            Outcome::Done(..) => Some(u64::from_le_bytes(word)),
            _ => None,
        }
    }

    fn audit(&self) {
        for host in &self.hosts[1..] {
            assert_eq!(host.keeper().audit().expect("an audit"), Vec::<String>::new());
        }
    }
}

/// A migrated extent that was frozen for a move while its home went for good stayed frozen for ever.
#[test]
fn an_extent_without_use_since_is_used_again() {
    for first in [2, 3] {
        let several = Several::new();
        let address = several.word();
        several.begin_move(address.extent(), 2);
        several.stop_home();
        several.ask(2);
        several.ask(3);
        assert_eq!(several.unsettled(), [1, 1], "their home may come back");
        several.lose_home();
        several.ask(first);
        several.ask(5 - first);
        assert_eq!(several.read_in(2, address), Some(42));
        assert_eq!((several.read_in(3, address), several.unsettled()), (None, [0, 0]));
        several.audit();
        // What the home had ordered comes late.
        let (extent, freeze) = (address.extent(), FREEZE);
        several.obey(3, Order::Settle { extent, freeze });
        several.obey(2, Order::LetGo { extent, freeze });
        assert_eq!(several.read_in(2, address), Some(42));
    }
}

#[test]
fn what_another_uses_is_let_go() {
    let several = Several::new();
    let address = several.word();
    several.begin_move(address.extent(), 3);
    several.lose_home();
    several.ask(3);
    several.ask(2);
    assert_eq!(
        (several.read_in(2, address), several.read_in(3, address)),
        (None, Some(42))
    );
    assert_eq!(several.unsettled(), [0, 0]);
    several.audit();
}

/// It may have been used elsewhere since: an old state of it does not come back.
#[test]
fn what_may_have_been_used_elsewhere_is_lost() {
    let several = Several::new();
    let address = several.word();
    several.begin_move(address.extent(), 1);
    several.lose_home();
    several.ask(2);
    assert_eq!((several.read_in(2, address), several.unsettled()), (None, [0, 0]));
    several.audit();
}

/// What has come and was never used, when the one that it came from has nothing of it any more.
#[test]
fn an_extent_without_a_source_is_lost() {
    let several = Several::new();
    let address = several.word();
    several.begin_move(address.extent(), 2);
    let (extent, freeze) = (address.extent(), FREEZE);
    several.obey(2, Order::LetGo { extent, freeze });
    several.lose_home();
    several.ask(3);
    assert_eq!((several.read_in(3, address), several.unsettled()), (None, [0, 0]));
    several.audit();
}

#[test]
fn a_part_that_is_offline_is_waited_for() {
    let several = Several::new();
    let address = several.word();
    several.begin_move(address.extent(), 2);
    several.lose_home();
    several.hide(3);
    several.ask(2);
    assert_eq!(several.unsettled(), [1, 1], "the other one may have used it");
    several.show(3);
    // For a moment after a try that failed no other is made.
    let began = rt::now();
    while several.unsettled() != [0, 0] && rt::now().since(began) < Nanos::from_secs(30) {
        several.ask(2);
        rt::sleep(Nanos::from_millis(20));
    }
    assert_eq!((several.read_in(2, address), several.unsettled()), (Some(42), [0, 0]));
}

/// One gave it up, and another could not be asked: the next time the one had nothing of it, and so it was given up
/// where it was frozen too.
#[test]
fn no_host_gives_up_before_all_have_answered() {
    let several = Several::of(5);
    let address = several.word();
    several.begin_move(address.extent(), 2);
    several.lose_home();
    several.hide(4);
    several.ask(2);
    several.ask(3);
    assert_eq!(several.unsettled(), [1, 1], "nothing is given up");
    // The other one of the hosts that are not concerned is offline then.
    several.show(4);
    several.hide(5);
    several.ask(2);
    several.ask(3);
    assert_eq!(several.unsettled(), [1, 1], "nothing is given up");
    several.show(5);
    several.ask(2);
    assert_eq!((several.read_in(2, address), several.unsettled()), (Some(42), [0, 0]));
    several.audit();
}

/// A part that the way to is not known of was not asked at all.
#[test]
fn a_part_that_is_not_known_yet_is_waited_for() {
    let several = Several::new();
    let address = several.word();
    several.begin_move(address.extent(), 3);
    several.lose_home();
    let host = &several.hosts[1];
    let home = || (1, several.peer(1, 0));
    host.set_peers(BTreeMap::from([home()]), BTreeSet::from([3]));
    several.ask(2);
    assert_eq!(several.unsettled(), [1, 0], "it may be used there, or not");
    host.set_peers(BTreeMap::from([home(), (3, several.peer(1, 2))]), BTreeSet::new());
    several.ask(2);
    assert_eq!(
        (several.read_in(2, address), several.read_in(3, address)),
        (None, Some(42))
    );
}

/// Loses the answer to the first order to give something up: the host that asked is told that the node is lost.
struct LosesAnswer {
    hosts: Hosts,
    host: Arc<HostState>,
    is_lost: AtomicBool,
}

impl Serve for LosesAnswer {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        let order = wire::split(request).and_then(|(_, rest)| wire::from_json::<Order>(rest));
        match order {
            Ok(order @ Order::GiveUp { .. }) if !self.is_lost.swap(true, Ordering::AcqRel) => {
                self.host.obey(&order).expect("obeyed");
                answer.fail(Error::Lost("the answer is lost".into()));
            }
            _ => self.hosts.serve(caller, request, answer),
        }
    }
}

/// It had been given up, and the next time there was nothing of it: so it was given up where it was frozen too.
#[test]
fn a_lost_answer_of_the_host_that_gave_it_up_changes_nothing() {
    let several = Several::of(4);
    let address = several.word();
    several.begin_move(address.extent(), 2);
    several.lose_home();
    several.lose_an_answer(3);
    several.ask(2);
    assert_eq!(several.unsettled(), [1, 0], "it was given up");
    several.ask(2);
    assert_eq!((several.read_in(2, address), several.unsettled()), (Some(42), [0, 0]));
    assert!(several.hosts[1].inner.steps.lock().not_used.is_empty());
    several.audit();
}

/// A host that may have used it before it was gone too has the only copy that counts.
#[test]
fn a_host_gone_before_it_answered_may_have_used_it() {
    let several = Several::of(4);
    let address = several.word();
    several.begin_move(address.extent(), 2);
    several.lose_home();
    several.lose_an_answer(3);
    several.ask(2);
    several.hosts[1].set_gone(BTreeSet::from([1, 3]));
    several.ask(2);
    assert_eq!((several.read_in(2, address), several.unsettled()), (None, [0, 0]));
    several.audit();
}

/// A host that began anew does not know in which epoch it came: it is waited for until it has let go.
#[test]
fn a_host_that_forgot_the_move_is_waited_for() {
    let several = Several::new();
    let address = several.word();
    several.begin_move(address.extent(), 2);
    several.lose_home();
    several.hosts[2].inner.steps.lock().received.clear();
    several.ask(2);
    assert_eq!(several.unsettled(), [1, 1], "it says that it has something");
    several.ask(3);
    several.ask(2);
    assert_eq!(several.unsettled(), [0, 0]);
    several.audit();
}
