//! The price of a key for each reader of one memory: what it takes to make, to read by, to end, and in bytes.
//!
//! `cargo run --release -p cenote-libfabric --example keys -- [KEYS [MIB]]`
//!
//! KEYS (10,000) are made to the same MIB (1,024) of memory by a node of `tcp;ofi_rxm`, once as entries of the node's
//! own table ([`Path::Served`]) and once as registrations with the provider ([`Path::OneSided`]).

use cenote_base::{Result, rt};
use cenote_fabric::Mapping;
use cenote_fabric::rdma::{Fabric, Remote, RemoteMemory};
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeOptions, Path, Provider};
use std::sync::Arc;

/// Reads of 64 bytes, by keys at random.
const READS: usize = 5_000;

/// Kilobytes of memory that this process has.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Nanoseconds each.
fn each(count: usize, run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = rt::now();
    run()?;
    Ok(rt::now().since(began).raw() as f64 / count as f64)
}

fn reads(net: &Net, node: &MemoryNode, keys: &[Remote]) -> Result<f64> {
    let endpoint = net.connect(&node.address().to_string())?;
    let read = |key: Remote| RemoteMemory::new(Arc::clone(&endpoint), key).read(0, &mut [0; 64]);
    keys.iter().try_for_each(|key| read(*key))?;
    each(READS, || {
        (0..READS).try_for_each(|_| read(keys[(rt::random() % keys.len() as u64) as usize]))
    })
}

fn measure(path: Path, keys: usize, bytes: u64) -> Result<()> {
    let node = MemoryNode::start(&NodeOptions {
        path: Some(path),
        ..NodeOptions::new(Provider::tcp())
    })?;
    let net = Net::new(NetOptions::default())?;
    let memory = Mapping::anonymous(bytes as usize).map_err(|error| cenote_base::Error::io("mapping", error))?;
    let (memory, registrar) = (Arc::new(memory), node.registrar());
    let first = registrar.register_to_read(&memory, bytes)?;
    let alone = reads(&net, &node, &[first])?;
    let (before, mut made) = (resident(), Vec::with_capacity(keys));
    let make = each(keys, || {
        (0..keys).try_for_each(|_| registrar.register_to_read(&memory, bytes).map(|key| made.push(key)))
    })?;
    let room = (resident() - before) as f64 * 1024.0 / keys as f64;
    let read = reads(&net, &node, &made)?;
    let end = each(keys, || {
        made.iter().try_for_each(|key| registrar.revoke(key.key).map(drop))
    })?;
    println!(
        "{:<10} {keys:>7} {make:>10.0} {end:>10.0} {room:>8.0} {alone:>10.0} {read:>10.0}",
        format!("{path:?}")
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse());
    let keys = arguments.next().and_then(core::result::Result::ok).unwrap_or(10_000);
    let mib: u64 = arguments.next().and_then(core::result::Result::ok).unwrap_or(1024);
    println!("# keys to {mib} MiB of memory, tcp;ofi_rxm on this machine");
    println!("path          keys  make, ns    end, ns    bytes  read by 1, ns  by all, ns");
    for path in [Path::Served, Path::OneSided] {
        measure(path, keys as usize, mib << 20)?;
    }
    Ok(())
}
