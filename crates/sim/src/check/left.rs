//! Transactions that sessions leave to the next life: what that may find of them.
//!
//! ```text
//!  leave ──▶ May ── acknowledged ──▶ Must ── taken up, or time to give it up ──▶ May ── an end in order ──▶ Never
//!             └── died meanwhile: found whole, or not at all
//! ```
//!
//! That a transaction was taken up or given up is durable with the next commit only: a power cut before takes it back
//! to where it was left; a mere kill does not. So what it did since is forgotten if it is found again; one whose end
//! was asked for by then is rolled back.

/// What the next life may find of a transaction that was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hope {
    Must,
    May,
    Never,
}

/// A transaction as a session left it.
#[derive(Debug, Clone)]
pub struct Leave {
    /// By which it is found.
    pub token: u128,
    /// Its number.
    pub txn: usize,
    /// What its session gave.
    pub session: Vec<u8>,
    /// Writes that it had made.
    pub writes: usize,
    /// What had been acknowledged when it took its snapshot.
    pub floor: u64,
    /// Whether it had begun a statement.
    pub begun: bool,
    /// Whether it had a savepoint.
    pub has_savepoint: bool,
    /// Operations that it had noted, and statements that it had begun.
    pub done: (usize, u32),
    hope: Hope,
    /// Whether a session of this life has asked for it.
    asked: bool,
    /// Whether the last life has taken it up; in this one, whether it has.
    was_taken: bool,
    is_taken: bool,
    /// Whether this life leaves it.
    is_new: bool,
}

impl Leave {
    /// Of a transaction, with what its session gives.
    pub fn new(txn: usize, token: u128, session: Vec<u8>) -> Leave {
        Leave {
            token,
            txn,
            session,
            writes: 0,
            floor: 0,
            begun: false,
            has_savepoint: false,
            done: (0, 0),
            hope: Hope::May,
            asked: false,
            was_taken: false,
            is_taken: false,
            is_new: true,
        }
    }
    /// Whether it has to be there, in a life that gives up or not.
    pub fn is_due(&self, gives_up: bool) -> bool {
        self.hope == Hope::Must && !gives_up
    }

    /// Whether it cannot be there.
    pub fn is_past(&self) -> bool {
        self.hope == Hope::Never
    }

    fn is_open(&self) -> bool {
        self.is_new || !self.asked
    }
}

/// All that was left, in the order in which it was.
#[derive(Debug, Default)]
pub(super) struct Leaves(Vec<Leave>);

impl Leaves {
    /// A session begins to leave its transaction.
    pub fn begin(&mut self, leave: Leave) {
        self.0.push(leave);
    }

    /// The answer to that: the transaction, if it is left.
    pub fn answer(&mut self, token: u128, is_left: bool) -> Option<usize> {
        let at = self.0.iter().position(|leave| leave.token == token)?;
        if !is_left {
            self.0.remove(at);
            return None;
        }
        self.0[at].hope = Hope::Must;
        Some(self.0[at].txn)
    }

    /// Whether a transaction was left, or may have been.
    pub fn has(&self, txn: usize) -> bool {
        self.0.iter().any(|leave| leave.txn == txn)
    }

    /// All that one transaction was left as before this life, the newest first: asked for once in a life.
    pub fn ask(&mut self, pick: u64) -> Vec<Leave> {
        let open = self.0.iter().filter(|leave| leave.is_open() && !leave.is_new);
        let open: Vec<usize> = open.map(|leave| leave.txn).collect();
        let Some(txn) = open.get((pick % open.len().max(1) as u64) as usize) else {
            return Vec::new();
        };
        let mut its = Vec::new();
        for leave in self
            .0
            .iter_mut()
            .rev()
            .filter(|leave| leave.txn == *txn && !leave.is_new)
        {
            leave.asked = true;
            its.push(leave.clone());
        }
        its
    }

    /// A transaction was taken up by this token.
    pub fn take(&mut self, taken: &Leave) {
        for leave in self
            .0
            .iter_mut()
            .filter(|leave| leave.txn == taken.txn && !leave.is_new)
        {
            leave.is_taken = leave.token == taken.token;
            leave.hope = if leave.is_taken { Hope::May } else { Hope::Never };
        }
    }

    /// None was there by this token. `gives_up`: this life gives them up.
    pub fn miss(&mut self, missed: &Leave, gives_up: bool) {
        // Given up in this life, it comes back with a crash.
        if !gives_up {
            self.0.retain(|leave| leave.token != missed.token);
        }
    }

    /// A life is over: in order, so that all of it is durable, or not. `gives_up`: it gave up what no session asked
    /// for.
    pub fn pass_on(&mut self, in_order: bool, gives_up: bool) {
        for leave in &mut self.0 {
            if leave.asked && in_order {
                leave.hope = Hope::Never;
            } else if (leave.asked || gives_up && !leave.is_new) && leave.hope == Hope::Must {
                // The life has died before the answer, or has given it up.
                leave.hope = Hope::May;
            }
            (leave.was_taken, leave.is_taken) = (leave.is_taken, false);
            (leave.asked, leave.is_new) = (false, false);
        }
    }

    /// A life has recovered from memory, with all that the one before had done.
    pub fn keep_all(&mut self) {
        let taken = self.0.iter_mut().filter(|leave| leave.was_taken);
        taken.for_each(|leave| leave.hope = Hope::Never);
    }

    /// Whether a session of this life has taken one up.
    pub fn is_any_taken(&self) -> bool {
        self.0.iter().any(|leave| leave.is_taken)
    }

    /// Whether the engine may have some, of this life or before.
    pub fn is_any_open(&self) -> bool {
        self.0.iter().any(Leave::is_open)
    }
}
