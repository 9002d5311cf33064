//! The sockets that clients connect to: one of the network, and, where asked for, one of this machine.
//!
//! ```text
//! DIR/.s.PGSQL.5433        the socket, named as PostgreSQL's clients look for it
//! DIR/.s.PGSQL.5433.lock   process id, kept locked (flock) by the server whose socket it is
//! ```
//!
//! The lock of a killed server goes with its process, so the next server removes the socket that it left. Two servers
//! on one name are told apart by the lock alone, whatever their sockets' ages.

use super::socket::{Peer, Socket};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Bytes of a Unix socket's path, at most: a field of the kernel's, with its end.
const PATH_MAX: usize = 107;
/// Any user of this machine may connect, as over loopback. The directory's mode may allow fewer.
const MODE: u32 = 0o777;

/// A directory in which no socket can be made.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Another server serves this port there.
    #[error("a server serves {0} already: choose another port with --listen, or another --socket-dir")]
    InUse(PathBuf),
    /// It does not fit into a socket's address.
    #[error("the path {0} is too long for a Unix socket ({PATH_MAX} bytes at most): choose a shorter --socket-dir")]
    TooLong(PathBuf),
    /// The operating system refuses it.
    #[error("cannot make the Unix socket {path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The socket in a directory, removed when dropped.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    lock: PathBuf,
    _locked: File,
}

impl LocalListener {
    /// Makes `.s.PGSQL.port` in `dir`; connections wait from now on.
    ///
    /// # Errors
    /// [`LocalError`]: another server has it, its path is too long, or the system refuses it.
    pub fn bind(dir: &Path, port: u16) -> Result<LocalListener, LocalError> {
        let path = dir.join(format!(".s.PGSQL.{port}"));
        if path.as_os_str().len() > PATH_MAX {
            return Err(LocalError::TooLong(path));
        }
        let lock = dir.join(format!(".s.PGSQL.{port}.lock"));
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => LocalError::InUse(path.clone()),
            _ => LocalError::Socket {
                path: path.clone(),
                source,
            },
        };
        let locked = take_lock(&lock).map_err(refused)?;
        let listener = listen(&path).map_err(refused)?;
        Ok(LocalListener {
            listener,
            path,
            lock,
            _locked: locked,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // While the lock is held still: what is removed is this server's.
        std::fs::remove_file(&self.path).ok();
        std::fs::remove_file(&self.lock).ok();
    }
}

/// The lock file, locked and with this process's number in it. `WouldBlock`: another server has it.
fn take_lock(path: &Path) -> io::Result<File> {
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // In a directory of everybody a link may be somebody's trap: what it names would be overwritten.
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        if is_still_at(&file, path)? {
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())?;
            return Ok(file);
        }
        // The server that had it has ended and removed it in between.
    }
}

fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Listens at `path`, whose lock is held, in the place of what a killed server left.
fn listen(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file of this name is there",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
    Ok(listener)
}

/// A socket that clients connect to.
#[derive(Debug)]
pub enum Listener {
    /// Of the network.
    Tcp(TcpListener),
    /// Of this machine.
    Local(LocalListener),
}

impl Listener {
    /// Waits for the next client.
    ///
    /// # Errors
    /// Those of the system; each, once the listener is shut down.
    pub fn accept(&self) -> io::Result<(Socket, Peer)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                Ok((Socket::Tcp(stream), Peer::Address(address)))
            }
            Listener::Local(local) => {
                let (stream, _) = local.listener.accept()?;
                Ok((Socket::Unix(stream), Peer::Local))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Local(local) => local.listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_that_a_killed_server_left_is_replaced_and_that_of_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".s.PGSQL.5433");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists() && UnixStream::connect(&path).is_err(), "left, and dead");
        let first = LocalListener::bind(dir.path(), 5433).unwrap();
        assert_eq!(first.path(), path);
        let refused = LocalListener::bind(dir.path(), 5433).unwrap_err();
        assert!(matches!(refused, LocalError::InUse(_)), "{refused}");
        UnixStream::connect(&path).expect("the first one still listens");
        drop(first);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "all is removed");
        LocalListener::bind(dir.path(), 5433).expect("free again");
    }

    #[test]
    fn what_is_no_socket_is_not_removed_and_long_paths_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".s.PGSQL.1"), "mine").unwrap();
        let refused = LocalListener::bind(dir.path(), 1).unwrap_err().to_string();
        assert!(refused.contains("a file of this name"), "{refused}");
        assert!(dir.path().join(".s.PGSQL.1").exists());
        let long = dir.path().join("d".repeat(100));
        let refused = LocalListener::bind(&long, 1).unwrap_err();
        assert!(matches!(refused, LocalError::TooLong(_)), "{refused}");
        let (link, mine) = (dir.path().join(".s.PGSQL.2.lock"), dir.path().join(".s.PGSQL.1"));
        std::os::unix::fs::symlink(&mine, link).unwrap();
        assert!(LocalListener::bind(dir.path(), 2).is_err());
        assert_eq!(std::fs::read_to_string(mine).unwrap(), "mine");
        let nowhere = LocalListener::bind(&dir.path().join("no"), 1).unwrap_err().to_string();
        assert!(nowhere.contains("cannot make the Unix socket"), "{nowhere}");
    }
}
