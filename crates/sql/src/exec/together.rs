//! Rows of one statement that are inserted together.

use crate::error::SqlError;
use cenote_engine::{NewRows, Table, Tx};

/// Rows that are gathered at most. As many as PostgreSQL's COPY gathers.
const ROWS_MAX: usize = 1000;
/// Bytes of rows that are gathered: where there are more, they are inserted.
const BYTES_MAX: usize = 64 << 10;

/// Rows that are not inserted yet.
#[derive(Default)]
pub struct Together {
    rows: NewRows,
}

/// Rows could not be inserted.
pub struct Failed {
    /// Number, among them, of the row that the error is about.
    pub row: usize,
    /// Why.
    pub error: SqlError,
}

impl Together {
    /// Adds a row. True: they are to be inserted before another is added.
    pub fn add(&mut self, row: &[u8]) -> bool {
        self.rows.push(row);
        self.rows.len() >= ROWS_MAX || self.rows.bytes() >= BYTES_MAX
    }

    /// Inserts the rows; gives their count. After an error the statement is to be taken back.
    ///
    /// # Errors
    /// 23505, and as the engine's locks and storage: see [`Failed`].
    pub fn insert(&mut self, tx: &mut Tx, table: &Table) -> Result<u64, Failed> {
        let mut row = 0;
        let done = tx.insert_rows(table, &self.rows, &mut row);
        let done = match done {
            Ok(None) => Ok(self.rows.len() as u64),
            Ok(Some(refused)) => Err(Failed {
                row: refused.row,
                error: table.unique_violation(refused.index, self.rows.row(refused.row)).into(),
            }),
            Err(error) => Err(Failed {
                row,
                error: error.into(),
            }),
        };
        self.rows.clear(BYTES_MAX);
        done
    }
}
