//! The operating system's files: pread, pwrite, fdatasync, fallocate, and a small pool of threads
//! that carries out [batches](super::batch).

use super::batch::{Batch, IoRequest, Pool};
use super::file::{File, FileOps, OpenOptions};
use super::system::FileSystem;
use rustix::fs::{self, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite, pwritev};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The files of this machine.
#[derive(Default)]
pub struct OsFileSystem {
    pool: OnceLock<Pool>,
}

impl FileSystem for OsFileSystem {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<File> {
        let mut flags = OFlags::CLOEXEC;
        flags |= if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        for (wanted, flag) in [
            (options.create, OFlags::CREATE),
            (options.truncate, OFlags::TRUNC),
            (options.new, OFlags::EXCL),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        let fd = fs::open(path, flags, Mode::from_raw_mode(0o600))?;
        Ok(File::new(Arc::new(OsFile(fd))))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = std::fs::read_dir(dir)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = if dir.as_os_str().is_empty() {
            Path::new(".")
        } else {
            dir
        };
        let fd = fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(fs::fsync(fd)?)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = fs::statvfs(dir)?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    fn submit(&self, requests: Vec<IoRequest>) -> Batch {
        // What the page cache has costs less than to hand it to another thread.
        let (mut done, mut waiting) = (Vec::new(), Vec::new());
        for request in requests {
            match request.run_now() {
                Ok(request) => done.push(request),
                Err(request) => waiting.push(request),
            }
        }
        match waiting.is_empty() {
            true => Batch::done(done),
            false => self.pool.get_or_init(Pool::new).submit(done, waiting),
        }
    }
}

struct OsFile(OwnedFd);

impl FileOps for OsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(pread(&self.0, buf, offset)?)
    }

    fn read_now(&self, buf: &mut [u8], offset: u64) -> Option<()> {
        let wanted = buf.len();
        let read = preadv2(&self.0, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|n| n == wanted).then_some(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(pwrite(&self.0, buf, offset)?)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(match bufs {
            [one] => pwrite(&self.0, one, offset)?,
            many => pwritev(&self.0, many, offset)?,
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(fs::fdatasync(&self.0)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(fs::fstat(&self.0)?.st_size as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(fs::ftruncate(&self.0, len)?)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match fs::fallocate(&self.0, FallocateFlags::empty(), offset, len) {
            // File systems without fallocate: the length alone, and the space when it is written.
            Err(Errno::OPNOTSUPP) if self.len()? < offset + len => self.set_len(offset + len),
            Err(Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fs::fallocate(&self.0, flags, offset, len) {
            Err(Errno::OPNOTSUPP) => self.write_zeros(offset, len),
            other => Ok(other?),
        }
    }

    fn allocated(&self) -> io::Result<u64> {
        Ok(fs::fstat(&self.0)?.st_blocks as u64 * 512)
    }

    fn lock_exclusive(&self) -> io::Result<bool> {
        match fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl OsFile {
    /// What punching comes to where holes cannot be made; within the length, as punching is.
    fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = self.len()?.min(offset + len);
        let zeros = vec![0; 1 << 20];
        let mut at = offset;
        while at < end {
            let n = zeros.len().min((end - at) as usize);
            at += self.write_at(&zeros[..n], at)? as u64;
        }
        Ok(())
    }
}
