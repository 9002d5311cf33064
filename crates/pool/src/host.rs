//! Which processes of this machine have a file mapped, and how to end them. What a memory node needs to know before it
//! gives memory to the next: over load and store nothing else stops a process that wakes up in the middle of a copy.

mod ranges;

pub(crate) use ranges::users_in;
pub use ranges::{RangeHost, Sight};

use cenote_base::rt::{self, Nanos, fs};
use cenote_base::{Error, Result};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const TURN: Nanos = Nanos::from_millis(2);

/// See the module.
pub trait Host: Send + Sync {
    /// The processes that have `file` mapped or locked, as the machine names them.
    ///
    /// # Errors
    /// Those of asking.
    fn holders(&self, file: &Path) -> Result<Vec<String>>;

    /// Ends them, and returns when that is confirmed. This process is not ended: it is waited for.
    ///
    /// # Errors
    /// [`Error::Busy`] if a process maps it still after `timeout`.
    fn end_holders(&self, file: &Path, timeout: Nanos) -> Result<()>;

    /// Ends the processes that have `file` mapped, but those of `kept` and this one, and returns when that is
    /// confirmed.
    ///
    /// # Errors
    /// As [`Host::end_holders`].
    fn end_others(&self, file: &Path, kept: &[Process], timeout: Nanos) -> Result<()>;

    /// Whether a process has not ended wholly yet.
    fn is_there(&self, process: Process) -> bool;

    /// Whether what a process maps can be seen: else it cannot be told whether it uses memory.
    fn is_seen(&self, process: Process) -> bool;

    /// Ends a process if it has one of `files` mapped, and returns when it has none of them: because it never had, or
    /// is not there any more.
    ///
    /// # Errors
    /// As [`Host::end_holders`]; [`Error::Busy`] too if that is not seen.
    fn end_process(&self, process: Process, files: &[PathBuf], timeout: Nanos) -> Result<()>;
}

/// A process of this machine, told from a later one of the same number by when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it began, in the kernel's ticks since the machine did.
    pub start: u64,
}

impl Process {
    /// This one. A simulated process has no number of its own: the machine's would make runs of a seed differ.
    pub fn this() -> Self {
        let pid = if rt::simulated() { 1 } else { own_pid() };
        let start = Stat::of(pid).map_or(0, |stat| stat.start);
        Self { pid, start }
    }

    /// What its threads are known by in parts that it maps.
    pub fn mark(self) -> u64 {
        ((self.pid as u64) << 40) ^ (self.start << 2) | 2
    }
}

/// What this machine is called in its network; `None` where that says nothing.
pub fn machine_name() -> Option<String> {
    if rt::simulated() {
        return None;
    }
    let name = read_all(Path::new("/proc/sys/kernel/hostname")).ok()?;
    let name = String::from_utf8_lossy(&name).trim().to_owned();
    (!name.is_empty()).then_some(name)
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// What `/proc/PID/stat` says.
struct Stat {
    start: u64,
    /// It has ended, with all of its threads, and waits for its parent.
    is_over: bool,
}

impl Stat {
    /// `None` if there is no such process, or it cannot be seen.
    fn of(pid: i32) -> Option<Self> {
        Self::read(pid).ok().flatten()
    }

    fn read(pid: i32) -> std::io::Result<Option<Self>> {
        let text = shown(read_all(Path::new(&format!("/proc/{pid}/stat"))))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The name, in parentheses, may hold anything.
        let text = String::from_utf8_lossy(text);
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // Fields 3 (state), 20 (threads) and 22 (start) of proc_pid_stat(5).
        let is_ended = matches!(*fields.first()?, "Z" | "X");
        Some(Self {
            start: number(19)?,
            is_over: is_ended && number(17)? <= 1,
        })
    }
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

    fn end_holders(&self, file: &Path, timeout: Nanos) -> Result<()> {
        let until = rt::now().raw().saturating_add(timeout.raw());
        loop {
            let pids = mapping(file)?;
            for pid in pids.iter().filter(|pid| **pid != own_pid()) {
                end(*pid, file)?;
            }
            if pids.is_empty() && !is_locked(file)? {
                return Ok(());
            }
            if rt::now().raw() > until {
                let holders = self.holders(file)?.join(", ");
                return Err(Error::Busy(format!("{}: {holders} does not end", file.display())));
            }
            rt::sleep(TURN);
        }
    }

    fn end_others(&self, file: &Path, kept: &[Process], timeout: Nanos) -> Result<()> {
        let is_other =
            |pid: &i32| *pid != own_pid() && !kept.iter().any(|kept| kept.pid == *pid && self.is_there(*kept));
        let others: Vec<i32> = mapping(file)?.into_iter().filter(is_other).collect();
        let files = [file.to_path_buf()];
        for pid in others {
            let stat = Stat::read(pid).map_err(|error| Error::io(format!("looking at process {pid}"), error))?;
            if let Some(stat) = stat {
                self.end_process(Process { pid, start: stat.start }, &files, timeout)?;
            }
        }
        Ok(())
    }

    fn is_there(&self, process: Process) -> bool {
        let is_it = |stat: Stat| stat.start == process.start && !stat.is_over;
        // What cannot be read now may be there.
        Stat::read(process.pid).map_or(true, |stat| stat.is_some_and(is_it))
    }

    fn is_seen(&self, process: Process) -> bool {
        let maps = read_all(Path::new(&format!("/proc/{}/maps", process.pid)));
        !maps.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    }

    fn end_process(&self, process: Process, files: &[PathBuf], timeout: Nanos) -> Result<()> {
        if self.is_there(process) && !self.is_seen(process) {
            let pid = process.pid;
            return Err(Error::Busy(format!(
                "process {pid} hides what it maps: what it may use is kept until it has ended"
            )));
        }
        let until = rt::now().raw().saturating_add(timeout.raw());
        let mut mapped = None;
        for file in files {
            if maps(file, process.pid)? {
                mapped = Some(file);
                break;
            }
        }
        let Some(file) = mapped.filter(|_| self.is_there(process)) else {
            return Ok(());
        };
        if process.pid == own_pid() {
            return Err(Error::Busy(format!("{}: this process does not end", file.display())));
        }
        // Not "maps nothing": a process whose first thread has ended shows no mapping, whatever the others do.
        while self.is_there(process) {
            end(process.pid, file)?;
            if rt::now().raw() > until {
                return Err(Error::Busy(format!(
                    "{}: process {} does not end",
                    file.display(),
                    process.pid
                )));
            }
            rt::sleep(TURN);
        }
        Ok(())
    }
}

/// Processes whose memory map names the file. Those of other users are not seen: they cannot open it either (mode
/// 0600).
fn mapping(file: &Path) -> Result<Vec<i32>> {
    let Some(file) = Target::of(file)? else {
        return Ok(Vec::new());
    };
    let pids = fs::list("/proc").map_err(|error| Error::io("listing processes", error))?;
    let mut found = Vec::new();
    for pid in pids.iter().filter_map(|name| name.parse().ok()) {
        if file.is_mapped_by(pid)? {
            found.push(pid);
        }
    }
    Ok(found)
}

fn maps(file: &Path, pid: i32) -> Result<bool> {
    Target::of(file)?.map_or(Ok(false), |file| file.is_mapped_by(pid))
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

    fn is_mapped_by(&self, pid: i32) -> Result<bool> {
        Ok(maps_of(pid)?.iter().any(|maps| self.is_in(maps)))
    }

    /// Whether one of the lines (addresses, rights, offset, device, inode, path) names it.
    fn is_in(&self, maps: &[u8]) -> bool {
        let is_it = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(3);
            fields.next() == Some(&*self.device) && fields.next() == Some(&*self.inode)
        };
        String::from_utf8_lossy(maps).lines().any(is_it)
    }
}

/// The memory map of a process: once, or if its first thread has ended as each of the others shows it. None if it has
/// ended, or is another user's.
///
/// # Errors
/// Those of reading it, when that does not say that there is none: it may map anything.
fn maps_of(pid: i32) -> Result<Vec<Vec<u8>>> {
    let unread = |error| Error::io(format!("reading what process {pid} maps"), error);
    let maps = |path: String| shown(read_all(Path::new(&path))).map_err(unread);
    let of_all = maps(format!("/proc/{pid}/maps"))?;
    if !of_all.is_empty() {
        return Ok(vec![of_all]);
    }
    let tasks = shown(fs::list(format!("/proc/{pid}/task"))).map_err(unread)?;
    tasks
        .iter()
        .map(|task| maps(format!("/proc/{pid}/task/{task}/maps")))
        .collect()
}

/// What `/proc` shows of a process: nothing if it has ended, or is another user's, and not when looking fails.
fn shown<T: Default>(found: std::io::Result<T>) -> std::io::Result<T> {
    use std::io::ErrorKind;
    let ended = Some(rustix::io::Errno::SRCH.raw_os_error());
    match found {
        Err(error) if error.raw_os_error() == ended => Ok(T::default()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(T::default()),
        found => found,
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
    if !maps(file, pid)? {
        return Ok(());
    }
    match rustix::process::pidfd_send_signal(&descriptor, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Error::io(doing(), error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// A table of files that is full, or memory that is short, does not say that a process maps nothing.
    #[test]
    fn what_cannot_be_read_is_not_nothing() {
        let looked = |errno: Errno| shown::<Vec<u8>>(Err(errno.into()));
        for errno in [Errno::NOENT, Errno::SRCH, Errno::ACCESS, Errno::PERM] {
            assert_eq!(looked(errno).expect("nothing is there"), b"");
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            let error = looked(errno).expect_err("not known");
            assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
        }
        assert!(maps_of(own_pid()).expect("its own").iter().any(|maps| !maps.is_empty()));
        assert!(maps_of(i32::MAX).expect("no such process").is_empty());
    }
}
