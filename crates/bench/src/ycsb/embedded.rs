//! The store of `cenote_kv` in this process: no server, no wire.
//!
//! A store belongs to one thread at a time. For several threads there are several of them, each in a space of its own,
//! and a key's hash says which one it is in: a thread locks that one for the time of an operation. With one thread
//! there is one store, and nothing is locked.

use super::choose::disperse;
use super::record::{Key, Layout, Records};
use super::worker::{Counts, Until, Worker, in_turn};
use super::workload::{Kind, Operation, Stream};
use crate::server::RegionFile;
use crate::{Error, Result};
use cenote_kv::{Failure, Keep, Store};
use cenote_space::{Space, SpaceOptions};
use std::sync::{Arc, Mutex, MutexGuard};

/// Stores a thread: so two threads seldom want the same one.
const STORES_A_THREAD: usize = 8;
/// Nothing expires.
const NOW: u64 = 1;

/// The stores, and the files that they lie in.
pub struct Embedded {
    stores: Vec<Mutex<Store>>,
    _regions: Vec<Arc<RegionFile>>,
}

impl Embedded {
    /// Makes stores for so many threads, with so many bytes of memory together.
    ///
    /// # Errors
    /// If there is no room for their memory.
    pub fn new(threads: usize, bytes: u64) -> Result<Arc<Self>> {
        let count = if threads == 1 { 1 } else { STORES_A_THREAD * threads };
        let (mut stores, mut regions) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let region = RegionFile::new();
            let options = SpaceOptions {
                bytes: bytes / count as u64 + (32 << 20),
                ..SpaceOptions::default()
            };
            let space = Space::create(region.path(), &options).map_err(|error| failed(error.into()))?;
            regions.push(region);
            stores.push(Mutex::new(Store::open(&space).map_err(failed)?));
        }
        Ok(Arc::new(Self {
            stores,
            _regions: regions,
        }))
    }

    /// A worker, of which each thread needs its own.
    pub fn worker(self: &Arc<Self>, records: &Arc<Records>) -> Box<dyn Worker> {
        Box::new(Direct {
            stores: Arc::clone(self),
            records: Arc::clone(records),
            read: Vec::new(),
        })
    }

    #[inline]
    fn store_of(&self, record: u64) -> MutexGuard<'_, Store> {
        let n = match self.stores.len() {
            1 => 0,
            all => disperse(record) as usize % all,
        };
        self.stores[n].lock().expect("no worker panics")
    }

    /// Gathers the memory into huge pages, as the server does in the course of time.
    pub fn gather(&self) {
        for store in &self.stores {
            let store = store.lock().expect("no worker panics");
            for part in store.space().parts() {
                let (mut at, end) = (0, part.region().reserved());
                while at < end {
                    match part.region().collapse_step(at, end) {
                        Ok(next) => at = next,
                        // The machine has none to give: it works without.
                        Err(_) => return,
                    }
                }
            }
        }
    }
}

fn failed(failure: Failure) -> Error {
    Error::Refused(format!("the embedded store: {failure}"))
}

/// Calls of the store, one after the other.
struct Direct {
    stores: Arc<Embedded>,
    records: Arc<Records>,
    /// What was read last: names and values.
    read: Vec<u8>,
}

impl Worker for Direct {
    fn run(&mut self, stream: &mut Stream, until: Until) -> Result<Counts> {
        Ok(in_turn(stream, until, |operation| self.carry_out(operation)))
    }
}

impl Direct {
    /// Whether the record was as it should be.
    #[inline]
    fn carry_out(&mut self, operation: Operation) -> cenote_kv::Result<bool> {
        if operation.kind == Kind::Scan {
            return self.scan(operation);
        }
        let key = Key::new(operation.record);
        let (records, read) = (&*self.records, &mut self.read);
        let store = &mut *self.stores.store_of(operation.record);
        match operation.kind {
            Kind::Read | Kind::Scan => look_up(store, records, key.bytes(), read),
            Kind::Update => update(store, records, key.bytes(), operation.bits).map(|()| true),
            Kind::Insert => insert(store, records, key.bytes(), operation.bits).map(|()| true),
            Kind::Remove => store.remove(key.bytes(), NOW),
            Kind::ReadModifyWrite => {
                let is_there = look_up(store, records, key.bytes(), read)?;
                update(store, records, key.bytes(), operation.bits)?;
                Ok(is_there)
            }
        }
    }
}

impl Direct {
    /// Whether all were as they should be.
    fn scan(&mut self, operation: Operation) -> cenote_kv::Result<bool> {
        let mut are_there = true;
        for record in operation.records() {
            let one = Operation {
                kind: Kind::Read,
                record,
                count: 1,
                ..operation
            };
            are_there &= self.carry_out(one)?;
        }
        Ok(are_there)
    }
}

/// Copies all of a record, as a client would have it. Whether it is there, and whole.
#[inline]
fn look_up(store: &mut Store, records: &Records, key: &[u8], read: &mut Vec<u8>) -> cenote_kv::Result<bool> {
    read.clear();
    let Some(entry) = store.find(key, NOW)? else {
        return Ok(false);
    };
    if records.layout == Layout::Value {
        let len = store.len_of(&entry)?;
        store.append_value(&entry, 0, len, read)?;
        return Ok(len == records.bytes());
    }
    let (mut fields, mut bytes) = (0, 0);
    store.each_pair(&entry, |name, value| {
        read.extend_from_slice(name);
        read.extend_from_slice(value);
        (fields, bytes) = (fields + 1, bytes + value.len());
    })?;
    Ok(fields == records.names.len() && bytes == records.bytes())
}

#[inline]
fn update(store: &mut Store, records: &Records, key: &[u8], bits: u64) -> cenote_kv::Result<()> {
    match records.layout {
        Layout::Value => store.set(key, records.whole(bits), Keep::At(0), NOW),
        Layout::Hash => {
            let (name, value) = records.one(bits);
            store.set_field(key, name, value, NOW).map(drop)
        }
    }
}

fn insert(store: &mut Store, records: &Records, key: &[u8], bits: u64) -> cenote_kv::Result<()> {
    match records.layout {
        Layout::Value => store.set(key, records.whole(bits), Keep::At(0), NOW),
        Layout::Hash => store.set_fields(key, records.pairs(bits), NOW).map(drop),
    }
}
