//! How long a session waits for a lock, and when it asks the keeper.

use super::layout::Timeout;
use crate::GlobalAddress;
use cenote_base::rt::{self, Nanos, Spin};
use cenote_base::{Error, Result};

/// How long a session waits for another before it asks the keeper about it, and between two questions.
const ASK_AFTER: Nanos = Nanos::from_millis(2);
const ASK_EVERY: Nanos = Nanos::from_millis(20);
/// Sleeps between two looks begin with this, and double up to the other.
const SLEEP_FIRST: Nanos = Nanos(20_000);
const SLEEP_MOST: Nanos = Nanos::from_millis(1);

const _: () = assert!(0 < SLEEP_FIRST.0 && SLEEP_FIRST.0 <= SLEEP_MOST.0);
const _: () = assert!(ASK_AFTER.0 <= ASK_EVERY.0);

pub(super) struct Waiting {
    lock: GlobalAddress,
    timeout: Timeout,
    spin: Spin,
    /// When the waiting began: with the first turn.
    began: Option<Nanos>,
    sleep: Nanos,
    ask_at: Nanos,
}

impl Waiting {
    pub(super) fn new(lock: GlobalAddress, timeout: Timeout) -> Self {
        Self {
            lock,
            timeout,
            spin: Spin::new(),
            began: None,
            sleep: SLEEP_FIRST,
            ask_at: Nanos(0),
        }
    }

    /// One turn: spins first, then sleeps for longer and longer.
    pub(super) fn turn(&mut self) -> Result<()> {
        match self.spin.is_out() {
            false if self.timeout != Timeout::None => self.spin.turn(),
            _ => rt::sleep(self.pause()?),
        }
        Ok(())
    }

    /// How long the next sleep is.
    pub(super) fn pause(&mut self) -> Result<Nanos> {
        let now = rt::now();
        let began = *self.began.get_or_insert(now);
        if self.ask_at == Nanos(0) {
            self.ask_at = began + ASK_AFTER;
        }
        let left = match self.timeout {
            Timeout::Endless => self.sleep,
            Timeout::For(time) => (began + time).since(now),
            Timeout::None => Nanos(0),
        };
        if left == Nanos(0) {
            return Err(Error::Timeout(format!("the lock at {} is not free yet", self.lock)));
        }
        let pause = left.min(self.sleep);
        assert_ne!(pause, Nanos(0), "a session that waits sleeps");
        self.sleep = Nanos(2 * self.sleep.raw()).min(SLEEP_MOST);
        Ok(pause)
    }

    /// Whether it is time to ask the keeper. A session that does not wait asks at once.
    pub(super) fn may_ask(&mut self) -> bool {
        if self.timeout == Timeout::None {
            return true;
        }
        let now = rt::now();
        let is_time = self.ask_at != Nanos(0) && now >= self.ask_at;
        if is_time {
            self.ask_at = now + ASK_EVERY;
        }
        is_time
    }
}
