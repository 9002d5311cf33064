//! What a database asks of storage nodes: the log on a majority of them, and pages that they make of it themselves.
//!
//! With files ([`crate::Log`]'s segments, [`crate::PageStore`], the control file) one process has all of storage. With
//! storage nodes it has none: the nodes keep the redo, apply it to pages behind the database's back, and answer a page
//! as of a position of the log. So nothing but redo and the control record goes there, and a dirty page is dropped
//! without being written (PolarDB Serverless, section 3.4).
//!
//! # Duties
//! *The database*: one thread at a time calls [`StorageNodes::append`], each time at the end of what was appended
//! before; redo comes in whole groups. It asks for a page as of a position that is durable.
//!
//! *The nodes*: what was acknowledged survives the loss of a minority, for good. Once another start has called
//! [`StorageNodes::take`], nothing of this one is accepted any more: [`Error::Revoked`](cenote_base::Error::Revoked).
//! [`Error::Timeout`](cenote_base::Error::Timeout): no majority answered in time; the call may be made again, and is
//! carried out once.

use std::fmt;

use cenote_base::page_io::PageRead;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Lsn, PageId, Result};

/// Where the log ends: always behind a whole group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// Behind its last byte.
    pub end: Lsn,
    /// Start of the last group; zero while there is none.
    pub last_start: Lsn,
    /// That group's checksum.
    pub last_checksum: u32,
}

impl LogEnd {
    /// Of a log that begins at `origin`.
    pub fn at_origin(origin: Lsn) -> LogEnd {
        LogEnd {
            end: origin,
            last_start: Lsn::ZERO,
            last_checksum: 0,
        }
    }
}

/// Who has the database, as the nodes know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRecord {
    /// It rises with each start; zero: nobody ever had it.
    pub epoch: u64,
    /// What the last start said of itself.
    pub record: Vec<u8>,
    /// The control record, if there is a database.
    pub control: Option<Vec<u8>>,
}

/// A space, as the nodes have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceExtent {
    /// Its number.
    pub space: u32,
    /// Pages from its first to the last that was ever written.
    pub pages: u32,
}

/// A database that was taken for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The control record; `None`: there is no database yet.
    pub control: Option<Vec<u8>>,
    /// The log's end.
    pub log: LogEnd,
    /// The spaces, in order.
    pub spaces: Vec<SpaceExtent>,
}

/// A page of a position of the log.
pub type PageAnswer = Result<(Box<[u8]>, PageRead)>;

/// A moment of the replicated log: an entry, and where the redo log ends as of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment {
    /// The entry's number, the same on all nodes.
    pub entry: u64,
    /// Behind the last whole group.
    pub end: Lsn,
}

/// What a reader of the database asks storage nodes, each time it follows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowRequest {
    /// Drawn at the reader's start.
    pub reader: u128,
    /// What people call it.
    pub name: String,
    /// Where it is; `None`: at its beginning.
    pub since: Option<Moment>,
    /// Its oldest snapshot in use: what that sees is not purged.
    pub oldest: Lsn,
    /// How long the answer may wait for something new.
    pub wait: Nanos,
    /// Pages that it has asked for since, of those that the server's remote memory may have: [`ASKED_MAX`] at most.
    pub asked: Vec<PageId>,
}

/// Pages that a reader says at a time that it has asked for.
pub const ASKED_MAX: usize = 1024;

/// What has changed since a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The database's number; zero: there is none.
    pub database: u128,
    /// Up to which moment.
    pub to: Moment,
    /// Which start has the database, as of that moment or a later one: none that follows has changed anything up to it.
    pub epoch: u64,
    /// Pages that were changed, each once.
    pub pages: Vec<PageId>,
    /// Spaces that were made (true) or dropped, in order.
    pub spaces: Vec<(u32, bool)>,
    /// The node does not know since that moment: all may have changed, and this is the database.
    pub anew: Option<Anew>,
}

/// The database as of a moment, to begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anew {
    /// The control record.
    pub control: Vec<u8>,
    /// The last group of the log.
    pub log: LogEnd,
    /// The spaces, in order.
    pub spaces: Vec<SpaceExtent>,
}

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    /// Of which database.
    pub database: u128,
    /// Where it ends.
    pub end: Lsn,
}

/// A reader, as a storage node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderSeen {
    /// See [`FollowRequest::reader`].
    pub reader: u128,
    /// What people call it.
    pub name: String,
    /// How far it was when it asked last.
    pub end: Lsn,
    /// Its oldest snapshot in use then.
    pub oldest: Lsn,
    /// How long ago that was.
    pub ago: Nanos,
}

/// See the module.
pub trait StorageNodes: fmt::Debug + Send + Sync {
    /// What they are called, in messages to people.
    fn name(&self) -> String;

    /// Who has the database now.
    ///
    /// # Errors
    /// [`Error::Timeout`](cenote_base::Error::Timeout).
    fn owner(&self) -> Result<OwnerRecord>;

    /// Takes the database for this process, whatever start `former` was; `record` says who it is. From here on every
    /// call is of this start.
    ///
    /// # Errors
    /// [`Error::Busy`](cenote_base::Error::Busy) if another start was faster;
    /// [`Error::Timeout`](cenote_base::Error::Timeout).
    fn take(&self, former: u64, record: &[u8]) -> Result<Taken>;

    /// This process's start, once it has taken the database; else zero.
    fn start(&self) -> u64 {
        0
    }

    /// The entry of the last command of this process that is no append; at first, that which has taken the database.
    fn entry(&self) -> u64 {
        0
    }

    /// Whether the database is this process's still, as a majority sees it.
    ///
    /// # Errors
    /// [`Error::Revoked`](cenote_base::Error::Revoked); [`Error::Timeout`](cenote_base::Error::Timeout).
    fn check(&self) -> Result<()>;

    /// Makes the database: its first control record, and where its log begins.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if there is one.
    fn begin(&self, control: &[u8], origin: Lsn) -> Result<()>;

    /// Replaces the control record.
    ///
    /// # Errors
    /// See the module.
    fn set_control(&self, control: &[u8]) -> Result<()>;

    /// Appends whole groups, which begin at `at`; `end` says where the log ends then. Returns when a majority has
    /// them synced.
    ///
    /// # Errors
    /// See the module.
    fn append(&self, at: Lsn, groups: &[u8], end: LogEnd) -> Result<()>;

    /// Reads the log from `at` on: as many bytes as there are, and no more than fit.
    ///
    /// # Errors
    /// [`Error::Corrupt`](cenote_base::Error::Corrupt) if the nodes keep it no longer.
    fn read_log(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize>;

    /// Pages, each in its newest state, which is at least that of its position; in their order.
    ///
    /// # Errors
    /// Of each page: [`Error::Invalid`](cenote_base::Error::Invalid) if there is no such space;
    /// [`Error::Corrupt`](cenote_base::Error::Corrupt) if no node has it whole.
    fn read_pages(&self, pages: &[(PageId, Lsn)]) -> Vec<PageAnswer>;

    /// Makes a space, which has to be new.
    ///
    /// # Errors
    /// See the module.
    fn make_space(&self, space: u32) -> Result<()>;

    /// Drops a space with all redo of it so far.
    ///
    /// # Errors
    /// See the module.
    fn drop_space(&self, space: u32) -> Result<()>;

    /// Whether nodes run out of disk space: new work is refused then.
    fn is_full(&self) -> bool;

    // ---- snapshots ----

    /// The spaces of a snapshot, with their pages, at least.
    ///
    /// # Errors
    /// [`Error::Past`] if it is not kept; [`Error::Timeout`].
    fn snapshot_spaces(&self, number: u64) -> Result<Vec<SpaceExtent>> {
        Err(no_snapshot(number))
    }

    /// Pages as of a snapshot; in their order.
    ///
    /// # Errors
    /// Of each page: [`Error::Past`] if the snapshot is not kept; those of [`StorageNodes::read_pages`].
    fn read_snapshot(&self, number: u64, pages: &[PageId]) -> Vec<PageAnswer> {
        pages.iter().map(|_| Err(no_snapshot(number))).collect()
    }

    // ---- readers ----

    /// What has changed since a moment, as one node knows it: usually the same one each time.
    ///
    /// # Errors
    /// [`Error::Timeout`] if none answers; [`Error::Mismatch`] if there is no database.
    fn follow(&self, request: &FollowRequest) -> Result<Changes> {
        let _ = request;
        Err(no_readers())
    }

    /// Pages as of a moment, neither older nor newer; in their order.
    ///
    /// # Errors
    /// Of each page: [`Error::Ahead`] if it is kept only as of a later position; those of
    /// [`StorageNodes::read_pages`].
    fn read_pages_at(&self, at: Moment, pages: &[PageId]) -> Vec<PageAnswer> {
        let _ = at;
        pages.iter().map(|_| Err(no_readers())).collect()
    }

    /// Where the log ends, at least, after all that was acknowledged before the call.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    fn newest(&self) -> Result<Newest> {
        Err(no_readers())
    }

    /// The node that is followed lags: another one is to be, next time.
    fn leave_followed(&self) {}

    /// The readers that have asked a node of late; of one that changed its node, what it told each.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no node answers.
    fn readers(&self) -> Result<Vec<ReaderSeen>> {
        Ok(Vec::new())
    }

    /// The pages that readers have asked for since this was asked last ([`FollowRequest::asked`]): each node tells what
    /// it knows once. For the server that fills remote memory.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no node answers.
    fn take_asked(&self) -> Result<Vec<PageId>> {
        Ok(Vec::new())
    }
}

fn no_snapshot(number: u64) -> Error {
    Error::Past(format!("these storage nodes keep no snapshot {number}"))
}

fn no_readers() -> Error {
    Error::Invalid("these storage nodes know no readers".into())
}
