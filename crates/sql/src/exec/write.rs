//! INSERT, UPDATE and DELETE: each row goes through the engine.
//!
//! Rows to change are found first and changed afterwards, so that a statement never meets its own changes. A row that
//! has changed since it was found is asked the whole condition again on its newest version (where that condition is
//! another planner's: `found`).

use super::Run;
use super::change::{CANCEL_INTERVAL, RowChange, changed, give, give_changed, null_violation};
use super::found::{change_found, gather_foreign};
use super::keys::{self, Keys};
use super::row::RowCursor;
use super::rows::TableRows;
use super::rows::qualifies;
use super::select::{Cursor, advance};
use super::sink::{Gather, Sink};
use super::together::Together;
use crate::env::SessionEnv;
use crate::error::{Result, SqlError, code};
use crate::expr::{Env, Expr, Input};
use crate::plan::Plan;
use crate::plan::access::keys::push_equal;
use crate::plan::access::{Access, Path};
use crate::plan::dml::{Conflict, DeletePlan, InsertPlan, Source, Target, UpdatePlan, Upsert};
use cenote_base::rt::fault::{Fault, planted};
use cenote_engine::{Change, Changed, Columns, Datum, Insert, Isolation, Table};
use std::cell::{Cell, RefCell};

/// Inserts; gives the count of rows inserted or updated.
///
/// # Errors
/// 23505, 23502: the row breaks a key or NOT NULL. 40001, 40P01, 55P03: as the engine's locks. Else as the expressions
/// or the sink.
pub fn insert(run: &mut Run<'_>, plan: &InsertPlan, sink: &mut dyn Sink) -> Result<u64> {
    let mut inserter = Inserter::new(plan);
    let done = insert_source(run, plan, &mut inserter, sink);
    // Rows before the one that failed come before it with their own errors.
    inserter.insert_gathered(run)?;
    done?;
    Ok(inserter.count)
}

fn insert_source(run: &mut Run<'_>, plan: &InsertPlan, inserter: &mut Inserter<'_>, sink: &mut dyn Sink) -> Result<()> {
    match &plan.source {
        Source::Values(rows) => {
            for row in rows {
                inserter.evaluate(run, row, Input::Nothing)?;
                inserter.insert(run, sink)?;
            }
        }
        Source::Query(query, row) => {
            let mut found = Gather::new(&run.session.memory);
            match &**query {
                Plan::Select(select) => {
                    advance(run, select, &mut Cursor::Start, 0, &mut found)?;
                }
                Plan::Rows(rows) => {
                    RowCursor::new(rows).advance(run, rows, u64::MAX, &mut found)?;
                }
                Plan::Foreign(query) => drop(gather_foreign(run, query, &mut found)?),
                _ => return Err(SqlError::internal("INSERT from a statement that is no query")),
            }
            for values in found.0 {
                inserter.evaluate(run, row, Input::Values(&values))?;
                inserter.insert(run, sink)?;
            }
        }
    }
    Ok(())
}

/// Inserts rows one by one, or together where nothing is asked about single ones.
struct Inserter<'p> {
    table: &'p Table,
    conflict: Option<&'p Conflict>,
    returning: &'p [Expr],
    values: Vec<Datum>,
    /// Rows inserted or updated.
    count: u64,
    updated: keys::Seen,
    /// Scratch: the key of the row inserted last.
    key: Vec<u8>,
    /// Rows that go together; None: each by itself.
    together: Option<Together>,
    tick: u64,
}

impl<'p> Inserter<'p> {
    fn new(plan: &'p InsertPlan) -> Inserter<'p> {
        let is_plain = plan.conflict.is_none() && plan.returning.is_empty();
        let has_many = !matches!(&plan.source, Source::Values(rows) if rows.len() < 2);
        Inserter {
            table: &plan.table,
            conflict: plan.conflict.as_ref(),
            returning: &plan.returning,
            values: Vec::new(),
            count: 0,
            updated: keys::Seen::default(),
            key: Vec::new(),
            together: (is_plain && has_many).then(Together::default),
            tick: 0,
        }
    }

    /// Computes the values of the next row.
    ///
    /// # Errors
    /// An expression fails, or a value does not fit its column.
    fn evaluate(&mut self, run: &mut Run<'_>, row: &[Expr], input: Input<'_>) -> Result<()> {
        self.values.clear();
        let cell = RefCell::new(&mut *run.tx);
        let env = Env {
            params: run.params,
            input,
            outer: &[],
            session: run.session,
            sequences: Some(&cell),
            subqueries: None,
        };
        for expr in row {
            self.values.push(expr.eval(&env)?);
        }
        Ok(())
    }

    /// Inserts the row, or does what ON CONFLICT says.
    ///
    /// # Errors
    /// 23505, 23502: the row breaks a key or NOT NULL. 40001, 40P01, 55P03: as the engine's locks. Else as the
    /// expressions or the sink.
    fn insert(&mut self, run: &mut Run<'_>, sink: &mut dyn Sink) -> Result<()> {
        self.tick += 1;
        if self.tick.is_multiple_of(CANCEL_INTERVAL) {
            run.session.check_cancel()?;
        }
        check_not_null(self.table, &self.values, run.session)?;
        let mut row = std::mem::take(&mut run.scratch.new_row);
        self.table.layout().encode(&self.values, &mut row)?;
        let done = self.insert_row(run, &row, sink);
        run.scratch.new_row = row;
        done
    }

    fn insert_row(&mut self, run: &mut Run<'_>, row: &[u8], sink: &mut dyn Sink) -> Result<()> {
        if let Some(together) = &mut self.together {
            return match together.add(row) {
                true => self.insert_gathered(run),
                false => Ok(()),
            };
        }
        let arbiters = self.conflict.map_or(&[][..], |conflict| &conflict.arbiters);
        loop {
            let (index, existing) = match run.tx.insert_unless(self.table, row, arbiters, &mut self.key)? {
                Insert::Done => {
                    if self.conflict.is_some_and(|c| c.update.is_some()) {
                        self.updated
                            .insert(std::mem::take(&mut self.key), &run.session.memory)?;
                    }
                    break;
                }
                Insert::Duplicate { index, existing_key } => (index, existing_key),
            };
            let Some(conflict) = self
                .conflict
                .filter(|c| c.arbiters.is_empty() || c.arbiters.contains(&index))
            else {
                return Err(self.table.unique_violation(index, row).into());
            };
            let Some(update) = &conflict.update else {
                return refuse_unseen(run, self.table, &existing);
            };
            if self.upsert(run, update, (index, existing), row, sink)? {
                return Ok(());
            }
        }
        self.count += 1;
        give(run, self.returning, self.table, row, sink)
    }

    /// Inserts the rows that were gathered.
    fn insert_gathered(&mut self, run: &mut Run<'_>) -> Result<()> {
        if let Some(together) = &mut self.together {
            self.count += together.insert(run.tx, self.table).map_err(|failed| failed.error)?;
        }
        Ok(())
    }

    /// Updates the row that has the key of this index which the proposed one has; false where it has gone, or has the
    /// key no more.
    fn upsert(
        &mut self,
        run: &mut Run<'_>,
        update: &Upsert,
        (index, existing): (Option<usize>, Vec<u8>),
        proposed: &[u8],
        sink: &mut dyn Sink,
    ) -> Result<bool> {
        if self.updated.contains(&existing) {
            let text = "ON CONFLICT DO UPDATE command cannot affect row a second time";
            return Err(SqlError::new(code::CARDINALITY_VIOLATION, text).with_hint(
                "Ensure that no rows proposed for insertion within the same command have duplicate constrained values.",
            ));
        }
        let (table, values) = (self.table, &self.values);
        let (params, session) = (run.params, run.session);
        let first = Cell::new(None);
        let done = run
            .tx
            .change_newest(table, &existing, &update.reads, &|newest, _moved| -> Result<Change> {
                if !collide(table, index, newest, proposed)? {
                    return Ok(Change::Skip);
                }
                let env = Env {
                    params,
                    input: Input::Upsert(table.layout(), newest, values),
                    outer: &[],
                    session,
                    sequences: None,
                    subqueries: None,
                };
                let mut holds = qualifies(update.condition.as_ref(), &env)?;
                if planted(Fault::UpsertAttempt) {
                    holds = first.get().unwrap_or(holds);
                    first.set(Some(holds));
                }
                Ok(match holds {
                    false => Change::Keep,
                    true => Change::Update(changed(table, newest, &update.assignments, &env)?),
                })
            })?;
        if let Changed::Done {
            change: Change::Update(row),
            ..
        } = &done
        {
            self.count += 1;
            self.note_updated(run, existing, row)?;
            give(run, self.returning, table, row, sink)?;
        }
        Ok(matches!(done, Changed::Done { .. }))
    }

    /// The row that was updated is not to be updated again, by its former key or its new one.
    fn note_updated(&mut self, run: &Run<'_>, former: Vec<u8>, row: &[u8]) -> Result<()> {
        if !self.table.has_hidden_key() {
            let mut key = Vec::new();
            self.table.key_of_row(row, &mut key)?;
            self.updated.insert(key, &run.session.memory)?;
        }
        self.updated.insert(former, &run.session.memory)?;
        Ok(())
    }
}

/// Whether two rows have the same key in this index (None: they are known to have the same primary key). The row that a
/// proposed one met may have been given another key while it was waited for, or another row may stand under its primary
/// key.
fn collide(table: &Table, index: Option<usize>, newest: &[u8], proposed: &[u8]) -> Result<bool> {
    let Some(index) = index.map(|index| &table.indexes[index]) else {
        return Ok(true);
    };
    let (mut has, mut wants) = (Vec::new(), Vec::new());
    table.index_key_of_row(index, newest, &mut has)?;
    table.index_key_of_row(index, proposed, &mut wants)?;
    Ok(has == wants)
}

/// DO NOTHING at repeatable read: a version that the snapshot does not see is no reason to pass over this one. That it
/// sees another version of the same row, maybe with another key, is none either.
fn refuse_unseen(run: &mut Run<'_>, table: &Table, existing: &[u8]) -> Result<()> {
    if run.tx.isolation() == Isolation::ReadCommitted {
        return Ok(());
    }
    match run.tx.sees_newest(table, existing)? {
        true => Ok(()),
        false => Err(serialization_failure()),
    }
}

fn serialization_failure() -> SqlError {
    SqlError::new(
        code::SERIALIZATION_FAILURE,
        "could not serialize access due to concurrent update",
    )
}

/// 23502 for a NULL where the table admits none.
pub(crate) fn check_not_null(table: &Table, values: &[Datum], session: &SessionEnv) -> Result<()> {
    for (column, value) in table.columns.iter().zip(values) {
        if column.not_null && value.is_null() {
            return Err(null_violation(
                table,
                &column.name,
                values.iter().map(Datum::as_ref),
                session.zone(),
            ));
        }
    }
    Ok(())
}

/// Updates; gives the count.
///
/// # Errors
/// 23505, 23502: a row breaks a key or NOT NULL. 40001, 40P01, 55P03: as the engine's locks. Else as the expressions or
/// the sink.
pub fn update(run: &mut Run<'_>, plan: &UpdatePlan, sink: &mut dyn Sink) -> Result<u64> {
    check_given(run, &plan.assignments)?;
    match &plan.target {
        Target::Short(access) => {
            let deed = RowChange::Update(&plan.assignments);
            short(run, (access, &plan.reads), &deed, &plan.returning, sink)
        }
        Target::Found(table, finder) => {
            let deed = RowChange::Update(&plan.assignments);
            change_found(run, (table, finder, &plan.reads), &deed, &plan.returning, sink)
        }
    }
}

/// Refuses a parameter or literal that its column does not take, even where no row is found: PostgreSQL folds its cast
/// when it plans.
fn check_given(run: &Run<'_>, assignments: &[(usize, Expr)]) -> Result<()> {
    let is_given = |expr: &Expr| matches!(expr, Expr::Param(_) | Expr::Const(_));
    let casts = assignments.iter().map(|(_, expr)| expr);
    for cast in casts.filter(|expr| matches!(expr, Expr::Cast { operand, .. } if is_given(operand))) {
        let env = Env {
            params: run.params,
            input: Input::Nothing,
            outer: &[],
            session: run.session,
            sequences: None,
            subqueries: None,
        };
        cast.eval(&env)?;
    }
    Ok(())
}

/// Deletes; gives the count.
///
/// # Errors
/// 40001, 40P01, 55P03: as the engine's locks. Else as the expressions or the sink.
pub fn delete(run: &mut Run<'_>, plan: &DeletePlan, sink: &mut dyn Sink) -> Result<u64> {
    match &plan.target {
        Target::Short(access) => short(run, (access, &plan.reads), &RowChange::Delete, &plan.returning, sink),
        Target::Found(table, finder) => {
            let target = (&**table, finder, &plan.reads);
            change_found(run, target, &RowChange::Delete, &plan.returning, sink)
        }
    }
}

fn short(
    run: &mut Run<'_>,
    (access, reads): (&Access, &Columns),
    deed: &RowChange<'_>,
    returning: &[Expr],
    sink: &mut dyn Sink,
) -> Result<u64> {
    if let Path::Point(values) = &access.path {
        let mut key = std::mem::take(&mut run.scratch.key);
        key.clear();
        let table = &access.table;
        let done = match push_equal(table, None, values, &run.env(Input::Nothing), &mut key)? {
            true => change_row(
                run,
                (access, reads),
                (&key, access.filter.as_ref()),
                deed,
                returning,
                sink,
            ),
            false => Ok(false),
        };
        run.scratch.key = key;
        return done.map(u64::from);
    }
    let mut count = 0;
    let keys = find_keys(run, access, reads)?;
    for (seen, key) in keys.iter().enumerate() {
        if (seen as u64 + 1).is_multiple_of(CANCEL_INTERVAL) {
            run.session.check_cancel()?;
        }
        count += u64::from(change_row(run, (access, reads), (key, None), deed, returning, sink)?);
    }
    Ok(count)
}

fn find_keys(run: &mut Run<'_>, access: &Access, reads: &Columns) -> Result<Keys> {
    let batch = std::mem::take(&mut run.scratch.batch);
    let mut rows = TableRows::start(access, &run.env(Input::Nothing), batch)?;
    rows.expect_columns(reads);
    let mut keys = Keys::new(&run.session.memory);
    while rows.next(run.tx.reader(), access)? {
        let env = run.env(Input::Stored(access.table.layout(), rows.row()));
        if qualifies(access.filter.as_ref(), &env)? {
            keys.push(rows.key())?;
        }
        if keys.count().is_multiple_of(1024) {
            run.session.check_cancel()?;
        }
    }
    run.scratch.batch = rows.batch;
    Ok(keys)
}

/// Changes one row if it (still) qualifies. `filter` is asked of a version that the snapshot sees, the whole condition
/// of a newer one.
fn change_row(
    run: &mut Run<'_>,
    (access, reads): (&Access, &Columns),
    (key, filter): (&[u8], Option<&Expr>),
    deed: &RowChange<'_>,
    returning: &[Expr],
    sink: &mut dyn Sink,
) -> Result<bool> {
    let table = &*access.table;
    let (params, session) = (run.params, run.session);
    let first = RefCell::new(None);
    let done = run
        .tx
        .change_reading(table, key, reads, &|newest, moved| -> Result<Change> {
            let env = Env {
                params,
                input: Input::Stored(table.layout(), newest),
                outer: &[],
                session,
                sequences: None,
                subqueries: None,
            };
            let condition = if moved { access.condition.as_ref() } else { filter };
            let is_believed = moved && planted(Fault::WhereAgain);
            if !is_believed && !qualifies(condition, &env)? {
                return Ok(Change::Skip);
            }
            Ok(match deed {
                RowChange::Update(assignments) => {
                    let row = changed(table, newest, assignments, &env)?;
                    if planted(Fault::ReturningWait) {
                        first.borrow_mut().get_or_insert_with(|| row.clone());
                    }
                    Change::Update(row)
                }
                RowChange::Delete => Change::Delete,
            })
        })?;
    let done = match (done, first.into_inner()) {
        (Changed::Done { before, .. }, Some(row)) => Changed::Done {
            change: Change::Update(row),
            before,
        },
        (done, _) => done,
    };
    give_changed(run, returning, table, done, sink)
}
