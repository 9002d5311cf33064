//! Several hosts on one device: processes in namespaces that share nothing but the device's file. Holders, agents and
//! whole hosts are killed, stopped, woken late, cut off and lied about; the next holder is on another host.
//!
//! What the processes do is [`another_process`]. Where namespaces cannot be made each test says that it was skipped.

mod common;

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::SharedDevice;
use cenote_fabric::message::tcp::Tcp;
use cenote_pool::agent::{AgentOptions, HostAgent, Making};
use cenote_pool::holder::{GrantRequest, GrantedMemory};
use cenote_pool::host::Machine;
use cenote_pool::manager::Manager;
use cenote_pool::{GrantId, Phase, PoolStatus};
use cenote_testkit::hosts::Hosts;
use common::{Process, TIMEOUT, credentials, hold, manager_options, network, operator, requested, say, task, until};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const LEASE: Nanos = Nanos::from_millis(1500);
const PORT: u16 = 5440;
const SIZE: u64 = 64 << 20;
const NAMES: [&str; 2] = ["a", "b"];

/// What another process is told to be.
#[derive(Serialize, Deserialize)]
enum Task {
    Manager {
        directory: PathBuf,
    },
    Agent {
        manager: String,
        host: String,
        device: PathBuf,
    },
    /// Writes its tag again and again, and says `working` as it does.
    Holder {
        manager: String,
        host: String,
        label: String,
        tag: u64,
    },
    /// Does what it is told, a line each.
    Operator {
        manager: String,
    },
}

#[test]
fn another_process() {
    let Some(task) = task::<Task>() else { return };
    match task {
        Task::Manager { directory } => manage(&directory),
        Task::Agent { manager, host, device } => be_agent(manager, host, device),
        Task::Holder {
            manager,
            host,
            label,
            tag,
        } => hold_grant(&manager, host, &label, tag),
        Task::Operator { manager } => operate(&manager),
    }
}

fn manage(directory: &Path) {
    let options = manager_options(directory, &format!("0.0.0.0:{PORT}"), LEASE);
    let manager = Manager::start(options, &Tcp).expect("a manager");
    say("ready");
    hold();
    drop(manager);
}

fn be_agent(manager: String, host: String, device: PathBuf) {
    let options = AgentOptions {
        pod: "rack".into(),
        host: Some(host),
        device,
        making: Making::File(SIZE),
        manager,
        secret: String::new(),
    };
    match HostAgent::start(options, network(), Box::new(Machine)) {
        Ok(agent) => {
            while !agent.wait_joined(Nanos::from_millis(100)) {}
            say(&format!("joined {} as process {}", agent.epoch(), std::process::id()));
            hold();
        }
        Err(error) => say(&format!("refused: {error}")),
    }
}

fn hold_grant(manager: &str, host: String, label: &str, tag: u64) {
    let request = GrantRequest {
        host: Some(host),
        ..requested(label, 2)
    };
    let map = |memory: &GrantedMemory| {
        let range = memory.range().ok_or_else(|| Error::Invalid("no range".into()))?;
        SharedDevice::open(&memory.path())?.map(range)
    };
    let on_revoked = Box::new(|error: &Error| say(&format!("revoked: {error}")));
    let opened: Result<_> = GrantedMemory::open_mapped(&network(), &credentials(manager), request, on_revoked, map);
    let (memory, mapped) = match opened {
        Ok(opened) => opened,
        Err(error) => return say(&format!("refused: {error}")),
    };
    let word = mapped.span(0, 8);
    let (id, offset, epoch) = (memory.id(), memory.offset(), memory.host_epoch());
    say(&format!(
        "holds {id} at {offset} finds {} host epoch {epoch}",
        word.u64(0)
    ));
    loop {
        word.set_u64(0, tag);
        say("working");
        rt::sleep(Nanos::from_millis(2));
    }
}

fn operate(manager: &str) {
    let operator = operator(manager);
    say("ready");
    for line in std::io::stdin().lines().map_while(std::result::Result::ok) {
        let done = match line.split_once(' ') {
            Some(("host-lost", host)) => operator.host_lost(host, None, |_| {}).map(|()| "done".to_owned()),
            Some(("free", id)) => operator
                .free(GrantId(id.parse().expect("a number")))
                .map(|()| "done".to_owned()),
            _ if line == "audit" => operator.audit().map(|report| report.problems.join("; ")),
            _ => operator
                .status()
                .map(|status| serde_json::to_string(&status).expect("JSON")),
        };
        say(&done.unwrap_or_else(|error| format!("refused: {error}")));
    }
}

/// A pool whose manager runs at the hub, with an agent on each of two hosts.
struct Pool {
    directory: tempfile::TempDir,
    hosts: Hosts,
    agents: Vec<Process>,
    operator: Process,
    manager: Process,
}

impl Pool {
    fn new() -> Option<Self> {
        let hosts = Hosts::new(NAMES.len())?;
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let hub = hosts.hub().prefix();
        let task = Task::Manager {
            directory: directory.path().join("manager"),
        };
        let manager = Process::start_under(&hub, &task);
        assert_eq!(manager.says(), "ready");
        let task = Task::Operator {
            manager: format!("127.0.0.1:{PORT}"),
        };
        let operator = Process::start_under(&hub, &task);
        assert_eq!(operator.says(), "ready");
        let mut pool = Self {
            directory,
            hosts,
            agents: Vec::new(),
            operator,
            manager,
        };
        for host in 0..NAMES.len() {
            let agent = pool.start_agent(host);
            pool.agents.push(agent);
        }
        Some(pool)
    }

    fn device(&self) -> PathBuf {
        self.directory.path().join("device")
    }

    fn manager_for(&self, host: usize) -> String {
        format!("{}:{PORT}", self.hosts.hub_address(host))
    }

    /// One that has joined.
    fn start_agent(&self, host: usize) -> Process {
        let agent = self.agent(host);
        let said = agent.says();
        assert!(said.starts_with("joined"), "{said}");
        agent
    }

    fn agent(&self, host: usize) -> Process {
        let task = Task::Agent {
            manager: self.manager_for(host),
            host: NAMES[host].into(),
            device: self.device(),
        };
        Process::start_under(&self.hosts.host(host).prefix(), &task)
    }

    /// A process on a host that says it is on another, or on that one.
    fn holder_that_says(&self, host: usize, name: &str, tag: u64) -> Process {
        let task = Task::Holder {
            manager: self.manager_for(host),
            host: name.into(),
            label: "db".into(),
            tag,
        };
        Process::start_under(&self.hosts.host(host).prefix(), &task)
    }

    /// What the tag was that it found.
    fn holder(&self, host: usize, tag: u64) -> (Process, u64) {
        let mut holder = self.holder_that_says(host, NAMES[host], tag);
        let said = holder.says();
        assert!(said.starts_with("holds"), "{said}");
        holder.hear(3);
        let found = said.split(' ').nth(5).and_then(|found| found.parse().ok());
        (holder, found.expect("a tag"))
    }

    /// One that tries until it is let in.
    fn holder_at_last(&self, host: usize, tag: u64) -> (Process, u64) {
        let began = rt::now();
        loop {
            let holder = self.holder_that_says(host, NAMES[host], tag);
            let said = holder.says();
            if let Some(found) = said.strip_prefix("holds").and_then(|said| said.split(' ').nth(5)) {
                return (holder, found.parse().expect("a tag"));
            }
            assert!(rt::now().since(began) < TIMEOUT, "{said}");
            rt::sleep(Nanos::from_millis(100));
        }
    }

    /// Why it is not let in.
    fn refused(&self, host: usize, name: &str) -> String {
        let said = self.holder_that_says(host, name, 99).says();
        said.strip_prefix("refused: ").expect("it is refused").to_owned()
    }

    fn order(&mut self, line: &str) -> String {
        self.operator.tell(line);
        self.operator.says()
    }

    fn status(&mut self) -> PoolStatus {
        serde_json::from_str(&self.order("status")).expect("a status")
    }

    fn phase(&mut self) -> Option<Phase> {
        self.status().grants.first().map(|grant| grant.phase)
    }

    fn until_phase(&mut self, phase: Phase) {
        until(&format!("the grant is {phase}"), || self.phase() == Some(phase));
    }

    fn until_connected(&mut self, host: usize, wanted: bool) {
        until("the agent", || {
            let status = self.status();
            let hosts = &status.devices[0].hosts;
            hosts.iter().any(|it| it.name == NAMES[host] && it.connected == wanted)
        });
    }

    fn host_epoch(&mut self, host: usize) -> u64 {
        let status = self.status();
        let hosts = &status.devices[0].hosts;
        hosts.iter().find(|it| it.name == NAMES[host]).expect("known").epoch
    }

    fn audited(&mut self) {
        assert_eq!(self.order("audit"), "");
    }

    /// The tag that lies in the grant's memory, as a processor of any host sees it.
    fn tag(&mut self) -> u64 {
        let offset = self.status().grants[0].offset.expect("on the device");
        let (file, mut bytes) = (std::fs::File::open(self.device()).expect("there"), [0; 8]);
        file.read_exact_at(&mut bytes, offset).expect("read");
        u64::from_le_bytes(bytes)
    }

    /// For a while no other tag is found there.
    fn stays(&mut self, tag: u64) {
        for _ in 0..50 {
            assert_eq!(self.tag(), tag, "the next holder's word is overwritten");
            rt::sleep(Nanos::from_millis(5));
        }
    }
}

/// The agent of its host tells that the former holder is over, and it has another number space of processes.
#[test]
fn a_dead_holders_grant_goes_to_another_host() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, found) = pool.holder(0, 7);
    assert_eq!(found, 0, "new memory");
    let busy = pool.refused(1, "b");
    assert!(busy.contains("in use by process"), "{busy}");
    first.kill();
    let (mut second, found) = pool.holder(1, 8);
    assert_eq!(found, 7, "what the first has left");
    second.kill();
    let (_third, found) = pool.holder(0, 9);
    assert_eq!(found, 8);
    pool.audited();
}

/// Two hosts number their processes alike, and an agent ends those of its own host alone.
#[test]
fn a_stopped_holder_is_ended_before_another_host_is_let_in() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, _) = pool.holder(0, 7);
    first.signal(Signal::STOP);
    let (mut second, found) = pool.holder_at_last(1, 8);
    assert_eq!(found, 7);
    first.ended();
    second.progress(20);
    pool.stays(8);
    assert!(!pool.agents.iter_mut().any(Process::has_ended), "agents go on");
    pool.audited();
}

#[test]
fn equal_process_numbers_are_told_apart() {
    let Some(mut pool) = Pool::new() else { return };
    // The same programs were started in the same order, so the numbers are the same ones.
    let numbers: Vec<String> = (0..2)
        .map(|host| {
            let name = NAMES[host];
            let status = std::fs::read_to_string(format!("/proc/{}/status", pool.agents[host].pid())).expect("there");
            let line = status.lines().find(|line| line.starts_with("NSpid")).expect("of host");
            format!("{name}:{}", line.split_ascii_whitespace().last().expect("a number"))
        })
        .collect();
    assert_eq!(numbers[0].trim_start_matches("a:"), numbers[1].trim_start_matches("b:"));
    let (mut first, _) = pool.holder(0, 7);
    first.signal(Signal::STOP);
    let (mut second, _) = pool.holder_at_last(1, 8);
    first.ended();
    second.progress(50);
    pool.audited();
}

/// Neither its holder nor its agent is heard: what they have under way may come at any time.
#[test]
fn a_silent_hosts_grant_stays_in_quarantine_until_its_agent_wakes_up() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, _) = pool.holder(0, 7);
    first.signal(Signal::STOP);
    pool.agents[0].signal(Signal::STOP);
    pool.until_phase(Phase::Fencing);
    pool.until_connected(0, false);
    let why = pool.refused(1, "b");
    assert!(why.contains("quarantine") && why.contains("host-lost a"), "{why}");
    assert_eq!(pool.tag(), 7);
    pool.agents[0].signal(Signal::CONT);
    let (mut second, found) = pool.holder_at_last(1, 8);
    assert_eq!(found, 7);
    first.ended();
    second.progress(20);
    pool.stays(8);
    assert_eq!(pool.host_epoch(0), 1, "the host was not lost");
    pool.audited();
}

/// The network between them is cut, and nothing else has happened: the same.
#[test]
fn a_host_that_is_cut_off_keeps_its_memory_until_it_is_heard() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, _) = pool.holder(0, 7);
    pool.hosts.set_linked(0, false);
    pool.until_phase(Phase::Fencing);
    pool.until_connected(0, false);
    first.progress(10);
    let why = pool.refused(1, "b");
    assert!(why.contains("quarantine"), "{why}");
    pool.hosts.set_linked(0, true);
    let (mut second, _) = pool.holder_at_last(1, 8);
    first.ended();
    second.progress(20);
    pool.stays(8);
    pool.audited();
}

/// All processes of a host end at once, its agent with them. An operator's word closes its epoch; it comes back with
/// another one.
#[test]
fn a_lost_hosts_grant_goes_on_elsewhere_by_an_operators_word() {
    let Some(mut pool) = Pool::new() else { return };
    let (_first, _) = pool.holder(0, 7);
    let connected = pool.order("host-lost a");
    assert!(connected.contains("stop it first"), "{connected}");
    pool.hosts.lose(0);
    pool.until_connected(0, false);
    let why = pool.refused(1, "b");
    assert!(why.contains("quarantine"), "{why}");
    assert_eq!(pool.order("host-lost a"), "done");
    let (mut second, found) = pool.holder_at_last(1, 8);
    assert_eq!(found, 7, "the memory is the device's, not the host's");
    pool.hosts.restart(0);
    pool.agents[0] = pool.start_agent(0);
    assert_eq!((pool.host_epoch(0), pool.host_epoch(1)), (2, 1));
    let busy = pool.refused(0, "a");
    assert!(busy.contains("in use by process"), "{busy}");
    second.kill();
    let (_third, found) = pool.holder(0, 9);
    assert_eq!(found, 8);
    pool.audited();
}

/// Its agent was stopped when the epoch was closed, and had no order. It wakes up, and ends what maps the device before
/// it is heard.
/// The word was refused until the manager had missed the agent by itself: an operator had to say it again and again.
#[test]
fn a_host_is_called_lost_before_it_is_missed() {
    let Some(mut pool) = Pool::new() else { return };
    let connected = pool.order("host-lost a");
    assert!(connected.contains("stop it first"), "{connected}");
    pool.agents[0].kill();
    assert_eq!(pool.order("host-lost a"), "done");
}

#[test]
fn an_agent_of_a_closed_epoch_ends_everything_before_it_joins() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, _) = pool.holder(0, 7);
    pool.agents[0].signal(Signal::STOP);
    pool.until_connected(0, false);
    first.progress(10);
    assert_eq!(pool.phase(), Some(Phase::Held), "it renews its lease itself");
    assert_eq!(pool.order("host-lost a"), "done");
    pool.agents[0].signal(Signal::CONT);
    until("it joins with another epoch", || pool.host_epoch(0) == 2);
    assert!(first.has_ended_soon(), "what it held may be another's");
    let (mut second, found) = pool.holder_at_last(1, 8);
    assert_eq!(found, 7);
    second.progress(20);
    pool.stays(8);
    second.kill();
    let (_third, _) = pool.holder(0, 9);
    pool.audited();
}

/// Its death ends no holder, and its restart takes up where it was.
#[test]
fn an_agent_that_is_killed_ends_nothing() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, _) = pool.holder(0, 7);
    let said = pool.agent(0).says();
    assert!(said.contains("another agent on this host"), "{said}");
    pool.agents[0].kill();
    pool.until_connected(0, false);
    rt::sleep(Nanos(2 * LEASE.raw()));
    first.progress(20);
    assert_eq!(pool.phase(), Some(Phase::Held), "it renews its lease itself");
    pool.agents[0] = pool.start_agent(0);
    assert_eq!(pool.host_epoch(0), 1);
    first.progress(20);
    first.kill();
    let (_second, found) = pool.holder(1, 8);
    assert_eq!(found, 7);
    pool.audited();
}

/// A holder says that it runs where it does not: the agent there does not see it, and could not end it.
#[test]
fn a_holder_that_lies_about_its_host_is_refused() {
    let Some(mut pool) = Pool::new() else { return };
    let why = pool.refused(1, "a");
    assert!(
        why.contains("is not seen to map") && why.contains("host \"a\""),
        "{why}"
    );
    let why = pool.refused(1, "c");
    assert!(why.contains("no device that this host has joined"), "{why}");
    let (mut first, _) = pool.holder_at_last(0, 7);
    // Nor does it pass for the process that holds the memory there.
    let why = pool.refused(1, "a");
    assert!(why.contains("in use by process"), "{why}");
    first.progress(20);
    pool.audited();
}

/// The manager dies while a host is silent: the next one knows where the memory is, and waits for the same host.
#[test]
fn the_next_manager_waits_for_the_same_host() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, _) = pool.holder(0, 7);
    first.signal(Signal::STOP);
    pool.agents[0].signal(Signal::STOP);
    pool.manager.kill();
    let hub = pool.hosts.hub().prefix();
    let directory = pool.directory.path().join("manager");
    pool.manager = Process::start_under(&hub, &Task::Manager { directory });
    assert_eq!(pool.manager.says(), "ready");
    let manager = format!("127.0.0.1:{PORT}");
    pool.operator = Process::start_under(&hub, &Task::Operator { manager });
    assert_eq!(pool.operator.says(), "ready");
    pool.until_connected(1, true);
    pool.until_phase(Phase::Fencing);
    let why = pool.refused(1, "b");
    assert!(why.contains("quarantine"), "{why}");
    pool.agents[0].signal(Signal::CONT);
    let (mut second, found) = pool.holder_at_last(1, 8);
    assert_eq!(found, 7);
    first.ended();
    second.progress(20);
    pool.stays(8);
    pool.audited();
}

/// What is freed is zeros for the next tenant, whichever host frees it.
#[test]
fn freed_memory_is_zeros() {
    let Some(mut pool) = Pool::new() else { return };
    let (mut first, _) = pool.holder(0, 7);
    let id = pool.status().grants[0].id;
    assert_eq!(pool.order(&format!("free {id}")), "done");
    first.ended();
    until("it is freed", || pool.status().grants.is_empty());
    let (_second, found) = pool.holder(1, 8);
    assert_eq!(found, 0);
    pool.audited();
}
