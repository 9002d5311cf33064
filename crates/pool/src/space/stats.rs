use super::Class;

/// A class in a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassStats {
    /// Which.
    pub class: Class,
    /// Extents that are cut into its objects.
    pub extents: u32,
    /// Objects that are allocated.
    pub objects: u64,
}

/// A part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartStats {
    /// Its number.
    pub part: u8,
    /// Extents that it has.
    pub extents: u32,
    /// Extents that are free.
    pub free: u32,
    /// Extents that are cut into objects.
    pub slabs: u32,
    /// Extents that runs take.
    pub in_runs: u32,
    /// Extents whose generations are used up.
    pub retired: u32,
    /// Extents whose description is broken.
    pub broken: u32,
    /// Runs.
    pub runs: u64,
    /// Bytes of the runs, as they were asked for.
    pub run_bytes: u64,
    /// Classes that have extents, smallest first.
    pub classes: Vec<ClassStats>,
}

/// A space at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpaceStats {
    /// Its parts, by number.
    pub parts: Vec<PartStats>,
}
