//! The directory of a device that the hosts of a pod share: whose its ranges are.
//!
//! ```text
//!        0  header, one line, written once, last of all when the device is formatted
//!   4 KiB   hosts: 64 slots of 256 B                  written by the host's own agent
//!  20 KiB   ranges: a slot of 128 B for each extent    the slot of a range is that of its first extent
//!   start   the extents, 2 MiB each, or what the device's alignment asks for
//! ```
//!
//! A [slot] is two copies of a record, written in turn, each with a sequence and a checksum: a record that a killed
//! agent, or a lost host, left half written fails its checksum, and the copy before it counts. That change was not
//! confirmed, so the manager orders it again.
//!
//! Invariants:
//! - a slot is changed by the agent of one host at a time: the one that the grant table names for the range (its
//!   holder's, or the one that frees it), and for a host's slot its own. So no two hosts write one line, and nothing
//!   here needs an atomic among hosts: lines are dropped before they are read, and written back before a change is
//!   confirmed;
//! - the manager's grant table decides; the directory says what was carried out. An order that contradicts it (another
//!   grant's range, an older epoch) is refused, and nothing is zeroed on a guess;
//! - nothing is formatted over something.

mod layout;
mod slot;

pub(crate) use slot::{GrantPlace, HostRecord, RangeRecord};

#[cfg(test)]
use crate::grant_table::GrantId;
use crate::grant_table::NodeId;
use cenote_base::rt;
use cenote_base::units::ByteSize;
use cenote_base::{Error, Result};
use cenote_fabric::{FileRange, Kind, RegionMemory, SharedDevice};
use layout::{Header, Layout};
use std::path::{Path, PathBuf};

/// A device of the pool, with its directory mapped.
pub(crate) struct PoolDevice {
    path: PathBuf,
    device: SharedDevice,
    header: Header,
    layout: Layout,
    directory: RegionMemory,
    /// The device number and inode of what was opened.
    opened: (u64, u64),
}

impl PoolDevice {
    /// Makes a new file of `bytes` and formats it. It gets its name when it is whole: of two hosts that make it at once
    /// one succeeds.
    ///
    /// # Errors
    /// [`Error::Invalid`] if something has the name already; those of files.
    pub(crate) fn make(path: &Path, bytes: u64, pool: u128) -> Result<()> {
        let named = |what: &str| format!("{what} {}", path.display());
        if rt::fs::exists(path).map_err(|error| Error::io(named("looking for"), error))? {
            return Err(Error::Invalid(format!("{} is there already", path.display())));
        }
        let draft = path.with_extension(format!("new-{:016x}", rt::random()));
        let made = Self::make_at(&draft, bytes, pool).and_then(|()| {
            let published = rustix::fs::link(&draft, path);
            published.map_err(|error| Error::io(named("making"), error.into()))
        });
        rt::fs::remove(&draft).ok();
        made
    }

    fn make_at(draft: &Path, bytes: u64, pool: u128) -> Result<()> {
        let failed = |error| Error::io(format!("making {}", draft.display()), error);
        let file = rt::fs::open(draft, rt::fs::OpenOptions::CREATE).map_err(failed)?;
        let directory = draft.parent().unwrap_or(Path::new("/"));
        let free = rt::fs::free_bytes(directory).map_err(failed)?;
        if free < bytes {
            return Err(Error::Full(format!(
                "{} has room for {}, and a device of {} is to be made there",
                directory.display(),
                ByteSize(free),
                ByteSize(bytes)
            )));
        }
        file.set_len(bytes).map_err(failed)?;
        Self::format(draft, pool)
    }

    /// Writes an empty directory on a device, or a file, and zeros everywhere else.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it holds something; [`Error::Full`] if it is too small; those of files.
    pub(crate) fn format(path: &Path, pool: u128) -> Result<()> {
        let device = SharedDevice::open(path)?;
        let layout = Layout::of(device.len(), device.align())?;
        let directory = map_directory(&device, layout.start)?;
        if !layout::is_blank(&directory) {
            return Err(Error::Invalid(format!(
                "{} begins with something: nothing is formatted over it. If it is not needed, empty its first {} yourself",
                path.display(),
                ByteSize(layout.start)
            )));
        }
        let (offset, bytes) = (0, layout.end());
        device.erase(FileRange { offset, bytes })?;
        let header = Header {
            pool,
            device: NodeId(rt::random()),
            length: device.len(),
            granule: layout.granule,
            extents: layout.extents,
        };
        header.write(&directory);
        Ok(())
    }

    /// Opens a device of a pool, and reads all of its directory.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it has no directory, one of another format or of another size than it; [`Error::Corrupt`]
    /// naming what is damaged; those of files.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let device = SharedDevice::open(path)?;
        let name = path.display().to_string();
        let header = Header::read(&map_directory(&device, device.align().max(layout::HEAD))?, &name)?;
        let layout = Layout::of(header.length, header.granule)?;
        let fits = header.length == device.len() && header.granule.is_multiple_of(device.align());
        if !fits || layout.extents != header.extents {
            return Err(Error::Mismatch(format!(
                "{name}: its header says {} in steps of {}, the device has {} in steps of {}",
                ByteSize(header.length),
                ByteSize(header.granule),
                ByteSize(device.len()),
                ByteSize(device.align())
            )));
        }
        let opened = Self {
            path: path.into(),
            directory: map_directory(&device, layout.start)?,
            device,
            header,
            layout,
            opened: identity_of(path)?,
        };
        opened.ranges()?;
        opened.hosts()?;
        Ok(opened)
    }

    /// What was opened still has its name. Processes are found by what has the name now: those that map a file whose
    /// place another has taken would not be seen.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; those of files.
    pub(crate) fn check_there(&self) -> Result<()> {
        match identity_of(&self.path)? == self.opened {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "{} is another file than the one that this agent has opened: start the agent again",
                self.path.display()
            ))),
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.header.device
    }

    pub(crate) fn pool(&self) -> u128 {
        self.header.pool
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn kind(&self) -> Kind {
        self.device.kind()
    }

    /// All that can be granted.
    pub(crate) fn extents(&self) -> FileRange {
        FileRange {
            offset: self.layout.start,
            bytes: self.layout.extents * self.layout.granule,
        }
    }

    pub(crate) fn granule(&self) -> u64 {
        self.layout.granule
    }

    /// The bytes of the directory.
    pub(crate) fn head(&self) -> FileRange {
        FileRange {
            offset: 0,
            bytes: self.layout.start,
        }
    }

    // ---- ranges ----

    /// What the directory says of ranges, those that were freed included.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming a slot that is damaged.
    pub(crate) fn ranges(&self) -> Result<Vec<RangeRecord>> {
        let mut found = Vec::new();
        for extent in 0..self.layout.extents {
            found.extend(self.range_at(extent)?);
        }
        Ok(found)
    }

    fn range_at(&self, extent: u64) -> Result<Option<RangeRecord>> {
        let at = self.layout.range_slot(extent);
        let record = slot::read::<RangeRecord>(&self.directory, at)
            .map_err(|error| self.damaged(&format!("range of extent {extent}"), &error))?;
        match record {
            Some(record) if self.layout.extent_of(record.place.range) != Some(extent) => {
                Err(self.damaged(&format!("range of extent {extent}"), &Error::corrupt("its place")))
            }
            record => Ok(record),
        }
    }

    fn damaged(&self, what: &str, error: &Error) -> Error {
        Error::corrupt(format!("{}: the directory's {what}: {error}", self.path.display()))
    }

    /// The slot of a place, and what it says.
    fn slot_of(&self, place: GrantPlace) -> Result<(u64, Option<RangeRecord>)> {
        let extent = self.layout.extent_of(place.range).ok_or_else(|| {
            let (range, path) = (place.range, self.path.display());
            Error::Invalid(format!(
                "{path} has no extents at {} of {} bytes",
                range.offset, range.bytes
            ))
        })?;
        Ok((self.layout.range_slot(extent), self.range_at(extent)?))
    }

    /// Notes that a range is a grant's. `is_new`: it never was before. It is zeros then: what is free was made so.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the directory says something else; [`Error::Corrupt`]; those of files.
    pub(crate) fn admit(&self, place: GrantPlace, is_new: bool) -> Result<()> {
        let (at, found) = self.slot_of(place)?;
        let ours = found.filter(|found| found.is_granted() && found.place.grant == place.grant);
        match ours {
            Some(found) if found.place.range != place.range || found.place.epoch > place.epoch => {
                return Err(self.contradicts(place, &found));
            }
            None if !is_new => {
                return Err(Error::corrupt(format!(
                    "{}: the directory does not know grant {} any more: what it had is lost. Free it (cenote pool free {})",
                    self.path.display(),
                    place.grant,
                    place.grant
                )));
            }
            None => self.check_free(place)?,
            Some(_) => {}
        }
        slot::write(&self.directory, at, &RangeRecord::granted(place))
    }

    fn contradicts(&self, place: GrantPlace, found: &RangeRecord) -> Error {
        Error::Mismatch(format!(
            "{}: the directory has grant {} with epoch {} at {} of {} bytes, and grant {} with epoch {} is asked for at {} of {}",
            self.path.display(),
            found.place.grant,
            found.place.epoch,
            found.place.range.offset,
            found.place.range.bytes,
            place.grant,
            place.epoch,
            place.range.offset,
            place.range.bytes
        ))
    }

    /// No other grant has a byte of it.
    fn check_free(&self, place: GrantPlace) -> Result<()> {
        let is_in_the_way = |found: &RangeRecord| found.is_granted() && found.place.range.overlaps(&place.range);
        match self.ranges()?.iter().find(|found| is_in_the_way(found)) {
            None => Ok(()),
            Some(found) => Err(self.contradicts(place, found)),
        }
    }

    /// A range is this grant's, or no other's: so its users may be ended, and its bytes touched.
    ///
    /// # Errors
    /// As [`PoolDevice::admit`].
    pub(crate) fn check_standing(&self, place: GrantPlace) -> Result<()> {
        let (_, found) = self.slot_of(place)?;
        match found.filter(|found| found.is_granted() && found.place.grant == place.grant) {
            Some(found) if found.place.range != place.range => Err(self.contradicts(place, &found)),
            Some(_) => Ok(()),
            None => self.check_free(place),
        }
    }

    /// Has a grant's range made zeros by `erase`, and notes that it is free.
    ///
    /// # Errors
    /// As [`PoolDevice::admit`]; those of `erase`.
    pub(crate) fn free(&self, place: GrantPlace, erase: impl FnOnce() -> Result<()>) -> Result<()> {
        self.check_standing(place)?;
        let (at, _) = self.slot_of(place)?;
        erase()?;
        slot::write(&self.directory, at, &RangeRecord::freed(place))
    }

    /// Makes a part of a range zeros.
    ///
    /// # Errors
    /// Those of mapping.
    pub(crate) fn erase(&self, range: FileRange) -> Result<()> {
        self.device.erase(range)
    }

    /// What this host's caches hold of a part of a range is in memory, and nowhere else.
    ///
    /// # Errors
    /// Those of mapping.
    pub(crate) fn write_back(&self, range: FileRange) -> Result<()> {
        self.device.write_back(range)
    }

    // ---- hosts ----

    /// What agents of hosts have noted, by their slots.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming a slot that is damaged.
    pub(crate) fn hosts(&self) -> Result<Vec<HostRecord>> {
        let mut found = Vec::new();
        for number in 0..layout::HOSTS_MAX {
            let record = slot::read::<HostRecord>(&self.directory, Layout::host_slot(number))
                .map_err(|error| self.damaged(&format!("host {number}"), &error))?;
            found.extend(record);
        }
        Ok(found)
    }

    /// What the agent of a host noted last.
    ///
    /// # Errors
    /// As [`PoolDevice::hosts`].
    pub(crate) fn host(&self, name: &str) -> Result<Option<HostRecord>> {
        Ok(self.hosts()?.into_iter().find(|host| host.name == name))
    }

    /// Notes it in the host's slot.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a slot that there is not; as [`PoolDevice::hosts`].
    pub(crate) fn note_host(&self, number: u64, record: &HostRecord) -> Result<()> {
        if number >= layout::HOSTS_MAX {
            let path = self.path.display();
            return Err(Error::Invalid(format!("{path} has no slot {number} for a host")));
        }
        let at = Layout::host_slot(number);
        let former = slot::read::<HostRecord>(&self.directory, at)?;
        if former.as_ref().is_some_and(|former| former.name != record.name) {
            return Err(self.damaged(&format!("host {number}"), &Error::corrupt("it is another host's")));
        }
        match former.as_ref() == Some(record) {
            true => Ok(()),
            false => slot::write(&self.directory, at, record),
        }
    }
}

#[cfg(test)]
impl PoolDevice {
    fn map_for_test(&self, range: FileRange) -> RegionMemory {
        self.device.map(range).expect("mapped")
    }
}

fn identity_of(path: &Path) -> Result<(u64, u64)> {
    // A simulated device has nothing but its path.
    if rt::memory(path).is_some() {
        return Ok((0, 0));
    }
    let stat = rustix::fs::stat(path);
    let stat = stat.map_err(|error| Error::io(format!("looking at {}", path.display()), error.into()))?;
    Ok((stat.st_dev, stat.st_ino))
}

fn map_directory(device: &SharedDevice, bytes: u64) -> Result<RegionMemory> {
    let bytes = bytes.next_multiple_of(device.align());
    device.map(FileRange { offset: 0, bytes })
}

#[cfg(test)]
mod tests;
