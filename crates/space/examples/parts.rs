//! What `read_many` and `write_many` of 16 objects take that lie in one far part, and in several.
//!
//! `cargo run --release -p cenote-space --example parts -- [ROUNDS [NODES]]`
//!
//! The parts lie in another process, which this program starts, at one memory node or at as many as is said (each has a
//! thread that looks for messages: more of them than cores wait for each other). Calls go over libfabric's tcp on the
//! loopback interface, and over its shared memory. *One after the other* is what several parts take if each is
//! asked when the one before has answered. Kinds are interleaved; each number is a median, and beside it the tenth
//! percentile: what it takes where the machine is not busy with something else. Microseconds.

use cenote_base::{Error, Result, rt};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::Callers;
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Provider};
use cenote_space::{
    Channel, EXTENT, FarPart, FarReads, GlobalAddress, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Neighbour,
    Part, PartOptions, Read, Service, Space, Write,
};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const PARTS: usize = 4;
const AT_ONCE: usize = 16;
/// Objects of a part, of which some are read, at random.
const OBJECTS: usize = 1024;
const SIZES: [usize; 3] = [64, 1 << 10, 8 << 10];

fn invalid(error: impl core::fmt::Display) -> Error {
    Error::Invalid(error.to_string())
}

fn provider_of(name: &str) -> Provider {
    match name {
        "shm" => Provider::shm(),
        _ => Provider::tcp(),
    }
}

fn keeper_at(home: &Path, number: u8) -> PathBuf {
    home.join(format!("keeper-{number}"))
}

/// A part that is hosted, as long as this lives.
struct Hosted {
    _service: Service,
    host: Host,
    objects: Vec<GlobalAddress>,
}

impl Hosted {
    fn new(home: &Path, number: u8) -> Result<Self> {
        let part = Arc::new(Part::dram(&PartOptions {
            space: 1,
            part: number,
            tenant: 0,
            bytes: 16 * EXTENT,
            movable: true,
            region: RegionOptions::default(),
        })?);
        let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part))?);
        let dynamic = Arc::clone(&keeper) as Arc<dyn Keeper>;
        let service = Service::start(&keeper_at(home, number), Arc::clone(&dynamic))?;
        let space = Space::new(1);
        space.attach(part, dynamic)?;
        let (session, largest) = (space.session(), SIZES[SIZES.len() - 1] as u64);
        let objects = (0..OBJECTS)
            .map(|_| session.alloc(largest))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            _service: service,
            host: Host::start(keeper, HostOptions::default())?,
            objects,
        })
    }
}

/// A node that hosts some of the parts.
fn node(provider: &str, parts: &[Hosted]) -> Result<MemoryNode> {
    let hosts = Hosts::default();
    parts.iter().for_each(|part| hosts.add(&part.host));
    let node = MemoryNode::start(&NodeOptions::new(provider_of(provider)))?;
    node.serve(Arc::new(hosts));
    Ok(node)
}

/// The other process: hosts the parts, and says where they are, until its input ends.
fn host(provider: &str, home: &Path, nodes: usize) -> Result<()> {
    let parts = (1..=PARTS as u8)
        .map(|number| Hosted::new(home, number))
        .collect::<Result<Vec<_>>>()?;
    let mut open = Vec::new();
    for some in parts.chunks(PARTS.div_ceil(nodes.clamp(1, PARTS))) {
        let node = node(provider, some)?;
        for part in some {
            let raw: Vec<String> = part.objects.iter().map(|object| object.raw().to_string()).collect();
            println!("{} {}", node.address(), raw.join(" "));
        }
        open.push(node);
    }
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(invalid)?;
    open.into_iter().for_each(MemoryNode::close);
    Ok(())
}

/// The other process, as this one has it; it ends when this is dropped.
struct Far {
    child: Child,
    home: PathBuf,
    space: Space,
    objects: Vec<Vec<GlobalAddress>>,
}

impl Far {
    fn start(provider: &str, nodes: usize, callers: &Arc<dyn Callers>) -> Result<Self> {
        let home = std::env::temp_dir().join(format!("cenote-parts-{}-{provider}", std::process::id()));
        std::fs::create_dir_all(&home).map_err(invalid)?;
        let child = Command::new(std::env::current_exe().map_err(invalid)?)
            .args(["host", provider])
            .arg(&home)
            .arg(nodes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(invalid)?;
        let mut far = Self {
            child,
            home,
            space: Space::new(1),
            objects: Vec::new(),
        };
        let output = far.child.stdout.take().ok_or_else(|| invalid("no output"))?;
        for (line, number) in BufReader::new(output).lines().take(PARTS).zip(1..) {
            far.add(callers, number, &line.map_err(invalid)?)?;
        }
        Ok(far)
    }

    fn add(&mut self, callers: &Arc<dyn Callers>, number: u8, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        let peer = words.next().ok_or_else(|| invalid("a part has not started"))?;
        let hello = Hello {
            space: 1,
            part: number,
            key: HostOptions::default().key,
            pod: "near".into(),
        };
        let channel = Channel::new(Arc::clone(callers), peer, hello).reading(FarReads::Plain);
        let part = FarPart {
            number,
            pod: format!("far-{number}"),
            channel: Arc::new(channel),
        };
        let keeper = Neighbour::connect(&keeper_at(&self.home, number))?;
        self.space.attach_far(part, Arc::new(keeper))?;
        let raw = words.map(|word| word.parse::<u64>().map(GlobalAddress::from_raw).map_err(invalid));
        self.objects.push(raw.collect::<Result<Vec<_>>>()?);
        // The way is open after the first one.
        self.space.read(self.objects[usize::from(number) - 1][0], &mut [0; 8])
    }

    /// So many objects, of so many parts in turn.
    fn some(&self, count: usize, parts: usize) -> Vec<GlobalAddress> {
        let one = |n: usize| self.objects[n % parts][rt::random() as usize % OBJECTS];
        (0..count).map(one).collect()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

fn read_some(space: &Space, objects: &[GlobalAddress], buffers: &mut [Vec<u8>]) -> Result<()> {
    let reads = objects.iter().zip(buffers);
    let mut reads: Vec<_> = reads
        .map(|(address, into)| Read {
            address: *address,
            into,
        })
        .collect();
    space.read_many(&mut reads)
}

fn write_some(space: &Space, objects: &[GlobalAddress], buffers: &[Vec<u8>]) -> Result<()> {
    let writes = objects.iter().zip(buffers);
    let writes: Vec<_> = writes
        .map(|(address, from)| Write {
            address: *address,
            from,
        })
        .collect();
    space.write_many(&writes)
}

fn microseconds(act: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = rt::now();
    act()?;
    Ok(rt::now().since(began).raw() as f64 / 1000.0)
}

/// What is measured: of one part, of several at once, of several one after the other; reads, then writes.
fn round(far: &Far, size: usize) -> Result<[f64; 6]> {
    let (mut buffers, space) = (vec![vec![7; size]; AT_ONCE], &far.space);
    let (one, many) = (far.some(AT_ONCE, 1), far.some(AT_ONCE, PARTS));
    let of_part = |n: usize| many.iter().copied().skip(n).step_by(PARTS).collect::<Vec<_>>();
    let in_turn: Vec<_> = (0..PARTS).map(of_part).collect();
    Ok([
        microseconds(|| read_some(space, &one, &mut buffers))?,
        microseconds(|| read_some(space, &many, &mut buffers))?,
        microseconds(|| {
            let mut each = in_turn.iter();
            each.try_for_each(|some| read_some(space, some, &mut buffers))
        })?,
        microseconds(|| write_some(space, &one, &buffers))?,
        microseconds(|| write_some(space, &many, &buffers))?,
        microseconds(|| in_turn.iter().try_for_each(|some| write_some(space, some, &buffers)))?,
    ])
}

/// The median, and the tenth percentile.
fn middle_and_low(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() / 10])
}

fn measure(provider: &str, rounds: usize, nodes: usize) -> Result<()> {
    let callers: Arc<dyn Callers> = Arc::new(Net::new(NetOptions::default())?);
    let far = Far::start(provider, nodes, &callers)?;
    println!("\nover {provider}, nodes {nodes}: {AT_ONCE} objects, of 1 part and of {PARTS}\n");
    println!("| bytes | | 1 part | {PARTS} parts | ratio | one after the other | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for size in SIZES {
        let mut times = [const { Vec::new() }; 6];
        for _ in 0..rounds {
            let round = round(&far, size)?;
            times.iter_mut().zip(round).for_each(|(times, time)| times.push(time));
        }
        let [
            reads,
            reads_of_parts,
            reads_in_turn,
            writes,
            writes_to_parts,
            writes_in_turn,
        ] = times.map(middle_and_low);
        for (name, one, many, turn) in [
            ("read", reads, reads_of_parts, reads_in_turn),
            ("write", writes, writes_to_parts, writes_in_turn),
        ] {
            let cell = |(middle, low): (f64, f64)| format!("{middle:.0} ({low:.0})");
            let ratio = |of: (f64, f64)| format!("{:.2} ({:.2})", of.0 / one.0, of.1 / one.1);
            println!(
                "| {size} | {name} | {} | {} | {} | {} | {} |",
                cell(one),
                cell(many),
                ratio(many),
                cell(turn),
                ratio(turn)
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |n: usize| arguments.get(n).and_then(|text| text.parse().ok());
    if let [_, role, provider, home, _] = arguments.as_slice()
        && role == "host"
    {
        return host(provider, Path::new(home), number(4).unwrap_or(1));
    }
    let (rounds, nodes) = (number(1).unwrap_or(1000), number(2).unwrap_or(1));
    measure("tcp", rounds, nodes)?;
    measure("shm", rounds, nodes)
}
