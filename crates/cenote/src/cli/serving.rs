//! What servers of every role are made of: sessions over an engine, and what is said about both.

use super::{Failure, say};
use crate::admin::{Administration, RemoteSizes};
use crate::archiving::Archiving;
use crate::config::{Memory, Settings, Survival};
use crate::device::Emulation;
use crate::server::auth::Passwords;
use crate::server::registry::Registry;
use crate::server::startup::DATABASE;
use crate::server::{Access, Context, LocalListener, Server};
use crate::views::Views;
use crate::{log, regions, shared_storage};
use cenote_base::units::ByteSize;
use cenote_cluster::Lease;
use cenote_engine::{Engine, RecoveryReport};
use cenote_sql::{Analytics, Sql};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// Where queries that need more memory than they get put the rest, in the data directory.
#[cfg(feature = "analytics")]
const SPILL_DIR: &str = "query-tmp";

pub fn bind_local(settings: &Settings, port: u16) -> Result<Option<LocalListener>, Failure> {
    let dir = settings.socket_dir.as_deref();
    Ok(dir.map(|dir| LocalListener::bind(dir, port)).transpose()?)
}

pub fn serve(
    settings: &Settings,
    engine: Arc<Engine>,
    (listener, local): (TcpListener, Option<LocalListener>),
    passwords: Option<Passwords>,
    emulation: Option<Arc<Emulation>>,
    lease: Option<Arc<Lease>>,
    archiving: Option<Archiving>,
) -> Result<Server, Failure> {
    let registry = Arc::new(Registry::default());
    let memory = match &emulation {
        Some(emulation) => format!("{}; {}", describe_memory(settings), emulation.label()),
        None => describe_memory(settings),
    };
    let views = Views::new(engine.clone(), registry.clone(), memory, emulation, archiving.clone());
    engine.memory().set_limit(settings.statement_memory.bytes());
    let sql = Sql::new(engine.clone(), analytics(settings, &engine, &views));
    let access = Access {
        passwords,
        max_connections: settings.max_connections,
        max_threads: usize::MAX,
    };
    let context = Context {
        sql,
        statements: Arc::new(Administration {
            engine,
            views,
            archiving,
            remote: RemoteSizes::of(settings),
            trace: std::sync::Mutex::default(),
        }),
        access,
        registry,
        lease,
    };
    Ok(Server::start(listener, local, context)?)
}

/// The planner of everything that the short path does not know. It starts nothing before the first such query.
#[cfg(feature = "analytics")]
fn analytics(settings: &Settings, engine: &Arc<Engine>, views: &Arc<Views>) -> Option<Arc<dyn Analytics>> {
    use cenote_sql::analytics::{Config, DataFusion};
    let spill = settings.data.join(SPILL_DIR);
    // What queries of a killed server left.
    std::fs::remove_dir_all(&spill).ok();
    let config = Config {
        memory_limit: usize::try_from(settings.query_memory.bytes()).unwrap_or(usize::MAX),
        spill: Some(spill),
        ..Config::default()
    };
    Some(DataFusion::new(engine.clone(), Some(views.clone()), config))
}

#[cfg(not(feature = "analytics"))]
fn analytics(_settings: &Settings, _engine: &Arc<Engine>, _views: &Arc<Views>) -> Option<Arc<dyn Analytics>> {
    None
}

/// Without the files another machine has nothing to recover.
fn mirrored(settings: &Settings, mirror: bool) -> &'static str {
    match (mirror, shared_storage::is_shared(&settings.data)) {
        (false, _) => "",
        (true, true) => ", and is mirrored on another memory node",
        (true, false) => {
            ", and is mirrored on another memory node (the data directory is on no network file system: unless its disk can be attached to another machine, a mirror there saves warmth only)"
        }
    }
}

pub fn describe_memory(settings: &Settings) -> String {
    let size = settings.memory_size;
    if settings.memory == Memory::Dram {
        let replays = if settings.storage.is_none() {
            "replays the log and "
        } else {
            ""
        };
        return format!("{size} of private memory (dram): a restart {replays}begins with a cold cache");
    }
    if let (Some(local), Some(pool)) = (settings.local_memory_size, &settings.pool) {
        let manager = &pool.manager;
        let size = match settings.growth {
            Some(_) => format!("{size} to {}", settings.memory_max()),
            None => size.to_string(),
        };
        return match settings.storage {
            None => format!(
                "{local} of private memory in front of {size} of the memory pool at {manager} (tiered): a restart \
                 replays the log, over pages that are there still"
            ),
            Some(_) => format!(
                "{local} of private memory in front of {size} of the memory pool at {manager} (tiered), which all \
                 servers of the database share"
            ),
        };
    }
    if let Some(pool) = &settings.pool {
        return format!(
            "{size} in a region (cxl) granted by the memory pool at {}; it survives {}{}",
            pool.manager,
            survives(settings),
            mirrored(settings, pool.mirror)
        );
    }
    let place = match &settings.region {
        Some(path) => path.display().to_string(),
        None => "shared memory, which stands for CXL memory".into(),
    };
    format!(
        "{size} in a region (cxl) in {place}; it survives {}",
        survives(settings)
    )
}

fn survives(settings: &Settings) -> &'static str {
    match settings.survive {
        Survival::Process => "a killed process",
        Survival::Host => "a lost host",
    }
}

pub fn report_recovery(report: &RecoveryReport) {
    let read = ByteSize(report.redo_bytes_read);
    say!(
        "recovery   {} in {:.1} ms: {} frames kept, {} repaired, {} discarded; {read} of redo read",
        report.mode,
        report.duration_ms,
        report.frames_kept,
        report.frames_repaired,
        report.frames_discarded
    );
    report.notes.iter().for_each(|note| log::info!("recovery: {note}"));
}

pub fn say_connect(settings: &Settings, address: SocketAddr) {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "127.0.0.1".into(),
        ip => ip.to_string(),
    };
    let user = if settings.password_file.is_some() {
        " -U USER"
    } else {
        ""
    };
    let port = address.port();
    say!("connect    psql -h {host} -p {port}{user} -d {DATABASE}");
    if let Some(dir) = &settings.socket_dir {
        say!("           psql -h {} -p {port}{user} -d {DATABASE}", dir.display());
    }
}

pub fn name_orphans() {
    for region in regions::orphaned().unwrap_or_default() {
        let size = ByteSize(region.allocated);
        log::warn!(
            "region {} ({size}) belongs to a database that is gone; free it with: cenote region remove {}",
            region.path.display(),
            region.path.display()
        );
    }
}

pub fn end_at_second_signal() {
    std::thread::spawn(|| {
        if let Ok(mut signals) = Signals::new([SIGTERM, SIGINT]) {
            signals.forever().next();
            log::warn!("second signal: stopping as if killed, the next start recovers");
            std::process::exit(1);
        }
    });
}
