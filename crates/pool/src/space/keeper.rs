use super::layout::Part;
use super::{Class, GlobalAddress};
use cenote_base::Result;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A session's number in a part. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u64);

/// How long an object stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
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

/// Who hands out a part's extents: today an object of the same process, later the memory node's daemon over a connection. So each
/// method is a request and its answer: plain data, may be sent twice, and refers to nothing but what it names.
pub trait Keeper: Send + Sync {
    /// A new session.
    fn begin(&self) -> Result<SessionId>;
    /// An extent for objects of `class`: a fresh one, or one with room whose owner is gone.
    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent>;
    /// Takes back extents of the session that hold no object.
    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()>;
    /// A run of `bytes`.
    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run>;
    /// Frees a run, whoever has allocated it.
    fn free_run(&self, address: GlobalAddress) -> Result<()>;
    /// The session's process is gone, or will not use it any more: its [`Lifetime::Session`] objects are freed, the others are
    /// nobody's in particular.
    fn end(&self, session: SessionId) -> Result<()>;
}

/// The keeper of a part in this process.
pub struct LocalKeeper(Arc<Part>);

impl LocalKeeper {
    /// Takes up a part. Sessions of former keepers go on until they are [ended](Keeper::end).
    pub fn new(part: Arc<Part>) -> Result<Self> {
        Ok(Self(part))
    }
    /// Sessions that have begun and not ended.
    pub fn sessions(&self) -> Vec<SessionId> {
        todo!("{}", self.0.number())
    }
}

impl Keeper for LocalKeeper {
    fn begin(&self) -> Result<SessionId> {
        todo!()
    }
    fn take(&self, _: SessionId, _: Class, _: Lifetime) -> Result<Extent> {
        todo!()
    }
    fn give_back(&self, _: SessionId, _: &[Extent]) -> Result<()> {
        todo!()
    }
    fn take_run(&self, _: SessionId, _: u64, _: Lifetime) -> Result<Run> {
        todo!()
    }
    fn free_run(&self, _: GlobalAddress) -> Result<()> {
        todo!()
    }
    fn end(&self, _: SessionId) -> Result<()> {
        todo!()
    }
}
