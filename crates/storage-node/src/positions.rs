//! Which entry of the Raft log brought which part of the redo log.

use std::collections::VecDeque;

use cenote_base::{Lsn, Result};
use raft::eraftpb::Entry;

use crate::command::Command;
use crate::machine::Outcome;

/// Pieces that were accepted, in the order of their positions.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    pieces: VecDeque<Piece>,
    end: Lsn,
}

#[derive(Debug)]
struct Piece {
    at: Lsn,
    end: Lsn,
    entry: u64,
}

impl Positions {
    /// Notes what an entry brought, after which the log ends at `end`.
    ///
    /// # Errors
    /// [`Error::Corrupt`](cenote_base::Error::Corrupt) for an entry that is no command.
    pub fn note(&mut self, entry: &Entry, outcome: &Outcome, end: Lsn) -> Result<()> {
        self.end = end;
        match outcome {
            // Pieces of an unfinished group are gone; their positions come again, with other bytes.
            Outcome::Taken { .. } => {
                self.pieces.retain(|piece| piece.at < end);
                self.pieces.iter_mut().for_each(|piece| piece.end = piece.end.min(end));
            }
            Outcome::Done | Outcome::Appended { .. } if !entry.data.is_empty() => {
                if let Command::Append { at, redo, .. } = Command::decode(&entry.data)? {
                    self.add(at, at.advance(redo.len() as u64), entry.index);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, at: Lsn, end: Lsn, entry: u64) {
        let known = self.pieces.back().map_or(Lsn::ZERO, |last| last.end);
        // One that came before brings nothing.
        if end > known && at < end {
            self.pieces.push_back(Piece { at, end, entry });
        }
    }

    /// The entry that has the byte at `at`, below the end.
    pub fn entry_of(&self, at: Lsn) -> Option<u64> {
        let next = self.pieces.partition_point(|piece| piece.end <= at);
        let piece = self.pieces.get(next)?;
        (piece.at <= at && at < self.end).then_some(piece.entry)
    }

    /// Where the log ends.
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// Entries before `first` are gone.
    pub fn forget_before(&mut self, first: u64) {
        while self.pieces.front().is_some_and(|piece| piece.entry < first) {
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_found_in_the_entry_that_brought_it() {
        let lsn = Lsn::from_raw;
        let mut positions = Positions::default();
        let mut note = |index, at: u64, length: usize, end: u64, outcome: Outcome| {
            let command = Command::Append {
                epoch: 1,
                at: lsn(at),
                end: None,
                redo: vec![0; length],
            };
            let entry = Entry {
                index,
                data: command.encode(),
                ..Entry::default()
            };
            positions.note(&entry, &outcome, lsn(end)).expect("a command");
        };
        note(1, 100, 50, 150, Outcome::Done);
        note(2, 150, 50, 200, Outcome::Done);
        note(3, 150, 50, 200, Outcome::Done);
        note(4, 190, 60, 200, Outcome::Done);
        note(5, 0, 0, 200, Outcome::Taken { epoch: 2 });
        note(6, 200, 10, 210, Outcome::Done);
        let found = [99, 100, 149, 150, 199, 200, 209, 210].map(|at| positions.entry_of(lsn(at)));
        let expected = [None, Some(1), Some(1), Some(2), Some(2), Some(6), Some(6), None];
        assert_eq!(found, expected);
        positions.forget_before(2);
        assert_eq!(positions.entry_of(lsn(120)), None);
        assert_eq!(positions.entry_of(lsn(160)), Some(2));
    }
}
