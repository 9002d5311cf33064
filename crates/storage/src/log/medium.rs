//! Where the durable part of the log lies: in segment files of this host, or on storage nodes.
//!
//! Nodes take bytes of the stream, not blocks: nothing is padded, prepared or recycled from here. What was acknowledged
//! once is sent again after an answer that did not come; the nodes know it by its position.

use std::sync::Arc;

use cenote_base::error::IoContext;
use cenote_base::rt::Mutex;
use cenote_base::rt::fs::{self, IoRequest};
use cenote_base::{Lsn, Result};

use super::read_ahead::ReadAhead;
use super::ring::Ring;
use super::segments::{Segments, read_files};
use crate::nodes::{LogEnd, StorageNodes};
use crate::reads::whole;

/// The durable log.
pub(super) enum Medium {
    Files(Segments),
    Nodes(NodeLog),
}

/// Storage nodes as a log.
pub(super) struct NodeLog {
    pub nodes: Arc<dyn StorageNodes>,
    /// What the log's users pace themselves by; nodes have segments of their own.
    pub segment_bytes: u64,
    /// Between the ring and the network; the lead's.
    staging: Mutex<Vec<u8>>,
}

/// Bytes that are sent to nodes at a time: what a start may have to take back is bounded by it.
pub(crate) const NODE_BATCH: u64 = 4 << 20;

impl NodeLog {
    pub fn new(nodes: Arc<dyn StorageNodes>, segment_bytes: u64) -> NodeLog {
        NodeLog {
            nodes,
            segment_bytes,
            staging: Mutex::default(),
        }
    }

    /// Sends the groups from `from` to the end that is given.
    pub fn append(&self, from: Lsn, end: LogEnd, ring: &Ring) -> Result<()> {
        let mut staging = self.staging.lock();
        staging.resize(end.end.since(from) as usize, 0);
        ring.read(from, &mut staging);
        self.nodes.append(from, &staging, end)
    }
}

impl Medium {
    /// The files, where they are.
    pub fn files(&self) -> Option<&Segments> {
        match self {
            Medium::Files(segments) => Some(segments),
            Medium::Nodes(_) => None,
        }
    }

    pub fn segment_bytes(&self) -> u64 {
        match self {
            Medium::Files(segments) => segments.payload(),
            Medium::Nodes(log) => log.segment_bytes,
        }
    }

    /// What it is called, for people.
    pub fn name(&self) -> String {
        match self {
            Medium::Files(segments) => segments.dir().display().to_string(),
            Medium::Nodes(log) => log.nodes.name(),
        }
    }

    /// Where position `at` lies, for people.
    pub fn place(&self, at: Lsn) -> String {
        match self {
            Medium::Files(segments) => segments.place(at),
            Medium::Nodes(log) => log.nodes.name(),
        }
    }

    /// Fills as much of `buffer` from `at` on as there is.
    pub fn read(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Medium::Files(segments) => read_files(segments, at, buffer),
            Medium::Nodes(log) => log.nodes.read_log(at, buffer),
        }
    }

    /// As [`Medium::read`], for a scan that goes on to `until`.
    pub fn read_on(&self, ahead: &mut ReadAhead, at: Lsn, until: Lsn, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Medium::Files(segments) => ahead.read(segments, at, until, buffer),
            Medium::Nodes(_) => {
                let length = buffer.len().min(until.since(at) as usize);
                self.read(at, &mut buffer[..length])
            }
        }
    }

    /// The part of a stretch around position `near` that one read can bring.
    pub fn within(&self, near: Lsn, from: Lsn, to: Lsn) -> (Lsn, Lsn) {
        match self {
            Medium::Files(segments) => {
                let number = segments.number_of(near);
                (
                    from.max(segments.start_of(number)),
                    to.min(segments.start_of(number + 1)),
                )
            }
            Medium::Nodes(_) => (from, to),
        }
    }

    /// Reads stretches, side by side where that can be: what there is of each, with its position.
    pub fn read_runs(&self, runs: &[(Lsn, usize)]) -> Result<Vec<(Lsn, Box<[u8]>)>> {
        let segments = match self {
            Medium::Files(segments) => segments,
            Medium::Nodes(log) => return runs.iter().map(|run| read_run(log, *run)).collect(),
        };
        let mut requests = Vec::new();
        for (at, wanted) in runs {
            if let Some((file, offset, length)) = segments.locate(*at, *wanted)? {
                requests.push(IoRequest::read(file, offset, vec![0; length].into(), at.raw()));
            }
        }
        let arrived = |request: IoRequest| {
            let at = Lsn::from_raw(request.tag);
            let bytes = whole(request).doing(|| format!("reading log {}", segments.place(at)))?;
            Ok((at, bytes))
        };
        fs::submit(requests).complete().into_iter().map(arrived).collect()
    }
}

fn read_run(log: &NodeLog, (at, wanted): (Lsn, usize)) -> Result<(Lsn, Box<[u8]>)> {
    let mut bytes = vec![0; wanted];
    let length = log.nodes.read_log(at, &mut bytes)?;
    bytes.truncate(length);
    Ok((at, bytes.into()))
}
