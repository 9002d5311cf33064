//! Places of connections that come in: so many at a time, shared out among tenants.
//!
//! A connection has a *place* from when it was accepted until it is over, however that ends. A client that has not
//! named its tenant yet has one of the places for unknown clients, so unknown clients keep out no tenant; where those
//! are taken, the one that has said nothing for longest goes. Each tenant has an equal share of the others; and as
//! tenants come and go, the last places are for tenants that have few. Beside them are places in *groups*, each with a
//! number of its own, which no tenant's clients can take: memory nodes, operators, holders that renew a lease.

use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::{Error, Result};
use cenote_fabric::message::Connection;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Of so many places the last one is for tenants that have less than [`FEW`].
const LAST_OF: u32 = 10;
const FEW: u32 = 10;

/// All places of a process that listens.
#[derive(Debug)]
pub(crate) struct Room {
    /// Places of tenants, and of clients that have not named their tenant.
    places: u32,
    strangers: u32,
    /// Connections, those of unknown clients included.
    count: AtomicU32,
    /// Each connection of a tenant or group has one more reference, so that giving a place back takes no lock.
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    tenants: BTreeMap<String, Arc<()>>,
    groups: BTreeMap<String, Arc<()>>,
}

impl Taken {
    fn clear(&mut self) {
        self.tenants.retain(|_, tenant| taken(tenant) > 0);
        self.groups.retain(|_, group| taken(group) > 0);
    }

    fn all(&self) -> u32 {
        self.tenants.values().chain(self.groups.values()).map(taken).sum()
    }
}

/// The place of a connection. Dropped, it is free, and the connection is closed.
pub(crate) struct Place {
    room: Arc<Room>,
    connection: Arc<dyn Connection>,
    owner: OnceLock<Arc<()>>,
}

/// References to it beside the map's.
fn taken(owner: &Arc<()>) -> u32 {
    Arc::strong_count(owner) as u32 - 1
}

impl Room {
    /// With so many places for tenants, and for unknown clients.
    pub(crate) fn new(places: u32, strangers: u32) -> Self {
        assert!(strangers > 0, "every connection begins in a place of an unknown client");
        Self {
            places,
            strangers,
            count: AtomicU32::new(0),
            taken: Mutex::default(),
        }
    }

    /// A place for an unknown client; and whether there are more of them than there should be. One thread asks.
    pub(crate) fn place(self: &Arc<Self>, connection: &Arc<dyn Connection>) -> (Place, bool) {
        let known = self.taken.lock().all();
        let strangers = self.count.fetch_add(1, Ordering::AcqRel).saturating_sub(known);
        let place = Place {
            room: Arc::clone(self),
            connection: Arc::clone(connection),
            owner: OnceLock::new(),
        };
        (place, strangers >= self.strangers)
    }

    /// Connections that have a place.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }
}

impl Place {
    /// It is a tenant's, one of so many, from here on.
    ///
    /// # Errors
    /// [`Error::Busy`] if that one has its share.
    pub(crate) fn give_to(&self, tenant: &str, tenants: usize) -> Result<()> {
        assert!(self.owner.get().is_none(), "a place is given to a tenant once");
        let room = &*self.room;
        let mut known = room.taken.lock();
        known.clear();
        let all: u32 = known.tenants.values().map(taken).sum();
        let has = known.tenants.get(tenant).map_or(0, taken);
        let share = (room.places / u32::try_from(tenants).unwrap_or(u32::MAX).max(1)).max(1);
        let are_last = room.places.saturating_sub(all) <= room.places / LAST_OF;
        if has >= share || all >= room.places || are_last && has >= FEW {
            return Err(Error::Busy(format!(
                "tenant \"{tenant}\" has {has} connections here, {all} of {} are taken, and its share are {share}",
                room.places
            )));
        }
        let one = known.tenants.entry(tenant.to_owned()).or_default();
        self.owner.get_or_init(|| Arc::clone(one));
        Ok(())
    }

    /// It is a group's from here on, which has so many places at most.
    ///
    /// # Errors
    /// [`Error::Busy`] if all of them are taken.
    pub(crate) fn give_to_group(&self, group: &str, most: u32) -> Result<()> {
        assert!(self.owner.get().is_none(), "a place is given to a group once");
        let mut known = self.room.taken.lock();
        known.clear();
        let has = known.groups.get(group).map_or(0, taken);
        if has >= most {
            return Err(Error::Busy(format!(
                "all {most} connections that are kept for {group} are taken"
            )));
        }
        let one = known.groups.entry(group.to_owned()).or_default();
        self.owner.get_or_init(|| Arc::clone(one));
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connection.close();
        // No point where another thread may go on: it may be dropped by a panic.
        self.owner.take();
        let before = self.room.count.as_raw().fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a place that is given back was counted");
    }
}
