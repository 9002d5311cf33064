//! Rings beside parts: members of this machine ask for extents there, by [calls](cenote_fabric::ring), and not over
//! their connections.
//!
//! A ring is a file of its own for each part (`DIR/ring-7`), so tenants share none. It is made anew by each start, and
//! goes with its part. What cannot be had of it (no memory, no free seat) is asked over the connection, as by members
//! of other machines. One of a fixed number of threads serves it: what rings are asked is short, and waits for a part's
//! keeper at most.
//!
//! A seat is a member's while the connection lasts over which it was given, and is another's only when that process has
//! left it or has ended.

use super::NodeState;
use super::directory::{numbered, remove_file};
use super::parts::Kept;
use crate::grant_table::GrantId;
use crate::host::{Host, Process};
use crate::member::{MemberId, MemberReply, MemberRequest, RingSeat};
use crate::wire::PartOrder;
use cenote_base::crc::crc32c;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{HashMap, Mutex};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, CallerId, Serve};
use cenote_fabric::ring::{Node, Options, Servers};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

const PREFIX: &str = "ring-";
/// Of a process's number and its start in a word: the kernel's numbers have 22 bits at most.
const START_BITS: u32 = 42;
const _: () = assert!(START_BITS + 22 == u64::BITS, "a process's number and start fill a word");

/// What all rings of a node have in common: whose seat is whose.
pub(super) struct Rings {
    node: OnceLock<Weak<NodeState>>,
    host: Arc<dyn Host>,
    seated: Mutex<HashMap<u64, Seated>>,
    servers: Servers,
}

/// A member, and which of its connections.
type Asker = (MemberId, u64);

/// The member that has a seat, and its part.
struct Seated {
    asker: Asker,
    kept: Weak<Kept>,
}

/// A part's ring, if it has one.
pub(super) struct PartRing {
    path: PathBuf,
    node: Mutex<Option<Node>>,
    /// It ends: what was asked may be done still.
    is_closing: AtomicBool,
}

/// A member's place at a ring.
pub(super) struct RingPlace {
    rings: Arc<Rings>,
    ring: Arc<PartRing>,
    caller: CallerId,
}

impl RingPlace {
    /// No request of it is begun to be served from here on.
    pub(super) fn dismiss(&self) {
        if let Some(node) = &*self.ring.node.lock() {
            node.dismiss(self.caller);
        }
        self.rings.seated.lock().remove(&self.caller.0);
    }

    /// Whether nothing that was asked from it is being done, or will be. Once it was dismissed, that
    /// stays so.
    pub(super) fn is_quiet(&self) -> bool {
        !match &*self.ring.node.lock() {
            Some(node) => node.is_serving(self.caller),
            None => self.ring.is_closing.load(Ordering::Acquire),
        }
    }
}

fn ring_path(directory: &Path, grant: GrantId) -> PathBuf {
    directory.join(format!("{PREFIX}{grant}"))
}

/// Removes what former processes have left.
pub(super) fn remove_former(directory: &Path) -> Result<()> {
    let grants = numbered(directory, PREFIX)?;
    grants
        .into_iter()
        .try_for_each(|grant| remove_file(&ring_path(directory, grant)))
}

fn word_of(process: Process) -> u64 {
    (process.pid as u64) << START_BITS | process.start & ((1 << START_BITS) - 1)
}

fn process_of(word: u64) -> Process {
    Process {
        pid: (word >> START_BITS) as i32,
        start: word & ((1 << START_BITS) - 1),
    }
}

impl Rings {
    /// With so many threads.
    pub(super) fn new(host: &Arc<dyn Host>, threads: usize) -> Result<Self> {
        Ok(Self {
            node: OnceLock::new(),
            host: Arc::clone(host),
            seated: Mutex::default(),
            servers: Servers::new(threads, Options::default().spin)?,
        })
    }

    /// From here on, members are heard.
    pub(super) fn serve(&self, node: &Arc<NodeState>) {
        // Once for each node.
        self.node.set(Arc::downgrade(node)).ok();
    }

    /// A part's ring; without one it is kept all the same.
    pub(super) fn start(self: &Arc<Self>, directory: &Path, order: &PartOrder) -> Arc<PartRing> {
        let host = Arc::clone(&self.host);
        let options = Options {
            tenant: crc32c(order.tenant.as_bytes()),
            is_there: Arc::new(move |word| host.is_there(process_of(word))),
            ..Options::default()
        };
        let path = ring_path(directory, order.grant);
        let node = Node::start_with(&path, options, Arc::clone(self) as _, &self.servers);
        if let Err(error) = &node {
            eprintln!("cenote: memory node: {error}; members go without a ring");
        }
        Arc::new(PartRing {
            path,
            node: Mutex::new(node.ok()),
            is_closing: AtomicBool::new(false),
        })
    }

    /// A place for a member at a part's ring; `None`: it has none, or all are taken.
    pub(super) fn seat(
        self: &Arc<Self>,
        kept: &Arc<Kept>,
        process: Process,
        asker: Asker,
    ) -> Option<(RingPlace, RingSeat)> {
        let seat = kept.ring.node.lock().as_ref()?.admit(word_of(process)).ok()?;
        let seated = Seated {
            asker,
            kept: Arc::downgrade(kept),
        };
        self.seated.lock().insert(seat.caller, seated);
        let place = RingPlace {
            rings: Arc::clone(self),
            ring: Arc::clone(&kept.ring),
            caller: CallerId(seat.caller),
        };
        Some((place, RingSeat::new(&kept.ring.path, seat)))
    }

    /// The node, and the member that asks.
    fn find(&self, caller: CallerId) -> Result<(Arc<NodeState>, Asker)> {
        let seated = self.seated.lock();
        let seated = seated
            .get(&caller.0)
            .filter(|seated| seated.kept.strong_count() > 0)
            .map(|seated| seated.asker);
        match (self.node.get().and_then(Weak::upgrade), seated) {
            (Some(node), Some(asker)) => Ok((node, asker)),
            _ => Err(Error::Revoked("this seat belongs to no member any more".into())),
        }
    }

    /// Asks this node.
    fn ask(&self, caller: CallerId, request: &[u8]) -> Result<Vec<u8>> {
        let (node, (member, turn)) = self.find(caller)?;
        let request: MemberRequest =
            serde_json::from_slice(request).map_err(|error| Error::corrupt(format!("a request: {error}")))?;
        if !request.is_for_ring() {
            return Err(Error::Invalid("this is asked over the member's connection".into()));
        }
        let reply = node.attend(member, turn, || node.ask_of_member(member, turn, request));
        let reply = reply.unwrap_or_else(|error| MemberReply::Failed(error.into()));
        serde_json::to_vec(&reply).map_err(|error| Error::Invalid(format!("an answer that cannot be written: {error}")))
    }
}

impl Serve for Rings {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        match self.ask(caller, request) {
            Ok(reply) => answer.with(&reply),
            Err(error) => answer.fail(error),
        }
    }
}

impl PartRing {
    /// Ends it, and removes its file.
    pub(super) fn close(&self) {
        let node = {
            let mut node = self.node.lock();
            self.is_closing.fetch_or(node.is_some(), Ordering::AcqRel);
            node.take()
        };
        // Not with the lock held: the serving thread may be dismissing a member.
        if node.is_some() {
            drop(node);
            remove_file(&self.path).ok();
            self.is_closing.store(false, Ordering::Release);
        }
    }
}

impl Drop for PartRing {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_fits_into_a_word() {
        for (pid, start) in [(1, 0), (4_194_303, 1 << 41), (77, 123_456_789)] {
            let process = Process { pid, start };
            assert_eq!(process_of(word_of(process)), process);
        }
        assert_eq!(process_of(word_of(Process::this())), Process::this());
    }
}
