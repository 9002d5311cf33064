//! A session: one client's statements, transaction and settings.
//!
//! All statements of one message (up to Sync) outside a block are one implicit transaction. From the lowest file to the
//! highest:
//!
//! | file | holds |
//! |---|---|
//! | `transaction`, `history`, `settings_history`, `prepared`, `portals` | the parts of a session, each with its invariants |
//! | `planning` | a plan for a statement |
//! | `copy_lines`, `copy_row`, `copying`, `copy_output` | COPY's data, in and out |
//! | `mark` | where a batch of a proxy's client began |
//! | `report` | what a proxy was told beside what clients are told, and the text of a client's state |
//! | `state` | [`Session`]: the parts wired; how statements and transactions begin and end |
//! | `choice` | generic and custom plans |
//! | `run`, `explain`, `copy`, `blocks`, `utility`, `analyze`, `unplanned` | running one statement |
//! | `simple`, `extended` | the two protocols |
//! | `handover` | a session whose client is a proxy |
//! | `leaving` | a block that goes on at another server |

mod analyze;
mod begun;
mod blocks;
mod choice;
mod copy;
mod copy_lines;
mod copy_output;
mod copy_row;
mod copying;
mod explain;
mod extended;
mod handover;
mod history;
mod leaving;
mod mark;
mod planning;
mod portals;
mod prepared;
mod report;
mod run;
mod settings_history;
mod simple;
mod state;
mod transaction;
mod unplanned;
mod utility;

pub use report::{CARRIED, LEFT};
pub use state::{CancelHandle, Session, SessionInfo};
