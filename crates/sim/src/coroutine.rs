//! The threads of a world as coroutines: each has a stack of its own, and one of them runs at a time.
//!
//! ```text
//!              start                 resume                    the body returns
//!   (a body) ────────▶ not started ─────────▶ running ─────────────────────────▶ gone: its stack is used again
//!                          │                   │    ▲                               ▲
//!                          │           suspend ▼    │ resume                        │
//!                          │                  suspended ──── abandon ───────────────┘
//!                          └── abandon ──▶ leaked, with its stack
//! ```
//!
//! An abandoned coroutine belongs to a killed process. Nothing on its stack is dropped, as nothing of a killed process
//! is undone.

#![allow(
    unsafe_code,
    reason = "bodies borrow, stacks are taken from killed threads, and the running yielder is known by its address"
)]

use crate::schedule::Id;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

/// What a suspended coroutine is resumed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resume {
    /// Go on.
    Run,
    /// Say where you are, and suspend again.
    Where,
}

/// What a coroutine suspends with: where it is, if it was asked.
type Pause = Option<String>;

type Suspender = Yielder<Resume, Pause>;

type Thread = Coroutine<Resume, Pause, (), DefaultStack>;

thread_local! {
    /// The yielder of the running coroutine; null where none runs.
    static YIELDER: Cell<*const Suspender> = const { Cell::new(std::ptr::null()) };

    /// Stacks of threads that have ended, to be used again.
    static STACKS: RefCell<Vec<(usize, DefaultStack)>> = const { RefCell::new(Vec::new()) };
}

/// Stacks that are kept.
const MAX_KEPT: usize = 1024;

fn stack(bytes: usize) -> DefaultStack {
    let kept = STACKS.with_borrow_mut(|all| {
        let at = all.iter().rposition(|s| s.0 == bytes)?;
        Some(all.swap_remove(at).1)
    });
    kept.unwrap_or_else(|| DefaultStack::new(bytes).expect("address space for a stack"))
}

fn keep(bytes: usize, stack: DefaultStack) {
    STACKS.with_borrow_mut(|all| {
        if all.len() < MAX_KEPT {
            all.push((bytes, stack));
        }
    });
}

/// (`LocalKey::set` is no inline function.)
#[inline(always)]
fn set_yielder(yielder: *const Suspender) {
    YIELDER
        .try_with(|cell| cell.set(yielder))
        .expect("a cell without a destructor");
}

/// Suspends the running coroutine until it is resumed to run.
pub(crate) fn suspend() {
    let yielder = YIELDER.get();
    assert!(!yielder.is_null(), "a preemption point outside of any coroutine");
    let mut pause = None;
    loop {
        // SAFETY: the running coroutine's body has set it, or the line below did, and `Running` sets null when the
        // coroutine stops. The coroutine's stack holds the yielder until its body returns.
        let resume = unsafe { &*yielder }.suspend(pause);
        set_yielder(yielder);
        match resume {
            Resume::Run => break,
            Resume::Where => pause = Some(here()),
        }
    }
}

/// The functions that the running coroutine is in, innermost first, without the machinery's.
pub(crate) fn here() -> String {
    const MACHINERY: [&str; 6] = ["std::", "core::", "alloc::", "corosensei", "cenote_sim::", "_"];
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    let name = |line: &str| Some(line.trim().split_once(": ")?.1.to_owned());
    let ours = |n: &String| !MACHINERY.iter().any(|m| n.trim_start_matches('<').starts_with(m));
    // Below the coroutine's first frame lies the loop that resumed it.
    let own = trace
        .lines()
        .filter_map(name)
        .take_while(|n| !n.contains("stack_init_trampoline"));
    let frames: Vec<String> = own.filter(ours).collect();
    frames.join("\n      in ")
}

/// While a coroutine runs: no yielder is known when it has stopped, also by a panic.
struct Running;

impl Drop for Running {
    #[inline(always)]
    fn drop(&mut self) {
        set_yielder(std::ptr::null());
    }
}

/// The coroutines of a run, by thread. Their bodies may borrow what lives for `'body`.
pub(crate) struct Coroutines<'body> {
    live: Vec<Option<Thread>>,
    stack_bytes: usize,
    bodies: PhantomData<Box<dyn FnOnce() + 'body>>,
}

impl<'body> Coroutines<'body> {
    /// None yet; each will have a stack of `stack_bytes`.
    pub(crate) fn new(stack_bytes: usize) -> Self {
        Self {
            live: Vec::new(),
            stack_bytes,
            bodies: PhantomData,
        }
    }

    /// A coroutine for `body`, as thread `id`. It begins when it is resumed first.
    pub(crate) fn start(&mut self, id: Id, body: impl FnOnce() + 'body) {
        let whole = |yielder: &Suspender, _: Resume| {
            set_yielder(yielder);
            body();
        };
        // SAFETY: what the body borrows outlives `self`, and the coroutine runs within `step` alone, which borrows
        // `self`. It is never dropped before its body has returned: `Drop` and `abandon` reset or forget it.
        let thread = unsafe { Thread::with_stack_unchecked(stack(self.stack_bytes), whole) };
        self.live.resize_with(self.live.len().max(id + 1), || None);
        self.live[id] = Some(thread);
    }

    /// Whether a thread's body has neither returned nor been abandoned.
    pub(crate) fn is_live(&self, id: Id) -> bool {
        self.live.get(id).is_some_and(Option::is_some)
    }

    /// Every thread that is live.
    pub(crate) fn ids(&self) -> Vec<Id> {
        (0..self.live.len()).filter(|id| self.is_live(*id)).collect()
    }

    #[inline]
    fn step(&mut self, id: Id, how: Resume) -> CoroutineResult<Pause, ()> {
        let thread = self.live[id].as_mut().expect("a coroutine that is live");
        let _running = Running;
        thread.resume(how)
    }

    /// Lets a thread go on until it suspends; whether its body has returned.
    pub(crate) fn resume(&mut self, id: Id) -> bool {
        let ended = matches!(self.step(id, Resume::Run), CoroutineResult::Return(()));
        if ended {
            self.abandon(id);
        }
        ended
    }

    /// Where a suspended thread is; `None` if it has not begun.
    pub(crate) fn place_of(&mut self, id: Id) -> Option<String> {
        if !self.live[id].as_ref()?.started() {
            return None;
        }
        match self.step(id, Resume::Where) {
            CoroutineResult::Yield(place) => place,
            CoroutineResult::Return(()) => None,
        }
    }

    /// Takes a thread's stack back, wherever the thread stands: nothing of it is dropped.
    pub(crate) fn abandon(&mut self, id: Id) {
        let Some(mut thread) = self.live.get_mut(id).and_then(Option::take) else {
            return;
        };
        if !thread.started() {
            // Its body is still on the stack, and belongs to a killed process.
            std::mem::forget(thread);
            return;
        }
        // SAFETY: it is suspended or done, and was taken from `live`: never resumed again. What lies on its stack is
        // leaked; nothing outside of its world refers to it, and within its world nothing but its killed process.
        unsafe { thread.force_reset() };
        keep(self.stack_bytes, thread.into_stack());
    }

    /// Leaks a thread with its stack, to which others may refer: it never goes on.
    pub(crate) fn forget(&mut self, id: Id) {
        std::mem::forget(self.live[id].take());
    }
}

impl Drop for Coroutines<'_> {
    fn drop(&mut self) {
        (0..self.live.len()).for_each(|id| self.abandon(id));
    }
}
