//! Keeps a holder's memory mirrored: finds a mirror, fills it, says when it is whole, and finds another when it is
//! lost.
//!
//! ```text
//!   before_making ── the book: the mirror is not whole
//!   begin ────────── the whole mirror that there is, attached before anything is flushed; else the book: it is lost
//!   each turn ────── ask which is the mirror ─▶ none: seek ─▶ another than is attached: detach ─▶ attach ─▶ fill ─▶ the book: it is whole
//! ```
//!
//! Invariant: **the book knows first**. It says that a mirror is whole only after that is so, and copying ends only
//! after it says that it is not whole, or not the mirror. So no client has to wait: while the manager is away, lines
//! are copied as before.
//!
//! A mirror of this machine is mapped. One that is not there is *lent*: its node registers it with the fabric for this
//! holder alone ([`reach`]), and this holder writes to it by one-sided verbs. When that way is lost, fences wait until
//! the book says that the mirror is void, or for two leases.
//!
//! A mapped mirror that a former process left whole is whole when it is attached: what that process flushed is in it,
//! and what it did not flush is promised to no client. It is filled once more all the same, since a copy may have been
//! cut off. A mirror on another machine may lack what that process had written back in order and not fenced, which this
//! start finds in its own memory and goes on from. So unless that process stopped in order it is void first, and filled
//! from its beginning.

mod reach;

use crate::grant_table::GrantId;
use crate::session::{ManagerChannel, unexpected};
use crate::wire::{MirrorRequest, MirrorView, Reply, Request};
use cenote_base::rt::atomic::{AtomicBool, Ordering};
use cenote_base::rt::{self, Event, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::{MirrorKeeper, Region};
use core::fmt;
pub(crate) use reach::{Cards, way_to};
use reach::{Reach, Reached};
use std::sync::{Arc, Weak};

/// How long an answer is waited for: a node may have to make a file for it.
const TIMEOUT: Nanos = Nanos::from_secs(15);

/// How a grant is kept mirrored.
pub(crate) struct MirrorOptions {
    /// Between two looks.
    pub(crate) every: Nanos,
    /// How long fences wait when a mirror on another machine is lost, until the manager knows.
    pub(crate) patience: Nanos,
    /// The way to other machines.
    pub(crate) cards: Arc<Cards>,
    /// The manager says that this is not the holder, or the keeper, any more.
    pub(crate) on_revoked: Box<dyn Fn() + Send + Sync>,
}

/// The ways to the manager. Those that ask over one wait for each other.
#[derive(Clone)]
pub(crate) struct Lines {
    /// Of what the manager answers by itself.
    pub(crate) quick: Arc<ManagerChannel>,
    /// Of what it asks a memory node for.
    pub(crate) slow: Arc<ManagerChannel>,
}

impl Lines {
    /// One for all.
    pub(crate) fn one(line: &Arc<ManagerChannel>) -> Self {
        let (quick, slow) = (Arc::clone(line), Arc::clone(line));
        Self { quick, slow }
    }

    fn of(&self, what: &MirrorRequest) -> &ManagerChannel {
        match what {
            MirrorRequest::Seek | MirrorRequest::Lend { .. } | MirrorRequest::Unlend(_) => &self.slow,
            _ => &self.quick,
        }
    }
}

/// See the module.
pub(crate) struct GrantMirror {
    lines: Lines,
    grant: GrantId,
    epoch: u64,
    options: MirrorOptions,
    stop: Arc<Event>,
    /// Rings when there is something to do before the next turn.
    bell: Arc<Event>,
    reach: Reach,
    /// What the book said last, until the region is there.
    found: Mutex<Option<MirrorView>>,
    thread: Mutex<Option<rt::JoinHandle<()>>>,
    /// A region is mirrored, or was: what `found` says is spent.
    begun: AtomicBool,
    this: Weak<GrantMirror>,
}

impl fmt::Debug for GrantMirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the mirror of grant {}", self.grant)
    }
}

/// What is attached.
struct Attached {
    grant: GrantId,
    reached: Reached,
    /// All lines before it were copied since.
    filled_to: u64,
    /// All lines were.
    filled: bool,
}

impl Attached {
    /// Why it cannot be gone on with, if so.
    fn useless(&self, region: &Region) -> Option<String> {
        self.reached
            .lost()
            .or_else(|| region.has_mirror_failed().then(|| "it has no room to grow".into()))
    }

    fn new(grant: GrantId, reached: Reached) -> Self {
        Self {
            grant,
            reached,
            filled_to: 0,
            filled: false,
        }
    }
}

impl GrantMirror {
    pub(crate) fn new(
        lines: Lines,
        (grant, epoch): (GrantId, u64),
        options: MirrorOptions,
        stop: Arc<Event>,
        found: Option<MirrorView>,
    ) -> Arc<Self> {
        let bell = Arc::<Event>::default();
        Arc::new_cyclic(|this| Self {
            lines,
            grant,
            epoch,
            stop,
            reach: Reach::new(options.patience, Arc::clone(&bell), Arc::clone(&options.cards)),
            options,
            bell,
            found: Mutex::new(found),
            thread: Mutex::default(),
            begun: AtomicBool::new(false),
            this: Weak::clone(this),
        })
    }

    /// Waits for the thread; it was told to stop.
    pub(crate) fn end(&self) {
        self.stop.set();
        self.bell.set();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }

    /// A part is about to be used by a keeper that has just begun: what a mirror of before lacks is not known. That
    /// goes, and another is filled: a word of the former process about it, which may be on its way still, says nothing
    /// of the new one.
    ///
    /// # Errors
    /// Those of the way to the manager; [`Error::Revoked`].
    pub(crate) fn take_up(&self) -> Result<()> {
        match self.ask(MirrorRequest::Look)? {
            Some(view) => self.ask(MirrorRequest::Lost(view.grant)).map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn ask(&self, what: MirrorRequest) -> Result<Option<MirrorView>> {
        let (grant, epoch) = (self.grant, self.epoch);
        let line = self.lines.of(&what);
        match line.ask(&Request::Mirror { grant, epoch, what }, TIMEOUT)? {
            Reply::Mirror(view) => Ok(view),
            _ => Err(unexpected()),
        }
    }

    /// The mirror that counts as whole, for a region of which nothing was changed yet.
    fn resume(&self, region: &Region, view: &MirrorView) -> Result<Attached> {
        let reached = self.reach.resume(&|what| self.ask(what), region, view)?;
        region.attach_mirror(reached.side())?;
        Ok(Attached::new(view.grant, reached))
    }

    /// The mirror that counts as whole cannot be gone on with, and misses what is flushed from here on. Where its node
    /// is only away it keeps its place, and is filled anew when the node is there.
    fn give_up(&self, mirror: GrantId, why: &Error) -> Result<()> {
        let is_away = matches!(why, Error::Lost(_) | Error::Timeout(_));
        if !is_away {
            return self.ask(MirrorRequest::Lost(mirror)).map(drop);
        }
        // It may be the mirror no more, which is why.
        match self.ask(MirrorRequest::Look)?.filter(|view| view.grant == mirror) {
            Some(_) => self.ask(MirrorRequest::Void(mirror)).map(drop),
            None => Ok(()),
        }
    }

    fn keep(&self, region: &Weak<Region>, mut attached: Option<Attached>) {
        let mut said = String::new();
        loop {
            let Some(region) = region.upgrade() else { return };
            match self.turn(&region, &mut attached) {
                Ok(()) => said.clear(),
                Err(Error::Revoked(_)) => return (self.options.on_revoked)(),
                Err(error) if error.to_string() != said => {
                    said = error.to_string();
                    eprintln!(
                        "cenote: the mirror of grant {}: {said}; going on without, and trying again",
                        self.grant
                    );
                }
                Err(_) => {}
            }
            drop(region);
            if self.bell.wait_timeout(self.options.every) {
                self.bell.reset();
            }
            if self.stop.is_set() {
                return;
            }
        }
    }

    fn turn(&self, region: &Region, attached: &mut Option<Attached>) -> Result<()> {
        let mut view = self.ask(MirrorRequest::Look)?;
        if attached
            .as_ref()
            .is_some_and(|a| view.as_ref().is_none_or(|view| view.grant != a.grant))
        {
            detach(region, attached);
        }
        if let Some((grant, why)) = attached.as_ref().and_then(|a| Some((a.grant, a.useless(region)?))) {
            eprintln!("cenote: the mirror of grant {}: {why}", self.grant);
            // A process that maps what the grant table calls lost is ended: it is void first, then left, then lost.
            self.ask(MirrorRequest::Void(grant))?;
            detach(region, attached);
            self.ask(MirrorRequest::Lost(grant))?;
            view = None;
        }
        let view = match view {
            // One that is to be filled and is not attached: its node has to be there.
            Some(view) if view.whole || attached.is_some() => view,
            _ => self.ask(MirrorRequest::Seek)?.ok_or_else(unexpected)?,
        };
        if attached.is_none() {
            *attached = Some(self.attach(region, &view)?);
        }
        match attached {
            Some(attached) => self.complete(region, attached, &view),
            None => Ok(()),
        }
    }

    /// One that is to be filled from its beginning.
    fn attach(&self, region: &Region, view: &MirrorView) -> Result<Attached> {
        if view.whole {
            // Another holder's, which this one could not attach when it began: it has missed what was flushed since.
            self.ask(MirrorRequest::Void(view.grant))?;
        }
        let attach = || {
            let reached = self.reach.anew(&|what| self.ask(what), region, view)?;
            region.attach_mirror(reached.side())?;
            Ok(reached)
        };
        match attach() {
            Ok(reached) => Ok(Attached::new(view.grant, reached)),
            Err(error) => {
                self.ask(MirrorRequest::Lost(view.grant))?;
                Err(error)
            }
        }
    }

    fn complete(&self, region: &Region, attached: &mut Attached, view: &MirrorView) -> Result<()> {
        while !attached.filled {
            let next = region.fill_mirror_step(attached.filled_to);
            attached.filled = next == attached.filled_to;
            attached.filled_to = next;
            if attached.reached.lost().is_some() {
                // The next turn says so.
                self.bell.set();
                return Ok(());
            }
            if self.stop.is_set() {
                return Ok(());
            }
            attached.reached.pace();
        }
        if !view.whole {
            attached.reached.set_whole();
            if attached.reached.lost().is_some() {
                self.bell.set();
                return Ok(());
            }
            self.ask(MirrorRequest::Whole(attached.grant))?;
            eprintln!(
                "cenote: grant {} is mirrored in pod {} (grant {})",
                self.grant, view.pod, view.grant
            );
        }
        Ok(())
    }
}

/// The book says that it is not whole, or not the mirror.
fn detach(region: &Region, attached: &mut Option<Attached>) {
    if let Some(attached) = attached {
        // Before the locks are taken that detaching needs: a thread that holds one may wait in a fence.
        attached.reached.give_up();
    }
    region.detach_mirror();
    *attached = None;
}

/// What the mirror holds is known once, when the grant is opened.
fn begun_before() -> Error {
    Error::Invalid("a mirrored grant is used as a region once: release it, and open it again".into())
}

impl MirrorKeeper for GrantMirror {
    fn before_making(&self) -> Result<()> {
        if self.begun.load(Ordering::Acquire) {
            return Err(begun_before());
        }
        let mut found = self.found.lock();
        if let Some(view) = found.as_mut().filter(|view| view.whole) {
            self.ask(MirrorRequest::Void(view.grant))?;
            view.whole = false;
        }
        Ok(())
    }

    fn begin(&self, region: &Arc<Region>) -> Result<()> {
        if self.begun.swap(true, Ordering::AcqRel) {
            return Err(begun_before());
        }
        region.expect_mirror();
        let mut whole = self.found.lock().take().filter(|view| view.whole);
        if let Some(view) = whole.take_if(|view| reach::may_lack(view, region)) {
            self.ask(MirrorRequest::Void(view.grant))?;
        }
        let attached = match whole.map(|view| (self.resume(region, &view), view)) {
            Some((Ok(attached), _)) => Some(attached),
            Some((Err(error), view)) => {
                eprintln!("cenote: the mirror of grant {}: {error}; going on without", self.grant);
                self.give_up(view.grant, &error)?;
                None
            }
            None => None,
        };
        let (region, this) = (Arc::downgrade(region), self.this.upgrade().ok_or_else(unexpected)?);
        *self.thread.lock() = Some(rt::spawn("pool mirror", move || this.keep(&region, attached)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
