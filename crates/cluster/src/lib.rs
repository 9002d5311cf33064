//! The servers of one database on storage nodes: which of them has it, and when another takes it.
//!
//! Each server says ten times a second to the node that leads what it is, and hears of the others ([`member`]). What
//! follows from that is decided here ([`decide`]): a reader takes the database whose server is silent, a server leaves
//! it to another that was named. That two servers never both have it rests on the nodes alone, which refuse all but the
//! last start. A server's answers rest on its [`lease`]: no other takes the database before that has run out. Servers
//! that are not needed pause, if they were started so ([`pausing`]).
//!
//! `docs/cluster.md` has the design, times and what was rejected.

pub mod decide;
pub mod lease;
pub mod member;
pub mod pausing;

pub use decide::{Decision, Own, decide};
pub use lease::Lease;
pub use member::{Claimed, Cluster, Look, Looked, Member, OverNodes, Start};
pub use pausing::{Pausing, Use};
