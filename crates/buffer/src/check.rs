//! Everything that must hold of a pool, verified frame by frame; while it is used, or not.

use cenote_base::rt::atomic::Ordering;
use cenote_base::{Lsn, PageId};
use cenote_storage::redo::page_header;

use crate::hash::{key_of, page_of};
use crate::index::FrameIndex;
use crate::latch;
use crate::layout::FrameState;
use crate::lists::List;
use crate::pool::Pool;

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Frames in use that were looked at.
    pub frames: u64,
    /// A line for each thing that is wrong.
    pub problems: Vec<String>,
}

impl Pool {
    /// Verifies frames, hash and lists.
    pub fn check(&self) -> CheckReport {
        let mut report = CheckReport::default();
        for frame in FrameIndex::all(0..self.touched()) {
            self.check_frame(frame, &mut report);
        }
        self.check_lists(&mut report);
        self.lower.check(&mut report.problems);
        report
    }

    /// Frames that are latched now. Of a pool that no thread uses: what was never released.
    pub fn latches_held(&self) -> u64 {
        let held = |frame: &FrameIndex| {
            latch::is_held(self.frames.descriptor(*frame).latch.load(Ordering::Acquire), self.owner)
        };
        FrameIndex::all(0..self.touched()).filter(held).count() as u64
    }

    /// Under a shared latch that is only tried: what is being changed is not looked at.
    fn check_frame(&self, frame: FrameIndex, report: &mut CheckReport) {
        let d = self.frames.descriptor(frame);
        if !latch::try_shared(&d.latch, self.owner) {
            return;
        }
        let mut problem = |text: String| report.problems.push(format!("frame {frame}: {text}"));
        let (key, state) = (
            d.key.load(Ordering::Relaxed),
            FrameState::of(d.state.load(Ordering::Relaxed)),
        );
        if !d.is_sealed() {
            problem("its descriptor's check does not fit".into());
        }
        match state {
            Some(FrameState::Used) => {
                self.check_used(frame, key, &mut problem);
                report.frames += 1;
            }
            Some(FrameState::Free) if key == 0 => {}
            other => problem(format!("state {other:?} with key {key:x}, and no thread holds it")),
        }
        self.unlatch_shared(frame);
    }

    fn check_used(&self, frame: FrameIndex, key: u64, problem: &mut impl FnMut(String)) {
        let (d, page) = (self.frames.descriptor(frame), page_of(key));
        match self.hash.lock(&self.frames, key).find(key) {
            Ok(Some(found)) if found == frame => {}
            Ok(found) => problem(format!("page {page} leads to frame {found:?}")),
            Err(error) => problem(error.to_string()),
        }
        let span = self.frames.page(frame);
        let lsn = d.lsn.load(Ordering::Relaxed);
        if span.u64(page_header::LSN) != lsn.raw() {
            problem(format!(
                "page {page} has LSN {}, its descriptor {lsn}",
                Lsn::from_raw(span.u64(page_header::LSN))
            ));
        }
        let found = PageId::new(span.u32(page_header::SPACE), span.u32(page_header::PAGE));
        if key_of(found) != key && lsn != Lsn::ZERO {
            problem(format!("page {page} holds the bytes of {found}"));
        }
        if lsn > self.storage.log().tail() {
            problem(format!("page {page} has LSN {lsn}, beyond the log"));
        }
        let rec = d.rec.load(Ordering::Relaxed);
        if rec > lsn {
            problem(format!("page {page} is dirty from {rec} and has LSN {lsn}"));
        }
    }

    fn check_lists(&self, report: &mut CheckReport) {
        let lists = self.lists();
        for list in [List::Free, List::Warm, List::Cold] {
            let (mut at, mut count) = (lists.last(list), 0);
            while let Ok(Some(frame)) = at {
                if lists.of(frame) != list || count > self.frames.count() {
                    break;
                }
                count += 1;
                at = lists.before(frame);
            }
            if !matches!(at, Ok(None)) || count != lists.count(list) {
                report.problems.push(format!(
                    "{list:?} list: {count} frames met, {} counted",
                    lists.count(list)
                ));
            }
        }
    }
}
