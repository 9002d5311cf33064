//! Ways to bring bytes from another pod's program, by size (Rcmp, section 5.5): one server thread, several clients.
//!
//! ```text
//!   pure RPC          call ─► the program copies the bytes into its answer ─► the client copies them out
//!   RPC + one-sided   call ─► the program says where they are ─► one-sided read of them
//!   zero-copy         call with the client's buffer ─► the program's card writes them there
//!                     ─► the client finds the call's number at their end
//! ```
//!
//! That a written buffer is whole when its last word is there is what real cards do, and what Rcmp relies on; so do the
//! simulated ones as long as no faults are asked for.

use super::rig::{LOCAL, NETWORK, impossible, machinery};
use super::store::Costs;
use crate::{Error, Result};
use cenote_base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use cenote_base::rt::{self, Nanos};
use cenote_fabric::profile::{self, Profile};
use cenote_fabric::rdma::call::{Answer, Call, Caller, CallerId, Callers, Serve};
use cenote_fabric::rdma::{Endpoint, Fabric, Remote, Work};
use cenote_sim::rdma::{MemoryNode, Network, Serving};
use cenote_sim::{Exit, Pace, Topology, World};
use std::sync::Arc;

/// How bytes come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the answer.
    Rpc,
    /// By a read after the answer.
    OneSided,
    /// By a write into the client's buffer.
    ZeroCopy,
}

impl Mode {
    /// All.
    pub const ALL: [Mode; 3] = [Mode::Rpc, Mode::OneSided, Mode::ZeroCopy];

    /// For tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Rpc => "pure RPC",
            Mode::OneSided => "RPC + one-sided",
            Mode::ZeroCopy => "zero-copy",
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Speed {
    /// Operations a second of all clients.
    pub rate: f64,
    /// Mean latency.
    pub mean_us: f64,
}

const DATA: u64 = 1 << 20;

/// The server's memory, and how it reaches clients' buffers.
struct Program {
    node: MemoryNode,
    data: Remote,
    buffers: Remote,
    to_clients: Arc<dyn Endpoint>,
    memory: Profile,
}

/// A request: mode u64 | at u64 | bytes u64 | buffer u64 | number u64.
fn words(request: &[u8]) -> [u64; 5] {
    core::array::from_fn(|n| {
        let word = request.get(8 * n..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u64::from_le_bytes(*word))
    })
}

impl Program {
    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let range = at as usize..(at + len) as usize;
        self.node
            .inspect(self.data.key, |bytes| bytes[range].to_vec())
            .unwrap_or_default()
    }
}

impl Serve for Program {
    fn serve(&self, _: CallerId, request: &[u8], mut answer: Answer) {
        let [mode, at, len, buffer, number] = words(request);
        match mode {
            0 => {
                rt::spend(Nanos(self.memory.read_time(len) as u64));
                *answer.bytes() = self.bytes(at, len);
            }
            1 => answer.bytes().extend_from_slice(&at.to_le_bytes()),
            _ => {
                let mut bytes = self.bytes(at, len);
                bytes.extend_from_slice(&number.to_le_bytes());
                // This thread does not wait for it: the client sees it come.
                drop(
                    self.to_clients
                        .post(vec![Work::write(self.buffers, buffer, bytes.into())]),
                );
            }
        }
        answer.send();
    }
}

/// One client.
struct Asker {
    caller: Arc<dyn Caller>,
    endpoint: Arc<dyn Endpoint>,
    data: Remote,
    buffers: (MemoryNode, Remote),
    buffer: u64,
    number: u64,
    memory: Profile,
}

impl Asker {
    fn ask(&mut self, mode: Mode, at: u64, len: u64) -> cenote_base::Result<Vec<u8>> {
        self.number += 1;
        let words = [mode as u64, at, len, self.buffer, self.number];
        let request: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let call = self.caller.post(vec![Call::new(request)]).wait().pop();
        let call = call.ok_or_else(|| cenote_base::Error::Invalid("a caller lost a call".into()))?;
        let answer = call.into_answer()?;
        match mode {
            Mode::Rpc => {
                rt::spend(Nanos(self.memory.write_time(len) as u64));
                Ok(answer)
            }
            Mode::OneSided => {
                let read = Work::read(self.data, at, vec![0; len as usize].into());
                let work = self.endpoint.post(vec![read]).wait().pop();
                let work = work.ok_or_else(|| cenote_base::Error::Invalid("an endpoint lost a work".into()))?;
                Ok(work.into_bytes()?.into_vec())
            }
            Mode::ZeroCopy => Ok(self.watch(len)),
        }
    }

    /// Looks at the buffer's end until this call's number is there.
    fn watch(&self, len: u64) -> Vec<u8> {
        let (node, remote) = &self.buffers;
        let range = self.buffer as usize..(self.buffer + len) as usize;
        loop {
            let look = |bytes: &mut [u8]| {
                let number = bytes[range.end..]
                    .first_chunk()
                    .map_or(0, |word| u64::from_le_bytes(*word));
                (number == self.number).then(|| bytes[range.clone()].to_vec())
            };
            if let Some(bytes) = node.inspect(remote.key, look).flatten() {
                return bytes;
            }
            rt::spend(Nanos(50));
            rt::preempt();
        }
    }
}

/// Room for a client's buffer.
const BUFFER: u64 = 128 << 10;

/// Runs so many clients in one mode.
///
/// # Errors
/// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn run(mode: Mode, len: u64, clients: u64, window: Nanos, seed: u64) -> Result<Speed> {
    let profile = profile::named(NETWORK).map_err(impossible)?;
    let memory = profile::named(LOCAL).map_err(impossible)?;
    let world = World::new(seed, Pace::Project, Topology::hosts(2, 80)).map_err(impossible)?;
    let done = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let counted = Arc::clone(&done);
    let exits = world.with_machinery(machinery()).run(|w| {
        let network = Network::new(&profile, seed);
        let (server, buffers) = (network.add_node("server"), network.add_node("clients"));
        let (data, room) = (server.register(DATA), buffers.register(BUFFER * clients));
        server.inspect(data.key, |bytes| super::store::fill(0, bytes));
        let program = Program {
            node: server.clone(),
            data,
            buffers: room,
            to_clients: network.port(1).connect("clients").expect("the node is there"),
            memory: memory.clone(),
        };
        let theirs = server.clone();
        let cost = Costs::default().message;
        let serving = Serving {
            cost: cost + cost,
            ..Serving::default()
        };
        let daemon = w.process(1, "server", move || theirs.serve(&program, serving));
        while !server.is_served() {
            rt::sleep(Nanos::from_micros(1));
        }
        let begin = rt::now() + Nanos::from_micros(200);
        let client = |n: u64| {
            let port = network.port(0);
            let mut asker = Asker {
                caller: port.caller("server").expect("it serves"),
                endpoint: port.connect("server").expect("the node is there"),
                data,
                buffers: (buffers.clone(), room),
                buffer: n * BUFFER,
                number: 0,
                memory: memory.clone(),
            };
            let counted = Arc::clone(&counted);
            w.process(0, "client", move || {
                ask_on(&mut asker, mode, len, (begin, begin + window), &counted);
            })
        };
        let clients: Vec<_> = (0..clients).map(client).collect();
        let exits: Vec<Exit> = clients.iter().map(cenote_sim::Process::join).collect();
        server.lose();
        daemon.join();
        exits
    });
    match exits.value.into_iter().find(|exit| *exit != Exit::Returned) {
        Some(exit) => Err(Error::Simulation(format!(
            "{}: a client has ended: {exit:?}",
            mode.name()
        ))),
        None => {
            let (operations, nanos) = (done.0.load(SeqCst) as f64, done.1.load(SeqCst) as f64);
            Ok(Speed {
                rate: operations / window.as_secs_f64(),
                mean_us: nanos / operations / 1e3,
            })
        }
    }
}

/// Operations, and nanoseconds that they took.
type Done = (AtomicU64, AtomicU64);

fn ask_on(asker: &mut Asker, mode: Mode, len: u64, window: (Nanos, Nanos), done: &Done) {
    let places = (DATA - len) / super::store::UNIT;
    let mut before = rt::now();
    while before < window.1 {
        let unit = (asker.number * 7919 + asker.buffer) % (places + 1);
        let bytes = asker
            .ask(mode, unit * super::store::UNIT, len)
            .expect("nothing fails here");
        let first = bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
        assert_eq!((first, bytes.len() as u64), (Some(unit), len), "other bytes came");
        let now = rt::now();
        if now >= window.0 && now < window.1 {
            done.0.fetch_add(1, SeqCst);
            done.1.fetch_add(now.since(before).raw(), SeqCst);
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_brings_the_bytes_and_runs_the_same_twice() {
        for mode in Mode::ALL {
            for len in [64, 4096, 65_536] {
                let once = run(mode, len, 3, Nanos::from_micros(300), 5).expect("a run");
                assert!(once.rate > 1000.0, "{mode:?}, {len} bytes: {once:?}");
                assert_eq!(
                    once,
                    run(mode, len, 3, Nanos::from_micros(300), 5).expect("a run"),
                    "{mode:?}"
                );
            }
        }
    }
}
