//! Transaction commands, settings, prepared statements by SQL, maintenance.

use super::extended::Portal;
use super::planning::{Prepared, has_plan};
use super::{Mark, Session, State};
use crate::ddl::Definer;
use crate::error::{Result, SqlError, code};
use crate::expr::bind::Params;
use crate::expr::type_names::type_named;
use crate::expr::{Env, Input};
use crate::output::{Field, Format, Formats, Output};
use crate::parse::{Modes, Parsed, Statement, Utility};
use crate::plan::{Planner, computed_field};
use crate::types::cast::Context;
use crate::types::type_oid;
use crate::{Severity, settings};
use cenote_engine::{ColumnType, Datum, Isolation};
use sqlparser::ast;
use std::sync::Arc;

/// Savepoints of a transaction at one time.
const MAX_SAVEPOINTS: usize = 16_384;

impl Session {
    /// Carries out a command.
    pub(super) fn utility(
        &mut self,
        utility: &Utility,
        parsed: &Arc<Parsed>,
        describe: bool,
        formats: &[Format],
        out: &mut dyn Output,
    ) -> Result<()> {
        let tag = match utility {
            Utility::Begin(tag, modes) => {
                self.begin_block(*modes, out)?;
                tag
            }
            Utility::Commit { chain } => return self.commit_block(*chain, out),
            Utility::Rollback { chain } => self.rollback_block(*chain, out)?,
            Utility::Savepoint(name) => {
                self.require_block("SAVEPOINT")?;
                self.set_savepoint(name)?;
                "SAVEPOINT"
            }
            Utility::Release(name) => {
                self.require_block("RELEASE SAVEPOINT")?;
                let at = self.savepoint_named(name)?;
                self.savepoints.truncate(at);
                self.keep_portals_behind(at);
                "RELEASE"
            }
            Utility::RollbackTo(name) => self.rollback_to(name)?,
            Utility::SetTransaction(modes) => self.set_transaction(*modes, out)?,
            Utility::SetSessionTransaction(modes) => self.set_session_transaction(*modes)?,
            Utility::Set { name, value, local } => self.set(name, value.as_deref(), *local, out)?,
            Utility::Show(name) => return self.show(name, describe, formats, out),
            Utility::ShowAll => return self.show_all(describe, formats, out),
            Utility::Reset(name) => {
                self.set(name, None, false, out)?;
                "RESET"
            }
            Utility::ResetAll => {
                self.reset_all()?;
                "RESET"
            }
            Utility::Discard { all, plans, sequences } => self.discard(*all, *plans, *sequences)?,
            Utility::Close(name) => self.close_cursor(name.as_deref())?,
            Utility::Unlisten => "UNLISTEN",
            Utility::Deallocate(name) => self.deallocate(name.as_deref())?,
            Utility::Prepare {
                name,
                types,
                statement: _,
            } => self.prepare(name, types, parsed)?,
            Utility::Execute { name, args } => {
                return self.execute_prepared(name, args, parsed, describe, formats, out);
            }
            Utility::Vacuum { tables, analyze } => {
                if self.in_block() {
                    return Err(SqlError::new(
                        code::ACTIVE_TRANSACTION,
                        "VACUUM cannot run inside a transaction block",
                    ));
                }
                self.maintain(tables, *analyze, &parsed.text)?;
                self.sql.engine().vacuum_until(&self.env.cancel)?;
                "VACUUM"
            }
            Utility::Analyze(tables) => {
                self.maintain(tables, true, &parsed.text)?;
                "ANALYZE"
            }
            Utility::Checkpoint => {
                self.sql.engine().checkpoint()?;
                "CHECKPOINT"
            }
            Utility::Truncate { tables, restart } => {
                self.refuse_read_only("TRUNCATE TABLE")?;
                self.note_tables_in_use();
                let mut definer = Definer {
                    tx: &mut self.tx,
                    session: &self.env,
                    text: &parsed.text,
                    notices: Vec::new(),
                };
                definer.truncate(tables, *restart)?;
                "TRUNCATE TABLE"
            }
            Utility::CreateSequence {
                name,
                if_not_exists,
                options,
            } => {
                self.refuse_read_only("CREATE SEQUENCE")?;
                let mut definer = Definer {
                    tx: &mut self.tx,
                    session: &self.env,
                    text: &parsed.text,
                    notices: Vec::new(),
                };
                definer.create_sequence(name, *if_not_exists, *options)?;
                definer.notices.iter().try_for_each(|n| out.notice(n))?;
                "CREATE SEQUENCE"
            }
            Utility::LockTable => return Err(SqlError::unsupported("LOCK TABLE")),
        };
        out.complete(tag)
    }

    /// Result columns of a command.
    pub(super) fn utility_fields(&self, utility: &Utility) -> Vec<Field> {
        let text = |name: &str| computed_field(name, ColumnType::Text);
        match utility {
            Utility::Show(name) => vec![text(&shown_name(name))],
            Utility::ShowAll => vec![text("name"), text("setting"), text("description")],
            Utility::Execute { name, .. } => {
                let planned = self.prepared.get(name).and_then(|p| p.compiled.as_ref());
                planned.map_or(Vec::new(), |c| c.planned.fields.to_vec())
            }
            _ => Vec::new(),
        }
    }

    fn begin_block(&mut self, modes: Modes, out: &mut dyn Output) -> Result<()> {
        if self.state == State::Block {
            let text = "there is already a transaction in progress";
            out.notice(&SqlError::notice(Severity::Warning, code::ACTIVE_TRANSACTION, text))?;
        }
        if self.before.is_none() {
            self.before = Some(self.env.settings.clone());
        }
        self.apply(modes)?;
        self.state = State::Block;
        Ok(())
    }

    /// Applies isolation and access mode to the running transaction.
    fn apply(&mut self, modes: Modes) -> Result<()> {
        if let Some(isolation) = modes.isolation
            && isolation != self.tx.isolation()
        {
            if self.queried {
                return Err(SqlError::new(
                    code::ACTIVE_TRANSACTION,
                    "SET TRANSACTION ISOLATION LEVEL must be called before any query",
                ));
            }
            if !self.savepoints.is_empty() {
                return Err(SqlError::new(
                    code::ACTIVE_TRANSACTION,
                    "SET TRANSACTION ISOLATION LEVEL must not be called in a subtransaction",
                ));
            }
            self.tx.commit()?;
            let read_only = self.read_only;
            self.begin(isolation, read_only);
        }
        if let Some(read_only) = modes.read_only {
            let text = match self.savepoints.is_empty() {
                false => "cannot set transaction read-write mode inside a read-only transaction",
                true => "transaction read-write mode must be set before any query",
            };
            if self.read_only && !read_only && (self.queried || !self.savepoints.is_empty()) {
                return Err(SqlError::new(code::ACTIVE_TRANSACTION, text));
            }
            self.set_read_only(read_only);
        }
        Ok(())
    }

    fn set_transaction(&mut self, modes: Modes, out: &mut dyn Output) -> Result<&'static str> {
        if !self.in_block() && !self.several {
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

    fn commit_block(&mut self, chain: bool, out: &mut dyn Output) -> Result<()> {
        if chain {
            self.require_block("COMMIT AND CHAIN")?;
        }
        let modes = self.modes_to_chain();
        let tag = match self.state {
            State::Failed => {
                self.state = State::Idle;
                self.rollback()?;
                "ROLLBACK"
            }
            State::Block => {
                self.state = State::Idle;
                self.commit()?;
                "COMMIT"
            }
            State::Idle | State::Implicit => {
                let text = "there is no transaction in progress";
                out.notice(&SqlError::notice(Severity::Warning, code::NO_ACTIVE_TRANSACTION, text))?;
                self.end_implicit()?;
                "COMMIT"
            }
        };
        if chain {
            self.chain(modes);
        }
        out.complete(tag)
    }

    /// Isolation and access mode that AND CHAIN takes over. What a transaction set of them goes with its failure, as in
    /// PostgreSQL.
    fn modes_to_chain(&self) -> (Isolation, bool) {
        match self.state {
            State::Failed => self.first_modes,
            _ => (self.tx.isolation(), self.read_only),
        }
    }

    fn chain(&mut self, modes: (Isolation, bool)) {
        self.first_modes = modes;
        self.begin(modes.0, modes.1);
        self.before = Some(self.env.settings.clone());
        self.state = State::Block;
    }

    fn rollback_block(&mut self, chain: bool, out: &mut dyn Output) -> Result<&'static str> {
        if chain {
            self.require_block("ROLLBACK AND CHAIN")?;
        }
        let modes = self.modes_to_chain();
        if !self.in_block() {
            let text = "there is no transaction in progress";
            out.notice(&SqlError::notice(Severity::Warning, code::NO_ACTIVE_TRANSACTION, text))?;
        }
        self.state = State::Idle;
        self.rollback()?;
        if chain {
            self.chain(modes);
        }
        Ok("ROLLBACK")
    }

    fn require_block(&self, command: &str) -> Result<()> {
        if self.in_block() {
            return Ok(());
        }
        Err(SqlError::new(
            code::NO_ACTIVE_TRANSACTION,
            format!("{command} can only be used in transaction blocks"),
        ))
    }

    fn savepoint_named(&self, name: &str) -> Result<usize> {
        let missing = || SqlError::new(code::INVALID_SAVEPOINT, format!("savepoint \"{name}\" does not exist"));
        self.savepoints
            .iter()
            .rposition(|mark| mark.name == name)
            .ok_or_else(missing)
    }

    fn set_savepoint(&mut self, name: &str) -> Result<()> {
        if self.savepoints.len() >= MAX_SAVEPOINTS {
            let hint = "Release those that are not needed, or end the transaction.";
            return Err(self.too_many("savepoints", MAX_SAVEPOINTS, hint));
        }
        self.savepoints.push(Mark {
            name: name.to_string(),
            place: self.tx.savepoint(),
            settings: self.env.settings.clone(),
            read_only: self.read_only,
        });
        Ok(())
    }

    fn rollback_to(&mut self, name: &str) -> Result<&'static str> {
        self.require_block("ROLLBACK TO SAVEPOINT")?;
        let at = self.savepoint_named(name)?;
        self.savepoints.truncate(at + 1);
        self.drop_portals_behind(at + 1);
        let mark = &self.savepoints[at];
        self.tx.rollback_to(&mark.place)?;
        let (settings, read_only) = (mark.settings.clone(), mark.read_only);
        self.put_settings(settings);
        self.set_read_only(read_only);
        self.state = State::Block;
        Ok("ROLLBACK")
    }

    fn set(&mut self, name: &str, value: Option<&str>, local: bool, out: &mut dyn Output) -> Result<&'static str> {
        if name.eq_ignore_ascii_case("transaction_isolation") || name.eq_ignore_ascii_case("transaction_read_only") {
            self.apply(modes_of(name, value.unwrap_or_default())?)?;
            return Ok("SET");
        }
        settings::refuse_serializable(name, value)?;
        if local && !self.in_block() && !self.several {
            warn_outside_block("SET LOCAL", out)?;
        }
        let start = self.start.clone();
        self.change_settings(|settings| match value {
            Some(value) => settings.set(name, value, local),
            None => settings.reset(name, &start, local),
        })?;
        Ok("SET")
    }

    fn reset_all(&mut self) -> Result<()> {
        let start = self.start.clone();
        self.change_settings(|settings| {
            settings.reset_all(&start);
            Ok(())
        })
    }

    fn show(&mut self, name: &str, describe: bool, formats: &[Format], out: &mut dyn Output) -> Result<()> {
        let value = match name.to_ascii_lowercase().as_str() {
            "transaction_isolation" => isolation_name(self.tx.isolation()).to_string(),
            "transaction_read_only" => if self.read_only { "on" } else { "off" }.to_string(),
            _ => self
                .env
                .settings
                .get(name)
                .ok_or_else(|| settings::unknown(name))?
                .into_owned(),
        };
        self.give_lines(&shown_name(name), &[value], describe, formats, out)?;
        out.complete("SHOW")
    }

    fn show_all(&mut self, describe: bool, formats: &[Format], out: &mut dyn Output) -> Result<()> {
        if describe {
            out.row_description(&self.utility_fields(&Utility::ShowAll), Formats(formats))?;
        }
        for (name, value) in self.env.settings.all() {
            out.row(3, &mut |buffer| {
                [name.as_str(), value.as_str(), ""]
                    .iter()
                    .for_each(|v| crate::types::wire::put_bytes(v.as_bytes(), buffer));
                Ok(())
            })?;
        }
        out.complete("SHOW")
    }

    fn discard(&mut self, all: bool, plans: bool, sequences: bool) -> Result<&'static str> {
        if all {
            if self.in_block() || self.several {
                return Err(SqlError::new(
                    code::ACTIVE_TRANSACTION,
                    "DISCARD ALL cannot run inside a transaction block",
                ));
            }
            self.prepared.clear();
            self.portals.clear();
            self.reset_all()?;
        }
        if all || plans {
            self.epoch += 1;
        }
        if all || sequences {
            self.env.last_values.borrow_mut().clear();
            self.env.last_sequence.set(None);
        }
        Ok(match (all, plans, sequences) {
            (true, ..) => "DISCARD ALL",
            (_, true, _) => "DISCARD PLANS",
            (_, _, true) => "DISCARD SEQUENCES",
            _ => "DISCARD TEMP",
        })
    }

    fn close_cursor(&mut self, name: Option<&str>) -> Result<&'static str> {
        let Some(name) = name else {
            self.portals.clear();
            return Ok("CLOSE CURSOR ALL");
        };
        match self.portals.remove(name) {
            Some(_) => Ok("CLOSE CURSOR"),
            None => Err(SqlError::new(
                code::INVALID_CURSOR_NAME,
                format!("cursor \"{name}\" does not exist"),
            )),
        }
    }

    fn deallocate(&mut self, name: Option<&str>) -> Result<&'static str> {
        let Some(name) = name else {
            self.prepared.clear();
            return Ok("DEALLOCATE ALL");
        };
        match self.prepared.remove(name) {
            Some(_) => Ok("DEALLOCATE"),
            None => Err(SqlError::new(
                code::INVALID_STATEMENT_NAME,
                format!("prepared statement \"{name}\" does not exist"),
            )),
        }
    }

    fn prepare(&mut self, name: &str, types: &[ast::DataType], parsed: &Arc<Parsed>) -> Result<&'static str> {
        if self.prepared.contains_key(name) {
            return Err(SqlError::new(
                code::DUPLICATE_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let declared = types
            .iter()
            .map(|t| type_named(t).map(type_oid))
            .collect::<Result<Vec<u32>>>()?;
        let mut prepared = Prepared::new(parsed.clone(), declared);
        prepared.inner = true;
        if !has_plan(prepared.statement()) {
            return Err(SqlError::unsupported("PREPARE of this statement"));
        }
        self.plan(&mut prepared)?;
        prepared.memory = Some(self.room_for_statement(name, &parsed.text)?);
        self.prepared.insert(name.to_string(), prepared);
        Ok("PREPARE")
    }

    fn execute_prepared(
        &mut self,
        name: &str,
        args: &[ast::Expr],
        parsed: &Arc<Parsed>,
        describe: bool,
        formats: &[Format],
        out: &mut dyn Output,
    ) -> Result<()> {
        let missing = || {
            SqlError::new(
                code::INVALID_STATEMENT_NAME,
                format!("prepared statement \"{name}\" does not exist"),
            )
        };
        let mut prepared = self.prepared.get(name).cloned().ok_or_else(missing)?;
        let planned = self.plan(&mut prepared)?;
        if planned.params.len() != args.len() {
            let text = format!("wrong number of parameters for prepared statement \"{name}\"");
            let detail = format!("Expected {} parameters but got {}.", planned.params.len(), args.len());
            return Err(SqlError::new(code::SYNTAX_ERROR, text).with_detail(detail));
        }
        let params = args
            .iter()
            .zip(&planned.params)
            .map(|(e, ty)| self.argument(e, *ty, &parsed.text))
            .collect::<Result<_>>()?;
        let mut portal = Portal {
            planned: Some(planned),
            params,
            formats: formats.to_vec(),
            ..Portal::default()
        };
        self.run_portal_with(&mut portal, &mut prepared, 0, describe, out)
    }

    fn argument(&self, expr: &ast::Expr, ty: ColumnType, text: &str) -> Result<Datum> {
        let params = Params::default();
        let planner = Planner {
            tx: &self.tx,
            session: &self.env,
            text,
            params: &params,
            analytics: false,
        };
        let sequence = |name: &str| planner.sequence(name);
        let binder = planner.binder(None, &sequence);
        let typed = binder.bind(expr).map_err(SqlError::from)?;
        let bound = binder.coerce(typed, ty, Context::Assignment).map_err(SqlError::from)?;
        bound.eval(&Env {
            params: &[],
            input: Input::Nothing,
            session: &self.env,
            sequences: None,
        })
    }

    fn maintain(&mut self, tables: &[ast::ObjectName], analyze: bool, text: &str) -> Result<()> {
        let definer = Definer {
            tx: &mut self.tx,
            session: &self.env,
            text,
            notices: Vec::new(),
        };
        let named = tables.iter().map(|t| definer.existing(t)).collect::<Result<Vec<_>>>()?;
        if !analyze {
            return Ok(());
        }
        let all = if tables.is_empty() { self.tx.tables()? } else { named };
        for table in &all {
            self.sql.engine().analyze(table)?;
        }
        Ok(())
    }
}

/// The statement that PREPARE names.
impl Prepared {
    /// The statement to plan: PREPARE's inner one where it came by PREPARE.
    pub fn statement(&self) -> &Statement {
        match &self.parsed.statement {
            Statement::Utility(Utility::Prepare { statement, .. }) if self.inner => statement,
            statement => statement,
        }
    }
}

fn warn_outside_block(command: &str, out: &mut dyn Output) -> Result<()> {
    let text = format!("{command} can only be used in transaction blocks");
    out.notice(&SqlError::notice(Severity::Warning, code::NO_ACTIVE_TRANSACTION, text))
}

fn isolation_name(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "read committed",
        Isolation::RepeatableRead => "repeatable read",
    }
}

fn modes_of(name: &str, value: &str) -> Result<Modes> {
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

/// A setting's name as SHOW labels its column.
fn shown_name(name: &str) -> String {
    match name.to_ascii_lowercase().as_str() {
        "timezone" => "TimeZone".to_string(),
        "datestyle" => "DateStyle".to_string(),
        "intervalstyle" => "IntervalStyle".to_string(),
        other => other.to_string(),
    }
}
