//! Links: what moving bytes costs in virtual time, by latency, bandwidth, and the other transfers under way.
//!
//! A [`Link`] is a pipe that sends one transfer after another. It keeps what is queued as time (its *backlog*), which
//! drains as time goes on: a transfer waits for the backlog it finds and adds its own. With arrivals in the order of
//! time that is exactly a queue, first come first served. Threads of a projection have clocks that differ by a little;
//! one that comes with a time before the last one's finds the backlog undrained, and errs by no more than that
//! difference.
//!
//! A [`Medium`] is what a host sees of a memory: a device profile over the links on the way, each in the direction of
//! the data. What an access costs:
//!
//! ```text
//!   latency of the profile  x  factor(utilisation)   +   wait on host port + wait on switch + wait on device
//!       (table 1, table 2)      (bandwidth-latency          (bytes of others before mine)
//!                                curve, per link)
//! ```
//!
//! The profile's latency includes the transfer itself, so that with nothing else under way published figures come out
//! exactly. Transfers pass through links as they come (cut-through), so only waits add up. The curve stands for what a
//! queue of whole transfers does not show (banks, schedulers, turning a bus around): utilisation is taken over
//! [`WINDOW`], and a new factor goes half of the way there.
//!
//! All of it runs on one thread of the machine: atomics here are cells that may be shared, loaded and stored apart.

use crate::topology::{LinkSpec, Topology};
use cenote_base::rt::Nanos;
use cenote_fabric::LINE;
use cenote_fabric::profile::Profile;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The time over which utilisation is taken.
pub const WINDOW: Nanos = Nanos(1 << WINDOW_BITS);
const WINDOW_BITS: u32 = 14;
/// Time here is in parts of a nanosecond, 1024 to one: a line takes 0.03 ns on a switch.
const TICK_BITS: u32 = 10;
const TICKS: f64 = (1 << TICK_BITS) as f64;
/// Factors are in 256ths.
const ONE: u64 = 256;

/// What has gone over a link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Transfers.
    pub transfers: u64,
    /// Bytes.
    pub bytes: u64,
    /// Time that transfers have waited for those before them.
    pub waited: Nanos,
    /// Time that it was sending.
    pub busy: Nanos,
}

/// A pipe for bytes.
#[derive(Debug)]
pub struct Link {
    name: String,
    /// Ticks that a byte takes, in 2^-32.
    byte_time: u64,
    loaded: Vec<(f64, f64)>,
    /// The latest arrival.
    last: AtomicU64,
    /// Ticks of transfers that were queued then.
    backlog: AtomicU64,
    bytes: AtomicU64,
    transfers: AtomicU64,
    waited: AtomicU64,
    /// The window that `last` is in, what had passed when it began, and what came of those before.
    window: AtomicU64,
    window_bytes: AtomicU64,
    utilisation: AtomicU64,
    factor: AtomicU64,
    cut: AtomicBool,
}

impl Link {
    /// Idle, of so many bytes a second.
    pub fn new(name: impl Into<String>, bytes_per_second: f64) -> Self {
        Self {
            name: name.into(),
            byte_time: (TICKS * 1e9 / bytes_per_second * (1u64 << 32) as f64) as u64,
            loaded: Vec::new(),
            last: AtomicU64::new(0),
            backlog: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            window: AtomicU64::new(0),
            window_bytes: AtomicU64::new(0),
            utilisation: AtomicU64::new(0f64.to_bits()),
            factor: AtomicU64::new(ONE),
            cut: AtomicBool::new(false),
        }
    }

    /// With a bandwidth-latency curve.
    pub fn with_curve(self, loaded: &[(f64, f64)]) -> Self {
        let loaded = loaded.to_vec();
        Self { loaded, ..self }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends `bytes` at `now`: how long until the last of them has left.
    #[inline]
    pub fn transfer(&self, now: Nanos, bytes: u64) -> Nanos {
        Nanos((self.enter(now.0 << TICK_BITS, bytes) + self.sending(bytes)) >> TICK_BITS)
    }

    /// Sends `bytes` at `now`: how long they wait for those before them.
    #[inline]
    pub fn wait(&self, now: Nanos, bytes: u64) -> Nanos {
        Nanos(self.enter(now.0 << TICK_BITS, bytes) >> TICK_BITS)
    }

    /// How long `bytes` take by themselves.
    pub fn alone(&self, bytes: u64) -> Nanos {
        Nanos(self.sending(bytes) >> TICK_BITS)
    }

    #[inline(always)]
    fn sending(&self, bytes: u64) -> u64 {
        ((u128::from(bytes) * u128::from(self.byte_time)) >> 32) as u64
    }

    /// Queues a transfer; the ticks that it waits.
    #[inline(always)]
    fn enter(&self, now: u64, bytes: u64) -> u64 {
        let last = self.last.load(Relaxed);
        let passed = now.saturating_sub(last);
        let waits = self.backlog.load(Relaxed).saturating_sub(passed);
        self.last.store(last + passed, Relaxed);
        self.backlog.store(waits + self.sending(bytes), Relaxed);
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
        self.transfers.store(self.transfers.load(Relaxed) + 1, Relaxed);
        self.waited.store(self.waited.load(Relaxed) + waits, Relaxed);
        if now >> (TICK_BITS + WINDOW_BITS) > self.window.load(Relaxed) {
            self.turn_window(now >> (TICK_BITS + WINDOW_BITS));
        }
        waits
    }

    #[cold]
    #[inline(never)]
    fn turn_window(&self, window: u64) {
        let bytes = self.bytes.load(Relaxed);
        let sent = bytes - self.window_bytes.swap(bytes, Relaxed);
        let windows = window - self.window.swap(window, Relaxed);
        let span = (windows << (TICK_BITS + WINDOW_BITS)) as f64;
        let latest = (self.sending(sent) as f64 / span).min(1.0);
        // One window later half of what was before counts, two later a quarter.
        let before = f64::from_bits(self.utilisation.load(Relaxed));
        let kept = 0.5f64.powi(windows.min(64) as i32);
        let utilisation = before * kept + latest * (1.0 - kept);
        self.utilisation.store(utilisation.to_bits(), Relaxed);
        self.factor
            .store((loaded_factor(&self.loaded, utilisation) * ONE as f64) as u64, Relaxed);
    }

    /// The share of its bandwidth that was used in the last windows: 0 to 1.
    pub fn utilisation(&self) -> f64 {
        f64::from_bits(self.utilisation.load(Relaxed))
    }

    /// Latency over it as a multiple of that at rest.
    pub fn factor(&self) -> f64 {
        self.factor.load(Relaxed) as f64 / ONE as f64
    }

    /// What has gone over it since the beginning.
    pub fn counters(&self) -> Counters {
        Counters {
            transfers: self.transfers.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            waited: Nanos(self.waited.load(Relaxed) >> TICK_BITS),
            busy: self.alone(self.bytes.load(Relaxed)),
        }
    }

    /// Cuts or mends it, for later transfers. A link only knows; its users ask.
    pub fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Relaxed);
    }

    /// Whether it is cut.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }
}

fn loaded_factor(curve: &[(f64, f64)], utilisation: f64) -> f64 {
    let profile = Profile {
        loaded: curve.to_vec(),
        ..Profile::default()
    };
    profile.loaded_factor(utilisation)
}

/// A memory as a host sees it: a profile, over the links on the way.
#[derive(Debug)]
pub struct Medium {
    profile: Profile,
    /// The links in the order of the data, to the host and from it.
    reads: Vec<Arc<Link>>,
    writes: Vec<Arc<Link>>,
    read: Times,
    write: Times,
    /// Ticks that were owed when the last cost was rounded.
    owed: AtomicU64,
    cut: AtomicBool,
}

/// What lines cost at rest, in ticks.
#[derive(Debug)]
struct Times {
    /// The first lines of an access, by their number.
    lines: Vec<u64>,
    /// Each line beyond, and each that goes on where the access before ended.
    next: u64,
}

/// Lines whose times are kept in a table: a page of 4 KiB.
const TABLE: u64 = 64;

impl Times {
    fn new(first: f64, time: impl Fn(u64) -> f64) -> Self {
        let ticks = |ns: f64| (ns * TICKS).round() as u64;
        let line = LINE as u64;
        let beyond = |lines: u64| (time(lines * line) - time(line)).max(0.0);
        let next = beyond(4 * TABLE) - beyond(TABLE);
        Self {
            lines: (0..=TABLE)
                .map(|n| if n == 0 { 0 } else { ticks(first + beyond(n)) })
                .collect(),
            next: ticks(next / (3 * TABLE) as f64),
        }
    }

    #[inline(always)]
    fn of(&self, lines: u64, following: bool) -> u64 {
        if following {
            return lines * self.next;
        }
        let tabled = lines.min(TABLE);
        self.lines[tabled as usize] + (lines - tabled) * self.next
    }
}

impl Medium {
    /// `profile` over links: of reads from the device to the host, of writes from the host to the device.
    pub fn new(profile: &Profile, reads: Vec<Arc<Link>>, writes: Vec<Arc<Link>>) -> Self {
        let first = profile.load_latency_ns;
        Self {
            read: Times::new(first, |bytes| profile.read_time(bytes)),
            write: Times::new(first, |bytes| profile.write_time(bytes)),
            profile: profile.clone(),
            reads,
            writes,
            owed: AtomicU64::new(0),
            cut: AtomicBool::new(false),
        }
    }

    /// Its profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The links that reads pass.
    pub fn links(&self) -> &[Arc<Link>] {
        &self.reads
    }

    /// Cuts or mends this host's way alone. See [`World::cut_link`](crate::World::cut_link) for what a cut does.
    pub fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Relaxed);
    }

    /// Whether the way, or a link on it, is cut.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Relaxed) || self.reads.iter().chain(&self.writes).any(|link| link.is_cut())
    }

    /// Fetches `lines` lines in a row that an access missed: how long the processor stalls. `following`: they go on
    /// where this thread's last miss ended, so that the processor was prefetching already.
    #[inline]
    pub fn fetch(&self, now: Nanos, lines: u64, following: bool) -> Nanos {
        self.cost(&self.reads, now, lines * LINE as u64, self.read.of(lines, following))
    }

    /// Writes `lines` lines in a row back: how long until they are at the device. An eviction does not wait for it.
    #[inline]
    pub fn write_back(&self, now: Nanos, lines: u64, following: bool) -> Nanos {
        self.cost(&self.writes, now, lines * LINE as u64, self.write.of(lines, following))
    }

    /// Copies `bytes` to the host in one go, as the papers' transfers by size.
    pub fn read(&self, now: Nanos, bytes: u64) -> Nanos {
        self.cost(&self.reads, now, bytes, (self.profile.read_time(bytes) * TICKS) as u64)
    }

    /// Copies `bytes` to the device in one go.
    pub fn write(&self, now: Nanos, bytes: u64) -> Nanos {
        self.cost(
            &self.writes,
            now,
            bytes,
            (self.profile.write_time(bytes) * TICKS) as u64,
        )
    }

    #[inline(always)]
    fn cost(&self, links: &[Arc<Link>], now: Nanos, bytes: u64, at_rest: u64) -> Nanos {
        let (mut waits, mut factor) = (0, ONE);
        for link in links {
            waits += link.enter((now.0 << TICK_BITS) + waits, bytes);
            factor = factor.max(link.factor.load(Relaxed));
        }
        let ticks = self.owed.load(Relaxed) + waits + (at_rest * factor) / ONE;
        self.owed.store(ticks % (1 << TICK_BITS), Relaxed);
        Nanos(ticks >> TICK_BITS)
    }
}

/// Which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The host's own.
    Local,
    /// A device, by its index.
    Device(usize),
}

/// Two links, one for each direction; or one for both.
type Pair = (Arc<Link>, Arc<Link>);

/// All links and media of a topology.
#[derive(Debug)]
pub struct Links {
    links: Vec<Arc<Link>>,
    local: Vec<Arc<Medium>>,
    /// By host, then device.
    devices: Vec<Vec<Arc<Medium>>>,
}

impl Links {
    /// Those that the topology names, and for the rest those of the profiles: a port for each host and profile, a
    /// switch for each profile that has one, a link for each device, and one for each host's own memory.
    pub fn new(topology: &Topology) -> Self {
        let mut build = Build::default();
        let local = topology.hosts.iter().map(|host| {
            let name = format!("{} memory", host.name);
            let bus = build.pair(&name, host.memory.bandwidth, &host.memory.loaded, true);
            medium(&host.memory, bus.into_iter().collect())
        });
        let local = local.collect();
        let named: Vec<Pair> = topology.links.iter().filter_map(|l| build.named(l)).collect();
        let route = |host: usize, device: usize| -> Vec<Pair> {
            let on_the_way = topology.links.iter().zip(&named);
            let joins = on_the_way.filter(|(spec, _)| spec.joins.contains(&(host, device)));
            joins.map(|(_, pair)| pair.clone()).collect()
        };
        let devices = (0..topology.hosts.len()).map(|host| {
            let see = |(i, device): (usize, &crate::topology::DeviceSpec)| {
                let mut way = route(host, i);
                if way.is_empty() {
                    way = build.way(&topology.hosts[host].name, &device.name, &device.profile);
                }
                medium(&device.profile, way)
            };
            topology.devices.iter().enumerate().map(see).collect()
        });
        let devices = devices.collect();
        Self {
            devices,
            local,
            links: build.links,
        }
    }

    /// A host's own memory.
    pub fn local(&self, host: usize) -> &Arc<Medium> {
        &self.local[host]
    }

    /// A device as a host sees it.
    pub fn device(&self, host: usize, device: usize) -> &Arc<Medium> {
        &self.devices[host][device]
    }

    /// How a host sees a place.
    #[inline]
    pub fn medium(&self, host: usize, place: Place) -> &Arc<Medium> {
        match place {
            Place::Local => &self.local[host],
            Place::Device(device) => &self.devices[host][device],
        }
    }

    /// All links, for counters and faults.
    pub fn all(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// The links whose names begin so: `host0` gives those of its memory and ports.
    pub fn named<'a>(&'a self, beginning: &'a str) -> impl Iterator<Item = &'a Arc<Link>> {
        self.links.iter().filter(move |l| l.name().starts_with(beginning))
    }

    /// A table of what has gone over each, with `time` as the time of the run.
    pub fn report(&self, time: Nanos) -> String {
        let mut text = String::from("link                              GB    GB/s   used  waited a transfer\n");
        for link in &self.links {
            let c = link.counters();
            let (gigabytes, seconds) = (c.bytes as f64 / 1e9, time.as_secs_f64().max(1e-9));
            text += &format!(
                "{:<30} {gigabytes:>7.3} {:>7.3} {:>5.1}% {:>10.1} ns\n",
                link.name(),
                gigabytes / seconds,
                c.busy.as_secs_f64() / seconds * 100.0,
                c.waited.0 as f64 / c.transfers.max(1) as f64,
            );
        }
        text
    }
}

fn medium(profile: &Profile, way: Vec<Pair>) -> Arc<Medium> {
    let to_host = way.iter().rev().map(|pair| Arc::clone(&pair.0)).collect();
    let to_device = way.iter().map(|pair| Arc::clone(&pair.1)).collect();
    Arc::new(Medium::new(profile, to_host, to_device))
}

/// Links by their names, made when first asked for.
#[derive(Default)]
struct Build {
    links: Vec<Arc<Link>>,
    made: BTreeMap<String, Pair>,
}

impl Build {
    fn add(&mut self, name: String, bandwidth: f64, loaded: &[(f64, f64)]) -> Arc<Link> {
        let link = Arc::new(Link::new(name, bandwidth).with_curve(loaded));
        self.links.push(Arc::clone(&link));
        link
    }

    /// `None` where the bandwidth is unknown: then it never binds.
    fn pair(&mut self, name: &str, bandwidth: Option<f64>, loaded: &[(f64, f64)], half_duplex: bool) -> Option<Pair> {
        let bandwidth = bandwidth?;
        if let Some(pair) = self.made.get(name) {
            return Some(pair.clone());
        }
        let pair = if half_duplex {
            let both = self.add(name.into(), bandwidth, loaded);
            (Arc::clone(&both), both)
        } else {
            let to_host = self.add(format!("{name} in"), bandwidth, loaded);
            (to_host, self.add(format!("{name} out"), bandwidth, loaded))
        };
        self.made.insert(name.into(), pair.clone());
        Some(pair)
    }

    fn named(&mut self, spec: &LinkSpec) -> Option<Pair> {
        self.pair(&spec.name, Some(spec.bandwidth), &spec.loaded, spec.half_duplex)
    }

    /// The links from a host to a device, by the device's profile. Of a device without widths, its bandwidth is a
    /// host's.
    fn way(&mut self, host: &str, device: &str, profile: &Profile) -> Vec<Pair> {
        let port = profile.host_port.bandwidth.or(profile.bandwidth);
        let loaded = &profile.loaded;
        let ways = [
            self.pair(&format!("{host} port of {}", profile.name), port, loaded, false),
            self.pair(
                &format!("switch of {}", profile.name),
                profile.switch.bandwidth,
                &[],
                false,
            ),
            self.pair(&format!("device {device}"), profile.device.bandwidth, loaded, false),
        ];
        ways.into_iter().flatten().collect()
    }
}
