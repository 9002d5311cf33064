//! Point lookups in a tree, to count their instructions: what the seam costs when nothing observes.
//!
//! ```text
//! cargo build --release -p cenote-sim --example lookups
//! valgrind --tool=callgrind --toggle-collect='lookups::look_up' target/release/examples/lookups 20000
//! RUSTFLAGS='--cfg no_seam' CARGO_TARGET_DIR=target/no_seam cargo build --release -p cenote-sim --example lookups
//! valgrind --tool=callgrind --toggle-collect='lookups::look_up' target/no_seam/release/examples/lookups 20000
//! ```

use cenote_base::rt::{self, fs};
use cenote_buffer::{BufferPool, Config, Kind, Pool};
use cenote_engine::tree::BTree;
use cenote_storage::DataDir;
use std::sync::Arc;

const KEYS: u32 = 20_000;

fn key(i: u32) -> [u8; 4] {
    (i.wrapping_mul(2_654_435_761) % KEYS).to_be_bytes()
}

#[inline(never)]
fn look_up(tree: &BTree, pool: &Pool, count: u32) {
    let mut value = Vec::new();
    for i in 0..count {
        value.clear();
        assert!(
            tree.get(pool, &key(i), &mut value).expect("readable"),
            "the key is there"
        );
    }
}

fn fill(tree: &BTree, pool: &Pool) {
    for i in 0..KEYS {
        let mut m = pool.mtr();
        let key = i.to_be_bytes();
        let place = tree.seek_write(&mut m, &key, 124).expect("room");
        tree.insert_at(&mut m, &place, &key, &[1; 120]).expect("room");
        m.commit();
    }
}

fn main() {
    let count = std::env::args()
        .nth(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(1_000_000);
    fs::with(Arc::new(cenote_testkit::faulty::MemFs::new()), || {
        let data = DataDir::open("/db".as_ref()).expect("an empty directory");
        let config = Config {
            background: false,
            ..Config::new(Kind::Dram, 64 << 20)
        };
        let (pool, _) = BufferPool::open(config, data).expect("a pool");
        pool.storage().pages().create_space(1000).expect("a space");
        let tree = BTree::create(&pool, 1000).expect("a tree");
        fill(&tree, &pool);
        let start = rt::now();
        look_up(&tree, &pool, count);
        println!("{} ns a lookup", rt::now().since(start).raw() / u64::from(count));
    });
}
