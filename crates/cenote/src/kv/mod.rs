//! A server that speaks Redis's protocol, in front of a key-value store of the memory pool: the store of this server
//! alone ([`cenote_kv`]), or the table that all share ([`cenote_store`]).
//!
//! ```text
//!   clients ──► acceptor ──┬──► worker: sockets ─► connection: read ─► batch of requests ─► commands ─► reply: write
//!                          ├──► worker                                                         │
//!                          └──► ...                                       store of one thread, or table of all
//! ```
//!
//! A worker is a thread with connections of its own, on which it does everything. The store of this server alone has
//! one worker: no command meets another one half done. The table has as many as there are cores.

mod acceptor;
mod batch;
mod board;
mod client;
mod clock;
mod commands;
mod connection;
mod dispatch;
mod glob;
mod hashes;
mod huge;
mod keys;
mod metrics;
mod private;
mod refusal;
mod reply;
mod request;
mod secret;
mod server;
mod stop;
mod stream;
mod strings;
mod table;
mod transaction;
mod worker;

use acceptor::Acceptor;
use board::Board;
pub use board::CONNECTIONS_MAX;
pub use commands::COMMANDS;
use dispatch::{Command, Data};
pub use huge::gather;
pub use metrics::{Metrics, Source};
use rustls::ServerConfig;
pub use secret::Secret;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
pub use stop::Stop;
pub use table::{COMMANDS as TABLE_COMMANDS, Table, metrics as metrics_of_table};
use worker::{Reception, Worker};

/// How long a client may take to say the secret, and to come to terms on TLS.
const ARRIVAL_TIME: Duration = Duration::from_secs(30);

/// How clients are served.
#[derive(Clone)]
pub struct Settings {
    /// Connections at a time.
    pub connections_max: usize,
    /// What clients have to say before anything else.
    pub secret: Option<Secret>,
    /// How connections are encrypted.
    pub tls: Option<Arc<ServerConfig>>,
    /// How long a client may take for these two.
    pub arrival_time: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            secret: None,
            tls: None,
            arrival_time: ARRIVAL_TIME,
        }
    }
}

/// See the module.
pub struct Server<D: Data> {
    acceptor: Acceptor,
    workers: Vec<Worker<D>>,
    board: Arc<Board>,
    stop: Stop,
}

impl<D: Data + Send> Server<D> {
    /// Serves data to the clients that connect to `listener`: with a thread for each of `data`, which are one there or
    /// handles on the same.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(
        listener: TcpListener,
        data: Vec<D>,
        commands: &'static [Command<D>],
        settings: Settings,
    ) -> io::Result<Self> {
        let board = Board::new(data.len(), settings.connections_max, settings.secret, clock::now());
        let board = Arc::new(board);
        let reception = Reception {
            tls: settings.tls,
            time: settings.arrival_time,
        };
        let workers = data
            .into_iter()
            .enumerate()
            .map(|(n, data)| Worker::new(data, commands, &board, n, reception.clone()));
        let (workers, mut wakers): (Vec<_>, Vec<_>) = workers.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        let inboxes = workers.iter().map(Worker::inbox).collect();
        let (acceptor, waker) = Acceptor::new(listener, Arc::clone(&board), inboxes, reception.tls.is_some())?;
        wakers.push(waker);
        Ok(Self {
            acceptor,
            workers,
            board,
            stop: Stop::new(wakers),
        })
    }

    /// What ends it.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// What it counts, as text for Prometheus.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + use<D> {
        let board = Arc::clone(&self.board);
        move || metrics::text(&board)
    }

    /// Serves until it is told to stop; the first thread's data then.
    ///
    /// # Errors
    /// Those of waiting for sockets; of data that may not be used any more.
    pub fn run(self) -> io::Result<D> {
        let stop = self.stop;
        let mut workers = self.workers.into_iter();
        let first = workers
            .next()
            .ok_or_else(|| io::Error::other("a server has one thread at least"))?;
        let acceptor = self.acceptor;
        std::thread::scope(|scope| {
            let guard = stop.guard();
            let mut others = Vec::new();
            for (n, worker) in workers.enumerate() {
                let stop = &stop;
                let thread = std::thread::Builder::new().name(format!("kv-{}", n + 2));
                others.push(thread.spawn_scoped(scope, move || {
                    let _guard = stop.guard();
                    worker.run(stop).map(drop)
                })?);
            }
            let accepting = std::thread::Builder::new().name("kv-accept".into());
            let stopped = &stop;
            others.push(accepting.spawn_scoped(scope, move || {
                let _guard = stopped.guard();
                acceptor.run(stopped)
            })?);
            let served = first.run(&stop);
            drop(guard);
            let ended = others.into_iter().try_for_each(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|_| Err(io::Error::other("a thread of the server has panicked")))
            });
            ended.and(served)
        })
    }
}

#[cfg(test)]
mod tests;
