//! The Raft log of a node, in files: entries, votes and how far is committed, in the order in which they came.
//!
//! ```text
//! raft/NNNNNNNNNNNNNNNN.log    segment N: the bytes N x SEGMENT on of one endless stream of frames
//! frame   0 u32 magic   4 u32 crc32c of all behind it, payload included   8 u32 length of the payload  12 u8 kind
//!        16 u64 position of this byte 0 in the stream   24 u64 position up to which the stream was synced
//!        32 payload, padded with zeros to a multiple of 8
//! kinds   entry: u64 index, u64 term, u8 type, context, data     vote: u64 term, u64 vote, u64 commit
//!         begin: u64 index, u64 term, and a vote: the last entry before this segment
//!         skip: the next frame begins the next segment
//!         anew: as begin, anywhere: the entries before it count no more, the log goes on behind that one
//! ```
//!
//! Frames are put into memory first, and written and synced by a thread that holds no lock ([`unsynced`]): a reader of
//! what is in memory does not wait for the drive. An entry stays in memory until it is in its file.
//!
//! An entry replaces those of its index and behind, as Raft has it. Segments are made ahead with their space taken and
//! zeros written, so that a sync has data to write and nothing else; those whose entries are not needed become new ones:
//! no frame of before fits its position there.
//!
//! A start reads all frames. Where a frame does not fit lies the end, unless a later frame says that the log was synced
//! beyond: then bytes that this node has promised to keep are damaged, and the node does not start.
//!
//! Invariants:
//! - entries from `first` to `last` are there, without a gap; before them lies `base`;
//! - what [`Unsynced::sync`] returned from survives; nothing that was not synced is promised to another node;
//! - an error of a write or sync is never retried: the node ends.

mod segments;
mod unsynced;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use cenote_base::bytes::get_le;
use cenote_base::crc::crc32c;
use cenote_base::error::IoContext;
use cenote_base::rt::fs::{self, File, OpenOptions};
use cenote_base::{Error, Result};
use raft::eraftpb::{Entry, EntryType, HardState};

use self::segments::{ZEROS, path_of};
use self::unsynced::Changes;
use crate::codec::{Reader, Writer};

pub(crate) use self::segments::{Retired, SpareWanted};
pub(crate) use self::unsynced::Unsynced;

const MAGIC: u32 = u32::from_le_bytes(*b"CRf1");
const HEADER: usize = 32;
const ENTRY: u8 = 1;
const VOTE: u8 = 2;
const BEGIN: u8 = 3;
const SKIP: u8 = 4;
const ANEW: u8 = 5;
/// Bytes of a segment, unless a test wants smaller ones.
pub(crate) const SEGMENT: u64 = 32 << 20;
/// Bytes of entries that are kept in memory, the newest.
const CACHE: usize = 32 << 20;
/// Segments that are kept to become new ones.
const SPARES: usize = 4;
/// Bytes of a payload at most.
const PAYLOAD_MAX: usize = 4 << 20;
/// Bytes of the frame that a segment begins with: a base, and a vote.
const BEGIN_LENGTH: u64 = (HEADER + 5 * 8) as u64;
const _: () = assert!(
    SEGMENT >= (PAYLOAD_MAX + HEADER + 8) as u64 + BEGIN_LENGTH,
    "a segment has room for any frame"
);

/// An entry: where it lies, and its bytes while they are kept.
#[derive(Debug)]
struct Slot {
    term: u64,
    at: u64,
    /// Of its payload.
    length: usize,
    kept: Option<Box<Entry>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RaftLog {
    dir: PathBuf,
    segment: u64,
    files: BTreeMap<u64, File>,
    /// Behind the last frame.
    tail: u64,
    synced: u64,
    /// What lies behind `synced` and is not being written.
    changes: Changes,
    /// Entries before this are in files.
    written: u64,
    hard: HardState,
    /// Index and term of the entry before `slots`.
    base: (u64, u64),
    slots: VecDeque<Slot>,
    /// Bytes that `slots` keep, and the index from which on they do.
    kept: usize,
    kept_from: u64,
    /// Segments to become new ones, and the number of the next.
    spares: Vec<PathBuf>,
    next_spare: u64,
}

impl RaftLog {
    /// Opens the log in `dir`, or makes an empty one. It has every entry behind `state` (index, term), which is the
    /// last that the node's state has; earlier ones may be gone. `anew`: the state was given to the node, and the log
    /// goes on behind it, whatever it has.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if bytes that were synced are damaged; an I/O error.
    pub fn open(dir: &Path, segment: u64, state: (u64, u64), anew: bool) -> Result<RaftLog> {
        fs::create_dir_all(dir).doing(|| format!("making {}", dir.display()))?;
        let mut log = RaftLog {
            dir: dir.to_owned(),
            segment,
            files: BTreeMap::new(),
            tail: 0,
            synced: 0,
            changes: Changes::default(),
            written: 0,
            hard: HardState::default(),
            base: state,
            slots: VecDeque::new(),
            kept: 0,
            kept_from: state.0 + 1,
            spares: Vec::new(),
            next_spare: 0,
        };
        for name in fs::list(dir).doing(|| format!("listing {}", dir.display()))? {
            match (number_of(&name), spare_of(&name)) {
                (Some(number), _) => drop(log.files.insert(number, log.open_file(number)?)),
                (None, Some(number)) => {
                    log.spares.push(dir.join(&name));
                    log.next_spare = log.next_spare.max(number + 1);
                }
                // A segment that was being made.
                (None, None) if name == "new" || name.ends_with(".making") => {
                    fs::remove(dir.join(&name)).doing(|| format!("removing {name} in {}", dir.display()))?
                }
                // It is not the log's.
                (None, None) => {}
            }
        }
        log.recover(state, anew)?;
        if anew {
            // Whether it was said before or not: nothing lies behind the state while the node has not begun.
            let mut hard = log.hard.clone();
            if state.1 > hard.term {
                (hard.term, hard.vote) = (state.1, 0);
            }
            log.begin_anew(state, &hard)?;
        }
        Ok(log)
    }

    pub fn hard_state(&self) -> &HardState {
        &self.hard
    }

    pub fn first_index(&self) -> u64 {
        self.base.0 + 1
    }

    pub fn last_index(&self) -> u64 {
        self.base.0 + self.slots.len() as u64
    }

    /// The term of an entry, or of the one before the first.
    pub fn term(&self, index: u64) -> Option<u64> {
        match index.checked_sub(self.base.0)? {
            0 => Some(self.base.1),
            n => self.slots.get(n as usize - 1).map(|slot| slot.term),
        }
    }

    /// Bytes of what a node lacks that has entries up to `index`.
    pub fn bytes_behind(&self, index: u64) -> u64 {
        let next = (index + 1).saturating_sub(self.first_index());
        self.slots.get(next as usize).map_or(0, |slot| self.tail - slot.at)
    }

    /// Bytes from the oldest segment to the end.
    pub fn bytes(&self) -> u64 {
        let first = self
            .files
            .keys()
            .next()
            .map_or(self.tail, |number| number * self.segment);
        self.tail - first.min(self.tail)
    }

    /// Entries from `low` up to `high`, as many as `max` bytes have room for, one at least.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if one is damaged, or not there.
    pub fn entries(&self, low: u64, high: u64, max: u64) -> Result<Vec<Entry>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for index in low..high {
            let slot = index
                .checked_sub(self.first_index())
                .and_then(|n| self.slots.get(n as usize));
            let slot = slot.ok_or_else(|| Error::corrupt(format!("there is no entry {index} in the Raft log")))?;
            bytes += slot.length as u64;
            if bytes > max && !found.is_empty() {
                break;
            }
            found.push(match &slot.kept {
                Some(entry) => Entry::clone(entry),
                None => self.read_entry(index, slot)?,
            });
        }
        Ok(found)
    }

    fn read_entry(&self, index: u64, slot: &Slot) -> Result<Entry> {
        let mut bytes = vec![0; HEADER + slot.length];
        self.read(slot.at, &mut bytes)?;
        let frame = Frame::parse(&bytes, slot.at).filter(|frame| frame.kind == ENTRY);
        let entry = frame.map(|frame| decode_entry(frame.payload)).transpose()?;
        entry
            .filter(|entry| entry.index == index && entry.term == slot.term)
            .ok_or_else(|| self.lost(&format!("entry {index} is damaged")))
    }

    // ---- writing ----

    /// Appends entries, which follow the last one or replace some.
    ///
    /// # Errors
    /// An I/O error, after which the log is not to be used.
    pub fn append(&mut self, entries: Vec<Entry>) -> Result<()> {
        for entry in entries {
            let next = entry.index.checked_sub(self.first_index());
            let place = next.filter(|n| *n <= self.slots.len() as u64).ok_or_else(|| {
                Error::corrupt(format!(
                    "entry {} does not follow the Raft log's {}",
                    entry.index,
                    self.last_index()
                ))
            })?;
            self.cut(place as usize);
            let payload = encode_entry(&entry);
            let at = self.put(ENTRY, &payload)?;
            self.keep(Slot {
                term: entry.term,
                at,
                length: payload.len(),
                kept: Some(Box::new(entry)),
            });
        }
        Ok(())
    }

    /// Forgets all entries: the log goes on behind `entry` (index, term), which is committed. Durable when this
    /// returns.
    ///
    /// # Errors
    /// As of [`RaftLog::append`].
    pub fn begin_anew(&mut self, entry: (u64, u64), hard: &HardState) -> Result<()> {
        let hard = HardState {
            commit: entry.0,
            ..hard.clone()
        };
        self.put(ANEW, &encode_base(entry, &hard))?;
        self.adopt_base(entry, hard);
        let mut unsynced = self.unsynced();
        unsynced.sync()?;
        self.note_synced(unsynced);
        Ok(())
    }

    fn adopt_base(&mut self, entry: (u64, u64), hard: HardState) {
        self.cut(0);
        (self.base, self.kept_from, self.hard) = (entry, entry.0 + 1, hard);
    }

    /// Forgets the entries from place `n` on.
    fn cut(&mut self, n: usize) {
        for slot in self.slots.drain(n..) {
            if slot.kept.is_some() {
                self.kept -= slot.length;
            }
        }
        self.kept_from = self.kept_from.min(self.last_index() + 1);
    }

    fn keep(&mut self, slot: Slot) {
        self.kept += slot.length;
        self.slots.push_back(slot);
        while self.kept > CACHE && self.kept_from < self.last_index() {
            let n = self.kept_from.saturating_sub(self.first_index()) as usize;
            if self.slots[n].at >= self.written {
                break;
            }
            if self.slots[n].kept.take().is_some() {
                self.kept -= self.slots[n].length;
            }
            self.kept_from += 1;
        }
    }

    /// Notes a vote, or how far is committed.
    ///
    /// # Errors
    /// As of [`RaftLog::append`].
    pub fn set_hard_state(&mut self, hard: &HardState) -> Result<()> {
        self.put(VOTE, &encode_vote(hard))?;
        self.hard = hard.clone();
        Ok(())
    }

    /// Notes how far is committed; a start that does not find it hears it from the others.
    pub fn set_commit(&mut self, commit: u64) {
        self.hard.commit = commit;
    }

    /// What is to be written and synced, without a lock that readers want. One at a time:
    /// [`RaftLog::note_synced`] follows, or [`RaftLog::note_written`].
    pub fn unsynced(&mut self) -> Unsynced {
        let numbers = self.synced / self.segment..=self.tail.saturating_sub(1) / self.segment;
        let files = match self.synced == self.tail {
            true => BTreeMap::new(),
            false => self.files.range(numbers).map(|(n, file)| (*n, file.clone())).collect(),
        };
        Unsynced {
            dir: self.dir.clone(),
            segment: self.segment,
            changes: std::mem::take(&mut self.changes),
            files,
            to: self.tail,
        }
    }

    /// Whether something is to be written.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// What was written, and not synced.
    pub fn note_written(&mut self, written: Unsynced) {
        assert!(
            self.written <= written.to && written.to <= self.tail,
            "writes go forwards"
        );
        self.files.extend(written.files);
        self.written = written.to;
    }

    pub fn note_synced(&mut self, synced: Unsynced) {
        assert!(
            self.synced <= synced.to && synced.to <= self.tail,
            "a sync goes forwards, up to the tail"
        );
        self.files.extend(synced.files);
        (self.synced, self.written) = (synced.to, synced.to);
    }

    /// Puts a frame at the tail; where it is to lie.
    fn put(&mut self, kind: u8, payload: &[u8]) -> Result<u64> {
        assert!(
            payload.len() <= PAYLOAD_MAX,
            "a frame of {} bytes is too long",
            payload.len()
        );
        let length = (HEADER + payload.len()).next_multiple_of(8) as u64;
        if length > self.segment - BEGIN_LENGTH {
            return Err(Error::Invalid(format!(
                "a frame of {length} bytes has no room in a segment of {} of the Raft log",
                self.segment
            )));
        }
        if self.tail.is_multiple_of(self.segment) || self.segment - self.tail % self.segment < length {
            self.begin_segment();
        }
        let at = self.tail;
        self.changes.write(at, frame(kind, payload, at, self.synced));
        self.tail += length;
        Ok(at)
    }

    /// The tail goes to the next segment, which begins with what a start has to know if it is the first that is left.
    fn begin_segment(&mut self) {
        let rest = (self.segment - self.tail % self.segment) % self.segment;
        if rest >= HEADER as u64 {
            self.changes.write(self.tail, frame(SKIP, &[], self.tail, self.synced));
        }
        self.tail += rest;
        self.changes.begin(self.tail / self.segment, self.spares.pop());
        let before = (self.last_index(), self.term(self.last_index()).unwrap_or(0));
        // What is committed may be known before it is written here, and a start believes what it reads.
        let hard = HardState {
            commit: self.hard.commit.min(before.0),
            ..self.hard.clone()
        };
        let payload = encode_base(before, &hard);
        let at = self.tail;
        let length = (HEADER + payload.len()).next_multiple_of(8) as u64;
        assert!(length == BEGIN_LENGTH, "a segment's first frame has {length} bytes");
        self.changes.write(at, frame(BEGIN, &payload, at, self.synced));
        self.tail += length;
    }

    /// A spare segment to be made, if there is none: what to do it with, without a lock that others want.
    pub fn spare_wanted(&mut self) -> Option<SpareWanted> {
        if !self.spares.is_empty() {
            return None;
        }
        Some(SpareWanted {
            path: self.next_spare_path(),
            segment: self.segment,
        })
    }

    /// A segment is there to become a new one.
    pub fn add_spare(&mut self, path: PathBuf) {
        self.spares.push(path);
    }

    fn next_spare_path(&mut self) -> PathBuf {
        self.next_spare += 1;
        self.dir.join(format!("spare-{:016x}", self.next_spare - 1))
    }

    /// Bytes that are in memory alone.
    pub fn unwritten(&self) -> u64 {
        self.tail - self.written.min(self.tail)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let number = at / self.segment;
        let file = self.files.get(&number).ok_or_else(|| self.missing(number))?;
        file.write_at(bytes, at % self.segment)
            .doing(|| format!("writing {}", self.path(number).display()))
    }

    /// Gives up segments of which no entry above `index` is needed, but for the last `kept` bytes; `index` is in a
    /// state that was saved. Entries up to there are gone where their segment is.
    #[must_use]
    pub fn compact(&mut self, index: u64, kept: u64) -> Vec<Retired> {
        assert!(
            index <= self.hard.commit.max(self.base.0),
            "only what is committed is compacted: {index}"
        );
        let needed = index.saturating_sub(self.base.0) as usize;
        let first_needed = self.slots.get(needed).map_or(self.tail, |slot| slot.at);
        // The last vote that was synced stays, too.
        let synced = self.synced.saturating_sub(1);
        let keep = first_needed.min(self.tail.saturating_sub(kept)).min(synced) / self.segment;
        let mut retired = Vec::new();
        while let Some((number, _)) = self.files.first_key_value()
            && *number < keep
        {
            let number = *number;
            self.files.remove(&number);
            let is_kept = self.spares.len() + retired.len() < SPARES;
            let path = self.path(number);
            let spare = is_kept.then(|| self.next_spare_path());
            retired.push(Retired { path, spare });
        }
        let start = self.files.keys().next().map_or(0, |number| number * self.segment);
        while self.slots.front().is_some_and(|slot| slot.at < start) && self.base.0 < index {
            let Some(slot) = self.slots.pop_front() else { break };
            self.base = (self.base.0 + 1, slot.term);
            if slot.kept.is_some() {
                self.kept -= slot.length;
            }
        }
        self.kept_from = self.kept_from.max(self.first_index());
        retired
    }

    // ---- reading it back ----

    fn recover(&mut self, state: (u64, u64), anew: bool) -> Result<()> {
        let Some(first) = self.files.keys().next().copied() else {
            // A node without a state of its own has made no promise.
            return match state.0 {
                0 => Ok(()),
                _ if anew => Ok(()),
                _ => Err(self.lost("its files are gone")),
            };
        };
        self.written = u64::MAX;
        let (mut at, mut said) = (first * self.segment, 0);
        while let Some(frame) = self.frame_at(at)? {
            said = said.max(frame.synced);
            if frame.kind == SKIP {
                at = (at / self.segment + 1) * self.segment;
                continue;
            }
            self.adopt(&frame, at, at == first * self.segment, state)?;
            at += (HEADER + frame.payload.len()).next_multiple_of(8) as u64;
            if self.segment - at % self.segment < HEADER as u64 {
                at = at.next_multiple_of(self.segment);
            }
        }
        self.tail = at;
        let proof = self.look_behind(at)?.max(said);
        if proof > at {
            return Err(self.lost(&format!("it is damaged at {at}, and was synced up to {proof}")));
        }
        if !anew {
            self.check_entries(state)?;
        }
        self.write_again(said.max(first * self.segment))?;
        self.clear_behind()?;
        (self.synced, self.written) = (self.tail, self.tail);
        Ok(())
    }

    /// Entries that a state has were synced, and are not taken back; those behind it follow without a gap.
    fn check_entries(&mut self, state: (u64, u64)) -> Result<()> {
        // Of what is committed the log says only now and then how far it goes; a state says so, too.
        self.hard.commit = self.hard.commit.max(state.0);
        if self.base.0 > state.0 || self.last_index() < self.hard.commit {
            return Err(self.lost(&format!(
                "it has entries {} to {}, and the node's state is as of {}, of {} that were committed",
                self.first_index(),
                self.last_index(),
                state.0,
                self.hard.commit
            )));
        }
        Ok(())
    }

    fn lost(&self, what: &str) -> Error {
        Error::corrupt(format!(
            "the Raft log in {} is not what this node has promised to keep: {what}. The other nodes go on without this \
             one; bring its directory back",
            self.dir.display()
        ))
    }

    /// Writes and syncs once more what nothing says was synced. A process that was killed before its sync, or whose
    /// sync failed, left bytes that the system shows and may not have on disk; from here on they are built upon.
    fn write_again(&self, from: u64) -> Result<()> {
        let mut at = from;
        let mut bytes = vec![0; ZEROS];
        while at < self.tail {
            let number = at / self.segment;
            let stop = self.tail.min((number + 1) * self.segment);
            let length = bytes.len().min((stop - at) as usize);
            self.read(at, &mut bytes[..length])?;
            self.write(at, &bytes[..length])?;
            at += length as u64;
            if at == stop {
                let file = self.files.get(&number).ok_or_else(|| self.missing(number))?;
                file.sync_data()
                    .doing(|| format!("syncing {}", self.path(number).display()))?;
            }
        }
        Ok(())
    }

    fn adopt(&mut self, frame: &OwnedFrame, at: u64, is_first: bool, state: (u64, u64)) -> Result<()> {
        match frame.kind {
            ENTRY => self.adopt_entry(frame, at, state)?,
            VOTE => self.hard = decode_vote(&mut Reader::new(&frame.payload, "a vote"))?,
            BEGIN => {
                let (before, hard) = decode_base(&frame.payload)?;
                if is_first {
                    (self.base, self.kept_from) = (before, before.0 + 1);
                }
                self.hard = hard;
            }
            ANEW => {
                let (entry, hard) = decode_base(&frame.payload)?;
                self.adopt_base(entry, hard);
            }
            kind => {
                return Err(Error::Mismatch(format!(
                    "the Raft log in {} has a frame of kind {kind}, which this program does not know",
                    self.dir.display()
                )));
            }
        }
        Ok(())
    }

    fn adopt_entry(&mut self, frame: &OwnedFrame, at: u64, state: (u64, u64)) -> Result<()> {
        let entry = decode_entry(&frame.payload)?;
        if entry.index <= self.base.0 {
            // It replaced entries of segments that are gone: the first one began with a later entry than it has.
            // What it knows of that one is of an entry that was replaced: the state knows better.
            self.cut(0);
            (self.base, self.kept_from) = (state, state.0 + 1);
            if entry.index <= self.base.0 {
                return Ok(());
            }
        }
        let place = (entry.index - self.first_index()) as usize;
        if place > self.slots.len() {
            return Err(Error::corrupt(format!(
                "the Raft log in {} has a gap before entry {}",
                self.dir.display(),
                entry.index
            )));
        }
        self.cut(place);
        self.keep(Slot {
            term: entry.term,
            at,
            length: frame.payload.len(),
            kept: Some(Box::new(entry)),
        });
        Ok(())
    }

    /// The highest position that a frame behind the end says was synced.
    fn look_behind(&self, end: u64) -> Result<u64> {
        let mut proof = 0;
        for number in self.files.keys().copied().filter(|n| *n >= end / self.segment) {
            let start = end.max(number * self.segment);
            let mut bytes = vec![0; ((number + 1) * self.segment - start) as usize];
            self.read(start, &mut bytes)?;
            for offset in (0..bytes.len().saturating_sub(HEADER)).step_by(8) {
                if get_le::<u32>(&bytes, offset) == Some(MAGIC)
                    && let Some(frame) = Frame::parse(&bytes[offset..], start + offset as u64)
                {
                    proof = proof.max(frame.synced);
                }
            }
        }
        Ok(proof)
    }

    /// What a torn write left behind the end must not continue what is written next.
    fn clear_behind(&mut self) -> Result<()> {
        let number = self.tail / self.segment;
        for later in self.files.keys().copied().filter(|n| *n > number).collect::<Vec<_>>() {
            let path = self.path(later);
            fs::remove(&path).doing(|| format!("removing {}", path.display()))?;
            self.files.remove(&later);
        }
        let Some(file) = self.files.get(&number) else {
            return fs::sync_dir(&self.dir).doing(|| format!("syncing {}", self.dir.display()));
        };
        let (from, zeros) = (self.tail % self.segment, vec![0; ZEROS]);
        let cleared = (|| {
            for at in (from..self.segment).step_by(ZEROS) {
                file.write_at(&zeros[..ZEROS.min((self.segment - at) as usize)], at)?;
            }
            file.sync_data()?;
            fs::sync_dir(&self.dir)
        })();
        cleared.doing(|| format!("clearing the end of {}", self.path(number).display()))
    }

    fn frame_at(&self, at: u64) -> Result<Option<OwnedFrame>> {
        if !self.files.contains_key(&(at / self.segment)) {
            return Ok(None);
        }
        let room = self.segment - at % self.segment;
        if room < HEADER as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; HEADER];
        self.read(at, &mut bytes)?;
        let length = HEADER + get_le::<u32>(&bytes, 8).unwrap_or(0) as usize;
        if get_le::<u32>(&bytes, 0) != Some(MAGIC) || length as u64 > room || length > HEADER + PAYLOAD_MAX {
            return Ok(None);
        }
        bytes.resize(length, 0);
        self.read(at, &mut bytes)?;
        Ok(Frame::parse(&bytes, at).map(|frame| frame.to_owned()))
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let number = at / self.segment;
        let file = self.files.get(&number).ok_or_else(|| self.missing(number))?;
        file.read_exact_at(bytes, at % self.segment)
            .doing(|| format!("reading {}", self.path(number).display()))
    }

    fn open_file(&self, number: u64) -> Result<File> {
        let path = self.path(number);
        fs::open(&path, OpenOptions::WRITE).doing(|| format!("opening {}", path.display()))
    }

    fn missing(&self, number: u64) -> Error {
        Error::corrupt(format!("segment {} is missing", self.path(number).display()))
    }

    fn path(&self, number: u64) -> PathBuf {
        path_of(&self.dir, number)
    }
}

fn spare_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("spare-").filter(|number| number.len() == 16)?;
    u64::from_str_radix(number, 16).ok()
}

fn number_of(name: &str) -> Option<u64> {
    let stem = name.strip_suffix(".log").filter(|stem| stem.len() == 16)?;
    u64::from_str_radix(stem, 16).ok()
}

// ---- frames ----

struct Frame<'a> {
    kind: u8,
    synced: u64,
    payload: &'a [u8],
}

struct OwnedFrame {
    kind: u8,
    synced: u64,
    payload: Vec<u8>,
}

impl<'a> Frame<'a> {
    /// The frame that these bytes begin with, if it is whole and of this position.
    fn parse(bytes: &'a [u8], at: u64) -> Option<Frame<'a>> {
        let length = get_le::<u32>(bytes, 8)? as usize;
        let whole = bytes.get(..HEADER.checked_add(length)?)?;
        let fits = get_le::<u32>(whole, 0)? == MAGIC
            && get_le::<u64>(whole, 16)? == at
            && get_le::<u32>(whole, 4)? == crc32c(&whole[8..]);
        fits.then_some(Frame {
            kind: whole[12],
            synced: get_le::<u64>(whole, 24)?,
            payload: &whole[HEADER..],
        })
    }

    fn to_owned(&self) -> OwnedFrame {
        OwnedFrame {
            kind: self.kind,
            synced: self.synced,
            payload: self.payload.to_vec(),
        }
    }
}

fn frame(kind: u8, payload: &[u8], at: u64, synced: u64) -> Vec<u8> {
    let mut bytes = vec![0; (HEADER + payload.len()).next_multiple_of(8)];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes[12] = kind;
    bytes[16..24].copy_from_slice(&at.to_le_bytes());
    bytes[24..32].copy_from_slice(&synced.to_le_bytes());
    bytes[HEADER..HEADER + payload.len()].copy_from_slice(payload);
    let sum = crc32c(&bytes[8..HEADER + payload.len()]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn encode_entry(entry: &Entry) -> Vec<u8> {
    Writer::default()
        .u64(entry.index)
        .u64(entry.term)
        .u8(entry.entry_type as u8)
        .bytes(&entry.context)
        .bytes(&entry.data)
        .done()
}

fn decode_entry(payload: &[u8]) -> Result<Entry> {
    let mut r = Reader::new(payload, "an entry of the Raft log");
    let mut entry = Entry {
        index: r.u64()?,
        term: r.u64()?,
        ..Entry::default()
    };
    let kind = r.u8()?;
    let known = [
        EntryType::EntryNormal,
        EntryType::EntryConfChange,
        EntryType::EntryConfChangeV2,
    ];
    let known = known.into_iter().find(|known| *known as u8 == kind);
    entry.set_entry_type(known.ok_or_else(|| r.wrong("there is no such type"))?);
    entry.context = r.bytes()?.to_vec();
    entry.data = r.bytes()?.to_vec();
    r.end()?;
    Ok(entry)
}

fn put_vote(writer: Writer, hard: &HardState) -> Writer {
    writer.u64(hard.term).u64(hard.vote).u64(hard.commit)
}

fn encode_vote(hard: &HardState) -> Vec<u8> {
    put_vote(Writer::default(), hard).done()
}

fn decode_vote(r: &mut Reader<'_>) -> Result<HardState> {
    Ok(HardState {
        term: r.u64()?,
        vote: r.u64()?,
        commit: r.u64()?,
    })
}

fn encode_base(base: (u64, u64), hard: &HardState) -> Vec<u8> {
    put_vote(Writer::default().u64(base.0).u64(base.1), hard).done()
}

fn decode_base(payload: &[u8]) -> Result<((u64, u64), HardState)> {
    let mut r = Reader::new(payload, "the base of the Raft log");
    let base = (r.u64()?, r.u64()?);
    Ok((base, decode_vote(&mut r)?))
}

#[cfg(test)]
mod tests;
