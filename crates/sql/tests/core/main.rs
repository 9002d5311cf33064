//! Statements through sessions, without analytics: texts, a naive model, protocols, and what the short path costs.

mod concurrent;
mod cost;
mod foreign;
mod model;
mod portals;
mod protocol;
mod support;
mod texts;
