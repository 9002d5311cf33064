//! Why parts that were asked for could not be made, until the client that waits for them takes that.
//!
//! A reason is kept only while a client waits. Lock order: the reasons → the grant table.

use crate::grant_table::GrantId;
use cenote_base::Error;
use cenote_base::rt::Mutex;
use std::collections::BTreeMap;

/// See the module.
#[derive(Default)]
pub(super) struct NotMade(Mutex<BTreeMap<GrantId, Error>>);

impl NotMade {
    /// Keeps a reason, if a client waits for the part. It takes the reason after the part's phase is another.
    pub(super) fn keep(&self, part: GrantId, why: Error, is_awaited: impl FnOnce() -> bool) {
        let mut reasons = self.0.lock();
        if is_awaited() {
            reasons.insert(part, why);
        }
    }

    /// Takes the reasons of parts: the first of them.
    pub(super) fn take(&self, parts: &[GrantId]) -> Option<Error> {
        let mut reasons = self.0.lock();
        parts.iter().fold(None, |first, id| {
            let why = reasons.remove(id);
            first.or(why)
        })
    }
}
