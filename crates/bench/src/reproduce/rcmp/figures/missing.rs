//! What the paper measures and is not simulated here.

use crate::reproduce::report::{Figure, Table};

const HOW: &str = "Near accesses wait behind no far ones here, as clients load and store the memory of their pod \
    themselves and post calls to other pods on their own card. Rings in two layers are there for what the memory node \
    is asked (pool.md); they were measured on a machine, beside one layer (fabric.md, Rings), and \
    not simulated.";

/// The figure: nothing is run.
pub fn missing() -> Figure {
    let mut table = Table::new("Not simulated", &["part", "the paper's number", "ours"]);
    let row = [
        "two-layer ring, to one ring",
        "p50, p99, p999 lower by 21.7, 30.9, 51.5%",
        "nothing was run",
    ];
    table.rows.push(row.map(String::from).into());
    Figure {
        name: "missing",
        title: "what was not simulated".into(),
        how: HOW.into(),
        profiles: "nothing was run".into(),
        tables: vec![table],
        chart: None,
        claims: Vec::new(),
    }
}
