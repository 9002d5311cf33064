//! What the links of the simulator cost in real time: `cargo run --release -p cenote-sim --example links`.

use cenote_base::rt::{Nanos, os};
use cenote_sim::link::{Link, Links};
use cenote_sim::{DeviceSpec, Topology};
use std::hint::black_box;

fn measure(what: &str, mut f: impl FnMut(Nanos)) {
    const TIMES: u64 = 10_000_000;
    let begin = os::now();
    for i in 0..TIMES {
        f(Nanos(i * 50));
    }
    let time = os::now().since(begin);
    println!("{what:<40} {:>6.2} ns", time.0 as f64 / TIMES as f64);
}

fn main() {
    let link = Link::new("pipe", 56e9);
    measure("transfer over one link", |now| {
        black_box(link.transfer(now, 64));
    });
    let device = DeviceSpec::new("mem", 1 << 20, "cxl-switch").expect("known");
    let links = Links::new(&Topology::hosts(2, 4).with_device(device));
    measure("miss in the host's own memory", |now| {
        black_box(links.local(0).fetch(now, 1, false));
    });
    measure("miss in CXL memory, over three links", |now| {
        black_box(links.device(0, 0).fetch(now, 1, false));
    });
}
