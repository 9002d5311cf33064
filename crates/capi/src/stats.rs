//! What a space is used for, and whether it is in order.

use super::Handle;
use super::arguments::place;
use super::error::{Report, Status, answer};
use super::space::SpaceHandle;
use cenote_base::{Error, Result};
use cenote_space::{ClassStats, PartStats, Space};
use core::ffi::{c_char, c_void};
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
pub unsafe extern "C" fn cenote_stats(
    space: *const SpaceHandle,
    part: u8,
    stats: *mut Stats,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(stats, "the statistics")?;
            place.write(Stats::of(Handle::get(space)?, part)?);
            Ok(())
        })
    }
}

/// `cenote_problem`.
type Problem = unsafe extern "C" fn(text: *const c_char, context: *mut c_void);

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_audit(
    space: *const SpaceHandle,
    problem: Option<Problem>,
    context: *mut c_void,
    problems: *mut u64,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle, memory and function, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(problems, "the number of problems")?;
            let found = Handle::get(space)?.audit()?;
            if let Some(problem) = problem {
                let texts = found
                    .iter()
                    .map(|text| CString::new(text.replace('\0', "?")).unwrap_or_default());
                texts.for_each(|text| problem(text.as_ptr(), context));
            }
            place.write(found.len() as u64);
            Ok(())
        })
    }
}
