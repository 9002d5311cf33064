//! The ways to the memory nodes, and the agents of hosts, that are connected. What is said here of nodes goes for both.
//!
//! Invariants:
//! - one order at a time goes to a node;
//! - no order is given after the leadership is over;
//! - a node has one link, and it is there once the node has noted whose it is.

use crate::store::Leadership;
use crate::wire::{self, Order, OrderReply};
use cenote_base::rt::{Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longer than a node takes to end a holder, or to make a part: one that takes longer is taken for lost.
pub(crate) const ORDER_TIMEOUT: Nanos = Nanos::from_secs(8);

/// See the module. By the node's number, or by device and host.
pub(super) struct Links<K>(Mutex<BTreeMap<K, Arc<Link>>>);

impl<K> Default for Links<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> Links<K> {
    pub(super) fn add(&self, node: K, link: &Arc<Link>) {
        let former = self.0.lock().insert(node, Arc::clone(link));
        assert!(former.is_none(), "a memory node, or an agent, is connected once");
    }

    pub(super) fn remove(&self, node: &K) {
        self.0.lock().remove(node);
    }

    /// Each node is to be given orders, maybe.
    pub(super) fn work_for_all(&self) {
        self.work_for(|_| true);
    }

    /// These are.
    pub(super) fn work_for(&self, is_concerned: impl Fn(&K) -> bool) {
        let links = self.0.lock();
        let concerned = links.iter().filter(|(node, _)| is_concerned(node));
        concerned.for_each(|(_, link)| link.work.set());
    }

    pub(super) fn get(&self, node: &K) -> Option<Arc<Link>> {
        self.0.lock().get(node).cloned()
    }
}

/// A manager that leads no more gives no orders and no answers.
///
/// # Errors
/// [`Error::Lost`].
pub(super) fn check_leads(leadership: &dyn Leadership) -> Result<()> {
    match leadership.leads() {
        true => Ok(()),
        false => Err(Error::Lost(
            "this manager leads no more: what was asked for may have been done, or not".into(),
        )),
    }
}

/// The way to a memory node.
pub(super) struct Link {
    connection: Arc<dyn Connection>,
    leadership: Arc<dyn Leadership>,
    /// The grant table has something for it, maybe.
    work: Event,
    /// Held over an order and its answer.
    one: Mutex<()>,
}

impl Link {
    pub(super) fn new(connection: &Arc<dyn Connection>, leadership: &Arc<dyn Leadership>) -> Self {
        let work = Event::default();
        work.set();
        Self {
            connection: Arc::clone(connection),
            leadership: Arc::clone(leadership),
            work,
            one: Mutex::new(()),
        }
    }

    /// It does not answer: what serves the connection ends.
    pub(super) fn close(&self) {
        self.connection.close();
    }

    /// Waits until there may be something to order; false if there was nothing for so long.
    pub(super) fn has_work(&self, timeout: Nanos) -> bool {
        let has_work = self.work.wait_timeout(timeout);
        self.work.reset();
        has_work
    }

    /// # Errors
    /// The node's; [`Error::Lost`] if it is not reached, or this manager leads no more.
    pub(super) fn order(&self, order: &Order) -> Result<OrderReply> {
        let reply = self.order_if(order, || true)?;
        reply.ok_or_else(|| Error::Invalid("an order that is not wanted any more".into()))
    }

    /// An order that is given if it is still wanted when it is its turn; `None`: it is not.
    ///
    /// # Errors
    /// As [`Link::order`].
    pub(super) fn order_if(&self, order: &Order, is_wanted: impl FnOnce() -> bool) -> Result<Option<OrderReply>> {
        let _one = self.one.lock();
        check_leads(&*self.leadership)?;
        if !is_wanted() {
            return Ok(None);
        }
        match wire::call(&*self.connection, order, ORDER_TIMEOUT)? {
            OrderReply::Failed(failure) => Err(failure.into()),
            reply => Ok(Some(reply)),
        }
    }
}
