//! What a server still answers, message by message, and what is undone where it does not.

use super::statements::Statement;
use std::sync::Arc;

/// What is undone where a message is skipped after an error.
#[derive(Debug, Default)]
pub struct Undo {
    /// The client's name is none.
    pub forget: Option<Box<[u8]>>,
    /// The client's name stands for this again.
    pub restore: Option<(Box<[u8]>, Arc<Statement>)>,
    /// The session does not have this statement.
    pub absent: Option<u64>,
    /// The session has it still.
    pub present: Option<u64>,
    /// The statement without a name is none.
    pub unnamed: bool,
}

/// What is answered next.
#[derive(Debug)]
pub enum Expected {
    /// By the proxy.
    Own(&'static [u8], Undo),
    /// ParseComplete.
    Parse {
        /// The client did not ask for it.
        hidden: bool,
        /// See there.
        undo: Undo,
    },
    /// CloseComplete.
    Close {
        /// The client did not ask for it.
        hidden: bool,
        /// See there.
        undo: Undo,
    },
    /// BindComplete.
    Bind,
    /// What a statement or portal gives.
    Describe,
    /// All up to the end of a portal's run.
    Execute,
    /// ReadyForQuery.
    Sync,
    /// All up to ReadyForQuery.
    Query,
}
