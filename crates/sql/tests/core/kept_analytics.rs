//! Plans of analytics that a session keeps: each run answers as one that is planned anew would.

use crate::support::{Answer, bind_tail, extended, simple};
use cenote_engine::{Engine, EngineOptions, MemoryKind};
use cenote_sql::analytics::{Config, DataFusion};
use cenote_sql::{Bind, Session, SessionInfo, Sql};
use std::sync::Arc;

/// A database whose kept plans are counted.
struct Counted {
    analytics: Arc<DataFusion>,
    sql: Arc<Sql>,
    _directory: tempfile::TempDir,
}

impl Counted {
    fn with(config: Config) -> Counted {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let engine = Engine::open(EngineOptions::new(directory.path(), MemoryKind::Dram, 64 << 20)).expect("an engine");
        let analytics = DataFusion::new(engine.clone(), None, config);
        Counted {
            sql: Sql::new(engine, Some(analytics.clone())),
            analytics,
            _directory: directory,
        }
    }

    fn new() -> (Counted, Session) {
        let counted = Counted::with(Config::default());
        let mut session = counted.session();
        run(
            &mut session,
            "CREATE TABLE a (id int PRIMARY KEY, v int, d date, n numeric(8,2), t text)",
        );
        run(&mut session, "CREATE TABLE b (id int PRIMARY KEY, w int)");
        run(
            &mut session,
            "INSERT INTO a VALUES (1,10,'2020-01-01',1.50,'x'),(2,20,'2021-01-01',2.50,'y'),(3,NULL,NULL,NULL,NULL)",
        );
        run(&mut session, "INSERT INTO b VALUES (2,200),(3,300),(4,400)");
        (counted, session)
    }

    /// A session whose queries of any shape are those of analytics.
    fn session(&self) -> Session {
        let info = SessionInfo {
            user: "tester".into(),
            database: "cenote".into(),
            pid: 7,
            ..SessionInfo::default()
        };
        let mut session = self.sql.session(info).expect("a session");
        run(&mut session, "SET enable_row_executor = off");
        session
    }

    /// Whether `f` ran by a kept plan.
    fn kept(&self, f: impl FnOnce()) -> bool {
        let before = self.analytics.kept_runs();
        f();
        self.analytics.kept_runs() > before
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sql.engine().shutdown().ok();
    }
}

fn run(session: &mut Session, text: &str) -> Vec<String> {
    simple(session, text).unwrap_or_else(|e| panic!("{text}: {e}")).lines()
}

fn ask(session: &mut Session, text: &str, params: &[Option<&str>]) -> Vec<String> {
    extended(session, text, params)
        .unwrap_or_else(|e| panic!("{text}: {e}"))
        .lines()
}

const FULL: &str = "SELECT a.id, a.v, b.id, b.w FROM a FULL JOIN b ON a.id = b.id ORDER BY coalesce(a.id, b.id)";

#[test]
fn a_repeated_query_sees_what_was_written_since() {
    let (counted, mut session) = Counted::new();
    let first = ["1|10|NULL|NULL", "2|20|2|200", "3|NULL|3|300", "NULL|NULL|4|400"];
    assert_eq!(run(&mut session, FULL), first);
    run(&mut session, "INSERT INTO b VALUES (1, 100)");
    run(&mut session, "DELETE FROM a WHERE id = 3");
    let kept = counted.kept(|| {
        let second = ["1|10|1|100", "2|20|2|200", "NULL|NULL|3|300", "NULL|NULL|4|400"];
        assert_eq!(run(&mut session, FULL), second);
    });
    assert!(kept, "the plan was kept");
    run(&mut session, "BEGIN");
    run(&mut session, "DELETE FROM b");
    assert_eq!(run(&mut session, FULL), ["1|10|NULL|NULL", "2|20|NULL|NULL"]);
    run(&mut session, "ROLLBACK");
    assert_eq!(run(&mut session, FULL).len(), 4);
}

#[test]
fn parameters_of_each_run_are_its_own() {
    let (counted, mut session) = Counted::new();
    let text = "SELECT coalesce(a.id, b.id), $1::int + 1 FROM a FULL JOIN b ON a.id = b.id \
                WHERE coalesce(a.v, b.w) > $1 ORDER BY 1";
    assert_eq!(ask(&mut session, text, &[Some("15")]), ["2|16", "3|16", "4|16"]);
    let kept = counted.kept(|| {
        assert_eq!(ask(&mut session, text, &[Some("350")]), ["4|351"]);
        assert_eq!(ask(&mut session, text, &[None]), [""; 0]);
        assert_eq!(ask(&mut session, text, &[Some("0")]), ["1|1", "2|1", "3|1", "4|1"]);
    });
    assert!(kept, "the plan was kept");
    // Overflow is an error of its run alone.
    assert!(extended(&mut session, text, &[Some("2147483647")]).is_ok_and(|a| a.rows.is_empty()));
    let sum = "SELECT count(*) OVER (), a.v + $1::int FROM a FULL JOIN b ON a.id = b.id WHERE a.id = 2";
    assert_eq!(ask(&mut session, sum, &[Some("1")]), ["1|21"]);
    let error = extended(&mut session, sum, &[Some("2147483647")])
        .err()
        .expect("an overflow");
    assert_eq!(error.code(), "22003");
    assert_eq!(ask(&mut session, sum, &[Some("2")]), ["1|22"]);
}

/// The rows of VALUES were those of the first run in all others.
#[test]
fn listed_values_are_those_of_the_run() {
    let (_counted, mut session) = Counted::new();
    let text = "SELECT a.id FROM a FULL JOIN (VALUES ($1::int)) AS l (x) ON a.id = l.x WHERE l.x IS NOT NULL";
    assert_eq!(ask(&mut session, text, &[None]), [""; 0]);
    assert_eq!(ask(&mut session, text, &[Some("2")]), ["2"]);
    assert_eq!(ask(&mut session, text, &[Some("3")]), ["3"]);
}

/// Conditions on keys choose key ranges: they are chosen anew in each run.
#[test]
fn keys_are_looked_up_by_the_values_of_the_run() {
    let (counted, mut session) = Counted::new();
    run(
        &mut session,
        "CREATE TABLE k (x int, y int, z text, PRIMARY KEY (x, y))",
    );
    run(&mut session, "CREATE INDEX k_z ON k (z)");
    run(
        &mut session,
        "INSERT INTO k SELECT i / 10, i % 10, 'z' || i FROM generate_series(0, 4999) i",
    );
    for (text, runs) in [
        (
            "SELECT count(*), min(k.z) FROM k FULL JOIN b ON k.y = b.id WHERE k.x = $1 AND k.y >= $2",
            vec![
                (vec![Some("7"), Some("8")], "2|z78"),
                (vec![Some("499"), Some("0")], "10|z4990"),
                (vec![None, Some("0")], "0|NULL"),
                (vec![Some("7"), None], "0|NULL"),
                (vec![Some("500"), Some("0")], "0|NULL"),
                (vec![Some("0"), Some("9")], "1|z9"),
            ],
        ),
        (
            "SELECT count(*), max(k.x) FROM k FULL JOIN b ON k.x = b.id WHERE k.z = $1 OR k.z = $2",
            vec![
                (vec![Some("z4"), Some("z4999")], "2|499"),
                (vec![Some("z5"), Some("none")], "1|0"),
                (vec![None, Some("z17")], "1|1"),
            ],
        ),
        (
            "SELECT count(*), sum(k.y) FROM k FULL JOIN b ON k.x = b.id WHERE $2 > k.x AND k.x > $1::int",
            vec![
                (vec![Some("0"), Some("4")], "30|135"),
                (vec![Some("490"), Some("1000")], "90|405"),
                (vec![Some("4"), Some("0")], "0|NULL"),
            ],
        ),
    ] {
        for (params, expected) in runs {
            assert_eq!(ask(&mut session, text, &params), [expected], "{text} {params:?}");
        }
        let params = vec![Some("1"); 2];
        assert!(counted.kept(|| drop(ask(&mut session, text, &params))), "{text}");
    }
}

/// Filters that joins and sorts make while they run are those of the run, and those of aggregates do not remember.
#[test]
fn dynamic_filters_are_of_the_run() {
    let (counted, mut session) = Counted::new();
    run(&mut session, "CREATE TABLE big (id int PRIMARY KEY, g int)");
    run(
        &mut session,
        "INSERT INTO big SELECT i, i % 100 FROM generate_series(1, 5000) i",
    );
    let joined = "SELECT count(*), min(big.id), max(big.id) FROM big JOIN \
                  (SELECT coalesce(a.id, b.id) AS id FROM a FULL JOIN b ON a.id = b.id WHERE coalesce(b.w, 0) > $1) s \
                  ON big.id = s.id";
    let top = "SELECT id FROM (SELECT id, g FROM big WHERE g = $1 UNION ALL \
               SELECT b.id, 0 FROM a FULL JOIN b ON a.id = b.id WHERE b.w < 0) s \
               ORDER BY id DESC LIMIT 2";
    let least = "SELECT min(id) FROM (SELECT id FROM big WHERE g >= $1 UNION ALL \
                 SELECT b.id FROM a FULL JOIN b ON a.id = b.id WHERE b.w < 0) s";
    assert_eq!(ask(&mut session, joined, &[Some("0")]), ["3|2|4"]);
    assert_eq!(ask(&mut session, joined, &[Some("350")]), ["1|4|4"]);
    assert_eq!(ask(&mut session, joined, &[Some("250")]), ["2|3|4"]);
    assert_eq!(ask(&mut session, top, &[Some("99")]), ["4999", "4899"]);
    assert_eq!(ask(&mut session, top, &[Some("1")]), ["4901", "4801"]);
    assert_eq!(ask(&mut session, least, &[Some("1")]), ["1"]);
    assert_eq!(ask(&mut session, least, &[Some("70")]), ["70"]);
    assert_eq!(ask(&mut session, least, &[Some("5")]), ["5"]);
    for text in [joined, top, least] {
        assert!(counted.kept(|| drop(ask(&mut session, text, &[Some("1")]))), "{text}");
    }
}

/// What a plan was folded from is another by the next run: definitions, the time zone, today.
#[test]
fn a_plan_is_dropped_with_what_it_was_made_of() {
    let (counted, mut session) = Counted::new();
    let text = "SELECT * FROM (SELECT a.* FROM a FULL JOIN b ON a.id = b.id WHERE a.id = 2) s";
    assert_eq!(run(&mut session, text), ["2|20|2021-01-01|2.50|y"]);
    run(&mut session, "DROP TABLE a");
    run(
        &mut session,
        "CREATE TABLE a (more int, id int PRIMARY KEY, v int, d date)",
    );
    run(
        &mut session,
        "INSERT INTO a VALUES (5,1,10,'2020-01-01'),(6,2,20,'2021-01-01'),(7,3,NULL,NULL)",
    );
    assert_eq!(run(&mut session, text), ["6|2|20|2021-01-01"]);
    run(&mut session, "TRUNCATE b");
    assert_eq!(
        run(&mut session, FULL),
        ["1|10|NULL|NULL", "2|20|NULL|NULL", "3|NULL|NULL|NULL"]
    );
    run(&mut session, "DROP TABLE b");
    run(&mut session, "CREATE TABLE b (w text, id int)");
    run(&mut session, "INSERT INTO b VALUES ('w', 1)");
    assert_eq!(run(&mut session, FULL)[0], "1|10|1|w");

    let zoned = "SELECT count(*) FROM a FULL JOIN b ON a.id = b.id \
                 WHERE a.d::timestamptz >= timestamptz '2021-01-01 00:00'";
    assert_eq!(run(&mut session, zoned), ["1"]);
    let literal = "SELECT max(timestamptz '2021-01-01 12:00' AT TIME ZONE 'UTC') FROM a FULL JOIN b ON a.id = b.id";
    assert_eq!(run(&mut session, literal), ["2021-01-01 12:00:00"]);
    assert!(counted.kept(|| drop(run(&mut session, literal))));
    run(&mut session, "SET TIME ZONE '+02:00'");
    assert_eq!(run(&mut session, literal), ["2021-01-01 10:00:00"]);
    assert_eq!(run(&mut session, zoned), ["1"]);

    let timed = "SELECT count(DISTINCT now()), max(now()) = $1::timestamptz FROM a FULL JOIN b ON a.id = b.id";
    let now = "SELECT max(now()) FROM a FULL JOIN b ON a.id = b.id";
    let (first, second) = (run(&mut session, now), run(&mut session, now));
    assert_ne!(first, second, "the time of each transaction");
    assert_eq!(ask(&mut session, timed, &[Some(&first[0])]), ["1|f"]);
    let today = "SELECT count(*) FROM a FULL JOIN b ON a.id = b.id WHERE a.d < 'today'";
    assert!(!counted.kept(|| {
        assert_eq!(run(&mut session, today), ["2"]);
        assert_eq!(run(&mut session, today), ["2"]);
    }));
}

/// A column's text may be `now`: the kept plan reads it by the time of its run.
#[test]
fn texts_of_columns_are_read_in_the_run() {
    let (counted, mut session) = Counted::new();
    run(&mut session, "UPDATE a SET t = 'now'");
    let text = "SELECT max(a.t::timestamptz) = max(s.x) FROM a FULL JOIN b ON a.id = b.id, \
                (SELECT $1::timestamptz AS x) s";
    let clock = "SELECT now()";
    for _ in 0..3 {
        run(&mut session, "BEGIN");
        let now = run(&mut session, clock);
        assert_eq!(ask(&mut session, text, &[Some(&now[0])]), ["t"]);
        run(&mut session, "COMMIT");
    }
    drop(counted);
}

/// Two portals of one statement run side by side, each by its own parameters.
#[test]
fn portals_share_no_plan_at_a_time() {
    let (_counted, mut session) = Counted::new();
    run(&mut session, "INSERT INTO b SELECT i, i FROM generate_series(5, 20) i");
    let text = "SELECT coalesce(a.id, b.id) + $1::int FROM a FULL JOIN b ON a.id = b.id ORDER BY 1";
    assert_eq!(ask(&mut session, text, &[Some("0")]).len(), 20);
    run(&mut session, "BEGIN");
    session.parse("s", text, &[]).expect("parsed");
    let mut lines = vec![Vec::new(), Vec::new()];
    for (portal, param) in [("p", "100"), ("q", "1000")] {
        let tail = bind_tail(&[Some(param)]);
        let bind = Bind::from_wire(&tail).expect("well formed");
        session.bind(portal, "s", bind).expect("bound");
    }
    for _ in 0..5 {
        for (portal, lines) in ["p", "q"].iter().zip(&mut lines) {
            let mut answer = Answer::default();
            session.execute(portal, 5, &mut answer).expect("executed");
            lines.extend(answer.lines());
        }
    }
    for (lines, from) in lines.iter().zip([100, 1000]) {
        let expected: Vec<String> = (1..=20).map(|i| (i + from).to_string()).collect();
        assert_eq!(*lines, expected);
    }
    session.sync().expect("synced");
    run(&mut session, "COMMIT");
}

/// A kept plan that held its snapshot would keep purge from what was deleted since.
#[test]
fn a_kept_plan_holds_no_snapshot() {
    let (counted, mut session) = Counted::new();
    run(&mut session, FULL);
    ask(
        &mut session,
        "SELECT count(*) FROM a FULL JOIN b ON a.id = b.id WHERE a.id > $1",
        &[Some("1")],
    );
    let engine = counted.sql.engine();
    let mut other = counted.session();
    run(&mut other, "CREATE TABLE filled (id int PRIMARY KEY, v int UNIQUE)");
    run(
        &mut other,
        "INSERT INTO filled SELECT i, i FROM generate_series(1, 1000) i",
    );
    run(&mut other, "DELETE FROM filled");
    engine.vacuum().expect("purged");
    let report = engine.check().expect("checked");
    assert_eq!(report.entries_of_others, 0, "purge has removed all");
    assert_eq!(run(&mut session, FULL).len(), 4);
}

/// Few plans fit: the oldest go, and are made again.
#[test]
fn kept_plans_are_bounded() {
    let counted = Counted::with(Config {
        memory_limit: 4 << 20,
        ..Config::default()
    });
    let mut session = counted.session();
    run(&mut session, "CREATE TABLE a (id int PRIMARY KEY, v int)");
    run(&mut session, "INSERT INTO a VALUES (1, 1)");
    let text = |i: usize| format!("SELECT x.id + {i} FROM a x FULL JOIN a y ON x.id = y.id");
    for i in 0..40 {
        assert_eq!(run(&mut session, &text(i)), [(i + 1).to_string()]);
    }
    assert!(
        !counted.kept(|| drop(run(&mut session, &text(0)))),
        "the oldest is gone"
    );
    assert!(
        counted.kept(|| drop(run(&mut session, &text(39)))),
        "the newest is there"
    );
    assert!(
        counted.kept(|| drop(run(&mut session, &text(0)))),
        "and the oldest again"
    );
}

/// Many rows that came after the plan was made are planned for anew.
#[test]
fn a_table_that_has_grown_is_planned_for_anew() {
    let (counted, mut session) = Counted::new();
    run(&mut session, FULL);
    assert!(counted.kept(|| drop(run(&mut session, FULL))));
    run(
        &mut session,
        "INSERT INTO a SELECT i, i FROM generate_series(10, 9999) i",
    );
    assert!(!counted.kept(|| assert_eq!(run(&mut session, FULL).len(), 4 + 9990)));
    assert!(counted.kept(|| assert_eq!(run(&mut session, FULL).len(), 4 + 9990)));
}

/// Run by hand: `cargo test --release --workspace --test core kept_analytics::what_a_run_costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_a_run_costs() {
    const RUNS: u32 = 20_000;
    let (_counted, mut session) = Counted::new();
    session.parse("s", FULL, &[]).expect("parsed");
    let tail = bind_tail(&[]);
    let mut once = || {
        let mut answer = Answer::default();
        session
            .bind("", "s", Bind::from_wire(&tail).expect("well formed"))
            .expect("bound");
        session.execute("", 0, &mut answer).expect("executed");
        session.sync().expect("synced");
        assert_eq!(answer.rows.len(), 4);
    };
    (0..10).for_each(|_| once());
    let start = std::time::Instant::now();
    (0..RUNS).for_each(|_| once());
    println!("{:?} a run", start.elapsed() / RUNS);
}
