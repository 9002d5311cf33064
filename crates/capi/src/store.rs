//! The store that everybody shares: opened, and used in batches with a result a key.

use super::arguments::{ArrayArg, BytesArg, Lent, MemoryArg, OutArg, ResultsArg, StructArg};
use super::error::{ReportArg, Status, answer};
use super::handle::{ClosingArg, Graveyard, Handle, HandleArg, Kind};
use cenote_base::rt::{HashMap, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_space::Space;
use cenote_store::{Buffer, Completion, Options, Outcome, Pin, Put, PutOptions, Queue, Store, Visibility};
use std::collections::VecDeque;

/// A result: the key is not there.
const MISSING: i64 = -1;
/// A result: this minus a status.
const FAILED: i64 = -100;

/// What a handle of a store is of.
pub struct OpenStore {
    pub(super) store: Store,
    pub(super) queue: Queue<Lent>,
    /// Batches that are done and were too long for the caller's memory.
    pub(super) done: Mutex<VecDeque<Completion>>,
    pins: Mutex<HashMap<Vec<u8>, Vec<Pin>>>,
}

/// `cenote_store_handle`.
pub(super) type StoreHandle = Handle<OpenStore>;

impl Kind for OpenStore {
    const MAGIC: u64 = 0x726f_7473_0000_0000;
    const NAME: &'static str = "a store";

    fn graveyard() -> &'static Mutex<Graveyard<Self>> {
        static CLOSED: Mutex<Graveyard<OpenStore>> = Mutex::new(Graveyard::new());
        &CLOSED
    }
}

/// `cenote_store_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreOptions {
    bound: u64,
    buckets: u64,
    threads: u32,
    flush: u32,
    checksums: u32,
    only_open: u32,
}

/// `cenote_store_put_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StorePutOptions {
    time_to_live: u64,
    tenant: u32,
    replaces: u32,
    replicas: u64,
}

/// `cenote_store_op`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreOp<'a> {
    key: BytesArg<'a>,
    key_len: usize,
    value: MemoryArg,
    value_len: usize,
}

impl<'a> StoreOp<'a> {
    pub(super) fn key(&self) -> Result<&'a [u8]> {
        self.key.bytes(self.key_len)
    }

    pub(super) fn value(&self) -> Result<Lent> {
        self.value.lent(self.value_len)
    }
}

pub(super) fn put_options(options: StructArg<'_, StorePutOptions>) -> PutOptions {
    let given = options.get();
    given.map_or_else(PutOptions::default, |given| PutOptions {
        tenant: given.tenant,
        time_to_live: (given.time_to_live > 0).then_some(Nanos(given.time_to_live)),
        replaces: given.replaces != 0,
        replicas: u8::try_from(given.replicas).unwrap_or(u8::MAX),
    })
}

impl OpenStore {
    fn open(space: &Space, given: Option<StoreOptions>) -> Result<Self> {
        let zero = StoreOptions {
            bound: 0,
            buckets: 0,
            threads: 0,
            flush: 0,
            checksums: 0,
            only_open: 0,
        };
        let (given, default) = (given.unwrap_or(zero), Options::default());
        let options = Options {
            bound: given.bound,
            visibility: if given.flush == 0 {
                Visibility::Coherent
            } else {
                Visibility::Flush
            },
            buckets: if given.buckets == 0 {
                default.buckets
            } else {
                given.buckets
            },
            checksums: given.checksums != 0,
            sweeps: true,
        };
        let store = match given.only_open {
            0 => Store::open_or_create(space, options)?,
            _ => Store::open(space, options)?,
        };
        let queue = Queue::new(&store, given.threads.min(64) as usize)?;
        Ok(Self {
            store,
            queue,
            done: Mutex::default(),
            pins: Mutex::default(),
        })
    }

    /// Keeps pins for keys until they are unpinned.
    pub(super) fn keep(&self, key: &[u8], pin: Pin) {
        self.pins.lock().entry(key.to_vec()).or_default().push(pin);
    }

    fn unpin(&self, key: &[u8]) {
        let mut pins = self.pins.lock();
        if let Some(of_key) = pins.get_mut(key) {
            of_key.pop();
            if of_key.is_empty() {
                pins.remove(key);
            }
        }
    }

    fn put(&self, op: &StoreOp<'_>, options: PutOptions) -> Result<Outcome> {
        let value = op.value()?;
        self.store.put(op.key()?, value.bytes(), options).map(Outcome::Put)
    }

    fn get(&self, op: &StoreOp<'_>) -> Result<Outcome> {
        let mut value = op.value()?;
        self.store.get_into(op.key()?, value.bytes_mut()).map(Outcome::Got)
    }

    fn exists(&self, op: &StoreOp<'_>, pins: bool) -> Result<Outcome> {
        let key = op.key()?;
        let mut presence = self.store.exists([key], pins)?;
        presence.pins.drain(..).for_each(|pin| self.keep(key, pin));
        Ok(Outcome::Exists(presence.prefix == 1, None))
    }
}

/// An outcome as the header says it.
pub(super) fn result_of(outcome: &Outcome) -> i64 {
    match outcome {
        Outcome::Put(Put::Stored(_)) => 1,
        Outcome::Put(Put::Exists) => 0,
        Outcome::Got(Some(value)) => value.len as i64,
        Outcome::Got(None) => MISSING,
        Outcome::Exists(is_there, _) => i64::from(*is_there),
        Outcome::Removed(was_there) => i64::from(*was_there),
        Outcome::Failed(error) => FAILED - Status::of(error) as i64,
    }
}

/// A call with a batch: its store, its keys, and a place for each key's result.
pub(super) struct Batch<'a> {
    store: HandleArg<'a, OpenStore>,
    ops: ArrayArg<'a, StoreOp<'a>>,
    n: usize,
    results: ResultsArg<'a, i64>,
}

impl<'a> Batch<'a> {
    /// Does something with each key; what fails is the key's result.
    fn each(self, mut step: impl FnMut(&OpenStore, &StoreOp<'a>) -> Result<Outcome>) -> Result<()> {
        let (store, results) = (self.store.get()?, self.results.places(self.n)?);
        for (op, result) in self.ops.elements(self.n)?.zip(results) {
            *result = result_of(&step(store, &op).unwrap_or_else(Outcome::Failed));
        }
        Ok(())
    }

    /// Copies all values at once; one after the other if their memory overlaps, or some have none.
    fn get(self) -> Result<()> {
        let (store, results) = (self.store.get()?, self.results.places(self.n)?);
        let ops: Vec<_> = self.ops.elements(self.n)?.collect();
        let lent: Result<Vec<_>> = ops.iter().map(|op| Ok((op.key()?, op.value()?))).collect();
        let Some(mut lent) = lent
            .ok()
            .filter(|lent| Lent::are_apart(lent.iter().map(|(_, value)| value)))
        else {
            for (op, result) in ops.iter().zip(results) {
                *result = result_of(&store.get(op).unwrap_or_else(Outcome::Failed));
            }
            return Ok(());
        };
        let pairs = lent.iter_mut().map(|(key, value)| (*key, value.bytes_mut()));
        for (value, result) in store.store.get_many_into(pairs).into_iter().zip(results) {
            *result = result_of(&value.map_or_else(Outcome::Failed, Outcome::Got));
        }
        Ok(())
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_open(
    space: HandleArg<'_, Space>,
    options: StructArg<'_, StoreOptions>,
    store: OutArg<'_, *mut StoreHandle>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = store.place("the store")?;
        place.write(core::ptr::null_mut());
        place.write(Handle::make(OpenStore::open(space.get()?, options.get())?));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_close(store: ClosingArg<OpenStore>, error: ReportArg<'_>) -> Status {
    answer(error, || store.close().map(drop))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_put(
    store: HandleArg<'_, OpenStore>,
    ops: ArrayArg<'_, StoreOp<'_>>,
    n: usize,
    options: StructArg<'_, StorePutOptions>,
    results: ResultsArg<'_, i64>,
    error: ReportArg<'_>,
) -> Status {
    let batch = Batch { store, ops, n, results };
    let options = put_options(options);
    answer(error, || batch.each(|store, op| store.put(op, options)))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_get(
    store: HandleArg<'_, OpenStore>,
    ops: ArrayArg<'_, StoreOp<'_>>,
    n: usize,
    results: ResultsArg<'_, i64>,
    error: ReportArg<'_>,
) -> Status {
    let batch = Batch { store, ops, n, results };
    answer(error, || batch.get())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_exists(
    store: HandleArg<'_, OpenStore>,
    ops: ArrayArg<'_, StoreOp<'_>>,
    n: usize,
    pins: i32,
    results: ResultsArg<'_, i64>,
    prefix: OutArg<'_, usize>,
    error: ReportArg<'_>,
) -> Status {
    let batch = Batch { store, ops, n, results };
    answer(error, || {
        let (mut first, mut goes_on) = (0, true);
        batch.each(|store, op| {
            let outcome = store.exists(op, pins != 0);
            goes_on &= matches!(outcome, Ok(Outcome::Exists(true, _)));
            first += usize::from(goes_on);
            outcome
        })?;
        prefix.write_if_wanted(first);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_unpin(
    store: HandleArg<'_, OpenStore>,
    ops: ArrayArg<'_, StoreOp<'_>>,
    n: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let store = store.get()?;
        ops.elements(n)?.try_for_each(|op| {
            store.unpin(op.key()?);
            Ok(())
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_remove(
    store: HandleArg<'_, OpenStore>,
    ops: ArrayArg<'_, StoreOp<'_>>,
    n: usize,
    results: ResultsArg<'_, i64>,
    error: ReportArg<'_>,
) -> Status {
    let batch = Batch { store, ops, n, results };
    let remove = |store: &OpenStore, op: &StoreOp<'_>| store.store.remove(op.key()?).map(Outcome::Removed);
    answer(error, || batch.each(remove))
}

/// A tenant as C says it; -1: all.
pub(super) fn tenant_of(tenant: i64) -> Result<Option<u32>> {
    match u32::try_from(tenant) {
        Ok(tenant) => Ok(Some(tenant)),
        Err(_) if tenant == -1 => Ok(None),
        Err(_) => Err(Error::Invalid(format!("{tenant} is no tenant"))),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_set_bound(
    store: HandleArg<'_, OpenStore>,
    tenant: i64,
    bytes: u64,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let store = &store.get()?.store;
        match tenant_of(tenant)? {
            Some(tenant) => store.set_tenant_bound(tenant, bytes),
            None => store.set_bound(bytes),
        }
    })
}

/// `cenote_store_stats`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreNumbers([u64; 15]);

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_store_stats_of(
    store: HandleArg<'_, OpenStore>,
    stats: OutArg<'_, StoreNumbers>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let (mut place, store) = (stats.place("the numbers")?, store.get()?);
        let stats = store.store.stats()?;
        let pins = store.pins.lock().values().map(Vec::len).sum::<usize>();
        place.write(StoreNumbers([
            stats.items,
            stats.used,
            stats.bound,
            stats.buckets,
            stats.evicted,
            stats.expired,
            stats.orphans,
            stats.hits,
            stats.misses,
            stats.lost,
            stats.damaged,
            stats.unreplicated,
            stats.bytes_in,
            stats.bytes_out,
            pins as u64,
        ]));
        Ok(())
    })
}
