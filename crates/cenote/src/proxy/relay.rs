//! One batch: from the client to a server's session, and its answers back.
//!
//! ```text
//! client ──► names of statements changed, Parse sent where the session lacks one ──► server
//! client ◄── own answers left out, settings noted ◄── answers, matched with what is expected ◄── server
//! ```
//!
//! Invariants:
//! - `expected` holds what the server, or the proxy in its place, still answers, in order.
//! - Answers that might be thrown away (a read, which may go to another server) are withheld until ReadyForQuery, or
//!   until they are more than [`WITHHELD_BYTES_MAX`]. From then on the batch belongs to its server.
//! - Neither side is read while what it sent last could not be passed on.

use super::backend::{Backend, HEAR_OUT, status_of};
use super::batch::Batch;
use super::dialogue::Dialogue;
use super::expected::{Expected, Undo};
use super::protocol::{FromServer, Message, Refusal, put};
use super::statements::{CLIENT_STATEMENTS_MAX, Interned, Statement, split_name};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

/// What names of the proxy's statements on sessions begin with.
const OWN_NAMES: &[u8] = b"_cenote_";
/// Bytes of an answer that wait for its end.
const WITHHELD_BYTES_MAX: usize = 64 << 10;
/// Bytes of an answer that are heard out of a server that another one has replaced.
const HEARD_BYTES_MAX: usize = 4 << 20;
/// Bytes that wait for the server before the client is read again.
const TO_SERVER_BYTES_MAX: usize = 64 << 10;
/// Bytes of the client's next batches that are read while this one is answered: so it is seen when a client leaves.
const EARLY_BYTES_MAX: usize = 8 << 10;

/// How it ended.
#[derive(Debug)]
pub enum Ended {
    /// All is answered.
    Ready,
    /// The client left, or is not understood.
    ClientGone(Option<Refusal>),
    /// The server was lost.
    ServerLost,
    /// A reader refuses it, and the client knows nothing of that.
    Moves {
        /// As every reader would, each time.
        for_good: bool,
    },
    /// The server ended the session, for the client's sake: this is what it said.
    Fatal(Message),
}

/// A name of the client's, and what it stood for.
type Renaming = (Box<[u8]>, Option<Arc<Statement>>);

/// A batch under way.
pub struct Exchange<'a> {
    dialogue: &'a mut Dialogue,
    backend: &'a mut Backend,
    interned: &'a Interned,
    expected: VecDeque<Expected>,
    to_server: BytesMut,
    to_client: BytesMut,
    /// More messages of the client belong to it.
    is_open: bool,
    is_copying: bool,
    /// Bytes of a row that are still to come.
    streaming: usize,
    /// Answers may be thrown away.
    withholds: bool,
    /// A reader's refusal sends it to the writer.
    may_move: bool,
    moves: bool,
    /// The refusal was not of this reader's state.
    moves_for_good: bool,
    /// An error was answered, and no Sync is on its way yet: the server drops what comes, and so does the proxy.
    is_skipping: bool,
    /// Names that the batch made, or took (with what they stood for), in order.
    journal: Vec<Renaming>,
    /// The server may have got some of it.
    pub sent: bool,
    /// Messages went to the server that came behind the batch.
    pub has_more: bool,
    /// The end of a COPY went there before the server asked for data.
    copy_ended: bool,
    /// The client got a part of the answer.
    pub answered: bool,
    /// The server has answered something.
    heard: bool,
}

type Step = Result<(), Ended>;

impl<'a> Exchange<'a> {
    /// A batch that is to be sent. `withholds`: the loss of the server is not the client's; `may_move`: nor is a
    /// reader's refusal.
    pub fn new(
        dialogue: &'a mut Dialogue,
        backend: &'a mut Backend,
        interned: &'a Interned,
        withholds: bool,
        may_move: bool,
    ) -> Self {
        Exchange {
            dialogue,
            backend,
            interned,
            expected: VecDeque::new(),
            to_server: BytesMut::new(),
            to_client: BytesMut::new(),
            is_open: false,
            is_copying: false,
            streaming: 0,
            withholds,
            may_move,
            moves: false,
            moves_for_good: false,
            is_skipping: false,
            journal: Vec::new(),
            sent: false,
            answered: false,
            heard: false,
            has_more: false,
            copy_ended: false,
        }
    }

    /// Sends it, and answers until all is answered, or it cannot be.
    pub async fn run(&mut self, batch: &Batch, mut retired: watch::Receiver<bool>) -> Ended {
        self.is_open = batch.is_open;
        match self.relay(batch, &mut retired).await {
            Ok(()) if self.moves => Ended::Moves {
                for_good: self.moves_for_good,
            },
            Ok(()) => Ended::Ready,
            Err(ended) => ended,
        }
    }

    async fn relay(&mut self, batch: &Batch, retired: &mut watch::Receiver<bool>) -> Step {
        batch.messages.iter().try_for_each(|message| self.forward(message))?;
        self.answer_own();
        while self.is_open || !self.expected.is_empty() {
            self.turn(retired).await?;
            self.answer_own();
            let over = !self.is_open && self.expected.is_empty();
            // The proxy's own answers alone are no part of an answer: the server may go without having begun.
            let is_proxys = self.is_open && self.expected.is_empty() && self.to_server.is_empty();
            let passes = !self.withholds && (self.heard || is_proxys);
            if passes || over || self.to_client.len() > WITHHELD_BYTES_MAX {
                self.flush_client().await?;
            }
        }
        self.flush_client().await
    }

    async fn turn(&mut self, retired: &mut watch::Receiver<bool>) -> Step {
        if self.is_open || self.is_copying {
            self.forward_more()?;
        }
        let (mut from_server, mut to_server) = self.backend.stream.split();
        let (mut from_client, _) = self.dialogue.stream.split();
        let listens = match self.is_open || self.is_copying {
            true => self.to_server.len() < TO_SERVER_BYTES_MAX,
            false => self.dialogue.inbound.len() < EARLY_BYTES_MAX,
        };
        tokio::select! {
            biased;
            () = told(retired) => self.hear_out().await,
            written = to_server.write(&self.to_server), if !self.to_server.is_empty() => {
                let written = written.map_err(|_| Ended::ServerLost)?;
                self.sent = true;
                self.to_server.advance(written);
                Ok(())
            }
            read = self.backend.inbound.fill(&mut from_server) => match read {
                Ok(1..) => self.take_answers(),
                _ => Err(Ended::ServerLost),
            },
            read = self.dialogue.inbound.fill(&mut from_client), if listens => match read {
                Ok(1..) => Ok(()),
                _ => Err(Ended::ClientGone(None)),
            },
        }
    }

    /// The directory knows another server: what this one has said before counts.
    async fn hear_out(&mut self) -> Step {
        let until = tokio::time::Instant::now() + HEAR_OUT;
        while !self.is_answered() && self.to_client.len() < HEARD_BYTES_MAX {
            let (mut from_server, _) = self.backend.stream.split();
            match tokio::time::timeout_at(until, self.backend.inbound.fill(&mut from_server)).await {
                Ok(Ok(1..)) => self.take_answers()?,
                _ => return Err(Ended::ServerLost),
            }
        }
        match self.is_answered() {
            true => Ok(()),
            false => Err(Ended::ServerLost),
        }
    }

    async fn flush_client(&mut self) -> Step {
        if self.moves || self.to_client.is_empty() {
            return Ok(());
        }
        (self.answered, self.dialogue.is_torn) = (true, true);
        let written = self.dialogue.stream.write_all(&self.to_client).await;
        self.dialogue.is_torn = self.streaming > 0;
        self.to_client.clear();
        written.map_err(|_| Ended::ClientGone(None))
    }

    /// What the client has sent since.
    fn forward_more(&mut self) -> Step {
        while (self.is_open || self.is_copying) && self.to_server.len() < TO_SERVER_BYTES_MAX {
            match self.dialogue.inbound.next_of_client() {
                Ok(Some(message)) => {
                    self.has_more = true;
                    self.forward(&message)?;
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(gone(&error.to_string())),
            }
        }
        Ok(())
    }

    fn forward(&mut self, message: &Message) -> Step {
        match message.tag {
            b'X' => return Err(Ended::ClientGone(None)),
            tag if self.is_skipping && tag != b'S' => return Ok(()),
            _ if self.is_copying => return self.forward_copy(message),
            b'P' => return self.forward_parse(message),
            b'B' => return self.forward_bind(message),
            b'D' => return self.forward_describe(message),
            b'C' => return self.forward_close(message),
            b'E' => {
                self.copy_ended = false;
                self.expected.push_back(Expected::Execute);
            }
            b'Q' => {
                self.backend.statements.unnamed = None;
                self.expected.push_back(Expected::Query);
                self.is_open = false;
            }
            b'S' => {
                self.expected.push_back(Expected::Sync);
                (self.is_open, self.is_skipping) = (false, false);
            }
            // What remains of a COPY that failed, and Flush.
            b'c' | b'f' => self.copy_ended = true,
            b'H' | b'd' => {}
            tag => return Err(gone(&format!("unexpected message of type '{}'", char::from(tag)))),
        }
        message.put(&mut self.to_server);
        Ok(())
    }

    fn forward_copy(&mut self, message: &Message) -> Step {
        message.put(&mut self.to_server);
        // Behind it the server is out of the COPY, and a Sync counts again.
        self.is_copying = !matches!(message.tag, b'c' | b'f');
        Ok(())
    }

    fn forward_parse(&mut self, message: &Message) -> Step {
        let Some((name, rest)) = split_name(&message.body, 0) else {
            return Err(gone("invalid message format"));
        };
        let statement = self.interned.statement(&rest);
        if name.is_empty() {
            self.backend.statements.unnamed = Some(statement.id);
            self.dialogue.names.unnamed = Some(statement);
            message.put(&mut self.to_server);
            let undo = Undo {
                unnamed: true,
                ..Undo::default()
            };
            self.expected.push_back(Expected::Parse { hidden: false, undo });
            return Ok(());
        }
        if let Some(former) = self.dialogue.names.named.get(&name[..]).cloned() {
            // The name is in use: the server says so, of a statement that it has.
            self.ensure(&former);
            self.put_parse(&former.name(), &former.rest);
            self.expected.push_back(Expected::Parse {
                hidden: false,
                undo: Undo::default(),
            });
            return Ok(());
        }
        if self.dialogue.names.named.len() >= CLIENT_STATEMENTS_MAX {
            let text = format!("a client may have {CLIENT_STATEMENTS_MAX} prepared statements");
            return Err(Ended::ClientGone(Some(Refusal::new("53400", text))));
        }
        let name: Box<[u8]> = name[..].into();
        self.dialogue.names.named.insert(name.clone(), statement.clone());
        self.journal.push((name.clone(), None));
        let mut undo = Undo {
            forget: Some(name),
            ..Undo::default()
        };
        if self.backend.statements.uses(statement.id) {
            self.expected.push_back(Expected::Own(b"1\0\0\0\x04", undo));
            return Ok(());
        }
        undo.absent = Some(statement.id);
        self.add(&statement);
        self.expected.push_back(Expected::Parse { hidden: false, undo });
        Ok(())
    }

    /// Sends a Parse of a statement that the session has not, and a Close for that which has to go for it.
    fn add(&mut self, statement: &Statement) {
        if let Some(oldest) = self.backend.statements.add(statement.id) {
            let name = format!("S_cenote_{oldest}\0");
            put(&mut self.to_server, b'C', &[name.as_bytes()]);
            let undo = Undo {
                present: Some(oldest),
                ..Undo::default()
            };
            self.expected.push_back(Expected::Close { hidden: true, undo });
        }
        self.put_parse(&statement.name(), &statement.rest);
    }

    fn put_parse(&mut self, name: &str, rest: &[u8]) {
        put(&mut self.to_server, b'P', &[name.as_bytes(), b"\0", rest]);
    }

    /// The session has the statement when what follows comes to it.
    fn ensure(&mut self, statement: &Statement) {
        if self.backend.statements.uses(statement.id) {
            return;
        }
        self.add(statement);
        let undo = Undo {
            absent: Some(statement.id),
            ..Undo::default()
        };
        self.expected.push_back(Expected::Parse { hidden: true, undo });
    }

    /// The name by which the session knows what the client calls so.
    fn session_name(&mut self, name: &Bytes) -> Vec<u8> {
        let Some(statement) = self.dialogue.names.get(name).cloned() else {
            return match name.is_empty() || name.starts_with(OWN_NAMES) {
                // Others' statements are there by these: one that no session has.
                true => [OWN_NAMES, b"none"].concat(),
                false => name.to_vec(),
            };
        };
        if !name.is_empty() {
            self.ensure(&statement);
            return statement.name().into_bytes();
        }
        if self.backend.statements.unnamed.replace(statement.id) != Some(statement.id) {
            self.put_parse("", &statement.rest);
            let undo = Undo {
                unnamed: true,
                ..Undo::default()
            };
            self.expected.push_back(Expected::Parse { hidden: true, undo });
        }
        Vec::new()
    }

    fn forward_bind(&mut self, message: &Message) -> Step {
        let parts = split_name(&message.body, 0).and_then(|(portal, rest)| Some((portal, split_name(&rest, 0)?)));
        let Some((portal, (name, rest))) = parts else {
            return Err(gone("invalid message format"));
        };
        let name = self.session_name(&name);
        put(&mut self.to_server, b'B', &[&portal, b"\0", &name, b"\0", &rest]);
        self.expected.push_back(Expected::Bind);
        Ok(())
    }

    fn forward_describe(&mut self, message: &Message) -> Step {
        match (message.body.first(), split_name(&message.body, 1)) {
            (Some(b'S'), Some((name, _))) => {
                let name = self.session_name(&name);
                put(&mut self.to_server, b'D', &[b"S", &name, b"\0"]);
            }
            _ => message.put(&mut self.to_server),
        }
        self.expected.push_back(Expected::Describe);
        Ok(())
    }

    fn forward_close(&mut self, message: &Message) -> Step {
        if let (Some(b'S'), Some((name, _))) = (message.body.first(), split_name(&message.body, 1)) {
            let undo = Undo {
                restore: self.dialogue.names.named.remove_entry(&name[..]),
                ..Undo::default()
            };
            if let Some((name, statement)) = &undo.restore {
                self.journal.push((name.clone(), Some(statement.clone())));
                self.expected.push_back(Expected::Own(b"3\0\0\0\x04", undo));
                return Ok(());
            }
            if name.starts_with(OWN_NAMES) {
                self.expected.push_back(Expected::Own(b"3\0\0\0\x04", Undo::default()));
                return Ok(());
            }
            if name.is_empty() {
                self.dialogue.names.unnamed = None;
                self.backend.statements.unnamed = None;
            }
        }
        message.put(&mut self.to_server);
        self.expected.push_back(Expected::Close {
            hidden: false,
            undo: Undo::default(),
        });
        Ok(())
    }

    /// Gives the answers that are the proxy's, and whose turn it is.
    fn answer_own(&mut self) {
        while let Some(Expected::Own(answer, _)) = self.expected.front() {
            self.to_client.extend_from_slice(answer);
            self.expected.pop_front();
        }
    }

    /// What is behind the last answer is the server's farewell: it says nothing of this batch.
    fn is_answered(&self) -> bool {
        !self.is_open && self.expected.is_empty() && self.streaming == 0
    }

    fn take_answers(&mut self) -> Step {
        while !self.is_answered() {
            if self.streaming > 0 {
                let piece = self.backend.inbound.raw(self.streaming);
                if piece.is_empty() {
                    return Ok(());
                }
                self.streaming -= piece.len();
                self.to_client.extend_from_slice(&piece);
                continue;
            }
            match self.backend.inbound.next_of_server() {
                Ok(Some(FromServer::Whole(message))) => self.answer(&message)?,
                Ok(Some(FromServer::Begun(bytes))) => (self.streaming, self.heard) = (bytes, true),
                Ok(None) => return Ok(()),
                Err(_) => return Err(Ended::ServerLost),
            }
            self.answer_own();
        }
        Ok(())
    }

    fn answer(&mut self, message: &Message) -> Step {
        match message.tag {
            b'S' => {
                self.note(message);
                return Ok(());
            }
            b'E' => {
                self.failed(message)?;
                self.heard = true;
                return Ok(());
            }
            b'Z' => self.ready(message),
            b'1' | b'3' if self.pop_closed_or_parsed() => return Ok(()),
            b'2' => self.pop_if(|expected| matches!(expected, Expected::Bind)),
            b'T' | b'n' => self.pop_if(|expected| matches!(expected, Expected::Describe)),
            b'I' | b's' => self.pop_if(|expected| matches!(expected, Expected::Execute)),
            b'C' => {
                self.is_copying = false;
                self.forget_all_by(&message.body);
                self.pop_if(|expected| matches!(expected, Expected::Execute));
            }
            b'G' => self.copies(),
            _ => {}
        }
        self.heard = true;
        message.put(&mut self.to_client);
        Ok(())
    }

    fn pop_if(&mut self, is_it: impl Fn(&Expected) -> bool) {
        if self.expected.front().is_some_and(is_it) {
            self.expected.pop_front();
        }
    }

    /// Whether the client did not ask for what is answered.
    fn pop_closed_or_parsed(&mut self) -> bool {
        match self.expected.front() {
            Some(Expected::Parse { hidden, .. } | Expected::Close { hidden, .. }) => {
                let hidden = *hidden;
                self.expected.pop_front();
                hidden
            }
            _ => false,
        }
    }

    /// The server takes COPY data. A Sync that came with the Execute was dropped by it.
    fn copies(&mut self) {
        if std::mem::take(&mut self.copy_ended) {
            // All of it came behind the Execute, and so did what follows.
            return;
        }
        self.is_copying = true;
        if matches!(self.expected.front(), Some(Expected::Execute)) {
            self.expected.retain(|expected| !matches!(expected, Expected::Sync));
            self.is_open = true;
        }
    }

    fn ready(&mut self, message: &Message) {
        self.is_copying = false;
        self.dialogue.status = message.body.first().copied().unwrap_or(b'I');
        // What the server has not answered by now it never will.
        while let Some(expected) = self.expected.pop_front() {
            if matches!(expected, Expected::Sync | Expected::Query) {
                return;
            }
            self.take_back_one(expected);
        }
    }

    fn note(&mut self, message: &Message) {
        let Some((name, value)) = status_of(&message.body) else {
            return;
        };
        if name == "_cenote.position" {
            let position = value.parse().unwrap_or(0);
            self.dialogue.is_unsure &= position <= self.dialogue.position;
            self.dialogue.position = self.dialogue.position.max(position);
        } else if name == "cenote.read_after" {
            // The proxy's own is taken where it is set: this one is of the client's.
            self.backend.is_spoilt |= value.parse() != Ok(self.backend.read_after);
        } else if !self.backend.note(name, value) {
            self.backend.is_spoilt |= !self.dialogue.state.note(name, value);
            if self.dialogue.follows(name) {
                message.put(&mut self.to_client);
            }
        }
    }

    fn failed(&mut self, message: &Message) -> Step {
        let (fatal, refusal) = Refusal::read(&message.body);
        if fatal {
            return Err(match refusal.code.starts_with("57P0") {
                true => {
                    self.sent &= !refusal.not_begun;
                    Ended::ServerLost
                }
                false => Ended::Fatal(message.clone()),
            });
        }
        if self.may_move && !self.answered && matches!(&refusal.code[..], "25006" | "72000") {
            self.moves = true;
            self.moves_for_good = refusal.code == "25006";
        }
        // The session has what it was thought to lack.
        let is_own = matches!(self.expected.front(), Some(Expected::Parse { undo, .. }) if undo.absent.is_some());
        self.backend.is_spoilt |= refusal.code == "42P05" && is_own;
        self.is_copying = false;
        self.skip();
        message.put(&mut self.to_client);
        Ok(())
    }

    /// The server skips all up to Sync.
    fn skip(&mut self) {
        if matches!(self.expected.front(), Some(Expected::Query)) {
            return;
        }
        while let Some(expected) = self.expected.pop_front() {
            match expected {
                Expected::Sync | Expected::Query => return self.expected.push_front(expected),
                other => self.take_back_one(other),
            }
        }
        self.is_skipping = true;
    }

    fn take_back_one(&mut self, expected: Expected) {
        match expected {
            Expected::Own(_, undo) | Expected::Parse { undo, .. } | Expected::Close { undo, .. } => self.undo(undo),
            Expected::Bind | Expected::Describe | Expected::Execute | Expected::Sync | Expected::Query => {}
        }
    }

    fn undo(&mut self, undo: Undo) {
        let names = &mut self.dialogue.names;
        if let Some(name) = undo.forget {
            names.named.remove(&name);
        }
        if let Some((name, statement)) = undo.restore {
            names.named.insert(name, statement);
        }
        if let Some(id) = undo.absent {
            self.backend.statements.forget(id);
        }
        if let Some(id) = undo.present {
            self.backend.statements.add(id);
        }
        if undo.unnamed {
            names.unnamed = None;
            self.backend.statements.unnamed = None;
        }
    }

    /// DEALLOCATE ALL and DISCARD ALL take the proxy's statements, too.
    fn forget_all_by(&mut self, tag: &[u8]) {
        if matches!(tag, b"DEALLOCATE ALL\0" | b"DISCARD ALL\0") {
            self.backend.statements.forget_all();
            self.dialogue.names.named.clear();
        }
    }

    /// The client's names are as before: the batch is sent again.
    pub fn take_back(&mut self) {
        for (name, statement) in self.journal.drain(..).rev() {
            match statement {
                Some(statement) => self.dialogue.names.named.insert(name, statement),
                None => self.dialogue.names.named.remove(&name),
            };
        }
    }

    /// Whether the server goes, and has left the block to the next one as it was before this.
    pub fn has_left_block(&self) -> bool {
        self.backend.left.is_some()
    }

    /// Whether more messages of the client belong to it.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// After the loss of the server: what the client is still given of the answer, all of whole messages. None: it has
    /// got a part of a row, and nothing else can follow.
    pub fn rest_of_answer(&mut self) -> Option<BytesMut> {
        match (self.answered, self.streaming) {
            (false, _) => Some(BytesMut::new()),
            (true, 0) => Some(std::mem::take(&mut self.to_client)),
            (true, _) => None,
        }
    }
}

/// Until the server is none of the directory's any more.
async fn told(retired: &mut watch::Receiver<bool>) {
    drop(retired.wait_for(|retired| *retired).await);
}

fn gone(text: &str) -> Ended {
    Ended::ClientGone(Some(Refusal::new("08P01", text)))
}
