//! Message rings in region memory: [calls](crate::rdma::call) between processes of one host that map the same file.
//!
//! A [`Node`] makes a ring and serves calls from it; a [`User`] has a *seat* in it, which the node has given it
//! ([`Node::admit`]), and posts calls for any number of threads. There are two layers (Rcmp, section 5.2): entries of a
//! fixed size, which the node polls, and the messages beside, in slots and chunks. An entry is put when its message is
//! whole, so a long message or a slow writer delays no other.
//!
//! ```text
//!   user: take a slot of one's own ─► write the message ─► asked: its turn ─► entry ─┐
//!                                                                                    ▼
//!                                                                              polling ring
//!                                                                                    ▼
//!   user: copy it out, slot free again ◄── answered: the turn ◄─ Answer ◄─ serve ◄─ node: copy it out, check, serve
//! ```
//!
//! Invariants:
//! 1. a slot belongs to one seat, and a seat to one user. Users share only the entries, and an entry is reserved by one
//!    compare-and-swap. So a process that is killed anywhere delays no other;
//! 2. turns of a slot rise by one; the node keeps the last one by itself. So each request is served at most once,
//!    whatever the entries say. The node looks at the slots each 100 ms (of a ring that is not used, each 5 s), and so
//!    finds a request whose entry was lost;
//! 3. a request is copied before it is read, and is read once. One that makes no sense ends the connection of its seat;
//! 4. after the end of a seat was told the node serves nothing of it. It gives the seat to another user only when the
//!    user has left, or its process is gone: a user that was fenced and wakes up in the middle of a request finishes it
//!    in a seat that is not served;
//! 5. a thread announces its sleep before it looks for the last time, and a thread that posts or answers looks for the
//!    announcement afterwards.
//!
//! A process that maps a ring can write anything to it, and break it for its other users: so the users of one ring are
//! of one tenant. It can also shorten the file, which ends the node's process, as it would for any other region.

mod layout;
mod message;
mod node;
mod polls;
mod seat_state;
mod servers;
mod user;

#[cfg(test)]
mod tests;

pub use node::{Node, Options};
pub use servers::Servers;
pub use user::{User, UserOptions};

use cenote_base::rt::Nanos;

/// A place at a ring, as plain data for the process that shall have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Its number.
    pub number: u32,
    /// Of its users so far, this one.
    pub epoch: u32,
    /// What the node calls the connection.
    pub caller: u64,
    /// The start of the node that gave it.
    pub incarnation: u64,
}

/// Between two looks of a thread that sleeps: whether the other side is there, and whether it missed something.
const LOOK: Nanos = Nanos::from_millis(100);
