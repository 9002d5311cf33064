//! The engine's behaviour, through its public interface.

mod backup;
mod basics;
mod common;
mod crash;
mod definitions;
mod edges;
mod histories;
mod numbers;
mod pressure;
mod waiting;
mod wide;
