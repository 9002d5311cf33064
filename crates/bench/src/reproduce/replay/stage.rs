//! A database of as many pages as a trace asks for, and the run of a trace in a world that has it.

use super::super::options::Progress;
use super::super::pod::{Dataset, Far, Scale, System, world};
use super::workload::{Act, Step, Workload};
use crate::{Error, Result};
use cenote_base::rt::{self, Nanos};
use cenote_base::{PAGE_SIZE, PageId};
use cenote_buffer::{Hint, PageAccess};
use cenote_engine::{ColumnDef, ColumnType, Datum, Engine, EngineOptions, Insert, Isolation, NewTable, Table};
use cenote_sim::{Exit, World};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a row's text: few rows fill a page.
const TEXT_BYTES: usize = 3_800;
/// Rows of a transaction.
const ROWS_AT_ONCE: u32 = 500;
/// Pages of the database beside the trace's (catalog, undo, what the last rows need), and the share of its memory that
/// the pool takes for itself.
const MORE_PAGES: u32 = 2_000;
const POOL_SHARE: u64 = 8;
/// Times that a run may have the pages in memory.
const COPIES: u64 = 3;

/// What a change changes, where the rows that it stands for have text; and the kind of a page that is made.
const CHANGED_AT: usize = PAGE_SIZE / 2;
const CHANGE: &[u8] = b"changed!";
const KIND: u8 = 200;

/// A filled database, and which of its pages stand for the trace's.
pub struct Stage {
    dataset: Dataset,
    pages: Arc<[PageId]>,
}

/// How a trace is run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Where pages are.
    pub system: System,
    /// What the trace's processor times are multiplied by.
    pub processor: f64,
    /// Whether pages that are announced are read together.
    pub brings: bool,
    /// By one thread, in the trace's order: of traces of one session.
    pub one_thread: bool,
    /// Of the simulation.
    pub seed: u64,
}

/// What a part came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartMeasured {
    /// From its first step to its last.
    pub time: Nanos,
    /// Accesses that found the page in local memory, and that did not.
    pub hits: u64,
    /// See `hits`.
    pub misses: u64,
    /// Pages that came from remote memory.
    pub remote: u64,
    /// Pages that came from storage.
    pub stored: u64,
}

impl Stage {
    /// Fills a database for so many pages; `progress` hears of pages.
    ///
    /// # Errors
    /// [`Error::Simulation`] if it cannot be filled.
    pub fn build(pages: u32, seed: u64, progress: &mut dyn FnMut(u64)) -> Result<Stage> {
        let bytes = u64::from(pages + MORE_PAGES) * PAGE_SIZE as u64;
        let scale = Scale {
            memory: bytes + bytes / POOL_SHARE + (64 << 20),
            ..Scale::usual()
        };
        let (mut dataset, found) = Dataset::filled(scale, seed, |engine| fill(engine, pages, progress))?;
        // Shares of memory are of the trace's pages.
        dataset.pages = pages;
        Ok(Stage {
            dataset,
            pages: found.into(),
        })
    }

    /// As [`Stage::build`], with a bar.
    ///
    /// # Errors
    /// As [`Stage::build`].
    pub fn built(pages: u32, seed: u64, progress: &Progress) -> Result<Stage> {
        let bar = progress.bar("pages", u64::from(pages));
        let stage = Stage::build(pages, seed, &mut |made| bar.set_position(made));
        bar.finish_and_clear();
        stage
    }

    /// How many runs the machine's memory has room for at a time: each has frames, remote memory and changed files.
    pub fn runs_at_once(&self) -> usize {
        let each = COPIES * self.pages.len() as u64 * PAGE_SIZE as u64;
        let free = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = free.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = free.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map_or(1, |kib| (kib * 1024 / each.max(1)).max(1) as usize)
    }

    /// Runs a trace: all pages are asked for once, but for those that it makes, and then its parts, one after the other.
    /// `progress` hears of each.
    ///
    /// # Errors
    /// [`Error::Simulation`] if the world cannot be set up, or if something in it fails.
    pub fn run(&self, workload: &Arc<Workload>, run: Run, progress: &(dyn Fn() + Sync)) -> Result<Vec<PartMeasured>> {
        let world = world(run.system, 1, self.dataset.scale, run.seed)?;
        let files = self.dataset.files(1);
        world.run(|w| self.control(w, &files, workload, run, progress)).value
    }

    fn control(
        &self,
        w: &World,
        files: &[cenote_testkit::faulty::MemFs],
        workload: &Arc<Workload>,
        run: Run,
        progress: &(dyn Fn() + Sync),
    ) -> Result<Vec<PartMeasured>> {
        let far = Far::new(w, run.system, files, &self.dataset, run.seed)?;
        let mut options = far.options(0);
        options.tuning.brings = run.brings;
        let results: Arc<Mutex<Vec<PartMeasured>>> = Arc::default();
        let (told, workload, pages) = (results.clone(), workload.clone(), self.pages.clone());
        let parts = workload.parts.len();
        let process = w.process(0, "instance", move || {
            instance(&options, (&pages, &workload), run, &told)
        });
        let taken = || results.lock().unwrap_or_else(PoisonError::into_inner).len();
        let mut known = 0;
        while process.is_running() {
            rt::sleep(Nanos::from_millis(50));
            (known..taken()).for_each(|_| progress());
            known = taken();
        }
        let exit = process.join();
        if exit != Exit::Returned || taken() != parts {
            return Err(Error::Simulation(format!("an instance has ended: {exit:?}")));
        }
        (known..parts).for_each(|_| progress());
        Ok(std::mem::take(
            &mut *results.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

/// Rows until the table has so many pages; which they are. `progress` hears of pages.
fn fill(engine: &Arc<Engine>, pages: u32, progress: &mut dyn FnMut(u64)) -> cenote_engine::Result<Vec<PageId>> {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    let table = tx.create_table(definition())?;
    let before = engine.pool_stats().frames_in_use;
    let wanted = before + pages + MORE_PAGES / 2;
    for id in 0.. {
        if id > 0 && id % ROWS_AT_ONCE == 0 {
            tx.commit()?;
            let made = engine.pool_stats().frames_in_use;
            progress(u64::from(made - before));
            if made >= wanted {
                break;
            }
            tx.begin(Isolation::ReadCommitted);
            tx.begin_statement();
        }
        match tx.insert(&table, &row(&table, id))? {
            Insert::Done => {}
            Insert::Duplicate { .. } => return Err(cenote_engine::Error::Corrupt("a new table has rows".into())),
        }
    }
    let is_there = |page: &PageId| engine.buffer().optimistic(*page).is_ok();
    let numbers = (0..wanted + MORE_PAGES).map(|page| PageId::new(table.space, page));
    let found: Vec<PageId> = numbers.filter(is_there).take(pages as usize).collect();
    match found.len() == pages as usize {
        true => Ok(found),
        false => {
            let problem = format!("{} of {pages} pages are there", found.len());
            Err(cenote_engine::Error::Corrupt(problem))
        }
    }
}

fn definition() -> NewTable {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    NewTable {
        name: "pages".into(),
        columns: vec![column("id", ColumnType::Int4), column("text", ColumnType::Text)],
        primary_key: Some(("pages_pkey".into(), vec![0])),
        indexes: Vec::new(),
    }
}

fn row(table: &Table, id: u32) -> Vec<u8> {
    let mut row = Vec::new();
    let values = [Datum::Int4(id as i32), Datum::Text("a".repeat(TEXT_BYTES))];
    table
        .layout()
        .encode(&values, &mut row)
        .expect("values of the table's types");
    row
}

/// The body of the instance's process.
fn instance(
    options: &EngineOptions,
    (pages, workload): (&Arc<[PageId]>, &Arc<Workload>),
    run: Run,
    told: &Mutex<Vec<PartMeasured>>,
) {
    let engine = Engine::open(options.clone()).expect("a copy of a database that was closed in order");
    let made: HashSet<u32> = workload.made.iter().copied().collect();
    for (_, page) in (0..).zip(pages.iter()).filter(|(number, _)| !made.contains(number)) {
        ask(&engine, *page, PageAccess::Read).expect("a page that was there");
    }
    for number in 0..workload.parts.len() {
        let before = counted(&engine);
        let begun = rt::now();
        play(&engine, pages, workload, number, run);
        let time = rt::now().since(begun);
        let after = counted(&engine);
        told.lock().unwrap_or_else(PoisonError::into_inner).push(PartMeasured {
            time,
            hits: after.hits - before.hits,
            misses: after.misses - before.misses,
            remote: after.remote - before.remote,
            stored: after.stored - before.stored,
        });
    }
    engine.halt();
}

fn counted(engine: &Engine) -> PartMeasured {
    let stats = engine.pool_stats();
    PartMeasured {
        time: Nanos::ZERO,
        hits: stats.counts.hits,
        misses: stats.counts.misses,
        remote: stats.remote.map_or(0, |tier| tier.hits),
        stored: stats.bytes_read / PAGE_SIZE as u64,
    }
}

/// All steps of a part, by as many threads as did them, each of which takes the next piece until there is none, and its
/// share of the rest: so they end together, as sessions do that go on.
fn play(engine: &Arc<Engine>, pages: &Arc<[PageId]>, workload: &Arc<Workload>, number: usize, run: Run) {
    let part = &workload.parts[number];
    let pieces = Arc::new(part.pieces(run.one_thread));
    let threads = if run.one_thread { 1 } else { part.threads() };
    let rest = scaled(part.rest, run.processor / threads as f64);
    let next = Arc::new(AtomicUsize::new(0));
    let thread = |_| {
        let (engine, pages, workload) = (engine.clone(), pages.clone(), workload.clone());
        let (pieces, next) = (pieces.clone(), next.clone());
        rt::spawn("traced", move || {
            let player = Player {
                engine: &engine,
                pages: &pages,
                lists: &workload.lists,
                run,
            };
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                player.steps(piece);
            }
            rt::spend(rest);
        })
    };
    let threads: Vec<_> = (0..threads).map(thread).collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
}

fn scaled(time: Nanos, by: f64) -> Nanos {
    Nanos((time.raw() as f64 * by) as u64)
}

struct Player<'a> {
    engine: &'a Engine,
    pages: &'a [PageId],
    lists: &'a [u32],
    run: Run,
}

impl Player<'_> {
    fn steps(&self, steps: &[Step]) {
        let mut steps = steps.iter().peekable();
        while let Some(step) = steps.next() {
            self.compute(step);
            match (step.act, steps.peek().map(|next| next.act)) {
                // A page that its reader latches is not looked for again.
                (Act::Page(page, PageAccess::Read), Some(Act::Page(changed, PageAccess::Write))) if page == changed => {
                    let next = steps.next().expect("it was seen");
                    self.read_and_change(page, next).expect("a page that was there");
                }
                (act, _) => self.act(act).expect("a page that was there"),
            }
        }
    }

    fn compute(&self, step: &Step) {
        rt::spend(scaled(Nanos(u64::from(step.processor)), self.run.processor));
    }

    fn read_and_change(&self, page: u32, change: &Step) -> cenote_base::Result<()> {
        let pool = self.engine.buffer();
        let page = self.pages[page as usize];
        let guard = pool.optimistic(page)?;
        self.compute(change);
        let mut m = pool.mtr();
        let h = match m.upgrade(guard)? {
            Some(h) => h,
            None => m.exclusive(page)?,
        };
        m.write(h, CHANGED_AT, CHANGE);
        m.commit();
        Ok(())
    }

    fn act(&self, act: Act) -> cenote_base::Result<()> {
        match act {
            Act::Compute => Ok(()),
            Act::Page(page, access) => ask(self.engine, self.pages[page as usize], access),
            Act::Pages { from, count, ahead } => {
                let range = from as usize..from as usize + usize::from(count);
                let pages: Vec<PageId> = self.lists[range]
                    .iter()
                    .map(|page| self.pages[*page as usize])
                    .collect();
                let pool = self.engine.buffer();
                // As the walk of a tree asks.
                if ahead {
                    pool.prefetch(&pages);
                } else if pool.misses_lately() {
                    pool.bring(&pages);
                }
                Ok(())
            }
        }
    }
}

/// One access. Of the database nothing is read but by it, so that what a page had is of no importance.
fn ask(engine: &Engine, page: PageId, access: PageAccess) -> cenote_base::Result<()> {
    let pool = engine.buffer();
    let mut m = match access {
        PageAccess::Read => return pool.optimistic(page).map(drop),
        PageAccess::Pass => return pool.optimistic_hint(page, Hint::Scan).map(drop),
        PageAccess::Write | PageAccess::Create => pool.mtr(),
    };
    let h = match access {
        PageAccess::Create => m.create(page, KIND, 0)?,
        _ => m.exclusive(page)?,
    };
    m.write(h, CHANGED_AT, CHANGE);
    m.commit();
    Ok(())
}

#[cfg(test)]
mod tests;
