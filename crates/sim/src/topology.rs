//! What a world is made of: hosts, memory devices, and the links between them, as data.

use cenote_base::random::Random;
use cenote_base::{Error, Result};
use cenote_fabric::profile::{self, Profile};

/// A host's cache of memory lines, as far as it is modelled: one cache for all of the host's vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSpec {
    /// Its size.
    pub bytes: u64,
    /// Lines of one set.
    pub ways: u32,
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self {
            bytes: 1 << 20,
            ways: 16,
        }
    }
}

/// A link of a topology, in place of those that a device's profile would give.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinkSpec {
    /// What it is called in reports.
    pub name: String,
    /// Bytes a second, in each direction.
    pub bandwidth: f64,
    /// Both directions share the bandwidth.
    pub half_duplex: bool,
    /// Latency under load: utilisation (0 to 1), and how many times the latency at rest; ascending.
    pub loaded: Vec<(f64, f64)>,
    /// Its ends: host and device. Several links of one pair are passed in their order.
    pub joins: Vec<(usize, usize)>,
}

impl LinkSpec {
    /// Says what is impossible about it: the field, and what it may be.
    pub(crate) fn validate(&self, hosts: usize, devices: usize) -> Result<()> {
        let wrong = |text: String| Err(Error::Invalid(format!("topology: link \"{}\": {text}", self.name)));
        if !(1e6..=1e14).contains(&self.bandwidth) {
            let given = self.bandwidth;
            return wrong(format!("bandwidth: {given}; it may be 1e6 to 1e14 bytes a second"));
        }
        let outside = |p: &&(f64, f64)| !(0.0..=1.0).contains(&p.0) || !(1.0..=100.0).contains(&p.1);
        if let Some(point) = self.loaded.iter().find(outside) {
            return wrong(format!(
                "loaded: {point:?}; utilisation may be 0 to 1, the factor 1 to 100"
            ));
        }
        if let Some((host, device)) = self.joins.iter().find(|(h, d)| *h >= hosts || *d >= devices) {
            return wrong(format!(
                "joins: host {host} and device {device}; there are {hosts} hosts and {devices} devices"
            ));
        }
        Ok(())
    }
}

/// A simulated machine.
#[derive(Debug, Clone, PartialEq)]
pub struct HostSpec {
    /// What it is called in reports.
    pub name: String,
    /// Virtual processors ([`Pace::Project`](crate::Pace::Project) alone looks).
    pub vcpus: u32,
    /// Its cache.
    pub cache: CacheSpec,
    /// What its own memory costs.
    pub memory: Profile,
    /// What its monotonic clock gains in a million, or loses.
    pub drift: i32,
}

impl HostSpec {
    /// A host with local DRAM as published, and a cache of the default size.
    pub fn new(name: &str, vcpus: u32) -> Self {
        Self {
            name: name.into(),
            vcpus,
            cache: CacheSpec::default(),
            memory: profile::named("dram").expect("a built-in profile"),
            drift: 0,
        }
    }
}

/// A memory device that hosts share.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceSpec {
    /// Its name: it "lies at" [`DeviceSpec::path`].
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes from its start on that are coherent among hosts in hardware.
    pub window: u64,
    /// What it costs.
    pub profile: Profile,
    /// Timing alone: every view is the memory itself. For projections, where one host uses a part at a time.
    pub coherent: bool,
    /// Nearly all of it will be used, if it is coherent: the simulator's machine gives it whole, in wide pages.
    pub dense: bool,
}

impl DeviceSpec {
    /// A device that is incoherent but for nothing, with the named built-in profile.
    ///
    /// # Errors
    /// If there is no such profile.
    pub fn new(name: &str, bytes: u64, profile: &str) -> Result<Self> {
        Ok(Self {
            name: name.into(),
            bytes,
            window: 0,
            profile: profile::named(profile)?,
            coherent: false,
            dense: false,
        })
    }

    /// Where a simulated host finds it.
    pub fn path(&self) -> std::path::PathBuf {
        format!("/dev/sim/{}", self.name).into()
    }
}

/// The whole.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Topology {
    /// The hosts; a host is known by its index.
    pub hosts: Vec<HostSpec>,
    /// The memory devices.
    pub devices: Vec<DeviceSpec>,
    /// Links, and what each host reaches over them. Where none joins a host and a device, those of the device's profile
    /// do.
    pub links: Vec<LinkSpec>,
}

impl Topology {
    /// `hosts` hosts named `host0`, `host1`, … of `vcpus` each, and no devices.
    pub fn hosts(hosts: usize, vcpus: u32) -> Self {
        Self {
            hosts: (0..hosts).map(|i| HostSpec::new(&format!("host{i}"), vcpus)).collect(),
            ..Self::default()
        }
    }

    /// With one more device.
    pub fn with_device(mut self, device: DeviceSpec) -> Self {
        self.devices.push(device);
        self
    }

    /// With clocks that gain or lose up to `most` in a million, each as `seed` draws.
    pub fn with_drift(mut self, seed: u64, most: i32) -> Self {
        let mut dice = Random(seed);
        for host in &mut self.hosts {
            host.drift = drift(&mut dice, most);
        }
        self
    }

    /// Says what is impossible about it: the field, and what it may be.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field, and what it may be.
    pub fn validate(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Invalid(format!("topology: {text}")));
        if self.hosts.is_empty() || self.hosts.len() > MAX_HOSTS {
            return wrong(format!("hosts: {}; there may be 1 to {MAX_HOSTS}", self.hosts.len()));
        }
        for (i, host) in self.hosts.iter().enumerate() {
            host.validate()?;
            if self.hosts[..i].iter().any(|h| h.name == host.name) {
                return wrong(format!("hosts: two are named \"{}\"", host.name));
            }
        }
        for link in &self.links {
            link.validate(self.hosts.len(), self.devices.len())?;
        }
        for (i, device) in self.devices.iter().enumerate() {
            device.validate()?;
            if self.devices[..i].iter().any(|d| d.name == device.name) {
                return wrong(format!("devices: two are named \"{}\"", device.name));
            }
        }
        Ok(())
    }
}

/// What a clock gains in a million, up to `most` or down to its opposite: half of the time one of the two.
pub(crate) fn drift(dice: &mut Random, most: i32) -> i32 {
    let any = dice.below(2 * most.unsigned_abs() as u64 + 1) as i32 - most.abs();
    dice.pick(&[any, any, most, -most])
}

/// Hosts of one world.
pub const MAX_HOSTS: usize = 1024;
/// vCPUs of one host.
const MAX_VCPUS: u32 = 4096;
/// What a clock gains or loses in a million: more is no clock.
const MAX_DRIFT: i32 = 100_000;
/// Bytes of one device.
const MAX_DEVICE: u64 = 1 << 40;

impl HostSpec {
    fn validate(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Invalid(format!("topology: host \"{}\": {text}", self.name)));
        if self.vcpus == 0 || self.vcpus > MAX_VCPUS {
            return wrong(format!("vcpus: {}; it may be 1 to {MAX_VCPUS}", self.vcpus));
        }
        if !(-MAX_DRIFT..=MAX_DRIFT).contains(&self.drift) {
            return wrong(format!("drift: {}; it may be -{MAX_DRIFT} to {MAX_DRIFT}", self.drift));
        }
        let (lines, ways) = (self.cache.bytes / 64, u64::from(self.cache.ways));
        if ways == 0 || ways > lines || lines % ways != 0 || !(lines / ways).is_power_of_two() {
            return wrong(format!(
                "cache: {} bytes in {ways} ways; lines of 64 bytes, divided by the ways, must be a power of two",
                self.cache.bytes
            ));
        }
        Ok(())
    }
}

impl DeviceSpec {
    fn validate(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Invalid(format!("topology: device \"{}\": {text}", self.name)));
        if self.name.is_empty() || self.name.contains('/') {
            return wrong("name: it may not be empty or have a slash".into());
        }
        if self.bytes == 0 || self.bytes > MAX_DEVICE || !self.bytes.is_multiple_of(4096) {
            return wrong(format!("bytes: {}; a multiple of 4096 up to 1 TiB", self.bytes));
        }
        if self.window > self.bytes {
            return wrong(format!(
                "window: {}; it may be 0 to the device's {} bytes",
                self.window, self.bytes
            ));
        }
        Ok(())
    }
}
