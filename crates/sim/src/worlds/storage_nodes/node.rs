//! The program of a node's host.

use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_storage_node::StorageNode;

use super::stage::Stage;

/// Between two looks at the node.
const TURN: Nanos = Nanos::from_millis(20);

/// The body of its process: it runs until it is killed, or asked to end.
pub(super) fn run(stage: &Arc<Stage>, host: usize) {
    let node = match StorageNode::start(stage.options(host), stage.network(host)) {
        Ok(node) => node,
        Err(error) => return stage.fail(format!("the node on host {host} does not start: {error}")),
    };
    while !stage.is_to_end(host) {
        stage.report(host, node.status());
        if let Some(error) = node.failure() {
            return stage.fail(format!("the node on host {host} has ended: {error}"));
        }
        rt::sleep(TURN);
    }
    node.stop();
}
