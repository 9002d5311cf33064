//! Caches kept coherent by directories, as GAM (PVLDB 2018) has them: each pod keeps lines of 512 bytes in its own
//! memory; each line has a home that knows the pods that have it.
//!
//! ```text
//!              read                          own
//!   absent ───────────► shared ───────────────────────► modified      at a pod
//!      ▲                  │ invalidated, or dropped          │
//!      │                  ▼                                  │ recalled: shared again, or absent
//!      └──────────── absent ◄────────────────────────────────┘ written back
//!
//!   home of a line:  unshared | shared by these pods | modified by that pod       and whether it is busy with a
//!                    request: then others wait there
//! ```
//!
//! 1. A pod that has a line not, or not well enough, asks its home: *read* or *own*. Meanwhile the line is *pending*
//!    there.
//! 2. The home, if others have it, first makes them give it up: it *recalls* it from the pod that has modified it,
//!    or *invalidates* it with all pods that share it.
//! 3. Each grant bears a number that rises. What takes a grant back names the last number that it is about.
//!
//! Messages overtake each other, so the number decides:
//! - an invalidation of a pending line remembers its number: a grant up to that is used once, and not kept;
//! - a recall of a grant that is on its way waits until it has come and what it was for is done;
//! - a line that is being written back stays until the home has it. If the home was busy then, a recall is on its way,
//!   and will find that the line is *gone*.
//!
//! A pod's cache is cut into shards; a thread has its shard locked while it looks up and copies. A thread that waits
//! for a home waits for the lowest of the lines that it has asked for, and for nothing else as long as it has asked for
//! one: so no circle of waiting arises.
//!
//! Modified lines that have to make room are sent home by the thread that needs it, and not waited for, as GAM's
//! `Cache::Evict` does (its `WRITE_BACK` is posted, and stays pending). GAM lets a line be read on its way home; here
//! it is waited for, as another pod may have changed it since.
//!
//! In its favour: no message goes through a worker thread of the asking side; all lines of one access are asked for at
//! once.

mod cache;
mod home;
mod wire;

pub use cache::Cache;

use super::rig::{Rig, cache_name, name};
use cenote_base::Result;
use cenote_fabric::rdma::call::{Caller, Callers, Serve};
use std::sync::{Arc, OnceLock};

/// Bytes of a line: GAM's default.
pub const LINE: u64 = 512;

/// Starts the homes and the cache of a pod.
pub fn serve(rig: &Arc<Rig>, pod: usize) -> Arc<Cache> {
    for lane in rig.shape.layout.of_pod(pod) {
        let home = Arc::new(home::Home::new(rig, lane));
        home::Home::start_workers(&home);
        rig.serve(&rig.nodes[lane], home);
    }
    let cache = Arc::new(Cache::new(rig, pod));
    rig.serve(&rig.caches[pod], Arc::clone(&cache) as Arc<dyn Serve>);
    cache
}

/// The way to a node's program, found when it is first used: when all serve.
struct Ways {
    callers: Arc<dyn Callers>,
    known: Vec<OnceLock<Arc<dyn Caller>>>,
    names: fn(usize) -> String,
}

impl Ways {
    fn homes(rig: &Rig, pod: usize) -> Self {
        Self::new(rig, pod, rig.shape.layout.lanes(), name)
    }

    fn caches(rig: &Rig, pod: usize) -> Self {
        Self::new(rig, pod, rig.shape.layout.pods, cache_name)
    }

    fn new(rig: &Rig, pod: usize, count: usize, names: fn(usize) -> String) -> Self {
        Self {
            callers: rig.network.port(pod),
            known: (0..count).map(|_| OnceLock::new()).collect(),
            names,
        }
    }

    fn to(&self, n: usize) -> Result<Arc<dyn Caller>> {
        if let Some(known) = self.known[n].get() {
            return Ok(Arc::clone(known));
        }
        let caller = self.callers.caller(&(self.names)(n))?;
        Ok(Arc::clone(self.known[n].get_or_init(|| caller)))
    }
}
