//! A reader: it follows the server, and looks at its tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, Error, Isolation, Promotion, Result};

use super::look::{CATCH_UP, Look, wrong};
use super::server;
use super::stage::Stage;
use super::table::rows_of;
use crate::clock;

/// Between two looks whether it is to have the database.
const TURN: Nanos = Nanos::from_millis(5);
/// Threads that look, in each reader.
const THREADS: usize = 2;

/// The body of its process.
pub(super) fn run(stage: &Arc<Stage>, host: usize, number: u64) {
    let begun = clock::now();
    let engine = match stage.open_reader(host, number) {
        Ok(engine) => engine,
        // The database is not made yet, or storage does not answer.
        Err(error) if stage.is_excused(begun) => {
            return stage
                .shared
                .step(format!("reader {number} does not start: {} {error}", error.sqlstate()));
        }
        Err(error) => return stage.fail(format!("reader {number}: {} {error}", error.sqlstate())),
    };
    stage.shared.count("starts of readers");
    let ends = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let (stage, engine, ends) = (stage.clone(), engine.clone(), ends.clone());
            rt::spawn("looks", move || look_on(&stage, &engine, (number, n), &ends))
        })
        .collect();
    let promotion = await_promotion(stage, &engine, host, number);
    ends.store(true, SeqCst);
    let (stats, add) = (engine.pool_stats(), |what, pages| stage.shared.add(what, pages));
    if let Some(remote) = stats.remote {
        add("pages that readers had from remote memory", remote.hits);
    }
    if let Some(pod) = stats.pod {
        add("pages that readers had from the server's frames", pod.hits);
        add("pages that were not in the server's frames", pod.misses);
    }
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    match promotion {
        Some((promotion, begun)) => {
            stage.shared.count("promotions");
            server::promoted(stage, number, begun, || promotion.open(engine));
        }
        None => {
            if let Err(error) = engine.shutdown() {
                stage.fail(format!("reader {number} does not stop: {error}"));
            }
        }
    }
}

/// Until the world is over, or it is to have the database, and has taken it: threads go on to look meanwhile.
fn await_promotion(stage: &Arc<Stage>, engine: &Arc<Engine>, host: usize, number: u64) -> Option<(Promotion, Nanos)> {
    while !stage.is_over() {
        rt::sleep(TURN);
        if !stage.takes_asked(number) {
            continue;
        }
        let begun = clock::now();
        stage.shared.step(format!("reader {number} is to have the database"));
        let options = stage.promotion_options(host, number);
        match options.and_then(|options| engine.promote(options)) {
            Ok(promotion) => {
                // It may have been asked for long ago, and waited for nodes; the server that had it finds out now.
                stage.unsettle();
                stage.shared.step(format!("reader {number} has the database"));
                return Some((promotion, begun));
            }
            Err(error) => stage.shared.step(format!(
                "reader {number} does not have it: {} {error}",
                error.sqlstate()
            )),
        }
    }
    None
}

fn look_on(stage: &Arc<Stage>, engine: &Arc<Engine>, who: (u64, usize), ends: &AtomicBool) {
    let mut look = Look::new(stage, engine, Random(rt::random()));
    while !stage.is_over() && !ends.load(SeqCst) {
        let begun = clock::now();
        let looked = look.look();
        let ended = look.end();
        match looked.and(ended) {
            Ok(()) => stage.count_look(),
            Err(Error::SnapshotTooOld(_) | Error::Serialization(_)) => stage.count_too_old(),
            Err(Error::Io(_)) if stage.is_excused(begun) => stage.shared.count("looks without an answer"),
            Err(error) => {
                return stage.fail(format!("reader {who:?}: {} {error}", error.sqlstate()));
            }
        }
        rt::sleep(Nanos::from_micros(look.draw.below(20_000)));
    }
}

/// The body of a process that compares what a reader has with the server's rows, which change no more.
pub(super) fn compare(stage: &Arc<Stage>, host: usize, number: u64) {
    if let Err(error) = try_compare(stage, host, number) {
        stage.fail(format!("the last reader: {} {error}", error.sqlstate()));
    }
}

fn try_compare(stage: &Arc<Stage>, host: usize, number: u64) -> Result<()> {
    let engine = stage.open_reader(host, number)?;
    engine.catch_up(CATCH_UP, None)?;
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let table = tx.table("t")?.ok_or_else(|| wrong("no table".into()))?;
    let rows = rows_of(tx.reader(), &table, None)?;
    if Some(&rows) != stage.last().as_ref() {
        return Err(wrong(format!("the reader has {rows:?}, the server {:?}", stage.last())));
    }
    tx.rollback()?;
    drop(tx);
    engine.shutdown()
}
