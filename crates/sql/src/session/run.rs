//! Running a portal's plan, and its command tag.

use super::begun::Begun;
use super::portals::Portal;
use super::prepared::Prepared;
use super::state::Session;
use crate::env::SettingChanges;
use crate::error::{Result, SqlError, code};
use crate::exec::row::{Ran, RowCursor};
use crate::exec::select::{Cursor, advance, foreign_rows};
use crate::exec::sink::{ClientSink, Sink};
use crate::exec::{Run, found, write};
use crate::hook::{ForeignQuery, Rows};
use crate::output::{Formats, Output};
use crate::parse::Statement;
use crate::plan::learned::learned_by;
use crate::plan::row::RowPlan;
use crate::plan::{Plan, Planned};
use crate::types::zone::Zone;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use sqlparser::ast::Query;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;

/// How often a statement is planned again because a table was redefined under it.
const MAX_REPLANS: u32 = 5;

impl Session {
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
            match self.run_portal(portal, prepared, (max, describe), out) {
                Err(error) if error.is_stale() && !begun && !self.tx.has_written() => {
                    self.take_snapshot()?;
                    self.plan_again(portal, prepared, describe)?;
                }
                done => return done,
            }
        }
        self.run_portal(portal, prepared, (max, describe), out)
    }

    /// Gives a portal a new plan. What the client was told (its columns, unless they are still to be described) and
    /// what it has sent (parameters) must fit that too.
    fn plan_again(&mut self, portal: &mut Portal, prepared: &mut Prepared, describe: bool) -> Result<()> {
        prepared.compiled = None;
        let planned = self.plan(prepared)?;
        let fits = |former: &Arc<Planned>| match describe {
            true => former.params == planned.params,
            false => former.answers_like(&planned),
        };
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
    fn run_portal(
        &mut self,
        portal: &mut Portal,
        prepared: &Prepared,
        (max, describe): (u64, bool),
        out: &mut dyn Output,
    ) -> Result<()> {
        let Some(planned) = portal.planned.clone() else {
            return Err(SqlError::internal("a portal without a plan"));
        };
        if self.transaction.read_only && !planned.plan.is_read_only() {
            let text = format!("cannot execute {} in a read-only transaction", planned.plan.verb());
            return Err(SqlError::new(code::READ_ONLY_TRANSACTION, text));
        }
        let answers = !planned.fields.is_empty() || planned.plan.reads();
        let mut sink = ClientSink {
            out,
            formats: Formats(&portal.formats),
            settings: &self.env.settings,
            describe: (describe && answers).then_some(&*planned.fields),
        };
        self.transaction.queried = true;
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
            profile: None,
            query: query_of(prepared.statement()),
        };
        let ran = run_plan(&mut run, &planned, &mut portal.cursor, max, &mut sink);
        let ran = ran.and_then(|given| sink.announce().map(|()| given));
        if portal.view.is_some() {
            self.tx.leave_view();
        } else if matches!(
            (&ran, &portal.cursor),
            (Ok((_, false)), Cursor::Stream(_) | Cursor::Rows(_))
        ) {
            portal.view = Some(self.tx.reader().clone());
        }
        let changes = self.env.changes.take();
        prepared.learn_from(&planned);
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
            _ => write!(self.tag, "{} {count}", planned.plan.verb()),
        };
        out.complete(&self.tag)
    }

    /// Where the calls of `set_config` in a plan put what they change.
    fn changes_to_gather(&self, plan: &Plan) -> Option<SettingChanges> {
        let sets = matches!(plan, Plan::Select(select) if select.sets_config);
        sets.then(|| SettingChanges {
            start: self.settings.start().clone(),
            settings: None,
        })
    }
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
        Plan::Rows(plan) => {
            if matches!(cursor, Cursor::Start) {
                *cursor = Cursor::Rows(Box::new(RowCursor::new(plan)));
            }
            pull_rows(run, (planned, plan), cursor, max, sink)
        }
        Plan::Foreign(_) | Plan::Locking(_) => {
            if matches!(cursor, Cursor::Start) {
                *cursor = Cursor::Foreign(start_foreign(run, &planned.plan)?);
            }
            pull_foreign(cursor, max, sink)
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

/// Gives rows of the row executor, or of analytics that has taken the query over from it.
fn pull_rows(
    run: &mut Run<'_>,
    (planned, plan): (&Planned, &RowPlan),
    cursor: &mut Cursor,
    max: u64,
    sink: &mut dyn Sink,
) -> Result<(u64, bool)> {
    let Cursor::Rows(rows) = cursor else {
        return pull_foreign(cursor, max, sink);
    };
    // Analytics writes a timestamptz in UTC where it becomes a text.
    let is_alike = !plan.reads_zoned || *run.session.zone() == Zone::Utc;
    let has_other = run.analytics.is_some() && run.query.is_some();
    let is_taken_over = has_other && is_alike && !planned.stays.load(Ordering::Relaxed);
    let limit = if is_taken_over { plan.steps_max() } else { u64::MAX };
    let progress = match rows.advance_up_to(run, plan, (if max == 0 { u64::MAX } else { max }, limit), sink)? {
        Ran::Gave(progress) => progress,
        Ran::GivenUp(why) => {
            let steps = rows.steps();
            learn(planned, plan, rows);
            take_over(run, planned, cursor, why)?;
            if let Some(profile) = run.profile {
                profile.note_hand_over(matches!(cursor, Cursor::Foreign(_)).then_some(steps));
            }
            return pull_rows(run, (planned, plan), cursor, max, sink);
        }
    };
    if progress.done {
        learn(planned, plan, rows);
        *cursor = Cursor::Done;
    }
    Ok((progress.rows, progress.done))
}

/// Keeps what a run tells of its plan, where that was wrong.
fn learn(planned: &Planned, plan: &RowPlan, rows: &RowCursor) {
    if let Some(learned) = learned_by((&plan.scans, plan.cost), rows.steps(), &rows.counted()) {
        planned.learned.set(learned).ok();
    }
}

/// Begins the query anew with analytics, once what the row executor has gathered is free. Where analytics does not know
/// the query, fails before its first row, or answers with other columns than the client was told of, the row executor
/// begins anew and stays.
fn take_over(run: &Run<'_>, planned: &Planned, cursor: &mut Cursor, why: Option<SqlError>) -> Result<()> {
    *cursor = Cursor::Start;
    let taken = match run.query {
        Some(query) => run.foreign(&ForeignQuery::new(query.clone())).and_then(Begun::start),
        None => Err(SqlError::internal("a run without its query")),
    };
    let alike = |rows: &dyn Rows| {
        let types = rows.fields().iter().map(|f| (f.type_oid, f.type_mod));
        types.eq(planned.fields.iter().map(|f| (f.type_oid, f.type_mod)))
    };
    match (taken, why) {
        (Ok(rows), _) if alike(rows.as_ref()) => *cursor = Cursor::Foreign(rows),
        (Err(error), _) if error.code() == code::QUERY_CANCELED => return Err(error),
        (_, Some(why)) => return Err(why),
        (_, None) => {
            planned.stays.store(true, Ordering::Relaxed);
            if let Plan::Rows(plan) = &planned.plan {
                *cursor = Cursor::Rows(Box::new(RowCursor::new(plan)));
            }
        }
    }
    Ok(())
}

fn pull_foreign(cursor: &mut Cursor, max: u64, sink: &mut dyn Sink) -> Result<(u64, bool)> {
    let Cursor::Foreign(rows) = cursor else {
        return Ok((0, true));
    };
    let progress = foreign_rows(rows.as_mut(), if max == 0 { u64::MAX } else { max }, sink)?;
    if progress.done {
        *cursor = Cursor::Done;
    }
    Ok((progress.rows, progress.done))
}

/// The query that a statement is.
pub(super) fn query_of(statement: &Statement) -> Option<&Query> {
    match statement {
        Statement::Query(query) => Some(query),
        _ => None,
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
