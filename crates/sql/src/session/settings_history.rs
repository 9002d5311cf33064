//! A session's settings beside those in force: what a ROLLBACK, a RESET and the next report go back to.
//!
//! Invariant: settings that a transaction changes can be taken back until it ends: `before` is set before the first
//! change.

use super::history::PlanCacheMode;
use super::transaction::TransactionModes;
use crate::settings::{MAX_STALENESS, READ_AFTER, STRONG_READS, Settings};
use cenote_engine::Isolation;
use std::sync::Arc;

/// Former states of a session's settings, and what the short path needs of the present one.
pub struct SettingsHistory {
    /// Settings that the connection began with.
    start: Arc<Settings>,
    /// Settings that the transaction began with, once it may have changed any.
    before: Option<Arc<Settings>>,
    /// Settings that the client was told of.
    told: Arc<Settings>,
    /// `statement_timeout`; 0: none.
    pub statement_timeout_ms: u64,
    /// `cenote.max_staleness`; 0: none.
    pub max_staleness_ms: u64,
    /// `cenote.strong_reads`.
    pub strong_reads: bool,
    /// `cenote.read_after`; 0: none.
    pub read_after: u64,
    /// `plan_cache_mode`.
    pub plan_cache_mode: PlanCacheMode,
    /// Isolation and access mode of the next transaction.
    pub next_modes: TransactionModes,
}

impl SettingsHistory {
    /// The connection begins with these settings, which the client is told of at once.
    pub fn new(start: Arc<Settings>) -> SettingsHistory {
        SettingsHistory {
            before: None,
            told: start.clone(),
            statement_timeout_ms: start.millis("statement_timeout"),
            max_staleness_ms: start.millis(MAX_STALENESS),
            strong_reads: start.is_on(STRONG_READS),
            read_after: start.number(READ_AFTER),
            plan_cache_mode: plan_cache_mode(&start),
            next_modes: next_modes(&start),
            start,
        }
    }

    /// Settings that the connection began with.
    pub fn start(&self) -> &Arc<Settings> {
        &self.start
    }

    /// Another client's settings are in force from here on: what RESET goes back to, and what that client knows.
    pub fn begin_anew(&mut self, start: Arc<Settings>, told: Arc<Settings>) {
        (self.start, self.told) = (start, told);
    }

    /// Settings that differ from what the client was told; None: there is no such setting any more. It is told now.
    #[cold]
    pub fn tell_all(&mut self, now: &Arc<Settings>) -> Vec<(String, Option<String>)> {
        let told = std::mem::replace(&mut self.told, now.clone());
        let changed = now.differences(&told).into_iter();
        changed.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Settings that the transaction began with, if it may have changed any.
    pub fn before(&self) -> Option<&Arc<Settings>> {
        self.before.as_ref()
    }

    /// A transaction may change settings from here on: it began with these, unless it has noted others.
    pub fn note_before(&mut self, now: &Arc<Settings>) {
        if self.before.is_none() {
            self.before = Some(now.clone());
        }
    }

    /// A transaction goes on that began with these settings, if it may have changed any.
    pub fn put_before(&mut self, before: Option<Arc<Settings>>) {
        self.before = before;
    }

    /// The transaction ends: the settings that it began with, if it may have changed any.
    pub fn take_before(&mut self) -> Option<Arc<Settings>> {
        self.before.take()
    }

    /// Takes over what the short path needs of the settings now in force.
    pub fn changed(&mut self, now: &Settings) {
        self.statement_timeout_ms = now.millis("statement_timeout");
        self.max_staleness_ms = now.millis(MAX_STALENESS);
        self.strong_reads = now.is_on(STRONG_READS);
        self.read_after = now.number(READ_AFTER);
        self.plan_cache_mode = plan_cache_mode(now);
        self.next_modes = next_modes(now);
    }

    /// Whether the client knows these settings.
    #[inline]
    pub fn is_told(&self, now: &Arc<Settings>) -> bool {
        Arc::ptr_eq(&self.told, now)
    }

    /// Names and values that the client does not know yet of the settings that it follows. It is told of them now.
    #[cold]
    pub fn tell(&mut self, now: &Arc<Settings>) -> Vec<(&'static str, String)> {
        let told = std::mem::replace(&mut self.told, now.clone()).reported();
        let pairs = now.reported().into_iter().zip(told);
        pairs
            .filter(|((_, value), (_, former))| value != former)
            .map(|(new, _)| new)
            .collect()
    }
}

fn plan_cache_mode(settings: &Settings) -> PlanCacheMode {
    PlanCacheMode::named(settings.get("plan_cache_mode").as_deref().unwrap_or_default())
}

fn next_modes(settings: &Settings) -> TransactionModes {
    let isolation = match settings.get("default_transaction_isolation").as_deref() {
        Some("repeatable read") => Isolation::RepeatableRead,
        _ => Isolation::ReadCommitted,
    };
    TransactionModes {
        isolation,
        read_only: settings.is_on("default_transaction_read_only"),
    }
}
