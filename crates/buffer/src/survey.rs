//! The look at all descriptors: which frames are believed, and the page hash built anew from them.
//!
//! It is made at an instant recovery where the region is small enough, its host was lost, or something contradicts
//! itself ([`crate::recover`] says when). No other thread is about but those that make it:
//!
//! ```text
//!  buckets      [ empty │ empty │ … ]                       each part by one thread, all before the next step
//!  descriptors  [ judge, enter in the hash │ … ]            results put together in the order of parts
//!  lists        [ link among themselves │ … ], then joined  only where they contradict the frames
//! ```
//!
//! Invariants:
//! - the result is that of one thread: suspects by frame, each once; lists in the order of frames. Which of two frames
//!   with one page is in the hash may differ, and neither is believed;
//! - a bucket is locked while a frame is entered; descriptors are of their part's thread alone.

use std::ops::Range;
use std::sync::Arc;

use cenote_base::Lsn;
use cenote_base::page_io::PageIo;
use cenote_base::rt;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_fabric::observe::Access;

use crate::index::FrameIndex;
use crate::latch;
use crate::layout::{Descriptor, FrameState, PoolHeader, SURVEYING};
use crate::lists::{self, HELD, INDEX_MASK, List, REBUILDING};
use crate::pool::Pool;
use crate::report::{Cause, RecoveryReport};
use crate::slots;
use crate::together::together;

/// A frame that is not believed as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Suspect {
    pub frame: FrameIndex,
    pub cause: Cause,
}

/// What a look at all descriptors found.
#[derive(Default)]
pub(crate) struct Survey {
    pub suspects: Vec<Suspect>,
    /// Frames with a page that are believed.
    pub kept: u64,
    lists: ListSums,
}

/// What one thread's part of the look found.
#[derive(Default)]
struct Part {
    suspects: Vec<Suspect>,
    /// Frames entered in the hash.
    entered: u64,
    /// Of those, frames whose page another one has, too.
    twice: u64,
    lists: ListSums,
}

impl Survey {
    fn of(parts: Vec<Part>) -> Self {
        let mut survey = Survey::default();
        let (mut entered, mut twice) = (0u64, 0);
        for part in parts {
            survey.suspects.extend(part.suspects);
            survey.lists.merge(&part.lists);
            (entered, twice) = (entered + part.entered, twice + part.twice);
        }
        survey.kept = entered.saturating_sub(twice);
        survey.suspects.sort_by_key(|suspect| suspect.frame);
        survey.suspects.dedup_by_key(|suspect| suspect.frame);
        survey
    }
}

/// Sums by which lists are verified without walking along them: in a list, each frame but the first is the next
/// of one, each but the last is the one before, and both ends name none.
#[derive(Default)]
struct ListSums {
    lists: [ListSum; 3],
    /// A frame that is on no list, or on one that its state forbids.
    stray: bool,
}

#[derive(Default, Clone, Copy)]
struct ListSum {
    count: u32,
    members: u64,
    nexts: u64,
    prevs: u64,
}

impl ListSums {
    /// `used`: whether the frame is in use; `None` for a suspect, which may be anywhere.
    fn add(&mut self, frame: FrameIndex, next: u32, prev: u32, used: Option<bool>) {
        let list = List::of(prev);
        self.stray |= match used {
            Some(true) => !matches!(list, List::Warm | List::Cold),
            Some(false) => list != List::Free,
            None => false,
        };
        if list != List::None {
            let sum = &mut self.lists[list as usize - 1];
            sum.count += 1;
            sum.members = sum.members.wrapping_add(spread(FrameIndex::link_to(Some(frame))));
            sum.nexts = sum.nexts.wrapping_add(spread(next));
            sum.prevs = sum.prevs.wrapping_add(spread(prev & INDEX_MASK));
        }
    }

    fn merge(&mut self, other: &ListSums) {
        self.stray |= other.stray;
        for (sum, more) in self.lists.iter_mut().zip(&other.lists) {
            sum.count += more.count;
            sum.members = sum.members.wrapping_add(more.members);
            sum.nexts = sum.nexts.wrapping_add(more.nexts);
            sum.prevs = sum.prevs.wrapping_add(more.prevs);
        }
    }

    fn fit(&self, header: &PoolHeader) -> bool {
        let fits = self.lists.iter().zip(&header.lists).all(|(sum, head)| {
            let (first, last) = (head.first.load(Ordering::Relaxed), head.last.load(Ordering::Relaxed));
            let whole = if sum.count == 0 {
                (first, last) == (0, 0)
            } else {
                sum.chained(first, last)
            };
            head.count.load(Ordering::Relaxed) == sum.count && whole
        });
        fits && !self.stray
    }
}

impl ListSum {
    fn chained(&self, first: u32, last: u32) -> bool {
        let all = self.members.wrapping_add(spread(0));
        self.nexts.wrapping_add(spread(first)) == all && self.prevs.wrapping_add(spread(last)) == all
    }
}

/// Spreads a link over a word, so that sums of different sets differ.
fn spread(link: u32) -> u64 {
    let word = (u64::from(link) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word ^ word >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

impl Pool {
    /// Does `work` for each part of `0..end`, by several threads; results in the order of the parts.
    fn in_parts<R, W>(self: &Arc<Self>, end: u32, work: W) -> Vec<R>
    where
        R: Send + 'static,
        W: Fn(&Pool, Range<u32>) -> R + Send + Sync + 'static,
    {
        let step = self.survey_part;
        let parts = (0..end).step_by(step as usize);
        let parts: Vec<Range<u32>> = parts.map(|from| from..from.saturating_add(step).min(end)).collect();
        let pool = Arc::clone(self);
        together(parts, 1, rt::cores(), move |part| work(&pool, part))
    }

    // ---- suspects ----

    /// Looks at every descriptor. If the lists then prove wrong, so may be the number of frames ever used: it is
    /// found out, and all is looked at once more. A lost host's lists and number are not believed at all.
    pub(crate) fn survey_believing_lists(self: &Arc<Self>, host: bool, report: &mut RecoveryReport) -> Survey {
        if !host {
            let survey = self.survey_all();
            if survey.lists.fit(self.frames.header()) {
                return survey;
            }
        }
        self.note_survey();
        let touched = self.find_touched();
        let before = self.frames.header().frames_touched.swap(touched, Ordering::AcqRel);
        if !host {
            report.remarks.push(format!(
                "lists contradict the frames and are built anew ({before} frames counted, {touched} used)"
            ));
        }
        report.lists_repaired = true;
        self.rebuild_lists();
        self.survey_all()
    }

    /// How many frames were ever used, by what their descriptors say.
    fn find_touched(self: &Arc<Self>) -> u32 {
        let used = |d: &Descriptor| [&d.latch, &d.key].iter().any(|w| w.load(Ordering::Relaxed) != 0);
        let ever = move |d: &Descriptor| used(d) || d.state.load(Ordering::Relaxed) != 0;
        let parts = self.in_parts(self.frames.count(), move |pool, part| {
            let descriptors = &pool.frames.descriptors()[part.start as usize..part.end as usize];
            descriptors
                .iter()
                .rposition(ever)
                .map(|last| part.start + last as u32 + 1)
        });
        parts.into_iter().flatten().max().unwrap_or(0)
    }

    fn note_survey(&self) {
        self.frames.header().surveying.fetch_max(SURVEYING, Ordering::AcqRel);
    }

    /// Looks at every descriptor, and enters the believed ones in an empty hash.
    fn survey_all(self: &Arc<Self>) -> Survey {
        self.note_survey();
        self.in_parts(self.frames.geometry().buckets, |pool, part| {
            for bucket in &pool.frames.buckets()[part.start as usize..part.end as usize] {
                pool.frames.touch_raw(bucket, Access::Write);
                bucket.as_raw().store(0, Ordering::Relaxed);
            }
        });
        let end = self.storage.durable_lsn();
        let parts = self.in_parts(self.touched(), move |pool, part| pool.survey_part(part, end));
        Survey::of(parts)
    }

    fn survey_part(&self, frames: Range<u32>, end: Lsn) -> Part {
        let mut part = Part::default();
        for frame in FrameIndex::all(frames) {
            let judged = self.judge(frame, end);
            let d = self.frames.descriptor(frame);
            self.frames.touch_descriptor(frame);
            let prev = d.list_prev.as_raw().load(Ordering::Relaxed);
            part.lists
                .add(frame, d.list_next.as_raw().load(Ordering::Relaxed), prev, judged.ok());
            match judged {
                Ok(true) => self.enter(frame, &mut part),
                Ok(false) => {}
                Err(cause) => part.suspects.push(Suspect { frame, cause }),
            }
        }
        part
    }

    /// Whether `frame` holds a page that is believed, or why it is a suspect.
    fn judge(&self, frame: FrameIndex, end: Lsn) -> std::result::Result<bool, Cause> {
        let d = self.frames.descriptor(frame);
        self.frames.touch_descriptor(frame);
        let word = d.latch.as_raw().load(Ordering::Relaxed);
        if latch::is_exclusive(word) {
            return Err(Cause::Latched);
        }
        if !d.is_sealed() {
            return Err(Cause::Damaged);
        }
        if latch::has_shared(word) {
            latch::reset(&d.latch);
        }
        self.frames.touch_descriptor(frame);
        let (key, lsn) = (
            d.key.as_raw().load(Ordering::Relaxed),
            d.lsn.as_raw().load(Ordering::Relaxed),
        );
        match FrameState::of(d.state.as_raw().load(Ordering::Relaxed)) {
            Some(FrameState::Used) if key == 0 => Err(Cause::Damaged),
            Some(FrameState::Used) if Lsn::from_raw(lsn) > end => Err(Cause::TooNew),
            Some(FrameState::Used) => Ok(true),
            Some(FrameState::Free) if key == 0 => Ok(false),
            _ => Err(Cause::Damaged),
        }
    }

    fn enter(&self, frame: FrameIndex, part: &mut Part) {
        self.frames.touch_descriptor(frame);
        let key = self.frames.descriptor(frame).key.as_raw().load(Ordering::Relaxed);
        let bucket = self.hash.lock(&self.frames, key);
        match bucket.find(key) {
            Ok(None) => {
                bucket.insert(frame);
                part.entered += 1;
            }
            // Neither is believed: the log decides.
            Ok(Some(other)) => {
                let twice = |frame| Suspect {
                    frame,
                    cause: Cause::Twice,
                };
                part.suspects.extend([twice(frame), twice(other)]);
                part.twice += 1;
            }
            Err(_) => part.suspects.push(Suspect {
                frame,
                cause: Cause::Damaged,
            }),
        }
    }

    /// Looks at what the slots name, and nothing else: for regions too large to be looked at whole.
    pub(crate) fn survey_slots(&self) -> Survey {
        let latched =
            |frame: &FrameIndex| latch::is_exclusive(self.frames.descriptor(*frame).latch.load(Ordering::Relaxed));
        let suspects: Vec<Suspect> = slots::named(&self.frames)
            .into_iter()
            .filter(latched)
            .map(|frame| Suspect {
                frame,
                cause: Cause::Latched,
            })
            .collect();
        let lists = &self.frames.header().lists;
        let in_use = [List::Warm, List::Cold].map(|l| lists[l as usize - 1].count.load(Ordering::Relaxed));
        let kept = (u64::from(in_use[0]) + u64::from(in_use[1])).saturating_sub(suspects.len() as u64);
        Survey {
            suspects,
            kept,
            lists: ListSums::default(),
        }
    }

    // ---- lists ----

    pub(crate) fn repair_lists(self: &Arc<Self>, host: bool, report: &mut RecoveryReport) {
        let found = self.frames.header().list_lock.load(Ordering::Acquire);
        if found == 0 || host {
            // Notes without a lock are of a change that was whole; a lost host's are not believed.
            self.frames.header().undo_count.store(0, Ordering::Release);
            return;
        }
        report.lists_repaired = true;
        let undone = found == HELD && (planted(Fault::ListUndo) || self.lists_alone().undo());
        if found == REBUILDING || !undone {
            self.rebuild_lists();
        }
    }

    /// Builds the lists anew from the states of the frames.
    fn rebuild_lists(self: &Arc<Self>) {
        let link = |end| self.in_parts(end, |pool, part| lists::link_part(&pool.frames, part));
        self.lists_alone().rebuild_by(link);
    }
}
