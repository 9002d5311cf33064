//! `cenote bench pool`: what the pool's memory costs, by the size of accesses, by clients, and by pods.
//!
//! All processes of the pool are real; clients are threads of this process, each in a pod, with the pod's memory mapped
//! and other pods asked over RDMA.
//!
//! ```text
//!   sizes     one client: memory of its own pod, then another pod's; one by one, then 16 at once
//!   clients   1, 2, 4, … in each of two pods; all memory used alike, so half of the accesses go to the other pod
//!   pods      1, 2, 3, …; the same clients in each; all memory together as large, and used alike
//! ```
//!
//! Objects are chosen at random, each as often as any other. They are their session's, so that none of them moves
//! ([`Lifetime::Session`]): what moving brings is shown by `cenote pool demo`.

use crate::pods::Pods;
use crate::reproduce::chart::{self, Chart, Panel, Series};
use crate::table::{lay_out, median, thousands};
use crate::ycsb::choose::Random;
use crate::{Error, IoContext, Result};
use cenote_base::units::ByteSize;
use cenote_space::{GlobalAddress, Lifetime, Read, Session, Space, Write};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const SPACE: &str = "bench";
/// Accesses of a batch.
const BATCH: usize = 16;
/// Operations between two looks at the clock whether it is time to end.
const BETWEEN_LOOKS: u32 = 16;
/// Near accesses take less than looking at the clock does: one in so many is timed.
const TIMED: u32 = 16;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the tables, the plot and the figures go.
    pub out: PathBuf,
    /// The program whose manager and memory nodes are started; that beside this one if `None`.
    pub program: Option<PathBuf>,
    /// Bytes of all objects together.
    pub memory: u64,
    /// Bytes of an access.
    pub sizes: Vec<u64>,
    /// Clients in each of two pods.
    pub clients: Vec<usize>,
    /// Pods.
    pub pods: Vec<usize>,
    /// Of a hundred accesses, writes, where both are mixed.
    pub writes: u64,
    /// How long a round is.
    pub seconds: f64,
    /// Rounds; medians count.
    pub rounds: usize,
    /// Same seed, same accesses.
    pub seed: u64,
}

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Read,
    Write,
    ReadMany,
    WriteMany,
    /// Reads and writes, of a hundred so many of these.
    Mixed(u64),
}

/// The middle of some rounds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Measured {
    /// Accesses a second, of all clients together.
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of a hundred accesses, those that another pod was asked for.
    far: f64,
}

#[derive(Debug, Serialize)]
struct BySize {
    bytes: u64,
    place: &'static str,
    what: What,
    #[serde(flatten)]
    measured: Measured,
}

#[derive(Debug, Serialize)]
struct ByCount {
    count: usize,
    #[serde(flatten)]
    measured: Measured,
}

#[derive(Debug, Serialize)]
struct Found {
    sizes: Vec<BySize>,
    clients: Vec<ByCount>,
    pods: Vec<ByCount>,
}

/// A pool of some pods, and in each of them the space as its clients see it.
struct Memory {
    /// Dropped before the pool: closing a space speaks with it.
    spaces: Vec<Space>,
    _pool: Pods,
}

impl Memory {
    fn start(options: &Options, pods: usize) -> Result<Self> {
        let names: Vec<String> = (0..pods).map(|n| format!("pod{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // Room for classes that are not full, and for the keeper's own.
        let each = options.memory / pods as u64 * 5 / 4 + (32 << 20);
        let pool = Pods::start(options.program.as_deref(), &names, 1, each + (16 << 20))?;
        let clients: Vec<_> = names.iter().map(|name| pool.client(name)).collect::<Result<_>>()?;
        clients[0].create_space(SPACE, each * pods as u64, None)?;
        let spaces: cenote_base::Result<_> = clients.iter().map(|client| client.open_space(SPACE)).collect();
        Ok(Self {
            spaces: spaces?,
            _pool: pool,
        })
    }

    /// Objects of one size, so many in each pod's memory.
    fn fill(&self, bytes: u64, all: u64) -> Result<Objects> {
        let each = (all / bytes / self.spaces.len() as u64).max(1);
        let sessions: Vec<_> = self.spaces.iter().map(Space::session).collect();
        let fill = |session: &Session| {
            (0..each)
                .map(|_| session.alloc_in(bytes, Lifetime::Session))
                .collect::<cenote_base::Result<_>>()
        };
        let of_pods: Vec<Vec<_>> = sessions.iter().map(fill).collect::<cenote_base::Result<_>>()?;
        // The first request to another pod connects to it: that is not what is measured.
        for (space, own) in self
            .spaces
            .iter()
            .flat_map(|space| of_pods.iter().map(move |own| (space, own)))
        {
            space.read(own[0], &mut [0; 8])?;
        }
        Ok(Objects {
            of_pods,
            _sessions: sessions,
        })
    }
}

/// Objects in the memory of each pod, which end with this.
struct Objects {
    of_pods: Vec<Vec<GlobalAddress>>,
    _sessions: Vec<Session>,
}

/// A client: where it is, what it uses, what it does.
struct Client<'a> {
    space: &'a Space,
    objects: &'a [GlobalAddress],
    bytes: usize,
    what: What,
    random: Random,
}

/// What a client brings home.
struct Counts {
    accesses: u64,
    times: Histogram<u64>,
}

impl Client<'_> {
    fn run(mut self, end: Instant) -> Result<Counts> {
        let times = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds are valid");
        let (mut counts, mut n) = (Counts { accesses: 0, times }, 0u32);
        let mut buffer = vec![7; self.bytes * BATCH];
        loop {
            if n.is_multiple_of(BETWEEN_LOOKS) && Instant::now() >= end {
                return Ok(counts);
            }
            let began = n.is_multiple_of(TIMED).then(Instant::now);
            counts.accesses += self.once(&mut buffer)?;
            if let Some(began) = began {
                counts.times.saturating_record(began.elapsed().as_nanos() as u64);
            }
            n = n.wrapping_add(1);
        }
    }

    /// How many accesses it was.
    fn once(&mut self, buffer: &mut [u8]) -> Result<u64> {
        let is_write = match self.what {
            What::Mixed(writes) => self.random.below(100) < writes,
            what => what == What::Write,
        };
        let mut draw = || self.objects[self.random.below(self.objects.len() as u64) as usize];
        match self.what {
            What::ReadMany => {
                let pieces = buffer.chunks_mut(self.bytes);
                let mut reads: Vec<_> = pieces.map(|into| Read { address: draw(), into }).collect();
                self.space.read_many(&mut reads)?;
                return Ok(BATCH as u64);
            }
            What::WriteMany => {
                let pieces = buffer.chunks(self.bytes);
                let writes: Vec<_> = pieces.map(|from| Write { address: draw(), from }).collect();
                self.space.write_many(&writes)?;
                return Ok(BATCH as u64);
            }
            _ if is_write => self.space.write(draw(), &buffer[..self.bytes])?,
            _ => self.space.read(draw(), &mut buffer[..self.bytes])?,
        }
        Ok(1)
    }
}

/// All clients at the same time, for a round.
fn round(spaces: &[Space], clients: Vec<Client<'_>>, seconds: f64) -> Result<Measured> {
    let asked = || spaces.iter().map(Space::asked).sum::<u64>();
    let (before, barrier) = (asked(), Barrier::new(clients.len()));
    let timed = |client: Client<'_>| {
        barrier.wait();
        let began = Instant::now();
        let counts = client.run(began + Duration::from_secs_f64(seconds))?;
        Ok((counts, began.elapsed()))
    };
    let results: Vec<Result<(Counts, Duration)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(|| timed(client)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Error::Refused("a client panicked".into())))
        };
        threads.into_iter().map(join).collect()
    });
    let (mut all, mut rate): (Option<Counts>, f64) = (None, 0.0);
    for result in results {
        let (counts, took) = result?;
        rate += counts.accesses as f64 / took.as_secs_f64();
        match &mut all {
            None => all = Some(counts),
            Some(sum) => {
                sum.accesses += counts.accesses;
                // Bounds are the same.
                let _ = sum.times.add(counts.times);
            }
        }
    }
    let all = all.ok_or_else(|| Error::Refused("a round without clients".into()))?;
    let at = |share: f64| all.times.value_at_quantile(share) as f64 / 1e3;
    Ok(Measured {
        per_second: rate,
        p50_us: at(0.5),
        p99_us: at(0.99),
        far: 100.0 * (asked() - before) as f64 / all.accesses.max(1) as f64,
    })
}

/// The median of each figure.
fn middle(rounds: &[Measured]) -> Measured {
    let of = |figure: fn(&Measured) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    Measured {
        per_second: of(|m| m.per_second),
        p50_us: of(|m| m.p50_us),
        p99_us: of(|m| m.p99_us),
        far: of(|m| m.far),
    }
}

/// Measures, prints tables, writes a plot and the figures.
///
/// # Errors
/// RDMA is not there; the pool does not start, or has no room.
pub fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let bar = progress(options);
    let found = Found {
        sizes: sizes(options, &bar)?,
        clients: clients(options, &bar)?,
        pods: pods(options, &bar)?,
    };
    bar.finish_and_clear();
    tell(options, &found)
}

fn progress(options: &Options) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta} left").expect("a constant template");
    let cells = options.sizes.len() * 8 + options.clients.len() + options.pods.len();
    ProgressBar::new((cells * options.rounds) as u64).with_style(style)
}

fn repeat(options: &Options, bar: &ProgressBar, mut once: impl FnMut(u64) -> Result<Measured>) -> Result<Measured> {
    let rounds: Result<Vec<_>> = (0..options.rounds)
        .map(|n| {
            let measured = once(options.seed + n as u64);
            bar.inc(1);
            measured
        })
        .collect();
    Ok(middle(&rounds?))
}

fn sizes(options: &Options, bar: &ProgressBar) -> Result<Vec<BySize>> {
    if options.sizes.is_empty() {
        return Ok(Vec::new());
    }
    bar.set_message("starting two pods");
    let memory = Memory::start(options, 2)?;
    let mut found = Vec::new();
    for bytes in options.sizes.iter().copied() {
        let objects = memory.fill(bytes, options.memory)?;
        for (pod, place) in ["own pod", "other pod"].into_iter().enumerate() {
            for what in [What::Read, What::Write, What::ReadMany, What::WriteMany] {
                bar.set_message(format!("{} in the {place}", ByteSize(bytes)));
                let measured = repeat(options, bar, |seed| {
                    let client = Client {
                        space: &memory.spaces[0],
                        objects: &objects.of_pods[pod],
                        bytes: bytes as usize,
                        what,
                        random: Random::new(seed),
                    };
                    round(&memory.spaces, vec![client], options.seconds)
                })?;
                found.push(BySize {
                    bytes,
                    place,
                    what,
                    measured,
                });
            }
        }
    }
    Ok(found)
}

/// Clients in each pod, over all memory, by accesses of 64 bytes.
fn mixed(
    options: &Options,
    bar: &ProgressBar,
    memory: &Memory,
    all: &[GlobalAddress],
    each: usize,
) -> Result<Measured> {
    repeat(options, bar, |seed| {
        let client = |n: usize| Client {
            space: &memory.spaces[n % memory.spaces.len()],
            objects: all,
            bytes: 64,
            what: What::Mixed(options.writes),
            random: Random::new(seed << 16 | n as u64),
        };
        let clients = (0..each * memory.spaces.len()).map(client).collect();
        round(&memory.spaces, clients, options.seconds)
    })
}

fn clients(options: &Options, bar: &ProgressBar) -> Result<Vec<ByCount>> {
    if options.clients.is_empty() {
        return Ok(Vec::new());
    }
    bar.set_message("starting two pods");
    let memory = Memory::start(options, 2)?;
    let objects = memory.fill(64, options.memory)?;
    let all = objects.of_pods.concat();
    let by_count = |count: &usize| {
        bar.set_message(format!("{count} clients a pod"));
        let measured = mixed(options, bar, &memory, &all, *count)?;
        Ok(ByCount {
            count: *count,
            measured,
        })
    };
    options.clients.iter().map(by_count).collect()
}

fn pods(options: &Options, bar: &ProgressBar) -> Result<Vec<ByCount>> {
    let by_count = |count: &usize| {
        bar.set_message(format!("{count} pods"));
        let memory = Memory::start(options, *count)?;
        let objects = memory.fill(64, options.memory)?;
        let all = objects.of_pods.concat();
        let measured = mixed(options, bar, &memory, &all, 1)?;
        Ok(ByCount {
            count: *count,
            measured,
        })
    };
    options.pods.iter().map(by_count).collect()
}

fn tell(options: &Options, found: &Found) -> Result<()> {
    let text = format!(
        "{}\n{}\n{}\n{}",
        size_table(&found.sizes),
        count_table("clients in each of two pods", &found.clients),
        count_table("pods, a client in each", &found.pods),
        conditions(options)
    );
    println!("\n{text}");
    std::fs::write(options.out.join("pool.txt"), &text).context("writing pool.txt")?;
    let json = serde_json::to_string_pretty(found).map_err(|e| Error::Plot(e.to_string()))?;
    std::fs::write(options.out.join("pool.json"), json).context("writing pool.json")?;
    let [svg, png] = chart::draw(&options.out.join("pool"), &picture(found))?;
    println!("plots: {} {}", svg.display(), png.display());
    Ok(())
}

fn conditions(options: &Options) -> String {
    format!(
        "measured on this machine of {} cores, which clients and memory nodes share: {} of objects; pods reach each \
         other over libfabric on loopback; by clients and by pods: 64 bytes, {}% writes; {} rounds of {} s, medians; \
         seed {}\n",
        std::thread::available_parallelism().map_or(1, usize::from),
        ByteSize(options.memory),
        options.writes,
        options.rounds,
        options.seconds,
        options.seed
    )
}

fn size_table(sizes: &[BySize]) -> String {
    let row = |cell: &BySize| {
        let many = matches!(cell.what, What::ReadMany | What::WriteMany);
        let what = match cell.what {
            What::Read | What::ReadMany => "read",
            _ => "write",
        };
        vec![
            format!(
                "{} {what}{}, {}",
                ByteSize(cell.bytes),
                if many { ", 16 at once" } else { "" },
                cell.place
            ),
            thousands(cell.measured.per_second),
            format!("{:.1}", cell.measured.per_second * cell.bytes as f64 / 1e6),
            format!("{:.2}", cell.measured.p50_us),
            format!("{:.2}", cell.measured.p99_us),
        ]
    };
    let header = ["one client", "accesses/s", "MB/s", "p50 us", "p99 us"];
    lay_out(&header, &sizes.iter().map(row).collect::<Vec<_>>())
}

fn count_table(what: &str, cells: &[ByCount]) -> String {
    let row = |cell: &ByCount| {
        vec![
            cell.count.to_string(),
            thousands(cell.measured.per_second),
            format!("{:.1}", cell.measured.far),
            format!("{:.2}", cell.measured.p50_us),
            format!("{:.2}", cell.measured.p99_us),
        ]
    };
    let header = [what, "accesses/s", "far, %", "p50 us", "p99 us"];
    lay_out(&header, &cells.iter().map(row).collect::<Vec<_>>())
}

fn picture(found: &Found) -> Chart {
    let by_size = |place: &'static str, what: What, name: &str| Series {
        name: format!("{name}, {place}"),
        points: found
            .sizes
            .iter()
            .filter(|cell| cell.place == place && cell.what == what)
            .map(|cell| (cell.bytes as f64 / 1024.0, cell.measured.p50_us))
            .collect(),
        paper: false,
    };
    let rates = |cells: &[&ByCount]| {
        vec![Series {
            name: "all clients together".into(),
            points: cells
                .iter()
                .map(|cell| (cell.count as f64, cell.measured.per_second / 1e3))
                .collect(),
            paper: false,
        }]
    };
    // One pod alone is beyond the scale of several.
    let (alone, several): (Vec<_>, Vec<_>) = found.pods.iter().partition(|cell| cell.count == 1);
    let by_pods = match alone[..] {
        [one] => format!("by pods (one alone: {})", thousands(one.measured.per_second / 1e3)),
        _ => "by pods".into(),
    };
    let panel = |title: &str, x: &str, y: &str, series| Panel {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        series,
        marks: true,
    };
    Chart {
        title: "the pool's memory (measured)".into(),
        panels: vec![
            panel(
                "one by one, own pod",
                "KiB",
                "us, median",
                vec![
                    by_size("own pod", What::Read, "read"),
                    by_size("own pod", What::Write, "write"),
                ],
            ),
            panel(
                "one by one, other pod",
                "KiB",
                "us, median",
                vec![
                    by_size("other pod", What::Read, "read"),
                    by_size("other pod", What::Write, "write"),
                ],
            ),
            panel(
                "by clients",
                "clients in each of two pods",
                "thousand accesses a second",
                rates(&found.clients.iter().collect::<Vec<_>>()),
            ),
            panel(
                &by_pods,
                "pods, a client in each",
                "thousand accesses a second",
                rates(&several),
            ),
        ]
        .into_iter()
        .filter(|panel| panel.series.iter().any(|series| !series.points.is_empty()))
        .collect(),
    }
}
