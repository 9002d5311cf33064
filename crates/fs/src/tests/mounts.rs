//! What another mount does, and its death, between any two accesses of this one; and what a file that is gone is known
//! by.

use super::*;
use cenote_space::{GlobalAddress, Neighbour, Service};
use std::sync::atomic::AtomicBool;

/// The system's runtime, which before one access to memory, of the thread that is in it, does something else.
struct Between {
    accesses: AtomicU64,
    at: u64,
    /// Whether it was done. If it cannot be done now, it is tried at the next access.
    act: Box<dyn Fn() -> bool + Send + Sync>,
    is_done: AtomicBool,
}

impl Runtime for Between {
    fn access(&self, _: usize, bytes: u32, _: Access) {
        // Locks of the process are words of 4 bytes.
        let is_due = bytes >= 8 && self.accesses.fetch_add(1, Ordering::Relaxed) >= self.at;
        if is_due && !self.is_done.load(Ordering::Relaxed) {
            self.is_done.store(rt::bare(|| (self.act)()), Ordering::Relaxed);
        }
    }
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
}

/// Of the accesses, one of so many has its turn, beginning with any of the first ones.
const STEP: u64 = 4;
/// Accesses from the beginning that have a turn: what comes later looks at no other mount.
const MOST: u64 = 1000;

/// Does `work` with `act` before one of its accesses to memory, then all of it anew with `act` before a later one, and
/// so on.
fn at_each_access<S: Send + Sync + 'static>(
    scene: impl Fn() -> S,
    act: fn(&S) -> bool,
    work: impl Fn(&S, &dyn Fn(&mut dyn FnMut())),
) {
    let (mut times, first) = (0, Random(seed()).below(STEP));
    for at in (first..MOST).step_by(STEP as usize) {
        let scene = Arc::new(scene());
        // It stays for ever, the scene does not.
        let theirs = Arc::downgrade(&scene);
        let between: &'static Between = Box::leak(Box::new(Between {
            accesses: AtomicU64::new(0),
            at,
            act: Box::new(move || theirs.upgrade().is_some_and(|scene| act(&scene))),
            is_done: AtomicBool::new(false),
        }));
        work(&scene, &|inside| rt::enter(between, inside));
        if !between.is_done.load(Ordering::Relaxed) {
            break;
        }
        times += 1;
    }
    assert!(times > 5, "it was done {times} times");
}

/// A space whose keeper is asked over a socket, as it is by all processes but one: what it does is not between two
/// accesses of the mount that asks.
struct Kept {
    joined: Space,
    space: Space,
    _service: Service,
    _home: tempfile::TempDir,
}

impl Kept {
    fn new() -> Self {
        let home = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (part, socket) = (home.path().join("part"), home.path().join("keeper"));
        let options = SpaceOptions {
            bytes: 24 * EXTENT,
            ..SpaceOptions::default()
        };
        let space = Space::create(&part, &options).expect("made");
        let service = Service::start(&socket, space.keeper(1).expect("kept here")).expect("a socket");
        let neighbour = Arc::new(Neighbour::connect(&socket).expect("a keeper"));
        Self {
            joined: Space::join(&part, RegionOptions::default(), neighbour).expect("joined"),
            space,
            _service: service,
            _home: home,
        }
    }
}

/// Two mounts, of which the other has a file open that has a name, and one that has none any more.
struct Two {
    one: FileSystem,
    other: FileSystem,
    named: Inode,
    kept: Kept,
}

impl Two {
    fn new() -> Self {
        let kept = Kept::new();
        let one = FileSystem::make(&kept.joined, ME).expect("made");
        let other = FileSystem::mount(&kept.joined).expect("mounted");
        let named = other
            .create_open(other.root(), b"named", 0o644, ME)
            .expect("made")
            .inode;
        other.create_open(other.root(), b"removed", 0o644, ME).expect("made");
        one.unlink(one.root(), b"removed").expect("there");
        Self {
            one,
            other,
            named,
            kept,
        }
    }

    /// The other's process is gone: its keeper ends its sessions.
    fn other_dies(&self) -> bool {
        for (part, session) in self.other.session.ids() {
            let keeper = self.kept.space.keeper(part).expect("kept here");
            keeper.end(session).expect("ended");
        }
        true
    }

    /// Once the other is dead, of which nothing is left.
    #[track_caller]
    fn is_in_order(&self) {
        self.other_dies();
        let report = FileSystem::mount(&self.kept.joined).expect("mounted").check(false);
        let report = report.expect("looked at");
        assert_eq!(
            (report.problems.len(), report.unreferenced, report.orphans),
            (0, 0, 0),
            "{report:?}"
        );
    }
}

/// A mount that looks what others have open finds them alive, or dead, or dead in the middle of it: that is no failure.
#[test]
fn a_mount_may_die_while_another_looks_at_what_it_has_open() {
    at_each_access(Two::new, Two::other_dies, |two, inside| {
        inside(&mut || two.one.unlink(two.one.root(), b"named").expect("removed"));
        two.is_in_order();
    });
    at_each_access(Two::new, Two::other_dies, |two, inside| {
        inside(&mut || drop(FileSystem::mount(&two.kept.joined).expect("mounted")));
        two.is_in_order();
    });
    at_each_access(Two::new, Two::other_dies, |two, inside| {
        let mut report = Report::default();
        inside(&mut || report = two.one.check(false).expect("looked at"));
        assert_eq!(report.problems, Vec::<String>::new());
        two.is_in_order();
    });
}

/// One mount, and another that comes.
struct Newcomer {
    one: FileSystem,
    kept: Kept,
}

impl Newcomer {
    fn new() -> Self {
        let kept = Kept::new();
        let one = FileSystem::make(&kept.joined, ME).expect("made");
        one.create(one.root(), b"file", 0o644, ME).expect("made");
        Self { one, kept }
    }

    /// Unless the other has the tree's lock at this moment: the check would wait for it.
    fn frees(&self) -> bool {
        let lock = at(self.one.superblock, SUPER_LOCK);
        let guard = self.one.session.try_lock(lock, Mode::Write).expect("a lock");
        let is_free = guard.is_some();
        drop(guard);
        if is_free {
            let report = self.one.check(true).expect("looked at");
            assert_eq!(report.problems, Vec::<String>::new());
        }
        is_free
    }
}

/// A check that frees what nothing refers to, while another process begins to mount: what that has made already is not
/// taken from it.
#[test]
fn a_check_that_frees_leaves_a_mount_that_begins_what_it_has() {
    at_each_access(Newcomer::new, Newcomer::frees, |scene, inside| {
        let mut other = None;
        inside(&mut || other = Some(FileSystem::mount(&scene.kept.joined).expect("mounted")));
        let other = other.expect("mounted");
        let file = other.find(other.root(), b"file").expect("there").inode;
        other.open(file).expect("there");
        other.write(file, 0, b"text").expect("room");
        scene.one.unlink(scene.one.root(), b"file").expect("there");
        assert_eq!(content(&other, file, 10), b"text", "open, so it stays");
    });
}

/// A kernel knows a file by its address and number for as long as it likes. What programs write comes to lie there, and
/// says that it is that file, with rights and blocks of their choice.
#[test]
fn no_content_passes_for_a_file_that_is_gone() {
    let files = FileSystem::make(&space(40), ME).expect("made");
    let gone = files.create(files.root(), b"gone", 0o644, ME).expect("made").inode;
    let secret = files
        .create_open(files.root(), b"secret", 0o600, Owner::default())
        .expect("made");
    files.write(secret.inode, 0, &[7; 300]).expect("room");
    files.unlink(files.root(), b"gone").expect("there");
    let mut forged = [0; INODE as usize];
    let lock = 0x10cc_u64 << 48;
    let fields = (0..16).map(|n| (8 * n, lock)).chain([
        (NUMBER, gone.number),
        (MODE, u64::from(kind::FILE | 0o4777)),
        (LINKS, 1),
        (SIZE, 300),
        (CONTENT, secret.inode.address.raw()),
    ]);
    for (field, value) in fields {
        forged[field as usize..][..8].copy_from_slice(&value.to_ne_bytes());
    }
    for n in 0..2000_u64 {
        let name = format!("file {n}");
        let made = files
            .create_open(files.root(), name.as_bytes(), 0o644, ME)
            .expect("made");
        files.write(made.inode, 0, &forged).expect("room");
        files.close(made.inode).expect("open");
        let found = files.attributes(gone);
        assert!(matches!(&found, Err(Failure::Gone)), "after {n} files: {found:?}");
    }
}

/// A writer that dies has changed bytes, and not the time by which others see that.
#[test]
fn what_a_dead_writer_has_changed_is_seen() {
    let two = Two::new();
    two.other.write(two.named, 0, &[1; 2000]).expect("room");
    let before = two.one.attributes(two.named).expect("there");
    let block = GlobalAddress::from_raw(two.one.space().load(at(two.named.address, CONTENT)).expect("there"));
    let guard = two.other.session.lock(two.named.address, Mode::Write).expect("free");
    two.one.space().write(block, &[2; 1000]).expect("there");
    core::mem::forget(guard);
    two.other_dies();
    two.one.open(two.named).expect("there");
    assert_eq!(content(&two.one, two.named, 1), [2]);
    let after = two.one.attributes(two.named).expect("there");
    assert_eq!((before.size, before.taken), (after.size, after.taken));
    assert!(after.changed_at > before.changed_at, "{before:?}, {after:?}");
}

/// A symbolic link that there is no room for leaves nothing, also where its content had room.
#[test]
fn what_could_not_be_made_takes_no_room() {
    let files = FileSystem::make(&space(24), ME).expect("made");
    files
        .make_symlink(files.root(), b"short", &[b'x'; 300], ME)
        .expect("room");
    let filler = files.create_open(files.root(), b"filler", 0o644, ME).expect("made");
    let mut at = 0;
    while let Ok(written) = files.write(filler.inode, at, &[1; BLOCK as usize]) {
        at += written as u64;
    }
    let before = files.check(false).expect("looked at");
    // Entries of long names are of a class of their own, which has no memory yet.
    let made = files.make_symlink(files.root(), &[b'n'; 200], &[b'x'; 300], ME);
    assert!(matches!(made, Err(Failure::Memory(Error::Full(_)))), "{made:?}");
    let after = files.check(false).expect("looked at");
    assert_eq!((after.unreferenced, after.problems.len()), (0, 0), "{after:?}");
    assert_eq!(before, after);
}

/// A hole is punched into terabytes that were never written: it takes the time of what was.
#[test]
fn a_hole_in_what_was_never_written_is_punched_at_once() {
    let files = FileSystem::make(&space(24), ME).expect("made");
    let file = files
        .create_open(files.root(), b"sparse", 0o644, ME)
        .expect("made")
        .inode;
    const END: u64 = FILE_MAX / 64;
    for offset in [0, 3 * BLOCK, END - 10] {
        files.write(file, offset, &[1; 10]).expect("room");
    }
    let counting: &'static Between = Box::leak(Box::new(Between {
        accesses: AtomicU64::new(0),
        at: u64::MAX,
        act: Box::new(|| true),
        is_done: AtomicBool::new(false),
    }));
    rt::enter(counting, || files.punch(file, 5, END - 10).expect("a file"));
    let accesses = counting.accesses.load(Ordering::Relaxed);
    assert!((1..200_000).contains(&accesses), "{accesses} accesses to memory");
    let read = |offset| {
        let mut bytes = [9; 10];
        files.read(file, offset, &mut bytes).expect("a file");
        bytes
    };
    assert_eq!(read(0), [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(read(3 * BLOCK), [0; 10]);
    assert_eq!(read(END - 10), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    files.close(file).expect("open");
    assert_eq!(files.check(false).expect("looked at").problems, Vec::<String>::new());
}

/// A program stays in a directory that is removed, and so is the one above: what it sees is an empty directory.
#[test]
fn a_removed_directory_is_empty_whatever_becomes_of_the_one_above() {
    let files = FileSystem::make(&space(24), ME).expect("made");
    let make = |above, name: &[u8]| files.make_directory(above, name, 0o755, ME).expect("made").inode;
    let above = make(files.root(), b"above");
    let below = make(above, b"below");
    files.open(below).expect("there");
    files.remove_directory(above, b"below").expect("empty");
    files.remove_directory(files.root(), b"above").expect("empty");
    assert_eq!(files.above(below).expect("open"), below);
    assert_eq!(files.list(below, 0, 10).expect("open"), []);
    files.close(below).expect("open");
}
