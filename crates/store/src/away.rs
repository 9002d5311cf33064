//! Parts that are away: what waits for them.
//!
//! What a mirrored space has comes back with its part, so nothing of it is forgotten. Nothing of an item is freed
//! before all of its objects can be: a free whose answer is lost is not asked for again, as another's object may lie
//! there by then.

use super::core::Core;
use super::heap::Heap;
use super::item::Header;
use cenote_base::rt::HashMap;
use cenote_base::{Error, Result};
use cenote_space::GlobalAddress;

/// Parts that were asked, and whether they are away.
#[derive(Default)]
pub(super) struct Asked(HashMap<u8, bool>);

impl Heap {
    /// Whether an object of a mirrored space lies in a part that is away now.
    pub(super) fn waits(&self, object: GlobalAddress, asked: &mut Asked) -> bool {
        let is_away = || {
            let failed = self.load(object).err().map(|error| self.failure_at(object, error));
            failed.is_some_and(|error| self.is_away(&error))
        };
        self.space().is_mirrored() && *asked.0.entry(object.part()).or_insert_with(is_away)
    }

    /// Whether some part is away now, of those that are attached and those that were missed.
    pub(super) fn has_part_away(&self) -> bool {
        let mut parts = self.parts();
        parts.extend(self.missed.lock().iter());
        parts.into_iter().any(|part| self.is_part_away(part))
    }

    /// Asks for what no part has at its beginning.
    fn is_part_away(&self, part: u8) -> bool {
        let address = GlobalAddress::new(part, 0, 0, 0);
        match address.and_then(|address| self.load(address)) {
            Err(Error::Lost(_) | Error::Timeout(_)) => true,
            Err(_) if !self.space().has_part(part) => true,
            _ => {
                self.missed.lock().remove(&part);
                false
            }
        }
    }
}

impl Core {
    /// Whether a chunk of an item waits for its part: to take the item out would make no room then.
    pub(super) fn chunks_wait(&self, item: GlobalAddress, header: &Header) -> Result<bool> {
        if header.chunks == 0 || !self.heap.space().is_mirrored() {
            return Ok(false);
        }
        match self.chunks_of(item, header, header.control.life()) {
            Ok(chunks) => Ok(self.any_waits(&chunks)),
            Err(error) => match self.heap.failure_at(item, error) {
                error if self.heap.is_away(&error) => Ok(true),
                // It is another's by now: nothing will be freed.
                Error::Invalid(_) | Error::OutOfBounds(_) => Ok(false),
                error => Err(error),
            },
        }
    }

    pub(super) fn any_waits(&self, objects: &[GlobalAddress]) -> bool {
        let mut asked = Asked::default();
        objects.iter().any(|object| self.heap.waits(*object, &mut asked))
    }
}

#[cfg(test)]
mod tests;
