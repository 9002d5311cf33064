//! SELECT of any shape, planned and run by DataFusion over the statement's snapshot; the catalog that tools ask for;
//! EXPLAIN of both.
//!
//! The path of a query:
//! 1. [`rewrite`]: PostgreSQL's syntax and column names in the parsed query.
//! 2. [`context`], [`operators`]: names and operators become a logical plan with PostgreSQL's types.
//! 3. Of a small statement the plan is kept ([`kept`]), and the next run begins here. DataFusion optimises; where it cannot plan a correlated subquery, [`apply`] turns that into a function evaluated
//!    row by row.
//! 4. [`scan`] reads the engine's rows in batches; the session's own thread drives the query, workers of a small
//!    runtime help. A query can be run again about one row of the table that FROM names first, by the plan that it has
//!    ([`plan::again`]).
//! 5. [`wire`] writes Arrow's cells as PostgreSQL's text or binary.
//!
//! Invariants:
//! - Nothing is started before the first query: no thread, no memory.
//! - A query never waits for row locks and sees exactly the snapshot of its [`Scope`].
//! - Memory is bounded ([`Config::memory_limit`], shared by all queries): beyond it operators spill where they can, and
//!   a query that has given no row yet starts over with joins that can; else 53200.
//! - A panic inside DataFusion is an error of the statement.

mod access;
mod aggregates;
mod apply;
mod arithmetic;
mod by_rows;
mod cancel;
mod casts;
mod columns;
mod context;
mod distinct;
mod doubles;
mod error;
mod evict;
mod expressions;
mod filters;
mod formatting;
mod function;
mod items;
mod kept;
mod laterals;
mod memberships;
mod memory;
mod multisets;
mod numeric;
mod operators;
mod order;
mod outer;
mod parameters;
mod pg_catalog;
mod plan;
mod rewrite;
mod runtime;
mod scan;
mod series;
mod shared;
mod snapshot;
mod stream;
mod texts;
mod times;
mod types;
mod unions;
mod wire;

pub use runtime::Config;

use crate::error::{Result, SqlError, code};
use crate::hook::{Analytics, Description, ForeignQuery, Rows, Scope, SystemViews};
use crate::output::{Field, Formats};
use crate::settings::Settings;
use arrow::array::RecordBatch;
use bytes::BytesMut;
use cenote_engine::{Datum, Engine, Reader};
use datafusion::execution::SendableRecordBatchStream;
use kept::Lease;
use plan::PlannedQuery;
use runtime::{PLAN_BYTES, QueryRuntime};
use snapshot::Snapshot;
use sqlparser::ast::Query;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Queries through DataFusion.
pub struct DataFusion {
    engine: Arc<Engine>,
    views: Option<Arc<dyn SystemViews>>,
    config: Config,
    core: OnceLock<std::result::Result<Arc<QueryRuntime>, SqlError>>,
}

impl DataFusion {
    /// Queries over `engine`. Starts nothing.
    pub fn new(engine: Arc<Engine>, views: Option<Arc<dyn SystemViews>>, config: Config) -> Arc<DataFusion> {
        Arc::new(DataFusion {
            engine,
            views,
            config,
            core: OnceLock::new(),
        })
    }

    /// Queries that ran by a plan which an earlier run had left.
    pub fn kept_runs(&self) -> u64 {
        let runs = |core: &Arc<QueryRuntime>| core.kept.runs.load(Ordering::Relaxed);
        self.core.get().and_then(|core| core.as_ref().ok()).map_or(0, runs)
    }

    fn core(&self) -> Result<Arc<QueryRuntime>> {
        self.core
            .get_or_init(|| QueryRuntime::start(&self.config).map(Arc::new))
            .clone()
    }

    fn snapshot(&self, scope: &Scope) -> Arc<Snapshot> {
        Arc::new(Snapshot {
            scope: scope.clone(),
            engine: self.engine.clone(),
            views: self.views.clone(),
            only: None,
        })
    }
}

/// Runs `f`; a panic becomes an error of the statement.
fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(SqlError::internal(format!(
            "the query planner or executor failed: {}",
            text.unwrap_or_default()
        )))
    })
}

impl Analytics for DataFusion {
    fn describe(&self, scope: &Scope, query: &Query, param_types: &[u32]) -> Result<Description> {
        let (core, snapshot) = (self.core()?, self.snapshot(scope));
        guarded(|| plan::describe(&core, &snapshot, query, param_types))
    }

    fn query(&self, scope: &Scope, query: &ForeignQuery, params: &[(Datum, u32)]) -> Result<Box<dyn Rows>> {
        let (core, snapshot) = (self.core()?, self.snapshot(scope));
        guarded(|| {
            let (planned, lease) = kept::planned(&core, &snapshot, query, params)?;
            let stream = planned.start(&core)?;
            Ok(Box::new(Running {
                stream: Some(stream),
                core,
                planned,
                _lease: lease,
                batch: None,
                row: 0,
                begun: false,
                snapshot,
            }) as Box<dyn Rows>)
        })
    }

    fn memory_limit(&self) -> u64 {
        self.config.memory_limit as u64
    }

    fn explain(&self, scope: &Scope, query: &Query, params: &[(Datum, u32)], analyze: bool) -> Result<Vec<String>> {
        let (core, snapshot) = (self.core()?, self.snapshot(scope));
        guarded(|| {
            let planned = plan::plan(&core, &snapshot, query, params)?;
            if analyze {
                let mut stream = planned.start(&core)?;
                while let Some(batch) = core.next_batch(&mut stream, &scope.cancel)? {
                    batch.map_err(error::outward)?;
                }
            }
            Ok(planned.lines(analyze))
        })
    }
}

/// A running query. `stream` is dropped first: it stops what still runs.
struct Running {
    stream: Option<SendableRecordBatchStream>,
    batch: Option<RecordBatch>,
    /// Rows of `batch` that were moved to; the current one is `row - 1`.
    row: usize,
    /// Whether a batch has come: from then on the query cannot start over.
    begun: bool,
    planned: PlannedQuery,
    /// The kept plan that it runs by.
    _lease: Option<Lease>,
    core: Arc<QueryRuntime>,
    snapshot: Arc<Snapshot>,
}

impl Running {
    /// Starts over with operators that spill, where the query memory was full before the first batch.
    fn spill(&mut self, error: SqlError) -> Result<()> {
        if self.begun || error.code() != code::OUT_OF_MEMORY {
            return Err(error);
        }
        let core = &self.core;
        let Some(planned) = guarded(|| plan::spilling(core, &self.snapshot, &self.planned))? else {
            return Err(error);
        };
        // What the former plan has built is a part of it.
        self.stream = None;
        self.planned = planned;
        core.wait_for_memory(&self.planned.memory);
        self.stream = Some(guarded(|| self.planned.start(core))?);
        Ok(())
    }

    fn current(&self) -> Result<(&RecordBatch, usize)> {
        match (&self.batch, self.row.checked_sub(1)) {
            (Some(batch), Some(row)) => Ok((batch, row)),
            _ => Err(SqlError::internal("no current row")),
        }
    }
}

impl Rows for Running {
    fn fields(&self) -> &[Field] {
        &self.planned.fields
    }

    fn next(&mut self) -> Result<bool> {
        loop {
            if self.batch.as_ref().is_some_and(|b| self.row < b.num_rows()) {
                self.row += 1;
                return Ok(true);
            }
            let Some(stream) = &mut self.stream else {
                return Ok(false);
            };
            let core = &self.core;
            let cancel = &self.snapshot.scope.cancel;
            match guarded(|| core.next_batch(stream, cancel))? {
                Some(Err(error)) => self.spill(error::outward(error))?,
                Some(Ok(batch)) => {
                    self.batch = Some(batch);
                    (self.row, self.begun) = (0, true);
                }
                None => {
                    self.stream = None;
                    self.batch = None;
                    return Ok(false);
                }
            }
        }
    }

    fn encode(&self, formats: Formats<'_>, settings: &Settings, out: &mut BytesMut) -> Result<()> {
        let (batch, row) = self.current()?;
        for (i, (column, field)) in batch.columns().iter().zip(self.planned.fields.iter()).enumerate() {
            wire::append_counted(out, |out| match formats.of(i) {
                crate::output::Format::Text if wire::is_vector(field.type_oid) => {
                    wire::append_vector(out, &**column, row)
                }
                _ if field.type_oid == types::BPCHAR => wire::append_padded(out, &**column, row, field.type_mod),
                crate::output::Format::Text => wire::append_text(out, &**column, row, settings.zone()),
                crate::output::Format::Binary => wire::append_binary(out, &**column, row, field.type_oid),
            })?;
        }
        Ok(())
    }

    fn again(&mut self, reader: Reader, row: &[u8]) -> Result<()> {
        (self.stream, self.batch, self.row, self.begun) = (None, None, 0, false);
        self.snapshot = Arc::new(Snapshot {
            scope: Scope {
                reader,
                ..self.snapshot.scope.clone()
            },
            engine: self.snapshot.engine.clone(),
            views: self.snapshot.views.clone(),
            only: Some(row.to_vec()),
        });
        let (core, snapshot) = (&self.core, &self.snapshot);
        let (planned, stream) = guarded(|| {
            let planned = plan::again(core, snapshot, &self.planned)?;
            let stream = planned.start(core)?;
            Ok((planned, stream))
        })?;
        (self.planned, self.stream) = (planned, Some(stream));
        Ok(())
    }

    fn datums(&self) -> Result<Vec<Datum>> {
        let (batch, row) = self.current()?;
        batch
            .columns()
            .iter()
            .map(|column| wire::datum(&**column, row))
            .collect()
    }

    fn held_bytes(&self) -> usize {
        PLAN_BYTES + self.batch.as_ref().map_or(0, RecordBatch::get_array_memory_size)
    }

    fn tables(&self) -> &[u32] {
        &self.planned.tables
    }
}
