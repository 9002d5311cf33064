//! Marks: places in the code that a simulated run should come by now and then.
//!
//! A test that never crosses a threshold says nothing about what lies behind it. So each threshold has a mark, which counts
//! how often it is crossed; and windows in which an order of threads decides have one, too, at which a world may hold
//! threads up for long. With the operating system below a mark is one thread-local load; no mark lies on the path of a read.
//!
//! ```
//! use cenote_base::rt::mark::{self, Mark};
//! mark::pass(Mark::CheckpointMoved);
//! assert!(mark::take().is_empty(), "nothing is simulated here");
//! ```

use super::{Nanos, seamed};
use std::cell::{Cell, RefCell};

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A place that is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Mark {
            $($(#[$doc])* $name,)*
        }

        impl Mark {
            /// All of them.
            pub const ALL: &'static [Mark] = &[$(Mark::$name,)*];

            /// What has happened there, for people.
            pub fn text(self) -> &'static str {
                match self {
                    $(Mark::$name => $text,)*
                }
            }
        }
    };
}

marks! {
    /// A checkpoint moved.
    CheckpointMoved = "checkpoints moved",
    /// Pages were written back because the log was long.
    LogLong = "write-backs since the log was long",
    /// A segment of the log was given up for reuse.
    SegmentRetired = "log segments retired",
    /// The redo ring began anew.
    RingRound = "times round the redo ring",
    /// A double-write area was used again, after a sync of the spaces.
    AreaReused = "double-write areas used again",
    /// A changed page was written for its frame.
    DirtyEvicted = "changed pages evicted",
    /// A page changed while it was written.
    ChangedInFlight = "pages changed while they were written",
    /// A page's chain of redo was cut by an image.
    ImageLogged = "page images logged",
    /// A running transaction lost its place in the status ring.
    StatusDisplaced = "running transactions displaced from the status ring",
    /// A status was read off a page of commit timestamps.
    CtsRead = "statuses read off commit timestamp pages",
    /// Pages of commit timestamps were given back.
    CtsGivenBack = "commit timestamp pages given back",
    /// Pages of an undo segment were given back.
    UndoGivenBack = "undo pages given back",
    /// Window: a group of redo has its place and is not complete.
    GroupReserved = "window: redo reserved, not complete",
    /// Window: a commit has its place in the log and has not stamped its pages.
    CommitLogged = "window: commit logged, pages not stamped",
    /// Window: a snapshot is published, and what purge announced not read.
    SnapshotPublished = "window: snapshot published, announcement not read",
    /// Window: a free frame was found and is not claimed.
    FrameFound = "window: free frame found, not claimed",
    /// Window: a grant's answer has come, and its memory is not mapped.
    GrantAnswered = "window: grant answered, memory not mapped",
}

impl Mark {
    /// The windows, where an order of threads decides.
    pub const WINDOWS: [Mark; 5] = [
        Mark::GroupReserved,
        Mark::CommitLogged,
        Mark::SnapshotPublished,
        Mark::FrameFound,
        Mark::GrantAnswered,
    ];
}

/// Which window threads are held up in, how often, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// The window.
    pub at: Mark,
    /// One pass in so many stalls.
    pub one_in: u64,
    /// For at most so long.
    pub most: Nanos,
}

const MARKS: usize = Mark::ALL.len();

thread_local! {
    static PASSED: RefCell<[u64; MARKS]> = const { RefCell::new([0; MARKS]) };
    static AIM: Cell<Option<Aim>> = const { Cell::new(None) };
}

/// Counts a pass, and holds the thread up there if the world aims at it.
#[inline(always)]
pub fn pass(mark: Mark) {
    if seamed() {
        passed(mark);
    }
}

#[cold]
#[inline(never)]
fn passed(mark: Mark) {
    PASSED.with_borrow_mut(|all| all[mark as usize] += 1);
    let aimed = AIM.get().filter(|aim| aim.at == mark);
    if let Some(aim) = aimed.filter(|aim| super::random().is_multiple_of(aim.one_in.max(1))) {
        super::sleep(Nanos(super::random() % aim.most.0.max(1)));
    }
}

/// Holds up threads of the simulation on this thread of the machine, until told otherwise.
pub fn aim(aim: Option<Aim>) {
    AIM.set(aim);
}

/// The marks that were passed since the last call, and how often.
pub fn take() -> Vec<(Mark, u64)> {
    let passed = PASSED.replace([0; MARKS]);
    let all = Mark::ALL.iter().copied().zip(passed);
    all.filter(|(_, n)| *n > 0).collect()
}
