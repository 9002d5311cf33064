//! What large values of another pod take, beside what libfabric's own one-sided operations move.
//!
//! `cargo run --release -p cenote-space --example large -- [PROVIDER [ROUNDS]]`
//!
//! The part lies in another process, which this program starts. *get* and *put* are a value's [`Space::read`] and
//! [`Space::write`], as reads are chosen for the connection; *bare* moves as many bytes by operations of 16 KiB, all
//! under way at once, without a check, a copy into the user's buffer, or anything of ours. Kinds are interleaved; GB/s,
//! medians, and the best tenth beside them: what it moves where the machine is not busy with something else.

use cenote_base::{Error, Result, rt};
use cenote_fabric::RegionOptions;
use cenote_fabric::rdma::call::Callers;
use cenote_fabric::rdma::{Key, Remote};
use cenote_libfabric::bare::{Bare, Operation};
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Path as FabricPath, Provider};
use cenote_space::{
    Channel, EXTENT, FarPart, GlobalAddress, Hello, Host, HostOptions, Hosts, Keeper, LocalKeeper, Neighbour, Part,
    PartOptions, Service, Space,
};
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Values of each size.
const VALUES: usize = 8;
const BARE: usize = 16 << 10;

fn invalid(error: impl core::fmt::Display) -> Error {
    Error::Invalid(error.to_string())
}

fn keeper_at(home: &Path) -> PathBuf {
    home.join("keeper")
}

/// The other process: hosts the part, and says where it and what is registered is, until its input ends.
fn host(provider: &str, home: &Path) -> Result<()> {
    let part = Arc::new(Part::dram(&PartOptions {
        space: 1,
        part: 1,
        tenant: 0,
        bytes: 48 * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    })?);
    let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part))?);
    let dynamic = Arc::clone(&keeper) as Arc<dyn Keeper>;
    let _service = Service::start(&keeper_at(home), Arc::clone(&dynamic))?;
    let space = Space::new(1);
    space.attach(part, dynamic)?;
    let host = Host::start(keeper, HostOptions::default())?;
    let hosts = Hosts::default();
    hosts.add(&host);
    let provider: Provider = provider.parse()?;
    let node = MemoryNode::start(&NodeOptions::new(provider.clone()))?;
    node.serve(Arc::new(hosts));
    let bare = MemoryNode::start(&NodeOptions {
        path: Some(FabricPath::OneSided),
        ..NodeOptions::new(provider)
    })?;
    let memory = bare.register(SIZES[SIZES.len() - 1] as u64)?;
    println!("{} {} {}", node.address(), bare.address(), memory.key.0);
    let session = space.session();
    for size in SIZES {
        let values = (0..VALUES).map(|_| session.alloc(size as u64));
        let raw: Result<Vec<String>> = values.map(|value| Ok(value?.raw().to_string())).collect();
        println!("{}", raw?.join(" "));
    }
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(invalid)?;
    node.close();
    bare.close();
    Ok(())
}

/// The other process, as this one has it; it ends when this is dropped.
struct Far {
    child: Child,
    home: PathBuf,
}

impl Drop for Far {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.home).ok();
    }
}

type Lines = Box<dyn Iterator<Item = std::io::Result<String>>>;

fn start(provider: &str) -> Result<(Far, Lines)> {
    let home = std::env::temp_dir().join(format!("cenote-large-{}", std::process::id()));
    std::fs::create_dir_all(&home).map_err(invalid)?;
    let mut child = Command::new(std::env::current_exe().map_err(invalid)?)
        .args(["host", provider])
        .arg(&home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(invalid)?;
    let output = child.stdout.take().ok_or_else(|| invalid("no output"))?;
    Ok((Far { child, home }, Box::new(BufReader::new(output).lines())))
}

fn line(lines: &mut Lines) -> Result<Vec<String>> {
    let line = lines.next().ok_or_else(|| invalid("the other process has ended"))?;
    Ok(line.map_err(invalid)?.split(' ').map(str::to_owned).collect())
}

fn attached(net: &Arc<Net>, peer: &str, home: &Path) -> Result<Space> {
    let hello = Hello {
        space: 1,
        part: 1,
        key: 0,
        pod: "here".into(),
    };
    let channel = Channel::new(Arc::clone(net) as Arc<dyn Callers>, peer, hello);
    let far = FarPart {
        number: 1,
        pod: "there".into(),
        channel: Arc::new(channel),
    };
    let space = Space::new(1);
    space.attach_far(far, Arc::new(Neighbour::connect(&keeper_at(home))?))?;
    Ok(space)
}

/// GB/s.
fn rate(bytes: usize, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = rt::now();
    run()?;
    Ok(bytes as f64 / rt::now().since(began).raw() as f64)
}

fn measure(space: &Space, bare: &Bare, values: &[GlobalAddress], size: usize, rounds: usize) -> Result<()> {
    let mut buffer = vec![7; size];
    let mut rates = [const { Vec::new() }; 4];
    for value in values {
        space.write(*value, &buffer)?;
    }
    for round in 0..rounds {
        let value = values[round % values.len()];
        let now = [
            rate(size, || space.read(value, &mut buffer))?,
            rate(size, || bare.run(Operation::Read, BARE, size / BARE))?,
            rate(size, || space.write(value, &buffer))?,
            rate(size, || bare.run(Operation::Write, BARE, size / BARE))?,
        ];
        rates.iter_mut().zip(now).for_each(|(rates, now)| rates.push(now));
    }
    rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
    for (name, tenths) in [("median", 5), ("best tenth", 9)] {
        let [get, read, put, write] = [0, 1, 2, 3].map(|n| rates[n][rounds * tenths / 10]);
        println!(
            "{:>8} {name:<10} {get:>8.2} {read:>8.2} {:>6.2} | {put:>8.2} {write:>8.2} {:>6.2}",
            size >> 10,
            get / read,
            put / write
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, provider, home] = &arguments[..]
        && role == "host"
    {
        return host(provider, Path::new(home));
    }
    let provider = arguments.first().map_or("tcp;ofi_rxm", String::as_str);
    let rounds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(200);
    let net = Arc::new(Net::new(NetOptions::default())?);
    let (far, mut lines) = start(provider)?;
    let [node, bare, key] = &line(&mut lines)?[..] else {
        return Err(invalid("no addresses"));
    };
    let memory = Remote {
        key: Key(key.parse().map_err(invalid)?),
        base: 0,
        len: SIZES[SIZES.len() - 1] as u64,
    };
    let bare = Bare::connect(&net, &bare.parse()?, memory)?;
    let space = attached(&net, node, &far.home)?;
    println!("# {provider}, {rounds} rounds, GB/s");
    println!(
        "{:>8} {:<10} {:>8} {:>8} {:>6} | {:>8} {:>8} {:>6}",
        "KiB", "", "get", "bare", "", "put", "bare", ""
    );
    for size in SIZES {
        let raw = line(&mut lines)?;
        let values: core::result::Result<Vec<u64>, _> = raw.iter().map(|raw| raw.parse()).collect();
        let values: Vec<_> = values
            .map_err(invalid)?
            .into_iter()
            .map(GlobalAddress::from_raw)
            .collect();
        measure(&space, &bare, &values, size, rounds)?;
    }
    println!("# {:?}", space.stats().far.first().map(|far| far.modes.clone()));
    Ok(())
}
