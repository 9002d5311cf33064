//! What befalls nodes, the server, readers, and the ways between them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_storage_node::StorageNode;

use super::stage::{NODES, READERS, SERVERS, Stage, name_of};
use super::{reader, server};
use crate::message::Faults;
use crate::{Exit, Process, World};

/// So long that the first part of remote memory moves, half of it before what has changed stands still.
const LONG_CUT: Nanos = Nanos::from_secs(8);
/// What befalls in a world, at least, and that much more.
const LEAST: u64 = 8;
const MORE: u64 = 16;
/// How long a time without faults lasts: what begins late in it has to succeed.
const CALM: Nanos = Nanos::from_secs(25);
/// Within this all is well again when nothing befalls any more.
const PATIENCE: Nanos = Nanos::from_secs(240);
/// A host stands still for so long at most.
const PAUSED_MOST: u64 = 2_000_000_000;

pub(super) struct Trouble<'w> {
    stage: Arc<Stage>,
    world: &'w World,
    draw: Random,
    nodes: [Option<Process>; NODES],
    server: Option<Process>,
    readers: [Option<Process>; READERS],
    /// Their numbers.
    numbers: [u64; READERS],
    /// Readers that were to have the database.
    promoted: Vec<Process>,
    started: u64,
    cuts: BTreeSet<(usize, usize)>,
    deaths: u32,
}

impl<'w> Trouble<'w> {
    pub fn new(stage: &Arc<Stage>, world: &'w World, seed: u64) -> Self {
        Self {
            stage: Arc::clone(stage),
            world,
            draw: Random(seed),
            nodes: [const { None }; NODES],
            server: None,
            readers: [const { None }; READERS],
            numbers: [0; READERS],
            promoted: Vec::new(),
            started: 0,
            cuts: BTreeSet::new(),
            deaths: stage.shared.plan.deaths * 3,
        }
    }

    pub fn begin(&mut self) {
        (0..NODES).for_each(|host| self.start_node(host));
        self.start_server();
        let stage = Arc::clone(&self.stage);
        stage.await_that("the server begins", PATIENCE, || {
            self.look_at_ended();
            if self.server.is_none() {
                self.start_server();
            }
            stage.steps() > 3
        });
        (0..READERS).for_each(|n| self.start_reader(n));
    }

    fn start_node(&mut self, host: usize) {
        let stage = Arc::clone(&self.stage);
        self.nodes[host] = Some(self.world.process(host, "node", move || run_node(&stage, host)));
    }

    fn start_server(&mut self) {
        let host = NODES + self.draw.index(SERVERS);
        let (stage, number) = (Arc::clone(&self.stage), self.started);
        self.started += 1;
        let body = move || server::run(&stage, host, number);
        self.server = Some(self.world.process(host, "server", body));
    }

    fn start_reader(&mut self, n: usize) {
        let host = NODES + SERVERS + n;
        let (stage, number) = (Arc::clone(&self.stage), self.started);
        self.started += 1;
        let body = move || reader::run(&stage, host, number);
        (self.readers[n], self.numbers[n]) = (Some(self.world.process(host, "reader", body)), number);
    }

    /// Server and readers work, and all of this comes over them.
    pub fn come(&mut self) {
        for _ in 0..LEAST + self.draw.below(MORE) {
            if self.stage.shared.has_failed() {
                return;
            }
            let rests = self.draw.pick(&[20, 200, 1_500]);
            rt::sleep(Nanos::from_micros(1 + self.draw.below(rests * 1_000)));
            self.befall();
            self.raise();
        }
    }

    fn befall(&mut self) {
        // Most of the time nothing does: readers are to be looked at, too.
        match self.draw.below(20) {
            0 => self.kill_node(),
            1 => self.cut_power(),
            2 | 3 => self.cut_or_mend(),
            4 => self.change_network(),
            5 | 6 => self.kill_server(),
            7 | 8 => self.kill_reader(),
            9 => self.pause(),
            10 => self.be_calm(),
            11 | 12 => self.promote(),
            13 | 14 => {
                if let Some(far) = self.stage.far.clone() {
                    far.befall(&self.stage.shared, &mut self.draw);
                    if far.is_cut() && self.draw.one_in(2) {
                        self.wait_for_a_move();
                    }
                }
            }
            _ => {}
        }
    }

    /// So long that the first part of remote memory moves, and what has changed before that changes no more: readers
    /// look at what is there then.
    fn wait_for_a_move(&self) {
        rt::sleep(Nanos(LONG_CUT.raw() / 2));
        self.stage.set_still(true);
        rt::sleep(LONG_CUT);
        self.stage.set_still(false);
    }

    fn may_die(&mut self) -> bool {
        let may = self.deaths > 0;
        self.deaths = self.deaths.saturating_sub(1);
        if may {
            self.stage.set_whole(false);
        }
        may
    }

    fn kill_node(&mut self) {
        let host = self.draw.index(NODES);
        if self.may_die() {
            self.stage.shared.befalls("deaths: node killed");
            self.nodes[host].take().iter().for_each(Process::kill);
        }
    }

    fn cut_power(&mut self) {
        let host = self.draw.index(NODES);
        if self.may_die() {
            self.stage.shared.befalls("deaths: power cut of a node");
            self.world.lose_host(host);
            self.nodes[host] = None;
        }
    }

    fn kill_server(&mut self) {
        if self.may_die() {
            self.stage.shared.befalls("deaths: server killed");
            self.server.take().iter().for_each(Process::kill);
        }
    }

    fn kill_reader(&mut self) {
        let n = self.draw.index(READERS);
        if self.may_die() {
            self.stage.shared.befalls("deaths: reader killed");
            self.readers[n].take().iter().for_each(Process::kill);
        }
    }

    /// A reader is to have the database; the server that has it was killed, or finds out.
    fn promote(&mut self) {
        let n = self.draw.index(READERS);
        let is_there = self.readers[n].as_ref().is_some_and(Process::is_running);
        if !is_there || !self.may_die() {
            return;
        }
        self.stage.shared.befalls("deaths: a reader takes the database");
        if self.draw.one_in(2) {
            self.server.take().iter().for_each(Process::kill);
        }
        self.give_up_asked();
        self.stage.ask(self.numbers[n]);
        self.promoted.extend(self.readers[n].take());
    }

    /// One that was to have it, and has not heard of it, would be waited for as the server.
    fn give_up_asked(&mut self) {
        if self.stage.withdraw() {
            self.promoted.pop().iter().for_each(Process::kill);
        }
    }

    fn cut_or_mend(&mut self) {
        let hosts = (NODES + SERVERS + READERS) as u64;
        let (from, to) = (self.draw.below(hosts) as usize, self.draw.below(hosts) as usize);
        if from == to || from >= NODES && to >= NODES {
            return;
        }
        if self.cuts.remove(&(from, to)) {
            return self.stage.net.mend(&name_of(from), &name_of(to));
        }
        self.stage.set_whole(false);
        self.stage.shared.befalls("faults: way cut");
        for (from, to) in [(from, to), (to, from)] {
            self.cuts.insert((from, to));
            self.stage.net.cut(&name_of(from), &name_of(to));
        }
    }

    fn change_network(&mut self) {
        self.stage.set_whole(false);
        self.stage.shared.befalls("faults: another network");
        self.stage.net.set_faults(Faults::random(self.draw.word()));
    }

    fn pause(&mut self) {
        self.stage.set_whole(false);
        self.stage.shared.befalls("faults: pause");
        let host = self.draw.below((NODES + SERVERS + READERS) as u64) as usize;
        self.world.pause(host, Nanos(self.draw.below(PAUSED_MOST)));
    }

    /// What is down begins again; what has ended by itself is looked at.
    fn raise(&mut self) {
        self.look_at_ended();
        for host in 0..NODES {
            let is_down = self.nodes[host].as_ref().is_none_or(|node| !node.is_running());
            if is_down && self.draw.one_in(2) {
                self.start_node(host);
            }
        }
        let is_served = self.server.is_some() || !self.promoted.is_empty();
        if !is_served && self.draw.one_in(2) {
            self.start_server();
        }
        for n in 0..READERS {
            if self.readers[n].is_none() && self.draw.one_in(2) {
                self.start_reader(n);
            }
        }
        if self.draw.one_in(3) {
            let cuts: Vec<_> = std::mem::take(&mut self.cuts).into_iter().collect();
            let mend = |(from, to): (usize, usize)| self.stage.net.mend(&name_of(from), &name_of(to));
            cuts.into_iter().for_each(mend);
        }
    }

    fn look_at_ended(&mut self) {
        let ended = |process: &mut Option<Process>| process.take_if(|process| !process.is_running());
        let mut all: Vec<Process> = self.readers.iter_mut().filter_map(ended).collect();
        all.extend(ended(&mut self.server));
        all.extend(self.promoted.extract_if(.., |process| !process.is_running()));
        for process in all {
            self.look_at(&process);
        }
    }

    fn look_at(&self, process: &Process) {
        if let Exit::Panicked(why) = process.join() {
            self.stage.fail(format!("{}: {why}", process.name()));
        }
    }

    fn mend_all(&mut self) {
        self.give_up_asked();
        self.cuts.clear();
        self.stage.net.mend_all();
        self.stage.net.set_faults(Faults::default());
        if let Some(far) = &self.stage.far {
            far.mend();
        }
        for host in 0..NODES {
            if self.nodes[host].as_ref().is_none_or(|node| !node.is_running()) {
                self.start_node(host);
            }
        }
        self.stage.set_whole(true);
    }

    /// For a while nothing is wrong: what begins late in it succeeds.
    fn be_calm(&mut self) {
        self.stage.shared.befalls("times without a fault");
        self.mend_all();
        let until = rt::now() + CALM;
        while rt::now() < until && !self.stage.shared.has_failed() {
            rt::sleep(Nanos::from_millis(100));
            self.raise();
        }
    }

    /// No more faults: server and readers go on, then the server stands still, and a reader has its rows.
    pub fn calm_down(&mut self) {
        let moves = self.stage.far.as_ref().map_or(0, |far| far.moves());
        self.stage.shared.add("first parts of remote memory that moved", moves);
        self.mend_all();
        let stage = Arc::clone(&self.stage);
        self.look_at_ended();
        if self.server.is_none() && self.promoted.is_empty() {
            self.start_server();
        }
        for n in 0..READERS {
            if self.readers[n].is_none() {
                self.start_reader(n);
            }
        }
        let (steps, looks) = (stage.steps() + 5, stage.looks() + 5);
        if !stage.await_that("the server goes on", PATIENCE, || {
            self.raise();
            stage.steps() >= steps
        }) {
            return;
        }
        if !stage.await_that("readers go on", PATIENCE, || {
            self.raise();
            stage.looks() >= looks
        }) {
            return;
        }
        stage.rest();
        if stage.await_that("the server stands still", PATIENCE, || stage.last().is_some()) {
            self.compare();
        }
        stage.end_all();
        let all: Vec<Process> = self
            .readers
            .iter_mut()
            .chain([&mut self.server])
            .filter_map(Option::take)
            .chain(self.promoted.drain(..))
            .collect();
        for process in all {
            self.await_end(&process);
        }
    }

    fn compare(&mut self) {
        let host = NODES + SERVERS;
        let (stage, number) = (Arc::clone(&self.stage), self.started);
        self.started += 1;
        let body = move || reader::compare(&stage, host, number);
        let process = self.world.process(host, "last reader", body);
        self.await_end(&process);
    }

    fn await_end(&self, process: &Process) {
        let what = format!("{} ends", process.name());
        if self.stage.await_that(&what, PATIENCE, || !process.is_running()) {
            self.look_at(process);
        }
    }

    pub fn end(&mut self) {
        let all = self.nodes.iter().chain(&self.readers).chain([&self.server]);
        all.flatten().chain(&self.promoted).for_each(Process::kill);
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
