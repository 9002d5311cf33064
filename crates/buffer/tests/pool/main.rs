//! Tests of the pool from outside, in one program.

mod basics;
mod crash;
mod durability;
mod full;
mod host_loss;
mod kills;
mod measure;
mod mirror;
mod model;
mod simulated;
mod slabs;
mod tiered;
