//! Sessions: objects allocated and freed.

use super::Handle;
use super::arguments::place;
use super::error::{Report, Status, answer};
use super::handle::{Graveyard, Kind};
use super::space::SpaceHandle;
use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Lifetime, Session};

/// `cenote_session`.
pub(super) type SessionHandle = Handle<Session>;

impl Kind for Session {
    const MAGIC: u64 = 0x7373_6573_0000_0000;
    const NAME: &'static str = "a session";

    fn graveyard() -> &'static Mutex<Graveyard<Self>> {
        static CLOSED: Mutex<Graveyard<Session>> = Mutex::new(Graveyard::new());
        &CLOSED
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_session_begin(
    space: *const SpaceHandle,
    session: *mut *mut SessionHandle,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(session, "the session")?;
            place.write(core::ptr::null_mut());
            place.write(Handle::make(Handle::get(space)?.session()));
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_session_close(session: *mut SessionHandle, error: *mut Report) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe { answer(error, || Handle::close(session)?.map_or(Ok(()), Session::close)) }
}

fn lifetime(number: i32) -> Result<Lifetime> {
    match number {
        0 => Ok(Lifetime::Space),
        1 => Ok(Lifetime::Session),
        other => Err(Error::Invalid(format!("{other} is no lifetime"))),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_alloc(
    session: *const SessionHandle,
    len: u64,
    stays: i32,
    address: *mut u64,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(address, "the address")?;
            place.write(Handle::get(session)?.alloc_in(len, lifetime(stays)?)?.raw());
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_free(space: *const SpaceHandle, address: u64, error: *mut Report) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe { answer(error, || Handle::get(space)?.free(GlobalAddress::from_raw(address))) }
}
