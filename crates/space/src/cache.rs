//! Pages of far objects that were read under locks. The process keeps them, and they are valid until a session writes
//! under the lock.
//!
//! A lock has a version, which each writer changes before it lets go ([`super::lock`]). Taking a lock to read returns
//! its version. What was read then is what the lock protects in that version; a later read would find the same, if the
//! version is the same. No messages announce changes, and no page is fetched again by itself: a lookup removes a page
//! of another version, and the least recently used go when there are too many.
//!
//! A page is 4 KiB of an object, counted from its first byte, or what it has of that. It is known by the lock and its
//! address.
//!
//! Invariants:
//! 1. a page's bytes were read while its lock was held to read, in its version;
//! 2. what is read without a lock is not kept: no version would tell that it is old;
//! 3. the pages of a process take so many bytes at most, their own descriptions included.

use super::GlobalAddress;
use super::stats::CacheStats;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{self, Fault};
use std::collections::BTreeMap;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Bytes that pages may take unless it is said.
const LIMIT: u64 = 64 << 20;
/// What a page takes beside its bytes, about.
const DESCRIPTION: u64 = 128;
/// No page.
const NONE: u32 = u32::MAX;

const _: () = assert!(PAGE as usize <= super::far::wire::PAGE_MAX);

/// What is read: what a lock protects, in a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Under {
    pub lock: GlobalAddress,
    pub version: u64,
}

pub(super) struct PageCache {
    table: Mutex<PageTable>,
    limit: AtomicU64,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    buffered: AtomicU64,
    flushes: AtomicU64,
}

/// The pages, in a list from the one that was used last.
struct PageTable {
    places: BTreeMap<PageKey, u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    bytes: u64,
}

/// What a page is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PageKey {
    lock: GlobalAddress,
    start: GlobalAddress,
}

struct Page {
    place: PageKey,
    version: u64,
    bytes: Box<[u8]>,
    newer: u32,
    older: u32,
}

impl Default for PageCache {
    fn default() -> Self {
        Self {
            table: Mutex::new(PageTable::new()),
            limit: AtomicU64::new(LIMIT),
            counters: Counters::default(),
        }
    }
}

impl PageCache {
    /// Pages take so many bytes at most from here on.
    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
        self.table.lock().shrink_to(bytes);
    }

    /// Forgets all of them.
    pub(super) fn clear(&self) {
        self.table.lock().shrink_to(0);
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn find(&self, under: Under, address: GlobalAddress, into: &mut [u8]) -> bool {
        let found = self.table.lock().copy(under, address, into);
        let counter = if found {
            &self.counters.hits
        } else {
            &self.counters.misses
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps the pages that `bytes` are, from `start` on.
    pub(super) fn keep(&self, under: Under, start: GlobalAddress, bytes: &[u8]) {
        let mut table = self.table.lock();
        for (n, page) in bytes.chunks(PAGE as usize).enumerate() {
            if let Some(start) = start.checked_add(n as u64 * PAGE) {
                table.keep(under, start, page, self.limit());
            }
        }
    }

    pub(super) fn count_buffered(&self) {
        self.counters.buffered.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_flush(&self) {
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> CacheStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let table = self.table.lock();
        let (used, free) = (table.places.len(), table.free.len());
        assert_eq!(used + free, table.pages.len(), "a page is neither used nor free");
        CacheStats {
            hits: of(&self.counters.hits),
            misses: of(&self.counters.misses),
            pages: table.places.len() as u64,
            bytes: table.bytes,
            buffered: of(&self.counters.buffered),
            flushes: of(&self.counters.flushes),
        }
    }
}

impl PageTable {
    fn new() -> Self {
        Self {
            places: BTreeMap::new(),
            pages: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
        }
    }

    /// Fills all of `into`, if it can.
    fn copy(&mut self, under: Under, address: GlobalAddress, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            let at = address.checked_add(done as u64);
            let Some((n, inside)) = at.and_then(|at| self.page_at(under, at)) else {
                return false;
            };
            let bytes = &self.pages[n as usize].bytes[inside..];
            let count = bytes.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&bytes[..count]);
            done += count;
            self.unlink(n);
            self.link(n);
        }
        !into.is_empty()
    }

    /// The page with the byte at an address, and where in it that is. One of another version is forgotten.
    fn page_at(&mut self, under: Under, at: GlobalAddress) -> Option<(u32, usize)> {
        let place = |start| PageKey {
            lock: under.lock,
            start,
        };
        let around = self.places.range(place(GlobalAddress::NULL)..=place(at));
        let n = *around.last()?.1;
        let page = &self.pages[n as usize];
        let inside = at.raw() - page.place.start.raw();
        if inside >= page.bytes.len() as u64 {
            return None;
        }
        if page.version != under.version && !fault::planted(Fault::StaleCache) {
            self.remove(n);
            return None;
        }
        Some((n, inside as usize))
    }

    fn keep(&mut self, under: Under, start: GlobalAddress, bytes: &[u8], limit: u64) {
        let place = PageKey {
            lock: under.lock,
            start,
        };
        if let Some(n) = self.places.get(&place) {
            self.remove(*n);
        }
        let size = bytes.len() as u64 + DESCRIPTION;
        self.shrink_to(limit.saturating_sub(size));
        if size <= limit {
            self.add(Page {
                place,
                version: under.version,
                bytes: bytes.into(),
                newer: NONE,
                older: NONE,
            });
        }
        assert!(self.bytes <= limit, "pages take {} bytes of {limit}", self.bytes);
    }

    fn shrink_to(&mut self, bytes: u64) {
        while self.bytes > bytes {
            assert_ne!(self.oldest, NONE, "{} bytes are of no page", self.bytes);
            self.remove(self.oldest);
        }
    }

    fn add(&mut self, page: Page) {
        let place = page.place;
        self.bytes += page.size();
        let n = match self.free.pop() {
            Some(n) => {
                self.pages[n as usize] = page;
                n
            }
            None => {
                assert!(self.pages.len() < NONE as usize, "too many pages to number them");
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        let former = self.places.insert(place, n);
        assert!(former.is_none(), "{place:?} is kept twice");
        self.link(n);
    }

    fn remove(&mut self, n: u32) {
        self.unlink(n);
        let page = &mut self.pages[n as usize];
        assert!(!page.bytes.is_empty(), "page {n} is removed twice");
        assert!(page.size() <= self.bytes, "page {n} was not counted");
        self.bytes -= page.size();
        page.bytes = Box::default();
        let former = self.places.remove(&page.place);
        assert_eq!(former, Some(n), "a page is known by another's place");
        self.free.push(n);
    }

    /// Makes it the one that was used last.
    fn link(&mut self, n: u32) {
        assert_ne!(self.newest, n, "page {n} is linked twice");
        let page = &mut self.pages[n as usize];
        (page.newer, page.older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = n,
            newest => self.pages[newest as usize].newer = n,
        }
        self.newest = n;
    }

    fn unlink(&mut self, n: u32) {
        let (newer, older) = {
            let page = &self.pages[n as usize];
            (page.newer, page.older)
        };
        assert_eq!(newer == NONE, self.newest == n, "page {n} is not where the list says");
        assert_eq!(older == NONE, self.oldest == n, "page {n} is not where the list says");
        match newer {
            NONE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.pages[older as usize].newer = newer,
        }
    }
}

impl Page {
    fn size(&self) -> u64 {
        self.bytes.len() as u64 + DESCRIPTION
    }
}
