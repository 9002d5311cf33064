//! The program of a pod: keeps its part, hosts it, and looks after the dead.
//!
//! ```text
//!   calls ─► host      desk ─► keeper      mover: extents at random to anywhere      this thread: ends what the dead had, reports
//! ```

use cenote_base::random::Random;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cenote_base::Result;
use cenote_base::rt::{self, Nanos};
use cenote_fabric::RegionOptions;
use cenote_space::{HeatOptions, Host, HostOptions, Hosts, Keeper, LocalKeeper, Part, PartOptions, Peer};

use super::keeper_service::KeeperService;
use super::members::Mark;
use super::role::{EXTENT, Role};
use super::stage::{KEY, Phase, Report, SPACE, Stage, device, part_number, pod_name};
use crate::clock;
use crate::rdma::Serving;

const TURN: Nanos = Nanos::from_micros(300);
/// Moves at random that a program tries: users may have to wait for half a minute, and would see thousands.
const MOVES_MOST: u32 = 200;

/// The body of a program's process.
pub(in crate::worlds) fn run(stage: &Arc<Stage>, pod: usize, role: Role) {
    if let Err(error) = host(stage, pod, role) {
        stage.shared.fail(format!("the program of pod {pod}: {error}"));
    }
}

fn host(stage: &Arc<Stage>, pod: usize, role: Role) -> Result<()> {
    let part = Arc::new(match role.makes {
        true => make(stage, pod)?,
        false => Part::open(&device(pod), RegionOptions::default())?,
    });
    if stage.pods.twin == Some(pod) {
        part.share()?;
    }
    let keeper = Arc::new(LocalKeeper::new(part)?);
    let going_on = stage.members().lock().going_on(part_number(pod));
    going_on.iter().try_for_each(|session| keeper.readmit(*session))?;
    // One that had ended while a slab of its was frozen stands there still.
    let mut nobodys = keeper.sessions();
    nobodys.retain(|session| !going_on.contains(session));
    nobodys.into_iter().try_for_each(|session| keeper.end(session))?;
    let host = Arc::new(Host::start(Arc::clone(&keeper), options(stage, pod, role))?);
    for other in (0..stage.count()).filter(|other| *other != pod) {
        let peer = Peer {
            pod: pod_name(other),
            channel: stage.channel(pod, other),
        };
        host.set_peer(part_number(other), peer);
    }
    let hosts = serve(stage, pod, &host);
    let stop = Arc::new(AtomicBool::new(false));
    let mover = {
        let (stage, host, stop) = (Arc::clone(stage), Arc::clone(&host), Arc::clone(&stop));
        rt::spawn("mover", move || move_at_random(&stage, pod, &host, &stop))
    };
    let mut given_up = BTreeSet::new();
    while !stage.is_to_end(pod) {
        look_after(stage, pod, (&host, &hosts), &mut given_up)?;
        rt::sleep(TURN);
    }
    stop.store(true, SeqCst);
    let _ = mover.join();
    // Its threads end with it.
    drop(host);
    Ok(())
}

fn make(stage: &Stage, pod: usize) -> Result<Part> {
    let options = PartOptions {
        space: SPACE,
        part: part_number(pod),
        tenant: 0,
        bytes: (stage.pods.extents + 1) * EXTENT,
        movable: true,
        region: RegionOptions::default(),
    };
    Part::create(&device(pod), &options)
}

fn options(stage: &Stage, pod: usize, role: Role) -> HostOptions {
    let heat = HeatOptions::default();
    HostOptions {
        pod: pod_name(pod),
        key: KEY,
        members_only: true,
        heat: HeatOptions {
            hot: if role.moves { heat.hot } else { f64::MAX },
            // A world is short: what few accesses tell moves extents already.
            doubt: 0.0,
            ..heat
        },
        every: role.every,
        stay: stage.pods.stay,
        timeout: stage.pods.timeout,
        ..HostOptions::default()
    }
}

/// Starts the threads that answer users; returns when they do.
fn serve(stage: &Arc<Stage>, pod: usize, host: &Arc<Host>) -> Arc<Hosts> {
    let hosts = Arc::new(Hosts::default());
    hosts.add(host);
    let keeper_service = KeeperService {
        stage: Arc::clone(stage),
        keeper: Arc::clone(host.keeper()),
        hosts: Arc::clone(&hosts),
    };
    let serving = Arc::clone(&hosts);
    let (calls, desks) = stage.nodes(pod);
    let (calls, desks) = (calls.clone(), desks.clone());
    rt::spawn("calls", move || calls.serve(&*serving, Serving::default()));
    rt::spawn("keeper", move || desks.serve(&keeper_service, Serving::default()));
    let (calls, desks) = stage.nodes(pod);
    while !calls.is_served() || !desks.is_served() {
        rt::sleep(Nanos::from_micros(1));
    }
    stage.set_ready(pod);
    hosts
}

/// What the dead and the fenced had comes back, when nothing of them can land in any pod; the controller hears what it
/// has asked for.
fn look_after(stage: &Stage, pod: usize, (host, hosts): (&Host, &Hosts), given_up: &mut BTreeSet<Mark>) -> Result<()> {
    let (now, part, alive) = (clock::now(), part_number(pod), stage.alive());
    let gone = stage.members().lock().to_close(pod, now);
    for mark in gone {
        if hosts.close(SPACE, mark.into()) {
            stage.members().lock().close(pod, mark);
        }
    }
    let (over, dead) = {
        let members = stage.members().lock();
        (members.over(part, &alive), members.dead(now))
    };
    for session in over {
        host.keeper().end(session)?;
        stage.members().lock().ended((part, session));
    }
    if !dead.is_subset(given_up) {
        host.give_up(|mark| dead.contains(&mark));
        *given_up = dead;
    }
    if stage.is_asked(pod) {
        let report = Report {
            problems: host.keeper().audit()?,
            placement: host.keeper().placement(),
            moved: host.moved(),
        };
        stage.report(pod, report);
    }
    Ok(())
}

/// Moves extents that hold objects, wherever they lie, to anywhere.
fn move_at_random(stage: &Stage, pod: usize, host: &Host, stop: &AtomicBool) {
    let (mut draw, mut left, mut failed) = (Random(rt::random()), MOVES_MOST, None);
    while left > 0 && stage.pods.moves > Nanos::ZERO && !stop.load(SeqCst) && stage.phase() == Phase::Wild {
        rt::sleep(Nanos(draw.below(2 * stage.pods.moves.raw())));
        let any = stage.model.any_extent(part_number(pod), draw.word());
        let drawn = any.map(|extent| (extent, part_number(draw.below(stage.count() as u64) as usize)));
        // What is hot elsewhere is so still: orders of the first try may come during the second.
        let again = failed.take().filter(|_| !draw.one_in(3));
        let Some((extent, to)) = again.or(drawn) else {
            continue;
        };
        left -= 1;
        match host.relocate(extent, to) {
            Ok(()) => stage.shared.count("moves"),
            // Full, busy, on its way already, or a member cannot be reached: it stays, or the way it went is found out.
            Err(_) => {
                stage.shared.count("moves that failed");
                failed = Some((extent, to));
            }
        }
    }
}
