//! What names mean in one block of a query: relations of its FROM, then those of the blocks around it.

use super::common::Named;
use super::subquery::slots_of;
use super::window::Window;
use super::{RowPlanner, SlotNumber};
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Binder, Bound, Grouping, Names, Typed, undefined_column};
use crate::expr::windows::NamedWindows;
use crate::names::fold;
use cenote_engine::{ColumnType, Table};
use sqlparser::ast::{self, Ident};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A column of a relation.
#[derive(Clone)]
pub(super) struct RelationColumn {
    pub name: String,
    pub ty: ColumnType,
    pub slot: SlotNumber,
    /// The table's column that it is.
    pub source: Option<(Arc<Table>, usize)>,
    /// USING and NATURAL made it one with a column of another relation: its bare name does not find it, nor does `*`.
    pub merged: bool,
}

/// A relation of FROM.
pub(super) struct Relation {
    pub alias: String,
    pub columns: Vec<RelationColumn>,
}

/// The names of one block.
pub(super) struct Scope<'a> {
    pub rows: &'a RowPlanner<'a>,
    /// The clause of the block around it in which this one stands.
    pub around: Option<&'a Binder<'a>>,
    pub relations: RefCell<Vec<Relation>>,
    /// ON sees the relations from this one on.
    pub visible_from: Cell<usize>,
    /// Columns of `*`: relation and column.
    pub star: RefCell<Vec<(usize, usize)>>,
    /// Slots of the blocks around that are read.
    pub outer: RefCell<BTreeSet<SlotNumber>>,
    /// Window functions, and whether the clause takes them.
    pub windows: RefCell<Vec<Window>>,
    pub takes_windows: Cell<bool>,
    /// Windows that WINDOW names.
    pub window_names: NamedWindows,
    /// What WITH names, the innermost last.
    pub common: Vec<Named<'a>>,
}

impl<'a> Scope<'a> {
    pub fn new(rows: &'a RowPlanner<'a>, around: Option<&'a Binder<'a>>, common: Vec<Named<'a>>) -> Scope<'a> {
        Scope {
            rows,
            around,
            relations: RefCell::default(),
            visible_from: Cell::new(0),
            star: RefCell::default(),
            outer: RefCell::default(),
            windows: RefCell::default(),
            takes_windows: Cell::new(false),
            window_names: NamedWindows::default(),
            common,
        }
    }

    /// A binder for a clause of this block.
    pub fn binder<'b>(&'b self, sequence: &'b dyn Fn(&str) -> crate::error::Result<u32>) -> Binder<'b> {
        Binder {
            names: Some(self),
            ..self.rows.planner.binder(None, sequence)
        }
    }

    /// Finds a column among this block's relations; the relation and column.
    pub fn find(&self, qualifier: Option<&str>, name: &str, place: u32) -> Bound<Option<(usize, usize)>> {
        let relations = self.relations.borrow();
        let mut found = None;
        for (at, relation) in relations.iter().enumerate().skip(self.visible_from.get()) {
            if qualifier.is_some_and(|q| q != relation.alias) {
                continue;
            }
            for (column, definition) in relation.columns.iter().enumerate() {
                if definition.name != name || qualifier.is_none() && definition.merged {
                    continue;
                }
                if found.replace((at, column)).is_some() {
                    let text = format!("column reference \"{name}\" is ambiguous");
                    return Err(SqlError::new(code::AMBIGUOUS_COLUMN, text).at(place).into());
                }
            }
        }
        Ok(found)
    }

    fn has_relation(&self, alias: &str) -> bool {
        self.relations.borrow().iter().any(|r| r.alias == alias)
    }

    /// Whether FROM has the relation, and ON does not see it.
    fn is_hidden(&self, alias: &str) -> bool {
        let relations = self.relations.borrow();
        let mut hidden = relations.iter().take(self.visible_from.get());
        hidden.any(|r| r.alias == alias)
    }

    /// The column in a clause: where that is grouped, a group key, or one that the keys settle.
    fn typed(&self, binder: &Binder<'_>, (relation, column): (usize, usize), place: u32) -> Bound<Typed> {
        let relations = self.relations.borrow();
        let definition = &relations[relation].columns[column];
        self.rows.used.borrow_mut().insert(definition.slot);
        let Some(grouping) = &binder.grouping else {
            return Ok(Typed::new(Expr::Column(definition.slot), definition.ty));
        };
        let mut grouping = grouping.borrow_mut();
        let is_key = |e: &Expr, slot: SlotNumber| matches!(e, Expr::Column(s) if *s == slot);
        let mut at = grouping.bound_keys.iter().position(|k| is_key(k, definition.slot));
        if at.is_none() && settled_by_keys(&relations[relation], &common_keys(&grouping)) {
            // The primary key is grouped by: so the row is, and each of its columns is a key as well, of every set.
            let number = grouping.keys.len();
            at = Some(number);
            grouping.sets.iter_mut().for_each(|set| set.push(number));
            let slot = self.rows.slot()?;
            grouping.key_slots.push(slot);
            grouping.bound_keys.push(Expr::Column(definition.slot));
            grouping.keys.push((
                ast::Expr::Wildcard(ast::helpers::attached_token::AttachedToken::empty()),
                definition.ty,
            ));
        }
        let Some(at) = at else {
            let (alias, name) = (&relations[relation].alias, &definition.name);
            let text = format!(
                "column \"{alias}.{name}\" must appear in the GROUP BY clause or be used in an aggregate function"
            );
            return Err(SqlError::new(code::GROUPING_ERROR, text).at(place).into());
        };
        Ok(Typed::new(Expr::Column(grouping.key_slots[at]), definition.ty))
    }
}

impl Scope<'_> {
    /// The table's column that an expression is as it stands.
    pub(super) fn source_of(&self, expr: &Expr) -> Option<(Arc<Table>, usize)> {
        let Expr::Column(slot) = expr else { return None };
        let relations = self.relations.borrow();
        let mut columns = relations.iter().flat_map(|r| &r.columns);
        columns.find(|c| c.slot == *slot).and_then(|c| c.source.clone())
    }

    /// The columns of `*`, or of `relation.*`.
    pub(super) fn columns_of(&self, relation: Option<&str>) -> Bound<Vec<(usize, usize)>> {
        let relations = self.relations.borrow();
        let Some(relation) = relation else {
            if relations.is_empty() {
                let text = "SELECT * with no tables specified is not valid";
                return Err(SqlError::new(code::SYNTAX_ERROR, text).into());
            }
            return Ok(self.star.borrow().clone());
        };
        match relations.iter().position(|r| r.alias == relation) {
            Some(at) => Ok((0..relations[at].columns.len()).map(|column| (at, column)).collect()),
            None => {
                let text = format!("missing FROM-clause entry for table \"{relation}\"");
                Err(SqlError::new(code::UNDEFINED_TABLE, text).into())
            }
        }
    }

    /// A column by its position, with its name.
    pub(super) fn column_at(&self, binder: &Binder<'_>, at: (usize, usize)) -> Bound<(String, Typed)> {
        let name = self.relations.borrow()[at.0].columns[at.1].name.clone();
        Ok((name, self.typed(binder, at, 0)?))
    }
}

/// The group keys that are in every grouping set.
fn common_keys(grouping: &Grouping) -> Vec<Expr> {
    let in_all = |at: &usize| grouping.sets.iter().all(|set| set.contains(at));
    let keys = grouping.bound_keys.iter().enumerate();
    keys.filter(|(at, _)| in_all(at)).map(|(_, key)| key.clone()).collect()
}

/// Whether the relation is a table all of whose primary key is among the group keys.
fn settled_by_keys(relation: &Relation, keys: &[Expr]) -> bool {
    let Some(primary) = relation
        .columns
        .first()
        .and_then(|c| c.source.as_ref())
        .and_then(|(table, _)| table.primary_key.as_ref())
    else {
        return false;
    };
    let slot_of = |column: usize| {
        let matches = |c: &&RelationColumn| c.source.as_ref().is_some_and(|(_, at)| *at == column);
        relation.columns.iter().find(matches).map(|c| c.slot)
    };
    primary.columns.iter().all(|column| {
        let slot = slot_of(*column);
        keys.iter().any(|k| matches!(k, Expr::Column(s) if Some(*s) == slot))
    })
}

impl Names for Scope<'_> {
    fn column(&self, binder: &Binder<'_>, qualifier: Option<&Ident>, ident: &Ident) -> Bound<Typed> {
        let (name, table) = (fold(ident), qualifier.map(fold));
        let place = self.rows.planner.places().of(qualifier.unwrap_or(ident).span);
        if let Some(found) = self.find(table.as_deref(), &name, place)? {
            return self.typed(binder, found, place);
        }
        let here = table.as_ref().is_some_and(|t| self.has_relation(t));
        if let Some(around) = self.around.filter(|_| !here) {
            let typed = around.column(qualifier, ident)?;
            if let Expr::Column(slot) = &typed.expr {
                self.rows.used.borrow_mut().insert(*slot);
                self.outer.borrow_mut().insert(*slot);
            }
            return Ok(typed);
        }
        match table {
            Some(table) if self.is_hidden(&table) => {
                let text = format!("invalid reference to FROM-clause entry for table \"{table}\"");
                let hint = format!(
                    "There is an entry for table \"{table}\", but it cannot be referenced from this part of the query."
                );
                Err(SqlError::new(code::UNDEFINED_TABLE, text)
                    .with_hint(hint)
                    .at(place)
                    .into())
            }
            Some(table) if !here => {
                let text = format!("missing FROM-clause entry for table \"{table}\"");
                Err(SqlError::new(code::UNDEFINED_TABLE, text).at(place).into())
            }
            table => Err(undefined_column(table.as_deref(), &name, place).into()),
        }
    }

    fn subquery(&self, binder: &Binder<'_>, expr: &ast::Expr) -> Bound<Typed> {
        self.bind_subquery(binder, expr)
    }

    fn window(&self, binder: &Binder<'_>, function: &ast::Function) -> Bound<Typed> {
        self.bind_window(binder, function)
    }

    fn is_all_outer(&self, expr: &Expr) -> bool {
        let mut slots = BTreeSet::new();
        slots_of(expr, &mut slots);
        let relations = self.relations.borrow();
        let is_own = |slot: &SlotNumber| relations.iter().any(|r| r.columns.iter().any(|c| c.slot == *slot));
        !slots.is_empty() && !slots.iter().any(is_own)
    }

    fn new_slot(&self) -> SlotNumber {
        // The count of slots is checked where relations take theirs; aggregates of one statement are few.
        let slot = self.rows.slots.get();
        self.rows.slots.set(slot.saturating_add(1));
        slot
    }
}
