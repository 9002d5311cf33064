//! How a command is found, queued or run.
//!
//! ```text
//!   strings ──► find by name ──► right count? ──► MULTI open? ──► queue it
//!                                                    └──► run: reads and changes the store, writes its answer
//! ```
//!
//! A command that fails has changed nothing, and its answer is the error alone. Those that change several things, and
//! EXEC with all of its commands, are one step of the store: a killed server has done all of it, or nothing.

use super::client::{Client, Watches};
use super::refusal::{Done, NOT_INTEGER, Refusal, SYNTAX, wrong_number};
use super::reply::Reply;
use super::request::Strings;
use super::statistics::Statistics;
use cenote_kv::{Store, integer};

/// Longest name of a command.
pub const NAME_MAX: usize = 16;
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

/// What all commands of the server share.
pub struct Shared {
    /// The data.
    pub store: Store,
    /// The keys that clients watch.
    pub watches: Watches,
    /// Counters.
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

/// A row of the table.
pub const fn command(
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

/// Commands by name, with open addressing: the slots hold numbers of rows of the table.
pub struct Index {
    commands: &'static [Command],
    slots: [(u128, u8); INDEX],
}

impl Index {
    /// An index of at most 255 commands.
    pub fn new(commands: &'static [Command]) -> Self {
        assert!(
            commands.len() < usize::from(u8::MAX),
            "a row's number is a byte, and the last one means none"
        );
        let mut slots = [(0, u8::MAX); INDEX];
        for (n, command) in commands.iter().enumerate() {
            let name = folded(command.name.as_bytes());
            let mut at = slot(name);
            while slots[at].1 != u8::MAX {
                at = (at + 1) % INDEX;
            }
            slots[at] = (name, n as u8);
        }
        Self { commands, slots }
    }

    /// The command of a name, in small or capital letters.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&'static Command> {
        if name.len() > NAME_MAX {
            return None;
        }
        let name = folded(name);
        let mut at = slot(name);
        loop {
            let (found, n) = self.slots[at];
            let command = self.commands.get(usize::from(n))?;
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
    /// For a store, with a table of commands.
    pub fn new(store: Store, commands: &'static [Command]) -> Self {
        Self {
            store,
            watches: Watches::default(),
            statistics: Statistics::default(),
            now: 0,
            index: Index::new(commands),
        }
    }

    /// All commands.
    pub fn commands(&self) -> &'static [Command] {
        self.index.commands
    }

    /// The command of a name, in small or capital letters.
    pub fn named(&self, name: &[u8]) -> Option<&'static Command> {
        self.index.find(name)
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

    /// Runs a command that takes so many strings.
    #[inline]
    pub fn run(&mut self, command: &Command, client: &mut Client, strings: Strings<'_>, reply: &mut Reply) {
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
            reply.error(&refusal.text());
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

/// The first words of a web browser, before lines that the page's author has written: none of those lines is run.
fn is_http(strings: Strings<'_>) -> bool {
    let name = &strings[0];
    [&b"post"[..], b"host:"]
        .iter()
        .any(|word| name.eq_ignore_ascii_case(word))
}

impl Call<'_> {
    /// A string as a number.
    ///
    /// # Errors
    /// `NOT_INTEGER`.
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

/// A count in an option.
///
/// # Errors
/// `NOT_INTEGER`; `SYNTAX` if it is not above zero.
pub fn count(text: &[u8]) -> Result<u64, Refusal> {
    let number = integer(text).ok_or(NOT_INTEGER)?;
    u64::try_from(number).ok().filter(|n| *n > 0).ok_or(SYNTAX)
}
