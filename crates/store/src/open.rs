//! Making and opening a store, and its background thread.

use super::core::Core;
use super::grow::make_table;
use super::heap::{Heap, Visibility, offset};
use super::layout::{root, table};
use super::options::Options;
use super::tier::{SpillOptions, Tier};
use cenote_base::rt::{self, Event, JoinHandle, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Space};
use std::sync::Arc;

/// Between two sweeps of a process: half-written objects and pins of dead members are free two of them later.
const SWEEP: Nanos = Nanos::from_millis(500);

/// A store, as one process uses it. A clone is another handle on the same.
#[derive(Clone)]
pub struct Store {
    pub(super) core: Arc<Core>,
    _sweeper: Option<Arc<Sweeper>>,
}

/// Ends its thread when dropped.
struct Sweeper {
    end: Arc<Event>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Makes a store in a space whose root is not set, and sets it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the space has a root: what is there may be opened; [`Error::Full`].
    pub fn create(space: &Space, options: Options) -> Result<Self> {
        if !space.root()?.is_null() {
            return Err(Error::Invalid(
                "the space has a root already: open the store that is there".into(),
            ));
        }
        let at = make(space, options)?;
        space.set_root(at)?;
        Self::open_at(space, at, options)
    }

    /// Opens the store at the space's root, or makes it there. Of several processes of the same host that do so at once
    /// one makes it.
    ///
    /// # Errors
    /// As [`Store::open_at`]; [`Error::Full`].
    pub fn open_or_create(space: &Space, options: Options) -> Result<Self> {
        let mut at = space.root()?;
        if at.is_null() {
            let made = make(space, options)?;
            at = space.claim_root(made)?;
            if at != made {
                let heap = Heap::new(space, options.visibility);
                let table = heap.load(offset(made, root::TABLE)?)?;
                super::grow::free_table(&heap, GlobalAddress::from_raw(table))?;
                heap.free(made)?;
            }
        }
        Self::open_at(space, at, options)
    }

    /// Opens the store at the space's root.
    ///
    /// # Errors
    /// As [`Store::open_at`]; [`Error::Invalid`] if the space has no root.
    pub fn open(space: &Space, options: Options) -> Result<Self> {
        let at = space.root()?;
        match at.is_null() {
            true => Err(Error::Invalid("the space has no root: make a store there first".into())),
            false => Self::open_at(space, at, options),
        }
    }

    /// Opens the store whose root lies at an address: a space may have several.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if no store is there, or one of another format; [`Error::Full`] if it has as many members as
    /// it can; those of the space.
    pub fn open_at(space: &Space, at: GlobalAddress, options: Options) -> Result<Self> {
        let word = |n: u64| space.load(offset(at, n)?);
        if word(root::MAGIC)? != root::MAGIC_VALUE {
            return Err(Error::Mismatch(format!("no store is at {at}")));
        }
        let format = word(root::FORMAT)?;
        if format != root::FORMAT_VALUE {
            return Err(Error::Mismatch(format!(
                "the store at {at} is of format {format}, this program knows {}",
                root::FORMAT_VALUE
            )));
        }
        let is_flush = word(root::MODE)? & root::FLUSH != 0;
        let visibility = if is_flush {
            Visibility::Flush
        } else {
            Visibility::Coherent
        };
        let hash_key = [word(root::HASH_KEY)?, word(root::HASH_KEY + 8)?];
        let core = Arc::new(Core::open(Heap::new(space, visibility), at, hash_key, options)?);
        let sweeper = options.sweeps.then(|| Arc::new(Sweeper::start(&core)));
        Ok(Self {
            core,
            _sweeper: sweeper,
        })
    }

    /// Where its root lies.
    pub fn address(&self) -> GlobalAddress {
        self.core.at
    }

    /// Its space.
    pub fn space(&self) -> &Space {
        self.core.heap.space()
    }

    /// How bytes come from host to host.
    pub fn visibility(&self) -> Visibility {
        self.core.heap.visibility
    }

    /// Bytes that all items together may take; 0: as much as the space has.
    ///
    /// # Errors
    /// Those of the space.
    pub fn set_bound(&self, bytes: u64) -> Result<()> {
        self.core.heap.store(self.core.word(root::BOUND)?, bytes)
    }

    /// Bytes that a tenant's items may take; 0: as much as all may.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such tenant; those of the space.
    pub fn set_tenant_bound(&self, tenant: u32, bytes: u64) -> Result<()> {
        self.core.heap.store(self.core.tenant(tenant)?.0, bytes)
    }

    /// Spills from now on what this process evicts, and reads what processes with the same directory have spilled.
    ///
    /// An item stays in memory for each such value and says where it lies, so it is removed, replaced and expires as
    /// any other. The value comes back to memory when it is read a second time, or borrowed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is a directory for these values already, or it is too small; [`Error::Io`].
    pub fn spill_to(&self, options: SpillOptions) -> Result<()> {
        let (core, mut tiers) = (&self.core, self.core.tiers.write());
        if tiers.iter().any(|tier| tier.options().tenant == options.tenant) {
            return Err(Error::Invalid("these values are spilled to a directory already".into()));
        }
        if options
            .tenant
            .is_some_and(|tenant| u64::from(tenant) >= root::TENANTS_MAX)
        {
            return Err(Error::Invalid(format!("{:?} is no tenant", options.tenant)));
        }
        tiers.push(Arc::new(Tier::open(options, core.identity())?));
        Ok(())
    }

    /// Waits until what this process has spilled is in files, for so long at most: whether it is.
    pub fn flush_spilled(&self, time: Nanos) -> bool {
        let tiers = self.core.tiers.read().clone();
        tiers.iter().all(|tier| tier.flush(time))
    }

    /// What all processes did, and what there is, as Prometheus reads it (its text format, version 0.0.4). Each process
    /// adds what it did with each sweep: what one did that was killed since then is missing.
    ///
    /// # Errors
    /// Those of the space.
    pub fn metrics(&self) -> Result<String> {
        self.core.metrics()
    }

    /// Does what the background thread does now and then.
    ///
    /// # Errors
    /// Those of the space; what was not done is done by the next sweep.
    pub fn sweep(&self) -> Result<()> {
        self.core.sweep()
    }
}

/// The root and the first table: all of it in order before its address is known.
fn make(space: &Space, options: Options) -> Result<GlobalAddress> {
    let heap = Heap::new(space, options.visibility);
    let at = heap.alloc(root::BYTES)?;
    let log2 = options
        .buckets
        .clamp(16, 1 << table::LOG2_MAX)
        .next_power_of_two()
        .ilog2();
    let header = heap.alloc_at(at.part(), table::HEADER + 8 * super::chains::segments(log2))?;
    make_table(&heap, header, (log2, None), |part, len| heap.alloc_at(part, len))?;
    let is_flush = u64::from(options.visibility == Visibility::Flush) * root::FLUSH;
    let words = [
        (root::FORMAT, root::FORMAT_VALUE),
        (root::HASH_KEY, rt::random()),
        (root::HASH_KEY + 8, rt::random()),
        (root::MODE, is_flush),
        (root::BOUND, options.bound),
        (root::TABLE, header.raw()),
        (root::SEQUENCE, 1),
        (root::MAGIC, root::MAGIC_VALUE),
    ];
    words
        .into_iter()
        .try_for_each(|(n, word)| heap.store(offset(at, n)?, word))?;
    Ok(at)
}

impl Sweeper {
    fn start(core: &Arc<Core>) -> Self {
        let end = Arc::new(Event::new());
        let (theirs, core) = (Arc::clone(&end), Arc::clone(core));
        let sweep = move || {
            while !theirs.wait_timeout(SWEEP) {
                // What fails is tried again; whoever uses the store hears of it.
                let _ = core.sweep();
            }
        };
        let thread = rt::try_spawn("store-sweep", sweep).ok();
        Self {
            end,
            thread: Mutex::new(thread),
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.end.set();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.free_retired().and_then(|()| self.tell_counters());
        // Otherwise the next sweep of another member finds that this one's session is over.
        let _ = self.member.leave(&self.heap);
    }
}
