//! A host's view of a device, or of its own memory: what programs are given.

#![allow(unsafe_code, reason = "a hit looks at the tag alone, by its address")]

use super::host::{DIRTY, Id, OWNER, PRESENT, STALE, Tag, USED};
use super::report::ViewTraffic;
use super::shared::Shared;
use super::state::{Opened, ViewId};
use crate::{clock, views};
use cenote_base::rt::Nanos;
use cenote_base::rt::memory::{Access, Device};
use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// See the module.
pub(crate) struct View {
    shared: Arc<Shared>,
    host: usize,
    id: ViewId,
    /// The tag of its first line; the others follow.
    tags: *mut Tag,
    first: Id,
    lines: u64,
    base: NonNull<u8>,
    window: u64,
    /// Touches until something happens that no thread asked for.
    quiet: Cell<u64>,
    touched: Cell<u64>,
    bytes: [Cell<u64>; 2],
    released: Cell<bool>,
}

// SAFETY: cells and tags are used by the owner of `shared` alone, which every method checks first.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    pub(crate) fn of_device(shared: &Arc<Shared>, host: usize, device: usize) -> Arc<Self> {
        let opened = shared.with(|s| s.open(host, device));
        let opened = opened.unwrap_or_else(|e| panic!("no address space for a view: {e}"));
        Self::new(shared, host, opened)
    }

    /// `None` where there is no memory left.
    pub(crate) fn local(shared: &Arc<Shared>, host: usize, len: u64) -> Option<Arc<Self>> {
        let opened = shared.with(|s| s.open_local(host, len)).ok()?;
        Some(Self::new(shared, host, opened))
    }

    fn new(shared: &Arc<Shared>, host: usize, opened: Opened) -> Arc<Self> {
        let view = Arc::new(Self {
            shared: Arc::clone(shared),
            host,
            id: opened.id,
            tags: opened.tags,
            first: opened.first,
            lines: opened.lines,
            base: opened.base,
            window: opened.window,
            quiet: Cell::new(0),
            touched: Cell::new(0),
            bytes: [Cell::new(0), Cell::new(0)],
            released: Cell::new(false),
        });
        view.next_chance();
        // SAFETY: it lies in an Arc, and is removed before that goes: when it is released, or in its destructor.
        unsafe { views::add(host, view.lines * 64, &*view) };
        view
    }

    /// Draws when something happens next.
    pub(crate) fn next_chance(&self) {
        self.quiet.set(self.shared.with(|s| s.draw_gap(self.host, self.id)));
    }

    /// Its memory goes; no thread uses it any more.
    pub(crate) fn release(&self) {
        if !self.released.replace(true) {
            views::remove(self.host, self.base);
            let traffic = self.traffic();
            self.shared.with(|s| s.close(self.host, self.id, &traffic));
        }
    }

    /// What came of it so far.
    pub(crate) fn traffic(&self) -> ViewTraffic {
        let mut traffic = self.shared.with(|s| s.traffic(self.host, self.id));
        traffic.lines_touched = self.touched.get();
        [traffic.bytes_read, traffic.bytes_written] = [self.bytes[0].get(), self.bytes[1].get()];
        traffic
    }

    /// The ids of the lines of a range, first and last.
    #[inline(always)]
    fn ids(&self, off: u64, len: u64) -> (Id, Id) {
        let (first, last) = (off / 64, (off + len.max(1) - 1) / 64);
        assert!(last < self.lines, "an access outside of its device");
        (self.first + first as Id, self.first + last as Id)
    }

    #[cold]
    #[inline(never)]
    fn miss(&self, first: Id, last: Id, write: bool) {
        let now = clock::now();
        let stall = self
            .shared
            .with(|s| s.bring(self.host, self.id, (first, last), write, (clock::slot(), now)));
        self.charge(stall);
    }

    /// The thread stalls for so long. A device that is not reached any more answers with a machine check, which ends
    /// the process.
    fn charge(&self, stall: Option<Nanos>) {
        match stall {
            Some(stall) => clock::charge(stall),
            None => (self.shared.machine_check)(),
        }
    }

    #[cold]
    #[inline(never)]
    fn happen(&self, first: Id, last: Id) {
        let now = clock::now();
        self.shared
            .with(|s| s.happen(self.host, self.id, (first, last), (clock::slot(), now)));
        self.next_chance();
    }
}

impl Device for View {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> u64 {
        self.shared.with(|s| s.len(self.host, self.id))
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.shared.with(|s| s.resize(self.host, self.id, len))
    }

    fn try_lock(&self) -> bool {
        self.shared.with(|s| s.try_lock(self.host, self.id, clock::process()))
    }

    fn unlock(&self) {
        self.shared.with(|s| s.unlock(self.host, self.id, clock::process()));
    }

    fn window(&self) -> u64 {
        self.window
    }

    #[inline]
    fn touch(&self, off: u64, len: u32, access: Access) {
        self.shared.check();
        let (first, last) = self.ids(off, u64::from(len));
        let write = access == Access::Write;
        let bytes = &self.bytes[usize::from(write)];
        bytes.set(bytes.get() + u64::from(len));
        self.touched.set(self.touched.get() + u64::from(last - first) + 1);
        match self.quiet.get() {
            0 => self.happen(first, last),
            left => self.quiet.set(left - 1),
        }
        let there = PRESENT | USED | if write { DIRTY } else { 0 };
        // The core has the line to itself; or, for a read, all may have it.
        let mine = there | clock::owner();
        let shared = if write { mine } else { there };
        // Mostly one line; a plain count, since a range that includes its end is slow to walk.
        let (mut at, end) = ((first - self.first) as usize, (last - self.first) as usize);
        loop {
            // SAFETY: the tag of a line of this view (`ids`); the owner's thread (`check`).
            let tag = unsafe { *self.tags.add(at) };
            let seen = tag & (there | STALE | OWNER);
            if seen != mine && seen != shared {
                return self.miss(first, last, write);
            }
            if at == end {
                return;
            }
            at += 1;
        }
    }

    fn prefetch(&self, off: u64) {
        let (line, _) = self.ids(off, 1);
        let now = clock::now();
        clock::charge(
            self.shared
                .with(|s| s.prefetch(self.host, self.id, line, (clock::slot(), now))),
        );
    }

    fn write_back(&self, off: u64, len: u64) {
        if len > 0 {
            let (first, last) = self.ids(off, len);
            self.shared
                .with(|s| s.write_back(self.host, self.id, (first, last), clock::slot()));
        }
    }

    fn fence(&self) {
        let now = clock::now();
        let stall = self.shared.with(|s| s.fence(self.host, (clock::slot(), now)));
        self.charge(stall);
    }

    fn invalidate(&self, off: u64, len: u64) {
        if len > 0 {
            let (first, last) = self.ids(off, len);
            let now = clock::now();
            self.shared
                .with(|s| s.invalidate(self.host, self.id, (first, last), (clock::slot(), now)));
        }
    }

    fn store_uncached(&self, off: u64, value: u64) {
        let (id, _) = self.ids(off, 8);
        let now = clock::now();
        let stall = self
            .shared
            .with(|s| s.store_uncached(self.host, self.id, id, off as usize % 64, value, (clock::slot(), now)));
        self.charge(stall);
    }

    fn host(&self) -> u64 {
        self.shared.with(|s| s.host_life(self.host))
    }

    fn describe(&self, parts: &[(&'static str, u64, u64)]) {
        self.shared.with(|s| s.describe(self.host, self.id, parts));
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if !self.released.get() {
            views::remove(self.host, self.base);
        }
    }
}

impl core::fmt::Debug for View {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "View {} of host {}", self.id.0, self.host)
    }
}
