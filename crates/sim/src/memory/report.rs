//! What the memory has to say afterwards: traffic, and hazards.

use cenote_base::rt::Nanos;
use std::collections::BTreeMap;
use std::fmt;

/// Lines moved between a host's cache and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lines {
    /// Brought into the cache.
    pub fetched: u64,
    /// Brought from the cache to memory: flushed, evicted, or stored past the cache.
    pub written: u64,
}

impl Lines {
    /// Bytes fetched.
    pub fn bytes_fetched(&self) -> u64 {
        self.fetched * 64
    }

    /// Bytes written.
    pub fn bytes_written(&self) -> u64 {
        self.written * 64
    }

    /// What came after `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            fetched: self.fetched - earlier.fetched,
            written: self.written - earlier.written,
        }
    }
}

impl std::ops::AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.fetched += other.fetched;
        self.written += other.written;
    }
}

/// What one host did to one device, or to its own memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ViewTraffic {
    /// The host's index.
    pub host: usize,
    /// The device's index; `None`: the host's own memory.
    pub device: Option<usize>,
    /// Lines that programs touched, in the cache or not.
    pub lines_touched: u64,
    /// Bytes that programs read.
    pub bytes_read: u64,
    /// Bytes that programs wrote.
    pub bytes_written: u64,
    /// Lines moved.
    pub moved: Lines,
    /// The same by the parts that the owner has named: the ring, the descriptors, the pages.
    pub parts: BTreeMap<&'static str, Lines>,
    /// Lines of pages, by the space that the page says it is of.
    pub spaces: BTreeMap<u32, Lines>,
    /// Reads of lines whose bytes in memory had changed since they were fetched.
    pub stale_reads: u64,
}

/// What can go wrong between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HazardKind {
    /// A line was invalidated that held changes: they were written back over what memory held.
    DirtyInvalidated,
    /// Two hosts hold changes of one line.
    TwoWriters,
    /// A line was changed whose bytes in memory had changed since it was fetched: another host's change will be lost.
    StaleWritten,
    /// A line in the cache differs from what was announced: a store that was not announced, which is lost.
    Unannounced,
}

impl fmt::Display for HazardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DirtyInvalidated => "a dirty line was invalidated",
            Self::TwoWriters => "two hosts write one line",
            Self::StaleWritten => "a stale line was written",
            Self::Unannounced => "a store was not announced",
        })
    }
}

/// Something that went wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hazard {
    /// What.
    pub kind: HazardKind,
    /// When, by the clock of the thread that did it.
    pub time: Nanos,
    /// On which host.
    pub host: usize,
    /// With which other host, if with one.
    pub other: Option<usize>,
    /// The thread's slot.
    pub thread: usize,
    /// The device's name.
    pub device: String,
    /// The named part that the line lies in, if any.
    pub part: Option<&'static str>,
    /// What lies there, as far as that is known: which page, in which frame.
    pub what: String,
    /// Where the line begins in the device.
    pub offset: u64,
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {:#x}", self.kind, self.device, self.offset)?;
        if self.part.is_some() {
            write!(f, " ({})", self.what)?;
        }
        write!(f, ", by thread {} of host {}", self.thread, self.host)?;
        if let Some(other) = self.other {
            write!(f, ", with host {other}")?;
        }
        write!(f, ", at {}", self.time)
    }
}

/// Hazards, counted; the first ones in full.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hazards {
    /// How many of each kind.
    pub counts: BTreeMap<HazardKind, u64>,
    /// The first of them.
    pub first: Vec<Hazard>,
}

/// Hazards kept in full.
const KEPT: usize = 64;

impl Hazards {
    /// How many of a kind.
    pub fn of(&self, kind: HazardKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(crate) fn add(&mut self, hazard: Hazard) {
        crate::trace::add(|| format!("HAZARD {hazard}"));
        *self.counts.entry(hazard.kind).or_default() += 1;
        if self.first.len() < KEPT {
            self.first.push(hazard);
        }
    }
}

/// Adds what came of one view to a sum.
pub(crate) fn add_to(sum: &mut ViewTraffic, one: &ViewTraffic) {
    sum.lines_touched += one.lines_touched;
    sum.bytes_read += one.bytes_read;
    sum.bytes_written += one.bytes_written;
    sum.moved += one.moved;
    sum.stale_reads += one.stale_reads;
    for (name, lines) in &one.parts {
        *sum.parts.entry(name).or_default() += *lines;
    }
    for (space, lines) in &one.spaces {
        *sum.spaces.entry(*space).or_default() += *lines;
    }
}
