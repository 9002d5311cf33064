//! What befalls keepers, mirrors, and the ways to them, while users are at work.

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};

use super::keeper::{self, Begins};
use super::stage::{NODES, Stage, USERS};
use super::user;
use crate::rdma::Faults;
use crate::{Exit, Process, World};

/// What befalls in a world, at least.
const LEAST: u64 = 3;
/// Something that has to come comes within: time jumps.
const PATIENCE: Nanos = Nanos::from_secs(600);
/// How long a mirror is waited for that may be on its way to be whole.
const WHOLE: Nanos = Nanos::from_secs(5);
/// Users work no longer than this for one turn of what befalls, however little they get done.
const TURN_MOST: Nanos = Nanos::from_secs(1);
/// Users look for a keeper again that did not answer.
const BACK: Nanos = Nanos::from_millis(1_100);

pub(super) struct Trouble<'w> {
    pub stage: Arc<Stage>,
    pub world: &'w World,
    draw: Random,
    keeper: Option<Process>,
    number: u64,
    host: usize,
    /// One that was taken for lost, and lives.
    former: Option<Process>,
    users: Vec<Process>,
}

impl<'w> Trouble<'w> {
    pub fn new(stage: &Arc<Stage>, world: &'w World, seed: u64) -> Self {
        Self {
            stage: Arc::clone(stage),
            world,
            draw: Random(seed),
            keeper: None,
            number: 0,
            host: 0,
            former: None,
            users: Vec::new(),
        }
    }

    /// The first keeper, and what all users share. Whether all is laid out.
    pub fn begin(&mut self) -> bool {
        let first = self.stage.appoint();
        self.start_keeper(first, Begins::Anew);
        let nodes = self.stage.nodes(first);
        let is_served = || nodes.calls.is_served() && nodes.desk.is_served();
        if !self.await_that("the first keeper serves", PATIENCE, is_served) {
            return false;
        }
        let draw = Random(self.draw.word());
        self.run_one("founder", move |stage| user::found(stage, draw))
    }

    /// One that was killed may have left a promoted mirror out of its place: in the pool that lies there already.
    fn start_keeper(&mut self, number: u64, begins: Begins) {
        let begins = self.stage.image().map_or(begins, Begins::With);
        let (stage, host) = (Arc::clone(&self.stage), self.host);
        self.number = number;
        let body = move || keeper::run(&stage, (number, host), begins);
        self.keeper = Some(self.world.process(host, "keeper", body));
    }

    /// Users work, and all of this comes over them.
    pub fn come(&mut self) {
        for _ in 0..2 {
            let (stage, threads) = (Arc::clone(&self.stage), 1 + self.draw.below(2) as usize);
            self.users
                .push(self.world.process(USERS, "users", move || user::run(&stage, threads)));
        }
        for _ in 0..LEAST + self.draw.below(4) {
            if self.stage.shared.has_failed() {
                return;
            }
            let faults = match self.draw.one_in(3) {
                true => Faults::random(self.draw.word()),
                false => Faults::default(),
            };
            self.stage.network.set_faults(faults);
            self.let_work();
            self.befall();
        }
        self.let_work();
    }

    /// Users get something done.
    fn let_work(&mut self) {
        let (turns, until) = (self.draw.pick(&[5, 40, 120]), rt::now() + TURN_MOST);
        let from = self.stage.turns();
        let stage = Arc::clone(&self.stage);
        stage.wait(TURN_MOST, || stage.turns() >= from + turns || rt::now() > until);
        rt::sleep(Nanos::from_micros(self.draw.below(200)));
    }

    fn befall(&mut self) {
        match self.draw.below(8) {
            0..2 => self.lose_node("node lost with its memory", true),
            2 => self.lose_node("node taken for lost, and lives on", false),
            3 => self.kill(),
            4 => self.lose_mirror(),
            5..7 => self.cut_from_mirror(),
            _ => self.cut_users(),
        }
    }

    /// The mirror takes the part's place, if it is whole; it is waited for.
    fn lose_node(&mut self, what: &str, dies: bool) {
        let stage = Arc::clone(&self.stage);
        // Another may be on its way to be whole.
        stage.wait(WHOLE, || stage.is_whole());
        self.lose_node_now(what, dies);
    }

    fn lose_node_now(&mut self, what: &str, dies: bool) {
        let Some(number) = self.stage.promote() else {
            self.stage.shared.count("nodes that were not lost: no whole mirror");
            return;
        };
        self.stage.shared.befalls(what);
        let lost = self.host;
        if dies {
            self.world.lose_host(lost);
            self.world.lose_device(lost);
            self.keeper = None;
        }
        if let Some(former) = std::mem::replace(&mut self.former, self.keeper.take()) {
            former.kill();
        }
        self.host = (lost + 1) % NODES;
        self.start_keeper(number, Begins::There);
    }

    /// The process of the keeper is killed, and another begins on the memory that is there.
    fn kill(&mut self) {
        self.stage.shared.befalls("keepers killed, and begun anew");
        if let Some(keeper) = self.keeper.take() {
            keeper.kill();
        }
        let number = self.stage.appoint();
        self.start_keeper(number, Begins::There);
        if self.draw.one_in(2) {
            // The mirror of before must not take its place when users have been answered.
            let stage = Arc::clone(&self.stage);
            stage.wait(PATIENCE, || stage.current() == number);
            rt::sleep(BACK);
            self.let_work();
            self.lose_node_now("node lost whose keeper has just begun anew", true);
        }
    }

    fn lose_mirror(&mut self) {
        if let Some(lent) = self.stage.mirror() {
            self.stage.shared.befalls("mirror's node lost");
            lent.node.lose();
        }
    }

    /// The keeper does not reach its mirror for a while; then the way is mended, or the keeper's node is lost: the
    /// table may call the mirror whole still.
    fn cut_from_mirror(&mut self) {
        let stage = Arc::clone(&self.stage);
        stage.wait(WHOLE, || stage.is_whole());
        let Some(lent) = stage.mirror() else { return };
        stage.shared.befalls("way to the mirror cut");
        let host = self.host;
        self.stage.network.cut(host, &lent.node);
        rt::sleep(Nanos::from_micros(self.draw.pick(&[10, 100, 1_000, 20_000])));
        match self.draw.below(3) {
            0 => self.lose_node_now("node lost that did not reach its mirror", true),
            1 => self.lose_node_now("node taken for lost that did not reach its mirror", false),
            _ => {}
        }
        self.stage.network.mend(host, &lent.node);
    }

    fn cut_users(&mut self) {
        let stage = Arc::clone(&self.stage);
        stage.wait(WHOLE, || stage.is_whole());
        self.stage.shared.befalls("way from users to the keeper cut");
        let nodes = self.stage.nodes(self.number);
        self.stage.network.cut(USERS, &nodes.calls);
        self.stage.network.cut(USERS, &nodes.desk);
        rt::sleep(Nanos::from_micros(self.draw.pick(&[100, 5_000, 50_000])));
        if self.draw.one_in(2) {
            self.lose_node_now("node lost that users did not reach", true);
        }
        self.stage.network.mend(USERS, &nodes.calls);
        self.stage.network.mend(USERS, &nodes.desk);
    }

    /// No more faults; users end what they are at. Then the node is lost once more: what was acknowledged is in the
    /// mirror.
    pub fn calm_down(&mut self) {
        self.stage.network.set_faults(Faults::default());
        self.stage.calm();
        let users = std::mem::take(&mut self.users);
        let all_ended = || users.iter().all(|user| !user.is_running());
        if !self.await_that("all users end", PATIENCE, all_ended) {
            return;
        }
        users.iter().for_each(|user| self.look(user));
        let stage = Arc::clone(&self.stage);
        if !self.await_that("a mirror is whole in the end", PATIENCE, || stage.is_whole()) {
            return;
        }
        self.lose_node_now("node lost in the end", true);
        let (stage, number) = (Arc::clone(&self.stage), self.number);
        self.await_that("the last keeper serves", PATIENCE, || stage.current() == number);
    }

    /// Runs a process of the users' host to its end. Whether all is well.
    pub fn run_one(&mut self, name: &str, body: impl FnOnce(&Arc<Stage>) + Send + 'static) -> bool {
        let stage = Arc::clone(&self.stage);
        let process = self.world.process(USERS, name, move || body(&stage));
        let has_ended = self.await_that(name, PATIENCE, || !process.is_running());
        if has_ended {
            self.look(&process);
        }
        !self.stage.shared.has_failed()
    }

    fn look(&self, process: &Process) {
        if let Exit::Panicked(why) = process.join() {
            self.stage.shared.fail(format!("{}: {why}", process.name()));
        }
    }

    /// Waits for something that has to come; if it does not, that is a failure.
    pub fn await_that(&self, what: &str, time: Nanos, is_so: impl FnMut() -> bool) -> bool {
        let has_come = self.stage.wait(time, is_so);
        if !has_come && !self.stage.shared.has_failed() {
            self.stage.shared.fail(format!("{what}: not within {time}"));
        }
        has_come
    }

    pub fn end(&mut self) {
        let left = self.users.drain(..).chain(self.keeper.take()).chain(self.former.take());
        left.for_each(|process| process.kill());
    }
}
