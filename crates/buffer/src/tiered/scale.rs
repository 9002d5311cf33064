//! Remote memory that grows and shrinks while it is used, by slabs: PolarDB Serverless, section 3.1.2.
//!
//! ```text
//!   not granted ── bit in the header, slab asked for ──▶ serving ── no page gets a slot there ──▶ leaving
//!        ▲                                                │ ▲                                        │ copies end,
//!        │                                          lost  ▼ │ reached again                          │ or move
//!        └──────────── given back, bit cleared ────────── away ◀──────── its way is let go ──────────┘
//! ```
//!
//! One thread does all of it, but for losses: the thread that meets one. What a shrinking memory still has room for moves: pages of the slab that were used later
//! than others elsewhere take their places. A name is emptied, and that acknowledged, before its page has another place
//! or none: so no two slots name one page, and no name outlives its copy.
//!
//! A slab whose node is lost takes its pages with it, and no others. Until their names are emptied, no page goes to
//! storage that a name could be older than: `owning` is held, which `disown` waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Nanos};
use cenote_base::units::ByteSize;
use cenote_base::{Error, PageId, Result};

use super::layout::RemoteSlot;
use super::link::{Former, Link};
use super::policy::{PERIOD, Sample, Step};
use super::scaling::{bit, slabs_in};
use super::table::{Ending, Table};
use super::ways::Failure;
use super::{MOVE_AFTER, PATIENCE, Tier, count};
use crate::lower::Outgoing;
use crate::remote::{PartState, RemotePart, RemoteSize};
use crate::stats::TierStats;

/// Copies that end together.
const BATCH: usize = 32;
/// Copies of a lost slab that end under the table's lock at once.
const LOST_BATCH: usize = 1024;
/// Before a slab is looked at again whose copies are being written.
const TURN: Nanos = Nanos::from_millis(1);
/// How long no slab is asked for after one was refused.
const REFUSED: Nanos = Nanos::from_secs(10);

impl Tier {
    /// Runs `change` of the table if `link` is what it is about still.
    pub(super) fn with_table<T>(&self, link: &Arc<Link>, change: impl FnOnce(&mut Table) -> T) -> Option<T> {
        let mut table = self.table.lock();
        let is_current = table.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link));
        is_current.then(|| change(&mut table))
    }

    pub(super) fn database(&self) -> u128 {
        self.storage.control().get().database
    }

    /// Reaches the slabs that are granted, for a start: within `patience`, all together.
    pub(super) fn reach_slabs(&self, link: &Link, former: &Former, patience: Nanos) {
        let kept = {
            let mut scaling = self.scaling.lock();
            scaling.learn(former);
            scaling.kept() & link.layout.slabs.all()
        };
        let slabs: Vec<u32> = slabs_in(kept).collect();
        if !slabs.is_empty() {
            let failed = link.reach_all(&self.source, (self.database(), patience), &slabs);
            failed.iter().for_each(|error| self.say(error));
        }
        self.scaling.lock().wanted = kept.count_ones();
    }

    /// The slabs that the header is to name.
    pub(super) fn granted(&self) -> u64 {
        self.scaling.lock().granted
    }

    /// A turn of the thread that scales.
    pub(super) fn scale_once(&self, is_over: &dyn Fn() -> bool) {
        let _one = self.turn.lock();
        let Some(link) = self.table.lock().link.clone() else {
            return;
        };
        self.return_slabs(&link, is_over);
        self.reach_away(&link, is_over);
        while !is_over() {
            let Some((staying, leaving)) = self.with_table(&link, |table| table.slabs()) else {
                return;
            };
            // Those that are away count: they come back.
            let kept = self.kept(&link);
            let Some(wanted) = self.decide(&link, kept.count_ones()) else {
                return;
            };
            let away = slabs_in(kept).find(|slab| !staying.contains(slab));
            let goes_on = match (leaving.first(), away) {
                (Some(slab), _) => self.empty_slab(&link, *slab, is_over),
                (None, _) if kept.count_ones() < wanted => self.grow(&link),
                (None, Some(slab)) if kept.count_ones() > wanted => self.let_go(&link, slab, is_over),
                (None, None) if kept.count_ones() > wanted => self.shrink(&link, &staying, is_over),
                _ => false,
            };
            if !goes_on {
                return;
            }
        }
    }

    // ---- how many ----

    fn kept(&self, link: &Link) -> u64 {
        self.scaling.lock().kept() & link.layout.slabs.all()
    }

    /// How many slabs there are to be, of which so many are kept; `None` where there is no remote memory any more.
    fn decide(&self, link: &Arc<Link>, there: u32) -> Option<u32> {
        let uses = self.with_table(link, |table| table.uses())?;
        let now = rt::now();
        let mut scaling = self.scaling.lock();
        let (at, before) = scaling.sampled;
        let period = now.since(at);
        let by_need = scaling.size == RemoteSize::ByNeed;
        if let RemoteSize::Bytes(bytes) = scaling.size {
            let more = bytes.saturating_sub(link.ways.first().len());
            let slab = self.source.growth().map_or(0, |growth| growth.slab);
            let slabs = more.div_ceil(slab.max(1));
            scaling.wanted = slabs.min(u64::from(link.layout.slabs.most)) as u32;
        } else if period >= PERIOD {
            let sample = Sample {
                period,
                misses_of_a_slab: uses.misses_of_a_slab.saturating_sub(before.misses_of_a_slab),
                hits_of_a_slab: uses.hits_of_a_slab.saturating_sub(before.hits_of_a_slab),
            };
            let step = scaling.policy.as_mut().map_or(Step::Stay, |policy| policy.step(sample));
            scaling.wanted = match step {
                Step::Stay => there,
                Step::Grow => (there + 1).min(link.layout.slabs.most),
                Step::Shrink => there.saturating_sub(1),
            };
            scaling.sampled = (now, uses);
        }
        let is_refused = now < scaling.held_off;
        let wanted = if is_refused {
            scaling.wanted.min(there)
        } else {
            scaling.wanted
        };
        drop(scaling);
        if by_need && period >= PERIOD {
            self.with_table(link, Table::mark_cold);
        }
        Some(wanted)
    }

    // ---- more ----

    /// Takes a slab. Says whether another may be taken at once.
    fn grow(&self, link: &Arc<Link>) -> bool {
        let slab = {
            let mut scaling = self.scaling.lock();
            let all = link.layout.slabs.all();
            if all & !scaling.granted & !scaling.avoided == 0 {
                scaling.avoided = 0;
            }
            let free = slabs_in(all & !scaling.granted & !scaling.avoided).next();
            let Some(slab) = free.or_else(|| slabs_in(all & scaling.returning).next()) else {
                return false;
            };
            scaling.granted |= bit(slab);
            scaling.returning |= bit(slab);
            slab
        };
        if !self.write_granted(link) {
            return false;
        }
        match link.reach(&self.source, (self.database(), PATIENCE), slab) {
            Ok(()) => self.serve(link, slab),
            Err(error) => {
                self.refused(slab, &error);
                false
            }
        }
    }

    /// The slab is reached: pages get slots there.
    fn serve(&self, link: &Arc<Link>, slab: u32) -> bool {
        {
            let mut scaling = self.scaling.lock();
            scaling.returning &= !bit(slab);
            scaling.taken += 1;
        }
        let is_added = self.with_table(link, |table| table.add_slab(slab)) == Some(true);
        if is_added {
            self.say_size(link);
        }
        is_added
    }

    /// It may be granted all the same: it is given back in the next turn. Another number is tried next, since this one's
    /// grant may be on a node that is away.
    fn refused(&self, slab: u32, error: &Error) {
        {
            let mut scaling = self.scaling.lock();
            scaling.held_off = rt::now() + REFUSED;
            scaling.avoided |= bit(slab);
        }
        self.say_not_grown(error);
    }

    /// Slabs that are granted, and not there: their way is looked for.
    fn reach_away(&self, link: &Arc<Link>, is_over: &dyn Fn() -> bool) {
        let kept = self.kept(link);
        let Some((staying, leaving)) = self.with_table(link, |table| table.slabs()) else {
            return;
        };
        let there = staying.iter().chain(&leaving).fold(0, |bits, slab| bits | bit(*slab));
        let away = kept & !there;
        self.scaling.lock().away_since.retain(|slab, _| away & bit(*slab) != 0);
        for slab in slabs_in(away) {
            if is_over() || self.with_table(link, |_| ()).is_none() {
                return;
            }
            match link.reach(&self.source, (self.database(), PATIENCE), slab) {
                Ok(()) => self.reached_again(link, slab),
                Err(error) => self.not_reached(slab, &error),
            }
        }
    }

    fn reached_again(&self, link: &Arc<Link>, slab: u32) {
        self.scaling.lock().away_since.remove(&slab);
        match self.with_table(link, |table| table.add_slab(slab)) {
            Some(true) => self.say_size(link),
            // A write of before is under way still.
            _ => link.ways.set(slab, None),
        }
    }

    /// A slab that has been looked for in vain for long is given back, and looked for anew: what was there counts for
    /// nothing, and a node that is there may have room.
    fn not_reached(&self, slab: u32, error: &Error) {
        self.say(error);
        let is_long_away = {
            let mut scaling = self.scaling.lock();
            let since = scaling.away_since.entry(slab).or_insert_with(rt::now);
            let is_long_away = rt::now().since(*since) >= MOVE_AFTER;
            if is_long_away {
                *since = rt::now();
            }
            is_long_away
        };
        if is_long_away {
            let given_back = self.source.give_back(self.database(), slab, PATIENCE);
            given_back.unwrap_or_else(|error| self.say(&error));
        }
    }

    /// The header names the slabs that may be granted. Says whether it does.
    fn write_granted(&self, link: &Arc<Link>) -> bool {
        let owning = self.owning.lock();
        if self.with_table(link, |_| ()).is_none() {
            return false;
        }
        let written = link.complete(self.database(), self.granted());
        drop(owning);
        match written {
            Ok(()) => true,
            Err(error) => {
                self.lose(link, &Failure::of_first(error));
                false
            }
        }
    }

    // ---- less ----

    /// Gives up the slab with the fewest pages; of those the last.
    fn shrink(&self, link: &Arc<Link>, staying: &[u32], is_over: &dyn Fn() -> bool) -> bool {
        let slab = self.with_table(link, |table| {
            let emptiest = staying.iter().rev().min_by_key(|slab| table.pages_in(**slab));
            if let Some(slab) = emptiest {
                table.leave_slab(*slab);
            }
            emptiest.copied()
        });
        match slab.flatten() {
            Some(slab) => self.empty_slab(link, slab, is_over),
            None => false,
        }
    }

    /// Ends the copies of a slab that is leaving, and gives it back. Says whether that is done.
    fn empty_slab(&self, link: &Arc<Link>, slab: u32, is_over: &dyn Fn() -> bool) -> bool {
        loop {
            let mut from = Some(0);
            while let Some(place) = from {
                if is_over() {
                    return false;
                }
                let begun = rt::now();
                let Some((endings, next)) = self.with_table(link, |table| table.begin_ending(slab, place, BATCH))
                else {
                    return false;
                };
                if !endings.is_empty() && !self.end_copies(link, &endings) {
                    return false;
                }
                // As long as it took others go first.
                rt::sleep(rt::now().since(begun));
                from = next;
            }
            match self.with_table(link, |table| table.remove_slab(slab)) {
                None => return false,
                Some(true) => break,
                Some(false) => rt::sleep(TURN),
            }
        }
        self.let_go(link, slab, is_over);
        self.say_size(link);
        true
    }

    /// Gives back a slab without pages, or one that is away.
    fn let_go(&self, link: &Arc<Link>, slab: u32, is_over: &dyn Fn() -> bool) -> bool {
        link.ways.set(slab, None);
        {
            let mut scaling = self.scaling.lock();
            scaling.returning |= bit(slab);
            scaling.returned += 1;
        }
        self.return_slabs(link, is_over);
        true
    }

    /// Empties the names of copies, and ends them; pages that are worth it go to other slots. Says whether remote
    /// memory is there still.
    fn end_copies(&self, link: &Arc<Link>, endings: &[Ending]) -> bool {
        let mut bytes = self.bytes_of(link, endings);
        let slots: Vec<RemoteSlot> = endings.iter().map(|ending| ending.copy.slot).collect();
        if let Err(failure) = link.clear(&slots, Vec::new()) {
            self.lose(link, &failure);
            return false;
        }
        let ended = self.with_table(link, |table| {
            let (mut placed, mut evicted) = (Vec::new(), Vec::new());
            for (ending, bytes) in endings.iter().zip(&mut bytes) {
                if let Some(place) = table.end(ending, bytes.is_some()) {
                    evicted.extend(place.evicted);
                    let (page, lsn) = (ending.page, ending.copy.lsn);
                    let bytes = bytes.take().expect("a page moves whose bytes were read");
                    placed.push((place.slot, Outgoing { page, lsn, bytes }));
                }
            }
            (placed, evicted, table.take_index_writes())
        });
        let Some((placed, evicted, index)) = ended else {
            return false;
        };
        self.write_moved(link, placed, &evicted, index);
        true
    }

    fn write_moved(
        &self,
        link: &Arc<Link>,
        placed: Vec<(RemoteSlot, Outgoing)>,
        evicted: &[PageId],
        index: Vec<super::index::WordWrite>,
    ) {
        let moved: Vec<PageId> = placed.iter().map(|(_, outgoing)| outgoing.page).collect();
        self.scaling.lock().moved += moved.len() as u64;
        if planted(Fault::MoveUnwaited) {
            self.with_table(link, |table| moved.iter().for_each(|page| table.faded(*page)));
        }
        let (copies, failures) = link.write(placed, index);
        failures.iter().for_each(|failure| self.lose(link, failure));
        self.note_written(link, &copies, evicted);
        self.with_table(link, |table| moved.iter().for_each(|page| table.faded(*page)));
    }

    /// The bytes of those pages that are in no frame, and can be read.
    fn bytes_of(&self, link: &Arc<Link>, endings: &[Ending]) -> Vec<Option<Box<[u8]>>> {
        let idle = endings.iter().filter(|ending| ending.is_idle);
        let copies: Vec<_> = idle.map(|ending| (ending.page, ending.copy)).collect();
        let mut read = link.read_many(&copies).into_iter();
        let each = endings.iter().map(|ending| match ending.is_idle {
            true => read.next()?.ok(),
            false => None,
        });
        each.collect()
    }

    /// Gives back what is to be given back.
    fn return_slabs(&self, link: &Arc<Link>, is_over: &dyn Fn() -> bool) {
        let returning = self.scaling.lock().returning;
        let mut done = 0;
        for slab in slabs_in(returning) {
            if is_over() {
                break;
            }
            match self.source.give_back(self.database(), slab, PATIENCE) {
                Ok(()) => done |= bit(slab),
                Err(error) => self.say(&error),
            }
        }
        if done != 0 {
            {
                let mut scaling = self.scaling.lock();
                scaling.granted &= !done;
                scaling.returning &= !done;
            }
            self.write_granted(link);
        }
    }

    // ---- lost ----

    /// A slab cannot be reached: its copies are none any more.
    pub(super) fn lose_slab(&self, link: &Arc<Link>, slab: u32, failure: &Failure) {
        // A way that is used no more says nothing of the one that is.
        let Some(key) = failure.way.filter(|key| link.ways.is_way(slab, *key)) else {
            return;
        };
        let owning = self.owning.lock();
        if !link.ways.is_way(slab, key) {
            return;
        }
        let is_there = self.with_table(link, |table| {
            let is_there = table.lose_slab(slab);
            if is_there {
                // Until the names are emptied nothing goes to storage that one could be older than.
                self.to_disown.store(true, Ordering::SeqCst);
            }
            is_there
        });
        if is_there != Some(true) {
            return;
        }
        link.ways.set(slab, None);
        count(&self.counts.losses);
        let error = &failure.error;
        eprintln!("cenote: slab {slab} of remote memory: {error}; going on with the others, nothing is lost");
        match self.clear_lost(link, slab) {
            Ok(()) => {
                self.with_table(link, |table| {
                    table.lost_slab(slab);
                    self.to_disown.store(false, Ordering::SeqCst);
                });
            }
            // Before another loss may say that nothing is to be disowned.
            Err(failure) => self.lose_all(link, &failure.error),
        }
        drop(owning);
    }

    /// Ends the copies, each when its name is empty. Until then a change of its page has to find it: readers may reach
    /// the slab still, and are told of no watermark before.
    fn clear_lost(&self, link: &Arc<Link>, slab: u32) -> Result<(), Failure> {
        let mut from = Some(0);
        while let Some(place) = from {
            let begun = self.with_table(link, |table| table.begin_ending(slab, place, LOST_BATCH));
            let Some((endings, next)) = begun else { break };
            if !planted(Fault::LostSlabNamed) {
                let slots: Vec<RemoteSlot> = endings.iter().map(|ending| ending.copy.slot).collect();
                link.clear(&slots, Vec::new())?;
            }
            self.with_table(link, |table| {
                for ending in &endings {
                    let place = table.end(ending, false);
                    assert!(place.is_none(), "what was in a lost slab has no other place");
                }
            });
            from = next;
        }
        Ok(())
    }

    // ---- for people ----

    fn say_size(&self, link: &Arc<Link>) {
        let slots = self.with_table(link, |table| (table.slots(), table.slabs().0.len()));
        if let Some((slots, slabs)) = slots {
            let bytes = self.bytes_with(link, slabs as u64);
            eprintln!("cenote: remote memory has {bytes} now, {slots} pages, {slabs} slabs");
        }
    }

    fn bytes_with(&self, link: &Link, slabs: u64) -> ByteSize {
        ByteSize(link.ways.first().len() + slabs * link.layout.slab_len())
    }

    fn say_not_grown(&self, error: &Error) {
        let mut said = self.said.lock();
        let text = format!("remote memory does not grow: {error}");
        if *said != text {
            eprintln!("cenote: {text}");
            *said = text;
        }
    }

    pub(super) fn set_size(&self, size: RemoteSize) -> Result<()> {
        let Some(growth) = self.source.growth() else {
            return Err(Error::Invalid(
                "this remote memory has one size: it grows and shrinks where a greatest size is set (memory_max)"
                    .into(),
            ));
        };
        let first = self.table.lock().link.as_ref().map(|link| link.ways.first().len());
        if let (RemoteSize::Bytes(bytes), Some(first)) = (size, first) {
            let most = first + growth.slab * u64::from(growth.most);
            if bytes > most {
                let (bytes, most) = (ByteSize(bytes), ByteSize(most));
                let text = format!("remote memory has at most {most} here, not {bytes}");
                return Err(Error::Invalid(text));
            }
        }
        let uses = {
            let mut table = self.table.lock();
            table.mark_cold();
            table.uses()
        };
        let mut scaling = self.scaling.lock();
        scaling.size = size;
        scaling.held_off = Nanos::default();
        scaling.sampled = (rt::now(), uses);
        Ok(())
    }

    /// What is known of slabs, in figures.
    pub(super) fn scale_stats(&self) -> TierStats {
        let (link, uses, slabs) = {
            let table = self.table.lock();
            (table.link.clone(), table.uses(), table.slabs())
        };
        let scaling = self.scaling.lock();
        let slabs = (slabs.0.len() + slabs.1.len()) as u32;
        TierStats {
            bytes: link
                .as_ref()
                .map_or(0, |link| self.bytes_with(link, slabs.into()).bytes()),
            slabs,
            slabs_wanted: scaling.wanted,
            slabs_most: self.source.growth().map_or(0, |growth| growth.most),
            slab_bytes: self.source.growth().map_or(0, |growth| growth.slab),
            by_need: scaling.size == RemoteSize::ByNeed && scaling.policy.is_some(),
            slabs_taken: scaling.taken,
            slabs_returned: scaling.returned,
            pages_moved: scaling.moved,
            misses_of_a_slab: uses.misses_of_a_slab,
            hits_of_a_slab: uses.hits_of_a_slab,
            ..TierStats::default()
        }
    }

    pub(super) fn parts(&self) -> Vec<RemotePart> {
        let table = self.table.lock();
        let Some(link) = table.link.clone() else {
            return Vec::new();
        };
        let kept = self.scaling.lock().kept();
        let (staying, leaving) = table.slabs();
        let in_slabs: usize = staying
            .iter()
            .chain(&leaving)
            .filter_map(|slab| table.pages_in(*slab))
            .sum::<u32>() as usize;
        let first = RemotePart {
            slab: None,
            node: link.peer().into(),
            bytes: link.ways.first().len(),
            slots: link.layout.first,
            slots_in_use: table.slots_in_use().saturating_sub(in_slabs) as u32,
            state: PartState::Serving,
        };
        let slab = |slab: u32| RemotePart {
            slab: Some(slab),
            node: link
                .ways
                .slab(slab)
                .map_or(String::new(), |way| way.endpoint().peer().into()),
            bytes: link.layout.slab_len(),
            slots: link.layout.slabs.slots,
            slots_in_use: table.pages_in(slab).unwrap_or(0),
            state: match (staying.contains(&slab), leaving.contains(&slab)) {
                (true, _) => PartState::Serving,
                (_, true) => PartState::Leaving,
                _ => PartState::Away,
            },
        };
        let there = staying
            .iter()
            .chain(&leaving)
            .fold(kept, |bits, slab| bits | bit(*slab));
        let slabs = slabs_in(there & link.layout.slabs.all()).map(slab);
        std::iter::once(first).chain(slabs).collect()
    }
}
