//! Whether this manager leads. It listens in any case; a client that comes while another leads is told so.
//!
//! ```text
//!             lead: the grant table is read, its term rises, and is written         the leadership is over
//!   waiting ──────────────────────────────────────────────────────▶ leading ───────────────────▶ waiting
//!                                                                     Leader: everything of one leadership
//! ```
//!
//! Nothing is taken from one leadership into the next but what the grant table says: a [`Leader`] whose leadership is
//! over answers no client and orders nothing, its connections end, and its threads with them.

use super::leader::{Leader, ManagerOptions};
use super::links::ORDER_TIMEOUT;
use super::peers::{self, Peer};
use super::reaching::Reaching;
use crate::limits::ServiceLimits;
use crate::service::{Greeted, Peers, Service, Visit};
use crate::store::{GrantTableStore, Lead};
use crate::wire::{self, Failure, Hello, Welcome};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Listener;
use std::sync::Arc;

/// Between two tries to lead.
const TRY_EVERY: Nanos = Nanos::from_millis(300);

pub(super) struct Election {
    options: ManagerOptions,
    store: Arc<dyn GrantTableStore>,
    /// The leader's name, as others are told.
    name: String,
    leader: Mutex<LeaderPlace>,
    /// Set while it leads.
    leading: Event,
    service: Service<Peer>,
    /// Of all leaderships.
    pub(super) reaching: Arc<Reaching>,
    stop: AtomicBool,
}

/// Where the manager that leads is.
#[derive(Clone)]
enum LeaderPlace {
    Here(Arc<Leader>),
    /// Another, or none; what clients that ask are told.
    Elsewhere(String),
}

impl Election {
    pub(super) fn new(
        options: ManagerOptions,
        store: Arc<dyn GrantTableStore>,
        limits: ServiceLimits,
        name: String,
    ) -> Self {
        Self {
            options,
            store,
            name,
            leader: Mutex::new(LeaderPlace::Elsewhere("this manager does not lead yet".into())),
            leading: Event::default(),
            service: Service::new("manager", limits),
            reaching: Arc::default(),
            stop: AtomicBool::new(false),
        }
    }

    // ---- leading ----

    /// Leads, if no other manager does.
    ///
    /// # Errors
    /// Those of the store and the grant table: it does not lead.
    pub(super) fn try_to_lead(&self) -> Result<()> {
        let leadership = match self.store.lead(&self.name)? {
            Lead::Here(leadership) => leadership,
            Lead::Elsewhere(leader) => {
                self.set_elsewhere(match leader {
                    Some(leader) => format!("the manager at {} does not lead; the one at {leader} does", self.name),
                    None => format!("the manager at {} does not lead", self.name),
                });
                return Ok(());
            }
        };
        match Leader::begin(&self.options, Arc::clone(&leadership), &self.reaching) {
            Ok(leader) => {
                let former = core::mem::replace(&mut *self.leader.lock(), LeaderPlace::Here(Arc::new(leader)));
                assert!(
                    matches!(former, LeaderPlace::Elsewhere(_)),
                    "a leadership begins after the one before has ended"
                );
                self.leading.set();
                Ok(())
            }
            Err(error) => {
                leadership.resign();
                Err(error)
            }
        }
    }

    fn set_elsewhere(&self, text: String) {
        self.leading.reset();
        *self.leader.lock() = LeaderPlace::Elsewhere(text);
    }

    /// Leads whenever it can, and lapses leases while it does, until it is stopped.
    pub(super) fn govern(&self) {
        let mut said = String::new();
        while !self.is_stopping() {
            match self.leader() {
                Ok(leader) => {
                    leader.lapse();
                    self.end_of(&leader);
                }
                Err(_) => {
                    rt::sleep(TRY_EVERY);
                    self.try_again(&mut said);
                }
            }
        }
    }

    fn try_again(&self, said: &mut String) {
        let text = match self.try_to_lead() {
            Ok(()) => self.leader().map_or_else(
                |error| error.to_string(),
                |leader| {
                    let (pool, term) = (leader.pool(), leader.term());
                    format!("it leads from now on, pool {pool:032x}, term {term}")
                },
            ),
            Err(error) => {
                let text = format!("it does not lead: {error}; trying again");
                self.set_elsewhere(format!("the manager at {} does not lead: {error}", self.name));
                text
            }
        };
        if text != *said {
            eprintln!("cenote: manager: {text}");
            *said = text;
        }
    }

    fn end_of(&self, leader: &Leader) {
        leader.end();
        if !self.is_stopping() {
            eprintln!("cenote: manager: it leads no more");
        }
        self.set_elsewhere(format!("the manager at {} leads no more", self.name));
        // Clients ask who leads now.
        self.service.close_connections();
    }

    /// Everything of the leadership that there is.
    ///
    /// # Errors
    /// [`Error::Lost`] if it does not lead.
    pub(super) fn leader(&self) -> Result<Arc<Leader>> {
        match &*self.leader.lock() {
            LeaderPlace::Here(leader) => Ok(Arc::clone(leader)),
            LeaderPlace::Elsewhere(text) => Err(Error::Lost(text.clone())),
        }
    }

    pub(super) fn wait_leading(&self, timeout: Nanos) -> bool {
        self.leading.wait_timeout(timeout)
    }

    // ---- the end ----

    fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        if let Ok(leader) = self.leader() {
            leader.stop();
        }
    }

    /// Returns when no thread of a connection, or one that reaches slabs, has anything of it.
    pub(super) fn wait_ended(&self) {
        self.service.close();
        // No node is waited for any more, as its connection is over; a store that is away may be.
        if !self.reaching.wait_ended(ORDER_TIMEOUT) {
            eprintln!("cenote: manager: threads that reach slabs have not ended");
        }
    }

    // ---- connections ----

    pub(super) fn accept(self: &Arc<Self>, listener: &dyn Listener) {
        let peers = Arc::downgrade(self);
        self.service.accept(listener, peers, || self.is_stopping());
    }
}

impl Peers for Election {
    type Peer = Peer;

    fn greet(&self, hello: &[u8], visit: &Arc<Visit>) -> Result<Greeted<Peer>> {
        let hello: Hello = wire::read(&*visit.connection, hello)?;
        let evict = |tenant: &str| self.service.evict(|visit| visit.shares_as(tenant));
        match self.leader() {
            Ok(leader) => leader.greet(hello, visit, &evict),
            Err(error) => {
                let refusal: std::result::Result<Welcome, Failure> = Err(error.clone().into());
                wire::send(&*visit.connection, &refusal)?;
                Err(error)
            }
        }
    }

    fn may_wait(&self, request: &[u8]) -> bool {
        peers::may_wait(request)
    }

    fn answer(&self, peer: &mut Peer, request: &[u8], visit: &Arc<Visit>) -> Result<()> {
        peer.answer(request, visit)
    }

    fn leave(&self, _: Peer) {}
}
