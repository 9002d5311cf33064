//! Tests of the program from outside: its protocol on raw sockets, its command line, its server under real clients.

mod database;
mod load;
mod program;
mod protocol;
mod stub;
