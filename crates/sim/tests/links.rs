//! Links: published figures at rest, queues and curves under load, counters, impossible ones.

use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile::named;
use cenote_sim::link::{Link, Links, Medium, WINDOW};
use cenote_sim::topology::LinkSpec;
use cenote_sim::{DeviceSpec, Exit, HostSpec, Pace, Topology, World};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Two hosts, a device each kind of profile given.
fn pod(profiles: &[&str]) -> Topology {
    let device = |p: &&str| DeviceSpec::new(&format!("dev-{p}"), 1 << 20, p).expect("known");
    let mut topology = Topology::hosts(2, 4);
    topology.devices = profiles.iter().map(device).collect();
    topology
}

/// Time for a test's own, after all that was before.
fn later() -> Nanos {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Nanos::from_secs(NEXT.fetch_add(1, Relaxed))
}

/// The mean of many accesses that do not meet.
fn alone(mut access: impl FnMut(Nanos) -> Nanos) -> f64 {
    let begin = later();
    let times: u64 = (0..1000).map(|i| access(begin + Nanos::from_micros(100 * i)).0).sum();
    times as f64 / 1000.0
}

#[test]
fn table_1_comes_out_at_rest() {
    let profiles = ["cxl-direct", "cxl-direct-remote", "cxl-switch", "cxl-switch-remote"];
    let links = Links::new(&pod(&profiles));
    let miss = |medium: &Arc<Medium>| alone(|now| medium.fetch(now, 1, false));
    assert_eq!(miss(links.local(0)), 146.0);
    for (device, latency) in [265.2, 345.9, 549.0, 651.0].into_iter().enumerate() {
        let seen = miss(links.device(1, device));
        assert!((seen - latency).abs() < 0.01, "{}: {seen}", profiles[device]);
    }
}

#[test]
fn table_2_comes_out_at_rest() {
    let links = Links::new(&pod(&["cxl-switch"]));
    let cxl = links.device(0, 0);
    let table = [
        (64, 750.0, 780.0),
        (512, 850.0, 840.0),
        (1024, 1070.0, 880.0),
        (4096, 1860.0, 1020.0),
        (16384, 2460.0, 1680.0),
    ];
    for (bytes, read, write) in table {
        assert_eq!(alone(|now| cxl.read(now, bytes)), read, "reading {bytes}");
        assert_eq!(alone(|now| cxl.write(now, bytes)), write, "writing {bytes}");
    }
    // Touched line by line it is what the table says, but for what starting a copy takes.
    let lines = alone(|now| cxl.fetch(now, 256, false));
    assert!((lines - (2460.0 - 750.0 + 549.0)).abs() < 1.0, "{lines}");
    let stream = alone(|now| cxl.fetch(now, 64, true));
    assert!(stream < 250.0, "lines that were prefetched: {stream}");
}

#[test]
fn a_link_sends_one_after_another() {
    let link = Link::new("pipe", 1e9);
    let at = Nanos(1000);
    assert_eq!(link.transfer(at, 100), Nanos(100));
    assert_eq!(link.transfer(at, 100), Nanos(200));
    assert_eq!(
        link.transfer(Nanos(1100), 100),
        Nanos(200),
        "100 ns later, 100 ns less queued"
    );
    assert_eq!(link.transfer(Nanos(9000), 1), Nanos(1));
    let counters = link.counters();
    assert_eq!((counters.transfers, counters.bytes), (4, 301));
    assert_eq!((counters.waited, counters.busy), (Nanos(200), Nanos(301)));
}

#[test]
fn a_clock_that_lags_waits_for_no_future() {
    let link = Link::new("pipe", 1e9);
    link.transfer(Nanos(100_000), 10);
    assert_eq!(
        link.transfer(Nanos(99_000), 10),
        Nanos(20),
        "the backlog, and not the difference of clocks"
    );
}

/// Clients that ask again when answered; answers a second in the end, and the mean time of one.
fn saturate(clients: usize, mut ask: impl FnMut(Nanos) -> Nanos) -> (f64, f64) {
    const SPAN: u64 = 1_000_000;
    let begin = later();
    let mut due: BinaryHeap<_> = (0..clients as u64).map(|c| Reverse(c * 7 % 1000)).collect();
    let (mut asked, mut took) = (0u64, 0u64);
    while let Some(Reverse(now)) = due.pop().filter(|d| d.0 <= SPAN) {
        let answer = ask(begin + Nanos(now)).0;
        if now + answer <= SPAN {
            (asked, took) = (asked + 1, took + answer);
        }
        due.push(Reverse(now + answer));
    }
    (asked as f64 / SPAN as f64 * 1e9, took as f64 / asked as f64)
}

#[test]
fn a_network_card_saturates_at_its_bandwidth() {
    let rdma = named("rdma").expect("known");
    let links: Vec<_> = [0, 1].map(|_| Arc::new(Link::new("nic", 12e9))).into();
    let medium = Medium::new(&rdma, links.clone(), links.clone());
    let (alone, latency) = saturate(1, |now| medium.read(now, 16384));
    assert!(
        (alone * 16384.0 / 1e9 - 2.3).abs() < 0.05 && latency == 7130.0,
        "{alone} {latency}"
    );
    for clients in [16, 48, 144] {
        let (pages, latency) = saturate(clients, |now| medium.read(now, 16384));
        let gigabytes = pages * 16384.0 / 1e9;
        assert!(
            (11.5..=12.01).contains(&gigabytes),
            "{clients} clients: {gigabytes} GB/s"
        );
        let queued = clients as f64 * 16384.0 / 12.0;
        assert!(
            (latency / queued - 1.0).abs() < 0.1,
            "{clients} clients: {latency} ns, not {queued}"
        );
    }
}

#[test]
fn latency_rises_with_the_curve_and_comes_back() {
    let links = Links::new(&pod(&["cxl-direct"]));
    let (cxl, mut seen) = (links.device(0, 0), Vec::new());
    for clients in [1, 50, 100, 150, 400] {
        let (lines, latency) = saturate(clients, |now| cxl.fetch(now, 1, false));
        seen.push((lines * 64.0 / 1e9, latency));
    }
    assert!(seen.is_sorted_by(|a, b| a.1 <= b.1), "{seen:?}");
    assert!(seen[0].1 < 266.0 && seen[4].1 > 1.4 * 265.0, "{seen:?}");
    assert!(seen[4].0 > 40.0 && seen[4].0 <= 56.01, "{seen:?}");
    let later = later();
    cxl.fetch(later, 1, false);
    assert!(cxl.links().iter().all(|l| l.factor() == 1.0 && l.utilisation() < 0.01));
    assert!((cxl.fetch(later + WINDOW, 1, false).0 as f64) < 267.0);
}

#[test]
fn hosts_share_the_device_and_not_the_port() {
    let mut topology = Topology::hosts(8, 4);
    topology = topology.with_device(DeviceSpec::new("mem", 1 << 20, "cxl-switch").expect("known"));
    let links = Links::new(&topology);
    // 100 clients on each of so many hosts.
    let total = |hosts: usize| {
        let mut turn = 0;
        let (lines, _) = saturate(hosts * 256, |now| {
            turn += 1;
            links.device(turn % hosts, 0).fetch(now, 4, false)
        });
        lines * 256.0 / 1e9
    };
    let (one, eight) = (total(1), total(8));
    assert!((45.0..=56.01).contains(&one), "one host's port: {one}");
    assert!((180.0..=245.1).contains(&eight), "the device: {eight}");
    let ports = links.named("host3 port").count();
    assert_eq!(ports, 2, "in and out");
    let report = links.report(Nanos::from_secs(1));
    assert!(
        report.contains("device mem in") && report.contains("switch of cxl-switch in"),
        "{report}"
    );
}

#[test]
fn reads_and_writes_have_a_direction_each() {
    let links = Links::new(&pod(&["cxl-direct"]));
    let (cxl, now) = (links.device(0, 0), Nanos::from_secs(1));
    cxl.fetch(now, 1000, false);
    assert_eq!(cxl.write_back(now, 1, false).0, 265, "nothing goes the same way");
    let bus = links.local(0);
    bus.fetch(now, 10_000, false);
    assert!(
        bus.write_back(now, 1, false).0 > 1000,
        "a memory bus goes one way at a time"
    );
}

#[test]
fn links_that_a_topology_names_take_the_place() {
    let mut topology = pod(&["cxl-switch"]);
    topology.links = vec![LinkSpec {
        name: "cable".into(),
        bandwidth: 1e9,
        joins: vec![(0, 0)],
        ..LinkSpec::default()
    }];
    topology.validate().expect("possible");
    let links = Links::new(&topology);
    assert_eq!(links.device(0, 0).links().len(), 1);
    assert_eq!(links.device(1, 0).links().len(), 3);
    links.named("cable").for_each(|l| l.set_cut(true));
    assert!(links.device(0, 0).is_cut() && !links.device(1, 0).is_cut());
}

#[test]
fn impossible_links_are_refused() {
    type Spoil = fn(&mut LinkSpec);
    let spoils: [(Spoil, &str); 4] = [
        (
            |l| l.bandwidth = 0.0,
            "link \"cable\": bandwidth: 0; it may be 1e6 to 1e14",
        ),
        (|l| l.bandwidth = f64::NAN, "bandwidth: NaN"),
        (
            |l| l.loaded = vec![(0.5, 0.5)],
            "loaded: (0.5, 0.5); utilisation may be 0 to 1",
        ),
        (
            |l| l.joins = vec![(0, 3)],
            "joins: host 0 and device 3; there are 2 hosts and 1 devices",
        ),
    ];
    for (spoil, says) in spoils {
        let mut topology = pod(&["cxl-switch"]);
        let mut link = LinkSpec {
            name: "cable".into(),
            bandwidth: 1e9,
            joins: vec![(0, 0)],
            ..LinkSpec::default()
        };
        spoil(&mut link);
        topology.links = vec![link];
        let error = topology.validate().expect_err(says).to_string();
        assert!(error.contains(says), "{error:?}, not {says:?}");
    }
    let mut host = HostSpec::new("a", 1);
    host.vcpus = 0;
    let topology = Topology {
        hosts: vec![host],
        ..Topology::default()
    };
    assert!(topology.validate().is_err());
}

/// A process that looks for the device, and says whether it is there.
fn finds(w: &World, host: usize) -> bool {
    let found = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&found);
    let path = w.topology().devices[0].path();
    let process = w.process(host, "looks", move || {
        theirs.store(rt::memory(&path).is_some(), Relaxed)
    });
    assert_eq!(process.join(), Exit::Returned);
    found.load(Relaxed)
}

#[test]
fn a_host_that_is_cut_off_loses_its_processes_and_finds_the_device_when_mended() {
    for seed in 0..5 {
        let world = World::new(seed, Pace::Explore, pod(&["cxl-switch"])).expect("possible");
        world.run(|w| {
            let sleep = || rt::sleep(Nanos::from_secs(100));
            let (mine, theirs) = (w.process(0, "mine", sleep), w.process(1, "theirs", sleep));
            rt::sleep(Nanos::from_micros(10));
            w.cut_link(0, 0);
            assert_eq!(mine.join(), Exit::Killed);
            assert!(theirs.is_running());
            assert!(!finds(w, 0) && finds(w, 1));
            w.mend_link(0, 0);
            assert!(finds(w, 0));
            theirs.kill();
        });
    }
}
