//! Messages between a user and a memory node. What is read here came over a network: nothing in it is believed before
//! it was checked, and what does not fit is no message.
//!
//! ```text
//!   user                                node
//!   Hello (own address)  ─────────────►             once a connection; its id is an answer's id
//!              ◄───────────── Welcome (session)     every further message of the user carries the session
//!   Works  (id, items)   ─────────────►             done in order by the node's progress thread
//!              ◄───────────── Results (id, answers)
//!   Calls  (parts)       ─────────────►             parts of requests of any number of calls
//!              ◄───────────── Answers (parts)       parts of answers in any order, and of what goes into lent memory
//!   Ping ────────►   ◄──────── Pong                 a sign of life; the node asks sessions that have called, too
//!   Bye  ────────►                                  the session ends
//!
//!   head, 24 B: 0 magic u16   2 version u8   3 kind u8   4 count u16   6 bytes u16   8 session u64   16 id u64
//!   item, 40 B: 0 op u8   1 fenced u8   2 0 u16   4 len u32   8 key u64   16 at u64   24 operand u64   32 new u64
//!               then, of a write, its bytes, filled up to 8
//!   answer, 16 B: 0 status u32   4 len u32   8 value u64;   then, of a read, its bytes, filled up to 8
//!   part, 24 B: 0 call u64   8 total u32   12 from u32   16 len u32   20 status u32 (of an answer: see calls.rs; of a
//!               request: bytes of memory that it lends)
//!               of a request's first part, if the status says so: 24 address u64   32 key u64: a window, through which
//!               the node writes to that memory by itself
//!               then its bytes, filled up to 8; `from` is a multiple of PART, and only the last part is shorter
//! ```
//!
//! Little-endian; everything begins at a multiple of 8. A head and an item are 64 bytes: what providers send without
//! having to say afterwards that it has gone.

use super::fabric_endpoint::SLOT;
use cenote_fabric::rdma::call::LIMIT;

const MAGIC: u16 = 0x4e43;
const VERSION: u8 = 4;

/// Bytes of a head, an item, an answer.
pub const HEAD: usize = 24;
pub const ITEM: usize = 40;
pub const ANSWER: usize = 16;

/// Bytes that one item can move: with head and item it fills a slot. A multiple of 8.
pub const LARGEST: usize = SLOT - HEAD - ITEM;

/// Bytes of a part's head, and of a call that one part can hold: it fills a slot. A multiple of 8.
pub const PART_HEAD: usize = 24;
pub const PART: usize = SLOT - HEAD - PART_HEAD - WINDOW;
/// Bytes of a window.
const WINDOW: usize = 16;
/// In the status of a request's part: it has a window.
const HAS_WINDOW: u32 = 1 << 29;

const _: () = assert!(PART.is_multiple_of(8) && PART_HEAD.is_multiple_of(8) && WINDOW.is_multiple_of(8));
const _: () = assert!(LIMIT < HAS_WINDOW as usize);
const _: () = assert!(LARGEST.is_multiple_of(8) && SLOT <= u16::MAX as usize);
const _: () = {
    assert!(
        HEAD + ITEM + LARGEST <= SLOT,
        "one item fits into a slot with its bytes"
    );
    assert!(
        HEAD + PART_HEAD + WINDOW + PART <= SLOT,
        "one part fits into a slot with its window"
    );
};

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    Works = 3,
    Results = 4,
    Ping = 5,
    Pong = 6,
    Bye = 7,
    Calls = 8,
    Answers = 9,
}

/// What an item asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Ask {
    Read = 1,
    Write = 2,
    CompareAndSwap = 3,
    FetchAdd = 4,
    /// How the provider is told of the registration: three words, address, key, length.
    Resolve = 5,
    /// Whether the range can be reached.
    Check = 6,
}

/// How an item went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    Done = 0,
    /// No registration has that key.
    Revoked = 1,
    /// The value is the registration's length.
    OutOfBounds = 2,
    /// It makes no sense.
    Invalid = 3,
    /// Fenced after an item that failed: not done.
    Skipped = 4,
}

/// The beginning of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub kind: Kind,
    pub count: u32,
    pub session: u64,
    pub id: u64,
}

/// One item of [`Kind::Works`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    pub ask: Ask,
    pub fenced: bool,
    pub len: u32,
    pub key: u64,
    pub at: u64,
    /// What is added, or expected.
    pub operand: u64,
    /// What takes the expected word's place.
    pub new: u64,
    /// Of a write its bytes.
    pub payload: &'a [u8],
}

/// One answer of [`Kind::Results`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    pub status: Status,
    pub value: u64,
    /// Of a read its bytes.
    pub payload: &'a [u8],
}

/// One part of [`Kind::Calls`] or [`Kind::Answers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The call, as its caller knows it.
    pub call: u64,
    /// Bytes of all parts.
    pub total: u32,
    /// Where in them this one begins.
    pub from: u32,
    /// Of an answer: 0, or the number of an error whose text this is, and marks. Of a request: bytes of memory that it
    /// lends.
    pub status: u32,
    /// Of a request's first part: where the node can write to what it lends.
    pub window: Option<Window>,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Where memory that a call lends can be written to, as the provider counts. The caller's card checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub address: u64,
    pub key: u64,
}

/// A part but for its bytes, as [`Part`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartHead {
    pub call: u64,
    pub total: u32,
    pub from: u32,
    pub len: u32,
    pub status: u32,
    pub window: Option<Window>,
}

impl PartHead {
    /// What the part takes in a message.
    pub fn size(&self) -> usize {
        let window = self.window.map_or(0, |_| WINDOW);
        PART_HEAD + window + filled(self.len as usize)
    }
}

impl Part<'_> {
    fn head(&self) -> PartHead {
        PartHead {
            call: self.call,
            total: self.total,
            from: self.from,
            len: self.payload.len() as u32,
            status: self.status,
            window: self.window,
        }
    }

    /// Whether it is all there is.
    pub fn is_all(&self) -> bool {
        self.payload.len() == self.total as usize
    }

    /// What it takes in a message.
    pub fn size(&self) -> usize {
        self.head().size()
    }
}

/// `len` filled up to a multiple of 8.
pub fn filled(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Writes a message into a slot.
pub struct Writer<'a> {
    into: &'a mut [u8],
    at: usize,
    count: u32,
}

impl<'a> Writer<'a> {
    /// Room for the head is left.
    pub fn new(into: &'a mut [u8]) -> Self {
        Self {
            into,
            at: HEAD,
            count: 0,
        }
    }

    /// Bytes that are left.
    pub fn room(&self) -> usize {
        self.into.len() - self.at
    }

    fn put(&mut self, bytes: &[u8]) {
        self.into[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn fill(&mut self) {
        let end = filled(self.at);
        self.into[self.at..end].fill(0);
        self.at = end;
    }

    /// An item.
    pub fn item(&mut self, item: &Item<'_>) {
        self.put(&[item.ask as u8, u8::from(item.fenced), 0, 0]);
        self.put(&item.len.to_le_bytes());
        for word in [item.key, item.at, item.operand, item.new] {
            self.put(&word.to_le_bytes());
        }
        self.put(item.payload);
        self.fill();
        self.count += 1;
    }

    /// An answer whose `len` bytes `write` writes.
    pub fn answer(&mut self, status: Status, value: u64, len: usize, write: impl FnOnce(&mut [u8])) {
        self.put(&(status as u32).to_le_bytes());
        self.put(&(len as u32).to_le_bytes());
        self.put(&value.to_le_bytes());
        write(&mut self.into[self.at..self.at + len]);
        self.at += len;
        self.fill();
        self.count += 1;
    }

    /// A part.
    pub fn part(&mut self, part: &Part<'_>) {
        self.part_from(&part.head(), |into| into.copy_from_slice(part.payload));
    }

    /// A part whose bytes `write` writes.
    pub fn part_from(&mut self, head: &PartHead, write: impl FnOnce(&mut [u8])) {
        self.put(&head.call.to_le_bytes());
        let status = head.status | head.window.map_or(0, |_| HAS_WINDOW);
        for number in [head.total, head.from, head.len, status] {
            self.put(&number.to_le_bytes());
        }
        if let Some(Window { address, key }) = head.window {
            [address, key].iter().for_each(|word| self.put(&word.to_le_bytes()));
        }
        let end = self.at + head.len as usize;
        write(&mut self.into[self.at..end]);
        self.at = end;
        self.fill();
        self.count += 1;
    }

    /// Bytes as they are.
    pub fn blob(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.count = bytes.len() as u32;
    }

    /// Writes the head; the message's length.
    pub fn finish(self, kind: Kind, session: u64, id: u64) -> usize {
        let head = &mut self.into[..HEAD];
        head[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        head[2..4].copy_from_slice(&[VERSION, kind as u8]);
        head[4..6].copy_from_slice(&(self.count as u16).to_le_bytes());
        head[6..8].copy_from_slice(&(self.at as u16).to_le_bytes());
        head[8..16].copy_from_slice(&session.to_le_bytes());
        head[16..24].copy_from_slice(&id.to_le_bytes());
        self.at
    }
}

/// Reads a message.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The head, and what follows; `None`: no message of ours.
    pub fn new(message: &'a [u8]) -> Option<(Head, Self)> {
        let mut reader = Self { rest: message };
        let head = Self {
            rest: reader.take(HEAD)?,
        };
        let mut h = head;
        let (magic, marks) = (h.u16()?, h.take(2)?);
        if magic != MAGIC || marks[0] != VERSION {
            return None;
        }
        let kind = kind(marks[1])?;
        let (count, len) = (u32::from(h.u16()?), h.u16()?);
        let (session, id) = (h.u64()?, h.u64()?);
        let head = Head {
            kind,
            count,
            session,
            id,
        };
        (usize::from(len) == message.len()).then_some((head, reader))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// `len` bytes and what fills them up.
    fn payload(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.take(filled(len))?;
        taken.get(..len)
    }

    /// The next item.
    pub fn item(&mut self) -> Option<Item<'a>> {
        let start = self.take(4)?;
        let ask = ask(start[0])?;
        let (len, key, at) = (self.u32()?, self.u64()?, self.u64()?);
        let (operand, new) = (self.u64()?, self.u64()?);
        let payload = match ask {
            Ask::Write => self.payload(len as usize)?,
            _ => &[],
        };
        let fits = match ask {
            Ask::CompareAndSwap | Ask::FetchAdd => len == 8,
            Ask::Resolve => len == 0,
            Ask::Read | Ask::Write => (1..=LARGEST as u32).contains(&len),
            Ask::Check => true,
        };
        let fenced = start[1] == 1;
        fits.then_some(Item {
            ask,
            fenced,
            len,
            key,
            at,
            operand,
            new,
            payload,
        })
    }

    /// The next answer.
    pub fn answer(&mut self) -> Option<Answer<'a>> {
        let status = status(self.u32()?)?;
        let (len, value) = (self.u32()? as usize, self.u64()?);
        let payload = self.payload(len)?;
        Some(Answer { status, value, payload })
    }

    /// The next part: inside of what it says it is a part of, at a place where parts begin, and as long as one.
    pub fn part(&mut self) -> Option<Part<'a>> {
        let (call, total, from) = (self.u64()?, self.u32()?, self.u32()?);
        let (len, status) = (self.u32()?, self.u32()?);
        let places = (from as usize).is_multiple_of(PART) && (from < total || from == 0) && total as usize <= LIMIT;
        let fits = places && len as usize == (total as usize - from as usize).min(PART);
        let window = match status & HAS_WINDOW {
            0 => None,
            _ => Some(self.window()?),
        };
        let payload = fits.then(|| self.payload(len as usize)).flatten()?;
        Some(Part {
            call,
            total,
            from,
            status: status & !HAS_WINDOW,
            window,
            payload,
        })
    }

    fn window(&mut self) -> Option<Window> {
        let (address, key) = (self.u64()?, self.u64()?);
        Some(Window { address, key })
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// What an answer to an item takes.
pub fn answer_size(ask: Ask, len: u32) -> usize {
    let payload = match ask {
        Ask::Read => filled(len as usize),
        Ask::Resolve => 24,
        _ => 0,
    };
    ANSWER + payload
}

fn kind(number: u8) -> Option<Kind> {
    use Kind::*;
    [Hello, Welcome, Works, Results, Ping, Pong, Bye, Calls, Answers]
        .into_iter()
        .find(|k| *k as u8 == number)
}

fn ask(number: u8) -> Option<Ask> {
    use Ask::*;
    [Read, Write, CompareAndSwap, FetchAdd, Resolve, Check]
        .into_iter()
        .find(|a| *a as u8 == number)
}

fn status(number: u32) -> Option<Status> {
    use Status::*;
    [Done, Revoked, OutOfBounds, Invalid, Skipped]
        .into_iter()
        .find(|s| *s as u32 == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::random::Random;

    fn message(into: &mut [u8]) -> usize {
        let mut writer = Writer::new(into);
        let item = |ask, len, payload| Item {
            ask,
            fenced: ask == Ask::Read,
            len,
            key: 7,
            at: 8,
            operand: 9,
            new: 10,
            payload,
        };
        writer.item(&item(Ask::Write, 3, b"abc"));
        writer.item(&item(Ask::CompareAndSwap, 8, &[]));
        writer.item(&item(Ask::Read, 100, &[]));
        writer.finish(Kind::Works, 5, 6)
    }

    /// All items, or none if one does not fit.
    fn items(bytes: &[u8]) -> Option<Vec<Item<'_>>> {
        let (head, mut reader) = Reader::new(bytes)?;
        (0..head.count).map(|_| reader.item()).collect()
    }

    #[test]
    fn what_was_written_is_read() {
        let mut slot = vec![0xff; SLOT];
        let len = message(&mut slot);
        let (head, _) = Reader::new(&slot[..len]).expect("a message");
        assert_eq!((head.kind, head.count, head.session, head.id), (Kind::Works, 3, 5, 6));
        let items = items(&slot[..len]).expect("items");
        assert_eq!((items[0].payload, items[1].new, items[2].len), (&b"abc"[..], 10, 100));
        assert!(items[2].fenced && !items[1].fenced);
    }

    #[test]
    fn garbage_is_no_message() {
        let mut slot = vec![0; SLOT];
        let len = message(&mut slot);
        for end in 0..len {
            assert!(Reader::new(&slot[..end]).is_none(), "cut at {end}");
        }
        for at in 0..len {
            for bit in 0..8 {
                let mut torn = slot[..len].to_vec();
                torn[at] ^= 1 << bit;
                if let Some(items) = items(&torn) {
                    assert!(items.iter().all(|i| i.payload.len() <= SLOT));
                }
            }
        }
        let mut random = Random(1);
        for _ in 0..10_000 {
            let mut bytes = slot[..len].to_vec();
            bytes[random.index(len)] = random.word() as u8;
            let _ = items(&bytes);
        }
    }

    #[test]
    fn a_count_that_lies_ends_the_message() {
        let mut slot = vec![0; SLOT];
        let len = message(&mut slot);
        slot[4..6].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(items(&slot[..len]).is_none());
    }

    fn calls(into: &mut [u8]) -> usize {
        let mut writer = Writer::new(into);
        for (call, payload) in [(1, &b"abc"[..]), (2, b""), (3, &[7; 100])] {
            let part = Part {
                call,
                total: payload.len() as u32,
                from: 0,
                status: 0,
                window: (call == 2).then_some(Window { address: 5, key: 6 }),
                payload,
            };
            assert!(part.size() <= writer.room());
            writer.part(&part);
        }
        writer.finish(Kind::Calls, 5, 0)
    }

    /// All parts, or none if one does not fit.
    fn parts(bytes: &[u8]) -> Option<Vec<Part<'_>>> {
        let (head, mut reader) = Reader::new(bytes)?;
        (0..head.count).map(|_| reader.part()).collect()
    }

    #[test]
    fn parts_are_read_as_written_and_garbage_is_none() {
        let mut slot = vec![0xff; SLOT];
        let len = calls(&mut slot);
        let read = parts(&slot[..len]).expect("parts");
        assert_eq!((read[0].payload, read[1].total, read[2].call), (&b"abc"[..], 0, 3));
        assert_eq!(
            read.iter().map(|part| part.window).collect::<Vec<_>>(),
            [None, Some(Window { address: 5, key: 6 }), None]
        );
        assert!(read.iter().all(|part| part.is_all() && part.status == 0));
        for end in 0..len {
            assert!(parts(&slot[..end]).is_none(), "cut at {end}");
        }
        for bit in 0..len * 8 {
            let mut torn = slot[..len].to_vec();
            torn[bit / 8] ^= 1 << (bit % 8);
            for part in parts(&torn).into_iter().flatten() {
                assert!(part.from as usize + part.payload.len() <= part.total as usize);
                assert!(part.total as usize <= LIMIT && part.payload.len() <= PART);
            }
        }
    }

    #[test]
    fn the_longest_part_fills_a_slot() {
        let (mut slot, bytes) = (vec![0; SLOT], vec![1; LIMIT]);
        let part = Part {
            call: 1,
            total: LIMIT as u32,
            from: PART as u32,
            status: 7,
            window: Some(Window { address: 1, key: 2 }),
            payload: &bytes[..PART],
        };
        let mut writer = Writer::new(&mut slot);
        writer.part(&part);
        assert_eq!(writer.room(), 0);
        assert_eq!(writer.finish(Kind::Calls, 1, 0), SLOT);
        assert_eq!(parts(&slot).expect("parts"), [part]);
        for (at, value) in [(12, 8u32), (16, 8), (8, LIMIT as u32 + 1), (8, PART as u32)] {
            let mut wrong = slot.clone();
            wrong[HEAD + at..HEAD + at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(parts(&wrong).is_none(), "{value} at {at}");
        }
    }
}
