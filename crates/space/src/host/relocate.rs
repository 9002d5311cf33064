//! Moves of this part's own extents, one after the other, from wherever they lie to wherever they shall.

use super::super::GlobalAddress;
use super::steps::{FrozenExtent, gone};
use super::wire;
use super::{HostState, MoveRequest, Next, Order, Ordered, Outcomes, Task, Told, WAITING_MAX};
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::mark::{self, Mark};
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use std::sync::Arc;

const TURN: Nanos = Nanos::from_millis(50);

fn unexpected() -> Error {
    Error::corrupt("a host's answer does not fit the order")
}

impl HostState {
    /// Asks for a move, or an end, and waits for it.
    pub(super) fn requested(&self, extent: GlobalAddress, to: Option<u8>) -> Result<()> {
        let outcomes = Arc::new(Outcomes::default());
        self.add_request(extent, to, Told::Here(Arc::clone(&outcomes)));
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
    pub(super) fn add_request(&self, extent: GlobalAddress, to: Option<u8>, told: Told) {
        let is_double = self
            .move_requests
            .items
            .lock()
            .iter()
            .any(|requested| requested.extent == extent);
        if is_double {
            return tell(told, Err(Error::Busy(format!("{extent} is to be moved already"))));
        }
        match self.move_requests.add(MoveRequest { extent, to, told }) {
            Ok(()) => self.tell(Task::Execute, Nanos::ZERO),
            Err(requested) => tell(
                requested.told,
                Err(Error::Busy(format!("{WAITING_MAX} extents wait to be moved"))),
            ),
        }
    }

    pub(super) fn execute_request(&self) -> Next {
        let (Some(MoveRequest { extent, to, told }), next) = self.move_requests.take() else {
            return Next::Told;
        };
        let former = self.under_way.lock().replace(extent);
        assert_eq!(former, None, "the executor moves one extent at a time");
        let done = match to {
            Some(to) => self.move_to(extent, to),
            None => self.reclaim(extent),
        };
        let moved = self.under_way.lock().take();
        assert_eq!(moved, Some(extent), "another thread moved an extent");
        if done.is_err() {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        tell(told, done);
        next
    }

    fn freeze(&self, part: u8, extent: GlobalAddress, freeze: u64) -> Result<FrozenExtent> {
        match self.order(part, &Order::Freeze { extent, freeze })? {
            Ordered::Frozen { state, is_empty } => Ok(FrozenExtent { state, is_empty }),
            _ => Err(unexpected()),
        }
    }

    fn location_of(&self, extent: GlobalAddress) -> Result<(u8, u32)> {
        self.keeper.location_of(extent)?.ok_or_else(|| gone(extent))
    }

    /// See [`super::steps`].
    fn move_to(&self, extent: GlobalAddress, to: u8) -> Result<()> {
        let (from, _) = self.location_of(extent)?;
        if from == to {
            return Ok(());
        }
        self.check_way(to)?;
        let freeze = rt::random() | 1;
        let frozen = self.freeze(from, extent, freeze)?;
        let received = self.have_received(extent, to, (from, freeze), frozen.state);
        if planted(Fault::EarlySettle) {
            let _ = self.order(to, &Order::Settle { extent, freeze });
        }
        mark::pass(Mark::ExtentReceived);
        if let Err(error) = received.and_then(|slot| self.keeper.commit(extent, to, slot)) {
            // A host that the order does not reach asks this one.
            let _ = self.order(to, &Order::LetGo { extent, freeze });
            let _ = self.order(from, &Order::Thaw { extent, freeze });
            return Err(error);
        }
        // It lies there from here on. A host that the order does not reach asks this one.
        let _ = self.order(to, &Order::Settle { extent, freeze });
        let _ = self.order(from, &Order::LetGo { extent, freeze });
        Ok(())
    }

    fn have_received(&self, extent: GlobalAddress, to: u8, (from, freeze): (u8, u64), state: u64) -> Result<u32> {
        let receive = Order::Receive {
            extent,
            state,
            from,
            freeze,
        };
        match self.order(to, &receive)? {
            Ordered::Slot(slot) => Ok(slot),
            _ => Err(unexpected()),
        }
    }

    /// Ends an extent that holds nothing and does not lie in its own slot.
    fn reclaim(&self, extent: GlobalAddress) -> Result<()> {
        let (from, slot) = self.location_of(extent)?;
        if (from, slot) == (self.part.number(), extent.slot()) {
            return Ok(());
        }
        let freeze = rt::random() | 1;
        let frozen = self.freeze(from, extent, freeze)?;
        let ended = match frozen.is_empty {
            true => self.keeper.end_extent(extent),
            false => Err(Error::Busy(format!("{extent} holds objects"))),
        };
        let told = match ended {
            Ok(()) => Order::LetGo { extent, freeze },
            Err(_) => Order::Thaw { extent, freeze },
        };
        let _ = self.order(from, &told);
        ended
    }
}

pub(super) fn tell(told: Told, done: Result<()>) {
    match told {
        Told::Here(outcomes) => {
            let former = outcomes.outcome.lock().replace(done);
            assert!(former.is_none(), "a request ends once");
            outcomes.set.notify_all();
        }
        Told::Answer(answer) => match done.and_then(|()| wire::json(0, &Ordered::Done)) {
            Ok(bytes) => answer.with(&bytes),
            Err(error) => answer.fail(error),
        },
    }
}
