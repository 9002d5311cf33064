//! `cenote-bench`: what `cenote demo` and `cenote bench` run.

use cenote_bench::sysbench::Shape;
use cenote_bench::{crash, demo, peers, server};
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
    /// Run sysbench's five OLTP workloads on Cenote, MariaDB and PostgreSQL in the same run
    Peers(PeersArgs),
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
