//! Names: making, finding, linking, removing, renaming. Each is a step of the journal, under the tree's lock.

use super::directory::{Entry, Trie};
use super::inode::{self, kind};
use super::layout::{ABOVE, CONTENT, ENTRIES, INODE, LINKS, NAME_MAX, at};
use super::step::Step;
use super::{Attributes, Failure, FileSystem, Inode, Owner, Result};
use cenote_base::Error;
use cenote_space::GlobalAddress;

/// Names that one file can have, and directories that one can hold.
const LINKS_MAX: u32 = 1 << 31;
/// Directories above each other: more are a loop.
const DEPTH_MAX: u32 = 1 << 20;

/// A name in a directory, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The place behind it: where a list that ends here goes on.
    pub next: u64,
    /// What the name leads to.
    pub inode: Inode,
    /// Its [kind].
    pub kind: u32,
    /// The name.
    pub name: Vec<u8>,
}

/// What becomes of a name that is there already, when another is renamed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rename {
    /// What it led to loses it.
    Replace,
    /// It stays, and nothing is done.
    Keep,
    /// The two are exchanged. Both must be there.
    Exchange,
}

/// What has lost its last name, and is not open: to be freed once the tree's lock is let go of.
#[must_use]
pub(super) struct Dropped(pub(super) Option<Inode>);

impl FileSystem {
    pub(super) fn trie(&self, directory: GlobalAddress) -> Trie<'_> {
        Trie {
            space: self.space(),
            directory,
            key: self.hash_key,
        }
    }

    /// A directory that is there.
    fn directory(&self, inode: Inode) -> Result<Attributes> {
        let found = self.attributes_of(inode)?;
        match found.is_directory() {
            true => Ok(found),
            false => Err(Failure::NotDirectory),
        }
    }

    /// A directory that has a name, so that names can be made in it.
    fn directory_in_tree(&self, inode: Inode) -> Result<Attributes> {
        let found = self.directory(inode)?;
        if found.links == 0 {
            Err(Failure::Missing)
        } else {
            Ok(found)
        }
    }

    /// What a name leads to.
    ///
    /// # Errors
    /// [`Failure::Missing`], [`Failure::NotDirectory`], [`Failure::Gone`] (of the directory; here and everywhere).
    pub fn find(&self, directory: Inode, name: &[u8]) -> Result<Attributes> {
        self.look(|| {
            self.directory(directory)?;
            check_name(name)?;
            let entry = self.trie(directory.address).find(name)?.ok_or(Failure::Missing)?;
            self.entered(&entry)
        })
    }

    /// The inode of an entry.
    fn entered(&self, entry: &Entry) -> Result<Attributes> {
        self.attributes_of(entry.inode).map_err(|failure| match failure {
            Failure::Gone => Error::Corrupt(format!("the entry at {} leads to nothing", entry.at)).into(),
            other => other,
        })
    }

    /// The directory above another one; of one that was removed, itself.
    ///
    /// # Errors
    /// [`Failure::NotDirectory`], [`Failure::Gone`].
    pub fn above(&self, directory: Inode) -> Result<Inode> {
        self.look(|| {
            match self.directory(directory)?.links {
                // What was above it may be gone too.
                0 => Ok(directory),
                _ => self.above_of(directory.address),
            }
        })
    }

    fn above_of(&self, directory: GlobalAddress) -> Result<Inode> {
        let address = GlobalAddress::from_raw(self.session.load(at(directory, ABOVE))?);
        let number = self.session.load(at(address, super::layout::NUMBER))?;
        Ok(Inode { address, number })
    }

    /// Names of a directory, from a place on (0: the first): `most` or a few more, none if there is none behind the
    /// place. What comes or goes meanwhile is listed or not, everything else once.
    ///
    /// # Errors
    /// [`Failure::NotDirectory`], [`Failure::Gone`].
    pub fn list(&self, directory: Inode, from: u64, most: usize) -> Result<Vec<Listed>> {
        self.look(|| {
            self.directory(directory)?;
            let entries = self.trie(directory.address).list(from, most.max(1))?;
            Ok(entries
                .into_iter()
                .map(|entry| Listed {
                    next: entry.hash + 1,
                    inode: entry.inode,
                    kind: entry.kind,
                    name: entry.name,
                })
                .collect())
        })
    }

    /// A new empty file.
    ///
    /// # Errors
    /// [`Failure::Exists`], [`Failure::Missing`] (the directory was removed), [`Failure::NameTooLong`],
    /// [`Failure::Invalid`] (no name).
    pub fn create(&self, directory: Inode, name: &[u8], rights: u32, owner: Owner) -> Result<Attributes> {
        self.make_node(directory, name, kind::FILE | rights & 0o7777, 0, owner)
    }

    /// As [`FileSystem::create`], and opens it.
    ///
    /// # Errors
    /// As [`FileSystem::create`]; [`Failure::TooManyOpen`].
    pub fn create_open(&self, directory: Inode, name: &[u8], rights: u32, owner: Owner) -> Result<Attributes> {
        let made = self.change(|step| {
            let made = self.add(step, directory, name, kind::FILE | rights & 0o7777, 0, owner, b"")?;
            self.note_open(made.inode)?;
            Ok(made)
        })?;
        Ok(made)
    }

    /// A new pipe, socket's name or device: `mode` says which.
    ///
    /// # Errors
    /// As [`FileSystem::create`]; [`Failure::Invalid`]: a kind that is made otherwise, or none.
    pub fn make_node(&self, directory: Inode, name: &[u8], mode: u32, device: u32, owner: Owner) -> Result<Attributes> {
        match mode & kind::MASK {
            kind::FILE | kind::PIPE | kind::SOCKET | kind::CHARACTERS | kind::BLOCKS => {
                self.change(|step| self.add(step, directory, name, mode, device, owner, b""))
            }
            _ => Err(Failure::Invalid),
        }
    }

    /// A new directory.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn make_directory(&self, directory: Inode, name: &[u8], rights: u32, owner: Owner) -> Result<Attributes> {
        let mode = kind::DIRECTORY | rights & 0o7777;
        self.change(|step| self.add(step, directory, name, mode, 0, owner, b""))
    }

    /// A new symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::create`]; [`Failure::NameTooLong`] if it leads further than 4095 bytes.
    pub fn make_symlink(&self, directory: Inode, name: &[u8], leads_to: &[u8], owner: Owner) -> Result<Attributes> {
        match leads_to.len() {
            0 => Err(Failure::Missing),
            1..=4095 => self.change(|step| self.add(step, directory, name, kind::SYMLINK | 0o777, 0, owner, leads_to)),
            _ => Err(Failure::NameTooLong),
        }
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// [`Failure::Invalid`] if it is none; [`Failure::Gone`].
    pub fn read_symlink(&self, inode: Inode) -> Result<Vec<u8>> {
        self.look(|| {
            let found = self.attributes_of(inode)?;
            if found.kind() != kind::SYMLINK {
                return Err(Failure::Invalid);
            }
            let mut text = vec![0; found.size.min(4095) as usize];
            self.read_content(inode.address, 0, &mut text)?;
            Ok(text)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "an inode has so many properties")]
    fn add(
        &self,
        step: &mut Step<'_>,
        directory: Inode,
        name: &[u8],
        mode: u32,
        device: u32,
        owner: Owner,
        content: &[u8],
    ) -> Result<Attributes> {
        let above = self.directory_in_tree(directory)?;
        self.check_free(directory, name)?;
        let (owner, mode) = inherit(&above, owner, mode);
        let made = Inode {
            address: step.alloc(INODE)?,
            number: self.next_number()?,
        };
        inode::write(self.space(), made.address, made.number, mode, owner, device)?;
        let added = self.fill(made, directory, mode, content);
        let added = added.and_then(|()| self.enter(step, directory, name, made, mode & kind::MASK));
        match added {
            Ok(()) => self.attributes_of(made),
            // The step gives back what it has allocated itself.
            Err(failure) => self.free_content(made.address).and(Err(failure)),
        }
    }

    /// What a new inode has from the start.
    fn fill(&self, made: Inode, directory: Inode, mode: u32, content: &[u8]) -> Result<()> {
        if !content.is_empty() {
            self.write_content(made.address, 0, content)?;
        }
        if mode & kind::MASK == kind::DIRECTORY {
            self.session.store(at(made.address, LINKS), 2)?;
            self.session.store(at(made.address, ABOVE), directory.address.raw())?;
        }
        Ok(())
    }

    fn check_free(&self, directory: Inode, name: &[u8]) -> Result<()> {
        check_name(name)?;
        match self.trie(directory.address).find(name)? {
            Some(_) => Err(Failure::Exists),
            None => Ok(()),
        }
    }

    /// Adds a name to a directory.
    fn enter(&self, step: &mut Step<'_>, directory: Inode, name: &[u8], inode: Inode, kind: u32) -> Result<()> {
        self.trie(directory.address).insert(step, name, inode, kind)?;
        step.add(at(directory.address, ENTRIES), 1)?;
        if kind == kind::DIRECTORY {
            self.count_below(step, directory, 1)?;
        }
        self.stamp(step, directory.address, true)
    }

    /// Takes a name out of a directory.
    fn leave(&self, step: &mut Step<'_>, directory: Inode, name: &[u8], kind: u32) -> Result<()> {
        let trie = self.trie(directory.address);
        trie.remove(step, name)?;
        step.add(at(directory.address, ENTRIES), -1)?;
        if self.session.load(at(directory.address, ENTRIES))? == 0 {
            self.nodes(directory.address)?
                .into_iter()
                .for_each(|node| step.free(node));
            step.put(at(directory.address, CONTENT), 0)?;
        }
        if kind == kind::DIRECTORY {
            self.count_below(step, directory, -1)?;
        }
        self.stamp(step, directory.address, true)
    }

    fn count_below(&self, step: &mut Step<'_>, directory: Inode, n: i64) -> Result<()> {
        if n > 0 && self.attributes_of(directory)?.links >= LINKS_MAX {
            return Err(Failure::TooManyLinks);
        }
        step.add(at(directory.address, LINKS), n)
    }

    /// The nodes of a directory's trie.
    pub(super) fn nodes(&self, directory: GlobalAddress) -> Result<Vec<GlobalAddress>> {
        let (mut nodes, mut known, mut twice) = (Vec::new(), cenote_base::rt::HashSet::default(), false);
        self.trie(directory).each_node(&mut |node| {
            let is_new = known.insert(node);
            twice |= !is_new;
            nodes.push(node);
            is_new
        })?;
        match twice {
            true => Err(Error::Corrupt(format!("the directory at {directory}: a node twice")).into()),
            false => Ok(nodes),
        }
    }

    /// Another name for a file.
    ///
    /// # Errors
    /// [`Failure::NotPermitted`] for a directory; [`Failure::Missing`] if it has no name any more; as
    /// [`FileSystem::create`].
    pub fn link(&self, inode: Inode, directory: Inode, name: &[u8]) -> Result<Attributes> {
        self.change(|step| {
            let found = self.attributes_of(inode)?;
            self.directory_in_tree(directory)?;
            match found.links {
                _ if found.is_directory() => return Err(Failure::NotPermitted),
                0 => return Err(Failure::Missing),
                LINKS_MAX.. => return Err(Failure::TooManyLinks),
                _ => {}
            }
            self.check_free(directory, name)?;
            step.add(at(inode.address, LINKS), 1)?;
            self.stamp(step, inode.address, false)?;
            self.enter(step, directory, name, inode, found.kind())?;
            self.attributes_of(inode)
        })
    }

    /// Removes a name that is not a directory's, and the file with its last one, once no mount has it open.
    ///
    /// # Errors
    /// [`Failure::Missing`], [`Failure::IsDirectory`].
    pub fn unlink(&self, directory: Inode, name: &[u8]) -> Result<()> {
        let dropped = self.change(|step| {
            let found = self.named(directory, name)?;
            if found.is_directory() {
                return Err(Failure::IsDirectory);
            }
            self.leave(step, directory, name, found.kind())?;
            self.lose_name(step, &found)
        })?;
        self.destroy(dropped)
    }

    /// Removes a directory that is empty.
    ///
    /// # Errors
    /// [`Failure::Missing`], [`Failure::NotDirectory`], [`Failure::NotEmpty`].
    pub fn remove_directory(&self, directory: Inode, name: &[u8]) -> Result<()> {
        let dropped = self.change(|step| {
            let found = self.named(directory, name)?;
            check_replaced(&found, true)?;
            self.leave(step, directory, name, found.kind())?;
            self.lose_name(step, &found)
        })?;
        self.destroy(dropped)
    }

    /// What a name leads to, with the tree's lock held.
    fn named(&self, directory: Inode, name: &[u8]) -> Result<Attributes> {
        self.directory(directory)?;
        check_name(name)?;
        let entry = self.trie(directory.address).find(name)?.ok_or(Failure::Missing)?;
        self.entered(&entry)
    }

    /// One name less. A file without one is an orphan, if it is open, or dropped.
    fn lose_name(&self, step: &mut Step<'_>, found: &Attributes) -> Result<Dropped> {
        let links = if found.is_directory() {
            0
        } else {
            found.links.saturating_sub(1)
        };
        step.put(at(found.inode.address, LINKS), links.into())?;
        self.stamp(step, found.inode.address, false)?;
        match links {
            0 => self.drop_or_orphan(step, found.inode),
            _ => Ok(Dropped(None)),
        }
    }

    /// Gives a file another name, in the same directory or another one.
    ///
    /// # Errors
    /// [`Failure::Missing`]; [`Failure::Exists`] with [`Rename::Keep`]; [`Failure::NotEmpty`],
    /// [`Failure::IsDirectory`], [`Failure::NotDirectory`] for what would be replaced; [`Failure::Invalid`] if a
    /// directory would lie in itself.
    pub fn rename(&self, from: (Inode, &[u8]), to: (Inode, &[u8]), how: Rename) -> Result<()> {
        let dropped = self.change(|step| {
            let moved = self.named(from.0, from.1)?;
            self.directory_in_tree(to.0)?;
            check_name(to.1)?;
            let target = self.trie(to.0.address).find(to.1)?;
            self.check_loop(&moved, from.0, to.0)?;
            match (target, how) {
                (None, Rename::Exchange) => Err(Failure::Missing),
                (None, _) => self.rename_to_new(step, from, to, &moved),
                (Some(_), Rename::Keep) => Err(Failure::Exists),
                (Some(target), _) if target.inode == moved.inode => Ok(Dropped(None)),
                (Some(target), Rename::Replace) => self.rename_over(step, from, to, &moved, &target),
                (Some(target), Rename::Exchange) => self.exchange(step, from, to, &moved, &target),
            }
        })?;
        self.destroy(dropped)
    }

    /// A directory does not come to lie in itself.
    fn check_loop(&self, moved: &Attributes, from: Inode, to: Inode) -> Result<()> {
        if !moved.is_directory() || from == to {
            return Ok(());
        }
        let mut directory = to.address;
        for _ in 0..DEPTH_MAX {
            if directory == moved.inode.address {
                return Err(Failure::Invalid);
            }
            if directory == self.root.address {
                return Ok(());
            }
            directory = self.above_of(directory)?.address;
        }
        Err(Error::Corrupt(format!("the directories above {}", to.address)).into())
    }

    fn rename_to_new(
        &self,
        step: &mut Step<'_>,
        from: (Inode, &[u8]),
        to: (Inode, &[u8]),
        moved: &Attributes,
    ) -> Result<Dropped> {
        self.enter(step, to.0, to.1, moved.inode, moved.kind())?;
        self.leave(step, from.0, from.1, moved.kind())?;
        self.settle(step, moved, to.0)?;
        Ok(Dropped(None))
    }

    fn rename_over(
        &self,
        step: &mut Step<'_>,
        from: (Inode, &[u8]),
        to: (Inode, &[u8]),
        moved: &Attributes,
        target: &Entry,
    ) -> Result<Dropped> {
        let replaced = self.entered(target)?;
        check_replaced(&replaced, moved.is_directory())?;
        target.lead_to(step, moved.inode, moved.kind())?;
        self.stamp(step, to.0.address, true)?;
        // The directory that is replaced was counted in `to`; the one that comes instead is now.
        self.leave(step, from.0, from.1, moved.kind())?;
        self.settle(step, moved, to.0)?;
        self.lose_name(step, &replaced)
    }

    fn exchange(
        &self,
        step: &mut Step<'_>,
        from: (Inode, &[u8]),
        to: (Inode, &[u8]),
        moved: &Attributes,
        target: &Entry,
    ) -> Result<Dropped> {
        let other = self.entered(target)?;
        self.check_loop(&other, to.0, from.0)?;
        let source = self.trie(from.0.address).find(from.1)?.ok_or(Failure::Missing)?;
        source.lead_to(step, other.inode, other.kind())?;
        target.lead_to(step, moved.inode, moved.kind())?;
        let come = i64::from(moved.is_directory()) - i64::from(other.is_directory());
        self.count_below(step, to.0, come)?;
        self.count_below(step, from.0, -come)?;
        for (inode, directory) in [(moved, to.0), (&other, from.0)] {
            self.stamp(step, directory.address, true)?;
            self.settle(step, inode, directory)?;
        }
        Ok(Dropped(None))
    }

    /// What was moved lies in this directory now.
    fn settle(&self, step: &mut Step<'_>, moved: &Attributes, directory: Inode) -> Result<()> {
        if moved.is_directory() {
            step.put(at(moved.inode.address, ABOVE), directory.address.raw())?;
        }
        self.stamp(step, moved.inode.address, false)
    }

    /// Frees what nothing leads to any more.
    pub(super) fn destroy(&self, dropped: Dropped) -> Result<()> {
        let Some(inode) = dropped.0 else { return Ok(()) };
        self.free_content(inode.address)?;
        Ok(self.session.free(inode.address)?)
    }
}

/// A directory's group and its mark go on to what is made in it, if it has the mark.
fn inherit(above: &Attributes, owner: Owner, mode: u32) -> (Owner, u32) {
    const SET_GROUP: u32 = 0o2000;
    if above.mode & SET_GROUP == 0 {
        return (owner, mode);
    }
    let group = above.owner.group;
    let is_directory = mode & kind::MASK == kind::DIRECTORY;
    (
        Owner { group, ..owner },
        if is_directory { mode | SET_GROUP } else { mode },
    )
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Failure::Invalid),
        _ if name.len() > NAME_MAX => Err(Failure::NameTooLong),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Failure::Invalid),
        _ => Ok(()),
    }
}

/// Whether something can go, or give way to a directory or to something else.
fn check_replaced(replaced: &Attributes, by_directory: bool) -> Result<()> {
    match (replaced.is_directory(), by_directory) {
        (true, false) => Err(Failure::IsDirectory),
        (false, true) => Err(Failure::NotDirectory),
        // Of a directory the size is its entries.
        (true, true) if replaced.size > 0 => Err(Failure::NotEmpty),
        _ => Ok(()),
    }
}
