//! The operator: lets the new directory of a node in that lost the one it had.

use std::sync::Arc;

use cenote_base::Error;
use cenote_base::rt::{self, Nanos};

use super::stage::{NODES, Stage};

/// Tries of one process: a node may be down, and no majority there. Faults go on meanwhile, and another process begins.
const TRIES: u32 = 100;
const AGAIN: Nanos = Nanos::from_millis(500);

/// The body of its process.
pub(super) fn run(stage: &Arc<Stage>, host: usize) {
    let nodes = stage.client(host, 0..NODES);
    for _ in 0..TRIES {
        let Some(lost) = stage.lost() else { return };
        match nodes.replace(lost as u64 + 1) {
            Ok(()) => {
                stage.shared.count("directories let in");
                stage.shared.step(format!("the new directory of host {lost} is let in"));
                return stage.set_lost(None);
            }
            // The node does not answer, another lacks pages yet, or no majority answers.
            Err(Error::Invalid(_) | Error::Busy(_) | Error::Timeout(_)) => rt::sleep(AGAIN),
            Err(error) => return stage.fail(format!("letting in the new directory of host {lost}: {error}")),
        }
    }
}
