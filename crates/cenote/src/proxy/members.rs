//! The servers of a database, as its storage nodes know them; these hear what clients need with each question.

use super::directory::{Directory, Need, Needs, ServerAt, Servers, tell};
use super::shared::lock;
use cenote_base::rt::Nanos;
use cenote_storage_node::{Demand, Membership, NodesClient, ServerRole};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two questions; where clients wait for a server to have the database, the second.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_SOON: Duration = Duration::from_millis(10);
/// How long a change is expected once a server was not what it should be.
const EXPECTED: Duration = Duration::from_secs(2);
/// A reader that has said nothing for so long is none. A writer is one until another start has the database: what it
/// answers rests on its lease.
const SILENT: Nanos = Nanos::from_millis(1500);
/// Loads are told as an average over about so long: paused servers resume for work that stays.
const AVERAGED_OVER: Duration = Duration::from_secs(2);
/// Loads are told in hundredths.
const HUNDRED: f64 = 100.0;

/// See the module. Where no node answers, what was known before counts on.
pub struct Members {
    servers: watch::Sender<Arc<Servers>>,
    hurried: Mutex<Option<Instant>>,
    needs: OnceLock<Needs>,
    load: Mutex<Average>,
    /// Drawn when the proxy began.
    proxy: u128,
}

impl Members {
    /// Begins to ask `client`, whose calls have to be over soon.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn begin(client: NodesClient) -> std::io::Result<Arc<Members>> {
        let members = Arc::new(Members {
            servers: watch::Sender::new(Arc::default()),
            hurried: Mutex::default(),
            needs: OnceLock::new(),
            load: Mutex::default(),
            proxy: cenote_base::rt::random_u128().max(1),
        });
        let following = Arc::downgrade(&members);
        let thread = std::thread::Builder::new().name("servers".into());
        thread.spawn(move || follow(&client, &following))?;
        Ok(members)
    }

    fn pause(&self) -> Duration {
        // Clients that wait say so again and again.
        let is_expected = lock(&self.hurried).is_some_and(|at| at.elapsed() < EXPECTED);
        match is_expected {
            true => LOOK_SOON,
            false => LOOK,
        }
    }

    fn demand(&self) -> Demand {
        let need = self.needs.get().and_then(|need| need()).unwrap_or_default();
        let load = lock(&self.load).note(need, Instant::now());
        Demand {
            proxy: self.proxy,
            waiting: u32::try_from(need.waiting).unwrap_or(u32::MAX),
            load: (load * HUNDRED).round() as u32,
        }
    }
}

impl Directory for Members {
    fn servers(&self) -> Arc<Servers> {
        self.servers.borrow().clone()
    }

    fn watch(&self) -> watch::Receiver<Arc<Servers>> {
        self.servers.subscribe()
    }

    fn hurry(&self) {
        *lock(&self.hurried) = Some(Instant::now());
    }

    fn serve_needs(&self, needs: Needs) {
        // A directory is one proxy's.
        self.needs.set(needs).ok();
    }
}

/// The average of a load, in which what is long ago counts less and less.
#[derive(Debug, Default)]
struct Average {
    load: f64,
    at: Option<Instant>,
}

impl Average {
    fn note(&mut self, need: Need, now: Instant) -> f64 {
        let elapsed = self.at.map_or(AVERAGED_OVER, |at| now.saturating_duration_since(at));
        let share = 1.0 - (-elapsed.as_secs_f64() / AVERAGED_OVER.as_secs_f64()).exp();
        self.load += (need.load as f64 - self.load) * share;
        self.at = Some(now);
        self.load
    }
}

fn follow(client: &NodesClient, following: &Weak<Members>) {
    loop {
        let Some(demand) = following.upgrade().map(|members| members.demand()) else {
            return;
        };
        // Why none answers is said by the nodes' own status, and to clients that wait.
        let seen = client.demand(demand).ok();
        let Some(members) = following.upgrade() else { return };
        if let Some(seen) = &seen {
            tell(&members.servers, servers_of(seen));
        }
        let begun = Instant::now();
        drop(members);
        while let Some(members) = following.upgrade() {
            if begun.elapsed() >= members.pause() {
                break;
            }
            drop(members);
            std::thread::sleep(LOOK_SOON / 2);
        }
    }
}

fn servers_of(seen: &Membership) -> Servers {
    let writer = seen.writer().map(|one| &one.server);
    let writer = writer.filter(|server| server.role == ServerRole::Writer && seen.vacant_for.is_none());
    let is_reader = |one: &&cenote_storage_node::ServerSeen| one.server.role == ServerRole::Reader && one.ago < SILENT;
    let mut readers: Vec<ServerAt> = seen
        .servers
        .iter()
        .filter(is_reader)
        .map(|one| at(&one.server.address, 0, seen.database))
        .collect();
    readers.sort();
    Servers {
        version: 0,
        writer: writer.map(|server| at(&server.address, server.epoch, seen.database)),
        readers,
    }
}

fn at(address: &str, epoch: u64, database: u128) -> ServerAt {
    ServerAt {
        address: address.to_owned(),
        epoch,
        database,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Lsn;
    use cenote_storage_node::{Demanded, Server, ServerSeen};

    fn seen(id: u128, role: ServerRole, epoch: u64, ms: u64) -> ServerSeen {
        ServerSeen {
            server: Server {
                id,
                name: String::new(),
                address: format!("10.0.0.{id}:1"),
                role,
                epoch,
                position: Lsn::ZERO,
                may_write: true,
                sessions: 0,
            },
            ago: Nanos::from_millis(ms),
        }
    }

    #[test]
    fn a_load_that_stays_is_told_soon_and_one_that_comes_once_hardly() {
        let begun = Instant::now();
        let need = |load| Need { waiting: 0, load };
        let (mut average, mut load) = (Average::default(), 0.0);
        average.note(need(0), begun);
        for n in 1..=100 {
            load = average.note(need(10), begun + Duration::from_millis(100 * n));
        }
        assert!((9.5..=10.0).contains(&load), "{load}");
        let mut once = Average::default();
        once.note(need(0), begun);
        let load = once.note(need(10), begun + Duration::from_millis(100));
        assert!(load < 1.0, "{load}");
    }

    #[test]
    fn the_writer_is_that_of_the_last_start_and_readers_are_those_that_are_heard() {
        let mut members = Membership {
            epoch: 5,
            term: 1,
            has_database: true,
            database: 9,
            vacant_for: None,
            listens_for: Nanos::from_secs(9),
            switch_to: 0,
            demanded: Demanded::default(),
            servers: vec![
                seen(1, ServerRole::Writer, 4, 0),
                seen(2, ServerRole::Writer, 5, 800),
                seen(3, ServerRole::Reader, 0, 10),
                seen(4, ServerRole::Reader, 0, 5000),
                seen(6, ServerRole::Opening, 0, 10),
            ],
        };
        let found = servers_of(&members);
        assert_eq!(found.writer, Some(at("10.0.0.2:1", 5, 9)));
        assert_eq!(found.readers, vec![at("10.0.0.3:1", 0, 9)]);
        // It opens what it has taken: no client is sent there.
        members.servers[1].server.role = ServerRole::Opening;
        assert_eq!(servers_of(&members).writer, None);
    }
}
