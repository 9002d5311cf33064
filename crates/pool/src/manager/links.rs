//! The ways to the memory nodes that are connected.
//!
//! Invariants:
//! - one order at a time goes to a node;
//! - no order is given after the leadership is over;
//! - a node has one link, and it is there once the node has noted whose it is.

use super::stored::StoredGrantTable;
use crate::grant_table::NodeId;
use crate::wire::{self, Order, OrderReply};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longer than a node takes to end a holder.
const ORDER_TIMEOUT: Nanos = Nanos::from_secs(8);

/// See the module.
#[derive(Default)]
pub(super) struct Links(Mutex<BTreeMap<NodeId, Arc<Link>>>);

impl Links {
    pub(super) fn add(&self, node: NodeId, link: &Arc<Link>) {
        let former = self.0.lock().insert(node, Arc::clone(link));
        assert!(former.is_none(), "memory node {node} is connected twice");
    }

    pub(super) fn remove(&self, node: NodeId) {
        self.0.lock().remove(&node);
    }

    pub(super) fn get(&self, node: NodeId) -> Option<Arc<Link>> {
        self.0.lock().get(&node).cloned()
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
