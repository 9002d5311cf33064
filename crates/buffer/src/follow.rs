//! The pool of a reader: frames lose the pages that another server has changed, and get them again as of a later moment
//! (`cenote_storage::follower`).
//!
//! To a thread that reads, a move is what a mini-transaction of another thread is: the pages that it changes are
//! latched, and have another version afterwards. No page is read from storage while a move is under way, so a thread
//! that has seen a page as of the new moment finds, when it validates what it read before, that this has changed or is
//! the same as of both.
//!
//! Invariants:
//! - a frame is entered in the hash before its page is asked for, and a move is announced before it looks for frames: it
//!   waits for the latch of one that is being read;
//! - a thread that is told to wait for a move has let go of its frame before: the move may be waiting for that. Threads
//!   of a reader hold no latch while they ask for another page.

use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Lsn, PageId, Result};
use cenote_storage::nodes::{Changes, Moment};

use crate::hash::key_of;
use crate::index::FrameIndex;
use crate::pool::Pool;

/// How long an answer to the thread that follows may wait for something new.
const WAIT: Nanos = Nanos::from_millis(500);
/// Before a node is asked again that did not answer.
const PAUSE: Nanos = Nanos::from_millis(100);
/// How long a reader that has become the writer waits for its last moves: without them it begins with empty frames.
const LAST_MOVES: Nanos = Nanos::from_secs(1);
/// How long a page is asked for that changes each time.
pub(crate) const PATIENCE: Nanos = Nanos::from_secs(20);

impl Pool {
    /// Whether the pool is a reader's.
    pub fn is_reader(&self) -> bool {
        self.storage.follower().is_some()
    }

    /// Asks what has changed, waits a while for something, and drops it from the frames. A thread does so all the time,
    /// unless the pool has none.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no node answers; else the reader cannot go on.
    ///
    /// # Panics
    /// If the pool is not a reader's.
    pub fn follow_turn(&self, wait: Nanos) -> Result<()> {
        let follower = self.storage.follower().expect("a reader follows");
        let _alone = self.following.lock();
        let changes = follower.poll(wait)?;
        if changes.to == follower.place().at && changes.anew.is_none() {
            return Ok(());
        }
        let moved = self.storage.follow(&changes, || {
            self.lower.moving(&changes);
            self.forget_changed(&changes)
        });
        moved.inspect_err(|error| follower.fail(error))
    }

    /// Follows to the moment as of which the database was taken: for a pool whose threads have ended. A space that was
    /// dropped last is gone from the frames then, too.
    ///
    /// # Errors
    /// [`Error::Timeout`]; those of following.
    ///
    /// # Panics
    /// If the pool is not a reader's.
    pub fn follow_to_end(&self, taken: Moment) -> Result<()> {
        let until = rt::now() + LAST_MOVES;
        let follower = self.storage.follower().expect("a reader follows");
        while follower.place().at < taken {
            self.follow_turn(Nanos::from_millis(1))?;
            if rt::now() > until {
                return Err(Error::Timeout(format!(
                    "no storage node leads this reader to {taken:?}"
                )));
            }
        }
        Ok(())
    }

    /// The body of the thread that follows.
    pub(crate) fn serve_follow(&self) {
        let mut said = String::new();
        while !self.signals.stop.load(Ordering::Acquire) {
            let Err(error) = self.follow_turn(WAIT) else {
                said.clear();
                continue;
            };
            let text = error.to_string();
            if said != text {
                eprintln!("cenote: reader: {text}");
                said = text;
            }
            rt::sleep(PAUSE);
        }
    }

    fn forget_changed(&self, changes: &Changes) -> Result<()> {
        if changes.anew.is_some() {
            return self.discard_frames(self.frames_with_pages());
        }
        for (space, _) in &changes.spaces {
            self.discard_space(*space)?;
        }
        let mut found = Vec::new();
        for page in &changes.pages {
            // Under the bucket's lock: a look without it can miss.
            let frame = self.hash.lock(&self.frames, key_of(*page)).find(key_of(*page))?;
            found.extend(frame.map(|frame| (frame, *page)));
        }
        self.discard_frames(found)
    }

    pub(crate) fn frames_with_pages(&self) -> Vec<(FrameIndex, PageId)> {
        let touched = self.frames.header().frames_touched.load(Ordering::Acquire);
        let all = (0..touched.min(self.frames.count())).map(FrameIndex::new);
        all.filter_map(|frame| Some((frame, self.page_in(frame)?))).collect()
    }

    /// Waits until pages can be read as of `position`. The caller holds no latch.
    ///
    /// # Errors
    /// [`Error::Timeout`]; what ended the following.
    pub(crate) fn wait_followed(&self, position: Lsn) -> Result<()> {
        let follower = self.storage.follower();
        let Some(follower) = follower else {
            return Err(Error::corrupt(format!("storage has a page as of {position} only")));
        };
        if self.background {
            return follower.wait_for(position);
        }
        let until = rt::now() + PATIENCE;
        while !follower.is_at(position) {
            self.follow_turn(Nanos::from_millis(1))?;
            if rt::now() > until {
                return Err(Error::Timeout(format!(
                    "no storage node leads this reader to {position}"
                )));
            }
        }
        Ok(())
    }
}
