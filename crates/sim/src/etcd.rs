//! A simulated etcd: what its JSON gateway answers to the questions of [`cenote_pool::store::etcd`], in virtual time.
//!
//! ```text
//!   manager ── post ─► delay ─► etcd: keys, revisions, leases ─► delay ─► answer
//!                cut, or lost, or far too late: done all the same, done later, or never
//! ```
//!
//! | fault | what is seen |
//! |---|---|
//! | cut off ([`Etcd::cut`]) | no server is there; or what is under way is done after [`Etcd::mend`], or never |
//! | [`Faults::late`] | a question arrives long after its asker gave up, and is done then; or its answer comes too late |
//! | down ([`Etcd::stop`]) | no server is there; what was on its way is lost. Leases begin anew when it is back, as with a new leader of etcd's |
//!
//! Leases go by a clock of its own ([`Etcd::new`] is told its drift), and lapse in the moment when they may.
//!
//! Invariants: questions are done one after the other, in the order of their arrival among the ends of leases, whenever
//! a thread looks next; each is done at most once; the lock here is never held at a preemption point.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_base::rt::{self, Nanos};
use cenote_base::{Error, Result};
use cenote_pool::store::etcd::{Answer, Endpoint, Transport, base64};
use serde_json::{Value, json};

use crate::{clock, state};
use cenote_base::random::Random;

/// What goes wrong with questions, beside cuts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// A question, and an answer, take up to so long.
    pub delay: Nanos,
    /// The probability that one of the two takes up to [`LATE_MOST`].
    pub late: f64,
}

impl Faults {
    /// As strong as `seed` draws.
    pub fn random(seed: u64) -> Self {
        let mut dice = Random(seed);
        Self {
            delay: Nanos::from_micros(dice.pick(&[200, 2_000, 20_000, 300_000])),
            late: dice.pick(&[0.0, 0.02, 0.1, 0.3]),
        }
    }
}

/// How late a late question is, at most: later than any lease of a world is long.
pub const LATE_MOST: Nanos = Nanos::from_secs(8);
/// Codes of gRPC.
const NOT_FOUND: u32 = 5;

/// An etcd. Clones are the same; it outlives every process.
#[derive(Clone)]
pub struct Etcd(Arc<Mutex<State>>);

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd(revision {})", self.lock().db.revision)
    }
}

struct State {
    dice: Random,
    faults: Faults,
    /// Hosts that it is not reached from.
    cuts: BTreeSet<usize>,
    down: bool,
    /// Under way to it, by arrival and number.
    arriving: BTreeMap<(Nanos, u64), Question>,
    /// Held by a cut.
    held: Vec<Question>,
    /// By number, for the callers that still wait.
    answers: BTreeMap<u64, Option<Answer>>,
    asked: u64,
    db: Db,
}

struct Question {
    number: u64,
    host: usize,
    path: String,
    body: Vec<u8>,
}

impl Etcd {
    /// Empty. Its clock gains `drift` in a million.
    pub fn new(seed: u64, drift: i32) -> Self {
        Self(Arc::new(Mutex::new(State {
            dice: Random(seed),
            faults: Faults::default(),
            cuts: BTreeSet::new(),
            down: false,
            arriving: BTreeMap::new(),
            held: Vec::new(),
            answers: BTreeMap::new(),
            asked: 0,
            db: Db::new(drift),
        })))
    }

    /// The state, with all that has happened until now.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.catch_up(state::true_now());
        state
    }

    /// The way to it from simulated hosts.
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }

    /// When the next lease lapses, unless it is renewed before.
    pub fn lapses_at(&self) -> Option<Nanos> {
        self.lock().db.leases.values().map(|lease| lease.until).min()
    }

    /// The revision in which a key that goes with a lease was made last.
    pub fn last_claim(&self) -> i64 {
        self.lock().db.claimed
    }

    // ---- faults ----

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// A host does not reach it until that is mended.
    pub fn cut(&self, host: usize) {
        self.lock().cuts.insert(host);
    }

    /// What the cut holds arrives, or is lost.
    pub fn mend(&self, host: usize) {
        let mut state = self.lock();
        state.cuts.remove(&host);
        let all = std::mem::take(&mut state.held).into_iter();
        let (held, rest): (Vec<_>, Vec<_>) = all.partition(|question| question.host == host);
        state.held = rest;
        let now = state::true_now();
        held.into_iter().for_each(|question| state.send_on(question, now));
    }

    /// No server is there any more, and what is on its way is lost.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.down = true;
        state.arriving.clear();
    }

    /// It is there again, with all that it had.
    pub fn start(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.down) {
            state.db.begin_leases_anew(state::true_now());
        }
    }

    /// No more faults.
    pub fn calm_down(&self) {
        let cuts = self.lock().cuts.clone();
        cuts.into_iter().for_each(|host| self.mend(host));
        self.start();
        self.set_faults(Faults::default());
    }

    // ---- a question ----

    /// Sends a question on its way, if a server is there; its number, and when its answer arrives.
    fn ask(&self, path: &str, body: &[u8]) -> std::result::Result<(u64, Nanos), Away> {
        let (host, now) = (clock::host(), clock::now());
        let mut state = self.lock();
        let is_cut = state.cuts.contains(&host);
        if state.down || is_cut && state.dice.below(3) > 0 {
            return Err(match state.dice.below(2) {
                0 => Away::Refused,
                _ => Away::Silent,
            });
        }
        state.asked += 1;
        let question = Question {
            number: state.asked,
            host,
            path: path.into(),
            body: body.into(),
        };
        let number = question.number;
        state.answers.insert(number, None);
        if is_cut {
            state.held.push(question);
            return Ok((number, Nanos::MAX));
        }
        let (there, back) = (state.takes(), state.takes());
        state.arriving.insert((now + there, number), question);
        Ok((number, now + there + back))
    }

    /// The answer, for a caller that can hear it; if there is none the asker has given up.
    fn hear(&self, number: u64) -> Option<Answer> {
        let mut state = self.lock();
        let answer = state.answers.remove(&number).flatten();
        answer.filter(|_| !state.down && !state.cuts.contains(&clock::host()))
    }
}

/// Why a question was not sent.
enum Away {
    /// At once.
    Refused,
    /// After all the timeout that there was.
    Silent,
}

fn sleep_until(time: Nanos) {
    rt::sleep(clock::host_span(time.since(clock::now())));
}

impl Transport for Etcd {
    fn post(&self, endpoint: &Endpoint, path: &str, _: &[(&str, &str)], body: &[u8], timeout: Nanos) -> Result<Answer> {
        let host = &endpoint.host;
        rt::preempt();
        let end = clock::now() + clock::world_span(timeout);
        let (number, ready) = match self.ask(path, body) {
            Ok(asked) => asked,
            Err(away) => {
                if matches!(away, Away::Silent) {
                    sleep_until(end);
                }
                return Err(Error::Lost(format!("no server answers at {host}")));
            }
        };
        sleep_until(ready.min(end));
        if let Some(answer) = self.hear(number).filter(|_| ready <= end) {
            return Ok(answer);
        }
        sleep_until(end);
        Err(Error::Timeout(format!("no answer of {host}")))
    }
}

impl State {
    /// What a question takes, or an answer.
    fn takes(&mut self) -> Nanos {
        let Faults { delay, late } = self.faults;
        let most = if self.dice.chance(late) { LATE_MOST } else { delay };
        Nanos(100_000 + self.dice.below(most.raw() + 1))
    }

    /// Of what a cut held, half arrives.
    fn send_on(&mut self, question: Question, now: Nanos) {
        if self.dice.below(2) == 0 {
            let at = now + self.takes();
            self.arriving.insert((at, question.number), question);
        }
    }

    /// Lets everything happen until `now`, in its order.
    fn catch_up(&mut self, now: Nanos) {
        if self.down {
            return;
        }
        while let Some(first) = self.arriving.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, number), question) = first.remove_entry();
            self.db.lapse(at);
            let (status, said) = self.db.answer(&question, at);
            if let Some(answer) = self.answers.get_mut(&number) {
                let body = said.to_string().into_bytes();
                *answer = Some(Answer { status, body });
            }
        }
        self.db.lapse(now);
    }
}

/// Keys, and leases that keep them.
struct Db {
    drift: i32,
    revision: i64,
    keys: BTreeMap<Vec<u8>, Key>,
    leases: BTreeMap<i64, Lease>,
    granted: i64,
    claimed: i64,
}

#[derive(Debug, Clone)]
struct Key {
    value: String,
    created: i64,
    modified: i64,
    lease: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    /// In seconds.
    ttl: u64,
    /// In the world's time.
    until: Nanos,
}

/// Why a question is refused: etcd's code and text.
type Refusal = (u32, &'static str);
const NO_LEASE: Refusal = (NOT_FOUND, "etcdserver: requested lease not found");
const NOT_UNDERSTOOD: Refusal = (3, "etcdserver: not understood");

/// Numbers are text.
fn number(of: &Value) -> i64 {
    of.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn list(of: &Value) -> &[Value] {
    of.as_array().map_or(&[], Vec::as_slice)
}

impl Db {
    fn new(drift: i32) -> Self {
        Self {
            drift,
            revision: 1,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            granted: 0,
            claimed: 0,
        }
    }

    // ---- leases ----

    fn lease(&self, ttl: u64, now: Nanos) -> Lease {
        let span = u128::from(Nanos::from_secs(ttl).raw()) * 1_000_000 / (1_000_000 + i128::from(self.drift)) as u128;
        Lease {
            ttl,
            until: now + Nanos(span as u64),
        }
    }

    fn begin_leases_anew(&mut self, now: Nanos) {
        let anew: Vec<_> = self.leases.iter().map(|(id, lease)| (*id, lease.ttl)).collect();
        for (id, ttl) in anew {
            self.leases.insert(id, self.lease(ttl, now));
        }
    }

    fn lapse(&mut self, now: Nanos) {
        let over = |(id, lease): (&i64, &Lease)| (lease.until <= now).then_some(*id);
        let over: Vec<i64> = self.leases.iter().filter_map(over).collect();
        over.into_iter().for_each(|id| self.revoke(id));
    }

    fn revoke(&mut self, id: i64) {
        self.leases.remove(&id);
        let before = self.keys.len();
        self.keys.retain(|_, key| key.lease != Some(id));
        self.revision += i64::from(self.keys.len() < before);
    }

    // ---- questions ----

    fn header(&self) -> Value {
        json!({"revision": self.revision.to_string()})
    }

    /// HTTP's status, and what is said.
    fn answer(&mut self, question: &Question, now: Nanos) -> (u16, Value) {
        let body: Value = serde_json::from_slice(&question.body).unwrap_or_default();
        let answered = match question.path.as_str() {
            "/v3/kv/txn" => self.transact(&body),
            "/v3/lease/grant" => Ok(self.grant(&body, now)),
            "/v3/lease/keepalive" => Ok(self.keep_alive(number(&body["ID"]), now)),
            "/v3/lease/revoke" => match self.leases.contains_key(&number(&body["ID"])) {
                true => {
                    self.revoke(number(&body["ID"]));
                    Ok(json!({"header": self.header()}))
                }
                false => Err(NO_LEASE),
            },
            _ => Err(NOT_UNDERSTOOD),
        };
        match answered {
            Ok(said) => (200, said),
            Err((code, text)) => (404, json!({"error": text, "message": text, "code": code})),
        }
    }

    fn grant(&mut self, body: &Value, now: Nanos) -> Value {
        self.granted += 1;
        let ttl = number(&body["TTL"]) as u64;
        self.leases.insert(self.granted, self.lease(ttl, now));
        json!({"header": self.header(), "ID": self.granted.to_string(), "TTL": ttl.to_string()})
    }

    fn keep_alive(&mut self, id: i64, now: Nanos) -> Value {
        let Some(ttl) = self.leases.get(&id).map(|lease| lease.ttl) else {
            return json!({"result": {"header": self.header(), "ID": id.to_string()}});
        };
        self.leases.insert(id, self.lease(ttl, now));
        json!({"result": {"header": self.header(), "ID": id.to_string(), "TTL": ttl.to_string()}})
    }

    fn holds(&self, compare: &Value) -> bool {
        let key = self.keys.get(&name(&compare["key"]));
        let (found, wanted) = match compare["target"].as_str() {
            Some("CREATE") => (key.map_or(0, |key| key.created), &compare["create_revision"]),
            _ => (key.map_or(0, |key| key.modified), &compare["mod_revision"]),
        };
        found == number(wanted)
    }

    fn transact(&mut self, body: &Value) -> std::result::Result<Value, Refusal> {
        let succeeded = list(&body["compare"]).iter().all(|compare| self.holds(compare));
        let operations = list(&body[if succeeded { "success" } else { "failure" }]);
        let is_lost = |op: &&Value| {
            let lease = &op["request_put"]["lease"];
            !lease.is_null() && !self.leases.contains_key(&number(lease))
        };
        if operations.iter().any(|op| is_lost(&op)) {
            return Err(NO_LEASE);
        }
        let is_write = |op: &Value| {
            ["request_put", "request_delete_range"]
                .iter()
                .any(|kind| !op[*kind].is_null())
        };
        let writes = operations.iter().any(is_write);
        self.revision += i64::from(writes);
        let responses: Vec<Value> = operations.iter().map(|op| self.operate(op)).collect();
        Ok(json!({"header": self.header(), "succeeded": succeeded, "responses": responses}))
    }

    fn operate(&mut self, op: &Value) -> Value {
        let put = &op["request_put"];
        if put.is_null() && !op["request_delete_range"].is_null() {
            let gone = self.names(&op["request_delete_range"]);
            gone.iter().for_each(|name| _ = self.keys.remove(name));
            return json!({"response_delete_range": {"header": self.header(), "deleted": gone.len().to_string()}});
        }
        if put.is_null() {
            return json!({"response_range": {"kvs": self.range(&op["request_range"])}});
        }
        let (name, revision) = (name(&put["key"]), self.revision);
        let key = Key {
            value: put["value"].as_str().unwrap_or("").to_owned(),
            created: self.keys.get(&name).map_or(revision, |key| key.created),
            modified: revision,
            lease: (!put["lease"].is_null()).then(|| number(&put["lease"])),
        };
        if key.lease.is_some() && key.created == revision {
            self.claimed = revision;
        }
        self.keys.insert(name, key);
        json!({"response_put": {"header": self.header()}})
    }

    /// The keys of a range, or the one that is asked for.
    fn names(&self, of: &Value) -> Vec<Vec<u8>> {
        let from = name(&of["key"]);
        match of["range_end"].is_null() {
            true => self.keys.contains_key(&from).then_some(from).into_iter().collect(),
            false => self
                .keys
                .range(from..name(&of["range_end"]))
                .map(|(name, _)| name.clone())
                .collect(),
        }
    }

    fn range(&self, of: &Value) -> Vec<Value> {
        let most = usize::try_from(number(&of["limit"])).unwrap_or(0);
        let found = self.names(of).into_iter().map(|name| {
            let key = &self.keys[&name];
            json!({"key": base64::encode(&name), "value": key.value, "create_revision": key.created.to_string(),
                "mod_revision": key.modified.to_string()})
        });
        found.take(if most == 0 { usize::MAX } else { most }).collect()
    }
}

/// A key's name; none that a manager asks for is no base64.
fn name(of: &Value) -> Vec<u8> {
    of.as_str().and_then(base64::decode).unwrap_or_default()
}
