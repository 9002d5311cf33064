//! A store of keys and a file system on mirrored spaces whose memory node is lost with its memory: what was acknowledged
//! is there, for the process that had it open and for the next one.

#[path = "../../pool/tests/common/mod.rs"]
mod common;
#[path = "../../pool/tests/common/lost_nodes.rs"]
mod lost_nodes;

use cenote_fs::{Failure, FileSystem, Owner};
use cenote_kv::{Keep, Store};
use cenote_space::EXTENT;
use lost_nodes::{Pool, be_a_node, can_run, patiently};

const ME: Owner = Owner { user: 1, group: 1 };
const EXTENTS: u64 = 80;

#[test]
fn another_process() {
    be_a_node();
}

/// Two nodes, and a mirrored space that lies on the first.
fn pool(space: &str) -> Pool {
    let pool = Pool::new(2, EXTENTS + 16);
    let first = ["pod-0".to_owned()];
    let made = pool
        .client()
        .create_mirrored_space(space, EXTENTS * EXTENT, Some(&first));
    made.expect("a space");
    pool.until_whole();
    pool
}

fn content(n: u64) -> Vec<u8> {
    (0..n * n * 40).map(|at| (at * 7 + n) as u8).collect()
}

/// What a file of the directory holds.
fn read(files: &FileSystem, name: &[u8]) -> Result<Vec<u8>, Failure> {
    let found = files.find(files.root(), name)?;
    let mut bytes = vec![0; found.size as usize + 1];
    files.open(found.inode)?;
    let len = files.read(found.inode, 0, &mut bytes);
    files.close(found.inode)?;
    bytes.truncate(len?);
    Ok(bytes)
}

fn write(files: &FileSystem, n: u64) -> Result<(), Failure> {
    let file = files.create_open(files.root(), n.to_string().as_bytes(), 0o644, ME)?;
    let written = files.write(file.inode, 0, &content(n));
    files.close(file.inode)?;
    assert_eq!(written?, content(n).len());
    Ok(())
}

fn memory_of_files<T>(done: Result<T, Failure>) -> cenote_base::Result<T> {
    done.map_err(|failure| match failure {
        Failure::Memory(error) => error,
        other => panic!("{other}"),
    })
}

#[test]
fn files_outlive_their_node() {
    if !can_run() {
        return;
    }
    let mut pool = pool("files");
    let space = pool.client().open_whole_space("files").expect("open");
    assert_eq!(space.parts().count(), 0, "it is used by calls alone");
    let files = FileSystem::make(&space, ME).expect("a file system");
    (0..40).for_each(|n| write(&files, n).expect("written"));
    pool.lose(0);
    for n in 0..40 {
        let found = patiently("a file", || memory_of_files(read(&files, n.to_string().as_bytes())));
        assert!(found == content(n), "file {n}");
    }
    patiently("another", || memory_of_files(write(&files, 40)));
    let next = pool.client().open_whole_space("files").expect("open");
    let next = FileSystem::mount(&next).expect("mounted");
    (0..=40).for_each(|n| assert!(read(&next, n.to_string().as_bytes()).expect("read") == content(n)));
    let report = next.check(false).expect("looked at");
    assert_eq!(report.problems, Vec::<String>::new());
}

/// What a key has.
fn value(store: &mut Store, n: u64) -> Result<Vec<u8>, cenote_kv::Failure> {
    let (mut bytes, key) = (Vec::new(), n.to_string());
    if let Some(entry) = store.find(key.as_bytes(), 1)? {
        let len = store.len_of(&entry)?;
        store.append_value(&entry, 0, len, &mut bytes)?;
    }
    Ok(bytes)
}

fn memory_of_keys<T>(done: Result<T, cenote_kv::Failure>) -> cenote_base::Result<T> {
    done.map_err(|failure| match failure {
        cenote_kv::Failure::Memory(error) => error,
        other => panic!("{other}"),
    })
}

#[test]
fn keys_outlive_their_node() {
    if !can_run() {
        return;
    }
    let mut pool = pool("keys");
    let space = pool.client().open_whole_space("keys").expect("open");
    let mut store = Store::open(&space).expect("a store");
    let set = |store: &mut Store, n: u64| {
        let key = n.to_string();
        memory_of_keys(store.set(key.as_bytes(), &content(n), Keep::At(0), 1))?;
        memory_of_keys(store.set_field(b"hash", key.as_bytes(), &content(n % 8), 1)).map(drop)
    };
    (1..60).for_each(|n| set(&mut store, n).expect("set"));
    pool.lose(0);
    for n in 1..60 {
        let found = patiently("a value", || memory_of_keys(value(&mut store, n)));
        assert!(found == content(n), "key {n}");
    }
    patiently("another", || set(&mut store, 60));
    // As a killed server leaves it: the next one looks at each entry, and frees what nothing refers to.
    drop((store, space));
    let space = pool.client().open_whole_space("keys").expect("open");
    let mut store = Store::open(&space).expect("the store");
    assert_eq!(store.len(), 61);
    store.check().expect("whole");
    for n in 1..=60 {
        assert!(value(&mut store, n).expect("there") == content(n), "key {n}");
        let hash = store.find(b"hash", 1).expect("asked").expect("there");
        assert!(store.field(&hash, n.to_string().as_bytes()).expect("asked").is_some());
    }
}
