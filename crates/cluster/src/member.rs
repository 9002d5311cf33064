//! A server among the others: a thread says what it is and hears of them, and what follows is asked for.

use std::fmt;
use std::sync::{Arc, Weak};

use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Lsn, Result};
use cenote_storage_node::{Membership, NodesClient, Server, ServerRole};

use crate::decide::{BEAT, BEAT_IN_SWITCH, Decision, Own, decide};
use crate::lease::{Lease, SILENCE};
use crate::pausing::{BEAT_PAUSED, Pausing, Use, has_spare};

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
    /// The database was left in order: there is no lease any more.
    was_left: bool,
}

impl Claimed {
    /// Whether the database was left in order: no server was silent.
    pub fn was_left(&self) -> bool {
        self.was_left
    }
}

/// The start of a server that opens the database; zero: it has not taken it yet.
pub type Start = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Where a server is in the log, and how it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// The position of the log up to which it shows commits.
    pub position: Lsn,
    /// Its sessions.
    pub sessions: usize,
    /// Those that no proxy has.
    pub direct: usize,
    /// Statements that it has begun.
    pub statements: u64,
}

/// Looks how a server stands; `None`: it ends.
pub type Look = Arc<dyn Fn() -> Option<Looked> + Send + Sync>;

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
    pausing: Option<Pausing>,
    used: Used,
}

/// How the server was used.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// When it had a session, or a statement, last; or was something else.
    at: Nanos,
    statements: u64,
    direct: u32,
    /// Since when one server fewer would have done.
    spare_since: Option<Nanos>,
}

impl Used {
    /// Of a server that begins to be something.
    fn anew() -> Used {
        Used {
            at: rt::now(),
            ..Used::default()
        }
    }

    fn note(&mut self, looked: &Looked) {
        if looked.sessions > 0 || looked.statements != self.statements {
            self.at = rt::now();
        }
        self.statements = looked.statements;
        self.direct = u32::try_from(looked.direct).unwrap_or(u32::MAX);
    }

    fn note_spare(&mut self, has_spare: bool) {
        match has_spare {
            true => drop(self.spare_since.get_or_insert_with(rt::now)),
            false => self.spare_since = None,
        }
    }

    fn as_of_now(&self) -> Use {
        let now = rt::now();
        Use {
            idle_for: now.since(self.at),
            spare_for: self.spare_since.map_or(Nanos::ZERO, |since| now.since(since)),
            direct: self.direct,
        }
    }
}

impl Member {
    /// Begins to say what `me` is. `pausing`: when it pauses, if it does.
    pub fn join(cluster: Box<dyn Cluster>, me: Server, pausing: Option<Pausing>) -> Member {
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
                pausing,
                used: Used::anew(),
            }),
            changed: Condvar::default(),
            lease: Arc::default(),
            is_ended: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&shared);
        rt::spawn("member", move || run(&weak));
        Member { shared }
    }

    /// This server's number among the others.
    pub fn id(&self) -> u128 {
        self.shared.state.lock().me.id
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
            if role == ServerRole::Reader {
                // What it took, or was about to, it has not.
                state.start = None;
            }
            if role == ServerRole::Paused {
                (state.me.sessions, state.look) = (0, None);
            }
            state.used = Used::anew();
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
        Ok(Claimed {
            at,
            term: seen.term,
            was_left: seen.vacant_for.is_some(),
        })
    }

    /// Returns when no lease of the former server can be left. At once, where the node that has heard the claim leads
    /// still: no word was answered since. Else after the longest lease that another one may have given.
    pub fn outlast(&self, claimed: Claimed) {
        if claimed.was_left || planted(Fault::LeaseForgotten) {
            return;
        }
        let still_leads = || self.ask().is_ok_and(|seen| seen.term == claimed.term);
        if rt::now().since(claimed.at) > CLAIM_HOLDS || !still_leads() || rt::now().since(claimed.at) > CLAIM_HOLDS {
            rt::sleep(SILENCE);
        }
    }

    /// While it opens, or takes the database as a reader, this tells whether it has it by now: its start.
    pub fn opens(&self, start: Start) {
        let mut state = self.shared.state.lock();
        // What was decided was for before.
        (state.start, state.decision) = (Some(start), Decision::Stay);
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
        match state.me.role {
            _ if is_named => BEAT_IN_SWITCH,
            ServerRole::Paused => BEAT_PAUSED,
            _ => BEAT,
        }
    }

    fn me(&self) -> Server {
        let (mut me, look, start) = {
            let state = self.state.lock();
            (state.me.clone(), state.look.clone(), state.start.clone())
        };
        if let Some(start) = start {
            match (me.role, start()) {
                (ServerRole::Opening, epoch) => me.epoch = epoch,
                // From the moment on at which it has the database: no other is to take it for silent.
                (ServerRole::Reader, epoch) if epoch > 0 => (me.role, me.epoch) = (ServerRole::Opening, epoch),
                _ => {}
            }
        }
        if let Some(looked) = look.and_then(|look| look()) {
            me.position = looked.position;
            me.sessions = u32::try_from(looked.sessions).unwrap_or(u32::MAX);
            self.state.lock().used.note(&looked);
        }
        me
    }

    /// What it knows of itself, with what it has heard.
    fn own(&self, seen: &Membership) -> Own {
        let mut state = self.state.lock();
        let has_spare = state.pausing.is_some_and(|pausing| has_spare(seen, pausing));
        state.used.note_spare(has_spare);
        Own {
            is_refused: false,
            pausing: state.pausing,
            used: state.used.as_of_now(),
        }
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
            let mut own = self.own(seen);
            decision = decide(&me, seen, &own);
            if let Decision::Probe(address) = &decision {
                own.is_refused = self.cluster.is_refused(address);
                decision = decide(&me, seen, &own);
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
    use cenote_storage_node::{Demanded, ServerSeen};
    use std::collections::VecDeque;

    type Answers = Arc<Mutex<VecDeque<Result<Membership>>>>;

    struct Fake(Answers);

    impl Cluster for Fake {
        fn announce(&self, _: &Server) -> Result<Membership> {
            let next = self.0.lock().pop_front();
            next.unwrap_or_else(|| Err(Error::Timeout("no answer is left".into())))
        }

        fn claim(&self, after: u64, silent: Nanos) -> Result<Membership> {
            match silent == crate::lease::OVERDUE {
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
            database: 9,
            vacant_for: None,
            listens_for: Nanos::from_secs(9),
            switch_to: 0,
            demanded: Demanded::default(),
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
        let reader = server(1, ServerRole::Reader);
        let member = Member::join(Box::new(Fake(answers.clone())), reader, None);
        let silent = crate::lease::OVERDUE;
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
        let member = Member::join(Box::new(Fake(answers.clone())), me, None);
        member.lease().wait(Nanos::from_secs(20)).expect("it is heard");
        answers.lock().push_back(Ok(membership(Nanos::ZERO, 4)));
        wait_for(&member, &Decision::Deposed { by: 4 });
    }

    #[test]
    fn a_server_that_is_not_used_pauses_and_one_that_is_needed_resumes() {
        let answers: Answers = Arc::default();
        let pausing = Pausing {
            after: Nanos::from_millis(1),
            reads: 1,
        };
        let me = server(9, ServerRole::Writer);
        let member = Member::join(Box::new(Fake(answers.clone())), me, Some(pausing));
        let looked = Looked {
            position: Lsn::ZERO,
            sessions: 1,
            direct: 1,
            statements: 5,
        };
        member.look(Arc::new(move || Some(looked)));
        let heard = || answers.lock().push_back(Ok(membership(Nanos::ZERO, 3)));
        heard();
        let _ = member.ask();
        assert_eq!(member.wait(Nanos::ZERO), Decision::Stay, "a client has a session");
        let idle = Looked { sessions: 0, ..looked };
        member.look(Arc::new(move || Some(idle)));
        let until = rt::now() + Nanos::from_secs(20);
        while member.wait(Nanos::from_millis(20)) != Decision::Pause {
            assert!(rt::now() < until, "{member:?}");
            heard();
        }
        let mut waits = membership(Nanos::from_secs(5), 3);
        waits.demanded.waits_for = Some(Nanos::ZERO);
        let _ = member.become_role(ServerRole::Paused, 0);
        while member.wait(Nanos::from_millis(20)) != Decision::Resume {
            assert!(rt::now() < until, "{member:?}");
            answers.lock().push_back(Ok(waits.clone()));
        }
    }
}
