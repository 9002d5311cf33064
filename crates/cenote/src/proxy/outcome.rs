//! What the loss of a server means to the client whose statement it had.
//!
//! The only place that decides whether something is sent twice. Nothing is that may have changed something.

/// What was under way when the server was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// A block was open before.
    pub in_block: bool,
    /// It came to a reader.
    pub at_reader: bool,
    /// All statements may be carried out twice.
    pub repeatable: bool,
    /// It is COMMIT or END, alone.
    pub commits: bool,
    /// It is ROLLBACK or ABORT, alone.
    pub rolls_back: bool,
    /// There is a COMMIT or ROLLBACK in it, among others.
    pub ends_block: bool,
    /// Messages of it went to the server that are not to be had again.
    pub is_cut: bool,
    /// The server may have got some of it.
    pub sent: bool,
    /// The client got a part of the answer.
    pub answered: bool,
    /// The server has left the block to the next one, as it was before this came.
    pub is_left: bool,
}

/// What the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: it is sent to another server.
    Again,
    /// 40003: it may have been carried out, or not. No block is open.
    Unknown,
    /// 08006, no block is open.
    Lost,
    /// 08006, and the block has failed.
    BlockFailed,
    /// ROLLBACK: that is what the loss did.
    RolledBack,
}

/// Decides.
pub fn of(work: Work) -> Outcome {
    match work {
        Work { in_block: true, .. } => of_block(work),
        Work { sent: false, .. } if !work.is_begun() => Outcome::Again,
        Work { sent: false, .. } => Outcome::Lost,
        Work { at_reader: true, .. } | Work { repeatable: true, .. } if work.is_begun() => Outcome::Lost,
        Work { at_reader: true, .. } | Work { repeatable: true, .. } => Outcome::Again,
        _ => Outcome::Unknown,
    }
}

impl Work {
    /// Whether it cannot be sent as a whole, to be answered as a whole.
    fn is_begun(&self) -> bool {
        self.answered || self.is_cut
    }
}

fn of_block(work: Work) -> Outcome {
    match work {
        Work {
            is_left: true,
            sent: false,
            answered: false,
            is_cut: false,
            ..
        } => Outcome::Again,
        Work {
            rolls_back: true,
            answered: false,
            is_cut: false,
            ..
        } => Outcome::RolledBack,
        Work {
            ends_block: true,
            sent: true,
            at_reader: false,
            ..
        } => Outcome::Unknown,
        Work {
            commits: true,
            sent: true,
            at_reader: false,
            ..
        } => Outcome::Unknown,
        // Nothing was committed, by a COMMIT that was not sent, or of a block that changed nothing.
        Work { commits: true, .. } => Outcome::Lost,
        _ => Outcome::BlockFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All combinations: what is sent twice is either a read, or was never sent.
    #[test]
    fn nothing_that_changes_something_is_sent_twice() {
        for bits in 0..1024u32 {
            let bit = |n: u32| bits & (1 << n) != 0;
            let work = Work {
                in_block: bit(0),
                at_reader: bit(1),
                repeatable: bit(2),
                commits: bit(3),
                rolls_back: bit(4),
                sent: bit(5),
                answered: bit(6),
                ends_block: bit(7),
                is_cut: bit(8),
                is_left: bit(9),
            };
            let outcome = of(work);
            if outcome == Outcome::Again {
                assert!(!work.answered && !work.is_cut, "{work:?}");
                assert!(!work.in_block || work.is_left && !work.sent, "{work:?}");
                assert!(!work.sent || work.repeatable || work.at_reader, "{work:?}");
                continue;
            }
            if work.in_block && !work.commits && !work.rolls_back && !work.ends_block {
                assert_eq!(outcome, Outcome::BlockFailed);
            }
            let may_be_done = work.sent && !work.at_reader;
            if work.in_block && may_be_done && (work.commits || work.ends_block) && !work.rolls_back {
                assert_eq!(outcome, Outcome::Unknown, "{work:?}");
            }
            if may_be_done && !work.repeatable && !work.in_block {
                assert_eq!(outcome, Outcome::Unknown);
            }
        }
    }
}
