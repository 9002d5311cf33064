//! Handles: what a caller has of a space or a session.
//!
//! ```text
//!           make                         close
//!   (none) ──────► open: magic ^ forks ───────► closed, its value dropped ──► freed, after [`KEPT`] others
//! ```
//!
//! A closed handle is kept for a while, so that its next use is an error and not another object's memory. That is a
//! help for debugging, not a promise.

use super::fork;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{Error, Result};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use std::collections::VecDeque;

/// Closed handles of a kind that are kept.
const KEPT: usize = 1024;
const CLOSED: u64 = 0x6465_736f_6c63_5343;

/// What a handle can be of.
pub(super) trait Kind: Sized + Send + Sync + 'static {
    /// What its handles begin with.
    const MAGIC: u64;
    /// What it is called in messages, with its article.
    const NAME: &'static str;
    /// Where its closed handles are kept.
    fn graveyard() -> &'static Mutex<Graveyard<Self>>;
}

/// Closed handles, in the order of their closing.
pub(super) type Graveyard<T> = VecDeque<Dead<T>>;

/// See the module.
#[repr(C)]
pub struct Handle<T> {
    state: AtomicU64,
    /// There while the state says that it is open. The thread that closes it takes it out; a thread that uses it has it
    /// until then.
    value: UnsafeCell<Option<T>>,
}

/// One that no thread may use, made by `Box::into_raw`.
pub(super) struct Dead<T>(NonNull<Handle<T>>);

// SAFETY: its value is gone, and it is this owner's to free.
unsafe impl<T> Send for Dead<T> {}

impl<T> Drop for Dead<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, closed, and kept nowhere else.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: Kind> Handle<T> {
    pub(super) fn make(value: T) -> *mut Self {
        fork::watch();
        Box::into_raw(Box::new(Self {
            state: AtomicU64::new(T::MAGIC ^ fork::forks()),
            value: UnsafeCell::new(Some(value)),
        }))
    }

    /// What it is of.
    ///
    /// # Safety
    /// `handle` is null or leads to a handle of any kind; no thread closes it before `'a` ends. (One that was closed
    /// lately is told apart.)
    #[inline(always)]
    pub(super) unsafe fn get<'a>(handle: *const Self) -> Result<&'a T> {
        // SAFETY: the same duty.
        let state = unsafe { state(handle) };
        if state != T::MAGIC ^ fork::forks() {
            return Err(unusable::<T>(state));
        }
        // SAFETY: it is open and of this kind, and no thread closes it: the value is there, and does not change.
        let value = unsafe { &*(*handle).value.get() };
        value.as_ref().ok_or_else(|| unusable::<T>(CLOSED))
    }

    /// Takes out what it is of: `None` in a child of the process that made it, which must not end what is its parent's.
    ///
    /// # Safety
    /// `handle` is null or leads to a handle of any kind; no other call uses it.
    pub(super) unsafe fn close(handle: *mut Self) -> Result<Option<T>> {
        // SAFETY: the same duty.
        let open = unsafe { state(handle) };
        if (open ^ T::MAGIC) >> 32 != 0 {
            return Err(unusable::<T>(open));
        }
        // SAFETY: not null, and of this kind, as its state says.
        let shared = unsafe { &*handle };
        let closed = shared
            .state
            .compare_exchange(open, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        closed.map_err(unusable::<T>)?;
        // SAFETY: one call alone sees the state change from open to closed.
        let value = unsafe { (*shared.value.get()).take() };
        if open != T::MAGIC ^ fork::forks() {
            core::mem::forget(value);
            return Ok(None);
        }
        bury(handle);
        Ok(value)
    }
}

fn bury<T: Kind>(handle: *mut Handle<T>) {
    let mut graveyard = T::graveyard().lock();
    graveyard.extend(NonNull::new(handle).map(Dead));
    if graveyard.len() > KEPT {
        graveyard.pop_front();
    }
}

/// # Safety
/// `handle` is null or leads to a handle of any kind, open or closed lately.
#[inline(always)]
unsafe fn state<T>(handle: *const Handle<T>) -> u64 {
    if handle.is_null() || !handle.is_aligned() {
        return 0;
    }
    // SAFETY: handles of all kinds begin with their state.
    let state = unsafe { &(*handle).state };
    state.as_raw().load(Ordering::Acquire)
}

#[cold]
#[inline(never)]
fn unusable<T: Kind>(state: u64) -> Error {
    let name = T::NAME;
    Error::Invalid(match state {
        0 => format!("NULL is no handle of {name}"),
        CLOSED => format!("this handle of {name} was closed"),
        _ if (state ^ T::MAGIC) >> 32 == 0 => {
            format!("this handle of {name} is of the process that forked this one: make one here")
        }
        _ => format!("this is no handle of {name}"),
    })
}
