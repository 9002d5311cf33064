//! Answers as they are kept in a file, and what makes two of them the same.
//!
//! Rows have to be in the order that the query asks for, by the columns that it orders by. Among rows that are equal in
//! these the order is free; where a query takes the first rows only, so is which of the last equal ones it takes.
//! Numbers with a fraction may differ by a hundredth, all else is to be the same to the letter.

use super::options::Options;
use super::queries::QUERIES;
use crate::{Error, IoContext, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// How far numbers with a fraction may be apart.
const TOLERANCE: f64 = 0.01;

type Row = Vec<Option<String>>;

/// What a query has given.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// Names.
    pub columns: Vec<String>,
    /// Values as texts.
    pub rows: Vec<Row>,
}

/// An answer, or what the server said against the query.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Outcome {
    /// Its rows.
    Answer(Answer),
    /// The error.
    Error(String),
}

/// Of one server and one set of data.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Answers {
    /// Of the data.
    pub scale: f64,
    /// Of the data.
    pub seed: u64,
    /// By number of the query.
    pub queries: BTreeMap<u32, Outcome>,
}

impl Answers {
    /// None yet.
    pub fn new(options: &Options) -> Self {
        Self {
            scale: options.scale,
            seed: options.seed,
            queries: BTreeMap::new(),
        }
    }

    /// Answers can be compared if they are of the same data.
    ///
    /// # Errors
    /// [`Error::Refused`] if they are not.
    pub fn must_be_of(&self, options: &Options) -> Result<()> {
        if (self.scale, self.seed) == (options.scale, options.seed) {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the answers to compare with are of scale {} and seed {}, not of {} and {}",
            self.scale, self.seed, options.scale, options.seed
        )))
    }
}

/// Reads a file of answers.
///
/// # Errors
/// [`Error::Io`] if it cannot be read; [`Error::Refused`] if it has no answers in it.
pub fn read(path: &Path) -> Result<Answers> {
    let text = std::fs::read_to_string(path).context(format!("reading {}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| Error::Refused(format!("{}: {error}", path.display())))
}

/// Writes one.
///
/// # Errors
/// [`Error::Io`] if it cannot be written.
pub fn write(path: &Path, answers: &Answers) -> Result<()> {
    let text = serde_json::to_string_pretty(answers).map_err(|error| Error::Refused(error.to_string()))?;
    std::fs::write(path, text).context(format!("writing {}", path.display()))
}

/// `right`, or what is otherwise in the answer to a query.
pub fn verdict(its: &Answers, other: &Answers, query: u32) -> String {
    let text = &QUERIES[query as usize - 1];
    match (its.queries.get(&query), other.queries.get(&query)) {
        (_, None) => "right? the other server was not asked".into(),
        (_, Some(Outcome::Error(error))) => format!("right? the other server: {error}"),
        (Some(Outcome::Answer(its)), Some(Outcome::Answer(other))) => {
            compare(its, other, text.order, text.is_cut).unwrap_or_else(|| "right".into())
        }
        _ => "no answer".into(),
    }
}

/// What is otherwise in `its` than in `other`, if anything. `order` are the columns that rows are ordered by; `is_cut` says
/// that they are the first of more.
pub fn compare(its: &Answer, other: &Answer, order: &[usize], is_cut: bool) -> Option<String> {
    if its.columns != other.columns {
        return Some(format!("columns {:?}, not {:?}", its.columns, other.columns));
    }
    if its.rows.len() != other.rows.len() {
        return Some(format!("{} rows, not {}", its.rows.len(), other.rows.len()));
    }
    let keys_are_same = |(a, b): (&Row, &Row)| order.iter().all(|column| is_same(&a[*column], &b[*column]));
    for (n, pair) in its.rows.iter().zip(&other.rows).enumerate() {
        if !keys_are_same(pair) {
            return Some(format!("row {n}: {:?}, not {:?}", pair.0, pair.1));
        }
    }
    let mut first = 0;
    while first < its.rows.len() {
        let behind = |n: &usize| !keys_are_same((&other.rows[*n - 1], &other.rows[*n]));
        let end = (first + 1..its.rows.len()).find(behind).unwrap_or(its.rows.len());
        let is_last = end == its.rows.len() && is_cut;
        if let (Some(row), false) = (
            unmatched(&its.rows[first..end], &other.rows[first..end]),
            is_last && end - first > 1,
        ) {
            return Some(format!("rows {first} to {}: {row:?} is not among the other's", end - 1));
        }
        first = end;
    }
    None
}

/// A row of `its` that is not among `other`'s, each of which is the same as one row at most.
fn unmatched<'a>(its: &'a [Row], other: &[Row]) -> Option<&'a Row> {
    let mut left: Vec<&Row> = other.iter().collect();
    its.iter().find(|row| {
        let same = left
            .iter()
            .position(|other| row.iter().zip(*other).all(|(a, b)| is_same(a, b)));
        same.map(|at| left.swap_remove(at)).is_none()
    })
}

fn is_same(a: &Option<String>, b: &Option<String>) -> bool {
    if a == b {
        return true;
    }
    let (Some(a), Some(b)) = (a, b) else { return false };
    let has_fraction = |text: &str| text.contains(['.', 'e']);
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(x), Ok(y)) if has_fraction(a) || has_fraction(b) => (x - y).abs() <= TOLERANCE,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(rows: &[[&str; 2]]) -> Answer {
        Answer {
            columns: vec!["a".into(), "b".into()],
            rows: rows
                .iter()
                .map(|row| row.iter().map(|v| Some(v.to_string())).collect())
                .collect(),
        }
    }

    #[test]
    fn fractions_may_be_a_hundredth_apart_and_nothing_else() {
        let wanted = answer(&[["x", "10.50"]]);
        let same = |value| compare(&answer(&[["x", value]]), &wanted, &[0], false).is_none();
        assert!(same("10.505") && same("10.4999999") && same("10.50"));
        assert!(!same("10.52") && !same("10") && !same("NaN") && !same("x"));
        assert!(compare(&answer(&[["x", "11"]]), &answer(&[["x", "10"]]), &[], false).is_some());
        assert!(compare(&answer(&[["x ", "1"]]), &answer(&[["x", "1"]]), &[], false).is_some());
        let mut null = wanted.clone();
        null.rows[0][1] = None;
        assert!(compare(&null, &wanted, &[], false).is_some() && compare(&null, &null, &[], false).is_none());
    }

    #[test]
    fn the_order_is_free_among_equal_rows_only() {
        let wanted = answer(&[["1", "a"], ["1", "b"], ["2", "c"]]);
        let swapped = answer(&[["1", "b"], ["1", "a"], ["2", "c"]]);
        assert_eq!(compare(&swapped, &wanted, &[0], false), None);
        assert!(compare(&swapped, &wanted, &[0, 1], false).is_some());
        let late = answer(&[["1", "a"], ["2", "c"], ["1", "b"]]);
        assert!(compare(&late, &wanted, &[0], false).is_some());
        let twice = answer(&[["1", "a"], ["1", "a"], ["2", "c"]]);
        assert!(compare(&twice, &wanted, &[0], false).is_some());
        assert!(compare(&answer(&[["1", "a"]]), &wanted, &[0], false).is_some());
    }

    #[test]
    fn where_rows_are_cut_the_last_equal_ones_are_free() {
        let wanted = answer(&[["1", "a"], ["2", "b"], ["2", "c"]]);
        let cut = answer(&[["1", "a"], ["2", "c"], ["2", "d"]]);
        assert_eq!(compare(&cut, &wanted, &[0], true), None);
        assert!(compare(&cut, &wanted, &[0], false).is_some());
        let wrong = answer(&[["1", "z"], ["2", "b"], ["2", "c"]]);
        assert!(compare(&wrong, &wanted, &[0], true).is_some());
    }
}
