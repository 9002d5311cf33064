//! What a mirror on another machine costs a database that writes much, simulated: one instance in CXL memory, its
//! mirror reached by cards of the profile `rdma`. The same seed gives the same numbers.
//!
//! `cargo run --release -p cenote-bench --example mirror_cost [SEEDS]`: 3 unless told otherwise.

use cenote_base::rt::Nanos;
use cenote_bench::Result;
use cenote_bench::reproduce::cost::Costs;
use cenote_bench::reproduce::mirrors::Survival;
use cenote_bench::reproduce::mix::Mix;
use cenote_bench::reproduce::pod::{Dataset, Phase, Pod, Scale, System};
use cenote_bench::reproduce::workload::Pick;
use std::sync::Arc;

/// Sessions of the instance.
const SESSIONS: usize = 32;

fn main() -> Result<()> {
    let seeds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(3);
    println!("| mix | seed | survives the process | the host | its memory too | a mirror costs |");
    println!("|---|---|---|---|---|---|");
    for seed in 1..=seeds {
        let dataset = Dataset::build(Scale::usual(), seed, &mut |_| ())?;
        for (mix, [process, host, mirrored]) in costs(&dataset, seed)? {
            let share = 100.0 * (1.0 - mirrored / host);
            println!(
                "| {} | {seed} | {process:.0} | {host:.0} | {mirrored:.0} | {share:.1}% |",
                mix.name()
            );
        }
    }
    Ok(())
}

/// Statements a second of one instance in CXL memory, by mix: of a region that survives the process, the host, and the
/// host's memory.
fn costs(dataset: &Dataset, seed: u64) -> Result<Vec<(Mix, [f64; 3])>> {
    let mixes = [Mix::WriteOnly, Mix::ReadWrite];
    let phase = |mix| Phase {
        costs: Arc::new(Costs::cenote()),
        mix,
        pick: Pick::Uniform,
        active: 1,
        threads: SESSIONS,
        turn: Nanos::from_millis(1),
        settle: Nanos::from_millis(20),
        window: Nanos::from_millis(100),
    };
    let run = |survival| {
        let pod = Pod {
            system: System::Cxl,
            instances: 1,
            dataset,
            seed,
            survival,
        };
        pod.run(mixes.into_iter().map(phase).collect(), &|| ())
    };
    let [process, host, mirrored] = [run(Survival::Process)?, run(Survival::Host)?, run(Survival::Mirrored)?];
    let rates = |i: usize| [process[i].qps, host[i].qps, mirrored[i].qps];
    Ok(mixes.into_iter().enumerate().map(|(i, mix)| (mix, rates(i))).collect())
}
