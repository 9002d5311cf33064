//! Opening a pool: which region, is it believed, and what then.
//!
//! ```text
//! region there? ─ no ─▶ make one ──────────────────────────────────────────▶ replay the log
//!   │ yes                      ▲                                                   ▲
//!   ├ of another database ─▶ error, untouched                                      │
//!   ├ other incarnation, size or format ─▶ discard: make it anew ──────────────────┤
//!   └ ours, of the last start ─▶ log: does its ring fit the files? ─ no ─▶ wipe ───┘
//!                                   │ yes
//!                                   ▼
//!                               repair (recover.rs)
//! ```
//!
//! A start takes over in this order, so that one that dies in the middle is followed by one that finds the
//! same state or a complete one (rule 6): epoch in the region (latches of before are dead) · log made
//! whole and durable · frames repaired · new incarnation noted in the region as *next* · in the control
//! file · in the region as its own. A region is believed if its own or its next incarnation is the control file's.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use cenote_base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_base::rt::fault::{Fault, planted};
use cenote_base::rt::{self, JoinHandle, Local, Mutex};
use cenote_base::{Error, Lsn, Result};
use cenote_fabric::{
    self as fabric, Identity, Kind as RegionKind, Origin, Region, RegionOptions, coherence, default_path,
};
use cenote_storage::{Control, DataDir, RingPlace, RingUse, Storage, StorageOptions, StorageReport, Survive};

use crate::access_trace::Observed;
use crate::background;
use crate::changed::ChangedSectors;
use crate::config::{Config, Kind};
use crate::dirty::DirtyFrames;
use crate::frame::Frames;
use crate::hash::PageHash;
use crate::in_flight::TransfersInFlight;
use crate::known_changes::KnownChanges;
use crate::latch::{Owner, Parking};
use crate::layout::{DOUBTING, Geometry, LINE, POOL_FORMAT, POOL_MAGIC, PoolHeader};
use crate::lower::{Lower, OnlyStorage};
use crate::overtaken::OvertakenFrames;
use crate::pod_tier::PodTier;
use crate::pool::{Pool, Signals};
use crate::report::{Mode, RecoveryReport};
use crate::slots::Slots;
use crate::spaces::SpaceFrames;
use crate::stats::Stats;
use crate::sweep::Sweep;
use crate::tiered::{ReaderTier, Tier};
use crate::words::LsnWord;

/// Words of the region's state that are the pool's.
const NEXT_LOW: usize = 0;
const NEXT_HIGH: usize = 1;
/// Host that used the region last ([`Origin::number`]), what it wrote it to survive, and the host's epoch.
pub(crate) const HOST: usize = 2;
pub(crate) const SURVIVE: usize = 3;
pub(crate) const HOST_EPOCH: usize = 5;
/// 1 from the first step of a start that has to recover as after the loss of a host, until it has.
pub(crate) const OWED: usize = 6;
/// Epoch at which the last recovery looked at every descriptor: no shared count of an earlier one is left.
pub(crate) const SURVEYED: usize = 4;
/// Values that an epoch has in a latch word: 1 to 255.
pub(crate) const EPOCHS: u64 = 255;
/// Which start serves the frames to readers of the pod: [`PoolHeader::served`].
const SERVED_AT: u64 = Geometry::HEADER_AT + std::mem::offset_of!(PoolHeader, served) as u64;
/// Bytes of frames that are there before a start goes on; the rest is reserved in the background.
const FIRST_FRAMES: u64 = 4 << 20;

/// A region as it was found or made.
struct Opened {
    region: Arc<Region>,
    geometry: Geometry,
    /// Whether what is in it may be believed, as far as headers say.
    believed: bool,
    /// Whether its frames were a reader's of this process ([`Config::kept`]).
    was_read: bool,
    remarks: Vec<String>,
}

/// The pool and its threads. Dropping it ends the threads and leaves region and storage as they are, as the
/// end of the process would; [`BufferPool::shutdown`] writes all back first.
pub struct BufferPool {
    pool: Arc<Pool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Deref for BufferPool {
    type Target = Pool;
    #[inline(always)]
    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl BufferPool {
    /// Opens the pool and the storage in `dir`, and recovers.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a region of another database, [`Error::Busy`] for one in use, [`Error::Full`] when
    /// memory is short; those of storage.
    pub fn open(config: Config, dir: DataDir) -> Result<(BufferPool, RecoveryReport)> {
        let begun = rt::now();
        config.check()?;
        let control = dir.control().get();
        let opened = open_region(&config, &control, &dir)?;
        if let Some(mirror) = &config.mirror {
            // Before anything is flushed: a mirror that is whole stays so.
            mirror.begin(&opened.region)?;
        }
        serve_none(&opened.region);
        let (left, host) = (opened.region.state(), Survive::Host);
        if opened.believed && config.survive == host && left.words[SURVIVE] != host as u64 && !left.clean {
            // What was to survive a process alone is in this host's caches.
            opened.region.write_back_all();
        }
        let epoch = take_over(&opened.region, &config);
        let place = RingPlace {
            region: Arc::clone(&opened.region),
            offset: Geometry::RING_AT,
            length: opened.geometry.ring_len,
        };
        let mut options = StorageOptions::new(place);
        options.believe_ring = opened.believed;
        options.survive = config.survive;
        options.segment_bytes = config.segment_bytes;
        options.background = config.background;
        let (storage, found) = dir.storage(options)?;
        if let Some(most) = config.keeps_log {
            storage.log().keep_most(most);
            storage.log().keep_from(Lsn::ZERO);
        }
        let mut report = RecoveryReport::new(if control.clean { Mode::Clean } else { Mode::Log });
        let lower = lower(&config, &storage, &mut report)?;
        let pool = Arc::new(build(&config, &opened, storage, lower, epoch)?);
        let me = Arc::downgrade(&pool);
        pool.me.get_or_init(|| me);
        recover(&pool, &config, opened, &found, &control, &mut report)?;
        begin(&pool)?;
        report.duration = rt::now().since(begun);
        let threads = if config.background {
            background::start(&pool)
        } else {
            Vec::new()
        };
        Ok((
            BufferPool {
                pool,
                threads: Mutex::new(threads),
            },
            report,
        ))
    }

    /// Writes all pages back, takes a checkpoint, and marks database and region clean. No mini-transaction may
    /// be under way, and none may follow.
    ///
    /// # Errors
    /// Those of storage; the next start recovers then.
    pub fn shutdown(&self) -> Result<()> {
        self.end_threads();
        self.pool.flush_all()?;
        self.pool.storage.log().flush_all()?;
        let position = self.pool.checkpoint()?;
        self.pool.storage.pages().sync()?;
        let clean = position == self.pool.storage.log().tail();
        // Another host may be the next to open it.
        self.pool.frames.region().write_back_all();
        self.pool.storage.control().update(|c| c.clean = clean)?;
        // A mirror that may count as whole and lacks something is filled anew by the next start.
        let region = self.pool.frames.region();
        region.update_state(|s| s.clean = clean && region.mirror_behind().is_none());
        if region.mirror_behind().is_some() {
            region.update_state(|s| s.clean = false);
        }
        Ok(())
    }

    /// Ends its threads, and writes nothing.
    pub fn end(&self) {
        self.end_threads();
    }

    fn end_threads(&self) {
        self.pool.stop();
        for thread in self.threads.lock().drain(..) {
            // A panic of it has been said where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        self.end_threads();
    }
}

fn open_region(config: &Config, control: &Control, dir: &DataDir) -> Result<Opened> {
    let options = RegionOptions {
        numa_node: config.numa_node,
        range: config.range,
        ..RegionOptions::default()
    };
    if let Some(left) = &config.kept {
        return kept(config, &left.region);
    }
    if config.kind != Kind::Cxl {
        let region = Region::dram(config.size, identity(control, dir), options)?;
        return made(config, region, Vec::new());
    }
    let path = config.region.clone().unwrap_or_else(|| default_path(control.database));
    let mut remarks = Vec::new();
    match Region::open(&path, options) {
        // What a server has left there is not as of this reader's moment.
        Ok(region) if dir.is_reader() && region.identity().database == control.database => {
            refuse_others(&region, &origin(config, &region))?;
            serve_none(&region);
        }
        Ok(region) => match fits(config, control, &region)? {
            Ok(geometry) => {
                return Ok(Opened {
                    region: Arc::new(region),
                    geometry,
                    believed: true,
                    was_read: false,
                    remarks,
                });
            }
            Err(reason) => {
                serve_none(&region);
                remarks.push(format!("{} is discarded: {reason}", region.name()));
            }
        },
        Err(Error::Io {
            kind: std::io::ErrorKind::NotFound,
            ..
        }) => {}
        Err(Error::Mismatch(reason) | Error::Corrupt(reason)) => {
            // Nothing but its name can tell whose it is.
            if config.region.is_some() && !fabric::is_blank_at(&path, config.range) {
                return Err(Error::Mismatch(format!(
                    "{reason}. It may belong to something else: remove it (cenote region remove), or name another"
                )));
            }
            remarks.push(format!("region discarded: {reason}"));
        }
        Err(other) => return Err(other),
    }
    if let Some(mirror) = &config.mirror {
        mirror.before_making()?;
    }
    let region = Region::create(&path, config.size, identity(control, dir), options)?;
    made(config, region, remarks)
}

fn identity(control: &Control, dir: &DataDir) -> Identity {
    Identity {
        database: control.database,
        region: 1,
        directory: dir.path().display().to_string(),
        ..Identity::default()
    }
}

/// A region made anew: all that a start needs of it is reserved here, the rest in the background.
fn made(config: &Config, region: Region, remarks: Vec<String>) -> Result<Opened> {
    let geometry = config.geometry(region.len())?;
    region.reserve_to((geometry.pages_at + FIRST_FRAMES).min(geometry.end()))?;
    Ok(Opened {
        region: Arc::new(region),
        geometry,
        believed: false,
        was_read: false,
        remarks,
    })
}

/// The memory that a reader of this process leaves. Its redo ring is made anew.
fn kept(config: &Config, region: &Arc<Region>) -> Result<Opened> {
    let geometry = config.geometry(region.len())?;
    check_geometry(config, region, geometry).map_err(Error::Mismatch)?;
    Ok(Opened {
        region: Arc::clone(region),
        geometry,
        believed: false,
        was_read: true,
        remarks: Vec::new(),
    })
}

/// The geometry of a region that may be believed, or why it is stale.
///
/// # Errors
/// [`Error::Mismatch`] for one of another database.
fn fits(config: &Config, control: &Control, region: &Region) -> Result<std::result::Result<Geometry, String>> {
    let (identity, state) = (region.identity(), region.state());
    if identity.database != control.database {
        return Err(Error::Mismatch(format!(
            "{} belongs to database {:032x} (in {}), not to this one, {:032x}: it is left untouched",
            region.name(),
            identity.database,
            identity.directory,
            control.database
        )));
    }
    let next = u128::from(state.words[NEXT_LOW]) | u128::from(state.words[NEXT_HIGH]) << 64;
    let is_last = state.incarnation == control.incarnation || next == control.incarnation;
    if control.incarnation == 0 || !is_last && !planted(Fault::Incarnation) {
        return Ok(Err("it is not of the database's last start".into()));
    }
    let geometry = config.geometry(region.len())?;
    Ok(check_geometry(config, region, geometry).map(|()| geometry))
}

fn check_geometry(config: &Config, region: &Region, geometry: Geometry) -> std::result::Result<(), String> {
    let wanted = config.size.next_multiple_of(4096);
    if region.len() != wanted && region.kind() != RegionKind::Devdax {
        return Err(format!("it is of {} bytes, {} are wanted", region.len(), config.size));
    }
    let at = Geometry::HEADER_AT;
    let found = (
        region.atomic_u64(at).load(Ordering::Acquire),
        region.atomic_u32(at + 8).load(Ordering::Acquire),
        region.atomic_u32(at + 12).load(Ordering::Acquire),
        region.atomic_u64(at + 16).load(Ordering::Acquire),
        region.atomic_u64(at + 24).load(Ordering::Acquire),
    );
    if found
        != (
            POOL_MAGIC,
            POOL_FORMAT,
            geometry.frames,
            geometry.ring_len,
            geometry.region_len,
        )
    {
        return Err("its pool header has another format or geometry".into());
    }
    check_origin(region, &origin(config, region))
}

/// The host that this process is on.
fn origin(config: &Config, region: &Region) -> Origin {
    let machine = || Origin::booted(region.host());
    config.origin.clone().unwrap_or_else(machine)
}

/// A region that was filled to survive a process is believed where its caches are, and nowhere else: on the host that
/// filled it, in the same epoch. A clean stop has left nothing in the caches.
fn check_origin(region: &Region, here: &Origin) -> std::result::Result<(), String> {
    let state = region.state();
    let is_here = (state.words[HOST], state.words[HOST_EPOCH]) == (here.number(), here.epoch());
    let is_flushed = state.words[SURVIVE] == Survive::Host as u64 || state.clean;
    if is_flushed || is_here || !here.is_known() || planted(Fault::ForeignRegion) {
        return Ok(());
    }
    let last = match (region.user(), state.words[HOST_EPOCH]) {
        (name, _) if name.is_empty() => "another host".into(),
        (name, 0) => name,
        (name, epoch) => format!("{name}, epoch {epoch}"),
    };
    Err(format!(
        "it was filled to survive a process only (--survive host), and its host was lost or restarted: it was last \
         used on {last}, and this is {here}"
    ))
}

/// A reader makes its region anew: not one that a server of another host may have, which no lock tells.
fn refuse_others(region: &Region, here: &Origin) -> Result<()> {
    let state = region.state();
    match state.clean || state.words[HOST] == here.number() || !here.is_known() {
        true => Ok(()),
        false => Err(Error::Mismatch(format!(
            "{} was last used on another host, {}, which may use it still: name a region of its own for each server",
            region.name(),
            region.user()
        ))),
    }
}

/// Ends what readers of the pod read in the frames, before any is touched.
fn serve_none(region: &Region) {
    let at = SERVED_AT;
    if region.reserved().min(region.len()) >= at + LINE as u64 {
        region.atomic_u64(at).store(0, Ordering::SeqCst);
        coherence::flush(region, at, LINE);
    }
}

/// Where other hosts can read the frames, readers of the pod may from here on.
fn serve_pod(pool: &Pool) {
    let region = pool.frames.region();
    let is_written_back = pool.host || !region.is_beyond_caches();
    let Some(start) = start_of(&pool.storage).filter(|_| region.path().is_some() && is_written_back) else {
        return;
    };
    if region.is_beyond_caches() {
        pool.hash.write_back_from_now();
    }
    let database = pool.storage.control().get().database;
    let word = |n: usize| region.atomic_u64(SERVED_AT + 8 * n as u64);
    word(1).store(database as u64, Ordering::Relaxed);
    word(2).store((database >> 64) as u64, Ordering::Relaxed);
    coherence::flush(region, SERVED_AT, LINE);
    word(0).store(start, Ordering::SeqCst);
    coherence::flush(region, SERVED_AT, LINE);
}

/// Which start of a database on storage nodes this process is, if it is none of a reader.
fn start_of(storage: &Storage) -> Option<u64> {
    let nodes = storage.nodes().filter(|_| storage.follower().is_none());
    nodes.map(|nodes| nodes.start())
}

/// A new epoch: latches of before are dead from here on. What this start writes is in the caches of this host, and
/// survives what this start was told. So that is noted first: a start that is cut off leaves no region that says more.
fn take_over(region: &Region, config: &Config) -> u8 {
    let (here, mut epoch) = (origin(config, region), 0);
    region.note_user(here.name());
    region.update_state(|s| {
        s.epoch += 1;
        epoch = s.epoch;
        s.clean = false;
        s.words[OWED] |= u64::from(s.words[SURVIVE] == Survive::Host as u64);
        s.words[HOST] = here.number();
        s.words[HOST_EPOCH] = here.epoch();
        s.words[SURVIVE] = config.survive as u64;
    });
    match planted(Fault::EpochKept) {
        true => 1,
        false => ((epoch - 1) % EPOCHS + 1) as u8,
    }
}

fn lower(config: &Config, storage: &Arc<Storage>, report: &mut RecoveryReport) -> Result<Box<dyn Lower>> {
    let Some(source) = &config.remote else {
        return Ok(in_pod(config, storage, Box::new(OnlyStorage(Arc::clone(storage)))));
    };
    if let Some(follower) = storage.follower() {
        return Ok(in_pod(
            config,
            storage,
            Box::new(ReaderTier::open(storage, source.clone(), follower)),
        ));
    }
    // A reader that has not read remote memory knows nothing of it.
    let unknown = || KnownChanges::begin(Lsn::MAX);
    let known = config
        .kept
        .as_ref()
        .map(|left| left.known.clone().unwrap_or_else(unknown));
    Ok(Box::new(Tier::open(storage, source.clone(), known.as_ref(), report)?))
}

/// With the frames of the pod's servers before it, where a reader is to read those.
fn in_pod(config: &Config, storage: &Arc<Storage>, below: Box<dyn Lower>) -> Box<dyn Lower> {
    match storage.follower() {
        Some(_) if !config.pod_regions.is_empty() => Box::new(PodTier::new(storage, config.pod_regions.clone(), below)),
        _ => below,
    }
}

fn build(config: &Config, opened: &Opened, storage: Arc<Storage>, lower: Box<dyn Lower>, epoch: u8) -> Result<Pool> {
    let geometry = opened.geometry;
    opened.region.describe(&[
        ("header", 0, Geometry::RING_AT),
        ("ring", Geometry::RING_AT, geometry.ring_len),
        ("hash", geometry.buckets_at, geometry.slots_at - geometry.buckets_at),
        ("slots", geometry.slots_at, geometry.descriptors_at - geometry.slots_at),
        (
            "descriptors",
            geometry.descriptors_at,
            geometry.pages_at - geometry.descriptors_at,
        ),
        ("pages", geometry.pages_at, geometry.end() - geometry.pages_at),
    ]);
    let overtaken = lower.has_readers().then(|| OvertakenFrames::new(geometry.frames));
    Ok(Pool {
        frames: Frames::new(Arc::clone(&opened.region), geometry)?,
        storage,
        lower,
        hash: PageHash::new(geometry.buckets),
        slots: Slots::default(),
        parking: Parking::new(),
        stats: Stats::default(),
        kind: config.kind,
        background: config.background,
        owner: Owner::new(epoch, 0),
        host: config.survive == Survive::Host,
        list_mutex: Mutex::new(()),
        writing: (0..geometry.frames.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        changed: ChangedSectors::new(geometry.frames),
        parts: Local::default(),
        needs: Local::default(),
        brings: config.brings,
        expectations: Local::default(),
        observed: Observed::default(),
        interrupts: Local::default(),
        under_way: TransfersInFlight::default(),
        signals: Signals::default(),
        checkpoint_lsn: LsnWord::default(),
        checkpoint_mutex: Mutex::new(()),
        following: Mutex::new(()),
        overtaken,
        telling: Mutex::new(()),
        filling: Mutex::default(),
        dirty: DirtyFrames::new(config.log_limit),
        spaces: SpaceFrames::new(geometry.frames),
        sweep: Sweep::default(),
        me: OnceLock::new(),
        survey_part: config.survey_part.max(1),
        log_limit: config.log_limit,
        flush_turn: config.flush_turn,
        replay_stretch: config.replay_stretch,
        abandoned: AtomicBool::new(false),
    })
}

/// Brings the frames to a state in which every page is whole, by the shortest way.
fn recover(
    pool: &Arc<Pool>,
    config: &Config,
    opened: Opened,
    found: &StorageReport,
    control: &Control,
    report: &mut RecoveryReport,
) -> Result<()> {
    let clean = control.clean;
    pool.checkpoint_lsn.store(control.checkpoint, Ordering::Relaxed);
    report.remarks.extend(opened.remarks);
    report.remarks.extend(found.pages.remarks());
    report.voided = found.log.voided.len() as u64;
    if opened.was_read {
        let ring_start = pool.storage.log().ring_start();
        pool.frames.header().ring_start.store(ring_start, Ordering::Release);
        report.mode = if clean { Mode::Clean } else { Mode::Instant };
        pool.note_reserved();
        pool.repair(config, control, report)?;
        // The tier below has heard of none of them.
        let kept = pool.frames_with_pages().into_iter();
        kept.for_each(|(_, page)| pool.lower.enter(page));
        return Ok(());
    }
    match &found.log.ring {
        RingUse::Used if !pool.is_of_its_ring() => {
            report
                .remarks
                .push("region discarded: a start made its redo ring anew and was cut off".into());
        }
        RingUse::Used => {
            report.mode = if clean { Mode::Clean } else { Mode::Instant };
            pool.note_reserved();
            return pool.repair(config, control, report);
        }
        RingUse::Discarded(reason) => report.remarks.push(format!("region discarded: {reason}")),
        RingUse::Created | RingUse::NotOffered => {}
    }
    // A device keeps what was in it; a file made anew is zeros.
    if opened.believed || matches!(opened.region.kind(), RegionKind::Devdax | RegionKind::Simulated) {
        pool.wipe();
    }
    pool.format();
    if let Err(error) = pool.replay_all(control.checkpoint, report) {
        // Remote memory may have gone, or gone wrong, in the middle: log and storage are enough.
        if !pool.lower.forsake() {
            return Err(error);
        }
        report
            .remarks
            .push(format!("recovery begins again without remote memory: {error}"));
        pool.wipe();
        pool.format();
        pool.replay_all(control.checkpoint, report)?;
    }
    pool.lower.replayed();
    pool.note_surveying(0);
    Ok(())
}

/// The last step of a start: the region and the data directory name each other.
fn begin(pool: &Pool) -> Result<()> {
    let incarnation = pool.lower.incarnation().unwrap_or_else(rt::random_u128);
    let region = pool.frames.region();
    region.update_state(|s| {
        s.words[NEXT_LOW] = incarnation as u64;
        s.words[NEXT_HIGH] = (incarnation >> 64) as u64;
    });
    pool.storage.control().update(|c| {
        c.incarnation = incarnation;
        c.clean = false;
    })?;
    region.update_state(|s| {
        s.incarnation = incarnation;
        s.words[OWED] = 0;
    });
    serve_pod(pool);
    Ok(())
}

impl Pool {
    /// Whether the frames were formatted beside the ring that is there.
    fn is_of_its_ring(&self) -> bool {
        self.frames.header().ring_start.load(Ordering::Acquire) == self.storage.log().ring_start()
    }

    /// Makes an all-zero region (but for header and ring) an empty pool, to which a replay of the log is owed: from
    /// here on its headers can be believed, its frames not before the replay is done.
    pub(crate) fn format(&self) {
        let (header, geometry) = (self.frames.header(), *self.frames.geometry());
        self.note_reserved();
        self.note_surveying(DOUBTING);
        let ring_start = self.storage.log().ring_start();
        header.ring_start.store(ring_start, Ordering::Relaxed);
        header.format.store(POOL_FORMAT, Ordering::Relaxed);
        header.frames.store(geometry.frames, Ordering::Relaxed);
        header.ring_len.store(geometry.ring_len, Ordering::Relaxed);
        header.region_len.store(geometry.region_len, Ordering::Relaxed);
        header.magic.store(POOL_MAGIC, Ordering::Release);
        if self.host {
            coherence::flush(self.frames.region(), Geometry::HEADER_AT, LINE);
        }
    }

    /// How far recovery has come; in memory before what depends on it, where a lost host has to find it.
    pub(crate) fn note_surveying(&self, state: u32) {
        self.frames.header().surveying.store(state, Ordering::Release);
        if self.host {
            coherence::flush(self.frames.region(), Geometry::HEADER_AT, 2 * LINE);
        }
    }

    /// Forgets all frames of a region that is not believed after all.
    fn wipe(&self) {
        self.dirty.clear();
        self.spaces.clear();
        let (region, geometry) = (self.frames.region(), self.frames.geometry());
        region.span(Geometry::HEADER_AT, 4096).zero(0, 4096);
        // Parts that were never reserved are zero, and must not be touched.
        let (from, to) = (geometry.buckets_at, geometry.pages_at.min(region.reserved()));
        if to > from {
            region.span(from, to - from).zero(0, (to - from) as usize);
        }
        if self.host {
            // Else a lost host would bring the descriptors back.
            coherence::flush(region, Geometry::HEADER_AT, 4096);
            coherence::flush(region, from, to.saturating_sub(from) as usize);
        }
    }
}

#[cfg(test)]
mod tests;
