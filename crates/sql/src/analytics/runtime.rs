//! What runs queries: limits, threads, memory and the optimiser's states. Made at the first query.

use super::context::Functions;
use super::doubles::NearestFloats;
use super::error::{canceled, outward};
use super::evict::KeptPlans;
use super::memory::QueryMemory;
use super::scan::PARALLEL_ROWS;
use super::stream::BATCH_ROWS;
use crate::error::{Result, SqlError};
use crate::hook::DEFAULT_QUERY_MEMORY;
use arrow::array::RecordBatch;
use cenote_engine::{CancelFlag, Memory};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::join_selection::JoinSelection;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Limits of analytical queries.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes that all running queries together may hold.
    pub memory_limit: usize,
    /// Where sorts and aggregates spill; None: they fail instead.
    pub spill: Option<PathBuf>,
    /// Threads that help a query.
    pub threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            memory_limit: DEFAULT_QUERY_MEMORY as usize,
            spill: None,
            threads: std::thread::available_parallelism().map_or(2, |n| n.get().min(8)),
        }
    }
}

/// How long a computation may go on before the cancel flag is looked at.
const CANCEL_CHECK: Duration = Duration::from_millis(50);

/// How long a query that starts over waits for the memory of its first run.
const MEMORY_WAIT: Duration = Duration::from_secs(2);

/// Keys of a join's small side that its other side's scan may look up, and their bytes.
const LOOK_UPS: usize = 100_000;
const LOOK_UP_BYTES: usize = 4 << 20;

/// Bytes of a plan, about.
pub(crate) const PLAN_BYTES: usize = 64 << 10;

/// Plans that are kept may take so little of what queries may hold.
const KEPT_SHARE: usize = 8;

/// What all queries share: threads, memory budget, functions, optimiser.
pub(crate) struct QueryRuntime {
    runtime: tokio::runtime::Runtime,
    /// What running queries may hold.
    pub memory: Arc<Memory>,
    pub functions: Functions,
    /// Plans that statements keep.
    pub kept: KeptPlans,
    /// For small inputs: one thread, no exchange between operators.
    single: SessionState,
    parallel: SessionState,
    /// For queries whose hash joins need too much: joins that sort, and spill. None: there is nowhere to spill to.
    spilling: Option<SessionState>,
}

/// Address space of a query thread's stack: plans are as deep as [`crate::parse`] lets statements be.
const STACK_BYTES: usize = 64 << 20;

impl QueryRuntime {
    /// Starts the runtime.
    ///
    /// # Errors
    /// 53000: the system has no thread for queries.
    pub fn start(config: &Config) -> Result<QueryRuntime> {
        let threads = config.threads.max(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("query")
            .thread_stack_size(STACK_BYTES)
            .enable_time()
            .build()
            .map_err(|e| SqlError::new("53000", format!("cannot start query threads: {e}")))?;
        let disk = match &config.spill {
            Some(path) => DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![emptied(path)])),
            None => DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled),
        };
        let memory = Memory::new(config.memory_limit as u64, 1);
        let environment = RuntimeEnvBuilder::new()
            .with_memory_pool(QueryMemory::new(&memory, "subqueries"))
            .with_disk_manager_builder(disk)
            .build_arc()
            .map_err(outward)?;
        let state = |partitions, hash_joins| {
            let mut session = SessionConfig::new()
                .with_target_partitions(partitions)
                .with_batch_size(BATCH_ROWS)
                .with_information_schema(false)
                .with_create_default_catalog_and_schema(false);
            let options = session.options_mut();
            options.optimizer.prefer_hash_join = hash_joins;
            // Plans of one partition are kept: the filter of an aggregate would remember the last run's rows.
            options.optimizer.enable_aggregate_dynamic_filter_pushdown = partitions > 1;
            options.optimizer.hash_join_inlist_pushdown_max_distinct_values = LOOK_UPS;
            options.optimizer.hash_join_inlist_pushdown_max_size = LOOK_UP_BYTES;
            let reserved = &mut options.execution.sort_spill_reservation_bytes;
            *reserved = (*reserved).min(config.memory_limit / 32);
            let builder = SessionStateBuilder::new()
                .with_config(session)
                .with_analyzer_rule(Arc::new(NearestFloats))
                .with_physical_optimizer_rules(rules())
                .with_runtime_env(environment.clone());
            builder
                .with_aggregate_functions(datafusion::execution::SessionStateDefaults::default_aggregate_functions())
                .build()
        };
        Ok(QueryRuntime {
            functions: Functions::new(),
            kept: KeptPlans::new(config.memory_limit / KEPT_SHARE / PLAN_BYTES),
            single: state(1, true),
            parallel: state(threads, true),
            // DataFusion has joins that sort for several partitions only.
            spilling: config.spill.is_some().then(|| state(threads.max(2), false)),
            runtime,
            memory,
        })
    }

    /// Drives a future on this thread, with the runtime's workers at hand.
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// The next batch of a query; the cancel flag is heeded while operators compute between batches, too.
    ///
    /// # Errors
    /// 57014 once the cancel flag is set.
    pub fn next_batch(
        &self,
        stream: &mut SendableRecordBatchStream,
        cancel: &CancelFlag,
    ) -> Result<Option<datafusion::common::Result<RecordBatch>>> {
        self.wait(async {
            loop {
                if cancel.is_set() {
                    return Err(canceled());
                }
                if let Ok(batch) = tokio::time::timeout(CANCEL_CHECK, stream.next()).await {
                    return Ok(batch);
                }
            }
        })
    }

    /// The state for plans that read so many rows.
    pub fn state(&self, rows: u64) -> &SessionState {
        if rows >= PARALLEL_ROWS {
            &self.parallel
        } else {
            &self.single
        }
    }

    /// The state for plans that spill where they can.
    pub fn spilling(&self) -> Option<&SessionState> {
        self.spilling.as_ref()
    }

    /// Waits until a query that was dropped has given its memory back: its parts end in their own threads.
    pub fn wait_for_memory(&self, memory: &QueryMemory) {
        let ended = async {
            while memory.used() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // What is left then counts against the query, as it did before.
        let _ = self.wait(async { tokio::time::timeout(MEMORY_WAIT, ended).await });
    }

    /// The state for plans that run inside another plan's expression.
    pub fn single(&self) -> &SessionState {
        &self.single
    }

    /// Starts a plan that was made in this state.
    ///
    /// # Errors
    /// An operator refuses to start, or the query memory is full (53200).
    pub fn start_plan(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        state: &SessionState,
        memory: &Arc<QueryMemory>,
    ) -> Result<SendableRecordBatchStream> {
        let _inside = self.runtime.enter();
        execute_stream(plan, memory.context(state)).map_err(outward)
    }
}

/// The optimised plan of a query, and what carries it out.
///
/// # Errors
/// DataFusion refuses the plan.
pub(crate) async fn physical(
    state: &SessionState,
    plan: &LogicalPlan,
) -> datafusion::common::Result<(LogicalPlan, Arc<dyn ExecutionPlan>)> {
    let optimized = state.optimize(plan)?;
    let physical = state.query_planner().create_physical_plan(&optimized, state).await?;
    Ok((optimized, physical))
}

/// DataFusion's rules for physical plans; scans take their filters over before joins choose their sides, since they
/// know better how many rows are left.
fn rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    let place = |name: &str| rules.iter().position(|rule| rule.name() == name);
    let before = FilterPushdown::new();
    if let (Some(joins), Some(filters)) = (place(JoinSelection::new().name()), place(before.name()))
        && joins < filters
    {
        let rule = rules.remove(filters);
        rules.insert(joins, rule);
    }
    rules
}

/// The spill directory without what a killed process left there.
fn emptied(path: &Path) -> PathBuf {
    // What cannot be removed only takes room: a query that cannot write there fails by itself.
    let _ = std::fs::remove_dir_all(path);
    path.to_path_buf()
}
