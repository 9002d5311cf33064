//! How many rows a scan gives: those of its key range, times the part of some of them that passes its filters.

use super::{Conditions, EngineScan, EngineTable, PARALLEL_ROWS, detached};
use crate::analytics::access::{Condition, ScanAccess};
use crate::analytics::filters::{ScanFilter, add, passing};
use arrow::datatypes::Schema;
use cenote_engine::RowBatch;
use datafusion::common::{DFSchemaRef, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::create_physical_expr;
use std::sync::Arc;

/// Places where a table's filters are tried before it is read, and rows at each.
const SAMPLES: usize = 16;
const SAMPLE_ROWS: usize = 64;

impl EngineTable {
    /// About how many rows conditions leave; `schema` has the names by which these call the table's columns. As
    /// planning the scan for itself would say, at a tenth of what that costs.
    ///
    /// # Errors
    /// A condition cannot be evaluated on the table's rows.
    pub fn rows_under(&self, state: &SessionState, conditions: Vec<Expr>, schema: &DFSchemaRef) -> Result<usize> {
        let conditions = simplified(state, conditions, schema)?;
        let scope = self.scope.as_ref().ok_or_else(detached)?;
        let known = Conditions {
            known: conditions
                .iter()
                .filter_map(|c| Condition::read(c, &self.table))
                .collect(),
            open: Vec::new(),
        };
        let of = (self.rows(), &[][..]);
        let access = ScanAccess::choose(&scope.scope.reader, &self.table, of, &known.known);
        let ranges = vec![access.range.clone()];
        let none = (Arc::new(Schema::empty()), None);
        let mut scan = EngineScan::new((self, scope), (known, access), ranges, Vec::new(), none);
        let (properties, context) = (ExecutionProps::new(), PhysicalPlanningContext::default());
        for condition in conditions {
            let condition = create_physical_expr(&condition, schema, &properties, &context)?;
            if let Some(filter) = ScanFilter::new(&condition, &self.table, &self.schema) {
                add(&mut scan.filters, filter, &self.table);
            }
        }
        scan.passing = scan.part_passing();
        Ok(scan.row_guess())
    }
}

/// Conditions with their types settled and their constants folded, as the optimiser does it.
fn simplified(state: &SessionState, conditions: Vec<Expr>, schema: &DFSchemaRef) -> Result<Vec<Expr>> {
    let context = SimplifyContext::builder()
        .with_schema(schema.clone())
        .with_config_options(state.config_options().clone())
        .with_current_time();
    let simplifier = ExprSimplifier::new(context.build());
    let simple = |condition| simplifier.simplify(simplifier.coerce(condition, schema)?);
    let simple = conditions.into_iter().map(simple).collect::<Result<Vec<_>>>()?;
    Ok(simple.into_iter().flat_map(split_conjunction_owned).collect())
}

impl EngineScan {
    /// Rows that it gives, about.
    pub(super) fn row_guess(&self) -> usize {
        ((self.access.rows as f64 * self.passing) as usize).max(1)
    }

    /// Which part of the rows passes the fixed filters, about: tried on some rows of a large table; DataFusion's guess
    /// for a small one.
    pub(super) fn part_passing(&self) -> f64 {
        let guess = if self.access.use_of_key == 0 { 0.2 } else { 1.0 };
        if !self.filters.iter().any(|f| !f.dynamic) {
            return 1.0;
        }
        if (self.access.rows as u64) < PARALLEL_ROWS {
            return guess;
        }
        self.try_filters().unwrap_or(guess)
    }

    fn try_filters(&self) -> Option<f64> {
        let reader = self.reader.as_ref()?;
        let (index, range) = (self.access.index, self.access.range.clone());
        let parts = reader.cut(&self.table, index, range, SAMPLES).ok()?;
        let batches = parts.into_iter().map(|range| {
            let mut batch = RowBatch::new();
            let mut scan = self.rows_of(reader, index, range).batch_rows(SAMPLE_ROWS);
            scan.next_batch(reader, &mut batch).map(|_| batch)
        });
        let batches = batches.collect::<std::result::Result<Vec<_>, _>>().ok()?;
        let rows = batches.iter().flat_map(|b| (0..b.len()).map(|i| b.row(i)));
        passing(&self.filters, &self.table, rows.collect()).ok()
    }
}
