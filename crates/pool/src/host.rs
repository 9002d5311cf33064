//! Who on this machine has a file mapped, and how to end that. What a memory node needs to know before it gives memory to the next: over load
//! and store nothing else stops a process that wakes up in the middle of a copy.

use cenote_base::rt::{self, Nanos, fs};
use cenote_base::{Error, Result};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::path::Path;

const TURN: Nanos = Nanos::from_millis(2);

/// See the module.
pub trait Host: Send + Sync {
    /// The processes that have `file` mapped or locked, as the machine names them.
    ///
    /// # Errors
    /// Those of asking.
    fn holders(&self, file: &Path) -> Result<Vec<String>>;

    /// Ends them, and returns when that is confirmed.
    ///
    /// # Errors
    /// [`Error::Busy`] if somebody is there still after `patience`.
    fn end_holders(&self, file: &Path, patience: Nanos) -> Result<()>;
}

/// This machine: processes by number, found in `/proc`, ended by SIGKILL.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine;

impl Host for Machine {
    fn holders(&self, file: &Path) -> Result<Vec<String>> {
        let mut found: Vec<String> = mapping(file)?.into_iter().map(|pid| format!("process {pid}")).collect();
        if found.is_empty() && is_locked(file)? {
            // It has the file open and maps it in a moment, or is looking at it.
            found.push("a process that has it open".into());
        }
        Ok(found)
    }

    fn end_holders(&self, file: &Path, patience: Nanos) -> Result<()> {
        let until = rt::now().raw().saturating_add(patience.raw());
        loop {
            let pids = mapping(file)?;
            for pid in &pids {
                end(*pid, file)?;
            }
            if pids.is_empty() && !is_locked(file)? {
                return Ok(());
            }
            if rt::now().raw() > until {
                let who = self.holders(file)?.join(", ");
                return Err(Error::Busy(format!("{}: {who} does not end", file.display())));
            }
            rt::sleep(TURN);
        }
    }
}

/// Processes whose memory map names the file. Those of other users are not seen: they cannot open it either (mode 0600).
fn mapping(file: &Path) -> Result<Vec<i32>> {
    let Some(file) = Target::of(file)? else {
        return Ok(Vec::new());
    };
    let pids = fs::list("/proc").map_err(|error| Error::io("listing processes", error))?;
    let pids = pids.iter().filter_map(|name| name.parse().ok());
    Ok(pids.filter(|pid| file.is_mapped_by(*pid)).collect())
}

/// A file, as `/proc` names it: by device and number, since a process in a container sees another path.
struct Target {
    device: String,
    inode: String,
}

impl Target {
    /// `None` if there is no such file.
    fn of(file: &Path) -> Result<Option<Self>> {
        let stat = match rustix::fs::stat(file) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Error::io(format!("looking at {}", file.display()), error.into())),
        };
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Ok(Some(Self {
            device: format!("{major:02x}:{minor:02x}"),
            inode: stat.st_ino.to_string(),
        }))
    }

    fn is_mapped_by(&self, pid: i32) -> bool {
        // An error: it ended meanwhile, or is another user's.
        let text = read_all(Path::new(&format!("/proc/{pid}/maps"))).unwrap_or_default();
        // Addresses, rights, offset, device, inode, path.
        let is_it = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(3);
            fields.next() == Some(&*self.device) && fields.next() == Some(&*self.inode)
        };
        String::from_utf8_lossy(&text).lines().any(is_it)
    }
}

/// Files of `/proc` do not know how long they are.
fn read_all(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = fs::open(path, fs::OpenOptions::READ)?;
    let mut all = Vec::new();
    let mut some = vec![0; 64 << 10];
    loop {
        match file.read_at(&mut some, all.len() as u64)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&some[..n]),
        }
    }
}

/// A region's file is locked by the process that has it open.
fn is_locked(file: &Path) -> Result<bool> {
    match fs::open(file, fs::OpenOptions::WRITE) {
        Ok(open) => Ok(!open
            .lock_exclusive()
            .map_err(|error| Error::io(format!("locking {}", file.display()), error))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io(format!("opening {}", file.display()), error)),
    }
}

/// Kills a process that maps the file, and no other that was given its number meanwhile.
fn end(pid: i32, file: &Path) -> Result<()> {
    let Some(number) = Pid::from_raw(pid) else {
        return Ok(());
    };
    let doing = || format!("ending process {pid}, whose lease on {} lapsed", file.display());
    let descriptor = match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(Error::io(doing(), error.into())),
    };
    if !Target::of(file)?.is_some_and(|file| file.is_mapped_by(pid)) {
        return Ok(());
    }
    match rustix::process::pidfd_send_signal(&descriptor, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Error::io(doing(), error.into())),
    }
}
