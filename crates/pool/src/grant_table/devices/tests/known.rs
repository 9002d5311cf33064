//! Whether a device's directory has a range.

use super::*;

/// A holder was followed before the agent of its host had noted the range: the next one was told that what the grant
/// had was lost, and so was every one after it (world `hosts`, seed 1).
#[test]
fn a_range_is_new_until_an_agent_has_noted_it() {
    let mut table = table();
    let (id, epoch) = admit(open(&mut table, "db", 2, "a"));
    let known = |table: &GrantTable| table.grant(id).expect("there").range.as_ref().map(|range| range.known);
    let (again, next) = admit(table.take_over((id, epoch, 0), Some("b"), Nanos(2), LEASE));
    assert!(again == id && next > epoch);
    assert_eq!(known(&table), Some(false));
    table.range_is_known(id);
    let read = GrantTable::read(&stored(&table), tenants(), Nanos(3), LEASE).expect("read");
    assert_eq!(known(&read), Some(true));
}
