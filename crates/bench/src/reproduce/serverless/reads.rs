//! Figure 14, its optimistic half: reads of a server and of a reader, by the number of client threads.
//!
//! Half of the clients send sysbench's read-write to the server that has the database, the other half the reads alone
//! to a reader: a proxy that balances reads. The reader takes no latch that another server knows of; it validates what
//! it has read (`docs/readers.md`). The paper's other half, latches over RDMA, does not exist here.

use super::super::chart::{Chart, Panel};
use super::super::cost::Costs;
use super::super::judge::{Claim, Kind, Paper};
use super::super::mix::Mix;
use super::super::options::{self, Options, Progress};
use super::super::pod::CLIENT_TURN;
use super::super::pooling;
use super::super::report::{Figure, Table};
use super::super::workload::{Client, Pick, Session, Tables};
use super::cluster::{self, Cluster, Memory, OnNodes, Redo, SERVERS};
use super::{paper, why};
use crate::{Error, Result};
use cenote_base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, EngineOptions};
use cenote_sim::{Exit, Process, World};
use cenote_testkit::faulty::MemFs;
use std::sync::Arc;

/// Share of the pages that the local memory of each has.
const LOCAL: f64 = 0.3;
const PICKS: [Pick; 2] = [Pick::Uniform, Pick::Special];
/// What clients of the server send, and of the reader; statements of a transaction, and the reads among them.
const MIXES: [(Mix, f64, f64); 2] = [(Mix::ReadWrite, 20.0, 14.0), (Mix::ReadOnly, 16.0, 14.0)];
/// How often processes look whether it goes on.
const LOOK: Nanos = Nanos::from_micros(200);

/// Client threads of both.
fn threads(quick: bool) -> &'static [usize] {
    if quick { &[32, 128] } else { &[32, 64, 96, 128] }
}

/// Milliseconds before counting, and counted.
fn times(quick: bool) -> [u64; 2] {
    if quick { [20, 30] } else { [40, 80] }
}

/// A number of client threads and which rows they ask for.
#[derive(Clone, Copy)]
struct Case {
    threads: usize,
    pick: Pick,
    settle: Nanos,
    window: Nanos,
}

/// Reads a second: of the server, and of the reader.
type Reads = [f64; 2];

/// Runs all and draws it.
///
/// # Errors
/// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig14(options: &Options, database: &OnNodes, progress: &Progress) -> Result<Figure> {
    let [settle, window] = times(options.quick).map(Nanos::from_millis);
    let of_pick = |pick: Pick| {
        threads(options.quick).iter().map(move |threads| Case {
            threads: *threads,
            pick,
            settle,
            window,
        })
    };
    let cases: Vec<Case> = PICKS.into_iter().flat_map(of_pick).collect();
    let bar = progress.bar("readers", cases.len() as u64);
    let reads = options::parallel(&cases, |case| {
        let (files, world) = (database.files(), cluster::world(database.scale, options.seed)?);
        let reads = world.run(|w| run(w, *case, database, &files, options.seed)).value;
        bar.inc(1);
        reads
    });
    bar.finish_and_clear();
    let reads: Vec<Reads> = reads.into_iter().collect::<Result<_>>()?;
    Ok(figure(threads(options.quick), &reads))
}

/// What servers and controller share; not part of any simulated memory.
#[derive(Default)]
struct Shared {
    ready: AtomicU64,
    /// When counting begins; zero: not told yet.
    begin: AtomicU64,
    /// Statements in the window, of each.
    counts: [AtomicU64; 2],
}

/// The thread outside.
fn run(w: &World, case: Case, database: &OnNodes, files: &[MemFs], seed: u64) -> Result<Reads> {
    let (cluster, shared) = (
        Cluster::start(w, files, seed, (Redo::Scaled, Some(database.pages)))?,
        Arc::new(Shared::default()),
    );
    let frames = (f64::from(database.pages) * LOCAL) as u32;
    let options = [
        cluster.options(SERVERS[0], Memory::Remote(frames)),
        cluster.reader_options(SERVERS[1], frames)?,
    ];
    let mut processes: Vec<Process> = Vec::new();
    for (me, options) in options.into_iter().enumerate() {
        let (its, scale) = (shared.clone(), database.scale);
        let body = move || serve(me, &options, (scale.tables, scale.rows), case, &its);
        processes.push(w.process(SERVERS[me], "server", body));
        wait_for(&processes, &shared)?;
    }
    shared.begin.store((rt::now() + case.settle).raw(), SeqCst);
    for process in &processes {
        match process.join() {
            Exit::Returned => {}
            exit => return Err(Error::Simulation(format!("a server has ended: {exit:?}"))),
        }
    }
    cluster.stop()?;
    let reads = |me: usize| {
        let (_, statements, reads) = MIXES[me];
        shared.counts[me].load(SeqCst) as f64 / case.window.as_secs_f64() * reads / statements
    };
    Ok([reads(0), reads(1)])
}

/// Until all of these are ready.
fn wait_for(processes: &[Process], shared: &Shared) -> Result<()> {
    while shared.ready.load(SeqCst) < processes.len() as u64 {
        if let Some(ended) = processes.iter().find(|p| !p.is_running()) {
            return Err(Error::Simulation(format!("a server has ended: {:?}", ended.join())));
        }
        rt::sleep(LOOK);
    }
    Ok(())
}

/// The body of the server (0) or of the reader (1).
fn serve(me: usize, options: &EngineOptions, (tables, rows): (u32, i32), case: Case, shared: &Arc<Shared>) {
    let engine = Engine::open(options.clone()).expect("the database is there");
    let tables = Arc::new(Tables::open(&engine, tables, rows).expect("its tables"));
    tables.warm_up(&engine).expect("readable");
    shared.ready.fetch_add(1, SeqCst);
    while shared.begin.load(SeqCst) == 0 {
        rt::sleep(LOOK);
    }
    let begin = Nanos(shared.begin.load(SeqCst));
    let session = |i: usize| {
        let (engine, tables, shared) = (engine.clone(), tables.clone(), shared.clone());
        rt::spawn(&format!("session{i}"), move || {
            let costs = Costs::paper();
            let counter = Counter {
                window: [begin, begin + case.window],
                me,
                shared,
            };
            rt::sleep(Nanos(rt::random() % case.settle.raw().max(1)));
            let mut session = Session::new(&engine, &tables, &costs, counter).with(case.pick);
            while rt::now() < begin + case.window {
                session.transaction(MIXES[me].0).expect("nothing fails here");
            }
        })
    };
    let sessions: Vec<_> = (0..case.threads / 2).map(session).collect();
    for session in sessions {
        session.join().expect("no session panics");
    }
    drop(tables);
    engine.shutdown().expect("it stops in order");
}

/// Counts the statements that end inside of the window.
struct Counter {
    window: [Nanos; 2],
    me: usize,
    shared: Arc<Shared>,
}

impl Client for Counter {
    fn round_trip(&mut self, _bytes: u64) {
        rt::sleep(CLIENT_TURN);
    }

    fn done(&mut self, _latency: Nanos) {
        let now = rt::now();
        if now >= self.window[0] && now < self.window[1] {
            self.shared.counts[self.me].fetch_add(1, SeqCst);
        }
    }
}

fn figure(threads: &[usize], reads: &[Reads]) -> Figure {
    Figure {
        name: "fig14",
        title: "reads of a server and a reader by client threads, without latches between them".into(),
        how: format!(
            "A server that has the database and a reader of it, 16 vCPUs each, {:.0}% of the pages in the local memory \
             of each, remote memory that they share, three storage nodes; 100,000 rows. Half of the clients send \
             read-write to the server, half read-only to the reader (PolarDB's cost a statement): reads a second of \
             both. The paper's pessimistic half is not run: there is no code that takes page latches over RDMA.",
            LOCAL * 100.0
        ),
        profiles: "rdma, dram, storage-local".into(),
        tables: vec![table(threads, reads)],
        chart: Some(Chart {
            title: "Figure 14, optimistic, simulated (profiles rdma, dram, storage-local)".into(),
            panels: vec![panel(threads, reads)],
        }),
        claims: PICKS
            .iter()
            .zip(reads.chunks_exact(threads.len()))
            .map(|(pick, reads)| claim(*pick, threads, reads))
            .collect(),
    }
}

fn total(reads: &Reads) -> f64 {
    reads.iter().sum()
}

fn table(threads: &[usize], reads: &[Reads]) -> Table {
    let mut table = Table::new(
        "Thousand reads a second",
        &["rows", "client threads", "server", "reader", "both"],
    );
    for (pick, reads) in PICKS.iter().zip(reads.chunks_exact(threads.len())) {
        for (threads, reads) in threads.iter().zip(reads) {
            let [server, reader] = reads.map(|r| format!("{:.0}", r / 1e3));
            let both = format!("{:.0}", total(reads) / 1e3);
            table
                .rows
                .push(vec![pick.name().into(), threads.to_string(), server, reader, both]);
        }
    }
    table
}

fn panel(threads: &[usize], reads: &[Reads]) -> Panel {
    let line = |(pick, reads): (&Pick, &[Reads])| {
        let points = threads
            .iter()
            .zip(reads)
            .map(|(n, reads)| (*n as f64, total(reads) / 1e3));
        pooling::series(pick.name(), points.collect())
    };
    Panel {
        title: "reads of both".into(),
        x: "client threads".into(),
        y: "thousand reads/s".into(),
        series: PICKS.iter().zip(reads.chunks_exact(threads.len())).map(line).collect(),
        marks: true,
    }
}

fn claim(pick: Pick, threads: &[usize], reads: &[Reads]) -> Claim {
    let [few, many] = [0, threads.len() - 1].map(|i| total(&reads[i]));
    Claim {
        what: format!("{}, 32 to 128 threads, optimistic: reads lost (share)", pick.name()),
        paper: Paper::AtMost(paper::OPTIMISTIC_LOSS),
        ours: (1.0 - many / few).into(),
        kind: Kind::Less,
        decimals: 3,
        why: why::OPTIMISTIC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_both_are_compared() {
        let reads = [[60e3, 40e3], [50e3, 40e3], [60e3, 40e3], [70e3, 40e3]];
        let figure = figure(&[32, 128], &reads);
        let lost: Vec<f64> = figure.claims.iter().map(|c| c.ours.median()).collect();
        assert!((lost[0] - 0.1).abs() < 1e-9 && (lost[1] + 0.1).abs() < 1e-9, "{lost:?}");
        assert_eq!(figure.tables[0].rows[1], ["uniform", "128", "50", "40", "90"]);
    }
}
