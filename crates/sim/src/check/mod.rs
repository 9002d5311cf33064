//! Checkers: they read what sessions noted of their transactions ([`history`]) and say what is wrong.
//!
//! | checker | believes | finds |
//! |---|---|---|
//! | [`serial`] | the commit timestamps and snapshots that the engine tells | reads that are not of their snapshot, updates of a version that is not the one before, snapshots older than what was acknowledged, locks that did not hold |
//! | [`adya`] | what sessions read and wrote, and the order of versions | Adya's anomalies: G0, G1a, G1b, G1c, and G-single for repeatable read |
//! | [`durable`] | what was acknowledged | commits lost, half there, or there without those they build on |
//! | [`left`] | what was left to the next life, and how lives ended | transactions that were left and are gone, or come back when they must not |
//! | [`words`] | what sessions of the memory pool were told of a word | changes lost, done twice, or seen in no possible order |
//!
//! The engine's own checks (trees, indexes, lists, latches, descriptors) are asked for by the worlds, beside these.

pub mod adya;
pub mod durable;
pub mod history;
pub mod left;
pub mod serial;
pub mod words;

pub use history::{End, History, Key, Op, Tag, Txn, What};
