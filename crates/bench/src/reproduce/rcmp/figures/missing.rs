//! What the paper measures of parts that Cenote does not have.

use crate::reproduce::report::{Figure, Table};

const HOW: &str = "Rings between the compute nodes of a rack and its daemon are not needed here: clients load and store the memory of their pod themselves and post calls to other pods on their own \
    card, so that no near access waits behind a far one. Locks are there, but no write buffers and page caches that hang on them.";

/// The figure: nothing is run.
pub fn missing() -> Figure {
    let mut table = Table::new("Not there", &["part", "the paper's number", "ours"]);
    for (part, number) in [
        (
            "two-layer ring, to one ring",
            "p50, p99, p999 lower by 21.7, 30.9, 51.5%",
        ),
        (
            "write buffer under a write lock",
            "up to 1.6 times the throughput under 256 B",
        ),
    ] {
        table
            .rows
            .push([part, number, "not there: nothing was run"].map(String::from).into());
    }
    Figure {
        name: "missing",
        title: "what Cenote does not have".into(),
        how: HOW.into(),
        profiles: "nothing was run".into(),
        tables: vec![table],
        chart: None,
        claims: Vec::new(),
    }
}
