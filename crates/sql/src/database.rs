//! What all sessions of a database share.

use crate::hook::Analytics;
use crate::watchdog::Watchdog;
use cenote_engine::Engine;
use std::sync::Arc;

/// The database as SQL sees it: shared by all sessions.
pub struct Sql {
    engine: Arc<Engine>,
    analytics: Option<Arc<dyn Analytics>>,
    watchdog: Watchdog,
}

impl Sql {
    /// SQL over an engine. `analytics` plans what the short path does not know; without it such statements are 0A000.
    pub fn new(engine: Arc<Engine>, analytics: Option<Arc<dyn Analytics>>) -> Arc<Sql> {
        Arc::new(Sql {
            engine,
            analytics,
            watchdog: Watchdog::default(),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// What plans queries that the short path does not know.
    pub fn analytics(&self) -> Option<&Arc<dyn Analytics>> {
        self.analytics.as_ref()
    }

    /// Statements that run with a `statement_timeout`.
    pub fn statements_watched(&self) -> usize {
        self.watchdog.watched()
    }

    pub(crate) fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }
}
