//! `cenote pool demo`: two pods of two memory nodes on loopback, a load with a hot set in each, and what the pool makes
//! of it, live.
//!
//! ```text
//!                 objects 0 1 2 …                                  … n-1
//!   east draws from here, Zipf 0.99 ──►              ◄── west from there
//!   allocated by west                  │                  allocated by east
//! ```
//!
//! So each pod's hot objects begin in the other pod. All processes are real: a manager, four memory nodes, and this
//! one, which is a client in each pod.

use crate::pods::Pods;
use crate::table::thousands;
use crate::ycsb::choose::{Random, Zipfian};
use crate::{Error, IoContext, Result};
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::holder::Operator;
use cenote_space::{GlobalAddress, Space};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PODS: [&str; 2] = ["east", "west"];
/// Memory nodes of a pod.
const NODES: usize = 2;
const SPACE: &str = "demo";
/// Cells of a bar.
const BAR: usize = 30;

/// What the load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Each pod has its own hot objects.
    Own,
    /// Both pods have the same.
    Shared,
    /// None is hotter than others.
    Uniform,
}

/// What the demonstration is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program whose manager and memory nodes are started; that beside this one if `None`.
    pub program: Option<PathBuf>,
    /// Bytes of each memory node.
    pub size: u64,
    /// Objects, half of them from each pod's memory.
    pub objects: u64,
    /// Bytes of each.
    pub bytes: u64,
    /// How long it runs.
    pub seconds: u64,
    /// Of a hundred accesses, writes.
    pub writes: u64,
    /// Which objects are hot.
    pub load: Load,
    /// Same seed, same accesses.
    pub seed: u64,
}

/// What a pod's users did in one turn of the display.
#[derive(Clone)]
struct Turn {
    accesses: u64,
    asked: u64,
    times: Histogram<u64>,
}

impl Turn {
    fn new() -> Self {
        // Up to ten seconds, in nanoseconds, two digits.
        let times = Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("bounds");
        Self {
            accesses: 0,
            asked: 0,
            times,
        }
    }

    /// Of a hundred accesses, those that no other pod was asked for.
    fn local(&self) -> f64 {
        100.0 * (1.0 - self.asked as f64 / (self.accesses.max(1)) as f64)
    }
}

/// Runs it; the share of accesses that were local in the last third, for each pod, in percent.
///
/// # Errors
/// Those of starting the pool and of its memory; RDMA is not there.
pub fn demo(options: &Options) -> Result<[f64; 2]> {
    let pool = Pods::start(options.program.as_deref(), &PODS, NODES, options.size)?;
    println!(
        "a manager, and {NODES} memory nodes of {} in each of two pods",
        size(options.size)
    );
    let clients = [pool.client(PODS[0])?, pool.client(PODS[1])?];
    clients[0].create_space(SPACE, options.size / 10 * 9 * 2 * NODES as u64, None)?;
    let spaces = [clients[0].open_space(SPACE)?, clients[1].open_space(SPACE)?];
    let objects = Arc::new(fill(&spaces, options)?);
    let shares = run(&spaces, &objects, options)?;
    let audit = Operator::connect(&Tcp, &pool.credentials())?.audit()?;
    println!("audit: {} problems", audit.problems.len());
    audit.problems.iter().for_each(|problem| println!("  {problem}"));
    if !audit.problems.is_empty() {
        return Err(Error::Refused("the pool's audit found problems".into()));
    }
    Ok(shares)
}

/// Each half of the objects by the pod that will not want it.
fn fill(spaces: &[Space; 2], options: &Options) -> Result<Vec<GlobalAddress>> {
    let sessions = [spaces[0].session(), spaces[1].session()];
    let text = vec![7; options.bytes as usize];
    let owner = |n: u64| usize::from(n < options.objects / 2);
    let mut objects = Vec::with_capacity(options.objects as usize);
    for n in 0..options.objects {
        let address = sessions[owner(n)].alloc(options.bytes)?;
        sessions[owner(n)].write(address, &text)?;
        objects.push(address);
    }
    Ok(objects)
}

/// Which object is next for a pod.
struct Draw {
    zipf: Zipfian,
    random: Random,
    load: Load,
    pod: usize,
}

impl Draw {
    fn next(&mut self) -> usize {
        let items = self.zipf.items();
        let rank = match self.load {
            Load::Uniform => self.random.below(items),
            Load::Own | Load::Shared => self.zipf.next(&mut self.random),
        };
        let is_from_behind = self.load == Load::Own && self.pod == 1;
        (if is_from_behind { items - 1 - rank } else { rank }) as usize
    }
}

fn use_it(
    space: &Space,
    objects: &[GlobalAddress],
    mut draw: Draw,
    options: &Options,
    turn: &Mutex<Turn>,
    stop: &AtomicBool,
) -> Result<()> {
    let mut bytes = vec![0; options.bytes as usize];
    let mut mine = Turn::new();
    let mut asked = space.asked();
    let mut told = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let address = objects[draw.next()];
        let is_write = draw.random.below(100) < options.writes;
        let began = Instant::now();
        if is_write {
            space.write(address, &bytes)?;
        } else {
            space.read(address, &mut bytes)?;
        }
        let took = began.elapsed().as_nanos() as u64;
        mine.times.saturating_record(took.max(1));
        mine.accesses += 1;
        if began.duration_since(told) > Duration::from_millis(50) {
            let now = space.asked();
            mine.asked = now - asked;
            asked = now;
            let mut all = turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            all.accesses += mine.accesses;
            all.asked += mine.asked;
            all.times
                .add(&mine.times)
                .map_err(|_| Error::Refused("a histogram of other bounds".into()))?;
            mine = Turn::new();
            told = began;
        }
    }
    Ok(())
}

fn run(spaces: &[Space; 2], objects: &Arc<Vec<GlobalAddress>>, options: &Options) -> Result<[f64; 2]> {
    let stop = AtomicBool::new(false);
    let turns = [Mutex::new(Turn::new()), Mutex::new(Turn::new())];
    let zipf = Zipfian::new(options.objects);
    std::thread::scope(|scope| {
        let user = |pod: usize| {
            let (space, turn, stop, zipf) = (&spaces[pod], &turns[pod], &stop, zipf.clone());
            let draw = Draw {
                zipf,
                random: Random::new(options.seed + pod as u64),
                load: options.load,
                pod,
            };
            scope.spawn(move || use_it(space, objects, draw, options, turn, stop))
        };
        let users = [user(0), user(1)];
        let shown = show(spaces, &turns, options, || {
            users.iter().any(std::thread::ScopedJoinHandle::is_finished)
        });
        stop.store(true, Ordering::Relaxed);
        for user in users {
            user.join().map_err(|_| Error::Refused("a client panicked".into()))??;
        }
        shown
    })
}

/// Shows a line of each pod every second; the share of local accesses in the last third.
fn show(
    spaces: &[Space; 2],
    turns: &[Mutex<Turn>; 2],
    options: &Options,
    has_failed: impl Fn() -> bool,
) -> Result<[f64; 2]> {
    let mut out = std::io::stdout();
    let is_live = out.is_terminal();
    let (mut last, mut lines) = ([(0, 0); 2], 0);
    for second in 1..=options.seconds {
        std::thread::sleep(Duration::from_secs(1));
        if has_failed() {
            break;
        }
        let taken: Vec<Turn> = turns
            .iter()
            .map(|turn| {
                std::mem::replace(
                    &mut *turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner),
                    Turn::new(),
                )
            })
            .collect();
        if second * 3 > options.seconds * 2 {
            for (sum, turn) in last.iter_mut().zip(&taken) {
                *sum = (sum.0 + turn.accesses, sum.1 + turn.asked);
            }
        }
        let text = picture(second, &taken, spaces);
        if is_live && lines > 0 {
            write!(out, "\x1b[{lines}A\x1b[J").context("writing")?;
        }
        write!(out, "{text}").and_then(|()| out.flush()).context("writing")?;
        lines = text.lines().count();
    }
    let share = |(accesses, asked): (u64, u64)| 100.0 * (1.0 - asked as f64 / accesses.max(1) as f64);
    let shares = last.map(share);
    println!(
        "local accesses in the last third: east {:.1}%, west {:.1}%",
        shares[0], shares[1]
    );
    Ok(shares)
}

fn picture(second: u64, turns: &[Turn], spaces: &[Space; 2]) -> String {
    let mut text = format!(
        "\n{second:>4} s   accesses/s   local                                     p50 ns     p99 ns    extents from \
         east   from west   free\n"
    );
    let homes = homes(spaces);
    for (pod, turn) in turns.iter().enumerate() {
        let local = turn.local();
        let full = ((local / 100.0 * BAR as f64).round() as usize).min(BAR);
        let bar = format!("{}{}", "#".repeat(full), "·".repeat(BAR - full));
        let [east, west, free] = homes[pod];
        text += &format!(
            "  {:<6} {:>10}   {bar} {local:>5.1}%  {:>9}  {:>9}  {:>19}  {:>10}  {:>5}\n",
            PODS[pod],
            thousands(turn.accesses as f64),
            thousands(turn.times.value_at_quantile(0.5) as f64),
            thousands(turn.times.value_at_quantile(0.99) as f64),
            east,
            west,
            free
        );
    }
    text
}

/// Of the extents that lie in each pod: those whose home is in the east, in the west, and free ones.
fn homes(spaces: &[Space; 2]) -> [[u32; 3]; 2] {
    let pod_of: BTreeMap<u8, usize> = spaces
        .iter()
        .enumerate()
        .flat_map(|(pod, space)| space.parts().map(move |part| (part.number(), pod)).collect::<Vec<_>>())
        .collect();
    let mut homes = [[0; 3]; 2];
    for (pod, space) in spaces.iter().enumerate() {
        for part in space.stats().parts {
            homes[pod][pod] += part.slabs;
            homes[pod][2] += part.free;
            for (home, guests) in part.guests_of {
                homes[pod][pod_of.get(&home).copied().unwrap_or(pod)] += guests;
            }
        }
    }
    homes
}

fn size(bytes: u64) -> String {
    cenote_base::units::ByteSize(bytes).to_string()
}
