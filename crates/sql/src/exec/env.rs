//! What a statement knows of its session while it is evaluated.

use crate::error::Result;
use crate::settings::{Settings, Zone};
use crate::types::datetime::EPOCH_DAYS;
use crate::types::text::TextContext;
use cenote_base::rt;
use cenote_engine::{Account, CancelFlag, Error};
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
}

impl SessionEnv {
    /// What conversions from and to text depend on.
    pub fn text_context(&self) -> TextContext<'_> {
        TextContext {
            zone: self.settings.zone(),
            now: self.transaction_time,
        }
    }

    /// 57014 when another thread has asked the statement to stop.
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

    /// The next random number (splitmix64).
    pub fn next_random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Microseconds since 2000-01-01 UTC, now.
pub fn wall_clock() -> i64 {
    rt::wall_micros() - EPOCH_DAYS * crate::types::datetime::DAY
}
