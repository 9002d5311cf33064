//! A reader becomes the server that has the database, and keeps its frames (PolarDB Serverless, section 5.1).
//!
//! 1. *Take*: storage nodes let this start write, and no former one. The reader goes on; if another server was faster,
//!    for good.
//! 2. Its sessions end; its threads do.
//! 3. *Last moves*: the frames lose what the former server has changed since the reader's moment. From the take on the
//!    log does not grow, so these come to its end.
//! 4. The engine opens over those frames as over those of a killed server: all of them are as of the log's end, so none
//!    is rebuilt. Transactions that had not ended are found in undo, as at any start, and rolled back behind it.
//!
//! Where a session keeps the former engine, or the last moves do not come in a second, it opens over new memory: cold.
//! A region that such a session keeps is not to be had: then that is private memory, 1 GiB at most.

use crate::api::{EngineOptions, MemoryKind, Survive};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::open::open_directory_after;
use cenote_base::rt;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_buffer::Kept;
use cenote_storage::DataDir;
use std::sync::Arc;

/// How long users of the former engine have to let go of it.
const LET_GO: rt::Nanos = rt::Nanos::from_secs(1);

/// Memory of a server whose region a session of the reader keeps, at most.
const PRIVATE_MOST: u64 = 1 << 30;

/// What a reader that has ended leaves.
enum Left {
    /// Frames as of the moment at which the database was taken.
    Frames(Kept),
    /// Frames that are not as of that moment.
    Nothing,
    /// A session keeps the engine, and its memory with it.
    Held,
}

/// With a region that is still in use, private memory.
fn beside_the_reader(options: EngineOptions) -> EngineOptions {
    match options.memory {
        MemoryKind::Cxl => EngineOptions {
            memory: MemoryKind::Dram,
            memory_size: options.memory_size.min(PRIVATE_MOST),
            survive: Survive::Process,
            region: None,
            ..options
        },
        MemoryKind::Dram | MemoryKind::Tiered => options,
    }
}

/// A database that was taken for a process that still reads it.
pub struct Promotion {
    options: EngineOptions,
    dir: DataDir,
}

impl Engine {
    /// Takes the database that this reader reads, as `options` say; it goes on until [`Promotion::open`].
    ///
    /// # Errors
    /// `Busy`: another server has taken it meanwhile. Timeout: no majority of the storage nodes answers, and whether it
    /// was taken is unknown.
    pub fn promote(&self, options: EngineOptions) -> Result<Promotion> {
        let Some(follow) = &self.follow else {
            return Err(Error::Config("this server has the database already".into()));
        };
        // The answer that is waited for now comes with the entry that takes the database.
        follow.follower.hurry(true);
        if planted(Fault::LastMoves) {
            self.pool.end();
        }
        let dir = open_directory_after(&self.storage.0, &options);
        if dir.is_err() {
            follow.follower.hurry(false);
        }
        Ok(Promotion { options, dir: dir? })
    }

    /// Ends a reader: what is left of its memory.
    fn leave(reader: Arc<Engine>, dir: &DataDir, took: &mut Took) -> Left {
        reader.stopping.store(true, Ordering::Release);
        reader.pool.end();
        took.note("threads of the pool");
        reader.stop_threads();
        took.note("threads of the engine");
        let followed = dir.taken_at().map(|taken| match planted(Fault::LastMoves) {
            true => Ok(()),
            false => reader.pool.follow_to_end(taken),
        });
        took.note("last moves");
        let until = rt::now() + LET_GO;
        while Arc::strong_count(&reader) > 1 && rt::now() < until {
            rt::sleep(rt::Nanos::from_millis(1));
        }
        let kept = reader.pool.kept();
        let was_last = Arc::into_inner(reader).is_some();
        took.note("memory let go");
        match (was_last, followed) {
            (false, _) => Left::Held,
            (true, Some(Ok(()))) => Left::Frames(kept),
            (true, _) => Left::Nothing,
        }
    }
}

impl Promotion {
    /// Opens the database over the reader's frames. No session of it is left.
    ///
    /// # Errors
    /// Those of [`Engine::open`].
    pub fn open(self, reader: Arc<Engine>) -> Result<Arc<Engine>> {
        let mut took = Took::begin();
        let (options, kept) = match Engine::leave(reader, &self.dir, &mut took) {
            Left::Frames(kept) => (self.options, Some(kept)),
            Left::Nothing => (self.options, None),
            Left::Held => (beside_the_reader(self.options), None),
        };
        let engine = Engine::open_in(options, self.dir, kept)?;
        took.note("opening");
        engine.report.lock().notes.push(took.text());
        Ok(engine)
    }
}

/// What each step of a promotion took.
struct Took {
    since: rt::Nanos,
    steps: Vec<(&'static str, rt::Nanos)>,
}

impl Took {
    fn begin() -> Took {
        Took {
            since: rt::now(),
            steps: Vec::new(),
        }
    }

    fn note(&mut self, step: &'static str) {
        let now = rt::now();
        self.steps.push((step, now.since(self.since)));
        self.since = now;
    }

    fn text(&self) -> String {
        let steps = self
            .steps
            .iter()
            .map(|(step, took)| format!("{step} {} ms", took.0 / 1_000_000));
        format!("its steps took: {}", steps.collect::<Vec<_>>().join(", "))
    }
}
