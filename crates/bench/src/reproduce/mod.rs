//! `cenote reproduce`: a paper's experiments with all of its baselines, run by the simulator, its numbers beside ours.
//!
//! The engine that runs is the real one (trees, transactions, log, buffer pool of kinds cxl, dram and tiered); hosts,
//! caches, memory, links, network cards and storage are simulated, in virtual time, by published device profiles
//! (`cenote_fabric::profile`). One set of profiles serves all figures; nothing is fitted to one.
//!
//! | module | |
//! |---|---|
//! | [`paper`] | what the paper measured, as data |
//! | [`cost`] | what a statement costs the processor: the other input |
//! | [`workload`] | sysbench's statements on the engine |
//! | [`pod`] | a host's instances in a simulated world, and the phases of a run |
//! | [`latency`], [`pooling`], [`recovery`] | tables 1 and 2; figures 1, 3, 7, 8, 9; figure 10 |
//! | [`judge`], [`seeds`] | ours beside the paper's: agreement both ways, inputs, several seeds |
//! | [`report`], [`chart`], [`why`] | tables, plots, the page and its explanations |
//! | [`origin`] | commit and code of a page, its numbers as data, whether it is stale |
//! | [`rcmp`], [`serverless`] | other papers: a pool over several pods; local memory in front of remote memory |

pub mod chart;
pub mod cost;
pub mod judge;
pub mod keys;
pub mod latency;
pub mod mirrors;
pub mod mix;
pub mod options;
pub mod origin;
pub mod paper;
pub mod pod;
pub mod pooling;
pub mod rcmp;
pub mod recovery;
pub mod replay;
pub mod report;
pub mod seeds;
pub mod serverless;
pub mod why;
pub mod workload;

use crate::{Error, IoContext, Result};
use mix::Mix;
pub use options::{Options, Progress};
use origin::{Code, Origin, Page};
use pod::{Dataset, Scale, System};
use report::Figure;
use std::fmt::Write as _;
use std::time::Instant;

/// Papers whose experiments there are.
pub const PAPERS: [&str; 3] = ["polarcxlmem", "rcmp", "serverless"];

/// All figures and tables of polarcxlmem, in the paper's order.
pub const FIGURES: [&str; 8] = ["table1", "table2", "fig1", "fig3", "fig7", "fig8", "fig9", "fig10"];

/// Shown with `--help`.
pub const HELP: &str = "\
Figures of polarcxlmem: table1, table2 (latencies), fig1 (local buffer's size over RDMA), fig3 (CXL against DRAM),
fig7, fig8, fig9 (CXL against RDMA: point-select, range-select, read-write), fig10 (crashes).

Figures of rcmp, two pods and more against page swapping, objects, coherent caches, CXL over Ethernet: latency, clients, pods
(throughput), ycsb, hot (hot extents move), locks (their write buffers), rpc (modes by size), missing (what is not simulated).

Figures of serverless, local memory in front of remote memory: fig8 (remote memory grows and shrinks), fig9 (a switch and
crashes), fig10 (against local memory alone), fig11 (local memory's size), fig14 (reads of a server and a reader),
fig15 (prefetching); traced on a real server and replayed, TPC-H's queries: fig10-tpch, fig12 (local memory's size),
fig13 (remote memory's), fig15-tpch; and TPC-C's transactions: fig10-tpcc, fig11-tpcc.

Examples:
  cenote reproduce polarcxlmem                          all of them, into reproduce-out
  cenote reproduce polarcxlmem fig7 --out seven         one
  cenote reproduce polarcxlmem --quick --seeds 1        all of them, small, in under two minutes
  cenote reproduce rcmp ycsb --out ycsb                 one of Rcmp
  cenote reproduce serverless fig11 --out eleven        one of PolarDB Serverless";

/// All figures of a paper.
fn known(paper: &str) -> Result<&'static [&'static str]> {
    match paper {
        "polarcxlmem" => Ok(&FIGURES),
        "rcmp" => Ok(&rcmp::FIGURES),
        "serverless" => Ok(&serverless::FIGURES),
        other => {
            let text = format!(
                "no experiments of \"{other}\" are known; there are those of {}",
                PAPERS.join(", ")
            );
            Err(Error::Simulation(text))
        }
    }
}

/// The figures asked for, in the paper's order; an unknown name is an error that lists them.
fn chosen(options: &Options) -> Result<Vec<&'static str>> {
    let known = known(&options.paper)?;
    if let Some(unknown) = options.figures.iter().find(|f| !known.contains(&f.as_str())) {
        let text = format!("no figure \"{unknown}\"; there are {}", known.join(", "));
        return Err(Error::Simulation(text));
    }
    let wanted = |name: &&str| options.figures.is_empty() || options.figures.iter().any(|f| f == name);
    Ok(known.iter().copied().filter(wanted).collect())
}

/// Runs what is asked for, writes tables, plots and the page, prints the page; the figures, for tests.
///
/// # Errors
/// Those of [`figures`]; [`Error::Io`] if the page or a part of it cannot be read or written.
pub fn run(options: &Options) -> Result<()> {
    let begun = Instant::now();
    let all = known(&options.paper)?;
    let code = Code::of(&options.paper, &origin::root())?;
    let mut page = Page::read(&options.out);
    let mut names = chosen(options)?;
    names.retain(|name| !options.if_stale || !page.has(name, &code, options.seeds));
    let made = Origin::of(options, &code);
    if !names.is_empty() {
        for figure in named(options, &names)? {
            figure.write(&options.out, &made.text())?;
            println!("\n{}", figure.summary());
            page.set(&figure, &made);
        }
    }
    if !options.quick && !page.has_probe(&code) {
        page.set_probe(&probe(options)?, &made);
    }
    page.write(&options.out)?;
    let path = options.out.join("README.md");
    std::fs::write(&path, whole(options, all, &page)?).context("writing the page")?;
    println!("{} in {:.0} s", path.display(), begun.elapsed().as_secs_f64());
    Ok(())
}

/// The page: what stands before the figures, and the parts that there are, whenever they were made.
fn whole(options: &Options, all: &[&str], page: &Page) -> Result<String> {
    let mut text = opening(options, &judge::count(&page.verdicts(all)));
    for name in all {
        let part = options.out.join(format!("{name}.md"));
        if part.exists() {
            text += &std::fs::read_to_string(&part).context(format!("reading {}", part.display()))?;
        }
    }
    Ok(text)
}

/// The small figure that a test runs again: seconds of work, over most of the code that the page measures.
///
/// # Errors
/// As [`figures`].
pub fn probe(options: &Options) -> Result<Figure> {
    let small = Options {
        figures: vec![probe_of(&options.paper).into()],
        quick: true,
        ..options.clone()
    };
    Ok(figures(&small)?.remove(0))
}

/// The name of a paper's probe.
pub fn probe_of(paper: &str) -> &'static str {
    match paper {
        "rcmp" => "locks",
        "serverless" => "fig11",
        _ => "fig1",
    }
}

/// Runs what is asked for, by each of the seeds.
///
/// # Errors
/// [`Error::Simulation`] if a figure is not known, a world cannot be set up, or something in it fails; [`Error::Io`] of
/// the output folder.
pub fn figures(options: &Options) -> Result<Vec<Figure>> {
    named(options, &chosen(options)?)
}

/// The databases of a paper's figures. One for all seeds: what they vary is what befalls it.
enum Data {
    None,
    Cxl(Option<Dataset>),
    Serverless(Box<serverless::Data>),
}

impl Data {
    fn fill(options: &Options, names: &[&str], progress: &Progress) -> Result<Data> {
        Ok(match &options.paper[..] {
            "rcmp" => Data::None,
            "serverless" => Data::Serverless(Box::new(serverless::Data::fill(options, names, progress)?)),
            _ => {
                let needs_data = names.iter().any(|name| name.starts_with("fig"));
                let fill = || fill(Scale::usual(), options.seed, progress);
                Data::Cxl(needs_data.then(fill).transpose()?)
            }
        })
    }
}

fn named(options: &Options, names: &[&'static str]) -> Result<Vec<Figure>> {
    std::fs::create_dir_all(&options.out).context("creating the output folder")?;
    let progress = Progress::default();
    let data = Data::fill(options, names, &progress)?;
    let mut by_figure: Vec<Vec<Figure>> = names.iter().map(|_| Vec::new()).collect();
    for seed in (options.seed..).take(options.seeds.max(1) as usize) {
        let options = Options {
            seed,
            ..options.clone()
        };
        let of_seed = match &data {
            Data::None => rcmp::figures(&options, names, &progress)?,
            Data::Cxl(dataset) => of_seed(&options, names, dataset.as_ref(), &progress)?,
            Data::Serverless(data) => serverless::figures(&options, names, data, &progress)?,
        };
        by_figure
            .iter_mut()
            .zip(of_seed)
            .for_each(|(all, figure)| all.push(figure));
    }
    Ok(by_figure.into_iter().map(seeds::merge).collect())
}

/// The figures of polarcxlmem by one seed.
fn of_seed(
    options: &Options,
    names: &[&'static str],
    dataset: Option<&Dataset>,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let sweep = dataset
        .map(|d| sweep(options, names, d, progress))
        .transpose()?
        .flatten();
    let one = |name: &&'static str| match (*name, dataset, &sweep) {
        ("table1", ..) => latency::table1(),
        ("table2", ..) => latency::table2(),
        ("fig1", Some(data), _) => pooling::fig1(options, data, progress),
        ("fig10", Some(data), _) => recovery::fig10(options, data, progress),
        ("fig3", _, Some(sweep)) => Ok(pooling::fig3(sweep)),
        (name, _, Some(sweep)) => Ok(pooling::against_rdma(sweep, name)),
        _ => unreachable!("data and sweep are made for the figures that need them"),
    };
    names.iter().map(one).collect()
}

fn fill(scale: Scale, seed: u64, progress: &Progress) -> Result<Dataset> {
    let bar = progress.bar("rows", scale.tables as u64 * scale.rows as u64);
    let dataset = Dataset::build(scale, seed, &mut |rows| bar.set_position(rows));
    bar.finish_and_clear();
    dataset
}

/// The systems and mixes that the chosen ones of figures 3 and 7 to 9 need.
fn sweep(options: &Options, names: &[&str], dataset: &Dataset, progress: &Progress) -> Result<Option<pooling::Sweep>> {
    let has = |name: &str| names.contains(&name);
    let mut mixes = Vec::new();
    for (name, mix) in [
        ("fig7", Mix::PointSelect),
        ("fig8", Mix::RangeSelect),
        ("fig9", Mix::ReadWrite),
    ] {
        if has(name) || has("fig3") {
            mixes.push(mix);
        }
    }
    let mut systems = vec![System::Cxl];
    if has("fig3") {
        systems.push(System::Dram);
    }
    if mixes.is_empty() {
        return Ok(None);
    }
    if ["fig7", "fig8", "fig9"].into_iter().any(has) {
        systems.push(System::Tiered(pooling::LOCAL));
    }
    pooling::Sweep::run(options, dataset, progress, &mixes, &systems).map(Some)
}

/// What stands before the figures.
fn opening(options: &Options, count: &str) -> String {
    let sum = format!("## Sum\n\n{count}\n");
    if options.paper == "rcmp" {
        return format!("{}\n{sum}\n", rcmp::OPENING);
    }
    let (mut text, theirs, missing) = match &options.paper[..] {
        "serverless" => (String::from(serverless::OPENING), "PolarDB's", serverless::MISSING),
        _ => (
            String::from(include_str!("opening.md")),
            "the paper's",
            include_str!("missing.md"),
        ),
    };
    writeln!(text, "{}\n{missing}\n{sum}", costs(theirs).markdown()).ok();
    text
}

/// What statements cost: Cenote's as measured, and those of the system that papers measure.
fn costs(theirs: &str) -> report::Table {
    let [paper, cenote] = cost::Costs::both();
    let mut table = report::Table::new(
        "Processor time a statement, us",
        &["statement", "Cenote, measured", theirs],
    );
    for ((name, ours), (_, theirs)) in cenote.rows().into_iter().zip(paper.rows()) {
        table
            .rows
            .push(vec![name.into(), format!("{ours:.1}"), format!("{theirs:.1}")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::options::parallel;
    use super::*;

    fn options(paper: &str, figures: &[&str]) -> Options {
        Options {
            paper: paper.into(),
            figures: figures.iter().map(|f| (*f).into()).collect(),
            quick: true,
            out: "unused".into(),
            seed: 1,
            seeds: 1,
            commit: None,
            if_stale: false,
            traces: None,
            program: None,
        }
    }

    #[test]
    fn names_are_checked_and_ordered() {
        assert_eq!(
            chosen(&options("polarcxlmem", &["fig9", "table1"])).expect("known"),
            ["table1", "fig9"]
        );
        assert_eq!(chosen(&options("polarcxlmem", &[])).expect("all").len(), 8);
        let unknown = chosen(&options("polarcxlmem", &["fig99"]))
            .expect_err("unknown")
            .to_string();
        assert!(FIGURES.iter().all(|f| unknown.contains(f)), "{unknown}");
        assert!(
            chosen(&options("moby-dick", &[]))
                .expect_err("unknown")
                .to_string()
                .contains("polarcxlmem")
        );
    }

    #[test]
    fn parallel_keeps_the_order() {
        assert_eq!(parallel(&[3, 1, 2], |n| n * 10), [30, 10, 20]);
    }
}
