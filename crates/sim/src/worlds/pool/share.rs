//! Users of all pods do the same to the same object, in step: it is as hot in one pod as in the others, and stays where
//! it is.
//!
//! Without the comparison of heats it would go to and fro for as long as this lasts: the pod that does not have it
//! finds it hot.

use cenote_base::random::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use cenote_base::rt::{self, Nanos};

use super::keeper_service;
use super::members::Mark;
use super::model::extent_of;
use super::processes::Processes;
use super::role::Role;
use super::stage::Stage;
use crate::check::words::What;
use crate::clock;

/// Between two looks at what is hot.
const EVERY: Nanos = Nanos::from_millis(1);
/// So many times what has come may go again.
const STAYS: u64 = 12;
/// Moves that chance may bring: of the first accesses more may be from one pod than from another.
const CHANCE: u64 = 3;
/// Accesses of each user in a step.
const STEP: u64 = 8;
const PAUSE: Nanos = Nanos::from_micros(40);

/// Steps that each user has made.
struct Steps {
    made: Vec<AtomicU64>,
    until: Nanos,
}

impl Steps {
    fn least(&self) -> u64 {
        self.made.iter().map(|made| made.load(SeqCst)).min().unwrap_or(0)
    }
}

/// Lets users go in step for a while, and counts what moves.
pub(super) fn in_step(cast: &mut Processes<'_>, draw: &mut Random) {
    let stage = Arc::clone(&cast.stage);
    let sharing = Role {
        makes: false,
        moves: true,
        every: EVERY,
    };
    let alive = stage.alive();
    let count = stage.model.lock().words.len();
    let words: Vec<usize> = (0..count).filter(|word| is_reached(&stage, *word)).collect();
    let word = draw.word().checked_rem(words.len() as u64).map(|n| words[n as usize]);
    let (Some(word), true) = (word, alive.len() > 1) else {
        return;
    };
    if !cast.change_programs(sharing) {
        return;
    }
    let stay = stage.pods.stay.max(EVERY);
    let steps = Arc::new(Steps {
        made: alive.iter().map(|_| AtomicU64::new(0)).collect(),
        until: clock::now() + Nanos(stay.raw() * STAYS),
    });
    for (n, pod) in alive.into_iter().enumerate() {
        let steps = Arc::clone(&steps);
        cast.start(pod, "user in step", move |stage, mark| {
            go(stage, pod, mark, &steps, n, word);
        });
    }
    if !cast.await_users("users in step end", Nanos::from_secs(120)) {
        return;
    }
    let Some(reports) = stage.reports() else { return };
    let came: u64 = reports.values().map(|report| report.moved.came).sum();
    stage.shared.count("loads shared in step");
    stage.shared.add("moves under a shared load", came);
    if came > CHANCE {
        let extent = extent_of(stage.model.lock().words[word].at);
        stage.shared.fail(format!(
            "{came} moves while all pods used the extent {extent} alike: chance brings {CHANCE} at most"
        ));
    }
}

/// Whether a word lies where all pods that are there reach it: where it was made, and that pod is there.
fn is_reached(stage: &Stage, word: usize) -> bool {
    let home = stage.model.lock().words[word].at.part();
    let Some(reports) = stage.settled() else { return false };
    let extent = extent_of(stage.model.lock().words[word].at);
    let at = reports.get(&home).map(|report| report.placement.away.get(&extent));
    at.is_some_and(|away| away.is_none_or(|(part, _)| reports.contains_key(part)))
}

fn go(stage: &Arc<Stage>, pod: usize, mark: Mark, steps: &Steps, n: usize, word: usize) {
    let at = stage.model.lock().words[word].at;
    let space = match keeper_service::open(stage, pod, mark) {
        Ok(space) => space,
        Err(error) => return stage.shared.fail(format!("a user in pod {pod}: {error}")),
    };
    let session = stage.new_thread();
    while clock::now() < steps.until && !stage.shared.has_failed() {
        for _ in 0..STEP {
            let op = stage.model.lock().begin_op(word, session, What::Load);
            match space.load(at) {
                Ok(saw) => stage.model.lock().end_op(word, op, saw),
                Err(error) => return stage.shared.fail(format!("the word at {at}, in step: {error}")),
            }
        }
        let made = steps.made[n].fetch_add(1, SeqCst) + 1;
        rt::sleep(PAUSE);
        while steps.least() < made && clock::now() < steps.until && !stage.shared.has_failed() {
            rt::sleep(PAUSE);
        }
    }
    // The others do not wait for this one.
    steps.made[n].store(u64::MAX, SeqCst);
}
