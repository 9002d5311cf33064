//! Sessions that leave their open transactions to the next life, and those that take them up there.
//!
//! In a life that leaves, sessions do so in about half of their transactions from a moment before its end on, after any
//! of their statements. Those of the next life ask for what was left, go on with it, and end it or leave it again.
//! Others wait for rows of a transaction that is left, at worst for as long as the life: so all have a lock timeout,
//! and an end in order cancels their statements.

use cenote_base::rt::{self, Nanos};
use cenote_engine::TakenUp;

use super::session::{Session, Step};
use crate::check::left::Leave;

impl Session {
    /// It need not wait for ever.
    pub(super) fn suit_leaving(mut self) -> Session {
        if self.shared.plan.leaves {
            let timeout = self.draw.pick(&[1, 3, 20]);
            self.tx.set_lock_timeout(timeout);
            self.tx.set_cancel_flag(&self.shared.cancel());
        }
        self
    }

    /// One turn in so many it asks for a transaction that was left: soon, or when much has happened since the start.
    pub(super) fn eagerness(&mut self) -> u64 {
        match self.shared.plan.leaves {
            true => self.draw.pick(&[1, 4, 30, 100]),
            false => 0,
        }
    }

    /// Whether the transaction in progress is to be left.
    pub(super) fn is_to_leave(&self) -> bool {
        self.leaves && self.shared.is_leaving()
    }

    /// Leaves the transaction in progress. What its session gives is of any size: its record is in one piece or more.
    pub(super) fn leave(&mut self) {
        let token = u128::from(self.draw.word()) << 64 | u128::from(self.draw.word());
        let length = self.draw.pick(&[0, 40, 40, 9_000, 40_000]);
        let mut leave = Leave::new(self.txn, token, vec![token as u8; length]);
        (leave.writes, leave.has_savepoint) = (self.writes, self.saved.is_some());
        (leave.floor, leave.begun) = (self.floor, self.begun);
        let session = leave.session.clone();
        self.shared.history().leave(leave);
        let saved: Vec<_> = self.saved.iter().collect();
        let done = self.tx.leave_to_next(token, &saved, session);
        self.shared.history().answer_leave(token, done.is_ok());
        match done {
            Ok(()) => self.shared.count("transactions left"),
            Err(error) => {
                self.judge(&error);
                self.roll_back();
            }
        }
    }

    /// Now and then takes a transaction up that was left, and ends it or leaves it again. False: it has not.
    pub(super) fn takes_up(&mut self, eager: u64) -> bool {
        eager > 0 && self.draw.one_in(eager) && self.take_up_any()
    }

    /// Ends all transactions that were left.
    pub(super) fn end_those_left(mut self) {
        while self.shared.history().is_any_left() && !self.shared.has_failed() {
            self.take_up_any();
        }
    }

    fn take_up_any(&mut self) -> bool {
        let pick = self.draw.word();
        let all = self.shared.history().ask_for_left(pick);
        let Some(txn) = all.first().map(|leave| leave.txn) else {
            return false;
        };
        for leave in all {
            match self.tx.take_up(leave.token, &|_| true) {
                Ok(Some(taken)) => {
                    self.go_on_with(&leave, taken);
                    return true;
                }
                Ok(None) => self.note_missing(&leave),
                Err(error) => {
                    self.fail(format!("a transaction that was left is not taken up: {error}"));
                    return false;
                }
            }
        }
        self.shared.history().is_given_up(txn);
        false
    }

    fn note_missing(&self, leave: &Leave) {
        let gives_up = self.shared.plan.leaving(self.life).gives_up;
        self.shared.count("transactions left and not there");
        if let Err(problem) = self.shared.history().not_there(leave, gives_up) {
            self.shared.fail(format!("life {}: {problem}", self.life));
        }
    }

    fn go_on_with(&mut self, leave: &Leave, taken: TakenUp) {
        if taken.session != leave.session || taken.savepoints.len() != usize::from(leave.has_savepoint) {
            let (bytes, savepoints) = (taken.session.len(), taken.savepoints.len());
            self.fail(format!(
                "taken up with {bytes} bytes and {savepoints} savepoints: {leave:?}"
            ));
        }
        let goes_on = self.shared.history().taken_up(leave);
        match goes_on {
            Ok(true) => {
                self.shared.count("transactions taken up");
                self.resume(leave, taken);
                let done = self.look_again().and_then(|()| self.go_on());
                self.finish(done);
            }
            Ok(false) => {
                self.shared.count("transactions that came back");
                if let Err(error) = self.tx.rollback() {
                    self.judge(&error);
                }
            }
            Err(problem) => {
                self.shared.fail(format!("life {}: {problem}", self.life));
            }
        }
    }

    fn resume(&mut self, leave: &Leave, mut taken: TakenUp) {
        (self.txn, self.writes) = (leave.txn, leave.writes);
        (self.floor, self.begun) = (leave.floor, leave.begun);
        self.saved = taken.savepoints.pop();
        self.leaves = self.draw.one_in(2);
    }

    /// All that it has written is there, and all else as its snapshot has it.
    fn look_again(&mut self) -> Step {
        self.look_up_tables()?;
        for table in 0..self.shared.plan.tables {
            self.begin_statement();
            self.scan_all(table)?;
        }
        Ok(())
    }

    /// Some return to their savepoint first, and some idle.
    fn go_on(&mut self) -> Step {
        if self.draw.one_in(2) {
            self.return_to_savepoint()?;
        }
        if self.draw.one_in(2) {
            rt::sleep(Nanos(self.draw.below(1_000_000)));
        }
        let count = self.draw.below(self.shared.plan.statements + 1);
        self.statements(count)
    }
}
