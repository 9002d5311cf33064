//! What a process has of the store: its root, its member, and the tables as they were last seen.

use super::chains::Table;
use super::counters::Counters;
use super::heap::{Heap, offset};
use super::item::{Header, KEY_MAX};
use super::layout::{root, table};
use super::members::{Member, Slot};
use super::options::Options;
use super::tier::Tier;
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::{self, Mutex, Nanos, RwLock};
use cenote_base::sip::sip;
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;
use std::sync::Arc;

/// Sequences that a process takes at once.
const SEQUENCES: u64 = 1024;

/// See the module.
pub(super) struct Core {
    pub heap: Heap,
    pub at: GlobalAddress,
    pub member: Member,
    pub options: Options,
    hash_key: [u64; 2],
    view: RwLock<Arc<View>>,
    sequences: Mutex<(u64, u64)>,
    /// Items that were unlinked here while they were pinned, each with its intent, if there was one left.
    pub retired: Mutex<Vec<(GlobalAddress, Header, Option<Slot>)>>,
    /// Held by the one thread that takes over from dead members.
    pub ending: Mutex<()>,
    pub counters: Counters,
    /// What of them the member's record has.
    pub counted: Mutex<[u64; Counters::MAX]>,
    /// Squeezes that this process has heard of.
    pub squeezed: AtomicU64,
    /// Where this process spills values to, and reads them from.
    pub tiers: RwLock<Vec<Arc<Tier>>>,
    /// Whether there was no room for an item that stands for a spilled value.
    pub lacks_stubs: AtomicBool,
    /// Whether there was no room for a larger table.
    pub lacks_table: AtomicBool,
    /// When room for one is made again, where it could not be.
    pub no_table_until: Mutex<Nanos>,
    /// When it is looked again whether parts are there that a larger table waits for.
    pub table_waits_until: Mutex<Nanos>,
}

/// The table, and the former one as long as not all of it is forwarded.
pub(super) struct View {
    pub table: Table,
    pub previous: Option<Table>,
    /// Buckets of the former one that are, at least.
    moved: AtomicU64,
}

/// A key with its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    pub bytes: &'a [u8],
    pub hash: u64,
}

impl Core {
    pub(super) fn open(heap: Heap, at: GlobalAddress, hash_key: [u64; 2], options: Options) -> Result<Self> {
        let member = Member::join(&heap, at)?;
        let view = View::read(&heap, at)?;
        Ok(Self {
            heap,
            at,
            member,
            options,
            hash_key,
            view: RwLock::new(Arc::new(view)),
            sequences: Mutex::default(),
            retired: Mutex::default(),
            ending: Mutex::default(),
            counters: Counters::default(),
            counted: Mutex::default(),
            squeezed: AtomicU64::new(0),
            tiers: RwLock::default(),
            lacks_stubs: AtomicBool::new(false),
            lacks_table: AtomicBool::new(false),
            no_table_until: Mutex::default(),
            table_waits_until: Mutex::default(),
        })
    }

    /// # Errors
    /// [`Error::Invalid`] if it is empty or too long.
    pub(super) fn key<'a>(&self, bytes: &'a [u8]) -> Result<Key<'a>> {
        match bytes.len() {
            1..=KEY_MAX => Ok(Key {
                bytes,
                hash: sip(self.hash_key, bytes),
            }),
            len => Err(Error::Invalid(format!(
                "a key of {len} bytes: 1 to {} are possible",
                KEY_MAX
            ))),
        }
    }

    /// A number that tells this store from others.
    pub(super) fn identity(&self) -> u64 {
        sip(self.hash_key, b"the store's number")
    }

    /// A word of the root.
    pub(super) fn word(&self, at: u64) -> Result<GlobalAddress> {
        offset(self.at, at)
    }

    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// The tables as they are now, read again if another has taken over.
    pub(super) fn current(&self) -> Result<Arc<View>> {
        let view = self.view();
        match self.heap.load(self.word(root::TABLE)?)? == view.table.address.raw() {
            true => Ok(view),
            false => self.refresh(),
        }
    }

    /// Looks at the root again: the tables as they are now.
    pub(super) fn refresh(&self) -> Result<Arc<View>> {
        let fresh = Arc::new(View::read(&self.heap, self.at)?);
        *self.view.write() = Arc::clone(&fresh);
        Ok(fresh)
    }

    /// The tables since entries have left the one that was known. That begins when another has taken its place.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if none has.
    pub(super) fn refresh_from(&self, known: &View) -> Result<Arc<View>> {
        let (fresh, at) = (self.refresh()?, known.table.address);
        match fresh.table.address == at {
            true => Err(Error::corrupt(format!(
                "entries have left the table at {at}, and none has taken its place"
            ))),
            false => Ok(fresh),
        }
    }

    /// A number that no other item has.
    pub(super) fn sequence(&self) -> Result<u64> {
        let mut sequences = self.sequences.lock();
        if sequences.0 == sequences.1 {
            let first = self.heap.add(self.word(root::SEQUENCE)?, SEQUENCES)?;
            *sequences = (first, first + SEQUENCES);
        }
        sequences.0 += 1;
        Ok(sequences.0)
    }

    /// Words of a tenant: its bound, and what it uses.
    pub(super) fn tenant(&self, tenant: u32) -> Result<(GlobalAddress, GlobalAddress)> {
        if u64::from(tenant) >= root::TENANTS_MAX {
            let most = root::TENANTS_MAX - 1;
            return Err(Error::Invalid(format!("tenant {tenant}: the last one is {most}")));
        }
        let at = root::TENANTS + 16 * u64::from(tenant);
        Ok((self.word(at)?, self.word(at + 8)?))
    }

    /// Counts what is linked: items and bytes, of a tenant and of all.
    pub(super) fn account(&self, tenant: u32, items: i64, bytes: i64) -> Result<u64> {
        self.heap.add(self.tenant(tenant)?.1, bytes as u64)?;
        self.heap.add(self.word(root::USED)?, bytes as u64)?;
        self.heap.add(self.word(root::ITEMS)?, items as u64)
    }

    pub(super) fn count(&self, at: u64, n: u64) -> Result<()> {
        self.heap.add(self.word(at)?, n).map(drop)
    }
}

impl View {
    fn read(heap: &Heap, at: GlobalAddress) -> Result<Self> {
        let current = GlobalAddress::from_raw(heap.load(offset(at, root::TABLE)?)?);
        let table = Table::read(heap, current)?;
        let former = match table.previous {
            Some(previous) => Some(Table::read(heap, previous)?),
            None => None,
        };
        let moved = heap.load(offset(current, table::MOVED)?)?;
        let previous = former.filter(|former| moved < former.buckets());
        Ok(Self {
            table,
            previous,
            moved: AtomicU64::new(moved),
        })
    }

    /// The former table, and the bucket there of a hash that may not be forwarded yet.
    pub(super) fn former(&self, hash: u64) -> Option<(&Table, u64)> {
        let former = self.previous.as_ref()?;
        let bucket = former.bucket_of(hash);
        (bucket >= self.moved.load(Ordering::Acquire)).then_some((former, bucket))
    }

    /// The first so many buckets of the former table are forwarded.
    pub(super) fn has_moved(&self, buckets: u64) {
        self.moved.fetch_max(buckets, Ordering::AcqRel);
    }
}

/// Microseconds since 1970 by this host's clock.
pub(super) fn now_micros() -> u64 {
    rt::wall_micros().max(0) as u64
}
