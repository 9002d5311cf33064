//! A server that speaks Redis's protocol, over connections of its own.
//!
//! A worker has some connections. It sends each of them a pipeline of commands, then takes the answers of one after the
//! other: so one thread keeps many connections busy, and the server finds the commands of many. An operation takes as
//! long as its pipeline: from sending it to its last answer.
//!
//! Reading and then writing (F) is two commands: the second is sent when the first is answered, with the connection's
//! next pipeline. A scan (E) is as many commands as it has records, sent together.

use super::record::{Key, Layout, Records};
use super::resp::{self, Answer};
use super::worker::{Counts, Until, Worker};
use super::workload::{Kind, Operation, Stream};
use crate::{IoContext, Result};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read at once, at most.
const ROOM: usize = 256 << 10;
/// A server that says nothing for so long is given up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A worker's connections.
pub struct Wire {
    connections: Vec<Connection>,
    pipeline: usize,
    records: Arc<Records>,
}

struct Connection {
    stream: TcpStream,
    commands: Vec<u8>,
    answers: Vec<u8>,
    /// Bytes of answers that are there.
    end: usize,
    /// What was sent, in turn, and when what it is part of began.
    sent: Vec<(Command, Instant)>,
    /// To be sent next: the second halves of what was read to be written.
    next: Vec<(Operation, Instant)>,
}

/// A command as the worker remembers it.
#[derive(Clone, Copy)]
struct Command {
    operation: Operation,
    /// The reading half of [`Kind::ReadModifyWrite`].
    is_first_half: bool,
    /// More commands of the same operation follow: of a scan.
    has_more: bool,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// Those of the system.
    pub fn connect(port: u16, connections: usize, pipeline: usize, records: &Arc<Records>) -> Result<Self> {
        let connections: Result<Vec<_>> = (0..connections).map(|_| Connection::open(port)).collect();
        Ok(Self {
            connections: connections?,
            pipeline,
            records: Arc::clone(records),
        })
    }
}

impl Worker for Wire {
    fn run(&mut self, stream: &mut Stream, until: Until) -> Result<Counts> {
        let (mut counts, mut begun) = (Counts::default(), 0);
        loop {
            let left = match until {
                Until::Done(all) => all - begun,
                until if until.is_reached(begun) => 0,
                _ => u64::MAX,
            };
            let mut left = usize::try_from(left).unwrap_or(usize::MAX);
            for connection in &mut self.connections {
                let taken = connection.fill(stream, &self.records, self.pipeline.min(left));
                (left, begun) = (left - taken, begun + taken as u64);
                connection.send()?;
            }
            if self.connections.iter().all(|connection| connection.sent.is_empty()) {
                return Ok(counts);
            }
            for connection in &mut self.connections {
                let inserts = connection.take(&self.records, &mut counts)?;
                stream.acknowledge(inserts);
            }
        }
    }
}

impl Connection {
    fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("connecting to the server")?;
        stream.set_nodelay(true).context("setting up a connection")?;
        stream
            .set_read_timeout(Some(TIMEOUT))
            .context("setting up a connection")?;
        Ok(Self {
            stream,
            commands: Vec::new(),
            answers: vec![0; ROOM],
            end: 0,
            sent: Vec::new(),
            next: Vec::new(),
        })
    }

    /// Makes a pipeline: second halves first, then up to `fresh` commands together. How many operations of the stream
    /// were begun.
    fn fill(&mut self, stream: &mut Stream, records: &Records, fresh: usize) -> usize {
        let now = Instant::now();
        for (operation, began) in self.next.drain(..) {
            write(&mut self.commands, records, operation);
            let command = Command {
                operation,
                is_first_half: false,
                has_more: false,
            };
            self.sent.push((command, began));
        }
        let room = fresh.saturating_sub(self.sent.len());
        for taken in 0..room {
            let Some(operation) = stream.next() else {
                return taken;
            };
            let is_first_half = operation.kind == Kind::ReadModifyWrite;
            for (n, record) in (1..).zip(operation.records()) {
                match operation.kind {
                    Kind::Read | Kind::Scan | Kind::ReadModifyWrite => read(&mut self.commands, records, record),
                    _ => write(&mut self.commands, records, operation),
                }
                let command = Command {
                    operation,
                    is_first_half,
                    has_more: n < operation.count,
                };
                self.sent.push((command, now));
            }
        }
        room
    }

    fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.commands).context("sending commands")?;
        self.commands.clear();
        Ok(())
    }

    /// Takes the answers to all that was sent. How many inserts were among them.
    fn take(&mut self, records: &Records, counts: &mut Counts) -> Result<u64> {
        let (mut begin, mut n, mut inserts) = (0, 0, 0);
        while n < self.sent.len() {
            let Some((len, answer)) = resp::answer(&self.answers[begin..self.end])? else {
                self.receive(&mut begin)?;
                continue;
            };
            let (command, began) = self.sent[n];
            check(records, command, &answer, counts);
            if command.is_first_half {
                self.next.push((command.operation, began));
            } else if !command.has_more {
                counts.operations += 1;
                counts.took(began.elapsed());
                inserts += u64::from(command.operation.kind == Kind::Insert);
            }
            (begin, n) = (begin + len, n + 1);
        }
        self.sent.clear();
        self.answers.copy_within(begin..self.end, 0);
        self.end -= begin;
        Ok(inserts)
    }

    fn receive(&mut self, begin: &mut usize) -> Result<()> {
        self.answers.copy_within(*begin..self.end, 0);
        self.end -= *begin;
        *begin = 0;
        if self.end == self.answers.len() {
            self.answers.resize(2 * self.end, 0);
        }
        match self
            .stream
            .read(&mut self.answers[self.end..])
            .context("reading answers")?
        {
            0 => Err(crate::Error::Refused("the server has ended the connection".into())),
            len => {
                self.end += len;
                Ok(())
            }
        }
    }
}

fn read(out: &mut Vec<u8>, records: &Records, record: u64) {
    let name: &[u8] = match records.layout {
        Layout::Hash => b"HGETALL",
        Layout::Value => b"GET",
    };
    resp::command(out, &[name, Key::new(record).bytes()]);
}

fn write(out: &mut Vec<u8>, records: &Records, operation: Operation) {
    let (key, bits) = (Key::new(operation.record), operation.bits);
    match (operation.kind, records.layout) {
        (Kind::Remove, _) => resp::command(out, &[b"DEL", key.bytes()]),
        (_, Layout::Value) => resp::command(out, &[b"SET", key.bytes(), records.whole(bits)]),
        (Kind::Insert, Layout::Hash) => {
            resp::array(out, 2 + 2 * records.names.len());
            resp::string(out, b"HSET");
            resp::string(out, key.bytes());
            for (name, value) in records.pairs(bits) {
                resp::string(out, name);
                resp::string(out, value);
            }
        }
        (_, Layout::Hash) => {
            let (name, value) = records.one(bits);
            resp::command(out, &[b"HSET", key.bytes(), name, value]);
        }
    }
}

/// Whether the answer is what it should be.
fn check(records: &Records, command: Command, answer: &Answer<'_>, counts: &mut Counts) {
    let kind = command.operation.kind;
    let is_reading = matches!(kind, Kind::Read | Kind::Scan) || command.is_first_half;
    match (answer, is_reading) {
        (Answer::Error(text), _) => counts.failed(String::from_utf8_lossy(text)),
        (Answer::Null | Answer::Array { count: 0, .. }, true) => counts.missing += 1,
        (Answer::Array { count, bytes }, true) if *count == 2 * records.names.len() => {
            let names: usize = records.names.iter().map(Vec::len).sum();
            if *bytes != names + records.bytes() {
                counts.missing += 1;
            }
        }
        (Answer::String(bytes), true) if bytes.len() == records.bytes() => {}
        (Answer::Integer(0), false) if kind == Kind::Remove => counts.missing += 1,
        (Answer::Integer(_) | Answer::Simple, false) => {}
        _ => counts.failed(format!("{kind:?} was answered by {answer:?}")),
    }
}
