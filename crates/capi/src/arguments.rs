//! The arguments of exported functions: pointers of C as types, which check them when a function uses them.
//!
//! Each type is `repr(transparent)` over a pointer, so the ABI is that of the pointer in the header. No safe code of
//! this crate can make an argument of a pointer: only a call from C does. Such a call owes what the header says of the
//! pointer, for as long as the call takes (`'a`): it is null, or it leads to what its type says. All unsafe code below
//! rests on this duty, named "the caller's duty".

use cenote_base::{Error, Result};
use core::ffi::{CStr, c_char, c_void};
use core::marker::PhantomData;
use core::ptr;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that a function reads: no thread changes them during the call.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct BytesArg<'a>(*const c_void, PhantomData<&'a [u8]>);

impl<'a> BytesArg<'a> {
    /// The first `len` bytes.
    ///
    /// # Errors
    /// `Error::Invalid` if the pointer is null and `len` is not 0, or if no memory has `len` bytes.
    #[inline(always)]
    pub(super) fn bytes(self, len: usize) -> Result<&'a [u8]> {
        match is_memory(self.0, len)? {
            // SAFETY: not null, as long as memory can be; the rest is the caller's duty.
            true => Ok(unsafe { core::slice::from_raw_parts(self.0.cast(), len) }),
            false => Ok(&[]),
        }
    }
}

/// Bytes that a function writes: no other thread uses them during the call.
#[repr(transparent)]
pub struct BufferArg<'a>(*mut c_void, PhantomData<&'a mut [u8]>);

impl<'a> BufferArg<'a> {
    /// The first `len` bytes.
    ///
    /// # Errors
    /// `Error::Invalid` if the pointer is null and `len` is not 0, or if no memory has `len` bytes.
    #[inline(always)]
    pub(super) fn bytes(self, len: usize) -> Result<&'a mut [u8]> {
        match is_memory(self.0, len)? {
            // SAFETY: not null, as long as memory can be; an argument is used up here; the rest is the caller's duty.
            true => Ok(unsafe { core::slice::from_raw_parts_mut(self.0.cast(), len) }),
            false => Ok(&mut []),
        }
    }
}

/// Places for results, one for each element of another array: the call's alone to write.
#[repr(transparent)]
pub struct ResultsArg<'a, T>(*mut T, PhantomData<&'a mut [T]>);

impl<'a, T: Copy> ResultsArg<'a, T> {
    /// The first `n` places.
    ///
    /// # Errors
    /// `Error::Invalid` if the pointer is null and `n` is not 0, if it is not aligned, or if no memory has `n` elements.
    pub(super) fn places(self, n: usize) -> Result<&'a mut [T]> {
        match is_memory(self.0.cast(), n.saturating_mul(size_of::<T>()))? {
            false => Ok(&mut []),
            true if !self.0.is_aligned() => Err(Error::Invalid("an array that is not aligned".into())),
            // SAFETY: not null, aligned, as long as memory can be; an argument is used up here; C's integers may have
            // any bytes; the rest is the caller's duty.
            true => Ok(unsafe { core::slice::from_raw_parts_mut(self.0, n) }),
        }
    }
}

/// Memory of a caller's that is used beyond the call, until the caller is told that it is not any more: the header says
/// until when. What is only read need not be writable.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct MemoryArg(*mut c_void);

impl MemoryArg {
    /// The first `len` bytes.
    ///
    /// # Errors
    /// As [`BufferArg::bytes`].
    pub(super) fn lent(self, len: usize) -> Result<Lent> {
        let is_some = is_memory(self.0, len)?;
        let at = if is_some {
            self.0.cast()
        } else {
            ptr::NonNull::dangling().as_ptr()
        };
        Ok(Lent { at, len })
    }
}

/// See [`MemoryArg`].
pub(super) struct Lent {
    at: *mut u8,
    len: usize,
}

// SAFETY: the caller's memory, which it leaves to this library until it is told otherwise, on whatever thread.
unsafe impl Send for Lent {}

impl Lent {
    /// Whether no two of them have bytes in common, so that all may be written at once.
    pub(super) fn are_apart<'a>(all: impl Iterator<Item = &'a Self>) -> bool {
        let mut ranges: Vec<_> = all
            .filter(|lent| lent.len > 0)
            .map(|lent| (lent.at.addr(), lent.len))
            .collect();
        ranges.sort_unstable();
        ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
    }
}

impl cenote_store::Buffer for Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: not null, as long as memory can be; the rest is the caller's duty.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the caller's to write, as it wants values there.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

/// Whether there can be memory; an empty range needs none.
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

/// An array that a function reads: no thread changes it during the call.
#[repr(transparent)]
pub struct ArrayArg<'a, T>(*const T, PhantomData<&'a [T]>);

impl<'a, T> ArrayArg<'a, T> {
    pub(super) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The first `n` elements, each of them once.
    ///
    /// # Errors
    /// `Error::Invalid` if the pointer is null and `n` is not 0, if it is not aligned, or if no memory has `n` elements.
    pub(super) fn elements(self, n: usize) -> Result<impl ExactSizeIterator<Item = T> + use<'a, T>> {
        const {
            assert!(
                !core::mem::needs_drop::<T>(),
                "elements that are moved out stay in C's memory"
            )
        };
        let len = n.saturating_mul(size_of::<T>());
        let elements: &'a [T] = match is_memory(self.0.cast(), len)? {
            false => &[],
            true if !self.0.is_aligned() => return Err(Error::Invalid("an array that is not aligned".into())),
            // SAFETY: not null, aligned, as long as memory can be; the rest is the caller's duty.
            true => unsafe { core::slice::from_raw_parts(self.0, n) },
        };
        // SAFETY: a valid element, which this iterator alone moves out, once.
        Ok(elements.iter().map(|element| unsafe { ptr::read(element) }))
    }
}

/// A structure of C's that a function reads, or null. It need not be aligned.
#[repr(transparent)]
pub struct StructArg<'a, T>(*const T, PhantomData<&'a T>);

impl<T: Copy> StructArg<'_, T> {
    /// `None` if the pointer is null.
    pub(super) fn get(self) -> Option<T> {
        // SAFETY: not null; the rest is the caller's duty.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// A place for a result: the call's alone to write.
#[repr(transparent)]
pub struct OutArg<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<'a, T: Copy> OutArg<'a, T> {
    /// The place for `what`, which the function needs.
    ///
    /// # Errors
    /// `Error::Invalid` if the pointer is null or not aligned.
    pub(super) fn place(self, what: &str) -> Result<Place<'a, T>> {
        match self.0.is_null() || !self.0.is_aligned() {
            false => Ok(Place(self)),
            true => Err(Error::Invalid(format!("the place for {what} is {:?}", self.0))),
        }
    }

    /// Writes a result that the caller may not want: nothing if the pointer is null. It need not be aligned.
    #[inline(always)]
    pub(super) fn write_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null; the rest is the caller's duty.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

#[cfg(test)]
impl<'a, T> OutArg<'a, T> {
    pub(super) const NULL: Self = Self(ptr::null_mut(), PhantomData);

    pub(super) fn of(place: &'a mut T) -> Self {
        Self(place, PhantomData)
    }
}

/// An [`OutArg`] that is neither null nor unaligned.
pub(super) struct Place<'a, T>(OutArg<'a, T>);

impl<T: Copy> Place<'_, T> {
    #[inline(always)]
    pub(super) fn write(&mut self, value: T) {
        // SAFETY: not null and aligned, as `OutArg::place` has checked; the rest is the caller's duty.
        unsafe { self.0.0.write(value) }
    }
}

/// A text that ends with a zero, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextArg<'a>(*const c_char, PhantomData<&'a CStr>);

impl<'a> TextArg<'a> {
    pub(super) const NULL: Self = Self(ptr::null(), PhantomData);

    fn c_str(self, what: &str) -> Result<&'a CStr> {
        if self.0.is_null() {
            return Err(Error::Invalid(format!("{what} is NULL")));
        }
        // SAFETY: not null; the rest is the caller's duty.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    /// The text, which is called `what` in errors.
    ///
    /// # Errors
    /// `Error::Invalid` if the pointer is null or the text is no UTF-8.
    pub(super) fn text(self, what: &str) -> Result<&'a str> {
        let invalid = |e| Error::Invalid(format!("{what} is no UTF-8: {e}"));
        self.c_str(what)?.to_str().map_err(invalid)
    }

    /// The text, or `default` if the pointer is null.
    ///
    /// # Errors
    /// `Error::Invalid` if the text is no UTF-8.
    pub(super) fn text_or(self, default: &'a str, what: &str) -> Result<&'a str> {
        match self.0.is_null() {
            true => Ok(default),
            false => self.text(what),
        }
    }

    /// The name of a file, which may have any bytes.
    ///
    /// # Errors
    /// `Error::Invalid` if the pointer is null or the name is empty.
    pub(super) fn path(self) -> Result<&'a Path> {
        let name = self.c_str("the path")?;
        match name.is_empty() {
            false => Ok(Path::new(OsStr::from_bytes(name.to_bytes()))),
            true => Err(Error::Invalid("the path is empty".into())),
        }
    }
}

/// A function of the caller's that takes a text and the caller's context, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextFunctionArg(Option<unsafe extern "C" fn(text: *const c_char, context: *mut c_void)>);

/// What the caller wants its function to be called with.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct ContextArg(*mut c_void);

impl TextFunctionArg {
    /// Calls the function if there is one.
    pub(super) fn call(self, text: &CStr, context: ContextArg) {
        if let Some(function) = self.0 {
            // SAFETY: the caller's function, with a text for the length of the call, and with the caller's context.
            unsafe { function(text.as_ptr(), context.0) };
        }
    }
}
