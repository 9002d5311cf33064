//! Tests that every implementation of a trait of `fabric` must pass, whatever stands behind it.

pub mod calls;
pub mod message;
pub mod verbs;
