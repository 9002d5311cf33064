//! What the server knows about itself, as views: `cenote_recovery`, `cenote_memory`, `cenote_sessions`,
//! `cenote_server`, `cenote_readers`, `cenote_staleness`, `cenote_archive`, `cenote_remote_memory`, `cenote_scaling`.
//!
//! SELECT reaches them through [`SystemViews`]; `cenote status` through the administration statements of
//! [`crate::admin`], which need no planner.

use crate::archiving::{Archiving, Seen};
use crate::device::Emulation;
use crate::server::registry::{Entry, Registry};
use cenote_base::rt::Nanos;
use cenote_base::{Lsn, PAGE_SIZE};
use cenote_engine::{ColumnType, Datum, Engine, PartState, PodStats, ReaderSeen, RemotePart, Staleness, TierStats};
use cenote_sql::SystemViews;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// From 1970-01-01 to 2000-01-01, where PostgreSQL's times begin.
const EPOCH_OFFSET: Duration = Duration::from_secs(946_684_800);

/// A column of a view.
pub type Column = (&'static str, ColumnType);
/// A row of a view.
pub type Row = Vec<Datum>;

const RECOVERY: [Column; 7] = [
    ("mode", ColumnType::Text),
    ("frames_kept", ColumnType::Int8),
    ("frames_repaired", ColumnType::Int8),
    ("frames_discarded", ColumnType::Int8),
    ("redo_bytes_read", ColumnType::Int8),
    ("transactions_rolled_back", ColumnType::Int8),
    ("duration_ms", ColumnType::Float8),
];

const MEMORY: [Column; 14] = [
    ("tier", ColumnType::Text),
    ("bytes", ColumnType::Int8),
    ("frames_in_use", ColumnType::Int8),
    ("frames_free", ColumnType::Int8),
    ("hits", ColumnType::Int8),
    ("misses", ColumnType::Int8),
    ("evictions", ColumnType::Int8),
    ("bytes_read", ColumnType::Int8),
    ("bytes_written", ColumnType::Int8),
    // What an emulated device did; NULL where none is.
    ("device", ColumnType::Text),
    ("lines_read", ColumnType::Int8),
    ("lines_written", ColumnType::Int8),
    ("lines_returned", ColumnType::Int8),
    ("stalled_ms", ColumnType::Float8),
];

const SESSIONS: [Column; 8] = [
    ("id", ColumnType::Int4),
    ("user_name", ColumnType::Text),
    ("application_name", ColumnType::Text),
    ("client_address", ColumnType::Text),
    ("connected_at", ColumnType::TimestampTz),
    ("state", ColumnType::Text),
    ("statements", ColumnType::Int8),
    ("query", ColumnType::Text),
];

/// Of a reader: how far behind it is.
const STALENESS: [Column; 3] = [
    ("position", ColumnType::Int8),
    ("age_ms", ColumnType::Float8),
    ("behind_ms", ColumnType::Float8),
];

/// Of the server of a database on storage nodes: its readers.
const READERS: [Column; 5] = [
    ("name", ColumnType::Text),
    ("position", ColumnType::Int8),
    ("behind_bytes", ColumnType::Int8),
    ("oldest_snapshot", ColumnType::Int8),
    ("heard_ms", ColumnType::Float8),
];

/// Of a server whose database is archived: positions as `cenote restore --to-lsn` takes them.
const ARCHIVE: [Column; 10] = [
    ("place", ColumnType::Text),
    ("timeline", ColumnType::Int8),
    ("position", ColumnType::Text),
    ("archived", ColumnType::Text),
    ("waiting_bytes", ColumnType::Int8),
    ("archived_at", ColumnType::TimestampTz),
    ("base_at", ColumnType::TimestampTz),
    ("takes_base", ColumnType::Bool),
    ("failures", ColumnType::Int8),
    ("failure", ColumnType::Text),
];

/// Of remote memory: its parts.
const REMOTE_MEMORY: [Column; 6] = [
    ("part", ColumnType::Text),
    ("node", ColumnType::Text),
    ("state", ColumnType::Text),
    ("bytes", ColumnType::Int8),
    ("pages", ColumnType::Int8),
    ("pages_used", ColumnType::Int8),
];

/// Of remote memory: how large it is and is to be, and what more and less of it would change.
const SCALING: [Column; 11] = [
    ("by_need", ColumnType::Bool),
    ("bytes", ColumnType::Int8),
    ("slabs", ColumnType::Int8),
    ("slabs_wanted", ColumnType::Int8),
    ("slabs_most", ColumnType::Int8),
    ("slab_bytes", ColumnType::Int8),
    ("hits_of_a_slab", ColumnType::Int8),
    ("misses_of_a_slab", ColumnType::Int8),
    ("slabs_taken", ColumnType::Int8),
    ("slabs_returned", ColumnType::Int8),
    ("pages_moved", ColumnType::Int8),
];

const SERVER: [Column; 7] = [
    ("version", ColumnType::Text),
    ("process", ColumnType::Int8),
    ("up_seconds", ColumnType::Int8),
    ("memory", ColumnType::Text),
    ("poisoned", ColumnType::Text),
    ("rollbacks_waiting", ColumnType::Int8),
    ("rollback_error", ColumnType::Text),
];

/// The views of a running server.
pub struct Views {
    engine: Arc<Engine>,
    registry: Arc<Registry>,
    memory: String,
    emulation: Option<Arc<Emulation>>,
    archiving: Option<Archiving>,
    started: Instant,
}

impl Views {
    /// Views over an engine and its sessions; `memory` says in words what the pages lie in, `emulation` what makes it
    /// slower.
    pub fn new(
        engine: Arc<Engine>,
        registry: Arc<Registry>,
        memory: String,
        emulation: Option<Arc<Emulation>>,
        archiving: Option<Archiving>,
    ) -> Arc<Views> {
        Arc::new(Views {
            engine,
            registry,
            memory,
            emulation,
            archiving,
            started: Instant::now(),
        })
    }

    fn server(&self) -> Vec<Row> {
        let (waiting, error) = self.engine.rollbacks_waiting();
        vec![vec![
            Datum::Text(env!("CARGO_PKG_VERSION").into()),
            count(u64::from(std::process::id())),
            count(self.started.elapsed().as_secs()),
            Datum::Text(self.memory.clone()),
            self.engine.poisoned().map_or(Datum::Null, Datum::Text),
            count(waiting as u64),
            error.map_or(Datum::Null, Datum::Text),
        ]]
    }

    fn recovery(&self) -> Vec<Row> {
        let report = self.engine.recovery_report();
        vec![vec![
            Datum::Text(report.mode),
            count(report.frames_kept),
            count(report.frames_repaired),
            count(report.frames_discarded),
            count(report.redo_bytes_read),
            count(report.transactions_rolled_back),
            Datum::Float8(report.duration_ms),
        ]]
    }

    fn memory(&self) -> Vec<Row> {
        let pool = self.engine.pool_stats();
        let mut frames = vec![
            Datum::Text(pool.tier.into()),
            count(pool.bytes),
            count(pool.frames_in_use.into()),
            count(pool.frames_free.into()),
            count(pool.counts.hits),
            count(pool.counts.misses),
            count(pool.counts.evictions),
            count(pool.bytes_read),
            count(pool.bytes_written),
        ];
        const NO_DEVICE: [Datum; 5] = [const { Datum::Null }; 5];
        frames.extend(self.emulation.as_ref().map_or(NO_DEVICE, |e| device(e)));
        let below = pool.pod.as_ref().map(pod).into_iter();
        let below = below.chain(pool.remote.as_ref().map(remote)).map(|mut row| {
            row.extend(NO_DEVICE);
            row
        });
        std::iter::once(frames).chain(below).collect()
    }

    fn readers(&self) -> Vec<Row> {
        let end = self.engine.log_end();
        let row = |reader: ReaderSeen| {
            vec![
                Datum::Text(reader.name),
                count(reader.end.raw()),
                count(end.saturating_sub(reader.end.raw())),
                count(reader.oldest.raw()),
                millis(reader.ago),
            ]
        };
        self.engine.readers().into_iter().map(row).collect()
    }

    fn staleness(&self) -> Vec<Row> {
        let row = |s: Staleness| vec![count(s.visible), millis(s.age), millis(s.behind)];
        self.engine.staleness().into_iter().map(row).collect()
    }

    fn archive(&self) -> Vec<Row> {
        let position = self.engine.log_end();
        let at = |lsn: u64| Datum::Text(Lsn::from_raw(lsn).to_string());
        let time = |micros: Option<u64>| {
            let time = micros.map(|micros| UNIX_EPOCH + Duration::from_micros(micros));
            time.map_or(Datum::Null, |time| Datum::TimestampTz(micros_since_2000(time)))
        };
        let row = |seen: Seen| {
            let (is_known, failing) = (seen.timeline.is_some(), seen.failing());
            let known = |datum| if is_known { datum } else { Datum::Null };
            vec![
                Datum::Text(seen.place),
                seen.timeline.map_or(Datum::Null, |number| count(number.into())),
                at(position),
                known(at(seen.archived)),
                known(count(position.saturating_sub(seen.archived))),
                time(seen.archived_at),
                time(seen.base_at),
                Datum::Bool(seen.takes_base),
                count(seen.failures),
                failing.map_or(Datum::Null, Datum::Text),
            ]
        };
        self.archiving.iter().map(|archiving| row(archiving.seen())).collect()
    }

    fn remote_memory(&self) -> Vec<Row> {
        self.engine.remote_parts().iter().map(part).collect()
    }

    fn scaling(&self) -> Vec<Row> {
        let tier = self.engine.pool_stats().remote;
        let parts = self.engine.remote_parts();
        tier.iter().map(|tier| scaling(tier, &parts)).collect()
    }

    fn sessions(&self) -> Vec<Row> {
        self.registry.sessions().iter().map(|entry| session(entry)).collect()
    }
}

impl SystemViews for Views {
    fn names(&self) -> Vec<String> {
        let all = [
            "cenote_recovery",
            "cenote_memory",
            "cenote_sessions",
            "cenote_server",
            "cenote_readers",
            "cenote_staleness",
            "cenote_archive",
            "cenote_remote_memory",
            "cenote_scaling",
        ];
        all.map(String::from).to_vec()
    }

    fn columns(&self, view: &str) -> Option<Vec<Column>> {
        match view {
            "cenote_recovery" => Some(RECOVERY.to_vec()),
            "cenote_memory" => Some(MEMORY.to_vec()),
            "cenote_sessions" => Some(SESSIONS.to_vec()),
            "cenote_server" => Some(SERVER.to_vec()),
            "cenote_readers" => Some(READERS.to_vec()),
            "cenote_staleness" => Some(STALENESS.to_vec()),
            "cenote_archive" => Some(ARCHIVE.to_vec()),
            "cenote_remote_memory" => Some(REMOTE_MEMORY.to_vec()),
            "cenote_scaling" => Some(SCALING.to_vec()),
            _ => None,
        }
    }

    fn rows(&self, view: &str) -> Vec<Row> {
        match view {
            "cenote_recovery" => self.recovery(),
            "cenote_memory" => self.memory(),
            "cenote_sessions" => self.sessions(),
            "cenote_server" => self.server(),
            "cenote_readers" => self.readers(),
            "cenote_staleness" => self.staleness(),
            "cenote_archive" => self.archive(),
            "cenote_remote_memory" => self.remote_memory(),
            "cenote_scaling" => self.scaling(),
            _ => Vec::new(),
        }
    }
}

/// The row of `cenote_memory` of the server's frames, which a reader of its pod reads.
fn pod(pod: &PodStats) -> Row {
    vec![
        Datum::Text("pod".into()),
        count(pod.bytes),
        count(pod.frames.into()),
        count(0),
        count(pod.hits),
        count(pod.misses),
        count(0),
        count(pod.hits * PAGE_SIZE as u64),
        count(0),
    ]
}

/// Remote memory's row of `cenote_memory`.
fn remote(tier: &TierStats) -> Row {
    vec![
        Datum::Text("rdma".into()),
        count(tier.bytes),
        count(tier.slots_in_use.into()),
        count(tier.slots_free.into()),
        count(tier.hits),
        count(tier.misses),
        count(tier.evictions),
        count(tier.bytes_read),
        count(tier.bytes_written),
    ]
}

/// A row of `cenote_remote_memory`.
fn part(part: &RemotePart) -> Row {
    let state = match part.state {
        PartState::Serving => "serving",
        PartState::Leaving => "leaving",
        PartState::Away => "away",
    };
    vec![
        Datum::Text(part.slab.map_or_else(|| "first".into(), |slab| format!("slab {slab}"))),
        Datum::Text(part.node.clone()),
        Datum::Text(state.into()),
        count(part.bytes),
        count(part.slots.into()),
        count(part.slots_in_use.into()),
    ]
}

/// The row of `cenote_scaling`.
fn scaling(tier: &TierStats, parts: &[RemotePart]) -> Row {
    let bytes = match parts {
        [] => tier.bytes,
        parts => parts.iter().map(|part| part.bytes).sum(),
    };
    vec![
        Datum::Bool(tier.by_need),
        count(bytes),
        count(tier.slabs.into()),
        count(tier.slabs_wanted.into()),
        count(tier.slabs_most.into()),
        count(tier.slab_bytes),
        count(tier.hits_of_a_slab),
        count(tier.misses_of_a_slab),
        count(tier.slabs_taken),
        count(tier.slabs_returned),
        count(tier.pages_moved),
    ]
}

fn device(emulation: &Emulation) -> [Datum; 5] {
    let figures = emulation.emulator().total();
    [
        Datum::Text(emulation.label()),
        count(figures.lines_read),
        count(figures.lines_written),
        count(figures.lines_returned),
        Datum::Float8((figures.stalled.0 / 1000) as f64 / 1000.0),
    ]
}

fn session(entry: &Entry) -> Row {
    vec![
        Datum::Int4(entry.id),
        Datum::Text(entry.user.clone()),
        Datum::Text(entry.application_name()),
        Datum::Text(entry.client.clone()),
        Datum::TimestampTz(micros_since_2000(entry.connected)),
        Datum::Text(entry.state().word().into()),
        count(entry.statements()),
        Datum::Text(entry.query()),
    ]
}

fn count(number: u64) -> Datum {
    Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}

fn millis(time: Nanos) -> Datum {
    Datum::Float8((time.0 / 1000) as f64 / 1000.0)
}

fn micros_since_2000(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH + EPOCH_OFFSET).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(columns: &[Column], row: &Row, name: &str) -> Datum {
        assert_eq!(columns.len(), row.len());
        let at = columns.iter().position(|column| column.0 == name).expect("a column");
        row[at].clone()
    }

    #[test]
    fn parts_are_shown_by_number_and_state() {
        let mut shown = RemotePart {
            slab: None,
            node: "node".into(),
            bytes: 64 << 20,
            slots: 4000,
            slots_in_use: 17,
            state: PartState::Away,
        };
        let text = |shown: &RemotePart, name| named(&REMOTE_MEMORY, &part(shown), name);
        assert_eq!(text(&shown, "part"), Datum::Text("first".into()));
        assert_eq!(text(&shown, "state"), Datum::Text("away".into()));
        (shown.slab, shown.state) = (Some(3), PartState::Leaving);
        assert_eq!(text(&shown, "part"), Datum::Text("slab 3".into()));
        assert_eq!(text(&shown, "state"), Datum::Text("leaving".into()));
        assert_eq!(text(&shown, "pages_used"), Datum::Int8(17));

        let tier = TierStats {
            bytes: 5,
            slabs_wanted: 2,
            slabs_most: 9,
            misses_of_a_slab: 11,
            pages_moved: 13,
            by_need: true,
            ..TierStats::default()
        };
        let of = |parts: &[RemotePart], name| named(&SCALING, &scaling(&tier, parts), name);
        assert_eq!(of(&[], "bytes"), Datum::Int8(5));
        assert_eq!(of(&[shown.clone(), shown], "bytes"), Datum::Int8(128 << 20));
        assert_eq!(of(&[], "by_need"), Datum::Bool(true));
        for (name, number) in [
            ("slabs_wanted", 2),
            ("slabs_most", 9),
            ("misses_of_a_slab", 11),
            ("hits_of_a_slab", 0),
            ("pages_moved", 13),
        ] {
            assert_eq!(of(&[], name), Datum::Int8(number), "{name}");
        }
    }
}
