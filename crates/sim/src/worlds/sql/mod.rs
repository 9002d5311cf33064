//! The world of SQL: sessions of [`cenote_sql`] on the short path, over the simulated engine, in the lives that
//! [`life`](super::life) has.
//!
//! ```text
//!   client ([`session`]) ── text, or Parse / Bind / Execute ──► cenote_sql::Session ──► engine, buffer, log, as in the other worlds
//!      └── what was answered: RETURNING, fetched rows ──► history ([`check`](crate::check)), counters ([`Counters`](counters::Counters))
//! ```
//!
//! A table's rows are `(id, tag, prev, n, k)`. The tag names the write, as everywhere ([`crate::check::history`]);
//! `prev` is the tag that the write has replaced, which RETURNING tells; `n` counts the row's changes since it was
//! inserted; `k` follows from the tag and is what conditions ask for. So each answer says which version it is of, and
//! the serial model, Adya's checker and the check of recoveries judge SQL as they judge the engine.

pub(super) mod client;
pub(super) mod counters;
mod session;

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_sql::{Sql, SqlError};

use self::client::Client;
use super::rows::place;
use super::shared::Shared;
use crate::check::durable::Rows;

pub(super) use session::Session;

/// Conditions on `k` ask for less than this: of nine values five.
pub(super) const LIMIT: i32 = 5;

/// A table's name.
pub(super) fn name(table: u8) -> String {
    format!("s{table}")
}

/// Makes the tables that are not there.
pub(super) fn make_tables(shared: &Shared, engine: &Arc<Engine>) -> Result<(), SqlError> {
    let mut client = Client::new(&Sql::new(Arc::clone(engine), None))?;
    for table in (0..shared.plan.tables).map(name) {
        let there = engine.begin(cenote_engine::Isolation::ReadCommitted).table(&table)?;
        if there.is_none() {
            client.text(&format!(
                "BEGIN; CREATE TABLE {table} (id int PRIMARY KEY, tag bigint NOT NULL, prev bigint NOT NULL, n bigint NOT NULL, k int NOT NULL); \
                 CREATE INDEX {table}_k ON {table} (k); COMMIT"
            ))?;
        }
    }
    Ok(())
}

/// All rows, by key and by index; the inner error is what is wrong with them.
pub(super) fn found(shared: &Shared, engine: &Arc<Engine>) -> Result<Result<Rows, String>, SqlError> {
    let mut client = Client::new(&Sql::new(Arc::clone(engine), None))?;
    let mut all = Rows::new();
    for table in 0..shared.plan.tables {
        let name = name(table);
        let rows = client.text(&format!("SELECT id, tag, prev, n, k FROM {name} ORDER BY id"))?;
        let mut by_index = client.text(&format!(
            "SELECT id, tag, prev, n, k FROM {name} WHERE k >= 0 ORDER BY k"
        ))?;
        by_index.sort_unstable_by_key(|row| row.id);
        if by_index != rows {
            return Ok(Err(format!("{name} has {rows:?}, its index leads to {by_index:?}")));
        }
        for row in rows {
            if let Err(problem) = shared.counters().saw(&row) {
                return Ok(Err(format!("{name}{problem}")));
            }
            all.insert(place(table, row.id), row.tag);
        }
    }
    Ok(Ok(all))
}
