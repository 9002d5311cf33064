use super::{GlobalAddress, Keeper, Part, Session, SpaceStats};
use cenote_base::Result;
use cenote_fabric::RegionOptions;
use std::path::Path;
use std::sync::Arc;

/// What a space of one part is made with. The default is 1 GiB in part 1 with a random id.
#[derive(Debug, Clone)]
pub struct SpaceOptions {
    /// Size of its part in bytes, all that it needs for itself included.
    pub bytes: u64,
    /// Its id; 0: a random one.
    pub id: u128,
    /// The tenant whose memory it is.
    pub tenant: u32,
    /// How it is mapped.
    pub region: RegionOptions,
}

impl Default for SpaceOptions {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            id: 0,
            tenant: 0,
            region: RegionOptions::default(),
        }
    }
}

/// One of many reads.
#[derive(Debug)]
pub struct Read<'a> {
    /// From where.
    pub address: GlobalAddress,
    /// Into what; its length is what is read.
    pub into: &'a mut [u8],
}

/// One of many writes.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// To where.
    pub address: GlobalAddress,
    /// What.
    pub from: &'a [u8],
}

/// A heap shared by many clients: see the module. Cloning gives another handle on the same.
#[derive(Clone)]
pub struct Space(());

impl Space {
    /// Makes a space of one part in a file or device that holds nothing yet. This process keeps it.
    ///
    /// # Errors
    /// [`cenote_base::Error::Busy`], [`cenote_base::Error::Full`]; `Invalid` if something is there.
    pub fn create(_path: &Path, _options: &SpaceOptions) -> Result<Self> {
        todo!()
    }
    /// A space in memory of this process, gone with it.
    pub fn dram(_options: &SpaceOptions) -> Result<Self> {
        todo!()
    }
    /// Opens a space of one part, and keeps it. All former sessions end: no other process may be using it.
    pub fn open(_path: &Path, _options: RegionOptions) -> Result<Self> {
        todo!()
    }
    /// Maps a space of one part that another process keeps.
    pub fn join(_path: &Path, _options: RegionOptions, _keeper: Arc<dyn Keeper>) -> Result<Self> {
        todo!()
    }
    /// A space without memory: [attach](Self::attach) parts to it.
    pub fn new(_id: u128) -> Self {
        todo!()
    }
    /// Adds a part.
    pub fn attach(&self, _part: Arc<Part>, _keeper: Arc<dyn Keeper>) -> Result<()> {
        todo!()
    }
    /// The keeper of a part, to serve other processes with.
    pub fn keeper(&self, _part: u8) -> Option<Arc<dyn Keeper>> {
        todo!()
    }
    /// A new allocator. It begins in each part with its first allocation there.
    pub fn session(&self) -> Session {
        todo!()
    }
    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    /// `Invalid`: no object is there (freed, never allocated, of a former use of its extent, of another space); `OutOfBounds`: it ends before;
    /// `Corrupt`: the part's own data are broken. So for all accesses.
    pub fn read(&self, _address: GlobalAddress, _into: &mut [u8]) -> Result<()> {
        todo!()
    }
    /// Writes `from` to `address`.
    pub fn write(&self, _address: GlobalAddress, _from: &[u8]) -> Result<()> {
        todo!()
    }
    /// The aligned word at `address`, read at once (acquire).
    pub fn load(&self, _address: GlobalAddress) -> Result<u64> {
        todo!()
    }
    /// Writes the aligned word at `address` at once (release).
    pub fn store(&self, _address: GlobalAddress, _value: u64) -> Result<()> {
        todo!()
    }
    /// Replaces the aligned word at `address` by `new` if it is `expected`; the word that was there.
    pub fn compare_and_swap(&self, _address: GlobalAddress, _expected: u64, _new: u64) -> Result<u64> {
        todo!()
    }
    /// Adds to the aligned word at `address`, wrapping; the word that was there.
    pub fn fetch_add(&self, _address: GlobalAddress, _n: u64) -> Result<u64> {
        todo!()
    }
    /// Reads in turn. The first that fails ends it; the error names its number.
    pub fn read_many(&self, _reads: &mut [Read<'_>]) -> Result<()> {
        todo!()
    }
    /// Writes in turn. The first that fails ends it; the error names its number.
    pub fn write_many(&self, _writes: &[Write<'_>]) -> Result<()> {
        todo!()
    }
    /// Bytes that the object at `address` can hold: at least as many as were asked for. `address` may be inside of it.
    pub fn size_of(&self, _address: GlobalAddress) -> Result<u64> {
        todo!()
    }
    /// Frees the object that begins at `address`, whoever has allocated it.
    pub fn free(&self, _address: GlobalAddress) -> Result<()> {
        todo!()
    }
    /// What lies where, at this moment.
    pub fn stats(&self) -> Result<SpaceStats> {
        todo!()
    }
    /// Looks at everything: a list of what is wrong. Nobody else may hand out extents meanwhile.
    pub fn audit(&self) -> Vec<String> {
        todo!()
    }
}
