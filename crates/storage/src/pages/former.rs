//! Pages that the process before may not have made durable.
//!
//! A start finds them in their places, each as its newest copy in the double-write area. The process before may have
//! been killed before it synced them, or have ended since its sync failed; then the system shows what it will never
//! write. So this process writes them once more. Not at start, which need not wait for it.
//!
//! Invariant: no page is written in place and no sync is believed before all of them are written again.

use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::{PAGE_SIZE, Result};

use super::spaces::SpaceFile;
use crate::reads::at_once;

/// A page that is in its place as its newest copy says.
pub(super) struct FormerPage {
    pub file: SpaceFile,
    pub page: u32,
    pub bytes: Box<[u8]>,
}

/// Those that are not written again yet.
pub(super) struct FormerPages {
    pages: Mutex<Vec<FormerPage>>,
    is_owed: AtomicBool,
}

impl FormerPages {
    pub fn new(pages: Vec<FormerPage>) -> FormerPages {
        assert!(
            pages.iter().all(|former| former.bytes.len() == PAGE_SIZE),
            "a former page is a whole page"
        );
        FormerPages {
            is_owed: AtomicBool::new(!pages.is_empty()),
            pages: Mutex::new(pages),
        }
    }

    /// Whether they are still to be written.
    pub fn is_owed(&self) -> bool {
        self.is_owed.load(Ordering::Acquire)
    }

    /// Writes them, unless that is done. `guarded` gets the outcome, and makes an error final.
    ///
    /// # Errors
    /// An I/O error of a write, as `guarded` hands it back.
    pub fn write_again(&self, guarded: impl FnOnce(Result<()>) -> Result<()>) -> Result<()> {
        if !self.is_owed() {
            return Ok(());
        }
        // Held until all is written: of a page that is here nothing newer may be written before.
        let mut former = self.pages.lock();
        let (mut files, mut requests) = (Vec::new(), Vec::new());
        for (f, tag) in core::mem::take(&mut *former).into_iter().zip(0..) {
            requests.push(f.file.rewrite(f.page, f.bytes, tag));
            files.push(f.file);
        }
        let done = at_once(requests);
        guarded(
            files
                .iter()
                .zip(done)
                .try_for_each(|(file, request)| file.rewritten(request)),
        )?;
        self.is_owed.store(false, Ordering::Release);
        Ok(())
    }
}
