//! From a parsed query to a plan that runs.

use super::apply::Which;
use super::cancel::watched;
use super::context::CatalogNames;
use super::error::{outward, unplanned};
use super::laterals::with_functions_joined;
use super::memberships::with_memberships;
use super::memory::QueryMemory;
use super::multisets::with_copies_counted;
use super::operators::with_boolean_lists;
use super::order::JoinOrder;
use super::rewrite::{RelationNames, expand_any, expand_windows, placeholders, resolve_names, rewrite, shown_name};
use super::runtime::{QueryRuntime, physical};
use super::scan::{EngineScan, EngineTable, PARALLEL_ROWS};
use super::shared::with_shared;
use super::snapshot::Snapshot;
use super::texts::with_texts;
use super::times::Clock;
use super::types::{EPOCH_DAYS, EPOCH_MICROS, NUMERIC_ANY, arrow_type_of_oid, builtin_by_name, pg_type};
use super::{apply, by_rows, numeric, pg_catalog};
use crate::env::holder;
use crate::error::{Result, SqlError, code};
use crate::hook::Description;
use crate::names::qualified;
use crate::output::Field;
use arrow::datatypes::{DataType, Field as ArrowField, FieldRef};
use cenote_engine::{CancelFlag, Datum, Table};
use datafusion::catalog::default_table_source::{provider_as_source, source_as_provider};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, ParamValues, ScalarValue};
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::sql::planner::{NullOrdering, ParserOptions, PlannerContext, SqlToRel};
use sqlparser::ast::{ArrayElemTypeDef, Cte, DataType as TypeName, ObjectName, Query, Statement};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// A query ready to run.
#[derive(Clone)]
pub(crate) struct PlannedQuery {
    pub fields: Arc<[Field]>,
    /// As bound.
    bound: Arc<LogicalPlan>,
    /// What its placeholders stand for; empty where values are in their places.
    values: Arc<[ScalarValue]>,
    /// For EXPLAIN: the logical plan, and the physical one without what watches it.
    shown: Option<(Arc<LogicalPlan>, Arc<dyn ExecutionPlan>)>,
    /// What runs, looking at the cancel flag.
    running: Arc<dyn ExecutionPlan>,
    rows: u64,
    /// Whether its joins are those that spill.
    spills: bool,
    pub memory: Arc<QueryMemory>,
    /// Ids of the user tables that the statement names.
    pub tables: Arc<[u32]>,
    /// Whether `running` can be started again on other rows: no subquery inside an expression keeps what it has read.
    reusable: bool,
}

/// What all runs of a query have in common.
pub(crate) struct QueryForm {
    pub fields: Arc<[Field]>,
    /// As bound, with placeholders, without a snapshot.
    pub bound: Arc<LogicalPlan>,
    /// Rows of its tables when it was planned.
    pub rows: u64,
    /// Ids of its tables.
    pub tables: Arc<[u32]>,
}

impl PlannedQuery {
    /// Starts the query.
    ///
    /// # Errors
    /// An operator refuses to start, or the query memory is full (53200).
    pub fn start(&self, core: &QueryRuntime) -> Result<SendableRecordBatchStream> {
        let state = state_of(core, self.rows, self.spills);
        core.start_plan(self.running.clone(), state, &self.memory)
    }

    /// What runs over `snapshot` by a plan that is kept, with these values.
    pub fn of_form(
        core: &QueryRuntime,
        snapshot: &Snapshot,
        (form, running): (&QueryForm, Arc<dyn ExecutionPlan>),
        values: Arc<[ScalarValue]>,
    ) -> PlannedQuery {
        PlannedQuery {
            fields: form.fields.clone(),
            bound: form.bound.clone(),
            values,
            shown: None,
            running,
            rows: form.rows,
            spills: false,
            memory: memory_of(core, snapshot),
            tables: form.tables.clone(),
            reusable: true,
        }
    }

    /// As bound, with values for its parameters, over a snapshot.
    fn bound_on(&self, snapshot: &Arc<Snapshot>) -> datafusion::common::Result<LogicalPlan> {
        let mut plan = (*self.bound).clone();
        if !self.values.is_empty() {
            plan = plan.replace_params_with_values(&ParamValues::from(self.values.to_vec()))?;
        }
        plan.transform_up_with_subqueries(|node| with_tables(node, |table| table.on_snapshot(snapshot)))
            .data()
    }

    /// EXPLAIN's lines.
    pub fn lines(&self, analyzed: bool) -> Vec<String> {
        let Some((logical, physical)) = &self.shown else {
            return Vec::new();
        };
        let physical = match analyzed {
            false => DisplayableExecutionPlan::new(&**physical).indent(false).to_string(),
            true => DisplayableExecutionPlan::with_metrics(&*self.running)
                .indent(false)
                .to_string(),
        };
        let logical = logical.display_indent().to_string();
        let indented = |text: &str| {
            text.lines()
                .map(|l| format!("  {}", l.replace('\u{1}', "#")))
                .collect::<Vec<_>>()
        };
        let mut lines = vec!["path: analytics (DataFusion)".to_string(), "logical plan:".to_string()];
        lines.extend(indented(&logical));
        lines.push("physical plan:".to_string());
        lines.extend(indented(&physical));
        lines
    }
}

/// The names of a relation's columns: a user table's, a catalog relation's, a system view's.
fn relation_names(snapshot: &Snapshot, name: &ObjectName) -> Option<RelationNames> {
    let (schema, name) = qualified(name).ok()?;
    let own = || {
        let table = snapshot.table(&name)?;
        let named = |at: &usize| table.columns[*at].name.clone();
        let key = table
            .primary_key
            .as_ref()
            .map(|key| key.columns.iter().map(named).collect());
        Some(RelationNames {
            columns: table.columns.iter().map(|c| c.name.clone()).collect(),
            key: key.unwrap_or_default(),
        })
    };
    let catalog = |schema| pg_catalog::columns(snapshot, schema, &name).map(RelationNames::without_key);
    match schema.as_deref() {
        Some("public") => own(),
        Some(schema) => catalog(schema),
        None => own().or_else(|| catalog("pg_catalog")),
    }
}

/// The columns of a result as the protocol tells them, with the types that they have when all conversions are written
/// out: a CASE of a smallint and an integer is an integer then.
pub(super) fn fields_of(core: &QueryRuntime, plan: &LogicalPlan) -> Vec<Field> {
    let state = core.single();
    let converted = TypeCoercion::new().analyze(plan.clone(), state.config_options());
    let converted = converted.as_ref().unwrap_or(plan);
    let types = converted.schema().fields().iter().map(|f| f.data_type());
    let field = |(f, data_type): (&FieldRef, &DataType)| {
        let pg = pg_type(&f.as_ref().clone().with_data_type(data_type.clone()));
        Field {
            name: shown_name(f.name()).into(),
            table_oid: 0,
            column: 0,
            type_oid: pg.oid,
            type_len: pg.len,
            type_mod: pg.modifier,
        }
    };
    plan.schema().fields().iter().zip(types).map(field).collect()
}

/// A query whose names are bound, with placeholders for its parameters.
pub(crate) struct BoundQuery {
    pub plan: LogicalPlan,
    /// Rows of the tables that it names, and these.
    pub rows: u64,
    pub tables: Vec<Arc<Table>>,
    /// Whether the plan holds what only this run knows.
    pub tied: bool,
    pub clock: Clock,
}

fn logical(
    core: &QueryRuntime,
    snapshot: &Arc<Snapshot>,
    query: &Query,
    params: Vec<Option<FieldRef>>,
    values: Option<&[(Datum, u32)]>,
) -> Result<BoundQuery> {
    let mut params = params;
    type_by_casts(query, &mut params);
    let mut query = query.clone();
    let expanded = expand_any(&mut query, values)?;
    expand_windows(&mut query)?;
    resolve_names(&mut query, &|name| relation_names(snapshot, name))?;
    rewrite(&mut query);
    let clock = Clock::of(snapshot);
    let names = CatalogNames {
        planners: core.functions.planners(clock.clone()),
        clock: clock.clone(),
        snapshot,
        functions: &core.functions,
        state: core.single(),
        rows: Cell::new(0),
        tables: RefCell::default(),
        tied: Cell::new(expanded),
    };
    let options = ParserOptions::new()
        .with_parse_float_as_decimal(true)
        .with_default_null_ordering(NullOrdering::NullsMax);
    let mut context = PlannerContext::new().with_prepare_param_data_types(params);
    let plan = SqlToRel::new_with_options(&names, options)
        .sql_statement_to_plan_with_context(Statement::Query(Box::new(query)), &mut context)
        .and_then(with_copies_counted)
        .and_then(with_boolean_lists)
        .and_then(with_functions_joined)
        .and_then(|plan| with_texts(plan, &clock))
        .and_then(with_memberships)
        .map_err(outward)?;
    refuse_outer_aggregates(&plan)?;
    let by_rows = by_rows::is_needed(&plan).map_err(outward)?;
    Ok(BoundQuery {
        plan,
        rows: names.rows.get(),
        tied: names.tied.get() || by_rows,
        tables: names.tables.into_inner(),
        clock,
    })
}

/// An aggregate in a subquery whose columns are all of the query around it belongs to that query. DataFusion takes it
/// for the subquery's, which gives other values.
fn refuse_outer_aggregates(plan: &LogicalPlan) -> Result<()> {
    let outer_only = |expr: &Expr| {
        let outer = expr.exists(|e| Ok(matches!(e, Expr::OuterReferenceColumn(..))));
        Ok::<_, DataFusionError>(outer? && expr.column_refs().is_empty())
    };
    let mut found = false;
    let walked = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            for expr in &aggregate.aggr_expr {
                found |= outer_only(expr)?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    });
    walked.map_err(outward)?;
    match found {
        true => Err(SqlError::unsupported("an aggregate of outer columns in a subquery")),
        false => Ok(()),
    }
}

/// Parameters without a type take that of the cast they stand in.
fn type_by_casts(query: &Query, params: &mut Vec<Option<FieldRef>>) {
    for (number, sql) in super::rewrite::cast_parameters(query) {
        if params.len() < number {
            params.resize(number, None);
        }
        let Some(slot) = number.checked_sub(1).and_then(|i| params.get_mut(i)) else {
            continue;
        };
        if slot.is_none() {
            let bare = sql.to_string();
            let oid = builtin_by_name(bare.split('(').next().unwrap_or(&bare)).map_or(25, |t| t.oid);
            // CatalogNames of objects come as text; the cast looks them up.
            let oid = if matches!(oid, 24 | 2205 | 2206 | 4089) {
                25
            } else {
                oid
            };
            *slot = arrow_type_of_oid(oid).map(|t| param_field(number - 1, t));
        }
    }
}

/// Parameters that a cast makes arrays (`$1::bigint[]`), by number from 1, with the arrays' ids.
fn array_casts(query: &Query) -> impl Iterator<Item = (usize, u32)> {
    let casts = super::rewrite::cast_parameters(query).into_iter();
    casts.filter_map(|(number, sql)| {
        let TypeName::Array(ArrayElemTypeDef::SquareBracket(item, _)) = sql else {
            return None;
        };
        let item = builtin_by_name(&item.to_string())?;
        (item.array != 0).then_some((number, item.array))
    })
}

/// Parameters as values of Arrow's types.
pub(crate) fn values_of(params: &[(Datum, u32)]) -> Result<Arc<[ScalarValue]>> {
    params.iter().map(|(datum, oid)| scalar(datum, *oid)).collect()
}

/// Binds the names of a query whose parameters are of these values' types.
pub(crate) fn bind(
    core: &QueryRuntime,
    snapshot: &Arc<Snapshot>,
    query: &Query,
    (params, values): (&[(Datum, u32)], &[ScalarValue]),
) -> Result<BoundQuery> {
    let types = values.iter().enumerate();
    let types = types.map(|(i, v)| Some(param_field(i, v.data_type()))).collect();
    logical(core, snapshot, query, types, Some(params))
}

/// Plans a bound query with its parameters' values.
pub(crate) fn with_values(
    core: &Arc<QueryRuntime>,
    snapshot: &Arc<Snapshot>,
    bound: BoundQuery,
    values: &[ScalarValue],
) -> Result<PlannedQuery> {
    let mut plan = bound.plan;
    if !values.is_empty() {
        plan = plan
            .replace_params_with_values(&ParamValues::from(values.to_vec()))
            .map_err(outward)?;
    }
    let tables = bound.tables.iter().map(|t| t.id).collect();
    let on = (&snapshot.scope.cancel, memory_of(core, snapshot));
    planned(core, on, plan, (bound.rows, tables), false)
}

/// Plans a query with its parameters' values.
pub(crate) fn plan(
    core: &Arc<QueryRuntime>,
    snapshot: &Arc<Snapshot>,
    query: &Query,
    params: &[(Datum, u32)],
) -> Result<PlannedQuery> {
    let values = values_of(params)?;
    let bound = bind(core, snapshot, query, (params, &values))?;
    with_values(core, snapshot, bound, &values)
}

fn memory_of(core: &QueryRuntime, snapshot: &Snapshot) -> Arc<QueryMemory> {
    QueryMemory::new(&core.memory, &holder(snapshot.scope.pid, &snapshot.scope.user))
}

fn state_of(core: &QueryRuntime, rows: u64, spills: bool) -> &SessionState {
    match core.spilling() {
        Some(state) if spills => state,
        _ => core.state(rows),
    }
}

/// The same query by operators that spill; None: it has them, or there is nowhere to spill to.
pub(crate) fn spilling(
    core: &Arc<QueryRuntime>,
    snapshot: &Arc<Snapshot>,
    former: &PlannedQuery,
) -> Result<Option<PlannedQuery>> {
    if former.spills || core.spilling().is_none() {
        return Ok(None);
    }
    let bound = former.bound_on(snapshot).map_err(outward)?;
    let on = (&snapshot.scope.cancel, former.memory.shared_out());
    planned(core, on, bound, (former.rows, former.tables.clone()), true).map(Some)
}

/// The query with its joins in order, and equal subqueries as one (unless it is to spill); whether there are such.
fn arranged(order: &JoinOrder<'_>, cancel: &Arc<CancelFlag>, bound: &LogicalPlan, spills: bool) -> (LogicalPlan, bool) {
    // What cannot be arranged is planned as it is written, and then says what is wrong.
    let shared = match spills {
        true => None,
        false => with_shared(order, cancel, bound).ok().flatten(),
    };
    let shares = shared.is_some();
    let plan = shared.unwrap_or_else(|| bound.clone());
    (order.of(plan.clone()).unwrap_or(plan), shares)
}

/// The plan of a bound query, which reads so many rows at most, of these tables.
fn planned(
    core: &Arc<QueryRuntime>,
    (cancel, memory): (&Arc<CancelFlag>, Arc<QueryMemory>),
    bound: LogicalPlan,
    (rows, tables): (u64, Arc<[u32]>),
    spills: bool,
) -> Result<PlannedQuery> {
    let state = state_of(core, rows, spills);
    let (arranged, shares) = match rows >= PARALLEL_ROWS {
        true => arranged(&JoinOrder { core, state }, cancel, &bound, spills),
        false => (bound.clone(), false),
    };
    let applied = |which| apply::subqueries(core, cancel, &bound, which).map_err(outward);
    let chosen = match by_rows::is_needed(&bound).map_err(outward)? {
        true => applied(Which::Chosen)?,
        false => None,
    };
    let joined = core.wait(physical(state, chosen.as_ref().unwrap_or(&arranged)));
    let (reusable, (logical, physical)) = match joined {
        Ok(done) => (chosen.is_none() && !shares && !has_recursion(&done.1), done),
        Err(error) => match applied(Which::All)? {
            Some(applied) => (false, core.wait(physical(state, &applied)).map_err(unplanned)?),
            None => return Err(unplanned(error)),
        },
    };
    Ok(PlannedQuery {
        fields: fields_of(core, &bound).into(),
        bound: Arc::new(bound),
        values: Arc::default(),
        running: watched(physical.clone(), cancel).map_err(outward)?,
        shown: Some((Arc::new(logical), physical)),
        rows,
        spills,
        memory,
        tables,
        reusable,
    })
}

/// The query over another snapshot: by the same plan with its scans exchanged where that can be, else planned from its
/// bound form.
pub(crate) fn again(core: &Arc<QueryRuntime>, snapshot: &Arc<Snapshot>, former: &PlannedQuery) -> Result<PlannedQuery> {
    if !former.reusable {
        let bound = former.bound_on(snapshot).map_err(outward)?;
        let on = (&snapshot.scope.cancel, former.memory.clone());
        return planned(core, on, bound, (former.rows, former.tables.clone()), former.spills);
    }
    let running = former.running.clone().transform_up(|node| {
        let node: Arc<dyn ExecutionPlan> = match (&*node as &dyn Any).downcast_ref::<EngineScan>() {
            Some(scan) => Arc::new(scan.on_snapshot(snapshot)),
            None => node.reset_state()?,
        };
        Ok(Transformed::yes(node))
    });
    let running = running.data().map_err(outward)?;
    Ok(PlannedQuery {
        running,
        ..former.clone()
    })
}

/// A scan of an engine's table, over what `change` makes of the table.
pub(super) fn with_tables(
    node: LogicalPlan,
    change: impl Fn(&EngineTable) -> EngineTable,
) -> datafusion::common::Result<Transformed<LogicalPlan>> {
    let LogicalPlan::TableScan(mut scan) = node else {
        return Ok(Transformed::no(node));
    };
    let provider = source_as_provider(&scan.source)?;
    let Some(table) = (&*provider as &dyn Any).downcast_ref::<EngineTable>() else {
        return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
    };
    scan.source = provider_as_source(Arc::new(change(table)));
    Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
}

/// A recursive query's working table is the plan's, and remembers.
pub(super) fn has_recursion(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.name() == "RecursiveQueryExec" || plan.children().into_iter().any(has_recursion)
}

/// Plans a query without values: its columns, and the types of parameters that it decides.
pub(crate) fn describe(
    core: &Arc<QueryRuntime>,
    snapshot: &Arc<Snapshot>,
    query: &Query,
    given: &[u32],
) -> Result<Description> {
    let types = |given: &[u32]| -> Vec<Option<FieldRef>> {
        given
            .iter()
            .enumerate()
            .map(|(i, oid)| arrow_type_of_oid(*oid).filter(|_| *oid != 0).map(|t| param_field(i, t)))
            .collect()
    };
    let plan = logical(core, snapshot, query, types(given), None)?.plan;
    let mut found = plan.get_parameter_types().map_err(outward)?;
    let count = placeholders(query).into_iter().max().unwrap_or(0).max(given.len());
    if found.len() < count {
        for unread in queries_of_with(query) {
            let plan = logical(core, snapshot, &unread, types(given), None)?.plan;
            for (number, data_type) in plan.get_parameter_types().map_err(outward)? {
                found.entry(number).or_insert(data_type);
            }
        }
    }
    let of = |i: usize| match given.get(i).copied().filter(|oid| *oid != 0) {
        Some(oid) => oid,
        None => found
            .get(&format!("${}", i + 1))
            .cloned()
            .flatten()
            .map_or(25, |t| sent_as(pg_type(&ArrowField::new("", t, true)).oid)),
    };
    let mut param_types: Vec<u32> = (0..count).map(of).collect();
    let settled = if param_types == given {
        plan
    } else {
        logical(core, snapshot, query, types(&param_types), None)?.plan
    };
    for (number, array) in array_casts(query) {
        let at = number.wrapping_sub(1);
        if given.get(at).is_none_or(|oid| *oid == 0) && at < count {
            param_types[at] = array;
        }
    }
    Ok(Description {
        fields: fields_of(core, &settled),
        param_types,
    })
}

/// Queries that read what WITH names, one after the other: the plan of a query has no parameter of one that it does not
/// read.
fn queries_of_with(query: &Query) -> Vec<Query> {
    let tables = query.with.iter().flat_map(|with| &with.cte_tables);
    let reading = |table: &Cte| {
        let name = &table.alias.name;
        let text = format!("SELECT * FROM {name}");
        let mut reading = crate::parse::parse_query(&text).ok()?;
        reading.with = query.with.clone();
        Some(reading)
    };
    tables.filter_map(reading).collect()
}

/// Parameters of types that clients rarely know are asked for as one that they do.
fn sent_as(oid: u32) -> u32 {
    match oid {
        26 | 28 => 20,
        known => known,
    }
}

fn param_field(index: usize, data_type: DataType) -> FieldRef {
    Arc::new(ArrowField::new(format!("${}", index + 1), data_type, true))
}

/// A parameter's value in the Arrow type of its type id.
fn scalar(datum: &Datum, oid: u32) -> Result<ScalarValue> {
    let value = match datum {
        Datum::Null => {
            let data_type = arrow_type_of_oid(oid).unwrap_or(DataType::Utf8);
            return ScalarValue::try_from(&data_type).map_err(outward);
        }
        Datum::Bool(v) => ScalarValue::Boolean(Some(*v)),
        Datum::Int2(v) => ScalarValue::Int16(Some(*v)),
        Datum::Int4(v) => ScalarValue::Int32(Some(*v)),
        Datum::Int8(v) => ScalarValue::Int64(Some(*v)),
        Datum::Float4(v) => ScalarValue::Float32(Some(*v)),
        Datum::Float8(v) => ScalarValue::Float64(Some(*v)),
        Datum::Numeric(v) => {
            ScalarValue::Decimal256(Some(numeric::to_i256(v, NUMERIC_ANY.1)?), NUMERIC_ANY.0, NUMERIC_ANY.1)
        }
        Datum::Text(v) => ScalarValue::Utf8(Some(v.clone())),
        Datum::Bytes(v) => ScalarValue::Binary(Some(v.clone())),
        Datum::Date(v) => ScalarValue::Date32(v.checked_add(EPOCH_DAYS)),
        Datum::Timestamp(v) => ScalarValue::TimestampMicrosecond(v.checked_add(EPOCH_MICROS), None),
        Datum::TimestampTz(v) => ScalarValue::TimestampMicrosecond(v.checked_add(EPOCH_MICROS), Some("+00:00".into())),
    };
    match arrow_type_of_oid(oid) {
        Some(wanted) if wanted != value.data_type() => in_type(value, &wanted),
        _ => Ok(value),
    }
}

/// Types that the engine has not come as text (arrays) or as another integer (oid).
fn in_type(value: ScalarValue, wanted: &DataType) -> Result<ScalarValue> {
    if let (ScalarValue::Utf8(Some(text)), DataType::List(item)) = (&value, wanted) {
        let item_type = item.data_type();
        let items = crate::types::array::items(text)?.into_iter().map(|item| match item {
            Some(item) => ScalarValue::try_from_string(item, item_type),
            None => ScalarValue::try_from(item_type),
        });
        let items = items.collect::<datafusion::common::Result<Vec<_>>>().map_err(outward)?;
        return Ok(ScalarValue::List(ScalarValue::new_list(&items, item_type, true)));
    }
    value.cast_to(wanted).map_err(|e| match outward(e) {
        error if error.code() == code::INTERNAL_ERROR => error,
        error => SqlError::new(code::INVALID_TEXT, error.message()),
    })
}
