//! What all processes of the world have in common, and what outlives them.

use cenote_base::random::Random;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::message::Network;
use cenote_fabric::profile;
use cenote_pool::holder::Credentials;
use cenote_pool::settings::{Tenant, Tenants};
use cenote_space::EXTENT;

use super::hosts::Hosts;
use super::label::Label;
use super::leaderships::Leaderships;
use super::machines::Machines;
use super::model::Model;
use super::role::{MACHINE, Role, agent_host};
use crate::etcd::Etcd;
use crate::message::{Faults, Net};
use crate::topology;
use crate::worlds::plan::Grants;
use crate::worlds::shared::Shared;

pub(super) const OPERATOR: &str = "operator";

pub(super) fn holder_name(slot: usize) -> String {
    format!("holder{slot}")
}

pub(super) struct Stage {
    pub shared: Arc<Shared>,
    pub grants: Grants,
    pub net: Net,
    /// Where the grant table of several managers is.
    pub etcd: Etcd,
    leaderships: Mutex<Leaderships>,
    model: Mutex<Model>,
    machine: Mutex<Machines>,
    hosts: Mutex<Hosts>,
    has_device: AtomicBool,
    ready: Mutex<BTreeSet<Role>>,
    calm: AtomicBool,
    turns: AtomicU64,
    values: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    pub fn new(shared: &Arc<Shared>, grants: Grants, draw: &mut Random) -> Arc<Stage> {
        let (seed, drift) = (draw.word(), shared.plan.drift);
        let etcd = match grants.managers {
            1 => Etcd::new(0, 0),
            _ => Etcd::new(draw.word(), topology::drift(&mut Random(draw.word()), drift)),
        };
        Arc::new(Stage {
            shared: Arc::clone(shared),
            grants,
            net: Net::new(&profile::named("rdma").expect("a profile of this program"), seed),
            etcd,
            leaderships: Mutex::default(),
            model: Mutex::default(),
            machine: Mutex::default(),
            hosts: Mutex::new(Hosts::new(grants.hosts)),
            has_device: AtomicBool::new(false),
            ready: Mutex::default(),
            calm: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            values: AtomicU64::new(0),
        })
    }

    /// What has to be where. Its lock is the machine's own: no preemption point is passed while it is held.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }

    /// As [`Stage::model`]: processes, and what they map.
    pub fn machine(&self) -> MutexGuard<'_, Machines> {
        lock(&self.machine)
    }

    /// As [`Stage::model`]: the times in which managers lead.
    pub fn leaderships(&self) -> MutexGuard<'_, Leaderships> {
        lock(&self.leaderships)
    }

    /// As [`Stage::model`]: hosts that share the device.
    pub fn hosts(&self) -> MutexGuard<'_, Hosts> {
        lock(&self.hosts)
    }

    /// The device that hosts share is formatted.
    pub fn has_device(&self) -> bool {
        self.has_device.load(SeqCst)
    }

    pub fn set_device(&self) {
        self.has_device.store(true, SeqCst);
    }

    /// Where a manager listens.
    pub fn manager(&self, n: usize) -> String {
        format!("{}:5440", Role::Manager(n).name())
    }

    /// And all of them, as those are told that look for the leader.
    pub fn managers(&self) -> String {
        let all: Vec<String> = (0..self.grants.managers).map(|n| self.manager(n)).collect();
        all.join(",")
    }

    pub fn credentials(&self, tenant: &str) -> Credentials {
        Credentials {
            manager: self.managers(),
            tenant: tenant.into(),
            secret: String::new(),
        }
    }

    /// The network, as a program on the machine of nodes and operators sees it.
    pub fn network(&self, name: &str) -> Arc<dyn Network> {
        self.net.endpoint(name, MACHINE)
    }

    /// As a holder sees it, on one of the hosts that share the device, or on the machine of nodes.
    pub fn network_of(&self, name: &str, host: Option<usize>) -> Arc<dyn Network> {
        self.net.endpoint(name, host.map_or(MACHINE, agent_host))
    }

    pub fn holders(&self) -> usize {
        self.shared.plan.sessions
    }

    pub fn labels(&self) -> impl Iterator<Item = Label> {
        (0..self.grants.labels).map(Label)
    }

    pub fn tenants(&self) -> Tenants {
        let tenant = |n: usize| Tenant {
            secret: None,
            quota: (n == 1).then_some(self.grants.extents * EXTENT),
            priority: 2 - n as u8,
        };
        let named = |n: usize| (Label::TENANTS[n].to_owned(), tenant(n));
        Tenants {
            secret: None,
            tenants: [named(0), named(1)].into(),
        }
    }

    // ---- phases ----

    /// Faults are over.
    pub fn calm_down(&self) {
        self.calm.store(true, SeqCst);
        self.net.set_faults(Faults::default());
        self.net.mend_all();
        self.etcd.calm_down();
        self.machine().calm_down();
    }

    pub fn is_calm(&self) -> bool {
        self.calm.load(SeqCst)
    }

    /// Takes one of the operations that are to be done, if users shall go on.
    pub fn take_turn(&self) -> bool {
        self.turns.fetch_add(1, SeqCst);
        !self.is_calm() && !self.shared.has_failed()
    }

    pub fn turns(&self) -> u64 {
        self.turns.load(SeqCst)
    }

    /// A value that no other process writes.
    pub fn new_value(&self) -> u64 {
        self.values.fetch_add(1, SeqCst) + 1
    }

    // ---- programs ----

    pub fn set_ready(&self, role: Role, is_ready: bool) {
        let mut ready = lock(&self.ready);
        match is_ready {
            true => _ = ready.insert(role),
            false => _ = ready.remove(&role),
        }
    }

    pub fn is_ready(&self, role: Role) -> bool {
        lock(&self.ready).contains(&role)
    }
}
