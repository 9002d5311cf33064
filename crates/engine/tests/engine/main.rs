//! The engine's behaviour, through its public interface.

mod backup;
mod basics;
mod checks;
mod common;
mod covered;
mod crash;
mod definitions;
mod edges;
mod follow;
mod given_back;
mod histories;
mod left;
mod look_ups;
mod measure;
mod numbers;
mod old_snapshots;
mod pressure;
mod rollback;
mod shared;
mod shares;
mod start;
mod statistics;
mod together;
mod twins;
mod waiting;
mod wide;
