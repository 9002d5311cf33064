//! Metrics of all processes, in Prometheus's text format.
//!
//! Each member counts in memory of its own, and adds what is new to its record with each sweep: so no get writes a word
//! that others write too. A record's counters go on with the next member that has it, and only grow.

use super::core::Core;
use super::counters::Counters;
use super::heap::offset;
use super::layout::{WORD, member, root};
use super::members::{pins, records};
use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;
use cenote_space::GlobalAddress;
use std::fmt::Write;

const _: () = assert!(Counters::MAX as u64 <= member::COUNTERS_MAX);

/// Numbers of the root: where, how they are called, whether they only grow, and what they say.
const OF_ROOT: [(u64, &str, bool, &str); 7] = [
    (root::ITEMS, "items", false, "Values that are there, replicas too."),
    (root::USED, "used_bytes", false, "Bytes of the space that they take."),
    (root::BOUND, "bound_bytes", false, "Bytes that they may take; 0: all."),
    (root::SPILLED, "in_files", false, "Values that lie in files."),
    (
        root::EXPIRED,
        "expired_total",
        true,
        "Values that had expired and were swept.",
    ),
    (
        root::ORPHANS,
        "orphans_total",
        true,
        "Objects of dead members that were freed.",
    ),
    (
        root::SQUEEZES,
        "squeezes_total",
        true,
        "How often memory went from one size to another.",
    ),
];

/// Text as it grows.
struct Text(String);

impl Text {
    /// The head of a metric.
    fn head(&mut self, name: &str, is_counter: bool, help: &str) {
        let kind = if is_counter { "counter" } else { "gauge" };
        // Text takes everything.
        let _ = writeln!(
            self.0,
            "# HELP cenote_store_{name} {help}\n# TYPE cenote_store_{name} {kind}"
        );
    }

    fn value(&mut self, name: &str, value: u64) {
        let _ = writeln!(self.0, "cenote_store_{name} {value}");
    }

    fn one(&mut self, (name, is_counter, help): (&str, bool, &str), value: u64) {
        self.head(name, is_counter, help);
        self.value(name, value);
    }
}

/// Counts of several processes may be below zero for a moment.
fn about(word: u64) -> u64 {
    (word as i64).max(0) as u64
}

impl Core {
    /// Adds what this process did since the last time to its record.
    pub(super) fn tell_counters(&self) -> Result<()> {
        let mut counted = self.counted.lock();
        for (n, (.., counter)) in self.counters.all().into_iter().enumerate() {
            let now = counter.load(Ordering::Relaxed);
            if now != counted[n] {
                self.heap.add(counter_at(self.member.record, n)?, now - counted[n])?;
                counted[n] = now;
            }
        }
        Ok(())
    }

    pub(super) fn metrics(&self) -> Result<String> {
        self.tell_counters()?;
        let mut text = Text(String::new());
        let records = records(&self.heap, self.at)?;
        self.write_counters(&records, &mut text)?;
        self.write_gauges(&records, &mut text)?;
        self.write_tenants(&mut text)?;
        Ok(text.0)
    }

    fn write_counters(&self, records: &[(GlobalAddress, u64)], text: &mut Text) -> Result<()> {
        let mut sums = [0_u64; Counters::MAX];
        for (record, _) in records {
            let at = (0..Counters::MAX).map(|n| counter_at(*record, n));
            let words = self.heap.words(&at.collect::<Result<Vec<_>>>()?)?;
            sums.iter_mut()
                .zip(words)
                .for_each(|(sum, word)| *sum = sum.wrapping_add(word));
        }
        let gets = sums[..2].iter().sum();
        text.one(("gets_total", true, "Gets that were answered."), gets);
        for ((name, help, _), sum) in self.counters.all().into_iter().zip(sums) {
            text.one((&format!("{name}_total"), true, help), sum);
        }
        Ok(())
    }

    fn write_gauges(&self, records: &[(GlobalAddress, u64)], text: &mut Text) -> Result<()> {
        let at = OF_ROOT.iter().map(|(at, ..)| self.word(*at));
        let words = self.heap.words(&at.collect::<Result<Vec<_>>>()?)?;
        for ((_, name, is_counter, help), word) in OF_ROOT.into_iter().zip(words) {
            text.one((name, is_counter, help), about(word));
        }
        let sessions = records.iter().filter(|(_, tag)| *tag != 0).count();
        text.one(("sessions", false, "Processes that use the store."), sessions as u64);
        let mut pinned = 0;
        for (record, _) in records {
            pins(&self.heap, *record, |_| pinned += 1)?;
        }
        text.one(("pins", false, "Values that processes pin or have borrowed."), pinned);
        text.one(
            ("buckets", false, "Buckets of the table."),
            self.refresh()?.table.buckets(),
        );
        Ok(())
    }

    /// Of those that use or may use something.
    fn write_tenants(&self, text: &mut Text) -> Result<()> {
        let at = (0..2 * root::TENANTS_MAX).map(|n| self.word(root::TENANTS + WORD * n));
        let words = self.heap.words(&at.collect::<Result<Vec<_>>>()?)?;
        let (pairs, _) = words.as_chunks::<2>();
        let names = [
            (
                "tenant_bound_bytes",
                "Bytes that a tenant's values may take; 0: as much as all.",
            ),
            ("tenant_used_bytes", "Bytes of the space that a tenant's values take."),
        ];
        for (n, (name, help)) in names.into_iter().enumerate() {
            text.head(name, false, help);
            for (tenant, pair) in pairs.iter().enumerate().filter(|(_, pair)| **pair != [0, 0]) {
                text.value(&format!("{name}{{tenant=\"{tenant}\"}}"), about(pair[n]));
            }
        }
        Ok(())
    }
}

fn counter_at(record: GlobalAddress, n: usize) -> Result<GlobalAddress> {
    offset(record, member::COUNTERS + WORD * n as u64)
}
