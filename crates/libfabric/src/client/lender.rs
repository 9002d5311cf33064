//! Memory that calls lend and nodes write to by themselves: buffers of an endpoint, registered once and used again and
//! again.
//!
//! ```text
//!   lend ─► at a user ─► Call posted: lent ─┬ answered ──────────► at its user again ─► dropped ─► at rest ─► lend
//!                                           └ no answer: quarantine ─ the answer comes after all ─► at rest
//!                                                            └ none comes: it stays until the endpoint is closed
//! ```
//!
//! 1. A buffer has a key of its own, and is lent over one connection: a node is told of no key but its own. (That
//!    does not stop a node that guesses: keys are of the endpoint.)
//! 2. A node answers after its writes are done. So no node writes to a buffer whose call was answered. To one whose
//!    call was not, its node may write at any time: it is not used again before an answer came, and its key does not
//!    end. A write under a key that has ended stops more than its connection (EFA ends the process, shm the queue).
//!    A call that was given up before the node was told where to write has no such buffer.
//! 3. Memory that was registered once is unmapped after the endpoint is closed: it serves the next connection, under
//!    another key. If its key cannot be ended it is not used again.
//!
//! That the bytes of a buffer are a slice of its user while no call lends it rests on rule 2, so on honest nodes: a
//! node that writes after it has answered can change them under the user. So users take these bytes for untrusted, as
//! all that comes over the network.

use crate::fabric_endpoint::Registration;
use crate::protocol::Window;
use crate::registered_memory::LentMemory;
use crate::shim::Target;
use cenote_base::Result;
use cenote_base::rt::{self, HashMap, Nanos};

/// Buffers of a connection; a user that needs more lends memory of its own.
pub(super) const BUFFERS: usize = 32;

/// Buffers in quarantine, of all connections: beyond, none are lent.
pub(super) const QUARANTINED: usize = 512;
const _: () = assert!(BUFFERS <= QUARANTINED, "each buffer of a lender may be quarantined");

/// After memory could not be registered no more is made for so long.
pub(super) const PAUSE: Nanos = Nanos::from_secs(1);

/// A registered buffer.
pub(super) struct Buffer {
    /// Ends before the endpoint, and before the memory.
    pub(super) registration: Registration,
    pub(super) window: Window,
    pub(super) memory: LentMemory,
}

/// See the module.
#[derive(Default)]
pub(super) struct Lender {
    /// Buffers by connection, while it lasts.
    pub(super) buffer_caches: HashMap<u64, BufferCache>,
    /// By call, with its connection.
    pub(super) quarantine: HashMap<u64, (u64, Buffer)>,
    /// Memory for further buffers.
    pub(super) spare: Vec<LentMemory>,
    /// When memory could not be registered.
    pub(super) refused: Option<Nanos>,
}

#[derive(Default)]
pub(super) struct BufferCache {
    pub(super) rest: Vec<Buffer>,
    /// Buffers that there are, wherever.
    pub(super) made: usize,
}

/// A buffer that is lent: this side does not look at its memory meanwhile.
pub(super) struct OnLoan {
    pub(super) session: u64,
    pub(super) buffer: Buffer,
    pub(super) len: usize,
}

impl OnLoan {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn window(&self) -> Window {
        self.buffer.window
    }
}

impl Lender {
    /// Takes a buffer that no node writes to. The buffer comes back if its connection is over.
    pub(super) fn give(&mut self, session: u64, buffer: Buffer) -> Option<Buffer> {
        match self.buffer_caches.get_mut(&session) {
            Some(buffer_cache) => {
                buffer_cache.rest.push(buffer);
                None
            }
            None => Some(buffer),
        }
    }

    /// The call was answered after all.
    pub(super) fn take_out(&mut self, session: u64, call: u64) -> Option<Buffer> {
        if self.quarantine.get(&call).is_none_or(|(of, _)| *of != session) {
            return None;
        }
        let (_, buffer) = self.quarantine.remove(&call)?;
        if let Some(buffer_cache) = self.buffer_caches.get_mut(&session) {
            buffer_cache.made += 1;
        }
        self.give(session, buffer)
    }

    /// Memory that could not be registered is kept for the next try.
    pub(super) fn made(&mut self, memory: LentMemory, registered: Result<(Registration, Target)>) -> Option<Buffer> {
        let Ok((registration, target)) = registered else {
            self.refused = Some(rt::now());
            self.spare.push(memory);
            return None;
        };
        let window = Window {
            address: target.address,
            key: target.key,
        };
        Some(Buffer {
            registration,
            window,
            memory,
        })
    }
}
