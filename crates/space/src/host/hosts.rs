//! What a memory node serves calls with: which connection is about which part, and which user it belongs to.

use super::replies::User;
use super::{Host, HostState, POD_MAX};
use crate::far::wire;
use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, CallerId, Serve};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::Greeting;

/// A user that has said hello over a connection.
pub(super) struct KnownUser {
    host: Arc<HostState>,
    /// The pod that it is in.
    pub(super) pod: String,
    pub(super) user: Arc<User>,
}

/// What serves the calls of a memory node: all parts that it hosts, several of one space too. Lock order: hosts, then
/// what a host remembers, then callers.
#[derive(Default)]
pub struct Hosts {
    /// By space and part.
    hosts: Mutex<BTreeMap<(u128, u8), Arc<HostState>>>,
    callers: Mutex<BTreeMap<CallerId, Arc<KnownUser>>>,
}

impl Hosts {
    /// Serves a host's part too, in place of a former host of it.
    pub fn add(&self, host: &Host) {
        let place = host.inner.place_in_pool();
        self.remove(place.0, place.1);
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
        self.callers.lock().clear();
    }

    /// The memory of what that user has asked for.
    fn admit(&self, caller: CallerId, greeting: Greeting) -> Result<u64> {
        let hello = greeting.hello;
        if hello.pod.len() > POD_MAX {
            return Err(Error::Invalid(format!("a pod's name of {} bytes", hello.pod.len())));
        }
        let hosts = self.hosts.lock();
        let host = hosts.get(&(hello.space, hello.part));
        let host = host.filter(|host| host.options.key == hello.key && !host.is_stopping());
        let host =
            host.ok_or_else(|| Error::Invalid("no such part is served here, or the key is not its own".into()))?;
        let user = host.replies.greet(greeting.user, greeting.turn, caller)?;
        let (memory, pod) = (user.memory(), hello.pod);
        let host = Arc::clone(host);
        let known = Arc::new(KnownUser { host, pod, user });
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
        Ok(Self { host, pod, user })
    }

    fn leave(&self, connection: CallerId) {
        self.host.replies.leave(&self.user, connection);
    }
}

impl Serve for Hosts {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        if request.first() == Some(&wire::HELLO) {
            let greeting = wire::split(request).and_then(|(_, rest)| wire::from_json(rest));
            return match greeting.and_then(|greeting| self.admit(caller, greeting)) {
                Ok(memory) => answer.with(&memory.to_le_bytes()),
                Err(error) => answer.fail(error),
            };
        }
        let known = self.callers.lock().get(&caller).cloned();
        let known = known.filter(|user| !user.host.is_stopping());
        match known {
            Some(user) => user.host.serve((&user.user, &user.pod), request, answer),
            // Or the host that it spoke with is gone: the user says hello again, to the host that is there then.
            None => answer.fail(wire::unheard("no hello came over this connection")),
        }
    }

    fn ended(&self, caller: CallerId) {
        let known = self.callers.lock().remove(&caller);
        known.into_iter().for_each(|user| user.leave(caller));
    }
}
