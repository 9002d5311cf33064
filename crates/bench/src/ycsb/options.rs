//! The options of the comparison.

use super::record::Layout;
use super::workload::{Distribution, Workload};
use std::path::PathBuf;

/// The kinds of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TargetKind {
    /// The store in this process.
    Embedded,
    /// A hash table in a space of a pool: [`super::pooled`].
    Pool,
    /// `cenote kv`.
    Kv,
    /// `redis-server`, if it is installed.
    Redis,
}

impl TargetKind {
    /// As it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Pool => "pool",
            Self::Kv => "kv",
            Self::Redis => "redis",
        }
    }
}

/// How long a round is.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// So long.
    Seconds(f64),
    /// So many operations, of all threads together.
    Operations(u64),
}

/// What is compared, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the table, the raw figures and the plot go.
    pub out: PathBuf,
    /// On what.
    pub targets: Vec<TargetKind>,
    /// Which workloads.
    pub workloads: Vec<Workload>,
    /// How records are chosen.
    pub distributions: Vec<Distribution>,
    /// How a record lies there.
    pub layout: Layout,
    /// Records that are loaded.
    pub records: u64,
    /// Fields of a record.
    pub fields: usize,
    /// Bytes of a field.
    pub field_bytes: usize,
    /// Of a round.
    pub length: Length,
    /// Rounds; the median counts.
    pub rounds: u32,
    /// Pods of the target pool.
    pub pods: usize,
    /// The program that is started; that beside this one if `None`.
    pub program: Option<PathBuf>,
    /// Threads that make load.
    pub threads: usize,
    /// Connections to a server, of all threads together.
    pub connections: usize,
    /// Commands that a connection sends before it takes answers.
    pub pipeline: usize,
    /// Of all random numbers.
    pub seed: u64,
    /// Servers on the first core, load on the others.
    pub is_pinned: bool,
}

impl Options {
    /// Of D the latest records are read, however others are chosen.
    pub fn mixes(&self) -> Vec<(Workload, Distribution)> {
        let chosen = |workload: &Workload| match workload {
            Workload::D => self.distributions[..1].to_vec(),
            _ => self.distributions.clone(),
        };
        let of = |workload: &Workload| chosen(workload).into_iter().map(|d| (*workload, d)).collect::<Vec<_>>();
        self.workloads.iter().flat_map(of).collect()
    }

    /// Records that a thread may insert in a round.
    pub fn inserts(&self) -> u64 {
        let all = match self.length {
            Length::Operations(all) => all / 8,
            Length::Seconds(_) => self.records.max(100_000),
        };
        (all / self.threads as u64).max(1000)
    }

    /// Bytes of memory that the data need: an upper bound for either layout.
    pub fn memory(&self) -> u64 {
        let records = self.records + self.inserts() * self.threads as u64;
        let field = (self.field_bytes as u64 + 64).next_multiple_of(64) * 5 / 4 + 64;
        let record = 512 + field * self.fields as u64;
        (records * record).max(64 << 20) + (64 << 20)
    }
}
