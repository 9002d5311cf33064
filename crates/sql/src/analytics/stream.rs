//! A scan at work: rows in chunks, filtered, then copied into Arrow's columns.
//!
//! A chunk's rows stay where the engine put them (the bytes of whole leaves) until the filters have seen them.

use super::columns::Column;
use super::error::{canceled, engine_error, inward};
use super::filters::{RunningFilter, ScanFilter};
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use cenote_engine::catalog::Table;
use cenote_engine::{CancelFlag, ColumnReader, Reader, RowBatch, RowScan};
use datafusion::common::Result;
use datafusion::execution::RecordBatchStream;
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Rows in a batch.
pub(crate) const BATCH_ROWS: usize = 8192;

/// Rows after which a chunk is complete; the leaf begun is taken whole.
const CHUNK_ROWS: usize = 1024;
/// Bytes after which it is.
const CHUNK_BYTES: usize = 4 << 20;
/// Chunks that a poll reads at most where no row passes the filters.
const CHUNKS_A_POLL: usize = 64;

/// Where a scan's rows come from.
pub(crate) enum Source {
    /// A key range, or keys that are looked up.
    Scan(Box<RowScan>),
    /// At most one row.
    Row(Option<Vec<u8>>),
}

/// Rows of a chunk.
#[derive(Default)]
struct Chunk {
    /// The first `used` hold rows.
    batches: Vec<RowBatch>,
    used: usize,
    rows: usize,
    total: usize,
}

impl Chunk {
    fn clear(&mut self) {
        (self.used, self.rows, self.total) = (0, 0, 0);
    }

    fn is_full(&self) -> bool {
        self.rows >= CHUNK_ROWS || self.total >= CHUNK_BYTES
    }

    /// The batch to fill next.
    fn next(&mut self) -> &mut RowBatch {
        if self.used == self.batches.len() {
            self.batches.push(RowBatch::new());
        }
        &mut self.batches[self.used]
    }

    /// Takes the batch filled last as it is.
    fn keep(&mut self) {
        let batch = &self.batches[self.used];
        self.rows += batch.len();
        self.total += batch.bytes();
        self.used += 1;
    }

    fn rows(&self) -> Vec<&[u8]> {
        let mut rows = Vec::with_capacity(self.rows);
        for batch in &self.batches[..self.used] {
            rows.extend((0..batch.len()).map(|i| batch.row(i)));
        }
        assert_eq!(rows.len(), self.rows, "each row of the chunk is given");
        rows
    }
}

type Begin = Box<dyn FnOnce(&Reader) -> Source + Send>;

/// The rows of one partition.
pub(crate) struct ScanStream {
    table: Arc<Table>,
    reader: Reader,
    cancel: Arc<CancelFlag>,
    schema: SchemaRef,
    /// Asked at the first poll: the filters know by then what joins have learned.
    begin: Option<Begin>,
    source: Source,
    filters: Vec<RunningFilter>,
    readers: Vec<ColumnReader>,
    columns: Vec<Column>,
    chunk: Chunk,
    /// Rows in `columns`.
    rows: usize,
    /// Rows until the limit.
    left: usize,
    done: bool,
}

impl ScanStream {
    /// Columns of a table's rows, read from a source that is asked for when the first row is.
    pub fn new(
        (table, reader, cancel): (Arc<Table>, Reader, Arc<CancelFlag>),
        begin: Begin,
        (columns, schema): (Arc<[usize]>, SchemaRef),
        filters: Vec<ScanFilter>,
        limit: Option<usize>,
    ) -> ScanStream {
        ScanStream {
            readers: columns.iter().map(|c| table.layout().reader(*c)).collect(),
            columns: columns.iter().map(|c| Column::new(table.columns[*c].ty)).collect(),
            filters: filters.into_iter().map(RunningFilter::new).collect(),
            table,
            reader,
            cancel,
            schema,
            begin: Some(begin),
            source: Source::Row(None),
            chunk: Chunk::default(),
            rows: 0,
            left: limit.unwrap_or(usize::MAX),
            done: false,
        }
    }

    /// Reads a chunk, and takes over what passes the filters.
    fn step(&mut self) -> Result<()> {
        if self.cancel.is_set() {
            return Err(inward(canceled()));
        }
        if let Some(begin) = self.begin.take() {
            self.source = begin(&self.reader);
        }
        let more = self.fill()?;
        let mut rows = self.chunk.rows();
        for filter in &mut self.filters {
            if rows.is_empty() {
                break;
            }
            filter.keep(&self.table, &mut rows)?;
        }
        rows.truncate(self.left);
        for (column, reader) in self.columns.iter_mut().zip(&self.readers) {
            column.append(reader, &rows).map_err(inward)?;
        }
        self.left -= rows.len();
        self.rows += rows.len();
        self.done = !more || self.left == 0;
        Ok(())
    }

    /// Fills the chunk; false at the end.
    fn fill(&mut self) -> Result<bool> {
        let chunk = &mut self.chunk;
        chunk.clear();
        let failed = |error| inward(engine_error(error));
        while !chunk.is_full() {
            match &mut self.source {
                Source::Scan(scan) => {
                    if !scan.next_batch(&self.reader, chunk.next()).map_err(failed)? {
                        return Ok(false);
                    }
                    chunk.keep();
                }
                Source::Row(row) => {
                    if let Some(row) = row.take() {
                        *chunk.next() = RowBatch::of_row(&row);
                        chunk.keep();
                    }
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The rows taken over since the last batch.
    fn batch(&mut self) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        self.rows = 0;
        let arrays = self.columns.iter_mut().map(Column::finish).collect();
        Ok(RecordBatch::try_new_with_options(
            self.schema.clone(),
            arrays,
            &options,
        )?)
    }
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        for _ in 0..CHUNKS_A_POLL {
            if !self.done
                && let Err(error) = self.step()
            {
                self.done = true;
                self.rows = 0;
                return Poll::Ready(Some(Err(error)));
            }
            // Another chunk might not fit a batch.
            if self.rows > 0 && (self.done || self.rows > BATCH_ROWS - 2 * CHUNK_ROWS) {
                return Poll::Ready(Some(self.batch()));
            }
            if self.done {
                return Poll::Ready(None);
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl RecordBatchStream for ScanStream {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
