//! What is done now and then, by whichever process: what dead members left, items that have expired, the move to a
//! larger table.

use super::core::{Core, now_micros};
use super::find::Found;
use super::heap::offset;
use super::item::{Header, Life, addresses};
use super::layout::root;
use super::members::{clear_pins, records, session_of, take_intents};
use cenote_base::Result;
use cenote_space::GlobalAddress;

/// Buckets of the table that one sweep looks through for what has expired, and moves.
const BUCKETS: u64 = 512;

impl Core {
    /// One sweep.
    ///
    /// # Errors
    /// Those of the space; what was not done is done by the next one.
    pub(super) fn sweep(&self) -> Result<()> {
        self.tell_counters()?;
        self.end_dead_members()?;
        self.free_retired()?;
        self.give_way()?;
        self.make_stubs()?;
        self.grow_by_squeezing()?;
        let view = self.refresh()?;
        self.move_some(&view, BUCKETS)?;
        self.expire_some()
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
        let Some(life) = self.kill(item, sequence)? else {
            return Ok(());
        };
        self.count(root::ORPHANS, 1)?;
        let chunks = match life {
            Life::Filling => self.noted_chunks(item, &header),
            _ => self.chunk_list(item, &header),
        };
        self.free_objects(chunks.into_iter().flatten().chain([item]), false)
    }

    /// The chunks that an item had got when its member was killed.
    fn noted_chunks(&self, item: GlobalAddress, header: &Header) -> Result<Vec<GlobalAddress>> {
        let mut list = vec![0; 8 * header.chunks as usize];
        self.heap.read(offset(item, header.body())?, &mut list[..])?;
        Ok(addresses(&list).filter(|chunk| !chunk.is_null()).collect())
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
