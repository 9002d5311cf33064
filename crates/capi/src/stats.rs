//! What a space is used for, and whether it is in order.

use super::arguments::{ContextArg, OutArg, TextFunctionArg};
use super::error::{ReportArg, Status, answer};
use super::handle::HandleArg;
use cenote_base::{Error, Result};
use cenote_space::{ClassStats, PartStats, Space};
use std::ffi::CString;

/// `cenote_space_stats`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    parts: u64,
    extents: u64,
    free: u64,
    slabs: u64,
    in_runs: u64,
    retired: u64,
    broken: u64,
    objects: u64,
    bytes: u64,
}

impl Stats {
    fn add(self, part: &PartStats) -> Self {
        let of_classes = |of: fn(&ClassStats) -> u64| part.classes.iter().map(of).sum::<u64>();
        Self {
            parts: self.parts + 1,
            extents: self.extents + u64::from(part.extents),
            free: self.free + u64::from(part.free),
            slabs: self.slabs + u64::from(part.slabs),
            in_runs: self.in_runs + u64::from(part.in_runs),
            retired: self.retired + u64::from(part.retired),
            broken: self.broken + u64::from(part.broken),
            objects: self.objects + part.runs + of_classes(|class| class.objects),
            bytes: self.bytes.saturating_add(part.run_bytes) + of_classes(ClassStats::bytes),
        }
    }

    /// Of one part, or of all if it is 0.
    fn of(space: &Space, part: u8) -> Result<Self> {
        let parts = space.stats().parts;
        let wanted = parts.iter().filter(|of| part == 0 || of.part == part);
        match wanted.fold(Self::default(), Self::add) {
            none if part != 0 && none.parts == 0 => Err(Error::Invalid(format!("the space has no part {part}"))),
            found => Ok(found),
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_stats(
    space: HandleArg<'_, Space>,
    part: u8,
    stats: OutArg<'_, Stats>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = stats.place("the statistics")?;
        place.write(Stats::of(space.get()?, part)?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_audit(
    space: HandleArg<'_, Space>,
    problem: TextFunctionArg,
    context: ContextArg,
    problems: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = problems.place("the number of problems")?;
        let found = space.get()?.audit()?;
        for text in &found {
            let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
            problem.call(&text, context);
        }
        place.write(found.len() as u64);
        Ok(())
    })
}
