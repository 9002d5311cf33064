//! Commands that came together: all are parsed, then the memory of their first keys is prefetched, then they are run.

use super::client::Client;
use super::dispatch::{Command, Data, GETS, SETS, Shared};
use super::reply::Reply;
use super::request::{Malformed, Request, Strings};
use cenote_kv::PREFETCHED_KEYS;

/// Commands that are parsed before the first of them runs.
const COMMANDS_MAX: usize = PREFETCHED_KEYS;

/// Room for the commands at hand, of one connection after the other.
pub struct Batch<D: Data> {
    ready: Vec<Ready<D>>,
    len: usize,
}

impl<D: Data> Default for Batch<D> {
    fn default() -> Self {
        Self {
            ready: Vec::new(),
            len: 0,
        }
    }
}

/// A command that is understood.
struct Ready<D: Data> {
    request: Request,
    /// Where it begins.
    begin: usize,
    command: Option<&'static Command<D>>,
}

/// How far a batch was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// All of it, or up to the command with which the client leaves.
    Through,
    /// Up to the command that begins here: the answers are to be taken first.
    UpTo(usize),
}

impl<D: Data> Default for Ready<D> {
    fn default() -> Self {
        Self {
            request: Request::default(),
            begin: 0,
            command: None,
        }
    }
}

impl<D: Data> Ready<D> {
    /// Whether it does one of these things alone, with so many strings.
    fn does(&self, flag: u8, strings: usize, bytes: &[u8]) -> bool {
        self.command.is_some_and(|command| command.flags & flag != 0) && self.strings(bytes).len() == strings
    }

    #[inline]
    fn strings<'a>(&'a self, bytes: &'a [u8]) -> Strings<'a> {
        self.request.strings(&bytes[self.begin..])
    }

    #[inline]
    fn first_key<'a>(&'a self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.command?.first_key(self.strings(bytes))
    }
}

impl<D: Data> Batch<D> {
    /// Understands the commands in `bytes` from `begin` on: some of them, if they are many. Where the next one begins,
    /// of which `request` has understood what is there. What is no command ends the batch, and is told of when those
    /// before it are run.
    #[inline]
    pub fn gather(
        &mut self,
        shared: &Shared<D>,
        request: &mut Request,
        bytes: &[u8],
        begin: usize,
    ) -> (usize, Result<(), Malformed>) {
        let mut begin = begin;
        while self.len < COMMANDS_MAX {
            match self.read(request, &bytes[begin..]) {
                Ok(true) => begin += self.add(shared, bytes, begin),
                Ok(false) => break,
                Err(malformed) => return (begin, Err(malformed)),
            }
        }
        (begin, Ok(()))
    }

    /// Whether a command is complete, which is the next one's place's then.
    #[inline]
    fn read(&mut self, request: &mut Request, bytes: &[u8]) -> Result<bool, Malformed> {
        if self.len == self.ready.len() {
            self.ready.push(Ready::default());
        }
        let ready = &mut self.ready[self.len];
        if request.is_empty() && ready.request.read_at_once(bytes) {
            return Ok(true);
        }
        let is_complete = request.read(bytes)?;
        if is_complete {
            core::mem::swap(&mut ready.request, request);
        }
        Ok(is_complete)
    }

    /// Takes the command in the next place: its length.
    #[inline]
    fn add(&mut self, shared: &Shared<D>, bytes: &[u8], begin: usize) -> usize {
        let ready = &mut self.ready[self.len];
        ready.begin = begin;
        ready.command = shared.command_of(ready.strings(bytes));
        self.len += 1;
        ready.request.len()
    }

    /// Forgets the commands.
    #[inline]
    pub fn clear(&mut self) {
        self.ready[..self.len].iter_mut().for_each(|ready| ready.request.next());
        self.len = 0;
    }

    /// Whether no command is complete.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Asks for what the commands' first keys need.
    #[inline]
    pub fn expect(&self, shared: &Shared<D>, bytes: &[u8]) {
        if self.len > 1 {
            let ready = self.ready[..self.len].iter();
            shared.store.expect(ready.filter_map(|ready| ready.first_key(bytes)));
        }
    }

    /// Runs the commands as long as there are fewer answers than `enough`.
    #[inline]
    pub fn run(
        &self,
        shared: &mut Shared<D>,
        client: &mut Client,
        bytes: &[u8],
        reply: &mut Reply,
        enough: usize,
    ) -> Ran {
        let mut n = 0;
        while n < self.len {
            let ready = &self.ready[n];
            if reply.bytes.len() >= enough {
                return Ran::UpTo(ready.begin);
            }
            let together = self.run_together(n, shared, client, bytes, reply, enough);
            if together > 0 {
                n += together;
                continue;
            }
            n += 1;
            let strings = ready.strings(bytes);
            if !strings.is_empty() {
                shared.execute(client, ready.command, strings, reply);
            }
            if client.is_leaving {
                break;
            }
        }
        Ran::Through
    }

    /// Runs the commands from number `n` on that get, or that set, one key each, as one call of the data: how many.
    #[inline]
    fn run_together(
        &self,
        n: usize,
        shared: &mut Shared<D>,
        client: &Client,
        bytes: &[u8],
        reply: &mut Reply,
        enough: usize,
    ) -> usize {
        if !D::TOGETHER || n + 1 == self.len || !client.is_admitted || client.queue.is_some() {
            return 0;
        }
        let rest = &self.ready[n..self.len];
        let all = |flag, strings| rest.iter().take_while(move |ready| ready.does(flag, strings, bytes));
        let run = match () {
            () if rest[1].does(GETS, 2, bytes) && rest[0].does(GETS, 2, bytes) => {
                let keys = all(GETS, 2).map(|ready| ready.strings(bytes).get(1).unwrap_or_default());
                shared.store.get_together(keys, reply, enough)
            }
            () if rest[1].does(SETS, 3, bytes) && rest[0].does(SETS, 3, bytes) => {
                let pairs = all(SETS, 3).map(|ready| {
                    let strings = ready.strings(bytes);
                    (strings.get(1).unwrap_or_default(), strings.get(2).unwrap_or_default())
                });
                shared.store.set_together(pairs, reply)
            }
            () => 0,
        };
        shared.counters.commands.add(run as u64);
        run
    }
}
