//! What the server knows of its readers, and has told them.

use crate::meta::Purged;
use cenote_base::Lsn;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Nanos};
use cenote_storage::nodes::{ReaderSeen, StorageNodes};
use std::sync::Arc;

/// Between two questions for readers.
const ASK: Nanos = Nanos::from_millis(500);
/// How long an answer counts after which no node answers.
const KEPT: Nanos = Nanos::from_secs(10);

/// See [`super`]. Of a database in files it is unused.
#[derive(Default)]
pub(crate) struct Readers {
    /// Oldest snapshot of a reader.
    pub(super) oldest: AtomicU64,
    /// How many there are; `u64::MAX` before the first answer.
    count: AtomicU64,
    pub(super) asked: rt::Mutex<Asked>,
    pub(crate) noted: rt::Mutex<Noted>,
    /// Where the log ended when this start took the database.
    pub(super) began: Lsn,
}

#[derive(Default)]
pub(super) struct Asked {
    at: Option<Nanos>,
    answered: Nanos,
    pub found: Vec<ReaderSeen>,
}

#[derive(Default)]
pub(crate) struct Noted {
    pub purged: Purged,
    /// Behind the note in the log.
    pub end: Lsn,
}

impl Readers {
    /// Of a database whose server began when the log ended at `began`, and whose last note was `purged`.
    pub(crate) fn new(began: Lsn, purged: Purged) -> Readers {
        Readers {
            oldest: AtomicU64::new(u64::MAX),
            count: AtomicU64::new(u64::MAX),
            began,
            noted: rt::Mutex::new(Noted { purged, end: Lsn::ZERO }),
            ..Readers::default()
        }
    }

    /// Asks for them, if that was not done of late.
    pub(crate) fn ask(&self, nodes: &Arc<dyn StorageNodes>) {
        if self.asked.lock().at.is_none_or(|at| rt::now().since(at) >= ASK) {
            self.ask_now(nodes);
        }
    }

    fn ask_now(&self, nodes: &Arc<dyn StorageNodes>) {
        let mut asked = self.asked.lock();
        asked.at = Some(rt::now());
        match nodes.readers() {
            Ok(readers) => {
                let readers = known_of_late(&asked.found, readers, asked.answered);
                let oldest = readers.iter().map(|reader| reader.oldest.raw()).min();
                self.oldest.store(oldest.unwrap_or(u64::MAX), Ordering::Release);
                self.count.store(readers.len() as u64, Ordering::Release);
                asked.found = readers;
                asked.answered = rt::now();
            }
            // They go on as they were for a while: what they hold is not known.
            Err(_) if rt::now().since(asked.answered) < KEPT => {}
            Err(_) => self.count.store(u64::MAX, Ordering::Release),
        }
    }

    pub(super) fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn are_known(&self) -> bool {
        self.count.load(Ordering::Acquire) != u64::MAX
    }
}

/// Readers that nodes know now, and those of before that count still: their node may not have answered.
fn known_of_late(before: &[ReaderSeen], now: Vec<ReaderSeen>, then: Nanos) -> Vec<ReaderSeen> {
    let since = rt::now().since(then);
    let aged = before.iter().cloned().map(|mut reader| {
        reader.ago += since;
        reader
    });
    let mut known: Vec<ReaderSeen> = Vec::new();
    for reader in now.into_iter().chain(aged).filter(|reader| reader.ago < KEPT) {
        match known.iter_mut().find(|other| other.reader == reader.reader) {
            None => known.push(reader),
            // It has changed its node: what it said last counts.
            Some(other) if reader.ago < other.ago => *other = reader,
            Some(_) => {}
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_counts_for_a_while_where_its_node_does_not_answer() {
        let seen = |reader, oldest, seconds| ReaderSeen {
            reader,
            name: String::new(),
            end: Lsn::from_raw(100),
            oldest: Lsn::from_raw(oldest),
            ago: Nanos::from_secs(seconds),
        };
        let before = [seen(1, 10, 1), seen(2, 20, 9), seen(3, 30, 11)];
        let known = known_of_late(&before, vec![seen(2, 25, 0), seen(2, 15, 8)], rt::now());
        let mut known: Vec<_> = known
            .iter()
            .map(|reader| (reader.reader, reader.oldest.raw()))
            .collect();
        known.sort_unstable();
        assert_eq!(
            known,
            [(1, 10), (2, 25)],
            "what was said last counts, and nothing of long ago"
        );
    }
}
