//! What is done now and then, by whichever process: what dead members left, items that have expired, the move to a
//! larger table.

use super::core::{Core, now_micros};
use super::heap::offset;
use super::item::{Control, Life, addresses, chunks};
use super::layout::root;
use super::members::{clear_pins, records, session_of, take_intents};
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Buckets of the table that one sweep looks through for what has expired, and moves.
const BUCKETS: u64 = 512;

impl Core {
    /// One sweep.
    ///
    /// # Errors
    /// Those of the space; what was not done is done by the next one.
    pub(super) fn sweep(&self) -> Result<()> {
        self.end_dead_members()?;
        self.free_retired()?;
        self.give_way()?;
        let view = self.refresh()?;
        self.move_some(&view, BUCKETS)?;
        self.expire_some()
    }

    /// Takes over from members whose session is over.
    pub(super) fn end_dead_members(&self) -> Result<()> {
        for (record, tag) in records(&self.heap, self.at)? {
            if tag == 0 || tag == self.member.tag || !self.is_dead(tag)? {
                continue;
            }
            if self.heap.swap(record, tag, self.member.tag)? {
                self.end_member(record)?;
            }
        }
        Ok(())
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
        take_intents(&self.heap, record, |item| self.free_orphan(item))?;
        self.heap.swap(record, self.member.tag, 0).map(drop)
    }

    /// What a dead member was filling, or had unlinked: if it is linked it stays.
    fn free_orphan(&self, item: GlobalAddress) -> Result<()> {
        let Some(header) = self.header_at(item)? else {
            return Ok(());
        };
        let is_item = matches!(header.control.life(), Life::Filling | Life::Live) && header.is_sane();
        if !is_item || self.is_linked(item, &header)? {
            return Ok(());
        }
        self.count(root::ORPHANS, 1)?;
        let mut list = vec![0; 8 * header.chunks as usize];
        self.heap.read(offset(item, header.body())?, &mut list[..])?;
        self.heap
            .store(item, Control::new(header.control.sequence(), Life::Dead).0)?;
        for (chunk, _) in addresses(&list)
            .zip(chunks(header.value_len))
            .filter(|(chunk, _)| !chunk.is_null())
        {
            match self.heap.free(chunk) {
                Ok(()) | Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.heap.free(item)
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
                // Its replicas expire by themselves.
                if header.has_expired(|| now) && self.unlink(placed)? {
                    self.retire(placed.entry.item(), header, true)?;
                    expired += 1;
                }
            }
        }
        self.count(root::EXPIRED, expired)
    }
}
