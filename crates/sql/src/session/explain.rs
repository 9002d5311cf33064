//! EXPLAIN.

use super::prepared::has_plan;
use super::run::{query_of, run_plan};
use super::state::Session;
use super::unplanned::Asked;
use crate::error::{Result, SqlError, code};
use crate::exec::select::Cursor;
use crate::exec::sink::Count;
use crate::exec::{Run, scope};
use crate::output::{Format, Formats, Output};
use crate::parse::{ExplainOptions, Statement, Utility};
use crate::plan::access::{Access, describe};
use crate::plan::dml::{Finder, Source, Target};
use crate::plan::row::{self, Profile};
use crate::plan::select::SelectPlan;
use crate::plan::shown::{Shown, object, quoted};
use crate::plan::{Plan, Planned, computed_field};
use crate::types::wire::put_bytes;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{ColumnType, Datum};
use cenote_fabric::observe::{self, Seen};
use sqlparser::ast::Query;
use std::sync::Arc;

/// What a statement that was run did.
struct Ran {
    rows: u64,
    time: Nanos,
    seen: Option<Seen>,
    profile: Profile,
}

impl Session {
    pub(super) fn explain(
        &mut self,
        options: ExplainOptions,
        inner: &Statement,
        text: &str,
        asked: Asked<'_>,
        out: &mut dyn Output,
    ) -> Result<()> {
        let executed = match inner {
            Statement::Utility(Utility::Execute { name, args }) => Some((name, args)),
            inner if has_plan(inner) => None,
            _ => return Err(SqlError::unsupported("EXPLAIN of this statement")),
        };
        if let Some(name) = options.lacks_analyze() {
            let message = format!("EXPLAIN option {name} requires ANALYZE");
            return Err(SqlError::new(code::INVALID_ARGUMENT, message));
        }
        let start = rt::now();
        let (planned, params, query) = match executed {
            Some((name, args)) => {
                let (prepared, planned, params) = self.bound_arguments(name, args, text)?;
                (planned, params, query_of(prepared.statement()).cloned())
            }
            None => {
                let planned = self.plan_statement(inner, text, asked.declared, true)?;
                (Arc::new(planned), asked.params.to_vec(), query_of(inner).cloned())
            }
        };
        if planned.params.len() != params.len() {
            return Err(SqlError::new(code::UNDEFINED_PARAMETER, "there is no parameter $1"));
        }
        let planning = rt::now().since(start).raw();
        let foreign = match &planned.plan {
            Plan::Foreign(query) => Some(query),
            _ => None,
        };
        let ran = match options.analyze && foreign.is_none() {
            true => Some(self.run_measured((&planned, &params), query.as_ref(), options.memory)?),
            false => None,
        };
        let mut tree = explain_plan(&planned.plan, ran.as_ref().map(|r| &r.profile), options.memory);
        if let Some(query) = foreign
            && let Some(analytics) = self.sql.analytics()
        {
            let params: Vec<(Datum, u32)> = params.into_iter().zip(planned.param_oids.iter().copied()).collect();
            let lines = analytics.explain(&scope(&self.tx, &self.env), query, &params, options.analyze)?;
            let lines = lines.iter().map(|line| line.strip_prefix("  ").unwrap_or(line));
            tree.under.extend(lines.map(Shown::line));
        }
        let lines = match options.json {
            true => vec![as_json(&tree, options, planning, ran.as_ref())],
            false => as_lines(&tree, options, ran.as_ref(), foreign.is_some()),
        };
        self.give_lines("QUERY PLAN", &lines, asked.describe, asked.formats, out)?;
        out.complete("EXPLAIN")
    }

    fn run_measured(&mut self, plan: (&Planned, &[Datum]), query: Option<&Query>, memory: bool) -> Result<Ran> {
        let profile = Profile::default();
        let start = rt::now();
        let (rows, seen) = match memory {
            true => observe::seen_during(|| self.run_profiled(plan, query, &profile)),
            false => (self.run_profiled(plan, query, &profile), None),
        };
        Ok(Ran {
            rows: rows?,
            time: Nanos(rt::now().since(start).raw()),
            seen,
            profile,
        })
    }

    fn run_profiled(
        &mut self,
        (planned, params): (&Planned, &[Datum]),
        query: Option<&Query>,
        profile: &Profile,
    ) -> Result<u64> {
        let analytics = self.sql.analytics();
        let mut run = Run {
            tx: &mut self.tx,
            session: &self.env,
            params,
            param_oids: &planned.param_oids,
            scratch: &mut self.scratch,
            analytics,
            profile: Some(profile),
            query,
        };
        run_plan(&mut run, planned, &mut Cursor::Start, 0, &mut Count).map(|(rows, _)| rows)
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

fn as_lines(tree: &Shown, options: ExplainOptions, ran: Option<&Ran>, foreign: bool) -> Vec<String> {
    let mut lines = tree.lines(options.costs);
    if foreign && options.memory {
        lines.push("Memory: not counted, since the statement runs on threads of its own".into());
    }
    if let Some(ran) = ran {
        let time = ran.time.0 as f64 / 1e6;
        lines.push(format!("Rows: {}; execution time: {time:.3} ms", ran.rows));
        lines.extend(ran.seen.iter().flat_map(describe_memory));
    }
    lines
}

/// As PostgreSQL's FORMAT JSON: a list of one object.
fn as_json(tree: &Shown, options: ExplainOptions, planning: u64, ran: Option<&Ran>) -> String {
    let mut fields = vec![
        ("Plan", tree.json(options.costs)),
        ("Planning Time", format!("{:.3}", planning as f64 / 1e6)),
    ];
    if let Some(ran) = ran {
        fields.push(("Execution Time", format!("{:.3}", ran.time.0 as f64 / 1e6)));
        fields.push(("Rows", ran.rows.to_string()));
        fields.extend(
            ran.seen
                .iter()
                .map(|seen| ("Memory", quoted(&describe_memory(seen).join("; ")))),
        );
    }
    format!("[{}]", object(&fields))
}

/// Which path a plan takes.
fn explain_plan(plan: &Plan, profile: Option<&Profile>, memory: bool) -> Shown {
    match plan {
        Plan::Rows(plan) => row::shown(plan, profile, memory),
        Plan::Foreign(_) => Shown::line("Analytics"),
        Plan::Locking(plan) => {
            let locked = plan.targets.iter().map(|t| format!("Lock rows of {}", t.table.name));
            Shown {
                under: locked.map(Shown::line).collect(),
                ..Shown::line("Analytics")
            }
        }
        Plan::Select(select) => explain_select(select),
        Plan::Insert(insert) => {
            let under = match &insert.source {
                Source::Query(inner, _) => vec![explain_plan(inner, profile, memory)],
                _ => Vec::new(),
            };
            Shown {
                relation: Some(insert.table.name.clone()),
                under,
                ..Shown::line(format!("Short path: insert into {}", insert.table.name))
            }
        }
        Plan::Update(update) => explain_target("update", &update.target, profile, memory),
        Plan::Delete(delete) => explain_target("delete from", &delete.target, profile, memory),
    }
}

fn explain_target(verb: &str, target: &Target, profile: Option<&Profile>, memory: bool) -> Shown {
    let (title, table, under) = match target {
        Target::Short(access) => (
            format!("Short path: {verb} {}, {}", access.table.name, describe(access)),
            &access.table,
            access.filter.iter().map(|_| Shown::line(FILTERED)).collect(),
        ),
        Target::Found(table, Finder::Rows(plan)) => (
            format!("Engine: {verb} {}, rows found by", table.name),
            table,
            vec![row::shown(plan, profile, memory)],
        ),
        Target::Found(table, Finder::Foreign(query)) => (
            format!("Engine: {verb} {}, keys found by analytics", table.name),
            table,
            vec![Shown::line(query.to_string())],
        ),
    };
    Shown {
        relation: Some(table.name.clone()),
        under,
        ..Shown::line(title)
    }
}

const FILTERED: &str = "Filter on the rows found";

fn explain_select(select: &SelectPlan) -> Shown {
    let found = |access: &Access| format!("{} on {}", describe(access), access.table.name);
    let title = match (&select.access, &select.extremes) {
        (None, _) => "Short path: no table".to_string(),
        (Some(access), None) => format!("Short path: {}", found(access)),
        (Some(_), Some(list)) => {
            let each: Vec<String> = list.iter().map(|e| format!("first of {}", found(&e.access))).collect();
            format!("Short path: {}", each.join(", "))
        }
    };
    let filtered = select.access.as_ref().is_some_and(|a| a.filter.is_some()) || select.bare_filter.is_some();
    let sorted = !select.order.is_empty();
    let steps = [
        (filtered, FILTERED),
        (select.group.is_some(), "Aggregate"),
        (select.distinct, "Distinct"),
        (sorted && select.served == 0, "Sort"),
        (sorted && select.served > 0, "Sort, in part by the index"),
        (select.limit.is_some() || select.offset.is_some(), "Limit"),
        (select.keys_first, "Rows of these keys"),
        (select.lock.is_some(), "Lock rows"),
    ];
    Shown {
        relation: select.access.as_ref().map(|access| access.table.name.clone()),
        under: steps
            .iter()
            .filter(|(given, _)| *given)
            .map(|(_, step)| Shown::line(*step))
            .collect(),
        ..Shown::line(title)
    }
}
