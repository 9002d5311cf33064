//! Numbers of the system's spaces, and where those of users' objects begin.

/// Space of the meta page.
pub(crate) const META_SPACE: u32 = 0;
/// Space of the catalog's tree.
pub(crate) const CATALOG_SPACE: u32 = 1;
/// Space of the counters' tree.
pub(crate) const COUNTERS_SPACE: u32 = 2;
/// Spaces of tables and indexes begin here.
pub(crate) const FIRST_SPACE: u32 = 1000;
const _: () = assert!(META_SPACE < CATALOG_SPACE && CATALOG_SPACE < COUNTERS_SPACE && COUNTERS_SPACE < FIRST_SPACE);
/// Ids of tables, indexes and sequences begin here, as PostgreSQL's do for what users make.
pub(crate) const FIRST_OBJECT: u32 = 16384;
