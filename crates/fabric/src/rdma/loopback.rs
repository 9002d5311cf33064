//! Memory nodes in this process: what a memory node does, without a network.
//!
//! [`Memory`] is registered memory under keys, and carries works out: the simulator's nodes are made of it too. A
//! [`Node`] is one behind a lock; its endpoints do works where they are called, and so does its program what callers
//! ask. Memory outlives its users.

use super::call::{Caller, Callers, Serve};
use super::{Endpoint, Fabric, Key, Limits, Op, Posted, Remote, Work};
use cenote_base::rt::{HashMap, Mutex, MutexGuard};
use cenote_base::{Error, Result};
use core::fmt;
use core::ops::Range;
use std::sync::Arc;

mod calls;

/// What a memory node has registered, and what its network card does with it: the part that every simulation of one
/// shares. Plain state: its owner decides when works are carried out.
#[derive(Default)]
pub struct Memory {
    name: String,
    lost: bool,
    last_key: u64,
    by_key: HashMap<Key, Box<[u8]>>,
    /// Keys that only read, and whose memory.
    to_read: HashMap<Key, Key>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory node {} ({} registrations)", self.name, self.by_key.len())
    }
}

impl Memory {
    /// With nothing registered.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn next_key(&mut self) -> Key {
        self.last_key += 1;
        Key(self.last_key)
    }

    /// Registers `len` bytes of zeros.
    pub fn register(&mut self, len: u64) -> Remote {
        let key = self.next_key();
        self.by_key.insert(key, vec![0; len as usize].into());
        Remote { key, base: 0, len }
    }

    /// The memory of a registration gets another key; the former one ends, and those that read it. `None` if there is
    /// no such registration.
    pub fn register_anew(&mut self, key: Key) -> Option<Remote> {
        let bytes = self.by_key.remove(&key)?;
        self.to_read.retain(|_, of| *of != key);
        let (key, len) = (self.next_key(), bytes.len() as u64);
        self.by_key.insert(key, bytes);
        Some(Remote { key, base: 0, len })
    }

    /// A key under which the memory of a registration is read, and no more. `None` if there is no such registration.
    pub fn register_to_read(&mut self, of: Key) -> Option<Remote> {
        let len = self.by_key.get(&of)?.len() as u64;
        let key = self.next_key();
        self.to_read.insert(key, of);
        Some(Remote { key, base: 0, len })
    }

    /// Takes the right to a registration back; its memory is given up. Says whether there was one.
    pub fn revoke(&mut self, key: Key) -> bool {
        self.to_read.retain(|reads, of| *of != key && *reads != key);
        self.by_key.remove(&key).is_some()
    }

    /// The node is lost, with all that was registered.
    pub fn lose(&mut self) {
        self.lost = true;
        self.by_key.clear();
        self.to_read.clear();
    }

    /// Whether it is lost.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// The error of a lost node.
    pub fn gone(&self) -> Error {
        Error::Lost(format!("memory node {} is lost", self.name))
    }

    /// What the node's own processor sees of a registration.
    pub fn inspect(&mut self, key: Key) -> Option<&mut [u8]> {
        self.by_key.get_mut(&key).map(|bytes| &mut **bytes)
    }

    /// Does a work here and now: its result is set.
    pub fn carry_out(&mut self, work: &mut Work) {
        let whole = 0..work.op.bytes();
        work.result = self.carry_out_part(work, whole);
    }

    /// Does those bytes of a read or write that `part` says; an atomic whole. What the work's result shall be, once all
    /// of its parts are done.
    ///
    /// # Errors
    /// [`Error::Lost`] if the node is lost, [`Error::Revoked`] if the key has ended, [`Error::OutOfBounds`] or
    /// [`Error::Invalid`] as [`Work::check`] says.
    pub fn carry_out_part(&mut self, work: &mut Work, part: Range<u64>) -> Result<u64> {
        work.check()?;
        let key = self.key_of(work)?;
        let (from, to) = self.range(work, key)?;
        let memory = self.by_key.get_mut(&key).and_then(|m| m.get_mut(from..to));
        let memory = memory.expect("the range was checked");
        Ok(act(&mut work.op, memory, part.start as usize..part.end as usize))
    }

    /// Under which key the work's memory lies.
    fn key_of(&self, work: &Work) -> Result<Key> {
        let key = work.memory.key;
        match self.to_read.get(&key) {
            None => Ok(key),
            Some(of) if matches!(work.op, Op::Read(_)) => Ok(*of),
            Some(_) => Err(Error::Revoked(format!("{}: key {} only reads", self.name, key.0))),
        }
    }

    /// The work's bytes within its registration.
    fn range(&self, work: &Work, key: Key) -> Result<(usize, usize)> {
        if self.lost {
            return Err(self.gone());
        }
        let revoked = || Error::Revoked(format!("{}: no memory under key {}", self.name, key.0));
        let len = self.by_key.get(&key).ok_or_else(revoked)?.len() as u64;
        let from = work.memory.base.checked_add(work.at);
        let to = from.and_then(|f| f.checked_add(work.op.bytes()));
        match (from, to) {
            (Some(from), Some(to)) if to <= len => Ok((from as usize, to as usize)),
            _ => Err(Error::OutOfBounds(format!(
                "{}: {} bytes at {} of key {}, which has {len}",
                self.name,
                work.op.bytes(),
                work.at,
                key.0
            ))),
        }
    }
}

fn act(op: &mut Op, memory: &mut [u8], part: Range<usize>) -> u64 {
    match op {
        Op::Read(into) => into[part.clone()].copy_from_slice(&memory[part]),
        Op::Write(from) => memory[part.clone()].copy_from_slice(&from[part]),
        Op::CompareAndSwap { expected, new } => {
            return exchange(memory, |word| if word == *expected { *new } else { word });
        }
        Op::FetchAdd(add) => return exchange(memory, |word| word.wrapping_add(*add)),
    }
    op.bytes()
}

/// Replaces the word; the word before.
fn exchange(memory: &mut [u8], f: impl FnOnce(u64) -> u64) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(memory);
    let before = u64::from_le_bytes(bytes);
    memory.copy_from_slice(&f(before).to_le_bytes());
    before
}

/// A memory node in this process. Clones are the same node; its memory goes with the last of them.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    memory: Mutex<Memory>,
    program: Mutex<Option<Arc<dyn Serve>>>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.memory.lock().fmt(f)
    }
}

impl Node {
    /// With nothing registered.
    pub fn new(name: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            memory: Mutex::new(Memory::new(name)),
            program: Mutex::new(None),
        }))
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.0.memory.lock().name().to_owned()
    }

    /// What it has registered; nothing reaches it while it is held.
    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock()
    }

    /// Its program: what calls are for, in place of the one before. It is called where its callers post.
    pub fn serve(&self, program: Arc<dyn Serve>) {
        *self.0.program.lock() = Some(program);
    }

    /// A new connection to its program.
    ///
    /// # Errors
    /// [`Error::Lost`] if the node is.
    pub fn caller(&self) -> Result<Arc<dyn Caller>> {
        calls::Direct::connect(self)
    }

    fn program(&self) -> Option<Arc<dyn Serve>> {
        self.0.program.lock().clone()
    }

    /// An endpoint towards it that does works where it is called.
    pub fn endpoint(&self) -> Arc<dyn Endpoint> {
        Arc::new(Direct {
            peer: self.name(),
            node: self.clone(),
        })
    }
}

#[derive(Debug)]
struct Direct {
    peer: String,
    node: Node,
}

impl Endpoint for Direct {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn limits(&self) -> Limits {
        Limits {
            depth: 1024,
            transfer: 1 << 30,
        }
    }

    fn post(&self, mut works: Vec<Work>) -> Posted {
        let mut failed = None;
        for work in &mut works {
            match failed.clone().filter(|_| work.fenced) {
                Some(error) => work.result = Err(error),
                None => self.node.memory().carry_out(work),
            }
            failed = failed.or_else(|| work.result.clone().err());
        }
        Posted::done(works)
    }
}

/// The nodes of this process, by name.
#[derive(Debug, Default)]
pub struct Nodes(Mutex<Vec<Node>>);

impl Nodes {
    /// A new node; it replaces one of the same name.
    pub fn add(&self, name: &str) -> Node {
        let node = Node::new(name);
        let mut nodes = self.0.lock();
        nodes.retain(|n| n.name() != name);
        nodes.push(node.clone());
        node
    }
}

impl Nodes {
    fn find(&self, peer: &str) -> Result<Node> {
        let nodes = self.0.lock();
        match nodes.iter().find(|n| n.name() == peer) {
            Some(node) if node.memory().is_lost() => Err(node.memory().gone()),
            Some(node) => Ok(node.clone()),
            None => {
                let names: Vec<String> = nodes.iter().map(Node::name).collect();
                Err(Error::Invalid(format!(
                    "no memory node \"{peer}\"; there are: {}",
                    names.join(", ")
                )))
            }
        }
    }
}

impl Fabric for Nodes {
    fn connect(&self, peer: &str) -> Result<Arc<dyn Endpoint>> {
        Ok(self.find(peer)?.endpoint())
    }
}

impl Callers for Nodes {
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        self.find(peer)?.caller()
    }
}
