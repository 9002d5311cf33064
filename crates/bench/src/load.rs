//! A load generator that outlives its server.
//!
//! Workers run transactions of a [`Workload`]; when the server dies they reconnect until it is back. Finished
//! transactions are counted in buckets of 10 ms, so that a gap of a tenth of a second can be seen.

use crate::Result;
use hdrhistogram::Histogram;
use postgres::{Client, NoTls};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Width of a bucket in milliseconds.
pub const BUCKET_MS: u64 = 10;

/// What a worker does over and over. One value a worker; it lives on when the connection does not.
pub trait Workload: Send {
    /// Called after each (re)connection: prepares statements.
    fn connected(&mut self, client: &mut Client) -> std::result::Result<(), postgres::Error>;
    /// One transaction, acknowledged when it returns `Ok`.
    fn transaction(&mut self, client: &mut Client) -> std::result::Result<(), postgres::Error>;
}

/// What all workers share while a load runs.
pub struct Progress {
    start: Instant,
    buckets: Vec<AtomicU32>,
    stop: AtomicBool,
}

impl Progress {
    /// Room for `limit` of load.
    pub fn new(limit: Duration) -> Arc<Progress> {
        let buckets = (0..limit.as_millis() as u64 / BUCKET_MS + 1)
            .map(|_| AtomicU32::new(0))
            .collect();
        Arc::new(Progress {
            start: Instant::now(),
            buckets,
            stop: AtomicBool::new(false),
        })
    }

    /// Since the load began.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Asks the workers to end after the transaction in hand.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.elapsed().as_millis() as u64 / BUCKET_MS >= self.buckets.len() as u64
    }

    fn count(&self) {
        let bucket = self.elapsed().as_millis() as u64 / BUCKET_MS;
        if let Some(bucket) = self.buckets.get(bucket as usize) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Transactions finished in each 10 ms since the start.
    pub fn buckets(&self) -> Vec<u32> {
        self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect()
    }

    /// Transactions a second over the last `window`.
    pub fn rate(&self, window: Duration) -> f64 {
        let now = (self.elapsed().as_millis() as u64 / BUCKET_MS) as usize;
        let width = (window.as_millis() as u64 / BUCKET_MS).max(1) as usize;
        let from = now.saturating_sub(width);
        let sum: u32 = self.buckets[from.min(self.buckets.len())..now.min(self.buckets.len())]
            .iter()
            .map(|b| b.load(Ordering::Relaxed))
            .sum();
        f64::from(sum) / (width as f64 * BUCKET_MS as f64 / 1000.0)
    }
}

/// What a worker brings home.
pub struct WorkerResult<W> {
    /// The workload with what it remembers.
    pub workload: W,
    /// Latency of acknowledged transactions in microseconds.
    pub latency_us: Histogram<u64>,
    /// Errors that were not a lost connection, first one's text.
    pub errors: Vec<String>,
}

/// Runs one worker a workload until [`Progress::stop`] or the progress's limit.
pub fn run<W: Workload + 'static>(
    port: u16,
    progress: &Arc<Progress>,
    workloads: Vec<W>,
) -> Vec<std::thread::JoinHandle<WorkerResult<W>>> {
    workloads
        .into_iter()
        .map(|workload| {
            let progress = progress.clone();
            std::thread::spawn(move || worker(port, &progress, workload))
        })
        .collect()
}

/// Waits for the workers of [`run`].
pub fn join<W>(workers: Vec<std::thread::JoinHandle<WorkerResult<W>>>) -> Vec<WorkerResult<W>> {
    workers.into_iter().filter_map(|w| w.join().ok()).collect()
}

fn worker<W: Workload>(port: u16, progress: &Progress, mut workload: W) -> WorkerResult<W> {
    let mut latency_us = Histogram::new_with_bounds(1, 60_000_000, 3).expect("constant bounds are valid");
    let mut errors = Vec::new();
    let mut client = None;
    while !progress.stopped() {
        let Some(connection) = client.as_mut() else {
            client = reconnect(port, progress, &mut workload);
            continue;
        };
        let began = Instant::now();
        match workload.transaction(connection) {
            Ok(()) => {
                progress.count();
                latency_us.saturating_record(began.elapsed().as_micros() as u64);
            }
            Err(error) if error.is_closed() || error.as_db_error().is_none() => client = None,
            Err(error) => {
                errors.push(crate::describe(&error));
                if errors.len() > 1000 {
                    break;
                }
            }
        }
    }
    WorkerResult {
        workload,
        latency_us,
        errors,
    }
}

fn reconnect<W: Workload>(port: u16, progress: &Progress, workload: &mut W) -> Option<Client> {
    while !progress.stopped() {
        if let Ok(mut client) = connect(port)
            && workload.connected(&mut client).is_ok()
        {
            return Some(client);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// A connection to the database `cenote` on loopback.
///
/// # Errors
/// [`crate::Error::Sql`] if the server does not accept the connection.
pub fn connect(port: u16) -> Result<Client> {
    let mut config = postgres::Config::new();
    config
        .host("127.0.0.1")
        .port(port)
        .user("cenote")
        .dbname("cenote")
        .connect_timeout(Duration::from_secs(10));
    Ok(config.connect(NoTls)?)
}
