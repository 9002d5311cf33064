//! The program: command line, configuration, and the PostgreSQL server in front of `sql`.

pub mod log;
pub mod server;
