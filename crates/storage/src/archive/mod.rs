//! An archive of a database in an object store: its log without a gap, and copies of its pages from time to time, of
//! which any state since the first copy is made again.
//!
//! ```text
//!  DATABASE/timelines/N                   where timeline N begins, and why
//!  DATABASE/log/N/START                   the log of timeline N from START to where the next object begins
//!  DATABASE/bases/N/FROM-TIME-CHANCE      a base: which pages it has, and of when; written last
//!  DATABASE/pages/N/FROM-TIME-CHANCE/...  its pages
//! ```
//!
//! - [`Archiver`] keeps the log there as it becomes durable, and takes bases ([`archiver`], [`take`]);
//! - [`restore_archive`] makes a data directory of a base and the log up to a moment ([`restore`]);
//! - [`survey`] says what there is ([`survey`]), [`Archiver::prune`] removes what is not needed any more ([`prune`]).
//!
//! Invariants:
//! - The objects of a timeline's log follow each other without a gap, and hold whole groups. Each is written once,
//!   under the position at which the one before ended. So of several servers that believe to have the database, one
//!   goes on from there, and the others find its object, which says the same or shows that they are of another history.
//! - What is in the archive was durable in the database before.
//! - A base counts once its own object is there, which is written when the log reaches its end.
//!
//! Every object is sealed ([`sealed`]): it says what it is and of which database, and has a checksum.

mod archiver;
mod base;
mod names;
mod objects;
mod piece;
mod prefetch;
mod prune;
mod restore;
mod sealed;
mod survey;
mod take;
mod timeline;
mod times;

pub use archiver::{Archiver, Began, Shipped, Turn};
pub use objects::{ObjectSeen, Objects};
pub use piece::Sample;
pub use prune::Pruned;
pub use restore::{RestoreFrom, RestoreReport, Target, restore_archive};
pub use survey::{BaseSeen, TimelineSeen, survey};
pub use take::BaseReport;
pub use times::{Clock, Times};
