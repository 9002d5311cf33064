use cenote_base::Result;
use cenote_fabric::RegionOptions;
use std::path::Path;

/// What a part is made with.
#[derive(Debug, Clone)]
pub struct PartOptions {
    /// The space that it is of.
    pub space: u128,
    /// Its number there, from 1 on.
    pub part: u8,
    /// The tenant whose memory it is, where a pool serves several.
    pub tenant: u32,
    /// Its size in bytes, all that it needs for itself included.
    pub bytes: u64,
    /// How it is mapped.
    pub region: RegionOptions,
}

/// Memory of a space on one memory node, mapped by this process.
pub struct Part {
    number: u8,
}

impl Part {
    /// Makes one in a file or device, and is the process that keeps it.
    pub fn create(_path: &Path, options: &PartOptions) -> Result<Self> {
        Ok(Self { number: options.part })
    }
    /// Makes one in memory of this process.
    pub fn dram(options: &PartOptions) -> Result<Self> {
        Ok(Self { number: options.part })
    }
    /// Opens one, and is the process that keeps it.
    pub fn open(_path: &Path, _options: RegionOptions) -> Result<Self> {
        todo!()
    }
    /// Maps one that another process keeps.
    pub fn join(_path: &Path, _options: RegionOptions) -> Result<Self> {
        todo!()
    }
    /// Its number in the space.
    pub fn number(&self) -> u8 {
        self.number
    }
}
