//! What a statement knows of its session while it is evaluated.

use crate::error::{Result, SqlError};
use crate::settings::{self, Settings};
use crate::types::datetime::EPOCH_DAYS;
use crate::types::text::TextContext;
use crate::types::zone::Zone;
use cenote_base::random::Random;
use cenote_base::rt;
use cenote_engine::{Account, CancelFlag, Error};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// The session as expressions see it.
pub struct SessionEnv {
    /// Role name.
    pub user: String,
    /// Database name.
    pub database: String,
    /// `pg_backend_pid()`.
    pub pid: i32,
    /// Settings now in force.
    pub settings: Arc<Settings>,
    /// Start of the transaction, microseconds since 2000 UTC.
    pub transaction_time: i64,
    /// Start of the statement, microseconds since 2000 UTC.
    pub statement_time: i64,
    /// Last value of each sequence (by object id) used in this session.
    pub last_values: RefCell<HashMap<u32, i64>>,
    /// The sequence used last.
    pub last_sequence: Cell<Option<u32>>,
    /// Set when the statement is to stop.
    pub cancel: Arc<CancelFlag>,
    /// What the session may gather in memory.
    pub memory: Arc<Account>,
    /// State of `random()`.
    pub random: Cell<u64>,
    /// What `set_config` changes; None where it may not: the statement's end does not take changes over.
    pub changes: RefCell<Option<SettingChanges>>,
}

/// What the calls of `set_config` in a statement change. The session takes it over when the statement has succeeded.
pub struct SettingChanges {
    /// What the connection began with: a value of NULL returns to it.
    pub start: Arc<Settings>,
    /// The settings with the changes; None before the first.
    pub settings: Option<Settings>,
}

impl SessionEnv {
    /// What conversions from and to text depend on.
    pub fn text_context(&self) -> TextContext<'_> {
        TextContext {
            zone: self.settings.zone(),
            now: self.transaction_time,
        }
    }

    /// A setting's value, by the calls of `set_config` that came before in the statement.
    pub fn setting(&self, name: &str) -> Option<String> {
        let changes = self.changes.borrow();
        let changed = changes.as_ref().and_then(|c| c.settings.as_ref());
        changed.unwrap_or(&self.settings).get(name).map(Cow::into_owned)
    }

    /// `set_config`: the value as SHOW will give it.
    ///
    /// # Errors
    /// As SET; 0A000 where the statement's end does not take changes over, and for settings of the transaction.
    pub fn set_config(&self, name: &str, value: Option<&str>, local: bool) -> Result<String> {
        let mut changes = self.changes.borrow_mut();
        let Some(changes) = changes.as_mut() else {
            return Err(set_config_refused());
        };
        settings::refuse_unsettable(name, value)?;
        let mut changed = changes.settings.as_ref().unwrap_or(&self.settings).clone();
        match value {
            Some(value) => changed.set(name, value, local)?,
            None => changed.reset(name, &changes.start, local)?,
        }
        let shown = changed.get(name).map(Cow::into_owned);
        changes.settings = Some(changed);
        shown.ok_or_else(|| settings::unknown(name))
    }

    /// 57014 when another thread has asked the statement to stop.
    ///
    /// # Errors
    /// 57014: another thread has asked the statement to stop.
    pub fn check_cancel(&self) -> Result<()> {
        if self.cancel.is_set() {
            Err(Error::Canceled.into())
        } else {
            Ok(())
        }
    }

    /// The session's time zone.
    pub fn zone(&self) -> &Zone {
        self.settings.zone()
    }

    /// The next random number.
    pub fn next_random(&self) -> u64 {
        let mut random = Random(self.random.get());
        let word = random.word();
        self.random.set(random.0);
        word
    }
}

/// 0A000 where the end of the statement does not take over what `set_config` changes.
#[cold]
pub fn set_config_refused() -> SqlError {
    SqlError::unsupported("set_config in this statement")
        .with_hint("Use SET, or set_config in the select list of a query without FROM.")
}

/// Microseconds since 2000-01-01 UTC, now.
pub fn wall_clock() -> i64 {
    rt::wall_micros() - EPOCH_DAYS * crate::types::datetime::DAY
}

/// A session's name where others are refused what it holds.
pub fn holder(pid: i32, user: &str) -> String {
    format!("session {pid} of {user}")
}
