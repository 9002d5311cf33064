//! Tables 1 and 2: what one access, and one transfer, takes. Not copied from the profiles: a thread of a simulated host
//! follows pointers through memory, and moves blocks, and looks at its clock.

use super::judge::{Claim, Kind, Paper};
use super::paper;
use super::report::{Figure, Table};
use super::why;
use crate::{Error, Result};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile;
use cenote_fabric::rdma::{Fabric, RemoteMemory};
use cenote_fabric::{Identity, Region, RegionOptions, coherence};
use cenote_sim::rdma::Network;
use cenote_sim::{DeviceSpec, Exit, Machinery, Pace, Topology, World};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Places that the pointers lead through: one in a page each, so that none is near to another; several times the cache.
const STEPS: u64 = 65_536;
const STRIDE: u64 = 64 * 5;
const FIRST: u64 = 4096;
const BYTES: u64 = 32 << 20;

/// Runs `body` in a process of a world of one host with one device, `/dev/sim/m`, of a profile.
fn on_device<T: Send + 'static>(profile: &str, body: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let wrong = |e: cenote_base::Error| Error::Simulation(e.to_string());
    let device = DeviceSpec {
        coherent: true,
        ..DeviceSpec::new("m", BYTES, profile).map_err(wrong)?
    };
    let world = World::new(1, Pace::Project, Topology::hosts(1, 1).with_device(device)).map_err(wrong)?;
    let result = Arc::new(Mutex::new(None));
    let theirs = result.clone();
    let exit = world
        .run(|w| {
            w.process(0, "measure", move || {
                let value = body();
                *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            })
            .join()
        })
        .value;
    let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (exit, value) {
        (Exit::Returned, Some(value)) => Ok(value),
        (exit, _) => Err(Error::Simulation(format!("measuring {profile}: {exit:?}"))),
    }
}

fn region() -> Region {
    Region::create(
        Path::new("/dev/sim/m"),
        BYTES,
        Identity::default(),
        RegionOptions::default(),
    )
    .expect("a device of this size")
}

/// Nanoseconds a step of a chain of pointers, each in a line of its own.
fn chase() -> f64 {
    let region = region();
    let span = region.span(0, BYTES);
    // A full cycle: odd steps through a power of two.
    let place = |i: u64| FIRST + i * STRIDE;
    let next = |i: u64| (i + 40_503) % STEPS;
    for i in 0..STEPS {
        span.set_u64(place(i) as usize, next(i));
    }
    let mut at = 0;
    let mut follow = |steps: u64| {
        let begun = rt::now();
        for _ in 0..steps {
            at = span.u64(place(at) as usize);
        }
        rt::now().since(begun).raw() as f64 / steps as f64
    };
    // A round first, so that the cache has nothing of what comes.
    follow(STEPS);
    follow(STEPS / 4)
}

/// Table 1.
///
/// # Errors
/// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn table1() -> Result<Figure> {
    let mut table = Table::new("A load that misses the cache", &["memory", "paper ns", "simulated ns"]);
    let mut claims = Vec::new();
    for (profile, paper) in paper::TABLE_1 {
        let ours = on_device(profile, chase)?;
        table
            .rows
            .push(vec![profile.into(), format!("{paper}"), format!("{ours:.1}")]);
        claims.push(Claim {
            what: format!("{profile}, ns a load"),
            paper: Paper::About(paper),
            ours: ours.into(),
            kind: Kind::Input,
            decimals: 1,
            why: why::TABLE_1,
        });
    }
    Ok(Figure {
        name: "table1",
        title: "latency of a load".into(),
        how: format!(
            "A thread follows {STEPS} pointers, each in a line of its own, through memory beyond the cache. These are \
             the profiles' own numbers: that they come back through the simulator's accesses is a check of it, no \
             result."
        ),
        profiles: paper::TABLE_1.map(|t| t.0).join(", "),
        tables: vec![table],
        chart: None,
        claims,
    })
}

/// Microseconds to read and to write blocks of a size over CXL: copied out of memory that the cache does not have;
/// copied in and written back.
fn moved(size: u64) -> (f64, f64) {
    let region = region();
    let span = region.span(0, BYTES);
    let mut block = vec![1u8; size as usize];
    // Reads from the first half, writes to the other: nothing is touched twice.
    let turns = (BYTES / 2 - FIRST) / (size + 4096);
    let at = |i: u64| FIRST + i * (size + 4096);
    let each = |begun: Nanos| rt::now().since(begun).raw() as f64 / turns as f64 / 1e3;
    let begun = rt::now();
    for i in 0..turns {
        span.copy_out(at(i) as usize, &mut block);
    }
    let read = each(begun);
    let begun = rt::now();
    for i in 0..turns {
        span.copy_in((BYTES / 2 + at(i)) as usize, &block);
        coherence::flush(&region, BYTES / 2 + at(i), size as usize);
    }
    (read, each(begun))
}

/// Microseconds to read and to write blocks of a size over RDMA, one at a time, by a thread that polls.
fn over_rdma(size: u64) -> Result<(f64, f64)> {
    let wrong = |e: cenote_base::Error| Error::Simulation(e.to_string());
    let profile = profile::named("rdma").map_err(wrong)?;
    let polls = Machinery {
        context_switch: Nanos::ZERO,
        ..Machinery::default()
    };
    let world = World::new(1, Pace::Project, Topology::hosts(1, 1))
        .map_err(wrong)?
        .with_machinery(polls);
    let result = Arc::new(Mutex::new((f64::NAN, f64::NAN)));
    let theirs = result.clone();
    let exit = world.run(|w| {
        let network = Network::new(&profile, 1);
        let memory = network.add_node("node").register(1 << 20);
        w.process(0, "measure", move || {
            let endpoint = network.port(0).connect("node").expect("the node is there");
            let times = transfers(&RemoteMemory::new(endpoint, memory), size);
            *theirs.lock().unwrap_or_else(PoisonError::into_inner) = times;
        })
        .join()
    });
    let times = *result.lock().unwrap_or_else(PoisonError::into_inner);
    match exit.value {
        Exit::Returned => Ok(times),
        exit => Err(Error::Simulation(format!("measuring rdma: {exit:?}"))),
    }
}

fn transfers(memory: &RemoteMemory, size: u64) -> (f64, f64) {
    const TURNS: u64 = 100;
    let mut block = vec![1u8; size as usize];
    let each = |begun: Nanos| rt::now().since(begun).raw() as f64 / TURNS as f64 / 1e3;
    let begun = rt::now();
    for _ in 0..TURNS {
        memory.read(0, &mut block).expect("read");
    }
    let read = each(begun);
    let begun = rt::now();
    for _ in 0..TURNS {
        memory.write(0, &block).expect("written");
    }
    (read, each(begun))
}

/// Table 2.
///
/// # Errors
/// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn table2() -> Result<Figure> {
    let mut table = Table::new(
        "Microseconds a transfer",
        &[
            "bytes",
            "write RDMA",
            "paper",
            "write CXL",
            "paper",
            "read RDMA",
            "paper",
            "read CXL",
            "paper",
        ],
    );
    let mut claims = Vec::new();
    for (size, write_rdma, write_cxl, read_rdma, read_cxl) in paper::TABLE_2 {
        let (cxl_read, cxl_write) = on_device("cxl-switch", move || moved(size))?;
        let (rdma_read, rdma_write) = over_rdma(size)?;
        let pairs = [
            ("write over RDMA", rdma_write, write_rdma),
            ("write over CXL", cxl_write, write_cxl),
            ("read over RDMA", rdma_read, read_rdma),
            ("read over CXL", cxl_read, read_cxl),
        ];
        let mut row = vec![size.to_string()];
        for (what, ours, paper) in pairs {
            row.extend([format!("{ours:.2}"), format!("{paper:.2}")]);
            claims.push(Claim {
                what: format!("{size} B, {what}, us"),
                paper: Paper::About(paper),
                ours: ours.into(),
                kind: Kind::Input,
                decimals: 2,
                why: why::TABLE_2,
            });
        }
        table.rows.push(row);
    }
    Ok(Figure {
        name: "table2",
        title: "transfers by size".into(),
        how: "Blocks copied out of CXL memory that the cache does not have, and copied in and written back; reads and \
            writes of the same sizes over RDMA. Again the profiles' own numbers, and no result."
            .into(),
        profiles: "cxl-switch, rdma".into(),
        tables: vec![table],
        chart: None,
        claims,
    })
}
