//! The world of mirrors: a holder whose mirror is on another machine, over a network that loses, delays, reorders and
//! tears what is sent. Its stream is cut at any byte.
//!
//! ```text
//!  host 0: writers ─ flush A ─ flush B ─ acknowledged     network        node: memory, journal
//!          filler  ─ all lines ─ the table: whole       ── cards, cuts ──   closed: keys end, journal replayed ─▶ image
//!          keeper  ─ lost? the table: void, given up
//! ```
//!
//! A writer numbers its rounds. It writes the number into its lines A, flushes them in order, does the same with its
//! lines B, and fences after some rounds: then it says that the round is safe. With the number goes how far every other
//! writer had said to be safe. At some moment the holder is killed, its host is lost, it is cut off, the node forgets
//! its keys, or the holder is taken for lost and lives on. If the grant table says that the mirror is whole it is
//! promoted, and the next holder begins with what is there:
//! - no line's first word is ahead of the rest of it;
//! - every round that was safe is there, A is not behind B, and what a round had seen of others is there: so it is the
//!   memory as it was at one of the fences;
//! - a former holder that lives on changes nothing of it.
//!
//! A holder that was killed may also be followed by one on its host, which believes the memory that is there: every
//! round in it counts as safe, also one that had waited for a fence. So the mirror counts for nothing until it is
//! filled anew.

use super::shared::Shared;
use crate::rdma::{Faults, MemoryNode, Network};
use crate::{Process, World};
use cenote_base::Result;
use cenote_base::random::Random;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Event, Nanos};
use cenote_fabric::mirror::{JOURNAL, RemoteMirror, RemoteOptions, replay};
use cenote_fabric::rdma::{Fabric, Remote, RemoteMemory};
use cenote_fabric::{Identity, LINE, Region, RegionOptions, coherence, profile};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A world takes some hundred thousand steps.
pub(super) const STEPS_MOST: u64 = 60_000_000;
const NODE: &str = "mirror";
const LEN: u64 = 256 << 10;
const WRITERS: usize = 3;
/// Bytes of a writer, half of them for A; before them lies the region's header.
const OF_WRITER: u64 = 64 << 10;
const FROM: u64 = 8 << 10;
const LIVES: u64 = 4;
/// Rounds that wait for a fence together.
const FENCED_EVERY: u64 = 3;
const _: () = assert!(FROM + WRITERS as u64 * OF_WRITER <= LEN, "writers have room");

/// What outlives every holder.
struct Stage {
    shared: Arc<Shared>,
    network: Network,
    node: MemoryNode,
    grant_table: Mutex<GrantTable>,
    /// Rounds that are safe, by writer.
    safe: [AtomicU64; WRITERS],
    /// What a node that has lost its keys has in its files.
    kept: Mutex<Option<Vec<u8>>>,
    /// The memory of the holder.
    region: Mutex<Option<Arc<Region>>>,
    /// What was in it when that was killed.
    left: Mutex<Option<Vec<u8>>>,
}

/// What the next holder begins with.
struct Next {
    image: Arc<Vec<u8>>,
    /// What the mirror has, if it is the one that a killed holder has left, and counts as whole.
    resumed: Option<Vec<u8>>,
}

/// What the grant table says.
#[derive(Default)]
struct GrantTable {
    is_whole: bool,
    /// The mirror has another holder, or is about to.
    is_promoted: bool,
}

/// A life's mirror, and what its holder begins with.
#[derive(Clone)]
struct Lent {
    memory: Remote,
    journal: Remote,
    believed: bool,
    image: Arc<Vec<u8>>,
}

/// A holder's threads.
struct Holder {
    stage: Arc<Stage>,
    region: Arc<Region>,
    mirror: Arc<RemoteMirror>,
    lost: Arc<Event>,
    believed: bool,
    lines: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, world: &World) {
    let mut draw = Random(world.draw());
    let network = Network::new(&profile::named("rdma").expect("a profile of this program"), draw.word());
    let stage = Arc::new(Stage {
        node: network.add_node(NODE),
        network,
        shared: Arc::clone(shared),
        grant_table: Mutex::default(),
        safe: Default::default(),
        kept: Mutex::default(),
        region: Mutex::default(),
        left: Mutex::default(),
    });
    let mut next = Next {
        image: Arc::new(vec![0; LEN as usize]),
        resumed: None,
    };
    for life in 0..LIVES {
        let faults = if draw.one_in(3) {
            Faults::default()
        } else {
            Faults::random(draw.word())
        };
        stage.network.set_faults(faults);
        let lent = stage.lend(next, life > 0 && draw.one_in(2));
        next = stage.one_life(world, &lent, life, &mut draw);
        if shared.has_failed() {
            return;
        }
    }
}

impl Stage {
    /// Believed, the mirror has what the holder begins with, as after a stop in order.
    fn lend(&self, next: Next, believed: bool) -> Lent {
        // The former holder's.
        drop((locked(&self.region).take(), locked(&self.left).take()));
        let (memory, journal) = (self.node.register(LEN), self.node.register(JOURNAL));
        let Next { image, resumed } = next;
        let believed = believed || resumed.is_some();
        if believed {
            let there = resumed.as_deref().unwrap_or(&image);
            self.node.inspect(memory.key, |bytes| bytes.copy_from_slice(there));
        }
        *locked(&self.grant_table) = GrantTable {
            is_whole: believed,
            is_promoted: false,
        };
        Lent {
            memory,
            journal,
            believed,
            image,
        }
    }

    /// A holder lives, and something befalls it; what the next begins with.
    fn one_life(self: &Arc<Self>, world: &World, lent: &Lent, life: u64, draw: &mut Random) -> Next {
        let (stage, theirs) = (Arc::clone(self), lent.clone());
        // A few lines a round, or many, so that the journal goes round.
        let lines = 1 + draw.below(if life == 1 { OF_WRITER / 2 / LINE as u64 } else { 4 });
        let holder = world.process(0, "holder", move || hold(&stage, &theirs, lines));
        let rounds = draw.pick(&[0, 3, 10, 40]);
        self.until_safe(rounds);
        rt::sleep(Nanos::from_micros(draw.below(200)));
        let what = self.befall(world, &holder, lent, draw);
        if what == "killed"
            && draw.one_in(2)
            && let Some(next) = self.began_again(lent, lines)
        {
            return next;
        }
        rt::sleep(Nanos::from_micros(draw.pick(&[0, 20, 500, 5_000])));
        let safe = self.promote();
        let image = match safe {
            Some(safe) => self.closed(lent, safe, lines, draw),
            None => self.began_anew(lent),
        };
        holder.kill();
        self.network.mend(0, &self.node);
        let resumed = None;
        Next { image, resumed }
    }

    /// Until so many more rounds are safe, or for some time.
    fn until_safe(&self, rounds: u64) {
        let safe = || self.safe.iter().map(|safe| safe.load(Ordering::SeqCst)).sum::<u64>();
        let (from, until) = (safe(), rt::now() + Nanos::from_secs(1));
        while safe() < from + rounds && rt::now() < until {
            rt::sleep(Nanos::from_micros(20));
        }
    }

    fn befall(&self, world: &World, holder: &Process, lent: &Lent, draw: &mut Random) -> &'static str {
        let what = ["killed", "host lost", "cut off", "keys gone", "taken for lost"][draw.index(5)];
        self.shared.befalls(&format!("holders {what}"));
        match what {
            "killed" => {
                // Its view of the memory ends with it; a file in shared memory would be left.
                let region = locked(&self.region).take();
                *locked(&self.left) = region.map(|region| region.span(0, LEN).to_vec());
                holder.kill();
            }
            "host lost" => world.lose_host(0),
            "cut off" => self.network.cut(0, &self.node),
            "keys gone" => {
                // As when the node starts anew: what has come is in its files.
                *locked(&self.kept) = self.image(lent);
                self.node.revoke(lent.memory.key);
                self.node.revoke(lent.journal.key);
            }
            _ => {}
        }
        what
    }

    /// Another holder on the host of one that was killed: what it finds there, and counts as safe.
    fn began_again(&self, lent: &Lent, lines: u64) -> Option<Next> {
        let there = locked(&self.left).take()?;
        self.shared.befalls("holders that begin with the memory that is there");
        let mirror = self.image(lent)?;
        let resumes = locked(&self.grant_table).is_whole && planted(Fault::MirrorResumed);
        self.node.revoke(lent.journal.key);
        self.node.revoke(lent.memory.key);
        Some(Next {
            image: self.begin_with(std::array::from_fn(|writer| {
                let found = lines_of(&there, writer, lines);
                found.iter().map(|line| line.version).min().unwrap_or(0)
            })),
            resumed: resumes.then_some(mirror),
        })
    }

    /// From here on the mirror is the grant, if it is whole: what was safe by then.
    fn promote(&self) -> Option<[u64; WRITERS]> {
        let mut grant_table = locked(&self.grant_table);
        grant_table.is_promoted = true;
        let safe = std::array::from_fn(|i| self.safe[i].load(Ordering::SeqCst));
        grant_table.is_whole.then_some(safe)
    }

    /// What the mirror holds, once its journal is in its place.
    fn image(&self, lent: &Lent) -> Option<Vec<u8>> {
        let journal = self.node.inspect(lent.journal.key, |bytes| bytes.to_vec())?;
        let mut image = self.node.inspect(lent.memory.key, |bytes| bytes.to_vec())?;
        let replayed = replay(&journal, LEN, |at, bytes| {
            image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        });
        match replayed {
            Ok(replayed) => self.shared.add("records replayed", replayed.records),
            Err(error) => self.shared.fail(format!("a journal: {error}")),
        }
        Some(image)
    }

    /// The mirror is closed, and what is in it is looked at; its former holder may live on.
    fn closed(&self, lent: &Lent, safe: [u64; WRITERS], lines: u64, draw: &mut Random) -> Arc<Vec<u8>> {
        let kept = locked(&self.kept).take();
        let Some(image) = kept.or_else(|| self.image(lent)) else {
            self.shared.fail("a mirror without memory".into());
            return Arc::new(vec![0; LEN as usize]);
        };
        self.node
            .inspect(lent.memory.key, |bytes| bytes.copy_from_slice(&image));
        let journal = self.node.inspect(lent.journal.key, |bytes| bytes.to_vec());
        if !planted(Fault::MirrorUnclosed) {
            self.node.revoke(lent.memory.key);
            self.node.revoke(lent.journal.key);
        }
        self.shared.befalls("mirrors promoted");
        let found: [Vec<Line>; WRITERS] = std::array::from_fn(|writer| lines_of(&image, writer, lines));
        problems(&found, safe)
            .into_iter()
            .for_each(|problem| self.shared.fail(problem));
        rt::sleep(Nanos::from_micros(draw.pick(&[100, 10_000, 100_000])));
        let memory_changed = self.node.inspect(lent.memory.key, |bytes| *bytes != image[..]);
        let journal_changed = self
            .node
            .inspect(lent.journal.key, |bytes| Some(&*bytes) != journal.as_deref());
        if memory_changed == Some(true) || journal_changed == Some(true) {
            self.shared
                .fail("a former holder has written into a promoted mirror".into());
        }
        self.begin_with(std::array::from_fn(|writer| {
            let versions = found[writer].iter().map(|line| line.version);
            versions.max().unwrap_or(0)
        }))
    }

    /// The mirror was not whole: what was in the memory is lost.
    fn began_anew(&self, lent: &Lent) -> Arc<Vec<u8>> {
        self.shared.befalls("mirrors that were not whole");
        self.node.revoke(lent.memory.key);
        self.node.revoke(lent.journal.key);
        *locked(&self.kept) = None;
        self.begin_with([0; WRITERS])
    }

    /// Memory in which every line of a writer has this number; all of it is safe.
    fn begin_with(&self, versions: [u64; WRITERS]) -> Arc<Vec<u8>> {
        let mut image = vec![0; LEN as usize];
        for (writer, version) in versions.into_iter().enumerate() {
            self.safe[writer].store(version, Ordering::SeqCst);
            let from = place(writer, 0) as usize;
            let line = line_of(version, [0; WRITERS]);
            for at in (from..from + OF_WRITER as usize).step_by(LINE) {
                image[at..at + LINE].copy_from_slice(&line);
            }
        }
        Arc::new(image)
    }
}

/// Where a writer's lines A (0) or B (1) begin.
fn place(writer: usize, half: u64) -> u64 {
    FROM + writer as u64 * OF_WRITER + half * OF_WRITER / 2
}

/// A line: the number, what was seen to be safe of each writer, and the number again.
fn line_of(version: u64, seen: [u64; WRITERS]) -> [u8; LINE] {
    let mut line = [0; LINE];
    let words = [version].into_iter().chain(seen).chain([version; 7 - WRITERS]);
    for (into, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *into = word.to_le_bytes();
    }
    line
}

/// A line as it was found.
struct Line {
    is_b: bool,
    version: u64,
    seen: [u64; WRITERS],
    /// Its number is newer than what is behind. The other way round is right: it was copied while it was stored to, and
    /// is flushed later.
    is_ahead: bool,
}

fn lines_of(image: &[u8], writer: usize, lines: u64) -> Vec<Line> {
    let places = (0..2 * lines).map(|i| (i / lines, place(writer, i / lines) + i % lines * LINE as u64));
    let found = places.map(|(half, at)| {
        let words: Vec<u64> = image[at as usize..at as usize + LINE]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        Line {
            is_b: half == 1,
            version: words[0],
            seen: std::array::from_fn(|i| words[1 + i]),
            is_ahead: words[1 + WRITERS..].iter().any(|word| *word < words[0]),
        }
    });
    found.collect()
}

/// What contradicts that this is memory as it was at a fence after which so much was safe.
fn problems(found: &[Vec<Line>; WRITERS], safe: [u64; WRITERS]) -> Vec<String> {
    let least = |writer: usize, b: bool| {
        let lines = found[writer].iter().filter(|line| line.is_b == b);
        lines.map(|line| line.version).min().unwrap_or(0)
    };
    let mut problems = Vec::new();
    for (writer, lines) in found.iter().enumerate() {
        if lines.iter().any(|line| line.is_ahead) {
            problems.push(format!("writer {writer}: a line's number is ahead of the rest of it"));
        }
        let (a, b) = (least(writer, false), least(writer, true));
        if a.min(b) < safe[writer] {
            problems.push(format!(
                "writer {writer}: {} was safe, A is of {a}, B of {b}",
                safe[writer]
            ));
        }
        if lines.iter().any(|line| line.is_b && line.version > a) {
            problems.push(format!("writer {writer}: a line of B is newer than A, which is of {a}"));
        }
        for other in 0..WRITERS {
            let seen = lines.iter().map(|line| line.seen[other]).max().unwrap_or(0);
            let there = least(other, false).min(least(other, true));
            if seen > there {
                problems.push(format!(
                    "writer {writer} had seen {seen} of writer {other}, of which {there} is there"
                ));
            }
        }
    }
    problems
}

/// A holder's program: it runs until it is killed.
fn hold(stage: &Arc<Stage>, lent: &Lent, lines: u64) {
    let Ok(holder) = Holder::begin(stage, lent, lines) else {
        return;
    };
    let holder = Arc::new(holder);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let theirs = Arc::clone(&holder);
            rt::spawn("writer", move || theirs.write(writer))
        })
        .collect();
    holder.keep();
    for writer in writers {
        if writer.join().is_err() {
            stage.shared.fail("a writer panicked".into());
        }
    }
}

impl Holder {
    /// # Errors
    /// The node is not reached.
    fn begin(stage: &Arc<Stage>, lent: &Lent, lines: u64) -> Result<Self> {
        let region = Arc::new(Region::dram(LEN, Identity::default(), RegionOptions::default())?);
        region.reserve_to(LEN)?;
        region.span(FROM, LEN - FROM).copy_in(0, &lent.image[FROM as usize..]);
        region.expect_mirror();
        let endpoint = stage.network.port(0).connect(NODE)?;
        let lost = Arc::<Event>::default();
        let bell = Arc::clone(&lost);
        let options = RemoteOptions {
            believed: lent.believed,
            patience: Nanos::from_secs(600),
            on_lost: Box::new(move |_| bell.set()),
        };
        let memory = RemoteMemory::new(Arc::clone(&endpoint), lent.memory);
        let mirror = RemoteMirror::begin(memory, RemoteMemory::new(endpoint, lent.journal), options)?;
        let mirror = Arc::new(mirror);
        region.attach_mirror(Arc::clone(&mirror) as _)?;
        // From here on the process lives until it is killed.
        *locked(&stage.region) = Some(Arc::clone(&region));
        Ok(Self {
            stage: Arc::clone(stage),
            region,
            mirror,
            lost,
            believed: lent.believed,
            lines,
        })
    }

    /// Fills the mirror, and tells the grant table what it is.
    fn keep(&self) {
        let mut at = 0;
        loop {
            let next = self.region.fill_mirror_step(at);
            if next == at {
                break;
            }
            at = next;
        }
        self.mirror.set_whole();
        if !self.believed && self.mirror.lost().is_none() {
            let mut grant_table = locked(&self.stage.grant_table);
            grant_table.is_whole = !grant_table.is_promoted;
        }
        self.lost.wait();
        self.stage.shared.befalls("mirrors lost by their holders");
        {
            let mut grant_table = locked(&self.stage.grant_table);
            if grant_table.is_promoted {
                // The manager says that it is the holder no more.
                return;
            }
            grant_table.is_whole = false;
        }
        self.mirror.give_up();
    }

    fn write(&self, writer: usize) {
        let mut version = self.region.span(place(writer, 0), 8).u64(0);
        loop {
            version += 1;
            let seen = std::array::from_fn(|i| self.stage.safe[i].load(Ordering::SeqCst));
            for half in 0..2 {
                let (from, len) = (place(writer, half), self.lines * LINE as u64);
                let line = line_of(version, seen);
                for at in (0..len).step_by(LINE) {
                    self.region.span(from + at, LINE as u64).copy_in(0, &line);
                }
                coherence::flush_in_order(&self.region, from, len as usize);
            }
            if !version.is_multiple_of(FENCED_EVERY) {
                continue;
            }
            coherence::fence(&self.region);
            self.stage.safe[writer].fetch_max(version, Ordering::SeqCst);
            self.stage.shared.count("rounds that are safe");
        }
    }
}
