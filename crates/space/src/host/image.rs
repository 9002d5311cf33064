//! An extent's bytes on their way: its map, and its objects. They come in the answers, or into memory that the calls
//! lend: as is faster, which is known by what was measured of reads ([`modes`](super::super::far::modes)). So where
//! cards can, the transfer is one-sided (Rcmp, section 5.3).

use super::super::GlobalAddress;
use super::super::far::Channel;
use super::super::far::wire::{self, Fetch};
use super::super::part::Part;
use super::super::slot::{Slot, Use};
use super::HostState;
use super::steps::gone;
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, Call, LIMIT, Source};
use std::sync::{Arc, Weak};

/// Bytes of a piece.
const PIECE: u64 = LIMIT as u64 / 2;
/// Pieces under way at a time.
const AT_ONCE: usize = 8;

const _: () = assert!(PIECE <= LIMIT as u64 && PIECE.is_multiple_of(8));

/// Reads a piece out of a slot where an extent lies frozen: as many bytes as there is place for.
fn read(part: &Part, fetch: Fetch, into: &mut [u8]) -> Result<()> {
    let slot = slot_of(part, fetch.extent)?;
    let mut rest = into;
    for piece in part.image(slot, fetch.from, rest.len() as u64)? {
        let (now, later) = rest.split_at_mut(piece.len());
        piece.copy_out(0, now);
        rest = later;
    }
    assert!(rest.is_empty(), "{} bytes of an image were not read", rest.len());
    Ok(())
}

impl HostState {
    /// Answers a fetch.
    pub(super) fn serve_fetch(self: &Arc<Self>, rest: &[u8], mut answer: Answer) {
        let room = answer.room();
        match self.fetch(rest, room, answer.bytes()) {
            Ok(None) => answer.send(),
            Ok(Some(fetch)) => answer.send_from(Box::new(Image {
                host: Arc::downgrade(self),
                fetch,
                is_whole: true,
            })),
            Err(error) => answer.fail(error),
        }
    }

    /// Its bytes in the answer, or what is to go into the memory that was lent.
    fn fetch(&self, rest: &[u8], room: usize, answer: &mut Vec<u8>) -> Result<Option<Fetch>> {
        let fetch = wire::read_fetch(rest)?;
        let is_inside = fetch
            .from
            .checked_add(fetch.len)
            .is_some_and(|end| end <= Part::image_len());
        if fetch.len > LIMIT as u64 || !is_inside {
            return Err(Error::Invalid(format!(
                "{} bytes of an extent from {} on",
                fetch.len, fetch.from
            )));
        }
        if room > 0 {
            answer.extend_from_slice(&wire::FETCHED);
            return Ok(Some(fetch));
        }
        answer.resize(fetch.len as usize, 0);
        self.read_frozen(fetch, answer).map(|()| None)
    }

    fn read_frozen(&self, fetch: Fetch, into: &mut [u8]) -> Result<()> {
        let frozen = self.frozen.lock();
        if frozen.get(&fetch.extent) != Some(&fetch.freeze) {
            return Err(Error::Revoked(format!("{} is not frozen for that", fetch.extent)));
        }
        read(&self.part, fetch, into)
    }
}

/// A piece that is read when it is sent. Each read looks whether the extent is frozen still, in the same migration
/// epoch, which never comes again: so all bytes are of one state.
struct Image {
    host: Weak<HostState>,
    fetch: Fetch,
    is_whole: bool,
}

impl Source for Image {
    fn size(&self) -> usize {
        self.fetch.len as usize
    }

    fn read(&mut self, at: usize, into: &mut [u8]) {
        let from = self.fetch.from + at as u64;
        let fetch = Fetch { from, ..self.fetch };
        let host = self.host.upgrade().filter(|host| !host.is_stopping());
        let is_read = host.is_some_and(|host| host.read_frozen(fetch, into).is_ok());
        if !is_read {
            into.fill(0);
            self.is_whole = false;
        }
    }

    fn finish(self: Box<Self>, answer: &mut [u8]) {
        if !self.is_whole {
            answer.fill(0);
        }
    }
}

fn slot_of(part: &Part, extent: GlobalAddress) -> Result<u32> {
    let is_frozen = |slot: Slot| slot.used == Use::Frozen;
    if part.own_state(extent)?.is_some_and(is_frozen) {
        return Ok(extent.slot());
    }
    part.migrated_slot(extent).ok_or_else(|| gone(extent))
}

/// Fills a slot with the image of an extent that lies frozen elsewhere.
pub(super) fn fetch(part: &Part, slot: u32, from: &Channel, extent: GlobalAddress, freeze: u64) -> Result<()> {
    let starts: Vec<u64> = (0..Part::image_len()).step_by(PIECE as usize).collect();
    let piece = |from: u64| Fetch {
        extent,
        freeze,
        from,
        len: PIECE.min(Part::image_len() - from),
    };
    let call = |start: &u64| {
        let fetch = piece(*start);
        Call::new(wire::fetch(fetch)).into_memory(from.lend(fetch.len as usize))
    };
    from.reach()?;
    for some in starts.chunks(AT_ONCE) {
        for (start, call) in some.iter().zip(from.post(some.iter().map(call).collect())?) {
            call.result.clone()?;
            write(part, slot, piece(*start), fetched(&call)?)?;
            from.give_back(call);
        }
    }
    Ok(())
}

/// The bytes that a fetch has brought.
fn fetched(call: &Call) -> Result<&[u8]> {
    match (&call.memory[..], &call.answer[..]) {
        ([], bytes) => Ok(bytes),
        (bytes, answer) if answer == wire::FETCHED => Ok(bytes),
        _ => Err(Error::Revoked("an extent was thawed while it was fetched".into())),
    }
}

fn write(part: &Part, slot: u32, fetch: Fetch, bytes: &[u8]) -> Result<()> {
    // Memory that was lent may be longer.
    if (bytes.len() as u64) < fetch.len {
        return Err(Error::corrupt(format!(
            "{} bytes of {} of an extent",
            bytes.len(),
            fetch.len
        )));
    }
    let mut rest = &bytes[..fetch.len as usize];
    for piece in part.image(slot, fetch.from, fetch.len)? {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_in(0, now);
        rest = later;
    }
    assert!(rest.is_empty(), "{} bytes of an image were not written", rest.len());
    Ok(())
}
