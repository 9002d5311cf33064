//! What a server does next, by what it hears of the others.
//!
//! ```text
//!              hears nothing of the writer for SILENCE, or that it has gone in order;
//!              is the first in the row of those that may write, or the ones before it had their time
//!   Reader ───────────────────────────────────────────────────────────────▶ Take
//!   Writer ── another is named, and is there ──▶ HandOver
//!   Writer ── a later start has the database ──▶ Deposed
//! ```
//!
//! Where none of this comes about, and the server was started so, it may pause, or resume ([`crate::pausing`]).
//!
//! A writer whose process has ended is found sooner: its address refuses connections. That is asked for only once its
//! word is overdue (250 ms), so a server that is merely slow is never asked.

use cenote_base::rt::Nanos;
use cenote_storage_node::{Membership, Server, ServerRole, ServerSeen};

use crate::lease::{OVERDUE, SILENCE};
use crate::pausing::{Pausing, Use, may_take, pauses, resumes};

/// Between two words of a server.
pub const BEAT: Nanos = Nanos::from_millis(100);
/// Between two words of a server that is to have the database next.
pub const BEAT_IN_SWITCH: Nanos = Nanos::from_millis(10);
/// What each server in the row leaves to the ones before it.
const STEP: Nanos = Nanos::from_millis(300);
/// The same to one that a switch names, which is there: people wait for that one, also on a busy machine.
const STEP_NAMED: Nanos = Nanos::from_secs(1);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// All is as it was.
    Stay,
    /// The writer is overdue: it has ended if this address refuses connections.
    Probe(String),
    /// The database is without a server; `after`: the start that had it.
    Take {
        /// Whose server is silent, or gone.
        after: u64,
        /// For how long, at least.
        silent: Nanos,
    },
    /// Another server is to have it.
    HandOver,
    /// Another server has it.
    Deposed {
        /// That start.
        by: u64,
    },
    /// It is not needed.
    Pause,
    /// It is needed again.
    Resume,
}

/// What a server knows of itself, beside what it says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Own {
    /// The writer's address, asked because it was overdue, refused.
    pub is_refused: bool,
    /// When it pauses; `None`: never.
    pub pausing: Option<Pausing>,
    /// Its use.
    pub used: Use,
}

/// What `me` does.
pub fn decide(me: &Server, seen: &Membership, own: &Own) -> Decision {
    let decision = match me.role {
        ServerRole::Writer => as_writer(me, seen),
        ServerRole::Reader if me.may_write && seen.has_database => as_reader(me, seen, own.is_refused),
        _ => Decision::Stay,
    };
    match (&decision, own.pausing) {
        (Decision::Stay, Some(pausing)) => by_use(me, seen, pausing, own.used),
        _ => decision,
    }
}

/// Whether a server that begins takes the database before it reads it: it was left in order, or none is heard that has
/// it, and no other is there that could take it. As a reader it would take it as soon, and end its first sessions for
/// it. Of two that see it so one is refused by the nodes, and begins as a reader.
pub fn takes_at_once(me: u128, seen: &Membership) -> bool {
    let is_free = seen.vacant_for.is_some() || (seen.writer().is_none() && seen.listens_for >= SILENCE);
    is_free
        && !seen
            .servers
            .iter()
            .any(|other| other.server.id != me && may_take(other))
}

/// Whether a server that begins may take a database that it cannot read: none was ever made, or no server has it that
/// is about to say so.
pub fn may_begin_as_writer(seen: &Membership) -> bool {
    let is_known = seen.vacant_for.is_some() || seen.listens_for >= SILENCE;
    seen.epoch == 0 || (seen.writer().is_none() && is_known)
}

fn by_use(me: &Server, seen: &Membership, pausing: Pausing, used: Use) -> Decision {
    match me.role {
        ServerRole::Paused if resumes(me, seen, pausing) => Decision::Resume,
        ServerRole::Reader | ServerRole::Writer if pauses(me, seen, pausing, used) => Decision::Pause,
        _ => Decision::Stay,
    }
}

fn as_writer(me: &Server, seen: &Membership) -> Decision {
    if seen.epoch > me.epoch {
        return Decision::Deposed { by: seen.epoch };
    }
    let is_target = |other: &ServerSeen| {
        other.server.id == seen.switch_to && other.server.id != me.id && is_candidate(other) && other.ago < OVERDUE
    };
    match seen.servers.iter().any(is_target) {
        true => Decision::HandOver,
        false => Decision::Stay,
    }
}

fn as_reader(me: &Server, seen: &Membership, is_refused: bool) -> Decision {
    let turn = turn_of(me, seen);
    let is_due = |silent: Nanos, from: Nanos| match silent >= from + turn {
        true => Decision::Take {
            after: seen.epoch,
            silent: from,
        },
        false => Decision::Stay,
    };
    if let Some(vacant) = seen.vacant_for {
        return is_due(vacant, Nanos::ZERO);
    }
    match seen.writer() {
        Some(writer) if writer.ago < OVERDUE => Decision::Stay,
        Some(writer) if is_refused => is_due(writer.ago, OVERDUE),
        Some(writer) if writer.ago < SILENCE => Decision::Probe(writer.server.address.clone()),
        Some(writer) => is_due(writer.ago, SILENCE),
        // The node that leads has not led for long enough to miss it, perhaps.
        None => is_due(seen.listens_for, SILENCE),
    }
}

/// What this server leaves to others: those that were named, or have a lower number.
fn turn_of(me: &Server, seen: &Membership) -> Nanos {
    if seen.switch_to == me.id {
        return Nanos::ZERO;
    }
    let there = seen
        .servers
        .iter()
        .filter(|other| is_candidate(other) && other.ago < SILENCE);
    let step = |other: &ServerSeen| match other.server.id {
        id if id == seen.switch_to => STEP_NAMED.0,
        id if id < me.id => STEP.0,
        _ => 0,
    };
    Nanos(there.map(step).sum())
}

fn is_candidate(other: &ServerSeen) -> bool {
    other.server.role == ServerRole::Reader && other.server.may_write
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Lsn;
    use cenote_storage_node::Demanded;

    const MS: u64 = 1_000_000;

    fn decide(me: &Server, seen: &Membership, is_refused: bool) -> Decision {
        let own = Own {
            is_refused,
            ..Own::default()
        };
        super::decide(me, seen, &own)
    }

    fn server(id: u128, role: ServerRole, epoch: u64) -> Server {
        Server {
            id,
            name: format!("s{id}"),
            address: format!("127.0.0.1:{id}"),
            role,
            epoch,
            position: Lsn::ZERO,
            may_write: true,
            sessions: 0,
        }
    }

    fn seen(servers: &[(Server, u64)]) -> Membership {
        Membership {
            epoch: 7,
            term: 1,
            has_database: true,
            database: 9,
            vacant_for: None,
            listens_for: Nanos::from_secs(60),
            switch_to: 0,
            demanded: Demanded::default(),
            servers: servers
                .iter()
                .map(|(server, ms)| ServerSeen {
                    server: server.clone(),
                    ago: Nanos(ms * MS),
                })
                .collect(),
        }
    }

    fn writer() -> Server {
        server(1, ServerRole::Writer, 7)
    }

    fn reader(id: u128) -> Server {
        server(id, ServerRole::Reader, 0)
    }

    #[test]
    fn a_silent_writer_is_replaced_by_one_reader_at_a_time() {
        let take = |silent| Decision::Take { after: 7, silent };
        let at = |ms| seen(&[(writer(), ms), (reader(2), 10), (reader(3), 10)]);
        assert_eq!(decide(&reader(2), &at(249), true), Decision::Stay);
        assert_eq!(
            decide(&reader(2), &at(250), false),
            Decision::Probe("127.0.0.1:1".into())
        );
        assert_eq!(decide(&reader(2), &at(250), true), take(OVERDUE));
        assert_eq!(
            decide(&reader(3), &at(250), true),
            Decision::Stay,
            "the other one first"
        );
        assert_eq!(decide(&reader(3), &at(550), true), take(OVERDUE));
        assert_eq!(decide(&reader(2), &at(1000), false), take(SILENCE));
        assert_eq!(decide(&reader(3), &at(1000), false), Decision::Stay);
        assert_eq!(decide(&reader(3), &at(1300), false), take(SILENCE));
        let fixed = Server {
            may_write: false,
            ..reader(2)
        };
        assert_eq!(decide(&fixed, &at(9999), true), Decision::Stay);
    }

    #[test]
    fn a_node_that_has_just_begun_to_lead_deposes_nothing() {
        let mut young = seen(&[(reader(2), 10)]);
        young.listens_for = Nanos(999 * MS);
        assert_eq!(decide(&reader(2), &young, false), Decision::Stay);
        young.listens_for = Nanos(1000 * MS);
        let take = Decision::Take {
            after: 7,
            silent: SILENCE,
        };
        assert_eq!(decide(&reader(2), &young, false), take);
        // A former start's server is none.
        let former = seen(&[(server(1, ServerRole::Writer, 6), 0), (reader(2), 10)]);
        assert_eq!(decide(&reader(2), &former, false), take);
    }

    #[test]
    fn what_was_left_in_order_is_taken_at_once_by_the_one_that_was_named() {
        let mut vacant = seen(&[(server(1, ServerRole::Gone, 7), 20), (reader(2), 10), (reader(3), 10)]);
        vacant.vacant_for = Some(Nanos(20 * MS));
        let take = Decision::Take {
            after: 7,
            silent: Nanos::ZERO,
        };
        assert_eq!(decide(&reader(2), &vacant, false), take);
        vacant.switch_to = 3;
        assert_eq!(decide(&reader(3), &vacant, false), take);
        assert_eq!(decide(&reader(2), &vacant, false), Decision::Stay);
        vacant.vacant_for = Some(Nanos(999 * MS));
        assert_eq!(decide(&reader(2), &vacant, false), Decision::Stay);
        vacant.vacant_for = Some(Nanos(1000 * MS));
        assert_eq!(
            decide(&reader(2), &vacant, false),
            take,
            "the one that was named had its time"
        );
    }

    #[test]
    fn what_is_not_needed_pauses_unless_more_is_to_be_done() {
        let own = Own {
            is_refused: false,
            pausing: Some(Pausing {
                after: Nanos(5 * MS),
                reads: 1,
            }),
            used: Use {
                idle_for: Nanos(6 * MS),
                ..Use::default()
            },
        };
        let alone = seen(&[(writer(), 0)]);
        assert_eq!(super::decide(&writer(), &alone, &own), Decision::Pause);
        let later = Membership { epoch: 8, ..alone };
        assert_eq!(super::decide(&writer(), &later, &own), Decision::Deposed { by: 8 });
        let paused = server(2, ServerRole::Paused, 0);
        let mut waits = seen(&[(paused.clone(), 10)]);
        assert_eq!(super::decide(&paused, &waits, &own), Decision::Stay);
        waits.demanded.waits_for = Some(Nanos::ZERO);
        assert_eq!(super::decide(&paused, &waits, &own), Decision::Resume);
        assert_eq!(decide(&paused, &waits, false), Decision::Stay, "it was not started so");
    }

    #[test]
    fn a_server_that_begins_takes_what_was_left_if_no_other_could() {
        let mut left = seen(&[
            (server(1, ServerRole::Gone, 7), 20),
            (server(2, ServerRole::Paused, 0), 20),
        ]);
        left.listens_for = Nanos(999 * MS);
        assert!(!takes_at_once(3, &left), "its server may be about to be heard");
        left.vacant_for = Some(Nanos(20 * MS));
        assert!(takes_at_once(3, &left));
        for (other, could) in [
            (reader(4), true),
            (server(4, ServerRole::Opening, 0), true),
            (reader(3), false),
        ] {
            let mut left = left.clone();
            left.servers.push(ServerSeen {
                server: other,
                ago: Nanos(10 * MS),
            });
            assert_eq!(takes_at_once(3, &left), !could);
        }
        let mut none = seen(&[]);
        assert!(may_begin_as_writer(&none));
        none.listens_for = Nanos(999 * MS);
        assert!(!may_begin_as_writer(&none));
        none.vacant_for = Some(Nanos(MS));
        assert!(
            may_begin_as_writer(&none),
            "it was left, and a node that has just begun to lead knows it"
        );
        none.vacant_for = None;
        none.epoch = 0;
        assert!(may_begin_as_writer(&none), "none was ever made");
        assert!(!may_begin_as_writer(&seen(&[(writer(), 0)])));
    }

    #[test]
    fn a_writer_hands_over_to_one_that_is_there_and_ends_when_another_has_it() {
        let mut asked = seen(&[(writer(), 0), (reader(2), 10)]);
        assert_eq!(decide(&writer(), &asked, false), Decision::Stay);
        asked.switch_to = 2;
        assert_eq!(decide(&writer(), &asked, false), Decision::HandOver);
        asked.servers[1].ago = OVERDUE;
        assert_eq!(
            decide(&writer(), &asked, false),
            Decision::Stay,
            "it is not there any more"
        );
        asked.epoch = 8;
        assert_eq!(decide(&writer(), &asked, false), Decision::Deposed { by: 8 });
    }
}
