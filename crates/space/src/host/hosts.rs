//! What a memory node serves calls with: which connection is about which part, and which user it belongs to.

use super::gates::{Fencing, Gate, Gates, Inside};
use super::read_keys::ReadKey;
use super::replies::User;

use super::{Host, HostState, POD_MAX};
use crate::far::wire;
use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, CallerId, Serve};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use wire::Greeting;

/// A user that has said hello over a connection.
pub(super) struct KnownUser {
    host: Arc<HostState>,
    /// The pod that it is in.
    pub(super) pod: String,
    pub(super) user: Arc<User>,
    /// The member's that it belongs to; of other parts' hosts none.
    gate: Option<Arc<Gate>>,
    /// By which its card reads the part's memory.
    key: Mutex<Option<Arc<ReadKey>>>,
}

/// What serves the calls of a memory node: all parts that it hosts, several of one space too. Lock order: hosts, then
/// what a host remembers, then callers.
#[derive(Default)]
pub struct Hosts {
    /// By space and part.
    hosts: Mutex<BTreeMap<(u128, u8), Arc<HostState>>>,
    callers: Mutex<BTreeMap<CallerId, Arc<KnownUser>>>,
    gates: Arc<Gates>,
}

impl Hosts {
    /// Serves a host's part too, in place of a former host of it.
    pub fn add(&self, host: &Host) {
        let place = host.inner.place_in_pool();
        self.remove(place.0, place.1);
        host.inner.gates.set(Arc::clone(&self.gates)).ok();
        self.hosts.lock().insert(place, Arc::clone(&host.inner));
    }

    /// Serves a part of a space no more.
    pub fn remove(&self, space: u128, part: u8) {
        let mut hosts = self.hosts.lock();
        hosts.remove(&(space, part));
        let is_another = |user: &KnownUser| user.host.place_in_pool() != (space, part);
        self.callers.lock().retain(|_, user| is_another(user));
    }

    /// Serves nothing more.
    pub fn clear(&self) {
        self.hosts.lock().clear();
        // Their keys end, which may take a while.
        drop(core::mem::take(&mut *self.callers.lock()));
    }

    // ---- members ----

    /// Serves a member of a space from here on; its epoch.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is being fenced.
    pub fn admit(&self, space: u128, member: u128) -> Result<u64> {
        self.gates.admit(space, member)
    }

    /// Begins nothing more for a member. Whether nothing is under way for it: that stays so.
    pub fn close(&self, space: u128, member: u128) -> bool {
        self.gates.close(space, member)
    }

    /// A member is none any more, and does not come back.
    pub fn forget(&self, space: u128, member: u128) {
        self.gates.forget(space, member);
    }

    /// Who fences members that another node has fenced; without, their calls are refused here.
    pub fn set_fencing(&self, fencing: Weak<dyn Fencing>) {
        self.gates.set_fencing(fencing);
    }

    // ---- calls ----

    /// The memory of what that user has asked for.
    fn greet(&self, caller: CallerId, greeting: Greeting) -> Result<u64> {
        let hello = greeting.hello;
        if hello.pod.len() > POD_MAX {
            return Err(Error::Invalid(format!("a pod's name of {} bytes", hello.pod.len())));
        }
        let hosts = self.hosts.lock();
        let host = hosts.get(&(hello.space, hello.part));
        let host = host.filter(|host| host.options.key == hello.key && host.is_served());
        let host =
            host.ok_or_else(|| Error::Invalid("no such part is served here, or the key is not its own".into()))?;
        let gate = greeting.pass.map(|pass| self.gates.of(hello.space, pass)).transpose()?;
        let user = host.replies.greet(greeting.user, greeting.turn, caller)?;
        let (memory, pod) = (user.memory(), hello.pod);
        let host = Arc::clone(host);
        let known = Arc::new(KnownUser::new(host, pod, user, gate));
        let former = self.callers.lock().insert(caller, known);
        drop(hosts);
        // A connection that is another user's from now on.
        let others = former.filter(|former| former.user.memory() != memory);
        others.into_iter().for_each(|former| former.leave(caller));
        Ok(memory)
    }
}

impl KnownUser {
    #[cfg(test)]
    pub(super) fn come(host: &Arc<HostState>, pod: &str, connection: CallerId) -> Result<Self> {
        let user = host.replies.greet(cenote_base::rt::random_u128(), 1, connection)?;
        let (host, pod) = (Arc::clone(host), pod.to_owned());
        Ok(Self::new(host, pod, user, None))
    }

    fn new(host: Arc<HostState>, pod: String, user: Arc<User>, gate: Option<Arc<Gate>>) -> Self {
        Self {
            host,
            pod,
            user,
            gate,
            key: Mutex::default(),
        }
    }

    /// The key that it had before ends.
    pub(super) fn keep_key(&self, key: Arc<ReadKey>) {
        if let Some(gate) = &self.gate {
            gate.keep(&key);
        }
        let former = self.key.lock().replace(key);
        drop(former);
    }

    /// # Errors
    /// [`Error::Revoked`] if its member was fenced; [`Error::Invalid`] if it is none, and only members may ask for that.
    pub(super) fn enter(&self, request: &[u8]) -> Result<Option<Inside<'_>>> {
        match &self.gate {
            Some(gate) => gate.enter().map(Some),
            None if self.host.options.members_only && !request.first().is_some_and(wire::is_of_hosts) => {
                Err(Error::Invalid("only members of the space are served".into()))
            }
            None => Ok(None),
        }
    }

    fn serve(self: &Arc<Self>, request: &[u8], answer: Answer) {
        match self.enter(request) {
            Ok(_inside) if wire::is_window(request) => self.ask_window(&self.host, answer),
            Ok(_inside) => self
                .host
                .serve((&self.user, &self.pod, self.gate.as_ref()), request, answer),
            Err(error) => answer.fail(error),
        }
    }

    fn leave(&self, connection: CallerId) {
        self.host.replies.leave(&self.user, connection);
    }
}

impl Serve for Hosts {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        if request.first() == Some(&wire::HELLO) {
            let greeting = wire::split(request).and_then(|(_, rest)| wire::from_json(rest));
            return match greeting.and_then(|greeting| self.greet(caller, greeting)) {
                Ok(memory) => answer.with(&memory.to_le_bytes()),
                Err(error) => answer.fail(error),
            };
        }
        let known = self.callers.lock().get(&caller).cloned();
        let known = known.filter(|user| user.host.is_served());
        match known {
            Some(user) => user.serve(request, answer),
            // Or the host that it spoke with is gone: the user says hello again, to the host that is there then.
            None => answer.fail(wire::unheard("no hello came over this connection")),
        }
    }

    fn ended(&self, caller: CallerId) {
        let known = self.callers.lock().remove(&caller);
        known.into_iter().for_each(|user| user.leave(caller));
    }
}
