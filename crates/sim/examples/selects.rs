//! Simulated point-selects a real second: instances of the engine on hosts of a simulated pod, their tables warm, each
//! row read by its key in a transaction of its own, caches and links modelled.
//!
//! ```text
//! cargo build --release -p cenote-sim --example selects
//! taskset -c 0 target/release/examples/selects [instances 12] [threads of each 1] [selects of each thread 50000] [rows 10000] [coherent|incoherent]
//! ```

use cenote_base::rt::atomic::{AtomicU64, Ordering};
use cenote_base::rt::{self, Nanos, os};
use cenote_engine::{ColumnDef, ColumnType, Datum, Engine, EngineOptions, Isolation, MemoryKind, NewTable, Table};
use cenote_sim::{DeviceSpec, Pace, Topology, World};
use std::sync::Arc;

/// Bytes of an instance's pool.
const POOL: u64 = 24 << 20;

struct Plan {
    instances: usize,
    threads: usize,
    selects: u64,
    rows: i32,
    coherent: bool,
}

fn new_table() -> NewTable {
    let column = |name: &str, ty| ColumnDef {
        name: name.into(),
        ty,
        not_null: true,
        default: None,
    };
    NewTable {
        name: "sbtest".into(),
        columns: vec![
            column("id", ColumnType::Int4),
            column("k", ColumnType::Int4),
            column("c", ColumnType::Char(120)),
            column("pad", ColumnType::Char(60)),
        ],
        primary_key: Some(("sbtest_pkey".into(), vec![0])),
        indexes: Vec::new(),
    }
}

fn row(table: &Table, id: i32) -> Vec<u8> {
    let (text, mut row) = (format!("{id:0120}"), Vec::new());
    let values = [
        Datum::Int4(id),
        Datum::Int4(id / 3),
        Datum::Text(text.clone()),
        Datum::Text(text[..60].into()),
    ];
    table.layout().encode(&values, &mut row).expect("a row");
    row
}

fn prepare(engine: &Arc<Engine>, rows: i32) -> Arc<Table> {
    let mut tx = engine.begin(Isolation::ReadCommitted);
    let table = tx.create_table(new_table()).expect("made");
    tx.commit().expect("committed");
    for from in (0..rows).step_by(500) {
        tx.begin(Isolation::ReadCommitted);
        for id in from..rows.min(from + 500) {
            tx.insert(&table, &row(&table, id)).expect("inserted");
        }
        tx.commit().expect("committed");
    }
    table
}

fn select(engine: &Arc<Engine>, table: &Table, rows: i32, count: u64) {
    let (mut tx, mut key, mut row) = (engine.tx(), Vec::new(), Vec::new());
    let mut seed = rt::random();
    for _ in 0..count {
        seed = cenote_base::random::mix(seed.wrapping_add(1));
        tx.begin(Isolation::ReadCommitted);
        key.clear();
        table.key_of_values(&[Datum::Int4((seed % rows as u64) as i32)], &mut key);
        assert!(tx.get(table, &key, &mut row).expect("readable"));
        tx.commit().expect("committed");
    }
}

/// An instance: opens, fills and warms, waits for the others, and selects.
fn instance(number: usize, plan: &Arc<Plan>, ready: &Arc<AtomicU64>) {
    let mut options = EngineOptions::new("/data", MemoryKind::Cxl, POOL);
    options.region = Some(format!("/dev/sim/pool{number}").into());
    let engine = Engine::open(options).expect("the engine opens");
    let table = prepare(&engine, plan.rows);
    select(&engine, &table, plan.rows, plan.rows as u64);
    ready.fetch_add(1, Ordering::SeqCst);
    while ready.load(Ordering::SeqCst) < plan.instances as u64 + 1 {
        rt::sleep(Nanos::from_micros(100));
    }
    let threads: Vec<_> = (0..plan.threads)
        .map(|i| {
            let (engine, table, plan) = (Arc::clone(&engine), Arc::clone(&table), Arc::clone(plan));
            rt::spawn(&format!("session {i}"), move || {
                select(&engine, &table, plan.rows, plan.selects);
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
}

/// Processor time of this program's thread in seconds: what other programs took is not in it. (As the kernel's table
/// says it: the clock's system call by rustix crashes under valgrind.)
#[allow(clippy::disallowed_methods, reason = "not the database's file")]
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    nanos.unwrap_or(0) as f64 / 1e9
}

fn topology(plan: &Plan) -> Topology {
    let hosts = Topology::hosts(plan.instances, plan.threads as u32 + 2);
    (0..plan.instances).fold(hosts, |t, i| {
        let device = DeviceSpec::new(&format!("pool{i}"), 2 * POOL, "cxl-switch").expect("a known profile");
        t.with_device(DeviceSpec {
            coherent: plan.coherent,
            ..device
        })
    })
}

fn main() {
    let arg = |n: usize, default: u64| std::env::args().nth(n).and_then(|a| a.parse().ok()).unwrap_or(default);
    let plan = Arc::new(Plan {
        instances: arg(1, 12) as usize,
        threads: arg(2, 1) as usize,
        selects: arg(3, 50_000),
        rows: arg(4, 10_000) as i32,
        coherent: std::env::args().nth(5).is_none_or(|a| a == "coherent"),
    });
    let world = World::new(1, Pace::Project, topology(&plan)).expect("a possible topology");
    let begun = os::now();
    let outcome = world.run(|w| {
        let ready = Arc::new(AtomicU64::new(0));
        let instances: Vec<_> = (0..plan.instances)
            .map(|i| {
                let (plan, ready) = (Arc::clone(&plan), Arc::clone(&ready));
                w.process(i, &format!("instance {i}"), move || instance(i, &plan, &ready))
            })
            .collect();
        while ready.load(Ordering::SeqCst) < plan.instances as u64 {
            rt::sleep(Nanos::from_millis(1));
        }
        let (real, virt, steps) = ((os::now(), processor()), rt::now(), w.steps());
        ready.fetch_add(1, Ordering::SeqCst);
        instances
            .iter()
            .for_each(|i| assert_eq!(i.join(), cenote_sim::Exit::Returned));
        (real, (os::now(), processor()), rt::now().since(virt), w.steps() - steps)
    });
    let (from, to, virt, steps) = outcome.value;
    let all = plan.selects * (plan.instances * plan.threads) as u64;
    let (took, used) = (to.0.since(from.0).as_secs_f64(), to.1 - from.1);
    println!(
        "set up in {:.1} s; {all} selects in {took:.2} s, {used:.2} s of the processor's",
        from.0.since(begun).as_secs_f64()
    );
    println!(
        "{:.0} simulated selects a real second, {:.0} a second of the processor's",
        all as f64 / took,
        all as f64 / used
    );
    println!(
        "{:.1} points a select; virtual: {:.0} selects a second of one thread",
        steps as f64 / all as f64,
        plan.selects as f64 / virt.as_secs_f64()
    );
}
