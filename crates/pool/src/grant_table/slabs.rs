//! Slabs in the grant table: grants that belong to a first one, and are reached over the fabric as that is.
//!
//! A slab is named by its number, and its label made of the first grant's: so a holder names no grant but its own, and
//! slabs follow the label when that has another grant (the first one's memory node was forgotten).
//!
//! Invariants:
//! - a request of a slab is looked at with its first grant, in one change: a process that has lost that opens no slab,
//!   and frees none;
//! - a grant with a slab's label that is reached over the fabric is a slab: it is opened in no other way.

use super::{GrantId, GrantTable, Opening};
use crate::ids::{is_slab_label, slab_label};
use crate::wire::{Moves, OpenRequest, Reach, SLABS_AT_ONCE, SlabsRequest};
use cenote_base::rt::Nanos;
use cenote_base::{Error, Result};

impl SlabsRequest {
    /// What is asked for each of them.
    fn of(&self, label: String) -> OpenRequest {
        OpenRequest {
            label,
            description: self.description.clone(),
            bytes: self.bytes,
            pod: self.pod.clone(),
            keep: None,
            machine: 0,
            mirror: false,
            host: None,
            reach: Reach::Remote {
                takes: true,
                moves: Some(Moves { held: None }),
            },
        }
    }
}

/// A slab is asked for by its first grant's holder.
///
/// # Errors
/// [`Error::Invalid`] names the label.
pub(super) fn check_is_no_slab(requested: &OpenRequest) -> Result<()> {
    let is_remote = requested.reach != Reach::Mapped;
    match is_remote && is_slab_label(&requested.label) {
        false => Ok(()),
        true => Err(Error::Invalid(format!(
            "\"{}\" is the label of a slab: only the holder of the grant that it belongs to opens it",
            requested.label.escape_debug()
        ))),
    }
}

fn check_numbers(slabs: &[u32]) -> Result<()> {
    let count = slabs.len();
    if count > SLABS_AT_ONCE {
        let text = format!("{count} slabs are asked for at once: {SLABS_AT_ONCE} are the most");
        return Err(Error::Invalid(text));
    }
    match slabs.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "slabs are asked for by rising numbers: those of {count} do not rise"
        ))),
    }
}

impl GrantTable {
    /// The holder of a grant wants slabs of it: what each of them came to, in their order. One that is refused has
    /// changed nothing.
    ///
    /// # Errors
    /// [`Error::Revoked`] if it is the holder no more; [`Error::Invalid`] if the grant is mapped, or by the numbers.
    pub fn open_slabs(
        &mut self,
        tenant: &str,
        requested: &SlabsRequest,
        now: Nanos,
        lease: Nanos,
    ) -> Result<Vec<Result<Opening>>> {
        check_numbers(&requested.slabs)?;
        let first = self.first_label(tenant, requested.first, requested.epoch)?;
        let open = |slab: &u32| {
            let asked = requested.of(slab_label(&first, *slab));
            self.open_labelled(tenant, &asked, now, lease)
        };
        Ok(requested.slabs.iter().map(open).collect())
    }

    /// A slab is needed no more, as the holder of its first grant says. Nothing where there is none: it may say so
    /// twice.
    ///
    /// # Errors
    /// As of [`GrantTable::open_slabs`]; [`Error::Mismatch`] if the grant of that label is mapped.
    pub fn free_slab(&mut self, tenant: &str, (first, epoch): (GrantId, u64), slab: u32) -> Result<()> {
        let label = slab_label(&self.first_label(tenant, first, epoch)?, slab);
        match self.labelled(tenant, &label).map(|(id, grant)| (id, grant.remote)) {
            None => Ok(()),
            Some((id, true)) => {
                assert!(id != first, "grant {first} is no slab of its own");
                self.set_freeing(id);
                Ok(())
            }
            Some((id, false)) => Err(Error::Mismatch(format!(
                "grant {id}, \"{}\", is mapped by its holders, and no slab of grant {first}",
                label.escape_debug()
            ))),
        }
    }

    /// The label of a grant that may have slabs, as its holder names it.
    fn first_label(&self, tenant: &str, first: GrantId, epoch: u64) -> Result<String> {
        let grant = self.held(tenant, first, epoch)?;
        match grant.remote && !is_slab_label(&grant.label) {
            true => Ok(grant.label.clone()),
            false => Err(Error::Invalid(format!(
                "grant {first}, \"{}\", has no slabs: it is one, or is mapped by its holder",
                grant.label.escape_debug()
            ))),
        }
    }
}
