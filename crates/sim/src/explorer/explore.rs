//! Many seeds, in worker processes, with progress.

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use cenote_base::rt::fault::Fault;
use indicatif::{ProgressBar, ProgressStyle};

use super::worker::{counts, world_of};
use crate::worlds::{Limits, Name, Tally};

/// What is to be explored.
#[derive(Debug, Clone)]
pub struct Order {
    /// The program whose children do the work: this one.
    pub program: PathBuf,
    /// The world; `None`: all in turn.
    pub world: Option<Name>,
    /// First seed.
    pub first: u64,
    /// How many seeds, at most.
    pub seeds: u64,
    /// How long, at most.
    pub time: Option<Duration>,
    /// Workers at once.
    pub jobs: usize,
    /// How far each seed may go.
    pub limits: Limits,
    /// What is broken on purpose.
    pub plant: Option<Fault>,
    /// Whether progress is shown.
    pub quiet: bool,
}

/// A seed that failed, and how.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Its world.
    pub world: Name,
    /// Under these limits.
    pub limits: Limits,
    /// What is wrong, and the last steps.
    pub lines: Vec<String>,
}

impl Failure {
    /// What kind of failure it is: the first words of what is wrong, without the numbers and names that another run has
    /// others of.
    pub fn kind(&self) -> String {
        let first = self.lines.first().map_or("", |line| line.trim());
        let is_state =
            |word: &str| word.len() == 5 && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
        let is_word = |word: &&str| is_state(word) || !word.contains(|c: char| c.is_ascii_digit());
        let words: Vec<&str> = first.split_whitespace().filter(is_word).take(KIND_WORDS).collect();
        words.join(" ")
    }
}

/// What came of an exploration.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Seeds that were run to their end.
    pub seeds: u64,
    /// All that they went through.
    pub tally: Tally,
    /// The first failure.
    pub failure: Option<Failure>,
    /// How long it took.
    pub time: Duration,
}

/// Words that tell one kind of failure from another.
const KIND_WORDS: usize = 5;
/// Seeds that a worker runs before another takes its place.
const SEEDS_A_WORKER: u64 = 100;
/// A worker that says nothing for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(240);

/// A line of a worker, or its end.
enum Word {
    Line(String),
    End,
}

struct Worker {
    child: Child,
    number: usize,
    /// The seed it is at.
    seed: Option<u64>,
    next: u64,
    heard: Instant,
    failing: Option<Failure>,
}

/// Explores until the seeds or the time are used up, or one fails.
///
/// # Errors
/// A process of its own cannot be started or read.
pub fn explore(order: &Order) -> std::io::Result<Summary> {
    let begun = Instant::now();
    let mut exploration = Exploration {
        order,
        begun,
        said: begun,
        seeds: 0,
        tally: Tally::default(),
        bar: bar(order),
        failure: None,
    };
    exploration.run()?;
    exploration.bar.finish_and_clear();
    Ok(Summary {
        seeds: exploration.seeds,
        tally: exploration.tally,
        failure: exploration.failure,
        time: begun.elapsed(),
    })
}

/// Runs one seed in a process of its own: how it failed, if it did.
///
/// # Errors
/// A process of its own cannot be started or read.
pub fn try_one(order: &Order, seed: u64, limits: Limits) -> std::io::Result<Option<Failure>> {
    let order = Order {
        world: Some(world_of(order.world, seed)),
        first: seed,
        seeds: 1,
        jobs: 1,
        limits,
        quiet: true,
        time: None,
        ..order.clone()
    };
    Ok(explore(&order)?.failure)
}

fn bar(order: &Order) -> ProgressBar {
    if order.quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match order.time {
        Some(time) => ProgressBar::new(time.as_secs()),
        None => ProgressBar::new(order.seeds),
    };
    let style =
        ProgressStyle::with_template("{elapsed_precise} {wide_bar} {msg}").unwrap_or(ProgressStyle::default_bar());
    bar.with_style(style)
}

struct Exploration<'o> {
    order: &'o Order,
    begun: Instant,
    /// When progress was last said.
    said: Instant,
    seeds: u64,
    tally: Tally,
    bar: ProgressBar,
    failure: Option<Failure>,
}

impl Exploration<'_> {
    fn run(&mut self) -> std::io::Result<()> {
        let (sender, words) = mpsc::channel();
        let jobs = self.order.jobs.min(self.order.seeds as usize).max(1);
        let mut workers = Vec::new();
        for number in 0..jobs {
            workers.push(self.start(number, self.order.first + number as u64, &sender)?);
        }
        while !workers.is_empty() && self.failure.is_none() && !self.is_time_up() {
            match words.recv_timeout(Duration::from_secs(1)) {
                Ok((number, Word::Line(line))) => self.hear(&mut workers, number, &line),
                Ok((number, Word::End)) => self.ended(&mut workers, number, &sender)?,
                Err(RecvTimeoutError::Timeout) => self.watch(&mut workers),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.say();
        }
        for mut worker in workers {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
        Ok(())
    }

    fn is_time_up(&self) -> bool {
        self.order.time.is_some_and(|time| self.begun.elapsed() >= time)
    }

    fn start(&self, number: usize, first: u64, sender: &Sender<(usize, Word)>) -> std::io::Result<Worker> {
        let order = self.order;
        let stride = order.jobs.max(1) as u64;
        let left = (order.first + order.seeds).saturating_sub(first).div_ceil(stride);
        let mut command = Command::new(&order.program);
        command.args(["--worker", &left.min(SEEDS_A_WORKER).to_string()]);
        command.args(["--seed", &first.to_string(), "--stride", &stride.to_string()]);
        command.args(["--world", order.world.map_or("all", Name::text)]);
        command.args(["--limits", &limits_text(order.limits)]);
        if let Some(fault) = order.plant {
            command.args(["--plant", fault.name()]);
        }
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null());
        let mut child = command.spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let sender = sender.clone();
        std::thread::spawn(move || {
            let complaints = std::thread::spawn(move || err.map(last_lines).unwrap_or_default());
            for line in out
                .into_iter()
                .flat_map(|out| BufReader::new(out).lines())
                .map_while(Result::ok)
            {
                let _ = sender.send((number, Word::Line(line)));
            }
            for line in complaints.join().unwrap_or_default() {
                let _ = sender.send((number, Word::Line(format!("! {line}"))));
            }
            let _ = sender.send((number, Word::End));
        });
        Ok(Worker {
            child,
            number,
            seed: None,
            next: first,
            heard: Instant::now(),
            failing: None,
        })
    }

    fn hear(&mut self, workers: &mut [Worker], number: usize, line: &str) {
        let Some(worker) = workers.iter_mut().find(|w| w.number == number) else {
            return;
        };
        worker.heard = Instant::now();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let seed = || rest.split('\t').next().and_then(|s| s.parse().ok());
        match word {
            "begin" => {
                worker.seed = seed();
                worker.next = seed().unwrap_or(worker.next) + self.order.jobs.max(1) as u64;
            }
            "ok" | "fail" => {
                self.seeds += 1;
                self.tally.merge(&counts(line));
                if word == "fail" {
                    worker.failing = seed().map(|seed| self.failure_of(seed));
                } else {
                    worker.seed = None;
                }
            }
            "|" => worker.failing.iter_mut().for_each(|f| f.lines.push(rest.to_owned())),
            "end" => {
                worker.seed = None;
                self.failure = worker.failing.take();
            }
            // What it said before it died, if it dies.
            "!" if worker.seed.is_some() => {
                let seed = worker.seed.unwrap_or(0);
                let failing = worker.failing.get_or_insert_with(|| self.failure_of(seed));
                failing.lines.push(rest.to_owned());
            }
            _ => {}
        }
    }

    fn failure_of(&self, seed: u64) -> Failure {
        Failure {
            seed,
            world: world_of(self.order.world, seed),
            limits: self.order.limits,
            lines: Vec::new(),
        }
    }

    /// A worker has ended: in the middle of a seed that is a failure; else another goes on.
    fn ended(
        &mut self,
        workers: &mut Vec<Worker>,
        number: usize,
        sender: &Sender<(usize, Word)>,
    ) -> std::io::Result<()> {
        let Some(at) = workers.iter().position(|w| w.number == number) else {
            return Ok(());
        };
        let mut worker = workers.swap_remove(at);
        let status = worker.child.wait()?;
        if let Some(seed) = worker.seed {
            let mut failure = worker.failing.take().unwrap_or_else(|| self.failure_of(seed));
            failure
                .lines
                .insert(0, format!("the process of the simulator died: {status}"));
            self.failure = Some(failure);
        } else if worker.next < self.order.first + self.order.seeds && !self.is_time_up() {
            workers.push(self.start(number, worker.next, sender)?);
        }
        Ok(())
    }

    /// Ends the members that have been silent for too long.
    fn watch(&mut self, workers: &mut [Worker]) {
        for worker in workers {
            if worker.heard.elapsed() > SILENCE_MAX {
                let mut failure = self.failure_of(worker.seed.unwrap_or(0));
                failure
                    .lines
                    .push(format!("nothing was heard for {} s: it hangs", SILENCE_MAX.as_secs()));
                self.failure = Some(failure);
            }
        }
    }

    fn say(&mut self) {
        let message = format!(
            "{} seeds, {} transactions, {} deaths",
            self.seeds,
            self.tally.get("transactions"),
            deaths(&self.tally)
        );
        match self.order.time {
            Some(_) => self.bar.set_position(self.begun.elapsed().as_secs()),
            None => self.bar.set_position(self.seeds),
        }
        if self.bar.is_hidden() && !self.order.quiet && self.said.elapsed() > Duration::from_secs(10) {
            self.said = Instant::now();
            eprintln!("{:>5} s: {message}", self.begun.elapsed().as_secs());
        }
        self.bar.set_message(message);
    }
}

/// Deaths of all kinds.
pub fn deaths(tally: &Tally) -> u64 {
    let of_deaths = tally.0.iter().filter(|(what, _)| what.starts_with("deaths"));
    of_deaths.map(|(_, n)| n).sum()
}

fn last_lines(from: impl std::io::Read) -> Vec<String> {
    let mut lines: Vec<String> = BufReader::new(from).lines().map_while(Result::ok).collect();
    lines.drain(..lines.len().saturating_sub(80));
    lines
}

/// Limits as they are handed to workers.
pub fn limits_text(limits: Limits) -> String {
    let Limits {
        transactions,
        deaths,
        sessions,
        rows,
        statements,
        twist,
    } = limits;
    format!("{transactions},{deaths},{sessions},{rows},{statements},{twist}")
}

/// Reads [`limits_text`] back.
///
/// # Errors
/// The text is not six numbers.
pub fn limits_of(text: &str) -> Result<Limits, String> {
    let numbers: Vec<u64> = text.split(',').filter_map(|n| n.parse().ok()).collect();
    let [transactions, deaths, sessions, rows, statements, twist] = numbers[..] else {
        return Err(format!(
            "six numbers are needed: transactions,deaths,sessions,rows,statements,twist; not {text}"
        ));
    };
    Ok(Limits {
        transactions,
        deaths: deaths.min(u64::from(u32::MAX)) as u32,
        sessions: sessions as usize,
        rows: rows.min(i32::MAX as u64) as i32,
        statements,
        twist,
    })
}
