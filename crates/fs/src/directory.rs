//! A directory's entries: a trie over 60 bits of the names' hashes.
//!
//! ```text
//!   inode's root ──► node: 64 words, by the first 6 bits
//!                      ├─ 0
//!                      ├─ entry ──► entry …       a chain, of 8 at most
//!                      └─ node + 1                by the next 6 bits
//! ```
//!
//! A chain that would grow beyond 8 becomes a node. So nothing ever stops for all of a large directory, and a name is
//! found in as many steps as the logarithm of the entries has sixes of bits. The order of the hashes is the order in
//! which a directory is listed; a place in it stays what it is, whatever comes and goes. The hash has a key that each
//! file system draws: a program that chooses names cannot choose their places.
//!
//! The tree's lock is held: to read, or where a [`Step`] is there, to write.

use super::layout::{CONTENT, ENTRY_INODE, ENTRY_KIND, ENTRY_NAME, ENTRY_NEXT, ENTRY_NUMBER, NAME_MAX, at};
use super::step::Step;
use super::{Inode, Result};
use cenote_base::Error;
use cenote_base::sip::sip;
use cenote_space::{GlobalAddress, Space};

const BITS: u32 = 6;
const LEVELS: u32 = 10;
const SLOTS: usize = 1 << BITS;
const NODE: u64 = 8 * SLOTS as u64;
/// The mark of a node's address among those of entries.
const IS_NODE: u64 = 1;
/// Entries of a chain, where the hash has bits left to part them.
const CHAIN_MAX: usize = 8;
/// Entries of one hash, all 60 bits: more are a loop.
const SAME_MAX: usize = 64;
/// Nodes in which so few entries were found that they must be a loop.
const NODES_MAX: u32 = 1 << 20;
/// Bytes that are read of an entry at once: each has as many.
const FIRST: usize = 64;
const NAME_FIRST: usize = FIRST - ENTRY_NAME as usize;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: GlobalAddress,
    pub(super) next: GlobalAddress,
    pub(super) hash: u64,
    pub(super) inode: Inode,
    /// The type bits of the inode's mode.
    pub(super) kind: u32,
    pub(super) name: Vec<u8>,
}

impl Entry {
    fn read(space: &Space, at: GlobalAddress) -> Result<Self> {
        let mut bytes = [0; FIRST];
        space.read(at, &mut bytes)?;
        let word = |n: usize| u64::from_ne_bytes(core::array::from_fn(|i| bytes[8 * n + i]));
        let len = word(4) as u32 as usize;
        if len == 0 || len > NAME_MAX {
            return Err(Error::Corrupt(format!("the entry at {at} has a name of {len} bytes")).into());
        }
        let mut name = bytes[ENTRY_NAME as usize..].to_vec();
        name.resize(len, 0);
        if len > NAME_FIRST {
            space.read(super::layout::at(at, FIRST as u64), &mut name[NAME_FIRST..])?;
        }
        Ok(Self {
            at,
            next: GlobalAddress::from_raw(word(0)),
            hash: word(1),
            inode: Inode {
                address: GlobalAddress::from_raw(word(2)),
                number: word(3),
            },
            kind: (word(4) >> 32) as u32,
            name,
        })
    }

    /// Writes it where nothing refers to yet.
    fn write(&self, space: &Space) -> Result<()> {
        let kind = u64::from(self.kind) << 32 | self.name.len() as u64;
        let words = [
            self.next.raw(),
            self.hash,
            self.inode.address.raw(),
            self.inode.number,
            kind,
        ];
        space.write(self.at, words.map(u64::to_ne_bytes).as_flattened())?;
        Ok(space.write(at(self.at, ENTRY_NAME), &self.name)?)
    }

    /// Lets the name be another inode's.
    pub(super) fn lead_to(&self, step: &mut Step<'_>, inode: Inode, kind: u32) -> Result<()> {
        step.put(at(self.at, ENTRY_INODE), inode.address.raw())?;
        step.put(at(self.at, ENTRY_NUMBER), inode.number)?;
        step.put(at(self.at, ENTRY_KIND), u64::from(kind) << 32 | self.name.len() as u64)
    }
}

/// A directory's trie.
#[derive(Clone, Copy)]
pub(super) struct Trie<'a> {
    pub(super) space: &'a Space,
    /// The directory's inode.
    pub(super) directory: GlobalAddress,
    pub(super) key: [u64; 2],
}

/// Where a hash belongs: the word that a chain hangs from, and what is in it.
struct Place {
    word: GlobalAddress,
    chain: Vec<Entry>,
    level: u32,
}

impl Trie<'_> {
    fn hash(&self, name: &[u8]) -> u64 {
        sip(self.key, name) >> (64 - BITS * LEVELS)
    }

    fn place(&self, hash: u64) -> Result<Place> {
        let (mut word, mut level) = (at(self.directory, CONTENT), 0);
        loop {
            let value = self.space.load(word)?;
            if value & IS_NODE == 0 {
                let chain = self.chain(value, level)?;
                return Ok(Place { word, chain, level });
            }
            word = at(node_of(value), 8 * slot(hash, level)?);
            level += 1;
        }
    }

    fn chain(&self, first: u64, level: u32) -> Result<Vec<Entry>> {
        let (mut chain, mut next) = (Vec::new(), GlobalAddress::from_raw(first));
        let most = if level == LEVELS { SAME_MAX } else { CHAIN_MAX };
        while !next.is_null() {
            if chain.len() == most {
                return Err(self.corrupt("a chain that is too long").into());
            }
            let entry = Entry::read(self.space, next)?;
            next = entry.next;
            chain.push(entry);
        }
        Ok(chain)
    }

    fn corrupt(&self, what: &str) -> Error {
        Error::Corrupt(format!("the directory at {}: {what}", self.directory))
    }

    /// The entry of a name.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<Entry>> {
        let hash = self.hash(name);
        let is_it = |entry: &Entry| entry.hash == hash && entry.name == name;
        Ok(self.place(hash)?.chain.into_iter().find(is_it))
    }

    /// Adds a name that is not there.
    pub(super) fn insert(&self, step: &mut Step<'_>, name: &[u8], inode: Inode, kind: u32) -> Result<()> {
        let hash = self.hash(name);
        loop {
            let place = self.place(hash)?;
            if place.chain.len() == if place.level == LEVELS { SAME_MAX } else { CHAIN_MAX } {
                self.split(step, &place)?;
                continue;
            }
            let entry = Entry {
                at: step.alloc((ENTRY_NAME + name.len() as u64).max(FIRST as u64))?,
                next: GlobalAddress::from_raw(self.space.load(place.word)?),
                hash,
                inode,
                kind,
                name: name.to_vec(),
            };
            entry.write(self.space)?;
            return step.put(place.word, entry.at.raw());
        }
    }

    /// A node in the place of a chain.
    fn split(&self, step: &mut Step<'_>, place: &Place) -> Result<()> {
        let node = step.alloc(NODE)?;
        for entry in &place.chain {
            let word = at(node, 8 * slot(entry.hash, place.level)?);
            step.put(at(entry.at, ENTRY_NEXT), self.space.load(word)?)?;
            self.space.store(word, entry.at.raw())?;
        }
        step.put(place.word, node.raw() | IS_NODE)
    }

    /// Takes a name out.
    pub(super) fn remove(&self, step: &mut Step<'_>, name: &[u8]) -> Result<()> {
        let place = self.place(self.hash(name))?;
        let mut word = place.word;
        for entry in &place.chain {
            if entry.name == name {
                step.put(word, entry.next.raw())?;
                step.free(entry.at);
                return Ok(());
            }
            word = at(entry.at, ENTRY_NEXT);
        }
        Err(self.corrupt("an entry that is gone").into())
    }

    /// Entries from a hash on, in the order of their hashes: at least `most` if there are so many, and all of the last
    /// one's hash.
    pub(super) fn list(&self, from: u64, most: usize) -> Result<Vec<Entry>> {
        let mut list = List {
            trie: *self,
            most,
            nodes: 0,
            found: Vec::new(),
        };
        if from >> (BITS * LEVELS) == 0 {
            list.below(self.space.load(at(self.directory, CONTENT))?, 0, Some(from))?;
        }
        Ok(list.found)
    }

    fn node(&self, value: u64) -> Result<[u64; SLOTS]> {
        let mut words = [[0; 8]; SLOTS];
        self.space.read(node_of(value), words.as_flattened_mut())?;
        Ok(words.map(u64::from_ne_bytes))
    }

    /// Every node. `each` says whether what lies below is to be looked at.
    pub(super) fn each_node(&self, each: &mut impl FnMut(GlobalAddress) -> bool) -> Result<()> {
        self.nodes_below(self.space.load(at(self.directory, CONTENT))?, 0, each)
    }

    fn nodes_below(&self, value: u64, level: u32, each: &mut impl FnMut(GlobalAddress) -> bool) -> Result<()> {
        if value & IS_NODE == 0 || !each(node_of(value)) {
            return Ok(());
        }
        if level == LEVELS {
            return Err(self.corrupt("too many levels").into());
        }
        self.node(value)?
            .into_iter()
            .try_for_each(|value| self.nodes_below(value, level + 1, each))
    }
}

/// Entries that are being listed.
struct List<'a> {
    trie: Trie<'a>,
    most: usize,
    /// Nodes that were looked at.
    nodes: u32,
    found: Vec<Entry>,
}

impl List<'_> {
    fn below(&mut self, value: u64, level: u32, from: Option<u64>) -> Result<()> {
        if value & IS_NODE == 0 {
            let mut chain = self.trie.chain(value, level)?;
            chain.retain(|entry| from.is_none_or(|from| entry.hash >= from));
            chain.sort_by_key(|entry| entry.hash);
            self.found.append(&mut chain);
            return Ok(());
        }
        self.nodes += 1;
        if level == LEVELS || self.nodes > NODES_MAX {
            return Err(self.trie.corrupt("nodes without end").into());
        }
        let first = from.map_or(Ok(0), |from| slot(from, level))? as usize;
        for (n, value) in self.trie.node(value)?.into_iter().enumerate().skip(first) {
            if self.found.len() >= self.most {
                return Ok(());
            }
            self.below(value, level + 1, from.filter(|_| n == first))?;
        }
        Ok(())
    }
}

fn node_of(value: u64) -> GlobalAddress {
    GlobalAddress::from_raw(value & !IS_NODE)
}

/// The bits of a hash that count at a level.
fn slot(hash: u64, level: u32) -> Result<u64> {
    if level >= LEVELS {
        return Err(Error::Corrupt("a directory of too many levels".into()).into());
    }
    Ok(hash >> (BITS * (LEVELS - 1 - level)) & (SLOTS as u64 - 1))
}
