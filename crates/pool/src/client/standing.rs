//! A process as a member of one space, whichever memory nodes it is a member at: its number, and whether it was fenced.
//!
//! Each of those nodes may fence it. A node that does tells the others, and ends what the member had when they have
//! confirmed it. So a process that hears it from one of them has lost all: it asks none of them for anything more.

use crate::member::MemberId;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Mutex};
use cenote_base::{Error, Result};
use cenote_space::Channel;
use std::sync::Arc;

/// See the module.
pub(super) struct Standing {
    /// The same at all nodes.
    pub(super) member: MemberId,
    revoked: AtomicBool,
    /// And the application was told.
    told: AtomicBool,
    /// The ways to the parts that it does not map.
    channels: Mutex<Vec<Arc<Channel>>>,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            member: MemberId(rt::random_u128()),
            revoked: AtomicBool::new(false),
            told: AtomicBool::new(false),
            channels: Mutex::default(),
        }
    }
}

impl Standing {
    pub(super) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// # Errors
    /// [`Error::Revoked`] if it was fenced.
    pub(super) fn check(&self, space: &str) -> Result<()> {
        match self.is_revoked() {
            true => Err(Error::Revoked(format!(
                "this process is no member of space \"{space}\" any more: it was silent for too long"
            ))),
            false => Ok(()),
        }
    }

    /// Whether the application is to be told that it is over: once.
    pub(super) fn is_to_be_told(&self) -> bool {
        self.is_revoked() && !self.told.swap(true, Ordering::AcqRel)
    }

    pub(super) fn add_channel(&self, channel: &Arc<Channel>) {
        self.channels.lock().push(Arc::clone(channel));
    }

    /// Whether there is nothing to settle, in any part.
    pub(super) fn is_settled(&self) -> bool {
        self.channels.lock().iter().all(|channel| channel.is_settled())
    }

    /// Nothing that was given up is done any more, in any part, once this returns.
    ///
    /// # Errors
    /// As [`Channel::settle`].
    pub(super) fn settle(&self) -> Result<()> {
        let channels = self.channels.lock().clone();
        channels
            .iter()
            .map(|channel| channel.settle())
            .fold(Ok(()), Result::and)
    }
}
