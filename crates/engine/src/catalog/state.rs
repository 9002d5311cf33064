//! The catalog as kept: a table of its own, a cache of what is committed, and what a transaction has defined so far.
//!
//! 1. The catalog is an ordinary clustered table (`catalog_table`): object id, kind, name, definition. So definitions
//!    have MVCC, undo and recovery like rows. Behind them lie the tables' statistics (`catalog::statistics`).
//! 2. `CatalogState` caches what is committed; `version` rises with each publication and is the key of plan caches. A
//!    change makes a new `Catalog`, which shares with the one before all that it does not change.
//! 3. A transaction that defines keeps its changes in an `Overlay`, applied over the committed state for itself only,
//!    and published after its commit is durable.
//! 4. `spaces` finds the table of a clustered tree, uncommitted ones included: rollback and purge meet rows by space.
//!    An index that is being dropped stays there until the drop is published: it may come back, and without the entries
//!    that are purged meanwhile.
//!
//! Files follow the catalog's rows. When a definition is taken back, spaces that it alone named are dropped; when purge
//! passes the undo record of one that was replaced or deleted, spaces that only it named are dropped: by then no
//! snapshot can reach them. Spaces that no definition names at start are orphans of a crash and are dropped.

use super::codec::{decode_sequence, decode_table, encode_sequence, encode_table};
use super::cow::CowMap;
use super::known_statistics::KnownStatistics;
use super::{ColumnDef, IndexDef, PrimaryKey, SequenceDef, Table, TableDef};
use crate::error::{Error, Result};
use crate::key::KeyRange;
use crate::system::CATALOG_SPACE;
use crate::types::{ColumnType, Datum, DatumRef};
use cenote_base::rt;
use cenote_base::rt::HashMap;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use std::ops::Bound;
use std::sync::Arc;

const CATALOG_ID: u32 = 1;
/// Kinds of objects in the catalog.
const KIND_TABLE: i16 = 1;
const KIND_SEQUENCE: i16 = 2;
/// Of a table, under a number above all ids (`catalog::statistics`).
pub(super) const KIND_STATISTICS: i16 = 3;
/// Versions that only one transaction sees have this bit.
const PRIVATE: u64 = 1 << 63;

/// Tables and sequences by name.
#[derive(Default, Clone)]
pub(crate) struct Catalog {
    pub tables: CowMap<String, Arc<Table>>,
    pub by_id: CowMap<u32, Arc<Table>>,
    pub sequences: CowMap<String, Arc<SequenceDef>>,
    /// Sequences' names by their ids.
    sequence_names: CowMap<u32, String>,
    /// Tables' ids by the names of their indexes and primary keys.
    indexes: CowMap<String, u32>,
}

/// All definitions as a transaction sees them: a handle, cloned for nothing.
#[derive(Clone)]
pub struct Definitions(pub(crate) Arc<Catalog>);

impl Definitions {
    /// A table by its name. Before rows are read the transaction is asked whether it may.
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.0.tables.get(name)
    }

    /// A table by its id.
    pub fn table_by_id(&self, id: u32) -> Option<&Arc<Table>> {
        self.0.by_id.get(&id)
    }

    /// All tables, by name.
    pub fn tables(&self) -> Vec<&Arc<Table>> {
        self.0.tables.values()
    }

    /// All sequences, by name.
    pub fn sequences(&self) -> Vec<&Arc<SequenceDef>> {
        self.0.sequences.values()
    }
}

/// A change of the catalog.
#[derive(Clone)]
pub(crate) enum Definition {
    Table(Arc<Table>),
    DropTable(u32),
    Sequence(Arc<SequenceDef>),
    DropSequence(u32),
}

impl Catalog {
    fn apply(&mut self, change: &Definition) {
        match change {
            Definition::Table(table) => {
                self.remove_table(table.id);
                self.tables.insert(table.name.clone(), table.clone());
                self.by_id.insert(table.id, table.clone());
                for name in index_names(table) {
                    self.indexes.insert(name.into(), table.id);
                }
            }
            Definition::DropTable(id) => self.remove_table(*id),
            Definition::Sequence(def) => {
                self.sequences.insert(def.name.clone(), def.clone());
                self.sequence_names.insert(def.id, def.name.clone());
            }
            Definition::DropSequence(id) => {
                if let Some(name) = self.sequence_names.remove(id) {
                    self.sequences.remove(&name);
                }
            }
        }
    }

    fn remove_table(&mut self, id: u32) {
        let Some(old) = self.by_id.remove(&id) else { return };
        if self.tables.get(&old.name).is_some_and(|table| table.id == id) {
            self.tables.remove(&old.name);
        }
        for name in index_names(&old) {
            if self.indexes.get(name) == Some(&id) {
                self.indexes.remove(name);
            }
        }
    }

    /// The table of an index and the index's position in it.
    pub(crate) fn index(&self, name: &str) -> Option<(&Arc<Table>, usize)> {
        let table = self.by_id.get(self.indexes.get(name)?)?;
        Some((table, table.index_named(name)?))
    }

    /// A sequence by its id.
    pub(crate) fn sequence_by_id(&self, id: u32) -> Option<&Arc<SequenceDef>> {
        self.sequences.get(self.sequence_names.get(&id)?)
    }

    /// Whether a table, index or sequence has this name.
    pub(crate) fn has_relation(&self, name: &str) -> bool {
        self.tables.contains_key(name) || self.sequences.contains_key(name) || self.indexes.contains_key(name)
    }
}

fn index_names(table: &Table) -> impl Iterator<Item = &str> {
    let primary = table.primary_key.iter().map(|primary| primary.name.as_str());
    primary.chain(table.indexes.iter().map(|index| index.name.as_str()))
}

/// The committed catalog and the table of each clustered space.
pub(crate) struct CatalogState {
    current: rt::RwLock<Arc<Catalog>>,
    version: AtomicU64,
    private: AtomicU64,
    spaces: rt::RwLock<HashMap<u32, Arc<Table>>>,
    /// Rises before `spaces` is changed, while it is locked.
    definitions: AtomicU64,
    /// The catalog's own table.
    pub own: Arc<Table>,
    pub statistics: KnownStatistics,
}

/// The catalog's table.
pub(crate) fn catalog_table() -> Table {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    Table::new(TableDef {
        id: CATALOG_ID,
        name: "cenote_catalog".into(),
        space: CATALOG_SPACE,
        columns: vec![
            column("id", ColumnType::Int8),
            column("kind", ColumnType::Int2),
            column("name", ColumnType::Text),
            column("definition", ColumnType::Bytes),
        ],
        primary_key: Some(PrimaryKey {
            id: 2,
            name: "cenote_catalog_pkey".into(),
            columns: vec![0],
        }),
        indexes: Vec::new(),
        version: 1,
    })
}

impl CatalogState {
    pub(crate) fn new() -> CatalogState {
        let own = Arc::new(catalog_table());
        let state = CatalogState {
            current: rt::RwLock::new(Arc::default()),
            version: AtomicU64::new(1),
            private: AtomicU64::new(PRIVATE),
            spaces: rt::RwLock::new(HashMap::default()),
            definitions: AtomicU64::new(0),
            own: own.clone(),
            statistics: KnownStatistics::new(),
        };
        state.register(&own);
        state
    }

    /// Version of the committed catalog.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The committed catalog.
    pub(crate) fn current(&self) -> Arc<Catalog> {
        self.current.read().clone()
    }

    /// Puts a transaction's definitions into the committed catalog.
    pub(crate) fn publish(&self, overlay: &Overlay) {
        for change in &overlay.changes {
            if let Definition::Table(table) = change {
                self.register(table);
            }
        }
        self.change(&overlay.changes);
    }

    /// Changes the committed catalog.
    pub(crate) fn change(&self, changes: &[Definition]) {
        let mut current = self.current.write();
        let mut next = (**current).clone();
        changes.iter().for_each(|change| next.apply(change));
        *current = Arc::new(next);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The table whose rows lie in this space, as last defined (committed or not).
    pub(crate) fn table_of_space(&self, space: u32) -> Option<Arc<Table>> {
        self.spaces.read().get(&space).cloned()
    }

    /// Makes the table known by its space.
    pub(crate) fn register(&self, table: &Arc<Table>) {
        self.spaces_to_change().insert(table.space, table.clone());
    }

    /// The table whose rows lie in this space is gone.
    pub(super) fn unregister(&self, space: u32) {
        self.spaces_to_change().remove(&space);
    }

    fn spaces_to_change(&self) -> rt::RwLockWriteGuard<'_, HashMap<u32, Arc<Table>>> {
        let spaces = self.spaces.write();
        self.definitions.fetch_add(1, Ordering::AcqRel);
        spaces
    }

    /// Whether writers and purge still keep an index of this definition up. Purge that goes by a definition without it
    /// does so behind a change of `definitions`.
    #[inline]
    pub(crate) fn keeps_up(&self, table: &Table, index: &IndexDef) -> bool {
        table.kept_up.load(Ordering::Acquire) == self.definitions.load(Ordering::Acquire)
            || self.finds_kept_up(table, index)
    }

    #[cold]
    fn finds_kept_up(&self, table: &Table, index: &IndexDef) -> bool {
        let spaces = self.spaces.read();
        let Some(known) = spaces.get(&table.space) else {
            return false;
        };
        let has = |index: &IndexDef| known.indexes.iter().any(|other| other.space == index.space);
        if table.indexes.iter().all(has) {
            let now = self.definitions.load(Ordering::Acquire);
            table.kept_up.store(now, Ordering::Release);
        }
        has(index)
    }

    /// As `register`, of a definition that is not committed: with the indexes that it drops.
    pub(crate) fn register_uncommitted(&self, table: &Arc<Table>) {
        let mut spaces = self.spaces_to_change();
        let mut def = table.def().clone();
        if let Some(former) = spaces.get(&table.space) {
            let dropped = |index: &&IndexDef| !table.indexes.iter().any(|kept| kept.space == index.space);
            def.indexes.extend(former.indexes.iter().filter(dropped).cloned());
        }
        spaces.insert(table.space, Arc::new(Table::new(def)));
    }
}

/// Definitions of a transaction that has not committed.
#[derive(Default)]
pub(crate) struct Overlay {
    changes: Vec<Definition>,
    /// The last application.
    cached: rt::Mutex<Option<Applied>>,
}

/// Changes applied over the committed catalog.
struct Applied {
    /// Committed version that they were applied over.
    base: u64,
    /// How many they were.
    changes: usize,
    /// Version of the result, its own.
    version: u64,
    catalog: Arc<Catalog>,
}

impl Overlay {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    pub(crate) fn push(&mut self, change: Definition) {
        self.changes.push(change);
        *self.cached.lock() = None;
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        assert!(
            len <= self.changes.len(),
            "a savepoint has no more definitions than its transaction"
        );
        if self.changes.len() > len {
            self.changes.truncate(len);
            *self.cached.lock() = None;
        }
    }

    /// The catalog with these changes, and its version.
    pub(crate) fn over(&self, state: &CatalogState) -> (u64, Arc<Catalog>) {
        if self.changes.is_empty() {
            return (state.version(), state.current());
        }
        let committed = state.version();
        let mut cached = self.cached.lock();
        if let Some(applied) = &*cached
            && (applied.base, applied.changes) == (committed, self.changes.len())
        {
            return (applied.version, applied.catalog.clone());
        }
        let mut catalog = (*state.current()).clone();
        self.changes.iter().for_each(|change| catalog.apply(change));
        let (version, catalog) = (state.private.fetch_add(1, Ordering::Relaxed), Arc::new(catalog));
        *cached = Some(Applied {
            base: committed,
            changes: self.changes.len(),
            version,
            catalog: catalog.clone(),
        });
        (version, catalog)
    }
}

/// The catalog's row of a table.
pub(crate) fn row_of_table(own: &Table, def: &TableDef) -> Result<Vec<u8>> {
    catalog_row(own, i64::from(def.id), KIND_TABLE, &def.name, encode_table(def))
}

/// The catalog's row of a sequence.
pub(crate) fn row_of_sequence(own: &Table, def: &SequenceDef) -> Result<Vec<u8>> {
    catalog_row(own, i64::from(def.id), KIND_SEQUENCE, &def.name, encode_sequence(def))
}

/// A row of the catalog.
pub(super) fn catalog_row(own: &Table, number: i64, kind: i16, name: &str, definition: Vec<u8>) -> Result<Vec<u8>> {
    let mut row = Vec::new();
    own.layout().encode(
        &[
            Datum::Int8(number),
            Datum::Int2(kind),
            Datum::Text(name.into()),
            Datum::Bytes(definition),
        ],
        &mut row,
    )?;
    Ok(row)
}

/// Primary key of an object's row.
pub(crate) fn key_of(own: &Table, id: u32) -> Vec<u8> {
    key_of_number(own, i64::from(id))
}

pub(super) fn key_of_number(own: &Table, number: i64) -> Vec<u8> {
    let mut key = Vec::new();
    own.key_of_values(&[Datum::Int8(number)], &mut key);
    key
}

/// The keys of all definitions.
pub(crate) fn definition_keys(own: &Table) -> KeyRange {
    let behind = key_of_number(own, i64::from(u32::MAX) + 1);
    KeyRange {
        lower: Bound::Unbounded,
        upper: Bound::Excluded(behind),
    }
}

/// Whether a whole catalog row is of statistics, which define nothing.
pub(crate) fn is_statistics(own: &Table, row: &[u8]) -> Result<bool> {
    Ok(own.layout().column(row, 1)? == DatumRef::Int2(KIND_STATISTICS))
}

/// What a whole catalog row defines.
pub(crate) fn definition_of(own: &Table, row: &[u8]) -> Result<Definition> {
    let DatumRef::Bytes(bytes) = own.layout().column(row, 3)? else {
        return Err(Error::Corrupt("catalog row without a definition".into()));
    };
    match own.layout().column(row, 1)? {
        DatumRef::Int2(KIND_TABLE) => Ok(Definition::Table(Arc::new(Table::new(decode_table(bytes)?)))),
        DatumRef::Int2(KIND_SEQUENCE) => Ok(Definition::Sequence(Arc::new(decode_sequence(bytes)?))),
        _ => Err(Error::Corrupt("catalog row of an unknown kind".into())),
    }
}

/// All spaces of a table.
pub(crate) fn spaces_of(table: &Table) -> Vec<u32> {
    std::iter::once(table.space)
        .chain(table.indexes.iter().map(|i| i.space))
        .collect()
}
