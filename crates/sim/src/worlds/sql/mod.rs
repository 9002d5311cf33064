//! The world of SQL: sessions of [`cenote_sql`] on the short path, over the simulated engine, in the lives that
//! [`life`](super::life) has.
//!
//! ```text
//!   client ([`session`]) ── text, or Parse / Bind / Execute ──► cenote_sql::Session ──► engine, buffer, log, as in the other worlds
//!      └── what was answered: RETURNING, fetched rows ──► history ([`check`](crate::check)), counters ([`Counters`])
//! ```
//!
//! A table's rows are `(id, tag, prev, n, k)`. The tag names the write, as everywhere ([`crate::check::history`]);
//! `prev` is the tag that the write has replaced, which RETURNING tells; `n` counts the row's changes since it was
//! inserted; `k` follows from the tag and is what conditions ask for. So each answer says which version it is of, and
//! the serial model, Adya's checker and the check of recoveries judge SQL as they judge the engine.

pub(super) mod client;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::Engine;
use cenote_sql::{Sql, SqlError};

use self::client::{Client, Row};
use super::rows::place;
use super::shared::Shared;
use crate::check::Tag;
use crate::check::durable::Rows;
use crate::check::history::{color, show};

pub(super) use session::Session;

/// Conditions on `k` ask for less than this: of nine values five.
pub(super) const LIMIT: i32 = 5;

/// How often the row had been changed, by the version.
#[derive(Debug, Default)]
pub struct Counters(BTreeMap<Tag, i64>);

impl Counters {
    /// A version was seen with this count; and its `k`.
    ///
    /// # Errors
    /// Somebody was told otherwise, or `k` is another's.
    pub(super) fn saw(&mut self, row: &Row) -> Result<(), String> {
        let Row { id, tag, n, k, .. } = *row;
        let known = *self.0.entry(tag).or_insert(n);
        match known == n && k == color(tag) {
            true => Ok(()),
            false => Err(format!(
                "[{id}]: {} has count {n} and k {k}, it was {known} and {}",
                show(tag),
                color(tag)
            )),
        }
    }

    /// A version replaced another, which it says.
    ///
    /// # Errors
    /// It does not count on from there.
    pub(super) fn wrote(&mut self, row: &Row) -> Result<(), String> {
        let before = match row.prev {
            0 => Some(0),
            prev => self.0.get(&prev).copied(),
        };
        match before {
            Some(before) if before + 1 == row.n => self.saw(row),
            before => Err(format!(
                "[{}]: {} has count {}, and replaces {} with count {before:?}",
                row.id,
                show(row.tag),
                row.n,
                show(row.prev)
            )),
        }
    }
}

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
