//! Locks that lie in a space.

use super::arguments::{BufferArg, BytesArg, OutArg};
use super::error::{ReportArg, Status, answer};
use super::handle::HandleArg;
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};
use cenote_space::{CacheStats, GlobalAddress, Held, Mode, Session, Space, Timeout};

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
pub extern "C" fn cenote_lock_new(
    session: HandleArg<'_, Session>,
    lock: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = lock.place("the lock's address")?;
        place.write(session.get()?.new_lock()?.raw());
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_lock(
    session: HandleArg<'_, Session>,
    lock: u64,
    wanted: i32,
    nanos: u64,
    held: OutArg<'_, HeldLock>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = held.place("how it is held")?;
        let session = session.get()?;
        let taken = session.acquire(GlobalAddress::from_raw(lock), mode(wanted)?, timeout(nanos))?;
        place.write(taken.into());
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_unlock(session: HandleArg<'_, Session>, lock: u64, held: i32, error: ReportArg<'_>) -> Status {
    answer(error, || {
        session.get()?.unlock(GlobalAddress::from_raw(lock), mode(held)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_lock_leave_broken(
    session: HandleArg<'_, Session>,
    lock: u64,
    held: i32,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let (session, lock) = (session.get()?, GlobalAddress::from_raw(lock));
        match mode(held)? {
            Mode::Read => session.unlock(lock, Mode::Read),
            Mode::Write => session.leave_broken(lock),
        }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_lock_read(
    session: HandleArg<'_, Session>,
    lock: u64,
    address: u64,
    into: BufferArg<'_>,
    len: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let [lock, address] = [lock, address].map(GlobalAddress::from_raw);
        session.get()?.read_locked(lock, address, into.bytes(len)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_lock_write(
    session: HandleArg<'_, Session>,
    lock: u64,
    address: u64,
    from: BytesArg<'_>,
    len: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let [lock, address] = [lock, address].map(GlobalAddress::from_raw);
        session.get()?.write_locked(lock, address, from.bytes(len)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_lock_sync(session: HandleArg<'_, Session>, lock: u64, error: ReportArg<'_>) -> Status {
    answer(error, || session.get()?.sync_locked(GlobalAddress::from_raw(lock)))
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
pub extern "C" fn cenote_cache_limit(space: HandleArg<'_, Space>, bytes: u64, error: ReportArg<'_>) -> Status {
    answer(error, || {
        space.get()?.limit_cache(bytes);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_cache_stats_of(
    space: HandleArg<'_, Space>,
    stats: OutArg<'_, CacheCounts>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = stats.place("the statistics")?;
        place.write(space.get()?.cache_stats().into());
        Ok(())
    })
}
