//! The redo log: a stream of groups, the newest part in a ring, the durable part in segment files.
//!
//! 1. [`Log::append`] reserves a place at the tail under a short lock, copies the group there outside of it, and marks
//!    the group complete ([`append`]).
//! 2. [`Log::wait_durable`]: one of the waiting threads writes and syncs all complete groups ([`commit`], [`waiters`]).
//! 3. [`Log::open`] finds the end of the log: in the ring, if it can be believed, else in the files ([`recover`]).
//! 4. [`Log::scan`], [`Log::read_record`] and [`Log::chains`] read it back ([`read`], [`chains`]), large reads ahead of
//!    use.
//!
//! Invariants:
//! - the durable position is at a group's end, and everything below it is synced;
//! - an error of a write or sync is never retried: it poisons the log, and all later appends and waits fail with it. (A
//!   segment that cannot be made for lack of space has lost nothing: the lead tries again.)
//! - appending never fails for lack of space: [`Log::admit`] asks before work begins ([`space`]).
//!
//! [`state`] has what these parts share, and the lock order.

mod append;
mod chains;
mod commit;
mod copy;
mod flusher;
mod handover;
mod medium;
mod read;
mod read_ahead;
mod recover;
pub(crate) mod ring;
mod segments;
mod space;
mod state;
mod sync_spinner;
#[cfg(test)]
mod tests;
mod waiters;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, JoinHandle, Mutex};
use cenote_base::{Error, Lsn, PageId, RecordAddr, Result};

use ring::BLOCK;
use state::LogState;

pub use append::{Appended, Hook};
pub use chains::Chains;
pub(crate) use copy::{LogCopy, LogSource};
pub(crate) use medium::NODE_BATCH;
pub use read::{OwnedRecord, Scan};
pub use recover::{LogOptions, LogReport, RingUse};
pub use ring::{RING_HEADER, RING_MIN, RingPlace, Survive};
pub use space::Need;
pub use state::NoteDurable;

/// The usual position of the first group of a database: zero means "none" everywhere.
pub const FIRST_LSN: Lsn = Lsn::from_raw(BLOCK);

/// The redo log. Dropping it ends its background threads, and syncs nothing that no thread has waited for.
pub struct Log {
    state: Arc<LogState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Log {
    /// Opens or makes the log, finds its end, and makes the groups of the ring durable.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if bytes that were durable are damaged (which segment, which offset), a
    /// segment is missing; [`Error::Full`] if there is no space for the first segment.
    pub fn open(options: LogOptions) -> Result<(Log, LogReport)> {
        let background = options.background;
        let (state, report) = recover::open(options)?;
        let state = Arc::new(state);
        let threads = if background { start_threads(&state) } else { Vec::new() };
        state.work.set();
        Ok((
            Log {
                state,
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
    /// [`Error::LogFailed`] if the log has failed, [`Error::Invalid`] if the bytes are no group.
    pub fn append(&self, group: &mut [u8], hook: Option<Hook<'_>>) -> Result<Appended> {
        self.state.append(group, hook)
    }

    /// What notes durably that the log reaches a position. It is called before that is acknowledged while the region's
    /// mirror is behind and may count as whole; an error of it poisons the log. To be said before anything is appended.
    pub fn set_note_durable(&self, note: NoteDurable) {
        self.state.note_durable.get_or_init(|| note);
    }

    /// Everything below is synced.
    #[inline]
    pub fn durable(&self) -> Lsn {
        self.state.durable()
    }

    /// The log of a reader, to which this process appends nothing, ends at `end` now.
    pub(crate) fn follow_to(&self, end: Lsn) {
        self.state.follow_to(end);
    }

    /// Nothing is appended from here on: `why`.
    pub(crate) fn refuse_appends(&self, why: &str) {
        self.state.poison.set(|| Error::LogFailed(why.to_owned()));
    }

    /// The end of the last reservation.
    pub fn tail(&self) -> Lsn {
        self.state.tail()
    }

    /// Returns once everything below `lsn` is synced.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if it will never be; [`Error::Full`] if there is no space for its segment for 5 s;
    /// [`Error::Timeout`] if the drive has not answered for a minute.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        self.state.wait_durable(lsn)
    }

    /// Returns once all groups before `lsn` are complete, so that no end of the process makes one of them void. Other
    /// threads copy the incomplete ones this moment; the caller latches no page that such a thread may wait for.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the ring holds no group where one was reserved.
    pub fn wait_complete(&self, lsn: Lsn) -> Result<()> {
        self.state.wait_complete(lsn)
    }

    /// Whether the group that ends at `lsn` is being copied yet: for marks.
    pub fn is_incomplete(&self, lsn: Lsn) -> bool {
        self.state.is_incomplete(lsn)
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// As [`Log::wait_durable`].
    pub fn flush_all(&self) -> Result<()> {
        self.state.wait_durable(self.tail())
    }

    /// Whether a thread writes or syncs the log this moment.
    pub fn is_flushing(&self) -> bool {
        self.state.waiters.is_led()
    }

    /// Whether work for `need` may begin: enough of the log behind the tail has its space taken.
    ///
    /// # Errors
    /// [`Error::Full`] if not, with what to do; [`Error::LogFailed`] if the log has failed.
    #[inline]
    pub fn admit(&self, need: Need) -> Result<()> {
        self.state.admit(need)
    }

    /// Whether segments are missing ahead of the tail for lack of space.
    pub fn is_full(&self) -> bool {
        self.state.is_full()
    }

    /// Whether a checkpoint at the log's end would free a segment.
    pub fn is_recyclable(&self) -> bool {
        let needed = self.tail().min(self.state.kept_from());
        let first = |segments: &segments::Segments| Some(segments.first()? < segments.number_of(needed));
        self.state.medium.files().and_then(first).unwrap_or(false)
    }

    /// Whether an error has ended the log's life.
    ///
    /// # Errors
    /// [`Error::LogFailed`], with the error.
    pub fn check_poison(&self) -> Result<()> {
        self.state.poison.check()
    }

    /// Says that records before `before` are not needed: their segments may be reused.
    ///
    /// # Errors
    /// An I/O error; nothing is lost.
    pub fn recycle(&self, before: Lsn) -> Result<()> {
        self.state.recycle(before)
    }

    /// Keeps all segments from now until the guard is dropped, as a backup needs.
    pub fn hold(&self) -> Hold {
        self.state.holds.fetch_add(1, Ordering::AcqRel);
        Hold(self.state.clone())
    }

    /// Keeps the segments from position `at` on, until another is said, for an archive that does not have them yet.
    pub fn keep_from(&self, at: Lsn) {
        self.state.keep_from.store(at.raw(), Ordering::SeqCst);
    }

    /// So many bytes are kept for the archive at most, and none when the disk is full.
    pub fn keep_most(&self, bytes: u64) {
        self.state.keep_most.store(bytes, Ordering::SeqCst);
    }

    /// Whether a guard of [`Log::hold`] keeps the segments.
    pub fn is_held(&self) -> bool {
        self.state.holds.load(Ordering::Acquire) > 0
    }

    /// Bytes of the ring's stream: redo beyond it is in files only.
    pub fn ring_capacity(&self) -> u64 {
        self.state.ring.capacity()
    }

    /// The first position from which groups can be scanned out of the ring without touching a
    /// file, if any is there.
    pub fn ring_scan_start(&self) -> Lsn {
        self.state.ring_scan_start()
    }

    /// Where the ring began when it was made: nothing before was ever in it.
    pub fn ring_start(&self) -> Lsn {
        self.state.ring_start
    }

    /// Bytes of payload in a segment.
    pub fn segment_bytes(&self) -> u64 {
        self.state.medium.segment_bytes()
    }

    // ---- reading it back ----

    /// The page record at `address`, its group verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or it is damaged, or its segment is gone.
    pub fn read_record(&self, address: RecordAddr) -> Result<OwnedRecord> {
        let mut files = |at, buffer: &mut [u8]| self.state.read_durable(at, buffer);
        self.state.read_record(address, &mut Vec::new(), &mut files)
    }

    /// Fills as much of `buffer` from `at` on as is durable and there.
    ///
    /// # Errors
    /// Those of the files or nodes.
    pub(crate) fn read_durable(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self
                .state
                .read_durable(at.advance(filled as u64), &mut buffer[filled..])?
            {
                0 => break,
                n => filled += n,
            }
        }
        Ok(filled)
    }

    /// All durable groups from `from` on, which has to be a group's start. Groups that become durable later are not
    /// included.
    pub fn scan(&self, from: Lsn) -> Scan<'_> {
        Scan::new(&self.state, from)
    }

    /// The records of pages from `from` on, each page's up to the LSN that is given, oldest first. They begin with the
    /// last base record, if there is one. A base record behind that LSN is given alone: it makes the page whatever came
    /// before.
    ///
    /// # Errors
    /// Those of [`Scan::next`].
    pub fn redo_of(&self, from: Lsn, pages: &BTreeMap<PageId, Lsn>) -> Result<BTreeMap<PageId, Vec<OwnedRecord>>> {
        read::redo_of(self.scan(from), pages)
    }

    /// The records that build `page` from its state at `base_lsn`: see [`Chains::collect`].
    ///
    /// # Errors
    /// As of [`Chains::collect`].
    pub fn collect_chain(&self, page: PageId, head: RecordAddr, base_lsn: Lsn) -> Result<Vec<OwnedRecord>> {
        self.chains().collect(page, head, base_lsn)
    }

    /// Follows several chains, which share the blocks that are read of the files.
    pub fn chains(&self) -> Chains {
        Chains::new(&self.state)
    }

    /// The durable log, to be copied.
    pub(crate) fn source(&self) -> LogSource<'_> {
        LogSource::Live(&self.state)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.state.closing.store(true, Ordering::Release);
        self.state.work.set();
        self.state.waiters.sync_spinner.stop();
        for thread in self.threads.get_mut().drain(..) {
            // The thread reported its panic where it happened.
            let _ = thread.join();
        }
    }
}

fn start_threads(state: &Arc<LogState>) -> Vec<JoinHandle<()>> {
    let (writer, spinner) = (state.clone(), state.clone());
    vec![
        rt::spawn("log-writer", move || writer.serve()),
        rt::spawn("log-sync-spinner", move || {
            spinner.waiters.sync_spinner.serve(&spinner.closing)
        }),
    ]
}

/// Keeps the log's segments while it lives.
pub struct Hold(Arc<LogState>);

impl Drop for Hold {
    fn drop(&mut self) {
        let before = self.0.holds.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "each hold ends once");
    }
}
