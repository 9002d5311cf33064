//! `cenote-sim`: explores worlds by seed, and tells the first failure. `cenote sim` becomes this program.
//!
//! Exit codes: 0 all went well, 1 something is wrong with the database, 2 the command line, 3 the machine.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use cenote_base::rt::fault::Fault;
use cenote_sim::explorer::explore::{Failure, deaths, limits_of, limits_text};
use cenote_sim::explorer::worker::{self, Job};
use cenote_sim::explorer::{Order, Summary, explore, shrink};
use cenote_sim::mutations;
use cenote_sim::worlds::{Limits, Name};
use clap::Parser;

/// Run Cenote on a simulated pod: random transactions, faults and recoveries, each decided by a seed.
#[derive(Debug, Parser)]
#[command(name = "cenote-sim", version, about, after_help = worlds())]
struct Arguments {
    /// The world: one of those below, or all.
    #[arg(long, default_value = "all", value_parser = world)]
    world: World,
    /// The first seed; alone: the only one. Random unless told.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// How many minutes.
    #[arg(long, conflicts_with = "seeds")]
    minutes: Option<f64>,
    /// Seeds at once; one a core unless told.
    #[arg(long)]
    jobs: Option<usize>,
    /// Transactions a seed.
    #[arg(long)]
    transactions: Option<u64>,
    /// Tell the first failure as it is.
    #[arg(long)]
    no_shrink: bool,
    /// Break a rule on purpose, to see whether it is noticed; or all, one after the other, each in its world.
    #[arg(long, value_parser = plant)]
    plant: Option<Plant>,
    /// With `--plant all`: try each for so many seconds at most.
    #[arg(long, default_value_t = 60)]
    plant_seconds: u64,
    /// Look for a shorter run for so many seconds.
    #[arg(long, default_value_t = 60)]
    shrink_seconds: u64,
    /// How far a seed may go, as a failure tells it.
    #[arg(long, value_parser = limits_of)]
    limits: Option<Limits>,
    /// Be a worker, for so many seeds.
    #[arg(long, hide = true)]
    worker: Option<u64>,
    /// Distance between a worker's seeds.
    #[arg(long, hide = true, default_value_t = 1)]
    stride: u64,
}

/// A world, or all.
#[derive(Debug, Clone, Copy)]
struct World(Option<Name>);

fn world(text: &str) -> Result<World, String> {
    if text == "all" {
        return Ok(World(None));
    }
    text.parse().map(|name| World(Some(name)))
}

/// A rule to break, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plant {
    One(Fault),
    All,
}

fn plant(text: &str) -> Result<Plant, String> {
    if text == "all" {
        return Ok(Plant::All);
    }
    let known = || Fault::ALL.iter().map(|f| f.name()).collect::<Vec<_>>().join(", ");
    let found = Fault::ALL.iter().find(|f| f.name() == text);
    let found = found.ok_or_else(|| format!("there is no fault \"{text}\" to plant: there are all, {}", known()));
    found.map(|fault| Plant::One(*fault))
}

fn worlds() -> String {
    let line = |name: Name| format!("  {:<14}{}\n", name.text(), name.about());
    let lines: String = Name::ALL.into_iter().map(line).collect();
    format!(
        "Worlds:\n{lines}  all           each of them, by turns\n\nA failure names its seed: the same seed fails again."
    )
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cenote-sim: {error}");
            ExitCode::from(3)
        }
    }
}

fn run(arguments: &Arguments) -> std::io::Result<ExitCode> {
    let limits = limits(arguments);
    if let Some(seeds) = arguments.worker {
        worker::work(Job {
            world: arguments.world.0,
            first: arguments.seed.unwrap_or(0),
            seeds,
            stride: arguments.stride,
            limits,
            plant: planted(arguments),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let order = order(arguments, limits)?;
    if arguments.plant == Some(Plant::All) {
        return plant_all(arguments, &order);
    }
    let mut summary = explore(&order)?;
    if let (Some(failure), false) = (summary.failure.clone(), arguments.no_shrink) {
        eprintln!(
            "seed {} of world {} has failed; looking for a shorter run",
            failure.seed, failure.world
        );
        summary.failure = Some(shrink::shrink(
            &order,
            failure,
            Duration::from_secs(arguments.shrink_seconds),
        )?);
    }
    tell(&summary, order.plant);
    Ok(ExitCode::from(u8::from(summary.failure.is_some())))
}

fn planted(arguments: &Arguments) -> Option<Fault> {
    match arguments.plant {
        Some(Plant::One(fault)) => Some(fault),
        Some(Plant::All) | None => None,
    }
}

/// Breaks each rule in its world, and says after how many seeds that was noticed. With `--world`, those of that world
/// alone.
fn plant_all(arguments: &Arguments, order: &Order) -> std::io::Result<ExitCode> {
    let all: Vec<_> = mutations::all()
        .filter(|m| arguments.world.0.is_none_or(|world| world == m.world))
        .collect();
    let (mut found, first) = (0, arguments.seed.unwrap_or(1));
    let time = Some(order.time.unwrap_or(Duration::from_secs(arguments.plant_seconds)));
    let order = &Order { time, ..order.clone() };
    println!(
        "{:<24} {:<13} {:>7} {:>7}  first seen as",
        "mutation", "world", "seeds", "seconds"
    );
    for (n, mutation) in all.iter().enumerate() {
        let progress = format!("{} of {}: {}", n + 1, all.len(), mutation.fault.name());
        if std::io::stderr().is_terminal() {
            eprint!("{progress:<40}\r");
        }
        let result = mutation.run(order, first, arguments.seeds.unwrap_or(mutation.seeds))?;
        found += usize::from(result.seen.is_some());
        let (seeds, seen) = match &result.seen {
            Some((seeds, what)) => (seeds.to_string(), what.as_str()),
            None => (format!("> {}", result.seeds), "not noticed"),
        };
        let (name, world, seconds) = (mutation.fault.name(), mutation.world.text(), result.time.as_secs_f64());
        println!("{name:<24} {world:<13} {seeds:>7} {seconds:>7.1}  {seen}");
    }
    println!("{found} of {} were noticed", all.len());
    Ok(ExitCode::from(u8::from(found < all.len())))
}

fn limits(arguments: &Arguments) -> Limits {
    let mut limits = arguments.limits.unwrap_or_default();
    if let Some(transactions) = arguments.transactions {
        limits.transactions = transactions;
    }
    limits
}

fn order(arguments: &Arguments, limits: Limits) -> std::io::Result<Order> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let alone = arguments.seed.is_some() && arguments.seeds.is_none() && arguments.minutes.is_none();
    let seeds = match (alone, arguments.minutes) {
        (true, _) => 1,
        (_, Some(_)) => u64::MAX / 4,
        _ => arguments.seeds.unwrap_or(100),
    };
    Ok(Order {
        program: std::env::current_exe()?,
        world: arguments.world.0,
        first: arguments.seed.unwrap_or_else(|| cenote_base::rt::os::random() >> 40),
        seeds,
        time: arguments.minutes.map(|m| Duration::from_secs_f64(m * 60.0)),
        jobs: arguments.jobs.unwrap_or(cores).max(1),
        limits,
        plant: planted(arguments),
        quiet: false,
    })
}

fn tell(summary: &Summary, plant: Option<Fault>) {
    let minutes = summary.time.as_secs_f64() / 60.0;
    println!(
        "{} seeds in {:.1} s ({:.0} a minute): {} transactions, {} deaths",
        summary.seeds,
        summary.time.as_secs_f64(),
        summary.seeds as f64 / minutes,
        summary.tally.get("transactions"),
        deaths(&summary.tally),
    );
    for (what, n) in &summary.tally.0 {
        if what != "digest" {
            println!("  {what:<36} {n:>12}");
        }
    }
    match &summary.failure {
        Some(failure) => tell_failure(failure, plant),
        None => println!("nothing is wrong"),
    }
}

fn tell_failure(failure: &Failure, plant: Option<Fault>) {
    println!("\nFAILED: seed {} of world {}", failure.seed, failure.world);
    failure.lines.iter().for_each(|line| println!("  {line}"));
    let plant = plant.map_or(String::new(), |fault| format!(" --plant {}", fault.name()));
    println!(
        "\nagain: cenote sim --world {} --seed {} --no-shrink --limits {}{plant}",
        failure.world,
        failure.seed,
        limits_text(failure.limits)
    );
}
