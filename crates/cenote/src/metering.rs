//! What a server of storage nodes uses: counted here, reported to the nodes, which have the sum of all.
//!
//! A report says what the process has used since it began. It is sent every minute and whenever the server becomes
//! something else; a report that finds no node is made up for by the next.

use crate::config::{Memory, Settings};
use crate::{database, log};
use cenote_base::Result;
use cenote_engine::{Engine, RemotePart};
use cenote_storage_node::{NodesClient, Usage};
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two reports.
const EVERY: Duration = Duration::from_secs(60);
/// Between two looks how large remote memory is that grows: a slab is taken for minutes.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
const MIB: u128 = 1 << 20;

/// What the server does, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It serves no clients: it opens the database, or ends.
    None,
    /// It has the database.
    Writer,
    /// It reads it.
    Reader,
    /// It is paused.
    Paused {
        /// It had the database last: what servers share stays for it.
        keeps_shared: bool,
    },
}

/// See the module. Dropping it ends the thread.
pub struct Meter {
    shared: Arc<Shared>,
}

struct Shared {
    client: NodesClient,
    /// Drawn when the process began.
    process: u128,
    counted: Mutex<Counted>,
    changed: Condvar,
    /// Of the processor, when this began: the program may have begun anew in its process.
    cpu_ms: u64,
    /// Bytes of memory for pages, its own.
    own: u64,
    /// Of what servers share the first part, and the server that lets it grow.
    first: u64,
    grown_by: Mutex<Weak<Engine>>,
    sample_every: Duration,
}

#[derive(Debug)]
struct Counted {
    activity: Activity,
    since: Instant,
    usage: Usage,
    /// Milliseconds of service.
    served_ms: u64,
    /// Bytes that servers share, as of the last look, and what they come to: bytes times milliseconds.
    common: u64,
    shared: u128,
    is_due: bool,
    is_ended: bool,
}

impl Counted {
    fn new(now: Instant, common: u64) -> Counted {
        Counted {
            activity: Activity::None,
            since: now,
            usage: Usage::default(),
            served_ms: 0,
            common,
            shared: 0,
            is_due: false,
            is_ended: false,
        }
    }

    /// Counts what was used up to `now`. Milliseconds that are not whole are counted the next time.
    fn count(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        self.since += Duration::from_millis(ms);
        let shared = u128::from(self.common) * u128::from(ms);
        match self.activity {
            Activity::None => {}
            Activity::Writer => {
                self.usage.writer_ms += ms;
                self.served_ms += ms;
                self.shared += shared;
            }
            Activity::Reader => {
                self.usage.reader_ms += ms;
                self.served_ms += ms;
            }
            Activity::Paused { keeps_shared } => {
                self.usage.paused_ms += ms;
                self.shared += if keeps_shared { shared } else { 0 };
            }
        }
    }

    fn usage(&self, own: u64, cpu_ms: u64) -> Usage {
        let mib_s = |byte_ms: u128| (byte_ms / MIB / 1000) as u64;
        Usage {
            cpu_ms,
            memory_mib_s: mib_s(u128::from(own) * u128::from(self.served_ms)),
            shared_mib_s: mib_s(self.shared),
            ..self.usage
        }
    }
}

impl Meter {
    /// Begins to count, if the database is on storage nodes.
    ///
    /// # Errors
    /// The secret's file cannot be read.
    pub fn begin(settings: &Settings) -> Result<Option<Meter>> {
        let Some(storage) = &settings.storage else {
            return Ok(None);
        };
        let first = match settings.memory {
            Memory::Tiered => settings.memory_size.bytes(),
            _ => 0,
        };
        let shared = Arc::new(Shared {
            client: crate::membership::words(database::client(storage)?),
            process: cenote_base::rt::random_u128().max(1),
            counted: Mutex::new(Counted::new(Instant::now(), first)),
            changed: Condvar::new(),
            cpu_ms: processor_ms(),
            own: settings.own_size().bytes(),
            first,
            grown_by: Mutex::default(),
            sample_every: settings.growth.map_or(EVERY, |_| SAMPLE_EVERY),
        });
        let weak = Arc::downgrade(&shared);
        let thread = std::thread::Builder::new().name("meter".into());
        if let Err(error) = thread.spawn(move || report_on(&weak)) {
            log::warn!("what this server uses is not counted: {error}");
        }
        Ok(Some(Meter { shared }))
    }

    /// The memory that servers share is as large as this one lets it be. When that is gone it stays as it was last.
    pub fn look(&self, engine: &Arc<Engine>) {
        *self.shared.grown_by.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(engine);
    }

    /// The server is something else from here on; reported soon.
    pub fn is_now(&self, activity: Activity) {
        if lock(&self.shared.counted).activity == activity {
            return;
        }
        let mut counted = self.shared.count();
        (counted.activity, counted.is_due) = (activity, true);
        drop(counted);
        self.shared.changed.notify_all();
    }

    /// The server ends: what it used is reported before this returns, or lost where no node answers.
    pub fn end(&self) {
        self.is_now(Activity::None);
        if let Err(error) = self.shared.report() {
            log::warn!("what this server used last is not counted: {error}");
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        lock(&self.shared.counted).is_ended = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn report(&self) -> Result<()> {
        let usage = {
            let mut counted = self.count();
            counted.is_due = false;
            let cpu_ms = processor_ms().saturating_sub(self.cpu_ms);
            counted.usage(self.own, cpu_ms)
        };
        self.client.report_usage(self.process, usage)
    }

    /// Counts up to now, with the memory that there was, and looks how much there is.
    fn count(&self) -> MutexGuard<'_, Counted> {
        let engine = self.grown_by.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let common = engine.map(|engine| shared_bytes(self.first, &engine.remote_parts()));
        let mut counted = lock(&self.counted);
        counted.count(Instant::now());
        counted.common = common.unwrap_or(counted.common);
        counted
    }

    /// Until the next report is due; false: there is none.
    fn wait(&self) -> bool {
        let until = Instant::now() + EVERY;
        let waits = |counted: &mut Counted| !counted.is_due && !counted.is_ended;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (counted, _) = self
                .changed
                .wait_timeout_while(lock(&self.counted), left.min(self.sample_every), waits)
                .unwrap_or_else(PoisonError::into_inner);
            if counted.is_ended || counted.is_due || Instant::now() >= until {
                return !counted.is_ended;
            }
            drop(counted);
            drop(self.count());
        }
    }
}

fn report_on(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade()
        && shared.wait()
    {
        // The next report has it, too.
        shared.report().ok();
    }
}

/// What servers share: its parts; while it is not reached, the first of them, which is the database's still.
fn shared_bytes(first: u64, parts: &[RemotePart]) -> u64 {
    parts.iter().map(|part| part.bytes).sum::<u64>().max(first)
}

/// Of this process, since it began.
fn processor_ms() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    u64::try_from(used.tv_sec * 1000 + used.tv_nsec / 1_000_000).unwrap_or(0)
}

fn lock(counted: &Mutex<Counted>) -> MutexGuard<'_, Counted> {
    counted.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_for_what_the_server_was() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut counted = Counted::new(begun, 64 << 20);
        let mut stand = |ms, activity| {
            counted.count(at(ms));
            counted.activity = activity;
        };
        stand(500, Activity::Reader);
        stand(2500, Activity::Writer);
        stand(5500, Activity::Paused { keeps_shared: true });
        stand(9500, Activity::Paused { keeps_shared: false });
        counted.count(at(10_000));
        let usage = counted.usage(8 << 20, 9);
        assert_eq!((usage.reader_ms, usage.writer_ms, usage.paused_ms), (2000, 3000, 4500));
        assert_eq!((usage.memory_mib_s, usage.shared_mib_s), (5 * 8, 7 * 64));
    }

    #[test]
    fn memory_that_grows_is_counted_as_it_was() {
        let begun = Instant::now();
        let mut counted = Counted::new(begun, 64 << 20);
        counted.activity = Activity::Writer;
        for (second, mib) in [(2, 96), (5, 64), (6, 64)] {
            counted.count(begun + Duration::from_secs(second));
            counted.common = mib << 20;
        }
        assert_eq!(counted.usage(0, 0).shared_mib_s, 2 * 64 + 3 * 96 + 64);
        let part = |mib: u64| RemotePart {
            slab: None,
            node: String::new(),
            bytes: mib << 20,
            slots: 1,
            slots_in_use: 0,
            state: cenote_engine::PartState::Away,
        };
        assert_eq!(shared_bytes(64 << 20, &[part(64), part(32)]), 96 << 20);
        assert_eq!(shared_bytes(64 << 20, &[]), 64 << 20);
    }

    #[test]
    fn parts_of_milliseconds_are_not_lost() {
        let begun = Instant::now();
        let mut counted = Counted::new(begun, 0);
        counted.activity = Activity::Writer;
        for n in 1..=10 {
            counted.count(begun + Duration::from_micros(700 * n));
        }
        assert_eq!(counted.usage.writer_ms, 7);
    }
}
