//! Messages of a client that belong together: a Query, or those of the extended protocol up to Sync.

use super::dialogue::Names;
use super::outcome::Work;
use super::protocol::Message;
use super::statements::{Statement, split_name, text_of};
use super::words::{Verb, verb};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};

/// Bytes of messages that are gathered before the first is sent.
pub const BATCH_BYTES_MAX: usize = 256 << 10;

/// Messages in their order.
#[derive(Debug, Default)]
pub struct Batch {
    /// They.
    pub messages: Vec<Message>,
    /// More belong to it: it has no Sync yet.
    pub is_open: bool,
}

/// What a batch does, as far as its texts say.
#[derive(Debug, Default)]
pub struct Facts {
    /// The verbs of its statements.
    pub verbs: Vec<Verb>,
    /// Their texts, hashed.
    pub hashes: Vec<u64>,
    /// A statement or portal is named that the proxy does not know.
    pub has_unknown: bool,
    /// It is more than Close and Sync.
    pub needs_server: bool,
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Batch {
    /// The text, where it is a Query.
    pub fn query(&self) -> Option<&[u8]> {
        match &self.messages[..] {
            [message] if message.tag == b'Q' => message.body.strip_suffix(b"\0"),
            _ => None,
        }
    }

    /// What it does, for a client with these statements.
    pub fn facts(&self, names: &Names) -> Facts {
        let mut facts = Facts::default();
        // Those that the batch itself prepares.
        let mut own: Vec<(&[u8], Verb, u64)> = Vec::new();
        for message in &self.messages {
            facts.needs_server |= !matches!(message.tag, b'C' | b'S');
            match message.tag {
                b'Q' => {
                    let text = message.body.strip_suffix(b"\0").unwrap_or_default();
                    facts.add(verb(text), HASHER.hash_one(text));
                }
                b'P' => {
                    let Some(end) = message.body.iter().position(|byte| *byte == 0) else {
                        continue;
                    };
                    let text = text_of(&message.body[end + 1..]);
                    let (verb, hash) = (verb(text), HASHER.hash_one(text));
                    facts.add(verb, hash);
                    own.push((&message.body[..end], verb, hash));
                }
                b'B' => {
                    let statement = split_name(&message.body, 0).and_then(|(_, rest)| split_name(&rest, 0));
                    let name = statement.map(|(name, _)| name).unwrap_or_default();
                    facts.bind(&name, &own, names);
                }
                b'D' if message.body.first() == Some(&b'S') => {
                    let name = split_name(&message.body, 1).map(|(name, _)| name).unwrap_or_default();
                    facts.bind(&name, &own, names);
                }
                b'C' if message.body.first() != Some(&b'S') => facts.needs_server = true,
                _ => {}
            }
        }
        facts
    }
}

impl Facts {
    fn add(&mut self, verb: Verb, hash: u64) {
        self.verbs.push(verb);
        self.hashes.push(hash);
    }

    fn bind(&mut self, name: &[u8], own: &[(&[u8], Verb, u64)], names: &Names) {
        let prepared = own.iter().rev().find(|(known, ..)| *known == name);
        match (prepared, names.get(name)) {
            (Some(_), _) => {}
            (None, Some(statement)) => self.known(statement),
            (None, None) => self.has_unknown = true,
        }
    }

    fn known(&mut self, statement: &Arc<Statement>) {
        self.add(statement.verb, HASHER.hash_one(statement.text()));
    }

    /// Whether readers may be asked first.
    pub fn is_for_readers(&self) -> bool {
        !self.has_unknown && !self.verbs.is_empty() && self.verbs.iter().all(|verb| verb.is_for_readers())
    }

    /// Whether it is this alone.
    pub fn is_only(&self, verb: Verb) -> bool {
        !self.has_unknown && !self.verbs.is_empty() && self.verbs.iter().all(|found| *found == verb)
    }

    /// Whether a block may end in it, and something else be done.
    fn ends_block(&self) -> bool {
        let ends = |verb: &Verb| matches!(verb, Verb::Commit | Verb::Rollback | Verb::Several);
        let is_plain = self.is_only(Verb::Commit) || self.is_only(Verb::Rollback);
        !is_plain && self.verbs.iter().any(ends)
    }

    /// What is under way when it is sent.
    pub fn work(&self, in_block: bool) -> Work {
        Work {
            in_block,
            repeatable: !self.has_unknown && self.verbs.iter().all(|verb| verb.is_repeatable()),
            commits: self.is_only(Verb::Commit),
            rolls_back: self.is_only(Verb::Rollback),
            ends_block: self.ends_block(),
            ..Work::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::statements::Interned;
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Message {
        let body = body.to_vec().into();
        Message { tag, body }
    }

    #[test]
    fn facts_come_from_texts_and_from_statements_that_are_known() {
        let (interned, mut names) = (Interned::default(), Names::default());
        names
            .named
            .insert((*b"w").into(), interned.statement(b"insert into t values (1)\0\0\0"));
        names
            .named
            .insert((*b"r").into(), interned.statement(b"select 1\0\0\0"));
        let batch = |messages: &[(u8, &[u8])]| Batch {
            messages: messages.iter().map(|(tag, body)| message(*tag, body)).collect(),
            is_open: false,
        };
        let reads = |messages: &[(u8, &[u8])]| batch(messages).facts(&names).is_for_readers();
        assert!(reads(&[(b'Q', b"select 1\0")]));
        assert!(reads(&[
            (b'P', b"\0select 1\0\0\0"),
            (b'B', b"\0\0\0\0"),
            (b'E', b"\0\0\0\0\0"),
            (b'S', b"")
        ]));
        assert!(reads(&[(b'B', b"\0r\0\0\0"), (b'S', b"")]));
        assert!(!reads(&[(b'B', b"\0r\0\0\0"), (b'B', b"\0w\0\0\0"), (b'S', b"")]));
        assert!(!reads(&[(b'B', b"\0x\0\0\0"), (b'S', b"")]));
        assert!(!reads(&[
            (b'P', b"r\0delete from t\0\0\0"),
            (b'B', b"\0r\0\0\0"),
            (b'S', b"")
        ]));
        let closing = batch(&[(b'C', b"Sr\0"), (b'S', b"")]);
        assert!(!closing.facts(&names).needs_server);
        assert!(batch(&[(b'C', b"Pr\0"), (b'S', b"")]).facts(&names).needs_server);
        // Garbage has facts, too.
        for tag in [b'P', b'B', b'D', b'Q', b'C'] {
            for body in [&b""[..], b"\0", b"S", b"a", b"a\0b"] {
                batch(&[(tag, body)]).facts(&names);
            }
        }
    }
}
