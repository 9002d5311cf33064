//! The program: command line, configuration, and the PostgreSQL server in front of `sql`.
//!
//! ```text
//! main ─ cli ─ run ── config          decides the settings
//!              │  ├── database        opens the engine, which recovers
//!              │  └── server          sessions: socket ─ wire ─ session ─ sql, or admin
//!              ├ kv                 Redis's protocol, in front of the pool's key-value store
//!              ├ mount              FUSE, in front of the pool's file system
//!              └ status, check, ...   talk to a running server over its own protocol
//! ```

pub mod admin;
pub mod archiving;
mod calls;
pub mod cli;
pub mod config;
pub mod config_error;
pub mod database;
pub mod device;
mod etcd;
pub mod kv;
pub mod log;
pub mod membership;
pub mod metering;
pub mod mount;
mod objects;
pub mod page_trace;
mod pooled;
pub mod proxy;
pub mod regions;
mod remote_memory;
pub mod server;
mod shared_storage;
mod sockets;
mod tls;
pub mod views;
