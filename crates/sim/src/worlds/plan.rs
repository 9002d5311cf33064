//! What a seed stands for: which world, how large, with which faults. Drawn once, before anything runs.

use cenote_base::random::{Random, mix};
use cenote_base::rt::Nanos;
use cenote_base::rt::mark::{Aim, Mark};
use cenote_engine::{EngineOptions, MemoryKind, Origins, Tuning};

use super::hunt::{End, Hunt, Slow};
use super::name::Name;
use super::rows::Shape;

/// What a run may reach at most: the dimensions in which a failure is shrunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Transactions; operations of the pool's users, and four times those of its holders.
    pub transactions: u64,
    /// Ends of processes before the last one.
    pub deaths: u32,
    /// Sessions at once; holders of the pool.
    pub sessions: usize,
    /// Rows a table; objects of the pool; its grants.
    pub rows: i32,
    /// Statements in a transaction.
    pub statements: u64,
    /// Redraws the order of the threads, with everything else as it is.
    pub twist: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            transactions: 2_100,
            deaths: u32::MAX,
            sessions: usize::MAX,
            rows: i32::MAX,
            statements: u64::MAX,
            twist: 0,
        }
    }
}

/// A drawn world.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which.
    pub name: Name,
    /// The seed.
    pub seed: u64,
    /// Seed of the order of threads.
    pub schedule: u64,
    /// Transactions in all lives together, about.
    pub transactions: u64,
    /// Lives that end by a fault. One more ends in order.
    pub deaths: u32,
    /// Sessions at once.
    pub sessions: usize,
    /// Sessions that define tables and indexes.
    pub definers: usize,
    /// Tables.
    pub tables: u8,
    /// Rows a table, at most.
    pub rows: i32,
    /// Statements in a transaction, at most.
    pub statements: u64,
    /// Of 100 transactions so many are at repeatable read.
    pub repeatable: u64,
    /// Of 100 transactions so many are taken back.
    pub taken_back: u64,
    /// Of 100 statements so many only read.
    pub reading: u64,
    /// Whether what is written must survive the host.
    pub host: bool,
    /// Hosts.
    pub hosts: usize,
    /// What a host's clock gains or loses in a million, at most.
    pub drift: i32,
    /// Whether memory is a simulated device, seen through the hosts' caches.
    pub device: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// How rows look.
    pub shape: Shape,
    /// Sizes at which the engine begins something: small ones, as a rule.
    pub tuning: Tuning,
    /// Where the numbers of the database begin: near an end, as a rule.
    pub origins: Origins,
    /// Where threads stand still, lives end, and storage is slow.
    pub hunt: Hunt,
    /// Few write, and all is written back again and again: checkpoints come up to the end of the log.
    pub calm: bool,
    /// Remote memory below the frames.
    pub tier: Option<Tier>,
    /// Bytes of a host's cache; `None`: as usual.
    pub cache: Option<u64>,
    /// Sessions leave transactions to the next life.
    pub leaves: bool,
    /// Bits on the disk are flipped for good before the last life, which then may fail, but not be wrong.
    pub rot: bool,
    /// Pods of the memory pool.
    pub pods: Option<Pods>,
    /// Grants of the memory pool.
    pub grants: Option<Grants>,
    /// Pages of a buffer pool without an engine.
    pub pages: Option<Pages>,
}

/// A buffer pool whose pages are changed by mini-transactions of their own. Sessions are threads, statements the pages
/// of a change at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// How many.
    pub pages: u32,
    /// One change in so many writes the whole of a page.
    pub whole: u64,
    /// One change in so many makes a page anew.
    pub anew: u64,
    /// Of 100 changes so many are waited for until they are durable.
    pub waits: u64,
    /// One in so many holders of a page stands still with it.
    pub still: u64,
    /// Between two turns of a thread, in nanoseconds, at most.
    pub rests: u64,
    /// Whether a space beside is made and dropped, again and again.
    pub remakes: bool,
}

/// A memory pool whose grants come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grants {
    /// How long a lease lasts.
    pub lease: Nanos,
    /// Memory nodes.
    pub nodes: usize,
    /// Extents of each.
    pub extents: u64,
    /// Names that memory is asked for by.
    pub labels: usize,
    /// Holders lock what they map, as regions do: then no other process maps it, whatever the pool does.
    pub locks: bool,
    /// Managers. One has its book in a file; of several one leads, with the book in etcd.
    pub managers: usize,
    /// How long a manager that is silent goes on to lead, in seconds.
    pub ttl: u64,
    /// Hosts that share a device, in place of memory nodes.
    pub hosts: usize,
    /// Bytes of the device that are coherent among them in hardware.
    pub window: u64,
    /// A host may be called lost that is not.
    pub wrong_words: bool,
}

/// A space of the memory pool, over several pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pods {
    /// Extents of each pod's part.
    pub extents: u64,
    /// Between two looks at what is hot.
    pub every: Nanos,
    /// How long what has come stays.
    pub stay: Nanos,
    /// Between two moves that no member has asked for, about; zero: none.
    pub moves: Nanos,
    /// How long a host waits for what another is ordered to do.
    pub timeout: Nanos,
    /// A pod is lost.
    pub loses: bool,
    /// Bytes of each device that hardware keeps coherent; `None`: all of them.
    pub window: Option<u64>,
    /// A pod whose device a second host maps: bytes alone. Nothing moves away from there then.
    pub twin: Option<usize>,
    /// In the end users of all pods do the same, for a while, and nothing else happens.
    pub shares: bool,
}

/// Sizes of a pool with remote memory, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// Frames: as few as there may be, or a few more.
    pub frames: u32,
    /// Slots of remote memory: fewer than the database has pages, or more.
    pub slots: u32,
}

/// What a life does about transactions that are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaving {
    /// Its sessions leave some.
    pub leaves: bool,
    /// It ends in order.
    pub in_order: bool,
    /// It ends soon after one of the life before was taken up, however it ends.
    pub ends_taken: bool,
    /// Those of the life before are given up while it lasts, unless their sessions come at once.
    pub gives_up: bool,
    /// How long they wait for their sessions: no life is as long as the longer times.
    pub wait: Nanos,
}

/// In a million. Clocks as they are sold: some hundred; and a hundredth, which leases have to bear (docs/pool.md).
const DRIFTS: [i32; 4] = [0, 200, 1_000, 10_000];
/// A log that takes its time, whatever is done with its files.
const SLOW_LOG: Slow = Slow {
    part: "/log",
    one_in: 1,
    time: Nanos::from_millis(20),
};
/// The first host with an agent: before it are those of three managers, and the machine of operators.
pub(super) const FIRST_AGENT: usize = 4;
/// Statements of a large transaction, at most.
const BULK: u64 = 200;

impl Plan {
    /// Draws the world of a seed, within limits.
    pub fn draw(name: Name, seed: u64, limits: Limits) -> Plan {
        let mut draw = Random(mix(seed ^ name as u64) ^ seed);
        let rows = draw.pick(&[4, 12, 12, 40, 40, 150, 400]);
        let sessions = draw.pick(&[2, 3, 3, 4, 5, 8]);
        let deaths = match name {
            Name::Transactions => 3,
            Name::Crash => 5 + draw.below(3) as u32,
            Name::Pages => 10 + draw.below(10) as u32,
            Name::Handover => 4 + draw.below(3) as u32,
            _ => 3 + draw.below(2) as u32,
        };
        let definers = if name == Name::Ddl {
            1 + draw.below(2) as usize
        } else {
            0
        };
        let shape = Shape {
            uniques: (rows as u64 * 2).max(8),
            large: draw.pick(&[0, 0, 200, 60, 20]),
            length: draw.pick(&[8, 40, 120, 400]),
        };
        let drawn = Plan {
            name,
            seed,
            schedule: mix(seed.wrapping_mul(31) ^ limits.twist) >> 1,
            transactions: limits.transactions,
            deaths: deaths.min(limits.deaths),
            sessions: sessions.min(limits.sessions.max(1)),
            definers: definers.min(limits.sessions),
            tables: 1 + draw.below(3) as u8,
            rows: rows.min(limits.rows.max(1)),
            statements: draw.pick(&[1, 3, 3, 5, 8]).min(limits.statements.max(1)),
            repeatable: draw.pick(&[0, 30, 50, 70, 100]),
            taken_back: draw.pick(&[0, 5, 15, 30]),
            reading: draw.pick(&[10, 40, 40, 70]),
            hosts: if name == Name::Handover { 2 } else { 1 },
            drift: 0,
            device: matches!(name, Name::HostLoss | Name::Handover) || draw.one_in(4),
            host: matches!(name, Name::HostLoss | Name::Handover)
                || (matches!(name, Name::Crash | Name::Pages) && draw.one_in(3)),
            memory: draw.pick(&[8, 10, 12]) << 20,
            shape,
            tuning: Tuning::default(),
            origins: Origins::default(),
            hunt: Hunt::default(),
            calm: false,
            tier: None,
            cache: None,
            leaves: false,
            rot: name == Name::Disk && draw.one_in(3),
            pods: None,
            grants: None,
            pages: None,
        };
        let drawn = drawn.with_thresholds(limits).with_a_hunt(limits);
        let drawn = match name {
            Name::Tiered => drawn.over_remote_memory(limits, &mut draw),
            Name::DeviceLoss => drawn.on_a_device_that_goes(&mut draw),
            Name::Pool => drawn.in_pods(&mut draw),
            Name::Store => drawn.in_stores(limits, &mut draw),
            Name::Grants => drawn.with_grants(&mut draw),
            Name::Leaders => drawn.with_leaders(&mut draw),
            Name::Hosts => drawn.with_hosts(&mut draw),
            Name::Sql => drawn.of_statements(limits, &mut draw),
            Name::Pages => drawn.of_pages(limits, &mut draw),
            _ => drawn,
        };
        drawn.that_leaves().with_clocks()
    }

    /// From a sequence of its own: whether sessions leave transactions. Those of few statements, as writes are numbered
    /// by a byte, and many at repeatable read.
    fn that_leaves(mut self) -> Plan {
        let mut draw = Random(mix(self.seed ^ 0x6C65_6176_6573) ^ self.name as u64);
        let can = matches!(
            self.name,
            Name::Crash | Name::Transactions | Name::HostLoss | Name::Handover | Name::Tiered
        );
        self.leaves = can && self.statements != BULK && draw.one_in(2);
        if self.leaves && draw.one_in(2) {
            self.repeatable = self.repeatable.max(70);
        }
        self
    }

    /// From a sequence of its own: how transactions are left in a life, and wait for their sessions.
    pub(super) fn leaving(&self, life: usize) -> Leaving {
        let mut draw = Random(mix(self.seed ^ 0x6C69_6665 ^ (life as u64) << 32));
        let is_last = life == self.deaths as usize;
        let gives_up = draw.one_in(4);
        Leaving {
            leaves: self.leaves && !is_last && !draw.one_in(4),
            in_order: self.leaves && draw.one_in(3),
            ends_taken: self.leaves && !is_last && draw.one_in(2),
            gives_up,
            wait: match gives_up {
                true => draw.pick(&[Nanos::ZERO, Nanos::ZERO, Nanos::from_micros(300)]),
                false => Nanos::from_secs(3600),
            },
        }
    }

    /// From a sequence of its own: how far clocks drift. One host alone has nothing that its clock could go apart from.
    fn with_clocks(mut self) -> Plan {
        let mut draw = Random(mix(self.seed ^ 0x0063_6C6F_636B) ^ self.name as u64);
        let drift = match self.name {
            Name::Leaders => draw.pick(&DRIFTS[1..]).max(draw.pick(&DRIFTS)),
            _ => draw.pick(&DRIFTS),
        };
        let has_hosts = self.hosts > 1 || self.name == Name::Servers;
        self.drift = if has_hosts { drift } else { 0 };
        self
    }

    /// From a sequence of its own: the thresholds of the engine, and how much it has to keep out of memory.
    fn with_thresholds(mut self, limits: Limits) -> Plan {
        let mut draw = Random(mix(self.seed ^ 0x7468_7265_7368) ^ self.name as u64);
        let usual = Tuning::default();
        self.tuning = Tuning {
            log_limit: draw.pick(&[32 << 10, 128 << 10, 512 << 10, usual.log_limit]),
            flush_turn: Nanos::from_micros(draw.pick(&[500, 2_000, 20_000, 100_000])),
            segment_bytes: draw.pick(&[256 << 10, 1 << 20, usual.segment_bytes]),
            scan_limit: draw.pick(&[0, 0, usual.scan_limit]),
            survey_part: 32,
            status_ring: draw.pick(&[4, 32, 512, usual.status_ring]),
            tx_block: draw.pick(&[16, 1 << 10, usual.tx_block]),
            give_back_pages: draw.pick(&[1, 2, 8, usual.give_back_pages]),
            rollback_rows: Random(mix(self.seed ^ 0x756E_646F)).pick(&[0, 0, 5, usual.rollback_rows]),
            short_rollback_rows: Random(mix(self.seed ^ 0x7368_6F72)).pick(&[0, 0, usual.short_rollback_rows]),
            cut_after: Random(mix(self.seed ^ 0x6375_7400)).pick(&[Nanos::ZERO, Nanos::ZERO, usual.cut_after]),
            version_bytes: Random(mix(self.seed ^ 0x7665_7273)).pick(&[
                0,
                4 << 10,
                usual.version_bytes,
                usual.version_bytes,
            ]),
            left_wait: usual.left_wait,
            brings: usual.brings,
        };
        let large = matches!(
            self.name,
            Name::Transactions | Name::Crash | Name::HostLoss | Name::Handover | Name::Backup
        );
        if large && draw.one_in(3) {
            self.hold_more_than_memory(limits, &mut draw);
        }
        self
    }

    /// From a sequence of its own: what the seed aims at, and where numbers begin.
    fn with_a_hunt(mut self, limits: Limits) -> Plan {
        let mut draw = Random(mix(self.seed ^ 0x6875_6E74) ^ self.name as u64);
        self.hunt = Hunt::draw(self.name, &mut draw);
        self.origins = origins(self.name, self.tuning.tx_block, &mut draw);
        self.calm = draw.one_in(4);
        self.suit(limits, &mut draw);
        if self.statements == BULK {
            self.hunt.slow = Some(SLOW_LOG);
        }
        self.calm &= matches!(self.name, Name::Crash | Name::HostLoss | Name::Pages);
        if self.calm {
            self.sessions = self.sessions.min(2);
            self.reading = draw.pick(&[10, 70]);
            self.rows = self.rows.max(40).min(limits.rows.max(1));
        }
        self
    }

    /// Sizes at which what the seed aims at can happen.
    fn suit(&mut self, limits: Limits, draw: &mut Random) {
        if let Some(End::At(Mark::SegmentRetired | Mark::CheckpointMoved, _)) = self.hunt.end {
            self.tuning.log_limit = draw.pick(&[32 << 10, 128 << 10]);
            self.tuning.segment_bytes = 64 << 10;
        }
        match self.hunt.end {
            Some(End::At(Mark::PagesPunched, _)) => self.end_pages_of_timestamps(draw),
            Some(End::At(Mark::SpaceAgain, _)) => {
                self.origins.space = Origins::default().space;
                self.origins.space_end = self.origins.space + draw.pick(&[40, 60]);
            }
            _ => {}
        }
        let Some(aim) = self.hunt.aim else { return };
        match (aim.at, aim.until) {
            (_, Some(Mark::CheckpointMoved)) => {
                // A flush of everything waits for the page that the thread in the window has latched: the log's length
                // asks for less.
                self.calm = false;
                self.tuning.log_limit = draw.pick(&[32 << 10, 128 << 10]);
                self.tuning.flush_turn = Nanos::from_micros(500);
                if self.name == Name::Crash && draw.one_in(2) {
                    self.change_clean_pages(limits, draw);
                }
            }
            (_, Some(Mark::CtsGivenBack)) => {
                self.end_pages_of_timestamps(draw);
                self.tuning.status_ring = 4;
            }
            (Mark::CommitReserved, _) => {
                // Commits on one page of timestamps come one after the other: these are on two.
                self.end_pages_of_timestamps(draw);
                self.origins.tx += 60;
                self.deaths = 10.min(limits.deaths);
                self.transactions = self.transactions.min(600);
                self.tuning.status_ring = 512;
                self.sessions = 8.min(limits.sessions.max(1));
                self.rows = 12.min(limits.rows.max(1));
                // A transaction that has written several rows leaves a trace though one of them is another's.
                (self.tables, self.statements) = (1, 8.min(limits.statements.max(1)));
                (self.repeatable, self.reading, self.taken_back) = (0, 10, 0);
                self.hunt.aim = Some(Aim {
                    one_in: draw.pick(&[1, 3]),
                    most: Nanos::from_millis(2),
                    ..aim
                });
            }
            (Mark::UniqueFree, _) => {
                self.shape.uniques = draw.pick(&[2, 4, 8]);
                self.reading = 10;
            }
            (Mark::ListChanging | Mark::FrameFound, _) if self.tier.is_none() && self.name != Name::Pages => {
                self.hold_more_than_memory(limits, draw)
            }
            _ => {}
        }
    }

    /// Each life comes to the end of a page of timestamps, soon after its start: starts leave out the rest of a block
    /// of numbers.
    fn end_pages_of_timestamps(&mut self, draw: &mut Random) {
        self.tuning.tx_block = 2044;
        self.origins.tx = 2044 * (1 + draw.below(1 << 30)) - 70 - draw.below(30);
        self.tuning.give_back_pages = 1;
    }

    /// Many sessions, each on pages of its own that were written back since it changed them last, and short
    /// transactions.
    fn change_clean_pages(&mut self, limits: Limits, draw: &mut Random) {
        self.tuning.log_limit = 32 << 10;
        self.sessions = 12.min(limits.sessions.max(1));
        self.rows = 400.min(limits.rows.max(1));
        self.shape.uniques = (self.rows as u64 * 2).max(8);
        self.shape.length = 400;
        (self.tables, self.statements) = (3, 1);
        (self.reading, self.taken_back) = (10, 0);
        self.hunt.end = Some(End::Behind(draw.pick(&[1, 4])));
        if let Some(aim) = &mut self.hunt.aim {
            aim.one_in = draw.pick(&[20, 100]);
        }
    }

    /// More pages than frames: long rows, and as few frames as there may be, or a few more.
    fn hold_more_than_memory(&mut self, limits: Limits, draw: &mut Random) {
        let frames = draw.pick(&[128, 128, 160]);
        let options = EngineOptions::new("/data", MemoryKind::Cxl, self.memory).with_frames(frames);
        self.memory = options.map_or(self.memory, |options| options.memory_size);
        self.tables = self.tables.max(2);
        self.rows = draw.pick(&[150, 400]).min(limits.rows.max(1));
        self.shape.uniques = (self.rows as u64 * 2).max(8);
        self.shape.length = draw.pick(&[1500, 4000]);
        // Few and large transactions: more redo than the ring holds, before any of it need be durable.
        if draw.one_in(4) {
            self.statements = BULK.min(limits.statements.max(1));
            self.transactions = (self.transactions / 20).max(1);
        }
    }

    /// Two hosts; what is in their caches when the device goes is much or little.
    fn on_a_device_that_goes(mut self, draw: &mut Random) -> Plan {
        (self.device, self.hosts) = (true, 2);
        self.host = draw.one_in(2);
        self.cache = Some(draw.pick(&[128 << 10, 1 << 20, 8 << 20]));
        self
    }

    /// Hosts are pods; sessions are threads of users; rows are objects.
    fn in_pods(mut self, draw: &mut Random) -> Plan {
        (self.device, self.host) = (false, false);
        self.hosts = draw.pick(&[2, 2, 3]);
        self.pods = Some(Pods {
            extents: draw.pick(&[7, 10, 14]),
            every: Nanos::from_millis(draw.pick(&[1, 2, 10])),
            stay: Nanos::from_millis(draw.pick(&[1, 5, 20])),
            moves: Nanos::from_micros(draw.pick(&[0, 300, 1000, 5000])),
            timeout: Nanos::from_millis(draw.pick(&[2, 5, 20, 100])),
            loses: self.deaths > 0 && draw.one_in(4),
            window: None,
            twin: None,
            shares: draw.one_in(3),
        });
        if let (Some(aim), Some(pods)) = (&mut self.hunt.aim, &mut self.pods)
            && aim.at == Mark::ExtentReceived
        {
            // Moves that fail, and are tried again while orders of the first try are on their way.
            aim.one_in = 3;
            pods.moves = Nanos::from_micros(300);
            pods.timeout = pods.timeout.min(Nanos::from_millis(5));
        }
        self
    }

    /// The same, with keys in place of objects: fewer threads, and extents for each size of each process.
    fn in_stores(self, limits: Limits, draw: &mut Random) -> Plan {
        let mut plan = self.in_pods(draw);
        plan.rows = draw.pick(&[6, 20, 40, 90]).min(limits.rows.max(1));
        plan.sessions = plan.sessions.min(draw.pick(&[2, 3, 4]));
        plan.transactions = plan.transactions.min(draw.pick(&[150, 400, 900]));
        if let Some(pods) = &mut plan.pods {
            pods.shares = false;
            pods.extents = draw.pick(&[64, 96]);
            let window = draw.pick(&[0, 0, 4096, 1 << 20]);
            (pods.window, pods.twin) = match draw.below(4) {
                0 => (None, None),
                1 => (Some(window), None),
                _ => (Some(window), Some(0)),
            };
        }
        plan
    }

    /// Few rows, which many want, and statements in place of the engine's calls.
    fn of_statements(mut self, limits: Limits, draw: &mut Random) -> Plan {
        self.rows = draw.pick(&[3, 6, 12, 40]).min(limits.rows.max(1));
        self.tables = self.tables.min(2);
        self.statements = draw.pick(&[2, 4, 8]).min(limits.statements.max(1));
        self.reading = draw.pick(&[20, 40, 60]);
        self.transactions = self.transactions / 2 + 1;
        self
    }

    /// More or fewer pages than frames, of which there are as few as there may be.
    fn of_pages(mut self, limits: Limits, draw: &mut Random) -> Plan {
        (self.memory, self.tables, self.definers) = (least_memory(), 0, 0);
        self.rows = draw.pick(&[4, 30, 100, 200, 400]).min(limits.rows.max(1));
        self.statements = draw.pick(&[1, 2, 4]).min(limits.statements.max(1));
        self.reading = draw.pick(&[10, 40]);
        self.tuning.segment_bytes = draw.pick(&[64 << 10, 256 << 10]);
        self.cache = draw.one_in(2).then(|| draw.pick(&[16 << 10, 64 << 10]));
        (self.device, self.host) = (draw.one_in(2), draw.one_in(2));
        self.pages = Some(Pages {
            pages: self.rows as u32,
            whole: draw.pick(&[1, 5, 50]),
            anew: draw.pick(&[2, 10, 50]),
            waits: draw.pick(&[0, 10, 50, 100]),
            still: draw.pick(&[5, 50, 1_000]),
            rests: if self.calm { 100_000 } else { draw.pick(&[0, 0, 20_000]) },
            remakes: draw.one_in(3),
        });
        match self.hunt.aim.map(|aim| (aim.at, aim.until)) {
            Some((_, Some(Mark::RingFull))) => self.flood_the_ring(),
            Some((Mark::CommitLogged, None)) => self.make_pages_anew(limits),
            Some((Mark::FramesAsked, _)) => self.leave_pages_alone(),
            _ => {}
        }
        self
    }

    /// More redo than the ring holds, before any of it need be durable.
    fn flood_the_ring(&mut self) {
        if let Some(pages) = &mut self.pages {
            (pages.whole, pages.waits, pages.rests) = (1, 0, 0);
        }
        (self.deaths, self.statements) = (self.deaths.min(3), self.statements.max(2));
        self.tuning.log_limit = Tuning::default().log_limit;
    }

    /// There are moments at which no page is dirty.
    fn leave_pages_alone(&mut self) {
        (self.calm, self.sessions) = (true, self.sessions.min(2));
        if let Some(pages) = &mut self.pages {
            (pages.rests, pages.waits) = (400_000, 100);
        }
    }

    /// Pages that no frame has are made, again and again, and hosts are lost.
    fn make_pages_anew(&mut self, limits: Limits) {
        (self.device, self.host) = (true, true);
        self.rows = 400.min(limits.rows.max(1));
        if let Some(pages) = &mut self.pages {
            (pages.pages, pages.anew) = (self.rows as u32, 2);
        }
    }

    /// The manager's host, and the machine of nodes and holders. Sessions are holders, rows the labels of grants.
    fn with_grants(mut self, draw: &mut Random) -> Plan {
        (self.device, self.host, self.hosts) = (false, false, 2);
        let labels = draw.pick(&[1, 2, 3, 5, 8]);
        let lease = Nanos::from_millis(draw.pick(&[400, 800, 800, 2_000]));
        if let Some(aim) = &mut self.hunt.aim {
            // What is held up for less than a lease is still its holder's.
            aim.most = Nanos(4 * lease.raw());
        }
        self.grants = Some(Grants {
            lease,
            nodes: draw.pick(&[1, 2]),
            extents: draw.pick(&[3, 5, 8]),
            labels: labels.min(self.rows as usize),
            locks: draw.one_in(3),
            managers: 1,
            ttl: 0,
            hosts: 0,
            window: 0,
            wrong_words: false,
        });
        self
    }

    /// As with leaders, one at times, and a device that hosts share in place of memory nodes.
    fn with_hosts(self, draw: &mut Random) -> Plan {
        let mut plan = self.with_leaders(draw);
        let hosts = draw.pick(&[2, 2, 3]);
        plan.hosts = FIRST_AGENT + hosts;
        plan.cache = Some(draw.pick(&[64 << 10, 256 << 10, 1 << 20]));
        if let Some(grants) = &mut plan.grants {
            *grants = Grants {
                hosts,
                nodes: 0,
                locks: false,
                managers: draw.pick(&[1, grants.managers]),
                window: draw.pick(&[0, 0, 64 << 10, 2 << 20, u64::MAX]),
                wrong_words: draw.one_in(4),
                ..*grants
            };
        }
        plan
    }

    /// As with grants, and more managers, each on a host of its own.
    fn with_leaders(self, draw: &mut Random) -> Plan {
        let mut plan = self.with_grants(draw);
        let managers = draw.pick(&[2, 3, 3]);
        plan.hosts = managers + 1;
        if let Some(grants) = &mut plan.grants {
            (grants.managers, grants.ttl) = (managers, draw.pick(&[1, 2, 5]));
        }
        plan
    }

    /// More pages than frames, as a rule: rows are long.
    fn over_remote_memory(mut self, limits: Limits, draw: &mut Random) -> Plan {
        (self.device, self.host) = (false, false);
        self.tables = self.tables.max(2);
        self.rows = draw.pick(&[150, 400, 400]).min(limits.rows.max(1));
        self.shape.uniques = (self.rows as u64 * 2).max(8);
        self.shape.length = draw.pick(&[1500, 4000, 8000]);
        self.tier = Some(Tier {
            frames: draw.pick(&[128, 128, 160]),
            slots: draw.pick(&[40, 90, 300, 1000]),
        });
        self
    }
}

/// Bytes of a region with the fewest frames.
fn least_memory() -> u64 {
    cenote_buffer::Geometry::len_for(cenote_buffer::FRAMES_MIN).unwrap_or(8 << 20)
}

/// Where the numbers of a database begin: just below what words once held, or a page of timestamps ends, or a lap of
/// undo.
fn origins(world: Name, tx_block: u64, draw: &mut Random) -> Origins {
    let usual = Origins::default();
    if draw.one_in(3) {
        return usual;
    }
    let below = |end: u64, by: u64| (end - by) & !4095;
    let log = [
        usual.log,
        below(1 << 32, 64 << 10),
        below(1 << 48, 64 << 10),
        below(1 << 48, 1 << 20),
        1 << 56,
    ];
    // A page of timestamps, of 2,044 transactions, is full after the first few hundred.
    let page_end = 2044 * (1 + draw.below(1 << 30));
    let tx = [
        usual.tx,
        page_end - draw.below(600),
        page_end - draw.below(600),
        (1 << 32) - 300,
        (1 << 52) - (1 << 20),
    ];
    let spaces = if world == Name::Ddl {
        draw.pick(&[60, 200, 1_000])
    } else {
        200
    };
    let space = draw.pick(&[usual.space, 0x7FFF_FF00, usual.space_end - spaces]);
    // From a sequence of its own. Only definitions come to the end of a narrow range.
    let mut ids = Random(mix(draw.0));
    let narrow = usual.object + ids.pick(&[60, 200]) as u32;
    let (object, object_end) = match world {
        Name::Ddl if ids.one_in(2) => (usual.object, narrow),
        _ => (ids.pick(&[usual.object, 0x7FFF_FFF0, u32::MAX - 40]), u32::MAX),
    };
    Origins {
        object,
        object_end,
        log: draw.pick(&log),
        tx: draw.pick(&tx),
        // Each start leaves the rest of a block of numbers out: a small circle is for small blocks.
        cts_pages: if tx_block <= 1 << 10 { 128 } else { usual.cts_pages },
        undo_pages: draw.pick(&[512, 512, usual.undo_pages]),
        undo_lap: draw.pick(&[0, 252, 253]),
        space,
        space_end: if space < 0x7FFF_0000 {
            space + spaces
        } else {
            usual.space_end
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_world_is_told_the_names() {
        let error = "atlantis".parse::<Name>().expect_err("no such world");
        assert!(error.contains("atlantis") && error.contains("host-loss"), "{error}");
        assert_eq!("ddl".parse(), Ok(Name::Ddl));
    }

    #[test]
    fn limits_reduce_and_nothing_else_changes() {
        let full = Plan::draw(Name::Crash, 7, Limits::default());
        let limits = Limits {
            sessions: 1,
            ..Limits::default()
        };
        let less = Plan::draw(Name::Crash, 7, limits);
        assert_eq!((less.sessions, less.rows, less.deaths), (1, full.rows, full.deaths));
    }
}
