//! Questions to etcd (3.4 and later) by its JSON gateway: `POST /v3/...`, keys and values in base64, numbers as text,
//! what is zero or empty left out.

use super::base64;
use cenote_base::rt::atomic::{AtomicUsize, Ordering};
use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status: 200 and the like.
    pub status: u16,
    /// The bytes of the body, all of them.
    pub body: Vec<u8>,
}

/// The address of one member of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the member is asked over TLS.
    pub tls: bool,
    /// `HOST:PORT`.
    pub host: String,
}

impl Endpoint {
    /// Reads `http://HOST:PORT`, `https://HOST:PORT`, or `HOST:PORT`, which means the first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another protocol, a path, a user, or a missing port.
    pub fn parse(url: &str) -> Result<Self> {
        let url = url.trim();
        let (tls, host) = match url.strip_prefix("https://") {
            Some(host) => (true, host),
            None => (false, url.strip_prefix("http://").unwrap_or(url)),
        };
        let host = host.strip_suffix('/').unwrap_or(host);
        let port = host.rsplit_once(':').filter(|(name, _)| !name.is_empty());
        let is_whole = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let is_part_of_another = |c: char| matches!(c, '/' | '@' | '?' | '#') || c.is_whitespace() || c.is_control();
        if !is_whole || host.contains(is_part_of_another) {
            return Err(Error::Invalid(format!(
                "\"{}\" is no address of etcd: give http://HOST:PORT or https://HOST:PORT",
                url.escape_debug()
            )));
        }
        Ok(Self { tls, host: host.into() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host)
    }
}

/// How requests reach etcd.
pub trait Transport: Send + Sync {
    /// Posts JSON to `path` of a member, and waits for the answer, for `timeout` at most. `headers` are names with
    /// values.
    ///
    /// # Errors
    /// [`Error::Lost`]: the member was not there, so it has not heard of the request. Any other: it may have, or may
    /// yet.
    fn post(
        &self,
        endpoint: &Endpoint,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout: Nanos,
    ) -> Result<Answer>;
}

/// How long one of several may take to answer.
const TRY_TIMEOUT: Nanos = Nanos::from_secs(2);
/// Characters of what etcd says that people are shown.
const TEXT_MAX: usize = 300;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// It was not done: etcd says why.
    Refused(Error),
    /// It was not done: no member was there to ask.
    Away(String),
    /// Whether it was done is unknown.
    Unknown(String),
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(error) => error,
            Trouble::Away(text) | Trouble::Unknown(text) => Error::Lost(format!("etcd: {text}")),
        }
    }
}

/// A number, as JSON has it here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Number(pub i64);

impl TryFrom<String> for Number {
    type Error = core::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub revision: Number,
}

/// What `/v3/lease/grant` and `/v3/lease/keepalive` say of a lease; without a TTL it is over.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    #[serde(rename = "ID")]
    pub id: Number,
    #[serde(rename = "TTL")]
    pub ttl: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeptAlive {
    result: Lease,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Authenticated {
    token: String,
}

/// What came of a transaction.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Outcome {
    pub header: Header,
    pub succeeded: bool,
    responses: Vec<Response>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response {
    response_range: Range,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Range {
    kvs: Vec<KeyValue>,
}

/// A key as it was found.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    key: String,
    pub create_revision: Number,
    pub mod_revision: Number,
    value: String,
}

impl KeyValue {
    pub(super) fn key(&self) -> Result<Vec<u8>> {
        base64::decode(&self.key).ok_or_else(|| Error::corrupt("a key of etcd is no base64"))
    }

    pub(super) fn value(&self) -> Result<Vec<u8>> {
        base64::decode(&self.value).ok_or_else(|| Error::corrupt("a value of etcd is no base64"))
    }
}

impl Outcome {
    /// What the `n`th of a transaction's operations found, which looked for a range of keys.
    pub(super) fn all(&self, n: usize) -> &[KeyValue] {
        self.responses
            .get(n)
            .map_or(&[], |response| &response.response_range.kvs)
    }

    /// What the `n`th of a transaction's operations found, which looked for one key.
    pub(super) fn found(&self, n: usize) -> Option<&KeyValue> {
        self.responses.get(n)?.response_range.kvs.first()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: String,
    message: String,
    code: u32,
}

/// The way to an etcd, of one member or several.
pub(super) struct Api {
    transport: Arc<dyn Transport>,
    members: Vec<Endpoint>,
    /// The one that answered last.
    first: AtomicUsize,
    /// Name and password.
    user: Option<(String, String)>,
    token: Mutex<Option<String>>,
}

impl Api {
    pub(super) fn new(urls: &[String], user: Option<(String, String)>, transport: Arc<dyn Transport>) -> Result<Self> {
        let members = urls
            .iter()
            .map(|url| Endpoint::parse(url))
            .collect::<Result<Vec<_>>>()?;
        if members.is_empty() {
            return Err(Error::Invalid("no address of etcd is given".into()));
        }
        Ok(Self {
            transport,
            members,
            first: AtomicUsize::new(0),
            user,
            token: Mutex::new(None),
        })
    }

    // ---- questions ----

    pub(super) fn txn(&self, question: &Value, until: Nanos) -> Result<Outcome, Trouble> {
        self.ask("/v3/kv/txn", question, until)
    }

    pub(super) fn grant(&self, ttl: u64, until: Nanos) -> Result<Lease, Trouble> {
        self.ask("/v3/lease/grant", &json!({"TTL": ttl.to_string()}), until)
    }

    pub(super) fn keep_alive(&self, lease: i64, until: Nanos) -> Result<Lease, Trouble> {
        let answer: KeptAlive = self.ask("/v3/lease/keepalive", &json!({"ID": lease.to_string()}), until)?;
        Ok(answer.result)
    }

    pub(super) fn revoke(&self, lease: i64, until: Nanos) -> Result<(), Trouble> {
        let _: Value = self.ask("/v3/lease/revoke", &json!({"ID": lease.to_string()}), until)?;
        Ok(())
    }

    // ---- the way ----

    /// Asks one after the other until one is there.
    fn ask<T: DeserializeOwned>(&self, path: &str, question: &Value, until: Nanos) -> Result<T, Trouble> {
        let body = question.to_string();
        let first = self.first.load(Ordering::Relaxed);
        let mut away = Vec::new();
        for at in (first..first + self.members.len()).map(|at| at % self.members.len()) {
            let answer = self.ask_at(&self.members[at], path, &body, until);
            let next = match &answer {
                Err(Trouble::Away(_) | Trouble::Unknown(_)) => (at + 1) % self.members.len(),
                _ => at,
            };
            self.first.store(next, Ordering::Relaxed);
            match answer {
                Err(Trouble::Away(why)) => away.push(why),
                answer => return answer,
            }
        }
        Err(Trouble::Away(away.join("; ")))
    }

    /// A token may have run out: then another one is asked for.
    fn ask_at<T: DeserializeOwned>(
        &self,
        member: &Endpoint,
        path: &str,
        body: &str,
        until: Nanos,
    ) -> Result<T, Trouble> {
        let Some((name, password)) = &self.user else {
            return self.once(member, path, None, body, until);
        };
        let known = self.token.lock().clone();
        if let Some(token) = known {
            match self.once(member, path, Some(&token), body, until) {
                Err(Trouble::Refused(Error::Invalid(_))) => {}
                answer => return answer,
            }
        }
        let question = json!({"name": name, "password": password}).to_string();
        let answer: Authenticated = self
            .once(member, "/v3/auth/authenticate", None, &question, until)
            .map_err(undone)?;
        *self.token.lock() = Some(answer.token.clone());
        self.once(member, path, Some(&answer.token), body, until)
    }

    fn once<T: DeserializeOwned>(
        &self,
        member: &Endpoint,
        path: &str,
        token: Option<&str>,
        body: &str,
        until: Nanos,
    ) -> Result<T, Trouble> {
        let timeout = until.since(rt::now());
        if timeout == Nanos::ZERO {
            return Err(Trouble::Away(format!("no time was left to ask {}", member.host)));
        }
        let token = token.filter(|token| !token.bytes().any(|b| b.is_ascii_control()));
        let headers: Vec<_> = token.map(|token| ("Authorization", token)).into_iter().collect();
        let timeout = timeout.min(TRY_TIMEOUT);
        match self.transport.post(member, path, &headers, body.as_bytes(), timeout) {
            Ok(answer) => read(&member.host, &answer),
            Err(Error::Lost(text)) => Err(Trouble::Away(text)),
            Err(error) => Err(Trouble::Unknown(error.to_string())),
        }
    }
}

/// An unknown client has not asked for anything yet.
fn undone(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Unknown(text) => Trouble::Away(text),
        trouble => trouble,
    }
}

fn read<T: DeserializeOwned>(host: &str, answer: &Answer) -> Result<T, Trouble> {
    if answer.status == 200 {
        return serde_json::from_slice(&answer.body)
            .map_err(|error| Trouble::Unknown(format!("what {host} answers is not etcd's: {error}")));
    }
    let refusal = serde_json::from_slice::<Refusal>(&answer.body).unwrap_or_default();
    let said = [&refusal.message, &refusal.error]
        .into_iter()
        .find(|text| !text.is_empty());
    let said = said.map_or_else(|| format!("HTTP status {}", answer.status), |text| printable(text));
    let text = format!("etcd at {host}: {said}");
    // Codes of gRPC.
    Err(match refusal.code {
        // Resources are exhausted.
        8 => Trouble::Refused(Error::Full(text)),
        // Of a lease that lapsed before it was used, by its claim: the next one may be in time.
        5 if said.contains("lease not found") => Trouble::Away(text),
        // Invalid argument, not found, no permission, precondition failed, not authenticated.
        3 | 5 | 7 | 9 | 16 => Trouble::Refused(Error::Invalid(text)),
        _ if answer.status == 404 => Trouble::Refused(Error::Invalid(format!("{text}; etcd 3.4 or later is needed"))),
        _ => Trouble::Unknown(text),
    })
}

pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answered<T: DeserializeOwned>(status: u16, body: &str) -> Result<T, Trouble> {
        let body = body.into();
        read("h:1", &Answer { status, body })
    }

    #[test]
    fn answers_are_understood() {
        let done = r#"{"header":{"cluster_id":"3","revision":"12"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"12"}}}]}"#;
        let done: Outcome = answered(200, done).expect("good");
        assert!(done.succeeded && done.header.revision == Number(12) && done.found(0).is_none());
        let not = r#"{"header":{"revision":"2"},"responses":[{"response_range":{"kvs":[{"key":"eA==","create_revision":"2","mod_revision":"7","value":"YQ=="}],"count":"1"}}]}"#;
        let not: Outcome = answered(200, not).expect("good");
        let found = not.found(0).expect("a key");
        assert!(!not.succeeded && found.create_revision == Number(2) && found.mod_revision == Number(7));
        assert_eq!(found.value().expect("base64"), b"a");
        let over: KeptAlive = answered(200, r#"{"result":{"ID":"77"}}"#).expect("good");
        assert_eq!((over.result.id, over.result.ttl), (Number(77), Number(0)));
    }

    /// What was refused was not done; of what went wrong in another way that is not known.
    #[test]
    fn refusals_are_told_from_failures() {
        let of = |status, body: &str| answered::<Outcome>(status, body).expect_err("no answer");
        let large = of(400, r#"{"error":"etcdserver: request is too large","code":3}"#);
        assert!(matches!(large, Trouble::Refused(Error::Invalid(text)) if text.contains("too large")));
        let lapsed = of(404, r#"{"message":"etcdserver: requested lease not found","code":5}"#);
        assert!(matches!(lapsed, Trouble::Away(_)), "not done, and no reason to give up");
        let space = of(
            429,
            r#"{"message":"etcdserver: mvcc: database space exceeded","code":8}"#,
        );
        assert!(matches!(space, Trouble::Refused(Error::Full(_))));
        assert!(matches!(of(404, "Not Found"), Trouble::Refused(Error::Invalid(text)) if text.contains("3.4")));
        for (status, body) in [
            (503, r#"{"error":"etcdserver: request timed out","code":14}"#),
            (500, ""),
            (200, "{"),
            (200, "[]x"),
        ] {
            assert!(matches!(of(status, body), Trouble::Unknown(_)), "{body}");
        }
        let number = of(200, r#"{"header":{"revision":"x"}}"#);
        assert!(matches!(number, Trouble::Unknown(_)));
    }

    #[test]
    fn addresses_are_checked() {
        for (url, tls, host) in [
            ("http://127.0.0.1:2379/", false, "127.0.0.1:2379"),
            (" [::1]:2379", false, "[::1]:2379"),
            ("https://etcd.example:2379", true, "etcd.example:2379"),
        ] {
            let endpoint = Endpoint::parse(url).expect("good");
            assert_eq!((endpoint.tls, &*endpoint.host), (tls, host));
            assert_eq!(Endpoint::parse(&endpoint.to_string()).expect("good"), endpoint);
        }
        for bad in [
            "ftp://a:1",
            "https://a",
            "http://a",
            "http://a:1/x",
            "http://u@a:1",
            "http://a?b:1",
            "https://https://a:1",
            "a:b",
            ":1",
            "",
            "a:99999",
            "a b:1",
            "a\n:1",
        ] {
            assert!(matches!(Endpoint::parse(bad), Err(Error::Invalid(_))), "{bad}");
        }
    }

    proptest! {
        /// Whatever comes is an answer or an error.
        #[test]
        fn garbage_is_refused(status: u16, text in r#"[\[\]{}:,"a-zA-Z0-9 ]{0,200}"#) {
            let _ = answered::<Outcome>(status, &text);
            let _ = answered::<KeptAlive>(status, &text);
            let _ = answered::<Authenticated>(status, &text);
        }
    }
}
