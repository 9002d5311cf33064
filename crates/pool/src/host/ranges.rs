//! Which processes of this host map a range of a device that hosts share, and how to end them: what a host's agent
//! needs to know before a range is given to a process of another host.
//!
//! A mapping is known by the device number and inode of its file and by its offset, as `/proc/PID/maps` says them; so a
//! process that maps another range of the same file is left alone. What is seen is the PID namespace of the agent and
//! those below it: [`Sight`] says which that is, for the manager to tell this host from another of the same name.

use super::{Machine, Process, Stat, Target, maps_of, read_all};
use cenote_base::rt::{self, Nanos, fs};
use cenote_base::{Error, Result};
use cenote_fabric::FileRange;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use std::path::Path;

const TURN: Nanos = Nanos::from_millis(2);

/// Which processes an agent sees: those of one boot of a machine, of one PID namespace. Equal ones of two agents mean
/// that they see the same processes; two machines may be equal by chance in either, so nothing more follows from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// The machine's boot, 0 if nothing tells.
    pub boot: u64,
    /// The PID namespace, 0 if nothing tells.
    pub processes: u64,
}

/// See the module.
pub trait RangeHost: Send + Sync {
    /// Which processes it sees.
    fn sight(&self) -> Sight;

    /// What processes have mapped of the device, as the host names them.
    ///
    /// # Errors
    /// Those of asking.
    fn mappings(&self, device: &Path) -> Result<Vec<(String, FileRange)>>;

    /// The processes that have a byte of the range mapped.
    ///
    /// # Errors
    /// Those of asking.
    fn users(&self, device: &Path, range: FileRange) -> Result<Vec<String>> {
        Ok(users_in(&self.mappings(device)?, range))
    }

    /// Whether this process has a byte of the range mapped. It is named as it sees itself, which may be in a PID
    /// namespace below this one.
    ///
    /// # Errors
    /// Those of asking.
    fn is_user(&self, device: &Path, range: FileRange, process: Process) -> Result<bool>;

    /// Ends all users of the range, and returns when none is left.
    ///
    /// # Errors
    /// [`Error::Busy`] if one is left after `timeout`.
    fn end_users(&self, device: &Path, range: FileRange, timeout: Nanos) -> Result<()>;
}

impl RangeHost for Machine {
    fn sight(&self) -> Sight {
        let namespace = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
        Sight {
            boot: cenote_fabric::boot(),
            processes: namespace,
        }
    }

    fn mappings(&self, device: &Path) -> Result<Vec<(String, FileRange)>> {
        let (target, mut found) = (target(device)?, Vec::new());
        for pid in processes()? {
            let ranges = ranges_of(&target, pid)?.into_iter();
            found.extend(ranges.map(|range| (format!("process {pid}"), range)));
        }
        Ok(found)
    }

    fn is_user(&self, device: &Path, range: FileRange, process: Process) -> Result<bool> {
        let is_it = |pid: &i32| own_number(*pid) == Some(process.pid) && began(*pid) == Some(process.start);
        Ok(mapping(device, range)?.iter().any(is_it))
    }

    fn end_users(&self, device: &Path, range: FileRange, timeout: Nanos) -> Result<()> {
        let until = rt::now().raw().saturating_add(timeout.raw());
        loop {
            let pids = mapping(device, range)?;
            if pids.is_empty() {
                return Ok(());
            }
            for pid in &pids {
                end(*pid, device, range)?;
            }
            if rt::now().raw() > until {
                let users = self.users(device, range)?.join(", ");
                return Err(Error::Busy(format!("{}: {users} does not end", device.display())));
            }
            rt::sleep(TURN);
        }
    }
}

fn began(pid: i32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.start)
}

/// The number that a process has in its own PID namespace.
fn own_number(pid: i32) -> Option<i32> {
    let status = read_all(Path::new(&format!("/proc/{pid}/status"))).ok()?;
    let status = String::from_utf8_lossy(&status);
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Each of them once, of those that have a byte of the range.
pub(crate) fn users_in(mappings: &[(String, FileRange)], range: FileRange) -> Vec<String> {
    let of_it = mappings.iter().filter(|(_, mapped)| mapped.overlaps(&range));
    let mut users: Vec<String> = of_it.map(|(user, _)| user.clone()).collect();
    users.dedup();
    users
}

fn target(device: &Path) -> Result<Target> {
    let gone = || {
        Error::io(
            format!("looking at {}", device.display()),
            std::io::ErrorKind::NotFound.into(),
        )
    };
    Target::of(device)?.ok_or_else(gone)
}

fn processes() -> Result<Vec<i32>> {
    let pids = fs::list("/proc").map_err(|error| Error::io("listing processes", error))?;
    Ok(pids.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The processes that map a byte of the range.
fn mapping(device: &Path, range: FileRange) -> Result<Vec<i32>> {
    let target = target(device)?;
    let mut found = Vec::new();
    for pid in processes()? {
        if maps_range(&target, pid, range)? {
            found.push(pid);
        }
    }
    Ok(found)
}

fn maps_range(target: &Target, pid: i32, range: FileRange) -> Result<bool> {
    Ok(ranges_of(target, pid)?.iter().any(|mapped| mapped.overlaps(&range)))
}

/// What a process maps of a file.
fn ranges_of(target: &Target, pid: i32) -> Result<Vec<FileRange>> {
    let mut found = Vec::new();
    for maps in maps_of(pid)? {
        let maps = String::from_utf8_lossy(&maps);
        found.extend(maps.lines().filter_map(|line| range_in(target, line)));
    }
    Ok(found)
}

/// What one line of a memory map (addresses, rights, offset, device, inode, path) has of a file.
fn range_in(target: &Target, line: &str) -> Option<FileRange> {
    let fields: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
    let &[addresses, _, offset, device, inode] = fields.as_slice() else {
        return None;
    };
    let (from, to) = addresses.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    (device == target.device && inode == target.inode).then_some(())?;
    Some(FileRange {
        offset: number(offset)?,
        bytes: number(to)?.checked_sub(number(from)?)?,
    })
}

/// Kills a process that maps the range, and no other that was given its number meanwhile.
fn end(pid: i32, device: &Path, range: FileRange) -> Result<()> {
    let Some(number) = Pid::from_raw(pid) else {
        return Ok(());
    };
    let doing = || format!("ending process {pid}, which maps a range of {}", device.display());
    let descriptor = match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(Error::io(doing(), error.into())),
    };
    let maps_it = Target::of(device)?.map_or(Ok(false), |target| maps_range(&target, pid, range))?;
    if !maps_it {
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
    use cenote_fabric::Foothold;

    fn range(offset: u64, bytes: u64) -> FileRange {
        FileRange { offset, bytes }
    }

    #[test]
    fn a_line_of_a_memory_map_names_a_range() {
        let target = Target {
            device: "00:1a".into(),
            inode: "77".into(),
        };
        let line = "7f00001000-7f00003000 rw-s 00200000 00:1a 77    /dev/shm/a b";
        assert_eq!(range_in(&target, line), Some(range(0x20_0000, 0x2000)));
        for line in [
            "7f00001000-7f00003000 rw-s 00200000 00:1a 78 /x",
            "7f00001000-7f00003000 rw-s 00200000 00:1b 77 /x",
            "7f00003000-7f00001000 rw-s 00200000 00:1a 77 /x",
            "7f00001000 rw-s 00200000 00:1a 77 /x",
            "",
        ] {
            assert_eq!(range_in(&target, line), None, "{line}");
        }
    }

    /// A process is found by the range that it maps, and not by another of the same file.
    #[test]
    fn users_are_told_apart_by_their_ranges() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("device");
        std::fs::File::create(&path)
            .expect("made")
            .set_len(8 << 20)
            .expect("its length");
        let (first, second) = (range(0, 2 << 20), range(2 << 20, 2 << 20));
        let users = |range| Machine.users(&path, range).expect("seen");
        assert_eq!(users(first), Vec::<String>::new());
        let foothold = Foothold::at(&path, Some(second)).expect("mapped");
        let this = Process::this();
        assert_eq!(users(first), Vec::<String>::new());
        assert_eq!(users(second), [format!("process {}", this.pid)]);
        let is_user = |range, process| Machine.is_user(&path, range, process).expect("seen");
        assert!(is_user(second, this) && !is_user(first, this));
        let other = Process {
            start: this.start + 1,
            ..this
        };
        assert!(!is_user(second, other), "another process with this one's number");
        drop(foothold);
        assert_eq!(users(second), Vec::<String>::new());
    }
}
