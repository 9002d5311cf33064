//! What sessions noted: transactions, what they read and wrote, how they ended.
//!
//! Each write of a row puts a tag into it that no other write uses: the number of the transaction and of the write
//! within it. So a reader of a row knows whose write it was. All else in a row follows from its key and its tag, so
//! that a row half written is seen, too. Tag 0 stands for "no row".
//!
//! A history outlives the processes that are killed: it belongs to the world, not to a host.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_engine::Isolation;

use super::left::{Leave, Leaves};

/// The writer of a row: the transaction's number, times 256, and which of its writes. 0: there is no row.
pub type Tag = u64;

/// The transaction that wrote a tag; `None` for the tag of no row.
pub fn writer(tag: Tag) -> Option<usize> {
    (tag != 0).then(|| (tag >> 8) as usize - 1)
}

/// The tag of write `write` of transaction `txn`.
pub fn tag(txn: usize, write: usize) -> Tag {
    (txn as u64 + 1) << 8 | (write as u64 & 0xFF)
}

/// A tag for people.
pub fn show(tag: Tag) -> String {
    match writer(tag) {
        None => "no row".into(),
        Some(txn) => format!("T{txn}.{}", tag & 0xFF),
    }
}

/// A row's place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Which table.
    pub table: u8,
    /// Primary key.
    pub id: i32,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}[{}]", self.table, self.id)
    }
}

/// One thing that a transaction did.
#[derive(Debug, Clone)]
pub struct Op {
    /// Number of the event: they rise over all sessions.
    pub at: u64,
    /// The statement's snapshot.
    pub snapshot: u64,
    /// Greatest timestamp that had been acknowledged to any session when the statement began.
    pub floor: u64,
    /// Which of its transaction's statements, from 1.
    pub statement: u32,
    /// What it was.
    pub what: What,
}

/// What an operation did or saw.
#[derive(Debug, Clone)]
pub enum What {
    /// Read one row.
    Read {
        /// Where.
        key: Key,
        /// What was there.
        saw: Tag,
    },
    /// Read a range of a table, by its primary key or by an index.
    Scan {
        /// Which table.
        table: u8,
        /// First id.
        from: i32,
        /// First id that is not in the range.
        to: i32,
        /// What was there, by rising id.
        saw: Vec<(i32, Tag)>,
        /// An index led there, to rows of this color only.
        color: Option<i32>,
    },
    /// Locked the newest version of a row.
    Lock {
        /// Where.
        key: Key,
        /// What was there.
        saw: Tag,
        /// Whether no other transaction may lock it meanwhile.
        alone: bool,
    },
    /// Met the newest version of a row and left the row alone because of it.
    Met {
        /// Where.
        key: Key,
        /// What was there.
        saw: Tag,
    },
    /// Put one version in the place of another.
    Write {
        /// Where.
        key: Key,
        /// What it replaced.
        before: Tag,
        /// What it wrote; 0: it deleted the row.
        after: Tag,
    },
    /// Asked for a row by its key, to change or lock it, and met one, maybe under another key. Noted before what was
    /// done to it.
    Wanted {
        /// The key asked for.
        key: Key,
        /// What was met; 0: no row.
        saw: Tag,
    },
    /// Gave a row another key, by two writes that are noted before.
    Rekeyed {
        /// What stood under the former key.
        before: Tag,
        /// What stands under the new one.
        after: Tag,
    },
    /// Marked a place to return to.
    Savepoint,
    /// Returned to the last mark.
    RolledBack,
    /// Was being left to the next life.
    Left,
}

impl What {
    /// Whether it is no part of a statement, which has a snapshot.
    pub fn is_between_statements(&self) -> bool {
        matches!(self, What::Savepoint | What::RolledBack | What::Left)
    }
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It has not: it was at work when its process died, or still is.
    Running,
    /// It was left to the next life, or may have been: it is open behind its process's death.
    Left,
    /// It had asked for its commit and got no answer, or one that leaves it open.
    Open,
    /// Its commit was acknowledged, or recovery has found it.
    Committed,
    /// It was taken back.
    Aborted,
}

/// A transaction.
#[derive(Debug, Clone)]
pub struct Txn {
    /// Its session.
    pub session: usize,
    /// The life of the engine that it ran in.
    pub life: usize,
    /// Isolation level.
    pub level: Isolation,
    /// What it did.
    pub ops: Vec<Op>,
    /// Statements that it has begun.
    pub statements: u32,
    /// How it ended.
    pub end: End,
    /// Commit timestamp, if it has one.
    pub cts: u64,
    /// Event at which its end was asked for.
    pub asked: u64,
    /// Event at which it was answered.
    pub answered: u64,
    /// Whether its commit was under way when its process died, and has not survived. Others may have built on it
    /// before, but none of them has survived either.
    pub lost: bool,
    /// Whether it changed definitions: its rows are checked by recovery alone.
    pub defines: bool,
}

impl Txn {
    /// What stands at its end: key and tag of each row that it wrote and did not take back, the last write of each.
    pub fn writes(&self) -> BTreeMap<Key, (Tag, Tag)> {
        let mut overlay = Overlay::default();
        self.ops.iter().for_each(|op| overlay.apply(&op.what));
        overlay.writes()
    }
}

/// A transaction's own writes while its operations are gone through, with savepoints.
#[derive(Debug, Default)]
pub struct Overlay {
    written: Vec<(Key, Tag, Tag)>,
    mark: usize,
}

impl Overlay {
    /// Goes one operation further.
    pub fn apply(&mut self, what: &What) {
        match what {
            What::Write { key, before, after } => self.written.push((*key, *before, *after)),
            What::Savepoint => self.mark = self.written.len(),
            What::RolledBack => self.written.truncate(self.mark),
            _ => {}
        }
    }

    /// The transaction's own version of a row.
    pub fn get(&self, key: Key) -> Option<Tag> {
        self.written.iter().rev().find(|w| w.0 == key).map(|w| w.2)
    }

    /// Own versions of rows of a table within a range.
    pub fn range(&self, table: u8, from: i32, to: i32) -> impl Iterator<Item = (i32, Tag)> + '_ {
        let inside = move |w: &&(Key, Tag, Tag)| w.0.table == table && (from..to).contains(&w.0.id);
        self.written.iter().filter(inside).map(|w| (w.0.id, w.2))
    }

    /// For each row: what the first write replaced, and what the last one left.
    pub fn writes(&self) -> BTreeMap<Key, (Tag, Tag)> {
        let mut writes = BTreeMap::new();
        for (key, before, after) in &self.written {
            writes.entry(*key).or_insert((*before, *after)).1 = *after;
        }
        writes
    }
}

/// All transactions of a world, and what was acknowledged.
#[derive(Debug, Default)]
pub struct History {
    /// By their numbers.
    pub txns: Vec<Txn>,
    /// Where sessions' engines note timestamps of commits that are not answered yet; by transaction.
    notes: BTreeMap<usize, Arc<AtomicU64>>,
    leaves: Leaves,
    /// Greatest timestamp acknowledged.
    pub acknowledged: u64,
    events: u64,
    /// The process is dead: threads of it that run on until the simulator stops them are not listened to.
    deaf: bool,
    /// Transactions below this have been checked, and their ends are known for good.
    pub settled: usize,
    /// The log may fail under sessions, which then go on reading, and no longer wait for what they have built on.
    pub may_lose_log: bool,
}

impl History {
    /// The next event's number.
    pub fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// The next process begins.
    pub fn listen(&mut self) {
        self.deaf = false;
    }

    /// A transaction begins; its number.
    pub fn begin(&mut self, session: usize, life: usize, level: Isolation) -> usize {
        if self.deaf {
            return usize::MAX;
        }
        let asked = 0;
        self.txns.push(Txn {
            session,
            life,
            level,
            ops: Vec::new(),
            statements: 0,
            end: End::Running,
            cts: 0,
            asked,
            answered: 0,
            lost: false,
            defines: false,
        });
        self.txns.len() - 1
    }

    /// A transaction changes definitions.
    pub fn defines(&mut self, txn: usize) {
        if !self.deaf {
            self.txns[txn].defines = true;
        }
    }

    /// A transaction has begun a statement: what it built on before is durable.
    pub fn statement(&mut self, txn: usize) {
        if !self.deaf {
            self.txns[txn].statements += 1;
        }
    }

    /// An operation of a transaction.
    pub fn note(&mut self, txn: usize, snapshot: u64, floor: u64, what: What) {
        if self.deaf {
            return;
        }
        let (at, statement) = (self.event(), self.txns[txn].statements);
        self.txns[txn].ops.push(Op {
            at,
            snapshot,
            floor,
            statement,
            what,
        });
    }

    /// A transaction asks for its commit; `cts` is where the engine will note the timestamp.
    pub fn ask(&mut self, txn: usize, cts: Arc<AtomicU64>) {
        if self.deaf {
            return;
        }
        let at = self.event();
        cts.as_raw().store(0, Ordering::Relaxed);
        self.notes.insert(txn, cts);
        (self.txns[txn].asked, self.txns[txn].end) = (at, End::Open);
    }

    /// The answer to a commit: `acknowledged`, or an error that leaves it open.
    pub fn answer(&mut self, txn: usize, acknowledged: bool) {
        if self.deaf {
            return;
        }
        let at = self.event();
        let cts = self
            .notes
            .remove(&txn)
            .map_or(0, |cts| cts.as_raw().load(Ordering::Relaxed));
        let txn = &mut self.txns[txn];
        (txn.answered, txn.cts) = (at, cts);
        if acknowledged {
            txn.end = End::Committed;
            self.acknowledged = self.acknowledged.max(cts);
        }
    }

    /// A transaction is about to be taken back.
    pub fn give_up(&mut self, txn: usize) {
        if !self.deaf {
            self.txns[txn].asked = self.event();
        }
    }

    /// A transaction was taken back.
    pub fn abort(&mut self, txn: usize) {
        if self.deaf {
            return;
        }
        let at = self.event();
        self.notes.remove(&txn);
        let txn = &mut self.txns[txn];
        (txn.answered, txn.end) = (at, End::Aborted);
    }

    /// The process has died: timestamps that were noted are taken over; transactions in progress are taken back, but
    /// those that a session has begun to leave, now or in a life before.
    pub fn died(&mut self) {
        self.deaf = true;
        for (txn, cts) in std::mem::take(&mut self.notes) {
            self.txns[txn].cts = cts.as_raw().load(Ordering::Relaxed);
        }
        let at = self.event();
        for (number, txn) in self.txns.iter_mut().enumerate().skip(self.settled) {
            if txn.end == End::Running && self.leaves.has(number) {
                txn.end = End::Left;
            } else if txn.end == End::Running {
                (txn.end, txn.answered) = (End::Aborted, at);
                if txn.asked == 0 {
                    txn.asked = at;
                }
            }
        }
    }

    /// A session begins to leave its transaction.
    pub fn leave(&mut self, mut leave: Leave) {
        if self.deaf {
            return;
        }
        self.note(leave.txn, 0, 0, What::Left);
        let txn = &self.txns[leave.txn];
        leave.done = (txn.ops.len(), txn.statements);
        self.leaves.begin(leave);
    }

    /// The answer to that: whether it is left.
    pub fn answer_leave(&mut self, token: u128, is_left: bool) {
        if self.deaf {
            return;
        }
        if let Some(txn) = self.leaves.answer(token, is_left) {
            self.txns[txn].end = End::Left;
        }
    }

    /// All that one transaction was left as before this life, the newest first: a session asks for it now, the only one
    /// in this life.
    pub fn ask_for_left(&mut self, pick: u64) -> Vec<Leave> {
        if self.deaf { Vec::new() } else { self.leaves.ask(pick) }
    }

    /// The engine has given a transaction to a session: whether it goes on. If not, its end had been asked for before a
    /// crash, which has taken that back: it is rolled back.
    ///
    /// # Errors
    /// It cannot be there.
    pub fn taken_up(&mut self, leave: &Leave) -> Result<bool, String> {
        if self.deaf {
            return Ok(false);
        }
        let txn = &mut self.txns[leave.txn];
        // A commit of nothing is not in the log.
        if leave.is_past() || txn.end == End::Committed && txn.cts != 0 {
            let past = self.describe(leave.txn);
            return Err(format!(
                "it was taken up or given up before, and is left again:\n  {past}"
            ));
        }
        let goes_on = txn.end == End::Left;
        if goes_on {
            txn.ops.truncate(leave.done.0);
            txn.statements = leave.done.1;
            (txn.end, txn.cts, txn.asked, txn.answered) = (End::Running, 0, 0, 0);
        }
        self.leaves.take(leave);
        Ok(goes_on)
    }

    /// The engine has no transaction of this token. `gives_up`: it gives up those of this life.
    ///
    /// # Errors
    /// It has to be there.
    pub fn not_there(&mut self, leave: &Leave, gives_up: bool) -> Result<(), String> {
        if self.deaf {
            return Ok(());
        }
        if leave.is_due(gives_up) {
            return Err(format!(
                "it was left, and is not there:\n  {}",
                self.describe(leave.txn)
            ));
        }
        self.leaves.miss(leave, gives_up);
        Ok(())
    }

    /// A transaction was not there by any token: it has been taken back, at any time since it was left.
    pub fn is_given_up(&mut self, txn: usize) {
        if self.deaf || self.txns[txn].end != End::Left {
            return;
        }
        let at = self.event();
        let txn = &mut self.txns[txn];
        let left = txn.ops.iter().rev().find(|op| matches!(op.what, What::Left));
        txn.asked = left.map_or(at, |op| op.at);
        (txn.answered, txn.end) = (at, End::Aborted);
    }

    /// A life is over: in order or not. `gives_up`: it gave up what no session asked for.
    pub fn passes_on(&mut self, in_order: bool, gives_up: bool) {
        self.leaves.pass_on(in_order, gives_up);
    }

    /// A life has recovered. `keeps_all`: from memory, with all that the one before had done.
    pub fn recovers(&mut self, keeps_all: bool) {
        if keeps_all {
            self.leaves.keep_all();
        }
    }

    /// Whether a session of this life has taken a transaction up that was left.
    pub fn is_any_taken(&self) -> bool {
        self.leaves.is_any_taken()
    }

    /// Whether the engine may have transactions that were left, by this life or before.
    pub fn is_any_left(&self) -> bool {
        self.leaves.is_any_open()
    }

    /// All transactions are settled but those from the first on that is left.
    pub fn settle_up_to_left(&mut self) {
        let open = self.txns.iter().position(|txn| txn.end == End::Left);
        self.settled = open.unwrap_or(self.txns.len());
    }

    /// All committed transactions that wrote, by timestamp.
    pub fn committed(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.txns.len())
            .filter(|t| self.txns[*t].end == End::Committed && self.txns[*t].cts != 0)
            .collect();
        all.sort_by_key(|t| self.txns[*t].cts);
        all
    }

    /// A transaction for people, in lines.
    pub fn describe(&self, number: usize) -> String {
        let txn = &self.txns[number];
        let level = match txn.level {
            Isolation::ReadCommitted => "read committed",
            Isolation::RepeatableRead => "repeatable read",
        };
        let (life, session, end) = (txn.life, txn.session, txn.end);
        let mut text = format!("T{number}, session {session} of life {life}, {level}, {end:?}");
        if txn.cts != 0 {
            text += &format!(", commit timestamp {}", txn.cts);
        }
        for op in &txn.ops {
            text += &format!("\n    event {}, snapshot {}: {}", op.at, op.snapshot, op.what);
        }
        text + &format!(
            "\n    end asked for at event {}, answered at {}",
            txn.asked, txn.answered
        )
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Read { key, saw } => write!(f, "read {key:?}: {}", show(*saw)),
            What::Scan {
                table,
                from,
                to,
                saw,
                color,
            } => {
                let how = color.map_or(String::new(), |c| format!(" by the index, color {c}"));
                write!(f, "scanned t{table}[{from}..{to}]{how}: {} rows", saw.len())
            }
            What::Lock { key, saw, .. } => write!(f, "locked {key:?}: {}", show(*saw)),
            What::Met { key, saw } => write!(f, "left {key:?} alone: {}", show(*saw)),
            What::Write { key, before, after } => write!(f, "wrote {key:?}: {} -> {}", show(*before), show(*after)),
            What::Wanted { key, saw } => write!(f, "wanted {key:?}, met {}", show(*saw)),
            What::Rekeyed { before, after } => write!(f, "rekeyed {} to {}", show(*before), show(*after)),
            What::Savepoint => write!(f, "savepoint"),
            What::RolledBack => write!(f, "back to the savepoint"),
            What::Left => write!(f, "is left to the next life"),
        }
    }
}

/// The indexed column of a row follows from its tag.
pub fn color(tag: Tag) -> i32 {
    (cenote_base::random::mix(tag ^ 0xC0_10) % 9) as i32
}
