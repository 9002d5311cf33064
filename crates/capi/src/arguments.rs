//! What callers hand in, checked: memory and texts.

use cenote_base::{Error, Result};
use core::ffi::{CStr, c_char, c_void};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Memory to read from.
///
/// # Safety
/// Unless it is null, `len` bytes are there to be read until `'a` ends, and no thread changes them.
#[inline(always)]
pub(super) unsafe fn bytes<'a>(from: *const c_void, len: usize) -> Result<&'a [u8]> {
    match is_memory(from, len)? {
        // SAFETY: not null, as long as memory can be; the rest is the caller's duty.
        true => Ok(unsafe { core::slice::from_raw_parts(from.cast(), len) }),
        false => Ok(&[]),
    }
}

/// Memory to write into.
///
/// # Safety
/// Unless it is null, `len` bytes are there to be written until `'a` ends, and no other thread uses them.
#[inline(always)]
pub(super) unsafe fn buffer<'a>(into: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    match is_memory(into, len)? {
        // SAFETY: not null, as long as memory can be; the rest is the caller's duty.
        true => Ok(unsafe { core::slice::from_raw_parts_mut(into.cast(), len) }),
        false => Ok(&mut []),
    }
}

/// Whether there can be memory; where nothing is asked for there need not be.
#[inline(always)]
fn is_memory(at: *const c_void, len: usize) -> Result<bool> {
    if at.is_null() && len > 0 || len > isize::MAX as usize {
        return Err(no_memory(at, len));
    }
    Ok(len > 0)
}

#[cold]
fn no_memory(at: *const c_void, len: usize) -> Error {
    Error::Invalid(match at.is_null() {
        true => format!("the memory for {len} bytes is NULL"),
        false => format!("no memory has {len} bytes"),
    })
}

/// An array of `n` things.
///
/// # Safety
/// Unless it is null, `n` of them are there until `'a` ends, and no thread changes them.
pub(super) unsafe fn array<'a, T>(from: *const T, n: usize) -> Result<&'a [T]> {
    let len = n.saturating_mul(size_of::<T>());
    if !is_memory(from.cast(), len)? {
        return Ok(&[]);
    }
    if !from.is_aligned() {
        return Err(Error::Invalid("an array that is not aligned".into()));
    }
    // SAFETY: not null, aligned, as long as memory can be; the rest is the caller's duty.
    Ok(unsafe { core::slice::from_raw_parts(from, n) })
}

/// A place for a result: not null.
pub(super) fn place<T>(at: *mut T, what: &str) -> Result<*mut T> {
    match at.is_null() || !at.is_aligned() {
        false => Ok(at),
        true => Err(Error::Invalid(format!("the place for {what} is {at:?}"))),
    }
}

/// A text that ends with a zero.
///
/// # Safety
/// Unless it is null, it does, and stays until `'a` ends.
pub(super) unsafe fn c_str<'a>(from: *const c_char, what: &str) -> Result<&'a CStr> {
    if from.is_null() {
        return Err(Error::Invalid(format!("{what} is NULL")));
    }
    // SAFETY: not null; the rest is the caller's duty.
    Ok(unsafe { CStr::from_ptr(from) })
}

/// The same, of characters.
///
/// # Safety
/// As [`c_str`].
pub(super) unsafe fn text<'a>(from: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: the same duty.
    let text = unsafe { c_str(from, what)? };
    let invalid = |e| Error::Invalid(format!("{what} is no UTF-8: {e}"));
    text.to_str().map_err(invalid)
}

/// A file's name, which may be of any bytes.
///
/// # Safety
/// As [`c_str`].
pub(super) unsafe fn path<'a>(from: *const c_char) -> Result<&'a Path> {
    // SAFETY: the same duty.
    let name = unsafe { c_str(from, "the path")? };
    match name.is_empty() {
        false => Ok(Path::new(OsStr::from_bytes(name.to_bytes()))),
        true => Err(Error::Invalid("the path is empty".into())),
    }
}
