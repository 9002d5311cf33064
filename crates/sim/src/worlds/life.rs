//! One life of the engine: it opens what is there, is looked at, serves sessions, and ends in order if no fault ends it
//! before.

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_engine::{Claim, Engine, EngineOptions, Error, Isolation, MemoryKind, Result, Survive, Tuning};
use cenote_sql::Sql;

use super::backup;
use super::contents::found;
use super::definer::Definer;
use super::far::Far;
use super::name::Name;
use super::pages;
use super::rows;
use super::session::Session;
use super::shared::Shared;
use super::site::Site;
use super::sql;
use crate::check::durable::{self, Rows};
use crate::check::{adya, serial};

/// Lives until told to stop, and ends in order. Whatever is wrong is noted in `shared`.
pub fn live(shared: &Arc<Shared>, site: &Site) {
    if let Err(error) = try_live(shared, site) {
        let code = error.sqlstate();
        if shared.is_disk_bad() && ["58030", "53100", "XX001"].contains(&code) {
            shared.count("starts refused by a bad disk");
        } else {
            shared.fail(format!("life {}, {}: {code} {error}", site.life, shared.stage()));
        }
    }
}

/// A start on a host that does not find its memory device: it is refused.
pub fn is_refused(shared: &Arc<Shared>, site: &Site) {
    match options(shared, site).and_then(Engine::open) {
        Ok(_) => shared.fail(format!("life {}: it opens without its memory device", site.life)),
        Err(_) => shared.count("starts refused without the memory device"),
    }
}

fn try_live(shared: &Arc<Shared>, site: &Site) -> Result<()> {
    if let Some(plan) = shared.plan.pages {
        return Ok(pages::live(shared, site, plan)?);
    }
    shared.set_stage("opening");
    let engine = open(shared, site)?;
    shared.set_stage("making the tables");
    make_tables(shared, &engine)?;
    if !site.first {
        shared.set_stage("looking at what is there");
        look(shared, &engine, site)?;
    }
    shared.set_stage("at work");
    shared.set_ready();
    let mut draw = Random(rt::random());
    let mut sessions: Vec<_> = match shared.plan.name {
        Name::Sql => start_sql(shared, &engine, site.life),
        _ => (0..shared.plan.sessions + shared.plan.definers)
            .map(|number| start(shared, &engine, number, site.life))
            .collect(),
    };
    let tender = site.far.as_ref().map(|far| start_tender(shared, &engine, far));
    sessions.extend(tender);
    let often = matches!(shared.plan.name, Name::Crash | Name::Tiered);
    let always = shared.plan.leaves || shared.plan.rot || shared.plan.calm || shared.plan.hunt.wants_purge();
    if always || shared.plan.name == Name::Backup || draw.one_in(if often { 2 } else { 3 }) {
        disturb(shared, &engine, site, &mut draw)?;
    }
    for session in sessions {
        if session.join().is_err() {
            shared.fail(format!("life {}: a session panicked", site.life));
        }
    }
    shared.set_stage("ending");
    end(shared, engine, site)
}

fn options(shared: &Shared, site: &Site) -> Result<EngineOptions> {
    if let Some(tier) = shared.plan.tier {
        let mut options = match &site.far {
            Some(far) => EngineOptions::tiered("/data", 0, far.source(0)),
            None => EngineOptions::new("/data", MemoryKind::Dram, 0),
        };
        options.tuning = tuning(shared, site);
        options.origins = shared.plan.origins;
        return options.with_frames(tier.frames);
    }
    let kind = if site.aside { MemoryKind::Dram } else { MemoryKind::Cxl };
    let mut options = EngineOptions::new("/data", kind, shared.plan.memory);
    options.region = (!site.aside).then(|| site.region.clone());
    options.claim = site.origin.clone().map(Claim::of);
    options.tuning = tuning(shared, site);
    options.origins = shared.plan.origins;
    options.survive = if shared.plan.host && !site.aside {
        Survive::Host
    } else {
        Survive::Process
    };
    Ok(options)
}

fn tuning(shared: &Shared, site: &Site) -> Tuning {
    let left_wait = match shared.plan.leaves {
        true => shared.plan.leaving(site.life).wait,
        false => shared.plan.tuning.left_wait,
    };
    Tuning {
        left_wait,
        ..shared.plan.tuning
    }
}

fn open(shared: &Shared, site: &Site) -> Result<Arc<Engine>> {
    let engine = Engine::open(options(shared, site)?)?;
    let report = engine.recovery_report();
    shared.history().recovers(report.mode == "instant");
    shared.count(&format!("recoveries: {}", report.mode));
    shared.step(format!("life {} has recovered: {report:?}", site.life));
    shared.add("frames repaired", report.frames_repaired);
    shared.add("losers", report.losers);
    let kept = report
        .notes
        .iter()
        .any(|note| note.contains("in remote memory are used"));
    shared.add("remote memory: starts that kept pages", u64::from(kept));
    // Rule 4: without damage, chains lead from the newest record to a base.
    let broken = report.notes.iter().find(|note| note.contains("from the checkpoint on"));
    if let (Some(note), Some("instant")) = (broken, site.mode) {
        shared.fail(format!("life {}: a chain is broken: {note}", site.life));
    }
    if site.mode.is_some_and(|mode| mode != report.mode) {
        let (mode, notes) = (report.mode, report.notes);
        shared.fail(format!(
            "life {}: recovery went by {mode}, not by {:?}: {notes:?}",
            site.life, site.mode
        ));
    }
    Ok(engine)
}

fn make_tables(shared: &Shared, engine: &Arc<Engine>) -> Result<()> {
    if shared.plan.name == Name::Sql {
        sql::make_tables(shared, engine).unwrap_or_else(|error| shared.fail(format!("the tables: {error}")));
        return Ok(());
    }
    let mut tx = engine.begin(Isolation::ReadCommitted);
    for table in 0..shared.plan.tables {
        if tx.table(&rows::name(table))?.is_none() {
            tx.create_table(rows::new_table(table))?;
        }
    }
    tx.commit()
}

fn start_sql(shared: &Arc<Shared>, engine: &Arc<Engine>, life: usize) -> Vec<rt::JoinHandle<()>> {
    let all = Sql::new(engine.clone(), None);
    let start = |number| {
        let (shared, all) = (shared.clone(), all.clone());
        rt::spawn("session", move || {
            match sql::Session::new(&shared, &all, number, life) {
                Ok(session) => session.run(),
                Err(error) => shared.fail(format!("session {number}: {error}")),
            }
        })
    };
    (0..shared.plan.sessions).map(start).collect()
}

fn start(shared: &Arc<Shared>, engine: &Arc<Engine>, number: usize, life: usize) -> rt::JoinHandle<()> {
    let (shared, engine) = (shared.clone(), engine.clone());
    match number.checked_sub(shared.plan.sessions) {
        None => rt::spawn("session", move || {
            Session::new(&shared, &engine, number, life).run();
        }),
        Some(table) => rt::spawn("definer", move || {
            Definer::new(Session::new(&shared, &engine, number, life), table as u8).run();
        }),
    }
}

/// Does what threads of the engine do each second, or when much has changed: lives are shorter. Looks for remote memory
/// that was lost, and writes back what storage lacks.
fn start_tender(shared: &Arc<Shared>, engine: &Arc<Engine>, far: &Arc<Far>) -> rt::JoinHandle<()> {
    let (shared, engine, far) = (shared.clone(), engine.clone(), far.clone());
    rt::spawn("tender", move || {
        let mut before = [0; SEEN.len()];
        while !shared.is_stopping() {
            rt::sleep(Nanos::from_micros(300));
            engine.buffer().maintain_remote();
            if far.growth().is_some() {
                scale(&shared, &engine, &far);
            }
            count_remote(&shared, &engine, &mut before);
            if rt::random().is_multiple_of(8)
                && let Err(error) = save_all(&shared, &engine)
            {
                shared.fail(format!("pages cannot be written back: {error}"));
            }
        }
    })
}

/// Another size now and then, and what the thread does that scales.
fn scale(shared: &Shared, engine: &Engine, far: &Far) {
    let draw = rt::random();
    if draw.is_multiple_of(4)
        && let Err(error) = engine.set_remote_size(far.draw_size(draw / 4))
    {
        shared.fail(format!("remote memory has no such size: {error}"));
    }
    engine.buffer().scale_remote();
}

/// What is counted of remote memory.
const SEEN: [&str; 7] = [
    "pages read",
    "pages rebuilt without it",
    "pages refused",
    "losses",
    "slabs taken",
    "slabs given back",
    "pages moved",
];

/// Adds what has come since `before`: a process that is killed does not say in the end.
fn count_remote(shared: &Shared, engine: &Engine, before: &mut [u64; SEEN.len()]) {
    let Some(tier) = engine.pool_stats().remote else { return };
    let now = [
        tier.hits,
        tier.pages_rebuilt,
        tier.pages_refused,
        tier.losses,
        tier.slabs_taken,
        tier.slabs_returned,
        tier.pages_moved,
    ];
    for (i, name) in SEEN.into_iter().enumerate() {
        shared.add(&format!("remote memory: {name}"), now[i] - before[i]);
    }
    *before = now;
}

/// What administrators do beside: checkpoints, purge, checks.
fn disturb(shared: &Arc<Shared>, engine: &Arc<Engine>, site: &Site, draw: &mut Random) -> Result<()> {
    while !shared.is_stopping() {
        let calm = shared.plan.calm;
        rt::sleep(Nanos(draw.below(if calm { 100_000 } else { 1_000_000 })));
        let done = match draw.below(8) {
            0..7 if calm => save_all(shared, engine),
            0..3 => engine.vacuum().map(drop),
            3..5 => checkpoint(shared, engine),
            5 => save_all(shared, engine),
            6 => check(shared, engine, site),
            _ if shared.plan.name == Name::Backup => backup::back_up(shared, engine),
            _ => Ok(()),
        };
        match done {
            Err(Error::Poisoned(_) | Error::DiskFull(_) | Error::Io(_) | Error::Corrupt(_)) if shared.is_disk_bad() => {
            }
            other => other?,
        }
    }
    Ok(())
}

fn checkpoint(shared: &Shared, engine: &Engine) -> Result<()> {
    shared.set_saving(true);
    shared.step("a checkpoint begins".into());
    let done = engine.checkpoint();
    shared.set_saving(false);
    done
}

/// A checkpoint after all pages are written, where it matters what the disk has of them.
fn save_all(shared: &Shared, engine: &Engine) -> Result<()> {
    if shared.plan.rot || shared.plan.calm || shared.plan.tier.is_some() {
        engine.buffer().flush_all()?;
    }
    checkpoint(shared, engine)
}

/// The engine's own check.
fn check(shared: &Shared, engine: &Arc<Engine>, site: &Site) -> Result<()> {
    shared.step("a check begins".into());
    let mut report = engine.check()?;
    shared.count("checks");
    // Flipped bits there are found, and do no harm.
    let spoilt = site.far.as_ref().is_some_and(|far| far.is_spoilt());
    report
        .problems
        .retain(|problem| !(spoilt && problem.contains("remote memory:")));
    // What a bad disk does not let it read is a problem, and no surprise.
    if !report.problems.is_empty() && !shared.is_disk_bad() {
        shared.fail(format!("check: {:#?}", report.problems));
    }
    Ok(())
}

/// The check when nothing runs, no loser is left and purge has been through: what is only counted otherwise must not be
/// there.
fn check_at_rest(shared: &Shared, engine: &Arc<Engine>, site: &Site) -> Result<()> {
    // Purge goes by what is durable, and the ends of those that were taken back need not be yet.
    engine.buffer().storage().log().flush_all()?;
    while engine.vacuum()? > 0 {}
    check(shared, engine, site)?;
    let report = engine.check()?;
    if report.entries_of_others > 0 {
        let lines = report.summary;
        shared.fail(format!(
            "{} index entries lead to no row, and nothing runs: {lines:#?}",
            report.entries_of_others
        ));
    }
    Ok(())
}

/// After recovery: rows against history; ends of open transactions; anomalies among those that are settled by that.
fn look(shared: &Arc<Shared>, engine: &Arc<Engine>, site: &Site) -> Result<()> {
    let found = match found(shared, engine)? {
        Ok(found) => found,
        Err(problem) => {
            shared.fail(format!("life {}: {problem}", site.life));
            return Ok(());
        }
    };
    judge(shared, &found, &format!("recovery for life {}", site.life));
    // A loser whose pages cannot be read stays one.
    if site.life.is_multiple_of(2) && !shared.is_disk_bad() {
        await_losers(engine);
        check(shared, engine, site)?;
    }
    Ok(())
}

fn await_losers(engine: &Engine) {
    while engine.rollbacks_waiting().0 > 0 {
        rt::sleep(Nanos::from_micros(100));
    }
}

/// Compares rows with history, and settles it.
fn judge(shared: &Shared, found: &Rows, when: &str) {
    let mut history = shared.history();
    let mut problems = durable::settle(&mut history, found);
    if problems.is_empty() {
        problems.extend(serial::check(&history));
        problems.extend(adya::check(&history));
        problems.extend(backup::judge(&history, shared.take_copies()));
    }
    history.settle_up_to_left();
    drop(history);
    problems
        .into_iter()
        .for_each(|problem| shared.fail(format!("{when}: {problem}")));
}

/// In the last life all transactions that were left come to their ends.
fn end_those_left(shared: &Arc<Shared>, engine: &Arc<Engine>, site: &Site) {
    Session::new(shared, engine, shared.plan.sessions, site.life).end_those_left();
    let left = engine.left_transactions();
    if left > 0 {
        shared.fail(format!("{left} transactions are left that no session has left"));
    }
}

/// The end in order: nothing is held any more, all is well, and all is written.
fn end(shared: &Arc<Shared>, engine: Arc<Engine>, site: &Site) -> Result<()> {
    if shared.is_disk_bad() {
        engine.halt();
        return Ok(());
    }
    if site.life == shared.plan.deaths as usize {
        end_those_left(shared, &engine, site);
    }
    await_losers(&engine);
    let (locks, running) = (engine.locks_held(), engine.running_transactions());
    match found(shared, &engine)? {
        Ok(found) => judge(shared, &found, "the end in order"),
        Err(problem) => shared.fail(problem),
    }
    if shared.history().is_any_left() {
        check(shared, &engine, site)?;
    } else if locks + running > 0 {
        shared.fail(format!(
            "{locks} locks and {running} transactions are left by sessions that have ended"
        ));
    }
    if !shared.history().is_any_left() {
        check_at_rest(shared, &engine, site)?;
    }
    engine.shutdown()?;
    let latched = engine.buffer().latches_held();
    if latched > 0 {
        shared.fail(format!("{latched} pages are left latched"));
    }
    if Arc::strong_count(&engine) > 1 {
        shared.fail("a reference to the engine is left after its end".into());
    }
    Ok(())
}
