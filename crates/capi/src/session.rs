//! Sessions: objects allocated and freed.

use super::arguments::OutArg;
use super::error::{ReportArg, Status, answer};
use super::handle::{ClosingArg, Graveyard, Handle, HandleArg, Kind};
use cenote_base::rt::Mutex;
use cenote_base::{Error, Result};
use cenote_space::{GlobalAddress, Lifetime, Session, Space};

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
pub extern "C" fn cenote_session_begin(
    space: HandleArg<'_, Space>,
    session: OutArg<'_, *mut SessionHandle>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = session.place("the session")?;
        place.write(core::ptr::null_mut());
        place.write(Handle::make(space.get()?.session()));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_session_close(session: ClosingArg<Session>, error: ReportArg<'_>) -> Status {
    answer(error, || session.close()?.map_or(Ok(()), Session::close))
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
pub extern "C" fn cenote_alloc(
    session: HandleArg<'_, Session>,
    len: u64,
    stays: i32,
    address: OutArg<'_, u64>,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let mut place = address.place("the address")?;
        place.write(session.get()?.alloc_in(len, lifetime(stays)?)?.raw());
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_free(space: HandleArg<'_, Space>, address: u64, error: ReportArg<'_>) -> Status {
    answer(error, || space.get()?.free(GlobalAddress::from_raw(address)))
}
