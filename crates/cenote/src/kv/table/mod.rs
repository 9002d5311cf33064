//! The table that all share ([`cenote_store`]), as what is served: other servers on other hosts, and programs without a
//! server, change it at the same time.
//!
//! Each change of a key is one compare-and-swap of the store; one that depends on what was read is tried again until
//! nothing has come between ([`change`]). So INCR by any number of servers sums exactly. What would be a step of
//! several keys is none here: commands that need one are refused by name, and MSET and DEL go key by key.
//!
//! A value is a string, the bytes that C and Python programs see. Hashes are refused too: a field would be a change of
//! the whole value, and what reads the table without a server would have to know how they are packed.

mod change;
mod commands;
mod expiry;
mod keys;
mod strings;

use super::dispatch::{Call, Data, Usage};
use super::refusal::{Done, Refusal, TOO_MUCH};
use super::reply::Reply;
use cenote_base::Error;
use cenote_kv::Failure;
use cenote_store::{Expected, PutOptions, Store, StoreStats, Value};
pub use commands::COMMANDS;
use std::sync::Arc;

/// Memory for values that a thread has, and keeps at most.
const ROOM_MIN: usize = 16 << 10;
const ROOM_KEPT: usize = 1 << 20;

/// One thread's handle on the table. See the module.
#[derive(Clone)]
pub struct Table {
    store: Store,
    /// How values are put: whose they are, and how many copies they have.
    options: PutOptions,
    /// What was read last, and how long it is.
    room: Vec<u8>,
    len: usize,
}

/// An error of the store, in words of Redis. What a client did wrong is not logged.
pub fn refusal(error: Error) -> Refusal {
    match error {
        Error::Invalid(text) => Refusal::Text(format!("ERR {text}")),
        Error::Busy(text) => Refusal::Text(format!("BUSY {text}: try again")),
        error => Refusal::Store(Failure::Memory(error)),
    }
}

/// What a store says of itself, and of all processes that use it, as text for Prometheus: as long as it is used, which
/// ends while a thread still waits for those that ask.
pub fn metrics(store: &Arc<Store>) -> impl Fn() -> String + Send + Sync + use<> {
    let store = Arc::downgrade(store);
    // What cannot be said now is missing: the rest is said.
    move || {
        store
            .upgrade()
            .map_or_else(String::new, |store| store.metrics().unwrap_or_default())
    }
}

impl Table {
    /// For a store whose values are put so.
    pub fn new(store: Store, options: PutOptions) -> Self {
        let options = PutOptions {
            replaces: true,
            ..options
        };
        Self {
            store,
            options,
            room: Vec::new(),
            len: 0,
        }
    }

    /// Reads a key's value: its bytes are [`Table::bytes`] then.
    fn read(&mut self, key: &[u8]) -> Result<Option<Value>, Refusal> {
        self.trim();
        if self.room.len() < ROOM_MIN {
            self.room.resize(ROOM_MIN, 0);
        }
        let found = match self.store.get_into(key, &mut self.room) {
            // It is longer.
            Err(Error::OutOfBounds(_)) => self.store.get_value(key).map(|found| {
                found.map(|(bytes, value)| {
                    self.room = bytes;
                    value
                })
            }),
            found => found,
        };
        let found = found.map_err(refusal)?;
        self.len = found.map_or(0, |value| value.len as usize);
        Ok(found)
    }

    fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// A long value's memory is not kept.
    fn trim(&mut self) {
        self.len = 0;
        if self.room.capacity() > ROOM_KEPT {
            self.room = Vec::new();
        }
    }

    /// Reads many: each is told of in turn, as long as more are wanted.
    fn read_each<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k [u8]>,
        mut each: impl FnMut(Result<Option<&[u8]>, Refusal>) -> bool,
    ) {
        self.trim();
        self.store.get_each(keys, &mut self.room, |value, bytes| {
            each(value.map(|value| value.map(|_| bytes)).map_err(refusal))
        });
    }

    /// Puts a value in the place of whatever is there, until a time in microseconds since 1970; 0: for ever.
    fn set(&self, key: &[u8], value: &[u8], expires: u64) -> Result<(), Refusal> {
        self.put_if(key, value, Expected::Any, expires).map(drop)
    }

    /// As [`set`](Self::set), if the key has what is expected: whether it had.
    fn put_if(&self, key: &[u8], value: &[u8], expected: Expected, expires: u64) -> Result<bool, Refusal> {
        let put = self
            .store
            .compare_and_put_until(key, value, expected, expires, self.options);
        Ok(put.map_err(refusal)?.is_some())
    }
}

/// A value, or nothing.
///
/// # Errors
/// `TOO_MUCH`.
fn tell(reply: &mut Reply, value: Option<&[u8]>) -> Done {
    match value {
        Some(value) if !reply.has_room(value.len()) => return Err(TOO_MUCH),
        Some(value) => reply.string(value),
        None => reply.null(),
    }
    Ok(())
}

impl Data for Table {
    type Step = ();
    const TOGETHER: bool = true;

    fn begin(&mut self) {}

    fn commit(&mut self, (): ()) -> Done {
        Ok(())
    }

    fn roll_back(&mut self, (): ()) -> Done {
        Ok(())
    }

    fn expect<'k>(&self, _: impl Iterator<Item = &'k [u8]>) {}

    fn get_together<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>, reply: &mut Reply, enough: usize) -> usize {
        let mut run = 0;
        self.read_each(keys, |value| {
            run += 1;
            if let Err(refusal) = value.and_then(|value| tell(reply, value)) {
                reply.error(&refusal.text());
            }
            reply.bytes.len() < enough
        });
        run
    }

    fn set_together<'k>(&mut self, pairs: impl Iterator<Item = (&'k [u8], &'k [u8])>, reply: &mut Reply) -> usize {
        let pairs: Vec<_> = pairs.collect();
        self.store.expect(pairs.iter().map(|(key, _)| *key));
        let run = pairs.len();
        for answer in self.store.put_many(pairs, self.options) {
            match answer.map_err(refusal) {
                Ok(_) => reply.ok(),
                Err(refusal) => reply.error(&refusal.text()),
            }
        }
        run
    }

    fn usage(&self) -> Usage {
        let stats = self.store.stats().unwrap_or_default();
        // What lies in other pods is not known here; 0 says that nothing is said.
        let near: u64 = self.store.space().parts().map(|part| part.capacity()).sum();
        let capacity = if stats.bound > 0 { stats.bound } else { near };
        Usage {
            keys: stats.items,
            expires: None,
            used: stats.used,
            capacity,
            policy: "allkeys-lru",
            counted: counted(&stats),
        }
    }
}

/// For `INFO stats`, in words of Redis where it has one.
fn counted(stats: &StoreStats) -> String {
    format!(
        "keyspace_hits:{}\nkeyspace_misses:{}\nevicted_keys:{}\nexpired_keys:{}\ntable_lost:{}\ntable_damaged:{}\n",
        stats.hits, stats.misses, stats.evicted, stats.expired, stats.lost, stats.damaged
    )
}

/// A command that the table does not have.
fn refuse(call: &mut Call<'_, Table>) -> Done {
    let name = String::from_utf8_lossy(&call.strings[0]).to_lowercase();
    Err(Refusal::Text(format!(
        "ERR '{name}' is not there on a table that servers share: it needs a store of the server's own (cenote kv \
         without --space)"
    )))
}
