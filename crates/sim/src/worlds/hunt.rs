//! Where a world aims: threads that stand still in a window until something has happened beside them, lives that end at
//! a pass, storage of which one part is slow.
//!
//! ```text
//!   thread ──► window ──── stands still ────► goes on ──► a few transactions ──► the life ends here
//!                 └─ or the life ends here      ▲
//!   others ───────────── what the window waits for
//! ```
//!
//! Chance meets a window of a few steps once in thousands of seeds. A rule about the order of two things is broken
//! where one of them stands still between them; most rules are seen to be broken only by what a crash leaves, so the
//! life ends there or soon after.

use cenote_base::random::Random;
use cenote_base::rt::Nanos;
use cenote_base::rt::mark::{self, Aim, Mark, Strike};
use cenote_testkit::faulty::{FaultPlan, MemFs};

use super::death::Death;
use super::name::Name;

/// What a seed aims at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hunt {
    /// The window in which threads stand still.
    pub aim: Option<Aim>,
    /// Where lives end.
    pub end: Option<End>,
    /// The part of storage that is slow.
    pub slow: Option<Slow>,
}

/// Where a life ends, if it does not come to its usual end before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// At one of the first so many passes.
    At(Mark, u64),
    /// At most so many transactions after a thread stood still in the window until what it waited for had happened.
    Behind(u64),
    /// While a thread stands in the window, when what it waits for has happened.
    Within,
}

/// Files whose operations take longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// Their paths hold this.
    pub part: &'static str,
    /// One operation in so many does.
    pub one_in: u64,
    /// So much longer.
    pub time: Nanos,
}

/// A window, and what is to happen while a thread stands in it; `None`: anything.
type Window = (Mark, Option<Mark>);

const IN_THE_LOG: [Window; 2] = [
    (Mark::GroupReserved, None),
    (Mark::CommitLogged, Some(Mark::CheckpointMoved)),
];

fn windows(world: Name) -> Vec<Window> {
    use Mark::*;
    let more: &[Window] = match world {
        Name::Crash => &[
            IN_THE_LOG[0],
            IN_THE_LOG[1],
            (ListChanging, None),
            (FrameFound, None),
            (CommitReserved, Some(BaseIncomplete)),
            (CommitReserved, Some(BaseIncomplete)),
        ],
        Name::Transactions | Name::Sql => &[
            (SnapshotRead, Some(Purged)),
            (SnapshotRead, Some(Purged)),
            (SnapshotPublished, Some(Purged)),
            (CtsRead, Some(CtsGivenBack)),
            (CtsRead, Some(CtsGivenBack)),
            (UniqueFree, None),
            (UniqueFree, None),
        ],
        Name::Ddl => &[
            (DefinitionDurable, Some(Purged)),
            (DefinitionDurable, Some(Purged)),
            (SpaceGoing, Some(CheckpointMoved)),
            (LoserWaits, None),
        ],
        Name::Tiered => &[(FrameFound, Some(DirtyEvicted))],
        Name::Grants | Name::Leaders | Name::Hosts => return vec![(GrantAnswered, None)],
        Name::Mirrors | Name::Spaces | Name::StorageNodes | Name::Readers | Name::Servers => return Vec::new(),
        Name::Store => return vec![(ObjectTaken, None)],
        Name::Pages => &[
            (CommitLogged, None),
            (ListChanging, None),
            (FrameFound, None),
            (FramesAsked, None),
            (PagesWritten, None),
            (RedoGathered, Some(RingFull)),
        ],
        Name::Pool => return vec![(ObjectTaken, None), (ExtentReceived, None), (ExtentReceived, None)],
        Name::HostLoss | Name::Handover | Name::DeviceLoss | Name::Disk | Name::Backup => &[],
    };
    [&IN_THE_LOG, more].concat()
}

/// Passes at which an end shows most: something was just given up, and what it rests on may not be there.
const GIVEN_UP: [Mark; 9] = [
    Mark::PagesPunched,
    Mark::PagesPunched,
    Mark::CheckpointMoved,
    Mark::SegmentRetired,
    Mark::SegmentRetired,
    Mark::AreaReused,
    Mark::PagesWritten,
    Mark::DirtyEvicted,
    Mark::ImageLogged,
];

impl Hunt {
    /// What the seed of a world aims at.
    pub fn draw(world: Name, draw: &mut Random) -> Hunt {
        let windows = windows(world);
        let aim = (!windows.is_empty() && !draw.one_in(6)).then(|| {
            let (at, until) = draw.pick(&windows);
            let most = if until.is_some() {
                [20_000; 3]
            } else {
                [100, 2_000, 20_000]
            };
            Aim {
                at,
                one_in: draw.pick(&[3, 20, 100]),
                most: Nanos::from_micros(draw.pick(&most)),
                until,
            }
        });
        let end = match (aim, draw.below(8)) {
            (Some(Aim { at, until: None, .. }), 0..5) => Some(End::At(at, draw.pick(&[3, 30, 200]))),
            (
                Some(Aim {
                    at: Mark::CommitReserved,
                    ..
                }),
                _,
            ) => Some(End::Within),
            (Some(Aim { until: Some(_), .. }), 0..5) => Some(End::Behind(draw.pick(&[1, 4, 12]))),
            (_, 0..7) if world == Name::Ddl && draw.one_in(2) => {
                Some(End::At(Mark::SpaceAgain, draw.pick(&[1, 5, 20])))
            }
            (_, 0..7) => Some(End::At(draw.pick(&GIVEN_UP), draw.pick(&[1, 2, 5]))),
            _ => None,
        };
        Hunt {
            aim,
            end: end.filter(|_| !matches!(world, Name::Pool | Name::Grants | Name::Leaders | Name::Hosts)),
            slow: (draw.one_in(3) && world != Name::Disk).then(|| Slow {
                part: draw.pick(&["/log", ".pages", "doublewrite", "control"]),
                one_in: draw.pick(&[1, 1, 10]),
                time: Nanos::from_micros(draw.pick(&[100, 1_000, 10_000])),
            }),
        }
    }

    /// A life begins that may end by a fault, or that has to end in order.
    pub(super) fn begin_life(&self, files: &MemFs, may_end: bool, draw: &mut Random) {
        let end = self.end.filter(|_| may_end && !draw.one_in(4));
        mark::strike(match end {
            Some(End::At(at, most)) => Some(Strike {
                at,
                pass: 1 + draw.below(most),
            }),
            _ => None,
        });
        if end == Some(End::Within) {
            mark::strike_within();
        }
        if let Some(slow) = self.slow {
            let plan = FaultPlan {
                stall: 1.0 / slow.one_in as f64,
                stall_time: slow.time,
                files: slow.part.to_owned(),
                ..FaultPlan::default()
            };
            files.set_plan(plan, draw.word());
        }
    }

    /// After which death it shows: in what the disk alone has, or in what memory has.
    pub(super) fn shows_after(&self) -> Option<Death> {
        match self.end? {
            End::At(Mark::PagesPunched | Mark::SpaceAgain, _) => Some(Death::PowerCut),
            End::Behind(_) if self.awaits(Mark::CheckpointMoved) => Some(Death::PowerCut),
            End::Within => Some(Death::Kill),
            _ => None,
        }
    }

    fn awaits(&self, mark: Mark) -> bool {
        self.aim.is_some_and(|aim| aim.until == Some(mark))
    }

    /// Whether it waits for purge, which so has to come often.
    pub(super) fn wants_purge(&self) -> bool {
        let ends = matches!(self.end, Some(End::At(Mark::PagesPunched | Mark::SpaceAgain, _)));
        ends || self.awaits(Mark::Purged) || self.awaits(Mark::CtsGivenBack)
    }

    /// So many transactions more, and the life ends: a thread has stood still until what the world waited for had
    /// happened.
    pub(super) fn is_behind(&self) -> Option<u64> {
        match self.end {
            Some(End::Behind(transactions)) if mark::met() > 0 => Some(transactions),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the worlds of an engine end lives where they aim, at each kind of moment.
    #[test]
    fn seeds_hunt() {
        let hunts: Vec<Hunt> = (0..100)
            .map(|seed| Hunt::draw(Name::Crash, &mut Random(seed)))
            .collect();
        let ends = |kind: fn(&End) -> bool| hunts.iter().filter(|hunt| hunt.end.as_ref().is_some_and(kind)).count();
        let (at, behind) = (
            ends(|end| matches!(end, End::At(..))),
            ends(|end| matches!(end, End::Behind(_))),
        );
        assert!(at > 30 && behind > 3, "{at} and {behind} of 100");
        assert!(hunts.iter().filter(|hunt| hunt.slow.is_some()).count() > 20);
    }
}
