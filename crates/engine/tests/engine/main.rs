//! The engine's behaviour, through its public interface.

mod basics;
mod common;
