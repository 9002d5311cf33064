//! The contract of messages, over TCP on this machine.

use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_testkit::contract::message::{self as contract, Bench};
use std::sync::Arc;

struct Loopback;

impl Bench for Loopback {
    fn one(&self) -> Arc<dyn Network> {
        Arc::new(Tcp)
    }

    fn other(&self) -> Arc<dyn Network> {
        Arc::new(Tcp)
    }

    fn address(&self) -> String {
        "127.0.0.1:0".into()
    }
}

#[test]
fn the_contract_holds() {
    contract::all(&Loopback);
}
