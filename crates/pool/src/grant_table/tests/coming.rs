//! Memory nodes that are on their way to a manager that has just begun to lead.

use super::hearing::called;
use super::*;

fn back(id: u64) -> NodeHello {
    NodeHello {
        pool: Some(7),
        machine: 0,
        ..called(id, 32)
    }
}

/// A released grant with a whole mirror that its holder maps, as a manager knows it that has begun to lead since; the
/// grant's node is back.
fn restarted() -> (GrantTable, GrantId) {
    let mut before = GrantTable::new(7, tenants());
    for id in 1..=2 {
        let new = NodeHello { pool: None, ..back(id) };
        before.join(&new).expect("joined");
    }
    let (id, epoch, mirror) = open_whole(&mut before, "db");
    before.release("b", id, epoch, false, Nanos(1)).expect("its holder");
    confirm(&mut before, id);
    let node = |id| before.grant(id).expect("there").node;
    let nodes = [node(id), node(mirror)];
    let mut grant_table = read(&book(&before)).expect("read");
    grant_table.join(&back(nodes[0].0)).expect("joined");
    (grant_table, mirror)
}

/// Its holder took the whole mirror for one on another machine, and it was freed or void.
#[test]
fn a_whole_mirror_is_given_out_when_it_is_known_where_it_is() {
    let (mut grant_table, mirror) = restarted();
    let again = |grant_table: &mut GrantTable, at| grant_table.open("b", &mirrored("db", 2), at, LEASE);
    assert_eq!(again(&mut grant_table, Nanos(6)).expect("known"), Opening::Wait);
    let (mut without, _) = restarted();
    admit(without.open("b", &requested("db", 2), Nanos(6), LEASE));

    let node = grant_table.grant(mirror).expect("there").node;
    grant_table.join(&back(node.0)).expect("joined");
    let (id, _) = admit(again(&mut grant_table, Nanos(7)));
    assert!(grant_table.mirror_view(id).is_some_and(|view| view.whole));
}

/// For good no database would start whose mirror's node is away.
#[test]
fn a_node_that_does_not_come_is_not_awaited_for_long() {
    let (mut grant_table, mirror) = restarted();
    let late = Nanos(5) + NODES_COME_WITHIN;
    let (id, epoch) = admit(grant_table.open("b", &mirrored("db", 2), late, LEASE));
    let granted = grant_table.granted_to("b");
    let lent = grant_table.lend_mirror("b", id, epoch, mirror);
    assert!(matches!(lent, Err(Error::Lost(_))), "{lent:?}");
    assert_eq!(grant_table.granted_to("b"), granted, "no journal counts");
}
