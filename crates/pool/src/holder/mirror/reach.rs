//! How a holder reaches its mirror: it maps the file, or writes to it over the fabric.

use crate::session::unexpected;
use crate::wire::{LentMemory, LentRange, MirrorRequest, MirrorView};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::mirror::{FILL_STEP, RemoteOptions};
use cenote_fabric::rdma::{Endpoint, Fabric, Key, Remote, RemoteMemory};
use cenote_fabric::{MirrorFile, Region, RemoteMirror, Side};
use cenote_libfabric::{Net, NetOptions};
use std::path::Path;
use std::sync::Arc;

/// How long a node may be silent, and a write take: fences wait for it.
const WRITE_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Bytes of a second at which a mirror on another machine is filled beside the load.
const FILL_RATE: u64 = 256 << 20;
/// A step of filling is followed by so long a pause at least.
const PAUSE: Nanos = Nanos(FILL_STEP * 1_000_000_000 / FILL_RATE);

/// Asks the manager something of the mirror.
pub(super) type Ask<'a> = &'a dyn Fn(MirrorRequest) -> Result<Option<MirrorView>>;

/// This process's way to other machines' memory, once it was needed.
pub(crate) struct Cards {
    /// How long a node may be silent, and a read or a write take.
    timeout: Nanos,
    fabric: Mutex<Option<Arc<dyn Fabric>>>,
}

impl Default for Cards {
    fn default() -> Self {
        Self::with_timeout(WRITE_TIMEOUT)
    }
}

/// The way to mirrors on other machines.
pub(super) struct Reach {
    patience: Nanos,
    /// Rings when a mirror is lost.
    bell: Arc<Event>,
    cards: Arc<Cards>,
}

/// What a mirror is to its holder.
pub(super) enum Reached {
    Mapped(Arc<MirrorFile>),
    Remote(Arc<RemoteMirror>),
}

impl Reached {
    pub(super) fn side(&self) -> Arc<dyn Side> {
        match self {
            Self::Mapped(file) => Arc::clone(file) as Arc<dyn Side>,
            Self::Remote(remote) => Arc::clone(remote) as Arc<dyn Side>,
        }
    }

    /// Why it is of no use any more, if so.
    pub(super) fn lost(&self) -> Option<String> {
        match self {
            Self::Mapped(file) => (!file.is_there()).then(|| "its file is gone".into()),
            Self::Remote(remote) => remote.lost().map(|error| error.to_string()),
        }
    }

    /// The book is about to say that it is whole.
    pub(super) fn set_whole(&self) {
        if let Self::Remote(remote) = self {
            remote.set_whole();
        }
    }

    /// The book says that it is not whole.
    pub(super) fn give_up(&self) {
        if let Self::Remote(remote) = self {
            remote.give_up();
        }
    }

    /// Leaves the fabric to others between two steps of filling.
    pub(super) fn pace(&self) {
        if let Self::Remote(_) = self {
            rt::sleep(PAUSE);
        }
    }
}

impl Reach {
    pub(super) fn new(patience: Nanos, bell: Arc<Event>, cards: Arc<Cards>) -> Self {
        Self { patience, bell, cards }
    }

    /// One that counts as whole.
    pub(super) fn resume(&self, ask: Ask<'_>, region: &Region, view: &MirrorView) -> Result<Reached> {
        if !is_mapped(view) {
            return self.lent(ask, region, view, true);
        }
        // A former holder may have written to it over the fabric.
        ask(MirrorRequest::Unlend(view.grant))?;
        let file = MirrorFile::open(Path::new(&view.path), region.len())?;
        Ok(Reached::Mapped(Arc::new(file)))
    }

    /// One that is to be filled from its beginning.
    pub(super) fn anew(&self, ask: Ask<'_>, region: &Region, view: &MirrorView) -> Result<Reached> {
        if !is_mapped(view) {
            return self.lent(ask, region, view, false);
        }
        let file = MirrorFile::create(Path::new(&view.path), region.len())?;
        Ok(Reached::Mapped(Arc::new(file)))
    }

    fn lent(&self, ask: Ask<'_>, region: &Region, view: &MirrorView, believed: bool) -> Result<Reached> {
        let request = MirrorRequest::Lend {
            mirror: view.grant,
            len: region.len(),
            anew: !believed,
        };
        let lent = ask(request)?.and_then(|view| view.lent).ok_or_else(unexpected)?;
        let endpoint = self.cards.fabric()?.connect(&lent.address)?;
        let bell = Arc::clone(&self.bell);
        let options = RemoteOptions {
            believed,
            patience: self.patience,
            on_lost: Box::new(move |_| bell.set()),
        };
        let (memory, journal) = (remote(&endpoint, lent.memory), remote(&endpoint, lent.journal));
        if memory.len() != region.len() {
            return Err(Error::Mismatch(format!(
                "grant {} was lent with another length",
                view.grant
            )));
        }
        let remote = RemoteMirror::begin(memory, journal, options)?;
        Ok(Reached::Remote(Arc::new(remote)))
    }
}

impl Cards {
    pub(crate) fn with_timeout(timeout: Nanos) -> Self {
        let fabric = Mutex::default();
        Self { timeout, fabric }
    }

    /// Memory that is lent.
    pub(crate) fn reach(&self, lent: &LentMemory) -> Result<RemoteMemory> {
        Ok(way_to(&self.way(&lent.address)?, lent))
    }

    /// The way to a node.
    pub(crate) fn way(&self, address: &str) -> Result<Arc<dyn Endpoint>> {
        self.fabric()?.connect(address)
    }

    pub(crate) fn fabric(&self) -> Result<Arc<dyn Fabric>> {
        if rt::simulated() {
            return Err(Error::Invalid("libfabric is not simulated".into()));
        }
        let mut fabric = self.fabric.lock();
        if let Some(fabric) = &*fabric {
            return Ok(Arc::clone(fabric));
        }
        let net: Arc<dyn Fabric> = Arc::new(Net::new(NetOptions {
            timeout: self.timeout,
            ..NetOptions::default()
        })?);
        *fabric = Some(Arc::clone(&net));
        Ok(net)
    }
}

/// Memory that is lent, over a way to its node.
pub(crate) fn way_to(way: &Arc<dyn Endpoint>, lent: &LentMemory) -> RemoteMemory {
    remote(way, lent.memory)
}

/// Whether a whole mirror may lack what the region's memory holds already: lines that the former process ordered, and
/// had not fenced, were in its own memory when it was killed.
pub(super) fn may_lack(view: &MirrorView, region: &Region) -> bool {
    !is_mapped(view) && !region.state().clean
}

/// Whether this process can map it. The name alone does not tell: another machine may have one of the same name.
fn is_mapped(view: &MirrorView) -> bool {
    let is_there = rt::fs::exists(&view.path).unwrap_or(false);
    view.machine == cenote_fabric::boot() && is_there
}

fn remote(endpoint: &Arc<dyn Endpoint>, range: LentRange) -> RemoteMemory {
    let LentRange { key, base, len } = range;
    let key = Key(key);
    RemoteMemory::new(Arc::clone(endpoint), Remote { key, base, len })
}
