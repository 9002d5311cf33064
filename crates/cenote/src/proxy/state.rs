//! A client's settings, as any server session can be given them.
//!
//! Servers report every setting that differs from a session of no client (`_cenote.report`), so the proxy never reads a
//! SET: it keeps what the server says. All of it goes to another session as one statement (`_cenote.state`).

use crate::server::auth::fill_random;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

/// Names and values.
pub type Values = BTreeMap<String, String>;

/// Settings that a connection began with, and that RESET goes back to.
pub type Start = Arc<[(String, String)]>;

/// A client's settings. Cheap to clone; clients that began alike, and have set nothing, share theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Of the start-up packet.
    pub start: Option<Start>,
    /// All that differ from a session of no client, as servers show them.
    pub values: Arc<Values>,
}

/// Known to this proxy and to the sessions that it has: what clients send says nothing of it, so none of them takes
/// another's state.
pub fn token() -> &'static str {
    static TOKEN: LazyLock<String> = LazyLock::new(|| {
        let mut bytes = [0; 16];
        fill_random(&mut bytes);
        format!("{:032x}", u128::from_be_bytes(bytes))
    });
    &TOKEN
}

/// Settings of a server session, which are not the client's.
const OF_SESSIONS: [&str; 1] = ["cenote.read_after"];
/// Values of a client that are kept, in bytes; the server's own limit for a session is lower.
const BYTES_MAX: usize = 64 << 20;

impl State {
    /// What a server reports. False: it is more than may be kept.
    pub fn note(&mut self, name: &str, value: &str) -> bool {
        if OF_SESSIONS.contains(&name) {
            return true;
        }
        let values = Arc::make_mut(&mut self.values);
        match name {
            "_cenote.unset" => {
                values.remove(value);
            }
            _ => {
                values.insert(name.to_owned(), value.to_owned());
            }
        }
        values
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum::<usize>()
            <= BYTES_MAX
    }

    /// The statement that gives a session this state.
    pub fn statement(&self) -> String {
        let mut text = String::new();
        let start = self.start.iter().flat_map(|start| start.iter());
        let start = start.map(|(name, value)| ('s', name, value));
        let items = start.chain(self.values.iter().map(|(name, value)| ('b', name, value)));
        for (kind, name, value) in items {
            // Writing to a String does not fail.
            let _ = write!(text, "{kind}{}:{name}{}:{value}", name.len(), value.len());
        }
        format!("SET \"_cenote.state\" = '{}:{}'", token(), text.replace('\'', "''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_follows_what_is_reported_and_is_written() {
        let mut state = State {
            start: Some([("TimeZone".to_owned(), "+02".to_owned())].into()),
            ..State::default()
        };
        assert!(state.note("my.a", "it's ü") && state.note("my.b", "1") && state.note("_cenote.unset", "my.b"));
        assert!(state.note("cenote.read_after", "5"));
        let text = state.statement();
        let expected = format!("SET \"_cenote.state\" = '{}:s8:TimeZone3:+02b4:my.a7:it''s ü'", token());
        assert_eq!(text, expected);
        let other = state.clone();
        assert!(other == state && state.note("my.a", "2") && other != state);
    }
}
