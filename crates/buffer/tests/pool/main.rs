//! Tests of the pool from outside, in one program.

mod basics;
mod host_loss;
mod kills;
mod model;
