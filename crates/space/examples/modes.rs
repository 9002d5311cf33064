//! What far reads take, plain, direct, one-sided and fetched, and far writes, by size; and which way connections choose
//! for themselves.
//!
//! `cargo run --release -p cenote-pool --example modes -- [ROUNDS]`
//!
//! The memory lies in another process, which this program starts: calls go over libfabric's tcp on the loopback
//! interface and over its shared memory. Rounds are interleaved; each number is the tenth percentile of the times, in
//! microseconds, of one access and of 16 with one doorbell: what it takes where the machine is not busy with something
//! else.

use cenote_base::{Error, Result, rt};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::Callers;
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Provider};
use cenote_space::EXTENT;
use cenote_space::{
    Channel, FarPart, FarReads, GlobalAddress, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Neighbour, Part,
    PartOptions, Read, Service, Space, Write,
};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

const SIZES: [usize; 11] = [
    64,
    128,
    256,
    512,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
];
const MODES: [FarReads; 4] = [
    FarReads::Plain,
    FarReads::DirectFrom(1),
    FarReads::OneSidedFrom(1),
    FarReads::FetchedFrom(1),
];
/// Objects of which some are read, at random: 512 MiB, so that they are in no cache.
const OBJECTS: usize = 8192;
const AT_ONCE: usize = 16;
/// Reads of a size and mode in a round.
const READS: usize = 20;

fn invalid(error: impl core::fmt::Display) -> Error {
    Error::Invalid(error.to_string())
}

/// In shared memory, as a memory node has it.
fn part() -> Result<Arc<Part>> {
    let options = PartOptions {
        space: 1,
        part: 1,
        tenant: 0,
        bytes: 320 * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    let path = PathBuf::from(format!("/dev/shm/cenote-modes-{}", std::process::id()));
    let part = Part::create(&path, &options).map(Arc::new);
    std::fs::remove_file(&path).map_err(invalid)?;
    part
}

/// The other process: hosts a part with the objects, and says where it is, until its input ends.
fn host(provider: &str, keeper_at: &Path) -> Result<()> {
    let (part, options) = (part()?, HostOptions::default());
    let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part))?);
    let _service = Service::start(keeper_at, Arc::clone(&keeper) as Arc<dyn Keeper>)?;
    let space = Space::new(1);
    space.attach(part, Arc::clone(&keeper) as Arc<dyn Keeper>)?;
    let session = space.session();
    let largest = SIZES[SIZES.len() - 1];
    let objects = (0..OBJECTS)
        .map(|_| session.alloc(largest as u64))
        .collect::<Result<Vec<_>>>()?;
    let bytes = vec![7; largest];
    objects.iter().try_for_each(|object| space.write(*object, &bytes))?;
    let (host, hosts) = (Host::start(keeper, options)?, Hosts::default());
    hosts.add(&host);
    let node = MemoryNode::start(&NodeOptions {
        writes: true,
        ..NodeOptions::new(provider_of(provider))
    })?;
    node.serve(Arc::new(hosts));
    let memory = host.part().region().map_again()?.ok_or_else(|| invalid("no file"))?;
    host.offer(node.registrar(), memory)?;
    let raw: Vec<String> = objects.iter().map(|object| object.raw().to_string()).collect();
    println!("{} {}", node.address(), raw.join(" "));
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(invalid)?;
    node.close();
    Ok(())
}

fn provider_of(name: &str) -> Provider {
    match name {
        "shm" => Provider::shm(),
        _ => Provider::tcp(),
    }
}

/// The other process, as this one has it; it ends when this is dropped.
struct Far {
    child: Child,
    keeper_at: PathBuf,
    peer: String,
    objects: Vec<GlobalAddress>,
}

impl Far {
    fn start(provider: &str) -> Result<Self> {
        let keeper_at = std::env::temp_dir().join(format!("cenote-modes-{}-{provider}", std::process::id()));
        let mut child = Command::new(std::env::current_exe().map_err(invalid)?)
            .args(["host", provider])
            .arg(&keeper_at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(invalid)?;
        let mut output: Vec<BufReader<ChildStdout>> = child.stdout.take().into_iter().map(BufReader::new).collect();
        let mut far = Self {
            child,
            keeper_at,
            peer: String::new(),
            objects: Vec::new(),
        };
        let mut line = String::new();
        for output in &mut output {
            output.read_line(&mut line).map_err(invalid)?;
        }
        let mut words = line.split_whitespace();
        far.peer = words.next().ok_or_else(|| invalid("the host has not started"))?.into();
        let raw = words.map(|word| word.parse::<u64>().map_err(invalid));
        far.objects = raw
            .map(|raw| raw.map(GlobalAddress::from_raw))
            .collect::<Result<Vec<_>>>()?;
        Ok(far)
    }

    fn user(&self, callers: &Arc<dyn Callers>, reads: FarReads) -> Result<Space> {
        let hello = Hello {
            space: 1,
            part: 1,
            key: HostOptions::default().key,
            pod: "near".into(),
        };
        let far = FarPart {
            number: 1,
            pod: "far".into(),
            channel: Arc::new(Channel::new(Arc::clone(callers), self.peer.as_str(), hello).reading(reads)),
        };
        let space = Space::new(1);
        space.attach_far(far, Arc::new(Neighbour::connect(&self.keeper_at)?))?;
        // The way is open after the first one.
        space.read(self.objects[0], &mut [0; 8])?;
        Ok(space)
    }
}

impl Far {
    /// Some of its objects.
    fn some(&self, count: usize) -> Vec<GlobalAddress> {
        (0..count)
            .map(|_| self.objects[rt::random() as usize % self.objects.len()])
            .collect()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.keeper_at);
    }
}

fn microseconds(read: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = rt::now();
    read()?;
    Ok(rt::now().since(began).raw() as f64 / 1000.0)
}

fn read_some(space: &Space, objects: &[GlobalAddress], buffers: &mut [Vec<u8>]) -> Result<()> {
    let mut reads: Vec<_> = objects
        .iter()
        .zip(buffers)
        .map(|(address, into)| Read {
            address: *address,
            into,
        })
        .collect();
    space.read_many(&mut reads)
}

fn write_some(space: &Space, objects: &[GlobalAddress], buffers: &[Vec<u8>]) -> Result<()> {
    let some = objects.iter().zip(buffers);
    let writes: Vec<_> = some
        .map(|(address, from)| Write {
            address: *address,
            from,
        })
        .collect();
    space.write_many(&writes)
}

fn low(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// A line of the table of writes: of one and of many.
fn line_of_writes(far: &Far, space: &Space, size: usize, rounds: usize) -> Result<()> {
    let (mut one, mut many, buffers) = (Vec::new(), Vec::new(), vec![vec![7; size]; AT_ONCE]);
    for _ in 0..rounds * READS {
        let (object, objects) = (far.some(1)[0], far.some(AT_ONCE));
        one.push(microseconds(|| space.write(object, &buffers[0]))?);
        many.push(microseconds(|| write_some(space, &objects, &buffers))?);
    }
    println!("| {size} | {:.1} | {:.1} |", low(&mut one), low(&mut many));
    Ok(())
}

/// A line of the table: what each mode takes, of one and of many.
fn line(far: &Far, users: &[Space; MODES.len()], size: usize, rounds: usize) -> Result<()> {
    let (mut one, mut many) = ([const { Vec::new() }; MODES.len()], [const { Vec::new() }; MODES.len()]);
    let mut buffers = vec![vec![0; size]; AT_ONCE];
    for n in 0..rounds * READS {
        for mode in (0..MODES.len()).map(|mode| (n + mode) % MODES.len()) {
            let (space, object) = (&users[mode], far.some(1)[0]);
            one[mode].push(microseconds(|| space.read(object, &mut buffers[0]))?);
            let objects = far.some(AT_ONCE);
            many[mode].push(microseconds(|| read_some(space, &objects, &mut buffers))?);
        }
    }
    let columns = |times: [Vec<f64>; MODES.len()]| {
        let low = times.map(|mut times| format!("{:.1}", low(&mut times)));
        low.join(" | ")
    };
    println!("| {size} | {} | {} |", columns(one), columns(many));
    Ok(())
}

fn measure(provider: &str, rounds: usize) -> Result<()> {
    let far = Far::start(provider)?;
    let callers: Arc<dyn Callers> = Arc::new(Net::new(NetOptions::default())?);
    let users = [
        far.user(&callers, MODES[0])?,
        far.user(&callers, MODES[1])?,
        far.user(&callers, MODES[2])?,
        far.user(&callers, MODES[3])?,
    ];
    println!("\nover {provider}\n");
    println!("| bytes | plain, µs | direct | one-sided | fetched | 16 at once, plain | direct | one-sided | fetched |");
    println!("|---|---|---|---|---|---|---|---|---|");
    SIZES
        .into_iter()
        .try_for_each(|size| line(&far, &users, size, rounds))?;
    println!("\n| bytes | write, µs | 16 at once |");
    println!("|---|---|---|");
    let mut sizes = SIZES.into_iter();
    sizes.try_for_each(|size| line_of_writes(&far, &users[0], size, rounds))?;
    for _ in 0..3 {
        let chooses = far.user(&callers, FarReads::Measured)?;
        let took = microseconds(|| chooses.read(far.objects[0], &mut [0; 4096]))?;
        for far in chooses.stats().far {
            println!("a connection measures for {took:.0} µs: {:?}", far.modes);
            far.probed.iter().for_each(|probed| println!("  {probed:?}"));
        }
    }
    let done = users.iter().flat_map(|user| user.stats().far);
    done.for_each(|far| {
        println!(
            "plain {}, direct {}, one-sided {}, fetched {}",
            far.plain, far.direct, far.one_sided, far.fetched
        )
    });
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, provider, keeper_at] = arguments.as_slice()
        && role == "host"
    {
        return host(provider, Path::new(keeper_at));
    }
    let rounds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    measure("tcp", rounds)?;
    measure("shm", rounds)
}
