//! What users and hosts of parts say to each other by calls. What is read here came over a network: nothing in it is believed before it was checked.
//!
//! ```text
//!   request: kind u8 | 0 u8 | count u16 | 0 u32, then by kind
//!     1 hello      JSON
//!     2 accesses   items: op u8 | 0 u8 | 0 u16 | len u32 | address u64 | value u64 | new u64, then of a write its bytes, filled up to 8
//!                  answers: status u8 | 0 u8 | 0 u16 | len u32 | value u64, then of a read its bytes or of an error its JSON, filled up to 8
//!     3 alloc      session u64 | len u64 | lifetime u64;  answer: address u64
//!     4 fetch      extent u64 | freeze u64 | from u64 | len u64;  answer: those bytes of its image: map, then objects
//!     5 order      JSON; answer: JSON
//!     6 root       nothing, or the address that it shall be; answer: address u64
//!     7 sequence   accesses, one after the other: the first that is not done ends it, and the answer has it last
//! ```
//!
//! Little-endian.

use super::super::GlobalAddress;
use super::super::act::{Act, Outcome};
use super::super::keeper::{Lifetime, SessionId};
use crate::wire::Failure;
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

const DONE: u8 = 0;
const FAILED: u8 = 1;
const FROZEN: u8 = 2;
const AWAY: u8 = 3;
const NOT_HERE: u8 = 4;

/// Who asks, and which part: a connection is about one.
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

fn head(kind: u8, count: usize) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&(count as u16).to_le_bytes());
    bytes
}

pub fn hello(hello: &Hello) -> Result<Vec<u8>> {
    json(HELLO, hello)
}

/// A request, or an answer (kind 0), of JSON.
pub fn json(kind: u8, value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = head(kind, 0);
    serde_json::to_writer(&mut bytes, value).map_err(|error| Error::Invalid(format!("a message: {error}")))?;
    Ok(bytes)
}

/// Kind, count, and the rest of a request.
pub fn split(request: &[u8]) -> Result<(u8, usize, &[u8])> {
    match request.split_first_chunk::<HEAD>() {
        Some(([kind, 0, low, high, 0, 0, 0, 0], rest)) => {
            Ok((*kind, usize::from(u16::from_le_bytes([*low, *high])), rest))
        }
        _ => Err(Error::corrupt("the head of a request")),
    }
}

pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::corrupt(format!("a message: {error}")))
}

/// The JSON of an answer.
pub fn answered<T: DeserializeOwned>(answer: &[u8]) -> Result<T> {
    from_json(split(answer)?.2)
}

fn fill(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
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
    pub fn of(address: GlobalAddress, act: &'a Act<'_>) -> Self {
        let item = |op, value, new| Self {
            op,
            len: act.len() as u32,
            address,
            value,
            new,
            bytes: &[],
        };
        match act {
            Act::Read(_) => item(READ, 0, 0),
            Act::Write(from) => Self {
                bytes: from,
                ..item(WRITE, 0, 0)
            },
            Act::Load => item(LOAD, 0, 0),
            Act::Store(value) => item(STORE, *value, 0),
            Act::Swap { expected, new } => item(SWAP, *expected, *new),
            Act::Add(n) => item(ADD, *n, 0),
            Act::Size => item(SIZE, 0, 0),
            Act::Free => item(FREE, 0, 0),
            Act::Expect(value) => item(EXPECT, *value, 0),
            Act::Around { page, .. } => item(AROUND, *page, 0),
        }
    }
}

/// Bytes that an access takes in a request and in its answer, at most.
fn cost(act: &Act<'_>) -> (usize, usize) {
    let bytes = (act.len() as usize).next_multiple_of(8);
    match act {
        Act::Read(_) => (ITEM, ANSWER + bytes.max(ERROR_MAX)),
        Act::Write(_) => (ITEM + bytes, ANSWER + ERROR_MAX),
        Act::Around { len, page, .. } => {
            let pages = around_max(*len as usize, *page as usize);
            (ITEM, ANSWER + pages.max(ERROR_MAX))
        }
        _ => (ITEM, ANSWER + ERROR_MAX),
    }
}

/// The largest page that may be asked for.
pub const PAGE_MAX: usize = 16 << 10;

/// The most bytes of whole pages that `len` bytes can lie in.
fn around_max(len: usize, page: usize) -> usize {
    len.saturating_add(2 * page).next_multiple_of(8)
}

/// The most bytes of one read or write.
pub const TRANSFER_MAX: usize = (LIMIT - HEAD - ITEM) / 8 * 8;

/// How many of them go into each message. One that is too long for any is alone, and refused there.
pub fn groups(acts: &[(GlobalAddress, Act<'_>)]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sizes = (0, 0);
    for (n, (_, act)) in acts.iter().enumerate() {
        let cost = cost(act);
        sizes = (sizes.0 + cost.0, sizes.1 + cost.1);
        let limit = LIMIT - HEAD;
        match groups.last_mut() {
            Some(group) if sizes.0 <= limit && sizes.1 <= limit && group.len() < ITEMS_MAX => group.end = n + 1,
            _ => {
                groups.push(n..n + 1);
                sizes = cost;
            }
        }
    }
    groups
}

/// A request of [`ACCESSES`] or [`SEQUENCE`].
pub fn accesses(kind: u8, items: &[Item<'_>]) -> Vec<u8> {
    let mut bytes = head(kind, items.len());
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

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word) as usize)
}

/// Carries out the accesses of a request, in order, and writes their answers. Of a sequence those after the first that is not done are not begun.
pub fn carry_out(
    (kind, count): (u8, usize),
    mut items: &[u8],
    answer: &mut Vec<u8>,
    mut each: impl FnMut(GlobalAddress, &mut Act<'_>) -> Result<Outcome>,
) -> Result<()> {
    *answer = head(0, count);
    let mut room = Vec::new();
    for n in 1..=count {
        let outcome = carry_out_next(&mut items, answer.len(), &mut room, &mut each)?;
        let is_done = matches!(outcome, Ok(Outcome::Done(..)));
        reply(answer, outcome, &room);
        if kind == SEQUENCE && !is_done {
            answer[2..4].copy_from_slice(&(n as u16).to_le_bytes());
            return Ok(());
        }
    }
    match items {
        [] => Ok(()),
        _ => Err(Error::corrupt("a message that goes on")),
    }
}

/// One access; what it reads is in `room` then.
fn carry_out_next(
    items: &mut &[u8],
    answered: usize,
    room: &mut Vec<u8>,
    each: &mut impl FnMut(GlobalAddress, &mut Act<'_>) -> Result<Outcome>,
) -> Result<Result<Outcome>> {
    let item = take(items, ITEM)?;
    let (op, len, address) = (item[0], half(item, 4), GlobalAddress::from_raw(word(item, 8)));
    let (value, new) = (word(item, 16), word(item, 24));
    let payload = match op {
        WRITE => take(items, len.next_multiple_of(8))?,
        _ => &[],
    };
    let reads = match op {
        READ => len,
        AROUND => around_max(len, page_of(value)? as usize),
        _ => 0,
    };
    if answered + ANSWER + reads > LIMIT {
        return Err(Error::Invalid(format!("reads of more than {LIMIT} bytes at a time")));
    }
    room.clear();
    room.resize(if op == READ { len } else { 0 }, 0);
    let mut act = match op {
        READ => Act::Read(room),
        WRITE => Act::Write(&payload[..len]),
        LOAD => Act::Load,
        STORE => Act::Store(value),
        SWAP => Act::Swap { expected: value, new },
        ADD => Act::Add(value),
        SIZE => Act::Size,
        FREE => Act::Free,
        EXPECT => Act::Expect(value),
        AROUND => Act::Around {
            len: len as u64,
            page: value,
            into: room,
        },
        _ => return Err(Error::corrupt("an access of no kind")),
    };
    Ok(act.check(address).and_then(|()| each(address, &mut act)))
}

fn page_of(value: u64) -> Result<u64> {
    match value.is_power_of_two() && (64..=PAGE_MAX as u64).contains(&value) {
        true => Ok(value),
        false => Err(Error::corrupt("the size of a page")),
    }
}

fn reply(answer: &mut Vec<u8>, outcome: Result<Outcome>, read: &[u8]) {
    let mut put = |status: u8, value: u64, bytes: &[u8]| {
        answer.extend_from_slice(&[status, 0, 0, 0]);
        answer.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        answer.extend_from_slice(&value.to_le_bytes());
        answer.extend_from_slice(bytes);
        fill(answer);
    };
    match outcome {
        Ok(Outcome::Done(value, _)) => put(DONE, value, read),
        Ok(Outcome::Frozen) => put(FROZEN, 0, &[]),
        Ok(Outcome::Away(part)) => put(AWAY, part.into(), &[]),
        Ok(Outcome::NotHere | Outcome::Run) => put(NOT_HERE, 0, &[]),
        Err(error) => put(FAILED, 0, &Failure::from(error).within(ERROR_MAX)),
    }
}

/// The answers to a request's accesses.
pub struct Answers<'a>(&'a [u8]);

impl<'a> Answers<'a> {
    pub fn new(answer: &'a [u8], count: usize) -> Result<Self> {
        match split(answer)? {
            (0, n, rest) if n == count => Ok(Self(rest)),
            _ => Err(Error::corrupt("an answer to something else")),
        }
    }

    /// Those of a sequence of `count`, and how many there are: all, or up to the first that was not done.
    pub fn of_sequence(answer: &'a [u8], count: usize) -> Result<(usize, Self)> {
        match split(answer)? {
            (0, n, rest) if (1..=count).contains(&n) => Ok((n, Self(rest))),
            _ => Err(Error::corrupt("an answer to something else")),
        }
    }

    /// The next one, which is this one's.
    pub fn next(&mut self, act: &mut Act<'_>) -> Result<Outcome> {
        let answer = take(&mut self.0, ANSWER)?;
        let (status, len, value) = (answer[0], half(answer, 4), word(answer, 8));
        let bytes = &take(&mut self.0, len.next_multiple_of(8))?[..len];
        match (status, act) {
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
pub fn read_alloc(rest: &[u8]) -> Result<(SessionId, u64, Lifetime)> {
    match rest.len() {
        24 => {
            let lifetime = if word(rest, 16) == 0 {
                Lifetime::Space
            } else {
                Lifetime::Session
            };
            Ok((SessionId(word(rest, 0)), word(rest, 8), lifetime))
        }
        _ => Err(Error::corrupt("a request to allocate")),
    }
}

pub fn root(set: Option<GlobalAddress>) -> Vec<u8> {
    let mut bytes = head(ROOT, 0);
    bytes.extend(set.iter().flat_map(|address| address.raw().to_le_bytes()));
    bytes
}

/// What the root shall be.
pub fn read_root(rest: &[u8]) -> Result<Option<GlobalAddress>> {
    match rest.len() {
        0 => Ok(None),
        _ => read_address(rest).map(Some),
    }
}

/// A message that is an address.
pub fn read_address(bytes: &[u8]) -> Result<GlobalAddress> {
    let raw = <[u8; 8]>::try_from(bytes).map_err(|_| Error::corrupt("an address of another length"))?;
    Ok(GlobalAddress::from_raw(u64::from_le_bytes(raw)))
}

/// Bytes of a frozen extent's image that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    pub extent: GlobalAddress,
    /// The freezing that it is about: of another one nothing is given.
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

pub fn read_fetch(rest: &[u8]) -> Result<Fetch> {
    match rest.len() {
        32 => Ok(Fetch {
            extent: GlobalAddress::from_raw(word(rest, 0)),
            freeze: word(rest, 8),
            from: word(rest, 16),
            len: word(rest, 24),
        }),
        _ => Err(Error::corrupt("a request to fetch")),
    }
}
