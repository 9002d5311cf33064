//! Guests on their way when their home is gone for good: three parts, of which the first is the home.

use super::super::super::act::{Act, Outcome};
use super::super::{Order, Ordered};
use super::*;
use std::collections::BTreeSet;

const NAMES: [&str; 3] = ["home", "one", "other"];
const FREEZE: u64 = 7;

struct Three {
    nodes: Arc<Nodes>,
    parts: Vec<Arc<Part>>,
    hosts: Vec<Host>,
}

impl Three {
    fn new() -> Self {
        let mut three = Self {
            nodes: Arc::new(Nodes::default()),
            parts: (1..=3).map(|number| part(number, 4)).collect(),
            hosts: Vec::new(),
        };
        for n in 0..3 {
            let host = three.host(n);
            three.hosts.push(host);
        }
        three
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
        let others = (0..3).filter(|other| *other != n);
        host.set_peers(others.map(|other| (other as u8 + 1, self.peer(n, other))).collect());
        host
    }

    fn peer(&self, from: usize, to: usize) -> Peer {
        let hello = Hello {
            space: SPACE,
            part: to as u8 + 1,
            key: KEY,
            pod: NAMES[from].into(),
        };
        let way = Way::new(Arc::clone(&self.nodes) as Arc<dyn Callers>, NAMES[to], hello);
        Peer {
            pod: NAMES[to].into(),
            way: Arc::new(way),
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

/// A guest that was frozen for a move while its home went for good stayed frozen for ever.
#[test]
fn what_nobody_has_used_since_is_used_again() {
    for first in [2, 3] {
        let three = Three::new();
        let address = three.word();
        three.begin_move(address.extent(), 2);
        three.stop_home();
        three.ask(2);
        three.ask(3);
        assert_eq!(three.unsettled(), [1, 1], "their home may come back");
        three.lose_home();
        three.ask(first);
        three.ask(5 - first);
        assert_eq!(three.read_in(2, address), Some(42));
        assert_eq!((three.read_in(3, address), three.unsettled()), (None, [0, 0]));
        three.audit();
        // What the home had ordered comes late.
        let (extent, freeze) = (address.extent(), FREEZE);
        three.obey(3, Order::Settle { extent, freeze });
        three.obey(2, Order::LetGo { extent, freeze });
        assert_eq!(three.read_in(2, address), Some(42));
    }
}

#[test]
fn what_another_uses_is_let_go() {
    let three = Three::new();
    let address = three.word();
    three.begin_move(address.extent(), 3);
    three.lose_home();
    three.ask(3);
    three.ask(2);
    assert_eq!((three.read_in(2, address), three.read_in(3, address)), (None, Some(42)));
    assert_eq!(three.unsettled(), [0, 0]);
    three.audit();
}

/// It may have been used elsewhere since: an old state of it does not come back.
#[test]
fn what_may_have_been_used_elsewhere_is_lost() {
    let three = Three::new();
    let address = three.word();
    three.begin_move(address.extent(), 1);
    three.lose_home();
    three.ask(2);
    assert_eq!((three.read_in(2, address), three.unsettled()), (None, [0, 0]));
    three.audit();
}

/// What has come and was never used, when the one that it came from has nothing of it any more.
#[test]
fn what_has_come_from_nobody_is_lost() {
    let three = Three::new();
    let address = three.word();
    three.begin_move(address.extent(), 2);
    let (extent, freeze) = (address.extent(), FREEZE);
    three.obey(2, Order::LetGo { extent, freeze });
    three.lose_home();
    three.ask(3);
    assert_eq!((three.read_in(3, address), three.unsettled()), (None, [0, 0]));
    three.audit();
}

#[test]
fn who_is_away_is_waited_for() {
    let three = Three::new();
    let address = three.word();
    three.begin_move(address.extent(), 2);
    three.lose_home();
    three.nodes.add(NAMES[2]).serve(Arc::new(Hosts::default()));
    three.ask(2);
    assert_eq!(three.unsettled(), [1, 1], "the other one may have used it");
    let hosts = Hosts::default();
    hosts.add(&three.hosts[2]);
    three.nodes.add(NAMES[2]).serve(Arc::new(hosts));
    three.ask(2);
    assert_eq!((three.read_in(2, address), three.unsettled()), (Some(42), [0, 0]));
}
