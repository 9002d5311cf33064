//! Pages whose blocks were given back to the file system.
//!
//! Blocks go one by one: a power cut may leave a part of a page and zeros behind it. That does no harm, since such a
//! page is made anew before it is read; so the check must not call it damage. What is in use is told by the space's
//! owner, not by the page: a page in use whose blocks are lost is damage.

use crate::engine::Engine;
use crate::space::{self, State};
use crate::tx::cts;
use crate::undo;
use cenote_base::PageId;

impl Engine {
    /// Whether the page is made anew before it is read. A header that cannot be read tells nothing: no.
    pub(super) fn is_given_back(&self, id: PageId) -> bool {
        match id.space {
            cts::SPACE => self.cts.is_past(id.page, self.txs.low_water()),
            space if space >= undo::SPACE_BASE => self.is_past_in_undo(space - undo::SPACE_BASE, id.page),
            space => self.is_run_given_back(space, id.page),
        }
    }

    /// Not while transactions are in progress: the segment's header does not know how far they have come.
    fn is_past_in_undo(&self, number: u32, page: u32) -> bool {
        if self.running_transactions() > 0 || self.rollbacks_waiting().0 > 0 {
            return false;
        }
        let segment = self.segments.get(number);
        segment.is_some_and(|segment| undo::header(&self.pool, segment.number).is_ok_and(|h| !segment.uses(&h, page)))
    }

    fn is_run_given_back(&self, space: u32, page: u32) -> bool {
        let is_gone = |ranges: Vec<space::Away>| {
            let mut gone = ranges.iter().filter(|away| away.state != State::Claimed);
            gone.any(|away| away.pages.contains(&page))
        };
        space::header_and_ranges(&self.pool, space).is_ok_and(|(_, ranges)| is_gone(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_clean, change, indexed};

    /// A segment's header whose end lies more than a circle behind its tail was believed, and the check panicked when it
    /// asked which pages lie between them.
    #[test]
    fn a_header_whose_end_is_a_circle_behind_its_tail_is_a_finding() {
        let dir = tempfile::tempdir().expect("a directory");
        let (engine, table) = indexed(dir.path());
        let mut tx = engine.tx();
        change(&mut tx, &table, 1, 0..5);
        drop(tx);
        let header = undo::header(&engine.pool, 0).expect("a header");
        let put = |end| {
            let mut m = engine.pool.mtr();
            let h = undo::latch_header(&mut m, 0).expect("latched");
            undo::set_end(&mut m, h, end, cenote_base::TxId::from_raw(1));
            m.commit();
        };
        let circle = header.circle.len() * cenote_base::PAGE_SIZE as u64;
        for end in [header.end + circle * 2, header.end + 4, header.tail - 8] {
            put(end);
            assert!(
                !engine.is_given_back(PageId::new(undo::SPACE_BASE, 7)),
                "it tells nothing"
            );
            let problems = engine.check().expect("readable").problems;
            let told = problems.iter().any(|problem| problem.contains("undo segment 0"));
            assert!(told, "end {end}: {problems:?}");
        }
        put(header.end);
        engine.vacuum().expect("purged");
        assert_clean(&engine, 1);
        engine.shutdown().expect("shut down");
    }
}
