//! A part whose changes reach a mirror: what the mirror has after any beginning of them is a part, with all that was
//! answered by then.

use super::super::{Hosts, Order, Ordered};
use super::*;
use crate::keeper::{Extent, Run, SessionId};
use crate::{Class, Mode};
use cenote_base::rt::Mutex;
use cenote_base::rt::fs;
use cenote_fabric::{LINE, RegionMemory, Side};

/// A mirror that keeps every line that it got, in order, and what a fence has waited for.
#[derive(Default)]
struct Stream(Mutex<Sent>);

#[derive(Default)]
struct Sent {
    lines: Vec<(u64, [u8; LINE])>,
    fenced: usize,
}

impl Stream {
    /// What a loss of the part now would leave, at least.
    fn fenced(&self) -> usize {
        self.0.lock().fenced
    }

    fn len(&self) -> usize {
        self.0.lock().lines.len()
    }

    /// The memory after the first `n` lines.
    fn image(&self, n: usize, len: u64) -> Vec<u8> {
        let mut image = vec![0; len as usize];
        for (at, line) in &self.0.lock().lines[..n] {
            image[*at as usize..][..LINE].copy_from_slice(line);
        }
        image
    }
}

impl Side for Stream {
    fn reserve_to(&self, _end: u64) -> Result<()> {
        Ok(())
    }

    fn copy(&self, memory: &RegionMemory, off: u64, len: usize) {
        let mut stream = self.0.lock();
        for at in (off..off + len as u64).step_by(LINE) {
            let mut line = [0; LINE];
            memory.span(at, LINE as u64).copy_out(0, &mut line);
            stream.lines.push((at, line));
        }
    }

    fn fence(&self) {
        let mut stream = self.0.lock();
        stream.fenced = stream.lines.len();
    }

    fn is_apart(&self) -> bool {
        true
    }

    fn is_settled(&self) -> bool {
        let stream = self.0.lock();
        stream.fenced == stream.lines.len()
    }
}

/// The keeper, as a memory node lets members ask it.
struct Settling(Arc<LocalKeeper>);

impl Settling {
    fn answer<T>(&self, answer: Result<T>) -> Result<T> {
        self.0.part().settle().and(answer)
    }
}

impl Keeper for Settling {
    fn begin(&self) -> Result<SessionId> {
        self.answer(self.0.begin())
    }

    fn take(&self, session: SessionId, class: Class, lifetime: Lifetime) -> Result<Extent> {
        self.answer(self.0.take(session, class, lifetime))
    }

    fn give_back(&self, session: SessionId, extents: &[Extent]) -> Result<()> {
        self.answer(self.0.give_back(session, extents))
    }

    fn take_run(&self, session: SessionId, bytes: u64, lifetime: Lifetime) -> Result<Run> {
        self.answer(self.0.take_run(session, bytes, lifetime))
    }

    fn free_run(&self, address: GlobalAddress) -> Result<()> {
        self.answer(self.0.free_run(address))
    }

    fn end(&self, session: SessionId) -> Result<()> {
        self.answer(self.0.end(session))
    }

    fn is_alive(&self, session: SessionId) -> Result<bool> {
        self.answer(self.0.is_alive(session))
    }

    fn audit(&self) -> Result<Vec<String>> {
        self.0.audit()
    }
}

/// The space has one part.
struct NoMore;

impl crate::PartSource for NoMore {
    fn attach_more(&self, _: &Space, _: bool) -> bool {
        false
    }
}

/// A part, its host, and its mirror.
struct Setting {
    nodes: Arc<Nodes>,
    part: Arc<Part>,
    host: Host,
    stream: Arc<Stream>,
}

impl Setting {
    fn new(extents: u64) -> Self {
        let options = PartOptions {
            space: SPACE,
            part: 1,
            tenant: 0,
            bytes: (extents + 1) * EXTENT,
            movable: true,
            region: RegionOptions::default(),
        };
        let part = Arc::new(Part::dram(&options).expect("memory").into_mirrored());
        let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part)).expect("a keeper"));
        let stream = Arc::<Stream>::default();
        part.region().attach_mirror(Arc::clone(&stream) as _).expect("attached");
        let mut at = 0;
        loop {
            match part.region().fill_mirror_step(at) {
                next if next == at => break,
                next => at = next,
            }
        }
        let options = HostOptions {
            key: KEY,
            every: Nanos::ZERO,
            ..HostOptions::default()
        };
        let host = Host::start(keeper, options).expect("a host");
        let (nodes, hosts) = (Arc::new(Nodes::default()), Hosts::default());
        hosts.add(&host);
        nodes.add("node").serve(Arc::new(hosts));
        Self {
            nodes,
            part,
            host,
            stream,
        }
    }

    fn user(&self) -> Space {
        let hello = Hello {
            space: SPACE,
            part: 1,
            key: KEY,
            pod: "east".into(),
        };
        let channel = Channel::new(Arc::clone(&self.nodes) as Arc<dyn Callers>, "node", hello);
        let far = FarPart {
            number: 1,
            pod: "east".into(),
            channel: Arc::new(channel.reading(FarReads::Plain)),
        };
        let space = Space::new(SPACE);
        let keeper = Arc::new(Settling(Arc::clone(self.host.keeper())));
        space.attach_far(far, keeper).expect("attached");
        space.set_source(Box::new(NoMore), 1).expect("set");
        space
    }

    /// The part that another node finds in a mirror which got so many lines.
    fn found(&self, lines: usize) -> (tempfile::TempDir, Space, Arc<LocalKeeper>) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("mirror");
        fs::replace(&path, &self.stream.image(lines, self.part.region().len())).expect("written");
        let part = Arc::new(Part::open(&path, RegionOptions::default()).expect("it is a part"));
        let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part)).expect("a keeper"));
        let space = Space::new(SPACE);
        space.attach(part, Arc::clone(&keeper) as _).expect("attached");
        (directory, space, keeper)
    }
}

/// What was answered, and how much of the stream was fenced then.
enum Fact {
    /// It is an object of these bytes.
    Written(GlobalAddress, Vec<u8>),
    Freed(GlobalAddress),
    /// The counter under the lock has come to this.
    Counted(u64),
}

/// One user's work: objects that come and go, and a counter that all of them raise under a lock.
fn work(
    setting: &Setting,
    seed: u64,
    (lock, counter): (GlobalAddress, GlobalAddress),
    facts: &Mutex<Vec<(usize, Fact)>>,
) {
    let (space, mut draw) = (setting.user(), Random(seed));
    let session = space.session();
    let mut mine = Vec::new();
    let tell = |fact| {
        let fenced = setting.stream.fenced();
        facts.lock().push((fenced, fact));
    };
    for _ in 0..60 {
        match draw.below(8) {
            0..3 => {
                let len = draw.pick(&[8, 100, 3000, 40_000, 1_200_000]);
                let lifetime = if draw.one_in(4) {
                    Lifetime::Session
                } else {
                    Lifetime::Space
                };
                let Ok(address) = session.alloc_in(len, lifetime) else {
                    continue;
                };
                let bytes: Vec<u8> = (0..len.min(5000)).map(|_| draw.word() as u8).collect();
                session.write(address, &bytes).expect("written");
                if lifetime == Lifetime::Space {
                    tell(Fact::Written(address, bytes));
                }
                mine.push(address);
            }
            3..5 if !mine.is_empty() => {
                let address = mine.swap_remove(draw.index(mine.len()));
                session.free(address).expect("freed");
                tell(Fact::Freed(address));
            }
            _ => {
                let guard = session.lock(lock, Mode::Write).expect("locked");
                let next = session.load(counter).expect("loaded") + 1;
                guard.write(counter, &next.to_le_bytes()).expect("written");
                guard.unlock().expect("unlocked");
                tell(Fact::Counted(next));
            }
        }
    }
}

/// What was answered when so many lines were there.
fn check(setting: &Setting, lines: usize, counter: GlobalAddress, facts: &[(usize, Fact)]) {
    let (_directory, space, keeper) = setting.found(lines);
    assert_eq!(keeper.audit().expect("looked at"), Vec::<String>::new());
    // An address names an object that was freed, or comes to be, at most once.
    let gone = |of: GlobalAddress| {
        facts
            .iter()
            .any(|(_, fact)| matches!(fact, Fact::Freed(address) if *address == of))
    };
    let mut counted = 0;
    for (_, fact) in facts.iter().filter(|(fenced, _)| *fenced <= lines) {
        match fact {
            Fact::Written(address, bytes) if !gone(*address) => {
                let mut found = vec![0; bytes.len()];
                space.read(*address, &mut found).expect("it is there");
                assert!(found == *bytes, "{address} after {lines} lines");
            }
            Fact::Counted(to) => counted = counted.max(*to),
            Fact::Written(..) | Fact::Freed(_) => {}
        }
    }
    if counted > 0 {
        assert!(
            space.load(counter).expect("the counter") >= counted,
            "{counted} after {lines} lines"
        );
    }
}

#[test]
fn any_beginning_of_the_stream_is_a_part_with_all_that_was_answered() {
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rt::random);
    println!("CENOTE_SEED={seed}");
    let (setting, mut draw) = (Arc::new(Setting::new(16)), Random(seed));
    let begun = setting.user();
    let first = begun.session();
    let (lock, counter) = (first.new_lock().expect("room"), first.alloc(64).expect("room"));
    first.set_root(counter).expect("set");
    let facts = vec![(setting.stream.fenced(), Fact::Written(lock, Vec::new()))];
    let facts = Arc::new(Mutex::new(facts));
    let users: Vec<_> = (1..=3)
        .map(|user| {
            let (setting, facts) = (Arc::clone(&setting), Arc::clone(&facts));
            rt::spawn("user", move || work(&setting, seed ^ user, (lock, counter), &facts))
        })
        .collect();
    users.into_iter().for_each(|user| user.join().expect("no panic"));
    let facts = facts.lock();
    let (lines, from) = (setting.stream.len(), facts[0].0);
    let cut = |draw: &mut Random| from + draw.index(lines - from + 1);
    for lines in (0..8).map(|_| cut(&mut draw)).chain([lines]) {
        check(&setting, lines, counter, &facts);
        let (_directory, space, _) = setting.found(lines);
        assert_eq!(space.root().expect("a root"), counter);
    }
}

/// All of the part but marks of threads and heat.
#[test]
fn every_change_reaches_the_mirror() {
    let setting = Setting::new(16);
    let begun = setting.user();
    let first = begun.session();
    let places = (first.new_lock().expect("room"), first.alloc(64).expect("room"));
    work(&setting, rt::random(), places, &Mutex::default());
    drop(first);
    let layout = setting.part.layout();
    let lines = setting.stream.len();
    let mirror = setting.stream.image(lines, setting.part.region().len());
    let mut memory = vec![0; mirror.len()];
    setting
        .part
        .region()
        .span(0, mirror.len() as u64)
        .copy_out(0, &mut memory);
    let differs = (0..mirror.len()).find(|at| {
        let is_not_copied = (layout.threads_at..layout.maps_at).contains(&(*at as u64));
        !is_not_copied && mirror[*at] != memory[*at]
    });
    assert_eq!(differs, None, "{layout:?}");
}

/// Nothing of it moves, and a keeper that is none any more answers nothing.
#[test]
fn it_does_not_move_and_can_be_withdrawn() {
    let setting = Setting::new(4);
    let space = setting.user();
    let address = space.session().alloc(64).expect("room");
    let (extent, freeze) = (address.extent(), 1);
    let order = setting.host.inner.obey(&Order::Freeze { extent, freeze });
    assert!(matches!(order, Err(Error::Invalid(_))), "{order:?}");
    let order = setting.host.inner.obey(&Order::Offer { heat: 1e9 });
    assert_eq!(order.expect("answered"), Ordered::Unwelcome);
    setting.part.withdraw();
    let read = space.load(address);
    assert!(matches!(read, Err(Error::Timeout(_) | Error::Lost(_))), "{read:?}");
}

/// The root was looked for and then set, in two trips: each of several processes had claimed it, and each kept another
/// store there.
#[test]
fn one_of_several_claims_the_root() {
    for _ in 0..20 {
        let setting = Setting::new(4);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let space = setting.user();
                rt::spawn("claims", move || {
                    let mine = space.session().alloc(64).expect("room");
                    (mine, space.claim_root(mine).expect("claimed"))
                })
            })
            .collect();
        let claims = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let claims: Vec<(GlobalAddress, GlobalAddress)> = claims.collect();
        let root = setting.user().root().expect("a root");
        assert!(claims.iter().all(|(_, claimed)| *claimed == root), "{claims:?}");
        assert_eq!(claims.iter().filter(|(mine, _)| *mine == root).count(), 1);
        let lines = setting.stream.fenced();
        assert_eq!(setting.found(lines).1.root().expect("in the mirror"), root);
    }
}
