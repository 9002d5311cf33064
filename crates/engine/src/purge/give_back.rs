//! Blocks of free pages go back to the disk.
//!
//! Purge notes the spaces in which it frees pages. Behind a round it looks at those: where an eighth of a space is
//! free, and enough of it in runs, the runs leave the free list (`space::sweep`), and their blocks the file: a hole is
//! punched, the file keeps its length. The space's header knows the holes, and a page that is made there takes its room
//! on the disk again.
//!
//! Nothing is given back that is not a run of some pages: a hole of one page is one more extent for the file system,
//! and a page of the free list is used again first. A space that was found to have few runs is looked at again when its
//! free list is twice as long.

use crate::catalog::state;
use crate::engine::Engine;
use crate::error::Result;
use crate::space::{self, KIND_AWAY, State, sweep};

impl Engine {
    /// Pages of the space were freed.
    pub(crate) fn note_freed(&self, space: u32) {
        self.purge.freed.spaces.lock().insert(space);
    }

    /// The space goes: what is known of it says nothing of the next one of its number.
    pub(crate) fn forget_freed(&self, space: u32) {
        self.purge.freed.spaces.lock().remove(&space);
        self.purge.freed.fruitless.lock().remove(&space);
    }

    /// Notes all tables and indexes.
    pub(super) fn note_all_freed(&self) {
        let catalog = self.catalog.current();
        let spaces = catalog.tables.iter().flat_map(|(_, table)| state::spaces_of(table));
        self.purge.freed.spaces.lock().extend(spaces);
    }

    /// Looks at the spaces that were noted. One that fails does not hold up the others.
    pub(super) fn give_back_freed(&self) -> Result<()> {
        let spaces = std::mem::take(&mut *self.purge.freed.spaces.lock());
        let mut failed = None;
        for space in spaces {
            if self.is_stopping() {
                break;
            }
            match self.give_back_free(space) {
                Err(error) if self.storage.0.pages().has_space(space) => {
                    self.note_freed(space);
                    failed.get_or_insert(error);
                }
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Gives back the runs of free pages of a space.
    fn give_back_free(&self, space: u32) -> Result<()> {
        if !self.finish_sweep(space)? {
            return Ok(());
        }
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
        self.finish_sweep(space).map(drop)
    }

    /// Does what is left to do for the ranges that are claimed: all of it where a crash has come between. False: the
    /// engine stops, and ranges stay claimed; none may be claimed beside them, since a page within two would be given
    /// back twice.
    fn finish_sweep(&self, space: u32) -> Result<bool> {
        let (header, ranges) = space::header_and_ranges(&self.pool, space)?;
        if header.kept_head == 0 && ranges.iter().all(|away| away.state == State::Given) {
            return Ok(true);
        }
        while sweep::sweep(&self.pool, space)? {
            if self.is_stopping() {
                return Ok(false);
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
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::indexed;
    use crate::tree::{BTree, CheckReport};
    use cenote_base::rt::atomic::Ordering;
    use std::sync::Arc;

    const PAGES: u32 = 200;

    /// A tree without rows, whose space has [`PAGES`] free pages in a row.
    fn with_free_pages(engine: &Engine) -> BTree {
        let tree = BTree::create(&engine.pool, engine.create_space().expect("made")).expect("made");
        let mut made = Vec::new();
        while made.len() < PAGES as usize {
            let mut m = engine.pool.mtr();
            let mut header = space::latch(&mut m, tree.space).expect("a header");
            let (mut m, pages) = header.allocate(m, 16, KIND_AWAY).expect("room");
            header.store(&mut m);
            m.commit();
            made.extend(pages.into_iter().map(|(page, _)| page));
        }
        let first = made.iter().min().copied().expect("pages");
        sweep::free_again(&engine.pool, tree.space, first..first + made.len() as u32).expect("freed");
        tree
    }

    fn checked(engine: &Engine, tree: BTree) -> CheckReport {
        let report = tree.check(&engine.pool).expect("readable");
        let wrong = report.findings.len();
        assert_eq!(wrong, 0, "{:?}", report.findings.first());
        report
    }

    fn engine(dir: &std::path::Path) -> Arc<Engine> {
        indexed(dir).0
    }

    /// A sweep was cut off by a crash, and the next one by the end of the process: then pages that were claimed and not
    /// swept were claimed once more. The one after that gave them back twice, so that two trees' pages could be made of
    /// one.
    #[test]
    fn a_sweep_that_is_stopped_claims_no_page_twice() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = engine(dir.path());
        let tree = with_free_pages(&engine);
        let runs = sweep::find_runs(&engine.pool, tree.space, 16).expect("readable");
        sweep::claim(&engine.pool, tree.space, &runs).expect("claimed");
        assert!(sweep::sweep(&engine.pool, tree.space).expect("swept"), "more is left");
        engine.stopping.store(true, Ordering::Release);
        engine.give_back_free(tree.space).expect("cut off");
        engine.stopping.store(false, Ordering::Release);
        engine.give_back_free(tree.space).expect("done");
        assert!(checked(&engine, tree).away > u64::from(PAGES / 2));
        engine.shutdown().expect("shut down");
    }

    /// What was known of a space that was dropped stayed for the life of the process, and held for the next space of
    /// its number.
    #[test]
    fn a_space_that_goes_is_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = engine(dir.path());
        let tree = with_free_pages(&engine);
        engine.note_freed(tree.space);
        engine.purge.freed.fruitless.lock().insert(tree.space, PAGES);
        engine.give_back_free(tree.space).expect("looked at");
        assert_eq!(checked(&engine, tree).away, 0, "not before twice as much is free");
        engine.drop_space(tree.space).expect("dropped");
        assert!(engine.purge.freed.spaces.lock().is_empty());
        assert!(engine.purge.freed.fruitless.lock().is_empty());
    }

    /// Where the free pages of one space could not be read, those of others were forgotten.
    #[test]
    fn a_space_that_fails_does_not_hold_up_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = engine(dir.path());
        let trees: Vec<_> = (0..4)
            .map(|at| {
                if at == 2 {
                    // Without a header.
                    engine.note_freed(engine.create_space().expect("made"));
                }
                with_free_pages(&engine)
            })
            .collect();
        trees.iter().for_each(|tree| engine.note_freed(tree.space));
        assert!(engine.give_back_freed().is_err(), "it is told");
        for tree in trees {
            assert!(checked(&engine, tree).away > u64::from(PAGES / 2));
        }
    }
}
