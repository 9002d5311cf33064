//! Queries that WITH names. One that is named once is planned in place, as PostgreSQL does it; one that is named
//! several times, or calls what gives other values each time, is run once, as far as its rows are asked for, and they
//! are kept.

use super::block::{is_volatile, reads_only};
use super::{Node, RowPlanner};
use crate::error::{SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Binder, Bound, shape};
use crate::names::{fold, qualified};
use cenote_engine::ColumnType;
use sqlparser::ast::{Cte, CteAsMaterialized, Query, TableFactor, Visit, Visitor, With};
use std::ops::ControlFlow;

/// A WITH query whose rows are kept for all readers. It runs on a tuple of its own.
#[derive(Debug)]
pub struct Common {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub node: Node,
    /// What of them is kept.
    pub values: Vec<Expr>,
}

/// A query that WITH names, as the names of a block know it.
#[derive(Clone)]
pub(super) struct Named<'a> {
    pub name: String,
    /// Names that it gives its columns.
    pub columns: Vec<String>,
    pub query: &'a Query,
    /// The clause around the query whose WITH it is.
    pub around: Option<&'a Binder<'a>>,
    /// Its rows are kept.
    pub kept: Option<Kept>,
}

/// What readers know of kept rows.
#[derive(Clone)]
pub(super) struct Kept {
    /// Which of the plan's.
    pub at: u16,
    pub columns: Vec<(String, ColumnType)>,
    pub rows: f64,
}

impl RowPlanner<'_> {
    /// The names of the queries around, then those of this WITH.
    pub(super) fn named<'a>(
        &self,
        query: &'a Query,
        around: Option<&'a Binder<'a>>,
        known: &[Named<'a>],
    ) -> Bound<Vec<Named<'a>>> {
        let mut all = known.to_vec();
        let Some(with) = &query.with else { return Ok(all) };
        if with.recursive {
            return shape("WITH RECURSIVE");
        }
        for (at, cte) in with.cte_tables.iter().enumerate() {
            if !reads_only(&cte.query.body) {
                return shape("a statement that writes in WITH");
            }
            let name = fold(&cte.alias.name);
            if all[known.len()..].iter().any(|c| c.name == name) {
                let text = format!("WITH query name \"{name}\" specified more than once");
                return Err(SqlError::new(code::DUPLICATE_ALIAS, text).into());
            }
            let kept = self.kept(cte, references(&name, with, at, query), around, &all)?;
            all.push(Named {
                name,
                columns: cte.alias.columns.iter().map(|c| fold(&c.name)).collect(),
                query: &cte.query,
                around,
                kept,
            });
        }
        Ok(all)
    }

    /// Plans a query whose rows are kept; None where it is planned in its place.
    fn kept(
        &self,
        cte: &Cte,
        references: usize,
        around: Option<&Binder<'_>>,
        all: &[Named<'_>],
    ) -> Bound<Option<Kept>> {
        let volatile = is_volatile(&cte.query);
        let is_kept = volatile
            || match cte.materialized {
                Some(CteAsMaterialized::Materialized) => true,
                Some(CteAsMaterialized::NotMaterialized) => false,
                None => references > 1,
            };
        if references > 0 && !is_kept {
            return Ok(None);
        }
        // One that nothing names is checked all the same.
        let known = self.planner.params.known();
        let block = self.query(&cte.query, around, all)?;
        if references == 0 {
            return Ok(None);
        }
        if !block.outer.is_empty() {
            return match volatile {
                true => shape("a volatile function in a WITH that reads the row around it"),
                false => {
                    // It is planned anew in its place: a parameter is as open as it was.
                    self.planner.params.restore(known);
                    Ok(None)
                }
            };
        }
        self.spend(block.cost);
        let mut commons = self.commons.borrow_mut();
        let Ok(at) = u16::try_from(commons.len()) else {
            return shape("so many WITH queries");
        };
        let kept = Kept {
            at,
            columns: block.outputs.iter().map(|o| (o.name.clone(), o.ty)).collect(),
            rows: block.node.rows,
        };
        commons.push(Common {
            name: fold(&cte.alias.name),
            node: block.node,
            values: block.outputs.into_iter().map(|o| o.expr).collect(),
        });
        Ok(Some(kept))
    }
}

/// How often the query, and what WITH names behind this one, reads from the name.
fn references(name: &str, with: &With, at: usize, query: &Query) -> usize {
    let mut look = References { name, count: 0 };
    for later in &with.cte_tables[at + 1..] {
        let _ = later.query.visit(&mut look);
    }
    let _ = query.body.visit(&mut look);
    let _ = query.order_by.visit(&mut look);
    let _ = query.limit_clause.visit(&mut look);
    look.count
}

struct References<'n> {
    name: &'n str,
    count: usize,
}

impl Visitor for References<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, .. } = factor
            && let Ok((None, bare)) = qualified(name)
            && bare == self.name
        {
            self.count += 1;
        }
        ControlFlow::Continue(())
    }
}
