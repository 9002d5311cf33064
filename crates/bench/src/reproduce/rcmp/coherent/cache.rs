//! A pod's cache of lines.

use super::super::rig::Rig;
use super::super::store::{Costs, Layout, Store};
use super::super::swap::{FRAMES_AT, frames};
use super::wire::{self, Ask, ToCache, ToHome};
use super::{LINE, Ways};
use cenote_base::rt::{self, Condvar, HashMap, Mutex, MutexGuard};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, Call, Called, CallerId, Serve};
use cenote_fabric::{Region, Span};
use std::collections::VecDeque;

const SHARDS: usize = 16;

/// See the module above.
pub struct Cache {
    layout: Layout,
    costs: Costs,
    pod: usize,
    homes: Ways,
    frames: Region,
    shards: Vec<(Mutex<Shard>, Condvar)>,
}

/// Some of the lines.
struct Shard {
    lines: HashMap<u64, Held>,
    pending: HashMap<u64, Pending>,
    /// Modified lines on their way home, and the order in which they left.
    leaving: HashMap<u64, Leaving>,
    left: VecDeque<u64>,
    /// Lines that have come home while a recall was on its way, and their grants.
    gone: HashMap<u64, u64>,
    free: Vec<usize>,
    /// Turns and their lines, in the order of coming; a line that was used meanwhile gets a second turn. Of a line that
    /// has gone since, or has a later turn, the turn counts for nothing.
    turns: VecDeque<(u64, u64)>,
    counted: u64,
    hits: u64,
    misses: u64,
}

/// A line that is here.
#[derive(Debug, Clone, Copy)]
struct Held {
    frame: usize,
    turn: u64,
    grant: u64,
    modified: bool,
    used: bool,
}

/// A modified line on its way home.
struct Leaving {
    bytes: Vec<u8>,
    grant: u64,
    /// It was recalled on its way.
    recalled: bool,
    /// None: a thread waits for it.
    called: Option<Called>,
}

/// Modified lines of a shard that are on their way home at once, at most.
const LEAVING_MAX: usize = 16;

/// A line that was asked for.
#[derive(Default)]
struct Pending {
    /// Grants up to this one are not kept.
    ended: u64,
    /// Recalls of the grant that is on its way.
    recalls: Vec<(u64, bool, Answer)>,
}

/// A part of an access, in one line.
#[derive(Clone, Copy)]
struct Piece {
    line: u64,
    /// Where in the line.
    inside: usize,
    /// Where in the client's buffer.
    from: usize,
    len: usize,
}

/// What a client does with the bytes.
enum Deed<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Deed<'_> {
    fn ask(&self) -> Ask {
        match self {
            Deed::Read(_) => Ask::Read,
            Deed::Write(_) => Ask::Own,
        }
    }

    /// Does a piece of it on a line in own memory.
    fn on_span(&mut self, span: Span<'_>, piece: Piece) {
        match self {
            Deed::Read(into) => _ = span.copy_out(piece.inside, &mut into[piece.from..][..piece.len]),
            Deed::Write(from) => span.copy_in(piece.inside, &from[piece.from..][..piece.len]),
        }
    }

    /// Does a piece of it on a line that has just come.
    fn on_bytes(&mut self, line: &mut [u8], piece: Piece) {
        let line = &mut line[piece.inside..][..piece.len];
        match self {
            Deed::Read(into) => into[piece.from..][..piece.len].copy_from_slice(line),
            Deed::Write(from) => line.copy_from_slice(&from[piece.from..][..piece.len]),
        }
    }
}

impl Cache {
    /// Empty.
    pub fn new(rig: &Rig, pod: usize) -> Self {
        let count = (rig.shape.local / LINE) as usize / SHARDS;
        let shard = |n: usize| Shard {
            lines: HashMap::default(),
            pending: HashMap::default(),
            leaving: HashMap::default(),
            left: VecDeque::new(),
            gone: HashMap::default(),
            free: (n * count..(n + 1) * count).rev().collect(),
            turns: VecDeque::new(),
            counted: 0,
            hits: 0,
            misses: 0,
        };
        Self {
            layout: rig.shape.layout,
            costs: rig.costs,
            pod,
            homes: Ways::homes(rig, pod),
            frames: frames((count * SHARDS) as u64 * LINE),
            shards: (0..SHARDS)
                .map(|n| (Mutex::new(shard(n)), Condvar::default()))
                .collect(),
        }
    }

    fn shard(&self, line: u64) -> &(Mutex<Shard>, Condvar) {
        &self.shards[(line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS]
    }

    fn span(&self, frame: usize) -> Span<'_> {
        self.frames.span(FRAMES_AT + frame as u64 * LINE, LINE)
    }

    fn bytes(&self, frame: usize) -> Vec<u8> {
        let mut bytes = vec![0; LINE as usize];
        self.span(frame).copy_out(0, &mut bytes);
        bytes
    }

    fn ask(&self, line: u64, message: &ToHome<'_>) -> Result<Called> {
        let home = self.homes.to(self.layout.place(line * LINE).lane)?;
        Ok(home.post(vec![Call::new(message.encode())]))
    }

    /// Does a piece at once if its line is here, or asks for it. `others`: this thread has asked for lines that it has
    /// not taken yet, so it does not wait here (`None`).
    fn begin(&self, piece: Piece, deed: &mut Deed<'_>, others: bool) -> Result<Option<Option<Called>>> {
        let (mutex, changed) = self.shard(piece.line);
        let mut shard = mutex.lock();
        rt::spend(self.costs.access);
        shard.reap()?;
        loop {
            let held = shard.lines.get(&piece.line).copied();
            let waits = shard.pending.contains_key(&piece.line) || shard.leaving.contains_key(&piece.line);
            if waits && others {
                return Ok(None);
            }
            if waits {
                shard = when_changed(shard, (mutex, changed), piece.line)?;
                continue;
            }
            if let Some(held) = held.filter(|held| held.modified || deed.ask() == Ask::Read) {
                shard.hits += 1;
                shard.lines.entry(piece.line).and_modify(|held| held.used = true);
                deed.on_span(self.span(held.frame), piece);
                return Ok(Some(None));
            }
            shard.misses += 1;
            shard.pending.insert(piece.line, Pending::default());
            drop(shard);
            let (ask, pod, line) = (deed.ask(), self.pod, piece.line);
            return Ok(Some(Some(self.ask(line, &ToHome::Ask { ask, pod, line })?)));
        }
    }

    /// Takes a line that was asked for, and does the piece on it.
    fn finish(&self, piece: Piece, deed: &mut Deed<'_>, called: Called) -> Result<()> {
        let answer = answer_of(called)?;
        let (grant, bytes) = wire::read_grant(&answer)?;
        let mut bytes = bytes.to_vec();
        deed.on_bytes(&mut bytes, piece);
        let modified = deed.ask() == Ask::Own;
        let (mutex, changed) = self.shard(piece.line);
        let mut shard = mutex.lock();
        shard.remove(piece.line);
        let is_kept = |shard: &Shard| modified || shard.pending[&piece.line].ended < grant;
        while is_kept(&shard) && shard.free.is_empty() {
            shard = self.make_room(shard, (mutex, changed))?;
        }
        if is_kept(&shard) {
            let frame = shard.free.pop().expect("there is one");
            self.span(frame).copy_in(0, &bytes);
            let turn = shard.turn(piece.line);
            shard.lines.insert(
                piece.line,
                Held {
                    frame,
                    turn,
                    grant,
                    modified,
                    used: false,
                },
            );
        }
        let pending = shard.pending.remove(&piece.line).unwrap_or_default();
        for (grant, keep, answer) in pending.recalls {
            self.give_up(&mut shard, (piece.line, grant, keep), answer);
        }
        changed.notify_all();
        Ok(())
    }

    /// Drops a line, or sends one home, as GAM's `Cache::Evict` does: its bytes are on their way when this returns, and
    /// no thread waits for them unless it wants the line, or too many are.
    fn make_room<'a>(&self, mut shard: MutexGuard<'a, Shard>, place: Place<'a>) -> Result<MutexGuard<'a, Shard>> {
        shard.reap()?;
        while shard.leaving.len() >= LEAVING_MAX {
            let first = *shard.left.front().expect("each has its turn");
            shard = when_changed(shard, place, first)?;
        }
        if !shard.free.is_empty() {
            return Ok(shard);
        }
        let Some(line) = shard.victim() else {
            return Err(Error::Full("a shard of the cache has no line".into()));
        };
        let held = shard.lines[&line];
        if held.modified {
            let mut bytes = vec![0; LINE as usize];
            // What the card reads, no processor does.
            self.span(held.frame).quiet().copy_out(0, &mut bytes);
            let (pod, grant) = (self.pod, held.grant);
            let bytes_sent = &bytes[..];
            let message = ToHome::WriteBack {
                pod,
                line,
                grant,
                bytes: bytes_sent,
            };
            let called = Some(self.ask(line, &message)?);
            shard.left.push_back(line);
            let recalled = false;
            shard.leaving.insert(
                line,
                Leaving {
                    bytes,
                    grant,
                    recalled,
                    called,
                },
            );
        }
        shard.remove(line);
        Ok(shard)
    }

    /// Answers a recall of a grant that this pod has, has had, or will have in a moment.
    fn give_up(&self, shard: &mut Shard, (line, grant, keep): (u64, u64, bool), answer: Answer) {
        let leaving = shard.leaving.get_mut(&line).filter(|leaving| leaving.grant == grant);
        if let Some(leaving) = leaving {
            answer.with(&leaving.bytes);
            leaving.recalled = true;
            return;
        }
        let held = shard.lines.get(&line).copied();
        if let Some(held) = held.filter(|held| held.grant == grant && held.modified) {
            answer.with(&self.bytes(held.frame));
            if keep {
                shard.lines.entry(line).and_modify(|held| held.modified = false);
            } else {
                shard.remove(line);
            }
            return;
        }
        if shard.gone.get(&line) == Some(&grant) {
            shard.gone.remove(&line);
            return answer.send();
        }
        match shard.pending.get_mut(&line) {
            Some(pending) => pending.recalls.push((grant, keep, answer)),
            None => answer.fail(Error::Invalid(format!("grant {grant} of line {line} is unknown"))),
        }
    }

    fn end_shared(&self, shard: &mut Shard, line: u64, until: u64) {
        if let Some(pending) = shard.pending.get_mut(&line) {
            pending.ended = pending.ended.max(until);
        }
        if shard
            .lines
            .get(&line)
            .is_some_and(|held| !held.modified && held.grant <= until)
        {
            shard.remove(line);
        }
    }

    /// All lines of an access: those that are not here are asked for at once, and taken in order.
    fn access(&self, at: u64, len: usize, mut deed: Deed<'_>) -> Result<()> {
        let mut asked: VecDeque<(Piece, Called)> = VecDeque::new();
        for piece in pieces(at, len) {
            let mut begun = self.begin(piece, &mut deed, !asked.is_empty())?;
            if begun.is_none() {
                for (piece, called) in asked.drain(..) {
                    self.finish(piece, &mut deed, called)?;
                }
                begun = self.begin(piece, &mut deed, false)?;
            }
            asked.extend(begun.flatten().map(|called| (piece, called)));
        }
        asked
            .into_iter()
            .try_for_each(|(piece, called)| self.finish(piece, &mut deed, called))
    }
}

/// A shard's lock, and what tells of changes.
type Place<'a> = (&'a Mutex<Shard>, &'a Condvar);

fn answer_of(called: Called) -> Result<Vec<u8>> {
    let call = called.wait().pop();
    call.ok_or_else(|| Error::Invalid("a caller lost a call".into()))?
        .into_answer()
}

/// Waits for news of a line: until it has come home if it is on its way there, and no other thread waits for that.
fn when_changed<'a>(
    mut shard: MutexGuard<'a, Shard>,
    (mutex, changed): Place<'a>,
    line: u64,
) -> Result<MutexGuard<'a, Shard>> {
    let leaving = shard.leaving.get_mut(&line).and_then(|leaving| leaving.called.take());
    let Some(called) = leaving else {
        return Ok(changed.wait(shard));
    };
    drop(shard);
    let answer = answer_of(called)?;
    let mut shard = mutex.lock();
    shard.has_come_home(line, &answer);
    changed.notify_all();
    Ok(shard)
}

fn pieces(at: u64, len: usize) -> impl Iterator<Item = Piece> {
    let end = at + len as u64;
    let first = at / LINE;
    (first..end.div_ceil(LINE)).map(move |line| {
        let begin = (line * LINE).max(at);
        Piece {
            line,
            inside: (begin % LINE) as usize,
            from: (begin - at) as usize,
            len: (((line + 1) * LINE).min(end) - begin) as usize,
        }
    })
}

/// Whether a turn is its line's.
fn counts(lines: &HashMap<u64, Held>, (turn, line): (u64, u64)) -> bool {
    lines.get(&line).is_some_and(|held| held.turn == turn)
}

impl Shard {
    /// Takes note of lines that have come home, in the order in which they left.
    fn reap(&mut self) -> Result<()> {
        while let Some(line) = self.left.front().copied() {
            let Some(leaving) = self.leaving.get_mut(&line) else {
                self.left.pop_front();
                continue;
            };
            if !leaving.called.as_mut().is_some_and(Called::poll) {
                return Ok(());
            }
            if let Some(called) = leaving.called.take() {
                self.has_come_home(line, &answer_of(called)?);
            }
        }
        Ok(())
    }

    fn has_come_home(&mut self, line: u64, answer: &[u8]) {
        let Some(leaving) = self.leaving.remove(&line) else {
            return;
        };
        self.left.retain(|left| *left != line);
        if wire::read_written_back(answer) && !leaving.recalled {
            self.gone.insert(line, leaving.grant);
        }
    }

    /// The last turn of all.
    fn turn(&mut self, line: u64) -> u64 {
        self.counted += 1;
        if self.turns.len() > 2 * self.lines.len() + 64 {
            let lines = &self.lines;
            self.turns.retain(|turn| counts(lines, *turn));
        }
        self.turns.push_back((self.counted, line));
        self.counted
    }

    fn remove(&mut self, line: u64) {
        if let Some(held) = self.lines.remove(&line) {
            self.free.push(held.frame);
        }
    }

    /// The line that goes next, if one may.
    fn victim(&mut self) -> Option<u64> {
        while let Some((turn, line)) = self.turns.pop_front() {
            let Some(held) = self.lines.get_mut(&line).filter(|held| held.turn == turn) else {
                continue;
            };
            if !std::mem::take(&mut held.used) {
                return Some(line);
            }
            let turn = self.turn(line);
            self.lines.entry(line).and_modify(|held| held.turn = turn);
        }
        None
    }
}

impl Store for Cache {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.access(at, into.len(), Deed::Read(into))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<()> {
        self.access(at, from.len(), Deed::Write(from))
    }

    fn tells(&self) -> Vec<(&'static str, u64)> {
        let sum = |f: fn(&Shard) -> u64| self.shards.iter().map(|(shard, _)| f(&shard.lock())).sum();
        vec![("hits", sum(|shard| shard.hits)), ("misses", sum(|shard| shard.misses))]
    }
}

impl Serve for Cache {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        match ToCache::decode(request) {
            Ok(ToCache::Invalidate { line, until }) => {
                self.end_shared(&mut self.shard(line).0.lock(), line, until);
                answer.send();
            }
            Ok(ToCache::Recall { line, grant, keep }) => {
                self.give_up(&mut self.shard(line).0.lock(), (line, grant, keep), answer);
            }
            Err(error) => answer.fail(error),
        }
    }
}
