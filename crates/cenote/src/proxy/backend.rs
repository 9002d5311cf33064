//! A session of a server, as the proxy has it.
//!
//! It begins as the session of no client, with everything reported (`_cenote.report`), and becomes one client's after
//! the other by [`Backend::become_clients`].

use super::passwords::Users;
use super::protocol::{FromServer, Inbound, Message, Refusal, put, put_query};
use super::state::{Start, State, token};
use super::statements::OnSession;
use crate::server::input::Fields;
use crate::server::startup::DATABASE;
use bytes::BytesMut;
use cenote_sql::DATABASE_ID;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// How long a server may take to let the proxy in, or to take a client's state over.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a server that goes is listened to.
pub const HEAR_OUT: Duration = Duration::from_millis(200);
/// How long a connection may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

/// Why there is no session, or it is no more.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server does not answer, or goes.
    Gone(String),
    /// It refuses this user, or what was asked.
    Refused(Refusal),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Gone(error.to_string())
    }
}

/// What clients are told at their start: names and values.
pub type Greeting = Arc<[(String, String)]>;

/// A session of a server.
pub struct Backend {
    /// The connection.
    pub stream: TcpStream,
    /// What has come from it.
    pub inbound: Inbound,
    /// Number and secret, for CancelRequest.
    pub key: [u8; 8],
    /// What it said at its start.
    pub greeting: Greeting,
    /// Its prepared statements.
    pub statements: OnSession,
    /// As ReadyForQuery said last behind the proxy's own statements.
    status: u8,
    /// The client whose state it has.
    pub owner: u64,
    /// That state.
    pub state: State,
    /// The position that it reads after.
    pub read_after: u64,
    /// It has what cannot travel.
    pub holds: bool,
    /// It has drawn from a sequence.
    pub drawn: bool,
    /// It is not to be used again.
    pub is_spoilt: bool,
    /// The server goes, and the open block goes on elsewhere.
    pub left: Option<Left>,
    /// Since when it is idle.
    pub idle_since: Instant,
}

/// Where a client's block is whose server goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// In the database: a session of the next server that has it goes on by this token.
    WithNext(String),
    /// Here: a reader's, which a session of any server goes on with.
    WithProxy(String),
}

impl Backend {
    /// Enters a server.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn connect(address: &str, user: &str, users: Option<&Users>) -> Result<Backend, Failure> {
        let connecting = tokio::time::timeout(CONNECT_TIME_MAX, TcpStream::connect(address));
        let stream = connecting.await.map_err(|_| silent(address))??;
        stream.set_nodelay(true)?;
        let mut backend = Backend {
            stream,
            inbound: Inbound::default(),
            key: [0; 8],
            greeting: Arc::new([]),
            statements: OnSession::default(),
            status: b'I',
            owner: 0,
            state: State::default(),
            read_after: 0,
            holds: false,
            drawn: false,
            is_spoilt: false,
            left: None,
            idle_since: Instant::now(),
        };
        let entering = tokio::time::timeout(ANSWER_TIME_MAX, backend.enter(user, users));
        entering.await.map_err(|_| silent(address))??;
        Ok(backend)
    }

    async fn enter(&mut self, user: &str, users: Option<&Users>) -> Result<(), Failure> {
        let token = token();
        let body = format!("user\0{user}\0database\0{DATABASE}\0_cenote.report\0all:{token}\0\0");
        let mut out = (8 + body.len() as u32).to_be_bytes().to_vec();
        out.extend_from_slice(&[0, 3, 0, 0]);
        out.extend_from_slice(body.as_bytes());
        self.stream.write_all(&out).await?;
        let (mut greeting, mut scram) = (Vec::new(), None);
        loop {
            let message = self.next().await?;
            let body = &message.body[..];
            match message.tag {
                b'R' => self.authenticate(body, user, users, &mut scram).await?,
                b'S' => greeting.extend(status_of(body).map(|(name, value)| (name.to_owned(), value.to_owned()))),
                b'K' => self.key = body.try_into().map_err(|_| confused())?,
                b'Z' => break,
                b'E' => return Err(failure_of(body)),
                _ => {}
            }
        }
        self.greeting = greeting.into();
        Ok(())
    }

    async fn authenticate(
        &mut self,
        body: &[u8],
        user: &str,
        users: Option<&Users>,
        scram: &mut Option<ScramSha256>,
    ) -> Result<(), Failure> {
        let mut fields = Fields(body);
        let mut out = BytesMut::new();
        match (fields.i32(), scram.as_mut()) {
            (Some(0), _) => return Ok(()),
            (Some(10), None) => {
                let text = format!("the server asks for the password of user \"{user}\", which the proxy has not");
                let password = users.and_then(|users| users.clear(user));
                let password = password.ok_or_else(|| Failure::Refused(Refusal::new("28000", text)))?;
                let begun = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
                let len = (begun.message().len() as u32).to_be_bytes();
                put(&mut out, b'p', &[b"SCRAM-SHA-256\0", &len, begun.message()]);
                *scram = Some(begun);
            }
            (Some(11), Some(scram)) => {
                scram.update(fields.0)?;
                put(&mut out, b'p', &[scram.message()]);
            }
            (Some(12), Some(scram)) => return Ok(scram.finish(fields.0)?),
            _ => return Err(confused()),
        }
        Ok(self.stream.write_all(&out).await?)
    }

    /// The next whole message.
    async fn next(&mut self) -> Result<Message, Failure> {
        loop {
            match self.inbound.next_of_server() {
                Ok(Some(FromServer::Whole(message))) => return Ok(message),
                Ok(None) => {}
                Ok(Some(FromServer::Begun(_))) | Err(_) => return Err(confused()),
            }
            if self.inbound.fill(&mut self.stream).await? == 0 {
                return Err(Failure::Gone("it closed the connection".into()));
            }
        }
    }

    /// Takes over a client's state and reads after its position; asks the server for nothing where it has both.
    ///
    /// # Errors
    /// [`Failure`]: the session is not to be used.
    pub async fn become_clients(&mut self, owner: u64, state: &State, read_after: u64) -> Result<State, Failure> {
        let mut out = BytesMut::new();
        let (is_other, mut answers) = (self.owner != owner, 0);
        let takes = self.state != *state || is_other && self.drawn;
        if takes {
            put_query(&mut out, &state.statement());
            (self.read_after, answers) = (0, 1);
        }
        if self.read_after < read_after {
            put_query(&mut out, &format!("SET cenote.read_after = {read_after}"));
            (self.read_after, answers) = (read_after, answers + 1);
        }
        self.owner = owner;
        if answers == 0 {
            return Ok(state.clone());
        }
        // A Query drops it.
        self.statements.unnamed = None;
        let mut reported = State {
            start: state.start.clone(),
            ..State::default()
        };
        tokio::time::timeout(ANSWER_TIME_MAX, self.settle(&out, answers, &mut reported))
            .await
            .map_err(|_| silent("the server"))??;
        self.state = if takes { reported } else { state.clone() };
        Ok(self.state.clone())
    }

    /// Goes on with the client's block that its last server left; its settings and its transaction status.
    ///
    /// # Errors
    /// [`Failure`]: it is not there any more, or cannot go on here. The session is not to be used.
    pub async fn take_up(&mut self, left: &Left, start: Option<Start>) -> Result<(State, u8), Failure> {
        let mut out = BytesMut::new();
        let (setting, text) = match left {
            Left::WithNext(text) => ("take_up", text),
            Left::WithProxy(text) => ("carry_on", text),
        };
        let text = text.replace('\'', "''");
        put_query(&mut out, &format!("SET \"_cenote.{setting}\" = '{}:{text}'", token()));
        let mut reported = State {
            start,
            ..State::default()
        };
        tokio::time::timeout(ANSWER_TIME_MAX, self.settle(&out, 1, &mut reported))
            .await
            .map_err(|_| silent("the server"))??;
        self.state = reported.clone();
        // It waits for what its former session waited for: no other client is to.
        self.is_spoilt |= matches!(left, Left::WithProxy(_));
        Ok((reported, self.status))
    }

    /// What a server says unasked: whether it goes. What it leaves is in `left` then.
    pub async fn hear_out(&mut self) -> bool {
        let heard = async {
            loop {
                match self.next().await {
                    Ok(message) if message.tag == b'S' => {
                        if let Some((name, value)) = status_of(&message.body) {
                            self.note(name, value);
                        }
                    }
                    Ok(message) if message.tag == b'E' => return,
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        };
        tokio::time::timeout(HEAR_OUT, heard).await.is_ok()
    }

    /// Sends statements of the proxy's own, and takes their answers.
    async fn settle(&mut self, out: &[u8], mut answers: usize, reported: &mut State) -> Result<(), Failure> {
        self.stream.write_all(out).await?;
        let mut failed = None;
        while answers > 0 {
            let message = self.next().await?;
            match message.tag {
                b'Z' => {
                    answers -= 1;
                    self.status = message.body.first().copied().unwrap_or(b'I');
                }
                b'E' => failed = Some(failure_of(&message.body)),
                b'S' => {
                    if let Some((name, value)) = status_of(&message.body)
                        && !self.note(name, value)
                    {
                        reported.note(name, value);
                    }
                }
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Notes what a server says of the session alone; whether it was that.
    pub fn note(&mut self, name: &str, value: &str) -> bool {
        match name {
            "_cenote.holds" => self.holds = !value.is_empty(),
            "_cenote.drawn" => self.drawn = !value.is_empty(),
            "_cenote.left" => self.left = Some(Left::WithNext(value.to_owned())),
            "_cenote.carried" => self.left = Some(Left::WithProxy(value.to_owned())),
            "_cenote.position" => {}
            _ => return false,
        }
        true
    }

    /// Whether its server is a reader, as it said when this began.
    pub fn is_readers(&self) -> bool {
        let says = |(name, value): &(String, String)| name == "in_hot_standby" && value == "on";
        self.greeting.iter().any(says)
    }

    /// Whether the server has this database, or reads it; zero: that is not known. A server of before says none.
    pub fn is_of(&self, database: u128) -> bool {
        let said = self.greeting.iter().find(|(name, _)| name == DATABASE_ID);
        database == 0 || said.is_some_and(|(_, id)| *id == format!("{database:032x}"))
    }

    /// Whether the server has closed it, or has said something unasked: it is going.
    pub fn is_gone(&self) -> bool {
        // What it says is not taken: it may be what has become of the client's block.
        let looked = rustix::net::recv(&self.stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        self.inbound.len() > 0 || !matches!(looked, Err(Errno::AGAIN | Errno::INTR))
    }

    /// Until the server has closed it, or says something unasked.
    pub async fn goes(&self) {
        if self.inbound.len() == 0 {
            // Readiness alone may be of bytes that were read already.
            drop(self.stream.peek(&mut [0; 1]).await);
        }
    }
}

/// Name and value of a ParameterStatus.
pub fn status_of(body: &[u8]) -> Option<(&str, &str)> {
    let mut fields = Fields(body);
    let (name, value) = (fields.cstr()?, fields.cstr()?);
    Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
}

fn failure_of(body: &[u8]) -> Failure {
    let (_, refusal) = Refusal::read(body);
    match refusal.code.starts_with("57P0") {
        true => Failure::Gone(refusal.message),
        false => Failure::Refused(refusal),
    }
}

fn silent(address: &str) -> Failure {
    Failure::Gone(format!("{address} does not answer"))
}

fn confused() -> Failure {
    Failure::Gone("it does not speak the protocol".into())
}
