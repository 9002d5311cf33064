//! The ways to the parts of remote memory, and works that go to several of them.

use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::{Key, Posted, Remote, RemoteMemory, Work};

use super::layout::Part;

/// What failed, and in which part of remote memory.
#[derive(Debug)]
pub struct Failure {
    pub part: Part,
    /// Over which way, by its key; none: there was none.
    pub way: Option<Key>,
    pub error: Error,
}

impl Failure {
    /// The slab that failed; none: all of remote memory did.
    pub fn slab(&self) -> Option<u32> {
        match self.part {
            Part::First => None,
            Part::Slab(slab) => Some(slab),
        }
    }

    /// In the first part.
    pub fn of_first(error: Error) -> Self {
        Self {
            part: Part::First,
            way: None,
            error,
        }
    }
}

/// The ways to the parts.
pub struct Ways {
    first: RemoteMemory,
    slabs: Mutex<Vec<Option<RemoteMemory>>>,
}

impl Ways {
    /// To the first part, and to none of `most` slabs.
    pub fn new(first: RemoteMemory, most: u32) -> Self {
        let slabs = Mutex::new((0..most).map(|_| None).collect());
        Self { first, slabs }
    }

    /// The way to the first part.
    pub fn first(&self) -> &RemoteMemory {
        &self.first
    }

    /// The way to a slab, if there is one.
    pub fn slab(&self, slab: u32) -> Option<RemoteMemory> {
        self.slabs.lock().get(slab as usize)?.clone()
    }

    /// From here on this is the way to a slab, or there is none.
    pub fn set(&self, slab: u32, way: Option<RemoteMemory>) {
        let mut slabs = self.slabs.lock();
        assert!((slab as usize) < slabs.len(), "slab {slab} is one of {}", slabs.len());
        slabs[slab as usize] = way;
    }

    /// Whether this is the way to a slab.
    pub fn is_way(&self, slab: u32, key: Key) -> bool {
        self.slab(slab).is_some_and(|way| way.memory().key == key)
    }

    /// There is no way to a slab, if this was it.
    pub fn drop_way(&self, slab: u32, key: Key) {
        let mut slabs = self.slabs.lock();
        if let Some(way) = slabs.get_mut(slab as usize)
            && way.as_ref().is_some_and(|way| way.memory().key == key)
        {
            *way = None;
        }
    }

    /// The slabs that there is a way to.
    pub fn reached(&self) -> Vec<u32> {
        let slabs = self.slabs.lock();
        let reached = (0..).zip(slabs.iter()).filter(|(_, way)| way.is_some());
        reached.map(|(slab, _)| slab).collect()
    }

    /// Works to be gathered.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            ways: self,
            parts: Vec::new(),
            len: 0,
        }
    }
}

/// Works for several parts. Those for a part go with one doorbell, and all of them side by side.
pub struct Batch<'a> {
    ways: &'a Ways,
    parts: Vec<PartWorks>,
    len: usize,
}

struct PartWorks {
    part: Part,
    way: Option<RemoteMemory>,
    works: Vec<Work>,
    /// The place of each of them in the batch.
    places: Vec<usize>,
}

impl Batch<'_> {
    /// Adds a work for a part: `work` makes it of that part's memory.
    pub fn add(&mut self, part: Part, work: impl FnOnce(Remote) -> Work) {
        let place = self.len;
        self.len += 1;
        let of_part = match self.parts.iter_mut().position(|works| works.part == part) {
            Some(at) => &mut self.parts[at],
            None => self.begin(part),
        };
        of_part.places.push(place);
        if let Some(way) = &of_part.way {
            of_part.works.push(work(way.memory()));
        }
    }

    fn begin(&mut self, part: Part) -> &mut PartWorks {
        let way = match part {
            Part::First => Some(self.ways.first.clone()),
            Part::Slab(slab) => self.ways.slab(slab),
        };
        self.parts.push(PartWorks {
            part,
            way,
            works: Vec::new(),
            places: Vec::new(),
        });
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    /// Has them all done; in the order in which they were added.
    pub fn carry_out(mut self) -> Vec<Result<Work, Failure>> {
        let posted: Vec<Option<Posted>> = self.parts.iter_mut().map(PartWorks::post).collect();
        let mut done: Vec<Option<Result<Work, Failure>>> = (0..self.len).map(|_| None).collect();
        for (of_part, posted) in self.parts.into_iter().zip(posted) {
            let part = (of_part.part, of_part.way.as_ref().map(|way| way.memory().key));
            let mut works = posted.map(Posted::wait).unwrap_or_default().into_iter();
            for place in of_part.places {
                done[place] = Some(outcome(part, works.next()));
            }
        }
        let each = done.into_iter();
        each.map(|work| work.expect("each work is of one part")).collect()
    }
}

impl PartWorks {
    fn post(&mut self) -> Option<Posted> {
        let works = std::mem::take(&mut self.works);
        self.way.as_ref().map(|way| way.endpoint().post(works))
    }
}

fn outcome((part, way): (Part, Option<Key>), work: Option<Work>) -> Result<Work, Failure> {
    let missing = || Error::Lost(format!("there is no way to {part} of remote memory"));
    let Some(mut work) = work else {
        return Err(Failure {
            part,
            way,
            error: missing(),
        });
    };
    match std::mem::replace(&mut work.result, Ok(0)) {
        Ok(bytes) => {
            work.result = Ok(bytes);
            Ok(work)
        }
        Err(error) => Err(Failure { part, way, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fabric::rdma::loopback::Node;

    #[test]
    fn works_come_back_in_their_order_and_fail_by_part() {
        let memory = |name: &str| {
            let node = Node::new(name);
            let memory = node.memory().register(4096);
            RemoteMemory::new(node.endpoint(), memory)
        };
        let ways = Ways::new(memory("one"), 3);
        ways.set(1, Some(memory("two")));
        assert_eq!(ways.reached(), [1]);
        let mut batch = ways.batch();
        for (n, part) in [Part::Slab(1), Part::First, Part::Slab(0), Part::First, Part::Slab(2)]
            .into_iter()
            .enumerate()
        {
            batch.add(part, |memory| {
                Work::write(memory, 8 * n as u64, vec![n as u8; 8].into())
            });
        }
        let done = batch.carry_out();
        let lost: Vec<Option<Part>> = done.iter().map(|done| done.as_ref().err().map(|f| f.part)).collect();
        assert_eq!(lost, [None, None, Some(Part::Slab(0)), None, Some(Part::Slab(2))]);
        let mut batch = ways.batch();
        for (n, part) in [(3u8, Part::First), (0, Part::Slab(1)), (1, Part::First)] {
            batch.add(part, |memory| Work::read(memory, 8 * u64::from(n), vec![9; 8].into()));
        }
        let read: Vec<Box<[u8]>> = batch
            .carry_out()
            .into_iter()
            .map(|work| work.expect("there").into_bytes().expect("read"))
            .collect();
        assert_eq!(read.concat(), [[3; 8], [0; 8], [1; 8]].concat());
    }
}
