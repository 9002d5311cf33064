//! Spaces: opened, closed, and their root.

use super::Handle;
use super::arguments::{path, place};
use super::error::{Report, Status, answer};
use super::handle::{Graveyard, Kind};
use cenote_base::Result;
use cenote_base::rt::Mutex;
use cenote_fabric::RegionOptions;
use cenote_space::{GlobalAddress, Space, SpaceOptions};
use core::ffi::c_char;

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

    /// # Safety
    /// `options` is null, or leads to some.
    unsafe fn read(options: *const Self) -> Self {
        match options.is_null() {
            true => Self::DEFAULT,
            // SAFETY: the same duty; it need not be aligned.
            false => unsafe { options.read_unaligned() },
        }
    }

    pub(super) fn region(self) -> RegionOptions {
        RegionOptions {
            numa_node: self.numa.checked_sub(1),
            small_pages: self.small_pages != 0,
            window: 0,
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
///
/// # Safety
/// `into` and `error` are null or the call's to write.
pub(super) unsafe fn opened(
    into: *mut *mut SpaceHandle,
    error: *mut Report,
    open: impl FnOnce() -> Result<Space>,
) -> Status {
    // SAFETY: the same duty.
    unsafe {
        answer(error, || {
            let place = place(into, "the space")?;
            place.write(core::ptr::null_mut());
            place.write(Handle::make(open()?));
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_space_create(
    file: *const c_char,
    options: *const Options,
    space: *mut *mut SpaceHandle,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's memory, as the header asks (`mod`, 2).
    unsafe {
        opened(space, error, || {
            Space::create(path(file)?, &Options::read(options).space())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_space_open(
    file: *const c_char,
    options: *const Options,
    space: *mut *mut SpaceHandle,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's memory, as the header asks (`mod`, 2).
    unsafe {
        opened(space, error, || {
            Space::open(path(file)?, Options::read(options).region())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_space_private(
    options: *const Options,
    space: *mut *mut SpaceHandle,
    error: *mut Report,
) -> Status {
    // SAFETY: the caller's memory, as the header asks (`mod`, 2).
    unsafe { opened(space, error, || Space::dram(&Options::read(options).space())) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_space_close(space: *mut SpaceHandle, error: *mut Report) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe { answer(error, || Handle::close(space).map(drop)) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_root(space: *const SpaceHandle, root: *mut u64, error: *mut Report) -> Status {
    // SAFETY: the caller's handle and memory, as the header asks (`mod`, 2).
    unsafe {
        answer(error, || {
            let place = place(root, "the root")?;
            place.write(Handle::get(space)?.root()?.raw());
            Ok(())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_set_root(space: *const SpaceHandle, root: u64, error: *mut Report) -> Status {
    // SAFETY: the caller's handle, as the header asks (`mod`, 2).
    unsafe { answer(error, || Handle::get(space)?.set_root(GlobalAddress::from_raw(root))) }
}
