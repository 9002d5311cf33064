//! Tests that every implementation of [`Caller`] must pass, whatever stands behind it.
//!
//! An implementation gives a [`Bench`]: a node that serves [`Program`], which does what the first byte of a request
//! says. What fails panics, and says what.

use cenote_base::rt::{self, Mutex, Nanos};
use cenote_base::{Error, Result};
use cenote_fabric::rdma::call::{Answer, Call, Called, Caller, CallerId, LIMIT, Memory, Serve, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A node to be tried, as its implementation provides it. It serves a [`Program`].
pub trait Bench: Send + Sync {
    /// A new connection to the node.
    fn caller(&self) -> Arc<dyn Caller>;
    /// The node is lost. Called last.
    fn lose(&self);
}

/// What a request's first byte asks for. All that follows is the operand.
mod verb {
    /// The operand.
    pub const ECHO: u8 = b'e';
    /// So many bytes (u32) of [`super::pattern`].
    pub const FILL: u8 = b'f';
    /// One more under that number (u64): how often it was asked.
    pub const COUNT: u8 = b'c';
    /// The caller's number.
    pub const WHO: u8 = b'w';
    /// Not answered before [`RELEASE`] of that number (u64).
    pub const KEEP: u8 = b'k';
    /// Puts so many bytes (u64) of [`super::pattern`] into the caller's memory. Answers how much memory there was, and
    /// how many bytes were read of them.
    pub const MEMORY: u8 = b'm';
    /// How many sources have not ended.
    pub const SOURCES: u8 = b's';
    /// Answers what was kept, from a thread of its own, with this operand; of a call that lends memory, that is filled.
    pub const RELEASE: u8 = b'r';
    /// No answer: the handle is dropped. Likewise what is no verb.
    pub const DROP: u8 = b'd';
    /// An error.
    pub const FAIL: u8 = b'x';
    /// Whether that caller (u64) has ended.
    pub const ENDED: u8 = b'o';
}

/// The program that the node serves.
#[derive(Debug, Default)]
pub struct Program {
    counts: Mutex<Vec<(u64, u64)>>,
    kept: Mutex<Vec<(u64, Answer)>>,
    ended: Mutex<Vec<CallerId>>,
    sources: Arc<AtomicU64>,
}

/// Bytes of [`pattern`] for a caller's memory.
struct Bytes {
    bytes: Vec<u8>,
    read: usize,
    alive: Arc<AtomicU64>,
}

impl Bytes {
    fn new(len: usize, alive: &Arc<AtomicU64>) -> Box<Self> {
        alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Self {
            bytes: pattern(len),
            read: 0,
            alive: Arc::clone(alive),
        })
    }
}

impl Source for Bytes {
    fn size(&self) -> usize {
        self.bytes.len()
    }

    fn read(&mut self, at: usize, into: &mut [u8]) {
        assert_eq!(at, self.read, "from the first to the last");
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
        self.read += into.len();
    }

    fn finish(self: Box<Self>, answer: &mut [u8]) {
        if let Some(said) = answer.get_mut(8..16) {
            said.copy_from_slice(&(self.read as u64).to_le_bytes());
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Program {
    fn count(&self, number: u64) -> u64 {
        let mut counts = self.counts.lock();
        match counts.iter_mut().find(|(n, _)| *n == number) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                counts.push((number, 1));
                1
            }
        }
    }

    fn release(&self, number: u64, operand: &[u8]) -> u64 {
        let mut kept = self.kept.lock();
        let Some(place) = kept.iter().position(|(n, _)| *n == number) else {
            return 0;
        };
        let (answer, bytes) = (kept.swap_remove(place).1, operand.to_vec());
        drop(kept);
        // There from now on: a count of sources that begins after this was answered has it.
        let source = Some(answer.room()).filter(|room| *room > 0);
        let source = source.map(|room| Bytes::new(room, &self.sources));
        let late = move || match source {
            None => answer.with(&bytes),
            Some(source) => answer.send_from(source),
        };
        drop(rt::spawn("answers", late));
        1
    }

    fn fill(&self, len: u64, mut answer: Answer) {
        let room = answer.room() as u64;
        answer.bytes().extend([room, 0].map(u64::to_le_bytes).concat());
        answer.send_from(Bytes::new(len as usize, &self.sources));
    }
}

impl Serve for Program {
    fn serve(&self, caller: CallerId, request: &[u8], mut answer: Answer) {
        let (verb, operand) = request.split_first().unwrap_or((&verb::ECHO, &[]));
        match *verb {
            verb::ECHO => answer.with(operand),
            verb::FILL => {
                *answer.bytes() = pattern(word(operand) as usize);
                answer.send();
            }
            verb::COUNT => answer.with(&self.count(word(operand)).to_le_bytes()),
            verb::WHO => answer.with(&caller.0.to_le_bytes()),
            verb::MEMORY => self.fill(word(operand), answer),
            verb::SOURCES => answer.with(&self.sources.load(Ordering::SeqCst).to_le_bytes()),
            verb::KEEP => self.kept.lock().push((word(operand), answer)),
            verb::RELEASE => answer.with(&self.release(word(operand), operand).to_le_bytes()),
            verb::FAIL => answer.fail(Error::Busy("as asked".into())),
            verb::ENDED => {
                let ended = self.ended.lock().iter().filter(|c| c.0 == word(operand)).count();
                answer.with(&(ended as u64).to_le_bytes());
            }
            _ => drop(answer),
        }
    }

    fn ended(&self, caller: CallerId) {
        self.ended.lock().push(caller);
    }
}

/// The first 8 bytes as a number; 0 if there are not so many.
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 31 + (i >> 8) * 7 + 3) as u8).collect()
}

fn request(verb: u8, operand: &[u8]) -> Vec<u8> {
    [&[verb], operand].concat()
}

fn of_number(verb: u8, number: u64) -> Vec<u8> {
    request(verb, &number.to_le_bytes())
}

fn ask(caller: &dyn Caller, verb: u8, operand: &[u8]) -> Result<Vec<u8>> {
    let mut answer = vec![9; 3];
    caller.call(&request(verb, operand), &mut answer)?;
    Ok(answer)
}

fn ask_number(caller: &dyn Caller, verb: u8, number: u64) -> u64 {
    word(&ask(caller, verb, &number.to_le_bytes()).expect("answered"))
}

/// All of them, on one node.
pub fn all(bench: &Arc<dyn Bench>) {
    answers_are_of_their_calls(&**bench);
    batches_come_back_whole_and_in_order(&**bench);
    all_sizes_up_to_the_limit(&**bench);
    too_large_is_refused(&**bench);
    errors_come_back(&**bench);
    each_call_is_carried_out_once(bench);
    more_calls_than_may_be_under_way(&**bench);
    answers_may_come_later(&**bench);
    a_late_answer_is_a_timeout(&**bench);
    memory_is_filled(&**bench);
    memory_that_is_too_small_is_refused(&**bench);
    memory_that_came_back_is_not_written_to(&**bench);
    memory_of_another_connection_is_memory(&**bench);
    a_lent_buffer_without_an_answer_is_not_reused(&**bench);
    sources_end(&**bench);
    callers_have_numbers_of_their_own_and_end(&**bench);
    polling_ends(&**bench);
    a_lost_node_is_reported(&**bench);
}

/// What was asked is what is answered.
pub fn answers_are_of_their_calls(bench: &dyn Bench) {
    let caller = bench.caller();
    for round in 0..20u8 {
        let answer = ask(&*caller, verb::ECHO, &[round; 64]).expect("answered");
        assert_eq!(answer, [round; 64]);
    }
    assert!(ask(&*caller, verb::ECHO, &[]).expect("answered").is_empty());
    let mut answer = vec![1; 7];
    caller.call(&[], &mut answer).expect("answered");
    assert!(answer.is_empty(), "an empty request has an answer too");
}

/// Calls come back in the order of posting, with their requests and marks; of two batches, too.
pub fn batches_come_back_whole_and_in_order(bench: &dyn Bench) {
    let caller = bench.caller();
    let echo = |i: u64| Call::new(request(verb::ECHO, &[i as u8; 100])).tagged(i);
    let first = caller.post((0..16).map(echo).collect());
    let second = caller.post((16..32).map(echo).collect());
    for (from, called) in [(16, second), (0, first)] {
        for (i, call) in (from..).zip(called.wait()) {
            assert_eq!((call.tag, call.request.len()), (i, 101));
            assert_eq!(call.into_answer().expect("answered"), [i as u8; 100]);
        }
    }
    assert!(caller.post(Vec::new()).wait().is_empty());
}

/// Any number of bytes, both ways, and mixed in one batch.
pub fn all_sizes_up_to_the_limit(bench: &dyn Bench) {
    let caller = bench.caller();
    let sizes = [
        1,
        7,
        8,
        512,
        4096,
        16384,
        20400,
        20432,
        20433,
        40865,
        65536,
        100_000,
        LIMIT - 1,
    ];
    let both = |len: &usize| {
        [
            Call::new(request(verb::ECHO, &pattern(*len))),
            Call::new(of_number(verb::FILL, *len as u64 + 1)),
        ]
    };
    let calls = caller.post(sizes.iter().flat_map(both).collect()).wait();
    for (pair, len) in calls.chunks(2).zip(sizes) {
        let [echoed, filled] = pair else { panic!("pairs") };
        assert!(echoed.result.is_ok() && filled.result.is_ok(), "{len} bytes");
        assert!(echoed.answer == pattern(len), "{len} bytes, there and back");
        assert!(filled.answer == pattern(len + 1), "{len} bytes and one");
    }
}

/// Beyond the limit: refused, here and there, and the others go on.
pub fn too_large_is_refused(bench: &dyn Bench) {
    let caller = bench.caller();
    let batch = vec![
        Call::new(vec![verb::ECHO; LIMIT + 1]),
        Call::new(of_number(verb::FILL, LIMIT as u64 + 1)),
        Call::new(request(verb::ECHO, b"goes on")),
    ];
    let calls = caller.post(batch).wait();
    for call in &calls[..2] {
        assert!(matches!(call.result, Err(Error::Invalid(_))), "{:?}", call.result);
        assert!(call.answer.is_empty());
    }
    assert_eq!(calls[2].answer, b"goes on");
}

/// A program that serves can refuse, or forget.
pub fn errors_come_back(bench: &dyn Bench) {
    let caller = bench.caller();
    let refused = ask(&*caller, verb::FAIL, &[]).expect_err("refused");
    assert!(
        matches!(&refused, Error::Busy(text) if text.contains("as asked")),
        "{refused}"
    );
    let forgotten = ask(&*caller, verb::DROP, &[]).expect_err("not answered");
    assert!(matches!(forgotten, Error::Invalid(_)), "{forgotten}");
}

/// Threads with one caller and with callers of their own: every call is counted once.
pub fn each_call_is_carried_out_once(bench: &Arc<dyn Bench>) {
    let number = rt::random();
    let shared = bench.caller();
    let work = move |caller: Arc<dyn Caller>| {
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(ask_number(&*caller, verb::COUNT, number));
            let batch = (0..4).map(|_| Call::new(of_number(verb::COUNT, number))).collect();
            let counted = caller.post(batch).wait().into_iter();
            seen.extend(counted.map(|c| word(&c.into_answer().expect("counted"))));
        }
        seen
    };
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let caller = if i < 2 { Arc::clone(&shared) } else { bench.caller() };
            rt::spawn("calls", move || work(caller))
        })
        .collect();
    let counts = threads.into_iter().map(|t| t.join().expect("no panic"));
    let mut all: Vec<u64> = counts.flatten().collect();
    all.sort_unstable();
    assert_eq!(all, (1..=200).collect::<Vec<u64>>());
}

/// A batch larger than what may be under way is not refused.
pub fn more_calls_than_may_be_under_way(bench: &dyn Bench) {
    let caller = bench.caller();
    let number = rt::random();
    let batch = (0..1500).map(|_| Call::new(of_number(verb::COUNT, number))).collect();
    let calls = caller.post(batch).wait();
    let mut counts: Vec<u64> = calls
        .into_iter()
        .map(|c| word(&c.into_answer().expect("counted")))
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=1500).collect::<Vec<u64>>());
}

fn kept(caller: &dyn Caller, number: u64) -> Called {
    caller.post(vec![
        Call::new(of_number(verb::KEEP, number)).within(Nanos::from_secs(60)),
    ])
}

/// Answers what is kept under a number, once it has come.
fn release(caller: &dyn Caller, number: u64) {
    while ask_number(caller, verb::RELEASE, number) == 0 {
        rt::sleep(Nanos::from_micros(50));
    }
}

/// Deferred answers, from another thread, in another order; meanwhile others are answered.
pub fn answers_may_come_later(bench: &dyn Bench) {
    let (one, other) = (bench.caller(), bench.caller());
    let numbers: [u64; 3] = core::array::from_fn(|_| rt::random());
    let mut waiting = numbers.map(|n| Some(kept(&*one, n)));
    assert_eq!(ask(&*one, verb::ECHO, b"meanwhile").expect("answered"), b"meanwhile");
    for (place, caller) in [(2, &one), (0, &other), (1, &other)] {
        let mut called = waiting[place].take().expect("kept");
        assert!(!called.poll(), "not before it was released");
        release(&**caller, numbers[place]);
        let call = called.wait().pop().expect("one");
        assert_eq!(word(&call.into_answer().expect("released")), numbers[place]);
    }
}

/// No answer in time; the connection stays, and an answer that comes then does no harm.
pub fn a_late_answer_is_a_timeout(bench: &dyn Bench) {
    let caller = bench.caller();
    let number = rt::random();
    let call = Call::new(of_number(verb::KEEP, number)).within(Nanos::from_millis(100));
    let late = caller.post(vec![call]).wait().pop().expect("one");
    assert!(matches!(late.result, Err(Error::Timeout(_))), "{:?}", late.result);
    release(&*caller, number);
    assert_eq!(ask(&*caller, verb::ECHO, b"goes on").expect("answered"), b"goes on");
}

/// A call that lends so much memory, which holds nines, for so many bytes.
fn filling(room: usize, len: usize) -> Call {
    filling_of(vec![9; room], len)
}

fn filling_of(memory: impl Into<Memory>, len: usize) -> Call {
    Call::new(of_number(verb::MEMORY, len as u64)).into_memory(memory)
}

/// So many nines, in a plain buffer or in one that the node can write to by itself, if the connection has such.
fn nines(caller: &dyn Caller, is_lent: bool, len: usize) -> Option<Memory> {
    let mut memory = match is_lent {
        true => caller.lend(len)?,
        false => vec![0; len].into(),
    };
    assert_eq!(memory.len(), len, "as much as was asked for");
    memory.fill(9);
    Some(memory)
}

/// What the program puts into a call's memory is there, and what it says after it was read; what lies beyond is as it
/// was. Each call of a batch has its own.
pub fn memory_is_filled(bench: &dyn Bench) {
    let caller = bench.caller();
    let sizes = [
        0,
        1,
        7,
        512,
        4096,
        20415,
        20416,
        20417,
        20480,
        20481,
        40832,
        65536,
        LIMIT - 1,
        LIMIT,
    ];
    for (beyond, is_lent) in [(0, false), (5, false), (0, true), (5, true)] {
        let room = |len: usize| (len + beyond).min(LIMIT);
        let Some(memory) = sizes
            .iter()
            .map(|len| nines(&*caller, is_lent, room(*len)))
            .collect::<Option<Vec<_>>>()
        else {
            continue;
        };
        let sized = sizes.iter().zip(memory);
        let calls = sized.map(|(len, memory)| filling_of(memory, *len)).collect();
        for (len, call) in sizes.into_iter().zip(caller.post(calls).wait()) {
            assert!(call.result.is_ok(), "{len} bytes: {:?}", call.result);
            let (filled, rest) = call.memory.split_at(len);
            assert!(filled == pattern(len), "{len} bytes");
            assert!(rest.len() == room(len) - len && rest.iter().all(|byte| *byte == 9));
            let said: Vec<u64> = call.answer.chunks(8).map(word).collect();
            assert_eq!(said, [room(len) as u64, len as u64], "the answer to {len} bytes");
        }
    }
}

/// More than a call's memory, or more memory than a call may lend: refused, and the others go on.
pub fn memory_that_is_too_small_is_refused(bench: &dyn Bench) {
    let caller = bench.caller();
    let batch = vec![
        filling(511, 512),
        filling(0, 1),
        filling(LIMIT + 1, 8),
        filling(512, 512),
    ];
    let calls = caller.post(batch).wait();
    for call in &calls[..3] {
        assert!(matches!(call.result, Err(Error::Invalid(_))), "{:?}", call.result);
    }
    assert!(calls[3].result.is_ok() && *calls[3].memory == pattern(512));
    assert!(caller.lend(LIMIT + 1).is_none());
    if let Some(lent) = nines(&*caller, true, 511) {
        let call = caller.post(vec![filling_of(lent, 512)]).wait().pop().expect("one");
        assert!(matches!(call.result, Err(Error::Invalid(_))), "{:?}", call.result);
        assert!(call.memory.iter().all(|byte| *byte == 9), "it comes back as it was");
    }
}

/// Memory that came back with a call which had no answer in time is its user's: what the program puts there later goes
/// nowhere.
pub fn memory_that_came_back_is_not_written_to(bench: &dyn Bench) {
    let caller = bench.caller();
    let (number, len) = (rt::random(), 50_000);
    let call = Call::new(of_number(verb::KEEP, number)).within(Nanos::from_millis(100));
    let late = caller
        .post(vec![call.into_memory(vec![0; len])])
        .wait()
        .pop()
        .expect("one");
    assert!(matches!(late.result, Err(Error::Timeout(_))), "{:?}", late.result);
    let mut memory = late.memory;
    assert_eq!(memory.len(), len, "it comes back");
    memory.fill(7);
    release(&*caller, number);
    while ask_number(&*caller, verb::SOURCES, 0) != 0 {
        rt::sleep(Nanos::from_micros(50));
    }
    let next = caller.post(vec![filling(len, 8)]).wait().pop().expect("one");
    assert!(next.result.is_ok() && next.memory[..8] == pattern(8));
    assert!(next.memory[8..].iter().all(|byte| *byte == 9), "another call's memory");
    assert!(memory.iter().all(|byte| *byte == 7), "no bytes but ours");
}

/// A buffer that one connection has lent is memory like any over another.
pub fn memory_of_another_connection_is_memory(bench: &dyn Bench) {
    let (caller, other) = (bench.caller(), bench.caller());
    let Some(memory) = nines(&*other, true, 50_000) else {
        return;
    };
    let call = caller.post(vec![filling_of(memory, 40_000)]).wait().pop().expect("one");
    assert!(call.result.is_ok() && call.memory[..40_000] == pattern(40_000));
    assert!(call.memory[40_000..].iter().all(|byte| *byte == 9));
    drop((caller, other));
    assert!(call.memory[..40_000] == pattern(40_000), "it outlives its connection");
}

/// A buffer whose call had no answer in time may be written to still: so no call has it, whatever is lent meanwhile.
pub fn a_lent_buffer_without_an_answer_is_not_reused(bench: &dyn Bench) {
    let caller = bench.caller();
    let (number, len) = (rt::random(), 100_000);
    let Some(memory) = nines(&*caller, true, len) else {
        return;
    };
    let call = Call::new(of_number(verb::KEEP, number)).within(Nanos::from_millis(100));
    let late = caller.post(vec![call.into_memory(memory)]).wait().pop().expect("one");
    assert!(matches!(late.result, Err(Error::Timeout(_))), "{:?}", late.result);
    assert_eq!(late.memory.len(), len, "the call may be asked again");
    let lent: Vec<Memory> = (0..8).filter_map(|_| nines(&*caller, true, len)).collect();
    assert!(!lent.is_empty(), "there are others");
    release(&*caller, number);
    while ask_number(&*caller, verb::SOURCES, 0) != 0 {
        rt::sleep(Nanos::from_micros(50));
    }
    // What comes of that one is behind what came of the late one.
    let calls = caller
        .post(lent.into_iter().map(|memory| filling_of(memory, 8)).collect())
        .wait();
    for call in calls {
        assert!(call.result.is_ok() && call.memory[..8] == pattern(8));
        assert!(call.memory[8..].iter().all(|byte| *byte == 9), "another call's bytes");
    }
}

/// Each call's bytes are in its own buffer, however many there are at once, in whichever order they are used again.
/// (Not one of [`all`]: see `docs/decisions/libfabric.md` of large messages over shared memory.)
pub fn threads_lend_side_by_side(bench: &Arc<dyn Bench>) {
    let shared = bench.caller();
    let work = move |caller: Arc<dyn Caller>, thread: usize| {
        for round in 0..10 {
            let sizes = (0..4).map(|n| 1 + (thread * 7919 + round * 31_337 + n * 20_011) % 60_000);
            let one = |len: usize| Some((len, filling_of(nines(&*caller, true, len + 8)?, len)));
            let Some((sizes, calls)) = sizes.map(one).collect::<Option<(Vec<_>, Vec<_>)>>() else {
                return;
            };
            for (len, call) in sizes.into_iter().zip(caller.post(calls).wait()) {
                assert!(call.result.is_ok(), "{:?}", call.result);
                assert!(call.memory[..len] == pattern(len), "{len} bytes");
                assert_eq!(call.memory[len..], [9; 8], "beyond {len} bytes");
            }
        }
    };
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let caller = if thread < 2 {
                Arc::clone(&shared)
            } else {
                bench.caller()
            };
            rt::spawn("lends", move || work(caller, thread))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Nothing is read any more of what was put into memory, nor of what was to be when its caller was dropped.
pub fn sources_end(bench: &dyn Bench) {
    let (caller, other) = (bench.caller(), bench.caller());
    drop(caller.post((0..20).map(|_| filling(LIMIT, LIMIT)).collect()));
    let lent = (0..10).filter_map(|_| nines(&*caller, true, LIMIT));
    drop(caller.post(lent.map(|memory| filling_of(memory, LIMIT)).collect()));
    drop(caller);
    while ask_number(&*other, verb::SOURCES, 0) != 0 {
        rt::sleep(Nanos::from_micros(50));
    }
}

/// Numbers differ, stay, and end with their connections.
pub fn callers_have_numbers_of_their_own_and_end(bench: &dyn Bench) {
    let (one, other) = (bench.caller(), bench.caller());
    let who = |caller: &dyn Caller| word(&ask(caller, verb::WHO, &[]).expect("answered"));
    let (first, second) = (who(&*one), who(&*other));
    assert!(first != second && first != 0 && second != 0);
    assert_eq!((who(&*one), one.id()), (first, CallerId(first)), "it stays");
    assert_eq!(ask_number(&*other, verb::ENDED, first), 0, "not while it lasts");
    drop(one);
    while ask_number(&*other, verb::ENDED, first) == 0 {
        rt::sleep(Nanos::from_micros(50));
    }
    assert_eq!(ask_number(&*other, verb::ENDED, first), 1, "told once");
    assert_eq!(ask_number(&*other, verb::ENDED, second), 0);
}

/// Polling tells completion without blocking, and a dropped call is carried out all the same.
pub fn polling_ends(bench: &dyn Bench) {
    let caller = bench.caller();
    let number = rt::random();
    let count = || caller.post(vec![Call::new(of_number(verb::COUNT, number))]);
    let mut called = count();
    while !called.poll() {
        rt::sleep(Nanos::from_micros(1));
    }
    assert_eq!(word(&called.wait()[0].answer), 1);
    drop(count());
    let mut looks = 0;
    while ask_number(&*caller, verb::COUNT, number) != 3 + looks {
        looks += 1;
        rt::sleep(Nanos::from_micros(50));
    }
}

/// A lost node: [`Error::Lost`], in bounded time, for good; for what is kept there too.
pub fn a_lost_node_is_reported(bench: &dyn Bench) {
    let caller = bench.caller();
    assert!(ask(&*caller, verb::ECHO, b"here").is_ok());
    let waiting = kept(&*caller, rt::random());
    let lent = nines(&*caller, true, 5000).unwrap_or_default();
    let timeout = Nanos::from_secs(60);
    let lends = Call::new(of_number(verb::KEEP, rt::random()))
        .within(timeout)
        .into_memory(lent);
    let lends = caller.post(vec![lends]);
    bench.lose();
    for waiting in [waiting, lends] {
        let call = waiting.wait().pop().expect("one");
        assert!(matches!(call.result, Err(Error::Lost(_))), "{:?}", call.result);
    }
    for _ in 0..2 {
        let error = ask(&*caller, verb::ECHO, &[]).expect_err("there is no node");
        assert!(matches!(error, Error::Lost(_)), "{error}");
    }
}
