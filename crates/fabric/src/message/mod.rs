//! Messages between nodes: whole and in order, or the connection is over.
//!
//! What few and small messages need (grants, leases, orders to a memory node), not what the data path needs. A node
//! [listens](Network::listen) at an address, others [connect](Network::connect); both sides of a [`Connection`] then
//! send and receive. Over TCP here ([`tcp`]), between simulated processes in crate `sim`.
//!
//! # Duties of a connection
//! - A message arrives whole, unchanged, once, after those sent before it; or never, and then nothing after it arrives
//!   either.
//! - What arrives is bounded ([`MESSAGE_MAX`]) and checked; bytes that are no message end the connection.
//! - [`Error::Lost`](cenote_base::Error::Lost): the connection is over, for good. Whether the messages sent last
//!   arrived is unknown.
//! - [`Error::Timeout`](cenote_base::Error::Timeout) of `receive`: nothing came so far; the connection stays.
//!
//! The crate `testkit` has them as tests (`contract::message`).

use cenote_base::Result;
use cenote_base::rt::Nanos;
use std::fmt::Debug;
use std::sync::Arc;

mod ready;
pub mod tcp;

/// Bytes of the longest message.
pub const MESSAGE_MAX: usize = 1 << 20;

/// Both ways to one peer, for any number of threads.
pub trait Connection: Debug + Send + Sync {
    /// What the peer is called, in messages to people.
    fn peer(&self) -> String;

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error::Invalid`](cenote_base::Error::Invalid) if it is too long, [`Error::Lost`](cenote_base::Error::Lost).
    fn send(&self, message: &[u8]) -> Result<()>;

    /// The next message; waits so long at most.
    ///
    /// # Errors
    /// [`Error::Timeout`](cenote_base::Error::Timeout), [`Error::Lost`](cenote_base::Error::Lost),
    /// [`Error::Corrupt`](cenote_base::Error::Corrupt) for bytes that are no message, after which the connection is
    /// lost.
    fn receive(&self, timeout: Nanos) -> Result<Vec<u8>>;

    /// A message that is there already; `None`: not yet. Does not wait.
    ///
    /// # Errors
    /// As [`Connection::receive`], without [`Error::Timeout`](cenote_base::Error::Timeout).
    fn try_receive(&self) -> Result<Option<Vec<u8>>> {
        match self.receive(Nanos::from_micros(1)) {
            Err(cenote_base::Error::Timeout(_)) => Ok(None),
            received => received.map(Some),
        }
    }

    /// Whether it can tell when something has come. If not a thread has to wait for it.
    fn tells(&self) -> bool {
        false
    }

    /// Has `wake` called, or dropped, once, by any thread and maybe at once, when [`Connection::try_receive`] has
    /// something to say. `wake` keeps the connection until then, and does not wait.
    fn when_ready(&self, wake: Box<dyn FnOnce() + Send>) {
        wake();
    }

    /// Ends it, for both sides.
    fn close(&self);
}

/// Where connections come in. Dropping it ends that.
pub trait Listener: Debug + Send + Sync {
    /// Where it listens: what others connect to.
    fn address(&self) -> String;

    /// The next connection; `None` if none came in time.
    ///
    /// # Errors
    /// Those of the network.
    fn accept(&self, timeout: Nanos) -> Result<Option<Arc<dyn Connection>>>;
}

/// A way to listen and to connect.
pub trait Network: Debug + Send + Sync {
    /// Listens at `address`.
    ///
    /// # Errors
    /// [`Error::Busy`](cenote_base::Error::Busy) if another listener has the address,
    /// [`Error::Invalid`](cenote_base::Error::Invalid) for what is no address.
    fn listen(&self, address: &str) -> Result<Box<dyn Listener>>;

    /// Connects to the listener at `address`.
    ///
    /// # Errors
    /// [`Error::Lost`](cenote_base::Error::Lost) if no listener answers in time.
    fn connect(&self, address: &str, timeout: Nanos) -> Result<Arc<dyn Connection>>;
}
