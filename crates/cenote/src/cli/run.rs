//! `cenote run`: a server from its first line to its last.
//!
//! 1. Settings are decided, the password file is read, the data directory made.
//! 2. The socket is bound, so that clients wait from now on rather than being refused.
//! 3. The database is opened, which recovers it; with `--device`, behind an emulator.
//! 4. Sessions are served; the `ready` line says so.
//! 5. SIGTERM or SIGINT end the sessions, and the database is closed in order. A second signal ends the process at
//!    once, which is what the next start recovers from.

use super::Failure;
use super::auto;
use super::client::{publish_address, withdraw_address};
use super::say;
use super::serving::{
    bind_local, describe_memory, end_at_second_signal, name_orphans, report_recovery, say_connect, serve,
};
use crate::archiving::ArchivingThread;
use crate::config::{ArchiveSettings, Role, RunOptions, Settings};
use crate::device::Emulation;
use crate::metering::{Activity, Meter};
use crate::server::auth::Passwords;
use crate::server::{self, Server};
use crate::{database, log, membership};
use cenote_engine::Engine;
use cenote_storage_node::ServerRole;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Files that are no sessions' sockets: those of tables and of the log that are kept open, connections that are about
/// to be refused, and the server's own.
const FILES_RESERVED: usize = 600;
/// How long sessions have to end at a shutdown.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a server until it is told to stop.
///
/// # Errors
/// The configuration cannot be used; the database cannot be opened; the address cannot be had.
pub fn run(options: RunOptions, started: Instant) -> Result<ExitCode, Failure> {
    let mut settings = Settings::resolve(options)?;
    log::set_level(settings.log_level.into());
    log_panics();
    settings.max_connections = allow_sockets(&settings, raise_file_limit())?;
    let passwords = settings.password_file.as_deref().map(Passwords::read).transpose()?;
    std::fs::create_dir_all(&settings.data)
        .map_err(|error| format!("cannot make the data directory {}: {error}", settings.data.display()))?;
    let listener = server::bind(&settings.listen, passwords.is_some())?;
    if settings.role == Role::Auto {
        return auto::run(settings, listener, started);
    }
    let local = bind_local(&settings, listener.local_addr()?.port())?;

    say!("Cenote {} on {}", env!("CARGO_PKG_VERSION"), settings.data.display());
    let emulation = settings.device.as_ref().map(Emulation::begin);
    let engine = database::open(&settings)?;
    let archive = settings.archive.as_ref().filter(|_| !engine.is_reader());
    let mut archiving = ArchivingThread::begin(archive, &engine)?;
    introduce(&settings, archive);
    if let Some(emulation) = &emulation {
        say!("device     {}", emulation.describe());
    }
    report_recovery(&engine.recovery_report());
    // Until here a signal ends the process at once; from here on it is answered with a stop in order.
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let mut server = serve(
        &settings,
        engine.clone(),
        (listener, local),
        passwords,
        emulation.clone(),
        None,
        archiving.as_ref().map(|thread| thread.archiving.clone()),
    )?;
    let address = server.address();
    let meter = Meter::begin(&settings)?;
    let member = membership::join(&settings, address)?;
    if let Some(member) = &member {
        member.look(membership::look(&engine, &server.registry));
        let role = match engine.is_reader() {
            true => ServerRole::Reader,
            false => ServerRole::Writer,
        };
        // It is said again.
        let _ = member.become_role(role, membership::epoch_of(&engine));
    }
    if let Some(meter) = &meter {
        meter.look(&engine);
        meter.is_now(match engine.is_reader() {
            true => Activity::Reader,
            false => Activity::Writer,
        });
    }
    publish_address(&settings.data, address)?;
    say_connect(&settings, address);
    let label = emulation.map_or_else(String::new, |e| format!(", {},", e.label()));
    say!("ready in {} ms{label} on {address}", started.elapsed().as_millis());
    name_orphans();

    let code = wait_and_stop(&mut signals, &mut server, &engine, &mut archiving);
    withdraw_address(&settings.data);
    // One whose sessions may live on is to be found silent.
    if let (Some(member), false, true) = (&member, engine.is_reader(), code == ExitCode::SUCCESS) {
        // Else it is found silent, too.
        let _ = member.become_role(ServerRole::Gone, membership::epoch_of(&engine));
    }
    meter.iter().for_each(Meter::end);
    Ok(code)
}

fn introduce(settings: &Settings, archive: Option<&ArchiveSettings>) {
    say!("memory     {}", describe_memory(settings));
    if let Some(storage) = &settings.storage {
        say!(
            "storage    log and pages on the storage nodes {}",
            storage.nodes.join(", ")
        );
    }
    if let Some(archive) = archive {
        say!("archive    {}", archive.url);
    }
    if settings.role == Role::Reader {
        say!("role       reader: it shows what the database's server has committed, and changes nothing");
    }
}

fn wait_and_stop(
    signals: &mut Signals,
    server: &mut Server,
    engine: &Engine,
    archiving: &mut Option<ArchivingThread>,
) -> ExitCode {
    let signal = signals.forever().next();
    log::info!(
        "{}: shutting down",
        if signal == Some(SIGINT) { "SIGINT" } else { "SIGTERM" }
    );
    end_at_second_signal();
    let began = Instant::now();
    archiving.iter().for_each(ArchivingThread::close);
    let left = server.stop(TIMEOUT);
    if left > 0 {
        log::warn!(
            "{left} sessions did not end within {} s: stopping as if killed, the next start recovers",
            TIMEOUT.as_secs()
        );
        return ExitCode::FAILURE;
    }
    if let Some(archiving) = archiving {
        archiving.end();
    }
    match engine.shutdown() {
        Ok(()) => {
            log::info!("stopped in {} ms", began.elapsed().as_millis());
            ExitCode::SUCCESS
        }
        Err(error) => {
            log::error!("the database was not closed in order: {error}; the next start recovers");
            ExitCode::FAILURE
        }
    }
}

/// A panic is a line in the log like any other. Those of sessions end the session, those inside a page change the
/// process.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        log::error!("panic in thread {}: {panic}", thread.name().unwrap_or("?"));
    }));
}

/// Each table and index has a file, each session a socket. How many there may be; None: any number.
pub(super) fn raise_file_limit() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        log::warn!("cannot raise the limit of open files: {error}");
    }
    getrlimit(Resource::Nofile).current
}

/// The sessions that the limit of open files has sockets for: as many as set, or fewer where the number is the default.
fn allow_sockets(settings: &Settings, files: Option<u64>) -> Result<usize, Failure> {
    let asked = settings.max_connections;
    let Some(files) = files else { return Ok(asked) };
    let most = usize::try_from(files)
        .unwrap_or(usize::MAX)
        .saturating_sub(FILES_RESERVED);
    if asked <= most {
        return Ok(asked);
    }
    let cause = format!("this process may open {files} files, which leaves sockets for {most} sessions");
    let hint = "raise the limit (ulimit -n, LimitNOFILE= of a systemd unit)";
    if settings.max_connections_given || most == 0 {
        return Err(format!("max_connections is {asked}, but {cause}: {hint}, or ask for fewer").into());
    }
    log::warn!("max_connections is {most} and not {asked}: {cause}; {hint}");
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_without_sockets_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = RunOptions::default();
        options.data.data = Some(dir.path().to_owned());
        let mut settings = Settings::resolve(options).unwrap();
        let asked = settings.max_connections;
        assert_eq!(allow_sockets(&settings, None).unwrap(), asked);
        assert_eq!(allow_sockets(&settings, Some(20_000)).unwrap(), asked);
        assert_eq!(allow_sockets(&settings, Some(1024)).unwrap(), 1024 - FILES_RESERVED);
        settings.max_connections_given = true;
        let refused = allow_sockets(&settings, Some(1024)).unwrap_err().to_string();
        assert!(
            refused.contains("1024 files") && refused.contains("ulimit -n"),
            "{refused}"
        );
    }
}
