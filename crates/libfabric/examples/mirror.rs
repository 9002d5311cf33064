//! What a mirror costs the thread that flushes: none, one that is mapped, and one on another machine, over libfabric on
//! this one. And what goes over the wire for it.
//!
//! `cargo run --release -p cenote-libfabric --example mirror [PROVIDER [SECONDS]]`: `tcp;ofi_rxm` and 1 a cell unless
//! told otherwise. The memory node is a process of its own: this program again. Beside the time of a flush stands the
//! processor time that it takes here, and at the node, in steps of 10 ms.
//!
//! A *change* is what a mini-transaction of one page and 200 bytes of redo flushes: its descriptor twice, its header and
//! a line of it, and the redo's header, body and state; only the log's mark is waited for, by every `n`th.

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::mirror::{JOURNAL, RemoteMirror, RemoteOptions};
use cenote_fabric::rdma::{Key, Remote, RemoteMemory};
use cenote_fabric::{Identity, MirrorFile, Region, RegionOptions, coherence};
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeAddress, NodeOptions, Provider};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LEN: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, provider] = &arguments[..]
        && role == "node"
    {
        return serve(provider.parse()?);
    }
    let provider = arguments.first().map_or("tcp;ofi_rxm", String::as_str);
    let seconds: f64 = arguments.get(1).and_then(|s| s.parse().ok()).unwrap_or(1.0);
    measure(provider, Nanos((seconds * 1e9) as u64))
}

/// Is a memory node until its input ends.
fn serve(provider: Provider) -> Result<()> {
    let node = MemoryNode::start(&NodeOptions::new(provider))?;
    let (memory, journal) = (node.register(LEN)?, node.register(JOURNAL)?);
    println!("{} {} {}", node.address(), memory.key.0, journal.key.0);
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

struct Node {
    child: Child,
    address: NodeAddress,
    keys: [u64; 2],
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_node(provider: &str) -> Result<Node> {
    let failed = |error| Error::io("starting a node", error);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command
        .args(["node", provider])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let key = |i: usize| words.get(i).and_then(|word| word.parse().ok()).unwrap_or(0);
    let (address, keys) = (words.first().unwrap_or(&"").parse(), [key(1), key(2)]);
    let address = address.inspect_err(|_| _ = child.kill())?;
    Ok(Node { child, address, keys })
}

/// Processor time of a process, its own and the kernel's for it.
fn processor_time(process: u32) -> Nanos {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    Nanos::from_millis(10 * ticks)
}

fn measure(provider: &str, time: Nanos) -> Result<()> {
    let region = Region::dram(LEN, Identity::default(), RegionOptions::default())?;
    region.reserve_to(LEN)?;
    println!("| a flush of | mirror | threads | ns | processor | node's | bytes |\n|---|---|---|---|---|---|---|");
    rows(&region, "none", time, None);
    let path = format!("/dev/shm/cenote-mirror-{:x}", rt::random_u128());
    let mapped = MirrorFile::create(Path::new(&path), LEN);
    std::fs::remove_file(&path).map_err(|error| Error::io(path, error))?;
    region.attach_mirror(Arc::new(mapped?))?;
    rows(&region, "mapped", time, None);
    let node = start_node(provider)?;
    let net = Net::new(NetOptions::default())?;
    let endpoint = net.connect_to(&node.address)?;
    let remote = |key, len| {
        let key = Key(key);
        RemoteMemory::new(Arc::clone(&endpoint), Remote { key, base: 0, len })
    };
    let options = RemoteOptions {
        believed: false,
        patience: Nanos::from_secs(1),
        on_lost: Box::new(|error| println!("the mirror: {error}")),
    };
    let mirror = RemoteMirror::begin(remote(node.keys[0], LEN), remote(node.keys[1], JOURNAL), options)?;
    let mirror = Arc::new(mirror);
    region.attach_mirror(Arc::clone(&mirror) as _)?;
    fill(&region);
    rows(&region, provider, time, Some((&mirror, node.child.id())));
    Ok(())
}

fn fill(region: &Region) {
    let (began, mut at) = (rt::now(), 0);
    loop {
        let next = region.fill_mirror_step(at);
        if next == at {
            break;
        }
        at = next;
    }
    let ms = rt::now().since(began).raw() as f64 / 1e6;
    println!("filled: {:.2} ms a MiB", ms / (at / MIB) as f64);
}

/// What a thread does, given its number and how often it has done it.
type Write<'a> = &'a (dyn Fn(u64, u64) + Sync);

fn rows(region: &Region, name: &str, time: Nanos, remote: Option<(&RemoteMirror, u32)>) {
    let line = |thread: u64, _: u64| coherence::flush(region, (1 + thread) * MIB, 64);
    let page = |thread: u64, _: u64| coherence::flush(region, (1 + thread) * MIB, 16384);
    let change = |thread: u64, n: u64| change(region, thread, n);
    let durable = |thread: u64, n: u64| {
        change(thread, n);
        if n.is_multiple_of(8) {
            coherence::flush(region, MIB, 24);
        }
    };
    let kinds: [(&str, Write<'_>); 4] = [
        ("one line", &line),
        ("16 KiB", &page),
        ("a change, not waited for", &change),
        ("a change, each 8th waited for", &durable),
    ];
    for (what, act) in kinds {
        for threads in [1, 4] {
            let (mirror, of_node) = (remote.map(|r| r.0), remote.map(|r| r.1));
            let traffic = || mirror.map(RemoteMirror::traffic).unwrap_or_default();
            let spent = || {
                (
                    processor_time(std::process::id()),
                    of_node.map_or(Nanos::ZERO, processor_time),
                )
            };
            let (before, began) = (traffic(), spent());
            let (ns, count) = timed(time, threads, act);
            let (after, ended) = (traffic(), spent());
            let bytes = after.journal_bytes + after.placed_bytes - before.journal_bytes - before.placed_bytes;
            let each = |total: u64| total as f64 / count as f64;
            println!(
                "| {what} | {name} | {threads} | {ns:.0} | {:.0} | {:.0} | {:.0} |",
                each(ended.0.since(began.0).raw()),
                each(ended.1.since(began.1).raw()),
                each(bytes)
            );
        }
    }
}

fn change(region: &Region, thread: u64, n: u64) {
    let (descriptor, page) = (MIB + (1 + n % 64) * 64, (2 + thread) * MIB + n % 32 * 16384);
    let redo = (8 + thread) * MIB + n * 256 % MIB;
    region.span(page, 64).set_u64(0, n);
    coherence::flush_in_order(region, descriptor, 64);
    coherence::flush_in_order(region, redo, 32);
    coherence::flush_in_order(region, redo, 232);
    coherence::flush_in_order(region, redo, 24);
    coherence::write_back(region, page, 64);
    coherence::flush_in_order(region, page + 4096, 128);
    coherence::flush_in_order(region, descriptor, 64);
}

/// Nanoseconds of one, for the thread that does it, and how many were done.
fn timed(time: Nanos, threads: u64, act: &(dyn Fn(u64, u64) + Sync)) -> (f64, u64) {
    let (count, until) = (AtomicU64::new(0), rt::now() + time);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let count = &count;
            scope.spawn(move || {
                let mut n = 0;
                while rt::now() < until {
                    act(thread, n);
                    n += 1;
                }
                count.fetch_add(n, Ordering::Relaxed);
            });
        }
    });
    let count = count.into_inner().max(1);
    (time.raw() as f64 * threads as f64 / count as f64, count)
}
