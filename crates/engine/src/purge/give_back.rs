//! Blocks of free pages go back to the disk.
//!
//! Purge notes the spaces in which it frees pages. Behind a round it looks at those: where an eighth of a space is
//! free, and enough of it
//! in runs, the runs leave the free list (`space::sweep`), and their blocks the file: a hole is punched, the file keeps
//! its length.
//! The space's header knows the holes, and a page that is made there takes its room on the disk again.
//!
//! Nothing is given back that is not a run of some pages: a hole of one page is one more extent for the file system,
//! and a page of the
//! free list is used again first. A space that was found to have few runs is looked at again when its free list is
//! twice as long.

use crate::catalog::state;
use crate::engine::Engine;
use crate::error::Result;
use crate::space::{self, KIND_AWAY, State, sweep};
use cenote_base::rt::{HashMap, HashSet, Mutex};

/// Spaces to look at.
#[derive(Default)]
pub(crate) struct Freed {
    /// In which pages were freed.
    spaces: Mutex<HashSet<u32>>,
    /// How long a free list was in which no runs were found that would be worth it.
    fruitless: Mutex<HashMap<u32, u32>>,
}

impl Engine {
    /// Pages of the space were freed.
    pub(crate) fn note_freed(&self, space: u32) {
        self.purge.freed.spaces.lock().insert(space);
    }

    /// Notes all tables and indexes.
    pub(super) fn note_all_freed(&self) {
        let catalog = self.catalog.current();
        let spaces = catalog.tables.iter().flat_map(|(_, table)| state::spaces_of(table));
        self.purge.freed.spaces.lock().extend(spaces);
    }

    /// Looks at the spaces that were noted.
    pub(super) fn give_back_freed(&self) -> Result<()> {
        let spaces = std::mem::take(&mut *self.purge.freed.spaces.lock());
        for space in spaces {
            if self.is_stopping() {
                return Ok(());
            }
            match self.give_back_free(space) {
                Err(error) if self.storage.0.pages().has_space(space) => {
                    self.note_freed(space);
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives back the runs of free pages of a space.
    fn give_back_free(&self, space: u32) -> Result<()> {
        self.finish_sweep(space)?;
        let header = space::header(&self.pool, space)?;
        let enough = self.give_back_pages.max(header.high_water / 8);
        let before = self.purge.freed.fruitless.lock().get(&space).copied().unwrap_or(0);
        if header.free_count < enough.max(before.saturating_mul(2)) {
            return Ok(());
        }
        let runs = sweep::find_runs(&self.pool, space, (self.give_back_pages / 4).max(1))?;
        let pages: usize = runs.iter().map(ExactSizeIterator::len).sum();
        if pages < header.free_count as usize / 4 {
            self.purge.freed.fruitless.lock().insert(space, header.free_count);
            return Ok(());
        }
        self.purge.freed.fruitless.lock().remove(&space);
        sweep::claim(&self.pool, space, &runs)?;
        self.finish_sweep(space)
    }

    /// Does what is left to do for the ranges that are claimed: all of it where a crash has come between.
    fn finish_sweep(&self, space: u32) -> Result<()> {
        let (header, ranges) = space::header_and_ranges(&self.pool, space)?;
        if header.kept_head == 0 && ranges.iter().all(|away| away.state == State::Given) {
            return Ok(());
        }
        while sweep::sweep(&self.pool, space)? {
            if self.is_stopping() {
                return Ok(());
            }
        }
        for range in sweep::ranges(&self.pool, space, State::Claimed)? {
            let runs = sweep::set_aside(&self.pool, space, range.clone())?;
            let (going, left) = sweep::choose(&self.pool, space, runs)?;
            for run in left {
                sweep::free_again(&self.pool, space, run)?;
            }
            sweep::settle(&self.pool, space, range, going)?;
        }
        for run in sweep::ranges(&self.pool, space, State::Going)? {
            self.give_back(space, run.clone(), KIND_AWAY)?;
            sweep::given(&self.pool, space, run)?;
        }
        Ok(())
    }
}
