//! What is done now and then, by whichever process: what dead members left, items that have expired, the move to a
//! larger table.

use super::core::{Core, now_micros};
use super::find::Found;
use super::item::Life;
use super::layout::root;
use super::members::{clear_pins, records, session_of, take_intents};
use super::retire::Freed;
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Buckets of the table that one sweep looks through for what has expired, and moves.
const BUCKETS: u64 = 512;

impl Core {
    /// One sweep. What fails, as a part is away, holds none of the other steps up.
    ///
    /// # Errors
    /// Those of the space, the first one; what was not done is done by the next sweep.
    pub(super) fn sweep(&self) -> Result<()> {
        // The root, the members and the table lie in one part: without that there is nothing to do.
        self.refresh()?;
        let steps: [fn(&Self) -> Result<()>; 8] = [
            Self::tell_counters,
            Self::end_dead_members,
            Self::free_retired,
            Self::give_way,
            Self::make_stubs,
            Self::grow_by_squeezing,
            Self::move_on,
            Self::expire_some,
        ];
        let mut failed = Ok(());
        for step in steps {
            failed = failed.and(step(self));
        }
        failed
    }

    fn move_on(&self) -> Result<()> {
        let view = self.refresh()?;
        self.move_some(&view, BUCKETS).map(drop)
    }

    /// Takes over from members whose session is over. A record that this member has taken over and not emptied, as
    /// something failed, is gone on with.
    pub(super) fn end_dead_members(&self) -> Result<()> {
        let _alone = self.ending.lock();
        let mut failed = Ok(());
        for (record, tag) in records(&self.heap, self.at)? {
            if tag == 0 || record == self.member.record {
                continue;
            }
            let is_own = tag == self.member.tag;
            if is_own || self.is_dead(tag)? && self.heap.swap(record, tag, self.member.tag)? {
                failed = failed.and(self.end_member(record));
            }
        }
        failed
    }

    fn is_dead(&self, tag: u64) -> Result<bool> {
        let (part, session) = session_of(tag);
        match self.heap.space().keeper(part) {
            Some(keeper) => Ok(!keeper.is_alive(session)?),
            None => Ok(false),
        }
    }

    /// Of a record that this member has taken over.
    fn end_member(&self, record: GlobalAddress) -> Result<()> {
        clear_pins(&self.heap, record)?;
        take_intents(&self.heap, record, |item, sequence| self.free_orphan(item, sequence))?;
        self.heap.swap(record, self.member.tag, 0).map(drop)
    }

    /// What a dead member was filling, or had unlinked: if it is linked it stays, and if it is pinned it stays until
    /// then.
    fn free_orphan(&self, item: GlobalAddress, sequence: u64) -> Result<()> {
        let Some(header) = self.header_at(item)? else {
            return Ok(());
        };
        let is_its = header.control.sequence() == sequence && header.is_sane();
        let is_item = is_its && matches!(header.control.life(), Life::Filling | Life::Live);
        if !is_item || self.is_linked(item, &header)? {
            return Ok(());
        }
        // It is not linked, and was not when the pins are read: as in `retire`.
        if self.is_pinned(item)? {
            return self.keep_retired(item, header);
        }
        match self.free_item(item, &header, false)? {
            Freed::Now => self.count(root::ORPHANS, 1),
            Freed::ByAnother => Ok(()),
            Freed::Waits => Err(Error::Timeout(format!("{item} waits for a part that is away"))),
        }
    }

    /// Takes out what has expired in the next few buckets.
    fn expire_some(&self) -> Result<()> {
        let (view, now) = (self.view(), now_micros());
        if view.previous.is_some() {
            return Ok(());
        }
        let hand = self.heap.add(self.word(root::SWEEP)?, BUCKETS)?;
        let mut expired = 0;
        for from in (0..BUCKETS.min(view.table.buckets())).step_by(8) {
            for (placed, header) in self.candidates(&view.table, hand.wrapping_add(from), 8)? {
                if self.has_lost_file(&Found { place: placed, header })? {
                    continue;
                }
                // Its replicas expire by themselves.
                if header.has_expired(|| now) && self.unlink(placed)? {
                    let header = self.header_after(placed, header);
                    self.retire(placed.entry.item(), header, true)?;
                    expired += 1;
                }
            }
        }
        self.count(root::EXPIRED, expired)
    }
}
