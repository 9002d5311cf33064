//! Where things lie in a ring's region. See the module above for which side writes what.
//!
//! ```text
//!      0  the region's header: its geometry is magic, version, seats, slots, 0, 0
//!   4096  u64 tail: the next place in the polling ring                                   users
//!   4160  u32 doorbell: rises when consumers sleep and something was posted             users
//!   4164  u32 asleep: consumers that do                                                  node
//!   4224  u64 open: the node's incarnation, 0 when it is over                            node
//!   8192  polling ring: a word an entry: lap 32 | unused 11 | slot + 1, or 0             users, node
//!  seats  one after the other:
//!           0  u64 epoch of the user, 0: none;          8 u64 answers wait for room      node
//!          64  u64 epoch of a user that left                                                  user
//!         128  slots, 512 B each
//!                0 u64 asked: epoch 32 | turn 32     8 u32 length   12 u32 0             user
//!               16 u64 chunks, a bit each           24 u64 taken: epoch | turn           user
//!               32 u32 asleep                       40 .. 256 the request, if it fits    user
//!              256 u64 answered: epoch | turn      264 u32 length  268 u32 status        node
//!              272 u64 chunks, a bit each          280 .. 512 the answer, if it fits     node
//!           ..  64 chunks of 4 KiB for requests                                          user
//!           ..  64 chunks of 4 KiB for answers                                           node
//! ```

use crate::{HEADER_SIZE, Identity, LINE};
use cenote_base::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"CENRINGS");
const VERSION: u64 = 1;
/// Kinds of rings that no program makes any more had other values: entries before their messages, lanes between hosts.
const KIND: [u64; 2] = [0, 0];

pub const TAIL: u64 = HEADER_SIZE as u64;
pub const DOORBELL: u64 = TAIL + LINE as u64;
pub const ASLEEP: u64 = DOORBELL + 4;
pub const OPEN: u64 = TAIL + 2 * LINE as u64;
const CELLS: u64 = 2 * HEADER_SIZE as u64;

/// In a seat.
pub const EPOCH: u64 = 0;
pub const WANTS_ROOM: u64 = 8;
pub const LEFT: u64 = LINE as u64;
const SLOTS: u64 = 2 * LINE as u64;

/// In a slot.
pub const SLOT: u64 = 512;
pub const ASKED: u64 = 0;
pub const TAKEN: u64 = 24;
pub const SLEEPS: u64 = 32;
pub const ANSWERED: u64 = 256;

/// What a message begins with in its half of a slot, and where its bytes are if they fit.
pub const LEN: u64 = 8;
pub const STATUS: u64 = 12;
pub const MASK: u64 = 16;
pub const REQUEST: u64 = 40;
pub const ANSWER: u64 = 280;
pub const REQUEST_ROOM: usize = (ANSWERED - REQUEST) as usize;
pub const ANSWER_ROOM: usize = (SLOT - ANSWER) as usize;

pub const CHUNK: usize = 4096;
/// Of a seat, for each direction: a bit each in a word.
pub const CHUNKS: u64 = 64;

/// The most that a ring may have: 2^20 slots.
pub const SEATS_MAX: u32 = 1024;
pub const SLOTS_MAX: u32 = 1024;

const _: () = {
    assert!(REQUEST_ROOM == 216 && ANSWER_ROOM == 232);
    assert!(
        crate::rdma::call::LIMIT <= CHUNK * CHUNKS as usize / 2,
        "two of the longest at a time"
    );
};

/// How large a ring is, and how it is used: the region's geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub seats: u32,
    /// Of a seat.
    pub slots: u32,
}

impl Layout {
    /// One that can be.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no seats or slots, or too many, or a number of slots that is no power of two.
    pub fn new(seats: u32, slots: u32) -> Result<Self> {
        let fits = (1..=SEATS_MAX).contains(&seats) && (1..=SLOTS_MAX).contains(&slots) && slots.is_power_of_two();
        match fits {
            true => Ok(Self { seats, slots }),
            false => Err(Error::Invalid(format!(
                "a ring of {seats} seats with {slots} slots: at most {SEATS_MAX} with {SLOTS_MAX}, a power of two"
            ))),
        }
    }

    /// What the region's header says.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if that is no ring, or of another version or kind, or larger than the region.
    pub fn of(identity: &Identity) -> Result<Self> {
        let [magic, version, seats, slots, first, second, ..] = identity.geometry;
        let wrong = |what: String| Err(Error::Mismatch(format!("not a ring: {what}")));
        if magic != MAGIC {
            return wrong("the region is something else".into());
        }
        if version != VERSION {
            return wrong(format!("version {version}, {VERSION} is known"));
        }
        if [first, second] != KIND {
            return wrong(format!("kind {first}, {second}: {KIND:?} is known"));
        }
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let Ok(layout) = Self::new(number(seats), number(slots)) else {
            return wrong(format!("{seats} seats with {slots} slots"));
        };
        match layout.len() <= identity.length {
            true => Ok(layout),
            false => wrong(format!("{} bytes, it needs {}", identity.length, layout.len())),
        }
    }

    /// For the region's header.
    pub fn identity(&self, tenant: u32) -> Identity {
        let mut identity = Identity {
            tenant,
            ..Identity::default()
        };
        let [first, second] = KIND;
        let words = [MAGIC, VERSION, self.seats.into(), self.slots.into(), first, second];
        identity.geometry[..words.len()].copy_from_slice(&words);
        identity
    }

    /// Entries of the polling ring: there is room for all slots at once, so that it is never full.
    pub fn cells(&self) -> u64 {
        u64::from(self.seats.next_power_of_two()) * u64::from(self.slots)
    }

    /// Where entry `n` is, counted from the first one ever.
    pub fn cell(&self, n: u64) -> u64 {
        CELLS + 8 * (n % self.cells())
    }

    /// Where the seats begin.
    pub fn seats_at(&self) -> u64 {
        (CELLS + 8 * self.cells()).next_multiple_of(CHUNK as u64)
    }

    /// Bytes of a seat.
    pub fn seat_len(&self) -> u64 {
        self.chunks_at() + 2 * CHUNKS * CHUNK as u64
    }

    fn chunks_at(&self) -> u64 {
        (SLOTS + u64::from(self.slots) * SLOT).next_multiple_of(CHUNK as u64)
    }

    pub fn seat(&self, seat: u32) -> u64 {
        self.seats_at() + u64::from(seat) * self.seat_len()
    }

    pub fn slot(&self, seat: u32, slot: u32) -> u64 {
        self.seat(seat) + SLOTS + u64::from(slot) * SLOT
    }

    /// Where the chunks of a seat's requests begin.
    pub fn request_chunks(&self, seat: u32) -> u64 {
        self.seat(seat) + self.chunks_at()
    }

    /// Where the chunks of a seat's answers begin.
    pub fn answer_chunks(&self, seat: u32) -> u64 {
        self.request_chunks(seat) + CHUNKS * CHUNK as u64
    }

    /// Bytes of all of it.
    pub fn len(&self) -> u64 {
        self.seat(self.seats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_all_is_inside() {
        for (seats, slots) in [(1, 1), (3, 4), (64, 128), (1024, 1024)] {
            let layout = Layout::new(seats, slots).expect("it can be");
            let last = layout.cells() - 1;
            assert!(layout.cell(last) + 8 <= layout.seats_at());
            assert!(layout.slot(0, slots - 1) + SLOT <= layout.request_chunks(0));
            assert_eq!(layout.answer_chunks(0) + CHUNKS * CHUNK as u64, layout.seat(1));
            assert_eq!(layout.seat(seats), layout.len());
            let mut identity = layout.identity(7);
            identity.length = layout.len();
            assert_eq!(Layout::of(&identity).expect("as it went"), layout);
            identity.length -= 1;
            assert!(matches!(Layout::of(&identity), Err(Error::Mismatch(_))));
        }
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        assert!(Layout::new(0, 4).is_err());
        assert!(Layout::new(4, 3).is_err());
        let mut identity = Layout::new(4, 4).expect("it can be").identity(0);
        identity.length = 1 << 30;
        assert!(Layout::of(&identity).is_ok());
        for (word, value) in [
            (0, 1),
            (1, 2),
            (2, 0),
            (2, u64::MAX),
            (3, 1 << 32),
            (3, 3),
            (4, 1),
            (4, u64::MAX),
            (5, 1),
        ] {
            let mut wrong = identity.clone();
            wrong.geometry[word] = value;
            assert!(matches!(Layout::of(&wrong), Err(Error::Mismatch(_))), "{word} {value}");
        }
    }
}
