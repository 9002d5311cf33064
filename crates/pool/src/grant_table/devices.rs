//! Devices that hosts of a pod share, in the grant table: which hosts have joined them, and which host may touch a
//! grant's range.
//!
//! ```text
//!                 joined, and ended all that mapped it                    host-lost
//!   (none) ─────────────────────────────────────────▶ open(epoch) ─────────────────────▶ lost(epoch)
//!                                                        ▲   epoch + 1: joined again, and ended all   │
//!                                                        └────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! - each byte of a device is free or of one grant's range; ranges are whole extents of the device;
//! - a grant's range has a host from its opening until its holder is confirmed over, and while it is freed: that host's
//!   processes alone may map it, and that host's agent alone changes its directory slot;
//! - it goes to another host only after the agent of the former one has confirmed that no process there maps it, and
//!   that nothing of it is in that host's caches; or when the former one's epoch was closed;
//! - a host's epoch rises each time it joins after it was lost, or was cut off over that. An agent of a closed epoch is
//!   not heard before it has ended every process of its host that maps the device.

use super::{Grant, GrantId, GrantTable, NodeId, Phase};
use crate::host::Sight;
use crate::wire::{DeviceView, HostView, OpenRequest};
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_space::EXTENT;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A device that hosts of a pod share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its pod.
    pub pod: String,
    /// Where its first extent begins.
    pub start: u64,
    /// All of its extents.
    pub bytes: u64,
    /// Bytes of an extent.
    pub granule: u64,
    /// Whether it is a devdax device: no file system keeps its ranges apart.
    pub devdax: bool,
    /// By name.
    pub hosts: BTreeMap<String, DeviceHost>,
}

/// A host, at a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHost {
    /// Its slot in the device's directory.
    pub number: u64,
    /// Rises each time it joins after it was lost; 0 before it has joined.
    pub epoch: u64,
    /// Whether its processes may have ranges. `false`: its epoch was closed, or it has yet to join.
    pub open: bool,
    /// Which processes its agent sees.
    pub sight: Sight,
    /// Whether its agent is connected.
    #[serde(skip)]
    pub connected: bool,
    /// What its agent opened.
    #[serde(skip)]
    pub path: String,
    /// Until then its agent may be on its way from the manager before.
    #[serde(skip)]
    pub awaited: Nanos,
}

impl DeviceHost {
    /// Whether a process there can be a holder now.
    fn is_there(&self) -> bool {
        self.open && self.connected
    }
}

/// Where on a device a grant lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeOf {
    /// Where it begins.
    pub offset: u64,
    /// The host that may touch it, while one may.
    pub host: Option<String>,
    /// Whether the device's directory has it: an agent has said so. A holder may be followed before its own agent has.
    #[serde(default = "was_known")]
    pub known: bool,
}

/// Grant tables did not tell. What a former program granted was noted, or is opened by what the directory says.
fn was_known() -> bool {
    true
}

impl RangeOf {
    pub(super) fn new(offset: u64) -> Self {
        Self {
            offset,
            host: None,
            known: false,
        }
    }
}

impl GrantTable {
    // ---- looking ----

    /// A device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none of this number.
    pub fn device(&self, id: NodeId) -> Result<&Device> {
        self.devices
            .get(&id)
            .ok_or_else(|| Error::Invalid(format!("there is no device {id}")))
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = (NodeId, &Device)> {
        self.devices.iter().map(|(id, device)| (*id, device))
    }

    /// The pod of a memory node or device.
    pub fn pod_of(&self, id: NodeId) -> &str {
        let of_device = || self.devices.get(&id).map(|device| &*device.pod);
        self.nodes
            .get(&id)
            .map(|node| &*node.pod)
            .or_else(of_device)
            .unwrap_or_default()
    }

    pub(super) fn device_host(&self, id: NodeId, host: &str) -> Option<&DeviceHost> {
        self.devices.get(&id)?.hosts.get(host)
    }

    pub(super) fn is_host_there(&self, id: NodeId, host: &str) -> bool {
        self.device_host(id, host).is_some_and(DeviceHost::is_there)
    }

    /// Grants of a device that the agent of this host has something to do for.
    pub fn work_of_host(&self, device: NodeId, host: &str) -> Vec<GrantId> {
        let todo = |grant: &Grant| {
            let of = grant
                .range
                .as_ref()
                .filter(|_| grant.node == device)
                .map(|range| &range.host);
            match (grant.phase, of) {
                (Phase::Fencing, Some(Some(of))) => of == host,
                (Phase::Freeing, Some(of)) => of.as_deref().is_none_or(|of| of == host),
                _ => false,
            }
        };
        self.grants
            .iter()
            .filter(|(_, grant)| todo(grant))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Whole extents of a device, or of a memory node.
    pub(super) fn whole_on(&self, id: NodeId, bytes: u64) -> u64 {
        let granule = self.devices.get(&id).map_or(EXTENT, |device| device.granule);
        bytes.checked_next_multiple_of(granule).unwrap_or(u64::MAX)
    }

    // ---- holders ----

    /// The agent that was asked to has noted the range in the device's directory.
    pub fn range_is_known(&mut self, id: GrantId) {
        let range = self.grants.get_mut(&id).and_then(|grant| grant.range.as_mut());
        if let Some(range) = range {
            range.known = true;
        }
    }

    /// Whether a process of the request's host can have a grant that lies on a device, as far as its hosts go.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Mismatch`].
    pub(super) fn check_hosts(&self, id: GrantId, host: Option<&str>) -> Result<()> {
        self.check_former_host(id)?;
        let grant = self.grant(id)?;
        match host.filter(|host| self.is_host_there(grant.node, host)) {
            Some(_) => Ok(()),
            None => Err(Error::Mismatch(format!(
                "the memory lies on device {} of pod {}, and host \"{}\" has no agent there that could fence a holder: start one (cenote host), or name the host by --host",
                grant.node,
                self.pod_of(grant.node),
                host.unwrap_or_default()
            ))),
        }
    }

    /// The agent of the host that may touch a range is there to confirm that no process does.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub(super) fn check_former_host(&self, id: GrantId) -> Result<()> {
        let grant = self.grant(id)?;
        if let Some(former) = grant.host().filter(|former| !self.is_host_there(grant.node, former)) {
            return Err(Error::Lost(format!(
                "grant {id} was held on host \"{former}\", whose agent is not heard: it stays in quarantine until that is back (cenote host), or the host is lost for good (cenote pool host-lost {former})"
            )));
        }
        Ok(())
    }

    /// Devices that a process of the request's host can use.
    pub(super) fn devices_for(&self, requested: &OpenRequest) -> Vec<NodeId> {
        let Some(host) = requested.host.as_deref().filter(|_| !requested.mirror) else {
            return Vec::new();
        };
        let is_in = |device: &Device| requested.pod.as_ref().is_none_or(|pod| device.pod == *pod);
        let fits = |id: NodeId, device: &Device| is_in(device) && self.is_host_there(id, host);
        self.devices()
            .filter(|(id, device)| fits(*id, device))
            .map(|(id, _)| id)
            .collect()
    }

    // ---- forgetting, views and checks ----

    /// A device will not come back: what lay there is gone.
    ///
    /// # Errors
    /// [`Error::Busy`] if a host has joined it that was not lost.
    pub(super) fn forget_device(&mut self, id: NodeId) -> Result<()> {
        if let Some((host, _)) = self
            .device(id)?
            .hosts
            .iter()
            .find(|(_, host)| host.open || host.connected)
        {
            return Err(Error::Busy(format!(
                "host \"{host}\" has joined the device {id}: stop its agent, end what uses the device there, and say so (cenote pool host-lost {host})"
            )));
        }
        self.devices.remove(&id);
        self.grants.retain(|_, grant| grant.node != id);
        Ok(())
    }

    /// Devices, as people see them.
    pub fn device_views(&self) -> Vec<DeviceView> {
        let host = |(name, host): (&String, &DeviceHost)| HostView {
            name: name.clone(),
            epoch: host.epoch,
            open: host.open,
            connected: host.connected,
        };
        let view = |(id, device): (NodeId, &Device)| DeviceView {
            id,
            pod: device.pod.clone(),
            bytes: device.bytes,
            granted: self.granted(id),
            devdax: device.devdax,
            hosts: device.hosts.iter().map(host).collect(),
        };
        self.devices().map(view).collect()
    }
}

impl Grant {
    /// The host that may touch its range, if it has one.
    pub fn host(&self) -> Option<&str> {
        self.range.as_ref()?.host.as_deref()
    }

    pub(super) fn set_host(&mut self, host: Option<&str>) {
        if let Some(range) = &mut self.range {
            range.host = host.map(str::to_owned);
        }
    }
}

#[cfg(test)]
mod tests;
