//! Hosts, for tests of real processes: each has a PID, a network and a mount namespace of its own, and a link to a hub,
//! which is a third. Nothing is found there by `/proc` or loopback that two machines would not have; the file system is
//! shared, and with it the file that stands for the pod's device.
//!
//! ```text
//!   host 0  10.91.0.2 ──── 10.91.0.1 hub 10.91.1.1 ──── 10.91.1.2  host 1
//! ```
//!
//! The hub forwards, so that hosts reach each other. A host's first process lives as long as this process lets it; with
//! it all others of the host end, whatever happens to the test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A program of `util-linux` and the arguments for namespaces of one's own.
const UNSHARE: [&str; 7] = [
    "unshare",
    "-n",
    "-p",
    "-m",
    "--fork",
    "--mount-proc",
    "--kill-child=SIGKILL",
];

/// Whether hosts can be made. If not, it says so in one line, which counts as a skip; with `CI=true` it is a failure.
///
/// # Panics
/// Where `CI=true` and the right, or a program, is missing.
pub fn can_be_made() -> bool {
    let runs = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let ran = command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        ran.is_ok_and(|status| status.success())
    };
    let found = [
        (
            "no right to make namespaces (unshare)",
            runs(UNSHARE[0], &[&UNSHARE[1..], &["true"]].concat()),
        ),
        ("ip is not installed (iproute2)", runs("ip", &["-V"])),
        ("nsenter is not installed (util-linux)", runs("nsenter", &["-V"])),
    ];
    let missing = found.iter().find(|(_, is_there)| !is_there);
    if let Some((what, _)) = missing {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "hosts cannot be made: {what}"
        );
        println!("skipped: {what}");
    }
    missing.is_none()
}

/// Namespaces, held by a process that does nothing.
struct Namespaces {
    keeper: Child,
    /// Their first process, as this one numbers it.
    first: u32,
}

impl Namespaces {
    fn new() -> Self {
        let ready = "ip link set lo up && echo up && exec cat";
        let mut keeper = Command::new(UNSHARE[0])
            .args(&UNSHARE[1..])
            .args(["sh", "-c", ready])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = String::new();
        let output = keeper.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says something");
        assert_eq!(line, "up\n", "namespaces are made");
        let first = child_of(keeper.id()).expect("unshare has a child");
        Self { keeper, first }
    }

    /// Runs a program of this machine with their network alone.
    fn ip(&self, arguments: &str) {
        let target = self.first.to_string();
        let ran = Command::new("nsenter")
            .args(["-t", &target, "-n", "ip"])
            .args(arguments.split(' '))
            .status();
        assert!(ran.expect("it runs").success(), "ip {arguments}");
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// The first child of a process, if it has one.
pub fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

/// A host. All of its processes end when it is dropped.
pub struct Host {
    namespaces: Namespaces,
    number: usize,
}

impl Host {
    /// What comes before a program and its arguments to run it there. `nsenter` waits for it; it is
    /// [`child_of`] that.
    pub fn prefix(&self) -> Vec<String> {
        let target = self.namespaces.first.to_string();
        ["nsenter", "-t", &target, "-n", "-p", "-m", "--"]
            .map(str::to_owned)
            .to_vec()
    }

    /// Its address.
    pub fn address(&self) -> String {
        format!("10.91.{}.2", self.number)
    }
}

/// Hosts that are linked by a hub, which is one too.
pub struct Hosts {
    hub: Host,
    hosts: Vec<Option<Host>>,
}

impl Hosts {
    /// So many; `None`, and a line that says why, where [they cannot be made](can_be_made).
    pub fn new(count: usize) -> Option<Self> {
        if !can_be_made() {
            return None;
        }
        let hub = Host {
            namespaces: Namespaces::new(),
            number: usize::MAX,
        };
        let mut forward = Command::new(&hub.prefix()[0]);
        forward
            .args(&hub.prefix()[1..])
            .args(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        assert!(forward.status().expect("it runs").success(), "the hub forwards");
        let mut hosts = Self { hub, hosts: Vec::new() };
        for number in 0..count {
            hosts.hosts.push(None);
            hosts.restart(number);
        }
        Some(hosts)
    }

    /// The hub.
    pub fn hub(&self) -> &Host {
        &self.hub
    }

    /// The hub's address, as a host knows it.
    pub fn hub_address(&self, number: usize) -> String {
        format!("10.91.{number}.1")
    }

    /// A host that was not lost.
    pub fn host(&self, number: usize) -> &Host {
        self.hosts[number].as_ref().expect("it was not lost")
    }

    /// Ends all processes of a host at once.
    pub fn lose(&mut self, number: usize) {
        self.hosts[number] = None;
    }

    /// A new host in the place of one that was lost: a later boot of it.
    pub fn restart(&mut self, number: usize) {
        self.lose(number);
        let namespaces = Namespaces::new();
        let (near, host) = (format!("h{number}"), namespaces.first);
        let hub = &self.hub.namespaces;
        hub.ip(&format!("link add {near} type veth peer name eth0 netns {host}"));
        hub.ip(&format!("addr add {}/24 dev {near}", self.hub_address(number)));
        hub.ip(&format!("link set {near} up"));
        let host = Host { namespaces, number };
        host.namespaces.ip(&format!("addr add {}/24 dev eth0", host.address()));
        host.namespaces.ip("link set eth0 up");
        host.namespaces
            .ip(&format!("route add default via {}", self.hub_address(number)));
        self.hosts[number] = Some(host);
    }

    /// Cuts a host's link to the hub, or heals it. Its processes go on.
    pub fn set_linked(&self, number: usize, linked: bool) {
        let state = if linked { "up" } else { "down" };
        self.hub.namespaces.ip(&format!("link set h{number} {state}"));
    }
}
