//! Statements through sessions, mostly without analytics: texts, a naive model, protocols, and what the short path
//! costs.

#[cfg(feature = "analytics")]
mod analytics_paths;
mod blocks;
mod concurrent;
mod copy;
mod copy_cost;
mod cost;
mod foreign;
mod gathered;
mod handover;
mod kept;
#[cfg(feature = "analytics")]
mod kept_analytics;
mod limits;
mod model;
mod plans;
mod portals;
mod protocol;
mod recheck;
mod settings;
mod statistics;
mod support;
mod texts;
