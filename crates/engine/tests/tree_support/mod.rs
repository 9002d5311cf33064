//! A pool with an empty tree, and a seeded random generator.

use cenote_buffer::{BufferPool, Config, Kind};
use cenote_engine::tree::BTree;
use cenote_storage::DataDir;

pub struct Fixture {
    pool: BufferPool,
    tree: BTree,
    _dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::sized(256 << 20)
    }

    /// A pool of `bytes` in memory of the process over a directory of its own.
    pub fn sized(bytes: u64) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let data = DataDir::open(dir.path()).expect("an empty directory opens");
        let (pool, _) = BufferPool::open(Config::new(Kind::Dram, bytes), data).expect("a new pool opens");
        pool.storage().pages().create_space(1000).expect("a new space");
        let tree = BTree::create(&pool, 1000).expect("an empty tree");
        Fixture { pool, tree, _dir: dir }
    }

    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub fn tree(&self) -> BTree {
        self.tree
    }
}
