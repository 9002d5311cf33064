//! CatalogNames in a query: tables, functions, types, as DataFusion's planner asks for them.
//!
//! Tables are found as with `search_path = pg_catalog, public`: catalog relations shadow user tables of the same name
//! only when they are named with their schema; a bare name is a user table first, then a catalog relation or a system
//! view. Functions are those of [`Functions`] (the same for all statements), and those of the catalog that are bound to
//! the statement.

use super::error::inward;
use super::function::Func;
use super::operators::PgTypes;
use super::pg_catalog;
use super::scan::EngineTable;
use super::snapshot::Snapshot;
use super::times::{self, Clock};
use super::{arithmetic, casts};
use crate::error::{SqlError, code};
use arrow::datatypes::{DataType, SchemaRef};
use cenote_engine::Table;
use datafusion::catalog::default_table_source::provider_as_source;
use datafusion::catalog::{TableFunction, TableFunctionArgs, TableProvider};
use datafusion::common::{DFSchema, Result, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::execution::SessionState;
use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, TypePlanner};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{AggregateUDF, Expr, HigherOrderUDF, ScalarUDF, TableSource, WindowUDF};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// Functions that every statement knows.
pub(crate) struct Functions {
    scalar: HashMap<String, Arc<ScalarUDF>>,
    aggregate: HashMap<String, Arc<AggregateUDF>>,
    window: HashMap<String, Arc<WindowUDF>>,
    table: HashMap<String, Arc<TableFunction>>,
    sum: Arc<AggregateUDF>,
    count: Arc<AggregateUDF>,
    types: Arc<dyn TypePlanner>,
}

impl Functions {
    /// DataFusion's, with ours in place of those that PostgreSQL defines otherwise.
    pub fn new() -> Functions {
        let mut scalar = HashMap::new();
        for function in SessionStateDefaults::default_scalar_functions() {
            for name in std::iter::once(function.name()).chain(function.aliases().iter().map(String::as_str)) {
                scalar.insert(name.to_string(), function.clone());
            }
        }
        for function in own_functions() {
            scalar.insert(function.name().to_string(), function);
        }
        for unknown_to_postgresql in [
            "version",
            "now",
            "current_date",
            "today",
            "current_timestamp",
            "arrow_typeof",
            "get_field",
        ] {
            scalar.remove(unknown_to_postgresql);
        }
        let mut aggregate = HashMap::new();
        for function in SessionStateDefaults::default_aggregate_functions() {
            for name in std::iter::once(function.name()).chain(function.aliases().iter().map(String::as_str)) {
                aggregate.insert(name.to_string(), function.clone());
            }
        }
        let sum = datafusion::functions_aggregate::sum::sum_udaf();
        let only = super::aggregates::OnlyValue::udaf();
        aggregate.insert(only.name().into(), only);
        let count = datafusion::functions_aggregate::count::count_udaf();
        let window = SessionStateDefaults::default_window_functions()
            .into_iter()
            .map(|f| (f.name().to_string(), f))
            .collect();
        let table = SessionStateDefaults::default_table_functions()
            .into_iter()
            .map(|f| (f.name().to_string(), f))
            .collect();
        Functions {
            scalar,
            aggregate,
            window,
            table,
            sum,
            count,
            types: Arc::new(PgTypes),
        }
    }

    /// How operators are planned in a statement.
    pub fn planners(&self, clock: Clock) -> Vec<Arc<dyn ExprPlanner>> {
        let own = super::operators::PgPlanner {
            sum: self.sum.clone(),
            count: self.count.clone(),
            clock,
        };
        let mut planners: Vec<Arc<dyn ExprPlanner>> = vec![Arc::new(own)];
        planners.extend(SessionStateDefaults::default_expr_planners());
        planners
    }
}

fn own_functions() -> Vec<Arc<ScalarUDF>> {
    vec![
        arithmetic::negate().udf(),
        arithmetic::rounding("round").udf(),
        arithmetic::rounding("trunc").udf(),
        arithmetic::to_whole("ceil").udf(),
        arithmetic::to_whole("ceiling").udf(),
        arithmetic::to_whole("floor").udf(),
        casts::to_integer("cenote_int2", DataType::Int16).udf(),
        casts::to_integer("cenote_int4", DataType::Int32).udf(),
        casts::to_integer("cenote_int8", DataType::Int64).udf(),
        casts::to_numeric().udf(),
        casts::unscaled().udf(),
        casts::to_text("cenote_text").udf(),
        casts::is_open().udf(),
        casts::to_varchar().udf(),
        casts::to_bpchar().udf(),
        super::series::series().udf(),
        super::times::timezone().udf(),
        casts::md5().udf(),
        casts::like_pattern().udf(),
        super::formatting::to_char().udf(),
    ]
}

/// The planner's view of one statement.
pub(crate) struct CatalogNames<'a> {
    pub snapshot: &'a Arc<Snapshot>,
    pub functions: &'a Functions,
    pub state: &'a SessionState,
    pub clock: Clock,
    pub planners: Vec<Arc<dyn ExprPlanner>>,
    /// Rows of all user tables that the statement names, to choose how it runs.
    pub rows: Cell<u64>,
    /// The tables, as asked for: FROM's first relation is the first.
    pub tables: RefCell<Vec<Arc<Table>>>,
    /// Whether the statement asks for what only this run knows: the catalog, the session, the time.
    pub tied: Cell<bool>,
}

impl CatalogNames<'_> {
    fn table(&self, name: &TableReference) -> Result<Arc<dyn TableProvider>> {
        let missing = || {
            let shown = match name.schema() {
                Some(schema) => format!("{schema}.{}", name.table()),
                None => name.table().to_string(),
            };
            inward(SqlError::new(
                code::UNDEFINED_TABLE,
                format!("relation \"{shown}\" does not exist"),
            ))
        };
        let user_tables = self.tables.borrow().len();
        let found = match name.schema() {
            Some(schema @ ("pg_catalog" | "information_schema")) => {
                pg_catalog::relation(self.snapshot, schema, name.table())
            }
            Some("public") => self.user_table(name.table())?,
            Some(_) => None,
            None => self
                .user_table(name.table())?
                .or_else(|| pg_catalog::relation(self.snapshot, "pg_catalog", name.table()))
                .or_else(|| pg_catalog::system_view(self.snapshot, name.table())),
        };
        if self.tables.borrow().len() == user_tables {
            self.tied.set(true);
        }
        found.ok_or_else(missing)
    }

    /// A table to read: the only place where a table that the snapshot cannot read is refused, since the statement
    /// names it.
    fn user_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(table) = self.snapshot.table(name) else {
            return Ok(None);
        };
        let refused = self.snapshot.scope.reader.refuse_replaced(table);
        refused.map_err(|error| inward(error.into()))?;
        self.rows
            .set(self.rows.get().saturating_add(self.snapshot.engine.row_estimate(table)));
        let mut tables = self.tables.borrow_mut();
        let first = tables.is_empty();
        tables.push(table.clone());
        let table = EngineTable::new(table.clone(), self.snapshot.clone(), first);
        Ok(Some(Arc::new(table)))
    }
}

impl ContextProvider for CatalogNames<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        Ok(provider_as_source(self.table(&name)?))
    }

    fn get_table_function_source(&self, name: &str, args: Vec<Expr>) -> Result<Arc<dyn TableSource>> {
        let Some(function) = self.functions.table.get(name) else {
            return Err(inward(SqlError::new(
                code::UNDEFINED_FUNCTION,
                format!("function {name}() does not exist"),
            )));
        };
        let context = SimplifyContext::builder()
            .with_config_options(Arc::clone(self.state.config_options()))
            .build();
        let simplifier = ExprSimplifier::new(context);
        let none = DFSchema::empty();
        let args = args
            .into_iter()
            .map(|arg| simplifier.coerce(arg, &none).and_then(|e| simplifier.simplify(e)))
            .collect::<Result<Vec<_>>>()?;
        Ok(provider_as_source(function.create_table_provider_with_args(
            TableFunctionArgs::new(&args, self.state),
        )?))
    }

    fn create_cte_work_table(&self, name: &str, schema: SchemaRef) -> Result<Arc<dyn TableSource>> {
        Ok(provider_as_source(Arc::new(
            datafusion::catalog::cte_worktable::CteWorkTable::new(name, schema),
        )))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(self.functions.types.clone())
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        let of_catalog = pg_catalog::function(self.snapshot, name).inspect(|_| self.tied.set(true));
        of_catalog
            .or_else(|| times::function(&self.clock, name).map(Func::udf))
            .or_else(|| self.functions.scalar.get(name).cloned())
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.functions.aggregate.get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.functions.window.get(name).cloned()
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        self.state.config_options()
    }

    fn udf_names(&self) -> Vec<String> {
        self.functions.scalar.keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.functions.aggregate.keys().cloned().collect()
    }

    fn udwf_names(&self) -> Vec<String> {
        self.functions.window.keys().cloned().collect()
    }
}
