//! INSERT, UPDATE and DELETE.
//!
//! Writes go through the engine row by row. The short path finds the rows by keys; where it does not know the
//! condition, analytics finds the primary keys and the new values first.

use super::access::{self, Access};
use super::row::RowPlan;
use super::row::estimate::Estimator;
use super::{Plan, Planner};
use crate::error::{Result, SqlError, code};
use crate::expr::Expr;
use crate::expr::bind::{Binder, Bound, Refusal, Typed, strip};
use crate::hook::ForeignQuery;
use crate::names::{fold, qualified};
use crate::output::Field;
use crate::parse::parse_expression;
use crate::types::cast::Context;
use cenote_engine::{ColumnType, Columns, Datum, Table};
use sqlparser::ast::{
    self, AssignmentTarget, ConflictTarget, FromTable, OnConflictAction, OnInsert, Query, SetExpr, Spanned,
    TableFactor, TableObject, TableWithJoins, UpdateTableFromKind,
};
use sqlparser::tokenizer::Span;
use std::sync::Arc;

/// INSERT.
#[derive(Debug)]
pub struct InsertPlan {
    /// The table.
    pub table: Arc<Table>,
    /// Where rows come from.
    pub source: Source,
    /// ON CONFLICT.
    pub conflict: Option<Conflict>,
    /// RETURNING.
    pub returning: Vec<Expr>,
}

/// Rows to insert: an expression for each column of the table.
#[derive(Debug)]
pub enum Source {
    /// VALUES.
    Values(Vec<Vec<Expr>>),
    /// A query; the expressions are over its rows.
    Query(Box<Plan>, Vec<Expr>),
}

/// ON CONFLICT.
#[derive(Debug)]
pub struct Conflict {
    /// Unique keys that it is about (None: the primary key); empty: any.
    pub arbiters: Vec<Option<usize>>,
    /// DO UPDATE; None: DO NOTHING.
    pub update: Option<Upsert>,
}

/// DO UPDATE SET ... WHERE.
#[derive(Debug)]
pub struct Upsert {
    /// Columns and new values, over the row that is there and the one proposed.
    pub assignments: Vec<(usize, Expr)>,
    /// WHERE.
    pub condition: Option<Expr>,
    /// Columns of the row that is there that are read.
    pub reads: Columns,
}

/// What runs a query for the rows to change.
#[derive(Debug)]
pub enum Finder {
    /// The row executor.
    Rows(Box<RowPlan>),
    /// Analytics.
    Foreign(Box<ForeignQuery>),
}

/// How the rows to change are found.
#[derive(Debug)]
pub enum Target {
    /// By the short path.
    Short(Box<Access>),
    /// By a query whose rows are the primary key, then the new values.
    Found(Arc<Table>, Finder),
}

/// UPDATE.
#[derive(Debug)]
pub struct UpdatePlan {
    /// Which rows.
    pub target: Target,
    /// Columns and new values over the table's row (of a foreign target: over the query's).
    pub assignments: Vec<(usize, Expr)>,
    /// RETURNING.
    pub returning: Vec<Expr>,
    /// Columns of the table's rows that are read once their keys are known, and to find these by the short path.
    pub reads: Columns,
}

/// DELETE.
#[derive(Debug)]
pub struct DeletePlan {
    /// Which rows.
    pub target: Target,
    /// RETURNING.
    pub returning: Vec<Expr>,
    /// As of [`UpdatePlan::reads`].
    pub reads: Columns,
}

impl Planner<'_> {
    /// Plans INSERT. `foreign` gives the column types of a query that the short path does not know.
    pub fn insert(
        &self,
        insert: &ast::Insert,
        foreign: &dyn Fn(&Query) -> Result<Vec<ColumnType>>,
    ) -> Bound<(Plan, Vec<Field>)> {
        let TableObject::TableName(name) = &insert.table else {
            return crate::expr::bind::shape("INSERT into this");
        };
        if insert.or.is_some()
            || insert.overwrite
            || insert.replace_into
            || insert.ignore
            || !insert.assignments.is_empty()
        {
            return Err(SqlError::new(code::SYNTAX_ERROR, "syntax error in INSERT").into());
        }
        let table = self.table(name)?;
        let alias = insert
            .table_alias
            .as_ref()
            .map_or_else(|| table.name.clone(), |a| fold(&a.alias));
        let sequence = |name: &str| self.sequence(name);
        let columns = self.insert_columns(insert, &table)?;
        let source = self.insert_source(insert, &table, &columns, &sequence, foreign)?;
        let conflict = insert
            .on
            .as_ref()
            .map(|on| self.conflict(on, &table, &alias, &sequence))
            .transpose()?;
        let (returning, fields) = self.returning(insert.returning.as_ref(), &table, &alias)?;
        let conflict = conflict.map(|conflict| conflict.returning(&returning));
        Ok((
            Plan::Insert(InsertPlan {
                table,
                source,
                conflict,
                returning,
            }),
            fields,
        ))
    }

    fn insert_columns(&self, insert: &ast::Insert, table: &Table) -> Bound<Vec<usize>> {
        if insert.columns.is_empty() {
            return Ok((0..table.columns.len()).collect());
        }
        let mut columns = Vec::new();
        for name in &insert.columns {
            let place = name.span();
            let column = self.target_column(table, &qualified(name)?.1, place)?;
            if columns.contains(&column) {
                let text = format!("column \"{}\" specified more than once", table.columns[column].name);
                return Err(SqlError::new(code::DUPLICATE_COLUMN, text)
                    .at(self.places().of(place))
                    .into());
            }
            columns.push(column);
        }
        Ok(columns)
    }

    fn target_column(&self, table: &Table, name: &str, place: Span) -> Bound<usize> {
        table.column_named(name).ok_or_else(|| {
            let text = format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
            SqlError::new(code::UNDEFINED_COLUMN, text)
                .at(self.places().of(place))
                .into()
        })
    }

    fn insert_source(
        &self,
        insert: &ast::Insert,
        table: &Arc<Table>,
        columns: &[usize],
        sequence: &dyn Fn(&str) -> Result<u32>,
        foreign: &dyn Fn(&Query) -> Result<Vec<ColumnType>>,
    ) -> Bound<Source> {
        let binder = self.binder(None, sequence);
        let Some(query) = &insert.source else {
            let row = (0..table.columns.len())
                .map(|c| self.default(&binder, table, c))
                .collect::<Bound<_>>()?;
            return Ok(Source::Values(vec![row]));
        };
        if let SetExpr::Values(values) = &*query.body
            && query.order_by.is_none()
            && query.limit_clause.is_none()
        {
            let row = |row: &ast::Parens<Vec<ast::Expr>>| {
                self.values_row(&binder, table, columns, &row.content, insert.columns.is_empty())
            };
            return Ok(Source::Values(values.rows.iter().map(row).collect::<Bound<_>>()?));
        }
        let (plan, types) = match self.select(query) {
            Ok((Plan::Select(select), _)) => {
                let types = select.types.clone();
                (Plan::Select(select), types)
            }
            Ok(_) | Err(Refusal::Shape(_)) => {
                if !query.locks.is_empty() {
                    return Err(SqlError::unsupported("INSERT from a query of this shape FOR UPDATE").into());
                }
                match self.settled_rows(query, &binder, &targets(table, columns))? {
                    Some(plan) => {
                        let types = plan.types.clone();
                        (Plan::Rows(Box::new(plan)), types)
                    }
                    None => {
                        let kept = ForeignQuery::new((**query).clone());
                        (Plan::Foreign(Box::new(kept)), foreign(query)?)
                    }
                }
            }
            Err(error) => return Err(error),
        };
        self.check_width(columns, types.len(), insert.columns.is_empty(), Span::empty())?;
        let mut row = Vec::new();
        for column in 0..table.columns.len() {
            row.push(match columns.iter().take(types.len()).position(|c| *c == column) {
                Some(at) => self.assign(
                    &binder,
                    table,
                    column,
                    Typed {
                        expr: Expr::Column(at as u16),
                        ty: Some(types[at]),
                    },
                    Span::empty(),
                )?,
                None => self.default(&binder, table, column)?,
            });
        }
        Ok(Source::Query(Box::new(plan), row))
    }

    /// The row executor's plan of a query whose results go to columns of these types; None where analytics takes it.
    fn settled_rows(&self, query: &Query, binder: &Binder<'_>, targets: &[ColumnType]) -> Bound<Option<RowPlan>> {
        match self.rows(query, false) {
            Ok((mut plan, _)) => {
                let settled = plan.settle(binder, targets)?;
                Ok(Some(plan).filter(|_| settled || !self.for_many))
            }
            Err(Refusal::Shape(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn values_row(
        &self,
        binder: &Binder<'_>,
        table: &Table,
        columns: &[usize],
        values: &[ast::Expr],
        all: bool,
    ) -> Bound<Vec<Expr>> {
        let place = values.first().map_or(Span::empty(), |v| v.span());
        self.check_width(columns, values.len(), all, place)?;
        let mut row = Vec::with_capacity(table.columns.len());
        for column in 0..table.columns.len() {
            let given = columns
                .iter()
                .take(values.len())
                .position(|c| *c == column)
                .map(|at| &values[at]);
            row.push(match given {
                Some(value) if !is_default(value) => {
                    self.assign(binder, table, column, binder.bind(value)?, value.span())?
                }
                _ => self.default(binder, table, column)?,
            });
        }
        Ok(row)
    }

    /// Fewer values than columns are admitted only where no column list was given.
    fn check_width(&self, columns: &[usize], values: usize, all: bool, place: Span) -> Bound<()> {
        if values > columns.len() {
            return Err(
                SqlError::new(code::SYNTAX_ERROR, "INSERT has more expressions than target columns")
                    .at(self.places().of(place))
                    .into(),
            );
        }
        if values < columns.len() && !all {
            return Err(
                SqlError::new(code::SYNTAX_ERROR, "INSERT has more target columns than expressions")
                    .at(self.places().of(place))
                    .into(),
            );
        }
        Ok(())
    }

    /// The DEFAULT of a column, or NULL.
    pub fn default(&self, binder: &Binder<'_>, table: &Table, column: usize) -> Bound<Expr> {
        match &table.columns[column].default {
            None => Ok(Expr::Const(Datum::Null)),
            Some(text) => self.assign(
                binder,
                table,
                column,
                binder.bind(&parse_expression(text)?)?,
                Span::empty(),
            ),
        }
    }

    fn assign(&self, binder: &Binder<'_>, table: &Table, column: usize, value: Typed, place: Span) -> Bound<Expr> {
        let definition = &table.columns[column];
        let given = value.ty;
        binder
            .coerce(value, definition.ty, Context::Assignment)
            .map_err(|refusal| match (refusal, given) {
                (Refusal::Error(e), Some(from)) if e.code() == code::DATATYPE_MISMATCH => {
                    let text = format!(
                        "column \"{}\" is of type {} but expression is of type {}",
                        definition.name,
                        definition.ty.name(),
                        from.name()
                    );
                    SqlError::new(code::DATATYPE_MISMATCH, text)
                        .with_hint("You will need to rewrite or cast the expression.")
                        .at(self.places().of(place))
                        .into()
                }
                (refusal, _) => refusal,
            })
    }

    fn conflict(
        &self,
        on: &OnInsert,
        table: &Arc<Table>,
        alias: &str,
        sequence: &dyn Fn(&str) -> Result<u32>,
    ) -> Bound<Conflict> {
        let OnInsert::OnConflict(on) = on else {
            return Err(SqlError::new(code::SYNTAX_ERROR, "syntax error at or near \"DUPLICATE\"").into());
        };
        let arbiters = match &on.conflict_target {
            None => Vec::new(),
            Some(ConflictTarget::Columns(columns)) => self.arbiters_of_columns(table, columns)?,
            Some(ConflictTarget::OnConstraint(name)) => vec![arbiter_named(table, &qualified(name)?.1)?],
        };
        let update = match &on.action {
            OnConflictAction::DoNothing => None,
            OnConflictAction::DoUpdate(_) if arbiters.is_empty() => {
                let text = "ON CONFLICT DO UPDATE requires inference specification or constraint name";
                return Err(SqlError::new(code::SYNTAX_ERROR, text)
                    .with_hint("For example, ON CONFLICT (column_name).")
                    .into());
            }
            OnConflictAction::DoUpdate(update) => {
                let mut binder = self.binder(Some((table.clone(), alias.to_string())), sequence);
                binder.excluded = true;
                let assignments = self.assignments(&binder, table, &update.assignments)?;
                let condition = update
                    .selection
                    .as_ref()
                    .map(|e| binder.condition(e, "WHERE"))
                    .transpose()?;
                Some(Upsert {
                    assignments,
                    condition,
                    reads: Columns::All,
                })
            }
        };
        Ok(Conflict { arbiters, update })
    }

    fn arbiters_of_columns(&self, table: &Table, columns: &[ast::Ident]) -> Bound<Vec<Option<usize>>> {
        let mut wanted = Vec::new();
        for column in columns {
            let name = fold(column);
            let place = self.places().of(column.span);
            wanted.push(table.column_named(&name).ok_or_else(|| {
                SqlError::new(code::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist")).at(place)
            })?);
        }
        wanted.sort_unstable();
        let same = |columns: &[usize]| {
            let mut sorted = columns.to_vec();
            sorted.sort_unstable();
            sorted == wanted
        };
        let mut found: Vec<Option<usize>> = table
            .primary_key
            .iter()
            .filter(|p| same(&p.columns))
            .map(|_| None)
            .collect();
        found.extend(
            table
                .indexes
                .iter()
                .enumerate()
                .filter(|(_, i)| i.unique && same(&i.columns))
                .map(|(at, _)| Some(at)),
        );
        if found.is_empty() {
            let text = "there is no unique or exclusion constraint matching the ON CONFLICT specification";
            return Err(SqlError::new(code::INVALID_COLUMN_REFERENCE, text).into());
        }
        Ok(found)
    }

    fn assignments(&self, binder: &Binder<'_>, table: &Table, list: &[ast::Assignment]) -> Bound<Vec<(usize, Expr)>> {
        let mut out: Vec<(usize, Expr)> = Vec::new();
        for (column, value) in pairs(list)? {
            let place = value.span();
            let column = self.target_column(table, &column, Span::empty())?;
            if out.iter().any(|(c, _)| *c == column) {
                let text = format!("multiple assignments to same column \"{}\"", table.columns[column].name);
                return Err(SqlError::new(code::SYNTAX_ERROR, text).into());
            }
            let expr = if is_default(value) {
                self.default(binder, table, column)?
            } else {
                self.assign(binder, table, column, binder.bind(value)?, place)?
            };
            out.push((column, expr));
        }
        Ok(out)
    }

    /// Plans UPDATE.
    pub fn update(
        &self,
        update: &ast::Update,
        foreign: &dyn Fn(&Query) -> Result<Vec<ColumnType>>,
    ) -> Bound<(Plan, Vec<Field>)> {
        let (table, alias) = self.single_table(&update.table)?;
        let (returning, fields) = self.returning(update.returning.as_ref(), &table, &alias)?;
        let short = || -> Bound<(Target, Vec<(usize, Expr)>)> {
            if update.from.is_some() {
                return crate::expr::bind::shape("UPDATE with FROM");
            }
            let sequence = |name: &str| self.sequence(name);
            let binder = self.binder(Some((table.clone(), alias.clone())), &sequence);
            let assignments = self.assignments(&binder, &table, &update.assignments)?;
            let condition = update
                .selection
                .as_ref()
                .map(|e| binder.condition(e, "WHERE"))
                .transpose()?;
            Ok((self.found_by_path(&table, condition), assignments))
        };
        let (target, assignments) = match short() {
            Err(Refusal::Shape(why)) => self.foreign_update(update, &table, why, foreign)?,
            other => other?,
        };
        // The values of a foreign target are over the query's rows.
        let values = assignments.iter().map(|(_, value)| value);
        let reads = columns_of(
            target
                .conditions()
                .chain(&returning)
                .chain(values.filter(|_| target.is_short())),
        );
        Ok((
            Plan::Update(UpdatePlan {
                target,
                assignments,
                returning,
                reads,
            }),
            fields,
        ))
    }

    /// Rows that the short path finds.
    fn found_by_path(&self, table: &Arc<Table>, condition: Option<Expr>) -> Target {
        let estimator = Estimator::new(self.tx, &self.known);
        let (access, served) = access::choose(table, condition, None, None, &estimator);
        if self.known.is_compared() {
            self.known.note_cost(access::cost(&access, served, None, &estimator));
        }
        Target::Short(Box::new(access))
    }

    fn foreign_update(
        &self,
        update: &ast::Update,
        table: &Arc<Table>,
        why: SqlError,
        foreign: &dyn Fn(&Query) -> Result<Vec<ColumnType>>,
    ) -> Bound<(Target, Vec<(usize, Expr)>)> {
        let mut from = vec![update.table.clone()];
        match &update.from {
            None => {}
            Some(UpdateTableFromKind::BeforeSet(more) | UpdateTableFromKind::AfterSet(more)) => {
                from.extend(more.iter().cloned())
            }
        }
        let list = pairs(&update.assignments)?;
        // What reads no row is no part of the query: a literal takes the type of its column.
        let is_asked = |value: &ast::Expr| !is_default(value) && !matches!(strip(value), ast::Expr::Value(_));
        let values: Vec<&ast::Expr> = list.iter().map(|(_, v)| *v).filter(|v| is_asked(v)).collect();
        let (target, keys, types) = self.foreign_target(
            table,
            &update.table,
            &from,
            &values,
            update.selection.as_ref(),
            why,
            foreign,
        )?;
        let sequence = |name: &str| self.sequence(name);
        let binder = self.binder(None, &sequence);
        let mut assignments = Vec::new();
        let mut found = keys..;
        for (column, value) in &list {
            let column = self.target_column(table, column, Span::empty())?;
            let value = match is_asked(value) {
                true => {
                    let at = found.next().unwrap_or(keys);
                    Typed {
                        expr: Expr::Column(at as u16),
                        ty: types.get(at).copied(),
                    }
                }
                false if is_default(value) => {
                    assignments.push((column, self.default(&binder, table, column)?));
                    continue;
                }
                false => binder.bind(value)?,
            };
            assignments.push((column, self.assign(&binder, table, column, value, Span::empty())?));
        }
        Ok((target, assignments))
    }

    /// A query for the primary keys of the rows that qualify and for `values`; with the count of key columns and the
    /// types.
    #[allow(clippy::too_many_arguments)]
    fn foreign_target(
        &self,
        table: &Arc<Table>,
        named: &TableWithJoins,
        from: &[TableWithJoins],
        values: &[&ast::Expr],
        condition: Option<&ast::Expr>,
        why: SqlError,
        foreign: &dyn Fn(&Query) -> Result<Vec<ColumnType>>,
    ) -> Bound<(Target, usize, Vec<ColumnType>)> {
        let Some(primary) = table.primary_key.as_ref() else {
            return Err(Refusal::Error(why));
        };
        let TableFactor::Table { name, alias, .. } = &named.relation else {
            return Err(Refusal::Error(why));
        };
        let qualifier = alias.as_ref().map_or_else(|| name.to_string(), |a| a.name.to_string());
        let mut list: Vec<String> = primary
            .columns
            .iter()
            .map(|c| format!("{qualifier}.\"{}\"", table.columns[*c].name.replace('"', "\"\"")))
            .collect();
        list.extend(
            values
                .iter()
                .enumerate()
                .map(|(i, v)| format!("({v}) AS \"value {i}\"")),
        );
        let tables: Vec<String> = from.iter().map(ToString::to_string).collect();
        let clause = condition.map_or(String::new(), |c| format!(" WHERE {c}"));
        let text = format!("SELECT {} FROM {}{clause}", list.join(", "), tables.join(", "));
        let query = crate::parse::parse_query(&text)?;
        let (finder, types) = match self.rows(&query, true) {
            Ok((plan, _)) if !plan.open.contains(&true) || !self.for_many => {
                let types = plan.types.clone();
                (Finder::Rows(Box::new(plan)), types)
            }
            Ok(_) | Err(Refusal::Shape(_)) if self.analytics => {
                let types = foreign(&query)?;
                (Finder::Foreign(Box::new(ForeignQuery::new(query))), types)
            }
            // Places in the query's text are none in the statement's.
            Err(Refusal::Error(error)) => return Err(error.at(0).into()),
            Ok(_) | Err(Refusal::Shape(_)) => return Err(Refusal::Error(why)),
        };
        Ok((Target::Found(table.clone(), finder), primary.columns.len(), types))
    }

    /// Plans DELETE.
    pub fn delete(
        &self,
        delete: &ast::Delete,
        foreign: &dyn Fn(&Query) -> Result<Vec<ColumnType>>,
    ) -> Bound<(Plan, Vec<Field>)> {
        let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
        let [one] = from.as_slice() else {
            return Err(SqlError::new(code::SYNTAX_ERROR, "DELETE wants one table").into());
        };
        let (table, alias) = self.single_table(one)?;
        let (returning, fields) = self.returning(delete.returning.as_ref(), &table, &alias)?;
        let short = || -> Bound<Target> {
            if delete.using.is_some() {
                return crate::expr::bind::shape("DELETE with USING");
            }
            let sequence = |name: &str| self.sequence(name);
            let binder = self.binder(Some((table.clone(), alias.clone())), &sequence);
            let condition = delete
                .selection
                .as_ref()
                .map(|e| binder.condition(e, "WHERE"))
                .transpose()?;
            Ok(self.found_by_path(&table, condition))
        };
        let target = match short() {
            Err(Refusal::Shape(why)) => {
                let mut tables = vec![one.clone()];
                tables.extend(delete.using.iter().flatten().cloned());
                self.foreign_target(&table, one, &tables, &[], delete.selection.as_ref(), why, foreign)?
                    .0
            }
            other => other?,
        };
        let reads = columns_of(target.conditions().chain(&returning));
        let plan = DeletePlan {
            target,
            returning,
            reads,
        };
        Ok((Plan::Delete(plan), fields))
    }
}

/// The types of the columns that take the results of a query, in their order.
fn targets(table: &Table, columns: &[usize]) -> Vec<ColumnType> {
    columns.iter().map(|column| table.columns[*column].ty).collect()
}

impl Target {
    fn is_short(&self) -> bool {
        matches!(self, Target::Short(_))
    }

    /// The row executor's plan that finds the rows.
    pub fn joins(&self) -> Option<&RowPlan> {
        match self {
            Target::Found(_, Finder::Rows(plan)) => Some(plan),
            _ => None,
        }
    }

    /// What is asked of the table's rows themselves.
    fn conditions(&self) -> impl Iterator<Item = &Expr> {
        let access = match self {
            Target::Short(access) => Some(access),
            Target::Found(..) => None,
        };
        access
            .into_iter()
            .flat_map(|access| access.filter.iter().chain(&access.condition))
    }
}

impl Conflict {
    /// The same, of a statement with this RETURNING, which tells what it reads.
    fn returning(mut self, returning: &[Expr]) -> Conflict {
        if let Some(update) = &mut self.update {
            let values = update.assignments.iter().map(|(_, value)| value);
            update.reads = columns_of(values.chain(&update.condition).chain(returning));
        }
        self
    }
}

/// The columns of the table's row that expressions read.
fn columns_of<'e>(expressions: impl Iterator<Item = &'e Expr>) -> Columns {
    let mut columns = Vec::new();
    let mut add = |expr: &Expr| {
        if let Expr::Column(column) = expr {
            columns.push(usize::from(*column));
        }
    };
    expressions.for_each(|expr| expr.walk(&mut add));
    columns.sort_unstable();
    columns.dedup();
    Columns::Only(columns.into())
}

/// Columns and values of SET; `(a, b) = (1, 2)` taken apart.
fn pairs(list: &[ast::Assignment]) -> Bound<Vec<(String, &ast::Expr)>> {
    let mut out = Vec::new();
    for assignment in list {
        match (&assignment.target, &assignment.value) {
            (AssignmentTarget::ColumnName(name), value) => out.push((qualified(name)?.1, value)),
            (AssignmentTarget::Tuple(names), ast::Expr::Tuple(values)) if names.len() == values.len() => {
                for (name, value) in names.iter().zip(values) {
                    out.push((qualified(name)?.1, value));
                }
            }
            _ => return Err(SqlError::unsupported("this form of SET").into()),
        }
    }
    Ok(out)
}

fn arbiter_named(table: &Table, name: &str) -> Bound<Option<usize>> {
    if table.primary_key.as_ref().is_some_and(|p| p.name == name) {
        return Ok(None);
    }
    match table.index_named(name).filter(|i| table.indexes[*i].unique) {
        Some(at) => Ok(Some(at)),
        None => {
            let text = format!("constraint \"{name}\" for table \"{}\" does not exist", table.name);
            Err(SqlError::new(code::UNDEFINED_OBJECT, text).into())
        }
    }
}

fn is_default(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Identifier(i) if i.quote_style.is_none() && i.value.eq_ignore_ascii_case("default"))
}
