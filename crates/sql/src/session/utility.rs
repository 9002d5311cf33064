//! Settings, prepared statements by SQL, maintenance.

use super::blocks::{isolation_name, modes_of, warn_outside_block};
use super::portals::Portal;
use super::prepared::{Prepared, has_plan, no_statement};
use super::report;
use super::state::Session;
use crate::ddl::Definer;
use crate::error::{Result, SqlError, code};
use crate::expr::bind::Params;
use crate::expr::{Env, Input};
use crate::output::{Field, Format, Formats, Output};
use crate::parse::{Parsed, Utility};
use crate::plan::known::Known;
use crate::plan::{Planned, Planner, computed_field};
use crate::settings;
use crate::types::cast::Context;
use crate::types::wire::put_bytes;
use cenote_engine::{ColumnType, Datum};
use sqlparser::ast;
use std::sync::Arc;

impl Session {
    /// Carries out a command that is neither a transaction command nor answers with rows; its tag.
    pub(super) fn tagged_command(
        &mut self,
        command: &Utility,
        parsed: &Arc<Parsed>,
        out: &mut dyn Output,
    ) -> Result<&'static str> {
        match command {
            Utility::Set { name, value, local } => self.set(name, value.as_deref(), *local, out),
            Utility::Reset(name) => self.set(name, None, false, out).map(|_| "RESET"),
            Utility::ResetAll => self.reset_all().map(|()| "RESET"),
            Utility::Discard { all, plans, sequences } => self.discard(*all, *plans, *sequences),
            Utility::Close(name) => self.close_cursor(name.as_deref()),
            Utility::Unlisten => Ok("UNLISTEN"),
            Utility::Deallocate(name) => self.deallocate(name.as_deref()),
            Utility::Prepare { name, types, .. } => self.prepare(name, types, parsed),
            Utility::Vacuum {
                tables,
                analyze,
                verbose,
            } => self.vacuum(tables, (*analyze, *verbose), &parsed.text, out),
            Utility::Analyze { tables, verbose } => self.analyze(tables, *verbose, &parsed.text, out),
            Utility::Checkpoint => {
                self.sql.engine().checkpoint()?;
                Ok("CHECKPOINT")
            }
            Utility::Truncate { tables, restart } => {
                self.define("TRUNCATE TABLE", &parsed.text, out, |d| d.truncate(tables, *restart))
            }
            Utility::CreateSequence {
                name,
                if_not_exists,
                options,
            } => self.define("CREATE SEQUENCE", &parsed.text, out, |d| {
                d.create_sequence(name, *if_not_exists, *options)
            }),
            Utility::LockTable => Err(SqlError::unsupported("LOCK TABLE")),
            _ => Err(SqlError::internal("a command that has no tag of its own")),
        }
    }

    fn define(
        &mut self,
        tag: &'static str,
        text: &str,
        out: &mut dyn Output,
        run: impl FnOnce(&mut Definer<'_>) -> Result<()>,
    ) -> Result<&'static str> {
        self.refuse_read_only(tag)?;
        self.note_tables_in_use();
        let mut definer = Definer {
            tx: &mut self.tx,
            session: &self.env,
            text,
            notices: Vec::new(),
        };
        run(&mut definer)?;
        definer.notices.iter().try_for_each(|n| out.notice(n))?;
        Ok(tag)
    }

    /// Result columns of a command.
    pub(super) fn utility_fields(&self, utility: &Utility) -> Vec<Field> {
        let text = |name: &str| computed_field(name, ColumnType::Text);
        match utility {
            Utility::Show(name) => vec![text(&shown_name(name))],
            Utility::ShowAll => vec![text("name"), text("setting"), text("description")],
            Utility::Execute { name, .. } => {
                let planned = self.statements.named(name).and_then(|p| p.compiled.as_ref());
                planned.map_or(Vec::new(), |c| c.planned.fields.to_vec())
            }
            _ => Vec::new(),
        }
    }

    fn set(&mut self, name: &str, value: Option<&str>, local: bool, out: &mut dyn Output) -> Result<&'static str> {
        if name.eq_ignore_ascii_case("transaction_isolation") || name.eq_ignore_ascii_case("transaction_read_only") {
            self.apply(modes_of(name, value.unwrap_or_default())?)?;
            return Ok("SET");
        }
        if name == report::STATE && self.report.is_some() {
            return self.take_state(value.unwrap_or_default()).map(|()| "SET");
        }
        if name == report::TAKE_UP && self.report.is_some() {
            return self.take_up(value.unwrap_or_default()).map(|()| "SET");
        }
        if name == report::CARRY_ON && self.report.is_some() {
            return self.carry_on_reading(value.unwrap_or_default()).map(|()| "SET");
        }
        settings::refuse_serializable(name, value)?;
        if local && !self.transaction.in_block() && !self.transaction.several {
            warn_outside_block("SET LOCAL", out)?;
        }
        let start = self.settings.start().clone();
        self.change_settings(|settings| match value {
            Some(value) => settings.set(name, value, local),
            None => settings.reset(name, &start, local),
        })?;
        Ok("SET")
    }

    fn reset_all(&mut self) -> Result<()> {
        let start = self.settings.start().clone();
        self.change_settings(|settings| {
            settings.reset_all(&start);
            Ok(())
        })
    }

    pub(super) fn show(&mut self, name: &str, describe: bool, formats: &[Format], out: &mut dyn Output) -> Result<()> {
        let value = match name.to_ascii_lowercase().as_str() {
            "transaction_isolation" => isolation_name(self.tx.isolation()).to_string(),
            "transaction_read_only" => if self.transaction.read_only { "on" } else { "off" }.to_string(),
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

    pub(super) fn show_all(&mut self, describe: bool, formats: &[Format], out: &mut dyn Output) -> Result<()> {
        if describe {
            out.row_description(&self.utility_fields(&Utility::ShowAll), Formats(formats))?;
        }
        for (name, value) in self.env.settings.all() {
            out.row(3, &mut |buffer| {
                [name.as_str(), value.as_str(), ""]
                    .iter()
                    .for_each(|v| put_bytes(v.as_bytes(), buffer));
                Ok(())
            })?;
        }
        out.complete("SHOW")
    }

    fn discard(&mut self, all: bool, plans: bool, sequences: bool) -> Result<&'static str> {
        if all {
            if self.transaction.in_block() || self.transaction.several {
                return Err(SqlError::new(
                    code::ACTIVE_TRANSACTION,
                    "DISCARD ALL cannot run inside a transaction block",
                ));
            }
            self.statements.deallocate_all();
            self.portals.close_cursors();
            self.reset_all()?;
        }
        if all || plans {
            self.statements.make_plans_stale();
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
            self.portals.close_cursors();
            return Ok("CLOSE CURSOR ALL");
        };
        match self.portals.close_cursor(name) {
            true => Ok("CLOSE CURSOR"),
            false => Err(SqlError::new(
                code::INVALID_CURSOR_NAME,
                format!("cursor \"{name}\" does not exist"),
            )),
        }
    }

    fn deallocate(&mut self, name: Option<&str>) -> Result<&'static str> {
        let Some(name) = name else {
            self.statements.deallocate_all();
            return Ok("DEALLOCATE ALL");
        };
        match self.statements.deallocate(name) {
            true => Ok("DEALLOCATE"),
            false => Err(no_statement(name)),
        }
    }

    fn prepare(&mut self, name: &str, types: &[ast::DataType], parsed: &Arc<Parsed>) -> Result<&'static str> {
        self.statements.require_new(name)?;
        let mut prepared = Prepared::of_command(types, parsed)?;
        if !has_plan(prepared.statement()) {
            return Err(SqlError::unsupported("PREPARE of this statement"));
        }
        self.plan(&mut prepared)?;
        prepared.memory = Some(self.room_for_statement(name, &parsed.text)?);
        self.statements.insert(name, prepared);
        Ok("PREPARE")
    }

    pub(super) fn execute_prepared(
        &mut self,
        name: &str,
        args: &[ast::Expr],
        parsed: &Arc<Parsed>,
        describe: bool,
        formats: &[Format],
        out: &mut dyn Output,
    ) -> Result<()> {
        let (mut prepared, planned, params) = self.bound_arguments(name, args, &parsed.text)?;
        let mut portal = Portal {
            planned: Some(planned),
            params,
            formats: formats.to_vec(),
            ..Portal::default()
        };
        self.run_portal_with(&mut portal, &mut prepared, 0, describe, out)
    }

    /// The statement of this name, and its plan for these arguments.
    pub(super) fn bound_arguments(
        &mut self,
        name: &str,
        args: &[ast::Expr],
        text: &str,
    ) -> Result<(Prepared, Arc<Planned>, Vec<Datum>)> {
        let named = self.statements.named(name).cloned();
        let mut prepared = named.ok_or_else(|| no_statement(name))?;
        let planned = self.plan(&mut prepared)?;
        self.statements.keep_plan(name, &prepared);
        if planned.params.len() != args.len() {
            let message = format!("wrong number of parameters for prepared statement \"{name}\"");
            let detail = format!("Expected {} parameters but got {}.", planned.params.len(), args.len());
            return Err(SqlError::new(code::SYNTAX_ERROR, message).with_detail(detail));
        }
        let params: Vec<Datum> = args
            .iter()
            .zip(&planned.params)
            .map(|(e, ty)| self.argument(e, *ty, text))
            .collect::<Result<_>>()?;
        let custom = self.custom_plan(&prepared, &planned, &params)?;
        Ok((prepared, custom.unwrap_or(planned), params))
    }

    fn argument(&self, expr: &ast::Expr, ty: ColumnType, text: &str) -> Result<Datum> {
        let params = Params::default();
        let planner = Planner {
            tx: &self.tx,
            session: &self.env,
            text,
            params: &params,
            analytics: false,
            for_many: false,
            known: Known::new(&self.env, None),
        };
        let sequence = |name: &str| planner.sequence(name);
        let binder = planner.binder(None, &sequence);
        let typed = binder.bind(expr).map_err(SqlError::from)?;
        let bound = binder.coerce(typed, ty, Context::Assignment).map_err(SqlError::from)?;
        bound.eval(&Env {
            params: &[],
            input: Input::Nothing,
            outer: &[],
            session: &self.env,
            sequences: None,
            subqueries: None,
        })
    }
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
