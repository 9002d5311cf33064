//! The keeper of a part hands out its extents.
//!
//! ```text
//!                        take, take_run                                     end: Lifetime::Session
//!   free(generation) ──────────────────► slab or run (generation + 1) ──────────────────────────────► free, or retired
//!        ▲                                  │        ▲                                                (its generations are used up)
//!        │    give_back, free_run           │ end    │ take: adopted
//!        └──────────────────────────────────┤        │
//!        └────────── empty ◄─────────────── unowned ─┘
//! ```
//!
//! Invariants. A process may be killed between any two stores, be it the keeper's or a client's:
//! 1. descriptors are written by the keeper alone, under its lock. An extent is what its state word says; that is one
//!    store;
//! 2. a slab's live words and hint are in order, with the new generation and no object, *before* its state says that it
//!    is one. A keeper that is killed before leaves it free, with words that no access believes, as their generation is
//!    not that of the state;
//! 3. a run's tails are written *before* its head, and freed *after* it. So a tail without a head is of a run that was
//!    being made or freed: the next keeper frees it;
//! 4. a slot's generation rises each time that it is handed out, and one with the last generation is never free again:
//!    what an address once meant, it means or is refused;
//! 5. only a slab's owner allocates in it. It is the keeper's again when it is given back empty or when the session has
//!    *ended*. A session ends when it closes or when its process is gone. If the keeper ends one that lives on, the
//!    session loses its slabs: the generation in the words that it compares and swaps tells it so, and no word mixes
//!    two owners' objects;
//! 6. what was handed out and never used (the answer was lost, the client was killed) belongs to the session, and comes
//!    back when it ends.
//!
//! Lock order: session → keeper. The keeper waits for no other component.

use super::{Class, GlobalAddress};
use cenote_base::Result;
use serde::{Deserialize, Serialize};

/// A session's number in a part, from 1 on. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u64);

/// How long an object stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Lifetime {
    /// Until it is freed, whatever becomes of the session that allocated it.
    #[default]
    Space,
    /// Until it is freed, or the session that allocated it closes or dies.
    Session,
}

/// A slab that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Its number in the part.
    pub slot: u32,
    /// Its generation since.
    pub generation: u32,
}

/// A run that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Where it begins.
    pub address: GlobalAddress,
    /// Whether its bytes are zero already.
    pub zeroed: bool,
}

/// Hands out a part's extents: an object of the same process, or the memory node's daemon over a connection. So each
/// method is a request and its answer: plain data that refers to nothing but what it names. Each may come twice, if an
/// answer was lost: what was taken in vain comes back when the session ends, and the others do nothing the second time.
///
/// A session that has ended, or is of another keeper, gets [`Error::Revoked`].
pub trait Keeper: Send + Sync {
    /// A new session.
    ///
    /// # Errors
    /// Those of the way to the keeper, here and everywhere.
    fn begin(&self) -> Result<SessionId>;

    /// An extent for objects of `class`: a fresh one, or (with [`Lifetime::Space`]) one with room that has no owner.
    ///
    /// # Errors
    /// [`Error::Full`].
    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent>;

    /// Takes back slabs of the session. Those that are not its own any more are passed over.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one holds objects: it stays the session's, and so do those after it.
    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()>;

    /// A run of `bytes`, in extents of its own.
    ///
    /// # Errors
    /// [`Error::Full`] if there are not so many free extents side by side.
    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run>;

    /// Frees a run; any session may have allocated it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no run begins there (any more).
    fn free_run(&self, address: GlobalAddress) -> Result<()>;

    /// The session's process is gone, or will not use it any more: its [`Lifetime::Session`] objects are freed, the
    /// others have no owner. Of a session that is not there nothing is to be done.
    ///
    /// # Errors
    /// None of its own.
    fn end(&self, session: SessionId) -> Result<()>;

    /// Whether the session has begun here and not ended: for sessions that wait for a lock that it holds.
    ///
    /// # Errors
    /// None of its own.
    fn is_alive(&self, session: SessionId) -> Result<bool>;

    /// Looks at everything: a list of what is wrong.
    ///
    /// # Errors
    /// None of its own.
    fn audit(&self) -> Result<Vec<String>>;
}
