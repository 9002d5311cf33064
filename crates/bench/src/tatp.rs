//! TATP, a telephone operator's register of subscribers, on any server that speaks PostgreSQL's wire protocol: seven
//! short transactions, four in five of them reads, some of which are to find nothing.
//!
//! ```text
//!   population: rows by COPY ──► four tables ◄── transactions ◄── skewed subscriber numbers, decided by the seed
//! ```
//!
//! The share of transactions that find nothing, or that are refused, follows from the population: a round whose shares
//! are others is an error, since its rate would mean nothing.

mod options;
mod population;
mod terminal;

use crate::oltp::report::{self, Summary};
use crate::oltp::{self, Length, Round, connect};
use crate::{Error, Result};
pub use options::{KINDS, Load, MIX, Options};
use postgres::Client;
use terminal::Tatp;

/// Of a hundred transactions of each kind, those that find nothing or are refused: least and most.
///
/// A subscriber has 1 to 4 of the 4 kinds of access and of facilities, so 37.5 find none. A facility has 0 to 3 of the 3
/// forwardings, and as many are inserted as deleted: half of 62.5 are there. Of new destinations, 85.2 are not found at
/// first, and 79.6 when all forwardings were replaced by those that transactions insert, whose end is any hour.
const MISSED: [(f64, f64); 7] = [
    (0.0, 0.0),
    (79.5, 85.3),
    (37.5, 37.5),
    (37.5, 37.5),
    (0.0, 0.0),
    (68.75, 68.75),
    (68.75, 68.75),
];
/// A share may be so many standard deviations from what is expected, and so many hundredths more: the population is
/// itself drawn, and skewed numbers come back to a part of it.
const DEVIATIONS: f64 = 5.0;
const DRAWN: f64 = 3.0;

/// Everything that a run writes.
#[derive(serde::Serialize)]
struct Figures<'a> {
    subscribers: i32,
    clients: u32,
    seconds: f64,
    seed: u64,
    rounds: &'a [Summary],
}

/// Loads, runs all rounds, checks the shares of each, and tells.
///
/// # Errors
/// [`Error::Sql`] if the server refuses something; [`Error::Lost`] if a share of missed transactions is not what the
/// population makes it; [`Error::Refused`] if the data has fewer subscribers than asked for.
pub fn run(options: &Options) -> Result<Vec<Summary>> {
    prepare(options)?;
    let rounds = (0..options.rounds).map(|n| round(options, options.seed + u64::from(n)));
    let rounds = rounds.collect::<Result<Vec<_>>>()?;
    let summaries: Vec<Summary> = rounds.iter().map(summary).collect();
    let kinds = report::merged(&KINDS, &rounds);
    println!("{}", report::table(&kinds, "% missed"));
    println!("{}", report::line("", &summaries));
    println!(
        "{} subscribers, {} clients, {} rounds of {} s; as many missed as the population makes it",
        options.subscribers,
        options.clients,
        options.rounds,
        options.measured.as_secs_f64()
    );
    let figures = Figures {
        subscribers: options.subscribers,
        clients: options.clients,
        seconds: options.measured.as_secs_f64(),
        seed: options.seed,
        rounds: &summaries,
    };
    if let Some(out) = &options.out {
        report::write(out, "tatp", &kinds, &figures)?;
    }
    Ok(summaries)
}

/// A round as it is told.
pub fn summary(round: &Round) -> Summary {
    Summary::new(&KINDS, round, round.rate())
}

/// Makes the data ready as [`Options::load`] says.
///
/// # Errors
/// As of [`run`].
pub fn prepare(options: &Options) -> Result<()> {
    let found = subscribers(&mut connect(&options.url)?)?;
    if options.load == Load::Always || options.load == Load::IfMissing && found.is_none() {
        return population::load(options);
    }
    match found {
        Some(found) if found == i64::from(options.subscribers) => Ok(()),
        found => Err(Error::Refused(format!(
            "the data has {} subscribers, not {}: load it with --load",
            found.unwrap_or(0),
            options.subscribers
        ))),
    }
}

/// How many subscribers there are, if there is a table of them.
fn subscribers(client: &mut Client) -> Result<Option<i64>> {
    match client.query_one("SELECT count(*) FROM subscriber", &[]) {
        Ok(row) => Ok(Some(row.get(0))),
        Err(error) if error.code().is_some_and(|code| code.code() == "42P01") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// One round of all clients.
///
/// # Errors
/// As of [`run`].
pub fn round(options: &Options, seed: u64) -> Result<Round> {
    let client = |n| Tatp::connect(options, n, seed);
    let mut clients = (0..options.clients).map(client).collect::<Result<Vec<_>>>()?;
    let length = Length {
        warmup: options.warmup,
        measured: options.measured,
        has_waits: false,
        server_pid: options.server_pid,
    };
    let round = oltp::run(&mut clients, &length, "tatp")?;
    let counts: Vec<_> = round.kinds.iter().map(|kind| (kind.ended, kind.missed)).collect();
    shares_must_be_right(&counts)?;
    Ok(round)
}

/// Compares missed transactions with what is expected. Of each kind: (ended, missed).
fn shares_must_be_right(counts: &[(u64, u64)]) -> Result<()> {
    for ((name, (ended, missed)), (least, most)) in KINDS.iter().zip(counts).zip(MISSED) {
        let count = (*ended).max(1) as f64;
        let share = 100.0 * *missed as f64 / count;
        let slack = |percent: f64| match percent {
            0.0 => 0.0,
            _ => DRAWN + DEVIATIONS * (percent * (100.0 - percent) / count).sqrt(),
        };
        if *ended > 0 && (share < least - slack(least) || share > most + slack(most)) {
            return Err(Error::Lost(format!(
                "{name}: {share:.2}% of {ended} have missed; {least} to {most}% are expected"
            )));
        }
    }
    Ok(())
}

/// Prints how the server carries out each statement.
///
/// # Errors
/// [`Error::Sql`] if the connection is refused.
pub fn explain(url: &str) -> Result<()> {
    let named = |s: &'static terminal::Text| (format!("{:?}", s.0), s.1, s.2);
    oltp::explain(url, terminal::STATEMENTS.iter().map(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_beyond_what_chance_explains_are_an_error() {
        let right = [
            (3500, 0),
            (1000, 840),
            (3500, 1320),
            (200, 80),
            (1400, 0),
            (200, 140),
            (200, 135),
        ];
        shares_must_be_right(&right).expect("as expected");
        shares_must_be_right(&[(0, 0); 7]).expect("nothing was run");
        for (kind, missed) in [
            (0, 1),
            (1, 990),
            (1, 100),
            (2, 3500),
            (3, 10),
            (4, 2),
            (5, 20),
            (6, 200),
        ] {
            let mut wrong = right;
            wrong[kind].1 = missed;
            let error = shares_must_be_right(&wrong).expect_err("not as expected").to_string();
            assert!(error.contains(KINDS[kind]), "{error}");
        }
    }
}
