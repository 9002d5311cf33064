//! What befalls nodes, servers, and the ways between them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_storage_node::{ServerRole, StorageNode};

use super::stage::{NODES, PROXY, SERVERS, Stage, name_of};
use super::{proxy, server};
use crate::message::Faults;
use crate::{Exit, Process, World};

/// What befalls in a world, at least, and that much more.
const LEAST: u64 = 10;
const MORE: u64 = 30;
/// How long a time without faults lasts, beyond what it takes to settle.
const CALM: Nanos = Nanos::from_secs(60);
/// Within this all is well again when nothing befalls any more.
const PATIENCE: Nanos = Nanos::from_secs(240);
/// A node's drive does not come back with a write or a sync for so long at most, and no server is to take that for the
/// loss of another.
const STALLED_MOST: u64 = 2_500_000_000;
/// A host stands still for so long at most: leases run out, and others take the database.
const PAUSED_MOST: u64 = 4_000_000_000;

pub(super) struct Trouble<'w> {
    stage: Arc<Stage>,
    world: &'w World,
    draw: Random,
    nodes: [Option<Process>; NODES],
    servers: [Option<Process>; SERVERS],
    proxy: Option<Process>,
    started: u64,
    cuts: BTreeSet<(usize, usize)>,
}

impl<'w> Trouble<'w> {
    pub fn new(stage: &Arc<Stage>, world: &'w World, seed: u64) -> Self {
        Self {
            stage: Arc::clone(stage),
            world,
            draw: Random(seed),
            nodes: [const { None }; NODES],
            servers: [const { None }; SERVERS],
            proxy: None,
            started: 0,
            cuts: BTreeSet::new(),
        }
    }

    pub fn begin(&mut self) {
        (0..NODES).for_each(|host| self.start_node(host));
        (0..SERVERS).for_each(|n| self.start_server(n));
        let stage = Arc::clone(&self.stage);
        self.proxy = Some(self.world.process(PROXY, "proxy", move || proxy::run(&stage)));
        let stage = Arc::clone(&self.stage);
        stage.await_that("a client is served", PATIENCE, || stage.served() > 0);
    }

    fn start_node(&mut self, host: usize) {
        let stage = Arc::clone(&self.stage);
        self.nodes[host] = Some(self.world.process(host, "node", move || run_node(&stage, host)));
    }

    fn start_server(&mut self, n: usize) {
        let (stage, number) = (Arc::clone(&self.stage), self.started);
        self.started += 1;
        let body = move || server::run(&stage, NODES + n, number);
        self.servers[n] = Some(self.world.process(NODES + n, "server", body));
    }

    /// Servers and the proxy work, and all of this comes over them.
    pub fn come(&mut self) {
        for _ in 0..LEAST + self.draw.below(MORE) {
            if self.stage.shared.has_failed() {
                return;
            }
            let rests = self.draw.pick(&[50, 800, 4_000]);
            rt::sleep(Nanos::from_micros(1 + self.draw.below(rests * 1_000)));
            self.befall();
            self.raise();
        }
    }

    fn befall(&mut self) {
        match self.draw.below(20) {
            16..=19 => self.deceive(),
            0 => self.kill_node(),
            1 => self.cut_power(),
            2..=4 => self.cut_or_mend(),
            5 => self.change_network(),
            6 | 7 => self.kill_server(),
            8..=10 => self.pause(),
            11 => self.be_calm(),
            12 | 13 => self.switch(),
            _ => self.call(),
        }
    }

    fn kill_node(&mut self) {
        let host = self.draw.index(NODES);
        self.stage.set_whole(false);
        self.stage.shared.befalls("deaths: node killed");
        self.nodes[host].take().iter().for_each(Process::kill);
    }

    fn cut_power(&mut self) {
        let host = self.draw.index(NODES);
        self.stage.set_whole(false);
        self.stage.shared.befalls("deaths: power cut of a node");
        self.world.lose_host(host);
        self.nodes[host] = None;
    }

    fn kill_server(&mut self) {
        let n = self.draw.index(SERVERS);
        self.stage.set_whole(false);
        self.stage.shared.befalls("deaths: server killed");
        self.servers[n].take().iter().for_each(Process::kill);
        self.stage.set_listening(NODES + n, false);
    }

    fn cut_or_mend(&mut self) {
        let hosts = (NODES + SERVERS + 1) as u64;
        let (from, to) = (self.draw.below(hosts) as usize, self.draw.index(NODES));
        if from == to {
            return;
        }
        if self.cuts.remove(&(from, to)) {
            return self.stage.net.mend(&name_of(from), &name_of(to));
        }
        self.stage.set_whole(false);
        self.stage.shared.befalls("faults: way cut");
        // One way alone is the worse: words come through, and answers do not.
        let ways = [(from, to), (to, from)];
        let some = match self.draw.below(3) {
            0 => &ways[..1],
            1 => &ways[1..],
            _ => &ways[..],
        };
        for (from, to) in some {
            self.cuts.insert((*from, *to));
            self.stage.net.cut(&name_of(*from), &name_of(*to));
        }
    }

    fn change_network(&mut self) {
        self.stage.set_whole(false);
        self.stage.shared.befalls("faults: another network");
        self.stage.net.set_faults(Faults::random(self.draw.word()));
    }

    fn pause(&mut self) {
        self.stage.set_whole(false);
        self.stage.shared.befalls("faults: host stands still");
        let host = self.draw.below((NODES + SERVERS) as u64) as usize;
        self.world.pause(host, Nanos(self.draw.below(PAUSED_MOST)));
    }

    /// The server that has the database is silent until another is about to take it. Then it is heard once more, by the
    /// node that heard the claim or by one that leads instead, and by none from then on: its lease may run still.
    fn deceive(&mut self) {
        let Some(host) = self.stage.serving_host() else { return };
        self.stage.set_whole(false);
        self.stage.shared.befalls("faults: a server is heard once more");
        let node = self.draw.index(NODES);
        let silent = Nanos::from_micros(900_000 + self.draw.below(600_000));
        let stands_still = self.draw.one_in(2);
        match stands_still {
            true => self.world.pause(host, silent),
            false => self.cut_off(host),
        }
        rt::sleep(silent);
        if self.draw.one_in(2) {
            self.nodes[node].take().iter().for_each(Process::kill);
            rt::sleep(Nanos::from_micros(self.draw.below(2_000_000)));
        }
        self.mend_ways_of(host);
        rt::sleep(Nanos::from_micros(self.draw.below(400_000)));
        self.cut_off(host);
        rt::sleep(Nanos::from_millis(1_500));
        self.mend_ways_of(host);
    }

    fn cut_off(&mut self, host: usize) {
        for (from, to) in (0..NODES).flat_map(|node| [(host, node), (node, host)]) {
            self.cuts.insert((from, to));
            self.stage.net.cut(&name_of(from), &name_of(to));
        }
    }

    fn mend_ways_of(&mut self, host: usize) {
        let ways: Vec<_> = self
            .cuts
            .extract_if(.., |(from, to)| *from == host || *to == host)
            .collect();
        ways.into_iter()
            .for_each(|(from, to)| self.stage.net.mend(&name_of(from), &name_of(to)));
    }

    /// Another server is to have the database.
    fn switch(&mut self) {
        let client = self.stage.client(PROXY).with_timeout(Nanos::from_secs(1));
        let Ok(seen) = client.members() else { return };
        let mut readers = seen.servers.iter().filter(|one| one.server.role == ServerRole::Reader);
        if let Some(reader) = readers.next()
            && client.switch(reader.server.id).is_ok()
        {
            self.stage.shared.befalls("switches");
        }
    }

    /// A client connects to a server itself, which may be paused.
    fn call(&mut self) {
        self.stage.call(NODES + self.draw.index(SERVERS));
    }

    /// What is down begins again; what has ended by itself is looked at.
    fn raise(&mut self) {
        for host in 0..NODES {
            let is_down = self.nodes[host].as_ref().is_none_or(|node| !node.is_running());
            if is_down && self.draw.one_in(2) {
                self.start_node(host);
            }
        }
        for n in 0..SERVERS {
            if let Some(ended) = self.servers[n].take_if(|server| !server.is_running()) {
                self.look_at(&ended);
            }
            if self.servers[n].is_none() && self.draw.one_in(2) {
                self.start_server(n);
            }
        }
        if self.draw.one_in(4) {
            let cuts: Vec<_> = std::mem::take(&mut self.cuts).into_iter().collect();
            let mend = |(from, to): (usize, usize)| self.stage.net.mend(&name_of(from), &name_of(to));
            cuts.into_iter().for_each(mend);
        }
    }

    fn look_at(&self, process: &Process) {
        if let Exit::Panicked(why) = process.join() {
            self.stage.fail(format!("{}: {why}", process.name()));
        }
    }

    fn mend_all(&mut self) {
        self.cuts.clear();
        self.stage.net.mend_all();
        self.stage.net.set_faults(Faults::default());
        for host in 0..NODES {
            if self.nodes[host].as_ref().is_none_or(|node| !node.is_running()) {
                self.start_node(host);
            }
        }
        // Hosts that stand still go on.
        rt::sleep(Nanos(PAUSED_MOST));
        for n in 0..SERVERS {
            if self.servers[n].is_none() {
                self.start_server(n);
            }
        }
        self.stage.set_whole(true);
    }

    /// Drives of nodes do not answer for a while: others use them, too.
    fn stall(&mut self) {
        self.stage.shared.befalls("drives stand still");
        let until = rt::now() + Nanos(self.draw.below(STALLED_MOST));
        let one = self.draw.index(NODES);
        let some = match self.draw.one_in(2) {
            true => 0..NODES,
            false => one..one + 1,
        };
        some.for_each(|host| self.world.files(host).stall_until(until));
    }

    /// For a while nothing is wrong: clients are served, and no server takes the database from one that is there.
    fn be_calm(&mut self) {
        self.stage.shared.befalls("times without a fault");
        self.mend_all();
        let until = rt::now() + CALM;
        while rt::now() < until && !self.stage.shared.has_failed() {
            rt::sleep(Nanos::from_millis(500));
            self.raise();
            match self.draw.below(12) {
                0 => self.switch(),
                1 => self.call(),
                2 => self.stall(),
                _ => {}
            }
        }
    }

    /// No more faults: the client is served, then it rests, and all servers pause.
    pub fn calm_down(&mut self) {
        self.be_calm();
        let stage = Arc::clone(&self.stage);
        let served = stage.served() + 3;
        if !stage.await_that("the client is served", PATIENCE, || {
            self.raise();
            stage.served() >= served
        }) {
            return;
        }
        stage.rest();
        let client = stage.client(PROXY);
        stage.await_that("all servers pause", PATIENCE, || {
            self.raise();
            client.members().is_ok_and(|seen| {
                let paused = seen.servers.iter().filter(|one| one.server.role == ServerRole::Paused);
                paused.count() == SERVERS
            })
        });
        stage.end_all();
        let all: Vec<Process> = self
            .servers
            .iter_mut()
            .chain([&mut self.proxy])
            .filter_map(Option::take)
            .collect();
        for process in all {
            let what = format!("{} ends", process.name());
            if stage.await_that(&what, PATIENCE, || !process.is_running()) {
                self.look_at(&process);
            }
        }
    }

    pub fn end(&mut self) {
        let all = self.nodes.iter().chain(&self.servers).chain([&self.proxy]);
        all.flatten().for_each(Process::kill);
    }
}

/// The body of a node's process.
fn run_node(stage: &Arc<Stage>, host: usize) {
    let node = match StorageNode::start(stage.node_options(host), stage.network(host)) {
        Ok(node) => node,
        Err(error) => return stage.fail(format!("the node on host {host} does not start: {error}")),
    };
    while !stage.shared.has_failed() {
        if let Some(error) = node.failure() {
            return stage.fail(format!("the node on host {host} has ended: {error}"));
        }
        rt::sleep(Nanos::from_millis(20));
    }
    node.stop();
}
