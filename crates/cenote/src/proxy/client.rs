//! One client from its first statement to its last.
//!
//! ```text
//!            ┌──────────── a session of a server, with the client's state ◄─── route ───┐
//! idle ──► batch ──► relay ──► ReadyForQuery 'I' ──► the session goes back ──► idle      │
//!            │         ├── a reader refuses, or a server is lost that had a read ────────┘
//!            │         ├── ReadyForQuery 'T', 'E', or something held ──► idle, with its session
//!            │         └── lost: 40003, 08006 (`outcome`)
//!            └── answered here: SHOW cenote.proxy, Close, DEALLOCATE, a block whose server was lost (`failed`)
//! ```

use super::backend::Left;
use super::batch::{BATCH_BYTES_MAX, Batch, Facts};
use super::dialogue::Dialogue;
use super::outcome::{self, Outcome, Work};
use super::pool::Lease;
use super::protocol::{Message, Refusal, put, put_ready};
use super::relay::{Ended, Exchange};
use super::route;
use super::shared::{Shared, Target};
use super::state::State;
use super::words::{deallocated, is_words};
use super::{failed, status};
use bytes::BytesMut;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A client leaves: it is told why, or knows.
pub type Leaves = Option<Refusal>;

/// Statements that are sent again at most so often after losses; each time it is waited for a server.
const TRIES_MAX: usize = 20;

/// How long a client may take to hear why its connection ends.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long an idle client is left alone before it is told that the proxy stops.
const LAST_WORDS_AFTER: Duration = Duration::from_millis(100);

/// A block on its way to the next server; `None`: it is lost.
type Going = JoinHandle<Option<route::TakenUp>>;

/// See the module.
pub struct Client {
    shared: Arc<Shared>,
    dialogue: Dialogue,
    /// The session that is the client's beyond its batch.
    held: Option<Lease>,
    /// Its settings before its block.
    before_block: Option<State>,
    /// Its block, which the last server has left to the next one.
    left: Option<Going>,
    /// The server of its block was lost.
    has_lost_block: bool,
    /// All is dropped up to Sync.
    skips: bool,
    target: Arc<Target>,
}

impl Client {
    /// One that has been let in.
    pub fn new(shared: Arc<Shared>, dialogue: Dialogue, target: Arc<Target>) -> Client {
        Client {
            shared,
            dialogue,
            held: None,
            before_block: None,
            left: None,
            has_lost_block: false,
            skips: false,
            target,
        }
    }

    /// Answers what the client asks until it leaves.
    pub async fn run(&mut self) -> Leaves {
        loop {
            let batch = match self.gather().await {
                Ok(batch) => batch,
                Err(leaves) => return leaves,
            };
            // Apart, so that an idle client's task is small.
            if let Err(leaves) = Box::pin(self.answer(batch)).await {
                return leaves;
            }
        }
    }

    /// Tells the client why it has to leave.
    pub async fn tell(&mut self, refusal: &Refusal) {
        if !self.dialogue.is_torn {
            tell(&mut self.dialogue.stream, refusal).await;
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Leaves> {
        self.dialogue.stream.write_all(bytes).await.map_err(|_| None)
    }

    /// The client's next batch.
    async fn gather(&mut self) -> Result<Batch, Leaves> {
        let (mut batch, mut bytes) = (Batch::default(), 0);
        loop {
            let next = self.dialogue.inbound.next_of_client();
            let Some(message) = next.map_err(|error| Some(Refusal::new("08P01", error.to_string())))? else {
                self.listen(batch.messages.is_empty()).await?;
                continue;
            };
            if batch.messages.is_empty() && !self.is_bound() && *self.shared.stopping.borrow() && message.tag != b'X' {
                return Err(Some(shutting_down()));
            }
            bytes += message.len();
            let tag = message.tag;
            self.sort(message, &mut batch).await?;
            batch.is_open = tag == b'H' || bytes > BATCH_BYTES_MAX && !matches!(tag, b'Q' | b'S');
            if !batch.messages.is_empty() && (batch.is_open || matches!(tag, b'Q' | b'S')) {
                return Ok(batch);
            }
        }
    }

    /// Whether the client has something that ends with its connection.
    fn is_bound(&self) -> bool {
        self.held.is_some() || self.left.is_some() || self.has_lost_block || self.skips
    }

    async fn sort(&mut self, message: Message, batch: &mut Batch) -> Result<(), Leaves> {
        let mut out = BytesMut::new();
        match message.tag {
            b'X' => return Err(None),
            b'S' if self.skips => {
                self.skips = false;
                put_ready(&mut out, self.dialogue.status);
            }
            _ if self.skips => {}
            // What remains of a COPY that failed.
            b'd' | b'c' | b'f' if batch.messages.is_empty() => {}
            b'F' => {
                Refusal::new("0A000", "the function call protocol is not supported").put(&mut out, false);
                put_ready(&mut out, self.dialogue.status);
            }
            b'p' => return Err(Some(Refusal::new("08P01", "unexpected message of type 'p'"))),
            _ => batch.messages.push(message),
        }
        match out.is_empty() {
            true => Ok(()),
            false => self.write(&out).await,
        }
    }

    /// Waits for more of the client. An idle one has no buffer meanwhile, and leaves when the proxy stops.
    async fn listen(&mut self, idle: bool) -> Result<(), Leaves> {
        if idle && self.dialogue.inbound.len() == 0 {
            self.dialogue.inbound.shrink();
            let mut stopping = self.shared.stopping.subscribe();
            let stays = self.is_bound();
            tokio::select! {
                ready = self.dialogue.stream.readable() => ready.map_err(|_| None)?,
                () = stopped(&mut stopping), if !stays => return Err(Some(shutting_down())),
                () = goes(&self.held), if self.held.is_some() => {
                    self.hear_out().await;
                    return Ok(());
                }
                taken = gone_on(&mut self.left), if self.left.is_some() => {
                    self.settle_taken(taken).await;
                    return Ok(());
                }
            }
        }
        // A server that goes is heard, whatever part of a message its client has sent.
        tokio::select! {
            read = self.dialogue.inbound.fill(&mut self.dialogue.stream) => match read {
                Ok(1..) => return Ok(()),
                Ok(0) | Err(_) => return Err(None),
            },
            () = goes(&self.held), if self.held.is_some() => {}
            taken = gone_on(&mut self.left), if self.left.is_some() => {
                self.settle_taken(taken).await;
                return Ok(());
            }
        }
        self.hear_out().await;
        Ok(())
    }

    /// The server of the client's block goes: what it says of that.
    async fn hear_out(&mut self) {
        let Some(mut lease) = self.held.take() else { return };
        match (lease.hear_out().await, lease.left.take()) {
            (_, Some(left)) => self.go_on_elsewhere(left, &lease),
            (true, None) => {}
            (false, None) => self.held = Some(lease),
        }
    }

    /// The block that the last server left goes on in a session of another one. A task of its own waits for that: it
    /// is not to be given up half way. Where the client has gone by then, or goes on without the block, it ends there.
    fn go_on_elsewhere(&mut self, left: Left, lease: &Lease) {
        let left = route::LeftBlock {
            left,
            from: lease.pool.address.clone(),
            client: self.dialogue.id,
            user: self.dialogue.user.clone(),
            start: self.dialogue.state.start.clone(),
        };
        let shared = self.shared.clone();
        self.left = Some(tokio::spawn(async move {
            let until = Instant::now() + shared.options.wait;
            route::take_up(&shared, &left, until).await.ok()
        }));
    }

    async fn settle_taken(&mut self, taken: Option<route::TakenUp>) {
        self.left = None;
        if let Some(route::TakenUp { lease, state, status }) = taken {
            (self.dialogue.state, self.dialogue.status) = (state, status);
            *self.target.write().await = Some((lease.pool.address.clone(), lease.key));
            self.hold(lease);
        }
    }

    async fn answer(&mut self, batch: Batch) -> Result<(), Leaves> {
        if self.has_lost_block {
            return self.answer_failed(&batch).await;
        }
        let facts = batch.facts(&self.dialogue.names);
        if let Some(out) = self.answer_here(&batch, &facts) {
            return self.write(&out).await;
        }
        let before = self.dialogue.state.clone();
        let mut work = facts.work(self.dialogue.status != b'I');
        work.repeatable &= !batch.is_open;
        let mut reads = !work.in_block && !batch.is_open && facts.is_for_readers();
        reads &= !self.shared.are_writers(&facts.hashes) && !self.dialogue.is_unsure;
        let until = Instant::now() + self.shared.options.wait;
        for _ in 0..TRIES_MAX {
            let lease = match self.session(reads, until).await {
                Ok(Some(lease)) => lease,
                Ok(None) => {
                    self.skips = batch.is_open;
                    return self.lost(&batch, work, before, Some(BytesMut::new())).await;
                }
                Err(refusal) => return self.refuse(&batch, &refusal).await,
            };
            work.at_reader = lease.pool.is_reader;
            match self.exchange(&batch, lease, &mut work, &before).await? {
                Next::Over => return Ok(()),
                Next::Again => {
                    (work.sent, work.is_left) = (false, false);
                    self.dialogue.state = before.clone();
                }
                Next::ToWriter { for_good } => {
                    if for_good {
                        self.shared.note_writers(&facts.hashes);
                    }
                    (reads, work.sent) = (false, false);
                }
                Next::Lost(rest) => return self.lost(&batch, work, before, rest).await,
            }
        }
        if work.in_block {
            return self.lost(&batch, work, before, Some(BytesMut::new())).await;
        }
        let refusal = Refusal::new(
            "08006",
            format!("each of {TRIES_MAX} servers in turn was lost with the statement"),
        );
        self.refuse(&batch, &refusal).await
    }

    /// What needs no server.
    fn answer_here(&mut self, batch: &Batch, facts: &Facts) -> Option<BytesMut> {
        let (mut out, status) = (BytesMut::new(), self.dialogue.status);
        if let Some(text) = batch.query() {
            if text.len() <= 64 && is_words(text, "show cenote.proxy") {
                return Some(status::answer(&self.shared, status));
            }
            let name = (status != b'E').then(|| deallocated_by(text)).flatten()?;
            self.dialogue.names.named.remove(&name[..])?;
            put(&mut out, b'C', &[b"DEALLOCATE\0"]);
            put_ready(&mut out, status);
            return Some(out);
        }
        if facts.needs_server || batch.is_open {
            return None;
        }
        for message in &batch.messages {
            if message.tag == b'C' {
                let name = message.body.get(1..)?.strip_suffix(b"\0")?;
                self.dialogue.names.named.remove(name);
                put(&mut out, b'3', &[]);
            } else {
                put_ready(&mut out, status);
            }
        }
        Some(out)
    }

    /// The session that the batch goes to; None: that of the client's block is lost.
    async fn session(&mut self, reads: bool, until: Instant) -> Result<Option<Lease>, Refusal> {
        if let Some(lease) = self.held.take() {
            // What a block made at a reader stays there, and a reader is no place for what follows.
            let is_of_use = self.dialogue.status != b'I' || !lease.pool.is_reader || reads;
            if is_of_use && !lease.is_gone() && !*lease.pool.retirement().borrow() {
                return Ok(Some(lease));
            }
            if is_of_use {
                self.held = Some(lease);
                self.hear_out().await;
                // Of one that the directory does not know any more nothing is to be had.
                self.held = None;
            }
        }
        // The block is lost where it was not left, or cannot be taken up.
        if self.left.is_some() {
            let taken = tokio::time::timeout_at(until, gone_on(&mut self.left)).await;
            self.settle_taken(taken.ok().flatten()).await;
        }
        if self.held.is_some() || self.dialogue.status != b'I' {
            return Ok(self.held.take());
        }
        let lease = route::session(&self.shared, &mut self.dialogue, reads, until).await?;
        *self.target.write().await = Some((lease.pool.address.clone(), lease.key));
        Ok(Some(lease))
    }

    async fn exchange(
        &mut self,
        batch: &Batch,
        mut lease: Lease,
        work: &mut Work,
        before: &State,
    ) -> Result<Next, Leaves> {
        let retired = lease.pool.retirement();
        let may_move = work.at_reader && !work.in_block && !batch.is_open;
        let withholds = !work.in_block && !batch.is_open && (work.at_reader || work.repeatable);
        let interned = &self.shared.interned;
        let mut exchange = Exchange::new(&mut self.dialogue, &mut lease, interned, withholds, may_move);
        let ended = exchange.run(batch, retired).await;
        (work.sent, work.answered, work.is_cut) = (exchange.sent, exchange.answered, exchange.has_more);
        work.is_left = exchange.has_left_block();
        let is_lost = matches!(ended, Ended::ServerLost);
        let again = is_lost && outcome::of(*work) == Outcome::Again;
        if again || matches!(ended, Ended::Moves { .. }) {
            exchange.take_back();
        }
        self.skips = is_lost && !again && exchange.is_open();
        let rest = if is_lost { exchange.rest_of_answer() } else { None };
        match ended {
            Ended::Ready => {
                self.settle(lease, work.in_block, before).await;
                Ok(Next::Over)
            }
            Ended::Moves { for_good } => {
                // A refused statement changes nothing of its session.
                self.settle(lease, work.in_block, before).await;
                Ok(Next::ToWriter { for_good })
            }
            Ended::ServerLost => {
                if let Some(left) = lease.left.take() {
                    self.go_on_elsewhere(left, &lease);
                }
                drop(lease);
                *self.target.write().await = None;
                Ok(if again { Next::Again } else { Next::Lost(rest) })
            }
            Ended::ClientGone(refusal) => Err(refusal),
            Ended::Fatal(message) => {
                let mut out = BytesMut::new();
                message.put(&mut out);
                self.write(&out).await?;
                Err(None)
            }
        }
    }

    /// The session goes back, unless it is the client's still.
    async fn settle(&mut self, mut lease: Lease, was_in_block: bool, before: &State) {
        lease.state = self.dialogue.state.clone();
        if self.dialogue.status != b'I' {
            if !was_in_block {
                self.before_block = Some(before.clone());
            }
            self.hold(lease);
            return;
        }
        self.before_block = None;
        if lease.holds && !lease.is_spoilt {
            self.hold(lease);
            return;
        }
        *self.target.write().await = None;
        lease.give_back();
    }

    /// The session stays this client's: no other server takes its work off.
    fn hold(&mut self, mut lease: Lease) {
        lease.reading = None;
        self.held = Some(lease);
    }

    /// The server was lost, and the client has to know.
    async fn lost(&mut self, batch: &Batch, work: Work, before: State, rest: Option<BytesMut>) -> Result<(), Leaves> {
        let Some(mut out) = rest else { return Err(None) };
        let outcome = match outcome::of(work) {
            // It was to be sent to the next server, and the block is not there.
            Outcome::Again if work.in_block => Outcome::BlockFailed,
            outcome => outcome,
        };
        let (code, text, status) = match outcome {
            Outcome::Unknown => (
                "40003",
                "the server was lost; whether the statement was carried out is unknown",
                b'I',
            ),
            Outcome::Lost | Outcome::Again => ("08006", "the server was lost with the statement", b'I'),
            Outcome::BlockFailed => ("08006", "the server was lost, and with it the transaction block", b'E'),
            Outcome::RolledBack => ("", "", b'E'),
        };
        // A block that was left, and that the client cannot go on with, ends where it is.
        self.left = None;
        // It may have committed at a position that was not told.
        self.dialogue.is_unsure |= work.sent && !work.at_reader;
        let state = self.before_block.take().unwrap_or(before);
        self.dialogue.go_back_to(state, &mut out);
        self.dialogue.status = status;
        self.has_lost_block = status == b'E';
        *self.target.write().await = None;
        if code.is_empty() {
            self.write(&out).await?;
            return self.answer_failed(batch).await;
        }
        Refusal::new(code, text).put(&mut out, false);
        self.end_answer(&mut out);
        self.write(&out).await
    }

    /// ReadyForQuery, or nothing before Sync.
    fn end_answer(&mut self, out: &mut BytesMut) {
        if !self.skips {
            put_ready(out, self.dialogue.status);
        }
    }

    /// The batch went to no server.
    async fn refuse(&mut self, batch: &Batch, refusal: &Refusal) -> Result<(), Leaves> {
        let mut out = BytesMut::new();
        refusal.put(&mut out, false);
        self.skips = batch.is_open;
        self.end_answer(&mut out);
        self.write(&out).await
    }

    async fn answer_failed(&mut self, batch: &Batch) -> Result<(), Leaves> {
        let mut out = BytesMut::new();
        let skips = failed::answer(&mut self.dialogue, &self.shared.interned, batch, &mut out);
        self.skips = skips && batch.is_open;
        self.has_lost_block = self.dialogue.status == b'E';
        self.write(&out).await
    }
}

/// What follows an exchange.
enum Next {
    Over,
    Again,
    ToWriter {
        for_good: bool,
    },
    /// With what the client is still given of the answer.
    Lost(Option<BytesMut>),
}

/// Until the block goes on, or it is known that it does not.
async fn gone_on(left: &mut Option<Going>) -> Option<route::TakenUp> {
    match left {
        Some(going) => going.await.ok().flatten(),
        None => std::future::pending().await,
    }
}

/// Until the server of a session says something unasked, or closes it.
async fn goes(held: &Option<Lease>) {
    match held {
        Some(lease) => lease.goes().await,
        None => std::future::pending().await,
    }
}

/// The name that a text deallocates, if it does that.
fn deallocated_by(text: &[u8]) -> Option<Vec<u8>> {
    use super::words::{Verb, verb};
    (verb(text) == Verb::Deallocate).then(|| deallocated(text)).flatten()
}

/// Some drivers take an error that follows an answer at once for the answer.
async fn stopped(stopping: &mut tokio::sync::watch::Receiver<bool>) {
    stopping.wait_for(|stopping| *stopping).await.ok();
    tokio::time::sleep(LAST_WORDS_AFTER).await;
}

/// Tells a client why its connection ends, if it listens.
pub async fn tell(stream: &mut TcpStream, refusal: &Refusal) {
    let mut out = BytesMut::new();
    refusal.put(&mut out, true);
    let telling = async {
        stream.write_all(&out).await.ok();
        stream.shutdown().await.ok();
    };
    tokio::time::timeout(LAST_WORDS, telling).await.ok();
}

/// 57P01.
pub fn shutting_down() -> Refusal {
    Refusal::new("57P01", "terminating connection due to administrator command")
}
