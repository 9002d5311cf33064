//! How the bytes of far reads come, by size (Rcmp, section 5.5: RRPC).
//!
//! ```text
//!   plain     call ─► the host copies the bytes into its answer ─► answer
//!   direct    call, which lends memory ─► the host finds the bytes; its fabric sends them from where they lie ─► memory
//!                                       ─► the host looks whether they lie there still ─► answer
//! ```
//!
//! Little is faster plain, much direct: a copy is less, and a look more. From how many bytes of a message on is measured for each connection, when it is first
//! asked for so many that it may matter: probes of each size and mode, interleaved, for [`BUDGET`] at most. A look is for each read, so small ones stay plain in any company.

use super::Way;
use super::question::lost_call;
use super::wire::{self, DirectFrom, PROBE_MAX};
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Caller};
use std::sync::Arc;

/// How far reads are done: copied into answers (plain), or put into memory that the call lends (direct, without a copy of their own).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FarReads {
    /// Direct where so many bytes are read at once that it is faster, as was measured for the connection.
    #[default]
    Measured,
    /// Plain, however much.
    Plain,
    /// Direct where so many bytes and more are read at once.
    DirectFrom(u64),
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
}

/// Sizes that are probed.
const SIZES: [usize; 8] = [512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, PROBE_MAX];
/// Probes of each size and mode, at most; and those that it takes to say anything of one.
const TRIES: usize = 7;
const TRIES_MIN: usize = 3;
/// How long probing takes, at most.
pub const BUDGET: Nanos = Nanos::from_millis(20);
/// A gain of less is noise: in percent.
const GAIN: u64 = 3;
/// What a look costs more than the copy of so many bytes: smaller ones among many are plain. (Measured by `examples/modes.rs`, over shared memory.)
const EACH: u64 = 2 << 10;

/// Reads are plain until it is known.
const UNKNOWN: u64 = 0;
const BEING_PROBED: u64 = u64::MAX - 1;

/// A connection, and from how many bytes on its reads are direct.
pub struct Line {
    pub caller: Arc<dyn Caller>,
    /// The host's memory of what this user has asked for: another number when that was lost.
    pub memory: u64,
    reads: FarReads,
    from: AtomicU64,
    probed: Mutex<Vec<Probed>>,
}

impl Line {
    pub fn new(caller: Arc<dyn Caller>, memory: u64, reads: FarReads) -> Self {
        let from = match reads {
            FarReads::Measured => UNKNOWN,
            FarReads::Plain => u64::MAX,
            FarReads::DirectFrom(bytes) => bytes.max(1),
        };
        Self {
            caller,
            memory,
            reads,
            from: AtomicU64::new(from),
            probed: Mutex::default(),
        }
    }

    /// From how many bytes on reads are direct, if that is known and there is such a size.
    pub fn known(&self) -> Option<u64> {
        let from = self.from.load(Ordering::Relaxed);
        (from != UNKNOWN && from < BEING_PROBED).then_some(from)
    }

    /// What was measured.
    pub fn probed(&self) -> Vec<Probed> {
        self.probed.lock().clone()
    }

    /// Which of the reads of these lengths are direct. Whoever comes first with so many bytes that it may matter measures; the others do not wait for him.
    pub fn direct_from(&self, lens: impl Iterator<Item = u64> + Clone) -> DirectFrom {
        if lens.clone().sum::<u64>() >= SIZES[0] as u64 && self.take_probing() {
            let probed = probe(&*self.caller);
            self.from.store(crossover(&probed), Ordering::Relaxed);
            *self.probed.lock() = probed;
        }
        let from = match self.from.load(Ordering::Relaxed) {
            UNKNOWN => return DirectFrom::NEVER,
            from => from,
        };
        let each = match self.reads {
            FarReads::Measured => from.min(EACH),
            _ => 1,
        };
        match lens.filter(|len| *len >= each).sum::<u64>() >= from {
            true => DirectFrom(each),
            false => DirectFrom::NEVER,
        }
    }

    fn take_probing(&self) -> bool {
        let taken = self
            .from
            .compare_exchange(UNKNOWN, BEING_PROBED, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok()
    }
}

/// Measures. Sizes for which there was no time, or that failed, are not there.
fn probe(caller: &dyn Caller) -> Vec<Probed> {
    let until = rt::now() + BUDGET;
    let mut times = SIZES.map(|_| [Vec::new(), Vec::new()]);
    let mut memory = vec![0; PROBE_MAX];
    'all: for turn in 0..TRIES {
        for (n, size) in SIZES.into_iter().enumerate() {
            for mode in [turn % 2, (turn + 1) % 2] {
                match probe_once(caller, size, mode == 1, &mut memory, until) {
                    Ok(time) => times[n][mode].push(time),
                    Err(_) => break 'all,
                }
            }
        }
    }
    let sized = SIZES.into_iter().zip(times);
    sized
        .filter_map(|(size, [plain, direct])| probed(size, plain, direct))
        .collect()
}

/// The answer must be what was asked for, or it says nothing of how long that takes.
fn probe_once(caller: &dyn Caller, size: usize, is_direct: bool, memory: &mut Vec<u8>, until: Nanos) -> Result<Nanos> {
    let began = rt::now();
    if began >= until {
        return Err(Error::Timeout("no time is left to measure".into()));
    }
    let mut lent = Vec::new();
    if is_direct {
        lent = core::mem::take(memory);
        lent.resize(size, 0);
    }
    let call = Call::new(wire::probe(size, is_direct)).within(until - began);
    let call = caller.post(vec![call.into_memory(lent)]).wait().pop();
    let took = rt::now().since(began);
    let call = call.ok_or_else(lost_call)?;
    if is_direct {
        *memory = call.memory;
    }
    call.result?;
    match (is_direct, call.answer.len()) {
        (true, 0) => Ok(took),
        (false, len) if len == size => Ok(took),
        _ => Err(Error::corrupt("an answer to a probe")),
    }
}

fn probed(size: usize, plain: Vec<Nanos>, direct: Vec<Nanos>) -> Option<Probed> {
    Some(Probed {
        bytes: size as u64,
        plain: median(plain)?,
        direct: median(direct)?,
    })
}

fn median(mut times: Vec<Nanos>) -> Option<Nanos> {
    times.sort_unstable();
    let is_enough = times.len() >= TRIES_MIN;
    times.get(times.len() / 2).filter(|_| is_enough).copied()
}

/// The smallest size from which on all sizes are faster direct; the largest number if there is none, or not all are known.
fn crossover(probed: &[Probed]) -> u64 {
    if probed.len() < SIZES.len() {
        return u64::MAX;
    }
    let is_faster = |probed: &&Probed| probed.direct.raw() * 100 <= probed.plain.raw() * (100 - GAIN);
    let fastest = probed.iter().rev().take_while(is_faster).last();
    fastest.map_or(u64::MAX, |probed| probed.bytes)
}

/// Reads of a part that this process does not map, and how they were done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FarStats {
    /// The part.
    pub part: u8,
    /// From how many bytes at once on reads are direct, over the connection that there is; none if they never are, or that is not known yet.
    pub direct_from: Option<u64>,
    /// What was measured for that connection, by size.
    pub probed: Vec<Probed>,
    /// Reads whose bytes came in answers.
    pub plain: u64,
    /// Reads whose bytes came into memory that was lent.
    pub direct: u64,
}

/// Reads that were asked for.
#[derive(Default)]
pub struct Counted {
    plain: AtomicU64,
    direct: AtomicU64,
}

impl Counted {
    pub fn count(&self, reads: usize, direct: usize) {
        self.direct.fetch_add(direct as u64, Ordering::Relaxed);
        self.plain.fetch_add((reads - direct) as u64, Ordering::Relaxed);
    }
}

impl Way {
    /// What is known of reads by this way, to a part.
    pub(in super::super) fn stats(&self, part: u8) -> FarStats {
        let line = self.line.lock().clone();
        FarStats {
            part,
            direct_from: line.as_ref().and_then(|line| line.known()),
            probed: line.map_or(Vec::new(), |line| line.probed()),
            plain: self.counted.plain.load(Ordering::Relaxed),
            direct: self.counted.direct.load(Ordering::Relaxed),
        }
    }
}

/// Memory that calls lend, and room for requests and answers, used again and again. A buffer comes back with its call, so nobody writes to it by then.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fabric::rdma::call::{Called, CallerId};

    fn probed(times: &[(u64, u64)]) -> Vec<Probed> {
        let sized = SIZES.into_iter().zip(times);
        let one = |(size, (plain, direct)): (usize, &(u64, u64))| Probed {
            bytes: size as u64,
            plain: Nanos(*plain),
            direct: Nanos(*direct),
        };
        sized.map(one).collect()
    }

    #[test]
    fn reads_are_direct_from_the_size_on_from_which_all_are_faster() {
        let slower = (10, 11);
        let crossing = [
            slower,
            (10, 9),
            slower,
            (20, 15),
            (30, 20),
            (40, 30),
            (50, 40),
            (60, 50),
        ];
        assert_eq!(
            crossover(&probed(&crossing)),
            4 << 10,
            "one that is faster by chance does not count"
        );
        assert_eq!(crossover(&probed(&[(10, 9); 8])), 512);
        assert_eq!(crossover(&probed(&[(100, 98); 8])), u64::MAX, "noise is no gain");
    }

    /// On a busy machine there was time for the smallest sizes alone, and chance made reads of all sizes direct.
    #[test]
    fn what_was_not_measured_is_not_believed() {
        assert_eq!(crossover(&[]), u64::MAX);
        assert_eq!(crossover(&probed(&[(10, 9); 3])), u64::MAX);
    }

    /// Answers nobody: its reads are decided about, not done.
    #[derive(Debug)]
    struct Nobody;

    impl Caller for Nobody {
        fn peer(&self) -> &str {
            "nobody"
        }

        fn id(&self) -> CallerId {
            CallerId(1)
        }

        fn post(&self, mut calls: Vec<Call>) -> Called {
            let lost = |call: &mut Call| call.result = Err(Error::Lost("nobody is there".into()));
            calls.iter_mut().for_each(lost);
            Called::done(calls)
        }
    }

    #[test]
    fn what_is_read_at_once_decides_and_small_ones_stay_plain() {
        let line = |reads| Line::new(Arc::new(Nobody), 1, reads);
        let measured = line(FarReads::Measured);
        measured.from.store(16 << 10, Ordering::Relaxed);
        let direct = |line: &Line, lens: &[u64]| line.direct_from(lens.iter().copied());
        assert_eq!(direct(&measured, &[16 << 10]), DirectFrom(EACH));
        assert_eq!(direct(&measured, &[(16 << 10) - 1]), DirectFrom::NEVER);
        assert_eq!(
            direct(&measured, &[4 << 10; 4]),
            DirectFrom(EACH),
            "together they are as much"
        );
        assert_eq!(direct(&measured, &[64; 1000]), DirectFrom::NEVER, "a look each");
        measured.from.store(512, Ordering::Relaxed);
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
