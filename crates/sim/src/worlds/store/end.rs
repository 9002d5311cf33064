//! The end: nothing goes wrong any more. All members see the same, and each object of the space is free or the store's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use cenote_base::Result;
use cenote_base::rt::{self, Nanos};
use cenote_space::GlobalAddress;

use super::keys::name;
use super::member;
use super::stage::Stage;
use crate::worlds::pool::keeper_service;
use crate::worlds::pool::members::Mark;
use crate::worlds::pool::processes::Processes;
use crate::worlds::pool::stage::pod_of;

/// What a member that is killed or fenced may leave without an owner: of each thread, and of the one that sweeps, an
/// item with its chunk that was allocated and not noted, and one that was unlinked and not freed.
const LEFT_A_THREAD: u64 = 4;

/// What parts have: all objects that processes on all pods see.
type Objects = Arc<Mutex<BTreeSet<GlobalAddress>>>;

/// Looks at everything from every host, then compares what the space has with what the store knows.
pub(super) fn inspect(stage: &Arc<Stage>, cast: &mut Processes<'_>) {
    for host in stage.hosts() {
        let theirs = Arc::clone(stage);
        cast.start(host, "inspector", move |_, mark| {
            if let Err(error) = look(&theirs, host, mark)
                && !theirs.is_of_lost(&error)
            {
                theirs.fail(format!("looking at everything from host {host}: {error}"));
            }
        });
        if !cast.await_users("an inspector ends", Nanos::from_secs(120)) {
            return;
        }
    }
    let objects = Objects::default();
    for pod in stage.pool.alive() {
        let (theirs, all) = (Arc::clone(stage), Arc::clone(&objects));
        cast.start(pod, "auditor", move |_, mark| {
            if let Err(error) = gather(&theirs, pod, mark, &all) {
                theirs.fail(format!("gathering what lies in pod {pod}: {error}"));
            }
        });
        if !cast.await_users("an auditor ends", Nanos::from_secs(120)) {
            return;
        }
    }
    let theirs = Arc::clone(stage);
    cast.start(0, "auditor", move |_, mark| {
        if let Err(error) = audit(&theirs, mark, &objects)
            && !theirs.is_of_lost(&error)
        {
            theirs.fail(format!("the store's own objects: {error}"));
        }
    });
    cast.await_users("an auditor ends", Nanos::from_secs(120));
}

/// What dead members had comes back with a few sweeps; then all keys are read. Nothing excuses an error.
fn look(stage: &Arc<Stage>, host: usize, mark: Mark) -> Result<()> {
    let store = member::open(stage, host, mark)?;
    for _ in 0..3 {
        store.sweep()?;
        rt::sleep(Nanos::from_millis(20));
    }
    let keys = stage.model.lock().keys();
    for key in 0..keys {
        let begun = stage.model.lock().event();
        let got = store.get_versioned(&name(key))?;
        let must = stage.model.lock().must_be_there(key, begun);
        if must {
            stage.count("looks at what should be there, in the end");
        }
        let Some((bytes, version)) = got else {
            if must {
                stage.count("misses of what should be there, in the end");
            }
            if must && stage.is_sure() && store.stats()?.evicted == 0 {
                let (lost, damaged) = store.missed();
                stage.fail(format!(
                    "key {key} is not there from host {host}, and nothing has removed it ({lost} lost, {damaged} damaged)"
                ));
            }
            continue;
        };
        let wrong = stage.model.lock().saw(key, begun, &bytes, version);
        wrong
            .into_iter()
            .for_each(|wrong| stage.fail(format!("from host {host}: {wrong}")));
    }
    let (_, damaged) = store.missed();
    if damaged > 0 {
        stage.fail(format!(
            "from host {host} {damaged} values are not what their checksums say"
        ));
    }
    Ok(())
}

fn gather(stage: &Arc<Stage>, pod: usize, mark: Mark, all: &Objects) -> Result<()> {
    let space = keeper_service::open(&stage.pool, pod, mark)?;
    let mut found = Vec::new();
    space.each_object(|at, _| found.push(at))?;
    all.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
    Ok(())
}

/// No object is used twice, none that is used is free, and few have no owner.
fn audit(stage: &Arc<Stage>, mark: Mark, objects: &Objects) -> Result<()> {
    let store = member::open(stage, 0, mark)?;
    let all = objects.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut owners: BTreeMap<GlobalAddress, &str> = BTreeMap::new();
    for (at, what) in store.objects()? {
        if let Some(other) = owners.insert(at, what) {
            stage.fail(format!("the object at {at} is {other}, and {what}"));
        }
        let is_lost = stage.pool.is_lost(pod_of(at.part()));
        // The auditor's own record is newer than what was gathered.
        if !is_lost && !all.contains(&at) && what != "a member's record" {
            stage.fail(format!("{what} lies at {at}, where no object is allocated"));
        }
    }
    let left = all.iter().filter(|at| !owners.contains_key(at)).count() as u64;
    stage.pool.shared.add("objects without an owner, in the end", left);
    let tally = stage.pool.shared.tally();
    let ended: u64 = [
        "deaths: member killed",
        "deaths: member ended for its silence",
        "visitors stopped beyond their lease",
    ]
    .into_iter()
    .map(|what| tally.get(what))
    .sum();
    let threads = stage.pool.shared.plan.sessions as u64 + 1;
    if !stage.wild && left > ended * threads * LEFT_A_THREAD {
        stage.fail(format!(
            "{left} objects have no owner, where {ended} members were ended"
        ));
    }
    Ok(())
}
