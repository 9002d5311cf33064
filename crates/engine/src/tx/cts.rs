//! CTS slots: the commit timestamp of each transaction, on pages, by its number.
//!
//! A number's *page index* is `seq / PER_PAGE`; 8 bytes a number from offset 32 of its page; 0: not committed. The
//! pages of the file are used in a circle: index `i` lies on page `1 + (i - base) % circle`. So the file never grows
//! beyond the circle, however many transactions there are. The slot is written in the commit's mini-transaction, its
//! value patched in under the log's reservation. Pages are made in order, each in a mini-transaction of its own, before
//! a number on it commits. Readers come here only for numbers that left the ring of `status` (long snapshots, and the
//! last run's transactions while one of its losers is being rolled back). Pages wholly below the low-water mark are
//! never asked for: purge gives them back.
//!
//! ```text
//! page 0   32 u64 made: indexes below have their page   40 u64 kept: indexes below have been given back
//!          48 u64 base   56 u32 circle
//! ```
//! Invariants:
//! - kept <= made <= kept + circle: no page has two owners;
//! - a page is made for a new index only when it has been given back by the old one: `kept` moves last;
//! - numbers are reserved only if their pages will have room, so no commit fails for want of one.

use crate::circle::Circle;
use crate::error::{Error, Result};
use crate::pool::{BufferPool, Mtr, PageH};
use cenote_base::rt;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{Cts, PAGE_SIZE, PageId, TxId};
use std::ops::Range;

/// Space of the CTS pages.
pub(crate) const SPACE: u32 = 0xF002_0000;
/// Page kind.
pub(crate) const KIND_CTS: u8 = 0x22;
/// Pages of the circle, usually: 4 TiB, and more than 500 thousand million transactions beside one snapshot.
pub(crate) const CIRCLE: u32 = 1 << 28;
/// The fewest pages of a circle: numbers are reserved a block at a time, and given back some pages at a time.
pub(crate) const CIRCLE_MIN: u32 = 128;
const FIRST: usize = 32;
const PER_PAGE: u64 = ((PAGE_SIZE - FIRST) / 8) as u64;
const AT_MADE: usize = 32;
const AT_KEPT: usize = 40;
const AT_BASE: usize = 48;
const AT_CIRCLE: usize = 56;
const _: () = {
    assert!(
        AT_MADE >= FIRST && AT_MADE + 8 <= AT_KEPT,
        "the header's words follow the page's own"
    );
    assert!(
        AT_KEPT + 8 <= AT_BASE && AT_BASE + 8 <= AT_CIRCLE,
        "the header's words do not overlap"
    );
    assert!(
        FIRST as u64 + 8 * PER_PAGE <= PAGE_SIZE as u64,
        "a page holds its timestamps"
    );
    assert!(CIRCLE_MIN < CIRCLE, "a circle may be smaller than usual");
    assert!(
        crate::undo::SPACE_BASE + crate::undo::MAX_SEGMENTS <= SPACE,
        "no undo segment has the space of the timestamps"
    );
};

/// The CTS pages.
pub(crate) struct CtsPages {
    base: u64,
    circle: Circle,
    /// Indexes below this have, or had, a page.
    made: AtomicU64,
    /// Indexes below this have given their page back. Written by purge.
    kept_from: AtomicU64,
    making: rt::Mutex<()>,
}

/// Indexes whose pages are to be given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Past {
    /// Their pages.
    pub pages: Vec<Range<u32>>,
    to: u64,
}

fn index_of(seq: TxId) -> u64 {
    seq.raw() / PER_PAGE
}

fn offset_of(seq: TxId) -> usize {
    FIRST + 8 * (seq.raw() % PER_PAGE) as usize
}

fn header_page() -> PageId {
    PageId::new(SPACE, 0)
}

/// Makes page 0 of the space, which exists and is empty, for numbers from `first` on, with `circle` pages behind it.
pub(crate) fn create(pool: &BufferPool, first: TxId, circle: u32) -> Result<()> {
    let mut m = pool.mtr();
    let h = m.create(header_page(), KIND_CTS, 0)?;
    for at in [AT_MADE, AT_KEPT, AT_BASE] {
        m.write_u64(h, at, index_of(first));
    }
    m.write_u32(h, AT_CIRCLE, circle);
    m.commit();
    Ok(())
}

impl CtsPages {
    /// Opens the space. Errors: its header contradicts itself.
    pub(crate) fn open(pool: &BufferPool) -> Result<CtsPages> {
        let header = pool.shared(header_page())?;
        let view = header.view();
        let (made, kept, base) = (view.u64(AT_MADE), view.u64(AT_KEPT), view.u64(AT_BASE));
        let corrupt = || Error::Corrupt("the header of the commit timestamps' pages".into());
        let circle = Circle::new(view.u32(AT_CIRCLE)).ok_or_else(corrupt)?;
        if base > kept || kept > made || made - kept > circle.len() {
            return Err(corrupt());
        }
        Ok(CtsPages {
            base,
            circle,
            made: AtomicU64::new(made),
            kept_from: AtomicU64::new(kept),
            making: rt::Mutex::new(()),
        })
    }

    fn page_at(&self, index: u64) -> u32 {
        assert!(
            index >= self.base,
            "no transaction of this database has a number below its first one"
        );
        self.circle.page(index - self.base)
    }

    fn page_of(&self, seq: TxId) -> PageId {
        PageId::new(SPACE, self.page_at(index_of(seq)))
    }

    /// Whether numbers below `ceiling` will find a page, as long as none is given back. Errors: not all of them.
    pub(crate) fn admit(&self, ceiling: TxId) -> Result<()> {
        if index_of(ceiling) < self.kept_from.load(Ordering::Acquire) + self.circle.len() {
            return Ok(());
        }
        Err(Error::Limit(format!(
            "{} transactions have begun since the oldest snapshot in use, and commit timestamps are kept for no more: end that \
             snapshot's transaction",
            self.circle.len() * PER_PAGE
        )))
    }

    /// Makes pages up to the one of `seq`, where they are missing.
    pub(crate) fn make(&self, pool: &BufferPool, seq: TxId) -> Result<()> {
        if index_of(seq) < self.made.load(Ordering::Acquire) {
            return Ok(());
        }
        self.admit(seq)?;
        let _making = self.making.lock();
        let from = self.made.load(Ordering::Acquire);
        for index in from..=index_of(seq) {
            assert!(
                index < self.kept_from.as_raw().load(Ordering::Acquire) + self.circle.len(),
                "a page of timestamps is given back before an index of the next turn takes it"
            );
            let page = self.page_at(index);
            if index - self.base >= self.circle.len() {
                // Its blocks were given back.
                pool.storage().pages().reserve_again(SPACE, page..page + 1)?;
            }
            let mut m = pool.mtr();
            let header = m.exclusive(header_page())?;
            m.create(PageId::new(SPACE, page), KIND_CTS, 0)?;
            m.write_u64(header, AT_MADE, index + 1);
            m.commit();
            self.made.store(index + 1, Ordering::Release);
        }
        assert!(
            index_of(seq) < self.made.as_raw().load(Ordering::Acquire),
            "the page of a transaction is made before it commits"
        );
        Ok(())
    }

    /// Pages that hold only numbers below `low_water` and have not been given back, when there are many. The caller
    /// gives them back, then says so with [`CtsPages::note_given_back`].
    pub(crate) fn take_past(&self, low_water: TxId, many: u32) -> Option<Past> {
        let from = self.kept_from.load(Ordering::Acquire);
        let to = index_of(low_water).min(self.made.load(Ordering::Acquire));
        if to < from + u64::from(many) {
            return None;
        }
        assert!(from >= self.base, "pages are given back from the first one on");
        let pages = self.circle.pages(from - self.base..to - self.base);
        Some(Past { pages, to })
    }

    /// The least number whose page was not given back.
    pub(crate) fn first_kept(&self) -> TxId {
        TxId::from_raw(self.kept_from.load(Ordering::Acquire) * PER_PAGE)
    }

    /// Whether the page has no number from `low_water` on.
    pub(crate) fn is_past(&self, page: u32, low_water: TxId) -> bool {
        let made = self.made.load(Ordering::Acquire);
        let from = self
            .kept_from
            .load(Ordering::Acquire)
            .max(index_of(low_water))
            .min(made);
        let used = self.circle.pages(from - self.base..made - self.base);
        page != header_page().page && !used.iter().any(|run| run.contains(&page))
    }

    /// The pages of `past` are empty: they may be made anew.
    pub(crate) fn note_given_back(&self, pool: &BufferPool, past: &Past) -> Result<()> {
        assert!(
            past.to >= self.kept_from.as_raw().load(Ordering::Acquire),
            "pages are given back in order"
        );
        assert!(
            past.to <= self.made.as_raw().load(Ordering::Acquire),
            "only pages that were made are given back"
        );
        let mut m = pool.mtr();
        let header = m.exclusive(header_page())?;
        m.write_u64(header, AT_KEPT, past.to);
        m.commit();
        self.kept_from.store(past.to, Ordering::Release);
        Ok(())
    }

    /// Latches the slot's page and marks the slot to be patched at commit.
    pub(crate) fn latch(&self, m: &mut Mtr<'_>, seq: TxId) -> Result<PageH> {
        Ok(m.exclusive(self.page_of(seq))?)
    }

    /// Marks the slot, whose page is latched: the hook of the commit gives the value.
    pub(crate) fn mark(&self, m: &mut Mtr<'_>, h: PageH, seq: TxId) {
        m.write_patched_u64(h, offset_of(seq));
    }

    /// The timestamp of `seq`, whose page another server makes and gives back; 0: not committed. None: the page is not
    /// its any more.
    pub(crate) fn read_anew(&self, pool: &BufferPool, seq: TxId) -> Result<Option<Cts>> {
        let index = index_of(seq);
        let header = |at: usize| Ok::<u64, Error>(pool.shared(header_page())?.view().u64(at));
        if index < self.base || index >= header(AT_MADE)? {
            return Ok(Some(Cts::ZERO));
        }
        if index < header(AT_KEPT)? {
            return Ok(None);
        }
        let word = pool.shared(self.page_of(seq))?.view().u64(offset_of(seq));
        // Behind the page: it is made for another index only when this has moved.
        Ok((index >= header(AT_KEPT)?).then_some(Cts::from_raw(word)))
    }

    /// The timestamp of `seq`; 0: not committed. The caller asks for the low-water mark behind it: the page of a number
    /// below may be empty, or another index's.
    pub(crate) fn read(&self, pool: &BufferPool, seq: TxId) -> Result<Cts> {
        let index = index_of(seq);
        if index < self.base || index >= self.made.load(Ordering::Acquire) {
            return Ok(Cts::ZERO);
        }
        Ok(Cts::from_raw(
            pool.shared(self.page_of(seq))?.view().u64(offset_of(seq)),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;
    use std::sync::Arc;

    fn pages(base: u64, circle: u32, kept: u64, made: u64) -> CtsPages {
        CtsPages {
            base,
            circle: Circle::new(circle).expect("some pages"),
            made: AtomicU64::new(made),
            kept_from: AtomicU64::new(kept),
            making: rt::Mutex::new(()),
        }
    }

    #[test]
    fn what_is_past_is_given_back_on_both_sides_of_the_circle_s_end() {
        let past = |kept, low: u64| {
            let past = pages(1000, 128, kept, kept + 128).take_past(TxId::from_raw(low * PER_PAGE), 64);
            past.map(|past| {
                past.pages
                    .into_iter()
                    .map(|run| (run.start, run.end))
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(past(1000, 1063), None, "too few");
        assert_eq!(past(1000, 1064), Some(vec![(1, 65)]));
        assert_eq!(past(1064, 1128), Some(vec![(65, 129)]));
        assert_eq!(past(1100, 1170), Some(vec![(101, 129), (1, 43)]));
        let whole: u32 = past(1100, 1228)
            .expect("all")
            .iter()
            .map(|(first, end)| end - first)
            .sum();
        assert_eq!(whole, 128, "each page once");
    }

    #[test]
    fn numbers_without_a_page_are_refused_before_they_are_drawn() {
        let pages = pages(1000, 128, 1010, 1100);
        assert!(pages.admit(TxId::from_raw(1138 * PER_PAGE - 1)).is_ok());
        assert_eq!(
            pages
                .admit(TxId::from_raw(1138 * PER_PAGE))
                .expect_err("refused")
                .sqlstate(),
            "53400"
        );
    }

    fn open(dir: &std::path::Path) -> Arc<Engine> {
        let mut options = EngineOptions::new(dir.join("data"), MemoryKind::Cxl, 24 << 20);
        options.region = Some(dir.join("region"));
        options.background = false;
        options.origins = Origins {
            tx: (1 << 48) - (1 << 21),
            cts_pages: 256,
            ..Origins::default()
        };
        Engine::open(options).expect("the database opens")
    }

    fn set(engine: &Arc<Engine>, k: i32) -> Result<()> {
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let table = tx.table("t")?.expect("there");
        let (mut row, mut key) = (Vec::new(), Vec::new());
        table.layout().encode(&[Datum::Int4(1), Datum::Int4(k)], &mut row)?;
        table.key_of_values(&[Datum::Int4(1)], &mut key);
        if k == 0 {
            tx.insert(&table, &row)?;
        } else {
            tx.modify(&table, &key, &|_, _| Ok::<_, Error>(Change::Update(row.clone())))?;
        }
        tx.commit()
    }

    fn get(tx: &Tx) -> i32 {
        let table = tx.table("t").expect("read").expect("there");
        let rows = tx.collect(&table, KeyRange::all()).expect("read");
        match table.layout().decode(&rows[0]).expect("a row")[1] {
            Datum::Int4(k) => k,
            _ => unreachable!("an int4"),
        }
    }

    fn make_table(engine: &Arc<Engine>) {
        let column = |name: &str| ColumnDef {
            name: name.into(),
            ty: ColumnType::Int4,
            not_null: true,
            default: None,
        };
        let mut tx = engine.begin(Isolation::ReadCommitted);
        let new = NewTable {
            name: "t".into(),
            columns: vec![column("id"), column("k")],
            primary_key: Some(("t_pkey".into(), vec![0])),
            indexes: vec![],
        };
        tx.create_table(new).expect("made");
        tx.commit().expect("committed");
    }

    /// Pages of commit timestamps ended at 4.4e12 transactions, where the file does. Eight transactions are a lap here,
    /// each of which takes the place of the one before in the ring of statuses: what an old snapshot asks for is on
    /// pages.
    #[test]
    fn timestamps_go_round_and_old_snapshots_find_theirs() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut engine = open(dir.path());
        make_table(&engine);
        set(&engine, 0).expect("inserted");
        let next = |engine: &Arc<Engine>, k| {
            engine.txs.skip((1 << 16) - 1);
            set(engine, k)
        };
        for k in (1..60).step_by(3) {
            next(&engine, k).expect("changed");
            let mut old = engine.begin(Isolation::RepeatableRead);
            assert_eq!(get(&old), k);
            next(&engine, k + 1).expect("changed");
            next(&engine, k + 2).expect("changed");
            engine.vacuum().expect("purged");
            assert_eq!(get(&old), k, "its snapshot");
            old.rollback().expect("ended");
            drop(old);
            engine.vacuum().expect("purged");
            if k % 20 == 1 {
                engine.halt();
                drop(engine);
                engine = open(dir.path());
                assert_eq!(get(&engine.begin(Isolation::ReadCommitted)), k + 2, "after a crash");
            }
        }
        let mut old = engine.begin(Isolation::RepeatableRead);
        let before = get(&old);
        let refused = (100..110)
            .find_map(|k| next(&engine, k).err())
            .expect("the circle is full");
        assert_eq!(refused.sqlstate(), "53400", "{refused}");
        assert_eq!(get(&old), before);
        old.rollback().expect("ended");
        drop(old);
        engine.vacuum().expect("purged");
        next(&engine, 200).expect("there is room again");
        assert_eq!(engine.check().expect("checked").problems, Vec::<String>::new());
        engine.shutdown().expect("shut down");
    }
}
