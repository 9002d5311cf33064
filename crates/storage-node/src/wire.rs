//! What storage nodes are asked, by databases and by each other: one request, one answer, in turn.
//!
//! The first message of a connection says what it is: a client, whose requests are answered, or another node, whose
//! messages are Raft's and are not. Bytes are checked before they are believed.

use cenote_base::page_io::PageRead;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Lsn, PAGE_SIZE, PageId, Result};
use cenote_storage::nodes::{
    ASKED_MAX, Anew, Changes, FollowRequest, LogEnd, Moment, Newest, OwnerRecord, PageAnswer, ReaderSeen, SpaceExtent,
};

use crate::codec::{Reader, Writer};
use crate::command::{put_end, take_end};
use crate::demand::{Demand, put_demand, take_demand};
use crate::members::{Membership, Server, put_membership, put_server, take_membership, take_server};
use crate::pages::CHANGES_MAX;
use crate::snapshots::Snapshots;
use crate::usage::{Usage, put_usage, take_usage};

/// What this program speaks. Peers of another version are refused.
const VERSION: u32 = 9;
const MAGIC: u32 = u32::from_le_bytes(*b"CSnd");
/// Pages of one request at most: their answer fits into a message.
pub(crate) const PAGES_MAX: usize = 48;
/// Bytes of the log in one answer at most.
pub(crate) const LOG_MAX: usize = 512 << 10;
/// Bytes of what people call a reader.
pub(crate) const NAME_MAX: usize = 64;
/// How long an answer may wait for something new.
pub(crate) const FOLLOW_MAX: Nanos = Nanos::from_secs(1);

const _: () = assert!(
    PAGES_MAX * (PAGE_SIZE + 16) + 64 < cenote_fabric::message::MESSAGE_MAX
        && LOG_MAX * 2 <= 1 << 20
        && CHANGES_MAX * 16 <= 1 << 19,
    "answers fit into messages"
);

/// The first message of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The cluster that is meant, by its name, and what lets peers in; empty: nothing does.
    pub cluster: String,
    pub secret: String,
    /// The node that is meant; zero: whichever answers.
    pub to: u64,
    /// The node that speaks; zero: a client.
    pub from: u64,
    /// Which disk the node that speaks has: drawn when its directory was made.
    pub identity: u128,
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        Writer::default()
            .u32(MAGIC)
            .u32(VERSION)
            .text(&self.cluster)
            .text(&self.secret)
            .u64(self.to)
            .u64(self.from)
            .u128(self.identity)
            .done()
    }

    /// # Errors
    /// [`Error::Mismatch`] for another version; [`Error::Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<Hello> {
        let mut r = Reader::new(bytes, "the first message to a storage node");
        if r.u32()? != MAGIC {
            return Err(r.wrong("it is none"));
        }
        let version = r.u32()?;
        if version != VERSION {
            return Err(Error::Mismatch(format!(
                "the peer speaks version {version} of the storage nodes' protocol, this program {VERSION}"
            )));
        }
        let hello = Hello {
            cluster: r.text()?,
            secret: r.text()?,
            to: r.u64()?,
            from: r.u64()?,
            identity: r.u128()?,
        };
        r.end()?;
        Ok(hello)
    }
}

/// What clients ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// A command is to be carried out.
    Propose(Vec<u8>),
    /// The start that has the database, as a majority knows it.
    Owner,
    /// Pages, each at least as of its position, of the spaces as they are as of an entry.
    Pages {
        entry: u64,
        pages: Vec<(PageId, Lsn)>,
    },
    /// So many bytes of the log.
    Log {
        at: Lsn,
        length: u32,
    },
    /// The spaces as of an entry.
    Spaces {
        entry: u64,
    },
    Status,
    /// Pages as of a moment.
    PagesAt {
        at: Moment,
        pages: Vec<PageId>,
    },
    /// What has changed, for a reader.
    Follow(FollowRequest),
    /// Where the log ends, as a majority knows it.
    Newest,
    /// The readers that this node knows.
    Readers,
    /// A server of the database says what it is, and asks for the others.
    Announce(Server),
    /// The servers of the database; a majority confirms that this node leads.
    Members,
    /// The start's server has been silent for so long, and another takes the database.
    Claim {
        after: u64,
        silent: Nanos,
    },
    /// The server that is to have the database next.
    Switch {
        to: u128,
    },
    /// A proxy says what its clients need, and asks for the servers.
    Demand(Demand),
    /// What servers of the database have used.
    Usage,
    /// The pages that readers have asked for; they are told once.
    TakeAsked,
    /// The snapshots that there are, as a majority knows them.
    Snapshots,
    /// The spaces of a snapshot.
    SnapshotSpaces(u64),
    /// Pages as of a snapshot.
    SnapshotPages {
        number: u64,
        pages: Vec<PageId>,
    },
}

/// What nodes answer.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// The connection stands: with node so-and-so.
    Welcome {
        node: u64,
    },
    /// It was carried out, as this entry.
    Done {
        entry: u64,
    },
    /// As this entry.
    Taken {
        entry: u64,
        epoch: u64,
        control: Option<Vec<u8>>,
        log: LogEnd,
    },
    TakenBefore {
        epoch: u64,
    },
    Revoked {
        epoch: u64,
    },
    /// This node does not lead; zero: it knows no leader.
    NotLeader {
        leader: u64,
    },
    Owner(OwnerRecord),
    Pages(Vec<PageAnswer>),
    Log(Vec<u8>),
    Spaces(Vec<SpaceExtent>),
    Status(Status),
    Failed(Error),
    Changes(Changes),
    Newest(Newest),
    Readers(Vec<ReaderSeen>),
    Members(Membership),
    Usage(Usage),
    Asked(Vec<PageId>),
    Snapshots(Snapshots),
}

/// What a node says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Its number.
    pub node: u64,
    /// Of its directory, drawn when that was made.
    pub identity: u128,
    /// The node that it takes for the leader; zero: none.
    pub leader: u64,
    /// The Raft term.
    pub term: u64,
    /// The first entry that its Raft log keeps.
    pub first: u64,
    /// The last entry of its Raft log, the last that is committed, and the last in its pages.
    pub last: u64,
    /// See `last`.
    pub committed: u64,
    /// See `last`.
    pub saved: u64,
    /// Which start has the database; zero: none had it yet.
    pub epoch: u64,
    /// Where the log ends.
    pub log_end: u64,
    /// Up to where pages can be read.
    pub ingested: u64,
    /// Bytes of the Raft log on disk.
    pub log_bytes: u64,
    /// Bytes of pages on disk.
    pub page_bytes: u64,
    /// The entry that every node is known to have; zero where it does not lead.
    pub everywhere: u64,
    /// Bytes of redo that pages in files lack.
    pub pending_bytes: u64,
    /// Pages that it takes from the other nodes yet, about; zero: none.
    pub lacking_pages: u64,
    /// Bytes that are free where its directory lies.
    pub free_bytes: u64,
    /// Whether its disk is nearly full.
    pub is_full: bool,
    /// Bytes on disk that snapshots take beside the pages.
    pub snapshot_bytes: u64,
    /// The numbers of the snapshots that it has.
    pub snapshots: Vec<u64>,
}

impl Status {
    /// Whether the next entry that it needs is one that some of `all` keep no longer.
    pub fn lacks_log(&self, all: &[Status]) -> bool {
        all.iter().any(|other| other.first > self.last.saturating_add(1))
    }
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Request::Propose(command) => Writer::of(1).bytes(command),
            Request::Owner => Writer::of(2),
            Request::Pages { entry, pages } => Writer::of(3)
                .u64(*entry)
                .each(pages, |w, (page, lsn)| w.u64(page.raw()).lsn(*lsn)),
            Request::Log { at, length } => Writer::of(4).lsn(*at).u32(*length),
            Request::Spaces { entry } => Writer::of(5).u64(*entry),
            Request::Status => Writer::of(6),
            Request::PagesAt { at, pages } => put_pages(put_moment(Writer::of(7), *at), pages),
            Request::Follow(follow) => put_follow(Writer::of(8), follow),
            Request::Newest => Writer::of(9),
            Request::Readers => Writer::of(10),
            Request::Announce(server) => put_server(Writer::of(11), server),
            Request::Members => Writer::of(12),
            Request::Switch { to } => Writer::of(13).u128(*to),
            Request::Claim { after, silent } => Writer::of(14).u64(*after).u64(silent.0),
            Request::Demand(demand) => put_demand(Writer::of(15), demand),
            Request::Usage => Writer::of(16),
            Request::TakeAsked => Writer::of(17),
            Request::Snapshots => Writer::of(18),
            Request::SnapshotSpaces(number) => Writer::of(19).u64(*number),
            Request::SnapshotPages { number, pages } => put_pages(Writer::of(20).u64(*number), pages),
        }
        .done()
    }

    /// # Errors
    /// [`Error::Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<Request> {
        let mut r = Reader::new(bytes, "a request to a storage node");
        let request = match r.u8()? {
            1 => Request::Propose(r.bytes()?.to_vec()),
            2 => Request::Owner,
            3 => Request::Pages {
                entry: r.u64()?,
                pages: r.each(|r| Ok((PageId::from_raw(r.u64()?), r.lsn()?)))?,
            },
            4 => Request::Log {
                at: r.lsn()?,
                length: r.u32()?,
            },
            5 => Request::Spaces { entry: r.u64()? },
            6 => Request::Status,
            7 => Request::PagesAt {
                at: take_moment(&mut r)?,
                pages: r.each(take_page_id)?,
            },
            8 => Request::Follow(take_follow(&mut r)?),
            9 => Request::Newest,
            10 => Request::Readers,
            11 => Request::Announce(take_server(&mut r)?),
            12 => Request::Members,
            13 => Request::Switch { to: r.u128()? },
            14 => Request::Claim {
                after: r.u64()?,
                silent: Nanos(r.u64()?),
            },
            15 => Request::Demand(take_demand(&mut r)?),
            16 => Request::Usage,
            17 => Request::TakeAsked,
            18 => Request::Snapshots,
            19 => Request::SnapshotSpaces(r.u64()?),
            20 => Request::SnapshotPages {
                number: r.u64()?,
                pages: r.each(take_page_id)?,
            },
            _ => return Err(r.wrong("there is no such request")),
        };
        r.end()?;
        let pages = match &request {
            Request::Pages { pages, .. } => pages.len(),
            Request::PagesAt { pages, .. } | Request::SnapshotPages { pages, .. } => pages.len(),
            _ => 0,
        };
        match pages <= PAGES_MAX {
            true => Ok(request),
            false => Err(Error::Invalid(format!(
                "{pages} pages were asked for at a time, {PAGES_MAX} at most can be"
            ))),
        }
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Welcome { node } => Writer::of(1).u64(*node),
            Reply::Done { entry } => Writer::of(2).u64(*entry),
            Reply::Taken {
                entry,
                epoch,
                control,
                log,
            } => {
                let head = Writer::of(3).u64(*entry).u64(*epoch);
                put_end(put_optional(head, control.as_deref()), *log)
            }
            Reply::TakenBefore { epoch } => Writer::of(4).u64(*epoch),
            Reply::Revoked { epoch } => Writer::of(5).u64(*epoch),
            Reply::NotLeader { leader } => Writer::of(6).u64(*leader),
            Reply::Owner(owner) => put_optional(
                Writer::of(7).u64(owner.epoch).bytes(&owner.record),
                owner.control.as_deref(),
            ),
            Reply::Pages(pages) => Writer::of(8).each(pages, put_page),
            Reply::Log(bytes) => Writer::of(9).bytes(bytes),
            Reply::Spaces(spaces) => Writer::of(10).each(spaces, put_space),
            Reply::Status(status) => put_status(Writer::of(11), status),
            Reply::Failed(error) => put_error(Writer::of(12), error),
            Reply::Changes(changes) => put_changes(Writer::of(13), changes),
            Reply::Newest(newest) => Writer::of(14).u128(newest.database).lsn(newest.end),
            Reply::Readers(readers) => Writer::of(15).each(readers, put_reader),
            Reply::Members(members) => put_membership(Writer::of(16), members),
            Reply::Usage(usage) => put_usage(Writer::of(17), usage),
            Reply::Asked(pages) => put_pages(Writer::of(18), pages),
            Reply::Snapshots(snapshots) => snapshots.put(Writer::of(19)),
        }
        .done()
    }

    /// # Errors
    /// [`Error::Corrupt`].
    pub fn decode(bytes: &[u8]) -> Result<Reply> {
        let mut r = Reader::new(bytes, "a storage node's answer");
        let reply = match r.u8()? {
            1 => Reply::Welcome { node: r.u64()? },
            2 => Reply::Done { entry: r.u64()? },
            3 => Reply::Taken {
                entry: r.u64()?,
                epoch: r.u64()?,
                control: take_optional(&mut r)?,
                log: take_end(&mut r)?,
            },
            4 => Reply::TakenBefore { epoch: r.u64()? },
            5 => Reply::Revoked { epoch: r.u64()? },
            6 => Reply::NotLeader { leader: r.u64()? },
            7 => Reply::Owner(OwnerRecord {
                epoch: r.u64()?,
                record: r.bytes()?.to_vec(),
                control: take_optional(&mut r)?,
            }),
            8 => Reply::Pages(r.each(take_page)?),
            9 => Reply::Log(r.bytes()?.to_vec()),
            10 => Reply::Spaces(r.each(take_space)?),
            11 => Reply::Status(take_status(&mut r)?),
            12 => Reply::Failed(take_error(&mut r)?),
            13 => Reply::Changes(take_changes(&mut r)?),
            14 => Reply::Newest(Newest {
                database: r.u128()?,
                end: r.lsn()?,
            }),
            15 => Reply::Readers(r.each(take_reader)?),
            16 => Reply::Members(take_membership(&mut r)?),
            17 => Reply::Usage(take_usage(&mut r)?),
            18 => Reply::Asked(r.each(take_page_id)?),
            19 => Reply::Snapshots(Snapshots::take(&mut r)?),
            _ => return Err(r.wrong("there is no such answer")),
        };
        r.end()?;
        Ok(reply)
    }
}

fn put_optional(writer: Writer, bytes: Option<&[u8]>) -> Writer {
    writer.u8(bytes.is_some().into()).bytes(bytes.unwrap_or_default())
}

fn take_optional(r: &mut Reader<'_>) -> Result<Option<Vec<u8>>> {
    let is_there = r.u8()? == 1;
    let bytes = r.bytes()?.to_vec();
    Ok(is_there.then_some(bytes))
}

fn put_page(writer: Writer, answer: &PageAnswer) -> Writer {
    match answer {
        Ok((_, PageRead::NeverWritten)) => writer.u8(0),
        Ok((page, _)) => writer.u8(1).bytes(page),
        Err(error) => put_error(writer.u8(2), error),
    }
}

fn take_page(r: &mut Reader<'_>) -> Result<PageAnswer> {
    Ok(match r.u8()? {
        0 => Ok((vec![0; PAGE_SIZE].into(), PageRead::NeverWritten)),
        1 => Ok((r.bytes()?.into(), PageRead::Present)),
        2 => Err(take_error(r)?),
        _ => return Err(r.wrong("there is no such page")),
    })
}

fn put_space(writer: Writer, space: &SpaceExtent) -> Writer {
    writer.u32(space.space).u32(space.pages)
}

fn take_space(r: &mut Reader<'_>) -> Result<SpaceExtent> {
    Ok(SpaceExtent {
        space: r.u32()?,
        pages: r.u32()?,
    })
}

fn put_moment(writer: Writer, moment: Moment) -> Writer {
    writer.u64(moment.entry).lsn(moment.end)
}

fn take_moment(r: &mut Reader<'_>) -> Result<Moment> {
    Ok(Moment {
        entry: r.u64()?,
        end: r.lsn()?,
    })
}

fn put_follow(writer: Writer, follow: &FollowRequest) -> Writer {
    let writer = writer
        .u128(follow.reader)
        .text(&follow.name)
        .u8(follow.since.is_some().into());
    let writer = put_moment(writer, follow.since.unwrap_or_default())
        .lsn(follow.oldest)
        .u64(follow.wait.0);
    put_pages(writer, &follow.asked)
}

fn put_pages(writer: Writer, pages: &[PageId]) -> Writer {
    writer.each(pages, |w, page| w.u64(page.raw()))
}

fn take_page_id(r: &mut Reader<'_>) -> Result<PageId> {
    Ok(PageId::from_raw(r.u64()?))
}

fn take_follow(r: &mut Reader<'_>) -> Result<FollowRequest> {
    let (reader, name, is_under_way) = (r.u128()?, r.text()?, r.u8()? == 1);
    let since = take_moment(r)?;
    if name.len() > NAME_MAX {
        return Err(r.wrong("a reader's name is too long"));
    }
    let (oldest, wait) = (r.lsn()?, Nanos(r.u64()?).min(FOLLOW_MAX));
    let asked = r.each(take_page_id)?;
    if asked.len() > ASKED_MAX {
        return Err(r.wrong("a reader says that it has asked for too many pages"));
    }
    Ok(FollowRequest {
        reader,
        name,
        since: is_under_way.then_some(since),
        oldest,
        wait,
        asked,
    })
}

fn put_changes(writer: Writer, changes: &Changes) -> Writer {
    let writer = put_moment(writer.u128(changes.database), changes.to);
    let writer = put_pages(writer.u64(changes.epoch), &changes.pages)
        .each(&changes.spaces, |w, (space, is_there)| {
            w.u32(*space).u8((*is_there).into())
        })
        .u8(changes.anew.is_some().into());
    match &changes.anew {
        None => writer,
        Some(anew) => put_end(writer.bytes(&anew.control), anew.log).each(&anew.spaces, put_space),
    }
}

fn take_changes(r: &mut Reader<'_>) -> Result<Changes> {
    Ok(Changes {
        database: r.u128()?,
        to: take_moment(r)?,
        epoch: r.u64()?,
        pages: r.each(take_page_id)?,
        spaces: r.each(|r| Ok((r.u32()?, r.u8()? == 1)))?,
        anew: match r.u8()? {
            0 => None,
            _ => Some(Anew {
                control: r.bytes()?.to_vec(),
                log: take_end(r)?,
                spaces: r.each(take_space)?,
            }),
        },
    })
}

fn put_reader(writer: Writer, reader: &ReaderSeen) -> Writer {
    writer
        .u128(reader.reader)
        .text(&reader.name)
        .lsn(reader.end)
        .lsn(reader.oldest)
        .u64(reader.ago.0)
}

fn take_reader(r: &mut Reader<'_>) -> Result<ReaderSeen> {
    Ok(ReaderSeen {
        reader: r.u128()?,
        name: r.text()?,
        end: r.lsn()?,
        oldest: r.lsn()?,
        ago: Nanos(r.u64()?),
    })
}

fn put_error(writer: Writer, error: &Error) -> Writer {
    let (code, text) = match error {
        Error::Ahead(position) => return writer.u8(8).text("").lsn(*position),
        Error::Past(text) => (9, text.clone()),
        Error::Full(text) => (1, text.clone()),
        Error::Corrupt(text) => (2, text.clone()),
        Error::Mismatch(text) => (3, text.clone()),
        Error::Invalid(text) => (4, text.clone()),
        Error::Busy(text) => (5, text.clone()),
        Error::Timeout(text) => (6, text.clone()),
        Error::Revoked(text) => (7, text.clone()),
        other => (0, other.to_string()),
    };
    writer.u8(code).text(&text)
}

fn take_error(r: &mut Reader<'_>) -> Result<Error> {
    let (code, text) = (r.u8()?, r.text()?);
    Ok(match code {
        1 => Error::Full(text),
        2 => Error::Corrupt(text),
        3 => Error::Mismatch(text),
        4 => Error::Invalid(text),
        5 => Error::Busy(text),
        6 => Error::Timeout(text),
        7 => Error::Revoked(text),
        8 => Error::Ahead(r.lsn()?),
        9 => Error::Past(text),
        _ => Error::Lost(text),
    })
}

fn put_status(writer: Writer, s: &Status) -> Writer {
    let words = [
        s.node,
        s.leader,
        s.term,
        s.last,
        s.committed,
        s.saved,
        s.epoch,
        s.log_end,
        s.ingested,
        s.log_bytes,
        s.page_bytes,
        s.pending_bytes,
        s.free_bytes,
        s.is_full.into(),
        s.everywhere,
        s.lacking_pages,
        s.first,
        s.snapshot_bytes,
    ];
    let writer = words.iter().fold(writer, |writer, word| writer.u64(*word));
    writer
        .u128(s.identity)
        .each(&s.snapshots, |writer, number| writer.u64(*number))
}

fn take_status(r: &mut Reader<'_>) -> Result<Status> {
    Ok(Status {
        node: r.u64()?,
        leader: r.u64()?,
        term: r.u64()?,
        last: r.u64()?,
        committed: r.u64()?,
        saved: r.u64()?,
        epoch: r.u64()?,
        log_end: r.u64()?,
        ingested: r.u64()?,
        log_bytes: r.u64()?,
        page_bytes: r.u64()?,
        pending_bytes: r.u64()?,
        free_bytes: r.u64()?,
        is_full: r.u64()? == 1,
        everywhere: r.u64()?,
        lacking_pages: r.u64()?,
        first: r.u64()?,
        snapshot_bytes: r.u64()?,
        identity: r.u128()?,
        snapshots: r.each(|r| r.u64())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::random::Random;

    fn replies() -> Vec<Reply> {
        let log = LogEnd::at_origin(Lsn::from_raw(4096));
        let page: Box<[u8]> = vec![3; PAGE_SIZE].into();
        vec![
            Reply::Welcome { node: 2 },
            Reply::Taken {
                entry: 8,
                epoch: 3,
                control: Some(vec![1; 9]),
                log,
            },
            Reply::Owner(OwnerRecord {
                epoch: 0,
                record: Vec::new(),
                control: None,
            }),
            Reply::Pages(vec![
                Ok((page, PageRead::Present)),
                Ok((vec![0; PAGE_SIZE].into(), PageRead::NeverWritten)),
                Err(Error::Invalid("no space".into())),
            ]),
            Reply::Log(vec![7; 100]),
            Reply::Status(Status {
                node: 3,
                is_full: true,
                snapshots: vec![1, 4],
                ..Status::default()
            }),
            Reply::Failed(Error::Full("full".into())),
            Reply::Snapshots(Snapshots::default()),
        ]
    }

    #[test]
    fn messages_come_back_as_they_were() {
        for reply in replies() {
            let bytes = reply.encode();
            let again = Reply::decode(&bytes).expect("whole");
            assert_eq!(format!("{again:?}"), format!("{reply:?}"));
        }
        let pages = |count| Request::Pages {
            entry: 9,
            pages: vec![(PageId::new(3, 4), Lsn::from_raw(5)); count],
        };
        let request = pages(1);
        assert_eq!(Request::decode(&request.encode()).expect("whole"), request);
        let many = pages(PAGES_MAX + 1);
        assert!(Request::decode(&many.encode()).is_err());
        let hello = Hello {
            cluster: "shop".into(),
            secret: "sesame".into(),
            to: 1,
            from: 2,
            identity: 3,
        };
        assert_eq!(Hello::decode(&hello.encode()).expect("whole"), hello);
    }

    #[test]
    fn garbage_is_an_error() {
        let mut random = Random(7);
        for round in 0..4000 {
            let mut bytes = match round % 4 {
                0 => replies()[round / 4 % 8].encode(),
                1 => Request::Spaces { entry: 9 }.encode(),
                _ => (0..random.below(200)).map(|_| random.word() as u8).collect(),
            };
            if let Some(byte) = bytes.len().checked_sub(1).map(|last| random.index(last + 1)) {
                bytes[byte] ^= 1 << random.below(8);
            }
            // None of them may panic, whatever comes out.
            let _ = (Request::decode(&bytes), Reply::decode(&bytes), Hello::decode(&bytes));
        }
    }
}
