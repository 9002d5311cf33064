//! How hosts come and go, in the grant table: an agent joins a device, is not heard any more, and its host is lost.

use super::devices::{Device, DeviceHost};
use super::{Grant, GrantId, GrantTable, NodeId, Phase};
use crate::wire::{HostHello, HostWelcome};
use cenote_base::rt::Nanos;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_space::EXTENT;
use std::collections::BTreeMap;

/// Hosts that have a slot in a device's directory.
const HOSTS_MAX: u64 = 64;
/// Characters of a host's longest name: its slot holds it.
const HOST_NAME_MAX: usize = 64;

/// How long an agent may take to find that another manager leads: it gives the former one up, and reaches this one.
pub(crate) const SETTLING: Nanos = Nanos::from_secs(20);

/// What has come of the word that a host is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostLoss {
    /// Its epochs are closed.
    Closed,
    /// The manager has just begun to lead: to it all hosts look lost. For so long the host's agent may be on its way.
    TooEarly(Nanos),
}

impl GrantTable {
    /// Hosts whose agents spoke to the former manager have some time to come to this one.
    pub(super) fn await_hosts(&mut self, now: Nanos) {
        let hosts = self.devices.unkept_mut().flat_map(|device| device.hosts.values_mut());
        hosts.for_each(|host| host.awaited = now + SETTLING);
    }

    /// The agent of a host says that it is there. What it has to do before it counts is in the answer.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the device is of another pool, size or pod, or the host's name is another machine's;
    /// [`Error::Busy`] if the host's agent is connected; [`Error::Full`]; [`Error::Invalid`] for a name.
    pub fn join_host(&mut self, hello: &HostHello) -> Result<HostWelcome> {
        check_hello(hello)?;
        self.check_device(hello)?;
        let hello_device = Device {
            pod: hello.pod.clone(),
            start: hello.start,
            bytes: hello.bytes,
            granule: hello.granule,
            devdax: hello.devdax,
            hosts: BTreeMap::new(),
        };
        if !self.devices.contains_key(&hello.device) {
            self.devices.insert(hello.device, hello_device);
        }
        let device = self.devices.get_mut(&hello.device).expect("it was found or entered");
        device.check_host(hello)?;
        let number = device.number_for(&hello.host)?;
        let host = device.hosts.entry(hello.host.clone()).or_insert_with(|| DeviceHost {
            number,
            epoch: 0,
            open: false,
            sight: hello.sight,
            connected: false,
            path: String::new(),
            awaited: Nanos(0),
        });
        (host.connected, host.awaited) = (true, Nanos(0));
        host.path.clone_from(&hello.path);
        let clear = !host.open;
        // On record before the agent notes it on the device: one that is cut off between joins again, with a later one.
        host.epoch += u64::from(clear);
        self.next = self.next.max(hello.last.0 + 1);
        Ok(HostWelcome {
            number,
            epoch: host.epoch,
            clear,
        })
    }

    fn check_device(&self, hello: &HostHello) -> Result<()> {
        let (id, path) = (hello.device, &hello.path);
        if hello.pool != self.pool {
            return Err(Error::Mismatch(format!("the device at {path} belongs to another pool")));
        }
        if self.nodes.contains_key(&id) {
            return Err(Error::Mismatch(format!(
                "there is a memory node with the number of the device {id}"
            )));
        }
        let Some(device) = self.devices.get(&id) else {
            return match hello.used {
                false => Ok(()),
                true => Err(Error::Mismatch(format!(
                    "the device {id} at {path} has grants that this grant table does not know: the pool has forgotten it, or the table is an old copy. Empty its directory and format it to bring it back as a new one"
                ))),
            };
        };
        if device.pod != hello.pod {
            let pod = &device.pod;
            return Err(Error::Mismatch(format!(
                "the device {id} at {path} is of pod {pod}, not of {}",
                hello.pod
            )));
        }
        let is_same = device.start == hello.start && device.bytes == hello.bytes && device.granule == hello.granule;
        match is_same {
            true => Ok(()),
            false => Err(Error::Mismatch(format!(
                "the device {id} at {path} has {} from {} on, and had {} from {} on",
                ByteSize(hello.bytes),
                hello.start,
                ByteSize(device.bytes),
                device.start
            ))),
        }
    }

    /// The agent has ended every process of its host that maps the device, if it was told to: its processes may have
    /// ranges from here on.
    pub fn host_is_clear(&mut self, hello: &HostHello, epoch: u64) {
        let device = self.devices.get_mut(&hello.device);
        if let Some(host) = device.and_then(|device| device.hosts.get_mut(&hello.host)) {
            assert!(epoch >= host.epoch, "a host's epoch rises");
            (host.epoch, host.open, host.sight) = (epoch, true, hello.sight);
        }
    }

    /// The agent of a host is not heard any more. Its processes go on.
    pub fn leave_host(&mut self, device: NodeId, host: &str) {
        let device = self.devices.get_mut(&device);
        if let Some(host) = device.and_then(|device| device.hosts.get_mut(host)) {
            host.connected = false;
        }
    }

    /// A host is over, as its switch or an operator says: no process there reaches a device any more. Its epochs are
    /// closed, and what its processes held is without a holder.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this name, or several in different pods; [`Error::Busy`] if its agent is
    /// connected.
    pub fn lose_host(&mut self, name: &str, pod: Option<&str>, now: Nanos) -> Result<HostLoss> {
        let is_meant = |device: &Device| pod.is_none_or(|pod| pod == device.pod) && device.hosts.contains_key(name);
        let meant: Vec<NodeId> = self
            .devices()
            .filter(|(_, device)| is_meant(device))
            .map(|(id, _)| id)
            .collect();
        let Some(first) = meant.first() else {
            return Err(Error::Invalid(format!("no device has a host \"{name}\"")));
        };
        if meant.iter().any(|id| self.pod_of(*id) != self.pod_of(*first)) {
            return Err(Error::Invalid(format!(
                "there are hosts \"{name}\" in several pods: name one (--pod)"
            )));
        }
        if meant
            .iter()
            .any(|id| self.device_host(*id, name).is_some_and(|host| host.connected))
        {
            return Err(Error::Busy(format!(
                "the agent of host \"{name}\" is connected, so the host is not lost: stop it first"
            )));
        }
        let open = meant.iter().filter_map(|id| self.device_host(*id, name));
        let awaited = open.filter(|host| host.open).map(|host| host.awaited).max();
        if let Some(until) = awaited.filter(|until| now < *until) {
            return Ok(HostLoss::TooEarly(until.since(now)));
        }
        for id in meant {
            self.close_host(id, name, now);
        }
        Ok(HostLoss::Closed)
    }

    fn close_host(&mut self, id: NodeId, name: &str, now: Nanos) {
        let device = self.devices.get_mut(&id);
        if let Some(host) = device.and_then(|device| device.hosts.get_mut(name)) {
            host.open = false;
        }
        let is_there = |grant: &Grant| grant.node == id && grant.host() == Some(name);
        self.grants.change_each(is_there, |grant| {
            if grant.phase == Phase::Held {
                grant.enter(Phase::Fencing);
                grant.epoch += 1;
            }
            if grant.phase == Phase::Fencing {
                grant.enter(Phase::Idle);
                grant.time = now;
            }
            grant.set_host(None);
        });
    }

    /// A grant that is freed, and has no host, is this one's to free: whether it is.
    pub fn claim_freeing(&mut self, id: GrantId, host: &str) -> bool {
        let Some(grant) = self.grants.get_mut(&id).filter(|grant| grant.phase == Phase::Freeing) else {
            return false;
        };
        if grant.host().is_none() {
            grant.set_host(Some(host));
        }
        grant.host() == Some(host)
    }
}

fn check_hello(hello: &HostHello) -> Result<()> {
    crate::settings::check_name("a pod's name", &hello.pod)?;
    check_host_name(&hello.host)?;
    let is_whole = hello.granule > 0
        && hello.granule.is_multiple_of(EXTENT)
        && hello.bytes.is_multiple_of(hello.granule)
        && hello.start.is_multiple_of(hello.granule)
        && hello.start.checked_add(hello.bytes).is_some();
    match is_whole && hello.last.0 < super::GRANT_MAX && hello.sight.processes != 0 {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "what the agent of host \"{}\" says of its device",
            hello.host
        ))),
    }
}

/// Refuses what cannot be a host's name.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_host_name(name: &str) -> Result<()> {
    crate::settings::check_name("a host's name", name)?;
    match name.len() <= HOST_NAME_MAX {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "a host's name has {HOST_NAME_MAX} bytes at most: \"{name}\""
        ))),
    }
}

impl Device {
    fn check_host(&self, hello: &HostHello) -> Result<()> {
        let name = &hello.host;
        let is_same = |(other, host): &(&String, &DeviceHost)| *other != name && host.open && host.sight == hello.sight;
        if let Some((other, _)) = self.hosts.iter().find(is_same) {
            return Err(Error::Mismatch(format!(
                "this machine is host \"{other}\" of the device already: start its agent under that name"
            )));
        }
        let Some(host) = self.hosts.get(name) else {
            return Ok(());
        };
        if host.connected {
            return Err(Error::Busy(format!("an agent of host \"{name}\" is connected already")));
        }
        if hello.epoch > host.epoch {
            return Err(Error::Mismatch(format!(
                "host \"{name}\" has joined with epoch {}, and this grant table knows {}: it is an old copy",
                hello.epoch, host.epoch
            )));
        }
        match host.open && host.sight != hello.sight {
            false => Ok(()),
            true if hello.epoch > 0 && hello.epoch < host.epoch => Err(Error::Revoked(format!(
                "host \"{name}\" was lost, and has joined from elsewhere with epoch {}: epoch {} is closed",
                host.epoch, hello.epoch
            ))),
            true => Err(Error::Mismatch(format!(
                "host \"{name}\" has joined from another machine, another boot of it, or another PID namespace: if that is over, say so (cenote pool host-lost {name})"
            ))),
        }
    }

    /// The slot of a host: its own, or one that is no host's.
    fn number_for(&self, host: &str) -> Result<u64> {
        if let Some(host) = self.hosts.get(host) {
            return Ok(host.number);
        }
        let is_free = |number: &u64| self.hosts.values().all(|host| host.number != *number);
        (0..HOSTS_MAX)
            .find(is_free)
            .ok_or_else(|| Error::Full(format!("a device has {HOSTS_MAX} hosts at most")))
    }
}
