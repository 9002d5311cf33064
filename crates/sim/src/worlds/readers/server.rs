//! The server: it changes the database until it is killed, or the world is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Change, Engine, Error, Insert, Isolation, Outcome, Result, Tx};

use super::carried;
use super::stage::Stage;
use super::table::{CLOCK, IDS, OTHERS, key_of, new_index, new_table, row_of, rows_of};
use crate::clock;

/// Between two looks whether the world is over.
const TURN: Nanos = Nanos::from_millis(5);
/// Between two turns of the thread that looks after remote memory.
const REMOTE_TURN: Nanos = Nanos::from_millis(20);

/// The body of its process.
pub(super) fn run(stage: &Arc<Stage>, host: usize, number: u64) {
    let options = stage.engine_options(host, number, false);
    run_over(stage, number, clock::now(), || options.and_then(Engine::open));
}

/// The body of a process that was a reader; it has taken the database at `begun`.
pub(super) fn promoted(stage: &Arc<Stage>, number: u64, begun: Nanos, open: impl FnOnce() -> Result<Arc<Engine>>) {
    run_over(stage, number, begun, || {
        let engine = open()?;
        let kept = engine.recovery_report().frames_kept;
        stage.shared.add("frames kept at promotions", kept);
        Ok(engine)
    });
}

fn run_over(stage: &Arc<Stage>, number: u64, begun: Nanos, open: impl FnOnce() -> Result<Arc<Engine>>) {
    stage.shared.step(format!("server {number} begins"));
    match open().and_then(|engine| serve(stage, engine)) {
        Ok(()) => {}
        // Another server has the database, or storage does not answer.
        Err(error @ (Error::Poisoned(_) | Error::Io(_) | Error::OutcomeUnknown(_))) if stage.is_excused(begun) => {
            stage
                .shared
                .step(format!("server {number} has ended: {} {error}", error.sqlstate()));
        }
        Err(error) => stage.fail(format!("server {number}: {} {error}", error.sqlstate())),
    }
}

fn serve(stage: &Arc<Stage>, engine: Arc<Engine>) -> Result<()> {
    stage.shared.count("starts of servers");
    let mut server = Server {
        stage,
        tx: engine.tx(),
        draw: Random(rt::random()),
        rows: BTreeMap::new(),
    };
    server.prepare()?;
    let (other, definer) = (stage.clone(), engine.clone());
    let defines = rt::spawn("definer", move || define(&other, &definer, rt::random()));
    let (other, tended, ends) = (stage.clone(), engine.clone(), Arc::new(AtomicBool::new(false)));
    let (looking, reads, its_end) = (stage.clone(), engine.clone(), ends.clone());
    let carries = rt::spawn("carried", move || carried::look_on(&looking, &reads, &its_end));
    let its_end = ends.clone();
    let tends = rt::spawn("remote", move || tend_remote(&other, &tended, &its_end));
    let worked = server.work();
    let rested = match worked {
        Ok(()) => server.rest(),
        failed => failed,
    };
    drop(server);
    ends.store(true, SeqCst);
    let counts = engine.buffer().stats().counts;
    let add = |what, pages| stage.shared.add(what, pages);
    add(
        "pages that readers had asked for, to remote memory",
        counts.pages_filled,
    );
    add("pages that frames alone had, to remote memory", counts.pages_registered);
    for beside in [defines, tends, carries] {
        if let Err(panic) = beside.join() {
            std::panic::resume_unwind(panic);
        }
    }
    rested?;
    if stage.is_over() {
        check(stage, &engine)?;
    }
    engine.shutdown()
}

/// The engine's own check. What a killed server was writing may have left a slot half written whose former name stands,
/// and bits are flipped: reads find out, and do no harm.
fn check(stage: &Stage, engine: &Arc<Engine>) -> Result<()> {
    let mut report = engine.check()?;
    stage.shared.count("checks");
    report.problems.retain(|problem| !problem.contains("remote memory:"));
    if !report.problems.is_empty() {
        stage.fail(format!("check: {:#?}", report.problems));
    }
    Ok(())
}

/// Gives remote memory another size now and then, and fills it with what readers ask for.
fn tend_remote(stage: &Arc<Stage>, engine: &Engine, ends: &AtomicBool) {
    let Some(far) = &stage.far else { return };
    while !stage.is_over() && !ends.load(SeqCst) {
        rt::sleep(REMOTE_TURN);
        // Nodes that do not answer are the world's doing.
        let _ = engine.buffer().fill_remote();
        if far.growth().is_none() {
            continue;
        }
        let draw = rt::random();
        if draw.is_multiple_of(3) && engine.set_remote_size(far.draw_size(draw / 3)).is_err() {
            stage.fail("remote memory has no such size".into());
        }
        engine.buffer().scale_remote();
    }
}

struct Server<'s> {
    stage: &'s Arc<Stage>,
    tx: Tx,
    draw: Random,
    /// The first table's rows.
    rows: BTreeMap<i32, i32>,
}

impl Server<'_> {
    fn prepare(&mut self) -> Result<()> {
        self.tx.begin(Isolation::ReadCommitted);
        self.tx.begin_statement();
        if self.tx.table("t")?.is_none() {
            let table = self.tx.create_table(new_table("t"))?;
            for id in (CLOCK..=IDS).filter(|id| *id == CLOCK || id % 2 == 1) {
                let n = if id == CLOCK { 1 } else { 100 };
                self.tx.insert(&table, &row_of(&table, id, n)?)?;
            }
        }
        self.tx.commit()?;
        self.tx.begin(Isolation::ReadCommitted);
        self.tx.begin_statement();
        let table = self.tx.table("t")?.ok_or_else(|| Error::Internal("no table".into()))?;
        self.rows = rows_of(self.tx.reader(), &table, None)?;
        self.tx.commit()
    }

    fn work(&mut self) -> Result<()> {
        while !self.stage.is_over() && !self.stage.rests() {
            if self.stage.is_still() {
                rt::sleep(TURN);
                continue;
            }
            let before = self.rows.clone();
            match self.step() {
                Ok(()) => {}
                Err(error @ (Error::StaleTable(_) | Error::LockNotAvailable(_) | Error::Deadlock(_))) => {
                    let _ = error;
                    self.rows = before;
                    self.tx.rollback()?;
                }
                Err(error) => return Err(error),
            }
            let rests = self.draw.pick(&[200, 1_000, 6_000]);
            rt::sleep(Nanos::from_micros(self.draw.below(rests + 1)));
        }
        Ok(())
    }

    /// One step of the clock, and amounts that move.
    fn step(&mut self) -> Result<()> {
        self.tx.begin(Isolation::ReadCommitted);
        self.tx.begin_statement();
        let table = self.tx.table("t")?.ok_or_else(|| Error::Internal("no table".into()))?;
        let before = self.rows.clone();
        let clock = self.rows.get(&CLOCK).copied().unwrap_or(0) + 1;
        self.set(&table, CLOCK, Some(clock))?;
        for _ in 0..1 + self.draw.below(4) {
            self.move_some(&table)?;
        }
        if self.draw.one_in(5) {
            self.rows = before;
            return self.tx.rollback();
        }
        self.tx.commit()?;
        self.stage.note_acknowledged(clock);
        Ok(())
    }

    fn move_some(&mut self, table: &cenote_engine::Table) -> Result<()> {
        let ids: Vec<i32> = self.rows.keys().copied().filter(|id| *id != CLOCK).collect();
        let from = self.draw.pick(&ids);
        let to = 1 + self.draw.below(IDS as u64) as i32;
        if from == to {
            return Ok(());
        }
        let (has, gets) = (self.rows[&from], self.rows.get(&to).copied());
        let amount = self.draw.pick(&[1, 7, has]);
        self.tx.begin_statement();
        // A row that has nothing left is deleted.
        self.set(table, from, Some(has - amount).filter(|left| *left != 0))?;
        let sum = gets.unwrap_or(0) + amount;
        self.set(table, to, Some(sum).filter(|sum| *sum != 0))
    }

    fn set(&mut self, table: &cenote_engine::Table, id: i32, n: Option<i32>) -> Result<()> {
        let was = match n {
            None => self.rows.remove(&id),
            Some(n) => self.rows.insert(id, n),
        };
        match (was, n) {
            (None, None) => Ok(()),
            (None, Some(n)) => match self.tx.insert(table, &row_of(table, id, n)?)? {
                Insert::Done => Ok(()),
                _ => Err(Error::Internal(format!("row {id} is there and should not be"))),
            },
            (Some(_), n) => {
                let new = n.map(|n| row_of(table, id, n)).transpose()?;
                let decide = &mut |_: &[u8], _| {
                    Ok::<_, Error>(match &new {
                        Some(row) => Change::Update(row.clone()),
                        None => Change::Delete,
                    })
                };
                match self.tx.modify(table, &key_of(table, id), decide)? {
                    Outcome::Done => Ok(()),
                    _ => Err(Error::Internal(format!("row {id} is gone and should not be"))),
                }
            }
        }
    }

    /// Nothing changes any more; the rows are told.
    fn rest(&mut self) -> Result<()> {
        if self.stage.rests() {
            self.stage.set_last(self.rows.clone());
        }
        while !self.stage.is_over() {
            rt::sleep(TURN);
        }
        Ok(())
    }
}

/// Empties, drops and makes the second table; makes and drops an index of the first.
fn define(stage: &Arc<Stage>, engine: &Arc<Engine>, seed: u64) {
    let (mut draw, mut tx, mut generation) = (Random(seed), engine.tx(), (seed % 1000) as i32);
    while !stage.is_over() && !stage.rests() {
        let begun = clock::now();
        rt::sleep(Nanos::from_micros(draw.below(200_000)));
        generation += 1;
        match define_one(&mut tx, &mut draw, generation) {
            Ok(what) => {
                stage.shared.count("definitions");
                stage.shared.step(format!(
                    "{what}, committed at {}",
                    tx.committed_at().load(std::sync::atomic::Ordering::Relaxed)
                ));
            }
            // Numbers of spaces are few in some worlds, and a snapshot keeps former ones from being used again.
            Err(Error::LockNotAvailable(_) | Error::StaleTable(_) | Error::Deadlock(_) | Error::Limit(_)) => {
                let _ = tx.rollback();
            }
            Err(_) if stage.is_excused(begun) => return,
            Err(error) => return stage.fail(format!("a definition: {} {error}", error.sqlstate())),
        }
    }
}

fn define_one(tx: &mut Tx, draw: &mut Random, generation: i32) -> Result<String> {
    tx.begin(Isolation::ReadCommitted);
    tx.begin_statement();
    tx.set_lock_timeout(50);
    let what = match (draw.below(4), tx.table("s")?) {
        (0, _) => {
            let table = tx.table("t")?.ok_or_else(|| Error::Internal("no table".into()))?;
            match table.index_named("t_extra") {
                None => {
                    let t = tx.create_index(&table, new_index("t_extra"))?;
                    format!("index made in space {}, version {}", t.indexes[1].space, t.version)
                }
                Some(index) => {
                    let t = tx.drop_index(&table, index)?;
                    format!(
                        "index dropped in space {}, version {}",
                        table.indexes[1].space, t.version
                    )
                }
            }
        }
        (1, Some(table)) => {
            tx.drop_table(&table)?;
            "table dropped".to_string()
        }
        (_, Some(table)) => {
            tx.truncate(&table)?;
            let table = tx.table("s")?.ok_or_else(|| Error::Internal("no table".into()))?;
            fill(tx, &table, generation)?;
            "table emptied".to_string()
        }
        (_, None) => {
            let table = tx.create_table(new_table("s"))?;
            fill(tx, &table, generation)?;
            "table made".to_string()
        }
    };
    match draw.one_in(5) {
        true => tx.rollback().map(|()| format!("taken back: {what}")),
        false => tx.commit().map(|()| what),
    }
}

fn fill(tx: &mut Tx, table: &cenote_engine::Table, generation: i32) -> Result<()> {
    (0..OTHERS).try_for_each(|id| tx.insert(table, &row_of(table, id, generation)?).map(drop))
}
