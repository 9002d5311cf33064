//! `--device`: a running server whose memory is as slow as a device that a profile describes.
//!
//! What the figures mean is said wherever they are shown: *emulated*, and under which profile. How it is done is told
//! in [`cenote_fabric::emulate`].

use crate::config_error::ConfigError;
use cenote_base::units::ByteSize;
use cenote_fabric::emulate::{CacheShape, Emulator, own_latency_ns};
use cenote_fabric::observe;
use cenote_fabric::profile::{self, Profile};
use std::path::Path;
use std::sync::Arc;

/// What `--device` and `--device-cache` mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// What is emulated.
    pub profile: Profile,
    /// The processor's cache in front of it.
    pub cache: CacheShape,
}

impl Device {
    /// The device of a name or file, behind a cache of that size.
    ///
    /// # Errors
    /// There is no such profile, it is storage, or no cache has that size.
    pub fn new(name: &str, cache: Option<ByteSize>) -> Result<Device, ConfigError> {
        let shape = CacheShape::default();
        let cache = match cache {
            Some(bytes) => {
                CacheShape::new(bytes, shape.ways()).map_err(|error| wrong("device_cache", error.to_string()))?
            }
            None => shape,
        };
        let profile = find(name).map_err(|problem| wrong("device", problem))?;
        Ok(Device { profile, cache })
    }
}

fn wrong(key: &str, problem: String) -> ConfigError {
    ConfigError::Value(format!("{key}: {problem}"))
}

/// The profile that `name` means: a built-in one, else that of a file, `FILE` or, where it holds several, `FILE:NAME`.
fn find(name: &str) -> Result<Profile, String> {
    let profile = profile::find(name).map_err(|error| error.to_string())?;
    if is_storage(&profile) {
        return Err(format!(
            "{} is storage, not memory that is loaded from and stored to (`cenote devices` says which can be emulated)",
            profile.name
        ));
    }
    Ok(profile)
}

/// Whether a profile describes what has to be synced.
pub fn is_storage(profile: &Profile) -> bool {
    profile.sync_ns > 0.0
}

/// The profiles of a file, checked.
///
/// # Errors
/// The file cannot be read, or is not made of profiles; the text names both.
pub fn read(file: &Path) -> Result<Vec<Profile>, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    profile::parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// A device being emulated in this process.
pub struct Emulation {
    emulator: Arc<Emulator>,
    own_ns: f64,
}

impl Emulation {
    /// From here on, announced accesses take as long as on the device: to be called before the memory is opened.
    pub fn begin(device: &Device) -> Arc<Emulation> {
        let own_ns = own_latency_ns();
        let emulator = Arc::new(Emulator::new(device.profile.clone(), device.cache));
        observe::install(emulator.clone());
        Arc::new(Emulation { emulator, own_ns })
    }

    /// What stands beside every figure: `emulated cxl-switch`.
    pub fn label(&self) -> String {
        format!("emulated {}", self.emulator.profile().name)
    }

    /// What was counted.
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// All that a user should know, in one line.
    pub fn describe(&self) -> String {
        let (profile, shape) = (self.emulator.profile(), self.emulator.shape());
        let (near, look) = self.emulator.overhead_ns();
        let faster = match self.own_ns > profile.load_latency_ns {
            true => ", which is slower: figures are too high",
            false => "",
        };
        format!(
            "{}: a missed line takes {} ns ({}); this machine's own memory {:.0}{faster}; behind a modelled cache of \
             {}, {} ways; the model costs {near:.0} to {look:.0} ns an access, taken off the waiting",
            self.label(),
            profile.load_latency_ns,
            profile.source,
            self.own_ns,
            shape.bytes(),
            shape.ways()
        )
    }
}
