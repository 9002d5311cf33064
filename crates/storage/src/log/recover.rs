//! Opening the log: recovery finds its end, and the part of the ring that belongs to it.
//!
//! **With the ring of the last process.** Recovery believes the ring only if its last durable group lies in the files
//! with the same checksum. Then it walks from there to the tail. A complete group is part of the log. An incomplete one
//! becomes void: its mini-transaction held its latches, so no other thread has seen its changes. Recovery makes all of
//! it durable before the log opens.
//!
//! **Without.** Recovery scans the files from the checkpoint to the first bytes that are no group of their position.
//! They are the torn end, which it cuts off and zeroes, *unless* they are known to have been durable: below a position
//! that the control file names, or that a later valid group names as durable when it was reserved. Then they are
//! damage, and the error names the place.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_base::bytes::get_le;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::{Error, Lsn, Result};

use super::medium::{Medium, NodeLog};
use super::read::Window;
use super::read_ahead::ReadAhead;
use super::ring::{BLOCK, Ring, RingMark, RingPlace, Survive, block_of};
use super::segments::{Generations, Segments, read_files};
use super::state::LogState;
use crate::nodes::{LogEnd, StorageNodes};
use crate::owner::Ownership;
use crate::redo::{
    GROUP_HEADER, GroupHeader, GroupRef, KIND_GROUP, KIND_VOID, LAG_AT, MAX_GROUP, STATE_COMPLETE, lag, seal,
};

/// No position: a search goes on to where the files end.
const END: Lsn = Lsn::from_raw(u64::MAX);
/// Bytes at a group's start by which its header is known: kind, length, position.
const HEADER_KNOWN: usize = 16;

/// How to open a log.
pub struct LogOptions {
    /// The directory of the segments.
    pub dir: PathBuf,
    /// The database's id.
    pub database: u128,
    /// Payload bytes of a segment, a multiple of 4096; for a new log. One that exists keeps its own.
    pub segment_bytes: u64,
    /// Where the ring lies.
    pub ring: RingPlace,
    /// Whether the ring is that of the last process that had this log: region, incarnation and
    /// settings were checked by the caller. Recovery checks the ring itself.
    pub believe_ring: bool,
    /// What the ring is to survive.
    pub survive: Survive,
    /// Where recovery begins: a group's start, all before it is in the pages.
    pub checkpoint: Lsn,
    /// A position that the log is known to have reached durably.
    pub known_durable: Lsn,
    /// Where the log begins if it is a new one: a multiple of 4096, not zero.
    pub origin: Lsn,
    /// Whether a thread prepares segments and writes before a commit asks. Without, the appenders do it.
    pub background: bool,
    /// The storage nodes that have the log, and where it ends there; `None`: it lies in files.
    pub nodes: Option<(Arc<dyn StorageNodes>, LogEnd)>,
    /// What says whether the data directory is this process's still, before anything is acknowledged; `None`: nobody
    /// else can have it.
    pub owner: Option<Arc<Ownership>>,
}

impl LogOptions {
    fn generations(&self) -> Generations {
        self.owner.as_ref().map_or(Generations::default(), |owner| Generations {
            believed: owner.believed(),
            own: owner.generation(),
        })
    }

    /// Before files are changed that another start may have made its own since they were listed.
    fn check_owner(&self) -> Result<()> {
        self.owner.as_ref().map_or(Ok(()), |owner| owner.check())
    }

    fn state(&self, medium: Medium, ring: Ring, mark: RingMark, tail: Lsn, start: Lsn) -> LogState {
        LogState::new(medium, ring, mark, tail, start, self.background, self.owner.clone())
    }
}

/// What became of the ring at opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RingUse {
    /// The log is new.
    Created,
    /// The ring was believed: memory and log agree.
    Used,
    /// It was offered and not believed, for this reason. Frames must not be believed either.
    Discarded(String),
    /// It was not offered.
    NotOffered,
}

/// What opening the log found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogReport {
    /// What became of the ring.
    pub ring: RingUse,
    /// The end of the log; all of it is durable.
    pub end: Lsn,
    /// Where the durable log ended before.
    pub durable_before: Lsn,
    /// Groups of the ring that were incomplete and are void now: start and end.
    pub voided: Vec<(Lsn, Lsn)>,
    /// Bytes of files that were read to find the end.
    pub bytes_scanned: u64,
}

/// The end of the log as one of the two ways found it.
struct End {
    /// Where the ring starts.
    start: Lsn,
    tail: Lsn,
    mark: RingMark,
    voided: Vec<(Lsn, Lsn)>,
}

pub(super) fn open(options: LogOptions) -> Result<(LogState, LogReport)> {
    if let Some((nodes, end)) = options.nodes.clone() {
        return on_nodes(nodes, end, &options);
    }
    let payload = Segments::recorded_payload(&options.dir)?.unwrap_or(options.segment_bytes);
    let segments = Segments::open(&options.dir, options.database, payload, options.generations())?;
    let ring = Ring::new(&options.ring, options.survive)?;
    if segments.numbers().is_empty() && options.checkpoint.max(options.known_durable) <= options.origin {
        return create(segments, ring, &options);
    }
    let believed = match options.believe_ring {
        true => believe(&ring, &segments, &options)?.map_err(RingUse::Discarded),
        false => Err(RingUse::NotOffered),
    };
    match believed {
        Ok(end) => adopt(Medium::Files(segments), ring, end, &options),
        Err(ring_use) => from_files(segments, ring, ring_use, &options),
    }
}

fn create(segments: Segments, ring: Ring, options: &LogOptions) -> Result<(LogState, LogReport)> {
    let origin = options.origin;
    options.check_owner()?;
    segments.prepare(segments.number_of(origin), true)?;
    ring.format(options.database, origin);
    let mark = RingMark {
        durable: origin,
        last_start: Lsn::ZERO,
        last_checksum: 0,
    };
    let report = LogReport {
        ring: RingUse::Created,
        end: origin,
        durable_before: origin,
        voided: Vec::new(),
        bytes_scanned: 0,
    };
    let state = options.state(Medium::Files(segments), ring, mark, origin, origin);
    Ok((state, report))
}

// ---- with the ring ----

/// The end of the log in the ring, or why the ring is not believed. Changes nothing.
fn believe(ring: &Ring, segments: &Segments, options: &LogOptions) -> Result<Result<End, String>> {
    let known = options.known_durable.max(options.checkpoint);
    let (start, mark) = match plausible(ring, options.database, known) {
        Ok(found) => found,
        Err(reason) => return Ok(Err(reason)),
    };
    if mark.last_start != Lsn::ZERO && !in_files(segments, mark)? {
        return Ok(Err(format!(
            "the redo ring was durable up to {}, which is not in the log's files",
            mark.durable
        )));
    }
    Ok(walk(ring, start, mark))
}

/// Start and mark of the ring, if both can be those of a log of `database` whose ring's mark was at `known` once.
fn plausible(ring: &Ring, database: u128, known: Lsn) -> Result<(Lsn, RingMark), String> {
    let start = ring.check_header(database)?;
    let (_, mark) = ring.mark().ok_or("the redo ring says nothing about the durable log")?;
    let tail = ring.tail();
    if mark.durable < start || mark.durable < known {
        return Err(format!(
            "the redo ring ends at {}, the log at {known} at least",
            mark.durable
        ));
    }
    if tail < mark.durable || tail.since(mark.durable) > ring.capacity() {
        return Err(format!(
            "the redo ring has an impossible tail: {tail}, durable {}",
            mark.durable
        ));
    }
    Ok((start, mark))
}

fn in_files(segments: &Segments, mark: RingMark) -> Result<bool> {
    let mut window = Window::default();
    let group = window.group(mark.last_start, |at, buffer| {
        let length = buffer.len().min(mark.durable.since(at) as usize);
        read_files(segments, at, &mut buffer[..length])
    })?;
    Ok(group.is_ok_and(|g| g.end() == mark.durable && g.checksum() == mark.last_checksum))
}

/// The groups behind the mark, up to the tail. What lies behind the tail is not looked at: a ring that was made anew
/// where the log ends, or taken over, still has groups of before at positions that the log comes to again, whole and
/// complete. None of this ring's is lost by that: a group is complete only after the tail behind it was flushed.
fn walk(ring: &Ring, start: Lsn, mark: RingMark) -> Result<End, String> {
    let tail = ring.tail();
    let limit = mark.durable.advance(ring.capacity());
    let (mut at, mut voided, mut group) = (mark.durable, Vec::new(), Vec::new());
    while at < tail {
        let header = GroupHeader::parse(&ring.header(at), at).filter(|h| h.end() <= limit);
        let header = header.ok_or_else(|| format!("the redo ring has no group at {at}, below its tail {tail}"))?;
        if header.state != STATE_COMPLETE {
            voided.push((at, header.end()));
        } else {
            group.resize(header.length, 0);
            ring.read(at, &mut group);
            GroupRef::parse(&group, at).map_err(|error| format!("in the redo ring: {error}"))?;
        }
        at = header.end();
    }
    if at != tail {
        return Err(format!("a group of the redo ring ends at {at}, beyond its tail {tail}"));
    }
    Ok(End {
        start,
        tail,
        mark,
        voided,
    })
}

/// Takes the ring over: makes incomplete groups void and everything durable.
fn adopt(medium: Medium, ring: Ring, end: End, options: &LogOptions) -> Result<(LogState, LogReport)> {
    if !planted(Fault::VoidMark) {
        let durable = end.mark.durable;
        end.voided
            .iter()
            .for_each(|(at, end)| make_void(&ring, *at, *end, durable));
    }
    ring.forget_boundaries(end.tail);
    ring.set_tail(end.tail);
    let durable_before = end.mark.durable;
    let mut block = None;
    if let Medium::Files(segments) = &medium {
        segments.own_from(durable_before, &|| options.check_owner())?;
        block = Some(load_block(segments, durable_before)?);
    }
    let state = options.state(medium, ring, end.mark, end.tail, end.start);
    if let Some(block) = block {
        state.flusher.lock().block = block;
    }
    state.wait_durable(end.tail)?;
    assert!(
        state.durable() >= end.tail,
        "all of the ring is durable before the log is opened"
    );
    state.ring.rewrite_header(options.database, end.start);
    let report = LogReport {
        ring: RingUse::Used,
        end: end.tail,
        durable_before,
        voided: end.voided,
        bytes_scanned: 0,
    };
    Ok((state, report))
}

/// Writes the header of a void group, which stays incomplete until the last step. Like any group it says how far the
/// log is durable: not up to itself, or a recovery that finds it behind a gap takes the gap for damage.
fn make_void(ring: &Ring, at: Lsn, end: Lsn, durable: Lsn) {
    assert!(
        end.since(at) >= GROUP_HEADER as u64 && end.since(at) <= MAX_GROUP as u64,
        "a void group from {at} to {end} is as long as a group"
    );
    let mut header = [0; GROUP_HEADER];
    header[..4].copy_from_slice(&KIND_VOID.to_le_bytes());
    header[4..8].copy_from_slice(&(end.since(at) as u32).to_le_bytes());
    header[8..16].copy_from_slice(&at.raw().to_le_bytes());
    header[LAG_AT..LAG_AT + 4].copy_from_slice(&lag(at, durable).to_le_bytes());
    ring.write_header(at, &header);
    ring.complete(at, seal(0, &header));
}

// ---- on storage nodes ----

/// The log that nodes have: it ends behind a whole group, so nothing is torn there.
fn on_nodes(nodes: Arc<dyn StorageNodes>, found: LogEnd, options: &LogOptions) -> Result<(LogState, LogReport)> {
    let ring = Ring::new(&options.ring, options.survive)?;
    let medium = Medium::Nodes(NodeLog::new(nodes, options.segment_bytes));
    let mark = RingMark {
        durable: found.end,
        last_start: found.last_start,
        last_checksum: found.last_checksum,
    };
    let believed = match options.believe_ring {
        true => believe_beside(&ring, mark, options).map_err(RingUse::Discarded),
        false => Err(RingUse::NotOffered),
    };
    let ring_use = match believed {
        Ok(end) => return adopt(medium, ring, end, options),
        Err(_) if found.last_start == Lsn::ZERO => RingUse::Created,
        Err(ring_use) => ring_use,
    };
    ring.format(options.database, found.end);
    let report = LogReport {
        ring: ring_use,
        end: found.end,
        durable_before: found.end,
        voided: Vec::new(),
        bytes_scanned: 0,
    };
    Ok((options.state(medium, ring, mark, found.end, found.end), report))
}

/// The end of the log in the ring, beside nodes where it ends at `nodes`; or why the ring is not believed. The process
/// before may have been killed between their answer and its mark: then they have more than the mark says, and the ring
/// has that too.
fn believe_beside(ring: &Ring, nodes: RingMark, options: &LogOptions) -> Result<End, String> {
    // How far the nodes' log comes says nothing of the mark.
    let (start, mark) = plausible(ring, options.database, Lsn::ZERO)?;
    let mut end = walk(ring, start, mark)?;
    let is_there = nodes.durable == mark.durable && nodes.last_checksum == mark.last_checksum
        || ends_group(ring, mark.durable, nodes);
    if !is_there || end.voided.iter().any(|(at, _)| *at < nodes.durable) {
        return Err(format!(
            "the redo ring was durable up to {}, and the storage nodes' log, which ends at {}, is another",
            mark.durable, nodes.durable
        ));
    }
    end.mark = nodes;
    Ok(end)
}

/// Whether the last group of `nodes` is in the ring, behind `from`.
fn ends_group(ring: &Ring, from: Lsn, nodes: RingMark) -> bool {
    let header = GroupHeader::parse(&ring.header(nodes.last_start), nodes.last_start);
    nodes.last_start >= from
        && nodes.durable <= ring.tail()
        && header.is_some_and(|h| h.end() == nodes.durable && h.checksum == nodes.last_checksum)
}

// ---- without the ring ----

fn from_files(
    segments: Segments,
    ring: Ring,
    ring_use: RingUse,
    options: &LogOptions,
) -> Result<(LogState, LogReport)> {
    let found = find_end(&segments, options.checkpoint, options.known_durable)?;
    let (mark, used_to, end) = (found.mark, found.used_to, found.mark.durable);
    assert!(
        found.known_durable <= end,
        "a log that was durable up to {} ends at {end}",
        found.known_durable
    );
    // A killed process may have written groups that it had not synced. Recovery reads them, so they have to last.
    for number in segments.number_of(options.checkpoint)..segments.number_of(end) {
        segments.sync(number)?;
    }
    if !planted(Fault::LogTailKept) {
        options.check_owner()?;
        segments.truncate(end, used_to)?;
    }
    segments.own_from(end, &|| options.check_owner())?;
    write_again(&segments, found.known_durable, end)?;
    segments.prepare(segments.number_of(end), true)?;
    ring.format(options.database, end);
    let block = load_block(&segments, end)?;
    let report = LogReport {
        ring: ring_use,
        end,
        durable_before: end,
        voided: Vec::new(),
        bytes_scanned: end.since(options.checkpoint),
    };
    let state = options.state(Medium::Files(segments), ring, mark, end, end);
    state.flusher.lock().block = block;
    Ok((state, report))
}

/// Bytes that are written again at a time.
const CHUNK: usize = 1 << 20;

/// Writes and syncs the log behind `from` once more. A sync that failed in a former process may have dropped it; the
/// system shows it still, and the next sync would not say so. All before `from` was synced without an error, or nothing
/// would stand behind it.
fn write_again(segments: &Segments, from: Lsn, end: Lsn) -> Result<()> {
    let mut at = block_of(from);
    let mut blocks = vec![0; CHUNK];
    while at < end {
        let number = segments.number_of(at);
        let stop = block_of(end.advance(BLOCK - 1)).min(segments.start_of(number + 1));
        let length = (stop.since(at) as usize).min(blocks.len());
        if !segments.read_exact(at, &mut blocks[..length])? {
            return Err(segments.missing(at));
        }
        segments.write(at, &blocks[..length])?;
        at = at.advance(length as u64);
        if at == stop {
            segments.sync(number)?;
        }
    }
    Ok(())
}

/// The durable bytes of the block in which the log ends, which the next flush completes.
fn load_block(segments: &Segments, end: Lsn) -> Result<[u8; BLOCK as usize]> {
    let mut block = [0; BLOCK as usize];
    let length = end.since(block_of(end)) as usize;
    if !segments.read_exact(block_of(end), &mut block[..length])? {
        return Err(segments.missing(end));
    }
    Ok(block)
}

/// The end of the log in its files.
pub(super) struct Found {
    /// Up to the first bytes, from the checkpoint on, that are no group.
    pub mark: RingMark,
    /// How far groups before the end say that it was durable.
    known_durable: Lsn,
    /// From here on, the segment in which the log ends is zeros.
    used_to: Lsn,
}

/// Finds the log's end; an error if the log was durable beyond it.
pub(super) fn find_end(segments: &Segments, checkpoint: Lsn, known_durable: Lsn) -> Result<Found> {
    let mut said = known_durable.max(checkpoint);
    let mut mark = RingMark {
        durable: checkpoint,
        last_start: Lsn::ZERO,
        last_checksum: 0,
    };
    let (mut window, mut ahead) = (Window::default(), ReadAhead::default());
    let reason = loop {
        let at = mark.durable;
        match window.group(at, |at, buffer| ahead.read(segments, at, END, buffer))? {
            Ok(group) => {
                said = said.max(group.durable_when_reserved());
                mark = RingMark {
                    durable: group.end(),
                    last_start: at,
                    last_checksum: group.checksum(),
                };
            }
            Err(reason) => break reason,
        }
    };
    let end = mark.durable;
    require_no_gap(segments, end)?;
    if end < known_durable {
        return Err(damaged(segments, end, known_durable, &reason));
    }
    let rest = look_behind(segments, end, &mut window, &mut ahead)?;
    match rest.durable {
        Some(known) => Err(damaged(segments, end, known, &reason)),
        None => Ok(Found {
            mark,
            known_durable: said,
            used_to: rest.used_to,
        }),
    }
}

/// Fails if the segment in which the log ends is missing, and is not the next one to be made.
fn require_no_gap(segments: &Segments, end: Lsn) -> Result<()> {
    let (there, number) = (segments.numbers(), segments.number_of(end));
    let begins = end == segments.start_of(number);
    let last = there.last().copied();
    if there.contains(&number) || begins && last.is_some_and(|last| last + 1 == number) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{}; the redo log ends there, or is needed from there on. Bring the file back, or restore from a backup",
        segments.missing(end)
    )))
}

fn damaged(segments: &Segments, end: Lsn, known: Lsn, reason: &Error) -> Error {
    let there = segments.numbers();
    let mut needed = segments.number_of(end)..=segments.number_of(known);
    let missing = needed
        .find(|n| !there.contains(n))
        .map(|n| segments.missing(segments.start_of(n)));
    let reason = missing.as_ref().unwrap_or(reason);
    Error::corrupt(format!(
        "the redo log is damaged at {end}, {}: {reason}; it was durable up to {known} at least. \
         Restore from a backup, or bring the file back",
        segments.place(end)
    ))
}

/// What lies behind the log's end.
struct Rest {
    /// A position above the end up to which the log was durable, if a later valid group proves it.
    durable: Option<Lsn>,
    /// From here on, the segment in which the log ends is zeros.
    used_to: Lsn,
}

/// Looks through all bytes behind `end`, and goes on where the search for the end has read to.
fn look_behind(segments: &Segments, end: Lsn, window: &mut Window, ahead: &mut ReadAhead) -> Result<Rest> {
    let (own, mut candidate) = (segments.number_of(end), Window::default());
    let mut rest = Rest {
        durable: None,
        used_to: end,
    };
    for number in segments.numbers().into_iter().filter(|n| *n >= own) {
        let (mut at, stop) = (segments.start_of(number).max(end), segments.start_of(number + 1));
        while at < stop && rest.durable.is_none() {
            let bytes = window.get(at, HEADER_KNOWN, |at, buffer| ahead.read(segments, at, END, buffer))?;
            let bytes = &bytes[..bytes.len().min(stop.since(at) as usize)];
            rest.durable = proof_of_more(segments, end, (at, bytes), &mut candidate)?;
            if let (true, Some(used)) = (number == own, used(bytes)) {
                rest.used_to = at.advance(used as u64);
            }
            // A header may begin in the last bytes of these, unless they are the last of all.
            let last = bytes.len() < HEADER_KNOWN || at.advance(bytes.len() as u64) == stop;
            match if last {
                bytes.len()
            } else {
                bytes.len() - HEADER_KNOWN / 2
            } {
                0 => break,
                passed => at = at.advance(passed as u64),
            }
        }
    }
    Ok(rest)
}

/// A position above `end` up to which the log was durable, if a group that begins in these bytes, which lie at a
/// position, proves it.
fn proof_of_more(segments: &Segments, end: Lsn, (at, bytes): (Lsn, &[u8]), window: &mut Window) -> Result<Option<Lsn>> {
    for candidate in candidates(bytes, at) {
        let group = window.group(candidate, |at, buffer| read_files(segments, at, buffer))?;
        let durable = group.map_or(Lsn::ZERO, |g| g.durable_when_reserved());
        if durable > end {
            return Ok(Some(durable));
        }
    }
    Ok(None)
}

/// Bytes up to and with the last that is not zero, or some more; `None` if all are zero.
fn used(bytes: &[u8]) -> Option<usize> {
    const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
    let last = bytes.chunks(ZEROS.len()).rposition(|c| *c != ZEROS[..c.len()])?;
    Some(bytes.len().min((last + 1) * ZEROS.len()))
}

/// Positions in `block`, which begins at `at`, where a header of that position may be.
fn candidates(block: &[u8], at: Lsn) -> impl Iterator<Item = Lsn> + '_ {
    (0..block.len().saturating_sub(HEADER_KNOWN - 1))
        .step_by(8)
        .filter_map(move |i| {
            let position = at.advance(i as u64);
            let kind = get_le::<u32>(block, i)?;
            let fits = (kind == KIND_GROUP || kind == KIND_VOID) && get_le::<u64>(block, i + 8)? == position.raw();
            fits.then_some(position)
        })
}
