//! Prepared statements of the extended protocol: a client's names, the proxy's, and which session has which.
//!
//! ```text
//! client's name ──► Statement (text and parameter types, one for all clients) ──► `_cenote_7` on every session
//! ```
//!
//! A session that lacks one is sent its Parse again, and one that has as many as it may is sent a Close for that which
//! it has not used longest.

use super::words::{Verb, verb};
use crate::server::input::Fields;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Statements of a server session.
const SESSION_STATEMENTS_MAX: usize = 1000;
/// Statements of a client: as many as a server's session may have.
pub const CLIENT_STATEMENTS_MAX: usize = 16_384;

/// A statement that clients have prepared.
#[derive(Debug)]
pub struct Statement {
    /// Its number, by which sessions know it.
    pub id: u64,
    /// Text with its zero, and parameter types: what follows the name in Parse.
    pub rest: Arc<[u8]>,
    /// What it begins with.
    pub verb: Verb,
}

impl Statement {
    /// Its name on server sessions.
    pub fn name(&self) -> String {
        format!("_cenote_{}", self.id)
    }

    /// Its text.
    pub fn text(&self) -> &[u8] {
        text_of(&self.rest)
    }
}

/// The text in what follows the name in Parse.
pub fn text_of(rest: &[u8]) -> &[u8] {
    Fields(rest).cstr().unwrap_or_default()
}

/// A Parse, Bind or Describe taken apart: the names in it, and what follows. None: it is malformed.
pub fn split_name(body: &Bytes, at: usize) -> Option<(Bytes, Bytes)> {
    let rest = body.get(at..)?;
    let end = at + rest.iter().position(|byte| *byte == 0)?;
    Some((body.slice(at..end), body.slice(end + 1..)))
}

/// All statements, each once, for as long as a client has it.
#[derive(Debug, Default)]
pub struct Interned {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    statements: HashMap<Arc<[u8]>, Weak<Statement>>,
    last_id: u64,
    swept_at: usize,
}

impl Interned {
    /// The statement of what follows the name in a Parse.
    pub fn statement(&self, rest: &[u8]) -> Arc<Statement> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.statements.get(rest).and_then(Weak::upgrade) {
            return found;
        }
        if known.statements.len() > 2 * known.swept_at + 1000 {
            known.statements.retain(|_, statement| statement.strong_count() > 0);
            known.swept_at = known.statements.len();
        }
        known.last_id += 1;
        let rest: Arc<[u8]> = rest.into();
        let statement = Arc::new(Statement {
            id: known.last_id,
            verb: verb(text_of(&rest)),
            rest: rest.clone(),
        });
        known.statements.insert(rest, Arc::downgrade(&statement));
        statement
    }
}

/// The statements that a server session has.
#[derive(Debug, Default)]
pub struct OnSession {
    /// By number: when it was used last.
    used: HashMap<u64, u64>,
    clock: u64,
    /// The one without a name.
    pub unnamed: Option<u64>,
}

impl OnSession {
    /// Whether it is there; it counts as used.
    pub fn uses(&mut self, id: u64) -> bool {
        self.clock += 1;
        let clock = self.clock;
        self.used.get_mut(&id).map(|used| *used = clock).is_some()
    }

    /// It is there from now on; the one that has to go for it.
    pub fn add(&mut self, id: u64) -> Option<u64> {
        self.clock += 1;
        let full = self.used.len() >= SESSION_STATEMENTS_MAX;
        let oldest = full.then(|| self.used.iter().min_by_key(|(_, used)| **used).map(|(id, _)| *id));
        let oldest = oldest.flatten();
        oldest.map(|id| self.used.remove(&id));
        self.used.insert(id, self.clock);
        oldest
    }

    /// It is not there.
    pub fn forget(&mut self, id: u64) {
        self.used.remove(&id);
    }

    /// None is there.
    pub fn forget_all(&mut self) {
        *self = OnSession::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_statement_while_it_is_in_use() {
        let interned = Interned::default();
        let one = interned.statement(b"select 1\0\0\0");
        assert!(Arc::ptr_eq(&one, &interned.statement(b"select 1\0\0\0")));
        assert_ne!(one.id, interned.statement(b"select 1\0\0\x01\0\0\0\x17").id);
        assert_eq!((one.text(), one.verb), (&b"select 1"[..], Verb::Read));
        (0..5000).for_each(|n| drop(interned.statement(format!("select {n}\0").as_bytes())));
        assert!(interned.known.lock().unwrap().statements.len() < 2000);
    }

    #[test]
    fn a_session_forgets_what_it_used_longest_ago() {
        let mut session = OnSession::default();
        let max = SESSION_STATEMENTS_MAX as u64;
        assert!((0..max).all(|id| session.add(id).is_none()));
        assert!(session.uses(0));
        assert_eq!(session.add(max), Some(1));
        assert!(!session.uses(1) && session.uses(0));
    }
}
