//! Memory of running queries: one limit for all, an account for each query, so that a refusal can say whose queries
//! hold it.
//!
//! Operators ask for what they are about to hold. One that is refused spills, where it can, or ends its query with
//! 53200. What a query holds goes back when it is dropped, a suspended one with its portal, that is, with its session
//! at the latest.

use cenote_engine::{Account, Memory};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionState, TaskContext};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of one query, as its operators see it.
#[derive(Debug)]
pub(crate) struct QueryMemory {
    account: Arc<Account>,
    limit: usize,
    /// Of a query whose operators spill: what they have, so that each gets its share. Whoever came first would take
    /// all, and leave the others too little to merge what they spilled.
    shares: Option<Mutex<Shares>>,
}

/// Memory by kind of operator.
#[derive(Debug, Default)]
struct Shares {
    /// Operators that can spill.
    spillers: usize,
    /// Bytes that the others hold.
    fixed: usize,
}

impl QueryMemory {
    /// A part of `memory`, held under this name.
    pub fn new(memory: &Arc<Memory>, holder: &str) -> Arc<QueryMemory> {
        Arc::new(QueryMemory {
            account: memory.account(holder),
            limit: usize::try_from(memory.limit()).unwrap_or(usize::MAX),
            shares: None,
        })
    }

    /// The same memory, of which each operator that can spill gets a share.
    pub fn shared_out(&self) -> Arc<QueryMemory> {
        Arc::new(QueryMemory {
            account: self.account.clone(),
            limit: self.limit,
            shares: Some(Mutex::default()),
        })
    }

    /// Notes that an operator's memory grows (or shrinks); false: it has its share already.
    fn note(&self, reservation: &MemoryReservation, grown: usize, shrunk: usize) -> bool {
        let Some(shares) = &self.shares else { return true };
        let mut shares = locked(shares);
        if !reservation.consumer().can_spill() {
            shares.fixed = (shares.fixed + grown).saturating_sub(shrunk);
            return true;
        }
        // A quarter waits for the others: a sort that spills asks for the memory of its merge only when it has rows.
        let others = shares.fixed.max(self.limit / 4);
        let share = self.limit.saturating_sub(others) / shares.spillers.max(1);
        reservation.size() + grown <= share
    }

    /// Bytes that the query's operators hold.
    pub fn used(&self) -> u64 {
        self.account.used()
    }

    /// The context in which a query's operators run.
    pub fn context(self: &Arc<Self>, state: &SessionState) -> Arc<TaskContext> {
        let runtime = RuntimeEnv {
            memory_pool: self.clone(),
            ..(**state.runtime_env()).clone()
        };
        // Operators have their functions: no registry is copied for them.
        Arc::new(TaskContext::new(
            None,
            state.session_id().to_string(),
            state.config().clone(),
            HashMap::new(),
            HashMap::new(),
            HashMap::new(),
            HashMap::new(),
            Arc::new(runtime),
        ))
    }
}

/// A panic elsewhere leaves the counts as they were.
fn locked(shares: &Mutex<Shares>) -> MutexGuard<'_, Shares> {
    shares.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn register(&self, consumer: &MemoryConsumer) {
        if let Some(shares) = self.shares.as_ref().filter(|_| consumer.can_spill()) {
            locked(shares).spillers += 1;
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if let Some(shares) = self.shares.as_ref().filter(|_| consumer.can_spill()) {
            let mut shares = locked(shares);
            assert!(shares.spillers > 0, "an operator was registered before");
            shares.spillers -= 1;
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.note(reservation, additional, 0);
        self.account.take_always(additional as u64);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.note(reservation, 0, shrink);
        self.account.give_back(shrink as u64);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let operator = reservation.consumer().name();
        if !self.note(reservation, additional, 0) {
            let text = format!("{operator}: it has its share of the query memory");
            return Err(DataFusionError::ResourcesExhausted(text));
        }
        self.account.take(additional as u64).map_err(|refusal| {
            self.note(reservation, 0, additional);
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
