//! A database's region out of the memory pool.
//!
//! The grant is the database's by a label that it keeps in its data directory: so a start after a crash, on whatever
//! host of the pod, finds the memory of the last one. The process holds it until it ends; then the pool keeps it for
//! the next. `cenote pool free` gives it back.

use crate::config::PoolSettings;
use crate::log;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::message::Network;
use cenote_fabric::message::tcp::Tcp;
use cenote_fabric::{FileRange, MirrorKeeper, Origin};
use cenote_pool::holder::{Credentials, GrantRequest, GrantedMemory};
use cenote_storage::Holding;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const LABEL_FILE: &str = "pool.label";

/// Held until the process ends: before that, a thread may still use the mapping.
static HELD: Mutex<Vec<GrantedMemory>> = Mutex::new(Vec::new());

/// Memory of the pool, granted to this process.
pub struct Taken {
    /// The file to map.
    pub path: PathBuf,
    /// The part of it, if it is a device that hosts share.
    pub range: Option<FileRange>,
    /// The host, and its life, as the pool counts them; `None` for memory that this machine alone reaches.
    pub origin: Option<Origin>,
    /// The grant, and the epoch in which this process holds it.
    pub holding: Holding,
    /// The keeper of its mirror, if it has one.
    pub mirror: Option<Arc<dyn MirrorKeeper>>,
}

/// The region's memory, granted to this process from here on.
///
/// # Errors
/// The manager cannot be reached or refuses; the memory cannot be mapped.
pub fn take(pool: &PoolSettings, host: Option<String>, data: &Path, size: ByteSize) -> Result<Taken> {
    take_labelled(pool, host, label(data)?, data.display().to_string(), size)
}

/// The memory of the grant with this label, granted to this process from here on.
///
/// # Errors
/// The manager cannot be reached or refuses; the memory cannot be mapped.
pub fn take_labelled(
    pool: &PoolSettings,
    host: Option<String>,
    label: String,
    description: String,
    size: ByteSize,
) -> Result<Taken> {
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let requested = GrantRequest {
        label,
        description,
        bytes: size.bytes(),
        pod: pool.pod.clone(),
        keep: None,
        mirror: pool.mirror,
        host,
    };
    let memory = GrantedMemory::open(&network, &credentials(pool)?, requested, Box::new(end))?;
    let path = memory.path();
    if !path.exists() {
        return Err(Error::Mismatch(format!(
            "the pool granted memory of pod {} at {}, which is not on this host: name this host's pod with --pod",
            memory.pod(),
            path.display()
        )));
    }
    log::info!(
        "memory pool at {}: grant {} of pod {}, holder {}, {}",
        pool.manager,
        memory.id(),
        memory.pod(),
        memory.epoch(),
        if memory.is_fresh() { "new" } else { "kept from before" }
    );
    let taken = Taken {
        path,
        range: memory.range(),
        origin: origin(&memory),
        holding: Holding {
            grant: memory.id().0,
            epoch: memory.epoch(),
        },
        mirror: memory.mirror(),
    };
    HELD.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    Ok(taken)
}

fn origin(memory: &GrantedMemory) -> Option<Origin> {
    let host = memory.host().filter(|_| memory.host_epoch() > 0)?;
    Some(Origin::host(host, memory.host_epoch()))
}

/// By which a pool knows the tenant.
///
/// # Errors
/// The secret cannot be read.
pub fn credentials(pool: &PoolSettings) -> Result<Credentials> {
    let secret = match &pool.secret_file {
        Some(file) => read_secret(file)?,
        None => String::new(),
    };
    Ok(Credentials {
        manager: pool.manager.clone(),
        tenant: pool.tenant.clone(),
        secret,
    })
}

/// A secret out of a file: its first line.
///
/// # Errors
/// The file cannot be read, or its first line is empty.
pub fn read_secret(file: &Path) -> Result<String> {
    let text =
        std::fs::read_to_string(file).map_err(|error| Error::io(format!("reading {}", file.display()), error))?;
    match text.lines().next().map(str::trim) {
        Some(secret) if !secret.is_empty() => Ok(secret.into()),
        _ => Err(Error::Invalid(format!(
            "{}: the first line is empty; write the secret there",
            file.display()
        ))),
    }
}

/// The database's name in the pool, drawn when it is first asked for.
///
/// # Errors
/// Those of the file that keeps it.
pub fn label(data: &Path) -> Result<String> {
    let path = data.join(LABEL_FILE);
    let failed = |error| Error::io(format!("reading {}", path.display()), error);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let label = format!("database-{:032x}", cenote_base::rt::random_u128());
            // Durable before the pool hears it: a start that found half of it would have other memory, or none.
            cenote_base::rt::fs::replace(&path, label.as_bytes()).map_err(failed)?;
            Ok(label)
        }
        Err(error) => Err(failed(error)),
    }
}

/// The memory, or the data directory, is another's from now on, and this process is about to be ended. It ends itself,
/// which recovery takes for a crash.
pub fn end(error: &Error) {
    log::error!("{error}; the process ends here, and recovers when it is started again");
    std::process::exit(1);
}
