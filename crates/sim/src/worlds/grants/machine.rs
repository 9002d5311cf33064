//! The machine of memory nodes and holders, in place of `/proc` and signals: which process maps which file, and how
//! that is ended.
//!
//! A holder maps a file by having it open ([`Machines::map`](super::machines::Machines::map)). A killed process maps nothing. It may take some turns
//! until a signal has its effect, and of a process that hangs in the kernel ([`Machines::hang`](super::machines::Machines::hang)) much longer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_base::rt::{self, Nanos, fs};
use cenote_base::{Error, Result};
use cenote_pool::host::{Host, Process as Named};

use super::stage::Stage;
use crate::clock;

const TURN: Nanos = Nanos::from_millis(2);

/// What a memory node asks about its machine.
pub(super) struct Machine(pub(super) Arc<Stage>);

/// As the file of a region is: by the process that has it open.
fn is_locked(file: &Path) -> Result<bool> {
    let failed = |error| Error::io(format!("locking {}", file.display()), error);
    match fs::open(file, fs::OpenOptions::WRITE) {
        Ok(open) => open.lock_exclusive().map(|locked| !locked).map_err(failed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Signals them; one in a while has its effect later.
fn signal(stage: &Stage, processes: &[u32]) {
    let ends = stage.machine().ends(processes, clock::now());
    for process in ends.iter().filter(|process| process.id() != clock::process()) {
        if !rt::random().is_multiple_of(4) {
            stage.shared.count("deaths: fenced");
            stage.shared.step(format!("process {} is fenced", process.id()));
            process.kill();
        }
    }
}

/// Signals those that are left, again and again, until there are none.
pub(super) fn end(stage: &Stage, what: &str, timeout: Nanos, left: impl Fn() -> Result<Vec<u32>>) -> Result<()> {
    let until = clock::now() + timeout;
    loop {
        let processes = left()?;
        if processes.is_empty() {
            return Ok(());
        }
        signal(stage, &processes);
        if clock::now() > until {
            return Err(Error::Busy(format!("{what}: processes {processes:?} do not end")));
        }
        rt::sleep(TURN);
    }
}

impl Machine {
    fn mapping(&self, file: &Path) -> Vec<u32> {
        self.0.machine().mapping(file)
    }

    fn end(&self, what: &str, timeout: Nanos, left: impl Fn() -> Result<Vec<u32>>) -> Result<()> {
        end(&self.0, what, timeout, left)
    }
}

fn number(process: Named) -> u32 {
    process.pid as u32
}

impl Host for Machine {
    fn holders(&self, file: &Path) -> Result<Vec<String>> {
        let mapping = self.mapping(file);
        let mut found: Vec<String> = mapping.iter().map(|process| format!("process {process}")).collect();
        if found.is_empty() && is_locked(file)? {
            found.push("a process that has it open".into());
        }
        Ok(found)
    }

    fn end_holders(&self, file: &Path, timeout: Nanos) -> Result<()> {
        let until = clock::now() + timeout;
        let name = file.display().to_string();
        self.end(&name, timeout, || Ok(self.mapping(file)))?;
        while is_locked(file)? {
            if clock::now() > until {
                return Err(Error::Busy(format!("{name}: another process has it open")));
            }
            rt::sleep(TURN);
            self.end(&name, timeout, || Ok(self.mapping(file)))?;
        }
        Ok(())
    }

    fn end_others(&self, file: &Path, kept: &[Named], timeout: Nanos) -> Result<()> {
        let is_other = |process: &u32| !kept.iter().any(|kept| number(*kept) == *process);
        self.end(&file.display().to_string(), timeout, || {
            Ok(self.mapping(file).into_iter().filter(is_other).collect())
        })
    }

    fn is_there(&self, process: Named) -> bool {
        self.0.machine().is_running(number(process))
    }

    fn is_seen(&self, _: Named) -> bool {
        true
    }

    fn end_process(&self, process: Named, files: &[PathBuf], timeout: Nanos) -> Result<()> {
        let this = number(process);
        let maps = || {
            let machine = self.0.machine();
            files.iter().any(|file| machine.is_mapped_by(file, this))
        };
        self.end("its memory", timeout, || {
            Ok(maps().then_some(this).into_iter().collect())
        })
    }
}
