//! TPC-C's transactions on any server that speaks PostgreSQL's wire protocol, and the specification's consistency
//! conditions after each run.
//!
//! ```text
//!   population: rows by COPY ──► schema ◄── transactions ◄── terminal: inputs, decided by the seed
//!                                  ▲
//!                       conditions 1 to 12: no row of their queries
//! ```
//!
//! It is no audited TPC-C: terminals do not wait unless they are told to, deliveries are not queued, and there is no
//! measurement interval of hours. Clauses named in comments are those of revision 5.11.

mod conditions;
mod inputs;
mod options;
mod population;
mod schema;
mod statements;
mod trace;
mod transactions;

use crate::oltp::report::{self, Summary};
use crate::oltp::{self, Length, Round, connect};
use crate::{Error, Result};
pub use conditions::{Violation, check};
pub use options::{KINDS, Load, Options, Sizes};
use postgres::Client;
pub use trace::{PARTS, TraceOptions, trace};
use transactions::Tpcc;

/// The one that counts.
const NEW_ORDER: usize = 0;

/// Everything that a run writes.
#[derive(serde::Serialize)]
struct Figures<'a> {
    warehouses: i32,
    terminals: u32,
    seconds: f64,
    seed: u64,
    isolation: &'a str,
    rounds: &'a [Summary],
}

/// Loads, runs all rounds, checks the conditions after each, and tells.
///
/// # Errors
/// [`Error::Sql`] if the server refuses something; [`Error::Lost`] with the conditions that the data violates;
/// [`Error::Refused`] if the data has fewer warehouses than asked for.
pub fn run(options: &Options) -> Result<Vec<Summary>> {
    prepare(options)?;
    let mut rounds = Vec::new();
    for n in 0..options.rounds {
        rounds.push(round(options, options.seed + u64::from(n))?);
        must_hold(&options.url)?;
    }
    let summaries: Vec<Summary> = rounds.iter().map(summary).collect();
    let kinds = report::merged(&KINDS, &rounds);
    println!("{}", report::table(&kinds, "% undone"));
    let score = format!("{} tpmC, ", report::spread(&summaries, |round| round.score));
    println!("{}", report::line(&score, &summaries));
    println!(
        "{} warehouses, {} terminals, {} rounds of {} s, {}; conditions 1 to 12 hold",
        options.warehouses,
        options.terminals,
        options.rounds,
        options.measured.as_secs_f64(),
        options.isolation
    );
    let figures = Figures {
        warehouses: options.warehouses,
        terminals: options.terminals,
        seconds: options.measured.as_secs_f64(),
        seed: options.seed,
        isolation: &options.isolation,
        rounds: &summaries,
    };
    if let Some(out) = &options.out {
        report::write(out, "tpcc", &kinds, &figures)?;
    }
    Ok(summaries)
}

/// A round as it is told: the score is new orders a minute, those not among them that were rolled back.
pub fn summary(round: &Round) -> Summary {
    let orders = &round.kinds[NEW_ORDER];
    Summary::new(
        &KINDS,
        round,
        (orders.ended - orders.missed) as f64 * 60.0 / round.seconds,
    )
}

/// Makes the data ready as [`Options::load`] says.
///
/// # Errors
/// As of [`run`].
pub fn prepare(options: &Options) -> Result<()> {
    let found = warehouses(&mut connect(&options.url)?)?;
    if options.load == Load::Always || options.load == Load::IfMissing && found.is_none() {
        return population::load(options);
    }
    match found {
        Some(found) if found >= i64::from(options.warehouses) => Ok(()),
        found => Err(Error::Refused(format!(
            "the data has {} warehouses, not {}: load it with --load",
            found.unwrap_or(0),
            options.warehouses
        ))),
    }
}

/// How many warehouses there are, if there is a table of them.
fn warehouses(client: &mut Client) -> Result<Option<i64>> {
    match client.query_one("SELECT count(*) FROM warehouse", &[]) {
        Ok(row) => Ok(Some(row.get(0))),
        Err(error) if error.code().is_some_and(|code| code.code() == "42P01") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// One round of all terminals.
///
/// # Errors
/// As of [`run`].
pub fn round(options: &Options, seed: u64) -> Result<Round> {
    let terminal = |n| Tpcc::connect(options, n, seed);
    let mut terminals = (0..options.terminals).map(terminal).collect::<Result<Vec<_>>>()?;
    let length = Length {
        warmup: options.warmup,
        measured: options.measured,
        has_waits: options.has_waits,
        server_pid: options.server_pid,
    };
    oltp::run(&mut terminals, &length, "tpcc")
}

/// Checks conditions 1 to 12 of clause 3.3.2.
///
/// # Errors
/// [`Error::Lost`] with each violated condition and some of the rows that violate it.
pub fn must_hold(url: &str) -> Result<()> {
    let violations = check(&mut connect(url)?)?;
    if violations.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = violations.iter().map(Violation::to_string).collect();
    Err(Error::Lost(texts.join("; ")))
}

/// Prints how the server carries out each statement.
///
/// # Errors
/// [`Error::Sql`] if the connection is refused.
pub fn explain(url: &str) -> Result<()> {
    let named = |s: &statements::Text| (format!("{:?}", s.sql), s.text, s.samples);
    oltp::explain(url, statements::STATEMENTS.iter().map(named))
}
