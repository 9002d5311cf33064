//! One process: what objects are, what is refused, and the whole against a model.

use super::extent_table::ExtentTable;
use super::slot::{Slot, Use};
use super::*;
use crate::extent::EXTENT;
use address::GENERATION_MAX;
use cenote_base::random::Random;
use cenote_base::rt::Nanos;
use cenote_base::rt::atomic::Ordering;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A part of so many extents in memory.
fn part(number: u8, extents: u64) -> Part {
    let options = PartOptions {
        space: 77,
        part: number,
        tenant: 0,
        bytes: (extents + 1) * EXTENT,
        movable: false,
        region: RegionOptions::default(),
    };
    Part::dram(&options).expect("memory")
}

fn space(extents: u64) -> Space {
    Space::kept(part(1, extents)).expect("a space")
}

fn audited(space: &Space) {
    assert_eq!(space.audit().expect("audited"), Vec::<String>::new());
    for part in space.stats().parts {
        assert_eq!(
            part.free + part.slabs + part.in_runs + part.retired + part.broken,
            part.extents
        );
    }
}

/// Bytes that no other object has.
fn pattern(address: GlobalAddress, len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8 + 1).map(|n| (address.raw() ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

fn read(space: &Space, address: GlobalAddress, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    space.read(address, &mut bytes)?;
    Ok(bytes)
}

#[track_caller]
fn invalid<T: core::fmt::Debug>(result: Result<T>, wanted: &str) {
    match result {
        Err(Error::Invalid(text)) if text.contains(wanted) => {}
        other => panic!("{wanted}: {other:?}"),
    }
}

#[test]
fn objects_of_all_sizes_hold_what_was_written() {
    let space = space(40);
    let session = space.session();
    let sizes =
        Class::all()
            .map(Class::size)
            .chain([1, 63, 65, 1_000_000, EXTENT - 1, EXTENT, EXTENT + 1, 5 * EXTENT / 2]);
    for size in sizes {
        let address = session.alloc(size).expect("room");
        let len = size as usize;
        assert_eq!(read(&space, address, len).expect("there"), vec![0; len]);
        space.write(address, &pattern(address, len)).expect("there");
        let have = space.size_of(address).expect("there");
        assert!(
            have >= size && (have < size + 64 || have - size <= size / 2),
            "{size}: {have}"
        );
        let last = address.checked_add(size - 1).expect("inside");
        assert_eq!(read(&space, last, 1).expect("there")[0], pattern(address, len)[len - 1]);
        assert_eq!(read(&space, address, len).expect("there"), pattern(address, len));
        if size > 64 {
            invalid(session.free(last), "inside of its object");
        }
        session.free(address).expect("freed");
        invalid(read(&space, address, 1), "no object");
        invalid(session.free(address), "no object");
    }
    audited(&space);
    assert_eq!(space.stats().objects(), 0);
}

#[test]
fn what_lies_outside_of_an_object_is_refused() {
    let space = space(8);
    let session = space.session();
    let seventh = session.alloc(EXTENT / 7).expect("room");
    let small = session.alloc(100).expect("room");
    let large = session.alloc(2 * EXTENT + 100).expect("room");
    for (address, size) in [(small, 128), (large, 2 * EXTENT + 100)] {
        assert_eq!(space.size_of(address).expect("there"), size);
        let near = address.checked_add(size - 4).expect("inside");
        assert!(read(&space, near, 4).is_ok() && read(&space, near, 0).is_ok());
        for len in [5, 4096] {
            let error = read(&space, near, len).expect_err("it ends before");
            assert!(
                matches!(&error, Error::OutOfBounds(text) if text.contains("begins")),
                "{error}"
            );
            assert!(matches!(space.write(near, &vec![1; len]), Err(Error::OutOfBounds(_))));
        }
        assert!(matches!(
            read(&space, address, size as usize + 1),
            Err(Error::OutOfBounds(_))
        ));
        assert!(
            read(&space, address, size as usize)
                .expect("there")
                .iter()
                .all(|byte| *byte == 0)
        );
    }
    // After the last object of a slab there is a rest, after a run's bytes too.
    let rest = GlobalAddress::new(1, seventh.slot(), EXTENT as u32 - 1, seventh.generation()).expect("an address");
    invalid(read(&space, rest, 1), "no object");
    let after = large.checked_add(3 * EXTENT - 1).expect("in the part");
    assert!(matches!(read(&space, after, 1), Err(Error::OutOfBounds(_))));
    invalid(
        space.size_of(large.checked_add(3 * EXTENT).expect("in the part")),
        "no object",
    );
}

#[test]
fn words_change_at_once_where_they_are_aligned() {
    let space = space(4);
    let session = space.session();
    let address = session.alloc(64).expect("room");
    space.store(address, 5).expect("stored");
    assert_eq!(space.fetch_add(address, u64::MAX).expect("added"), 5);
    assert_eq!(space.compare_and_swap(address, 5, 9).expect("compared"), 4);
    assert_eq!(space.compare_and_swap(address, 4, 9).expect("swapped"), 4);
    assert_eq!(space.load(address).expect("loaded"), 9);
    assert_eq!(read(&space, address, 8).expect("there"), 9u64.to_le_bytes());
    let odd = address.checked_add(4).expect("inside");
    invalid(space.load(odd), "aligned");
    invalid(space.store(odd, 1), "aligned");
    invalid(space.compare_and_swap(odd, 1, 1), "aligned");
    invalid(space.fetch_add(odd, 1), "aligned");
    let end = address.checked_add(64).expect("in the part");
    invalid(space.load(end), "never allocated");
    let run = session.alloc(EXTENT + 12).expect("room");
    let last = run.checked_add(EXTENT + 8).expect("inside");
    assert!(matches!(space.load(last), Err(Error::OutOfBounds(_))));
    space
        .store(run.checked_add(EXTENT).expect("inside"), 3)
        .expect("in the second extent");
    assert_eq!(space.load(run.checked_add(EXTENT).expect("inside")).expect("there"), 3);
}

#[test]
fn addresses_of_other_spaces_and_times_are_refused() {
    let space = space(4);
    let session = space.session();
    let address = session.alloc_in(64, Lifetime::Session).expect("room");
    let with = |part, slot, generation| GlobalAddress::new(part, slot, 0, generation).expect("an address");
    invalid(read(&space, GlobalAddress::NULL, 1), "null");
    invalid(read(&space, with(9, address.slot(), 1), 1), "part 9");
    invalid(read(&space, with(0, address.slot(), 1), 1), "part 0");
    invalid(read(&space, with(1, 4, 1), 1), "no slot 4");
    invalid(read(&space, with(1, address.slot(), 2), 1), "generation 1 only");
    invalid(read(&space, with(1, address.slot() + 1, 0), 1), "no object");
    session.close().expect("closed");
    invalid(read(&space, address, 1), "no object");
    let again = space.session().alloc_in(64, Lifetime::Session).expect("room");
    assert_eq!((again.slot(), again.generation()), (address.slot(), 2));
    let session = space.session();
    let again = session.alloc(64).expect("room");
    assert_eq!((again.slot(), again.generation()), (address.slot(), 3));
    invalid(read(&space, address, 1), "generation 3 by now");
    invalid(space.free(address), "generation 3 by now");
    invalid(space.fetch_add(address, 1), "generation 3 by now");
    audited(&space);
}

#[test]
fn a_full_part_says_so_and_has_room_again() {
    let space = space(4);
    let (one, other) = (space.session(), space.session());
    let fill = |session: &Session, len: u64| {
        let mut addresses = Vec::new();
        loop {
            match session.alloc(len) {
                Ok(address) => addresses.push(address),
                Err(error) => {
                    assert!(
                        matches!(&error, Error::Full(text) if text.contains("0 of its 4 extents")),
                        "{error}"
                    );
                    return addresses;
                }
            }
        }
    };
    let mut addresses = fill(&one, 4096);
    assert_eq!(addresses.len(), 4 * 512);
    assert!(matches!(other.alloc(1), Err(Error::Full(_))));
    addresses
        .chunks(512)
        .for_each(|extent| other.free(extent[17]).expect("freed"));
    let again = fill(&one, 4096);
    assert_eq!(again.iter().map(|a| a.slot()).collect::<Vec<_>>(), [3, 0, 1, 2]);
    // Whatever is freed in which order: other classes get it.
    addresses.retain(|address| !again.contains(address));
    addresses.extend(again);
    addresses
        .iter()
        .rev()
        .for_each(|address| other.free(*address).expect("freed"));
    let large = one.alloc(3 * EXTENT).expect("room");
    audited(&space);
    one.free(large).expect("freed");
    assert_eq!(fill(&one, EXTENT).len(), 4);
    invalid(one.alloc(0), "one byte");
    assert!(matches!(one.alloc(u64::MAX), Err(Error::Full(_))));
}

#[test]
fn a_run_is_zero_whatever_was_there() {
    let space = space(6);
    let session = space.session();
    let first = session.alloc(3 * EXTENT).expect("room");
    space.write(first, &vec![7; 3 * EXTENT as usize]).expect("there");
    session.free(first).expect("freed");
    let second = session.alloc(2 * EXTENT + 1).expect("room");
    assert_eq!(second.slot(), first.slot());
    assert!(
        read(&space, second, 2 * EXTENT as usize + 1)
            .expect("there")
            .iter()
            .all(|byte| *byte == 0)
    );
    let small = session.alloc(64).expect("room");
    space.write(small, &[1; 64]).expect("there");
    session.free(small).expect("freed");
    // The slab goes back, and is part of a run.
    let rest = session.alloc(3 * EXTENT).expect("room");
    assert!(
        read(&space, rest, 3 * EXTENT as usize)
            .expect("there")
            .iter()
            .all(|byte| *byte == 0)
    );
    audited(&space);
    // In the middle of a run nothing begins, and its extents are found from each of its bytes.
    let inside = rest.checked_add(EXTENT).expect("inside");
    invalid(space.free(inside), "inside");
    assert_eq!(space.size_of(inside).expect("there"), 3 * EXTENT);
    let mut across = [1; 100];
    space
        .read(rest.checked_add(EXTENT - 50).expect("inside"), &mut across)
        .expect("there");
    assert_eq!(across, [0; 100]);
}

#[test]
fn what_a_session_leaves_stays_or_is_freed() {
    let space = space(8);
    let session = space.session();
    let kept = session.alloc(64).expect("room");
    let run = session.alloc(2 * EXTENT).expect("room");
    let gone = session.alloc_in(64, Lifetime::Session).expect("room");
    let gone_run = session.alloc_in(2 * EXTENT, Lifetime::Session).expect("room");
    assert_ne!(kept.slot(), gone.slot());
    let id = session.ids()[0].1;
    let keeper = space.keeper(1).expect("kept here");
    // As if its process had died: the keeper ends it, twice since an answer was lost.
    keeper.end(id).expect("ended");
    keeper.end(id).expect("ended");
    audited(&space);
    invalid(read(&space, gone, 1), "no object");
    invalid(
        read(&space, gone_run.checked_add(EXTENT).expect("inside"), 1),
        "no object",
    );
    assert!(read(&space, kept, 64).is_ok() && read(&space, run, 1).is_ok());
    // A session that lives on in spite of that is told so, and breaks nothing.
    assert!(matches!(session.alloc(1 << 20), Err(Error::Revoked(_))));
    let other = space.session();
    let adopted = other.alloc(64).expect("room");
    assert_eq!((adopted.slot(), adopted.generation()), (kept.slot(), kept.generation()));
    assert_ne!(adopted, kept);
    let taken = other.alloc(200).expect("room");
    assert_eq!((taken.slot(), taken.generation()), (gone.slot(), 2));
    assert!(matches!(
        session.alloc_in(64, Lifetime::Session),
        Err(Error::Revoked(_))
    ));
    audited(&space);
    other.free(kept).expect("freed");
    other.free(run).expect("freed");
    drop(session);
    audited(&space);
}

#[test]
fn generations_that_are_used_up_end_a_slot() {
    let part = part(1, 3);
    let last_but_one = |used| {
        Slot {
            generation: GENERATION_MAX - 1,
            used,
        }
        .encode()
    };
    for slot in 0..3 {
        part.state(slot).store(last_but_one(Use::Free), Ordering::Release);
    }
    let space = Space::kept(part).expect("a space");
    let session = space.session();
    let run = session.alloc(2 * EXTENT).expect("room");
    assert_eq!(run.generation(), GENERATION_MAX);
    let small = session.alloc_in(64, Lifetime::Session).expect("room");
    session.free(run).expect("freed");
    session.close().expect("closed");
    let stats = space.stats().parts[0].clone();
    assert_eq!((stats.retired, stats.free), (3, 0));
    invalid(read(&space, run, 1), "no object");
    invalid(read(&space, small, 1), "no object");
    assert!(matches!(space.session().alloc(1), Err(Error::Full(_))));
    audited(&space);
}

/// Slots of a run whose memory could not be reserved were put back with the greatest of their generations, and rested as
/// long as the one that was worn most.
#[test]
fn slots_that_are_put_back_have_the_wear_that_they_had() {
    let part = part(1, 8);
    let worn = |slot: u32| if slot == 0 { 1 << 16 } else { slot };
    for slot in 0..part.slots() {
        let (generation, used) = (worn(slot), Use::Free);
        let state = Slot { generation, used }.encode();
        part.state(slot).store(state, Ordering::Release);
    }
    let mut extent_table = ExtentTable::empty(&part);
    (0..part.slots()).for_each(|slot| extent_table.enter(&part, slot));
    let all = part.slots();
    assert_eq!(extent_table.pick_run(&part, 3), Some((0, 1 << 16)));
    extent_table.put_back(&part, 0..3);
    let picked: Vec<_> = core::iter::from_fn(|| extent_table.pick_any(&part)).collect();
    let expected: Vec<_> = (1..all).chain([0]).map(|slot| (slot, worn(slot))).collect();
    assert_eq!(picked, expected);
}

#[test]
fn a_second_part_is_used_when_the_first_is_full() {
    let space = space(2);
    let second = Arc::new(part(2, 3));
    let keeper = Arc::new(LocalKeeper::new(Arc::clone(&second)).expect("a keeper"));
    let session = space.session();
    let full = (0..2)
        .map(|_| session.alloc(EXTENT).expect("room").part())
        .collect::<Vec<_>>();
    assert!(full == [1, 1] && matches!(session.alloc(1), Err(Error::Full(_))));
    space.attach(Arc::clone(&second), keeper.clone()).expect("attached");
    invalid(space.attach(Arc::clone(&second), keeper.clone()), "already");
    let there = (0..3).map(|_| session.alloc(EXTENT).expect("room")).collect::<Vec<_>>();
    assert!(there.iter().all(|address| address.part() == 2));
    assert!(matches!(session.alloc(1), Err(Error::Full(_))));
    session.free(there[1]).expect("freed");
    assert_eq!(session.alloc(1).expect("room").part(), 2);
    assert!(matches!(Space::new(78).attach(second, keeper), Err(Error::Mismatch(_))));
    audited(&space);
    session.close().expect("closed");
    audited(&space);
}

/// A keeper that is killed leaves what it had written: the next one takes it up.
#[test]
fn half_made_runs_and_slabs_are_freed_by_the_next_keeper() {
    let part = part(1, 8);
    let put = |slot: u32, generation, used| {
        part.state(slot)
            .store(Slot { generation, used }.encode(), Ordering::Release)
    };
    // A run in the making: tails, no head. A slab in the making: words, no state.
    put(1, 4, Use::Tail(1));
    put(2, 4, Use::Tail(2));
    part.live(3, 0).store(u64::MAX, Ordering::Release);
    part.owner(3).store(12, Ordering::Release);
    // A run that a session had, whose tail is in order; and one more that is not its.
    part.run_bytes(4).store(EXTENT + 1, Ordering::Release);
    part.owner(4).store(7, Ordering::Release);
    put(5, 9, Use::Tail(1));
    put(6, 9, Use::Tail(2));
    put(4, 9, Use::Head(Lifetime::Space));
    let part = Arc::new(part);
    let keeper = LocalKeeper::new(Arc::clone(&part)).expect("a keeper");
    assert_eq!(keeper.audit().expect("audited"), Vec::<String>::new());
    assert_eq!(keeper.sessions(), [SessionId(7)]);
    assert_eq!(keeper.begin().expect("begun"), SessionId(8));
    let stats = stats::of(&part);
    assert_eq!((stats.free, stats.in_runs, stats.run_bytes), (6, 2, EXTENT + 1));
    keeper.end_all().expect("ended");
    assert_eq!(keeper.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn many_reads_and_writes_end_at_the_first_that_fails() {
    let space = space(4);
    let session = space.session();
    let addresses: Vec<_> = (0..3).map(|_| session.alloc(64).expect("room")).collect();
    let writes: Vec<_> = addresses
        .iter()
        .map(|address| Write {
            address: *address,
            from: b"abc",
        })
        .collect();
    space.write_many(&writes).expect("written");
    session.free(addresses[1]).expect("freed");
    let mut buffers = [[0; 3]; 3];
    let pairs = addresses.iter().zip(&mut buffers);
    let mut reads: Vec<_> = pairs
        .map(|(address, into)| Read {
            address: *address,
            into,
        })
        .collect();
    invalid(space.read_many(&mut reads), "no object");
    assert_eq!(buffers, [*b"abc", [0; 3], [0; 3]]);
}

/// Threads that allocate, free each other's objects, and read: no object is two.
#[test]
fn threads_share_a_space() {
    const OBJECTS: usize = 256;
    let space = space(40);
    let board = space.session().alloc(8 * OBJECTS as u64).expect("room");
    let work = |seed: u64| {
        let space = space.clone();
        move || {
            let session = space.session();
            let mut random = Random(seed);
            for _ in 0..20_000 {
                let size = random.pick(&[8, 64, 200, 5_000]);
                let place = board.checked_add(8 * random.below(OBJECTS as u64)).expect("inside");
                let address = session.alloc(size).expect("room");
                space.store(address, address.raw()).expect("there");
                let mut other = space.load(place).expect("there");
                loop {
                    match space.compare_and_swap(place, other, address.raw()).expect("there") {
                        found if found == other => break,
                        found => other = found,
                    }
                }
                // The thread that takes it off the board frees it.
                let other = GlobalAddress::from_raw(other);
                if !other.is_null() {
                    assert_eq!(space.load(other).expect("there"), other.raw());
                    space.store(other, 0).expect("there");
                    space.free(other).expect("freed once");
                }
            }
        }
    };
    let threads: Vec<_> = (1..=4).map(|seed| rt::spawn("allocator", work(2 * seed + 1))).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("it ends well"));
    audited(&space);
    let words = (0..OBJECTS as u64).map(|n| space.load(board.checked_add(8 * n).expect("inside")).expect("there"));
    let there = words
        .filter(|word| *word != 0)
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(space.stats().objects(), there.len() as u64 + 1);
    there
        .iter()
        .for_each(|raw| space.free(GlobalAddress::from_raw(*raw)).expect("there"));
    space.free(board).expect("freed");
    assert_eq!(space.stats().objects(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Alloc {
        session: usize,
        size: u64,
        lifetime: Lifetime,
    },
    Free {
        object: usize,
    },
    FreeAgain {
        object: usize,
    },
    Write {
        object: usize,
        at: u64,
        len: u64,
    },
    Close {
        session: usize,
    },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![6 => 1..5_000u64, 2 => 5_000..EXTENT / 2 + 1, 1 => EXTENT / 2..3 * EXTENT];
    let lifetime = prop_oneof![3 => Just(Lifetime::Space), 1 => Just(Lifetime::Session)];
    prop_oneof![
        12 => (0..3usize, size, lifetime).prop_map(|(session, size, lifetime)| Step::Alloc { session, size, lifetime }),
        8 => any::<usize>().prop_map(|object| Step::Free { object }),
        2 => any::<usize>().prop_map(|object| Step::FreeAgain { object }),
        8 => (any::<usize>(), any::<u64>(), any::<u64>()).prop_map(|(object, at, len)| Step::Write { object, at, len }),
        1 => (0..3usize).prop_map(|session| Step::Close { session }),
        1 => Just(Step::Reopen),
    ]
}

/// An object as it should be.
struct Known {
    bytes: Vec<u8>,
    session: usize,
    lifetime: Lifetime,
}

/// The space, and what it should hold.
struct Model {
    directory: tempfile::TempDir,
    space: Space,
    sessions: Vec<Session>,
    objects: BTreeMap<GlobalAddress, Known>,
    former: Vec<GlobalAddress>,
}

impl Model {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let options = SpaceOptions {
            bytes: 17 * EXTENT,
            ..SpaceOptions::default()
        };
        let space = Space::create(&directory.path().join("part"), &options).expect("made");
        let sessions = (0..3).map(|_| space.session()).collect();
        Self {
            directory,
            space,
            sessions,
            objects: BTreeMap::new(),
            former: Vec::new(),
        }
    }

    fn pick(&self, n: usize) -> Option<GlobalAddress> {
        let n = n.checked_rem(self.objects.len())?;
        self.objects.keys().nth(n).copied()
    }

    fn alloc(&mut self, session: usize, size: u64, lifetime: Lifetime) {
        let address = match self.sessions[session].alloc_in(size, lifetime) {
            Ok(address) => address,
            Err(Error::Full(_)) => return,
            Err(error) => panic!("{error}"),
        };
        let bytes = pattern(address, size as usize);
        assert!(
            read(&self.space, address, bytes.len())
                .expect("there")
                .iter()
                .all(|byte| *byte == 0)
        );
        self.space.write(address, &bytes).expect("there");
        self.former.retain(|former| *former != address);
        assert!(
            self.objects
                .insert(
                    address,
                    Known {
                        bytes,
                        session,
                        lifetime
                    }
                )
                .is_none(),
            "{address} twice"
        );
    }

    fn free(&mut self, n: usize) {
        if let Some(address) = self.pick(n) {
            self.space.free(address).expect("freed");
            self.objects.remove(&address);
            self.former.push(address);
        }
    }

    fn write(&mut self, n: usize, at: u64, len: u64) {
        let Some(address) = self.pick(n) else { return };
        let known = self.objects.get_mut(&address).expect("known");
        let at = (at % known.bytes.len() as u64) as usize;
        let len = (len % (known.bytes.len() - at) as u64) as usize + 1;
        let bytes = pattern(GlobalAddress::from_raw(!address.raw()), len);
        known.bytes[at..at + len].copy_from_slice(&bytes);
        self.space
            .write(address.checked_add(at as u64).expect("inside"), &bytes)
            .expect("there");
    }

    fn close(&mut self, session: usize) {
        core::mem::replace(&mut self.sessions[session], self.space.session())
            .close()
            .expect("closed");
        self.lose(|known| known.session == session);
    }

    fn reopen(&mut self) {
        self.sessions.clear();
        self.space = Space::new(0);
        let path = self.directory.path().join("part");
        self.space = Space::open(&path, RegionOptions::default()).expect("opened");
        self.sessions = (0..3).map(|_| self.space.session()).collect();
        self.lose(|_| true);
    }

    /// Of those whose session is gone, the ones of a session's lifetime are gone too.
    fn lose(&mut self, is_its: impl Fn(&Known) -> bool) {
        let former = &mut self.former;
        self.objects.retain(|address, known| {
            let stays = known.lifetime == Lifetime::Space || !is_its(known);
            if !stays {
                former.push(*address);
            }
            stays
        });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Alloc {
                session,
                size,
                lifetime,
            } => self.alloc(session, size, lifetime),
            Step::Free { object } => self.free(object),
            Step::FreeAgain { object } => {
                let former = object.checked_rem(self.former.len()).map(|n| self.former[n]);
                former
                    .into_iter()
                    .for_each(|address| invalid(self.space.free(address), "no object"));
            }
            Step::Write { object, at, len } => self.write(object, at, len),
            Step::Close { session } => self.close(session),
            Step::Reopen => self.reopen(),
        }
    }

    fn check(&self) {
        audited(&self.space);
        assert_eq!(self.space.stats().objects(), self.objects.len() as u64);
        for (address, known) in &self.objects {
            assert!(
                read(&self.space, *address, known.bytes.len()).expect("there") == known.bytes,
                "{address}"
            );
        }
        for address in &self.former {
            assert!(read(&self.space, *address, 1).is_err(), "{address}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn it_is_as_the_model_says(steps in prop::collection::vec(step(), 1..150)) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
        }
        model.check();
    }

    /// Any number is an address: of nothing.
    #[test]
    fn no_address_breaks_an_access(raw in any::<u64>(), len in 0..100usize) {
        let space = space(2);
        let address = space.session().alloc(64).expect("room");
        for raw_address in [raw, raw & 0xff_ffff | address.raw(), address.raw() ^ 1 << (raw % 64)] {
            let raw_address = GlobalAddress::from_raw(raw_address);
            let is_inside = raw_address.offset_from(address).is_some_and(|inside| inside + len as u64 <= 64);
            prop_assert_eq!(read(&space, raw_address, len).is_ok(), is_inside && space.size_of(raw_address).is_ok());
            prop_assert_eq!(raw_address.to_string().parse::<GlobalAddress>().expect("it reads"), raw_address);
        }
    }
}

/// Whatever stands in a part's own data: each operation has an answer, and none reaches beyond the part.
#[test]
fn garbage_in_a_parts_own_data_is_an_error() {
    let mut random = Random(0x5eed);
    let mut next = move || random.word();
    for round in 0..300 {
        let part = Arc::new(part(1, 8));
        let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part)).expect("a keeper"));
        let space = Space::new(77);
        space.attach(Arc::clone(&part), keeper).expect("attached");
        let session = space.session();
        let mut addresses: Vec<_> = [64, 100, 5_000, 1 << 20, 3 * EXTENT]
            .map(|size| session.alloc(size).expect("room"))
            .to_vec();
        let own = part.region().span(4096, part.at(0) - 4096);
        let mut scribble = |times: u64| {
            for _ in 0..times {
                let slot = next() % 8;
                // The keeper's page, a descriptor's state, bytes or owner, a hint, a live word.
                let at = match next() % 8 {
                    0 => next() % 2 * 8,
                    1..4 => 4096 + 64 * slot + next() % 3 * 8,
                    4 => 4096 + 8 * 64 + slot * 5824,
                    _ => 4096 + 8 * 64 + slot * 5824 + 64 + next() % 64 * 8,
                } as usize;
                let value = match next() % 4 {
                    0 => next(),
                    1 | 2 => own.u64(at) ^ 1 << (next() % 64),
                    _ => (1 << 46) | ((next() % 256) << 38) | ((next() % 2) << 37) | (next() % 8),
                };
                own.set_u64(at, value);
            }
        };
        scribble(if round % 2 == 0 { 1 } else { 30 });
        exercise(&space, &session, &mut addresses);
        // A new keeper takes up what it finds.
        match LocalKeeper::new(Arc::clone(&part)) {
            Ok(keeper) => {
                let again = Space::new(77);
                keeper.end_all().expect("ended");
                again.attach(part, Arc::new(keeper)).expect("attached");
                exercise(&again, &again.session(), &mut addresses);
            }
            Err(error) => drop(error.to_string()),
        }
    }
}

/// All operations, whatever their answers.
fn exercise(space: &Space, session: &Session, addresses: &mut Vec<GlobalAddress>) {
    let mut bytes = vec![0; 4096];
    for size in [64, 64, 100, 5_000, 1 << 20, 2 * EXTENT] {
        for lifetime in [Lifetime::Space, Lifetime::Session] {
            addresses.extend(session.alloc_in(size, lifetime));
        }
    }
    for address in addresses.iter() {
        for inside in [0, 8, 3 * EXTENT - 8] {
            let Some(at) = address.checked_add(inside) else {
                continue;
            };
            drop((
                space.read(at, &mut bytes),
                space.write(at, &bytes[..8]),
                space.size_of(at),
            ));
            drop((
                space.load(at),
                space.store(at, 1),
                space.compare_and_swap(at, 1, 2),
                space.fetch_add(at, 1),
            ));
        }
    }
    drop((space.stats(), space.audit()));
    addresses.iter().for_each(|address| drop(space.free(*address)));
    drop((space.stats(), space.audit()));
}

/// A hint stays when what was freed is allocated again from the group at hand. Of a slab that is full by then the
/// keeper thought that it had room, and the session that got it was told that the part is corrupt.
#[test]
fn a_full_slab_with_a_hint_is_passed_over() {
    let space = space(4);
    let first = space.session();
    let all: Vec<_> = (0..Class::of(64).expect("a class").count())
        .map(|_| first.alloc(64).expect("room"))
        .collect();
    assert_eq!(all[0].slot(), all[all.len() - 1].slot(), "one slab");
    // The first in the word at hand next, the others in later words of its group.
    let [one, two, three] = [0, 100, 200].map(|n| all[n]);
    [one, two].into_iter().for_each(|at| first.free(at).expect("freed"));
    assert_eq!(first.alloc(64).expect("room"), one);
    first.free(three).expect("freed");
    assert_eq!([(); 2].map(|()| first.alloc(64).expect("room")), [two, three]);
    first.close().expect("closed");
    let second = space.session();
    let other = second.alloc(64).expect("another slab has room");
    assert_ne!(other.slot(), one.slot());
    audited(&space);
}

/// Of two processes that made a part in one file, each saw that nothing was there before it had the lock: the second
/// one made its part over the first one's.
#[test]
fn a_part_is_not_made_over_what_came_while_the_file_was_locked() {
    use cenote_base::rt::fs;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("part");
    let other = fs::open(&path, fs::OpenOptions::CREATE).expect("made");
    assert!(other.lock_exclusive().expect("asked"));
    let theirs = path.clone();
    let making = rt::spawn("maker", move || {
        let options = SpaceOptions {
            bytes: 8 * EXTENT,
            ..SpaceOptions::default()
        };
        Part::create(&theirs, &options.part()).map(drop)
    });
    // It looks at the file, and waits for the lock by now, as a rule.
    rt::sleep(Nanos::from_millis(30));
    other.write_at(b"another's", 0).expect("written");
    drop(other);
    let made = making.join().expect("no panic");
    assert!(matches!(made, Err(Error::Invalid(_) | Error::Busy(_))), "{made:?}");
    assert_eq!(fs::read(&path).expect("there"), b"another's");
}
