//! Values too large for a leaf: chains of overflow pages in the tree's space.
//!
//! ```text
//!  12 u8 kind   24 u32 next page, 0 at the end   32 u32 data bytes here   36 u32 mark: 1 first page, 0 another
//!  40 u64 length of the value, in the first page   48 … data
//! ```
//!
//! A chain takes many mini-transactions to write and to free, each of at most [`STRIDE`] pages, so that redo is
//! bounded. Nothing leaks when the process dies in between, because a chain that no row holds stands on the pending
//! list in the space's header at every moment:
//!
//! 1. `put_large` takes a pending slot with the first pages and hangs on the rest;
//! 2. the mini-transaction that writes the row calls `adopt_large`: the slot is given up;
//! 3. the mini-transaction that removes the last version calls `orphan_large`: the chain is pending again;
//! 4. `free_large` frees the front of the chain, the slot moving along;
//! 5. `reclaim_pending`, called before anyone writes to the space after a restart, frees what is still pending.

use super::layout::{AT_KIND, AT_NEXT, KIND_OVERFLOW, PAGE_SIZE, PageRead};
use super::pages::{Mtr, PageH, Pool};
use super::{Attempt, BTree, Error, Result, until_done};
use crate::space::{self, SpaceLatch};

const AT_LEN: usize = 32;
const AT_MARK: usize = 36;
const AT_TOTAL: usize = 40;
const AT_DATA: usize = 48;
/// Bytes of a value in one page.
const PER_PAGE: usize = PAGE_SIZE - AT_DATA;
/// Pages written or freed in one mini-transaction.
const STRIDE: usize = 8;
const FIRST: u32 = 1;
const _: () = {
    assert!(
        AT_NEXT + 4 <= AT_LEN && AT_LEN + 4 <= AT_MARK,
        "a page's length and mark follow its link"
    );
    assert!(
        AT_MARK + 4 <= AT_TOTAL && AT_TOTAL + 8 <= AT_DATA,
        "a chain's length lies before its bytes"
    );
    assert!(
        STRIDE < cenote_buffer::PAGES_MAX,
        "a mini-transaction has room for a stride and its space's header"
    );
};

/// Names a large value; what a row holds in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LargeRef {
    /// First page of the chain.
    pub first: u32,
    /// Length of the value in bytes.
    pub len: u64,
}

impl LargeRef {
    /// Bytes of the encoded form.
    pub const SIZE: usize = 12;

    /// Little-endian bytes, for a row.
    pub fn encode(&self) -> [u8; LargeRef::SIZE] {
        let mut out = [0; LargeRef::SIZE];
        out[..4].copy_from_slice(&self.first.to_le_bytes());
        out[4..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// The inverse of [`LargeRef::encode`]; `None` when the length is wrong.
    pub fn decode(bytes: &[u8]) -> Option<LargeRef> {
        let bytes: &[u8; LargeRef::SIZE] = bytes.try_into().ok()?;
        let (first, len) = (bytes.first_chunk::<4>()?, bytes.last_chunk::<8>()?);
        Some(LargeRef {
            first: u32::from_le_bytes(*first),
            len: u64::from_le_bytes(*len),
        })
    }
}

/// Chains about to be adopted: the space's header, latched, and their slots of the pending list.
pub(crate) struct Adoption(Option<(SpaceLatch, Vec<usize>)>);

impl Adoption {
    /// Takes the chains off the pending list.
    pub(crate) fn apply(self, m: &mut Mtr<'_>) {
        let Some((header, slots)) = self.0 else { return };
        slots.into_iter().for_each(|slot| header.set_pending(m, slot, 0));
    }
}

impl BTree {
    /// Writes a value as a chain that is pending: adopt it in the mini-transaction that writes its row. One that cannot
    /// be written to its end goes again.
    ///
    /// # Errors
    /// Those of making pages; too many chains are pending. Nothing stays then.
    pub fn put_large(&self, pool: &Pool, value: &[u8]) -> Result<LargeRef> {
        let mut strides = value.chunks(PER_PAGE * STRIDE);
        let (first, mut tail) = self.begin_chain(pool, strides.next().unwrap_or(&[]), value.len() as u64)?;
        let large = LargeRef {
            first,
            len: value.len() as u64,
        };
        let extended = strides.try_for_each(|stride| {
            tail = self.extend_chain(pool, tail, stride)?;
            Ok(())
        });
        match extended {
            Ok(()) => Ok(large),
            Err(error) => {
                // What cannot be freed either stays pending until the next start.
                self.free_large(pool, &large).ok();
                Err(error)
            }
        }
    }

    /// The first pages, on the pending list; returns the first and the last of them.
    fn begin_chain(&self, pool: &Pool, bytes: &[u8], total: u64) -> Result<(u32, u32)> {
        let mut m = pool.mtr();
        let mut header = space::latch(&mut m, self.space)?;
        let slot = header.vacant(&m, 1)?[0];
        let count = bytes.len().div_ceil(PER_PAGE).max(1);
        assert!(count <= STRIDE, "a stride of pages is one mini-transaction");
        let (mut m, pages) = header.allocate(m, count, KIND_OVERFLOW)?;
        fill(&mut m, &pages, bytes);
        m.write(pages[0].1, AT_MARK, &FIRST.to_le_bytes());
        m.write(pages[0].1, AT_TOTAL, &total.to_le_bytes());
        header.set_pending(&mut m, slot, pages[0].0);
        header.store(&mut m);
        m.commit();
        Ok((pages[0].0, pages[count - 1].0))
    }

    /// Hangs more pages on the chain's last page; returns the new last page.
    fn extend_chain(&self, pool: &Pool, tail: u32, bytes: &[u8]) -> Result<u32> {
        let mut m = pool.mtr();
        let tail = m.exclusive(self.page(tail))?;
        let mut header = space::latch(&mut m, self.space)?;
        let count = bytes.len().div_ceil(PER_PAGE);
        assert!(
            (1..=STRIDE).contains(&count),
            "a stride of pages is one mini-transaction"
        );
        let (mut m, pages) = header.allocate(m, count, KIND_OVERFLOW)?;
        fill(&mut m, &pages, bytes);
        m.write(tail, AT_NEXT, &pages[0].0.to_le_bytes());
        header.store(&mut m);
        m.commit();
        Ok(pages[count - 1].0)
    }

    /// Takes the chains off the pending list, in the mini-transaction that writes the row that holds them. Call it
    /// before that mini-transaction's first change and after the leaf is latched; the space's header is all it latches.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: a chain is not pending. Those of reading the space's header.
    pub fn adopt_large(&self, m: &mut Mtr<'_>, large: &[LargeRef]) -> Result<()> {
        self.prepare_adoption(m, large)?.apply(m);
        Ok(())
    }

    /// What can fail of an adoption: for a mini-transaction with other changes that can fail before they change
    /// anything.
    pub(crate) fn prepare_adoption(&self, m: &mut Mtr<'_>, large: &[LargeRef]) -> Result<Adoption> {
        if large.is_empty() {
            return Ok(Adoption(None));
        }
        let header = space::latch(m, self.space)?;
        let slot_of = |large: &LargeRef| {
            let slot = (0..space::PENDING).find(|slot| header.pending(m, *slot) == large.first);
            slot.ok_or_else(|| Error::corrupt(self.page(large.first), "a large value to adopt is not pending"))
        };
        let slots = large.iter().map(slot_of).collect::<Result<Vec<_>>>()?;
        assert!(slots.len() == large.len(), "each chain has its slot");
        Ok(Adoption(Some((header, slots))))
    }

    /// Puts the chains on the pending list, in the mini-transaction that removes the last version that holds them.
    /// Call it before that mini-transaction's first change and after the leaf is latched; then `free_large`.
    ///
    /// # Errors
    /// [`Error::TooManyPending`], and those of reading the space's header.
    pub fn orphan_large(&self, m: &mut Mtr<'_>, large: &[LargeRef]) -> Result<()> {
        if large.is_empty() {
            return Ok(());
        }
        let header = space::latch(m, self.space)?;
        let slots = header.vacant(m, large.len())?;
        for (slot, large) in slots.into_iter().zip(large) {
            header.set_pending(m, slot, large.first);
        }
        Ok(())
    }

    /// Copies the whole value into `out` (cleared first). The caller must be entitled to see a row that holds it.
    ///
    /// # Errors
    /// Those of reading pages; [`Error::Corrupt`] if the chain ends early or is longer.
    pub fn get_large(&self, pool: &Pool, large: &LargeRef, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        if large.len == 0 {
            return Ok(());
        }
        let mut page = large.first;
        while (out.len() as u64) < large.len {
            let before = out.len();
            if page == 0 {
                return Err(Error::corrupt(
                    self.page(large.first),
                    "a large value is shorter than its row says",
                ));
            }
            page = until_done(|| {
                out.truncate(before);
                self.try_copy(pool, page, (page == large.first).then_some(large.len), out)
            })?;
        }
        if page == 0 && out.len() as u64 == large.len {
            return Ok(());
        }
        Err(Error::corrupt(
            self.page(large.first),
            "a large value is longer than its row says",
        ))
    }

    /// Appends the bytes of one page, the first one of a value of `len` if that is given; returns the next page.
    fn try_copy(&self, pool: &Pool, page: u32, first: Option<u64>, out: &mut Vec<u8>) -> Attempt<u32> {
        let guard = pool.optimistic(self.page(page))?;
        let view = guard.view();
        let len = PageRead::u32(view, AT_LEN) as usize;
        let as_said = first.is_none_or(|len| total(view) == len);
        let sound = PageRead::u8(view, AT_KIND) == KIND_OVERFLOW && (1..=PER_PAGE).contains(&len) && as_said;
        PageRead::copy_to(view, AT_DATA, len.min(PER_PAGE), out);
        let next = PageRead::u32(view, AT_NEXT);
        match (guard.valid(), sound) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(next)),
            (true, false) => Err(Error::corrupt(self.page(page), "it is not a page of a large value")),
        }
    }

    /// Frees a chain that is pending.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: the chain is not pending. Those of reading and writing its pages.
    pub fn free_large(&self, pool: &Pool, large: &LargeRef) -> Result<()> {
        let pending = space::pending(pool, self.space)?;
        match pending.into_iter().find(|(_, first)| *first == large.first) {
            Some((slot, first)) => self.free_chain(pool, slot, first),
            None => Err(Error::corrupt(
                self.page(large.first),
                "a large value to free is not pending",
            )),
        }
    }

    fn free_chain(&self, pool: &Pool, slot: usize, mut first: u32) -> Result<()> {
        while first != 0 {
            first = self.free_stride(pool, slot, first)?;
        }
        Ok(())
    }

    /// Frees the first pages of a pending chain; returns what is now its first page.
    fn free_stride(&self, pool: &Pool, slot: usize, first: u32) -> Result<u32> {
        let mut m = pool.mtr();
        let mut pages = Vec::with_capacity(STRIDE);
        let mut next = first;
        while next != 0 && pages.len() < STRIDE {
            let h = m.exclusive(self.page(next))?;
            let again = pages.iter().any(|(page, _)| *page == next);
            if again || PageRead::u8(m.view(h), AT_KIND) != KIND_OVERFLOW {
                return Err(Error::corrupt(
                    self.page(next),
                    "it is not the next page of a large value",
                ));
            }
            pages.push((next, h));
            next = PageRead::u32(m.view(h), AT_NEXT);
        }
        let mut header: SpaceLatch = space::latch(&mut m, self.space)?;
        pages.iter().for_each(|(page, h)| header.free(&mut m, *page, *h));
        header.set_pending(&mut m, slot, next);
        header.store(&mut m);
        m.commit();
        Ok(next)
    }

    /// Frees all chains that are pending; returns how many. Only before anyone writes large values to this space,
    /// at the first use after a restart.
    ///
    /// # Errors
    /// Those of reading and writing the chains' pages.
    pub fn reclaim_pending(&self, pool: &Pool) -> Result<usize> {
        let pending = space::pending(pool, self.space)?;
        for (slot, first) in &pending {
            self.free_chain(pool, *slot, *first)?;
        }
        Ok(pending.len())
    }
}

fn total(page: impl PageRead) -> u64 {
    page.u32(AT_TOTAL) as u64 | (page.u32(AT_TOTAL + 4) as u64) << 32
}

/// Writes `bytes` over the pages and links them; the last one ends the chain.
fn fill(m: &mut Mtr<'_>, pages: &[(u32, PageH)], bytes: &[u8]) {
    let mut chunks = bytes.chunks(PER_PAGE);
    for (i, (_, h)) in pages.iter().enumerate() {
        let data = chunks.next().unwrap_or(&[]);
        let next = pages.get(i + 1).map_or(0, |(page, _)| *page);
        let mut header = [0; AT_DATA - AT_NEXT];
        header[..4].copy_from_slice(&next.to_le_bytes());
        header[AT_LEN - AT_NEXT..][..4].copy_from_slice(&(data.len() as u32).to_le_bytes());
        m.write(*h, AT_KIND, &[KIND_OVERFLOW, 0, 1, 0]);
        m.write(*h, AT_NEXT, &header);
        if !data.is_empty() {
            m.write(*h, AT_DATA, data);
        }
    }
    assert!(chunks.next().is_none(), "the pages take all of the bytes");
}

/// What a page of a large value says about its chain, for `check`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainPage {
    pub next: u32,
    pub is_first: bool,
}

/// Reads a page as one of a chain; `None` when it is of another kind.
pub(crate) fn chain_page(page: impl PageRead) -> Option<ChainPage> {
    let is_chain = page.u8(AT_KIND) == KIND_OVERFLOW;
    is_chain.then(|| ChainPage {
        next: page.u32(AT_NEXT),
        is_first: page.u32(AT_MARK) != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::rt::fs;
    use cenote_buffer::{BufferPool, Config, Kind};
    use cenote_storage::DataDir;
    use cenote_testkit::faulty::MemFs;
    use std::path::Path;
    use std::sync::Arc;

    /// A value for which the disk had no room left the pages that it had got, and its place among 3,072 pending ones,
    /// until a restart: then no large value could be written to the table any more.
    #[test]
    fn a_value_that_does_not_fit_on_the_disk_leaves_nothing() {
        let files = MemFs::new();
        fs::with(Arc::new(files.clone()), || {
            let mut config = Config::new(Kind::Dram, 24 << 20);
            config.background = false;
            let dir = DataDir::open(Path::new("/data")).expect("data");
            let pool = BufferPool::open(config, dir).expect("pool").0;
            pool.storage().pages().create_space(1000).expect("space");
            let tree = BTree::create(&pool, 1000).expect("tree");
            files.set_capacity(Some(files.used() + (2 << 20)));
            let value = vec![7; 8 << 20];
            for _ in 0..3 {
                assert!(tree.put_large(&pool, &value).is_err(), "there is no room");
                assert_eq!(space::pending(&pool, 1000).expect("readable"), Vec::new());
            }
            let header = space::header(&pool, 1000).expect("readable");
            assert!(header.free_count > 8, "some pages were made: {header:?}");
        });
    }
}
