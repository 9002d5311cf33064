//! One-sided verbs over libfabric on this machine, beside libfabric's bare operations in the same run: the time of one,
//! and the rate of single ones and of batches of 16.
//!
//! `cargo run --release -p cenote-libfabric --example rdma [PROVIDER [SECONDS]]`: `tcp;ofi_rxm` and 0.3 a cell unless
//! told otherwise. Calls (requests and answers of so many bytes) stand beside a bare read of as many.
//!
//! The memory nodes are processes of their own: this program again, twice, since bare operations want memory that is
//! registered with the provider ([`Path::OneSided`]), and ours go the provider's default way.

use cenote_base::Result;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::rdma::call::{Answer, Call, CallerId, Callers};
use cenote_fabric::rdma::{Key, Remote, RemoteMemory, Work};
use cenote_libfabric::bare::{Bare, Operation};
use cenote_libfabric::{MemoryNode, Net, NetOptions, NodeAddress, NodeOptions, Path, Provider};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const MEMORY: u64 = 1 << 20;
const BATCH: usize = 16;
/// Each cell is measured so often and briefly, ours and bare in turn; the best counts: neighbours only ever take time.
const ROUNDS: usize = 30;

const CELLS: [(Operation, usize); 12] = [
    (Operation::Read, 8),
    (Operation::Read, 64),
    (Operation::Read, 512),
    (Operation::Read, 4096),
    (Operation::Read, 16384),
    (Operation::Write, 8),
    (Operation::Write, 64),
    (Operation::Write, 512),
    (Operation::Write, 4096),
    (Operation::Write, 16384),
    (Operation::CompareAndSwap, 8),
    (Operation::FetchAdd, 8),
];

/// Bytes of a call's request, and of its answer.
const CALLS: [usize; 3] = [64, 512, 4096];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, provider, path] = &arguments[..]
        && role == "node"
    {
        return serve(provider.parse()?, path);
    }
    let provider: Provider = arguments.first().map_or("tcp;ofi_rxm", String::as_str).parse()?;
    let seconds: f64 = arguments.get(1).and_then(|s| s.parse().ok()).unwrap_or(0.3);
    measure(&provider, seconds)
}

/// Is a memory node until its input ends.
fn serve(provider: Provider, path: &str) -> Result<()> {
    let path = Some(if path == "bare" {
        Path::OneSided
    } else {
        Path::of(&provider)
    });
    let node = MemoryNode::start(&NodeOptions {
        path,
        ..NodeOptions::new(provider)
    })?;
    node.serve(Arc::new(|_: CallerId, request: &[u8], answer: Answer| {
        answer.with(request)
    }));
    let memory = node.register(MEMORY)?;
    println!("{} {}", memory.key.0, node.address());
    let _ = std::io::stdin().lines().count();
    node.close();
    Ok(())
}

/// A memory node of another process; it ends when this does, by the end of its input.
struct Node {
    child: Child,
    address: NodeAddress,
    memory: Remote,
}

impl Node {
    #[allow(clippy::zombie_processes, reason = "waited for when the node is dropped")]
    fn start(provider: &Provider, path: &str) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["node", provider.name(), path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let mut line = String::new();
        let mut answers = BufReader::new(child.stdout.take().expect("piped"));
        answers.read_line(&mut line).expect("the node says where it is");
        let (key, address) = line.trim().split_once(' ').expect("key and address");
        let memory = Remote {
            key: Key(key.parse().expect("a key")),
            base: 0,
            len: MEMORY,
        };
        let address = address.parse()?;
        Ok(Self { child, address, memory })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Operations a second, `batch` at a time, for so long.
fn rate(seconds: f64, batch: usize, mut run: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let (start, mut done) = (rt::now(), 0);
    let end = start + Nanos((seconds * 1e9) as u64);
    while rt::now() < end {
        run(batch)?;
        done += batch;
    }
    Ok(done as f64 / rt::now().since(start).as_secs_f64())
}

fn work(memory: Remote, what: Operation, len: usize, index: usize) -> Work {
    let at = (index * len) as u64;
    match what {
        Operation::Read => Work::read(memory, at, vec![0; len].into()),
        Operation::Write => Work::write(memory, at, vec![1; len].into()),
        Operation::CompareAndSwap => Work::compare_and_swap(memory, at, 0, 0),
        _ => Work::fetch_add(memory, at, 1),
    }
}

fn measure(provider: &Provider, seconds: f64) -> Result<()> {
    let net = Net::new(NetOptions::default())?;
    let (ours, theirs) = (Node::start(provider, "default")?, Node::start(provider, "bare")?);
    let remote = RemoteMemory::new(net.connect_to(&ours.address)?, ours.memory);
    let bare = Bare::connect(&net, &theirs.address, theirs.memory)?;
    println!(
        "{provider} on this machine, path {:?}; best of {ROUNDS}; rates in 1000 a second",
        Path::of(provider)
    );
    println!(
        "{:18} {:>6} | {:>8} {:>8} {:>6} | {:>8} {:>8} {:>6} | {:>6} {:>6}",
        "", "bytes", "one, us", "bare", "ratio", "by 16", "bare", "ratio", "gain", "bare"
    );
    for (what, len) in CELLS {
        let run = |batch: usize| {
            let works = (0..batch).map(|i| work(ours.memory, what, len, i)).collect();
            let works = remote.endpoint().post(works).wait();
            works.into_iter().try_for_each(|w| w.result.map(|_| ()))
        };
        line(&format!("{what:?}"), len, cell(seconds, &bare, (what, len), run)?);
    }
    let caller = net.caller(&ours.address.to_string())?;
    for len in CALLS {
        let run = |batch: usize| {
            let calls = (0..batch).map(|_| Call::new(vec![1; len])).collect();
            let calls = caller.post(calls).wait();
            calls.into_iter().try_for_each(|c| c.into_answer().map(|_| ()))
        };
        line("Call", len, cell(seconds, &bare, (Operation::Read, len), run)?);
    }
    Ok(())
}

/// Ours and bare, one and by 16, in turn; the best rate of each.
fn cell(
    seconds: f64,
    bare: &Bare,
    (what, len): (Operation, usize),
    run: impl Fn(usize) -> Result<()> + Copy,
) -> Result<[f64; 4]> {
    let mut best = [0f64; 4];
    for _ in 0..ROUNDS {
        let of_bare = |batch| bare.run(what, len, batch);
        let part = seconds / ROUNDS as f64;
        let now = [
            rate(part, 1, run)?,
            rate(part, 1, of_bare)?,
            rate(part, BATCH, run)?,
            rate(part, BATCH, of_bare)?,
        ];
        best = core::array::from_fn(|i| best[i].max(now[i]));
    }
    Ok(best)
}

/// A ratio above 1: ours takes longer than bare.
fn line(what: &str, len: usize, [one, bare_one, many, bare_many]: [f64; 4]) {
    println!(
        "{:18} {len:>6} | {:>8.1} {:>8.1} {:>6.2} | {:>8.0} {:>8.0} {:>6.2} | {:>6.1} {:>6.1}",
        what,
        1e6 / one,
        1e6 / bare_one,
        bare_one / one,
        many / 1e3,
        bare_many / 1e3,
        bare_many / many,
        many / one,
        bare_many / bare_one,
    );
}
