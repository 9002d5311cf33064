//! Figure 10: a process is killed under load, and started again.
//!
//! 1. An instance opens a filled database, reads all of it, and serves 48 sessions at a rate that all three systems can
//!    keep up, so that redo and dirty pages are the same for all.
//! 2. It is killed. Its files stay as they are; memory behind the switch, or at the memory node, stays too.
//! 3. A new process opens the database (that is recovery) and serves the same load (that is warming up).
//!
//! Processor time of recovery itself is not charged, only its memory accesses, transfers and reads of storage:
//! replaying a record takes one to two microseconds of real time, which would lengthen the two that replay.

use super::chart::{Chart, Panel, Series};
use super::cost::Costs;
use super::judge::{Claim, Kind, Paper};
use super::mix::Mix;
use super::options::{Options, Progress};
use super::paper;
use super::pod::{self, Dataset, Far, System, VCPUS};
use super::report::{Figure, Table};
use super::workload::{Client, Session, Tables};
use crate::{Error, Result};
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, EngineOptions, RecoveryReport};
use cenote_sim::{Process, World};
use cenote_testkit::faulty::{DriveCounters, MemFs};
use std::sync::{Arc, Mutex, PoisonError};

const SYSTEMS: [System; 3] = [System::Cxl, System::Tiered(0.3), System::Vanilla(1.0)];
const MIXES: [Mix; 3] = [Mix::ReadOnly, Mix::ReadWrite, Mix::WriteOnly];
const SESSIONS: usize = 48;
/// Load, as a share of what 16 vCPUs can do.
const PRESSURE: f64 = 0.6;
/// Statements are counted in buckets of so long: what takes less than one of them to warm up counts as one.
const BUCKET: Nanos = Nanos::from_micros(250);
/// The rate is taken over so many buckets: some 200 statements.
const OVER: usize = 8;
/// Buckets of a point of a plot.
const DRAWN: usize = 8;

/// What a crash came to.
#[derive(Debug, Clone, Default)]
pub struct Crash {
    /// Statements a second before.
    pub qps_before: f64,
    /// (milliseconds from the kill, statements a second).
    pub course: Vec<(f64, f64)>,
    /// From the kill to a database that takes statements, milliseconds.
    pub recovery_ms: f64,
    /// From there to 90% of the rate of before, milliseconds; at least one bucket.
    pub warm_ms: f64,
    /// Redo written since the database was opened, MiB.
    pub redo_mib: f64,
    /// What recovery says.
    pub report: RecoveryReport,
    /// What storage read and wrote in recovery: operations and bytes of both, syncs.
    pub storage: DriveCounters,
}

/// What is run.
pub(super) struct Plan {
    pub system: System,
    pub mix: Mix,
    pub before: Nanos,
    pub after: Nanos,
}

/// What processes and controller tell each other; not part of any simulated memory.
#[derive(Default)]
pub(super) struct Told {
    counts: Vec<u32>,
    pub ready_at: Option<Nanos>,
    pub open_at: Option<Nanos>,
    report: RecoveryReport,
    pub redo: u64,
    /// Processes that have served, and how many of them are to stop in order: the first ones.
    served: u32,
    pub stops: u32,
    /// Transactions under way.
    busy: u32,
    /// One has stopped.
    pub is_down: bool,
}

impl Told {
    /// Whether a transaction of that process may begin; then it is under way.
    fn begins(&mut self, number: u32) -> bool {
        let may = self.stops < number;
        self.busy += u32::from(may);
        may
    }
}

pub(super) type Shared = Arc<Mutex<Told>>;

pub(super) fn told<T>(shared: &Shared, f: impl FnOnce(&mut Told) -> T) -> T {
    f(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Counts a statement in its bucket.
struct Counter {
    shared: Shared,
}

impl Client for Counter {
    fn round_trip(&mut self, _bytes: u64) {}

    fn done(&mut self, _latency: Nanos) {
        let bucket = (rt::now().raw() / BUCKET.raw()) as usize;
        told(&self.shared, |t| {
            if t.counts.len() <= bucket {
                t.counts.resize(bucket + 1, 0);
            }
            t.counts[bucket] += 1;
        });
    }
}

/// Processor time of one transaction.
fn transaction_cost(mix: Mix, costs: &Costs) -> Nanos {
    let reads = 10 * costs.point.raw() + 4 * costs.range.raw();
    let writes = 2 * costs.update.raw() + costs.delete.raw() + costs.insert.raw();
    let frame = costs.begin.raw() + costs.commit.raw();
    Nanos(match mix {
        Mix::PointSelect => costs.point.raw(),
        Mix::RangeSelect => costs.range.raw(),
        Mix::ReadOnly => frame + reads,
        Mix::ReadWrite => frame + reads + writes,
        Mix::WriteOnly => frame + writes,
    })
}

/// Each session begins a transaction so often, if it can.
fn interval(mix: Mix, costs: &Costs) -> Nanos {
    let a_second = f64::from(VCPUS) / transaction_cost(mix, costs).as_secs_f64() * PRESSURE;
    Nanos((SESSIONS as f64 / a_second * 1e9) as u64)
}

/// A process: opens, says so, serves until it is killed or told to stop.
pub(super) fn serve(mix: Mix, options: &EngineOptions, scale: pod::Scale, shared: &Shared, warm: bool) {
    let engine = Engine::open(options.clone()).expect("what a kill leaves can be opened");
    serve_over(mix, &engine, scale, shared, warm);
}

/// The same, over an engine that is open.
pub(super) fn serve_over(mix: Mix, engine: &Arc<Engine>, scale: pod::Scale, shared: &Shared, warm: bool) {
    let number = told(shared, |t| {
        t.open_at = Some(rt::now());
        t.report = engine.recovery_report();
        t.served += 1;
        t.served
    });
    let tables = Arc::new(Tables::open(engine, scale.tables, scale.rows).expect("its tables"));
    if warm {
        tables.warm_up(engine).expect("readable");
    }
    told(shared, |t| t.ready_at = Some(rt::now()));
    let costs = Arc::new(Costs::paper());
    let every = interval(mix, &costs);
    let session = |i: usize| {
        let (engine, tables, costs, shared) = (engine.clone(), tables.clone(), costs.clone(), shared.clone());
        let client = Counter { shared: shared.clone() };
        rt::spawn(&format!("session{i}"), move || {
            let mut session = Session::new(&engine, &tables, &costs, client);
            let mut next = rt::now() + Nanos(every.raw() * i as u64 / SESSIONS as u64);
            rt::sleep(next.since(rt::now()));
            while told(&shared, |t| t.begins(number)) {
                session.transaction(mix).expect("nothing fails here");
                told(&shared, |t| t.busy -= 1);
                next = (next + every).max(rt::now());
                rt::sleep(next.since(rt::now()));
            }
        })
    };
    let sessions: Vec<_> = (0..SESSIONS).map(session).collect();
    let opened_at = engine.buffer().storage().log().tail().raw();
    while told(shared, |t| t.stops < number) {
        let tail = engine.buffer().storage().log().tail().raw();
        told(shared, |t| t.redo = tail - opened_at);
        rt::sleep(Nanos::from_millis(1));
    }
    while told(shared, |t| t.busy > 0) {
        rt::sleep(Nanos::from_micros(20));
    }
    engine.shutdown().expect("it stops in order");
    told(shared, |t| t.is_down = true);
    for session in sessions {
        session.join().expect("no session panics");
    }
}

impl Plan {
    /// Runs it in a world of one instance.
    pub(super) fn run(self, dataset: &Dataset, seed: u64) -> Result<Crash> {
        let world = pod::world(self.system, 1, dataset.scale, seed)?;
        let plan = Arc::new(self);
        let files = dataset.files(1);
        world.run(|w| plan.control(w, &files, dataset, seed)).value
    }

    /// The thread outside: starts, kills, starts again.
    fn control(self: &Arc<Plan>, w: &World, files: &[MemFs], dataset: &Dataset, seed: u64) -> Result<Crash> {
        let shared = Shared::default();
        let far = Far::new(w, self.system, files, dataset, seed)?;
        let start = |warm: bool| {
            let (mix, shared, options, scale) = (self.mix, shared.clone(), far.options(0), dataset.scale);
            w.process(0, "instance", move || serve(mix, &options, scale, &shared, warm))
        };
        let first = start(true);
        let began = until_ready(&first, &shared)?;
        rt::sleep((began + self.before).since(rt::now()));
        first.kill();
        let killed = rt::now();
        let redo = told(&shared, |t| {
            (t.ready_at, t.open_at) = (None, None);
            t.redo
        });
        let before = far.drive();
        let second = start(false);
        until_ready(&second, &shared)?;
        let storage = since(far.drive(), before);
        rt::sleep((killed + self.after).since(rt::now()));
        second.kill();
        Ok(told(&shared, |t| t.crash(began, killed, redo, storage)))
    }
}

impl Told {
    /// What came of a process that was ended at `killed` and another.
    pub(super) fn crash(&self, began: Nanos, killed: Nanos, redo: u64, storage: DriveCounters) -> Crash {
        let a_second = |count: u32| f64::from(count) / BUCKET.as_secs_f64();
        let at = |i: usize| (i as f64 * BUCKET.raw() as f64 - killed.raw() as f64) / 1e6;
        let first = (began.raw() / BUCKET.raw()) as usize;
        let killed_in = (killed.raw() / BUCKET.raw()) as usize;
        // The second half of the load before the kill is steady.
        let steady = &self.counts[(first + killed_in) / 2..killed_in];
        let before = a_second(steady.iter().sum()) / steady.len().max(1) as f64;
        let rate = |from: usize, buckets: usize| {
            let some = &self.counts[from..(from + buckets).min(self.counts.len())];
            a_second(some.iter().sum()) / some.len() as f64
        };
        let drawn = (first..self.counts.len().saturating_sub(DRAWN)).step_by(DRAWN);
        let course: Vec<(f64, f64)> = drawn.map(|i| (at(i), rate(i, DRAWN))).collect();
        let open = self.open_at.map_or(usize::MAX, |t| (t.raw() / BUCKET.raw()) as usize);
        let warm = (open..self.counts.len()).find(|i| rate(*i, OVER) >= 0.9 * before);
        let bucket = BUCKET.as_secs_f64() * 1e3;
        let since = |t: Nanos| t.since(killed).as_secs_f64() * 1e3;
        Crash {
            qps_before: before,
            course,
            recovery_ms: self.open_at.map_or(f64::NAN, since),
            warm_ms: warm.map_or(f64::NAN, |i| (i - open + 1) as f64 * bucket),
            redo_mib: redo as f64 / f64::from(1 << 20),
            report: self.report.clone(),
            storage,
        }
    }
}

pub(super) fn since(now: DriveCounters, before: DriveCounters) -> DriveCounters {
    DriveCounters {
        reads: now.reads - before.reads,
        bytes_read: now.bytes_read - before.bytes_read,
        writes: now.writes - before.writes,
        bytes_written: now.bytes_written - before.bytes_written,
        syncs: now.syncs - before.syncs,
        busy: now.busy - before.busy,
    }
}

/// Waits until a process serves; when it began to.
pub(super) fn until_ready(process: &Process, shared: &Shared) -> Result<Nanos> {
    loop {
        if let Some(at) = told(shared, |t| t.ready_at) {
            return Ok(at);
        }
        if !process.is_running() {
            return Err(Error::Simulation(format!(
                "an instance has ended: {:?}",
                process.join()
            )));
        }
        rt::sleep(Nanos::from_micros(20));
    }
}

/// Milliseconds of load before the kill.
fn lengths(quick: bool) -> &'static [u64] {
    if quick { &[60] } else { &[250, 500, 1000, 2000] }
}

/// Runs all and draws it.
///
/// # Errors
/// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig10(options: &Options, dataset: &Dataset, progress: &Progress) -> Result<Figure> {
    let mut cases = Vec::new();
    for mix in MIXES {
        for system in SYSTEMS {
            // Nothing is written in read-only, so its length does not matter.
            let some = if mix == Mix::ReadOnly {
                &lengths(options.quick)[..1]
            } else {
                lengths(options.quick)
            };
            cases.extend(some.iter().map(|l| (mix, system, *l)));
        }
    }
    let bar = progress.bar("crashes", cases.len() as u64);
    let crashes = super::options::parallel(&cases, |(mix, system, length)| {
        let plan = Plan {
            system: *system,
            mix: *mix,
            before: Nanos::from_millis(*length),
            after: Nanos::from_millis(if options.quick { 160 } else { 500 }),
        };
        let crash = plan.run(dataset, options.seed);
        bar.inc(1);
        crash
    });
    bar.finish_and_clear();
    let crashes: Vec<Crash> = crashes.into_iter().collect::<Result<_>>()?;
    let all: Vec<Case> = cases
        .into_iter()
        .zip(crashes)
        .map(|((mix, system, length), crash)| Case {
            mix,
            system,
            length,
            crash,
        })
        .collect();
    Ok(figure(&all))
}

/// A crash and what it was of.
struct Case {
    mix: Mix,
    system: System,
    length: u64,
    crash: Crash,
}

fn label(system: System) -> &'static str {
    match system {
        System::Cxl => "instant (CXL)",
        System::Tiered(_) => "tiered (RDMA)",
        _ => "vanilla",
    }
}

/// The case of a system under a mix with the longest load.
fn longest(all: &[Case], mix: Mix, system: System) -> &Case {
    let of = all.iter().filter(|c| c.mix == mix && c.system == system);
    of.max_by_key(|c| c.length).expect("each was run")
}

fn figure(all: &[Case]) -> Figure {
    let mut panels: Vec<Panel> = MIXES.iter().map(|m| course(all, *m)).collect();
    panels.extend([Mix::ReadWrite, Mix::WriteOnly].map(|m| against_redo(all, m)));
    Figure {
        name: "fig10",
        title: "a crash under load: recovery and warm-up".into(),
        how: format!(
            "One instance of 16 vCPUs, {SESSIONS} sessions at {:.0}% of what the processors can do, all pages read \
             before. The process is killed and started at once. instant: frames in CXL memory, found again. tiered: \
             30% in local frames, remote memory kept. vanilla: frames in DRAM, pages and redo from storage. Equal \
             load, so equal redo and equally many changed pages. Warm-up is from the open database to 90% of the rate \
             before, in steps of {} us; what takes less counts as one step.",
            PRESSURE * 100.0,
            BUCKET.raw() / 1000
        ),
        profiles: "cxl-switch, rdma, dram, storage".into(),
        tables: vec![table(all), slopes(all)],
        chart: Some(Chart {
            title: "Figure 10, simulated (profiles cxl-switch, rdma, dram, storage)".into(),
            panels,
        }),
        claims: claims(all),
    }
}

fn course(all: &[Case], mix: Mix) -> Panel {
    let line = |system: System| Series {
        name: label(system).into(),
        points: longest(all, mix, system)
            .crash
            .course
            .iter()
            .map(|p| (p.0, p.1 / 1e3))
            .filter(|p| p.0 >= -60.0)
            .map(|p| (p.0 + 60.0, p.1))
            .collect(),
        paper: false,
    };
    Panel {
        title: format!("{}: killed at 60 ms", mix.name()),
        x: "milliseconds".into(),
        y: "thousand queries/s".into(),
        series: SYSTEMS.map(line).into(),
        marks: false,
    }
}

fn against_redo(all: &[Case], mix: Mix) -> Panel {
    let line = |system: System| Series {
        name: label(system).into(),
        points: all
            .iter()
            .filter(|c| c.mix == mix && c.system == system)
            .map(|c| (c.crash.redo_mib, c.crash.recovery_ms))
            .collect(),
        paper: false,
    };
    Panel {
        title: format!("{}: recovery by redo volume", mix.name()),
        x: "redo before the crash, MiB".into(),
        y: "milliseconds".into(),
        series: SYSTEMS.map(line).into(),
        marks: true,
    }
}

/// What recovery takes for each MiB of redo, beyond what it takes for none: from no load that writes to the longest.
fn slope(all: &[Case], mix: Mix, system: System) -> f64 {
    beyond_none(all, mix, system) / longest(all, mix, system).crash.redo_mib
}

fn slopes(all: &[Case]) -> Table {
    let mut table = Table::new(
        "Milliseconds of recovery for each MiB of redo, beyond those for none",
        &[
            "mix",
            "instant (CXL)",
            "tiered (RDMA)",
            "vanilla",
            "tiered to instant",
            "vanilla to instant",
        ],
    );
    for mix in [Mix::ReadWrite, Mix::WriteOnly] {
        let [instant, tiered, vanilla] = SYSTEMS.map(|s| slope(all, mix, s));
        let mut row = vec![mix.name().to_string()];
        row.extend([instant, tiered, vanilla].map(|v| format!("{v:.3}")));
        row.extend([tiered, vanilla].map(|v| format!("{:.0}", v / instant)));
        table.rows.push(row);
    }
    table
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn table(all: &[Case]) -> Table {
    let mut table = Table::new(
        "Crashes",
        &[
            "mix",
            "system",
            "load ms",
            "kQPS before",
            "redo MiB",
            "recovery ms",
            "then to 90% ms",
            "mode",
            "pages repaired",
            "redo read MiB",
            "storage reads",
            "MiB",
            "storage writes",
            "MiB",
            "syncs",
        ],
    );
    for Case {
        mix,
        system,
        length,
        crash,
    } in all
    {
        table.rows.push(vec![
            mix.name().into(),
            label(*system).into(),
            length.to_string(),
            format!("{:.0}", crash.qps_before / 1e3),
            format!("{:.1}", crash.redo_mib),
            format!("{:.2}", crash.recovery_ms),
            if crash.warm_ms.is_nan() {
                "not yet".into()
            } else {
                format!("{:.2}", crash.warm_ms)
            },
            crash.report.mode.clone(),
            crash.report.frames_repaired.to_string(),
            mib(crash.report.redo_bytes_read),
            crash.storage.reads.to_string(),
            mib(crash.storage.bytes_read),
            crash.storage.writes.to_string(),
            mib(crash.storage.bytes_written),
            crash.storage.syncs.to_string(),
        ]);
    }
    table
}

/// What the two that replay take, to what instant recovery takes: of warming up in read-only, of recovery at each
/// length of load else; and of what recovery takes beyond that of a database to which nothing was written, since a
/// start has parts that are the same however much there is.
fn claims(all: &[Case]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (mix, paper, why) in MIXES
        .iter()
        .zip(paper::FIG_10)
        .zip(super::why::RECOVERIES)
        .map(|((m, p), w)| (*m, p, w))
    {
        let mut of_mix: Vec<u64> = all.iter().filter(|c| c.mix == mix).map(|c| c.length).collect();
        of_mix.sort_unstable();
        of_mix.dedup();
        for (j, system) in [(1, SYSTEMS[1]), (2, SYSTEMS[2])] {
            let paper = Paper::About(paper[j] / paper[0]);
            let ratio = |what: String, time: &dyn Fn(System) -> f64| Claim {
                what: format!("{}, {what}: {} to instant", mix.name(), label(system)),
                paper,
                ours: (time(system) / time(System::Cxl)).into(),
                kind: Kind::More,
                decimals: 2,
                why,
            };
            if mix == Mix::ReadOnly {
                claims.push(ratio("warm-up".into(), &|s| longest(all, mix, s).crash.warm_ms));
                // With nothing to redo the paper's three start alike, within 2 s; ours do not.
                let start = ratio("start with no redo".into(), &|s| longest(all, mix, s).crash.recovery_ms);
                claims.push(Claim {
                    paper: Paper::About(1.0),
                    kind: Kind::Result,
                    ..start
                });
                continue;
            }
            let at = |length: u64| move |s| case(all, mix, s, length).crash.recovery_ms;
            claims.extend(
                of_mix
                    .iter()
                    .map(|l| ratio(format!("{l} ms of load, recovery"), &at(*l))),
            );
            let what = "recovery beyond that for no redo, most load".into();
            claims.push(ratio(what, &|s| beyond_none(all, mix, s)));
        }
    }
    claims
}

/// The case of a system under a mix with a length of load.
fn case(all: &[Case], mix: Mix, system: System, length: u64) -> &Case {
    let found = all
        .iter()
        .find(|c| (c.mix, c.system, c.length) == (mix, system, length));
    found.expect("each was run")
}

/// Milliseconds of recovery after the longest load, less those after a load that wrote nothing.
fn beyond_none(all: &[Case], mix: Mix, system: System) -> f64 {
    let recovery = |mix| longest(all, mix, system).crash.recovery_ms;
    recovery(mix) - recovery(Mix::ReadOnly)
}
