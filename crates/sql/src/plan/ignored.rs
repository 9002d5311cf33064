//! What the parser takes and analytics would leave out: the answer would have other rows, so it is refused.

use crate::error::{Result, SqlError};
use sqlparser::ast::{Query, TableFactor, Visit, Visitor};
use std::ops::ControlFlow;

/// Whether analytics carries out all that the query says.
///
/// # Errors
/// 0A000: it would leave this out.
pub fn refuse_ignored(query: &Query) -> Result<()> {
    match query.visit(&mut Look) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(what) => Err(SqlError::unsupported(what)),
    }
}

struct Look;

impl Visitor for Look {
    type Break = &'static str;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Self::Break> {
        match &query.fetch {
            Some(fetch) if fetch.with_ties => ControlFlow::Break("FETCH WITH TIES in a query of this shape"),
            Some(fetch) if fetch.percent => ControlFlow::Break("FETCH of a percentage"),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Self::Break> {
        match factor {
            TableFactor::Table { sample: Some(_), .. } => ControlFlow::Break("TABLESAMPLE"),
            _ => ControlFlow::Continue(()),
        }
    }
}
