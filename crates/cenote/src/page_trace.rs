//! A trace of page accesses, written to a file while the server works: `CENOTE TRACE`, `cenote trace`.
//!
//! Each thread's events come with the processor time that it has used since its event before, marks with that of the
//! process, both without what the trace itself takes. So waiting is in no trace: not for pages, nor for a processor that
//! others had. The format is [`cenote_engine::trace`]'s.

use cenote_base::PageId;
use cenote_base::rt::Nanos;
use cenote_engine::trace::{AccessObserver, PageAccess, TraceEncoder, TraceEvent, Traced};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A trace is given up when its file would be larger.
const BYTES_MOST: u64 = 8 << 30;

/// A trace under way.
pub struct PageTrace {
    path: PathBuf,
    /// Tells traces of this process apart, for threads that remember one.
    number: u64,
    /// Nanoseconds of a look at a thread's clock, which no event is to have.
    clock_cost: u64,
    writing: Mutex<Writing>,
}

/// What a trace came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Accesses to pages.
    pub accesses: u64,
    /// Lists of pages that were announced.
    pub lists: u64,
    /// Threads that made them.
    pub threads: u32,
    /// Bytes of the file.
    pub bytes: u64,
}

struct Writing {
    file: File,
    encoder: TraceEncoder,
    /// Whole frames not yet written.
    ready: Vec<u8>,
    summary: Summary,
    /// Marks that there have been.
    part: u64,
    /// Processor time of the process at the mark before.
    processor: Nanos,
    /// Nanoseconds of it since then that the trace took itself.
    own: u64,
    failed: Option<io::Error>,
}

/// What a thread remembers of the part that it told of last.
#[derive(Clone, Copy)]
struct Teller {
    trace: u64,
    part: u64,
    thread: u32,
    /// Its processor time at the end of its last event.
    until: u64,
}

thread_local! {
    static TELLER: Cell<Teller> = const { Cell::new(Teller { trace: 0, part: 0, thread: 0, until: 0 }) };
}

fn clock(id: ClockId) -> Nanos {
    let time = clock_gettime(id);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

impl PageTrace {
    /// Makes the file, which is not there yet.
    ///
    /// # Errors
    /// The system's, of the file.
    pub fn begin(path: &Path) -> io::Result<PageTrace> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let header = TraceEncoder::header();
        if let Err(error) = file.write_all(&header) {
            // What is left of it would refuse the next try.
            std::fs::remove_file(path).ok();
            return Err(error);
        }
        Ok(PageTrace::over(path, file, header.len() as u64))
    }

    /// Of a file that has so many bytes.
    fn over(path: &Path, file: File, bytes: u64) -> PageTrace {
        static TRACES: AtomicU64 = AtomicU64::new(1);
        PageTrace {
            path: path.to_owned(),
            number: TRACES.fetch_add(1, Ordering::Relaxed),
            clock_cost: clock_cost(),
            writing: Mutex::new(Writing {
                file,
                encoder: TraceEncoder::default(),
                ready: Vec::new(),
                summary: Summary {
                    bytes,
                    ..Summary::default()
                },
                part: 0,
                processor: clock(ClockId::ProcessCPUTime),
                own: 0,
                failed: None,
            }),
        }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A part of the workload ends here.
    pub fn mark(&self, name: &str) {
        self.lock().mark(name);
    }

    /// The last event, and all bytes in the file. What comes later is not written.
    ///
    /// # Errors
    /// What kept it from being written whole: a disk that is full or fails, or its greatest size.
    pub fn end(&self) -> io::Result<Summary> {
        let mut writing = self.lock();
        writing.mark("end");
        writing.tell(&TraceEvent {
            thread: 0,
            processor: Nanos::ZERO,
            what: Traced::End,
        });
        writing.write(0);
        let summary = writing.summary;
        let ended = io::Error::other("the trace has ended");
        match writing.failed.replace(ended) {
            Some(error) => Err(error),
            None => Ok(summary),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: Traced) {
        let begun = clock(ClockId::ThreadCPUTime).raw();
        let mut writing = self.lock();
        let mut teller = TELLER.get();
        if teller.trace != self.number {
            teller = Teller {
                trace: self.number,
                part: writing.part,
                thread: writing.summary.threads,
                until: begun,
            };
            writing.summary.threads += 1;
        }
        // What it used before a mark, and told nothing of, the mark has told.
        let used = match teller.part == writing.part {
            true => begun.saturating_sub(teller.until),
            false => 0,
        };
        teller.part = writing.part;
        let event = TraceEvent {
            thread: teller.thread,
            processor: Nanos(used.saturating_sub(self.clock_cost)),
            what,
        };
        writing.tell(&event);
        teller.until = clock(ClockId::ThreadCPUTime).raw();
        writing.own += teller.until.saturating_sub(begun) + used.min(self.clock_cost);
        drop(writing);
        TELLER.set(teller);
    }
}

/// What is between two looks at a thread's clock when nothing is: a look.
fn clock_cost() -> u64 {
    let look = || clock(ClockId::ThreadCPUTime).raw();
    let between = |_| {
        let before = look();
        look().saturating_sub(before)
    };
    (0..1000).map(between).min().unwrap_or(0)
}

/// A server that ends, or becomes another kind of server, leaves a whole trace.
impl Drop for PageTrace {
    fn drop(&mut self) {
        // It has ended already, or cannot be written whole: then its reader says so.
        let _ = self.end();
    }
}

impl AccessObserver for PageTrace {
    fn page(&self, page: PageId, access: PageAccess) {
        self.tell(Traced::Page(page, access));
    }

    fn pages(&self, pages: &[PageId], ahead: bool) {
        if pages.is_empty() {
            return;
        }
        self.tell(Traced::Pages {
            pages: pages.to_vec(),
            ahead,
        });
    }
}

impl Writing {
    fn mark(&mut self, name: &str) {
        let now = clock(ClockId::ProcessCPUTime);
        let used = now.raw().saturating_sub(self.processor.raw());
        let processor = Nanos(used.saturating_sub(std::mem::take(&mut self.own)));
        self.processor = now;
        self.part += 1;
        let what = Traced::Mark {
            name: name.to_owned(),
            processor,
        };
        self.tell(&TraceEvent {
            thread: 0,
            processor: Nanos::ZERO,
            what,
        });
    }

    fn tell(&mut self, event: &TraceEvent) {
        if self.failed.is_some() {
            return;
        }
        match event.what {
            Traced::Page(..) => self.summary.accesses += 1,
            Traced::Pages { .. } => self.summary.lists += 1,
            Traced::Mark { .. } | Traced::End => {}
        }
        self.encoder.push(event, &mut self.ready);
        self.write(1 << 20);
    }

    /// Writes what is ready, if it is so many bytes.
    fn write(&mut self, least: usize) {
        if self.failed.is_some() || self.ready.len() < least {
            return;
        }
        self.summary.bytes += self.ready.len() as u64;
        let written = match self.summary.bytes > BYTES_MOST {
            true => Err(io::Error::other(format!(
                "the trace has reached {} GiB",
                BYTES_MOST >> 30
            ))),
            false => self.file.write_all(&self.ready),
        };
        self.failed = written.err();
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_engine::trace::TraceDecoder;

    fn accesses(trace: &PageTrace, count: u32) {
        (0..count).for_each(|n| trace.page(PageId::new(n % 3, n.wrapping_mul(2_654_435_761)), PageAccess::Read));
    }

    #[test]
    fn threads_are_numbered_and_all_of_theirs_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let trace = PageTrace::begin(&path).unwrap();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| _ = scope.spawn(|| accesses(&trace, 10_000)));
        });
        let summary = trace.end().unwrap();
        assert_eq!((summary.accesses, summary.threads), (40_000, 4));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, summary.bytes);
        let mut by_thread = [0; 4];
        for event in TraceDecoder::new(&bytes).unwrap() {
            let event = event.unwrap();
            if matches!(event.what, Traced::Page(..)) {
                by_thread[event.thread as usize] += 1;
            }
        }
        assert_eq!(by_thread, [10_000; 4]);
        accesses(&trace, 10);
        assert_eq!(
            std::fs::read(&path).unwrap().len(),
            bytes.len(),
            "what comes later is not written"
        );
    }

    /// A process that does nothing but tell has used next to nothing, by the trace.
    #[test]
    fn what_the_trace_takes_is_in_no_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let before = clock(ClockId::ThreadCPUTime).raw();
        let trace = PageTrace::begin(&path).unwrap();
        accesses(&trace, 200_000);
        let taken = clock(ClockId::ThreadCPUTime).raw() - before;
        trace.end().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let told = TraceDecoder::new(&bytes)
            .unwrap()
            .map(|event| event.unwrap().processor.raw());
        let told: u64 = told.sum();
        assert!(told < taken / 2, "{told} ns of {taken}, which the trace took");
    }

    /// What a thread computes behind its last event of a part is its process's, at the mark, and not the next part's.
    #[test]
    fn no_time_is_in_two_parts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let trace = PageTrace::begin(&path).unwrap();
        accesses(&trace, 1);
        let until = clock(ClockId::ThreadCPUTime).raw() + 50_000_000;
        while clock(ClockId::ThreadCPUTime).raw() < until {}
        trace.mark("one");
        accesses(&trace, 1);
        trace.end().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let events: Vec<TraceEvent> = TraceDecoder::new(&bytes).unwrap().map(Result::unwrap).collect();
        let [first, mark, second, ..] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!([first.processor, second.processor], [Nanos::ZERO; 2]);
        assert!(
            matches!(mark.what, Traced::Mark { processor, .. } if processor.raw() >= 40_000_000),
            "{mark:?}"
        );
    }

    #[test]
    fn a_trace_that_is_dropped_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let trace = PageTrace::begin(&path).unwrap();
        accesses(&trace, 10);
        drop(trace);
        let bytes = std::fs::read(&path).unwrap();
        assert!(TraceDecoder::new(&bytes).unwrap().all(|event| event.is_ok()));
    }

    #[test]
    fn a_disk_that_takes_no_more_is_told_at_the_end() {
        let path = Path::new("/dev/full");
        let trace = PageTrace::over(path, OpenOptions::new().write(true).open(path).unwrap(), 0);
        accesses(&trace, 1_000_000);
        let error = trace.end().expect_err("nothing was written");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_file_ends_at_its_greatest_size() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let trace = PageTrace::over(&path, File::create(&path).unwrap(), BYTES_MOST);
        accesses(&trace, 10);
        assert!(trace.end().expect_err("too long").to_string().contains("8 GiB"));
        assert_eq!(std::fs::read(&path).unwrap().len(), 0);
    }
}
