//! `cenote-bench`: what `cenote demo`, `cenote bench` and `cenote reproduce` run.

use cenote_bench::sysbench::Shape;
use cenote_bench::{
    crash, demo, devices, differential, footprint, peers, pool, relations, reproduce, reproduce::replay, server,
    shapes, statements, sweep, tatp, tpcc, tpch, writes, ycsb,
};
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
    /// Run random statements on Cenote and PostgreSQL, and show those that they answer differently
    Differential(DifferentialArgs),
    /// Measure how soon a server is ready, and the memory it holds with idle connections; fails beyond 100 ms or 150
    /// MiB
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
    /// Run sysbench's five OLTP workloads, TPC-C and TATP on Cenote, MariaDB and PostgreSQL in the same run
    Peers(PeersArgs),
    /// Check statements that have to agree with each other (partitions of a predicate, joins, paths) on Cenote alone
    Relations(RelationsArgs),
    /// Time statements of many shapes (joins, subqueries, OR, ANY, first rows) on one server, or on two in turns
    Shapes(ShapesArgs),
    /// Measure the server's processor time a statement: what `reproduce` takes as an input
    Statements {
        /// Data directory, made and left
        #[arg(long, default_value = "statements-data")]
        data: PathBuf,
        /// Seconds a statement
        #[arg(long, default_value_t = 3)]
        seconds: u64,
    },
    /// Run TATP's seven transactions on any server that speaks PostgreSQL's wire protocol
    Tatp(TatpArgs),
    /// Run TPC-C's five transactions on any server that speaks PostgreSQL's wire protocol, and check its conditions
    Tpcc(TpccArgs),
    /// Run TPC-H's 22 queries on any server that speaks PostgreSQL's wire protocol, and compare answers
    Tpch(TpchArgs),
    /// Count the bytes that random updates write, where the table is some times the memory, on Cenote and PostgreSQL
    Writes(WritesArgs),
    /// Run YCSB's workloads on the key-value store: in this process, behind `cenote kv`, and on Redis in the same run
    Ycsb(YcsbArgs),
    /// Measure the memory of a pool of several pods: by the size of accesses, by clients, by pods
    Pool(PoolArgs),
    /// Start two pods of a memory pool, and show under load where extents are, what moves, and what is local
    PoolDemo(PoolDemoArgs),
    /// Say how long a trace (`cenote trace`) would take with other sizes of local and remote memory, simulated
    #[command(after_help = REPLAY_HELP)]
    Replay(ReplayArgs),
    /// Run a paper's experiments with all of their baselines in the simulator, and show its numbers beside
    Reproduce(ReproduceArgs),
}

#[derive(Args)]
#[command(after_help = reproduce::HELP)]
struct ReproduceArgs {
    /// The paper: polarcxlmem, rcmp, serverless
    paper: String,
    /// Figures and tables; all unless named
    figures: Vec<String>,
    /// Small data and short runs: all of it in under two minutes
    #[arg(long)]
    quick: bool,
    /// Where tables, plots and the page go
    #[arg(long, default_value = "reproduce-out")]
    out: PathBuf,
    /// First seed of the simulation: same seed, same numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, from the first one on: numbers are medians, with least and most
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// What the page says of the code's version; unless told, what `git describe` says of the sources
    #[arg(long)]
    commit: Option<String>,
    /// Run those figures only that were made of other code, or by fewer seeds
    #[arg(long)]
    if_stale: bool,
    /// Of serverless: where traces of TPC-H and TPC-C are kept, and made if they are not there [default: not kept]
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
}

impl From<ReproduceArgs> for reproduce::Options {
    fn from(args: ReproduceArgs) -> Self {
        reproduce::Options {
            paper: args.paper,
            figures: args.figures,
            quick: args.quick,
            out: args.out,
            seed: args.seed,
            seeds: args.seeds,
            commit: args.commit,
            if_stale: args.if_stale,
            traces: args.traces,
            program: None,
        }
    }
}

/// Shown with `replay --help`.
const REPLAY_HELP: &str = "\
Examples:
  cenote replay orders.trace                                   5% and 25% of the pages local; the others remote, or stored
  cenote replay orders.trace --local 10% --remote 50%,100%     remote memory for half of the pages, and for all
  cenote replay orders.trace --processor 2                     by a processor half as fast";

#[derive(Args)]
struct ReplayArgs {
    /// What `cenote trace` wrote
    trace: PathBuf,
    /// Local memory: shares of the pages that the trace asks for
    #[arg(long, value_delimiter = ',', default_value = "25%,5%", value_parser = replay::command::share)]
    local: Vec<f64>,
    /// Remote memory: shares of them; 0% is none, and storage behind local memory
    #[arg(long, value_delimiter = ',', default_value = "100%,0%", value_parser = replay::command::share)]
    remote: Vec<f64>,
    /// What processor times are multiplied by
    #[arg(long, default_value_t = 1.0)]
    processor: f64,
    /// All by one thread in the trace's order, not by the threads that did it, side by side
    #[arg(long)]
    one_thread: bool,
    /// Seed of the simulation
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct PoolArgs {
    /// Where the tables, the figures and the plot go
    #[arg(long, default_value = "pool-out")]
    out: PathBuf,
    /// Bytes of all objects together
    #[arg(long, default_value = "256MiB")]
    memory: cenote_base::units::ByteSize,
    /// Bytes of an access, of one client; none: leave that out
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024,4096,16384")]
    #[arg(value_parser = clap::value_parser!(u64).range(8..=1 << 20))]
    sizes: Vec<u64>,
    /// Clients in each of two pods
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Vec<u32>,
    /// Pods
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=32))]
    pods: Vec<u32>,
    /// Of a hundred accesses, writes, where both are mixed
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=100))]
    writes: u64,
    /// Seconds a round
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds; medians are shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Same seed, same accesses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl PoolArgs {
    fn options(self) -> cenote_bench::Result<sweep::Options> {
        let memory = self.memory.bytes();
        let room = 32 * self.sizes.iter().copied().max().unwrap_or(64).max(64);
        if !(self.seconds > 0.0 && self.seconds < 1e6) || memory < room {
            let text = format!("--seconds is to be above 0, and --memory at least {room} bytes for these sizes");
            return Err(cenote_bench::Error::Refused(text));
        }
        let count = |counts: Vec<u32>| counts.into_iter().map(|n| n as usize).collect();
        Ok(sweep::Options {
            out: self.out,
            program: None,
            memory,
            sizes: self.sizes,
            clients: count(self.clients),
            pods: count(self.pods),
            writes: self.writes,
            seconds: self.seconds,
            rounds: self.rounds as usize,
            seed: self.seed,
        })
    }
}

#[derive(Args)]
struct PoolDemoArgs {
    /// Memory of each of the four memory nodes
    #[arg(long, default_value = "64MiB")]
    size: cenote_base::units::ByteSize,
    /// Objects
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    objects: u64,
    /// Bytes of each
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(8..=65536))]
    bytes: u64,
    /// How long it runs
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(3..=3600))]
    seconds: u64,
    /// Of a hundred accesses, writes
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=100))]
    writes: u64,
    /// Each pod's own hot objects, the same in both, or none
    #[arg(long, default_value = "own")]
    load: pool::Load,
    /// Same seed, same accesses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl PoolDemoArgs {
    fn options(&self) -> pool::Options {
        pool::Options {
            program: None,
            size: self.size.bytes(),
            objects: self.objects,
            bytes: self.bytes,
            seconds: self.seconds,
            writes: self.writes,
            load: self.load,
            seed: self.seed,
        }
    }
}

/// Which data a benchmark of transactions finds, and how long it runs.
#[derive(Args)]
struct RunArgs {
    /// The server, such as postgres://user@127.0.0.1:5432/database
    #[arg(long, value_name = "URL")]
    connect: String,
    /// Drop, create and fill the tables; without either of both, fill them if there are none
    #[arg(long, overrides_with = "no_load")]
    load: bool,
    /// Use the data that is there
    #[arg(long)]
    no_load: bool,
    /// Seconds a round
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Seconds before each round that are not measured
    #[arg(long, default_value_t = 5.0)]
    warmup: f64,
    /// Rounds, each with a seed one more than the one before; medians are shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Same seed, same data and inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The server's process: its processor time is measured, with that of its children
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Print how the server carries out each statement, and run nothing
    #[arg(long)]
    explain: bool,
}

impl RunArgs {
    fn load(&self) -> tpcc::Load {
        match (self.load, self.no_load) {
            (true, _) => tpcc::Load::Always,
            (false, true) => tpcc::Load::Never,
            (false, false) => tpcc::Load::IfMissing,
        }
    }

    /// Warm-up and measured time.
    fn times(&self) -> cenote_bench::Result<[Duration; 2]> {
        let is_right = |seconds: f64| (0.0..1e6).contains(&seconds);
        if self.seconds <= 0.0 || !is_right(self.seconds) || !is_right(self.warmup) {
            let text = "--seconds is to be above 0, --warmup not below it, and both under a million";
            return Err(cenote_bench::Error::Refused(text.into()));
        }
        Ok([self.warmup, self.seconds].map(Duration::from_secs_f64))
    }
}

#[derive(Args)]
struct TpccArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Where the figures and the plot go
    #[arg(long, default_value = "tpcc-out")]
    out: PathBuf,
    /// Warehouses
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    warehouses: i32,
    /// Terminals, each with a connection; they are spread over the warehouses
    #[arg(long, alias = "clients", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=5000))]
    terminals: u32,
    /// Terminals type and think as the specification has it
    #[arg(long)]
    think_time: bool,
    /// Isolation of all transactions
    #[arg(long, default_value = "read committed", value_parser = ["read committed", "repeatable read", "serializable"])]
    isolation: String,
    /// Check consistency conditions 1 to 12, and run nothing
    #[arg(long)]
    check_only: bool,
}

fn run_tpcc(args: TpccArgs) -> cenote_bench::Result<()> {
    if args.run.explain {
        return tpcc::explain(&args.run.connect);
    }
    if args.check_only {
        tpcc::must_hold(&args.run.connect)?;
        println!("conditions 1 to 12 hold");
        return Ok(());
    }
    let [warmup, measured] = args.run.times()?;
    tpcc::run(&tpcc::Options {
        load: args.run.load(),
        url: args.run.connect,
        out: Some(args.out),
        warehouses: args.warehouses,
        sizes: tpcc::Sizes::STANDARD,
        terminals: args.terminals,
        measured,
        warmup,
        rounds: args.run.rounds,
        seed: args.run.seed,
        has_waits: args.think_time,
        isolation: args.isolation,
        server_pid: args.run.server_pid,
    })
    .map(drop)
}

#[derive(Args)]
struct ShapesArgs {
    /// The server, such as postgres://user@127.0.0.1:5432/database
    #[arg(long, value_name = "URL")]
    connect: String,
    /// A server to compare with
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// Where the figures go
    #[arg(long, default_value = "shapes-out")]
    out: PathBuf,
    /// Customers; each has five orders
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    customers: u32,
    /// Rounds; medians are shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Milliseconds that a shape is run in a round
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: u64,
}

fn run_relations(args: RelationsArgs) -> cenote_bench::Result<()> {
    relations::run(&relations::Options {
        program: server::cenote_program()?,
        out: args.out,
        seed: args.seed,
        seeds: args.seeds,
        relations: args.relations,
        analytics: args.analytics,
    })
}

fn run_shapes(args: ShapesArgs) -> cenote_bench::Result<()> {
    shapes::run(&shapes::Options {
        url: args.connect,
        against: args.against,
        out: args.out,
        customers: args.customers,
        rounds: args.rounds,
        slice: Duration::from_millis(args.slice),
    })
}

#[derive(Args)]
struct TatpArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Where the figures and the plot go
    #[arg(long, default_value = "tatp-out")]
    out: PathBuf,
    /// Subscribers
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(i32).range(1000..=100_000_000))]
    subscribers: i32,
    /// Clients, each with a connection
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=5000))]
    clients: u32,
}

fn run_tatp(args: TatpArgs) -> cenote_bench::Result<()> {
    if args.run.explain {
        return tatp::explain(&args.run.connect);
    }
    let [warmup, measured] = args.run.times()?;
    tatp::run(&tatp::Options {
        load: args.run.load(),
        url: args.run.connect,
        out: Some(args.out),
        subscribers: args.subscribers,
        clients: args.clients,
        measured,
        warmup,
        rounds: args.run.rounds,
        seed: args.run.seed,
        server_pid: args.run.server_pid,
    })
    .map(drop)
}

#[derive(Args)]
struct WritesArgs {
    /// Where data directories and figures go
    #[arg(long, default_value = "writes-out")]
    out: PathBuf,
    /// Of each server's page cache, MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..=16_384))]
    memory: u32,
    /// How many times as large the table is
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
    /// Updates that are counted
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..))]
    updates: u32,
    /// Clients, each with a connection
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Which of cenote, cenote-dram and postgresql; ratios are to the last
    #[arg(long, value_delimiter = ',', default_value = "cenote,postgresql")]
    servers: Vec<String>,
    /// Same seed, same rows and updates
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn run_writes(args: WritesArgs) -> cenote_bench::Result<()> {
    writes::run(&writes::Options {
        program: server::cenote_program()?,
        out: args.out,
        memory_mib: args.memory,
        times: args.times,
        updates: args.updates,
        clients: args.clients,
        servers: args.servers,
        seed: args.seed,
    })
}

#[derive(Args)]
struct TpchArgs {
    /// The server, such as postgres://user@127.0.0.1:5432/database
    #[arg(long, value_name = "URL")]
    connect: String,
    /// Where the figures and the plot go
    #[arg(long, default_value = "tpch-out")]
    out: PathBuf,
    /// How much data: 1 is 1.5 million orders, 0.001 the least
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Drop, create and fill the tables; else the data is used that is there
    #[arg(long)]
    load: bool,
    /// Make indexes of what foreign keys would be of, when loading
    #[arg(long, requires = "load")]
    indexes: bool,
    /// Load, and ask nothing
    #[arg(long, requires = "load")]
    load_only: bool,
    /// Which queries
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=22))]
    queries: Vec<u32>,
    /// Measured repetitions of each query, after one that is not
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Seconds that a query may take
    #[arg(long, default_value_t = tpch::TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Same seed, same data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The server's process: its processor time is measured, with that of its children
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Write the answers
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
    /// Compare with answers that were written from another server
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

fn run_tpch(args: TpchArgs) -> cenote_bench::Result<()> {
    // Keys of lines are of 32 bits.
    if !(0.001..=300.0).contains(&args.scale) {
        let text = "--scale is to be from 0.001 to 300";
        return Err(cenote_bench::Error::Refused(text.into()));
    }
    let all = || (1..=22).collect();
    tpch::run(&tpch::Options {
        url: args.connect,
        out: args.out,
        scale: args.scale,
        seed: args.seed,
        is_loading: args.load,
        has_indexes: args.indexes,
        queries: match (args.load_only, args.queries.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => all(),
            (false, false) => args.queries,
        },
        repetitions: args.repetitions,
        timeout: Duration::from_secs(args.timeout),
        server_pid: args.server_pid,
        answers: args.answers,
        compare: args.compare,
    })
    .map(drop)
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
struct DifferentialArgs {
    /// Where data directories go
    #[arg(long, default_value = "differential-out")]
    out: PathBuf,
    /// The first seed: same seed, same tables and statements
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, from the first one on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Statements a seed
    #[arg(long, default_value_t = 300)]
    statements: usize,
    /// Prepared statements a seed, each run several times
    #[arg(long, default_value_t = 50)]
    prepared: usize,
    /// Cut down, and tell, what analytics answers otherwise as well
    #[arg(long)]
    analytics: bool,
    /// Leave the short path and the row executor out: analytics answers all queries
    #[arg(long)]
    analytics_alone: bool,
}

#[derive(Args)]
struct RelationsArgs {
    /// Where the data directory goes
    #[arg(long, default_value = "relations-out")]
    out: PathBuf,
    /// The first seed: same seed, same tables and relations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, from the first one on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Relations a seed
    #[arg(long, default_value_t = 500)]
    relations: usize,
    /// Cut down, and tell, also those that do not hold by analytics
    #[arg(long)]
    analytics: bool,
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
    /// Warehouses of TPC-C
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    warehouses: i32,
    /// Subscribers of TATP
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(i32).range(1000..=100_000_000))]
    subscribers: i32,
    /// How clients reach the servers
    #[arg(long, default_value = "tcp")]
    sockets: peers::Sockets,
    /// Workloads: of sysbench's names, tpcc, tatp; the last two not on mariadb
    #[arg(long, value_delimiter = ',', default_values_t = peers::all_workloads())]
    workloads: Vec<String>,
    /// Servers: cenote, cenote-dram, mariadb, postgresql; ratios are the first to each, the plot's unit is the last
    #[arg(long, value_delimiter = ',', default_values_t = peers::all_servers())]
    servers: Vec<String>,
}

#[derive(Args)]
#[command(
    after_help = "Keys have no order in a hash table, so a scan of e is as many look-ups of records that follow each \
        other in number: of Redis too."
)]
struct YcsbArgs {
    /// Where the table, the figures and the plot go
    #[arg(long, default_value = "ycsb-out")]
    out: PathBuf,
    /// What is measured: the store in this process, a table in a pool's space, cenote kv, Redis if it is installed
    #[arg(long, value_delimiter = ',', default_value = "embedded,pool,kv,redis")]
    targets: Vec<ycsb::TargetKind>,
    /// Workloads: a (half updates), b (5% updates), c (reads), d (reads of the latest, 5% inserts), e (scans, 5%
    /// inserts), f (half read-modify-write)
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e,f")]
    workloads: Vec<String>,
    /// How records are chosen in a, b, c, e and f
    #[arg(long, value_delimiter = ',', default_value = "zipfian,uniform")]
    distributions: Vec<ycsb::workload::Distribution>,
    /// A record is a hash of its fields, or one value of all their bytes
    #[arg(long, default_value = "hash")]
    layout: ycsb::record::Layout,
    /// Records
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    records: u64,
    /// Fields of a record
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fields: u32,
    /// Bytes of a field
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    field_bytes: u32,
    /// Seconds a round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Operations a round, in the place of seconds
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Pods of the target pool, a memory node in each; threads that make load are spread over them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    pods: u32,
    /// Threads that make load: of the embedded store, all that there are
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Connections to a server, of all threads together
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=5000))]
    connections: u32,
    /// Commands that a connection sends before it takes the answers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pipeline: u32,
    /// Same seed, same operations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Servers on the first core, load on the others
    #[arg(long)]
    pin: bool,
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
        What::Differential(args) => differential::run(&differential::Options {
            program: server::cenote_program()?,
            out: args.out,
            seed: args.seed,
            seeds: args.seeds,
            statements: args.statements,
            prepared: args.prepared,
            analytics: args.analytics || args.analytics_alone,
            alone: args.analytics_alone,
        }),
        What::Relations(args) => run_relations(args),
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
        What::Replay(args) => run_replay(args),
        What::Reproduce(args) => reproduce::run(&args.into()),
        What::Pool(args) => sweep::run(&args.options()?),
        What::PoolDemo(args) => pool::demo(&args.options()).map(drop),
        What::Shapes(args) => run_shapes(args),
        What::Tatp(args) => run_tatp(args),
        What::Tpcc(args) => run_tpcc(args),
        What::Tpch(args) => run_tpch(args),
        What::Writes(args) => run_writes(args),
        What::Ycsb(args) => ycsb::run(&ycsb_options(args)?),
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
            warehouses: args.warehouses,
            subscribers: args.subscribers,
            sockets: args.sockets,
            workloads: args.workloads,
            servers: args.servers,
        }),
    }
}

fn run_replay(args: ReplayArgs) -> cenote_bench::Result<()> {
    let options = replay::command::Options {
        trace: args.trace,
        local: args.local,
        remote: args.remote,
        processor: args.processor,
        one_thread: args.one_thread,
        seed: args.seed,
    };
    replay::command::run(&options.checked()?)
}

fn ycsb_options(args: YcsbArgs) -> cenote_bench::Result<ycsb::Options> {
    if !(args.seconds > 0.0 && args.seconds < 1e6) || args.threads > args.connections {
        let text = "--seconds is to be above 0, and --connections at least --threads";
        return Err(cenote_bench::Error::Refused(text.into()));
    }
    let workloads: cenote_bench::Result<_> = args.workloads.iter().map(|name| name.parse()).collect();
    Ok(ycsb::Options {
        out: args.out,
        targets: args.targets,
        workloads: workloads?,
        distributions: args.distributions,
        layout: args.layout,
        records: args.records,
        fields: args.fields as usize,
        field_bytes: args.field_bytes as usize,
        length: args
            .operations
            .map_or(ycsb::Length::Seconds(args.seconds), ycsb::Length::Operations),
        rounds: args.rounds,
        threads: args.threads as usize,
        pods: args.pods as usize,
        program: None,
        connections: args.connections as usize,
        pipeline: args.pipeline as usize,
        seed: args.seed,
        is_pinned: args.pin,
    })
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
