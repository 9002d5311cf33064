//! Answers in two: what the caller reads, and bytes for memory that its call has lent.
//!
//! ```text
//!   program: finds the bytes ─► Answer::send_from(source) ─► the node goes on with others
//!   node:    source.read, piece by piece as there is room on the way ─► the caller's memory
//!            source.finish(answer): is it what it was?               ─► the answer, and the call is complete
//! ```
//!
//! So large answers are not copied into a buffer of their own first, and a program that serves does not wait for them.

use cenote_base::{Error, Result};

/// Bytes for a caller's memory, which the node reads when it sends them. Dropped when it does not read them any more:
/// all are sent, or the call's connection is over.
pub trait Source: Send {
    /// How many.
    fn size(&self) -> usize;

    /// Copies those from `at` on; all of them, from the first to the last. Does not block.
    fn read(&mut self, at: usize, into: &mut [u8]);

    /// All were read; the answer is not sent yet: it can still say what became of them.
    fn finish(self: Box<Self>, answer: &mut [u8]) {
        let _ = answer;
    }
}

/// An answer, as an implementation gets it.
pub struct Answered {
    /// What the caller reads.
    pub bytes: Vec<u8>,
    /// What goes to the beginning of the caller's memory, where it fits.
    pub source: Option<Box<dyn Source>>,
}

impl From<Vec<u8>> for Answered {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, source: None }
    }
}

impl core::fmt::Debug for Answered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let beside = self.source.as_ref().map_or(0, |source| source.size());
        write!(f, "an answer of {} bytes, and {beside}", self.bytes.len())
    }
}

impl Answered {
    /// Reads its source, all at once: the answer, and what goes into memory.
    pub fn settle(self) -> (Vec<u8>, Vec<u8>) {
        let Self { mut bytes, source } = self;
        let Some(mut source) = source else {
            return (bytes, Vec::new());
        };
        let mut read = vec![0; source.size()];
        source.read(0, &mut read);
        source.finish(&mut bytes);
        (bytes, read)
    }
}

/// Whether a source's bytes go into so much memory.
///
/// # Errors
/// [`Error::Invalid`].
pub(super) fn check_room(source: &dyn Source, room: usize) -> Result<()> {
    match source.size() {
        size if size <= room => Ok(()),
        size => Err(Error::Invalid(format!(
            "{size} bytes for a caller's memory of {room} bytes"
        ))),
    }
}
