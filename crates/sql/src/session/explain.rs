//! EXPLAIN.

use super::prepared::has_plan;
use super::run::run_plan;
use super::state::Session;
use crate::error::{Result, SqlError, code};
use crate::exec::select::Cursor;
use crate::exec::sink::Count;
use crate::exec::{Run, scope};
use crate::output::{Format, Formats, Output};
use crate::parse::Statement;
use crate::plan::access::{Access, describe};
use crate::plan::dml::{Finder, Source, Target};
use crate::plan::row;
use crate::plan::select::SelectPlan;
use crate::plan::{Plan, Planned, computed_field};
use crate::types::wire::put_bytes;
use cenote_base::rt;
use cenote_engine::ColumnType;
use cenote_fabric::observe::{self, Seen};

impl Session {
    pub(super) fn explain(
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
            lines.extend(analytics.explain(&scope(&self.tx, &self.env), query, &[], analyze)?);
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
                put_bytes(line.as_bytes(), buffer);
                Ok(())
            })?;
        }
        Ok(())
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

/// Which path a plan takes, a line each.
fn explain_plan(plan: &Plan) -> Vec<String> {
    match plan {
        Plan::Rows(plan) => row::explain(plan),
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
        Target::Found(table, Finder::Rows(plan)) => {
            let mut lines = vec![format!("Engine: {verb} {}, rows found by", table.name)];
            lines.extend(row::explain(plan).into_iter().map(|line| format!("  {line}")));
            lines
        }
        Target::Found(table, Finder::Foreign(query)) => vec![
            format!("Engine: {verb} {}, keys found by analytics", table.name),
            format!("  {query}"),
        ],
    }
}

fn explain_select(select: &SelectPlan) -> Vec<String> {
    let found = |access: &Access| format!("{} on {}", describe(&access.path, &access.table), access.table.name);
    let mut lines = vec![match (&select.access, &select.extremes) {
        (None, _) => "Short path: no table".to_string(),
        (Some(access), None) => format!("Short path: {}", found(access)),
        (Some(_), Some(list)) => {
            let each: Vec<String> = list.iter().map(|e| format!("first of {}", found(&e.access))).collect();
            format!("Short path: {}", each.join(", "))
        }
    }];
    let filtered = select.access.as_ref().is_some_and(|a| a.filter.is_some()) || select.bare_filter.is_some();
    let steps = [
        (filtered, "Filter on the rows found"),
        (select.group.is_some(), "Aggregate"),
        (select.distinct, "Distinct"),
        (!select.order.is_empty() && select.served == 0, "Sort"),
        (
            !select.order.is_empty() && select.served > 0,
            "Sort, in part by the index",
        ),
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
