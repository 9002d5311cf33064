//! Accesses to several parts at once, by a user that maps none of them.

use super::super::Hosts;
use super::*;
use crate::far::wire;
use cenote_base::rt::Mutex;
use cenote_base::rt::atomic::AtomicU64;
use cenote_fabric::rdma::call::{Answer, CallerId};

/// What a gate keeps.
const NOTHING: u64 = 0;
/// All, until it has something for each pod.
const UNTIL_BOTH: u64 = 1;
/// What is for the second pod, until it is let through.
const SECOND: u64 = 2;

/// Stands before both hosts.
struct Gate {
    hosts: Arc<Hosts>,
    pod: usize,
    kept: Arc<Kept>,
}

#[derive(Default)]
struct Kept {
    keeps: AtomicU64,
    requests: Mutex<Vec<Request>>,
}

struct Request {
    hosts: Arc<Hosts>,
    pod: usize,
    caller: CallerId,
    bytes: Vec<u8>,
    answer: Answer,
}

impl Kept {
    fn keep(&self, keeps: u64) {
        self.keeps.store(keeps, Ordering::Release);
    }

    fn has_of(&self, pod: usize) -> bool {
        self.requests.lock().iter().any(|request| request.pod == pod)
    }

    fn let_through(&self) {
        for request in core::mem::take(&mut *self.requests.lock()) {
            request.hosts.serve(request.caller, &request.bytes, request.answer);
        }
    }
}

impl Serve for Gate {
    fn serve(&self, caller: CallerId, request: &[u8], answer: Answer) {
        let is_access = wire::split(request).is_ok_and(|(head, _)| head.kind == wire::ACCESSES);
        let keeps = self.kept.keeps.load(Ordering::Acquire);
        let is_kept = keeps == UNTIL_BOTH || keeps == SECOND && self.pod == 1;
        if !is_access || !is_kept {
            return self.hosts.serve(caller, request, answer);
        }
        self.kept.requests.lock().push(Request {
            hosts: Arc::clone(&self.hosts),
            pod: self.pod,
            caller,
            bytes: request.to_vec(),
            answer,
        });
        if keeps == UNTIL_BOTH && (0..2).all(|pod| self.kept.has_of(pod)) {
            self.kept.let_through();
        }
    }
}

impl Pods {
    /// Behind a gate, which is open.
    fn gated(extents: u64) -> (Self, Arc<Kept>) {
        let (mut pods, kept) = (Self::still(extents), Arc::<Kept>::default());
        let theirs = Arc::clone(&kept);
        pods.door = Box::new(move |pod, hosts| {
            let (hosts, kept) = (Arc::new(hosts), Arc::clone(&theirs));
            Arc::new(Gate { hosts, pod, kept })
        });
        pods.restart();
        (pods, kept)
    }

    /// A user of no pod: both parts are far.
    fn stranger(&self) -> Space {
        let space = Space::new(SPACE);
        for (n, pod) in PODS.into_iter().enumerate() {
            let far = FarPart {
                number: n as u8 + 1,
                pod: pod.into(),
                channel: self.channel(1 - n, n),
            };
            let keeper = Arc::clone(self.hosts[n].keeper()) as Arc<dyn Keeper>;
            space.attach_far(far, keeper).expect("attached");
        }
        space
    }

    /// So many words of each part.
    pub(super) fn words(&self, count: usize) -> Vec<GlobalAddress> {
        let of = |user: &Space| {
            let session = user.session();
            (0..count).map(|_| session.alloc(64).expect("room")).collect::<Vec<_>>()
        };
        self.users.iter().flat_map(of).collect()
    }
}

pub(super) fn read_words(space: &Space, words: &[GlobalAddress]) -> Result<Vec<u64>> {
    let mut bytes = vec![[0; 8]; words.len()];
    let mut reads: Vec<_> = words
        .iter()
        .zip(&mut bytes)
        .map(|(address, into)| Read {
            address: *address,
            into,
        })
        .collect();
    space.read_many(&mut reads)?;
    Ok(bytes.into_iter().map(u64::from_le_bytes).collect())
}

pub(super) fn write_words(space: &Space, words: &[(GlobalAddress, u64)]) -> Result<()> {
    let bytes: Vec<_> = words.iter().map(|(_, value)| value.to_le_bytes()).collect();
    let writes: Vec<_> = words
        .iter()
        .zip(&bytes)
        .map(|((address, _), from)| Write {
            address: *address,
            from,
        })
        .collect();
    space.write_many(&writes)
}

/// Parts were asked one after the other: four of them took four trips. A gate that waits for all of them was never
/// passed.
#[test]
fn all_parts_are_asked_at_once() {
    let (pods, kept) = Pods::gated(4);
    let (words, stranger) = (pods.words(8), pods.stranger());
    let numbered: Vec<_> = words.iter().copied().zip(1..).collect();
    write_words(&stranger, &numbered).expect("the ways are open after this");
    kept.keep(UNTIL_BOTH);
    assert_eq!(
        read_words(&stranger, &words).expect("both are asked"),
        (1..=16).collect::<Vec<_>>()
    );
    let others: Vec<_> = words.iter().copied().zip(100..).collect();
    write_words(&stranger, &others).expect("both are asked");
    kept.keep(NOTHING);
    assert_eq!(
        read_words(&stranger, &words).expect("read"),
        (100..116).collect::<Vec<_>>()
    );
    pods.audit();
}

/// What one part refuses is not told before the others have answered: otherwise a write to them would be done after
/// its error was returned.
#[test]
fn an_error_is_told_when_all_that_was_posted_is_over() {
    let (pods, kept) = Pods::gated(4);
    let (words, stranger) = (pods.words(1), pods.stranger());
    let gone = pods.users[0].session().alloc(64).expect("room");
    read_words(&stranger, &words).expect("the ways are open after this");
    pods.users[0].free(gone).expect("freed");
    kept.keep(SECOND);
    let (is_over, is_told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let writer = {
        let (is_over, is_told, stranger, west) = (is_over.clone(), is_told.clone(), stranger.clone(), words[1]);
        rt::spawn("writer", move || {
            let result = write_words(&stranger, &[(gone, 7), (west, 8)]);
            let was_over = is_over.load(Ordering::Acquire);
            is_told.store(true, Ordering::Release);
            (result, was_over)
        })
    };
    eventually(|| kept.has_of(1) || is_told.load(Ordering::Acquire));
    is_over.store(true, Ordering::Release);
    kept.let_through();
    let (result, was_over) = writer.join().expect("it ends");
    assert!(matches!(result, Err(Error::Invalid(_))), "{result:?}");
    assert!(was_over, "a write was under way when the error was told");
    kept.keep(NOTHING);
    assert_eq!(read_words(&stranger, &words[1..]).expect("read"), [8]);
}

/// Extents go to and fro while many of them are read and written at once. Each word counts up: what is read is what was
/// written last.
#[test]
fn many_of_several_parts_are_what_was_written_while_they_move() {
    let pods = Pods::still(6);
    let (words, stranger) = (pods.words(20), pods.stranger());
    let extents = [words[0].extent(), words[20].extent()];
    let done = Arc::new(AtomicBool::new(false));
    let user = {
        let (done, seed) = (Arc::clone(&done), rt::random());
        rt::spawn("user", move || {
            use_words(&stranger, &words, seed);
            done.store(true, Ordering::Release);
        })
    };
    let mut moved = 0;
    while !done.load(Ordering::Acquire) && !user.is_finished() {
        for (extent, to) in [(extents[0], 2), (extents[1], 1), (extents[0], 1), (extents[1], 2)] {
            moved += u32::from(pods.relocate(extent, to).is_ok());
        }
    }
    user.join().expect("no panic");
    assert!(moved > 0);
    pods.audit();
}

/// Writes some of the words and reads all, beside a model.
pub(super) fn use_words(space: &Space, words: &[GlobalAddress], seed: u64) {
    let mut random = Random(seed);
    let mut model: BTreeMap<_, u64> = words.iter().map(|word| (*word, 0)).collect();
    for round in 1..=300 {
        let some = words.iter().filter(|_| random.below(2) == 0);
        let values: Vec<_> = some.map(|word| (*word, round)).collect();
        write_words(space, &values).expect("written");
        model.extend(values);
        let expected: Vec<_> = words.iter().map(|word| model[word]).collect();
        let found = read_words(space, words).expect("read");
        assert_eq!(found, expected, "seed {seed}, round {round}");
    }
}

/// A part that is away fails what lies there, and what lies elsewhere can be had.
#[test]
fn a_part_that_is_away_fails_what_lies_there() {
    let pods = Pods::still(4);
    let (mut words, stranger) = (pods.words(2), pods.stranger());
    let hello = Hello {
        space: SPACE,
        part: 3,
        key: KEY,
        pod: PODS[0].into(),
    };
    let away = FarPart {
        number: 3,
        pod: PODS[1].into(),
        channel: Arc::new(Channel::new(
            Arc::clone(&pods.nodes) as Arc<dyn Callers>,
            "nowhere",
            hello,
        )),
    };
    let keeper = Arc::clone(pods.hosts[0].keeper()) as Arc<dyn Keeper>;
    stranger.attach_far(away, keeper).expect("attached");
    let numbered: Vec<_> = words.iter().copied().zip(1..).collect();
    write_words(&stranger, &numbered).expect("written");
    words.push(GlobalAddress::new(3, 0, 0, 1).expect("an address"));
    let lost = read_words(&stranger, &words);
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    assert_eq!(read_words(&stranger, &words[..4]).expect("read"), [1, 2, 3, 4]);
}
