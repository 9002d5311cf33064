//! Workloads, side-by-side comparisons and the demonstration.
//!
//! Almost everything here talks to servers as their users do: real processes over the wire protocol.
//! - [`server`] starts, kills and stops servers (Cenote and its peers) and ends them by process id whatever happens.
//! - [`load`] is a load generator that survives its server: it reconnects, and counts in 10 ms buckets.
//! - [`ledger`] is its workload: transfers whose acknowledged ids are remembered by the client, so that what a
//!   crash lost, or left half done, can be told afterwards.
//! - [`demo`] kills a server under that load and shows what happened; [`crash`] measures it.
//! - [`kills`] kills a server at random moments, many times, and checks after each.
//! - [`devices`] runs one server on several emulated devices.
//! - [`differential`] runs random statements on Cenote and PostgreSQL, and compares.
//! - [`footprint`] measures what a server costs before it does anything.
//! - [`statements`] measures the server's processor time a statement.
//! - [`reproduce`] runs papers' experiments in the simulator: the engine itself, no server.
//! - [`ycsb`] runs YCSB's workloads on the key-value store, in this process and behind its server, and on Redis.
//! - [`pool`] shows two pods of a memory pool under a load with hot sets.
//! - [`tpcc`], [`tatp`] and [`tpch`] run these benchmarks on any server that speaks PostgreSQL's wire protocol; the
//!   first two by [`oltp`].
//! - [`traced`] is a server whose page accesses are traced while one of these runs.
//! - [`relations`] checks statements that have to agree with each other.
//! - [`writes`] counts the bytes that random updates write, where the data is some times the memory.
//! - [`shapes`] times statements of many shapes on one server or two.
//! - [`peers`] runs sysbench, TPC-C and TATP on Cenote, PostgreSQL and MariaDB in the same run.

pub mod crash;
pub mod decimal;
pub mod demo;
pub mod devices;
pub mod differential;
pub mod draw;
pub mod footprint;
mod host;
pub mod interrupted;
pub mod kills;
pub mod ledger;
pub mod load;
pub mod moving;
pub mod oltp;
pub mod peers;
pub mod plot;
pub mod pods;
pub mod pool;
pub mod processor;
pub mod quarters;
pub mod relations;
pub mod reproduce;
pub mod server;
pub mod shapes;
pub mod statements;
pub mod sweep;
pub mod sysbench;
pub mod table;
pub mod tatp;
pub mod tpcc;
pub mod tpch;
pub mod traced;
pub mod writes;
pub mod ycsb;

/// What can go wrong in a comparison, in words for the person who ran it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server did not start, answer or stop.
    #[error("{name}: {what}")]
    Server {
        /// Which server.
        name: String,
        /// What it did, with the end of its output.
        what: String,
    },
    /// A statement failed.
    #[error("statement failed: {}", describe(.0))]
    Sql(#[from] postgres::Error),
    /// A statement of a terminal failed.
    #[error("statement failed: {message} ({code})")]
    Statement {
        /// The SQLSTATE.
        code: String,
        /// What the server said.
        message: String,
    },
    /// A file or process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A tool is missing and cannot be installed from here.
    #[error("{tool} is not installed; install it with: {command}")]
    Missing {
        /// The program.
        tool: String,
        /// What to type.
        command: String,
    },
    /// A tool printed something that cannot be read.
    #[error("{tool} printed no {what}; its output ends:\n{tail}")]
    Output {
        /// The program.
        tool: String,
        /// What was looked for.
        what: String,
        /// The end of what it printed.
        tail: String,
    },
    /// The check after a crash found something lost or half done.
    #[error("the check found: {0}")]
    Lost(String),
    /// A simulation could not be set up, or something in it failed.
    #[error("{0}")]
    Simulation(String),
    /// What was asked for cannot be done, or what came of it cannot be used.
    #[error("{0}")]
    Refused(String),
    /// The pool, or memory of it.
    #[error(transparent)]
    Memory(#[from] cenote_base::Error),
    /// A plot could not be drawn.
    #[error("plot: {0}")]
    Plot(String),
}

impl Error {
    /// The SQLSTATE, if a server refused a statement.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Error::Sql(error) => error.code().map(postgres::error::SqlState::code),
            Error::Statement { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// What the server said, else what went wrong on the way to it.
fn describe(error: &postgres::Error) -> String {
    error.as_db_error().map_or_else(
        || match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
        |e| format!("{} ({})", e.message(), e.code().code()),
    )
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Names what was tried beside the operating system's answer.
pub trait IoContext<T> {
    /// `what` is a short clause such as "starting sysbench".
    fn context(self, what: impl Into<String>) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Io {
            what: what.into(),
            source,
        })
    }
}
