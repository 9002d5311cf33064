//! Every object of a space, one after the other: for whoever gives back what nobody refers to.

use super::address::GENERATION_SHIFT;
use super::class::{Class, LIVE_BITS};
use super::slot::Use;
use super::{GlobalAddress, Part, Space};
use cenote_base::Result;
use cenote_base::rt::atomic::Ordering;

impl Space {
    /// Tells of each object that is allocated: its address, and the bytes that it can hold. Of what is allocated or freed meanwhile it may tell or not.
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
            Use::Slab(class, _) => of_slab(part, slot, found.generation, class, each)?,
            Use::Head(_) => {
                let bytes = part.run_bytes(slot).load(Ordering::Acquire);
                each(GlobalAddress::new(part.number(), slot, 0, found.generation)?, bytes);
            }
            Use::Free | Use::Tail(_) | Use::Retired | Use::Frozen | Use::Away | Use::Lent => {}
        }
    }
    Ok(())
}

fn of_slab(
    part: &Part,
    slot: u32,
    generation: u32,
    class: Class,
    each: &mut impl FnMut(GlobalAddress, u64),
) -> Result<()> {
    let size = class.size();
    for word in 0..class.words() {
        let live = part.live(slot, word).load(Ordering::Acquire);
        let is_its = live >> GENERATION_SHIFT == u64::from(generation);
        let mut bits = if is_its { live & class.mask(word) } else { 0 };
        while bits != 0 {
            let index = word * LIVE_BITS + bits.trailing_zeros();
            each(
                GlobalAddress::new(part.number(), slot, index * size as u32, generation)?,
                size,
            );
            bits &= bits - 1;
        }
    }
    Ok(())
}
