//! A reader of a database that is on storage nodes: it has nothing of its own, and sees pages as of one *moment* of the
//! replicated log. What has changed since moves it on (PolarDB Serverless, sections 3.2 and 3.3, without replay).
//!
//! ```text
//!  storage node ── which pages changed since my moment ──▶ Changes
//!                                                            │ begin: no page is read any more
//!                                                            │ frames of the pages that changed are dropped
//!                                                            ▼ end: the log ends at the new moment
//!  miss ── page as of the moment ──▶ storage node ── page, or: only as of a later position ──▶ wait for that moment
//! ```
//!
//! A page that is read while a move is under way, or of which nodes keep no state as old as the moment, is
//! [`Error::Ahead`]: its thread lets go of the frame, waits until the move is over and asks again
//! ([`Follower::wait_for`]).
//!
//! Invariants:
//! - a page in a frame is as of the moment: no later change of it is known to a move that is over;
//! - a thread enters the page in the pool's hash before it asks for the moment, and a move is announced before its pages
//!   are looked for there: so one of the two meets the other;
//! - nothing of a reader is written: not to the log, not to pages; its control record stays in memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, Condvar, Mutex, Nanos};
use cenote_base::{Error, Lsn, PageId, Result};

use crate::asked::AskedPages;
use crate::nodes::{
    ASKED_MAX, Anew, Changes, FollowRequest, LogEnd, Moment, OwnerRecord, PageAnswer, StorageNodes, Taken,
};

/// How long a page waits for the moment as of which nodes have it.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// How long it waits for anything where it is about to end.
const HURRIED: Nanos = Nanos::from_millis(10);

/// See the module. To the log and to pages it is the storage nodes.
#[derive(Debug)]
pub struct Follower {
    nodes: Arc<dyn StorageNodes>,
    database: u128,
    reader: u128,
    name: String,
    state: Mutex<State>,
    moved: Condvar,
    /// The oldest snapshot in use.
    oldest: AtomicU64,
    /// See [`Follower::hurry`].
    is_hurried: AtomicBool,
    /// What the next question says that was asked for.
    asked: AskedPages,
}

#[derive(Debug, Default)]
struct State {
    at: Moment,
    /// Which start has the database as of the moment, or of a later one.
    epoch: u64,
    /// Where a move leads that is under way.
    to: Option<Moment>,
    touched: Touched,
    moves: u64,
    /// Why it cannot go on.
    failed: Option<Error>,
}

/// What moves have changed since [`Follower::take_touched`] was called last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Everything may have changed.
    pub all: bool,
    /// The spaces of the pages that did.
    pub spaces: BTreeSet<u32>,
}

impl Touched {
    /// All may have changed.
    pub fn everything() -> Touched {
        Touched {
            all: true,
            ..Touched::default()
        }
    }

    /// Whether a space may have changed.
    pub fn has(&self, space: u32) -> bool {
        self.all || self.spaces.contains(&space)
    }
}

/// What a reader knows of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The moment of its pages.
    pub at: Moment,
    /// Moves so far.
    pub moves: u64,
}

impl Follower {
    /// Begins where the nodes are.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if there is no database; [`Error::Timeout`] if no node answers.
    pub(crate) fn begin(nodes: Arc<dyn StorageNodes>, name: &str) -> Result<(Follower, Anew)> {
        let mut follower = Follower {
            nodes,
            database: 0,
            reader: rt::random_u128().max(1),
            name: name.to_owned(),
            state: Mutex::default(),
            moved: Condvar::default(),
            oldest: AtomicU64::new(0),
            is_hurried: AtomicBool::new(false),
            asked: AskedPages::new(ASKED_MAX),
        };
        let changes = follower.ask(None, Lsn::ZERO, Nanos::ZERO)?;
        follower.database = changes.database;
        let anew = changes.anew.ok_or_else(|| {
            Error::corrupt(format!(
                "{} answered a reader's first question with changes",
                follower.nodes.name()
            ))
        })?;
        *follower.state.lock() = State {
            at: changes.to,
            epoch: changes.epoch,
            ..State::default()
        };
        follower.set_oldest(changes.to.end);
        Ok((follower, anew))
    }

    fn ask(&self, since: Option<Moment>, oldest: Lsn, wait: Nanos) -> Result<Changes> {
        let request = FollowRequest {
            reader: self.reader,
            name: self.name.clone(),
            since,
            oldest,
            wait,
            asked: self.asked.take(),
        };
        self.nodes.follow(&request)
    }

    /// Asks what has changed; waits a while for something.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no node answers; [`Error::Corrupt`] for an answer that leads back.
    pub fn poll(&self, wait: Nanos) -> Result<Changes> {
        self.check()?;
        let at = self.place().at;
        let wait = self.hurried(wait);
        let changes = self.ask(Some(at), Lsn::from_raw(self.oldest.load(Ordering::Acquire)), wait)?;
        self.check_database(changes.database)?;
        let to = changes.to;
        match to.entry >= at.entry && to.end >= at.end {
            true => Ok(changes),
            false => Err(Error::corrupt(format!(
                "a storage node leads a reader from {at:?} back to {to:?}"
            ))),
        }
    }

    /// The nodes were emptied, and have another database: nothing here is of it.
    fn check_database(&self, found: u128) -> Result<()> {
        if found == self.database {
            return Ok(());
        }
        let other = Error::Mismatch(format!(
            "{} have database {found:032x} now, and this reader is of {:032x}: start it anew",
            self.nodes.name(),
            self.database
        ));
        self.fail(&other);
        Err(other)
    }

    /// Where the log ends, at least, after all that was acknowledged before the call.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Mismatch`] if that is another database's.
    pub fn newest_end(&self) -> Result<Lsn> {
        let newest = self.nodes.newest()?;
        self.check_database(newest.database).map(|()| newest.end)
    }

    /// The node that it follows lags: it asks another one from here on.
    pub fn leave_node(&self) {
        self.nodes.leave_followed();
    }

    /// Pages were asked for that remote memory may have: the server that fills it will hear.
    pub fn note_asked(&self, pages: &[PageId]) {
        self.asked.note(pages);
    }

    /// Says which snapshot is the oldest in use.
    pub fn set_oldest(&self, oldest: Lsn) {
        self.oldest.store(oldest.raw(), Ordering::Release);
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        place_of(&self.state.lock())
    }

    /// Threads that follow are about to end, or not after all: from here on they wait for nothing for long.
    pub fn hurry(&self, is_hurried: bool) {
        self.is_hurried.store(is_hurried, Ordering::Release);
        self.moved.notify_all();
    }

    fn hurried(&self, wait: Nanos) -> Nanos {
        match self.is_hurried.load(Ordering::Acquire) {
            true => wait.min(HURRIED),
            false => wait,
        }
    }

    /// Lets time pass, unless its threads are about to end.
    pub fn pause(&self, time: Nanos) {
        let until = rt::now() + time;
        let mut state = self.state.lock();
        while rt::now() < until && !self.is_hurried.load(Ordering::Acquire) {
            state = self.moved.wait_timeout(state, until.since(rt::now())).0;
        }
        drop(state);
        if self.is_hurried.load(Ordering::Acquire) {
            rt::sleep(Nanos::from_millis(1));
        }
    }

    /// Waits a while until there were more moves than `known`.
    pub fn wait_moved(&self, known: u64, wait: Nanos) -> Place {
        let wait = self.hurried(wait);
        let state = self.state.lock();
        match state.moves > known {
            true => place_of(&state),
            false => place_of(&self.moved.wait_timeout(state, wait).0),
        }
    }

    /// Where it is, and what has changed up to there since this was asked last: both of one moment.
    pub fn take_touched(&self) -> (Place, Touched) {
        let mut state = self.state.lock();
        (place_of(&state), std::mem::take(&mut state.touched))
    }

    /// These count as changed by the next [`Follower::take_touched`].
    pub fn touch(&self, touched: Touched) {
        let mut state = self.state.lock();
        state.touched.all |= touched.all;
        state.touched.spaces.extend(touched.spaces);
    }

    /// Waits until pages can be read as of `position` at least.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn wait_for(&self, position: Lsn) -> Result<()> {
        let until = rt::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.to.is_some() || state.at.end < position {
            if let Some(why) = &state.failed {
                return Err(why.clone());
            }
            let left = until.since(rt::now());
            if left == Nanos::ZERO {
                return Err(Error::Timeout(format!(
                    "this reader is at position {} of the log and waits for {position}, to which {} do not lead it",
                    state.at.end,
                    self.nodes.name()
                )));
            }
            state = self.moved.wait_timeout(state, left).0;
        }
        Ok(())
    }

    /// Whether pages can be read as of `position`.
    pub fn is_at(&self, position: Lsn) -> bool {
        let state = self.state.lock();
        state.to.is_none() && state.at.end >= position
    }

    /// From here on no page is read, until [`Follower::end_move`].
    pub(crate) fn begin_move(&self, to: Moment) {
        let mut state = self.state.lock();
        assert!(state.to.is_none(), "one move at a time");
        assert!(to >= state.at, "a reader is not led back: {to:?} after {:?}", state.at);
        state.to = Some(to);
    }

    /// What has changed has left its frames.
    pub(crate) fn end_move(&self, changes: &Changes) {
        let mut state = self.state.lock();
        let to = state.to.take();
        assert_eq!(to, Some(changes.to), "the move ends that began");
        (state.at, state.epoch) = (changes.to, changes.epoch);
        state.moves += 1;
        state.touched.all |= changes.anew.is_some();
        state.touched.spaces.extend(changes.pages.iter().map(|page| page.space));
        state
            .touched
            .spaces
            .extend(changes.spaces.iter().map(|(space, _)| space));
        drop(state);
        self.moved.notify_all();
    }

    /// It cannot go on: `why`.
    pub fn fail(&self, why: &Error) {
        self.state.lock().failed.get_or_insert_with(|| why.clone());
        self.moved.notify_all();
    }

    /// Whether it follows still.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<()> {
        self.state.lock().failed.clone().map_or(Ok(()), Err)
    }

    /// The moment as of which pages are read.
    ///
    /// # Errors
    /// [`Error::Ahead`] while a move is under way; why it cannot go on.
    pub fn readable(&self) -> Result<Moment> {
        self.readable_of().map(|(at, _)| at)
    }

    /// The same, and which start had the database then, or later: none that follows has changed anything up to there.
    ///
    /// # Errors
    /// As of [`Follower::readable`].
    pub fn readable_of(&self) -> Result<(Moment, u64)> {
        let state = self.state.lock();
        if let Some(why) = &state.failed {
            return Err(why.clone());
        }
        match state.to {
            Some(to) if !planted(Fault::MoveUnseen) => Err(Error::Ahead(to.end)),
            _ => Ok((state.at, state.epoch)),
        }
    }
}

fn place_of(state: &State) -> Place {
    Place {
        at: state.at,
        moves: state.moves,
    }
}

fn refused(what: &str) -> Error {
    Error::Invalid(format!("this is a reader of the database: it does not {what}"))
}

impl StorageNodes for Follower {
    fn name(&self) -> String {
        self.nodes.name()
    }

    fn owner(&self) -> Result<OwnerRecord> {
        self.nodes.owner()
    }

    fn take(&self, _: u64, _: &[u8]) -> Result<Taken> {
        Err(refused("take it"))
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn begin(&self, _: &[u8], _: Lsn) -> Result<()> {
        Err(refused("make one"))
    }

    /// It stays in memory.
    fn set_control(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn append(&self, _: Lsn, _: &[u8], _: LogEnd) -> Result<()> {
        Err(refused("write its log"))
    }

    fn read_log(&self, at: Lsn, buffer: &mut [u8]) -> Result<usize> {
        self.nodes.read_log(at, buffer)
    }

    /// As of the moment, whatever position is named.
    fn read_pages(&self, pages: &[(PageId, Lsn)]) -> Vec<PageAnswer> {
        match self.readable() {
            Ok(at) => {
                let ids: Vec<PageId> = pages.iter().map(|(id, _)| *id).collect();
                self.nodes.read_pages_at(at, &ids)
            }
            Err(moving) => pages.iter().map(|_| Err(moving.clone())).collect(),
        }
    }

    fn make_space(&self, _: u32) -> Result<()> {
        Err(refused("make spaces"))
    }

    fn drop_space(&self, _: u32) -> Result<()> {
        Err(refused("drop spaces"))
    }

    fn is_full(&self) -> bool {
        false
    }
}
