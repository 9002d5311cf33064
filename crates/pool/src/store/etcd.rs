//! The grant table in etcd, for several managers of which one leads.
//!
//! ```text
//!  PREFIX/leader      the leader: the address where it listens; kept by its lease, gone when that lapses
//!  PREFIX/record/...  the grant table, a key for each of its records ([`records`])
//! ```
//!
//! The manager that made `leader` leads: the revision in which that key was made is its leadership's own. All that a
//! leadership writes is one transaction:
//!
//! ```text
//!  if    create_revision(leader) is this leadership's own, and mod_revision(record/meta) is what was read or written last
//!  then  put and delete the records that changed, record/meta among them
//!  else  get leader, get record/meta
//! ```
//!
//! - A leadership that is over writes nothing: the key is gone, or another's, made in a later revision.
//! - Of a transaction whose answer is lost it is unknown whether it was done; so it is done again. Since only one of
//!   the two can find `record/meta` as it was, the answer to the later one tells what came of both. Until there is one
//!   the leadership does nothing else; when its lease is about to lapse, it is over.
//! - Its own clock ends a leadership a fifth of the lease early ([`believed`]), counted from before etcd was asked: no
//!   other can begin before, whatever the two clocks say, if only they run equally fast within a fifth. The simulator
//!   has them drift apart by up to a fiftieth.

mod api;
pub mod base64;
mod records;

use super::{Change, GrantTableStore, Lead, Leadership, Stored};
pub use api::{Answer, Endpoint, Transport};
use api::{Api, Lease, Number, Outcome, Trouble};
use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;

/// Where the keys are, unless told.
pub const PREFIX_DEFAULT: &str = "/cenote/pool";
/// How long a manager that is silent goes on to lead, unless told; in seconds.
pub const TTL_DEFAULT: u64 = 5;
const PREFIX_MAX: usize = 256;
/// Of a lease, how much passes between two signs of life.
const RENEWALS: u64 = 4;
/// Of a lease, how much is left when its holder takes it for lapsed.
const MARGIN: u64 = 5;
const _: () = assert!(
    RENEWALS + MARGIN < RENEWALS * MARGIN,
    "a lease is renewed before its margin begins"
);
/// Between two tries.
const AGAIN: Nanos = Nanos::from_millis(100);
/// How long a request waits for an etcd that is away.
const TIMEOUT: Nanos = Nanos::from_secs(2);

/// How etcd is reached.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT`, one or several.
    pub endpoints: Vec<String>,
    /// What keys begin with: a pool's own.
    pub prefix: String,
    /// How long a manager that is silent goes on to lead, in seconds; etcd may make more of it.
    pub ttl: u64,
    /// Name and password, if etcd asks for them.
    pub user: Option<(String, String)>,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            prefix: PREFIX_DEFAULT.into(),
            ttl: TTL_DEFAULT,
            user: None,
        }
    }
}

/// An etcd.
pub struct EtcdStore {
    api: Arc<Api>,
    keys: Keys,
    ttl: u64,
}

/// Names of keys, in base64.
#[derive(Clone)]
struct Keys {
    prefix: String,
    leader: String,
}

impl Keys {
    fn of(&self, name: &str) -> String {
        base64::encode(format!("{}/{name}", self.prefix).as_bytes())
    }

    /// From the name that begins with `prefix` and goes on with `from`, to the end of those that begin with `prefix`.
    fn range(&self, prefix: &str, from: &str) -> [String; 2] {
        let mut end = format!("{}/{prefix}", self.prefix).into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        [self.of(&format!("{prefix}{from}")), base64::encode(&end)]
    }

    /// What a key is called after a prefix.
    fn name(&self, prefix: &str, key: &[u8]) -> Result<String> {
        let name = std::str::from_utf8(key).ok();
        let name = name.and_then(|key| key.strip_prefix(&format!("{}/{prefix}", self.prefix)));
        name.map(str::to_owned)
            .ok_or_else(|| Error::corrupt("a key of the pool in etcd"))
    }
}

impl EtcdStore {
    /// A store at the etcd that `transport` reaches. Asks nothing yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no address, prefix or time.
    pub fn over(options: &EtcdOptions, transport: Arc<dyn Transport>) -> Result<Self> {
        let prefix = options.prefix.trim_end_matches('/');
        if !prefix.starts_with('/') || prefix.len() > PREFIX_MAX || prefix.chars().any(char::is_control) {
            let text = format!(
                "\"{}\" is no prefix of keys, such as {PREFIX_DEFAULT}",
                prefix.escape_debug()
            );
            return Err(Error::Invalid(text));
        }
        if !(1..=3600).contains(&options.ttl) {
            return Err(Error::Invalid(format!(
                "a lease of {} s at etcd: it may be 1 to 3600",
                options.ttl
            )));
        }
        Ok(Self {
            api: Arc::new(Api::new(&options.endpoints, options.user.clone(), transport)?),
            keys: Keys {
                prefix: prefix.to_owned(),
                leader: base64::encode(format!("{prefix}/leader").as_bytes()),
            },
            ttl: options.ttl,
        })
    }

    /// Makes the leader's key, if there is none.
    fn claim(&self, name: &str, lease: i64, until: Nanos) -> Result<Outcome, Trouble> {
        let leader = &self.keys.leader;
        let value = base64::encode(name.as_bytes());
        let put = json!({"request_put": {"key": leader, "value": value, "lease": lease.to_string()}});
        let question = json!({
            "compare": [made_in(leader, 0)],
            "success": [put],
            "failure": [get(leader)],
        });
        self.api.txn(&question, until)
    }
}

/// Compares the revision in which a key was made; 0: it is not there.
fn made_in(key: &str, revision: i64) -> Value {
    json!({"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string()})
}

fn get(key: &str) -> Value {
    json!({"request_range": {"key": key}})
}

fn elsewhere(found: &Outcome) -> Option<Lead> {
    let leader = found.found(0)?;
    let name = leader
        .value()
        .map(|name| api::printable(&String::from_utf8_lossy(&name)));
    Some(Lead::Elsewhere(name.ok()))
}

impl GrantTableStore for EtcdStore {
    fn lead(&self, name: &str) -> Result<Lead> {
        let until = rt::now() + TIMEOUT;
        let look = self.api.txn(&json!({"success": [get(&self.keys.leader)]}), until)?;
        if let Some(lead) = elsewhere(&look) {
            return Ok(lead);
        }
        let asked = rt::now();
        let lease = self.api.grant(self.ttl, until)?;
        let claimed = self.claim(name, lease.id.0, until);
        if let Ok(outcome) = &claimed
            && outcome.succeeded
        {
            let created = outcome.header.revision.0;
            let hold = Hold::new(self, &lease, created, asked);
            return Ok(Lead::Here(Arc::new(EtcdLeadership::begin(hold)?)));
        }
        // Whatever came of it, a key that was made goes with its lease.
        self.api.revoke(lease.id.0, until).ok();
        Ok(elsewhere(&claimed?).unwrap_or(Lead::Elsewhere(None)))
    }
}

struct EtcdLeadership {
    hold: Arc<Hold>,
    thread: Mutex<Option<rt::JoinHandle<()>>>,
}

/// What is this leadership's own.
struct Hold {
    api: Arc<Api>,
    keys: Keys,
    lease: i64,
    /// The revision in which the leader's key was made.
    created: i64,
    /// When the lease counts as lapsed unless it is renewed, in nanoseconds.
    until: AtomicU64,
    over: AtomicBool,
    stop: Event,
    /// How long the lease lasts.
    ttl: Nanos,
    /// The revision in which the grant table was read or changed last; 0: there is none.
    revision: Mutex<i64>,
}

impl Hold {
    fn new(store: &EtcdStore, lease: &Lease, created: i64, asked: Nanos) -> Self {
        let hold = Self {
            api: Arc::clone(&store.api),
            keys: store.keys.clone(),
            lease: lease.id.0,
            created,
            until: AtomicU64::new(0),
            over: AtomicBool::new(false),
            stop: Event::default(),
            ttl: seconds(lease.ttl),
            revision: Mutex::new(0),
        };
        hold.renewed(asked, lease.ttl);
        hold
    }

    // ---- the lease ----

    /// The lease lasts so long from when etcd was asked, or longer.
    fn renewed(&self, asked: Nanos, ttl: Number) {
        let until = asked + believed(seconds(ttl));
        self.until.store(until.raw(), Ordering::Release);
    }

    fn until(&self) -> Nanos {
        Nanos(self.until.load(Ordering::Acquire))
    }

    fn leads(&self) -> bool {
        if rt::now() >= self.until() {
            self.over.store(true, Ordering::Release);
        }
        !self.over.load(Ordering::Acquire)
    }

    fn lose(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn keep(&self) {
        let every = Nanos(self.ttl.raw() / RENEWALS);
        let (mut pause, mut silent) = (every, false);
        while !self.stop.wait_timeout(pause) && self.leads() {
            let asked = rt::now();
            match self.api.keep_alive(self.lease, self.until()) {
                Ok(lease) if lease.ttl.0 > 0 => {
                    self.renewed(asked, lease.ttl);
                    (pause, silent) = (every, false);
                }
                Ok(_) => return self.lose(),
                Err(trouble) => {
                    if !silent {
                        eprintln!("cenote: manager: {}; trying again", Error::from(trouble));
                    }
                    (pause, silent) = (AGAIN, true);
                }
            }
        }
    }

    // ---- the grant table ----

    /// Asks until it is known what came of it; says whether an earlier try may have done it.
    fn ask(&self, question: &Value) -> Result<(Outcome, bool)> {
        let timeout = rt::now() + TIMEOUT;
        let mut in_doubt = false;
        while self.leads() {
            match self.api.txn(question, self.until()) {
                Ok(outcome) => return Ok((outcome, in_doubt)),
                Err(Trouble::Unknown(_)) => in_doubt = true,
                Err(trouble @ Trouble::Refused(_)) if !in_doubt => return Err(trouble.into()),
                Err(trouble @ Trouble::Away(_)) if !in_doubt && rt::now() > timeout => return Err(trouble.into()),
                Err(_) => {}
            }
            self.stop.wait_timeout(AGAIN);
        }
        Err(Error::Lost(match in_doubt {
            true => "this manager leads no more: the next leader knows whether the change was written".into(),
            false => "this manager leads no more".into(),
        }))
    }

    /// The grant table was not as it should be: is it what an earlier try has written, or is the leadership over?
    fn settle(&self, outcome: &Outcome, tried: Option<&[u8]>) -> Result<i64> {
        let leader = outcome.found(0).map(|leader| leader.create_revision.0);
        if leader != Some(self.created) {
            self.lose();
            return Err(Error::Lost("this manager leads no more: nothing was written".into()));
        }
        match outcome.found(1) {
            Some(found) if tried.is_some_and(|meta| found.value().is_ok_and(|value| value == meta)) => {
                Ok(found.mod_revision.0)
            }
            _ => {
                self.lose();
                Err(Error::corrupt(
                    "the pool's grant table in etcd was changed by another than the manager that leads",
                ))
            }
        }
    }
}

/// How much of a lease its holder uses, by its own clock: etcd's may run faster.
fn believed(ttl: Nanos) -> Nanos {
    match planted(Fault::LeadMargin) {
        true => ttl,
        false => Nanos(ttl.raw() - ttl.raw() / MARGIN),
    }
}

fn seconds(ttl: Number) -> Nanos {
    Nanos::from_secs(u64::try_from(ttl.0).unwrap_or(0).min(1 << 20))
}

impl EtcdLeadership {
    fn begin(hold: Hold) -> Result<Self> {
        let hold = Arc::new(hold);
        let theirs = Arc::clone(&hold);
        let thread = rt::try_spawn("pool leadership", move || theirs.keep());
        Ok(Self {
            hold,
            thread: Mutex::new(Some(thread.map_err(|error| Error::io("starting a thread", error))?)),
        })
    }
}

impl Leadership for EtcdLeadership {
    fn leads(&self) -> bool {
        self.hold.leads()
    }

    fn confirm(&self) -> Result<()> {
        self.hold.look(Vec::new()).map(drop)
    }

    fn read(&self) -> Result<Option<Stored>> {
        // Held over the questions: no change comes in between.
        let mut revision = self.hold.revision.lock();
        let (stored, of) = self.hold.read_table()?;
        *revision = of;
        Ok(stored)
    }

    fn write(&self, change: &Change) -> Result<()> {
        let mut revision = self.hold.revision.lock();
        *revision = self.hold.write_change(*revision, change)?;
        Ok(())
    }

    fn resign(&self) {
        self.hold.lose();
        self.hold.stop.set();
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        thread.join().ok();
        // If etcd is not there, the lease lapses by itself.
        self.hold.api.revoke(self.hold.lease, rt::now() + TIMEOUT).ok();
    }
}

impl Drop for EtcdLeadership {
    fn drop(&mut self) {
        self.resign();
    }
}

#[cfg(test)]
mod tests;
