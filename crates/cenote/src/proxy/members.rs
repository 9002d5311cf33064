//! The servers of a database, as its storage nodes know them.

use super::directory::{Directory, ServerAt, Servers, tell};
use super::shared::lock;
use cenote_base::rt::Nanos;
use cenote_storage_node::{Membership, NodesClient, ServerRole};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two questions; where no server has the database, clients wait for one.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_SOON: Duration = Duration::from_millis(10);
/// How long a change is expected once a server was not what it should be.
const EXPECTED: Duration = Duration::from_secs(2);
/// A reader that has said nothing for so long is none. A writer is one until another start has the database: what it
/// answers rests on its lease.
const SILENT: Nanos = Nanos::from_millis(1500);

/// See the module. Where no node answers, what was known before counts on.
pub struct Members {
    servers: watch::Sender<Arc<Servers>>,
    hurried: Mutex<Option<Instant>>,
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
        });
        let following = Arc::downgrade(&members);
        let thread = std::thread::Builder::new().name("servers".into());
        thread.spawn(move || follow(&client, &following))?;
        Ok(members)
    }

    fn pause(&self) -> Duration {
        let is_expected = lock(&self.hurried).is_some_and(|at| at.elapsed() < EXPECTED);
        match is_expected || self.servers().writer.is_none() {
            true => LOOK_SOON,
            false => LOOK,
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
}

fn follow(client: &NodesClient, following: &Weak<Members>) {
    loop {
        // Why none answers is said by the nodes' own status, and to clients that wait.
        let seen = client.members().ok();
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
        .map(|one| at(&one.server.address, 0))
        .collect();
    readers.sort();
    Servers {
        version: 0,
        writer: writer.map(|server| at(&server.address, server.epoch)),
        readers,
    }
}

fn at(address: &str, epoch: u64) -> ServerAt {
    ServerAt {
        address: address.to_owned(),
        epoch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Lsn;
    use cenote_storage_node::{Server, ServerSeen};

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
    fn the_writer_is_that_of_the_last_start_and_readers_are_those_that_are_heard() {
        let mut members = Membership {
            epoch: 5,
            term: 1,
            has_database: true,
            vacant_for: None,
            listens_for: Nanos::from_secs(9),
            switch_to: 0,
            servers: vec![
                seen(1, ServerRole::Writer, 4, 0),
                seen(2, ServerRole::Writer, 5, 800),
                seen(3, ServerRole::Reader, 0, 10),
                seen(4, ServerRole::Reader, 0, 5000),
                seen(6, ServerRole::Opening, 0, 10),
            ],
        };
        let found = servers_of(&members);
        assert_eq!(found.writer, Some(at("10.0.0.2:1", 5)));
        assert_eq!(found.readers, vec![at("10.0.0.3:1", 0)]);
        // It opens what it has taken: no client is sent there.
        members.servers[1].server.role = ServerRole::Opening;
        assert_eq!(servers_of(&members).writer, None);
    }
}
