//! Spaces: opened, closed, and their root.

use super::arguments::{OutArg, StructArg, TextArg};
use super::error::{ReportArg, Status, answer};
use super::handle::{ClosingArg, Graveyard, Handle, HandleArg, Kind};
use cenote_base::Result;
use cenote_base::rt::Mutex;
use cenote_fabric::RegionOptions;
use cenote_space::{GlobalAddress, Space, SpaceOptions};

/// `cenote_space`.
pub(super) type SpaceHandle = Handle<Space>;

impl Kind for Space {
    const MAGIC: u64 = 0x6563_6170_0000_0000;
    const NAME: &'static str = "a space";

    fn graveyard() -> &'static Mutex<Graveyard<Self>> {
        static CLOSED: Mutex<Graveyard<Space>> = Mutex::new(Graveyard::new());
        &CLOSED
    }
}

/// `cenote_space_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    pub(super) bytes: u64,
    numa: u32,
    small_pages: u32,
}

impl Options {
    pub(super) const DEFAULT: Self = Self {
        bytes: 0,
        numa: 0,
        small_pages: 0,
    };

    fn of(options: StructArg<'_, Self>) -> Self {
        options.get().unwrap_or(Self::DEFAULT)
    }

    pub(super) fn region(self) -> RegionOptions {
        RegionOptions {
            numa_node: self.numa.checked_sub(1),
            small_pages: self.small_pages != 0,
            window: 0,
            range: None,
        }
    }

    fn space(self) -> SpaceOptions {
        let default = SpaceOptions::default();
        SpaceOptions {
            bytes: if self.bytes == 0 { default.bytes } else { self.bytes },
            region: self.region(),
            ..default
        }
    }
}

/// Makes a handle of what `open` gives.
pub(super) fn opened(
    into: OutArg<'_, *mut SpaceHandle>,
    error: ReportArg<'_>,
    open: impl FnOnce() -> Result<Space>,
) -> Status {
    answer(error, || {
        let mut place = into.place("the space")?;
        place.write(core::ptr::null_mut());
        place.write(Handle::make(open()?));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_space_create(
    file: TextArg<'_>,
    options: StructArg<'_, Options>,
    space: OutArg<'_, *mut SpaceHandle>,
    error: ReportArg<'_>,
) -> Status {
    opened(space, error, || {
        Space::create(file.path()?, &Options::of(options).space())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_space_open(
    file: TextArg<'_>,
    options: StructArg<'_, Options>,
    space: OutArg<'_, *mut SpaceHandle>,
    error: ReportArg<'_>,
) -> Status {
    opened(space, error, || {
        Space::open(file.path()?, Options::of(options).region())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_space_private(
    options: StructArg<'_, Options>,
    space: OutArg<'_, *mut SpaceHandle>,
    error: ReportArg<'_>,
) -> Status {
    opened(space, error, || Space::dram(&Options::of(options).space()))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_space_close(space: ClosingArg<Space>, error: ReportArg<'_>) -> Status {
    answer(error, || space.close().map(drop))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_root(space: HandleArg<'_, Space>, root: OutArg<'_, u64>, error: ReportArg<'_>) -> Status {
    answer(error, || {
        let mut place = root.place("the root")?;
        place.write(space.get()?.root()?.raw());
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_set_root(space: HandleArg<'_, Space>, root: u64, error: ReportArg<'_>) -> Status {
    answer(error, || space.get()?.set_root(GlobalAddress::from_raw(root)))
}
