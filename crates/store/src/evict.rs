//! Eviction: a clock whose hand goes over the buckets of the table.
//!
//! A hit sets one of two bits in the item's own control word, and only where they are not set; the hand counts them
//! down and evicts what has none. So an object that was never asked for again goes with the hand's first pass, as in
//! S3-FIFO's small queue, and one that was asked for often has three passes; but there is no queue whose ends all
//! processes would write, and which a killed one would leave half changed. Buckets are in the order of hashes, which is
//! that of chance.
//!
//! Items that members pin are passed over. The hand moves by [`STRIDE`] buckets with one addition, so that processes
//! that evict at once look at different ones.

use super::chains::{ENTRIES, LINES_MAX, Placed, Table};
use super::core::{Core, now_micros};
use super::entry::State;
use super::item::{HEADER, HITS_MAX, Header, Life, class_size, footprint};
use super::layout::{LINE, root};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, HashSet, Nanos};
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Read};

/// Buckets that the hand goes on at once.
const STRIDE: u64 = 8;
/// Items that are evicted beyond what is needed, so that the next that need room find some.
const AHEAD: u64 = 64;
/// So often a bound is tried while others change all that could go, and what is between two tries.
const TRIES: u32 = 5;
const TRY: Nanos = Nanos::from_millis(10);

/// What is to be evicted.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Of this tenant alone, or of any.
    tenant: Option<u32>,
    /// So many bytes.
    bytes: u64,
    /// Only what has objects of this size, and a few of them.
    class: Option<u64>,
    /// Items that stand for spilled values too: they have few bytes.
    stubs: bool,
}

/// What the hand has come upon.
#[derive(Debug, Clone, Copy)]
struct Passed {
    /// Items that were evicted.
    evicted: u64,
    /// There were some, and members pin each of them. Otherwise others may change what could go at that moment.
    is_all_pinned: bool,
}

impl Wanted {
    fn bytes(bytes: u64, tenant: Option<u32>) -> Self {
        Self {
            tenant,
            bytes,
            class: None,
            stubs: false,
        }
    }

    /// Some objects of the size that `len` bytes take.
    fn objects(len: u64, tenant: Option<u32>) -> Self {
        Self {
            tenant,
            bytes: u64::MAX,
            class: Some(class_size(len)),
            stubs: false,
        }
    }
}

impl Core {
    /// Evicts until the tenant, and all together, are within their bounds with so many bytes more.
    ///
    /// # Errors
    /// [`Error::Full`] if that cannot be, as items are pinned, or the bound is too small.
    pub(super) fn make_room(&self, tenant: u32, bytes: u64) -> Result<()> {
        let space = self.heap.space();
        let capacity: u64 = space.parts().map(|part| part.capacity()).sum();
        if bytes > capacity && space.far_parts().next().is_none() {
            return Err(Error::Full(format!("{bytes} bytes, where the space has {capacity}")));
        }
        let (bound, used) = self.tenant(tenant)?;
        self.evict_above(self.heap.load(bound)?, used, bytes, Some(tenant))?;
        let bound = self.heap.load(self.word(root::BOUND)?)?;
        self.evict_above(bound, self.word(root::USED)?, bytes, None)
    }

    fn evict_above(&self, bound: u64, used: GlobalAddress, more: u64, tenant: Option<u32>) -> Result<()> {
        if bound == 0 {
            return Ok(());
        }
        if more > bound {
            return Err(Error::Full(format!(
                "{more} bytes, where {bound} are the bound of all together"
            )));
        }
        let above = |used: u64| {
            (used as i64)
                .max(0)
                .saturating_add_unsigned(more)
                .saturating_sub_unsigned(bound)
        };
        let over = above(self.heap.load(used)?);
        if over <= 0 {
            return Ok(());
        }
        let bytes = over as u64 + AHEAD * more.min(bound / 1024);
        for n in 1..=TRIES {
            let hand = self.evict(Wanted::bytes(bytes, tenant))?;
            if hand.evicted > 0 || above(self.heap.load(used)?) <= 0 {
                return Ok(());
            }
            if hand.is_all_pinned || n == TRIES {
                break;
            }
            rt::sleep(TRY);
        }
        let whose = tenant.map_or("the store".into(), |tenant| format!("tenant {tenant}"));
        Err(Error::Full(format!(
            "{more} bytes more than {whose} may have ({bound}), and nothing can be evicted: unpin, or raise the bound"
        )))
    }

    /// An object of this process's, of the pool, or of what is evicted for it.
    pub(super) fn alloc_for(&self, len: u64, tenant: u32, part: Option<u8>) -> Result<GlobalAddress> {
        if let Some(object) = self.take_pooled(len, part)? {
            return Ok(object);
        }
        if let Some(part) = part {
            return self.alloc_at(part, len);
        }
        match self.heap.alloc(len) {
            Err(Error::Full(why)) => self.alloc_by_eviction(len, tenant, why),
            answer => answer,
        }
    }

    /// An object in one part; what is evicted for it may lie in others.
    fn alloc_at(&self, part: u8, len: u64) -> Result<GlobalAddress> {
        match self.heap.alloc_at(part, len) {
            Err(Error::Full(why)) => {
                self.evict(Wanted::objects(len, None))?;
                self.take_pooled(len, Some(part))?.ok_or(Error::Full(why))
            }
            answer => answer,
        }
    }

    fn alloc_by_eviction(&self, len: u64, tenant: u32, why: String) -> Result<GlobalAddress> {
        // Of the tenant first where it has a bound of its own: it does not push others out.
        let has_bound = self.heap.load(self.tenant(tenant)?.0)? != 0;
        for whose in has_bound.then_some(tenant).into_iter().map(Some).chain([None]) {
            self.evict(Wanted::objects(len, whose))?;
            if let Some(object) = self.take_pooled(len, None)? {
                return Ok(object);
            }
        }
        match self.alloc_by_squeezing(len, None) {
            Err(Error::Full(_)) => Err(Error::Full(format!("{why}; and nothing can be evicted"))),
            answer => answer,
        }
    }

    /// Evicts, for some passes of the hand at most: what it has come upon.
    fn evict(&self, wanted: Wanted) -> Result<Passed> {
        let (view, pinned) = (self.current()?, self.pinned()?);
        while !self.move_some(&view, 64)? {}
        let (mut items, mut freed, mut wanted) = (0, 0, wanted);
        let (mut has_pinned, mut has_others) = (false, false);
        let a_pass = view.table.buckets().div_ceil(STRIDE);
        wanted.stubs |= self.has_many_stubs()?;
        for round in 0..=(HITS_MAX + 1) * a_pass {
            wanted.stubs |= round > HITS_MAX * a_pass;
            let hand = self.heap.add(self.word(root::HAND)?, STRIDE)?;
            for (placed, header) in self.candidates(&view.table, hand, STRIDE)? {
                if wanted.tenant.is_none_or(|of| of == header.tenant) {
                    let is_pinned = pinned.contains(&placed.entry.item());
                    has_pinned |= is_pinned;
                    has_others |= !is_pinned;
                }
                let bytes = match self.evicted(placed, &header, &wanted, &pinned) {
                    // A chunk of it, or a replica: what makes no room holds nothing up.
                    Err(error) if self.heap.is_away(&error) => None,
                    bytes => bytes?,
                };
                items += u64::from(bytes.is_some());
                freed += bytes.unwrap_or(0);
            }
            if freed >= wanted.bytes || wanted.class.is_some() && items >= AHEAD {
                break;
            }
        }
        self.count_evicted(items)?;
        Ok(Passed {
            evicted: items,
            is_all_pinned: has_pinned && !has_others,
        })
    }

    /// Items that this process has evicted.
    pub(super) fn count_evicted(&self, items: u64) -> Result<()> {
        self.counters.evicted.fetch_add(items, Ordering::Relaxed);
        self.count(root::EVICTED, items)
    }

    /// Evicts an item of a full bucket, for which there is no memory to get larger. A spilled value keeps its word:
    /// where values are spilled, memory for a line is made first.
    pub(super) fn evict_from(&self, table: &Table, bucket: u64, why: String) -> Result<()> {
        if self.spills() && table.entries(&self.heap, bucket)?.len() < LINES_MAX * ENTRIES {
            match self.make_line(table) {
                Err(Error::Full(_)) => {}
                made => return made,
            }
        }
        let pinned = self.pinned()?;
        for (placed, header) in self.candidates(table, bucket, 1)? {
            let item = placed.entry.item();
            if pinned.contains(&item) || self.chunks_wait(item, &header)? {
                continue;
            }
            self.drop_replicas_of(item, &header)?;
            if self.unlink(placed)? {
                self.count_evicted(1)?;
                return self.retire(item, self.header_after(placed, header), true);
            }
            // Another process has taken it out: there is room.
            return Ok(());
        }
        // What is in the bucket cannot go, or is on its way in; what is in others makes room for a line.
        match self.make_line(table) {
            Err(Error::Full(_)) => Err(Error::Full(why)),
            made => made,
        }
    }

    fn make_line(&self, table: &Table) -> Result<()> {
        let line = self.alloc_by_squeezing(LINE, Some(table.address.part()))?;
        self.heap.free(line)
    }

    fn is_of_class(&self, header: &Header, class: Option<u64>) -> bool {
        let chunk = super::item::chunks(header.value_len)
            .next()
            .map_or(0, |range| range.end - range.start);
        class.is_some_and(|class| class == class_size(header.object_len()) || class == class_size(chunk))
    }

    /// Looks at an item as the hand passes it: the bytes that were freed, if it was evicted.
    fn evicted(
        &self,
        placed: Placed,
        header: &Header,
        wanted: &Wanted,
        pinned: &HashSet<GlobalAddress>,
    ) -> Result<Option<u64>> {
        let (item, has_expired) = (placed.entry.item(), header.has_expired(now_micros));
        let is_other = wanted.tenant.is_some_and(|tenant| tenant != header.tenant)
            || wanted.class.is_some() && !self.is_of_class(header, wanted.class)
            || header.is_spilled() && !wanted.stubs && !has_expired;
        if is_other || pinned.contains(&item) {
            return Ok(None);
        }
        let control = header.control;
        if control.hits() > 0 && !has_expired {
            let counted = self.heap.swap(item, control.0, control.with_hits(control.hits() - 1).0);
            // It may have been freed since it was read: then it needs no counting.
            return match counted {
                Err(Error::Invalid(_) | Error::OutOfBounds(_)) => Ok(None),
                counted => counted.map(|_| None),
            };
        }
        // Again, as it may have been pinned since the hand set out.
        if self.is_pinned(item)? || self.chunks_wait(item, header)? {
            return Ok(None);
        }
        self.drop_replicas_of(item, header)?;
        let bytes = footprint(header.key_len as usize, header.value_len);
        if !has_expired && let Some(stub) = self.spill(placed, header)? {
            return Ok(Some(bytes.saturating_sub(stub)));
        }
        let is_gone = self.unlink(placed)?;
        if is_gone {
            self.retire(item, self.header_after(placed, *header), true)?;
        }
        Ok(is_gone.then_some(bytes))
    }

    /// The committed entries of some buckets, with their items' headers.
    pub(super) fn candidates(&self, table: &Table, from: u64, buckets: u64) -> Result<Vec<(Placed, Header)>> {
        let mut entries = Vec::new();
        for n in 0..buckets.min(table.buckets()) {
            entries.extend(table.entries(&self.heap, (from.wrapping_add(n)) & (table.buckets() - 1))?);
        }
        entries.retain(|placed| placed.entry.state() == State::Committed);
        let mut headers = vec![[0; HEADER]; entries.len()];
        let mut reads: Vec<_> = entries
            .iter()
            .zip(&mut headers)
            .map(|(placed, into)| Read {
                address: placed.entry.item(),
                into,
            })
            .collect();
        // One that has been freed ends it: the rest is looked at one by one.
        if self.heap.space().read_many(&mut reads).is_err() {
            return self.candidates_one_by_one(entries);
        }
        let live = |header: &Header| header.control.life() == Life::Live;
        let both = entries.into_iter().zip(headers.iter().map(Header::decode));
        Ok(both.filter(|(_, header)| live(header)).collect())
    }

    fn candidates_one_by_one(&self, entries: Vec<Placed>) -> Result<Vec<(Placed, Header)>> {
        let mut found = Vec::new();
        for placed in entries {
            match self.header_at(placed.entry.item()) {
                Ok(Some(header)) if header.control.life() == Life::Live => found.push((placed, header)),
                Ok(_) => {}
                Err(error) if self.heap.is_away(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
