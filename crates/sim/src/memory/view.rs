//! A host's view of a device, or of its own memory: what programs are given.

use super::host::{DIRTY, Id, OWNER, PRESENT, STALE, Tags, USED};
use super::owned::ThreadOwned;
use super::report::ViewTraffic;
use super::shared::Shared;
use super::state::{Opened, ViewId};
use crate::clock;
use cenote_base::rt::Nanos;
use cenote_base::rt::memory::{Access, Device};
use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// A view as programs have it: of the thread that runs the world.
pub(crate) type OwnedView = ThreadOwned<View>;

/// See the module.
pub(crate) struct View {
    shared: Rc<Shared>,
    host: usize,
    id: ViewId,
    /// Of its lines.
    tags: Tags,
    first: Id,
    lines: u64,
    base: NonNull<u8>,
    window: u64,
    /// Touches until something happens that no thread asked for.
    quiet: Cell<u64>,
    touched: Cell<u64>,
    bytes: [Cell<u64>; 2],
}

impl View {
    pub(crate) fn of_device(shared: &Rc<Shared>, host: usize, device: usize) -> Arc<OwnedView> {
        let opened = shared.with(|s| s.open(host, device));
        let opened = opened.unwrap_or_else(|e| panic!("no address space for a view: {e}"));
        Self::new(shared, host, opened)
    }

    /// `None` where there is no memory left.
    pub(crate) fn local(shared: &Rc<Shared>, host: usize, len: u64) -> Option<Arc<OwnedView>> {
        let opened = shared.with(|s| s.open_local(host, len)).ok()?;
        Some(Self::new(shared, host, opened))
    }

    fn new(shared: &Rc<Shared>, host: usize, opened: Opened) -> Arc<OwnedView> {
        let view = Self {
            shared: Rc::clone(shared),
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
        };
        view.next_chance();
        Arc::new(ThreadOwned::new(view))
    }

    /// Its host, first byte and bytes.
    pub(crate) fn place(&self) -> (usize, NonNull<u8>, u64) {
        (self.host, self.base, self.lines * 64)
    }

    /// Draws when something happens next.
    pub(crate) fn next_chance(&self) {
        self.quiet.set(self.shared.with(|s| s.draw_gap(self.host, self.id)));
    }

    /// Its memory goes; no thread uses it any more.
    pub(crate) fn release(&self) {
        let traffic = self.traffic();
        self.shared.with(|s| s.close(self.host, self.id, &traffic));
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
    fn miss(&self, (first, last): (Id, Id), write: bool) {
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
    fn happen(&self, needed: (Id, Id)) {
        let now = clock::now();
        self.shared
            .with(|s| s.happen(self.host, self.id, needed, (clock::slot(), now)));
        self.next_chance();
    }
}

/// The bytes of a view as its host sees them, past the cache: what a program's plain loads and stores would do.
#[cfg(test)]
impl View {
    pub(super) fn peek(&self, off: u64) -> u64 {
        self.shared.with(|s| s.peek(self.host, self.id, off as usize))
    }

    pub(super) fn poke(&self, off: u64, value: u64) {
        self.shared.with(|s| s.poke(self.host, self.id, off as usize, value));
    }
}

impl Device for OwnedView {
    fn base(&self) -> NonNull<u8> {
        self.get().base
    }

    fn len(&self) -> u64 {
        let view = self.get();
        view.shared.with(|s| s.len(view.host, view.id))
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        let view = self.get();
        view.shared.with(|s| s.resize(view.host, view.id, len))
    }

    fn try_lock(&self) -> bool {
        let view = self.get();
        view.shared.with(|s| s.try_lock(view.host, view.id, clock::process()))
    }

    fn unlock(&self) {
        let view = self.get();
        view.shared.with(|s| s.unlock(view.host, view.id, clock::process()));
    }

    fn window(&self) -> u64 {
        self.get().window
    }

    #[inline]
    fn touch(&self, off: u64, len: u32, access: Access) {
        let view = self.get();
        let (first, last) = (off / 64, (off + u64::from(len).max(1) - 1) / 64);
        let ids = || (view.first + first as Id, view.first + last as Id);
        let write = access == Access::Write;
        let bytes = &view.bytes[usize::from(write)];
        bytes.set(bytes.get() + u64::from(len));
        view.touched.set(view.touched.get() + (last - first) + 1);
        match view.quiet.get() {
            0 => view.happen(ids()),
            left => view.quiet.set(left - 1),
        }
        let there = PRESENT | USED | if write { DIRTY } else { 0 };
        // The core has the line to itself; or, for a read, all may have it.
        let mine = there | clock::owner();
        let shared = if write { mine } else { there };
        let is_hit = view.tags.all(first, last, |tag| {
            let seen = tag & (there | STALE | OWNER);
            seen == mine || seen == shared
        });
        if !is_hit {
            view.miss(ids(), write);
        }
    }

    fn prefetch(&self, off: u64) {
        let view = self.get();
        let (line, _) = view.ids(off, 1);
        let now = clock::now();
        clock::charge(
            view.shared
                .with(|s| s.prefetch(view.host, view.id, line, (clock::slot(), now))),
        );
    }

    fn write_back(&self, off: u64, len: u64) {
        let view = self.get();
        if len > 0 {
            let (first, last) = view.ids(off, len);
            view.shared
                .with(|s| s.write_back(view.host, view.id, (first, last), clock::slot()));
        }
    }

    fn fence(&self) {
        let view = self.get();
        let now = clock::now();
        let stall = view.shared.with(|s| s.fence(view.host, (clock::slot(), now)));
        view.charge(stall);
    }

    fn invalidate(&self, off: u64, len: u64) {
        let view = self.get();
        if len > 0 {
            let (first, last) = view.ids(off, len);
            let now = clock::now();
            view.shared
                .with(|s| s.invalidate(view.host, view.id, (first, last), (clock::slot(), now)));
        }
    }

    fn store_uncached(&self, off: u64, value: u64) {
        let view = self.get();
        let (id, _) = view.ids(off, 8);
        let now = clock::now();
        let stall = view
            .shared
            .with(|s| s.store_uncached(view.host, view.id, id, off as usize % 64, value, (clock::slot(), now)));
        view.charge(stall);
    }

    fn host(&self) -> u64 {
        let view = self.get();
        view.shared.with(|s| s.host_life(view.host))
    }

    fn describe(&self, parts: &[(&'static str, u64, u64)]) {
        let view = self.get();
        view.shared.with(|s| s.describe(view.host, view.id, parts));
    }
}

impl core::fmt::Debug for View {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "View {} of host {}", self.id.0, self.host)
    }
}
