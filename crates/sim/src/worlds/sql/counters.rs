//! What answers said of versions: how often a row had been changed, and what its `k` is.

use std::collections::BTreeMap;

use super::client::Row;
use crate::check::Tag;
use crate::check::history::{color, show};

/// How often the row had been changed, by the version.
#[derive(Debug, Default)]
pub struct Counters(BTreeMap<Tag, i64>);

impl Counters {
    /// A version was seen with this count; and its `k`.
    ///
    /// # Errors
    /// A client was told otherwise, or `k` is another's.
    pub(in crate::worlds) fn saw(&mut self, row: &Row) -> Result<(), String> {
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
    pub(in crate::worlds) fn wrote(&mut self, row: &Row) -> Result<(), String> {
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
