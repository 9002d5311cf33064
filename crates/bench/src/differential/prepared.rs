//! Prepared statements, run several times with other values, while indexes and rows come and go between the runs.
//!
//! A case begins with fresh tables, so that it can be run again: cutting it down leaves out steps, and parts of its
//! statement.

use super::answer::{Answer, Connection, Difference};
use super::generate::{Generator, Statement};
use super::schema::{self, Kind, TABLES};
use super::{Finding, Report, Servers, difference_of, is_by_rows};
use crate::Result;
use cenote_base::random::{Random, mix};
use std::fmt::{self, Display, Formatter};

/// Cuts that are tried on one case.
const CUTS_MAX: usize = 300;

/// Runs of a case.
const RUNS: u64 = 8;

/// Rows of an insert that makes a table much larger.
const MANY_ROWS: u64 = 120;

/// What is done once the statement is prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// It is run with these values.
    Run(Vec<Option<String>>),
    /// Another statement is run.
    Change(String),
}

/// A prepared statement and its runs.
#[derive(Clone, Debug)]
struct Case {
    statement: Statement,
    steps: Vec<Step>,
}

impl Case {
    fn new(generator: &mut Generator, random: &mut Random) -> Case {
        let (statement, kinds) = generator.with_parameters();
        let mut steps = Vec::new();
        for at in 0..RUNS {
            if random.one_in(3) {
                steps.push(Step::Change(change(random, at)));
            }
            steps.push(Step::Run(kinds.iter().map(|kind| value(random, *kind)).collect()));
        }
        Case { statement, steps }
    }

    /// Cases that are one cut smaller.
    fn cuts(&self) -> Vec<Case> {
        let without = |at: usize| {
            let mut steps = self.steps.clone();
            steps.remove(at);
            Case { steps, ..self.clone() }
        };
        let fewer = (0..self.steps.len())
            .rev()
            .filter(|_| self.steps.len() > 1)
            .map(without);
        let statements = self.statement.cuts().into_iter().map(|statement| Case {
            statement,
            ..self.clone()
        });
        fewer.chain(statements).collect()
    }

    fn length(&self) -> usize {
        self.to_string().len()
    }

    /// What a server answers to each step; to preparing alone if it refuses that.
    fn answers(&self, server: &mut Connection) -> Vec<Answer> {
        let (sql, places) = renumbered(&self.statement.sql());
        let prepared = match server.prepare(&sql) {
            Ok(prepared) => prepared,
            Err(answer) => return vec![answer],
        };
        let answer = |step: &Step| match step {
            Step::Change(sql) => server.change(sql),
            Step::Run(values) => server.execute(&prepared, &self.statement, &taken(values, &places)),
        };
        self.steps.iter().map(answer).collect()
    }

    /// EXPLAIN's first line.
    fn path(&self, server: &mut Connection) -> std::result::Result<String, Answer> {
        let (sql, places) = renumbered(&self.statement.sql());
        let values = self.steps.iter().find_map(|step| match step {
            Step::Run(values) => Some(taken(values, &places)),
            Step::Change(_) => None,
        });
        server.path(&sql, &values.unwrap_or_default())
    }
}

fn taken(values: &[Option<String>], places: &[usize]) -> Vec<Option<String>> {
    places.iter().map(|at| values[*at].clone()).collect()
}

/// The text with its parameters numbered from 1 without gaps, and which of the old ones each is, from 0.
fn renumbered(sql: &str) -> (String, Vec<usize>) {
    let (mut text, mut places) = (String::new(), Vec::new());
    let mut pieces = sql.split('$');
    text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let old: usize = piece[..digits].parse().expect("only parameters have this sign");
        let at = places.iter().position(|p| *p == old - 1).unwrap_or_else(|| {
            places.push(old - 1);
            places.len() - 1
        });
        text.push_str(&format!("${}{}", at + 1, &piece[digits..]));
    }
    (text, places)
}

/// A value of this kind, as the text format has it.
fn value(random: &mut Random, kind: Kind) -> Option<String> {
    if random.one_in(8) {
        return None;
    }
    let literal = schema::literal(random, kind);
    Some(literal.trim_start_matches("date ").trim_matches('\'').to_string())
}

/// What changes what a plan was made for.
fn change(random: &mut Random, at: u64) -> String {
    let table = &TABLES[random.index(TABLES.len())];
    let name = table.name;
    let column = &table.columns[random.index(table.columns.len())];
    let other = &table.columns[random.index(table.columns.len())];
    match random.below(10) {
        0 | 1 => format!("ANALYZE {name}"),
        2 | 3 if column.name == other.name => format!("CREATE INDEX extra{at} ON {name} ({})", column.name),
        2 | 3 => format!("CREATE INDEX extra{at} ON {name} ({}, {})", column.name, other.name),
        4 => format!("DROP INDEX IF EXISTS extra{}", random.below(at + 1)),
        5 => format!("DROP INDEX IF EXISTS {name}_{}_idx", column.name),
        6 => schema::rows(random, table, 50 + at..51 + at),
        7 => format!(
            "DELETE FROM {name} WHERE {} = {}",
            column.name,
            schema::literal(random, column.kind)
        ),
        8 if !column.key => format!(
            "UPDATE {name} SET {} = {} WHERE {} > {}",
            column.name,
            schema::literal(random, column.kind),
            other.name,
            schema::literal(random, other.kind)
        ),
        _ => schema::rows(random, table, 100..100 + MANY_ROWS),
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (sql, places) = renumbered(&self.statement.sql());
        write!(f, "PREPARE p AS {sql}")?;
        for step in &self.steps {
            match step {
                Step::Change(sql) => write!(f, ";\n  {sql}")?,
                Step::Run(values) => {
                    let value = |v: Option<String>| v.map_or("NULL".into(), |v| format!("'{v}'"));
                    let values: Vec<String> = taken(values, &places).into_iter().map(value).collect();
                    write!(f, ";\n  EXECUTE p ({})", values.join(", "))?;
                }
            }
        }
        Ok(())
    }
}

impl Servers {
    /// Runs the cases of a seed.
    pub(super) fn cases(&mut self, seed: u64, cases: usize, report: &mut Report) -> Result<()> {
        let seed_of_cases = mix(seed);
        let (mut generator, mut random) = (Generator::new(seed_of_cases), Random(seed_of_cases));
        for number in 0..cases {
            let case = Case::new(&mut generator, &mut random);
            self.tables(seed)?;
            if let Some(difference) = self.case(&case, report) {
                let finding = self.finding_of((seed, number), &case, &difference)?;
                println!("{finding}");
                report.findings.push(finding);
            }
        }
        Ok(())
    }

    fn case(&mut self, case: &Case, report: &mut Report) -> Option<Difference> {
        let both = self.both(case);
        report.prepared += 1;
        for (expected, found) in &both {
            report.count(expected, found);
        }
        let Some((difference, at)) = first_difference(&both) else {
            return self.explain_fails(case, &both);
        };
        let path = case.path(&mut self.found);
        let is_told = self.analytics || difference == Difference::Lost || path.is_ok_and(|path| is_by_rows(&path));
        if !is_told {
            report.of_analytics += 1;
            return None;
        }
        (!report.is_repeated(&both[at].0, &both[at].1)).then_some(difference)
    }

    fn explain_fails(&mut self, case: &Case, both: &[(Answer, Answer)]) -> Option<Difference> {
        let ran = both.iter().all(|(_, found)| matches!(found, Answer::Done(_)));
        (ran && case.path(&mut self.found).is_err()).then_some(Difference::Explain)
    }

    fn both(&mut self, case: &Case) -> Vec<(Answer, Answer)> {
        let expected = case.answers(&mut self.expected);
        expected.into_iter().zip(case.answers(&mut self.found)).collect()
    }

    /// Cuts the case down while the answers differ in the same way.
    fn finding_of(&mut self, (seed, number): (u64, usize), case: &Case, difference: &Difference) -> Result<Finding> {
        let mut minimal = case.clone();
        let mut left = CUTS_MAX;
        while let Some(smaller) = self.smaller_case(seed, &minimal, difference, &mut left)? {
            minimal = smaller;
        }
        self.tables(seed)?;
        let both = self.both(&minimal);
        let at = first_difference(&both).map_or(0, |(_, at)| at);
        let (expected, found) = both[at].clone();
        Ok(Finding {
            seed,
            number,
            original: case.to_string(),
            minimal: minimal.to_string(),
            path: minimal.path(&mut self.found).unwrap_or_else(|e| e.to_string()),
            difference: difference.clone(),
            expected,
            found,
        })
    }

    fn smaller_case(
        &mut self,
        seed: u64,
        case: &Case,
        difference: &Difference,
        left: &mut usize,
    ) -> Result<Option<Case>> {
        for cut in case.cuts() {
            if cut.length() >= case.length() {
                continue;
            }
            let Some(fewer) = left.checked_sub(1) else {
                return Ok(None);
            };
            *left = fewer;
            self.tables(seed)?;
            let both = self.both(&cut);
            let found = first_difference(&both).map(|(difference, _)| difference);
            if found.or_else(|| self.explain_fails(&cut, &both)).as_ref() == Some(difference) {
                return Ok(Some(cut));
            }
        }
        Ok(None)
    }
}

/// The first step that is answered differently. Nothing behind one that Cenote does not support is compared.
fn first_difference(both: &[(Answer, Answer)]) -> Option<(Difference, usize)> {
    for (at, (expected, found)) in both.iter().enumerate() {
        if found.is_unsupported() {
            return None;
        }
        if let Some(difference) = difference_of(expected, found) {
            return Some((difference, at));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_a_cut_has_left_are_numbered_without_gaps() {
        let (sql, places) = renumbered("SELECT $3 + a, $12 FROM t WHERE b = $3");
        assert_eq!(sql, "SELECT $1 + a, $2 FROM t WHERE b = $1");
        assert_eq!(places, [2, 11]);
    }

    #[test]
    fn a_seed_decides_the_case() {
        let case = |seed| Case::new(&mut Generator::new(seed), &mut Random(seed)).to_string();
        assert_eq!(case(5), case(5));
        assert_ne!(case(5), case(6));
        let runs = case(5).matches("EXECUTE").count();
        assert_eq!(runs as u64, RUNS);
    }
}
