//! The agent of a host as people run it, and what operators see of a device that hosts share.

use crate::pool::{Daemon, start_manager};
use crate::program::{cenote, output};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn agent(device: &Path, manager: &str, options: &[&str]) -> Command {
    let mut command = cenote(&["host", "--pod", "rack", "--manager", manager, "--device"]);
    command.arg(device).args(options);
    command
}

/// Said once: the manager asks the agent whether it is there.
fn lost(manager: &str, host: &str) -> String {
    let (ok, text) = output(&mut cenote(&["pool", "host-lost", host, "--manager", manager]));
    assert!(ok, "{text}");
    text
}

#[test]
fn an_agent_says_what_it_is_and_what_it_is_not() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = directory.path().join("device");
    let manager = start_manager(directory.path(), "127.0.0.1:0");
    let address = manager.ready.rsplit(' ').next().unwrap();
    let refused = |options: &[&str], what: &str| {
        let (ok, text) = output(&mut agent(&device, address, options));
        assert!(!ok && text.contains(what), "{what}: {text}");
    };
    refused(&[], "No such file");
    refused(&["--size", "1MiB"], "no room for a directory");
    refused(&["--size", "64MiB", "--format"], "cannot be used with");
    let mut first = Daemon::start(agent(&device, address, &["--name", "a", "--size", "64MiB"]));
    assert!(
        first.ready.contains("host a of pod rack, epoch 1, 62MiB"),
        "{}",
        first.ready
    );
    refused(&["--name", "a"], "another agent on this host");
    refused(&["--name", "a", "--format"], "nothing is formatted over it");
    let (ok, status) = output(&mut cenote(&["pool", "status", "--manager", address]));
    assert!(ok && status.contains("62MiB") && status.contains("there"), "{status}");
    assert!(status.contains("can map another tenant's range"), "{status}");
    let (ok, text) = output(&mut cenote(&["pool", "audit", "--manager", address]));
    assert!(ok && text.contains("host a: 0B of 62MiB"), "{text}");
    first.kill();
    assert!(lost(address, "a").contains("host a is lost"));
    let again = Daemon::start(agent(&device, address, &["--name", "a"]));
    assert!(again.ready.contains("epoch 2"), "{}", again.ready);
    let (ok, text) = output(&mut cenote(&["pool", "host-lost", "b", "--manager", address]));
    assert!(!ok && text.contains("no device has a host"), "{text}");
}

/// A blank file is formatted when that is asked for, by one pool alone.
#[test]
fn a_device_belongs_to_one_pool() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = directory.path().join("device");
    std::fs::File::create(&device).unwrap().set_len(16 << 20).unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    let managers = [one, two].map(|directory| start_manager(&directory, "127.0.0.1:0"));
    let addresses = [0, 1].map(|n: usize| managers[n].ready.rsplit(' ').next().unwrap().to_owned());
    let (ok, text) = output(&mut agent(&device, &addresses[0], &[]));
    assert!(!ok && text.contains("--format"), "{text}");
    let agent_of_one = Daemon::start(agent(&device, &addresses[0], &["--format"]));
    drop(agent_of_one);
    // It goes on to try, as the manager may be the wrong one for a moment only.
    let waiting = agent(&device, &addresses[1], &[])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(4));
    let pid = rustix::process::Pid::from_child(&waiting);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let said = waiting.wait_with_output().unwrap();
    let (out, complaint) = (
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr),
    );
    assert!(out.contains("waiting for the manager"), "{out}");
    assert!(complaint.contains("belongs to another pool"), "{complaint}");
}
