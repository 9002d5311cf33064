//! Portals of a session: statements bound to parameters.
//!
//! Invariants:
//! - A portal that is not open holds nothing.
//! - A query that was bound, and has not begun, sees what was committed at its Bind: before the transaction takes
//!   another snapshot, such portals get a view of the former one ([`Portals::give_views`]).
//! - A portal does not survive the return to a savepoint that is older than itself.

use super::prepared::Prepared;
use crate::error::{Result, SqlError, code};
use crate::exec::select::Cursor;
use crate::output::Format;
use crate::plan::{Plan, Planned};
use cenote_engine::{Charge, Datum, Reader};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Named portals of a session at one time.
pub const MAX_PORTALS: usize = 16_384;

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
            (_, Some(Plan::Rows(plan))) => &plan.tables,
            (_, Some(Plan::Select(select))) => select
                .access
                .as_ref()
                .map_or(&[], |access| std::slice::from_ref(&access.table.id)),
            _ => &[],
        }
    }

    /// A query that has not begun, and does not know its snapshot.
    pub fn is_fresh(&self) -> bool {
        self.view.is_none()
            && matches!(self.cursor, Cursor::Start)
            && self.planned.as_ref().is_some_and(|planned| planned.plan.reads())
    }
}

/// The portals of a session.
#[derive(Default)]
pub struct Portals {
    /// In an order, so that a simulated session does the same each time.
    named: BTreeMap<String, Portal>,
    unnamed: Portal,
    /// Whether a query may have been bound that has not begun.
    any_fresh: bool,
}

impl Portals {
    /// Number of named portals.
    pub fn named_count(&self) -> usize {
        self.named.len()
    }

    /// A portal that is open.
    ///
    /// # Errors
    /// 34000: no portal of this name is open.
    pub fn get(&self, name: &str) -> Result<&Portal> {
        let portal = match name.is_empty() {
            true => Some(&self.unnamed),
            false => self.named.get(name),
        };
        portal.filter(|portal| portal.open).ok_or_else(|| no_portal(name))
    }

    /// A portal, taken out to be executed; [`put`](Self::put) gives it back.
    ///
    /// # Errors
    /// 34000: no portal of this name is open.
    pub fn take(&mut self, name: &str) -> Result<Portal> {
        let taken = match name.is_empty() {
            true => Some(std::mem::take(&mut self.unnamed)),
            false => self.named.remove(name),
        };
        taken.filter(|portal| portal.open).ok_or_else(|| no_portal(name))
    }

    /// Gives a portal back, or adds it.
    pub fn put(&mut self, name: &str, portal: Portal) {
        match name.is_empty() {
            true => self.unnamed = portal,
            false => drop(self.named.insert(name.to_string(), portal)),
        }
    }

    /// A closed portal to be filled by Bind: the unnamed one keeps its memory.
    pub fn take_closed(&mut self, name: &str) -> Portal {
        let mut portal = match name.is_empty() {
            true => std::mem::take(&mut self.unnamed),
            false => Portal::default(),
        };
        portal.close();
        portal
    }

    /// Refuses a name that is in use.
    ///
    /// # Errors
    /// 42P03: a named portal has this name.
    pub fn require_new(&self, name: &str) -> Result<()> {
        if self.named.contains_key(name) {
            let text = format!("cursor \"{name}\" already exists");
            return Err(SqlError::new(code::DUPLICATE_CURSOR, text));
        }
        Ok(())
    }

    /// A query was bound that has not begun.
    pub fn note_fresh(&mut self) {
        self.any_fresh = true;
    }

    /// The transaction is about to take a new snapshot, or to give its own up: queries that were bound before, and have
    /// not begun, keep the one of their Bind, and see none of what is changed later.
    #[inline]
    pub fn give_views(&mut self, reader: impl Fn() -> Reader) {
        if !self.any_fresh {
            return;
        }
        self.any_fresh = false;
        for portal in self.all_mut().filter(|portal| portal.is_fresh()) {
            portal.view = Some(reader());
        }
    }

    /// Whether a portal is open that has a name, has rows to give still, or waits to begin.
    pub fn is_any_suspended(&self) -> bool {
        let unnamed = &self.unnamed;
        let waits = match unnamed.cursor {
            // A command without a plan stays there.
            Cursor::Start => unnamed.planned.is_some(),
            Cursor::Done => false,
            _ => true,
        };
        unnamed.open && waits || !self.named.is_empty()
    }

    /// Ids of the tables that open portals read.
    pub fn tables<B: FromIterator<u32>>(&self) -> B {
        let portals = self.named.values().chain([&self.unnamed]);
        portals.flat_map(|portal| portal.tables().iter().copied()).collect()
    }

    /// The portals made behind the `depth`th savepoint go.
    pub fn drop_behind(&mut self, depth: usize) {
        self.named.retain(|_, portal| portal.depth < depth);
        if self.unnamed.depth >= depth {
            self.unnamed.close();
        }
    }

    /// Savepoints from the `at`th on are released: portals made behind them are of the transaction around.
    pub fn keep_behind(&mut self, at: usize) {
        self.all_mut().for_each(|portal| portal.depth = portal.depth.min(at));
    }

    /// Closes one portal; whether there was a named one.
    pub fn close(&mut self, name: &str) -> bool {
        if name.is_empty() {
            self.unnamed.close();
            return false;
        }
        self.close_cursor(name)
    }

    /// Closes the unnamed portal.
    #[inline]
    pub fn close_unnamed(&mut self) {
        self.unnamed.close();
    }

    /// Closes a named portal; whether there was one.
    pub fn close_cursor(&mut self, name: &str) -> bool {
        self.named.remove(name).is_some()
    }

    /// Closes all named portals.
    pub fn close_cursors(&mut self) {
        self.named.clear();
    }

    /// Closes all portals.
    #[inline]
    pub fn close_all(&mut self) {
        if !self.named.is_empty() {
            self.named.clear();
        }
        self.unnamed.close();
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Portal> {
        self.named.values_mut().chain([&mut self.unnamed])
    }
}

#[cold]
fn no_portal(name: &str) -> SqlError {
    SqlError::new(code::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}
