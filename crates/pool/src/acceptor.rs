//! Connections that come in: a thread for each, for so many at a time, shared out among tenants.
//!
//! A connection has a *place* for as long as its thread lives, however that ends. A client that has not named its
//! tenant yet has one of the places for unknown clients, so unknown clients keep out no tenant. Each tenant has an
//! equal share of the others; and as tenants come and go, the last places are for tenants that have few.

use cenote_base::rt::atomic::{AtomicU32, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Listener};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Between two looks whether to go on.
const TURN: Nanos = Nanos::from_millis(100);
/// Before what failed is tried again.
const AGAIN: Nanos = Nanos::from_secs(1);
/// Of so many places the last one is for tenants that have less than [`FEW`].
const LAST_OF: u32 = 10;
const FEW: u32 = 10;

/// Accepts connections.
#[derive(Debug)]
pub(crate) struct Acceptor {
    /// For messages.
    name: &'static str,
    room: Arc<Room>,
}

#[derive(Debug)]
struct Room {
    /// Places of tenants, and of clients that have not named their tenant.
    places: u32,
    strangers: u32,
    /// Connections, those of unknown clients included.
    count: AtomicU32,
    /// By tenant: each of its connections has one more reference, so that giving a place back takes no lock.
    tenants: Mutex<BTreeMap<String, Arc<()>>>,
}

/// The place of a connection. Dropped, it is free, and the connection is closed.
pub(crate) struct Place {
    room: Arc<Room>,
    connection: Arc<dyn Connection>,
    tenant: OnceLock<Arc<()>>,
}

impl Acceptor {
    /// With so many places for tenants, and for unknown clients.
    pub(crate) fn new(name: &'static str, places: u32, strangers: u32) -> Self {
        assert!(strangers > 0, "every connection begins in a place of an unknown client");
        let room = Room {
            places,
            strangers,
            count: AtomicU32::new(0),
            tenants: Mutex::default(),
        };
        Self {
            name,
            room: Arc::new(room),
        }
    }

    /// Serves each connection in a thread of its own, until it is over.
    pub(crate) fn accept(
        &self,
        listener: &dyn Listener,
        is_over: impl Fn() -> bool,
        serve: impl Fn(&Arc<dyn Connection>, &Place) + Clone + Send + 'static,
    ) {
        while !is_over() {
            match listener.accept(TURN) {
                Ok(Some(connection)) => self.let_in(connection, serve.clone()),
                Ok(None) => {}
                Err(error) => {
                    eprintln!("cenote: {}: {error}", self.name);
                    rt::sleep(AGAIN);
                }
            }
        }
    }

    fn let_in(
        &self,
        connection: Arc<dyn Connection>,
        serve: impl FnOnce(&Arc<dyn Connection>, &Place) + Send + 'static,
    ) {
        let Some(place) = self.room.place(&connection) else {
            return connection.close();
        };
        // If there is no thread for it, it goes with its place.
        let _ = rt::try_spawn("pool connection", move || {
            // It goes last, after what serves, which may have parts open.
            let place = place;
            serve(&connection, &place);
        });
    }

    /// Returns when no connection has a place.
    pub(crate) fn wait_empty(&self) {
        while self.room.count.load(Ordering::Acquire) > 0 {
            rt::sleep(Nanos::from_millis(5));
        }
    }
}

impl Room {
    /// A place for an unknown client. One thread asks.
    fn place(self: &Arc<Self>, connection: &Arc<dyn Connection>) -> Option<Place> {
        let known: u32 = self.tenants.lock().values().map(taken).sum();
        let strangers = self.count.load(Ordering::Acquire).saturating_sub(known);
        (strangers < self.strangers).then(|| {
            self.count.fetch_add(1, Ordering::AcqRel);
            Place {
                room: Arc::clone(self),
                connection: Arc::clone(connection),
                tenant: OnceLock::new(),
            }
        })
    }
}

/// Places that a tenant has.
fn taken(tenant: &Arc<()>) -> u32 {
    Arc::strong_count(tenant) as u32 - 1
}

impl Place {
    /// It is a tenant's, one of so many, from here on.
    ///
    /// # Errors
    /// [`Error::Busy`] if that one has its share.
    pub(crate) fn give_to(&self, tenant: &str, tenants: usize) -> Result<()> {
        assert!(self.tenant.get().is_none(), "a place is given to a tenant once");
        let room = &*self.room;
        let mut known = room.tenants.lock();
        known.retain(|_, tenant| taken(tenant) > 0);
        let all: u32 = known.values().map(taken).sum();
        let has = known.get(tenant).map_or(0, taken);
        let share = (room.places / u32::try_from(tenants).unwrap_or(u32::MAX).max(1)).max(1);
        let are_last = room.places.saturating_sub(all) <= room.places / LAST_OF;
        if has >= share || all >= room.places || are_last && has >= FEW {
            return Err(Error::Busy(format!(
                "tenant \"{tenant}\" has {has} connections here, {all} of {} are taken, and its share are {share}",
                room.places
            )));
        }
        let one = known.entry(tenant.to_owned()).or_default();
        self.tenant.get_or_init(|| Arc::clone(one));
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connection.close();
        // No point where another thread may go on: it may be dropped by a panic.
        self.tenant.take();
        let before = self.room.count.as_raw().fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a place that is given back was counted");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::rt::atomic::AtomicBool;
    use cenote_fabric::message::Network;
    use cenote_fabric::message::tcp::Tcp;

    const TIMEOUT: Nanos = Nanos::from_secs(60);

    /// A acceptor that is open, and where.
    struct Open {
        acceptor: Arc<Acceptor>,
        address: String,
        stop: Arc<AtomicBool>,
        thread: Option<rt::JoinHandle<()>>,
    }

    impl Open {
        fn new(acceptor: Acceptor, serve: impl Fn(&Arc<dyn Connection>, &Place) + Clone + Send + 'static) -> Self {
            let listener = Tcp.listen("127.0.0.1:0").expect("a free port");
            let (acceptor, stop) = (Arc::new(acceptor), Arc::new(AtomicBool::new(false)));
            let (address, theirs, over) = (listener.address(), Arc::clone(&acceptor), Arc::clone(&stop));
            let accepting = move || theirs.accept(&*listener, || over.load(Ordering::Acquire), serve);
            Self {
                acceptor,
                address,
                stop,
                thread: Some(rt::spawn("door", accepting)),
            }
        }

        fn come(&self) -> Arc<dyn Connection> {
            Tcp.connect(&self.address, TIMEOUT).expect("connected")
        }

        /// Comes, and says of which tenant it is; what is answered, nothing if the connection ends.
        fn come_as(&self, tenant: &str) -> (Arc<dyn Connection>, Option<Vec<u8>>) {
            let connection = self.come();
            let answer = connection
                .send(tenant.as_bytes())
                .and_then(|()| connection.receive(TIMEOUT));
            (connection, answer.ok())
        }

        fn count(&self) -> u32 {
            self.acceptor.room.count.load(Ordering::Acquire)
        }

        fn until(&self, count: u32) {
            let began = rt::now();
            while self.count() != count {
                assert!(
                    rt::now().since(began) < TIMEOUT,
                    "there are {}, not {count}",
                    self.count()
                );
                rt::sleep(Nanos::from_millis(2));
            }
        }
    }

    impl Drop for Open {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Release);
            self.thread.take().map(rt::JoinHandle::join);
        }
    }

    /// The thread of a connection that panicked kept its place: closing the node or manager waited for ever, and in
    /// time no client was let in.
    #[test]
    fn a_place_is_given_back_however_its_thread_ends() {
        let open = Open::new(Acceptor::new("test", 8, 2), |connection, _| {
            connection.receive(TIMEOUT).ok();
            panic!("planted");
        });
        for _ in 0..5 {
            let connection = open.come();
            connection.send(b"x").expect("sent");
            assert!(connection.receive(TIMEOUT).is_err(), "it is closed");
            open.until(0);
        }
        open.acceptor.wait_empty();
    }

    /// Serves one word as a tenant's name, and holds the place until the connection ends.
    fn serve(connection: &Arc<dyn Connection>, place: &Place) {
        let Ok(tenant) = connection.receive(TIMEOUT) else {
            return;
        };
        let given = place.give_to(&String::from_utf8_lossy(&tenant), 2);
        if given.is_ok() && connection.send(b"welcome").is_ok() {
            connection.receive(TIMEOUT).ok();
        }
    }

    /// One tenant could take all connections, and unknown clients too.
    #[test]
    fn no_tenant_takes_all_places() {
        let open = Open::new(Acceptor::new("test", 40, 3), serve);
        let welcome = |tenant| open.come_as(tenant);
        let greedy: Vec<_> = (0..25)
            .map(|_| welcome("a"))
            .filter(|(_, answer)| answer.is_some())
            .collect();
        assert_eq!(greedy.len(), 20, "its share");
        open.until(20);
        let others: Vec<_> = (0..25)
            .map(|_| welcome("b"))
            .filter(|(_, answer)| answer.is_some())
            .collect();
        assert_eq!(others.len(), 16, "the last places are for tenants that have few");
        open.until(36);
        assert!(welcome("c").1.is_some(), "as this one");
        drop(greedy);
        open.until(16);
        let strangers: Vec<_> = (0..3).map(|_| open.come()).collect();
        open.until(19);
        let refused = open.come();
        assert!(
            refused.receive(TIMEOUT).is_err(),
            "too many clients that do not name their tenant"
        );
        drop(strangers);
        open.until(16);
        assert!(welcome("a").1.is_some());
    }
}
