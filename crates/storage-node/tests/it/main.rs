//! Storage nodes of one process, over the machine's loopback.

mod cluster;
mod given;
mod pages;
mod readers;
mod snapshots;
