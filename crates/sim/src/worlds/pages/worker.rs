//! A thread that changes and reads pages.

use cenote_base::random::Random;
use std::sync::Arc;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Lsn, Result};
use cenote_buffer::{BufferPool, Mtr, PageH};

use super::id;
use super::model::{self, Bytes, LAST, PART, PARTS, Part};
use crate::worlds::plan::Pages;
use crate::worlds::shared::Shared;

/// What a page's header says of it.
const KIND: u8 = 7;
/// A reader who finds the page changed looks again so often.
const LOOKS: u64 = 20;

/// Works until told to stop.
pub(super) fn start(shared: &Arc<Shared>, pool: &Arc<BufferPool>, plan: Pages) -> rt::JoinHandle<()> {
    let (shared, pool) = (shared.clone(), pool.clone());
    rt::spawn("pages", move || {
        let mut worker = Worker {
            shared: &shared,
            pool: &pool,
            plan,
            draw: Random(rt::random()),
            bytes: Bytes::default(),
        };
        while !shared.is_stopping() {
            worker.turn();
        }
    })
}

struct Worker<'a> {
    shared: &'a Shared,
    pool: &'a BufferPool,
    plan: Pages,
    draw: Random,
    bytes: Bytes,
}

impl Worker<'_> {
    fn turn(&mut self) {
        if self.draw.one_in(8) {
            self.bring();
        }
        let reads = self.draw.below(100) < self.shared.plan.reading;
        let done = if reads { self.read() } else { self.change() };
        if let Err(problem) = done {
            self.shared.fail(problem);
        }
        self.shared.ended_one();
        if self.plan.rests > 0 {
            rt::sleep(Nanos(self.draw.below(self.plan.rests)));
        }
    }

    /// A few pages are used much, the others now and then.
    fn page(&mut self) -> u32 {
        let all = u64::from(self.plan.pages);
        let among = if self.draw.one_in(2) { all.min(8) } else { all };
        self.draw.below(among) as u32
    }

    /// Pages that are there or not, made or not.
    fn bring(&mut self) {
        let pages: Vec<_> = (0..2 + self.draw.below(8)).map(|_| id(self.page())).collect();
        self.pool.bring(&pages);
    }

    // ---- reading ----

    fn read(&mut self) -> std::result::Result<(), String> {
        let page = self.page();
        if !self.shared.pages().is_made(page) {
            return Ok(());
        }
        let committed = self.shared.pages().committed_of(page);
        let seen = match self.draw.one_in(2) {
            true => self.held(page),
            false => self.glimpsed(page),
        };
        if !seen.map_err(|error| format!("page {page}: {error}"))? {
            return Ok(());
        }
        let image = self.bytes.image(page)?;
        self.shared.pages().judge(page, committed, &image)
    }

    fn held(&mut self, page: u32) -> Result<bool> {
        let guard = self.pool.shared(id(page))?;
        guard.view().copy_out(0, &mut self.bytes.0);
        if self.draw.one_in(self.plan.still) {
            rt::sleep(Nanos::from_micros(100));
        }
        Ok(true)
    }

    fn glimpsed(&mut self, page: u32) -> Result<bool> {
        for _ in 0..LOOKS {
            let guard = self.pool.optimistic(id(page))?;
            guard.view().copy_out(0, &mut self.bytes.0);
            if guard.valid() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    // ---- changing ----

    fn change(&mut self) -> std::result::Result<(), String> {
        let parts = self.draw_parts();
        let end = self.try_change(&parts).map_err(|error| format!("{parts:?}: {error}"))?;
        if self.draw.below(100) < self.plan.waits {
            let done = self.pool.storage().log().wait_durable(end);
            done.map_err(|error| format!("the log: {error}"))?;
            self.shared.pages().durable(end);
        }
        Ok(())
    }

    /// In the order of latching: by page.
    fn draw_parts(&mut self) -> Vec<Part> {
        let n = 1 + self.draw.below(self.shared.plan.statements);
        let mut pages: Vec<u32> = (0..n).map(|_| self.page()).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.into_iter().map(|page| self.draw_part(page)).collect()
    }

    fn draw_part(&mut self, page: u32) -> Part {
        let anew = !self.shared.pages().is_made(page) || self.draw.one_in(self.plan.anew);
        let first = self.draw.below(PARTS as u64) as usize;
        let parts = match self.draw.one_in(self.plan.whole) {
            true => 0..PARTS,
            false => first..(first + 1 + self.draw.below(2) as usize).min(PARTS),
        };
        Part { page, anew, parts }
    }

    fn try_change(&mut self, parts: &[Part]) -> Result<Lsn> {
        let (pool, shared) = (self.pool, self.shared);
        let mut m = pool.mtr();
        let mut held = Vec::new();
        for part in parts {
            held.push(match part.anew {
                true => m.create(id(part.page), KIND, 0)?,
                false => m.exclusive(id(part.page))?,
            });
        }
        let number = shared.pages().begin(parts);
        for (part, h) in parts.iter().zip(held) {
            self.write(&mut m, part, h, number);
            if self.draw.one_in(self.plan.still) {
                rt::sleep(Nanos(self.draw.below(200_000)));
            }
        }
        let end = m.commit_with(&mut |end, _| shared.pages().placed(number, end));
        shared.pages().committed(number);
        Ok(end)
    }

    fn write(&self, m: &mut Mtr<'_>, part: &Part, h: PageH, number: u64) {
        m.write_u64(h, LAST, number);
        for n in part.parts.clone() {
            m.write(h, (n + 1) * PART, &model::part(part.page, n, number));
        }
    }
}
