//! A server whose page accesses are traced while a load runs: `CENOTE TRACE`.

use crate::oltp::connect;
use crate::server::{CenoteOptions, RegionFile, Server, cenote_program, free_port};
use crate::{IoContext, Result};
use postgres::Client;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A server of its own, on one processor: a query runs in one thread there. Dropped, it is ended and gone.
pub struct Traced {
    _server: Server,
    _data: TempDir,
    url: String,
    client: Client,
}

impl Traced {
    /// Starts it, with private memory for so many mebibytes of pages. `program`: Cenote's; none: the one beside this.
    ///
    /// # Errors
    /// [`crate::Error::Server`] if it cannot be started; [`crate::Error::Sql`] if it refuses the client.
    pub fn start(program: Option<&Path>, memory_mib: u64) -> Result<Traced> {
        let data = tempfile::tempdir().context("making a data directory")?;
        let options = CenoteOptions {
            program: program.map_or_else(cenote_program, |path| Ok(path.into()))?,
            data: data.path().join("data"),
            memory: "dram".into(),
            memory_size: format!("{memory_mib}MiB"),
            port: free_port()?,
            survive: "process".into(),
            region: RegionFile::new(),
        };
        let server = Server::cenote_by(on_one_processor(&options.program)?, &options, &[])?;
        let url = format!("postgres://cenote@127.0.0.1:{}/cenote", server.port);
        let client = connect(&url)?;
        Ok(Traced {
            _server: server,
            _data: data,
            url,
            client,
        })
    }

    /// For clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client of it.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// From here on what is asked for goes to `file`, which is not there yet.
    ///
    /// # Errors
    /// [`crate::Error::Sql`] if the server refuses it.
    pub fn begin(&mut self, file: &Path) -> Result<()> {
        let path = std::path::absolute(file).context("the trace's path")?;
        let path = path.display().to_string().replace('\'', "''");
        Ok(self.client.batch_execute(&format!("CENOTE TRACE '{path}'"))?)
    }

    /// A part ends.
    ///
    /// # Errors
    /// As of [`Traced::begin`].
    pub fn mark(&mut self, name: &str) -> Result<()> {
        Ok(self.client.batch_execute(&format!("CENOTE TRACE MARK '{name}'"))?)
    }

    /// The trace ends.
    ///
    /// # Errors
    /// [`crate::Error::Sql`] if it could not be written whole.
    pub fn end(&mut self) -> Result<()> {
        Ok(self.client.batch_execute("CENOTE TRACE END")?)
    }
}

/// A command that runs a program on the first of the processors that this process may use.
fn on_one_processor(program: &Path) -> Result<Command> {
    let allowed = sched_getaffinity(None).map_err(std::io::Error::from);
    let allowed = allowed.context("asking for processors")?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap_or(0);
    let mut command = Command::new("taskset");
    command.arg("-c").arg(first.to_string()).arg(program);
    Ok(command)
}
