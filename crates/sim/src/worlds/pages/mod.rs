//! The world of pages: the buffer pool over the log and the pages' files, and nothing above. Its lives are short and
//! many.
//!
//! ```text
//!   changer ──► mini-transaction over one page or several ──► commit ──► perhaps waits until it is durable
//!   reader  ──► a page, held or not                             │
//!      └───────────────► model ([`model`]): every state of every page, which changes go together, what was acknowledged
//! ```
//!
//! What a table's rows tell of a crash is little: a change that is gone may be one of a page that is made anew by the
//! next. Here each page tells which change it was last part of, and which of its parts stem from which change; so that
//! each start is compared with all that it may find, page by page, and each read with what was committed before it
//! began.

pub(super) mod model;
mod spare;
mod worker;

use cenote_base::random::Random;
use std::path::Path;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, PageId, Result};
use cenote_buffer::{BufferPool, Config, Kind, Mode, RecoveryReport};
use cenote_storage::{Claim, DataDir, Origins, Survive};

use self::model::Bytes;
use super::plan::Pages;
use super::shared::Shared;
use super::site::Site;

/// A world takes two to ten million steps; one that goes on for longer hangs.
pub(super) const STEPS_MOST: u64 = 60_000_000;
/// The space that all pages are in.
const SPACE: u32 = 1000;

fn id(page: u32) -> PageId {
    PageId::new(SPACE, page)
}

/// One life of a pool: opens, compares what is there with the model, works until told to stop, and ends in order.
///
/// # Errors
/// Those of the pool.
pub(super) fn live(shared: &Arc<Shared>, site: &Site, plan: Pages) -> Result<()> {
    shared.set_stage("opening");
    let place = if site.aside {
        "beside its region"
    } else {
        "in its region"
    };
    shared.step(format!("life {} opens {place}", site.life));
    let claim = site.origin.clone().map_or_else(Claim::machine, Claim::of);
    let data = DataDir::open_as(Path::new("/data"), Origins::default(), &claim)?;
    let (pool, report) = BufferPool::open(config(shared, site), data)?;
    look_at(shared, site, &report);
    if !pool.storage().pages().has_space(SPACE) {
        pool.storage().pages().create_space(SPACE)?;
    }
    shared.set_stage("looking at what is there");
    settle(shared, &pool, "after a recovery")?;
    spare::look_at(shared, pool.storage().pages())?;
    shared.set_stage("at work");
    shared.set_ready();
    let pool = Arc::new(pool);
    let threads: Vec<_> = (0..shared.plan.sessions)
        .map(|_| worker::start(shared, &pool, plan))
        .chain(plan.remakes.then(|| spare::start(shared, &pool)))
        .collect();
    let done = disturb(shared, &pool);
    for thread in threads {
        if thread.join().is_err() {
            shared.fail(format!("life {}: a thread panicked", site.life));
        }
    }
    done?;
    shared.set_stage("ending");
    end(shared, &pool)
}

fn config(shared: &Shared, site: &Site) -> Config {
    let (plan, tuning) = (&shared.plan, shared.plan.tuning);
    let kind = if site.aside { Kind::Dram } else { Kind::Cxl };
    Config {
        region: (!site.aside).then(|| site.region.clone()),
        origin: site.origin.clone(),
        survive: if plan.host && !site.aside {
            Survive::Host
        } else {
            Survive::Process
        },
        log_limit: tuning.log_limit,
        flush_turn: tuning.flush_turn,
        segment_bytes: tuning.segment_bytes,
        scan_limit: tuning.scan_limit,
        survey_part: tuning.survey_part,
        replay_stretch: 64 << 10,
        ..Config::new(kind, plan.memory)
    }
}

fn look_at(shared: &Shared, site: &Site, report: &RecoveryReport) {
    shared.count(&format!("recoveries: {}", report.mode.name()));
    shared.add("frames repaired", report.frames_repaired());
    shared.step(format!("life {} has recovered: {report:?}", site.life));
    if report.mode == Mode::Log {
        shared.pages().loses_memory();
    }
    let mode = report.mode.name();
    if site.mode.is_some_and(|expected| expected != mode) {
        shared.fail(format!(
            "life {}: recovery went by {mode}, not by {:?}",
            site.life, site.mode
        ));
    }
}

/// Reads every page that may be there, and settles the model by that.
fn settle(shared: &Shared, pool: &BufferPool, when: &str) -> Result<()> {
    let pages = shared.pages().touched();
    let mut found = Vec::new();
    let mut bytes = Bytes::default();
    for (page, is_made) in pages {
        match pool.shared(id(page)) {
            Ok(guard) => guard.view().copy_out(0, &mut bytes.0),
            // One that was about to be made need not be anywhere.
            Err(Error::Corrupt(why)) if !is_made => {
                shared.step(format!("page {page} is not there: {why}"));
                continue;
            }
            Err(error) => return Err(error),
        }
        match bytes.image(page) {
            Ok(image) => found.push((page, image)),
            Err(problem) => shared.fail(format!("{when}: {problem}")),
        }
    }
    let problems = shared.pages().settle(&found);
    problems
        .into_iter()
        .for_each(|problem| shared.fail(format!("{when}: {problem}")));
    check(shared, pool);
    Ok(())
}

/// What threads of the pool do now and then, more often: lives are short.
fn disturb(shared: &Shared, pool: &BufferPool) -> Result<()> {
    let mut draw = Random(rt::random());
    while !shared.is_stopping() {
        rt::sleep(Nanos(draw.below(if shared.plan.calm { 60_000 } else { 400_000 })));
        shared.set_saving(true);
        let done = match draw.below(8) {
            0 => {
                check(shared, pool);
                Ok(())
            }
            1..4 => pool.checkpoint().map(drop),
            _ => pool.flush_all().and_then(|()| pool.checkpoint()).map(drop),
        };
        shared.set_saving(false);
        done?;
    }
    Ok(())
}

fn check(shared: &Shared, pool: &BufferPool) {
    shared.count("checks");
    let problems = pool.check().problems;
    if !problems.is_empty() {
        shared.fail(format!("check: {problems:#?}"));
    }
}

fn end(shared: &Shared, pool: &BufferPool) -> Result<()> {
    settle(shared, pool, "at an end in order")?;
    pool.shutdown()?;
    let latched = pool.latches_held();
    if latched > 0 {
        shared.fail(format!("{latched} pages are left latched"));
    }
    Ok(())
}
