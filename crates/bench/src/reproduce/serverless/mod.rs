//! PolarDB Serverless's experiments: local memory in front of remote memory, storage nodes behind both.
//!
//! | module | |
//! |---|---|
//! | [`sizes`], [`elastic`] | figure 8: remote memory that grows and shrinks under load |
//! | [`local`] | figure 11: the size of local memory |
//! | [`equal`] | figure 10: against local memory alone |
//! | [`failover`], [`cluster`] | figure 9: a switch and crashes; servers on storage nodes |
//! | [`reads`] | figure 14: reads of a server and a reader |
//! | [`prefetch`] | figure 15: pages read together |
//! | [`queries`] | figures 12 and 13, 10 and 15 of TPC-H |
//! | [`transactions`] | figures 10 and 11 of TPC-C |
//! | [`recorded`] | traces of these on a real server, and their replays |
//! | [`paper`], [`why`] | the paper's numbers; why ours differ |

pub mod cluster;
pub mod elastic;
pub mod equal;
pub mod failover;
pub mod local;
pub mod paper;
pub mod prefetch;
pub mod queries;
pub mod reads;
pub mod recorded;
pub mod sizes;
pub mod transactions;
pub mod why;

use super::options::{Options, Progress};
use super::pod::{Dataset, Scale};
use super::report::Figure;
use crate::Result;
use cluster::OnNodes;
use failover::Both;
use recorded::Load;

/// All, in the paper's order.
pub const FIGURES: [&str; 12] = [
    "fig8",
    "fig9",
    "fig10",
    "fig10-tpcc",
    "fig10-tpch",
    "fig11",
    "fig11-tpcc",
    "fig12",
    "fig13",
    "fig14",
    "fig15",
    "fig15-tpch",
];
/// Those of one large database.
const LARGE: [&str; 4] = ["fig8", "fig10", "fig11", "fig15"];
/// Those of servers on storage nodes.
const ON_NODES: [&str; 2] = ["fig9", "fig14"];

/// What stands before the figures.
pub const OPENING: &str = include_str!("opening.md");

/// What the paper has and the page does not.
pub const MISSING: &str = include_str!("missing.md");

/// The two sets of costs ([`Costs::both`](super::cost::Costs::both)), in words. The paper itself says of none.
pub const COSTS: [&str; 2] = ["PolarDB's cost a statement", "Cenote's cost a statement"];

/// The databases that figures need, filled once for all seeds.
pub struct Data {
    /// Of figures 8, 10, 11 and 15.
    large: Option<Dataset>,
    /// Of figures 9 and 14.
    both: Option<Both>,
    /// Of those of TPC-H.
    queries: Option<recorded::Recorded>,
    /// Of those of TPC-C.
    transactions: Option<recorded::Recorded>,
}

impl Data {
    /// Fills those that the named figures need.
    ///
    /// # Errors
    /// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails; as of
    /// [`recorded::Recorded::make`].
    pub fn fill(options: &Options, names: &[&str], progress: &Progress) -> Result<Data> {
        let fill = |scale| super::fill(scale, options.seed, progress);
        let both = || -> Result<Both> {
            Ok(Both {
                nodes: OnNodes::build(Scale::usual(), options.seed, progress)?,
                files: fill(Scale::usual())?,
            })
        };
        let has = |known: &[&str]| names.iter().any(|name| known.contains(name));
        let traced = |known: &[&str], load| {
            let make = || recorded::Recorded::make(load, options, progress);
            has(known).then(make).transpose()
        };
        Ok(Data {
            large: has(&LARGE).then(|| fill(Scale::large())).transpose()?,
            both: has(&ON_NODES).then(both).transpose()?,
            queries: traced(&queries::FIGURES, Load::Queries)?,
            transactions: traced(&transactions::FIGURES, Load::Transactions)?,
        })
    }
}

/// Runs those of [`FIGURES`] that are named.
///
/// # Errors
/// [`crate::Error::Simulation`] if a world cannot be set up, or if something in it fails.
pub fn figures(options: &Options, names: &[&'static str], data: &Data, progress: &Progress) -> Result<Vec<Figure>> {
    let of = |known: &[&str]| -> Vec<&str> { names.iter().copied().filter(|name| known.contains(name)).collect() };
    let mut replayed = Vec::new();
    if let Some(recorded) = &data.queries {
        replayed.extend(queries::figures(options, &of(&queries::FIGURES), recorded, progress)?);
    }
    if let Some(recorded) = &data.transactions {
        let names = of(&transactions::FIGURES);
        replayed.extend(transactions::figures(options, &names, recorded, progress)?);
    }
    let one = |name: &&'static str| match (*name, &data.large, &data.both) {
        ("fig8", Some(data), _) => sizes::fig8(options, data, progress),
        ("fig9", _, Some(both)) => failover::fig9(options, both, progress),
        ("fig10", Some(data), _) => equal::fig10(options, data, progress),
        ("fig11", Some(data), _) => local::fig11(options, data, progress),
        ("fig14", _, Some(both)) => reads::fig14(options, &both.nodes, progress),
        ("fig15", Some(data), _) => prefetch::fig15(options, data, progress),
        (name, ..) => {
            let place = replayed.iter().position(|figure| figure.name == name);
            Ok(replayed.swap_remove(place.expect("databases are filled for the figures that need them")))
        }
    };
    names.iter().map(one).collect()
}
