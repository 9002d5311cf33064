//! Objects, as FaRM (NSDI 2014) has them: a read is one one-sided read, checked by versions; a write is a message to
//! the object's node.
//!
//! ```text
//!   a line of 64 B:  version 8 | data 56        version odd: it is being written. One version for all of an object.
//!
//!   read   one-sided: all lines. A version that is odd, or not that of the first: again.
//!   write  message: the node makes all versions odd, writes, makes them even
//! ```
//!
//! Where an object is, every client knows. In its favour: a write is one message that locks, writes and unlocks at its
//! only node, where FaRM's transactions have a phase more; there are no replicas and no log.

use super::rig::{LOCAL, Rig, name};
use super::store::{Costs, Layout, Place, Store, fill};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::profile;
use cenote_fabric::rdma::call::{Answer, Caller, CallerId, Callers, Serve};
use cenote_fabric::rdma::{Endpoint, Fabric, Key, Remote, Work};
use cenote_sim::rdma::MemoryNode;
use std::sync::Arc;

const LINE: usize = 64;
const DATA: usize = LINE - 8;

/// Lines of an object of so many bytes.
fn lines(object: u64) -> u64 {
    object.div_ceil(DATA as u64)
}

/// Bytes that it takes on its node.
fn stride(object: u64) -> u64 {
    lines(object) * LINE as u64
}

/// Puts data into lines of one version.
fn pack(version: u64, data: &[u8], into: &mut [u8]) {
    for (line, data) in into.chunks_mut(LINE).zip(data.chunks(DATA)) {
        line[..8].copy_from_slice(&version.to_le_bytes());
        line[8..8 + data.len()].copy_from_slice(data);
    }
}

fn version(line: &[u8]) -> u64 {
    line.first_chunk().map_or(1, |word| u64::from_le_bytes(*word))
}

/// Takes data out of lines, if they are of one even version.
fn unpack(bytes: &[u8], into: &mut [u8]) -> bool {
    let first = version(bytes);
    for (line, into) in bytes.chunks(LINE).zip(into.chunks_mut(DATA)) {
        if version(line) != first || first % 2 == 1 {
            return false;
        }
        into.copy_from_slice(&line[8..8 + into.len()]);
    }
    true
}

/// The program of a node: writes objects.
struct Writer {
    node: MemoryNode,
    key: Key,
    stride: u64,
    copy: Nanos,
}

/// Starts the programs of a pod's nodes.
pub fn serve(rig: &Rig, pod: usize) {
    let (layout, object) = (rig.shape.layout, rig.shape.object);
    let memory = profile::named(LOCAL).expect("a built-in profile");
    for lane in layout.of_pod(pod) {
        let bytes = layout.lane_bytes() / object * stride(object);
        rig.register(lane, bytes, |bytes| fill_objects(layout, lane, object, bytes));
        let writer = Writer {
            node: rig.nodes[lane].clone(),
            key: rig.remote(lane).key,
            stride: stride(object),
            copy: Nanos(memory.write_time(stride(object)) as u64),
        };
        rig.serve(&rig.nodes[lane], Arc::new(writer));
    }
}

fn fill_objects(layout: Layout, lane: usize, object: u64, bytes: &mut [u8]) {
    let mut data = vec![0; object as usize];
    for (n, lines) in (0..).zip(bytes.chunks_mut(stride(object) as usize)) {
        fill(layout.at(Place { lane, at: n * object }), &mut data);
        pack(0, &data, lines);
    }
}

impl Writer {
    fn set_version(&self, at: u64, f: impl Fn(u64) -> u64) {
        self.change(at, |lines| {
            for line in lines.chunks_mut(LINE) {
                let next = f(version(line));
                line[..8].copy_from_slice(&next.to_le_bytes());
            }
        });
    }

    fn change(&self, at: u64, f: impl FnOnce(&mut [u8])) {
        let range = at as usize..(at + self.stride) as usize;
        self.node.inspect(self.key, |bytes| f(&mut bytes[range]));
    }

    fn write(&self, request: &[u8]) -> Result<()> {
        let (at, data) = request.split_first_chunk().ok_or_else(|| Error::corrupt("a write"))?;
        let at = u64::from_le_bytes(*at);
        self.set_version(at, |version| version + 1);
        rt::spend(self.copy);
        self.change(at, |lines| pack(version(lines), data, lines));
        self.set_version(at, |version| version + 1);
        Ok(())
    }
}

impl Serve for Writer {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        match self.write(request) {
            Ok(()) => answer.send(),
            Err(error) => answer.fail(error),
        }
    }
}

/// All objects, as a pod's clients see them.
pub struct Objects {
    layout: Layout,
    object: u64,
    costs: Costs,
    ways: Vec<Channel>,
}

struct Channel {
    endpoint: Arc<dyn Endpoint>,
    caller: Arc<dyn Caller>,
    memory: Remote,
}

/// Opens them.
pub fn open(rig: &Rig, pod: usize) -> Objects {
    let port = rig.network.port(pod);
    let way = |lane: usize| Channel {
        endpoint: port.connect(&name(lane)).expect("the node is there"),
        caller: port.caller(&name(lane)).expect("the node serves"),
        memory: rig.remote(lane),
    };
    Objects {
        layout: rig.shape.layout,
        object: rig.shape.object,
        costs: rig.costs,
        ways: (0..rig.shape.layout.lanes()).map(way).collect(),
    }
}

impl Objects {
    /// Where the object at `at` lies.
    fn find(&self, at: u64, len: usize) -> Result<(&Channel, u64)> {
        if !at.is_multiple_of(self.object) || len as u64 != self.object {
            return Err(Error::Invalid(format!(
                "{len} bytes at {at}: objects have {} bytes",
                self.object
            )));
        }
        let place = self.layout.place(at);
        Ok((&self.ways[place.lane], place.at / self.object * stride(self.object)))
    }

    fn read_work(&self, at: u64) -> Result<(&Channel, Work)> {
        let (way, place) = self.find(at, self.object as usize)?;
        let buffer = vec![0; stride(self.object) as usize];
        Ok((way, Work::read(way.memory, place, buffer.into())))
    }
}

impl Store for Objects {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        rt::spend(self.costs.access);
        self.find(at, into.len())?;
        loop {
            let (way, work) = self.read_work(at)?;
            let work = way.endpoint.post(vec![work]).wait().pop();
            let work = work.ok_or_else(|| Error::Invalid("an endpoint lost a work".into()))?;
            if unpack(&work.into_bytes()?, into) {
                return Ok(());
            }
        }
    }

    fn read_many(&self, at: &[u64], into: &mut [Vec<u8>]) -> Result<()> {
        let mut works: Vec<Vec<(usize, Work)>> = self.ways.iter().map(|_| Vec::new()).collect();
        for (n, at) in at.iter().enumerate() {
            rt::spend(self.costs.access);
            works[self.layout.place(*at).lane].push((n, self.read_work(*at)?.1));
        }
        let post = |(way, works): (&Channel, Vec<(usize, Work)>)| {
            let (places, works): (Vec<usize>, Vec<Work>) = works.into_iter().unzip();
            (places, way.endpoint.post(works))
        };
        let posted: Vec<_> = self.ways.iter().zip(works).map(post).collect();
        for (places, posted) in posted {
            for (n, work) in places.into_iter().zip(posted.wait()) {
                if !unpack(&work.into_bytes()?, &mut into[n]) {
                    self.read(at[n], &mut into[n])?;
                }
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        rt::spend(self.costs.access);
        let (way, place) = self.find(at, from.len())?;
        let mut request = place.to_le_bytes().to_vec();
        request.extend_from_slice(from);
        way.caller.call(&request, &mut Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_or_locked_object_is_told() {
        let data: Vec<u8> = (0..100).collect();
        let mut lines = vec![0; stride(100) as usize];
        let mut back = vec![0; 100];
        pack(4, &data, &mut lines);
        assert!(unpack(&lines, &mut back) && back == data);
        lines[64] = 6;
        assert!(!unpack(&lines, &mut back), "two versions");
        pack(5, &data, &mut lines);
        assert!(!unpack(&lines, &mut back), "being written");
    }
}
