//! Which threads are in the middle of an access: a mover has to know before it moves an extent.
//!
//! Each thread that uses a part has a line in it, and a count there that is odd while it is inside. A mover first makes
//! the extent's state say *frozen*, then waits until every line was seen outside once ([`Presence::quiesce`]): a thread
//! that comes later sees that it is frozen, and does not touch it. Between the count and the look at the state stands a
//! fence, which is [light](cenote_base::rt::barrier) here and heavy there. An access costs two plain stores to a line
//! of its own.
//!
//! A system may refuse the heavy fence. So each line says whether its thread's fences are light: where they are,
//! nothing moves then; full ones need no other.
//!
//! A process that is killed inside leaves an odd count: its lines are [given up](Presence::give_up) when it is known to
//! be gone. One that is stopped inside keeps extents from moving, and nothing else.

use super::layout::THREADS;
use cenote_base::rt::atomic::{AtomicU32, Ordering, fence};
use cenote_base::rt::barrier::{self, heavy, light};
use cenote_base::rt::seam::Seam;
use cenote_base::rt::{self, MAX_THREADS, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::{LINE, Line, Lines, Region, Words};
use std::sync::Arc;

/// Accesses between two that are counted, on average.
pub(super) const SAMPLE: u64 = 64;

/// The mark of the process that keeps the part.
pub(super) const KEEPER: u64 = 1;
/// Set in the marks of all others.
pub(super) const MARK: u64 = 2;

/// Words of a line: after its owner stand its count, and the count at which the next access is a sample.
const COUNT: usize = 1;
const SAMPLE_AT: usize = 2;

const _: () = assert!(KEEPER != 0 && KEEPER & MARK == 0);
// The process keeps a line's number, and 1, in 32 bits; a page has whole lines.
const _: () = assert!(THREADS < u32::MAX as usize && (THREADS * LINE).is_multiple_of(4096));
const _: () = assert!(SAMPLE > 0);

/// The lines of a part's threads, as this process uses them.
pub(super) struct Presence {
    /// The process that has each line, by its mark; 0: the line is free.
    owners: Words<LINE>,
    counts: Words<LINE>,
    /// 1 where the thread's fences are light, so that a mover needs a heavy one.
    lights: Words<LINE>,
    /// The line of each of this process's threads, and 1; 0: none yet.
    mine: Box<[AtomicU32]>,
    /// The same, as they are used.
    lines: Arc<Lines>,
    at: u64,
    mark: u64,
    registered: bool,
}

impl Presence {
    /// For a process of this mark. The lines that a former keeper left become free.
    pub(super) fn new(region: &Arc<Region>, at: u64, mark: u64) -> Self {
        assert!(mark == KEEPER || mark & MARK != 0, "{mark:#x} is no process's mark");
        let words = |field| Words::new(Arc::clone(region), at + field, THREADS);
        let presence = Self {
            owners: words(0),
            counts: words(8 * COUNT as u64),
            lights: words(24),
            mine: (0..MAX_THREADS).map(|_| AtomicU32::new(0)).collect(),
            lines: Arc::new(Lines::new(Arc::clone(region), MAX_THREADS)),
            at,
            mark,
            registered: !rt::simulated() && barrier::register(),
        };
        if mark == KEEPER {
            presence.give_up(|owner| owner == KEEPER);
        }
        presence
    }

    /// The calling thread is inside from here on, until it [leaves](Inside::leave). `None` if it has no line yet
    /// ([`Presence::join`]). Not to be nested.
    #[inline(always)]
    pub(super) fn enter<S: Seam>(&self, seam: S) -> Option<Inside<'_>> {
        Inside::enter(seam, &self.lines, self.registered)
    }

    /// What threads mark, where their fences are light.
    pub(super) fn light_lines(&self) -> Option<Arc<Lines>> {
        self.registered.then(|| Arc::clone(&self.lines))
    }

    /// Takes a line for the calling thread.
    ///
    /// # Errors
    /// [`Error::Full`].
    #[cold]
    pub(super) fn join(&self) -> Result<()> {
        for line in 0..THREADS {
            let owner = self.owners.get(line).expect("a line of the part");
            let is_taken = owner.load(Ordering::Relaxed) == 0
                && owner
                    .compare_exchange(0, self.mark, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
            if is_taken {
                let light = self.lights.get(line).expect("a line of the part");
                light.store(self.registered.into(), Ordering::Relaxed);
                // Seen by every mover before this thread is inside for the first time.
                fence(Ordering::SeqCst);
                let thread = rt::thread_slot();
                self.mine[thread].store(line as u32 + 1, Ordering::Relaxed);
                self.lines.set(thread, self.at + (line * LINE) as u64);
                return Ok(());
            }
        }
        Err(Error::Full(format!("{THREADS} threads use the part already")))
    }

    /// Waits until every thread was seen outside. Every thread that is inside then has seen what was set before.
    ///
    /// # Errors
    /// [`Error::Busy`] if one stays inside for longer than `timeout`: its process is stopped, or was killed and not
    /// given up yet; [`Error::Invalid`] if the system refuses this process what the fences of others rely on.
    pub(super) fn quiesce(&self, timeout: Nanos) -> Result<()> {
        self.check_fence(heavy())?;
        let until = rt::now().raw().saturating_add(timeout.raw());
        for line in 0..THREADS {
            let (owner, count) = (self.owners.get(line), self.counts.get(line));
            let (owner, count) = (owner.expect("a line"), count.expect("a line"));
            let seen = count.load(Ordering::Acquire);
            if seen & 1 == 0 || owner.load(Ordering::Acquire) == 0 {
                continue;
            }
            while count.load(Ordering::Acquire) == seen && owner.load(Ordering::Acquire) != 0 {
                if rt::now().raw() > until {
                    return Err(Error::Busy("a process is stopped in the middle of an access".into()));
                }
                rt::yield_now();
            }
        }
        Ok(())
    }

    /// Without a heavy fence nothing can be known of threads with light ones. Full ones need none.
    fn check_fence(&self, heavy: std::io::Result<()>) -> Result<()> {
        let Err(error) = heavy else { return Ok(()) };
        let is_set = |words: &Words<LINE>, line| words.get(line).is_some_and(|word| word.load(Ordering::Acquire) != 0);
        match (0..THREADS).any(|line| is_set(&self.owners, line) && is_set(&self.lights, line)) {
            false => Ok(()),
            true => Err(Error::Invalid(format!(
                "extents cannot move: this process may not use membarrier(2) ({error}), and others that use the part rely on it"
            ))),
        }
    }

    /// The lines of processes that are gone become free.
    pub(super) fn give_up(&self, is_gone: impl Fn(u64) -> bool) {
        for line in 0..THREADS {
            let owner = self
                .owners
                .get(line)
                .expect("a line of the part")
                .load(Ordering::Acquire);
            if owner != 0 && is_gone(owner) {
                self.give_up_line(line);
            }
        }
    }

    fn give_up_line(&self, line: usize) {
        let count = self.counts.get(line).expect("a line of the part");
        count.store(count.load(Ordering::Relaxed).wrapping_add(1) & !1, Ordering::Relaxed);
        self.owners
            .get(line)
            .expect("a line of the part")
            .store(0, Ordering::Release);
    }
}

/// A thread that is inside.
pub(super) struct Inside<'a> {
    line: Line<'a>,
    /// Odd.
    now: u64,
}

impl<'a> Inside<'a> {
    /// As [`Presence::enter`].
    #[inline(always)]
    pub(super) fn enter<S: Seam>(seam: S, lines: &'a Lines, registered: bool) -> Option<Self> {
        let line = lines.get(seam.slot())?;
        let count = line.word::<COUNT>();
        let now = count.load_by(seam, Ordering::Relaxed) | 1;
        count.store_by(seam, now, Ordering::Relaxed);
        light(registered);
        Some(Self { line, now })
    }

    /// It is outside from here on; whether its access is to be counted.
    #[inline(always)]
    pub(super) fn leave<S: Seam>(self, seam: S) -> bool {
        let after = self.now.wrapping_add(1);
        self.line.word::<COUNT>().store_by(seam, after, Ordering::Release);
        let is_due = after >= self.line.word::<SAMPLE_AT>().load_by(seam, Ordering::Relaxed);
        if is_due {
            self.put_off(after);
        }
        is_due
    }

    /// Half to one and a half of it, so that what comes at regular distances is not counted always or never.
    #[cold]
    #[inline(never)]
    fn put_off(&self, after: u64) {
        let next = SAMPLE + rt::random() % (2 * SAMPLE);
        self.line
            .word::<SAMPLE_AT>()
            .store(after.wrapping_add(next), Ordering::Relaxed);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mine = self
            .mine
            .iter()
            .filter_map(|line| line.load(Ordering::Relaxed).checked_sub(1));
        mine.for_each(|line| self.give_up_line(line as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Part, PartOptions};
    use super::*;
    use crate::extent::EXTENT;

    fn part() -> Part {
        let options = PartOptions {
            space: 1,
            part: 1,
            tenant: 0,
            bytes: 5 * EXTENT,
            movable: true,
            region: Default::default(),
        };
        Part::dram(&options).expect("memory")
    }

    /// A refusal was passed over: extents moved while others were in the middle of an access to them, whose writes were
    /// lost.
    #[test]
    fn nothing_moves_where_the_heavy_fence_is_refused_and_others_rely_on_it() {
        let part = part();
        let presence = &part.moving().expect("it moves").presence;
        let refused = || Err(std::io::ErrorKind::PermissionDenied.into());
        presence.check_fence(refused()).expect("no thread has a line");
        presence.join().expect("a line");
        let line = presence.mine[rt::thread_slot()].load(Ordering::Relaxed) - 1;
        let light = presence.lights.get(line as usize).expect("a line");
        assert_eq!(light.load(Ordering::Relaxed), u64::from(presence.registered));
        light.store(1, Ordering::Relaxed);
        let error = presence.check_fence(refused()).expect_err("it relies on it");
        assert!(
            matches!(&error, Error::Invalid(text) if text.contains("membarrier")),
            "{error}"
        );
        presence.check_fence(Ok(())).expect("it was passed");
        light.store(0, Ordering::Relaxed);
        presence.check_fence(refused()).expect("its fences are full ones");
    }
}
