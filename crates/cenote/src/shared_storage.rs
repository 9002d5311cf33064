//! Whether several machines reach the files of a directory: a mirror on another machine is worth its memory alone
//! without them.

use std::path::Path;

/// Kinds of file systems that machines share, by their numbers in statfs(2): NFS, SMB, Ceph, FUSE (Gluster and others),
/// Lustre, GPFS, GFS2, OCFS2, BeeGFS, 9P, AFS.
const SHARED: [u32; 12] = [
    0x6969,
    0xFF53_4D42,
    0xFE53_4D42,
    0x00C3_6400,
    0x6573_5546,
    0x0BD0_0BD0,
    0x4750_4653,
    0x0116_1970,
    0x7461_636F,
    0x1983_0326,
    0x0102_1997,
    0x5346_414F,
];

/// Whether the file system of a directory, or of the first directory above it that is there, is of such a kind.
pub fn is_shared(directory: &Path) -> bool {
    let found = directory.ancestors().find_map(|path| rustix::fs::statfs(path).ok());
    found.is_some_and(|found| SHARED.contains(&(found.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_of_one_machine() {
        assert!(!is_shared(Path::new("/dev/shm/cenote-test-not-there/data")));
        assert!(!is_shared(Path::new("")));
    }
}
