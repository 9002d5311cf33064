//! What does not lie on devices, and is refused by name.

use super::*;
use crate::key::Key;
use crate::wire::SpaceRequest;

/// A mirror was asked for of a grant on a device: it was opened, and nothing ever mirrored it.
#[test]
fn ranges_of_devices_have_no_mirrors() {
    let mut table = table();
    let (id, epoch) = admit(open(&mut table, "db", 2, "a"));
    table.release("low", id, epoch, false, Nanos(2)).expect("released");
    confirm(&mut table, id);
    let mut mirrored = |label: &str| {
        let requested = OpenRequest {
            mirror: true,
            ..requested(label, 2, "a")
        };
        table.open("low", &requested, Nanos(3), LEASE)
    };
    refused(mirrored("db"), "ranges of devices have no mirrors");
    refused(mirrored("other"), "lies on memory nodes alone");
    admit(open(&mut table, "db", 2, "a"));
}

#[test]
fn parts_of_spaces_do_not_lie_on_devices() {
    let space = SpaceRequest {
        mirrored: false,
        name: "s".into(),
        bytes: 2 * EXTENT,
        pods: Some(vec!["rack".into()]),
    };
    let made = table().create_space("low", &space, (SpaceId(1), Key::of(1)), Nanos(1));
    refused(made, "parts of spaces lie on memory nodes alone");
}
