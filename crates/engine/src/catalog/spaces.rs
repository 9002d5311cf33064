//! The files of tables whose definitions end.

use super::Table;
use super::state::{Definition, definition_of, is_statistics, spaces_of};
use crate::engine::Engine;
use crate::error::Result;
use crate::large;
use std::sync::Arc;

/// The table that a stored definition names; None for other objects.
pub(crate) fn table_of_stored(engine: &Engine, stored: Option<&[u8]>) -> Result<Option<Arc<Table>>> {
    let Some(stored) = stored else { return Ok(None) };
    let own = &engine.catalog.own;
    let row = large::bring_in(&engine.pool, own, stored)?;
    if is_statistics(own, &row)? {
        return Ok(None);
    }
    Ok(match definition_of(own, &row)? {
        Definition::Table(table) => Some(table),
        _ => None,
    })
}

/// A definition is gone for all transactions, `kept` is the one that stays: drops the spaces that only the first named.
pub(crate) fn drop_spaces(engine: &Engine, gone: Option<Arc<Table>>, kept: Option<Arc<Table>>) -> Result<()> {
    let Some(gone) = gone else {
        if let Some(kept) = kept {
            engine.catalog.register(&kept);
        }
        return Ok(());
    };
    let staying = kept.as_ref().map(|t| spaces_of(t)).unwrap_or_default();
    if let Some(kept) = &kept {
        engine.catalog.register(kept);
    }
    if !staying.contains(&gone.space) {
        engine.catalog.unregister(gone.space);
    }
    for space in spaces_of(&gone).into_iter().filter(|space| !staying.contains(space)) {
        engine.drop_space(space)?;
    }
    Ok(())
}

/// Purge has passed a definition; drops its spaces but for those that a newer one names.
pub(crate) fn purge_spaces(engine: &Engine, gone: &Table, staying: &[u32]) -> Result<()> {
    if !staying.contains(&gone.space) {
        engine.catalog.unregister(gone.space);
    }
    for space in spaces_of(gone).into_iter().filter(|space| !staying.contains(space)) {
        engine.drop_space(space)?;
    }
    Ok(())
}
