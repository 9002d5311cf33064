//! All memory of a world, as one state that a call at a time changes.

mod prefetch;
mod scene;
mod sharing;

use super::chance::Chance;
use super::contended::{ContendedLines, Cores};
use super::fills::Fills;
use super::host::{Bytes, Cache, DIRTY, Id, OWNER, PENDING, PRESENT, STALE, Tag, Tags, USED};
use super::maps::{self, Map, POISON};
use super::report::{self, Hazard, HazardKind, Hazards, Lines, ViewTraffic};
use super::steps::{Deed, Step, Steps};
use crate::clock;
use crate::link::{Links, Medium, Place};
use crate::topology::{DeviceSpec, HostSpec, Topology};
use cenote_base::random::Random;
use cenote_base::rt::Nanos;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// A view among those of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ViewId(pub usize);

/// The thread that does something, and when: its slot.
pub(crate) type Who = (usize, Nanos);

/// What a view needs to know of itself.
pub(crate) struct Opened {
    pub id: ViewId,
    pub tags: Tags,
    pub first: Id,
    pub lines: u64,
    pub base: NonNull<u8>,
    pub window: u64,
}

/// A named part of a view.
struct Part {
    name: &'static str,
    /// Pages of the database, which are counted by space, too.
    is_pages: bool,
    /// Its lines, first and beyond the last.
    lines: (u32, u32),
    moved: Lines,
}

/// Bytes of a page of the database, and where in it the page's space stands.
const PAGE: usize = 16384;
const SPACE_AT: usize = 4;

/// A host's own memory of so many bytes is in wide pages.
const DENSE: u64 = 32 << 20;

struct ViewMem {
    device: Option<usize>,
    first: Id,
    lines: u64,
    /// What programs see.
    seen: Map,
    /// What memory holds; the same map where the view is the memory itself.
    memory: Map,
    coherent: bool,
    window_lines: u32,
    medium: Arc<Medium>,
    moved: Lines,
    parts: Vec<Part>,
    spaces: Spaces,
    stale_reads: u64,
}

/// Lines moved by space. Most are of the space of the line before.
#[derive(Default)]
struct Spaces {
    moved: Vec<(u32, Lines)>,
    last: usize,
}

impl Spaces {
    fn of(&mut self, space: u32) -> &mut Lines {
        if self.moved.get(self.last).is_none_or(|last| last.0 != space) {
            let known = self.moved.iter().position(|of| of.0 == space);
            self.last = known.unwrap_or(self.moved.len());
            if known.is_none() {
                self.moved.push((space, Lines::default()));
            }
        }
        &mut self.moved[self.last].1
    }
}

impl ViewMem {
    /// Where a line lies, in the view and in memory.
    fn place(&self, line: Id) -> usize {
        (line - self.first) as usize * size_of::<Bytes>()
    }
}

struct HostMem {
    cache: Cache,
    views: Vec<Option<ViewMem>>,
    /// Which of its lives this is.
    life: u64,
    /// By thread slot: the lines of its last access that missed; beside them the processor prefetches.
    following: Vec<(Id, Id)>,
    /// By thread slot: when what it has written back is in memory.
    completes: Vec<Nanos>,
    /// By thread slot: lines that were prefetched.
    fills: Vec<Fills>,
    cores: Cores,
    past_local: ViewTraffic,
    medium: Arc<Medium>,
}

struct DeviceMem {
    name: String,
    path: PathBuf,
    bytes: u64,
    window: u64,
    coherent: bool,
    /// What views map their windows from; none where they are the memory itself.
    file: Option<OwnedFd>,
    memory: Map,
    len: u64,
    /// It is gone, with all that was in it; until a process opens what is there in its place.
    lost: bool,
    lock: Option<(usize, u32)>,
    /// The hosts that have a view, and which of theirs.
    views: Vec<(usize, ViewId)>,
}

pub(crate) struct State {
    hosts: Vec<HostMem>,
    devices: Vec<DeviceMem>,
    pub(crate) links: Arc<Links>,
    random: Random,
    pub(crate) chance: Chance,
    pub(crate) hazards: Hazards,
    steps: Steps,
    contended: ContendedLines,
}

impl DeviceMem {
    fn new(spec: &DeviceSpec) -> io::Result<Self> {
        let whole_lines = spec.bytes.next_multiple_of(size_of::<Bytes>() as u64);
        let (file, memory) = match (spec.coherent, spec.dense) {
            (true, true) => (None, Map::wide_zeros(whole_lines as usize)?),
            (true, false) => (None, Map::zeros(whole_lines as usize)?),
            (false, _) => {
                let file = maps::file("cenote-device", whole_lines)?;
                let memory = Map::of(&file, whole_lines as usize)?;
                (Some(file), memory)
            }
        };
        Ok(Self {
            name: spec.name.clone(),
            path: spec.path(),
            bytes: spec.bytes,
            window: spec.window.next_multiple_of(4096).min(spec.bytes),
            coherent: spec.coherent,
            file,
            memory,
            len: 0,
            lost: false,
            lock: None,
            views: Vec::new(),
        })
    }
}

impl State {
    pub(crate) fn new(topology: &Topology, seed: u64) -> Self {
        let links = Arc::new(Links::new(topology));
        let mut random = Random(seed ^ 0x3E30_C0DE);
        let chance = Chance::draw(&mut random);
        let host = |(i, spec): (usize, &HostSpec)| HostMem {
            cache: Cache::new(spec.cache.bytes / 64, spec.cache.ways).expect("address space for a host's tags"),
            views: Vec::new(),
            life: 1,
            following: Vec::new(),
            completes: Vec::new(),
            fills: Vec::new(),
            cores: Cores::of(spec),
            past_local: ViewTraffic {
                host: i,
                ..ViewTraffic::default()
            },
            medium: Arc::clone(links.medium(i, Place::Local)),
        };
        let device = |spec| DeviceMem::new(spec).expect("address space for a memory device");
        Self {
            hosts: topology.hosts.iter().enumerate().map(host).collect(),
            devices: topology.devices.iter().map(device).collect(),
            links,
            random,
            chance,
            hazards: Hazards::default(),
            steps: Steps::default(),
            contended: ContendedLines::default(),
        }
    }

    // ---- views ----

    pub(crate) fn device_at(&self, path: &Path) -> Option<usize> {
        self.devices.iter().position(|d| d.path == path)
    }

    pub(crate) fn open(&mut self, host: usize, device: usize) -> io::Result<Opened> {
        let medium = Arc::clone(self.links.medium(host, Place::Device(device)));
        let d = &mut self.devices[device];
        let window = d.window as usize;
        let memory = d.memory.clone();
        let seen = match &d.file {
            None => memory.clone(),
            Some(file) => Map::view(d.memory.len(), window, file)?,
        };
        let view = ViewMem {
            device: Some(device),
            first: 0,
            lines: d.bytes / 64,
            seen,
            memory,
            coherent: d.coherent,
            window_lines: (d.window / 64) as u32,
            medium,
            moved: Lines::default(),
            parts: Vec::new(),
            spaces: Spaces::default(),
            stale_reads: 0,
        };
        let window = if d.coherent { d.bytes } else { d.window };
        let opened = self.hosts[host].add(view, window)?;
        self.devices[device].views.push((host, opened.id));
        Ok(opened)
    }

    pub(crate) fn open_local(&mut self, host: usize, len: u64) -> io::Result<Opened> {
        let len = len.next_multiple_of(4096);
        // Regions of engines, which fill theirs, are as large as that, and others' are not.
        let map = match len < DENSE {
            true => Map::zeros(len as usize)?,
            false => Map::wide_zeros(len as usize)?,
        };
        let h = &mut self.hosts[host];
        let view = ViewMem {
            device: None,
            first: 0,
            lines: len / 64,
            seen: map.clone(),
            memory: map,
            coherent: true,
            window_lines: 0,
            medium: Arc::clone(&h.medium),
            moved: Lines::default(),
            parts: Vec::new(),
            spaces: Spaces::default(),
            stale_reads: 0,
        };
        h.add(view, len)
    }

    /// The view's lines leave the cache, and its memory goes.
    pub(crate) fn close(&mut self, host: usize, id: ViewId, traffic: &ViewTraffic) {
        let h = &mut self.hosts[host];
        report::add_to(&mut h.past_local, traffic);
        let Some(view) = h.views[id.0].take() else { return };
        let ids = view.first..view.first + view.lines as u32;
        for line in h.cache.present() {
            if ids.contains(&line) {
                h.cache.set_tag(line, 0);
            }
        }
        h.cache.give_ids(view.first, view.lines);
    }

    /// The world is over: its memory goes.
    pub(crate) fn release_all(&mut self) {
        self.hosts.clear();
        self.devices.clear();
    }

    fn view(&self, host: usize, id: ViewId) -> &ViewMem {
        self.hosts[host].views[id.0].as_ref().expect("a view that is open")
    }

    fn view_mut(&mut self, host: usize, id: ViewId) -> &mut ViewMem {
        self.hosts[host].views[id.0].as_mut().expect("a view that is open")
    }

    fn view_of(&self, host: usize, id: Id) -> ViewId {
        ViewId(self.hosts[host].cache.view_of(id) as usize)
    }

    pub(crate) fn describe(&mut self, host: usize, id: ViewId, parts: &[(&'static str, u64, u64)]) {
        let view = self.view_mut(host, id);
        for (name, off, len) in parts {
            let lines = ((off / 64) as u32, ((off + len) / 64) as u32);
            match view.parts.iter_mut().find(|p| p.name == *name) {
                Some(part) => part.lines = lines,
                None => view.parts.push(Part {
                    name,
                    is_pages: *name == "pages",
                    lines,
                    moved: Lines::default(),
                }),
            }
        }
    }

    // ---- devices ----

    pub(crate) fn len(&self, host: usize, id: ViewId) -> u64 {
        let view = self.view(host, id);
        view.device.map_or(view.lines * 64, |d| self.devices[d].len)
    }

    /// What is beyond the new length is gone, in memory and in every cache.
    pub(crate) fn resize(&mut self, host: usize, id: ViewId, len: u64) -> io::Result<()> {
        let Some(device) = self.view(host, id).device else {
            let fits = len <= self.view(host, id).lines * 64;
            return if fits {
                Ok(())
            } else {
                Err(io::ErrorKind::OutOfMemory.into())
            };
        };
        let d = &mut self.devices[device];
        if len > d.bytes {
            return Err(io::Error::other(format!("the device has {} bytes", d.bytes)));
        }
        let before = std::mem::replace(&mut d.len, len);
        if len < before {
            d.memory.clear(len as usize, (before - len) as usize);
            self.drop_lines(device, (len / 64) as u32);
        }
        Ok(())
    }

    /// Lines of a device from `from` on leave every cache, whatever they hold.
    fn drop_lines(&mut self, device: usize, from: u32) {
        for (host, id) in self.devices[device].views.clone() {
            let view = self.view(host, id);
            let ids = view.first + from..=view.first + (view.lines - 1) as u32;
            for line in self.hosts[host].cache.present() {
                if ids.contains(&line) {
                    self.forget(host, id, line);
                }
            }
        }
    }

    pub(crate) fn try_lock(&mut self, host: usize, id: ViewId, process: u32) -> bool {
        let Some(device) = self.view(host, id).device else {
            return true;
        };
        let lock = &mut self.devices[device].lock;
        let free = lock.is_none();
        if free {
            *lock = Some((host, process));
        }
        free
    }

    pub(crate) fn unlock(&mut self, host: usize, id: ViewId, process: u32) {
        if let Some(device) = self.view(host, id).device
            && self.devices[device].lock == Some((host, process))
        {
            self.devices[device].lock = None;
        }
    }

    /// The locks of a process of a host, or of all.
    pub(crate) fn unlock_all(&mut self, host: usize, process: Option<u32>) {
        for device in &mut self.devices {
            if device
                .lock
                .is_some_and(|(h, p)| h == host && process.is_none_or(|process| p == process))
            {
                device.lock = None;
            }
        }
    }

    pub(crate) fn host_life(&self, host: usize) -> u64 {
        (host as u64 + 1) << 32 | self.hosts[host].life
    }

    pub(crate) fn bytes(&self, device: usize, off: u64, len: usize) -> Vec<u8> {
        let d = &self.devices[device];
        assert!(off + len as u64 <= d.bytes, "bytes of the device");
        d.memory.copy(off as usize, len)
    }

    /// The word at `off` as a host sees it.
    #[cfg(test)]
    pub(super) fn peek(&self, host: usize, id: ViewId, off: usize) -> u64 {
        u64::from_le_bytes(self.view(host, id).seen.read(off))
    }

    #[cfg(test)]
    pub(super) fn poke(&self, host: usize, id: ViewId, off: usize, value: u64) {
        self.view(host, id).seen.write(off, value.to_le_bytes());
    }

    // ---- losses ----

    /// Lines under way, and dirty ones, have reached memory or not.
    pub(crate) fn host_lost(&mut self, host: usize) {
        for note in self.hosts[host].cache.under_way() {
            if self.random.word().is_multiple_of(2) {
                let id = self.view_of(host, note.id);
                self.reaches_memory(host, id, note.id, &note.bytes);
            }
        }
        for line in self.hosts[host].cache.present() {
            let id = self.view_of(host, line);
            if self.view(host, id).coherent {
                continue;
            }
            let tag = self.hosts[host].cache.tag(line);
            self.check_announced(host, id, line, tag);
            if tag & DIRTY != 0 && self.random.word() % 16 < u64::from(self.chance.reached) {
                let bytes = self.line(host, id, line);
                self.reaches_memory(host, id, line, &bytes);
            }
            self.poison(host, id, line);
        }
        let h = &mut self.hosts[host];
        h.cache.clear();
        h.life += 1;
        h.following.clear();
        h.completes.clear();
        h.fills.clear();
        self.chance.reached = Chance::draw(&mut self.random).reached;
    }

    /// What caches hold of it they still have, and can bring nowhere.
    pub(crate) fn device_lost(&mut self, device: usize) {
        let d = &mut self.devices[device];
        d.lost = true;
        let len = std::mem::take(&mut d.len);
        d.memory.clear(0, len as usize);
    }

    /// A device that was lost is opened: an empty one is in its place.
    pub(crate) fn renew(&mut self, device: usize) {
        if self.devices[device].lost {
            self.drop_lines(device, 0);
            self.devices[device].lost = false;
        }
    }

    fn is_lost(&self, host: usize, id: ViewId) -> bool {
        self.view(host, id).device.is_some_and(|d| self.devices[d].lost)
    }

    // ---- lines ----

    /// What a host sees of a line.
    fn line(&self, host: usize, id: ViewId, line: Id) -> Bytes {
        let view = self.view(host, id);
        view.seen.read(view.place(line))
    }

    /// What memory holds of it.
    fn behind(&self, host: usize, id: ViewId, line: Id) -> Bytes {
        let view = self.view(host, id);
        view.memory.read(view.place(line))
    }

    fn set_line(&self, host: usize, id: ViewId, line: Id, bytes: &Bytes) {
        let view = self.view(host, id);
        view.seen.write(view.place(line), *bytes);
    }

    fn poison(&self, host: usize, id: ViewId, line: Id) {
        let view = self.view(host, id);
        if !view.coherent && line - view.first >= view.window_lines {
            self.set_line(host, id, line, &[POISON; 64]);
        }
    }

    /// A line reaches memory: what other hosts hold of it is stale, if it is another one.
    fn reaches_memory(&mut self, host: usize, id: ViewId, line: Id, bytes: &Bytes) {
        if self.is_lost(host, id) {
            return;
        }
        let view = self.view(host, id);
        let at = view.place(line);
        if view.memory.read(at) != *bytes {
            view.memory.write(at, *bytes);
            let shared = self.is_shared(host, id, line);
            self.each_other(host, id, line, |cache, other| {
                let tag = cache.tag(other);
                if tag & PRESENT != 0 {
                    cache.set_tag(other, if shared { 0 } else { tag | STALE });
                }
            });
        }
        self.count(host, id, line, Lines { fetched: 0, written: 1 });
    }

    /// Calls `f` with the caches of other hosts that view the device, and the line's id there.
    fn each_other(&mut self, host: usize, id: ViewId, line: Id, mut f: impl FnMut(&mut Cache, Id)) {
        let view = self.view(host, id);
        let (at, Some(device)) = (line - view.first, view.device) else {
            return;
        };
        for i in 0..self.devices[device].views.len() {
            let (other, theirs) = self.devices[device].views[i];
            if other != host {
                let first = self.view(other, theirs).first;
                f(&mut self.hosts[other].cache, first + at);
            }
        }
    }

    fn count(&mut self, host: usize, id: ViewId, line: Id, moved: Lines) {
        let view = self.view_mut(host, id);
        view.moved += moved;
        let at = line - view.first;
        let part = view.parts.iter_mut().find(|p| (p.lines.0..p.lines.1).contains(&at));
        let Some(part) = part else { return };
        part.moved += moved;
        if part.is_pages {
            let page = (at - part.lines.0) as usize * 64 / PAGE * PAGE + part.lines.0 as usize * 64;
            let space = u32::from_le_bytes(view.memory.read(page + SPACE_AT));
            *view.spaces.of(space) += moved;
        }
    }

    fn hazard(&mut self, kind: HazardKind, (host, id, line): (usize, ViewId, Id), other: Option<usize>, who: Who) {
        let view = self.view(host, id);
        let at = line - view.first;
        let part = view.parts.iter().find(|p| (p.lines.0..p.lines.1).contains(&at));
        let hazard = Hazard {
            kind,
            time: who.1,
            host,
            other,
            thread: who.0,
            device: view
                .device
                .map_or_else(|| "memory".into(), |d| self.devices[d].name.clone()),
            part: part.map(|p| p.name),
            what: self.what_lies_at(host, id, line),
            offset: u64::from(at) * 64,
        };
        self.hazards.add(hazard);
    }

    /// Notes what becomes of a line that a host sees through its cache.
    fn step(&mut self, deed: Deed, host: usize, id: ViewId, line: Id) {
        if !self.view(host, id).coherent {
            self.steps.add(Step {
                time: clock::now(),
                host: host as u32,
                view: id.0 as u32,
                thread: clock::thread() as u32,
                deed,
                first: line,
                lines: 1,
            });
        }
    }

    // ---- the cache ----

    /// A touch that is no plain hit: what it misses is fetched. How long the thread stalls; `None` where no device
    /// answers.
    pub(crate) fn bring(
        &mut self,
        host: usize,
        id: ViewId,
        (first, last): (Id, Id),
        write: bool,
        who: Who,
    ) -> Option<Nanos> {
        let lost = self.is_lost(host, id);
        if lost && (first..=last).any(|line| !self.hosts[host].cache.has(line, PRESENT)) {
            return None;
        }
        while let Some(line) = self.hosts[host].cache.overdue() {
            self.evict(host, line, who);
        }
        let (mut missed, mut arrives, mut waits) = (0, who.1, Nanos::ZERO);
        for line in first..=last {
            let is_new = !self.hosts[host].cache.has(line, PRESENT);
            if is_new {
                missed += 1;
                self.fetch(host, id, line, (first, last), who);
            } else {
                arrives = arrives.max(self.arrival(host, line, who));
            }
            waits += self.use_line(host, id, line, (write, is_new), who);
        }
        if missed > 0 {
            arrives = arrives.max(who.1 + self.fetch_time(host, id, (first, last), missed, who));
        }
        Some(arrives.since(who.1) + waits)
    }

    /// What a thread waits for lines that it missed.
    fn fetch_time(&mut self, host: usize, id: ViewId, (first, last): (Id, Id), missed: u64, who: Who) -> Nanos {
        let h = &mut self.hosts[host];
        let following = follows(&mut h.following, who.0, first, last);
        let medium = &h.views[id.0].as_ref().expect("open").medium;
        medium.fetch(who.1, missed, following)
    }

    /// What it takes besides the line's coming. `is_new`: it has just come.
    fn use_line(&mut self, host: usize, id: ViewId, line: Id, (write, is_new): (bool, bool), who: Who) -> Nanos {
        let tag = self.hosts[host].cache.tag(line);
        if tag & STALE != 0 {
            self.use_stale(host, id, line, write, who);
        }
        let mut waits = Nanos::ZERO;
        if write && tag & DIRTY == 0 {
            waits += self.first_store(host, id, line, is_new, who);
        } else if is_new {
            waits += self.share_with_hosts(host, id, line, who);
        }
        let dirty = if write { DIRTY } else { 0 };
        let (owner, took) = self.pass_to_core(host, id, line, write, who);
        let cache = &mut self.hosts[host].cache;
        cache.set_tag(line, cache.tag(line) & !OWNER | USED | dirty | owner);
        waits + took
    }

    #[cold]
    fn use_stale(&mut self, host: usize, id: ViewId, line: Id, write: bool, who: Who) {
        self.step(if write { Deed::WroteStale } else { Deed::ReadStale }, host, id, line);
        if write {
            self.hazard(HazardKind::StaleWritten, (host, id, line), None, who);
        } else {
            self.view_mut(host, id).stale_reads += 1;
        }
    }

    /// No other host may hold changes of the line; where it is coherent, hardware sees to that, which takes time.
    fn first_store(&mut self, host: usize, id: ViewId, line: Id, is_new: bool, who: Who) -> Nanos {
        self.step(Deed::Changed, host, id, line);
        let view = self.view(host, id);
        if view.device.is_none_or(|d| self.devices[d].views.len() < 2) {
            return Nanos::ZERO;
        }
        if self.is_shared(host, id, line) {
            return self.take_from_hosts(host, id, line, is_new, who);
        }
        let mut writer = false;
        self.each_other(host, id, line, |cache, other| writer |= cache.has(other, DIRTY));
        if writer {
            let device = self.view(host, id).device.expect("checked above");
            let mut others = self.devices[device].views.iter().map(|(h, _)| *h);
            let other = others.find(|h| *h != host);
            self.hazard(HazardKind::TwoWriters, (host, id, line), other, who);
        }
        Nanos::ZERO
    }

    fn fetch(&mut self, host: usize, id: ViewId, line: Id, keep: (Id, Id), who: Who) {
        if let Some(victim) = self.hosts[host].cache.make_room(line, keep) {
            self.evict(host, victim, who);
        }
        let view = self.view(host, id);
        if !view.coherent && line - view.first >= view.window_lines {
            let at = view.place(line);
            let is_poison = view.seen.read(at) == [POISON; 64];
            view.seen.write::<64>(at, view.memory.read(at));
            if !is_poison {
                self.hazard(HazardKind::Unannounced, (host, id, line), None, who);
            }
        }
        self.step(Deed::Fetched, host, id, line);
        self.hosts[host].cache.set_tag(line, PRESENT | clock::owner());
        self.count(host, id, line, Lines { fetched: 1, written: 0 });
    }

    /// A line leaves; changes go to memory, and so do those under way.
    fn evict(&mut self, host: usize, line: Id, who: Who) {
        let tag = self.hosts[host].cache.tag(line);
        if tag & PRESENT == 0 {
            return;
        }
        let id = self.view_of(host, line);
        let view = self.view(host, id);
        if view.coherent || line - view.first < view.window_lines {
            self.hosts[host].cache.set_tag(line, 0);
            if tag & DIRTY != 0 {
                self.count(host, id, line, Lines { fetched: 0, written: 1 });
                self.view(host, id).medium.write_back(who.1, 1, true);
            }
            return;
        }
        if tag & (DIRTY | PENDING) != 0 {
            self.step(Deed::Evicted, host, id, line);
            let bytes = self.line(host, id, line);
            self.reaches_memory(host, id, line, &bytes);
            self.view(host, id).medium.write_back(who.1, 1, true);
        } else {
            self.check_announced(host, id, line, tag);
        }
        self.forget(host, id, line);
    }

    /// A line without changes is as memory has it, unless another host has changed that.
    fn check_announced(&mut self, host: usize, id: ViewId, line: Id, tag: Tag) {
        let as_memory = tag & (DIRTY | PENDING | STALE) == 0 && !self.is_lost(host, id);
        if as_memory && self.line(host, id, line) != self.behind(host, id, line) {
            let who = (clock::slot(), clock::now());
            self.hazard(HazardKind::Unannounced, (host, id, line), None, who);
        }
    }

    /// A line is in the cache no more, whatever it held.
    fn forget(&mut self, host: usize, id: ViewId, line: Id) {
        let cache = &mut self.hosts[host].cache;
        if cache.has(line, PENDING) {
            cache.reached(line, u64::MAX);
        }
        cache.set_tag(line, 0);
        self.poison(host, id, line);
    }

    // ---- what no thread asked for ----

    /// Touches of a view until the next chance.
    pub(crate) fn draw_gap(&mut self, host: usize, id: ViewId) -> u64 {
        if self.chance.every == 0 || self.view(host, id).coherent {
            return u64::MAX;
        }
        self.random.word() % (2 * u64::from(self.chance.every))
    }

    /// A line near by is fetched, or one from anywhere leaves; none that the access under way needs.
    pub(crate) fn happen(&mut self, host: usize, id: ViewId, needed: (Id, Id), who: Who) {
        let draw = self.random.word();
        if (draw % 16) as u32 >= self.chance.prefetches {
            let line = self.hosts[host].cache.any(draw >> 4);
            if let Some(line) = line.filter(|line| !(needed.0..=needed.1).contains(line)) {
                self.evict(host, line, who);
            }
            return;
        }
        if self.is_lost(host, id) {
            return;
        }
        let view = self.view(host, id);
        let end = view.first + (view.lines - 1) as u32;
        let line = needed.1.saturating_add(1 + (draw >> 4) as u32 % 4);
        if line <= end && !self.hosts[host].cache.has(line, PRESENT) {
            self.fetch(host, id, line, needed, who);
        }
    }

    // ---- flushes ----

    pub(crate) fn write_back(&mut self, host: usize, id: ViewId, (first, last): (Id, Id), thread: usize) {
        if self.view(host, id).coherent {
            return self.write_back_coherent(host, id, (first, last), thread);
        }
        for line in first..=last {
            if self.hosts[host].cache.has(line, DIRTY | PENDING) {
                let bytes = self.line(host, id, line);
                self.step(Deed::WritesBack, host, id, line);
                self.hosts[host].cache.note(thread, line, bytes);
            }
        }
    }

    /// Where the view is the memory, only the time is left of it.
    fn write_back_coherent(&mut self, host: usize, id: ViewId, (first, last): (Id, Id), thread: usize) {
        let mut lines = 0;
        for line in first..=last {
            let tag = self.hosts[host].cache.tag(line);
            if tag & DIRTY != 0 {
                lines += 1;
                self.hosts[host].cache.set_tag(line, tag & !DIRTY);
                self.count(host, id, line, Lines { fetched: 0, written: 1 });
            }
        }
        if lines > 0 {
            self.written(host, id, lines, (thread, clock::now()));
        }
    }

    /// So many lines are on their way: the thread's next fence waits for them.
    fn written(&mut self, host: usize, id: ViewId, lines: u64, (thread, now): Who) {
        let h = &mut self.hosts[host];
        let takes = h.views[id.0]
            .as_ref()
            .expect("open")
            .medium
            .write_back(now, lines, false);
        if h.completes.len() <= thread {
            h.completes.resize(thread + 1, Nanos::ZERO);
        }
        h.completes[thread] = h.completes[thread].max(now + takes);
    }

    /// What the thread has noted reaches memory. How long it waits; `None` where no device answers.
    pub(crate) fn fence(&mut self, host: usize, (thread, now): Who) -> Option<Nanos> {
        let notes = self.hosts[host].cache.take_notes(thread);
        let nobody = notes.iter().any(|note| self.is_lost(host, self.view_of(host, note.id)));
        let mut run: Option<(ViewId, u64)> = None;
        for note in &notes {
            // An eviction or another thread's fence may have been faster, with newer bytes.
            if !self.hosts[host].cache.has(note.id, PENDING) {
                continue;
            }
            let id = self.view_of(host, note.id);
            self.step(Deed::Flushed, host, id, note.id);
            self.reaches_memory(host, id, note.id, &note.bytes);
            self.hosts[host].cache.reached(note.id, note.at);
            run = match run {
                Some((view, lines)) if view == id => Some((view, lines + 1)),
                other => {
                    if let Some((view, lines)) = other {
                        self.written(host, view, lines, (thread, now));
                    }
                    Some((id, 1))
                }
            };
        }
        if let Some((view, lines)) = run {
            self.written(host, view, lines, (thread, now));
        }
        if !notes.is_empty() {
            self.hosts[host].cache.keep_room(thread, notes);
        }
        let completes = self.hosts[host].completes.get(thread).copied().unwrap_or(Nanos::ZERO);
        (!nobody).then(|| completes.since(now))
    }

    pub(crate) fn invalidate(&mut self, host: usize, id: ViewId, (first, last): (Id, Id), who: Who) {
        for line in first..=last {
            let tag = self.hosts[host].cache.tag(line);
            if tag & PRESENT == 0 {
                continue;
            }
            self.step(Deed::Invalidated, host, id, line);
            if tag & DIRTY != 0 && !self.view(host, id).coherent {
                self.hazard(HazardKind::DirtyInvalidated, (host, id, line), None, who);
            }
            self.evict(host, line, who);
        }
    }

    /// A word goes to memory past the cache; the line leaves it before. `None` where no device answers.
    pub(crate) fn store_uncached(
        &mut self,
        host: usize,
        id: ViewId,
        line: Id,
        at: usize,
        value: u64,
        who: Who,
    ) -> Option<Nanos> {
        if self.is_lost(host, id) {
            return None;
        }
        self.evict(host, line, who);
        self.step(Deed::StoredPast, host, id, line);
        let mut bytes = self.behind(host, id, line);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self.reaches_memory(host, id, line, &bytes);
        Some(self.view(host, id).medium.write_back(who.1, 1, false))
    }

    // ---- reports ----

    pub(crate) fn traffic(&self, host: usize, id: ViewId) -> ViewTraffic {
        let view = self.view(host, id);
        ViewTraffic {
            host,
            device: view.device,
            moved: view.moved,
            parts: view.parts.iter().map(|p| (p.name, p.moved)).collect(),
            spaces: view.spaces.moved.iter().copied().collect(),
            stale_reads: view.stale_reads,
            ..ViewTraffic::default()
        }
    }

    pub(crate) fn past_local(&self, host: usize) -> ViewTraffic {
        self.hosts[host].past_local.clone()
    }
}

/// Whether a thread's miss goes on where its last one ended, upwards or downwards, as stream prefetchers know both
/// (rows that were added in the order of their keys lie downwards in a page); notes where this one is. Lines that were
/// there and were taken away were not prefetched.
fn follows(misses: &mut Vec<(Id, Id)>, thread: usize, first: Id, last: Id) -> bool {
    const NOWHERE: (Id, Id) = (Id::MAX, Id::MAX);
    if misses.len() <= thread {
        misses.resize(thread + 1, NOWHERE);
    }
    let before = std::mem::replace(&mut misses[thread], (first, last));
    let is_beside = first <= before.1.saturating_add(1) && before.0 <= last.saturating_add(1);
    let goes_on = first < before.0 || last > before.1;
    before != NOWHERE && is_beside && goes_on
}

impl HostMem {
    fn add(&mut self, mut view: ViewMem, window: u64) -> io::Result<Opened> {
        let free = self.views.iter().position(Option::is_none);
        let at = free.unwrap_or(self.views.len());
        view.first = self.cache.take_ids(view.lines, at as u32)?;
        let opened = Opened {
            id: ViewId(at),
            tags: self.cache.tags(view.first, view.lines),
            first: view.first,
            lines: view.lines,
            base: view.seen.base(),
            window,
        };
        if free.is_none() {
            self.views.push(None);
        }
        self.views[at] = Some(view);
        Ok(opened)
    }
}
