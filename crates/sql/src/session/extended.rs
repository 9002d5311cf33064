//! The extended protocol: prepared statements and portals.

use super::portals::{MAX_PORTALS, Portal};
use super::prepared::{Prepared, has_plan};
use super::state::Session;
use super::transaction::Phase;
use super::unplanned::Asked;
use crate::bind::Bind;
use crate::error::{Result, SqlError, code};
use crate::exec::select::Cursor;
use crate::output::{Field, Format, Formats, Output};
use crate::parse::Statement;
use crate::plan::Planned;
use crate::types::type_of_oid;
use crate::types::wire::{read_binary_array, read_param};
use cenote_engine::Charge;
use std::sync::Arc;

/// Bytes of a portal beside its parameters.
const PORTAL_BYTES: usize = 4 << 10;

/// Parameters of the unnamed portal that are not accounted for.
const UNNAMED_BYTES_FREE: usize = 1 << 20;

impl Session {
    /// `Parse`. Type ids of 0, or missing ones, are inferred.
    ///
    /// # Errors
    /// 42P05: the name is taken. 42601: the text does not parse, or has several statements. 53400, 53200: there is no
    /// room. Else as planning.
    pub fn parse(&mut self, name: &str, text: &str, types: &[u32]) -> Result<()> {
        self.parse_named(name, text, types).map_err(|e| self.failed(e))
    }

    fn parse_named(&mut self, name: &str, text: &str, types: &[u32]) -> Result<()> {
        self.statements.require_new(name)?;
        let mut statements = self.statements.of_text(text, types)?;
        if statements.len() > 1 {
            return Err(SqlError::new(
                code::SYNTAX_ERROR,
                "cannot insert multiple commands into a prepared statement",
            ));
        }
        if let Some(prepared) = statements.first_mut() {
            self.enter(&prepared.parsed)?;
            if has_plan(prepared.statement()) {
                self.check_staleness()?;
                self.plan(prepared)?;
            }
        }
        let named = statements.first().cloned();
        self.statements.keep_text(text, statements);
        let prepared = named.unwrap_or_else(Prepared::empty);
        if name.is_empty() {
            self.statements.set_unnamed(Some(prepared));
        } else {
            let memory = Some(self.room_for_statement(name, text)?);
            self.statements.insert(name, Prepared { memory, ..prepared });
        }
        Ok(())
    }

    /// `Bind`.
    ///
    /// # Errors
    /// 26000: no such statement. 42P03: the portal's name is taken. 08P01: another number of parameters. 22P02, 22P03
    /// and their like: a parameter is no value of its type. 53400, 53200: there is no room.
    pub fn bind(&mut self, portal: &str, statement: &str, bind: Bind<'_>) -> Result<()> {
        let done = self.bind_portal(portal, statement, bind);
        done.map_err(|e| self.failed(e))
    }

    fn bind_portal(&mut self, name: &str, statement: &str, bind: Bind<'_>) -> Result<()> {
        let mut prepared = self.statements.take(statement)?;
        let mut portal = self.portals.take_closed(name);
        let bind_bytes = bind.bytes() + name.len();
        portal.open = true;
        let done = self.fill_portal(&mut portal, &mut prepared, bind);
        self.statements.put(statement, prepared);
        if done.is_err() {
            portal.close();
        }
        portal.depth = self.transaction.depth();
        if portal.open && (!name.is_empty() || bind_bytes > UNNAMED_BYTES_FREE) {
            portal.memory = Some(self.room_for_portal(bind_bytes)?);
        }
        if portal.open && portal.is_fresh() {
            // A query sees what is committed at Bind, whenever it is executed.
            self.take_snapshot_as_it_is();
            self.portals.note_fresh();
            self.transaction.queried = true;
        }
        if name.is_empty() {
            self.portals.put(name, portal);
            return done;
        }
        done?;
        self.portals.require_new(name)?;
        self.portals.put(name, portal);
        Ok(())
    }

    fn fill_portal(&mut self, portal: &mut Portal, prepared: &mut Prepared, bind: Bind<'_>) -> Result<()> {
        self.enter(&prepared.parsed)?;
        portal.prepared = Some(prepared.clone());
        portal.formats.clear();
        portal.formats.extend(bind.result_formats());
        portal.params.clear();
        if has_plan(prepared.statement()) {
            self.check_staleness()?;
            let before = prepared.compiled.as_ref().map(|c| c.planned.clone());
            let planned = self.plan(prepared)?;
            if before.is_some_and(|b| !Arc::ptr_eq(&b, &planned) && !b.has_columns_of(&planned)) {
                return Err(SqlError::new(
                    code::FEATURE_NOT_SUPPORTED,
                    "cached plan must not change result type",
                ));
            }
            portal.planned = Some(planned.clone());
            self.read_params(portal, Some(&planned), bind)?;
            if let Some(custom) = self.custom_plan(prepared, &planned, &portal.params)? {
                portal.planned = Some(custom);
            }
            return Ok(());
        }
        let explained = self.explained(prepared)?;
        if let (Some(planned), Some(own)) = (&explained, &mut portal.prepared) {
            // The plan that is made when it is executed takes them for what they are read as.
            own.declared = planned.param_oids.as_slice().into();
        }
        self.read_params(portal, explained.as_ref(), bind)
    }

    /// The plan of the statement that EXPLAIN is about.
    fn explained(&mut self, prepared: &Prepared) -> Result<Option<Planned>> {
        match prepared.statement() {
            Statement::Explain { inner, .. } if has_plan(inner) => {
                self.tx.ensure_snapshot();
                let planned = self.plan_statement(inner, &prepared.parsed.text, &prepared.declared, true);
                planned.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Reads parameters of the types that a plan has for them.
    fn read_params(&self, portal: &mut Portal, planned: Option<&Planned>, bind: Bind<'_>) -> Result<()> {
        let (types, oids) = planned.map_or((&[][..], &[][..]), |p| (&p.params[..], &p.param_oids[..]));
        if bind.len() != types.len() {
            let text = format!(
                "bind message supplies {} parameters, but prepared statement \"\" requires {}",
                bind.len(),
                types.len()
            );
            return Err(SqlError::new(code::PROTOCOL_VIOLATION, text));
        }
        let cx = self.env.text_context();
        for (((format, bytes), ty), id) in bind.params().zip(types).zip(oids) {
            portal.params.push(match (bytes, format) {
                (Some(bytes), Format::Binary) if type_of_oid(*id).is_none() => read_binary_array(bytes, cx)?,
                _ => read_param(bytes, format, *ty, cx)?,
            });
        }
        Ok(())
    }

    /// `Describe` of a statement: ParameterDescription, then RowDescription or NoData.
    ///
    /// # Errors
    /// 26000: no such statement. Else as planning.
    pub fn describe_statement(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        let done = self.describe_named(name, out);
        done.map_err(|e| self.failed(e))
    }

    fn describe_named(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        let mut prepared = self.statements.take(name)?;
        let done = self.describe_prepared(&mut prepared, out);
        self.statements.put(name, prepared);
        done
    }

    fn describe_prepared(&mut self, prepared: &mut Prepared, out: &mut dyn Output) -> Result<()> {
        self.enter(&prepared.parsed)?;
        if !has_plan(prepared.statement()) {
            let explained = self.explained(prepared)?;
            out.parameter_description(explained.as_ref().map_or(&[], |planned| &planned.param_oids))?;
            return give_fields(&self.unplanned_fields(&prepared.parsed.statement), &[], out);
        }
        let planned = self.plan(prepared)?;
        out.parameter_description(&planned.param_oids)?;
        give_fields(&planned.fields, &[], out)
    }

    /// `Describe` of a portal: RowDescription or NoData.
    ///
    /// # Errors
    /// 34000: no portal of this name is open.
    pub fn describe_portal(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        let done = self
            .portals
            .get(name)
            .and_then(|portal| match (&portal.planned, &portal.prepared) {
                (Some(planned), _) => give_fields(&planned.fields, &portal.formats, out),
                (None, Some(prepared)) => {
                    give_fields(&self.unplanned_fields(&prepared.parsed.statement), &portal.formats, out)
                }
                (None, None) => out.no_data(),
            });
        done.map_err(|e| self.failed(e))
    }

    /// `Execute`; `max_rows` 0 is without limit.
    ///
    /// # Errors
    /// 34000: no portal of this name is open. Else as the statement; the transaction has failed then.
    pub fn execute(&mut self, name: &str, max_rows: u32, out: &mut dyn Output) -> Result<()> {
        let mut portal = match self.portals.take(name) {
            Ok(portal) => portal,
            Err(error) => return Err(self.failed(error)),
        };
        let refused = self.transaction.phase() == Phase::Failed;
        self.transaction.several = false;
        let done = self.watch().and_then(|watch| {
            let done = self.execute_portal(&mut portal, max_rows, out);
            self.unwatch_unless_copying(watch, done)
        });
        self.give_up_snapshot();
        match done {
            Ok(()) => {
                if name.is_empty() || self.tx.is_active() {
                    self.portals.put(name, portal);
                }
                Ok(())
            }
            Err(error) => {
                if !refused {
                    portal.close();
                }
                if name.is_empty() || portal.open {
                    self.portals.put(name, portal);
                }
                Err(self.failed(error))
            }
        }
    }

    fn execute_portal(&mut self, portal: &mut Portal, max_rows: u32, out: &mut dyn Output) -> Result<()> {
        let Some(mut prepared) = portal.prepared.take() else {
            return Err(SqlError::internal("a portal without a statement"));
        };
        // A query has had its snapshot since Bind: the transaction's, or, if another was taken since, its view.
        let begins = matches!(portal.cursor, Cursor::Start) && portal.view.is_none() && !portal.is_fresh();
        let begun = match begins {
            true => self.begin_statement(&prepared.parsed),
            false => self.go_on(&prepared.parsed),
        };
        let done = begun.and_then(|()| match has_plan(prepared.statement()) {
            true => self.run_portal_with(portal, &mut prepared, u64::from(max_rows), false, out),
            false => {
                let formats = std::mem::take(&mut portal.formats);
                let asked = Asked {
                    describe: false,
                    formats: &formats,
                    declared: &prepared.declared,
                    params: &portal.params,
                };
                self.run_unplanned(&prepared.parsed.clone(), asked, out)
            }
        });
        portal.prepared = Some(prepared);
        done
    }

    /// Memory for one more portal.
    ///
    /// # Errors
    /// 53400: there are too many. 53200: the session may hold no more.
    fn room_for_portal(&self, bytes: usize) -> Result<Charge> {
        if self.portals.named_count() >= MAX_PORTALS {
            return Err(self.too_many("portals", MAX_PORTALS, "Close those that are not needed."));
        }
        self.charge(PORTAL_BYTES + 2 * bytes)
    }

    /// `Close` of a statement; an unknown name is no error.
    pub fn close_statement(&mut self, name: &str) {
        self.statements.close(name);
    }

    /// `Close` of a portal; an unknown name is no error.
    pub fn close_portal(&mut self, name: &str) {
        self.portals.close(name);
    }

    /// `Sync`: commits what is not inside an explicit transaction. ReadyForQuery follows, after ErrorResponse on `Err`.
    /// Call it also after an error, where skipping ends.
    ///
    /// # Errors
    /// The implicit transaction could not be committed, and is rolled back.
    pub fn sync(&mut self) -> Result<()> {
        if self.transaction.phase() != Phase::Implicit {
            self.give_up_snapshot();
            return Ok(());
        }
        self.end_implicit().map_err(|e| self.failed(e))
    }
}

fn give_fields(fields: &[Field], formats: &[Format], out: &mut dyn Output) -> Result<()> {
    if fields.is_empty() {
        out.no_data()
    } else {
        out.row_description(fields, Formats(formats))
    }
}
