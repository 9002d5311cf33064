//! The command line: what can be asked of the program, with help that teaches.

mod archive;
mod audit;
mod auto;
mod backup;
mod branch;
mod check;
mod client;
mod cluster;
mod delegate;
mod devices;
mod host;
mod kv;
mod mount;
mod password;
mod pool;
mod proxy;
mod region;
mod restore;
mod run;
mod serving;
mod space;
mod status;
mod storage;
mod trace;
mod up;
mod version;

use crate::config::{DataOptions, MemoryOptions, RunOptions, StorageOptions};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Writes a line to standard output. A reader may close it early (`cenote status | head`): that is no error.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let mut out = std::io::stdout().lock();
        writeln!(out, $($text)*).and_then(|()| out.flush()).ok();
    }};
}
use say;

/// What a command fails with: told to the user as it is.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A database whose memory outlives its process: PostgreSQL's protocol, pages in CXL memory, restarts in milliseconds.
#[derive(Debug, Parser)]
#[command(name = "cenote", disable_version_flag = true, after_help = EXAMPLES, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  cenote run                                    start a server on ./cenote-data and 127.0.0.1:5433
  psql -h 127.0.0.1 -p 5433 -d cenote           connect to it, under any user name
  cenote run --memory-size 512MiB               with less memory for pages
  cenote run --memory dram                      the classic way: private memory, recovery by log replay
  cenote status                                 which memory, how it recovered, its sessions
  cenote check                                  verify every tree, index and list
  cenote backup /srv/backup/monday              a consistent copy while the server runs
  cenote restore /srv/backup/monday --data new  and back

Settings come from the command line, else from the environment (CENOTE_DATA, CENOTE_LISTEN, CENOTE_MEMORY, ...),
else from a TOML file (--config, or cenote.toml in the data directory), with the same names: memory_size = \"4GiB\".";

const RUN_EXAMPLES: &str = "\
Examples:
  cenote run
  cenote run --data /srv/cenote --memory-size 4GiB
  cenote run --listen 127.0.0.1:0                                   any free port; the `ready` line names it
  cenote run --listen 0.0.0.0:5433 --password-file /srv/passwords   for other machines; passwords are then needed
  cenote run --region /dev/dax0.0 --survive host                    memory that outlives the host
  cenote run --storage 10.0.0.1:6001,10.0.0.2:6001,10.0.0.3:6001    log and pages on storage nodes
  cenote run --device cxl-switch                                    as slow as memory behind a CXL switch (emulated)

The server runs in the foreground and logs on standard error. SIGTERM or Ctrl-C stop it in order; kill -9 loses nothing
that was acknowledged either. A line that begins with `ready` says that it accepts connections.";

const TRACE_EXAMPLES: &str = "\
Examples:
  cenote trace /tmp/orders.trace --data /srv/orders --for 60      a minute of what its sessions do
  cenote replay /tmp/orders.trace --local 5% --local 25%          what it would take with remote memory, or storage, behind
                                                                  less local memory

A trace has numbers of pages, kinds of accesses and processor times, and nothing that is in the pages.";

const RESTORE_EXAMPLES: &str = "\
Examples:
  cenote restore /srv/backup/monday --data new
  cenote restore s3://bucket/orders --data new                                     all that is archived
  cenote restore /srv/archive --data new --to-time '2026-11-29 14:05:00+01'        what was committed by then
  cenote restore /srv/archive --data new --to-lsn 0/1A2B3C40                       what the log had below that

The archive and the database that it is of stay as they are. What is made is another database, which is started with
`cenote run --data new`, or put on storage nodes with `cenote storage load --data new`.";

const POOL_EXAMPLES: &str = "\
A pool on one machine, and a database in it:
  cenote manager --dir /srv/pool                                            listens on 127.0.0.1:5440
  cenote memory --pod rack1 --size 8GiB --region /dev/shm/rack1
  cenote run --data /srv/orders --memory pool --manager 127.0.0.1:5440 --memory-size 4GiB
  cenote pool status

Hosts of a pod that share a device, each with an agent; a grant goes from a host to another when its holder is over:
  cenote host --pod rack1 --device /dev/dax0.0 --format                     once; without --format on the other hosts
  cenote pool host-lost NAME                                                none of its processes reaches the device

Killed and started again, the database finds its memory as it was. `cenote pool free GRANT` gives memory back.
With --tenants FILE the manager knows tenants, their quotas and secrets; without, it listens on loopback addresses only.";

const STORAGE_EXAMPLES: &str = "\
Three storage nodes on one machine, and a database on them:
  nodes=1=127.0.0.1:6001,2=127.0.0.1:6002,3=127.0.0.1:6003
  cenote storage --node 1 --nodes $nodes --dir /srv/storage1
  cenote storage --node 2 --nodes $nodes --dir /srv/storage2
  cenote storage --node 3 --nodes $nodes --dir /srv/storage3
  cenote run --data /srv/orders --storage 127.0.0.1:6001,127.0.0.1:6002,127.0.0.1:6003
  cenote storage status --storage 127.0.0.1:6001,127.0.0.1:6002,127.0.0.1:6003

A database of a data directory, put on nodes that have none; the other way is `cenote backup`, then `cenote restore`:
  cenote storage load --data /srv/before --storage 127.0.0.1:6001,127.0.0.1:6002,127.0.0.1:6003

The database as it is now, kept under a name; `cenote branch create --snapshot NAME` makes databases of it:
  cenote storage snapshot monday --storage 127.0.0.1:6001,127.0.0.1:6002,127.0.0.1:6003

A commit is acknowledged when a majority of the nodes has it synced; the nodes make pages of the log themselves. The
server may be started on any machine: it has nothing that lasts. A server that is started takes the database from the
one before, of which nothing is accepted any more. On addresses that other machines reach, every node and server needs
the same secret (--storage-secret-file).";

const BRANCH_EXAMPLES: &str = "\
Try a migration on the database as it is now, with all of its rows, and throw that away:
  nodes=10.0.0.1:6001,10.0.0.2:6001,10.0.0.3:6001
  cenote branch create --data /srv/try --storage $nodes
  cenote run --data /srv/try --listen 127.0.0.1:5555
  cenote branch drop --data /srv/try

Keep the database as it is today, and look at it next week:
  cenote storage snapshot monday --storage $nodes
  cenote branch create --data /srv/monday --snapshot monday --storage $nodes

A branch is made at once, whatever the size of the database: a page is read from the storage nodes as it was, until the
branch has changed it. They keep the pages of a snapshot that change later, and nothing else. A branch needs them as
long as it lives; `cenote backup`, or `cenote storage load` to nodes of its own, makes a whole copy of it.";

const UP_EXAMPLES: &str = "\
Examples:
  cenote up                                   three storage nodes, a writer, two readers, a proxy on 127.0.0.1:5433
  psql -h 127.0.0.1 -p 5433 -d cenote         in another terminal
  kill -9 a process of it                     and watch: another server has the database, clients stay connected
  cenote up --detach --dir /srv/cluster       in the background; `cenote down --dir /srv/cluster` ends it

What ends is started again. Data stays in the directory: the next `cenote up` goes on with it.";

const PROXY_EXAMPLES: &str = "\
Examples:
  cenote proxy --storage 10.0.0.1:6001,10.0.0.2:6001,10.0.0.3:6001
  psql -h 127.0.0.1 -p 5432 -d cenote -c 'SHOW cenote.proxy'

Clients connect to the proxy as to a server. Thousands share a few sessions of each server: one has a session for as
long as its transaction runs. Reads go to readers, everything else to the writer. When the writer is lost, idle clients
notice nothing, and statements wait for the next writer. A line that begins with `ready` says that it accepts
connections.";

const KV_EXAMPLES: &str = "\
Examples:
  cenote kv                                             on 127.0.0.1:6380, 1 GiB in /dev/shm/cenote-kv-6380
  cenote kv --memory-size 8GiB --region /dev/shm/cache  another size, another file
  cenote kv --memory pool --manager 127.0.0.1:5440      in the memory of a pool (see `cenote help manager`)
  redis-cli -p 6380

Several servers on one table, in a space of a pool, on any hosts; programs of C and Python see the same keys:
  cenote kv --memory pool --manager pool:5440 --space cache --memory-size 64GiB --listen 0.0.0.0:6380 \\
            --secret-file secret --tls-cert server.pem --tls-key server.key --metrics 0.0.0.0:9380

A line that begins with `ready` says that it accepts connections. SIGTERM or Ctrl-C stop it in order. kill -9 loses
nothing that was answered: the next start finds it in the memory. But memory is not storage: a host that is lost, or
booted, loses all of it, and so does `rm` of the region's file. When the memory is full, writes are refused; nothing is
evicted. The table that servers share evicts what was not asked for lately, and has strings alone: no hashes, no
transactions.";

const MOUNT_EXAMPLES: &str = "\
Examples:
  cenote mount /mnt/shared --region /dev/shm/shared --size 4GiB   makes it, and mounts it
  cenote mount /mnt/again --region /dev/shm/shared                the same by another process: both see all changes
  umount /mnt/again                                               or SIGTERM, or Ctrl-C
  cenote fs check --region /dev/shm/shared                        whether all is in order
  cenote fs check --space files                                   the same of one that lies in a space of a pool

A line that begins with `ready` says that it is mounted. Needs /dev/fuse; without root it needs
fusermount3 (apt-get install fuse3). kill -9 loses nothing that was written. But memory is not storage: a host that is lost, or booted, loses all of it.";

const PASSWORD_HELP: &str = "\
Reads a password (twice from a terminal, else one line of standard input) and prints a line for a password file:

  cenote password anna >> /srv/passwords
  chmod 600 /srv/passwords
  cenote run --listen 0.0.0.0:5433 --password-file /srv/passwords

The line holds a SCRAM-SHA-256 verifier, not the password. A line `user:password` in clear works, too.";

const DEVICES_HELP: &str = "\
A file holds one profile or several. Latency and source must be there, the rest may be:

  [lab-cxl]
  source = \"our machine, measured with mlc\"
  load_latency_ns = 310             until a load that misses the caches has its line
  bandwidth = 28e9                  bytes a second
  read_ns.64 = 310                  nanoseconds to read so many bytes in one transfer
  read_ns.16384 = 1400
  write_ns.16384 = 1100

  cenote devices lab.profiles                  checks it
  cenote run --device lab.profiles             the file's only profile
  cenote run --device lab.profiles:lab-cxl     one of several";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a server in the foreground
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunOptions>),
    /// Show a running server: its memory, how it recovered, its sessions
    Status(ConnectOptions),
    /// Verify every tree, index and list: through the server if one runs, else on the files
    Check(CheckOptions),
    /// Write a consistent copy of a running server's database to an empty directory
    Backup(BackupOptions),
    /// Write down which pages a running server's workload asks for: `cenote replay` says what other memory would make of it
    #[command(after_help = TRACE_EXAMPLES)]
    Trace(trace::TraceOptions),
    /// Make a data directory from a backup, or from an archive as of any moment
    #[command(after_help = RESTORE_EXAMPLES)]
    Restore(RestoreOptions),
    /// Look at an archive, or have all pages copied there now
    #[command(subcommand)]
    Archive(archive::ArchiveCommand),
    /// List or remove regions: memory that servers left behind
    #[command(subcommand)]
    Region(RegionCommand),
    /// List the memory devices whose latency `cenote run --device` can emulate, or check a file of profiles
    #[command(after_help = DEVICES_HELP)]
    Devices {
        /// File with profiles; without it the built-in ones are listed
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Start a memory pool's manager: it grants memory to tenants
    #[command(after_help = POOL_EXAMPLES)]
    Manager(pool::ManagerArguments),
    /// Start a memory node: it gives memory of a pod to a pool
    #[command(after_help = POOL_EXAMPLES)]
    Memory(pool::MemoryArguments),
    /// Start the agent of a host, at a device that hosts of a pod share: its processes are granted ranges of it
    #[command(after_help = POOL_EXAMPLES)]
    Host(host::HostArguments),
    /// Look at a memory pool: nodes, devices, hosts, tenants, grants; audit it; free what is not needed
    #[command(subcommand, after_help = POOL_EXAMPLES)]
    Pool(pool::PoolCommand),
    /// Start a storage node: with others it keeps the log and the pages of a database
    #[command(after_help = STORAGE_EXAMPLES)]
    Storage(storage::StorageArguments),
    /// Databases that begin as a snapshot of one on storage nodes, and share its pages: make one, look at it, drop it
    #[command(subcommand, after_help = BRANCH_EXAMPLES)]
    Branch(branch::BranchCommand),
    /// Start a cluster on this machine, a process for each role: storage nodes, servers, a proxy for clients
    #[command(after_help = UP_EXAMPLES)]
    Up(up::UpArguments),
    /// End the cluster that `cenote up` started
    Down(up::DownArguments),
    /// Look at the servers of a database on storage nodes, or let another of them have it
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Start a proxy: clients' connections stay while the servers behind it change
    #[command(after_help = PROXY_EXAMPLES)]
    Proxy(proxy::ProxyArguments),
    /// Start a key-value server in the foreground: Redis's protocol, on memory that outlives the process
    #[command(after_help = KV_EXAMPLES)]
    Kv(kv::KvArguments),
    /// Mount a file system that lies in memory, and outlives the process: several processes may have it mounted
    #[command(after_help = MOUNT_EXAMPLES)]
    Mount(mount::MountArguments),
    /// Look at a file system that lies in memory: check it
    #[command(subcommand)]
    Fs(mount::FsCommand),
    /// Make an entry of a password file
    #[command(after_help = PASSWORD_HELP)]
    Password(PasswordOptions),
    /// Measure: `cenote bench peers` compares with other databases (the program cenote-bench)
    #[command(disable_help_flag = true)]
    Bench(DelegateOptions),
    /// Show what a killed server loses: nothing (the program cenote-bench)
    #[command(disable_help_flag = true)]
    Demo(DelegateOptions),
    /// Explore a simulated pod by seed: random transactions, faults, recoveries, checkers (the program cenote-sim)
    #[command(disable_help_flag = true)]
    Sim(DelegateOptions),
    /// Say how long a trace would take with other sizes of local and remote memory, simulated (the program cenote-bench)
    #[command(disable_help_flag = true)]
    Replay(DelegateOptions),
    /// Run a paper's experiments in the simulator: `cenote reproduce polarcxlmem fig7` (the program cenote-bench)
    #[command(disable_help_flag = true)]
    Reproduce(DelegateOptions),
    /// Print the program's version and the versions of its formats
    Version,
}

/// How a command finds a running server.
#[derive(Debug, Clone, Default, Args)]
struct ConnectOptions {
    #[command(flatten)]
    data: DataOptions,
    /// Address of the server [default: where the server of the data directory says that it listens]
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<String>,
    /// User name, where the server asks for passwords (the password is read from PGPASSWORD)
    #[arg(long, env = "PGUSER", default_value = "cenote", value_name = "USER")]
    user: String,
}

#[derive(Debug, Args)]
struct CheckOptions {
    #[command(flatten)]
    connect: ConnectOptions,
    #[command(flatten)]
    memory: MemoryOptions,
    #[command(flatten)]
    storage: StorageOptions,
}

#[derive(Debug, Args)]
struct BackupOptions {
    /// An empty directory, or one that does not exist; on the server's machine
    #[arg(value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    connect: ConnectOptions,
    #[command(flatten)]
    memory: MemoryOptions,
    #[command(flatten)]
    storage: StorageOptions,
}

#[derive(Debug, Args)]
struct RestoreOptions {
    /// What `cenote backup` wrote; or an archive: a directory, or s3://BUCKET/PREFIX
    #[arg(value_name = "BACKUP|ARCHIVE")]
    from: String,
    /// Data directory to make; must be empty or not exist
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    moment: archive::MomentOptions,
}

#[derive(Debug, Subcommand)]
enum RegionCommand {
    /// List the regions in shared memory: size, database, whether in use
    List,
    /// Remove regions that no process uses
    Remove {
        /// Region files as `cenote region list` prints them
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// All regions whose database is gone
        #[arg(long, conflicts_with = "paths")]
        orphaned: bool,
    },
}

#[derive(Debug, Args)]
struct PasswordOptions {
    /// Role name
    #[arg(value_name = "USER")]
    user: String,
}

#[derive(Debug, Args)]
struct DelegateOptions {
    /// Handed to the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Runs the program; `started` is when its process began.
pub fn main(started: Instant) -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command, started) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("cenote: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, started: Instant) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(options) => run::run(*options, started),
        Command::Status(options) => status::run(&options),
        Command::Check(options) => check::run(options),
        Command::Backup(options) => backup::run(options),
        Command::Trace(options) => trace::run(&options),
        Command::Archive(command) => archive::run(command),
        Command::Restore(options) => restore::run(&options),
        Command::Region(RegionCommand::List) => region::list(),
        Command::Region(RegionCommand::Remove { paths, orphaned }) => region::remove(&paths, orphaned),
        Command::Devices { file } => devices::run(file.as_deref()),
        Command::Manager(arguments) => pool::manager(arguments),
        Command::Memory(arguments) => pool::memory(arguments),
        Command::Host(arguments) => host::run(arguments),
        Command::Pool(command) => pool::look(command),
        Command::Storage(arguments) => storage::run(arguments),
        Command::Branch(command) => branch::run(command),
        Command::Up(arguments) => up::up(&arguments),
        Command::Down(arguments) => up::down(&arguments),
        Command::Cluster(command) => cluster::run(command),
        Command::Proxy(arguments) => proxy::run(arguments, started),
        Command::Kv(arguments) => kv::run(arguments, started),
        Command::Mount(arguments) => mount::run(&arguments, started),
        Command::Fs(command) => mount::look(command),
        Command::Password(options) => password::run(&options.user),
        Command::Bench(options) => delegate::run("bench", &options.arguments),
        Command::Demo(options) => delegate::run("demo", &options.arguments),
        Command::Sim(options) => delegate::simulate(&options.arguments),
        Command::Replay(options) => delegate::run("replay", &options.arguments),
        Command::Reproduce(options) => delegate::run("reproduce", &options.arguments),
        Command::Version => version::run(),
    }
}

/// Prints rows of equally many cells, each column as wide as its widest.
fn print_aligned<R: AsRef<[String]>>(rows: &[R]) {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let chars = |cell: &String| cell.chars().count();
    let width = |column: usize| rows.iter().map(|row| chars(&row.as_ref()[column])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let fields = row
            .as_ref()
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:<width$}"));
        say!("  {}", fields.collect::<Vec<_>>().join("  ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
