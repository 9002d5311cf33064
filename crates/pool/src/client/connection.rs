//! A client's connection with the manager.

use super::options::ClientOptions;
use crate::managers::Managers;
use crate::session::{ManagerSession, unexpected};
use crate::wire::{self, PartView, Reply, Request, SpaceView};
use cenote_base::rt::{Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use std::sync::Arc;

pub(super) struct Pool {
    pub(super) network: Arc<dyn Network>,
    pub(super) managers: Managers,
    pub(super) hello: wire::Hello,
    pub(super) options: ClientOptions,
    pub(super) manager: Mutex<Option<ManagerSession>>,
}

impl Pool {
    /// Waits for a manager that leads, if there are several and none does: what people ask for has time.
    pub(super) fn find(&self) -> Result<()> {
        let mut session = self.manager.lock();
        if session.is_none() {
            *session = Some(ManagerSession::begin_patiently(
                &*self.network,
                &self.managers,
                &self.hello,
            )?);
        }
        Ok(())
    }

    /// Asks, once, for what people want to be done.
    pub(super) fn order(&self, request: &Request) -> Result<Reply> {
        self.find()?;
        self.ask_once(request)
    }

    /// Asks what people want to know.
    pub(super) fn ask_patiently(&self, request: &Request) -> Result<Reply> {
        match self.order(request) {
            Err(Error::Lost(_)) => self.order(request),
            answer => answer,
        }
    }

    /// Asks what may be asked twice: over another connection if the one that there is has ended.
    pub(super) fn ask(&self, request: &Request) -> Result<Reply> {
        match self.ask_once(request) {
            Err(Error::Lost(_)) => self.ask_once(request),
            answer => answer,
        }
    }

    pub(super) fn ask_once(&self, request: &Request) -> Result<Reply> {
        let mut session = self.manager.lock();
        if session.is_none() {
            *session = Some(ManagerSession::begin(&*self.network, &self.managers, &self.hello)?);
        }
        let answer = session
            .as_ref()
            .map_or_else(|| Err(unexpected()), |session| session.ask(request));
        if matches!(answer, Err(Error::Lost(_) | Error::Timeout(_) | Error::Corrupt(_))) {
            *session = None;
            self.managers.turn_away();
        }
        answer
    }

    pub(super) fn view(&self, name: &str) -> Result<SpaceView> {
        match self.ask(&Request::OpenSpace { name: name.into() })? {
            Reply::Space(view) => Ok(view),
            _ => Err(unexpected()),
        }
    }

    /// The same, soon or not at all, over a connection of its own: for a caller that others wait for. Calls that wait
    /// for a manager that hangs are not among them.
    pub(super) fn view_within(&self, name: &str, timeout: Nanos) -> Result<SpaceView> {
        let session = ManagerSession::begin_within(&*self.network, &self.managers, &self.hello, timeout)?;
        match session.ask_within(&Request::OpenSpace { name: name.into() }, timeout)? {
            Reply::Space(view) => Ok(view),
            _ => Err(unexpected()),
        }
    }

    /// The pod that this process is in: as it was told, or as the parts that it maps.
    pub(super) fn pod(&self, view: &SpaceView) -> String {
        let near = || view.parts.iter().find(|part| self.is_here(part));
        let told = self.options.pod.clone();
        told.or_else(|| near().map(|part| part.pod.clone())).unwrap_or_default()
    }

    /// Whether this process maps a part.
    pub(super) fn is_near(&self, part: &PartView) -> bool {
        !part.mirrored && self.is_here(part)
    }

    fn is_here(&self, part: &PartView) -> bool {
        part.machine == cenote_fabric::boot() && self.options.pod.as_ref().is_none_or(|pod| part.pod == *pod)
    }
}
