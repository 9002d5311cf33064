//! Looks at snapshots: at some pages while everything goes wrong, at all of them in the end.
//!
//! Wrong bytes are excused by nothing. A node that has lost its directory, or was given a state, has no snapshots of
//! before, and says so ([`Error::Past`]): another one has them, unless that befell all.

use std::collections::BTreeSet;

use cenote_base::Error;
use cenote_base::random::Random;
use cenote_base::rt::Nanos;
use cenote_storage::nodes::{PageAnswer, StorageNodes};
use cenote_storage_node::NodesClient;

use super::snapshots::Look;
use super::stage::{NODES, Stage};
use crate::clock;

/// How long one node may take to answer alone.
const ALONE: Nanos = Nanos::from_secs(2);

/// A reader's way to each node alone: what one has wrong, another one's answer would hide.
pub(super) struct Views<'s> {
    stage: &'s Stage,
    alone: Vec<NodesClient>,
}

impl<'s> Views<'s> {
    /// From a host.
    pub fn new(stage: &'s Stage, host: usize) -> Self {
        let alone = |node| stage.client(host, node..node + 1).with_timeout(ALONE);
        Views {
            stage,
            alone: (0..NODES).map(alone).collect(),
        }
    }

    /// At some pages of a snapshot, of any node or of one alone.
    pub fn look(&self, nodes: &NodesClient, draw: &mut Random) {
        let drawn = self.stage.model().any_look(draw);
        let Some(look) = drawn else { return };
        let begun = clock::now();
        match draw.one_in(2) {
            true => {
                let host = draw.index(NODES);
                let answers = self.alone[host].read_snapshot(look.number, &look.pages);
                judge(
                    self.stage,
                    &format!("host {host}"),
                    &look,
                    &answers,
                    |error| match error {
                        Error::Timeout(_) => true,
                        Error::Past(_) => self.stage.may_lack_snapshots(host),
                        _ => false,
                    },
                );
            }
            false => {
                let answers = nodes.read_snapshot(look.number, &look.pages);
                judge(self.stage, "any node", &look, &answers, |error| match error {
                    Error::Timeout(_) => self.stage.is_excused(begun),
                    Error::Past(_) => (0..NODES).all(|host| self.stage.may_lack_snapshots(host)),
                    _ => false,
                });
            }
        }
    }
}

/// The answers of a node, or of any.
fn judge(stage: &Stage, of: &str, look: &Look, answers: &[PageAnswer], is_excused: impl Fn(&Error) -> bool) {
    for (n, answer) in answers.iter().enumerate() {
        let may_fail = stage.model().snapshots().is_leaving(look);
        if answer.as_ref().is_err_and(|error| may_fail || is_excused(error)) {
            stage.shared.count("pages of snapshots without an answer");
            continue;
        }
        let wrong = stage.model().snapshots().saw(look, n, answer);
        wrong.into_iter().for_each(|wrong| stage.fail(format!("{of}: {wrong}")));
        stage.shared.count("pages read of snapshots");
    }
}

/// In the end the snapshots are there that have to be.
pub(super) fn list(stage: &Stage) {
    let before = stage.model().snapshots().before();
    match stage.client(NODES, 0..NODES).snapshots() {
        Ok(found) => {
            let wrong = stage.model().listed_snapshots(&before, &found);
            wrong.into_iter().for_each(|wrong| stage.fail(wrong));
        }
        Err(error) => stage.fail(format!("the snapshots in the end: {error}")),
    }
}

/// In the end a node has every page of every snapshot that it has; one that has lost nothing has them all.
pub(super) fn look_at_all(stage: &Stage, host: usize) {
    let nodes = stage.client(NODES, host..host + 1);
    let has: Vec<u64> = stage.status(host).map_or(Vec::new(), |status| status.snapshots);
    let looks = stage.model().all_looks();
    for look in looks {
        let may_lack = stage.may_lack_snapshots(host) && !has.contains(&look.number);
        let found = nodes.snapshot_spaces(look.number);
        match found {
            Err(Error::Past(_)) if may_lack => {
                stage.shared.count("snapshots that a node lacks in the end");
                continue;
            }
            Err(error) => stage.fail(format!("host {host}: snapshot {}: {error}", look.number)),
            Ok(found) => {
                let found: BTreeSet<u32> = found.iter().map(|extent| extent.space).collect();
                if found != *look.spaces() {
                    let (number, spaces) = (look.number, look.spaces());
                    stage.fail(format!(
                        "host {host}: snapshot {number} has spaces {found:?}, not {spaces:?}"
                    ));
                }
            }
        }
        let answers = nodes.read_snapshot(look.number, &look.pages);
        judge(stage, &format!("host {host} in the end"), &look, &answers, |_| false);
        stage.shared.count("snapshots read in the end");
    }
}
