//! What recovery did, for people and for the view `cenote_recovery` (rule 8).

use std::fmt;

use cenote_base::PageId;
use cenote_base::rt::Nanos;

/// How the pool came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The last process shut down: nothing to recover.
    Clean,
    /// The region was believed: frames were kept.
    Instant,
    /// The region was gone or not believed: redo was replayed from storage.
    Log,
}

impl Mode {
    /// `clean`, `instant` or `log`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Clean => "clean",
            Mode::Instant => "instant",
            Mode::Log => "log",
        }
    }
}

/// Why a frame was repaired or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A dead thread held its latch exclusively.
    Latched,
    /// Its LSN is beyond the durable log.
    TooNew,
    /// Its descriptor contradicts itself.
    Damaged,
    /// Another frame claims the same page.
    Twice,
}

impl Cause {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Cause::Latched => "was being changed",
            Cause::TooNew => "newer than the durable log",
            Cause::Damaged => "damaged descriptor",
            Cause::Twice => "page in two frames",
        }
    }
}

/// One page that was rebuilt from storage and redo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repaired {
    /// The page.
    pub page: PageId,
    /// Why.
    pub cause: Cause,
    /// Redo records applied to its image in storage.
    pub records: u32,
}

/// What recovery did.
#[derive(Debug, Clone)]
pub struct RecoveryReport {
    /// How the pool came up.
    pub mode: Mode,
    /// Frames in use that were believed as they are.
    pub frames_kept: u64,
    /// Pages rebuilt, each with its cause. In mode `log`, pages are counted in `pages_replayed` instead.
    pub repaired: Vec<Repaired>,
    /// Frames that lost their page: it comes from storage when it is asked for.
    pub frames_discarded: u64,
    /// Pages to which redo was applied in mode `log`.
    pub pages_replayed: u64,
    /// Redo bytes read: from the ring, or from files.
    pub redo_bytes_read: u64,
    /// Mini-transactions that were not whole in the ring: void.
    pub voided: u64,
    /// Pages that remote memory had kept and that were believed (kind `tiered`).
    pub remote_kept: u64,
    /// Pages named there that were not.
    pub remote_discarded: u64,
    /// Lists were found in the middle of a change.
    pub lists_repaired: bool,
    /// Why a region was not believed, if there was one; and other remarks for the log.
    pub remarks: Vec<String>,
    /// From the call to the pool being ready.
    pub duration: Nanos,
}

impl RecoveryReport {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            frames_kept: 0,
            repaired: Vec::new(),
            frames_discarded: 0,
            pages_replayed: 0,
            redo_bytes_read: 0,
            voided: 0,
            remote_kept: 0,
            remote_discarded: 0,
            lists_repaired: false,
            remarks: Vec::new(),
            duration: Nanos::ZERO,
        }
    }

    /// Pages rebuilt.
    pub fn frames_repaired(&self) -> u64 {
        self.repaired.len() as u64
    }
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "recovery: {}, {} frames kept, {} repaired, {} discarded, {} pages replayed, {} bytes of redo read, {:.1} ms",
            self.mode.name(),
            self.frames_kept,
            self.repaired.len(),
            self.frames_discarded,
            self.pages_replayed,
            self.redo_bytes_read,
            self.duration.raw() as f64 / 1e6,
        )?;
        if self.remote_kept + self.remote_discarded > 0 {
            let (kept, discarded) = (self.remote_kept, self.remote_discarded);
            write!(f, ", {kept} pages in remote memory, {discarded} discarded there")?;
        }
        Ok(())
    }
}
