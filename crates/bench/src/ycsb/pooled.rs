//! A hash table in a space of a pool of one or several pods: what a program gets that keeps its records in the pool's
//! memory itself.
//!
//! ```text
//!   segments of 8,192 words, by turns in each pod ──► entry ──► entry      next 8 | key 24 | value
//! ```
//!
//! Each worker is a client in one of the pods: what lies there it loads and stores, what lies elsewhere it asks for
//! over RDMA; a record is two trips then, the word and the entry. An entry is in the pod of the worker that has
//! inserted it. Workers are threads of this process, so inserting and removing is kept in order by locks of this
//! process; reading and updating need none, as YCSB asks for no more than that of a field.

use super::choose::disperse;
use super::record::{Key, Layout, Records};
use super::worker::{Counts, Until, Worker, in_turn};
use super::workload::{Kind, Operation, Stream};
use crate::Result;
use crate::pods::Pods;
use cenote_space::{GlobalAddress, Read, Session, Space};
use std::path::Path;
use std::sync::{Arc, Mutex};

const SPACE: &str = "ycsb";
/// Words of a segment.
const SEGMENT: u64 = 8192;
/// Bytes of an entry before its value: the next entry, the key.
const HEAD: usize = 32;
/// Locks of the table: a bucket's number says which one is its.
const STRIPES: usize = 64;

/// The table, and the pool that it lies in.
pub struct Pooled {
    segments: Vec<GlobalAddress>,
    stripes: [Mutex<()>; STRIPES],
    /// One a pod. Dropped before the pool: closing a space speaks with it.
    spaces: Vec<Space>,
    _pool: Pods,
}

impl Pooled {
    /// Starts a pool of so many pods with `bytes` for the records, and makes an empty table there.
    ///
    /// # Errors
    /// The pool does not start, or has no room.
    pub fn new(program: Option<&Path>, pods: usize, records: u64, bytes: u64) -> Result<Arc<Self>> {
        let names: Vec<String> = (0..pods).map(|n| format!("pod{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let each = (bytes + records * 16) / pods as u64 * 5 / 4 + (64 << 20);
        let pool = Pods::start(program, &names, 1, each + (16 << 20))?;
        let clients: Vec<_> = names.iter().map(|name| pool.client(name)).collect::<Result<_>>()?;
        clients[0].create_space(SPACE, each * pods as u64, None)?;
        let spaces: Vec<Space> = clients
            .iter()
            .map(|client| client.open_space(SPACE))
            .collect::<cenote_base::Result<_>>()?;
        let sessions: Vec<_> = spaces.iter().map(Space::session).collect();
        let segments = (0..records.div_ceil(SEGMENT) as usize).map(|n| sessions[n % pods].alloc(8 * SEGMENT));
        Ok(Arc::new(Self {
            segments: segments.collect::<cenote_base::Result<_>>()?,
            stripes: std::array::from_fn(|_| Mutex::default()),
            spaces,
            _pool: pool,
        }))
    }

    /// The n-th worker: the pods take turns.
    pub fn worker(self: &Arc<Self>, n: usize, records: &Arc<Records>) -> Box<dyn Worker> {
        let space = self.spaces[n % self.spaces.len()].clone();
        Box::new(User {
            session: space.session(),
            space,
            entry: vec![0; HEAD + records.bytes()],
            scanned: Vec::new(),
            records: Arc::clone(records),
            table: Arc::clone(self),
        })
    }

    /// The word that a record's entries begin at, and its stripe.
    fn bucket(&self, record: u64) -> (GlobalAddress, usize) {
        let n = disperse(record) % (self.segments.len() as u64 * SEGMENT);
        (
            behind(self.segments[(n / SEGMENT) as usize], 8 * (n % SEGMENT)),
            n as usize % STRIPES,
        )
    }
}

/// A worker.
struct User {
    session: Session,
    space: Space,
    /// What was read last.
    entry: Vec<u8>,
    /// What a scan reads.
    scanned: Vec<u8>,
    records: Arc<Records>,
    table: Arc<Pooled>,
}

/// An entry that was found, and the word that refers to it.
struct Found {
    at: GlobalAddress,
    referrer: GlobalAddress,
}

fn key_of(record: u64) -> [u8; HEAD - 8] {
    let mut bytes = [0; HEAD - 8];
    let key = Key::new(record);
    bytes[..key.bytes().len()].copy_from_slice(key.bytes());
    bytes
}

/// So many bytes on, in an object that has them.
fn behind(address: GlobalAddress, bytes: u64) -> GlobalAddress {
    address.checked_add(bytes).expect("inside of an object")
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes"))
}

impl Worker for User {
    fn run(&mut self, stream: &mut Stream, until: Until) -> Result<Counts> {
        Ok(in_turn(stream, until, |operation| self.carry_out(operation)))
    }
}

impl User {
    /// Whether the record was there.
    fn carry_out(&mut self, operation: Operation) -> cenote_base::Result<bool> {
        let record = operation.record;
        match operation.kind {
            Kind::Read => Ok(self.find(record, HEAD + self.records.bytes())?.is_some()),
            Kind::Scan => self.scan(operation),
            Kind::Update => match self.find(record, HEAD)? {
                Some(found) => self.update(&found, operation.bits).map(|()| true),
                None => Ok(false),
            },
            Kind::ReadModifyWrite => match self.find(record, HEAD + self.records.bytes())? {
                Some(found) => self.update(&found, operation.bits).map(|()| true),
                None => Ok(false),
            },
            Kind::Insert => self.insert(record, operation.bits).map(|()| true),
            Kind::Remove => self.remove(record),
        }
    }

    /// Looks a record up, and copies the first `bytes` of its entry.
    fn find(&mut self, record: u64, bytes: usize) -> cenote_base::Result<Option<Found>> {
        let (mut referrer, _) = self.table.bucket(record);
        let key = key_of(record);
        let mut next = self.space.load(referrer)?;
        while next != 0 {
            let at = GlobalAddress::from_raw(next);
            self.space.read(at, &mut self.entry[..bytes])?;
            if self.entry[8..HEAD] == key {
                return Ok(Some(Found { at, referrer }));
            }
            (referrer, next) = (at, word(&self.entry));
        }
        Ok(None)
    }

    /// Reads the words of all records at once, then their first entries; where that is another record's, the others one
    /// after the other.
    fn scan(&mut self, operation: Operation) -> cenote_base::Result<bool> {
        let (count, size) = (operation.count as usize, self.entry.len());
        let records = operation.records();
        let mut scanned = std::mem::take(&mut self.scanned);
        scanned.resize(count * (8 + size), 0);
        let (words, entries) = scanned.split_at_mut(8 * count);
        let mut reads: Vec<_> = records
            .clone()
            .zip(words.chunks_mut(8))
            .map(|(record, into)| Read {
                address: self.table.bucket(record).0,
                into,
            })
            .collect();
        self.space.read_many(&mut reads)?;
        let mut reads: Vec<_> = words
            .chunks(8)
            .zip(entries.chunks_mut(size))
            .filter(|(next, _)| word(next) != 0)
            .map(|(next, into)| Read {
                address: GlobalAddress::from_raw(word(next)),
                into,
            })
            .collect();
        self.space.read_many(&mut reads)?;
        let mut are_there = true;
        for ((record, next), entry) in records.zip(words.chunks(8)).zip(entries.chunks(size)) {
            let is_first = word(next) != 0 && entry[8..HEAD] == key_of(record);
            are_there &= is_first || self.find(record, size)?.is_some();
        }
        self.scanned = scanned;
        Ok(are_there)
    }

    /// A field, or all of the value.
    fn update(&mut self, found: &Found, bits: u64) -> cenote_base::Result<()> {
        let value = behind(found.at, HEAD as u64);
        match self.records.layout {
            Layout::Value => self.space.write(value, self.records.whole(bits)),
            Layout::Hash => {
                let (name, field) = self.records.one(bits);
                let n = self.records.names.iter().position(|other| other == name).unwrap_or(0);
                self.space
                    .write(behind(value, (n * self.records.field_bytes) as u64), field)
            }
        }
    }

    fn insert(&mut self, record: u64, bits: u64) -> cenote_base::Result<()> {
        let at = self.session.alloc(self.entry.len() as u64)?;
        let (bucket, stripe) = self.table.bucket(record);
        let table = Arc::clone(&self.table);
        let _locked = table.stripes[stripe].lock().expect("no worker panics");
        let next = self.space.load(bucket)?;
        self.entry[..8].copy_from_slice(&next.to_le_bytes());
        self.entry[8..HEAD].copy_from_slice(&key_of(record));
        self.entry[HEAD..].copy_from_slice(self.records.whole(bits));
        self.space.write(at, &self.entry)?;
        self.space.store(bucket, at.raw())
    }

    fn remove(&mut self, record: u64) -> cenote_base::Result<bool> {
        let table = Arc::clone(&self.table);
        let _locked = table.stripes[table.bucket(record).1].lock().expect("no worker panics");
        let Some(found) = self.find(record, HEAD)? else {
            return Ok(false);
        };
        self.space.store(found.referrer, word(&self.entry))?;
        self.session.free(found.at)?;
        Ok(true)
    }
}
