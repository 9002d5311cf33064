//! What a proxy is told beside what PostgreSQL's clients are told, so that any session can become any client's.
//!
//! Asked for by `_cenote.report` = `all` or `all:<token>` in the start-up packet. Before ReadyForQuery come, as ParameterStatus:
//!
//! | name | value |
//! |---|---|
//! | any setting's | its value, where it differs from what was told |
//! | `_cenote.unset` | name of a setting that is gone |
//! | `_cenote.position` | timestamp of the session's last commit |
//! | `_cenote.holds` | `prepared`: there are statements that PREPARE made, which no other session has; else empty |
//! | `_cenote.drawn` | `on`: the session has drawn from a sequence, so that `currval` answers; else empty |
//!
//! A server that goes in a planned switch tells the token of an open block as `_cenote.left`. With
//! `SET "_cenote.take_up" = '<token>:<that token>'` a session of the next server goes on with it (`leaving`). A reader
//! tells what its session has as `_cenote.carried`, and `SET "_cenote.carry_on" = '<token>:<that>'` goes on with it: at any
//! server of the database, or, where it has a snapshot, at the one that has the database.
//!
//! `SET "_cenote.state" = '<token>:...'` makes the session another client's: a client that does not know the token cannot.
//! The text is a row of `<kind><name><value>`, kind
//! `s` for what the client's connection began with, to which RESET goes back, and `b` for what it has set since; name
//! and value are `<bytes>:<text>`. What `currval` answered is forgotten.

use crate::error::{Result, SqlError, code};
use crate::settings::Settings;
use std::sync::Arc;

/// The parameter of the start-up packet.
pub const ASK: &str = "_cenote.report";
/// The setting that hands a client's state over.
pub const STATE: &str = "_cenote.state";
/// The setting by which a session takes a transaction up that the last server left.
pub const TAKE_UP: &str = "_cenote.take_up";
/// The setting by which a session takes up what a reader's session had.
pub const CARRY_ON: &str = "_cenote.carry_on";
/// Told to a proxy when a reader goes: what another server's session needs to go on.
pub const CARRIED: &str = "_cenote.carried";
/// Told to a proxy when the server goes: by this the next server's session takes the open block up.
pub const LEFT: &str = "_cenote.left";

/// What was told, beside settings.
pub struct Report {
    /// What a state begins with; empty: nothing.
    pub token: String,
    /// Settings of a session of no client.
    pub origin: Arc<Settings>,
    /// `_cenote.position`.
    pub position: u64,
    /// `_cenote.holds`.
    pub holds: bool,
    /// `_cenote.drawn`.
    pub drawn: bool,
}

impl Report {
    /// What a start-up packet asks for.
    pub fn asked_for(startup: &[(String, String)], origin: &Settings) -> Option<Box<Report>> {
        let (_, value) = startup.iter().find(|(name, _)| name == ASK)?;
        let token = match value.strip_prefix("all")? {
            "" => "",
            token => token.strip_prefix(':')?,
        };
        Some(Box::new(Report {
            token: token.to_owned(),
            origin: Arc::new(origin.clone()),
            position: 0,
            holds: false,
            drawn: false,
        }))
    }

    /// The state in a text that begins with the token.
    pub fn state<'a>(&self, text: &'a str) -> Option<&'a str> {
        match self.token.is_empty() {
            true => Some(text),
            false => text.strip_prefix(&self.token)?.strip_prefix(':'),
        }
    }
}

/// The settings that the text says: at the client's start, and now.
///
/// # Errors
/// It is malformed, or a session does not take a setting.
pub fn states(origin: &Settings, mut text: &str) -> Result<(Settings, Settings)> {
    let (mut start, mut set) = (origin.clone(), Vec::new());
    while !text.is_empty() {
        let (kind, rest) = text.split_at_checked(1).ok_or_else(malformed)?;
        let (name, rest) = field(rest)?;
        let (value, rest) = field(rest)?;
        match kind {
            "s" => start.set(name, value, false)?,
            "b" => set.push((name, value)),
            _ => return Err(malformed()),
        }
        text = rest;
    }
    let mut now = start.clone();
    set.into_iter()
        .try_for_each(|(name, value)| now.set(name, value, false))?;
    Ok((start, now))
}

/// `<bytes>:<text>`, and what is behind it.
fn field(text: &str) -> Result<(&str, &str)> {
    let (bytes, rest) = text.split_once(':').ok_or_else(malformed)?;
    let bytes: usize = bytes.parse().map_err(|_| malformed())?;
    rest.split_at_checked(bytes).ok_or_else(malformed)
}

#[cold]
fn malformed() -> SqlError {
    SqlError::new(code::INVALID_ARGUMENT, format!("the text of {STATE} is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_taken_apart() {
        let origin = Settings::new("me");
        let (start, now) = states(&origin, "s8:TimeZone3:+02b12:lock_timeout2:2sb4:my.a7:it's ü").unwrap();
        assert_eq!(start.get("timezone").unwrap(), "+02");
        assert_eq!(
            (now.get("lock_timeout").unwrap(), start.millis("lock_timeout")),
            ("2s".into(), 0)
        );
        assert_eq!(now.get("my.a").unwrap(), "it's ü");
        let names: Vec<_> = now.differences(&origin).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["TimeZone", "lock_timeout", "my.a"]);
        assert_eq!(
            start.differences(&now),
            [("lock_timeout", Some("0".into())), ("my.a", None)]
        );
        for wrong in [
            "x1:a1:b",
            "s8:TimeZone9:x",
            "s",
            "s99:a",
            "s1:é1:b",
            "s-1:a",
            "s8:TimeZone3:???",
        ] {
            assert!(states(&origin, wrong).is_err(), "{wrong}");
        }
    }
}
