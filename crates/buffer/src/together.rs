//! Work of recovery that several threads do together, so that they wait for storage at the same time.
//!
//! While a database recovers no other thread uses it, and what takes its time is waiting: a page out of storage or
//! remote memory, and the next one only then. With [`THREADS`] waiting at once a drive is kept busy; more would only
//! queue there. The calling thread is one of them, and does all of it where the system gives no other.

use std::sync::Arc;

use cenote_base::rt::{self, JoinHandle, Mutex};

/// Threads at most.
const THREADS: usize = 16;

/// Does `work` for each of `items`, by at most `most` threads, none of which is started for fewer than `each` of them;
/// results in the order of the items.
pub(crate) fn together<T, R, W>(items: Vec<T>, each: usize, most: usize, work: W) -> Vec<R>
where
    T: Send + 'static,
    R: Send + 'static,
    W: Fn(T) -> R + Send + Sync + 'static,
{
    assert!(each > 0, "a thread is started for at least one item");
    let count = items.len();
    let threads = count.div_ceil(each).min(THREADS).min(most);
    let shared = Arc::new((Mutex::new(items.into_iter().enumerate()), work));
    let others: Vec<JoinHandle<Vec<(usize, R)>>> = (1..threads)
        .map_while(|i| {
            let shared = Arc::clone(&shared);
            rt::try_spawn(&format!("recovery-{i}"), move || take_all(&shared.0, &shared.1)).ok()
        })
        .collect();
    let mut results = take_all(&shared.0, &shared.1);
    for thread in others {
        match thread.join() {
            Ok(more) => results.extend(more),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    assert!(
        results.len() == count,
        "{} of {count} items have a result",
        results.len()
    );
    results.sort_unstable_by_key(|(index, _)| *index);
    assert!(
        results.iter().enumerate().all(|(place, (index, _))| place == *index),
        "each item has one result, in its place"
    );
    results.into_iter().map(|(_, result)| result).collect()
}

fn take_all<T, R>(items: &Mutex<impl Iterator<Item = (usize, T)>>, work: impl Fn(T) -> R) -> Vec<(usize, R)> {
    let mut results = Vec::new();
    loop {
        let next = items.lock().next();
        match next {
            Some((index, item)) => results.push((index, work(item))),
            None => return results,
        }
    }
}
