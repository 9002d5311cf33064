//! TPC-C, TATP and TPC-H on a real server: small data, short runs, and data and answers that are broken to see that each
//! check can fail.

use cenote_bench::server::{CenoteOptions, RegionFile, Server, find_program, free_port};
use cenote_bench::{oltp, shapes, tatp, tpcc, tpch};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The program beside the test's own directory; built by `cargo build --workspace`.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its file");
    let path = test
        .ancestors()
        .nth(2)
        .expect("target/release/deps/test")
        .join("cenote");
    assert!(
        path.exists(),
        "{} is missing: run cargo build --release --workspace first",
        path.display()
    );
    path
}

fn server(dir: &Path) -> (Server, String) {
    let server = Server::cenote(&CenoteOptions {
        program: program(),
        data: dir.join("data"),
        memory: "cxl".into(),
        memory_size: "128MiB".into(),
        port: free_port().expect("a port"),
        survive: "process".into(),
        region: RegionFile::new(),
    })
    .expect("a server");
    let url = format!("postgres://cenote@127.0.0.1:{}/cenote", server.port);
    (server, url)
}

fn tpcc_options(url: &str, out: &Path) -> tpcc::Options {
    tpcc::Options {
        url: url.into(),
        out: Some(out.into()),
        warehouses: 1,
        sizes: tpcc::Sizes {
            items: 500,
            customers: 30,
        },
        terminals: 4,
        measured: Duration::from_millis(1500),
        warmup: Duration::from_millis(100),
        rounds: 2,
        load: tpcc::Load::IfMissing,
        seed: 1,
        has_waits: false,
        isolation: "read committed".into(),
        server_pid: None,
    }
}

/// Each statement breaks the data; the conditions that have to fail by it, and no others.
const BREAKS: [(&str, &[u32]); 14] = [
    ("UPDATE warehouse SET w_ytd = w_ytd + 1 WHERE w_id = 1", &[1, 8]),
    (
        "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = 1 AND d_id = 3",
        &[2],
    ),
    (
        "DELETE FROM new_order WHERE no_w_id = 1 AND no_d_id = 1 AND no_o_id = 25",
        &[3, 5, 11],
    ),
    (
        "DELETE FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 1 AND ol_number = 1",
        &[4, 6],
    ),
    (
        "UPDATE orders SET o_carrier_id = NULL WHERE o_w_id = 1 AND o_d_id = 1 AND o_id = 1",
        &[5, 7],
    ),
    (
        "UPDATE orders SET o_carrier_id = 1 WHERE o_w_id = 1 AND o_d_id = 1 AND o_id = 30",
        &[5, 7],
    ),
    (
        "UPDATE orders SET o_ol_cnt = o_ol_cnt + 1 WHERE o_w_id = 1 AND o_d_id = 1 AND o_id = 1",
        &[4, 6],
    ),
    (
        "UPDATE order_line SET ol_delivery_d = NULL WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 1 AND ol_number = 1",
        &[7],
    ),
    (
        "UPDATE history SET h_amount = h_amount + 1 WHERE h_w_id = 1 AND h_d_id = 1 AND h_c_id = 1",
        &[8, 9, 10],
    ),
    (
        "UPDATE district SET d_ytd = d_ytd + 1 WHERE d_w_id = 1 AND d_id = 3",
        &[1, 9],
    ),
    (
        "UPDATE customer SET c_balance = c_balance + 1 WHERE c_w_id = 1 AND c_d_id = 1 AND c_id = 1",
        &[10, 12],
    ),
    (
        "UPDATE customer SET c_delivery_cnt = 1 WHERE c_w_id = 1 AND c_d_id = 1 AND c_id = 1",
        &[11],
    ),
    (
        "UPDATE customer SET c_ytd_payment = c_ytd_payment + 1 WHERE c_w_id = 1 AND c_d_id = 1 AND c_id = 1",
        &[12],
    ),
    (
        "UPDATE order_line SET ol_amount = ol_amount + 1 WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 1",
        &[10, 12],
    ),
];

#[test]
fn transactions_keep_all_conditions_and_broken_data_fails_them() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (_server, url) = server(dir.path());
    let options = tpcc_options(&url, &dir.path().join("out"));
    let mut client = oltp::connect(&url).expect("a connection");
    client
        .batch_execute("CREATE TABLE customer (id INTEGER)")
        .expect("another's table");
    tpcc::prepare(&options).expect_err("it drops no other's table");
    client
        .execute("INSERT INTO customer VALUES (1)", &[])
        .expect("it is there");
    let load = tpcc::Load::Always;
    tpcc::prepare(&tpcc::Options {
        load,
        ..options.clone()
    })
    .expect("loaded");
    assert!(tpcc::check(&mut client).expect("checked").is_empty(), "as loaded");
    for (statement, wanted) in BREAKS {
        client.batch_execute("BEGIN").expect("begun");
        assert!(
            client.execute(statement, &[]).expect(statement) > 0,
            "{statement} changes nothing"
        );
        let found = tpcc::check(&mut client).expect("checked");
        let numbers: Vec<u32> = found.iter().map(|violation| violation.number).collect();
        assert_eq!(numbers, wanted, "{statement}: {found:?}");
        client.batch_execute("ROLLBACK").expect("rolled back");
    }
    let rounds = tpcc::run(&options).expect("conditions 1 to 12 hold");
    assert!(
        rounds.len() == 2 && rounds.iter().all(|round| round.all.ended > 0 && round.score > 0.0),
        "{rounds:?}"
    );
    for name in ["tpcc.json", "tpcc.svg", "tpcc.png"] {
        assert!(
            options.out.as_ref().is_some_and(|out| out.join(name).exists()),
            "{name}"
        );
    }
    client
        .execute("UPDATE warehouse SET w_ytd = w_ytd + 1", &[])
        .expect("broken");
    let error = tpcc::must_hold(&url).expect_err("the data is broken").to_string();
    assert!(
        error.contains("condition 1 ") && error.contains("condition 8 "),
        "{error}"
    );
}

#[test]
fn as_many_subscribers_are_missed_as_the_population_makes_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (_server, url) = server(dir.path());
    let mut options = tatp::Options {
        url,
        out: Some(dir.path().join("out")),
        subscribers: 5_000,
        clients: 4,
        measured: Duration::from_millis(1500),
        warmup: Duration::ZERO,
        rounds: 1,
        load: tatp::Load::Never,
        seed: 1,
        server_pid: None,
    };
    tatp::run(&options).expect_err("there is no data");
    options.load = tatp::Load::Always;
    let rounds = tatp::run(&options).expect("shares are right");
    assert!(
        rounds.iter().all(|round| round.all.ended > 0 && round.kinds.len() == 7),
        "{rounds:?}"
    );
    assert!(options.out.is_some_and(|out| out.join("tatp.json").exists()));
}

fn tpch_options(url: String, out: &Path) -> tpch::Options {
    tpch::Options {
        url,
        out: out.into(),
        scale: 0.01,
        seed: 1,
        is_loading: true,
        has_indexes: true,
        queries: (1..=22).collect(),
        repetitions: 1,
        timeout: Duration::from_secs(60),
        server_pid: None,
        answers: None,
        compare: None,
    }
}

#[test]
fn queries_have_the_answers_of_postgresql_and_other_answers_are_told() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // PostgreSQL's user has to reach its data directory.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("a folder of this process");
    let file = dir.path().join("answers.json");
    let (_server, url) = server(dir.path());
    let mut options = tpch_options(url, &dir.path().join("out"));
    if find_program("initdb").is_some() {
        let data = dir.path().join("postgresql");
        let peer = Server::postgresql(&data, &["--locale=C"], &[]).expect("a server");
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", peer.port);
        let answers = Some(file.clone());
        tpch::run(&tpch::Options {
            answers,
            ..tpch_options(url, &dir.path().join("peer"))
        })
        .expect("answers");
        options.compare = Some(file.clone());
    } else {
        println!("not compared: PostgreSQL is not installed (scripts/setup.sh test installs it)");
        options.answers = Some(file.clone());
    }
    let measured = tpch::run(&options).expect("all answers are right");
    assert_eq!(measured.len(), 22);
    let text = std::fs::read_to_string(&file).expect("answers were written");
    let broken = text.replacen("1-URGENT", "6-NEVER ", 1);
    assert!(text != broken, "query 4 has priorities");
    std::fs::write(&file, broken).expect("a file of this test");
    options.is_loading = false;
    options.compare = Some(file);
    options.answers = None;
    let error = tpch::run(&options).expect_err("query 4 differs").to_string();
    assert!(error.contains("q04") && error.lines().count() == 1, "{error}");
    options.seed = 2;
    assert!(tpch::run(&options).is_err(), "answers of other data");
}

/// Every shape runs, and its answer on one server is that on another.
#[test]
fn shapes_run_on_two_servers() {
    let dir = tempfile::tempdir().expect("a directory");
    let [(_one, url), (_other, against)] = ["a", "b"].map(|name| {
        let dir = dir.path().join(name);
        std::fs::create_dir_all(&dir).expect("a directory");
        server(&dir)
    });
    shapes::run(&shapes::Options {
        url,
        against: Some(against),
        out: dir.path().join("out"),
        customers: 1000,
        rounds: 1,
        slice: Duration::from_millis(1),
    })
    .expect("equal answers");
    assert!(dir.path().join("out/shapes.json").exists());
}
