//! When a server pauses, since it is not needed, and when a paused one resumes.
//!
//! ```text
//!   serves ── no session and no statement for so long, and (as the writer) no other serves that could take it ──┐
//!     ▲    ── or: for so long one server fewer would do, and this reader is the last in the row ────────────────┤
//!     │                                                                                                         ▼
//!     └── clients wait and no server has the database; or reads ask for more servers than serve ───────────── paused
//! ```
//!
//! All see the same list and the same numbers, and a row by the servers' numbers says which of them it is. Where they
//! see it at two moments one server too many resumes, which pauses again.

use cenote_base::rt::Nanos;
use cenote_storage_node::{Membership, Server, ServerRole, ServerSeen};

use crate::lease::{OVERDUE, SILENCE};

/// Between two words of a paused server: so long a client may wait for it to begin, and half as long on average.
pub const BEAT_PAUSED: Nanos = Nanos::from_millis(50);
/// While clients wait for a writer another server resumes each time that so long has passed.
const NEXT_RESUMES: Nanos = Nanos::from_secs(1);
/// Hundredths of a session, as loads are told.
const HUNDRED: u64 = 100;
/// One server fewer would do where it took the load with a fifth to spare: else servers would come and go.
const SPARE: (u64, u64) = (4, 5);

/// When a server pauses, and how much work is one server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pausing {
    /// How long it is not needed before it pauses.
    pub after: Nanos,
    /// Reads at a time for each server that serves.
    pub reads: u32,
}

/// What a server knows of its own use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// For how long it has had no session, and no statement.
    pub idle_for: Nanos,
    /// For how long one server fewer would have done.
    pub spare_for: Nanos,
    /// Sessions that no proxy has: their clients would see the pause.
    pub direct: u32,
}

/// Whether `me`, which serves, pauses.
pub fn pauses(me: &Server, seen: &Membership, pausing: Pausing, used: Use) -> bool {
    if all_are_needed(seen) {
        return false;
    }
    let is_idle = used.idle_for >= pausing.after;
    match me.role {
        ServerRole::Writer => is_idle && !others(me, seen).any(may_take),
        ServerRole::Reader => {
            let is_spare = used.spare_for >= pausing.after && used.direct == 0 && is_last(me, seen);
            is_idle && has_spare(seen, pausing) || is_spare
        }
        _ => false,
    }
}

/// Whether no server pauses now: clients wait for a writer, or another server is to have the database, or none has it
/// and a reader is about to take it.
pub fn all_are_needed(seen: &Membership) -> bool {
    seen.demanded.waits_for.is_some() || seen.switch_to != 0 || !has_writer(seen)
}

/// Whether `me`, which is paused, serves again.
pub fn resumes(me: &Server, seen: &Membership, pausing: Pausing) -> bool {
    let is_before =
        |other: &ServerSeen| other.server.role == ServerRole::Paused && other.ago < OVERDUE && other.server.id < me.id;
    let before = seen.servers.iter().filter(|other| is_before(other)).count();
    before < for_writer(seen).max(for_load(seen, pausing))
}

/// Whether one server fewer would do.
pub fn has_spare(seen: &Membership, pausing: Pausing) -> bool {
    let room = (serving(seen).saturating_sub(1) as u64) * u64::from(pausing.reads) * HUNDRED;
    u64::from(seen.demanded.load) <= room * SPARE.0 / SPARE.1
}

/// Servers that are to resume so that one of them takes the database. One that was let begin and does not come holds
/// the others up for a second.
fn for_writer(seen: &Membership) -> usize {
    match seen.demanded.waits_for {
        Some(waits_for) if !has_writer(seen) => {
            let candidates = seen.servers.iter().filter(|other| may_take(other)).count() as u64;
            (1 + waits_for.0 / NEXT_RESUMES.0).saturating_sub(candidates) as usize
        }
        _ => 0,
    }
}

/// Servers that are to resume so that there are enough of them for the load.
fn for_load(seen: &Membership, pausing: Pausing) -> usize {
    let each = u64::from(pausing.reads.max(1)) * HUNDRED;
    let wanted = u64::from(seen.demanded.load).div_ceil(each) as usize;
    // What remains of an average wakes no database that has just been left.
    match has_writer(seen) {
        true => wanted.saturating_sub(serving(seen)),
        false => 0,
    }
}

/// Servers that serve clients, or are about to.
fn serving(seen: &Membership) -> usize {
    let serves = |other: &&ServerSeen| {
        use ServerRole::{Opening, Reader, Writer};
        other.ago < SILENCE && matches!(other.server.role, Reader | Writer | Opening)
    };
    seen.servers.iter().filter(serves).count()
}

/// Whether a server has the database, as far as is known.
fn has_writer(seen: &Membership) -> bool {
    seen.vacant_for.is_none() && seen.writer().is_some_and(|writer| writer.ago < OVERDUE)
}

fn others<'a>(me: &Server, seen: &'a Membership) -> impl Iterator<Item = &'a ServerSeen> {
    let id = me.id;
    seen.servers.iter().filter(move |other| other.server.id != id)
}

/// Whether it takes the database when no server has it.
pub(crate) fn may_take(other: &ServerSeen) -> bool {
    let is_up = matches!(other.server.role, ServerRole::Reader | ServerRole::Opening);
    is_up && other.server.may_write && other.ago < SILENCE
}

/// Whether no reader that could pause comes behind it.
fn is_last(me: &Server, seen: &Membership) -> bool {
    let is_behind = |other: &ServerSeen| {
        other.server.role == ServerRole::Reader && other.server.may_write && other.server.id > me.id
    };
    !others(me, seen).any(|other| other.ago < SILENCE && is_behind(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Lsn;
    use cenote_storage_node::Demanded;

    const PAUSING: Pausing = Pausing {
        after: Nanos::from_secs(60),
        reads: 4,
    };
    const IDLE: Use = Use {
        idle_for: Nanos::from_secs(61),
        spare_for: Nanos::from_secs(61),
        direct: 0,
    };

    fn server(id: u128, role: ServerRole) -> Server {
        Server {
            id,
            name: format!("s{id}"),
            address: format!("127.0.0.1:{id}"),
            role,
            epoch: if role == ServerRole::Writer { 7 } else { 0 },
            position: Lsn::ZERO,
            may_write: true,
            sessions: 0,
        }
    }

    fn seen(roles: &[ServerRole], waits_ms: Option<u64>, load: u32) -> Membership {
        let vacant = !roles.contains(&ServerRole::Writer);
        let servers = roles.iter().zip(1..).map(|(role, id)| ServerSeen {
            server: server(id, *role),
            ago: Nanos::from_millis(20),
        });
        Membership {
            epoch: 7,
            term: 1,
            has_database: true,
            database: 9,
            vacant_for: vacant.then_some(Nanos::from_secs(9)),
            listens_for: Nanos::from_secs(60),
            switch_to: 0,
            demanded: Demanded {
                waits_for: waits_ms.map(Nanos::from_millis),
                load,
            },
            servers: servers.collect(),
        }
    }

    use ServerRole::{Opening, Paused, Reader, Writer};

    fn resuming(seen: &Membership) -> Vec<u128> {
        let paused = seen.servers.iter().filter(|one| one.server.role == Paused);
        let resuming = paused.filter(|one| resumes(&one.server, seen, PAUSING));
        resuming.map(|one| one.server.id).collect()
    }

    #[test]
    fn the_writer_pauses_when_it_is_the_last_that_serves_and_idle() {
        let last = seen(&[Writer, Paused, Paused], None, 0);
        let me = server(1, Writer);
        assert!(pauses(&me, &last, PAUSING, IDLE));
        let used = Use {
            idle_for: Nanos::from_secs(59),
            ..IDLE
        };
        assert!(!pauses(&me, &last, PAUSING, used), "it was used");
        for other in [Reader, Opening] {
            let other = seen(&[Writer, other, Paused], None, 0);
            assert!(!pauses(&me, &other, PAUSING, IDLE), "that one would take the database");
        }
        let waits = seen(&[Writer, Paused], Some(1), 0);
        assert!(!pauses(&me, &waits, PAUSING, IDLE), "a client waits");
    }

    #[test]
    fn readers_pause_when_idle_and_the_last_of_them_when_one_fewer_would_do() {
        let three = seen(&[Writer, Reader, Reader], None, 640);
        assert!(pauses(&server(2, Reader), &three, PAUSING, IDLE));
        let named = Membership {
            switch_to: 2,
            ..three.clone()
        };
        assert!(!pauses(&server(2, Reader), &named, PAUSING, IDLE));
        let loaded = seen(&[Writer, Reader, Reader], None, 700);
        assert!(
            !pauses(&server(2, Reader), &loaded, PAUSING, IDLE),
            "it would resume at once"
        );
        let busy = Use {
            idle_for: Nanos::ZERO,
            ..IDLE
        };
        assert!(!pauses(&server(2, Reader), &three, PAUSING, busy));
        assert!(pauses(&server(3, Reader), &three, PAUSING, busy));
        let direct = Use { direct: 1, ..busy };
        assert!(
            !pauses(&server(3, Reader), &three, PAUSING, direct),
            "its client would see it"
        );
        assert!(
            has_spare(&three, PAUSING),
            "two servers take 8 sessions, and 6.4 with some to spare"
        );
        assert!(!has_spare(&seen(&[Writer, Reader, Reader], None, 641), PAUSING));
        assert!(has_spare(&seen(&[Writer], None, 0), PAUSING));
        assert!(!all_are_needed(&three));
        let mut lost = three.clone();
        lost.servers[0].ago = OVERDUE;
        assert!(
            all_are_needed(&lost),
            "one that drains is a reader again, and takes the database"
        );
        let vacant = seen(&[Reader], None, 0);
        assert!(
            !pauses(&server(1, Reader), &vacant, PAUSING, IDLE),
            "it takes the database"
        );
    }

    #[test]
    fn one_resumes_for_clients_that_wait_and_another_when_that_one_does_not_come() {
        assert!(resuming(&seen(&[Paused, Paused, Paused], None, 0)).is_empty());
        assert_eq!(resuming(&seen(&[Paused, Paused, Paused], Some(0), 0)), [1]);
        assert_eq!(resuming(&seen(&[Opening, Paused, Paused], Some(900), 0)), [0u128; 0]);
        assert_eq!(resuming(&seen(&[Opening, Paused, Paused], Some(1001), 0)), [2]);
        assert_eq!(resuming(&seen(&[Reader, Paused, Paused], Some(500), 0)), [0u128; 0]);
        let mut silent = seen(&[Paused, Paused], Some(0), 0);
        silent.servers[0].ago = OVERDUE;
        assert!(resuming(&silent).contains(&2), "the first in the row is not heard");
    }

    #[test]
    fn clients_that_wait_for_a_writer_that_is_there_wake_nothing_until_it_is_overdue() {
        let mut lost = seen(&[Writer, Paused, Paused], Some(700), 0);
        assert!(resuming(&lost).is_empty());
        lost.servers[0].ago = OVERDUE;
        assert_eq!(resuming(&lost), [2]);
    }

    #[test]
    fn as_many_serve_as_the_load_asks_for() {
        assert!(resuming(&seen(&[Writer, Paused, Paused], None, 400)).is_empty());
        assert_eq!(resuming(&seen(&[Writer, Paused, Paused], None, 401)), [2]);
        assert_eq!(resuming(&seen(&[Writer, Paused, Paused], None, 2000)), [2, 3]);
        assert!(
            resuming(&seen(&[Writer, Opening, Paused], None, 800)).is_empty(),
            "it is on its way"
        );
        assert!(
            resuming(&seen(&[Paused, Paused], None, 3)).is_empty(),
            "nothing waits: an average runs out"
        );
    }
}
