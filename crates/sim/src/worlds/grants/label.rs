//! The names that memory is asked for by.

use cenote_pool::holder::GrantRequest;
use cenote_space::EXTENT;

/// A name that memory is asked for by. Tenants take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label(pub usize);

impl Label {
    /// Memory of the second is taken for the first where it is short, while it has no holder.
    pub const TENANTS: [&str; 2] = ["first", "second"];

    pub fn tenant(self) -> &'static str {
        Self::TENANTS[self.0 % 2]
    }

    pub fn text(self) -> String {
        format!("label{}", self.0)
    }

    pub fn extents(self) -> u64 {
        1 + self.0 as u64 % 3
    }

    /// Some are not kept for long without a holder.
    pub fn keep(self) -> Option<u64> {
        (self.0 % 4 == 3).then_some(2)
    }

    /// Whether it may be gone whenever it has no holder.
    pub fn is_fleeting(self) -> bool {
        self.tenant() != Self::TENANTS[0] || self.keep().is_some()
    }

    pub fn requested(self) -> GrantRequest {
        GrantRequest {
            label: self.text(),
            description: "of a simulated holder".into(),
            bytes: self.extents() * EXTENT,
            pod: None,
            keep: self.keep(),
            mirror: false,
            host: None,
        }
    }
}
