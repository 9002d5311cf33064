//! Addresses as texts.

use super::arguments::{BufferArg, OutArg, TextArg};
use super::error::{ReportArg, Status, answer};
use cenote_base::Error;
use cenote_space::GlobalAddress;

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_address_format(
    address: u64,
    into: BufferArg<'_>,
    size: usize,
    error: ReportArg<'_>,
) -> Status {
    answer(error, || {
        let into = into.bytes(size)?;
        let text = GlobalAddress::from_raw(address).to_string();
        let (at, room) = (text.len(), into.len());
        let into = into.get_mut(..=at);
        let into = into.ok_or_else(|| Error::Invalid(format!("{} bytes for a text that needs {}", room, at + 1)))?;
        into[..at].copy_from_slice(text.as_bytes());
        into[at] = 0;
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_address_parse(from: TextArg<'_>, address: OutArg<'_, u64>, error: ReportArg<'_>) -> Status {
    answer(error, || {
        let mut place = address.place("the address")?;
        place.write(from.text("the address")?.parse::<GlobalAddress>()?.raw());
        Ok(())
    })
}
