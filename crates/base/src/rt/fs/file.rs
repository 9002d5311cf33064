//! An open file: what a runtime provides, and what a database uses.

use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::rt::{Nanos, now, sleep};

/// How [`open`](super::open) opens.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// For writing too.
    pub write: bool,
    /// Make it if it is missing.
    pub create: bool,
    /// Empty it.
    pub truncate: bool,
    /// Fail if it is there.
    pub new: bool,
}

impl OpenOptions {
    /// An existing file, to read.
    pub const READ: Self = Self {
        write: false,
        create: false,
        truncate: false,
        new: false,
    };
    /// An existing file, to read and write.
    pub const WRITE: Self = Self {
        write: true,
        ..Self::READ
    };
    /// A file to read and write, made if it is missing.
    pub const CREATE: Self = Self {
        create: true,
        ..Self::WRITE
    };
    /// An empty file to read and write, whatever was there.
    pub const TRUNCATE: Self = Self {
        truncate: true,
        ..Self::CREATE
    };
    /// A file to read and write that was not there before.
    pub const NEW: Self = Self {
        new: true,
        ..Self::CREATE
    };
}

/// An open file, as a runtime provides it. Positions and lengths are in bytes.
#[allow(clippy::len_without_is_empty, reason = "a file's length is a system call")]
pub trait FileOps: Send + Sync {
    /// Reads at a position; fewer bytes than asked for only at the end or by chance.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Fills the buffer if that takes no waiting for a device; `None` if it does, or that cannot be known.
    fn read_now(&self, buf: &mut [u8], offset: u64) -> Option<()> {
        let _ = (buf, offset);
        None
    }
    /// Writes at a position; says how much of it.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
    /// Writes several buffers in a row at a position; says how much of them.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Makes what was written, and the length, survive a crash.
    fn sync_data(&self) -> io::Result<()>;
    /// The length.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Takes the space for a range, extending the file; what is there stays.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Gives the space of a range back; it reads as zeros. The length stays.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Bytes of space that it takes.
    fn allocated(&self) -> io::Result<u64>;
    /// Takes the file for this process, until closed; false if another has it.
    fn lock_exclusive(&self) -> io::Result<bool>;
}

/// Buffers that one vectored write takes.
const IOV_MAX: usize = 1024;

/// An open file. Clones are the same open file; it closes with the last one.
#[derive(Clone)]
pub struct File(Arc<dyn FileOps>);

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("File")
    }
}

impl File {
    /// Around what a file system opened.
    pub fn new(ops: Arc<dyn FileOps>) -> Self {
        Self(ops)
    }

    /// Fills `buf` if all of it is in memory: says whether. What it holds otherwise is not known.
    pub fn read_now(&self, buf: &mut [u8], offset: u64) -> bool {
        self.0.read_now(buf, offset).is_some()
    }

    /// Reads up to `buf.len()` bytes at `offset`: all of them, unless the file ends before.
    ///
    /// # Errors
    /// Those of the file system's read. One that was interrupted is made again.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.0.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => {
                    let left = buf.len() - filled;
                    assert!(n <= left, "a read of {left} bytes gives {n}");
                    filled += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    /// Fills `buf` from `offset`; an error of kind `UnexpectedEof` if the file ends before.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before `buf` is full; those of the file system's read.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = buf.len();
        match self.read_at(buf, offset)? {
            n if n == wanted => Ok(()),
            n => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file ends {n} bytes after {offset}, {wanted} were wanted"),
            )),
        }
    }

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// Those of [`File::write_vectored_at`].
    pub fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_vectored_at(&[buf], offset)
    }

    /// Writes all of `bufs`, in a row, at `offset`.
    ///
    /// # Errors
    /// `WriteZero` if the file system takes no more bytes; those of its write, after which a part may be written.
    pub fn write_vectored_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for chunk in bufs.chunks(IOV_MAX) {
            let mut slices: Vec<IoSlice<'_>> = chunk.iter().map(|b| IoSlice::new(b)).collect();
            let mut left = &mut slices[..];
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                match self.0.write_vectored_at(left, at) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => {
                        IoSlice::advance_slices(&mut left, n);
                        at += n as u64;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// Makes what was written, and the length, survive a crash. A failure is final.
    ///
    /// # Errors
    /// The file system failed to write the file. What was not synced may be lost, whatever a later sync says.
    pub fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    /// The length in bytes.
    ///
    /// # Errors
    /// Those of the file system.
    #[allow(clippy::len_without_is_empty, reason = "a file's length is a system call")]
    pub fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    /// Cuts or extends with zeros to `len` bytes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    /// Takes the space for a range, extending the file; what is there stays. An error of kind
    /// `StorageFull` when there is none.
    ///
    /// # Errors
    /// `StorageFull` if there is no space; those of the file system.
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(offset, len)
    }

    /// Gives the space of a range back; it reads as zeros. The length stays.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch(offset, len)
    }

    /// Bytes of space that it takes (less than its length where it has holes).
    ///
    /// # Errors
    /// Those of the file system.
    pub fn allocated(&self) -> io::Result<u64> {
        self.0.allocated()
    }

    /// Takes the file for this process until it closes it or ends; false if another has it.
    ///
    /// # Errors
    /// Those of the file system; a lock that another process has is no error.
    pub fn lock_exclusive(&self) -> io::Result<bool> {
        self.0.lock_exclusive()
    }

    /// As [`File::lock_exclusive`], asking again until `timeout` is over. A lock may be held by no process that will
    /// use it: a killed process that is still giving its memory back, or a child between fork and exec.
    ///
    /// # Errors
    /// Those of [`File::lock_exclusive`].
    pub fn lock_exclusive_within(&self, timeout: Nanos) -> io::Result<bool> {
        let end = now() + timeout;
        loop {
            if self.lock_exclusive()? {
                return Ok(true);
            }
            if now() >= end {
                return Ok(false);
            }
            sleep(Nanos::from_millis(2));
        }
    }
}
