//! What befalls nodes, writers, and the ways between them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_testkit::faulty::MemFs;

use super::stage::{NODES, Stage, WRITERS, name_of};
use super::{node, operator, writer};
use crate::message::Faults;
use crate::{Exit, Process, World};

/// What befalls in a world, at least, and that much more.
const LEAST: u64 = 10;
const MORE: u64 = 30;
/// How long a time without faults lasts: calls that begin late in it have to succeed.
const CALM: Nanos = Nanos::from_secs(25);
/// Calls wait for half a minute.
const OUTAGE: Nanos = Nanos::from_secs(40);
/// Turns in which an append is waited for.
const APPEND_TURNS: u32 = 3_000;
/// Turns in a row in which all nodes have all there is, before one may lose its directory.
const SYNCED_TURNS: u32 = 30;
/// Turns in which it is waited for a moment at which a directory may be lost.
const EVERYWHERE_TURNS: u32 = 200;
/// Within this all is well again when nothing befalls any more: a call takes half a minute, and is made again.
const PATIENCE: Nanos = Nanos::from_secs(180);
/// A process or host stands still for so long at most.
const PAUSED_MOST: u64 = 3_000_000_000;

pub(super) struct Trouble<'w> {
    pub stage: Arc<Stage>,
    world: &'w World,
    draw: Random,
    nodes: [Option<Process>; NODES],
    writers: Vec<Process>,
    operator: Option<Process>,
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
            writers: Vec::new(),
            operator: None,
            started: 0,
            cuts: BTreeSet::new(),
            deaths: stage.shared.plan.deaths * 4,
        }
    }

    pub fn begin(&mut self) {
        for host in 0..NODES {
            self.draw_sync_time(host);
            self.start_node(host);
        }
        self.start_writer();
    }

    fn draw_sync_time(&mut self, host: usize) {
        let time = self.draw.pick(&[0, 100, 2_000, 20_000]);
        self.world.files(host).set_sync_time(Nanos::from_micros(time));
    }

    fn start_node(&mut self, host: usize) {
        let stage = Arc::clone(&self.stage);
        self.stage.clear_post(host);
        self.nodes[host] = Some(self.world.process(host, "node", move || node::run(&stage, host)));
    }

    /// One more start of the database, on any of the hosts for them.
    pub fn start_writer(&mut self) {
        let host = NODES + self.draw.index(WRITERS);
        let (stage, number) = (Arc::clone(&self.stage), self.started);
        self.started += 1;
        let writer = self
            .world
            .process(host, "writer", move || writer::run(&stage, host, number));
        self.writers.push(writer);
    }

    /// Writers work, and all of this comes over them.
    pub fn come(&mut self) {
        let goal = self.stage.shared.plan.transactions / 4;
        for _ in 0..LEAST + self.draw.below(MORE) {
            if self.stage.shared.has_failed() || self.stage.operations() > goal {
                return;
            }
            let rests = self.draw.pick(&[3, 60, 500, 2_500]);
            rt::sleep(Nanos::from_micros(1 + self.draw.below(rests * 1_000)));
            self.befall();
            self.raise();
        }
    }

    fn befall(&mut self) {
        self.stage.set_whole(false);
        match self.draw.below(19) {
            0..2 => self.kill_node(),
            2..5 => self.cut_power(1),
            5 | 6 => {
                let count = self.draw.pick(&[2, NODES]);
                self.cut_power(count);
            }
            7 => self.stop_node(),
            8..10 => self.cut_or_mend(),
            10 => self.change_network(),
            11 => self.kill_writer(),
            12 => self.take_over(),
            13 => self.pause(),
            14 => self.isolate_leader(),
            15 if self.draw.one_in(4) => self.lose_majority(),
            16 | 17 => self.lose_directory(),
            18 => self.stall(),
            _ => self.be_calm(),
        }
    }

    fn running(&self) -> Vec<usize> {
        let is_running = |host: &usize| self.nodes[*host].as_ref().is_some_and(Process::is_running);
        (0..NODES).filter(is_running).collect()
    }

    fn any_running(&mut self) -> Option<usize> {
        let running = self.running();
        (!running.is_empty()).then(|| self.draw.pick(&running))
    }

    fn may_die(&mut self) -> bool {
        let may = self.deaths > 0;
        self.deaths = self.deaths.saturating_sub(1);
        may
    }

    fn kill_node(&mut self) {
        if let Some(host) = self.any_running().filter(|_| self.may_die()) {
            self.stage.shared.befalls("deaths: node killed");
            self.nodes[host].take().iter().for_each(Process::kill);
        }
    }

    /// Of so many nodes at once.
    fn cut_power(&mut self, count: usize) {
        if !self.may_die() {
            return;
        }
        self.await_append();
        let what = match count {
            1 => "deaths: power cut of a node",
            NODES => "deaths: power cut of all nodes",
            _ => "deaths: power cut of a majority",
        };
        self.stage.shared.befalls(what);
        let first = self.draw.index(NODES);
        for host in (0..count).map(|n| (first + n) % NODES) {
            self.world.lose_host(host);
            self.nodes[host] = None;
        }
    }

    /// In half of the cases a moment at which an append was just acknowledged: what nodes have said, and not synced,
    /// matters most then.
    fn await_append(&mut self) {
        let from = self.stage.model().acknowledged();
        for _ in 0..if self.draw.one_in(2) { APPEND_TURNS } else { 0 } {
            if self.stage.model().acknowledged() > from {
                return;
            }
            rt::sleep(Nanos::from_micros(10));
        }
    }

    /// Most nodes are gone for longer than calls wait.
    fn lose_majority(&mut self) {
        if self.deaths > 0 {
            self.cut_power(2);
            rt::sleep(OUTAGE);
        }
    }

    /// A node's process is killed, and all of its files are gone; it begins with none. Nothing is lost for good: the
    /// others have all there is, and no other directory was lost that is not let in.
    fn lose_directory(&mut self) {
        if self.stage.lost().is_some() || !self.await_everywhere() || !self.may_die() {
            return;
        }
        self.stage.shared.befalls("deaths: directory lost");
        let host = self.draw.index(NODES);
        self.nodes[host].take().iter().for_each(Process::kill);
        self.world.set_files(host, &MemFs::new());
        self.draw_sync_time(host);
        self.stage.set_lost(Some(host));
        self.start_node(host);
        self.start_operator();
    }

    /// All nodes have all there is, and have had it for long enough to have it on their drives.
    fn await_everywhere(&self) -> bool {
        (0..NODES).for_each(|host| self.world.files(host).stall_until(Nanos::ZERO));
        let mut in_a_row = 0;
        (0..EVERYWHERE_TURNS).any(|_| {
            in_a_row = match self.stage.is_everywhere() {
                true => in_a_row + 1,
                false => 0,
            };
            rt::sleep(Nanos::from_millis(10));
            in_a_row >= SYNCED_TURNS
        })
    }

    /// Somebody lets a new directory in, in place of one that tried so far.
    fn start_operator(&mut self) {
        self.operator.take().iter().for_each(Process::kill);
        let (stage, host) = (Arc::clone(&self.stage), NODES + self.draw.index(WRITERS));
        let body = move || operator::run(&stage, host);
        self.operator = Some(self.world.process(host, "operator", body));
    }

    /// Whether a new directory is not let in, and no operator tries.
    fn wants_operator(&self) -> bool {
        self.stage.lost().is_some() && !self.operator.as_ref().is_some_and(Process::is_running)
    }

    /// A node ends in order, and begins again at some time.
    fn stop_node(&mut self) {
        let Some(host) = self.any_running() else { return };
        self.stage.shared.befalls("nodes stopped in order");
        self.stage.ask_end(host);
        if let Some(node) = self.nodes[host].take() {
            self.await_end("a node ends", &node);
        }
    }

    fn await_end(&self, what: &str, process: &Process) {
        let has_ended = self.stage.await_that(what, PATIENCE, || !process.is_running());
        if has_ended && let Exit::Panicked(why) = process.join() {
            self.stage.fail(format!("{}: {why}", process.name()));
        }
    }

    fn cut_or_mend(&mut self) {
        let hosts = (NODES + WRITERS) as u64;
        let (from, to) = (self.draw.below(hosts) as usize, self.draw.below(hosts) as usize);
        if from == to || from >= NODES && to >= NODES {
            return;
        }
        match self.cuts.contains(&(from, to)) {
            true => self.mend(from, to),
            false => {
                self.cut(from, to);
                // One way alone, or both.
                if self.draw.one_in(2) {
                    self.cut(to, from);
                }
            }
        }
    }

    fn cut(&mut self, from: usize, to: usize) {
        if self.cuts.insert((from, to)) {
            self.stage.shared.befalls("faults: way cut");
            self.stage.net.cut(&name_of(from), &name_of(to));
        }
    }

    fn mend(&mut self, from: usize, to: usize) {
        if self.cuts.remove(&(from, to)) {
            self.stage.net.mend(&name_of(from), &name_of(to));
        }
    }

    /// The node that leads does not reach the others; writers reach it.
    fn isolate_leader(&mut self) {
        let leads = |host: &usize| {
            self.stage
                .status(*host)
                .is_some_and(|status| status.leader == status.node)
        };
        let leader = self.running().into_iter().find(leads);
        for (leader, other) in leader
            .into_iter()
            .flat_map(|leader| (0..NODES).map(move |other| (leader, other)))
        {
            if leader != other {
                self.cut(leader, other);
                self.cut(other, leader);
            }
        }
    }

    fn change_network(&mut self) {
        self.stage.shared.befalls("faults: another network");
        self.stage.net.set_faults(Faults::random(self.draw.word()));
    }

    fn pause(&mut self) {
        let time = Nanos(self.draw.below(PAUSED_MOST));
        let host = self.draw.below((NODES + WRITERS) as u64) as usize;
        self.stage.shared.befalls("faults: pause");
        self.world.pause(host, time);
    }

    /// Drives do not come back with writes and syncs for a while.
    fn stall(&mut self) {
        self.stage.shared.befalls("faults: drives stand still");
        let (first, count) = (self.draw.index(NODES), self.draw.pick(&[1, 2, NODES]));
        for host in (0..count).map(|n| (first + n) % NODES) {
            let until = rt::now() + Nanos(self.draw.below(2 * PAUSED_MOST));
            self.world.files(host).stall_until(until);
        }
    }

    fn kill_writer(&mut self) {
        self.writers.retain(Process::is_running);
        if !self.writers.is_empty() && self.may_die() {
            self.stage.shared.befalls("deaths: writer killed");
            let n = self.draw.index(self.writers.len());
            self.writers.swap_remove(n).kill();
        }
    }

    /// Another takes the database from one that lives on.
    fn take_over(&mut self) {
        if self.writers.iter().filter(|writer| writer.is_running()).count() < 3 {
            self.stage.shared.befalls("writers beside one that lives on");
            self.start_writer();
        }
    }

    /// What is down begins again, at some time; there is a writer.
    fn raise(&mut self) {
        for host in 0..NODES {
            let is_down = self.nodes[host].as_ref().is_none_or(|node| !node.is_running());
            if is_down && self.draw.one_in(2) {
                self.stage.shared.befalls("nodes begun again");
                self.start_node(host);
            }
        }
        if self.wants_operator() {
            self.start_operator();
        }
        self.look_at_writers();
        if !self.writers.iter().any(Process::is_running) {
            self.start_writer();
        }
        if self.draw.one_in(3) {
            let cuts: Vec<_> = self.cuts.iter().copied().collect();
            cuts.into_iter().for_each(|(from, to)| self.mend(from, to));
        }
    }

    fn look_at_writers(&mut self) {
        let (running, ended): (Vec<Process>, Vec<Process>) = std::mem::take(&mut self.writers)
            .into_iter()
            .partition(Process::is_running);
        self.writers = running;
        for writer in ended {
            if let Exit::Panicked(why) = writer.join() {
                self.stage.fail(format!("a writer: {why}"));
            }
        }
    }

    /// Nothing is wrong any more.
    pub fn mend_all(&mut self) {
        self.cuts.clear();
        self.stage.net.mend_all();
        self.stage.net.set_faults(Faults::default());
        for host in 0..NODES {
            if self.nodes[host].as_ref().is_none_or(|node| !node.is_running()) {
                self.start_node(host);
            }
        }
    }

    /// For a while nothing is wrong: what begins late in it succeeds.
    fn be_calm(&mut self) {
        self.stage.shared.befalls("times without a fault");
        self.mend_all();
        self.stage.set_whole(true);
        let until = rt::now() + CALM;
        while rt::now() < until && !self.stage.shared.has_failed() {
            rt::sleep(Nanos::from_millis(100));
        }
    }

    /// No more faults: a directory that was lost is replaced, a last writer takes the database, and all writers end.
    /// Whether they did.
    pub fn calm_down(&mut self) -> bool {
        if self.stage.shared.has_failed() {
            return false;
        }
        self.mend_all();
        self.stage.set_whole(true);
        self.start_writer();
        let (stage, from) = (Arc::clone(&self.stage), self.stage.operations());
        if stage.lost().is_some() {
            self.start_operator();
        }
        let is_in = stage.await_that("a new directory is let in", PATIENCE, || stage.lost().is_none());
        let has_come = is_in && stage.await_that("writers go on", PATIENCE, || stage.operations() >= from + 10);
        if !has_come {
            stage.tell_statuses();
        }
        stage.end_writers();
        for writer in std::mem::take(&mut self.writers) {
            self.await_end("writers end", &writer);
        }
        has_come && !stage.shared.has_failed()
    }

    /// All nodes lose their power, and begin again.
    pub fn cut_power_in_the_end(&mut self) {
        for host in 0..NODES {
            self.world.lose_host(host);
            self.start_node(host);
        }
    }

    /// Runs one process on a writers' host to its end; whether nothing is wrong then.
    pub fn run_one(&mut self, name: &str, body: impl FnOnce(&Arc<Stage>) + Send + 'static) -> bool {
        let stage = Arc::clone(&self.stage);
        let process = self.world.process(NODES, name, move || body(&stage));
        self.await_end(name, &process);
        !self.stage.shared.has_failed()
    }

    pub fn end(&mut self) {
        self.nodes.iter().flatten().for_each(Process::kill);
        self.writers.iter().for_each(Process::kill);
        self.operator.iter().for_each(Process::kill);
    }
}
