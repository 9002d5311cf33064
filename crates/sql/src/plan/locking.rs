//! SELECT ... FOR UPDATE of the shapes that analytics reads.
//!
//! Analytics takes no locks. So the primary keys of the rows are found first, a query for each table, their rows are
//! locked, and then the query runs. Where a row had changed meanwhile, keys are found again on a new snapshot, with the
//! locks kept. LIMIT does not bound what is locked: analytics promises no order among equals.

use super::{Plan, Planner};
use crate::error::SqlError;
use crate::expr::bind::{Bound, Refusal};
use crate::hook::ForeignQuery;
use crate::names::{fold, qualified};
use crate::plan::select::{has_aggregate, lock_strength};
use cenote_engine::{LockStrength, Table, Wait};
use sqlparser::ast::{
    GroupByExpr, JoinOperator, LockClause, NonBlock, Query, Select, SetExpr, TableFactor, TableWithJoins, Visit,
    Visitor,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A query whose rows are locked.
#[derive(Debug)]
pub struct LockingPlan {
    /// What is read once the rows are locked.
    pub query: Box<ForeignQuery>,
    /// What is locked.
    pub targets: Vec<LockTarget>,
}

/// Rows of one table to lock.
#[derive(Debug)]
pub struct LockTarget {
    /// The table.
    pub table: Arc<Table>,
    /// Gives the primary keys.
    pub keys: ForeignQuery,
    /// How strongly.
    pub strength: LockStrength,
    /// What to do where another holds the lock.
    pub wait: Wait,
}

/// A table in FROM.
struct Named<'q> {
    factor: &'q TableFactor,
    alias: String,
    /// An outer join may give NULLs for it.
    nullable: bool,
}

impl Planner<'_> {
    /// The plan of a query that analytics reads, with the locks that it asks for.
    pub fn read_by_analytics(&self, query: &Query) -> Bound<Plan> {
        if query.locks.is_empty() && !locks_inside(query) {
            return Ok(Plan::Foreign(Box::new(ForeignQuery::new(query.clone()))));
        }
        let SetExpr::Select(select) = &*query.body else {
            return refuse("FOR UPDATE of a query that is not a plain SELECT");
        };
        let grouped = !matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
        if grouped || select.having.is_some() || select.distinct.is_some() || has_aggregate(select, query) {
            return refuse("FOR UPDATE with DISTINCT, GROUP BY, HAVING or aggregate functions");
        }
        if locks_inside(query) {
            return refuse("FOR UPDATE in a subquery");
        }
        let from = named_tables(&select.from);
        let mut targets = Vec::new();
        for lock in &query.locks {
            self.targets_of(lock, query, select, &from, &mut targets)?;
        }
        let mut query = query.clone();
        query.locks.clear();
        let query = Box::new(ForeignQuery::new(query));
        Ok(Plan::Locking(Box::new(LockingPlan { query, targets })))
    }

    fn targets_of(
        &self,
        lock: &LockClause,
        query: &Query,
        select: &Select,
        from: &[Named<'_>],
        targets: &mut Vec<LockTarget>,
    ) -> Bound<()> {
        let wait = match lock.nonblock {
            None => Wait::Block,
            Some(NonBlock::Nowait) => Wait::NoWait,
            Some(NonBlock::SkipLocked) => return refuse("SKIP LOCKED in a query of this shape"),
        };
        let of = lock.of.as_ref().map(qualified).transpose()?.map(|(_, name)| name);
        let chosen: Vec<&Named<'_>> = from
            .iter()
            .filter(|n| of.as_ref().is_none_or(|of| *of == n.alias))
            .collect();
        if let Some(of) = of
            && chosen.is_empty()
        {
            let text = format!(
                "relation \"{of}\" in FOR {} clause not found in FROM clause",
                lock.lock_type
            );
            return Err(SqlError::new(crate::error::code::UNDEFINED_TABLE, text).into());
        }
        for named in chosen {
            let TableFactor::Table { name, args: None, .. } = named.factor else {
                return refuse("FOR UPDATE of a subquery or function in FROM");
            };
            let (_, name) = qualified(name)?;
            let Some(table) = self.tx.table(&name).map_err(SqlError::from)? else {
                return refuse("FOR UPDATE of what is no table");
            };
            if named.nullable {
                return refuse("FOR UPDATE of the nullable side of an outer join");
            }
            let keys = ForeignQuery::new(key_query(query, select, named, &table)?);
            targets.push(LockTarget {
                table,
                keys,
                strength: lock_strength(lock),
                wait,
            });
        }
        Ok(())
    }
}

/// The primary keys of the rows of one table that the query reads.
fn key_query(query: &Query, select: &Select, named: &Named<'_>, table: &Table) -> Bound<Query> {
    let Some(primary) = &table.primary_key else {
        return refuse("FOR UPDATE of a table without a primary key in a query of this shape");
    };
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let column = |c: &usize| format!("{}.{}", quoted(&named.alias), quoted(&table.columns[*c].name));
    let list: Vec<String> = primary.columns.iter().map(column).collect();
    let from: Vec<String> = select.from.iter().map(ToString::to_string).collect();
    let with = query.with.as_ref().map_or(String::new(), |w| format!("{w} "));
    let condition = select
        .selection
        .as_ref()
        .map_or(String::new(), |c| format!(" WHERE {c}"));
    let text = format!("{with}SELECT {} FROM {}{condition}", list.join(", "), from.join(", "));
    Ok(crate::parse::parse_query(&text)?)
}

fn named_tables(from: &[TableWithJoins]) -> Vec<Named<'_>> {
    let mut all = Vec::new();
    for item in from {
        let start = all.len();
        all.push(named(&item.relation, false));
        for join in &item.joins {
            let (left, right) = match &join.join_operator {
                JoinOperator::Left(_) | JoinOperator::LeftOuter(_) => (false, true),
                JoinOperator::Right(_) | JoinOperator::RightOuter(_) => (true, false),
                JoinOperator::FullOuter(_) => (true, true),
                _ => (false, false),
            };
            all[start..].iter_mut().for_each(|n: &mut Named<'_>| n.nullable |= left);
            all.push(named(&join.relation, right));
        }
    }
    all
}

fn named(factor: &TableFactor, nullable: bool) -> Named<'_> {
    let alias = match factor {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            fold(&alias.name)
        }
        TableFactor::Table { name, .. } => qualified(name).map(|(_, name)| name).unwrap_or_default(),
        _ => String::new(),
    };
    Named {
        factor,
        alias,
        nullable,
    }
}

/// Whether a query inside of this one asks for locks.
fn locks_inside(query: &Query) -> bool {
    struct Look(usize);
    impl Visitor for Look {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            self.0 += usize::from(!query.locks.is_empty());
            ControlFlow::Continue(())
        }
    }
    let mut look = Look(0);
    let _ = query.visit(&mut look);
    look.0 > usize::from(!query.locks.is_empty())
}

fn refuse<T>(what: &str) -> Bound<T> {
    Err(Refusal::Error(SqlError::unsupported(what)))
}
