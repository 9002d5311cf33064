//! Far parts by way of a memory node of this machine: over its ring, and from there over the connections that it has.
//! Where it has no ring, or is away, one's own connections do, if there are any.

use super::membership::Membership;
use crate::relay;
use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, Called, Caller, CallerId, Callers, CallsInFlight};
use std::sync::Arc;

/// Memberships at nodes of this machine.
pub(super) type Near = Arc<Mutex<Vec<Arc<Membership>>>>;

/// The ways to a far part.
pub(super) struct Relays {
    part: u8,
    near: Near,
    direct: Option<Arc<dyn Callers>>,
}

impl Relays {
    /// Over the first of these that has a ring.
    pub(super) fn new(part: u8, near: &Near, direct: Option<Arc<dyn Callers>>) -> Self {
        let near = Arc::clone(near);
        Self { part, near, direct }
    }
}

impl core::fmt::Debug for Relays {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "by way of a memory node to part {}", self.part)
    }
}

impl Callers for Relays {
    fn caller(&self, peer: &str) -> Result<Arc<dyn Caller>> {
        let ring = self.near.lock().iter().find_map(|member| member.ring());
        let (part, peer) = (self.part, peer.to_owned());
        match (ring, &self.direct) {
            (Some(ring), _) => Ok(Arc::new(Relay { ring, part, peer })),
            (None, Some(direct)) => direct.caller(&peer),
            (None, None) => Err(Error::Lost(format!(
                "no memory node of this machine forwards to part {part}"
            ))),
        }
    }
}

/// A way over one ring.
struct Relay {
    ring: Arc<dyn Caller>,
    part: u8,
    peer: String,
}

impl core::fmt::Debug for Relay {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "to {} over {:?}", self.peer, self.ring)
    }
}

impl Caller for Relay {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn id(&self) -> CallerId {
        self.ring.id()
    }

    fn post(&self, mut calls: Vec<Call>) -> Called {
        calls
            .iter_mut()
            .for_each(|call| relay::wrap(self.part, &mut call.request));
        Called::new(Box::new(Relayed(self.ring.post(calls))))
    }
}

struct Relayed(Called);

impl CallsInFlight for Relayed {
    fn poll(&mut self) -> bool {
        self.0.poll()
    }

    fn wait(self: Box<Self>) -> Vec<Call> {
        let mut calls = self.0.wait();
        calls.iter_mut().for_each(unwrap);
        calls
    }
}

fn unwrap(call: &mut Call) {
    relay::unwrap(&mut call.request);
    if call.result.is_ok() {
        match relay::answered(core::mem::take(&mut call.answer)) {
            Ok(answer) => call.answer = answer,
            Err(error) => call.result = Err(error),
        }
    }
}
