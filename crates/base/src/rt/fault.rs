//! Faults that a test plants: rules of the engine broken on purpose, to see that the simulator's checkers notice.
//!
//! A checker that finds nothing is worth nothing. So each rule that one guards has a place in the code where it can be
//! broken, and a name here. [`planted`] is false unless a runtime other than the operating system drives the thread
//! and a test has [`plant`]ed the fault on it: a server asks one thread-local flag, and never on the path of a read.
//!
//! ```
//! use cenote_base::rt::fault::{self, Fault};
//! let _broken = fault::plant(Fault::ChainLink);
//! assert!(!fault::planted(Fault::ChainLink), "nothing is simulated here");
//! ```

use super::seamed;
use crate::Error;
use std::cell::Cell;

macro_rules! faults {
    (
        $($(#[$doc:meta])* $name:ident = $text:literal,)* ;
        $($(#[$why:meta])* $delay:ident = $told:literal,)*
    ) => {
        /// A rule that can be broken, or a rare delay.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
            $($(#[$why])* $delay,)*
        }

        impl Fault {
            /// All that break a rule.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];
            /// All that break none: they hold threads up that are seldom held up.
            pub const DELAYS: &'static [Fault] = &[$(Fault::$delay,)*];

            /// Its name on a command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$name => $text,)*
                    $(Fault::$delay => $told,)*
                }
            }
        }
    };
}

faults! {
    /// A fence does not wait until its record is in the mirror on another machine.
    MirrorUnfenced = "mirror-unfenced",
    /// A mirror is promoted before the way of its former holder to it is closed.
    MirrorUnclosed = "mirror-unclosed",
    /// A mirror on another machine counts as whole for a start on the memory that a killed holder has left.
    MirrorResumed = "mirror-resumed",
    /// What was done to a mirrored part is answered before its mirror has it.
    MirroredAnswer = "mirrored-answer",
    /// What a write has changed in a mirrored part is not copied to its mirror.
    MirroredCopy = "mirrored-copy",
    /// What a put has written is not written back to memory before its key names it.
    StoreFlush = "store-flush",
    /// A value is read from what this host's caches have of its place.
    StoreInvalidate = "store-invalidate",
    /// A borrow is made, and ended, without a look whether its item is the same still.
    BorrowGeneration = "borrow-generation",
    /// Lines of a changed page are not flushed before its latch is released (survival of the host, step d).
    PageFlush = "page-flush",
    /// A region that another host has written is attached without dropping the lines that this host has cached.
    Invalidate = "invalidate",
    /// A region that need not survive its host is believed after the loss of the host.
    ForeignRegion = "foreign-region",
    /// What a start finds in `owner` when it has synced the log is not asked for: it acknowledges what is another's.
    OwnerUnasked = "owner-unasked",
    /// A start on another host goes on in the files that the former host may have open.
    LogFilesKept = "log-files-kept",
    /// A page is written to storage before the redo that changed it is durable.
    PageBeforeLog = "page-before-log",
    /// The buffer's lists are changed without their lock.
    ListLock = "list-lock",
    /// A redo record does not name the record before it of the same page.
    ChainLink = "chain-link",
    /// An error of a sync of the log is taken for success.
    SyncError = "sync-error",
    /// A row that was locked explicitly is free again at once.
    RowLock = "row-lock",
    /// A row of a transaction in progress counts as free to change.
    WriteLock = "write-lock",
    /// A commit's timestamp lies before snapshots that were taken already.
    StaleCts = "stale-cts",
    /// A commit is acknowledged before the log is durable.
    EarlyAnswer = "early-answer",
    /// Remote memory gets a page before the redo that changed it is durable.
    RemoteBeforeLog = "remote-before-log",
    /// Storage gets a page while remote memory names an older copy of it.
    StaleCopy = "stale-copy",
    /// Remote memory that was given up may be believed by the next start, though storage has gone on.
    StillOwned = "still-owned",
    /// The names of copies stand that were in a slab of remote memory which is lost.
    LostSlabNamed = "lost-slab-named",
    /// While the first part of remote memory is away, the server takes copies for whole whose pages have changed.
    StandbyStale = "standby-stale",
    /// A page comes into a frame while its copy moves from one slab of remote memory to another.
    MoveUnwaited = "move-unwaited",
    /// The name of a copy in remote memory stands, though the page has changed, and readers are told of the change.
    NameStands = "name-stands",
    /// Readers are told that names lack no change of commits that have not said which pages they change.
    WatermarkFloor = "watermark-floor",
    /// Readers are told of changes to pages that are being written to remote memory.
    WatermarkEarly = "watermark-early",
    /// A reader believes a copy in remote memory whatever it knows of changes to the page.
    WatermarkUnread = "watermark-unread",
    /// A reader believes a copy in remote memory that has changes beyond the reader's moment.
    CopyAhead = "copy-ahead",
    /// A reader that reads the server's frames over the pod's memory keeps lines of them in its host's cache.
    PodLinesKept = "pod-lines-kept",
    /// A reader believes a page in the server's frames that has changes beyond the reader's moment.
    PodFrameAhead = "pod-frame-ahead",
    /// A reader believes what it copied of the server's frame though that has changed meanwhile.
    PodFrameChanged = "pod-frame-changed",
    /// A reader reads on in frames of a server that has not the database any more.
    PodStartUnread = "pod-start-unread",
    /// A reader that moves on does not note, for its looks into remote memory, what has changed.
    ChangeUnknown = "change-unknown",
    /// A snapshot of another server is gone on with, whatever has been purged meanwhile.
    CarriedPurged = "carried-purged",
    /// A snapshot of another server is gone on with, whatever has become of definitions.
    CarriedDefinitions = "carried-definitions",
    /// A snapshot of another server is published, and not held: what asks for the oldest one passes it over.
    CarriedUnheld = "carried-unheld",
    /// What storage lacks of a page is forgotten when the page leaves its frame for remote memory.
    LostTrace = "lost-trace",
    /// A page out of storage is believed whatever its checksum says.
    PageChecksum = "page-checksum",
    /// A page that was read under a lock is believed though a session has written under it since.
    StaleCache = "stale-cache",
    /// What was written under a lock, and collected, is not written before the lock is left.
    LostFlush = "lost-flush",
    /// A host does what a member asks for that was fenced.
    MemberCheck = "member-check",
    /// A lock is left though what was given up under it may be done yet.
    UnsettledLeave = "unsettled-leave",
    /// An extent that is hot in another pod goes there, however hot it is where it is.
    HeatComparison = "heat-comparison",
    /// An extent that is about to move is still used where it was.
    MoveFence = "move-fence",
    /// A memory node says that a grant's holder has ended, and has not looked.
    GrantFence = "grant-fence",
    /// The agent of a host says that a range's holder has ended, and has not looked.
    RangeFence = "range-fence",
    /// The agent of a host says that a process maps a range, and has not looked.
    RangeSeen = "range-seen",
    /// A range is freed, and is not made zeros.
    RangeZero = "range-zero",
    /// What a host's caches hold of a range stays there when the range goes to another host.
    RangeWriteBack = "range-write-back",
    /// Lines of zeros stay in the caches of the host that has freed a range.
    EraseDrop = "erase-drop",
    /// A slot of a device's directory is not written back before the change is confirmed.
    SlotFlush = "slot-flush",
    /// A slot of a device's directory is read from this host's caches.
    SlotDrop = "slot-drop",
    /// A row's version is believed though its transaction was rolled back while it was looked at.
    AbortedVersion = "aborted-version",
    /// A holder uses what it has mapped though its lease may have lapsed before it did.
    GrantConfirm = "grant-confirm",
    /// A checkpoint passes over frames that are latched at the moment.
    CheckpointLatched = "checkpoint-latched",
    /// A checkpoint does not ask for commits that have their place in the log and have not stamped their pages.
    CheckpointFloor = "checkpoint-floor",
    /// A checkpoint reads the log's tail after the frames.
    CheckpointTail = "checkpoint-tail",
    /// A frame that becomes dirty is not entered among the dirty ones.
    DirtyUnlisted = "dirty-unlisted",
    /// Frames that a start kept are not looked at later.
    UnsweptFrames = "unswept-frames",
    /// A checkpoint counts before the log is durable up to its tail, with the images that moved it.
    CheckpointBeforeImage = "checkpoint-before-image",
    /// A page that changed while it was written counts as clean.
    SavedWhole = "saved-whole",
    /// Storage is not told of a part of a page that changed.
    ChangedSector = "changed-sector",
    /// A frame is freed though storage lacks changes of its page.
    EvictDirty = "evict-dirty",
    /// A latch is not in memory before its page changes (survival of the host, step a).
    LatchFlush = "latch-flush",
    /// A frame that was given a page to be made is not flushed before the page's redo can be durable.
    NewPageFlush = "new-page-flush",
    /// A page that was read into a frame is not flushed before its latch is let go.
    LoadFlush = "load-flush",
    /// A thread does not write down which frame it latches.
    SlotEntry = "slot-entry",
    /// A change of a list that a dead process had begun is not taken back.
    ListUndo = "list-undo",
    /// A group of redo says that it is complete before its body is in the ring.
    BodyAfterState = "body-after-state",
    /// A group of redo is not flushed before it says that it is complete (survival of the host, step c).
    RedoFlush = "redo-flush",
    /// Redo that is not durable is written over in the ring.
    RingOverwrite = "ring-overwrite",
    /// A reservation that was not completed is left as it is, instead of becoming void.
    VoidMark = "void-mark",
    /// Pages are written in their places without a copy in the double-write area.
    DoubleWrite = "double-write",
    /// Pages are written in their places before their copies are synced.
    DoubleWriteSync = "double-write-sync",
    /// A double-write area is written over before its pages are synced in their places.
    AreaReuse = "area-reuse",
    /// All areas are made empty after a sync of the spaces before which a batch may not have been in place.
    AreasCleared = "areas-cleared",
    /// A start puts no copy of a torn page back.
    RestoreNone = "restore-none",
    /// Segments of the log are reused up to the durable position instead of the checkpoint.
    RecycleAll = "recycle-all",
    /// Segments of the log are reused before the control file names the checkpoint.
    RecycleFirst = "recycle-first",
    /// What lies behind the end of the log stays there when the log goes on.
    LogTailKept = "log-tail-kept",
    /// A commit takes its place though one that it is built on may still become void.
    BaseIncomplete = "base-incomplete",
    /// A statement's snapshot may be below a commit that its transaction has built on.
    BuiltOnWait = "built-on-wait",
    /// A reader takes transactions for younger than its snapshot that may have committed before it.
    HighWater = "high-water",
    /// A version that was copied for old snapshots does not end with the commit that replaced it.
    VersionEnd = "version-end",
    /// Purge takes the durable position for the horizon, whatever snapshots are in use.
    PurgeHorizon = "purge-horizon",
    /// A reader does not look at what purge has announced after it has published its snapshot.
    SnapshotRecheck = "snapshot-recheck",
    /// The low-water mark passes transactions that run.
    LowWater = "low-water",
    /// A transaction that still runs is not noted when its place in the status ring is taken.
    Displaced = "displaced",
    /// A commit timestamp that was read off a page is believed though purge may have emptied the page meanwhile.
    EmptiedCts = "emptied-cts",
    /// Transaction numbers are given out before their ceiling is in the control file.
    TxCeiling = "tx-ceiling",
    /// A commit does not move its segment's end.
    CommitEnd = "commit-end",
    /// For purge a definition ends with its commit, though sessions may still use the one before.
    EarlyDefinition = "early-definition",
    /// Two transactions that enter the same unique key do not wait for each other.
    UniqueStripe = "unique-stripe",
    /// Purge and rollback remove index entries that other versions need.
    EntryNeeded = "entry-needed",
    /// Purge and rollback leave index entries that no version needs.
    EntryLeft = "entry-left",
    /// Readers of an index alone take each entry for its row's.
    Uncounted = "uncounted",
    /// Purge frees large values of a replaced version that the next one has, too.
    SharedChain = "shared-chain",
    /// A version that is taken back takes with it the large values that it has from the one before.
    SharedRollback = "shared-rollback",
    /// A transaction waits for another without a search for a cycle.
    DeadlockCheck = "deadlock-check",
    /// A transaction that a crash cut off counts as committed until it is taken back.
    LoserAdopted = "loser-adopted",
    /// A loser does not hold the tables that it was defining.
    LoserTables = "loser-tables",
    /// Pages are given back to the disk without a word in the log.
    EmptiedPages = "emptied-pages",
    /// A dropped space loses its frames before its file.
    DropOrder = "drop-order",
    /// At repeatable read a row is locked, and given out, though it was changed behind the snapshot.
    LockMoved = "lock-moved",
    /// A row that has got another primary key behind the snapshot is looked for under the former one.
    FormerKey = "former-key",
    /// A page has changed and its latch is released without a new version.
    LatchVersion = "latch-version",
    /// A page is entered in the hash though another frame has it.
    PageTwice = "page-twice",
    /// A start uses the epoch of the one before: shared latches of the dead count.
    EpochKept = "epoch-kept",
    /// Repair does not look in the log for records that are newer than what the page's descriptor names.
    RepairHead = "repair-head",
    /// A region that missed a start is believed.
    Incarnation = "incarnation",
    /// A change of the control file is not synced.
    ControlSync = "control-sync",
    /// The name of a new log segment or space is not synced.
    NameSync = "name-sync",
    /// A record that was taken back is not marked as undone.
    UndoneMark = "undone-mark",
    /// Numbers of former spaces are used again though a replay, an undo record or a former definition may lead there.
    SpaceAgain = "space-again",
    /// A host does not look whether it has done a numbered request already.
    ReplyOnce = "reply-once",
    /// A request that comes by a former connection of its user is carried out.
    LateConnection = "late-connection",
    /// A new object is not zeroed.
    ObjectZero = "object-zero",
    /// A session allocates in a slab without a look whether it is that still, and its own.
    LiveGeneration = "live-generation",
    /// A grant has the epoch of its former holder.
    EpochSame = "epoch-same",
    /// The manager answers, and its book is not written.
    BookUnwritten = "book-unwritten",
    /// A manager that leads uses its lease to the end by its own clock.
    LeadMargin = "lead-margin",
    /// A suspended portal takes a new snapshot when it goes on.
    PortalView = "portal-view",
    /// An upsert that tries again believes what its first attempt found about the condition.
    UpsertAttempt = "upsert-attempt",
    /// An UPDATE or DELETE does not ask its condition again of the row's newer version.
    WhereAgain = "where-again",
    /// RETURNING gives the row as it was made of the version before the wait.
    ReturningWait = "returning-wait",
    /// An order of a move is obeyed though the extent is frozen, or comes, by another freezing.
    FreezeNumber = "freeze-number",
    /// An extent that moves is used in its new place before its home says that it lies there.
    EarlySettle = "early-settle",
    /// A session that takes a lock over from a dead writer is not told.
    OwnerUntold = "owner-untold",
    /// A reader that has taken its slot of a lock does not look whether a writer has come.
    ReaderLook = "reader-look",
    /// A writer leaves a lock with the version that it found.
    VersionKept = "version-kept",
    /// An address of a former use of its extent is believed.
    StaleAddress = "stale-address",
    /// A memory node removes a grant's file, and the processes that map it go on.
    FreeFence = "free-fence",
    /// The manager hears signs of life of a grant's former holder.
    EpochCheck = "epoch-check",
    /// A holder for which no process maps memory is followed though it has said since that it is there.
    TakenUnheard = "taken-unheard",
    /// A storage node's messages go out before the entries and votes that they speak of are synced.
    RaftUnsynced = "raft-unsynced",
    /// A storage node that waits for its drive sends and answers no heartbeats.
    DriveWaited = "drive-waited",
    /// Storage nodes take redo of a start of the database whose place another has taken.
    StartUnchecked = "start-unchecked",
    /// A storage node answers a page without waiting for the redo that is asked for.
    PageEarly = "page-early",
    /// A storage node saves a state whose redo is not all merged into its files, and cuts its log there.
    MergeAhead = "merge-ahead",
    /// A command that comes to the storage nodes twice is carried out twice.
    CommandTwice = "command-twice",
    /// A storage node answers a page that it has not taken from the others yet, as its file has it.
    LackingRead = "lacking-read",
    /// A storage node writes a page of another one over a newer one of its own.
    LackingOlder = "lacking-older",
    /// A storage node merges pages without saving the versions that snapshots have of them.
    VersionUnsaved = "version-unsaved",
    /// A storage node forgets redo that a snapshot needs when an image of the page follows.
    ImageForgets = "image-forgets",
    /// A storage node removes the file of a space that is dropped, though a snapshot has the space.
    DroppedGone = "dropped-gone",
    /// What a storage node had received counts on, though its directory was lost.
    ReplacedCounts = "replaced-counts",
    /// A storage node tells a reader all but one of the pages that an entry has changed.
    ChangeUntold = "change-untold",
    /// A storage node gives a reader a page in its newest state, whatever moment is asked for.
    PageTooNew = "page-too-new",
    /// A reader reads pages, as of before, while the frames of those that changed are being dropped.
    MoveUnseen = "move-unseen",
    /// A reader does not look at what the server has purged.
    HorizonUnread = "horizon-unread",
    /// A reader that takes the database leaves out the moves to the log's end.
    LastMoves = "last-moves",
    /// A transaction that was left to this server is taken up, or given up, without a mark: the next start takes it for
    /// whole.
    LeftTwice = "left-twice",
    /// The snapshot of a transaction that was left is not held.
    LeftSnapshot = "left-snapshot",
    /// A server that has the database answers for longer than others wait before they take it.
    LeaseLong = "lease-long",
    /// A server that takes the database does not wait for leases that another node may have given.
    LeaseForgotten = "lease-forgotten",
    /// A server whose database another one takes is heard still by the node.
    ClaimHeard = "claim-heard",

    ; // What follows breaks no rule.

    /// Some commits stand still for long between their place in the log and the stamps of their pages.
    StalledCommit = "stalled-commit",
    /// Some readers that have copied a row stand still for long before they ask what has become of its transaction.
    StalledLook = "stalled-look",
}

/// A bit for each fault.
type Faults = [u128; 2];

impl Fault {
    /// Its word among [`Faults`], and its bit there.
    fn bit(self) -> (usize, u128) {
        (self as usize / 128, 1 << (self as usize % 128))
    }
}

const _: () = assert!(Fault::StalledLook as usize <= 255, "a fault is one bit of two words");

thread_local! {
    static PLANTED: Cell<Faults> = const { Cell::new([0; 2]) };
}

/// Whether `fault` is planted on this thread of the machine, and a simulator drives it.
#[inline(always)]
pub fn planted(fault: Fault) -> bool {
    seamed() && is_planted(fault)
}

#[cold]
#[inline(never)]
fn is_planted(fault: Fault) -> bool {
    let (word, bit) = fault.bit();
    PLANTED.get()[word] & bit != 0
}

/// Keeps a fault planted until it is dropped.
#[derive(Debug)]
pub struct Planted(Fault);

/// Plants `fault` on this thread of the machine, and so in all simulated threads that it runs.
pub fn plant(fault: Fault) -> Planted {
    let (word, bit) = fault.bit();
    let mut planted = PLANTED.get();
    planted[word] |= bit;
    PLANTED.set(planted);
    Planted(fault)
}

impl Drop for Planted {
    fn drop(&mut self) {
        let (word, bit) = self.0.bit();
        let mut planted = PLANTED.get();
        planted[word] &= !bit;
        PLANTED.set(planted);
    }
}

thread_local! {
    static ENDED: std::cell::RefCell<Vec<Error>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Ends the process where no guard may run, because pages are half changed. `why` has been said. A simulated process is
/// killed, and [`ended`] tells why; one that is the whole simulation has this thread stop for good.
pub fn end_process(why: Error) -> ! {
    if !seamed() || std::thread::panicking() {
        std::process::abort();
    }
    ENDED.with(|ended| ended.borrow_mut().push(why));
    super::entered().end_process();
    loop {
        super::sleep(super::Nanos::from_secs(3600));
    }
}

/// Why simulated processes have ended themselves since the last call.
pub fn ended() -> Vec<Error> {
    ENDED.with(std::cell::RefCell::take)
}
