//! The end: nothing is wrong any more, and each node alone has all there is.

use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_storage::nodes::StorageNodes;

use super::model::Wanted;
use super::stage::{NODES, Stage};
use super::trouble::Trouble;
use super::views;

/// What a node lacks reaches it within.
const CATCHES_UP: Nanos = Nanos::from_secs(60);

/// Compares every page of every node with the model; then once more, behind a power cut of all.
pub(super) fn inspect(trouble: &mut Trouble<'_>) {
    // Nobody answers for what the last writer had asked for: one more take says what became of it.
    let is_settled = trouble.run_one("the last take", settle);
    if is_settled && trouble.run_one("inspector", look) {
        trouble.cut_power_in_the_end();
        trouble.run_one("inspector", look);
    }
}

fn settle(stage: &Arc<Stage>) {
    let nodes = stage.client(NODES, 0..NODES);
    let taken = nodes.owner().and_then(|owner| {
        stage.model().begin_take(owner.epoch);
        Ok((owner.epoch + 1, nodes.take(owner.epoch, b"the end")?))
    });
    match taken {
        Ok((epoch, taken)) => {
            let wrong = stage.model().took(epoch, &taken);
            wrong.into_iter().for_each(|wrong| stage.fail(wrong));
        }
        Err(error) => stage.fail(format!("the last take: {error}")),
    }
}

fn look(stage: &Arc<Stage>) {
    views::list(stage);
    let wanted = stage.model().all_pages();
    for host in 0..NODES {
        let end = wanted.at.raw();
        let has_all = || {
            stage
                .status(host)
                .is_some_and(|s| s.ingested >= end && s.log_end >= end && s.lacking_pages == 0)
        };
        if !stage.await_that(
            &format!("the node on host {host} has all there is"),
            CATCHES_UP,
            has_all,
        ) {
            stage.tell_statuses();
            return;
        }
        look_at(stage, host, &wanted);
        views::look_at_all(stage, host);
    }
    let known = |host| {
        stage
            .status(host)
            .map(|status| (status.epoch, status.log_end, status.committed))
    };
    stage.await_that("nodes agree", CATCHES_UP, || {
        (1..NODES).all(|host| known(host) == known(0))
    });
}

fn look_at(stage: &Arc<Stage>, host: usize, wanted: &Wanted) {
    let nodes = stage.client(NODES, host..host + 1);
    let answers = nodes.read_pages(&wanted.request());
    for (n, answer) in answers.iter().enumerate() {
        let wrong = stage.model().saw(wanted, n, answer);
        wrong
            .into_iter()
            .for_each(|wrong| stage.fail(format!("from the node on host {host}: {wrong}")));
        stage.shared.count("pages read in the end");
    }
    rt::sleep(Nanos::from_millis(1));
}
