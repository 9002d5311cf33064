//! `cenote-bench`: what `cenote demo`, `cenote bench` and `cenote reproduce` run.

use cenote_bench::sysbench::Shape;
use cenote_bench::{crash, demo, devices, footprint, peers, reproduce, server, statements};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(
    name = "cenote-bench",
    version,
    about = "Shows and measures Cenote: crashes under load, and comparisons with its peers"
)]
struct Cli {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Kill a server under load, restart it, show throughput against time and check that nothing is lost
    Demo(Load),
    /// Measure how long a crash is felt, after loads of different lengths
    Crash {
        #[command(flatten)]
        load: Load,
        /// Seconds of load before each kill
        #[arg(long, value_delimiter = ',', default_value = "10,100")]
        lengths: Vec<u64>,
        /// Kinds of memory
        #[arg(long, value_delimiter = ',', default_value = "cxl,dram")]
        kinds: Vec<String>,
    },
    /// Run one server on several memory devices, whose latency is emulated: what slower memory costs
    Devices(DevicesArgs),
    /// Measure how soon a server is ready, and the memory it holds with idle connections; fails beyond 100 ms or 150 MiB
    Footprint {
        /// Where data directories go
        #[arg(long, default_value = "footprint-out")]
        out: PathBuf,
        /// Memory for the buffer pool
        #[arg(long, default_value = "1GiB")]
        memory_size: String,
        /// Starts of each kind of memory
        #[arg(long, default_value_t = 5)]
        rounds: u32,
        /// Idle connections
        #[arg(long, default_value_t = 100)]
        connections: u32,
    },
    /// Run sysbench's five OLTP workloads on Cenote, MariaDB and PostgreSQL in the same run
    Peers(PeersArgs),
    /// Measure the server's processor time a statement: what `reproduce` takes as an input
    Statements {
        /// Data directory, made and left
        #[arg(long, default_value = "statements-data")]
        data: PathBuf,
        /// Seconds a statement
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// Run a paper's experiments with all of their baselines in the simulator, and show its numbers beside
    Reproduce(ReproduceArgs),
}

#[derive(Args)]
#[command(after_help = reproduce::HELP)]
struct ReproduceArgs {
    /// The paper: polarcxlmem
    paper: String,
    /// Figures and tables; all unless named
    figures: Vec<String>,
    /// Small data and short runs: all of it in under two minutes
    #[arg(long)]
    quick: bool,
    /// Where tables, plots and the page go
    #[arg(long, default_value = "reproduce-out")]
    out: PathBuf,
    /// Seed of the simulation: same seed, same numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct Load {
    /// Where plots, reports and data directories go
    #[arg(long, default_value = "demo-out")]
    out: PathBuf,
    /// Accounts that transfers move between
    #[arg(long, default_value_t = 300_000)]
    accounts: i64,
    /// Client threads
    #[arg(long, default_value_t = 8)]
    threads: i64,
    /// Seconds of load before the kill
    #[arg(long, default_value_t = 8)]
    before: u64,
    /// Seconds of load after the restart
    #[arg(long, default_value_t = 6)]
    after: u64,
    /// Memory for the buffer pool
    #[arg(long, default_value = "512MiB")]
    memory_size: String,
}

#[derive(Args)]
struct DevicesArgs {
    /// Where the data directory, the table and the figures go
    #[arg(long, default_value = "devices-out")]
    out: PathBuf,
    /// Devices as `cenote run --device` takes them; none: the machine's own memory
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "none,dram,cxl-direct,cxl-switch,cxl-fpga"
    )]
    devices: Vec<String>,
    /// Rows of the table
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..))]
    rows: u32,
    /// Rows that a statement selects
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    range: u32,
    /// Client threads
    #[arg(long, default_value_t = 4)]
    threads: u32,
    /// Seconds a measurement
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Memory for the buffer pool
    #[arg(long, default_value = "512MiB")]
    memory_size: String,
}

#[derive(Args)]
struct PeersArgs {
    /// Where data directories, tables and plots go
    #[arg(long, default_value = "peers-out")]
    out: PathBuf,
    /// Tables
    #[arg(long, default_value_t = 4)]
    tables: u32,
    /// Rows a table
    #[arg(long, default_value_t = 250_000)]
    rows: u32,
    /// Client threads
    #[arg(long, default_value_t = 8)]
    threads: u32,
    /// Seconds a measurement
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Page cache of each server, MiB
    #[arg(long, default_value_t = 1024)]
    memory: u32,
    /// Workloads, of sysbench's names
    #[arg(long, value_delimiter = ',', default_values_t = peers::all_workloads())]
    workloads: Vec<String>,
    /// Servers: cenote, cenote-dram, mariadb, postgresql; ratios are the first to each, the plot's unit is the last
    #[arg(long, value_delimiter = ',', default_values_t = peers::all_servers())]
    servers: Vec<String>,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What) -> cenote_bench::Result<()> {
    match what {
        What::Demo(load) => demo::run(&options(load)?),
        What::Crash { load, lengths, kinds } => {
            let lengths: Vec<Duration> = lengths.into_iter().map(Duration::from_secs).collect();
            crash::run(&options(load)?, &lengths, &kinds)
        }
        What::Devices(args) => devices::run(&devices::Options {
            program: server::cenote_program()?,
            out: args.out,
            devices: args.devices,
            rows: args.rows,
            range: args.range,
            threads: args.threads,
            seconds: args.seconds,
            rounds: args.rounds,
            memory_size: args.memory_size,
        }),
        What::Footprint {
            out,
            memory_size,
            rounds,
            connections,
        } => footprint::run(&footprint::Options {
            program: server::cenote_program()?,
            out,
            memory_size,
            rounds,
            connections,
        }),
        What::Statements { data, seconds } => statements::run(&data, seconds),
        What::Reproduce(args) => reproduce::run(&reproduce::Options {
            paper: args.paper,
            figures: args.figures,
            quick: args.quick,
            out: args.out,
            seed: args.seed,
        }),
        What::Peers(args) => peers::run(&peers::Options {
            program: peers::program()?,
            out: args.out,
            shape: Shape {
                tables: args.tables,
                rows: args.rows,
                threads: args.threads,
                seconds: args.seconds,
            },
            rounds: args.rounds,
            memory_mib: args.memory,
            workloads: args.workloads,
            servers: args.servers,
        }),
    }
}

fn options(load: Load) -> cenote_bench::Result<demo::Options> {
    Ok(demo::Options {
        program: server::cenote_program()?,
        out: load.out,
        accounts: load.accounts,
        threads: load.threads,
        before: Duration::from_secs(load.before),
        after: Duration::from_secs(load.after),
        memory_size: load.memory_size,
    })
}
