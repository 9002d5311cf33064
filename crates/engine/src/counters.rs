//! Sequences in use, as memory knows them; `sequences` changes them.

use cenote_base::Lsn;
use cenote_base::rt;
use cenote_base::rt::HashMap;
use std::sync::Arc;

/// A sequence as it stands: the last value given, or the first to give.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub value: i64,
    pub called: bool,
    /// Values that may be given before the tree is written again.
    pub ahead: i64,
    /// Position of the log behind which the tree was written: a value counts once this is durable.
    pub written: Lsn,
}

/// Sequences in use.
#[derive(Default)]
pub(crate) struct Counters {
    pub sequences: rt::Mutex<HashMap<u32, Arc<rt::Mutex<Position>>>>,
}
