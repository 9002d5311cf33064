//! A memory node, as far as the world has one: it keeps the part, serves it, and keeps it mirrored.

use std::path::Path;
use std::sync::Arc;

use cenote_base::Result;
use cenote_base::rt::{self, Event, Nanos};
use cenote_fabric::mirror::{RemoteMirror, RemoteOptions};
use cenote_fabric::rdma::{Fabric, RemoteMemory};
use cenote_fabric::{FileRange, Region, RegionOptions, SharedDevice};
use cenote_space::{Host, HostOptions, Hosts, Keeper, LocalKeeper, Part, PartOptions, SessionId};

use super::service::KeeperService;
use super::stage::{EXTENT, EXTENTS, KEY, Lent, PART, Report, SPACE, Stage, device};
use crate::rdma::Serving;

const TURN: Nanos = Nanos::from_micros(300);
/// Between two looks at the mirror.
const LOOK: Nanos = Nanos::from_millis(20);
/// Between two steps of filling: users are served beside it.
const PACE: Nanos = Nanos::from_micros(100);

/// What a keeper begins with.
pub(super) enum Begins {
    /// Nothing: it makes the part.
    Anew,
    /// What a former process has left in the memory of its host.
    There,
    /// What a mirror has.
    With(Arc<Vec<u8>>),
}

/// The body of a keeper's process, which runs until it is killed.
pub(super) fn run(stage: &Arc<Stage>, (number, host): (u64, usize), begins: Begins) {
    if let Err(error) = keep(stage, (number, host), begins) {
        stage.shared.fail(format!("keeper {number}: {error}"));
    }
}

fn keep(stage: &Arc<Stage>, (number, host): (u64, usize), begins: Begins) -> Result<()> {
    // What the mirror of before lacks is not known.
    stage.void(number);
    let part = Arc::new(open(stage, host, begins)?.into_mirrored());
    let mirrored = Mirrored {
        stage: Arc::clone(stage),
        number,
        host,
        part: Arc::clone(&part),
    };
    rt::spawn("mirror", move || mirrored.keep());
    let keeper = Arc::new(LocalKeeper::new(Arc::clone(&part))?);
    readmit(stage, &keeper)?;
    let host = Arc::new(Host::start(Arc::clone(&keeper), options())?);
    serve(stage, number, &host);
    loop {
        if stage.is_keeper(number) {
            look_after(stage, &keeper)?;
        }
        rt::sleep(TURN);
    }
}

fn open(stage: &Stage, host: usize, begins: Begins) -> Result<Part> {
    let path = device(host);
    match begins {
        Begins::Anew => return make(&path),
        Begins::With(image) => {
            let (offset, bytes) = (0, image.len() as u64);
            if SharedDevice::open(&path)?.len() < bytes {
                // An empty device is in the place of one that was lost.
                drop(make(&path)?);
            }
            let memory = SharedDevice::open(&path)?.map(FileRange { offset, bytes })?;
            memory.span(0, bytes).copy_in(0, &image);
            stage.placed();
        }
        Begins::There => {}
    }
    Part::open(&path, RegionOptions::default())
}

fn make(path: &Path) -> Result<Part> {
    let options = PartOptions {
        space: SPACE,
        part: PART,
        tenant: 0,
        bytes: (EXTENTS + 1) * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    Part::create(path, &options)
}

fn options() -> HostOptions {
    HostOptions {
        pod: "node".into(),
        key: KEY,
        // What is mirrored does not move.
        every: Nanos::ZERO,
        ..HostOptions::default()
    }
}

/// Sessions of former keepers go on, but those whose users need them no more.
fn readmit(stage: &Stage, keeper: &LocalKeeper) -> Result<()> {
    let begun = (1..)
        .map(SessionId)
        .take_while(|session| keeper.readmit(*session).is_ok());
    let over: Vec<SessionId> = begun.filter(|session| stage.is_over(*session)).collect();
    over.into_iter().try_for_each(|session| keeper.end(session))
}

/// Starts the threads that answer users; returns when they do.
fn serve(stage: &Arc<Stage>, number: u64, host: &Arc<Host>) {
    let hosts = Arc::new(Hosts::default());
    hosts.add(host);
    let keeper_service = KeeperService {
        stage: Arc::clone(stage),
        keeper: Arc::clone(host.keeper()),
    };
    let nodes = stage.nodes(number);
    let (calls, desk) = (nodes.calls.clone(), nodes.desk.clone());
    rt::spawn("calls", move || calls.serve(&*hosts, Serving::default()));
    rt::spawn("desk", move || desk.serve(&keeper_service, Serving::default()));
    while !nodes.calls.is_served() || !nodes.desk.is_served() {
        rt::sleep(Nanos::from_micros(1));
    }
    stage.serves(number);
}

/// Sessions that were given up end; the controller hears what it has asked for.
fn look_after(stage: &Stage, keeper: &LocalKeeper) -> Result<()> {
    let ends_all = stage.ends_all();
    let sessions = keeper.sessions().into_iter();
    let over = sessions.filter(|session| ends_all || stage.is_over(*session));
    over.collect::<Vec<_>>()
        .into_iter()
        .try_for_each(|session| keeper.end(session))?;
    if ends_all {
        stage.ended_all();
    }
    if stage.is_asked() {
        stage.report(Report {
            problems: keeper.audit()?,
            objects: keeper.placement().objects,
        });
    }
    Ok(())
}

/// Keeps the part mirrored, as `pool/node/mirroring.rs` and `pool/holder/mirror.rs` do.
struct Mirrored {
    stage: Arc<Stage>,
    number: u64,
    host: usize,
    part: Arc<Part>,
}

/// What is attached.
struct Attached {
    number: u64,
    mirror: Arc<RemoteMirror>,
    is_filled: bool,
}

impl Mirrored {
    /// Until another keeps the part.
    fn keep(&self) {
        let bell = Arc::<Event>::default();
        let mut attached = None;
        while self.stage.is_keeper(self.number) {
            if !self.turn(&mut attached, &bell) {
                break;
            }
            if bell.wait_timeout(LOOK) {
                bell.reset();
            }
        }
        self.part.withdraw();
        self.stage.shared.befalls("keepers that heard of another");
    }

    /// Whether this is the keeper still.
    fn turn(&self, attached: &mut Option<Attached>, bell: &Arc<Event>) -> bool {
        let region = self.part.region();
        if attached
            .as_ref()
            .is_some_and(|attached| attached.mirror.lost().is_some())
        {
            self.stage.shared.befalls("mirrors lost by their keepers");
            // The table knows before anything is acknowledged that the mirror lacks.
            if !self.stage.void(self.number) {
                return false;
            }
            if let Some(attached) = attached.take() {
                attached.mirror.give_up();
            }
            region.detach_mirror();
        }
        if attached.is_none() {
            // Members are served meanwhile.
            rt::sleep(self.stage.seeking());
            let Some(lent) = self.stage.lend(self.number, region.len()) else {
                return false;
            };
            match self.attach(region, &lent, bell) {
                Ok(found) => *attached = Some(found),
                // Another is sought at the next look.
                Err(_) => return self.stage.void(self.number),
            }
        }
        if let Some(attached) = attached.as_mut().filter(|attached| !attached.is_filled) {
            self.fill(region, attached, bell);
        }
        true
    }

    fn attach(&self, region: &Region, lent: &Lent, bell: &Arc<Event>) -> Result<Attached> {
        let endpoint = self.stage.network.port(self.host).connect(&lent.node.name())?;
        let bell = Arc::clone(bell);
        let options = RemoteOptions {
            believed: false,
            // Users that wait are told.
            patience: Nanos::ZERO,
            on_lost: Box::new(move |_| bell.set()),
        };
        let memory = RemoteMemory::new(Arc::clone(&endpoint), lent.memory);
        let mirror = Arc::new(RemoteMirror::begin(
            memory,
            RemoteMemory::new(endpoint, lent.journal),
            options,
        )?);
        region.attach_mirror(Arc::clone(&mirror) as _)?;
        Ok(Attached {
            number: lent.number,
            mirror,
            is_filled: false,
        })
    }

    fn fill(&self, region: &Region, attached: &mut Attached, bell: &Event) {
        let mut at = 0;
        loop {
            let next = region.fill_mirror_step(at);
            if attached.mirror.lost().is_some() {
                return bell.set();
            }
            if next == at {
                break;
            }
            at = next;
            rt::sleep(PACE);
        }
        attached.is_filled = true;
        attached.mirror.set_whole();
        match attached.mirror.lost() {
            Some(_) => bell.set(),
            None => self.stage.whole(self.number, attached.number),
        }
    }
}
