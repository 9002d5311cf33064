//! What reads and writes under locks cost where memory lies in another pod: with pages cached and writes collected,
//! beside the same without.
//!
//! `cargo run --release -p cenote-pool --example locked -- [ROUNDS]`
//!
//! Two pods in one process, calls between them over libfabric's tcp on the loopback interface, if it is there, and
//! through memory. A hold is to take a lock, to read or write objects one after the other, and to let go. Rounds are
//! interleaved; each number is the median of the holds' times, in microseconds.

use cenote_base::{Result, rt};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::Callers;
use cenote_fabric::rdma::loopback::Nodes;
use cenote_libfabric::{self as libfabric, Net, NetOptions, Provider};
use cenote_space::EXTENT;
use cenote_space::{
    Channel, FarPart, GlobalAddress, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Mode, Part, PartOptions,
    Session, Space,
};
use std::sync::Arc;

const SIZES: [usize; 4] = [64, 256, 1 << 10, 4 << 10];
const COUNTS: [usize; 3] = [1, 8, 64];
const HOLDS: usize = 20;

/// The far pod: what has to be held for it, and how it is called.
struct Far {
    host: Host,
    callers: Arc<dyn Callers>,
    peer: String,
    _node: Option<libfabric::MemoryNode>,
}

fn part(number: u8) -> Result<Arc<Part>> {
    let options = PartOptions {
        space: 1,
        part: number,
        tenant: 0,
        bytes: 32 * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    Part::dram(&options).map(Arc::new)
}

fn host() -> Result<(Host, Arc<Hosts>)> {
    let options = HostOptions {
        pod: "far".into(),
        every: rt::Nanos::ZERO,
        ..HostOptions::default()
    };
    let host = Host::start(Arc::new(LocalKeeper::new(part(2)?)?), options)?;
    let hosts = Hosts::default();
    hosts.add(&host);
    Ok((host, Arc::new(hosts)))
}

impl Far {
    fn over_tcp() -> Result<Self> {
        let (host, hosts) = host()?;
        let node = libfabric::MemoryNode::start(&libfabric::NodeOptions::new(Provider::tcp()))?;
        node.serve(hosts);
        Ok(Self {
            host,
            callers: Arc::new(Net::new(NetOptions::default())?),
            peer: node.address().to_string(),
            _node: Some(node),
        })
    }

    fn through_memory() -> Result<Self> {
        let (host, hosts) = host()?;
        let nodes = Arc::new(Nodes::default());
        nodes.add("far").serve(hosts);
        Ok(Self {
            host,
            callers: nodes,
            peer: "far".into(),
            _node: None,
        })
    }

    /// A user in the other pod, with memory there.
    fn user(&self) -> Result<Space> {
        let space = Space::new(1);
        let near = part(1)?;
        space.attach(Arc::clone(&near), Arc::new(LocalKeeper::new(near)?))?;
        let hello = Hello {
            space: 1,
            part: 2,
            key: HostOptions::default().key,
            pod: "near".into(),
        };
        let far = FarPart {
            number: 2,
            pod: "far".into(),
            channel: Arc::new(Channel::new(Arc::clone(&self.callers), self.peer.as_str(), hello)),
        };
        space.attach_far(far, Arc::clone(self.host.keeper()) as Arc<dyn Keeper>)?;
        Ok(space)
    }
}

/// The median time of a hold.
fn time(holds: &mut Vec<f64>, mut hold: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..HOLDS {
        let began = rt::now();
        hold()?;
        holds.push(rt::now().since(began).raw() as f64 / 1000.0);
    }
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Scene {
    session: Session,
    /// Far, and near.
    locks: [GlobalAddress; 2],
    objects: Vec<GlobalAddress>,
}

impl Scene {
    fn new(far: &Far, size: usize) -> Result<Self> {
        let session = far.user()?.session();
        let owner = Space::new(1);
        owner.attach(
            Arc::clone(far.host.part()),
            Arc::clone(far.host.keeper()) as Arc<dyn Keeper>,
        )?;
        let owner = owner.session();
        let locks = [owner.new_lock()?, session.new_lock()?];
        let objects = (0..64).map(|_| owner.alloc(size as u64)).collect::<Result<_>>()?;
        Ok(Self {
            session,
            locks,
            objects,
        })
    }

    fn read(&self, lock: usize, count: usize, buffer: &mut [u8], is_cached: bool) -> Result<()> {
        let guard = self.session.lock(self.locks[lock], Mode::Read)?;
        for object in &self.objects[..count] {
            match is_cached {
                true => guard.read(*object, buffer)?,
                false => self.session.read(*object, buffer)?,
            }
        }
        guard.unlock()
    }

    fn write(&self, lock: usize, count: usize, from: &[u8], is_buffered: bool) -> Result<()> {
        let guard = self.session.lock(self.locks[lock], Mode::Write)?;
        for object in &self.objects[..count] {
            match is_buffered {
                true => guard.write(*object, from)?,
                false => self.session.write(*object, from)?,
            }
        }
        guard.unlock()
    }
}

/// A line: far lock without and with, near lock without and with.
fn line(what: &str, rounds: usize, mut hold: impl FnMut(usize, bool) -> Result<()>) -> Result<()> {
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        for (n, times) in times.iter_mut().enumerate() {
            time(times, || hold(n / 2, n % 2 == 1))?;
        }
    }
    let [without, with, near_without, near_with] = times.map(|mut times| median(&mut times));
    let (ratio, near_ratio) = (without / with, near_without / near_with);
    println!(
        "| {what} | {without:.1} | {with:.1} | {ratio:.1} | {near_without:.1} | {near_with:.1} | {near_ratio:.1} |"
    );
    Ok(())
}

fn measure(name: &str, far: &Far, rounds: usize) -> Result<()> {
    println!("\n{name}\n");
    println!("| a hold of | far lock, without | with | ratio | near lock, without | with | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for size in SIZES {
        let (scene, mut buffer) = (Scene::new(far, size)?, vec![0; size]);
        for count in COUNTS {
            let what = format!("{count} reads of {size} B");
            line(&what, rounds, |lock, with| scene.read(lock, count, &mut buffer, with))?;
        }
    }
    for size in [64, 256] {
        let (scene, buffer) = (Scene::new(far, size)?, vec![1; size]);
        for count in COUNTS {
            let what = format!("{count} writes of {size} B");
            line(&what, rounds, |lock, with| scene.write(lock, count, &buffer, with))?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20);
    match Far::over_tcp() {
        Ok(far) => measure("over libfabric tcp", &far, rounds)?,
        Err(error) => println!("without libfabric: {error}"),
    }
    measure("through memory", &Far::through_memory()?, rounds)
}
