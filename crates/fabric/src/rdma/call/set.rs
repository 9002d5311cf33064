//! Calls that were posted together: which are complete, and whether a thread waits for them.

use super::Call;
use cenote_base::rt::{Event, Mutex};
use cenote_base::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module. Implementations complete calls by their place; the first completion counts.
pub struct Set {
    /// Set when all are complete, if a thread sleeps.
    pub event: Arc<Event>,
    /// A thread sleeps on the event, or will.
    pub slept: AtomicBool,
    done: AtomicBool,
    body: Mutex<Body>,
}

struct Body {
    calls: Vec<Call>,
    complete: Vec<bool>,
    left: usize,
}

impl Set {
    /// Of calls as they were posted. None of them is complete.
    pub fn new(calls: Vec<Call>) -> Self {
        let left = calls.len();
        let complete = vec![false; left];
        Self {
            event: Arc::default(),
            slept: AtomicBool::new(false),
            done: AtomicBool::new(left == 0),
            body: Mutex::new(Body { calls, complete, left }),
        }
    }

    /// How many calls.
    #[allow(clippy::len_without_is_empty, reason = "an empty one is never made")]
    pub fn len(&self) -> usize {
        self.body.lock().complete.len()
    }

    /// Whether all are complete.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// Changes one that is under way, or looks at it.
    pub fn with<T>(&self, index: usize, f: impl FnOnce(&mut Call) -> T) -> T {
        f(&mut self.body.lock().calls[index])
    }

    /// Room for the answer of one that is under way.
    pub fn room(&self, index: usize) -> Option<Vec<u8>> {
        let mut body = self.body.lock();
        let is_under_way = !body.complete[index];
        is_under_way.then(|| core::mem::take(&mut body.calls[index].answer))
    }

    /// One is complete, with the answer that it holds. Says whether it was not before.
    pub fn complete(&self, index: usize, result: Result<()>) -> bool {
        self.finish(index, |call| call.result = result)
    }

    /// One is complete, with this answer.
    pub fn answer(&self, index: usize, answer: Result<Vec<u8>>) -> bool {
        self.finish(index, |call| match answer {
            Ok(bytes) => (call.answer, call.result) = (bytes, Ok(())),
            Err(error) => call.result = Err(error),
        })
    }

    /// One is complete, with this answer, and these bytes at the beginning of its memory.
    pub fn answer_filling(&self, index: usize, answer: Result<(Vec<u8>, Vec<u8>)>) -> bool {
        self.finish(index, |call| match answer {
            Ok((bytes, filled)) => (call.answer, call.result) = (bytes, fill(&mut call.memory, &filled)),
            Err(error) => call.result = Err(error),
        })
    }

    fn finish(&self, index: usize, set: impl FnOnce(&mut Call)) -> bool {
        let mut body = self.body.lock();
        if core::mem::replace(&mut body.complete[index], true) {
            return false;
        }
        set(&mut body.calls[index]);
        if body.calls[index].result.is_err() {
            body.calls[index].answer.clear();
        }
        assert!(body.left > 0, "a call completes once");
        body.left -= 1;
        let done = body.left == 0;
        drop(body);
        if done {
            self.done.store(true, Ordering::SeqCst);
            if self.slept.load(Ordering::SeqCst) {
                self.event.set();
            }
        }
        true
    }

    /// All that are not complete end with this error.
    pub fn give_up(&self, error: impl Fn(&Call) -> Option<Error>) {
        for index in 0..self.len() {
            let body = self.body.lock();
            let end = (!body.complete[index]).then(|| error(&body.calls[index])).flatten();
            drop(body);
            end.into_iter().for_each(|e| {
                self.complete(index, Err(e));
            });
        }
    }

    /// The calls, once all are complete.
    pub fn take(&self) -> Vec<Call> {
        core::mem::take(&mut self.body.lock().calls)
    }
}

/// Copies to the beginning of a call's memory.
fn fill(memory: &mut [u8], filled: &[u8]) -> Result<()> {
    let beginning = memory.get_mut(..filled.len());
    let beginning = beginning.ok_or_else(|| Error::corrupt("more for a call's memory than that has"))?;
    beginning.copy_from_slice(filled);
    Ok(())
}
