//! The controller of a world: starts engines, brings faults, and says in the end what came of it.

use cenote_base::Error;
use cenote_base::random::Random;
use cenote_fabric::Origin;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use cenote_base::rt::fault::{self, Fault};
use cenote_base::rt::{self, Nanos, mark};
use cenote_testkit::faulty::{FaultPlan, MemFs};
use rustix::fs::{MemfdFlags, memfd_create};

use super::death::Death;
use super::far::Far;
use super::hunt::End as Ends;
use super::life::{is_refused, live};
use super::name::Name;
use super::plan::Plan;
use super::shared::{Shared, Tally};
use super::site::Site;
use super::{grants, mirrors, pages, panics, pool, readers, scene, servers, spaces, storage_nodes, store, story};
use crate::check::{End, adya, serial};
use crate::memory::{Hazard, HazardKind};
use crate::{DeviceSpec, Exit, Pace, Process, Topology, World};

/// What came of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong; empty where all is well.
    pub problems: Vec<String>,
    /// The last steps, if something is wrong.
    pub story: Vec<String>,
    /// What it went through.
    pub tally: Tally,
    /// Stands for every choice made: equal for equal seeds.
    pub digest: u64,
}

/// What a life leaves to the next.
struct Remains {
    region: Region,
    /// How the next recovery has to go.
    mode: Option<&'static str>,
    /// Where it ended.
    host: usize,
    /// Whether another host may go on from here. Not after a mere kill: the changed lines that it left are in its
    /// host's cache, and may be written over what the other host does at any time.
    may_move: bool,
    /// The host that does not find the memory device.
    cut_off: Option<usize>,
    /// How often a host was lost: what a memory pool counts as its epoch.
    lost: u64,
}

/// Where the region lies.
enum Region {
    /// A file of the machine without a name, gone with this process however that ends: all hosts see the same bytes.
    File(OwnedFd),
    /// A simulated device, which hosts see through their caches.
    Device,
    /// In the process's own memory: gone with it.
    Own,
}

/// A world of an engine takes a few million steps, and one that checks a database larger than its memory a hundred
/// times takes 140 million; one that goes on for longer hangs.
const STEPS_MOST: u64 = 400_000_000;
/// The simulated device.
const DEVICE: &str = "cxl";

impl Region {
    fn new(plan: &Plan) -> Self {
        match (plan.device, plan.tier) {
            (_, Some(_)) => Self::Own,
            (true, _) => Self::Device,
            (false, _) => {
                let file = memfd_create("cenote-world", MemfdFlags::CLOEXEC);
                Self::File(file.expect("a file in memory"))
            }
        }
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::File(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            Self::Device => format!("/dev/sim/{DEVICE}").into(),
            Self::Own => PathBuf::new(),
        }
    }

    /// What a killed process leaves: the same bytes in another file, which no process has locked.
    fn after_kill(self, plan: &Plan) -> Self {
        let new = Self::new(plan);
        if matches!(self, Self::File(_)) {
            std::fs::copy(self.path(), new.path()).expect("memory for a copy");
        }
        new
    }
}

/// Runs the world of `plan` to its end, or to the first thing that is wrong.
pub fn run(plan: Plan) -> Verdict {
    let shared = Arc::new(Shared::new(plan));
    drop((fault::ended(), panics::take(), scene::take(), mark::take()));
    mark::aim(shared.plan.hunt.aim);
    let mut digest = shared.plan.seed;
    let _rare = (digest % 2 == 1).then(|| fault::plant(Fault::StalledLook));
    let world = World::new(shared.plan.schedule, Pace::Explore, topology(&shared.plan));
    let world = world.map(|world| match shared.plan.name {
        Name::Pool | Name::Store => world.with_step_limit(pool::STEPS_MOST),
        Name::Grants | Name::Leaders | Name::Hosts => world.with_step_limit(grants::STEPS_MOST),
        Name::Pages => world.with_step_limit(pages::STEPS_MOST),
        Name::Mirrors => world.with_step_limit(mirrors::STEPS_MOST),
        Name::Spaces => world.with_step_limit(spaces::STEPS_MOST),
        Name::StorageNodes => world.with_step_limit(storage_nodes::STEPS_MOST),
        Name::Readers => world.with_step_limit(readers::STEPS_MOST),
        Name::Servers => world.with_step_limit(servers::STEPS_MOST),
        _ => world.with_step_limit(STEPS_MOST),
    });
    let outcome = world.map(|world| catch_unwind(AssertUnwindSafe(|| world.run(|w| play(&shared, w)))));
    match outcome {
        Ok(Ok(outcome)) => {
            digest = outcome.digest;
            shared.add("steps", outcome.steps);
        }
        Ok(Err(panic)) => shared.fail(message(&*panic)),
        Err(error) => shared.fail(error.to_string()),
    }
    mark::aim(None);
    mark::strike(None);
    for (mark, n) in mark::take() {
        shared.add(&format!("passed: {}", mark.text()), n);
    }
    panics::take().into_iter().for_each(|panic| shared.fail(panic));
    shared.add("transactions", shared.ended());
    Verdict {
        story: story::tell(&shared, scene::take()),
        problems: shared.problems(),
        tally: shared.tally(),
        digest,
    }
}

fn topology(plan: &Plan) -> Topology {
    made_of(plan).with_drift(plan.seed, plan.drift)
}

fn made_of(plan: &Plan) -> Topology {
    match plan.name {
        Name::Spaces => return spaces::topology(),
        Name::StorageNodes => return storage_nodes::topology(),
        Name::Readers => return readers::topology(),
        Name::Servers => return servers::topology(),
        _ => {}
    }
    let mut topology = Topology::hosts(plan.hosts, 4);
    if let Some(bytes) = plan.cache {
        topology.hosts.iter_mut().for_each(|host| host.cache.bytes = bytes);
    }
    if let Some(grants) = plan.grants {
        topology.devices.extend(grants::device::spec(grants));
        return topology;
    }
    if let Some(pods) = plan.pods {
        return match plan.name {
            Name::Store => store::topology(plan.hosts, pods),
            _ => pool::topology(plan.hosts, pods),
        };
    }
    match DeviceSpec::new(DEVICE, plan.memory, "cxl-switch") {
        Ok(device) if plan.device => topology.with_device(device),
        _ => topology,
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic")
        .to_owned()
}

/// The controller's thread.
fn play(shared: &Arc<Shared>, world: &World) {
    match (shared.plan.pods, shared.plan.grants) {
        (Some(pods), _) if shared.plan.name == Name::Store => store::play(shared, pods, world),
        (Some(pods), _) => pool::play(shared, pods, world),
        (_, Some(grants)) => grants::play(shared, grants, world),
        (None, None) if shared.plan.name == Name::Mirrors => mirrors::play(shared, world),
        (None, None) if shared.plan.name == Name::Spaces => spaces::play(shared, world),
        (None, None) if shared.plan.name == Name::StorageNodes => storage_nodes::play(shared, world),
        (None, None) if shared.plan.name == Name::Readers => readers::play(shared, world),
        (None, None) if shared.plan.name == Name::Servers => servers::play(shared, world),
        (None, None) => lives(shared, world),
    }
}

/// Life after life of an engine.
fn lives(shared: &Arc<Shared>, world: &World) {
    // One storage for all hosts.
    let files = world.files(0);
    for host in 1..shared.plan.hosts {
        world.set_files(host, &files);
    }
    // On a disk that fails the log may, and with it the wait for what others have committed.
    shared.history().may_lose_log = shared.plan.name == Name::Disk;
    let far = shared
        .plan
        .tier
        .map(|tier| Far::new(tier, 0..1, &mut Random(world.draw())));
    let mut remains = Remains {
        region: Region::new(&shared.plan),
        mode: None,
        host: 0,
        may_move: false,
        cut_off: None,
        lost: 0,
    };
    for life in 0..=shared.plan.deaths as usize {
        let mut draw = Random(world.draw());
        let host = match (remains.cut_off, remains.may_move) {
            (Some(host), _) => 1 - host,
            (_, true) => draw.below(shared.plan.hosts as u64) as usize,
            (_, false) => remains.host,
        };
        if host != remains.host {
            shared.befalls("handovers");
        }
        let aside = matches!(shared.plan.name, Name::Crash | Name::Pages) && life > 0 && draw.one_in(8);
        shared.add("lives beside the region", u64::from(aside));
        let site = Site {
            region: remains.region.path(),
            origin: origin(&shared.plan, host, remains.lost),
            life,
            aside,
            mode: remains
                .mode
                .filter(|_| !aside)
                .filter(|mode| host == remains.host || shared.plan.host || *mode != "instant"),
            first: life == 0,
            // Now and then without it: what it has is not believed by the one after.
            far: far.clone().filter(|_| !draw.one_in(8)),
        };
        let (cut_off, lost) = (remains.cut_off, remains.lost);
        remains = one_life(shared, world, host, &site, remains.region, &mut draw);
        remains.lost += lost;
        look_at_caches(shared, world);
        if shared.has_failed() {
            break;
        }
        cut_off.into_iter().for_each(|host| world.mend_link(host, 0));
        between_lives(shared, world, &site, &mut remains, &mut draw);
        if let Some(far) = &far {
            far.between_lives(shared, &mut draw);
        }
    }
    let hazards: u64 = world.hazards().counts.values().sum();
    shared.add("dirty lines dropped after kills", hazards);
    for view in world.traffic() {
        shared.add("lines fetched", view.moved.fetched);
        shared.add("lines written", view.moved.written);
        shared.add("stale lines read", view.stale_reads);
    }
}

/// What befalls memory and disk while no process uses them.
fn between_lives(shared: &Arc<Shared>, world: &World, site: &Site, remains: &mut Remains, draw: &mut Random) {
    if shared.plan.name == Name::DeviceLoss {
        if remains.cut_off.is_some() {
            start_cut_off(shared, world, site, remains, draw);
        }
        if draw.one_in(6) {
            shared.befalls("faults: memory device lost between two lives");
            world.lose_device(0);
            remains.mode = remains.mode.map(|mode| if mode == "clean" { mode } else { "log" });
        }
    }
    if shared.plan.rot && site.life as u32 + 1 == shared.plan.deaths {
        rot(shared, &world.files(0), draw);
        remains.mode = None;
    }
}

/// A start on the host that is cut off is refused. Then the link is mended; or the other host goes on, if what this one
/// had changed is in memory.
fn start_cut_off(shared: &Arc<Shared>, world: &World, site: &Site, remains: &mut Remains, draw: &mut Random) {
    let host = remains.host;
    if draw.one_in(2) {
        let (shared, site) = (shared.clone(), site.clone());
        world
            .process(host, "refused", move || is_refused(&shared, &site))
            .join();
    }
    if draw.one_in(2) {
        world.mend_link(host, 0);
        remains.cut_off = None;
    }
}

/// Flips bits of the disk for good: in pages and their copies, where checksums tell.
fn rot(shared: &Shared, files: &MemFs, draw: &mut Random) {
    shared.befalls("faults: bits flipped on the disk for good");
    for _ in 0..draw.pick(&[1, 20, 400]) {
        let part = draw.pick(&[".pages", ".pages", ".pages", "doublewrite"]);
        if let Some((path, offset)) = files.flip_any(part, &mut |n| draw.below(n)) {
            shared.step(format!("a bit of {}, byte {offset}, is flipped", path.display()));
        }
    }
}

/// The part of a region's header that is written anew at each change of state, in one of two places by turns: the other
/// one counts where one is spoilt.
const STATE: std::ops::Range<u64> = 1024..1280;

/// Whatever went wrong between caches is a fault of the engine: it writes no line that another host may hold.
fn look_at_caches(shared: &Shared, world: &World) {
    let hazards = world.hazards();
    // A killed process leaves changed lines in its host's cache. Written back when the next one on this host drops
    // them, they are what they should be, unless another host was there in between.
    let alone = shared.plan.hosts == 1;
    let harmless = |h: &&Hazard| h.kind == HazardKind::DirtyInvalidated && (alone || STATE.contains(&h.offset));
    let first = hazards.first.iter().find(|h| !harmless(h));
    let all: u64 = hazards.counts.values().sum();
    if let Some(hazard) = first {
        shared.fail(format!("one of {all} hazards between caches: {hazard}"));
    }
}

/// The host's name and epoch, as a memory pool counts them, in half of the worlds with a device.
fn origin(plan: &Plan, host: usize, lost: u64) -> Option<Origin> {
    let is_pool = plan.device && plan.seed.is_multiple_of(2);
    is_pool.then(|| Origin::host(&format!("host-{host}"), 1 + lost))
}

/// Runs one life from outside; what it leaves.
fn one_life(
    shared: &Arc<Shared>,
    world: &World,
    host: usize,
    site: &Site,
    region: Region,
    draw: &mut Random,
) -> Remains {
    shared.begin_life();
    let plan = &shared.plan;
    let last = site.life == plan.deaths as usize;
    // With bits of its disk flipped, a database need not come to an end in order.
    let rotten = last && plan.rot && site.life > 0;
    if rotten {
        shared.spoil_disk(false);
    }
    let files = world.files(host);
    let drawn = planned_death(plan, site, (last, rotten), draw);
    let process = live_until(drawn, shared, world, host, site, draw);
    // From here to the end no preemption point is passed: all that is left is of one moment.
    shared.history().died();
    let (ready, itself) = (shared.is_ready(), ended_itself(shared, rotten));
    let death = match drawn {
        Death::Order | Death::Kill if itself => Death::Itself,
        drawn => drawn,
    };
    let gives_up = plan.leaving(site.life).gives_up;
    shared.history().passes_on(death == Death::Order, gives_up);
    match death {
        Death::Order | Death::Itself => {}
        Death::Kill | Death::DeviceLoss => process.kill(),
        Death::LinkLoss => world.cut_link(host, 0),
        Death::HostLoss | Death::PowerCut => world.lose_host(host),
    }
    if rotten {
        judge_reads(shared);
    }
    shared.befalls(death.name());
    if site.aside || !death.keeps_memory(plan.host) {
        shared.pages().loses_memory();
    }
    let mode = expected_recovery(death, ready, plan, site);
    let region = region_after(death, region, plan, world);
    let spoiled = shared.is_disk_bad();
    heal(&files);
    Remains {
        region,
        mode: mode.filter(|_| !spoiled && !site.aside),
        host,
        may_move: !matches!(death, Death::Kill | Death::Itself),
        cut_off: (death == Death::LinkLoss).then_some(host),
        // A machine check resets the host, as the device has it too: what its caches had is gone.
        lost: u64::from(matches!(death, Death::HostLoss | Death::PowerCut | Death::LinkLoss)),
    }
}

/// How a life is to end.
fn planned_death(plan: &Plan, site: &Site, (last, rotten): (bool, bool), draw: &mut Random) -> Death {
    let before_rot = plan.rot && site.life as u32 + 1 == plan.deaths;
    match (last, rotten) {
        (_, true) => Death::Kill,
        (true, _) => Death::Order,
        // What is in memory needs no disk.
        _ if before_rot && !draw.one_in(4) => Death::PowerCut,
        _ if plan.leaving(site.life).in_order => Death::Order,
        _ => death(plan, draw),
    }
}

/// Runs an engine until the moment of its end: its process, which is there still unless the end is one in order.
fn live_until(
    death: Death,
    shared: &Arc<Shared>,
    world: &World,
    host: usize,
    site: &Site,
    draw: &mut Random,
) -> Process {
    let (plan, files) = (&shared.plan, world.files(host));
    let last = site.life == plan.deaths as usize;
    let slow = draw.pick(&[150, 150, 150, 2_000]);
    files.set_sync_time(Nanos::from_micros(draw.below(slow)));
    let ends_a_process = [Death::Kill, Death::PowerCut, Death::HostLoss, Death::DeviceLoss];
    let may_end = !last && ends_a_process.contains(&death);
    plan.hunt.begin_life(&files, may_end, draw);
    let process = {
        let (shared, site) = (shared.clone(), site.clone());
        world.process(host, "engine", move || live(&shared, &site))
    };
    let early = !last && matches!(plan.name, Name::Crash | Name::Tiered | Name::Pages) && draw.one_in(3);
    let early = early && plan.hunt.end != Some(Ends::Within);
    await_end(shared, world, site, &process, (early, may_end), draw, &files);
    if death == Death::Order {
        shared.stop();
        // They may wait for a transaction that is left.
        if plan.leaving(site.life).leaves {
            shared.cancel().set();
        }
        if let Exit::Panicked(why) = process.join() {
            shared.fail(format!("life {}: {why}", site.life));
        }
    }
    mark::strike(None);
    if death == Death::DeviceLoss {
        world.lose_device(0);
        await_machine_check(&process, draw);
    }
    process
}

/// How the next life has to recover; `None`: any way. `ready`: the life that has ended had recovered.
fn expected_recovery(death: Death, ready: bool, plan: &Plan, site: &Site) -> Option<&'static str> {
    match death {
        Death::Order => Some("clean"),
        Death::Kill | Death::Itself | Death::PowerCut if ready && plan.tier.is_some() => Some("log"),
        Death::Kill | Death::Itself if ready => Some("instant"),
        Death::HostLoss | Death::LinkLoss if ready && plan.host => Some("instant"),
        // What its caches had is lost with it: whatever is in the region, it is not believed.
        Death::HostLoss if ready && plan.device => Some("log"),
        Death::DeviceLoss if ready => Some("log"),
        // It was killed in its recovery.
        Death::Kill | Death::Itself => site.mode.filter(|mode| *mode == "instant"),
        Death::HostLoss | Death::PowerCut | Death::LinkLoss | Death::DeviceLoss => None,
    }
}

/// The region that the next life finds.
fn region_after(death: Death, region: Region, plan: &Plan, world: &World) -> Region {
    if death != Death::PowerCut {
        return region.after_kill(plan);
    }
    if plan.device {
        world.lose_device(0);
    }
    Region::new(plan)
}

/// An engine whose memory device is gone lives as long as its cache has all that it needs.
fn await_machine_check(process: &Process, draw: &mut Random) {
    let turns = draw.pick(&[0, 10, 200]);
    for _ in 0..turns {
        if !process.is_running() {
            return;
        }
        rt::sleep(Nanos::from_micros(20));
    }
}

/// After the last life of a database with flipped bits, which is not recovered: what sessions were told must have been
/// right. A commit that was asked for and had its place in the log may have been seen by others.
fn judge_reads(shared: &Shared) {
    let mut history = shared.history();
    for txn in history.txns.iter_mut().filter(|txn| txn.end == End::Open) {
        txn.end = if txn.cts == 0 { End::Aborted } else { End::Committed };
    }
    let mut problems = serial::check(&history);
    problems.extend(adya::check(&history));
    drop(history);
    problems
        .into_iter()
        .for_each(|problem| shared.fail(format!("with flipped bits: {problem}")));
}

/// The disk is whole again.
fn heal(files: &MemFs) {
    files.heal();
}

fn death(plan: &Plan, draw: &mut Random) -> Death {
    match plan.hunt.shows_after() {
        Some(death) if draw.one_in(2) => return death,
        _ => {}
    }
    match (plan.name, draw.below(8)) {
        (Name::HostLoss, 0..5) => Death::HostLoss,
        (Name::Handover, 0..4) => Death::Order,
        (Name::Handover, 4..6) => Death::HostLoss,
        (Name::DeviceLoss, 0..3) => Death::DeviceLoss,
        (Name::DeviceLoss, 3..5) => Death::LinkLoss,
        (Name::DeviceLoss, 5) => Death::HostLoss,
        (Name::DeviceLoss, 6) => Death::Order,
        (Name::Pages, 0..4) if plan.device && plan.host => Death::HostLoss,
        (Name::Pages, 0) if plan.device => Death::HostLoss,
        (Name::Pages, 7) => Death::Order,
        (Name::Tiered | Name::Pages, 0..3) => Death::PowerCut,
        (Name::Tiered, 3) => Death::Order,
        (Name::Crash, 0..4) | (Name::Transactions | Name::Ddl | Name::Disk | Name::Backup | Name::Sql, 1..3) => {
            Death::PowerCut
        }
        (Name::Transactions | Name::Ddl | Name::Disk | Name::Backup | Name::Sql, 0) => Death::Order,
        _ => Death::Kill,
    }
}

/// Waits until the life has done its part, and spoils the disk on the way, if this is the world for it.
fn await_end(
    shared: &Arc<Shared>,
    world: &World,
    site: &Site,
    process: &Process,
    (early, may_end): (bool, bool),
    draw: &mut Random,
    files: &MemFs,
) {
    let leaving = shared.plan.leaving(site.life);
    let leaves = leaving.leaves;
    if early {
        if leaves && draw.one_in(2) {
            shared.begin_to_leave();
        }
        rt::sleep(Nanos(draw.below(3_000_000)));
        return;
    }
    let lives = u64::from(shared.plan.deaths) + 1;
    let goal = shared.plan.transactions * (site.life as u64 + 1) / lives;
    let spoiled_at = match shared.plan.name {
        Name::Disk => shared.ended() + draw.below(goal.saturating_sub(shared.ended())),
        _ => u64::MAX,
    };
    let last = site.life == shared.plan.deaths as usize;
    // A partition that lasts until the end: storage goes on, and remote memory stays what it was. Other lives are calm:
    // the next one finds much of what they had.
    let (parted_at, calm) = match site.far.as_ref().map(|_| draw.below(4)) {
        Some(0) => (shared.ended() + goal.saturating_sub(shared.ended()) / 2, true),
        kind => (u64::MAX, kind != Some(3)),
    };
    let mut bad_for = 0;
    let mut watch = Watch::default();
    while shared.ended() < goal && !shared.has_failed() && process.is_running() {
        rt::sleep(Nanos::from_micros(20));
        watch.look(shared);
        if mark::is_struck() {
            return shared.befalls("ends at a pass");
        }
        if let Some(transactions) = shared.plan.hunt.is_behind().filter(|_| may_end) {
            return await_some(shared, transactions);
        }
        if leaving.ends_taken && shared.history().is_any_taken() {
            shared.befalls("ends when a transaction that was left is taken up");
            return rt::sleep(Nanos(draw.below(300_000)));
        }
        if shared.ended() >= spoiled_at && !shared.is_disk_bad() && !last {
            spoil(shared, draw, files);
        }
        if draw.one_in(400) {
            disturb(shared, world, draw);
        }
        if let Some(far) = &site.far {
            if shared.ended() >= parted_at {
                far.cut(shared);
            } else if !calm && draw.one_in(300) {
                far.befall(shared, draw);
            }
        }
        // Sessions that are refused do not end transactions for ever.
        bad_for += u64::from(shared.is_disk_bad());
        if bad_for > 200 {
            break;
        }
    }
    if leaves {
        shared.begin_to_leave();
        let most = draw.pick(&[100_000, 1_000_000]);
        rt::sleep(Nanos(draw.below(most)));
    }
    // Half of the time at a moment when pages are being written.
    for _ in 0..if draw.one_in(2) { 200 } else { 0 } {
        if shared.is_saving() {
            break;
        }
        rt::sleep(Nanos::from_micros(10));
    }
    rt::sleep(Nanos(draw.below(150_000)));
}

/// Turns of 20 us in which sessions at work may end no transaction: the slowest disks have a statement wait for a
/// second or two. Turns are counted, as a schedule may let deadlines come early, and clocks jump.
const HANGS: u64 = 500_000;

/// How often nothing was seen to have ended since something had.
#[derive(Default)]
struct Watch {
    ended: u64,
    turns: u64,
}

impl Watch {
    /// Sessions that wait for each other do so for ever.
    fn look(&mut self, shared: &Shared) {
        let goes_on = shared.ended() != self.ended || !shared.is_ready() || shared.is_disk_bad();
        (self.ended, self.turns) = (shared.ended(), if goes_on { 0 } else { self.turns + 1 });
        if self.turns == HANGS {
            shared.fail("sessions stand still: no transaction has ended for 10 s".into());
        }
    }
}

/// The life ends behind a window in which a thread stood still: at once, or when a few transactions more have ended.
fn await_some(shared: &Shared, transactions: u64) {
    shared.befalls("ends behind a window");
    let (goal, end) = (shared.ended() + transactions, rt::now() + Nanos::from_millis(20));
    while shared.ended() < goal && rt::now() < end {
        rt::sleep(Nanos::from_micros(20));
    }
}

/// A pause of a host, or a step of its clock: neither may do harm.
fn disturb(shared: &Shared, world: &World, draw: &mut Random) {
    let host = draw.below(shared.plan.hosts as u64) as usize;
    if draw.one_in(2) {
        shared.befalls("faults: pause");
        world.pause(host, Nanos(draw.below(2_000_000)));
    } else {
        shared.befalls("faults: clock step");
        world.step_clock(host, draw.below(20_000_000) as i64 - 10_000_000);
    }
}

/// Whether the process has ended itself. It may where the log failed in the middle of a mini-transaction, on a disk
/// that this world has spoilt, or where it met pages with flipped bits, and for no other reason.
fn ended_itself(shared: &Shared, rotten: bool) -> bool {
    let reasons = fault::ended();
    let is_due = |why: &&Error| rotten || shared.may_log_fail() && matches!(why, Error::LogFailed(_));
    if let Some(why) = reasons.iter().find(|why| !is_due(why)) {
        shared.fail(format!("the process ended itself: {why}"));
    }
    !reasons.is_empty()
}

/// Brings a fault of the disk.
fn spoil(shared: &Shared, draw: &mut Random, files: &MemFs) {
    let kind = draw.below(6);
    shared.spoil_disk(matches!(kind, 3 | 4));
    match kind {
        4 => {
            shared.befalls("faults: a failing disk");
            files.set_plan(FaultPlan::failing(draw.word()), draw.word());
        }
        5 => {
            shared.befalls("faults: flipped bits of reads");
            let flipped_read = [0.001, 0.01][draw.below(2) as usize];
            let plan = FaultPlan {
                flipped_read,
                ..FaultPlan::default()
            };
            files.set_plan(plan, draw.word());
        }
        0 => {
            shared.befalls("faults: short transfers");
            files.tear_transfers(draw.word());
        }
        1 => {
            shared.befalls("faults: slow syncs");
            files.set_sync_time(Nanos::from_millis(1 + draw.below(20)));
        }
        2 => {
            shared.befalls("faults: full disk");
            files.set_capacity(Some(files.used() + draw.below(1 << 20)));
        }
        _ => {
            shared.befalls("faults: failed sync");
            files.fail_syncs(draw.below(20), 1);
        }
    }
}
