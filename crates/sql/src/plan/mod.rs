//! Plans: what a statement does, settled once and run many times.
//!
//! A plan is good for one version of the catalog. It owns no part of a transaction; a run brings transaction,
//! parameters and session.

pub mod access;
pub mod dml;
pub mod ignored;
pub mod known;
pub mod learned;
pub mod locking;
pub mod row;
pub mod select;
pub mod shown;
pub mod statistics;

use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::expr::bind::{Binder, Bound, Params, Refusal};
use crate::hook::ForeignQuery;
use crate::names::{Places, fold, qualified, span_of};
use crate::output::Field;
use crate::types::{type_len, type_mod, type_oid};
use cenote_base::rt::atomic::AtomicBool;
use cenote_engine::{ColumnType, Table, Tx};
use sqlparser::ast::{ObjectName, TableFactor, TableWithJoins};
use std::sync::{Arc, OnceLock};

/// A statement that reads or writes rows, planned.
#[derive(Debug)]
pub enum Plan {
    /// The short path reads.
    Select(Box<select::SelectPlan>),
    /// The row executor reads.
    Rows(Box<row::RowPlan>),
    /// Analytics reads.
    Foreign(Box<ForeignQuery>),
    /// Analytics reads what is locked first.
    Locking(Box<locking::LockingPlan>),
    /// Rows are added.
    Insert(dml::InsertPlan),
    /// Rows are changed.
    Update(dml::UpdatePlan),
    /// Rows are removed.
    Delete(dml::DeletePlan),
}

impl Plan {
    /// Whether the statement answers with rows even where it has no columns.
    pub fn reads(&self) -> bool {
        matches!(
            self,
            Plan::Select(_) | Plan::Rows(_) | Plan::Foreign(_) | Plan::Locking(_)
        )
    }

    /// The row executor's plan in it.
    pub fn joins(&self) -> Option<&row::RowPlan> {
        match self {
            Plan::Rows(plan) => Some(plan),
            Plan::Insert(insert) => match &insert.source {
                dml::Source::Query(plan, _) => plan.joins(),
                dml::Source::Values(_) => None,
            },
            Plan::Update(update) => update.target.joins(),
            Plan::Delete(delete) => delete.target.joins(),
            _ => None,
        }
    }

    /// Whether a read-only transaction may run it.
    pub fn is_read_only(&self) -> bool {
        match self {
            Plan::Select(select) => select.lock.is_none(),
            Plan::Rows(_) | Plan::Foreign(_) => true,
            _ => false,
        }
    }

    /// The statement's verb, which its command tag begins with.
    pub fn verb(&self) -> &'static str {
        match self {
            Plan::Select(_) | Plan::Rows(_) | Plan::Foreign(_) | Plan::Locking(_) => "SELECT",
            Plan::Insert(_) => "INSERT",
            Plan::Update(_) => "UPDATE",
            Plan::Delete(_) => "DELETE",
        }
    }
}

/// A plan with what clients are told of it.
#[derive(Debug)]
pub struct Planned {
    /// What is done.
    pub plan: Plan,
    /// Types of the parameters.
    pub params: Vec<ColumnType>,
    /// Type ids of the parameters as clients are told.
    pub param_oids: Vec<u32>,
    /// Columns of the result; none where there is no result.
    pub fields: Arc<[Field]>,
    /// Whether other values of the parameters might have given another plan.
    pub by_values: bool,
    /// Steps of a run, as estimated; known where it is compared.
    pub cost: f64,
    /// Analytics was to take a run over, and would answer otherwise. All plans of a statement share it.
    pub stays: Arc<AtomicBool>,
    /// What a run told, where the estimates were wrong.
    pub learned: OnceLock<learned::Learned>,
}

impl Planned {
    /// Whether a run of the other plan takes the same parameters and gives the same columns.
    pub fn answers_like(&self, other: &Planned) -> bool {
        self.params == other.params && self.has_columns_of(other)
    }

    /// Whether a run of the other plan gives the same columns, as a client is told of them.
    pub fn has_columns_of(&self, other: &Planned) -> bool {
        let alike = |(a, b): (&Field, &Field)| {
            a.name == b.name && (a.type_oid, a.type_len, a.type_mod) == (b.type_oid, b.type_len, b.type_mod)
        };
        self.fields.len() == other.fields.len() && self.fields.iter().zip(&*other.fields).all(alike)
    }
}

/// What planning looks at.
pub struct Planner<'a> {
    /// For the catalog.
    pub tx: &'a Tx,
    /// For literals and settings.
    pub session: &'a SessionEnv,
    /// The statement's text, for error positions.
    pub text: &'a str,
    /// Parameter types, filled in as they become known.
    pub params: &'a Params,
    /// Whether another planner takes what the short path refuses.
    pub analytics: bool,
    /// Whether there is one for statements of many rows, asked for this text or for another form of it.
    pub for_many: bool,
    /// Values that estimates may look at.
    pub known: known::Known<'a>,
}

impl<'a> Planner<'a> {
    /// Places in the text.
    pub fn places(&self) -> Places<'a> {
        Places(self.text)
    }

    /// The table of this name; 42P01 where there is none.
    pub fn table(&self, name: &ObjectName) -> Bound<Arc<Table>> {
        let (schema, table) = qualified(name)?;
        let shown = schema.as_ref().map_or(table.clone(), |s| format!("{s}.{table}"));
        if schema.as_deref().is_none_or(|s| s == "public")
            && let Some(found) = self.tx.table(&table)?
        {
            return Ok(found);
        }
        let undefined = SqlError::new(code::UNDEFINED_TABLE, format!("relation \"{shown}\" does not exist"))
            .at(self.places().of(span_of(name)));
        let system = schema
            .as_deref()
            .is_some_and(|s| s == "pg_catalog" || s == "information_schema");
        if system || table.starts_with("pg_") || table.starts_with("cenote_") {
            return Err(Refusal::Shape(undefined));
        }
        Err(undefined.into())
    }

    /// A FROM item that is one table, and the name it goes by.
    pub fn single_table(&self, from: &TableWithJoins) -> Bound<(Arc<Table>, String)> {
        let TableFactor::Table {
            name,
            alias,
            args: None,
            sample: None,
            with_ordinality: false,
            ..
        } = &from.relation
        else {
            return crate::expr::bind::shape("this FROM item");
        };
        if !from.joins.is_empty() || alias.as_ref().is_some_and(|a| !a.columns.is_empty()) {
            return crate::expr::bind::shape("a join");
        }
        let table = self.table(name)?;
        let known_as = alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.name));
        Ok((table, known_as))
    }

    /// A binder over a table (or none).
    pub fn binder<'b>(
        &'b self,
        table: Option<(Arc<Table>, String)>,
        sequence: &'b dyn Fn(&str) -> Result<u32>,
    ) -> Binder<'b> {
        Binder {
            places: self.places(),
            params: self.params,
            session: self.session,
            table,
            excluded: false,
            sequence,
            grouping: None,
            names: None,
        }
    }

    /// Object id of a sequence.
    ///
    /// # Errors
    /// 42P01: no sequence has this name.
    pub fn sequence(&self, name: &str) -> Result<u32> {
        match self.tx.sequence(name)? {
            Some(sequence) => Ok(sequence.id),
            None => Err(SqlError::new(
                code::UNDEFINED_TABLE,
                format!("relation \"{name}\" does not exist"),
            )),
        }
    }
}

/// A result column that is computed.
pub fn computed_field(name: &str, ty: ColumnType) -> Field {
    Field {
        name: name.into(),
        table_oid: 0,
        column: 0,
        type_oid: type_oid(ty),
        type_len: type_len(ty),
        type_mod: type_mod(ty),
    }
}

/// A result column that is a column of a table.
pub fn table_field(name: &str, table: &Table, column: usize) -> Field {
    let ty = table.columns[column].ty;
    Field {
        table_oid: table.id,
        column: column as i16 + 1,
        ..computed_field(name, ty)
    }
}
