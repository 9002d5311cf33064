//! Moves of this part's own extents, one after the other, from wherever they lie to wherever they shall.

use super::super::GlobalAddress;
use super::steps::FrozenExtent;
use super::wire;
use super::{Inner, Order, Ordered, Outcomes, Told, Wish, image};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use std::sync::Arc;

const TURN: Nanos = Nanos::from_millis(50);

fn unexpected() -> Error {
    Error::corrupt("a host's answer does not fit the order")
}

impl Inner {
    /// Asks for a move, or an end, and waits for it.
    pub(super) fn wish(&self, extent: GlobalAddress, to: Option<u8>) -> Result<()> {
        let outcomes = Arc::new(Outcomes::default());
        self.add_wish(extent, to, Told::Here(Arc::clone(&outcomes)));
        let mut outcome = outcomes.outcome.lock();
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            if self.is_stopping() {
                return Err(Error::Lost("the host is stopping".into()));
            }
            (outcome, _) = outcomes.set.wait_timeout(outcome, TURN);
        }
    }

    /// In the order of asking; an extent that is waited for already is not moved twice.
    pub(super) fn add_wish(&self, extent: GlobalAddress, to: Option<u8>, told: Told) {
        let is_double = self.wishes.items.lock().iter().any(|wish| wish.extent == extent);
        if is_double {
            return tell(told, Err(Error::Busy(format!("{extent} is to be moved already"))));
        }
        self.wishes.add(Wish { extent, to, told });
    }

    pub(super) fn execute_wishes(&self) {
        while !self.is_stopping() {
            let Some(Wish { extent, to, told }) = self.wishes.next(TURN) else {
                continue;
            };
            *self.under_way.lock() = Some(extent);
            let done = match to {
                Some(to) => self.move_to(extent, to),
                None => self.reclaim(extent),
            };
            *self.under_way.lock() = None;
            if done.is_err() {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
            }
            tell(told, done);
        }
    }

    fn freeze(&self, part: u8, extent: GlobalAddress, freeze: u64) -> Result<FrozenExtent> {
        match self.order(part, &Order::Freeze { extent, freeze })? {
            Ordered::Frozen { state, is_empty } => Ok(FrozenExtent { state, is_empty }),
            _ => Err(unexpected()),
        }
    }

    /// See [`super::steps`].
    fn move_to(&self, extent: GlobalAddress, to: u8) -> Result<()> {
        let (from, _) = self.keeper.whereabouts(extent)?;
        if from == to {
            return Ok(());
        }
        let freeze = rt::random() | 1;
        let frozen = self.freeze(from, extent, freeze)?;
        let receive = Order::Receive {
            extent,
            state: frozen.state,
            from,
            freeze,
        };
        let received = self.order(to, &receive).and_then(|ordered| match ordered {
            Ordered::Slot(slot) => Ok(slot),
            _ => Err(unexpected()),
        });
        let slot = match received {
            Ok(slot) => slot,
            Err(error) => {
                // Who cannot be told asks.
                let _ = self.order(to, &Order::LetGo { extent });
                let _ = self.order(from, &Order::Thaw { extent });
                return Err(error);
            }
        };
        self.keeper.commit(extent, to, slot)?;
        // It lies there from here on. Who cannot be told asks.
        let _ = self.order(to, &Order::Settle { extent });
        let _ = self.order(from, &Order::LetGo { extent });
        Ok(())
    }

    /// Ends an extent that is away and holds nothing.
    fn reclaim(&self, extent: GlobalAddress) -> Result<()> {
        let (from, _) = self.keeper.whereabouts(extent)?;
        if from == self.part.number() {
            return Ok(());
        }
        let frozen = self.freeze(from, extent, rt::random() | 1)?;
        if !frozen.is_empty {
            let _ = self.order(from, &Order::Thaw { extent });
            return Err(Error::Busy(format!("{extent} holds objects")));
        }
        self.keeper.end_extent(extent)?;
        let _ = self.order(from, &Order::LetGo { extent });
        Ok(())
    }

    /// Does what a home orders.
    pub(super) fn obey(&self, order: &Order) -> Result<Ordered> {
        match *order {
            Order::Freeze { extent, freeze } => {
                let frozen = self.keeper.freeze(extent)?;
                self.frozen.lock().insert(extent, freeze);
                Ok(Ordered::Frozen {
                    state: frozen.state,
                    is_empty: frozen.is_empty,
                })
            }
            Order::Thaw { extent } => {
                self.frozen.lock().remove(&extent);
                self.keeper.thaw(extent).map(|()| Ordered::Done)
            }
            Order::Receive {
                extent,
                state,
                from,
                freeze,
            } => self.receive(extent, state, from, freeze).map(Ordered::Slot),
            Order::Settle { extent } => {
                self.keeper.settle(extent)?;
                self.note_arrival(extent);
                Ok(Ordered::Done)
            }
            Order::LetGo { extent } => {
                if self.frozen.lock().remove(&extent).is_some() {
                    self.counters.left.fetch_add(1, Ordering::Relaxed);
                }
                self.keeper.let_go(extent).map(|()| Ordered::Done)
            }
            Order::Where { extent } => self.place(extent).map(Ordered::At),
            Order::Offer { heat } => Ok(self.consider(heat)),
            Order::Relocate { .. } | Order::Reclaim { .. } => Err(unexpected()),
        }
    }

    fn receive(&self, extent: GlobalAddress, state: u64, from: u8, freeze: u64) -> Result<u32> {
        let way = self.peers.lock().get(&from).map(|peer| Arc::clone(&peer.way));
        let way = way.ok_or_else(|| Error::Invalid(format!("nobody has told the way to part {from}")))?;
        let slot = self.keeper.receive(extent, state)?;
        image::fetch(&self.part, slot, &way, extent, freeze).inspect_err(|_| {
            let _ = self.keeper.let_go(extent);
        })?;
        Ok(slot)
    }

    /// What became of guests that nobody has spoken for, for longer than `age`: their homes know.
    pub(super) fn ask_homes(&self, age: Nanos) {
        for (extent, slot) in self.keeper.unsettled(age) {
            let here = (self.part.number(), slot);
            let _ = match self.order(extent.part(), &Order::Where { extent }) {
                Ok(Ordered::At(Some(place))) if place == here => {
                    self.frozen.lock().remove(&extent);
                    self.keeper.settle(extent).and_then(|()| self.keeper.thaw(extent))
                }
                Ok(Ordered::At(Some(_))) | Err(Error::Invalid(_)) => {
                    self.frozen.lock().remove(&extent);
                    self.keeper.let_go(extent)
                }
                _ => Ok(()),
            };
        }
    }
}

fn tell(told: Told, done: Result<()>) {
    match told {
        Told::Here(outcomes) => {
            *outcomes.outcome.lock() = Some(done);
            outcomes.set.notify_all();
        }
        Told::Answer(answer) => match done.and_then(|()| wire::json(0, &Ordered::Done)) {
            Ok(bytes) => answer.with(&bytes),
            Err(error) => answer.fail(error),
        },
    }
}
