//! What a database holds: all rows, as each way to them shows them.

use std::sync::Arc;

use cenote_engine::{Direction, Engine, Isolation, KeyRange, Result};

use super::name::Name;
use super::rows::{self, DEFINED, Path, place};
use super::shared::Shared;
use super::sql;
use crate::check::durable::Rows;

/// All rows of a new snapshot, by table and by each index.
pub(super) fn found(shared: &Shared, engine: &Arc<Engine>) -> Result<std::result::Result<Rows, String>> {
    let tx = engine.begin(Isolation::ReadCommitted);
    if shared.plan.name == Name::Sql {
        let found = sql::found(shared, engine);
        return Ok(found.unwrap_or_else(|error| Err(format!("{} {error}", error.code()))));
    }
    let mut all = Rows::new();
    let defined = DEFINED..DEFINED + shared.plan.definers as u8;
    for number in (0..shared.plan.tables).chain(defined) {
        let Some(table) = tx.table(&rows::name(number))? else {
            continue;
        };
        let read = |path| {
            rows::read(
                tx.reader(),
                &shared.plan.shape,
                &table,
                path,
                KeyRange::all(),
                Direction::Forward,
            )
        };
        let rows = match read(Path::Primary)? {
            Ok(rows) => rows,
            Err(problem) => return Ok(Err(problem)),
        };
        if let Some(problem) = shared.plan.shape.repeated(&rows) {
            return Ok(Err(format!("{}: {problem}", table.name)));
        }
        for (index, definition) in table.indexes.iter().enumerate() {
            let mut by_index = match read(Path::Index(index))? {
                Ok(rows) => rows,
                Err(problem) => return Ok(Err(problem)),
            };
            by_index.sort_unstable();
            if by_index != rows {
                let name = &definition.name;
                return Ok(Err(format!(
                    "index {name} leads to {by_index:?}, its table has {rows:?}"
                )));
            }
        }
        all.extend(rows.into_iter().map(|(id, tag)| (place(number, id), tag)));
    }
    Ok(Ok(all))
}
