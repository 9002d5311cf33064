//! The end: all that was acknowledged has to be there. Then all is freed, and nothing may be left but what no user
//! knows of.

use std::sync::Arc;

use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_space::Mode;

use super::service;
use super::stage::{Report, Stage};
use super::trouble::Trouble;
use super::user::again;
use crate::check::words::What;
use crate::worlds::pool::model::bytes_of;

const PATIENCE: Nanos = Nanos::from_secs(600);

pub(super) fn inspect(trouble: &mut Trouble<'_>) {
    let stage = Arc::clone(&trouble.stage);
    stage.end_all();
    if !trouble.await_that("sessions end", PATIENCE, || !stage.ends_all()) {
        return;
    }
    let is_well = trouble.run_one("inspector", |stage| {
        if let Err(error) = again(|| look(stage)) {
            stage.shared.fail(format!("looking at everything: {error}"));
        }
    });
    if !is_well || !report(trouble, |_| Vec::new()) {
        return;
    }
    let is_well = trouble.run_one("the last user", |stage| {
        if let Err(error) = free(stage) {
            stage.shared.fail(format!("freeing everything: {error}"));
        }
    });
    if is_well {
        let most = stage.model.lock().leaks_most();
        report(trouble, |report| match report.objects > most {
            true => vec![format!(
                "{} objects are left, and {most} at most are unknown",
                report.objects
            )],
            false => Vec::new(),
        });
    }
}

/// What the keeper finds wrong, and what else is wrong about what it tells. Whether all is well.
fn report(trouble: &Trouble<'_>, more: impl FnOnce(&Report) -> Vec<String>) -> bool {
    let stage = &trouble.stage;
    stage.ask_report();
    let mut told = None;
    let has_come = trouble.await_that("the keeper tells what it has", PATIENCE, || {
        told = stage.take_report();
        told.is_some()
    });
    if let Some(report) = told {
        let wrong = report.problems.iter().cloned().chain(more(&report));
        wrong.for_each(|wrong| stage.shared.fail(wrong));
    }
    has_come && !stage.shared.has_failed()
}

/// Reads all that has to be there. Nothing excuses an error.
fn look(stage: &Arc<Stage>) -> Result<()> {
    let space = service::open(stage)?;
    let session = space.session();
    let words: Vec<_> = stage.model.lock().words.iter().map(|word| word.at).collect();
    for (word, at) in words.into_iter().enumerate() {
        let op = stage.model.lock().begin_op(word, usize::MAX, What::Load);
        let saw = space.load(at)?;
        stage.model.lock().end_op(word, op, saw);
        let wrong = stage.model.lock().check_word(word);
        wrong.into_iter().for_each(|wrong| stage.shared.fail(wrong));
    }
    let texts = stage.model.lock().texts.clone();
    for text in texts {
        let guard = session.lock_within(text.lock, Mode::Write, PATIENCE)?;
        let mut found = vec![0; text.len];
        space.read(text.at, &mut found)?;
        // An earlier look may have left it so.
        if !guard.owner_died() && found != bytes_of(text.version, text.len) {
            let (at, version) = (text.at, text.version);
            stage.shared.fail(format!("the text at {at} is not version {version}"));
        }
        guard.unlock()?;
    }
    let own: Vec<_> = stage.model.lock().own.values().cloned().collect();
    for own in own {
        let mut found = vec![0; own.bytes.len()];
        space.read(own.at, &mut found)?;
        if !own.fits(&found) {
            let (at, wrong) = (own.at, own.first_wrong(&found));
            stage.shared.fail(format!("the object at {at}: {wrong}"));
        }
        stage.shared.count("objects that were there in the end");
    }
    // All are over in the end.
    session.close().or(Ok(()))
}

fn free(stage: &Arc<Stage>) -> Result<()> {
    let space = service::open(stage)?;
    let all = stage.model.lock().all();
    for (at, _) in all {
        let mut tries = 0;
        let freed = again(|| {
            tries += 1;
            space.free(at)
        });
        match freed {
            // The answer to the one before was lost.
            Err(Error::Invalid(_)) if tries > 1 => {}
            freed => freed?,
        }
        stage.model.lock().begin_free(at);
        match again(|| space.load(at)) {
            Err(Error::Invalid(_)) => {}
            other => stage.shared.fail(format!("the object at {at} was freed: {other:?}")),
        }
    }
    Ok(())
}
