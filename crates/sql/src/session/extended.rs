//! The extended protocol: prepared statements and portals.

use super::planning::{Prepared, has_plan};
use super::run::reads;
use super::{Session, State};
use crate::bind::Bind;
use crate::env::holder;
use crate::error::{Result, SqlError, code};
use crate::exec::select::Cursor;
use crate::output::{Format, Formats, Output};
use crate::plan::{Plan, Planned};
use crate::types::type_of_oid;
use crate::types::wire::{read_binary_array, read_param};
use cenote_engine::{Charge, Datum, Reader};
use std::sync::Arc;

/// Named portals of a session at one time.
const MAX_PORTALS: usize = 16_384;
/// Named prepared statements of a session at one time.
const MAX_STATEMENTS: usize = 16_384;
/// Bytes of a portal beside its parameters.
const PORTAL_BYTES: usize = 4 << 10;
/// Parameters of the unnamed portal that are not accounted for.
const UNNAMED_BYTES_FREE: usize = 1 << 20;
/// Bytes of a prepared statement beside its text, and for each byte of that, parsed and planned.
const STATEMENT_BYTES: usize = 4 << 10;
const PARSED_BYTES: usize = 32;

/// A statement bound to parameters.
#[derive(Default)]
pub struct Portal {
    /// The statement; None: an empty one, or the portal is closed.
    pub prepared: Option<Prepared>,
    /// Its plan, if it has one.
    pub planned: Option<Arc<Planned>>,
    /// Parameters.
    pub params: Vec<Datum>,
    /// Result formats.
    pub formats: Vec<Format>,
    /// Where it stands.
    pub cursor: Cursor,
    /// What its statement sees, while it is suspended or waits to begin; None: the transaction has taken no snapshot
    /// since Bind.
    pub view: Option<Reader>,
    /// Memory that it holds while it is open.
    pub memory: Option<Charge>,
    /// Memory of rows that wait for its next execution, beside what its cursor accounts for.
    pub rows: Option<Charge>,
    /// Savepoints that there were at Bind: a portal does not survive the return to one of before.
    pub depth: usize,
    /// Whether Bind made it (an empty statement has neither plan nor statement). One that is not open holds nothing.
    pub open: bool,
}

impl Portal {
    /// Forgets everything but the memory.
    pub fn close(&mut self) {
        if self.open {
            self.prepared = None;
            self.planned = None;
            self.cursor = Cursor::Start;
            self.view = None;
            self.memory = None;
            self.rows = None;
            self.params.clear();
            self.open = false;
        }
    }

    /// Ids of the tables that it reads, unless it is at its end.
    fn tables(&self) -> &[u32] {
        match (&self.cursor, self.planned.as_ref().map(|planned| &planned.plan)) {
            (Cursor::Done, _) => &[],
            (Cursor::Foreign(rows), _) => rows.tables(),
            (_, Some(Plan::Select(select))) => select
                .access
                .as_ref()
                .map_or(&[], |access| std::slice::from_ref(&access.table.id)),
            _ => &[],
        }
    }

    /// A query that has not begun, and does not know its snapshot.
    fn is_fresh(&self) -> bool {
        self.view.is_none()
            && matches!(self.cursor, Cursor::Start)
            && self.planned.as_ref().is_some_and(|planned| reads(&planned.plan))
    }
}

impl Session {
    /// `Parse`. Type ids of 0, or missing ones, are inferred.
    pub fn parse(&mut self, name: &str, text: &str, types: &[u32]) -> Result<()> {
        self.parse_named(name, text, types).map_err(|e| self.failed(e))
    }

    fn parse_named(&mut self, name: &str, text: &str, types: &[u32]) -> Result<()> {
        if !name.is_empty() && self.prepared.contains_key(name) {
            return Err(SqlError::new(
                code::DUPLICATE_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let mut statements = self.statements(text, types)?;
        if statements.len() > 1 {
            return Err(SqlError::new(
                code::SYNTAX_ERROR,
                "cannot insert multiple commands into a prepared statement",
            ));
        }
        if let Some(prepared) = statements.first_mut() {
            self.enter(&prepared.parsed)?;
            if has_plan(prepared.statement()) {
                self.plan(prepared)?;
            }
        }
        let named = statements.first().cloned();
        self.keep(text, statements);
        let prepared = named.unwrap_or_else(Prepared::empty);
        if name.is_empty() {
            self.unnamed = Some(prepared);
        } else {
            let memory = Some(self.room_for_statement(name, text)?);
            self.prepared.insert(name.to_string(), Prepared { memory, ..prepared });
        }
        Ok(())
    }

    /// `Bind`.
    pub fn bind(&mut self, portal: &str, statement: &str, bind: Bind<'_>) -> Result<()> {
        let done = self.bind_portal(portal, statement, bind);
        done.map_err(|e| self.failed(e))
    }

    fn bind_portal(&mut self, name: &str, statement: &str, bind: Bind<'_>) -> Result<()> {
        let mut prepared = self.take_statement(statement)?;
        let mut portal = if name.is_empty() {
            std::mem::take(&mut self.unnamed_portal)
        } else {
            Portal::default()
        };
        portal.close();
        let bind_bytes = bind.bytes() + name.len();
        portal.open = true;
        let done = self.fill_portal(&mut portal, &mut prepared, bind);
        self.put_statement(statement, prepared);
        if done.is_err() {
            portal.close();
        }
        portal.depth = self.savepoints.len();
        if portal.open && (!name.is_empty() || bind_bytes > UNNAMED_BYTES_FREE) {
            portal.memory = Some(self.room_for_portal(bind_bytes)?);
        }
        if portal.open && portal.is_fresh() {
            // A query sees what is committed at Bind, whenever it is executed.
            self.take_snapshot();
            (self.any_fresh, self.queried) = (true, true);
        }
        if name.is_empty() {
            self.unnamed_portal = portal;
            return done;
        }
        done?;
        if self.portals.contains_key(name) {
            return Err(SqlError::new(
                code::DUPLICATE_CURSOR,
                format!("cursor \"{name}\" already exists"),
            ));
        }
        self.portals.insert(name.to_string(), portal);
        Ok(())
    }

    fn fill_portal(&mut self, portal: &mut Portal, prepared: &mut Prepared, bind: Bind<'_>) -> Result<()> {
        self.enter(&prepared.parsed)?;
        portal.prepared = Some(prepared.clone());
        portal.formats.clear();
        portal.formats.extend(bind.result_formats());
        portal.params.clear();
        let mut wanted: &[_] = &[];
        let planned;
        if has_plan(prepared.statement()) {
            let before = prepared.compiled.as_ref().map(|c| c.planned.clone());
            planned = self.plan(prepared)?;
            if before.is_some_and(|b| !Arc::ptr_eq(&b, &planned) && b.fields != planned.fields) {
                return Err(SqlError::new(
                    code::FEATURE_NOT_SUPPORTED,
                    "cached plan must not change result type",
                ));
            }
            portal.planned = Some(planned.clone());
            wanted = &planned.params;
            if bind.len() == wanted.len() {
                let cx = self.env.text_context();
                for (((format, bytes), ty), id) in bind.params().zip(wanted).zip(&planned.param_oids) {
                    portal.params.push(match (bytes, format) {
                        (Some(bytes), Format::Binary) if type_of_oid(*id).is_none() => read_binary_array(bytes, cx)?,
                        _ => read_param(bytes, format, *ty, cx)?,
                    });
                }
                return Ok(());
            }
        }
        if bind.len() != wanted.len() {
            let text = format!(
                "bind message supplies {} parameters, but prepared statement \"\" requires {}",
                bind.len(),
                wanted.len()
            );
            return Err(SqlError::new(code::PROTOCOL_VIOLATION, text));
        }
        Ok(())
    }

    /// A statement by name, taken out; `put_statement` gives it back.
    fn take_statement(&mut self, name: &str) -> Result<Prepared> {
        if name.is_empty() {
            return self.unnamed.take().ok_or_else(|| {
                SqlError::new(
                    code::INVALID_STATEMENT_NAME,
                    "unnamed prepared statement does not exist",
                )
            });
        }
        let missing = || {
            SqlError::new(
                code::INVALID_STATEMENT_NAME,
                format!("prepared statement \"{name}\" does not exist"),
            )
        };
        self.prepared.get(name).cloned().ok_or_else(missing)
    }

    fn put_statement(&mut self, name: &str, prepared: Prepared) {
        if name.is_empty() {
            self.unnamed = Some(prepared);
        } else if let Some(place) = self.prepared.get_mut(name) {
            place.compiled = prepared.compiled;
        }
    }

    /// `Describe` of a statement: ParameterDescription, then RowDescription or NoData.
    pub fn describe_statement(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        let done = self.describe_named(name, out);
        done.map_err(|e| self.failed(e))
    }

    fn describe_named(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        let mut prepared = self.take_statement(name)?;
        let done = self.describe_prepared(&mut prepared, out);
        self.put_statement(name, prepared);
        done
    }

    fn describe_prepared(&mut self, prepared: &mut Prepared, out: &mut dyn Output) -> Result<()> {
        self.enter(&prepared.parsed)?;
        if !has_plan(prepared.statement()) {
            out.parameter_description(&[])?;
            return give_fields(&self.unplanned_fields(&prepared.parsed.statement), &[], out);
        }
        let planned = self.plan(prepared)?;
        out.parameter_description(&planned.param_oids)?;
        give_fields(&planned.fields, &[], out)
    }

    /// `Describe` of a portal: RowDescription or NoData.
    pub fn describe_portal(&mut self, name: &str, out: &mut dyn Output) -> Result<()> {
        let portal = if name.is_empty() {
            Some(&self.unnamed_portal)
        } else {
            self.portals.get(name)
        };
        let done = match portal.filter(|p| p.open) {
            None => Err(no_portal(name)),
            Some(Portal {
                planned: Some(planned),
                formats,
                ..
            }) => give_fields(&planned.fields, formats, out),
            Some(Portal {
                prepared: Some(prepared),
                formats,
                ..
            }) => give_fields(&self.unplanned_fields(&prepared.parsed.statement), formats, out),
            Some(_) => out.no_data(),
        };
        done.map_err(|e| self.failed(e))
    }

    /// `Execute`; `max_rows` 0 is without limit.
    pub fn execute(&mut self, name: &str, max_rows: u32, out: &mut dyn Output) -> Result<()> {
        let taken = if name.is_empty() {
            Some(std::mem::take(&mut self.unnamed_portal))
        } else {
            self.portals.remove(name)
        };
        let Some(mut portal) = taken.filter(|p| p.open) else {
            return Err(self.failed(no_portal(name)));
        };
        let refused = self.state == State::Failed;
        self.several = false;
        let done = self.watch().and_then(|watch| {
            let done = self.execute_portal(&mut portal, max_rows, out);
            self.unwatch_unless_copying(watch, done)
        });
        self.give_up_snapshot();
        match done {
            Ok(()) => {
                if name.is_empty() {
                    self.unnamed_portal = portal;
                } else if self.tx.is_active() {
                    self.portals.insert(name.to_string(), portal);
                }
                Ok(())
            }
            Err(error) => {
                if !refused {
                    portal.close();
                }
                if name.is_empty() {
                    self.unnamed_portal = portal;
                } else if portal.open {
                    self.portals.insert(name.to_string(), portal);
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
                self.run_unplanned(&prepared.parsed.clone(), false, &formats, out)
            }
        });
        portal.prepared = Some(prepared);
        done
    }

    /// Memory for one more portal. Errors: 53400, there are too many; 53200, the session may hold no more.
    fn room_for_portal(&self, bytes: usize) -> Result<Charge> {
        if self.portals.len() >= MAX_PORTALS {
            return Err(self.too_many("portals", MAX_PORTALS, "Close those that are not needed."));
        }
        self.charge(PORTAL_BYTES + 2 * bytes)
    }

    /// Memory for one more named statement. Errors: as for portals.
    pub(super) fn room_for_statement(&self, name: &str, text: &str) -> Result<Arc<Charge>> {
        if self.prepared.len() >= MAX_STATEMENTS {
            return Err(self.too_many(
                "prepared statements",
                MAX_STATEMENTS,
                "Close or deallocate those that are not needed.",
            ));
        }
        self.charge(STATEMENT_BYTES + name.len() + PARSED_BYTES * text.len())
            .map(Arc::new)
    }

    pub(super) fn charge(&self, bytes: usize) -> Result<Charge> {
        let mut charge = Charge::new(&self.env.memory);
        charge.grow(bytes)?;
        Ok(charge)
    }

    #[cold]
    pub(super) fn too_many(&self, what: &str, limit: usize, hint: &str) -> SqlError {
        let text = format!(
            "{} has {limit} {what}, as many as it may",
            holder(self.env.pid, &self.env.user)
        );
        SqlError::new(code::CONFIGURATION_LIMIT, text).with_hint(hint)
    }

    /// The transaction is about to take a new snapshot: queries that were bound before, and have not begun, keep the
    /// one of their Bind, and see none of what is changed later.
    pub(super) fn give_views(&mut self) {
        self.any_fresh = false;
        let portals = self.portals.values_mut().chain([&mut self.unnamed_portal]);
        for portal in portals.filter(|portal| portal.is_fresh()) {
            portal.view = Some(self.tx.reader().clone());
        }
    }

    /// Before a definition: it may not change a table that an open portal reads.
    pub(super) fn note_tables_in_use(&mut self) {
        let portals = self.portals.values().chain([&self.unnamed_portal]);
        let tables = portals.flat_map(|portal| portal.tables().iter().copied()).collect();
        self.tx.set_in_use(tables);
    }

    /// The portals made behind the `depth`th savepoint go.
    pub(super) fn drop_portals_behind(&mut self, depth: usize) {
        self.portals.retain(|_, portal| portal.depth < depth);
        if self.unnamed_portal.depth >= depth {
            self.unnamed_portal.close();
        }
    }

    /// Savepoints from the `at`th on are released: portals made behind them are of the transaction around.
    pub(super) fn keep_portals_behind(&mut self, at: usize) {
        let portals = self.portals.values_mut().chain([&mut self.unnamed_portal]);
        portals.for_each(|portal| portal.depth = portal.depth.min(at));
    }

    /// `Close` of a statement; an unknown name is no error.
    pub fn close_statement(&mut self, name: &str) {
        if name.is_empty() {
            self.unnamed = None;
        } else {
            self.prepared.remove(name);
        }
    }

    /// `Close` of a portal; an unknown name is no error.
    pub fn close_portal(&mut self, name: &str) {
        if name.is_empty() {
            self.unnamed_portal.close();
        } else {
            self.portals.remove(name);
        }
    }

    /// `Sync`: commits what is not inside an explicit transaction. ReadyForQuery follows, after ErrorResponse on `Err`.
    /// Call it also after an error, where skipping ends.
    pub fn sync(&mut self) -> Result<()> {
        if self.state != State::Implicit {
            self.give_up_snapshot();
            return Ok(());
        }
        self.end_implicit().map_err(|e| self.failed(e))
    }
}

fn give_fields(fields: &[crate::output::Field], formats: &[Format], out: &mut dyn Output) -> Result<()> {
    if fields.is_empty() {
        out.no_data()
    } else {
        out.row_description(fields, Formats(formats))
    }
}

#[cold]
fn no_portal(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}
