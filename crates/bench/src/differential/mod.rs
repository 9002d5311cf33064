//! Random statements on Cenote and on PostgreSQL, whose answers have to be equal.
//!
//! 1. [`schema`] makes the same small tables on both, by a seed.
//! 2. [`generate`] makes statements as trees ([`tree`]) by the same seed: same seed, same statements.
//! 3. [`answer`] runs each on both and compares rows (in order where ORDER BY fixes it), the names and types of columns,
//!    SQLSTATEs, and the table that it changes; a change is taken back.
//! 4. [`prepared`] prepares others, and runs them again while indexes and rows come and go.
//! 5. A statement whose answers differ is cut down while they differ in the same way, and reported.
//!
//! What Cenote refuses as not supported (0A000) is counted, not reported: it is not a wrong answer.

pub mod answer;
pub mod generate;
mod prepared;
pub mod schema;
pub mod tree;
pub mod value;

use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::{Error, IoContext, Result};
use answer::{Answer, Connection, Difference, difference, equal_but_padding};
use cenote_base::random::Random;
use generate::{Generator, Statement};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// Cuts that are tried on one statement.
const CUTS_MAX: usize = 3000;

/// Differences of a seed after which it ends.
const DIFFERENCES_MAX: usize = 20;

/// Settings by which analytics answers all queries.
const ALONE: &str = "SET enable_short_path = off; SET enable_row_executor = off";

/// Words of an error's message by which it is known again.
const ERROR_WORDS: usize = 4;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Where data directories go: made, and removed first if they are there.
    pub out: PathBuf,
    /// The first seed.
    pub seed: u64,
    /// Seeds from the first one on.
    pub seeds: u64,
    /// Statements a seed.
    pub statements: usize,
    /// Prepared statements a seed, each run several times.
    pub prepared: usize,
    /// Whether what analytics answers otherwise is cut down and told; else it is counted.
    pub analytics: bool,
    /// Whether analytics answers all queries.
    pub alone: bool,
}

/// A statement that the servers answer differently.
#[derive(Debug)]
pub struct Finding {
    /// The seed.
    pub seed: u64,
    /// Its number among the seed's statements, from 0.
    pub number: usize,
    /// As it was made.
    pub original: String,
    /// Cut down.
    pub minimal: String,
    /// What EXPLAIN says of it on Cenote.
    pub path: String,
    /// Where the answers differ.
    pub difference: Difference,
    /// What PostgreSQL answers.
    pub expected: Answer,
    /// What Cenote answers.
    pub found: Answer,
}

/// What came of the statements.
#[derive(Debug, Default)]
pub struct Report {
    /// Statements by what EXPLAIN says first.
    pub paths: BTreeMap<String, usize>,
    /// Statements run, each run of a prepared one counted.
    pub statements: usize,
    /// Prepared statements.
    pub prepared: usize,
    /// Statements that both ran.
    pub done: usize,
    /// Statements that both refused.
    pub errors: usize,
    /// Statements that Cenote does not support.
    pub unsupported: usize,
    /// Differences.
    pub findings: Vec<Finding>,
    /// Differences by an error that a finding before has had: counted, and not cut down.
    pub repeated: usize,
    /// Such errors.
    errors_found: BTreeSet<String>,
    /// Differences of analytics that were counted only.
    pub of_analytics: usize,
}

/// Runs the statements and prints what came of them.
///
/// # Errors
/// As of [`compare`]; [`Error::Refused`] if answers differ.
pub fn run(options: &Options) -> Result<()> {
    let report = compare(options)?;
    println!("{report}");
    match report.findings.len() {
        0 => Ok(()),
        n => Err(Error::Refused(format!("{n} statements are answered differently"))),
    }
}

/// Runs the statements on both servers.
///
/// # Errors
/// [`Error::Missing`] without PostgreSQL; [`Error::Server`] or [`Error::Sql`] if a server does not start or does not make
/// the tables; [`Error::Io`] of a file or process.
pub fn compare(options: &Options) -> Result<Report> {
    let postgresql = postgresql(&options.out.join("postgresql"))?;
    let cenote = cenote(options, &options.out.join("cenote"))?;
    let mut servers = Servers {
        expected: Connection::new(postgresql.port, "postgres"),
        found: Connection::with_settings(cenote.port, "cenote", if options.alone { ALONE } else { "" }),
        analytics: options.analytics,
    };
    let mut report = Report::default();
    for seed in options.seed..options.seed + options.seeds {
        servers.seed(seed, options.statements, &mut report)?;
        servers.cases(seed, options.prepared, &mut report)?;
    }
    Ok(report)
}

fn postgresql(data: &Path) -> Result<Server> {
    remove(data)?;
    let settings = ["fsync=off".into(), "autovacuum=off".into(), "jit=off".into()];
    Server::postgresql(data, &["--locale=C", "--encoding=UTF8"], &settings)
}

fn cenote(options: &Options, data: &Path) -> Result<Server> {
    remove(data)?;
    Server::cenote(&CenoteOptions {
        program: options.program.clone(),
        data: data.to_owned(),
        memory: "dram".into(),
        memory_size: "64MiB".into(),
        port: free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    })
}

fn remove(data: &Path) -> Result<()> {
    match std::fs::remove_dir_all(data) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context(format!("removing {}", data.display())),
        _ => Ok(()),
    }
}

/// Both servers: what is expected, and what is found.
struct Servers {
    expected: Connection,
    found: Connection,
    /// As [`Options::analytics`].
    analytics: bool,
}

impl Servers {
    /// Makes the seed's tables on both.
    fn tables(&mut self, seed: u64) -> Result<()> {
        let tables = schema::statements(&mut Random(seed)).join("; ");
        for server in [&mut self.expected, &mut self.found] {
            for table in &schema::TABLES {
                server
                    .client()?
                    .batch_execute(&format!("DROP TABLE IF EXISTS {}", table.name))?;
            }
            server.client()?.batch_execute(&tables)?;
        }
        Ok(())
    }

    fn seed(&mut self, seed: u64, statements: usize, report: &mut Report) -> Result<()> {
        self.tables(seed)?;
        let mut generator = Generator::new(seed);
        let already = report.findings.len();
        for number in 0..statements {
            let statement = generator.statement();
            if let Some(difference) = self.one(&statement, report) {
                let finding = self.finding((seed, number), &statement, &difference);
                println!("{finding}");
                report.findings.push(finding);
            }
            if report.findings.len() >= already + DIFFERENCES_MAX {
                break;
            }
        }
        Ok(())
    }

    fn one(&mut self, statement: &Statement, report: &mut Report) -> Option<Difference> {
        let (expected, found) = self.answers(statement);
        report.count(&expected, &found);
        if found.is_unsupported() {
            return None;
        }
        let path = self.found.path(&statement.sql(), &[]);
        let first = path
            .as_deref()
            .unwrap_or_default()
            .split(':')
            .next()
            .unwrap_or_default();
        *report.paths.entry(first.to_string()).or_default() += 1;
        let difference = difference_of(&expected, &found).or_else(|| explain_fails(&found, &path))?;
        let is_told = self.analytics || difference == Difference::Lost || path.is_ok_and(|path| is_by_rows(&path));
        if !is_told {
            report.of_analytics += 1;
            return None;
        }
        (!report.is_repeated(&expected, &found)).then_some(difference)
    }

    /// Both answers. Cenote runs a SELECT again, by the plan that it has kept: an answer that differs is the one shown.
    fn answers(&mut self, statement: &Statement) -> (Answer, Answer) {
        let expected = self.expected.answer(statement);
        let found = self.found.answer(statement);
        if difference(&expected, &found).is_some() {
            return (expected, found);
        }
        (expected, self.found.answer(statement))
    }

    fn differs(&mut self, statement: &Statement) -> Option<Difference> {
        let (expected, found) = self.answers(statement);
        difference_of(&expected, &found).or_else(|| {
            let path = self.found.path(&statement.sql(), &[]);
            explain_fails(&found, &path)
        })
    }

    /// Cuts the statement down while the answers differ in the same way.
    fn finding(&mut self, (seed, number): (u64, usize), statement: &Statement, difference: &Difference) -> Finding {
        let mut minimal = statement.clone();
        let mut left = CUTS_MAX;
        while let Some(smaller) = self.smaller(&minimal, difference, &mut left) {
            minimal = smaller;
        }
        let (expected, found) = self.answers(&minimal);
        Finding {
            seed,
            number,
            original: statement.sql(),
            minimal: minimal.sql(),
            path: self.found.path(&minimal.sql(), &[]).unwrap_or_else(|e| e.to_string()),
            difference: difference.clone(),
            expected,
            found,
        }
    }

    fn smaller(&mut self, statement: &Statement, difference: &Difference, left: &mut usize) -> Option<Statement> {
        let length = statement.sql().len();
        for cut in statement.cuts() {
            *left = left.checked_sub(1)?;
            if cut.sql().len() < length && self.differs(&cut).as_ref() == Some(difference) {
                return Some(cut);
            }
        }
        None
    }
}

/// Whether the row executor, or the short path, carries out all of a statement that EXPLAIN begins so with.
pub fn is_by_rows(path: &str) -> bool {
    !path.starts_with("Analytics") && !path.contains("analytics")
}

/// A statement that runs is one that EXPLAIN explains.
fn explain_fails(found: &Answer, path: &std::result::Result<String, Answer>) -> Option<Difference> {
    (matches!(found, Answer::Done(_)) && path.is_err()).then_some(Difference::Explain)
}

/// Where the answers differ, but for what says nothing: a time limit, the joins that PostgreSQL has not, and char(n)
/// without its length, which is text here.
fn difference_of(expected: &Answer, found: &Answer) -> Option<Difference> {
    let is_given_up = expected.is_unsupported() || expected.timed_out() || found.timed_out();
    let says_nothing = is_given_up || equal_but_padding(expected, found);
    difference(expected, found).filter(|_| !says_nothing)
}

impl Report {
    /// Whether an error that PostgreSQL does not give has been found before: what is told of it begins alike.
    fn is_repeated(&mut self, expected: &Answer, found: &Answer) -> bool {
        let (Answer::Done(_), Answer::Error(code, message)) = (expected, found) else {
            return false;
        };
        // Not the names that it is about.
        let is_word = |word: &&str| word.chars().all(char::is_alphabetic);
        let words: Vec<&str> = message.split_whitespace().filter(is_word).take(ERROR_WORDS).collect();
        let is_new = self.errors_found.insert(format!("{code} {}", words.join(" ")));
        self.repeated += usize::from(!is_new);
        !is_new
    }

    fn count(&mut self, expected: &Answer, found: &Answer) {
        self.statements += 1;
        match (expected, found) {
            (_, found) if found.is_unsupported() => self.unsupported += 1,
            (Answer::Done(_), Answer::Done(_)) => self.done += 1,
            _ => self.errors += 1,
        }
    }
}

impl Finding {
    /// Whether there was no answer, or the row executor gave other rows than PostgreSQL, left another table, or ended
    /// with another SQLSTATE. It knows less of the types of columns.
    pub fn is_wrong_answer_of_rows(&self) -> bool {
        let by_rows = self.path.starts_with("Row executor") || self.path.contains("rows found by");
        self.difference == Difference::Lost || by_rows && self.difference != Difference::Columns
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, statement {} ({}):", self.seed, self.number, self.path)?;
        writeln!(f, "  {}", self.minimal)?;
        writeln!(f, "  PostgreSQL:\n{}", self.expected)?;
        writeln!(f, "  Cenote:\n{}", self.found)?;
        writeln!(f, "  cut from: {}", self.original)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let findings = self.findings.len();
        let (statements, done, errors) = (self.statements, self.done, self.errors);
        write!(
            f,
            "{statements} statements and runs of {} prepared ones: {done} ran on both, {errors} failed on either, ",
            self.prepared
        )?;
        write!(f, "{} not supported, {findings} answered differently", self.unsupported)?;
        write!(
            f,
            ", {} as one of them, {} more by analytics",
            self.repeated, self.of_analytics
        )?;
        self.paths
            .iter()
            .try_for_each(|(path, count)| write!(f, "\n  {count:5}  {path}"))
    }
}
