//! Memory of running queries: one limit for all, an account for each query, so that a refusal can say whose queries
//! hold it.
//!
//! Operators ask for what they are about to hold. One that is refused spills, where it can, or ends its query with
//! 53200. What a query holds goes back when it is dropped, a suspended one with its portal, that is, with its session
//! at the latest.

use cenote_engine::{Account, Memory};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionState, TaskContext};
use std::fmt;
use std::sync::Arc;

/// The memory of one query, as its operators see it.
#[derive(Debug)]
pub(crate) struct QueryMemory {
    account: Arc<Account>,
    limit: usize,
}

impl QueryMemory {
    /// A part of `memory`, held under this name.
    pub fn new(memory: &Arc<Memory>, holder: &str) -> Arc<QueryMemory> {
        Arc::new(QueryMemory {
            account: memory.account(holder),
            limit: usize::try_from(memory.limit()).unwrap_or(usize::MAX),
        })
    }

    /// The context in which a query's operators run.
    pub fn context(self: &Arc<Self>, state: &SessionState) -> Arc<TaskContext> {
        let runtime = RuntimeEnv {
            memory_pool: self.clone(),
            ..(**state.runtime_env()).clone()
        };
        Arc::new(TaskContext::from(state).with_runtime(Arc::new(runtime)))
    }
}

impl fmt::Display for QueryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "query memory, {} of {} bytes", self.account.used(), self.limit)
    }
}

impl MemoryPool for QueryMemory {
    fn name(&self) -> &str {
        "query"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        self.account.take_always(additional as u64);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        self.account.give_back(shrink as u64);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.account.take(additional as u64).map_err(|refusal| {
            let operator = reservation.consumer().name();
            DataFusionError::ResourcesExhausted(format!("{operator}: {refusal}"))
        })
    }

    fn reserved(&self) -> usize {
        self.account.used() as usize
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}
