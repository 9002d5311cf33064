//! Faults that a test plants: rules of the engine broken on purpose, to see that the simulator's checkers notice.
//!
//! A checker that finds nothing is worth nothing. So each rule that one guards has a place in the code where it can be
//! broken, and a name here. [`planted`] is false unless a runtime other than the operating system drives the thread
//! and a test has [`plant`]ed the fault on it: a server asks one thread-local flag, and never on the path of a read.
//!
//! ```
//! use cenote_base::rt::fault::{self, Fault};
//! let _broken = fault::plant(Fault::ChainLink);
//! assert!(!fault::planted(Fault::ChainLink), "nothing is simulated here");
//! ```

use super::seamed;
use std::cell::Cell;

/// A rule that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Fault {
    /// Lines of a changed page are not flushed before its latch is released (survival of the host, step d).
    PageFlush,
    /// A region that another host has written is attached without dropping the lines that this host has cached.
    Invalidate,
    /// A page is written to storage before the redo that changed it is durable.
    PageBeforeLog,
    /// The buffer's lists are changed without their lock.
    ListLock,
    /// A redo record does not name the record before it of the same page.
    ChainLink,
    /// An error of a sync of the log is taken for success.
    SyncError,
    /// A row that was locked explicitly is free again at once.
    RowLock,
    /// A row of a transaction in progress counts as free to change.
    WriteLock,
    /// A commit's timestamp lies before snapshots that were taken already.
    StaleCts,
    /// A commit is acknowledged before the log is durable.
    EarlyAnswer,
    /// Remote memory gets a page before the redo that changed it is durable.
    RemoteBeforeLog,
    /// Storage gets a page while remote memory names an older copy of it.
    StaleCopy,
    /// Remote memory that was given up may be believed by the next start, though storage has gone on.
    StillOwned,
    /// What storage lacks of a page is forgotten when the page leaves its frame for remote memory.
    LostTrace,
    /// A page out of storage is believed whatever its checksum says.
    PageChecksum,
    /// A page that was read under a lock is believed though somebody has written under it since.
    StaleCache,
    /// What was written under a lock, and collected, is not written before the lock is left.
    LostFlush,
    /// An extent that is hot in another pod goes there, however hot it is where it is.
    HeatComparison,
    /// An extent that is about to move is still used where it was.
    MoveFence,
    /// A memory node says that who held a grant has ended, and has not looked.
    GrantFence,
    /// A row's version is believed though its transaction was rolled back while it was looked at.
    AbortedVersion,
    /// Breaks no rule: some commits stand still for long between their place in the log and the stamps of their pages.
    StalledCommit,
    /// Breaks no rule: some who have copied a row stand still for long before they ask what has become of its transaction.
    StalledLook,
}

impl Fault {
    /// All that break a rule, and that a world finds.
    pub const ALL: [Fault; 21] = [
        Fault::PageFlush,
        Fault::Invalidate,
        Fault::PageBeforeLog,
        Fault::ListLock,
        Fault::ChainLink,
        Fault::SyncError,
        Fault::RowLock,
        Fault::WriteLock,
        Fault::StaleCts,
        Fault::EarlyAnswer,
        Fault::RemoteBeforeLog,
        Fault::StaleCopy,
        Fault::StillOwned,
        Fault::LostTrace,
        Fault::PageChecksum,
        Fault::StaleCache,
        Fault::LostFlush,
        Fault::HeatComparison,
        Fault::MoveFence,
        Fault::GrantFence,
        Fault::AbortedVersion,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::PageFlush => "page-flush",
            Fault::Invalidate => "invalidate",
            Fault::PageBeforeLog => "page-before-log",
            Fault::ListLock => "list-lock",
            Fault::ChainLink => "chain-link",
            Fault::SyncError => "sync-error",
            Fault::RowLock => "row-lock",
            Fault::WriteLock => "write-lock",
            Fault::StaleCts => "stale-cts",
            Fault::EarlyAnswer => "early-answer",
            Fault::RemoteBeforeLog => "remote-before-log",
            Fault::StaleCopy => "stale-copy",
            Fault::StillOwned => "still-owned",
            Fault::LostTrace => "lost-trace",
            Fault::PageChecksum => "page-checksum",
            Fault::StaleCache => "stale-cache",
            Fault::LostFlush => "lost-flush",
            Fault::HeatComparison => "heat-comparison",
            Fault::MoveFence => "move-fence",
            Fault::GrantFence => "grant-fence",
            Fault::AbortedVersion => "aborted-version",
            Fault::StalledCommit => "stalled-commit",
            Fault::StalledLook => "stalled-look",
        }
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

thread_local! {
    static PLANTED: Cell<u32> = const { Cell::new(0) };
}

/// Whether `fault` is planted on this thread of the machine, and a simulator drives it.
#[inline(always)]
pub fn planted(fault: Fault) -> bool {
    seamed() && is_planted(fault)
}

#[cold]
#[inline(never)]
fn is_planted(fault: Fault) -> bool {
    PLANTED.get() & fault.bit() != 0
}

/// Keeps a fault planted until it is dropped.
#[derive(Debug)]
pub struct Planted(u32);

/// Plants `fault` on this thread of the machine, and so in all simulated threads that it runs.
pub fn plant(fault: Fault) -> Planted {
    PLANTED.set(PLANTED.get() | fault.bit());
    Planted(fault.bit())
}

impl Drop for Planted {
    fn drop(&mut self) {
        PLANTED.set(PLANTED.get() & !self.0);
    }
}

thread_local! {
    static ENDED: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Ends the process where no guard may run, because pages are half changed. `why` has been said. A simulated process is killed,
/// and [`ended`] tells why; one that is the whole simulation has this thread stop for good.
pub fn end_process(why: &str) -> ! {
    if !seamed() || std::thread::panicking() {
        std::process::abort();
    }
    ENDED.with(|ended| ended.borrow_mut().push(why.to_owned()));
    super::entered().end_process();
    loop {
        super::sleep(super::Nanos::from_secs(3600));
    }
}

/// Why simulated processes have ended themselves since the last call.
pub fn ended() -> Vec<String> {
    ENDED.with(std::cell::RefCell::take)
}
