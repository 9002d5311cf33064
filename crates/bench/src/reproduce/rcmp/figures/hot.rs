//! Hot extents move, or not, by threshold.

use super::super::load::{Load, Pick};
use super::super::rig::{BYTES, Measured, Shape};
use super::super::run::Kind;
use super::super::store::UNIT;
use super::super::{paper, pool, why};
use super::{all, chart, claim, ends, panel, profiles, run, series};
use crate::Result;
use crate::reproduce::judge::Paper;
use crate::reproduce::options::{Options, Progress};
use crate::reproduce::report::{Figure, Table};
use crate::ycsb::choose::Zipfian;
use cenote_base::rt::Nanos;
use std::sync::Arc;

const HOW: &str = "Ours alone: 4 clients in each of two pods read (90%) and write items of 64 bytes, ranks in the \
    order of addresses, so that some extents are hot. Hosts look for what is hot every 2 ms, and what came stays 10 \
    ms: a hundredth of the product's times, as the runs are short. An extent that is hotter elsewhere by a factor of 2, \
    and by what samples of near accesses may have missed, is offered there. The last setting has neither, and nothing \
    stays. In brackets: the slower pod's share of the operations.";

type Setting = (String, pool::Options);

/// Nothing moves; moves by threshold; and what keeps two pods from snatching an extent from each other turned off.
fn settings(options: &Options) -> Vec<Setting> {
    let usual = pool::Options::default();
    let hot = |hot: f64| (format!("threshold {hot}"), pool::Options { hot, ..usual });
    let still = pool::Options { moves: false, ..usual };
    let snatching = pool::Options {
        margin: 1.0,
        doubt: 0.0,
        stay: Nanos::ZERO,
        ..hot(3.0).1
    };
    let thresholds: &[f64] = if options.quick {
        &[3.0]
    } else {
        &[3.0, 300.0, 1000.0, 3000.0, 10_000.0]
    };
    let mut settings = vec![("nothing moves".into(), still)];
    settings.extend(thresholds.iter().map(|threshold| hot(*threshold)));
    settings.push(("threshold 3, no margin, no doubt, no rest".into(), snatching));
    settings
}

fn loads() -> [(&'static str, Pick); 3] {
    let zipf = Arc::new(Zipfian::new(BYTES / UNIT));
    [
        ("uniform", Pick::Uniform),
        ("Zipf, the same in both pods", Pick::Zipf(Arc::clone(&zipf))),
        ("Zipf, each pod its own", Pick::ZipfOfPod(zipf)),
    ]
}

/// The figure.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn hot(options: &Options, progress: &Progress) -> Result<Figure> {
    let (settings, loads) = (settings(options), loads());
    let measured = measure(options, &settings, &loads, progress)?;
    let by_load: Vec<&[Measured]> = measured.chunks(settings.len()).collect();
    let line = |((name, _), runs): (&(&str, Pick), &&[Measured])| {
        let points = (0..).zip(runs.iter()).map(|(x, run)| (f64::from(x), run.rate / 1e6));
        series(name, points.collect())
    };
    let lines = loads.iter().zip(&by_load).map(line).collect();
    let more = |load: usize| by_load[load][1].rate / by_load[load][0].rate;
    let [uniform, skewed] = [paper::HOT.0, paper::HOT.1].map(|more| Paper::About(1.0 + more));
    Ok(Figure {
        name: "hot",
        title: "hot extents move".into(),
        how: HOW.into(),
        profiles: profiles(),
        tables: vec![table(&settings, &by_load)],
        chart: chart(
            "Hot extents",
            vec![panel(
                "two pods",
                ("setting, in the order of the table from 0 on", "M operations/s"),
                lines,
            )],
        ),
        claims: vec![
            claim("threshold 3, uniform, times without moves", uniform, more(0), why::HOT),
            claim(
                "threshold 3, Zipf, the same in both pods, times without moves",
                skewed,
                more(1),
                why::HOT,
            ),
            claim(
                "threshold 3, Zipf, each pod its own, times without moves",
                skewed,
                more(2),
                why::HOT,
            ),
        ],
    })
}

fn measure(
    options: &Options,
    settings: &[Setting],
    loads: &[(&str, Pick)],
    progress: &Progress,
) -> Result<Vec<Measured>> {
    let settle = Nanos::from_millis(if options.quick { 10 } else { 20 });
    let window = Nanos::from_millis(if options.quick { 10 } else { 40 });
    let of_load = |(_, pick): &(&str, Pick)| {
        let load = Load::Random {
            size: UNIT,
            writes: 10,
            pick: pick.clone(),
        };
        let one = move |(_, setting): &Setting| {
            let mut run = run(options, Kind::Pool(*setting), Shape::of(2, 4, 1), load.clone(), window);
            run.settle = settle;
            run
        };
        settings.iter().map(one).collect::<Vec<_>>()
    };
    let runs: Vec<_> = loads.iter().flat_map(of_load).collect();
    all(&runs, "hot extents", progress)
}

fn table(settings: &[Setting], by_load: &[&[Measured]]) -> Table {
    let header = [
        "setting",
        "uniform",
        "",
        "moved",
        "Zipf, same",
        "",
        "moved",
        "Zipf, own",
        "",
        "moved",
    ];
    let mut table = Table::new(
        "Million operations a second, more than without moves, extents moved",
        &header,
    );
    for (n, (name, _)) in settings.iter().enumerate() {
        let cells = by_load.iter().flat_map(|runs| cells(&runs[n], &runs[0]));
        table.rows.push([name.clone()].into_iter().chain(cells).collect());
    }
    table
}

fn cells(run: &Measured, still: &Measured) -> [String; 3] {
    let (slower, _) = ends(run.by_pod.iter().copied());
    [
        format!("{:.2} ({:.2})", run.rate / 1e6, slower / 1e6),
        format!("{:+.0}%", (run.rate / still.rate - 1.0) * 100.0),
        run.told("moved").to_string(),
    ]
}
