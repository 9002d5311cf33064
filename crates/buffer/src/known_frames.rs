//! Looking at all frames that were kept: by one thread in the background, or by all processors where all must be known.

use std::sync::{Arc, Weak};

use cenote_base::Lsn;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, JoinHandle, Nanos};

use crate::index::FrameIndex;
use crate::pool::Pool;
use crate::stats::bump;

/// Threads that a caller that needs all parts starts, at most.
const HELPERS: usize = 15;
/// How long a caller that needs all parts waits for those of others, between two looks.
const TURN: Nanos = Nanos::from_micros(50);

impl Pool {
    /// Returns when the look at the frames that were kept is over; until then all processors take part in it.
    pub(crate) fn know_all_frames(&self) {
        if self.sweep.is_over() {
            return;
        }
        let helpers = self.start_helpers();
        while self.sweep_part() {}
        for helper in helpers {
            if let Err(panic) = helper.join() {
                std::panic::resume_unwind(panic);
            }
        }
        while !self.sweep.is_over() {
            rt::sleep(TURN);
        }
    }

    /// Threads that take parts as well, as far as the system has any to give.
    fn start_helpers(&self) -> Vec<JoinHandle<()>> {
        let most = rt::cores().min(HELPERS + 1).min(self.sweep.left(self.survey_part));
        let start = |pool: Arc<Pool>| rt::try_spawn("pool-sweep", move || while pool.sweep_part() {});
        let me = || self.me.get().and_then(Weak::upgrade);
        (1..most).map_while(|_| start(me()?).ok()).collect()
    }

    /// Looks at one part; false if there is none left to take.
    pub(crate) fn sweep_part(&self) -> bool {
        let Some(part) = self.sweep.take(self.survey_part) else {
            return false;
        };
        let frames = part.len() as u32;
        FrameIndex::all(part).for_each(|frame| self.enter_found(frame));
        bump(&self.counters().descriptors_examined, u64::from(frames));
        self.sweep.finish(frames);
        true
    }

    /// Enters a frame in the lists as its descriptor says.
    pub(crate) fn enter_found(&self, frame: FrameIndex) {
        let d = self.frames.descriptor(frame);
        self.spaces.enter(frame, || d.key.load(Ordering::Acquire));
        match d.rec.load(Ordering::Acquire) {
            Lsn::ZERO => {}
            rec => self.dirty.enter(frame, rec),
        }
    }
}
