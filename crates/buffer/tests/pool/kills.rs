//! Processes killed at random moments, and what the next one finds.
//!
//! A victim (this test's own program, started again) works at the bank of [`crate::model`], in a pool smaller than the
//! data, and notes counts in a file, which outlives it. SIGKILL ends it at a random moment.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cenote_base::rt::Nanos;
use cenote_buffer::{BufferPool, Config, Kind, Mode, RecoveryReport, Survive};
use cenote_storage::DataDir;

use crate::model::{self, Random, THREADS};

/// More than the pool has frames for.
const PAGES: u32 = 900;

fn open(dir: &Path, survive: Survive, kind: Kind) -> (BufferPool, RecoveryReport) {
    let data = DataDir::open(&dir.join("data")).expect("data directory");
    let large = std::env::var("CENOTE_LARGE").is_ok();
    let mut config = Config::new(kind, if large { 1 << 30 } else { 15 << 20 });
    config.region = Some(dir.join("region"));
    config.ring = (!large).then_some((4 << 20) + 4096);
    config.survive = survive;
    config.log_limit = 24 << 20;
    BufferPool::open(config, data).expect("pool")
}

/// Not a test: what the killed process runs.
#[test]
fn victim() {
    let Ok(dir) = std::env::var("CENOTE_VICTIM_DIR") else {
        return;
    };
    let dir = Path::new(&dir);
    let seed: u64 = std::env::var("CENOTE_VICTIM_SEED")
        .expect("seed")
        .parse()
        .expect("number");
    let survive = if std::env::var("CENOTE_VICTIM_HOST").is_ok() {
        Survive::Host
    } else {
        Survive::Process
    };
    let kind = if std::env::var("CENOTE_VICTIM_DRAM").is_ok() {
        Kind::Dram
    } else {
        Kind::Cxl
    };
    let notes = File::options()
        .read(true)
        .write(true)
        .open(dir.join("notes"))
        .expect("notes");
    let (pool, _) = open(dir, survive, kind);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (pool, notes) = (&pool, &notes);
            let mut random = Random(seed.wrapping_mul(thread as u64 + 7) | 1);
            s.spawn(move || {
                loop {
                    if let Some(count) = model::step(pool, PAGES, thread, &mut random) {
                        notes
                            .write_all_at(&count.to_le_bytes(), thread as u64 * 8)
                            .expect("note");
                    }
                }
            });
        }
    });
}

fn rounds(survive: Survive, kind: Kind, rounds: u64) {
    let rounds = std::env::var("CENOTE_ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(rounds);
    let mut random = Random(model::seed());
    let dir = tempfile::tempdir_in("/dev/shm").expect("dir");
    File::create(dir.path().join("notes"))
        .expect("notes")
        .set_len(THREADS as u64 * 8)
        .expect("length");
    let notes = File::open(dir.path().join("notes")).expect("notes");
    model::prepare(&open(dir.path(), survive, kind).0, PAGES);
    let (mut repaired, mut voided, mut kept, mut longest) = (0, 0, 0, Nanos::ZERO);
    for round in 0..rounds {
        let mut command = Command::new(std::env::current_exe().expect("program"));
        command.args(["--exact", "kills::victim", "--nocapture", "--test-threads=1"]);
        command
            .env("CENOTE_VICTIM_DIR", dir.path())
            .env("CENOTE_VICTIM_SEED", random.word().to_string());
        if survive == Survive::Host {
            command.env("CENOTE_VICTIM_HOST", "1");
        }
        if kind == Kind::Dram {
            command.env("CENOTE_VICTIM_DRAM", "1");
        }
        let mut victim = command.stdout(Stdio::null()).spawn().expect("victim");
        let wait = if random.below(4) == 0 {
            random.below(20)
        } else {
            30 + random.below(150)
        };
        std::thread::sleep(Duration::from_millis(wait));
        assert!(
            victim.try_wait().expect("status").is_none(),
            "the victim ended by itself, round {round}"
        );
        victim.kill().expect("kill");
        victim.wait().expect("end");
        let (pool, report) = open(dir.path(), survive, kind);
        let expected = if kind == Kind::Cxl { Mode::Instant } else { Mode::Log };
        assert_eq!(report.mode, expected, "round {round}: {:?}", report.remarks);
        assert!(report.remarks.is_empty(), "round {round}: {:?}", report.remarks);
        repaired += report.frames_repaired();
        voided += report.voided;
        kept += report.frames_kept;
        longest = longest.max(report.duration);
        model::verify(&pool, PAGES, &noted(&notes));
    }
    println!(
        "{survive:?} {kind:?}: {rounds} kills, {kept} frames kept, {repaired} repaired, {voided} voided, \
         recovery {:.1} ms at most",
        longest.raw() as f64 / 1e6
    );
}

fn noted(notes: &File) -> Vec<u64> {
    let mut bytes = [0; 8 * THREADS as usize];
    notes.read_exact_at(&mut bytes, 0).expect("notes");
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| u64::from_le_bytes(*b))
        .collect()
}

#[test]
fn killed_with_a_region_that_survives_the_process() {
    rounds(Survive::Process, Kind::Cxl, 20);
}

#[test]
fn killed_with_a_region_that_survives_the_host() {
    rounds(Survive::Host, Kind::Cxl, 8);
}

#[test]
fn killed_without_a_region() {
    rounds(Survive::Process, Kind::Dram, 6);
}
