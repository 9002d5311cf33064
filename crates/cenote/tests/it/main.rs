//! Tests of the program from outside: its protocol on raw sockets, its command line, its server under real clients.

mod archive;
mod change_of_host;
mod database;
mod devices;
mod fake_s3;
mod hosts;
mod kv;
mod kv_secure;
mod kv_shared;
mod load;
mod local;
mod mount;
mod moved;
mod pool;
mod program;
mod protocol;
mod proxy;
mod sessions;
mod settings;
mod storage_nodes;
mod stub;
mod trace;
