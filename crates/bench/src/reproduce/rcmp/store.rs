//! What all systems are to their clients: bytes that are read and written, spread over the memory of all pods.

use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};

/// Bytes that lie together on one memory node: a page of the paper's 2 MB, as all data by 64. In the pool each has an
/// extent of its own.
pub const SEGMENT: u64 = 32 << 10;
/// What the first word of each such unit tells: the unit's number. So a read knows whether it brought what was asked
/// for.
pub const UNIT: u64 = 64;

/// Memory as the clients of one pod see it. Several threads use it at once.
pub trait Store: Send + Sync {
    /// Fills `into` from `at` on.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;

    /// Writes `from` at `at`.
    fn write(&self, at: u64, from: &[u8]) -> Result<()>;

    /// Reads at many places, as much at once as the system can.
    fn read_many(&self, at: &[u64], into: &mut [Vec<u8>]) -> Result<()> {
        at.iter().zip(into).try_for_each(|(at, into)| self.read(*at, into))
    }

    /// Writes at many places of one segment, as client `client` of this pod, with the segment's lock held to write;
    /// collected by the lock's write buffer, or not.
    fn write_locked(&self, client: usize, at: &[u64], from: &[u8], is_buffered: bool) -> Result<()> {
        let _ = (client, at, from, is_buffered);
        Err(Error::Invalid("this system has no locks".into()))
    }

    /// What is to be known of it after a run, in a word or two a number.
    fn tells(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Where bytes lie: segments go around the pods first, then around the memory nodes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Pods.
    pub pods: usize,
    /// Memory nodes, and programs that serve, of each.
    pub servers: usize,
    /// Bytes in all; a multiple of [`SEGMENT`] times the nodes.
    pub bytes: u64,
}

/// A place on a memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The node's number: `server * pods + pod`.
    pub lane: usize,
    /// Where in its memory.
    pub at: u64,
}

impl Layout {
    /// Memory nodes in all.
    pub fn lanes(&self) -> usize {
        self.pods * self.servers
    }

    /// Bytes of one node.
    pub fn lane_bytes(&self) -> u64 {
        self.bytes / self.lanes() as u64
    }

    /// The pod of a node.
    pub fn pod(&self, lane: usize) -> usize {
        lane % self.pods
    }

    /// Nodes of a pod.
    pub fn of_pod(&self, pod: usize) -> impl Iterator<Item = usize> + use<> {
        let Layout { pods, servers, .. } = *self;
        (0..servers).map(move |server| server * pods + pod)
    }

    /// Where a byte lies.
    pub fn place(&self, at: u64) -> Place {
        let (segment, inside) = (at / SEGMENT, at % SEGMENT);
        let lanes = self.lanes() as u64;
        Place {
            lane: (segment % lanes) as usize,
            at: segment / lanes * SEGMENT + inside,
        }
    }

    /// The byte that lies there.
    pub fn at(&self, place: Place) -> u64 {
        let (row, inside) = (place.at / SEGMENT, place.at % SEGMENT);
        (row * self.lanes() as u64 + place.lane as u64) * SEGMENT + inside
    }
}

/// What is in memory from `at` on, before the first write: each unit begins with its number.
pub fn fill(at: u64, into: &mut [u8]) {
    for (n, unit) in (0..).zip(into.chunks_mut(UNIT as usize)) {
        unit.fill(0);
        unit[..8].copy_from_slice(&(at / UNIT + n).to_le_bytes());
    }
}

/// Processor time, beside what memory and network take. The same for all systems, and none of it from the paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// A library's work for an access: look-up and checks. (Measured of `cenote_space`: 90 instructions at 0.7 ns.)
    pub access: Nanos,
    /// Half of what it takes to serve a message: to take one, or to send one. (Assumed; `cenote_sim::rdma::Serving`.)
    pub message: Nanos,
    /// A page fault without the page's transfer: exception, swap entry, page, mapping. (Assumed.)
    pub fault: Nanos,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            access: Nanos(60),
            message: Nanos(300),
            fault: Nanos(3000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_bytes_are_each_others() {
        let layout = Layout {
            pods: 2,
            servers: 3,
            bytes: 12 * SEGMENT,
        };
        for at in [0, 5, SEGMENT, 7 * SEGMENT + 9, 12 * SEGMENT - 1] {
            let place = layout.place(at);
            assert!(place.at < layout.lane_bytes() && layout.at(place) == at);
        }
        assert_eq!(layout.pod(layout.place(SEGMENT).lane), 1);
        assert_eq!(layout.of_pod(1).collect::<Vec<_>>(), [1, 3, 5]);
    }
}
