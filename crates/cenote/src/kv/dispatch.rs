//! How a command is found, queued or run.
//!
//! ```text
//!   strings ──► find by name ──► right count? ──► MULTI open? ──► queue it
//!                                                    └──► run: reads and changes the store, writes its answer
//! ```
//!
//! A command that fails has changed nothing, and its answer is the error alone. Those that change several things, and
//! EXEC with all of its commands, are one step of the store: a killed server has done all of it, or nothing.

use super::board::{Board, Counters};
use super::client::{Client, Watches};
use super::clock;
use super::refusal::{Done, NOT_INTEGER, Refusal, SYNTAX, wrong_number};
use super::reply::Reply;
use super::request::Strings;
use cenote_kv::{Store, integer};
use std::sync::Arc;

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
/// A client that has not said the secret may say it.
pub const OPEN: u8 = 8;
/// It reads the value of one key, and nothing else: several of them may be one call of the data.
pub const GETS: u8 = 16;
/// With two strings behind its name, it sets the value of one key, and nothing else.
pub const SETS: u8 = 32;

const NO_AUTH: &str = "NOAUTH Authentication required.";

/// What is served: the store of this server alone, or the table that servers share.
pub trait Data: Sized + 'static {
    /// What takes a step back.
    type Step;
    /// Whether several commands may be one call.
    const TOGETHER: bool = false;

    /// Several changes begin that are one step.
    fn begin(&mut self) -> Self::Step;

    /// The step is over.
    ///
    /// # Errors
    /// The data's.
    fn commit(&mut self, step: Self::Step) -> Done;

    /// The step is not to have been.
    ///
    /// # Errors
    /// The data's.
    fn roll_back(&mut self, step: Self::Step) -> Done;

    /// Asks for the memory that finding these keys needs.
    fn expect<'k>(&self, keys: impl Iterator<Item = &'k [u8]>);

    /// Commands that get the values of these keys, of which there is one at least, as long as there are fewer answers
    /// than `enough`: how many were run; 0 if each is to be run by itself.
    fn get_together<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>, reply: &mut Reply, enough: usize) -> usize;

    /// Commands that set keys to values, in turn: how many were run; 0 if each is to be run by itself.
    fn set_together<'k>(&mut self, pairs: impl Iterator<Item = (&'k [u8], &'k [u8])>, reply: &mut Reply) -> usize;

    /// Whether it may be used still: before an answer is sent.
    ///
    /// # Errors
    /// It may not.
    fn check(&self) -> Done {
        Ok(())
    }

    /// Whether a look for what has expired could find something.
    fn expiring(&self) -> bool {
        false
    }

    /// Removes what has expired from so many buckets: how many keys.
    ///
    /// # Errors
    /// The data's.
    fn sweep(&mut self, _now: u64, _buckets: u64) -> Result<u64, Refusal> {
        Ok(0)
    }

    /// The keys, and the memory that they have.
    fn usage(&self) -> Usage;
}

/// See [`Data::usage`].
#[derive(Debug, Clone, Default)]
pub struct Usage {
    pub keys: u64,
    /// Keys that expire, where that is counted.
    pub expires: Option<u64>,
    pub used: u64,
    pub capacity: u64,
    /// What becomes of a change for which there is no room, in Redis's words.
    pub policy: &'static str,
    /// More lines for `INFO stats`.
    pub counted: String,
}

/// A command.
pub struct Command<D: Data = Store> {
    /// In small letters.
    pub name: &'static str,
    /// Strings that it takes, its name included; negative: at least so many.
    pub arity: i64,
    /// [`WRITES`], [`AT_ONCE`], [`STEP`], [`OPEN`], [`GETS`], [`SETS`].
    pub flags: u8,
    /// Which strings are keys: the first, the last (from the end if negative), and how far from one to the next.
    pub keys: (i64, i64, i64),
    run: fn(&mut Call<'_, D>) -> Done,
}

/// What all commands of a thread share.
pub struct Shared<D: Data = Store> {
    /// The data.
    pub store: D,
    /// The keys that clients watch.
    pub watches: Watches,
    /// What all threads of the server know.
    pub board: Arc<Board>,
    /// What this thread counts.
    pub counters: Arc<Counters>,
    /// Milliseconds since 1970, as of the last look at the clock.
    pub now: u64,
    index: Index<D>,
}

/// A command that is run.
pub struct Call<'a, D: Data = Store> {
    pub shared: &'a mut Shared<D>,
    pub client: &'a mut Client,
    pub strings: Strings<'a>,
    pub reply: &'a mut Reply,
}

/// A row of the table.
pub const fn command<D: Data>(
    name: &'static str,
    arity: i64,
    flags: u8,
    keys: (i64, i64, i64),
    run: fn(&mut Call<'_, D>) -> Done,
) -> Command<D> {
    Command {
        name,
        arity,
        flags,
        keys,
        run,
    }
}

/// Commands by name, with open addressing: the slots hold numbers of rows of the table.
pub struct Index<D: Data = Store> {
    commands: &'static [Command<D>],
    slots: [(u128, u8); INDEX],
}

impl<D: Data> Index<D> {
    /// An index of at most 255 commands.
    pub fn new(commands: &'static [Command<D>]) -> Self {
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
    pub fn find(&self, name: &[u8]) -> Option<&'static Command<D>> {
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

impl<D: Data> Command<D> {
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

impl<D: Data> Shared<D> {
    /// For the data of the thread with this number, with a table of commands.
    pub fn new(store: D, commands: &'static [Command<D>], board: &Arc<Board>, thread: usize) -> Self {
        Self {
            store,
            watches: Watches::default(),
            board: Arc::clone(board),
            counters: Arc::clone(&board.threads[thread]),
            now: 0,
            index: Index::new(commands),
        }
    }

    /// All commands.
    pub fn commands(&self) -> &'static [Command<D>] {
        self.index.commands
    }

    /// The command of a name, in small or capital letters.
    pub fn named(&self, name: &[u8]) -> Option<&'static Command<D>> {
        self.index.find(name)
    }

    /// The command that the first string names.
    #[inline]
    pub fn command_of(&self, strings: Strings<'_>) -> Option<&'static Command<D>> {
        self.index.find(strings.get(0)?)
    }

    /// Runs, queues or refuses what [`Shared::command_of`] has found.
    #[inline]
    pub fn execute(
        &mut self,
        client: &mut Client,
        found: Option<&'static Command<D>>,
        strings: Strings<'_>,
        reply: &mut Reply,
    ) {
        self.counters.commands.add(1);
        let command = match found {
            Some(command) if command.takes(strings.len()) => command,
            found => return refuse(client, found, strings, reply),
        };
        if !client.is_admitted && command.flags & OPEN == 0 {
            return reply.error(NO_AUTH);
        }
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
    pub fn run(&mut self, command: &Command<D>, client: &mut Client, strings: Strings<'_>, reply: &mut Reply) {
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
            done = done.and(ended);
        }
        if let Err(refusal) = done {
            reply.bytes.truncate(begin);
            reply.error(&refusal.text());
        }
    }
}

/// A command that there is not, or with a wrong number of strings.
#[cold]
fn refuse<D: Data>(client: &mut Client, found: Option<&Command<D>>, strings: Strings<'_>, reply: &mut Reply) {
    if let Some(queue) = &mut client.queue {
        queue.is_refused = true;
    }
    match found {
        _ if !client.is_admitted && !is_http(strings) => reply.error(NO_AUTH),
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

impl<D: Data> Call<'_, D> {
    /// The time now, for what counts from it: the last look may be as old as the thread was busy with other commands.
    pub fn look_at_clock(&mut self) -> u64 {
        self.shared.now = clock::now();
        self.shared.now
    }

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
