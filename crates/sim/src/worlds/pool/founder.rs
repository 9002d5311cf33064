//! Lays out what all users share: words, locks, and the texts that they protect. Each pod has some; nothing goes wrong
//! meanwhile.

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::Result;
use cenote_space::Session;

use super::keeper_service;
use super::members::Mark;
use super::model::{Text, Word, bytes_of};
use super::stage::Stage;
use crate::check::words::Kind;

/// Texts of all pods together.
const TEXTS_MOST: usize = 9;
const WORDS_MOST: usize = 12;

/// The body of a founder's process.
pub(super) fn run(stage: &Arc<Stage>, pod: usize, mark: Mark, draw: Random) {
    if let Err(error) = found(stage, pod, mark, draw) {
        stage.shared.fail(format!("laying out what pod {pod} has: {error}"));
    }
}

/// So many of all for this pod: all pods together have as many as there are rows, up to a bound.
fn share(stage: &Stage, pod: usize, most: usize) -> usize {
    let all = (stage.shared.plan.rows as usize).clamp(1, most);
    (all + stage.count() - 1 - pod) / stage.count()
}

fn found(stage: &Arc<Stage>, pod: usize, mark: Mark, mut draw: Random) -> Result<()> {
    let space = keeper_service::open(stage, pod, mark)?;
    let session = space.session();
    for _ in 0..share(stage, pod, WORDS_MOST) {
        let kind = draw.pick(&[Kind::Counter, Kind::Chain, Kind::Register]);
        let at = alloc(stage, &session, 64)?;
        let ops = Vec::new();
        stage.model.lock().words.push(Word { at, kind, ops });
    }
    for _ in 0..share(stage, pod, TEXTS_MOST) {
        let len = draw.pick(&[24usize, 300, 3_000, 70_000]);
        let lock = alloc(stage, &session, cenote_space::LOCK_BYTES)?;
        session.make_lock(lock)?;
        let at = alloc(stage, &session, len as u64)?;
        let version = stage.new_value();
        space.write(at, &bytes_of(version, len))?;
        let text = Text { lock, at, len, version };
        stage.model.lock().texts.push(text);
    }
    session.close()
}

fn alloc(stage: &Stage, session: &Session, len: u64) -> Result<cenote_space::GlobalAddress> {
    stage.model.lock().begin_alloc();
    let at = session.alloc(len)?;
    let wrong = stage.model.lock().allocated(at, len);
    wrong.into_iter().for_each(|wrong| stage.shared.fail(wrong));
    Ok(at)
}
