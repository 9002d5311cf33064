//! What a statement of analytics sees.

use crate::hook::{Scope, SystemViews};
use cenote_engine::{Engine, Table};
use std::sync::Arc;

/// A statement's scope with what the catalog needs besides.
pub(crate) struct Snapshot {
    pub scope: Scope,
    pub engine: Arc<Engine>,
    pub views: Option<Arc<dyn SystemViews>>,
    /// The only row of the table that FROM names first; None: all that the reader sees.
    pub only: Option<Vec<u8>>,
}

impl Snapshot {
    /// A user table by name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.scope.definitions.table(name)
    }
}
