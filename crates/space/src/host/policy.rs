//! What moves, and when: an extent that is hot in another pod, and hotter there than here by a margin, is offered to a
//! host there.
//!
//! ```text
//!   accesses of this pod's users: one in some 64 is counted, in the part          accesses of other pods: each, where they are served
//!                     └──────── heat here ──────► compare ◄──── heat there ─────────────┘
//!                                                    │ hot, hotter there by the margin, and here for a while
//!                                                    ▼
//!                        offer ─► welcome (there is room) ─► relocate
//!                              ─► instead of a colder one ─► that one comes here (to the spare slot), then relocate
//!                              ─► unwelcome: all that is there is hotter
//! ```
//!
//! The comparison with what would have to go, and the margin, keep two pods from snatching an extent from each other; a
//! load that is the same in both moves nothing. Near accesses are known by samples. Where there are many extents each
//! has few, and chance alone made most of them seem hotter elsewhere: so what may have been missed counts as near.

use super::super::GlobalAddress;
use super::super::heat::Heat;
use super::super::keeper::Lifetime;
use super::super::slot::{Slot, Use};
use super::{FarHeats, HostState, Next, Order, Ordered, Task};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use std::collections::BTreeSet;

/// Looks are on multiples of this, or more often where they are to be.
const TURN: Nanos = Nanos::from_millis(50);
/// Pods whose heat is counted apart, for each extent.
const PODS_MAX: usize = 64;
/// Looks between two for migrated extents that hold nothing.
const RECLAIM_EVERY: u64 = 50;
/// Of looks that are put off because nothing happens: so many times as far apart.
const DOZE: u64 = 8;

/// An extent that would be better off elsewhere.
struct Candidate {
    extent: GlobalAddress,
    slot: u32,
    pod: String,
    heat: f64,
    gain: f64,
}

/// When the policy looked, and whether nothing was going on then.
#[derive(Default)]
pub(super) struct Looks {
    /// The last look, and the last one for migrated extents that hold nothing.
    last: Mutex<(Nanos, Nanos)>,
    /// Nothing happened between the last two looks: the next one is later, unless something happens.
    is_dozing: AtomicBool,
}

/// Times of looks of different parts are the same, so that a thread that looks for all of them wakes seldom.
pub(super) fn on_turn(time: Nanos) -> Nanos {
    Nanos(time.raw().next_multiple_of(TURN.raw()))
}

impl HostState {
    /// A look at what moves.
    pub(super) fn watch(&self) -> Next {
        // Before it looks: an access that it does not see wakes it.
        self.looks.is_dozing.store(true, Ordering::SeqCst);
        // Those of others first: of what comes between the two looks none may seem to be used elsewhere alone.
        let far = self.far_heats();
        let is_idle = self.count_near() == 0 && far.is_empty();
        if !is_idle {
            self.looks.is_dozing.store(false, Ordering::SeqCst);
            self.move_hot(&far);
        }
        let now = rt::now();
        let is_reclaiming = {
            let mut last = self.looks.last.lock();
            last.0 = now;
            let is_time = now.since(last.1) >= Nanos(self.options.every.raw().saturating_mul(RECLAIM_EVERY));
            if is_time {
                last.1 = now;
            }
            is_time
        };
        if is_reclaiming {
            self.reclaim_empty();
        }
        Next::At(self.look_after(if is_idle { DOZE } else { 1 }))
    }

    /// The time of a look after the last one.
    fn look_after(&self, times: u64) -> Nanos {
        let (last, _) = *self.looks.last.lock();
        let every = self.options.every;
        match every {
            // The policy compares nothing.
            Nanos::ZERO => Nanos::MAX,
            _ if every < TURN => last + Nanos(every.raw() * times),
            _ => on_turn(last + Nanos(every.raw().saturating_mul(times))),
        }
    }

    pub(super) fn first_look(&self) -> Nanos {
        *self.looks.last.lock() = (rt::now(), rt::now());
        self.look_after(1)
    }

    /// Something happens: the next look is not put off.
    fn rouse(&self) {
        if self.looks.is_dozing.load(Ordering::SeqCst) && self.looks.is_dozing.swap(false, Ordering::SeqCst) {
            self.tell(Task::Watch, self.look_after(1));
        }
    }

    /// Moves what would be better off elsewhere.
    fn move_hot(&self, far: &FarHeats) {
        let mut silent = BTreeSet::new();
        for candidate in self.candidates(far) {
            if self.is_stopping() {
                return;
            }
            // What fails now is found again at the next look.
            let _ = self.try_move(&candidate, &mut silent);
        }
    }

    /// How hot extents are in other pods; what has grown cold there is forgotten.
    fn far_heats(&self) -> FarHeats {
        let (now, mut far) = (rt::now(), self.far.lock());
        far.retain(|_, pods| {
            pods.retain(|_, heat| heat.at(now, &self.options.heat) > 1.5);
            !pods.is_empty()
        });
        far.clone()
    }

    /// Accesses of this pod's users since the last look; how many there were.
    fn count_near(&self) -> u64 {
        let (now, mut near, mut all) = (rt::now(), self.near.lock(), 0);
        for (slot, known) in (0..).zip(near.iter_mut()) {
            let (reads, writes) = self.part.counted(slot);
            if reads + writes > 0 {
                known.heat.add(reads, writes, now, &self.options.heat);
                all += reads + writes;
            }
        }
        all
    }

    /// Accesses of a user in another pod (or one that maps none of the pod's memory).
    pub(super) fn count_far(&self, pod: &str, slots: &[(u32, bool)]) {
        if slots.is_empty() {
            return;
        }
        if pod == self.options.pod {
            return slots
                .iter()
                .for_each(|(slot, is_write)| self.part.count(*slot, *is_write, 1));
        }
        if self.options.every == Nanos::ZERO {
            // The policy compares nothing.
            return;
        }
        self.count_of_pod(pod, slots);
        self.rouse();
    }

    fn count_of_pod(&self, pod: &str, slots: &[(u32, bool)]) {
        let (now, mut far) = (rt::now(), self.far.lock());
        for (slot, is_write) in slots {
            let pods = far.entry(*slot).or_default();
            if !pods.contains_key(pod) {
                if pods.len() >= PODS_MAX {
                    continue;
                }
                pods.insert(pod.into(), Heat::default());
                assert!(pods.len() <= PODS_MAX, "{} pods of an extent", pods.len());
            }
            let Some(heat) = pods.get_mut(pod) else { continue };
            heat.add(u64::from(!is_write), u64::from(*is_write), now, &self.options.heat);
        }
    }

    /// The extent that lies in a slot's memory, if it is one that moves.
    fn extent_in(&self, slot: u32) -> Option<GlobalAddress> {
        let part = &self.part;
        let found = part.slot(slot).ok()?;
        if let Use::Slab(_, Lifetime::Space) = found.used {
            return GlobalAddress::new(part.number(), slot, 0, found.generation).ok();
        }
        let migrated = GlobalAddress::from_raw(part.migrated(slot).load(Ordering::Acquire));
        let state = Slot::decode(part.migrated_state(slot).load(Ordering::Acquire))?;
        let is_usable = matches!(state.used, Use::Slab(..)) && !migrated.is_null();
        is_usable.then_some(migrated)
    }

    /// What would be better off elsewhere, the hottest first.
    fn candidates(&self, far: &FarHeats) -> Vec<Candidate> {
        let (now, options) = (rt::now(), &self.options);
        let near = self.near.lock().clone();
        // Where no near access was ever counted there is nobody who could have been missed.
        let is_used = near.iter().any(|known| known.heat.at(now, &options.heat) > 1.0);
        let mut found = Vec::new();
        for (slot, pods) in far.iter() {
            let known = near.get(*slot as usize).copied().unwrap_or_default();
            let here = known.heat.at(now, &options.heat);
            let hottest = pods
                .iter()
                .map(|(pod, heat)| (heat.at(now, &options.heat), pod))
                .max_by(|one, other| one.0.total_cmp(&other.0));
            let Some((heat, pod)) = hottest else { continue };
            let is_settled = now.since(known.since) >= options.stay;
            let missed = if is_used {
                known.heat.doubt(now, &options.heat)
            } else {
                0.0
            };
            let is_hotter_there = heat > (here + missed) * options.margin || planted(Fault::HeatComparison);
            if heat <= options.heat.hot || !is_hotter_there || !is_settled {
                continue;
            }
            if let Some(extent) = self.extent_in(*slot) {
                found.push(Candidate {
                    extent,
                    slot: *slot,
                    pod: pod.clone(),
                    heat,
                    gain: heat - here,
                });
            }
        }
        found.sort_by(|one, other| other.gain.total_cmp(&one.gain).then(one.slot.cmp(&other.slot)));
        found.truncate(options.moves);
        found
    }

    /// Offers an extent to the parts of the pod where it should be, but for those that are `silent`, and moves it to
    /// the first that has room or makes some.
    fn try_move(&self, candidate: &Candidate, silent: &mut BTreeSet<u8>) -> Result<()> {
        let parts: Vec<u8> = {
            let peers = self.peers.lock();
            let in_pod = peers.iter().filter(|(_, peer)| peer.pod == candidate.pod);
            in_pod.map(|(part, _)| *part).collect()
        };
        for part in parts
            .into_iter()
            .filter(|part| !silent.contains(part))
            .collect::<Vec<_>>()
        {
            match self.order(part, &Order::Offer { heat: candidate.heat }) {
                Ok(Ordered::Welcome) => {}
                Ok(Ordered::Instead { victim, heat })
                    if heat * self.options.margin < candidate.heat || planted(Fault::HeatComparison) =>
                {
                    self.relocate_any(victim, self.part.number())?;
                }
                // It would be waited for as long by each candidate.
                Err(Error::Lost(_) | Error::Timeout(_)) => {
                    silent.insert(part);
                    continue;
                }
                _ => continue,
            }
            self.relocate_any(candidate.extent, part)?;
            self.forget_heat(candidate.slot);
            return Ok(());
        }
        Ok(())
    }

    /// Moves an extent of any part: its home does it.
    fn relocate_any(&self, extent: GlobalAddress, to: u8) -> Result<()> {
        match extent.part() {
            home if home == self.part.number() => self.requested(extent, Some(to)),
            home => self.order(home, &Order::Relocate { extent, to }).map(drop),
        }
    }

    /// Whether an extent of so much heat to this pod would be welcome here.
    pub(super) fn consider(&self, heat: f64) -> Ordered {
        if !self.part.may_move() {
            return Ordered::Unwelcome;
        }
        if self.keeper.has_room_for_migrated(self.options.kept) {
            return Ordered::Welcome;
        }
        let (now, near) = (rt::now(), self.near.lock().clone());
        let heat_of = |slot: usize| near[slot].heat.at(now, &self.options.heat);
        let may_go = |slot: &usize| now.since(near[*slot].since) >= self.options.stay && heat_of(*slot) < heat;
        let mut colder: Vec<usize> = (0..near.len()).filter(may_go).collect();
        colder.sort_by(|one, other| heat_of(*one).total_cmp(&heat_of(*other)));
        let victim = colder
            .into_iter()
            .find_map(|slot| Some((slot, self.extent_in(slot as u32)?)));
        match victim {
            Some((slot, victim)) => Ordered::Instead {
                victim,
                heat: heat_of(slot),
            },
            None => Ordered::Unwelcome,
        }
    }

    /// An extent has come: what was known of its slot's memory was another's.
    pub(super) fn note_arrival(&self, extent: GlobalAddress) {
        self.counters.came.fetch_add(1, Ordering::Relaxed);
        self.forget_heat(self.part.migrated_slot(extent).unwrap_or(extent.slot()));
    }

    /// Another extent lies in a slot's memory than before, or none.
    pub(super) fn forget_heat(&self, slot: u32) {
        self.far.lock().remove(&slot);
        self.part.counted(slot);
        if let Some(known) = self.near.lock().get_mut(slot as usize) {
            *known = super::Near {
                heat: Heat::default(),
                since: rt::now(),
            };
        }
    }

    /// Migrated extents that hold nothing end, so that their homes can hand out their slots again.
    fn reclaim_empty(&self) {
        for slot in 0..self.part.slots() {
            let migrated = GlobalAddress::from_raw(self.part.migrated(slot).load(Ordering::Acquire));
            let state = Slot::decode(self.part.migrated_state(slot).load(Ordering::Acquire));
            let Some(Slot {
                used: Use::Slab(class, _),
                generation,
            }) = state.filter(|_| !migrated.is_null())
            else {
                continue;
            };
            if self.part.is_empty_slab(slot, class, generation) {
                let _ = match migrated.part() {
                    home if home == self.part.number() => self.requested(migrated, None),
                    home => self.order(home, &Order::Reclaim { extent: migrated }).map(drop),
                };
            }
        }
    }
}
