//! What a database has used: each of its servers reports it now and then, and the replicated state has the sum.
//!
//! A report says all that a process has used since it began, so one that comes twice, or late, adds nothing, and one
//! that is lost is made up for by the next. What a process used behind its last report is lost with it.

use std::collections::BTreeMap;

use cenote_base::Result;

use crate::codec::{Reader, Writer};

/// Processes whose last reports are kept; of more, the one that has reported nothing for longest is taken as ended.
const PROCESSES_MAX: usize = 512;

/// What servers have used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Milliseconds in which a server had the database and served clients.
    pub writer_ms: u64,
    /// Milliseconds in which servers read it and served clients.
    pub reader_ms: u64,
    /// Milliseconds in which servers were paused.
    pub paused_ms: u64,
    /// Milliseconds of processors.
    pub cpu_ms: u64,
    /// Memory for pages of the servers' own, while they served: MiB times seconds.
    pub memory_mib_s: u64,
    /// Memory of the pool that servers share, paused or not: MiB times seconds.
    pub shared_mib_s: u64,
}

/// The sum, and what it is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Meter {
    total: Usage,
    /// Reports so far.
    reports: u64,
    /// What each process has reported last, and as which report.
    by_process: BTreeMap<u128, (Usage, u64)>,
}

impl Usage {
    fn fields(&self) -> [u64; 6] {
        [
            self.writer_ms,
            self.reader_ms,
            self.paused_ms,
            self.cpu_ms,
            self.memory_mib_s,
            self.shared_mib_s,
        ]
    }

    fn of(fields: [u64; 6]) -> Usage {
        let [writer_ms, reader_ms, paused_ms, cpu_ms, memory_mib_s, shared_mib_s] = fields;
        Usage {
            writer_ms,
            reader_ms,
            paused_ms,
            cpu_ms,
            memory_mib_s,
            shared_mib_s,
        }
    }

    /// Field by field; what grows beyond 64 bits stays there.
    fn merge(self, other: Usage, merge: impl Fn(u64, u64) -> u64) -> Usage {
        let (mut fields, others) = (self.fields(), other.fields());
        fields
            .iter_mut()
            .zip(others)
            .for_each(|(field, other)| *field = merge(*field, other));
        Usage::of(fields)
    }
}

impl Meter {
    pub fn total(&self) -> Usage {
        self.total
    }

    /// A process has used so much since it began.
    pub fn report(&mut self, process: u128, usage: Usage) {
        self.reports += 1;
        let before = self
            .by_process
            .get(&process)
            .map_or(Usage::default(), |(usage, _)| *usage);
        // A late report is behind one that counts already.
        let usage = usage.merge(before, u64::max);
        let added = usage.merge(before, u64::saturating_sub);
        self.total = self.total.merge(added, u64::saturating_add);
        self.by_process.insert(process, (usage, self.reports));
        if self.by_process.len() > PROCESSES_MAX {
            let oldest = self.by_process.iter().min_by_key(|(_, (_, report))| *report);
            let oldest = oldest.map(|(process, _)| *process);
            oldest.and_then(|process| self.by_process.remove(&process));
        }
    }

    pub fn put(&self, writer: Writer) -> Writer {
        let processes: Vec<_> = self.by_process.iter().collect();
        put_usage(writer, &self.total)
            .u64(self.reports)
            .each(&processes, |w, (process, (usage, report))| {
                put_usage(w.u128(**process), usage).u64(*report)
            })
    }

    pub fn take(r: &mut Reader<'_>) -> Result<Meter> {
        Ok(Meter {
            total: take_usage(r)?,
            reports: r.u64()?,
            by_process: r
                .each(|r| Ok((r.u128()?, (take_usage(r)?, r.u64()?))))?
                .into_iter()
                .collect(),
        })
    }
}

pub(crate) fn put_usage(writer: Writer, usage: &Usage) -> Writer {
    usage.fields().into_iter().fold(writer, Writer::u64)
}

pub(crate) fn take_usage(r: &mut Reader<'_>) -> Result<Usage> {
    let mut fields = [0; 6];
    for field in &mut fields {
        *field = r.u64()?;
    }
    Ok(Usage::of(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(ms: u64) -> Usage {
        Usage {
            writer_ms: ms,
            cpu_ms: ms / 2,
            ..Usage::default()
        }
    }

    #[test]
    fn a_report_that_comes_twice_or_late_adds_nothing() {
        let mut meter = Meter::default();
        meter.report(1, used(1000));
        meter.report(2, used(50));
        meter.report(1, used(3000));
        meter.report(1, used(3000));
        meter.report(1, used(1000));
        assert_eq!(meter.total(), used(3050));
        meter.report(1, used(u64::MAX));
        assert_eq!(meter.total().writer_ms, u64::MAX, "it stays at the most");
    }

    #[test]
    fn processes_that_have_ended_are_forgotten_and_stay_in_the_sum() {
        let mut meter = Meter::default();
        for process in 0..2 * PROCESSES_MAX as u128 {
            meter.report(process, used(2));
            meter.report(0, used(2 + process as u64));
        }
        assert_eq!(meter.by_process.len(), PROCESSES_MAX);
        assert!(meter.by_process.contains_key(&0), "it reports still");
        assert_eq!(
            meter.total().writer_ms,
            (2 * PROCESSES_MAX as u64 - 1) * 2 + 2 * PROCESSES_MAX as u64 + 1
        );
        let bytes = meter.put(Writer::default()).done();
        let mut r = Reader::new(&bytes, "test");
        assert_eq!(Meter::take(&mut r).expect("whole"), meter);
        assert!(Meter::take(&mut Reader::new(&bytes[..bytes.len() - 1], "test")).is_err());
    }
}
