//! Where a file's blocks are: a tree of words, as high as the file is long.
//!
//! ```text
//!   root word: address + height (the address is a multiple of 64)
//!     height 0     the only block
//!     height h     node: 512 words ──► … h nodes deep … ──► block of 64 KiB
//! ```
//!
//! A word is null where nothing was written: zeros. Growing is a store: of a node that leads to the former root, into
//! the root; of a node or block, into its word.

use super::Result;
use super::layout::{BLOCK, CONTENT, FANOUT, HEIGHT_MAX, at};
use cenote_base::Error;
use cenote_space::{GlobalAddress, Session, Space};

const HEIGHT_MASK: u64 = 63;
const NODE: u64 = 8 * FANOUT;
const _: () = assert!(HEIGHT_MAX <= HEIGHT_MASK, "a root word has room for each height");

/// The blocks of an inode.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) session: &'a Session,
    pub(super) inode: GlobalAddress,
}

/// Where a block belongs.
enum Place {
    /// Its word.
    Word(GlobalAddress),
    /// The tree has none for it, nor for those behind it: so many.
    Gap(u64),
}

/// Blocks below a root of this height.
fn reach(height: u64) -> u64 {
    FANOUT.pow(height as u32)
}

/// A root word's address and height.
pub(super) fn decode(root: u64) -> Result<(GlobalAddress, u64)> {
    match root & HEIGHT_MASK {
        height @ 0..=HEIGHT_MAX => Ok((GlobalAddress::from_raw(root & !HEIGHT_MASK), height)),
        height => Err(Error::Corrupt(format!("a tree of blocks of height {height}")).into()),
    }
}

impl Blocks<'_> {
    fn space(&self) -> &Space {
        self.session
    }

    pub(super) fn root_word(&self) -> GlobalAddress {
        at(self.inode, CONTENT)
    }

    /// Whether there is no block, and the inode holds the content itself.
    pub(super) fn is_empty(&self) -> Result<bool> {
        Ok(self.space().load(self.root_word())? == 0)
    }

    /// The word of a block, if the tree has one for it.
    fn word(&self, index: u64) -> Result<Option<GlobalAddress>> {
        Ok(match self.look_up(index)? {
            Place::Word(word) => Some(word),
            Place::Gap(_) => None,
        })
    }

    /// How many blocks, from this one on, no node leads to; none if it has a word.
    pub(super) fn gap(&self, index: u64) -> Result<u64> {
        Ok(match self.look_up(index)? {
            Place::Word(_) => 0,
            Place::Gap(blocks) => blocks,
        })
    }

    fn look_up(&self, index: u64) -> Result<Place> {
        let root = self.space().load(self.root_word())?;
        let (mut node, height) = decode(root)?;
        if root == 0 || index >= reach(height) {
            return Ok(Place::Gap(u64::MAX));
        }
        let mut word = self.root_word();
        for level in (0..height).rev() {
            word = at(node, 8 * (index / reach(level) % FANOUT));
            node = GlobalAddress::from_raw(self.space().load(word)?);
            if node.is_null() && level > 0 {
                return Ok(Place::Gap(reach(level) - index % reach(level)));
            }
        }
        Ok(Place::Word(word))
    }

    /// A block; null if there is none.
    pub(super) fn find(&self, index: u64) -> Result<GlobalAddress> {
        match self.word(index)? {
            Some(word) => Ok(GlobalAddress::from_raw(self.space().load(word)?)),
            None => Ok(GlobalAddress::NULL),
        }
    }

    /// The word of a block, made if need be.
    pub(super) fn make_word(&self, index: u64) -> Result<GlobalAddress> {
        let (mut node, height) = self.grow(index)?;
        let mut word = self.root_word();
        for level in (0..height).rev() {
            word = at(node, 8 * (index / reach(level) % FANOUT));
            node = GlobalAddress::from_raw(self.space().load(word)?);
            if node.is_null() && level > 0 {
                node = self.session.alloc(NODE)?;
                self.space().store(word, node.raw())?;
            }
        }
        Ok(word)
    }

    /// A tree that is high enough for a block: its root and height.
    fn grow(&self, index: u64) -> Result<(GlobalAddress, u64)> {
        loop {
            let root = self.space().load(self.root_word())?;
            let (node, height) = decode(root)?;
            if index < reach(height) {
                return Ok((node, height));
            }
            let above = self.session.alloc(NODE)?;
            self.space().store(above, node.raw())?;
            self.space().store(self.root_word(), above.raw() | (height + 1))?;
        }
    }

    /// Takes all blocks from one on out of the tree, and frees them. The bytes that they took.
    pub(super) fn cut(&self, from: u64) -> Result<u64> {
        let root = self.space().load(self.root_word())?;
        let (node, height) = decode(root)?;
        match root {
            0 => Ok(0),
            _ if from == 0 => {
                self.space().store(self.root_word(), 0)?;
                self.free(node, height)
            }
            _ if from >= reach(height) => Ok(0),
            _ => self.cut_below(node, height, from),
        }
    }

    /// In a node of this height, of which some stays.
    fn cut_below(&self, node: GlobalAddress, height: u64, from: u64) -> Result<u64> {
        let (below, mut freed) = (reach(height - 1), 0);
        for n in from / below..FANOUT {
            let word = at(node, 8 * n);
            let child = GlobalAddress::from_raw(self.space().load(word)?);
            let first = n * below;
            if child.is_null() {
                continue;
            }
            if first < from {
                freed += self.cut_below(child, height - 1, from - first)?;
            } else {
                self.space().store(word, 0)?;
                freed += self.free(child, height - 1)?;
            }
        }
        Ok(freed)
    }

    /// Frees a node that nothing leads to, and what is below it: the bytes of the blocks.
    fn free(&self, node: GlobalAddress, height: u64) -> Result<u64> {
        let mut freed = 0;
        if height == 0 {
            freed += self.space().size_of(node)?;
        } else {
            for child in children(self.space(), node)? {
                freed += self.free(child, height - 1)?;
            }
        }
        self.space().free(node)?;
        Ok(freed)
    }

    /// Takes one block out, and frees it: the bytes that it took.
    pub(super) fn remove(&self, index: u64) -> Result<u64> {
        let Some(word) = self.word(index)? else { return Ok(0) };
        let block = GlobalAddress::from_raw(self.space().load(word)?);
        if block.is_null() {
            return Ok(0);
        }
        if word == self.root_word() {
            // A tree without a node: an empty one takes its place, as a null root would mean that the inode holds the
            // content.
            let node = self.session.alloc(NODE)?;
            self.space().store(word, node.raw() | 1)?;
        } else {
            self.space().store(word, 0)?;
        }
        let bytes = self.space().size_of(block)?;
        self.space().free(block)?;
        Ok(bytes)
    }

    /// Tells of each object of the tree: its address, and the number of the block that it is, if it is one. `each` says
    /// whether what lies below is to be looked at.
    pub(super) fn each(&self, each: &mut impl FnMut(GlobalAddress, Option<u64>) -> Result<bool>) -> Result<()> {
        let root = self.space().load(self.root_word())?;
        let (node, height) = decode(root)?;
        if root == 0 {
            return Ok(());
        }
        self.each_below(node, height, 0, each)
    }

    fn each_below(
        &self,
        node: GlobalAddress,
        height: u64,
        first: u64,
        each: &mut impl FnMut(GlobalAddress, Option<u64>) -> Result<bool>,
    ) -> Result<()> {
        if !each(node, (height == 0).then_some(first))? || height == 0 {
            return Ok(());
        }
        let mut words = [[0; 8]; FANOUT as usize];
        self.space().read(node, words.as_flattened_mut())?;
        for (n, word) in words.into_iter().enumerate() {
            let child = GlobalAddress::from_raw(u64::from_ne_bytes(word));
            if !child.is_null() {
                self.each_below(child, height - 1, first + n as u64 * reach(height - 1), each)?;
            }
        }
        Ok(())
    }
}

fn children(space: &Space, node: GlobalAddress) -> Result<Vec<GlobalAddress>> {
    let mut words = [[0; 8]; FANOUT as usize];
    space.read(node, words.as_flattened_mut())?;
    let addresses = words
        .into_iter()
        .map(|word| GlobalAddress::from_raw(u64::from_ne_bytes(word)));
    Ok(addresses.filter(|address| !address.is_null()).collect())
}

/// The blocks that hold `len` bytes from `offset` on: number, first byte within it, and how many.
pub(super) fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let end = offset + len;
    let mut from = offset;
    core::iter::from_fn(move || {
        let inside = from % BLOCK;
        let bytes = (BLOCK - inside).min(end - from);
        let piece = (from / BLOCK, inside, bytes);
        from += bytes;
        (bytes > 0).then_some(piece)
    })
}
