//! Gathers the store's memory into huge pages, as it grows: with small ones the processor's address cache misses at
//! nearly each key.

use crate::log;
use cenote_space::Space;
use std::thread;
use std::time::Duration;

/// Between two looks for what has come, and between two pages, so that the work is never more than a fraction of a
/// core.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const PAGE_EVERY: Duration = Duration::from_millis(10);

/// Does so in a thread of its own, until the process ends or the machine has no huge page to give: it works without.
pub fn gather(space: &Space) {
    let parts: Vec<_> = space.parts().cloned().collect();
    thread::spawn(move || {
        let mut gathered = vec![0; parts.len()];
        loop {
            for (part, at) in parts.iter().zip(&mut gathered) {
                let end = part.region().reserved();
                while *at < end {
                    match part.region().collapse_step(*at, end) {
                        Ok(next) => *at = next,
                        Err(error) => return log::info!("memory stays in small pages: {error}"),
                    }
                    thread::sleep(PAGE_EVERY);
                }
            }
            thread::sleep(LOOK_EVERY);
        }
    });
}
