//! Until when a server that has the database may answer without asking whether it has it still.
//!
//! Another server takes the database when the node that leads has not heard of this one for [`SILENCE`]. A node's answer
//! to this server's word says that it was heard behind the moment at which it was sent, by a node that a majority
//! followed still. So from that moment on, for less than [`SILENCE`], no other server has the database: by this
//! host's clock, which may be slower than the node's by a tenth.

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Event, Nanos};

/// A server of which nothing is heard for so long has lost the database.
pub const SILENCE: Nanos = Nanos::from_millis(1000);
/// A word that has not come for so long is overdue.
pub const OVERDUE: Nanos = Nanos::from_millis(250);
/// What a server may count on, from the moment at which it sent what was answered.
const HELD: Nanos = Nanos::from_millis(900);

/// See the module.
#[derive(Debug)]
pub struct Lease {
    until: AtomicU64,
    moved: Event,
}

/// A lease that ran out, and was not renewed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOut;

impl Default for Lease {
    fn default() -> Lease {
        Lease {
            until: AtomicU64::new(0),
            moved: Event::new(),
        }
    }
}

impl Lease {
    /// What was sent at `sent` was answered: the database is this server's.
    pub fn renew(&self, sent: Nanos) {
        let held = match planted(Fault::LeaseLong) {
            true => Nanos(2 * SILENCE.0),
            false => HELD,
        };
        self.until.fetch_max((sent + held).0, Ordering::AcqRel);
        self.moved.set();
    }

    /// Whether it holds now.
    #[inline]
    pub fn holds(&self) -> bool {
        rt::now().0 < self.until.load(Ordering::Acquire)
    }

    /// Returns when it holds: at once, most of the time.
    ///
    /// # Errors
    /// It did not within `patience`.
    pub fn wait(&self, patience: Nanos) -> Result<(), RunOut> {
        let until = rt::now() + patience;
        while !self.holds() {
            if rt::now() >= until {
                return Err(RunOut);
            }
            self.moved.wait_timeout(Nanos::from_millis(5));
            self.moved.reset();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_holds_from_what_was_sent_and_for_less_than_others_wait() {
        const { assert!(HELD.0 < SILENCE.0) };
        let lease = Lease::default();
        assert!(!lease.holds());
        assert_eq!(lease.wait(Nanos::from_millis(1)), Err(RunOut));
        lease.renew(rt::now());
        assert_eq!(lease.wait(Nanos::ZERO), Ok(()));
        let old = Lease::default();
        old.renew(Nanos(rt::now().0.saturating_sub(SILENCE.0)));
        assert!(!old.holds(), "an answer that took as long says nothing");
    }
}
