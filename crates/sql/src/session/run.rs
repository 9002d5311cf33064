//! Running one statement of a session, and its command tag.

use super::copy;
use super::extended::Portal;
use super::planning::{Prepared, has_plan};
use super::{Session, State};
use crate::ddl::Definer;
use crate::env::SettingChanges;
use crate::error::{Result, SqlError, code};
use crate::exec::select::{Cursor, advance, foreign_rows};
use crate::exec::sink::{ClientSink, Count, Sink};
use crate::exec::{Run, found, write};
use crate::hook::Rows;
use crate::output::{Field, Format, Formats, Output};
use crate::parse::{Parsed, Statement, Utility};
use crate::plan::access::describe;
use crate::plan::dml::{Source, Target};
use crate::plan::select::SelectPlan;
use crate::plan::{Plan, Planned, computed_field};
use cenote_base::rt::{
    self,
    fault::{Fault, planted},
};
use cenote_engine::ColumnType;
use cenote_fabric::observe::{self, Seen};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;

/// How often a statement is planned again because a table was redefined under it.
const MAX_REPLANS: u32 = 5;

impl Session {
    /// Runs a statement of the simple protocol.
    pub(super) fn run_simple(
        &mut self,
        prepared: &mut Prepared,
        portal: &mut Portal,
        out: &mut dyn Output,
    ) -> Result<()> {
        if !has_plan(prepared.statement()) {
            return self.run_unplanned(&prepared.parsed.clone(), true, &[], out);
        }
        let planned = self.plan(prepared)?;
        if !planned.params.is_empty() {
            return Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1"));
        }
        portal.planned = Some(planned);
        self.run_portal_with(portal, prepared, 0, true, out)
    }

    /// Runs a portal; where a table was redefined meanwhile, plans again and tries again, unless rows have gone to the
    /// client.
    pub(super) fn run_portal_with(
        &mut self,
        portal: &mut Portal,
        prepared: &mut Prepared,
        max: u64,
        describe: bool,
        out: &mut dyn Output,
    ) -> Result<()> {
        let begun = !matches!(portal.cursor, Cursor::Start);
        for _ in 0..MAX_REPLANS {
            match self.run_portal(portal, max, describe, out) {
                Err(error) if error.is_stale() && !begun && !self.tx.has_written() => {
                    self.take_snapshot();
                    self.plan_again(portal, prepared, describe)?;
                }
                done => return done,
            }
        }
        self.run_portal(portal, max, describe, out)
    }

    /// Gives a portal a new plan. What the client was told (its columns, unless they are still to be described) and
    /// what it has sent (parameters) must fit that too.
    fn plan_again(&mut self, portal: &mut Portal, prepared: &mut Prepared, describe: bool) -> Result<()> {
        prepared.compiled = None;
        let planned = self.plan(prepared)?;
        let fits =
            |former: &Arc<Planned>| former.params == planned.params && (describe || former.fields == planned.fields);
        if !portal.planned.as_ref().is_none_or(fits) {
            let text = "cached plan must not change result type";
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, text));
        }
        portal.planned = Some(planned);
        (portal.cursor, portal.view) = (Cursor::Start, None);
        Ok(())
    }

    /// Runs a portal's plan: up to `max` rows (0: all). `describe`: RowDescription goes before the first row, or the
    /// end.
    pub(super) fn run_portal(
        &mut self,
        portal: &mut Portal,
        max: u64,
        describe: bool,
        out: &mut dyn Output,
    ) -> Result<()> {
        let Some(planned) = portal.planned.clone() else {
            return Err(SqlError::internal("a portal without a plan"));
        };
        if self.read_only && !reads_only(&planned.plan) {
            let text = format!("cannot execute {} in a read-only transaction", verb(&planned.plan));
            return Err(SqlError::new(code::READ_ONLY_TRANSACTION, text));
        }
        let answers = !planned.fields.is_empty() || reads(&planned.plan);
        let mut sink = ClientSink {
            out,
            formats: Formats(&portal.formats),
            settings: &self.env.settings,
            describe: (describe && answers).then_some(&*planned.fields),
        };
        self.queried = true;
        self.env.changes = RefCell::new(self.changes_to_gather(&planned.plan));
        let analytics = self.sql.analytics();
        if let Some(view) = &portal.view {
            match planted(Fault::PortalView) {
                true => self.tx.begin_statement(),
                false => self.tx.enter_view(view),
            }
        }
        let mut run = Run {
            tx: &mut self.tx,
            session: &self.env,
            params: &portal.params,
            param_oids: &planned.param_oids,
            scratch: &mut self.scratch,
            analytics,
        };
        let ran = run_plan(&mut run, &planned, &mut portal.cursor, max, &mut sink);
        let ran = ran.and_then(|given| sink.announce().map(|()| given));
        if portal.view.is_some() {
            self.tx.leave_view();
        } else if matches!((&ran, &portal.cursor), (Ok((_, false)), Cursor::Stream(_))) {
            portal.view = Some(self.tx.reader().clone());
        }
        let changes = self.env.changes.take();
        let (count, done) = ran?;
        if let Some(changed) = changes.and_then(|c| c.settings) {
            self.change_settings(|settings| {
                *settings = changed;
                Ok(())
            })?;
        }
        portal.rows = None;
        if !done {
            portal.rows = Some(self.charge(portal.cursor.held_bytes())?);
            return out.portal_suspended();
        }
        portal.view = None;
        self.tag.clear();
        let _ = match planned.plan {
            Plan::Insert(_) => write!(self.tag, "INSERT 0 {count}"),
            _ => write!(self.tag, "{} {count}", verb(&planned.plan)),
        };
        out.complete(&self.tag)
    }

    /// Where the calls of `set_config` in a plan put what they change.
    fn changes_to_gather(&self, plan: &Plan) -> Option<SettingChanges> {
        let sets = matches!(plan, Plan::Select(select) if select.sets_config);
        sets.then(|| SettingChanges {
            start: self.start.clone(),
            settings: None,
        })
    }

    /// Runs a statement that is carried out from its parsed form.
    pub(super) fn run_unplanned(
        &mut self,
        parsed: &Arc<Parsed>,
        describe: bool,
        formats: &[Format],
        out: &mut dyn Output,
    ) -> Result<()> {
        self.queried |= takes_snapshot(&parsed.statement);
        match &parsed.statement {
            Statement::Empty => out.empty_query(),
            Statement::Utility(utility) => self.utility(utility, parsed, describe, formats, out),
            Statement::Define(statement) => {
                self.refuse_read_only("this definition statement")?;
                self.note_tables_in_use();
                let mut definer = Definer {
                    tx: &mut self.tx,
                    session: &self.env,
                    text: &parsed.text,
                    notices: Vec::new(),
                };
                let tag = definer.run(statement)?;
                definer.notices.iter().try_for_each(|n| out.notice(n))?;
                out.complete(tag)
            }
            Statement::Copy(command) => copy::run(self, command, &parsed.text, out),
            Statement::Explain { analyze, memory, inner } => {
                self.explain((*analyze, *memory), inner, &parsed.text, describe, formats, out)
            }
            _ => Err(SqlError::internal("a statement with a plan")),
        }
    }

    pub(super) fn refuse_read_only(&self, what: &str) -> Result<()> {
        if self.read_only {
            return Err(SqlError::new(
                code::READ_ONLY_TRANSACTION,
                format!("cannot execute {what} in a read-only transaction"),
            ));
        }
        Ok(())
    }

    /// Columns that a statement without a plan answers with.
    pub(super) fn unplanned_fields(&self, statement: &Statement) -> Vec<Field> {
        match statement {
            Statement::Explain { .. } => vec![computed_field("QUERY PLAN", ColumnType::Text)],
            Statement::Utility(utility) => self.utility_fields(utility),
            _ => Vec::new(),
        }
    }

    fn explain(
        &mut self,
        (analyze, memory): (bool, bool),
        inner: &Statement,
        text: &str,
        describe: bool,
        formats: &[Format],
        out: &mut dyn Output,
    ) -> Result<()> {
        if !has_plan(inner) {
            return Err(SqlError::unsupported("EXPLAIN of this statement"));
        }
        if memory && !analyze {
            let message = "EXPLAIN option MEMORY requires ANALYZE: it counts what the statement touches";
            return Err(SqlError::new(code::INVALID_ARGUMENT, message));
        }
        let planned = self.plan_statement(inner, text, &[], true)?;
        let mut lines = explain_plan(&planned.plan);
        if let Plan::Foreign(query) = &planned.plan
            && let Some(analytics) = self.sql.analytics()
        {
            lines.extend(analytics.explain(&crate::exec::scope(&self.tx, &self.env)?, query, &[], analyze)?);
            if memory {
                lines.push("Memory: not counted, since the statement runs on threads of its own".into());
            }
        } else if analyze {
            let (executed, seen) = match memory {
                true => observe::seen_during(|| self.explain_analyze(&planned)),
                false => (self.explain_analyze(&planned), None),
            };
            lines.push(executed?);
            lines.extend(seen.iter().flat_map(describe_memory));
        }
        self.give_lines("QUERY PLAN", &lines, describe, formats, out)?;
        out.complete("EXPLAIN")
    }

    fn explain_analyze(&mut self, planned: &Planned) -> Result<String> {
        let start = rt::now();
        let analytics = self.sql.analytics();
        let mut run = Run {
            tx: &mut self.tx,
            session: &self.env,
            params: &[],
            param_oids: &[],
            scratch: &mut self.scratch,
            analytics,
        };
        let (count, _) = run_plan(&mut run, planned, &mut Cursor::Start, 0, &mut Count)?;
        Ok(format!(
            "Rows: {count}; execution time: {:.3} ms",
            rt::now().since(start).raw() as f64 / 1e6
        ))
    }

    /// A result of one text column.
    pub(super) fn give_lines(
        &self,
        name: &str,
        lines: &[String],
        describe: bool,
        formats: &[Format],
        out: &mut dyn Output,
    ) -> Result<()> {
        if describe {
            out.row_description(&[computed_field(name, ColumnType::Text)], Formats(formats))?;
        }
        for line in lines {
            out.row(1, &mut |buffer| {
                crate::types::wire::put_bytes(line.as_bytes(), buffer);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether a block is open.
    pub(super) fn in_block(&self) -> bool {
        matches!(self.state, State::Block | State::Failed)
    }
}

/// What a statement touched of the buffer's memory, in words.
fn describe_memory(seen: &Seen) -> Vec<String> {
    let traffic = seen.traffic;
    let mut lines = vec![format!(
        "Memory: {} reads of {} bytes in {} lines; {} writes of {} bytes in {} lines",
        traffic.reads,
        traffic.bytes_read,
        traffic.lines_read,
        traffic.writes,
        traffic.bytes_written,
        traffic.lines_written
    )];
    if let Some(device) = &seen.device {
        let micros = seen.stalled.0 as f64 / 1e3;
        lines.push(format!(
            "Device ({device}): {} lines missed, {micros:.1} us",
            seen.lines_missed
        ));
    }
    lines
}

/// Runs a plan; rows given or changed, and whether it is at its end.
pub(super) fn run_plan(
    run: &mut Run<'_>,
    planned: &Planned,
    cursor: &mut Cursor,
    max: u64,
    sink: &mut dyn Sink,
) -> Result<(u64, bool)> {
    match &planned.plan {
        Plan::Select(select) => advance(run, select, cursor, max, sink).map(|p| (p.rows, p.done)),
        Plan::Foreign(_) | Plan::Locking(_) => {
            if matches!(cursor, Cursor::Start) {
                *cursor = Cursor::Foreign(start_foreign(run, &planned.plan)?);
            }
            let Cursor::Foreign(rows) = cursor else {
                return Ok((0, true));
            };
            let progress = foreign_rows(rows.as_mut(), if max == 0 { u64::MAX } else { max }, sink)?;
            if progress.done {
                *cursor = Cursor::Done;
            }
            Ok((progress.rows, progress.done))
        }
        _ if matches!(cursor, Cursor::Done) => Ok((0, true)),
        writing => {
            *cursor = Cursor::Done;
            let count = match writing {
                Plan::Insert(insert) => write::insert(run, insert, sink)?,
                Plan::Update(update) => write::update(run, update, sink)?,
                Plan::Delete(delete) => write::delete(run, delete, sink)?,
                _ => 0,
            };
            Ok((count, true))
        }
    }
}

fn start_foreign(run: &mut Run<'_>, plan: &Plan) -> Result<Box<dyn Rows>> {
    match plan {
        Plan::Locking(plan) => {
            found::lock_found(run, &plan.targets)?;
            run.foreign(&plan.query)
        }
        Plan::Foreign(query) => run.foreign(query),
        _ => Err(SqlError::internal("a plan that analytics does not run")),
    }
}

/// Whether the statement answers with rows even where it has no columns.
pub(super) fn reads(plan: &Plan) -> bool {
    matches!(plan, Plan::Select(_) | Plan::Foreign(_) | Plan::Locking(_))
}

fn verb(plan: &Plan) -> &'static str {
    match plan {
        Plan::Select(_) | Plan::Foreign(_) | Plan::Locking(_) => "SELECT",
        Plan::Insert(_) => "INSERT",
        Plan::Update(_) => "UPDATE",
        Plan::Delete(_) => "DELETE",
    }
}

/// Whether a statement without a plan settles its transaction's isolation, as in PostgreSQL: all do but those about
/// transactions and settings.
fn takes_snapshot(statement: &Statement) -> bool {
    use Utility::{
        Begin, Checkpoint, Commit, LockTable, Release, Reset, ResetAll, Rollback, RollbackTo, Savepoint, Set,
        SetSessionTransaction, SetTransaction, Show, ShowAll, Unlisten,
    };
    !matches!(
        statement,
        Statement::Empty
            | Statement::Utility(
                Begin(..)
                    | Commit { .. }
                    | Rollback { .. }
                    | Savepoint(_)
                    | Release(_)
                    | RollbackTo(_)
                    | SetTransaction(_)
                    | SetSessionTransaction(_)
                    | Set { .. }
                    | Reset(_)
                    | ResetAll
                    | Show(_)
                    | ShowAll
                    | Unlisten
                    | Checkpoint
                    | LockTable
            )
    )
}

/// Whether a read-only transaction may run it.
fn reads_only(plan: &Plan) -> bool {
    match plan {
        Plan::Select(select) => select.lock.is_none(),
        Plan::Foreign(_) => true,
        _ => false,
    }
}

/// Which path a plan takes, a line each.
fn explain_plan(plan: &Plan) -> Vec<String> {
    match plan {
        Plan::Foreign(_) => vec!["Analytics".to_string()],
        Plan::Locking(plan) => {
            let locked = plan.targets.iter().map(|t| format!("  Lock rows of {}", t.table.name));
            std::iter::once("Analytics".to_string()).chain(locked).collect()
        }
        Plan::Select(select) => explain_select(select),
        Plan::Insert(insert) => {
            let mut lines = vec![format!("Short path: insert into {}", insert.table.name)];
            if let Source::Query(inner, _) = &insert.source {
                lines.extend(explain_plan(inner).into_iter().map(|l| format!("  {l}")));
            }
            lines
        }
        Plan::Update(update) => explain_target("update", &update.target),
        Plan::Delete(delete) => explain_target("delete from", &delete.target),
    }
}

fn explain_target(verb: &str, target: &Target) -> Vec<String> {
    match target {
        Target::Short(access) => {
            let mut lines = vec![format!(
                "Short path: {verb} {}, {}",
                access.table.name,
                describe(&access.path, &access.table)
            )];
            lines.extend(access.filter.iter().map(|_| "  Filter on the rows found".to_string()));
            lines
        }
        Target::Foreign(table, query) => vec![
            format!("Engine: {verb} {}, keys found by analytics", table.name),
            format!("  {query}"),
        ],
    }
}

fn explain_select(select: &SelectPlan) -> Vec<String> {
    let mut lines = vec![match &select.access {
        None => "Short path: no table".to_string(),
        Some(access) => format!(
            "Short path: {} on {}",
            describe(&access.path, &access.table),
            access.table.name
        ),
    }];
    let filtered = select.access.as_ref().is_some_and(|a| a.filter.is_some()) || select.bare_filter.is_some();
    let steps = [
        (filtered, "Filter on the rows found"),
        (select.group.is_some(), "Aggregate"),
        (select.distinct, "Distinct"),
        (!select.order.is_empty(), "Sort"),
        (select.limit.is_some() || select.offset.is_some(), "Limit"),
        (select.lock.is_some(), "Lock rows"),
    ];
    lines.extend(
        steps
            .iter()
            .filter(|(given, _)| *given)
            .map(|(_, step)| format!("  {step}")),
    );
    lines
}
