//! Handles: what a caller has of a space or a session.
//!
//! ```text
//!           make                         close
//!   (none) ──────► open: magic ^ forks ───────► closed, its value dropped ──► freed, after [`KEPT`] others
//! ```
//!
//! A closed handle is kept for a while, so that its next use is an error and not another object's memory. That is a
//! help for debugging, not a promise.
//!
//! As with all [`arguments`](super::arguments), only a call from C makes a [`HandleArg`] or a [`ClosingArg`]; such a
//! call owes what the header says of handles.

use super::fork;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::{Error, Result};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
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
}

/// A handle that a call uses: null, or a handle of any kind that no thread closes during the call. (The call tells a
/// handle apart that was closed lately.)
#[repr(transparent)]
pub struct HandleArg<'a, T>(*const Handle<T>, PhantomData<&'a Handle<T>>);

impl<'a, T: Kind> HandleArg<'a, T> {
    /// What it is of.
    ///
    /// # Errors
    /// `Error::Invalid` if it is null, of another kind, closed, or of the process that forked this one.
    #[inline(always)]
    pub(super) fn get(self) -> Result<&'a T> {
        // SAFETY: null or a handle, which is the caller's duty.
        let state = unsafe { state(self.0) };
        if state != T::MAGIC ^ fork::forks() {
            return Err(unusable::<T>(state));
        }
        // SAFETY: it is open and of this kind, and no thread closes it: the value is there, and does not change.
        let value = unsafe { &*(*self.0).value.get() };
        value.as_ref().ok_or_else(|| unusable::<T>(CLOSED))
    }
}

/// A handle that a call closes: null, or a handle of any kind that no other call uses.
#[repr(transparent)]
pub struct ClosingArg<T>(*mut Handle<T>);

impl<T: Kind> ClosingArg<T> {
    /// Takes out what it is of: `None` in a child of the process that made it, which must not end what is its parent's.
    ///
    /// # Errors
    /// `Error::Invalid` if it is null, of another kind, or closed.
    pub(super) fn close(self) -> Result<Option<T>> {
        // SAFETY: null or a handle, which is the caller's duty.
        let open = unsafe { state(self.0) };
        if (open ^ T::MAGIC) >> 32 != 0 {
            return Err(unusable::<T>(open));
        }
        // SAFETY: not null, and of this kind, as its state says.
        let shared = unsafe { &*self.0 };
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
        bury(self.0);
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
