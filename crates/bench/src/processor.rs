//! Processor time of a server by `/proc`: of its process, the processes under it, and those of them that have ended.

use crate::{Error, Result};
use std::collections::HashMap;

/// Seconds of processor time that the process `pid` and all processes under it have used, in user and in kernel mode.
/// PostgreSQL's backends are children of its postmaster; one that has ended is in its parent's sum.
///
/// # Errors
/// [`Error::Refused`] if there is no such process.
pub fn seconds(pid: u32) -> Result<f64> {
    let (ids, ticks) = family(pid)?;
    let sum: u64 = ids.iter().filter_map(|id| ticks.get(id)).sum();
    Ok(sum as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The process `pid` and all processes under it.
///
/// # Errors
/// [`Error::Refused`] if there is no such process.
pub fn tree(pid: u32) -> Result<Vec<u32>> {
    Ok(family(pid)?.0)
}

/// A process and all under it; and the ticks of all processes.
fn family(pid: u32) -> Result<(Vec<u32>, HashMap<u32, u64>)> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut ticks = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process that has ended since is in its parent's sum.
        let text = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some((parent, used)) = parse(&text) {
            children.entry(parent).or_default().push(id);
            ticks.insert(id, used);
        }
    }
    if !ticks.contains_key(&pid) {
        return Err(Error::Refused(format!("there is no process {pid}")));
    }
    let (mut all, mut open) = (Vec::new(), vec![pid]);
    while let Some(id) = open.pop() {
        all.push(id);
        open.extend(children.remove(&id).unwrap_or_default());
    }
    Ok((all, ticks))
}

/// The parent, and the ticks of the process and of its ended children: fields 4 and 14 to 17, behind the name in
/// brackets (which may have brackets and spaces itself).
fn parse(stat: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    let ticks = field(14)? + field(15)? + field(16)? + field(17)?;
    Some((field(4)? as u32, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_line_of_proc_is_read_behind_the_name() {
        let line = "42 (a (b) c) S 7 42 42 0 -1 4194304 100 0 0 0 11 22 3 4 20 0 1 0 5 6 7";
        assert_eq!(parse(line), Some((7, 40)));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn work_counts_and_so_does_that_of_children() {
        let own = std::process::id();
        let before = seconds(own).expect("this process");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(60) {}
        let between = seconds(own).expect("this process");
        assert!(between > before, "{before} {between}");
        let mut shell = std::process::Command::new("sh");
        let child = shell.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
        assert!(child.status().expect("a shell").success());
        assert!(seconds(own).expect("this process") > between);
        assert!(seconds(u32::MAX).is_err());
    }
}
