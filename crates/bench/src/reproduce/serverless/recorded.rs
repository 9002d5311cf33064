//! TPC-H's queries and TPC-C's transactions, traced on a real server, for figures 10 to 13 and 15: a replay for each
//! memory.

use super::super::cost::Costs;
use super::super::options::{self, Options, Progress};
use super::super::pod::System;
use super::super::replay::{PartMeasured, Run, Stage, Workload};
use super::paper;
use crate::{Error, IoContext, Result, tpcc, tpch};
use cenote_base::rt::Nanos;
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::Arc;

/// Local memory with room for all pages, as a share of them: more than all, since undo and the catalog have some.
pub const ALL: f64 = 1.25;

/// What is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// TPC-H's 22 queries, one after the other.
    Queries,
    /// TPC-C's transactions, by several terminals.
    Transactions,
}

impl Load {
    /// Of a trace by these options.
    fn file(self, options: &Options) -> String {
        let name = match self {
            Load::Queries => "tpch",
            Load::Transactions => "tpcc",
        };
        format!("{name}-scale-{}-seed-{}.trace", self.scale(options.quick), options.seed)
    }

    /// Gigabytes of the paper's data.
    fn data_gb(self) -> f64 {
        match self {
            Load::Queries => paper::QUERIES_GB,
            Load::Transactions => paper::DATA_GB,
        }
    }

    /// TPC-H's scale factor; TPC-C's warehouses.
    pub fn scale(self, quick: bool) -> f64 {
        match (self, quick) {
            (Load::Queries, false) => 1.0,
            (Load::Queries, true) => 0.02,
            (Load::Transactions, false) => 8.0,
            (Load::Transactions, true) => 1.0,
        }
    }

    fn trace(self, options: &Options, path: &Path, bar: &ProgressBar) -> Result<()> {
        let scale = self.scale(options.quick);
        let seconds = if options.quick { [1.0, 2.0] } else { [10.0, 20.0] };
        match self {
            Load::Queries => tpch::trace(options.program.as_deref(), scale, options.seed, path, bar),
            Load::Transactions => {
                let of = tpcc::TraceOptions {
                    warehouses: scale as i32,
                    terminals: TERMINALS,
                    seconds,
                    seed: options.seed,
                };
                tpcc::trace(options.program.as_deref(), of, path, bar)
            }
        }
    }

    fn steps(self) -> u64 {
        match self {
            Load::Queries => 22,
            Load::Transactions => tpcc::PARTS.len() as u64,
        }
    }
}

/// Of TPC-C: three for each of the instance's vCPUs, as figures 10 and 11 have of sysbench.
pub const TERMINALS: u32 = 48;

/// A trace, and a database that stands for its pages.
pub struct Recorded {
    /// Of what.
    pub load: Load,
    workload: Arc<Workload>,
    stage: Stage,
}

/// Memory in the paper's gigabytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// Local.
    pub local: f64,
    /// Remote; `None`: there is none, and storage behind local memory.
    pub remote: Option<f64>,
    /// Whether pages that are announced are read together.
    pub brings: bool,
}

impl Memory {
    /// Local memory and remote memory, pages brought together.
    pub const fn remote(local: f64, remote: f64) -> Memory {
        Memory {
            local,
            remote: Some(remote),
            brings: true,
        }
    }

    /// Local memory in front of storage.
    pub const fn stored(local: f64) -> Memory {
        Memory {
            local,
            remote: None,
            brings: true,
        }
    }

    /// Page by page.
    pub const fn one_by_one(self) -> Memory {
        Memory { brings: false, ..self }
    }

    /// As tables have it.
    pub fn name(self) -> String {
        match self.remote {
            None => format!("M {}", self.local),
            Some(remote) => format!("LM {}, RM {remote}", self.local),
        }
    }

    fn system(self, data_gb: f64) -> System {
        let share = |gb: f64| gb / data_gb;
        let local = if self.local < data_gb { share(self.local) } else { ALL };
        match self.remote {
            None => System::Vanilla(local),
            Some(remote) if remote >= data_gb => System::Tiered(local),
            Some(remote) => System::Limited {
                local,
                remote: share(remote),
            },
        }
    }
}

/// What each memory came to: by costs, and then by query.
pub struct Replays {
    memories: Vec<Memory>,
    results: Vec<[Vec<PartMeasured>; 2]>,
    /// Names of the parts: queries.
    pub parts: Vec<String>,
    /// Of each part: pages that it announces for being read together, to pages that it asks for.
    pub announced: Vec<f64>,
}

impl Recorded {
    /// Reads the trace that is in the directory that the options name; makes it if there is none, or if none is named.
    ///
    /// # Errors
    /// As of [`tpch::trace`], [`tpcc::trace`], [`Workload::read`] and [`Stage::build`].
    pub fn make(load: Load, options: &Options, progress: &Progress) -> Result<Recorded> {
        let own = tempfile::tempdir().context("making a directory for a trace")?;
        let directory = options.traces.as_deref().unwrap_or(own.path());
        std::fs::create_dir_all(directory).context(format!("making {}", directory.display()))?;
        let path = directory.join(load.file(options));
        if !path.exists() {
            let bar = progress.bar("tracing", load.steps());
            // What is not whole has another name.
            let begun = tempfile::tempdir_in(directory).context("making a directory for a trace")?;
            load.trace(options, &begun.path().join("trace"), &bar)?;
            std::fs::rename(begun.path().join("trace"), &path).context(format!("making {}", path.display()))?;
            bar.finish_and_clear();
        }
        let workload = Workload::read(&path)?;
        if workload.parts.len() as u64 != load.steps() {
            let (found, wanted) = (workload.parts.len(), load.steps());
            let problem = format!("{} has {found} parts, not {wanted}", path.display());
            return Err(Error::Simulation(problem));
        }
        let stage = Stage::built(workload.pages, options.seed, progress)?;
        Ok(Recorded {
            load,
            workload: workload.into(),
            stage,
        })
    }

    /// Pages that are asked for.
    pub fn pages(&self) -> u32 {
        self.workload.pages
    }

    /// Replays all parts, one after the other, on each of the memories, at both costs.
    ///
    /// # Errors
    /// As of [`Stage::run`].
    pub fn replay(&self, options: &Options, memories: &[Memory], progress: &Progress) -> Result<Replays> {
        let memories = distinct(memories);
        let cases: Vec<(Memory, usize)> = memories
            .iter()
            .flat_map(|memory| [(*memory, 0), (*memory, 1)])
            .collect();
        let factors = factors();
        let bar = progress.bar("replaying", (cases.len() * self.workload.parts.len()) as u64);
        let results = options::parallel_at_most(self.stage.runs_at_once(), &cases, |(memory, costs)| {
            let run = Run {
                system: memory.system(self.load.data_gb()),
                processor: factors[*costs],
                brings: memory.brings,
                one_thread: self.load == Load::Queries,
                seed: options.seed,
            };
            self.stage.run(&self.workload, run, &|| bar.inc(1))
        });
        bar.finish_and_clear();
        let mut results = results.into_iter();
        let mut next = || results.next().expect("a result for each case");
        let results = memories.iter().map(|_| Ok([next()?, next()?])).collect::<Result<_>>()?;
        Ok(Replays {
            memories,
            results,
            parts: self.workload.parts.iter().map(|part| part.name.clone()).collect(),
            announced: self
                .workload
                .parts
                .iter()
                .map(super::super::replay::Part::announced)
                .collect(),
        })
    }
}

/// Each once.
pub fn distinct(memories: &[Memory]) -> Vec<Memory> {
    let mut all: Vec<Memory> = Vec::new();
    for memory in memories {
        if !all.contains(memory) {
            all.push(*memory);
        }
    }
    all
}

/// What traced times are multiplied by: a statement of PolarDB's takes so much more than Cenote's, and Cenote's.
pub fn factors() -> [f64; 2] {
    let [theirs, ours] = Costs::both();
    [theirs.point.raw() as f64 / ours.point.raw() as f64, 1.0]
}

impl Replays {
    fn of(&self, memory: Memory, costs: usize) -> &[PartMeasured] {
        let place = self.memories.iter().position(|known| *known == memory);
        &self.results[place.expect("it was replayed")][costs]
    }

    /// What a part came to.
    pub fn part(&self, memory: Memory, costs: usize, part: usize) -> &PartMeasured {
        &self.of(memory, costs)[part]
    }

    /// What a part took.
    pub fn time(&self, memory: Memory, costs: usize, part: usize) -> Nanos {
        self.part(memory, costs, part).time
    }

    /// What all of them took, seconds.
    pub fn seconds(&self, memory: Memory, costs: usize) -> f64 {
        self.of(memory, costs).iter().map(|part| part.time.as_secs_f64()).sum()
    }

    /// Pages from remote memory, and from storage, of all parts.
    pub fn pages(&self, memory: Memory, costs: usize) -> [u64; 2] {
        let parts = self.of(memory, costs);
        [
            parts.iter().map(|part| part.remote).sum(),
            parts.iter().map(|part| part.stored).sum(),
        ]
    }
}
