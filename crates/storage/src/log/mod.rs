//! The redo log: a stream of groups, its newest part in a ring, all of it that is durable in
//! segment files.
//!
//! 1. [`Log::append`] reserves a place at the tail under a short lock, copies the group there
//!    outside of it, and marks the group complete.
//! 2. [`Log::wait_durable`] has all complete groups written and synced by one of those who wait
//!    ([`commit`]).
//! 3. [`Log::open`] finds the end of the log: in the ring, if it can be believed, else in the
//!    files ([`recover`]).
//! 4. [`Log::scan`], [`Log::read_record`] and [`Log::chains`] read it back ([`read`], [`chains`]), large reads ahead of
//!    use.
//!
//! Invariants:
//! - the durable position is at a group's end, and everything below it is synced;
//! - an error of a write or sync is never retried: it poisons the log, and all who append or wait
//!   from then on are told. (A segment that cannot be made for lack of space has lost nothing:
//!   that is waited for.)
//! - appending never fails for lack of space: [`Log::admit`] asks before work is begun ([`space`]).
//!
//! Lock order: `flusher` (the lead's) before `waiters.queue`, `segments.state`; `reserve` is last
//! and nothing is taken under it.

mod ahead;
mod chains;
mod commit;
mod copy;
mod read;
mod recover;
pub(crate) mod ring;
mod segments;
mod space;
mod sync_spinner;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Event, JoinHandle, Mutex, Nanos};
use cenote_base::{Error, Lsn, RecordAddr, Result, crc};

use crate::redo::{GROUP_HEADER, GroupHeader, KIND_GROUP, LAG_AT, MAX_GROUP, STATE_COMPLETE, lag, seal, u32_at};
use commit::{Flusher, Waiters};
use ring::{BLOCK, BOUNDARY_COUNT, Ring};
use segments::Segments;

pub use chains::Chains;
pub(crate) use copy::{LogSource, copy_log};
pub use read::{OwnedRecord, Scan};
pub use recover::{LogReport, RingUse};
pub use ring::{RING_HEADER, RING_MIN, RingPlace};
pub use space::Need;

/// The usual position of the first group of a database: zero means "none" everywhere.
pub const FIRST_LSN: Lsn = Lsn::from_raw(BLOCK);
/// The end of the stream: records behind it would have no address.
const END: Lsn = Lsn::from_raw(RecordAddr::END);
/// Segments that are kept ready behind the one in use.
const AHEAD: u64 = 2;

/// What a region's bytes survive, and so what the log has to flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Survive {
    /// The end of the process.
    #[default]
    Process = 0,
    /// The loss of the host, with the dirty lines of its cache.
    Host = 1,
}

/// How to open a log.
pub struct LogOptions {
    /// The directory of the segments.
    pub dir: PathBuf,
    /// The database's id.
    pub database: u128,
    /// Payload bytes of a segment, a multiple of 4096; for a new log. One that exists keeps its own.
    pub segment_bytes: u64,
    /// Where the ring lies.
    pub ring: RingPlace,
    /// Whether the ring is that of the last process that had this log: region, incarnation and
    /// settings were checked by the caller. What the ring itself says is checked here.
    pub believe_ring: bool,
    /// What the ring is to survive.
    pub survive: Survive,
    /// Where recovery begins: a group's start, all before it is in the pages.
    pub checkpoint: Lsn,
    /// A position that the log is known to have reached durably.
    pub known_durable: Lsn,
    /// Where the log begins if it is a new one: a multiple of 4096, not zero.
    pub origin: Lsn,
    /// Whether a thread prepares segments and writes ahead. Without, the appenders do it.
    pub background: bool,
}

/// Where a group was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its first byte; a record's address is this and the record's offset in the group.
    pub start: Lsn,
    /// Behind it: the LSN of the pages that it changed.
    pub end: Lsn,
}

/// The redo log. Closed (its background thread ended) when dropped; what was not waited for is
/// not synced then.
pub struct Log {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) struct Core {
    ring: Ring,
    segments: Segments,
    reserve: Mutex<Reserve>,
    durable: AtomicU64,
    /// Nothing before it was ever in this ring.
    ring_start: Lsn,
    flusher: Mutex<Flusher>,
    waiters: Waiters,
    poisoned: AtomicBool,
    poison: Mutex<Option<Error>>,
    /// The last segment could not be made for lack of space.
    full: AtomicBool,
    /// When that is tried again, by the runtime's clock.
    look_again: AtomicU64,
    closing: AtomicBool,
    background: bool,
    work: Event,
    holds: AtomicU64,
    recycle_to: AtomicU64,
}

struct Reserve {
    tail: Lsn,
    /// How far the tail may go before the durable position has to be asked again.
    limit: Lsn,
    /// The ring's part in which a group's start was last noted.
    boundary: u64,
}

/// A patch of a group at the moment when its place in the log is known, under the reservation
/// lock: gets the group's end and its bytes (header included).
pub type Hook<'a> = &'a mut dyn FnMut(Lsn, &mut [u8]);

impl Log {
    /// Opens or makes the log, finds its end, and makes what the ring holds durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if bytes that were durable are damaged (which segment, which offset), a
    /// segment is missing; [`Error::Full`] if there is no space for the first segment.
    pub fn open(options: LogOptions) -> Result<(Log, LogReport)> {
        let background = options.background;
        let (core, report) = recover::open(options)?;
        let core = Arc::new(core);
        let threads = if background { start_threads(&core) } else { Vec::new() };
        core.work.set();
        Ok((
            Log {
                core,
                threads: Mutex::new(threads),
            },
            report,
        ))
    }

    /// Puts a group ([`crate::redo::GroupBuilder::finish`]) into the log. Waits if the ring is
    /// full. `hook` runs at the moment of the reservation, in the order of the log, and has to be
    /// as short as tens of nanoseconds and not panic.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if the log has failed, [`Error::Invalid`] if the bytes are no group.
    pub fn append(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Appended> {
        self.core.append(group, hook)
    }

    /// Everything below is synced.
    #[inline]
    pub fn durable(&self) -> Lsn {
        self.core.durable()
    }

    /// A durable position, and the checksum of the group that ends there (0 if none is known
    /// since the log was opened without its ring).
    pub fn durable_mark(&self) -> (Lsn, u32) {
        let flusher = self.core.flusher.lock();
        (self.durable(), flusher.last_checksum)
    }

    /// The end of the last reservation.
    pub fn tail(&self) -> Lsn {
        self.core.tail()
    }

    /// Returns once everything below `lsn` is synced.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if it will never be.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        self.core.wait_durable(lsn)
    }

    /// Returns once all groups before `lsn` are complete, so that no end of the process makes one of them void. Those
    /// that are not are being copied this moment. With no page latched by the caller that such a one might wait for.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the ring does not hold what it should.
    pub fn wait_complete(&self, lsn: Lsn) -> Result<()> {
        self.core.wait_complete(lsn)
    }

    /// Whether the group that ends at `lsn` is being copied yet: for marks.
    pub fn is_incomplete(&self, lsn: Lsn) -> bool {
        self.core.is_incomplete(lsn)
    }

    /// Has what is complete now written in the background, if there is one.
    pub fn flush_hint(&self) {
        self.core.work.set();
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// As [`Log::wait_durable`].
    pub fn flush_all(&self) -> Result<()> {
        self.core.wait_durable(self.tail())
    }

    /// Whether somebody writes or syncs the log this moment.
    pub fn is_flushing(&self) -> bool {
        self.core.waiters.is_led()
    }

    /// Whether work for `need` may be begun: enough of the log ahead has its space taken.
    ///
    /// # Errors
    /// [`Error::Full`] if not, with what to do; [`Error::Poisoned`].
    #[inline]
    pub fn admit(&self, need: Need) -> Result<()> {
        self.core.admit(need)
    }

    /// Whether segments are missing ahead of the tail for lack of space.
    pub fn is_full(&self) -> bool {
        self.core.is_full()
    }

    /// Whether a checkpoint at the log's end would let go of a segment.
    pub fn is_recyclable(&self) -> bool {
        let segments = &self.core.segments;
        segments
            .first()
            .is_some_and(|first| first < segments.number_of(self.tail()))
    }

    /// Whether an error has ended the log's life.
    ///
    /// # Errors
    /// [`Error::Poisoned`], with the error.
    pub fn check_poison(&self) -> Result<()> {
        self.core.check()
    }

    /// Records before `before` are not needed any more: their segments may be reused.
    ///
    /// # Errors
    /// An I/O error; nothing is lost.
    pub fn recycle(&self, before: Lsn) -> Result<()> {
        self.core.recycle(before)
    }

    /// Keeps all segments from now until the guard is dropped, as a backup needs.
    pub fn hold(&self) -> Hold {
        self.core.holds.fetch_add(1, Ordering::AcqRel);
        Hold(self.core.clone())
    }

    /// Whether somebody [holds](Log::hold) the segments.
    pub fn is_held(&self) -> bool {
        self.core.holds.load(Ordering::Acquire) > 0
    }

    /// Bytes of the ring's stream: redo beyond it is in files only.
    pub fn ring_capacity(&self) -> u64 {
        self.core.ring.capacity()
    }

    /// The first position from which groups can be scanned out of the ring without touching a
    /// file, if any is there.
    pub fn ring_scan_start(&self) -> Lsn {
        self.core.ring_scan_start()
    }

    /// Where the ring began when it was made: nothing before was ever in it.
    pub fn ring_start(&self) -> Lsn {
        self.core.ring_start
    }

    /// Bytes of payload in a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.core.segments.payload()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.core.closing.store(true, Ordering::Release);
        self.core.work.set();
        self.core.waiters.sync_spinner.stop();
        for thread in self.threads.get_mut().drain(..) {
            // A panic in it has been said where it happened.
            let _ = thread.join();
        }
    }
}

fn start_threads(core: &Arc<Core>) -> Vec<JoinHandle<()>> {
    let (writer, company) = (core.clone(), core.clone());
    vec![
        rt::spawn("log-writer", move || writer.serve()),
        rt::spawn("log-awake", move || {
            company.waiters.sync_spinner.serve(&company.closing)
        }),
    ]
}

/// Keeps the log's segments while it lives.
pub struct Hold(Arc<Core>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The start of the block in which `at` lies.
pub(crate) fn block_of(at: Lsn) -> Lsn {
    Lsn::from_raw(at.raw() / BLOCK * BLOCK)
}

impl Core {
    fn durable(&self) -> Lsn {
        Lsn::from_raw(self.durable.load(Ordering::Acquire))
    }

    fn tail(&self) -> Lsn {
        self.ring.tail()
    }

    // ---- appending ----

    fn append(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Appended> {
        let length = group.len();
        if !(GROUP_HEADER..=MAX_GROUP).contains(&length)
            || u32_at(group, 0) != Some(KIND_GROUP)
            || u32_at(group, 4) != Some(length as u32)
            || !length.is_multiple_of(8)
        {
            return Err(Error::Invalid(format!(
                "{length} bytes that are no redo group were appended"
            )));
        }
        // The body's checksum does not depend on the place, unless somebody patches it there.
        let body = hook.is_none().then(|| crc::crc32c(&group[GROUP_HEADER..]));
        let is_commit = hook.is_some();
        let start = self.reserve(group, hook)?;
        let body = body.unwrap_or_else(|| crc::crc32c(&group[GROUP_HEADER..]));
        let checksum = seal(body, header_of(group));
        if planted(Fault::BodyAfterState) {
            self.ring.complete(start, checksum);
        }
        mark::pass(Mark::GroupReserved);
        if is_commit {
            mark::pass(Mark::CommitReserved);
        }
        self.ring
            .write(start.advance(GROUP_HEADER as u64), &group[GROUP_HEADER..]);
        if !planted(Fault::RedoFlush) {
            self.ring.persist_stream(start, length as u64);
        }
        self.ring.complete(start, checksum);
        let end = start.advance(length as u64);
        self.push_if_half_full(start, end);
        Ok(Appended { start, end })
    }

    /// Takes the place at the tail: header with length first, then the tail, then the hook.
    fn reserve(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Lsn> {
        let length = group.len() as u64;
        let mut reserve = self.reserve.lock();
        while reserve.tail.advance(length) > reserve.limit {
            reserve.limit = self.reserve_limit();
            if reserve.tail.advance(length) > reserve.limit {
                drop(reserve);
                self.make_room()?;
                reserve = self.reserve.lock();
            }
        }
        if self.poisoned() {
            drop(reserve);
            return Err(self.poison_error());
        }
        let start = reserve.tail;
        let end = start.advance(length);
        group[8..16].copy_from_slice(&start.raw().to_le_bytes());
        group[LAG_AT..LAG_AT + 4].copy_from_slice(&lag(start, self.durable()).to_le_bytes());
        self.ring.write_header(start, header_of(group));
        self.ring.set_tail(end);
        // Readers who copy from the ring look at the tail afterwards: it moves before the bytes.
        fence(Ordering::Release);
        reserve.tail = end;
        self.note_boundary(&mut reserve, start);
        if let Some(hook) = hook {
            hook(end, group);
        }
        Ok(start)
    }

    fn note_boundary(&self, reserve: &mut Reserve, start: Lsn) {
        let boundary = self.ring.boundary_of(start);
        if boundary != reserve.boundary {
            if start.raw() >= self.ring.capacity() && boundary.is_multiple_of(BOUNDARY_COUNT) {
                mark::pass(Mark::RingRound);
            }
            reserve.boundary = boundary;
            self.ring.set_boundary(start);
        }
    }

    /// What is not durable is not overwritten, nor what a reader may be copying just before it.
    fn reserve_limit(&self) -> Lsn {
        if planted(Fault::RingOverwrite) {
            return Lsn::MAX;
        }
        self.durable().advance(self.ring.capacity() - BLOCK).min(END)
    }

    #[cold]
    fn make_room(&self) -> Result<()> {
        mark::pass(Mark::RingFull);
        if self.tail().advance(MAX_GROUP as u64) > END {
            return Err(self.ended());
        }
        // The half that is complete; more than what is there need not be waited for.
        let enough = self.durable().advance(self.ring.capacity() / 4);
        let enough = enough.min(self.tail());
        loop {
            match self.wait_durable(enough) {
                // Pages are changed already: whoever is here cannot be refused any more.
                Err(Error::Full(_)) if !self.closing.load(Ordering::Acquire) => {}
                done => return done,
            }
        }
    }

    fn push_if_half_full(&self, start: Lsn, end: Lsn) {
        let half = self.ring.capacity() / 2;
        let durable = self.durable();
        if self.background && start.since(durable) < half && end.since(durable) >= half {
            self.work.set();
        }
    }

    /// The header of the group at `at`, which is below the tail; `None` while it is incomplete.
    fn complete_header(&self, at: Lsn) -> Result<Option<GroupHeader>> {
        let bytes = self.ring.header(at);
        if u32_at(&bytes, 20) != Some(STATE_COMPLETE) {
            return Ok(None);
        }
        match GroupHeader::parse(&bytes, at) {
            Some(header) => Ok(Some(header)),
            None => Err(Error::corrupt(format!(
                "the redo ring has no group at {at}, below its tail"
            ))),
        }
    }

    // ---- the background ----

    fn serve(&self) {
        while !self.closing.load(Ordering::Acquire) {
            self.work
                .wait_timeout(Nanos::from_millis(if self.is_full() { 200 } else { 1000 }));
            self.work.reset();
            if self.poisoned() {
                continue;
            }
            self.prepare_ahead();
            // A failure has poisoned the log: those who wait are told.
            let _ = self.flush_ahead();
        }
    }

    /// After a flush: segments are prepared when one was begun.
    fn after_flush(&self, from: Lsn, to: Lsn) {
        if self.segments.number_of(from) != self.segments.number_of(to) {
            self.work.set();
        }
    }

    fn recycle(&self, before: Lsn) -> Result<()> {
        self.recycle_to
            .fetch_max(before.min(self.durable()).raw(), Ordering::AcqRel);
        if self.holds.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        // The last durable group stays readable: the ring is compared with it at the next start.
        let last = self.flusher.lock().last_start;
        let to = Lsn::from_raw(self.recycle_to.load(Ordering::Acquire));
        self.segments
            .retire(if last == Lsn::ZERO { to } else { to.min(last) })?;
        self.look_for_space();
        Ok(())
    }

    // ---- poison ----

    fn poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<()> {
        if self.poisoned() {
            Err(self.poison_error())
        } else {
            Ok(())
        }
    }

    fn poison(&self, cause: &Error) {
        let mut poison = self.poison.lock();
        poison.get_or_insert_with(|| {
            Error::Poisoned(format!(
                "the redo log failed and takes no more changes ({cause}); what was committed is safe: \
                 see to the disk, then restart"
            ))
        });
        self.poisoned.store(true, Ordering::Release);
    }

    #[cold]
    fn poison_error(&self) -> Error {
        let poison = self.poison.lock().clone();
        poison.unwrap_or_else(|| Error::Poisoned("the redo log failed".into()))
    }
}

fn header_of(group: &[u8]) -> &[u8; GROUP_HEADER] {
    group.first_chunk().expect("a group is longer than its header")
}

/// The directory of the log in a data directory.
pub fn log_dir(data: &Path) -> PathBuf {
    data.join("log")
}
