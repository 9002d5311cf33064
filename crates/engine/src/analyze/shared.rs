//! What the thread that analyzes and the engine share.

use crate::tx::locks::CancelFlag;
use cenote_base::rt;
use cenote_base::rt::atomic::AtomicU64;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(crate) struct Automatic {
    pub signal: Arc<rt::Event>,
    /// Stops the analysis in progress.
    pub(super) cancel: rt::Mutex<Option<Arc<CancelFlag>>>,
    pub(super) analyses: AtomicU64,
}

impl Automatic {
    /// The engine is stopping.
    pub(crate) fn stop(&self) {
        if let Some(cancel) = &*self.cancel.lock() {
            cancel.set();
        }
        self.signal.set();
    }
}
