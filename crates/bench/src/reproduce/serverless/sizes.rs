//! Figure 8: throughput of ranges while remote memory is made larger and smaller; and how far it grows by itself.

use super::super::chart::{Chart, Panel, Series};
use super::super::cost::Costs;
use super::super::judge::{Claim, Kind, Paper};
use super::super::options::{self, Options, Progress};
use super::super::pod::Dataset;
use super::super::pooling;
use super::super::report::{Figure, Table};
use super::elastic::{Bin, Light, Plan};
use super::paper::{self, REMOTE_GB};
use super::{COSTS, why};
use crate::Result;
use cenote_base::rt::Nanos;
use std::ops::Range;
use std::sync::Arc;

/// Costs (of [`COSTS`]) and sessions of the cases: a vCPU each, and where a statement takes long, three, two of which
/// may wait.
const CASES: [(usize, usize); 3] = [(0, 16), (0, 48), (1, 16)];
/// The one that is run by need as well.
const FAST: usize = 2;
/// Gigabytes of local memory, to the paper's of remote memory.
const LOCAL_GB: f64 = 4.0;
/// Gigabytes of the first part of remote memory, and of a slab.
const SLAB_GB: f64 = REMOTE_GB[0];
/// The largest size: as many slots as the database has pages.
const ALL_GB: f64 = REMOTE_GB[3];
/// How large it may be where none is set: it is to stop by itself.
const MOST_GB: f64 = 160.0;
/// Of a size's time, its first tenth and its last third: what there is at once, and what there is at its end.
const FIRST: f64 = 0.1;
const END: f64 = 1.0 / 3.0;
/// Throughput that differs by less is the same.
const SAME: f64 = 0.05;
/// So many bins in a row are within so much of the end's throughput.
const SETTLED: (usize, f64) = (3, 0.1);

/// Bins of sizes that are set, and of one that is not.
const BIN: Nanos = Nanos::from_millis(5);
const BIN_BY_NEED: Nanos = Nanos::from_millis(100);
/// Between two statements of a session, where remote memory grows by itself: some 1,000 a second of all sessions.
const PAUSE: Nanos = Nanos::from_millis(16);
/// Pages a second that a slab has to save to be taken: 800 for 8 GB is the default of servers, and a hundredth of it
/// is to a load of 1,000 statements a second what that is to one of 100,000.
const WORTH: f64 = 8.0;

/// Milliseconds at which the sizes are set, and at which the load ends: the paper's seconds.
fn times(quick: bool) -> [u64; 5] {
    let [second, third, last] = paper::SET_AT;
    if quick {
        [0, 30, 80, 120, 170]
    } else {
        [0, second, third, last, last + 200]
    }
}

/// How long the load is light, where remote memory grows by itself, and then as heavy as before.
fn spells(quick: bool) -> [Nanos; 2] {
    [Nanos::from_secs(if quick { 4 } else { 40 }), Nanos::from_millis(200)]
}

/// Sizes that are set one after the other.
fn by_hand((costs, sessions): (usize, usize), pages: u32, quick: bool) -> Plan {
    let [polardb, cenote] = Costs::both();
    let times = times(quick).map(Nanos::from_millis);
    let slabs = |gb: f64| (gb / SLAB_GB) as u32 - 1;
    Plan {
        costs: Arc::new(if costs == 0 { polardb } else { cenote }),
        sessions,
        light: None,
        frames: (f64::from(pages) * LOCAL_GB / ALL_GB) as u32,
        slots: (f64::from(pages) * SLAB_GB / ALL_GB).ceil() as u32,
        most: slabs(ALL_GB),
        worth: WORTH,
        sizes: times.into_iter().zip(REMOTE_GB.map(slabs).map(Some)).collect(),
        bin: BIN,
        lasts: times[REMOTE_GB.len()],
    }
}

/// None is set; there may be more than the largest.
fn by_need(pages: u32, quick: bool) -> Plan {
    let [light, heavy] = spells(quick);
    Plan {
        light: Some(Light {
            pause: PAUSE,
            until: light,
        }),
        most: (MOST_GB / SLAB_GB) as u32 - 1,
        sizes: vec![(Nanos::ZERO, None)],
        bin: BIN_BY_NEED,
        lasts: light + heavy,
        ..by_hand(CASES[FAST], pages, quick)
    }
}

/// Runs all and draws it.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn fig8(options: &Options, dataset: &Dataset, progress: &Progress) -> Result<Figure> {
    let (pages, quick) = (dataset.pages, options.quick);
    let mut plans = vec![by_need(pages, quick)];
    plans.extend(CASES.map(|case| by_hand(case, pages, quick)));
    let bar = progress.bar("sizes", plans.len() as u64);
    let courses = options::parallel(&plans, |plan| {
        let bins = plan.run(dataset, options.seed);
        bar.inc(1);
        bins
    });
    bar.finish_and_clear();
    let mut courses = courses.into_iter().zip(&plans).map(|(bins, plan)| {
        let starts = plan.sizes.iter().map(|size| size.0);
        let starts = starts.chain(plan.light.map(|light| light.until)).chain([plan.lasts]);
        Ok(Course {
            bin: plan.bin,
            bins: bins?,
            starts: starts.map(|at| (at.raw() / plan.bin.raw()) as usize).collect(),
        })
    });
    let by_need = courses.next().expect("it was planned")?;
    Ok(figure(&courses.collect::<Result<Vec<_>>>()?, &by_need))
}

/// What came of a plan.
struct Course {
    bin: Nanos,
    bins: Vec<Bin>,
    /// The bin in which each size was set, or the load became another, and the end.
    starts: Vec<usize>,
}

impl Course {
    /// The bins of a size.
    fn of(&self, size: usize) -> Range<usize> {
        self.starts[size]..self.starts[size + 1]
    }

    fn first(&self, size: usize) -> Range<usize> {
        let all = self.of(size);
        all.start..all.start + ((all.len() as f64 * FIRST) as usize).max(1)
    }

    fn end(&self, size: usize) -> Range<usize> {
        let all = self.of(size);
        all.end - ((all.len() as f64 * END) as usize).max(1)..all.end
    }

    /// Statements a second.
    fn qps(&self, bins: Range<usize>) -> f64 {
        let seconds = self.bin.as_secs_f64() * bins.len() as f64;
        self.bins[bins].iter().map(|bin| f64::from(bin.statements)).sum::<f64>() / seconds
    }

    /// By how much a number has grown that only grows.
    fn grown(&self, bins: Range<usize>, of: fn(&Bin) -> u64) -> u64 {
        let before = bins.start.checked_sub(1).map_or(0, |i| of(&self.bins[i]));
        of(&self.bins[bins.end - 1]) - before
    }

    /// Of the pages that no frame had, those that remote memory had.
    fn hit_ratio(&self, bins: Range<usize>) -> f64 {
        let [hits, misses] = [|b: &Bin| b.hits, |b: &Bin| b.misses].map(|of| self.grown(bins.clone(), of) as f64);
        hits / (hits + misses).max(1.0)
    }

    /// Remote memory at the end of a bin, in the paper's gigabytes.
    fn gb(&self, bin: usize) -> f64 {
        SLAB_GB * f64::from(self.bins[bin].slabs + 1)
    }

    /// Of what throughput changes by in a size's time, the share that it has in the first tenth.
    fn at_once(&self, size: usize) -> f64 {
        let [before, first, end] = [self.end(size - 1), self.first(size), self.end(size)].map(|bins| self.qps(bins));
        (first - before) / (end - before)
    }

    /// Until throughput is what it is at the end, about: milliseconds.
    fn settles_ms(&self, size: usize) -> f64 {
        let (all, end, (several, within)) = (self.of(size), self.qps(self.end(size)), SETTLED);
        let is_near = |at: &usize| (self.qps(*at..(at + several).min(all.end)) / end - 1.0).abs() <= within;
        let at = all.clone().find(is_near).unwrap_or(all.end);
        (at - all.start) as f64 * self.bin.as_secs_f64() * 1e3
    }

    /// The slowest bin of a size, to its end's throughput.
    fn slowest(&self, size: usize) -> f64 {
        let each = self.of(size).map(|i| self.qps(i..i + 1));
        each.fold(f64::INFINITY, f64::min) / self.qps(self.end(size))
    }

    /// A number of so many bins together, by the time at their middle.
    fn curve(&self, bins: Range<usize>, each: usize, unit: Nanos, of: impl Fn(Range<usize>) -> f64) -> Vec<(f64, f64)> {
        let bin = self.bin.as_secs_f64() / unit.as_secs_f64();
        let some = bins.clone().step_by(each).map(|i| i..(i + each).min(bins.end));
        some.map(|some| ((some.start + some.end) as f64 / 2.0 * bin, of(some)))
            .collect()
    }

    /// Whether a larger size comes to more.
    fn is_in_order(&self) -> bool {
        let mut sizes: Vec<usize> = (0..REMOTE_GB.len()).collect();
        sizes.sort_by(|a, b| REMOTE_GB[*a].total_cmp(&REMOTE_GB[*b]));
        let qps: Vec<f64> = sizes.iter().map(|size| self.qps(self.end(*size))).collect();
        qps.is_sorted_by(|a, b| is_more(*b, *a))
    }
}

/// Whether a throughput is another, and greater.
fn is_more(one: f64, other: f64) -> bool {
    one > other * (1.0 + SAME)
}

/// In words.
fn name((costs, sessions): (usize, usize)) -> String {
    format!("{sessions} sessions, at {}", COSTS[costs])
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn figure(all: &[Course], by_need: &Course) -> Figure {
    let mut tables: Vec<Table> = all
        .iter()
        .zip(CASES)
        .map(|(course, case)| table(course, case))
        .collect();
    tables.push(table_by_need(by_need, &all[FAST]));
    Figure {
        name: "fig8",
        title: "ranges while remote memory grows and shrinks".into(),
        how: how(),
        profiles: "rdma, dram, storage".into(),
        tables,
        chart: Some(Chart {
            title: "Figure 8, simulated (profiles rdma, storage, dram)".into(),
            panels: panels(all, by_need),
        }),
        claims: all
            .iter()
            .zip(CASES)
            .flat_map(|(course, case)| claims(course, case))
            .collect(),
    }
}

fn how() -> String {
    let ([second, third, last], [light, heavy]) = (paper::SET_AT, spells(false));
    format!(
        "One instance of 16 vCPUs; 16 sessions, one a vCPU, ask for ranges of 100 rows, anywhere alike; at \
         PolarDB's cost a statement also 48, two thirds of which may wait at no cost. The tiered pool: remote \
         memory is a first part of {SLAB_GB} GB and slabs of {SLAB_GB} GB, on one memory node; behind it is the \
         storage of figures 10, 11 and 15, in front of it local memory of {LOCAL_GB} GB. The paper says neither how \
         large its data are nor its local memory. Here the largest size, {ALL_GB} GB, has as many slots as the \
         database has pages, so that a gigabyte is 0.8 MiB, and a second of the paper's is a millisecond: what a \
         slab takes to be warmed shrinks with it. Sizes are set at {second}, {third} and {last} ms. A size's first \
         tenth of its time is compared with its last third; what differs by less than a twentieth is the same. All \
         pages were read before, with the first size. Then, in a world of its own, no size is set: remote memory \
         grows by need, from {SLAB_GB} GB to {MOST_GB} at most. The pool decides every two seconds, which do not \
         shrink. So the load is light for {} s, some 1,000 statements a second, and a slab has to save {WORTH} \
         pages a second to be taken, which is the servers' default (100 a GiB) thinned as the load is; then it is \
         as heavy as before for {} ms. By the hit ratios ranges ask for some 110 GB. While slots are free \
         nothing speaks for another slab. One that saves too little for a minute is given back, which is after the \
         end here.",
        light.as_secs_f64(),
        heavy.as_secs_f64() * 1e3,
    )
}

fn table(course: &Course, case: (usize, usize)) -> Table {
    let mut table = Table::new(
        &format!(
            "Range-select by the size of remote memory, one after the other, {}",
            name(case)
        ),
        &[
            "remote, GB of 128",
            "slabs",
            "kQPS, first tenth",
            "kQPS at the end",
            "within 10% of that after, ms",
            "slowest 5 ms, of the end",
            "hits in remote memory, first tenth",
            "hits at the end",
            "pages moved",
        ],
    );
    for (size, gb) in REMOTE_GB.iter().enumerate() {
        let (all, first, end) = (course.of(size), course.first(size), course.end(size));
        table.rows.push(vec![
            format!("{gb}"),
            course.bins[all.end - 1].slabs.to_string(),
            format!("{:.1}", course.qps(first.clone()) / 1e3),
            format!("{:.1}", course.qps(end.clone()) / 1e3),
            format!("{:.0}", course.settles_ms(size)),
            percent(course.slowest(size)),
            percent(course.hit_ratio(first)),
            percent(course.hit_ratio(end)),
            course.grown(all, |bin| bin.moved).to_string(),
        ]);
    }
    table
}

/// Parts of the light load that have a row each.
const PARTS: usize = 5;

/// How it grows, and what the heavy load comes to after that: beside the same with the largest size set by hand.
fn table_by_need(course: &Course, by_hand: &Course) -> Table {
    let mut table = Table::new(
        &format!("As large as it is needed, {}", name(CASES[FAST])),
        &[
            "load",
            "to second",
            "remote, GB of 128",
            "kQPS",
            "hits in remote memory",
            "kQPS of that with 128 GB set",
        ],
    );
    let (light, heavy) = (course.of(0), course.end(1));
    let part = light.len() / PARTS;
    let parts = (0..PARTS).map(|i| ("light", i * part..(i + 1) * part));
    let all = by_hand.qps(by_hand.end(REMOTE_GB.len() - 1));
    for (load, bins) in parts.chain([("heavy", heavy)]) {
        let qps = course.qps(bins.clone());
        table.rows.push(vec![
            load.into(),
            format!("{:.1}", bins.end as f64 * course.bin.as_secs_f64()),
            format!("{}", course.gb(bins.end - 1)),
            format!("{:.1}", qps / 1e3),
            percent(course.hit_ratio(bins)),
            if load == "heavy" {
                percent(qps / all)
            } else {
                String::new()
            },
        ]);
    }
    table
}

const MS: Nanos = Nanos::from_millis(1);
const SECOND: Nanos = Nanos::from_secs(1);
/// Bins of a point of a plot, where the load is light.
const DRAWN: usize = 5;
/// The cases, for legends.
const SHORT: [&str; 3] = ["PolarDB's cost", "PolarDB's cost, 48 sessions", "Cenote's cost"];

/// A line of how large remote memory is.
fn size(course: &Course, bins: Range<usize>, unit: Nanos) -> Series {
    let points = course.curve(bins, 1, unit, |bins| course.gb(bins.end - 1) / ALL_GB * 100.0);
    pooling::series("size, of 128 GB", points)
}

/// Throughput; what was found in remote memory, and how large it was; the same where that is left to it.
fn panels(all: &[Course], by_need: &Course) -> Vec<Panel> {
    let panel = |title: &str, (x, y): (&str, &str), series: Vec<Series>| Panel {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        series,
        marks: false,
    };
    let (mut throughput, mut shares) = (Vec::new(), Vec::new());
    for (course, name) in all.iter().zip(SHORT) {
        let curve = |of: &dyn Fn(Range<usize>) -> f64| course.curve(0..course.bins.len(), 1, MS, of);
        let qps = curve(&|bins| course.qps(bins) / 1e3);
        throughput.push(pooling::series(name, qps));
        let hits = curve(&|bins| course.hit_ratio(bins) * 100.0);
        shares.push(pooling::series(&format!("hits, {name}"), hits));
    }
    // Three sessions a vCPU ask for the same pages, a little sooner.
    shares.remove(1);
    shares.push(size(&all[0], 0..all[0].bins.len(), MS));
    let light = by_need.of(0);
    let hits = by_need.curve(light.clone(), DRAWN, SECOND, |bins| by_need.hit_ratio(bins) * 100.0);
    let grown = vec![
        pooling::series(&format!("hits, {}", SHORT[FAST]), hits),
        size(by_need, light, SECOND),
    ];
    vec![
        panel("throughput", ("milliseconds", "thousand queries/s"), throughput),
        panel("remote memory, set", ("milliseconds", "%"), shares),
        panel("remote memory by need, a light load", ("seconds", "%"), grown),
    ]
}

/// The paper says of each size which way throughput goes, and how fast.
fn claims(course: &Course, case: (usize, usize)) -> Vec<Claim> {
    let waits_hide = case == CASES[1];
    let claim = |what: String, is_so: bool, why: &'static str| Claim {
        what: format!("{what}, {} (1: yes)", name(case)),
        paper: Paper::About(1.0),
        ours: f64::from(u8::from(is_so)).into(),
        kind: Kind::Result,
        decimals: 0,
        why: if waits_hide { why::WAITS_HIDE } else { why },
    };
    let change = |size: usize| {
        let (from, to) = (REMOTE_GB[size - 1], REMOTE_GB[size]);
        let [before, after] = [size - 1, size].map(|size| course.qps(course.end(size)));
        let at_once = course.at_once(size);
        match to > from {
            true => claim(
                format!("{from} to {to} GB: faster, less than half of it in the first tenth of the time"),
                is_more(after, before) && at_once < 0.5,
                why::GROWS,
            ),
            false => claim(
                format!("{from} to {to} GB: slower, more than half of it in the first tenth of the time"),
                is_more(before, after) && at_once > 0.5,
                why::SHRINKS,
            ),
        }
    };
    let order = claim(
        "8, 48, 80, 128 GB: the more, the faster".into(),
        course.is_in_order(),
        why::IN_ORDER,
    );
    std::iter::once(order).chain((1..REMOTE_GB.len()).map(change)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four sizes of twenty bins each, with so many statements a bin at first, and from some bin of it on.
    fn course(sizes: [(u32, usize, u32); 4]) -> Course {
        let bin = |statements| Bin {
            statements,
            ..Bin::default()
        };
        let of_size =
            |(first, turns, then): (u32, usize, u32)| (0..20).map(move |i| bin(if i < turns { first } else { then }));
        Course {
            bin: BIN,
            bins: sizes.into_iter().flat_map(of_size).collect(),
            starts: vec![0, 20, 40, 60, 80],
        }
    }

    fn verdicts(course: &Course) -> Vec<f64> {
        claims(course, CASES[0]).iter().map(|c| c.ours.median()).collect()
    }

    #[test]
    fn what_the_paper_says_is_so() {
        let like_it = course([(100, 0, 100), (110, 8, 200), (150, 1, 140), (155, 12, 300)]);
        assert_eq!(verdicts(&like_it), [1.0; 4]);
        assert!((like_it.at_once(1) - 0.1).abs() < 1e-9, "{}", like_it.at_once(1));
        assert!(like_it.at_once(2) > 0.9);
        let [at_once, slow] = [(300, 0, 300), (200, 10, 150)];
        let unlike = course([(100, 0, 100), (200, 0, 200), slow, at_once]);
        assert_eq!(verdicts(&unlike), [1.0, 0.0, 0.0, 0.0]);
        let of_one_size = course([(100, 0, 100); 4]);
        assert_eq!(verdicts(&of_one_size), [0.0; 4], "no change is neither");
    }

    #[test]
    fn rows_are_of_first_and_last_bins() {
        let mut course = course([(100, 0, 100), (110, 8, 200), (150, 1, 140), (155, 12, 300)]);
        for (i, bin) in course.bins.iter_mut().enumerate() {
            bin.slabs = if i < 20 { 0 } else { 9 };
            (bin.hits, bin.misses, bin.moved) = (i as u64 * 3, i as u64, i as u64);
        }
        let rows = table(&course, CASES[0]).rows;
        let of_80: Vec<&str> = rows[1].iter().map(String::as_str).collect();
        let expected = ["80", "9", "22.0", "40.0", "40", "55.0%", "75.0%", "75.0%", "20"];
        assert_eq!(of_80, expected);
        assert!((course.gb(79) - 80.0).abs() < 1e-9);
        let points = course.curve(0..4, 2, MS, |bins| bins.len() as f64);
        assert_eq!(points, [(5.0, 2.0), (15.0, 2.0)]);
    }
}
