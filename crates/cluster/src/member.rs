//! A server among the others: a thread says what it is and hears of them, and what follows is asked for.

use std::fmt;
use std::sync::{Arc, Weak};

use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Lsn, Result};
use cenote_storage_node::{Membership, NodesClient, Server, ServerRole};

use crate::decide::{BEAT, BEAT_IN_SWITCH, Decision, decide};
use crate::lease::{Lease, SILENCE};

/// What a server asks of the others, and of the storage nodes that they share.
pub trait Cluster: Send + Sync {
    /// Says what a server is; what the node that leads knows of all.
    ///
    /// # Errors
    /// No node leads, or there are too many servers.
    fn announce(&self, server: &Server) -> Result<Membership>;

    /// The server of start `after` has been silent for so long: it is not heard from here on, and this server takes the
    /// database.
    ///
    /// # Errors
    /// It was heard; no node leads for certain.
    fn claim(&self, after: u64, silent: Nanos) -> Result<Membership>;

    /// Whether an address refuses connections: no process listens there.
    fn is_refused(&self, address: &str) -> bool;
}

/// Storage nodes, and how a server's address is asked.
pub struct OverNodes {
    /// With short timeouts: a word that comes late is none.
    pub client: NodesClient,
    /// Whether an address refuses connections.
    pub is_refused: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl Cluster for OverNodes {
    fn announce(&self, server: &Server) -> Result<Membership> {
        self.client.announce(server)
    }

    fn claim(&self, after: u64, silent: Nanos) -> Result<Membership> {
        self.client.claim(after, silent)
    }

    fn is_refused(&self, address: &str) -> bool {
        (self.is_refused)(address)
    }
}

/// See the module. Dropping it ends the thread: the others hear nothing more.
pub struct Member {
    shared: Arc<Shared>,
}

struct Shared {
    cluster: Box<dyn Cluster>,
    state: Mutex<State>,
    changed: Condvar,
    lease: Arc<Lease>,
    is_ended: AtomicBool,
}

/// For how long a claim holds at the node that has heard it, with some to spare.
const CLAIM_HOLDS: Nanos = Nanos::from_secs(4);

/// A writer that was found silent is not heard.
#[derive(Debug, Clone, Copy)]
pub struct Claimed {
    at: Nanos,
    term: u64,
}

/// The start of a server that opens the database; zero: it has not taken it yet.
pub type Start = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Where a server is in the log, and how many sessions it has.
pub type Look = Arc<dyn Fn() -> Option<(Lsn, usize)> + Send + Sync>;

struct State {
    me: Server,
    look: Option<Look>,
    start: Option<Start>,
    /// What was heard last, and when that was asked for.
    seen: Option<Membership>,
    decision: Decision,
    /// Words that were answered.
    words: u64,
    /// Why the last one was not.
    silence: Option<String>,
}

impl Member {
    /// Begins to say what `me` is.
    pub fn join(cluster: Box<dyn Cluster>, me: Server) -> Member {
        let shared = Arc::new(Shared {
            cluster,
            state: Mutex::new(State {
                me,
                look: None,
                start: None,
                seen: None,
                decision: Decision::Stay,
                words: 0,
                silence: None,
            }),
            changed: Condvar::default(),
            lease: Arc::default(),
            is_ended: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&shared);
        rt::spawn("member", move || run(&weak));
        Member { shared }
    }

    /// Until when this server may answer as the writer.
    pub fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.shared.lease)
    }

    /// Is something else from here on, and says so at once. `epoch`: of its start, where it has or had the database.
    ///
    /// # Errors
    /// No node has heard it; it is said again.
    pub fn become_role(&self, role: ServerRole, epoch: u64) -> Result<()> {
        {
            let mut state = self.shared.state.lock();
            (state.me.role, state.me.epoch) = (role, epoch);
            // What was decided was for what it was.
            state.decision = Decision::Stay;
        }
        self.shared.speak()
    }

    /// What is said with the next words beside what it is.
    pub fn look(&self, look: Look) {
        self.shared.state.lock().look = Some(look);
    }

    /// What was heard last.
    pub fn seen(&self) -> Option<Membership> {
        self.shared.state.lock().seen.clone()
    }

    /// Why nothing is heard, if so.
    pub fn silence(&self) -> Option<String> {
        self.shared.state.lock().silence.clone()
    }

    /// What to do; waits a while for something.
    pub fn wait(&self, timeout: Nanos) -> Decision {
        let state = self.shared.state.lock();
        let state = match state.decision {
            Decision::Stay => self.shared.changed.wait_timeout(state, timeout).0,
            _ => state,
        };
        state.decision.clone()
    }

    /// Before this server takes the database from start `after`, whose server was silent for so long: that is not heard from
    /// here on.
    ///
    /// # Errors
    /// It was heard.
    pub fn claim(&self, after: u64, silent: Nanos) -> Result<Claimed> {
        let at = rt::now();
        let seen = self.shared.cluster.claim(after, silent)?;
        Ok(Claimed { at, term: seen.term })
    }

    /// Returns when no lease of the former server can be left. At once, where the node that has heard the claim leads
    /// still: no word was answered since. Else after the longest lease that another one may have given.
    pub fn outlast(&self, claimed: Claimed) {
        let still_leads = || self.ask().is_ok_and(|seen| seen.term == claimed.term);
        if rt::now().since(claimed.at) > CLAIM_HOLDS || !still_leads() || rt::now().since(claimed.at) > CLAIM_HOLDS {
            rt::sleep(SILENCE);
        }
    }

    /// While it opens, this tells whether it has the database by now: its start.
    pub fn opens(&self, start: Start) {
        self.shared.state.lock().start = Some(start);
    }

    /// Hears the others as of now.
    ///
    /// # Errors
    /// No node has answered.
    pub fn ask(&self) -> Result<Membership> {
        self.shared.speak()?;
        let state = self.shared.state.lock();
        state
            .seen
            .clone()
            .ok_or_else(|| cenote_base::Error::Timeout("no storage node has answered yet".into()))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        write!(f, "Member {:?}, {} words", state.me, state.words)
    }
}

impl Shared {
    /// Until the next word: soon, where this server is to have the database.
    fn beat(&self) -> Nanos {
        let state = self.state.lock();
        let is_named = state.seen.as_ref().is_some_and(|seen| seen.switch_to == state.me.id);
        match is_named {
            true => BEAT_IN_SWITCH,
            false => BEAT,
        }
    }

    fn me(&self) -> Server {
        let (mut me, look, start) = {
            let state = self.state.lock();
            (state.me.clone(), state.look.clone(), state.start.clone())
        };
        if me.role == ServerRole::Opening
            && let Some(start) = start
        {
            me.epoch = start();
        }
        if let Some((position, sessions)) = look.and_then(|look| look()) {
            me.position = position;
            me.sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
        }
        me
    }

    /// Says what this server is, and decides by what it hears.
    fn speak(&self) -> Result<()> {
        let me = self.me();
        let sent = rt::now();
        let heard = self.cluster.announce(&me);
        let mut decision = Decision::Stay;
        if let Ok(seen) = &heard {
            if me.role == ServerRole::Writer && seen.epoch == me.epoch {
                self.lease.renew(sent);
            }
            decision = decide(&me, seen, false);
            if let Decision::Probe(address) = &decision {
                let is_refused = self.cluster.is_refused(address);
                decision = decide(&me, seen, is_refused);
            }
        }
        self.note(&me, heard, decision)
    }

    fn note(&self, me: &Server, heard: Result<Membership>, decision: Decision) -> Result<()> {
        let mut state = self.state.lock();
        let done = match heard {
            Ok(seen) => {
                state.words += 1;
                (state.seen, state.silence) = (Some(seen), None);
                Ok(())
            }
            Err(error) => {
                state.silence = Some(error.to_string());
                Err(error)
            }
        };
        // What it was when it asked is what was decided for.
        let is_the_same = state.me.role == me.role && (me.role == ServerRole::Opening || state.me.epoch == me.epoch);
        if is_the_same {
            state.decision = match decision {
                Decision::Probe(_) => Decision::Stay,
                decision => decision,
            };
        }
        drop(state);
        self.changed.notify_all();
        done
    }
}

fn run(shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        if shared.is_ended.load(Ordering::Acquire) {
            return;
        }
        let begun = rt::now();
        // Why nothing was heard is noted.
        let _ = shared.speak();
        let beat = shared.beat();
        drop(shared);
        rt::sleep(Nanos(beat.0.saturating_sub(rt::now().since(begun).0).max(1_000_000)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_base::Error;
    use cenote_storage_node::ServerSeen;
    use std::collections::VecDeque;

    type Answers = Arc<Mutex<VecDeque<Result<Membership>>>>;

    struct Fake(Answers);

    impl Cluster for Fake {
        fn announce(&self, _: &Server) -> Result<Membership> {
            let next = self.0.lock().pop_front();
            next.unwrap_or_else(|| Err(Error::Timeout("no answer is left".into())))
        }

        fn claim(&self, after: u64, silent: Nanos) -> Result<Membership> {
            match silent == crate::decide::OVERDUE {
                true => Ok(membership(silent, after)),
                false => Err(Error::Busy("heard".into())),
            }
        }

        fn is_refused(&self, _: &str) -> bool {
            true
        }
    }

    fn server(id: u128, role: ServerRole) -> Server {
        Server {
            id,
            name: String::new(),
            address: "127.0.0.1:9".into(),
            role,
            epoch: 3,
            position: Lsn::ZERO,
            may_write: true,
            sessions: 0,
        }
    }

    fn membership(writer_ago: Nanos, epoch: u64) -> Membership {
        let writer = ServerSeen {
            server: server(9, ServerRole::Writer),
            ago: writer_ago,
        };
        Membership {
            epoch,
            term: 1,
            has_database: true,
            vacant_for: None,
            listens_for: Nanos::from_secs(9),
            switch_to: 0,
            servers: vec![writer],
        }
    }

    fn wait_for(member: &Member, wanted: &Decision) {
        let until = rt::now() + Nanos::from_secs(20);
        while member.wait(Nanos::from_millis(20)) != *wanted {
            assert!(rt::now() < until, "{wanted:?} does not come: {member:?}");
        }
    }

    #[test]
    fn a_reader_takes_what_an_ended_writer_had_and_says_why_it_hears_nothing() {
        let answers: Answers = Arc::default();
        answers.lock().push_back(Ok(membership(Nanos::ZERO, 3)));
        answers.lock().push_back(Ok(membership(Nanos::from_millis(300), 3)));
        let member = Member::join(Box::new(Fake(answers.clone())), server(1, ServerRole::Reader));
        let silent = crate::decide::OVERDUE;
        wait_for(&member, &Decision::Take { after: 3, silent });
        let claimed = member.claim(3, silent).expect("it is silent");
        assert!(member.claim(3, SILENCE).is_err());
        let begun = rt::now();
        // No node says that the one which has heard it leads still.
        member.outlast(claimed);
        assert!(rt::now().since(begun) >= SILENCE);
        while member.silence().is_none() {
            member.wait(Nanos::from_millis(5));
        }
        assert!(
            member.become_role(ServerRole::Opening, 0).is_err(),
            "no node has heard it"
        );
        assert_eq!(member.wait(Nanos::ZERO), Decision::Stay);
    }

    #[test]
    fn a_writer_has_its_lease_while_it_is_heard_and_ends_when_another_has_the_database() {
        let answers: Answers = Arc::default();
        answers.lock().push_back(Ok(membership(Nanos::ZERO, 3)));
        let me = server(9, ServerRole::Writer);
        let member = Member::join(Box::new(Fake(answers.clone())), me);
        member.lease().wait(Nanos::from_secs(20)).expect("it is heard");
        answers.lock().push_back(Ok(membership(Nanos::ZERO, 4)));
        wait_for(&member, &Decision::Deposed { by: 4 });
    }
}
