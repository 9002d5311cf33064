//! Why something was not done, with the number that the system has for it.

use cenote_base::Error;
use rustix::io::Errno;

/// Why something was not done. Nothing has changed then.
#[derive(Debug)]
pub enum Failure {
    /// No such name.
    Missing,
    /// The name is there already.
    Exists,
    /// What is to be a directory is none.
    NotDirectory,
    /// What is not to be a directory is one.
    IsDirectory,
    /// The directory is not empty.
    NotEmpty,
    /// A name that cannot be, a directory that would lie in itself, an operation that this kind of file does not have.
    Invalid,
    /// A name of more than [`NAME_MAX`](super::NAME_MAX) bytes.
    NameTooLong,
    /// A file of more than [`FILE_MAX`](super::FILE_MAX) bytes.
    TooLarge,
    /// More names than an inode can have.
    TooManyLinks,
    /// More open files than a mount can have.
    TooManyOpen,
    /// A link to a directory.
    NotPermitted,
    /// The inode was freed: by another mount, since it had no names.
    Gone,
    /// The memory: [`Error::Full`] if there is no more.
    Memory(Error),
}

/// What an operation answers.
pub type Result<T, E = Failure> = core::result::Result<T, E>;

impl Failure {
    /// As the system names it.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Missing => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::Invalid => Errno::INVAL,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::TooLarge => Errno::FBIG,
            Self::TooManyLinks => Errno::MLINK,
            Self::TooManyOpen => Errno::NFILE,
            Self::NotPermitted => Errno::PERM,
            Self::Gone => Errno::STALE,
            Self::Memory(Error::Full(_)) => Errno::NOSPC,
            Self::Memory(_) => Errno::IO,
        };
        errno.raw_os_error()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}

impl core::error::Error for Failure {}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Missing => "no such file or directory",
            Self::Exists => "the name is there already",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "a directory",
            Self::NotEmpty => "the directory is not empty",
            Self::Invalid => "this cannot be done with it",
            Self::NameTooLong => "the name is too long",
            Self::TooLarge => "the file would be too large",
            Self::TooManyLinks => "too many names for one file",
            Self::TooManyOpen => "too many open files",
            Self::NotPermitted => "not permitted",
            Self::Gone => "the file was removed meanwhile",
            Self::Memory(error) => return error.fmt(f),
        })
    }
}
