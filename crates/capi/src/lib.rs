//! The pool for programs in C, and for whatever can call C: `libcenote_pool.so`. What each function does, and what its
//! caller owes, is said in `include/cenote_pool.h`, for its callers to read.
//!
//! ```text
//!   C ── cenote_read(space, address, into, len, error) ──► answer: no panic leaves ──► handle, buffer: checked ──► Space::read
//! ```
//!
//! Invariants, in each function:
//! 1. nothing is done outside of [`answer`](error::answer): a panic becomes a status, and an error's text goes to the
//!    caller's memory;
//! 2. a function takes pointers as [`arguments`] and [`handle`] types, whose methods alone make references. They refuse null,
//!    handles of another kind, handles that were closed, lengths that no memory has. That a pointer leads to what its
//!    type says, for as long as the call takes, is what the caller owes;
//! 3. results are written last, and only if nothing failed.

#![allow(
    unsafe_code,
    reason = "an address of unsafe code (design, section 2): callers hand in pointers"
)]

mod access;
mod address;
mod arguments;
mod connect;
mod error;
mod fork;
mod handle;
mod lock;
mod session;
mod space;
mod stats;
mod store;
mod store_files;
mod store_lend;
mod store_queue;

use core::ffi::c_char;

/// Rises with each change after which a program would have to be compiled anew. The library's name ends with it.
const ABI: u32 = 0;

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_pool_abi() -> u32 {
    ABI
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_pool_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
