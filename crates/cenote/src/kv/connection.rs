//! A connection: bytes in, commands, bytes out.
//!
//! 1. What the socket has is read, as much as there is room for;
//! 2. all commands in it are run, some tens at a time ([`Batch`]), and their answers gathered;
//! 3. the answers are sent with one write: when all connections that were ready have come so far, so that clients that
//!    wake up do not interrupt.
//!
//! While a client does not take its answers ([`OUTPUT_MAX`] of them), no more of its commands are run and none are
//! read: it holds up itself alone. Room for commands grows with what has arrived, not with what was announced.

use super::batch::{Batch, Ran};
use super::client::Client;
use super::dispatch::{Data, Shared};
use super::reply::Reply;
use super::request::{Malformed, REQUEST_MAX, Request};
use super::stream::Stream;
use std::io::ErrorKind;

/// Room for commands that a connection has at first, and keeps.
const INPUT_MIN: usize = 16 << 10;
/// Room for answers that it keeps.
const OUTPUT_KEPT: usize = 8 << 10;
/// Bytes that a client may send until it has said the secret, and bytes that it is answered until then: altogether, and
/// whether it takes them or not.
const UNADMITTED_MAX: usize = 4 * INPUT_MIN;
const UNADMITTED_ANSWERS_MAX: usize = 8 << 10;
/// Answers that wait for the client, beyond which none of its commands is run.
const OUTPUT_MAX: usize = 1 << 20;
/// Reads of a client that has always more to say, before it is the others' turn.
const TURN: usize = 8;

/// How it goes on with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When its socket says something.
    Wait,
    /// After the others.
    Again,
    /// Not at all.
    Close,
}

/// See the module.
pub struct Connection {
    stream: Stream,
    /// What it is to the commands.
    pub client: Client,
    input: Vec<u8>,
    /// Where the command that is being read begins, and where the bytes end.
    begin: usize,
    end: usize,
    request: Request,
    reply: Reply,
    sent: usize,
    is_readable: bool,
    is_writable: bool,
    /// The other side will say no more: what it has said is followed by the end, of which the socket does not speak
    /// again.
    is_closing: bool,
    /// It has commands that are not run, as its answers are not taken.
    is_held_up: bool,
    /// The other side will say no more, or nothing that is understood.
    is_over: bool,
    unadmitted: Unadmitted,
}

/// Bytes that a client has sent, and was answered, since it was last told that it has to say the secret.
#[derive(Debug, Default)]
struct Unadmitted {
    heard: usize,
    answered: usize,
}

impl Connection {
    /// One that was just accepted.
    pub fn new(stream: Stream, id: u64, is_admitted: bool) -> Self {
        Self {
            stream,
            client: Client {
                id,
                is_admitted,
                ..Client::default()
            },
            input: Vec::new(),
            begin: 0,
            end: 0,
            request: Request::default(),
            reply: Reply::default(),
            sent: 0,
            is_readable: true,
            is_writable: true,
            is_closing: false,
            is_held_up: false,
            is_over: false,
            unadmitted: Unadmitted::default(),
        }
    }

    /// Its socket, or the session on it.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Whether it has still to say the secret, or to come to terms on TLS.
    pub fn is_arriving(&self) -> bool {
        !self.client.is_admitted || self.stream.is_arriving()
    }

    /// Bytes of answers that were not sent.
    pub fn waiting(&self) -> usize {
        self.reply.bytes.len() - self.sent
    }

    /// The socket has something to read, or room to write, or its other side has closed its half.
    pub fn wake(&mut self, is_readable: bool, is_writable: bool, is_closing: bool) {
        self.is_readable |= is_readable || is_closing;
        self.is_writable |= is_writable;
        self.is_closing |= is_closing;
    }

    /// Reads what the socket has, and runs the commands in it. False if there is no other side any more.
    pub fn listen<D: Data>(&mut self, shared: &mut Shared<D>, batch: &mut Batch<D>) -> bool {
        // What was read last is looked at too: the socket may not speak again.
        let mut turn = TURN;
        while self.execute(shared, batch) && !self.is_ending() && self.is_readable && turn > 0 {
            turn -= 1;
            match self.receive() {
                Ok(len) => shared.counters.bytes_in.add(len as u64),
                Err(()) => return false,
            }
        }
        true
    }

    fn is_ending(&self) -> bool {
        self.is_over || self.client.is_leaving
    }

    /// Sends the answers, and says how it goes on.
    pub fn answer(&mut self) -> Next {
        if self.send().is_err() {
            return Next::Close;
        }
        match self.reply.bytes.is_empty() && self.stream.is_sent() {
            true if self.is_ending() => Next::Close,
            true if self.is_readable || self.is_held_up => Next::Again,
            _ => Next::Wait,
        }
    }

    /// Runs the commands that are there. Whether more bytes are needed for another one.
    fn execute<D: Data>(&mut self, shared: &mut Shared<D>, batch: &mut Batch<D>) -> bool {
        self.is_held_up = false;
        while !self.is_ending() {
            if self.reply.bytes.len() >= OUTPUT_MAX {
                self.is_held_up = true;
                return false;
            }
            let bytes = &self.input[..self.end];
            let (behind, understood) = batch.gather(shared, &mut self.request, bytes, self.begin);
            if batch.is_empty() && understood.is_ok() {
                break;
            }
            batch.expect(shared, bytes);
            let (was_admitted, before) = (self.client.is_admitted, self.reply.bytes.len());
            let enough = match was_admitted {
                true => OUTPUT_MAX,
                false => before + UNADMITTED_ANSWERS_MAX.saturating_sub(self.unadmitted.answered),
            };
            let ran = batch.run(shared, &mut self.client, bytes, &mut self.reply, enough);
            batch.clear();
            match (ran, understood) {
                (Ran::UpTo(begin), _) => self.go_back(begin),
                (Ran::Through, Ok(())) => self.begin = behind,
                (Ran::Through, Err(malformed)) => self.refuse(malformed),
            }
            if !was_admitted {
                self.count_answers(before);
            }
        }
        true
    }

    /// Answers that an unadmitted client was given. What it was told before it was admitted counts no more.
    #[cold]
    fn count_answers(&mut self, before: usize) {
        if self.client.is_admitted {
            self.unadmitted = Unadmitted::default();
            return;
        }
        self.unadmitted.answered += self.reply.bytes.len() - before;
        if self.unadmitted.answered >= UNADMITTED_ANSWERS_MAX {
            self.refuse(Malformed("too many unauthenticated commands"));
        }
    }

    #[cold]
    fn count_heard(&mut self, len: usize) {
        self.unadmitted.heard += len;
        if self.unadmitted.heard > UNADMITTED_MAX {
            self.refuse(Malformed("too many unauthenticated bytes"));
        }
    }

    /// The commands from here on are not run now: they will be understood anew.
    #[cold]
    fn go_back(&mut self, begin: usize) {
        self.begin = begin;
        self.request.next();
    }

    #[cold]
    fn refuse(&mut self, Malformed(text): Malformed) {
        if self.is_ending() {
            return;
        }
        self.reply.error(&format!("ERR Protocol error: {text}"));
        self.is_over = true;
    }

    /// Reads once. After the end of what the other side says it is answered, and the connection is over; after an error
    /// it is at once.
    /// How many bytes there were.
    fn receive(&mut self) -> Result<usize, ()> {
        self.make_room()?;
        let room = self.input.len() - self.end;
        match self.stream.read(&mut self.input[self.end..]) {
            Ok(0) => {
                (self.is_over, self.is_readable) = (true, false);
                Ok(0)
            }
            Ok(len) => {
                self.end += len;
                if !self.client.is_admitted {
                    self.count_heard(len);
                }
                // The socket was emptied: it will say when there is more.
                self.is_readable = len == room || self.is_closing || self.stream.holds_more();
                Ok(len)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_readable = false;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(_) => Err(()),
        }
    }

    /// Room for some bytes: by moving those that are there, or by having more of it.
    fn make_room(&mut self) -> Result<(), ()> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
            if self.input.len() > INPUT_MIN && self.request.is_empty() {
                self.input = Vec::new();
            }
        }
        if self.input.len() - self.end >= INPUT_MIN / 4 {
            return Ok(());
        }
        self.input.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        if self.input.len() - self.end < INPUT_MIN / 2 {
            let room = (2 * self.end)
                .min(self.request.wanted() + INPUT_MIN)
                .max(self.end + INPUT_MIN);
            if room > REQUEST_MAX + 2 * INPUT_MIN {
                return Err(());
            }
            if !self.client.is_admitted && room > UNADMITTED_MAX {
                self.refuse(Malformed("unauthenticated bulk length"));
                return Ok(());
            }
            self.input.resize(room, 0);
        }
        Ok(())
    }

    /// Sends what is answered, as far as the socket takes it.
    fn send(&mut self) -> Result<(), ()> {
        while self.sent < self.reply.bytes.len() && self.is_writable {
            match self.stream.write(&self.reply.bytes[self.sent..]) {
                Ok(0) => return Err(()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
        if self.is_writable {
            match self.stream.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                flushed => flushed.map_err(drop)?,
            }
        }
        if self.sent == self.reply.bytes.len() {
            self.sent = 0;
            self.reply.bytes.clear();
            if self.reply.bytes.capacity() > OUTPUT_KEPT {
                self.reply.bytes = Vec::new();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::Board;
    use super::super::commands::COMMANDS;
    use super::super::secret::Secret;
    use super::*;
    use cenote_kv::Store;
    use cenote_space::{Space, SpaceOptions};
    use mio::net::TcpStream;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    fn shared(secret: Option<Secret>) -> Shared {
        let options = SpaceOptions {
            bytes: 16 << 20,
            ..SpaceOptions::default()
        };
        let space = Space::dram(&options).expect("memory");
        let board = Arc::new(Board::new(1, 1, secret, 0));
        Shared::new(Store::open(&space).expect("a store"), &COMMANDS, &board, 0)
    }

    fn pair(is_admitted: bool) -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        let stream = Stream::Plain(TcpStream::from_std(OwnedFd::from(ours).into()));
        (Connection::new(stream, 1, is_admitted), theirs)
    }

    /// Bytes come all at once.
    fn answered_at_once(request: &[u8]) -> bool {
        let (mut shared, (mut connection, mut theirs)) = (shared(None), pair(true));
        theirs.write_all(request).expect("there is room");
        loop {
            assert!(connection.listen(&mut shared, &mut Batch::default()));
            match connection.answer() {
                Next::Again => {}
                Next::Wait => break,
                Next::Close => panic!("it is closed"),
            }
        }
        let mut answer = [0; 64];
        theirs.set_nonblocking(true).expect("set");
        theirs.read(&mut answer).is_ok()
    }

    /// A command whose last bytes came by the last read of a turn was not looked at: the socket had nothing more to
    /// say, and the client waited for ever.
    #[test]
    fn what_the_last_read_of_a_turn_brings_is_looked_at() {
        for reads in 1..=TURN + 1 {
            // Of small strings: room grows by as much each time.
            let count = (reads * INPUT_MIN - INPUT_MIN / 2) / b"$1\r\nk\r\n".len();
            let mut request = format!("*{}\r\n$6\r\nEXISTS\r\n", count + 1).into_bytes();
            (0..count).for_each(|_| request.extend_from_slice(b"$1\r\nk\r\n"));
            assert!(answered_at_once(&request), "{reads} reads, {} bytes", request.len());
        }
    }

    /// Each of ten thousand clients that say no secret could have a mebibyte of answers wait for it.
    #[test]
    fn a_client_is_answered_little_before_it_says_the_secret() {
        let mut shared = shared(Some(Secret::new("secret")));
        let (mut connection, mut theirs) = pair(false);
        // Whether it takes the answers makes no difference.
        for _ in 0..100 {
            if connection.is_ending() {
                break;
            }
            theirs.write_all(&b"HELLO\r\n".repeat(10)).expect("there is room");
            connection.wake(true, false, false);
            assert!(connection.listen(&mut shared, &mut Batch::default()));
            connection.answer();
        }
        assert!(connection.is_ending() && connection.unadmitted.answered < UNADMITTED_ANSWERS_MAX + 1024);
        let (mut connection, mut theirs) = pair(false);
        theirs.write_all(&b"HELLO\r\n".repeat(10_000)).expect("there is room");
        assert!(connection.listen(&mut shared, &mut Batch::default()));
        assert!(connection.is_ending());
        assert!(
            connection.waiting() < UNADMITTED_ANSWERS_MAX + 1024,
            "{}",
            connection.waiting()
        );
    }

    #[test]
    fn a_client_is_heard_for_a_while_until_it_says_the_secret() {
        let mut shared = shared(Some(Secret::new("secret")));
        let mut is_ended_by = |said: &[&[u8]]| {
            let (mut connection, mut theirs) = pair(false);
            for said in said {
                theirs.write_all(said).expect("there is room");
                connection.wake(true, false, false);
                assert!(connection.listen(&mut shared, &mut Batch::default()));
            }
            connection.is_ending()
        };
        // Empty lines are no commands, and get no answers.
        let much = b"\r\n".repeat(UNADMITTED_MAX / 2 - 20);
        assert!(!is_ended_by(&[&much]));
        assert!(is_ended_by(&[&much, &much]));
        let many = b"PING\r\n".repeat(10_000);
        assert!(!is_ended_by(&[&much, b"HELLO\r\nAUTH secret\r\n", &much, &many]));
    }
}
