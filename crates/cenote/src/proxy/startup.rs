//! A client's start: what it asks for, its password, and the settings that it begins with.
//!
//! Settings of the start-up packet are checked by a server, once for all clients that begin alike.

use super::dialogue::{Dialogue, Names};
use super::passwords::Users;
use super::protocol::{Inbound, Message, Refusal, put};
use super::route;
use super::shared::{Reads, Shared};
use super::state::{Start, State};
use crate::server::auth::{Challenged, check_proof};
use crate::server::input::{Fields, FrameError};
use crate::server::output::OutBuffer;
use crate::server::startup::{
    CANCEL_REQUEST, GSS_ENCRYPTION_REQUEST, PACKETS_MAX, PROTOCOL_MAJOR, SSL_REQUEST, Startup, check_database,
    negotiate_version, parse_startup, refused, sasl_initial_response,
};
use crate::server::wire::End;
use bytes::BytesMut;
use std::io;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Bytes of a message of the password exchange, at most.
const PASSWORD_BYTES_MAX: usize = 64 << 10;
/// What a client wants.
pub enum Wanted {
    /// A session.
    Session(Startup),
    /// Another client's statement stopped.
    Cancel {
        /// The other client's number.
        id: i32,
        /// Its secret.
        secret: i32,
    },
}

/// Why there is none: told to the client, or it is not there to be told.
pub type Turned = Option<Refusal>;

/// A client that has said nothing yet.
pub struct Arriving {
    /// The connection.
    pub stream: TcpStream,
    /// What has come.
    pub inbound: Inbound,
}

impl Arriving {
    /// What the client wants; it has proved its user.
    ///
    /// # Errors
    /// It left, makes no sense, or is not let in.
    pub async fn wants(&mut self, users: Option<&Users>) -> Result<Wanted, Turned> {
        for _ in 0..PACKETS_MAX {
            let packet = loop {
                match self.inbound.startup().map_err(|error| Some(malformed(&error)))? {
                    Some(packet) => break packet,
                    None => self.fill().await?,
                }
            };
            let mut body = Fields(&packet);
            match body.i32() {
                Some(SSL_REQUEST | GSS_ENCRYPTION_REQUEST) => self.write(b"N").await?,
                Some(CANCEL_REQUEST) => return cancel_of(&mut body),
                Some(version) if version >> 16 == PROTOCOL_MAJOR => {
                    return self.admit(&packet[4..], version & 0xffff, users).await;
                }
                version => {
                    let (major, minor) = (version.unwrap_or(0) >> 16, version.unwrap_or(0) & 0xffff);
                    let text = format!("unsupported frontend protocol {major}.{minor}: server supports 3.0");
                    return Err(Some(Refusal::new("0A000", text)));
                }
            }
        }
        let text = "too many requests before the startup packet";
        Err(Some(Refusal::new("08P01", text)))
    }

    async fn admit(&mut self, body: &[u8], minor: i32, users: Option<&Users>) -> Result<Wanted, Turned> {
        let (startup, extensions) = parse_startup(body).map_err(turned)?;
        if minor > 0 || !extensions.is_empty() {
            let mut out = OutBuffer::new();
            negotiate_version(&mut out, &extensions);
            let mut bytes = Vec::new();
            out.flush(&mut bytes).map_err(|_| None)?;
            self.write(&bytes).await?;
        }
        if let Some(users) = users {
            self.prove(&startup.user, users).await?;
        }
        check_database(&startup).map_err(turned)?;
        Ok(Wanted::Session(startup))
    }

    /// SCRAM-SHA-256.
    async fn prove(&mut self, user: &str, users: &Users) -> Result<(), Turned> {
        self.authentication(10, b"SCRAM-SHA-256\0\0").await?;
        let first = self.password().await?;
        let client_first = sasl_initial_response(&first.body).map_err(turned)?;
        let malformed = |text: String| Some(Refusal::new("08P01", format!("malformed SCRAM message: {text}")));
        let verifier = users.passwords.verifier(user);
        let challenge = verifier.challenge(client_first);
        let (server_first, challenged): (String, Challenged) =
            challenge.map_err(|error| malformed(error.to_string()))?;
        self.authentication(11, server_first.as_bytes()).await?;
        let last = self.password().await?;
        let proved = check_proof(&challenged, &last.body);
        let server_final = proved.map_err(|failure| turned(refused(user, failure)))?;
        self.authentication(12, server_final.as_bytes()).await
    }

    async fn password(&mut self) -> Result<Message, Turned> {
        loop {
            // A client that was not let in yet sends nothing else, and little of that.
            let is_other = self.inbound.first().is_some_and(|tag| !matches!(tag, b'p' | b'X'));
            if is_other || self.inbound.len() > PASSWORD_BYTES_MAX {
                return Err(Some(Refusal::new("08P01", "expected SASL response")));
            }
            match self.inbound.next_of_client() {
                Ok(Some(message)) if message.tag == b'p' => return Ok(message),
                Ok(None) => self.fill().await?,
                Ok(Some(_)) => return Err(None),
                Err(error) => return Err(Some(malformed(&error))),
            }
        }
    }

    async fn authentication(&mut self, code: i32, data: &[u8]) -> Result<(), Turned> {
        let mut out = BytesMut::new();
        put(&mut out, b'R', &[&code.to_be_bytes(), data]);
        self.write(&out).await
    }

    async fn fill(&mut self) -> Result<(), Turned> {
        match self.inbound.fill(&mut self.stream).await {
            Ok(1..) => Ok(()),
            Ok(0) | Err(_) => Err(None),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Turned> {
        let written: io::Result<()> = self.stream.write_all(bytes).await;
        written.map_err(|_| None)
    }

    /// The client as it begins.
    ///
    /// # Errors
    /// A server refuses its user or settings; there is none to ask.
    pub async fn begin(self, id: u64, startup: Startup, shared: &Shared) -> Result<Dialogue, (TcpStream, Refusal)> {
        let start = start_of(&startup, shared.options.reads);
        let mut dialogue = Dialogue {
            id,
            user: startup.user,
            stream: self.stream,
            inbound: self.inbound,
            greeting: Arc::new([]),
            state: State::default(),
            names: Names::default(),
            position: 0,
            is_unsure: false,
            status: b'I',
            is_torn: false,
        };
        dialogue.state.start = Some(start.clone());
        if let Some((start, values, greeting)) = shared.accepted(&dialogue.user, &start) {
            (dialogue.state.start, dialogue.state.values, dialogue.greeting) = (Some(start), values, greeting);
            return Ok(dialogue);
        }
        let until = Instant::now() + shared.options.wait;
        match route::session(shared, &mut dialogue, false, until).await {
            Ok(lease) => {
                dialogue.greeting = lease.greeting.clone();
                lease.give_back();
                let accepted = (start, dialogue.state.values.clone(), dialogue.greeting.clone());
                shared.note_accepted(&dialogue.user, accepted);
                Ok(dialogue)
            }
            Err(refusal) => Err((dialogue.stream, refusal)),
        }
    }
}

/// The settings that a session of the client begins with. What is for servers and their proxies is not the client's.
fn start_of(startup: &Startup, reads: Reads) -> Start {
    let strong = (reads == Reads::Strong).then(|| ("cenote.strong_reads".to_owned(), "on".to_owned()));
    let given = startup
        .settings
        .iter()
        .filter(|(name, _)| !name.to_ascii_lowercase().starts_with("_cenote."));
    strong.into_iter().chain(given.cloned()).collect()
}

fn cancel_of(body: &mut Fields<'_>) -> Result<Wanted, Turned> {
    let (id, secret) = body.i32().zip(body.i32()).ok_or(None)?;
    Ok(Wanted::Cancel { id, secret })
}

fn turned(end: End) -> Turned {
    match end {
        End::Fatal(error) => Some(Refusal::new(error.code(), error.message())),
        End::Closed | End::Lost(_) => None,
    }
}

fn malformed(error: &FrameError) -> Refusal {
    Refusal::new("08P01", error.to_string())
}
