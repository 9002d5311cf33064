//! The part's keeper, asked by users: a call for each of its methods, answered when the mirror has what was done. And
//! the way of users to the part, which is looked up at each new connection.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, Caller, CallerId, Callers, Serve};
use cenote_space::{
    Channel, Class, Extent, FarPart, FarReads, GlobalAddress, Hello, Keeper, Lifetime, LocalKeeper, Run, SessionId,
    Space,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::stage::{KEY, PART, SPACE, Stage, USERS, calls_name, desk_name};

/// How long a keeper that does not answer is asked again.
const TIMEOUT: Nanos = Nanos::from_millis(200);
const RETRY: Nanos = Nanos::from_millis(1);

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

pub(super) struct KeeperService {
    pub stage: Arc<Stage>,
    pub keeper: Arc<LocalKeeper>,
}

impl Serve for KeeperService {
    fn serve(&self, _: CallerId, request: &[u8], answer: Answer) {
        let read = serde_json::from_slice(request).map_err(|error| Error::corrupt(error.to_string()));
        match read.and_then(|request| self.settled(request)) {
            Ok(bytes) => answer.with(&bytes),
            Err(error) => answer.fail(error),
        }
    }
}

impl KeeperService {
    /// As the pool's node does: nothing is begun while it could not be told.
    fn settled(&self, request: Request) -> Result<Vec<u8>> {
        self.keeper.part().settle()?;
        let answer = self.answer(request)?;
        self.keeper.part().settle().map(|()| answer)
    }

    fn answer(&self, request: Request) -> Result<Vec<u8>> {
        let keeper = &*self.keeper;
        match request {
            Request::Begin => json(&keeper.begin()?),
            Request::Take(session, class, lifetime) => json(&keeper.take(session, class, lifetime)?),
            Request::GiveBack(session, extents) => json(&keeper.give_back(session, &extents)?),
            Request::TakeRun(session, bytes, lifetime) => json(&keeper.take_run(session, bytes, lifetime)?),
            Request::FreeRun(address) => json(&keeper.free_run(address)?),
            Request::End(session) => json(&keeper.end(session)?),
            Request::IsAlive(session) => json(&(keeper.is_alive(session)? && !self.stage.is_over(session))),
            Request::Audit => json(&keeper.audit()?),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::Invalid(error.to_string()))
}

/// The space as a new process of the users' host sees it.
///
/// # Errors
/// None of its own.
pub(super) fn open(stage: &Arc<Stage>) -> Result<Space> {
    let space = Space::new(SPACE);
    let hello = Hello {
        space: SPACE,
        part: PART,
        key: KEY,
        pod: "users".into(),
    };
    let callers = Arc::new(Lookup::new(stage, calls_name));
    let far = FarPart {
        number: PART,
        pod: "node".into(),
        // As the pool's clients read what is mirrored.
        channel: Arc::new(Channel::new(callers, "the part", hello).reading(FarReads::Plain)),
    };
    let keeper = RemoteKeeper {
        stage: Arc::clone(stage),
        callers: Lookup::new(stage, desk_name),
        caller: Mutex::default(),
    };
    space.attach_far(far, Arc::new(keeper))?;
    Ok(space)
}

/// The way to whichever keeper the part has by now.
struct Lookup {
    stage: Arc<Stage>,
    port: Arc<dyn Callers>,
    name: fn(u64) -> String,
}

impl Lookup {
    fn new(stage: &Arc<Stage>, name: fn(u64) -> String) -> Self {
        Self {
            stage: Arc::clone(stage),
            port: stage.network.port(USERS),
            name,
        }
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the way to the part's keeper")
    }
}

impl Callers for Lookup {
    fn caller(&self, _: &str) -> Result<Arc<dyn Caller>> {
        self.port.caller(&(self.name)(self.stage.current()))
    }
}

/// The keeper of the part, as a user has it.
struct RemoteKeeper {
    stage: Arc<Stage>,
    callers: Lookup,
    /// Never held at a preemption point.
    caller: Mutex<Option<Arc<dyn Caller>>>,
}

impl RemoteKeeper {
    fn caller(&self) -> Result<Arc<dyn Caller>> {
        let known = self.caller.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let caller = self.callers.caller("")?;
        self.set_caller(Some(Arc::clone(&caller)));
        Ok(caller)
    }

    fn set_caller(&self, caller: Option<Arc<dyn Caller>>) {
        let mut known = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *known, caller);
        drop(known);
        drop(before);
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        self.ask_counting(request, &mut 0)
    }

    fn ask_counting<T: DeserializeOwned>(&self, request: &Request, tries: &mut u32) -> Result<T> {
        let (bytes, until) = (json(request)?, rt::now() + TIMEOUT);
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
                    if rt::now() > until {
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
        self.ask(&Request::Begin)
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        self.ask(&Request::Take(session, class, lifetime))
    }

    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        self.ask(&Request::GiveBack(session, extents.to_vec()))
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        self.ask(&Request::TakeRun(session, bytes, lifetime))
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
        // A keeper that does not hear of it now does so by itself.
        self.stage.leave(session);
        self.ask(&Request::End(session))
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        self.ask(&Request::IsAlive(session))
    }

    fn audit(&self) -> Result<Vec<String>> {
        self.ask(&Request::Audit)
    }
}
