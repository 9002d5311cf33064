//! Addresses as texts.

use super::arguments::{buffer, place, text};
use super::error::{Report, Status, answer};
use cenote_base::Error;
use cenote_space::GlobalAddress;
use core::ffi::c_char;

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_address_format(
    address: u64,
    into: *mut c_char,
    size: usize,
    error: *mut Report,
) -> Status {
    let body = || {
        // SAFETY: the caller's memory, as the header asks (`mod`, 2).
        let into = unsafe { buffer(into.cast(), size)? };
        let text = GlobalAddress::from_raw(address).to_string();
        let (at, room) = (text.len(), into.len());
        let into = into.get_mut(..=at);
        let into = into.ok_or_else(|| Error::Invalid(format!("{} bytes for a text that needs {}", room, at + 1)))?;
        into[..at].copy_from_slice(text.as_bytes());
        into[at] = 0;
        Ok(())
    };
    // SAFETY: the caller's report.
    unsafe { answer(error, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_address_parse(from: *const c_char, address: *mut u64, error: *mut Report) -> Status {
    // SAFETY: the caller's memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(address, "the address")?;
            place.write(text(from, "the address")?.parse::<GlobalAddress>()?.raw());
            Ok(())
        })
    }
}
