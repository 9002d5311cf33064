//! Words of the region that hold more than a number: atomics that are loaded and stored as what they mean.
//!
//! Each is its atomic and nothing else, so that the layout of what has them is that of plain words.

use core::sync::atomic as raw;

use cenote_base::rt::atomic::{AtomicU32, AtomicU64, Ordering};
use cenote_base::rt::seam::Seam;
use cenote_base::{Lsn, RecordAddr};

use crate::chain::Chain;
use crate::index::FrameIndex;

macro_rules! word {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $value:ty, $decode:expr, $encode:expr) => {
        $(#[$doc])*
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name($atomic);

        impl $name {
            /// Reads.
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $value {
                $decode(self.0.load(order))
            }

            /// Writes.
            #[inline(always)]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store($encode(value), order);
            }
        }

        const _: () = assert!(
            size_of::<$name>() == size_of::<$atomic>() && align_of::<$name>() == align_of::<$atomic>(),
            "a word is laid out as its atomic"
        );
    };
}

word! {
    /// A position in the log; zero: none.
    LsnWord, AtomicU64, Lsn, Lsn::from_raw, Lsn::raw
}

word! {
    /// The address of a redo record; zero: none.
    RecordWord, AtomicU64, RecordAddr, RecordAddr::from_raw, RecordAddr::raw
}

word! {
    /// How long a page's chain of redo is.
    ChainWord, AtomicU32, Chain, Chain::unpack, Chain::pack
}

word! {
    /// A frame, by its index + 1; zero: none.
    FrameLink, AtomicU32, Option<FrameIndex>, FrameIndex::from_link, FrameIndex::link_to
}

impl LsnWord {
    /// The word itself, without preemption points.
    pub const fn as_raw(&self) -> &raw::AtomicU64 {
        self.0.as_raw()
    }

    /// Writes, and returns what was there.
    pub fn swap(&self, value: Lsn, order: Ordering) -> Lsn {
        Lsn::from_raw(self.0.swap(value.raw(), order))
    }
}

impl FrameLink {
    /// The word itself, without preemption points.
    pub const fn as_raw(&self) -> &raw::AtomicU32 {
        self.0.as_raw()
    }

    /// The frame, for a reader that looks whether there is such a one: "none" is none that can be.
    #[inline(always)]
    pub fn load_unchecked_by<S: Seam>(&self, seam: S, order: Ordering) -> FrameIndex {
        FrameIndex::from_link_unchecked(self.0.load_by(seam, order))
    }
}
