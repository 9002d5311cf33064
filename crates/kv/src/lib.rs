//! A key-value store that lies wholly in a [space](cenote_space): strings, integers and hashes by key, with expiry. One
//! process uses it at a time.
//!
//! ```text
//!   space's root ──► root (64 B): 0 magic   8 hash key (2 u64)   24 table   32 journal   40 closed: keys + 1, or 0   48 keys that expire
//!                                                          │          └──► what a step has changed so far: see `heap`
//!                                                          ▼
//!                                     table ──► buckets ──► entry ──► entry     key, expiry, value: see `entry`
//!                                                             ├──► large value
//!                                                             ├──► fields of a small hash, packed: see `packed`
//!                                                             └──► table of a large hash's fields ──► buckets ──► entries
//! ```
//!
//! ```
//! use cenote_kv::{Keep, Store};
//! use cenote_space::{Space, SpaceOptions};
//!
//! let space = Space::dram(&SpaceOptions { bytes: 64 << 20, ..SpaceOptions::default() })?;
//! let mut store = Store::open(&space)?;
//! store.set(b"greeting", b"hello", Keep::At(0), 1)?;
//! let entry = store.find(b"greeting", 1)?.expect("it is there");
//! let (mut text, len) = (Vec::new(), store.len_of(&entry)?);
//! store.append_value(&entry, 0, len, &mut text)?;
//! assert_eq!(text, b"hello");
//! # Ok::<(), cenote_kv::Failure>(())
//! ```
//!
//! Invariants. The process may be killed between any two stores:
//! 1. what an address in a word refers to is whole *before* the word is stored. Bytes that something refers to never
//!    change, but for words (links, a value's number, an expiry, the length of a large value), each at once;
//! 2. so a change is one store: of a new entry into the bucket, of another entry in the place of one, past an entry
//!    that goes, of a word. What took several words ([`Store::begin`], the splitting of a bucket) is put back by the
//!    next start, if it had not come to its end;
//! 3. an object is freed *after* the store that takes the last reference to it away. So no word refers to what is not
//!    there, and what a kill leaves behind is an object that nothing refers to: the next start frees those
//!    ([`Store::open`]);
//! 4. counts (of keys, of keys that expire, of fields) may be wrong after a kill, and are counted then. Nothing depends
//!    on them but what they say and when a table grows.
//!
//! A start after [`Store::close`] believes the counts, and looks at nothing. One after a kill looks at each entry once.

mod entry;
mod failure;
mod fields;
mod hash;
mod hashes;
mod heap;
mod keys;
mod packed;
mod prefetch;
mod spares;
mod strings;
mod sweep;
mod table;

pub use entry::{Entry, STRING_MAX, decimal, integer};
pub use failure::{Failure, Result};
pub use prefetch::PREFETCHED_KEYS;
pub use sweep::Found;

use cenote_base::{Error, rt};
use cenote_space::{GlobalAddress, Space};
use entry::Draft;
use failure::check_len;
use fields::Fields;
use heap::{Heap, offset};
use table::{Place, Table};

const MAGIC: u64 = u64::from_le_bytes(*b"CENOTEK2");
/// As it was before there were packed hashes. What such a store holds is in order here too.
const MAGIC_FIRST: u64 = u64::from_le_bytes(*b"CENOTEK1");
const ROOT: u64 = 64;
const TABLE: u64 = 24;
const JOURNAL: u64 = 32;
const CLOSED: u64 = 40;
const EXPIRING: u64 = 48;
const _: () = {
    assert!(
        TABLE + 8 <= JOURNAL && JOURNAL + 8 <= CLOSED,
        "the root's words do not overlap"
    );
    assert!(
        CLOSED + 8 <= EXPIRING && EXPIRING + 8 <= ROOT,
        "the root's words lie in it"
    );
};

/// What becomes of a key's expiry when it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It stays as it is.
    Expiry,
    /// It is this, in milliseconds since 1970; 0: never.
    At(u64),
}

/// Where a step began: to be given to [`Store::commit`] or [`Store::roll_back`].
#[derive(Debug)]
#[must_use]
pub struct Step {
    mark: heap::Mark,
    expiring: u64,
    entries: u64,
}

/// The store. See the module. `now` is milliseconds since 1970, everywhere; what has expired by then is not there.
pub struct Store {
    heap: Heap,
    root: GlobalAddress,
    table: Table,
    hash_key: [u64; 2],
    /// Keys that have an expiry.
    expiring: u64,
    /// Where the sweep for expired keys goes on.
    swept: u64,
    scratch: Vec<u8>,
    /// For the copy of a packed hash.
    room: Vec<u8>,
    /// An empty table that nothing refers to, so that all keys can be removed also where there is no memory left.
    reserve: Option<Table>,
}

impl Store {
    /// Takes up the store that the space's root leads to, or makes one in a space without a root. See [`Store::found`].
    ///
    /// # Errors
    /// [`Error::Mismatch`] if something else lies there; [`Error::Corrupt`], [`Error::Full`].
    pub fn open(space: &Space) -> Result<Self> {
        Ok(Self::open_reporting(space)?.0)
    }

    /// As [`Store::open`], with what was found.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_reporting(space: &Space) -> Result<(Self, Found)> {
        let session = space.session();
        let root = match space.root()? {
            GlobalAddress::NULL => make_root(space, &session)?,
            root => root,
        };
        let mut words = [[0; 8]; 3];
        space.read(root, words.as_flattened_mut())?;
        let [magic, k0, k1] = words.map(u64::from_ne_bytes);
        if ![MAGIC, MAGIC_FIRST].contains(&magic) {
            return Err(Error::Mismatch("the space holds something else than a key-value store".into()).into());
        }
        let heap = Heap::new(session, offset(root, JOURNAL)?)?;
        let table = Table::read(&heap, heap.word(offset(root, TABLE)?)?)?;
        let mut store = Self {
            heap,
            root,
            table,
            hash_key: [k0, k1],
            expiring: 0,
            swept: 0,
            scratch: Vec::new(),
            room: Vec::new(),
            reserve: None,
        };
        if magic == MAGIC_FIRST {
            store.heap.put(root, MAGIC)?;
        }
        let found = store.take_stock()?;
        store.refill()?;
        Ok((store, found))
    }

    /// Writes down what a start would have to count otherwise.
    ///
    /// # Errors
    /// Those of memory.
    pub fn close(mut self) -> Result<()> {
        self.table.note_entries(&mut self.heap)?;
        self.heap.put(offset(self.root, EXPIRING)?, self.expiring)?;
        self.heap.free_spares()?;
        if let Some(reserve) = self.reserve.take() {
            self.free_table(&reserve, true)?;
        }
        self.heap.put(offset(self.root, CLOSED)?, self.table.entries + 1)?;
        Ok(())
    }

    /// Keys, those included that have expired and were not met since.
    pub fn len(&self) -> u64 {
        self.table.entries
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys that have an expiry.
    pub fn expiring(&self) -> u64 {
        self.expiring
    }

    /// Buckets of its table.
    pub fn buckets(&self) -> u64 {
        self.table.buckets()
    }

    /// Its space.
    pub fn space(&self) -> &Space {
        self.heap.session().space()
    }

    /// From here on changes belong together: all of them are there after a kill, or none. Steps may lie in each other.
    pub fn begin(&mut self) -> Step {
        Step {
            mark: self.heap.begin(),
            expiring: self.expiring,
            entries: self.table.entries,
        }
    }

    /// The end of a step: it is done.
    ///
    /// # Errors
    /// Those of memory.
    pub fn commit(&mut self, _step: Step) -> Result<()> {
        self.heap.commit()?;
        self.refill()
    }

    /// Sees to it that there is an empty table in reserve, if there is room for one. Not within a step: it would go
    /// with that.
    #[inline]
    fn refill(&mut self) -> Result<()> {
        if self.reserve.is_some() || self.heap.is_in_step() {
            return Ok(());
        }
        match Table::make(&mut self.heap) {
            Ok(empty) => self.reserve = Some(empty),
            Err(Error::Full(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The end of a step: nothing of it was done.
    ///
    /// # Errors
    /// Those of memory.
    pub fn roll_back(&mut self, step: Step) -> Result<()> {
        let ended = self.heap.roll_back(step.mark);
        self.heap.check()?;
        self.table = self.read_table().inspect_err(|_| self.heap.give_up())?;
        (self.table.entries, self.expiring) = (step.entries, step.expiring);
        ended?;
        self.refill()
    }

    fn read_table(&self) -> Result<Table, Error> {
        Table::read(&self.heap, self.heap.word(offset(self.root, TABLE)?)?)
    }

    /// Whether it may be used still. A store whose memory failed in the middle of a step refuses all changes, and what
    /// it holds may be half of that step: the process that serves it ends, and the next start takes the step back.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn check(&self) -> Result<()> {
        Ok(self.heap.check()?)
    }

    /// Does all of something or nothing.
    ///
    /// # Errors
    /// Those of what is done.
    pub fn at_once<T>(&mut self, all: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let step = self.begin();
        match all(self) {
            Ok(done) => {
                self.commit(step)?;
                Ok(done)
            }
            Err(failure) => {
                self.roll_back(step)?;
                Err(failure)
            }
        }
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> u32 {
        hash::hash(self.hash_key, key)
    }

    /// The entry of a key, if it is there and has not expired. It is good until something is changed.
    ///
    /// # Errors
    /// Those of memory, here and everywhere.
    #[inline]
    pub fn find(&mut self, key: &[u8], now: u64) -> Result<Option<Entry>> {
        match self.place(self.hash(key), key, now)? {
            Place::Found(entry) => Ok(Some(entry)),
            Place::Missing(_) => Ok(None),
        }
    }

    /// Where a key is, or would be. One that has expired is removed.
    #[inline]
    fn place(&mut self, hash: u32, key: &[u8], now: u64) -> Result<Place> {
        match self.table.find(&self.heap, hash, key)? {
            Place::Found(entry) if entry.is_expired(now) => {
                self.remove_entry(&entry)?;
                Ok(self.table.find(&self.heap, hash, key)?)
            }
            place => Ok(place),
        }
    }

    /// Puts a value in the place of what a key had.
    fn put(&mut self, place: Place, draft: &Draft<'_>) -> Result<()> {
        check_len(draft.key.len())?;
        let had_expiry = match place {
            Place::Found(former) => {
                self.table.replace(&mut self.heap, &former, draft, &mut self.scratch)?;
                self.free_replaced(&former)?;
                former.expiry() != 0
            }
            Place::Missing(bucket) => {
                self.table.insert(&mut self.heap, draft, bucket, &mut self.scratch)?;
                false
            }
        };
        self.count_expiry(had_expiry, draft.expiry != 0);
        self.trim();
        Ok(())
    }

    fn count_expiry(&mut self, had: bool, has: bool) {
        self.expiring = (self.expiring + u64::from(has)).saturating_sub(u64::from(had));
    }

    /// A long key does not keep its room for good.
    fn trim(&mut self) {
        if self.scratch.capacity() > 1 << 20 {
            self.scratch = Vec::new();
        }
    }

    /// Takes an entry of the keys' table out, and frees it with its value.
    fn remove_entry(&mut self, entry: &Entry) -> Result<()> {
        self.table.unlink(&mut self.heap, entry)?;
        self.count_expiry(entry.expiry() != 0, false);
        self.free_entry(entry)
    }

    /// Frees what nothing leads to any more, with its value.
    fn free_entry(&mut self, entry: &Entry) -> Result<()> {
        self.free_value(entry)?;
        Ok(self.heap.free(entry.at)?)
    }

    /// The same of an entry that another one stands in the place of: the next one may have its object.
    fn free_replaced(&mut self, entry: &Entry) -> Result<()> {
        self.free_value(entry)?;
        Ok(self.heap.free_or_keep(entry.at, entry.bytes())?)
    }

    fn free_value(&mut self, entry: &Entry) -> Result<()> {
        if entry.is_hash() {
            match Fields::read(&self.heap, GlobalAddress::from_raw(entry.value()))? {
                Fields::Table(table) => self.free_table(&table, false)?,
                Fields::Packed(at, _) => self.heap.free(at)?,
            }
        } else if let Some(value) = entry.referred() {
            self.heap.free(value)?;
        }
        Ok(())
    }

    /// Frees the table of the keys, or of a hash's fields, with its entries.
    fn free_table(&mut self, table: &Table, is_of_keys: bool) -> Result<()> {
        let mut entries = Vec::new();
        for index in 0..table.buckets() {
            table.each_in(&self.heap, index, |entry| {
                entries.push(*entry);
                Ok(())
            })?;
            for entry in entries.drain(..) {
                if !is_of_keys {
                    hashes::check_field(&entry)?;
                }
                self.free_entry(&entry)?;
            }
        }
        let mut objects = Vec::new();
        table.each_object(&self.heap, |at| objects.push(at))?;
        objects.into_iter().try_for_each(|at| self.heap.free(at))?;
        Ok(())
    }
}

/// The root of a store without keys; the space's root refers to it when it is whole.
fn make_root(space: &Space, session: &cenote_space::Session) -> Result<GlobalAddress> {
    let (root, secret) = (session.alloc(ROOT)?, rt::random_u128());
    let words = [MAGIC, secret as u64, (secret >> 64) as u64];
    space.write(root, words.map(u64::to_ne_bytes).as_flattened())?;
    let mut heap = Heap::new(space.session(), offset(root, JOURNAL)?)?;
    let table = Table::make(&mut heap)?;
    space.store(offset(root, TABLE)?, table.at().raw())?;
    space.set_root(root)?;
    Ok(root)
}

#[cfg(test)]
mod tests;
