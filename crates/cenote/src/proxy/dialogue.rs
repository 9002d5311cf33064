//! What the proxy keeps of a client between its statements, wherever they are carried out.

use super::backend::Greeting;
use super::protocol::{Inbound, put};
use super::state::State;
use super::statements::Statement;
use bytes::BytesMut;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::net::TcpStream;

/// A client's prepared statements.
#[derive(Debug, Default)]
pub struct Names {
    /// Those with names.
    pub named: HashMap<Box<[u8]>, Arc<Statement>>,
    /// The one without.
    pub unnamed: Option<Arc<Statement>>,
}

impl Names {
    /// The statement of a name; the empty one is a name, too.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        match name.is_empty() {
            true => self.unnamed.as_ref(),
            false => self.named.get(name),
        }
    }
}

/// A client, as servers' sessions become its.
pub struct Dialogue {
    /// Its number among the proxy's clients.
    pub id: u64,
    /// Role name.
    pub user: String,
    /// The connection.
    pub stream: TcpStream,
    /// What has come from it.
    pub inbound: Inbound,
    /// What it was told at its start; changes of these settings are told, too.
    pub greeting: Greeting,
    /// Its settings.
    pub state: State,
    /// Its prepared statements.
    pub names: Names,
    /// Timestamp of its last commit.
    pub position: u64,
    /// It may have committed behind that, and no position was told: its reads go to the writer until one is.
    pub is_unsure: bool,
    /// As ReadyForQuery said last: `I`, `T` or `E`.
    pub status: u8,
    /// A part of a message was written, and nothing but the rest may follow.
    pub is_torn: bool,
}

impl Dialogue {
    /// Whether the client follows a setting.
    pub fn follows(&self, name: &str) -> bool {
        self.greeting.iter().any(|(known, _)| known == name)
    }

    /// A setting that the client follows, as it is now.
    fn followed<'a>(&self, state: &'a State, greeted: &'a (String, String)) -> &'a str {
        state.values.get(&greeted.0).unwrap_or(&greeted.1)
    }

    /// Tells all settings that the client follows.
    pub fn put_greeting(&self, out: &mut BytesMut) {
        for greeted in self.greeting.iter() {
            let value = self.followed(&self.state, greeted);
            put(out, b'S', &[greeted.0.as_bytes(), b"\0", value.as_bytes(), b"\0"]);
        }
    }

    /// The client's settings are these again; it is told of those that it follows.
    pub fn go_back_to(&mut self, state: State, out: &mut BytesMut) {
        for greeted in self.greeting.iter() {
            let value = self.followed(&state, greeted);
            if value != self.followed(&self.state, greeted) {
                put(out, b'S', &[greeted.0.as_bytes(), b"\0", value.as_bytes(), b"\0"]);
            }
        }
        self.state = state;
    }
}
