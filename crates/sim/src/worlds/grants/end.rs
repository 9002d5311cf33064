//! The end: faults are over and no process holds anything. GrantTable, files and model have to agree; heirs find what
//! has to be there, give it back, and nothing is left.

use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::FileRange;
use cenote_pool::{Phase, PoolStatus};
use cenote_space::EXTENT;

use super::device::{self, DIRECTORY};
use super::holder::{Opened, let_go};
use super::label::Label;
use super::operator::{connect, label_of, problems};
use super::processes::Processes;
use super::role::{MACHINE, agent_host};
use super::stage::{Stage, holder_name};
use crate::memory::{Chance, HazardKind};

/// Until all leases have lapsed, and all that is to be done is done.
const SETTLE: Nanos = Nanos::from_secs(60);
const TURN: Nanos = Nanos::from_millis(50);

pub(super) fn inspect(cast: &mut Processes<'_>) {
    let hosts = cast.stage.grants.hosts;
    let heirs: Vec<Option<usize>> = match hosts {
        0 => vec![None],
        _ => (0..hosts).map(Some).collect(),
    };
    let all_well = do_at_end(cast, MACHINE, look_at_rest)
        && heirs.into_iter().all(|heir| {
            let host = heir.map_or(MACHINE, agent_host);
            do_at_end(cast, host, move |stage| inherit_all(stage, heir))
        })
        && do_at_end(cast, MACHINE, look_when_free);
    match hosts {
        0 if all_well => no_file_is_left(cast),
        _ if all_well => device_is_empty(cast),
        _ => {}
    }
}

fn do_at_end(cast: &Processes<'_>, host: usize, what: impl FnOnce(&Arc<Stage>) -> Result<()> + Send + 'static) -> bool {
    let process = cast.start(host, "inspector", |stage| {
        if let Err(error) = what(stage) {
            stage.shared.fail(format!("the end: {error}"));
        }
    });
    cast.await_end("the end", Nanos::from_secs(300), &[process]) && !cast.stage.shared.has_failed()
}

fn look_at_rest(stage: &Arc<Stage>) -> Result<()> {
    let is_quiet = |status: &PoolStatus| status.grants.iter().all(|grant| grant.phase == Phase::Idle);
    let status = settled(stage, "no process holds anything, and all is idle", is_quiet)?;
    audit(stage, "when all is idle")?;
    compare(stage, &status);
    Ok(())
}

/// Labels are inherited by the hosts in turn.
fn inherit_all(stage: &Arc<Stage>, heir: Option<usize>) -> Result<()> {
    let hosts = stage.grants.hosts.max(1);
    let is_its = |label: &Label| label.0 % hosts == heir.unwrap_or(0);
    stage
        .labels()
        .filter(is_its)
        .try_for_each(|label| inherit(stage, label, heir))
}

fn look_when_free(stage: &Arc<Stage>) -> Result<()> {
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
        if all_there(stage, &status) && is_so(&status) {
            return Ok(status);
        }
        if rt::now() > until {
            let phases: Vec<_> = status.grants.iter().map(|grant| (grant.id, grant.phase)).collect();
            return Err(Error::Timeout(format!(
                "{what}: not within {SETTLE}: {phases:?}, {:?}, {:?}",
                status.nodes, status.devices
            )));
        }
        rt::sleep(TURN);
    }
}

/// All memory nodes, and the agents of all hosts.
fn all_there(stage: &Stage, status: &PoolStatus) -> bool {
    let hosts = || status.devices.iter().flat_map(|device| &device.hosts);
    status.nodes.len() == stage.grants.nodes
        && status.nodes.iter().all(|node| node.connected)
        && hosts().count() == stage.grants.hosts
        && hosts().all(|host| host.open && host.connected)
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
fn inherit(stage: &Arc<Stage>, label: Label, heir: Option<usize>) -> Result<()> {
    let network = stage.network_of(&holder_name(0), heir);
    let Opened { memory, mapped, .. } = match Opened::new(stage, &network, label, heir) {
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

/// What is free is zeros, also when every host is lost with all that its caches hold.
fn device_is_empty(cast: &Processes<'_>) {
    let stage = &cast.stage;
    if let Some(hazard) = hazards(cast).first() {
        stage.shared.fail(format!("the device: {hazard}"));
    }
    cast.world.set_chance(Chance {
        every: 0,
        prefetches: 0,
        reached: 16,
    });
    (0..stage.grants.hosts).for_each(|host| cast.world.lose_host(agent_host(host)));
    for offset in (DIRECTORY..device::bytes(stage.grants)).step_by(EXTENT as usize) {
        let (bytes, range) = (EXTENT, FileRange { offset, bytes: EXTENT });
        let found = cast.world.behind_caches(0, offset, bytes as usize);
        let left = found.iter().position(|byte| *byte != 0);
        if let Some(at) = left.filter(|_| !stage.model().is_doubted(range)) {
            stage
                .shared
                .fail(format!("the extent at {offset} is free, and not zeros at {at}"));
        }
    }
}

/// What no correct program does to lines of the device. A killed process leaves changed lines in its host's caches, and
/// its agent may drop them when it reads them: they are that host's own.
fn hazards(cast: &Processes<'_>) -> Vec<String> {
    let is_wrong = |kind: HazardKind| matches!(kind, HazardKind::TwoWriters | HazardKind::Unannounced);
    let is_judged = |offset: u64| {
        let range = FileRange { offset, bytes: 1 };
        !cast.stage.model().is_doubted(range)
    };
    let all = cast.world.hazards().first.into_iter();
    all.filter(|hazard| is_wrong(hazard.kind) && is_judged(hazard.offset))
        .map(|hazard| hazard.to_string())
        .collect()
}
