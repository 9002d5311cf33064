//! Which nodes hear of the parts of a space, and have to.

use super::*;

/// A memory node on a machine of its own, in a pod of its own, that is called over the fabric.
pub(super) fn called(id: u64, extents: u64) -> NodeHello {
    NodeHello {
        calls: Some(format!("fabric-{id}")),
        machine: id,
        ..hello(id, &format!("pod-{id}"), extents)
    }
}

fn three() -> GrantTable {
    let mut grant_table = GrantTable::new(7, tenants());
    (1..=3).for_each(|id| grant_table.join(&called(id, 32)).expect("joined"));
    grant_table
}

fn on(name: &str, extents: u64, nodes: &[u64]) -> SpaceRequest {
    SpaceRequest {
        pods: Some(nodes.iter().map(|id| format!("pod-{id}")).collect()),
        ..space(name, extents)
    }
}

/// A space with a part on node 1 and one on node 2.
fn on_two(grant_table: &mut GrantTable, mirrored: bool) -> Vec<GrantId> {
    let requested = SpaceRequest {
        mirrored,
        ..on("heap", 4, &[1, 2])
    };
    let new = (SpaceId(1), Key::of(1));
    let parts = begun(grant_table.create_space("b", &requested, new, Nanos(0)));
    parts.iter().for_each(|id| confirm(grant_table, *id));
    parts
}

/// The numbers of the parts of its only space that a node is told of as kept, lost, and coming.
fn told(grant_table: &GrantTable, node: u64) -> [Vec<u8>; 3] {
    let spaces = grant_table.spaces_at(NodeId(node));
    let (parts, lost, coming) = spaces.into_values().next().expect("its space");
    [parts.iter().map(|part| part.number).collect(), lost, coming]
}

/// Others took the part for none: they ended sessions of members that the node that took it up had never heard of.
#[test]
fn a_mirror_that_takes_a_parts_place_is_coming() {
    let mut grant_table = three();
    let parts = on_two(&mut grant_table, true);
    let mirror = grant_table.seek_mirror("b", parts[0], 1, Nanos(1)).expect("room");
    assert_eq!(grant_table.grant(mirror).expect("there").node, NodeId(3));
    grant_table
        .mirror_is_whole("b", parts[0], 1, mirror)
        .expect("its keeper");
    grant_table.leave(NodeId(1));
    grant_table.forget(NodeId(1)).expect("forgotten");
    assert_eq!(grant_table.grant(mirror).expect("there").phase, Phase::Fencing);
    for node in [2, 3] {
        assert_eq!(told(&grant_table, node), [vec![2], vec![], vec![1]], "node {node}");
    }
    let (_, nodes) = grant_table.nodes_with(mirror).expect("a part");
    assert_eq!(nodes, [NodeId(2), NodeId(3)].into());
    confirm(&mut grant_table, mirror);
    assert_eq!(told(&grant_table, 2), [vec![1, 2], vec![], vec![]]);
    assert_eq!(grant_table.problems(), Vec::<String>::new());
}

/// A manager that has just begun took a node that had not come back yet for one without calls: the space grew, and that
/// node ended sessions of members that the new part's node had never heard of.
#[test]
fn a_node_that_a_new_manager_has_not_heard_has_to_hear() {
    let mut before = three();
    let parts = on_two(&mut before, false);
    let mut grant_table = read(&book(&before)).expect("read");
    let back = |id| NodeHello {
        pool: Some(7),
        ..called(id, 32)
    };
    for id in [1, 3] {
        grant_table.join(&back(id)).expect("joined");
    }
    let (_, nodes) = grant_table.nodes_with(parts[0]).expect("a part");
    assert_eq!(nodes, [NodeId(1), NodeId(2)].into());
    let refused = grant_table.grow_space("b", &on("heap", 2, &[3]), Nanos(6));
    assert!(
        matches!(&refused, Err(Error::Busy(text)) if text.contains(&NodeId(2).to_string())),
        "{refused:?}"
    );
    grant_table.join(&back(2)).expect("joined");
    begun(grant_table.grow_space("b", &on("heap", 2, &[3]), Nanos(6)));
}

/// No client ever had the part that is taken back, and its node, which is away, fences no member there.
#[test]
fn a_part_that_is_taken_back_keeps_no_space_from_growing() {
    let mut grant_table = three();
    on_two(&mut grant_table, false);
    let grown = begun(grant_table.grow_space("b", &on("heap", 2, &[3]), Nanos(2)));
    grant_table.leave(NodeId(3));
    let away = grant_table.grow_space("b", &on("heap", 2, &[1]), Nanos(3));
    assert!(matches!(away, Err(Error::Busy(_))), "{away:?}");
    grant_table.not_kept(grown[0]);
    begun(grant_table.grow_space("b", &on("heap", 2, &[1]), Nanos(3)));
}
