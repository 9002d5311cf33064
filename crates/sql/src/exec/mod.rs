//! Running plans: rows come from the engine, pass the plan's expressions, and go to a sink.

mod change;
mod extremes;
pub mod found;
mod groups;
pub mod keys;
mod order;
pub mod row;
pub mod rows;
pub mod select;
pub mod sink;
pub mod texts;
pub mod together;
mod top;
pub mod write;

use crate::env::SessionEnv;
use crate::error::{Result, SqlError};
use crate::expr::{Env, Input};
use crate::hook::{Analytics, ForeignQuery, Rows, Scope};
use crate::plan::row::Profile;
use cenote_engine::{ColumnType, Datum, RowBatch, Tx};
use sqlparser::ast::Query;
use std::sync::Arc;

/// Memory that statements of a session use again and again.
#[derive(Default)]
pub struct Scratch {
    /// A key.
    pub key: Vec<u8>,
    /// A row.
    pub row: Vec<u8>,
    /// A new row.
    pub new_row: Vec<u8>,
    /// Rows of a scan.
    pub batch: RowBatch,
    /// Texts to sort.
    pub texts: texts::Texts,
}

/// One run of a statement.
pub struct Run<'a> {
    /// The transaction.
    pub tx: &'a mut Tx,
    /// The session.
    pub session: &'a SessionEnv,
    /// Parameters.
    pub params: &'a [Datum],
    /// Their type ids.
    pub param_oids: &'a [u32],
    /// Reused memory.
    pub scratch: &'a mut Scratch,
    /// Takes what the short path refuses.
    pub analytics: Option<&'a Arc<dyn Analytics>>,
    /// Measures the row executor's nodes.
    pub profile: Option<&'a Profile>,
    /// The statement, if it is a query: analytics may take it over from the row executor.
    pub query: Option<&'a Query>,
}

impl Run<'_> {
    /// The environment over an input row.
    pub fn env<'e>(&'e self, input: Input<'e>) -> Env<'e> {
        Env {
            params: self.params,
            input,
            outer: &[],
            session: self.session,
            sequences: None,
            subqueries: None,
        }
    }

    /// Starts a query of another shape.
    ///
    /// # Errors
    /// 0A000: there is no analytics, or it does not know the query's shape.
    pub fn foreign(&self, query: &ForeignQuery) -> Result<Box<dyn Rows>> {
        let analytics = self
            .analytics
            .ok_or_else(|| SqlError::unsupported("a query of this shape"))?;
        let params: Vec<(Datum, u32)> = self
            .params
            .iter()
            .cloned()
            .zip(self.param_oids.iter().copied())
            .collect();
        analytics.query(&scope(self.tx, self.session), query, &params)
    }
}

/// What analytics may see of a transaction and session.
pub fn scope(tx: &Tx, session: &SessionEnv) -> Scope {
    Scope {
        reader: tx.reader().clone(),
        definitions: tx.definitions(),
        user: session.user.clone(),
        database: session.database.clone(),
        pid: session.pid,
        transaction_time: session.transaction_time,
        statement_time: session.statement_time,
        cancel: session.cancel.clone(),
        settings: session.settings.clone(),
    }
}

/// Types by their ids; text where Cenote has no such type.
pub fn types_of(oids: impl Iterator<Item = u32>) -> Vec<ColumnType> {
    oids.map(|id| crate::types::type_of_oid(id).unwrap_or(ColumnType::Text))
        .collect()
}
