//! Bytes of objects that this process maps, for callers that use them in place or keep an incoherent device right by
//! themselves.

use super::act::{Act, Outcome};
use super::part::Part;
use super::pieces::cut;
use super::{First, GlobalAddress, Space};
use cenote_base::{Error, Result};
use cenote_fabric::{Region, coherence};

impl Space {
    /// Whether this process maps the part that an address names.
    #[inline]
    pub fn is_near(&self, address: GlobalAddress) -> bool {
        self.part_numbered(address.part()).is_some()
    }

    /// Writes the lines of these bytes back to memory and fences: a host that invalidates them later reads them. Of
    /// memory that this process does not map there is nothing to do: its host wrote it, and back if others
    /// [share](Part::share) it.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn write_back(&self, address: GlobalAddress, len: usize) -> Result<()> {
        self.with_lines(address, len, |region, at, len| {
            coherence::write_back(region, at, len);
            coherence::fence(region);
        })
    }

    /// Drops the lines of these bytes from this host's caches: what is read next comes from memory.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn invalidate(&self, address: GlobalAddress, len: usize) -> Result<()> {
        self.with_lines(address, len, |region, at, len| coherence::invalidate(region, at, len))
    }

    fn with_lines(&self, address: GlobalAddress, len: usize, f: impl Fn(&Region, u64, usize)) -> Result<()> {
        let (mut address, mut left) = (address, len);
        while left > 0 {
            // Extents of a run may lie apart.
            let now = cut(address, left).unwrap_or(left);
            match self.place_here(address, now as u64)? {
                Some((part, at)) => f(part.region(), at, now),
                None => _ = self.with_shared_lines(address, now, |region, at| f(region, at, now))?,
            }
            let next = address.checked_add(now as u64);
            address = next.ok_or_else(|| Error::OutOfBounds(format!("{len} bytes, the last at {address}")))?;
            left -= now;
        }
        Ok(())
    }

    /// Where these bytes are mapped, for those whose unsafe code has an address of its own; `None` if they lie in a
    /// part that this process does not map, or in extents of a run that lie apart. They stay there until the object is
    /// freed, or its extent moves.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn pointer(&self, address: GlobalAddress, len: usize) -> Result<Option<*mut u8>> {
        let found = self.place_here(address, len as u64)?;
        Ok(found.map(|(part, at)| part.region().span(at, len as u64).as_ptr()))
    }

    /// The part of this process that has these bytes, and where.
    fn place_here(&self, address: GlobalAddress, len: u64) -> Result<Option<(&Part, u64)>> {
        let Some(part) = self.part_numbered(address.part()) else {
            return Ok(None);
        };
        Act::Find(len).check(address)?;
        match part.act(address, &mut Act::Find(len))? {
            Outcome::Done(at, _) => Ok(Some((part, at))),
            _ => Ok(None),
        }
    }
}

impl Space {
    /// Sets the root if there is none: the root since. Of several processes that do so at once one wins, wherever they
    /// are.
    ///
    /// # Errors
    /// As [`Space::root`].
    pub fn claim_root(&self, root: GlobalAddress) -> Result<GlobalAddress> {
        match self.first_part()? {
            First::Here(part) => {
                part.swap_root(GlobalAddress::NULL, root);
                self.root()
            }
            First::There(part) => part.claim_root(root),
        }
    }
}
