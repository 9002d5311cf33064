//! A server: what `cenote run --role auto` does, with time that passes in place of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_base::random::Random;
use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Lsn, Result};
use cenote_cluster::decide::{may_begin_as_writer, takes_at_once};
use cenote_cluster::lease::SILENCE;
use cenote_cluster::pausing::all_are_needed;
use cenote_cluster::{Claimed, Decision, Lease, Looked, Member, OverNodes};
use cenote_storage::nodes::StorageNodes;
use cenote_storage_node::{NodesClient, Server, ServerRole, Usage};

use super::stage::{Stage, name_of};
use crate::clock;

/// As in the program.
const TURN: Nanos = Nanos::from_millis(20);
const AGAIN: Nanos = Nanos::from_millis(100);
const PAUSE_GRACE: Nanos = Nanos::from_secs(5);
const WORD_TIMEOUT: Nanos = Nanos::from_millis(800);
const NODE_TIMEOUT: Nanos = Nanos::from_millis(300);
/// Between two answers of a server.
const ANSWERS: Nanos = Nanos::from_millis(7);
/// Between two commits.
const COMMITS: Nanos = Nanos::from_millis(100);
const COMMIT_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Where the database's log begins.
const ORIGIN: Lsn = Lsn::from_raw(1 << 20);

/// The body of its process.
pub(super) fn run(stage: &Arc<Stage>, host: usize, number: u64) {
    let words = stage
        .client(host)
        .with_timeout(WORD_TIMEOUT)
        .with_answer_timeout(NODE_TIMEOUT);
    let asked = Arc::clone(stage);
    let cluster = OverNodes {
        client: words,
        is_refused: Box::new(move |address| asked.is_refused(address)),
    };
    let me = Server {
        id: rt::random_u128().max(1),
        name: format!("server {number}"),
        address: name_of(host),
        role: ServerRole::Opening,
        epoch: 0,
        position: Lsn::ZERO,
        may_write: true,
        sessions: 0,
    };
    stage.set_listening(host, true);
    let mut server = Life {
        stage,
        host,
        member: Member::join(Box::new(cluster), me, Some(stage.pausing)),
        draw: Random(rt::random()),
    };
    server.go_on();
    stage.set_listening(host, false);
}

struct Life<'s> {
    stage: &'s Arc<Stage>,
    host: usize,
    member: Member,
    draw: Random,
}

/// What it is: a reader, or the start that has the database.
enum Standing {
    Reader,
    Writer { epoch: u64 },
}

/// What comes next.
enum Next {
    Over,
    Become(Standing),
    Leave { is_pause: bool },
}

impl Life<'_> {
    /// Until the world is over, or another has the database: then its process begins anew.
    fn go_on(&mut self) -> Option<()> {
        let mut standing = self.begin()?;
        loop {
            let next = match standing {
                Standing::Reader => self.read(),
                Standing::Writer { epoch } => self.write(epoch),
            };
            standing = match next {
                Next::Over => return None,
                Next::Become(standing) => standing,
                Next::Leave { is_pause } => {
                    let epoch = match standing {
                        Standing::Writer { epoch } => epoch,
                        Standing::Reader => 0,
                    };
                    self.leave(epoch, is_pause)?
                }
            };
        }
    }

    /// `None`: the world is over.
    fn begin(&mut self) -> Option<Standing> {
        while !self.stage.is_over() {
            if let Ok(Some(standing)) = self.try_to_begin() {
                return Some(standing);
            }
            rt::sleep(AGAIN);
        }
        None
    }

    fn try_to_begin(&mut self) -> Result<Option<Standing>> {
        let seen = self.member.ask()?;
        if seen.has_database && !takes_at_once(self.member.id(), &seen) {
            self.takes_time(60);
            return Ok(Some(Standing::Reader));
        }
        if !may_begin_as_writer(&seen) {
            return Ok(None);
        }
        let claimed = self.member.claim(seen.epoch, SILENCE);
        let claimed = claimed.map(Some).or_else(|error| match seen.epoch {
            0 => Ok(None),
            _ => Err(error),
        })?;
        if claimed.is_some_and(|claimed| !claimed.was_left()) {
            self.is_taken_from(seen.epoch);
        }
        let client = Arc::new(self.stage.client(self.host));
        let says = Arc::clone(&client);
        self.member.opens(Arc::new(move || says.epoch()));
        let epoch = self.take(&client, seen.epoch)?;
        claimed.into_iter().for_each(|claimed| self.member.outlast(claimed));
        Ok(Some(Standing::Writer { epoch }))
    }

    /// The database is this process's from the take on; it is made if there is none.
    fn take(&mut self, client: &NodesClient, after: u64) -> Result<u64> {
        let taken = client.take(after, b"server")?;
        self.stage.shared.count("takes of the database");
        self.stage.set_has(self.host, client.epoch());
        if taken.control.is_none() {
            match client.begin(b"control", ORIGIN) {
                // It was asked twice.
                Ok(()) | Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.takes_time(80);
        Ok(client.epoch())
    }

    fn takes_time(&mut self, most_ms: u64) {
        rt::sleep(Nanos::from_micros(self.draw.below(most_ms * 1000)));
    }

    fn look(&self) {
        let (stage, host) = (Arc::clone(self.stage), self.host);
        self.member.look(Arc::new(move || {
            let (sessions, statements) = stage.used(host);
            Some(Looked {
                position: Lsn::ZERO,
                sessions,
                direct: 0,
                statements,
            })
        }));
    }

    fn read(&mut self) -> Next {
        // It is said again.
        let _ = self.member.become_role(ServerRole::Reader, 0);
        self.look();
        self.stage.begin_reading(self.host);
        loop {
            if self.stage.is_over() {
                return Next::Over;
            }
            match self.member.wait(TURN) {
                Decision::Take { after, silent } => match self.promote(after, silent) {
                    Ok(epoch) => {
                        self.stage.end_serving(self.host);
                        return Next::Become(Standing::Writer { epoch });
                    }
                    Err(_) => rt::sleep(AGAIN),
                },
                Decision::Pause if self.drains() => return Next::Leave { is_pause: true },
                Decision::Pause => rt::sleep(TURN),
                _ => {}
            }
        }
    }

    /// As the program's readers do: proxies send nothing new, and sessions have some time to end.
    fn drains(&mut self) -> bool {
        let _ = self.member.become_role(ServerRole::Opening, 0);
        let until = rt::now() + PAUSE_GRACE;
        let is_needed = || self.member.seen().is_some_and(|seen| all_are_needed(&seen));
        while rt::now() < until && !self.stage.is_over() && !is_needed() {
            if self.stage.close_if_unused(self.host) {
                return true;
            }
            rt::sleep(TURN);
        }
        self.stage.shared.count("pauses that clients put off");
        let _ = self.member.become_role(ServerRole::Reader, 0);
        false
    }

    fn promote(&mut self, after: u64, silent: Nanos) -> Result<u64> {
        let claimed: Claimed = self.member.claim(after, silent)?;
        // What comes between, and the way to the nodes.
        self.takes_time(300);
        let client = Arc::new(self.stage.client(self.host));
        let says = Arc::clone(&client);
        self.member.opens(Arc::new(move || says.epoch()));
        let taken = self.take(&client, after);
        let epoch = taken.inspect_err(|_| self.member.opens(Arc::new(|| 0)))?;
        if silent > Nanos::ZERO {
            self.is_taken_from(after);
        }
        let _ = self.member.become_role(ServerRole::Opening, epoch);
        self.takes_time(100);
        self.member.outlast(claimed);
        Ok(epoch)
    }

    /// The database is taken from a server that did not leave it.
    fn is_taken_from(&self, after: u64) {
        self.stage.shared.count("databases taken of servers that were silent");
        // A node that leads anew does not know that it was left in order.
        if self.stage.is_settled() && self.stage.is_had(after) {
            let wrong = format!("the database is taken from start {after}, though nothing is wrong");
            self.stage.fail(wrong);
        }
    }

    fn write(&mut self, epoch: u64) -> Next {
        let lease = self.member.lease();
        let _ = self.member.become_role(ServerRole::Writer, epoch);
        self.look();
        self.stage.begin_serving(self.host, epoch);
        let is_ended = Arc::new(AtomicBool::new(false));
        let (stage, ended) = (Arc::clone(self.stage), Arc::clone(&is_ended));
        let answers = rt::spawn("sessions", move || answer(&stage, epoch, &lease, &ended));
        let (stage, ended, host) = (Arc::clone(self.stage), Arc::clone(&is_ended), self.host);
        rt::spawn("commits", move || commit(&stage, host, &ended));
        let next = self.wait_as_writer();
        self.stage.end_serving(self.host);
        is_ended.store(true, Ordering::Release);
        if let Err(panic) = answers.join() {
            std::panic::resume_unwind(panic);
        }
        next
    }

    fn wait_as_writer(&mut self) -> Next {
        loop {
            if self.stage.is_over() {
                return Next::Over;
            }
            match self.member.wait(TURN) {
                Decision::Deposed { .. } => {
                    self.stage.set_has(self.host, 0);
                    self.stage.shared.count("servers that were deposed");
                    return Next::Over;
                }
                Decision::HandOver => return Next::Leave { is_pause: false },
                Decision::Pause if self.stage.close_if_unused(self.host) => return Next::Leave { is_pause: true },
                Decision::Pause => rt::sleep(TURN),
                _ => {}
            }
        }
    }

    /// Leaves the database in order, if it has it, and begins again, at once or behind a pause.
    fn leave(&mut self, epoch: u64, is_pause: bool) -> Option<Standing> {
        self.takes_time(120);
        self.stage.set_has(self.host, 0);
        let _ = self.member.become_role(ServerRole::Gone, epoch);
        if is_pause {
            self.pause(epoch)?;
        }
        self.member.opens(Arc::new(|| 0));
        let _ = self.member.become_role(ServerRole::Opening, 0);
        self.begin()
    }

    fn pause(&mut self, epoch: u64) -> Option<()> {
        self.stage.shared.count("pauses of servers");
        let _ = self.member.become_role(ServerRole::Paused, epoch);
        while !self.stage.is_over() {
            if self.stage.takes_call(self.host) {
                self.stage.shared.count("pauses that a client of the server ended");
                return Some(());
            }
            if self.member.wait(TURN) == Decision::Resume {
                self.stage.shared.count("pauses that ended");
                return Some(());
            }
        }
        None
    }
}

/// Commits of a server: entries that the nodes' drives have to sync all the time.
fn commit(stage: &Arc<Stage>, host: usize, is_ended: &AtomicBool) {
    let client = stage.client(host).with_timeout(COMMIT_TIMEOUT);
    let process = rt::random_u128();
    while !is_ended.load(Ordering::Acquire) && !stage.is_over() {
        if client.report_usage(process, Usage::default()).is_ok() {
            stage.shared.count("commits");
        }
        rt::sleep(COMMITS);
    }
}

/// The sessions of a server: each answer rests on its lease.
fn answer(stage: &Arc<Stage>, epoch: u64, lease: &Lease, is_ended: &AtomicBool) {
    while !is_ended.load(Ordering::Acquire) && !stage.is_over() {
        let begun = clock::now();
        if lease.holds() {
            stage.note_answer(epoch, begun);
            stage.shared.count("answers of servers");
        }
        rt::sleep(ANSWERS);
    }
}
