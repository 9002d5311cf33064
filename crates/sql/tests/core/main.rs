//! Statements through sessions, without analytics: texts, a naive model, protocols, and what the short path costs.

mod cost;
mod model;
mod protocol;
mod support;
mod texts;
