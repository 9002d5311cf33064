//! What it saves a statement over many keys that their pages are read together, simulated: an eighth of the pages is
//! near, all of them in remote memory (profile `rdma`) or in storage. The same seed gives the same numbers.
//!
//! `cargo run --release -p cenote-bench --example prefetch [SEEDS]`: 3 unless told otherwise.

use cenote_bench::Result;
use cenote_bench::reproduce::cost::Costs;
use cenote_bench::reproduce::keys::measure;
use cenote_bench::reproduce::pod::{Dataset, Scale, System};

fn main() -> Result<()> {
    let seeds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(3);
    println!(
        "| the others are in | seed | statement of 300 rows, or a scan | page by page, us | together, us | time |"
    );
    println!("|---|---|---|---|---|---|");
    for seed in 1..=seeds {
        let dataset = Dataset::build(Scale::usual(), seed, &mut |_| ())?;
        for (place, system) in [
            ("remote memory", System::Tiered(0.125)),
            ("storage", System::Vanilla(0.125)),
        ] {
            let [alone, together] = [
                measure(&dataset, system, false, &Costs::cenote(), (seed, false))?,
                measure(&dataset, system, true, &Costs::cenote(), (seed, false))?,
            ];
            let kinds = [
                ("index read", alone.index_read, together.index_read),
                ("index join", alone.index_join, together.index_join),
                ("scan of 25,000", alone.scan, together.scan),
            ];
            for (kind, alone, together) in kinds {
                let (alone, together) = (alone.raw() as f64 / 1000.0, together.raw() as f64 / 1000.0);
                let change = 100.0 * (together / alone - 1.0);
                println!("| {place} | {seed} | {kind} | {alone:.0} | {together:.0} | {change:+.0}% |");
            }
        }
    }
    Ok(())
}
