//! Random reads and writes of a size by one client in each of two pods.

use super::super::load::{Load, Pick};
use super::super::rig::Shape;
use super::super::run::Kind;
use super::super::{paper, why};
use super::{Grid, all, chart, claim, counted, ends, less, neither, profiles, run};
use crate::Result;
use crate::reproduce::judge::{Claim, Paper};
use crate::reproduce::options::{Options, Progress};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;

const HOW: &str = "One client in each of two pods reads or writes items at random, each size in a run of its own; mean \
    latency. Half of the memory is in the other pod. The caches of page swapping and of coherent caches are full when \
    counting begins.";

/// The figure.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn latency(options: &Options, progress: &Progress) -> Result<Figure> {
    let sizes: &[u64] = if options.quick {
        &[64, 1024]
    } else {
        &[64, 256, 512, 1024, 2048, 4096]
    };
    let reads = sweep(options, sizes, 0, progress)?;
    let writes = sweep(options, sizes, 100, progress)?;
    Ok(Figure {
        name: "latency",
        title: "random reads and writes in two pods".into(),
        how: HOW.into(),
        profiles: profiles(),
        tables: vec![
            reads.to(0).table("A read's latency, times Cenote's", "bytes"),
            writes.to(0).table("A write's latency, times Cenote's", "bytes"),
            reads.table("Microseconds a read", "bytes"),
            writes.table("Microseconds a write", "bytes"),
        ],
        chart: chart(
            "Latency in two pods",
            vec![
                reads.panel("random reads", "bytes", "us"),
                writes.panel("random writes", "bytes", "us"),
            ],
        ),
        claims: claims(&reads.numbers, &writes.numbers),
    })
}

fn sweep(options: &Options, sizes: &[u64], writes: u64, progress: &Progress) -> Result<Grid> {
    let window = Nanos::from_millis(if options.quick { 2 } else { 5 });
    let one = |(size, kind): (u64, Kind)| {
        let mut shape = Shape::of(2, 1, 1);
        shape.object = size;
        let pick = Pick::Uniform;
        run(options, kind, shape, Load::Random { size, writes, pick }, window)
    };
    let of_size = |size: &u64| Kind::all().map(|kind| one((*size, kind)));
    let runs: Vec<_> = sizes.iter().flat_map(of_size).collect();
    let measured = all(&runs, "latency", progress)?;
    let rows = counted(sizes.iter().copied());
    Ok(Grid::of_systems(rows, &measured, |run| run.mean_us))
}

/// By size, then by system; the first size is 64 bytes.
fn claims(reads: &[Vec<f64>], writes: &[Vec<f64>]) -> Vec<Claim> {
    let (read, write) = (&reads[0], &writes[0]);
    let mut claims = systems(read, write);
    let [paper_write, paper_read] = paper::TIMES_LOWER;
    for (what, means, (least, most)) in [("write", write, paper_write), ("read", read, paper_read)] {
        let (fastest, slowest) = ends(means[1..].iter().map(|mean| mean / means[0]));
        let name = |which| format!("64 B, {what}: the {which} other system's latency, times ours");
        claims.push(claim(name("slowest"), Paper::About(most), slowest, why::TIMES));
        claims.push(claim(name("fastest"), Paper::About(least), fastest, why::TIMES));
    }
    // The last is CXL over Ethernet.
    let rdma = |means: &Vec<f64>| ends(means[1..4].iter().map(|mean| mean / means[0])).1;
    let (_, most) = ends(reads.iter().chain(writes).map(rdma));
    let what = "all sizes, the most: a system's with RDMA alone, times ours (abstract)";
    claims.push(claim(
        what,
        Paper::About(paper::MOST_TIMES_LOWER),
        most,
        why::MOST_TIMES,
    ));
    claims
}

fn systems(read: &[f64], write: &[f64]) -> Vec<Claim> {
    let (most_write, most_read) = paper::LATENCY;
    let [swap, object, coherent, ethernet] = paper::OTHERS;
    let numbers = [
        ("ours, 64 B, write, us", Paper::AtMost(most_write), write[0], why::OURS),
        ("ours, 64 B, read, us", Paper::AtMost(most_read), read[0], why::OURS),
        (
            "page swapping, 64 B, read, us",
            Paper::AtLeast(swap),
            read[1],
            why::SWAP,
        ),
        ("objects, 64 B, read, us", Paper::About(object), read[2], why::OBJECT),
        ("objects, 64 B, write, us", Paper::About(object), write[2], why::OBJECT),
        (
            "coherent caches, 64 B, read, us",
            Paper::About(coherent),
            read[3],
            why::COHERENT,
        ),
        (
            "coherent caches, 64 B, write, us",
            Paper::About(coherent),
            write[3],
            why::COHERENT,
        ),
        (
            "CXL over Ethernet, 64 B, read, us",
            Paper::About(ethernet),
            read[4],
            why::ETHERNET,
        ),
    ];
    numbers
        .into_iter()
        .map(|(what, paper, mean, why)| match what.starts_with("ours") {
            true => less(what, paper, mean, why),
            false => neither(what, paper, mean, why),
        })
        .collect()
}
