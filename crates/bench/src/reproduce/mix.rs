//! The mixes of sysbench's statements.

/// The statements that a session sends, over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// One row by its key.
    PointSelect,
    /// A hundred rows in a row.
    RangeSelect,
    /// Ten points, four ranges.
    ReadOnly,
    /// Ten points, four ranges, two updates, a delete and an insert of the same row.
    ReadWrite,
    /// The writes alone.
    WriteOnly,
}

impl Mix {
    /// Its name, as sysbench and the paper write it.
    pub fn name(self) -> &'static str {
        match self {
            Mix::PointSelect => "point-select",
            Mix::RangeSelect => "range-select",
            Mix::ReadOnly => "read-only",
            Mix::ReadWrite => "read-write",
            Mix::WriteOnly => "write-only",
        }
    }

    /// Whether it changes anything.
    pub fn writes(self) -> bool {
        matches!(self, Mix::ReadWrite | Mix::WriteOnly)
    }
}
