//! What sharing costs, step by step: the states of `state/sharing.rs` and `state/fills.rs`, each arrow with its price.
//!
//! The failure: on coherent memory a read left the writer its line, a write to a line that others had was free, and a
//! word that sixteen cores changed cost each of them nothing; so whatever shares memory looked as good as what does
//! not.

use super::*;
use crate::clock::fast;
use cenote_base::rt::Nanos;

/// Latency of a load, and of asking another host, over the switch; a core's transfer and load, and its fill buffers, of
/// the host's own memory.
const LOAD: u64 = 549;
const SNOOP: u64 = LOAD;
const TRANSFER: u64 = 51;
const L3: u64 = 21;
const BUFFERS: u64 = 16;
/// What rounding may add: costs are kept in parts of a nanosecond.
const ROUNDED: u64 = 1;
/// What lines that come together wait for each other on the port, at 1.2 ns each.
const TOGETHER: u64 = 2 * BUFFERS;

/// Hosts of 4 vCPUs, and their views of one coherent device.
fn coherent(hosts: usize) -> (Memory, Vec<Arc<OwnedView>>) {
    let mut topology = Topology::hosts(hosts, 4);
    let device = DeviceSpec::new("pool", 4 * MIB, "cxl-switch").expect("a profile");
    topology.devices.push(DeviceSpec {
        coherent: true,
        ..device
    });
    let mut memory = Memory::new(&topology, 7, no_machine_check);
    let views: Vec<_> = (0..hosts).map(|h| opened(&mut memory, h)).collect();
    views[0].resize(4 * MIB).expect("it is as long");
    (memory, views)
}

/// The running thread is on this vCPU from now on.
fn on_core(core: u32) {
    fast(|f| f.owner.set(owner(core)));
}

/// Another thread of the host, which has missed nothing yet: nothing was prefetched for it.
fn as_thread(slot: usize) {
    fast(|f| f.slot.set(slot));
}

#[track_caller]
fn costs(expected: u64, f: impl FnOnce()) {
    costs_up_to(expected, ROUNDED, f);
}

#[track_caller]
fn costs_up_to(expected: u64, more: u64, f: impl FnOnce()) {
    let begun = crate::clock::now();
    f();
    let took = crate::clock::now().since(begun).0;
    assert!(
        (expected..=expected + more).contains(&took),
        "{took} ns, not {expected}"
    );
}

#[test]
fn a_read_of_what_another_host_has_changed_waits_until_it_is_written_back() {
    let (memory, views) = coherent(2);
    costs(LOAD, || store(&views[0], 0, 1));
    costs(0, || store(&views[0], 0, 2));
    assert_eq!(memory.traffic()[0].moved.written, 0);
    costs(LOAD + SNOOP, || assert_eq!(load(&views[1], 0), 2));
    assert_eq!(memory.traffic()[0].moved.written, 1, "by force, over the writer's way");
    // Both share it: reading on is free, and the one that had changed it has to ask before it may again.
    costs(0, || _ = (load(&views[0], 0), load(&views[1], 0)));
    costs(LOAD + SNOOP, || store(&views[0], 0, 3));
    costs(LOAD + SNOOP, || assert_eq!(load(&views[1], 0), 3));
    assert_eq!(memory.hazards().total(), 0);
}

#[test]
fn a_write_takes_the_line_from_all_others() {
    let (memory, views) = coherent(3);
    for view in &views {
        costs(LOAD, || _ = load(view, 64));
    }
    costs(LOAD + SNOOP, || store(&views[1], 64, 1));
    costs(0, || store(&views[1], 64, 2));
    costs(LOAD + SNOOP, || _ = load(&views[0], 64));
    // A write that misses asks for the line and for leave at once; of two that share it both lose it.
    costs(LOAD + SNOOP, || store(&views[2], 64, 3));
    costs(0, || store(&views[2], 64, 4));
    let fetched = |host: usize| memory.traffic()[host].moved.fetched;
    let before = fetched(0) + fetched(1);
    assert_eq!((load(&views[0], 64), load(&views[1], 64)), (4, 4));
    assert_eq!(fetched(0) + fetched(1), before + 2);
}

#[test]
fn what_one_host_has_to_itself_costs_what_it_did() {
    let (_memory, views) = coherent(2);
    costs(LOAD, || _ = load(&views[0], 0));
    costs(0, || store(&views[0], 0, 1));
    flush(&views[0], 0);
    costs(0, || store(&views[0], 0, 2));
    // What was written back is not changed any more: no host has to be asked.
    flush(&views[0], 0);
    costs(LOAD, || assert_eq!(load(&views[1], 0), 2));
}

#[test]
fn the_window_of_an_incoherent_device_is_shared_at_the_same_price() {
    let (_memory, views) = pod(2, 4096);
    store(&views[0], 0, 1);
    costs(LOAD + SNOOP, || assert_eq!(load(&views[1], 0), 1));
    // A word stored past the caches is in none of them.
    views[1].store_uncached(0, 2);
    costs(LOAD, || assert_eq!(load(&views[0], 0), 2));
}

#[test]
fn cores_of_a_host_take_lines_from_each_other() {
    let (_memory, views) = coherent(1);
    let view = &views[0];
    costs(LOAD, || store(view, 0, 1));
    on_core(1);
    costs(TRANSFER, || _ = load(view, 0));
    costs(0, || _ = load(view, 0));
    // Two have it; a third gets it from the cache that all share, and so does the last: after that all have it.
    on_core(2);
    costs(L3, || _ = load(view, 0));
    on_core(3);
    costs(L3, || _ = load(view, 0));
    on_core(0);
    costs(0, || _ = load(view, 0));
    // Writing takes it from them all, and each of them has to get it again.
    costs(TRANSFER, || store(view, 0, 2));
    costs(0, || store(view, 0, 3));
    on_core(3);
    costs(TRANSFER, || store(view, 0, 4));
    on_core(0);
    costs(TRANSFER, || _ = load(view, 0));
    // What a core has only read, another reads for nothing: it is a hit in the host's cache.
    costs(LOAD, || _ = load(view, 4096));
    on_core(1);
    costs(0, || _ = load(view, 4096));
    on_core(0);
    costs(TRANSFER, || store(view, 4096, 1));
}

#[test]
fn a_line_that_all_cores_change_is_at_one_place_at_a_time() {
    let (_memory, views) = coherent(1);
    store(&views[0], 0, 1);
    let begun = crate::clock::now();
    for core in 1..=8 {
        fast(|f| f.now.set(begun.0));
        on_core(core);
        costs(u64::from(core) * TRANSFER, || store(&views[0], 0, 2));
    }
    // Other lines wait for none of that.
    fast(|f| f.now.set(begun.0));
    costs(LOAD, || store(&views[0], 4096, 1));
    // And the queue empties as time goes on.
    fast(|f| f.now.set(begun.0 + 1_000_000));
    on_core(1);
    costs(TRANSFER, || store(&views[0], 0, 2));
}

#[test]
fn lines_that_are_asked_for_ahead_come_together() {
    let (_memory, views) = coherent(1);
    let at = |n: u64| n * 4096;
    costs_up_to(LOAD, TOGETHER, || {
        (0..BUFFERS).for_each(|n| views[0].prefetch(at(n)));
        (0..BUFFERS).for_each(|n| _ = load(&views[0], at(n)));
    });
    // What is not prefetched comes one after the other.
    as_thread(1);
    costs_up_to(4 * LOAD, 4, || (100..104).for_each(|n| _ = load(&views[0], at(n))));
    // A core has so many fill buffers: the next line waits for the first one's.
    costs_up_to(2 * LOAD, TOGETHER, || {
        (200..=200 + BUFFERS).for_each(|n| views[0].prefetch(at(n)));
        (200..=200 + BUFFERS).for_each(|n| _ = load(&views[0], at(n)));
    });
    // Work meanwhile is not waiting; what has come is a hit.
    costs(LOAD, || {
        views[0].prefetch(at(300));
        crate::clock::charge(Nanos(LOAD - 100));
        _ = load(&views[0], at(300));
        _ = load(&views[0], at(300));
    });
}

#[test]
fn what_is_seen_through_a_cache_is_not_brought_by_a_hint() {
    let (_memory, views) = pod(1, 0);
    costs(0, || views[0].prefetch(0));
    assert_eq!(peek(&views[0], 0), POISONED);
}
