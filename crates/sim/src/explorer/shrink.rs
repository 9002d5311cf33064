//! Shrinking: the same seed with less of everything, as long as it still fails.
//!
//! A smaller run counts only if it fails in the same way ([`Failure::kind`]): another failure is another story, and the
//! one that was to be told would be lost over it.
//!
//! Less work moves every step of the schedule, so one that is smaller may pass by chance. Each candidate is tried under
//! a few orders of the threads.

use std::time::{Duration, Instant};

use super::explore::{Failure, Order, try_one};
use crate::worlds::{Limits, Plan};

/// Orders of threads that are tried for each candidate.
const TWISTS: u64 = 4;

/// The least failure found within `time`.
///
/// # Errors
/// As [`try_one`](super::explore::try_one).
pub fn shrink(order: &Order, failure: Failure, time: Duration) -> std::io::Result<Failure> {
    let (begun, mut least) = (Instant::now(), failure);
    let plan = Plan::draw(least.world, least.seed, least.limits);
    least.limits = Limits {
        transactions: plan.transactions,
        deaths: plan.deaths,
        sessions: plan.sessions.max(plan.definers),
        rows: plan.rows,
        statements: plan.statements,
        ..least.limits
    };
    loop {
        let mut found = None;
        'candidates: for candidate in candidates(least.limits) {
            for twist in 0..TWISTS {
                if begun.elapsed() > time {
                    return Ok(least);
                }
                let limits = Limits { twist, ..candidate };
                found = try_one(order, least.seed, limits)?.filter(|smaller| smaller.kind() == least.kind());
                if found.is_some() {
                    break 'candidates;
                }
            }
        }
        match found {
            Some(smaller) => {
                least = Failure {
                    limits: smaller.limits,
                    ..smaller
                }
            }
            None => return Ok(least),
        }
    }
}

/// Limits with one thing less: the greatest steps first.
fn candidates(l: Limits) -> Vec<Limits> {
    let mut all = Vec::new();
    for transactions in [l.transactions / 8, l.transactions / 2, l.transactions * 3 / 4] {
        all.push(Limits { transactions, ..l });
    }
    for deaths in [0, l.deaths / 2, l.deaths.saturating_sub(1)] {
        all.push(Limits { deaths, ..l });
    }
    for sessions in [1, l.sessions / 2, l.sessions.saturating_sub(1)] {
        all.push(Limits { sessions, ..l });
    }
    for rows in [1, l.rows / 4, l.rows / 2] {
        all.push(Limits { rows, ..l });
    }
    all.push(Limits {
        statements: l.statements / 2,
        ..l
    });
    all.retain(|c| *c != l && c.transactions > 3 && c.sessions > 0 && c.rows > 0 && c.statements > 0);
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_get_smaller_and_end() {
        let mut limits = Limits {
            transactions: 2000,
            deaths: 5,
            sessions: 8,
            rows: 400,
            statements: 8,
            twist: 0,
        };
        let mut steps = 0;
        while let Some(smaller) = candidates(limits).pop() {
            limits = smaller;
            steps += 1;
            assert!(steps < 100, "no end");
        }
        assert_eq!((limits.sessions, limits.rows, limits.statements), (1, 1, 1));
    }
}
