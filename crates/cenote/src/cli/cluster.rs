//! `cenote cluster`: the servers of a database on storage nodes, and which of them has it.

use super::{Failure, print_aligned, say};
use crate::config::StorageOptions;
use crate::{database, membership};
use cenote_base::rt::Nanos;
use cenote_storage_node::{Membership, NodesClient, Server, ServerRole, ServerSeen};
use clap::{Args, Subcommand};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A server that has said nothing for so long is shown as silent.
const SILENT: Nanos = Nanos::from_secs(2);
/// How long a switch is waited for.
const SWITCH: Duration = Duration::from_secs(15);
const TURN: Duration = Duration::from_millis(20);

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the servers of a database: which has it, how far each is behind, how many sessions each has
    Status(StorageOptions),
    /// Show what the database has used since it was made: hours of servers, processors and memory
    Usage(StorageOptions),
    /// Let another server have the database: the one that has it ends its statements, and becomes a reader
    Switch(SwitchArguments),
}

#[derive(Debug, Args)]
pub struct SwitchArguments {
    /// The server that is to have it, by its name or its address [default: the reader that is furthest]
    #[arg(long, value_name = "SERVER")]
    to: Option<String>,
    #[command(flatten)]
    storage: StorageOptions,
}

/// Shows a cluster, or changes which server has the database.
///
/// # Errors
/// No storage nodes are named; none leads; the server that is named cannot have it.
pub fn run(command: ClusterCommand) -> Result<ExitCode, Failure> {
    match command {
        ClusterCommand::Status(options) => status(options),
        ClusterCommand::Usage(options) => usage(options),
        ClusterCommand::Switch(arguments) => switch(arguments),
    }
}

fn client(options: StorageOptions) -> Result<NodesClient, Failure> {
    let Some(storage) = options.decide()? else {
        return Err("say where the storage nodes are: --storage ADDR:PORT,...".into());
    };
    Ok(database::client(&storage)?.with_timeout(Nanos::from_secs(5)))
}

fn status(options: StorageOptions) -> Result<ExitCode, Failure> {
    let seen = client(options)?.members()?;
    print_aligned(&table(&seen));
    if seen.servers.is_empty() {
        say!("  no server has been heard of");
    }
    Ok(match seen.writer() {
        Some(writer) if writer.ago < SILENT => ExitCode::SUCCESS,
        _ if is_paused(&seen) => {
            say!("  paused: the first client that connects resumes it");
            ExitCode::SUCCESS
        }
        _ => {
            say!("  no server has the database");
            ExitCode::FAILURE
        }
    })
}

/// Whether no server has the database because it is not needed.
pub fn is_paused(seen: &Membership) -> bool {
    let is_paused = |one: &ServerSeen| one.server.role == ServerRole::Paused && one.ago < SILENT;
    seen.vacant_for.is_some() && seen.servers.iter().any(is_paused)
}

fn usage(options: StorageOptions) -> Result<ExitCode, Failure> {
    let used = client(options)?.usage()?;
    let hours = |ms: u64| format!("{:.4} h", ms as f64 / 3_600_000.0);
    let memory = |mib_s: u64| format!("{:.4} GiB h", mib_s as f64 / 1024.0 / 3600.0);
    let rows = [
        ("servers that had the database", hours(used.writer_ms)),
        ("servers that read it", hours(used.reader_ms)),
        ("paused servers", hours(used.paused_ms)),
        ("processors", hours(used.cpu_ms)),
        ("memory of servers, while they served", memory(used.memory_mib_s)),
        ("memory that servers share", memory(used.shared_mib_s)),
    ];
    let table = rows.map(|(what, much)| vec![what.to_owned(), much]);
    print_aligned(&table);
    Ok(ExitCode::SUCCESS)
}

/// A row for each server, under a head.
pub fn table(seen: &Membership) -> Vec<Vec<String>> {
    let head = [
        "server", "address", "role", "start", "position", "behind", "sessions", "heard",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut servers: Vec<&ServerSeen> = seen.servers.iter().collect();
    servers.sort_by(|a, b| a.server.name.cmp(&b.server.name));
    let end = seen.servers.iter().map(|seen| seen.server.position.raw()).max();
    rows.extend(servers.iter().map(|one| row(seen, one, end.unwrap_or(0))));
    rows
}

fn row(all: &Membership, seen: &ServerSeen, end: u64) -> Vec<String> {
    let server = &seen.server;
    let heard = match seen.ago < SILENT {
        true => format!("{} ms ago", seen.ago.0 / 1_000_000),
        false => format!("silent for {} s", seen.ago.0 / 1_000_000_000),
    };
    vec![
        server.name.clone(),
        server.address.clone(),
        role(all, server).to_owned(),
        match server.epoch {
            0 => "-".into(),
            epoch => epoch.to_string(),
        },
        server.position.raw().to_string(),
        format!("{} B", end.saturating_sub(server.position.raw())),
        server.sessions.to_string(),
        heard,
    ]
}

fn role(all: &Membership, server: &Server) -> &'static str {
    match server.role {
        ServerRole::Writer if server.epoch == all.epoch => "writer",
        ServerRole::Writer => "former writer",
        ServerRole::Reader if server.may_write => "reader, may write",
        ServerRole::Reader => "reader",
        ServerRole::Opening => "opening",
        ServerRole::Gone => "stopped",
        ServerRole::Paused => "paused",
    }
}

fn switch(arguments: SwitchArguments) -> Result<ExitCode, Failure> {
    let client = client(arguments.storage)?;
    let before = client.members()?;
    let target = target(&before, arguments.to.as_deref())?;
    let begun = Instant::now();
    let client = membership::words(client);
    client.switch(target.id)?;
    while begun.elapsed() < SWITCH {
        if let Ok(seen) = client.members()
            && let Some(writer) = seen.writer().filter(|_| seen.epoch > before.epoch)
            && writer.server.role == ServerRole::Writer
        {
            let (name, ms) = (&writer.server.name, begun.elapsed().as_millis());
            say!("{name} has the database, as start {}: {ms} ms", seen.epoch);
            return Ok(match writer.server.id == target.id {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            });
        }
        std::thread::sleep(TURN);
    }
    Err(format!(
        "{} has not taken the database within {} s",
        target.name,
        SWITCH.as_secs()
    )
    .into())
}

fn target(seen: &Membership, wanted: Option<&str>) -> Result<Server, Failure> {
    let candidates = || {
        let readers = seen.servers.iter().filter(|one| one.server.role == ServerRole::Reader);
        readers.filter(|one| one.server.may_write && one.ago < SILENT)
    };
    let found = match wanted {
        Some(name) => {
            let is_meant = |one: &&ServerSeen| one.server.name == name || one.server.address == name;
            let found = seen.servers.iter().find(is_meant);
            return found
                .map(|one| one.server.clone())
                .ok_or_else(|| format!("there is no server \"{name}\": see `cenote cluster status`").into());
        }
        None => candidates().max_by_key(|one| one.server.position),
    };
    let none = "no server could take the database: they are to be started with --role auto, and not paused";
    found.map(|one| one.server.clone()).ok_or_else(|| none.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Lsn;
    use cenote_storage_node::Demanded;

    fn server(id: u128, role: ServerRole, position: u64) -> ServerSeen {
        ServerSeen {
            server: Server {
                id,
                name: format!("s{id}"),
                address: format!("10.0.0.{id}:5433"),
                role,
                epoch: if role == ServerRole::Writer { 3 } else { 0 },
                position: Lsn::from_raw(position),
                may_write: id != 4,
                sessions: 2,
            },
            ago: Nanos::from_millis(40),
        }
    }

    #[test]
    fn a_switch_goes_to_the_one_that_is_named_or_to_the_furthest_that_may_write() {
        let seen = Membership {
            epoch: 3,
            term: 1,
            has_database: true,
            database: 9,
            vacant_for: None,
            listens_for: Nanos::from_secs(9),
            switch_to: 0,
            demanded: Demanded::default(),
            servers: vec![
                server(1, ServerRole::Writer, 900),
                server(2, ServerRole::Reader, 700),
                server(3, ServerRole::Reader, 800),
                server(4, ServerRole::Reader, 899),
            ],
        };
        assert_eq!(target(&seen, None).unwrap().id, 3);
        assert_eq!(target(&seen, Some("10.0.0.2:5433")).unwrap().id, 2);
        assert_eq!(target(&seen, Some("s4")).unwrap().id, 4, "nodes refuse it by name");
        assert!(target(&seen, Some("s9")).is_err());
        let rows = table(&seen);
        assert_eq!(rows.len(), 5);
        assert_eq!((rows[1][2].as_str(), rows[4][5].as_str()), ("writer", "1 B"));
    }
}
