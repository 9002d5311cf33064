use super::slot::{Record, read, write};
use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").expect("a directory"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("device")
    }

    fn made(&self) -> PoolDevice {
        PoolDevice::make(&self.path(), 16 * MIB, 7).expect("made");
        PoolDevice::open(&self.path()).expect("in order")
    }

    fn poke(&self, at: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(self.path())
            .expect("there");
        file.write_all_at(bytes, at).expect("written");
    }
}

fn place(device: &PoolDevice, grant: u64, epoch: u64, extent: u64, extents: u64) -> GrantPlace {
    let range = FileRange {
        offset: device.extents().offset + extent * device.granule(),
        bytes: extents * device.granule(),
    };
    GrantPlace {
        grant: GrantId(grant),
        epoch,
        range,
    }
}

fn free(device: &PoolDevice, place: GrantPlace) -> Result<()> {
    device.free(place, || device.erase(place.range))
}

fn refused(result: Result<impl std::fmt::Debug>, what: &str) {
    let text = result.expect_err("refused").to_string();
    assert!(text.contains(what), "{what}: {text}");
}

#[test]
fn ranges_are_granted_found_again_and_freed() {
    let dir = Dir::new();
    let device = dir.made();
    assert_eq!((device.pool(), device.granule()), (7, 2 * MIB));
    let one = place(&device, 1, 1, 0, 2);
    device.admit(one, true).expect("granted");
    device.map_for_test(one.range).span(0, 8).copy_in(0, b"content!");
    let again = PoolDevice::open(&dir.path()).expect("in order");
    assert_eq!(again.id(), device.id());
    assert_eq!(again.ranges().expect("read"), [RangeRecord::granted(one)]);
    // The next holder finds what the last one left.
    again.admit(GrantPlace { epoch: 2, ..one }, false).expect("granted");
    assert_eq!(device.map_for_test(one.range).span(0, 8).to_vec(), b"content!");
    free(&again, GrantPlace { epoch: 3, ..one }).expect("freed");
    free(&again, GrantPlace { epoch: 3, ..one }).expect("as before");
    assert_eq!(device.map_for_test(one.range).span(0, 8).to_vec(), [0; 8]);
    let freed = again.ranges().expect("read");
    assert!(freed.iter().all(|range| !range.is_granted()), "{freed:?}");
    let other = place(&device, 2, 1, 0, 3);
    device.admit(other, true).expect("free again");
}

/// What the directory says otherwise than the order is no one's to change.
#[test]
fn orders_that_contradict_the_directory_are_refused() {
    let dir = Dir::new();
    let device = dir.made();
    let one = place(&device, 1, 5, 1, 2);
    device.admit(one, true).expect("granted");
    refused(device.admit(GrantPlace { epoch: 4, ..one }, false), "epoch 5");
    refused(device.admit(place(&device, 2, 1, 0, 2), true), "grant 1");
    refused(device.admit(place(&device, 2, 1, 2, 2), true), "grant 1");
    refused(device.admit(place(&device, 1, 5, 1, 1), false), "grant 1");
    refused(device.admit(place(&device, 3, 2, 4, 1), false), "does not know grant 3");
    refused(device.admit(place(&device, 4, 1, 5, 9), true), "no extents");
    device.map_for_test(one.range).span(0, 1).set_u8(0, 9);
    refused(free(&device, place(&device, 2, 1, 1, 2)), "grant 1");
    assert_eq!(
        device.map_for_test(one.range).span(0, 1).u8(0),
        9,
        "another's bytes stay"
    );
}

#[test]
fn foreign_and_damaged_devices_are_refused_by_name() {
    let dir = Dir::new();
    dir.made();
    refused(PoolDevice::format(&dir.path(), 8), "nothing is formatted over it");
    refused(PoolDevice::make(&dir.path(), 16 * MIB, 8), "is there already");
    let (range_at, host_at) = (
        Layout::of(16 * MIB, 4096).expect("fits").range_slot(0),
        Layout::host_slot(3),
    );
    for (at, bytes, what) in [
        (range_at, [9; 128].as_slice(), "range of extent 0"),
        (host_at, [9; 256].as_slice(), "host 3"),
        (40, [9].as_slice(), "checksum"),
        (8, [9].as_slice(), "format 9"),
        (0, [9].as_slice(), "no directory of a pool"),
    ] {
        let dir = Dir::new();
        dir.made();
        dir.poke(at, bytes);
        let error = PoolDevice::open(&dir.path()).map(|_| ());
        refused(error, what);
    }
    let short = Dir::new();
    short.made();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(short.path())
        .expect("there");
    file.set_len(8 * MIB).expect("cut");
    refused(PoolDevice::open(&short.path()).map(|_| ()), "the device has 8MiB");
    refused(PoolDevice::make(&Dir::new().path(), MIB, 7), "no room for a directory");
}

/// A file was removed, and another put in its place: the agent looked which processes map the new one, and called
/// those over that map the old one.
#[test]
fn another_file_in_its_place_is_noticed() {
    let dir = Dir::new();
    let device = dir.made();
    device.check_there().expect("it is there");
    std::fs::remove_file(dir.path()).expect("removed");
    refused(device.check_there(), "No such file");
    dir.made();
    refused(device.check_there(), "another file");
}

#[test]
fn hosts_keep_their_slots() {
    let dir = Dir::new();
    let device = dir.made();
    let host = |name: &str, epoch, term| HostRecord {
        name: name.into(),
        epoch,
        term,
    };
    device.note_host(0, &host("a", 1, 1)).expect("noted");
    device.note_host(63, &host("b", 4, 2)).expect("noted");
    device.note_host(0, &host("a", 2, 3)).expect("noted");
    refused(device.note_host(0, &host("c", 1, 1)), "another host's");
    refused(device.note_host(64, &host("c", 1, 1)), "no slot 64");
    let again = PoolDevice::open(&dir.path()).expect("in order");
    assert_eq!(again.hosts().expect("read"), [host("a", 2, 3), host("b", 4, 2)]);
    assert_eq!(again.host("b").expect("read"), Some(host("b", 4, 2)));
}

proptest! {
    /// However much of a change has arrived when its agent is killed: the slot says what it said before, or after.
    #[test]
    fn a_change_that_is_cut_off_is_not_half_there(cut in 0usize..64, epochs in 1u64..6) {
        let dir = Dir::new();
        let device = dir.made();
        let mut was = place(&device, 1, 1, 0, 1);
        device.admit(was, true).expect("granted");
        for epoch in 2..=epochs {
            was = GrantPlace { epoch, ..was };
            device.admit(was, false).expect("granted");
        }
        let at = device.layout.range_slot(0);
        let both = |device: &PoolDevice| device.directory.span(at, RangeRecord::SLOT).to_vec();
        let before = both(&device);
        let next = GrantPlace { epoch: epochs + 1, ..was };
        write(&device.directory, at, &RangeRecord::granted(next)).expect("written");
        let after = both(&device);
        // The copy that was written has arrived up to `cut`.
        let copy = if before[..64] == after[..64] { 64 } else { 0 };
        let mut torn = before;
        torn[copy..copy + cut].copy_from_slice(&after[copy..copy + cut]);
        device.directory.span(at, RangeRecord::SLOT).copy_in(0, &torn);
        let found = read::<RangeRecord>(&device.directory, at).expect("no damage").expect("a record");
        prop_assert!(found.place == was || found.place == next, "{found:?}");
        device.admit(next, false).expect("ordered again");
        prop_assert_eq!(device.ranges().expect("read"), [RangeRecord::granted(next)]);
    }

    /// Whatever lies there: an error or a directory, and no panic.
    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 64)) {
        prop_assert!(layout::Header::decode(&bytes, "it").is_err());
        let _ = RangeRecord::decode(&bytes[8..60]);
        let _ = HostRecord::decode(&[bytes.clone(), bytes].concat()[8..124]);
    }

    #[test]
    fn layouts_fit(length in 4 * MIB..1 << 42, align in 0u32..12) {
        let align = (4096u64 << align).min(1 << 30);
        if let Ok(layout) = Layout::of(length, align) {
            prop_assert!(layout.end() <= length && layout.start.is_multiple_of(align.max(2 * MIB)));
            prop_assert!(layout.range_slot(layout.extents) <= layout.start);
            let lost = length - layout.extents * layout.granule;
            prop_assert!(lost <= 3 * layout.granule + length / 8192, "{lost}");
        }
    }
}
