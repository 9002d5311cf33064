//! What a statement costs outside of the engine's memory accesses: an input of every figure.
//!
//! The simulator runs the engine's real accesses and charges what memory, links and storage take. What the processor
//! does besides (protocol, parsing, planning, the engine's own instructions) is spent as a fixed time a statement, so
//! that a run is the same every time. Two sets:
//!
//! - [`Costs::cenote`]: processor time of a Cenote server a statement, as measured on the machine that
//!   `docs/reproduce-polarcxlmem.md` names (user and system time of the server's process over sysbench's statements);
//! - [`Costs::paper`]: the paper gives one number, 3.6 million point-selects a second on 192 vCPUs, that is 53.3 us
//!   each. Its other statements are taken to cost as much more than a point-select as Cenote's do.
//!
//! Both sets contain the memory stalls of the machine that they were measured on, and the model adds its own: a few per
//! cent too much, the same way for all systems that are compared.

use super::mix::Mix;
use super::paper;
use cenote_base::rt::Nanos;

/// Processor time a statement.
#[derive(Debug, Clone)]
pub struct Costs {
    /// Which set.
    pub name: &'static str,
    /// BEGIN.
    pub begin: Nanos,
    /// COMMIT, without waiting for the log.
    pub commit: Nanos,
    /// One row by key.
    pub point: Nanos,
    /// A hundred rows.
    pub range: Nanos,
    /// One row changed.
    pub update: Nanos,
    /// One row removed.
    pub delete: Nanos,
    /// One row added.
    pub insert: Nanos,
}

impl Costs {
    /// As measured from Cenote.
    pub fn cenote() -> Costs {
        Costs {
            name: "cenote",
            begin: Nanos(6_000),
            commit: Nanos(6_000),
            point: Nanos(7_000),
            range: Nanos(23_000),
            update: Nanos(21_000),
            delete: Nanos(16_000),
            insert: Nanos(17_000),
        }
    }

    /// The paper's point-select, and the others in Cenote's proportions.
    pub fn paper() -> Costs {
        let cenote = Costs::cenote();
        let factor = paper::QUERY_NS / cenote.point.raw() as f64;
        let scaled = |t: Nanos| Nanos((t.raw() as f64 * factor) as u64);
        Costs {
            name: "paper",
            begin: scaled(cenote.begin),
            commit: scaled(cenote.commit),
            point: scaled(cenote.point),
            range: scaled(cenote.range),
            update: scaled(cenote.update),
            delete: scaled(cenote.delete),
            insert: scaled(cenote.insert),
        }
    }

    /// Both sets, the paper's first.
    pub fn both() -> [Costs; 2] {
        [Costs::paper(), Costs::cenote()]
    }

    /// Processor time of one transaction of a mix, and its statements.
    pub fn of(&self, mix: Mix) -> (Nanos, u64) {
        let around = self.begin + self.commit;
        let reads = Nanos(10 * self.point.raw() + 4 * self.range.raw());
        let writes = Nanos(2 * self.update.raw()) + self.delete + self.insert;
        match mix {
            Mix::PointSelect => (self.point, 1),
            Mix::RangeSelect => (self.range, 1),
            Mix::ReadOnly => (around + reads, 16),
            Mix::WriteOnly => (around + writes, 6),
            Mix::ReadWrite => (around + reads + writes, 20),
        }
    }

    /// Rows of a table of both sets: statement, microseconds.
    pub fn rows(&self) -> Vec<(&'static str, f64)> {
        [
            ("begin", self.begin),
            ("point-select", self.point),
            ("range-select", self.range),
            ("update", self.update),
            ("delete", self.delete),
            ("insert", self.insert),
            ("commit", self.commit),
        ]
        .map(|(name, time)| (name, time.raw() as f64 / 1000.0))
        .into()
    }
}
