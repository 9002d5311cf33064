//! Sessions with the manager that leads.

use crate::managers::Managers;
use crate::wire::{self, Hello, Reply, Request, Welcome};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::{Connection, Network};
use std::sync::Arc;

/// Longer than the manager lets a client wait for memory.
pub(crate) const ANSWER_TIMEOUT: Nanos = Nanos::from_secs(30);
/// As long as a manager may need to take over from another.
pub(crate) const TAKEOVER_TIMEOUT: Nanos = Nanos::from_secs(20);

/// A connection in a role.
pub(crate) struct ManagerSession {
    connection: Arc<dyn Connection>,
    pub(crate) welcome: Welcome,
}

impl ManagerSession {
    /// Begins one with the manager that leads, if one does.
    pub(crate) fn begin(network: &dyn Network, managers: &Managers, hello: &Hello) -> Result<Self> {
        Self::begin_within(network, managers, hello, ANSWER_TIMEOUT)
    }

    /// As [`ManagerSession::begin`]; each of them may take so long.
    pub(crate) fn begin_within(
        network: &dyn Network,
        managers: &Managers,
        hello: &Hello,
        timeout: Nanos,
    ) -> Result<Self> {
        let (connection, welcome) = managers.greet(network, hello, timeout)?;
        Ok(Self { connection, welcome })
    }

    /// As [`ManagerSession::begin`]; if none of several managers leads, one is about to.
    pub(crate) fn begin_patiently(network: &dyn Network, managers: &Managers, hello: &Hello) -> Result<Self> {
        let (connection, welcome) = managers.greet_patiently(network, hello, ANSWER_TIMEOUT, TAKEOVER_TIMEOUT)?;
        Ok(Self { connection, welcome })
    }

    pub(crate) fn ask(&self, request: &Request) -> Result<Reply> {
        self.ask_within(request, ANSWER_TIMEOUT)
    }

    pub(crate) fn ask_within(&self, request: &Request, timeout: Nanos) -> Result<Reply> {
        match wire::call(&*self.connection, request, timeout)? {
            Reply::Failed(failure) => Err(failure.into()),
            reply => Ok(reply),
        }
    }
}

/// A channel to the manager, over one session after the other.
pub(crate) struct ManagerChannel {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) managers: Managers,
    pub(crate) hello: Hello,
    pub(crate) session: Mutex<Option<ManagerSession>>,
}

impl ManagerChannel {
    /// Asks over the session that there is, or a new one.
    pub(crate) fn ask(&self, request: &Request, timeout: Nanos) -> Result<Reply> {
        let mut session = self.session.lock();
        if session.is_none() {
            *session = Some(ManagerSession::begin(&*self.network, &self.managers, &self.hello)?);
        }
        let ask = |session: &ManagerSession| session.ask_within(request, timeout);
        let asked = session.as_ref().map_or_else(|| Err(unexpected()), ask);
        if matches!(asked, Err(Error::Lost(_) | Error::Timeout(_) | Error::Corrupt(_))) {
            *session = None;
            self.managers.turn_away();
        }
        asked
    }
}

pub(crate) fn unexpected() -> Error {
    Error::corrupt("the manager's answer does not fit the question")
}

impl Drop for ManagerSession {
    fn drop(&mut self) {
        self.connection.close();
    }
}
