//! Rules of the house, broken on purpose: a world must notice within a bounded number of seeds.
//!
//! All of them take a while (`cenote sim --plant all`): each build breaks some, drawn by a seed that it says.
//! `CENOTE_SEED=n` draws others, `CENOTE_SEED=random` any.

use cenote_base::random::Random;
use std::path::PathBuf;

use cenote_base::rt::fault::Fault;
use cenote_sim::explorer::Order;
use cenote_sim::mutations::{self, Mutation};
use cenote_sim::worlds::Limits;

/// Mutations that a build tries.
const SAMPLE: usize = 6;

fn order() -> Order {
    Order {
        program: PathBuf::from(env!("CARGO_BIN_EXE_cenote-sim")),
        world: None,
        first: 1,
        seeds: 1,
        time: None,
        jobs: std::thread::available_parallelism().map_or(1, |n| n.get()),
        limits: Limits::default(),
        plant: None,
        quiet: true,
    }
}

fn sample(seed: u64) -> Vec<Mutation> {
    let (mut draw, mut all) = (Random(seed), mutations::all().filter(|m| m.sure).collect::<Vec<_>>());
    (0..SAMPLE)
        .map(|_| all.swap_remove(draw.below(all.len() as u64) as usize))
        .collect()
}

#[test]
fn planted_faults_are_found() {
    let seed = cenote_sim::seeds(1).start;
    println!("CENOTE_SEED={seed}");
    let mut missed = Vec::new();
    for mutation in sample(seed) {
        let result = mutation.run(&order(), 1, mutation.seeds).expect("processes start");
        let name = mutation.fault.name();
        println!("{name:<24} {:<13} {:?}", mutation.world.text(), result.seen);
        if result.seen.is_none() {
            missed.push(format!("{name} in {} seeds of {}", mutation.seeds, mutation.world));
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

/// The table in docs/sim.md names each mutation that there is, and says of those that no world breaks that it is so.
#[test]
fn the_page_has_every_mutation() {
    let page = include_str!("../../../docs/sim.md");
    for fault in Fault::ALL {
        let row = format!("| `{}` |", fault.name());
        let line = page.lines().find(|line| line.starts_with(&row));
        let line = line.unwrap_or_else(|| panic!("docs/sim.md has no row of {}", fault.name()));
        let world = mutations::all()
            .find(|m| m.fault == *fault)
            .map_or("none", |m| m.world.text());
        assert!(
            line.contains(&format!("| `{world}` |")) || line.contains(&format!("| {world} |")),
            "{line}"
        );
    }
}

/// The table of rare delays in docs/sim.md names the delays that there are, and no other.
#[test]
fn the_page_has_every_delay() {
    let page = include_str!("../../../docs/sim.md");
    let table = page
        .lines()
        .skip_while(|line| !line.starts_with("| rare delay |"))
        .skip(2);
    let rows = table.map_while(|line| line.strip_prefix("| `")?.split('`').next());
    let names = Fault::DELAYS.iter().map(|fault| fault.name());
    assert_eq!(rows.collect::<Vec<_>>(), names.collect::<Vec<_>>());
}
