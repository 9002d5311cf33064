//! Where a session's transaction stands.
//!
//! ```text
//!            start                     open_block
//!   Idle ───────────────▶ Implicit ───────────▶ Block ──fail_block──▶ Failed
//!     ▲                      │                    │                     │
//!     └─────── end ──────────┴─────── end ────────┴──────── end ────────┘   Failed ──return_to──▶ Block
//! ```
//!
//! Invariants:
//! - Only a block has savepoints, failed or not.
//! - A failed block has given its locks back: its session rolled back to the newest savepoint, or wholly without one.

use crate::error::{Result, SqlError, code};
use crate::settings::Settings;
use cenote_engine::{Isolation, Savepoint};
use std::sync::Arc;

/// Savepoints of a transaction at one time.
pub const MAX_SAVEPOINTS: usize = 16_384;

/// How far a session's transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    Idle,
    /// It ends with its message, or at Sync.
    Implicit,
    /// BEGIN opened it: it ends by COMMIT or ROLLBACK.
    Block,
    /// A statement of the block failed.
    Failed,
}

/// Isolation and access mode of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct TransactionModes {
    /// Its isolation.
    pub isolation: Isolation,
    /// Whether it may not write.
    pub read_only: bool,
}

/// A savepoint, and what was in force when it was made. Its name is of 63 bytes at most.
pub struct NamedSavepoint {
    name: String,
    /// The engine's savepoint.
    pub savepoint: Savepoint,
    /// Settings then.
    pub settings: Arc<Settings>,
    /// Access mode then.
    pub read_only: bool,
}

impl NamedSavepoint {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A session's transaction, as the client controls it. The engine's transaction is beside it.
pub struct TransactionState {
    phase: Phase,
    savepoints: Vec<NamedSavepoint>,
    /// Whether the text that runs has several statements: a transaction block for commands that need one.
    pub several: bool,
    /// Whether the transaction may not write.
    pub read_only: bool,
    /// Whether the transaction has run a query: its isolation is settled then.
    pub queried: bool,
    /// Modes that the transaction had before it set any.
    first_modes: TransactionModes,
    /// Transactions of the engine that the session has begun.
    pub begun: u64,
    /// Whether savepoints were made, released or returned to since this was cleared.
    pub touched: bool,
}

impl TransactionState {
    /// No transaction.
    pub fn new() -> TransactionState {
        TransactionState {
            phase: Phase::Idle,
            savepoints: Vec::new(),
            several: false,
            read_only: false,
            queried: false,
            first_modes: TransactionModes {
                isolation: Isolation::ReadCommitted,
                read_only: false,
            },
            begun: 0,
            touched: false,
        }
    }

    /// How far the transaction is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether a block is open, failed or not.
    pub fn in_block(&self) -> bool {
        matches!(self.phase, Phase::Block | Phase::Failed)
    }

    /// The first statement starts an implicit transaction.
    pub fn start(&mut self, modes: TransactionModes) {
        assert_eq!(self.phase, Phase::Idle, "a transaction starts where there is none");
        self.phase = Phase::Implicit;
        self.first_modes = modes;
    }

    /// BEGIN makes the implicit transaction a block.
    pub fn open_block(&mut self) {
        assert!(
            matches!(self.phase, Phase::Implicit | Phase::Block),
            "BEGIN itself started a transaction, and a failed block refuses it"
        );
        self.phase = Phase::Block;
    }

    /// AND CHAIN opens a block where one has ended.
    pub fn chain_block(&mut self, modes: TransactionModes) {
        assert_eq!(self.phase, Phase::Idle, "a chained block begins behind an ended one");
        self.first_modes = modes;
        self.phase = Phase::Block;
    }

    /// A statement of the block failed.
    pub fn fail_block(&mut self) {
        assert_eq!(self.phase, Phase::Block, "only a block that is whole can fail");
        self.phase = Phase::Failed;
    }

    /// The transaction ends: COMMIT, ROLLBACK, the end of its message, or an error outside a block.
    pub fn end(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Modes that AND CHAIN takes over from a transaction with these. What a transaction set of them goes with its
    /// failure, as in PostgreSQL.
    pub fn modes_to_chain(&self, isolation: Isolation) -> TransactionModes {
        match self.phase {
            Phase::Failed => self.first_modes,
            _ => TransactionModes {
                isolation,
                read_only: self.read_only,
            },
        }
    }

    /// Refuses a command outside a block.
    ///
    /// # Errors
    /// 25P01: no block is open.
    pub fn require_block(&self, command: &str) -> Result<()> {
        if self.in_block() {
            return Ok(());
        }
        let text = format!("{command} can only be used in transaction blocks");
        Err(SqlError::new(code::NO_ACTIVE_TRANSACTION, text))
    }

    /// Number of savepoints.
    pub fn depth(&self) -> usize {
        self.savepoints.len()
    }

    /// All savepoints, the oldest first.
    pub fn savepoints(&self) -> &[NamedSavepoint] {
        &self.savepoints
    }

    /// Modes that the transaction had before it set any.
    pub fn first_modes(&self) -> TransactionModes {
        self.first_modes
    }

    /// The newest savepoint.
    pub fn newest(&self) -> Option<&NamedSavepoint> {
        self.savepoints.last()
    }

    /// Where the newest savepoint of this name is.
    ///
    /// # Errors
    /// 3B001: the transaction has no such savepoint.
    pub fn position_of(&self, name: &str) -> Result<usize> {
        let missing = || SqlError::new(code::INVALID_SAVEPOINT, format!("savepoint \"{name}\" does not exist"));
        self.savepoints
            .iter()
            .rposition(|kept| kept.name == name)
            .ok_or_else(missing)
    }

    /// Notes a savepoint of the block.
    pub fn push(&mut self, name: &str, savepoint: Savepoint, settings: Arc<Settings>) {
        assert_eq!(self.phase, Phase::Block, "only a block has savepoints");
        self.touched = true;
        self.savepoints.push(NamedSavepoint {
            name: name.to_string(),
            savepoint,
            settings,
            read_only: self.read_only,
        });
    }

    /// Releases the savepoints from the `at`th on.
    pub fn release(&mut self, at: usize) {
        self.touched = true;
        self.savepoints.truncate(at);
    }

    /// Forgets the savepoints behind the `at`th, to which the transaction returns.
    pub fn return_to(&mut self, at: usize) -> &NamedSavepoint {
        assert!(self.in_block(), "only a block has savepoints");
        self.touched = true;
        self.savepoints.truncate(at + 1);
        &self.savepoints[at]
    }

    /// The transaction has returned to a savepoint: a block that failed is whole again.
    pub fn resume_block(&mut self) {
        assert!(self.in_block(), "only a block returns to a savepoint");
        self.phase = Phase::Block;
    }

    /// Forgets all savepoints.
    pub fn forget_savepoints(&mut self) {
        self.savepoints.clear();
    }
}
