//! Figure 9: a server hands over or is killed under load, and another one takes the database.
//!
//! 1. The server opens a filled database, reads all of it, and serves 48 sessions at a rate that all four cases keep
//!    up.
//! 2. It is told to stop, or killed. Storage keeps what it has, and so does remote memory where there is some.
//! 3. Another server, on another host, opens the database and serves the same load: one that begins then, or one that
//!    was a reader before, and keeps its frames.
//!
//! What tells servers that one is gone is not part of it: `cenote_cluster` decides that outside of the simulator.
//! Processor time of a start is not charged, only its accesses, messages, transfers and reads.

use super::super::chart::{Chart, Panel};
use super::super::judge::{Claim, Kind, Paper};
use super::super::mix::Mix;
use super::super::options::{self, Options, Progress};
use super::super::pod::{Dataset, Scale, System};
use super::super::pooling;
use super::super::recovery::{Crash, Plan, Shared, serve, serve_over, since, told, until_ready};
use super::super::report::{Figure, Table};
use super::super::workload::Tables;
use super::cluster::{self, Cluster, Memory, OnNodes, Redo, SERVERS};
use super::{paper, why};
use crate::{Error, Result};
use cenote_base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, EngineOptions, Error as EngineError};
use cenote_sim::{Process, World};
use cenote_testkit::faulty::MemFs;
use std::sync::Arc;

/// Share of the pages that local memory has, where there is remote memory.
const LOCAL: f64 = 0.3;

/// What befalls the server, and what keeps pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// It stops in order; remote memory and storage nodes.
    Switch,
    /// It is killed; remote memory and storage nodes.
    Kept,
    /// As `Kept`, and a reader takes its place.
    Reader,
    /// As `Kept`, and storage nodes lag: they have to make pages of redo all the time.
    Lagging,
    /// It is killed; storage nodes alone.
    Nodes,
    /// It is killed; page files and a log, which is replayed.
    Files,
}

const CASES: [Case; 6] = [
    Case::Switch,
    Case::Kept,
    Case::Reader,
    Case::Lagging,
    Case::Nodes,
    Case::Files,
];

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::Switch => "switch, remote memory",
            Case::Kept => "crash, remote memory",
            Case::Reader => "crash, a reader goes on",
            Case::Lagging => "crash, nodes lag",
            Case::Nodes => "crash, storage nodes alone",
            Case::Files => "crash, no materialization (vanilla)",
        }
    }
}

impl Case {
    /// What its nodes keep of redo.
    fn redo(self) -> Redo {
        if self == Case::Lagging {
            Redo::Scaled
        } else {
            Redo::Usual
        }
    }
}

/// Milliseconds of load before, and from the end of the server on.
fn lengths(quick: bool) -> [u64; 2] {
    if quick { [60, 120] } else { [500, 400] }
}

/// The database in both kinds of storage.
pub struct Both {
    /// On nodes, which make pages.
    pub nodes: OnNodes,
    /// In page files and a log.
    pub files: Dataset,
}

/// Runs all and draws it.
///
/// # Errors
/// [`Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig9(options: &Options, both: &Both, progress: &Progress) -> Result<Figure> {
    let [before, after] = lengths(options.quick).map(Nanos::from_millis);
    let bar = progress.bar("failovers", CASES.len() as u64);
    let crashes = options::parallel(&CASES, |case| {
        let crash = match case {
            Case::Files => Plan {
                system: System::Vanilla(1.0),
                mix: Mix::ReadWrite,
                before,
                after,
            }
            .run(&both.files, options.seed),
            _ => on_nodes(*case, &both.nodes, [before, after], options.seed),
        };
        bar.inc(1);
        crash
    });
    bar.finish_and_clear();
    Ok(figure(&crashes.into_iter().collect::<Result<Vec<_>>>()?))
}

/// A case in a world of storage nodes.
fn on_nodes(case: Case, database: &OnNodes, [before, after]: [Nanos; 2], seed: u64) -> Result<Crash> {
    let files = database.files();
    let world = cluster::world(database.scale, seed)?;
    let run = |w: &World| fail_over(w, case, database, &files, [before, after], seed);
    world.run(run).value
}

/// Servers of a running world.
struct Servers<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    scale: Scale,
    memory: Memory,
    shared: Shared,
}

impl Servers<'_> {
    /// One that opens the database; `warm`: and reads all of it.
    fn start(&self, host: usize, warm: bool) -> Process {
        let (shared, scale) = (self.shared.clone(), self.scale);
        let options = self.cluster.options(host, self.memory);
        self.world.process(host, "server", move || {
            serve(Mix::ReadWrite, &options, scale, &shared, warm)
        })
    }

    /// A reader that has read all of it, and what tells it to take the database.
    fn start_reader(&self, host: usize, frames: u32) -> Result<(Process, Arc<AtomicU64>)> {
        let (shared, scale, word) = (self.shared.clone(), self.scale, Arc::new(AtomicU64::new(LOADS)));
        let options = [
            self.cluster.reader_options(host, frames)?,
            self.cluster.options(host, self.memory),
        ];
        let its = Arc::clone(&word);
        let reader = self
            .world
            .process(host, "reader", move || follow(options, scale, &shared, &its));
        while word.load(SeqCst) == LOADS {
            if !reader.is_running() {
                return Err(Error::Simulation(format!("a reader has ended: {:?}", reader.join())));
            }
            rt::sleep(LOOK);
        }
        Ok((reader, word))
    }
}

/// What a reader is told, or tells.
const LOADS: u64 = 0;
const FOLLOWS: u64 = 1;
const TAKES: u64 = 2;
/// How often that is looked at: as often as a server asks whether it is to have the database.
const LOOK: Nanos = Nanos::from_millis(1);

/// How often a reader reads all pages anew, where the server purges what its snapshot sees.
const TRIES: u32 = 8;

/// A reader's body: it reads all pages, follows, and takes the database when it is told.
fn follow([reads, takes]: [EngineOptions; 2], scale: Scale, shared: &Shared, word: &AtomicU64) {
    let reader = Engine::open(reads).expect("the database is there");
    let tables = Tables::open(&reader, scale.tables, scale.rows).expect("its tables");
    for _ in 0..TRIES {
        match tables.warm_up(&reader) {
            // What was read of the table so far is there.
            Err(EngineError::SnapshotTooOld(_)) => {}
            read => {
                read.expect("readable");
                break;
            }
        }
    }
    drop(tables);
    word.store(FOLLOWS, SeqCst);
    while word.load(SeqCst) != TAKES {
        rt::sleep(LOOK);
    }
    let promotion = reader.promote(takes).expect("no other takes it");
    let engine = promotion.open(reader).expect("over frames that are true");
    serve_over(Mix::ReadWrite, &engine, scale, shared, false);
}

/// The thread outside: starts a server, ends it, starts another.
fn fail_over(
    w: &World,
    case: Case,
    database: &OnNodes,
    files: &[MemFs],
    [before, after]: [Nanos; 2],
    seed: u64,
) -> Result<Crash> {
    let (cluster, shared) = (
        Cluster::start(w, files, seed, (case.redo(), Some(database.pages)))?,
        Shared::default(),
    );
    let frames = (f64::from(database.pages) * LOCAL) as u32;
    let servers = Servers {
        world: w,
        cluster: &cluster,
        scale: database.scale,
        memory: match case {
            Case::Nodes | Case::Files => Memory::Local(database.scale.memory),
            _ => Memory::Remote(frames),
        },
        shared: shared.clone(),
    };
    let first = servers.start(SERVERS[0], true);
    let began = until_ready(&first, &shared)?;
    let reader = (case == Case::Reader).then(|| servers.start_reader(SERVERS[1], frames));
    let reader = reader.transpose()?;
    rt::sleep((began + before).since(rt::now()));
    let ended = rt::now();
    match case {
        Case::Switch => {
            told(&shared, |t| t.stops = 1);
            until_down(&first, &shared)?;
        }
        _ => first.kill(),
    }
    let redo = told(&shared, |t| {
        (t.ready_at, t.open_at) = (None, None);
        t.redo
    });
    let before = cluster.drives();
    let second = match reader {
        Some((reader, word)) => {
            word.store(TAKES, SeqCst);
            reader
        }
        None => servers.start(SERVERS[1], false),
    };
    until_ready(&second, &shared)?;
    let storage = since(cluster.drives(), before);
    rt::sleep((ended + after).since(rt::now()));
    second.kill();
    cluster.stop()?;
    Ok(told(&shared, |t| t.crash(began, ended, redo, storage)))
}

/// Until a server that was told so has stopped.
fn until_down(server: &Process, shared: &Shared) -> Result<()> {
    while !told(shared, |t| t.is_down) {
        if !server.is_running() {
            return Err(Error::Simulation(format!("a server has ended: {:?}", server.join())));
        }
        rt::sleep(Nanos::from_micros(20));
    }
    Ok(())
}

fn crash(all: &[Crash], case: Case) -> &Crash {
    let at = CASES.iter().position(|c| *c == case);
    &all[at.expect("one of them")]
}

fn figure(all: &[Crash]) -> Figure {
    Figure {
        name: "fig9",
        title: "a switch and crashes of the server".into(),
        how: format!(
            "One server of 16 vCPUs, read-write by 48 sessions at 60% of what the processors can do (PolarDB's cost a \
             statement), all pages read before; 100,000 rows. It stops in order (*switch*) or is killed (*crash*), and \
             a server on another host opens the database; or, of a crash, a reader there that has followed it goes on. \
             *remote memory*: {:.0}% of the pages in local frames, all in \
             remote memory, which the next server takes; log and pages on three storage nodes. *storage nodes alone*: \
             the same nodes, all pages in local frames, no remote memory. *no materialization*: all pages in local \
             frames, page files and a log in shared storage; the log is replayed from the last checkpoint. A node has a \
             drive (`storage-local`) and keeps 256 MiB of redo in memory until pages have it, so that after this load none \
             has; with *nodes lag* it keeps 1 MiB, a 256th as of all else, and makes pages all the time. Connections are of the profile `rdma`. Times are from the order to stop, or from \
             the kill: until another server takes statements, and from there to 90% of the rate before, in steps of \
             250 us. Detection is left out, and so is the processor time of a start.",
            LOCAL * 100.0
        ),
        profiles: "rdma, dram, storage-local, storage".into(),
        tables: vec![table(all)],
        chart: Some(Chart {
            title: "Figure 9, simulated (profiles rdma, dram, storage-local, storage)".into(),
            panels: vec![course(all)],
        }),
        claims: claims(all),
    }
}

/// Milliseconds before the end that are drawn.
const DRAWN_MS: f64 = 30.0;

fn course(all: &[Crash]) -> Panel {
    let line = |(case, crash): (&Case, &Crash)| {
        let points = crash.course.iter().filter(|p| p.0 >= -DRAWN_MS);
        pooling::series(case.name(), points.map(|p| (p.0 + DRAWN_MS, p.1 / 1e3)).collect())
    };
    Panel {
        title: format!("stopped or killed at {DRAWN_MS:.0} ms"),
        x: "milliseconds".into(),
        y: "thousand queries/s".into(),
        series: CASES.iter().zip(all).map(line).collect(),
        marks: false,
    }
}

fn table(all: &[Crash]) -> Table {
    let mut table = Table::new(
        "The server's end, and the next one",
        &[
            "case",
            "kQPS before",
            "redo MiB",
            "until it serves, ms",
            "then to 90% ms",
            "mode",
            "frames repaired",
            "redo read MiB",
            "storage reads",
            "MiB",
        ],
    );
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for (case, crash) in CASES.iter().zip(all) {
        let warm = match crash.warm_ms.is_nan() {
            true => "not yet".into(),
            false => format!("{:.2}", crash.warm_ms),
        };
        table.rows.push(vec![
            case.name().into(),
            format!("{:.0}", crash.qps_before / 1e3),
            format!("{:.1}", crash.redo_mib),
            format!("{:.2}", crash.recovery_ms),
            warm,
            crash.report.mode.clone(),
            crash.report.frames_repaired.to_string(),
            mib(crash.report.redo_bytes_read),
            crash.storage.reads.to_string(),
            mib(crash.storage.bytes_read),
        ]);
    }
    table
}

/// Ratios: seconds of the paper's database are not ours, which is smaller.
fn claims(all: &[Crash]) -> Vec<Claim> {
    let serves = |case| crash(all, case).recovery_ms;
    let warm = |case| serves(case) + crash(all, case).warm_ms;
    let claim = |what: &str, paper: f64, ours: f64, kind: Kind, why: &'static str| Claim {
        what: what.into(),
        paper: Paper::About(paper),
        ours: ours.into(),
        kind,
        decimals: 2,
        why,
    };
    let (kept, [pause, back]) = (paper::CRASH.iter().sum::<f64>(), paper::SWITCH);
    vec![
        claim(
            "until it serves: no materialization to remote memory",
            paper::WITHOUT_PAGES[0] / paper::CRASH[0],
            serves(Case::Files) / serves(Case::Kept),
            Kind::More,
            why::REPLAY,
        ),
        claim(
            "until it serves: no materialization to remote memory, nodes lag",
            paper::WITHOUT_PAGES[0] / paper::CRASH[0],
            serves(Case::Files) / serves(Case::Lagging),
            Kind::More,
            why::LAG,
        ),
        claim(
            "to 90%: no materialization to remote memory",
            paper::WITHOUT_PAGES[1] / kept,
            warm(Case::Files) / warm(Case::Kept),
            Kind::More,
            why::REPLAY,
        ),
        claim(
            "to 90%: storage nodes alone to remote memory",
            (kept + paper::WITHOUT_REMOTE) / kept,
            warm(Case::Nodes) / warm(Case::Kept),
            Kind::More,
            why::COLD,
        ),
        claim(
            "until it serves: a switch to a crash",
            pause / paper::CRASH[0],
            serves(Case::Switch) / serves(Case::Kept),
            Kind::Less,
            why::SWITCH,
        ),
        claim(
            "to 90%: a switch to a crash",
            (pause + back) / kept,
            warm(Case::Switch) / warm(Case::Kept),
            Kind::Less,
            why::SWITCH,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_their_cases() {
        let crash = |recovery_ms: f64, warm_ms: f64| Crash {
            recovery_ms,
            warm_ms,
            ..Crash::default()
        };
        let all = [
            (2.0, 4.0),
            (16.0, 7.0),
            (1.0, 1.0),
            (16.0, 7.0),
            (16.0, 19.0),
            (85.0, 20.0),
        ]
        .map(|(r, w)| crash(r, w));
        for claim in claims(&all) {
            assert!(claim.difference() < 0.01, "{}: {:?}", claim.what, claim.ours);
        }
        assert_eq!(table(&all).rows.len(), CASES.len());
    }
}
