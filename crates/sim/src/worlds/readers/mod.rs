//! The world of readers: a server changes a database on three storage nodes, and readers follow it.
//!
//! ```text
//!   host 0..2: storage nodes       host 3, 4: the server ([`server`])       host 5, 6: readers ([`reader`])
//!   controller: kills nodes, servers, readers, cuts power and ways, pauses hosts ([`trouble`])
//! ```
//!
//! 1. The server moves amounts between rows of a table, each time one step of a clock (a row of it) further: deletes and
//!    inserts among them, rows with large values, transactions that roll back. Beside that it empties, drops and makes a
//!    second table, and makes and drops an index of the first.
//! 2. A reader looks at both: in each statement all amounts add up to the same, the same rows are found by the primary
//!    key, by an index, and one by one, and all rows of the second table are of one generation. What a snapshot saw it
//!    sees again. The clock goes back for no reader; and where a reader has caught up, it shows every step that was
//!    acknowledged before.
//! 3. A statement may be told that its snapshot is too old (72000, 40001), and, beside faults, that storage does not
//!    answer (58030). No other error, and no other answer.
//! 4. In the end nothing is wrong, the server stands still, and a reader has exactly its rows.

mod carried;
mod look;
mod reader;
mod server;
mod stage;
mod table;
mod trouble;

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::mark;

use self::stage::{NODES, READERS, SERVERS, Stage};
use self::trouble::Trouble;
use super::shared::Shared;
use crate::{Topology, World};

/// Preemption points of a world, at most.
pub(super) const STEPS_MOST: u64 = 1_000_000_000;

/// A host for each node, those of servers, those of readers.
pub(super) fn topology() -> Topology {
    let devices = (0..SERVERS + READERS).map(stage::device);
    devices.fold(Topology::hosts(NODES + SERVERS + READERS, 4), Topology::with_device)
}

/// The controller's thread.
pub(super) fn play(shared: &Arc<Shared>, world: &World) {
    mark::aim(None);
    let mut draw = Random(world.draw());
    let stage = Stage::new(shared, &mut draw);
    let mut trouble = Trouble::new(&stage, world, draw.word());
    trouble.begin();
    trouble.come();
    trouble.calm_down();
    stage.add_counts();
    trouble.end();
}
