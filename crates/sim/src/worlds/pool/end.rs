//! The end: nothing moves, and everything has to be where it should be, and what it should be. Then all is freed, and
//! nothing may be left.

use cenote_base::random::Random;
use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, LOCK_BYTES, Mode, Placement, audit_placements};

use super::keeper_service;
use super::members::Mark;
use super::model::{bytes_of, extent_of};
use super::processes::Processes;
use super::role::{EXTENT, Role};
use super::stage::{Report, Reports, Stage, part_number, pod_of};
use super::user::is_trouble;
use crate::check::words::What;

/// Extents of the largest objects of the world.
const RUN_EXTENTS: u64 = 2;

/// A migrated extent whose home is not heard of is asked for after 5 s, and a call to an absent member takes as long.
const SETTLE: Nanos = Nanos::from_secs(120);

fn placements(reports: &Reports) -> BTreeMap<u8, Placement> {
    let placement = |(part, report): (&u8, &Report)| (*part, report.placement.clone());
    reports.iter().map(placement).collect()
}

/// Programs begin anew, without moves of their own, and have to agree before long on where extents lie.
pub(in crate::worlds) fn settle(cast: &mut Processes<'_>) -> bool {
    if !cast.change_programs(Role::STILL) {
        return false;
    }
    let (stage, until) = (Arc::clone(&cast.stage), rt::now() + SETTLE);
    loop {
        let Some(reports) = stage.reports() else {
            stage.shared.fail("a program does not say where extents lie".into());
            return false;
        };
        let mut wrong = audit_placements(&placements(&reports));
        wrong.extend(reports.values().flat_map(|report| report.problems.clone()));
        if wrong.is_empty() {
            stage.keep(reports);
            return true;
        }
        if rt::now() > until {
            stage
                .shared
                .fail(format!("nothing moves, and yet:\n{}", wrong.join("\n")));
            return false;
        }
        rt::sleep(Nanos::from_millis(100));
    }
}

/// The extents that an object has bytes in: those of a run lie apart.
fn extents_of(at: GlobalAddress, len: u64) -> impl Iterator<Item = GlobalAddress> {
    let first = extent_of(at);
    let count = (at.raw() - first.raw() + len).div_ceil(EXTENT);
    (0..count).filter_map(move |n| first.checked_add(n * EXTENT))
}

/// The pods that have to reach all of an object.
fn reached_by(reports: &Reports, (at, len): (GlobalAddress, u64)) -> Vec<usize> {
    let mut all = extents_of(at, len).map(|extent| extent_reached_by(reports, extent));
    let first = all.next().unwrap_or_default();
    all.fold(first, |pods, others| {
        pods.into_iter().filter(|pod| others.contains(pod)).collect()
    })
}

/// Objects of which a part is reached, and not all by any pod: they cannot be freed. How many extents they have.
fn torn(stage: &Stage, reports: &Reports) -> u64 {
    let all = stage.model.lock().all();
    let torn = all.into_iter().filter(|object| {
        let mut extents = extents_of(object.0, object.1);
        reached_by(reports, *object).is_empty() && extents.any(|extent| !extent_reached_by(reports, extent).is_empty())
    });
    torn.map(|(at, len)| extents_of(at, len).count() as u64).sum()
}

/// The pods that have to reach an extent, by where it lies: no pod, if that was lost.
fn extent_reached_by(reports: &Reports, extent: GlobalAddress) -> Vec<usize> {
    let all = || reports.keys().map(|part| pod_of(*part)).collect();
    if let Some(home) = reports.get(&extent.part()) {
        return match home.placement.away.get(&extent) {
            Some((part, _)) if !reports.contains_key(part) => Vec::new(),
            _ => all(),
        };
    }
    // Its home is lost: a member that maps the part that it is lent to finds it there.
    let has_it = |report: &&Report| {
        report
            .placement
            .migrated_extents
            .get(&extent)
            .is_some_and(|(_, is_used)| *is_used)
    };
    let lent = reports.iter().filter(|(_, report)| has_it(report));
    lent.map(|(part, _)| pod_of(*part)).collect()
}

/// Looks at everything from every pod, frees it, and looks for what is left.
pub(super) fn inspect(cast: &mut Processes<'_>, draw: &mut Random) {
    let stage = Arc::clone(&cast.stage);
    let Some(reports) = stage.settled().map(Arc::new) else {
        return;
    };
    if !told_apart(&stage, &reports) {
        return;
    }
    let mut pods = stage.alive();
    let first = draw.below(pods.len() as u64) as usize;
    pods.rotate_left(first);
    for pod in &pods {
        let (pod, reports) = (*pod, Arc::clone(&reports));
        cast.start(pod, "inspector", move |stage, mark| {
            if let Err(error) = look(stage, pod, mark, &reports) {
                stage
                    .shared
                    .fail(format!("looking at everything from pod {pod}: {error}"));
            }
        });
        if !cast.await_users("an inspector ends", Nanos::from_secs(120)) {
            return;
        }
    }
    let words = stage.model.lock().words.len();
    for word in 0..words {
        let wrong = stage.model.lock().check_word(word);
        wrong.into_iter().for_each(|wrong| stage.shared.fail(wrong));
    }
    for pod in &pods {
        let (pod, reports) = (*pod, Arc::clone(&reports));
        cast.start(pod, "the last user", move |stage, mark| {
            if let Err(error) = free(stage, pod, mark, &reports) {
                stage.shared.fail(format!("freeing everything from pod {pod}: {error}"));
            }
        });
        if !cast.await_users("the last user ends", Nanos::from_secs(120)) {
            return;
        }
    }
    if !stage.shared.has_failed() {
        count_what_is_left(cast);
    }
}

/// An extent whose home is lost lies in one part at most.
fn told_apart(stage: &Stage, reports: &Reports) -> bool {
    let all = stage.model.lock().all();
    let mut extents = all.into_iter().flat_map(|(at, len)| extents_of(at, len));
    let twice = extents.find(|extent| {
        let is_homeless = !reports.contains_key(&extent.part());
        is_homeless && extent_reached_by(reports, *extent).len() > 1
    });
    if let Some(at) = twice {
        stage
            .shared
            .fail(format!("two parts have the extent of {at}, whose home is lost"));
    }
    twice.is_none()
}

/// Reads all that has to be reached from a pod. Nothing excuses an error.
fn look(stage: &Arc<Stage>, pod: usize, mark: Mark, reports: &Reports) -> Result<()> {
    let space = keeper_service::open(stage, pod, mark)?;
    let session = space.session();
    let is_mine = |at: GlobalAddress, len: u64| reached_by(reports, (at, len)).contains(&pod);
    let words: Vec<(usize, GlobalAddress)> = {
        let model = stage.model.lock();
        model.words.iter().map(|word| word.at).enumerate().collect()
    };
    for (word, at) in words.into_iter().filter(|(_, at)| is_mine(*at, 8)) {
        let op = stage.model.lock().begin_op(word, usize::MAX, What::Load);
        let saw = space.load(at)?;
        stage.model.lock().end_op(word, op, saw);
    }
    let texts = stage.model.lock().texts.clone();
    // The holder of a lock is known by a number that the keeper of its home has drawn: without the home it is none any
    // more, wherever it lies.
    let is_lock = |at: GlobalAddress| reports.contains_key(&at.part()) && is_mine(at, LOCK_BYTES);
    for text in texts
        .iter()
        .filter(|text| is_lock(text.lock) && is_mine(text.at, text.len as u64))
    {
        // All that used it are gone.
        let guard = session.lock_within(text.lock, Mode::Write, Nanos::from_secs(10))?;
        let mut found = vec![0; text.len];
        space.read(text.at, &mut found)?;
        let version = text.version;
        if !guard.owner_died() && found != bytes_of(version, text.len) {
            let (at, lock) = (text.at, text.lock);
            stage.shared.fail(format!(
                "the text at {at}, under the lock {lock}: it is not version {version}"
            ));
        }
        // The next one finds it whole.
        space.write(text.at, &bytes_of(version, text.len))?;
        guard.unlock()?;
    }
    let own: Vec<_> = stage.model.lock().own.values().cloned().collect();
    for own in own.iter().filter(|own| is_mine(own.at, own.bytes.len() as u64)) {
        let mut found = vec![0; own.bytes.len()];
        space.read(own.at, &mut found)?;
        if !own.fits(&found) {
            let (at, wrong) = (own.at, own.first_wrong(&found));
            stage.shared.fail(format!("the object at {at}: {wrong}"));
        }
        stage.shared.count("objects that were there in the end");
    }
    session.close()
}

/// Frees what is reached from a pod, and has not been freed from another.
fn free(stage: &Arc<Stage>, pod: usize, mark: Mark, reports: &Reports) -> Result<()> {
    let space = keeper_service::open(stage, pod, mark)?;
    let all = stage.model.lock().all();
    for (at, len) in all {
        if !reached_by(reports, (at, len)).contains(&pod) {
            continue;
        }
        space.free(at)?;
        stage.model.lock().begin_free(at);
        match space.load(at) {
            Err(Error::Invalid(_)) => {}
            Err(error) if is_trouble(&error) => return Err(error),
            other => stage.shared.fail(format!("the object at {at} was freed: {other:?}")),
        }
    }
    Ok(())
}

/// Empty migrated extents go home, and of all objects none is left but those that may be unknown.
fn count_what_is_left(cast: &mut Processes<'_>) {
    let sweeping = Role {
        makes: false,
        moves: false,
        every: Nanos::from_millis(1),
    };
    if !cast.change_programs(sweeping) {
        return;
    }
    let stage = Arc::clone(&cast.stage);
    let leaks_most = stage.model.lock().leaks_most();
    let until = rt::now() + SETTLE;
    loop {
        let Some(reports) = stage.reports() else {
            return stage.shared.fail("a program does not say what it has".into());
        };
        let most = leaks_most + torn(&stage, &reports);
        let wrong = what_is_left(&stage, &reports, most);
        if wrong.is_empty() {
            return;
        }
        if rt::now() > until {
            return stage.shared.fail(format!("in the end:\n{}", wrong.join("\n")));
        }
        rt::sleep(Nanos::from_millis(50));
    }
}

fn what_is_left(stage: &Stage, reports: &Reports, most: u64) -> Vec<String> {
    let mut wrong = audit_placements(&placements(reports));
    wrong.extend(reports.values().flat_map(|report| report.problems.clone()));
    let objects: u64 = reports.values().map(|report| report.placement.objects).sum();
    // What a lost pod had lent cannot be freed.
    let lost: Vec<u8> = (0..stage.count())
        .map(part_number)
        .filter(|part| !reports.contains_key(part))
        .collect();
    if objects > most {
        wrong.push(format!("{objects} objects are left, and {most} at most are unknown"));
    }
    // Only what holds something stays away.
    let mut migrated_extents = Vec::new();
    for (part, report) in reports {
        let away = report
            .placement
            .migrated_extents
            .keys()
            .filter(|migrated| !lost.contains(&migrated.part()));
        migrated_extents.extend(away.map(|migrated| format!("{migrated} in part {part}")));
    }
    if migrated_extents.len() as u64 > most * RUN_EXTENTS {
        let migrated_extents = migrated_extents.join(", ");
        wrong.push(format!(
            "still migrated: {migrated_extents}; for {most} unknown objects at most, of {RUN_EXTENTS} extents at most"
        ));
    }
    wrong
}
