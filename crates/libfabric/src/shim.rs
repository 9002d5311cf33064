//! The functions of `shim.c`, one by one, and libfabric's errors as the project's.

use cenote_base::{Error, Result};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::sync::OnceLock;

/// What an endpoint is made from. See `shim.c`.
#[repr(C)]
pub struct Options {
    pub provider: *const c_char,
    pub node: *const c_char,
    pub service: *const c_char,
    pub hardware: u32,
    pub pad: u32,
}

/// An operation that is complete.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    pub context: u64,
    pub length: u64,
    pub error: i32,
    pub received: u32,
}

/// Where an operation goes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Target {
    /// The peer, as the endpoint's address table counts.
    pub peer: u64,
    /// The memory's address, as the provider counts.
    pub address: u64,
    /// The provider's key.
    pub key: u64,
}

/// What is started; the numbers of `shim.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Start {
    /// A message.
    Send = 0,
    /// From the peer's memory.
    Read = 1,
    /// To the peer's memory; complete when it is there.
    Write = 2,
    /// The provider's own atomic: operand in word 0, the word before in word 2.
    FetchAdd = 3,
    /// The provider's own: new word in word 0, expected in word 1, the word before in word 2.
    CompareAndSwap = 4,
    /// To the peer's memory; complete when the bytes are ours again. Where a later message finds it done, that is
    /// enough.
    Put = 5,
}

#[repr(C)]
pub struct RawEndpoint {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct RawMemory {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn cf_load(why: *mut c_char, room: usize) -> c_int;
    fn cf_strerror(error: c_int) -> *const c_char;
    fn cf_again() -> c_int;
    pub fn cf_open(options: *const Options, out: *mut *mut RawEndpoint) -> c_int;
    pub fn cf_close(fabric_endpoint: *mut RawEndpoint);
    pub fn cf_wants_local_registration(fabric_endpoint: *mut RawEndpoint) -> c_int;
    pub fn cf_name(fabric_endpoint: *mut RawEndpoint, name: *mut c_void, size: *mut usize) -> c_int;
    pub fn cf_insert(fabric_endpoint: *mut RawEndpoint, name: *const c_void, peer: *mut u64) -> c_int;
    pub fn cf_remove(fabric_endpoint: *mut RawEndpoint, peer: u64) -> c_int;
    pub fn cf_register(
        fabric_endpoint: *mut RawEndpoint,
        at: *mut c_void,
        len: usize,
        access: c_int,
        want: u64,
        memory: *mut *mut RawMemory,
        target: *mut Target,
    ) -> c_int;
    pub fn cf_unregister(memory: *mut RawMemory) -> c_int;
    pub fn cf_receive(
        fabric_endpoint: *mut RawEndpoint,
        at: *mut c_void,
        len: usize,
        memory: *mut RawMemory,
        context: u64,
    ) -> c_int;
    pub fn cf_start(
        fabric_endpoint: *mut RawEndpoint,
        op: c_int,
        at: *mut c_void,
        len: usize,
        memory: *mut RawMemory,
        target: *const Target,
        context: u64,
        more: c_int,
    ) -> c_int;
    pub fn cf_inject(fabric_endpoint: *mut RawEndpoint, at: *const c_void, len: usize, peer: u64) -> c_int;
    pub fn cf_inject_room(fabric_endpoint: *mut RawEndpoint) -> usize;
    pub fn cf_writes(fabric_endpoint: *mut RawEndpoint) -> c_int;
    pub fn cf_orders_sends_after_writes(fabric_endpoint: *mut RawEndpoint) -> c_int;
    pub fn cf_poll(fabric_endpoint: *mut RawEndpoint, out: *mut Done, room: c_int) -> c_int;
    pub fn cf_wait(fabric_endpoint: *mut RawEndpoint, milliseconds: c_int) -> c_int;
    pub fn cf_wake(fabric_endpoint: *mut RawEndpoint);
    pub fn cf_has_fd(fabric_endpoint: *mut RawEndpoint) -> c_int;
}

/// Loads libfabric, once.
///
/// # Errors
/// [`Error::Invalid`] with what to install: it is not there, or was not when this program was built.
pub fn load() -> Result<()> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let load = || {
        let mut why = [0u8; 512];
        // SAFETY: the shim writes a text that ends with 0 into the room.
        let error = unsafe { cf_load(why.as_mut_ptr().cast(), why.len()) };
        let text = CStr::from_bytes_until_nul(&why).unwrap_or_default().to_string_lossy();
        if error == 0 { Ok(()) } else { Err(text.into_owned()) }
    };
    let loaded = LOADED.get_or_init(load);
    loaded
        .clone()
        .map_err(|why| Error::Invalid(format!("RDMA is not there: {why}")))
}

/// libfabric's words for its error.
pub fn text(error: i32) -> String {
    // SAFETY: libfabric's texts live as long as the process.
    let text = unsafe { CStr::from_ptr(cf_strerror(error.abs())) };
    format!("{} ({})", text.to_string_lossy(), error.abs())
}

/// Whether it says to try later.
pub fn is_again(error: i32) -> bool {
    // SAFETY: a constant.
    error == unsafe { cf_again() }
}

/// The project's error for libfabric's number, with what was being done.
pub fn error(doing: &str, number: i32) -> Error {
    let message = text(number);
    let hint = match number.abs() {
        libc::ENOMEM | libc::EAGAIN => "; if it was registering memory, look at `ulimit -l`",
        libc::ENODATA => "; no such provider, or no device or address for it, is on this machine",
        _ => "",
    };
    Error::Io {
        doing: doing.to_owned(),
        message: format!("{message}{hint}"),
        kind: io::Error::from_raw_os_error(number.abs()).kind(),
    }
}

/// `number` as a result: negative is an error.
///
/// # Errors
/// [`Error::Io`] with libfabric's text for a negative number.
pub fn check(doing: &str, number: i32) -> Result<i32> {
    if number < 0 {
        Err(error(doing, number))
    } else {
        Ok(number)
    }
}
