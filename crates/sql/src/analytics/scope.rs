//! What a statement sees: snapshot, catalog, and who asks.

use cenote_engine::catalog::{SequenceDef, Table};
use cenote_engine::{CancelFlag, Engine, Reader, Tx};
use std::sync::Arc;

/// A setting's value by name, as SHOW gives it.
pub type Settings = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Everything that a statement reads by. Cheap to clone; it must not outlive its transaction.
#[derive(Clone)]
pub struct Scope {
    /// The engine, for estimates and sizes.
    pub engine: Arc<Engine>,
    /// The snapshot.
    pub reader: Reader,
    /// Tables in it, by name.
    pub tables: Arc<Vec<Arc<Table>>>,
    /// Sequences in it, by name.
    pub sequences: Arc<Vec<SequenceDef>>,
    /// Role of the session.
    pub user: Arc<str>,
    /// Database of the session.
    pub database: Arc<str>,
    /// What `pg_backend_pid()` answers.
    pub pid: i32,
    /// Start of the transaction: what `now()` answers, in microseconds since 2000-01-01 UTC.
    pub now: i64,
    /// Stops the statement (57014).
    pub cancel: Arc<CancelFlag>,
    /// Settings of the session.
    pub settings: Settings,
}

impl Scope {
    /// The scope of a statement of `tx`. Errors: the catalog cannot be read.
    pub fn of(tx: &Tx, user: &str, database: &str, pid: i32, now: i64, settings: Settings) -> cenote_engine::Result<Scope> {
        Ok(Scope {
            engine: tx.engine().clone(),
            reader: tx.reader().clone(),
            tables: Arc::new(tx.tables()?),
            sequences: Arc::new(tx.sequences()?),
            user: user.into(),
            database: database.into(),
            pid,
            now,
            cancel: tx.cancel_flag(),
            settings,
        })
    }

    /// A table by name.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|t| t.name == name)
    }

    /// The value of a setting.
    pub fn setting(&self, name: &str) -> Option<String> {
        (self.settings)(name)
    }
}
