//! A host of the demonstration: processes with process numbers and a `/proc` of their own, so that an agent sees its
//! own host's alone, and that end together. Loopback is shared, by which the load comes.

use crate::{Error, IoContext, Result};
use cenote_testkit::hosts::child_of;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const NAMESPACES: [&str; 5] = ["-p", "-m", "--fork", "--mount-proc", "--kill-child=SIGKILL"];

/// See the module. Dropped, it is lost.
pub struct Host {
    keeper: Child,
    /// Its first process, as this one numbers it.
    first: u32,
}

impl Host {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::Refused`] without the right to make namespaces; [`Error::Io`].
    pub fn new() -> Result<Host> {
        let mut keeper = Command::new("unshare")
            .args(NAMESPACES)
            .args(["sh", "-c", "echo up && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting unshare")?;
        let mut line = String::new();
        let output = keeper.stdout.take().expect("a pipe");
        BufReader::new(output)
            .read_line(&mut line)
            .context("reading what unshare says")?;
        let first = child_of(keeper.id()).filter(|_| line == "up\n");
        let host = Host {
            keeper,
            first: first.unwrap_or(0),
        };
        match host.first {
            0 => Err(Error::Refused("no right to make hosts of namespaces (unshare)".into())),
            _ => Ok(host),
        }
    }

    /// Runs a program there.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        let first = self.first.to_string();
        command.args(["-t", &first, "-p", "-m", "--"]).arg(program);
        command
    }

    /// All of its processes end at once.
    pub fn lose(&mut self) {
        // Both fail only if it is lost already.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.lose();
    }
}
