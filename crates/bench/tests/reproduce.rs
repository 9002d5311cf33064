//! A quick run of all figures: it ends in time, writes what it says, and the shapes that the paper's argument rests on
//! come out. How close numbers are is told by the page of a full run, not asserted here.
//!
//! Each paper's figures are simulated once for all tests ([`quick`]), by the seed with which pages begin.

use cenote_bench::reproduce::judge::{Claim, Samples, Verdict};
use cenote_bench::reproduce::origin::{Page, root};
use cenote_bench::reproduce::report::Figure;
use cenote_bench::reproduce::serverless::COSTS;
use cenote_bench::reproduce::{FIGURES, Options, PAPERS, figures, probe_of, rcmp, run, serverless};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

fn options(paper: &str, out: &std::path::Path, names: &[&str]) -> Options {
    Options {
        paper: paper.into(),
        figures: names.iter().map(|n| (*n).into()).collect(),
        quick: true,
        out: out.into(),
        seed: 1,
        seeds: 1,
        commit: None,
        if_stale: false,
        traces: None,
        program: Some(Path::new(env!("CARGO_BIN_EXE_cenote-bench")).with_file_name("cenote")),
    }
}

/// All figures of a paper.
fn quick(paper: &str) -> &'static [Figure] {
    static ALL: [OnceLock<Vec<Figure>>; PAPERS.len()] = [const { OnceLock::new() }; PAPERS.len()];
    let at = PAPERS.iter().position(|known| *known == paper).expect("a paper");
    ALL[at].get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        figures(&options(paper, dir.path(), &[])).expect("a quick run")
    })
}

fn figure<'a>(figures: &'a [Figure], name: &str) -> &'a Figure {
    figures.iter().find(|f| f.name == name).expect("it was run")
}

fn claim<'a>(figures: &'a [Figure], figure: &str, what: &str) -> &'a Claim {
    let figure = self::figure(figures, figure);
    let found = figure.claims.iter().find(|c| c.what.contains(what));
    found.unwrap_or_else(|| panic!("no comparison \"{what}\" in {}", figure.name))
}

#[test]
fn the_shapes_of_the_paper_come_out() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let all = quick("polarcxlmem");
    assert_eq!(all.iter().map(|f| f.name).collect::<Vec<_>>(), FIGURES);
    let ours = |figure: &str, what: &str| claim(all, figure, what).ours.median();

    // What the profiles say comes back through the simulator's own accesses.
    let table1 = &all[0];
    assert!(table1.claims.iter().all(|c| c.verdict() == Verdict::Input));
    assert!(
        table1.claims.iter().all(|c| c.difference() < 0.01),
        "{}",
        table1.summary()
    );
    let rdma = all[1].claims.iter().filter(|c| c.what.contains("RDMA"));
    rdma.for_each(|c| assert!(c.difference() < 0.01, "{}", c.what));
    // CXL is a little behind DRAM, never far.
    for mix in ["point-select", "range-select", "read-write"] {
        let behind = ours("fig3", &format!("{mix}, at the paper's"));
        assert!((-0.05..0.25).contains(&behind), "{mix}: {behind}");
    }
    // RDMA is saturated early, CXL goes on.
    assert!(ours("fig7", "instances at which") <= 4.0);
    assert!(ours("fig8", "instances at which") <= 8.0);
    assert!(ours("fig7", "12 instances to one") > 10.0);
    assert!(ours("fig7", "bytes over RDMA") > 3.0);
    // Instant recovery waits neither for redo nor for storage's pages; the others do, vanilla for more pages, though
    // all read ahead.
    for mix in ["read-write", "write-only"] {
        let [tiered, vanilla] =
            ["tiered", "vanilla"].map(|s| ours("fig10", &format!("{mix}, 60 ms of load, recovery: {s}")));
        assert!(
            tiered > 8.0 && vanilla > 11.0 && vanilla > 1.1 * tiered,
            "{mix}: {tiered}, {vanilla}"
        );
    }
    for figure in all {
        let part = figure.write(dir.path(), "Made by a test.").expect("written");
        assert!(part.contains("**simulated**"), "{} is not labelled", figure.name);
        let differ = figure.claims.iter().filter(|c| c.needs_reason());
        differ.for_each(|c| assert!(c.why.len() > 40, "{}: {} is not explained", figure.name, c.what));
    }
}

#[test]
fn the_shapes_of_rcmp_come_out() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let all = quick("rcmp");
    assert_eq!(all.iter().map(|f| f.name).collect::<Vec<_>>(), rcmp::FIGURES);
    let ours = |figure: &str, what: &str| claim(all, figure, what).ours.median();

    // Half of all accesses are loads and stores, and a far one is one trip: no system is faster.
    for what in ["write: the fastest", "read: the fastest"] {
        assert!(ours("latency", what) > 1.1, "{what}");
    }
    assert!(ours("latency", "ours, 64 B, write") < 3.5 && ours("latency", "ours, 64 B, read") < 3.0);
    // A fault takes its software and a page: more than a message, wherever it goes.
    assert!(ours("latency", "page swapping") > ours("latency", "CXL over Ethernet"));
    assert!(
        ours("pods", "page swapping, all used alike, a pod of 5") > 0.9,
        "pods that share nothing do not wait for each other"
    );
    // Few accesses to each of many extents moved most of them: a pod of five did a thirteenth of one of two.
    assert!(ours("pods", "ours, all used alike, a pod of 5") > 0.5);
    assert!(ours("pods", "ours, half near, a pod of 5") > 0.85);
    assert!(ours("ycsb", "C, uniform") > 2.0);
    // What is hot moves to its pod; what is the same everywhere stays.
    assert!(ours("hot", "each pod its own") > 1.2);
    assert!((0.95..1.05).contains(&ours("hot", "uniform")));
    assert!(ours("rpc", "one client: the pool's choice, times RPC + one-sided, least") > 1.2);
    // Near requests wait for no payload that is not whole.
    for time in ["p50", "p99", "p999"] {
        assert!(ours("rings", &format!("{time} of near requests")) > 20.0, "{time}");
    }
    for figure in all {
        let part = figure.write(dir.path(), "Made by a test.").expect("written");
        assert!(part.contains("**simulated**"), "{} is not labelled", figure.name);
        let differ = figure.claims.iter().filter(|c| c.needs_reason());
        differ.for_each(|c| assert!(c.why.len() > 40, "{}: {} is not explained", figure.name, c.what));
    }
}

#[test]
fn the_shapes_of_serverless_come_out() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let all = quick("serverless");
    assert_eq!(all.iter().map(|f| f.name).collect::<Vec<_>>(), serverless::FIGURES);
    let ours = |figure: &str, what: &str| claim(all, figure, what).ours.median();

    // The more remote memory the faster, when what is new of it has been warmed.
    for what in [
        "the more, the faster",
        "80 GB: faster, less than half of it in the first tenth of the time",
    ] {
        let is_so = ours("fig8", &format!("{what}, 16 sessions, at Cenote's"));
        assert!(is_so > 0.5, "{what}");
    }
    // A forty-eighth of the pages in local memory costs less than an eighth of the throughput, hot rows less still.
    let lost = ["uniform", "skewed"].map(|of| ours("fig11", &format!("{of}, 0.5 of 24 GB local, at PolarDB's")));
    assert!(0.0 < lost[1] && lost[1] < lost[0] && lost[0] < 0.15, "{lost:?}");
    // All local is all local, whatever is behind it.
    assert!((0.9..1.1).contains(&ours("fig10", "all local, 48 sessions, at PolarDB's")));
    // Where storage makes pages, nothing is replayed; pages in remote memory are there at once.
    assert!(ours("fig9", "until it serves: no materialization to remote memory") > 1.5);
    assert!(ours("fig9", "to 90%: storage nodes alone to remote memory") > 1.2);
    // The longer a page takes, the more it saves to ask for many.
    let saved = ["remote memory", "storage"].map(|over| ours("fig15", &format!("over {over}, at PolarDB's")));
    assert!(0.1 < saved[0] && saved[0] < saved[1], "{saved:?}");
    // What real executors ask for: the less memory the longer it takes, and reading together saves the more.
    let saved = ["remote memory", "storage"].map(|over| ours("fig15-tpch", &format!("over {over}, at Cenote's")));
    assert!(0.05 < saved[0] && saved[0] < saved[1], "{saved:?}");
    let saved = COSTS.map(|at| ours("fig12", at));
    assert!(0.0 < saved[0] && saved[0] < saved[1] && saved[1] < 0.5, "{saved:?}");
    let lost = COSTS.map(|at| ours("fig11-tpcc", at));
    assert!(lost[0] < lost[1] && lost[1] < 0.5, "{lost:?}");
    for figure in ["fig10-tpch", "fig10-tpcc"] {
        assert_eq!(ours(figure, "as much local memory as PolarDB"), 1.0, "{figure}");
    }
    assert!(ours("fig13", "how much faster, the two thirds that gain most, at Cenote's") > 1.05);
    for figure in all {
        let part = figure.write(dir.path(), "Made by a test.").expect("written");
        assert!(part.contains("**simulated**"), "{} is not labelled", figure.name);
        let differ = figure.claims.iter().filter(|c| c.needs_reason());
        differ.for_each(|c| assert!(c.why.len() > 40, "{}: {} is not explained", figure.name, c.what));
    }
}

/// Two pages differed, though all of their numbers were the same: a file of the checkout had changed between the runs,
/// and so the second page named its commit as a dirty one. Here the commit is given, and a page is of its seed alone,
/// whatever else the process simulates beside it or before: these figures alone are what they are among all.
#[test]
fn the_same_seed_gives_the_same_numbers() {
    let (dir, other) = [(); 2]
        .map(|()| tempfile::tempdir().expect("a temporary folder"))
        .into();
    for (paper, names) in [("polarcxlmem", ["table2", "fig1"]), ("rcmp", ["hot", "rpc"])] {
        let options = Options {
            commit: Some("one".into()),
            ..options(paper, dir.path(), &names)
        };
        run(&options).expect("a quick run");
        let page = std::fs::read_to_string(dir.path().join("README.md")).expect("the page");
        assert_eq!(page.matches("of commit one,").count(), names.len(), "{page}");
        for name in names {
            let made = "Made by a quick run (fewer points, shorter windows) of commit one, seed 1.";
            let among_all = figure(quick(paper), name).write(other.path(), made).expect("written");
            let is_missing = |line: &&str| !page.contains(*line);
            assert!(
                page.contains(&among_all),
                "two runs of {paper} differ in {name}, first in {:?}",
                among_all.lines().find(is_missing)
            );
        }
    }
}

/// A page told of code that was no longer there, and nothing said so. The probe is a small figure that was run with the
/// page: run again, its numbers lie where the page's seeds have them, or the page has to be made anew.
#[test]
fn pages_are_of_the_code_as_it_is() {
    for paper in PAPERS {
        let page = Page::read(&root().join("docs/figures").join(paper));
        let now = figure(quick(paper), probe_of(paper));
        let (name, then) = page.probe();
        assert_eq!(Some(now.name), name);
        assert!(!then.is_empty() && then.len() == now.claims.len(), "{paper}: {then:?}");
        for ((what, page), claim) in then.iter().zip(&now.claims) {
            let ours = claim.ours.median();
            assert_eq!(what, &claim.what);
            assert!(
                is_within(ours, page),
                "{paper}, {what}: {ours}, where the page has {page:?}: run make figures"
            );
        }
    }
}

/// Whether a number is one that a page's samples could have been: within their spread, and as much again, or a
/// twentieth of the median, on either side.
fn is_within(now: f64, page: &Samples) -> bool {
    let spread = page.most() - page.least();
    let margin = spread.max(page.median().abs() / 20.0);
    (page.least() - margin..=page.most() + margin).contains(&now)
}

#[test]
fn a_number_may_be_off_by_the_spread() {
    let page = Samples::of([10.0, 11.0, 12.0]);
    assert!(is_within(8.1, &page) && is_within(13.9, &page));
    assert!(!is_within(7.9, &page) && !is_within(14.1, &page) && !is_within(f64::NAN, &page));
    assert!(is_within(10.4, &Samples::from(10.0)) && !is_within(11.0, &Samples::from(10.0)));
}

#[test]
fn unknown_names_are_refused_with_a_list() {
    for (words, expected) in [
        (&["polarcxlmem", "fig2"][..], "table1, table2, fig1"),
        (&["rcmp", "fig1"][..], "latency, clients, pods"),
        (&["serverless", "fig7"][..], "fig8, fig9, fig10, fig10-tpcc"),
        (&["tigon"][..], "polarcxlmem, rcmp"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_cenote-bench"))
            .arg("reproduce")
            .args(words)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{text}");
    }
}
