//! A server that keeps its database in an archive: a thread that puts the log there as it becomes durable, and a base
//! from time to time.
//!
//! ```text
//!   begins ──▶ finds or makes its timeline ──▶ when --archive-every is over, or 8 MiB wait: puts what is durable there
//!     ▲                                        when there is no base, or --archive-base-every is over: a base
//!     └── the log is gone, or is another ──────┘
//!
//!   another thread, ten times a second: up to where the log is durable now
//! ```
//!
//! Commits do not wait for it. The log keeps what is not archived: at most `--archive-lag`, and nothing more once its
//! disk is full, so that an archive that is away, or slow, stops no server. What was given up then is a gap: the
//! archive goes on behind it with another timeline, and a base.

use crate::config::ArchiveSettings;
use crate::{log, objects};
use cenote_base::{Error, Result};
use cenote_engine::Engine;
use cenote_storage::archive::{Archiver, BaseReport, Began, Objects, Times, Turn};
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two samples of time, and between two looks whether something is due.
const TURN: Duration = Duration::from_millis(100);
/// Bytes for which a piece is put there at once.
const WAITING_MAX: u64 = 8 << 20;
/// Between two tries of what failed: each time twice as long, up to this for the log, and this for all else.
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(30);
const ANEW_MAX: Duration = Duration::from_secs(600);
/// How long the end of a server waits for its archive, and how often it is tried then.
pub const LAST: Duration = Duration::from_secs(5);
const LAST_TURN: Duration = Duration::from_millis(300);
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
    /// When that was so, at last: microseconds since 1970.
    pub archived_at: Option<u64>,
    /// When the last base was begun: microseconds since 1970.
    pub base_at: Option<u64>,
    /// Whether a base is being taken.
    pub takes_base: bool,
    /// What failed so far.
    pub failures: u64,
    /// What keeps the log from the archive now.
    pub failure: Option<String>,
    /// What the last base failed with, until one does not.
    pub base_failure: Option<String>,
}

impl Seen {
    /// What fails now.
    pub fn failing(&self) -> Option<String> {
        self.failure.clone().or_else(|| self.base_failure.clone())
    }
}

#[derive(Default)]
struct State {
    seen: Seen,
    /// No base is taken any more; and in the end no piece.
    is_closing: bool,
    /// It ends when all is archived, and at this time at the latest.
    ends_by: Option<Instant>,
    has_ended: bool,
    /// All that was durable at the end is there.
    has_all: bool,
    /// Bases that were asked for, and those that were taken for them or failed, and how the last did.
    asked: u64,
    answered: u64,
    answer: Option<std::result::Result<BaseReport, String>>,
}

impl State {
    fn is_asked(&self) -> bool {
        self.answered < self.asked && !self.is_closing
    }

    fn answer(&mut self, upto: u64, answer: std::result::Result<BaseReport, String>) {
        (self.answered, self.answer) = (upto, Some(answer));
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What others see of it.
#[derive(Clone)]
pub struct Archiving(Arc<Shared>);

/// Archives for as long as it lives.
pub struct ArchivingThread {
    /// What others see of it.
    pub archiving: Archiving,
    threads: Vec<JoinHandle<()>>,
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
        let times = Arc::new(Times::new(Box::new(now)));
        let worker = Worker {
            shared: Arc::clone(&shared),
            engine: Arc::clone(engine),
            objects,
            times: Arc::clone(&times),
            settings: settings.clone(),
        };
        let (seen, timed) = (Arc::clone(&shared), Arc::clone(engine));
        let threads = vec![
            spawn("archive", move || worker.run())?,
            spawn("archive-times", move || note_times(&seen, &timed, &times))?,
        ];
        Ok(Some(ArchivingThread {
            archiving: Archiving(shared),
            threads,
        }))
    }

    /// No base is taken any more: what waits for one is told so. The log goes on.
    pub fn close(&self) {
        self.archiving.0.lock().is_closing = true;
        self.archiving.0.changed.notify_all();
    }

    /// Puts what is durable now into the archive, and ends: within [`LAST`]; false: it did not end, and does when the
    /// archive answers.
    pub fn end(&mut self) -> bool {
        self.close();
        let ends_by = Instant::now() + LAST;
        let mut state = self.archiving.0.lock();
        state.ends_by.get_or_insert(ends_by);
        self.archiving.0.changed.notify_all();
        // It ends by itself if only the archive answers, if with an error.
        let until = ends_by + LAST_TURN;
        while !state.has_ended && Instant::now() < until {
            state = self
                .archiving
                .0
                .wait(state, until.saturating_duration_since(Instant::now()));
        }
        if !self.threads.is_empty() && !state.has_all {
            let place = &state.seen.place;
            log::warn!("not all is archived in {place}: the next start goes on with it");
        }
        if !state.has_ended {
            self.threads.clear();
            return false;
        }
        drop(state);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        true
    }
}

impl Drop for ArchivingThread {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end();
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| Error::io("starting a thread", error))
}

fn note_times(shared: &Shared, engine: &Engine, times: &Times) {
    let mut state = shared.lock();
    while !state.has_ended {
        drop(state);
        engine.note_time(times);
        state = shared.wait(shared.lock(), TURN);
    }
}

impl Archiving {
    /// What is known of it.
    pub fn seen(&self) -> Seen {
        self.0.lock().seen.clone()
    }

    /// Takes a base, and waits for it, as long as `goes_on` says so.
    ///
    /// # Errors
    /// What it failed with; the server ends; it is not waited for any more.
    pub fn take_base(&self, goes_on: &dyn Fn() -> bool) -> std::result::Result<BaseReport, String> {
        let mut state = self.0.lock();
        state.asked += 1;
        let mine = state.asked;
        self.0.changed.notify_all();
        while state.answered < mine {
            if state.has_ended || state.is_closing {
                return Err("the server ends".into());
            }
            state = self.0.wait(state, TURN);
            if !goes_on() {
                return Err("the base is taken, and not waited for".into());
            }
        }
        state.answer.clone().unwrap_or_else(|| Err("no base was taken".into()))
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
    times: Arc<Times>,
    settings: ArchiveSettings,
}

/// Whatever ends the thread, those that wait for it are told.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        if std::thread::panicking() {
            state.seen.failure = Some("the archive's thread has failed: restart the server".into());
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

/// Why it begins anew, or ends.
enum Over {
    /// The log is gone, or is another: for this reason a timeline is made.
    Anew(String),
    Failed(Error),
    Ends,
}

/// How long what failed rests, and the most that it does.
struct Backoff(Duration, Duration);

impl Backoff {
    fn up_to(most: Duration) -> Backoff {
        Backoff(AGAIN, most)
    }

    fn next(&mut self) -> Duration {
        let rest = self.0;
        self.0 = (2 * self.0).min(self.1);
        rest
    }

    fn reset(&mut self) {
        self.0 = AGAIN;
    }
}

impl Worker {
    fn run(self) {
        let _ended = Ended(Arc::clone(&self.shared));
        let (mut anew, mut anew_backoff, mut backoff) = (None, Backoff::up_to(ANEW_MAX), Backoff::up_to(AGAIN_MAX));
        while !self.is_over() {
            let begun = Instant::now();
            let rest = match self.archive(anew.as_deref()) {
                Over::Ends => return,
                Over::Anew(why) => {
                    anew = Some(why);
                    anew_backoff.next()
                }
                Over::Failed(Error::Revoked(why)) => {
                    log::warn!("archive: {why}");
                    return;
                }
                Over::Failed(error) => {
                    self.fail(&error);
                    backoff.next()
                }
            };
            if begun.elapsed() > ANEW_MAX {
                (anew_backoff, backoff) = (Backoff::up_to(ANEW_MAX), Backoff::up_to(AGAIN_MAX));
            }
            self.rest(rest);
        }
    }

    fn archive(&self, anew: Option<&str>) -> Over {
        let begun = self
            .engine
            .archiver(Arc::clone(&self.objects), Arc::clone(&self.times), anew);
        let (mut archiver, began) = match begun {
            Ok(begun) => begun,
            Err(error) => return Over::Failed(error),
        };
        if let Began::Anew(why) = &began {
            let place = self.objects.place();
            log::info!("archive: timeline {} begins in {place}: {why}", archiver.timeline());
        }
        self.note(&archiver);
        let (mut shipped, mut base_at) = (Instant::now(), Instant::now());
        let (mut backoff, mut base_backoff) = (Backoff::up_to(AGAIN_MAX), Backoff::up_to(ANEW_MAX));
        while !self.is_over() {
            let is_ending = self.rest(TURN);
            let is_due = is_ending || shipped.elapsed() >= self.settings.every || archiver.waiting() > WAITING_MAX;
            let mut done = Ok(());
            if is_due {
                done = self.ship(&mut archiver);
                shipped = Instant::now();
            }
            if done.is_ok() && self.is_base_due(&archiver, base_at) {
                match self.base(&mut archiver) {
                    Ok(()) => base_backoff.reset(),
                    Err(error @ (Error::Past(_) | Error::Mismatch(_))) => done = Err(error),
                    // The log goes on.
                    Err(_) => base_at = Instant::now() + base_backoff.next(),
                }
            }
            match done {
                Ok(()) if is_ending => {
                    self.shared.lock().has_all = true;
                    return Over::Ends;
                }
                Ok(()) => backoff.reset(),
                Err(Error::Past(why) | Error::Mismatch(why)) => {
                    log::warn!("archive: {why}");
                    return Over::Anew(why);
                }
                Err(error) => {
                    self.fail(&error);
                    self.rest(backoff.next());
                }
            }
        }
        Over::Ends
    }

    /// Waits, unless something is asked of it: whether it is to end.
    fn rest(&self, time: Duration) -> bool {
        let mut until = Instant::now() + time;
        let mut state = self.shared.lock();
        let was_ending = state.ends_by.is_some();
        if was_ending {
            until = until.min(Instant::now() + LAST_TURN);
        }
        while state.ends_by.is_some() == was_ending && !state.is_asked() && Instant::now() < until {
            state = self.shared.wait(state, until.saturating_duration_since(Instant::now()));
        }
        state.ends_by.is_some()
    }

    /// Whether it had its time to end.
    fn is_over(&self) -> bool {
        self.shared.lock().ends_by.is_some_and(|by| Instant::now() >= by)
    }

    /// Puts what is durable now into the archive.
    fn ship(&self, archiver: &mut Archiver) -> Result<()> {
        let until = self.engine.log_end();
        while archiver.archived().raw() < until {
            archiver.ship()?;
            self.note(archiver);
        }
        self.note(archiver);
        Ok(())
    }

    /// Whether one is asked for, or it is time. One that failed rests until `next`.
    fn is_base_due(&self, archiver: &Archiver, next: Instant) -> bool {
        let state = self.shared.lock();
        if state.is_closing || state.is_asked() {
            return state.is_asked();
        }
        let is_old = |begun: u64| now() / 1_000_000 >= begun + self.settings.base_every.as_secs();
        Instant::now() >= next && archiver.last_base().is_none_or(is_old)
    }

    fn base(&self, archiver: &mut Archiver) -> Result<()> {
        let asked = {
            let mut state = self.shared.lock();
            state.seen.takes_base = true;
            state.asked
        };
        let begun = Instant::now();
        let shipped = Cell::new(begun);
        let turn = |archiver: &mut Archiver| {
            if archiver.waiting() > WAITING_MAX || shipped.get().elapsed() >= self.settings.every {
                archiver.ship()?;
                self.note(archiver);
                shipped.set(Instant::now());
            }
            Ok(!self.shared.lock().is_closing)
        };
        let taken = self.engine.archive_base(archiver, &turn);
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
        let pruned = taken.as_ref().map_or(Ok(()), |_| self.prune(archiver, &turn));
        let failure = taken.as_ref().err().or(pruned.as_ref().err()).map(ToString::to_string);
        let mut state = self.shared.lock();
        state.seen.takes_base = false;
        state.seen.failures += u64::from(failure.is_some());
        state.seen.base_failure = failure;
        state.answer(asked, taken.as_ref().copied().map_err(ToString::to_string));
        drop(state);
        self.shared.changed.notify_all();
        self.note(archiver);
        taken.map(drop)
    }

    fn prune(&self, archiver: &mut Archiver, turn: &Turn<'_>) -> Result<()> {
        let keep = self
            .settings
            .keep_days
            .map(|days| now().saturating_sub(u64::from(days) * DAY));
        let pruned = archiver.prune(keep, turn)?;
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

    fn fail(&self, error: &Error) {
        let text = error.to_string();
        let mut state = self.shared.lock();
        state.seen.failures += 1;
        let is_new = state.seen.failure.as_ref() != Some(&text);
        state.seen.failure = Some(text.clone());
        let asked = state.asked;
        if state.is_asked() {
            state.answer(asked, Err(text));
        }
        drop(state);
        self.shared.changed.notify_all();
        if is_new {
            log::warn!("archive: {error}; it is tried again");
        }
    }
}
