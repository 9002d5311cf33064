//! Accesses to runs whose [pieces](super::pieces) lie apart, and the end of a run.

use super::act::{Act, Step};
use super::{EXTENT, GlobalAddress, Space};
use cenote_base::{Error, Result};

impl Space {
    /// Does a read or write of a run piece by piece, as they lie apart.
    pub(super) fn act_split(&self, address: GlobalAddress, act: &mut Act<'_>) -> Result<()> {
        let mut steps = Vec::new();
        act.in_extents(address, &mut steps)?;
        let far = steps.iter().all(|(address, _)| self.is_far(*address));
        if far {
            return self.act_far(steps);
        }
        let each = |(address, mut act): Step<'_>| self.act(address, &mut act).map(drop);
        steps.into_iter().try_for_each(each)
    }

    /// Frees the pieces of a run, the first one last: it is there as long as another has to be freed.
    pub(super) fn free_pieces(&self, address: GlobalAddress, count: u64) -> Result<()> {
        for number in (1..count).rev() {
            let piece = address.checked_add(number * EXTENT);
            let piece = piece.ok_or_else(|| Error::corrupt(format!("{count} pieces of a run at {address}")))?;
            match self.act(piece, &mut Act::FreePiece) {
                // Another that frees the run was faster, or was killed over it.
                Ok(_) | Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if count > 1 {
            self.act(address, &mut Act::FreePiece)?;
        }
        // It finds them empty later, if it does not hear of it now.
        let _ = self
            .keeper_of(address.part())
            .and_then(|keeper| keeper.free_run(address));
        Ok(())
    }
}
