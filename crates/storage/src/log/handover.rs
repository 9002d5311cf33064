//! The log's files when the data directory comes to another host.
//!
//! An instance that ran on the former host may write to the segments that it has open, at any time. So the log goes on
//! in files that it does not know:
//!
//! ```text
//!   before   K-1     K ▓▓▓▓▓▓▓│        K+1                spares      what a former owner has open
//!   after    K-1     K-G ▓▓▓▓▓▓▓│                                      made anew: its bytes copied up to the log's end
//!                               └ end
//! ```
//!
//! Segments before that in which the log ends stay as they are: whatever a former owner writes there it has written
//! before, since it writes behind what was durable only, and that lies in `K`. Each step leaves a directory that the
//! next start can read: `K-G` has its name when it is whole, and then counts before `K`; what lies behind it and is of
//! a lower generation means nothing.
//!
//! A start may be stopped over that while another takes the directory. So it looks at `owner` before it removes
//! anything; all files that it removes it has listed before, so they are of no later start. One of a generation that
//! no start has recorded is put aside, not removed.

use cenote_base::error::IoContext;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::fs;
use cenote_base::{Lsn, Result};

use super::ring::BLOCK;
use super::segments::{SEGMENT_HEADER, Segments};

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

impl Segments {
    /// Gives the segments from `end` on, where the log ends, files of this start's generation, and removes those of
    /// former owners. Nothing is done where all are its own. `check` says whether the directory is this start's still.
    ///
    /// # Errors
    /// An I/O error, with the segment; those of `check`.
    pub fn own_from(&self, end: Lsn, check: &dyn Fn() -> Result<()>) -> Result<()> {
        let number = self.number_of(end);
        if !self.has_foreign_from(number) || planted(Fault::LogFilesKept) {
            return Ok(());
        }
        // A log that ends where a segment begins has nothing in it.
        if !end.raw().is_multiple_of(self.payload()) && !self.is_own(number) {
            check()?;
            self.copy_up_to(end)?;
        }
        // What was listed before this look is of starts before this one: a later one would be found here.
        check()?;
        self.forget_foreign(number)?;
        fs::sync_dir(self.dir()).doing(|| format!("syncing {}", self.dir().display()))
    }

    /// The segment in which the log ends, up to there, in a file of its own; zeros behind.
    fn copy_up_to(&self, end: Lsn) -> Result<()> {
        let number = self.number_of(end);
        let Some(from) = self.file(number)? else {
            return Err(self.missing(end));
        };
        let doing = || format!("copying log segment {number:x} to a file of this host");
        let length = end.since(self.start_of(number));
        self.make_copy(number, |to| {
            let mut buffer = vec![0; CHUNK];
            for at in (0..length).step_by(CHUNK) {
                let used = CHUNK.min((length - at) as usize);
                let whole = used.next_multiple_of(BLOCK as usize);
                from.read_exact_at(&mut buffer[..used], SEGMENT_HEADER + at)?;
                buffer[used..whole].fill(0);
                to.write_at(&buffer[..whole], SEGMENT_HEADER + at)?;
            }
            Ok(())
        })
        .doing(doing)
    }
}
