//! A keeper in another process of this machine, reached over a Unix socket.
//!
//! A line of JSON asks, a line answers, in turn. A connection stands for a process: when it ends, be it because the
//! process was killed, all sessions that began over it end. So the socket must not be handed on to a process that lives
//! longer; and every process that can connect to it, as its directory's permissions say, is one of the part's tenant.
//!
//! ```text
//!   Neighbour (a Keeper) ──"take", …──► Service: a thread a connection ──► the part's keeper
//!        └─ its process is killed ─ the connection ends ──────────────────► end(session), each of its own
//! ```

use super::keeper::{Extent, Keeper, Lifetime, Run, SessionId};
use super::{Class, GlobalAddress};
use cenote_base::error::IoContext;
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, HashMap, Mutex, Nanos, fs};
use cenote_base::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of the longest line.
const LINE_MAX: u64 = 1 << 20;
/// Extents that go back in one line.
const GIVE_BACK_MAX: usize = 4096;
/// Of an audit, how much is told.
const PROBLEMS_MAX: usize = 100;
/// Between two tries to admit a process for which descriptors or threads are missing.
const ADMIT_AGAIN: Nanos = Nanos::from_millis(20);

// An extent is at most 44 bytes of JSON.
const _: () = assert!(GIVE_BACK_MAX as u64 * 64 <= LINE_MAX / 2);

/// A keeper's method as a message.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Begin,
    Take(SessionId, Class, Lifetime),
    GiveBack(SessionId, Vec<Extent>),
    TakeRun(SessionId, u64, Lifetime),
    FreeRun(GlobalAddress),
    End(SessionId),
    IsAlive(SessionId),
    Audit,
}

/// Why something was not done, as far as the asker can tell the cases apart.
#[derive(Debug, Serialize, Deserialize)]
enum Refusal {
    Full(String),
    Invalid(String),
    Revoked(String),
    Corrupt(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::Full(text) => Self::Full(text),
            Error::Revoked(text) => Self::Revoked(text),
            Error::Corrupt(text) => Self::Corrupt(text),
            other => Self::Invalid(other.to_string()),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full(text) => Error::Full(text),
            Refusal::Invalid(text) => Error::Invalid(text),
            Refusal::Revoked(text) => Error::Revoked(text),
            Refusal::Corrupt(text) => Error::Corrupt(text),
        }
    }
}

type Answer = Result<serde_json::Value, Refusal>;

/// Lets other processes reach a keeper of this one, until it is dropped.
pub struct Service {
    path: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    keeper: Arc<dyn Keeper>,
    is_over: AtomicBool,
    /// Those that are open, to end them.
    connections: Mutex<HashMap<u64, UnixStream>>,
}

impl Service {
    /// Listens at `path`, where nothing may be but what a former keeper of the same part left: so the caller has the
    /// part.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(path: &Path, keeper: Arc<dyn Keeper>) -> Result<Self> {
        let doing = || format!("listening on {}", path.display());
        if fs::exists(path).doing(doing)? {
            fs::remove(path).doing(doing)?;
        }
        let listener = UnixListener::bind(path).doing(doing)?;
        let shared = Arc::new(Shared {
            keeper,
            is_over: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        rt::try_spawn("keeper", move || theirs.accept(&listener)).doing(doing)?;
        let path = path.to_owned();
        Ok(Self { path, shared })
    }
}

impl Service {
    /// Processes that are connected.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().len()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // It may be gone; what counts is that no thread waits in `accept`.
        let _ = UnixStream::connect(&self.path);
        let _ = fs::remove(&self.path);
        for stream in self.shared.connections.lock().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        for number in 0.. {
            let stream = listener.accept().map(|(stream, _)| stream);
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            // A peer that could not be admitted sees its connection end; one that could not be accepted waits.
            if stream.and_then(|stream| self.admit(number, stream)).is_err() {
                rt::sleep(ADMIT_AGAIN);
            }
        }
    }

    fn admit(self: &Arc<Self>, number: u64, stream: UnixStream) -> std::io::Result<()> {
        let other = stream.try_clone()?;
        let mut connections = self.connections.lock();
        if self.is_over.load(Ordering::Acquire) {
            // The end of the service has ended those that were here.
            return Ok(());
        }
        connections.insert(number, other);
        drop(connections);
        let shared = Arc::clone(self);
        let serving = rt::try_spawn("keeper", move || {
            let mut sessions = Vec::new();
            // Whatever ended it: the process is gone, or will not be answered any more.
            let _ = shared.serve(&stream, &mut sessions);
            for session in sessions {
                let _ = shared.keeper.end(session);
            }
            shared.connections.lock().remove(&number);
        });
        serving.map(drop).inspect_err(|_| {
            self.connections.lock().remove(&number);
        })
    }

    fn serve(&self, stream: &UnixStream, sessions: &mut Vec<SessionId>) -> std::io::Result<()> {
        let mut input = BufReader::new(stream);
        loop {
            let mut line = String::new();
            (&mut input).take(LINE_MAX).read_line(&mut line)?;
            if !line.ends_with('\n') {
                // The end, or no message: where the next one would begin is not known.
                return Ok(());
            }
            let answer = match serde_json::from_str(&line) {
                Ok(request) => self.answer(request, sessions),
                Err(error) => Err(Refusal::Invalid(format!("no request: {error}"))),
            };
            let mut line = serde_json::to_string(&answer)?;
            line.push('\n');
            (&*stream).write_all(line.as_bytes())?;
        }
    }

    fn answer(&self, request: Request, sessions: &mut Vec<SessionId>) -> Answer {
        let keeper = &*self.keeper;
        match request {
            Request::Begin => value(keeper.begin().inspect(|session| sessions.push(*session))),
            Request::Take(session, class, lifetime) => {
                own(sessions, session)?;
                value(keeper.take(session, class, lifetime))
            }
            Request::GiveBack(session, extents) => {
                own(sessions, session)?;
                value(keeper.give_back(session, &extents))
            }
            Request::TakeRun(session, bytes, lifetime) => {
                own(sessions, session)?;
                value(keeper.take_run(session, bytes, lifetime))
            }
            Request::FreeRun(address) => value(keeper.free_run(address)),
            Request::End(session) => {
                own(sessions, session)?;
                sessions.retain(|other| *other != session);
                value(keeper.end(session))
            }
            Request::IsAlive(session) => value(keeper.is_alive(session)),
            Request::Audit => value(keeper.audit().map(told)),
        }
    }
}

/// Sessions of other connections are other processes' business.
fn own(sessions: &[SessionId], session: SessionId) -> Result<(), Refusal> {
    match sessions.contains(&session) {
        true => Ok(()),
        false => Err(Refusal::Revoked(format!(
            "session {} is not of this connection",
            session.0
        ))),
    }
}

/// As much of an audit as a line holds.
fn told(mut problems: Vec<String>) -> Vec<String> {
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    if more > 0 {
        problems.push(format!("and {more} more"));
    }
    problems
}

fn value<T: Serialize>(result: Result<T>) -> Answer {
    let value = serde_json::to_value(result?);
    value.map_err(|error| Refusal::Invalid(error.to_string()))
}

/// The keeper behind a [`Service`] of another process.
pub struct Neighbour {
    path: PathBuf,
    stream: Mutex<BufReader<UnixStream>>,
}

impl Neighbour {
    /// Connects to the one that listens at `path`.
    ///
    /// # Errors
    /// [`Error::Lost`] if no keeper listens there.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path);
        let lost = |error| Error::Lost(format!("no keeper answers at {}: {error}", path.display()));
        Ok(Self {
            path: path.to_owned(),
            stream: Mutex::new(BufReader::new(stream.map_err(lost)?)),
        })
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        let lost = |why: String| Error::Lost(format!("the keeper at {} is gone: {why}", self.path.display()));
        let mut line = serde_json::to_string(request).map_err(|error| lost(error.to_string()))?;
        line.push('\n');
        let mut stream = self.stream.lock();
        let answer = exchange(&mut stream, &line).inspect_err(|_| {
            // What comes next would be taken for the answer to another question.
            let _ = stream.get_ref().shutdown(Shutdown::Both);
        });
        drop(stream);
        let answer = answer.map_err(|error| lost(error.to_string()))?;
        serde_json::from_value(answer?).map_err(|error| lost(error.to_string()))
    }
}

/// A line, and the one that answers it.
fn exchange(stream: &mut BufReader<UnixStream>, line: &str) -> std::io::Result<Answer> {
    stream.get_mut().write_all(line.as_bytes())?;
    let mut answer = String::new();
    stream.take(LINE_MAX).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

impl Keeper for Neighbour {
    fn begin(&self) -> Result<SessionId> {
        self.ask(&Request::Begin)
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        self.ask(&Request::Take(session, class, lifetime))
    }

    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        let mut lines = extents.chunks(GIVE_BACK_MAX);
        lines.try_for_each(|some| self.ask(&Request::GiveBack(session, some.to_vec())))
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        self.ask(&Request::TakeRun(session, bytes, lifetime))
    }

    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        self.ask(&Request::FreeRun(address))
    }

    fn end(&self, session: SessionId) -> Result<()> {
        self.ask(&Request::End(session))
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        self.ask(&Request::IsAlive(session))
    }

    fn audit(&self) -> Result<Vec<String>> {
        self.ask(&Request::Audit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Space, SpaceOptions};
    use super::*;

    /// A keeper that says too much is not believed: the rest of an answer is not the next one.
    #[test]
    fn an_answer_is_not_taken_for_another_ones() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("keeper");
        let listener = UnixListener::bind(&path).expect("a socket");
        let liar = rt::spawn("liar", move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut input = BufReader::new(stream.try_clone().expect("another"));
            let mut line = String::new();
            while input.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                // A failed write has no reader any more.
                let _ = stream.write_all(b"no answer\n{\"Ok\":7}\n");
            }
        });
        let keeper = Neighbour::connect(&path).expect("it listens");
        for _ in 0..3 {
            let answer = keeper.begin();
            assert!(matches!(&answer, Err(Error::Lost(_))), "{answer:?}");
        }
        drop(keeper);
        liar.join().expect("it ended");
    }

    /// What is no message, because it does not end, ends the connection, and no other.
    #[test]
    fn a_line_without_an_end_ends_its_connection_alone() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("keeper");
        let space = Space::dram(&SpaceOptions {
            bytes: 8 << 20,
            ..SpaceOptions::default()
        });
        let space = space.expect("memory");
        let service = Service::start(&path, space.keeper(1).expect("kept here")).expect("a socket");
        let other = Neighbour::connect(&path).expect("it listens");
        let session = other.begin().expect("begun");
        let mut stream = UnixStream::connect(&path).expect("it listens");
        // It may end the connection before all is written.
        let _ = stream.write_all(&vec![b'['; 2 * LINE_MAX as usize]);
        let mut said = Vec::new();
        let read = stream.read_to_end(&mut said);
        assert!(read.is_err() || said.is_empty(), "{:?}", String::from_utf8_lossy(&said));
        assert!(other.is_alive(session).expect("it answers"));
        drop(other);
        while service.connections() > 0 {
            rt::yield_now();
        }
    }
}
