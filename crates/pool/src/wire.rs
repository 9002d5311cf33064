//! What the processes of a pool say to each other: one request, one answer, in turn.
//!
//! Bytes are JSON: messages are few and small, and people can read them. An answer may be longer than a message: then
//! it comes in pieces, each with a byte before it (which JSON does not begin with) that says whether it is the last. A
//! peer's first message is a [`Hello`]; what it may ask follows from the role that it took there.

use crate::host::{Process, Sight};
use crate::ids::{GrantId, NodeId, Phase, SpaceId, SpacePhase};
use crate::key::Key;
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, MESSAGE_MAX};
pub use cenote_space::failure::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What this program speaks. Peers of another version are refused.
pub const VERSION: u16 = 11;

/// Bytes of the longest answer.
const ANSWER_MAX: usize = 16 << 20;
const PIECE: u8 = 1;
const LAST_PIECE: u8 = 2;
const _: () = assert!(
    PIECE < b'\t' && LAST_PIECE < b'\t',
    "no JSON text begins as a piece does"
);
const _: () = assert!(ANSWER_MAX > MESSAGE_MAX, "an answer may be longer than a message");

/// The first message, to the manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u16,
    pub role: Role,
    /// What the manager knows the role by, where it asks for it.
    pub secret: String,
}

/// The client that speaks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Role {
    /// From here on the manager asks, and the node answers.
    Node(NodeHello),
    /// As a node, the agent of a host at a device.
    Host(HostHello),
    Tenant(String),
    Operator,
    /// A memory node that asks, of mirrors of the parts that it keeps.
    Keeper(NodeId),
}

/// A memory node, as it presents itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeHello {
    pub id: NodeId,
    /// The pool that it belongs to; `None` before its first.
    pub pool: Option<u128>,
    pub pod: String,
    pub bytes: u64,
    /// Where its grants' files lie.
    pub directory: String,
    /// Whose processes it can see and end.
    pub machine: u64,
    /// Where members of the spaces that it keeps parts of find it.
    pub members: String,
    /// Where it is called over the fabric, if it can be.
    pub calls: Option<String>,
    /// The greatest number of a grant of which there is anything in its directory: none up to it is given anew.
    #[serde(default)]
    pub last: GrantId,
}

/// The agent of a host at a device that hosts share, as it presents itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostHello {
    /// As its directory says.
    pub device: NodeId,
    pub pool: u128,
    pub pod: String,
    /// The host's name.
    pub host: String,
    /// With which the host joined last, as the device's directory says; 0 if it does not.
    pub epoch: u64,
    /// The device on this host.
    pub path: String,
    /// Where its extents begin, all of their bytes, and those of one.
    pub start: u64,
    pub bytes: u64,
    pub granule: u64,
    pub devdax: bool,
    /// Which processes it sees.
    pub sight: Sight,
    /// The greatest number of a grant that the directory has.
    pub last: GrantId,
    /// Whether the directory has a grant that was not freed.
    pub used: bool,
}

/// What the agent of a host is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostWelcome {
    /// Its slot in the device's directory.
    pub number: u64,
    /// The host's epoch, once it has joined.
    pub epoch: u64,
    /// It has to end every process of its host that maps the device before it joins.
    pub clear: bool,
}

/// The manager's answer to a hello.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    pub pool: u128,
    /// Rises with each manager that begins to lead.
    pub term: u64,
    /// How long a lease lasts, in nanoseconds.
    pub lease: u64,
    /// For the agent of a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostWelcome>,
}

/// What holders and operators ask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    Open(OpenRequest),
    Renew {
        grant: GrantId,
        epoch: u64,
    },
    /// A holder has mapped its grant, and does nothing else with it before it hears that it is its own still. On a
    /// device its host's agent has to see that it maps it.
    Confirm {
        grant: GrantId,
        epoch: u64,
        process: Process,
    },
    Release {
        grant: GrantId,
        epoch: u64,
        give_back: bool,
    },
    /// Memory that is reached over the fabric is to be registered for its holder alone: former keys end.
    Lend {
        grant: GrantId,
        epoch: u64,
    },
    Status,
    Audit,
    /// Takes a grant away from its holder, and frees its memory.
    Free {
        grant: GrantId,
    },
    /// A memory node that will not come back: what lay there is given up.
    Forget {
        node: NodeId,
    },
    /// A host is over: none of its processes reaches a device any more. Its epochs are closed.
    HostLost {
        host: String,
        pod: Option<String>,
    },
    CreateSpace(SpaceRequest),
    OpenSpace {
        name: String,
    },
    GrowSpace(SpaceRequest),
    /// Ends every process that has it open, and frees its memory. Operators name the tenant.
    DropSpace {
        tenant: Option<String>,
        name: String,
    },
    /// Has the memory nodes look at all of it.
    AuditSpace {
        name: String,
    },
    /// The tenant's spaces.
    Spaces,
    /// A holder asks, or says, something of its grant's mirror; a memory node of a part's that it keeps.
    Mirror {
        grant: GrantId,
        epoch: u64,
        what: MirrorRequest,
    },
    /// The tenant's memory of this name, that its holder reaches over the fabric, is to be read by this process, too.
    LendToRead {
        label: String,
    },
    /// The holder of a grant needs this slab of it no more: it is freed, whatever process holds it. `Done` also where
    /// there is none.
    FreeSlab {
        first: GrantId,
        epoch: u64,
        slab: u32,
    },
    /// The holder of a grant wants slabs of it, all with one change of the grant table.
    OpenSlabs(SlabsRequest),
}

/// What a holder has to do with its grant's mirror.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum MirrorRequest {
    /// Which is it?
    Look,
    /// The one that there is, or a new one.
    Seek,
    /// It has all that was flushed, and gets what will be.
    Whole(GrantId),
    /// The memory is about to be made anew: what the mirror has counts no more.
    Void(GrantId),
    /// It cannot be used, and this holder does not map it.
    Lost(GrantId),
    /// It is not reached by load and store: it is to be registered with the fabric for this holder alone. `anew`: what
    /// it has counts for nothing.
    Lend { mirror: GrantId, len: u64, anew: bool },
    /// This holder maps it: it is registered no more.
    Unlend(GrantId),
    /// The memory itself is broken, and this holder maps neither side: the mirror is to be the grant.
    FailOver,
}

/// A request for a space, or for more memory of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceRequest {
    pub name: String,
    /// All that the parts need for themselves included.
    pub bytes: u64,
    /// Only there; everywhere if `None`.
    pub pods: Option<Vec<String>>,
    /// Whether each part is to have a mirror. Of more memory: as the space.
    #[serde(default)]
    pub mirrored: bool,
}

/// A space, as its clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceView {
    pub id: SpaceId,
    pub key: Key,
    pub parts: Vec<PartView>,
}

/// A part of a space, as its clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartView {
    pub number: u8,
    pub grant: GrantId,
    pub bytes: u64,
    pub node: NodeId,
    pub pod: String,
    /// Whose processes can map it.
    pub machine: u64,
    pub path: String,
    /// Where its memory node listens for members; `None` while the manager does not hear it.
    pub members: Option<String>,
    /// Where its memory node is called over the fabric, if it can be.
    pub calls: Option<String>,
    /// Its changes reach a mirror: it is asked by calls, and mapped by its memory node alone.
    #[serde(default)]
    pub mirrored: bool,
}

/// A request for memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The tenant's name for it: asked for again, it is the same memory.
    pub label: String,
    /// For people.
    pub description: String,
    pub bytes: u64,
    /// Only here; anywhere if `None`.
    pub pod: Option<String>,
    /// How long it is kept while it has no holder, in seconds; `None`: until it is given back.
    pub keep: Option<u64>,
    /// Where the holder runs.
    pub machine: u64,
    /// Whether it is to have a mirror.
    #[serde(default)]
    pub mirror: bool,
    /// The holder's host, as its agents call it.
    #[serde(default)]
    pub host: Option<String>,
    /// How the holder reaches it.
    #[serde(default)]
    pub reach: Reach,
}

/// How a holder reaches its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Reach {
    /// It maps it.
    #[default]
    Mapped,
    /// Over the fabric, from any machine. `takes`: away from a former holder, whose keys end before this one has any;
    /// otherwise that is `Busy`. `moves`: where its memory node is away, or its holder says that it does not reach it,
    /// other memory takes its place, which is empty.
    Remote {
        takes: bool,
        #[serde(default)]
        moves: Option<Moves>,
    },
}

/// Memory that may come to lie elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    /// What the client holds of it: the grant, and its epoch.
    pub held: Option<(GrantId, u64)>,
}

/// A request for slabs: grants of their own that belong to `first`, which the client holds with `epoch`. Each is taken
/// from any other holder, or made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlabsRequest {
    pub first: GrantId,
    pub epoch: u64,
    /// Their numbers, rising; [`SLABS_AT_ONCE`] at most.
    pub slabs: Vec<u32>,
    /// Bytes of each.
    pub bytes: u64,
    /// For people.
    pub description: String,
    /// Only here; anywhere if `None`.
    pub pod: Option<String>,
    /// How long memory nodes are waited for, in nanoseconds.
    pub within: u64,
}

/// Slabs of one request.
pub const SLABS_AT_ONCE: usize = 64;

/// A slab that was opened, and is registered for its holder alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenedSlab {
    pub opened: Opened,
    pub lent: LentMemory,
}

/// What was granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    pub grant: GrantId,
    pub epoch: u64,
    pub bytes: u64,
    pub pod: String,
    pub path: String,
    /// It has nothing of before: new, or its memory was lost.
    pub fresh: bool,
    /// Its mirror, if it has one.
    #[serde(default)]
    pub mirror: Option<MirrorView>,
    /// Where on a device that hosts share it lies, if it does: then the path is the device's.
    #[serde(default)]
    pub range: Option<GrantedRange>,
}

/// Where on a device a grant lies, for its holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantedRange {
    pub device: NodeId,
    /// Where it begins on the device.
    pub offset: u64,
    /// The holder's host.
    pub host: String,
    /// Rises each time that the host was lost.
    pub host_epoch: u64,
}

/// A grant's mirror, for its holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MirrorView {
    pub grant: GrantId,
    pub pod: String,
    pub path: String,
    /// Whether it has all that was flushed.
    pub whole: bool,
    /// Whose processes can map it.
    #[serde(default)]
    pub machine: u64,
    /// The way to it over the fabric, if it was asked for.
    #[serde(default)]
    pub lent: Option<Lent>,
}

/// Memory of a node that is lent to a holder on another machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lent {
    /// Where the node is reached.
    pub address: String,
    pub memory: LentRange,
    pub journal: LentRange,
}

/// Where a grant's memory is reached over the fabric, by its holder or by readers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LentMemory {
    /// Where the node is reached.
    pub address: String,
    pub memory: LentRange,
}

/// A range of registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LentRange {
    pub key: u64,
    pub base: u64,
    pub len: u64,
}

/// What comes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Opened(Opened),
    Lent(LentMemory),
    /// In the order of the request.
    Slabs(Vec<std::result::Result<OpenedSlab, Failure>>),
    Mirror(Option<MirrorView>),
    Status(PoolStatus),
    Audit(AuditReport),
    Space(SpaceView),
    Spaces(Vec<SpaceSummary>),
    /// It cannot be answered for so many nanoseconds at most: ask again.
    TooEarly {
        left: u64,
    },
    Failed(Failure),
}

/// What the manager orders a memory node to do. Each may be repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Makes the grant's file if there is none.
    Admit { grant: GrantId },
    /// Which processes have the grant's file mapped?
    Inspect { grant: GrantId },
    /// Ends every process that has the grant's file mapped.
    Fence { grant: GrantId },
    /// Ends every process that maps it, and frees its memory.
    Free { grant: GrantId },
    /// Registers a mirror's memory with the fabric, under keys of one holder alone. Those of a former one end first.
    Lend { grant: GrantId, len: u64, anew: bool },
    /// Ends those keys; then all that came under them is in the mirror's file.
    Unlend { grant: GrantId },
    /// Registers all of a grant's memory for its holder alone. The keys of a former one end first.
    LendGrant { grant: GrantId, len: u64 },
    /// Keeps a part of a space from here on: hands out its extents to members.
    Keep(PartOrder),
    /// All parts of a space that it keeps some of, the numbers of those that were lost with their memory nodes, and of
    /// those that are being made.
    Peers {
        space: SpaceId,
        parts: Vec<PartView>,
        #[serde(default)]
        lost: Vec<u8>,
        #[serde(default)]
        coming: Vec<u8>,
    },
    /// Looks at all of a part that it keeps.
    Check { grant: GrantId },
    /// Something of a grant on a device, to the agent of a host.
    Range(RangeOrder),
    /// Which grants' files, or ranges, are there?
    List,
    /// Nothing: is the node there?
    Ping,
    /// Registers all of a grant's memory to be read, for all readers by one key. It ends with the holder's keys.
    LendGrantToRead { grant: GrantId, len: u64 },
}

/// What the agent of a host is to do with a grant's range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RangeOrder {
    pub grant: GrantId,
    pub epoch: u64,
    pub offset: u64,
    pub bytes: u64,
    pub work: RangeWork,
}

/// See [`RangeOrder`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum RangeWork {
    /// Notes in the directory whose it is. `new`: no holder has had it.
    Admit { new: bool },
    /// Which processes map it? `write_back`: if none does, nothing of it stays in the host's caches.
    Inspect { write_back: bool },
    /// Does this process map it?
    Confirm(Process),
    /// Ends every process that maps it.
    Fence,
    /// Ends every process that maps it, makes it zeros, and notes that it is free.
    Free,
}

/// A part that a memory node is to keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartOrder {
    pub grant: GrantId,
    pub space: SpaceId,
    pub part: u8,
    pub tenant: String,
    pub bytes: u64,
    /// What members show.
    pub key: Key,
    /// No client has heard of it yet: it is made, if it is not there. Otherwise it has to be there.
    pub make: bool,
    /// Its changes are to reach a mirror.
    #[serde(default)]
    pub mirrored: bool,
}

/// A memory node's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum OrderReply {
    Done,
    Admitted {
        fresh: bool,
    },
    /// Processes, as the node's machine names them.
    Holders(Vec<String>),
    Files(Vec<GrantFile>),
    Ranges(Vec<RangeFound>),
    /// What is wrong with a part.
    Problems(Vec<String>),
    Lent(Lent),
    LentGrant(LentMemory),
    Failed(Failure),
}

/// A grant's file as the node finds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantFile {
    pub grant: GrantId,
    pub len: u64,
    pub holders: Vec<String>,
}

/// A range of a device, as the agent of a host finds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RangeFound {
    /// Whose it is by the directory; `None`: it is free.
    pub grant: Option<GrantId>,
    pub offset: u64,
    pub bytes: u64,
    /// Processes of this host that map it.
    pub users: Vec<String>,
}

/// A pool at a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The pool's id.
    pub pool: u128,
    /// How long a lease lasts, in nanoseconds.
    pub lease: u64,
    /// Its memory nodes.
    pub nodes: Vec<NodeView>,
    /// Its devices that hosts share.
    #[serde(default)]
    pub devices: Vec<DeviceView>,
    /// Its tenants.
    pub tenants: Vec<TenantView>,
    /// Its grants.
    pub grants: Vec<GrantView>,
    /// Its spaces.
    pub spaces: Vec<SpaceSummary>,
}

/// A space, as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceSummary {
    /// Which.
    pub id: SpaceId,
    /// Whose.
    pub tenant: String,
    /// The tenant's name for it.
    pub name: String,
    /// What is happening to it.
    pub phase: SpacePhase,
    /// Its parts, by number.
    pub parts: Vec<PartSummary>,
    /// Numbers of the parts that were lost with their memory nodes.
    pub lost: Vec<u8>,
    /// Whether its parts are mirrored.
    #[serde(default)]
    pub mirrored: bool,
}

impl SpaceSummary {
    /// What all of its parts have.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// A part of a space, as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartSummary {
    /// Its number in the space.
    pub number: u8,
    /// The grant that it is.
    pub grant: GrantId,
    /// Its size.
    pub bytes: u64,
    /// Where it lies.
    pub node: NodeId,
    /// The pod of that node.
    pub pod: String,
    /// What is happening to it.
    pub phase: Phase,
    /// Whether the manager hears its node.
    pub connected: bool,
}

/// A memory node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    /// Which.
    pub id: NodeId,
    /// Its pod.
    pub pod: String,
    /// Memory that it has.
    pub bytes: u64,
    /// Of that, granted or not confirmed free yet.
    pub granted: u64,
    /// Whether the manager hears it.
    pub connected: bool,
    /// Where its files lie.
    pub directory: String,
}

/// A device that hosts share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceView {
    /// Which.
    pub id: NodeId,
    /// Its pod.
    pub pod: String,
    /// Memory that it has.
    pub bytes: u64,
    /// Of that, granted or not confirmed free yet.
    pub granted: u64,
    /// Whether it is a devdax device, and not a file.
    pub devdax: bool,
    /// The hosts that have joined it.
    pub hosts: Vec<HostView>,
}

/// A host, at a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostView {
    /// Its name.
    pub name: String,
    /// Rises each time it joins after it was lost.
    pub epoch: u64,
    /// Whether its processes may have ranges: it was not lost.
    pub open: bool,
    /// Whether the manager hears its agent.
    pub connected: bool,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantView {
    /// Its name.
    pub name: String,
    /// The most that it gets, if there is a limit.
    pub quota: Option<u64>,
    /// Which tenant's idle grants go first where memory is short.
    pub priority: u8,
    /// What it has.
    pub granted: u64,
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrantView {
    /// Which.
    pub id: GrantId,
    /// Whose.
    pub tenant: String,
    /// The tenant's name for it.
    pub label: String,
    /// For people.
    pub description: String,
    /// Its size.
    pub bytes: u64,
    /// Where it lies.
    pub node: NodeId,
    /// The pod of that node.
    pub pod: String,
    /// Rises with each holder.
    pub epoch: u64,
    /// What is happening to it.
    pub phase: Phase,
    /// The grant that it mirrors, if it does.
    #[serde(default)]
    pub mirror_of: Option<GrantId>,
    /// Where on a device it lies, if it does.
    #[serde(default)]
    pub offset: Option<u64>,
    /// The host that may touch that range, while one may.
    #[serde(default)]
    pub host: Option<String>,
    /// Its holder reaches it over the fabric.
    #[serde(default)]
    pub remote: bool,
    /// What is left of its lease, or how long it has been idle, in nanoseconds.
    pub time: u64,
}

/// Where every byte is, and what contradicts itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditReport {
    /// A line for each memory node and what was found there.
    pub summary: Vec<String>,
    /// What should not be.
    pub problems: Vec<String>,
}

/// Sends a message.
///
/// # Errors
/// Those of the connection; [`Error::Invalid`] if the message is no JSON or too long.
pub fn send(connection: &dyn Connection, message: &impl Serialize) -> Result<()> {
    connection.send(&to_bytes(message)?)
}

fn to_bytes(message: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(message).map_err(|e| Error::Invalid(format!("a message that cannot be written: {e}")))
}

/// Sends an answer, in pieces if it is longer than a message can be; one that is too long for that too is sent as a
/// failure.
///
/// # Errors
/// Those of the connection.
pub fn answer<T: Serialize>(connection: &dyn Connection, answer: &T, failed: fn(Failure) -> T) -> Result<()> {
    let bytes = to_bytes(answer)?;
    match bytes.len() {
        len if len <= MESSAGE_MAX => connection.send(&bytes),
        len if len <= ANSWER_MAX => send_pieces(connection, &bytes),
        len => {
            let error = Error::Full(format!("the answer has {}, which is too long", ByteSize(len as u64)));
            send(connection, &failed(error.into()))
        }
    }
}

fn send_pieces(connection: &dyn Connection, bytes: &[u8]) -> Result<()> {
    let mut pieces = bytes.chunks(MESSAGE_MAX - 1).peekable();
    while let Some(piece) = pieces.next() {
        let mark = if pieces.peek().is_some() { PIECE } else { LAST_PIECE };
        connection.send(&[&[mark], piece].concat())?;
    }
    Ok(())
}

/// Receives what [`answer`] sent.
fn receive_answer(connection: &dyn Connection, timeout: Nanos) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let bytes = connection.receive(timeout)?;
        let (is_last, piece) = match bytes.split_first() {
            Some((&PIECE, piece)) => (false, piece),
            Some((&LAST_PIECE, piece)) => (true, piece),
            _ if all.is_empty() => return Ok(bytes),
            _ => return Err(Error::corrupt(format!("an answer of {}", connection.peer()))),
        };
        all.extend_from_slice(piece);
        if all.len() > ANSWER_MAX || piece.is_empty() {
            return Err(Error::corrupt(format!(
                "an answer of {}: its length",
                connection.peer()
            )));
        }
        if is_last {
            return Ok(all);
        }
    }
}

/// Receives a message; one that cannot be read ends the connection.
///
/// # Errors
/// Those of the connection, [`Error::Timeout`]; [`Error::Corrupt`] if it is no such message.
pub fn receive<T: DeserializeOwned>(connection: &dyn Connection, timeout: Nanos) -> Result<T> {
    read(connection, &connection.receive(timeout)?)
}

/// Reads a message that has come; one that cannot be read ends the connection.
///
/// # Errors
/// [`Error::Corrupt`] if it is no such message.
pub fn read<T: DeserializeOwned>(connection: &dyn Connection, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        connection.close();
        Error::corrupt(format!("a message of {}: {error}", connection.peer()))
    })
}

/// Sends a message and waits for the answer. After an error it is unknown which answer would come next: the connection
/// is over.
///
/// # Errors
/// Those of the connection, [`Error::Timeout`]; [`Error::Corrupt`] if it is no such answer.
pub fn call<T: DeserializeOwned>(connection: &dyn Connection, message: &impl Serialize, timeout: Nanos) -> Result<T> {
    let answer = send(connection, message).and_then(|()| receive_answer(connection, timeout));
    let answer = answer.and_then(|bytes| read(connection, &bytes));
    if answer.is_err() {
        connection.close();
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::rt;
    use cenote_fabric::message::Network;
    use cenote_fabric::message::tcp::Tcp;
    use proptest::prelude::*;

    #[test]
    fn errors_keep_their_kind() {
        let error = Error::from(Failure::from(Error::Revoked("gone".into())));
        assert!(matches!(&error, Error::Revoked(text) if text == "gone"));
        let error = Error::from(Failure::from(Error::corrupt("bits")));
        assert_eq!(error.to_string(), "corrupt: bits");
    }

    fn report(len: usize) -> Reply {
        Reply::Audit(AuditReport {
            summary: vec!["x".repeat(len)],
            problems: Vec::new(),
        })
    }

    const SOON: Nanos = Nanos::from_secs(60);

    /// Asks a peer that answers as the test says.
    fn ask(answering: impl FnOnce(&dyn Connection) + Send + 'static) -> Result<Reply> {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let one = Tcp.connect(&listener.address(), SOON).expect("connected");
        let other = listener.accept(SOON).expect("no error").expect("connected");
        let answering = rt::spawn("answers", move || {
            assert_eq!(receive::<Request>(&*other, SOON).expect("a question"), Request::Status);
            answering(&*other);
        });
        let said = call(&*one, &Request::Status, SOON);
        answering.join().expect("no panic");
        said
    }

    /// The story: a tenant had some hundred grants with long descriptions, and the pool's status was longer than a
    /// message. Operators lost the connection whenever they asked for it.
    #[test]
    fn long_answers_come_whole() {
        for len in [0, MESSAGE_MAX - 200, MESSAGE_MAX, 2 * MESSAGE_MAX, 5 * MESSAGE_MAX + 77] {
            let said = ask(move |other| answer(other, &report(len), Reply::Failed).expect("sent"));
            assert!(said.expect("an answer") == report(len), "{len}");
        }
        let said = ask(|other| answer(other, &report(ANSWER_MAX), Reply::Failed).expect("sent"));
        let said = said.expect("an answer");
        assert!(
            matches!(&said, Reply::Failed(failure) if matches!(Error::from(failure.clone()), Error::Full(text) if text.contains("too long"))),
            "{said:?}"
        );
    }

    /// A question is given up, and its answer comes after that: it is taken for the answer to no other.
    #[test]
    fn a_late_answer_is_no_others() {
        let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
        let one = Tcp.connect(&listener.address(), SOON).expect("connected");
        let other = listener.accept(SOON).expect("no error").expect("connected");
        let first: Result<Reply> = call(&*one, &Request::Status, Nanos::from_millis(20));
        assert!(matches!(first, Err(Error::Timeout(_))), "{first:?}");
        assert_eq!(receive::<Request>(&*other, SOON).expect("a question"), Request::Status);
        // It may be refused.
        send(&*other, &Reply::Done).ok();
        let second: Result<Reply> = call(&*one, &Request::Spaces, SOON);
        assert!(matches!(second, Err(Error::Lost(_))), "{second:?}");
    }

    #[test]
    fn pieces_that_are_none_are_refused() {
        let refused = |pieces: Vec<Vec<u8>>| {
            let said = ask(move |other| pieces.iter().for_each(|piece| _ = other.send(piece)));
            assert!(matches!(said, Err(Error::Corrupt(_))), "{said:?}");
        };
        refused(vec![vec![PIECE]]);
        refused(vec![vec![LAST_PIECE]]);
        refused(vec![vec![PIECE, b'"'], b"\"Done\"".to_vec()]);
        refused(vec![vec![PIECE, b'"'], vec![LAST_PIECE, b'x']]);
        refused(vec![vec![3, b'"']]);
        let piece = [vec![PIECE], vec![b' '; MESSAGE_MAX - 1]].concat();
        refused(vec![piece; ANSWER_MAX / MESSAGE_MAX + 2]);
    }

    proptest! {
        /// Whatever arrives is a message or an error.
        #[test]
        fn garbage_is_refused(text in r#"[\[\]{}:,"a-zA-Z0-9 ]{0,200}"#) {
            let bytes = text.as_bytes();
            let _ = serde_json::from_slice::<Hello>(bytes);
            let _ = serde_json::from_slice::<Request>(bytes);
            let _ = serde_json::from_slice::<Reply>(bytes);
            let _ = serde_json::from_slice::<Order>(bytes);
            let _ = serde_json::from_slice::<OrderReply>(bytes);
        }

        #[test]
        fn requests_come_back_as_they_went(label in ".{0,40}", bytes: u64, keep: Option<u64>, pod: Option<String>) {
            let description = String::new();
            let moves = Some(Moves {
                held: Some((GrantId(7), 3)),
            });
            let (machine, mirror, host, reach) = (0, false, None, Reach::Remote { takes: true, moves });
            let request = OpenRequest { label, description, bytes, pod, keep, machine, mirror, host, reach };
            let request = Request::Open(request);
            let written = serde_json::to_vec(&request).expect("written");
            prop_assert_eq!(serde_json::from_slice::<Request>(&written).expect("read"), request);
        }
    }
}
