//! A directory that stands for an object store, on a disk of its own or on a network file system.
//!
//! An object is written beside under a name by chance, synced, and linked to its name, which fails where that is taken;
//! then the directory is synced. So an object that is found is whole, and one that was acknowledged is there after a
//! power cut. What a killed process left beside is removed when it is a day old.

use cenote_base::error::IoContext;
use cenote_base::rt::{self, Mutex};
use cenote_base::{Error, Result};
use cenote_storage::archive::{ObjectSeen, Objects};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a file is called that is being written.
const UNFINISHED: &str = ".unfinished-";
const UNFINISHED_FOR: Duration = Duration::from_secs(24 * 3600);

/// See the module.
pub struct Directory {
    path: PathBuf,
    /// Folders whose names are durable, up to the root. One that is found may have been made by a process that was
    /// killed before it synced the one above.
    settled: Mutex<BTreeSet<PathBuf>>,
}

impl Directory {
    /// The directory at `path`, which is made when something is put there.
    pub fn new(path: impl Into<PathBuf>) -> Directory {
        let path = path.into();
        Directory {
            path: std::path::absolute(&path).unwrap_or(path),
            settled: Mutex::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory of an object, made with those above it, their names durable.
    fn folder_of(&self, path: &Path) -> io::Result<PathBuf> {
        let folder = path.parent().unwrap_or(&self.path).to_owned();
        let is_settled = self.settled.lock().contains(&folder);
        if is_settled && !folder.is_dir() {
            // Made anew it would be on another file system, and have a gap when the former one is back.
            let why = "the folder is gone: is its file system mounted? (For an archive from the beginning start the \
                       server anew.)";
            return Err(io::Error::new(ErrorKind::NotFound, why));
        }
        if !is_settled {
            fs::create_dir_all(&folder)?;
            folder.ancestors().skip(1).try_for_each(sync_dir)?;
            self.settled.lock().insert(folder.clone());
        }
        Ok(folder)
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let folder = self.folder_of(path)?;
        let beside = folder.join(format!("{UNFINISHED}{:032x}", rt::random_u128()));
        let written = write(&beside, bytes).and_then(|()| match fs::hard_link(&beside, path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        });
        fs::remove_file(&beside).ok();
        // Of one that another process has linked, too: what is believed here has to stay.
        sync_dir(&folder)?;
        written
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A directory that may not be opened was not made by this program.
fn sync_dir(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        dir => dir?.sync_all(),
    }
}

/// What there is, unless it is not there.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The files of a folder and of those in it, those that are being written left out.
fn walk(folder: &Path, found: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
    for entry in if_there(fs::read_dir(folder))?.into_iter().flatten() {
        let entry = entry?;
        let Some(metadata) = if_there(entry.metadata())? else {
            continue;
        };
        let is_unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
        if metadata.is_dir() {
            walk(&entry.path(), found)?;
        } else if !is_unfinished {
            found.push((entry.path(), metadata.len()));
        } else if metadata.modified()?.elapsed().is_ok_and(|age| age > UNFINISHED_FOR) {
            fs::remove_file(entry.path()).ok();
        }
    }
    Ok(())
}

impl Objects for Directory {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let path = self.path(name);
        self.put(&path, bytes).doing(|| format!("writing {}", path.display()))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        if_there(fs::read(&path)).doing(|| format!("reading {}", path.display()))
    }

    fn list(&self, folder: &str) -> Result<Vec<ObjectSeen>> {
        let (path, mut found) = (self.path(folder), Vec::new());
        walk(&path, &mut found).doing(|| format!("listing {}", path.display()))?;
        let mut seen = Vec::new();
        for (file, bytes) in found {
            let name = file.strip_prefix(&self.path).ok().and_then(Path::to_str);
            let name = name.ok_or_else(|| Error::corrupt(format!("{} is no object's name", file.display())))?;
            seen.push(ObjectSeen {
                name: name.to_owned(),
                bytes,
            });
        }
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(seen)
    }

    fn folders(&self) -> Result<Vec<String>> {
        let entries = if_there(fs::read_dir(&self.path)).doing(|| format!("listing {}", self.path.display()))?;
        let mut names = Vec::new();
        for entry in entries.into_iter().flatten() {
            let entry = entry.doing(|| format!("listing {}", self.path.display()))?;
            names.extend(
                entry
                    .path()
                    .is_dir()
                    .then(|| entry.file_name().to_string_lossy().into_owned()),
            );
        }
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        if_there(fs::remove_file(&path)).doing(|| format!("removing {}", path.display()))?;
        // Folders that are empty now; one that is not refuses.
        let mut settled = self.settled.lock();
        for folder in path.ancestors().skip(1).take_while(|folder| **folder != self.path) {
            if fs::remove_dir(folder).is_err() {
                break;
            }
            settled.remove(folder);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_written_once_and_found_whole() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::new(dir.path().join("archive"));
        assert_eq!((store.folders().unwrap(), store.list("a").unwrap()), (vec![], vec![]));
        assert_eq!(store.get("a/b/1").unwrap(), None);
        assert!(store.put_new("a/b/2", b"two").unwrap());
        assert!(store.put_new("a/b/1", b"one").unwrap());
        assert!(!store.put_new("a/b/1", b"another").unwrap());
        assert_eq!(store.get("a/b/1").unwrap().unwrap(), b"one");
        let names: Vec<String> = store.list("a/b").unwrap().into_iter().map(|seen| seen.name).collect();
        assert_eq!(
            (names, store.folders().unwrap()),
            (vec!["a/b/1".into(), "a/b/2".into()], vec!["a".into()])
        );
        store.remove("a/b/1").unwrap();
        store.remove("a/b/1").unwrap();
        assert_eq!(store.list("a").unwrap().len(), 1);
        store.remove("a/b/2").unwrap();
        assert_eq!(store.folders().unwrap(), Vec::<String>::new());
        assert!(store.put_new("a/b/1", b"again").unwrap());
    }

    /// The file system of a directory is gone, and its mount point there.
    #[test]
    fn a_folder_that_is_gone_is_not_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (place, away) = (dir.path().join("archive"), dir.path().join("away"));
        let store = Directory::new(&place);
        store.put_new("a/log/1", b"one").unwrap();
        fs::rename(&place, &away).unwrap();
        fs::create_dir(&place).unwrap();
        let refused = store.put_new("a/log/2", b"two").unwrap_err().to_string();
        assert!(
            refused.contains("is it mounted") || refused.contains("is its file system mounted"),
            "{refused}"
        );
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::remove_dir(&place).unwrap();
        fs::rename(&away, &place).unwrap();
        assert!(store.put_new("a/log/2", b"two").unwrap());
    }

    #[test]
    fn what_a_killed_process_left_is_no_object() {
        let dir = tempfile::tempdir().unwrap();
        let store = Directory::new(dir.path());
        store.put_new("a/1", b"one").unwrap();
        let left = dir.path().join("a").join(format!("{UNFINISHED}77"));
        fs::write(&left, b"half").unwrap();
        assert_eq!(store.list("a").unwrap().len(), 1);
        let old = std::time::SystemTime::now() - 2 * UNFINISHED_FOR;
        File::options()
            .write(true)
            .open(&left)
            .unwrap()
            .set_modified(old)
            .unwrap();
        store.list("a").unwrap();
        assert!(!left.exists());
    }

    /// Two at once: one is told that it was second.
    #[test]
    fn of_those_that_write_at_once_one_does() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..20 {
            let name = format!("a/{n}");
            let firsts = std::thread::scope(|scope| {
                let put = |bytes: &'static [u8]| {
                    let (name, path) = (name.clone(), dir.path());
                    scope.spawn(move || Directory::new(path).put_new(&name, bytes).unwrap())
                };
                [put(b"one"), put(b"two")].map(|thread| thread.join().unwrap())
            });
            assert_ne!(firsts[0], firsts[1]);
            let expected: &[u8] = if firsts[0] { b"one" } else { b"two" };
            assert_eq!(Directory::new(dir.path()).get(&name).unwrap().unwrap(), expected);
        }
    }
}
