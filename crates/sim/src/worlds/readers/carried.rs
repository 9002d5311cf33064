//! Transactions that read at one server, and go on at another: a proxy carries them when a reader goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_engine::{Engine, Error};

use super::look::Look;
use super::stage::Stage;
use crate::clock;

/// Between two transactions that go on at the server.
const TURN: Nanos = Nanos::from_millis(15);

/// At the server that has the database, until that ends.
pub(super) fn look_on(stage: &Arc<Stage>, engine: &Arc<Engine>, ends: &AtomicBool) {
    let mut look = Look::new(stage, engine, Random(rt::random()));
    while !stage.is_over() && !ends.load(SeqCst) {
        let begun = clock::now();
        let looked = stage.take_carried().map_or(Ok(()), |carried| look.go_on(&carried));
        match looked.and(look.end()) {
            Ok(()) | Err(Error::Serialization(_)) => {}
            // Another server has the database.
            Err(Error::Io(_) | Error::Poisoned(_)) if stage.is_excused(begun) => return,
            Err(error) => {
                return stage.fail(format!(
                    "a carried transaction at the server: {} {error}",
                    error.sqlstate()
                ));
            }
        }
        rt::sleep(TURN);
    }
}
