//! The page accesses of the 22 queries, by the server's own executors.

use super::load::load;
use super::options::Options;
use super::queries::QUERIES;
use super::{Outcome, TIMEOUT, ask};
use crate::traced::Traced;
use crate::{Error, Result};
use indicatif::ProgressBar;
use std::path::Path;

/// Memory for rows and indexes at scale 1, MiB, and what any scale needs.
const MEMORY_MIB: (f64, u64) = (3072.0, 256);

/// Makes a server with TPC-H's tables at a scale, in memory that holds them all, and writes what the queries ask for to
/// `file`: a part of the trace for each, `q01` to `q22`. Each runs in one thread, as the paper's do.
///
/// # Errors
/// [`Error::Server`] if no server can be started; [`Error::Sql`] if it refuses something; [`Error::Lost`] of a query
/// that fails; [`Error::Io`].
pub fn trace(program: Option<&Path>, scale: f64, seed: u64, file: &Path, bar: &ProgressBar) -> Result<()> {
    let mut server = Traced::start(program, MEMORY_MIB.1 + (MEMORY_MIB.0 * scale) as u64)?;
    bar.set_message("loading TPC-H");
    let loading = loading(server.url(), scale, seed);
    load(server.client(), &loading)?;
    let timeout = format!("SET statement_timeout = {}", TIMEOUT.as_millis());
    server.client().batch_execute(&timeout)?;
    // What a first run plans and reads is not to be in it.
    for query in &QUERIES {
        ask(server.client(), &query.text(scale))?;
    }
    server.begin(file)?;
    for query in &QUERIES {
        let name = format!("q{:02}", query.number);
        bar.set_message(format!("tracing {name}"));
        if let Outcome::Error(error) = ask(server.client(), &query.text(scale))? {
            return Err(Error::Lost(format!("{name}: {error}")));
        }
        server.mark(&name)?;
        bar.inc(1);
    }
    server.end()
}

fn loading(url: &str, scale: f64, seed: u64) -> Options {
    Options {
        url: url.into(),
        out: "unused".into(),
        scale,
        seed,
        is_loading: true,
        has_indexes: true,
        queries: Vec::new(),
        repetitions: 0,
        timeout: TIMEOUT,
        server_pid: None,
        answers: None,
        compare: None,
    }
}
