//! Every object of a space, one after the other: for callers that free objects without references.

use super::address::GENERATION_SHIFT;
use super::class::{Class, LIVE_BITS};
use super::slot::{Slot, Use};
use super::{GlobalAddress, Part, Space};
use crate::extent::EXTENT;
use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;
use cenote_base::rt::seam::Points;

impl Space {
    /// Tells of each object that is allocated in memory which this process maps: its address, and the bytes that it can
    /// hold. Of what is allocated, freed or moved meanwhile it may tell or not.
    ///
    /// # Errors
    /// [`Corrupt`](cenote_base::Error::Corrupt): a slot's descriptor is broken.
    pub fn each_object(&self, mut each: impl FnMut(GlobalAddress, u64)) -> Result<()> {
        self.parts().try_for_each(|part| of_part(part, &mut each))
    }
}

fn of_part(part: &Part, each: &mut impl FnMut(GlobalAddress, u64)) -> Result<()> {
    for slot in 0..part.slots() {
        let found = part.slot(slot)?;
        match found.used {
            Use::Slab(class, _) => {
                let extent = GlobalAddress::new(part.number(), slot, 0, found.generation)?;
                of_slab(part, slot, extent, class, each)?;
            }
            Use::Head(_) => {
                let bytes = part.run_bytes(slot).load(Ordering::Acquire);
                each(GlobalAddress::new(part.number(), slot, 0, found.generation)?, bytes);
            }
            Use::Away | Use::Lent | Use::Retired => of_migrated(part, slot, each)?,
            Use::Free | Use::Tail(_) | Use::Frozen => {}
        }
    }
    Ok(())
}

/// What lies in the memory of a slot that is not its own extent's: if it is in use here, and not on its way.
fn of_migrated(part: &Part, slot: u32, each: &mut impl FnMut(GlobalAddress, u64)) -> Result<()> {
    let migrated = GlobalAddress::from_raw(part.migrated(slot).load(Ordering::Acquire));
    let state = Slot::decode(part.migrated_state(slot).load(Ordering::Acquire));
    let found = part
        .moving()
        .and_then(|moving| moving.migrated_extents.find(Points, migrated));
    match state.filter(|state| state.generation == migrated.generation() && found == Some(slot)) {
        Some(Slot {
            used: Use::Slab(class, _),
            ..
        }) => of_slab(part, slot, migrated, class, each),
        _ => Ok(()),
    }
}

/// The objects of an extent that lies in a slot.
fn of_slab(
    part: &Part,
    slot: u32,
    extent: GlobalAddress,
    class: Class,
    each: &mut impl FnMut(GlobalAddress, u64),
) -> Result<()> {
    let (size, generation) = (class.size(), extent.generation());
    if class == Class::WHOLE {
        let piece = part.piece(slot)?;
        let is_live = part.live(slot, 0).load(Ordering::Acquire) == u64::from(generation) << GENERATION_SHIFT | 1;
        if is_live && piece.number == 0 {
            each(extent, piece.run_bytes());
        }
        return Ok(());
    }
    for word in 0..class.words() {
        let live = part.live(slot, word).load(Ordering::Acquire);
        let is_its = live >> GENERATION_SHIFT == u64::from(generation);
        let mut bits = if is_its { live & class.mask(word) } else { 0 };
        while bits != 0 {
            let index = word * LIVE_BITS + bits.trailing_zeros();
            let at = index * size as u32;
            assert!(u64::from(at) + size <= EXTENT, "object {index} ends behind its extent");
            each(GlobalAddress::new(extent.part(), extent.slot(), at, generation)?, size);
            bits &= bits - 1;
        }
    }
    Ok(())
}
