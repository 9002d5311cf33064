//! Reads objects before they are used, several at a time: a request to a bucket takes as long for one as for many.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::rt::{self, Condvar, JoinHandle, Mutex};
use cenote_base::{Error, Result};

/// Objects that are read at a time.
const THREADS: usize = 4;
/// Those that wait to be used, at most.
const DEPTH: usize = 6;

/// Objects of which each is used once, in order.
pub(super) struct Prefetch<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<T> {
    count: usize,
    read: Box<dyn Fn(usize) -> Result<T> + Send + Sync>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    /// The next one that is read, and the next that is used.
    read: usize,
    used: usize,
    found: BTreeMap<usize, Result<T>>,
    is_over: bool,
}

impl<T: Send + 'static> Prefetch<T> {
    /// `count` of them, each of which `read` reads.
    pub fn new(count: usize, read: impl Fn(usize) -> Result<T> + Send + Sync + 'static) -> Prefetch<T> {
        let shared = Arc::new(Shared {
            count,
            read: Box::new(read),
            state: Mutex::new(State {
                read: 0,
                used: 0,
                found: BTreeMap::new(),
                is_over: false,
            }),
            changed: Condvar::default(),
        });
        let spawn = |_| {
            let shared = Arc::clone(&shared);
            rt::spawn("archive-read", move || shared.serve())
        };
        let threads = (0..THREADS.min(count)).map(spawn).collect();
        Prefetch { shared, threads }
    }

    /// The `n`-th.
    ///
    /// # Panics
    /// If they are not used in order.
    pub fn take(&self, n: usize) -> Result<T> {
        let mut state = self.shared.state.lock();
        assert!(n == state.used && n < self.shared.count, "objects are used in order");
        loop {
            if let Some(found) = state.found.remove(&n) {
                state.used = n + 1;
                self.shared.changed.notify_all();
                return found;
            }
            if state.is_over {
                return Err(Error::Canceled);
            }
            state = self.shared.changed.wait(state);
        }
    }
}

impl<T> Shared<T> {
    fn serve(&self) {
        let mut over = Over(self, false);
        let mut state = self.state.lock();
        while !state.is_over && state.read < self.count {
            if state.read >= state.used + DEPTH {
                state = self.changed.wait(state);
                continue;
            }
            let n = state.read;
            state.read += 1;
            drop(state);
            let found = (self.read)(n);
            state = self.state.lock();
            state.found.insert(n, found);
            self.changed.notify_all();
        }
        drop(state);
        over.1 = true;
    }
}

/// A thread that panics has not found what is waited for; one that ends in order says so.
struct Over<'a, T>(&'a Shared<T>, bool);

impl<T> Drop for Over<'_, T> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.state.lock().is_over = true;
            self.0.changed.notify_all();
        }
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_come_any_more_is_not_waited_for() {
        let prefetch = Prefetch::new(1, |_| -> Result<u8> { panic!("a reader that panics") });
        assert!(matches!(prefetch.take(0), Err(Error::Canceled)));
    }
    use cenote_base::rt::Nanos;
    use cenote_base::rt::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_comes_in_order_and_no_more_are_read_than_wait() {
        let begun = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&begun);
        let prefetch = Prefetch::new(40, move |n| {
            counted.fetch_add(1, Ordering::SeqCst);
            rt::sleep(Nanos::from_micros(((n * 7) % 5) as u64 * 200));
            Ok(n)
        });
        for n in 0..30 {
            assert_eq!(prefetch.take(n).expect("read"), n);
            assert!(begun.load(Ordering::SeqCst) <= n + 1 + DEPTH);
        }
        drop(prefetch);
        assert!(begun.load(Ordering::SeqCst) <= 30 + DEPTH);
        assert!(Prefetch::new(0, Ok::<usize, _>).threads.is_empty());
    }
}
