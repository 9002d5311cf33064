//! How the bytes of far reads come, by size (Rcmp, section 5.5: RRPC).
//!
//! ```text
//!   plain      call ─► the host copies the bytes into its answer ─► answer
//!   direct     call, which lends memory ─► the host finds the bytes; its fabric sends them from where they lie ─► memory
//!                                        ─► the host looks whether they lie there still ─► answer
//!   one-sided  the same, but that the host's fabric writes them into the memory by RMA: no code of the reader's runs for them where a card does it (providers in software do it
//!              when the reader's side looks for completions)
//!   fetched    no call: the reader's card reads them from where they lie, and looks again ([`super::fetcher`])
//! ```
//!
//! Little is faster plain, much in one of the other ways: a copy is less, and a look more. Which is the fastest at
//! which size is measured for each connection, when it is first asked for so many bytes that it may matter: probes of
//! each size and mode, interleaved, for [`BUDGET`] at most. A look is for each read, so small ones stay plain in any
//! company.

use super::fetcher::Fetcher;
use super::wire::{self, DirectFrom, PROBE_MAX};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Caller, Memory};
use std::sync::Arc;

/// How far reads are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FarReads {
    /// As is fastest for so many bytes at once, as was measured for the connection.
    #[default]
    Measured,
    /// Plain, however much.
    Plain,
    /// Direct where so many bytes and more are read at once.
    DirectFrom(u64),
    /// One-sided where so many bytes and more are read at once; direct if the connection cannot do that.
    OneSidedFrom(u64),
    /// Fetched by the reader's card, each of so many bytes and more, where that can be; others are plain.
    FetchedFrom(u64),
}

impl FarReads {
    /// Whether a card may fetch.
    pub(super) fn may_fetch(self) -> bool {
        matches!(self, FarReads::Measured | FarReads::FetchedFrom(_))
    }
}

/// How the bytes of a read come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FarMode {
    /// Copied into the answer.
    Plain = 0,
    /// In messages, into memory that the call lends.
    Direct = 1,
    /// Into memory that the call lends, written there by the host's fabric.
    OneSided = 2,
    /// Read by the reader's card from where they lie: no code of the host runs.
    Fetched = 3,
}

/// What probes of one size took, in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probed {
    /// Bytes that were asked for.
    pub bytes: u64,
    /// In the answer.
    pub plain: Nanos,
    /// In memory that the call lent.
    pub direct: Nanos,
    /// In memory that the call lent, one-sided; none if the connection cannot do that.
    pub one_sided: Option<Nanos>,
    /// Read by the reader's card; none if the node does not offer its memory.
    pub fetched: Option<Nanos>,
}

/// Sizes that are probed.
const SIZES: [usize; 8] = [512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, PROBE_MAX];
const MODES: [FarMode; 4] = [FarMode::Plain, FarMode::Direct, FarMode::OneSided, FarMode::Fetched];
/// Probes of each size and mode, at most; and those that it takes to say anything of one.
const TRIES: usize = 7;
const TRIES_MIN: usize = 3;
/// How long probing takes, at most.
pub const BUDGET: Nanos = Nanos::from_millis(20);
/// A gain of less is noise: in percent.
const GAIN: u64 = 3;
/// What a look costs more than the copy of so many bytes: smaller ones among many are plain. (Measured by
/// `examples/modes.rs`, over shared memory.)
const EACH: u64 = 2 << 10;

/// The fastest mode of each size, from the smallest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ModeTable([FarMode; SIZES.len()]);

impl ModeTable {
    /// Reads are plain until it is known.
    const PLAIN: Self = Self([FarMode::Plain; SIZES.len()]);

    /// Which is fastest. Plain up to the smallest size from which on one of the others is always faster, and if not all
    /// sizes are known.
    fn of(probed: &[Probed]) -> Self {
        let mut table = Self::PLAIN;
        if probed.len() < SIZES.len() {
            return table;
        }
        let chosen = probed.iter().map(Probed::other);
        let is_faster = |(probed, (_, time)): &(&Probed, (FarMode, Nanos))| is_gain(*time, probed.plain);
        let count = probed.iter().zip(chosen.clone()).rev().take_while(is_faster).count();
        for (mode, (other, _)) in table.0.iter_mut().zip(chosen).skip(SIZES.len() - count) {
            *mode = other;
        }
        table
    }

    /// The mode of so many bytes.
    fn mode(self, bytes: u64) -> FarMode {
        let sizes = SIZES.iter().zip(self.0);
        let below = sizes.take_while(|(size, _)| **size as u64 <= bytes);
        below.last().map_or(FarMode::Plain, |(_, mode)| mode)
    }

    /// From how many bytes on reads are not plain.
    fn from(self) -> u64 {
        let first = SIZES.iter().zip(self.0).find(|(_, mode)| *mode != FarMode::Plain);
        first.map_or(u64::MAX, |(size, _)| *size as u64)
    }

    fn to_bits(self) -> u64 {
        self.0.iter().rev().fold(0, |bits, mode| bits << 2 | *mode as u64)
    }

    fn from_bits(bits: u64) -> Self {
        Self(core::array::from_fn(|n| match bits >> (2 * n) & 3 {
            1 => FarMode::Direct,
            2 => FarMode::OneSided,
            3 => FarMode::Fetched,
            _ => FarMode::Plain,
        }))
    }
}

impl Probed {
    /// What is taken if it is not plain, and its time.
    fn other(&self) -> (FarMode, Nanos) {
        let (mode, time) = match self.one_sided.filter(|one_sided| is_gain(*one_sided, self.direct)) {
            Some(one_sided) => (FarMode::OneSided, one_sided),
            None => (FarMode::Direct, self.direct),
        };
        match self.fetched.filter(|fetched| is_gain(*fetched, time)) {
            Some(fetched) => (FarMode::Fetched, fetched),
            None => (mode, time),
        }
    }
}

fn is_gain(time: Nanos, than: Nanos) -> bool {
    time.raw() * 100 <= than.raw() * (100 - GAIN)
}

/// What is known of a connection.
const UNKNOWN: u64 = 0;
const BEING_PROBED: u64 = 1 << 32;
/// The rest is the table.
const KNOWN: u64 = 1 << 33;

// Two bits for each size, below the bits that say what is known.
const _: () = assert!(1 << (2 * SIZES.len()) <= BEING_PROBED && BEING_PROBED & KNOWN == 0);
const _: () = assert!(FarMode::Plain as usize == 0 && FarMode::Fetched as usize + 1 == MODES.len());
const _: () = assert!(0 < TRIES_MIN && TRIES_MIN <= TRIES && GAIN < 100);
const _: () = assert!(SIZES[0] < SIZES[1] && SIZES[SIZES.len() - 2] < SIZES[SIZES.len() - 1]);

/// A connection, and how reads over it are done.
pub struct Line {
    pub caller: Arc<dyn Caller>,
    /// The host's memory of what this user has asked for: another number when that was lost.
    pub memory: u64,
    reads: FarReads,
    /// Where the node offers its memory.
    fetcher: Mutex<Option<Arc<Fetcher>>>,
    state: AtomicU64,
    probed: Mutex<Vec<Probed>>,
}

impl Line {
    pub fn new(caller: Arc<dyn Caller>, memory: u64, reads: FarReads) -> Self {
        Self {
            caller,
            memory,
            reads,
            fetcher: Mutex::default(),
            state: AtomicU64::new(UNKNOWN),
            probed: Mutex::default(),
        }
    }

    /// The same, with what reads the node's memory.
    pub(super) fn fetching(self, fetcher: Option<Fetcher>) -> Self {
        let fetcher = Mutex::new(fetcher.map(Arc::new));
        Self { fetcher, ..self }
    }

    /// What reads the node's memory, if that still can.
    fn any_fetcher(&self) -> Option<Arc<Fetcher>> {
        let mut fetcher = self.fetcher.lock();
        fetcher.take_if(|fetcher| fetcher.is_over());
        fetcher.clone()
    }

    /// Another one for the same memory.
    pub(super) fn renew_fetcher(&self, former: &Fetcher, fetcher: Fetcher) {
        *self.fetcher.lock() = Some(Arc::new(fetcher.after(former)));
    }

    /// What fetches a read of so many bytes, if that is the way it is done.
    pub(super) fn fetcher(&self, len: u64) -> Option<Arc<Fetcher>> {
        let is_fetched = match self.reads {
            // What is fastest for the smallest size that was measured is for smaller ones, too: they cost the host more.
            FarReads::Measured => self.table()?.mode(len.max(SIZES[0] as u64)) == FarMode::Fetched,
            FarReads::FetchedFrom(bytes) => len >= bytes,
            FarReads::Plain | FarReads::DirectFrom(_) | FarReads::OneSidedFrom(_) => false,
        };
        is_fetched.then(|| self.any_fetcher()).flatten()
    }

    fn table(&self) -> Option<ModeTable> {
        let state = self.state.load(Ordering::Relaxed);
        (state & KNOWN != 0).then(|| ModeTable::from_bits(state))
    }

    /// From how many bytes on reads are not plain; the largest number: never, or it is not known yet.
    fn from(&self) -> u64 {
        match self.reads {
            FarReads::Measured => self.table().map_or(u64::MAX, ModeTable::from),
            FarReads::Plain | FarReads::FetchedFrom(_) => u64::MAX,
            FarReads::DirectFrom(bytes) | FarReads::OneSidedFrom(bytes) => bytes.max(1),
        }
    }

    /// From how many bytes on reads are not plain, if that is known and there is such a size.
    pub fn known(&self) -> Option<u64> {
        Some(self.from()).filter(|from| *from < u64::MAX)
    }

    /// What was measured.
    pub fn probed(&self) -> Vec<Probed> {
        self.probed.lock().clone()
    }

    /// What was chosen, by size.
    pub fn modes(&self) -> Vec<(u64, FarMode)> {
        let modes = self.table().into_iter().flat_map(|table| table.0);
        SIZES.iter().map(|size| *size as u64).zip(modes).collect()
    }

    /// Which of the reads of these lengths bring bytes into memory. The first thread with so many bytes that it may
    /// matter measures; the others do not wait for it.
    pub fn direct_from(&self, lens: impl Iterator<Item = u64> + Clone) -> DirectFrom {
        if lens.clone().sum::<u64>() >= SIZES[0] as u64 && self.take_probing() {
            let probed = probe(&*self.caller, self.any_fetcher().as_deref());
            self.know(ModeTable::of(&probed));
            *self.probed.lock() = probed;
        }
        let from = self.from();
        let each = match self.reads {
            FarReads::Measured => from.min(EACH),
            _ => 1,
        };
        match lens.filter(|len| *len >= each).sum::<u64>() >= from {
            true => DirectFrom(each),
            false => DirectFrom::NEVER,
        }
    }

    /// Memory that the host can write to by itself, for a call that lends so much: if that is the faster way, and there
    /// is any.
    pub(super) fn lend(&self, len: usize) -> Option<Memory> {
        let is_one_sided = match self.reads {
            FarReads::Measured => self.table()?.mode(len as u64) == FarMode::OneSided,
            FarReads::OneSidedFrom(_) => true,
            FarReads::Plain | FarReads::DirectFrom(_) | FarReads::FetchedFrom(_) => false,
        };
        is_one_sided.then(|| self.caller.lend(len)).flatten()
    }

    fn know(&self, table: ModeTable) {
        assert_eq!(
            ModeTable::from_bits(table.to_bits()),
            table,
            "a table is read as it was written"
        );
        self.state.store(KNOWN | table.to_bits(), Ordering::Relaxed);
    }

    fn take_probing(&self) -> bool {
        let take = || {
            self.state
                .compare_exchange(UNKNOWN, BEING_PROBED, Ordering::Relaxed, Ordering::Relaxed)
        };
        self.reads == FarReads::Measured && take().is_ok()
    }
}

/// Measures. Sizes for which there was no time, or that failed, are not there.
fn probe(caller: &dyn Caller, fetcher: Option<&Fetcher>) -> Vec<Probed> {
    let until = rt::now() + BUDGET;
    let mut times = SIZES.map(|_| [const { Vec::new() }; MODES.len()]);
    let mut memory = vec![0; PROBE_MAX];
    'all: for turn in 0..TRIES {
        for (n, size) in SIZES.into_iter().enumerate() {
            for mode in (0..MODES.len()).map(|mode| MODES[(turn + mode) % MODES.len()]) {
                if mode == FarMode::Fetched {
                    times[n][mode as usize].extend(fetcher.and_then(|fetcher| probe_fetching(fetcher, size)));
                    continue;
                }
                let Some(lent) = memory_of(caller, mode, size, &mut memory) else {
                    continue;
                };
                match probe_once(caller, size, lent, until) {
                    Ok((time, lent)) => {
                        times[n][mode as usize].push(time);
                        let plain = lent.into_plain();
                        memory = if plain.is_empty() { memory } else { plain };
                    }
                    Err(_) => break 'all,
                }
            }
        }
    }
    let sized = SIZES.into_iter().zip(times);
    sized.filter_map(|(size, times)| probed(size, times)).collect()
}

/// What a probe of this mode lends; none if there is no such mode.
fn memory_of(caller: &dyn Caller, mode: FarMode, size: usize, memory: &mut Vec<u8>) -> Option<Memory> {
    match mode {
        FarMode::Plain => Some(Memory::default()),
        FarMode::Direct => {
            let mut lent = core::mem::take(memory);
            lent.resize(size, 0);
            Some(lent.into())
        }
        FarMode::OneSided => caller.lend(size),
        FarMode::Fetched => None,
    }
}

fn probe_fetching(fetcher: &Fetcher, size: usize) -> Option<Nanos> {
    let began = rt::now();
    fetcher.probe(size).then(|| rt::now().since(began))
}

/// The answer must be what was asked for, or it says nothing of how long that takes. The memory comes back.
fn probe_once(caller: &dyn Caller, size: usize, lent: Memory, until: Nanos) -> Result<(Nanos, Memory)> {
    let began = rt::now();
    if began >= until {
        return Err(Error::Timeout("no time is left to measure".into()));
    }
    let into_memory = !lent.is_empty();
    let call = Call::new(wire::probe(size, into_memory)).within(until - began);
    let call = caller.post(vec![call.into_memory(lent)]).wait().pop();
    let took = rt::now().since(began);
    let call = call.ok_or_else(lost_call)?;
    call.result?;
    match (into_memory, call.answer.len()) {
        (true, 0) => Ok((took, call.memory)),
        (false, len) if len == size => Ok((took, call.memory)),
        _ => Err(Error::corrupt("an answer to a probe")),
    }
}

fn probed(size: usize, [plain, direct, one_sided, fetched]: [Vec<Nanos>; MODES.len()]) -> Option<Probed> {
    Some(Probed {
        bytes: size as u64,
        plain: median(plain)?,
        direct: median(direct)?,
        one_sided: median(one_sided),
        fetched: median(fetched),
    })
}

fn median(mut times: Vec<Nanos>) -> Option<Nanos> {
    times.sort_unstable();
    let is_enough = times.len() >= TRIES_MIN;
    times.get(times.len() / 2).filter(|_| is_enough).copied()
}

/// Reads of a part that this process does not map, and how they were done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FarStats {
    /// The part.
    pub part: u8,
    /// From how many bytes at once on reads are not plain, over the connection that there is; none if they always are,
    /// or that is not known yet.
    pub direct_from: Option<u64>,
    /// How many bytes are read in which way, from that many up to the next size: as was measured for that connection.
    pub modes: Vec<(u64, FarMode)>,
    /// What was measured for that connection, by size.
    pub probed: Vec<Probed>,
    /// Reads whose bytes came in answers.
    pub plain: u64,
    /// Reads whose bytes came into memory that was lent, in messages.
    pub direct: u64,
    /// Reads whose bytes were written to memory that was lent.
    pub one_sided: u64,
    /// Reads that the reader's card did.
    pub fetched: u64,
}

/// Reads that were asked for.
#[derive(Default)]
pub struct Counted {
    pub(super) plain: AtomicU64,
    pub(super) direct: AtomicU64,
    pub(super) one_sided: AtomicU64,
    pub(super) fetched: AtomicU64,
}

impl Counted {
    pub fn count(&self, reads: usize, mode: FarMode) {
        let counter = match mode {
            FarMode::Plain => &self.plain,
            FarMode::Direct => &self.direct,
            FarMode::OneSided => &self.one_sided,
            FarMode::Fetched => &self.fetched,
        };
        counter.fetch_add(reads as u64, Ordering::Relaxed);
    }
}

/// Memory that calls lend, and room for requests and answers, used again and again. A buffer comes back with its call,
/// so nothing writes to it by then.
#[derive(Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

/// Buffers that are kept.
const KEPT: usize = 24;

impl Buffers {
    pub fn take(&self, len: usize) -> Vec<u8> {
        if len == 0 {
            return Vec::new();
        }
        let mut buffer = self.any();
        buffer.resize(len, 0);
        buffer
    }

    /// Whatever there is.
    pub fn any(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    pub fn give(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock();
        if buffer.capacity() > 0 && kept.len() < KEPT {
            kept.push(buffer);
            assert!(kept.len() <= KEPT, "{} buffers are kept", kept.len());
        }
    }
}

/// A call that did not come back from its caller.
pub fn lost_call() -> Error {
    Error::Lost("a caller lost a call".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fabric::rdma::call::{Called, CallerId};

    /// Plain, direct, one-sided; 0: not possible.
    fn probed(times: &[(u64, u64, u64)]) -> Vec<Probed> {
        let sized = SIZES.into_iter().zip(times);
        let one = |(size, (plain, direct, one_sided)): (usize, &(u64, u64, u64))| Probed {
            bytes: size as u64,
            plain: Nanos(*plain),
            direct: Nanos(*direct),
            one_sided: (*one_sided > 0).then_some(Nanos(*one_sided)),
            fetched: None,
        };
        sized.map(one).collect()
    }

    fn from(times: &[(u64, u64, u64)]) -> u64 {
        ModeTable::of(&probed(times)).from()
    }

    #[test]
    fn reads_are_direct_from_the_size_on_from_which_all_are_faster() {
        let slower = (10, 11, 0);
        let crossing = [
            slower,
            (10, 9, 0),
            slower,
            (20, 15, 0),
            (30, 20, 0),
            (40, 30, 0),
            (50, 40, 0),
            (60, 50, 0),
        ];
        assert_eq!(from(&crossing), 4 << 10, "one that is faster by chance does not count");
        assert_eq!(from(&[(10, 9, 0); 8]), 512);
        assert_eq!(from(&[(100, 98, 99); 8]), u64::MAX, "noise is no gain");
        assert_eq!(from(&[(100, 99, 97); 8]), u64::MAX, "direct would be taken, for 1%");
    }

    #[test]
    fn each_size_is_read_in_the_way_that_is_fastest() {
        use FarMode::{Direct, OneSided, Plain};
        let times = [
            (10, 20, 30),
            (10, 20, 9),
            (10, 11, 12),
            (100, 90, 80),
            (100, 120, 90),
            (100, 80, 79),
            (100, 80, 0),
            (100, 80, 60),
        ];
        let table = ModeTable::of(&probed(&times));
        let modes = [Plain, Plain, Plain, OneSided, OneSided, Direct, Direct, OneSided];
        assert_eq!(table.0, modes);
        assert_eq!(ModeTable::from_bits(table.to_bits()), table);
        let at = |bytes| table.mode(bytes);
        assert_eq!((at(0), at(4095), at(4096)), (Plain, Plain, OneSided));
        assert_eq!((at(16 << 10), at(64 << 10), at(u64::MAX)), (Direct, OneSided, OneSided));
    }

    #[test]
    fn what_a_card_fetches_fastest_is_fetched() {
        let mut all = probed(&[(10, 9, 8); 8]);
        all.iter_mut().for_each(|probed| probed.fetched = Some(Nanos(5)));
        all[7].fetched = Some(Nanos(8));
        let table = ModeTable::of(&all);
        assert_eq!(table.0[..7], [FarMode::Fetched; 7]);
        assert_eq!(table.0[7], FarMode::OneSided, "3% less is no gain");
        assert_eq!(ModeTable::from_bits(table.to_bits()), table);
    }

    /// On a busy machine there was time for the smallest sizes alone, and chance made reads of all sizes direct.
    #[test]
    fn what_was_not_measured_is_not_believed() {
        assert_eq!(from(&[]), u64::MAX);
        assert_eq!(from(&[(10, 9, 8); 3]), u64::MAX);
    }

    /// Answers no call: the test looks at how reads would be done.
    #[derive(Debug)]
    struct NoPeer;

    impl Caller for NoPeer {
        fn peer(&self) -> &str {
            "no peer"
        }

        fn id(&self) -> CallerId {
            CallerId(1)
        }

        fn post(&self, mut calls: Vec<Call>) -> Called {
            let lost = |call: &mut Call| call.result = Err(Error::Lost("no node is there".into()));
            calls.iter_mut().for_each(lost);
            Called::done(calls)
        }
    }

    #[test]
    fn what_is_read_at_once_decides_and_small_ones_stay_plain() {
        let line = |reads| Line::new(Arc::new(NoPeer), 1, reads);
        let measured = line(FarReads::Measured);
        let know = |times: [(u64, u64, u64); 8]| measured.know(ModeTable::of(&probed(&times)));
        let (slow, fast) = ((9, 10, 10), (10, 9, 10));
        know([slow, slow, slow, slow, slow, fast, fast, fast]);
        let direct = |line: &Line, lens: &[u64]| line.direct_from(lens.iter().copied());
        assert_eq!(direct(&measured, &[16 << 10]), DirectFrom(EACH));
        assert_eq!(direct(&measured, &[(16 << 10) - 1]), DirectFrom::NEVER);
        assert_eq!(
            direct(&measured, &[4 << 10; 4]),
            DirectFrom(EACH),
            "together they are as much"
        );
        assert_eq!(direct(&measured, &[64; 1000]), DirectFrom::NEVER, "a look each");
        know([fast; 8]);
        assert_eq!(direct(&measured, &[512]), DirectFrom(512));
        assert_eq!(direct(&line(FarReads::Plain), &[64 << 10]), DirectFrom::NEVER);
        assert_eq!(direct(&line(FarReads::DirectFrom(100)), &[99]), DirectFrom::NEVER);
        assert_eq!(direct(&line(FarReads::DirectFrom(100)), &[50, 50]), DirectFrom(1));
        let unknown = line(FarReads::Measured);
        assert_eq!(direct(&unknown, &[64 << 10]), DirectFrom::NEVER);
        assert!(
            unknown.known().is_none() && !unknown.take_probing(),
            "it cannot be measured, and is not again"
        );
    }

    #[test]
    fn the_median_is_one_of_them() {
        assert_eq!(median(vec![Nanos(9), Nanos(1), Nanos(3)]), Some(Nanos(3)));
        assert_eq!(median(vec![Nanos(9), Nanos(1)]), None, "too few to say anything");
    }
}
