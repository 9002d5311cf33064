//! What members of a space say to the memory nodes that keep its parts: a member's first message is a [`MemberHello`],
//! then one [`MemberRequest`] after the other, each with its [`MemberReply`]. Each may come twice, over another
//! connection, as an answer may be lost.

use crate::grant_table::SpaceId;
use crate::host::Process;
use crate::key::Key;
use crate::wire::Failure;
use cenote_fabric::ring::Seat;
use cenote_space::{Class, Extent, GlobalAddress, Lifetime, Run, SessionId};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A member's number, which it drew: a client process in one space, the same at all memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(pub u128);

/// A member that comes, or comes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberHello {
    pub version: u16,
    pub space: SpaceId,
    pub key: Key,
    pub member: MemberId,
    /// The parts that it means to use here.
    pub parts: Vec<u8>,
    /// Where it runs.
    pub machine: u64,
    pub process: Process,
    /// For people.
    pub name: String,
    /// What it has begun here and not ended, by part: a node that was started anew does not know.
    pub sessions: Vec<(u8, SessionId)>,
    /// Those of them that it has asked to end, and has no answer: they may have ended.
    #[serde(default)]
    pub ending: Vec<(u8, SessionId)>,
    /// Whether it would ask over a ring.
    #[serde(default)]
    pub ring: bool,
}

/// The node's answer to a hello that it accepts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberWelcome {
    /// How long it may be silent, in nanoseconds.
    pub lease: u64,
    /// Its seat at the ring beside a part, if it wants one and there is one: as long as the connection lasts.
    #[serde(default)]
    pub ring: Option<RingSeat>,
    /// By which its calls over the fabric are known to be a member's that was not fenced; 0: none are served here.
    #[serde(default)]
    pub epoch: u64,
}

/// A seat at a ring, and where that is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RingSeat {
    pub path: String,
    pub number: u32,
    pub epoch: u32,
    pub caller: u64,
    pub incarnation: u64,
}

impl RingSeat {
    pub fn new(path: &Path, seat: Seat) -> Self {
        Self {
            path: path.display().to_string(),
            number: seat.number,
            epoch: seat.epoch,
            caller: seat.caller,
            incarnation: seat.incarnation,
        }
    }

    pub fn seat(&self) -> Seat {
        Seat {
            number: self.number,
            epoch: self.epoch,
            caller: self.caller,
            incarnation: self.incarnation,
        }
    }
}

/// The methods of [`Keeper`](cenote_space::Keeper), for one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MemberRequest {
    Begin {
        part: u8,
    },
    Take {
        part: u8,
        session: SessionId,
        class: Class,
        lifetime: Lifetime,
    },
    GiveBack {
        part: u8,
        session: SessionId,
        extents: Vec<Extent>,
    },
    TakeRun {
        part: u8,
        session: SessionId,
        bytes: u64,
        lifetime: Lifetime,
    },
    FreeRun {
        part: u8,
        address: GlobalAddress,
    },
    End {
        part: u8,
        session: SessionId,
    },
    IsAlive {
        part: u8,
        session: SessionId,
    },
    Audit {
        part: u8,
    },
    /// It is there still.
    Ping,
    /// It needs nothing any more, and maps nothing.
    Leave,
}

impl MemberRequest {
    /// The part that it is about, if it is about one.
    pub fn part(&self) -> Option<u8> {
        match self {
            Self::Begin { part }
            | Self::Take { part, .. }
            | Self::GiveBack { part, .. }
            | Self::TakeRun { part, .. }
            | Self::FreeRun { part, .. }
            | Self::End { part, .. }
            | Self::IsAlive { part, .. }
            | Self::Audit { part } => Some(*part),
            Self::Ping | Self::Leave => None,
        }
    }

    /// Whether it may come over a ring: what is asked often, and answered soon. What makes a member one, or ends that,
    /// and signs of life come over its connection, which has a thread of its own at the node.
    pub fn is_for_ring(&self) -> bool {
        matches!(
            self,
            Self::Take { .. }
                | Self::GiveBack { .. }
                | Self::TakeRun { .. }
                | Self::FreeRun { .. }
                | Self::IsAlive { .. }
        )
    }
}

/// What comes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MemberReply {
    Done,
    Begun(SessionId),
    Slab(Extent),
    Run(Run),
    Alive(bool),
    Problems(Vec<String>),
    Failed(Failure),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever arrives is a message or an error.
        #[test]
        fn garbage_is_refused(text in r#"[\[\]{}:,"a-zA-Z0-9 ]{0,200}"#) {
            let _ = serde_json::from_str::<MemberHello>(&text);
            let _ = serde_json::from_str::<MemberRequest>(&text);
            let _ = serde_json::from_str::<MemberReply>(&text);
        }

        #[test]
        fn requests_come_back_as_they_went(part: u8, session: u64, slot: u32, generation: u32) {
            let extents = vec![Extent { slot, generation }];
            let request = MemberRequest::GiveBack { part, session: SessionId(session), extents };
            let written = serde_json::to_vec(&request).expect("written");
            prop_assert_eq!(serde_json::from_slice::<MemberRequest>(&written).expect("read"), request);
        }
    }
}
