//! Transactions of several kinds, by terminals on connections of their own, on any server that speaks PostgreSQL's
//! wire protocol: what `tpcc` and `tatp` have in common.
//!
//! A terminal draws a transaction's input and runs it; one that the server gives up as a victim (40001, 40P01) runs
//! again with the same input, and its latency is that of all its runs together. What ends within the measured time
//! counts, whenever it began.

pub mod report;
mod session;
mod wire;

use crate::{Error, Result, processor};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
pub use session::{Session, Work, connect, explain, texts};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
pub use wire::{Client, Row, Statement, Values};

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was to do.
    Done,
    /// It found nothing, or was rolled back: what the benchmark expects of a share of them.
    Missed,
}

/// A source of transactions, with a connection.
pub trait Terminal: Send {
    /// What one transaction is given.
    type Input;

    /// The kinds of transactions, by number.
    const KINDS: &'static [&'static str];

    /// Draws the next transaction: its kind and its input.
    fn draw(&mut self) -> (usize, Self::Input);

    /// Runs it to its end.
    ///
    /// # Errors
    /// [`Error::Statement`] if the server refuses a statement: 40001 and 40P01 are run again by the caller.
    fn run(&mut self, input: &Self::Input) -> Result<Outcome>;

    /// Statements sent so far, BEGIN and COMMIT among them.
    fn statements(&self) -> u64;

    /// How long the person at the terminal types before a transaction, and thinks after it.
    fn waits(&mut self, _kind: usize) -> [Duration; 2] {
        [Duration::ZERO; 2]
    }
}

/// How long a load runs, and how.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Before anything is counted.
    pub warmup: Duration,
    /// Measured time.
    pub measured: Duration,
    /// Whether terminals type and think.
    pub has_waits: bool,
    /// The server's process, whose processor time is measured.
    pub server_pid: Option<u32>,
}

/// What was counted of one kind of transactions.
#[derive(Clone)]
pub struct Counts {
    /// Transactions that ended, missed ones among them.
    pub ended: u64,
    /// Of these, the missed ones.
    pub missed: u64,
    /// Runs that the server gave up as victims.
    pub retries: u64,
    /// Latencies.
    pub latency_ns: Histogram<u64>,
}

impl Counts {
    fn new() -> Self {
        Self {
            ended: 0,
            missed: 0,
            retries: 0,
            latency_ns: Histogram::new(3).expect("three digits are possible"),
        }
    }

    /// Adds what another terminal, or another round, has counted.
    pub fn add(&mut self, other: &Counts) {
        self.ended += other.ended;
        self.missed += other.missed;
        self.retries += other.retries;
        self.latency_ns.add(&other.latency_ns).expect("both grow as needed");
    }
}

/// One measured round.
#[derive(Clone)]
pub struct Round {
    /// Counts of each kind.
    pub kinds: Vec<Counts>,
    /// Measured seconds.
    pub seconds: f64,
    /// Statements in the measured time.
    pub statements: u64,
    /// Processor seconds of the server in the measured time.
    pub server_seconds: Option<f64>,
}

impl Round {
    /// Transactions that ended.
    pub fn ended(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.ended).sum()
    }

    /// Runs that were given up.
    pub fn retries(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.retries).sum()
    }

    /// Transactions a second.
    pub fn rate(&self) -> f64 {
        self.ended() as f64 / self.seconds
    }

    /// All kinds together.
    pub fn together(&self) -> Counts {
        let mut all = Counts::new();
        self.kinds.iter().for_each(|kind| all.add(kind));
        all
    }
}

/// What terminals share while they run.
struct Shared {
    counted_from: Instant,
    end: Instant,
    has_waits: bool,
    ended: AtomicU64,
    is_broken: AtomicBool,
}

impl Shared {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end || self.is_broken.load(Ordering::Relaxed)
    }

    /// Sleeps, but not beyond the end.
    fn wait(&self, time: Duration) {
        let until = (Instant::now() + time).min(self.end);
        while !self.is_over() && Instant::now() < until {
            std::thread::sleep((until - Instant::now()).min(Duration::from_millis(50)));
        }
    }
}

/// Runs all terminals for a length of time.
///
/// # Errors
/// The first error of a terminal that is no reason to run a transaction again; [`Error::Refused`] if the server's
/// process is not there.
pub fn run<T: Terminal>(terminals: &mut [T], length: &Length, name: &str) -> Result<Round> {
    let began = Instant::now();
    let shared = Shared {
        counted_from: began + length.warmup,
        end: began + length.warmup + length.measured,
        has_waits: length.has_waits,
        ended: AtomicU64::new(0),
        is_broken: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let start = |terminal| scope.spawn(|| serve(terminal, &shared));
        let started: Vec<_> = terminals.iter_mut().map(start).collect();
        let server_seconds = watch(&shared, length, name);
        let mut round = Round {
            kinds: vec![Counts::new(); T::KINDS.len()],
            seconds: length.measured.as_secs_f64(),
            statements: 0,
            server_seconds: None,
        };
        for thread in started {
            let (kinds, statements) = thread.join().expect("no terminal panics")?;
            round.statements += statements;
            round.kinds.iter_mut().zip(&kinds).for_each(|(all, its)| all.add(its));
        }
        round.server_seconds = server_seconds?;
        Ok(round)
    })
}

/// Shows progress until the end; the server's processor seconds between both ends of the measured time.
fn watch(shared: &Shared, length: &Length, name: &str) -> Result<Option<f64>> {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} s").expect("a constant template");
    let whole = length.warmup + length.measured;
    let bar = ProgressBar::new(whole.as_secs()).with_style(style);
    let (began, mut before) = (shared.end - whole, None);
    while !shared.is_over() {
        let now = Instant::now();
        if before.is_none() && now >= shared.counted_from {
            before = Some(length.server_pid.map(processor::seconds).transpose()?);
        }
        let rate = shared.ended.load(Ordering::Relaxed) as f64 / (now - began).as_secs_f64().max(1e-3);
        bar.set_message(format!("{name}: {rate:.0} a second"));
        bar.set_position((now - began).as_secs());
        let next = if before.is_none() {
            shared.counted_from
        } else {
            shared.end
        };
        std::thread::sleep(next.saturating_duration_since(now).min(Duration::from_millis(100)));
    }
    bar.finish_and_clear();
    let after = length.server_pid.map(processor::seconds).transpose()?;
    Ok(before.flatten().zip(after).map(|(before, after)| after - before))
}

fn serve<T: Terminal>(terminal: &mut T, shared: &Shared) -> Result<(Vec<Counts>, u64)> {
    let mut kinds = vec![Counts::new(); T::KINDS.len()];
    let mut uncounted = terminal.statements();
    while !shared.is_over() {
        let (kind, input) = terminal.draw();
        let [before, after] = if shared.has_waits {
            terminal.waits(kind)
        } else {
            [Duration::ZERO; 2]
        };
        shared.wait(before);
        let began = Instant::now();
        let (outcome, retries) =
            until_it_ends(terminal, &input, shared).inspect_err(|_| shared.is_broken.store(true, Ordering::Relaxed))?;
        let now = Instant::now();
        shared.ended.fetch_add(1, Ordering::Relaxed);
        if now < shared.counted_from {
            uncounted = terminal.statements();
        } else if now <= shared.end {
            let counts = &mut kinds[kind];
            counts.ended += 1;
            counts.missed += u64::from(outcome == Outcome::Missed);
            counts.retries += retries;
            let latency = (now - began).as_nanos() as u64;
            counts.latency_ns.record(latency.max(1)).expect("it grows as needed");
        }
        shared.wait(after);
    }
    Ok((kinds, terminal.statements() - uncounted))
}

/// Runs a transaction until it is no victim.
fn until_it_ends<T: Terminal>(terminal: &mut T, input: &T::Input, shared: &Shared) -> Result<(Outcome, u64)> {
    let mut retries = 0;
    loop {
        match terminal.run(input) {
            Err(error) if is_victim(&error) && !shared.is_over() => retries += 1,
            Err(error) if is_victim(&error) => return Ok((Outcome::Missed, retries + 1)),
            result => return result.map(|outcome| (outcome, retries)),
        }
    }
}

/// Whether the server has given the transaction up for another's sake.
fn is_victim(error: &Error) -> bool {
    matches!(error.sqlstate(), Some("40001" | "40P01"))
}

#[cfg(test)]
mod tests;
