//! What a run tells of its plan's estimates: the rows that scans gave, where these were many times as many as estimated.

use std::collections::BTreeMap;

/// An estimate that is wrong by so much is corrected.
pub const WRONG: f64 = 10.0;
/// A run of fewer steps is not worth another plan.
const STEPS_WORTH: u64 = 10_000;

/// A scan of a plan as it was estimated.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The name that the statement gives the table.
    pub alias: String,
    /// Whether the rows around it decide what it reads.
    pub around: bool,
    /// Rows a run.
    pub rows: f64,
}

/// What a scan did in a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// How often it began.
    pub runs: u64,
    /// Rows that it gave.
    pub rows: u64,
}

impl Counted {
    /// One run more.
    pub fn begun(self) -> Counted {
        Counted {
            runs: self.runs + 1,
            ..self
        }
    }

    /// One row more.
    pub fn given(self) -> Counted {
        Counted {
            rows: self.rows + 1,
            ..self
        }
    }
}

/// Rows of a scan's run, by the table's name in the statement, and whether the rows around decide which.
#[derive(Debug, Clone, Default)]
pub struct Learned(BTreeMap<(String, bool), f64>);

impl Learned {
    /// The rows that such a scan has given.
    pub fn rows(&self, alias: &str, around: bool) -> Option<f64> {
        self.0.get(&(alias.to_string(), around)).copied()
    }

    /// What was known before, with what is known more.
    pub fn and(mut self, more: &Learned) -> Learned {
        let known = more.0.iter().map(|(scan, rows)| (scan.clone(), *rows));
        self.0.extend(known);
        self
    }
}

/// What a run of so many steps tells of a plan; None where that was about right, or right enough.
pub fn learned_by((scans, cost): (&[Expected], f64), steps: u64, counted: &[Counted]) -> Option<Learned> {
    if steps < STEPS_WORTH || (steps as f64) < WRONG * cost {
        return None;
    }
    let mut learned = Learned::default();
    for (expected, counted) in scans.iter().zip(counted) {
        let rows = counted.rows as f64 / (counted.runs as f64).max(1.0);
        if rows > WRONG * expected.rows.max(1.0) {
            learned.0.insert((expected.alias.clone(), expected.around), rows);
        }
    }
    (!learned.0.is_empty()).then_some(learned)
}
