//! The disk of a `MemFs`: files as maps of 4 KiB chunks, each in two versions, live and
//! synced, that share what is equal; names likewise, with the changes between the two in order.

use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) type FileId = usize;
type Chunk = [u8; CHUNK];

/// Bytes that are kept together.
const CHUNK: usize = 4096;
/// Bytes that reach a medium together.
const SECTOR: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    File(FileId),
    Dir,
}

impl Name {
    fn file(self) -> io::Result<FileId> {
        match self {
            Name::File(id) => Ok(id),
            Name::Dir => Err(Errno::ISDIR.into()),
        }
    }
}

/// A change of names that waits for its directory's sync.
#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Create(PathBuf, FileId),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl NameChange {
    /// The directory whose sync covers it.
    fn dir(&self) -> &Path {
        let (NameChange::Create(p, _) | NameChange::Rename(_, p) | NameChange::Remove(p)) = self;
        parent(p)
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

type Names = BTreeMap<PathBuf, Name>;

/// Carries out a change on a set of names.
fn apply(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Create(path, id) => {
            names.insert(path.clone(), Name::File(*id));
        }
        NameChange::Remove(path) => {
            names.remove(path);
        }
        NameChange::Rename(from, to) => {
            let moved: Vec<PathBuf> = names.keys().filter(|p| p.starts_with(from)).cloned().collect();
            for path in moved {
                let rest = path.strip_prefix(from).expect("filtered by this prefix");
                let new = if rest.as_os_str().is_empty() {
                    to.clone()
                } else {
                    to.join(rest)
                };
                if let Some(name) = names.remove(&path) {
                    names.insert(new, name);
                }
            }
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Disk {
    nodes: Vec<Node>,
    live: Names,
    synced: Names,
    waiting: Vec<NameChange>,
}

impl Disk {
    pub(super) fn name(&self, path: &Path) -> Option<Name> {
        if path.as_os_str().is_empty() || path == Path::new("/") || path == Path::new(".") {
            return Some(Name::Dir);
        }
        self.live.get(path).copied()
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<FileId> {
        self.name(path).ok_or(Errno::NOENT)?.file()
    }

    pub(super) fn node(&mut self, id: FileId) -> &mut Node {
        &mut self.nodes[id]
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        let is_file = |n: &Name| matches!(n, Name::File(_));
        self.live
            .iter()
            .filter(|(_, n)| is_file(n))
            .map(|(p, _)| p.clone())
            .collect()
    }

    pub(super) fn used(&self) -> u64 {
        self.live
            .values()
            .filter_map(|n| {
                if let Name::File(id) = n {
                    Some(self.nodes[*id].used())
                } else {
                    None
                }
            })
            .sum()
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<FileId> {
        self.require_dir(parent(path))?;
        let id = self.nodes.len();
        self.nodes.push(Node::default());
        self.change_name(NameChange::Create(path.to_owned(), id))?;
        Ok(id)
    }

    fn require_dir(&self, dir: &Path) -> io::Result<()> {
        match self.name(dir) {
            Some(Name::Dir) => Ok(()),
            Some(Name::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        if let NameChange::Rename(from, to) = &change {
            self.name(from).ok_or(Errno::NOENT)?;
            self.require_dir(parent(to))?;
            if self.name(to) == Some(Name::Dir) {
                return Err(Errno::EXIST.into());
            }
        }
        apply(&mut self.live, &change);
        self.waiting.push(change);
        Ok(())
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let above: Vec<&Path> = path.ancestors().collect();
        for dir in above.into_iter().rev() {
            match self.name(dir) {
                Some(Name::Dir) => {}
                Some(Name::File(_)) => return Err(Errno::NOTDIR.into()),
                None => {
                    self.live.insert(dir.to_owned(), Name::Dir);
                    self.synced.insert(dir.to_owned(), Name::Dir);
                }
            }
        }
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        self.require_dir(path)?;
        let below: Vec<PathBuf> = self.live.keys().filter(|p| p.starts_with(path)).cloned().collect();
        below
            .into_iter()
            .rev()
            .try_for_each(|p| self.change_name(NameChange::Remove(p)))
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.require_dir(dir)?;
        let name = |p: &PathBuf| p.file_name().map(|n| n.to_string_lossy().into_owned());
        Ok(self.live.keys().filter(|p| parent(p) == dir).filter_map(name).collect())
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        self.require_dir(dir)?;
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|c| c.dir() == dir);
        now.iter().for_each(|c| apply(&mut self.synced, c));
        self.waiting = later;
        Ok(())
    }

    /// A directory's sync has failed: its changes will never be synced.
    pub(super) fn forget_names(&mut self, dir: &Path) {
        self.waiting.retain(|c| c.dir() != dir);
    }

    pub(super) fn lock(&mut self, id: FileId, handle: u64, owner: u64) -> bool {
        let lock = &mut self.nodes[id].locked_by;
        lock.get_or_insert((handle, owner)).0 == handle
    }

    pub(super) fn unlock(&mut self, id: FileId, handle: u64) {
        let lock = &mut self.nodes[id].locked_by;
        *lock = lock.filter(|l| l.0 != handle);
    }

    /// Frees what an owner has locked.
    pub(super) fn unlock_all(&mut self, owner: u64) {
        for node in &mut self.nodes {
            node.locked_by = node.locked_by.filter(|l| l.1 != owner);
        }
    }

    /// The disk after its users were killed.
    pub(super) fn unlocked(&self) -> Disk {
        let mut disk = self.clone();
        disk.nodes.iter_mut().for_each(|n| n.locked_by = None);
        disk
    }

    /// The disk after a crash. `draw(n)` answers below `n`: always 0 keeps only what was synced.
    pub(super) fn crashed(&self, draw: &mut dyn FnMut(u64) -> u64) -> Disk {
        let mut names = self.synced.clone();
        let kept = draw(self.waiting.len() as u64 + 1) as usize;
        self.waiting[..kept].iter().for_each(|c| apply(&mut names, c));
        // How likely an unsynced sector has reached the medium: differs from crash to crash.
        let likely = [0, 1, 8, 15][draw(4) as usize];
        let nodes = self.nodes.iter().map(|n| n.crashed(likely, draw)).collect();
        Disk {
            nodes,
            synced: names.clone(),
            live: names,
            waiting: Vec::new(),
        }
    }
}

/// One version of a file.
#[derive(Clone, Default)]
struct Content {
    chunks: BTreeMap<u64, Arc<Chunk>>,
    len: u64,
}

/// A file.
#[derive(Clone, Default)]
pub(super) struct Node {
    live: Content,
    synced: Content,
    /// Chunks that differ, or may.
    dirty: BTreeSet<u64>,
    /// The handle and its owner.
    locked_by: Option<(u64, u64)>,
}

/// The chunks of a range: number, range within the chunk, position within the range.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let size = CHUNK as u64;
    let chunks = if len == 0 {
        0..0
    } else {
        offset / size..(offset + len - 1) / size + 1
    };
    chunks.map(move |chunk| {
        let from = offset.max(chunk * size);
        let to = (offset + len).min((chunk + 1) * size);
        (
            (chunk),
            (from - chunk * size) as usize..(to - chunk * size) as usize,
            (from - offset) as usize,
        )
    })
}

impl Node {
    pub(super) fn len(&self) -> u64 {
        self.live.len
    }

    pub(super) fn used(&self) -> u64 {
        (self.live.chunks.len() * CHUNK) as u64
    }

    /// Bytes of space that using a range would take.
    pub(super) fn missing(&self, offset: u64, len: u64) -> u64 {
        let absent = |chunk: &u64| !self.live.chunks.contains_key(chunk);
        pieces(offset, len).map(|p| p.0).filter(absent).count() as u64 * CHUNK as u64
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = (buf.len() as u64).min(self.live.len.saturating_sub(offset));
        for (chunk, within, at) in pieces(offset, len) {
            let out = &mut buf[at..at + within.len()];
            match self.live.chunks.get(&chunk) {
                Some(bytes) => out.copy_from_slice(&bytes[within]),
                None => out.fill(0),
            }
        }
        len as usize
    }

    pub(super) fn write(&mut self, buf: &[u8], offset: u64) {
        for (chunk, within, at) in pieces(offset, buf.len() as u64) {
            let part = &buf[at..at + within.len()];
            self.chunk(chunk)[within].copy_from_slice(part);
        }
        self.live.len = self.live.len.max(offset + buf.len() as u64);
    }

    /// A chunk to be changed.
    fn chunk(&mut self, chunk: u64) -> &mut Chunk {
        self.dirty.insert(chunk);
        Arc::make_mut(self.live.chunks.entry(chunk).or_insert_with(|| Arc::new([0; CHUNK])))
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.live.len {
            self.punch(len, self.live.len - len);
        }
        self.live.len = len;
    }

    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        for (chunk, ..) in pieces(offset, len) {
            self.chunk(chunk);
        }
        self.live.len = self.live.len.max(offset + len);
    }

    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        let touched: Vec<u64> = match len {
            0 => return,
            _ => {
                let last = (offset + len - 1) / CHUNK as u64;
                self.live
                    .chunks
                    .range(offset / CHUNK as u64..=last)
                    .map(|(c, _)| *c)
                    .collect()
            }
        };
        for chunk in touched {
            let start = chunk * CHUNK as u64;
            let from = offset.max(start) - start;
            let to = (offset + len).min(start + CHUNK as u64) - start;
            if to - from == CHUNK as u64 {
                self.live.chunks.remove(&chunk);
                self.dirty.insert(chunk);
            } else {
                self.chunk(chunk)[from as usize..to as usize].fill(0);
            }
        }
    }

    pub(super) fn sync(&mut self) {
        for chunk in std::mem::take(&mut self.dirty) {
            match self.live.chunks.get(&chunk) {
                Some(bytes) => self.synced.chunks.insert(chunk, Arc::clone(bytes)),
                None => self.synced.chunks.remove(&chunk),
            };
        }
        self.synced.len = self.live.len;
    }

    /// A sync has failed: what was dirty counts as clean, and is not on the medium.
    pub(super) fn lose_unsynced(&mut self) {
        self.dirty.clear();
    }

    /// Where space is taken: the offset of the chunk that `draw` chooses, and its length.
    pub(super) fn any_chunk(&self, draw: &mut dyn FnMut(u64) -> u64) -> Option<(u64, u64)> {
        let chunks = self.live.chunks.len() as u64;
        let (chunk, _) = self.live.chunks.iter().nth(draw(chunks.max(1)) as usize)?;
        Some((chunk * CHUNK as u64, CHUNK as u64))
    }

    pub(super) fn flip(&mut self, offset: u64, mask: u8) -> io::Result<()> {
        let (chunk, within) = (offset / CHUNK as u64, (offset % CHUNK as u64) as usize);
        if offset >= self.live.len {
            return Err(Errno::INVAL.into());
        }
        for content in [&mut self.live, &mut self.synced] {
            let bytes = content.chunks.entry(chunk).or_insert_with(|| Arc::new([0; CHUNK]));
            Arc::make_mut(bytes)[within] ^= mask;
        }
        Ok(())
    }

    fn crashed(&self, likely: u64, draw: &mut dyn FnMut(u64) -> u64) -> Node {
        let mut content = self.synced.clone();
        let longer = draw(2) == 1 && self.live.len > content.len;
        if longer {
            content.len = self.live.len;
        }
        for chunk in &self.dirty {
            if let Some(new) = self.live.chunks.get(chunk) {
                let mut keep = |_| draw(16) + likely >= 16;
                merge(&mut content.chunks, *chunk, new, &mut keep);
            }
        }
        cut(&mut content);
        Node {
            live: content.clone(),
            synced: content,
            ..Node::default()
        }
    }
}

/// Carries those sectors of `new` over that `keep` says.
fn merge(chunks: &mut BTreeMap<u64, Arc<Chunk>>, chunk: u64, new: &Chunk, keep: &mut dyn FnMut(usize) -> bool) {
    for at in (0..CHUNK).step_by(SECTOR) {
        if keep(at) {
            let old = chunks.entry(chunk).or_insert_with(|| Arc::new([0; CHUNK]));
            Arc::make_mut(old)[at..at + SECTOR].copy_from_slice(&new[at..at + SECTOR]);
        }
    }
}

/// Bytes beyond a file's length are zeros, should it grow again.
fn cut(content: &mut Content) {
    let (chunk, within) = (content.len / CHUNK as u64, (content.len % CHUNK as u64) as usize);
    content.chunks.split_off(&(chunk + u64::from(within > 0)));
    if let Some(last) = content.chunks.get_mut(&chunk).filter(|_| within > 0) {
        Arc::make_mut(last)[within..].fill(0);
    }
}
