//! What a connection is to the commands: its name, its protocol, its transaction and the keys that it watches.

use super::request::{Queued, REQUEST_MAX, Strings};
use cenote_base::rt::HashMap;

/// One connection, as commands see it.
#[derive(Debug, Default)]
pub struct Client {
    /// Its number.
    pub id: u64,
    /// As it calls itself.
    pub name: Vec<u8>,
    /// Commands since MULTI.
    pub queue: Option<Queue>,
    /// Keys that it watches.
    pub watched: HashMap<Box<[u8]>, Watched>,
    /// It has said the secret, or there is none.
    pub is_admitted: bool,
    /// It ends when its answers are sent.
    pub is_leaving: bool,
}

/// Commands that wait for EXEC.
#[derive(Debug, Default)]
pub struct Queue {
    /// In turn.
    pub commands: Vec<Queued>,
    /// Something was wrong with one of them: EXEC refuses.
    pub is_refused: bool,
    bytes: usize,
}

impl Queue {
    /// Adds one; false if that would be too much.
    pub fn push(&mut self, strings: Strings<'_>) -> bool {
        let queued = Queued::of(strings);
        self.bytes += queued.size();
        let fits = self.bytes <= REQUEST_MAX;
        if fits {
            self.commands.push(queued);
        }
        fits
    }
}

/// A key that is watched, as it was then.
#[derive(Debug)]
pub struct Watched {
    /// Its count of changes.
    pub changes: u64,
    /// Whether it was there.
    pub was_there: bool,
}

/// All keys that clients watch. Costs a comparison where no client does.
#[derive(Debug, Default)]
pub struct Watches(HashMap<Box<[u8]>, Changes>);

#[derive(Debug, Default)]
struct Changes {
    count: u64,
    watchers: usize,
}

impl Watches {
    /// A key has been changed.
    #[inline]
    pub fn touch(&mut self, key: &[u8]) {
        if !self.0.is_empty()
            && let Some(changes) = self.0.get_mut(key)
        {
            changes.count += 1;
        }
    }

    /// One more watches a key: its count of changes.
    pub fn add(&mut self, key: &[u8]) -> u64 {
        let changes = self.0.entry(key.into()).or_default();
        changes.watchers += 1;
        changes.count
    }

    /// Whether a key has changed since.
    pub fn has_changed(&self, key: &[u8], watched: &Watched) -> bool {
        self.0.get(key).is_none_or(|changes| changes.count != watched.changes)
    }

    /// A client watches nothing any more.
    pub fn forget(&mut self, client: &mut Client) {
        for (key, _) in core::mem::take(&mut client.watched) {
            if let Some(changes) = self.0.get_mut(&key) {
                changes.watchers -= 1;
                if changes.watchers == 0 {
                    self.0.remove(&key);
                }
            }
        }
    }
}
