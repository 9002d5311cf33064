//! Line fill buffers: the lines that a core has asked for, on their way to it.

use super::host::Id;
use cenote_base::rt::Nanos;

/// Lines on their way to one thread's core, and when each arrives.
#[derive(Debug, Default)]
pub(super) struct Fills(Vec<(Id, Nanos)>);

impl Fills {
    /// When a buffer is free: now, or when the first line arrives.
    pub(super) fn free_at(&mut self, now: Nanos, buffers: usize) -> Nanos {
        self.0.retain(|fill| fill.1 > now);
        if self.0.len() < buffers {
            return now;
        }
        let first = self.0.iter().map(|fill| fill.1).min();
        first.unwrap_or(now)
    }

    pub(super) fn arrival(&self, line: Id) -> Option<Nanos> {
        self.0.iter().find(|fill| fill.0 == line).map(|fill| fill.1)
    }

    /// A line that was asked for at `begins` arrives then.
    pub(super) fn add(&mut self, line: Id, begins: Nanos, arrives: Nanos) {
        self.0.retain(|fill| fill.1 > begins && fill.0 != line);
        self.0.push((line, arrives));
    }
}
