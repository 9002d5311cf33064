//! The rules of the house, each with the mutation that breaks it, and the world in which that shows.
//!
//! A checker that finds nothing is worth nothing: `cenote sim --plant all` breaks one rule after the other and says
//! after how many seeds a world has noticed. [docs/sim.md](../../../docs/sim.md) has the table with the rules in words.

use std::io;
use std::time::{Duration, Instant};

use cenote_base::rt::fault::Fault;

use crate::explorer::{Order, explore};
use crate::worlds::Name;

/// A mutation, where it shows, and how soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutation {
    /// What is broken.
    pub fault: Fault,
    /// The world that notices.
    pub world: Name,
    /// Within how many seeds, from the first on.
    pub seeds: u64,
    /// Whether it was seen to be noticed within them: builds draw from these.
    pub sure: bool,
}

/// What came of one.
#[derive(Debug, Clone)]
pub struct Noticed {
    /// Seeds that were tried.
    pub seeds: u64,
    /// After how many it was noticed, and as what.
    pub seen: Option<(u64, String)>,
    /// How long that took.
    pub time: Duration,
}

/// Longest text that is told of what was seen.
const SEEN_MOST: usize = 90;

/// The world of a mutation, and after how many seeds it must have been noticed; `None`: no world can break that rule,
/// or breaks it so seldom that nothing can be said of a bounded number of seeds. docs/sim.md says why.
fn place(fault: Fault) -> Option<(Name, u64)> {
    use Fault::*;
    Some(match fault {
        PageFlush | LoadFlush | RedoFlush => (Name::HostLoss, 60),
        Invalidate => (Name::Handover, 40),
        PageChecksum => (Name::Disk, 60),
        SyncError => (Name::Disk, 240),
        PageBeforeLog | ChainLink | ListLock | SavedWhole => (Name::Crash, 40),
        CheckpointLatched | DirtyUnlisted | UnsweptFrames | DoubleWrite => (Name::Crash, 60),
        EmptiedPages | TxCeiling | CommitEnd | LoserAdopted | BaseIncomplete => (Name::Crash, 60),
        ControlSync | NameSync => (Name::Crash, 60),
        CheckpointFloor | CheckpointBeforeImage => (Name::Pages, 60),
        EvictDirty | ChangedSector | SlotEntry | EpochKept | RepairHead | Incarnation => (Name::Pages, 60),
        CheckpointTail | LatchFlush | NewPageFlush | ListUndo => (Name::Pages, 120),
        BodyAfterState | VoidMark | LogTailKept | RecycleAll | RecycleFirst => (Name::Pages, 60),
        RingOverwrite => (Name::Pages, 120),
        DoubleWriteSync | AreaReuse | AreasCleared | RestoreNone => (Name::Pages, 60),
        RowLock | WriteLock | StaleCts | EarlyAnswer | LockMoved | FormerKey => (Name::Transactions, 20),
        AbortedVersion => (Name::Transactions, 160),
        BuiltOnWait | PurgeHorizon | SnapshotRecheck | LowWater | Displaced => (Name::Transactions, 40),
        LatchVersion | PageTwice | UndoneMark | EmptiedCts => (Name::Transactions, 60),
        UniqueStripe | EntryNeeded | EntryLeft | Uncounted | DeadlockCheck => (Name::Transactions, 40),
        SharedChain | SharedRollback | VersionEnd | HighWater => (Name::Transactions, 40),
        EarlyDefinition | SpaceAgain | DropOrder | LoserTables => (Name::Ddl, 60),
        RemoteBeforeLog | StaleCopy | StillOwned | LostTrace => (Name::Tiered, 40),
        LostSlabNamed => (Name::Tiered, 400),
        ReplyOnce | LateConnection | ObjectZero | LiveGeneration => (Name::Pool, 60),
        StaleCache | LostFlush | HeatComparison | MoveFence => (Name::Pool, 60),
        MemberCheck | UnsettledLeave => (Name::Pool, 60),
        FreezeNumber | EarlySettle | StaleAddress => (Name::Pool, 60),
        OwnerUntold | ReaderLook | VersionKept => (Name::Pool, 60),
        GrantFence | GrantConfirm | EpochSame | BookUnwritten => (Name::Grants, 60),
        FreeFence | EpochCheck | TakenUnheard => (Name::Grants, 60),
        LeadMargin => (Name::Leaders, 60),
        RangeFence | RangeSeen | RangeZero | RangeWriteBack => (Name::Hosts, 60),
        EraseDrop | SlotFlush | SlotDrop => (Name::Hosts, 60),
        PortalView | UpsertAttempt | WhereAgain | ReturningWait => (Name::Sql, 40),
        MirrorUnfenced | MirrorUnclosed => (Name::Mirrors, 40),
        MirrorResumed => (Name::Mirrors, 160),
        MirroredAnswer | MirroredCopy => (Name::Spaces, 40),
        StoreFlush | StoreInvalidate => (Name::Store, 60),
        BorrowGeneration => (Name::Store, 400),
        RaftUnsynced => (Name::StorageNodes, 120),
        StartUnchecked | PageEarly | MergeAhead | CommandTwice => (Name::StorageNodes, 40),
        LackingRead | LackingOlder => (Name::StorageNodes, 400),
        ReplacedCounts => (Name::StorageNodes, 120),
        VersionUnsaved | ImageForgets | DroppedGone => (Name::StorageNodes, 40),
        ChangeUntold | PageTooNew | MoveUnseen | HorizonUnread | LastMoves => (Name::Readers, 60),
        LeaseLong | LeaseForgotten | ClaimHeard => (Name::Servers, 60),
        DriveWaited => (Name::Servers, 120),
        NameStands | WatermarkUnread | CopyAhead | ChangeUnknown => (Name::Readers, 60),
        WatermarkFloor | WatermarkEarly | StandbyStale => (Name::Readers, 60),
        PodLinesKept | PodFrameAhead | PodFrameChanged | PodStartUnread => (Name::Readers, 60),
        CarriedPurged | CarriedUnheld => (Name::Readers, 60),
        ForeignRegion => (Name::Pages, 60),
        LeftSnapshot => (Name::Crash, 60),
        LeftTwice => (Name::Crash, 200),
        // Hosts of a world are lost, not stopped: tests of the storage's own stop them.
        OwnerUnasked | LogFilesKept => return None,
        // What makes an index raises the floor to what that has entries for: it says the same.
        CarriedDefinitions => return None,
        // A page would have to be asked for, changed, and saved, while its copy moves: microseconds.
        MoveUnwaited => return None,
        StalledCommit | StalledLook => return None,
    })
}

/// Mutations that few seeds have not shown yet: longer campaigns may.
fn is_seldom(fault: Fault) -> bool {
    use Fault::*;
    matches!(
        fault,
        LogTailKept
            | LostSlabNamed
            | StandbyStale
            | DriveWaited
            | ListUndo
            | BaseIncomplete
            | DropOrder
            | LoserTables
            | FreezeNumber
            | UnsettledLeave
            | LackingOlder
            | CopyAhead
            | LeaseForgotten
            | WatermarkFloor
            | WatermarkEarly
    )
}

/// All that a world should notice.
pub fn all() -> impl Iterator<Item = Mutation> {
    let mutation = |fault: &Fault| {
        let (world, seeds) = place(*fault)?;
        Some(Mutation {
            fault: *fault,
            world,
            seeds,
            sure: !is_seldom(*fault),
        })
    };
    Fault::ALL.iter().filter_map(mutation)
}

impl Mutation {
    /// Breaks the rule in `seeds` worlds from seed `first` on, or until one has noticed, or the time of `order` is
    /// over. The rest is as `order` says.
    ///
    /// # Errors
    /// Those of starting processes.
    pub fn run(&self, order: &Order, first: u64, seeds: u64) -> io::Result<Noticed> {
        let begun = Instant::now();
        let order = Order {
            world: Some(self.world),
            plant: Some(self.fault),
            quiet: true,
            first,
            seeds,
            ..order.clone()
        };
        let summary = explore(&order)?;
        let what = |lines: &[String]| {
            lines
                .first()
                .map_or(String::new(), |l| l.trim().chars().take(SEEN_MOST).collect())
        };
        Ok(Noticed {
            seeds: summary.seeds,
            seen: summary.failure.map(|f| (f.seed - first + 1, what(&f.lines))),
            time: begun.elapsed(),
        })
    }
}
