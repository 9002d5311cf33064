//! Batches of reads and writes: submitted together, done in any order, completed together, so
//! that read-ahead and write-back wait for the slowest and not for the sum.
//!
//! A request owns its buffers and comes back with them. The operating system's batches are run
//! by a few threads that start with the first batch; other file systems run them at once, and may say when they would
//! have been done.

use super::file::File;
use crate::rt::{self, Condvar, Mutex, Nanos};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// What a request does; the buffers come back with it.
#[derive(Debug)]
pub enum IoOp {
    /// Fills the buffer from the file; bytes beyond the file's end stay as they were.
    Read(Box<[u8]>),
    /// Writes the buffers in a row.
    Write(Vec<Box<[u8]>>),
}

/// One read or write of a batch.
#[derive(Debug)]
pub struct IoRequest {
    /// The file.
    pub file: File,
    /// Where in it, in bytes.
    pub offset: u64,
    /// What to do.
    pub op: IoOp,
    /// The caller's mark, to know it again.
    pub tag: u64,
    /// How it went, once complete: the number of bytes.
    pub result: io::Result<usize>,
}

impl IoRequest {
    /// A read of `buf.len()` bytes at `offset`.
    pub fn read(file: File, offset: u64, buf: Box<[u8]>, tag: u64) -> Self {
        Self {
            file,
            offset,
            op: IoOp::Read(buf),
            tag,
            result: Ok(0),
        }
    }

    /// A write of `bufs` at `offset`.
    pub fn write(file: File, offset: u64, bufs: Vec<Box<[u8]>>, tag: u64) -> Self {
        Self {
            file,
            offset,
            op: IoOp::Write(bufs),
            tag,
            result: Ok(0),
        }
    }

    /// Does it if it is a short read of what is in memory; otherwise it comes back, to be done anew.
    ///
    /// # Errors
    /// The request.
    pub(super) fn run_now(mut self) -> Result<Self, Self> {
        let is_done = match &mut self.op {
            IoOp::Read(buf) => buf.len() <= SHORT && self.file.read_now(buf, self.offset),
            IoOp::Write(_) => false,
        };
        let IoOp::Read(buf) = &self.op else { return Err(self) };
        match is_done {
            true => {
                self.result = Ok(buf.len());
                Ok(self)
            }
            false => Err(self),
        }
    }

    /// Does it, here and now.
    pub fn run(mut self) -> Self {
        self.result = match &mut self.op {
            IoOp::Read(buf) => self.file.read_at(buf, self.offset),
            IoOp::Write(bufs) => {
                let parts: Vec<&[u8]> = bufs.iter().map(|b| &**b).collect();
                let len = parts.iter().map(|p| p.len()).sum();
                self.file.write_vectored_at(&parts, self.offset).map(|()| len)
            }
        };
        self
    }
}

/// Requests under way.
pub struct Batch {
    state: Arc<State>,
    /// Where those wait that no thread has taken yet.
    queue: Option<Arc<Queue>>,
}

struct State {
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    /// Requests of the batch, done or not.
    submitted: usize,
    pending: usize,
    /// Not complete before.
    ready: Nanos,
    done: Vec<IoRequest>,
}

impl Batch {
    /// A batch that is done already.
    pub fn done(requests: Vec<IoRequest>) -> Self {
        Self::with(0, requests, None)
    }

    /// A batch whose requests are done, but that is complete at `ready` only.
    pub fn done_at(requests: Vec<IoRequest>, ready: Nanos) -> Self {
        let batch = Self::done(requests);
        let mut progress = batch.state.progress.lock();
        assert!(progress.pending == 0, "requests that are done at a time have been run");
        progress.ready = ready;
        drop(progress);
        batch
    }

    fn with(pending: usize, done: Vec<IoRequest>, queue: Option<Arc<Queue>>) -> Self {
        let progress = Mutex::new(Progress {
            submitted: pending + done.len(),
            pending,
            ready: Nanos::ZERO,
            done,
        });
        let state = Arc::new(State {
            progress,
            changed: Condvar::new(),
        });
        Self { state, queue }
    }

    /// Waits for all of them and hands them back, in no particular order. The calling thread runs those that no other
    /// has taken: so many that wait do not share a few threads.
    pub fn complete(self) -> Vec<IoRequest> {
        while let Some(request) = self.queue.as_ref().and_then(|queue| queue.take_of(&self.state)) {
            self.state.finish(request.run());
        }
        let progress = self.state.progress.lock();
        let mut progress = self.state.changed.wait_while(progress, |p| p.pending > 0);
        let (done, ready) = (std::mem::take(&mut progress.done), progress.ready);
        assert!(
            done.len() == progress.submitted,
            "a batch of {} requests gives {} back",
            progress.submitted,
            done.len()
        );
        drop(progress);
        if ready > Nanos::ZERO {
            rt::sleep(ready - rt::now());
        }
        done
    }

    /// Whether all are done: then [`Batch::complete`] does not wait.
    pub fn is_complete(&self) -> bool {
        let progress = self.state.progress.lock();
        progress.pending == 0 && progress.ready <= rt::now()
    }
}

impl State {
    fn finish(&self, request: IoRequest) {
        let mut progress = self.progress.lock();
        assert!(progress.pending > 0, "each request of a batch ends once");
        progress.pending -= 1;
        progress.done.push(request);
        assert!(
            progress.pending + progress.done.len() == progress.submitted,
            "a request of a batch is under way or done"
        );
        if progress.pending == 0 {
            self.changed.notify_all();
        }
    }
}

/// Threads that run requests.
pub(super) struct Pool(Arc<Queue>);

struct Queue {
    requests: Mutex<VecDeque<(IoRequest, Arc<State>)>>,
    arrived: Condvar,
    threads: usize,
}

/// Bytes of a read that is tried at once; a long one is copied beside the one that waits for it.
const SHORT: usize = 64 << 10;

/// Requests that may be under way at a device at once.
const THREADS: usize = 4;

impl Pool {
    /// Starts as many of the threads as the system gives.
    pub(super) fn new() -> Self {
        let queue = |threads| Queue {
            requests: Mutex::default(),
            arrived: Condvar::new(),
            threads,
        };
        let shared = Arc::new(queue(THREADS));
        let started = (0..THREADS)
            .filter(|i| {
                let queue = Arc::clone(&shared);
                rt::try_spawn(&format!("io-{i}"), move || queue.serve()).is_ok()
            })
            .count();
        Self(if started == 0 { Arc::new(queue(0)) } else { shared })
    }

    /// Queues the requests, beside those that are done; with no thread to run them, runs them.
    pub(super) fn submit(&self, mut done: Vec<IoRequest>, requests: Vec<IoRequest>) -> Batch {
        if self.0.threads == 0 {
            done.extend(requests.into_iter().map(IoRequest::run));
            return Batch::done(done);
        }
        let batch = Batch::with(requests.len(), done, Some(Arc::clone(&self.0)));
        let mut queue = self.0.requests.lock();
        queue.extend(requests.into_iter().map(|r| (r, Arc::clone(&batch.state))));
        drop(queue);
        self.0.arrived.notify_all();
        batch
    }
}

impl Queue {
    /// A request of a batch, if one waits.
    fn take_of(&self, batch: &Arc<State>) -> Option<IoRequest> {
        let mut requests = self.requests.lock();
        let place = requests.iter().position(|(_, state)| Arc::ptr_eq(state, batch))?;
        requests.remove(place).map(|(request, _)| request)
    }

    fn serve(&self) {
        loop {
            let queue = self.requests.lock();
            let mut queue = self.arrived.wait_while(queue, |q| q.is_empty());
            let next = queue.pop_front();
            drop(queue);
            if let Some((request, state)) = next {
                state.finish(request.run());
            }
        }
    }
}
