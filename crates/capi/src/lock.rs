//! Locks that lie in a space.

use super::arguments::{buffer, bytes, place};
use super::error::{Report, Status, answer};
use super::handle::Handle;
use super::session::SessionHandle;
use super::space::SpaceHandle;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_space::{CacheStats, GlobalAddress, Held, Mode, Timeout};
use core::ffi::c_void;

/// `cenote_held`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct HeldLock {
    mode: i32,
    owner_died: i32,
}

impl From<Held> for HeldLock {
    fn from(held: Held) -> Self {
        let mode = match held.mode {
            Mode::Read => 0,
            Mode::Write => 1,
        };
        Self {
            mode,
            owner_died: held.owner_died.into(),
        }
    }
}

fn mode(number: i32) -> Result<Mode> {
    match number {
        0 => Ok(Mode::Read),
        1 => Ok(Mode::Write),
        other => Err(Error::Invalid(format!("{other} is no mode of a lock"))),
    }
}

fn timeout(nanos: u64) -> Timeout {
    match nanos {
        0 => Timeout::None,
        u64::MAX => Timeout::Endless,
        nanos => Timeout::For(Nanos(nanos)),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_lock_new(session: *const SessionHandle, lock: *mut u64, error: *mut Report) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(lock, "the lock's address")?;
            place.write(Handle::get(session)?.new_lock()?.raw());
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_lock(
    session: *const SessionHandle,
    lock: u64,
    wanted: i32,
    nanos: u64,
    held: *mut HeldLock,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(held, "how it is held")?;
            let session = Handle::get(session)?;
            let taken = session.acquire(GlobalAddress::from_raw(lock), mode(wanted)?, timeout(nanos))?;
            place.write(taken.into());
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_unlock(
    session: *const SessionHandle,
    lock: u64,
    held: i32,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            Handle::get(session)?.unlock(GlobalAddress::from_raw(lock), mode(held)?)
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_lock_leave_broken(
    session: *const SessionHandle,
    lock: u64,
    held: i32,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let (session, lock) = (Handle::get(session)?, GlobalAddress::from_raw(lock));
            match mode(held)? {
                Mode::Read => session.unlock(lock, Mode::Read),
                Mode::Write => session.leave_broken(lock),
            }
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_lock_read(
    session: *const SessionHandle,
    lock: u64,
    address: u64,
    into: *mut c_void,
    len: usize,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let [lock, address] = [lock, address].map(GlobalAddress::from_raw);
            Handle::get(session)?.read_locked(lock, address, buffer(into, len)?)
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_lock_write(
    session: *const SessionHandle,
    lock: u64,
    address: u64,
    from: *const c_void,
    len: usize,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let [lock, address] = [lock, address].map(GlobalAddress::from_raw);
            Handle::get(session)?.write_locked(lock, address, bytes(from, len)?)
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_lock_sync(session: *const SessionHandle, lock: u64, error: *mut Report) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            Handle::get(session)?.sync_locked(GlobalAddress::from_raw(lock))
        })
    }
}

/// `cenote_cache_stats`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CacheCounts {
    hits: u64,
    misses: u64,
    pages: u64,
    bytes: u64,
    buffered: u64,
    flushes: u64,
}

impl From<CacheStats> for CacheCounts {
    fn from(stats: CacheStats) -> Self {
        Self {
            hits: stats.hits,
            misses: stats.misses,
            pages: stats.pages,
            bytes: stats.bytes,
            buffered: stats.buffered,
            flushes: stats.flushes,
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_limit(space: *const SpaceHandle, bytes: u64, error: *mut Report) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            Handle::get(space)?.limit_cache(bytes);
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_stats_of(
    space: *const SpaceHandle,
    stats: *mut CacheCounts,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(stats, "the statistics")?;
            place.write(Handle::get(space)?.cache_stats().into());
            Ok(())
        })
    }
}
