//! The end: faults are over and no process holds anything. GrantTable, files and model have to agree; heirs find what
//! has to be there, give it back, and nothing is left.

use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_pool::{Phase, PoolStatus};

use super::holder::{Opened, let_go};
use super::label::Label;
use super::operator::{connect, label_of, problems};
use super::processes::Processes;
use super::role::MACHINE;
use super::stage::{Stage, holder_name};

/// Until all leases have lapsed, and all that is to be done is done.
const SETTLE: Nanos = Nanos::from_secs(60);
const TURN: Nanos = Nanos::from_millis(50);

pub(super) fn inspect(cast: &mut Processes<'_>) {
    let inspector = cast.start(MACHINE, "inspector", |stage| {
        if let Err(error) = look(stage) {
            stage.shared.fail(format!("the end: {error}"));
        }
    });
    if cast.await_end("the end", Nanos::from_secs(300), &[inspector]) && !cast.stage.shared.has_failed() {
        no_file_is_left(cast);
    }
}

fn look(stage: &Arc<Stage>) -> Result<()> {
    let is_quiet = |status: &PoolStatus| status.grants.iter().all(|grant| grant.phase == Phase::Idle);
    let status = settled(stage, "no process holds anything, and all is idle", is_quiet)?;
    audit(stage, "when all is idle")?;
    compare(stage, &status);
    for label in stage.labels() {
        inherit(stage, label)?;
    }
    settled(stage, "all was given back, and is free", |status| {
        status.grants.is_empty()
    })?;
    audit(stage, "when all is free")
}

/// The pool's status, as soon as all nodes are there and it is as it has to become.
fn settled(stage: &Arc<Stage>, what: &str, is_so: impl Fn(&PoolStatus) -> bool) -> Result<PoolStatus> {
    let until = rt::now() + SETTLE;
    loop {
        let status = connect(stage)?.status()?;
        let problems = problems(stage, &status);
        problems.into_iter().for_each(|problem| stage.shared.fail(problem));
        let all_there = status.nodes.len() == stage.grants.nodes && status.nodes.iter().all(|node| node.connected);
        if all_there && is_so(&status) {
            return Ok(status);
        }
        if rt::now() > until {
            let phases: Vec<_> = status.grants.iter().map(|grant| (grant.id, grant.phase)).collect();
            return Err(Error::Timeout(format!(
                "{what}: not within {SETTLE}: {phases:?}, {:?}",
                status.nodes
            )));
        }
        rt::sleep(TURN);
    }
}

/// What was not given back is in the grant table.
fn compare(stage: &Stage, status: &PoolStatus) {
    for (label, grant) in stage.model().expected() {
        let found = status.grants.iter().find(|found| label_of(stage, found) == Some(label));
        if found.is_none_or(|found| found.id != grant) {
            let found = found.map(|found| found.id);
            stage
                .shared
                .fail(format!("{label:?} had grant {grant}, and has {found:?} in the end"));
        }
    }
}

/// The pool's own audit has to find nothing, soon: the manager may have to learn first that a connection of before is
/// over.
fn audit(stage: &Stage, when: &str) -> Result<()> {
    let until = rt::now() + SETTLE;
    loop {
        let report = connect(stage)?.audit()?;
        if report.problems.is_empty() {
            return Ok(());
        }
        if rt::now() > until {
            let problems = report.problems.iter();
            problems.for_each(|problem| stage.shared.fail(format!("the audit {when}: {problem}")));
            return Ok(());
        }
        rt::sleep(TURN);
    }
}

/// Opens a label as its next holder, looks at its memory, writes to it, and gives it back.
fn inherit(stage: &Arc<Stage>, label: Label) -> Result<()> {
    let network = stage.network(&holder_name(0));
    let Opened { memory, mapped, .. } = match Opened::new(stage, &network, label) {
        // Labels that it has not been the turn of take the room.
        Err(Error::Full(_)) => return Ok(()),
        opened => opened?,
    };
    let failed = |error| Error::io(format!("{label:?} in the end"), error);
    mapped.read_all().map_err(failed)?;
    mapped.write(0, stage.new_value()).map_err(failed)?;
    drop(mapped);
    let_go(stage, memory, true);
    stage.shared.count("grants inherited");
    Ok(())
}

fn no_file_is_left(cast: &Processes<'_>) {
    let files = cast.world.files(MACHINE).files();
    let left = files.iter().filter(|path| path.to_string_lossy().contains("grant-"));
    left.for_each(|path| cast.stage.shared.fail(format!("{} is left", path.display())));
}
