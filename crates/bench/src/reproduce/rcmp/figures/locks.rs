//! The write buffer that hangs on a write lock, by the size of what is written and by how much.

use super::super::load::Load;
use super::super::rig::{Measured, Shape};
use super::super::run::Kind;
use super::super::{paper, pool, why};
use super::{Grid, all, chart, claim, counted, ends, profiles, run};
use crate::Result;
use crate::reproduce::judge::Paper;
use crate::reproduce::options::{Options, Progress};
use crate::reproduce::report::Figure;
use cenote_base::rt::Nanos;

const HOW: &str = "Ours alone: 4 clients in each of two pods take the lock of an extent to write, any of 3,072 \
    alike, write items in it and leave it; half of the extents are in the other pod. Without the buffer each write is \
    an access of its own; with it, writes of up to 256 bytes to the other pod are collected and go in the background, \
    or with the message that unlocks. Nothing moves.";

/// Writes of a hold where sizes are compared.
const WRITES: u64 = 16;
/// Bytes of an item where their number is.
const SIZE: u64 = 64;
/// From here on nothing is collected: in the paper as well.
const BUFFERED_MAX: u64 = 256;

/// The figure.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn locks(options: &Options, progress: &Progress) -> Result<Figure> {
    let sizes: &[u64] = match options.quick {
        true => &[64, 512],
        false => &[64, 128, 256, 512, 1024],
    };
    let counts: &[u64] = match options.quick {
        true => &[16],
        false => &[1, 2, 4, 16, 64],
    };
    let of_sizes = sizes.iter().map(|size| (*size, WRITES));
    let of_counts = counts.iter().map(|writes| (SIZE, *writes));
    let shapes: Vec<(u64, u64)> = of_sizes.chain(of_counts).collect();
    let measured = measure(options, &shapes, progress)?;
    let rates: Vec<Vec<f64>> = measured
        .chunks(2)
        .zip(&shapes)
        .map(|(runs, shape)| row(runs, shape.1))
        .collect();
    let (by_size, by_count) = rates.split_at(sizes.len());
    let small = sizes.iter().zip(by_size).filter(|(size, _)| **size <= BUFFERED_MAX);
    let most = ends(small.map(|(_, row)| row[0])).1;
    let large = sizes.iter().zip(by_size).filter(|(size, _)| **size > BUFFERED_MAX);
    let least = ends(large.map(|(_, row)| row[0])).0;
    let (by_size, by_count) = (grid(sizes, by_size), grid(counts, by_count));
    Ok(Figure {
        name: "locks",
        title: "the write buffer of a lock".into(),
        how: HOW.into(),
        profiles: profiles(),
        tables: vec![
            by_size.table("Million writes a second, 16 a hold", "bytes"),
            by_count.table("Million writes a second, of 64 bytes", "writes a hold"),
        ],
        chart: chart(
            "Write buffers",
            vec![
                by_size.behind_first().panel("16 writes a hold", "bytes", "M writes/s"),
                by_count.behind_first().panel("64 bytes", "writes a hold", "M writes/s"),
            ],
        ),
        claims: vec![
            claim(
                "up to 256 bytes, 16 writes a hold: times without a buffer, most",
                Paper::About(paper::WRITE_BUFFER),
                most,
                why::WRITE_BUFFER,
            ),
            claim(
                "above 256 bytes: times without a buffer, least",
                Paper::About(1.0),
                least,
                why::WRITE_BUFFER,
            ),
        ],
    })
}

fn measure(options: &Options, shapes: &[(u64, u64)], progress: &Progress) -> Result<Vec<Measured>> {
    let still = pool::Options {
        moves: false,
        ..pool::Options::default()
    };
    let window = Nanos::from_millis(if options.quick { 2 } else { 6 });
    let one = |(size, writes): &(u64, u64)| {
        [false, true].map(|is_buffered| {
            let load = Load::Locked {
                size: *size,
                writes: *writes,
                is_buffered,
            };
            run(options, Kind::Pool(still), Shape::of(2, 4, 1), load, window)
        })
    };
    let runs: Vec<_> = shapes.iter().flat_map(one).collect();
    all(&runs, "write buffers", progress)
}

/// Writes a second with the buffer as a multiple of those without; both in millions.
fn row(runs: &[Measured], writes: u64) -> Vec<f64> {
    let rate = |run: &Measured| run.rate * writes as f64 / 1e6;
    vec![rate(&runs[1]) / rate(&runs[0]), rate(&runs[0]), rate(&runs[1])]
}

fn grid(rows: &[u64], numbers: &[Vec<f64>]) -> Grid {
    Grid {
        rows: counted(rows.iter().copied()),
        columns: vec!["times", "each by itself", "collected"],
        numbers: numbers.to_vec(),
    }
}
