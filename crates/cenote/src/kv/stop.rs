//! Ends a server's threads.

use mio::Waker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a server from another thread.
#[derive(Clone)]
pub struct Stop(Arc<Inner>);

struct Inner {
    is_stopped: AtomicBool,
    wakers: Vec<Arc<Waker>>,
}

impl Stop {
    /// For threads that these wake.
    pub fn new(wakers: Vec<Arc<Waker>>) -> Self {
        Self(Arc::new(Inner {
            is_stopped: AtomicBool::new(false),
            wakers,
        }))
    }

    /// The threads end after the commands at hand.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Release);
        self.0.wakers.iter().for_each(|waker| _ = waker.wake());
    }

    /// Whether they are to end.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Acquire)
    }

    /// Stops the server when it is dropped: if one thread ends, however it does, all do.
    pub fn guard(&self) -> Guard {
        Guard(self.clone())
    }
}

/// See [`Stop::guard`].
pub struct Guard(Stop);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.stop();
    }
}
