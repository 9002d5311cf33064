//! Who comes to a manager that leads: tenants' clients, operators, memory nodes; and the places that they have.
//!
//! ```text
//!            hello: there is room in its tenant's share
//!   client ─────────────────────────────────────────────────▶ stays
//!      │                                                        ▲
//!      └── the share is taken ──▶ on trial ── renews a lease ───┘
//!                                     │ asks for anything else, or nothing for 5 s
//!                                     ▼
//!                                   closed; it is told which limit
//! ```
//!
//! Invariants:
//! - a holder's renewal gets in, however many clients of its own tenant, or of others, hold connections: places of
//!   holders are as many as grants are held, one each, and a few for those on trial;
//! - memory nodes, agents of hosts and operators have places that no tenant can take.

use super::leader::{Leader, PING_EVERY};
use crate::grant_table::NodeId;
use crate::service::{Greeted, Visit};
use crate::wire::{self, Failure, Hello, HostWelcome, Reply, Request, Role, Welcome};
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use std::sync::Arc;

/// Connections of memory nodes, of agents of hosts, and of operators.
const NODES_MAX: u32 = 4096;
const AGENTS_MAX: u32 = 4096;
const OPERATORS_MAX: u32 = 64;
/// Of a tenant's clients that are on trial.
const TRIALS_MAX: u32 = 16;
const _: () = assert!(
    PING_EVERY.0 < Nanos::from_secs(5).0,
    "a memory node hears a manager often"
);

/// What a client is.
enum Asker {
    Tenant(String),
    Operator,
    Keeper(NodeId),
}

/// A client that was let in.
pub(super) struct Peer {
    pub(super) leader: Arc<Leader>,
    asker: Asker,
    /// It is on trial, and this is what it is told if it does not renew a lease.
    trial: Option<Error>,
}

impl Leader {
    /// Lets a peer in.
    ///
    /// # Errors
    /// It is not let in, and was told why.
    pub(super) fn greet(
        self: &Arc<Self>,
        hello: Hello,
        visit: &Arc<Visit>,
        evict: &dyn Fn(&str),
    ) -> Result<Greeted<Peer>> {
        let placed = self
            .authenticate(&hello)
            .and_then(|()| self.place(&hello.role, visit, evict));
        let admitted = placed.and_then(|trial| {
            let host = self.admit_peer(&hello)?;
            let welcome = self.welcome().inspect_err(|_| self.dismiss(&hello.role))?;
            Ok((trial, Welcome { host, ..welcome }))
        });
        let (trial, host, welcome) = match admitted {
            Ok((trial, welcome)) => (trial, welcome.host.clone(), Ok(welcome)),
            Err(error) => (None, None, Err(error)),
        };
        let refused = welcome.as_ref().err().cloned();
        let greeted = wire::send(&*visit.connection, &welcome.map_err(Failure::from));
        if let Some(error) = refused {
            return Err(error);
        }
        if let Err(error) = greeted {
            self.dismiss(&hello.role);
            return Err(error);
        }
        if trial.is_none() {
            visit.trust();
        }
        let asker = match hello.role {
            Role::Tenant(tenant) => Asker::Tenant(tenant),
            Role::Operator => Asker::Operator,
            Role::Keeper(node) => Asker::Keeper(node),
            role => return Ok(self.give_thread(role, host, visit)),
        };
        let leader = Arc::clone(self);
        Ok(Greeted::Stays(Peer { leader, asker, trial }))
    }

    /// Memory nodes, and agents, are asked by the manager.
    fn give_thread(self: &Arc<Self>, role: Role, host: Option<HostWelcome>, visit: &Arc<Visit>) -> Greeted<Peer> {
        let (leader, connection) = (Arc::clone(self), Arc::clone(&visit.connection));
        Greeted::Thread(Box::new(move || {
            match (&role, host) {
                (Role::Node(node), _) => _ = leader.serve_node(node, &connection),
                (Role::Host(agent), Some(host)) => _ = leader.serve_agent(agent, &host, &connection),
                _ => {}
            }
            leader.dismiss(&role);
        }))
    }

    /// Gives a peer a place; an error if it is on trial.
    fn place(&self, role: &Role, visit: &Arc<Visit>, evict: &dyn Fn(&str)) -> Result<Option<Error>> {
        let tenant = match role {
            Role::Node(_) => return visit.place.give_to_group("memory nodes", NODES_MAX).map(|()| None),
            Role::Host(_) => return visit.place.give_to_group("agents of hosts", AGENTS_MAX).map(|()| None),
            Role::Keeper(_) => {
                visit.share_as(KEEPERS);
                return visit.place.give_to_group("keepers of parts", NODES_MAX).map(|()| None);
            }
            Role::Operator => {
                visit.share_as(OPERATORS);
                return visit.place.give_to_group("operators", OPERATORS_MAX).map(|()| None);
            }
            Role::Tenant(tenant) => tenant,
        };
        visit.share_as(tenant);
        let Err(busy) = visit.place.give_to(tenant, self.tenants()) else {
            return Ok(None);
        };
        let held = self.grant_table.look().held_by(tenant);
        let group = format!("holders of tenant \"{tenant}\"");
        let most = TRIALS_MAX.saturating_add(held);
        if visit.place.give_to_group(&group, most).is_err() {
            // One that is on trial goes; this one comes again.
            evict(tenant);
            return Err(busy);
        }
        Ok(Some(busy))
    }
}

/// How operators, and keepers of parts, share threads: no tenant has such a name.
const OPERATORS: &str = "/operators";
const KEEPERS: &str = "/keepers";

impl Peer {
    /// Answers a request.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) fn answer(&mut self, request: &[u8], visit: &Arc<Visit>) -> Result<()> {
        if self.leader.is_stopping() {
            return Err(Error::Lost("this manager leads no more".into()));
        }
        let request: Request = wire::read(&*visit.connection, request)?;
        if self.trial.is_some() {
            return self.try_out(request, visit);
        }
        let answer = self.ask(request);
        wire::answer(&*visit.connection, &self.leader.checked(answer), Reply::Failed)
    }

    fn ask(&self, request: Request) -> Result<Reply> {
        match &self.asker {
            Asker::Tenant(tenant) => self.leader.ask_of_tenant(tenant, request),
            Asker::Operator => self.leader.ask_of_operator(request),
            Asker::Keeper(node) => self.leader.ask_of_keeper(*node, request),
        }
    }

    /// One that renews a lease stays.
    fn try_out(&mut self, request: Request, visit: &Arc<Visit>) -> Result<()> {
        let renews = match request {
            Request::Renew { grant, .. } | Request::Confirm { grant, .. } => Some(grant),
            _ => None,
        };
        let answer = match renews {
            Some(_) => self.ask(request),
            None => Err(self
                .trial
                .clone()
                .unwrap_or_else(|| Error::Invalid("not on trial".into()))),
        };
        let answer = self.leader.checked(answer);
        let has_renewed = matches!(answer, Reply::Done);
        wire::answer(&*visit.connection, &answer, Reply::Failed)?;
        let Some(grant) = renews.filter(|_| has_renewed) else {
            return Err(Error::Busy("it is no holder".into()));
        };
        self.trial = None;
        visit.trust();
        self.leader.holders.come(grant, visit);
        Ok(())
    }
}

/// Whether a request may wait for memory nodes, or for memory. (Written in another way, one that does not is answered
/// as if it did.)
pub(super) fn may_wait(request: &[u8]) -> bool {
    !["{\"Renew\"", "{\"OpenSpace\""]
        .iter()
        .any(|head| request.starts_with(head.as_bytes()))
}
