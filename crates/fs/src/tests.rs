//! A file system against a model; against garbage; killed between any two stores.

mod mounts;

use super::layout::{at, *};
use super::*;
use cenote_base::random::Random;
use cenote_base::rt::memory::Access;
use cenote_base::rt::{Join, Nanos, Runtime, Wait};
use cenote_fabric::RegionOptions;
use cenote_fabric::observe;
use cenote_space::EXTENT;
use cenote_space::SpaceOptions;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const ME: Owner = Owner { user: 7, group: 8 };

fn random_bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| 1 + random.below(255) as u8).collect()
}

/// A seed that is printed: `CENOTE_SEED` runs it again.
fn seed() -> u64 {
    let given = std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    seed
}

fn space(extents: u64) -> Space {
    let options = SpaceOptions {
        bytes: extents * EXTENT,
        ..SpaceOptions::default()
    };
    Space::dram(&options).expect("memory")
}

/// What there should be: nodes by number, the root is 0.
#[derive(Debug, Default, Clone)]
struct Model {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

#[derive(Debug, Clone)]
struct Node {
    what: What,
    links: u32,
    above: u64,
    /// The real one.
    inode: Option<Inode>,
    opened: u32,
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    Directory(BTreeMap<Vec<u8>, u64>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
}

type Said<T> = std::result::Result<T, i32>;

fn said<T>(answer: Result<T>) -> Said<T> {
    answer.map_err(|failure| failure.errno())
}

fn errno<T>(failure: Failure) -> Said<T> {
    Err(failure.errno())
}

impl Model {
    fn new(root: Inode) -> Self {
        let mut model = Self::default();
        model.add(What::Directory(BTreeMap::new()), 0, Some(root));
        model
    }

    fn add(&mut self, what: What, above: u64, inode: Option<Inode>) -> u64 {
        let number = self.next;
        self.next += 1;
        let node = Node {
            what,
            links: 1,
            above,
            inode,
            opened: 0,
        };
        self.nodes.insert(number, node);
        number
    }

    fn names(&mut self, directory: u64) -> Said<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.nodes.get_mut(&directory).expect("known").what {
            What::Directory(names) => Ok(names),
            _ => errno(Failure::NotDirectory),
        }
    }

    fn find(&mut self, directory: u64, name: &[u8]) -> Said<u64> {
        let found = self.names(directory)?.get(name).copied();
        found.ok_or(Failure::Missing.errno())
    }

    fn is_directory(&self, node: u64) -> bool {
        matches!(self.nodes[&node].what, What::Directory(_))
    }

    fn create(&mut self, directory: u64, name: &[u8], what: What) -> Said<u64> {
        self.check_free(directory, name)?;
        let made = self.add(what, directory, None);
        self.names(directory)?.insert(name.to_vec(), made);
        Ok(made)
    }

    fn check_free(&mut self, directory: u64, name: &[u8]) -> Said<()> {
        self.names(directory)?;
        if self.nodes[&directory].links == 0 {
            return errno(Failure::Missing);
        }
        match self.names(directory)?.contains_key(name) {
            true => errno(Failure::Exists),
            false => Ok(()),
        }
    }

    fn link(&mut self, node: u64, directory: u64, name: &[u8]) -> Said<()> {
        self.names(directory)?;
        if self.nodes[&directory].links == 0 {
            return errno(Failure::Missing);
        }
        if self.is_directory(node) {
            return errno(Failure::NotPermitted);
        }
        if self.nodes[&node].links == 0 {
            return errno(Failure::Missing);
        }
        self.check_free(directory, name)?;
        self.names(directory)?.insert(name.to_vec(), node);
        self.nodes.get_mut(&node).expect("known").links += 1;
        Ok(())
    }

    fn remove(&mut self, directory: u64, name: &[u8], wants_directory: bool) -> Said<()> {
        let node = self.find(directory, name)?;
        self.check_replaced(node, wants_directory)?;
        self.names(directory)?.remove(name);
        self.lose_name(node);
        Ok(())
    }

    fn check_replaced(&self, node: u64, by_directory: bool) -> Said<()> {
        match (&self.nodes[&node].what, by_directory) {
            (What::Directory(_), false) => errno(Failure::IsDirectory),
            (What::Directory(names), true) if !names.is_empty() => errno(Failure::NotEmpty),
            (What::Directory(_), true) | (_, false) => Ok(()),
            (_, true) => errno(Failure::NotDirectory),
        }
    }

    fn lose_name(&mut self, node: u64) {
        let found = self.nodes.get_mut(&node).expect("known");
        found.links -= 1;
        if found.links == 0 && found.opened == 0 {
            self.nodes.remove(&node);
        }
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), how: Rename) -> Said<()> {
        let moved = self.find(from.0, from.1)?;
        self.names(to.0)?;
        if self.nodes[&to.0].links == 0 {
            return errno(Failure::Missing);
        }
        let target = self.names(to.0)?.get(to.1).copied();
        if from.0 != to.0 && self.is_within(moved, to.0) {
            return errno(Failure::Invalid);
        }
        match (target, how) {
            (None, Rename::Exchange) => return errno(Failure::Missing),
            (Some(_), Rename::Keep) => return errno(Failure::Exists),
            (Some(target), _) if target == moved => return Ok(()),
            (Some(target), Rename::Exchange) => {
                if from.0 != to.0 && self.is_within(target, from.0) {
                    return errno(Failure::Invalid);
                }
                self.names(from.0)?.insert(from.1.to_vec(), target);
                self.nodes.get_mut(&target).expect("known").above = from.0;
            }
            (Some(target), Rename::Replace) => {
                self.check_replaced(target, self.is_directory(moved))?;
                self.names(from.0)?.remove(from.1);
                self.lose_name(target);
            }
            (None, _) => {
                self.names(from.0)?.remove(from.1);
            }
        }
        self.names(to.0)?.insert(to.1.to_vec(), moved);
        self.nodes.get_mut(&moved).expect("known").above = to.0;
        Ok(())
    }

    /// Whether a directory is another one, or lies below it.
    fn is_within(&self, outer: u64, mut node: u64) -> bool {
        if !self.is_directory(outer) {
            return false;
        }
        loop {
            if node == outer {
                return true;
            }
            if node == 0 {
                return false;
            }
            node = self.nodes[&node].above;
        }
    }

    fn bytes(&mut self, node: u64) -> Said<&mut Vec<u8>> {
        match &mut self.nodes.get_mut(&node).expect("known").what {
            What::File(bytes) => Ok(bytes),
            What::Directory(_) => errno(Failure::IsDirectory),
            What::Symlink(_) => errno(Failure::Invalid),
        }
    }
}

/// The model and the real thing, by any number of mounts.
struct Pair {
    mounts: Vec<FileSystem>,
    model: Model,
    random: Random,
    /// What is open: which mount, which node.
    open: Vec<(usize, u64)>,
    /// Bytes that a file may have.
    longest: u64,
}

const NAMES: [&[u8]; 7] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"e with blanks",
    &[0xff, 0xfe],
    &[b'n'; NAME_MAX],
];

impl Pair {
    fn new(space: &Space, mounts: usize, seed: u64) -> Self {
        let first = FileSystem::make(space, ME).expect("made");
        let model = Model::new(first.root());
        let others = (1..mounts).map(|_| FileSystem::mount(space).expect("mounted"));
        Self {
            mounts: [first].into_iter().chain(others).collect(),
            model,
            random: Random(seed),
            open: Vec::new(),
            longest: 9 * BLOCK,
        }
    }

    fn node(&mut self) -> u64 {
        let n = self.random.below(self.model.nodes.len() as u64) as usize;
        *self.model.nodes.keys().nth(n).expect("there")
    }

    /// A directory in most cases.
    fn directory(&mut self) -> u64 {
        for _ in 0..4 {
            let node = self.node();
            if self.model.is_directory(node) {
                return node;
            }
        }
        0
    }

    fn name(&mut self) -> &'static [u8] {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    fn inode(&self, node: u64) -> Inode {
        self.model.nodes[&node].inode.expect("known")
    }

    /// One operation, on one of the mounts; both must say the same.
    fn step(&mut self) {
        let mount = self.random.below(self.mounts.len() as u64) as usize;
        let (directory, name) = (self.directory(), self.name());
        let at = self.inode(directory);
        match self.random.below(24) {
            0..4 => {
                let wanted = self.model.create(directory, name, What::File(Vec::new()));
                let got = said(self.mounts[mount].create(at, name, 0o640, ME));
                self.made(wanted, got, kind::FILE | 0o640);
            }
            4..7 => {
                let wanted = self.model.create(directory, name, What::Directory(BTreeMap::new()));
                let got = said(self.mounts[mount].make_directory(at, name, 0o755, ME));
                self.made(wanted, got, kind::DIRECTORY | 0o755);
            }
            7 => {
                let len = 1 + self.random.below(600) as usize;
                let text = random_bytes(&mut self.random, len);
                let wanted = self.model.create(directory, name, What::Symlink(text.clone()));
                let got = said(self.mounts[mount].make_symlink(at, name, &text, ME));
                self.made(wanted, got, kind::SYMLINK | 0o777);
            }
            8 => {
                let node = self.node();
                let wanted = self.model.link(node, directory, name);
                let got = said(self.mounts[mount].link(self.inode_or_gone(node), at, name));
                assert_eq!(got.map(drop), wanted, "link {node} to {directory}");
            }
            9..11 => {
                let wanted = self.model.remove(directory, name, false);
                assert_eq!(said(self.mounts[mount].unlink(at, name)), wanted, "unlink");
            }
            11 => {
                let wanted = self.model.remove(directory, name, true);
                assert_eq!(said(self.mounts[mount].remove_directory(at, name)), wanted, "rmdir");
            }
            12..15 => self.rename(mount, directory, name),
            15..17 => self.open_or_close(mount),
            _ => self.content(mount),
        }
    }

    fn inode_or_gone(&self, node: u64) -> Inode {
        let nowhere = Inode {
            address: GlobalAddress::NULL,
            number: 0,
        };
        self.model
            .nodes
            .get(&node)
            .and_then(|node| node.inode)
            .unwrap_or(nowhere)
    }

    fn made(&mut self, wanted: Said<u64>, got: Said<Attributes>, mode: u32) {
        match (wanted, got) {
            (Ok(node), Ok(made)) => {
                assert_eq!((made.mode, made.owner), (mode, ME));
                self.model.nodes.get_mut(&node).expect("made").inode = Some(made.inode);
            }
            (wanted, got) => assert_eq!(got.map(drop), wanted.map(drop), "made"),
        }
    }

    fn rename(&mut self, mount: usize, directory: u64, name: &'static [u8]) {
        let (to, new_name) = (self.directory(), self.name());
        let how = [Rename::Replace, Rename::Replace, Rename::Keep, Rename::Exchange][self.random.below(4) as usize];
        let (from_inode, to_inode) = (self.inode(directory), self.inode(to));
        let wanted = self.model.rename((directory, name), (to, new_name), how);
        let got = said(self.mounts[mount].rename((from_inode, name), (to_inode, new_name), how));
        assert_eq!(
            got, wanted,
            "rename {how:?} {name:?} in {directory} to {new_name:?} in {to}"
        );
    }

    fn open_or_close(&mut self, mount: usize) {
        if self.open.len() < 4 {
            let node = self.node();
            self.mounts[mount].open(self.inode(node)).expect("it is there");
            self.model.nodes.get_mut(&node).expect("known").opened += 1;
            self.open.push((mount, node));
        } else {
            let n = self.random.below(self.open.len() as u64) as usize;
            self.close(n);
        }
    }

    fn close(&mut self, n: usize) {
        let (mount, node) = self.open.swap_remove(n);
        self.mounts[mount].close(self.inode(node)).expect("it is open");
        let found = self.model.nodes.get_mut(&node).expect("known");
        found.opened -= 1;
        if found.links == 0 && found.opened == 0 {
            self.model.nodes.remove(&node);
        }
    }

    fn content(&mut self, mount: usize) {
        let node = self.node();
        let inode = self.inode(node);
        self.mounts[mount].open(inode).expect("it is there");
        let range = [300, 3000, self.longest][self.random.below(3) as usize];
        let offset = self.random.below(range);
        let len = 1 + self.random.below(range - offset);
        match self.random.below(6) {
            0..3 => {
                let bytes = random_bytes(&mut self.random, len as usize);
                let wanted = self.model.bytes(node).map(|held| {
                    held.resize(held.len().max((offset + len) as usize), 0);
                    held[offset as usize..][..len as usize].copy_from_slice(&bytes);
                    len as usize
                });
                // A symbolic link's content can be written, and never is.
                if !matches!(self.model.nodes[&node].what, What::Symlink(_)) {
                    assert_eq!(said(self.mounts[mount].write(inode, offset, &bytes)), wanted, "write");
                }
            }
            3 => {
                if let Ok(held) = self.model.bytes(node) {
                    held.resize(offset as usize, 0);
                    self.mounts[mount].truncate(inode, offset).expect("a file");
                }
            }
            4 => {
                if let Ok(held) = self.model.bytes(node) {
                    let end = held.len().min((offset + len) as usize);
                    if (offset as usize) < end {
                        held[offset as usize..end].fill(0);
                    }
                    self.mounts[mount].punch(inode, offset, len).expect("a file");
                }
            }
            _ => {
                if let Ok(held) = self.model.bytes(node) {
                    held.resize(held.len().max((offset + len) as usize), 0);
                    self.mounts[mount].allocate(inode, offset, len, true).expect("a file");
                }
            }
        }
        self.mounts[mount].close(inode).expect("it is open");
    }

    /// Everything that is there.
    fn compare(&mut self) {
        let report = self.mounts[0].check(false).expect("looked at");
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.unreferenced, 0, "{report:?}");
        let nodes: Vec<u64> = self.model.nodes.keys().copied().collect();
        for node in nodes {
            self.compare_node(node);
        }
        let orphans = self.model.nodes.values().filter(|node| node.links == 0).count();
        assert_eq!(report.orphans, orphans as u64);
    }

    fn compare_node(&mut self, number: u64) {
        let n = self.random.below(self.mounts.len() as u64) as usize;
        let (files, node) = (&self.mounts[n], &self.model.nodes[&number]);
        let inode = node.inode.expect("known");
        let found = files.attributes(inode).expect("there");
        match &node.what {
            What::Directory(names) => {
                let listed = list(files, inode, 1 + self.random.below(5) as usize);
                let wanted: BTreeMap<_, _> = names
                    .iter()
                    .map(|(name, node)| (name.clone(), self.model.nodes[node].inode.expect("known")))
                    .collect();
                assert_eq!(listed, wanted);
                let below = names.values().filter(|node| self.model.is_directory(**node)).count() as u32;
                assert_eq!(found.links, if node.links == 0 { 0 } else { 2 + below });
                if node.links > 0 {
                    let above = files.above(inode).expect("there");
                    assert_eq!(Some(above), self.model.nodes[&node.above].inode);
                }
            }
            What::File(bytes) => {
                assert_eq!((found.links, found.size), (node.links, bytes.len() as u64));
                assert_eq!(&content(files, inode, bytes.len() + 9), bytes);
            }
            What::Symlink(text) => {
                assert_eq!(found.links, node.links);
                assert_eq!(&files.read_symlink(inode).expect("there"), text);
            }
        }
    }
}

fn list(files: &FileSystem, directory: Inode, most: usize) -> BTreeMap<Vec<u8>, Inode> {
    let (mut all, mut from) = (BTreeMap::new(), 0);
    loop {
        let some = files.list(directory, from, most).expect("a directory");
        let Some(last) = some.last() else { return all };
        from = last.next;
        for listed in some {
            assert!(all.insert(listed.name, listed.inode).is_none(), "listed twice");
        }
    }
}

fn content(files: &FileSystem, inode: Inode, most: usize) -> Vec<u8> {
    let mut bytes = vec![9; most];
    files.open(inode).expect("there");
    let len = files.read(inode, 0, &mut bytes).expect("a file");
    files.close(inode).expect("open");
    bytes.truncate(len);
    bytes
}

#[test]
fn it_does_what_a_model_does() {
    let seed = seed();
    for (round, mounts) in [1, 2, 3].into_iter().enumerate() {
        let mut pair = Pair::new(&space(96), mounts, seed.wrapping_add(round as u64));
        for step in 0..1500 {
            pair.step();
            if step % 100 == 0 {
                pair.compare();
            }
        }
        while !pair.open.is_empty() {
            pair.close(0);
        }
        pair.compare();
    }
}

#[test]
fn a_large_directory_is_found_listed_and_emptied() {
    const ENTRIES: u64 = 20_000;
    let space = space(64);
    let files = FileSystem::make(&space, ME).expect("made");
    let directory = files
        .make_directory(files.root(), b"large", 0o755, ME)
        .expect("made")
        .inode;
    let name = |n: u64| format!("file {n}").into_bytes();
    let first = files.create(directory, &name(0), 0o644, ME).expect("made").inode;
    for n in 1..ENTRIES {
        files.link(first, directory, &name(n)).expect("linked");
    }
    let listed = list(&files, directory, 1000);
    assert_eq!(listed.len() as u64, ENTRIES);
    assert!((0..ENTRIES).all(|n| listed.contains_key(&name(n))));
    assert_eq!(files.find(directory, &name(777)).expect("there").inode, first);
    assert!(matches!(files.find(directory, b"file"), Err(Failure::Missing)));
    assert!(matches!(
        files.remove_directory(files.root(), b"large"),
        Err(Failure::NotEmpty)
    ));
    assert_eq!(files.check(false).expect("looked at").problems, Vec::<String>::new());
    for n in 0..ENTRIES {
        files.unlink(directory, &name(n)).expect("there");
    }
    files.remove_directory(files.root(), b"large").expect("empty");
    let report = files.check(false).expect("looked at");
    assert_eq!((report.problems.len(), report.unreferenced), (0, 0), "{report:?}");
}

#[test]
fn sparse_files_take_what_was_written() {
    let files = FileSystem::make(&space(32), ME).expect("made");
    let file = files.create(files.root(), b"sparse", 0o644, ME).expect("made").inode;
    files.open(file).expect("there");
    let places = [0, 5 * BLOCK + 100, 600 * BLOCK, 300_000 * BLOCK, FILE_MAX - 10];
    for (n, offset) in places.into_iter().enumerate() {
        assert_eq!(files.write(file, offset, &[n as u8 + 1; 10]).expect("room"), 10);
    }
    let found = files.attributes(file).expect("there");
    assert_eq!(found.size, FILE_MAX);
    assert!(found.taken <= 5 * BLOCK, "{found:?}");
    for (n, offset) in places.into_iter().enumerate() {
        let mut bytes = [9; 30];
        let from = offset.saturating_sub(10);
        let len = files.read(file, from, &mut bytes).expect("a file");
        let wanted: Vec<u8> = (from..from + len as u64)
            .map(|at| {
                if (offset..offset + 10).contains(&at) {
                    n as u8 + 1
                } else {
                    0
                }
            })
            .collect();
        assert_eq!(bytes[..len], wanted);
    }
    assert!(matches!(files.write(file, FILE_MAX, b"x"), Err(Failure::TooLarge)));
    assert!(matches!(files.write(file, u64::MAX, b"xy"), Err(Failure::TooLarge)));
    assert!(matches!(files.truncate(file, FILE_MAX + 1), Err(Failure::TooLarge)));
    files.truncate(file, 1).expect("a file");
    files.truncate(file, 1 << 20).expect("a file");
    assert_eq!(content(&files, file, 2 << 20)[1..], vec![0; (1 << 20) - 1]);
    files.close(file).expect("open");
    assert_eq!(files.check(false).expect("looked at").problems, Vec::<String>::new());
}

#[test]
fn a_full_space_is_said_and_nothing_is_lost() {
    let space = space(12);
    let files = FileSystem::make(&space, ME).expect("made");
    let file = files.create(files.root(), b"file", 0o644, ME).expect("made").inode;
    files.open(file).expect("there");
    let (mut offset, chunk) = (0, vec![5; 300_000]);
    let failure = loop {
        match files.write(file, offset, &chunk) {
            Ok(written) => offset += written as u64,
            Err(failure) => break failure,
        }
    };
    assert!(matches!(&failure, Failure::Memory(Error::Full(_))), "{failure}");
    assert_eq!(files.attributes(file).expect("there").size, offset);
    assert!(content(&files, file, 20 << 20).iter().all(|byte| *byte == 5));
    let full = (0..100_000u64).find_map(|n| {
        files
            .create(files.root(), &n.to_le_bytes().map(|b| b | 64), 0o644, ME)
            .err()
    });
    assert!(
        matches!(&full, Some(Failure::Memory(Error::Full(_)) | Failure::Exists)),
        "{full:?}"
    );
    let report = files.check(false).expect("looked at");
    assert_eq!((report.problems.len(), report.unreferenced), (0, 0), "{report:?}");
    files.truncate(file, 0).expect("a file");
    files.write(file, 0, &chunk).expect("room again");
    files.close(file).expect("open");
}

#[test]
fn what_has_no_name_stays_while_it_is_open() {
    let space = space(32);
    let (one, other) = (
        FileSystem::make(&space, ME).expect("made"),
        FileSystem::mount(&space).expect("mounted"),
    );
    let file = one.create_open(one.root(), b"file", 0o600, ME).expect("made").inode;
    one.write(file, 0, &[7; 100_000]).expect("room");
    other.open(file).expect("there");
    other.unlink(other.root(), b"file").expect("there");
    assert_eq!(content(&one, file, 200_000), [7; 100_000]);
    one.close(file).expect("open");
    assert_eq!(content(&other, file, 200_000), [7; 100_000]);
    assert_eq!(one.check(false).expect("looked at").orphans, 1);
    assert!(matches!(
        other.link(file, other.root(), b"again"),
        Err(Failure::Missing)
    ));
    other.close(file).expect("open");
    assert!(matches!(one.attributes(file), Err(Failure::Gone)));
    assert!(matches!(one.open(file), Err(Failure::Gone)));
    // With a mount that is gone: the next one frees it.
    let file = other.create_open(other.root(), b"file", 0o600, ME).expect("made").inode;
    other.unlink(other.root(), b"file").expect("there");
    drop(other);
    assert_eq!(one.check(false).expect("looked at").orphans, 1);
    let third = FileSystem::mount(&space).expect("mounted");
    let report = third.check(false).expect("looked at");
    assert_eq!(
        (report.orphans, report.unreferenced, report.problems.len()),
        (0, 0, 0),
        "{report:?}"
    );
    assert!(matches!(third.attributes(file), Err(Failure::Gone)));
}

/// A mount that looked at all mounts had an error when one died between two of its looks.
#[test]
fn a_mount_that_dies_while_others_look_has_nothing_open() {
    let space = space(16);
    let files = FileSystem::make(&space, ME).expect("made");
    let other = FileSystem::mount(&space).expect("mounted");
    let file = other.create_open(other.root(), b"a", 0o644, ME).expect("made");
    let records = files.mounts().expect("looked at");
    let tables = |record: &GlobalAddress| files.tables_of(*record).expect("looked at").len();
    assert_eq!(records.iter().map(tables).collect::<Vec<_>>(), [0, 1]);
    assert!(files.is_open(file.inode.address).expect("looked at"));
    drop(other);
    assert_eq!(records.iter().map(tables).collect::<Vec<_>>(), [0, 0]);
    assert!(!files.is_open(file.inode.address).expect("looked at"));
}

/// The lock was let go of in order when a step could not be ended, and other mounts saw what it had changed although it
/// was answered with an error, until the next change took it back.
#[test]
fn a_change_whose_end_fails_is_seen_by_no_mount() {
    let space = space(16);
    let files = FileSystem::make(&space, ME).expect("made");
    let other = FileSystem::mount(&space).expect("mounted");
    let file = files.create(files.root(), b"a", 0o644, ME).expect("made").inode;
    let mut journal = vec![0; JOURNAL as usize];
    let failed = files.change(|step| {
        step.put(at(file.address, LINKS), 9)?;
        space.read(files.journal, &mut journal)?;
        Ok(space.free(files.journal)?)
    });
    failed.expect_err("the journal is gone");
    let mut allocated = (0..EXTENT / JOURNAL).map(|_| files.session.alloc(JOURNAL).expect("room"));
    assert!(allocated.any(|at| at == files.journal), "its place is not used again");
    space.write(files.journal, &journal).expect("there");
    let links = other.find(other.root(), b"a").expect("there").links;
    assert_eq!(links, 1, "what was answered with an error is seen");
    let report = other.check(false).expect("looked at");
    assert_eq!((report.problems, report.files), (Vec::new(), 1));
}

/// The journal of a mount of the version before, killed in the middle of a step.
#[test]
fn a_step_that_a_former_version_left_is_taken_back() {
    let space = space(16);
    let files = FileSystem::make(&space, ME).expect("made");
    let word = at(files.superblock, SUPER_NUMBER);
    let was = space.load(word).expect("there");
    for (field, value) in [(16, word.raw()), (24, was), (32, word.raw()), (40, was + 1), (0, 2)] {
        space.store(at(files.journal, field), value).expect("there");
    }
    space.store(word, was + 2).expect("there");
    drop(files);
    let files = FileSystem::mount(&space).expect("mounted");
    assert_eq!(
        (
            space.load(word).expect("there"),
            space.load(files.journal).expect("there")
        ),
        (was, 0)
    );
}

#[test]
fn what_is_no_file_system_is_not_mounted() {
    let space = space(16);
    assert!(matches!(
        FileSystem::mount(&space),
        Err(Failure::Memory(Error::Mismatch(_)))
    ));
    drop(cenote_kv::Store::open(&space).expect("made"));
    let refused = FileSystem::mount_or_make(&space, ME).expect_err("a key-value store");
    assert!(refused.to_string().contains("something else"), "{refused}");
    let space = self::space(100);
    let files = FileSystem::make(&space, ME).expect("made");
    assert!(FileSystem::make(&space, ME).is_err());
    assert!(cenote_kv::Store::open(&space).is_err());
    let others: Vec<_> = (1..MOUNTS_MAX)
        .map(|_| FileSystem::mount(&space).expect("mounted"))
        .collect();
    assert!(matches!(
        FileSystem::mount(&space),
        Err(Failure::Memory(Error::Busy(_)))
    ));
    drop(others);
    FileSystem::mount(&space).expect("mounted again");
    space.store(at(files.superblock, 8), 99).expect("there");
    assert!(matches!(
        FileSystem::mount(&space),
        Err(Failure::Memory(Error::Mismatch(_)))
    ));
}

/// Threads of two mounts, in the same directories.
#[test]
fn mounts_change_the_same_directories_at_once() {
    let seed = seed();
    let space = space(64);
    let files: Vec<_> = [FileSystem::make(&space, ME), FileSystem::mount(&space)]
        .into_iter()
        .map(|files| Arc::new(files.expect("mounted")))
        .collect();
    let directories = [b"x", b"y"].map(|name| {
        files[0]
            .make_directory(files[0].root(), name, 0o755, ME)
            .expect("made")
            .inode
    });
    let worker = |n: usize| {
        let files = Arc::clone(&files[n % 2]);
        rt::spawn("worker", move || {
            let mut random = Random(seed.wrapping_add(n as u64));
            for _ in 0..400 {
                let (a, b) = (
                    directories[random.below(2) as usize],
                    directories[random.below(2) as usize],
                );
                let (from, to) = (NAMES[random.below(5) as usize], NAMES[random.below(5) as usize]);
                match random.below(4) {
                    0 => {
                        if let Ok(made) = files.create_open(a, from, 0o644, ME) {
                            let len = random.below(3 * BLOCK) as usize;
                            files.write(made.inode, 0, &vec![3; len]).expect("room");
                            files.close(made.inode).expect("open");
                        }
                    }
                    1 => drop(files.unlink(a, from)),
                    2 => drop(files.rename((a, from), (b, to), Rename::Replace)),
                    _ => {
                        if let Ok(found) = files.find(a, from)
                            && files.open(found.inode).is_ok()
                        {
                            let mut bytes = vec![0; 3 * BLOCK as usize];
                            let len = files.read(found.inode, 0, &mut bytes).expect("a file");
                            assert!(bytes[..len].iter().all(|byte| *byte == 3));
                            files.close(found.inode).expect("open");
                        }
                    }
                }
            }
        })
    };
    let workers: Vec<_> = (0..4).map(worker).collect();
    workers.into_iter().for_each(|worker| worker.join().expect("it ended"));
    let report = files[0].check(false).expect("looked at");
    assert_eq!(
        (report.problems.len(), report.unreferenced, report.orphans),
        (0, 0, 0),
        "{report:?}"
    );
}

/// Words of everything that lies there are overwritten by anything: errors, never a panic, or an end that does not
/// come.
#[test]
fn garbage_is_an_error() {
    let seed = seed();
    for round in 0..150 {
        let mut pair = Pair::new(&space(48), 1, seed.wrapping_add(round));
        pair.longest = 2 * BLOCK;
        (0..120).for_each(|_| pair.step());
        let space = pair.mounts[0].space().clone();
        let mut objects = Vec::new();
        space
            .each_object(|object, bytes| objects.push((object, bytes)))
            .expect("listed");
        let mut random = Random(seed ^ round);
        for _ in 0..1 + random.below(8) {
            let (object, bytes) = objects[random.below(objects.len() as u64) as usize];
            let word = at(object, 8 * random.below(bytes.min(512) / 8));
            let other = objects[random.below(objects.len() as u64) as usize].0.raw();
            let value = match random.below(5) {
                0 => 0,
                1 => u64::MAX,
                2 => other,
                3 => other | random.below(8),
                _ => random.below(1 << 40),
            };
            // Of locks only what is no lock: one whose owner seems to live would be waited for, as is right.
            space.store(word, value).expect("there");
        }
        let files = &pair.mounts[0];
        let _ = files.check(false);
        let inodes: Vec<Inode> = pair.model.nodes.values().filter_map(|node| node.inode).collect();
        for inode in inodes {
            poke(files, inode, &mut random);
        }
        let _ = FileSystem::mount(&space).map(|other| other.check(true));
    }
}

/// Everything that can be done with a file.
fn poke(files: &FileSystem, inode: Inode, random: &mut Random) {
    let name = NAMES[random.below(7) as usize];
    let _ = files.list(inode, 0, 10);
    let _ = files.find(inode, name);
    let _ = files.above(inode);
    let _ = files.read_symlink(inode);
    let _ = files.create(inode, b"new", 0o644, ME);
    let _ = files.rename((inode, name), (files.root(), b"moved"), Rename::Replace);
    if files.open(inode).is_ok() {
        let _ = files.read(inode, 0, &mut vec![0; 3 * BLOCK as usize]);
        let _ = files.write(inode, random.below(2 * BLOCK), &[1; 1000]);
        let _ = files.truncate(inode, random.below(BLOCK));
        let _ = files.punch(inode, 0, 2 * BLOCK);
        let _ = files.close(inode);
    }
    let _ = files.unlink(inode, name);
    let _ = files.remove_directory(inode, name);
}

/// The system's runtime, which before some of the accesses that change something copies a region's file, as a process
/// that is killed there would leave it, and looks what the next process makes of it.
#[derive(Clone)]
struct Killing(Arc<Kills>);

struct Kills {
    region: PathBuf,
    copy: PathBuf,
    accesses: AtomicU64,
    /// One of so many accesses is where a copy is made, beginning with this one.
    every: u64,
    first: u64,
    kills: AtomicU64,
}

impl Killing {
    fn new(home: &Path, every: u64, first: u64) -> Self {
        Self(Arc::new(Kills {
            region: home.join("region"),
            copy: home.join("copy"),
            accesses: AtomicU64::new(0),
            every,
            first,
            kills: AtomicU64::new(0),
        }))
    }

    fn access(&self) {
        let n = self.0.accesses.fetch_add(1, Ordering::Relaxed);
        if n >= self.0.first && (n - self.0.first).is_multiple_of(self.0.every) {
            self.0.kills.fetch_add(1, Ordering::Relaxed);
            rt::bare(|| {
                std::fs::copy(&self.0.region, &self.0.copy).expect("copied");
                recovered(&self.0.copy, n);
            });
        }
    }

    /// Operations of every kind, in a region of their own.
    fn run(self) -> Arc<Kills> {
        let options = SpaceOptions {
            bytes: 24 * EXTENT,
            ..SpaceOptions::default()
        };
        observe::install(Arc::new(self.clone()));
        let space = Space::create(&self.0.region, &options).expect("made");
        let files = FileSystem::make(&space, ME).expect("made");
        let runtime: &'static Self = Box::leak(Box::new(self.clone()));
        rt::enter(runtime, || every_operation(&files));
        observe::uninstall();
        drop(files);
        drop(space);
        std::fs::remove_file(&self.0.region).expect("removed");
        self.0
    }
}

impl observe::Sink for Killing {
    fn touch(&self, region: &cenote_fabric::RegionMemory, _: u64, _: u32, access: Access) {
        // Other tests are here too, in other threads and regions.
        let is_its = || region.name().ends_with(&*self.0.region.to_string_lossy());
        if access == Access::Write && rt::simulated() && is_its() {
            self.access();
        }
    }
}

impl Runtime for Killing {
    fn now(&self) -> Nanos {
        rt::os::now()
    }
    fn wall_micros(&self) -> i64 {
        rt::os::wall_micros()
    }
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Box<dyn Join>> {
        rt::os::spawn(name, body)
    }
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<Nanos>) -> Wait {
        rt::os::wait(word, expected, timeout)
    }
    fn wake(&self, word: &AtomicU32, count: usize) -> usize {
        rt::os::wake(word, count)
    }
    fn preempt(&self) {}
    fn relax(&self) {}
    fn yield_now(&self) {}
    fn random(&self) -> u64 {
        rt::os::random()
    }
    fn thread_slot(&self) -> usize {
        rt::os::thread_slot()
    }
    fn fs(&self) -> Arc<dyn rt::fs::FileSystem> {
        rt::os::file_system()
    }
    fn access(&self, _: usize, bytes: u32, access: Access) {
        // Locks of the process are words of 4 bytes.
        if bytes == 8 && access == Access::Write {
            Killing::access(self);
        }
    }
}

/// Operations of every kind, with the process killed before one of their stores: whatever was left is a tree in order,
/// in which each operation was done or was not.
#[test]
fn a_kill_between_any_two_stores_leaves_a_tree_in_order() {
    const KILLS: u64 = 250;
    let mut random = Random(seed());
    let home = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let all = Killing::new(home.path(), u64::MAX, u64::MAX).run();
    let all = all.accesses.load(Ordering::Relaxed);
    let every = all / KILLS + 1;
    let kills = Killing::new(home.path(), every, random.below(every)).run();
    let kills = kills.kills.load(Ordering::Relaxed);
    assert!(kills > KILLS / 2, "{kills} kills in {all} stores");
}

/// The content is of one letter: what a write that was cut off left is of it, or zero.
fn every_operation(files: &FileSystem) {
    let root = files.root();
    let name = |n: u8| vec![b'a' + n; 1 + usize::from(n)];
    for n in 0..20 {
        files.create(root, &name(n), 0o644, ME).expect("made");
    }
    let sub = files.make_directory(root, b"sub", 0o755, ME).expect("made").inode;
    let below = files.make_directory(sub, b"below", 0o755, ME).expect("made").inode;
    files.make_symlink(sub, b"short", b"xx", ME).expect("made");
    files.make_symlink(sub, b"long", &[b'x'; 700], ME).expect("made");
    for n in 0..6 {
        let file = files.find(root, &name(n)).expect("there").inode;
        files.open(file).expect("there");
        for offset in [0, 200, 1000, 40_000, 300_000] {
            files
                .write(file, offset, &vec![b'x'; 100 + 1000 * usize::from(n)])
                .expect("room");
        }
        files.truncate(file, 150_000).expect("a file");
        files.punch(file, 10, 80_000).expect("a file");
        files.truncate(file, 100 * u64::from(n)).expect("a file");
        files.write(file, 90_000, b"xxxx").expect("room");
        files.close(file).expect("open");
    }
    files
        .link(files.find(root, &name(1)).expect("there").inode, sub, b"linked")
        .expect("linked");
    files
        .rename((root, &name(1)), (below, b"moved"), Rename::Replace)
        .expect("moved");
    files
        .rename((root, &name(2)), (root, &name(3)), Rename::Replace)
        .expect("moved");
    files
        .rename((sub, b"below"), (root, b"here"), Rename::Keep)
        .expect("moved");
    files
        .rename((root, b"here"), (root, &name(4)), Rename::Exchange)
        .expect("exchanged");
    let open = files.find(root, &name(5)).expect("there").inode;
    files.open(open).expect("there");
    files.unlink(root, &name(5)).expect("there");
    files.write(open, 0, b"xyz").expect("room");
    files.close(open).expect("open");
    let change = Change {
        rights: Some(0o600),
        user: Some(3),
        ..Change::default()
    };
    files.set_attributes(sub, &change).expect("there");
    for n in 6..20 {
        files.unlink(root, &name(n)).expect("there");
    }
}

/// Opens what a killed process left, as the next one does.
fn recovered(path: &Path, n: u64) {
    let space = Space::open(path, RegionOptions::default()).expect("opened");
    let files = FileSystem::mount(&space).expect("mounted");
    let report = files.check(true).expect("looked at");
    assert_eq!(report.problems, Vec::<String>::new(), "killed before store {n}");
    assert_eq!(report.orphans, 0, "no living mount has it open");
    // What an operation has allocated and not used, or taken out and not freed: a directory's nodes, a file's blocks.
    assert!(report.unreferenced < 30, "{report:?}");
    let report = files.check(false).expect("looked at");
    assert_eq!((report.unreferenced, report.problems.len()), (0, 0), "{report:?}");
    let mut directories = vec![files.root()];
    while let Some(directory) = directories.pop() {
        for listed in files.list(directory, 0, usize::MAX).expect("a directory") {
            match listed.kind {
                kind::DIRECTORY => directories.push(listed.inode),
                kind::SYMLINK => assert!(
                    files
                        .read_symlink(listed.inode)
                        .expect("a link")
                        .iter()
                        .all(|b| *b == b'x')
                ),
                _ => assert!(
                    content(&files, listed.inode, 400_000)
                        .iter()
                        .all(|byte| matches!(byte, b'x' | 0))
                ),
            }
        }
    }
    files.make_directory(files.root(), b"after", 0o755, ME).expect("made");
}
