//! The ways to the memory nodes, and the agents of hosts, that are connected. What is said here of nodes goes for both.
//!
//! Invariants:
//! - one order at a time goes to a node;
//! - no order is given after the leadership is over;
//! - a node has one link, and it is there once the node has noted whose it is.

use super::stored::StoredGrantTable;
use crate::wire::{self, Order, OrderReply};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longer than a node takes to end a holder.
const ORDER_TIMEOUT: Nanos = Nanos::from_secs(8);

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

    pub(super) fn get(&self, node: &K) -> Option<Arc<Link>> {
        self.0.lock().get(node).cloned()
    }
}

/// The way to a memory node.
pub(super) struct Link {
    connection: Arc<dyn Connection>,
    grant_table: Arc<StoredGrantTable>,
    /// Held over an order and its answer.
    one: Mutex<()>,
}

impl Link {
    pub(super) fn new(connection: &Arc<dyn Connection>, grant_table: &Arc<StoredGrantTable>) -> Self {
        Self {
            connection: Arc::clone(connection),
            grant_table: Arc::clone(grant_table),
            one: Mutex::new(()),
        }
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
        self.grant_table.check_leads()?;
        if !is_wanted() {
            return Ok(None);
        }
        match wire::call(&*self.connection, order, ORDER_TIMEOUT)? {
            OrderReply::Failed(failure) => Err(failure.into()),
            reply => Ok(Some(reply)),
        }
    }
}
