//! Processor time of a server: of its process and the processes under it by their clocks, in nanoseconds; of those that
//! have ended by `/proc`, in hundredths of a second.

use crate::{Error, Result};
use nix::time::ClockId;
use nix::unistd::Pid;
use std::collections::HashMap;

/// What `/proc` says of a process, in ticks.
struct Used {
    own: u64,
    /// Of its children that have ended and were waited for.
    ended: u64,
}

/// Seconds of processor time that the process `pid` and all processes under it have used, in user and in kernel mode.
/// PostgreSQL's backends are children of its postmaster; one that has ended is in its parent's sum.
///
/// # Errors
/// [`Error::Refused`] if there is no such process.
pub fn seconds(pid: u32) -> Result<f64> {
    let (ids, used) = family(pid)?;
    Ok(ids.iter().filter_map(|id| Some(of_process(*id, used.get(id)?))).sum())
}

fn of_process(id: u32, used: &Used) -> f64 {
    let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    let own = by_clock(id).unwrap_or(used.own as f64 * tick);
    own + used.ended as f64 * tick
}

/// By the process's own clock, its ended threads included. None: it has ended, or may not be asked.
fn by_clock(id: u32) -> Option<f64> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(id).ok()?)).ok()?;
    let time = clock.now().ok()?;
    Some(time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9)
}

/// The process `pid` and all processes under it.
///
/// # Errors
/// [`Error::Refused`] if there is no such process.
pub fn tree(pid: u32) -> Result<Vec<u32>> {
    Ok(family(pid)?.0)
}

/// A process and all under it; and what all processes have used.
fn family(pid: u32) -> Result<(Vec<u32>, HashMap<u32, Used>)> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut used_by = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that has ended since is in its parent's sum.
        let text = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some((parent, used)) = parse(&text) {
            children.entry(parent).or_default().push(id);
            used_by.insert(id, used);
        }
    }
    if !used_by.contains_key(&pid) {
        return Err(Error::Refused(format!("there is no process {pid}")));
    }
    let (mut all, mut open) = (Vec::new(), vec![pid]);
    while let Some(id) = open.pop() {
        all.push(id);
        open.extend(children.remove(&id).unwrap_or_default());
    }
    Ok((all, used_by))
}

/// The parent, and what the process and its ended children have used: fields 4 and 14 to 17, behind the name in
/// brackets (which may have brackets and spaces itself).
fn parse(stat: &str) -> Option<(u32, Used)> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    let used = Used {
        own: field(14)? + field(15)?,
        ended: field(16)? + field(17)?,
    };
    Some((field(4)? as u32, used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_line_of_proc_is_read_behind_the_name() {
        let line = "42 (a (b) c) S 7 42 42 0 -1 4194304 100 0 0 0 11 22 3 4 20 0 1 0 5 6 7";
        let read = |line| parse(line).map(|(parent, used)| (parent, used.own, used.ended));
        assert_eq!(read(line), Some((7, 33, 7)));
        assert_eq!(read(""), None);
    }

    #[test]
    fn work_counts_and_so_does_that_of_children() {
        let own = std::process::id();
        let before = seconds(own).expect("this process");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(3) {}
        let between = seconds(own).expect("this process");
        assert!(between > before, "{before} {between}");
        let mut shell = std::process::Command::new("sh");
        let child = shell.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
        assert!(child.status().expect("a shell").success());
        assert!(seconds(own).expect("this process") > between);
        assert!(seconds(u32::MAX).is_err());
    }
}
