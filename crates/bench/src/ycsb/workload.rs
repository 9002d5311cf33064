//! YCSB's core workloads: what share of the operations is what, and on which records.
//!
//! Cooper et al., "Benchmarking cloud serving systems with YCSB" (SoCC 2010), and the files `workloads/workload[a-f]`
//! of its repository.

use super::choose::{Chooser, Random, Zipfian};
use crate::{Error, Result};

/// One of A to F.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95% reads, 5% updates.
    B,
    /// Reads alone.
    C,
    /// 95% reads of what is new, 5% inserts.
    D,
    /// 95% scans of 1 to 100 records, 5% inserts. Keys of a hash table have no order: a scan is as many look-ups, of
    /// records that follow each other in number.
    E,
    /// Half reads, half reads each with an update of the same record after it.
    F,
}

/// Records of the longest scan.
const SCAN_MAX: u64 = 100;

/// How the records of A, B, C, E and F are chosen. (D reads the latest.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Zipf, exponent 0.99, dispersed over all records.
    Zipfian,
    /// Each as often as any other.
    Uniform,
}

impl std::str::FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            "c" => Ok(Self::C),
            "d" => Ok(Self::D),
            "e" => Ok(Self::E),
            "f" => Ok(Self::F),
            _ => Err(Error::Refused(format!(
                "there is no workload {text:?}: there are a to f"
            ))),
        }
    }
}

impl Workload {
    /// What the n-th of a hundred operations is.
    #[inline]
    fn kind(self, n: u64) -> Kind {
        match (self, n) {
            (Self::A | Self::F, ..50) | (Self::B | Self::D, ..95) | (Self::C, _) => Kind::Read,
            (Self::A | Self::B, _) => Kind::Update,
            (Self::E, ..95) => Kind::Scan,
            (Self::D | Self::E, _) => Kind::Insert,
            (Self::F, _) => Kind::ReadModifyWrite,
        }
    }
}

/// What is done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All of it is read.
    Read,
    /// A field is written (or all of it, where it is one value).
    Update,
    /// All of several records is read.
    Scan,
    /// It is new.
    Insert,
    /// Read, then updated.
    ReadModifyWrite,
    /// It goes: not YCSB's, but what puts things as they were after inserts.
    Remove,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// What.
    pub kind: Kind,
    /// The record's number.
    pub record: u64,
    /// How many records, from that one on: one, but for scans.
    pub count: u32,
    /// From one of them to the next.
    pub step: u64,
    /// What else is to be drawn: field and value.
    pub bits: u64,
}

impl Operation {
    /// The records' numbers.
    pub fn records(self) -> impl ExactSizeIterator<Item = u64> + Clone {
        (0..self.count).map(move |n| self.record + u64::from(n) * self.step)
    }
}

/// A worker's operations, one after the other: decided by the seed.
pub struct Stream {
    random: Random,
    source: Source,
    worker: u64,
    workers: u64,
    records: u64,
    inserts: Inserts,
}

/// Where operations come from.
enum Source {
    /// A workload's.
    Mix(Workload, Chooser),
    /// These records of the worker's own, each once.
    Each(Kind, core::ops::Range<u64>),
}

/// Records that this worker has added. Each worker reads its own alone beside those that were there at first: which
/// these are does not depend on the others.
#[derive(Debug, Clone, Copy, Default)]
struct Inserts {
    begun: u64,
    done: u64,
    max: u64,
}

impl Stream {
    /// Of a workload, for one of several workers. Each may insert up to `inserts` records.
    pub fn new(
        workload: Workload,
        distribution: Distribution,
        records: u64,
        (worker, workers): (u64, u64),
        seed: u64,
        inserts: u64,
    ) -> Self {
        let chooser = match (workload, distribution) {
            (Workload::D, _) => Chooser::Latest(Zipfian::new(records)),
            (_, Distribution::Zipfian) => Chooser::scrambled(),
            (_, Distribution::Uniform) => Chooser::Uniform,
        };
        let mut stream = Self::of(Source::Mix(workload, chooser), records, (worker, workers), seed);
        stream.inserts.max = inserts;
        stream
    }

    /// Inserts all records: a worker's share of them.
    pub fn load(records: u64, worker: (u64, u64), seed: u64) -> Self {
        let own = records.saturating_sub(worker.0).div_ceil(worker.1);
        Self::of(Source::Each(Kind::Insert, 0..own), 0, worker, seed)
    }

    /// Removes what a worker's stream has inserted.
    pub fn undo(&self) -> Self {
        let source = Source::Each(Kind::Remove, 0..self.inserts.begun);
        Self::of(source, self.records, (self.worker, self.workers), 0)
    }

    fn of(source: Source, records: u64, (worker, workers): (u64, u64), seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ worker << 32),
            source,
            worker,
            workers,
            records,
            inserts: Inserts::default(),
        }
    }

    /// The number of the worker's own n-th record.
    fn own(&self, n: u64) -> u64 {
        self.records + n * self.workers + self.worker
    }

    /// The n-th of the records that this worker may read.
    #[inline]
    fn known(&self, n: u64) -> u64 {
        match n.checked_sub(self.records) {
            None => n,
            Some(inserted) => self.own(inserted),
        }
    }

    /// How many records a scan has that begins with the n-th of those that this worker may read, and how far they are
    /// apart: it ends with what was loaded, or with what this worker has inserted.
    fn to_scan(&self, n: u64, bits: u64) -> (u32, u64) {
        let (left, step) = match n < self.records {
            true => (self.records - n, 1),
            false => (self.records + self.inserts.done - n, self.workers),
        };
        ((1 + bits % SCAN_MAX).min(left.max(1)) as u32, step)
    }

    fn new_record(&mut self) -> Option<u64> {
        let n = self.inserts.begun;
        let is_room = n < self.inserts.max;
        self.inserts.begun += u64::from(is_room);
        is_room.then(|| self.own(n))
    }

    /// So many inserts have been done: from now on they may be read.
    #[inline]
    pub fn acknowledge(&mut self, inserts: u64) {
        self.inserts.done += inserts;
    }
}

/// Operations in turn; no more if all are done, or there is no more room for inserts.
impl Iterator for Stream {
    type Item = Operation;

    #[inline]
    fn next(&mut self) -> Option<Operation> {
        let (kind, record, n) = match &mut self.source {
            Source::Each(kind, left) => {
                let (kind, n) = (*kind, left.next()?);
                (kind, self.own(n), n)
            }
            Source::Mix(workload, chooser) => match workload.kind(self.random.below(100)) {
                Kind::Insert => (Kind::Insert, self.new_record()?, 0),
                kind => {
                    let n = chooser.next(&mut self.random, self.records + self.inserts.done);
                    (kind, self.known(n), n)
                }
            },
        };
        let bits = self.random.bits();
        let (count, step) = match kind {
            Kind::Scan => self.to_scan(n, bits),
            _ => (1, 1),
        };
        Some(Operation {
            kind,
            record,
            count,
            step,
            bits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const RECORDS: u64 = 1000;

    fn stream(workload: Workload, worker: u64, seed: u64) -> Stream {
        Stream::new(workload, Distribution::Zipfian, RECORDS, (worker, 3), seed, u64::MAX)
    }

    /// As a worker uses it: each insert is acknowledged.
    fn operations(stream: &mut Stream, count: usize) -> Vec<Operation> {
        let done = |stream: &mut Stream| {
            let operation = stream.next()?;
            stream.acknowledge(u64::from(operation.kind == Kind::Insert));
            Some(operation)
        };
        (0..count).map_while(|_| done(stream)).collect()
    }

    #[test]
    fn workloads_have_the_shares_that_ycsb_gives_them() {
        for (workload, kind, share) in [
            (Workload::A, Kind::Read, 0.5),
            (Workload::A, Kind::Update, 0.5),
            (Workload::B, Kind::Read, 0.95),
            (Workload::B, Kind::Update, 0.05),
            (Workload::C, Kind::Read, 1.0),
            (Workload::D, Kind::Read, 0.95),
            (Workload::D, Kind::Insert, 0.05),
            (Workload::E, Kind::Scan, 0.95),
            (Workload::E, Kind::Insert, 0.05),
            (Workload::F, Kind::Read, 0.5),
            (Workload::F, Kind::ReadModifyWrite, 0.5),
        ] {
            let all = operations(&mut stream(workload, 0, 1), 100_000);
            let found = all.iter().filter(|operation| operation.kind == kind).count() as f64 / all.len() as f64;
            assert!(
                (found - share).abs() < 0.01,
                "{workload:?} {kind:?}: {found}, not {share}"
            );
        }
    }

    #[test]
    fn a_seed_decides_a_stream_and_workers_differ() {
        let all = |worker, seed| operations(&mut stream(Workload::D, worker, seed), 10_000);
        assert_eq!(all(1, 7), all(1, 7));
        assert_ne!(all(1, 7), all(1, 8));
        assert_ne!(all(1, 7), all(2, 7));
    }

    /// Only what is there is read, and no two workers insert the same record.
    #[test]
    fn what_is_read_was_loaded_or_inserted_before() {
        for workload in [Workload::D, Workload::E] {
            let mut inserted_by_all = BTreeSet::new();
            for worker in 0..3 {
                let mut there: BTreeSet<u64> = (0..RECORDS).collect();
                let mut stream = stream(workload, worker, 9);
                for operation in operations(&mut stream, 30_000) {
                    match operation.kind {
                        Kind::Insert => {
                            assert!(there.insert(operation.record) && inserted_by_all.insert(operation.record));
                        }
                        _ => assert!(
                            operation.records().all(|record| there.contains(&record)),
                            "{operation:?}"
                        ),
                    }
                }
                for operation in operations(&mut stream.undo(), usize::MAX) {
                    assert!(operation.kind == Kind::Remove && there.remove(&operation.record));
                }
                assert_eq!(there, (0..RECORDS).collect());
            }
        }
    }

    #[test]
    fn all_workers_together_load_each_record_once() {
        for workers in [1, 3, 7] {
            let all = (0..workers).flat_map(|worker| Stream::load(RECORDS, (worker, workers), 1));
            let mut numbers: Vec<u64> = all.map(|operation| operation.record).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..RECORDS).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_stream_ends_where_there_is_no_more_room() {
        let mut stream = Stream::new(Workload::D, Distribution::Uniform, RECORDS, (0, 1), 1, 10);
        let all = operations(&mut stream, usize::MAX);
        assert_eq!(
            all.iter().filter(|operation| operation.kind == Kind::Insert).count(),
            10
        );
    }

    #[test]
    fn scans_have_up_to_a_hundred_records_that_are_there() {
        let scans = operations(&mut stream(Workload::E, 1, 5), 20_000);
        let scans: Vec<_> = scans.iter().filter(|operation| operation.kind == Kind::Scan).collect();
        assert!(scans.iter().all(|scan| (1..=100).contains(&scan.count)));
        let mean = scans.iter().map(|scan| f64::from(scan.count)).sum::<f64>() / scans.len() as f64;
        assert!((40.0..52.0).contains(&mean), "{mean}");
    }

    #[test]
    fn what_cannot_be_run_is_said() {
        let error = "g".parse::<Workload>().expect_err("there is none");
        assert!(error.to_string().contains("no workload"), "{error}");
        assert_eq!("F".parse::<Workload>().expect("known"), Workload::F);
    }
}
