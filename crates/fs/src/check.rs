//! Looks at everything: the tree from its root, and all objects of the space beside it.

use super::directory::Entry;
use super::inode::kind;
use super::layout::{ABOVE, SUPER_MOUNTS, TAKEN, at};
use super::{Attributes, BLOCK, Failure, FileSystem, Inode, Result};
use cenote_base::Error;
use cenote_base::rt::{HashMap, HashSet};
use cenote_space::{GlobalAddress, Mode};
use core::fmt::Display;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Directories, the root included.
    pub directories: u64,
    /// Ordinary files.
    pub files: u64,
    /// Symbolic links, pipes, sockets and devices.
    pub others: u64,
    /// Files without a name that are open.
    pub orphans: u64,
    /// Bytes that the content of all files takes.
    pub bytes: u64,
    /// Whether no other process has it mounted. If one has, what it is about to use looks as if nothing referred to it.
    pub is_alone: bool,
    /// Objects that nothing refers to, and bytes that they take: what killed processes left. Of those that lie in
    /// memory which this process maps.
    pub unreferenced: u64,
    /// Their bytes.
    pub unreferenced_bytes: u64,
    /// Whether those were freed.
    pub are_freed: bool,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// A look at everything, under way.
struct Walk<'f> {
    files: &'f FileSystem,
    report: Report,
    seen: HashSet<GlobalAddress>,
    /// Files that names led to: how many.
    named: HashMap<u64, (Attributes, u64)>,
    /// Directories that are to be looked at.
    directories: Vec<Attributes>,
}

impl FileSystem {
    /// Looks at everything, while no mount changes the tree. If no other process has it mounted, and `frees` says so,
    /// objects that nothing refers to are freed: a space that holds a file system holds nothing else.
    ///
    /// # Errors
    /// Those of the way to keepers, and to memory of other pods: of what cannot be reached nothing is said. What is
    /// broken is in the report.
    pub fn check(&self, frees: bool) -> Result<Report> {
        let guard = self.lock_tree(Mode::Write)?;
        let mut walk = Walk {
            files: self,
            report: Report::default(),
            seen: HashSet::default(),
            named: HashMap::default(),
            directories: Vec::new(),
        };
        let answer = walk.all().and_then(|()| walk.unreferenced(frees));
        guard.unlock()?;
        answer.map(|()| walk.report)
    }
}

impl Walk<'_> {
    fn problem(&mut self, what: String) {
        self.report.problems.push(what);
    }

    /// Notes what is wrong with something.
    ///
    /// # Errors
    /// It cannot be reached: that says nothing of the file system.
    fn wrong(&mut self, what: impl Display, failure: Failure) -> Result<()> {
        match failure {
            Failure::Memory(
                Error::Lost(_) | Error::Timeout(_) | Error::Revoked(_) | Error::Busy(_) | Error::Io { .. },
            ) => Err(failure),
            _ => {
                self.problem(format!("{what}: {failure}"));
                Ok(())
            }
        }
    }

    /// Notes an object; whether it is seen for the first time.
    fn see(&mut self, object: GlobalAddress, what: &str) -> bool {
        let is_new = self.seen.insert(object);
        if !is_new {
            self.problem(format!("{what} at {object} is used twice"));
        }
        is_new
    }

    fn all(&mut self) -> Result<()> {
        self.report.is_alone = self.files.mounts()?.len() == 1;
        for object in [self.files.superblock, self.files.journal] {
            self.see(object, "the superblock or journal");
        }
        self.seen.extend(self.files.mount_objects()?);
        self.root()?;
        while let Some(directory) = self.directories.pop() {
            if let Err(failure) = self.directory(&directory) {
                self.wrong(format_args!("directory {}", directory.inode.number), failure)?;
            }
        }
        self.orphans()?;
        self.links();
        Ok(())
    }

    fn root(&mut self) -> Result<()> {
        let root = self.files.root;
        self.see(root.address, "the root");
        match self.files.attributes_of(root) {
            Ok(found) if found.is_directory() => self.directories.push(found),
            Ok(_) => self.problem("the root is no directory".into()),
            Err(failure) => self.wrong("the root", failure)?,
        }
        Ok(())
    }

    fn directory(&mut self, directory: &Attributes) -> Result<()> {
        self.report.directories += 1;
        let trie = self.files.trie(directory.inode.address);
        for node in self.files.nodes(directory.inode.address)? {
            self.see(node, "a directory's node");
        }
        let entries = trie.list(0, usize::MAX)?;
        if entries.len() as u64 != directory.size {
            let (number, says, has) = (directory.inode.number, directory.size, entries.len());
            self.problem(format!(
                "directory {number} says that it has {says} entries, and has {has}"
            ));
        }
        let mut below = 0;
        for entry in &entries {
            below += u64::from(self.entry(directory, entry)?);
        }
        if u64::from(directory.links) != 2 + below {
            let (number, links) = (directory.inode.number, directory.links);
            self.problem(format!(
                "directory {number} has {links} links, and {below} directories in it"
            ));
        }
        Ok(())
    }

    /// Whether it is a directory's.
    fn entry(&mut self, directory: &Attributes, entry: &Entry) -> Result<bool> {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let place = format!("{name:?} in directory {}", directory.inode.number);
        self.see(entry.at, "an entry");
        let found = match self.files.attributes_of(entry.inode) {
            Ok(found) => found,
            Err(failure) => {
                self.wrong(&place, failure)?;
                return Ok(false);
            }
        };
        if found.kind() != entry.kind {
            self.problem(format!("{place} is of another kind than its inode"));
        }
        if found.is_directory() {
            self.directory_below(directory, &found, &place)?;
        } else {
            self.named(&found, &place)?;
        }
        Ok(found.is_directory())
    }

    fn directory_below(&mut self, directory: &Attributes, found: &Attributes, place: &str) -> Result<()> {
        match self.files.session.load(at(found.inode.address, ABOVE)) {
            Ok(above) if above == directory.inode.address.raw() => {}
            Ok(_) => self.problem(format!("{place}: the directory above it is another one")),
            Err(error) => self.wrong(place, error.into())?,
        }
        if self.see(found.inode.address, "a directory") {
            self.directories.push(*found);
        }
        Ok(())
    }

    /// A name of something that is no directory.
    fn named(&mut self, found: &Attributes, place: &str) -> Result<()> {
        let entry = self.named.entry(found.inode.number).or_insert((*found, 0));
        entry.1 += 1;
        match entry.1 {
            1 => self.file(found, place),
            _ => Ok(()),
        }
    }

    fn file(&mut self, found: &Attributes, place: &str) -> Result<()> {
        self.see(found.inode.address, "an inode");
        match found.kind() {
            kind::FILE => self.report.files += 1,
            _ => self.report.others += 1,
        }
        if matches!(found.kind(), kind::FILE | kind::SYMLINK)
            && let Err(failure) = self.content(found.inode)
        {
            self.wrong(place, failure)?;
        }
        Ok(())
    }

    fn content(&mut self, inode: Inode) -> Result<()> {
        let files = self.files;
        let (objects, size, taken) = files.with_content(inode, Mode::Read, || {
            let (mut objects, mut known) = (Vec::new(), HashSet::default());
            files.tree_of(inode.address)?.each(&mut |object, index| {
                let bytes = match index {
                    Some(_) => files.session.size_of(object)?,
                    None => 0,
                };
                objects.push((object, index, bytes));
                match known.insert(object) {
                    true => Ok(true),
                    false => Err(Error::Corrupt(format!("a block or node at {object} twice")).into()),
                }
            })?;
            let taken = files.session.load(at(inode.address, TAKEN))?;
            Ok((objects, files.size(inode.address)?, taken))
        })?;
        for (object, index, _) in &objects {
            self.see(*object, "a block or node");
            if index.is_some_and(|index| index >= size.div_ceil(BLOCK)) {
                self.problem(format!("inode {}: a block behind its {size} bytes", inode.number));
            }
        }
        let bytes: u64 = objects.iter().map(|(_, _, bytes)| bytes).sum();
        if bytes != taken {
            let number = inode.number;
            self.problem(format!(
                "inode {number} says that it takes {taken} bytes, and takes {bytes}"
            ));
        }
        self.report.bytes += bytes;
        Ok(())
    }

    fn orphans(&mut self) -> Result<()> {
        let orphans = match self.files.orphans() {
            Ok(orphans) => orphans,
            Err(failure) => return self.wrong("orphans", failure),
        };
        for address in orphans {
            self.report.orphans += 1;
            if let Err(failure) = self.orphan(address) {
                self.wrong(format_args!("the orphan at {address}"), failure)?;
            }
        }
        Ok(())
    }

    fn orphan(&mut self, address: GlobalAddress) -> Result<()> {
        let number = self.files.session.load(at(address, super::layout::NUMBER))?;
        let found = self.files.attributes_of(Inode { address, number })?;
        if found.links != 0 {
            self.problem(format!("the orphan {number} has {} links", found.links));
        }
        if found.is_directory() {
            self.see(address, "an inode");
            return Ok(());
        }
        self.file(&found, &format!("the orphan {number}"))
    }

    fn links(&mut self) {
        let wrong = |(found, names): &(Attributes, u64)| (u64::from(found.links) != *names).then_some((*found, *names));
        let wrong: Vec<_> = self.named.values().filter_map(wrong).collect();
        for (found, names) in wrong {
            let (number, links) = (found.inode.number, found.links);
            self.problem(format!("inode {number} has {links} links, and {names} names"));
        }
    }

    /// Objects of the space that nothing refers to.
    fn unreferenced(&mut self, frees: bool) -> Result<()> {
        let (mut found, seen, report) = (Vec::new(), &self.seen, &mut self.report);
        self.files.space().each_object(|object, bytes| {
            if !seen.contains(&object) {
                found.push(object);
                report.unreferenced_bytes += bytes;
            }
        })?;
        report.unreferenced = found.len() as u64;
        if frees && report.is_alone && report.problems.is_empty() {
            found.iter().try_for_each(|object| self.files.space().free(*object))?;
            report.are_freed = true;
            self.clear_mounts()?;
        }
        Ok(())
    }

    /// What the superblock says of mounts that are dead refers to nothing.
    fn clear_mounts(&self) -> Result<()> {
        let mine = self.files.mounts()?;
        for n in 0..super::MOUNTS_MAX {
            let word = at(self.files.superblock, SUPER_MOUNTS + 8 * n);
            if !mine.contains(&GlobalAddress::from_raw(self.files.session.load(word)?)) {
                self.files.session.store(word, 0)?;
            }
        }
        Ok(())
    }
}
