//! Marks: places in the code that a simulated run should come by now and then.
//!
//! A test that never crosses a threshold says nothing about what lies behind it. So each threshold has a mark, which
//! counts how often it is crossed; and windows in which an order of threads decides have one, too, at which a world may
//! hold threads up for long. With the operating system below a mark is one thread-local load; no mark lies on the path
//! of a read.
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
    /// A change waited for room in the redo ring.
    RingFull = "waits for room in the redo ring",
    /// Remote memory is in use again, with copies that the server knew of.
    StandbyKept = "remote memory taken again with its copies",
    /// A page changed while the directory of remote memory was written anew.
    StandbyOvertaken = "copies overtaken while their names were written anew",
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
    /// A status was read off a page of commit timestamps; a window, too: it is about to be.
    CtsRead = "statuses read off commit timestamp pages",
    /// Pages of commit timestamps were given back.
    CtsGivenBack = "commit timestamp pages given back",
    /// Pages of an undo segment were given back.
    UndoGivenBack = "undo pages given back",
    /// A round of purge has announced its horizon and passed what lies below.
    Purged = "rounds of purge",
    /// Window: a group of redo has its place and is not complete.
    GroupReserved = "window: redo reserved, not complete",
    /// Window: the same of a transaction's commit, which others see from there on.
    CommitReserved = "window: commit reserved, not complete",
    /// A commit on top of another that was not complete: it has waited for that.
    BaseIncomplete = "commits on top of incomplete ones",
    /// Window: unique keys were found free and are not entered.
    UniqueFree = "window: unique keys free, not entered",
    /// A number of a former space was given out again.
    SpaceAgain = "numbers of former spaces used again",
    /// Pages that will not be read again have lost their blocks.
    PagesPunched = "runs of pages given back to the disk",
    /// Window: a commit has its place in the log and has not stamped its pages.
    CommitLogged = "window: commit logged, pages not stamped",
    /// Window: what is durable was read for a snapshot, which is not published.
    SnapshotRead = "window: snapshot read, not published",
    /// Window: a snapshot is published, and what purge announced not read.
    SnapshotPublished = "window: snapshot published, announcement not read",
    /// Window: a free frame was found and is not claimed.
    FrameFound = "window: free frame found, not claimed",
    /// Window: a change of the frames' lists has begun.
    ListChanging = "window: list of frames half changed",
    /// Window: a definition is durable, and sessions use the one before.
    DefinitionDurable = "window: definition durable, not published",
    /// Window: the lead knows what is complete of the log, and has not written it.
    RedoGathered = "window: redo gathered, not written",
    /// Window: a checkpoint has asked the frames what they lack, and has not moved.
    FramesAsked = "window: frames asked, checkpoint not moved",
    /// Window: pages are in their places, not synced, and their area is not free for others.
    PagesWritten = "window: pages written in place, not synced",
    /// Window: a space is about to lose its file.
    SpaceGoing = "window: space dropped, its file there",
    /// Window: a record of a transaction that a crash cut off is about to be taken back.
    LoserWaits = "window: loser's record not taken back",
    /// Window: a grant's answer has come, and its memory is not mapped.
    GrantAnswered = "window: grant answered, memory not mapped",
    /// Window: an object is its session's, and not zeroed.
    ObjectTaken = "window: object taken, not zeroed",
    /// Window: an extent has come to where it shall lie, and its home does not say so.
    ExtentReceived = "window: extent received, not committed",
    /// An id of a former table, index or sequence was used again.
    ObjectAgain = "ids of former objects used again",
    /// A rollback was left to the background.
    RollbackLeft = "rollbacks left to the background",
    /// A version of a loser is about to be taken back for the sake of a transaction that wants its row.
    LoserRow = "versions of losers taken back on demand",
    /// An undo record was made to lead past versions that no snapshot needs.
    ChainCut = "undo records that lead past versions without a snapshot",
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
    /// Until this has happened, if it happens in that time.
    pub until: Option<Mark>,
}

/// A pass at which the world is struck: the thread stands still there for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// The mark.
    pub at: Mark,
    /// Which pass from now on, from 1.
    pub pass: u64,
}

/// How often a thread that stands still looks whether what it waits for has happened.
const TURN: Nanos = Nanos::from_micros(20);
/// Longer than a world looks away from one that was struck.
const FOR_GOOD: Nanos = Nanos::from_secs(3600);

const MARKS: usize = Mark::ALL.len();

thread_local! {
    static HOLDS: Cell<bool> = const { Cell::new(false) };
    static PASSED: RefCell<[u64; MARKS]> = const { RefCell::new([0; MARKS]) };
    static AIM: Cell<Option<Aim>> = const { Cell::new(None) };
    static STRIKE: Cell<Option<Strike>> = const { Cell::new(None) };
    static STRUCK: Cell<bool> = const { Cell::new(false) };
    static MET: Cell<u64> = const { Cell::new(0) };
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
    if let Some(strike) = STRIKE.get().filter(|strike| strike.at == mark) {
        let pass = strike.pass.saturating_sub(1);
        STRIKE.set((pass > 0).then_some(Strike { pass, ..strike }));
        if pass == 0 {
            STRUCK.set(true);
            super::sleep(FOR_GOOD);
        }
    }
    let aimed = AIM.get().filter(|aim| aim.at == mark);
    if let Some(aim) = aimed.filter(|aim| super::random().is_multiple_of(aim.one_in.max(1))) {
        stand_still(aim);
    }
}

fn stand_still(aim: Aim) {
    let Some(until) = aim.until else {
        return super::sleep(Nanos(super::random() % aim.most.0.max(1)));
    };
    let passes = || PASSED.with_borrow(|all| all[until as usize]);
    let (before, end) = (passes(), super::now() + aim.most);
    while passes() == before && super::now() < end {
        super::sleep(TURN);
    }
    let met = passes() != before;
    MET.set(MET.get() + u64::from(met));
    if met && HOLDS.get() {
        STRUCK.set(true);
        super::sleep(FOR_GOOD);
    }
}

/// Whether marks are counted: for what only a mark needs to know.
#[inline(always)]
pub fn is_on() -> bool {
    seamed()
}

/// Holds up threads of the simulation on this thread of the machine, until told otherwise.
pub fn aim(aim: Option<Aim>) {
    AIM.set(aim);
}

/// Strikes at a pass to come, until told otherwise; what was struck and met before is forgotten.
pub fn strike(strike: Option<Strike>) {
    STRIKE.set(strike);
    STRUCK.set(false);
    HOLDS.set(false);
    MET.set(0);
}

/// The world is struck when what a thread waits for in a window has happened, and the thread stays there for good;
/// until the next [`strike`].
pub fn strike_within() {
    HOLDS.set(true);
}

/// Whether a thread stands where the world was to be struck.
pub fn is_struck() -> bool {
    STRUCK.get()
}

/// How many threads have stood still in a window until what the world aims at has happened.
pub fn met() -> u64 {
    MET.get()
}

/// The marks that were passed since the last call, and how often.
pub fn take() -> Vec<(Mark, u64)> {
    let passed = PASSED.replace([0; MARKS]);
    let all = Mark::ALL.iter().copied().zip(passed);
    all.filter(|(_, n)| *n > 0).collect()
}
