//! A server that keeps its database in an archive: a thread that puts the log there as it becomes durable, and a base
//! from time to time.
//!
//! ```text
//!   begins ──▶ finds or makes its timeline ──▶ each 100 ms: notes the time of what is durable
//!     ▲                                        when --archive-every is over, or 8 MiB wait: puts it there
//!     │                                        when there is no base, or --archive-base-every is over: a base
//!     └── the log is gone, or is another ──────┘
//! ```
//!
//! Commits do not wait for it. The log keeps what is not archived: at most `--archive-lag`, and nothing more once its
//! disk is full, so that an archive that is away stops no server. What was given up then is a gap: the archive goes on
//! behind it with another timeline, and a base.

use crate::config::ArchiveSettings;
use crate::{log, objects};
use cenote_base::{Error, Result};
use cenote_engine::Engine;
use cenote_storage::archive::{Archiver, BaseReport, Began, Objects};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two looks at what is durable: a moment is known to within this.
const TURN: Duration = Duration::from_millis(100);
/// Bytes for which a piece is put there at once.
const WAITING_MAX: u64 = 8 << 20;
/// Between two tries of what failed.
const AGAIN: Duration = Duration::from_secs(2);
/// How long the end of a server waits for its archive.
pub const LAST: Duration = Duration::from_secs(5);
const DAY: u64 = 24 * 3600 * 1_000_000;

/// What is known of an archive: for people.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Where it is.
    pub place: String,
    /// The timeline, once it is known.
    pub timeline: Option<u32>,
    /// The archive has the log up to here.
    pub archived: u64,
    /// When that was found: microseconds since 1970.
    pub archived_at: Option<u64>,
    /// When the last base was begun: microseconds since 1970.
    pub base_at: Option<u64>,
    /// Whether a base is being taken.
    pub takes_base: bool,
    /// What failed so far, and what did so last, until it does not any more.
    pub failures: u64,
    /// What fails now.
    pub failure: Option<String>,
}

#[derive(Default)]
struct State {
    seen: Seen,
    is_ending: bool,
    has_ended: bool,
    /// Bases that were asked for, and how the one that was taken for each ended.
    asked: u64,
    taken: u64,
    answer: Option<std::result::Result<BaseReport, String>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self) -> bool {
        self.lock().is_ending
    }
}

/// See the module.
#[derive(Clone)]
pub struct Archiving(Arc<Shared>);

/// Archives for as long as it lives.
pub struct ArchivingThread {
    /// What others see of it.
    pub archiving: Archiving,
    thread: Option<JoinHandle<()>>,
}

impl ArchivingThread {
    /// Begins, if the settings name an archive.
    ///
    /// # Errors
    /// The archive's name makes no sense. One that does not answer is tried again.
    pub fn begin(settings: Option<&ArchiveSettings>, engine: &Arc<Engine>) -> Result<Option<ArchivingThread>> {
        let Some(settings) = settings else { return Ok(None) };
        let objects = objects::open(&settings.url)?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        shared.lock().seen.place = objects.place();
        let worker = Worker {
            shared: Arc::clone(&shared),
            engine: Arc::clone(engine),
            objects,
            settings: settings.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("archive".into())
            .spawn(move || worker.run());
        Ok(Some(ArchivingThread {
            archiving: Archiving(shared),
            thread: Some(thread.map_err(|error| Error::io("starting a thread", error))?),
        }))
    }

    /// Puts what is durable now into the archive, and ends: within [`LAST`], or without.
    pub fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + LAST;
        let mut state = self.archiving.0.lock();
        state.is_ending = true;
        self.archiving.0.changed.notify_all();
        while !state.has_ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                log::warn!(
                    "the archive {} does not answer: the next start goes on with it",
                    state.seen.place
                );
                return;
            }
            let waited = self.archiving.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        thread.join().ok();
    }
}

impl Drop for ArchivingThread {
    fn drop(&mut self) {
        self.end();
    }
}

impl Archiving {
    /// What is known of it.
    pub fn seen(&self) -> Seen {
        self.0.lock().seen.clone()
    }

    /// Takes a base, and waits for it.
    ///
    /// # Errors
    /// What it failed with; the server ends.
    pub fn take_base(&self) -> std::result::Result<BaseReport, String> {
        let mut state = self.0.lock();
        state.asked += 1;
        let mine = state.asked;
        self.0.changed.notify_all();
        while state.taken < mine && !state.has_ended {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.answer {
            Some(answer) if state.taken >= mine => answer.clone(),
            _ => Err("the server ends".into()),
        }
    }
}

/// Microseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The thread.
struct Worker {
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    objects: Arc<dyn Objects>,
    settings: ArchiveSettings,
}

/// Why it begins anew, or ends.
enum Over {
    Anew(Error),
    Ends,
}

impl Worker {
    fn run(self) {
        while let Over::Anew(error) = self.archive() {
            log::warn!("archive: {error}");
            if self.rest(AGAIN) {
                break;
            }
        }
        self.shared.lock().has_ended = true;
        self.shared.changed.notify_all();
    }

    fn archive(&self) -> Over {
        let begun = match self.engine.archiver(Arc::clone(&self.objects), now()) {
            Ok(begun) => begun,
            Err(error) => return self.not_begun(error),
        };
        let (mut archiver, began) = begun;
        if let Began::Anew(why) = &began {
            log::info!(
                "archive: timeline {} begins in {}: {why}",
                archiver.timeline(),
                self.objects.place()
            );
        }
        self.note(&archiver);
        let mut last = Instant::now();
        loop {
            let is_ending = self.rest(TURN);
            archiver.note_time(now());
            let is_due = is_ending || last.elapsed() >= self.settings.every || archiver.waiting() > WAITING_MAX;
            let mut done = Ok(());
            if is_due && archiver.waiting() > 0 {
                done = self.ship(&mut archiver);
                last = Instant::now();
            }
            if done.is_ok() && !is_ending && self.is_base_due(&archiver) {
                done = self.base(&mut archiver);
            }
            match done {
                Ok(()) if is_ending => return Over::Ends,
                Ok(()) => {}
                Err(error @ (Error::Past(_) | Error::Mismatch(_))) => return Over::Anew(error),
                Err(error) => {
                    self.fail(&error, archiver.waiting());
                    if self.rest(AGAIN) {
                        return Over::Ends;
                    }
                }
            }
        }
    }

    fn not_begun(&self, error: Error) -> Over {
        // As far as is known all of the log waits.
        self.fail(&error, u64::MAX);
        match error {
            Error::Revoked(_) => Over::Ends,
            _ if self.rest(AGAIN) => Over::Ends,
            error => Over::Anew(error),
        }
    }

    /// Waits, unless something is asked of it: whether it is to end.
    fn rest(&self, time: Duration) -> bool {
        let state = self.shared.lock();
        if state.is_ending || state.taken < state.asked {
            return state.is_ending;
        }
        let waited = self.shared.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_ending
    }

    /// Puts all that waits into the archive.
    fn ship(&self, archiver: &mut Archiver) -> Result<()> {
        while archiver.ship(now())?.is_some() {}
        self.note(archiver);
        Ok(())
    }

    fn is_base_due(&self, archiver: &Archiver) -> bool {
        let is_asked = {
            let state = self.shared.lock();
            state.taken < state.asked
        };
        let is_old = |begun: u64| now() / 1_000_000 >= begun + self.settings.base_every.as_secs();
        is_asked || archiver.last_base().is_none_or(is_old)
    }

    fn base(&self, archiver: &mut Archiver) -> Result<()> {
        let asked = {
            let mut state = self.shared.lock();
            state.seen.takes_base = true;
            state.asked
        };
        let begun = Instant::now();
        let turn = |archiver: &mut Archiver| {
            archiver.note_time(now());
            if archiver.waiting() > WAITING_MAX {
                self.ship(archiver)?;
            }
            Ok(!self.shared.is_ending())
        };
        let taken = self.engine.archive_base(archiver, &now, &turn);
        match &taken {
            Ok(report) => log::info!(
                "archive: a base of {} pages in {} spaces, {:.1} MB in {} ms",
                report.pages,
                report.spaces,
                report.object_bytes as f64 / 1e6,
                begun.elapsed().as_millis()
            ),
            Err(error) => log::warn!("archive: no base: {error}"),
        }
        let pruned = taken.as_ref().map_or(Ok(()), |_| self.prune(archiver));
        let mut state = self.shared.lock();
        state.seen.takes_base = false;
        state.answer = Some(taken.as_ref().map(|report| *report).map_err(ToString::to_string));
        state.taken = asked;
        drop(state);
        self.shared.changed.notify_all();
        self.note(archiver);
        match taken {
            Err(Error::Canceled) => Ok(()),
            taken => taken.map(drop).and(pruned),
        }
    }

    fn prune(&self, archiver: &Archiver) -> Result<()> {
        let Some(days) = self.settings.keep_days else {
            return Ok(());
        };
        let pruned = archiver.prune(now().saturating_sub(u64::from(days) * DAY))?;
        if pruned.objects > 0 {
            log::info!("archive: {} objects removed, of {} bases", pruned.objects, pruned.bases);
        }
        Ok(())
    }

    fn note(&self, archiver: &Archiver) {
        let mut state = self.shared.lock();
        let seen = &mut state.seen;
        (seen.timeline, seen.archived) = (Some(archiver.timeline()), archiver.archived().raw());
        (seen.archived_at, seen.failure) = (Some(now()), None);
        seen.base_at = archiver.last_base().map(|seconds| seconds * 1_000_000);
    }

    /// The log is not kept for an archive that is away when there is too much of it.
    fn fail(&self, error: &Error, waiting: u64) {
        let text = error.to_string();
        let mut state = self.shared.lock();
        state.seen.failures += 1;
        let is_new = state.seen.failure.as_ref() != Some(&text);
        state.seen.failure = Some(text.clone());
        if state.taken < state.asked {
            (state.taken, state.answer) = (state.asked, Some(Err(text)));
        }
        drop(state);
        self.shared.changed.notify_all();
        if is_new {
            log::warn!("archive: {error}; it is tried again");
        }
        let waiting = match waiting {
            u64::MAX => self.engine.log_end().saturating_sub(self.engine.log_kept_from()),
            waiting => waiting,
        };
        if waiting > self.settings.lag.bytes() || self.engine.is_log_full() {
            self.engine.give_up_archiving();
            if is_new {
                log::warn!("archive: {waiting} bytes of the log are not archived, and not kept any more");
            }
        }
    }
}
