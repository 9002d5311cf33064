//! Threads that have memory nodes register slabs: one for each node of a request, and a bounded number in all.
//!
//! A node that is silent keeps its thread for as long as an order may take, though the request has been answered: so
//! threads are counted, not requests.

use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Error, Result};
use std::sync::Arc;

/// Threads that there are at most.
pub(super) const REACHING_MAX: usize = 64;

/// See the module. Threads of former leaderships count, too.
#[derive(Default)]
pub(super) struct Reaching {
    running: Mutex<usize>,
    fewer: Condvar,
}

/// A thread's place; free when it is dropped.
pub(super) struct Place(Arc<Reaching>);

impl Reaching {
    /// # Errors
    /// [`Error::Busy`] if all places are taken.
    pub(super) fn check_room(&self) -> Result<()> {
        check(*self.running.lock())
    }

    /// # Errors
    /// As [`Reaching::check_room`].
    pub(super) fn place(self: &Arc<Self>) -> Result<Place> {
        let mut running = self.running.lock();
        check(*running)?;
        *running += 1;
        Ok(Place(Arc::clone(self)))
    }

    /// Does it in a thread that has a place. All that `body` has is gone when the place is free.
    ///
    /// # Errors
    /// As [`Reaching::place`]; [`Error::Io`] if there is no thread to be had.
    pub(super) fn spawn(self: &Arc<Self>, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let place = self.place()?;
        let thread = rt::try_spawn("pool slabs", move || {
            body();
            drop(place);
        });
        thread
            .map(drop)
            .map_err(|error| Error::io("a thread that reaches slabs", error))
    }

    /// Waits until there is none; false if that did not happen in time.
    pub(super) fn wait_ended(&self, timeout: Nanos) -> bool {
        let until = rt::now() + timeout;
        let mut running = self.running.lock();
        while *running > 0 && rt::now() < until {
            running = self.fewer.wait_timeout(running, until.since(rt::now())).0;
        }
        *running == 0
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        *self.running.lock()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.0.running.lock();
        assert!(*running > 0, "a place was counted");
        *running -= 1;
        self.0.fewer.notify_all();
    }
}

fn check(running: usize) -> Result<()> {
    assert!(running <= REACHING_MAX, "{running} threads reach slabs");
    match running < REACHING_MAX {
        true => Ok(()),
        false => Err(Error::Busy(format!(
            "this manager has {REACHING_MAX} threads that wait for memory nodes to register slabs, and no more: ask again"
        ))),
    }
}
