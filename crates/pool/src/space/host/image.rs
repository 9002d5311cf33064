//! An extent's bytes on their way: its map, and its objects.

use super::super::GlobalAddress;
use super::super::far::Way;
use super::super::far::wire::{self, Fetch};
use super::super::part::Part;
use super::super::slot::{Slot, Use};
use super::steps::gone;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Call, LIMIT};

/// Bytes of a piece.
const PIECE: u64 = LIMIT as u64 / 2;
/// Pieces under way at a time.
const AT_ONCE: usize = 8;

/// Reads a piece out of a slot where an extent lies frozen.
pub(super) fn read(part: &Part, fetch: Fetch, into: &mut Vec<u8>) -> Result<()> {
    if fetch.len > LIMIT as u64 {
        return Err(Error::Invalid(format!("{} bytes at a time", fetch.len)));
    }
    let slot = slot_of(part, fetch.extent)?;
    let pieces = part.image(slot, fetch.from, fetch.len)?;
    for piece in pieces {
        let at = into.len();
        into.resize(at + piece.len(), 0);
        piece.copy_out(0, &mut into[at..]);
    }
    Ok(())
}

fn slot_of(part: &Part, extent: GlobalAddress) -> Result<u32> {
    let is_frozen = |slot: Slot| slot.used == Use::Frozen;
    if part.own_state(extent)?.is_some_and(is_frozen) {
        return Ok(extent.slot());
    }
    part.guest_slot(extent).ok_or_else(|| gone(extent))
}

/// Fills a slot with the image of an extent that lies frozen elsewhere.
pub(super) fn fetch(part: &Part, slot: u32, from: &Way, extent: GlobalAddress, freeze: u64) -> Result<()> {
    let starts: Vec<u64> = (0..Part::image_len()).step_by(PIECE as usize).collect();
    let piece = |from: u64| Fetch {
        extent,
        freeze,
        from,
        len: PIECE.min(Part::image_len() - from),
    };
    for some in starts.chunks(AT_ONCE) {
        let calls = some.iter().map(|start| Call::new(wire::fetch(piece(*start)))).collect();
        for (start, call) in some.iter().zip(from.post(calls)?) {
            write(part, slot, piece(*start), &call.into_answer()?)?;
        }
    }
    Ok(())
}

fn write(part: &Part, slot: u32, fetch: Fetch, bytes: &[u8]) -> Result<()> {
    if bytes.len() as u64 != fetch.len {
        return Err(Error::corrupt(format!(
            "{} bytes of {} of an extent",
            bytes.len(),
            fetch.len
        )));
    }
    let mut rest = bytes;
    for piece in part.image(slot, fetch.from, fetch.len)? {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_in(0, now);
        rest = later;
    }
    Ok(())
}
