//! Works that were posted together, cut into pieces that a slot can hold: which are to be sent, which are under way,
//! which are done.
//!
//! ```text
//!   works:   0 ───────────  1 ──  2 (fenced) ──
//!   pieces:  [0..16320][16320..] [1]   │        [2]      cursor: what has not been sent
//!                                      └ not before all others are done; if one failed, never
//! ```
//!
//! A work's first error is its result, and ends it: pieces that were not sent are not.

use super::client::Peer;
use cenote_base::rt::{Event, Mutex};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::{Op, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A part of a work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The work's place in its batch.
    pub work: usize,
    /// Where in the work it begins.
    pub from: usize,
    /// Bytes.
    pub len: usize,
}

/// See the module.
pub struct Batch {
    /// The node it goes to.
    pub peer: Arc<Peer>,
    /// Set when the batch is done, or when its waiter is to look after the endpoint.
    pub event: Arc<Event>,
    /// A thread sleeps on the event, or will.
    pub slept: AtomicBool,
    done: AtomicBool,
    body: Mutex<Body>,
}

/// What changes.
#[derive(Default)]
pub struct Body {
    works: Vec<Work>,
    progress: Vec<Progress>,
    /// The first work that is not wholly sent.
    cursor: usize,
    /// Pieces under way.
    open: usize,
    finished: usize,
    failed: Option<Error>,
    /// The next piece waits for the provider's name of its key.
    key_wanted: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    sent: usize,
    open: usize,
    failed: bool,
}

/// What is to be sent next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A piece. `fenced`: it has to come after what is in the same message.
    Piece(Piece, bool),
    /// A fence: when what is under way is done.
    Later,
    /// All has been sent.
    Nothing,
}

impl Batch {
    /// Works as they were posted; those that make no sense have failed already.
    pub fn new(peer: Arc<Peer>, works: Vec<Work>) -> Self {
        let progress = vec![Progress::default(); works.len()];
        let body = Body {
            works,
            progress,
            ..Body::default()
        };
        Self {
            peer,
            event: Arc::new(Event::new()),
            slept: AtomicBool::new(false),
            done: AtomicBool::new(false),
            body: Mutex::new(body),
        }
    }

    /// Whether all works are done.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// Changes it; then wakes the waiting thread if all is done. Says whether it has just become so.
    pub fn update(&self, change: impl FnOnce(&mut Body)) -> bool {
        let mut body = self.body.lock();
        change(&mut body);
        let done = body.finished == body.works.len();
        let newly = done && !self.done.swap(done, Ordering::SeqCst);
        drop(body);
        if newly && self.slept.load(Ordering::SeqCst) {
            self.event.set();
        }
        newly
    }

    /// The works, once done.
    pub fn take(&self) -> Vec<Work> {
        core::mem::take(&mut self.body.lock().works)
    }

    /// How many works.
    pub fn len(&self) -> usize {
        self.body.lock().progress.len()
    }
}

impl Body {
    /// The work of a piece.
    pub fn work(&self, piece: Piece) -> &Work {
        &self.works[piece.work]
    }

    /// Whether something is under way.
    pub fn is_open(&self) -> bool {
        self.open > 0
    }

    /// What comes next, in pieces of at most `largest` bytes; `packed`: pieces that the message under construction has
    /// already, counted as sent; `together`: the node heeds fences inside of a message.
    pub fn next(&mut self, largest: usize, packed: usize, together: bool) -> Next {
        loop {
            let Some(work) = self.works.get(self.cursor) else {
                return Next::Nothing;
            };
            let progress = self.progress[self.cursor];
            let (total, fenced) = (work.op.bytes() as usize, work.fenced);
            if progress.failed || (progress.sent > 0 && progress.sent == total) {
                self.cursor += 1;
                continue;
            }
            if progress.sent == 0 {
                if let Err(error) = work.check() {
                    self.end(self.cursor, error);
                    continue;
                }
                if fenced && let Some(error) = self.failed.clone() {
                    self.end(self.cursor, error);
                    continue;
                }
            }
            let begins_fenced = fenced && progress.sent == 0;
            let whole = total <= largest && together;
            if begins_fenced && (self.open > packed || packed > 0 && !whole) {
                return Next::Later;
            }
            let piece = cut(work, self.cursor, progress.sent, largest);
            return Next::Piece(piece, begins_fenced && packed > 0);
        }
    }

    /// A piece is under way.
    pub fn sent(&mut self, piece: Piece) {
        let progress = &mut self.progress[piece.work];
        progress.sent = piece.from + piece.len;
        progress.open += 1;
        self.open += 1;
    }

    /// A piece has come back. Of a read, `bytes` are what it brought.
    pub fn came(&mut self, piece: Piece, result: Result<u64>, bytes: &[u8]) {
        self.open -= 1;
        self.progress[piece.work].open -= 1;
        let work = &mut self.works[piece.work];
        match result {
            Ok(value) => {
                if let Op::Read(into) = &mut work.op {
                    into[piece.from..piece.from + piece.len].copy_from_slice(bytes);
                }
                if !self.progress[piece.work].failed {
                    work.result = Ok(if work.op.is_atomic() { value } else { work.op.bytes() });
                }
            }
            Err(error) => self.fail(piece.work, error),
        }
        self.settle(piece.work);
    }

    /// What has not been sent shall not be.
    pub fn fail_unsent(&mut self, error: &Error) {
        for index in self.cursor..self.works.len() {
            let progress = self.progress[index];
            let whole = progress.sent == self.works[index].op.bytes() as usize && progress.sent > 0;
            if !whole && !progress.failed {
                self.end(index, error.clone());
            }
        }
        self.cursor = self.works.len();
    }

    /// The first error of a work.
    pub fn failure(&self) -> Option<Error> {
        self.failed.clone()
    }

    /// Whether the next piece waits for the provider's name of its key; from now on it does or does not.
    pub fn is_waiting_for_key(&mut self, from_now: bool) -> bool {
        core::mem::replace(&mut self.key_wanted, from_now)
    }

    /// The work that would come next fails.
    pub fn fail_next(&mut self, error: &Error) {
        if matches!(self.next(usize::MAX, 0, false), Next::Piece(..)) {
            self.end(self.cursor, error.clone());
        }
    }

    fn fail(&mut self, index: usize, error: Error) {
        let progress = &mut self.progress[index];
        if !progress.failed {
            progress.failed = true;
            self.failed.get_or_insert_with(|| error.clone());
            self.works[index].result = Err(error);
        }
    }

    /// A work fails without having been sent, or not wholly.
    fn end(&mut self, index: usize, error: Error) {
        self.fail(index, error);
        self.settle(index);
    }

    /// Counts a work that has nothing under way any more, and nothing to be sent.
    fn settle(&mut self, index: usize) {
        let progress = self.progress[index];
        let sent = progress.sent == self.works[index].op.bytes() as usize;
        if progress.open == 0 && (sent || progress.failed) {
            self.finished += 1;
        }
    }
}

/// The next piece: to the end, or to a multiple of 8 of the remote memory, so that no aligned word is cut.
fn cut(work: &Work, index: usize, from: usize, largest: usize) -> Piece {
    let left = work.op.bytes() as usize - from;
    let begins = (work.memory.base + work.at) as usize % 8;
    let len = if left <= largest {
        left
    } else {
        largest - (begins + from) % 8
    };
    Piece { work: index, from, len }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fabric::rdma::{Key, Remote};

    fn memory() -> Remote {
        Remote {
            key: Key(1),
            base: 0,
            len: 1 << 20,
        }
    }

    fn body(works: Vec<Work>) -> Body {
        let progress = vec![Progress::default(); works.len()];
        Body {
            works,
            progress,
            ..Body::default()
        }
    }

    fn send(body: &mut Body, packed: usize) -> Option<Piece> {
        match body.next(1000, packed, true) {
            Next::Piece(piece, _) => {
                body.sent(piece);
                Some(piece)
            }
            _ => None,
        }
    }

    #[test]
    fn large_works_are_cut_at_words() {
        let mut body = body(vec![Work::write(memory(), 3, vec![0; 2500].into())]);
        let pieces: Vec<Piece> = core::iter::from_fn(|| send(&mut body, 0)).collect();
        assert_eq!(pieces.iter().map(|p| p.len).sum::<usize>(), 2500);
        assert!(
            pieces[..pieces.len() - 1]
                .iter()
                .all(|p| (3 + p.from + p.len).is_multiple_of(8))
        );
        for piece in pieces {
            body.came(piece, Ok(0), &[]);
        }
        assert_eq!(body.finished, 1);
        assert!(matches!(body.works[0].result, Ok(2500)));
    }

    #[test]
    fn a_fence_waits_for_what_is_under_way_and_fails_with_it() {
        let add = || Work::fetch_add(memory(), 0, 1);
        let mut body = body(vec![add(), add().fenced(), add()]);
        let first = send(&mut body, 0).expect("sent");
        assert_eq!(body.next(1000, 0, true), Next::Later);
        assert!(
            matches!(body.next(1000, 1, true), Next::Piece(_, true)),
            "in the same message"
        );
        assert_eq!(body.next(1000, 1, false), Next::Later);
        body.came(first, Err(Error::Timeout("late".into())), &[]);
        let third = send(&mut body, 0).expect("not fenced");
        assert_eq!(third.work, 2, "the fenced one is not done");
        body.came(third, Ok(7), &[]);
        assert_eq!(body.finished, 3);
        assert!(matches!(body.works[1].result, Err(Error::Timeout(_))));
        assert!(matches!(body.works[2].result, Ok(7)));
    }

    #[test]
    fn what_is_not_sent_can_be_given_up() {
        let read = || Work::read(memory(), 0, vec![0; 1500].into());
        let mut body = body(vec![read(), read()]);
        let piece = send(&mut body, 0).expect("sent");
        body.fail_unsent(&Error::Lost("gone".into()));
        assert_eq!(body.finished, 1, "the first is half under way");
        body.came(piece, Ok(0), &vec![1; piece.len]);
        assert_eq!(body.finished, 2);
        assert!(body.works.iter().all(|w| matches!(w.result, Err(Error::Lost(_)))));
    }
}
