//! The proxy: its client works and rests in turns, and it says so to the nodes, as `cenote proxy` does.

use std::sync::Arc;

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_storage_node::{Demand, Membership, NodesClient, ServerRole, ServerSeen};

use super::stage::{PROXY, Stage};

/// As in the program.
const LOOK: Nanos = Nanos::from_millis(100);
const LOOK_SOON: Nanos = Nanos::from_millis(10);
const WORD_TIMEOUT: Nanos = Nanos::from_millis(800);
const NODE_TIMEOUT: Nanos = Nanos::from_millis(300);
const SILENT: Nanos = Nanos::from_millis(1500);
/// Within this a client is served when nothing is wrong: a lease may have to run out, and a second pass behind it.
const SERVED: Nanos = Nanos::from_secs(6);

/// The body of its process.
pub(super) fn run(stage: &Arc<Stage>) {
    let client = stage
        .client(PROXY)
        .with_timeout(WORD_TIMEOUT)
        .with_answer_timeout(NODE_TIMEOUT);
    let mut proxy = Proxy {
        stage,
        client,
        draw: Random(rt::random()),
        id: rt::random_u128(),
    };
    while !stage.is_over() {
        if !stage.rests() && !proxy.work() {
            return;
        }
        let idle = proxy.draw.pick(&[0, 1_000, 12_000]);
        let idle = Nanos::from_millis(proxy.draw.below(idle + 1));
        proxy.ask_for(idle, 0);
    }
}

struct Proxy<'s> {
    stage: &'s Arc<Stage>,
    client: NodesClient,
    draw: Random,
    id: u128,
}

impl Proxy<'_> {
    /// What the nodes know of servers; they hear what clients need.
    fn demand(&self, waiting: u32, load: u32) -> Option<Membership> {
        let proxy = self.id;
        self.client.demand(Demand { proxy, waiting, load }).ok()
    }

    /// Tells nodes of a load for a while.
    fn ask_for(&self, time: Nanos, load: u32) {
        let until = rt::now() + time;
        loop {
            self.demand(0, load);
            if rt::now() >= until || self.stage.is_over() {
                return;
            }
            rt::sleep(LOOK);
        }
    }

    /// A client waits for the writer, and uses it; false: the world is over.
    fn work(&mut self) -> bool {
        let (begun, was_settled) = (rt::now(), self.stage.is_settled());
        loop {
            if self.stage.is_over() {
                return false;
            }
            let seen = self.demand(1, 0);
            let servers = seen.as_ref().map(|seen| self.servers_for(seen)).unwrap_or_default();
            if let Some((name, epoch)) = servers.into_iter().find(|(name, epoch)| self.stage.enter(name, *epoch)) {
                self.use_it(&name, epoch);
                return true;
            }
            let waited = rt::now().since(begun);
            if was_settled && self.stage.is_settled() && waited > SERVED {
                self.stage.fail(format!(
                    "a client waits for {waited}, though nothing is wrong: {seen:?}"
                ));
                return false;
            }
            rt::sleep(LOOK_SOON);
        }
    }

    /// Where a client goes: to a reader with some of its statements, if there is one, else to the writer.
    fn servers_for(&mut self, seen: &Membership) -> Vec<(String, u64)> {
        let reads = self.draw.one_in(2);
        let is_reader = |one: &&ServerSeen| reads && one.server.role == ServerRole::Reader && one.ago < SILENT;
        let readers = seen.servers.iter().filter(is_reader);
        let readers = readers.map(|one| (one.server.address.clone(), 0));
        readers.chain(writer_of(seen)).collect()
    }

    /// Nothing that is in order ends a session in use, but a switch and a reader that takes the database.
    fn use_it(&mut self, name: &str, epoch: u64) {
        self.stage.count_served();
        if epoch == 0 {
            self.stage.shared.count("reads at readers");
        }
        let (time, load) = (self.draw.pick(&[1, 300, 4_000]), self.draw.pick(&[0, 90, 250, 900]));
        let time = Nanos::from_millis(self.draw.below(time + 1));
        self.ask_for(time, load);
        if !self.stage.leave(name, epoch) {
            self.stage.shared.count("sessions that ended in use");
        }
    }
}

/// Where the server is that has the database, and its start.
fn writer_of(seen: &Membership) -> Option<(String, u64)> {
    let writer = &seen.writer()?.server;
    let serves = writer.role == ServerRole::Writer && seen.vacant_for.is_none();
    serves.then(|| (writer.address.clone(), writer.epoch))
}
