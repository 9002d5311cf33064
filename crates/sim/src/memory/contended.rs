//! Lines that several cores or hosts want at a time: one after another has them.

use crate::topology::HostSpec;
use cenote_base::rt::Nanos;

/// What cores of a host are like.
#[derive(Debug)]
pub(super) struct Cores {
    /// All of them, as bits.
    pub(super) all: u128,
    pub(super) transfer: Nanos,
    pub(super) load: Nanos,
    pub(super) fill_buffers: usize,
}

impl Cores {
    pub(super) fn of(host: &HostSpec) -> Self {
        let memory = &host.memory;
        Self {
            all: u128::MAX >> (u128::BITS - host.vcpus.clamp(1, u128::BITS)),
            transfer: Nanos(memory.core_transfer_ns as u64),
            load: Nanos(memory.core_load_ns as u64),
            fill_buffers: memory.fill_buffers.unwrap_or(1),
        }
    }
}

/// A line that several want.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContendedLine {
    /// Which line; 0: none.
    line: u64,
    /// When it was last asked for, and what was queued then.
    last: Nanos,
    queued: Nanos,
    /// Which of the host's cores has it, where its tag says "some".
    pub(super) cores: u128,
}

/// Lines that were passed on of late. Of two lines that fall into one place the later one is known.
#[derive(Debug, Default)]
pub(super) struct ContendedLines(Vec<ContendedLine>);

const PLACES: usize = 1 << 14;

impl ContendedLines {
    pub(super) fn at(&mut self, line: u64) -> &mut ContendedLine {
        if self.0.is_empty() {
            self.0.resize(PLACES, ContendedLine::default());
        }
        let place = line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACES.ilog2());
        let wanted = &mut self.0[place as usize];
        if wanted.line != line {
            *wanted = ContendedLine {
                line,
                ..ContendedLine::default()
            };
        }
        wanted
    }

    /// Passes a line on, after those that wanted it before: how long until it is there.
    pub(super) fn pass(&mut self, line: u64, now: Nanos, takes: Nanos) -> Nanos {
        let wanted = self.at(line);
        let waits = wanted.queued.since(now.since(wanted.last));
        wanted.last = wanted.last.max(now);
        wanted.queued = waits + takes;
        waits + takes
    }
}
