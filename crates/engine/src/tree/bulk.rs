//! Filling a tree from sorted entries: CREATE INDEX and the like.
//!
//! Entries go to the right edge, as many into one mini-transaction as the leaf takes, and there as one run (`batch`);
//! then the next key splits the edge where it stands, so leaves stay as full as asked. A crash leaves a whole, shorter
//! tree.

use super::batch::{NewEntry, insert_run};
use super::layout::{Header, MAX_KEY, MAX_VALUE, PAGE_SIZE, SLOT};
use super::pages::{Mtr, Pool, latched};
use super::write::fits;
use super::{BTree, Error, LeafPos, Result};

/// Free bytes that a bulk load leaves in each leaf, for inserts to come.
const SPARE: usize = PAGE_SIZE / 16;

/// Entries that go into the leaf together.
#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    /// Of each entry: where its key begins, where its value does, and where it ends.
    places: Vec<(usize, usize, usize)>,
}

impl Gathered {
    fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.places.push((at, at + key.len(), self.bytes.len()));
    }

    fn last_key(&self) -> Option<&[u8]> {
        let (key, value, _) = self.places.last()?;
        Some(&self.bytes[*key..*value])
    }

    fn entries(&self) -> Vec<NewEntry<'_>> {
        let entry = |(key, value, end): &(usize, usize, usize)| NewEntry {
            key: &self.bytes[*key..*value],
            value: &self.bytes[*value..*end],
        };
        self.places.iter().map(entry).collect()
    }
}

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
        let (mut loaded, mut gathered) = (0, Gathered::default());
        let mut next = entries.next().transpose()?;
        while let Some((key, value)) = next {
            let mut m = pool.mtr();
            let pos = self.right_edge(&mut m, key.as_ref(), value.as_ref())?;
            let header = Header::read(m.view(pos.h));
            gathered.clear();
            let filled = gather(&header, key.as_ref(), &mut entries, &mut gathered);
            let run = gathered.entries();
            if !run.is_empty() {
                insert_run(&mut latched(&mut m, pos.h), pos.slot + 1, &run, &[]);
            }
            m.commit();
            loaded += 1 + run.len() as u64;
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
}

/// Takes the entries behind `last` that the leaf has room for, up to its spare bytes; returns the one that found none.
/// Errors: those of `entries`, a key that does not rise; what was taken before counts.
fn gather<K: AsRef<[u8]>, V: AsRef<[u8]>, E: From<Error>>(
    header: &Header,
    last: &[u8],
    entries: &mut impl Iterator<Item = std::result::Result<(K, V), E>>,
    gathered: &mut Gathered,
) -> std::result::Result<Option<(K, V)>, E> {
    let mut room = header.gap().saturating_sub(SPARE);
    for entry in entries {
        let (key, value) = entry?;
        let (new, bytes) = (key.as_ref(), value.as_ref());
        if new <= gathered.last_key().unwrap_or(last) {
            return Err(Error::NotSorted.into());
        }
        let need = new.len() + bytes.len() + SLOT;
        if need > room || fits(new.len(), bytes.len()).is_err() {
            return Ok(Some((key, value)));
        }
        room -= need;
        gathered.push(new, bytes);
    }
    Ok(None)
}
