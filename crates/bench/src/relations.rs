//! Statements that have to agree with each other, whatever the data: wrong answers are found without another server.
//!
//! - *Ternary logic partitioning* (Rigger and Su, 2020): a predicate, its negation and `IS NULL` of it divide the rows
//!   of a query: what the three give together is what it gives. So for DISTINCT, aggregates, groups, HAVING and joins.
//! - *Non-optimizing reference engine construction* (the same, 2020): as many rows qualify as a predicate in the select
//!   list, which no index serves, is true for.
//! - *Differential query execution* (Song and others, 2023): SELECT, UPDATE and DELETE meet the same rows.
//! - *Paths*: the short path, the row executor and analytics give the same rows.
//!
//! Tables and statements are those of [`crate::differential`], cut down in the same way.

mod case;

use crate::differential::answer::{Answer, Connection, Row};
use crate::differential::generate::{Generator, Statement};
use crate::differential::is_by_rows;
use crate::differential::schema;
use crate::differential::tree::{nothing, text};
use crate::server::{CenoteOptions, RegionFile, Server, free_port};
use crate::{Error, IoContext, Result};
use case::{Case, Path, Query};
use cenote_base::random::{Random, mix};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

/// Cuts that are tried on one case.
const CUTS_MAX: usize = 1500;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `cenote` executable.
    pub program: PathBuf,
    /// Where the data directory goes: made, and removed first if it is there.
    pub out: PathBuf,
    /// The first seed.
    pub seed: u64,
    /// Seeds from the first one on.
    pub seeds: u64,
    /// Relations a seed.
    pub relations: usize,
    /// Whether a relation with a statement of analytics that does not hold is cut down and told; else it is counted.
    pub analytics: bool,
}

/// Statements that do not agree.
#[derive(Debug)]
pub struct Finding {
    /// The seed.
    pub seed: u64,
    /// Its number among the seed's relations, from 0.
    pub number: usize,
    /// The relation, and its statements, as they were made.
    pub original: String,
    /// Cut down.
    pub minimal: String,
    /// What the statements on either side give.
    pub sides: [String; 2],
}

/// What came of the relations.
#[derive(Debug, Default)]
pub struct Report {
    /// Relations whose statements all ran, by name.
    pub held: BTreeMap<&'static str, usize>,
    /// Relations with a statement that Cenote does not support.
    pub unsupported: usize,
    /// Relations with a statement that is an error, by SQLSTATE.
    pub errors: BTreeMap<String, usize>,
    /// Relations that do not hold.
    pub findings: Vec<Finding>,
    /// Others, of which analytics carries out a statement: counted only.
    pub of_analytics: usize,
}

/// What comes of one relation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Holds,
    Unsupported,
    /// With this SQLSTATE.
    Fails(String),
    /// Errors of both sides, if that is what they give, and what is shown of them.
    Differs([Option<String>; 2], [String; 2]),
}

impl Outcome {
    /// Whether the sides differ as they do here.
    fn is_like(&self, other: &Outcome) -> bool {
        matches!((self, other), (Outcome::Differs(own, _), Outcome::Differs(others, _)) if own == others)
    }
}

/// Runs the relations and prints what came of them.
///
/// # Errors
/// As of [`check`]; [`Error::Refused`] if one does not hold.
pub fn run(options: &Options) -> Result<()> {
    let report = check(options)?;
    println!("{report}");
    match report.findings.len() {
        0 => Ok(()),
        n => Err(Error::Refused(format!("{n} relations do not hold"))),
    }
}

/// Checks the relations on a server of its own.
///
/// # Errors
/// [`Error::Server`] or [`Error::Sql`] if the server does not start or does not make the tables; [`Error::Io`] of a file
/// or process.
pub fn check(options: &Options) -> Result<Report> {
    let server = cenote(options)?;
    let connect = |settings| Connection::with_settings(server.port, "cenote", settings);
    let mut checker = Checker {
        connections: Path::ALL.map(|path| connect(path.settings())),
        analytics: options.analytics,
    };
    let mut report = Report::default();
    for seed in options.seed..options.seed + options.seeds {
        checker.seed(seed, options.relations, &mut report)?;
    }
    Ok(report)
}

fn cenote(options: &Options) -> Result<Server> {
    let data = options.out.join("cenote");
    match std::fs::remove_dir_all(&data) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).context(format!("removing {}", data.display()));
        }
        _ => {}
    }
    Server::cenote(&CenoteOptions {
        program: options.program.clone(),
        data,
        memory: "dram".into(),
        memory_size: "64MiB".into(),
        port: free_port()?,
        survive: "process".into(),
        region: RegionFile::new(),
    })
}

/// A connection for each path.
struct Checker {
    connections: [Connection; 3],
    /// As [`Options::analytics`].
    analytics: bool,
}

impl Checker {
    fn seed(&mut self, seed: u64, relations: usize, report: &mut Report) -> Result<()> {
        let client = self.connections[0].client()?;
        for table in &schema::TABLES {
            client.batch_execute(&format!("DROP TABLE IF EXISTS {}", table.name))?;
        }
        client.batch_execute(&schema::statements(&mut Random(seed)).join("; "))?;
        let seed_of_cases = mix(seed ^ 0x7e1a);
        let (mut generator, mut random) = (Generator::new(seed_of_cases), Random(seed_of_cases));
        for number in 0..relations {
            let case = Case::new(&mut generator, &mut random);
            let outcome = self.outcome(&case);
            match &outcome {
                Outcome::Holds => *report.held.entry(case.name()).or_default() += 1,
                Outcome::Unsupported => report.unsupported += 1,
                Outcome::Fails(code) => *report.errors.entry(code.clone()).or_default() += 1,
                Outcome::Differs(..) if !self.analytics && !self.is_by_rows(&case) => report.of_analytics += 1,
                Outcome::Differs(..) => {
                    let finding = self.finding((seed, number), &case, &outcome);
                    println!("{finding}");
                    report.findings.push(finding);
                }
            }
        }
        Ok(())
    }

    fn outcome(&mut self, case: &Case) -> Outcome {
        let [left, right] = case.sides().map(|side| self.side(&side, case.as_sets()));
        match (&left, &right) {
            (Side::Rows(left), Side::Rows(right)) if left == right => Outcome::Holds,
            (Side::Unsupported, _) | (_, Side::Unsupported) => Outcome::Unsupported,
            // Which of two errors comes first is open.
            (Side::Fails(code), Side::Fails(_)) => Outcome::Fails(code.clone()),
            (Side::Fails(code), _) | (_, Side::Fails(code)) if !case.fails_alike() => Outcome::Fails(code.clone()),
            _ => Outcome::Differs([left.error(), right.error()], [left.to_string(), right.to_string()]),
        }
    }

    /// Whether no statement is carried out by analytics, wholly or in part.
    fn is_by_rows(&mut self, case: &Case) -> bool {
        let by_rows = |query: &Query| {
            let path = self.connections[query.path as usize].path(&query.sql, &[]);
            path.is_ok_and(|path| is_by_rows(&path))
        };
        case.sides().iter().flatten().all(by_rows)
    }

    /// What the statements of a side give together.
    fn side(&mut self, queries: &[Query], as_sets: bool) -> Side {
        let mut rows = Vec::new();
        for query in queries {
            match self.answer(query) {
                Answer::Done(done) => rows.extend(done.rows),
                answer if answer.is_unsupported() => return Side::Unsupported,
                Answer::Error(code, message) if code.starts_with("XX") => {
                    return Side::Broken(format!("{code}: {message}"));
                }
                Answer::Error(code, _) => return Side::Fails(code),
                Answer::Lost(what) => return Side::Broken(what),
            }
        }
        rows.sort();
        if as_sets {
            rows.dedup();
        }
        Side::Rows(rows)
    }

    fn answer(&mut self, query: &Query) -> Answer {
        self.connections[query.path as usize].answer(&Statement {
            body: text(query.sql.clone()),
            tail: nothing(),
            target: query.target,
        })
    }

    /// Cuts the case down while its statements do not agree.
    fn finding(&mut self, (seed, number): (u64, usize), case: &Case, outcome: &Outcome) -> Finding {
        let mut minimal = case.clone();
        let mut left = CUTS_MAX;
        while let Some(smaller) = self.smaller(&minimal, outcome, &mut left) {
            minimal = smaller;
        }
        let sides = match self.outcome(&minimal) {
            Outcome::Differs(_, sides) => sides,
            other => [format!("{other:?} when it is asked again"), String::new()],
        };
        Finding {
            seed,
            number,
            original: case.to_string(),
            minimal: minimal.to_string(),
            sides,
        }
    }

    fn smaller(&mut self, case: &Case, outcome: &Outcome, left: &mut usize) -> Option<Case> {
        let length = case.to_string().len();
        for cut in case.cuts() {
            *left = left.checked_sub(1)?;
            if cut.to_string().len() < length && self.outcome(&cut).is_like(outcome) {
                return Some(cut);
            }
        }
        None
    }
}

/// What a side of a relation gives.
enum Side {
    Rows(Vec<Row>),
    Unsupported,
    /// An error that a statement may give: its SQLSTATE.
    Fails(String),
    /// An error that none may give, or no answer.
    Broken(String),
}

impl Side {
    fn error(&self) -> Option<String> {
        match self {
            Side::Fails(what) | Side::Broken(what) => Some(what.chars().take(5).collect()),
            _ => None,
        }
    }
}

impl Display for Side {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Side::Rows(rows) => {
                write!(f, "{} rows", rows.len())?;
                for row in rows.iter().take(12) {
                    let values: Vec<&str> = row.iter().map(|v| v.as_deref().unwrap_or("NULL")).collect();
                    write!(f, "\n    {}", values.join(" | "))?;
                }
                Ok(())
            }
            Side::Unsupported => f.write_str("not supported"),
            Side::Fails(what) | Side::Broken(what) => f.write_str(what),
        }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, relation {}: {}", self.seed, self.number, self.minimal)?;
        writeln!(f, "  left: {}", self.sides[0])?;
        writeln!(f, "  right: {}", self.sides[1])?;
        writeln!(f, "  cut from: {}", self.original)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let held: usize = self.held.values().sum();
        let (unsupported, errors) = (self.unsupported, self.errors.values().sum::<usize>());
        write!(
            f,
            "{held} relations hold, {} do not, and {} more by analytics; {unsupported} are not supported, {errors} failed",
            self.findings.len(),
            self.of_analytics
        )?;
        let names = self.held.iter().map(|(name, count)| (*name, count));
        let codes = self.errors.iter().map(|(code, count)| (code.as_str(), count));
        names
            .chain(codes)
            .try_for_each(|(name, count)| write!(f, "\n  {count:5}  {name}"))
    }
}
