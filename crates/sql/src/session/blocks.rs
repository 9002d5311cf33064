//! Transaction commands: BEGIN, COMMIT, ROLLBACK, savepoints, SET TRANSACTION.

use super::state::Session;
use super::transaction::{MAX_SAVEPOINTS, Phase, TransactionModes};
use crate::error::{Result, Severity, SqlError, code};
use crate::output::Output;
use crate::parse::{Modes, Utility};
use cenote_engine::Isolation;

impl Session {
    /// Carries out a transaction command; its tag, or None: the command is another.
    pub(super) fn transaction_command(
        &mut self,
        command: &Utility,
        out: &mut dyn Output,
    ) -> Result<Option<&'static str>> {
        let tag = match command {
            Utility::Begin(tag, modes) => {
                self.begin_block(*modes, out)?;
                tag
            }
            Utility::Commit { chain } => self.commit_block(*chain, out)?,
            Utility::Rollback { chain } => self.rollback_block(*chain, out)?,
            Utility::Savepoint(name) => self.set_savepoint(name)?,
            Utility::Release(name) => self.release(name)?,
            Utility::RollbackTo(name) => self.rollback_to(name)?,
            Utility::SetTransaction(modes) => self.set_transaction(*modes, out)?,
            Utility::SetSessionTransaction(modes) => self.set_session_transaction(*modes)?,
            _ => return Ok(None),
        };
        Ok(Some(tag))
    }

    fn begin_block(&mut self, modes: Modes, out: &mut dyn Output) -> Result<()> {
        if self.transaction.phase() == Phase::Block {
            let text = "there is already a transaction in progress";
            out.notice(&SqlError::notice(Severity::Warning, code::ACTIVE_TRANSACTION, text))?;
        }
        self.settings.note_before(&self.env.settings);
        self.apply(modes)?;
        self.transaction.open_block();
        Ok(())
    }

    /// Applies isolation and access mode to the running transaction.
    pub(super) fn apply(&mut self, modes: Modes) -> Result<()> {
        if let Some(isolation) = modes.isolation
            && isolation != self.tx.isolation()
        {
            if self.transaction.queried {
                return Err(SqlError::new(
                    code::ACTIVE_TRANSACTION,
                    "SET TRANSACTION ISOLATION LEVEL must be called before any query",
                ));
            }
            if self.transaction.depth() > 0 {
                return Err(SqlError::new(
                    code::ACTIVE_TRANSACTION,
                    "SET TRANSACTION ISOLATION LEVEL must not be called in a subtransaction",
                ));
            }
            self.tx.commit()?;
            self.begin(TransactionModes {
                isolation,
                read_only: self.transaction.read_only,
            });
        }
        if let Some(read_only) = modes.read_only {
            if !read_only && self.sql.engine().is_reader() {
                let text = "cannot set transaction read-write mode at a reader of the database";
                return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, text));
            }
            let text = match self.transaction.depth() > 0 {
                true => "cannot set transaction read-write mode inside a read-only transaction",
                false => "transaction read-write mode must be set before any query",
            };
            if self.transaction.read_only && !read_only && (self.transaction.queried || self.transaction.depth() > 0) {
                return Err(SqlError::new(code::ACTIVE_TRANSACTION, text));
            }
            self.set_read_only(read_only);
        }
        Ok(())
    }

    fn set_transaction(&mut self, modes: Modes, out: &mut dyn Output) -> Result<&'static str> {
        if !self.transaction.in_block() && !self.transaction.several {
            warn_outside_block("SET TRANSACTION", out)?;
        }
        self.apply(modes)?;
        Ok("SET")
    }

    fn set_session_transaction(&mut self, modes: Modes) -> Result<&'static str> {
        self.change_settings(|settings| {
            if let Some(isolation) = modes.isolation {
                settings.set("default_transaction_isolation", isolation_name(isolation), false)?;
            }
            if let Some(read_only) = modes.read_only {
                let value = if read_only { "on" } else { "off" };
                settings.set("default_transaction_read_only", value, false)?;
            }
            Ok("SET")
        })
    }

    fn commit_block(&mut self, chain: bool, out: &mut dyn Output) -> Result<&'static str> {
        if chain {
            self.transaction.require_block("COMMIT AND CHAIN")?;
        }
        let modes = self.transaction.modes_to_chain(self.tx.isolation());
        let tag = match self.transaction.phase() {
            Phase::Failed => {
                self.transaction.end();
                self.rollback()?;
                "ROLLBACK"
            }
            Phase::Block => {
                self.transaction.end();
                self.commit()?;
                "COMMIT"
            }
            Phase::Idle | Phase::Implicit => {
                let text = "there is no transaction in progress";
                out.notice(&SqlError::notice(Severity::Warning, code::NO_ACTIVE_TRANSACTION, text))?;
                self.end_implicit()?;
                "COMMIT"
            }
        };
        if chain {
            self.chain(modes);
        }
        Ok(tag)
    }

    fn chain(&mut self, modes: TransactionModes) {
        self.begin(modes);
        self.settings.note_before(&self.env.settings);
        self.transaction.chain_block(modes);
    }

    fn rollback_block(&mut self, chain: bool, out: &mut dyn Output) -> Result<&'static str> {
        if chain {
            self.transaction.require_block("ROLLBACK AND CHAIN")?;
        }
        let modes = self.transaction.modes_to_chain(self.tx.isolation());
        if !self.transaction.in_block() {
            let text = "there is no transaction in progress";
            out.notice(&SqlError::notice(Severity::Warning, code::NO_ACTIVE_TRANSACTION, text))?;
        }
        self.transaction.end();
        self.rollback()?;
        if chain {
            self.chain(modes);
        }
        Ok("ROLLBACK")
    }

    fn set_savepoint(&mut self, name: &str) -> Result<&'static str> {
        self.transaction.require_block("SAVEPOINT")?;
        if self.transaction.depth() >= MAX_SAVEPOINTS {
            let hint = "Release those that are not needed, or end the transaction.";
            return Err(self.too_many("savepoints", MAX_SAVEPOINTS, hint));
        }
        let savepoint = self.tx.savepoint();
        self.transaction.push(name, savepoint, self.env.settings.clone());
        Ok("SAVEPOINT")
    }

    fn release(&mut self, name: &str) -> Result<&'static str> {
        self.transaction.require_block("RELEASE SAVEPOINT")?;
        let at = self.transaction.position_of(name)?;
        self.transaction.release(at);
        self.portals.keep_behind(at);
        Ok("RELEASE")
    }

    fn rollback_to(&mut self, name: &str) -> Result<&'static str> {
        self.transaction.require_block("ROLLBACK TO SAVEPOINT")?;
        let at = self.transaction.position_of(name)?;
        self.portals.drop_behind(at + 1);
        let kept = self.transaction.return_to(at);
        let (settings, read_only) = (kept.settings.clone(), kept.read_only);
        self.tx.rollback_to(&kept.savepoint)?;
        self.put_settings(settings);
        self.set_read_only(read_only);
        self.transaction.resume_block();
        Ok("ROLLBACK")
    }
}

/// # Errors
/// The connection is lost.
pub fn warn_outside_block(command: &str, out: &mut dyn Output) -> Result<()> {
    let text = format!("{command} can only be used in transaction blocks");
    out.notice(&SqlError::notice(Severity::Warning, code::NO_ACTIVE_TRANSACTION, text))
}

pub fn isolation_name(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "read committed",
        Isolation::RepeatableRead => "repeatable read",
    }
}

/// # Errors
/// 22023: the value is none of the setting's. 0A000: it is SERIALIZABLE.
pub fn modes_of(name: &str, value: &str) -> Result<Modes> {
    let lower = value.to_ascii_lowercase();
    let invalid = || {
        SqlError::new(
            code::INVALID_ARGUMENT,
            format!("invalid value for parameter \"{name}\": \"{value}\""),
        )
    };
    if name.eq_ignore_ascii_case("transaction_read_only") {
        let read_only = match lower.as_str() {
            "on" | "true" | "1" | "yes" => true,
            "off" | "false" | "0" | "no" => false,
            _ => return Err(invalid()),
        };
        return Ok(Modes {
            read_only: Some(read_only),
            ..Modes::default()
        });
    }
    let isolation = match lower.as_str() {
        "read committed" | "read uncommitted" => Isolation::ReadCommitted,
        "repeatable read" => Isolation::RepeatableRead,
        "serializable" => return Err(SqlError::serializable()),
        _ => return Err(invalid()),
    };
    Ok(Modes {
        isolation: Some(isolation),
        ..Modes::default()
    })
}
