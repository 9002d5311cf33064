//! How commands talk to a running server: where it listens, and its administration statements.

use super::{ConnectOptions, Failure};
use crate::config::{RunOptions, Settings};
use postgres::{Client, NoTls, SimpleQueryMessage};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Written to the data directory by a server that serves it: process id and address, a line each.
const ADDRESS_FILE: &str = "cenote.address";
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Says in the data directory where its server listens.
///
/// # Errors
/// Those of writing the file.
pub fn publish_address(data: &Path, address: SocketAddr) -> std::io::Result<()> {
    let text = format!("{}\n{address}\n", std::process::id());
    std::fs::write(data.join(ADDRESS_FILE), text)
}

/// Takes it back.
pub fn withdraw_address(data: &Path) {
    std::fs::remove_file(data.join(ADDRESS_FILE)).ok();
}

/// Where the server of a data directory listens, if one runs.
pub fn find_address(data: &Path) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(data.join(ADDRESS_FILE)).ok()?;
    let (pid, address) = text.trim_end().split_once('\n')?;
    Path::new("/proc").join(pid).exists().then(|| address.parse().ok())?
}

/// A server to talk to.
pub struct Connection {
    client: Client,
    /// Where it listens.
    pub address: String,
    /// Process id, where the data directory told.
    pub data: PathBuf,
}

/// Rows of text with their columns' names.
pub struct Table {
    columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A field by the name of its column; empty if there is none.
    pub fn field<'a>(&self, row: &'a [String], column: &str) -> &'a str {
        let index = self.columns.iter().position(|name| name == column);
        index.and_then(|index| row.get(index)).map_or("", String::as_str)
    }
}

/// The settings that decide which database a command means.
///
/// # Errors
/// The configuration cannot be used.
pub fn settings(options: &ConnectOptions) -> Result<Settings, Failure> {
    Ok(Settings::resolve(RunOptions {
        data: options.data.clone(),
        ..RunOptions::default()
    })?)
}

/// Connects to the server that the options mean; `None` if no server runs on the data directory.
///
/// # Errors
/// The server refuses the client, or the address that was given does not answer.
pub fn connect(options: &ConnectOptions) -> Result<Option<Connection>, Failure> {
    let data = settings(options)?.data;
    let address = match &options.connect {
        Some(address) => address.clone(),
        None => match find_address(&data) {
            Some(address) => reachable(address).to_string(),
            None => return Ok(None),
        },
    };
    let (host, port) = address
        .rsplit_once(':')
        .ok_or("--connect needs ADDRESS:PORT, such as 127.0.0.1:5433")?;
    let port = port
        .parse()
        .map_err(|_| format!("--connect: {port:?} is not a port; give ADDRESS:PORT, such as 127.0.0.1:5433"))?;
    let mut config = postgres::Config::new();
    config
        .host(host.trim_matches(['[', ']']))
        .port(port)
        .user(&options.user)
        .dbname(crate::server::startup::DATABASE);
    config.application_name("cenote").connect_timeout(CONNECT_TIME_MAX);
    if let Ok(password) = std::env::var("PGPASSWORD") {
        config.password(password);
    }
    match config.connect(NoTls) {
        Ok(client) => Ok(Some(Connection { client, address, data })),
        // A killed server's file, and its process id is another's by now. If it does run, opening the directory says
        // so.
        Err(error) if options.connect.is_none() && is_refused(&error) => Ok(None),
        Err(error) => Err(explain(&address, &error).into()),
    }
}

/// A server that listens everywhere is reached on the loopback interface.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], v6.port())),
        other => other,
    }
}

fn is_refused(error: &postgres::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::ConnectionRefused)
}

fn explain(address: &str, error: &postgres::Error) -> String {
    let hint = match error.code().map(|code| code.code()) {
        Some("28P01") => ". Give the user with --user and the password in PGPASSWORD",
        _ if error.to_string().contains("password missing") => {
            ". Give the user with --user and the password in PGPASSWORD"
        }
        _ => "",
    };
    format!("cannot connect to {address}: {}{hint}", message(error))
}

/// What the server said, else what the connection said.
fn message(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => error.to_string(),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

impl Connection {
    /// Runs an administration statement.
    ///
    /// # Errors
    /// The server's error.
    pub fn ask(&mut self, statement: &str) -> Result<Table, Failure> {
        let messages = self.client.simple_query(statement).map_err(|error| message(&error))?;
        let mut table = Table {
            columns: Vec::new(),
            rows: Vec::new(),
        };
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(columns) => {
                    table.columns = columns.iter().map(|column| column.name().to_owned()).collect();
                }
                SimpleQueryMessage::Row(row) => {
                    let field = |index| row.get(index).unwrap_or_default().to_owned();
                    table.rows.push((0..row.len()).map(field).collect());
                }
                _ => {}
            }
        }
        Ok(table)
    }
}
