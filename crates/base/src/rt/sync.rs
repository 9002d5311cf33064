//! Locks: `Mutex`, `RwLock`, `Condvar`.
//!
//! Data behind a lock needs `unsafe` somewhere; here it is the standard library's. With the
//! operating system a lock *is* the standard one (a futex word, one compare-and-swap when free,
//! a short spin before sleeping). Under another runtime the standard lock only holds the data: it
//! is tried, never waited for, and sleeping goes through [`Runtime::wait`](super::Runtime::wait)
//! on a word of our own that every release moves on.
//!
//! Invariants:
//! - no lock is ever poisoned: a holder that unwinds releases it;
//! - release wakes and never suspends, so guards may be dropped while unwinding;
//! - the word moves before the wake, so a thread that tried in vain and saw the old word does not sleep.

use super::{Nanos, Wait, entered, preempt, seamed, wait_raw, wake_raw};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{self, PoisonError, TryLockError};

/// Counts releases under a runtime other than the operating system; sleepers wait on it.
#[derive(Default)]
struct Releases(AtomicU32);

impl Releases {
    const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Tries until it succeeds, sleeping from release to release.
    #[cold]
    fn until<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        loop {
            preempt();
            let seen = self.0.load(Acquire);
            if let Some(got) = attempt() {
                entered().took(&self.0);
                return got;
            }
            wait_raw(&self.0, seen, None);
        }
    }

    /// Wakes `count` of the threads that try.
    #[cold]
    fn release(&self, count: usize) {
        self.0.fetch_add(1, Release);
        entered().gave(&self.0, count);
    }

    /// A try has succeeded.
    #[inline]
    fn tried(&self) {
        if seamed() {
            entered().took(&self.0);
        }
    }
}

/// Wakes all threads that wait for a read-write lock, when dropped: after the standard guard, which stands before it in
/// its struct.
struct WakeAll<'a>(&'a Releases);

impl Drop for WakeAll<'_> {
    #[inline]
    fn drop(&mut self) {
        if seamed() {
            self.0.release(usize::MAX);
        }
    }
}

/// What a try yields, poisoned or not.
fn tried<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A mutual exclusion lock around a value; not poisoned by panics.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    releases: Releases,
    inner: sync::Mutex<T>,
}

/// The right to the value of a [`Mutex`], until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    // Order matters: the data is released before others are woken.
    inner: sync::MutexGuard<'a, T>,
    wake: WakeMutex<'a, T>,
}

/// Wakes one thread that waits for the mutex, when dropped.
struct WakeMutex<'a, T: ?Sized>(&'a Mutex<T>);

impl<T: ?Sized> Drop for WakeMutex<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if seamed() {
            self.0.releases.release(1);
        }
    }
}

impl<T> Mutex<T> {
    /// Around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            releases: Releases::new(),
            inner: sync::Mutex::new(value),
        }
    }

    /// The value, and no lock any more.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until the value is free and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = if seamed() {
            self.releases.until(|| tried(self.inner.try_lock()))
        } else {
            self.inner.lock().unwrap_or_else(PoisonError::into_inner)
        };
        MutexGuard {
            inner,
            wake: WakeMutex(self),
        }
    }

    /// Takes the value if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        preempt();
        let inner = tried(self.inner.try_lock())?;
        self.releases.tried();
        Some(MutexGuard {
            inner,
            wake: WakeMutex(self),
        })
    }

    /// The value, to the one owner of the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// Waiting for a condition on what a [`Mutex`] holds. Wakes may be spurious.
#[derive(Default)]
pub struct Condvar {
    notifications: AtomicU32,
    inner: sync::Condvar,
}

impl Condvar {
    /// Without waiters.
    pub const fn new() -> Self {
        Self {
            notifications: AtomicU32::new(0),
            inner: sync::Condvar::new(),
        }
    }

    /// Releases the lock, sleeps until notified, and takes the lock again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        if seamed() {
            return self.wait_seamed(guard, None).0;
        }
        let MutexGuard { inner, wake } = guard;
        let inner = self.inner.wait(inner).unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, wake }
    }

    /// As [`Condvar::wait`], for at most `timeout`; the flag says that it ran out.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Nanos) -> (MutexGuard<'a, T>, bool) {
        if seamed() {
            return self.wait_seamed(guard, Some(timeout));
        }
        let MutexGuard { inner, wake } = guard;
        let (inner, result) = self
            .inner
            .wait_timeout(inner, timeout.into())
            .unwrap_or_else(PoisonError::into_inner);
        (MutexGuard { inner, wake }, result.timed_out())
    }

    /// Sleeps while `condition` holds.
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// Wakes one sleeper.
    pub fn notify_one(&self) {
        self.notify(1);
        self.inner.notify_one();
    }

    /// Wakes all sleepers.
    pub fn notify_all(&self) {
        self.notify(usize::MAX);
        self.inner.notify_all();
    }

    fn notify(&self, count: usize) {
        if seamed() {
            self.notifications.fetch_add(1, Release);
            wake_raw(&self.notifications, count);
        }
    }

    #[cold]
    fn wait_seamed<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Option<Nanos>) -> (MutexGuard<'a, T>, bool) {
        let lock = guard.wake.0;
        let seen = self.notifications.load(Relaxed);
        drop(guard);
        let wait = wait_raw(&self.notifications, seen, timeout);
        (lock.lock(), wait == Wait::TimedOut)
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

/// A lock held by many readers or one writer; not poisoned by panics.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    releases: Releases,
    inner: sync::RwLock<T>,
}

/// The right to read the value of an [`RwLock`], until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: sync::RwLockReadGuard<'a, T>,
    _wake: WakeAll<'a>,
}

/// The right to change the value of an [`RwLock`], until dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: sync::RwLockWriteGuard<'a, T>,
    _wake: WakeAll<'a>,
}

impl<T> RwLock<T> {
    /// Around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            releases: Releases::new(),
            inner: sync::RwLock::new(value),
        }
    }

    /// The value, and no lock any more.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the value and reads it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let inner = if seamed() {
            self.releases.until(|| tried(self.inner.try_read()))
        } else {
            self.inner.read().unwrap_or_else(PoisonError::into_inner)
        };
        RwLockReadGuard {
            inner,
            _wake: WakeAll(&self.releases),
        }
    }

    /// Waits until no thread holds the value and takes it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let inner = if seamed() {
            self.releases.until(|| tried(self.inner.try_write()))
        } else {
            self.inner.write().unwrap_or_else(PoisonError::into_inner)
        };
        RwLockWriteGuard {
            inner,
            _wake: WakeAll(&self.releases),
        }
    }

    /// Reads the value if no writer holds it.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        preempt();
        let inner = tried(self.inner.try_read())?;
        self.releases.tried();
        Some(RwLockReadGuard {
            inner,
            _wake: WakeAll(&self.releases),
        })
    }

    /// Takes the value if no thread holds it.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        preempt();
        let inner = tried(self.inner.try_write())?;
        self.releases.tried();
        Some(RwLockWriteGuard {
            inner,
            _wake: WakeAll(&self.releases),
        })
    }

    /// The value, to the one owner of the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}
