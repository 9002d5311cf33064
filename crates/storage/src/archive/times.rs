//! When the log became durable up to where: samples, that wait for the piece that they go into.

use std::collections::VecDeque;

use cenote_base::Lsn;
use cenote_base::rt::Mutex;

use super::piece::Sample;
use crate::log::Log;

/// Samples that wait at most: half an hour of ten a second.
const WAITING_MAX: usize = 16 << 10;

/// Says what time it is: microseconds since 1970.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// See the module. Any thread may note; the archiver takes.
pub struct Times {
    clock: Clock,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    waiting: VecDeque<Sample>,
    last: Sample,
}

impl Times {
    /// By this clock.
    pub fn new(clock: Clock) -> Times {
        Times {
            clock,
            noted: Mutex::default(),
        }
    }

    /// The time.
    pub fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Notes what is durable now. A clock that was put back stands still until its time comes again.
    pub fn note(&self, log: &Log) -> Sample {
        let mut noted = self.noted.lock();
        // First the position: what becomes durable before the clock is read is later than the sample says.
        let durable = log.durable();
        let sample = Sample {
            micros: self.now().max(noted.last.micros),
            lsn: durable.max(noted.last.lsn),
        };
        if sample.lsn > noted.last.lsn {
            noted.make_room();
            noted.waiting.push_back(sample);
            noted.last = sample;
        }
        sample
    }

    /// The archive has `last`: samples are behind it.
    pub(super) fn begin(&self, last: Sample) {
        let mut noted = self.noted.lock();
        noted.waiting.retain(|sample| sample.lsn > last.lsn);
        noted
            .waiting
            .iter_mut()
            .for_each(|sample| sample.micros = sample.micros.max(last.micros));
        noted.last.micros = noted.last.micros.max(last.micros);
    }

    /// The samples of a piece.
    pub(super) fn between(&self, start: Lsn, end: Lsn) -> Vec<Sample> {
        let noted = self.noted.lock();
        let inside = noted
            .waiting
            .iter()
            .filter(|sample| start < sample.lsn && sample.lsn <= end);
        inside.copied().collect()
    }

    /// The archive has those up to `end`.
    pub(super) fn forget(&self, end: Lsn) {
        let mut noted = self.noted.lock();
        while noted.waiting.front().is_some_and(|sample| sample.lsn <= end) {
            noted.waiting.pop_front();
        }
    }
}

impl Noted {
    /// While nothing can be archived each second one will do.
    fn make_room(&mut self) {
        if self.waiting.len() >= WAITING_MAX {
            let mut is_kept = false;
            self.waiting.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
    }
}
