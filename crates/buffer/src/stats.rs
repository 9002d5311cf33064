//! What the pool counts: for each thread by itself, so that a hit writes no shared line.

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::seam::Seam;
use cenote_base::rt::{self, Local};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One thread's counters: only it adds to them.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        /// Sums over all threads since the pool was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            fn add(&mut self, one: &Counters) {
                $(self.$name += one.$name.as_raw().load(Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Pages found in a frame.
    hits,
    /// Pages that had to be read or created.
    misses,
    /// Frames taken from one page for another.
    evictions,
    /// Pages read from storage.
    pages_read,
    /// Pages written to storage.
    pages_written,
    /// Pages read ahead.
    pages_prefetched,
    /// Pages that went to remote memory because readers had asked for them.
    pages_filled,
    /// Pages that went to remote memory because their frames alone had them, and slots were free.
    pages_registered,
    /// Pages of remote memory that storage got ahead, so that their slots can go to others.
    pages_cleaned,
    /// Times a thread had to look for a victim itself.
    foreground_evictions,
    /// Page images logged because a chain of redo grew long.
    images_logged,
    /// Mini-transactions committed.
    mini_transactions,
    /// Redo bytes appended.
    redo_bytes,
    /// Descriptors that checkpoints, write-back by age, the giving up of pages and the look after a start have
    /// examined.
    descriptors_examined,
}

/// The pool's counters.
#[derive(Default)]
pub(crate) struct Stats(Local<Counters>);

/// Adds to a counter that only this thread writes.
#[inline(always)]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    let raw = counter.as_raw();
    raw.store(raw.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Stats {
    /// This thread's counters.
    #[inline(always)]
    pub fn mine(&self) -> &Counters {
        self.0.of(rt::thread_slot())
    }

    /// This thread's counters, within an operation that has asked.
    #[inline(always)]
    pub fn mine_by<S: Seam>(&self, seam: S) -> &Counters {
        self.0.get_by(seam)
    }

    /// The sums.
    pub fn sum(&self) -> Counts {
        let mut sum = Counts::default();
        self.0.iter().for_each(|one| sum.add(one));
        sum
    }
}

/// A pool's state in figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// `cxl` or `dram`.
    pub tier: &'static str,
    /// Bytes of the region.
    pub bytes: u64,
    /// Frames that have memory behind them.
    pub frames: u32,
    /// Frames with a page.
    pub frames_in_use: u32,
    /// Frames without one.
    pub frames_free: u32,
    /// Bytes of pages read from storage.
    pub bytes_read: u64,
    /// Bytes of pages written to storage.
    pub bytes_written: u64,
    /// Where redo begins that a recovery without the region would read, as of the last checkpoint.
    pub checkpoint: cenote_base::Lsn,
    /// Counters.
    pub counts: Counts,
    /// The tier between frames and storage, where there is one.
    pub remote: Option<TierStats>,
    /// The server's frames that a reader of its pod reads.
    pub pod: Option<PodStats>,
}

/// The frames of the database's server, as a reader of its pod reads them, in figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodStats {
    /// Bytes of the server's region; 0 while there are no frames to read.
    pub bytes: u64,
    /// Its frames.
    pub frames: u32,
    /// Pages read there.
    pub hits: u64,
    /// Pages that were not there as of the reader's moment.
    pub misses: u64,
}

/// Remote memory in figures: the kind `tiered` has it between frames and storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes of remote memory; 0 while it cannot be reached.
    pub bytes: u64,
    /// Pages that fit.
    pub slots: u32,
    /// Slots with a page.
    pub slots_in_use: u32,
    /// Slots without one.
    pub slots_free: u32,
    /// Pages read from it.
    pub hits: u64,
    /// Pages that were not there and came from storage.
    pub misses: u64,
    /// Slots taken from one page for another.
    pub evictions: u64,
    /// Pages that came from storage and had to be brought forward by their redo.
    pub pages_rebuilt: u64,
    /// Pages whose bytes were not those that were written.
    pub pages_refused: u64,
    /// Times it was given up after an error.
    pub losses: u64,
    /// Bytes of pages read from it.
    pub bytes_read: u64,
    /// Bytes of pages written to it.
    pub bytes_written: u64,
    /// Slabs that are in use, beside the first part of it.
    pub slabs: u32,
    /// Slabs that are wanted.
    pub slabs_wanted: u32,
    /// Slabs that there may be.
    pub slabs_most: u32,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Whether it grows and shrinks by what more of it would save.
    pub by_need: bool,
    /// Slabs taken.
    pub slabs_taken: u64,
    /// Slabs given back.
    pub slabs_returned: u64,
    /// Pages moved from a slab that was given back to another place.
    pub pages_moved: u64,
    /// Pages read from storage that one slab more would have had.
    pub misses_of_a_slab: u64,
    /// Pages read from it that it would not have had with one slab less.
    pub hits_of_a_slab: u64,
}
