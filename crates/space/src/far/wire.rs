//! What users and hosts of parts say to each other by calls. What is read here came over a network: nothing in it is
//! believed before it was checked.
//!
//! ```text
//!   request: kind u8 | again u8 | count u16 | number u32, then by kind
//!     1 hello      JSON;  answer: memory u64, another one when what the host knew of this user is gone
//!     2 accesses   items: op u8 | 0 u8 | 0 u16 | len u32 | address u64 | value u64 | new u64, then of a write its bytes, filled up to 8
//!                  answers: status u8 | 0 u8 | 0 u16 | len u32 | value u64, then of a read its bytes or of an error its JSON, filled up to 8
//!     3 alloc      session u64 | len u64 | lifetime u64;  answer: address u64
//!     4 fetch      extent u64 | freeze u64 | from u64 | len u64;  answer: those bytes of its image (map, then objects); of a call that lends memory they are there, and 1 u64 is
//!                  the answer, or 0: it is not frozen for that any more
//!     5 order      JSON; answer: JSON
//!     6 root       nothing, or the address that it shall be, or that and the one that it has to be; answer: address
//! u64
//!     7 sequence   accesses, one after the other: the first that is not done ends it, and the answer has it last
//!     8 probe      len u64 | into memory u64;  answer: so many bytes, or nothing, and the bytes in the call's memory
//! ```
//!
//! What *direct* reads bring goes into memory that the call lends, one after the other and each filled up to 8; their
//! answers have no bytes, and their value is the length.
//!
//! Little-endian. The number is the low half of that of a request which must be done once ([`super::channel`]); it is 0
//! of others. Again is 1 if the request may have been done before.

use super::super::GlobalAddress;
use super::super::act::{Act, Outcome};
use super::super::keeper::{Lifetime, SessionId};
use super::pass::Pass;
use crate::failure::Failure;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::LIMIT;
use core::ops::Range;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub const HELLO: u8 = 1;
pub const ACCESSES: u8 = 2;
pub const ALLOC: u8 = 3;
pub const FETCH: u8 = 4;
pub const ORDER: u8 = 5;
pub const ROOT: u8 = 6;
pub const SEQUENCE: u8 = 7;
pub const PROBE: u8 = 8;
pub const WINDOW: u8 = 9;
pub const CARD_READS: u8 = 10;

const HEAD: usize = 8;
const ITEM: usize = 32;
const ANSWER: usize = 16;
/// Bytes of an error in an answer: there is room for all accesses of a request to fail. A multiple of 8.
const ERROR_MAX: usize = 240;
/// Items of one request.
const ITEMS_MAX: usize = 1024;

const READ: u8 = 1;
const WRITE: u8 = 2;
const LOAD: u8 = 3;
const STORE: u8 = 4;
const SWAP: u8 = 5;
const ADD: u8 = 6;
const SIZE: u8 = 7;
const FREE: u8 = 8;
const EXPECT: u8 = 9;
const AROUND: u8 = 10;
const DIRECT: u8 = 11;
const FREE_PIECE: u8 = 12;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const FROZEN: u8 = 2;
const AWAY: u8 = 3;
const NOT_HERE: u8 = 4;
const SPLIT: u8 = 5;

/// What hosts of other parts ask for.
pub fn is_of_hosts(kind: &u8) -> bool {
    matches!(*kind, FETCH | ORDER | PROBE)
}

/// The user that asks, and which part: a connection is about one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The space.
    pub space: u128,
    /// The number of the part that is asked.
    pub part: u8,
    /// What its users are known by.
    pub key: u128,
    /// The pod that the user is in: where its hot extents should be.
    pub pod: String,
}

/// What a user says first on each connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub hello: Hello,
    /// By what the host knows the user again. Drawn by the user.
    pub user: u128,
    /// Which of its connections this is, counted from 1 on.
    pub turn: u64,
    /// As which member; without one it is another part's host.
    #[serde(default)]
    pub pass: Option<Pass>,
}

/// A part's memory, which its users' cards may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The registration, and where the part begins in it.
    pub key: u64,
    pub base: u64,
    /// Bytes of the part, from its first one on, that can be read: as far as it is reserved.
    pub len: u64,
    /// Slots of the part, whose extents can move.
    pub slots: u32,
}

/// The question for a part's [`Window`].
pub fn window() -> Vec<u8> {
    head(WINDOW, 0)
}

/// Whether that is what is asked for.
pub fn is_window(request: &[u8]) -> bool {
    request.first() == Some(&WINDOW)
}

/// Tells a host of reads of what lies in a slot that a card did: it has not seen them.
pub fn card_reads(slot: u32, reads: u32) -> Vec<u8> {
    let mut bytes = head(CARD_READS, 0);
    bytes.extend(slot.to_le_bytes());
    bytes.extend(reads.to_le_bytes());
    bytes
}

/// Slot and reads.
///
/// # Errors
/// [`Error::Corrupt`]: it is something else.
pub fn read_card_reads(rest: &[u8]) -> Result<(u32, u32)> {
    let word = |at: usize| rest.get(at..).and_then(|bytes| bytes.first_chunk());
    match (rest.len(), word(0), word(4)) {
        (8, Some(slot), Some(reads)) => Ok((u32::from_le_bytes(*slot), u32::from_le_bytes(*reads))),
        _ => Err(Error::corrupt("what a card has read")),
    }
}

/// What a request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub kind: u8,
    pub count: usize,
    pub number: u32,
    pub is_again: bool,
}

fn head(kind: u8, count: usize) -> Vec<u8> {
    assert!(count <= usize::from(u16::MAX), "{count} items in a message");
    let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    bytes
}

/// Gives a request its number, and says whether it may have been done before.
pub fn set_number(request: &mut [u8], number: u32, is_again: bool) {
    if let Some(head) = request.first_chunk_mut::<HEAD>() {
        head[1] = is_again.into();
        head[4..].copy_from_slice(&number.to_le_bytes());
    }
}

/// # Errors
/// [`Error::Invalid`]: it is no JSON.
pub fn greeting(greeting: &Greeting) -> Result<Vec<u8>> {
    json(HELLO, greeting)
}

/// The memory that the answer to a greeting names.
///
/// # Errors
/// [`Error::Corrupt`]: an answer of another length.
pub fn read_memory(answer: &[u8]) -> Result<u64> {
    let bytes = <[u8; 8]>::try_from(answer).map_err(|_| Error::corrupt("an answer to a greeting"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// The error of a request that was not looked at: no hello came before it, or another one came since. No answer to a
/// request is another of its kind.
pub fn unheard(why: &str) -> Error {
    Error::Mismatch(why.into())
}

pub fn is_unheard(error: &Error) -> bool {
    matches!(error, Error::Mismatch(_))
}

/// A request, or an answer (kind 0), of JSON.
///
/// # Errors
/// [`Error::Invalid`]: the value cannot be written as JSON.
pub fn json(kind: u8, value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = head(kind, 0);
    serde_json::to_writer(&mut bytes, value).map_err(|error| Error::Invalid(format!("a message: {error}")))?;
    Ok(bytes)
}

/// The head and the rest of a request.
///
/// # Errors
/// [`Error::Corrupt`]: no head of a request.
pub fn split(request: &[u8]) -> Result<(Head, &[u8])> {
    match request.split_first_chunk::<HEAD>() {
        Some(([kind, again @ (0 | 1), low, high, number @ ..], rest)) => {
            let head = Head {
                kind: *kind,
                count: usize::from(u16::from_le_bytes([*low, *high])),
                number: u32::from_le_bytes(*number),
                is_again: *again == 1,
            };
            Ok((head, rest))
        }
        _ => Err(Error::corrupt("the head of a request")),
    }
}

/// The count and the rest of an answer.
fn split_answer(answer: &[u8]) -> Result<(usize, &[u8])> {
    match split(answer)? {
        (head, rest) if head.kind == 0 && head.number == 0 && !head.is_again => Ok((head.count, rest)),
        _ => Err(Error::corrupt("the head of an answer")),
    }
}

/// # Errors
/// [`Error::Corrupt`]: it is not the JSON of such a message.
pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::corrupt(format!("a message: {error}")))
}

/// The JSON of an answer.
///
/// # Errors
/// [`Error::Corrupt`]: it is not such an answer.
pub fn answered<T: DeserializeOwned>(answer: &[u8]) -> Result<T> {
    from_json(split_answer(answer)?.1)
}

fn fill(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// Of how many bytes on the reads of a message are direct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectFrom(pub u64);

impl DirectFrom {
    /// None is.
    pub const NEVER: Self = Self(u64::MAX);

    fn takes(self, act: &Act<'_>) -> bool {
        matches!(act, Act::Read(into) if into.len() as u64 >= self.0)
    }

    /// How many of these accesses are direct.
    pub fn count(self, acts: &[(GlobalAddress, Act<'_>)]) -> usize {
        acts.iter().filter(|(_, act)| self.takes(act)).count()
    }

    /// The memory that a message with these accesses has to lend.
    pub fn memory_of(self, acts: &[(GlobalAddress, Act<'_>)]) -> usize {
        let direct = acts.iter().filter(|(_, act)| self.takes(act));
        direct.map(|(_, act)| filled(act.len() as usize)).sum()
    }
}

fn filled(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// One access, as it is sent.
pub struct Item<'a> {
    op: u8,
    len: u32,
    address: GlobalAddress,
    value: u64,
    new: u64,
    bytes: &'a [u8],
}

impl<'a> Item<'a> {
    pub fn of(address: GlobalAddress, act: &'a Act<'_>, direct: DirectFrom) -> Self {
        let item = |op, value, new| Self {
            op,
            len: act.len() as u32,
            address,
            value,
            new,
            bytes: &[],
        };
        match act {
            Act::Read(_) if direct.takes(act) => item(DIRECT, 0, 0),
            Act::Read(_) => item(READ, 0, 0),
            Act::Write(from) => Self {
                bytes: from,
                ..item(WRITE, 0, 0)
            },
            Act::Load => item(LOAD, 0, 0),
            Act::Store(value) => item(STORE, *value, 0),
            Act::Swap { expected, new } => item(SWAP, *expected, *new),
            Act::Add(n) => item(ADD, *n, 0),
            Act::Find(_) => item(DIRECT, 0, 0),
            Act::Size => item(SIZE, 0, 0),
            Act::Free => item(FREE, 0, 0),
            Act::FreePiece => item(FREE_PIECE, 0, 0),
            Act::Expect(value) => item(EXPECT, *value, 0),
            Act::Around { page, .. } => item(AROUND, *page, 0),
        }
    }
}

/// Bytes that an access takes in a request, in its answer at most, and in memory that is lent.
fn cost(act: &Act<'_>, direct: DirectFrom) -> [usize; 3] {
    let bytes = filled(act.len() as usize);
    match act {
        Act::Read(_) if direct.takes(act) => [ITEM, ANSWER + ERROR_MAX, bytes],
        Act::Read(_) => [ITEM, ANSWER + bytes.max(ERROR_MAX), 0],
        Act::Write(_) => [ITEM + bytes, ANSWER + ERROR_MAX, 0],
        Act::Around { len, page, .. } => {
            let pages = around_max(*len as usize, *page as usize);
            [ITEM, ANSWER + pages.max(ERROR_MAX), 0]
        }
        _ => [ITEM, ANSWER + ERROR_MAX, 0],
    }
}

/// The largest page that may be asked for.
pub const PAGE_MAX: usize = 16 << 10;

/// The most bytes of whole pages that `len` bytes can lie in.
fn around_max(len: usize, page: usize) -> usize {
    len.saturating_add(2 * page).next_multiple_of(8)
}

/// What users send and ask for: 16 bytes of each message stay free.
const USERS_LIMIT: usize = LIMIT - 16;

/// The most bytes of one read or write.
pub const TRANSFER_MAX: usize = (USERS_LIMIT - HEAD - ITEM) / 8 * 8;

/// The most bytes of a probe.
pub const PROBE_MAX: usize = 64 << 10;

const _: () = assert!(HEAD.is_multiple_of(8) && ITEM.is_multiple_of(8) && ANSWER.is_multiple_of(8));
const _: () = assert!(ERROR_MAX.is_multiple_of(8) && TRANSFER_MAX.is_multiple_of(8));
const _: () = assert!(HEAD + ANSWER + TRANSFER_MAX <= LIMIT && HEAD + ANSWER + PROBE_MAX <= LIMIT);
const _: () = assert!(ITEMS_MAX <= u16::MAX as usize && PAGE_MAX.is_power_of_two());

/// How many of them go into each message. One that is too long for any is alone, and refused there.
pub fn groups(acts: &[(GlobalAddress, Act<'_>)], direct: DirectFrom) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sizes = [0; 3];
    for (n, (_, act)) in acts.iter().enumerate() {
        let cost = cost(act, direct);
        sizes = core::array::from_fn(|i| sizes[i] + cost[i]);
        let fits = sizes.iter().all(|size| *size <= USERS_LIMIT - HEAD);
        match groups.last_mut() {
            Some(group) if fits && group.len() < ITEMS_MAX => group.end = n + 1,
            _ => {
                groups.push(n..n + 1);
                sizes = cost;
            }
        }
    }
    assert_eq!(
        groups.last().map_or(0, |group| group.end),
        acts.len(),
        "each access is in a message"
    );
    groups
}

/// A request of [`ACCESSES`] or [`SEQUENCE`], in a buffer that is there already.
pub fn accesses(kind: u8, items: &[Item<'_>], buffer: Vec<u8>) -> Vec<u8> {
    let mut bytes = buffer;
    bytes.clear();
    bytes.reserve(HEAD + items.iter().map(|item| ITEM + filled(item.bytes.len())).sum::<usize>());
    bytes.extend_from_slice(&head(kind, items.len()));
    for item in items {
        bytes.extend_from_slice(&[item.op, 0, 0, 0]);
        bytes.extend_from_slice(&item.len.to_le_bytes());
        for word in [item.address.raw(), item.value, item.new] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(item.bytes);
        fill(&mut bytes);
    }
    bytes
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8]> {
    let (first, rest) = bytes
        .split_at_checked(n)
        .ok_or_else(|| Error::corrupt("a message ends early"))?;
    *bytes = rest;
    Ok(first)
}

/// The bytes of a message at a place.
///
/// # Errors
/// [`Error::Corrupt`]: the message ends before.
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or_else(|| Error::corrupt("a message ends early"))
}

fn word(bytes: &[u8], at: usize) -> Result<u64> {
    chunk(bytes, at).map(u64::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> Result<usize> {
    chunk(bytes, at).map(|half| u32::from_le_bytes(half) as usize)
}

/// What a request's accesses are about, as far as it makes sense: addresses and lengths, before they are carried out.
pub struct RequestedAccesses<'a>(&'a [u8]);

pub fn requested_accesses(items: &[u8]) -> RequestedAccesses<'_> {
    RequestedAccesses(items)
}

impl Iterator for RequestedAccesses<'_> {
    type Item = (GlobalAddress, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (item, rest) = self.0.split_at_checked(ITEM)?;
        let (len, address) = (half(item, 4).ok()?, word(item, 8).ok()?);
        let payload = if item[0] == WRITE { filled(len) } else { 0 };
        self.0 = rest.get(payload..)?;
        Some((GlobalAddress::from_raw(address), len as u64))
    }
}

/// What the answer to these accesses takes, if all reads are done.
fn answer_of(mut items: &[u8]) -> usize {
    let mut bytes = HEAD;
    while let Some((item, rest)) = items.split_at_checked(ITEM) {
        let Ok(len) = half(item, 4).map(filled) else { break };
        bytes += ANSWER + if item[0] == READ { len } else { 0 };
        let payload = if item[0] == WRITE { len } else { 0 };
        items = rest.get(payload..).unwrap_or_default();
    }
    bytes.min(LIMIT)
}

/// A direct read that was found: its bytes are sent later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direct {
    pub address: GlobalAddress,
    pub len: usize,
    /// Where its bytes lie in the part's region; `None`: it was not done, and there are zeros in their place.
    pub place: Option<u64>,
    /// Where in the answer its own begins.
    answer: usize,
}

impl Direct {
    /// What was sent may not be what it was to be: it is to be asked for again.
    pub fn withdraw(&self, answer: &mut [u8]) {
        if let Some(status) = answer.get_mut(self.answer) {
            *status = FROZEN;
        }
    }
}

/// Carries out the accesses of a request, in order, and writes their answers. Of a sequence those after the first that
/// is not done are not begun. Direct reads, of which there is `room` for so many bytes, are looked for only: the list
/// of them.
///
/// # Errors
/// [`Error::Corrupt`]: the request is broken off, or is none.
pub fn carry_out(
    (kind, count): (u8, usize),
    items: &[u8],
    answer: &mut Vec<u8>,
    room: usize,
    mut each: impl FnMut(GlobalAddress, &mut Act<'_>) -> Result<Outcome>,
) -> Result<Vec<Direct>> {
    answer.reserve(answer_of(items));
    answer.extend_from_slice(&head(0, count));
    let mut work = CarryOut {
        items,
        answer,
        room,
        pages: Vec::new(),
        direct: Vec::new(),
        lent: 0,
    };
    for n in 1..=count {
        let is_done = work.next(&mut each)?;
        if kind == SEQUENCE && !is_done {
            work.answer[2..4].copy_from_slice(&(n as u16).to_le_bytes());
            return Ok(work.direct);
        }
    }
    match work.items {
        [] => Ok(work.direct),
        _ => Err(Error::corrupt("a message that goes on")),
    }
}

/// A request that is carried out.
struct CarryOut<'a, 'b> {
    items: &'a [u8],
    answer: &'b mut Vec<u8>,
    room: usize,
    pages: Vec<u8>,
    direct: Vec<Direct>,
    /// Bytes of the room that those take.
    lent: usize,
}

impl CarryOut<'_, '_> {
    /// One access; whether it was done.
    fn next(&mut self, each: &mut impl FnMut(GlobalAddress, &mut Act<'_>) -> Result<Outcome>) -> Result<bool> {
        let item = take(&mut self.items, ITEM)?;
        let (op, len, address) = (item[0], half(item, 4)?, GlobalAddress::from_raw(word(item, 8)?));
        let (value, new) = (word(item, 16)?, word(item, 24)?);
        let payload = match op {
            WRITE => take(&mut self.items, len.next_multiple_of(8))?,
            _ => &[],
        };
        self.check_room(op, len, value)?;
        let mut act = match op {
            READ => return Ok(self.read(len, address, each)),
            DIRECT => return Ok(self.find(len, address, each)),
            WRITE => Act::Write(&payload[..len]),
            LOAD => Act::Load,
            STORE => Act::Store(value),
            SWAP => Act::Swap { expected: value, new },
            ADD => Act::Add(value),
            SIZE => Act::Size,
            FREE => Act::Free,
            FREE_PIECE => Act::FreePiece,
            EXPECT => Act::Expect(value),
            AROUND => Act::Around {
                len: len as u64,
                page: value,
                into: &mut self.pages,
            },
            _ => return Err(Error::corrupt("an access of no kind")),
        };
        let outcome = checked(address, &mut act, each);
        let is_done = matches!(outcome, Ok(Outcome::Done(..)));
        let read: &[u8] = if op == AROUND { &self.pages } else { &[] };
        reply(self.answer, outcome, read);
        Ok(is_done)
    }

    /// What is read must fit, into the answer or into the caller's memory.
    fn check_room(&self, op: u8, len: usize, value: u64) -> Result<()> {
        let reads = match op {
            READ => len,
            AROUND => around_max(len, page_of(value)? as usize),
            _ => 0,
        };
        if op == DIRECT && self.lent + filled(len) > self.room {
            return Err(Error::Invalid(format!("reads into memory of {} bytes", self.room)));
        }
        if self.answer.len() + ANSWER + reads > LIMIT {
            return Err(Error::Invalid(format!("reads of more than {LIMIT} bytes at a time")));
        }
        Ok(())
    }

    /// Reads to where the bytes belong in the answer.
    fn read(
        &mut self,
        len: usize,
        address: GlobalAddress,
        each: &mut impl FnMut(GlobalAddress, &mut Act<'_>) -> Result<Outcome>,
    ) -> bool {
        let start = self.answer.len();
        self.answer.resize(start + ANSWER + len, 0);
        let outcome = checked(address, &mut Act::Read(&mut self.answer[start + ANSWER..]), each);
        let Ok(Outcome::Done(value, _)) = outcome else {
            self.answer.truncate(start);
            reply(self.answer, outcome, &[]);
            return false;
        };
        self.answer[start..start + ANSWER].copy_from_slice(&answer_head(DONE, len, value));
        fill(self.answer);
        true
    }

    /// Looks for what is to be read later.
    fn find(
        &mut self,
        len: usize,
        address: GlobalAddress,
        each: &mut impl FnMut(GlobalAddress, &mut Act<'_>) -> Result<Outcome>,
    ) -> bool {
        let outcome = checked(address, &mut Act::Find(len as u64), each);
        let (place, outcome) = match outcome {
            Ok(Outcome::Done(place, slot)) => (Some(place), Ok(Outcome::Done(len as u64, slot))),
            other => (None, other),
        };
        let answer = self.answer.len();
        self.lent += filled(len);
        assert!(
            self.lent <= self.room,
            "direct reads of {} bytes, for {}",
            self.lent,
            self.room
        );
        self.direct.push(Direct {
            address,
            len,
            place,
            answer,
        });
        reply(self.answer, outcome, &[]);
        place.is_some()
    }
}

fn checked(
    address: GlobalAddress,
    act: &mut Act<'_>,
    each: &mut impl FnMut(GlobalAddress, &mut Act<'_>) -> Result<Outcome>,
) -> Result<Outcome> {
    act.check(address)?;
    each(address, act)
}

fn page_of(value: u64) -> Result<u64> {
    match value.is_power_of_two() && (64..=PAGE_MAX as u64).contains(&value) {
        true => Ok(value),
        false => Err(Error::corrupt("the size of a page")),
    }
}

fn answer_head(status: u8, len: usize, value: u64) -> [u8; ANSWER] {
    let mut head = [0; ANSWER];
    head[0] = status;
    head[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    head[8..].copy_from_slice(&value.to_le_bytes());
    head
}

fn reply(answer: &mut Vec<u8>, outcome: Result<Outcome>, read: &[u8]) {
    let mut put = |status: u8, value: u64, bytes: &[u8]| {
        answer.extend_from_slice(&answer_head(status, bytes.len(), value));
        answer.extend_from_slice(bytes);
        fill(answer);
    };
    match outcome {
        Ok(Outcome::Done(value, _)) => put(DONE, value, read),
        Ok(Outcome::Frozen) => put(FROZEN, 0, &[]),
        Ok(Outcome::Split) => put(SPLIT, 0, &[]),
        Ok(Outcome::Away(part)) => put(AWAY, part.into(), &[]),
        Ok(Outcome::NotHere | Outcome::Run) => put(NOT_HERE, 0, &[]),
        Err(error) => put(FAILED, 0, &Failure::from(error).within(ERROR_MAX)),
    }
}

/// The answers to a request's accesses.
pub struct Answers<'a> {
    rest: &'a [u8],
    /// What direct reads have brought, and which those are.
    memory: &'a [u8],
    direct: DirectFrom,
}

impl<'a> Answers<'a> {
    /// # Errors
    /// [`Error::Corrupt`]: an answer to another number of accesses.
    pub fn new(answer: &'a [u8], count: usize) -> Result<Self> {
        match split_answer(answer)? {
            (n, rest) if n == count => Ok(Self::of(rest)),
            _ => Err(Error::corrupt("an answer to something else")),
        }
    }

    fn of(rest: &'a [u8]) -> Self {
        Self {
            rest,
            memory: &[],
            direct: DirectFrom::NEVER,
        }
    }

    /// Of a call that has lent this memory, for reads of so many bytes and more.
    pub fn with_memory(self, memory: &'a [u8], direct: DirectFrom) -> Self {
        Self { memory, direct, ..self }
    }

    /// Those of a sequence of `count`, and how many there are: all, or up to the first that was not done.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: an answer to another sequence.
    pub fn of_sequence(answer: &'a [u8], count: usize) -> Result<(usize, Self)> {
        match split_answer(answer)? {
            (n, rest) if (1..=count).contains(&n) => Ok((n, Self::of(rest))),
            _ => Err(Error::corrupt("an answer to something else")),
        }
    }

    /// The next one, which is this one's.
    ///
    /// # Errors
    /// The host's error of this access; [`Error::Corrupt`] if the answer is broken off.
    pub fn next(&mut self, act: &mut Act<'_>) -> Result<Outcome> {
        let answer = take(&mut self.rest, ANSWER)?;
        let (status, len, value) = (answer[0], half(answer, 4)?, word(answer, 8)?);
        let bytes = &take(&mut self.rest, len.next_multiple_of(8))?[..len];
        let is_direct = self.direct.takes(act);
        let read = match is_direct {
            true => take(&mut self.memory, filled(act.len() as usize))?,
            false => bytes,
        };
        match (status, act) {
            (DONE, Act::Read(into)) if is_direct && len == 0 && value == into.len() as u64 => {
                into.copy_from_slice(&read[..into.len()]);
                Ok(Outcome::Done(value, 0))
            }
            (DONE, Act::Read(_)) if is_direct => Err(Error::corrupt("an answer of another length")),
            (DONE, Act::Read(into)) if into.len() == len => {
                into.copy_from_slice(bytes);
                Ok(Outcome::Done(value, 0))
            }
            (
                DONE,
                Act::Around {
                    len: wanted,
                    page,
                    into,
                },
            ) if is_around(value, *wanted, *page, len) => {
                into.clear();
                into.extend_from_slice(bytes);
                Ok(Outcome::Done(value, 0))
            }
            (DONE, Act::Read(_) | Act::Around { .. }) => Err(Error::corrupt("an answer of another length")),
            (DONE, _) => Ok(Outcome::Done(value, 0)),
            (FROZEN, _) => Ok(Outcome::Frozen),
            (SPLIT, _) => Ok(Outcome::Split),
            (AWAY, _) => u8::try_from(value)
                .map(Outcome::Away)
                .map_err(|_| Error::corrupt("a part's number")),
            (NOT_HERE, _) => Ok(Outcome::NotHere),
            (FAILED, _) => Err(from_json::<Failure>(bytes)?.into()),
            _ => Err(Error::corrupt("an answer of no kind")),
        }
    }
}

/// Whether `found` bytes can be the pages around `len` bytes that lie `before` bytes into them.
fn is_around(before: u64, len: u64, page: u64, found: usize) -> bool {
    let end = before.checked_add(len).filter(|_| before < page);
    end.is_some_and(|end| (end..=end.next_multiple_of(page)).contains(&(found as u64)))
}

pub fn alloc(session: SessionId, len: u64, lifetime: Lifetime) -> Vec<u8> {
    let mut bytes = head(ALLOC, 0);
    for word in [session.0, len, u64::from(lifetime == Lifetime::Session)] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Session, length and lifetime of a request to allocate.
///
/// # Errors
/// [`Error::Corrupt`]: a message of another length, or an unknown lifetime.
pub fn read_alloc(rest: &[u8]) -> Result<(SessionId, u64, Lifetime)> {
    match rest.len() {
        24 => {
            let lifetime = match word(rest, 16)? {
                0 => Lifetime::Space,
                1 => Lifetime::Session,
                _ => return Err(Error::corrupt("a lifetime of no kind")),
            };
            Ok((SessionId(word(rest, 0)?), word(rest, 8)?, lifetime))
        }
        _ => Err(Error::corrupt("a request to allocate")),
    }
}

/// Asks for so many bytes that mean nothing: in the answer, or in the call's memory.
pub fn probe(len: usize, is_direct: bool) -> Vec<u8> {
    let mut bytes = head(PROBE, 0);
    for word in [len as u64, u64::from(is_direct)] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// How many bytes are asked for, and whether they go into the call's memory.
///
/// # Errors
/// [`Error::Corrupt`]: a message of another length, or a probe beyond the longest.
pub fn read_probe(rest: &[u8]) -> Result<(usize, bool)> {
    match (rest.len(), word(rest, 0)?) {
        (16, len) if len <= PROBE_MAX as u64 => Ok((len as usize, word(rest, 8)? != 0)),
        _ => Err(Error::corrupt("a probe")),
    }
}

pub fn root(set: Option<GlobalAddress>) -> Vec<u8> {
    let mut bytes = head(ROOT, 0);
    bytes.extend(set.iter().flat_map(|address| address.raw().to_le_bytes()));
    bytes
}

/// The root, if there is none yet.
pub fn claim_root(address: GlobalAddress) -> Vec<u8> {
    let mut bytes = root(Some(address));
    bytes.extend(GlobalAddress::NULL.raw().to_le_bytes());
    bytes
}

/// What is to be done with the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootChange {
    None,
    Set(GlobalAddress),
    /// If it is the second.
    Swap(GlobalAddress, GlobalAddress),
}

/// What the root shall be.
///
/// # Errors
/// [`Error::Corrupt`]: a message of another length.
pub fn read_root(rest: &[u8]) -> Result<RootChange> {
    match rest.len() {
        0 => Ok(RootChange::None),
        16 => Ok(RootChange::Swap(read_address(&rest[..8])?, read_address(&rest[8..])?)),
        _ => read_address(rest).map(RootChange::Set),
    }
}

/// A message that is an address.
///
/// # Errors
/// [`Error::Corrupt`]: a message of another length.
pub fn read_address(bytes: &[u8]) -> Result<GlobalAddress> {
    let raw = <[u8; 8]>::try_from(bytes).map_err(|_| Error::corrupt("an address of another length"))?;
    Ok(GlobalAddress::from_raw(u64::from_le_bytes(raw)))
}

/// What is answered if those bytes are in the call's memory.
pub const FETCHED: [u8; 8] = 1u64.to_le_bytes();

/// Bytes of a frozen extent's image that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    pub extent: GlobalAddress,
    /// The migration epoch that it is about: the host gives nothing of another one.
    pub freeze: u64,
    pub from: u64,
    pub len: u64,
}

pub fn fetch(fetch: Fetch) -> Vec<u8> {
    let mut bytes = head(FETCH, 0);
    for word in [fetch.extent.raw(), fetch.freeze, fetch.from, fetch.len] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// # Errors
/// [`Error::Corrupt`]: a message of another length.
pub fn read_fetch(rest: &[u8]) -> Result<Fetch> {
    match rest.len() {
        32 => Ok(Fetch {
            extent: GlobalAddress::from_raw(word(rest, 0)?),
            freeze: word(rest, 8)?,
            from: word(rest, 16)?,
            len: word(rest, 24)?,
        }),
        _ => Err(Error::corrupt("a request to fetch")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Missing bytes were 0, which an address, a length or a session's number can be.
    #[test]
    fn missing_bytes_are_an_error() {
        let bytes = [7; 20];
        assert!(word(&bytes, 12).is_ok() && half(&bytes, 16).is_ok());
        for at in [13, 20, 21, usize::MAX] {
            assert!(matches!(word(&bytes, at), Err(Error::Corrupt(_))), "a word at {at}");
        }
        for at in [17, 20, 21, usize::MAX] {
            assert!(
                matches!(half(&bytes, at), Err(Error::Corrupt(_))),
                "half a word at {at}"
            );
        }
    }

    #[test]
    fn requests_of_another_length_are_errors() {
        let lifetime = Lifetime::Session;
        let (alloc, probe) = (alloc(SessionId(3), 100, lifetime), probe(64, true));
        let fetch = fetch(Fetch {
            extent: GlobalAddress::NULL,
            freeze: 1,
            from: 2,
            len: 3,
        });
        assert_eq!(
            read_alloc(&alloc[HEAD..]).expect("whole"),
            (SessionId(3), 100, lifetime)
        );
        assert_eq!(read_probe(&probe[HEAD..]).expect("whole"), (64, true));
        assert_eq!(read_fetch(&fetch[HEAD..]).expect("whole").len, 3);
        for n in HEAD..fetch.len() {
            let cut = |bytes: &[u8]| bytes[HEAD..n.min(bytes.len() - 1)].to_vec();
            assert!(read_alloc(&cut(&alloc)).is_err() && read_probe(&cut(&probe)).is_err());
            assert!(read_fetch(&cut(&fetch)).is_err(), "{n} bytes");
        }
        let mut unknown = alloc;
        unknown[HEAD + 16] = 2;
        assert!(read_alloc(&unknown[HEAD..]).is_err(), "a lifetime of no kind");
    }
}
