//! What a mount has open.

use cenote_base::rt::{HashMap, Mutex};
use cenote_space::GlobalAddress;

/// What this mount has open.
#[derive(Default)]
pub(super) struct Opens(pub(super) Mutex<Record>);

#[derive(Default)]
pub(super) struct Record {
    /// The mount's, null before it begins.
    pub(super) at: GlobalAddress,
    pub(super) tables: Vec<GlobalAddress>,
    pub(super) by_number: HashMap<u64, Open>,
    /// Words of the tables that were used and are free.
    pub(super) free: Vec<GlobalAddress>,
    /// Words that were used, ever.
    pub(super) used: u64,
}

/// An inode that is open here.
#[derive(Clone, Copy)]
pub(super) struct Open {
    /// The word that says so.
    pub(super) word: GlobalAddress,
    /// How often.
    pub(super) count: u64,
}
