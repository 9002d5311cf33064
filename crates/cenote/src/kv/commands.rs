//! The commands: their names, how many strings they take, and how they are run.
//!
//! ```text
//!   strings ──► find by name ──► right count? ──► MULTI open? ──► queue it
//!                                                    └──► run: reads and changes the store, writes its answer
//! ```
//!
//! A command that fails has changed nothing, and its answer is the error alone. Those that change several things, and
//! EXEC with all of its commands, are one step of the store: a killed server has done all of it, or nothing.

use super::client::{Client, Watched, Watches};
use super::reply::Reply;
use super::request::Strings;
use super::{Statistics, hashes, keys, server, strings};
use crate::log;
use cenote_base::Error;
use cenote_pool::kv::{Failure, Store, integer};

/// Longest name of a command.
const NAME_MAX: usize = 16;
/// Slots of the index by name.
const INDEX: usize = 512;

/// It changes the store.
pub const WRITES: u8 = 1;
/// It is run at once, even within MULTI.
pub const AT_ONCE: u8 = 2;
/// It changes several things, as one step.
pub const STEP: u8 = 4;

/// A command.
#[derive(Debug)]
pub struct Command {
    /// In small letters.
    pub name: &'static str,
    /// Strings that it takes, its name included; negative: at least so many.
    pub arity: i64,
    /// [`WRITES`], [`AT_ONCE`], [`STEP`].
    pub flags: u8,
    /// Which strings are keys: the first, the last (from the end if negative), and how far from one to the next.
    pub keys: (i64, i64, i64),
    run: fn(&mut Call<'_>) -> Done,
}

/// Why there is an error for an answer.
#[derive(Debug)]
pub enum Refusal {
    /// Its words.
    Says(&'static str),
    /// The same, made up.
    Text(String),
    /// What the store says.
    Store(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Store(failure)
    }
}

/// What a command comes to: its answer is written, or it is refused.
pub type Done = Result<(), Refusal>;

pub const SYNTAX: Refusal = Refusal::Says("ERR syntax error");
pub const NOT_INTEGER: Refusal = Refusal::Says("ERR value is not an integer or out of range");

/// Of an answer that would be longer than [`ANSWER_MAX`](super::reply::ANSWER_MAX).
pub const TOO_MUCH: Refusal = Refusal::Says("ERR the answer is too long: ask for less at a time");

/// What commands work on.
pub struct Shared {
    /// The data.
    pub store: Store,
    /// Who watches what.
    pub watches: Watches,
    /// What is counted.
    pub statistics: Statistics,
    /// Milliseconds since 1970, as of the last look at the clock.
    pub now: u64,
    index: Index,
}

/// A command that is run.
pub struct Call<'a> {
    pub shared: &'a mut Shared,
    pub client: &'a mut Client,
    pub strings: Strings<'a>,
    pub reply: &'a mut Reply,
}

const fn command(
    name: &'static str,
    arity: i64,
    flags: u8,
    keys: (i64, i64, i64),
    run: fn(&mut Call<'_>) -> Done,
) -> Command {
    Command {
        name,
        arity,
        flags,
        keys,
        run,
    }
}

const NONE: (i64, i64, i64) = (0, 0, 0);
const ONE: (i64, i64, i64) = (1, 1, 1);
const TWO: (i64, i64, i64) = (1, 2, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const PAIRS: (i64, i64, i64) = (1, -1, 2);

/// All commands.
pub static COMMANDS: [Command; 74] = [
    command("get", 2, 0, ONE, strings::get),
    command("set", -3, WRITES, ONE, strings::set),
    command("setnx", 3, WRITES, ONE, strings::setnx),
    command("setex", 4, WRITES, ONE, strings::setex),
    command("psetex", 4, WRITES, ONE, strings::psetex),
    command("mget", -2, 0, ALL, strings::mget),
    command("mset", -3, WRITES | STEP, PAIRS, strings::mset),
    command("msetnx", -3, WRITES | STEP, PAIRS, strings::msetnx),
    command("getset", 3, WRITES, ONE, strings::getset),
    command("getdel", 2, WRITES, ONE, strings::getdel),
    command("getex", -2, WRITES, ONE, strings::getex),
    command("append", 3, WRITES, ONE, strings::append),
    command("strlen", 2, 0, ONE, strings::strlen),
    command("getrange", 4, 0, ONE, strings::getrange),
    command("substr", 4, 0, ONE, strings::getrange),
    command("setrange", 4, WRITES, ONE, strings::setrange),
    command("incr", 2, WRITES, ONE, strings::incr),
    command("decr", 2, WRITES, ONE, strings::decr),
    command("incrby", 3, WRITES, ONE, strings::incrby),
    command("decrby", 3, WRITES, ONE, strings::decrby),
    command("incrbyfloat", 3, WRITES, ONE, strings::incrbyfloat),
    command("del", -2, WRITES | STEP, ALL, keys::del),
    command("unlink", -2, WRITES | STEP, ALL, keys::del),
    command("exists", -2, 0, ALL, keys::exists),
    command("touch", -2, 0, ALL, keys::exists),
    command("type", 2, 0, ONE, keys::kind),
    command("expire", -3, WRITES, ONE, keys::expire),
    command("pexpire", -3, WRITES, ONE, keys::pexpire),
    command("expireat", -3, WRITES, ONE, keys::expireat),
    command("pexpireat", -3, WRITES, ONE, keys::pexpireat),
    command("ttl", 2, 0, ONE, keys::ttl),
    command("pttl", 2, 0, ONE, keys::pttl),
    command("persist", 2, WRITES, ONE, keys::persist),
    command("rename", 3, WRITES, TWO, keys::rename),
    command("renamenx", 3, WRITES, TWO, keys::renamenx),
    command("keys", 2, 0, NONE, keys::keys),
    command("scan", -2, 0, NONE, keys::scan),
    command("randomkey", 1, 0, NONE, keys::randomkey),
    command("dbsize", 1, 0, NONE, keys::dbsize),
    command("flushall", -1, WRITES, NONE, keys::flush),
    command("flushdb", -1, WRITES, NONE, keys::flush),
    command("hset", -4, WRITES, ONE, hashes::hset),
    command("hmset", -4, WRITES, ONE, hashes::hmset),
    command("hsetnx", 4, WRITES, ONE, hashes::hsetnx),
    command("hget", 3, 0, ONE, hashes::hget),
    command("hmget", -3, 0, ONE, hashes::hmget),
    command("hgetall", 2, 0, ONE, hashes::hgetall),
    command("hdel", -3, WRITES | STEP, ONE, hashes::hdel),
    command("hexists", 3, 0, ONE, hashes::hexists),
    command("hlen", 2, 0, ONE, hashes::hlen),
    command("hkeys", 2, 0, ONE, hashes::hkeys),
    command("hvals", 2, 0, ONE, hashes::hvals),
    command("hstrlen", 3, 0, ONE, hashes::hstrlen),
    command("hincrby", 4, WRITES, ONE, hashes::hincrby),
    command("hincrbyfloat", 4, WRITES, ONE, hashes::hincrbyfloat),
    command("hscan", -3, 0, ONE, hashes::hscan),
    command("multi", 1, AT_ONCE, NONE, multi),
    command("exec", 1, AT_ONCE, NONE, exec),
    command("discard", 1, AT_ONCE, NONE, discard),
    command("watch", -2, AT_ONCE, ALL, watch),
    command("unwatch", 1, 0, NONE, unwatch),
    command("ping", -1, 0, NONE, server::ping),
    command("echo", 2, 0, NONE, server::echo),
    command("quit", -1, AT_ONCE, NONE, server::quit),
    command("select", 2, 0, NONE, server::select),
    command("hello", -1, 0, NONE, server::hello),
    command("auth", -2, 0, NONE, server::auth),
    command("client", -2, 0, NONE, server::client),
    command("command", -1, 0, NONE, server::command),
    command("config", -2, 0, NONE, server::config),
    command("info", -1, 0, NONE, server::info),
    command("time", 1, 0, NONE, server::time),
    command("lastsave", 1, 0, NONE, server::lastsave),
    command("reset", 1, AT_ONCE, NONE, server::reset),
];

/// Commands by name: where their numbers are, open addressing.
struct Index([(u128, u8); INDEX]);

impl Index {
    fn new() -> Self {
        let mut slots = [(0, u8::MAX); INDEX];
        for (n, command) in COMMANDS.iter().enumerate() {
            let name = folded(command.name.as_bytes());
            let mut at = slot(name);
            while slots[at].1 != u8::MAX {
                at = (at + 1) % INDEX;
            }
            slots[at] = (name, n as u8);
        }
        Self(slots)
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<&'static Command> {
        if name.len() > NAME_MAX {
            return None;
        }
        let name = folded(name);
        let mut at = slot(name);
        loop {
            let (found, n) = self.0[at];
            let command = COMMANDS.get(usize::from(n))?;
            if found == name {
                return Some(command);
            }
            at = (at + 1) % INDEX;
        }
    }
}

/// A name of up to [`NAME_MAX`] bytes as a number that is the same for small and capital letters. Only letters become
/// small letters by the bit that is set, and names are made of those; no byte becomes 0, so that the length is in the
/// number.
#[inline(always)]
fn folded(name: &[u8]) -> u128 {
    name.iter().fold(0, |all, byte| all << 8 | u128::from(byte | 0x20))
}

#[inline(always)]
fn slot(name: u128) -> usize {
    let hash = (name as u64 ^ (name >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (64 - INDEX.ilog2())) as usize
}

/// The command of a name, in whatever letters.
pub fn named(shared: &Shared, name: &[u8]) -> Option<&'static Command> {
    shared.index.find(name)
}

impl Command {
    /// The first of its strings that is a key.
    #[inline]
    pub fn first_key<'a>(&self, strings: Strings<'a>) -> Option<&'a [u8]> {
        match self.keys.0 {
            0 => None,
            first => strings.get(first as usize),
        }
    }

    fn takes(&self, strings: usize) -> bool {
        match self.arity {
            least @ ..0 => strings as i64 >= -least,
            all => strings as i64 == all,
        }
    }
}

impl Shared {
    /// What commands work on.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            watches: Watches::default(),
            statistics: Statistics::default(),
            now: 0,
            index: Index::new(),
        }
    }

    /// The command that the first string names.
    #[inline]
    pub fn command_of(&self, strings: Strings<'_>) -> Option<&'static Command> {
        self.index.find(strings.get(0)?)
    }

    /// Runs, queues or refuses what [`Shared::command_of`] has found.
    #[inline]
    pub fn execute(
        &mut self,
        client: &mut Client,
        found: Option<&'static Command>,
        strings: Strings<'_>,
        reply: &mut Reply,
    ) {
        self.statistics.commands += 1;
        let command = match found {
            Some(command) if command.takes(strings.len()) => command,
            found => return refuse(client, found, strings, reply),
        };
        if let Some(queue) = &mut client.queue
            && command.flags & AT_ONCE == 0
        {
            match queue.push(strings) {
                true => reply.simple("QUEUED"),
                false => {
                    queue.is_refused = true;
                    reply.error("ERR the transaction is too long");
                }
            }
            return;
        }
        self.run(command, client, strings, reply);
    }

    #[inline]
    fn run(&mut self, command: &Command, client: &mut Client, strings: Strings<'_>, reply: &mut Reply) {
        let begin = reply.bytes.len();
        let step = (command.flags & STEP != 0).then(|| self.store.begin());
        let mut call = Call {
            shared: self,
            client,
            strings,
            reply,
        };
        let mut done = (command.run)(&mut call);
        if let Some(step) = step {
            let ended = match done {
                Ok(()) => self.store.commit(step),
                Err(_) => self.store.roll_back(step),
            };
            done = done.and(ended.map_err(Refusal::Store));
        }
        if let Err(refusal) = done {
            reply.bytes.truncate(begin);
            refusal.tell(reply);
        }
    }
}

/// A command that there is not, or with a wrong number of strings.
#[cold]
fn refuse(client: &mut Client, found: Option<&Command>, strings: Strings<'_>, reply: &mut Reply) {
    if let Some(queue) = &mut client.queue {
        queue.is_refused = true;
    }
    match found {
        Some(command) => reply.error(&wrong_number(command.name)),
        None if is_http(strings) => {
            client.is_leaving = true;
            reply.error("ERR this is no web server");
        }
        None => {
            let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).into_owned();
            let mut rest = String::new();
            for string in strings.from(1).take(20) {
                rest += &format!("'{}' ", shown(string));
            }
            let name = shown(&strings[0]);
            reply.error(&format!(
                "ERR unknown command '{name}', with args beginning with: {rest}"
            ));
        }
    }
}

/// What a web browser says first, before lines that whoever made the page has written: none of those is run.
fn is_http(strings: Strings<'_>) -> bool {
    let name = &strings[0];
    [&b"post"[..], b"host:"]
        .iter()
        .any(|word| name.eq_ignore_ascii_case(word))
}

/// What is said of a wrong number of strings.
pub fn wrong_number(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

impl Refusal {
    #[cold]
    fn tell(&self, reply: &mut Reply) {
        match self {
            Self::Says(text) => reply.error(text),
            Self::Text(text) => reply.error(text),
            Self::Store(failure) => reply.error(&words(failure)),
        }
    }
}

fn words(failure: &Failure) -> String {
    let text = match failure {
        Failure::WrongKind => "WRONGTYPE Operation against a key holding the wrong kind of value",
        Failure::NotInteger => "ERR value is not an integer or out of range",
        Failure::Overflow => "ERR increment or decrement would overflow",
        Failure::TooLong => "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
        Failure::Missing => "ERR no such key",
        Failure::Memory(Error::Full(_)) => "OOM command not allowed when used memory > 'maxmemory'.",
        Failure::Memory(error) => {
            log::error!("the store: {error}");
            return format!("ERR the memory: {error}");
        }
    };
    text.into()
}

impl Call<'_> {
    /// A string as a number.
    pub fn integer(&self, n: usize) -> Result<i64, Refusal> {
        integer(&self.strings[n]).ok_or(NOT_INTEGER)
    }

    /// Whether a string is a word, in whatever letters.
    pub fn is(&self, n: usize, word: &str) -> bool {
        self.strings[n].eq_ignore_ascii_case(word.as_bytes())
    }

    /// The key that is the first string has been changed.
    #[inline]
    pub fn touch(&mut self) {
        self.shared.watches.touch(&self.strings[1]);
    }
}

fn multi(call: &mut Call<'_>) -> Done {
    if call.client.queue.is_some() {
        return Err(Refusal::Says("ERR MULTI calls can not be nested"));
    }
    call.client.queue = Some(Default::default());
    call.reply.ok();
    Ok(())
}

fn discard(call: &mut Call<'_>) -> Done {
    if call.client.queue.take().is_none() {
        return Err(Refusal::Says("ERR DISCARD without MULTI"));
    }
    call.shared.watches.forget(call.client);
    call.reply.ok();
    Ok(())
}

fn exec(call: &mut Call<'_>) -> Done {
    let Some(queue) = call.client.queue.take() else {
        return Err(Refusal::Says("ERR EXEC without MULTI"));
    };
    let has_changed = has_changed(call);
    call.shared.watches.forget(call.client);
    let has_changed = has_changed?;
    if queue.is_refused {
        return Err(Refusal::Says(
            "EXECABORT Transaction discarded because of previous errors.",
        ));
    }
    if has_changed {
        call.reply.null_array();
        return Ok(());
    }
    call.reply.array(queue.commands.len());
    let step = call.shared.store.begin();
    for queued in &queue.commands {
        let strings = queued.strings();
        if let Some(command) = call.shared.index.find(&strings[0]) {
            call.shared.run(command, call.client, strings, call.reply);
        }
    }
    Ok(call.shared.store.commit(step)?)
}

/// Whether a key that the client watches is not what it was.
fn has_changed(call: &mut Call<'_>) -> Result<bool, Refusal> {
    let now = call.shared.now;
    for (key, watched) in &call.client.watched {
        let is_there = call.shared.store.find(key, now)?.is_some();
        if call.shared.watches.has_changed(key, watched) || is_there != watched.was_there {
            return Ok(true);
        }
    }
    Ok(false)
}

fn watch(call: &mut Call<'_>) -> Done {
    if call.client.queue.is_some() {
        return Err(Refusal::Says("ERR WATCH inside MULTI is not allowed"));
    }
    for key in call.strings.from(1) {
        if call.client.watched.contains_key(key) {
            continue;
        }
        let was_there = call.shared.store.find(key, call.shared.now)?.is_some();
        let changes = call.shared.watches.add(key);
        call.client.watched.insert(key.into(), Watched { changes, was_there });
    }
    call.reply.ok();
    Ok(())
}

fn unwatch(call: &mut Call<'_>) -> Done {
    call.shared.watches.forget(call.client);
    call.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_found_by_its_name_in_any_letters_and_nothing_else_is() {
        let index = Index::new();
        for command in &COMMANDS {
            assert!(command.name.len() <= NAME_MAX && command.name.bytes().all(|b| b.is_ascii_lowercase()));
            for name in [command.name.to_owned(), command.name.to_uppercase()] {
                assert_eq!(index.find(name.as_bytes()).map(|found| found.name), Some(command.name));
            }
        }
        for other in [
            "",
            "ge",
            "gett",
            "get ",
            " get",
            "get\0",
            "\0get",
            "incrbyfloatincrby",
            "\x07et",
        ] {
            assert!(index.find(other.as_bytes()).is_none(), "{other:?}");
        }
    }
}
