//! What a server of storage nodes uses: counted here, reported to the nodes, which have the sum of all.
//!
//! A report says what the process has used since it began. It is sent every minute and whenever the server becomes
//! something else; a report that finds no node is made up for by the next.

use crate::config::{Memory, Settings};
use crate::{database, log};
use cenote_base::Result;
use cenote_storage_node::{NodesClient, Usage};
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Between two reports.
const EVERY: Duration = Duration::from_secs(60);
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
    /// Bytes of memory for pages: its own, and what servers share.
    own: u64,
    common: u64,
}

#[derive(Debug)]
struct Counted {
    activity: Activity,
    since: Instant,
    usage: Usage,
    /// Milliseconds of service, and of memory that servers share.
    served_ms: u64,
    shared_ms: u64,
    is_due: bool,
    is_ended: bool,
}

impl Counted {
    fn new(now: Instant) -> Counted {
        Counted {
            activity: Activity::None,
            since: now,
            usage: Usage::default(),
            served_ms: 0,
            shared_ms: 0,
            is_due: false,
            is_ended: false,
        }
    }

    /// Counts what was used up to `now`. Milliseconds that are not whole are counted the next time.
    fn count(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since);
        let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        self.since += Duration::from_millis(ms);
        match self.activity {
            Activity::None => {}
            Activity::Writer => {
                self.usage.writer_ms += ms;
                self.served_ms += ms;
                self.shared_ms += ms;
            }
            Activity::Reader => {
                self.usage.reader_ms += ms;
                self.served_ms += ms;
            }
            Activity::Paused { keeps_shared } => {
                self.usage.paused_ms += ms;
                self.shared_ms += if keeps_shared { ms } else { 0 };
            }
        }
    }

    fn usage(&self, own: u64, common: u64, cpu_ms: u64) -> Usage {
        let mib_s = |bytes: u64, ms: u64| (u128::from(bytes) * u128::from(ms) / MIB / 1000) as u64;
        Usage {
            cpu_ms,
            memory_mib_s: mib_s(own, self.served_ms),
            shared_mib_s: mib_s(common, self.shared_ms),
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
        let shared = Arc::new(Shared {
            client: crate::membership::words(database::client(storage)?),
            process: cenote_base::rt::random_u128().max(1),
            counted: Mutex::new(Counted::new(Instant::now())),
            changed: Condvar::new(),
            cpu_ms: processor_ms(),
            own: settings.own_size().bytes(),
            common: match settings.memory {
                Memory::Tiered => settings.memory_size.bytes(),
                _ => 0,
            },
        });
        let weak = Arc::downgrade(&shared);
        let thread = std::thread::Builder::new().name("meter".into());
        if let Err(error) = thread.spawn(move || report_on(&weak)) {
            log::warn!("what this server uses is not counted: {error}");
        }
        Ok(Some(Meter { shared }))
    }

    /// The server is something else from here on; reported soon.
    pub fn is_now(&self, activity: Activity) {
        let mut counted = lock(&self.shared.counted);
        if counted.activity == activity {
            return;
        }
        counted.count(Instant::now());
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
            let mut counted = lock(&self.counted);
            counted.count(Instant::now());
            counted.is_due = false;
            let cpu_ms = processor_ms().saturating_sub(self.cpu_ms);
            counted.usage(self.own, self.common, cpu_ms)
        };
        self.client.report_usage(self.process, usage)
    }

    /// Until the next report is due; false: there is none.
    fn wait(&self) -> bool {
        let counted = lock(&self.counted);
        let waits = |counted: &mut Counted| !counted.is_due && !counted.is_ended;
        let (counted, _) = self
            .changed
            .wait_timeout_while(counted, EVERY, waits)
            .unwrap_or_else(PoisonError::into_inner);
        !counted.is_ended
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
        let mut counted = Counted::new(begun);
        let mut stand = |ms, activity| {
            counted.count(at(ms));
            counted.activity = activity;
        };
        stand(500, Activity::Reader);
        stand(2500, Activity::Writer);
        stand(5500, Activity::Paused { keeps_shared: true });
        stand(9500, Activity::Paused { keeps_shared: false });
        counted.count(at(10_000));
        let usage = counted.usage(8 << 20, 64 << 20, 9);
        assert_eq!((usage.reader_ms, usage.writer_ms, usage.paused_ms), (2000, 3000, 4500));
        assert_eq!((usage.memory_mib_s, usage.shared_mib_s), (5 * 8, 7 * 64));
    }

    #[test]
    fn parts_of_milliseconds_are_not_lost() {
        let begun = Instant::now();
        let mut counted = Counted::new(begun);
        counted.activity = Activity::Writer;
        for n in 1..=10 {
            counted.count(begun + Duration::from_micros(700 * n));
        }
        assert_eq!(counted.usage.writer_ms, 7);
    }
}
