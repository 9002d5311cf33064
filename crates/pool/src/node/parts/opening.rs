//! Opening of parts that are mirrored: the manager is asked first, and may not answer for long. So a thread of its own
//! does that, and holds nothing meanwhile that orders, fencing or other parts wait for.
//!
//! ```text
//!   keep: noted, the file made ── requested ──▶ mapped ── (the manager is asked) ──▶ served
//!     └─ Busy, if that takes long: the order comes again          └─ freed meanwhile: given up, and free again
//! ```

use super::{Parts, open_part};
use crate::grant_table::{GrantId, SpaceId};
use crate::manager::ORDER_TIMEOUT;
use crate::node::directory::grant_path;
use crate::node::mirroring::Mirroring;
use crate::wire::PartOrder;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_space::Part;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long the order to keep a part waits until it is open: other orders wait for it.
const KEEP_WAIT: Nanos = Nanos::from_millis(500);
/// The same of a new part, which a client waits for: it is taken back when it could not be made.
const MAKE_WAIT: Nanos = Nanos::from_secs(5);
const TURN: Nanos = Nanos::from_millis(2);

const _: () = assert!(
    KEEP_WAIT.0 <= MAKE_WAIT.0 && MAKE_WAIT.0 < ORDER_TIMEOUT.0,
    "the manager hears that it takes long before it takes the node for lost"
);

/// What there is of parts that are mirrored and not open.
#[derive(Default)]
pub(super) struct Mirrored {
    /// Mapped, while the manager is asked.
    beginning: Mutex<BTreeSet<GrantId>>,
    /// Why they could not be opened, since they were requested.
    failed: Mutex<BTreeMap<GrantId, Error>>,
    /// An order has waited in vain, and the manager has not answered since, nor was all that waited freed.
    is_held_up: AtomicBool,
    bell: Event,
}

impl Mirrored {
    pub(super) fn check_idle(&self, grant: GrantId) -> Result<()> {
        match self.beginning.lock().contains(&grant) {
            false => Ok(()),
            true => Err(Error::Busy(format!("grant {grant} is being opened: ask again"))),
        }
    }

    /// How long an order waits. Where one has waited in vain the others of a node that begins anew do not: their waits
    /// would add up, and what is to be fenced or freed comes after them.
    pub(super) fn patience(&self, order: &PartOrder) -> Nanos {
        match order.make {
            true => MAKE_WAIT,
            false if self.is_held_up.load(Ordering::Acquire) => Nanos::ZERO,
            false => KEEP_WAIT,
        }
    }
}

impl Parts {
    /// Opens what is noted, mirrored and not open, until the node stops. It waits for the manager.
    pub(in crate::node) fn open_mirrored(&self, lease: Nanos, is_stopping: impl Fn() -> bool) -> Vec<Error> {
        let mut errors = Vec::new();
        let closed = self.closed(true);
        if closed.is_empty() {
            // What waited was freed.
            self.mirrored.is_held_up.store(false, Ordering::Release);
        }
        for order in closed.into_iter().take_while(|_| !is_stopping()) {
            if let Err(error) = self.open_one(&order, lease) {
                self.mirrored.failed.lock().insert(order.grant, error.clone());
                errors.push(error);
            }
        }
        errors
    }

    /// Whether a mirrored part of a space is not open: what is to be known at its mirror's node cannot be said there.
    pub(in crate::node) fn is_opening_mirrored(&self, space: SpaceId) -> bool {
        self.closed(true).iter().any(|order| order.space == space)
    }

    /// Waits until there may be something to open, so long at most.
    pub(in crate::node) fn await_request(&self, most: Nanos) {
        if self.mirrored.bell.wait_timeout(most) {
            self.mirrored.bell.reset();
        }
    }

    /// Wakes the thread that opens.
    pub(in crate::node) fn wake_opening(&self) {
        self.mirrored.bell.set();
    }

    /// Makes a part's file if it is to be made, and has it opened; with `opening` held.
    pub(super) fn request(&self, order: &PartOrder) -> Result<()> {
        self.mirroring()?;
        if self.mirrored.check_idle(order.grant).is_ok() {
            open_part(&grant_path(&self.directory, order.grant), order)?;
        }
        self.mirrored.failed.lock().remove(&order.grant);
        self.wake_opening();
        Ok(())
    }

    pub(super) fn await_open(&self, order: &PartOrder, until: Nanos) -> Result<()> {
        while !self.is_open(order.grant) {
            match self.mirrored.failed.lock().get(&order.grant) {
                // Of the question to the manager, which is asked again: of the order it would mean its connection.
                None | Some(Error::Lost(_) | Error::Timeout(_)) => {}
                Some(error) => return Err(error.clone()),
            }
            if rt::now() > until {
                self.mirrored.is_held_up.store(true, Ordering::Release);
                // It was opened just now: that came before, and would be forgotten.
                if self.is_open(order.grant) {
                    self.mirrored.is_held_up.store(false, Ordering::Release);
                    return Ok(());
                }
                let text = "the manager has not said yet what its mirror is";
                return Err(Error::Busy(format!("grant {}: {text}", order.grant)));
            }
            rt::sleep(TURN);
        }
        Ok(())
    }

    fn open_one(&self, order: &PartOrder, lease: Nanos) -> Result<()> {
        let part = {
            let _opening = self.opening.lock();
            if !self.is_to_be_opened(order.grant) {
                return Ok(());
            }
            let part = open_part(&grant_path(&self.directory, order.grant), order)?;
            self.mirrored.beginning.lock().insert(order.grant);
            Arc::new(part.into_mirrored())
        };
        let opened = self.open_mapped(part, order, lease);
        // Not before what is given up is mapped no more: the part may be freed from here on.
        self.mirrored.beginning.lock().remove(&order.grant);
        opened
    }

    fn open_mapped(&self, part: Arc<Part>, order: &PartOrder, lease: Nanos) -> Result<()> {
        // One that is given up ends when `opening` is free again, as its thread may wait for the manager too.
        let begun = self.mirroring()?.begin(&part, order, lease);
        if !matches!(begun, Err(Error::Lost(_) | Error::Timeout(_))) {
            self.mirrored.is_held_up.store(false, Ordering::Release);
        }
        let mut mirror = Some(begun?);
        let _opening = self.opening.lock();
        match self.is_to_be_opened(order.grant) {
            true => self.serve(part, &mut mirror, order, lease),
            false => Ok(()),
        }
    }

    fn is_to_be_opened(&self, grant: GrantId) -> bool {
        let noted = self.noted.lock();
        noted.get(&grant).is_some_and(|noted| !noted.is_closing) && !self.is_open(grant)
    }

    fn mirroring(&self) -> Result<&Mirroring> {
        let mirroring = self.hosting.as_ref().and_then(|hosting| hosting.mirroring.as_ref());
        let none = || Error::Invalid("what is mirrored is asked by calls: start the memory node with --rdma".into());
        mirroring.ok_or_else(none)
    }
}

#[cfg(test)]
mod tests;
