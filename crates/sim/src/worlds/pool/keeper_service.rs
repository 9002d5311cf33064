//! The keeper of a part, asked by users in other processes: a call for each of its methods.
//!
//! In the pool members ask over a connection; here over the simulated network, so that requests and answers are lost,
//! and a member that asks again is told the same.

use std::sync::{Arc, Mutex, PoisonError};

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, Caller, CallerId, Callers, Serve};
use cenote_space::{
    Admission, Class, Extent, FarPart, GlobalAddress, Hosts, Keeper, Lifetime, LocalKeeper, Part, Pass, Run, SessionId,
    SharedBytes, Space,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::members::Mark;
use super::stage::{SPACE, Stage, device, keeper_name, part_number, pod_name};

/// How long a keeper that does not answer is asked again.
const TIMEOUT: Nanos = Nanos::from_secs(20);
const RETRY: Nanos = Nanos::from_millis(2);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// To be served calls; the epoch.
    Admit,
    Begin,
    Take(SessionId, Class, Lifetime),
    GiveBack(SessionId, Vec<Extent>),
    TakeRun(SessionId, u64, Lifetime),
    FreeRun(GlobalAddress),
    End(SessionId),
    IsAlive(SessionId),
    Audit,
}

/// What serves a part's desk.
pub(in crate::worlds) struct KeeperService {
    pub stage: Arc<Stage>,
    pub keeper: Arc<LocalKeeper>,
    pub hosts: Arc<Hosts>,
}

impl Serve for KeeperService {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        let read = serde_json::from_slice(request).map_err(|error| Error::corrupt(error.to_string()));
        match read.and_then(|(mark, request)| self.answer(mark, request)) {
            Ok(bytes) => answer.with(&bytes),
            Err(error) => answer.fail(error),
        }
    }
}

impl KeeperService {
    fn answer(&self, mark: Mark, request: Request) -> Result<Vec<u8>> {
        let keeper = &*self.keeper;
        if self.stage.members().lock().is_gone(mark) {
            return Err(Error::Revoked("this member was fenced".into()));
        }
        match request {
            Request::Admit => json(&self.hosts.admit(SPACE, mark.into())?),
            Request::Begin => {
                let session = keeper.begin()?;
                let members = self.stage.members();
                members.lock().began(mark, (self.keeper.part().number(), session));
                json(&session)
            }
            Request::Take(session, class, lifetime) => json(&keeper.take(session, class, lifetime)?),
            Request::GiveBack(session, extents) => json(&keeper.give_back(session, &extents)?),
            Request::TakeRun(session, bytes, lifetime) => json(&keeper.take_run(session, bytes, lifetime)?),
            Request::FreeRun(address) => json(&keeper.free_run(address)?),
            Request::End(session) => {
                keeper.end(session)?;
                let part = self.keeper.part().number();
                self.stage.members().lock().ended((part, session));
                json(&())
            }
            Request::IsAlive(session) => json(&keeper.is_alive(session)?),
            Request::Audit => json(&keeper.audit()?),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::Invalid(error.to_string()))
}

/// The space as a new process on `pod` sees it, or on a machine of no pod: that maps nothing.
///
/// # Errors
/// Those of mapping the pod's part.
pub(in crate::worlds) fn open(stage: &Arc<Stage>, pod: usize, mark: Mark) -> Result<Space> {
    let space = Space::new(SPACE);
    let keeper = |of: usize| {
        Arc::new(RemoteKeeper {
            stage: Arc::clone(stage),
            callers: stage.network.port(pod),
            pod: of,
            mark,
            caller: Mutex::default(),
        })
    };
    if pod < stage.count() {
        let part = Part::join_marked(&device(pod), Default::default(), mark)?;
        space.attach(Arc::new(part), keeper(pod))?;
    }
    for other in (0..stage.count()).filter(|other| *other != pod) {
        let keeper = keeper(other);
        let epoch = Mutex::default();
        let admission = Arc::new(Admitted {
            keeper: Arc::clone(&keeper),
            epoch,
        });
        let far = FarPart {
            number: part_number(other),
            pod: pod_name(other),
            channel: Arc::new(stage.way(pod, other).admitted_by(admission)),
        };
        space.attach_far(far, keeper)?;
    }
    if let (Some(of), true) = (stage.pods.twin, stage.twin() == Some(pod)) {
        space.attach_bytes(SharedBytes::join(&device(of), Default::default())?)?;
    }
    Ok(space)
}

/// The keeper of a part, as a user has it.
pub(in crate::worlds) struct RemoteKeeper {
    pub stage: Arc<Stage>,
    pub callers: Arc<dyn Callers>,
    pub pod: usize,
    pub mark: Mark,
    /// Never held at a preemption point.
    pub caller: Mutex<Option<Arc<dyn Caller>>>,
}

/// A process as a member at a pod's program.
struct Admitted {
    keeper: Arc<RemoteKeeper>,
    /// Never held at a preemption point.
    epoch: Mutex<Option<u64>>,
}

impl Admitted {
    fn ask(&self) -> Result<Pass> {
        let epoch = self.keeper.ask_once(&Request::Admit)?;
        *self.epoch.lock().unwrap_or_else(PoisonError::into_inner) = Some(epoch);
        Ok(self.with(epoch))
    }

    fn with(&self, epoch: u64) -> Pass {
        let member = self.keeper.mark.into();
        Pass { member, epoch }
    }
}

impl Admission for Admitted {
    fn pass(&self) -> Result<Pass> {
        let known = *self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        known.map_or_else(|| self.ask(), |epoch| Ok(self.with(epoch)))
    }

    fn renew(&self, _: Pass) -> Result<Pass> {
        self.ask()
    }
}

impl RemoteKeeper {
    fn ask_once<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        let mut answer = Vec::new();
        let bytes = json(&(self.mark, request))?;
        let asked = self.caller().and_then(|caller| caller.call(&bytes, &mut answer));
        if matches!(asked, Err(Error::Lost(_) | Error::Timeout(_))) {
            self.set_caller(None);
        }
        asked?;
        serde_json::from_slice(&answer).map_err(|error| Error::corrupt(error.to_string()))
    }

    fn caller(&self) -> Result<Arc<dyn Caller>> {
        let known = self.caller.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let caller = self.callers.caller(&keeper_name(self.pod))?;
        self.set_caller(Some(Arc::clone(&caller)));
        Ok(caller)
    }

    fn set_caller(&self, caller: Option<Arc<dyn Caller>>) {
        let mut known = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *known, caller);
        drop(known);
        drop(before);
    }

    fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T> {
        self.ask_counting(&request, &mut 0)
    }

    fn ask_counting<T: DeserializeOwned>(&self, request: &Request, tries: &mut u32) -> Result<T> {
        let (bytes, until) = (json(&(self.mark, request))?, rt::now() + TIMEOUT);
        loop {
            let mut answer = Vec::new();
            let asked = self.caller().and_then(|caller| {
                *tries += 1;
                caller.call(&bytes, &mut answer)
            });
            match asked {
                Ok(()) => return serde_json::from_slice(&answer).map_err(|error| Error::corrupt(error.to_string())),
                Err(error @ (Error::Lost(_) | Error::Timeout(_))) => {
                    self.set_caller(None);
                    if rt::now() > until || self.stage.is_lost(self.pod) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            rt::sleep(RETRY);
        }
    }
}

impl Keeper for RemoteKeeper {
    fn begin(&self) -> Result<SessionId> {
        self.ask(Request::Begin)
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        self.ask(Request::Take(session, class, lifetime))
    }

    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        self.ask(Request::GiveBack(session, extents.to_vec()))
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        let mut tries = 0;
        let taken = self.ask_counting(&Request::TakeRun(session, bytes, lifetime), &mut tries);
        if lifetime == Lifetime::Space {
            // Each try without an answer may have left a run, which stays when its session ends.
            let unanswered = tries - u32::from(taken.is_ok());
            self.stage.model.lock().unknown += u64::from(unanswered);
        }
        taken
    }

    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        let mut tries = 0;
        match self.ask_counting(&Request::FreeRun(address), &mut tries) {
            // The answer to the one before was lost.
            Err(Error::Invalid(_)) if tries > 1 => Ok(()),
            answer => answer,
        }
    }

    fn end(&self, session: SessionId) -> Result<()> {
        let ended = self.ask(Request::End(session));
        if ended.is_err() {
            // The keeper hears of it when it hears of this process again.
            let part = part_number(self.pod);
            self.stage.members().lock().abandon((part, session));
        }
        ended
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        self.ask(Request::IsAlive(session))
    }

    fn audit(&self) -> Result<Vec<String>> {
        self.ask(Request::Audit)
    }
}
