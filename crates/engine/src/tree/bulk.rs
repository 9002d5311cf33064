//! Filling a tree from sorted entries: CREATE INDEX and the like.
//!
//! Entries go to the right edge, as many into one mini-transaction as the leaf takes; then the next key splits
//! the edge where it stands, so leaves stay as full as asked. A crash leaves a whole, shorter tree.

use super::layout::{Header, MAX_KEY, MAX_VALUE, PAGE_SIZE};
use super::pages::{Mtr, Pool};
use super::{BTree, Error, LeafPos, Result};

/// Free bytes that a bulk load leaves in each leaf, for inserts to come.
const SPARE: usize = PAGE_SIZE / 16;

impl BTree {
    /// Appends `entries`, whose keys rise and are above all keys of the tree; returns how many.
    ///
    /// # Errors
    /// The keys do not rise, a key or value is too long, or the pool's; what came before stays in the tree. Those of
    /// `entries`.
    pub fn bulk_load<K, V, E>(
        &self,
        pool: &Pool,
        entries: impl IntoIterator<Item = std::result::Result<(K, V), E>>,
    ) -> std::result::Result<u64, E>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
        E: From<Error>,
    {
        let mut entries = entries.into_iter();
        let mut loaded = 0;
        let mut next = entries.next().transpose()?;
        while let Some((key, value)) = next {
            let mut m = pool.mtr();
            let mut pos = self.right_edge(&mut m, key.as_ref(), value.as_ref())?;
            loaded += 1;
            let filled = self.fill(&mut m, &mut pos, key, &mut entries, &mut loaded);
            m.commit();
            next = filled?;
        }
        Ok(loaded)
    }

    /// Latches the right edge with room for the spare bytes and inserts the first entry of a mini-transaction.
    fn right_edge(&self, m: &mut Mtr<'_>, key: &[u8], value: &[u8]) -> Result<LeafPos> {
        let room = (key.len() + value.len() + SPARE).min(MAX_KEY + MAX_VALUE);
        let pos = self.seek_write(m, key, room)?;
        let header = Header::read(m.view(pos.h));
        if pos.found || pos.slot < header.count() || header.has_upper() {
            return Err(Error::NotSorted);
        }
        self.insert_at(m, &pos, key, value)?;
        Ok(pos)
    }

    /// Appends entries behind `pos` until the leaf is full; returns the one that found no place.
    fn fill<K: AsRef<[u8]>, V: AsRef<[u8]>, E: From<Error>>(
        &self,
        m: &mut Mtr<'_>,
        pos: &mut LeafPos,
        mut last: K,
        entries: &mut impl Iterator<Item = std::result::Result<(K, V), E>>,
        loaded: &mut u64,
    ) -> std::result::Result<Option<(K, V)>, E> {
        for entry in entries {
            let (key, value) = entry?;
            if key.as_ref() <= last.as_ref() {
                return Err(Error::NotSorted.into());
            }
            pos.slot += 1;
            if !self.append(m, pos, key.as_ref(), value.as_ref()) {
                return Ok(Some((key, value)));
            }
            *loaded += 1;
            last = key;
        }
        Ok(None)
    }

    /// Inserts at `pos` if the leaf keeps its spare bytes and the key belongs to it.
    fn append(&self, m: &mut Mtr<'_>, pos: &LeafPos, key: &[u8], value: &[u8]) -> bool {
        let header = Header::read(m.view(pos.h));
        let spare = header.free().saturating_sub(key.len() + value.len());
        spare >= SPARE && self.insert_at(m, pos, key, value).is_ok()
    }
}
