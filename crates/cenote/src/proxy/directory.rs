//! Where the servers are: the writer and the readers, told anew with each change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Between two looks at a file.
const LOOK: Duration = Duration::from_millis(50);

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerAt {
    /// `HOST:PORT`.
    pub address: String,
    /// Of the writer's start: a greater one has taken the database from it. 0 for readers.
    pub epoch: u64,
    /// The number of its database; zero: that is not known.
    pub database: u128,
}

/// The servers of a database, as far as is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// Grows with each change.
    pub version: u64,
    /// The server that changes the database; None: there is none just now.
    pub writer: Option<ServerAt>,
    /// Servers that read it.
    pub readers: Vec<ServerAt>,
}

/// What the clients of a proxy need just now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Clients that wait for a writer.
    pub waiting: usize,
    /// Reads under way, and those that wait for a session: what one more server could take.
    pub load: usize,
}

/// Says what clients need; `None`: the proxy is no more.
pub type Needs = Box<dyn Fn() -> Option<Need> + Send + Sync>;

/// Knows the servers of a database.
///
/// It says what it knows at once, and tells of each change by the receiver; it never waits. What it says may be out of
/// date: a proxy finds that out when it connects.
pub trait Directory: Send + Sync {
    /// What is known now.
    fn servers(&self) -> Arc<Servers>;

    /// Changes from here on.
    fn watch(&self) -> watch::Receiver<Arc<Servers>>;

    /// A server that it says is not what it says: a change is to be expected.
    fn hurry(&self) {}

    /// What clients need is asked here from now on, and told to those who can do something about it.
    fn serve_needs(&self, _needs: Needs) {}
}

/// Servers that do not change, or are those of a file.
pub struct Fixed {
    servers: watch::Sender<Arc<Servers>>,
}

impl Fixed {
    /// These servers.
    pub fn new(servers: Servers) -> Fixed {
        Fixed {
            servers: watch::Sender::new(Arc::new(servers)),
        }
    }

    /// The servers of a file, read again for as long as the process lives.
    ///
    /// # Errors
    /// It cannot be read, or says no servers.
    pub fn file(path: &Path) -> Result<Arc<Fixed>, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let fixed = Arc::new(Fixed::new(servers(&text)?));
        let (following, path) = (Arc::downgrade(&fixed), path.to_owned());
        let follow = move || {
            while let Some(fixed) = following.upgrade() {
                fixed.look(&path);
                drop(fixed);
                std::thread::sleep(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("servers".into());
        thread.spawn(follow).map_err(|error| error.to_string())?;
        Ok(fixed)
    }

    /// A file that is written just now says what it said before.
    fn look(&self, path: &PathBuf) {
        let text = std::fs::read_to_string(path).ok();
        if let Some(found) = text.and_then(|text| servers(&text).ok()) {
            tell(&self.servers, found);
        }
    }
}

/// These are the servers; told where something has changed.
pub fn tell(servers: &watch::Sender<Arc<Servers>>, mut found: Servers) {
    servers.send_if_modified(|known| {
        found.version = known.version;
        if found == **known {
            return false;
        }
        found.version += 1;
        *known = Arc::new(found);
        true
    });
}

impl Directory for Fixed {
    fn servers(&self) -> Arc<Servers> {
        self.servers.borrow().clone()
    }

    fn watch(&self) -> watch::Receiver<Arc<Servers>> {
        self.servers.subscribe()
    }
}

/// Reads `writer=HOST:PORT[@EPOCH],reader=HOST:PORT,...`.
///
/// # Errors
/// It is not of that form, or names two writers.
pub fn servers(text: &str) -> Result<Servers, String> {
    let wrong = |part: &str| format!("servers are writer=HOST:PORT[@EPOCH],reader=HOST:PORT,...: {part:?} is none");
    let mut servers = Servers::default();
    for part in text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty()) {
        let (role, address) = part.split_once('=').ok_or_else(|| wrong(part))?;
        let (address, epoch) = address.split_once('@').unwrap_or((address, "0"));
        if !address.contains(':') {
            return Err(wrong(part));
        }
        let server = ServerAt {
            address: address.to_owned(),
            epoch: epoch.parse().map_err(|_| wrong(part))?,
            database: 0,
        };
        match role {
            "writer" if servers.writer.is_none() => servers.writer = Some(server),
            "writer" => return Err("two servers are named as the writer".into()),
            "reader" => servers.readers.push(server),
            _ => return Err(wrong(part)),
        }
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read() {
        let found = servers("writer=a:1@7, reader=b:2,reader=c:3\n").unwrap();
        assert_eq!(found.writer.unwrap().epoch, 7);
        assert_eq!(found.readers.len(), 2);
        assert!(servers("").unwrap().writer.is_none());
        for wrong in ["writer=a:1,writer=b:1", "a:1", "writer=a", "boss=a:1", "writer=a:1@x"] {
            assert!(servers(wrong).is_err(), "{wrong}");
        }
    }
}
