//! What the paper measures of parts that Cenote does not have.

use crate::reproduce::report::{Figure, Table};

const HOW: &str = "Rings between the compute nodes of a rack and its daemon are not needed here: clients load and store the memory of their pod themselves and post calls to other pods on their own \
    card, so that no near access waits behind a far one.";

/// The figure: nothing is run.
pub fn missing() -> Figure {
    let mut table = Table::new("Not there", &["part", "the paper's number", "ours"]);
    let row = [
        "two-layer ring, to one ring",
        "p50, p99, p999 lower by 21.7, 30.9, 51.5%",
        "not there: nothing was run",
    ];
    table.rows.push(row.map(String::from).into());
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
