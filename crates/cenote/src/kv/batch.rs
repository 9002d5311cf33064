//! Commands that came together: all are parsed, then the memory of their first keys is prefetched, then they are run.

use super::client::Client;
use super::dispatch::{Command, Shared};
use super::reply::Reply;
use super::request::{Malformed, Request, Strings};
use cenote_kv::PREFETCHED_KEYS;

/// Commands that are parsed before the first of them runs.
const COMMANDS_MAX: usize = PREFETCHED_KEYS;

/// Room for the commands at hand, of one connection after the other.
#[derive(Default)]
pub struct Batch {
    ready: Vec<Ready>,
    len: usize,
}

/// A command that is understood.
#[derive(Default)]
struct Ready {
    request: Request,
    /// Where it begins.
    begin: usize,
    command: Option<&'static Command>,
}

/// How far a batch was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// All of it, or up to the command with which the client leaves.
    Through,
    /// Up to the command that begins here: the answers are to be taken first.
    UpTo(usize),
}

impl Ready {
    #[inline]
    fn strings<'a>(&'a self, bytes: &'a [u8]) -> Strings<'a> {
        self.request.strings(&bytes[self.begin..])
    }

    #[inline]
    fn first_key<'a>(&'a self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.command?.first_key(self.strings(bytes))
    }
}

impl Batch {
    /// Understands the commands in `bytes` from `begin` on: some of them, if they are many. Where the next one begins,
    /// of which `request` has understood what is there. What is no command ends the batch, and is told of when those
    /// before it are run.
    #[inline]
    pub fn gather(
        &mut self,
        shared: &Shared,
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
    fn add(&mut self, shared: &Shared, bytes: &[u8], begin: usize) -> usize {
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
    pub fn expect(&self, shared: &Shared, bytes: &[u8]) {
        if self.len > 1 {
            let ready = self.ready[..self.len].iter();
            shared.store.expect(ready.filter_map(|ready| ready.first_key(bytes)));
        }
    }

    /// Runs the commands as long as there are fewer answers than `enough`.
    #[inline]
    pub fn run(&self, shared: &mut Shared, client: &mut Client, bytes: &[u8], reply: &mut Reply, enough: usize) -> Ran {
        for ready in &self.ready[..self.len] {
            if reply.bytes.len() >= enough {
                return Ran::UpTo(ready.begin);
            }
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
}
